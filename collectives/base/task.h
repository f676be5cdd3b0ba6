/* task.h: functions that may wait for long, many of which share the progress thread (progress.h).
 *
 * A communicator has two tasks: one carries out its queue of collective operations, one progresses
 * its sends and receives. A task runs in a fiber while it has something to do; where it would wait
 * it parks, and the thread runs another one. Each task has a slot, and whoever changes what a task
 * waits for rings for that slot: so what has changed is found without a search. */
#ifndef COLLECTIVES_BASE_TASK_H
#define COLLECTIVES_BASE_TASK_H

#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bell;
struct fiber;

/* Storage is the caller's. */
struct task {
    void (*run)(void *arg); /* returns when there is nothing to do */
    void *arg;
    _Atomic uint32_t slot; /* 1 + its number; 0: the thread does not have it */
    /* The fields below belong to the thread. */
    struct task *next;
    struct fiber *fiber; /* NULL: the task does not run */
    bool ready;          /* on the list of tasks to be run */
    bool parked, polls;  /* polls: with descriptors */
    uint64_t due_ns;
    _Atomic bool leaves;
    _Atomic uint32_t left; /* a futex */
};

/* ----------------------------------------------------------------------------------- any thread */

/* The task whose slot this is (0 is allowed), or all of this process, have something to do, or to
 * look at. */
void task_ring(uint32_t slot);
void task_ring_all(void);

/* Whether this code runs in a task. */
bool task_inside(void);

/* ------------------------------------------------------------------------------------ in a task */

/* The slot of the task that runs. */
uint32_t task_slot(void);
/* Returns when it is rung for, or after timeout_ns (UINT64_MAX: without an end); may return early.
 */
void task_park(uint64_t timeout_ns);
/* Returns when the task is rung for, at the timeout, or when a descriptor is ready; without
 * descriptors the task waits for a connection, which the thread accepts. */
void task_poll(const struct pollfd *fds, size_t n, uint64_t timeout_ns);
/* Lets other tasks run. */
void task_yield(void);
/* Calls code of the program's, which may depend on the thread's own stack. */
void task_call(void (*fn)(void *arg), void *arg);

/* ------------------------------------------------------------------------ the progress thread's */

/* Gives the task a slot, and reserves a stack for it until it has left; any thread. 0 or -ENOMEM.
 */
int task_add(struct task *t);

void task_thread_begin(void);
void task_thread_end(void);
void task_forget(void); /* in a fork()'s child: its parent has the tasks */

struct bell *task_own_bell(void); /* which task_ring() rings */
bool task_all_rung(void);
/* Makes the tasks ready for which that bell, or task_ring_all(), has rung. Whether either has. */
bool task_collect(struct bell *b);
bool task_collect_all(void);
/* Makes ready the tasks whose time has come by now_ns. */
void task_expire(uint64_t now_ns);
/* Runs the ready tasks, each once. False: no task was ready. */
bool task_run_ready(void);

int task_parked(void);   /* how many are parked, */
int task_polling(void);  /* and of these, with descriptors */
uint64_t task_due(void); /* when the first one's time comes, or before */
/* Makes ready those with a ready descriptor; waits at most so long for one. A descriptor that is
 * watched ends the wait once, and so does task_ring() after task_sleeps_in_poll(true). */
bool task_take_events(int timeout_ms, bool *others);
bool task_watch(int fd, short events);
void task_sleeps_in_poll(bool does);

#endif
