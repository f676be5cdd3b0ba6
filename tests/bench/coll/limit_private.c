/* The happy path, staged: for each piece put() -> barrier -> take from the others' slots. A slot
 * has two halves, used in turn: who passes the barrier of a piece knows that all ranks have taken
 * the piece before. A reduction has a second barrier, after which each rank takes the others'
 * slices of the result. By reading: barrier -> the kernel copies -> barrier. */
#include "tests/bench/coll/limit_private.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

enum { RANKS_MAX = 64, IN_CACHES = 512 << 10, BLOCK = 64 << 10, LINE = 64 };

static struct shared {
    pid_t pid[RANKS_MAX];
    char *buffer[RANKS_MAX][2];
    char slots[]; /* [half][rank][g_slot]: what a rank gives, then its part of a result */
} * g;

static enum limit_means g_means;
static const struct bench_peer *g_peer;
static const struct reduce_info *g_sum;
static size_t g_slot; /* bytes */
static int g_half, g_buffers;

void limit_private_map(int ranks)
{
    size_t bytes = sizeof(*g) + 2 * (size_t)IN_CACHES;
    g_slot = (size_t)IN_CACHES / (size_t)ranks / LINE * LINE;
    g = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (g == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
}

void limit_private_init(enum limit_means means, const struct bench_peer *peer,
                        const struct reduce_info *sum)
{
    g_means = means;
    g_peer = peer;
    g_sum = sum;
    g->pid[peer->rank] = getpid();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* the ranks are no ancestors of each other */
}

void *limit_private_memory(size_t bytes)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    g->buffer[g_peer->rank][g_buffers++] = p;
    return p == MAP_FAILED ? NULL : p;
}

