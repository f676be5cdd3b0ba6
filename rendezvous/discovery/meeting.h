/* meeting.h: where the launcher of the coordinator listens, and what workers get as MASTER_ADDR:
 * one decision for both, so that workers get an address that listens. */
#ifndef RENDEZVOUS_DISCOVERY_MEETING_H
#define RENDEZVOUS_DISCOVERY_MEETING_H

#include "rendezvous/wire/endpoint.h"

/* How the endpoint relates to this host. */
enum meeting_kind {
    MEETING_EVERY,         /* no name, 0.0.0.0 or :: */
    MEETING_LOOPBACK,      /* localhost, or an address of loopback */
    MEETING_LOOPBACK_NAME, /* another name, which resolves to loopback (Debian's 127.0.1.1) */
    MEETING_OWN,           /* an address of this host, or a name that resolves to one */
    MEETING_SEVERAL,       /* a name that resolves to several of this host's, loopback included */
    MEETING_ELSEWHERE,     /* nothing of this host, or a name that does not resolve */
    MEETING_KINDS
};

struct meeting {
    enum meeting_kind kind;
    struct endpoint_bind bind;
    /* Workers may be told the endpoint as the user has called it. Else the address that is listened
     * on or, when that is all of them, one that reaches it. */
    bool as_called;
};

/* host: as the user has called it, with the addresses that it resolves to. nodes: places for nodes
 * in the job. local: of a job on one node, the address of this host that it advertises in place of
 * loopback; NULL: none. */
void meeting_choose(struct meeting *m, const char *host, int port, const struct netaddr *addrs,
                    int naddrs, int nodes, const struct netaddr *local);

#endif
