#include "agent/rules/agent_rules.c"

#include "tests/sim/all/all.h"

static void forget_wish(struct wish *w)
{
    if (!w->waits)
        *w = (struct wish){0};
    ALL_WIPE(w->text);
}

void all_forget_agent(struct agent_rules *r)
{
    assert(r->first == r->n);
    free(r->queue);
    r->queue = NULL;
    r->first = r->n = r->cap = 0;
    forget_wish(&r->look);
    forget_wish(&r->wish);
    ALL_WIPE(r->why);
    r->requested_ns = all_cap(r->requested_ns, AGENT_SAME_REQUEST_NS);
    if (r->lease_ns && r->lease_ns < now)
        r->lease_ns = 1;
    r->round.killed_ns = all_cap(r->round.killed_ns, AGENT_UNKILLABLE_NS + 1);
    if (state_of(r) != NODE_STOPPING)
        r->round.grace_s = 0;
    if (r->closing)
        r->lease_ns = r->round.killed_ns = 0;
}
