/* store_table.h: the key table of the workers' store: what each command does. Pure: no system
 * calls, no clock, no loop.
 *
 * store_table_apply() carries out one request of one peer (a connection, as the table sees it). The
 * answer goes to the peer's `out`; a WAIT or BARRIER that is not yet fulfilled parks the peer
 * instead, and a later request of another peer appends the answer. Peers that were given something
 * by others are queued: the driver takes them with store_table_next_ready() and sends.
 *
 * Rules, as torch's own server has them:
 *   SET, APPEND, ADD, MULTI_SET and a COMPARE_SET that stores wake all who wait for the key; DELETE
 *   wakes nobody. A wait counts each of its keys down once, so a key that came and went has come.
 *   ADD keeps the sum as decimal text; a text that does not begin with a number ends the
 *   connection; the sum wraps around.
 *   COMPARE_SET answers with what the key holds afterwards; a missing key and a non-empty expected
 *   value: with the expected value, and stores nothing.
 *   GET of a missing key answers an empty value. A key may hold an empty value, and exists.
 *   Queues have names of their own beside the keys': WAIT and CHECK see both, DELETE, GETNUMKEYS
 *   and LIST_KEYS only keys. A push wakes one waiter, the one that has waited longest.
 *   BARRIER counts in the key's value and wakes everybody when `world` have come. The count stays.
 *   CANCEL_WAIT always answers, also when there is no wait any more.
 *   A peer has at most one wait: a WAIT or BARRIER forgets the one before. */
#ifndef RENDEZVOUS_STORE_STORE_TABLE_H
#define RENDEZVOUS_STORE_STORE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/map.h"
#include "core/list.h"
#include "rendezvous/store/store_out.h"
#include "rendezvous/store/store_proto.h"

/* A name counts while it is in the table: held, queued, waited for or watched. Bytes are those of
 * names, values, queue elements and waits. A peer whose request would exceed a limit is refused. */
#define STORE_NAMES_MAX   1000000u
#define STORE_BYTES_MAX   ((size_t)1 << 30)
#define STORE_WATCHES_MAX 131072u /* of one peer */
/* Limit of unread notifications: a peer that watches keys and does not read is then closed. */
#define STORE_UNREAD_MAX ((size_t)64 << 20)

struct store_table {
    struct map names; /* struct store_name */
    struct list_node ready;
    size_t keys;  /* names with a value */
    size_t bytes; /* the bytes that STORE_BYTES_MAX limits */
};

struct store_name;

/* A peer's interest in one name. */
struct store_wait {
    struct list_node link; /* in the name's list; not linked: the name exists */
    struct store_name *name;
    struct store_peer *peer;
};

struct store_peer {
    struct store_out out;
    struct list_node ready;      /* in the table's list */
    enum store_reason violation; /* reason for closing it, found while another peer was served */
    struct store_wait *waits;    /* of the parked WAIT or BARRIER; NULL: none */
    size_t waits_n, waits_cap, missing;
    struct store_wait one; /* a wait for one name needs no allocation */
    struct list_node watches;
    size_t watches_n;
};

void store_table_init(struct store_table *t);
/* Empties the table, which can be used again. No peer may be left. */
void store_table_fini(struct store_table *t);

void store_peer_init(struct store_peer *p);
/* Drops the peer's wait, watches and unsent answers. */
void store_peer_fini(struct store_table *t, struct store_peer *p);

/* STORE_OK, or the reason for closing the peer. Keeps no view of the request. store_session.h
 * handles VALIDATE and PING. */
enum store_reason store_table_apply(struct store_table *t, struct store_peer *p,
                                    const struct store_request *r);

/* Drops the parked wait, if there is one, without an answer. */
void store_table_forget_wait(struct store_table *t, struct store_peer *p);

/* Returns a peer that was woken or notified of a watched key, or whose `violation` was set; NULL:
 * none. */
struct store_peer *store_table_next_ready(struct store_table *t);

#endif
