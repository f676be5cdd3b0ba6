/* program.h: the path and arguments that execute the user's program. */
#ifndef LAUNCHER_OPTIONS_PROGRAM_H
#define LAUNCHER_OPTIONS_PROGRAM_H

#include "agent/base/job_spec.h"
#include "launcher/options/options.h"

/* Fills in path, argv, name, the place of --local-rank and, for Python, `warm` but for its modules.
 * *exit_status is 126 or 127 when the program cannot be run, else as it was. */
int program_find(struct job_spec *spec, struct options *o, int *exit_status, struct err *e);

#endif
