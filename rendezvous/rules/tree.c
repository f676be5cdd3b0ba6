#include "rendezvous/rules/tree.h"

#include <assert.h>

#include "rendezvous/rules/rdzv_msg.h"

/* Places count from 1; the coordinator has 0. */
static int place_of(int rank, int host)
{
    assert(rank != host);
    return host >= 0 && rank > host ? rank : rank + 1;
}

static int rank_at(int place, int host)
{
    return place == 0 ? -1 : host >= 0 && place > host ? place : place - 1;
}

int tree_parent(int rank, int host, int width)
{
    return rank_at((place_of(rank, host) - 1) / width, host);
}

int tree_depth(int rank, int host, int width)
{
    int depth = 0;
    while ((rank = tree_parent(rank, host, width)) >= 0)
        depth++;
    return depth;
}

void tree_answers_add(struct tree_answers *a, const uint8_t *p, size_t len)
{
    buf_u32(&a->items, (uint32_t)len);
    buf_put(&a->items, p, len);
    a->n++;
}

bool tree_answers_complete(const struct tree_answers *a)
{
    return a->have >= a->wanted;
}

static void tree_answers_merge(struct tree_answers *a, merge_fn *merge, void *arg)
{
    const struct rdzv_answers all = {.to = a->to,
                                     .kind = a->kind,
                                     .id = a->id,
                                     .n = a->n,
                                     .items = rd_init(a->items.data, a->items.len)};
    struct buf one = BUF_INIT;
    if (merge(arg, &all, &one)) {
        a->items.len = 0;
        a->n = 0;
        tree_answers_add(a, one.data, one.len);
    }
    buf_fini(&one);
}

bool tree_answers_take(struct tree_answers *a, merge_fn *merge, void *arg, struct buf *frame)
{
    bool any = a->n > 0;
    if (merge && a->n > 1)
        tree_answers_merge(a, merge, arg);
    if (any)
        rdzv_put_answers(frame, &a->to, a->kind, a->id, a->n, &a->items);
    a->n = 0;
    tree_answers_fini(a);
    return any;
}

void tree_answers_fini(struct tree_answers *a)
{
    buf_fini(&a->items);
}
