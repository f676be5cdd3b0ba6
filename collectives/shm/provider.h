/* provider.h: carries out operations among the ranks of one node. */
#ifndef COLLECTIVES_SHM_PROVIDER_H
#define COLLECTIVES_SHM_PROVIDER_H

#include <stdbool.h>
#include <stddef.h>

struct coll_provider;

extern const struct coll_provider shm_provider;

/* Whether elements of so many bytes can be reduced among so many ranks in shared memory. */
bool shm_fits_large(size_t elem, int ranks);
enum { SHM_FITS_ALWAYS = 512 };
static inline bool shm_fits(size_t elem, int ranks)
{
    return elem <= SHM_FITS_ALWAYS || shm_fits_large(elem, ranks);
}

#endif
