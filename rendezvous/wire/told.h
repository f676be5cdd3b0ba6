/* told.h: the requests that went down the tree in a round, with their numbers: each launcher keeps
 * the newest, for a launcher that comes to it later. A log that is all zero is empty. */
#ifndef RENDEZVOUS_WIRE_TOLD_H
#define RENDEZVOUS_WIRE_TOLD_H

#include "rendezvous/wire/link.h"

#define TOLD_MAX 64

struct told {
    uint32_t last; /* the number of the newest; they count from 1 */
    struct shared_buf *frame[TOLD_MAX];
};

/* The frame with the number last + 1 or a later one; adds a reference. */
void told_add(struct told *t, uint32_t number, struct shared_buf *frame);
/* Sends those behind this number. */
void told_send(const struct told *t, struct link *l, uint32_t number);
void told_clear(struct told *t);

#endif
