/* delay.h: how long this process was not running. A process that does not run hears nothing, so
 * that its delay does not count as silence of others; and after a long delay the process first
 * reads the messages that have arrived meanwhile. Pure. */
#ifndef RENDEZVOUS_RULES_DELAY_H
#define RENDEZVOUS_RULES_DELAY_H

#include <stdbool.h>
#include <stdint.h>

struct delay {
    uint64_t due_at;    /* the next tick; a later one shows that this process did not run */
    uint64_t late_ns;   /* the sum of the delays */
    uint64_t graced_ns; /* when grace_at was set, by the owner's clock; 0: never */
    uint64_t grace_at;  /* silence does not count before: messages may be unread */
};

/* To be called at each tick; every_ns: the time between two ticks. Returns whether the delay was a
 * long one, after which delay_grace() gives time to read. */
static inline bool delay_tick(struct delay *d, uint64_t every_ns, uint64_t now)
{
    uint64_t late = now > d->due_at ? now - d->due_at : 0;
    if (now >= d->due_at)
        d->due_at = now + every_ns;
    d->late_ns += late;
    return late > every_ns / 2;
}

static inline void delay_grace(struct delay *d, uint64_t for_ns, uint64_t by, uint64_t now)
{
    d->graced_ns = by;
    d->grace_at = now + for_ns;
}

/* `at`, or the end of the time to read. */
static inline uint64_t delay_graced(const struct delay *d, uint64_t at)
{
    return at > d->grace_at ? at : d->grace_at;
}

/* The time at which a peer will have been silent for ns that was heard last at heard_ns, when the
 * sum of the delays was late_ns. */
static inline uint64_t delay_silent_at(const struct delay *d, uint64_t heard_ns, uint64_t late_ns,
                                       uint64_t ns)
{
    return delay_graced(d, heard_ns + (d->late_ns - late_ns) + ns);
}

#endif
