/* member.h: this launcher's side of the rendezvous on the loop: member_state's rules between a
 * connection to the coordinator and the agent's callbacks. How the connection comes about is the
 * owner's (reach_driver.c). */
#ifndef RENDEZVOUS_MEMBER_H
#define RENDEZVOUS_MEMBER_H

#include "rendezvous/rdzv_callbacks.h"
#include "rendezvous/wire/beat.h"
#include "rendezvous/wire/branch.h"
#include "rendezvous/wire/link.h"
#include "rendezvous/rules/member_state.h"

struct member;

struct member_events {
    void *arg;
    /* The member wants a connection: the owner answers by member_attach() or member_unreachable(),
     * and is not called again before it has answered. */
    void (*on_wants_link)(void *arg);
    /* The coordinator has answered, and there is no connection for heartbeats: member_take_beat()
     * brings one. Comes again while there is none. */
    void (*on_wants_beat)(void *arg, const struct node_id *id, uint64_t dead_ns);
};

/* Borrows the hub and the beats (NULL: a node that has no others). The callbacks come from
 * member_advance(). */
struct member *member_new(struct link_hub *hub, struct beats *beats,
                          const struct member_rules *rules, const struct rdzv_callbacks *callbacks,
                          const struct member_events *events);

/* The rules, for what the agent has to say; then link_hub_wake(). */
struct member_state *member_state_of(struct member *m);

/* Takes a connected non-blocking socket to the coordinator; local: a socketpair's end. auth: how
 * the other side of a connection that is not local has to prove itself, ready; NULL: not at all;
 * borrowed until member_close(). */
void member_attach(struct member *m, int fd, bool local, struct auth *auth);
void member_unreachable(struct member *m, bool refused, const char *why);

/* Takes beats_add()'s number. */
void member_take_beat(struct member *m, int beat);
/* The heartbeats may have brought something. */
void member_look_at_beats(struct member *m);

/* The place of this node in the tree of the launchers. NULL: a job of one node. */
struct branch *member_branch(struct member *m);

/* Sends a request of this node's user. False: there is no connection. */
bool member_request(struct member *m, const struct rdzv_request *request);
void member_answer(struct member *m, const struct rdzv_answer *answer);

/* rdzv_output(). */
void member_output(struct member *m, struct buf *output);

/* Begins an all-gather over the nodes of the round that runs; on_gathered brings the values. One at
 * a time. Borrows for the call. */
void member_gather(struct member *m, const void *value, size_t len);

/* Carries out the actions of the rules; to be called before the hub flushes. */
void member_advance(struct member *m);

/* The link is the hub's to close. */
void member_close(struct member *m, void (*on_closed)(void *arg), void *arg);

#endif
