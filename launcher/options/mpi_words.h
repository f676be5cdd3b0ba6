/* mpi_words.h: options as users of mpirun (Open MPI) and mpiexec (MPICH's Hydra) type them, with
 * one dash or two, as far as dlaunch has what they ask for. */
#ifndef LAUNCHER_OPTIONS_MPI_WORDS_H
#define LAUNCHER_OPTIONS_MPI_WORDS_H

#include "core/err.h"

/* Callbacks for options and variables; both copy the text. */
struct mpi_words_to {
    void *arg;
    /* An option of dlaunch, "--np"; word: as it was typed, for messages. */
    int (*set)(void *arg, const char *option, const char *value, const char *word, struct err *e);
    /* A variable for the workers of all programs: as for --export. */
    void (*export)(void *arg, const char *text);
};

/* Reads one of them at words[0], of n. Returns how many words it took, 0 if it is none of them, or
 * -EINVAL: one line says what is possible. */
int mpi_words_read(const struct mpi_words_to *to, int n, char **words, struct err *e);

#endif
