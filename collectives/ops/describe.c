/* describe.c: what a communicator is doing and why, for people. Who carries out an operation, and
 * how, is not said from the rules but asked of those who choose, for every size at which a rule
 * begins or ends. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "collectives/comm/algo_select.h"
#include "collectives/comm/comm.h"
#include "collectives/hier/hier.h"
#include "collectives/net/algo.h"
#include "collectives/net/net.h"
#include "collectives/comm/provider.h"
#include "collectives/perform/choose.h"
#include "collectives/shm/provider.h"
#include "collectives/reduce/reduce.h"
#include "collectives/shm/tuning.h"

struct text {
    char *out;
    size_t size, len;
};

__attribute__((format(printf, 2, 3))) static void put(struct text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->out + (t->len < t->size ? t->len : t->size),
                      t->len < t->size ? t->size - t->len : 0, fmt, ap);
    va_end(ap);
    t->len += n > 0 ? (size_t)n : 0;
}

/* -------------------------------------------------------------------------------- who does what */

enum { WAY_MAX = 32, LINE_MAX_BYTES = 240 };

static const enum call_kind g_kinds[] = {
    CALL_ALL_REDUCE,       CALL_REDUCE,       CALL_BROADCAST,      CALL_ALL_GATHER,
    CALL_GATHER,           CALL_SCATTER,      CALL_REDUCE_SCATTER, CALL_ALL_TO_ALL,
    CALL_BARRIER,          CALL_GATHER_V,     CALL_ALL_GATHER_V,   CALL_SCATTER_V,
    CALL_REDUCE_SCATTER_V, CALL_ALL_TO_ALL_V, CALL_SCAN,           CALL_EXSCAN};
enum { KINDS = sizeof(g_kinds) / sizeof(g_kinds[0]) };

/* An operation of so many bytes, of which nothing but the choice is asked. */
static struct coll_call imagine(const dlcoll_comm *c, enum call_kind kind, size_t bytes)
{
    return (struct coll_call){.sig.kind = (uint8_t)kind,
                              .kind = kind,
                              .comm = (dlcoll_comm *)c,
                              .ranks = {.size = c->size, .me = c->rank},
                              .count = bytes,
                              .elem = 1};
}

/* "shm", "hier/lanes", "net/ring". */
static void name_way(const struct coll_provider *p, const struct coll_call *call, char way[WAY_MAX])
{
    const char *algo = p == &net_provider    ? net_algo(call)
                       : p == &hier_provider ? hier_algo(call)
                                             : NULL;
    snprintf(way, WAY_MAX, "%s%s%s", p->name, algo ? "/" : "", algo ? algo : "");
}

/* Describes the way of all ranks; or that of the ranks of one lane between the nodes. */
static void describe_way(const dlcoll_comm *c, enum call_kind kind, size_t bytes, bool between,
                         char way[WAY_MAX])
{
    struct coll_call call = imagine(c, kind, bytes);
    if (between)
        call.ranks = (struct coll_ranks){.size = c->topo.nnodes, .me = c->topo.node};
    name_way(between ? &net_provider : provider_choose(&call), &call, way);
}

static void take_lower(size_t *lowest, size_t candidate, size_t after)
{
    if (candidate > after && candidate < *lowest)
        *lowest = candidate;
}

/* The next size at which the choice may be another one; SIZE_MAX: there is none. */
static size_t next_size(const dlcoll_comm *c, size_t after)
{
    size_t nbuiltin, lowest = SIZE_MAX;
    const struct algo_select *given = &c->job->algo_select;
    const struct algo_rule *builtin = algo_select_builtin(&nbuiltin);
    for (size_t i = 0; i < given->n + nbuiltin; i++) {
        const struct algo_rule *r = i < given->n ? &given->rules[i] : &builtin[i - given->n];
        take_lower(&lowest, r->bytes_from, after);
        if (r->bytes_to < SIZE_MAX)
            take_lower(&lowest, r->bytes_to + 1, after);
    }
    take_lower(&lowest, hier_tuning.lanes, after);
    return lowest;
}

static void format_size(size_t bytes, char *out, size_t size)
{
    if (bytes && bytes % (1024 * 1024) == 0)
        snprintf(out, size, "%zum", bytes / 1024 / 1024);
    else if (bytes && bytes % 1024 == 0)
        snprintf(out, size, "%zuk", bytes / 1024);
    else
        snprintf(out, size, "%zu", bytes);
}

/* "net/pair to 128k, net/direct below 512k, then net/ring". */
static void find_ways(const dlcoll_comm *c, enum call_kind kind, bool between,
                      char out[LINE_MAX_BYTES])
{
    char way[WAY_MAX], next[WAY_MAX], end[24];
    size_t at = 0, len = 0;
    describe_way(c, kind, 0, between, way);
    while ((at = next_size(c, at)) < SIZE_MAX && len < LINE_MAX_BYTES) {
        describe_way(c, kind, at, between, next);
        if (strcmp(way, next) == 0)
            continue;
        bool below = at % 1024 == 0;
        format_size(below ? at : at - 1, end, sizeof(end));
        len += (size_t)snprintf(out + len, LINE_MAX_BYTES - len, "%s %s %s, ", way,
                                below ? "below" : "to", end);
        memcpy(way, next, sizeof(way));
    }
    if (len < LINE_MAX_BYTES)
        len += (size_t)snprintf(out + len, LINE_MAX_BYTES - len, "%s%s", len ? "then " : "", way);
    if (len >= LINE_MAX_BYTES)
        memcpy(out + LINE_MAX_BYTES - 4, "...", 4);
}

