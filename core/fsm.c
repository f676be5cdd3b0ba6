#include "core/fsm.h"

#include <stdlib.h>

#include "core/log.h"

void fsm_move(struct fsm *f, int to)
{
    if (!(f->states[f->state].next & FSM_BIT(to))) {
        log_error("internal error: %s: %s -> %s is not a move", f->name ? f->name : "a machine",
                  fsm_name(f), f->states[to].name);
        abort();
    }
    if (f->name)
        log_verbose("%s: %s -> %s", f->name, fsm_name(f), f->states[to].name);
    f->state = to;
}
