/* where.c: where the ranks of a communicator are, and groups of those that are close together. */
#include <sched.h>
#include <stdlib.h>

#include "collectives/api/comm.h"
#include "collectives/bootstrap/host_id.h"
#include "core/hash.h"

int dlcoll_node_count(const dlcoll_comm *comm)
{
    return comm ? comm->topo.nnodes : DLCOLL_EINVAL;
}

int dlcoll_node_of(const dlcoll_comm *comm, int rank)
{
    return comm && rank >= 0 && rank < comm->size ? comm->topo.node_of[rank] : DLCOLL_EINVAL;
}

int dlcoll_node_ranks(const dlcoll_comm *comm, int node, int *ranks, int max)
{
    if (!comm || node < 0 || node >= comm->topo.nnodes || max < 0 || (max && !ranks))
        return DLCOLL_EINVAL;
    const struct topology *t = &comm->topo;
    for (int i = 0; i < t->node_size[node] && i < max; i++)
        ranks[i] = t->by_node[t->node_first[node] + i];
    return t->node_size[node];
}

/* Equal on ranks that are in the same domain. */
static uint64_t domain_id(const dlcoll_comm *c, dlcoll_domain domain)
{
    unsigned cpu, numa = 0;
    switch (domain) {
    case DLCOLL_DOMAIN_NODE:
        return (uint64_t)c->topo.node;
    case DLCOLL_DOMAIN_MEMORY: /* a rank that shares none is alone in its domain */
        return c->shm ? (uint64_t)c->topo.node : UINT32_MAX + (uint64_t)c->rank;
    case DLCOLL_DOMAIN_NUMA:
        if (getcpu(&cpu, &numa) < 0)
            numa = 0;
        return hash_add(host_id(), numa);
    default:
        return host_id();
    }
}

int dlcoll_comm_split_by(dlcoll_comm *comm, dlcoll_domain domain, int key, dlcoll_comm **group,
                         const dlcoll_group_opts *opts)
{
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    if (domain < DLCOLL_DOMAIN_NODE || domain > DLCOLL_DOMAIN_NUMA)
        code = comm_error(comm, DLCOLL_EINVAL, "comm_split_by: there is no domain %d", (int)domain);
    else if (!group)
        code = comm_error(comm, DLCOLL_EINVAL, "comm_split_by: group is NULL");
    uint64_t *ids = code == 0 ? malloc((size_t)comm->size * sizeof(*ids)) : NULL;
    if (code == 0 && !ids)
        code = comm_error(comm, DLCOLL_ENOMEM, "comm_split_by: no memory");
    comm_leave(comm, code);
    if (code < 0)
        return code;
    *group = NULL;
    uint64_t own = domain_id(comm, domain);
    code = dlcoll_all_gather(&own, ids, 1, DLCOLL_U64, comm, NULL, NULL);
    int color = 0; /* the lowest rank of the domain */
    while (code == 0 && ids[color] != own)
        color++;
    free(ids);
    return code < 0 ? code : dlcoll_comm_split(comm, color, key, group, opts);
}
