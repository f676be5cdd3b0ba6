#include "rendezvous/rules/failure_log.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/rdzv_types.h"

#define KEEP RDZV_REPORT_MAX

static struct failure *find(const struct failure_log *l, const struct failure *f)
{
    for (size_t i = 0; i < l->n; i++) {
        if (l->f[i].rank == f->rank && (f->rank >= 0 || l->f[i].node == f->node))
            return &l->f[i];
    }
    return NULL;
}

void failure_log_add(struct failure_log *l, const struct failure *f)
{
    struct failure *old = find(l, f);
    if (old) {
        if (f->kind != FAILURE_STOPPED || old->kind == FAILURE_STOPPED)
            *old = *f;
        return;
    }
    if (l->n == 2 * KEEP)
        failure_log_sort(l, KEEP);
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 4;
        l->f = xrealloc(l->f, l->cap * sizeof(*l->f));
    }
    l->f[l->n++] = *f;
}

void failure_log_forget(struct failure_log *l, int rank)
{
    for (size_t i = 0; i < l->n; i++) {
        if (l->f[i].rank == rank) {
            l->f[i] = l->f[--l->n];
            return;
        }
    }
}

void failure_log_clear(struct failure_log *l)
{
    free(l->f);
    *l = (struct failure_log){0};
}

const struct failure *failure_log_first(const struct failure_log *l)
{
    if (l->n == 0)
        return NULL;
    const struct failure *first = &l->f[failure_first(l->f, l->n)];
    return first->kind == FAILURE_STOPPED ? NULL : first;
}

bool failure_log_knows(const struct failure_log *l, int rank)
{
    for (size_t i = 0; i < l->n; i++) {
        if (l->f[i].rank == rank)
            return l->f[i].kind != FAILURE_STOPPED;
    }
    return false;
}

void failure_log_sort(struct failure_log *l, size_t max)
{
    if (l->n == 0)
        return;
    size_t keep = l->n < max ? l->n : max;
    size_t *order = xcalloc(l->n, sizeof(*order));
    struct failure *sorted = xcalloc(l->cap, sizeof(*sorted));
    failure_order(l->f, l->n, order);
    for (size_t i = 0; i < keep; i++)
        sorted[i] = l->f[order[i]];
    free(order);
    free(l->f);
    l->f = sorted;
    l->n = keep;
}
