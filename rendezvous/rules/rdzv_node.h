/* rdzv_node.h: what the coordinator knows of one node. Shared by the files of rdzv_state. */
#ifndef RENDEZVOUS_RULES_RDZV_NODE_H
#define RENDEZVOUS_RULES_RDZV_NODE_H

#include "rendezvous/rules/clock_offset.h"
#include "rendezvous/rules/rdzv_msg.h"

/* Where a connection comes from. */
struct rdzv_peer {
    char addr[ADDR_STRLEN]; /* the node's address, as the coordinator sees it; "" for its own */
    char via[ADDR_STRLEN];  /* the coordinator's address, as the node reached it */
    bool same_host;         /* they are the same, or loopback */
    bool own;               /* the coordinator's own launcher */
};

#define RDZV_NO_CONN UINT32_MAX

struct rdzv_order {
    struct rdzv_respawn respawn;
    uint64_t due_ns;
};

struct rdzv_node {
    struct rdzv_hello hello;
    struct rdzv_peer peer;
    int slot;      /* in the state's array of nodes */
    uint32_t conn; /* RDZV_NO_CONN: broken; it may come back until it has been silent too long */
    uint64_t joined_ns, heard_ns;
    uint64_t late_ns; /* the state's, when that was */
    struct clock_offset clock;

    /* From its newest STATUS. */
    enum member_phase phase;
    bool took_part;     /* in a round, of whatever coordinator */
    bool workers;       /* before the first: it may have some, of another coordinator's round */
    uint64_t status_ns; /* its send_ns */
    uint64_t echo_ns;   /* when the view was sent that it had seen then, by our clock */
    uint64_t touch_ns;  /* the same, of heartbeats */
    bool lagging;       /* its loop is behind, and that has been said */
    uint64_t view_ns;   /* the stamp of the newest view that was sent to it */
    uint32_t acked;     /* failures up to this number are here */
    bool leaving;
    bool ready;    /* counted as one that could start */
    bool released; /* it leaves a job that goes on */

    /* In the round. */
    int group_rank; /* -1: not in it */
    int prev_rank;  /* in the round before; -1 */
    bool prepared, stopped, done;
    uint16_t *ports; /* nproc, or NULL */
    int free_port;
    uint32_t failures_total;

    struct rdzv_order *orders; /* respawns that it has not yet carried out */
    int norders;
    uint32_t last_order;
};

/* When the newest word of this coordinator was sent that the node has said it has. */
static inline uint64_t rdzv_node_touch(const struct rdzv_node *n)
{
    return n->echo_ns > n->touch_ns ? n->echo_ns : n->touch_ns;
}

/* Whether the node is a witness: a launcher without workers, in no round, not counted as a node. */
static inline bool rdzv_node_is_witness(const struct rdzv_node *n)
{
    return n->hello.nproc == 0;
}

#endif
