/* cause.h: the classes of causes for which a round stops, and what follows from each of them. */
#ifndef RENDEZVOUS_RULES_CAUSE_H
#define RENDEZVOUS_RULES_CAUSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/rules/failure.h"
#include "rendezvous/rules/rdzv_types.h"

enum cause {
    CAUSE_NONE,
    CAUSE_EXIT,       /* a worker exited with a code other than 0 */
    CAUSE_CRASH,      /* a signal that stands for a fault of the program killed it */
    CAUSE_KILLED,     /* a signal that neither dlaunch nor a fault of the program sent */
    CAUSE_OOM,        /* the kernel killed it for want of memory */
    CAUSE_EXEC,       /* the program could not be started */
    CAUSE_EARLY_EXIT, /* the worker exited with 0 while others still needed it */
    CAUSE_MISMATCH,   /* the ranks called different operations of libdlcoll */
    CAUSE_NODE_LOST,
    CAUSE_MEMBERSHIP, /* a node has joined or left */
    CAUSE_SIGNAL,     /* a launcher was told to stop by a signal */
    CAUSE_TIMEOUT,
    CAUSE_REQUEST, /* dlaunchctl */
    CAUSE_COORDINATOR_LOST,
    CAUSE_RENDEZVOUS,
    CAUSE_INTERNAL,
    CAUSE_TIME_LIMIT, /* of the scheduler */
    CAUSE_GPU,        /* a worker's GPU, or a link of it, failed */
    CAUSES,
};

enum cause_action {
    ACTION_DEFAULT, /* of the cause's row */
    ACTION_RESTART, /* as far as --max_restarts and the like allow it */
    ACTION_END,
    ACTION_EVICT, /* restart, without the node of the failure if enough others are present */
    ACTIONS,
};

/* The row of a cause. `settable`: its action may be another one than `action`. */
struct cause_row {
    const char *name;
    enum cause_action action;
    bool settable;
    const char *meaning;
};
const struct cause_row *cause_row(enum cause c);
const char *cause_name(enum cause c); /* "" for CAUSE_NONE */
/* CAUSE_NONE: there is no such name. */
enum cause cause_find(const char *name, size_t len);
const char *cause_action_name(enum cause_action a);
bool cause_action_find(const char *name, size_t len, enum cause_action *out);

/* The actions of a job, by cause; zeroed: the defaults. */
struct cause_actions {
    uint8_t of[CAUSES]; /* enum cause_action */
};
enum cause_action cause_action_of(const struct cause_actions *a, enum cause c);

/* CAUSE_NONE for a worker that dlaunch stopped. */
enum cause cause_of_failure(const struct failure *f);
/* The cause of a stop. first: the failure that it is for; NULL: it is for none. */
enum cause cause_of_stop(enum stop_reason reason, const struct failure *first);

#endif
