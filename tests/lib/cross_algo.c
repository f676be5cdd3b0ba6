/* cross_algo.c: the ways in which operations can be forced, and whether they have been. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/algo_select.h"
#include "collectives/comm/comm.h"
#include "collectives/hier/hier.h"
#include "collectives/net/net.h"
#include "collectives/shm/inline_msg.h"
#include "core/mem.h"
#include "tests/lib/cross.h"

/* ----------------------------------------------------------------------------------------- ways */

#define KB   ((size_t)1024)
#define MOST ((size_t)1 << 40) /* of bytes that go a way: all */

/* Everything goes in small pieces, and the way that these do not say. */
#define MEMORY(inlined_, flat_, direct_, pull_, compare_)                                         \
    {                                                                                             \
        .inlined = inlined_, .flat = flat_, .direct = direct_, .direct_stream = 256,              \
        .pull = pull_, .pull_shared = pull_, .pull_crowded = pull_, .pull_crowded_shared = pull_, \
        .compare = compare_, .piece_few = 512, .piece_many = 256, .piece_move = 1024,             \
        .chunk_move = 2048, .chunk_reduce = 2048                                                  \
    }

static const struct {
    struct shm_tuning tuning;
    bool shared;
} g_memory[] = {
    {MEMORY(INLINE_MSG_MOST, MOST, MOST, MOST, MOST), false}, /* as little as fits: lines */
    {MEMORY(0, MOST, MOST, MOST, MOST), false},               /* flat */
    {MEMORY(0, 0, MOST, MOST, MOST), false},                  /* slices */
    {MEMORY(0, 0, 0, MOST, MOST), true},                      /* direct */
    {MEMORY(0, MOST, MOST, 0, MOST), false},                  /* pull */
    {MEMORY(0, MOST, MOST, 0, MOST), true},                   /* likewise from shared memory */
    {MEMORY(INLINE_MSG_MOST, 8192, 512, 512, 512), true},     /* as timed; and in turn */
    {{0}, false},                                             /* as the library has it */
    {{0}, true},
};
enum { MEMORIES = sizeof(g_memory) / sizeof(g_memory[0]), ALGOS = 7, OWN_MEMORY = MEMORIES - 2 };

static const struct shm_tuning g_small_pieces = MEMORY(INLINE_MSG_MOST, 8192, 4096, MOST, MOST);

bool cross_way(struct cross_way *way, enum cross_transport transport, int k)
{
    static const size_t edges[3][CROSS_EDGES] = {
        [CROSS_TCP] = {2 * KB, 16 * KB, 128 * KB, 256 * KB, 512 * KB, 512 * KB | CROSS_EACH},
        [CROSS_SHM] = {64, 256, 512, 1 * KB, 2 * KB, 4 * KB},
        [CROSS_HIER] = {256, 512, 2 * KB, 16 * KB, 128 * KB, 512 * KB}};
    static const size_t own[CROSS_EDGES] = {64, 2 * KB, 32 * KB, 64 * KB, 256 * KB, 1024 * KB};
    static struct shm_tuning library;
    if (!library.inlined)
        library = shm_tuning;
    *way = (struct cross_way){.transport = transport, .index = k, .algo = -1, .memory = library};
    memcpy(way->edges, edges[transport], sizeof(way->edges));
    switch (transport) {
    case CROSS_TCP:
        way->algo = k < ALGOS ? k : -1;
        return k <= ALGOS;
    case CROSS_HIER:
        way->algo = k / 2 < ALGOS ? k / 2 : -1;
        way->lanes = k % 2;
        way->memory = g_small_pieces;
        return k < 2 * (ALGOS + 1);
    default:
        if (k >= MEMORIES)
            return false;
        way->shared = g_memory[k].shared;
        way->as_it_is = k >= OWN_MEMORY;
        if (k < OWN_MEMORY)
            way->memory = g_memory[k].tuning;
        else
            memcpy(way->edges, own, sizeof(own));
        return true;
    }
}

void cross_way_mixed(struct cross_way *way)
{
    cross_way(way, CROSS_SHM, 0);
    way->index = MEMORIES;
    way->shared = way->mixed = true;
    way->memory = (struct shm_tuning)MEMORY(INLINE_MSG_MOST, MOST, 0, 0, 0);
}

const struct algo *cross_algo(enum call_kind kind, int k)
{
    for (size_t i = 0; i < g_nalgos && k >= 0; i++) {
        if (g_algos[i].kind == algo_select_plain_kind(kind) &&
            strcmp(g_algos[i].name, "self") != 0 && k-- == 0)
            return &g_algos[i];
    }
    return NULL;
}

