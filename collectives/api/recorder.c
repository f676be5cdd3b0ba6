#include "collectives/api/recorder.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "collectives/reduce/dtype.h"
#include "collectives/reduce/reduce.h"
#include "core/clock.h"

enum { NAMES = 64, SMALL_BYTES = 64 * 1024 };

/* Names as they are copied into a record: whole, without looking for their ends. */
static struct {
    char op[CALL_KINDS][20];
    char dtype[NAMES][8];
    char reduction[256][12];
} g_names;

static void fill_names(void)
{
    for (int i = 0; i < CALL_KINDS; i++)
        snprintf(g_names.op[i], sizeof(g_names.op[i]), "%.19s", call_name(i));
    for (int i = 0; i < NAMES; i++) {
        const struct dtype *d = dtype_get(i);
        snprintf(g_names.dtype[i], sizeof(g_names.dtype[i]), "%.7s", d ? d->name : "");
    }
    for (int i = 0; i < 256; i++) {
        const char *name = reduction_name(i);
        snprintf(g_names.reduction[i], sizeof(g_names.reduction[i]), "%.11s", name ? name : "");
    }
}

void recorder_init(struct recorder *r, struct segment_local *line)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_names);
    memset(&r->own, 0, sizeof(r->own));
    r->line = line ? line : &r->own;
    atomic_store_explicit(&r->line->nops, 0, memory_order_relaxed);
}

/* The times of a small operation are known to a few milliseconds only: reading the exact clock
 * would take a good part of its time. */
static clockid_t clock_for(uint64_t bytes)
{
    return bytes < SMALL_BYTES ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC;
}

static uint64_t begin(struct recorder *r, uint64_t group, const char *group_name, uint64_t seq,
                      const struct op_signature *call, uint64_t bytes, uint64_t coarse_ns,
                      bool device)
{
    struct segment_local *line = r->line;
    uint64_t number = atomic_fetch_add_explicit(&line->nops, 1, memory_order_relaxed) + 1;
    struct segment_op *op = &line->ops[number % SEGMENT_OPS];
    bool has_data = call->count || bytes, reduces = call_reduces(call->kind);
    atomic_store_explicit(&op->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    op->group = group;
    op->seq = seq;
    op->count = call->count;
    op->bytes = bytes;
    op->device = device;
    bool coarse = coarse_ns && clock_for(bytes) == CLOCK_MONOTONIC_COARSE;
    op->start_ns = coarse ? coarse_ns : clock_ns(clock_for(bytes));
    op->peer = call_rooted(call->kind) ? call->root : -1;
    memcpy(op->op, g_names.op[call->kind], sizeof(op->op));
    memcpy(op->dtype, g_names.dtype[has_data ? call->dtype % NAMES : NAMES - 1], sizeof(op->dtype));
    memcpy(op->reduction, g_names.reduction[reduces ? call->op : 255], sizeof(op->reduction));
    memcpy(op->group_name, group_name, sizeof(op->group_name));
    atomic_store_explicit(&op->end_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&op->number, number, memory_order_release);
    return number;
}

uint64_t recorder_begin(struct recorder *r, uint64_t group, const char *group_name, uint64_t seq,
                        const struct op_signature *call, uint64_t bytes, uint64_t coarse_ns)
{
    return begin(r, group, group_name, seq, call, bytes, coarse_ns, false);
}

uint64_t recorder_begin_device(struct recorder *r, uint64_t group, const char *group_name,
                               uint64_t seq, const struct op_signature *call, uint64_t bytes)
{
    return begin(r, group, group_name, seq, call, bytes, 0, true);
}

/* NULL: others have come since. */
static struct segment_op *find(struct recorder *r, uint64_t number)
{
    struct segment_op *op = &r->line->ops[number % SEGMENT_OPS];
    return atomic_load_explicit(&op->number, memory_order_relaxed) == number ? op : NULL;
}

static void end(struct segment_op *op, uint64_t now, int result)
{
    atomic_store_explicit(&op->result, result, memory_order_relaxed);
    atomic_store_explicit(&op->end_ns, now > op->start_ns ? now : op->start_ns,
                          memory_order_release);
}

void recorder_end(struct recorder *r, uint64_t number, int result)
{
    struct segment_op *op = find(r, number);
    if (op)
        end(op, clock_ns(result < 0 ? CLOCK_MONOTONIC : clock_for(op->bytes)), result);
}

void recorder_end_at_once(struct recorder *r, uint64_t number)
{
    struct segment_op *op = find(r, number);
    if (op)
        end(op, op->start_ns, 0);
}

static bool copy(const struct segment_op *op, uint64_t number, dlcoll_record *out, bool *device)
{
    if (atomic_load_explicit(&op->number, memory_order_acquire) != number)
        return false;
    *out = (dlcoll_record){.group = op->group,
                           .seq = op->seq,
                           .count = op->count,
                           .bytes = op->bytes,
                           .start_ns = op->start_ns,
                           .end_ns = atomic_load_explicit(&op->end_ns, memory_order_acquire),
                           .peer = op->peer,
                           .result = atomic_load_explicit(&op->result, memory_order_relaxed)};
    *device = op->device;
    /* The worker may have written nonsense: every text gets an end. */
    memcpy(out->op, op->op, sizeof(op->op) - 1);
    memcpy(out->dtype, op->dtype, sizeof(op->dtype) - 1);
    memcpy(out->reduction, op->reduction, sizeof(op->reduction) - 1);
    memcpy(out->group_name, op->group_name, sizeof(op->group_name) - 1);
    if (!out->end_ns)
        out->result = 0;
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&op->number, memory_order_relaxed) == number;
}

