/* Operations on device memory, through an NCCL of our own that works on host memory
 * (tests/fake/nccl.c): what comes out is compared with what the same communicator makes of the same
 * data on the host. */
#include "tests/lib/test.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collectives/base/dtype.h"
#include "collectives/nccl/nccl_api.h"
#include "core/clock.h"
#include "core/mem.h"
#include "tests/fake/nccl.h"
#include "tests/lib/ranks.h"

static struct fake_nccl *g_fake;
static const struct cuda_api *g_cuda;
static int g_stream; /* its address is one */

static void use(const char *library)
{
    const char *path = build_path(library);
    void *lib = dlopen(path, RTLD_NOW);
    ck_assert_msg(lib, "%s", dlerror());
    fake_nccl_fn *state;
    *(void **)&state = dlsym(lib, "fake_nccl_state");
    g_fake = state();
    setenv("DLCOLL_NCCL_LIB", path, 1);
    setenv("DLCOLL_CUDA_LIB", path, 1);
    unsetenv("DLCOLL_BACKEND");
}

static void setup(void)
{
    use("tests/fake/libnccl.so.2");
}

static void teardown(void)
{
    ck_assert_int_eq(g_fake->crashes, 0);
}

/* Binds the thread to a device, as cudaSetDevice() does: once for each thread. */
static void use_device(int device)
{
    struct err e = ERR_INIT;
    cuda_context c, now = NULL;
    EXPECT(cuda_api_get(&g_cuda, &e) == 0, "%s", e.msg);
    g_cuda->CtxGetCurrent(&now);
    if (now)
        return;
    EXPECT(g_cuda->Init(0) == CUDA_OK && g_cuda->DevicePrimaryCtxRetain(&c, device) == CUDA_OK);
    EXPECT(g_cuda->CtxPushCurrent(c) == CUDA_OK);
}

static void *device_memory(size_t len)
{
    cuda_ptr p;
    use_device(0);
    EXPECT(g_cuda->MemAlloc(&p, len) == CUDA_OK);
    return (void *)(uintptr_t)p;
}

/* A rank begins: its communicator, and 64 bytes of device memory. */
static dlcoll_comm *join(struct ranks *j, int rank, int **x)
{
    ranks_become(j, rank);
    dlcoll_comm *c = comm_start();
    *x = device_memory(64);
    return c;
}

static dlcoll_opts on_stream(void)
{
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    o.stream = &g_stream;
    return o;
}

/* A test that is a job of `n` ranks, and nothing more. */
#define JOB(name, n, nodes, fn)  \
    START_TEST(name)             \
    {                            \
        ranks_run(n, nodes, fn); \
    }                            \
    END_TEST

/* Small whole numbers, exact in every type, in any order. */
static void fill(void *p, size_t n, int dtype, int rank)
{
    for (size_t i = 0; i < n; i++) {
        int v = (int)(i + (size_t)rank) % 3 + 1;
        switch (dtype) {
        case DLCOLL_F32:
            ((float *)p)[i] = (float)v;
            break;
        case DLCOLL_F64:
            ((double *)p)[i] = v;
            break;
        case DLCOLL_BF16:
            ((uint16_t *)p)[i] = v == 1 ? 0x3f80 : v == 2 ? 0x4000 : 0x4040;
            break;
        case DLCOLL_F16:
            ((uint16_t *)p)[i] = v == 1 ? 0x3c00 : v == 2 ? 0x4000 : 0x4200;
            break;
        case DLCOLL_F8E4M3:
            ((uint8_t *)p)[i] = v == 1 ? 0x38 : v == 2 ? 0x40 : 0x44;
            break;
        case DLCOLL_F8E5M2:
            ((uint8_t *)p)[i] = v == 1 ? 0x3c : v == 2 ? 0x40 : 0x42;
            break;
        case DLCOLL_BOOL:
            ((uint8_t *)p)[i] = (uint8_t)(v == 1);
            break;
        default:
            memset((uint8_t *)p + i * dtype_get(dtype)->size, 0, dtype_get(dtype)->size);
            ((uint8_t *)p)[i * dtype_get(dtype)->size] = (uint8_t)v;
        }
    }
}

/* ------------------------------------------------------------------------------- all operations */

enum { COUNT = 7, KINDS = 15, ROOM = 4096 };

/* The k-th operation. in and out have ROOM bytes. */
static int perform(int k, void *in, void *out, int type, int op, dlcoll_comm *c,
                   const dlcoll_opts *o, dlcoll_work **w)
{
    size_t n = COUNT, size = (size_t)dlcoll_size(c), elem = dtype_get(type)->size;
    int me = dlcoll_rank(c), root = (int)size - 1;
    static size_t counts[RANKS_MOST], displs[RANKS_MOST], mine[RANKS_MOST];
    size_t at = 0;
    for (size_t i = 0; i < size; i++) {
        counts[i] = i + 1;
        mine[i] = (size_t)me + 1;
        displs[i] = at;
        at += counts[i];
    }
    switch (k) {
    case 0:
        return dlcoll_all_reduce(in, out, n, type, op, c, o, w);
    case 1:
        return dlcoll_reduce(in, out, n, type, op, root, c, o, w);
    case 2:
        return dlcoll_reduce_scatter(in, out, n, type, op, c, o, w);
    case 3:
        return dlcoll_reduce_scatter_v(in, out, counts, type, op, c, o, w);
    case 4:
        return dlcoll_broadcast(in, out, n, type, root, c, o, w);
    case 5:
        return dlcoll_all_gather(in, out, n, type, c, o, w);
    case 6:
        return dlcoll_all_gather_v(in, out, counts, displs, type, c, o, w);
    case 7:
        return dlcoll_gather(in, out, n, type, root, c, o, w);
    case 8:
        return dlcoll_gather_v(in, counts[me], out, counts, displs, type, root, c, o, w);
    case 9:
        return dlcoll_scatter(in, out, n, type, root, c, o, w);
    case 10:
        return dlcoll_scatter_v(in, counts, displs, out, counts[me], type, root, c, o, w);
    case 11:
        return dlcoll_all_to_all(in, out, n, type, c, o, w);
    case 12: /* rank i gets i + 1 elements of everybody */
        return dlcoll_all_to_all_v(in, counts, displs, out, mine, NULL, type, c, o, w);
    case 13: {
        memcpy(out, in, n * size * elem);
        return dlcoll_all_to_all(out, out, n, type, c, o, w);
    }
    default: {
        dlcoll_span list[2] = {{in, out, n}, {(char *)in + n * elem, (char *)out + n * elem, 3}};
        return dlcoll_all_reduce_coalesced(list, 2, type, op, c, o, w);
    }
    }
}

static bool reduces(int k)
{
    return k < 4 || k == KINDS - 1;
}

static void compare(int k, int type, int op, dlcoll_comm *c, void *din, void *dout)
{
    static _Alignas(64) uint8_t in[ROOM], out[ROOM];
    int rank = dlcoll_rank(c);
    size_t elems = sizeof(in) / 8;
    fill(in, elems, type, rank);
    memcpy(din, in, sizeof(in));
    memset(out, 0, sizeof(out));
    memset(dout, 0, sizeof(out));
    int host = perform(k, in, out, type, op, c, NULL, NULL);
    int device = perform(k, din, dout, type, op, c, NULL, NULL);
    bool unknown = reduces(k) && (type == DLCOLL_I16 || type == DLCOLL_U16);
    if (reduces(k) && (type == DLCOLL_F8E4M3 || type == DLCOLL_F8E5M2))
        unknown = unknown || g_fake->version < 22400;
    if (host == DLCOLL_ENOSUP || unknown) {
        EXPECT(device == DLCOLL_ENOSUP, "kind %d type %d op %d: %d", k, type, op, device);
        return;
    }
    EXPECT(host == 0 && device == 0, "kind %d type %d op %d: %d %d %s", k, type, op, host, device,
           why(c));
    EXPECT(memcmp(out, dout, sizeof(out)) == 0, "kind %d, type %d, op %d differ", k, type, op);
}

static const int g_types[] = {DLCOLL_I8,     DLCOLL_U8,     DLCOLL_I32, DLCOLL_U32, DLCOLL_I64,
                              DLCOLL_U64,    DLCOLL_F16,    DLCOLL_F32, DLCOLL_F64, DLCOLL_BF16,
                              DLCOLL_F8E4M3, DLCOLL_F8E5M2, DLCOLL_I16, DLCOLL_U16, DLCOLL_BOOL};

