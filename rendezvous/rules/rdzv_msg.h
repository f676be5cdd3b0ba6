/* rdzv_msg.h: the messages between launchers and the coordinator.
 *
 * Both sides of a connection begin with 8 bytes: "DLR1", then what both speak (core/protocols.h).
 * (A TCPStore client begins with a byte from 0 to 18, TLS with 0x16.) Then frames: u32 length of
 * what follows it, u8 type, body. Everything is little-endian; a string is u32 length and bytes.
 *
 * The protocol is level-triggered: a STATUS is the whole state of a member, a VIEW the whole answer
 * of the coordinator. Any of them may be lost with its connection, since the next one repeats it.
 * Clocks are monotonic, each side's own.
 *
 * Encoders append one whole frame. Decoders take the body, check everything, and return false when
 * it is malformed; what they fill in borrows nothing unless a comment says so.
 *
 * dlaunch-protocol(7) names every field of every frame; tests/unit/test_protocol_page.c compares.
 */
#ifndef RENDEZVOUS_RULES_RDZV_MSG_H
#define RENDEZVOUS_RULES_RDZV_MSG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/bytes.h"
#include "core/protocols.h"
#include "rendezvous/rules/event_log.h"
#include "rendezvous/rules/failure.h"
#include "rendezvous/rules/rank_table.h"
#include "rendezvous/rules/rdzv_types.h"
#include "rendezvous/rules/rdzv_peers.h"

#define RDZV_MAGIC           "DLR1"
#define RDZV_PROTOCOL        PROTOCOLS_OF_NODES
#define RDZV_PREAMBLE_LEN    8
#define RDZV_FRAME_HEADER    5           /* length and type */
#define RDZV_FRAME_MAX       (16u << 20) /* type and body */
#define RDZV_FRAME_MAX_FIRST 4096        /* the same, before a connection has said hello */
#define RDZV_VERSION_MAX     32          /* a version text of dlaunch */
#define RDZV_TEXT_MAX        512         /* one line for people */
#define RDZV_NOTICE_MAX      1024
#define RDZV_BAD_HELLO       "malformed hello" /* the text of a refusal, for good */
#define RDZV_STATUS_FAILURES RDZV_REPORT_MAX   /* failures in one STATUS */

enum rdzv_msg {
    RDZV_MSG_REFUSE = 1, /* the same in every protocol version: u8 retry, string */
    RDZV_MSG_PROBE,      /* -> asks for an IDENTITY (empty; the same in every version) */
    RDZV_MSG_IDENTITY,   /* <- (begins the same in every version) */
    RDZV_MSG_HELLO,      /* -> first frame of a member */
    RDZV_MSG_STATUS,     /* -> */
    RDZV_MSG_VIEW,       /* <- */
    RDZV_MSG_TABLE,      /* <- the rank table, before the VIEW that says RUN */
    RDZV_MSG_REPORT,     /* <- the job's result, before the VIEW that says FINISH */
    RDZV_MSG_NOTICE,     /* <- a line to show; losing it is harmless */
    RDZV_MSG_BACK,       /* the sender closes this connection, and does not end (empty) */
    RDZV_MSG_PEERS,      /* <- the members of the round, before the VIEW with PREPARE; -> the same
                            lists, after HELLO, from a launcher that has lost its coordinator */
    RDZV_MSG_RELAY, /* -> instead of HELLO: the connection carries those of workers to the store
                       (relay.h): string, the run id. Then, both ways, u32 stream and: */
    RDZV_MSG_RELAY_OPEN,   /* -> a connection (nothing) */
    RDZV_MSG_RELAY_DATA,   /* bytes of it */
    RDZV_MSG_RELAY_CREDIT, /* so many more may follow: u32 */
    RDZV_MSG_RELAY_FIN,    /* -> no more bytes will come (nothing) */
    RDZV_MSG_RELAY_END,    /* the stream is closed behind the bytes before (nothing) */
    RDZV_MSG_BEAT, /* -> instead of HELLO: the connection is for heartbeats (beat.h): the id of a
                      node, whose first connection is here; <- it is taken (nothing). What follows,
                      both ways, is no frames any more */
    RDZV_MSG_ELSEWHERE, /* -> the job is there; the answer is an IDENTITY: elsewhere, if this one
                           goes there, too */
    RDZV_MSG_WANT,      /* the sender wants the other side's events (empty) */
    RDZV_MSG_EVENTS,    /* -> the events of a node; <- those of the job, in their order */
    RDZV_MSG_REQUEST,   /* -> what a user asks of the job; <- the same, to every node */
    RDZV_MSG_ANSWER,    /* -> to a request, for the node that made it; <- the same, to that node */
    RDZV_MSG_GATHER,    /* -> a node's value for an all-gather (allgather.h) */
    RDZV_MSG_GATHERED,  /* <- the values of all nodes of the round */
    /* The tree of a round with many nodes (tree.h). */
    RDZV_MSG_BRANCH,  /* <- a node's parent in the round, before the VIEW with PREPARE */
    RDZV_MSG_CHILD,   /* -> to a parent, instead of HELLO, and again for another round. What follows
                         from the parent are PEERS, TABLE and TOLD */
    RDZV_MSG_TOLD,    /* <- a numbered REQUEST */
    RDZV_MSG_DIRECT,  /* -> to the coordinator, from a node that does not reach its parent */
    RDZV_MSG_ANSWERS, /* -> the answers of several nodes to one request; <- the same, to the node
                         that made it */
    /* One console for the job (outbox.h). */
    RDZV_MSG_OUTPUT, /* -> what workers of a node have printed; u64 number, then bytes */
    RDZV_MSG_SHOWN,  /* <- an OUTPUT has been taken, with all before it */
    RDZV_MSGS
};

