/* mpi_program.h: which MPI a program has been linked with, from the libraries that it needs. */
#ifndef LAUNCHER_OPTIONS_MPI_PROGRAM_H
#define LAUNCHER_OPTIONS_MPI_PROGRAM_H

#include "agent/base/job_spec.h"

struct mpi_program {
    enum mpi_kind kind;
    const char *name; /* of the implementation; NULL: the program needs no library of MPI */
    bool foreign;     /* an MPI that dlaunch does not know: `kind` is MPI_NONE */
    char library[64]; /* the library by which the MPI was recognised */
    char through[64]; /* the library that needs that one; "": the program itself does */
};

/* Reads the needed libraries of an ELF file, and where they give no answer, those that they need in
 * turn. Anything else, a script say, needs none. */
void mpi_program_look(const char *path, struct mpi_program *out);

/* Fills *out by the name of one needed library. False: the library is not an MPI's. */
bool mpi_library(const char *soname, struct mpi_program *out);

#endif
