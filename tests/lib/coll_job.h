/* coll_job.h: what a test and the workers of its job (coll_worker.c) have in common: a file that
 * all of them map. */
#ifndef TESTS_LIB_COLL_JOB_H
#define TESTS_LIB_COLL_JOB_H

#include <stdatomic.h>
#include <stdint.h>

#include "tests/lib/coll_ops.h"

struct coll_job_rank {
    _Atomic int32_t pid;  /* known once it is ready */
    _Atomic int32_t told; /* the rest is there */
    int32_t code;
    int32_t sum; /* of those who are left */
    uint64_t returned_ns;
    dlcoll_error error;
};

struct coll_job {
    _Atomic int32_t ready; /* ranks that are where the test wants them */
    struct coll_job_rank rank[COLL_MOST_RANKS];
};

/* Maps the file, which is made, all zeros, if it is not there. NULL: that cannot be done. */
struct coll_job *coll_job_open(const char *path);

#endif
