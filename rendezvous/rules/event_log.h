/* event_log.h: the events of a job as this process knows them. Pure: no I/O, no clock.
 *
 * Two lists: `job` has what is known of the whole job, in the coordinator's order. In the
 * coordinator's process (event_log_lead()) the events of this process go to `job`. In other
 * processes they go to `own`, and the coordinator sends `job`, own events included, if this process
 * wants the list (event_log_want()): without a reader no event leaves its process.
 *
 * The times of day in `job` do not go backwards: an event that is known late, or comes from another
 * coordinator whose clock is behind, has the time of the one before it. Its at_ns stays.
 *
 * An event is identified by its origin and its number there, and no list has it twice: whoever
 * connects again sends everything from the beginning. (After thousands of launchers, the events of
 * one that has said nothing since then, and connects again, are there once more.) */
#ifndef RENDEZVOUS_RULES_EVENT_LOG_H
#define RENDEZVOUS_RULES_EVENT_LOG_H

#include "core/map.h"
#include "rendezvous/rules/event.h"

struct ledger_past;

/* The bytes that the events of a list may take with their texts; a list that would take more drops
 * its older half. About 60,000 events, or fewer when their texts are long. */
#define EVENT_LOG_BYTES (16u << 20)

struct event_list {
    struct event *e; /* event number first + i is e[i]; owned, like their texts */
    uint64_t first;
    size_t n, cap, bytes;
    struct ledger_past *past; /* the ledger's part of dropped events (ledger_keep()); or NULL */
    void (*on_drop)(struct ledger_past *past, const struct event *e);
};

struct event_log {
    struct node_id id;
    uint64_t seq; /* of the newest own event */
    struct event_list own, job;
    struct map seen;              /* origin -> number of its newest event in `job` */
    size_t most_seen;             /* origins, before some are forgotten */
    uint64_t wall_ns;             /* of the newest event in `job` */
    bool leads;                   /* the coordinator is in this process */
    bool wanted;                  /* this process wants the job's events */
    bool finished;                /* `job` has its last event */
    bool send;                    /* some process wants events: own events go to the coordinator */
    void (*on_change)(void *arg); /* NULL: none. A list has grown, or `wanted` is set */
    void *arg;
};

void event_log_init(struct event_log *l, const struct node_id *id);
void event_log_fini(struct event_log *l);

/* Records an own event, with its times set; id and number are set here. The texts are copied. */
void event_log_add(struct event_log *l, const struct event *e);

/* Takes an event of another process, or an own one as the coordinator ordered it; takes its texts.
 * False: it is known. */
bool event_log_take(struct event_log *l, struct event *e);

/* The coordinator is in this process, or not any more. Own events that the former coordinator has
 * not sent back go into `job`. */
void event_log_lead(struct event_log *l, bool leads);
/* Puts own events that are not in `job` there: no coordinator orders them any more. */
void event_log_settle(struct event_log *l);
void event_log_want(struct event_log *l);

/* The event with the number *at, or the oldest one after it; *at is the number behind it then.
 * NULL: there is none. Valid until the list changes. */
const struct event *event_list_next(const struct event_list *l, uint64_t *at);

/* Nanoseconds from this process's clock to the coordinator's, by the newest own event that has come
 * back from there. */
int64_t event_log_offset(const struct event_log *l);

#endif
