/* broadcast.h: messages of the coordinator that are the same for all nodes: encoded once, shared by
 * the links. An object that is all zero has encoded nothing. */
#ifndef RENDEZVOUS_WIRE_BROADCAST_H
#define RENDEZVOUS_WIRE_BROADCAST_H

#include "rendezvous/wire/link.h"

struct broadcast {
    struct shared_buf *table, *peers, *report, *notice; /* NULL: not encoded yet */
    int npeers;                                         /* in `peers` */
    char notice_text[RDZV_NOTICE_MAX];
};

/* A new round has another table and other peers. */
void broadcast_new_round(struct broadcast *b);
void broadcast_fini(struct broadcast *b);

void broadcast_table(struct broadcast *b, struct link *l, const struct rank_table *t);
/* ran: peers of the round before, which are sent first; NULL: none. */
void broadcast_peers(struct broadcast *b, struct link *l, const struct rdzv_peers *ran,
                     const struct rdzv_peers *peers);
void broadcast_report(struct broadcast *b, struct link *l, const struct rdzv_result *result);
void broadcast_notice(struct broadcast *b, struct link *l, const char *text);

#endif
