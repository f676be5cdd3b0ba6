/* verdict.h: whether a job hangs, and because of which ranks, from two samples of all ranks that
 * were taken some time apart. Pure. */
#ifndef AGENT_STACKS_VERDICT_H
#define AGENT_STACKS_VERDICT_H

#include "agent/inspect/sample.h"

enum hang_state {
    HANG_NONE,    /* the job goes on, or nobody waits for anybody */
    HANG_SUSPECT, /* ranks wait for slow ranks, which move */
    HANG_HUNG,
};

#define VERDICT_RANKS 64
#define VERDICT_TEXT  480

struct verdict {
    enum hang_state state;
    int ranks[VERDICT_RANKS]; /* the culprits, in order */
    int n;
    bool silent;             /* the nodes of some of them did not answer */
    char text[VERDICT_TEXT]; /* one line for people */
};

/* `first` and `second` are sorted by rank. */
void hang_verdict(const struct samples *first, const struct samples *second, struct verdict *out);

/* Describes the place of a rank in the program: the function that called the operation that it
 * waits in, else the innermost one that is not the C library's; "". */
const char *hang_place(const struct sample *s);

#endif
