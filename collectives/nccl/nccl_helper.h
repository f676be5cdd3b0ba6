/* nccl_helper.h: calls of NCCL that may block for long, or forever: each runs in a thread of its
 * own, which the waiting thread can leave behind.
 *
 * ncclCommAbort() does not return while a captured graph with its kernels lives, and may wait for
 * another communicator's kernel. The failure of a communicator must not wait for that. */
#ifndef COLLECTIVES_NCCL_NCCL_HELPER_H
#define COLLECTIVES_NCCL_NCCL_HELPER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "collectives/nccl/nccl_api.h"

enum nccl_job { NCCL_INIT, NCCL_SPLIT, NCCL_WINDOW, NCCL_FINALIZE, NCCL_ABORT, NCCL_DESTROY };

/* Where NCCL writes what a split or a registration makes, at the end of it: long after the call has
 * returned, or after its caller has given up. So it is on the heap, and belongs to who ends the
 * communicator: NCCL writes no more once that has been aborted. */
struct nccl_made {
    void *p;
    bool is_comm;
};

struct nccl_helper {
    enum nccl_job job;
    const struct nccl_api *api;
    const struct cuda_api *cuda;
    cuda_context ctx;
    nccl_comm_t nccl;         /* the argument of the call, or the result of an init */
    struct nccl_made *made;   /* of a split or a window; an abort ends it, too, and frees it */
    _Atomic uint32_t *inside; /* NULL, or how many threads are inside calls on `nccl` */
    struct nccl_config conf;  /* of an init or split; its name is copied */
    char name[64];
    void *memory; /* of a window */
    size_t len;
    struct nccl_id *ids; /* of an init: malloc'ed; the helper frees them */
    int nids, size, rank, color, key;

    uint64_t since_ns;
    _Atomic uint32_t state;
    int rc; /* NCCL's code, once the call has returned */
};

/* Makes the call described by `what` in this thread. Returns NCCL's code. An abort waits for the
 * threads that are inside other calls, a while before and to their end afterwards: NCCL frees what
 * they work with, but only it can end a call that waits for a peer. What the aborted communicator
 * was making is aborted after it: NCCL frees the parent's share of it first. */
int nccl_helper_call(struct nccl_helper *what);
/* Notes that one thread more, or one less, is inside a call. */
void nccl_go_inside(_Atomic uint32_t *inside);
void nccl_come_out(_Atomic uint32_t *inside);

/* Starts the call described by `what`; from now on it counts as inside. NULL: no memory or no
 * thread. */
struct nccl_helper *nccl_helper_start(const struct nccl_helper *what);
bool nccl_helper_is_done(const struct nccl_helper *h);
/* Waits until `until_ns` at most. Returns whether the call has returned. */
bool nccl_helper_wait(const struct nccl_helper *h, uint64_t until_ns);
/* Frees the helper. If its call is still in progress, the thread frees it later, and aborts the
 * communicator that an init then creates. */
void nccl_helper_leave(struct nccl_helper *h);

#endif
