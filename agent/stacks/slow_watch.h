/* slow_watch.h: which ranks are slower than the others, and by how much. Pure: the clock is handed
 * in.
 *
 * What is compared is the part of their time that ranks spend outside of collective operations.
 * Ranks that wait for each other take the same time for a step: one that works longer waits less.
 * So neither clocks of different hosts nor single operations have to be compared, and it does not
 * matter in which operation they wait.
 *
 * A look is taken of all ranks from time to time. A rank is slow when the median over the last
 * looks of what it is behind the median of the others is above the limit, and certain: far from
 * half the limit for the noise that these looks have. A pause, however long, is one look. */
#ifndef AGENT_STACKS_SLOW_WATCH_H
#define AGENT_STACKS_SLOW_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* The work of a worker since its start, by the clock of its node. */
struct slow_count {
    uint64_t at_ns;
    uint64_t waited_ns; /* in operations */
    uint64_t ops;       /* operations that the worker has begun */
};

#define SLOW_LOOKS 64 /* that are kept */
#define SLOW_FIRST 16 /* looks that a verdict needs */

struct slow_rank {
    struct slow_count last, now; /* at_ns 0: not known */
    unsigned looks;              /* look i is in the places i % SLOW_LOOKS */
    float behind[SLOW_LOOKS];    /* parts of its time */
    uint64_t was_last;           /* bit i: in look i it was behind most */
    bool slow;
};

struct slow_job {
    int n;
    double limit;  /* the part of its time that a rank may be behind */
    double others; /* the median part of their time that ranks spend outside of operations */
    struct slow_rank *ranks;
};

void slow_job_init(struct slow_job *j, int n, double limit);
void slow_job_fini(struct slow_job *j);

/* Takes the work that a rank has done up to now. */
void slow_job_put(struct slow_job *j, int rank, const struct slow_count *c);
/* Takes a look, if most ranks have done operations since the last one. True: other ranks are slow
 * than before. */
bool slow_job_look(struct slow_job *j);

struct slow_finding {
    double behind;        /* the part of their time that the others wait for it */
    unsigned last, looks; /* the rank was behind most in `last` of `looks` looks */
};
struct slow_finding slow_job_finding(const struct slow_job *j, int rank);

/* The recent speed of one worker. */
struct slow_pace {
    struct slow_count last;
    unsigned looks;
    double busy;   /* the part of its time that it spends outside of operations */
    double per_op; /* seconds outside of operations for each operation, */
    double best;   /* and the least value of that */
};

void slow_pace_look(struct slow_pace *p, const struct slow_count *c);
/* Scores from 0 to 1: as fast as the others, who are outside of operations for this part of their
 * time; as fast as it ever was. 0: not known yet. */
double slow_pace_relative(const struct slow_pace *p, double others);
double slow_pace_own(const struct slow_pace *p);

#endif
