/* ledger.h: where the time of a job went: every node-second in one class, from the job's events.
 * Pure. A node's time begins with its first event and ends when it leaves, is lost, or the job
 * ends. */
#ifndef RENDEZVOUS_RULES_LEDGER_H
#define RENDEZVOUS_RULES_LEDGER_H

#include "rendezvous/rules/event_log.h"

enum ledger_class {
    LEDGER_RENDEZVOUS, /* the nodes of the first round were expected */
    LEDGER_START,      /* workers of the node were started */
    LEDGER_FIRST,      /* until the first operation of libdlcoll; if there is one in the round */
    LEDGER_RUNNING,
    LEDGER_WAITING, /* in operations of libdlcoll, or for other nodes at the end */
    LEDGER_LOST,    /* the part of these three that a stop has undone: since the last checkpoint */
    LEDGER_RESTART, /* from a stop until workers run again */
    LEDGER_END,     /* from the last stop until the end */
    LEDGER_CLASSES,
};

struct ledger {
    uint64_t ns[LEDGER_CLASSES];
    uint64_t total_ns; /* of all nodes, from begin to end; the sum of ns[] */
    int nodes;
};

const char *ledger_name(enum ledger_class c);    /* "rendezvous": in JSON and metrics */
const char *ledger_meaning(enum ledger_class c); /* for people */

/* now_ns: on the clock of the events, until when a job that still runs is accounted; 0: until its
 * last event. */
void ledger_of_events(struct ledger *out, const struct event_list *events, uint64_t now_ns);

/* The list's events count when the list has dropped them, too, until ledger_forget(). */
void ledger_keep(struct event_list *events);
void ledger_forget(struct event_list *events);

/* The text of EVENT_NODE_LEDGER, which a node writes when its workers stop running: the part of the
 * round in which the workers waited, and the time since the last checkpoint; negative: there is no
 * mark of a checkpoint. */
void ledger_note(char *out, size_t cap, double waiting_s, double checkpoint_age_s);

#endif
