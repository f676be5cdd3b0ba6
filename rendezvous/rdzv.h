/* rdzv.h: how an agent meets the agents of the other nodes, and what they tell each other after
 * that.
 *
 * One object per agent. It finds the coordinator (or becomes it: then this process also serves the
 * workers' store, on the same listener), joins, and from there on is pushed everything: the rank
 * table of each round, every failure, every stop. Nothing is polled.
 *
 *     rdzv_open --> on_prepare --> rdzv_prepared --> on_run --> rdzv_done ......> on_finish
 *                   ^                                  |
 *                   |                 rdzv_failed, or another node --> on_stop
 *                   |                                                     |
 *                   +----------------------- rdzv_stopped <---------------+
 *                                                 |
 *                                                 +--> (the job is over) .......> on_finish
 *
 * All functions and callbacks are on the loop's thread. A callback is never called from inside a
 * function of this header. on_finish is called once, and only when the agent has said that none of
 * its workers is alive (or never started any); after it only rdzv_get_info(), rdzv_close() and then
 * rdzv_hurry() may be called.
 *
 * The process has SIGPIPE blocked or ignored. When it ends without waiting for the loop, it does so
 * with _exit(2): a name server that does not answer would hold up exit(3), which joins libuv's
 * pool.
 */
#ifndef RENDEZVOUS_RDZV_H
#define RENDEZVOUS_RDZV_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "core/err.h"
#include "rendezvous/rules/failure.h"
#include "rendezvous/rules/rank_table.h"

enum rdzv_backend {
    RDZV_STATIC, /* MAX nodes, no more, no fewer; the endpoint is MASTER_ADDR:MASTER_PORT */
    RDZV_C10D,   /* MIN to MAX nodes, which may come and go */
    RDZV_FILE,   /* as c10d; the coordinator's address is published in a file */
};

enum restart_policy { RESTART_GROUP, RESTART_WORKER };

#define RDZV_RUN_ID_MAX 256

/* A set of exit codes, 0 to 255. */
struct exit_codes {
    uint8_t bits[32];
};

static inline void exit_codes_add(struct exit_codes *s, int code)
{
    s->bits[code / 8 & 31] |= (uint8_t)(1u << code % 8);
}

static inline bool exit_codes_has(const struct exit_codes *s, int code)
{
    return code >= 0 && code < 256 && (s->bits[code / 8] >> code % 8 & 1);
}

struct guard;

#define RDZV_PLACES_MAX 16
struct rdzv_place_to_ask {
    const char *host;
    int port;
};

/* Strings are borrowed until rdzv_close() has called back. Times are in seconds. */
struct rdzv_config {
    enum rdzv_backend backend;
    const char *endpoint_host; /* where the coordinator is; NULL for RDZV_FILE */
    int endpoint_port;         /* 0: a free one (one node, or RDZV_FILE) */
    /* RDZV_C10D: where else a coordinator may be, or somebody who knows it; the nodes that have
     * these addresses answer there. A job begins at the endpoint. */
    const struct rdzv_place_to_ask *more;
    int nmore;
    const char *endpoint_path; /* RDZV_FILE */
    const char *run_id;        /* jobs with different ids on one endpoint do not mix */
    int min_nodes, max_nodes;
    int node_rank; /* the group rank asked for; -1: any, in stable order */
    int nproc;     /* workers on this node; 0: a launcher without workers, which is in no round: the
                      coordinator, or a witness that votes when the coordinator is lost */
    const char *role;
    const char *host;         /* this node's name, for people */
    const char *local_addr;   /* the address to advertise, or a name of it; NULL: the local one of
                                 the connection */
    int is_host;              /* --rdzv_conf is_host: 1 be the coordinator, 0 never, -1 find out */
    double join_timeout;      /* until the first round is complete, and each later one */
    double last_call_timeout; /* MIN reached, MAX not: how long to wait for more */
    double close_timeout; /* how long the coordinator waits for the others to leave at the end */
    double keep_alive_interval; /* between heartbeats, each way */
    int keep_alive_max_attempt; /* that many missed: the peer is lost */
    double read_timeout;        /* for the first answer of a coordinator that accepted */
    int max_restarts;
    enum restart_policy restart_policy;
    double restart_backoff; /* before the n-th charged restart: n times this many seconds */
    int spares;             /* nodes beyond max_nodes that wait for a place */
    bool elastic;           /* a node that comes is taken in at once, not at the next restart */
    int max_node_restarts;  /* after a node was lost or left; -1: as long as MIN nodes are there,
                               and waiting for another one only when max_restarts allows any */
    struct exit_codes no_restart; /* of workers: the job ends with it */
    bool elect;                   /* when the coordinator is lost, the others choose another one */
    double progress_time; /* the same failure sooner than this after every start: pause, then end;
                             0: never */
    const char *master_addr; /* static: as the user gave it, for MASTER_ADDR; else NULL */
    bool relay;              /* the workers' store is on loopback of each node (relay.h) */
    bool agent_store;        /* false (--master_store none): MASTER_PORT is a port of rank 0's node
                                on which nothing listens */
    struct guard *guard;     /* who may join and how (guard.h); NULL: whoever reaches the port */
    bool legacy_store_113;   /* a store client without handshake is torch <= 2.0, not 2.1 */
};