static void everything(struct ranks *j, int rank)
{
    static const int ops[] = {DLCOLL_SUM, DLCOLL_PROD, DLCOLL_MAX, DLCOLL_MIN, DLCOLL_AVG};
    ranks_become(j, rank);
    dlcoll_comm *c = comm_start();
    void *in = device_memory(ROOM), *out = device_memory(ROOM);
    for (size_t t = 0; t < ARRAY_LEN(g_types); t++) {
        for (int k = 0; k < KINDS; k++) {
            for (size_t o = 0; o < (reduces(k) ? ARRAY_LEN(ops) : 1); o++)
                compare(k, g_types[t], ops[o], c, in, out);
        }
    }
    float factor = (float)(rank + 1);
    dlcoll_op premul;
    EXPECT(dlcoll_op_create_premul(&premul, &factor, DLCOLL_F32) == 0);
    compare(0, DLCOLL_F32, premul, c, in, out);
    compare(2, DLCOLL_F32, DLCOLL_SUM, c, in, out);
    EXPECT(g_fake->reduce_ops == 0);
    EXPECT(dlcoll_all_reduce(in, out, 4, DLCOLL_I32, DLCOLL_BXOR, c, NULL, NULL) == DLCOLL_ENOSUP);
    EXPECT(strstr(why(c), "NCCL does not have this reduction"), "%s", why(c));
    dlcoll_opts s = on_stream();
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0, "%s", why(c));
    comm_end(c);
}

START_TEST(every_operation_and_type)
{
    ranks_run(4, 1, everything);
    ck_assert_int_eq(g_fake->inits, 4);
    ck_assert_int_eq(g_fake->finalizes, 4);
    ck_assert_int_eq(g_fake->destroys, 4);
    ck_assert_int_eq(g_fake->aborts, 0);
    ck_assert_int_eq(g_fake->max_threads_in, 0);
}
END_TEST

START_TEST(an_older_library)
{
    use("tests/fake/libnccl-old.so.2");
    g_fake->version = 21903;
    ranks_run(3, 1, everything);
}
END_TEST

START_TEST(calls_that_go_on_by_themselves)
{
    g_fake->polls = 20;
    ranks_run(2, 1, everything);
}
END_TEST

/* ----------------------------------------------------------------------------- streams, handles */

static void streams(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    int *y = device_memory(64), *z = device_memory(64);
    dlcoll_opts s = on_stream();
    *x = rank + 1;
    dlcoll_work *w[2];
    EXPECT(dlcoll_all_reduce(x, y, 1, DLCOLL_I32, DLCOLL_SUM, c, &s, &w[0]) == 0, "%s", why(c));
    EXPECT(dlcoll_all_reduce(y, z, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, &w[1]) == 0);
    EXPECT(dlcoll_wait_all(w, 2, -1) == 0);
    EXPECT(*y == 6 && *z == 18, "%d %d", *y, *z);
    dlcoll_work_free(w[0]);
    dlcoll_work_free(w[1]);
    /* Without a handle it is enqueued; what is enqueued behind it comes after it. */
    EXPECT(dlcoll_all_reduce(z, z, 1, DLCOLL_I32, DLCOLL_MAX, c, &s, NULL) == 0);
    EXPECT(dlcoll_all_reduce(z, x, 1, DLCOLL_I32, DLCOLL_SUM, c, &s, &w[0]) == 0);
    dlcoll_work_free(w[0]); /* nobody asks */
    /* A ring. */
    int next = (rank + 1) % 3, before = (rank + 2) % 3;
    *y = rank;
    dlcoll_p2p list[2] = {{.send = y, .count = 1, .dtype = DLCOLL_I32, .peer = next},
                          {.recv = z, .count = 1, .dtype = DLCOLL_I32, .peer = before}};
    EXPECT(dlcoll_batch(list, 2, c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(*x == 54 && *z == before, "%d %d", *x, *z);
    if (rank == 0)
        EXPECT(dlcoll_send(y, 1, DLCOLL_I32, 1, c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 1)
        EXPECT(dlcoll_recv(z, 1, DLCOLL_I32, 0, c, NULL, NULL) == 0 && *z == 0);
    EXPECT(dlcoll_recv_any(z, 1, DLCOLL_I32, NULL, c, NULL, NULL) == DLCOLL_ENOSUP);
    s.tag = 3;
    EXPECT(dlcoll_send(y, 1, DLCOLL_I32, next, c, &s, NULL) == DLCOLL_ENOSUP);
    EXPECT(strstr(why(c), "no tags"), "%s", why(c));
    void *handle = NULL;
    EXPECT(dlcoll_mem_register(c, x, 64, &handle) == 0 && handle);
    EXPECT(dlcoll_mem_deregister(c, handle) == 0);
    /* The host's way is still there. */
    int a = 1;
    EXPECT(dlcoll_all_reduce(&a, &a, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0 && a == 3);
    comm_end(c);
}

START_TEST(streams_and_handles)
{
    ranks_run(3, 1, streams);
    ck_assert_int_eq(g_fake->registers, 0);
}
END_TEST

/* The record of operation `seq`, once it has ended. While it is being written, dlcoll_recent()
 * gives the one before. */
static dlcoll_record ended_record(dlcoll_comm *c, uint64_t seq)
{
    dlcoll_record r = {0};
    bool ended = false;
    for (uint64_t until = mono_ns() + 20000000000u; !ended && mono_ns() < until;) {
        EXPECT(dlcoll_recent(c, -1, &r, 1) == 1);
        ended = r.end_ns && r.seq == seq;
    }
    EXPECT(ended, "operation %llu has not ended", (unsigned long long)seq);
    return r;
}

static bool g_asks_for_times;

/* An operation waits for the device for a while: its record begins and ends by the device's clock,
 * where the recorder is asked for that. */
static void device_times(struct ranks *j, int rank)
{
    const uint64_t busy_ns = 400000000;
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    dlcoll_work *w = NULL;
    dlcoll_record r;
    ranks_become(j, rank);
    if (g_asks_for_times)
        setenv("DLCOLL_DEVICE_TIMES", "1", 1);
    dlcoll_comm *c = comm_start();
    int *x = device_memory(64);
    o.stream = &g_stream;
    *x = 1;
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(dlcoll_recent(c, -1, &r, 1) == 1 && r.end_ns >= r.start_ns);
    /* With a handle and without one, several times each. */
    for (int k = 0; g_asks_for_times && k < 8; k++) {
        bool handle = k % 2 == 0;
        g_fake->held++;
        uint64_t before = mono_ns();
        EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, &o, handle ? &w : NULL) == 0,
               "%s", why(c));
        EXPECT(dlcoll_recent(c, -1, &r, 1) == 1 && r.end_ns == 0);
        while (mono_ns() < before + busy_ns) /* the device is busy with something else */
            sched_yield();
        g_fake->held--;
        r = ended_record(c, r.seq);
        uint64_t now = mono_ns();
        EXPECT(r.start_ns > before + busy_ns / 2 && r.end_ns > r.start_ns &&
                   r.end_ns < now + busy_ns / 2,
               "operation %d: began %lld ns, ended %lld ns after the call, seen after %llu", k,
               (long long)(r.start_ns - before), (long long)(r.end_ns - before),
               (unsigned long long)(now - before));
        EXPECT(!handle || dlcoll_wait(w) == 0);
        dlcoll_work_free(handle ? w : NULL);
    }
    comm_end(c);
}

START_TEST(the_recorder_has_device_times)
{
    g_asks_for_times = _i;
    ranks_run(2, 1, device_times);
    ck_assert_int_eq(g_fake->timed_events != 0, _i); /* without the question they cost nothing */
}
END_TEST

/* Two at a time, on streams of their own: what the second one puts aside is not the first one's. */
static void in_place_twice(struct ranks *j, int rank)
{
    enum { N = 2 };
    static int other;
    ranks_become(j, rank);
    dlcoll_comm *c = comm_start();
    dlcoll_opts s[2] = {DLCOLL_OPTS_INIT, DLCOLL_OPTS_INIT};
    dlcoll_work *w[2];
    int *x[2] = {device_memory(64), device_memory(64)};
    s[0].stream = &g_stream;
    s[1].stream = &other;
    EXPECT(dlcoll_all_to_all(x[0], x[0], 1, DLCOLL_I32, c, NULL, NULL) == 0, "%s", why(c));
    ranks_say_ready(j);
    ranks_await_ready(j);
    g_fake->held++;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < N; i++)
            x[k][i] = 100 * k + 10 * rank + i;
        EXPECT(dlcoll_all_to_all(x[k], x[k], 1, DLCOLL_I32, c, &s[k], &w[k]) == 0, "%s", why(c));
    }
    g_fake->held--;
    EXPECT(dlcoll_wait_all(w, 2, -1) == 0);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < N; i++)
            EXPECT(x[k][i] == 100 * k + 10 * i + rank, "%d: [%d] is %d", k, i, x[k][i]);
        dlcoll_work_free(w[k]);
    }
    comm_end(c);
}

JOB(in_place_on_two_streams, 2, 1, in_place_twice)

/* ------------------------------------------------------------------------------ nothing to give */

