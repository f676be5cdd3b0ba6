#include "agent/base/rank_set.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

#define RANGES_MIN 4 /* room that a set begins with */

/* The first range that ends at the rank or behind it. */
static size_t range_at(const struct rank_set *s, int rank)
{
    size_t low = 0, high = s->nranges;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (s->e[mid].last < rank)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

void rank_set_add(struct rank_set *s, struct rank_range r)
{
    size_t i = range_at(s, r.first - 1), end = i;
    for (; end < s->nranges && s->e[end].first <= r.last + 1; end++) {
        r.first = s->e[end].first < r.first ? s->e[end].first : r.first;
        r.last = s->e[end].last > r.last ? s->e[end].last : r.last;
        s->n -= s->e[end].last - s->e[end].first + 1;
    }
    size_t cap = s->nranges ? 2 * s->nranges : RANGES_MIN;
    if (end == i && (s->nranges == 0 || (cap > RANGES_MIN && (cap & (cap - 1)) == 0)))
        s->e = xrealloc(s->e, cap * sizeof(*s->e));
    if (end < s->nranges && end != i + 1)
        memmove(s->e + i + 1, s->e + end, (s->nranges - end) * sizeof(*s->e));
    s->nranges = s->nranges + 1 - (end - i);
    s->e[i] = r;
    s->n += r.last - r.first + 1;
}

void rank_set_fini(struct rank_set *s)
{
    free(s->e);
    *s = (struct rank_set){0};
}

bool rank_set_meets(const struct rank_set *a, const struct rank_set *b)
{
    const struct rank_set *few = a->nranges < b->nranges ? a : b, *many = few == a ? b : a;
    for (size_t i = 0; i < few->nranges; i++) {
        size_t k = range_at(many, few->e[i].first);
        if (k < many->nranges && many->e[k].first <= few->e[i].last)
            return true;
    }
    return false;
}

bool rank_set_within(const struct rank_set *a, const struct rank_set *b)
{
    for (size_t i = 0; i < a->nranges; i++) {
        size_t k = range_at(b, a->e[i].first);
        if (k == b->nranges || b->e[k].first > a->e[i].first || b->e[k].last < a->e[i].last)
            return false;
    }
    return true;
}
