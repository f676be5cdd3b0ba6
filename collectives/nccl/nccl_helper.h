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

enum nccl_job { NCCL_INIT, NCCL_SPLIT, NCCL_FINALIZE, NCCL_ABORT, NCCL_DESTROY };

struct nccl_helper {
    enum nccl_job job;
    const struct nccl_api *api;
    const struct cuda_api *cuda;
    cuda_context ctx;
    nccl_comm_t nccl;        /* the argument of the call, or the result of an init or split */
    nccl_comm_t parent;      /* of a split */
    struct nccl_config conf; /* of an init or split; its name is copied */
    char name[64];
    struct nccl_id *ids; /* of an init: malloc'ed; the helper frees them */
    int nids, size, rank, color, key;

    uint64_t since_ns;
    _Atomic uint32_t state;
    int rc; /* NCCL's code, once the call has returned */
};

/* Starts the call described by `what`. NULL: no memory or no thread. */
struct nccl_helper *nccl_helper_start(const struct nccl_helper *what);
bool nccl_helper_is_done(const struct nccl_helper *h);
/* Waits until `until_ns` at most. Returns whether the call has returned. */
bool nccl_helper_wait(const struct nccl_helper *h, uint64_t until_ns);
/* Frees the helper. If its call is still in progress, the thread frees it later, and aborts the
 * communicator that an init or split then creates. */
void nccl_helper_leave(struct nccl_helper *h);

#endif
