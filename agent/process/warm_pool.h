/* warm_pool.h: Python interpreters that have imported what the program imports first, and become
 * the workers of the next round (--warm).
 *
 * The first interpreter is spawned when a round runs; for a PyTorch program before the first one,
 * whose workers then share its memory. If what it has imported can be forked and
 * does not depend on the rank, it makes a child for each worker of the node; the children are
 * forked twice, so that they are this process's, a subreaper's, own. Else one interpreter is
 * spawned for each worker. All of them hold a socket to this process and nothing of a round: they
 * end when the socket is closed. warm_pool.py is what they run.
 *
 *   an interpreter dies, or an import fails    no warm starts in this job; a line of --verbose
 *   it dies later, or a file has changed       the next warm_pool_fill() spawns another one
 *   an interpreter is missing or dead          warm_pool_start() says so: the worker is spawned
 *   a variable or file differs at the start    the interpreter executes the command
 */
#ifndef AGENT_PROCESS_WARM_POOL_H
#define AGENT_PROCESS_WARM_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <uv.h>

#include "agent/base/job_spec.h"
#include "agent/process/spawn.h"
#include "core/uvx.h"

struct warm_pool;

struct warm_pool_opts {
    const struct job_spec *job; /* with job->warm */
    struct spawner *spawner;
    uv_loop_t *loop;
    struct uvx_scope *scope; /* gets the handle */
    /* Sets what worker `local_rank` is started with in the present round; 0, or a negative errno.
     */
    int (*request)(void *arg, int local_rank, struct spawn_request *req, struct err *e);
    void *arg;                     /* of request */
    void (*on_settled)(void *arg); /* after warm_pool_await() has returned true */
    void *settled_arg;
};

/* NULL with an error: no descriptor is left. All other functions do nothing for NULL. */
struct warm_pool *warm_pool_new(const struct warm_pool_opts *opts, struct err *e);
/* To be called after the scope has been closed and every child has been reaped. */
void warm_pool_free(struct warm_pool *s);

/* To be called before the workers of a round are started. True: the caller waits for on_settled(),
 * which is called when it is known whether workers can begin warm, unless a stop comes first. */
bool warm_pool_await(struct warm_pool *s);

/* Begins to start the missing interpreters. */
void warm_pool_fill(struct warm_pool *s);

/* Starts a worker in a warm interpreter, with the results of spawn_begin(), and without waiting.
 * False: there is no interpreter, and *req is unchanged. */
bool warm_pool_start(struct warm_pool *s, int local_rank, const struct spawn_request *req,
                     pid_t *pid, int *pidfd);

/* Whether children are being forked that are not known yet. Not for longer than a second. */
bool warm_pool_is_forking(const struct warm_pool *s);

/* The interpreters. Valid until the next call of a function of this file. */
size_t warm_pool_pids(struct warm_pool *s, const pid_t **out);

void warm_pool_reaped(struct warm_pool *s, pid_t pid); /* any child that is not a worker */
void warm_pool_kill(struct warm_pool *s); /* all of them; the caller reaps them, as any child */

#endif
