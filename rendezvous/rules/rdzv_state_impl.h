/* rdzv_state_impl.h: shared by rdzv_state.c (events and actions), rdzv_phase.c (the phases),
 * rdzv_join.c (who may join, and what is said while waiting) and rdzv_elect.c. */
#ifndef RENDEZVOUS_RULES_RDZV_STATE_IMPL_H
#define RENDEZVOUS_RULES_RDZV_STATE_IMPL_H

#include "core/log.h"
#include "core/map.h"
#include "rendezvous/rules/failure_log.h"
#include "rendezvous/rules/rdzv_crash_loop.h"
#include "rendezvous/rules/rdzv_quorum.h"
#include "rendezvous/rules/rdzv_settings.h"

#define NEVER UINT64_MAX

/* Messages that are still to be sent on a connection. */
#define PENDING_TABLE  1u
#define PENDING_REPORT 2u
#define PENDING_VIEW   4u
#define PENDING_NOTICE 8u
#define PENDING_CLOSE  16u
#define PENDING_PEERS  32u

struct rdzv_conn {
    struct rdzv_node *node; /* NULL: none, or a connection that is being closed */
    unsigned pending;
    bool queued;
    char *refusal; /* owned; NULL: close without a word */
    bool retry;
};

struct rdzv_line {
    enum log_level level;
    char *text; /* owned */
};

/* A launcher that could not join. */
#define ATTEMPTS_MAX 8
struct rdzv_attempt {
    char who[HOST_MAX + ADDR_STRLEN + 4];
    char text[RDZV_TEXT_MAX];
    int count;
    uint64_t logged_ns;
};

#define RDZV_REPLACED "this coordinator was out of reach for so long that another was elected"

struct rdzv_state {
    struct rdzv_rules rules;
    enum rdzv_phase phase;
    struct generation gen;
    int restarts;      /* charged to max_restarts */
    int node_restarts; /* charged to max_node_restarts */
    struct rdzv_crash_loop crash_loop;
    bool began; /* some round has run */

    /* Nodes. */
    struct rdzv_node **nodes;
    int nnodes, cap_nodes;
    struct map by_id;
    struct rdzv_node **by_rank; /* by the node_rank they asked for */
    int cap_by_rank;
    int nready;     /* could start now */
    int nbusy;      /* have workers, or have not said yet that they have none */
    int nleaving;   /* of nnodes */
    int nwitnesses; /* of nnodes, not among nleaving */

    /* The round: members[group rank], NULL when it was lost. */
    struct rdzv_node **members;
    int nmembers;
    int nprepared, ndone;
    int nrunning; /* in STOP: members that have not yet stopped */
    struct rank_table table;
    uint64_t run_ns, stop_ns; /* when it started, and when it began to stop */
    struct failure_log log;   /* of the round */
    size_t failures_total;    /* workers and nodes that have a record */

    /* The stop, and what follows from it. */
    struct rdzv_stop why, given_up;
    uint32_t why_counter; /* of the round that was stopped; 0: none was */
    bool node_gone;       /* it was stopped because a node was lost or left */
    bool end;             /* the job ends after it, like this: */
    enum stop_reason end_reason;
    int end_code;
    char end_text[RDZV_TEXT_MAX];
    /* The newest node that went away, when too few are left. */
    enum stop_reason gone_reason;
    int gone_code;
    char gone_text[RDZV_TEXT_MAX];

    /* Elections. */
    struct rdzv_quorum quorum[2]; /* the members of the newest round that ran, that was prepared */
    struct rdzv_peers peers;      /* of the round that is prepared or runs */
    bool standing;                /* not yet elected: no view is sent */
    uint64_t dead_epoch;          /* of the coordinator that is proven to have ended; 0 */
    uint64_t lease_until;         /* as of the last look */
    uint64_t seen_epoch, random, stood_ns, lease_look_at;
    uint64_t vote_ns;    /* when a witness was added to the list; 0: it has it, or there is none */
    uint64_t prepare_ns; /* when the list of the newest round was made */
    uint64_t quarantine_at; /* old leases have run out then */
    uint64_t settle_at;     /* until then more nodes may find a new coordinator; NEVER: not new */
    uint64_t few_ns;        /* since when too few are here; 0: they are enough */
    uint64_t elect_at;      /* when to look again whether a round may start */

    /* Deadlines; NEVER when not set. */
    uint64_t collect_ns; /* when COLLECT began */
    uint64_t join_at, last_call_at, not_before, notice_at, respawn_at, check_at, close_at;
    uint64_t hold_at;   /* until then a lost node may have workers; 0: none has */
    uint64_t pulse_at;  /* a tick that comes later than this: the process did not run */
    uint64_t late_ns;   /* by how much in all: every node has that much longer to be heard of */
    uint64_t graced_ns; /* by a clock that does not run while this process is late */
    uint64_t grace_at;  /* no silence counts before: what was said meanwhile may lie here unread */

    /* Output. */
    struct rdzv_conn *conns;
    size_t nconns;
    uint32_t *queue; /* connections with something pending, first in first out */
    size_t queue_head, queue_len, queue_cap;
    struct rdzv_line *lines;
    size_t line_head, nlines, cap_lines;
    char *said; /* the text of the line handed out last */
    bool new_round, finished, finished_said;
    char notice[RDZV_NOTICE_MAX];
    struct rdzv_respawn *respawns; /* of the view handed out last */
    struct rdzv_attempt attempts[ATTEMPTS_MAX];
    int nattempts;

