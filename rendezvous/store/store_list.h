/* store_list.h: intrusive circular lists, for the store's own use: waiters of a key, connections.
 * A node that is in no list points to itself, so taking it out twice is harmless. */
#ifndef RENDEZVOUS_STORE_STORE_LIST_H
#define RENDEZVOUS_STORE_STORE_LIST_H

#include <stdbool.h>

struct store_node {
    struct store_node *next, *prev;
};

static inline void node_init(struct store_node *n)
{
    n->next = n->prev = n;
}

/* Of a list's head: the list has no member. Of a member: it is in no list. */
static inline bool node_alone(const struct store_node *n)
{
    return n->next == n;
}

static inline void node_append(struct store_node *head, struct store_node *n)
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}

static inline void node_remove(struct store_node *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    node_init(n);
}

#endif
