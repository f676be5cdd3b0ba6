/* member_state_impl.h: shared by member_state.c (the round), member_contact.c (the coordinator: its
 * connection, its silence, its loss) and member_status.c (what is told to it and to the agent). */
#ifndef RENDEZVOUS_RULES_MEMBER_STATE_IMPL_H
#define RENDEZVOUS_RULES_MEMBER_STATE_IMPL_H

#include "rendezvous/rules/member_state.h"

#define NEVER    UINT64_MAX
#define SAY_NS   5000000000u
#define FIRST_NS 2000000000u /* before the first line about waiting */
/* A coordinator that reset the connection and lets nobody in for so long is gone: what else does
 * this, between two hosts, passes. */
#define REFUSED_NS 250000000u
#define QUEUE_MAX  4096 /* failures not yet acknowledged: one per worker */

enum round_state { IDLE, PREPARING, PREPARED, RUNNING, STOPPING, DONE };

/* Callbacks and messages that are due. */
#define DUE_DISCONNECT 1u
#define DUE_HELLO      2u
#define DUE_STATUS     4u
#define DUE_PREPARE    8u
#define DUE_RUN        16u
#define DUE_STOP       32u
#define DUE_FINISH     64u
#define DUE_LOG        128u
#define DUE_FENCE      256u
#define DUE_LEASE      512u
#define DUE_RAN        1024u
#define DUE_TOLD       2048u

struct queued_failure {
    uint32_t seq;
    uint8_t *bytes; /* encoded; owned */
    size_t len;
};

struct member_state {
    struct member_rules rules;
    unsigned due;

    /* The round. */
    enum round_state round;
    bool has_run;           /* on_run has been called for it */
    bool stop_called;       /* on_stop has been called for it */
    struct generation gen;  /* the newest round it has taken part in */
    struct generation high; /* the highest it has seen, of this coordinator */
    uint64_t seen_epoch;    /* the highest of all coordinators that it has followed */
    int group_rank, nnodes, restart_count;
    bool spare;
    uint8_t *ports; /* as a status has them */
    int nports, free_port;
    struct rank_table table;
    struct rdzv_stop why;
    uint32_t respawned;
    struct rdzv_respawn *respawns; /* to hand out */
    int nrespawns;

    /* The connection. */
    bool connected, answered; /* answered: a view has come on this connection */
    bool joined;              /* by the coordinator of high.epoch */
    bool here;                /* the coordinator is on this host */
    enum rdzv_end ended_how;  /* the last connection to a coordinator that answered */
    uint64_t refused_ns; /* since when connections are refused without a break; 0: they are not */
    uint64_t view_sent_ns, view_seen_ns;
    uint64_t heard_ns; /* of the coordinator */
    bool lagging;      /* the coordinator's loop is behind, and that has been said */
    uint64_t connected_ns, began_ns, say_at;
    uint64_t sent_ns; /* the newest status that is answered */
    uint64_t heartbeat_ns, dead_ns;
    uint64_t lease_ns;    /* workers may live until then; 0: none was given */
    uint64_t unleased_ns; /* since when a round waits here for one; 0: it does not */
    bool fenced;          /* it ran out */
    bool out;             /* of the round, since its coordinator was lost or gives no lease */
    uint64_t pulse_at;    /* a tick that comes later than this: the process did not run */
    uint64_t late_ns;     /* by how much in all since heard_ns */
    uint64_t graced_ns;
    uint64_t grace_at; /* no silence counts before: what was said meanwhile may lie here unread */
    char trouble[RDZV_TEXT_MAX]; /* why it is not connected */
    char line[2 * RDZV_TEXT_MAX];
    enum log_level line_level;

    /* The coordinator is lost. */
    bool electing;
    bool host_dead; /* it is known to have ended */
    uint64_t elect_ns;
    bool elect;             /* the job allows it */
    struct rdzv_peers ran;  /* of the newest round that ran here */
    struct rdzv_peers told; /* the newest that the coordinator has sent */
    int ran_rank, node_restarts;
    char gone[RDZV_TEXT_MAX];

    /* Failures. */
    struct queued_failure *queue;
    size_t nqueue, cap_queue;
    uint32_t last_seq, sent_seq, failures_total;
    struct buf failure_bytes; /* of the status handed out last */

    /* The end. */
    bool leaving;
    enum stop_reason leave_reason;
    int leave_code;
    char leave_text[RDZV_TEXT_MAX];
    bool ended, finished; /* the result is known; FINISH has been handed out */
    bool have_report;
    struct rdzv_result result;
    struct rdzv_status status;
};

/* member_state.c */
void member_state_say(struct member_state *m, enum log_level level, const char *text);
/* Whether workers of the round may be alive, as far as the agent has said. */
static inline bool member_state_has_workers(const struct member_state *m)
{
    return m->round == RUNNING || m->round == STOPPING;
}
/* The job is over for all: nobody will start without this node any more. */
static inline void member_state_drop_lease(struct member_state *m)
{
    if (m->lease_ns)
        m->due |= DUE_LEASE;
    m->lease_ns = 0;
}
/* The round is over for this node. */
void member_state_stop_round(struct member_state *m, const struct rdzv_stop *why);
/* Ends it with a result of its own. */
void member_state_end_alone(struct member_state *m, enum stop_reason reason, int code,
                            const char *text);

/* member_contact.c */
void member_contact_heard(struct member_state *m, uint64_t now);
/* dead: it has ended for sure. */
void member_contact_lost(struct member_state *m, const char *how, bool dead, uint64_t now);

#endif
