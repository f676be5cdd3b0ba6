#include "collectives/shm/ring.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/shm/cma.h"
#include "collectives/shm/shm.h"
#include "collectives/base/task.h"
#include "core/memory_fence.h"
#include "collectives/base/wait.h"

/* The part of a cell's data in the cache line that the reader polls. */
enum { FIRST_BYTES = 64 - offsetof(struct shm_cell, data) };
/* Bytes of a ring's data that are prefetched for the next message. */
enum { PREPARED_BYTES = 2 * 1024 };
enum {
    CHUNK_PARTS = 4
}; /* a cell takes at most 1/4 of a ring's data: the reader copies one while the next is written */

/* This process's end of a stream: the ring that it writes and the ring that it reads. */
struct end {
    struct shm_ring *out, *in;
    uint32_t cells_put, data_put;
    uint32_t cells_read, data_read; /* of `out`, as last read */
    uint32_t cells_got, data_got;
    uint32_t got; /* bytes taken of the current cell */
    const struct shm *shm;
    int rank; /* of the peer, on this node */
    struct shm_peer *peer;
};

struct rings {
    struct transport base;
    struct dlcoll_comm *comm;
    bool closed;
    struct end ends[]; /* by stream; streams to other nodes have no rings */
};

static uint32_t min_u32(size_t a, uint32_t b)
{
    return a < b ? (uint32_t)a : b;
}

/* The ring from local rank i to local rank j. */
static struct shm_ring *ring_between(const struct shm *s, int i, int j, bool answers)
{
    size_t k = ((size_t)i * (size_t)s->n + (size_t)j) * 2 + answers;
    debug_assert(i >= 0 && i < s->n && j >= 0 && j < s->n);
    return (struct shm_ring *)(s->rings + k * s->ring_stride);
}

static struct shm_cell *cell(const struct shm *s, struct shm_ring *r, uint32_t number)
{
    return &r->cells[number % s->ring_cells];
}

/* Bytes that a cell occupies in the data area: whole cache lines. */
static uint32_t more_bytes(uint32_t len)
{
    return len > SHM_CELL_BYTES ? (len - SHM_CELL_BYTES + 63) / 64 * 64 : 0;
}

static int ended(const struct rings *t, const struct end *end, struct err *e)
{
    if (t->closed)
        return err_set(e, -EPIPE, "the communicator has been closed");
    if (atomic_load_explicit(&end->peer->left, memory_order_acquire))
        return err_set(e, -EPIPE, "it has left");
    return 0;
}

/* -------------------------------------------------------------------------------------- writing */

/* A position in a list of buffers. */
struct cursor {
    const struct iovec *iov;
    size_t at;
};

/* Copies 8 bytes as one word: memcpy() of 8 to 15 bytes makes two overlapping accesses, and a
 * message takes 10 ns longer. */
static void copy_part(void *to, const void *from, size_t len)
{
    if (len == 8)
        memcpy(to, from, 8);
    else
        memcpy(to, from, len);
}

static void copy_from(struct cursor *c, uint8_t *to, size_t len)
{
    while (len) {
        size_t n = c->iov->iov_len - c->at;
        n = n < len ? n : len;
        copy_part(to, (const uint8_t *)c->iov->iov_base + c->at, n);
        to += n;
        len -= n;
        c->at += n;
        if (c->at == c->iov->iov_len)
            c->iov++, c->at = 0;
    }
}

static void skip(struct cursor *c, size_t len)
{
    while (len) {
        size_t n = c->iov->iov_len - c->at;
        n = n < len ? n : len;
        len -= n;
        c->at += n;
        if (c->at == c->iov->iov_len)
            c->iov++, c->at = 0;
    }
}

/* Writes the first cache line last: a line that is taken away half written must be fetched
 * again. */
static void fill_own(struct shm_cell *to, struct cursor c, uint32_t len)
{
    struct cursor first = c;
    if (len > FIRST_BYTES) {
        skip(&c, FIRST_BYTES);
        copy_from(&c, to->data + FIRST_BYTES, len - FIRST_BYTES);
    }
    copy_from(&first, to->data, min_u32(len, FIRST_BYTES));
}

