/* nccl_comm.h: the inside of the NCCL backend, shared by nccl.c (operations, failures, the end),
 * nccl_make.c (creation), nccl_ops.c (what is enqueued) and nccl_memory.c (memory). */
#ifndef COLLECTIVES_NCCL_NCCL_COMM_H
#define COLLECTIVES_NCCL_NCCL_COMM_H

#include <pthread.h>
#include <stdatomic.h>

#include "collectives/comm/comm.h"
#include "collectives/comm/work.h"
#include "collectives/nccl/nccl_api.h"
#include "collectives/nccl/nccl_helper.h"

struct nccl_clock {   /* nccl_clock.c */
    cuda_event start; /* before an operation that the host waits for */
    cuda_event tied;  /* complete at tied_ns of CLOCK_MONOTONIC */
    cuda_event next;  /* the one to tie next */
    uint64_t tied_ns, tried_ns;
};

struct nccl_scratch { /* device memory that a captured graph uses: kept until the end */
    cuda_ptr p;
    struct nccl_scratch *next;
};

struct nccl {
    const struct nccl_api *api;
    const struct cuda_api *cuda;
    dlcoll_comm *comm;
    cuda_context ctx;
    int device, capability; /* 90: sm_90; the least one of all ranks' */
    bool retained;          /* this struct holds a reference on the primary context */
    bool blocking;          /* NCCL's communicator is in blocking mode */
    bool times;             /* events record the device's time, for the flight recorder */
    dlcoll_device_opts opts;
    cuda_stream stream;       /* for operations without one: high priority, non-blocking */
    cuda_event event, before; /* behind the last operation there; on the default stream before it */
    cuda_ptr word;            /* the operand of barriers */
    cuda_ptr scratch;         /* room for all_to_all in place */
    size_t scratch_len;
    cuda_event aside; /* behind the last operation that used `scratch` */
    struct nccl_scratch *captured;

    pthread_mutex_t lock;                   /* of all below */
    nccl_comm_t nccl;                       /* NULL: aborted, or not made */
    struct nccl_made *made;                 /* what a call on `nccl` is making, or NULL */
    struct nccl_helper *ending;             /* the thread that aborts or destroys `nccl` */
    struct dlcoll_work *works, **works_end; /* in progress, oldest first, linked by `next` */
    struct dlcoll_work *marker;             /* the newest of them that has no handle, or NULL */
    cuda_stream marker_stream;
    uint64_t issued, marker_from;
    _Atomic uint64_t completed; /* all operations up to this number are complete */
    struct nccl_clock clock;
    struct coll_call last;   /* for the text of a failure outside of any call; no `failure` */
    _Atomic bool peer_error; /* an error of NCCL's such as a peer's death causes */
    _Atomic uint32_t inside; /* threads in calls on `nccl` that they make without the lock */
    _Atomic uint64_t calling_until_ns; /* the deadline of an operation's call among them; 0: none */

    pthread_t thread;
    bool has_thread;
    _Atomic bool quit;
    _Atomic uint32_t bell;
};

/* A thread's state before it works on the communicator's device. */
struct nccl_place {
    int capture_mode;
    bool pushed;
};

/* Makes the communicator's context current in this thread, whatever device the program has set; and
 * lets the library query events while the program captures a stream. */
struct nccl_place nccl_enter(const struct nccl *n);
void nccl_leave(const struct nccl *n, struct nccl_place p);

/* The flags of cuEventCreate() for an event behind an operation. */
static inline unsigned nccl_event_flags(const struct nccl *n)
{
    return n->times ? 0 : CUDA_NO_TIMING;
}

/* ---------------------------------------------------------------------------------- nccl_make.c */

struct nccl_wish { /* decides which device; all may be NULL */
    const void *buffer;
    void *stream;
    const dlcoll_device_opts *opts;
};

/* Returns the communicator's NCCL, and creates it if needed. NULL: *code is the public code. */
struct nccl *nccl_get(dlcoll_comm *c, const struct nccl_wish *wish, uint64_t deadline_ns,
                      int *code);
/* Frees everything but NCCL's communicator and the watcher, which the caller has ended. */
void nccl_free_parts(struct nccl *n);
/* Makes a call of the library's own, on `len` bytes of `data`, if any. `failure` is initialized. */
struct coll_call nccl_internal_call(dlcoll_comm *c, enum call_kind kind, void *data, size_t len,
                                    uint64_t deadline_ns, struct coll_failure *failure);

/* --------------------------------------------------------------------------------- nccl_clock.c */

/* Returns false if the driver cannot give the device's times. */
bool nccl_clock_open(struct nccl *n);
void nccl_clock_close(struct nccl *n);
/* Returns when the device reached an event that is complete, on CLOCK_MONOTONIC; 0: unknown. The
 * caller holds the lock. */
uint64_t nccl_clock_read(struct nccl *n, cuda_event event);

/* -------------------------------------------------------------------------------- nccl_advice.c */

/* Warns of what will trouble NCCL on this node. */
void nccl_advise(const struct nccl *n);

/* ----------------------------------------------------------------------------------- nccl_ops.c */

/* Returns how many bytes of scratch memory an operation needs. If any, the caller records n->aside
 * behind the operation. */
size_t nccl_room(const struct coll_call *call);

/* Enqueues one call; `room` has the bytes of nccl_room(). Returns NCCL's code. */
int nccl_enqueue(struct nccl *n, nccl_comm_t nccl, const struct coll_call *call, cuda_stream stream,
                 cuda_ptr room);
int nccl_enqueue_list(struct nccl *n, nccl_comm_t nccl, const dlcoll_p2p *list, size_t count,
                      cuda_stream stream);
/* Returns NULL, or why NCCL cannot carry out the call on the ranks' devices. */
const char *nccl_refuses(const struct nccl *n, const struct coll_call *call);

/* --------------------------------------------------------------------------------------- nccl.c */

/* Fails the communicator: wakes the waiters first, then ends NCCL's kernels. Returns the public
 * code. */
int nccl_fail(struct nccl *n, int status, struct coll_call *call);
/* Starts the watcher, which works while no thread is inside a call. 0 or a positive errno. */
int nccl_start_watching(struct nccl *n);
/* Waits until NCCL has finished a call that has returned rc. In non-blocking mode NCCL may go on
 * with it whether it has returned success or "in progress", and refuses the next one until then: so
 * it is asked after each call. Returns 0 or a code of coll_call.h. */
int nccl_settle(struct nccl *n, int rc, uint64_t deadline_ns, struct coll_call *call);
/* Makes a call of all ranks that makes something, a split or a window, and waits for its end.
 * Returns 0 and *made, which may be NULL, or a code of coll_call.h: then the caller fails the
 * communicator, since NCCL may go on with it. */
int nccl_make(struct nccl *n, struct nccl_helper *what, void **made, struct coll_call *call);
/* Returns NCCL's communicator, which is not freed until nccl_let_go(); NULL: it has been aborted.
 */
nccl_comm_t nccl_hold(struct nccl *n);
void nccl_let_go(struct nccl *n);
/* Waits for a helper and frees it. h is NULL if no helper could be started. *made, if made is not
 * NULL, becomes the communicator that the helper has created. */
int nccl_settle_helper(struct nccl *n, struct nccl_helper *h, nccl_comm_t *made,
                       uint64_t deadline_ns, struct coll_call *call);

#endif
