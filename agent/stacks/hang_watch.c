#include "agent/stacks/hang_watch.h"

#include <string.h>

#define CPU_SHARE    5   /* the part of a CPU that is a sign of life: one fifth */
#define CPU_MS       100 /* the least time over which the use of CPUs is measured */
#define UNLEARNT_MIN 60000000000ull
#define DATA         1 /* the kind of a sign with data, of who has no recorded operations; else 0 */

void hang_rank_reset(struct hang_rank *r)
{
    memset(r, 0, sizeof(*r));
}

/* NULL: none is known. */
static const struct hang_gap *find_gap(const struct hang_rank *r, uint64_t kind)
{
    for (int i = 0; i < HANG_KINDS; i++) {
        if (r->gaps[i].n && r->gaps[i].kind == kind)
            return &r->gaps[i];
    }
    return NULL;
}

/* A new kind gets the place of the one that was not seen for the longest time. */
static struct hang_gap *take_gap(struct hang_rank *r, uint64_t kind)
{
    struct hang_gap *g = (struct hang_gap *)find_gap(r, kind), *oldest = r->gaps;
    for (int i = 1; !g && i < HANG_KINDS; i++)
        oldest = r->gaps[i].seen < oldest->seen ? &r->gaps[i] : oldest;
    if (!g) {
        g = oldest;
        *g = (struct hang_gap){.kind = kind};
    }
    g->seen = ++r->ngaps;
    return g;
}

/* A part of what it is apart from `to`: by the time that has passed, so that many short gaps within
 * a step do not let the one between steps be forgotten. */
static uint64_t approach(uint64_t from, uint64_t to, uint64_t part)
{
    double passed = to < from ? (double)to / (double)from : 1;
    return from + (uint64_t)(int64_t)(((double)to - (double)from) * passed / (double)part);
}

/* A longer gap counts at once, shorter ones let it be forgotten slowly. What is usual changes
 * little by one gap, however long. */
static void learn(struct hang_rank *r, uint64_t kind, uint64_t ns)
{
    struct hang_gap *g = take_gap(r, kind);
    if (g->n < HANG_EARLY && ns > g->early)
        g->early = ns;
    if (g->n == HANG_EARLY) {
        g->usual = g->longest = ns;
    } else if (g->n > HANG_EARLY) {
        g->later += ns;
        g->usual = approach(g->usual, ns < 2 * g->usual ? ns : 2 * g->usual, 8);
        g->longest = ns > g->longest ? ns : approach(g->longest, ns, 32);
    }
    g->n += g->n < 2 * HANG_EARLY;
}

/* The length that a gap may have without being suspicious. */
static uint64_t gap_limit(const struct hang_gap *g)
{
    uint64_t usual = 3 * g->usual, longest = 2 * g->longest;
    /* Connections to many others bring data so often, too. */
    bool starts = g->n < 2 * HANG_EARLY || (g->kind <= DATA && g->later < g->early);
    uint64_t early = starts ? 3 * g->early : 0;
    usual = usual > longest ? usual : longest;
    return usual > early ? usual : early;
}

/* Whether it used CPU time since the last look that was long enough ago. */
static bool has_worked(struct hang_rank *r, const struct hang_signs *s, uint64_t now)
{
    uint64_t ms = (now - r->looked_ns) / 1000000, used = s->cpu_ms - r->looked_cpu_ms;
    if (s->cpu_ms >= r->looked_cpu_ms && ms < CPU_MS)
        return false;
    bool worked = s->cpu_ms > r->looked_cpu_ms && CPU_SHARE * used >= ms;
    r->looked_ns = now;
    r->looked_cpu_ms = s->cpu_ms;
    return worked;
}

void hang_rank_look(struct hang_rank *r, const struct hang_signs *s, uint64_t now)
{
    bool first = r->alive_ns == 0, cpu = s->ops == 0 && has_worked(r, s, now);
    if (!first && !cpu && s->ops == r->last.ops && s->output == r->last.output &&
        s->traffic == r->last.traffic)
        return;
    uint64_t at = first || cpu || !s->at_ns || s->at_ns > now ? now : s->at_ns;
    if (!first && at > r->alive_ns)
        learn(r, r->last.kind, at - r->alive_ns);
    r->alive_ns = at > r->alive_ns ? at : r->alive_ns;
    bool data = s->traffic != r->last.traffic;
    r->last = *s;
    if (s->ops == 0) /* while a program starts, no data flow */
        r->last.kind = data ? DATA : 0;
}

uint64_t hang_unlearnt_limit(uint64_t after_ns)
{
    uint64_t limit = HANG_UNLEARNT * after_ns;
    return limit > UNLEARNT_MIN ? limit : UNLEARNT_MIN;
}

uint64_t hang_rank_limit(const struct hang_rank *r, uint64_t after_ns)
{
    const struct hang_gap *g = find_gap(r, r->last.kind);
    uint64_t limit = g ? gap_limit(g) : 0;
    if (r->ngaps < HANG_LEARNT)
        return hang_unlearnt_limit(after_ns);
    for (int i = 0; i < HANG_KINDS && !g; i++) { /* the present activity is new */
        uint64_t other = gap_limit(&r->gaps[i]);
        limit = other > limit ? other : limit;
    }
    return limit > after_ns ? limit : after_ns;
}

uint64_t hang_rank_silence(const struct hang_rank *r, uint64_t now)
{
    return r->alive_ns && now > r->alive_ns ? now - r->alive_ns : 0;
}