/* Rank 0 has all there is; the others' buffers are NULL where they have no elements. */
static void nothing_but_null(struct ranks *j, int rank)
{
    enum { N = 3 };
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    int *y = device_memory(64), *mine = rank == 0 ? x : NULL;
    size_t all[N] = {2}, ones[N] = {1, 1, 1}, none[N] = {0}, one[N] = {1}, n = rank == 0 ? 2 : 0;
    dlcoll_span list[2] = {{NULL, NULL, 0}, {x, y, 1}};
    *x = 7;
    /* The first operation: NCCL is there because of it. */
    EXPECT(dlcoll_all_reduce_coalesced(list, 2, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0);
    EXPECT(*y == 7 * N && g_fake->inits > 0, "%d %s", *y, why(c));
    x[0] = 5, x[1] = 6, x[2] = 7;
    *y = 0;
    EXPECT(dlcoll_all_gather_v(mine, y, all, NULL, DLCOLL_I32, c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(y[0] == 5 && y[1] == 6, "%d %d", y[0], y[1]);
    *y = 0;
    EXPECT(dlcoll_all_to_all_v(mine, rank == 0 ? ones : none, NULL, y, one, NULL, DLCOLL_I32, c,
                               NULL, NULL) == 0,
           "%s", why(c));
    EXPECT(y[0] == 5 + rank, "%d", y[0]);
    /* Ranks without elements can only recognise an operation on device memory by a pointer or a
     * stream. */
    int *other = rank == 0 ? y : NULL;
    dlcoll_opts s = on_stream();
    for (int with_stream = 0; with_stream < 2; with_stream++) {
        dlcoll_opts *o = with_stream ? &s : NULL;
        int want = with_stream || rank == 0 ? 0 : DLCOLL_EINVAL;
        int code = dlcoll_gather_v(mine, n, other, all, NULL, DLCOLL_I32, 0, c, o, NULL);
        EXPECT(code == want, "%d", code);
        EXPECT(code == 0 || strstr(why(c), "gather_v: this rank has no elements and no buffer"),
               "%s", why(c));
        code = dlcoll_scatter_v(mine, all, NULL, other, n, DLCOLL_I32, 0, c, o, NULL);
        EXPECT(code == want, "%d", code);
        code = rank == 0 ? dlcoll_send(x, 0, DLCOLL_I32, 1, c, o, NULL)
                         : dlcoll_recv(NULL, 0, DLCOLL_I32, 0, c, o, NULL);
        EXPECT(code == want, "%d", code);
        /* Refused operations have not taken a sequence number: repeat them with a pointer. */
        if (rank == 0 || with_stream)
            continue;
        EXPECT(dlcoll_gather_v(x, 0, NULL, NULL, NULL, DLCOLL_I32, 0, c, NULL, NULL) == 0);
        EXPECT(dlcoll_scatter_v(NULL, NULL, NULL, x, 0, DLCOLL_I32, 0, c, NULL, NULL) == 0);
        EXPECT(dlcoll_recv(x, 0, DLCOLL_I32, 0, c, NULL, NULL) == 0);
    }
    int a = 1;
    EXPECT(dlcoll_all_reduce(&a, &a, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(a == N);
    comm_end(c);
}

JOB(empty_parts_may_be_null, 3, 1, nothing_but_null)

/* No rank has elements: the ranks differ in the place of the elements and in whether they ask for a
 * handle. */
static void nothing_at_all(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    int a = 1;
    dlcoll_work *w = NULL;
    *x = 1;
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s", why(c));
    int *none[] = {x, NULL, &a, x};
    EXPECT(dlcoll_all_reduce(none[rank], none[rank], 0, DLCOLL_I32, DLCOLL_SUM, c, NULL,
                             rank > 1 ? &w : NULL) == 0,
           "%s", why(c));
    EXPECT(dlcoll_all_reduce(&a, &a, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(a == 4);
    EXPECT(!w || dlcoll_wait(w) == 0);
    dlcoll_work_free(w);
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0 && *x == 16);
    comm_end(c);
}

JOB(operations_on_nothing, 4, 1, nothing_at_all)

/* A rank without elements cannot know that the first operation on device memory is one. */
static void unaware(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    int *y = device_memory(64), a = 1;
    bool has = rank == 0;
    size_t counts[2] = {1, 0};
    int code = dlcoll_gather_v(has ? x : NULL, has, has ? y : NULL, counts, NULL, DLCOLL_I32, 0, c,
                               NULL, NULL);
    if (code == 0)
        code = dlcoll_all_reduce(&a, &a, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
    EXPECT(code == DLCOLL_EMISMATCH, "%d %s", code, why(c));
    EXPECT(strstr(why(c), "called gather_v") && strstr(why(c), "called nccl_init"), "%s", why(c));
    dlcoll_destroy(c);
}

JOB(the_first_one_must_tell, 2, 1, unaware)

/* Buffers that do not belong together are refused by name, and the communicator goes on. */
static void mixed_buffers(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    int *far = device_memory(4096), a = 1, peer = 1 - rank;
    dlcoll_opts s = on_stream();
    g_fake->elsewhere = far;
    const struct {
        const void *send;
        void *recv;
        dlcoll_opts *opts;
        const char *text;
    } bad[] = {
        {x, &a, NULL, "recv is host memory"},
        {&a, x, NULL, "recv is device memory"},
        {&a, &a, &s, "send is host memory"},
        {x, far, NULL, "recv is memory of device 1, and the communicator works on device 0"},
    };
    *x = 1;
    for (int made = 0; made < 2; made++) {
        for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
            int code = dlcoll_all_reduce(bad[i].send, bad[i].recv, 1, DLCOLL_I32, DLCOLL_SUM, c,
                                         bad[i].opts, NULL);
            EXPECT(code == DLCOLL_EINVAL && strstr(why(c), bad[i].text), "%zu: %d %s", i, code,
                   why(c));
            dlcoll_span span = {bad[i].send, bad[i].recv, 1};
            code =
                dlcoll_all_reduce_coalesced(&span, 1, DLCOLL_I32, DLCOLL_SUM, c, bad[i].opts, NULL);
            EXPECT(code == DLCOLL_EINVAL && strstr(why(c), bad[i].text), "%zu: %d %s", i, code,
                   why(c));
            dlcoll_p2p list[2] = {
                {.send = bad[i].send, .count = 1, .dtype = DLCOLL_I32, .peer = peer},
                {.recv = bad[i].recv, .count = 1, .dtype = DLCOLL_I32, .peer = peer}};
            code = dlcoll_batch(list, 2, c, bad[i].opts, NULL);
            EXPECT(code == (made || bad[i].opts ? DLCOLL_EINVAL : code) && code < 0, "%zu: %d %s",
                   i, code, why(c));
        }
        EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s",
               why(c));
    }
    EXPECT(*x == 4);
    comm_end(c);
}

JOB(buffers_that_do_not_belong_together, 2, 1, mixed_buffers)

/* Inside a group of the program's, an operation would be called complete before it has begun. */
static void inside_a_group(struct ranks *j, int rank)
{
    int *x;
    const struct nccl_api *api;
    struct err e = ERR_INIT;
    dlcoll_comm *c = join(j, rank, &x);
    dlcoll_opts s = on_stream();
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0 && nccl_api_get(&api, &e) == 0);
    EXPECT(api->GroupStart() == NCCL_OK);
    int code = dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, &s, NULL);
    EXPECT(code == DLCOLL_EINVAL && strstr(why(c), "ncclGroupStart()"), "%d %s", code, why(c));
    EXPECT(api->GroupEnd() == NCCL_IN_PROGRESS);
    dlcoll_destroy(c);
}

JOB(calls_in_a_group_of_the_program, 2, 1, inside_a_group)

/* A capture that waits for a work of before it would be invalid: it goes on. */
static void wait_in_capture(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    dlcoll_work *w;
    static int captured;
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, &w) == 0, "%s", why(c));
    g_fake->capture = &captured;
    int code = dlcoll_stream_wait(&captured, w);
    EXPECT(code == DLCOLL_EINVAL && strstr(why(c), "captured"), "%d %s", code, why(c));
    EXPECT(dlcoll_wait(w) == 0 && g_fake->capture_broken == 0);
    dlcoll_work_free(w);
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0);
    comm_end(c);
}

JOB(a_stream_that_is_captured_does_not_wait, 2, 1, wait_in_capture)

/* NCCL's own timeout (2.30) is one of the library's. */
static void nccl_times_out(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    dlcoll_opts s = on_stream();
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0);
    ranks_say_ready(j);
    ranks_await_ready(j);
    g_fake->async_error = NCCL_TIMEOUT;
    g_fake->error_rank = 1;
    int code = dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
    EXPECT(rank == 0 ? code < 0 : code == DLCOLL_ETIMEDOUT || code == DLCOLL_ESTATE, "%d %s", code,
           why(c));
    EXPECT(rank == 0 || strstr(why(c), "timed out"), "%s", why(c));
    dlcoll_destroy(c);
}

JOB(a_timeout_of_nccls, 2, 1, nccl_times_out)

