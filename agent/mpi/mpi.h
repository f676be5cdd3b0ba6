/* mpi.h: what the ranks of an MPI program get from their launcher, in place of mpiexec: the
 * interface by which they find each other (pmi.h, pmix.h). */
#ifndef AGENT_MPI_MPI_H
#define AGENT_MPI_MPI_H

#include "agent/base/feature.h"

extern const struct feature mpi_feature;

#endif
