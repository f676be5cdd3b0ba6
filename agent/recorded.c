#include "agent/recorded.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"

enum {
    LONG_MS = 5000, /* under way */
    LINE_MAX_BYTES = 160,
    ROWS = 32,
    ETIMEDOUT_CODE = -5, /* DLCOLL_ETIMEDOUT, DLCOLL_EMISMATCH */
    EMISMATCH_CODE = -8,
};

static const struct segment_local *line_of(const struct segment *s, int local_rank)
{
    return (const struct segment_local *)((const char *)s->header + s->off_local) + local_rank;
}

/* The last operation; false: there is none, or it is being written. Texts are terminated. */
static bool last_operation(const struct segment_local *l, struct segment_op *out)
{
    uint64_t n = atomic_load_explicit(&l->nops, memory_order_acquire);
    const struct segment_op *op = &l->ops[n % SEGMENT_OPS];
    if (n == 0 || atomic_load_explicit(&op->number, memory_order_acquire) != n)
        return false;
    memcpy(out, op, sizeof(*out));
    out->op[sizeof(out->op) - 1] = out->dtype[sizeof(out->dtype) - 1] = '\0';
    out->reduction[sizeof(out->reduction) - 1] = '\0';
    out->group_name[sizeof(out->group_name) - 1] = '\0';
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&op->number, memory_order_relaxed) == n;
}

static bool is_telling(const struct segment_local *l, const struct segment_op *op, uint64_t now)
{
    int code = atomic_load_explicit(&l->cause_code, memory_order_relaxed);
    bool failed = atomic_load_explicit(&l->state, memory_order_acquire) == SEGMENT_LOCAL_FAILED;
    if (failed && (code == ETIMEDOUT_CODE || code == EMISMATCH_CODE))
        return true;
    return op && !op->end_ns && now > op->start_ns && (now - op->start_ns) / 1000000 >= LONG_MS;
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0;
}

static void describe(char out[LINE_MAX_BYTES], int rank, const struct segment_op *op, uint64_t now)
{
    char what[96];
    int n = snprintf(what, sizeof(what), "%s #%llu", op->op, (unsigned long long)op->seq);
    if (op->dtype[0])
        n += snprintf(what + n, sizeof(what) - (size_t)n, " of %llu %s",
                      (unsigned long long)op->count, op->dtype);
    if (op->reduction[0])
        n += snprintf(what + n, sizeof(what) - (size_t)n, " (%s)", op->reduction);
    if (op->group_name[0])
        snprintf(what + n, sizeof(what) - (size_t)n, " in group %s", op->group_name);
    if (!op->end_ns)
        snprintf(out, LINE_MAX_BYTES, "rank %d: in %s for %.1f s", rank, what,
                 seconds(op->start_ns, now));
    else if (op->result < 0)
        snprintf(out, LINE_MAX_BYTES, "rank %d: %s failed after %.1f s", rank, what,
                 seconds(op->start_ns, op->end_ns));
    else
        snprintf(out, LINE_MAX_BYTES, "rank %d: in none; %s ended %.1f s ago", rank, what,
                 seconds(op->end_ns, now));
}

char *recorded_text(const struct segment *s, int base_rank, uint64_t now_ns)
{
    char *text = NULL;
    size_t len = 0;
    bool telling = false;
    if (s->fd < 0)
        return NULL;
    for (int i = 0; i < s->nlocal; i++) {
        struct segment_op op;
        bool any = last_operation(line_of(s, i), &op);
        telling = telling || is_telling(line_of(s, i), any ? &op : NULL, now_ns);
    }
    if (!telling)
        return NULL;
    int rows = s->nlocal < ROWS ? s->nlocal : ROWS;
    text = xmalloc((size_t)(rows + 1) * LINE_MAX_BYTES);
    for (int i = 0; i < rows; i++) {
        struct segment_op op;
        char line[LINE_MAX_BYTES];
        if (last_operation(line_of(s, i), &op))
            describe(line, base_rank + i, &op, now_ns);
        else
            snprintf(line, sizeof(line), "rank %d: has begun none", base_rank + i);
        len += (size_t)snprintf(text + len, LINE_MAX_BYTES, "%s\n", line);
    }
    if (rows < s->nlocal)
        snprintf(text + len, LINE_MAX_BYTES, "and %d more\n", s->nlocal - rows);
    return text;
}
