#include "collectives/perform/choose.h"

#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/comm/provider.h"
#include "collectives/hier/hier.h"
#include "collectives/net/net.h"
#include "collectives/shm/provider.h"

const struct coll_provider *const g_providers[] = {&shm_provider, &hier_provider, &net_provider,
                                                   NULL};

static const struct coll_provider *provider_find(const char *name)
{
    const struct coll_provider *const *p = g_providers;
    while (*p && strcmp((*p)->name, name))
        p++;
    return *p;
}

const struct coll_provider *provider_choose(const struct coll_call *c)
{
    const struct algo_select *table = &c->comm->job->algo_select;
    if (table->n) {
        struct algo_key key = comm_algo_key(c);
        const struct algo_rule *r;
        for (size_t at = 0; (r = algo_select_next(table, &key, NULL, &at));) {
            const struct coll_provider *p = provider_find(r->provider);
            if (p && p->can(c))
                return p;
        }
    }
    for (const struct coll_provider *const *p = g_providers;; p++) {
        if (!p[1] || (*p)->can(c))
            return *p;
    }
}

int provider_run_step(struct coll_call *whole, struct coll_call *step)
{
    int r = provider_choose(step)->run(step);
    whole->may_repeat = step->may_repeat;
    whole->algo = step->algo;
    return r;
}
