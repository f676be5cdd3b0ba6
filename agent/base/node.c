#include "agent/base/node.h"

#include "core/clock.h"

void node_event(struct node *n, struct event e)
{
    uint64_t now = mono_ns();
    if (!e.at_ns || e.at_ns > now)
        e.at_ns = now;
    e.wall_ns = day_ns() - (now - e.at_ns);
    e.host = n->job->host;
    e.node = n->table ? n->group_rank : -1;
    event_log_add(&n->log, &e);
}

bool node_leads(struct node *n)
{
    struct rdzv_info info;
    n->calls->get_info(n, &info);
    return info.coordinator;
}
