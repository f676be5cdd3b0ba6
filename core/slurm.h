/* slurm.h: what dlaunch and libdlcoll both derive from Slurm's variables. */
#ifndef CORE_SLURM_H
#define CORE_SLURM_H

/* Steps that are not an srun of the user's (batch script, interactive shell, ...) have ids from
 * here. */
#define SLURM_STEP_SPECIAL 0xfffffff0l

/* A port that all nodes derive alike, and other jobs on these nodes differently. Below the range
 * from which the kernel gives out ports (32768), above the well-known ones. */
static inline int slurm_port(long job, long step)
{
    return 20000 + (int)((job % 10000 * 17 + step % 10000) % 10000);
}

#endif
