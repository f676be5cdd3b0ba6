/* requeue_rules.h: which launcher of a job whose time is over asks Slurm to start it again
 * (--requeue). Pure.
 *
 *   a coordinator has told the result     its launcher asks: it is the last one that ends
 *   none has: each launcher has ended     the one on the first node of Slurm's job asks, which may
 *   by itself                             be gone; the others say so
 *
 * Both may happen in one job, when the first node was cut off from the coordinator: Slurm refuses
 * the second request, which then is none of the user's troubles. A launcher that is killed after
 * its coordinator has told the result, and before Slurm has answered, takes the request with it. */
#ifndef LAUNCHER_OPTIONS_REQUEUE_RULES_H
#define LAUNCHER_OPTIONS_REQUEUE_RULES_H

#include <stdbool.h>

enum requeue_part {
    REQUEUE_NONE, /* it is not wanted, or the job has not ended for want of time */
    REQUEUE_ASK,
    REQUEUE_COORDINATOR, /* the coordinator's launcher asks */
    REQUEUE_FIRST_NODE,  /* the launcher on the first node asks */
};

/* How the job has ended for this launcher. */
struct requeue_end {
    bool wanted;
    bool time_is_over; /* by the exit status */
    bool decided;      /* a coordinator has told the result */
    bool coordinator;  /* which is in this process */
    bool first_node;   /* of Slurm's job */
};

enum requeue_part requeue_part(const struct requeue_end *e);

/* What a launcher says that does not ask; NULL: nothing. */
const char *requeue_reason(enum requeue_part part);

/* Whether Slurm refuses since the job is in its queue already: another launcher has asked. */
bool requeue_is_done(const char *answer);

#endif