/* How a connection ended, as one of its sides saw the end. */
enum rdzv_end {
    RDZV_END_BROKEN, /* the network, or what came over it: the other side may be alive */
    RDZV_END_CLOSED, /* in order, and without RDZV_MSG_BACK: from a proven peer, its end */
    RDZV_END_RESET,  /* by a reset, which proves nothing: anything between the two can send one */
    RDZV_END_KEY,    /* the other side has another key; another attempt would end the same way */
    RDZV_END_USER,   /* the other side belongs to another user */
};

struct rdzv_hello {
    struct node_id id;
    char run_id[RDZV_RUN_ID_MAX];
    char version[RDZV_VERSION_MAX];
    enum rdzv_backend backend;
    int min_nodes, max_nodes;
    int max_restarts;
    enum restart_policy restart_policy;
    enum mpi_kind mpi;       /* only with RESTART_GROUP */
    bool agent_store, relay; /* relay: only with agent_store */

    char host[HOST_MAX];
    char role[ROLE_MAX];
    char local_addr[ADDR_STRLEN]; /* the address to advertise, or "" */
    int pid;
    int node_rank; /* -1: any */
    int nproc;     /* 0: a launcher without workers, in no round: the coordinator outside of the
                      nodes, or a witness */
    uint16_t peer_port;  /* the port at which the launcher listens for the others; 0: none */
    int prev_rank;       /* the group rank in the last round that the launcher ran; -1 */
    uint64_t seen_epoch; /* of the newest coordinator that the launcher has followed; 0: none yet */
};

enum member_phase {
    MEMBER_IDLE,     /* joined, or stopped: ready for a round */
    MEMBER_PREPARED, /* ready to start the workers of `gen` */
    MEMBER_RUNNING,
    MEMBER_STOPPING, /* after a failure here, or because it was told to */
    MEMBER_DONE,     /* all workers have exited with 0 */
    MEMBER_LEAVING,
    MEMBER_PHASES,
};

struct rdzv_status {
    enum member_phase phase;
    bool workers;          /* some workers of the node may be alive */
    bool fenced;           /* the node has left the round, after too long a time without contact */
    struct generation gen; /* the newest round in which the node has taken part */
    uint64_t send_ns;      /* the member's clock, now */
    uint64_t view_sent_ns; /* the coordinator's clock in the newest VIEW; 0: none yet */
    uint64_t view_seen_ns; /* the member's clock when the message arrived */
    uint32_t respawned;    /* the newest respawn order carried out */

