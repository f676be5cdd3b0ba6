/* nccl.h: a communicator's operations on device memory, through NCCL.
 *
 * A communicator carries both: host memory goes the ways of providers (provider.h), device memory
 * this one, told apart by the pointer's kind or by a stream in the options. NCCL's communicator is
 * made at the first operation on device memory, in which all ranks are; its unique id travels as an
 * operation on host memory.
 *
 *     nccl_perform   enqueues on the program's stream, or on ours and waits
 *       created by   nccl_get(): id -> ncclCommInitRankConfig
 *       watched by   a thread: abort word, NCCL's own errors, deadlines, works that are complete
 *
 * Failures: whatever ends the communicator (a death, a deadline, an error of NCCL's) is reported to
 * all who wait first (comm_fail()); NCCL's communicator is then aborted in a thread of its own
 * (nccl_helper.h), as that may take for ever. */
#ifndef COLLECTIVES_NCCL_NCCL_H
#define COLLECTIVES_NCCL_NCCL_H

#include <stdbool.h>
#include <stdint.h>

#include "collectives/api/coll_call.h"
#include "collectives/dlcoll.h"
#include "core/err.h"

struct job;

/* Whether device memory is served: by dlcoll_init()'s `backend`, or DLCOLL_BACKEND if that is the
 * default. -EINVAL; -ENOTSUP: nccl was asked for, with the part that is missing. */
int nccl_choose(int backend, bool *devices, struct err *e);

/* Whether `p` is device memory, or a stream says so: *device. Only where the job looks for it.
 * Never creates a context. 0, or the public code: the driver's answer is not to be relied on. */
int nccl_is_for(dlcoll_comm *c, const void *p, const void *stream, bool *device);
/* The refusal of a call without buffer and stream, if the communicator has been used for both. */
#define NCCL_NO_BUFFER_TELLS                                                                   \
    "this rank has no elements and no buffer that would tell whether the operation is on the " \
    "host or on a device: give it a stream, or a buffer that is not NULL"

/* Inside the communicator: the public code. The call is filled in but for its number. */
int nccl_perform(dlcoll_comm *c, struct coll_call *call, dlcoll_work **work);
/* The same for sends and receives; the list is checked. */
int nccl_batch(dlcoll_comm *c, enum call_kind kind, const dlcoll_p2p *list, size_t n,
               uint64_t deadline_ns, void *stream, dlcoll_work **work);

/* A group of `parent`'s, of which everybody in it is in the call: made from parent's, if it has
 * one. `group` is NULL on a rank that is in none. 0, or the public code. */
int nccl_split(dlcoll_comm *parent, dlcoll_comm *group, int color, int key);

/* Whether works are under way. */
bool nccl_is_busy(dlcoll_comm *c);

/* After the last barrier: waits for what is enqueued. The public code. */
int nccl_finalize(dlcoll_comm *c);
/* Ends it, in any state, and the works that are under way with DLCOLL_EABORTED. */
void nccl_free(dlcoll_comm *c, bool forked);

/* Waits for the work until it is done, or until the deadline (0: none); `once`: looks once. */
void nccl_wait(dlcoll_work *w, uint64_t until_ns, bool once);
void nccl_event_free(void *event);

#endif
