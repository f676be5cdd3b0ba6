#include "rendezvous/rules/rdzv_peers.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

void rdzv_peers_fini(struct rdzv_peers *p)
{
    free(p->e);
    *p = (struct rdzv_peers){0};
}

void rdzv_peers_copy(struct rdzv_peers *to, const struct rdzv_peers *from)
{
    rdzv_peers_fini(to);
    *to = *from;
    to->e = xcalloc((size_t)from->n, sizeof(*to->e));
    if (from->n)
        memcpy(to->e, from->e, (size_t)from->n * sizeof(*to->e));
}

void rdzv_peers_move(struct rdzv_peers *to, struct rdzv_peers *from)
{
    rdzv_peers_fini(to);
    *to = *from;
    *from = (struct rdzv_peers){0};
}

bool rdzv_peers_may_elect(const struct rdzv_peers *p)
{
    int others = 0;
    for (int i = 0; i < p->n; i++)
        others += !p->e[i].host;
    return 2 * others > p->n;
}

int rdzv_peers_find(const struct rdzv_peers *p, const struct node_id *id)
{
    for (int i = 0; i < p->n; i++) {
        if (node_id_equal(&p->e[i].id, id))
            return i;
    }
    return -1;
}