    int nports;           /* PREPARED: nproc data ports; else 0 */
    const uint8_t *ports; /* nports little-endian u16, borrowed from the message */
    int free_port;        /* a port of this node on which nothing listens, or 0 */

    enum stop_reason leave_reason; /* LEAVING */
    int leave_code;
    char leave_text[RDZV_TEXT_MAX];

    /* Failures that the coordinator has not acknowledged, numbered from 1 over the life of the
     * node; on one connection each is sent once. */
    uint32_t failures_total; /* workers of the round that have a record */
    uint32_t first_seq;
    int nfailures;
    const uint8_t *failures; /* nfailures encodings, borrowed; checked by the decoder */
    size_t failures_len;
};

enum rdzv_phase {
    RDZV_COLLECT, /* nodes come together, or spares wait */
    RDZV_PREPARE, /* prepare round `gen` */
    RDZV_RUN,     /* everybody is prepared: start */
    RDZV_STOP,    /* stop all workers of `gen` */
    RDZV_FINISH,  /* the job is over: REPORT has been sent */
    RDZV_RELEASE, /* to a member that leaves a job that goes on */
    RDZV_PHASES,
};

struct rdzv_respawn {
    uint32_t id; /* rises by one with each order to a node */
    int local_rank;
    int restart_count;
};

struct rdzv_view {
    enum rdzv_phase phase;
    struct generation gen;
    int group_rank; /* in `gen`; -1: not in it */
    int nnodes;
    int restart_count, node_restarts;
    uint64_t sent_ns; /* the coordinator's clock, now */
    uint64_t echo_ns; /* send_ns of the newest STATUS */
    uint32_t acked;   /* failures up to this number have arrived */
    uint32_t heartbeat_ms, dead_ms;
    bool spare; /* the job runs without this node, which waits for a place */
    bool elect; /* when the coordinator is lost, the nodes of the round choose another one */
    bool lease; /* the node's workers may live for rdzv_lease_ns() from echo_ns on */
    /* Encoder: borrowed; decoder: malloc'ed, see rdzv_view_fini(). */
    const struct rdzv_stop *why; /* of the newest stop; NULL: there was none */
    uint32_t why_counter;        /* the round that was stopped */
    int nrespawns;               /* orders that the member has not yet carried out */
    const struct rdzv_respawn *respawns;
};

struct rdzv_identity {
    char run_id[RDZV_RUN_ID_MAX];
    char host[HOST_MAX];
    int pid;
    bool finished;
    /* The sender is not the coordinator; addr and port say where it is ("" and 0: unknown). */
    bool elsewhere;
    bool follows; /* elsewhere: it has one, or is about to choose one with others */
    char addr[ADDR_STRLEN];
    int port;
};

/* The address of an elected coordinator. */
struct rdzv_elsewhere {
    char run_id[RDZV_RUN_ID_MAX];
    char addr[ADDR_STRLEN]; /* "": where the connection comes from */
    int port;
};

/* The value of a node for all-gather `number` of its round, counted from 0. */
struct rdzv_gather {
    struct generation gen;
    uint32_t number;
    int node;             /* the node's group rank */
    const uint8_t *value; /* decoder: borrowed from the message */
    size_t len;
};
#define RDZV_GATHER_MAX (RDZV_FRAME_MAX - 64) /* bytes of all values together, with 4 for each */

struct rdzv_gathered {
    struct generation gen;
    uint32_t number;
    int nnodes;       /* 0: the values were larger than RDZV_GATHER_MAX */
    struct rd values; /* nnodes times u32 length and bytes; checked, borrowed from the message */
};

/* The parent of a node in the tree, and where it listens. */
struct rdzv_branch {
    struct generation gen;
    bool peers; /* PEERS and TABLE come from the parent; otherwise TABLE only */
    struct node_id parent;
    char addr[ADDR_STRLEN];
    int port; /* 0: the coordinator is the parent */
};

