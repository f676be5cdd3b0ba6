/* request_log.h: the requests that went down the tree in a round, with their numbers: each launcher
 * keeps the newest, for a launcher that comes to it later. A log that is all zero is empty. */
#ifndef RENDEZVOUS_WIRE_REQUEST_LOG_H
#define RENDEZVOUS_WIRE_REQUEST_LOG_H

#include "rendezvous/wire/link.h"

#define REQUEST_LOG_MAX 64

struct request_log {
    uint32_t last; /* the number of the newest request; numbers count from 1 */
    struct shared_buf *frame[REQUEST_LOG_MAX];
};

/* The frame with the number last + 1 or a later one; adds a reference. */
void request_log_add(struct request_log *t, uint32_t number, struct shared_buf *frame);
/* Sends the requests behind this number. */
void request_log_send(const struct request_log *t, struct link *l, uint32_t number);
void request_log_clear(struct request_log *t);

#endif
