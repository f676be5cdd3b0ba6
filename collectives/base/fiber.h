/* fiber.h: functions that run by turns in one thread, each on a stack of its own. Blocking code
 * runs in a fiber as it is; where it would sleep, another one goes on. */
#ifndef COLLECTIVES_BASE_FIBER_H
#define COLLECTIVES_BASE_FIBER_H

#include <stdbool.h>
#include <stddef.h>
#include <ucontext.h>

struct fiber {
    struct fiber *next; /* for its owner's lists */
    ucontext_t context, *back;
    void *stack;
    size_t bytes;
    void (*run)(void *arg);
    void *arg;
    bool ended;
    /* for the sanitizers */
    void *id, *back_id, *fake, *back_fake;
    const void *back_stack;
    size_t back_bytes;
};

/* NULL: no memory. Any thread. */
struct fiber *fiber_new(void);
void fiber_free(struct fiber *f); /* the fiber has ended, or never run */

/* Runs the fiber, from run(arg) on if it has ended, until it pauses or ends; always in the same
 * thread. */
void fiber_start(struct fiber *f, void (*run)(void *arg), void *arg);
void fiber_resume(struct fiber *f);
/* Inside the fiber: returns to whoever runs it, and returns when it is resumed. */
void fiber_pause(struct fiber *f);

#endif