/* A node registers with its parent. */
struct rdzv_child {
    char run_id[RDZV_RUN_ID_MAX];
    struct node_id parent; /* that the sender takes the other side for */
    struct generation gen;
    uint32_t told; /* number of the newest TOLD that it has; 0: none */
};

/* The messages that a node lacks because it does not reach its parent. */
struct rdzv_direct {
    struct generation gen;
    uint32_t told;
    bool peers, table;
};

/* Answers to one request. */
struct rdzv_answers {
    struct node_id to; /* the request */
    enum request_kind kind;
    uint64_t id;
    int n;
    struct rd items; /* rdzv_next_answer(); borrowed from the message */
};

/* The answer to the OUTPUT of this number. */
struct rdzv_shown {
    uint64_t number;
    bool taken; /* false: the coordinator shows its own node's output only, and not this one */
};

struct rdzv_refusal {
    bool retry; /* a later attempt may succeed: try again until the join timeout */
    char text[RDZV_TEXT_MAX];
};

void rdzv_put_preamble(struct buf *b);
/* The version that the other side speaks, or 0 when these 8 bytes are no preamble of ours. */
uint32_t rdzv_get_preamble(const uint8_t p[RDZV_PREAMBLE_LEN]);

void rdzv_put_refusal(struct buf *b, bool retry, const char *text);
void rdzv_put_probe(struct buf *b);
void rdzv_put_elsewhere(struct buf *b, const struct rdzv_elsewhere *m);
void rdzv_put_relay(struct buf *b, const char *run_id);
/* Appends one of RDZV_MSG_RELAY_..., with the bytes that follow the stream's number. */
void rdzv_put_stream(struct buf *b, enum rdzv_msg type, uint32_t stream, const void *p, size_t n);
void rdzv_put_back(struct buf *b);
void rdzv_put_beat(struct buf *b, const struct node_id *id); /* NULL: the answer */
void rdzv_put_identity(struct buf *b, const struct rdzv_identity *m);
void rdzv_put_hello(struct buf *b, const struct rdzv_hello *m);
void rdzv_put_status(struct buf *b, const struct rdzv_status *m);
void rdzv_put_view(struct buf *b, const struct rdzv_view *m);
void rdzv_put_table(struct buf *b, const struct rank_table *t);
void rdzv_put_report(struct buf *b, const struct rdzv_result *m);
void rdzv_put_peers(struct buf *b, const struct rdzv_peers *m);
void rdzv_put_notice(struct buf *b, const char *text);

void rdzv_put_want(struct buf *b);
void rdzv_put_request(struct buf *b, const struct rdzv_request *m);
void rdzv_put_answer(struct buf *b, const struct rdzv_answer *m);
void rdzv_put_gather(struct buf *b, const struct rdzv_gather *m);
void rdzv_put_gathered(struct buf *b, struct generation gen, uint32_t number,
                       const struct buf *values, int nnodes);
void rdzv_put_branch(struct buf *b, const struct rdzv_branch *m);
void rdzv_put_child(struct buf *b, const struct rdzv_child *m);
void rdzv_put_told(struct buf *b, struct generation gen, uint32_t number,
                   const struct rdzv_request *m);
void rdzv_put_direct(struct buf *b, const struct rdzv_direct *m);
/* n answers: items holds each as u32 length and bytes. */
void rdzv_put_answers(struct buf *b, const struct node_id *to, enum request_kind kind, uint64_t id,
                      int n, const struct buf *items);
void rdzv_put_output(struct buf *b, uint64_t number, const void *output, size_t n);
void rdzv_put_shown(struct buf *b, const struct rdzv_shown *m);
/* Appends a frame of this type with this body. */
void rdzv_put_frame(struct buf *b, uint8_t type, const struct rd *body);
/* Appends as many of the list's events, from number *at on, as one frame takes, and moves *at
 * behind the last of them. now: the sender's clock. False: there was no event, and nothing is
 * appended. */
