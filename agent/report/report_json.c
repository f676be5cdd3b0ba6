#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "agent/base/fs.h"
#include "agent/base/signals.h"
#include "agent/report/json_text.h"
#include "agent/report/report.h"
#include "agent/report/report_words.h"
#include "core/log.h"
#include "core/mem.h"

static json_t *text_or_null(const char *text)
{
    return text && *text ? json_of_text(text) : json_null();
}

static json_t *number_or_null(int v, bool there)
{
    return there ? json_integer(v) : json_null();
}

static const char *const kinds[FAILURE_KINDS] = {[FAILURE_EXIT] = "exit",
                                                 [FAILURE_SIGNAL] = "signal",
                                                 [FAILURE_EXEC] = "exec",
                                                 [FAILURE_STOPPED] = "stopped",
                                                 [FAILURE_NODE] = "node"};

static const char *const reasons[STOP_REASONS] = {[STOP_FAILURE] = "failure",
                                                  [STOP_NODE_LOST] = "node_lost",
                                                  [STOP_MEMBERSHIP] = "membership",
                                                  [STOP_SIGNAL] = "signal",
                                                  [STOP_TIMEOUT] = "timeout",
                                                  [STOP_REQUEST] = "request",
                                                  [STOP_COORDINATOR_LOST] = "coordinator_lost",
                                                  [STOP_RENDEZVOUS] = "rendezvous",
                                                  [STOP_INTERNAL] = "internal",
                                                  [STOP_TIME_LIMIT] = "time_limit"};

static json_t *cause_or_null(enum cause c)
{
    return c != CAUSE_NONE ? json_string(cause_name(c)) : json_null();
}

static json_t *failure_json(const struct failure *f, const struct job_spec *job)
{
    char name[24];
    bool worker = f->kind != FAILURE_NODE, by_signal = f->signal != 0;
    json_t *j = json_object();
    json_object_set_new(j, "kind", json_string(kinds[f->kind]));
    json_object_set_new(j, "rank", number_or_null(f->rank, worker));
    json_object_set_new(j, "local_rank", number_or_null(f->local_rank, worker));
    json_object_set_new(j, "node", json_integer(f->node));
    json_object_set_new(j, "host", json_of_text(f->host));
    json_object_set_new(j, "role", json_of_text(f->role));
    if (job->programs && worker)
        json_object_set_new(j, "program", json_of_text(programs_name(job->programs, f->rank)));
    json_object_set_new(j, "pid", json_integer(f->pid));
    json_object_set_new(j, "attempt", json_integer(f->attempt));
    json_object_set_new(j, "exit_code", number_or_null(f->exit_code, worker && !by_signal));
    json_object_set_new(j, "signal", number_or_null(f->signal, by_signal));
    json_object_set_new(j, "signal_name",
                        by_signal ? json_string(signal_name(f->signal, name)) : json_null());
    json_object_set_new(j, "core_dumped", json_boolean(f->core_dumped));
    json_object_set_new(j, "oom", json_boolean(f->oom));
    json_object_set_new(j, "cause", cause_or_null(cause_of_failure(f)));
    json_object_set_new(j, "caused_by", number_or_null(f->caused_by, f->caused_by >= 0));
    json_object_set_new(j, "mismatch", json_boolean(f->mismatch));
    json_object_set_new(j, "operation", text_or_null(f->operation));
    json_object_set_new(j, "time", json_of_time(f->wall_ns));
    json_object_set_new(j, "message", json_of_text(f->message));
    json_object_set_new(j, "log_path", text_or_null(f->log_path));
    json_object_set_new(j, "stderr_tail", json_of_text(f->stderr_tail));
    return j;
}

static json_t *attempt_json(const struct attempt *a, const struct job_spec *job)
{
    json_t *j = json_object();
    struct buf ranks = BUF_INIT;
    if (a->nproc)
        words_add(&ranks, a->nproc > 1 ? "%d-%d" : "%d", a->base_rank, a->base_rank + a->nproc - 1);
    json_object_set_new(j, "attempt", json_integer(a->restart_count));
    json_object_set_new(j, "round", json_integer(a->round));
    json_object_set_new(j, "started", json_of_time(a->start_wall_ns));
    json_object_set_new(j, "ended", json_of_time(a->end_wall_ns));
    json_object_set_new(j, "elapsed_s",
                        a->end_wall_ns >= a->start_wall_ns
                            ? json_real((double)(a->end_wall_ns - a->start_wall_ns) / 1e9)
                            : json_null());
    json_object_set_new(j, "nnodes", json_integer(a->nnodes));
    json_object_set_new(j, "world_size", json_integer(a->world_size));
    json_object_set_new(j, "ranks", json_string(ranks.len ? (char *)ranks.data : ""));
    json_object_set_new(j, "cause", cause_or_null(a->cause));
    json_object_set_new(j, "text", json_of_text(a->text));
    json_object_set_new(j, "first_failure", a->first ? failure_json(a->first, job) : json_null());
    json_object_set_new(j, "log_dir", text_or_null(a->log_dir));
    buf_fini(&ranks);
    return j;
}

