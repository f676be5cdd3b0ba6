/* programs.h: the programs of a job whose ranks do not all run the same one (MPMD). Which program a
 * rank runs follows from the rank alone, so it is the same on every node and after every restart.
 * Pure data; all functions take NULL for a job of one program. */
#ifndef AGENT_BASE_PROGRAMS_H
#define AGENT_BASE_PROGRAMS_H

#include <stdbool.h>

#include "core/err.h"

struct program {
    const char *path; /* these as in job_spec */
    char **argv;
    const char *name, *cwd;
    char **env;    /* "NAME=value", before those of the job; NULL-terminated */
    bool numbered; /* in argv, %t stands for the rank, %o for its place among the program's ranks,
                      and %% for % */
};

struct program_span { /* of ranks */
    int first, last;
    int program; /* in the list */
    int offset;  /* how many ranks of the program are in earlier spans */
    int before;  /* how many ranks are in earlier spans */
};

struct programs {
    struct program *list;
    int n;
    const struct program_span *spans; /* in order; none overlaps another */
    int nspans;
    int rest; /* the program of all other ranks; -1: there are no others */
};

/* Sorts the spans, whose first, last and program are set, and fills in the others. */
void programs_order(struct program_span *spans, int n);

/* Whether each rank of the job has a program, and no other rank has one. -EINVAL: which has not. */
int programs_check(const struct programs *p, int world_size, struct err *e);

/* The number of the rank's program; *offset: the rank's place among the program's ranks, NULL: not
 * wanted. Of a job of one program: 0 and the rank. */
int programs_find(const struct programs *p, int rank, int *offset);

/* The program of the rank, and its name; NULL for a job of one program. */
const struct program *programs_of(const struct programs *p, int rank);
const char *programs_name(const struct programs *p, int rank);

/* The program's words for a worker, as worker_argv_new(). */
char **programs_argv_new(const struct programs *p, int rank, int local_rank);

#endif
