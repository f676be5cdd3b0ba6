/* rdzv_output.h: the messages that the coordinator's rules have still to send on each connection,
 * and the lines that they have still to log. A view is not kept, only the fact that it is due: the
 * driver's take makes the view, so that several events in a row cost one view. Pure. */
#ifndef RENDEZVOUS_RULES_RDZV_OUTPUT_H
#define RENDEZVOUS_RULES_RDZV_OUTPUT_H

#include "core/log.h"
#include "rendezvous/rules/event.h"
#include "rendezvous/rules/rdzv_node.h"

/* Messages that are due on a connection, in the order in which they are sent. */
#define RDZV_DUE_PEERS  1u
#define RDZV_DUE_TABLE  2u
#define RDZV_DUE_REPORT 4u
#define RDZV_DUE_VIEW   8u
#define RDZV_DUE_NOTICE 16u
#define RDZV_DUE_CLOSE  32u

struct rdzv_conn {
    struct rdzv_node *node; /* NULL: none, or a connection that is being closed */
    unsigned due;
    bool queued;
    char *refusal; /* owned; NULL: close without a refusal */
    bool retry;
};

struct rdzv_line {
    enum log_level level;
    char *text; /* owned */
};

struct rdzv_output {
    struct rdzv_conn *conns; /* by the driver's number */
    size_t nconns;
    uint32_t *queue; /* connections with a message that is due, first in first out */
    size_t queue_head, queue_len, queue_cap;
    struct rdzv_line *lines;
    size_t line_head, nlines, cap_lines;
    char *taken;          /* the text that was taken last; owned */
    struct event *events; /* the texts are owned */
    size_t event_head, nevents, cap_events;
    struct event taken_event;
};

void rdzv_output_fini(struct rdzv_output *o);

void rdzv_output_log(struct rdzv_output *o, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Keeps an event for the driver; its texts are copied. */
void rdzv_output_event(struct rdzv_output *o, const struct event *e);
/* Takes the oldest event; NULL: there is none. Valid until the next call that takes one. */
const struct event *rdzv_output_next_event(struct rdzv_output *o);

/* The connection with this number; it is made when it is new. */
struct rdzv_conn *rdzv_output_conn(struct rdzv_output *o, uint32_t conn);

/* Asserts that what is due on a connection will be taken, and that each connection of a node is its
 * node's. */
void rdzv_output_check(const struct rdzv_output *o);

/* The messages are due on the connection. */
void rdzv_output_queue(struct rdzv_output *o, uint32_t conn, unsigned due);

/* Drops all messages that are due: the connection closes, after a refusal when there is one. */
void rdzv_output_close(struct rdzv_output *o, uint32_t conn, const char *refusal, bool retry);

/* Takes the oldest line; false: there is none. *text is valid until the next call that takes. */
bool rdzv_output_next_line(struct rdzv_output *o, enum log_level *level, const char **text);

/* Takes the next message that is due. Returns its bit, or 0. For RDZV_DUE_CLOSE *refusal is set,
 * and valid until the next call that takes. */
unsigned rdzv_output_next(struct rdzv_output *o, uint32_t *conn, const char **refusal);

#endif
