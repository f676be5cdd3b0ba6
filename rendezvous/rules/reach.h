/* reach.h: how a launcher reaches the coordinator, or becomes it. No I/O, no clock, no libuv: what
 * happened goes in with the time, what is to be done comes out.
 *
 *               wanted                          HOST                hosted
 *     REST -------------> PAUSE -----> LOOK -------------> HOST ------------> PUBLISH
 *      ^ ^                  |           | |                 |  |                 |
 *      | | called           |      JOIN | | RETRY     taken |  | hosted          | published
 *      | |                  v           v |                 |  |                 |
 *      | +--------------- CALL <--------+-|-----------------+  |                 |
 *      |                                  v                    v                 v
 *      +<---------------------------------+--------------------+-----------------+
 *
 *   REST      nothing to do: the member has a connection, or has just been told why it has none
 *   PAUSE     the next attempt has a time; the first one begins at once
 *   LOOK      the backend looks where the coordinator is, and decides (rdzv_backend.h)
 *   HOST      this node opens its port, and becomes the coordinator
 *   PUBLISH   the backend publishes where that is
 *   CALL      connecting
 *   OVER      final: the member has been told why, or everything closes
 *
 * From PAUSE an attempt goes where it is known to go: to HOST, when this node's port is open
 * already; to CALL, when the coordinator is known from the last connection or by a redirect, or
 * when the members of the last round elect another one and this node is not the first of them in
 * reach; to REST, when this node has the coordinator itself, or is that first one and stands for
 * election.
 *
 * What an attempt, the walk along the electors, or a redirect knows is in a struct of its own,
 * which is made new with it. */
#ifndef RENDEZVOUS_RULES_REACH_H
#define RENDEZVOUS_RULES_REACH_H

#include "core/netaddr.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/rules/rdzv_peers.h"

struct reach_rules {
    uint64_t dead_ns;
    bool publishes; /* the backend publishes where the coordinator is */
    bool several;   /* several endpoints are given: each look asks who is there */
};

/* The facts that the member knows (member_state.h) at the time of the event. */
struct reach_member {
    bool answered; /* a coordinator has answered on the newest connection */
    bool joined;   /* a coordinator has let this node in */
    bool begun;    /* this node has taken part in a round */
    bool electing;
    bool may_stand;                    /* this node may be a candidate */
    const struct rdzv_peers *electors; /* while electing */
    int self;                          /* this node in that list; -1 */
};

struct reach;

struct reach *reach_new(const struct reach_rules *rules);
void reach_free(struct reach *r);

/* The port at which this node hosts is open already: the first attempt hosts. */
void reach_bound(struct reach *r);
/* Whether this node listens for others, so that it can stand for election. */
void reach_listens(struct reach *r, bool listens);

/* ------------------------------------------------------------------------------------- events */

/* The member has no connection and wants one. chance: any number. */
void reach_wanted(struct reach *r, const struct reach_member *m, uint64_t chance, uint64_t now);
/* reach_deadline() has come. */
void reach_tick(struct reach *r, const struct reach_member *m, uint64_t now);

enum reach_found { REACH_FOUND_HOST, REACH_FOUND_JOIN, REACH_FOUND_RETRY, REACH_FOUND_FAIL };
/* The backend has decided. own_host: all addresses to join at are this host's. why: of RETRY and
 * FAIL. */
void reach_looked(struct reach *r, enum reach_found found, bool own_host, const char *why);

enum reach_hosted {
    REACH_HOSTS,
    REACH_HOSTS_AGAIN,
    REACH_TAKEN,
    REACH_HOSTS_LATER,
    REACH_CANNOT_HOST
};
/* Of REACH_ACT_HOST. REACH_HOSTS_AGAIN: at the port that was open already, nothing is published.
 * REACH_TAKEN: another process has the port, and is joined there. REACH_HOSTS_LATER: one has it
 * that is about to end. */
void reach_hosted(struct reach *r, enum reach_hosted how, bool own_host, const char *why);
/* Of REACH_ACT_PUBLISH; why: NULL, or the error. */
void reach_published(struct reach *r, const struct reach_member *m, const char *why, uint64_t now);

enum reach_called {
    REACH_CONNECTED,
    REACH_REFUSED,    /* the host answered that nothing listens */
    REACH_UNANSWERED, /* or another error */
    REACH_NO_TOKEN,   /* somebody listens, and there is no job token, which may still come */
    REACH_NO_CALL,    /* there is none, and none will come */
};
/* Of REACH_ACT_CALL. at: who was connected to, or NULL. */
void reach_called(struct reach *r, const struct reach_member *m, enum reach_called how,
                  const struct netaddr *at, const char *why, uint64_t now);

/* Another coordinator of this job, at `there`, has told the one of this node to go there. */
void reach_redirected(struct reach *r, const struct netaddr *there);
/* Everything closes: nothing more is to be done. */
void reach_close(struct reach *r);

/* Asserts what must hold after every event. For tests. */
void reach_check(const struct reach *r);

/* The time at which reach_tick() is due; UINT64_MAX: never. */
uint64_t reach_deadline(const struct reach *r);

/* ------------------------------------------------------------------------------------- actions */

enum reach_act {
    REACH_ACT_MOVE,        /* to: give the coordinator of this node up; the member goes there */
    REACH_ACT_LOOK,        /* ask, known: reach_looked() answers */
    REACH_ACT_HOST,        /* reach_hosted() answers */
    REACH_ACT_PUBLISH,     /* reach_published() answers */
    REACH_ACT_OWN,         /* connect the member to the coordinator of this process */
    REACH_ACT_STAND,       /* become a candidate; then connect the member to itself */
    REACH_ACT_CALL,        /* to, elector, or where the look has said: reach_called() answers */
    REACH_ACT_UNREACHABLE, /* tell the member: refused, why */
    REACH_ACT_FAIL,        /* tell the member that it is final: calling, why */
};

/* Texts are valid until the next call. */
struct reach_action {
    enum reach_act act;
    bool ask;     /* whoever listens at the endpoints is asked who, and where the coordinator is */
    bool known;   /* the addresses of the last look are good enough */
    bool has_to;  /* CALL: one address; else those of the look */
    bool elector; /* CALL: the member called may stand for election */
    struct netaddr to;
    bool refused;
    bool calling; /* FAIL: somebody was called */
    const char *why;
};

/* The next thing to do; false when there is none. */
bool reach_next(struct reach *r, struct reach_action *a, uint64_t now);

/* The address of the coordinator by the last connection or redirect; false: not known. */
bool reach_where(const struct reach *r, struct netaddr *out);
/* Whether this node has the coordinator, as far as these rules have said so. */
bool reach_hosts(const struct reach *r);

#endif
