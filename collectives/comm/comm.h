/* comm.h: the inside of a communicator.
 *
 *     job         the result of one dlcoll_init(): the world's facts, the listening socket, the
 *                 segment, settings (job.h)
 *     comm        some ranks of it, with a number that is the same on all of them
 *       topo      which of them share a node
 *       shm       their memory, if they share some            (collectives/shm)
 *       net       their connections and schedules             (collectives/net)
 *       p2p       sends and receives under way                (collectives/p2p)
 *       pool      handles of operations                       (work.c)
 *       queue     operations with a work handle               (perform/queue.c, progress.c)
 *
 * Threads. `busy` lets one thread of the program in at a time. With DLCOLL_THREAD_MULTIPLE
 * (`multiple`) threads take turns under `inside`, which nobody keeps while he waits for other ranks
 * (comm_let_in()), and those with messages come in without it: what messages share is under the
 * lock of p2p. Collective operations run under `running`: in the program's thread, or in the one
 * that carries out the queue. */
#ifndef COLLECTIVES_COMM_COMM_H
#define COLLECTIVES_COMM_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "collectives/comm/coll_call.h"
#include "collectives/dlcoll.h"
#include "collectives/comm/job.h"
#include "collectives/wire/acceptor.h"
#include "collectives/wire/stop.h"
#include "collectives/wire/tcp.h"
#include "core/memory_fence.h"
#include "collectives/bootstrap/topology.h"
#include "collectives/base/wait.h"
#include "collectives/bootstrap/world.h"

struct shm;
struct task;
struct net;
struct p2p;
struct nccl;
struct queue;
struct work_pool;

#define COMM_NAME_MAX 20

/* The number of groups that were made of one list of ranks. */
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

    uint64_t seq;          /* collective operations started, by the program */
    uint64_t history;      /* digest of their calls: op_history_add() */
    struct coll_done last; /* the last one that has been carried out */
    const char *algo;      /* of the last operation, as in coll_call.h; for tests */
    struct reduce_info
        reduce;      /* the last reduction that was looked up; never a user's, which may be freed */
    uint64_t shrunk; /* number of shrinks in which it has met other ranks */
    bool rest_listens;  /* the group that it shrinks to still follows the launcher's abort record */
    uint32_t monitored; /* dlcoll_monitored_barrier()s */
    struct group_count *group_counts; /* owned */
    bool after_failure; /* the abort record is written, or will be, for a rank that has left: it is
                           ignored */

    /* The communicator must stop if one of these is not 0. */
    const _Atomic uint32_t *job_word;      /* the agent's; never NULL */
    struct comm_stop own_stop;             /* this process's */
    struct comm_stop *shared_stop;         /* the node's, in shared memory; NULL without */
    void (*wake_sharers)(struct shm *shm); /* then: wakes the tasks of the ranks that share it */
    const dlcoll_comm *maker; /* while a group is made: the one that makes it, which ranks of the
                                 group may have given up already; else NULL */
    struct acceptor_subscriber subscriber;
    bool watches; /* processes of this node's ranks, without a launcher: job_watch() */

    size_t *numbers; /* counts and displacements that calls make; owned: comm_keep_numbers() */
    size_t cap_numbers;
    uint8_t *staging; /* room for packed data; owned: comm_keep_staging() */
    size_t cap_staging;

    struct shm *shm;    /* NULL: the ranks share no memory */
    bool shares_memory; /* on every node with several ranks: the same on all */
    struct net *net;
    struct hier *hier;              /* state of hier.c; NULL: none yet */
    struct p2p *_Atomic p2p;        /* NULL: nothing was sent or received yet */
    struct work_pool *_Atomic pool; /* of handles (work.h) */
    struct queue *_Atomic queue;    /* of operations with a handle (perform/queue.h) */
    struct nccl *_Atomic nccl;      /* NULL: nothing was done on device memory yet */

    bool multiple;         /* several threads may call at the same time */
    atomic_flag busy;      /* a thread of the program is inside; with `multiple` always */
    _Atomic bool failed;   /* final; `error` has the cause */
    _Atomic bool returned; /* failed_code was returned to the program */
    _Atomic bool finalized;
    _Atomic int failed_code;
    unsigned fork_gen;                    /* of the process that made the communicator */
    _Atomic uint32_t coll_slot, p2p_slot; /* of its tasks (task.h), or 0 */
    pthread_mutex_t running;              /* a collective operation runs */
    pthread_mutex_t inside;               /* with `multiple`: a thread of the program is */
    pthread_mutex_t making;               /* of p2p, pool and queue, and of their tasks */
    pthread_mutex_t error_lock;
    dlcoll_error error;
};

