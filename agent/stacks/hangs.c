#include "agent/stacks/hangs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/report/report_words.h"
#include "agent/stacks/hang.h"
#include "agent/stacks/hang_watch.h"
#include "agent/inspect/kernel_side.h"
#include "agent/stacks/sockets.h"
#include "agent/stacks/stacks.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/parse.h"

/* The state of a round, for one state of the agent in the round. */
struct verdict_here {
    bool in_place; /* this node decides in place of a coordinator without workers */
    enum hang_state state;
    char text[512];
};

struct hangs {
    struct node *n;
    struct hang *hang; /* NULL: this node does not watch */
    struct sockets *sockets;
    struct verdict_here now;
    bool announced; /* since when a hang can be found */
};

/* ------------------------------------------------------------------------------- signs of life */

/* Equal for operations of the same kind, group and size. */
static uint64_t form_of_op(const struct segment_last_op *op)
{
    return op->group * 31 + op->bytes;
}

static bool get_op(void *arg, int local_rank, uint64_t number, struct hang_signs *out)
{
    struct hangs *h = arg;
    struct segment_last_op op;
    if (!segment_numbered_op(&h->n->segment, local_rank, number, 0, &op))
        return false;
    out->kind = form_of_op(&op);
    out->at_ns = op.start_ns;
    return true;
}

static bool get_signs(void *arg, int local_rank, struct hang_signs *out)
{
    struct hangs *h = arg;
    struct node *n = h->n;
    const struct worker *w = &n->workers[local_rank];
    struct segment_last_op op;
    if (w->state != WORKER_RUNNING)
        return false;
    *out = (struct hang_signs){.output = n->calls->last_output(n, local_rank)};
    if (segment_last_op(&n->segment, local_rank, 0, &op)) {
        out->ops = op.number;
        out->kind = form_of_op(&op);
        out->at_ns = op.start_ns > out->output ? op.start_ns : out->output;
    } else if ((out->ops = segment_ops(&n->segment, local_rank)) == 0) {
        struct sockets_traffic t =
            sockets_traffic(h->sockets, local_rank, w->pid, n->table->master_port, mono_ns());
        out->cpu_ms = kernel_side_cpu_ms(w->pid);
        out->traffic = t.bytes;
        out->at_ns = t.at_ns > out->output ? t.at_ns : out->output;
        out->sent = t.sent;
        out->sent_ns = t.sent_ns;
    }
    return true;
}

/* --------------------------------------------------------------------------------- the verdict */

static bool leads(void *arg)
{
    struct hangs *h = arg;
    return h->now.in_place || node_leads(h->n);
}

/* A coordinator without workers is in no round: it asks the first node to decide in its place. */
static void on_suspicion(struct hangs *h, const struct rdzv_request *r)
{
    struct node *n = h->n;
    struct rdzv_request again = *r;
    again.suspect.in_place = true;
    if (!n->job->nproc && !r->suspect.in_place && node_leads(n))
        n->calls->request(n, &again);
    if (!h->hang || n->state != NODE_RUNNING)
        return;
    h->now.in_place |= r->suspect.in_place && n->group_rank == 0;
    hang_on_suspicion(h->hang, r);
}

/* Takes over the verdict that the coordinator's node has sent to every node. Another one is more
 * exact: a node has answered after all. */
static void take_verdict(struct hangs *h, const struct rdzv_request *r)
{
    struct node *n = h->n;
    const char *text = r->hang.text;
    bool hung = r->hang.certain;
    enum hang_state state = hung ? HANG_HUNG : HANG_SUSPECT;
    if (h->now.state > state || (h->now.state == state && strcmp(h->now.text, text) == 0))
        return;
    h->now.state = state;
    snprintf(h->now.text, sizeof(h->now.text), "%s", text);
    hang_declared(h->hang);
    if (hung)
        log_warn("the job hangs: %s (dlaunchctl stacks shows all ranks)", text);
    else
        log_verbose("the job may hang: %s", text);
    for (int i = 0; i < n->job->nproc && hung && r->hang.kill && *r->hang.ranks; i++) {
        const struct worker *w = &n->workers[i];
        if (worker_is_alive(w) && parse_has(r->hang.ranks, w->rank))
            n->calls->kill(n, i, SIGKILL, text);
    }
}

static void record(struct hangs *h, enum event_name name, const struct rdzv_request *r)
{
    node_event(h->n, (struct event){.name = name,
                                    .attempt = h->n->restart_count,
                                    .rank = -1,
                                    .caused_by = -1,
                                    .text = r->hang.text,
                                    .extra = r->hang.ranks});
}