static const char *outcome(const struct rdzv_result *r)
{
    if (r->exit_code == 0)
        return "succeeded";
    return report_was_stopped(r->reason) ? "stopped" : "failed";
}

static json_t *ledger_json(const struct ledger *l)
{
    json_t *j = json_object();
    json_object_set_new(j, "nodes", json_integer(l->nodes));
    json_object_set_new(j, "total_s", json_real((double)l->total_ns / 1e9));
    for (int c = 0; c < LEDGER_CLASSES; c++) {
        char key[40];
        snprintf(key, sizeof(key), "%s_s", ledger_name(c));
        json_object_set_new(j, key, json_real((double)l->ns[c] / 1e9));
    }
    return j;
}

static json_t *report_json(const struct report_input *in)
{
    const struct rdzv_result *r = in->result;
    json_t *j = json_object(), *failures = json_array(), *attempts = json_array();
    for (size_t i = 0; i < in->attempts.n; i++)
        json_array_append_new(attempts, attempt_json(&in->attempts.e[i], in->job));
    for (size_t i = 0; i < r->n; i++)
        json_array_append_new(failures, failure_json(&r->failures[i], in->job));
    bool cause = r->n > 0 && r->failures[0].kind != FAILURE_STOPPED;
    json_object_set_new(j, "schema", json_integer(1));
    json_object_set_new(j, "launcher", json_string("dlaunch"));
    json_object_set_new(j, "version", json_string(DLAUNCH_VERSION));
    json_object_set_new(j, "name", json_of_text(in->job->name));
    json_object_set_new(j, "run_id", json_of_text(in->job->rdzv.run_id));
    json_object_set_new(j, "host", json_of_text(in->host));
    json_object_set_new(j, "node", json_integer(in->group_rank));
    json_object_set_new(j, "nnodes", json_integer(in->nnodes));
    json_object_set_new(j, "world_size", json_integer(in->world_size));
    json_object_set_new(j, "outcome", json_string(outcome(r)));
    json_object_set_new(j, "exit_code", json_integer(r->exit_code));
    json_object_set_new(j, "reason", r->exit_code ? json_string(reasons[r->reason]) : json_null());
    json_object_set_new(j, "text", json_of_text(r->text));
    json_object_set_new(j, "restarts", json_integer(r->restarts));
    json_object_set_new(j, "max_restarts", json_integer(in->job->rdzv.max_restarts));
    json_object_set_new(j, "started", json_of_time(in->started_wall_ns));
    json_object_set_new(j, "ended", json_of_time(in->ended_wall_ns));
    json_object_set_new(j, "elapsed_s", json_real(in->elapsed));
    json_object_set_new(j, "log_dir", text_or_null(in->log_dir));
    json_object_set_new(j, "leftover", text_or_null(in->leftover));
    json_object_set_new(j, "lost_output", text_or_null(in->lost_output));
    json_object_set_new(j, "operations", text_or_null(in->operations));
    json_object_set_new(j, "ledger", in->ledger ? ledger_json(in->ledger) : json_null());
    json_object_set_new(j, "slow", text_or_null(in->slow));
    json_object_set_new(j, "stacks", text_or_null(in->stacks));
    json_object_set(j, "first_failure", cause ? json_array_get(failures, 0) : json_null());
    json_object_set_new(j, "failures", failures);
    json_object_set_new(j, "attempts", attempts);
    json_object_set_new(j, "attempts_omitted", json_integer((json_int_t)in->attempts.omitted));
    json_object_set_new(j, "failures_omitted", json_integer((json_int_t)r->omitted));
    return j;
}

int report_write_json(const struct report_input *in, struct err *e)
{
    json_t *j = report_json(in);
    char *text = json_dumps(j, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(j);
    if (!text)
        return err_sys(e, ENOMEM, "%s", in->job->report_path);
    size_t len = strlen(text);
    text[len] = '\n'; /* replaces the NUL: only the length counts */
    int rc = fs_replace_file_timed(in->job->report_path, text, len + 1, e);
    free(text);
    return rc;
}
