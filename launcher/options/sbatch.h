/* sbatch.h: --print_sbatch: the command line as a batch script of Slurm, with one launcher on each
 * node. */
#ifndef LAUNCHER_OPTIONS_SBATCH_H
#define LAUNCHER_OPTIONS_SBATCH_H

#include <stdio.h>

#include "launcher/options/options.h"

/* argv: as the user typed it. -EINVAL: it is not a job that Slurm could place. */
int sbatch_print(FILE *out, struct options *o, int argc, char *const *argv, struct err *e);

#endif
