/* pending.h: the pending peers of a listener: connections that were accepted and have not yet sent
 * what identifies them. The endpoint, the coordinator and the standby have a queue each.
 *
 *   silent for PENDING_MS            dropped
 *   more than `max` of them          the oldest one of an address that has more than
 *                                    PENDING_PER_ADDRESS is dropped, so that one address cannot
 *                                    keep out another; if there is none, the oldest one of all */
#ifndef RENDEZVOUS_WIRE_PENDING_H
#define RENDEZVOUS_WIRE_PENDING_H

#include <uv.h>

#include "core/list.h"
#include "core/map.h"
#include "core/netaddr.h"

#define PENDING_MS          5000
#define PENDING_MAX(nodes)  (64 + 2 * (nodes))
#define PENDING_PER_ADDRESS 16

/* Embedded in the owner's record of the connection, zero at first. */
struct pending {
    struct list_node node; /* in the queue, oldest first */
    char ip[ADDR_STRLEN];  /* ""; the address does not count */
    uint64_t deadline_ms;  /* of the loop's clock */
};

struct pending_queue {
    uv_timer_t timer; /* the owner closes it */
    struct list_node peers;
    int n, max;
    struct map per_address; /* IP address -> how many, as intptr_t */
    /* Closes the connection and calls pending_remove(). */
    void (*drop)(struct pending *p, const char *why);
};

void pending_init(struct pending_queue *q, uv_loop_t *loop, int max,
                  void (*drop)(struct pending *p, const char *why));
void pending_fini(struct pending_queue *q);
/* from: NULL if the address does not count. */
void pending_add(struct pending_queue *q, struct pending *p, const struct netaddr *from);
void pending_remove(struct pending_queue *q, struct pending *p);
/* Drops one peer if there are more than `max`. */
void pending_limit(struct pending_queue *q);
/* Returns how many pending peers have this address. */
intptr_t pending_from(const struct pending_queue *q, const struct netaddr *from);
/* The oldest one; NULL: there is none. */
struct pending *pending_first(const struct pending_queue *q);

#endif
