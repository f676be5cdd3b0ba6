#include "agent/stacks/gather.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/uvx.h"

#define AWAY_MS      100 /* at least, for a node to say that it is here */
#define AWAY_TREE_MS 600 /* in a tree of launchers, in which answers wait for others */
#define NO_TREE      32  /* nodes; as many and fewer have none */
#define AWAY_TIMES   4   /* as long as the slowest of the others */

/* A request of this node. */
struct gathering {
    struct gathering *next;
    struct gatherer *g;
    uint64_t id;
    bool own;   /* only this node's samples are wanted */
    bool local; /* only this node's samples can be had */
    int nodes;  /* whose answers are missing */
    int away;   /* nodes that have not said that they are here */
    bool *here; /* by node; NULL: nobody else is asked */
    int nnodes;
    uint64_t begun_ms, deadline_ms;
    uint64_t away_ms; /* the time to wait for those nodes */
    bool last_call;   /* that time is over: answers that have arrived are still read */
    struct samples all;
    void (*on_done)(void *arg, const struct samples *all);
    void *arg;
};

/* A request of some node for this node's samples. */
struct owed {
    struct owed *next;
    struct rdzv_request request;
};

struct gatherer {
    uv_loop_t *loop;
    struct gather_callbacks cb;
    struct sampler *sampler;
    struct uvx_scope scope;
    uv_timer_t timer;
    uint64_t due_ms; /* of the timer */
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
    g->sampler = sampler_new(loop, spawner, cb->inspect);
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

/* Notes for all that is under way that a node is here. A late answer to what is over counts, too:
 * the node is not silent. */
static void note_here(struct gatherer *g, uint32_t node)
{
    for (struct gathering *q = g->list; q; q = q->next) {
        uint64_t took = uv_now(g->loop) - q->begun_ms;
        if (!q->here || node >= (uint32_t)q->nnodes || q->here[node])
            continue;
        q->here[node] = true;
        q->away--;
        q->last_call = false;
        if (AWAY_TIMES * took > q->away_ms)
            q->away_ms = AWAY_TIMES * took;
    }
}

/* The answer of one node, or of several. */
static void take_here(struct gatherer *g, const struct rdzv_answer *a)
{
    for (struct rd r = rd_init(a->data, a->len); r.p < r.end && !r.bad;) {
        uint32_t node = rd_u32(&r);
        if (!r.bad)
            note_here(g, node);
    }
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
            s->silent = i != node.group_rank && !has_answered(q, i) &&
                        !(q->here && i < q->nnodes && q->here[i] && q->nodes <= q->away);
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
    free(q->here);
    free(q);
}

/* The time to look at the request again; 0: the request is over. */
static uint64_t look_at(struct gathering *q, uint64_t now)
{
    uint64_t away = q->begun_ms + q->away_ms;
    if (q->nodes == 0 || now >= q->deadline_ms)
        return 0;
    if (!q->here || q->nodes > q->away) /* one that is here has not answered yet */
        return q->deadline_ms;
    if (now < away)
        return away < q->deadline_ms ? away : q->deadline_ms;
    if (q->last_call)
        return 0;
    q->last_call = true;
    return now + 1;
}

static void on_gather_timer(uv_timer_t *t);

static void look_in(struct gatherer *g, uint64_t ms)
{
    g->due_ms = uv_now(g->loop) + ms;
    uv_timer_start(&g->timer, on_gather_timer, ms, 0);
}

/* Called from the loop, not from inside of gather(). */
static void look_soon(struct gatherer *g)
{
    look_in(g, 0);
}

/* Where timers are late, other launchers may be late, too. */
static void wait_longer(struct gatherer *g, uint64_t now)
{
    for (struct gathering *q = g->list; q; q = q->next) {
        q->last_call = false;
        if (now - q->begun_ms + AWAY_MS > q->away_ms)
            q->away_ms = now - q->begun_ms + AWAY_MS;
    }
}

static void on_gather_timer(uv_timer_t *t)
{
    struct gatherer *g = container_of(t, struct gatherer, timer);
    uint64_t now = uv_now(g->loop), next = UINT64_MAX;
    if (now > g->due_ms + GATHER_LATE_MS)
        wait_longer(g, now);
    for (struct gathering *q = g->list, *after; q; q = after) {
        uint64_t again = look_at(q, now);
        after = q->next;
        if (again == 0)
            end_gathering(q, true);
        else if (again < next)
            next = again;
    }
    if (next != UINT64_MAX && !uv_is_active((uv_handle_t *)t))
        look_in(g, next - now);
}

/* An answer is u32, of how many nodes it is, and their samples. */
static void take_answer(struct gathering *q, const uint8_t *p, size_t n)
{
    struct rd r = rd_init(p, n);
    int nodes = (int)rd_u32(&r);
    if (q->nodes == 0)
        return;
    samples_decode(&r, &q->all);
    q->nodes = nodes > 0 && nodes < q->nodes ? q->nodes - nodes : 0;
    look_soon(q->g);
}

static bool merge_samples(struct rdzv_answers rest, struct buf *out)
{
    struct samples all = {0};
    struct rdzv_answer one;
    uint32_t nodes = 0;
    bool good = true;
    while (good && rdzv_next_answer(&rest, &one)) {
        struct rd r = rd_init(one.data, one.len);
        nodes += rd_u32(&r);
        good = samples_decode(&r, &all);
    }
    buf_u32(out, nodes);
    samples_encode(out, &all);
    samples_fini(&all);
    return good && out->len <= RDZV_ANSWER_MAX;
}

bool gather_merge(const struct rdzv_answers *answers, struct buf *out)
{
    struct rdzv_answers rest = *answers;
    struct rdzv_answer one;
    if (answers->kind == REQUEST_STACKS)
        return merge_samples(rest, out);
    while (rdzv_next_answer(&rest, &one)) /* the numbers of all */
        buf_put(out, one.data, one.len);
    return out->len <= RDZV_ANSWER_MAX;
}

void gatherer_on_answer(struct gatherer *g, const struct rdzv_answer *a)
{
    if (a->kind == REQUEST_PRESENCE) {
        take_here(g, a);
        return;
    }
    for (struct gathering *q = g->list; q; q = q->next) {
        if (q->id == a->id && !q->local) {
            take_answer(q, a->data, a->len);
            return;
        }
    }
}

/* --------------------------------------------------------------------------------- the answerer */

/* All requests that wait for the samples of this node get the same samples. */
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
    buf_u32(&b, 1);
    samples_encode_within(&b, all, RDZV_ANSWER_MAX);
    for (struct gathering *q = g->list; q; q = q->next) {
        if (q->local)
            take_answer(q, b.data, b.len);
    }
    for (struct owed *o = g->owed, *next; o; o = next) {
        const struct rdzv_answer a = request_answer(&o->request, b.data, b.len);
        next = o->next;
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

static void say_here(struct gatherer *g, const struct rdzv_request *r)
{
    struct gather_node node;
    struct buf b = BUF_INIT;
    g->cb.get_node(g->cb.arg, &node);
    buf_u32(&b, (uint32_t)node.group_rank);
    const struct rdzv_answer a = request_answer(r, b.data, b.len);
    g->cb.answer(g->cb.arg, &a);
    buf_fini(&b);
}

void gatherer_on_request(struct gatherer *g, const struct rdzv_request *r)
{
    if (r->kind == REQUEST_PRESENCE) {
        say_here(g, r);
        return;
    }
    struct owed *o = xcalloc(1, sizeof(*o));
    *o = (struct owed){.next = g->owed, .request = *r};
    g->owed = o;
    sample_own(g);
}

/* False: no other node can be asked. */
static bool ask_all(struct gathering *q, const struct gather_node *node)
{
    struct gatherer *g = q->g;
    const struct rdzv_request here = {.kind = REQUEST_PRESENCE, .id = q->id};
    const struct rdzv_request stacks = {.kind = REQUEST_STACKS, .id = q->id};
    if (!node->table || node->table->nnodes < 2 || !g->cb.request(g->cb.arg, &here) ||
        !g->cb.request(g->cb.arg, &stacks))
        return false;
    q->nodes = q->nnodes = q->away = node->table->nnodes;
    q->here = xcalloc((size_t)q->nnodes, sizeof(*q->here));
    q->away_ms = q->nnodes > NO_TREE ? AWAY_TREE_MS : AWAY_MS;
    return true;
}

void gather(struct gatherer *g, bool all_nodes,
            void (*on_done)(void *arg, const struct samples *all), void *arg)
{
    struct gathering *q = xcalloc(1, sizeof(*q));
    struct gather_node node;
    uint64_t now = uv_now(g->loop);
    g->cb.get_node(g->cb.arg, &node);
    *q = (struct gathering){.next = g->list,
                            .g = g,
                            .id = ++g->last_id,
                            .own = !all_nodes,
                            .nodes = 1,
                            .begun_ms = now,
                            .deadline_ms = now + GATHER_MS,
                            .on_done = on_done,
                            .arg = arg};
    g->list = q;
    q->local = q->own || !ask_all(q, &node);
    if (q->local)
        sample_own(g);
    look_soon(g);
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