static int read_all(const struct segment_local *line, bool devices, dlcoll_record *out, int max)
{
    uint64_t last = atomic_load_explicit(&line->nops, memory_order_acquire);
    int n = 0;
    for (uint64_t k = 0; k < SEGMENT_OPS && k < last && n < max; k++) {
        bool device;
        n += copy(&line->ops[(last - k) % SEGMENT_OPS], last - k, &out[n], &device) &&
             (devices || !device);
    }
    return n;
}

int recorder_read(const struct segment_local *line, dlcoll_record *out, int max)
{
    return read_all(line, true, out, max);
}

/* Which of n names, each of `size` bytes; or that of none. */
static uint8_t look_up(const char *name, const void *names, int n, size_t size)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(name, (const char *)names + (size_t)i * size) == 0)
            return (uint8_t)i;
    }
    return UINT8_MAX;
}

/* Numbered with the collective operations: messages, and barriers that are made of them, are not.
 */
static bool is_collective(uint8_t kind)
{
    return kind > CALL_NONE && kind < CALL_KINDS && kind != CALL_SEND && kind != CALL_RECV &&
           kind != CALL_BATCH && kind != CALL_MONITORED_BARRIER;
}

static void get_call(const dlcoll_record *r, uint8_t kind, struct op_signature *call)
{
    *call = (struct op_signature){.kind = kind};
    if (call_rooted(kind))
        call->root = r->peer;
    if (call_has_data(kind)) {
        call->count = r->count;
        call->dtype = look_up(r->dtype, g_names.dtype, NAMES, sizeof(g_names.dtype[0]));
    }
    if (call_reduces(kind))
        call->op = look_up(r->reduction, g_names.reduction, 256, sizeof(g_names.reduction[0]));
}

bool recorder_find(const struct segment_local *line, uint64_t group, uint64_t *seq,
                   struct op_signature *call)
{
    dlcoll_record all[SEGMENT_OPS];
    int n = read_all(line, false, all, SEGMENT_OPS);
    /* Nothing has been written over, or what is older is there still: so it would be, too. */
    bool earlier = atomic_load_explicit(&line->nops, memory_order_relaxed) <= SEGMENT_OPS;
    uint64_t best = 0;
    for (int i = 0; i < n; i++) {
        const dlcoll_record *r = &all[i];
        uint8_t kind = look_up(r->op, g_names.op, CALL_KINDS, sizeof(g_names.op[0]));
        if (r->group != group || r->result < 0 || !is_collective(kind))
            continue; /* others have numbers of their own */
        earlier = earlier || r->seq <= *seq;
        if (r->seq >= *seq && (!best || r->seq < best)) {
            best = r->seq;
            get_call(r, kind, call);
        }
    }
    if (!best || !earlier)
        return false;
    *seq = best;
    return true;
}
