#include "agent/report/events.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/report/event_file.h"
#include "core/mem.h"

#define LOOK_MS       25   /* between two looks for first output and first operations */
#define LAST_WORDS_MS 3000 /* for a process that ends at once */

/* The events that were recorded of one start of a worker. */
struct recorded {
    bool output, operation;
};

/* A log that has come as a whole, of tens of thousands of events, must not hold up the loop: so
 * many are written in one turn of it. */
#define AT_ONCE 512

struct events {
    struct node *n;
    struct event_file *file;  /* NULL: none */
    uv_timer_t writer;        /* goes on with the file */
    uint64_t turn_ms;         /* the loop's time of its present turn, */
    size_t left;              /* in which so many more events may be written */
    uv_timer_t timer;         /* looks for first signs, if anybody waits for events */
    struct recorded *workers; /* of this round; job->nproc */
};

/* The first event of the log holds the facts about all of the log. */
static int events_open(void **state, struct node *n, struct err *e)
{
    struct events *v = xcalloc(1, sizeof(*v));
    *v = (struct events){.n = n, .workers = xcalloc((size_t)n->job->nproc, sizeof(*v->workers))};
    uv_timer_init(n->loop, &v->timer);
    uv_timer_init(n->loop, &v->writer);
    uvx_own(n->scope, &v->timer);
    uvx_own(n->scope, &v->writer);
    *state = v;
    node_event(n, (struct event){.name = EVENT_SUBMIT,
                                 .at_ns = n->started_ns,
                                 .max_restarts = n->job->rdzv.max_restarts,
                                 .pid = (int)getpid(),
                                 .rank = -1,
                                 .caused_by = -1,
                                 .text = n->job->name,
                                 .extra = n->job->rdzv.run_id});
    if (!n->job->events_path)
        return 0;
    n->log.wanted = true;
    return event_file_open(&v->file, n->job->events_path, e) < 0 ? err_wrap(e, "--events") : 0;
}

static int events_begin(void *state, struct err *e)
{
    struct events *v = state;
    (void)e;
    memset(v->workers, 0, (size_t)v->n->job->nproc * sizeof(*v->workers));
    return 0;
}

/* --------------------------------------------------------------------------------- the workers */

static void worker_event(struct node *n, const struct worker *w, enum event_name name,
                         uint64_t at_ns)
{
    const struct failure *f = name == EVENT_WORKER_FINISH && !w->ok ? &w->failure : NULL;
    node_event(n, (struct event){.name = name,
                                 .at_ns = at_ns,
                                 .attempt = w->attempt,
                                 .pid = w->pid,
                                 .rank = w->rank,
                                 .local_rank = w->local_rank,
                                 .exit_code = f ? f->exit_code : 0,
                                 .signal = f ? f->signal : 0,
                                 .cause = f ? cause_of_failure(f) : CAUSE_NONE,
                                 .caused_by = f ? f->caused_by : -1,
                                 .text = programs_name(n->job->programs, w->rank),
                                 .extra = name == EVENT_WORKER_START ? w->dir : ""});
}

/* The workers and the thread that reads their output only note when these signs were. */
static void look_for_firsts(struct events *v, const struct worker *w)
{
    struct recorded *r = &v->workers[w->local_rank];
    uint64_t at;
    if (w->state == WORKER_IDLE)
        return;
    if (!r->output && (at = v->n->calls->first_output(v->n, w->local_rank))) {
        r->output = true;
        worker_event(v->n, w, EVENT_WORKER_OUTPUT, at);
    }
    if (!r->operation && (at = segment_first_op_ns(&v->n->segment, w->local_rank))) {
        r->operation = true;
        worker_event(v->n, w, EVENT_WORKER_COLLECTIVE, at);
    }
}

static void look_at_all(struct events *v)
{
    for (int i = 0; i < v->n->job->nproc; i++)
        look_for_firsts(v, &v->n->workers[i]);
}

static void on_timer(uv_timer_t *t)
{
    look_at_all(container_of(t, struct events, timer));
}

