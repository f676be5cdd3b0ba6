/* features.h: the features of the agent, and the calls by which all of them are told of its life:
 * each as the callback of the same name in agent/base/feature.h. NULL: there are none. */
#ifndef AGENT_FEATURES_H
#define AGENT_FEATURES_H

#include "agent/base/feature.h"

struct features;

/* Opens the features that the job wants. On an error the features opened before stay open. */
int features_open(struct features **out, struct node *n, struct err *e);

void features_prepare(struct features *f);
bool features_ready(struct features *f);
int features_begin(struct features *f, struct err *e);
bool features_may_start(struct features *f);
void features_variables(struct features *f, struct variables *out);
void features_state_changed(struct features *f, enum node_state from);

int features_worker_starts(struct features *f, const struct worker *w, struct worker_extras *x,
                           struct err *e);
bool features_worker_takes(struct features *f, const struct worker *w,
                           const struct spawn_request *req, pid_t *pid, int *pidfd);
void features_worker_started(struct features *f, const struct worker *w);
void features_worker_exits(struct features *f, const struct worker *w);
void features_worker_failed(struct features *f, struct worker *w, bool by_dlaunch);
const char *features_worker_fault(struct features *f, const struct worker *w);
void features_worker_ended(struct features *f, const struct worker *w);
void features_worker_drained(struct features *f, const struct worker *w);

void features_log_grown(struct features *f);
bool features_request(struct features *f, const struct rdzv_request *r);
void features_answer(struct features *f, const struct rdzv_answer *a);
bool features_merge(const struct rdzv_answers *answers, struct buf *out);
void features_gathered(struct features *f, struct rd values, int nnodes);

bool features_looked(struct features *f, enum stop_reason reason);
void features_stops(struct features *f, const struct rdzv_stop *why);
bool features_ended(struct features *f);
void features_complete(struct features *f, struct worker *w);

bool features_helpers(struct features *f, struct pids *out);
void features_killed(struct features *f);
void features_reaped(struct features *f, pid_t pid);

void features_status(struct features *f, struct agent_status *out);
void features_finish(struct features *f, const struct rdzv_result *result);
void features_report(struct features *f, struct report_input *in);

/* The state of a feature; NULL: the job does not want the feature. */
void *features_find(const struct features *f, const struct feature *one);

/* on_closed comes when all are closed, perhaps from inside. */
void features_close(struct features *f, void (*on_closed)(void *arg), void *arg);
void features_free(struct features *f);

#endif
