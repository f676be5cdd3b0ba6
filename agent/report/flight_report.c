#include "agent/report/flight_report.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/report/report_words.h"
#include "core/memory_fence.h"
#include "core/segment_op.h"

enum {
    LONG_MS = 5000,      /* in progress */
    SHORT_MS = 10,       /* the clock of small operations is exact to a few milliseconds only */
    ROWS = 32,           /* lines of all workers */
    EACH = 4,            /* lines of one worker at most */
    ETIMEDOUT_CODE = -5, /* DLCOLL_ETIMEDOUT, DLCOLL_EMISMATCH */
    EMISMATCH_CODE = -8,
};

static const struct segment_local *line_of(const struct segment *s, int local_rank)
{
    return (const struct segment_local *)((const char *)s->header + s->off_local) + local_rank;
}

/* Copies the operation that a record has. False if it has none, or is being written. Terminates the
 * texts. */
static bool operation(const struct segment_op *op, struct segment_op *out)
{
    uint64_t n = atomic_load_explicit(&op->number, memory_order_acquire);
    if (n == 0 || n == SEGMENT_OP_WRITING)
        return false;
    memcpy(out, op, sizeof(*out));
    out->op[sizeof(out->op) - 1] = out->dtype[sizeof(out->dtype) - 1] = '\0';
    out->reduction[sizeof(out->reduction) - 1] = '\0';
    out->group_name[sizeof(out->group_name) - 1] = '\0';
    memory_fence(memory_order_acquire);
    return atomic_load_explicit(&op->number, memory_order_relaxed) == n;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = ((const struct segment_op *)a)->number, y = ((const struct segment_op *)b)->number;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Copies the last operations, and older ones that are under way, the newest first. Returns how
 * many. */
static int last_operations(const struct segment_local *l, struct segment_op out[SEGMENT_OPS])
{
    int n = 0;
    for (int k = 0; k < SEGMENT_OPS; k++)
        n += operation(&l->ops[k], &out[n]);
    qsort(out, (size_t)n, sizeof(*out), by_number);
    return n;
}

static bool is_telling(const struct segment_local *l, const struct segment_op *op, uint64_t now)
{
    int code = atomic_load_explicit(&l->cause_code, memory_order_relaxed);
    bool failed = atomic_load_explicit(&l->state, memory_order_acquire) == SEGMENT_LOCAL_FAILED;
    if (failed && (code == ETIMEDOUT_CODE || code == EMISMATCH_CODE))
        return true;
    return op && !op->end_ns && now > op->start_ns && (now - op->start_ns) / 1000000 >= LONG_MS;
}

static double flight_seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0;
}

/* "250 ms", "1.5 s". */
static const char *duration(char out[24], uint64_t from, uint64_t to)
{
    double s = flight_seconds(from, to);
    if (s < SHORT_MS / 1e3)
        snprintf(out, 24, "<%d ms", SHORT_MS);
    else if (s < 1)
        snprintf(out, 24, "%.0f ms", s * 1e3);
    else
        snprintf(out, 24, "%.1f s", s);
    return out;
}

/* The device's times are exact: "1.250 ms", "1.5 s". */
static const char *device_duration(char out[24], uint64_t from, uint64_t to)
{
    double s = flight_seconds(from, to);
    snprintf(out, 24, s < 1 ? "%.3f ms" : "%.1f s", s < 1 ? s * 1e3 : s);
    return out;
}

static void describe_on_device(struct buf *b, const struct segment_op *op, const char *what,
                               uint64_t now)
{
    char took[24];
    if (!op->end_ns && op->device == SEGMENT_OP_ENQUEUED)
        words_add(b, "in %s for %s: enqueued, the device has not begun it\n", what,
                  duration(took, op->start_ns, now));
    else if (!op->end_ns)
        words_add(b, "in %s for %s on the device\n", what, duration(took, op->start_ns, now));
    else
        words_add(b, "%s ended %.1f s ago, took %s on the device\n", what,
                  flight_seconds(op->end_ns, now), device_duration(took, op->start_ns, op->end_ns));
}

static void flight_describe(struct buf *b, const struct segment_op *op, uint64_t now)
{
    bool timed =
        op->device == SEGMENT_OP_BEGUN || (op->device == SEGMENT_OP_ENQUEUED && !op->end_ns);
    char what[96], took[24];
    int n = snprintf(what, sizeof(what), "%s #%llu", op->op, (unsigned long long)op->seq);
    if (op->dtype[0])
        n += snprintf(what + n, sizeof(what) - (size_t)n, " of %llu %s",
                      (unsigned long long)op->count, op->dtype);
    if (op->reduction[0])
        n += snprintf(what + n, sizeof(what) - (size_t)n, " (%s)", op->reduction);
    if (op->group_name[0])
        snprintf(what + n, sizeof(what) - (size_t)n, " in group %s", op->group_name);
    if (timed && op->result >= 0)
        describe_on_device(b, op, what, now);
    else if (!op->end_ns)
        words_add(b, "in %s for %s\n", what, duration(took, op->start_ns, now));
    else if (op->result < 0)
        words_add(b, "%s failed after %s\n", what, duration(took, op->start_ns, op->end_ns));
    else
        words_add(b, "%s ended %.1f s ago, took %s\n", what, flight_seconds(op->end_ns, now),
                  duration(took, op->start_ns, op->end_ns));
}

