#include "collectives/net/algo.h"

/* All ranks notify rank 0, which notifies all: the minimal number of messages. */
void build_barrier_flat(struct schedule *s, const struct coll *c)
{
    if (c->rank != 0) {
        schedule_send(s, 0, in(0), 0);
        schedule_end_step(s);
        schedule_recv(s, 0, out(0), 0);
        schedule_end_step(s);
        return;
    }
    for (int r = 1; r < c->size; r++)
        schedule_recv(s, r, out(0), 0);
    schedule_end_step(s);
    for (int r = 1; r < c->size; r++)
        schedule_send(s, r, in(0), 0);
    schedule_end_step(s);
}

/* Dissemination: in step k every rank notifies the rank 2^k to its right and waits for the one 2^k
 * to its left; after ceil(log2(n)) steps it has heard, directly or not, from all. Hensgen, Finkel
 * and Manber, "Two algorithms for barrier synchronization", 1988. */
void build_barrier_dissemination(struct schedule *s, const struct coll *c)
{
    for (int k = 1; k < c->size; k *= 2) {
        schedule_send(s, (c->rank + k) % c->size, in(0), 0);
        schedule_recv(s, (c->rank + c->size - k) % c->size, out(0), 0);
        schedule_end_step(s);
    }
}