/* Fills in torchrun's defaults; strings NULL, one node, one worker. */
void rdzv_config_defaults(struct rdzv_config *c);

enum stop_reason {
    STOP_FAILURE,    /* a worker failed */
    STOP_NODE_LOST,  /* a node's launcher died or fell silent */
    STOP_MEMBERSHIP, /* a node joined or left a job that allows it; not charged as a restart */
    STOP_SIGNAL,     /* a launcher was told to stop by a signal */
    STOP_TIMEOUT,    /* --timeout */
    STOP_REQUEST,    /* dlaunchctl stop */
    STOP_COORDINATOR_LOST,
    STOP_RENDEZVOUS, /* the nodes did not come together: join timeout, refused, bad endpoint */
    STOP_INTERNAL,   /* dlaunch's own fault or want of resources on some node */
    STOP_REASONS,
};

struct rdzv_stop {
    enum stop_reason reason;
    bool restarting; /* another round follows */
    char text[512];  /* one line: "worker 5 (local rank 1) on node-b was killed by SIGSEGV" */
    /* The failure that everybody is stopped for, as it was told at once: no tail, no error file.
     * Only with STOP_FAILURE and STOP_NODE_LOST. */
    bool has_first;
    struct failure first;
};

struct rdzv_result {
    int exit_code;           /* of the job, the same on every node that was there to the end */
    enum stop_reason reason; /* when exit_code is not 0 */
    char text[512];          /* one line; "" on success */
    char final[160];         /* why it was not started again though restarts were left; or "" */
    int restarts;            /* charged to --max_restarts */
    /* The last round's failures over all nodes, bounded by RDZV_REPORT_MAX; the first cause leads.
     * n is 0 when no worker or node failed (a timeout, a signal, a rendezvous that did not come
     * off). */
    const struct failure *failures;
    size_t n;
    size_t omitted; /* further ones that were counted but not carried */
};
#define RDZV_REPORT_MAX 64

