#include "agent/stacks/stacks.h"

#include <stdio.h>
#include <stdlib.h>

#include "agent/report/flight_report.h"
#include "agent/report/json_text.h"
#include "agent/report/report_input.h"
#include "agent/stacks/stack_tree.h"
#include "core/clock.h"
#include "core/mem.h"
#include "core/parse.h"

#define SMALL_JOB       32  /* nodes: in a larger job not every node asks all others */
#define LAST_ANSWERS_MS 300 /* after --timeout, for the other nodes to ask for stacks */
#define LOOK_MS         10  /* between two looks for that */

/* The look at the workers before they are stopped for good. */
struct last_look {
    bool begun, over;
    enum stop_reason reason;
    int answers;       /* gatherer_answers() when all nodes that ask have been answered */
    uint64_t since_ms; /* when this node had the stacks, and began to wait for other nodes */
};

struct stacks {
    struct node *n;
    struct gatherer *gatherer;      /* NULL: no stack was asked for */
    struct inspect_worker *sampled; /* the node's workers; job->nproc */
    uv_timer_t timer;               /* looks for last answers */
    struct last_look last;
    char *kept; /* of the job, before it was stopped; NULL: none */
    bool (*was_active)(void *arg, int local_rank); /* NULL: not known */
    void *activity_arg;
};

/* -------------------------------------------------------------------------------- the gatherer */

static void get_node(void *arg, struct gather_node *out)
{
    struct stacks *s = arg;
    const struct node *n = s->n;
    bool in_round = node_is_in_round(n);
    size_t count = 0;
    for (int i = 0; i < n->job->nproc && in_round; i++) {
        const struct worker *w = &n->workers[i];
        if (worker_is_alive(w))
            s->sampled[count++] =
                (struct inspect_worker){w->rank, w->pid, segment_ops(&n->segment, i) > 0};
    }
    *out = (struct gather_node){.table = in_round ? n->table : NULL,
                                .group_rank = n->group_rank,
                                .host = n->job->host,
                                .workers = s->sampled,
                                .n = count};
}

/* Adds the operation in the flight recorder, and whether the worker is silent for longer than
 * usual. */
static void complete_sample(void *arg, struct sample *sample)
{
    struct stacks *s = arg;
    const struct node *n = s->n;
    for (int i = 0; i < n->job->nproc; i++) {
        struct segment_op op;
        if (n->workers[i].rank != sample->rank)
            continue;
        sample->active = s->was_active && s->was_active(s->activity_arg, i);
        bool hidden = flight_has_hidden(&n->segment, i);
        if (!flight_report_current(&n->segment, i, &op)) {
            sample->op.hidden = hidden;
            continue;
        }
        uint64_t now = mono_ns(), since = op.end_ns ? op.end_ns : op.start_ns;
        sample->op = (struct sample_op){.number = op.number,
                                        .group = op.group,
                                        .seq = op.seq,
                                        .age_ms = now > since ? (now - since) / 1000000 : 0,
                                        .open = !op.end_ns && op.device != SEGMENT_OP_ENQUEUED,
                                        .hidden = hidden};
        flight_report_operation(&n->segment, i, sample->op.text, sizeof(sample->op.text));
    }
}

static bool send_request(void *arg, const struct rdzv_request *r)
{
    struct stacks *s = arg;
    return s->n->calls->request(s->n, r);
}

static void send_answer(void *arg, const struct rdzv_answer *a)
{
    struct stacks *s = arg;
    s->n->calls->answer(s->n, a);
}

static struct gatherer *gatherer_of(struct stacks *s)
{
    const struct gather_callbacks cb = {.arg = s,
                                        .get_node = get_node,
                                        .complete = complete_sample,
                                        .request = send_request,
                                        .answer = send_answer,
                                        .inspect = s->n->job->inspect};
    if (!s->gatherer) {
        s->sampled = xcalloc((size_t)s->n->job->nproc, sizeof(*s->sampled));
        s->gatherer = gatherer_new(s->n->loop, s->n->spawner, &cb);
    }
    return s->gatherer;
}

/* -------------------------------------------------------------------------- dlaunchctl stacks */

struct question {
    void (*on_done)(void *arg, json_t *stacks);
    void *arg;
    char ranks[224];
};

static void on_stacks(void *arg, const struct samples *all)
{
    struct question *q = arg;
    struct samples some = {0};
    struct stack_tree tree = {0};
    json_t *j = NULL;
    if (all) {
        some.s = xcalloc(all->n, sizeof(*some.s)); /* borrows what is in the samples */
        for (size_t i = 0; i < all->n; i++) {
            if (!*q->ranks || parse_has(q->ranks, all->s[i].rank))
                some.s[some.n++] = all->s[i];
        }
        stack_tree_add(&tree, &some);
        char *text = stack_tree_text(&tree, &some);
        j = stack_tree_json(&tree, &some);
        json_object_set_new(j, "text", json_of_text(text));
        free(text);
        stack_tree_fini(&tree);
        free(some.s);
    }
    q->on_done(q->arg, j);
    free(q);
}

