/* member_state.h: the rules of a member, which is each launcher towards the coordinator. No I/O, no
 * clock, no libuv.
 *
 *             view PREPARE       rdzv_prepared         view RUN
 *      IDLE -------------> PREPARING ------> PREPARED ---------> RUNNING ----> DONE
 *        ^                     |                |    rdzv_failed,  |   rdzv_done |
 *        |                     v                v    view STOP     v             |
 *        +<--------------------+----------------+             STOPPING <---------+
 *        |                                                        |   view STOP
 *        +<-------------------------------------------------------+
 *                             rdzv_stopped
 *
 * The coordinator's views give the state that is wanted; the member moves there, and reports every
 * change by a status. A connection that breaks is made again, and the round goes on meanwhile,
 * until the coordinator has been silent for the dead time or is proven to have ended (P in
 * rdzv_election.c). Then, if the job allows it, the members of the last round elect another
 * coordinator: each calls the members before it in that round's order, and the first one that is
 * alive stands for election. */
#ifndef RENDEZVOUS_RULES_MEMBER_STATE_H
#define RENDEZVOUS_RULES_MEMBER_STATE_H

#include "core/log.h"
#include "rendezvous/rules/rdzv_msg.h"

struct member_rules {
    struct rdzv_hello hello;
    const char *token;              /* where this node's job token comes from, for messages */
    const char *coordinator;        /* its address, for messages; borrowed */
    uint64_t join_ns;               /* time to be let in */
    uint64_t read_ns;               /* time for the first answer on a connection */
    bool lease;                     /* workers live on a lease (jobs of several nodes) */
    uint64_t heartbeat_ns, dead_ns; /* until the coordinator has sent its own */
};

struct member_state;

struct member_state *member_state_new(const struct member_rules *rules, uint64_t now);
void member_state_free(struct member_state *m);

/* The address to advertise, once its name has been resolved. */
void member_state_set_local_addr(struct member_state *m, const char *ip);

/* The connection. While member_state_wants_link(), the driver makes one. */
bool member_state_wants_link(const struct member_state *m);
/* Whether a coordinator has let this node in; before that, the driver may look for another one. */
bool member_state_joined(const struct member_state *m);
/* Whether a coordinator has answered on the newest connection, which may have ended since. */
bool member_state_answered(const struct member_state *m);
void member_state_connected(struct member_state *m, uint64_t now);
/* The connection ended. why: one line. */
void member_state_disconnected(struct member_state *m, enum rdzv_end how, const char *why,
                               uint64_t now);
/* The connection could not be made. refused: the host answered that nothing listens on the port. */
void member_state_unreachable(struct member_state *m, bool refused, const char *why, uint64_t now);

/* The coordinator is lost, and the members of the list elect another one. self: the index of this
 * node in the list, or -1. The driver connects to the first member that is in reach. When that is
 * this node, the driver makes a candidate with the electorate, if this node may stand: nodes that
 * were not in the round only follow. */
bool member_state_electing(const struct member_state *m);
const struct rdzv_peers *member_state_electors(const struct member_state *m, int *self);
bool member_state_may_stand(const struct member_state *m);
void member_state_electorate(const struct member_state *m, struct rdzv_electorate *out);
/* A candidate has answered. */
void member_state_noticed(struct member_state *m, uint64_t now);
/* Sets the port at which this node listens for the other nodes. */
void member_state_set_peer_port(struct member_state *m, int port);

/* Messages of the coordinator. */
void member_state_view(struct member_state *m, const struct rdzv_view *v, uint64_t now);
/* News from the heartbeats (beat.h): when the newest answer arrived, from when on a lease was given
 * (0: none), how far the coordinator's loop is behind. The news may be old. */
void member_state_beat(struct member_state *m, uint64_t heard_ns, uint64_t lease_from_ns,
                       uint32_t lag_ms, uint64_t now);
void member_state_table(struct member_state *m, struct rank_table *t);   /* takes its content */
void member_state_peers(struct member_state *m, struct rdzv_peers *p);   /* takes its content */
void member_state_report(struct member_state *m, struct rdzv_result *r); /* takes r->failures */
void member_state_refused(struct member_state *m, const struct rdzv_refusal *r, uint64_t now);

/* Events of the agent, as in rdzv.h. In a state that does not expect them they do nothing. */
void member_state_prepared(struct member_state *m, const uint16_t *ports, int n, int free_port);
void member_state_failed(struct member_state *m, const struct failure *f);
void member_state_done(struct member_state *m);
void member_state_stopped(struct member_state *m, const struct failure *all, size_t n);
void member_state_leave(struct member_state *m, enum stop_reason reason, int exit_code,
                        const char *text);
/* The rendezvous is impossible with the options of this node: a port in use, another user's file.
 */
void member_state_fail(struct member_state *m, const char *text);

/* Asserts what must hold after every event: what is due fits the state of the round, and what is
 * known of the connection, the lease and the end does not contradict itself. For tests. */
void member_state_check(const struct member_state *m);

void member_state_tick(struct member_state *m, uint64_t now);
uint64_t member_state_deadline(const struct member_state *m); /* UINT64_MAX: no tick is due */

enum member_act {
    MEMBER_ACT_LOG,        /* level, text */
    MEMBER_ACT_HELLO,      /* hello: first on a new connection */
    MEMBER_ACT_PEERS,      /* peers: after the hello, to a candidate */
    MEMBER_ACT_STATUS,     /* status */
    MEMBER_ACT_DISCONNECT, /* close the connection; reset: so that it does not look like the end */
    MEMBER_ACT_PREPARE,    /* gen, group_rank, nnodes */
    MEMBER_ACT_RUN,        /* table, group_rank */
    MEMBER_ACT_RESPAWN,    /* respawn */
    MEMBER_ACT_STOP,       /* why */
    MEMBER_ACT_FENCE,      /* the lease is over: kill */
    MEMBER_ACT_LEASE,      /* until_ns: when the guardian kills the workers */
    MEMBER_ACT_FINISH,     /* result; nothing follows */
};

/* Pointers are valid until the next call, except: table until the next MEMBER_ACT_PREPARE, result
 * for the state's life. */
struct member_action {
    enum member_act act;
    bool reset;
    enum log_level level;
    const char *text;
    const struct rdzv_hello *hello;
    const struct rdzv_peers *peers;
    const struct rdzv_status *status;
    struct generation gen;
    int group_rank, nnodes;
    const struct rank_table *table;
    struct rdzv_respawn respawn;
    const struct rdzv_stop *why;
    const struct rdzv_result *result;
    uint64_t until_ns;
};

/* The next thing to do; false when there is none. */
bool member_state_next(struct member_state *m, struct member_action *a, uint64_t now);

/* Fills phase, gen, group_rank, nnodes, world_size and restart_count, for status displays. */
void member_state_get_info(const struct member_state *m, struct rdzv_info *out);

#endif