static enum call_kind plain(enum call_kind kind)
{
    return kind == CALL_ALL_REDUCE_COALESCED ? CALL_ALL_REDUCE : algo_select_plain_kind(kind);
}

bool cross_way_has(const struct cross_way *way, enum call_kind kind)
{
    bool sums = kind == CALL_ALL_REDUCE_COALESCED || plain(kind) == CALL_ALL_REDUCE ||
                plain(kind) == CALL_REDUCE;
    if (kind == CALL_BATCH)
        return way->algo <= 0 && !way->lanes;
    if (way->algo >= 0)
        return cross_algo(plain(kind), way->algo);
    if (way->mixed)
        return true;
    if (way->transport == CROSS_SHM && way->memory.flat == 0)
        return sums || (way->shared && plain(kind) == CALL_REDUCE_SCATTER);
    if (way->transport == CROSS_SHM && way->memory.pull == 0)
        return plain(kind) == CALL_REDUCE || (!sums && plain(kind) != CALL_REDUCE_SCATTER);
    return true;
}

void cross_way_set(const struct cross_way *way)
{
    static const char *const first[] = {"", "*:shm;", "*:hier;"};
    char rules[1024];
    size_t at = (size_t)snprintf(rules, sizeof(rules), "%s", first[way->transport]);
    for (int kind = 0; kind < CALL_KINDS; kind++) {
        const struct algo *a = cross_algo(kind, way->algo);
        if (a && a->kind == (enum call_kind)kind)
            at += (size_t)snprintf(rules + at, sizeof(rules) - at, "%s:net/%s;", call_name(kind),
                                   a->name);
    }
    setenv("DLCOLL_SHM", way->transport == CROSS_TCP ? "0" : "1", 1);
    setenv("DLCOLL_ALGO", rules, 1);
    shm_tuning = way->memory;
    hier_tuning.lanes = way->lanes ? 0 : MOST;
}

/* ------------------------------------------------------------------------------------- what ran */

/* The network carries nothing of an operation without elements, as far as a rank can tell. */
static bool has_elements(const struct cross *x, const struct cross_case *c)
{
    size_t own = (3 * (size_t)x->me + 1) % 4 * c->count;
    switch (c->kind) {
    case CALL_GATHER_V:
    case CALL_SCATTER_V:
        return own || x->me == c->root;
    case CALL_ALL_TO_ALL_V:
    case CALL_BARRIER:
        return true;
    case CALL_ALL_GATHER_V:
    case CALL_REDUCE_SCATTER_V: /* of all ranks together: rank 0 has some */
    default:
        return c->count;
    }
}

/* Checks the algorithm of an operation over the network between `size` ranks. True: the forced
 * algorithm has run. */
static bool check_net(const struct cross *x, const struct cross_case *c, int size, bool uneven)
{
    const struct algo *ran = x->comm->net->algo, *forced = cross_algo(plain(c->kind), x->way->algo);
    struct coll any = {
        .kind = plain(c->kind), .size = size, .ordered = c->op == CROSS_ORDERED, .uneven = uneven};
    if (!algo_allows(ran, &any))
        cross_complain(x, c, "%s of %s has run, which is not allowed", ran->name,
                       call_name((int)ran->kind));
    bool allowed = forced && algo_allows(forced, &any);
    if (allowed && ran != forced)
        cross_complain(x, c, "%s has run, not %s, which is forced", ran->name, forced->name);
    return allowed || x->way->algo < 0;
}

static bool is_uneven(enum call_kind kind)
{
    return plain(kind) != kind && kind != CALL_ALL_REDUCE_COALESCED;
}

/* Everything over the network. */
static bool check_tcp(const struct cross *x, const struct cross_case *c)
{
    const char *ran = x->comm->algo;
    if (!has_elements(x, c)) {
        if (ran)
            cross_complain(x, c, "something has run");
        return false;
    }
    if (!ran || !x->comm->net->algo || strcmp(ran, x->comm->net->algo->name) != 0)
        cross_complain(x, c, "it has not gone over the network");
    bool forced = check_net(x, c, x->n, is_uneven(c->kind));
    if (x->me == 0)
        cross_count(c->kind, "net/", ran);
    return forced;
}

/* hier.c's, by what it says of itself. */
static bool is_hier_for(const struct cross *x, enum call_kind kind)
{
    bool even = x->comm->topo.least_local == x->comm->topo.most_local;
    switch (kind) {
    case CALL_ALL_GATHER:
    case CALL_REDUCE_SCATTER:
        return even;
    case CALL_GATHER:
    case CALL_SCATTER:
        return false;
    default:
        return kind == CALL_ALL_TO_ALL_V || !is_uneven(kind);
    }
}