#define RDZV_EVENTS_MAX 256 /* in one frame */
bool rdzv_put_events(struct buf *b, uint64_t now, const struct event_list *l, uint64_t *at);

bool rdzv_get_beat(struct rd *r, struct node_id *id); /* not the answer */
bool rdzv_get_refusal(struct rd *r, struct rdzv_refusal *m);
bool rdzv_get_identity(struct rd *r, struct rdzv_identity *m);
bool rdzv_get_elsewhere(struct rd *r, struct rdzv_elsewhere *m);
bool rdzv_get_hello(struct rd *r, struct rdzv_hello *m);
bool rdzv_get_status(struct rd *r, struct rdzv_status *m); /* borrows from the message */
/* *m owns m->why and m->respawns when this succeeds: rdzv_view_fini(). */
bool rdzv_get_view(struct rd *r, struct rdzv_view *m);
void rdzv_view_fini(struct rdzv_view *m);
/* m->failures is malloc'ed (NULL when n is 0) when this succeeds; the caller frees. */
bool rdzv_get_report(struct rd *r, struct rdzv_result *m);
/* *m owns what it holds when this succeeds; it was empty. */
bool rdzv_get_peers(struct rd *r, struct rdzv_peers *m);
bool rdzv_get_notice(struct rd *r, char text[RDZV_NOTICE_MAX]);
bool rdzv_get_request(struct rd *r, struct rdzv_request *m);
bool rdzv_get_answer(struct rd *r, struct rdzv_answer *m); /* borrows from the message */
bool rdzv_get_gather(struct rd *r, struct rdzv_gather *m);
bool rdzv_get_gathered(struct rd *r, struct rdzv_gathered *m);
bool rdzv_get_branch(struct rd *r, struct rdzv_branch *m);
bool rdzv_get_child(struct rd *r, struct rdzv_child *m);
bool rdzv_get_told(struct rd *r, struct generation *gen, uint32_t *number, struct rdzv_request *m);
bool rdzv_get_direct(struct rd *r, struct rdzv_direct *m);
/* Checks all items. */
bool rdzv_get_answers(struct rd *r, struct rdzv_answers *m);
bool rdzv_next_answer(struct rdzv_answers *m, struct rdzv_answer *out);
/* *output: the rest of the body, borrowed. */
bool rdzv_get_output(struct rd *r, uint64_t *number, struct rd *output);
bool rdzv_get_shown(struct rd *r, struct rdzv_shown *m);
/* The round of a PEERS or TABLE, whose body begins with it; the body is not consumed. */
struct generation rdzv_peek_gen(struct rd body);
/* *now and the number of events, which event_decode() reads one after the other. */
bool rdzv_get_events(struct rd *r, uint64_t *now, int *n);

/* A launcher whose loop is so far behind is reported, though its heartbeats arrive. */
#define RDZV_LAG_MS 3000

/* The sum of these three is the least time between the end of a node's lease and the moment at
 * which the other nodes may go on without the node: how late the node's agent may look at the
 * clock, the time to kill the workers, and a margin. */
#define RDZV_TICK_NS   100000000u
#define RDZV_KILL_NS   1000000000u
#define RDZV_MARGIN_NS 500000000u

/* The time for which workers may live without a message from the coordinator, which counts their
 * node as lost after dead_ns. 0: the dead time is too short for a lease. */
static inline uint64_t rdzv_lease_ns(uint64_t dead_ns)
{
    uint64_t apart = RDZV_TICK_NS + RDZV_KILL_NS + RDZV_MARGIN_NS;
    if (dead_ns / 5 > apart) /* clocks may differ */
        apart = dead_ns / 5;
    return dead_ns > apart ? dead_ns - apart : 0;
}

/* The lease for the guardian, which ends the workers of an agent that does not end them. */
static inline uint64_t rdzv_guardian_lease_ns(uint64_t dead_ns)
{
    uint64_t lease = rdzv_lease_ns(dead_ns);
    return lease + (dead_ns - lease) / 3;
}

#endif
