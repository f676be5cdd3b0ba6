/* job.h: what the communicators made from one dlcoll_init() share; the last of them ends it. */
#ifndef COLLECTIVES_BOOTSTRAP_JOB_H
#define COLLECTIVES_BOOTSTRAP_JOB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "collectives/api/algo_select.h"
#include "collectives/net/acceptor.h"
#include "collectives/api/recorder.h"
#include "collectives/bootstrap/world.h"
#include "core/err.h"

struct dlcoll_store;

/* Settings from the environment, the same on all ranks. */
struct job_conf {
    int sockets;         /* DLCOLL_SOCKETS: TCP connections between two ranks */
    char congestion[16]; /* DLCOLL_TCP_CONGESTION; "": as the transport thinks best */
    int nccl_roots;      /* DLCOLL_NCCL_ROOTS: unique ids; 0: one for so many ranks */
    int device_times;    /* DLCOLL_DEVICE_TIMES: the recorder has those of the device */
    bool devices;        /* DLCOLL_BACKEND: whether a buffer may be device memory */
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
};

/* Meets the other ranks (world_init()). Returns owned, with one user. */
int job_new(struct job **out, const struct world_opts *opts, struct err *e);
/* The launcher's segment has no room for memory that ranks share: that is one of the settings. */
void job_lacks_memory(struct job *j);
struct job *job_ref(struct job *j);
void job_unref(struct job *j); /* NULL is allowed */

#endif
