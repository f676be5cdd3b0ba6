/* guarded.h: a guardian with a small agent of the tests' own below it, which starts workers and
 * ends them as agent.h's does: on SIGTERM, when a worker dies, when the lifeline ends. */
#ifndef TESTS_LIB_GUARDED_H
#define TESTS_LIB_GUARDED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "agent/guardian.h"

#define GUARDED_WORKERS 4

struct guarded_job {
    enum isolation isolation;
    double stop_grace;
    int nworkers;
    char *const *worker; /* argv */
    int status;          /* the agent's, after a SIGTERM */
    /* Runs in the agent first, with the job's `arg`; a value >= 0 is its exit status. NULL: none.
     */
    int (*at_start)(struct guardian_link *link, void *arg);
    void *arg;
    /* Runs in the process that will be the guardian, before. NULL: none. */
    void (*before)(void *arg);
};

/* Written by the agent, read by the test. */
struct guarded_shared {
    _Atomic int agent; /* the agent's pid in its own namespace */
    _Atomic int ready; /* 1: the workers have been spawned */
    _Atomic int got[65];
    _Atomic int workers[GUARDED_WORKERS];
    _Atomic int spare; /* for hooks */
    char cgroup[256];
};

struct guarded {
    pid_t pid;  /* the guardian */
    int alive;  /* at its end when nothing of all this lives */
    int output; /* output of guardian, agent and workers */
    char text[8192];
    struct guarded_shared *shared;
};

/* Call once in each test: leftovers become this process's children. */
void guarded_init(void);

void guarded_start(struct guarded *g, const struct guarded_job *job);
/* Waits until the agent has spawned its workers. */
void guarded_wait_ready(struct guarded *g);
/* Waits until the guardian, the agent or a worker has printed `text`. */
void guarded_expect(struct guarded *g, const char *text);
/* The guardian's exit status as a shell says it, with all that was printed in g->text. */
int guarded_wait(struct guarded *g, double seconds);
/* True when nothing is left; false, after ending the rest, when something was after `seconds`. */
bool guarded_all_dead(struct guarded *g, double seconds);
void guarded_fini(struct guarded *g);

/* Runs the body of guarded_start() in the calling process, without the fork. For a job of a shell.
 */
int guarded_run(const struct guarded_job *job, struct guarded_shared *shared, int alive);
struct guarded_shared *guarded_shared_new(void);

/* The guardian has ended and was not waited for yet: as one does that cannot isolate as it was
 * told. */
bool guarded_ended(const struct guarded *g);

/* The agent's pid as the test sees it. 0: gone. */
pid_t guarded_agent(const struct guarded *g);

#endif
