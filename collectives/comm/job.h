/* job.h: what the communicators made from one dlcoll_init() share; the last of them ends it. */
#ifndef COLLECTIVES_COMM_JOB_H
#define COLLECTIVES_COMM_JOB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "collectives/comm/algo_select.h"
#include "collectives/wire/acceptor.h"
#include "collectives/base/recorder.h"
#include "collectives/bootstrap/world.h"
#include "core/bell.h"
#include "core/err.h"

struct dlcoll_store;

/* Settings from the environment, the same on all ranks. */
struct job_conf {
    int sockets;         /* DLCOLL_SOCKETS: TCP connections between two ranks */
    char congestion[16]; /* DLCOLL_TCP_CONGESTION; "": as the transport thinks best */
    int nccl_roots;      /* DLCOLL_NCCL_ROOTS: unique ids; 0: one for so many ranks */
    int device_times;    /* DLCOLL_DEVICE_TIMES: the recorder has those of the device */
    bool devices;        /* DLCOLL_BACKEND: whether a buffer may be device memory */
    bool multiple;       /* DLCOLL_THREAD_MULTIPLE, of this process alone */
    bool shared_memory;  /* DLCOLL_SHM; false: all ranks talk over TCP */
    uint8_t settings;    /* a digest of those that decide who sends what to whom; 0: defaults */
};

struct job {
    _Atomic int users;
    struct world world;
    struct acceptor acceptor;
    struct algo_select algo_select;
    struct job_conf conf;
    struct recorder recorder;
    pthread_mutex_t store_lock;
    struct dlcoll_store *store; /* the job's, once somebody has asked for it */

    /* Bells of this node's ranks, in their lines of the launcher's segment, or in memory that the
     * ranks have shared themselves. */
    struct bell *bell;  /* this rank's bell; NULL: none */
    struct bell *bells; /* mapped; NULL: in the segment, or none */
    size_t nbells;
    int *bell_at; /* by rank of the world; -1: on another node; owned */

    pthread_mutex_t watch_lock;
    int *pidfds;                   /* by rank of the world; -1: not watched; owned; NULL: none is */
    void (*at_end)(struct job *j); /* called first, when the job ends; NULL: nothing to be done */
};

/* Meets the other ranks (world_init()). Rules name `providers` (algo_select_init()). Returns owned,
 * with one user. */
int job_new(struct job **out, const struct world_opts *opts,
            const struct coll_provider *const *providers, struct err *e);
/* The launcher's segment has no room for memory that ranks share: that is one of the settings. */
void job_lacks_memory(struct job *j);
/* Takes the bells of the node's n ranks, mapped memory; at[r] is the place of rank r of the world
 * among them, or -1. Unmaps them at the end. -ENOMEM: the mapping is the caller's. */
int job_take_bells(struct job *j, struct bell *bells, size_t n, const int *at);
/* The bell of a rank of the world; NULL: the rank is on another node, or has none. */
struct bell *job_bell(const struct job *j, int rank);

/* The launcher's word that is not 0 when all must stop; without one, a word that stays 0. */
const _Atomic uint32_t *job_abort_word(const struct job *j);

/* Watches the process of a rank of this host by a descriptor, if it has one, because without a
 * launcher nobody reports deaths. */
void job_watch(struct job *j, int rank);
/* Whether a rank that is watched has ended. */
bool job_has_ended(struct job *j, int rank);
/* Returns how many processes of this node are seen to have ended. */
int job_count_ended(struct job *j);

struct job *job_ref(struct job *j);
void job_unref(struct job *j); /* NULL is allowed */

#endif