void stacks_of_job(void *state, const char *ranks, void (*on_done)(void *arg, json_t *stacks),
                   void *arg)
{
    struct question *q = xcalloc(1, sizeof(*q));
    q->on_done = on_done;
    q->arg = arg;
    snprintf(q->ranks, sizeof(q->ranks), "%s", ranks);
    gather(gatherer_of(state), true, on_stacks, q);
}

/* ------------------------------------------------------------------------------- the last look */

static void keep(struct stacks *s, const struct samples *all)
{
    struct stack_tree tree = {0};
    free(s->kept);
    stack_tree_add(&tree, all);
    s->kept = stack_tree_text(&tree, all);
    stack_tree_fini(&tree);
}

static void end_look(struct stacks *s)
{
    uv_timer_stop(&s->timer);
    s->last.over = true;
    s->n->calls->go_on(s->n);
}

static void on_last_answers(uv_timer_t *t)
{
    struct stacks *s = container_of(t, struct stacks, timer);
    if (gatherer_answers(s->gatherer) >= s->last.answers ||
        uv_now(t->loop) - s->last.since_ms >= LAST_ANSWERS_MS)
        end_look(s);
}

/* The other nodes run into --timeout at the same time, and ask for this node's stacks, too: its end
 * stops the workers that they want to see. */
static void on_last_look(void *arg, const struct samples *all)
{
    struct stacks *s = arg;
    if (!all) /* the agent ends */
        return;
    if (all->n)
        keep(s, all);
    if (s->last.reason != STOP_TIMEOUT) {
        end_look(s);
        return;
    }
    s->last.since_ms = uv_now(s->n->loop);
    uv_timer_start(&s->timer, on_last_answers, 0, LOOK_MS);
}

/* In a large job whose nodes all run into --timeout at once only the coordinator's node asks the
 * others. */
static bool stacks_looked(void *state, enum stop_reason reason)
{
    struct stacks *s = state;
    struct rdzv_info info;
    if (s->last.begun)
        return s->last.over;
    s->last = (struct last_look){.begun = true, .reason = reason};
    s->n->calls->get_info(s->n, &info);
    bool small = info.nnodes <= SMALL_JOB;
    int askers = info.nnodes < 2 ? 0 : small ? info.nnodes : 1; /* this node is on the list */
    s->last.answers = gatherer_answers(gatherer_of(s)) + askers;
    gather(s->gatherer, info.coordinator || small, on_last_look, s);
    return false;
}

/* ------------------------------------------------------------------------------------- feature */

static int stacks_open(void **state, struct node *n, struct err *e)
{
    struct stacks *s = xcalloc(1, sizeof(*s));
    (void)e;
    s->n = n;
    uv_timer_init(n->loop, &s->timer);
    uvx_own(n->scope, &s->timer);
    *state = s;
    return 0;
}

static bool stacks_request(void *state, const struct rdzv_request *r)
{
    struct stacks *s = state;
    if (r->kind != REQUEST_STACKS && r->kind != REQUEST_PRESENCE)
        return false;
    if (node_is_in_round(s->n))
        gatherer_on_request(gatherer_of(s), r);
    return true;
}

static bool stacks_answer(void *state, const struct rdzv_answer *a)
{
    struct stacks *s = state;
    if (a->kind != REQUEST_STACKS && a->kind != REQUEST_PRESENCE)
        return false;
    if (s->gatherer)
        gatherer_on_answer(s->gatherer, a);
    return true;
}

static bool stacks_merge(const struct rdzv_answers *answers, struct buf *out)
{
    return (answers->kind == REQUEST_STACKS || answers->kind == REQUEST_PRESENCE) &&
           gather_merge(answers, out);
}

static bool stacks_helpers(void *state, struct pids *out)
{
    const struct stacks *s = state;
    if (gatherer_pid(s->gatherer))
        pids_add(out, gatherer_pid(s->gatherer));
    return true;
}

static void stacks_report(void *state, struct report_input *in)
{
    struct stacks *s = state;
    in->stacks = s->kept;
}

static void stacks_close(void *state, void (*on_closed)(void *arg), void *arg)
{
    struct stacks *s = state;
    gatherer_close(s->gatherer, on_closed, arg);
    s->gatherer = NULL;
}

static void stacks_free(void *state)
{
    struct stacks *s = state;
    free(s->sampled);
    free(s->kept);
    free(s);
}

const struct feature stacks_feature = {
    .name = "stacks",
    .open = stacks_open,
    .request = stacks_request,
    .answer = stacks_answer,
    .merge = stacks_merge,
    .looked = stacks_looked,
    .helpers = stacks_helpers,
    .report = stacks_report,
    .close = stacks_close,
    .free = stacks_free,
};

struct gatherer *stacks_gatherer(const struct node *n)
{
    return gatherer_of(n->calls->find(n, &stacks_feature));
}

void stacks_keep(const struct node *n, const struct samples *all)
{
    keep(n->calls->find(n, &stacks_feature), all);
}

void stacks_set_activity(const struct node *n, bool (*was_active)(void *arg, int local_rank),
                         void *arg)
{
    struct stacks *s = n->calls->find(n, &stacks_feature);
    s->was_active = was_active;
    s->activity_arg = arg;
}
