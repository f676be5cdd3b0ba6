/* starter.h: who has started this process together with others, where it was not dlaunch: srun,
 * mpiexec and their like leave a process's rank and the number of processes in the environment.
 *
 * libdlcoll joins the tasks of a Slurm step by itself: their variables name rank, size, the nodes
 * (the first one has task 0), and the job and step, from which all derive the same ports. Other
 * starters do not say where the other processes are. */
#ifndef COLLECTIVES_BOOTSTRAP_STARTER_H
#define COLLECTIVES_BOOTSTRAP_STARTER_H

#include <stdbool.h>

#include "core/err.h"
#include "core/netaddr.h"

/* Rank 0 serves the store at the first free port of so many; jobs of other users on its host may
 * have derived the same ones. */
enum { STARTER_PORTS = 4 };

struct starter {
    int rank, size, local_rank; /* size 1: no other process */
    char head[HOST_MAX];        /* the host of rank 0 */
    int port;                   /* the first of STARTER_PORTS */
    char id[96]; /* no other start has it: job, step, and what else tells them apart */
};

/* -EINVAL: there are other processes which this one cannot find, with the remedy; or variables are
 * malformed. */
int starter_find(struct starter *s, struct err *e);

#endif