/* Fills the next cell with up to `left` bytes. Returns how many; 0: there is no room. */
static uint32_t fill_cell(const struct shm *s, struct end *end, struct cursor *c, size_t left)
{
    uint32_t size = s->ring_bytes;
    if (end->cells_put - end->cells_read == s->ring_cells ||
        (left > SHM_CELL_BYTES && end->data_put - end->data_read + size / CHUNK_PARTS > size)) {
        end->data_read = atomic_load_explicit(&end->out->data_read, memory_order_acquire);
        end->cells_read = atomic_load_explicit(&end->out->cells_read, memory_order_acquire);
        if (end->cells_put - end->cells_read == s->ring_cells)
            return 0;
    }
    debug_assert(end->cells_put - end->cells_read < s->ring_cells);
    debug_assert(end->data_put - end->data_read <= size);
    uint32_t room = size - (end->data_put - end->data_read);
    room = room < size / CHUNK_PARTS ? room : size / CHUNK_PARTS;
    uint32_t len = min_u32(left, SHM_CELL_BYTES + room);
    if (len < left && room < size / CHUNK_PARTS)
        return 0; /* waits for room rather than writing many small cells */
    uint8_t *data = (uint8_t *)(end->out->cells + s->ring_cells);
    struct shm_cell *to = cell(s, end->out, end->cells_put);
    struct cursor begin = *c;
    skip(c, min_u32(len, SHM_CELL_BYTES));
    if (len > SHM_CELL_BYTES) {
        uint32_t more = len - SHM_CELL_BYTES, at = end->data_put % size;
        uint32_t first = min_u32(more, size - at);
        copy_from(c, data + at, first);
        copy_from(c, data, more - first);
    }
    fill_own(to, begin, min_u32(len, SHM_CELL_BYTES));
    to->len = len;
    end->data_put += more_bytes(len);
    end->cells_put++;
    atomic_store_explicit(&to->number, end->cells_put, memory_order_release);
    return len;
}

/* A sleeper increments `asleep` before its last check: with the fence, one side sees the other. */
static void wake_rank(const struct shm *s, int i)
{
    struct shm_peer *peer = &s->peers[i];
    memory_fence(memory_order_seq_cst);
    uint32_t asleep = atomic_load_explicit(&peer->asleep, memory_order_relaxed);
    if (!asleep)
        return;
    if (asleep >= SHM_PARKED)
        shm_ring(s, i, &peer->p2p_parked);
    if (asleep % SHM_PARKED == 0)
        return;
    atomic_fetch_add(&peer->doorbell, 1);
    wait_wake(&peer->doorbell);
}

static void ring_wake(const struct end *end)
{
    wake_rank(end->shm, end->rank);
}

static ssize_t ring_send(struct transport *base, int stream, const struct iovec *iov, int n,
                         struct err *e)
{
    struct rings *t = (struct rings *)base;
    struct end *end = &t->ends[stream];
    struct cursor c = {.iov = iov};
    size_t left = 0;
    ssize_t sent = 0;
    int r = ended(t, end, e);
    if (r < 0)
        return r;
    for (int i = 0; i < n; i++)
        left += iov[i].iov_len;
    for (uint32_t len; left && (len = fill_cell(t->comm->shm, end, &c, left)); left -= len)
        sent += len;
    if (sent)
        ring_wake(end);
    return sent;
}

bool ring_has_left(const struct dlcoll_comm *comm, int peer)
{
    const struct shm_peer *its = &comm->shm->peers[comm->topo.local_of[peer]];
    return atomic_load_explicit(&its->left, memory_order_acquire);
}

static void prefetch(void *to, size_t len)
{
    for (const uint8_t *line = to, *end = line + len; line < end; line += 64) {
#if defined(__x86_64__)
        __asm__ volatile("prefetchw %0" : : "m"(*line)); /* a no-op on processors without it */
#else
        __builtin_prefetch(line, 1);
#endif
    }
}

/* The next message is likely to be as long, and goes to where the reader has read: its lines are
 * fetched from the reader's cache while this rank waits anyway. */
static void prepare_next(const struct shm *s, const struct end *end, uint32_t more)
{
    uint32_t at = end->data_put % s->ring_bytes;
    if (more && more <= PREPARED_BYTES && at + more <= s->ring_bytes)
        prefetch((uint8_t *)(end->out->cells + s->ring_cells) + at, more);
}

void ring_say_kept(struct transport *base, int stream, uint64_t bytes)
{
    const struct end *end = &((struct rings *)base)->ends[stream];
    atomic_store_explicit(&end->in->kept, bytes, memory_order_relaxed);
}

uint64_t ring_hear_kept(const struct transport *base, int stream)
{
    const struct end *end = &((const struct rings *)base)->ends[stream];
    return atomic_load_explicit(&end->out->kept, memory_order_relaxed);
}

