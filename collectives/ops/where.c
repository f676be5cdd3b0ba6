/* where.c: where the ranks of a communicator are, and the groups of those that are close together.
 */
#include <sched.h>
#include <stdlib.h>

#include "collectives/comm/comm.h"
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

/* A key that is equal on ranks of one domain. */
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

/* Gathers the ids of all ranks' domains, for the function of that name, whose result goes to *out.
 * 0 and *ids, which the caller frees; or a code, and NULL. */
static int gather_ids(dlcoll_comm *comm, dlcoll_domain domain, const char *name, const void *out,
                      uint64_t **ids)
{
    *ids = NULL;
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    if (domain < DLCOLL_DOMAIN_NODE || domain > DLCOLL_DOMAIN_NUMA)
        code = comm_error(comm, DLCOLL_EINVAL, "%s: there is no domain %d", name, (int)domain);
    else if (!out)
        code = comm_error(comm, DLCOLL_EINVAL, "%s: the pointer to the result is NULL", name);
    else if (!(*ids = malloc((size_t)comm->size * sizeof(**ids))))
        code = comm_error(comm, DLCOLL_ENOMEM, "%s: no memory", name);
    comm_leave(comm, code);
    if (code < 0)
        return code;
    uint64_t own = domain_id(comm, domain);
    code = dlcoll_all_gather(&own, *ids, 1, DLCOLL_U64, comm, NULL, NULL);
    if (code < 0) {
        free(*ids);
        *ids = NULL;
    }
    return code;
}

/* The lowest rank of the domain of `rank`. */
static int first_of_domain(const uint64_t *ids, int rank)
{
    int first = 0;
    while (ids[first] != ids[rank])
        first++;
    return first;
}

int dlcoll_domains(dlcoll_comm *comm, dlcoll_domain domain, int *domain_of)
{
    uint64_t *ids;
    int code = gather_ids(comm, domain, "domains", domain_of, &ids), n = 0;
    for (int i = 0; code == 0 && i < comm->size; i++) {
        int first = first_of_domain(ids, i);
        domain_of[i] = first < i ? domain_of[first] : n++;
    }
    free(ids);
    return code < 0 ? code : n;
}

int dlcoll_comm_split_by(dlcoll_comm *comm, dlcoll_domain domain, int key, dlcoll_comm **group,
                         const dlcoll_group_opts *opts)
{
    uint64_t *ids;
    int code = gather_ids(comm, domain, "comm_split_by", group, &ids);
    if (code < 0)
        return code;
    *group = NULL;
    int color = first_of_domain(ids, comm->rank);
    free(ids);
    return dlcoll_comm_split(comm, color, key, group, opts);
}
