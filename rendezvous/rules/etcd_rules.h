/* etcd_rules.h: how a launcher finds the coordinator in etcd, publishes its own there, and holds
 * etcd's vote. No I/O, no clock, no libuv: what etcd has answered goes in with the time, what is to
 * be asked comes out. Two keys:
 *
 *     coordinator   where the coordinator is (a line), under a lease of the launcher that hosts it;
 *                   before that launcher listens, a claim
 *     round         the newest list of members that has a vote of etcd, and whether a candidate has
 *                   taken the key since, be it elected, and has begun no round. Not under a lease
 *
 * What a launcher that looks finds, and does:
 *
 *   neither                       claim, listen, publish, host
 *   a line                        join at the addresses in it
 *   a claim                       look again
 *   a round without coordinator   its coordinator is lost, and its nodes are about to elect another
 *                                 one: the first key stays free for a moment, then as above
 *   something else                not ours: left alone, an error
 *
 * An operation is a chain of questions, one after the other:
 *
 *       look                            own value, another's
 *     REST ---> READ -------------------------------------------------------------> REST (done)
 *                |  no value, or one that may be replaced                             ^
 *                v                                                                    |
 *              ROUND ---> GRANT ---> PUT ---------------------------------------------+
 *       keep                        ^ |  |  another has been faster?                  |
 *     REST -------------------------+ |  +----------> READ -> ...                     |
 *       publish, withdraw             +-------------> RENEW --------------------------+
 *
 *   READ     what is in `coordinator`
 *   ROUND    what is in `round`
 *   GRANT    a lease
 *   PUT      the keys, if `coordinator` has the value that was read
 *   RENEW    the lease
 *   REVOKE   a lease that is of no use any more, before whatever is next
 *   PAUSE    publishing begins again in a moment
 *
 * Who holds the first key has etcd's vote. A coordinator renews it with each heartbeat, and then
 * counts etcd as a witness that it has just heard of; so a node of two can go on when the other one
 * is lost. What a witness promises, etcd does, because:
 *
 * - A launcher gets the key when it is free, that is at the earliest the lease's time after the
 *   last renewal of the launcher that had it, and a lease lasts for a dead time at least. So etcd
 *   votes for another coordinator when it has not heard of the former one for the dead time.
 * - A candidate gets it only if it knows the list in `round` or a newer one; and a list with a vote
 *   of etcd counts when it is in `round` (has_vote in rdzv_election.c).
 * - A coordinator that the members have elected without etcd takes the key from the former one,
 *   which then can no longer renew it; and a candidate takes it from one whose end is proven, but
 *   not from another candidate.
 *
 * etcd may forget: it is started again without its data, or with older data. It may then have given
 * its vote a moment ago, and not know it. So:
 *
 * - A candidate that does not find its own list in `round` waits for the dead time before it takes
 *   a free key. Meanwhile the coordinator that etcd has forgotten puts its line there again.
 * - A coordinator that has not renewed the key for the dead time has no vote until it has held the
 *   key for the dead time: another one may have had it, be it not to be seen.
 * - When the revision of the data goes back, what was recorded is recorded again.
 * - A coordinator that has begun rounds takes the key from one that has begun none: that one was
 *   started because etcd had forgotten this job. */
#ifndef RENDEZVOUS_RULES_ETCD_RULES_H
#define RENDEZVOUS_RULES_ETCD_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "rendezvous/rules/rank_table.h"

struct etcd_rules_config {
    const char *key; /* of the coordinator, for messages; borrowed */
    uint64_t dead_ns;
    bool may_host; /* this launcher may become the coordinator of a new job */
};

struct etcd_rules;

struct etcd_rules *etcd_rules_new(const struct etcd_rules_config *config);
void etcd_rules_free(struct etcd_rules *r);

/* ---------------------------------------------------------------------------------- operations */

/* One at a time: each goes on until ETCD_ACT_DONE. Texts are copied. */

/* Looks where the coordinator is. claim: what this launcher, and no other one, writes before it
 * becomes the coordinator. */
void etcd_rules_look(struct etcd_rules *r, const char *claim, uint64_t now);

/* After a look with ETCD_OURS: publishes where this launcher listens, for a new job. Asks until
 * that is done, or another launcher has been faster. */
void etcd_rules_publish(struct etcd_rules *r, const char *line, uint64_t now);

/* What the coordinator of this launcher is. */
struct etcd_coordinator {
    struct generation list; /* the newest list of members that it has made or been sent */
    uint64_t dead_epoch;    /* of a former coordinator that has ended for certain; 0 */
    bool stands;            /* for election */
    bool leads;             /* it was elected */
    bool begun;             /* it has begun a round, and the job is not over */
};
/* Renews the key, or takes it. line: the same text as long as the launcher listens there. */
void etcd_rules_keep(struct etcd_rules *r, const struct etcd_coordinator *c, const char *line,
                     uint64_t now);

/* over: the job is; else the keys go with the lease. */
void etcd_rules_withdraw(struct etcd_rules *r, bool over, uint64_t now);

/* --------------------------------------------------------------------------------------- events */

enum etcd_value { ETCD_NOTHING, ETCD_CLAIM, ETCD_LINE, ETCD_FOREIGN };

/* The answer to the newest question. */
struct etcd_answer {
    int rc; /* 0, or a negative errno with a text: then the question may have been carried out */
    const char *why;
    int64_t revision;        /* of etcd's data; 0: not told */
    bool yes;                /* PUT: done; RENEW: the lease lives */
    int64_t lease;           /* GRANT */
    enum etcd_value kind;    /* READ */
    const char *value;       /* READ; NULL: nothing */
    struct generation round; /* ROUND; zero: there is none */
    bool taken;              /* ROUND: by a candidate */
};
void etcd_rules_answered(struct etcd_rules *r, const struct etcd_answer *a, uint64_t now);

/* Asserts what must hold after every event. For tests. */
void etcd_rules_check(const struct etcd_rules *r);

/* -------------------------------------------------------------------------------------- actions */

enum etcd_act {
    ETCD_ACT_READ,
    ETCD_ACT_ROUND,
    ETCD_ACT_GRANT, /* for the dead time at least */
    ETCD_ACT_PUT,   /* if `coordinator` has the value `is` (NULL: if it has none), all at once */
    ETCD_ACT_RENEW, /* lease */
    ETCD_ACT_REVOKE,
    ETCD_ACT_PAUSE, /* for ETCD_PAUSE_NS; rc of the answer < 0: give up */
    ETCD_ACT_DONE,  /* of the operation; needs no answer */
};
#define ETCD_PAUSE_NS 200000000u

enum etcd_outcome {
    ETCD_OURS,   /* the key is this launcher's; of keep: and etcd votes for it */
    ETCD_THEIRS, /* value: another coordinator's line */
    ETCD_WAIT,   /* why */
    ETCD_FAILED, /* rc, why */
};

/* What a PUT does with a key. */
enum etcd_change { ETCD_LEAVE, ETCD_SET, ETCD_DELETE };

/* Texts are valid until the next call. */
struct etcd_action {
    enum etcd_act act;
    int64_t lease;
    const char *is, *value;
    enum etcd_change key, record; /* coordinator := value under the lease; round := round, taken */
    struct generation round;
    bool taken;
    enum etcd_outcome outcome;
    int rc;
    const char *why;
};

/* The next thing to do; false when there is none. */
bool etcd_rules_next(struct etcd_rules *r, struct etcd_action *a);

/* Whether the key is this launcher's, as far as it knows. */
bool etcd_rules_holds(const struct etcd_rules *r);

#endif
