/* nccl_comm.h: the inside of the NCCL backend: nccl.c (operations under way, failures, the end),
 * nccl_make.c (the beginning) and nccl_ops.c (what is enqueued). */
#ifndef COLLECTIVES_NCCL_NCCL_COMM_H
#define COLLECTIVES_NCCL_NCCL_COMM_H

#include <pthread.h>
#include <stdatomic.h>

#include "collectives/api/work.h"
#include "collectives/api/comm.h"
#include "collectives/nccl/nccl_api.h"

struct nccl {
    const struct nccl_api *api;
    const struct cuda_api *cuda;
    dlcoll_comm *comm;
    int device;
    cuda_stream stream; /* for operations without one */
    cuda_event event;   /* of what the program's thread waits for there */
    void *scratch;      /* device memory: a word for barriers, then room for all_to_all in place */
    size_t scratch_len;
    cuda_event aside; /* behind the last operation that has used the room */

    pthread_mutex_t lock;      /* of all below, and around calls of NCCL's */
    nccl_comm_t nccl;          /* NULL: aborted, or not made */
    struct dlcoll_work *works; /* under way, by `next` */
    struct coll_call last;     /* for the text, when something fails that nobody waits for */

    pthread_t thread;
    bool has_thread;
    _Atomic bool quit;
    _Atomic uint32_t bell;
};

/* --------------------------------------------------------------------------------- nccl_make.c */

/* The communicator's NCCL; made now when it is not there. NULL: *code is the public one. */
struct nccl *nccl_get(dlcoll_comm *c, uint64_t deadline_ns, int *code);
/* All but NCCL's communicator and the thread, which have been ended. */
void nccl_free_parts(struct nccl *n);
/* A call of the library's own: on `len` bytes of `data`, where it has any. */
struct coll_call nccl_internal_call(dlcoll_comm *c, enum call_kind kind, void *data, size_t len,
                                    uint64_t deadline_ns);

/* ---------------------------------------------------------------------------------- nccl_ops.c */

/* Bytes of scratch memory that must be there for it, and whether it uses the room: then n->aside is
 * to be recorded behind it. */
size_t nccl_room(const struct coll_call *call);
bool nccl_goes_aside(const struct coll_call *call);

/* Enqueues one call; NCCL's code, and what is in the way of it as a text. */
int nccl_enqueue(struct nccl *n, const struct coll_call *call, cuda_stream stream);
/* NULL, or why NCCL cannot do it. */
const char *nccl_refuses(const struct nccl_api *api, const struct coll_call *call);

/* -------------------------------------------------------------------------------------- nccl.c */

/* The communicator is over: kernels, then the truth, then those who wait. The public code. */
int nccl_fail(struct nccl *n, int status, struct coll_call *call);
/* Starts the thread: what happens while nobody is inside a call. 0 or a positive errno. */
int nccl_start_watching(struct nccl *n);
/* Waits until a call that NCCL goes on with by itself has been taken in. 0 or as coll_call.h. */
int nccl_settle(struct nccl *n, int rc, uint64_t deadline_ns, struct coll_call *call);

#endif
