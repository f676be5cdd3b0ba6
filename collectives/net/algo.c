#include "collectives/net/algo.h"

#include <limits.h>

enum { KB = 1024, ANY = INT_MAX };

const struct algo g_algos[] = {
    /* kind, name, ranks from, to, any order, preferred up to, function */
    {CALL_ALL_REDUCE, "self", 1, 1, false, SIZE_MAX, build_all_reduce_self},
    {CALL_ALL_REDUCE, "pair", 2, 2, false, 256 * KB, build_all_reduce_pair},
    {CALL_ALL_REDUCE, "doubling", 2, ANY, false, 64 * KB, build_all_reduce_doubling},
    {CALL_ALL_REDUCE, "ring", 2, ANY, true, SIZE_MAX, build_all_reduce_ring},
    {CALL_BROADCAST, "binomial", 1, ANY, false, SIZE_MAX, build_broadcast_binomial},
    {CALL_BARRIER, "dissemination", 1, ANY, false, SIZE_MAX, build_barrier_dissemination},
};
const size_t g_nalgos = sizeof(g_algos) / sizeof(g_algos[0]);

bool algo_allows(const struct algo *a, const struct coll *c)
{
    return a->kind == c->kind && c->size >= a->min_size && c->size <= a->max_size;
}

const struct algo *algo_choose(const struct coll *c)
{
    for (size_t i = 0;; i++) {
        const struct algo *a = &g_algos[i];
        if (algo_allows(a, c) && c->count * c->elem <= a->max_bytes)
            return a;
    }
}
