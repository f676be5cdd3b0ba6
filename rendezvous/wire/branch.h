/* branch.h: a node's place in the tree of the launchers (tree.h): the link to its parent, the links
 * of its children, and what goes up and down. A round with at most as many nodes as the tree is
 * wide has no tree, and nothing here does anything.
 *
 *     BRANCH -> connect to the parent, CHILD -> PEERS, TABLE, TOLD come down and are passed on
 *                                            -> ANSWERS go up, merged with those of the children
 *
 *   the parent cannot be reached, is another      DIRECT to the coordinator, which sends what is
 *   launcher, or is lost; PEERS or TABLE do       missing, and later requests, on this node's own
 *   not come within BRANCH_WAIT_MS                connection until the next round
 *   a child is lost                               it sends DIRECT; its answers are not waited for
 *   a child comes before this node's own BRANCH   it gets everything when that has come
 *   an answer is late                             it goes up alone
 *
 * PEERS and TABLE must reach the rules of the member before the view that they belong to, which
 * always comes from the coordinator. So the member keeps such a view back while branch_awaits().
 * Whatever decides about lives stays on the coordinator's connections: heartbeats, statuses with
 * their failures, views, the result. */
#ifndef RENDEZVOUS_WIRE_BRANCH_H
#define RENDEZVOUS_WIRE_BRANCH_H

#include "core/uvx.h"
#include "rendezvous/rules/tree.h"
#include "rendezvous/wire/auth.h"
#include "rendezvous/wire/link.h"

#define BRANCH_WAIT_MS     1000 /* for PEERS, TABLE, the parent's answer to a connection */
#define BRANCH_ANSWERS_MS  200  /* from the first answer to a request until they go up */
#define BRANCH_CHILDREN    1024
#define BRANCH_REQUESTS_MS 5000 /* for late answers */

struct branch;

struct branch_events {
    void *arg;
    /* PEERS or TABLE came from the parent. */
    void (*on_message)(void *arg, uint8_t type, struct rd body);
    void (*on_request)(void *arg, const struct rdzv_request *r);
    /* Sends a frame to the coordinator; takes the content. */
    void (*on_send)(void *arg, struct buf *frame);
    merge_fn *merge; /* NULL: answers are not merged */
    void *merge_arg;
};

/* Borrows the hub and run_id; the handles are the scope's to close. */
struct branch *branch_new(struct link_hub *hub, struct uvx_scope *scope, const char *run_id,
                          const struct node_id *id, const struct branch_events *events);
/* Ends all that is under way. The links are the hub's to close. */
void branch_stop(struct branch *b);
void branch_free(struct branch *b); /* the scope is closed; NULL is allowed */

/* A BRANCH of the coordinator. auth: what a parent has to prove; NULL: nothing. */
void branch_move(struct branch *b, const struct rdzv_branch *place, struct auth *auth);
/* Whether the view has to wait for a message that comes from the parent. To be asked again after
 * every message, and whenever a newer view has come instead. */
bool branch_awaits(struct branch *b, const struct rdzv_view *v);
/* A PEERS, TABLE or TOLD of the coordinator. False: it is malformed. */
bool branch_pass(struct branch *b, uint8_t type, struct rd body);
/* Takes this node's own answer to a request. False: the caller has to send it. */
bool branch_answer(struct branch *b, const struct rdzv_answer *a);

/* Takes a link whose first frame was a CHILD. False: it is malformed, or meant for another
 * launcher. */
bool branch_adopt(struct branch *b, struct link *l, struct rd body);

#endif
