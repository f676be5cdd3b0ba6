#include "agent/stacks/slow_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/report/report_input.h"
#include "agent/stacks/slow.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"

struct slow_ranks {
    struct node *n;
    struct slow *slow;
    char now[512]; /* which ranks are slow in this round, one line; "": none */
    char *last;    /* the ranks that were slow last; NULL: none ever */
};

static bool get_count(void *arg, int local_rank, struct slow_count *out, int *pid, bool *inside)
{
    struct slow_ranks *s = arg;
    const struct worker *w = &s->n->workers[local_rank];
    if (w->state != WORKER_RUNNING)
        return false;
    *pid = w->pid;
    out->at_ns = mono_ns();
    out->waited_ns = segment_waited(&s->n->segment, local_rank, out->at_ns, inside);
    out->ops = segment_ops(&s->n->segment, local_rank);
    return true;
}

static const struct rank_table *running_table(void *arg, int *group_rank)
{
    struct slow_ranks *s = arg;
    *group_rank = s->n->group_rank;
    return s->n->state == NODE_RUNNING ? s->n->table : NULL;
}

static struct gpu_state gpu_of(void *arg, int local_rank)
{
    struct slow_ranks *s = arg;
    return s->n->workers[local_rank].gpu;
}

static bool leads(void *arg)
{
    struct slow_ranks *s = arg;
    return node_leads(s->n);
}

static bool send_request(void *arg, const struct rdzv_request *r)
{
    struct slow_ranks *s = arg;
    return s->n->calls->request(s->n, r);
}

static void send_answer(void *arg, const struct rdzv_answer *a)
{
    struct slow_ranks *s = arg;
    s->n->calls->answer(s->n, a);
}

/* Takes over what the coordinator's node has sent to every node. */
static void take_finding(struct slow_ranks *s, const struct rdzv_request *r)
{
    if (*r->slow.ranks && strcmp(s->now, r->slow.text) != 0) {
        if (s->n->table->nnodes == 1 || node_leads(s->n))
            log_warn("%s", r->slow.text);
        free(s->last);
        s->last = xstrdup(r->slow.text);
    }
    snprintf(s->now, sizeof(s->now), "%s", *r->slow.ranks ? r->slow.text : "");
}

static void on_slow(void *arg, const char *ranks, const char *text)
{
    struct slow_ranks *s = arg;
    struct node *n = s->n;
    struct rdzv_request r = {.kind = REQUEST_SLOW};
    if (n->state != NODE_RUNNING || n->leaving)
        return;
    snprintf(r.slow.ranks, sizeof(r.slow.ranks), "%s", ranks);
    snprintf(r.slow.text, sizeof(r.slow.text), "%s", *text ? text : "no rank is slow any more");
    node_event(n, (struct event){.name = EVENT_SLOW,
                                 .attempt = n->restart_count,
                                 .rank = -1,
                                 .caused_by = -1,
                                 .text = r.slow.text,
                                 .extra = r.slow.ranks});
    if (!n->calls->request(n, &r))
        take_finding(s, &r);
}

/* ------------------------------------------------------------------------------------- feature */

static int slow_ranks_open(void **state, struct node *n, struct err *e)
{
    (void)e;
    if (n->job->slow_percent <= 0)
        return 0;
    struct slow_ranks *s = xcalloc(1, sizeof(*s));
    const struct slow_callbacks cb = {.arg = s,
                                      .get_count = get_count,
                                      .table = running_table,
                                      .gpu = gpu_of,
                                      .leads = leads,
                                      .request = send_request,
                                      .answer = send_answer,
                                      .on_slow = on_slow};
    s->n = n;
    s->slow = slow_new(n->loop, n->job->nproc, n->job->slow_percent, &cb);
    *state = s;
    return 0;
}

static int slow_ranks_begin(void *state, struct err *e)
{
    struct slow_ranks *s = state;
    (void)e;
    segment_watch(&s->n->segment);
    return 0;
}

static void slow_ranks_state_changed(void *state, enum node_state from)
{
    struct slow_ranks *s = state;
    (void)from;
    s->now[0] = '\0';
    slow_reset(s->slow, s->n->state == NODE_RUNNING);
}

static bool slow_ranks_request(void *state, const struct rdzv_request *r)
{
    struct slow_ranks *s = state;
    if (s->n->state == NODE_RUNNING && r->kind == REQUEST_PACE)
        slow_on_request(s->slow, r);
    else if (s->n->state == NODE_RUNNING && r->kind == REQUEST_SLOW)
        take_finding(s, r);
    return r->kind == REQUEST_PACE || r->kind == REQUEST_SLOW;
}

static bool slow_ranks_answer(void *state, const struct rdzv_answer *a)
{
    struct slow_ranks *s = state;
    if (a->kind != REQUEST_PACE)
        return false;
    slow_on_answer(s->slow, a);
    return true;
}

static void slow_ranks_status(void *state, struct agent_status *out)
{
    struct slow_ranks *s = state;
    out->slow = s->now[0] ? s->now : NULL;
    for (int i = 0; i < out->nworkers; i++) {
        struct slow_scores scores = {.waited_s = -1};
        slow_get_scores(s->slow, i, &scores);
        out->workers[i].relative = scores.relative;
        out->workers[i].own = scores.own;
        out->workers[i].waited_s = scores.waited_s;
    }
}

static void slow_ranks_report(void *state, struct report_input *in)
{
    struct slow_ranks *s = state;
    in->slow = s->last;
}

static void slow_ranks_close(void *state, void (*on_closed)(void *arg), void *arg)
{
    struct slow_ranks *s = state;
    struct slow *slow = s->slow;
    s->slow = NULL;
    slow_close(slow, on_closed, arg);
}

static void slow_ranks_free(void *state)
{
    struct slow_ranks *s = state;
    free(s->last);
    free(s);
}

const struct feature slow_ranks_feature = {
    .name = "slow ranks",
    .open = slow_ranks_open,
    .begin = slow_ranks_begin,
    .state_changed = slow_ranks_state_changed,
    .request = slow_ranks_request,
    .answer = slow_ranks_answer,
    .status = slow_ranks_status,
    .report = slow_ranks_report,
    .close = slow_ranks_close,
    .free = slow_ranks_free,
};
