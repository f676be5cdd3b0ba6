/* programs.h: several programs in one job, from the command line or from a file:
 *
 *     dlaunch -n 1 ./ps : -n 4 -x VAR=VALUE --wdir DIR ./worker ARGUMENT     as mpirun
 *     dlaunch -n 8 --multi_prog FILE ARGUMENT                                as srun --multi-prog
 *
 * A line of the file: the ranks ("0,4-7"; "*": all others), a program, its arguments. %t in an
 * argument is the rank, %o its place among the ranks of the line; single quotes keep both as they
 * are. Arguments of the command line follow those of the file. */
#ifndef LAUNCHER_OPTIONS_PROGRAMS_H
#define LAUNCHER_OPTIONS_PROGRAMS_H

#include "launcher/options/options.h"

/* Fills in o->programs, and --np where the programs say how many workers there are. `environment`:
 * where -x VAR has its value from. -EINVAL. */
int programs_read(struct options *o, char *const *environment, struct err *e);

/* Whether the programs are those of so many workers. -EINVAL. */
int programs_fit(struct options *o, long workers, struct err *e);

/* Encodes the programs as a list of words for another host, and decodes it; NULL: the job has one
 * program. */
char **programs_put(struct options *o);
int programs_take(struct options *o, char *const *words, struct err *e);

/* Returns the variables that -x names, as "NAME=value", NULL-terminated: VAR=VALUE as it is, VAR
 * and VAR* with their values in `environment`. */
char **programs_exports(struct options *o, const char *const *exported, char *const *environment);

#endif