static void on_verdict(void *arg, const struct verdict *v, const struct samples *all)
{
    struct hangs *h = arg;
    struct node *n = h->n;
    struct rdzv_request r = {.kind = REQUEST_HANG, .hang.certain = v->state == HANG_HUNG};
    struct buf ranks = BUF_INIT;
    if (n->state != NODE_RUNNING || n->leaving)
        return;
    words_add(&ranks, "%s", "");
    for (int i = 0; i < v->n; i++)
        words_add(&ranks, "%s%d", i ? "," : "", v->ranks[i]);
    snprintf(r.hang.ranks, sizeof(r.hang.ranks), "%s", (char *)ranks.data);
    buf_fini(&ranks);
    snprintf(r.hang.text, sizeof(r.hang.text), "%s", v->text);
    if (h->now.state == HANG_NONE)
        record(h, EVENT_SUSPECT, &r);
    if (v->state == HANG_HUNG) {
        record(h, EVENT_HANG, &r);
        r.hang.kill = n->job->on_hang == ON_HANG_RESTART && v->n > 0;
        stacks_keep(n, all);
    }
    if (!n->calls->request(n, &r))
        take_verdict(h, &r);
    if (v->state != HANG_HUNG)
        return;
    if (n->job->on_hang == ON_HANG_END) {
        char text[512];
        take_verdict(h, &r);
        snprintf(text, sizeof(text), "the job hangs: %.490s", v->text);
        n->calls->leave(n, STOP_TIMEOUT, 124, SIGTERM, text);
    } else if (n->job->on_hang == ON_HANG_RESTART && v->n == 0) {
        struct rdzv_request again = {.kind = REQUEST_RESTART};
        snprintf(again.restart.text, sizeof(again.restart.text), "the job hangs: %.490s", v->text);
        n->calls->request(n, &again);
    }
}

static void on_no_coordinator(void *arg)
{
    struct hangs *h = arg;
    struct rdzv_request r = {.kind = REQUEST_HANG, .hang.certain = true};
    struct rdzv_info info;
    if (h->n->state != NODE_RUNNING || h->n->leaving || h->now.state == HANG_HUNG)
        return;
    h->n->calls->get_info(h->n, &info);
    snprintf(r.hang.text, sizeof(r.hang.text), "the node of the coordinator (%s) does not answer",
             info.endpoint);
    take_verdict(h, &r);
}

static void on_life(void *arg)
{
    struct hangs *h = arg;
    if (h->now.state == HANG_HUNG)
        log_notice("the workers of this node go on after all");
    h->now.state = HANG_NONE;
}

/* ------------------------------------------------------------------------------------- feature */

static bool send_request(void *arg, const struct rdzv_request *r)
{
    struct hangs *h = arg;
    return h->n->calls->request(h->n, r);
}

static struct gatherer *get_gatherer(void *arg)
{
    struct hangs *h = arg;
    return stacks_gatherer(h->n);
}

static bool was_active(void *arg, int local_rank)
{
    struct hangs *h = arg;
    return h->hang && hang_was_active(h->hang, local_rank);
}

/* A launcher without workers may be the coordinator of nodes that watch theirs. */
static int hangs_open(void **state, struct node *n, struct err *e)
{
    (void)e;
    if (n->job->hang_after <= 0 && n->job->nproc > 0)
        return 0;
    struct hangs *h = xcalloc(1, sizeof(*h));
    const struct hang_callbacks cb = {.arg = h,
                                      .get_signs = get_signs,
                                      .get_op = get_op,
                                      .leads = leads,
                                      .request = send_request,
                                      .gatherer = get_gatherer,
                                      .on_verdict = on_verdict,
                                      .on_no_coordinator = on_no_coordinator,
                                      .on_life = on_life};
    h->n = n;
    *state = h;
    if (n->job->hang_after <= 0)
        return 0;
    h->sockets = sockets_new(n->job->nproc);
    h->hang = hang_new(n->loop, n->job->nproc, n->job->hang_after, &cb);
    stacks_set_activity(n, was_active, h);
    return 0;
}

/* A hang in the first steps is found later than the user has asked for. */
static void tell_from_when_on(struct hangs *h)
{
    double after_s = h->n->job->hang_after;
    uint64_t first_ns = hang_unlearnt_limit((uint64_t)(after_s * 1e9));
    if (h->announced || h->n->group_rank != 0)
        return;
    h->announced = true;
    log_notice("watching for hangs: in the first %d steps of a rank those of %g s and more count, "
               "then those of %g s that are 3 times as long as usual (--hang_after)",
               HANG_LEARNT, (double)first_ns / 1e9, after_s);
}

static void hangs_state_changed(void *state, enum node_state from)
{
    struct hangs *h = state;
    if (h->hang && from == NODE_STARTING && h->n->state == NODE_RUNNING)
        tell_from_when_on(h);
    h->now = (struct verdict_here){0};
    if (h->hang)
        hang_reset(h->hang, h->n->state == NODE_RUNNING);
}

static bool hangs_request(void *state, const struct rdzv_request *r)
{
    struct hangs *h = state;
    if (r->kind == REQUEST_SUSPECT)
        on_suspicion(h, r);
    else if (r->kind == REQUEST_HANG && h->hang && h->n->state == NODE_RUNNING)
        take_verdict(h, r);
    return r->kind == REQUEST_SUSPECT || r->kind == REQUEST_HANG;
}

static void hangs_status(void *state, struct agent_status *out)
{
    struct hangs *h = state;
    if (h->now.state == HANG_NONE)
        return;
    out->hang = h->now.state == HANG_HUNG ? "HUNG" : "SUSPECT";
    out->hang_text = h->now.text;
}

static void hangs_close(void *state, void (*on_closed)(void *arg), void *arg)
{
    struct hangs *h = state;
    struct hang *hang = h->hang;
    h->hang = NULL;
    hang_close(hang, on_closed, arg);
}

static void hangs_free(void *state)
{
    struct hangs *h = state;
    sockets_free(h->sockets);
    free(h);
}

const struct feature hangs_feature = {
    .name = "hangs",
    .open = hangs_open,
    .state_changed = hangs_state_changed,
    .request = hangs_request,
    .status = hangs_status,
    .close = hangs_close,
    .free = hangs_free,
};
