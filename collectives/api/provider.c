#include "collectives/api/provider.h"

#include <string.h>

#include "collectives/api/choice.h"
#include "collectives/api/comm.h"

const struct coll_provider *const g_providers[] = {&shm_provider, &hier_provider, &net_provider};
const size_t g_nproviders = sizeof(g_providers) / sizeof(g_providers[0]);

static const struct coll_provider *find(const char *name)
{
    for (size_t i = 0; i < g_nproviders; i++) {
        if (strcmp(g_providers[i]->name, name) == 0)
            return g_providers[i];
    }
    return NULL;
}

const struct coll_provider *provider_choose(const struct coll_call *c)
{
    const struct choice *table = &c->comm->job->choice;
    if (table->n) {
        struct choice_key key = choice_key(c);
        const struct choice_rule *r;
        for (size_t at = 0; (r = choice_next(table, &key, NULL, &at));) {
            const struct coll_provider *p = find(r->provider);
            if (p && p->can(c))
                return p;
        }
    }
    for (size_t i = 0;; i++) {
        if (i == g_nproviders - 1 || g_providers[i]->can(c))
            return g_providers[i];
    }
}
