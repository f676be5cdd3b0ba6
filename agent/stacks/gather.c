#include "agent/stacks/gather.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/uvx.h"

/* A request of this node. */
struct gathering {
    struct gathering *next;
    struct gatherer *g;
    uint64_t id;
    bool own;   /* only this node's are wanted */
    bool local; /* only this node's can be had */
    int nodes;  /* whose answers are missing */
    uint64_t deadline_ms;
    struct samples all;
    void (*on_done)(void *arg, const struct samples *all);
    void *arg;
};

/* A request of some node for this node's samples. */
struct owed {
    struct owed *next;
    struct node_id to;
    uint64_t id;
};

struct gatherer {
    uv_loop_t *loop;
    struct gather_callbacks cb;
    struct sampler *sampler;
    struct uvx_scope scope;
    uv_timer_t timer;
    struct gathering *list;
    struct owed *owed;
    uint64_t last_id;
    int answers; /* to requests, sent */
    bool sampling;
    int nclosing;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

struct gatherer *gatherer_new(uv_loop_t *loop, struct spawner *spawner,
                              const struct gather_callbacks *cb)
{
    struct gatherer *g = xcalloc(1, sizeof(*g));
    g->loop = loop;
    g->cb = *cb;
    g->sampler = sampler_new(loop, spawner);
    uvx_scope_init(&g->scope, loop);
    uv_timer_init(loop, &g->timer);
    uvx_own(&g->scope, &g->timer);
    return g;
}

/* ------------------------------------------------------------------------------------ the asker */

/* Whether samples of the node's workers have come. */
static bool has_answered(const struct gathering *q, int node)
{
    for (size_t i = 0; i < q->all.n; i++) {
        if (q->all.s[i].node == node && q->all.s[i].pid)
            return true;
    }
    return false;
}

/* Names the ranks of which nothing came. */
static void add_missing(struct gathering *q)
{
    struct gather_node node;
    q->g->cb.get_node(q->g->cb.arg, &node);
    size_t had = q->all.n, at = 0;
    samples_sort(&q->all);
    for (int i = 0; node.table && i < node.table->nnodes; i++) {
        const struct rank_table_node *n = &node.table->nodes[i];
        if (q->own && i != node.group_rank)
            continue;
        for (int rank = n->base_rank; rank < n->base_rank + n->nproc; rank++) {
            while (at < had && q->all.s[at].rank < rank)
                at++;
            if (at < had && q->all.s[at].rank == rank)
                continue;
            struct sample *s = samples_add(&q->all);
            s->rank = rank;
            s->node = i;
            snprintf(s->host, sizeof(s->host), "%s", n->host);
            s->silent = i != node.group_rank && !has_answered(q, i);
            if (!s->silent)
                snprintf(s->note, sizeof(s->note), "it does not run");
            else
                snprintf(s->note, sizeof(s->note), "node %d (%.200s) did not answer", i, n->host);
        }
    }
    samples_sort(&q->all);
}

static void end_gathering(struct gathering *q, bool good)
{
    struct gathering **link = &q->g->list;
    while (*link != q)
        link = &(*link)->next;
    *link = q->next;
    if (good)
        add_missing(q);
    q->on_done(q->arg, good ? &q->all : NULL);
    samples_fini(&q->all);
    free(q);
}

static void on_gather_timer(uv_timer_t *t)
{
    struct gatherer *g = container_of(t, struct gatherer, timer);
    uint64_t now = uv_now(g->loop), next = UINT64_MAX;
    for (struct gathering *q = g->list, *after; q; q = after) {
        after = q->next;
        if (q->nodes == 0 || now >= q->deadline_ms)
            end_gathering(q, true);
    }
    for (const struct gathering *q = g->list; q; q = q->next)
        next = q->deadline_ms < next ? q->deadline_ms : next;
    if (next != UINT64_MAX)
        uv_timer_start(t, on_gather_timer, next > now ? next - now : 0, 0);
}

static void take_answer(struct gathering *q, const uint8_t *p, size_t n)
{
    struct rd r = rd_init(p, n);
    if (q->nodes == 0)
        return;
    samples_decode(&r, &q->all);
    if (--q->nodes == 0) /* from the loop, not from inside of gather() */
        uv_timer_start(&q->g->timer, on_gather_timer, 0, 0);
}

void gatherer_on_answer(struct gatherer *g, const struct rdzv_answer *a)
{
    for (struct gathering *q = g->list; q; q = q->next) {
        if (q->id == a->id && !q->local) {
            take_answer(q, a->data, a->len);
            return;
        }
    }
}

/* --------------------------------------------------------------------------------- the answerer */

/* All who wait for the samples of this node get the same. */
static void on_samples(void *arg, const struct samples *all)
{
    struct gatherer *g = arg;
    struct gather_node node;
    struct buf b = BUF_INIT;
    g->sampling = false;
    g->cb.get_node(g->cb.arg, &node);
    for (size_t i = 0; i < all->n; i++) {
        struct sample *s = &all->s[i];
        s->node = node.group_rank;
        snprintf(s->host, sizeof(s->host), "%s", node.host);
        g->cb.complete(g->cb.arg, s);
    }
    samples_encode(&b, all);
    for (struct gathering *q = g->list; q; q = q->next) {
        if (q->local)
            take_answer(q, b.data, b.len);
    }
    for (struct owed *o = g->owed, *next; o; o = next) {
        const struct rdzv_answer a = {.to = o->to, .id = o->id, .data = b.data, .len = b.len};
        next = o->next;
        if (b.len <= RDZV_ANSWER_MAX)
            g->cb.answer(g->cb.arg, &a);
        g->answers++;
        free(o);
    }
    g->owed = NULL;
    buf_fini(&b);
}

static void sample_own(struct gatherer *g)
{
    struct gather_node node;
    if (g->sampling)
        return;
    g->sampling = true;
    g->cb.get_node(g->cb.arg, &node);
    sampler_take(g->sampler, node.workers, node.n, on_samples, g);
}

int gatherer_answers(const struct gatherer *g)
{
    return g->answers;
}

void gatherer_on_request(struct gatherer *g, const struct rdzv_request *r)
{
    struct owed *o = xcalloc(1, sizeof(*o));
    *o = (struct owed){.next = g->owed, .to = r->from, .id = r->id};
    g->owed = o;
    sample_own(g);
}

void gather(struct gatherer *g, bool all_nodes,
            void (*on_done)(void *arg, const struct samples *all), void *arg)
{
    struct gathering *q = xcalloc(1, sizeof(*q));
    struct gather_node node;
    g->cb.get_node(g->cb.arg, &node);
    *q = (struct gathering){.next = g->list,
                            .g = g,
                            .id = ++g->last_id,
                            .deadline_ms = uv_now(g->loop) + GATHER_MS,
                            .on_done = on_done,
                            .arg = arg};
    g->list = q;
    const struct rdzv_request request = {
        .kind = REQUEST_STACKS, .id = q->id, .text = "stacks are wanted"};
    q->own = !all_nodes;
    q->local =
        q->own || !node.table || node.table->nnodes < 2 || !g->cb.request(g->cb.arg, &request);
    q->nodes = q->local ? 1 : node.table->nnodes;
    if (q->local)
        sample_own(g);
    if (!uv_is_active((uv_handle_t *)&g->timer))
        uv_timer_start(&g->timer, on_gather_timer, GATHER_MS, 0);
}

pid_t gatherer_pid(const struct gatherer *g)
{
    return g ? sampler_pid(g->sampler) : 0;
}

static void on_part_closed(void *arg)
{
    struct gatherer *g = arg;
    if (--g->nclosing > 0)
        return;
    void (*on_closed)(void *arg) = g->on_closed;
    void *on_closed_arg = g->on_closed_arg;
    free(g);
    on_closed(on_closed_arg);
}

void gatherer_close(struct gatherer *g, void (*on_closed)(void *arg), void *arg)
{
    if (!g) {
        on_closed(arg);
        return;
    }
    while (g->list)
        end_gathering(g->list, false);
    for (struct owed *o = g->owed, *next; o; o = next) {
        next = o->next;
        free(o);
    }
    g->nclosing = 2;
    g->on_closed = on_closed;
    g->on_closed_arg = arg;
    sampler_close(g->sampler, on_part_closed, g);
    uvx_scope_close(&g->scope, on_part_closed, g);
}
