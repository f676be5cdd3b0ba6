#include "collectives/api/provider.h"

#include <string.h>

#include "collectives/api/algo_select.h"
#include "collectives/api/comm.h"

const struct coll_provider *const g_providers[ALGO_PROVIDER_PROVIDERS] = {
    [ALGO_PROVIDER_SHM] = &shm_provider,
    [ALGO_PROVIDER_HIER] = &hier_provider,
    [ALGO_PROVIDER_NET] = &net_provider,
};
const size_t g_nproviders = sizeof(g_providers) / sizeof(g_providers[0]);

static size_t average(const size_t *counts, int n)
{
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum / (size_t)n;
}

struct algo_key provider_key(const struct coll_call *c)
{
    const size_t *counts = c->kind == CALL_ALL_GATHER_V       ? c->recv_parts.counts
                           : c->kind == CALL_REDUCE_SCATTER_V ? c->send_parts.counts
                                                              : NULL;
    size_t count = counts ? average(counts, c->ranks.size) : c->count;
    /* The _v kinds whose counts not all ranks know are selected as 0 bytes. */
    bool unknown =
        c->kind == CALL_GATHER_V || c->kind == CALL_SCATTER_V || c->kind == CALL_ALL_TO_ALL_V;
    return (struct algo_key){.kind = algo_select_plain_kind(c->kind),
                             .ranks = c->ranks.size,
                             .nodes = c->comm->topo.nnodes,
                             .bytes = unknown ? 0 : count * c->elem};
}

static const struct coll_provider *provider_find(const char *name)
{
    for (size_t i = 0; i < g_nproviders; i++) {
        if (strcmp(g_providers[i]->name, name) == 0)
            return g_providers[i];
    }
    return NULL;
}

const struct coll_provider *provider_choose(const struct coll_call *c)
{
    const struct algo_select *table = &c->comm->job->algo_select;
    if (table->n) {
        struct algo_key key = provider_key(c);
        const struct algo_rule *r;
        for (size_t at = 0; (r = algo_select_next(table, &key, NULL, &at));) {
            const struct coll_provider *p = provider_find(r->provider);
            if (p && p->can(c))
                return p;
        }
    }
    for (size_t i = 0;; i++) {
        if (i == g_nproviders - 1 || g_providers[i]->can(c))
            return g_providers[i];
    }
}

int provider_run_step(struct coll_call *whole, struct coll_call *step)
{
    int r = provider_choose(step)->run(step);
    whole->culprit = step->culprit;
    whole->theirs = step->theirs;
    whole->err = step->err;
    whole->may_repeat = step->may_repeat;
    whole->algo = step->algo;
    return r;
}
