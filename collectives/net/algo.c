#include "collectives/net/algo.h"

enum { ANY = INT_MAX };

/* No built-in rule selects all_reduce/flat and barrier/flat, which send the fewest messages. Rules
 * of DLCOLL_ALGO and DLCOLL_TUNE_FILE may: dlcoll_tune has measured each to be the fastest at
 * times, with 4 and 8 ranks that share 2 CPUs. */
/* clang-format off */
const struct algo g_algos[] = {
    /* kind, name, ranks from, to, a power of two, any order, regular, function */
    {CALL_ALL_REDUCE, "self", 1, 1, false, false, false, build_self},
    {CALL_ALL_REDUCE, "pair", 2, 2, false, false, false, build_all_reduce_pair},
    {CALL_ALL_REDUCE, "flat", 2, ANY, false, false, false, build_all_reduce_flat},
    {CALL_ALL_REDUCE, "doubling", 2, ANY, false, false, false, build_all_reduce_doubling},
    {CALL_ALL_REDUCE, "direct", 2, ANY, false, false, false, build_all_reduce_direct},
    {CALL_ALL_REDUCE, "halving", 2, ANY, false, false, false, build_all_reduce_halving},
    {CALL_ALL_REDUCE, "tree", 2, ANY, false, false, false, build_all_reduce_tree},
    {CALL_ALL_REDUCE, "ring", 2, ANY, false, true, false, build_all_reduce_ring},

    {CALL_REDUCE, "self", 1, 1, false, false, false, build_self},
    {CALL_REDUCE, "flat", 2, ANY, false, false, false, build_reduce_flat},
    {CALL_REDUCE, "tree", 2, ANY, false, true, false, build_reduce_tree},
    {CALL_REDUCE, "chain", 2, ANY, false, true, false, build_reduce_chain},
    {CALL_REDUCE, "ring", 2, ANY, false, true, false, build_reduce_ring},

    {CALL_REDUCE_SCATTER, "self", 1, 1, false, false, false, build_self},
    {CALL_REDUCE_SCATTER, "direct", 2, ANY, false, false, false, build_reduce_scatter_direct},
    {CALL_REDUCE_SCATTER, "halving", 2, ANY, true, true, true, build_reduce_scatter_halving},
    {CALL_REDUCE_SCATTER, "pairwise", 2, ANY, false, true, false, build_reduce_scatter_pairwise},

    {CALL_BROADCAST, "self", 1, 1, false, false, false, build_self},
    {CALL_BROADCAST, "flat", 2, ANY, false, false, false, build_broadcast_flat},
    {CALL_BROADCAST, "binomial", 2, ANY, false, false, false, build_broadcast_binomial},
    {CALL_BROADCAST, "chain", 2, ANY, false, false, false, build_broadcast_chain},

    {CALL_GATHER, "direct", 1, ANY, false, false, false, build_gather_direct},
    {CALL_GATHER, "binomial", 2, ANY, false, false, true, build_gather_binomial},
    {CALL_SCATTER, "direct", 1, ANY, false, false, false, build_scatter_direct},
    {CALL_SCATTER, "binomial", 2, ANY, false, false, true, build_scatter_binomial},

    {CALL_ALL_GATHER, "direct", 1, ANY, false, false, false, build_all_gather_direct},
    {CALL_ALL_GATHER, "bruck", 2, ANY, false, false, true, build_all_gather_bruck},
    {CALL_ALL_GATHER, "doubling", 2, ANY, true, false, true, build_all_gather_doubling},
    {CALL_ALL_GATHER, "ring", 2, ANY, false, false, false, build_all_gather_ring},

    {CALL_ALL_TO_ALL, "direct", 1, ANY, false, false, false, build_all_to_all_direct},
    {CALL_ALL_TO_ALL, "pairwise", 2, ANY, false, false, false, build_all_to_all_pairwise},
    {CALL_ALL_TO_ALL, "bruck", 2, ANY, false, false, true, build_all_to_all_bruck},

    {CALL_SCAN, "self", 1, 1, false, false, false, build_self},
    {CALL_SCAN, "doubling", 2, ANY, false, false, false, build_scan_doubling},
    {CALL_SCAN, "chain", 2, ANY, false, false, false, build_scan_chain},
    {CALL_EXSCAN, "self", 1, 1, false, false, false, build_nothing},
    {CALL_EXSCAN, "doubling", 2, ANY, false, false, false, build_exscan_doubling},
    {CALL_EXSCAN, "chain", 2, ANY, false, false, false, build_exscan_chain},

    {CALL_BARRIER, "dissemination", 1, ANY, false, false, false, build_barrier_dissemination},
    {CALL_BARRIER, "flat", 2, ANY, false, false, false, build_barrier_flat},
};
/* clang-format on */
const size_t g_nalgos = sizeof(g_algos) / sizeof(g_algos[0]);

/* One rank: the result is its own contribution. */
void build_self(struct schedule *s, const struct coll *c)
{
    schedule_copy(s, out(0), in(0), c->count * c->elem);
    schedule_end_step(s);
}

bool algo_allows(const struct algo *a, const struct coll *c)
{
    return a->kind == c->kind && c->size >= a->min_size && c->size <= a->max_size &&
           !(a->power_of_two && (c->size & (c->size - 1))) && !(a->any_order && c->ordered) &&
           !(a->regular && c->uneven);
}

const struct algo *algo_any(const struct coll *c)
{
    size_t i = 0;
    while (!algo_allows(&g_algos[i], c))
        i++; /* every kind has one without restrictions */
    return &g_algos[i];
}
