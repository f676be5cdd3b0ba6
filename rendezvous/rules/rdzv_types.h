/* rdzv_types.h: the plain types that the agent, the rules of the rendezvous and its messages share:
 * how a job is set up, why a round stops, how the job ends. */
#ifndef RENDEZVOUS_RULES_RDZV_TYPES_H
#define RENDEZVOUS_RULES_RDZV_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/rules/failure.h"
#include "rendezvous/rules/rank_table.h"
#include "rendezvous/rules/rdzv_peers.h"
#include "rendezvous/rules/request.h"

enum rdzv_backend {
    RDZV_STATIC, /* MAX nodes, no more, no fewer; the endpoint is MASTER_ADDR:MASTER_PORT */
    RDZV_C10D,   /* MIN to MAX nodes, which may come and go */
    RDZV_FILE,   /* as c10d; the coordinator's address is published in a file */
    RDZV_ETCD,   /* as c10d; the address is published in etcd, which votes */
    RDZV_BACKENDS,
};

enum restart_policy { RESTART_GROUP, RESTART_WORKER };

/* The interface by which the ranks of an MPI program find each other. */
enum mpi_kind {
    MPI_NONE, /* not an MPI program */
    MPI_PMI,  /* MPICH and its relatives: PMI-1, or PMI-2 if the program begins with it */
    MPI_PMIX, /* Open MPI */
};
#define MPI_KINDS (MPI_PMIX + 1)

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
    STOP_TIME_LIMIT, /* the scheduler's time for the job ends */
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
    char final[160]; /* why the job was not started again though restarts were left; or "" */
    int restarts;    /* charged to --max_restarts */
    /* The last round's failures over all nodes, bounded by RDZV_REPORT_MAX; the first cause leads.
     * n is 0 when no worker or node failed (a timeout, a signal, a rendezvous that did not come
     * off). */
    const struct failure *failures;
    size_t n;
    size_t omitted; /* further ones that were counted but not carried */
};
#define RDZV_REPORT_MAX 64

/* The state of the rendezvous, for status displays. */
struct rdzv_info {
    const char *phase; /* "joining", "waiting", "preparing", "running", "stopping", "finished" */
    struct generation gen;
    int group_rank, nnodes, world_size, restart_count;
    struct node_id id;           /* of this node: where answers to it go */
    bool coordinator;            /* this process is the coordinator */
    char endpoint[HOST_MAX + 8]; /* where the coordinator listens */
    /* The round of the coordinator that has sent the job's result; epoch 0: no coordinator has, or
     * the result is this node's own, and the other nodes may go on. */
    struct generation decided;
};

#endif
