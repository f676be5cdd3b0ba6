/* rank_set.h: a set of ranks, as ranges in their order that do not touch. All zero: empty. */
#ifndef AGENT_BASE_RANK_SET_H
#define AGENT_BASE_RANK_SET_H

#include <stdbool.h>
#include <stddef.h>

struct rank_range {
    int first, last;
};

struct rank_set {
    struct rank_range *e; /* owned */
    size_t nranges;
    int n; /* ranks */
};

void rank_set_add(struct rank_set *s, struct rank_range r);
void rank_set_fini(struct rank_set *s);

/* Whether some rank is in both. */
bool rank_set_meets(const struct rank_set *a, const struct rank_set *b);
/* Whether all ranks of a are in b. */
bool rank_set_within(const struct rank_set *a, const struct rank_set *b);

#endif
