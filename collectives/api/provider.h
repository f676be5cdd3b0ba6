/* provider.h: who carries out a collective operation: within the node, between nodes, or both.
 *
 * coll.c takes the first in g_providers that can. Providers run the operation to its end in the
 * calling thread, which is the only one in the communicator's collectives meanwhile; threads of
 * other communicators, and point-to-point of this one, go on beside it. A provider may hand parts
 * of the operation, with fewer ranks, to another one.
 *
 * A new provider is a file and a row of the table in provider.c. */
#ifndef COLLECTIVES_API_PROVIDER_H
#define COLLECTIVES_API_PROVIDER_H

#include "collectives/api/algo_select.h"
#include "collectives/api/coll_call.h"

struct coll_provider {
    const char *name;

    /* Whether it takes this call. Decides by what is the same on every rank (kind, count, dtype,
     * op, facts of the communicator), never by pointers or by what this rank alone can see: all
     * ranks must choose the same one. */
    bool (*can)(const struct coll_call *c);

    /* Carries it out. 0, or negative as coll_call.h says; count 0 and a single rank are its
     * business, too. Allocates nothing once the communicator has done such an operation before. */
    int (*run)(struct coll_call *c);
};

extern const struct coll_provider *const g_providers[]; /* in the order of preference */
extern const size_t g_nproviders;

/* Never NULL: the last one takes everything. DLCOLL_ALGO may exclude some (algo_select.h). */
const struct coll_provider *provider_choose(const struct coll_call *c);

/* Runs one of the steps that a call consists of, and takes over how it has ended. */
int provider_run_step(struct coll_call *whole, struct coll_call *step);

/* The key of the rules for the call: equal on every rank. */
struct algo_key provider_key(const struct coll_call *c);

/* Whether elements of so many bytes can be reduced among so many ranks in shared memory. */
bool shm_fits_large(size_t elem, int ranks);
enum { SHM_FITS_ALWAYS = 512 };
static inline bool shm_fits(size_t elem, int ranks)
{
    return elem <= SHM_FITS_ALWAYS || shm_fits_large(elem, ranks);
}

extern const struct coll_provider shm_provider;  /* shm/provider.c: the ranks of one node */
extern const struct coll_provider hier_provider; /* hier.c: both, when nodes have several ranks */
extern const struct coll_provider net_provider;  /* net/net.c: any ranks, over sockets */

#endif