bool ring_put(struct transport *base, int stream, const struct iovec *iov, size_t len,
              uint64_t most_kept)
{
    struct rings *t = (struct rings *)base;
    struct end *end = &t->ends[stream];
    const struct shm *s = t->comm->shm;
    struct cursor c = {.iov = iov};
    if (t->closed || atomic_load_explicit(&end->peer->left, memory_order_acquire) ||
        atomic_load_explicit(&end->out->kept, memory_order_relaxed) > most_kept ||
        len > SHM_CELL_BYTES + s->ring_bytes / CHUNK_PARTS || !fill_cell(s, end, &c, len))
        return false;
    prepare_next(s, end, more_bytes((uint32_t)len));
    ring_wake(end);
    return true;
}

/* -------------------------------------------------------------------------------------- reading */

/* Copies `len` bytes of a cell, starting at `at`. */
static void copy_to(const struct shm *s, const struct end *end, const struct shm_cell *from,
                    uint32_t at, uint8_t *to, uint32_t len)
{
    uint32_t size = s->ring_bytes, own = at < SHM_CELL_BYTES ? SHM_CELL_BYTES - at : 0;
    const uint8_t *data = (const uint8_t *)(end->in->cells + s->ring_cells);
    own = own < len ? own : len;
    copy_part(to, from->data + at, own);
    to += own;
    at += own;
    len -= own;
    if (!len)
        return;
    uint32_t begin = (end->data_got + at - SHM_CELL_BYTES) % size;
    uint32_t first = min_u32(len, size - begin);
    memcpy(to, data + begin, first);
    memcpy(to + first, data, len - first);
}

/* The next cell to read, and its length; NULL: it has not been written. */
static struct shm_cell *next_cell(const struct shm *s, const struct end *end, uint32_t *len)
{
    struct shm_cell *next = cell(s, end->in, end->cells_got);
    if (atomic_load_explicit(&next->number, memory_order_acquire) != end->cells_got + 1)
        return NULL;
    *len = next->len;
    return next;
}

static void finish_cell(struct end *end, uint32_t len)
{
    debug_assert(atomic_load(&end->in->cells_read) == end->cells_got);
    end->got = 0;
    end->cells_got++;
    end->data_got += more_bytes(len);
    atomic_store_explicit(&end->in->data_read, end->data_got, memory_order_release);
    atomic_store_explicit(&end->in->cells_read, end->cells_got, memory_order_release);
}

static ssize_t ring_recv(struct transport *base, int stream, const struct iovec *iov, int n,
                         struct err *e)
{
    struct rings *t = (struct rings *)base;
    struct end *end = &t->ends[stream];
    const struct shm *s = t->comm->shm;
    struct shm_cell *from;
    uint32_t len;
    ssize_t got = 0;
    int r = ended(t, end, e);
    if (t->closed)
        return r;
    /* ended() is called first: data that the peer sent before it left is still received. */
    for (int i = 0; i < n; i++) {
        uint8_t *to = iov[i].iov_base;
        for (size_t left = iov[i].iov_len; left && (from = next_cell(s, end, &len));) {
            if (len <= end->got || len > SHM_CELL_BYTES + s->ring_bytes)
                return err_set(e, -EPROTO, "the shared memory is damaged");
            uint32_t part = min_u32(left, len - end->got);
            copy_to(s, end, from, end->got, to, part);
            to += part;
            left -= part;
            got += part;
            end->got += part;
            if (end->got == len)
                finish_cell(end, len);
        }
    }
    /* The peer may wait for room. */
    if (got && atomic_load_explicit(&end->peer->asleep, memory_order_relaxed))
        ring_wake(end);
    return got ? got : r;
}

const void *ring_look(struct transport *base, int stream, int tries, size_t *len)
{
    struct rings *t = (struct rings *)base;
    const struct end *end = &t->ends[stream];
    const struct shm_cell *from = NULL;
    uint32_t has = 0;
    if (t->closed || end->got)
        return NULL;
    while (!(from = next_cell(t->comm->shm, end, &has)) && --tries > 0)
        wait_relax();
    *len = has;
    return from ? from->data : NULL;
}

void ring_take(struct transport *base, int stream, size_t len, size_t skip, void *to)
{
    struct rings *t = (struct rings *)base;
    struct end *end = &t->ends[stream];
    const struct shm *s = t->comm->shm;
    if (len > skip)
        copy_to(s, end, cell(s, end->in, end->cells_got), (uint32_t)skip, to,
                (uint32_t)(len - skip));
    finish_cell(end, (uint32_t)len);
    if (atomic_load_explicit(&end->peer->asleep, memory_order_relaxed))
        ring_wake(end);
}

