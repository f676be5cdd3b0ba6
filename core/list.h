/* list.h: intrusive circular lists, for the store's own use: waiters of a key, connections. A node
 * that is in no list points to itself, so taking a node out twice is harmless. */
#ifndef CORE_LIST_H
#define CORE_LIST_H

#include <stdbool.h>

struct list_node {
    struct list_node *next, *prev;
};

static inline void list_init(struct list_node *n)
{
    n->next = n->prev = n;
}

/* Whether the list of this head is empty, or this member is in no list. */
static inline bool list_alone(const struct list_node *n)
{
    return n->next == n;
}

static inline void list_append(struct list_node *head, struct list_node *n)
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}

static inline void list_remove(struct list_node *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}

#endif
