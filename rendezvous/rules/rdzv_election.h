/* rdzv_election.h: who may be coordinator, whether it may start rounds, and until when it may give
 * out leases. Pure; rdzv_election.c states the invariants. */
#ifndef RENDEZVOUS_RULES_RDZV_ELECTION_H
#define RENDEZVOUS_RULES_RDZV_ELECTION_H

#include "rendezvous/rules/rdzv_nodes.h"
#include "rendezvous/rules/rdzv_quorum.h"
#include "rendezvous/rules/rdzv_settings.h"

struct rdzv_place;

/* The lists of members that count: of the newest round that ran, and of the newest round that was
 * prepared after it. */
enum rdzv_list { RDZV_LIST_RAN, RDZV_LIST_PREPARED, RDZV_LISTS };

struct rdzv_election {
    const struct rdzv_rules *rules; /* borrowed, like the nodes */
    const struct rdzv_nodes *nodes;
    uint64_t epoch;                        /* of this coordinator */
    struct rdzv_quorum quorum[RDZV_LISTS]; /* by enum rdzv_list */
    struct rdzv_peers peers;               /* of the round that is prepared or runs */
    bool standing;                         /* not yet elected: no view is sent */
    uint64_t dead_epoch;                   /* of the coordinator that is proven to have ended; 0 */
    uint64_t seen_epoch; /* the highest that a voter has seen; 0: nobody stood here */
    uint64_t random, stood_ns;
    uint64_t lease_until, lease_look_at; /* as of the last look; when to look again */
    uint64_t vote_ns; /* when a witness was added to the list; 0: the witness has the list, or there
                         is none */
    uint64_t prepare_ns;    /* when the list of the newest round was made */
    uint64_t quarantine_at; /* the time at which old leases have run out; NEVER: they have */
    uint64_t few_ns;        /* the time since which too few members are here; 0: enough are */
    uint64_t look_at;       /* the time to check again whether a round may start; NEVER: it may */
};

void rdzv_election_init(struct rdzv_election *e, const struct rdzv_rules *rules,
                        const struct rdzv_nodes *nodes, uint64_t epoch);
void rdzv_election_fini(struct rdzv_election *e);

/* Makes this node a candidate. */
void rdzv_election_stand(struct rdzv_election *e, const struct rdzv_electorate *by, uint64_t now);
/* Records an epoch that a voter has seen. */
void rdzv_election_seen(struct rdzv_election *e, uint64_t epoch);
/* Records a list of members that this node or a voter knows. */
void rdzv_election_add_list(struct rdzv_election *e, const struct rdzv_peers *list);
/* The launcher is proven to have ended. */
void rdzv_election_dead(struct rdzv_election *e, const struct node_id *id);

/* Whether a launcher has followed a coordinator that was elected later than this one, which then
 * may begin no further round. is_replaced: by the highest epoch that the launcher has seen;
 * counter: the number of this coordinator's rounds. is_of_another: by the list of members that it
 * has. */
bool rdzv_election_is_replaced(const struct rdzv_election *e, uint64_t seen_epoch,
                               uint32_t counter);
bool rdzv_election_is_of_another(const struct rdzv_election *e, const struct rdzv_peers *list);

enum rdzv_verdict {
    ELECTION_WAIT,     /* for votes, for old leases, for a majority: until look_at */
    ELECTION_ELECTED,  /* just now, by `present` of `total`; epoch is the new one: ask again */
    ELECTION_MINORITY, /* `present` of `total` are not enough: the coordinator has to give up */
    ELECTION_MAY_START,
};
struct rdzv_tally {
    int present, total;
};

/* Whether this coordinator may start rounds. grace_at: nothing is given up before. */
enum rdzv_verdict rdzv_election_may_start(struct rdzv_election *e, uint64_t grace_at, uint64_t now,
                                          struct rdzv_tally *tally);

/* A round is prepared with these members: makes its list. */
void rdzv_election_prepare(struct rdzv_election *e, struct rdzv_node *const *members, int n,
                           const struct rdzv_place *place, struct generation gen, uint64_t now);
/* Whether the round whose members are all prepared may run. */
bool rdzv_election_may_run(const struct rdzv_election *e, uint64_t now);
/* The prepared round runs: its list is now that of the newest round that ran. */
void rdzv_election_run(struct rdzv_election *e);
/* The list of the newest round that ran, for members that are about to replace it by the list of
 * the prepared round. Until that round runs, the older list still counts in an election, and a
 * member that was not in the older round has never received it. NULL: no round ran before. */
const struct rdzv_peers *rdzv_election_ran(struct rdzv_election *e);

/* A witness has joined while a round is prepared or runs. True: the list has grown. */
bool rdzv_election_add_witness(struct rdzv_election *e, bool runs, uint64_t now);
/* Whether this witness has just confirmed the list in which it has a vote. */
bool rdzv_election_witness_has_vote(struct rdzv_election *e, const struct rdzv_node *w);
/* Whether the node has a vote as a witness. */
bool rdzv_election_is_voting_witness(const struct rdzv_election *e, const struct rdzv_node *n);

/* Whether the connected members are a quorum (I2), so that this coordinator may stay one. */
bool rdzv_election_has_quorum(const struct rdzv_election *e);
/* The time until which leases may be given out without asking again. */
uint64_t rdzv_election_lease_until(struct rdzv_election *e, uint64_t now);

#endif