/* Kinds with equal texts share a line. ways[i] "": the kind is not listed. */
static void put_ways(struct text *t, const char *before, char ways[KINDS][LINE_MAX_BYTES])
{
    for (size_t i = 0; i < KINDS; i++) {
        size_t alike = 0;
        for (size_t k = 0; k < i; k++)
            alike += strcmp(ways[k], ways[i]) == 0;
        if (!ways[i][0] || alike)
            continue;
        for (size_t k = i; k < KINDS; k++)
            alike += strcmp(ways[k], ways[i]) == 0;
        put(t, "%s", before);
        for (size_t k = i; k < KINDS && alike < KINDS; k++) {
            if (strcmp(ways[k], ways[i]) == 0)
                put(t, "%s%s", k > i ? ", " : "", call_name(g_kinds[k]));
        }
        put(t, "%s: %s\n", alike < KINDS ? "" : "all operations", ways[i]);
    }
}

static bool uses(char ways[KINDS][LINE_MAX_BYTES], const struct coll_provider *p)
{
    for (size_t i = 0; i < KINDS; i++) {
        if (strstr(ways[i], p->name))
            return true;
    }
    return false;
}

/* Lists what each provider is not used for, and why. */
static void put_providers(struct text *t, const dlcoll_comm *c, char ways[KINDS][LINE_MAX_BYTES])
{
    const struct topology *topo = &c->topo;
    const char *given = c->job->algo_select.n ? "the given rules have others" : "", *why = given;
    bool shm = uses(ways, &shm_provider), hier = uses(ways, &hier_provider);
    if (topo->nnodes > 1)
        why = hier ? "only inside hier: the ranks are on several nodes"
                   : "the ranks are on several nodes";
    else if (!c->shm)
        why = c->size == 1 ? "there is one rank" : "no memory is shared";
    put(t, "provider shm: %s\n", shm ? "used" : why);
    put(t, "provider hier: %s\n", hier ? "used" : hier_why_not(c) ? hier_why_not(c) : given);
    if (hier && topo->least_local != topo->most_local)
        put(t, "provider hier: not for all_gather, reduce_scatter: nodes have different numbers of "
               "ranks\n");
    else if (hier && !topo->contiguous)
        put(t, "provider hier: not for reduce_scatter: the ranks of a node do not follow each "
               "other\n");
    put(t, "provider net: %s\n",
        uses(ways, &net_provider) ? "used"
        : hier                    ? "only inside hier: that takes everything"
                                  : "shared memory takes everything");
}

static void put_operations(struct text *t, const dlcoll_comm *c)
{
    char ways[KINDS][LINE_MAX_BYTES], inside[KINDS][LINE_MAX_BYTES];
    for (size_t i = 0; i < KINDS; i++) {
        find_ways(c, g_kinds[i], false, ways[i]);
        bool in_lanes = strstr(ways[i], hier_provider.name) && g_kinds[i] != CALL_ALL_TO_ALL &&
                        g_kinds[i] != CALL_ALL_TO_ALL_V;
        inside[i][0] = '\0';
        /* Data that is gathered between nodes is not in the order of the ranks. */
        if (in_lanes)
            find_ways(c,
                      g_kinds[i] == CALL_ALL_GATHER ? CALL_ALL_GATHER_V
                      : g_kinds[i] == CALL_SCAN     ? CALL_EXSCAN
                                                    : g_kinds[i],
                      true, inside[i]);
    }
    put_ways(t, "", ways);
    put_ways(t, "between nodes, ", inside);
    put(t, "messages: %s\n",
        c->size == 1                          ? "to itself only"
        : c->shm && c->topo.nlocal == c->size ? "through shared memory"
        : c->shm                              ? "through shared memory on a node, TCP between nodes"
                                              : "over TCP");
    put_providers(t, c, ways);
}

/* selection.def, with the sizes that hold now. */
static void put_selection(struct text *t)
{
    const struct {
        const char *name;
        size_t bytes;
        const char *decides, *measured;
    } rows[] = {
#define SHM(name, bytes, decides, measured)  {"shm." #name, shm_tuning.name, decides, measured},
#define HIER(name, bytes, decides, measured) {"hier." #name, hier_tuning.name, decides, measured},
#define P2P(name, bytes, decides, measured)  {"p2p." #name, bytes, decides, measured},
#include "collectives/comm/selection.def"
    };
    size_t n;
    const struct algo_rule *rules = algo_select_builtin(&n);
    char line[160];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        put(t, "threshold %s: %zu bytes: %s (measured: %s)\n", rows[i].name, rows[i].bytes,
            rows[i].decides, rows[i].measured);
    for (size_t i = 0; i < n; i++) {
        algo_select_format(&rules[i], line, sizeof(line));
        put(t, "rule built in: %s\n", line);
    }
}

