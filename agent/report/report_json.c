#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/fs.h"
#include "agent/report/report.h"
#include "agent/report/report_words.h"
#include "core/log.h"
#include "core/mem.h"

/* Text as it is, when it is UTF-8; else with what is none, and controls, shown as \xNN. */
static json_t *text_json(const char *text)
{
    json_t *s = json_string(text);
    if (!s) {
        size_t len = strlen(text), cap = 4 * len + 8;
        char *shown = xmalloc(cap);
        log_escape(shown, cap, text, len, 1);
        s = json_string(shown);
        free(shown);
    }
    return s;
}

static json_t *text_or_null(const char *text)
{
    return text && *text ? text_json(text) : json_null();
}

static json_t *number_or_null(int v, bool there)
{
    return there ? json_integer(v) : json_null();
}

static json_t *time_json(uint64_t wall_ns)
{
    char text[64];
    struct tm tm;
    time_t t = (time_t)(wall_ns / 1000000000u);
    if (wall_ns == 0 || !gmtime_r(&t, &tm))
        return json_null();
    size_t n = strftime(text, sizeof(text), "%FT%T", &tm);
    snprintf(text + n, sizeof(text) - n, ".%03uZ", (unsigned)(wall_ns / 1000000u % 1000u));
    return json_string(text);
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
                                                  [STOP_INTERNAL] = "internal"};

static json_t *failure_json(const struct failure *f)
{
    char name[24];
    bool worker = f->kind != FAILURE_NODE, by_signal = f->signal != 0;
    json_t *j = json_object();
    json_object_set_new(j, "kind", json_string(kinds[f->kind]));
    json_object_set_new(j, "rank", number_or_null(f->rank, worker));
    json_object_set_new(j, "local_rank", number_or_null(f->local_rank, worker));
    json_object_set_new(j, "node", json_integer(f->node));
    json_object_set_new(j, "host", text_json(f->host));
    json_object_set_new(j, "role", text_json(f->role));
    json_object_set_new(j, "pid", json_integer(f->pid));
    json_object_set_new(j, "attempt", json_integer(f->attempt));
    json_object_set_new(j, "exit_code", number_or_null(f->exit_code, worker && !by_signal));
    json_object_set_new(j, "signal", number_or_null(f->signal, by_signal));
    json_object_set_new(j, "signal_name",
                        by_signal ? json_string(signal_name(f->signal, name)) : json_null());
    json_object_set_new(j, "core_dumped", json_boolean(f->core_dumped));
    json_object_set_new(j, "oom", json_boolean(f->oom));
    json_object_set_new(j, "caused_by", number_or_null(f->caused_by, f->caused_by >= 0));
    json_object_set_new(j, "time", time_json(f->wall_ns));
    json_object_set_new(j, "message", text_json(f->message));
    json_object_set_new(j, "log_path", text_or_null(f->log_path));
    json_object_set_new(j, "stderr_tail", text_json(f->stderr_tail));
    return j;
}

static const char *outcome(const struct rdzv_result *r)
{
    if (r->exit_code == 0)
        return "succeeded";
    return r->reason == STOP_SIGNAL || r->reason == STOP_REQUEST ? "stopped" : "failed";
}

static json_t *report_json(const struct report_input *in)
{
    const struct rdzv_result *r = in->result;
    json_t *j = json_object(), *failures = json_array();
    for (size_t i = 0; i < r->n; i++)
        json_array_append_new(failures, failure_json(&r->failures[i]));
    bool cause = r->n > 0 && r->failures[0].kind != FAILURE_STOPPED;
    json_object_set_new(j, "schema", json_integer(1));
    json_object_set_new(j, "launcher", json_string("dlaunch"));
    json_object_set_new(j, "version", json_string(DLAUNCH_VERSION));
    json_object_set_new(j, "name", text_json(in->job->name));
    json_object_set_new(j, "run_id", text_json(in->job->rdzv.run_id));
    json_object_set_new(j, "host", text_json(in->host));
    json_object_set_new(j, "node", json_integer(in->group_rank));
    json_object_set_new(j, "nnodes", json_integer(in->nnodes));
    json_object_set_new(j, "world_size", json_integer(in->world_size));
    json_object_set_new(j, "outcome", json_string(outcome(r)));
    json_object_set_new(j, "exit_code", json_integer(r->exit_code));
    json_object_set_new(j, "reason", r->exit_code ? json_string(reasons[r->reason]) : json_null());
    json_object_set_new(j, "text", text_json(r->text));
    json_object_set_new(j, "restarts", json_integer(r->restarts));
    json_object_set_new(j, "max_restarts", json_integer(in->job->rdzv.max_restarts));
    json_object_set_new(j, "elapsed_s", json_real(in->elapsed));
    json_object_set_new(j, "log_dir", text_or_null(in->log_dir));
    json_object_set_new(j, "leftover", text_or_null(in->leftover));
    json_object_set_new(j, "lost_output", text_or_null(in->lost_output));
    json_object_set_new(j, "operations", text_or_null(in->operations));
    json_object_set(j, "first_failure", cause ? json_array_get(failures, 0) : json_null());
    json_object_set_new(j, "failures", failures);
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
    text[len] = '\n'; /* in the NUL's place: it is the length that counts */
    int rc = fs_replace_file(in->job->report_path, text, len + 1, e);
    free(text);
    return rc;
}
