#include "rendezvous/wire/pending.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "core/mem.h"

static struct pending *of_node(struct list_node *node)
{
    return container_of(node, struct pending, node);
}

static intptr_t count_of(const struct pending_queue *q, const char *ip)
{
    return (intptr_t)map_get(&q->per_address, ip, strlen(ip));
}

static void pending_on_timer(uv_timer_t *timer)
{
    struct pending_queue *q = container_of(timer, struct pending_queue, timer);
    uint64_t now = uv_now(timer->loop);
    struct pending *p;
    while ((p = pending_first(q)) && p->deadline_ms <= now)
        q->drop(p, "it has sent nothing");
    if (p)
        uv_timer_start(timer, pending_on_timer, p->deadline_ms - now, 0);
}

void pending_init(struct pending_queue *q, uv_loop_t *loop, int max,
                  void (*drop)(struct pending *p, const char *why))
{
    assert(max > 0);
    uv_timer_init(loop, &q->timer);
    list_init(&q->peers);
    map_init(&q->per_address);
    q->n = 0;
    q->max = max;
    q->drop = drop;
}

void pending_fini(struct pending_queue *q)
{
    map_fini(&q->per_address, NULL);
}

void pending_add(struct pending_queue *q, struct pending *p, const struct netaddr *from)
{
    assert(!p->node.next && q->n <= q->max);
    void **count = NULL;
    if (from) {
        netaddr_ip(from, p->ip);
        count = map_put(&q->per_address, p->ip, strlen(p->ip));
    }
    if (count)
        *count = (void *)((intptr_t)*count + 1);
    else
        p->ip[0] = '\0';
    p->deadline_ms = uv_now(q->timer.loop) + PENDING_MS;
    list_append(&q->peers, &p->node);
    if (q->n++ == 0)
        uv_timer_start(&q->timer, pending_on_timer, PENDING_MS, 0);
}

void pending_remove(struct pending_queue *q, struct pending *p)
{
    assert(q->n > 0 && !list_alone(&p->node));
    list_remove(&p->node);
    q->n--;
    assert((q->n == 0) == list_alone(&q->peers));
    if (q->n == 0)
        uv_timer_stop(&q->timer);
    if (!p->ip[0])
        return;
    intptr_t count = count_of(q, p->ip);
    assert(count > 0);
    if (count > 1)
        *map_put(&q->per_address, p->ip, strlen(p->ip)) = (void *)(count - 1); /* is there */
    else
        map_remove(&q->per_address, p->ip, strlen(p->ip));
}

void pending_limit(struct pending_queue *q)
{
    if (q->n <= q->max)
        return;
    struct pending *victim = pending_first(q);
    for (struct list_node *i = q->peers.next; i != &q->peers; i = i->next) {
        if (of_node(i)->ip[0] && count_of(q, of_node(i)->ip) > PENDING_PER_ADDRESS) {
            victim = of_node(i);
            break;
        }
    }
    q->drop(victim, "too many connections send nothing");
    assert(q->n <= q->max);
}

intptr_t pending_from(const struct pending_queue *q, const struct netaddr *from)
{
    char ip[ADDR_STRLEN];
    return count_of(q, netaddr_ip(from, ip));
}

struct pending *pending_first(const struct pending_queue *q)
{
    return list_alone(&q->peers) ? NULL : of_node(q->peers.next);
}
