/* agent.h: one node of the job, from rendezvous to report: the driver of what
 * agent/rules/agent_rules.h decides, which draws the states.
 *
 * What users read keeps torchelastic's words: HEALTHY, UNHEALTHY, STOPPED, SUCCEEDED, FAILED. */
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include <stdbool.h>
#include <uv.h>

#include "agent/guardian.h"
#include "agent/base/job_spec.h"
#include "agent/base/status.h"
#include "agent/rules/agent_state.h"
#include "core/err.h"

struct agent;
struct event_log;

struct agent_callbacks {
    void (*on_state)(void *arg); /* the state is another one; NULL is allowed */
    /* Output cannot be written, and standard error does not take the text about it. NULL is
     * allowed. */
    void (*on_unseen)(void *arg, const char *text);
    void (*on_event)(void *arg); /* the event log has grown; NULL is allowed */
    /* Called once, when the job has ended, with the exit status and one line on why ("": all went
     * well); the agent still answers requests. NULL is allowed. */
    void (*on_end)(void *arg, int exit_status, const char *text);
    /* Called once, when the agent is DONE and closed, with the exit status of the launcher; the
     * report has been printed, and the agent is freed. */
    void (*on_done)(void *arg, int exit_status);
    void *arg;
};

/* Starts everything that the job needs on this node. */
int agent_open(struct agent **out, uv_loop_t *loop, const struct job_spec *job,
               struct guardian_link *link, const struct agent_callbacks *cb, struct err *e);

/* Stops the job as SIGTERM would; again: kills at once. what: what was received, as the report says
 * it. For the control socket. */
void agent_stop(struct agent *a, const char *what);

/* Sends a request about the workers to all nodes: REQUEST_RESTART, REQUEST_KILL or REQUEST_SIGNAL.
 * False: no coordinator is in reach, and only this node has been asked, or, for a restart, none. */
bool agent_request(struct agent *a, enum request_kind kind, int signo, const char *ranks);

/* The texts in *out are borrowed until the loop runs again. */
void agent_get_status(struct agent *a, struct agent_status *out);

struct feature;
/* The state of a feature, whose header says what to do with it; NULL: the job does not want it. */
void *agent_feature(const struct agent *a, const struct feature *f);

/* The event log as this process has it; no other node is asked. */
const struct event_log *agent_log(const struct agent *a);

#endif
