#include "collectives/base/recorder.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "collectives/base/dtype.h"
#include "core/clock.h"
#include "core/memory_fence.h"
#include "core/segment_op.h"

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
        const char *name = dtype_code_name(i);
        snprintf(g_names.dtype[i], sizeof(g_names.dtype[i]), "%.7s", name ? name : "");
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
    r->watched = atomic_load_explicit(&r->line->watched, memory_order_relaxed);
    atomic_store_explicit(&r->line->nops, 0, memory_order_relaxed);
}

/* ------------------------------------------------------------------------------------- records
 */

#define put(field, value) __atomic_store_n(field, value, __ATOMIC_RELAXED)
#define get(field)        __atomic_load_n(field, __ATOMIC_RELAXED)

/* Bytes that another thread may write meanwhile. */
static void copy_bytes(void *to, const void *from, size_t len)
{
#if defined(__SANITIZE_THREAD__)
    for (size_t i = 0; i < len; i++)
        put((char *)to + i, get((const char *)from + i));
#else
    memcpy(to, from, len);
#endif
}

/* The times of a small operation are known to a few milliseconds only: reading the exact clock
 * would take a good part of its time. */
static clockid_t clock_for(uint64_t bytes)
{
    return bytes < SMALL_BYTES ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC;
}

static struct segment_op *record_of(struct recorder *r, uint64_t number)
{
    return &r->line->ops[number % SEGMENT_OPS];
}

static uint64_t record_begin(struct recorder *r, uint64_t group, const char *group_name,
                             uint64_t seq, const struct op_signature *sig, uint64_t bytes,
                             uint64_t coarse_ns, enum segment_op_device device)
{
    struct segment_local *line = r->line;
    uint64_t number = atomic_fetch_add_explicit(&line->nops, 1, memory_order_relaxed) + 1;
    struct segment_op *op = record_of(r, number);
    uint64_t before = atomic_load_explicit(&op->number, memory_order_relaxed);
    if (before > number ||
        !segment_op_take(op, before)) /* other threads have begun as many as are kept */
        return 0;
    bool has_data = sig->count || bytes, reduces = call_reduces(sig->kind);
    bool coarse = coarse_ns && clock_for(bytes) == CLOCK_MONOTONIC_COARSE;
    put(&op->group, group);
    put(&op->seq, seq);
    put(&op->count, sig_count(sig));
    put(&op->bytes, bytes);
    put(&op->device, device);
    put(&op->start_ns, coarse ? coarse_ns : clock_ns(clock_for(bytes)));
    put(&op->peer, call_rooted(sig->kind) ? sig->root : -1);
    copy_bytes(op->op, g_names.op[sig->kind], sizeof(op->op));
    copy_bytes(op->dtype, g_names.dtype[has_data ? sig->dtype % NAMES : NAMES - 1],
               sizeof(op->dtype));
    copy_bytes(op->reduction, g_names.reduction[reduces ? sig->op : 255], sizeof(op->reduction));
    copy_bytes(op->group_name, group_name, sizeof(op->group_name));
    atomic_store_explicit(&op->end_ns, 0, memory_order_relaxed);
    segment_op_give_back(op, number);
    return number;
}

uint64_t recorder_begin(struct recorder *r, uint64_t group, const char *group_name, uint64_t seq,
                        const struct op_signature *sig, uint64_t bytes, uint64_t coarse_ns)
{
    return record_begin(r, group, group_name, seq, sig, bytes, coarse_ns, SEGMENT_OP_HOST);
}

uint64_t recorder_begin_device(struct recorder *r, uint64_t group, const char *group_name,
                               uint64_t seq, const struct op_signature *sig, uint64_t bytes,
                               bool timed)
{
    return record_begin(r, group, group_name, seq, sig, bytes, 0,
                        timed ? SEGMENT_OP_ENQUEUED : SEGMENT_OP_DEVICE);
}

/* Does nothing when a later operation has the record. */
static void record_end(struct segment_op *op, uint64_t number, uint64_t now_ns, int result)
{
    if (!number || !segment_op_take(op, number))
        return;
    uint64_t start_ns = get(&op->start_ns);
    atomic_store_explicit(&op->result, result, memory_order_relaxed);
    atomic_store_explicit(&op->end_ns, now_ns > start_ns ? now_ns : start_ns, memory_order_release);
    segment_op_give_back(op, number);
}

void recorder_end(struct recorder *r, uint64_t number, int result)
{
    struct segment_op *op = record_of(r, number);
    clockid_t clock = result < 0 ? CLOCK_MONOTONIC : clock_for(get(&op->bytes));
    record_end(op, number, clock_ns(clock), result);
}

