/* allocation.h: the hosts that a scheduler has given to a job whose script runs on one of them.
 * Where the user asks for several nodes (--nnodes 2) and does not say where they meet, dlaunch
 * starts itself on these hosts by the scheduler's own means, as with -H.
 *
 *     Slurm   SLURM_JOB_NODELIST                   srun, a step for each host
 *             SLURM_JOB_NODELIST_HET_GROUP_<i>     of a heterogeneous job
 *     PBS     PBS_NODEFILE                         pbs_tmrsh
 *     LSF     LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS    blaunch
 *     SGE     PE_HOSTFILE                          qrsh -inherit
 *
 * Launchers that a scheduler has started on each node, as srun does, are detect.h's business. */
#ifndef LAUNCHER_HOSTS_ALLOCATION_H
#define LAUNCHER_HOSTS_ALLOCATION_H

#include "launcher/options/options.h"

/* Sets --host and --launch_agent, and says so in one line. 0: they are set; 1: there is no such
 * allocation, or it is not asked for; -EINVAL. */
int allocation_read(struct options *o, char *const *envp, struct err *e);

/* The host's component of a heterogeneous job of Slurm (srun --het-group); -1: none. */
int allocation_het_group(char *const *envp, const char *host);

#endif