static int ring_peek(struct transport *base, int stream, void *p, size_t want)
{
    struct rings *t = (struct rings *)base;
    struct end end = t->ends[stream];
    const struct shm *s = t->comm->shm;
    struct shm_cell *from;
    uint32_t len;
    uint8_t *to = p;
    while (!t->closed && want && (from = next_cell(s, &end, &len)) && len > end.got &&
           len <= SHM_CELL_BYTES + s->ring_bytes) {
        uint32_t part = min_u32(want, len - end.got);
        copy_to(s, &end, from, end.got, to, part);
        to += part;
        want -= part;
        end.got = 0;
        end.cells_got++;
        end.data_got += more_bytes(len);
    }
    return !t->closed && !want;
}

/* -------------------------------------------------------------------------------------- waiting */

uint32_t ring_prepare_sleep(struct dlcoll_comm *comm)
{
    struct shm_peer *me = &comm->shm->peers[comm->shm->me];
    atomic_fetch_add(&me->asleep, 1);
    return atomic_load(&me->doorbell);
}

const _Atomic uint32_t *ring_doorbell(struct dlcoll_comm *comm)
{
    return &comm->shm->peers[comm->shm->me].doorbell;
}

void ring_end_sleep(struct dlcoll_comm *comm)
{
    atomic_fetch_sub(&comm->shm->peers[comm->shm->me].asleep, 1);
}

void ring_wake_own(struct dlcoll_comm *comm)
{
    wake_rank(comm->shm, comm->shm->me);
}

void ring_prepare_park(struct dlcoll_comm *comm)
{
    struct shm_peer *me = &comm->shm->peers[comm->shm->me];
    atomic_fetch_add(&me->asleep, SHM_PARKED);
    atomic_store(&me->p2p_parked, task_slot());
}

void ring_end_park(struct dlcoll_comm *comm)
{
    struct shm_peer *me = &comm->shm->peers[comm->shm->me];
    atomic_store(&me->p2p_parked, 0);
    atomic_fetch_sub(&me->asleep, SHM_PARKED);
}

bool ring_has_bell(const struct dlcoll_comm *comm)
{
    return comm->shm->bells[comm->shm->me];
}

static int ring_wait(struct transport *base, const struct transport_want *wants, size_t n,
                     int timeout_ms, struct err *e)
{
    (void)base, (void)wants, (void)n, (void)e;
    (void)!poll(NULL, 0, timeout_ms < 1 ? timeout_ms : 1);
    return 0;
}

/* ------------------------------------------------------------------------------- beginning, end */

static void ring_close(struct transport *base)
{
    ((struct rings *)base)->closed = true;
}

static void ring_free(struct transport *base)
{
    free(base);
}

int ring_new(struct transport **out, struct dlcoll_comm *comm, struct err *e)
{
    static const struct transport_ops ops = {.name = "shm",
                                             .send = ring_send,
                                             .recv = ring_recv,
                                             .peek = ring_peek,
                                             .wait = ring_wait,
                                             .close = ring_close,
                                             .free = ring_free};
    size_t n = (size_t)comm->size * 2;
    struct rings *t = calloc(1, sizeof(*t) + n * sizeof(t->ends[0]));
    if (!t)
        return err_set(e, -ENOMEM, "no memory");
    t->base = (struct transport){.ops = &ops, .size = comm->size, .streams = 2};
    t->comm = comm;
    for (int r = 0; r < comm->size; r++) {
        const struct shm *s = comm->shm;
        int peer = comm->topo.local_of[r];
        if (comm->topo.node_of[r] != comm->topo.node)
            continue;
        for (int k = 0; k < 2; k++)
            t->ends[k * comm->size + r] = (struct end){.out = ring_between(s, s->me, peer, k),
                                                       .in = ring_between(s, peer, s->me, !k),
                                                       .shm = s,
                                                       .rank = peer,
                                                       .peer = &s->peers[peer]};
    }
    *out = &t->base;
    return 0;
}

/* ------------------------------------------------------------------------------------- fetching */

bool ring_may_fetch(struct dlcoll_comm *comm, int peer)
{
    struct shm *s = comm->shm;
    return s && cma_may_read(s, comm->topo.local_of[peer]);
}

int ring_fetch(struct dlcoll_comm *comm, int peer, void *to, uint64_t from, size_t len,
               struct err *e)
{
    return cma_copy(comm->shm, comm->topo.local_of[peer], to, from, len, e);
}
