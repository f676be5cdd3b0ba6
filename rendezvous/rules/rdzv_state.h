/* rdzv_state.h: the coordinator's rules. No I/O, no clock, no libuv: what happened goes in with the
 * time, what is to be done comes out.
 *
 *                  +-- node lost, joined, leaves --+
 *                  v                               |
 *     +--------> COLLECT ----- complete ----> PREPARE ----- all prepared ----> RUN
 *     |            |                                                          |   |
 *     | restart,   | too few,                         failure, node lost,     |   | all
 *     | membership | too late                         joined, or leaves       v   | done
 *     +------------|-------------------------------------------------------- STOP |
 *                  v                                                          |   |
 *               FINISH <------------------------------------------------------+---+
 *
 *   COLLECT   nodes join; MAX of them, or MIN and the last call over, start a round
 *   PREPARE   every node of the round gets its group rank and prepares; no worker is started
 *   RUN       all are prepared: every node has the rank table and starts its workers
 *   STOP      a failure, a lost node, a change of membership, or a request to stop: all workers on
 *             all nodes are stopped; then the coordinator decides what follows
 *   FINISH    every node gets the result, and acknowledges it by closing
 *
 * Every status of a node is its whole state, and every view its whole answer, so that a connection
 * that broke and came back goes on where it was. A node is one node_id, not one connection. Work
 * per event is constant, per round O(n log n). */
#ifndef RENDEZVOUS_RULES_RDZV_STATE_H
#define RENDEZVOUS_RULES_RDZV_STATE_H

#include "core/log.h"
#include "rendezvous/rules/rdzv_node.h"
#include "rendezvous/rules/rdzv_quorum.h"
#include "rendezvous/rules/rdzv_settings.h"

struct rdzv_state;

/* epoch: drawn at random by every coordinator, not 0 (rdzv_epoch()). */
struct rdzv_state *rdzv_state_new(const struct rdzv_rules *rules, uint64_t epoch, uint64_t now);
/* The state of a candidate: a node of a job whose coordinator is lost. */
struct rdzv_state *rdzv_state_stand(const struct rdzv_rules *rules, const struct rdzv_electorate *e,
                                    uint64_t now);
void rdzv_state_free(struct rdzv_state *s);

/* Events. `conn` is the driver's number of a connection: small, and free for another connection
 * after rdzv_state_closed() or RDZV_ACT_CLOSE. */
void rdzv_state_hello(struct rdzv_state *s, uint32_t conn, const struct rdzv_hello *h,
                      const struct rdzv_peer *peer, uint64_t now);
void rdzv_state_status(struct rdzv_state *s, uint32_t conn, const struct rdzv_status *st,
                       uint64_t now);
void rdzv_state_closed(struct rdzv_state *s, uint32_t conn, enum rdzv_end how, uint64_t now);
/* The news from a node's heartbeats (beat.h). The state may know them already. */
struct rdzv_beat {
    uint64_t heard_ns; /* when the newest one came */
    uint64_t touch_ns; /* when the newest answer was sent that the node had seen then; 0: none */
    uint32_t lag_ms;   /* the node's loop is so far behind */
};
void rdzv_state_beat(struct rdzv_state *s, const struct node_id *id, const struct rdzv_beat *b,
                     uint64_t now);
/* The time until which heartbeats may give leases without asking again; 0: they may not. */
uint64_t rdzv_state_lease_until(struct rdzv_state *s, uint64_t now);
/* A time of the node on this connection by the coordinator's clock, from a message sent at `sent`;
 * false: it is not a node's connection. */
bool rdzv_state_to_ours(struct rdzv_state *s, uint32_t conn, uint64_t theirs, uint64_t sent,
                        uint64_t now, uint64_t *ours);
/* A launcher was refused before its hello (another protocol version). */
void rdzv_state_turned_away(struct rdzv_state *s, const char *addr, const char *text, uint64_t now);
/* A voter has sent a list of members. */
void rdzv_state_peers(struct rdzv_state *s, uint32_t conn, const struct rdzv_peers *list);
/* The node on this connection misses the list of its round's members, or the rank table: what it
 * still needs of them is sent, and a view behind it. */
void rdzv_state_missed(struct rdzv_state *s, uint32_t conn, bool peers, bool table);
void rdzv_state_tick(struct rdzv_state *s, uint64_t now);

/* The workers of the round that runs are to start again, without a failure. False: none runs. */
bool rdzv_state_restart(struct rdzv_state *s, const char *text, uint64_t now);

/* The connection of the node that has this rank in the round that runs; RDZV_NO_CONN: none. */
uint32_t rdzv_state_conn_of(const struct rdzv_state *s, int rank);

/* Asserts what must hold after every event: each count is that of what it counts, what belongs to a
 * round is there in its phases only, and what is due has a time. For tests. */
void rdzv_state_check(const struct rdzv_state *s);

/* The time at which rdzv_state_tick() is due; UINT64_MAX: not until something else happens. */
uint64_t rdzv_state_deadline(const struct rdzv_state *s);

enum rdzv_act {
    RDZV_ACT_LOG,       /* level, text */
    RDZV_ACT_EVENT,     /* event: it happened now, except for a failure; only if rules->events */
    RDZV_ACT_NEW_ROUND, /* no worker is alive: empty the store */
    RDZV_ACT_TABLE,     /* conn, table: the same for all until the next RDZV_ACT_NEW_ROUND */
    RDZV_ACT_REPORT,    /* conn, result: the same for all */
    RDZV_ACT_VIEW,      /* conn, view */
    RDZV_ACT_PEERS,     /* conn, peers: the same for all until the next RDZV_ACT_NEW_ROUND, unless
                           it has grown */
    RDZV_ACT_NOTICE,    /* conn, text: the same pointer for all who get the same */
    RDZV_ACT_CLOSE,     /* conn; text: refuse with it (retry); NULL: close, so that it does not look
                           like the end of this launcher */
    RDZV_ACT_FINISHED,  /* every node has the result, or has had close_ns for it */
};

/* Pointers in an action are valid until the next call of any function here. */
struct rdzv_action {
    enum rdzv_act act;
    uint32_t conn;
    enum log_level level;
    const char *text;
    bool retry;
    struct rdzv_view view;
    const struct rank_table *table;
    const struct rdzv_peers *peers;
    const struct rdzv_peers *ran; /* PEERS: to go before them, as one that ran; NULL: none */
    const struct rdzv_result *result;
    const struct event *event;
};

/* The next thing to do; false when there is none. Views are made here, so several events in a row
 * cost one view. Call until false after each event or batch of events. */
bool rdzv_state_next(struct rdzv_state *s, struct rdzv_action *a, uint64_t now);

/* For status displays and tests. */
struct rdzv_state_info {
    enum rdzv_phase phase;
    struct generation gen;
    int nodes;  /* known, with workers */
    int nnodes; /* in the round */
    int restarts, node_restarts;
    bool finished; /* the result is known */
    bool standing; /* for election */
    const struct rdzv_result *result;
};
void rdzv_state_get_info(const struct rdzv_state *s, struct rdzv_state_info *out);
/* The members of the newest round, in the order of their ranks, for rdzv_peers_fini(). */
void rdzv_state_get_members(const struct rdzv_state *s, struct rdzv_peers *out);

/* The newest list of members that this coordinator has made, or that voters have sent it; zero:
 * there is none. */
struct generation rdzv_state_newest_list(const struct rdzv_state *s);
/* The epoch of the coordinator before this one, if its end is proven (P in rdzv_election.c); 0. */
uint64_t rdzv_state_dead_epoch(const struct rdzv_state *s);

#endif