static void groups(struct ranks *j, int rank)
{
    ranks_become(j, rank);
    dlcoll_comm *c = comm_start(), *half, *none;
    int *x = device_memory(64);
    dlcoll_opts s = on_stream();
    EXPECT(dlcoll_send(x, 1, DLCOLL_I32, 0, c, NULL, NULL) == DLCOLL_ESTATE, "%s", why(c));
    EXPECT(dlcoll_comm_split(c, rank % 2, -rank, &half, NULL) == 0); /* makes its own later */
    *x = rank;
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, half, NULL, NULL) == 0);
    EXPECT(*x == (rank % 2 ? 4 : 2), "%d", *x);
    comm_end(half);
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0);
    EXPECT(dlcoll_comm_split(c, rank == 3 ? DLCOLL_NO_COLOR : 1, -rank, &none, NULL) == 0);
    EXPECT(!none == (rank == 3));
    *x = rank;
    if (none) {
        EXPECT(dlcoll_broadcast(x, x, 1, DLCOLL_I32, 0, none, NULL, NULL) == 0, "%s", why(none));
        EXPECT(*x == 2, "%d", *x); /* the keys turn the order round */
        comm_end(none);
    }
    comm_end(c);
}

START_TEST(groups_and_splits)
{
    ranks_run(4, 1, groups);
    ck_assert_int_eq(g_fake->splits, 4);
    ck_assert_int_eq(g_fake->inits, 8); /* the world's, and the first groups' */
}
END_TEST

static void small(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    char id[NCCL_ID_BYTES] = "";
    *x = 1;
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(*x == dlcoll_size(c));
    EXPECT(dlcoll_nccl_unique_id(c, id) == 0 && id[127] == 'i', "%s", why(c));
    comm_end(c);
}

START_TEST(several_roots)
{
    setenv("DLCOLL_NCCL_ROOTS", "2", 1);
    ranks_run(4, 2, small);
    ck_assert_int_eq(g_fake->scalable, 4);
    ck_assert_int_eq(g_fake->inits, 0);
}
END_TEST

/* Rank 0 is late: the other rank waits in a host operation of the library. */
static void small_and_late(struct ranks *j, int rank)
{
    if (rank == 0)
        test_elapse(0.02);
    small(j, rank);
}

START_TEST(settings_that_all_have)
{
    setenv("DLCOLL_SOCKETS", "2", 1);
    ranks_run(2, 1, small_and_late);
}
END_TEST

JOB(a_world_of_one, 1, 1, small)

/* ------------------------------------------------------------------------------------- failures */

enum { INSIDE, ENQUEUED, MAKING_ROOM, CONNECTING, CONNECTING_BLOCKED, HANGS };

/* Rank 0 never comes to the last operation: killed, or late. */
static void hang(struct ranks *j, int rank, int how)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    dlcoll_opts s = on_stream();
    dlcoll_work *w = NULL;
    EXPECT((how >= CONNECTING ? dlcoll_device_init(c, NULL) : dlcoll_barrier(c, &s, NULL)) == 0);
    if (rank == 0) {
        ranks_say_ready(j);
        for (;;)
            pause();
    }
    if (how == ENQUEUED || how == MAKING_ROOM)
        EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, &s,
                                 how == ENQUEUED ? &w : NULL) == 0);
    ranks_say_ready(j);
    int code = how == ENQUEUED ? dlcoll_wait(w)
               : how == MAKING_ROOM
                   ? dlcoll_all_to_all(x, x, 1, DLCOLL_I32, c, NULL, NULL)
                   : dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
    ranks_keep_result(j, rank, c, code);
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == DLCOLL_ESTATE);
    dlcoll_work_free(w);
    dlcoll_destroy(c);
}

static void hang_inside(struct ranks *j, int rank)
{
    hang(j, rank, INSIDE);
}

static void hang_enqueued(struct ranks *j, int rank)
{
    hang(j, rank, ENQUEUED);
}

/* The first operation connects the ranks. */
static void hang_connecting(struct ranks *j, int rank)
{
    hang(j, rank, CONNECTING);
}

static void hang_connecting_blocked(struct ranks *j, int rank)
{
    setenv("DLCOLL_NCCL_BLOCKING", "1", 1);
    hang(j, rank, CONNECTING_BLOCKED);
}

/* Memory that is freed waits for all that the device does. */
static void hang_making_room(struct ranks *j, int rank)
{
    hang(j, rank, MAKING_ROOM);
}

/* Rank 0 of three, which hang as `how` does, is killed; a fault of NCCL's comes first. Each
 * survivor learns within so many seconds that rank 0 has died. */
static void kill_rank_0(rank_fn *how, void (*fault)(void), double within_s)
{
    struct ranks j;
    ranks_init(&j, 3, 1);
    ranks_start(&j, how);
    wait_until(ranks_are_ready, &j, 20, "all ranks hang");
    if (fault)
        fault();
    uint64_t killed = mono_ns();
    kill(j.pid[0], SIGKILL);
    ranks_reap(&j, 0);
    ranks_play_agent(&j, 0);
    ranks_wait(&j, 20, 1u << 0);
    for (int r = 1; r < 3; r++) {
        double ms = (double)(j.shared->rank[r].returned_ns - killed) / 1e6;
        printf("rank %d: aborted %.1f ms after the kill\n", r, ms);
        ck_assert_int_eq(j.shared->rank[r].code, DLCOLL_EPEER);
        ck_assert_int_eq(j.shared->rank[r].error.rank, 0);
        ck_assert_msg(strstr(j.shared->rank[r].error.text, "was killed by SIGKILL"), "%s",
                      j.shared->rank[r].error.text);
        ck_assert_msg(ms < test_seconds(within_s) * 1000, "%.1f ms", ms);
    }
    ranks_fini(&j);
}

START_TEST(a_rank_dies)
{
    rank_fn *const how[HANGS] = {hang_inside, hang_enqueued, hang_making_room, hang_connecting,
                                 hang_connecting_blocked};
    kill_rank_0(how[_i], NULL, 5);
    ck_assert_int_eq(g_fake->aborts, 2);
}
END_TEST

static bool error_is_reported(void *arg)
{
    (void)arg;
    return g_fake->errors_reported > 0;
}

/* What a survivor's NCCL may say of it: a system, an internal or a remote error. */
static const int g_peer_errors[] = {NCCL_SYSTEM_ERROR, NCCL_INTERNAL, NCCL_REMOTE_ERROR};
static int g_peer_error;

static void report_peer_error(void)
{
    g_fake->async_error = g_peer_error;
    g_fake->error_rank = 1;
    wait_until(error_is_reported, NULL, 20, "NCCL has reported its error");
}

/* NCCL on rank 1 sees the connection to rank 0 end before the launcher reports the death: the error
 * names rank 0, not the survivor. */
START_TEST(a_death_that_nccl_sees_first)
{
    g_peer_error = g_peer_errors[_i];
    kill_rank_0(hang_inside, report_peer_error, 20);
}
END_TEST

static void late(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    dlcoll_opts s = on_stream(), o = DLCOLL_OPTS_INIT;
    o.timeout_ms = 150;
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0);
    if (rank == 0) {
        ranks_await_go(j);
    } else {
        int code = dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, &o, NULL);
        EXPECT(code == DLCOLL_ETIMEDOUT, "%d %s", code, why(c));
        EXPECT(strstr(why(c), "timed out waiting for rank 0") && strstr(why(c), "its last was "),
               "%s", why(c));
        ranks_say_ready(j);
    }
    dlcoll_destroy(c);
}

static bool one_is_ready(void *arg)
{
    return ((struct ranks *)arg)->shared->ready == 1;
}

/* Rank 0 of two comes when rank 1 has timed out. */
static void be_late(rank_fn *fn)
{
    struct ranks j;
    ranks_init(&j, 2, 1);
    ranks_start(&j, fn);
    wait_until(one_is_ready, &j, 20, "rank 1 has timed out");
    atomic_store(&j.shared->go, 1);
    ranks_wait(&j, 20, 0);
    ranks_fini(&j);
}

START_TEST(a_timeout_says_who_is_behind)
{
    be_late(late);
}
END_TEST

static void broken(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    dlcoll_opts s = on_stream();
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0);
    ranks_say_ready(j);
    ranks_await_ready(j);
    g_fake->async_error = 6;
    g_fake->error_rank = 1;
    if (rank == 1) { /* it does not go in: what it gets is from the thread */
        int word, code = dlcoll_recv(&word, 1, DLCOLL_I32, 0, c, NULL, NULL);
        EXPECT(code == DLCOLL_EBACKEND || code == DLCOLL_ESTATE, "%d", code);
        EXPECT(strstr(why(c), "NCCL on rank 1") && strstr(why(c), "remote process error") &&
                   strstr(why(c), "closed by remote peer"),
               "%s", why(c));
    } else {
        int code = dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
        EXPECT(code == DLCOLL_EBACKEND, "%d %s", code, why(c));
        EXPECT(strstr(why(c), "NCCL on rank 1"), "%s", why(c));
    }
    dlcoll_destroy(c);
}

