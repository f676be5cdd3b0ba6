#include "rendezvous/rules/rdzv_crash_loop.h"

#include <string.h>

#define PAUSE_NS     1000000000u
#define PAUSE_MAX_NS 60000000000u

int rdzv_starts_would(const struct rdzv_starts *b, const struct failure *first, uint64_t lived_ns,
                      uint64_t at_once_ns)
{
    struct failure_likeness now = failure_likeness(first);
    bool same = b->alike > 0 && failure_likeness_equal(&b->last, &now);
    return lived_ns >= at_once_ns ? 0 : same ? b->alike + 1 : 1;
}

int rdzv_starts_failure(struct rdzv_starts *b, const struct failure *first, uint64_t lived_ns,
                        uint64_t at_once_ns)
{
    b->alike = rdzv_starts_would(b, first, lived_ns, at_once_ns);
    b->last = failure_likeness(first);
    return b->alike;
}

uint64_t rdzv_crash_loop_pause(int alike)
{
    if (alike < RDZV_ALIKE_PAUSE)
        return 0;
    int doublings = alike - RDZV_ALIKE_PAUSE;
    return doublings >= 6 ? PAUSE_MAX_NS : (uint64_t)PAUSE_NS << doublings;
}

static bool same_place(const struct rdzv_crash_loop_entry *p, const struct rdzv_node *n)
{
    return strcmp(p->host, n->hello.host) == 0 && strcmp(p->addr, n->peer.addr) == 0;
}

/* The entry of the node, or the oldest entry, which is replaced. */
static struct rdzv_crash_loop_entry *entry_of(struct rdzv_crash_loop *b, const struct rdzv_node *n)
{
    struct rdzv_crash_loop_entry *oldest = &b->nodes[0];
    for (int i = 0; i < b->nnodes; i++) {
        struct rdzv_crash_loop_entry *p = &b->nodes[i];
        if (node_id_equal(&p->id, &n->hello.id) || same_place(p, n))
            return p;
        if (p->last_ns < oldest->last_ns)
            oldest = p;
    }
    if (b->nnodes < RDZV_CRASH_LOOP_NODES)
        oldest = &b->nodes[b->nnodes++];
    *oldest = (struct rdzv_crash_loop_entry){0};
    return oldest;
}

static struct rdzv_crash_loop_entry *touch(struct rdzv_crash_loop *b, const struct rdzv_node *n,
                                           uint64_t now)
{
    struct rdzv_crash_loop_entry *p = entry_of(b, n);
    if (now - p->last_ns > RDZV_CRASH_LOOP_NS)
        p->count = 0;
    p->id = n->hello.id;
    strcpy(p->host, n->hello.host);
    strcpy(p->addr, n->peer.addr);
    p->last_ns = now;
    return p;
}

bool rdzv_crash_loop_is_common(struct rdzv_crash_loop *b, const struct rdzv_node *n,
                               const struct failure *f, bool elsewhere, uint64_t now)
{
    struct rdzv_crash_loop_entry *own = touch(b, n, now);
    bool common = elsewhere;
    own->has_failed = true;
    own->how = failure_likeness(f);
    for (int i = 0; i < b->nnodes; i++) {
        struct rdzv_crash_loop_entry *p = &b->nodes[i];
        if (p == own || !p->has_failed || now - p->last_ns > RDZV_CRASH_LOOP_NS ||
            !failure_likeness_equal(&p->how, &own->how))
            continue;
        p->count = 0;
        common = true;
    }
    if (common)
        own->count = 0;
    return common;
}

void rdzv_crash_loop_evict(struct rdzv_crash_loop *b, const struct rdzv_node *n, uint64_t now)
{
    struct rdzv_crash_loop_entry *p = touch(b, n, now);
    p->count = 0;
    p->until_ns = now + RDZV_LEFT_OUT_NS;
}

bool rdzv_crash_loop_node(struct rdzv_crash_loop *b, const struct rdzv_node *n, uint64_t now)
{
    struct rdzv_crash_loop_entry *p = touch(b, n, now);
    if (++p->count < RDZV_CRASH_LOOP_MAX)
        return false;
    p->count = 0;
    p->until_ns = now + RDZV_LEFT_OUT_NS;
    return true;
}

uint64_t rdzv_crash_loop_until(const struct rdzv_crash_loop *b, const struct rdzv_node *n,
                               bool alone, uint64_t now)
{
    for (int i = 0; i < b->nnodes; i++) {
        const struct rdzv_crash_loop_entry *p = &b->nodes[i];
        if (p->until_ns > now &&
            (node_id_equal(&p->id, &n->hello.id) || (alone && same_place(p, n))))
            return p->until_ns;
    }
    return 0;
}
