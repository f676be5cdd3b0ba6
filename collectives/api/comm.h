/* comm.h: the inside of a communicator.
 *
 *     job         what one dlcoll_init() has made: the world's facts, the listening socket, the
 *                 segment, settings (job.h)
 *     comm        some ranks of it, with a number that is the same on all of them
 *       topo      which of them share a node
 *       shm       their memory, if they share some            (collectives/shm)
 *       net       their connections and schedules             (collectives/net)
 *       p2p       sends and receives under way                (p2p.c)
 *       async     operations with a work handle, two threads  (async.c)
 *
 * Threads. `busy` lets one thread of the program in at a time. Collective operations run under
 * `running`: in the program's thread, or in the one that carries out the queue. */
#ifndef COLLECTIVES_API_COMM_H
#define COLLECTIVES_API_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "collectives/api/coll_call.h"
#include "collectives/dlcoll.h"
#include "collectives/bootstrap/job.h"
#include "collectives/net/acceptor.h"
#include "collectives/net/stop.h"
#include "collectives/bootstrap/topology.h"
#include "collectives/api/wait.h"
#include "collectives/bootstrap/world.h"

struct shm;
struct net;
struct p2p;
struct async;
struct nccl;

#define COMM_NAME_MAX 20

/* How often groups of one list of ranks have been made. */
struct group_count {
    struct group_count *next;
    uint64_t hash, made;
};

struct dlcoll_comm {
    struct job *job;
    struct world *world; /* the job's */
    uint64_t id;         /* 0: the communicator of all workers */
    char name[COMM_NAME_MAX];
    int rank, size;
    int *world_ranks; /* owned */
    struct topology topo;
    int64_t timeout_ms; /* of an operation; negative: none */
    struct wait_policy policy;

    uint64_t seq;                     /* collective operations started, by the program */
    uint64_t history;                 /* digest of their calls: op_history_add() */
    struct coll_done last;            /* the last one that has been carried out */
    const char *algo;                 /* the last one's, as coll_call.h has it, for tests */
    struct reduce_info reduce;        /* the last one that was found; no user's, which can go */
    uint64_t shrunk;                  /* how often it has met others for that */
    bool rest_listens;                /* what it shrinks to still hears the launcher */
    uint32_t monitored;               /* dlcoll_monitored_barrier()s */
    struct group_count *group_counts; /* owned */
    bool after_failure; /* the launcher's word is spoken, or to come, of a rank that is gone: it is
                           not listened to */

    /* Told to stop, if one of these is not 0. */
    const _Atomic uint32_t *job_word; /* the agent's; never NULL */
    struct comm_stop own_stop;        /* this process's */
    struct comm_stop *shared_stop;    /* the node's, in shared memory; NULL without */
    struct acceptor_subscriber subscriber;
    int *pidfds; /* of this node's ranks, without a launcher; owned; NULL: not looked at */

    uint8_t *staging; /* dlcoll_all_reduce_coalesced()'s; owned */
    size_t cap_staging;

    struct shm *shm;    /* NULL: no memory is shared */
    bool shares_memory; /* on every node with several ranks: the same on all */
    struct net *net;
    struct hier *hier;       /* what hier.c keeps; NULL: nothing yet */
    struct p2p *_Atomic p2p; /* once there has been something to send or receive */
    struct async *async;
    struct nccl *nccl; /* NULL: nothing was done on device memory yet */

    atomic_flag busy;        /* a thread of the program is inside */
    pthread_mutex_t running; /* a collective operation is */
    unsigned fork_gen;       /* of the process that made it */
    _Atomic bool failed;     /* for good; `error` says why */
    _Atomic int failed_code;
    _Atomic bool told; /* the program has been given that code */
    bool finalized;
    pthread_mutex_t error_lock;
    dlcoll_error error;
};

/* Agrees with this node's other ranks on their memory, over the network; everybody of `comm` does
 * it. 0 whether or not there is some; else as an operation (coll_call.h's codes). */
