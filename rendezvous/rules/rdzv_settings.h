/* rdzv_settings.h: what a job allows and how long it waits, as the coordinator's rules read it. */
#ifndef RENDEZVOUS_RULES_RDZV_SETTINGS_H
#define RENDEZVOUS_RULES_RDZV_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "rendezvous/rules/cause.h"
#include "rendezvous/rules/rdzv_types.h"

/* The options of the coordinator's own launcher. Strings are borrowed for the state's life. */
struct rdzv_rules {
    enum rdzv_backend backend;
    const char *run_id;
    const char *version; /* of dlaunch */
    int min_nodes, max_nodes;
    int max_restarts;
    enum restart_policy restart_policy;
    enum mpi_kind mpi;
    bool workers; /* the coordinator's node has some, and `mpi` is theirs */
    uint64_t backoff_ns;
    int spares;
    bool elastic;
    int max_node_restarts; /* -1: see rdzv_config.h */
    struct exit_codes no_restart;
    uint64_t progress_ns;
    bool elect; /* the nodes may choose another coordinator when this one is lost */
    uint64_t join_ns, last_call_ns, close_ns;
    uint64_t heartbeat_ns, dead_ns;
    bool agent_store, relay;
    const char *bound_addr; /* the address it listens on; "": all of them */
    int port;
    const char *local_addr;  /* to advertise, or "" */
    const char *master_addr; /* static: as the user gave it, or NULL */
    const char *doubt;       /* why the other nodes may not find this one, or "" */
    struct cause_actions actions;
    bool events;    /* the driver keeps the events of the job */
    int tree_width; /* the driver's, tree.h; 0: no round has a tree */
};

#endif