START_TEST(an_error_of_nccls)
{
    ranks_run(2, 1, broken);
    ck_assert_int_eq(g_fake->aborts, 2);
}
END_TEST

/* Rank 1's new one has to be ended with its parent, as it is half made. */
static void split_badly(struct ranks *j, int rank)
{
    ranks_become(j, rank);
    dlcoll_comm *c = comm_start(), *group;
    dlcoll_opts s = on_stream();
    use_device(0);
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0);
    int code = dlcoll_comm_split(c, 0, rank, &group, NULL); /* rank 0 may be through with it */
    EXPECT(code == DLCOLL_EBACKEND || (code == 0 && rank == 0), "%d %s", code, why(c));
    EXPECT(code == 0 || (!group && strstr(why(c), "NCCL on rank 1")), "%s", why(c));
    dlcoll_destroy(group);
    dlcoll_destroy(c);
}

START_TEST(an_error_while_it_splits)
{
    g_fake->async_error = 6;
    g_fake->bad_splitter = 1;
    ranks_run(2, 1, split_badly);
    ck_assert_int_eq(g_fake->splits, 2);
    ck_assert_int_eq(g_fake->aborts + g_fake->destroys, 4);
}
END_TEST

static const char *const g_modes[] = {"0", "1"}; /* of DLCOLL_NCCL_BLOCKING */

/* All ranks split, and give up before NCCL has come to the end: what it has made by then is
 * aborted, after the communicator that it was made from. */
static void give_up_splitting(struct ranks *j, int rank)
{
    ranks_become(j, rank);
    dlcoll_comm *c = comm_start(), *group;
    dlcoll_opts s = on_stream();
    use_device(0);
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0);
    int code = dlcoll_comm_split(c, 0, rank, &group, NULL);
    EXPECT(code < 0 && !group, "%d %s", code, why(c));
    dlcoll_destroy(c);
    for (uint64_t until = mono_ns() + 20000000000u; g_fake->aborts < 4 && mono_ns() < until;)
        sched_yield(); /* the process ends what it has left behind */
}

START_TEST(a_split_that_is_given_up)
{
    setenv("DLCOLL_NCCL_BLOCKING", g_modes[_i], 1);
    setenv("DLCOLL_TIMEOUT", "2", 1);
    g_fake->slow_split = 20000;
    ranks_run(2, 1, give_up_splitting);
    ck_assert_int_eq(g_fake->aborts, 4); /* two communicators of each rank */
}
END_TEST

/* Rank 3 has no descriptor left for its group's connections. */
static void split_in_part(struct ranks *j, int rank)
{
    ranks_become(j, rank);
    dlcoll_comm *c = comm_start(), *group;
    dlcoll_opts s = on_stream();
    dlcoll_group_opts o = DLCOLL_GROUP_OPTS_INIT;
    struct rlimit before, none;
    o.timeout_ms = 5000;
    use_device(0);
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0);
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0);
    EXPECT(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 3;
    if (rank == 3)
        EXPECT(setrlimit(RLIMIT_NOFILE, &none) == 0);
    int code = dlcoll_comm_split(c, rank % 2, 0, &group, &o);
    EXPECT(setrlimit(RLIMIT_NOFILE, &before) == 0);
    EXPECT((code == 0) == (rank % 2 == 0), "%d %s", code, why(c));
    if (group)
        EXPECT(dlcoll_barrier(group, &s, NULL) == 0, "%s", why(group));
    dlcoll_destroy(group);
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0, "%s", why(c));
    comm_end(c);
}

START_TEST(one_of_two_groups_cannot_be_made)
{
    ranks_run(4, 1, split_in_part);
    ck_assert_int_eq(g_fake->splits, 4);
}
END_TEST

/* One rank destroys the communicator with a receive under way: the other rank sees it as lost. */
static void leave_in_the_middle(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    dlcoll_work *w;
    dlcoll_opts s = on_stream();
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0);
    /* The first message connects the two: it waits for both. */
    EXPECT((rank == 1 ? dlcoll_recv(x, 1, DLCOLL_I32, 0, c, NULL, NULL)
                      : dlcoll_send(x, 1, DLCOLL_I32, 1, c, NULL, NULL)) == 0);
    ranks_say_ready(j);
    ranks_await_ready(j);
    if (rank == 1) {
        EXPECT(dlcoll_recv(x, 1, DLCOLL_I32, 0, c, NULL, &w) == 0, "%s", why(c));
        dlcoll_work_free(w);
    } else {
        s = (dlcoll_opts)DLCOLL_OPTS_INIT;
        s.timeout_ms = 10000;
        int code = dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, &s, NULL);
        EXPECT(code == DLCOLL_EPEER, "%d %s", code, why(c));
        EXPECT(strstr(why(c), "has destroyed"), "%s", why(c));
    }
    dlcoll_destroy(c);
}

JOB(who_destroys_it_in_the_middle_has_left, 2, 1, leave_in_the_middle)

static void aborted(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    dlcoll_opts s = on_stream();
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0);
    ranks_say_ready(j);
    ranks_await_ready(j);
    if (rank == 0) {
        EXPECT(dlcoll_abort(c, "enough") == 0);
    } else {
        int code = dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
        EXPECT((code == DLCOLL_EABORTED || code == DLCOLL_ESTATE) && strstr(why(c), "enough"),
               "%d %s", code, why(c));
    }
    dlcoll_destroy(c);
}

JOB(the_program_aborts, 2, 1, aborted)

static void no_id(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == DLCOLL_EBACKEND);
    EXPECT(strstr(why(c), "there is no unique id"), "%s", why(c));
    dlcoll_destroy(c);
}

START_TEST(no_unique_id)
{
    g_fake->no_unique_id = 1;
    ranks_run(2, 1, no_id);
}
END_TEST

static void one_has_no_id(struct ranks *j, int rank)
{
    if (rank == 2) /* the second root */
        g_fake->no_unique_id = getpid();
    no_id(j, rank);
}

START_TEST(one_of_several_roots_has_no_unique_id)
{
    setenv("DLCOLL_NCCL_ROOTS", "2", 1);
    ranks_run(4, 2, one_has_no_id);
}
END_TEST

/* The others, who are in it already, need not wait for their deadline. */
static void no_stream(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    if (rank == 1)
        g_fake->no_stream = getpid();
    int code = dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
    EXPECT(code == DLCOLL_EBACKEND, "%d", code);
    EXPECT(strstr(why(c), "CUDA on rank 1 (nccl_init): some CUDA error"), "%s", why(c));
    EXPECT(dlcoll_barrier(c, NULL, NULL) == DLCOLL_ESTATE);
    dlcoll_destroy(c);
}

JOB(one_rank_has_no_stream, 3, 1, no_stream)

/* -------------------------------------------------------------------- a library that misbehaves */

/* Operations on host memory neither load CUDA nor create a context, and an answer of the driver
 * that is not expected is not taken for "host memory". */
static void ask_the_driver(struct ranks *j, int rank)
{
    ranks_become(j, rank);
    dlcoll_comm *c = comm_start();
    int a = 1, b = 0;
    EXPECT(dlcoll_all_reduce(&a, &b, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0 && b == 2);
    EXPECT(g_fake->contexts == 0, "%d contexts", g_fake->contexts);
    struct err e = ERR_INIT;
    EXPECT(cuda_api_get(&g_cuda, &e) == 0 && g_cuda->Init(0) == CUDA_OK);
    EXPECT(dlcoll_all_reduce(&a, &b, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0 && b == 2);
    EXPECT(g_fake->contexts == 0, "%d contexts", g_fake->contexts);
    ranks_say_ready(j);
    ranks_await_ready(j);
    int *x = device_memory(64);
    *x = 1;
    g_fake->pointer_error = 700; /* an earlier kernel has failed */
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == DLCOLL_EBACKEND);
    EXPECT(strstr(why(c), "cannot tell whether a buffer is device memory"), "%s", why(c));
    EXPECT(*x == 1);
    dlcoll_destroy(c);
}

START_TEST(host_operations_make_no_context)
{
    ranks_run(2, 1, ask_the_driver);
    ck_assert_int_eq(g_fake->contexts, 2); /* one of each rank's own */
}
END_TEST

/* The driver is looked for again when an object has been loaded, and only then. */
START_TEST(a_driver_that_is_loaded_later)
{
    const char *path = build_path("tests/fake/libnccl.so.2");
    int a = 1;
    dlcoll_comm *c;
    setenv("DLCOLL_CUDA_LIB", path, 1);
    setenv("DLCOLL_NCCL_LIB", path, 1);
    ck_assert_int_eq(dlcoll_init(&c, NULL), 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(dlcoll_all_reduce(&a, &a, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL), 0);
        ck_assert_ptr_null(dlopen(path, RTLD_NOW | RTLD_NOLOAD));
        if (i == 1)
            ck_assert_ptr_nonnull(dlopen(build_path("tests/fake/stamps.so"), RTLD_NOW));
    }
    use("tests/fake/libnccl.so.2");
    int *x = device_memory(64);
    *x = 3;
    ck_assert_int_eq(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL), 0);
    ck_assert_int_eq(g_fake->inits, 1);
    ck_assert_int_eq(dlcoll_all_reduce(&a, &a, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL), 0);
    ck_assert_int_eq(a, 1);
    dlcoll_destroy(c);
}
END_TEST

