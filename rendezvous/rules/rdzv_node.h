/* rdzv_node.h: what the coordinator knows about one launcher. */
#ifndef RENDEZVOUS_RULES_RDZV_NODE_H
#define RENDEZVOUS_RULES_RDZV_NODE_H

#include "rendezvous/rules/clock_offset.h"
#include "rendezvous/rules/rdzv_msg.h"

/* The two ends of a connection. */
struct rdzv_peer {
    char addr[ADDR_STRLEN]; /* the node's address, as the coordinator sees it; "" for its own */
    char via[ADDR_STRLEN];  /* the coordinator's address, as the node reached it */
    bool same_host;         /* the two are equal, or loopback */
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
    uint32_t conn; /* RDZV_NO_CONN: ended; the node may connect again within the dead time */
    uint64_t joined_ns, heard_ns;
    uint64_t late_ns; /* the state's, when that was */
    struct clock_offset clock;

    /* From the newest STATUS of the node. */
    enum member_phase phase;
    bool took_part; /* in some round, of any coordinator */
    bool workers;   /* true until the first status if some of another coordinator's round may live
                     */
    uint64_t status_ns; /* send_ns of that STATUS */
    uint64_t echo_ns;   /* when the newest view was sent that the node had seen then (our clock) */
    uint64_t
        touch_ns; /* when the newest heartbeat answer was sent that the node had seen (our clock) */
    bool lagging; /* the node's loop is behind; the warning was logged */
    uint64_t view_ns; /* the stamp of the newest view that was sent to it */
    uint32_t acked;   /* failures up to this number have arrived */
    bool leaving;
    bool ready;    /* counted in rdzv_nodes.nready */
    bool released; /* the node leaves, and the job goes on */

    /* The node's part in the round. */
    int group_rank; /* -1: not a member */
    int prev_rank;  /* in the round before; -1 */
    bool prepared, started, stopped, done;
    uint16_t *ports; /* nproc, or NULL */
    int free_port;
    uint32_t failures_total;

    struct rdzv_order *orders; /* respawns that the node has not yet confirmed */
    int norders;
    uint32_t last_order;
    struct rdzv_worker *respawned; /* nproc entries; NULL */
};

/* The time at which the newest view or heartbeat answer was sent that the node has confirmed. */
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
