#include "collectives/shm/cma.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

enum { READ_BYTES = 1 << 30 }; /* in one call: the kernel moves at most 2 GB */

/* The address of a block in its owner's process, or its offset in the shared memory. */
struct cma_block {
    uint64_t at, len;
    uint64_t shared;
};

/* -------------------------------------------------------------------------------------- may we? */

static bool try_read(const struct shm_peer *p)
{
    uint64_t got = 0;
    struct iovec here = {&got, sizeof(got)}, there = {(void *)(uintptr_t)p->probe, sizeof(got)};
    pid_t pid = atomic_load_explicit(&p->pid, memory_order_acquire);
    return pid > 0 && process_vm_readv(pid, &here, 1, &there, 1, 0) == sizeof(got) &&
           got == p->nonce;
}

void cma_probe(struct shm *s)
{
    _Atomic uint32_t *can = &s->peers[s->me].can_read;
    bool yes = true;
    /* A rank publishes its probe address before its first operation. */
    if (!s->all_entered || atomic_load_explicit(can, memory_order_relaxed) != SHM_UNKNOWN)
        return;
    for (int i = 0; i < s->n && yes; i++)
        yes = i == s->me || try_read(&s->peers[i]);
    atomic_store_explicit(can, yes ? SHM_YES : SHM_NO, memory_order_release);
}

static enum shm_can what_others_can(const struct shm *s)
{
    for (int i = 0; i < s->n; i++) {
        uint32_t can = atomic_load_explicit(&s->peers[i].can_read, memory_order_acquire);
        if (i != s->me && can != SHM_YES)
            return (enum shm_can)can;
    }
    return SHM_YES;
}

/* Whether another process can read the first and the last byte, hence very likely all between.
 * Asked once per buffer, because the system call takes a microsecond. */
static bool is_readable(struct shm *s, const uint8_t *p, size_t len)
{
    uint64_t hash = (uintptr_t)p * 0x9e3779b97f4a7c15u >> 32;
    struct shm_range *known = &s->readable[hash % SHM_RANGES];
    uint8_t got[2];
    struct iovec here = {got, 2}, there[2] = {{(void *)p, 1}, {(void *)(p + len - 1), 1}};
    pid_t me = atomic_load_explicit(&s->peers[s->me].pid, memory_order_relaxed);
    if (known->p == p && known->len == len)
        return true;
    if (process_vm_readv(me, &here, 1, there, 2, 0) != 2)
        return false;
    *known = (struct shm_range){p, len};
    return true;
}

bool cma_can(struct shm *s, const uint8_t *send)
{
    size_t from = SIZE_MAX, to = 0;
    uint64_t at;
    if (s->can_pull == SHM_UNKNOWN)
        s->can_pull = what_others_can(s);
    for (int j = 0; j < s->n; j++) {
        const struct shm_block *b = &s->out[j];
        if (j != s->me && b->len) {
            from = b->at < from ? b->at : from;
            to = b->at + b->len > to ? b->at + b->len : to;
        }
    }
    if (from >= to) /* nothing is offered; `send` may be invalid */
        return false;
    return shm_holds(s, send + from, to - from, &at) ||
           (s->can_pull == SHM_YES && is_readable(s, send + from, to - from));
}

/* ------------------------------------------------------------------------------------- offering */

static struct cma_block cma_describe(const struct shm *s, const uint8_t *p, size_t len)
{
    struct cma_block o = {.at = (uintptr_t)p, .len = len};
    o.shared = shm_holds(s, p, len, &o.at);
    return o;
}

/* The place at which rank i describes its block for rank j. */
static struct cma_block *cma_entry(const struct shm_op *op, int i, int j, bool one_block)
{
    const struct shm *s = op->s;
    return one_block ? (struct cma_block *)shm_arrival(s, op->seq, i)->block
                     : (struct cma_block *)shm_slot(s, i, op->base) + j;
}

void cma_offer(struct shm_op *op, const uint8_t *send, bool one_block)
{
    struct shm *s = op->s;
    for (int j = 0; j < s->n; j++) {
        if (!one_block || (j != s->me && s->out[j].len))
            *cma_entry(op, s->me, j, one_block) =
                cma_describe(s, send + s->out[j].at, s->out[j].len);
    }
}

/* --------------------------------------------------------------------------------------- taking */

int cma_copy(const struct shm *s, int i, uint8_t *to, uint64_t from, size_t len, struct err *e)
{
    pid_t pid = atomic_load_explicit(&s->peers[i].pid, memory_order_relaxed);
    while (len) {
        size_t n = len < READ_BYTES ? len : READ_BYTES;
        struct iovec here = {to, n}, there = {(void *)(uintptr_t)from, n};
        ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (got < 0 && errno == ESRCH)
            return err_set(e, -EPIPE, "its process has exited");
        if (got <= 0)
            return err_sys(e, got < 0 ? errno : EFAULT, "reading %zu bytes of process %d", n, pid);
        to += got;
        from += (uint64_t)got;
        len -= (size_t)got;
    }
    return 0;
}

bool cma_may_read(struct shm *s, int i)
{
    /* Rank i has published its probe address before it sent its first byte. */
    if (s->may_read[i] == SHM_UNKNOWN)
        s->may_read[i] = try_read(&s->peers[i]) ? SHM_YES : SHM_NO;
    return s->may_read[i] == SHM_YES;
}

int cma_read(struct shm_op *op, int i, uint8_t *to, size_t len, size_t from, size_t n,
             bool one_block)
{
    struct shm *s = op->s;
    struct cma_block o = *cma_entry(op, i, s->me, one_block);
    if (o.len != len || (o.shared && (o.at > s->bytes || len > s->bytes - o.at))) {
        op->call->failure->culprit = coll_rank_of(&op->call->ranks, i);
        return err_set(&op->call->failure->err, -EPROTO,
                       "rank %d offers %llu bytes where %zu are expected",
                       op->call->failure->culprit, (unsigned long long)o.len, len);
    }
    op->pulled = true;
    if (!o.shared) {
        int r = cma_copy(s, i, to, o.at + from, n, &op->call->failure->err);
        if (r < 0)
            op->call->failure->culprit = coll_rank_of(&op->call->ranks, i);
        return r;
    }
    memcpy(to, s->base + o.at + from, n);
    return 0;
}

int cma_finish(struct shm_op *op, bool offered)
{
    struct shm *s = op->s;
    int r = op->pulled && comm_was_stopped(op->call->comm) ? -ECANCELED : 0;
    if (op->pulled && r == 0)
        shm_publish(&s->progress[s->me].done, op->seq);
    for (int j = 0; offered && j < s->n && r == 0; j++) {
        if (j != s->me && s->out[j].len)
            r = shm_await_word(op, j, &s->progress[j].done, op->seq);
    }
    return r;
}