int comm_share_memory(dlcoll_comm *comm, uint64_t deadline_ns, struct coll_call *failed);

/* Every public operation begins and ends with these. Enter: 0, and the communicator is this
 * thread's until comm_leave(); or a code, and the operation returns it. Leave returns `code`. */
int comm_enter(dlcoll_comm *comm);
int comm_leave(dlcoll_comm *comm, int code);

/* The code that a failed or finalized communicator returns from every operation; else 0. */
int comm_usable(dlcoll_comm *comm);

/* Time on mono_ns() when an operation must be over; 0: never. */
uint64_t comm_deadline(int64_t timeout_ms);

/* Copies an options struct of the caller's (any version, NULL: defaults) into ours, which has been
 * filled in by its initialiser macro. 0, DLCOLL_EINVAL (no such struct), or DLCOLL_ENOSUP: a newer
 * program sets fields that this version does not have. */
int comm_take_opts(void *ours, size_t size, const void *given);

/* Sets the last error; any thread. Returns code. */
int comm_error(dlcoll_comm *comm, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Counts the forks of this process from here on, once for all communicators. 0 or -ENOMEM. */
int comm_watch_forks(void);
/* How many forks lie between the first process and this one. */
unsigned comm_forks(void);

/* Whether the process is a fork()'s child of the one that made the communicator. */
bool comm_is_forked(const dlcoll_comm *comm);

/* Whether operations must end now: a worker of the job has died, another rank has given up, the
 * program has aborted. Two or three loads: every wait loop calls it each time round. */
static inline bool comm_is_stopped(const dlcoll_comm *c)
{
    return atomic_load_explicit(c->job_word, memory_order_acquire) ||
           atomic_load_explicit(&c->own_stop.word, memory_order_acquire) ||
           (c->shared_stop && atomic_load_explicit(&c->shared_stop->word, memory_order_acquire));
}

/* The same, after data has been read from another rank's buffer. A rank stops the communicator
 * before it leaves an operation early and reuses its buffers: if it is not stopped by now, the data
 * is what was sent. */
static inline bool comm_was_stopped(const dlcoll_comm *c)
{
    wait_fence(); /* all of it was read before this looks */
    return comm_is_stopped(c);
}

/* A rank that has been waiting for a millisecond calls this each millisecond, and before it sleeps:
 * reads the messages of other nodes' ranks and checks that the processes of this node's ranks are
 * alive. Costs a few system calls and never blocks. 0: go on. -ECANCELED: told to stop. -EPIPE:
 * *culprit, a rank of the communicator, has ended, and no launcher will report it. */
int comm_look(dlcoll_comm *c, int *culprit);

/* Whether the process of that rank is seen to have ended, on this node only: under a launcher, with
 * status 0, as every other end stops all ranks. Data that it sent before its end may still be
 * unread: a waiting rank first calls this, then looks for the data once more. A load, or a system
 * call. */
bool comm_has_exited(const dlcoll_comm *c, int rank);

/* An operation has failed with `status` as coll_call.h says: finds the rank at fault, records
 * it in the communicator and in the worker's line of the segment, and notifies the other ranks.
 * Returns the public code. (failure.c) */
int comm_fail(dlcoll_comm *c, int status, const struct coll_call *call);

/* A call of that kind on c has failed because the group that it makes has failed: c fails, too.
 * Returns the public code. */
int comm_fail_as(dlcoll_comm *c, const dlcoll_comm *group, enum call_kind kind);

/* A rank asks what this one has called (net/wire.h): if that differs, the communicator is told to
 * stop. Any thread. */
void comm_asked(struct acceptor_subscriber *subscriber, int from, const struct ask *ask);

/* This rank gives up the communicator: its operations under way end with `code`; the other ranks
 * get `theirs` and the clause. False: the communicator has failed already. */
bool comm_give_up(dlcoll_comm *c, int code, int theirs, const char *clause);

#endif