void recorder_put_device(struct recorder *r, uint64_t number, uint64_t start_ns, uint64_t end_ns)
{
    struct segment_op *op = record_of(r, number);
    if (!number || !segment_op_take(op, number))
        return;
    put(&op->device, SEGMENT_OP_BEGUN);
    put(&op->start_ns, start_ns);
    if (end_ns > start_ns && r->watched)
        atomic_fetch_add_explicit(&r->line->waited_ns, (int64_t)(end_ns - start_ns),
                                  memory_order_relaxed);
    if (end_ns) {
        atomic_store_explicit(&op->result, 0, memory_order_relaxed);
        atomic_store_explicit(&op->end_ns, end_ns > start_ns ? end_ns : start_ns,
                              memory_order_release);
    }
    segment_op_give_back(op, number);
}

void recorder_end_at_once(struct recorder *r, uint64_t number)
{
    record_end(record_of(r, number), number, 0, 0);
}

static bool recorder_copy(const struct segment_op *op, uint64_t number, dlcoll_record *out,
                          bool *device)
{
    if (atomic_load_explicit(&op->number, memory_order_acquire) != number)
        return false;
    uint64_t end_ns = atomic_load_explicit(&op->end_ns, memory_order_acquire);
    *out = (dlcoll_record){.group = get(&op->group),
                           .seq = get(&op->seq),
                           .count = get(&op->count),
                           .bytes = get(&op->bytes),
                           .start_ns = get(&op->start_ns),
                           .end_ns = end_ns,
                           .peer = get(&op->peer),
                           .result = atomic_load_explicit(&op->result, memory_order_relaxed)};
    *device = get(&op->device);
    /* The worker may have written nonsense: every text gets an end. */
    copy_bytes(out->op, op->op, sizeof(op->op) - 1);
    copy_bytes(out->dtype, op->dtype, sizeof(op->dtype) - 1);
    copy_bytes(out->reduction, op->reduction, sizeof(op->reduction) - 1);
    copy_bytes(out->group_name, op->group_name, sizeof(op->group_name) - 1);
    if (!out->end_ns)
        out->result = 0;
    memory_fence(memory_order_acquire);
    return atomic_load_explicit(&op->number, memory_order_relaxed) == number;
}

static int read_all(const struct segment_local *line, bool devices, dlcoll_record *out, int max)
{
    uint64_t last = atomic_load_explicit(&line->nops, memory_order_acquire);
    int n = 0;
    for (uint64_t k = 0; k < SEGMENT_OPS && k < last && n < max; k++) {
        bool device;
        n += recorder_copy(&line->ops[(last - k) % SEGMENT_OPS], last - k, &out[n], &device) &&
             (devices || !device);
    }
    return n;
}

int recorder_read(const struct segment_local *line, dlcoll_record *out, int max)
{
    return read_all(line, true, out, max);
}

/* The index of a name among n, each of `size` bytes; UINT8_MAX: not found. */
static uint8_t recorder_look_up(const char *name, const void *names, int n, size_t size)
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
           kind != CALL_BATCH && kind != CALL_PROBE && kind != CALL_MONITORED_BARRIER;
}

static void get_signature(const dlcoll_record *r, uint8_t kind, struct op_signature *sig)
{
    *sig = (struct op_signature){.kind = kind};
    if (call_rooted(kind))
        sig->root = r->peer;
    if (call_has_data(kind)) {
        sig->count = r->count;
        sig->dtype = recorder_look_up(r->dtype, g_names.dtype, NAMES, sizeof(g_names.dtype[0]));
        if (sig->dtype == DTYPE_CODE_BYTES && r->count && r->bytes >= r->count)
            sig->count = sig_pack(r->count, r->bytes / r->count);
    }
    if (call_reduces(kind))
        sig->op =
            recorder_look_up(r->reduction, g_names.reduction, 256, sizeof(g_names.reduction[0]));
}

bool recorder_find(const struct segment_local *line, uint64_t group, uint64_t *seq,
                   struct op_signature *sig)
{
    dlcoll_record all[SEGMENT_OPS];
    int n = read_all(line, false, all, SEGMENT_OPS);
    /* True if the record would still be there: nothing has been written over, or an older record is
     * still there. */
    bool earlier = atomic_load_explicit(&line->nops, memory_order_relaxed) <= SEGMENT_OPS;
    uint64_t best = 0;
    for (int i = 0; i < n; i++) {
        const dlcoll_record *r = &all[i];
        uint8_t kind = recorder_look_up(r->op, g_names.op, CALL_KINDS, sizeof(g_names.op[0]));
        bool refused = r->result < 0 && r->result != DLCOLL_EMISMATCH;
        if (r->group != group || refused || !is_collective(kind))
            continue; /* other operations have numbers of their own */
        earlier = earlier || r->seq <= *seq;
        if (r->seq >= *seq && (!best || r->seq < best)) {
            best = r->seq;
            get_signature(r, kind, sig);
        }
    }
    if (!best || !earlier)
        return false;
    *seq = best;
    return true;
}
