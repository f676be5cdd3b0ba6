/* fsm.h: a checked state machine: a table of states with the moves that are allowed from each. A
 * move that the table does not have is a bug in the caller and aborts with the names of both
 * states. */
#ifndef CORE_FSM_H
#define CORE_FSM_H

#include <stdint.h>

#define FSM_BIT(state) (1u << (state))

struct fsm_state {
    const char *name;
    uint32_t next; /* FSM_BIT() of every state that may follow */
};

struct fsm {
    const char *name; /* for the trace; NULL: the machine moves too often to be traced */
    const struct fsm_state *states; /* indexed by state */
    int state;
};

void fsm_move(struct fsm *f, int to);

static inline const char *fsm_name(const struct fsm *f)
{
    return f->states[f->state].name;
}

#endif
