/* direct.h: reductions whose buffers lie in the shared memory on every rank (dlcoll_mem_alloc()).
 * Rank i reduces slice i of all send buffers and writes the result into all receive buffers that
 * need it. Nothing is staged: each rank reads and writes 2 S bytes, which is the minimum, and the
 * ranks synchronize twice. */
#ifndef COLLECTIVES_SHM_DIRECT_H
#define COLLECTIVES_SHM_DIRECT_H

#include "collectives/reduce/reduce.h"
#include "collectives/shm/sync.h"

struct direct {
    struct shm_op *op;
    const uint8_t *send;
    uint8_t *recv;
    /* In op->s: out[me] is this rank's slice of every send buffer; in[me] is where its result
     * goes in the receive buffers of `results` (STAGED_ALL, STAGED_NOBODY: its own only, or one
     * rank). */
    const struct reduce_info *reduce;
    int results;
};

/* Enters the operation and publishes the addresses of this rank's buffers. False: they are not in
 * the shared memory, and nothing was done. True: call direct_agreed() next. */
bool direct_offer(struct direct *d, size_t send_len, size_t recv_len);

/* Waits for all ranks. 1: all have offered their buffers; 0: at least one has not; or negative. */
int direct_agreed(struct direct *d);

int direct_run(struct direct *d);

#endif
