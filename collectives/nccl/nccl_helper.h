/* nccl_helper.h: calls of NCCL's that may block for long, or for good: each in a thread of its own,
 * which whoever waits can leave behind.
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
    nccl_comm_t nccl;        /* what the call is for, or what an init or split has made */
    nccl_comm_t parent;      /* of a split */
    struct nccl_config conf; /* of an init or split; its name is copied */
    char name[64];
    struct nccl_id *ids; /* of an init: malloc'ed, the helper's */
    int nids, size, rank, color, key;

    uint64_t since_ns;
    _Atomic uint32_t state;
    int rc; /* NCCL's, once it is done */
};

/* Starts the call described by `what`. NULL: no memory or no thread. */
struct nccl_helper *nccl_helper_start(const struct nccl_helper *what);
bool nccl_helper_is_done(const struct nccl_helper *h);
/* Waits until `until_ns` at most. Whether it is done. */
bool nccl_helper_wait(const struct nccl_helper *h, uint64_t until_ns);
/* Frees it; a call under way ends by itself, and what an init or split makes then is aborted. */
void nccl_helper_leave(struct nccl_helper *h);

#endif