struct elsewhere {
    dlcoll_comm *comm;
    int *x;
    int code;
};

/* This thread has another device, and captures nothing. */
static void *call_from_there(void *arg)
{
    struct elsewhere *t = arg;
    dlcoll_opts s = on_stream();
    dlcoll_work *w = NULL;
    use_device(1);
    t->code = dlcoll_all_reduce(t->x, t->x, 1, DLCOLL_I32, DLCOLL_SUM, t->comm, NULL, NULL);
    if (t->code == 0)
        t->code = dlcoll_all_reduce(t->x, t->x, 1, DLCOLL_I32, DLCOLL_SUM, t->comm, &s, &w);
    if (t->code == 0)
        t->code = dlcoll_wait(w);
    dlcoll_work_free(w);
    return NULL;
}

static void other_device(struct ranks *j, int rank)
{
    ranks_become(j, rank);
    struct elsewhere t = {.comm = comm_start(), .x = device_memory(64)};
    pthread_t thread;
    *t.x = 1;
    EXPECT(dlcoll_all_reduce(t.x, t.x, 1, DLCOLL_I32, DLCOLL_SUM, t.comm, NULL, NULL) == 0);
    EXPECT(pthread_create(&thread, NULL, call_from_there, &t) == 0);
    pthread_join(thread, NULL);
    EXPECT(t.code == 0 && *t.x == 8, "%d %d %s", t.code, *t.x, why(t.comm));
    EXPECT(g_fake->wrong_context == 0, "%d calls", g_fake->wrong_context);
    comm_end(t.comm);
}

JOB(a_thread_with_another_device, 2, 1, other_device)

/* ncclCommAbort() never returns: the survivors get the error all the same, and can go on. */
START_TEST(an_abort_that_hangs)
{
    g_fake->abort_hangs = 1;
    kill_rank_0(hang_enqueued, NULL, 1);
    ck_assert_int_eq(g_fake->aborts, 2);
    ck_assert_int_eq(g_fake->revokes, 0);
}
END_TEST

/* An operation on a stream of which nobody asks has a deadline. */
static void unasked(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    int one;
    dlcoll_opts s = on_stream();
    dlcoll_error e = DLCOLL_ERROR_INIT;
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0);
    s.timeout_ms = 150;
    if (rank == 0) {
        ranks_await_go(j);
    } else {
        EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, &s, NULL) == 0);
        s = (dlcoll_opts)DLCOLL_OPTS_INIT;
        s.timeout_ms = 10000;
        int code = dlcoll_recv(&one, 1, DLCOLL_I32, 0, c, &s, NULL);
        dlcoll_last_error(c, &e);
        EXPECT(code < 0 && e.code == DLCOLL_ETIMEDOUT, "%d %s", code, why(c));
        EXPECT(strstr(why(c), "all_reduce"), "the receive's own deadline: %s", why(c));
        ranks_say_ready(j);
    }
    dlcoll_destroy(c);
}

START_TEST(a_stream_without_a_handle_has_a_deadline)
{
    be_late(unasked);
}
END_TEST

/* Thousands of operations are enqueued, the device stands still: so many are in flight, then the
 * call waits, with its deadline. Few events are needed. */
static void many(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    int calls = 0, code = 0;
    dlcoll_opts s = on_stream();
    s.timeout_ms = 10000;
    for (; calls < 3000 && code == 0; calls++)
        code = dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, &s, NULL);
    EXPECT(code == 0, "%d %s", code, why(c));
    EXPECT(g_fake->events < 200, "%d events", g_fake->events);
    ranks_say_ready(j);
    ranks_await_ready(j);
    g_fake->slow_device = 1;
    s.timeout_ms = 300;
    for (calls = 0; calls < 3000 && code == 0; calls++)
        code = dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, &s, NULL);
    EXPECT(code < 0 && calls < 2000, "%d after %d calls", code, calls);
    dlcoll_destroy(c);
}

JOB(what_is_in_flight_is_bounded, 2, 1, many)

/* Into a graph: no event is asked for there, scratch memory stays, a handle is refused. */
static void capture(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    dlcoll_opts s = on_stream();
    dlcoll_work *w = NULL;
    ranks_say_ready(j);
    ranks_await_ready(j);
    g_fake->capture = &g_stream;
    int code = dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, &s, NULL);
    EXPECT(code == DLCOLL_ESTATE && strstr(why(c), "dlcoll_device_init()"), "%d %s", code, why(c));
    EXPECT(dlcoll_device_init(c, NULL) == 0, "%s", why(c));
    EXPECT(dlcoll_device_init(c, NULL) == 0, "%s", why(c));
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, &s, NULL) == 0, "%s", why(c));
    EXPECT(dlcoll_all_to_all(x, x, 1, DLCOLL_I32, c, &s, NULL) == 0, "%s", why(c));
    EXPECT(dlcoll_barrier(c, &s, NULL) == 0, "%s", why(c));
    code = dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, &s, &w);
    EXPECT(code == DLCOLL_EINVAL && !w && strstr(why(c), "captured into a graph"), "%d", code);
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c)); /* on the host: all are here */
    g_fake->capture = NULL;
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(g_fake->capture_broken == 0, "%d calls", g_fake->capture_broken);
    *x = 1;
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0 && *x == 2);
    comm_end(c);
}

START_TEST(operations_are_captured)
{
    ranks_run(2, 1, capture);
    ck_assert_int_ge(g_fake->captured, 6);
}
END_TEST

/* Eight-bit floats are moved as bytes; reduced only where every rank's GPU can. */
static void small_floats(struct ranks *j, int rank)
{
    ranks_become(j, rank);
    dlcoll_comm *c = comm_start();
    uint8_t *x = device_memory(64);
    x[0] = (uint8_t)(0x38 + rank);
    EXPECT(dlcoll_broadcast(x, x, 1, DLCOLL_F8E4M3, 1, c, NULL, NULL) == 0 && x[0] == 0x39);
    int code = dlcoll_all_reduce(x, x, 1, DLCOLL_F8E4M3, DLCOLL_SUM, c, NULL, NULL);
    EXPECT(code == DLCOLL_ENOSUP && strstr(why(c), "compute capability 9.0"), "%d %s", code,
           why(c));
    EXPECT(dlcoll_broadcast(x, x, 1, DLCOLL_F8E4M3, 0, c, NULL, NULL) == 0, "%s", why(c));
    comm_end(c);
}

START_TEST(small_floats_on_an_older_gpu)
{
    g_fake->capability = 80;
    ranks_run(2, 1, small_floats);
}
END_TEST