static char *slot(int rank)
{
    return g->slots + (size_t)g_half * IN_CACHES + (size_t)rank * g_slot;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Bytes at which rank's slice of len bytes begins; that of rank `ranks` is the end. */
static size_t slice(size_t len, int rank)
{
    return rank == g_peer->ranks ? len : len / (size_t)g_peer->ranks * (size_t)rank / LINE * LINE;
}

/* ---------------------------------------------------------------------------------------- staged
 */

/* One rank's bytes to all others, through the room of all slots. */
static void stage_from(int root, const char *from, char *to, size_t len)
{
    for (size_t at = 0; at < len; at += IN_CACHES / 2, g_half ^= 1) {
        size_t n = least(len - at, IN_CACHES / 2);
        if (g_peer->rank == root)
            memcpy(slot(0), from + at, n);
        g_peer->barrier();
        if (g_peer->rank != root)
            memcpy(to + at, slot(0), n);
    }
}

/* Each rank's block of len bytes to all. */
static void stage_gather(char *a, size_t len)
{
    for (size_t at = 0; at < len; at += g_slot, g_half ^= 1) {
        size_t n = least(len - at, g_slot);
        memcpy(slot(g_peer->rank), a + (size_t)g_peer->rank * len + at, n);
        g_peer->barrier();
        for (int i = 1; i < g_peer->ranks; i++) {
            int r = (g_peer->rank + i) % g_peer->ranks;
            memcpy(a + (size_t)r * len + at, slot(r), n);
        }
    }
}

/* Each rank's block of len bytes for each. */
static void stage_exchange(const char *a, char *b, size_t len)
{
    int me = g_peer->rank, ranks = g_peer->ranks;
    size_t piece = g_slot / (size_t)ranks / LINE * LINE;
    for (size_t at = 0; at < len; at += piece, g_half ^= 1) {
        size_t n = least(len - at, piece);
        for (int r = 0; r < ranks; r++) {
            if (r != me)
                memcpy(slot(me) + (size_t)r * piece, a + (size_t)r * len + at, n);
        }
        memcpy(b + (size_t)me * len + at, a + (size_t)me * len + at, n);
        g_peer->barrier();
        for (int i = 1; i < ranks; i++) {
            int r = (me + i) % ranks;
            memcpy(b + (size_t)r * len + at, slot(r) + (size_t)me * piece, n);
        }
    }
}

/* The sum of n bytes of this rank and of the others' slots at `at`. */
static void sum_slots(char *dst, const char *own, size_t at, size_t n)
{
    const void *src[RANKS_MAX];
    for (int r = 0; r < g_peer->ranks; r++)
        src[r] = r == g_peer->rank ? own : slot(r) + at;
    reduce_many(g_sum, dst, src, g_peer->ranks, n / 4);
}

/* Each rank's block of len bytes, summed. */
static void stage_reduce_scatter(const char *a, char *b, size_t len)
{
    int me = g_peer->rank;
    size_t piece = g_slot / (size_t)g_peer->ranks / LINE * LINE;
    for (size_t at = 0; at < len; at += piece, g_half ^= 1) {
        size_t n = least(len - at, piece);
        for (int r = 0; r < g_peer->ranks; r++) {
            if (r != me)
                memcpy(slot(me) + (size_t)r * piece, a + (size_t)r * len + at, n);
        }
        g_peer->barrier();
        sum_slots(b + at, a + (size_t)me * len + at, (size_t)me * piece, n);
    }
}

/* Up to a line for each rank, each rank sums everything; above, a slice, which it puts in its own
 * slot: nobody reads that part of it before. to: where the root, or each rank (-1), has the sum. */
static void stage_reduce(const char *a, char *to, size_t len, int root)
{
    int me = g_peer->rank;
    bool whole = len <= (size_t)LINE * (size_t)g_peer->ranks || (root >= 0 && g_peer->ranks == 2);
    for (size_t at = 0; at < len; at += g_slot, g_half ^= 1) {
        size_t n = least(len - at, g_slot), from = slice(n, me), end = slice(n, me + 1);
        if (whole) {
            if (me != root)
                memcpy(slot(me), a + at, n);
            g_peer->barrier();
            if (me == root || root < 0)
                sum_slots(to + at, a + at, 0, n);
            continue;
        }
        memcpy(slot(me), a + at, from);
        memcpy(slot(me) + end, a + at + end, n - end);
        g_peer->barrier();
        sum_slots(slot(me) + from, a + at + from, from, end - from);
        g_peer->barrier();
        for (int r = 0; r < g_peer->ranks && (root < 0 || me == root); r++)
            memcpy(to + at + slice(n, r), slot(r) + slice(n, r), slice(n, r + 1) - slice(n, r));
    }
}

static void run_staged(enum bench_op op, char *a, char *b, size_t len)
{
    size_t part = len / (size_t)g_peer->ranks;
    switch (op) {
    case PINGPONG:
        stage_from(0, a, a, len);
        stage_from(1, a, a, len);
        break;
    case BROADCAST:
        stage_from(bench_root, a, a, len);
        break;
    case ALL_GATHER:
        stage_gather(a, part);
        break;
    case ALL_TO_ALL:
        stage_exchange(a, b, part);
        break;
    case REDUCE_SCATTER:
        stage_reduce_scatter(a, b, part);
        break;
    case ALL_REDUCE:
        stage_reduce(a, a, len, -1);
        break;
    case REDUCE:
        stage_reduce(a, b, len, bench_root);
        break;
    default:
        g_peer->barrier();
    }
}

/* ------------------------------------------------------------------------------------ by reading
 */

/* n bytes at `at` of a rank's buffer, a (0) or b (1). */
static void read_from(int rank, int buffer, size_t at, char *to, size_t n)
{
    struct iovec here = {to, n}, there = {g->buffer[rank][buffer] + at, n};
    if (n && process_vm_readv(g->pid[rank], &here, 1, &there, 1, 0) != (ssize_t)n) {
        perror("process_vm_readv");
        exit(1);
    }
}

/* The sum of all ranks' a, from `at` on. */
static void sum_read(char *dst, const char *own, size_t at, size_t len)
{
    static _Alignas(LINE) char room[RANKS_MAX][BLOCK];
    const void *src[RANKS_MAX];
    for (size_t i = 0; i < len; i += BLOCK) {
        size_t n = least(len - i, BLOCK);
        for (int r = 0; r < g_peer->ranks; r++) {
            src[r] = r == g_peer->rank ? own + i : room[r];
            if (r != g_peer->rank)
                read_from(r, 0, at + i, room[r], n);
        }
        reduce_many(g_sum, dst + i, src, g_peer->ranks, n / 4);
    }
}

static void run_reading(enum bench_op op, char *a, char *b, size_t len)
{
    int me = g_peer->rank, ranks = g_peer->ranks;
    size_t part = len / (size_t)ranks, from = slice(len, me);
    g_peer->barrier();
    switch (op) {
    case PINGPONG:
        if (me == 1)
            read_from(0, 0, 0, a, len);
        g_peer->barrier();
        if (me == 0)
            read_from(1, 0, 0, a, len);
        break;
    case BROADCAST:
        if (me != bench_root)
            read_from(bench_root, 0, 0, a, len);
        break;
    case ALL_GATHER:
    case ALL_TO_ALL:
        if (op == ALL_TO_ALL)
            memcpy(b + (size_t)me * part, a + (size_t)me * part, part);
        for (int i = 1; i < ranks; i++) {
            size_t r = (size_t)((me + i) % ranks), at = op == ALL_TO_ALL ? (size_t)me : r;
            read_from((int)r, 0, at * part, (op == ALL_TO_ALL ? b : a) + r * part, part);
        }
        break;
    case REDUCE_SCATTER:
        sum_read(b, a + (size_t)me * part, (size_t)me * part, part);
        break;
    case ALL_REDUCE:
    case REDUCE:
        sum_read((op == REDUCE ? b : a) + from, a + from, from, slice(len, me + 1) - from);
        g_peer->barrier();
        for (int r = 0; r < ranks && (op == ALL_REDUCE || me == bench_root); r++) {
            size_t at = slice(len, r), n = slice(len, r + 1) - at;
            if (r != me)
                read_from(r, op == REDUCE, at, (op == REDUCE ? b : a) + at, n);
        }
        break;
    default:
        return;
    }
    g_peer->barrier();
}

void limit_private_run(enum bench_op op, char *a, char *b, size_t count)
{
    (g_means == LIMIT_STAGED ? run_staged : run_reading)(op, a, b, count * 4);
}
