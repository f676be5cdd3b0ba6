#include "rendezvous/rules/reach.c"

#include "tests/sim/all/all.h"

void all_forget_reach(struct reach *r)
{
    if (!r->due)
        r->action = (struct reach_action){0};
    memset(r->why, 0, sizeof(r->why));
    if (r->series.attempts > 1) /* 500, on the coordinator's own host, are more than fit in here */
        r->series.attempts = 1;
}