static void one_gpu(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    int a = 1;
    int code = dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
    EXPECT(code == DLCOLL_EINVAL && strstr(why(c), "ranks 0 and 1 use the same GPU"), "%d %s", code,
           why(c));
    EXPECT(dlcoll_all_reduce(&a, &a, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0 && a == 2);
    setenv("NCCL_HOSTID", rank ? "b" : "a", 1);
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s", why(c));
    comm_end(c);
}

START_TEST(two_ranks_with_one_gpu)
{
    g_fake->same_gpu = 1;
    ranks_run(2, 1, one_gpu);
}
END_TEST

static void two_instances(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    int a = 1;
    int code = dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
    EXPECT(code == DLCOLL_ENOSUP &&
               strstr(why(c), "ranks 0 and 1 use two MIG instances of the same GPU (0000:00:00.0)"),
           "%d %s", code, why(c));
    EXPECT(dlcoll_all_reduce(&a, &a, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0 && a == 2);
    comm_end(c);
}

START_TEST(two_instances_of_one_gpu)
{
    g_fake->instances = 1;
    ranks_run(2, 1, two_instances);
}
END_TEST

static void one_sum(struct ranks *j, int rank)
{
    int *x;
    dlcoll_comm *c = join(j, rank, &x);
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s", why(c));
    comm_end(c);
}

/* The standard error of the ranks of a job. Returns owned. */
static char *printed_by(int n, int nodes)
{
    const char *path = tmppath("stderr");
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600), own = dup(2);
    ck_assert(fd >= 0 && own >= 0 && dup2(fd, 2) == 2);
    ranks_run(n, nodes, one_sum);
    ck_assert_int_eq(dup2(own, 2), 2);
    close(own);
    close(fd);
    return read_file(path);
}

/* Each line comes once from a node, and not from each rank. */
START_TEST(the_user_is_warned_once)
{
    const char *copy = tmppath("libnccl.so.2"), *own = build_path("tests/fake/libnccl.so.2");
    char *text = printed_by(3, 1);
    ck_assert_str_eq(text, "");
    free(text);
    g_fake->compute_mode = CUDA_MODE_EXCLUSIVE;
    text = printed_by(2, 1);
    ck_assert_str_eq(text, ""); /* there are two devices */
    free(text);
    text = printed_by(3, 1);
    ck_assert_str_eq(text,
                     "dlcoll: device 0 is in the compute mode Exclusive_Process, and 3 ranks "
                     "share 2 devices: only one rank can use each (to change that: nvidia-smi "
                     "-c DEFAULT)\n");
    free(text);
    g_fake->compute_mode = 0;
    ck_assert_int_eq(system(test_text("cp '%s' '%s'", own, copy)), 0);
    ck_assert_msg(dlopen(copy, RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
    text = printed_by(3, 1);
    ck_assert_str_eq(text,
                     test_text("dlcoll: this process has loaded NCCL twice: %s, which libdlcoll "
                               "uses, and %s; to use the other one: DLCOLL_NCCL_LIB=%s\n",
                               own, copy, copy));
    free(text);
    text = printed_by(4, 2);
    ck_assert_ptr_nonnull(strstr(strstr(text, "loaded NCCL twice") + 1, "loaded NCCL twice"));
    free(text);
}
END_TEST

START_TEST(blocking_mode)
{
    setenv(_i ? "NCCL_COMM_BLOCKING" : "DLCOLL_NCCL_BLOCKING", "1", 1);
    ranks_run(4, 1, groups);
    ck_assert_int_gt(g_fake->blocking, 0);
    ck_assert_int_eq(g_fake->aborts, 0);
}
END_TEST

/* A thread is inside a call of NCCL in blocking mode while another one aborts: what the first one
 * works with is not freed before it has come out. */
static void *call_inside(void *arg)
{
    struct elsewhere *t = arg;
    use_device(0);
    t->code = dlcoll_all_reduce(t->x, t->x, 1, DLCOLL_I32, DLCOLL_SUM, t->comm, NULL, NULL);
    return NULL;
}

static bool is_inside(void *arg)
{
    (void)arg;
    return g_fake->callers > 0;
}

START_TEST(an_abort_waits_for_who_is_inside)
{
    pthread_t thread;
    struct elsewhere t = {.x = device_memory(64)};
    setenv("DLCOLL_NCCL_BLOCKING", "1", 1);
    ck_assert_int_eq(dlcoll_init(&t.comm, NULL), 0);
    ck_assert_int_eq(dlcoll_device_init(t.comm, NULL), 0);
    g_fake->slow_calls = 50;
    ck_assert_int_eq(pthread_create(&thread, NULL, call_inside, &t), 0);
    wait_until(is_inside, NULL, 20, "the thread is inside");
    ck_assert_int_eq(dlcoll_abort(t.comm, "enough"), 0);
    pthread_join(thread, NULL);
    ck_assert_msg(t.code == DLCOLL_EABORTED || t.code == DLCOLL_ESTATE, "%d", t.code);
    dlcoll_destroy(t.comm);
    ck_assert_int_eq(g_fake->aborts, 1);
    ck_assert_int_eq(g_fake->freed_under, 0);
}
END_TEST

/* Each version makes windows in its own way, in both modes; where there is no symmetric memory, it
 * says success, and the library does not. Rank 1 waits in vain in the end. */
static void make_windows(struct ranks *j, int rank)
{
    ranks_become(j, rank);
    dlcoll_comm *c = comm_start();
    void *p = NULL, *window = &p;
    use_device(0);
    EXPECT(dlcoll_device_init(c, NULL) == 0);
    EXPECT(dlcoll_device_alloc(c, &p, 64) == 0 && p, "%s", why(c));
    EXPECT(dlcoll_window_register(c, p, 0, &window) == DLCOLL_EINVAL);
    int code = dlcoll_window_register(c, p, 64, &window);
    if (g_fake->no_symmetric) {
        EXPECT(code == DLCOLL_ENOSUP && !window && strstr(why(c), "no symmetric memory"), "%d %s",
               code, why(c));
    } else {
        EXPECT(code == 0 && window == p, "%d %s", code, why(c));
        EXPECT(dlcoll_window_deregister(c, window) == 0);
        code = rank == 0 ? 0 : dlcoll_window_register(c, p, 64, &window);
        EXPECT(rank == 0 || (code == DLCOLL_ETIMEDOUT && strstr(why(c), "window_register")),
               "%d %s", code, why(c));
        ranks_say_ready(j);
        ranks_await_ready(j);
    }
    dlcoll_destroy(c);
}

static const struct {
    int version, no_symmetric;
} g_windows[] = {{22707, 0}, {22809, 0}, {23007, 0}, {22809, 1}, {23007, 1}};

START_TEST(windows_of_all_versions)
{
    setenv("DLCOLL_NCCL_BLOCKING", g_modes[_i % 2], 1);
    setenv("DLCOLL_TIMEOUT", "2", 1);
    g_fake->version = g_windows[_i / 2].version;
    g_fake->no_symmetric = g_windows[_i / 2].no_symmetric;
    ranks_run(2, 1, make_windows);
    ck_assert_int_eq(g_fake->windows, 0);
}
END_TEST

static void device_calls(struct ranks *j, int rank)
{
    ranks_become(j, rank);
    dlcoll_comm *c = comm_start();
    dlcoll_device_opts o = DLCOLL_DEVICE_OPTS_INIT;
    dlcoll_opts s = DLCOLL_OPTS_INIT;
    dlcoll_work *w;
    void *p = NULL, *window = NULL;
    static int other;
    use_device(0);
    EXPECT(dlcoll_device_alloc(c, &p, 64) == DLCOLL_ESTATE);
    o.blocking = 7;
    EXPECT(dlcoll_device_init(c, &o) == DLCOLL_EINVAL);
    o.blocking = DLCOLL_NCCL_IS_BLOCKING;
    o.max_ctas = 4;
    o.name = "experts";
    EXPECT(dlcoll_device_init(c, &o) == 0, "%s", why(c));
    EXPECT(dlcoll_device_alloc(c, &p, 64) == 0 && p, "%s", why(c));
    EXPECT(dlcoll_window_register(c, p, 64, &window) == 0 && window, "%s", why(c));
    EXPECT(dlcoll_window_register(c, (char *)p + 4, 8, &window) == DLCOLL_EINVAL);
    *(int *)p = 1;
    s.stream = &g_stream;
    EXPECT(dlcoll_all_reduce(p, p, 1, DLCOLL_I32, DLCOLL_SUM, c, &s, &w) == 0, "%s", why(c));
    EXPECT(dlcoll_stream_wait(&other, w) == 0, "%s", why(c));
    EXPECT(dlcoll_stream_wait(&other, NULL) == DLCOLL_EINVAL);
    EXPECT(dlcoll_wait(w) == 0 && *(int *)p == 2);
    dlcoll_work_free(w);
    EXPECT(dlcoll_window_deregister(c, p) == 0);
    EXPECT(dlcoll_device_free(c, p) == 0);
    EXPECT(dlcoll_device_free(c, NULL) == 0);
    comm_end(c);
}

START_TEST(calls_for_devices)
{
    ranks_run(2, 1, device_calls);
    ck_assert_int_eq(g_fake->windows, 0);
    ck_assert_int_eq(g_fake->blocking, 2);
}
END_TEST

/* -------------------------------------------------------------------------- the cases for a GPU */

/* The exit status of tests/gpu/cases, which takes the libraries from the environment. */
static int run_cases(const char *fault, const char *cases)
{
    setenv("FAKE_NCCL_FAULT", fault, 1);
    setenv("CASES_SLOWER", test_text("%.1f", test_seconds(3)), 1);
    int status = system(test_text("%s %s", build_path("tests/gpu/cases"), cases));
    unsetenv("FAKE_NCCL_FAULT");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Each case passes with libraries that work; for duplicate-gpu this is one that shows all processes
 * the same device. */
static const struct {
    const char *fault, *cases;
} g_good[] = {
    {"none", "lazy-context two-ranks streams types no-cudart cost-blocking cost-non-blocking "
             "device-times"},
    {"none", "sticky-error graph-of-1 graph-of-2 late-peer killed-peer"},
    {"none", "split split-no-color split-blocking alloc window messages stream-wait"},
    {"none", "late-connecting late-blocking init-peer-dies"},
    {"none", "deep-then-killed"},
    {"none", "abort-beside-synchronize abort-with-graph"},
    {"none", "restart with-pytorch"},
    {"same-gpu", "duplicate-gpu"},
};

START_TEST(cases_for_a_gpu_pass)
{
    ck_assert_int_eq(run_cases(g_good[_i].fault, g_good[_i].cases), 0);
}
END_TEST

/* Cases that share a fault are run alone: each must fail. */
static const struct {
    const char *fault, *name;
} g_faults[] = {
    {"wrong-sum", "two-ranks"},
    {"wrong-sum", "streams"},
    {"wrong-sum", "types"},
    {"wrong-sum", "no-cudart"},
    {"wrong-sum", "split"},
    {"wrong-sum", "split-no-color"},
    {"wrong-sum", "split-blocking"},
    {"wrong-sum", "alloc"},
    {"wrong-sum", "window"},
    {"wrong-sum", "stream-wait"},
    {"context-made", "lazy-context"},
    {"empty-graph", "graph-of-1"},
    {"empty-graph", "graph-of-2"},
    {"empty-graph", "abort-with-graph"},
    {"memory-held", "restart"},
    {"forgiving-device", "sticky-error"},
    {"none", "duplicate-gpu"},
    {"deaf-abort", "abort-beside-synchronize"},
    {"stopped-clock", "device-times"},
    {"wrong-sum", "no-such-case"},
};

START_TEST(cases_for_a_gpu_fail)
{
    ck_assert_int_eq(run_cases(g_faults[_i].fault, g_faults[_i].name), 1);
}
END_TEST

START_TEST(cases_for_a_gpu_without_a_driver)
{
    setenv("DLCOLL_CUDA_LIB", "/nonexistent/libcuda.so.1", 1);
    ck_assert_int_eq(run_cases("none", "two-ranks"), 77);
    ck_assert_int_eq(run_cases("none", "facts"), 77);
    use("tests/fake/libnccl.so.2");
    ck_assert_int_eq(run_cases("none", "facts"), 0);
    ck_assert_int_eq(run_cases("no-device", "facts"), 77);
    setenv("DLCOLL_NCCL_LIB", "/nonexistent/libnccl.so.2", 1);
    ck_assert_int_eq(run_cases("none", "facts"), 77);
}
END_TEST

/* --------------------------------------------------------------------------------------- choice */

START_TEST(what_is_missing_is_said)
{
    setenv("DLCOLL_BACKEND", "gpu", 1);
    expect_init(DLCOLL_EINVAL, "DLCOLL_BACKEND: 'gpu' is not one of auto, cpu, nccl");
    setenv("DLCOLL_BACKEND", "nccl", 1);
    setenv("DLCOLL_CUDA_LIB", "/nonexistent/libcuda.so.1", 1);
    expect_init(DLCOLL_ENOSUP, "the CUDA driver cannot be loaded as DLCOLL_CUDA_LIB says");
    use("tests/fake/libnccl.so.2");
    setenv("DLCOLL_BACKEND", "nccl", 1);
    setenv("DLCOLL_NCCL_LIB", "/nonexistent/libnccl.so", 1);
    expect_init(DLCOLL_ENOSUP, "NCCL cannot be loaded as DLCOLL_NCCL_LIB says");
    setenv("DLCOLL_NCCL_LIB", build_path("tests/fake/libnvidia-ml.so.1"), 1);
    expect_init(DLCOLL_ENOSUP, "NCCL here is too old or is none: it has no ncclGetVersion()");
    use("tests/fake/libnccl.so.2");
    setenv("DLCOLL_BACKEND", "nccl", 1);
    g_fake->version = 21805;
    expect_init(DLCOLL_ENOSUP, "NCCL here is 2.18; 2.19 or later is needed");
    g_fake->version = 2708;
    expect_init(DLCOLL_ENOSUP, "NCCL here is 2.7; 2.19 or later is needed");
    g_fake->version = 30100;
    expect_init(DLCOLL_ENOSUP, "NCCL here is version 3; this library knows version 2");
    g_fake->version = 22304;
    dlcoll_comm *c;
    ck_assert_int_eq(dlcoll_init(&c, NULL), 0);
    float *x = device_memory(64);
    ck_assert_int_eq(dlcoll_all_reduce(x, x, 4, DLCOLL_F8E4M3, DLCOLL_SUM, c, NULL, NULL),
                     DLCOLL_ENOSUP);
    ck_assert_ptr_nonnull(strstr(why(c), "8-bit floats from 2.24 on"));
    dlcoll_destroy(c);
}
END_TEST

START_TEST(the_host_alone)
{
    dlcoll_init_opts o = DLCOLL_INIT_OPTS_INIT;
    dlcoll_comm *c;
    o.backend = DLCOLL_BACKEND_CPU;
    ck_assert_int_eq(dlcoll_init(&c, &o), 0);
    float *x = device_memory(64);
    *x = 3;
    ck_assert_int_eq(dlcoll_all_reduce(x, x, 1, DLCOLL_F32, DLCOLL_SUM, c, NULL, NULL), 0);
    ck_assert_int_eq(g_fake->inits, 0);
    dlcoll_destroy(c);
    o.backend = 77;
    ck_assert_int_eq(dlcoll_init(&c, &o), DLCOLL_EINVAL);
}
END_TEST

/* A build with WITH_NCCL=no. */
START_TEST(it_was_left_out)
{
    setenv("DLCOLL_BACKEND", "nccl", 1);
    expect_init(DLCOLL_ENOSUP, "the nccl backend was left out when this libdlcoll was built");
    unsetenv("DLCOLL_BACKEND");
    dlcoll_comm *c;
    ck_assert_int_eq(dlcoll_init(&c, NULL), 0);
    dlcoll_destroy(c);
}
END_TEST

#ifdef WITHOUT_NCCL
static const bool left_out = true;
#else
static const bool left_out = false;
#endif

static Suite *suite(void)
{
    Suite *s = suite_create("nccl");
    TCase *tc;
    if (left_out) {
        puts("SKIPPED: the backend's own tests: WITH_NCCL=no left it out");
        tc = test_case(s, "choice", 60);
        tcase_add_test(tc, it_was_left_out);
        return s;
    }
    tc = test_case(s, "operations", 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, every_operation_and_type);
    tcase_add_test(tc, an_older_library);
    tcase_add_test(tc, calls_that_go_on_by_themselves);
    tcase_add_test(tc, streams_and_handles);
    tcase_add_test(tc, in_place_on_two_streams);
    tcase_add_loop_test(tc, the_recorder_has_device_times, 0, 2);
    tcase_add_test(tc, empty_parts_may_be_null);
    tcase_add_test(tc, operations_on_nothing);
    tcase_add_test(tc, the_first_one_must_tell);
    tcase_add_test(tc, buffers_that_do_not_belong_together);
    tcase_add_test(tc, calls_in_a_group_of_the_program);
    tcase_add_test(tc, a_stream_that_is_captured_does_not_wait);
    tcase_add_test(tc, a_timeout_of_nccls);
    tcase_add_test(tc, groups_and_splits);
    tcase_add_test(tc, several_roots);
    tcase_add_test(tc, settings_that_all_have);
    tcase_add_test(tc, a_world_of_one);
    tc = test_case(s, "failures", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, a_rank_dies, 0, HANGS);
    tcase_add_loop_test(tc, a_death_that_nccl_sees_first, 0, ARRAY_LEN(g_peer_errors));
    tcase_add_test(tc, a_timeout_says_who_is_behind);
    tcase_add_test(tc, an_error_of_nccls);
    tcase_add_test(tc, an_error_while_it_splits);
    tcase_add_loop_test(tc, a_split_that_is_given_up, 0, ARRAY_LEN(g_modes));
    tcase_add_test(tc, one_of_two_groups_cannot_be_made);
    tcase_add_test(tc, who_destroys_it_in_the_middle_has_left);
    tcase_add_test(tc, the_program_aborts);
    tcase_add_test(tc, no_unique_id);
    tcase_add_test(tc, one_of_several_roots_has_no_unique_id);
    tcase_add_test(tc, one_rank_has_no_stream);
    tc = test_case(s, "misbehaviour", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, host_operations_make_no_context);
    tcase_add_test(tc, a_thread_with_another_device);
    tcase_add_test(tc, an_abort_that_hangs);
    tcase_add_test(tc, a_stream_without_a_handle_has_a_deadline);
    tcase_add_test(tc, what_is_in_flight_is_bounded);
    tcase_add_test(tc, operations_are_captured);
    tcase_add_test(tc, small_floats_on_an_older_gpu);
    tcase_add_test(tc, two_ranks_with_one_gpu);
    tcase_add_test(tc, two_instances_of_one_gpu);
    tcase_add_test(tc, the_user_is_warned_once);
    tcase_add_loop_test(tc, blocking_mode, 0, 2);
    tcase_add_test(tc, an_abort_waits_for_who_is_inside);
    tcase_add_loop_test(tc, windows_of_all_versions, 0, 2 * ARRAY_LEN(g_windows));
    tcase_add_test(tc, calls_for_devices);
    tc = test_case(s, "later", 60);
    tcase_add_test(tc, a_driver_that_is_loaded_later);
    tc = test_case(s, "gpu", 180);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, cases_for_a_gpu_pass, 0, ARRAY_LEN(g_good));
    tcase_add_loop_test(tc, cases_for_a_gpu_fail, 0, ARRAY_LEN(g_faults));
    tcase_add_test(tc, cases_for_a_gpu_without_a_driver);
    tc = test_case(s, "choice", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, what_is_missing_is_said);
    tcase_add_test(tc, the_host_alone);
    return s;
}

TEST_MAIN(suite)