static bool check_hier(const struct cross *x, const struct cross_case *c)
{
    const struct topology *topo = &x->comm->topo;
    const char *want = x->way->lanes ? "lanes" : "leaders", *ran = x->comm->algo;
    enum call_kind kind = plain(c->kind);
    if (topo->most_local < 2 || !is_hier_for(x, c->kind))
        return check_tcp(x, c);
    if (!has_elements(x, c))
        return false;
    if (!ran || strcmp(ran, want) != 0)
        cross_complain(x, c, "it has not gone by %s", want);
    /* The first on each node is in it, if anybody is. */
    bool all = kind == CALL_ALL_TO_ALL || kind == CALL_ALL_GATHER || kind == CALL_REDUCE_SCATTER;
    if (!x->comm->net->algo && (all || topo->local == 0))
        cross_complain(x, c, "nothing has gone between nodes");
    if (!x->comm->net->algo)
        return false;
    bool forced = check_net(x, c, kind == CALL_ALL_TO_ALL ? x->n : topo->nnodes,
                            kind == CALL_ALL_TO_ALL || kind == CALL_ALL_GATHER);
    if (x->me == 0) {
        char name[40];
        snprintf(name, sizeof(name), "%s, %s", want, x->comm->net->algo->name);
        cross_count(c->kind, "hier/", name);
    }
    return forced;
}

/* The names of the ways through memory that an operation may go. */
static const char *memory_ways(const struct cross *x, const struct cross_case *c)
{
    const struct shm_tuning *t = &x->way->memory;
    enum call_kind kind = c->kind == CALL_ALL_REDUCE_COALESCED ? CALL_ALL_REDUCE : c->kind;
    size_t n = (size_t)x->n, len = c->count * x->v.size, total = n * len;
    struct coll_call call = {.kind = kind, .count = c->count, .elem = x->v.size};
    bool reads = x->way->shared && c->op != CROSS_PREMUL;
    if (x->way->mixed)
        return " inline flat slices direct pull ";
    if (kind == CALL_REDUCE_SCATTER_V) {
        total = 0;
        for (size_t i = 0; i < n; i++)
            total += (3 * i + 1) % 4 * len;
    }
    if (inline_msg_bytes(x->comm->shm, &call) <= t->inlined)
        return " inline ";
    switch (kind) {
    case CALL_ALL_REDUCE:
        return reads && len >= t->direct ? " direct " : total <= t->flat ? " flat " : " slices ";
    case CALL_REDUCE:
        if (reads && len >= t->direct)
            return " direct ";
        return n == 2 ? " flat pull " : total > t->flat ? " slices " : " flat ";
    case CALL_REDUCE_SCATTER:
    case CALL_REDUCE_SCATTER_V:
        return reads && total >= t->direct ? " direct " : " flat ";
    default: /* who has something to offer decides, and may find that it cannot */
        return t->pull_crowded_shared == MOST ? " flat " : " flat pull ";
    }
}

static bool check_memory(const struct cross *x, const struct cross_case *c)
{
    char name[20];
    if (!x->comm->shm)
        return check_tcp(x, c);
    bool v = c->kind == CALL_GATHER_V || c->kind == CALL_SCATTER_V; /* the ranks cannot tell */
    if (!v && !has_elements(x, c))
        return false;
    if (!x->comm->algo || x->comm->net->algo)
        cross_complain(x, c, "it has not gone through memory");
    snprintf(name, sizeof(name), " %s ", x->comm->algo);
    /* The record has only the way of the last buffer, which may be shorter than others. */
    const char *ways =
        c->kind == CALL_ALL_REDUCE_COALESCED ? " inline flat slices direct " : memory_ways(x, c);
    if (!strstr(ways, name))
        cross_complain(x, c, "it has gone by %s, not%s", x->comm->algo, ways);
    if (x->me == c->root % x->n)
        cross_count(c->kind, "shm/", x->comm->algo);
    return true;
}

void cross_check_algo(const struct cross *x, const struct cross_case *c)
{
    bool forced = true;
    if (c->kind != CALL_BATCH)
        forced = x->way->transport == CROSS_TCP   ? check_tcp(x, c)
                 : x->way->transport == CROSS_SHM ? check_memory(x, c)
                                                  : check_hier(x, c);
    else if (x->me == 0)
        cross_count(c->kind, "", "messages");
    if (x->me == 0 && c->kind != CALL_BARRIER)
        cross_see(x, c, forced);
}
