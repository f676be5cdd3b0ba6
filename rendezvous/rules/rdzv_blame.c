#include "rendezvous/rules/rdzv_blame.h"

#include <string.h>

#define PAUSE_NS     1000000000u
#define PAUSE_MAX_NS 60000000000u

int rdzv_blame_would(const struct rdzv_blame *b, const struct failure *first, uint64_t lived_ns,
                     uint64_t at_once_ns)
{
    bool same = b->any && b->rank == first->rank && b->kind == first->kind &&
                b->code == first->exit_code && b->signal == first->signal;
    return lived_ns >= at_once_ns ? 0 : same ? b->alike + 1 : 1;
}

int rdzv_blame_failure(struct rdzv_blame *b, const struct failure *first, uint64_t lived_ns,
                       uint64_t at_once_ns)
{
    b->alike = rdzv_blame_would(b, first, lived_ns, at_once_ns);
    b->any = b->alike > 0;
    b->rank = first->rank;
    b->kind = first->kind;
    b->code = first->exit_code;
    b->signal = first->signal;
    return b->alike;
}

uint64_t rdzv_blame_pause(int alike)
{
    if (alike < RDZV_ALIKE_PAUSE)
        return 0;
    int doublings = alike - RDZV_ALIKE_PAUSE;
    return doublings >= 6 ? PAUSE_MAX_NS : (uint64_t)PAUSE_NS << doublings;
}

static bool same_place(const struct rdzv_blamed *p, const struct rdzv_node *n)
{
    return strcmp(p->host, n->hello.host) == 0 && strcmp(p->addr, n->peer.addr) == 0;
}

/* Its entry, or the one that gives way for it. */
static struct rdzv_blamed *entry_of(struct rdzv_blame *b, const struct rdzv_node *n)
{
    struct rdzv_blamed *oldest = &b->nodes[0];
    for (int i = 0; i < b->nnodes; i++) {
        struct rdzv_blamed *p = &b->nodes[i];
        if (node_id_equal(&p->id, &n->hello.id) || same_place(p, n))
            return p;
        if (p->last_ns < oldest->last_ns)
            oldest = p;
    }
    if (b->nnodes < RDZV_BLAMED)
        oldest = &b->nodes[b->nnodes++];
    *oldest = (struct rdzv_blamed){0};
    return oldest;
}

bool rdzv_blame_node(struct rdzv_blame *b, const struct rdzv_node *n, uint64_t now)
{
    struct rdzv_blamed *p = entry_of(b, n);
    if (now - p->last_ns > RDZV_BLAME_NS)
        p->count = 0;
    p->id = n->hello.id;
    strcpy(p->host, n->hello.host);
    strcpy(p->addr, n->peer.addr);
    p->last_ns = now;
    if (++p->count < RDZV_BLAME_MAX)
        return false;
    p->count = 0;
    p->until_ns = now + RDZV_LEFT_OUT_NS;
    return true;
}

uint64_t rdzv_blame_until(const struct rdzv_blame *b, const struct rdzv_node *n, bool alone,
                          uint64_t now)
{
    for (int i = 0; i < b->nnodes; i++) {
        const struct rdzv_blamed *p = &b->nodes[i];
        if (p->until_ns > now &&
            (node_id_equal(&p->id, &n->hello.id) || (alone && same_place(p, n))))
            return p->until_ns;
    }
    return 0;
}
