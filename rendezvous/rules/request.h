/* request.h: requests to the nodes of a job, of dlaunchctl or between agents, and their answers.
 * Encode and decode are exact inverses. */
#ifndef RENDEZVOUS_RULES_REQUEST_H
#define RENDEZVOUS_RULES_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bytes.h"
#include "rendezvous/rules/rdzv_peers.h"

enum request_kind {
    REQUEST_RESTART, /* the coordinator carries it out; all others go to every node */
    REQUEST_KILL,
    REQUEST_SIGNAL,
    REQUEST_PRESENCE,   /* each node in a round answers at once */
    REQUEST_STACKS,     /* each node in a round answers with samples of its workers */
    REQUEST_TOP,        /* each node with workers answers with what they do and use */
    REQUEST_OPERATIONS, /* each node with workers answers with their last operations */
    REQUEST_SUSPECT,    /* workers of the node give no sign of life */
    REQUEST_HANG,       /* the job hangs, by the verdict of one node */
    REQUEST_PACE,       /* each node in a round answers with how long its workers have waited */
    REQUEST_SLOW,       /* these ranks are slow */
    REQUEST_DOCTOR,     /* each node answers */
    REQUEST_MODEX,      /* only to the rank's node, which answers with the rank's data */
    REQUEST_KINDS
};

#define REQUEST_NAME_MAX  16
#define REQUEST_RANKS_MAX 224 /* "0,8-15" */
#define REQUEST_TEXT_MAX  512 /* one line for people */

/* A request; `kind` says which member of the union is set. */
struct rdzv_request {
    enum request_kind kind;
    uint64_t id; /* for answers: number among the requests of this kind of the asking node */
    struct node_id from; /* the asking node; set by the coordinator */
    union {
        struct {
            char text[REQUEST_TEXT_MAX];
        } restart, kill;
        struct {
            int signo;
            char ranks[REQUEST_RANKS_MAX]; /* to these workers; "": all */
            char text[REQUEST_TEXT_MAX];
        } signal;
        struct {
            uint32_t most; /* rows of nodes, and of ranks; 0: all */
        } top;
        struct {
            uint32_t left_ms; /* until the silent workers count as hanging */
            bool in_place;    /* the first node decides, because the coordinator has no workers */
        } suspect;
        struct {
            bool certain;
            bool kill; /* the workers of these ranks are to be killed */
            char ranks[REQUEST_RANKS_MAX];
            char text[REQUEST_TEXT_MAX];
        } hang;
        struct {
            uint32_t others; /* millionths of its time that most ranks are busy; 0: not known */
        } pace;
        struct {
            char ranks[REQUEST_RANKS_MAX]; /* "": none is slow any more */
            char text[REQUEST_TEXT_MAX];
        } slow;
        struct {
            char question[REQUEST_TEXT_MAX]; /* JSON */
            char skipped[REQUEST_RANKS_MAX]; /* nodes that play no match */
        } doctor;
        struct {
            int rank;
        } modex;
        struct {
            char name[REQUEST_NAME_MAX]; /* REQUEST_KINDS: it is not known here */
        } unknown;
    };
};

/* "stacks": the name of a kind on the wire. */
const char *request_name(enum request_kind k);
/* Whether nodes in a tree of launchers send their answers up together. */
bool request_is_collected(enum request_kind k);

void request_put_kind(struct buf *b, enum request_kind k);
/* Reads the name of a kind. REQUEST_KINDS: the kind is not known here, and r is bad; `name`, if not
 * NULL, receives the unknown name. */
enum request_kind request_get_kind(struct rd *r, char name[REQUEST_NAME_MAX]);

void request_encode(struct buf *b, const struct rdzv_request *m);
/* False: malformed, or, with m->kind REQUEST_KINDS, of a kind that is not known here. */
bool request_decode(struct rd *r, struct rdzv_request *m);

/* A node's answer to a request of another one, or of its own. */
struct rdzv_answer {
    struct node_id to; /* the request: who asked, */
    enum request_kind kind;
    uint64_t id;
    const uint8_t *data; /* borrowed; the agents alone know the form of the content */
    size_t len;
};
#define RDZV_ANSWER_MAX (4u << 20)

/* Makes the answer to *r with these bytes, which are borrowed. */
struct rdzv_answer request_answer(const struct rdzv_request *r, const void *data, size_t len);

#endif
