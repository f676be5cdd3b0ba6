/* broadcast.h: what the coordinator tells every node alike: encoded once, shared by the links. All
 * zero: nothing has been told. */
#ifndef RENDEZVOUS_WIRE_BROADCAST_H
#define RENDEZVOUS_WIRE_BROADCAST_H

#include "rendezvous/wire/link.h"

struct broadcast {
    struct shared_buf *table, *peers, *report, *notice; /* NULL: not encoded yet */
    int npeers;                                         /* in `peers` */
    char notice_text[RDZV_NOTICE_MAX];
};

/* The table and the peers are the round's, and other ones from here on. */
void broadcast_new_round(struct broadcast *b);
void broadcast_fini(struct broadcast *b);

void broadcast_table(struct broadcast *b, struct link *l, const struct rank_table *t);
/* ran: to go before them; NULL: none. */
void broadcast_peers(struct broadcast *b, struct link *l, const struct rdzv_peers *ran,
                     const struct rdzv_peers *peers);
void broadcast_report(struct broadcast *b, struct link *l, const struct rdzv_result *result);
void broadcast_notice(struct broadcast *b, struct link *l, const char *text);

#endif