struct rdzv_callbacks {
    void *arg;
    /* The nodes are complete; this one is `group_rank` of `nnodes`. Prepare the round (sockets,
     * segment) and answer with rdzv_prepared(). May come again without on_run in between, with
     * another generation, when a node was lost meanwhile: prepare anew. */
    void (*on_prepare)(void *arg, struct generation gen, int group_rank, int nnodes);
    /* Every node is prepared: start the workers. The table is borrowed until the next on_prepare or
     * rdzv_close. table->nodes[group_rank] is this node. */
    void (*on_run)(void *arg, const struct rank_table *table, int group_rank);
    /* RESTART_WORKER: start the failed worker again. */
    void (*on_respawn)(void *arg, int local_rank, int restart_count);
    /* The round is over: stop every worker, and answer with rdzv_stopped() when none is alive. Once
     * for a round whose on_run has come. It says what follows, so it comes also when this node has
     * been faster with rdzv_stopped(); then there is nothing left to answer. */
    void (*on_stop)(void *arg, const struct rdzv_stop *why);
    /* Until when the workers may live, CLOCK_MONOTONIC ns: what ends them when this process cannot
     * is to be told. It moves on with every answer of the coordinator; 0: no limit. May be NULL. */
    void (*on_lease)(void *arg, uint64_t until_ns);
    /* On a thread of its own, which must not wait for anything: the lease that on_lease has set
     * goes on until `until_ns`, if one is set. May be NULL when on_lease is. */
    void (*extend_lease)(void *arg, uint64_t until_ns);
    /* The lease has run out: the other nodes may start without this one soon. The workers are to
     * be killed now; on_stop has come. May be NULL when on_lease is. */
    void (*on_fence)(void *arg);
    /* The job is over for this node. The result is borrowed until rdzv_close. */
    void (*on_finish)(void *arg, const struct rdzv_result *result);
};

struct rdzv;

/* Starts to join. 0, or an error for what can be known at once (a bad --interface, a port in use
 * when this node must host). Says by log_notice(), every few seconds, who is here and who is
 * missing. */
int rdzv_open(struct rdzv **out, uv_loop_t *loop, const struct rdzv_config *config,
              const struct rdzv_callbacks *callbacks, struct err *e);

/* Answers on_prepare: ports[i] is worker i's data port, or 0. Borrows for the call. */
void rdzv_prepared(struct rdzv *r, const uint16_t *ports, int n);

/* A worker of the running round has failed. Call at once, with what is known at once (no tail, no
 * error file); the agent begins to stop its other workers without waiting for the answer, unless
 * the policy is RESTART_WORKER. Borrows for the call. */
void rdzv_failed(struct rdzv *r, const struct failure *f);

/* Every worker of this node has exited with 0. */
void rdzv_done(struct rdzv *r);

/* No worker of the round is alive on this node. `all` has a full record of each worker that did not
 * exit with 0, those stopped by dlaunch included. Borrows for the call. */
void rdzv_stopped(struct rdzv *r, const struct failure *all, size_t n);

/* This launcher was told to stop (STOP_SIGNAL, STOP_TIMEOUT, STOP_REQUEST) or cannot go on
 * (STOP_INTERNAL); the agent is stopping its workers already and calls rdzv_stopped() after. The
 * other nodes go on without it when enough are left (not on STOP_TIMEOUT and STOP_REQUEST, which
 * end the job); else the job ends with exit_code. */
void rdzv_leave(struct rdzv *r, enum stop_reason reason, int exit_code, const char *text);

/* Where the workers of this node reach the store, on 127.0.0.1; 0: at the table's MASTER_ADDR. */
int rdzv_relay_port(const struct rdzv *r);

/* For status displays. */
struct rdzv_info {
    const char *phase; /* "joining", "waiting", "preparing", "running", "stopping", "finished" */
    struct generation gen;
    int group_rank, nnodes, world_size, restart_count;
    bool coordinator;            /* this process is it */
    char endpoint[HOST_MAX + 8]; /* where the coordinator listens */
};
void rdzv_get_info(const struct rdzv *r, struct rdzv_info *out);

/* The process ends right after this, without its loop, and none of its workers is alive: lets the
 * other nodes know at once. Nothing but _exit() may follow. */
void rdzv_abandon(struct rdzv *r);

/* Leaves and frees everything, then calls back. Not before on_finish unless the process ends
 * anyway. */
void rdzv_close(struct rdzv *r, void (*on_closed)(void *arg), void *arg);

/* After rdzv_close(), until it calls back: nodes that do not take the result are waited for a
 * second more at most. */
void rdzv_hurry(struct rdzv *r);

#endif