/* Every way that a rule may name here; dlcoll_tune(1) reads this. */
static void put_choices(struct text *t, const dlcoll_comm *c)
{
    for (size_t i = 0; i < KINDS; i++) {
        enum call_kind kind = g_kinds[i];
        struct coll_call call = imagine(c, kind, 0);
        struct coll any = {.kind = kind, .size = c->size};
        if (algo_select_plain_kind(kind) != kind)
            continue;
        put(t, "choices: %s", call_name(kind));
        for (const struct coll_provider *const *p = g_providers; *p; p++) {
            if (*p != &net_provider && (*p)->can(&call))
                put(t, " %s", (*p)->name);
        }
        for (size_t k = 0; k < g_nalgos; k++) {
            if (algo_allows(&g_algos[k], &any))
                put(t, " net/%s", g_algos[k].name);
        }
        put(t, "\n");
    }
}

/* ------------------------------------------------------------------------------------- the rest */

static const char *memory(const dlcoll_comm *c)
{
    if (c->shm)
        return "shared by the ranks of a node";
    if (c->topo.most_local < 2)
        return c->size == 1 ? "none is shared: there is one rank"
                            : "none is shared: no node has two ranks";
    if (!c->job->conf.shared_memory)
        return "none is shared: DLCOLL_SHM is off";
    if (c->shares_memory)
        return "shared by ranks of other nodes; here is one rank";
    return c->world->segment.base && c->world->instance == 1 && c->id == 0
               ? "none is shared: the launcher had no room for it (ulimit -f, ulimit -v)"
               : "none is shared: a rank could not make it or reach it";
}

static void put_ranks(struct text *t, const dlcoll_comm *c)
{
    char name[WORLD_NAME_MAX];
    for (int i = 0; i < c->size; i++)
        put(t, "rank %d: node %d, %s\n", i, c->topo.node_of[i],
            world_name(c->world, c->world_ranks[i], name));
}

static void put_rules(struct text *t, const struct algo_select *given)
{
    char line[160];
    for (size_t i = 0; i < given->n; i++) {
        algo_select_format(&given->rules[i], line, sizeof(line));
        put(t, "rule given: %s\n", line);
    }
}

size_t dlcoll_describe(const dlcoll_comm *comm, char *out, size_t size)
{
    struct text t = {out, out ? size : 0, 0};
    if (out && size)
        out[0] = '\0';
    if (!comm)
        return 0;
    const struct job *j = comm->job;
    put(&t, "version: %s\n", dlcoll_version());
    put(&t, "group: %016llx%s%s\n", (unsigned long long)comm->id, comm->name[0] ? " " : "",
        comm->name);
    put(&t, "rank: %d of %d\n", comm->rank, comm->size);
    put(&t, "nodes: %d, with %d to %d ranks each\n", comm->topo.nnodes, comm->topo.least_local,
        comm->topo.most_local);
    put(&t, "met: %s\n",
        comm->world->segment.base ? "by the launcher's segment"
        : comm->world->members    ? "through a store"
                                  : "alone");
    put(&t, "cpus: %d usable for %d ranks of this host\n", comm->world->usable_cpus,
        comm->world->neighbours);
    put(&t, "waiting: spin %llu us, yield %llu us, then sleep\n",
        (unsigned long long)comm->policy.spin_ns / 1000,
        (unsigned long long)comm->policy.yield_ns / 1000);
    put(&t, "memory: %s\n", memory(comm));
    put(&t, "tcp: %d connection%s between two ranks, congestion control %s\n", j->conf.sockets,
        j->conf.sockets == 1 ? "" : "s",
        j->conf.congestion[0] ? j->conf.congestion : "cubic or reno where the host's is bbr");
    const struct reduce_kernels *kernels = reduce_kernels_used();
    put(&t, "kernels: %s (%s)\n", kernels->name,
        kernels == reduce_kernels_best() ? "the best of this processor" : "by DLCOLL_CPU");
    put(&t, "device memory: %s\n",
        !j->conf.devices ? "not looked for: there is no GPU, or DLCOLL_BACKEND is cpu"
        : comm->nccl     ? "through NCCL"
                         : "through NCCL, once there is some");
    put_ranks(&t, comm);
    put_operations(&t, comm);
    put_rules(&t, &j->algo_select);
    put_choices(&t, comm);
    put_selection(&t);
    return t.len;
}

int dlcoll_recent(const dlcoll_comm *comm, int rank, dlcoll_record *out, int max)
{
    if (!comm || max < 0 || (max && !out) || rank < -1 || rank >= comm->world->size)
        return DLCOLL_EINVAL;
    const struct segment_local *line = comm->job->recorder.line;
    if (rank >= 0 && rank != comm->world->rank)
        line = job_segment_local(&comm->world->segment, rank);
    return line ? recorder_read(line, out, max) : DLCOLL_ENOSUP;
}
