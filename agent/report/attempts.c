#include "agent/report/attempts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

void attempts_begin(struct attempts *a, const struct rank_table *t, int group_rank,
                    const char *log_dir, uint64_t wall_ns)
{
    if (!a->e)
        a->e = xcalloc(ATTEMPTS_MAX, sizeof(*a->e));
    if (a->n == ATTEMPTS_MAX) {
        free(a->e[0].first);
        memmove(a->e, a->e + 1, --a->n * sizeof(*a->e));
        a->omitted++;
    }
    struct attempt *e = &a->e[a->n++];
    *e = (struct attempt){.restart_count = t->restart_count,
                          .round = t->gen.counter,
                          .start_wall_ns = wall_ns,
                          .nnodes = t->nnodes,
                          .world_size = t->world_size,
                          .base_rank = t->nodes[group_rank].base_rank,
                          .nproc = t->nodes[group_rank].nproc};
    snprintf(e->log_dir, sizeof(e->log_dir), "%s", log_dir);
}

struct attempt *attempts_current(struct attempts *a)
{
    struct attempt *e = a->n ? &a->e[a->n - 1] : NULL;
    return e && !e->end_wall_ns ? e : NULL;
}

void attempts_cause(struct attempts *a, enum cause cause, const char *text,
                    const struct failure *first)
{
    struct attempt *e = a->n ? &a->e[a->n - 1] : NULL;
    if (!e)
        return;
    e->cause = cause;
    snprintf(e->text, sizeof(e->text), "%s", text);
    if (!first)
        return;
    if (!e->first)
        e->first = xmalloc(sizeof(*e->first));
    *e->first = *first;
}

void attempts_end(struct attempts *a, uint64_t wall_ns)
{
    struct attempt *e = attempts_current(a);
    if (e)
        e->end_wall_ns = wall_ns;
}

void attempts_fini(struct attempts *a)
{
    for (size_t i = 0; i < a->n; i++)
        free(a->e[i].first);
    free(a->e);
}
