#include "rendezvous/rules/rdzv_quorum.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

void rdzv_quorum_set(struct rdzv_quorum *q, const struct rdzv_peers *list)
{
    rdzv_peers_copy(&q->list, list);
    free(q->dead);
    q->dead = xcalloc((size_t)list->n, sizeof(*q->dead));
}

void rdzv_quorum_grow(struct rdzv_quorum *q, const struct rdzv_peers *list)
{
    bool ran = q->list.ran, *dead = q->dead;
    int n = q->list.n;
    assert(list->n >= n && q->list.n == n);
    q->dead = NULL;
    rdzv_quorum_set(q, list);
    q->list.ran = ran;
    memcpy(q->dead, dead, (size_t)n * sizeof(*dead));
    free(dead);
}

void rdzv_quorum_fini(struct rdzv_quorum *q)
{
    rdzv_peers_fini(&q->list);
    free(q->dead);
    q->dead = NULL;
}

void rdzv_quorum_dead(struct rdzv_quorum *q, const struct node_id *id)
{
    int i = rdzv_peers_find(&q->list, id);
    if (i >= 0)
        q->dead[i] = true;
}

static bool is_present(const struct rdzv_peer_entry *e, const struct map *by_id, uint64_t since)
{
    const struct rdzv_node *n = map_get(by_id, e->id.b, sizeof(e->id.b));
    return n && n->conn != RDZV_NO_CONN && n->status_ns > 0 &&
           (n->peer.own || since == 0 || n->echo_ns > since);
}

int rdzv_quorum_present(const struct rdzv_quorum *q, const struct map *by_id, uint64_t since)
{
    int n = 0;
    for (int i = 0; i < q->list.n; i++)
        n += is_present(&q->list.e[i], by_id, since);
    return n;
}

bool rdzv_quorum_busy(const struct rdzv_quorum *q, const struct map *by_id)
{
    for (int i = 0; i < q->list.n; i++) {
        const struct rdzv_peer_entry *e = &q->list.e[i];
        const struct rdzv_node *n = map_get(by_id, e->id.b, sizeof(e->id.b));
        if (n && n->workers)
            return true;
    }
    return false;
}

static int newest_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

uint64_t rdzv_quorum_touch(const struct rdzv_quorum *q, const struct map *by_id)
{
    int need = q->list.n - q->list.n / 2, have = 0;
    uint64_t *touch = xcalloc((size_t)q->list.n + 1, sizeof(*touch));
    for (int i = 0; i < q->list.n; i++) {
        const struct rdzv_peer_entry *e = &q->list.e[i];
        const struct rdzv_node *n = map_get(by_id, e->id.b, sizeof(e->id.b));
        if (q->dead[i] || (n && n->peer.own && is_present(e, by_id, 0)))
            need--;
        else if (n && is_present(e, by_id, 0))
            touch[have++] = rdzv_node_touch(n);
    }
    assert(have <= q->list.n);
    qsort(touch, (size_t)have, sizeof(*touch), newest_first);
    uint64_t at = need <= 0 ? UINT64_MAX : need <= have ? touch[need - 1] : 0;
    free(touch);
    return at;
}

int rdzv_quorum_unknown(const struct rdzv_quorum *q, const struct map *by_id, uint64_t since)
{
    int n = 0;
    for (int i = 0; i < q->list.n; i++)
        n += !q->dead[i] && !is_present(&q->list.e[i], by_id, since);
    return n;
}

int rdzv_quorum_votes(const struct rdzv_quorum *q, const struct map *by_id, uint64_t since)
{
    int n = 0;
    for (int i = 0; i < q->list.n; i++)
        n += is_present(&q->list.e[i], by_id, since) || (q->dead[i] && !q->list.e[i].host);
    return n;
}
