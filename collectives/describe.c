/* describe.c: what a communicator is doing and why, for people. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "collectives/choice.h"
#include "collectives/comm.h"
#include "collectives/net/algo.h"
#include "collectives/net/tcp.h"
#include "collectives/provider.h"
#include "collectives/reduce.h"

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

static void put_rules(struct text *t, const char *whence, const struct choice_rule *rules, size_t n)
{
    char line[160];
    for (size_t i = 0; i < n; i++) {
        choice_format(&rules[i], line, sizeof(line));
        put(t, "rule (%s): %s\n", whence, line);
    }
}

static void put_ranks(struct text *t, const dlcoll_comm *c)
{
    char name[WORLD_NAME_MAX];
    for (int i = 0; i < c->size; i++)
        put(t, "rank %d: node %d, %s\n", i, c->topo.node_of[i],
            world_name(c->world, c->world_ranks[i], name));
}

size_t dlcoll_describe(const dlcoll_comm *comm, char *out, size_t size)
{
    struct text t = {out, out ? size : 0, 0};
    size_t n;
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
    put(&t, "memory: %s\n",
        comm->shm               ? "shared by the ranks of a node"
        : j->conf.shared_memory ? "none is shared"
                                : "none is shared (DLCOLL_SHM is off)");
    put(&t, "tcp: %d connection%s between two ranks, congestion control %s\n", j->conf.sockets,
        j->conf.sockets == 1 ? "" : "s",
        j->conf.congestion[0] ? j->conf.congestion : "cubic or reno where the host's is bbr");
    const struct reduce_kernels *kernels = reduce_kernels_used();
    put(&t, "kernels: %s (%s)\n", kernels->name,
        kernels == reduce_kernels_best() ? "the best of this processor" : "by DLCOLL_CPU");
    for (size_t i = 0; i < g_nproviders; i++)
        put(&t, "provider: %s\n", g_providers[i]->name);
    for (size_t i = 0; i < g_nalgos; i++) {
        struct coll any = {.kind = g_algos[i].kind, .size = comm->size};
        if (algo_allows(&g_algos[i], &any))
            put(&t, "algorithm: %s net/%s\n", call_name(g_algos[i].kind), g_algos[i].name);
    }
    put_ranks(&t, comm);
    put_rules(&t, "given", j->choice.rules, j->choice.n);
    const struct choice_rule *rules = choice_builtin(&n);
    put_rules(&t, "built in", rules, n);
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