/* Every public operation begins with enter and ends with leave. comm_enter: 0, and the communicator
 * belongs to this thread until comm_leave(); or a code, which the operation returns. comm_leave
 * returns `code`. */
int comm_enter(dlcoll_comm *comm);
int comm_leave(dlcoll_comm *comm, int code);
/* Enter and leave for messages, with which several threads may be inside. */
int comm_enter_with_messages(dlcoll_comm *comm);
int comm_leave_with_messages(dlcoll_comm *comm, int code);

/* The part of comm_enter() that keeps other threads out. False: one is inside. */
bool comm_take(dlcoll_comm *comm);

/* With `multiple`: lets other threads enter while this one waits for other ranks, until it keeps
 * them out again. Without `multiple`: does nothing. */
void comm_let_in(dlcoll_comm *comm);
void comm_keep_out(dlcoll_comm *comm);

/* Makes `numbers` at least so long; inside the communicator. NULL: no memory. */
size_t *comm_keep_numbers(dlcoll_comm *comm, size_t n);
/* Makes `staging` at least so large; where operations run. False: no memory. */
bool comm_keep_staging(dlcoll_comm *comm, size_t bytes);

/* The code that a failed or finalized communicator returns from every operation; else 0. */
int comm_usable(dlcoll_comm *comm);

/* Time on mono_ns() when an operation must be over; 0: never. */
uint64_t comm_deadline(int64_t timeout_ms);

/* Copies an options struct of the caller (any version; NULL: defaults) into this version's struct,
 * which its initialiser macro has filled in. 0, DLCOLL_EINVAL (not such a struct), or
 * DLCOLL_ENOSUP: a newer program sets fields that this version does not have. */
int comm_take_opts(void *ours, size_t size, const void *given);

/* Sets the last error; any thread. Returns code. */
int comm_error(dlcoll_comm *comm, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Begins to count the forks of this process, once for all communicators. 0 or -ENOMEM. */
int comm_watch_forks(void);
/* The number of forks between the first process and this one. */
unsigned comm_forks(void);

/* Whether the process is a fork()'s child of the one that made the communicator. */
bool comm_is_forked(const dlcoll_comm *comm);

/* Whether operations must end now: a worker of the job has died, another rank has given up, the
 * program has aborted; here or, while a group is made, in the communicator that makes it. A few
 * loads: every wait loop calls it each time round. */
static inline bool comm_is_stopped(const dlcoll_comm *c)
{
    do {
        if (atomic_load_explicit(c->job_word, memory_order_acquire) ||
            atomic_load_explicit(&c->own_stop.word, memory_order_acquire) ||
            (c->shared_stop && atomic_load_explicit(&c->shared_stop->word, memory_order_acquire)))
            return true;
    } while ((c = c->maker));
    return false;
}

/* comm_is_stopped() after data has been read from another rank's buffer. A rank stops the
 * communicator before it leaves an operation early and reuses its buffers: if it is not stopped by
 * now, the data is what was sent. */
static inline bool comm_was_stopped(const dlcoll_comm *c)
{
    memory_fence(memory_order_seq_cst); /* all data is read before the check */
    return comm_is_stopped(c);
}

/* A rank that has waited for a millisecond calls this each millisecond, and before it sleeps: reads
 * the messages of other nodes' ranks and checks that the processes of this node's ranks are alive.
 * Costs a few system calls and never blocks. 0: continue. -ECANCELED: the communicator must stop.
 * -EPIPE: *culprit, a rank of the communicator, has ended, and no launcher will report it. */
int comm_look(dlcoll_comm *c, int *culprit);

/* Whether the process of that rank is seen to have ended, on this node only; under a launcher, with
 * status 0, because every other end stops all ranks. Data that it sent before its end may still be
 * unread: a waiting rank first calls this, then looks for the data once more. A load, or a system
 * call. */
bool comm_has_exited(const dlcoll_comm *c, int rank);

/* The key of the rules for the call: equal on every rank. */
struct algo_key comm_algo_key(const struct coll_call *call);

/* The options for a transport of the communicator. */
struct tcp_opts comm_tcp_opts(dlcoll_comm *c, enum channel channel);

/* Whether the communicator has a task. For the program's threads, inside. */
static inline bool comm_has_task(const dlcoll_comm *c)
{
    return atomic_load_explicit(&c->coll_slot, memory_order_relaxed) ||
           atomic_load_explicit(&c->p2p_slot, memory_order_relaxed);
}

/* Hands a task of the communicator to the progress thread, once: *slot is then its slot. 0 or
 * -ENOMEM. */
int comm_start_task(dlcoll_comm *c, struct task *t, void (*run)(void *arg), void *arg,
                    _Atomic uint32_t *slot);

/* Makes this rank's tasks check what they wait for. Any thread. */
void comm_ring(const dlcoll_comm *c);

#endif
