/* keep.h: when a coordinator renews what is published of it, and what follows when another
 * coordinator of the job is found. Pure. */
#ifndef RENDEZVOUS_RULES_KEEP_H
#define RENDEZVOUS_RULES_KEEP_H

#include <stdbool.h>
#include <stdint.h>

#define KEEP_SOON_NS 250000000u /* between attempts of a candidate, which waits for a vote */

/* With each heartbeat, and often enough for a lease of the dead time; a candidate waits for the end
 * of the lease of the coordinator that was. */
static inline uint64_t keep_again_ns(uint64_t heartbeat_ns, uint64_t dead_ns, bool kept,
                                     bool stands)
{
    uint64_t every = heartbeat_ns < dead_ns / 3 ? heartbeat_ns : dead_ns / 3;
    return !kept && stands && every > KEEP_SOON_NS ? KEEP_SOON_NS : every;
}

enum keep_verdict {
    KEEP_NOTHING,
    KEEP_VOTE,     /* the coordinator has heard of etcd's vote */
    KEEP_MOVE,     /* this coordinator is given up for the other one */
    KEEP_TWO_JOBS, /* both have begun a round: to be warned of */
};

/* Another coordinator of this id is there. begun: this one has begun a round. */
static inline enum keep_verdict keep_elsewhere(bool begun)
{
    return begun ? KEEP_TWO_JOBS : KEEP_MOVE;
}

/* kept: etcd votes for this coordinator; found: for another one. Between elected ones votes decide.
 */
static inline enum keep_verdict keep_verdict(bool kept, bool found, bool elected, bool begun)
{
    if (kept)
        return KEEP_VOTE;
    return found && !elected ? keep_elsewhere(begun) : KEEP_NOTHING;
}

/* Two jobs with one id. */
struct two_jobs {
    uint64_t since_ns; /* 0: there is only one */
    bool warned;
};

/* Whether to warn now, once. A coordinator of this job that was only cut off does not cause the
 * warning: it detects that it has no majority, and ends within twice the dead time. */
static inline bool two_jobs_seen(struct two_jobs *t, uint64_t dead_ns, uint64_t now)
{
    if (!t->since_ns)
        t->since_ns = now;
    bool warn = !t->warned && now - t->since_ns >= 2 * dead_ns;
    t->warned |= warn;
    return warn;
}

#endif
