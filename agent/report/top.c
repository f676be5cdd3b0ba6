#include "agent/report/top.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/base/usage.h"
#include "agent/report/flight_report.h"
#include "agent/report/top_asks.h"
#include "core/clock.h"
#include "core/mem.h"

struct top {
    struct node *n;
    struct top_asks *asks;
};

static int own_number(const struct node *n)
{
    return n->table ? n->group_rank : 0;
}

static void fill_rank(struct node *n, const struct agent_worker_status *s, struct top_rank *k)
{
    struct segment_last_op op;
    double bytes;
    uint64_t now = mono_ns(), at = n->calls->last_output(n, s->local_rank);
    k->rank = s->rank;
    k->node = own_number(n);
    k->local_rank = s->local_rank;
    k->pid = s->pid;
    k->elapsed_s = s->seconds;
    k->cpu_s = k->output_age_s = -1;
    snprintf(k->state, sizeof(k->state), "%s", s->state);
    if (s->program) { /* of a long path its end */
        size_t len = strlen(s->program), max = sizeof(k->program) - 1;
        snprintf(k->program, sizeof(k->program), "%s", s->program + (len > max ? len - max : 0));
    }
    if (strcmp(s->state, "running") != 0)
        return;
    if (usage_read(s->pid, &k->cpu_s, &bytes))
        k->memory = (uint64_t)bytes;
    if (at)
        k->output_age_s = now > at ? (double)(now - at) / 1e9 : 0;
    if (s->gpu_memory_total) {
        k->has_gpu = true;
        k->gpu_memory = s->gpu_memory;
        k->gpu_memory_total = s->gpu_memory_total;
        k->gpu_percent = s->gpu_percent;
    }
    k->relative = s->relative;
    k->own = s->own;
    if (segment_last_op(&n->segment, s->local_rank, now, &op)) {
        k->has_op = true;
        flight_report_operation(&n->segment, s->local_rank, k->op_name, sizeof(k->op_name));
        k->op_number = op.seq;
        k->op_open = op.open;
        k->op_age_s = (double)op.age_ms / 1e3;
    }
}

static void add_own_rows(void *arg, struct top_rows *rows)
{
    struct node *n = arg;
    struct top_node *t = top_rows_add_node(rows);
    struct agent_status s;
    n->calls->get_status(n, &s);
    t->node = own_number(n);
    snprintf(t->host, sizeof(t->host), "%s", n->job->host);
    snprintf(t->state, sizeof(t->state), "%s", s.state);
    for (int i = 0; i < s.nworkers; i++) {
        struct top_rank *k = top_rows_add_rank(rows);
        fill_rank(n, &s.workers[i], k);
        t->nworkers++;
        if (strcmp(k->state, "running") != 0)
            continue;
        t->nrunning++;
        t->cpu_s += k->cpu_s > 0 ? k->cpu_s : 0;
        t->memory += k->memory;
        t->elapsed_s = k->elapsed_s > t->elapsed_s ? k->elapsed_s : t->elapsed_s;
    }
    rows->nrunning += (uint32_t)t->nrunning;
}

/* -------------------------------------------------------------------------------------- asking */

struct question {
    struct node *n;
    uint64_t asked_ns;
    void (*on_done)(void *arg, json_t *top);
    void *arg;
};

static void on_rows(void *arg, const struct top_rows *rows, bool complete)
{
    struct question *q = arg;
    struct agent_status s;
    json_t *j = NULL;
    if (rows) {
        q->n->calls->get_status(q->n, &s);
        j = json_pack("{s:f,s:s,s:f,s:i,s:i,s:b}", "now_s", (double)q->asked_ns / 1e9, "state",
                      s.state, "elapsed_s", s.elapsed, "restarts", s.rdzv.restart_count, "nnodes",
                      s.rdzv.nnodes > 1 ? s.rdzv.nnodes : 1, "complete", (int)complete);
        top_rows_json(rows, j);
    }
    q->on_done(q->arg, j);
    free(q);
}

void top_of_job(void *state, size_t most, void (*on_done)(void *arg, json_t *top), void *arg)
{
    struct top *t = state;
    struct question *q = xcalloc(1, sizeof(*q));
    struct rdzv_info info;
    t->n->calls->get_info(t->n, &info);
    *q = (struct question){.n = t->n, .asked_ns = mono_ns(), .on_done = on_done, .arg = arg};
    top_ask(t->asks, t->n->state == NODE_DONE ? 1 : info.nnodes, most, on_rows, q);
}

/* ------------------------------------------------------------------------------------- feature */

static bool send_request(void *arg, const struct rdzv_request *r)
{
    struct node *n = arg;
    return n->calls->request(n, r);
}

static void send_answer(void *arg, const struct rdzv_answer *a)
{
    struct node *n = arg;
    n->calls->answer(n, a);
}

static int top_open(void **state, struct node *n, struct err *e)
{
    struct top *t = xcalloc(1, sizeof(*t));
    const struct top_callbacks cb = {
        .arg = n, .own = add_own_rows, .request = send_request, .answer = send_answer};
    (void)e;
    t->n = n;
    t->asks = top_asks_new(n->loop, n->scope, &cb);
    *state = t;
    return 0;
}

static bool top_request(void *state, const struct rdzv_request *r)
{
    struct top *t = state;
    if (r->kind != REQUEST_TOP)
        return false;
    if (t->n->job->nproc)
        top_on_request(t->asks, r);
    return true;
}

static bool top_answer(void *state, const struct rdzv_answer *a)
{
    struct top *t = state;
    if (a->kind != REQUEST_TOP)
        return false;
    top_on_answer(t->asks, a);
    return true;
}

static bool merge_rows(const struct rdzv_answers *answers, struct buf *out)
{
    return answers->kind == REQUEST_TOP && top_merge(answers, out);
}

static void top_close(void *state, void (*on_closed)(void *arg), void *arg)
{
    struct top *t = state;
    top_asks_stop(t->asks);
    on_closed(arg);
}

static void top_free(void *state)
{
    struct top *t = state;
    top_asks_free(t->asks);
    free(t);
}

const struct feature top_feature = {
    .name = "top",
    .open = top_open,
    .request = top_request,
    .answer = top_answer,
    .merge = merge_rows,
    .close = top_close,
    .free = top_free,
};
