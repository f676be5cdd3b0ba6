/* rdzv_config.h: the options of the rendezvous, as the launcher has read them and as the backends
 * read them. */
#ifndef RENDEZVOUS_DISCOVERY_RDZV_CONFIG_H
#define RENDEZVOUS_DISCOVERY_RDZV_CONFIG_H

#include <stdbool.h>

#include "rendezvous/rules/cause.h"
#include "rendezvous/rules/rdzv_types.h"

struct auth;

/* RDZV_ETCD. */
struct rdzv_etcd_config {
    bool tls;
    const char *ca, *cert, *key; /* files in PEM, or NULL (core/tls.h) */
    const char *prefix;          /* of the keys */
    const char *user, *password; /* NULL: none */
};

#define RDZV_PLACES_MAX 16
struct rdzv_place_to_ask {
    const char *host;
    int port;
};

/* Strings are borrowed until rdzv_close() has called back. Times are in seconds. */
struct rdzv_config {
    enum rdzv_backend backend;
    const char *endpoint_host; /* the coordinator's host, or etcd's; NULL for RDZV_FILE */
    int endpoint_port;         /* 0: a free one (one node, or RDZV_FILE) */
    /* RDZV_ETCD: further servers. RDZV_C10D: where else a coordinator may be, or somebody who knows
     * it; the nodes that have these addresses answer there. A job begins at the endpoint. */
    const struct rdzv_place_to_ask *more;
    int nmore;
    int listen_fd; /* listens on endpoint_port, all addresses; this node hosts there; 0: none */
    const char *endpoint_path; /* RDZV_FILE */
    struct rdzv_etcd_config etcd;
    const char *run_id; /* keeps jobs at one endpoint apart */
    int min_nodes, max_nodes;
    int node_rank; /* the group rank asked for; -1: any, in stable order */
    int nproc;     /* workers on this node; 0: a launcher without workers, which is in no round: the
                      coordinator, or a witness that votes when the coordinator is lost */
    const char *role;
    const char *host;         /* this node's name, for messages */
    const char *local_addr;   /* the address to advertise, or a name of it; NULL: the local one of
                                 the connection */
    int is_host;              /* --rdzv_conf is_host: 1 be the coordinator, 0 never, -1 find out */
    double join_timeout;      /* until the first round is complete, and each later one */
    double last_call_timeout; /* MIN reached, MAX not: how long to wait for more */
    double close_timeout; /* how long the coordinator waits for the others to leave at the end */
    double keep_alive_interval; /* between heartbeats, each way */
    int keep_alive_max_attempt; /* missed heartbeats after which a peer is lost */
    double read_timeout;        /* for the first answer of a coordinator that accepted */
    int max_restarts;
    enum restart_policy restart_policy;
    enum mpi_kind mpi;      /* of the workers; only with RESTART_GROUP */
    double restart_backoff; /* before the n-th charged restart: n times this many seconds */
    int spares;             /* nodes beyond max_nodes that wait for a place */
    bool elastic;           /* a new node joins at once, by a restart, and not at the next one */
    int max_node_restarts;  /* after a node was lost or left; -1: as long as MIN nodes are there,
                               and waiting for another one only when max_restarts allows any */
    struct cause_actions actions; /* the actions by cause */
    struct exit_codes no_restart; /* of workers: the job ends with it */
    bool elect;                   /* when the coordinator is lost, the others choose another one */
    double progress_time; /* a failure that repeats sooner than this after every start: pause, then
                             end; 0: never */
    const char *master_addr; /* static: as the user gave it, for MASTER_ADDR; else NULL */
    int tree_width;          /* a round of more nodes has a tree of launchers, in which each has at
                                most so many children */
    bool relay;              /* the workers' store is on loopback of each node (relay.h) */
    bool agent_store;        /* false (--master_store none): MASTER_PORT is a port of rank 0's node
                                on which nothing listens */
    struct auth *auth;     /* who may join, and how (auth.h); NULL: everyone who reaches the port */
    bool legacy_store_113; /* a store client without handshake is torch <= 2.0, not 2.1 */
};

/* Fills in torchrun's defaults; strings NULL, one node, one worker. */
void rdzv_config_defaults(struct rdzv_config *c);

#endif
