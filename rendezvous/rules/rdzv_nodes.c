#include "rendezvous/rules/rdzv_nodes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/text.h"

void rdzv_nodes_init(struct rdzv_nodes *s)
{
    map_init(&s->by_id);
}

static void free_node(struct rdzv_node *n)
{
    free(n->ports);
    free(n->orders);
    free(n->respawned);
    free(n);
}

void rdzv_nodes_fini(struct rdzv_nodes *s)
{
    for (int i = 0; i < s->n; i++)
        free_node(s->e[i]);
    map_fini(&s->by_id, NULL);
    free(s->e);
    free(s->by_rank);
}

/* Asserts that no count exceeds the number of the nodes that it may count. */
static void check_counts(const struct rdzv_nodes *s)
{
    assert(s->n >= 0 && s->n <= s->cap);
    assert(s->nready >= 0 && s->nready <= rdzv_nodes_count(s));
    assert(s->nbusy >= 0 && s->nbusy <= s->n);
    assert(s->nleaving >= 0 && s->nleaving <= rdzv_nodes_count(s));
    assert(s->nwitnesses >= 0);
}

static void claim_rank(struct rdzv_nodes *s, struct rdzv_node *n)
{
    int rank = n->hello.node_rank;
    if (rank < 0)
        return;
    if (rank >= s->cap_by_rank) {
        int cap = s->cap_by_rank ? s->cap_by_rank : 8;
        while (cap <= rank)
            cap *= 2;
        s->by_rank = xrealloc(s->by_rank, (size_t)cap * sizeof(struct rdzv_node *));
        memset(s->by_rank + s->cap_by_rank, 0,
               (size_t)(cap - s->cap_by_rank) * sizeof(struct rdzv_node *));
        s->cap_by_rank = cap;
    }
    s->by_rank[rank] = n;
}

struct rdzv_node *rdzv_nodes_add(struct rdzv_nodes *s, const struct rdzv_hello *h,
                                 const struct rdzv_peer *peer, uint32_t conn)
{
    void **value = map_put(&s->by_id, h->id.b, sizeof(h->id.b));
    if (!value)
        return NULL;
    struct rdzv_node *n = *value = xcalloc(1, sizeof(*n));
    n->hello = *h;
    n->peer = *peer;
    n->conn = conn;
    n->group_rank = n->prev_rank = -1;
    n->phase = MEMBER_STOPPING; /* a node is not ready before its first status */
    /* Nor without workers: if another coordinator started some, heartbeats renew their lease. */
    n->workers = h->seen_epoch != 0 && !rdzv_node_is_witness(n);
    s->nbusy += n->workers;
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 8;
        s->e = xrealloc(s->e, (size_t)s->cap * sizeof(struct rdzv_node *));
    }
    n->slot = s->n;
    s->e[s->n++] = n;
    s->nwitnesses += rdzv_node_is_witness(n);
    claim_rank(s, n);
    check_counts(s);
    return n;
}

void rdzv_nodes_remove(struct rdzv_nodes *s, struct rdzv_node *n)
{
    assert(n->slot < s->n && s->e[n->slot] == n);
    if (rdzv_nodes_holder(s, n->hello.node_rank) == n)
        s->by_rank[n->hello.node_rank] = NULL;
    s->nready -= n->ready;
    s->nbusy -= n->workers;
    if (rdzv_node_is_witness(n))
        s->nwitnesses--;
    else
        s->nleaving -= n->leaving;
    map_remove(&s->by_id, n->hello.id.b, sizeof(n->hello.id.b));
    struct rdzv_node *last = s->e[--s->n];
    s->e[n->slot] = last;
    last->slot = n->slot;
    free_node(n);
    check_counts(s);
}

struct rdzv_node *rdzv_nodes_find(const struct rdzv_nodes *s, const struct node_id *id)
{
    return map_get(&s->by_id, id->b, sizeof(id->b));
}

struct rdzv_node *rdzv_nodes_holder(const struct rdzv_nodes *s, int node_rank)
{
    return node_rank >= 0 && node_rank < s->cap_by_rank ? s->by_rank[node_rank] : NULL;
}

static bool is_ready(const struct rdzv_node *n)
{
    return n->conn != RDZV_NO_CONN && n->phase == MEMBER_IDLE && !n->workers && !n->leaving &&
           !rdzv_node_is_witness(n);
}

void rdzv_nodes_check(const struct rdzv_nodes *s)
{
    int ready = 0, busy = 0, leaving = 0, witnesses = 0;
    check_counts(s);
    for (int i = 0; i < s->n; i++) {
        const struct rdzv_node *n = s->e[i], *holder = rdzv_nodes_holder(s, n->hello.node_rank);
        bool witness = rdzv_node_is_witness(n);
        assert(n->slot == i && rdzv_nodes_find(s, &n->hello.id) == n);
        assert(n->hello.node_rank < 0 || holder);
        assert(n->ready == is_ready(n));
        ready += n->ready;
        busy += n->workers;
        leaving += n->leaving && !witness;
        witnesses += witness;
    }
    assert(s->nready == ready && s->nbusy == busy);
    assert(s->nleaving == leaving && s->nwitnesses == witnesses);
}

void rdzv_nodes_update_ready(struct rdzv_nodes *s, struct rdzv_node *n)
{
    bool ready = is_ready(n);
    s->nready += ready - n->ready;
    n->ready = ready;
}

void rdzv_nodes_set_workers(struct rdzv_nodes *s, struct rdzv_node *n, bool workers)
{
    s->nbusy += workers - n->workers;
    n->workers = workers;
}

void rdzv_nodes_set_leaving(struct rdzv_nodes *s, struct rdzv_node *n)
{
    s->nleaving += !n->leaving && !rdzv_node_is_witness(n);
    n->leaving = true;
}

const char *rdzv_node_name(const struct rdzv_node *n, char *out, size_t cap)
{
    text_set(out, cap, "%s", n->hello.host);
    if (n->peer.addr[0])
        text_add(out, cap, " (%s)", n->peer.addr);
    return out;
}
