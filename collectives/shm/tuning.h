/* tuning.h: the sizes at which operations among the ranks of one node change their way. */
#ifndef COLLECTIVES_SHM_TUNING_H
#define COLLECTIVES_SHM_TUNING_H

#include "collectives/api/thresholds.h"

/* In bytes; thresholds.h describes each. Equal on every rank, because all must choose alike. */
struct shm_tuning {
#define ROW(name, bytes, decides, measured) size_t name;
    THRESHOLDS_SHM(ROW)
#undef ROW
};

extern struct shm_tuning shm_tuning;

#endif
