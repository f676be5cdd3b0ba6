/* coll_call.h: one collective operation as it is handed to a provider (provider.h): its arguments,
 * checked, and its result.
 *
 * ops/coll_args.c fills in the struct; the provider borrows everything that it points to until it
 * returns.
 */
#ifndef COLLECTIVES_COMM_COLL_CALL_H
#define COLLECTIVES_COMM_COLL_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/base/op_signature.h"
#include "collectives/dlcoll.h"
#include "collectives/reduce/reduce.h"
#include "core/err.h"

struct dlcoll_comm;

/* A list of the communicator's ranks that carry out (a part of) an operation among themselves:
 * all of them, those of one node, the lane of one local rank through all nodes. Ranks are numbered
 * anew, 0 to size - 1, in the order of the list; it is the same list on each of them. */
struct coll_ranks {
    int size;
    int me;         /* my place in the list */
    const int *map; /* the communicator's rank of each; NULL: 0, 1, 2, ... */
};

static inline int coll_rank_of(const struct coll_ranks *r, int i)
{
    return r->map ? r->map[i] : i;
}

/* The places of the parts of a buffer, in elements. counts NULL: all have `count` elements and lie
 * one after the other. displs NULL: one after the other. */
struct coll_parts {
    const size_t *counts, *displs;
};

/* An operation that a communicator has carried out; seq 0: none. */
struct coll_done {
    uint64_t seq;
    struct op_signature sig;
};

/* The call of another rank, as a mismatch shows it. */
struct coll_theirs {
    struct op_signature sig;
    uint64_t seq; /* the call's number; of a message, and from shared memory, the low half */
    bool differed_before;  /* `sig` is this rank's, too; an earlier call differed */
    struct coll_done last; /* then: the call before it, if known */
};

/* The details of a failure that a provider gives, beside the code that its `run` returns:
 *   -EPIPE      `culprit` has died, left or closed its connection
 *   -EBADMSG    `culprit` is in another operation, or has called another one before: `theirs`
 *   -ETIMEDOUT  the deadline passed while waiting for `culprit`
 *   -ECANCELED  told to stop (comm_is_stopped())
 *   -EREMOTEIO  a device library failed on this rank; with a text
 *   -EBADE      the program's own reduction failed on this rank; with its text
 *   -ENOMEM     before anything was sent: the communicator stays in use
 *   another     with a text
 *
 * Whoever has an operation carried out has the struct on its stack, and initializes it with
 * coll_failure_init(). */
struct coll_failure {
    int culprit; /* a rank of the communicator, or -1 */
    struct coll_theirs theirs;
    struct err err;
};

/* `theirs` is written together with the code -EBADMSG. Most of the struct is room for a text: it is
 * not cleared, because operations on a few bytes would notice. */
static inline void coll_failure_init(struct coll_failure *f)
{
    f->culprit = -1;
    f->err.code = 0;
    f->err.msg[0] = '\0';
}

struct coll_call {
    struct op_signature sig; /* compared by the ranks: equal on all of them */
    uint64_t seq;            /* of the communicator's operations, from 1: the same on all ranks */
    uint64_t history;        /* digest of the communicator's calls before it: op_history_add() */
    uint8_t part;        /* of several that one operation is made of (hierarchy): 0, 1, 2, ... */
    enum call_kind kind; /* the operation to carry out; sig.kind: the one that was called */

    struct dlcoll_comm *comm;
    struct coll_ranks ranks;
    int root; /* place in `ranks` */

    /* Buffers and counts as dlcoll.h has them for the kind; in place when they are the same or, for
     * all_gather, gather, scatter and reduce_scatter, when one is the rank's part of the other. */
    const void *send;
    void *recv;
    size_t count; /* elements; of one part where there are parts */
    struct coll_parts send_parts, recv_parts;
    /* The layouts of the elements that the operation sends and receives; NULL: one after the other.
     * With pack_parts, `send` is packed because `recv` is the same. */
    const dlcoll_layout *send_layout, *recv_layout;
    bool pack_parts;
    bool in_steps;            /* not by one provider alone: layouts, a list of buffers, a task */
    bool persistent;          /* dlcoll_start() begins it... */
    int64_t timeout_ms;       /* ...with this timeout, as in opts */
    const dlcoll_span *spans; /* of all_reduce_coalesced (perform/coalesced.h) */
    size_t nspans;

    const struct dtype *dtype; /* NULL: no data */
    size_t elem;               /* bytes of one element; 1 without data */
    int op;                    /* dlcoll_op of the reducing kinds */
    /* Found from dtype and op. Who carries the call out does reduce_pre() and reduce_post(), too,
     * if it has them; a part that is handed on has those left that are to be done in it. */
    struct reduce_info reduce;

    bool device;  /* buffers are device memory: nccl/nccl.h */
    void *stream; /* then: where it is enqueued; NULL: on one of ours */

    /* A function that carries the call out instead of a provider: it returns what a provider's
     * `run` does, or `settled` is the public code of a failure that the communicator's last error
     * describes already. A queued call has a copy of the task_bytes at task_arg. The call takes
     * `more` numbers beside its own. */
    int (*task)(struct coll_call *c);
    const void *task_arg;
    size_t task_bytes;
    unsigned more;
    int settled;

    uint64_t start_ns;    /* of the call, on mono_ns(), to a tick of the kernel's; 0: not known */
    uint64_t deadline_ns; /* likewise; 0: none */
    /* Set while nothing has been sent yet: -ENOMEM is returned to the program, which may call
     * again; later -ENOMEM is a failure of the communicator. */
    bool may_repeat;

    struct coll_failure
        *failure; /* of the provider that carries out the call; parts and copies have the same */

    /* The algorithm that the provider chose, for the flight recorder and DLCOLL_DEBUG; a fixed
     * text. */
    const char *algo;
};

/* Bytes of one rank's data: what algorithms are chosen by. */
static inline size_t coll_bytes(const struct coll_call *c)
{
    return c->count * c->elem;
}

/* Whether nothing is to be done, as everybody knows: no rank sends anything. */
static inline bool coll_is_nothing(const struct coll_call *c)
{
    return c->dtype && !call_counts_differ(c->kind) && c->sig.count == 0;
}

#endif
