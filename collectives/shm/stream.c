#include "collectives/shm/stream.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm.h"
#include "collectives/shm/pull.h"
#include "collectives/shm/shm.h"

struct streams {
    struct transport base;
    struct dlcoll_comm *comm;
    bool closed;
};

/* From local rank i to local rank j. */
static struct shm_ring *ring(const struct shm *s, int i, int j, bool answers)
{
    size_t k = ((size_t)i * (size_t)s->n + (size_t)j) * 2 + answers;
    return (struct shm_ring *)(s->rings + k * s->ring_stride);
}

/* The peer's local number, and whether the stream is one of lane 1. */
static int local(const struct streams *t, int stream, bool *lane1)
{
    *lane1 = stream >= t->base.size;
    return t->comm->topo.local_of[stream - (*lane1 ? t->base.size : 0)];
}

static int ended(const struct streams *t, int peer, struct err *e)
{
    const struct shm *s = t->comm->shm;
    if (t->closed)
        return err_set(e, -EPIPE, "the communicator has been closed");
    if (atomic_load_explicit(&s->peers[peer].left, memory_order_acquire))
        return err_set(e, -EPIPE, "it has left");
    return 0;
}

static ssize_t stream_send(struct transport *base, int stream, const struct iovec *iov, int n,
                           struct err *e)
{
    struct streams *t = (struct streams *)base;
    const struct shm *s = t->comm->shm;
    bool answers;
    int peer = local(t, stream, &answers), r = ended(t, peer, e);
    if (r < 0)
        return r;
    struct shm_ring *to = ring(s, s->me, peer, answers);
    uint32_t put = atomic_load_explicit(&to->put, memory_order_relaxed), size = s->ring_bytes;
    uint32_t room = size - (put - atomic_load_explicit(&to->taken, memory_order_acquire));
    ssize_t sent = 0;
    for (int i = 0; i < n && room; i++) {
        const uint8_t *from = iov[i].iov_base;
        uint32_t len = iov[i].iov_len < room ? (uint32_t)iov[i].iov_len : room;
        uint32_t at = put % size, first = len < size - at ? len : size - at;
        memcpy(to->data + at, from, first);
        memcpy(to->data, from + first, len - first);
        put += len;
        room -= len;
        sent += len;
    }
    if (sent)
        atomic_store_explicit(&to->put, put, memory_order_release);
    return sent;
}

/* Copies what has come; returns how much. */
static ssize_t look_at(const struct shm *s, const struct shm_ring *from, const struct iovec *iov,
                       int n)
{
    uint32_t taken = atomic_load_explicit(&from->taken, memory_order_relaxed), size = s->ring_bytes;
    uint32_t has = atomic_load_explicit(&from->put, memory_order_acquire) - taken;
    ssize_t got = 0;
    if (has > size)
        return -EPROTO;
    for (int i = 0; i < n && has; i++) {
        uint8_t *to = iov[i].iov_base;
        uint32_t len = iov[i].iov_len < has ? (uint32_t)iov[i].iov_len : has;
        uint32_t at = taken % size, first = len < size - at ? len : size - at;
        memcpy(to, from->data + at, first);
        memcpy(to + first, from->data, len - first);
        taken += len;
        has -= len;
        got += len;
    }
    return got;
}

static ssize_t stream_recv(struct transport *base, int stream, const struct iovec *iov, int n,
                           struct err *e)
{
    struct streams *t = (struct streams *)base;
    const struct shm *s = t->comm->shm;
    bool lane1;
    int peer = local(t, stream, &lane1), r = ended(t, peer, e);
    if (t->closed)
        return r;
    /* Whether it has left was asked first: what it had sent before counts. */
    struct shm_ring *from = ring(s, peer, s->me, !lane1);
    ssize_t got = look_at(s, from, iov, n);
    if (got < 0)
        return err_set(e, -EPROTO, "the shared memory is damaged");
    if (got == 0)
        return r;
    uint32_t taken = atomic_load_explicit(&from->taken, memory_order_relaxed);
    atomic_store_explicit(&from->taken, taken + (uint32_t)got, memory_order_release);
    return got;
}

static int stream_peek(struct transport *base, int stream, void *p, size_t len)
{
    struct streams *t = (struct streams *)base;
    const struct shm *s = t->comm->shm;
    struct iovec iov = {p, len};
    bool lane1;
    int peer = local(t, stream, &lane1);
    if (t->closed)
        return 0;
    return look_at(s, ring(s, peer, s->me, !lane1), &iov, 1) == (ssize_t)len;
}

static int stream_wait(struct transport *base, const struct transport_want *wants, size_t n,
                       int timeout_ms, struct err *e)
{
    (void)base, (void)wants, (void)n, (void)e;
    (void)!poll(NULL, 0, timeout_ms < 1 ? timeout_ms : 1);
    return 0;
}

static void stream_close(struct transport *base)
{
    ((struct streams *)base)->closed = true;
}

static void stream_free(struct transport *base)
{
    free(base);
}

int stream_new(struct transport **out, struct dlcoll_comm *comm, struct err *e)
{
    static const struct transport_ops ops = {.name = "shm",
                                             .send = stream_send,
                                             .recv = stream_recv,
                                             .peek = stream_peek,
                                             .wait = stream_wait,
                                             .close = stream_close,
                                             .free = stream_free};
    struct streams *t = calloc(1, sizeof(*t));
    if (!t)
        return err_set(e, -ENOMEM, "no memory");
    t->base = (struct transport){.ops = &ops, .size = comm->size, .lanes = 2};
    t->comm = comm;
    *out = &t->base;
    return 0;
}

/* -------------------------------------------------------------------------------------- fetching
 */

bool stream_may_fetch(struct dlcoll_comm *comm, int peer)
{
    struct shm *s = comm->shm;
    return s && pull_may_read(s, comm->topo.local_of[peer]);
}

int stream_fetch(struct dlcoll_comm *comm, int peer, void *to, uint64_t from, size_t len,
                 struct err *e)
{
    return pull_copy(comm->shm, comm->topo.local_of[peer], to, from, len, e);
}
