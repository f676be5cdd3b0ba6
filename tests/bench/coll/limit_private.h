/* limit_private.h: what this machine allows where each rank's buffers are its own, as those of most
 * programs are: the operations by bare copies, without any of a library's duties.
 *
 *     LIMIT_STAGED   each byte goes through a piece of shared memory that stays in the caches
 *     LIMIT_READ     each byte is read out of its owner's memory by the kernel (process_vm_readv)
 *
 * Every rank calls all functions in the same order. */
#ifndef BENCH_LIMIT_PRIVATE_H
#define BENCH_LIMIT_PRIVATE_H

#include "collectives/reduce/reduce.h"
#include "tests/bench/coll/harness.h"

enum limit_means { LIMIT_STAGED, LIMIT_READ };

/* Before the ranks are forked. Exits with a message if there is no memory. */
void limit_private_map(int ranks);

/* In each rank. peer, whose barrier is used, and sum are borrowed. */
void limit_private_init(enum limit_means means, const struct bench_peer *peer,
                        const struct reduce_info *sum);

/* One of a rank's two buffers. Returns NULL if there is no memory. */
void *limit_private_memory(size_t bytes);

/* As bench_peer's run(). */
void limit_private_run(enum bench_op op, char *a, char *b, size_t count);

#endif
