/* piped.h: starts a command whose standard input, output and error are pipes to this process. */
#ifndef LAUNCHER_HOSTS_PIPED_H
#define LAUNCHER_HOSTS_PIPED_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/err.h"

struct spawner;

struct piped {
    pid_t pid;
    int in, out, err; /* this process's ends, which do not block; the caller's */
};

/* outlives: the command is not killed when this process dies. On failure *out has no descriptors,
 * and the pid -1. */
int piped_start(struct spawner *s, const char *path, char **argv, bool outlives, struct piped *out,
                struct err *e);

#endif
