/* coll_args.h: the arguments of a public collective operation, and whether they are right. */
#ifndef COLLECTIVES_OPS_COLL_ARGS_H
#define COLLECTIVES_OPS_COLL_ARGS_H

#include <stdbool.h>
#include <stddef.h>

#include "collectives/comm/coll_call.h"
#include "collectives/dlcoll.h"
#include "core/clock.h"

struct coll_args {
    enum call_kind kind;
    enum call_kind called; /* the kind that the program has called, if the call is carried out as
                              another kind */
    const void *send;
    void *recv;
    size_t count;
    /* For the kinds with _v only; displs may be NULL. */
    const size_t *send_counts, *send_displs, *recv_counts, *recv_displs;
    int dtype, op, root;
    dlcoll_comm *comm;
    const dlcoll_opts *opts;
    dlcoll_work **work; /* NULL: blocking */
};

/* Fills in the call, all but its number. 0; or a code, and the communicator's last error says what
 * is wrong. */
int coll_args_check(const struct coll_args *a, struct coll_call *call);

/* The options, checked; as coll_args_check(). */
int coll_take_opts(dlcoll_comm *c, enum call_kind kind, const dlcoll_opts *given,
                   dlcoll_opts *opts);

/* Reading the exact clock takes as long as a good part of a small operation; the coarse one is
 * behind it by at most a tick of the kernel's, by which longer deadlines may be late. */
static inline uint64_t coll_now(void)
{
    return clock_ns(CLOCK_MONOTONIC_COARSE);
}

/* The deadline of an operation that began at now_ns, which is coll_now(). */
uint64_t coll_deadline(const dlcoll_comm *c, const dlcoll_opts *opts, uint64_t now_ns);

#endif
