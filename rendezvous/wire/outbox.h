/* outbox.h: the output that a node has to show on the console of the job (--console job), until the
 * launcher of the coordinator has it. Frames are numbered; a new connection gets again what was not
 * taken. An outbox that is all zero but for init is empty. */
#ifndef RENDEZVOUS_WIRE_OUTBOX_H
#define RENDEZVOUS_WIRE_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/list.h"
#include "rendezvous/wire/link.h"

/* Bytes under way from a node, so that those of all nodes together have a limit. */
#define OUTBOX_ALL        (64u << 20)
#define OUTBOX_WINDOW_MIN (64u << 10)
#define OUTBOX_WINDOW_MAX (1u << 20)

struct outbox {
    struct list_node frames; /* frames in their order */
    struct list_node *sent;  /* the last frame that was sent on this connection; the head: none */
    uint64_t last;           /* the number of the newest frame; numbers count from 1 */
    size_t under_way, window;
};

void outbox_init(struct outbox *o);
void outbox_fini(struct outbox *o);
void outbox_set_nodes(struct outbox *o, int nnodes); /* of the job: the window */

void outbox_add(struct outbox *o, struct buf *output); /* takes the content */
/* Sends what fits into the window; all: everything. */
void outbox_send(struct outbox *o, struct link *l, bool all);
/* Drops all frames up to this number, which have been taken. Returns their bytes of output. */
size_t outbox_taken(struct outbox *o, uint64_t number);
/* The connection has ended: frames that were not taken count as not sent. */
void outbox_again(struct outbox *o);
/* Takes out the first output that has not been sent; empty: there is none. The caller frees. */
struct buf outbox_take(struct outbox *o);

#endif
