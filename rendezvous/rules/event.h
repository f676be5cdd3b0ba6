/* event.h: what happened in a job, for the event log (event_log.h). Plain values; encode and decode
 * are exact inverses.
 *
 * Names and form follow Flux's RFC 18: a time, a name and a context. Which fields the context of a
 * name has is in the table of event.c. Written out as JSON by agent/report/event_json.c. */
#ifndef RENDEZVOUS_RULES_EVENT_H
#define RENDEZVOUS_RULES_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/bytes.h"
#include "rendezvous/rules/cause.h"
#include "rendezvous/rules/rank_table.h"
#include "rendezvous/rules/rdzv_peers.h"

enum event_name {
    /* The job; written by the coordinator. */
    EVENT_SUBMIT,     /* the coordinator has begun */
    EVENT_RENDEZVOUS, /* nodes are expected */
    EVENT_NODE_JOIN,
    EVENT_NODE_LEAVE,
    EVENT_NODE_LOST,
    EVENT_EVICT, /* a node is left out of the next rounds */
    EVENT_START, /* the nodes of a round are told to start their workers */
    EVENT_READY, /* every worker of the round has been started */
    EVENT_FAILURE,
    EVENT_STOP,    /* the round ends before its workers have */
    EVENT_RESTART, /* another round follows, or one worker starts again */
    EVENT_ELECTED, /* a new coordinator */
    EVENT_FINISH,
    /* Events of one node; written by its agent. */
    EVENT_NODE_STATE,
    /* Events of one worker; written by its agent. */
    EVENT_WORKER_START,
    EVENT_WORKER_OUTPUT,
    EVENT_WORKER_COLLECTIVE,
    EVENT_WORKER_FINISH,
    /* An event of one node, when its workers stop running. */
    EVENT_NODE_LEDGER, /* text as ledger_note() */
    /* An event of one node, with --preflight: what is wrong with the node. */
    EVENT_NODE_PROBLEM,
    /* The job, with --hang_after; written by the coordinator's agent. */
    EVENT_SUSPECT, /* ranks wait longer than usual for others */
    EVENT_HANG,    /* and the awaited ranks do not move */
    /* Events of the job, with --slow_ranks; written by the coordinator's agent. */
    EVENT_SLOW, /* the other ranks wait for these ranks; without ranks: for none any more */
    EVENT_NAMES,
};

/* The fields of a context. */
#define EV_RUN       0x0001u /* schema, run_id, version; text is the program */
#define EV_ROUND     0x0002u
#define EV_ATTEMPT   0x0004u
#define EV_MAX       0x0008u /* max_restarts */
#define EV_WORLD     0x0010u /* nnodes, world_size */
#define EV_NODE      0x0020u /* node (unless it is -1), host */
#define EV_PID       0x0040u
#define EV_RANK      0x0080u  /* rank, local_rank (unless rank is -1) */
#define EV_END       0x0100u  /* exit_code, or signal; signal: of a worker's end */
#define EV_CAUSE     0x0200u  /* unless there is none */
#define EV_CAUSED_BY 0x0400u  /* unless it is -1 */
#define EV_STATE     0x0800u  /* text is a state */
#define EV_TEXT      0x1000u  /* unless text is empty */
#define EV_LOG_DIR   0x2000u  /* extra is the folder of the worker's log files; unless empty */
#define EV_RANKS     0x8000u  /* extra is a set of ranks; unless empty */
#define EV_PROGRAM   0x10000u /* text is the program of the worker; unless empty */
#define EV_NPROC     0x4000u  /* world_size is the number of workers of the node */

struct event {
    enum event_name name;
    struct node_id origin; /* the process that saw the event */
    uint64_t seq;          /* of the origin's events, from 1 */
    uint64_t at_ns;        /* CLOCK_MONOTONIC: of the origin, and once merged of the coordinator */
    uint64_t wall_ns;
    uint32_t round;
    int attempt, max_restarts, nnodes, world_size;
    int node, pid, rank, local_rank, exit_code, signal, caused_by;
    enum cause cause;
    const char *host, *text, *extra; /* NULL: "" */
};

#define EVENT_TEXT_MAX 1024

const char *event_text(enum event_name n); /* "worker.start" */
unsigned event_fields(enum event_name n);
bool event_find(const char *text, enum event_name *out);

void event_encode(struct buf *b, const struct event *e);
/* False: malformed. The texts are malloc'ed: event_fini(). */
bool event_decode(struct rd *r, struct event *e);
void event_fini(struct event *e);

#endif
