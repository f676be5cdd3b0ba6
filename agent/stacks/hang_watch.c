#include "agent/stacks/hang_watch.h"

#include <string.h>

#define CPU_SHARE    5   /* the part of a CPU that is a sign of life: one fifth */
#define CPU_MS       100 /* for which it is measured: the kernel counts in steps of 10 ms */
#define UNLEARNT_MIN 60000000000ull

void hang_rank_reset(struct hang_rank *r)
{
    memset(r, 0, sizeof(*r));
}

/* A place is given up for another kind by what falls on it. */
static struct hang_gap *gap_of(struct hang_rank *r, uint64_t kind)
{
    return &r->gaps[(kind ^ kind >> 32) % HANG_KINDS];
}

/* A longer gap counts at once, shorter ones let it be forgotten slowly. */
static void learn(struct hang_rank *r, uint64_t kind, uint64_t ns)
{
    struct hang_gap *g = gap_of(r, kind);
    if (!g->used || g->kind != kind)
        *g = (struct hang_gap){kind, ns, true};
    else if (ns > g->ns)
        g->ns = ns;
    else
        g->ns -= (g->ns - ns) / 32;
    r->ngaps++;
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
    r->last = *s;
}

uint64_t hang_rank_patience(const struct hang_rank *r, uint64_t after_ns)
{
    const struct hang_gap *g = gap_of((struct hang_rank *)r, r->last.kind);
    uint64_t gap = 0, unlearnt = HANG_UNLEARNT * after_ns;
    if (r->ngaps < HANG_LEARNT)
        return unlearnt > UNLEARNT_MIN ? unlearnt : UNLEARNT_MIN;
    if (g->used && g->kind == r->last.kind)
        gap = g->ns;
    else
        for (int i = 0; i < HANG_KINDS; i++) /* what it does now is new */
            gap = r->gaps[i].ns > gap ? r->gaps[i].ns : gap;
    return 3 * gap > after_ns ? 3 * gap : after_ns;
}

uint64_t hang_rank_silence(const struct hang_rank *r, uint64_t now)
{
    return r->alive_ns && now > r->alive_ns ? now - r->alive_ns : 0;
}
