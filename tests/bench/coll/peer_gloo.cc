/* peer_gloo.cc: Gloo from C++, its TCP transport over loopback (there is none through memory), and
 * the algorithms that it takes by default; where the new interface has none, the old one's.
 *
 * RANK, WORLD_SIZE; BENCH_DIR: an empty folder, where the ranks meet. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "tests/bench/coll/harness.h"

static bench_peer g_peer;
static std::shared_ptr<gloo::rendezvous::Context> g_context;
static std::function<void()> g_operation;
static std::shared_ptr<gloo::Algorithm> g_old;
static std::shared_ptr<gloo::transport::UnboundBuffer> g_buffer;

static void sum(void *c, const void *a, const void *b, size_t n)
{
    gloo::sum<float>(c, a, b, n);
}

static void barrier()
{
    gloo::BarrierOptions o(g_context);
    o.setTag(1);
    gloo::barrier(o);
}

static int agree(int value)
{
    gloo::BroadcastOptions o(g_context);
    o.setOutput(&value, 1);
    o.setRoot(0);
    o.setTag(2);
    gloo::broadcast(o);
    return value;
}

static void greater(void *c, const void *a, const void *b, size_t n)
{
    gloo::max<double>(c, a, b, n);
}

static double most(double value)
{
    gloo::AllreduceOptions o(g_context);
    o.setOutput(&value, 1);
    o.setReduceFunction(greater);
    o.setTag(3);
    gloo::allreduce(o);
    return value;
}

/* reduce_scatter is of the old interface: an object, made for these buffers, and working in place.
 * Its part is copied, as the others deliver it. */
static void make_reduce_scatter(float *a, float *b, size_t count)
{
    size_t part = count / g_peer.ranks;
    std::vector<int> parts(g_peer.ranks, (int)part);
    g_old = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(
        g_context, std::vector<float *>{a}, (int)count, parts);
    g_operation = [=] {
        g_old->run();
        memcpy(b, a, part * sizeof(float));
    };
}

static int prepare(bench_op op, char *pa, char *pb, size_t count)
{
    float *a = (float *)pa, *b = (float *)pb;
    size_t part = count / g_peer.ranks, len = count * sizeof(float);
    int other = 1 - g_peer.rank;
    switch (op) {
    case ALL_REDUCE:
        g_operation = [=] {
            gloo::AllreduceOptions o(g_context);
            o.setOutput(a, count);
            o.setReduceFunction(sum);
            gloo::allreduce(o);
        };
        return 0;
    case BROADCAST:
        g_operation = [=] {
            gloo::BroadcastOptions o(g_context);
            o.setOutput(a, count);
            o.setRoot(bench_root);
            gloo::broadcast(o);
        };
        return 0;
    case ALL_GATHER:
        g_operation = [=] {
            gloo::AllgatherOptions o(g_context);
            o.setOutput(a, count);
            gloo::allgather(o);
        };
        return 0;
    case ALL_TO_ALL:
        g_operation = [=] {
            gloo::AlltoallOptions o(g_context);
            o.setInput(a, count);
            o.setOutput(b, count);
            gloo::alltoall(o);
        };
        return 0;
    case REDUCE:
        g_operation = [=] {
            gloo::ReduceOptions o(g_context);
            o.setInput(a, count);
            o.setOutput(b, count);
            o.setRoot(bench_root);
            o.setReduceFunction(sum);
            gloo::reduce(o);
        };
        return 0;
    case REDUCE_SCATTER:
        make_reduce_scatter(a, b, count);
        return 0;
    case PINGPONG:
        if (g_peer.rank < 2)
            g_buffer = g_context->createUnboundBuffer(a, len);
        g_operation = [=] {
            if (g_peer.rank == 0) {
                g_buffer->send(other, 9);
                g_buffer->waitSend();
            }
            g_buffer->recv(other, 9);
            g_buffer->waitRecv();
            if (g_peer.rank == 1) {
                g_buffer->send(other, 9);
                g_buffer->waitSend();
            }
        };
        return 0;
    case BARRIER:
        g_operation = barrier;
        return 0;
    default:
        (void)part;
        return 1;
    }
}

static void run(bench_op, char *, char *, size_t)
{
    g_operation();
}

int main(int argc, char **argv)
{
    const char *rank = getenv("RANK"), *ranks = getenv("WORLD_SIZE"), *dir = getenv("BENCH_DIR");
    if (!rank || !ranks || !dir) {
        fprintf(stderr, "RANK, WORLD_SIZE and BENCH_DIR must be set\n");
        return 2;
    }
    g_peer.rank = atoi(rank);
    g_peer.ranks = atoi(ranks);
    g_peer.prepare = prepare;
    g_peer.run = run;
    g_peer.barrier = barrier;
    g_peer.agree = agree;
    g_peer.most = most;
    gloo::transport::tcp::attr attr;
    attr.iface = "lo";
    g_context = std::make_shared<gloo::rendezvous::Context>(g_peer.rank, g_peer.ranks);
    gloo::rendezvous::FileStore store(dir);
    auto device = gloo::transport::tcp::CreateDevice(attr);
    g_context->connectFullMesh(store, device);
    int code = bench_main(argc, argv, &g_peer);
    barrier();
    return code;
}
