/* tuning.h: by how much data operations among the ranks of one node are carried out in which way.
 */
#ifndef COLLECTIVES_SHM_TUNING_H
#define COLLECTIVES_SHM_TUNING_H

#include "collectives/api/thresholds.h"

/* In bytes; thresholds.h has what each decides. The same on every rank, for the choice must be. */
struct shm_tuning {
#define ROW(name, bytes, decides, measured) size_t name;
    THRESHOLDS_SHM(ROW)
#undef ROW
};

extern struct shm_tuning shm_tuning;

#endif
