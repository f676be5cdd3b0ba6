/* nccl.h: a communicator's operations on device memory, through NCCL.
 *
 * One communicator serves both kinds of memory. A provider (provider.h) carries out operations on
 * host memory, this backend those on device memory. The pointer's kind, or a stream in the options,
 * tells which. The first operation on device memory creates NCCL's communicator, so all ranks take
 * part in it; an operation on host memory distributes the unique id.
 *
 *     nccl_perform   enqueues on the program's stream; without one, on the library's, and waits
 *       nccl_get     creates NCCL's communicator: id -> ncclCommInitRankConfig
 *       watch        a thread that looks at the abort word, NCCL's errors, deadlines and works that
 *                    are complete
 *
 * Failures: a death, a deadline or an error of NCCL fails the communicator. comm_fail() reports it
 * to all waiting threads first. Then a thread of its own (nccl_helper.h) aborts NCCL's
 * communicator, because the abort may never return. */
#ifndef COLLECTIVES_NCCL_NCCL_H
#define COLLECTIVES_NCCL_NCCL_H

#include <stdbool.h>
#include <stdint.h>

#include "collectives/comm/coll_call.h"
#include "collectives/dlcoll.h"
#include "core/err.h"

struct job;

/* Finds out whether the communicator serves device memory: dlcoll_init()'s `backend` decides, or
 * DLCOLL_BACKEND if that is the default. -EINVAL; -ENOTSUP: the program wants nccl, and the text
 * names the part that is missing. */
int nccl_choose(int backend, bool *devices, struct err *e);

/* Sets *device if `p` is device memory or there is a stream, and the job serves device memory.
 * Never creates a context. Returns 0, or the public code if the driver gives an unexpected answer.
 */
int nccl_is_for(dlcoll_comm *c, const void *p, const void *stream, bool *device);
/* Checks one more buffer of an operation that is `device`, or is not: it must be memory of the same
 * kind, and of the communicator's device. *on, at first -1, becomes the device of the buffers that
 * have been checked. `name`: what the call names it. Returns 0 or the public code. */
int nccl_check_buffer(dlcoll_comm *c, enum call_kind kind, const char *name, const void *p,
                      bool device, int *on);
/* The refusal of a call without buffer and stream, if the communicator has been used for both. */
#define NCCL_NO_BUFFER_TELLS                                                                   \
    "this rank has no elements and no buffer that would tell whether the operation is on the " \
    "host or on a device: give it a stream, or a buffer that is not NULL"

/* Carries out a call, which is complete except for its number. The caller is inside the
 * communicator. Returns the public code. */
int nccl_perform(dlcoll_comm *c, struct coll_call *call, dlcoll_work **work);
/* Does the same for sends and receives. The caller has checked the list. */
int nccl_batch(dlcoll_comm *c, enum call_kind kind, const dlcoll_p2p *list, size_t n,
               uint64_t deadline_ns, void *stream, dlcoll_work **work);

/* Splits the parent's NCCL communicator, if it has one, for `group`. All ranks of the parent call
 * this; `group` is NULL on a rank that belongs to no group. Returns 0 or the public code. */
int nccl_split(dlcoll_comm *parent, dlcoll_comm *group, int color, int key);

/* Returns whether works with a handle are in progress. */
bool nccl_is_busy(dlcoll_comm *c);

/* Waits for all enqueued operations. Called after the last barrier. Returns the public code. */
int nccl_finalize(dlcoll_comm *c);
/* Ends NCCL's communicator in any state. Works in progress get DLCOLL_EABORTED. */
void nccl_free(dlcoll_comm *c, bool forked);

/* Waits until the work is complete, or until the deadline (0: none). `once`: looks once. */
void nccl_wait(dlcoll_work *w, uint64_t until_ns, bool once);
void nccl_event_free(void *event);

#endif