/* Returns when the last operation ended; 0 if one is in progress or the last one has failed. */
static uint64_t idle_since(const struct segment_op *ops, int n)
{
    uint64_t since = 0;
    if (ops[0].result < 0)
        return 0;
    for (int i = 0; i < n; i++) {
        if (!ops[i].end_ns)
            return 0;
        since = ops[i].end_ns > since ? ops[i].end_ns : since;
    }
    return since;
}

/* Writes at most `rows` lines: the operation that the worker is in, and below it the ones before.
 */
static void describe_worker(struct buf *b, const struct segment_local *l, int rank, int rows,
                            uint64_t now)
{
    struct segment_op ops[SEGMENT_OPS];
    char since[24];
    int n = last_operations(l, ops), next = 1;
    uint64_t idle = n ? idle_since(ops, n) : 0;
    words_add(b, "rank %d: ", rank);
    if (n == 0) {
        words_add(b, "started no operation\n");
    } else if (idle && rows > 1) {
        words_add(b, "not in any operation for %s\n", duration(since, idle, now));
        next = 0;
        rows--;
    } else {
        words_add(b, "%s", idle ? "not in any operation; " : "");
        flight_describe(b, &ops[0], now);
        rows--;
    }
    for (; next < n && rows > 0; next++, rows--) {
        words_add(b, "  ");
        flight_describe(b, &ops[next], now);
    }
}

/* Whether the operations explain a failure. */
static bool are_telling(const struct segment *s, uint64_t now)
{
    bool telling = false;
    for (int i = 0; i < s->nlocal; i++) {
        struct segment_op ops[SEGMENT_OPS];
        int n = last_operations(line_of(s, i), ops);
        telling = telling || is_telling(line_of(s, i), n ? &ops[0] : NULL, now);
    }
    return telling;
}

char *flight_report_text(const struct segment *s, int base_rank, uint64_t now_ns)
{
    struct buf b = BUF_INIT;
    if (s->fd < 0 || !are_telling(s, now_ns))
        return NULL;
    int workers = s->nlocal < ROWS ? s->nlocal : ROWS;
    int each = ROWS / workers < EACH ? ROWS / workers : EACH;
    for (int i = 0; i < workers; i++)
        describe_worker(&b, line_of(s, i), base_rank + i, each, now_ns);
    if (workers < s->nlocal)
        words_add(&b, "and %d more\n", s->nlocal - workers);
    return (char *)b.data; /* terminated */
}

bool flight_report_current(const struct segment *s, int local_rank, struct segment_op *out)
{
    struct segment_op ops[SEGMENT_OPS];
    int n = 0, at = 0;
    if (s->fd >= 0 && local_rank < s->nlocal)
        n = last_operations(line_of(s, local_rank), ops);
    for (int i = 1; i < n && ops[0].device != SEGMENT_OP_HOST; i++) {
        bool enqueued = ops[i].device == SEGMENT_OP_ENQUEUED;
        bool begun = !ops[at].end_ns && ops[at].device != SEGMENT_OP_ENQUEUED;
        if (ops[i].device != SEGMENT_OP_HOST && !ops[i].end_ns && !(enqueued && begun))
            at = i;
    }
    if (n)
        *out = ops[at];
    return n > 0;
}

void flight_report_operation(const struct segment *s, int local_rank, char *out, size_t cap)
{
    struct segment_op current;
    const struct segment_op *op = &current;
    out[0] = '\0';
    if (!flight_report_current(s, local_rank, &current))
        return;
    bool one_way = strcmp(op->op, "send") == 0 || strcmp(op->op, "recv") == 0;
    int n = snprintf(out, cap, "%s", op->op);
    if (op->dtype[0])
        n += snprintf(out + n, cap - (size_t)n, " of %llu %s", (unsigned long long)op->count,
                      op->dtype);
    if (op->reduction[0])
        n += snprintf(out + n, cap - (size_t)n, " (%s)", op->reduction);
    if (op->peer >= 0)
        n += snprintf(out + n, cap - (size_t)n, one_way ? " (rank %d)" : " (root %d)", op->peer);
    if (op->group_name[0] && (size_t)n < cap)
        snprintf(out + n, cap - (size_t)n, " in group %s", op->group_name);
}

int flight_operations(const struct segment *s, int local_rank, struct segment_op out[SEGMENT_OPS])
{
    return s->fd < 0 || local_rank >= s->nlocal ? 0 : last_operations(line_of(s, local_rank), out);
}

bool flight_has_hidden(const struct segment *s, int local_rank)
{
    return s->fd >= 0 && local_rank < s->nlocal &&
           atomic_load_explicit(&line_of(s, local_rank)->hidden, memory_order_relaxed) > 0;
}

uint64_t flight_operations_count(const struct segment *s, int local_rank)
{
    return atomic_load_explicit(&line_of(s, local_rank)->nops, memory_order_relaxed);
}
