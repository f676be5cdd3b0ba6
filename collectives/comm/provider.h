/* provider.h: who carries out a collective operation: within the node, between nodes, or both.
 *
 * The first that can carries it out: of those that the user's rules name (algo_select.h), then in
 * the order of the table in perform/choose.c. Providers run the operation to its end in the calling
 * thread, which is the only one in the communicator's collectives meanwhile; threads of other
 * communicators, and point-to-point of this one, go on beside it. A provider may hand parts of the
 * operation, with fewer ranks, to another one.
 *
 * A new provider is a file and a row of that table. */
#ifndef COLLECTIVES_COMM_PROVIDER_H
#define COLLECTIVES_COMM_PROVIDER_H

#include "collectives/comm/coll_call.h"

struct coll_provider {
    const char *name;

    /* Whether the provider takes this call. Decides by facts that are equal on every rank (kind,
     * count, dtype, op, facts of the communicator), never by pointers or by what this rank alone
     * can see: all ranks must choose the same one. */
    bool (*can)(const struct coll_call *c);

    /* Carries the call out. 0, or negative as coll_call.h says. The provider handles count 0 and a
     * single rank, too. Allocates nothing once the communicator has done such an operation
     * before. */
    int (*run)(struct coll_call *c);

    /* The algorithms that a rule may name: the i-th, and the kind of call that it is for. NULL:
     * there are no more. NULL in place of the function: there is none. */
    const char *(*algo)(size_t i, enum call_kind *kind);
};

#endif
