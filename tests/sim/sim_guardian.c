/* Stands for the guardian of a node, which ends the workers when the agent cannot. */
#include "tests/sim/sim.h"

static void watch_lease(struct sim_node *n)
{
    if (n->guard_at > now && n->guard_at <= n->lease)
        return; /* it looks before that */
    n->guard_at = n->lease > now ? n->lease : now;
    sim_push((struct sim_event){
        .at = n->guard_at, .kind = EV_GUARD, .who = sim_index(n), .incarnation = n->incarnation});
}

void sim_guardian_lease(struct sim_node *n, uint64_t until_ns)
{
    uint64_t until = until_ns ? sim_when(n, until_ns) : 0;
    n->lease = until && until < n->lease ? n->lease : until; /* its thread knows better */
    if (n->lease)
        watch_lease(n);
}

void sim_guardian_look(struct sim_node *n)
{
    if (now < n->lease)
        watch_lease(n);
    if (!sim_workers_alive(n) || !n->lease || now < n->lease)
        return;
    sim_trace("guardian", sim_index(n), 0);
    sim_total.guarded++;
    CHECK("I9", n->frozen || now - n->thawed_ns < 20 * MSEC, "a guardian was needed");
    sim_kill(sim_index(n), 1);
}
