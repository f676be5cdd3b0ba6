/* direct.h: reductions whose buffers lie in the shared memory on every rank (dlcoll_mem_alloc()):
 * rank i reduces slice i of everybody's send buffer and writes it where it belongs, into the
 * receive buffers of the others, too. Nothing is staged: 2 S bytes are read and written a rank, the
 * least there is, and the ranks meet twice. */
#ifndef COLLECTIVES_SHM_DIRECT_H
#define COLLECTIVES_SHM_DIRECT_H

#include "collectives/reduce/reduce.h"
#include "collectives/shm/sync.h"

struct direct {
    struct shm_op *op;
    const uint8_t *send;
    uint8_t *recv;
    /* In op->s: out[me] is my slice of everybody's send buffer, in[me] where its result goes in the
     * receive buffers of `results` (STAGED_ALL, STAGED_NOBODY: my own alone, or a rank). */
    const struct reduce_info *reduce;
    int results;
};

/* Comes to the operation and says where my buffers are. False: they do not lie in the shared
 * memory, and nothing has been done. Must then be followed by direct_agreed(). */
bool direct_offer(struct direct *d, size_t send_len, size_t recv_len);

/* Waits for all. 1: all have offered theirs; 0: one has not; or negative. */
int direct_agreed(struct direct *d);

int direct_run(struct direct *d);

#endif