static void events_worker_started(void *state, const struct worker *w)
{
    struct events *v = state;
    v->workers[w->local_rank] = (struct recorded){0};
    worker_event(v->n, w, EVENT_WORKER_START, w->started_ns);
}

static void events_worker_ended(void *state, const struct worker *w)
{
    struct events *v = state;
    if (w->ended_ns) /* else the worker could not be started */
        look_for_firsts(v, w);
    worker_event(v->n, w, EVENT_WORKER_FINISH, w->ended_ns);
}

static void events_worker_drained(void *state, const struct worker *w)
{
    look_for_firsts(state, w);
}

/* ----------------------------------------------------------------------------- the node, the job
 */

static void events_state_changed(void *state, enum node_state from)
{
    struct events *v = state;
    (void)from;
    if (v->n->state != NODE_RUNNING)
        uv_timer_stop(&v->timer);
    if (v->n->state == NODE_DONE) /* the job's `finish` is the last event */
        return;
    node_event(v->n, (struct event){.name = EVENT_NODE_STATE,
                                    .pid = (int)getpid(),
                                    .rank = -1,
                                    .caused_by = -1,
                                    .text = v->n->state_name});
}

static void write_file(struct events *v);

static void on_writer(uv_timer_t *t)
{
    write_file(container_of(t, struct events, writer));
}

static void write_file(struct events *v)
{
    const struct event_list *job = &v->n->log.job;
    if (uv_now(v->n->loop) != v->turn_ms)
        v->left = AT_ONCE;
    v->turn_ms = uv_now(v->n->loop);
    v->left -= event_file_write(v->file, job, v->left);
    if (event_file_is_behind(v->file, job) && !uv_is_active((uv_handle_t *)&v->writer))
        uv_timer_start(&v->writer, on_writer, 1, 0);
}

static void events_log_grown(void *state)
{
    struct events *v = state;
    const struct event_log *log = &v->n->log;
    if ((log->wanted || log->send) && v->n->state == NODE_RUNNING &&
        !uv_is_active((uv_handle_t *)&v->timer))
        uv_timer_start(&v->timer, on_timer, 0, LOOK_MS);
    write_file(v);
}

const struct event_list *events_want(void *state)
{
    struct events *v = state;
    if (v->n->state != NODE_DONE)
        look_at_all(v);
    event_log_want(&v->n->log);
    return &v->n->log.job;
}

static void write_last(struct events *v, int most_ms)
{
    struct event_log *log = &v->n->log;
    event_log_settle(log);
    event_file_write(v->file, &log->job, SIZE_MAX);
    event_file_close(v->file, most_ms);
    v->file = NULL;
}

/* The last event comes from the coordinator, or from here if there is none any more. */
static void events_finish(void *state, const struct rdzv_result *result)
{
    struct events *v = state;
    struct event_log *log = &v->n->log;
    const struct failure *first = result->n ? &result->failures[0] : NULL;
    event_log_settle(log);
    if (!log->finished && (log->wanted || log->leads))
        node_event(v->n,
                   (struct event){.name = EVENT_FINISH,
                                  .attempt = v->n->restart_count,
                                  .max_restarts = v->n->job->rdzv.max_restarts,
                                  .rank = -1,
                                  .caused_by = -1,
                                  .exit_code = result->exit_code,
                                  .cause = result->exit_code ? cause_of_stop(result->reason, first)
                                                             : CAUSE_NONE,
                                  .text = result->text});
    uv_timer_stop(&v->writer);
    write_last(v, 0);
}

void events_last_words(void *state)
{
    write_last(state, LAST_WORDS_MS);
}

static void events_free(void *state)
{
    struct events *v = state;
    event_file_close(v->file, 0);
    free(v->workers);
    free(v);
}

const struct feature events_feature = {
    .name = "events",
    .open = events_open,
    .begin = events_begin,
    .state_changed = events_state_changed,
    .worker_started = events_worker_started,
    .worker_ended = events_worker_ended,
    .worker_drained = events_worker_drained,
    .log_grown = events_log_grown,
    .finish = events_finish,
    .free = events_free,
};
