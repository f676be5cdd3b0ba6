/* nccl.h: what a test may ask of the NCCL and CUDA of tests/fake/nccl.c, which work on host memory.
 * The test's process loads the library before it forks its ranks, so that they share this. */
#ifndef TESTS_FAKE_NCCL_H
#define TESTS_FAKE_NCCL_H

#include <stdatomic.h>

struct fake_nccl {
    _Atomic int version;
    _Atomic int polls;         /* what goes on by itself does so for so many questions more */
    _Atomic int async_error;   /* what ncclCommGetAsyncError says... */
    _Atomic int error_rank;    /* ...on this rank */
    _Atomic int bad_splitter;  /* who becomes error_rank by ncclCommSplit */
    _Atomic int no_unique_id;  /* ncclGetUniqueId fails: 1, everywhere; else in that process */
    _Atomic int no_stream;     /* cudaStreamCreate fails in that process */
    _Atomic(void *) elsewhere; /* a page here is memory of device 1 */
    _Atomic int slow_split;    /* so many ms, until it is aborted */
    _Atomic int slow_calls;    /* so many ms a call stays inside in blocking mode */
    _Atomic int no_symmetric;  /* no windows: success without one */
    _Atomic int held;          /* what is enqueued waits while this is not 0 */
    _Atomic int abort_hangs;   /* ncclCommAbort does not return, as while a captured graph lives */
    _Atomic int pointer_error; /* what cuPointerGetAttributes returns */
    _Atomic int capability;    /* 90: that of every device; rank 0's where it differs */
    _Atomic int same_gpu;      /* all processes see the same device */
    _Atomic int instances;     /* each process sees an instance of MIG of the same device */
    _Atomic int compute_mode;  /* of every device */
    _Atomic int slow_device;   /* an event is never ready while this is not 0 */
    _Atomic(void *) capture;   /* this stream is being captured into a graph, in global mode */

    _Atomic int contexts;       /* made, in all processes */
    _Atomic int pointer_calls;  /* of cuPointerGetAttributes */
    _Atomic int wrong_context;  /* calls while another context was current */
    _Atomic int capture_broken; /* calls that invalidate a capture */
    _Atomic int captured;       /* operations that went into a graph */
    _Atomic int blocking;       /* communicators in blocking mode */
    _Atomic int crashes;        /* what would have crashed NCCL; one line each is on stderr */
    _Atomic int callers;        /* threads inside calls in blocking mode */
    _Atomic int freed_under;    /* such threads whose communicator was freed meanwhile */
    _Atomic int revokes, windows, events;
    _Atomic int timed_events;    /* of these, ever: created to take the time */
    _Atomic int errors_reported; /* answers of ncclCommGetAsyncError that are async_error */

    _Atomic int inits, scalable, splits, aborts, destroys, finalizes, registers;
    _Atomic int reduce_ops;     /* made and not destroyed */
    _Atomic int max_threads_in; /* inside the library on one communicator at a time */
};

typedef struct fake_nccl *fake_nccl_fn(void); /* fake_nccl_state() */

#endif
