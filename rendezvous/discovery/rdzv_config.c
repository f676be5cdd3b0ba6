#include "rendezvous/discovery/rdzv_config.h"

#include "rendezvous/rules/tree.h"

void rdzv_config_defaults(struct rdzv_config *c)
{
    *c = (struct rdzv_config){
        .backend = RDZV_STATIC,
        .run_id = "none",
        .min_nodes = 1,
        .max_nodes = 1,
        .node_rank = -1,
        .nproc = 1,
        .role = "default",
        .host = "",
        .is_host = -1,
        .join_timeout = 600,
        .last_call_timeout = 30,
        .close_timeout = 30,
        .keep_alive_interval = 5,
        .keep_alive_max_attempt = 3,
        .read_timeout = 60,
        .restart_policy = RESTART_GROUP,
        .max_node_restarts = -1,
        .agent_store = true,
        .tree_width = TREE_WIDTH,
    };
}
