#include "agent/report/top_asks.h"

#include <stdlib.h>

#include "core/list.h"
#include "core/mem.h"

struct top_ask {
    struct list_node node;
    uint64_t id; /* 0: only this node is asked */
    uint32_t nnodes;
    uint32_t most;
    uint64_t end_ms; /* 0: all have answered */
    struct top_rows rows;
    void (*on_done)(void *arg, const struct top_rows *rows, bool complete);
    void *arg;
};

struct top_asks {
    uv_loop_t *loop;
    struct top_callbacks cb;
    uv_timer_t timer;
    struct list_node list;
    uint64_t last;
    bool stopped;
};

void top_answer_encode(struct buf *b, uint32_t most, const struct top_rows *rows)
{
    buf_u32(b, most);
    top_rows_encode(b, rows);
}

bool top_answer_decode(struct rd *r, uint32_t *most, struct top_rows *rows)
{
    *most = rd_u32(r);
    return top_rows_decode(r, rows);
}

static void ask_end(struct top_ask *q, bool good)
{
    list_remove(&q->node);
    top_rows_cut(&q->rows, q->most);
    q->on_done(q->arg, good ? &q->rows : NULL, q->rows.nnodes >= q->nnodes);
    top_rows_fini(&q->rows);
    free(q);
}

static void on_top_timer(uv_timer_t *timer)
{
    struct top_asks *t = container_of(timer, struct top_asks, timer);
    uint64_t now = uv_now(t->loop), next = UINT64_MAX;
    for (struct list_node *n = t->list.next, *after; n != &t->list; n = after) {
        struct top_ask *q = container_of(n, struct top_ask, node);
        after = n->next;
        if (now >= q->end_ms)
            ask_end(q, true);
        else if (q->end_ms < next)
            next = q->end_ms;
    }
    if (next != UINT64_MAX)
        uv_timer_start(timer, on_top_timer, next - now, 0);
}

/* on_done comes from the loop, not from inside of top_ask(). */
static void ask_is_complete(struct top_asks *t, struct top_ask *q)
{
    q->end_ms = 0;
    uv_timer_start(&t->timer, on_top_timer, 0, 0);
}

struct top_asks *top_asks_new(uv_loop_t *loop, struct uvx_scope *scope,
                              const struct top_callbacks *cb)
{
    struct top_asks *t = xcalloc(1, sizeof(*t));
    t->loop = loop;
    t->cb = *cb;
    list_init(&t->list);
    uv_timer_init(loop, &t->timer);
    uvx_own(scope, &t->timer);
    return t;
}

void top_ask(struct top_asks *t, int nnodes, size_t most,
             void (*on_done)(void *arg, const struct top_rows *rows, bool complete), void *arg)
{
    struct rdzv_request r = {
        .kind = REQUEST_TOP,
    };
    if (t->stopped) {
        on_done(arg, NULL, false);
        return;
    }
    struct top_ask *q = xcalloc(1, sizeof(*q));
    r.id = ++t->last;
    r.top.most = most < UINT32_MAX ? (uint32_t)most : 0;
    *q = (struct top_ask){.id = r.id,
                          .nnodes = nnodes > 1 ? (uint32_t)nnodes : 1,
                          .most = r.top.most,
                          .end_ms = uv_now(t->loop) + TOP_WAIT_MS,
                          .on_done = on_done,
                          .arg = arg};
    list_append(&t->list, &q->node);
    if (nnodes > 1 && t->cb.request(t->cb.arg, &r)) {
        if (!uv_is_active((uv_handle_t *)&t->timer))
            uv_timer_start(&t->timer, on_top_timer, TOP_WAIT_MS, 0);
        return;
    }
    q->id = 0;
    t->cb.own(t->cb.arg, &q->rows);
    ask_is_complete(t, q);
}

void top_on_request(struct top_asks *t, const struct rdzv_request *r)
{
    struct top_rows rows = {0};
    struct buf b = BUF_INIT;
    t->cb.own(t->cb.arg, &rows);
    top_rows_cut(&rows, r->top.most);
    top_answer_encode(&b, r->top.most, &rows);
    top_rows_fini(&rows);
    const struct rdzv_answer a = request_answer(r, b.data, b.len);
    if (b.len <= RDZV_ANSWER_MAX)
        t->cb.answer(t->cb.arg, &a);
    buf_fini(&b);
}

void top_on_answer(struct top_asks *t, const struct rdzv_answer *a)
{
    for (struct list_node *n = t->list.next; n != &t->list; n = n->next) {
        struct top_ask *q = container_of(n, struct top_ask, node);
        struct top_rows rows = {0};
        struct rd r = rd_init(a->data, a->len), again = r;
        uint32_t most;
        if (q->id != a->id)
            continue;
        if (top_answer_decode(&r, &most, &rows))
            top_answer_decode(&again, &most, &q->rows);
        top_rows_fini(&rows);
        if (q->rows.nnodes >= q->nnodes)
            ask_is_complete(t, q);
        return;
    }
}

bool top_merge(const struct rdzv_answers *answers, struct buf *out)
{
    struct rdzv_answers rest = *answers;
    struct top_rows rows = {0};
    struct rdzv_answer one;
    uint32_t most = 0;
    bool good = true;
    while (good && rdzv_next_answer(&rest, &one)) {
        struct rd r = rd_init(one.data, one.len);
        good = top_answer_decode(&r, &most, &rows);
    }
    if (good) {
        top_rows_cut(&rows, most);
        top_answer_encode(out, most, &rows);
    }
    top_rows_fini(&rows);
    return good && out->len <= RDZV_ANSWER_MAX;
}

void top_asks_stop(struct top_asks *t)
{
    if (t)
        t->stopped = true;
    while (t && !list_alone(&t->list))
        ask_end(container_of(t->list.next, struct top_ask, node), false);
}

void top_asks_free(struct top_asks *t)
{
    free(t);
}