    struct rdzv_result result;
    uint64_t result_ns;
};

/* rdzv_state.c */
void rdzv_state_log(struct rdzv_state *s, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void rdzv_state_send(struct rdzv_state *s, struct rdzv_node *n, unsigned pending);
void rdzv_state_send_all(struct rdzv_state *s, unsigned pending);
void rdzv_state_update_ready(struct rdzv_state *s, struct rdzv_node *n);
void rdzv_state_heard(struct rdzv_state *s, struct rdzv_node *n, uint64_t now);
/* The node is lost, but may have workers: no round begins before their lease has ended. */
void rdzv_state_hold_for(struct rdzv_state *s, const struct rdzv_node *n);
void rdzv_state_remove(struct rdzv_state *s, struct rdzv_node *n); /* frees it */
void rdzv_state_close(struct rdzv_state *s, uint32_t conn, const char *refusal, bool retry);
/* Launchers with workers. */
static inline int rdzv_state_count(const struct rdzv_state *s)
{
    return s->nnodes - s->nwitnesses;
}
/* Launchers with workers that are not about to leave. */
static inline int rdzv_state_live(const struct rdzv_state *s)
{
    return rdzv_state_count(s) - s->nleaving;
}
/* Nodes that may be here at once. */
static inline int rdzv_state_places(const struct rdzv_state *s)
{
    return s->rules.max_nodes + s->rules.spares;
}
/* The last call is for the job's first round. A later one, be it the first of an elected
 * coordinator, does not wait for more nodes than are left: another one is taken in when it joins.
 */
static inline bool rdzv_state_first_round(const struct rdzv_state *s)
{
    return s->gen.counter == 0 && s->quorum[0].list.n == 0;
}
static inline bool rdzv_state_dynamic(const struct rdzv_state *s)
{
    return s->rules.backend != RDZV_STATIC;
}

/* rdzv_phase.c: each looks whether the phase has come to its end. */
void rdzv_phase_start(struct rdzv_state *s, uint64_t now);
void rdzv_phase_advance(struct rdzv_state *s, uint64_t now);
void rdzv_phase_prepared(struct rdzv_state *s, struct rdzv_node *n, const struct rdzv_status *st,
                         uint64_t now);
void rdzv_phase_done(struct rdzv_state *s, struct rdzv_node *n, uint64_t now);
void rdzv_phase_stopped(struct rdzv_state *s, struct rdzv_node *n, const struct rdzv_status *st,
                        uint64_t now);
void rdzv_phase_failure(struct rdzv_state *s, struct rdzv_node *n, const struct failure *f,
                        uint64_t now);
void rdzv_phase_leave(struct rdzv_state *s, struct rdzv_node *n, const struct rdzv_status *st,
                      uint64_t now);
/* A node outside the round is ready. */
void rdzv_phase_newcomer(struct rdzv_state *s, struct rdzv_node *n, uint64_t now);
/* Removes the node; how: NULL when it went as agreed; since: when it went, as far as that is known.
 */
void rdzv_phase_lost(struct rdzv_state *s, struct rdzv_node *n, const char *how, uint64_t since,
                     uint64_t now);

void rdzv_phase_finish(struct rdzv_state *s, int exit_code, enum stop_reason reason,
                       const char *text, uint64_t now);

/* rdzv_elect.c */
void rdzv_elect_start(struct rdzv_state *s, const struct rdzv_electorate *e, uint64_t now);
void rdzv_elect_list(struct rdzv_state *s, const struct rdzv_peers *list);
void rdzv_elect_seen(struct rdzv_state *s, uint64_t epoch);
/* Whether this coordinator was elected and no round of its own has run. */
bool rdzv_elect_is_new(const struct rdzv_state *s);
bool rdzv_elect_may_start(struct rdzv_state *s, uint64_t now);
void rdzv_elect_hello(struct rdzv_state *s, uint32_t conn, const struct rdzv_hello *h);
void rdzv_elect_prepare(struct rdzv_state *s, uint64_t now);
const struct rdzv_peers *rdzv_elect_ran(struct rdzv_state *s); /* NULL: none */
void rdzv_elect_run(struct rdzv_state *s);
void rdzv_elect_witness(struct rdzv_state *s, const struct rdzv_node *w, uint64_t now);
void rdzv_elect_dead(struct rdzv_state *s, const struct rdzv_node *n);
bool rdzv_elect_may_run(const struct rdzv_state *s, uint64_t now);
bool rdzv_elect_quorum(const struct rdzv_state *s);
uint64_t rdzv_elect_lease_until(struct rdzv_state *s, uint64_t now);

/* rdzv_join.c */
void rdzv_join_hello(struct rdzv_state *s, uint32_t conn, const struct rdzv_hello *h,
                     const struct rdzv_peer *peer, uint64_t now);
void rdzv_join_attempt(struct rdzv_state *s, const char *host, const char *addr, const char *text,
                       uint64_t now);
void rdzv_join_notice(struct rdzv_state *s, uint64_t now);
/* "only 3 of 4 nodes joined within 60 s; ..." */
void rdzv_join_timeout_text(struct rdzv_state *s, uint64_t now, char *out, size_t cap);
const char *rdzv_join_name(const struct rdzv_node *n, char *out,
                           size_t cap); /* "gpu-b (10.0.0.2)" */

#endif
