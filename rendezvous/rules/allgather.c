#include "rendezvous/rules/allgather.h"

#include <assert.h>
#include <stdlib.h>

#include "core/mem.h"

void allgather_fini(struct allgather *g)
{
    for (int i = 0; i < g->nnodes; i++)
        buf_fini(&g->value[i]);
    free(g->value);
    free(g->has);
    *g = (struct allgather){0};
}

static void begin_round(struct allgather *g, struct generation gen, int nnodes)
{
    allgather_fini(g);
    *g = (struct allgather){.gen = gen,
                            .nnodes = nnodes,
                            .missing = nnodes,
                            .value = xcalloc((size_t)nnodes, sizeof(*g->value)),
                            .has = xcalloc((size_t)nnodes, sizeof(*g->has))};
}

enum allgather_step allgather_take(struct allgather *g, struct generation gen, int nnodes,
                                   const struct rdzv_gather *m)
{
    if (!generation_equal(m->gen, gen) || m->node < 0 || m->node >= nnodes)
        return ALLGATHER_STALE;
    if (!generation_equal(g->gen, gen) || g->nnodes != nnodes)
        begin_round(g, gen, nnodes);
    if (m->number + 1 == g->number)
        return ALLGATHER_AGAIN;
    if (m->number != g->number)
        return ALLGATHER_STALE;
    if (g->has[m->node]) /* repeated on a new connection */
        return ALLGATHER_WAITS;
    buf_put(&g->value[m->node], m->value, m->len);
    g->has[m->node] = true;
    return --g->missing > 0 ? ALLGATHER_WAITS : ALLGATHER_COMPLETE;
}

void allgather_encode(struct allgather *g, struct buf *b)
{
    assert(g->missing == 0 && g->nnodes > 0);
    rdzv_put_gathered(b, g->gen, g->number, g->value, g->nnodes);
    for (int i = 0; i < g->nnodes; i++) {
        buf_fini(&g->value[i]);
        g->has[i] = false;
    }
    g->missing = g->nnodes;
    g->number++;
}
