/* freezer.h: processes that SIGKILL does not end, as long as they are frozen: a stand-in for
 * uninterruptible sleep. Needs root and a cgroup v1 freezer. */
#ifndef TESTS_LIB_FREEZER_H
#define TESTS_LIB_FREEZER_H

#include <stdbool.h>
#include <sys/types.h>

struct freezer {
    char dir[600];
};

bool freezer_init(struct freezer *f); /* false: there is none here */
void freezer_freeze(struct freezer *f, pid_t pid);
void freezer_thaw(struct freezer *f);
void freezer_fini(struct freezer *f); /* everything in it has ended */

#endif
