#include "rendezvous/rdzv_rules.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "rendezvous/discovery/backends.h"
#include "rendezvous/rules/text.h"
#include "rendezvous/rules/tree.h"

#define LEASE_BEATS 1.5 /* heartbeats in a lease, at least */

static uint64_t to_ns(double seconds)
{
    return seconds <= 0 ? 0 : seconds >= 1e9 ? 1000000000000000000u : (uint64_t)(seconds * 1e9);
}

uint64_t rdzv_config_dead_ns(const struct rdzv_config *c)
{
    return to_ns(c->keep_alive_interval * c->keep_alive_max_attempt);
}

bool rdzv_config_may_elect(const struct rdzv_config *c)
{
    int places = c->max_nodes + c->spares;
    bool waits = c->max_node_restarts > 0 || (c->max_node_restarts < 0 && c->max_restarts > 0);
    return c->elect && c->backend != RDZV_FILE && places > 1 && c->max_node_restarts != 0 &&
           (c->min_nodes < places || waits);
}

/* A node that is cut off ends its workers when its lease is over, and the others may start without
 * it after the dead time: what lies between must suffice for that (rdzv_lease_ns()). And a lease
 * must outlive the time from one heartbeat to the next with something to spare, or it runs out in a
 * healthy job. */
static int check_silence(const struct rdzv_config *c, struct err *e)
{
    double interval = c->keep_alive_interval, dead = interval * c->keep_alive_max_attempt;
    double apart = (double)(RDZV_TICK_NS + RDZV_KILL_NS + RDZV_MARGIN_NS) / 1e9;
    double lease = (double)rdzv_lease_ns(rdzv_config_dead_ns(c)) / 1e9;
    if (c->max_nodes + c->spares == 1 || lease >= LEASE_BEATS * interval)
        return 0;
    return err_set(e, -EINVAL,
                   "--rdzv_conf: keep_alive_interval %g s times keep_alive_max_attempt %d make a "
                   "dead time of %.3g s, too short: it must be %.3g s at least (%g intervals, for "
                   "a late heartbeat, and %g s for a node that is cut off to end its workers)",
                   interval, c->keep_alive_max_attempt, dead, LEASE_BEATS * interval + apart,
                   LEASE_BEATS, apart);
}

int rdzv_config_check(const struct rdzv_config *c, struct err *e)
{
    if (c->min_nodes < 1 || c->max_nodes < c->min_nodes || c->max_nodes > NNODES_MAX)
        return err_set(e, -EINVAL, "%d to %d nodes cannot be", c->min_nodes, c->max_nodes);
    if (c->nproc < 0 || c->nproc > NPROC_MAX)
        return err_set(e, -EINVAL, "%d workers on a node cannot be (0 to %d)", c->nproc, NPROC_MAX);
    if (c->spares < 0 || c->spares > NNODES_MAX - c->max_nodes)
        return err_set(e, -EINVAL, "%d spare nodes cannot be", c->spares);
    if (c->node_rank >= c->max_nodes)
        return err_set(e, -EINVAL, "node_rank %d is too high for %d nodes", c->node_rank,
                       c->max_nodes);
    if (strlen(c->run_id) >= RDZV_RUN_ID_MAX || strlen(c->role) >= ROLE_MAX ||
        strlen(c->host) >= HOST_MAX)
        return err_set(e, -EINVAL, "the run id, the role or the host name is too long");
    if (c->local_addr && strlen(c->local_addr) >= HOST_MAX)
        return err_set(e, -EINVAL, "--local_addr is too long");
    if (rdzv_config_dead_ns(c) < 1000000 || rdzv_config_dead_ns(c) / 1000000 > INT32_MAX ||
        c->keep_alive_interval <= 0)
        return err_set(e, -EINVAL, "keep_alive_interval and keep_alive_max_attempt make no sense");
    int rc = check_silence(c, e);
    return rc < 0 ? rc : rdzv_backend_ops(c->backend)->check(c, e);
}

struct rdzv_rules rdzv_config_rules(const struct rdzv_config *c)
{
    return (struct rdzv_rules){
        .backend = c->backend,
        .run_id = c->run_id,
        .version = DLAUNCH_VERSION,
        .min_nodes = c->min_nodes,
        .max_nodes = c->max_nodes,
        .max_restarts = c->max_restarts,
        .restart_policy = c->restart_policy,
        .mpi = c->mpi,
        .workers = c->nproc > 0,
        .backoff_ns = to_ns(c->restart_backoff),
        .spares = c->spares,
        .elastic = c->elastic,
        .max_node_restarts = c->max_node_restarts,
        .no_restart = c->no_restart,
        .actions = c->actions,
        .progress_ns = to_ns(c->progress_time),
        .join_ns = to_ns(c->join_timeout),
        .last_call_ns = to_ns(c->last_call_timeout),
        .close_ns = to_ns(c->close_timeout),
        .heartbeat_ns = to_ns(c->keep_alive_interval),
        .dead_ns = rdzv_config_dead_ns(c),
        .agent_store = c->agent_store,
        .relay = c->relay,
        .elect = rdzv_config_may_elect(c),
        .tree_width = c->tree_width,
        .master_addr = c->backend == RDZV_STATIC ? c->master_addr : NULL,
    };
}

struct member_rules rdzv_config_member_rules(const struct rdzv_config *c)
{
    struct member_rules rules = {
        .join_ns = to_ns(c->join_timeout),
        .read_ns = to_ns(c->read_timeout),
        .heartbeat_ns = to_ns(c->keep_alive_interval),
        .dead_ns = rdzv_config_dead_ns(c),
        .lease = c->max_nodes + c->spares > 1 || c->nproc == 0,
        .hello = {.backend = c->backend,
                  .min_nodes = c->min_nodes,
                  .max_nodes = c->max_nodes,
                  .max_restarts = c->max_restarts,
                  .restart_policy = c->restart_policy,
                  .mpi = c->mpi,
                  .agent_store = c->agent_store,
                  .relay = c->relay,
                  .pid = (int)getpid(),
                  .node_rank = c->node_rank < 0 ? -1 : c->node_rank,
                  .nproc = c->nproc},
    };
    struct rdzv_hello *h = &rules.hello;
    if (uv_random(NULL, NULL, h->id.b, sizeof(h->id.b), 0, NULL) < 0) {
        uint64_t id[2] = {uv_hrtime(), (uint64_t)getpid() << 32 ^ (uint64_t)(uintptr_t)c};
        memcpy(h->id.b, id, sizeof(h->id.b));
    }
    text_set(h->run_id, sizeof(h->run_id), "%s", c->run_id);
    text_set(h->version, sizeof(h->version), "%s", DLAUNCH_VERSION);
    text_set(h->host, sizeof(h->host), "%s", c->host);
    text_set(h->role, sizeof(h->role), "%s", c->role);
    return rules;
}
