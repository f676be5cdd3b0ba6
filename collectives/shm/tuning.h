/* tuning.h: the sizes at which operations among the ranks of one node change their way. */
#ifndef COLLECTIVES_SHM_TUNING_H
#define COLLECTIVES_SHM_TUNING_H

#include <stddef.h>

/* Sizes in bytes, which selection.def describes. Equal on every rank, because all must choose
 * alike. */
struct shm_tuning {
#define SHM(name, bytes, decides, measured) size_t name;
#include "collectives/comm/selection.def"
};

extern struct shm_tuning shm_tuning;

#endif
