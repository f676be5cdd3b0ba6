#include "rendezvous/discovery/meeting.h"

enum where { THERE, ALL, LOCALHOST };

/* The decisions for a job on one node and for a job on several. In a job on one node no other host
 * could resolve the name to another address, or know an address that this host does not know. */
static const struct {
    enum where where;
    bool as_called;
} choices[MEETING_KINDS][2] = {
    [MEETING_EVERY] = {{ALL, false}, {ALL, false}},
    [MEETING_LOOPBACK] = {{THERE, true}, {THERE, true}},
    [MEETING_LOOPBACK_NAME] = {{THERE, true}, {ALL, true}},
    [MEETING_OWN] = {{THERE, true}, {THERE, true}},
    [MEETING_SEVERAL] = {{ALL, true}, {ALL, true}},
    [MEETING_ELSEWHERE] = {{LOCALHOST, false}, {ALL, true}},
};

static bool is_unspecified(const struct netaddr *a)
{
    return a->sa.sa_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr)
                                       : a->in.sin_addr.s_addr == htonl(INADDR_ANY);
}

/* *there: the address of this host to which the endpoint leads, when there is one only. */
static enum meeting_kind kind_of(const char *host, const struct netaddr *addrs, int naddrs,
                                 struct netaddr *there)
{
    int own = 0, loopback = 0;
    struct netaddr a;
    bool literal = netaddr_parse_ip(&a, host, 0);
    if (!host[0] || (literal && is_unspecified(&a)))
        return MEETING_EVERY;
    if (netaddr_names_loopback(host)) {
        netaddr_parse_ip(there, literal ? host : "127.0.0.1", 0);
        return MEETING_LOOPBACK;
    }
    if (literal) {
        *there = a;
        return netaddr_is_local(&a) ? MEETING_OWN : MEETING_ELSEWHERE;
    }
    for (int i = 0; i < naddrs; i++) {
        bool lo = netaddr_is_loopback(&addrs[i]);
        if (!lo && !netaddr_is_local(&addrs[i]))
            continue;
        if ((own || loopback) && netaddr_same_ip(&addrs[i], there))
            continue;
        *there = addrs[i];
        own += !lo;
        loopback += lo;
    }
    if (own + loopback > 1)
        return MEETING_SEVERAL;
    return own ? MEETING_OWN : loopback ? MEETING_LOOPBACK_NAME : MEETING_ELSEWHERE;
}

void meeting_choose(struct meeting *m, const char *host, int port, const struct netaddr *addrs,
                    int naddrs, int nodes, const struct netaddr *local)
{
    struct netaddr there = {0};
    bool one = nodes == 1;
    *m = (struct meeting){.kind = kind_of(host, addrs, naddrs, &there)};
    if (one && local && m->kind == MEETING_LOOPBACK && netaddr_is_local(local)) {
        m->kind = MEETING_OWN;
        there = *local;
    }
    enum where where = choices[m->kind][!one].where;
    m->as_called = choices[m->kind][!one].as_called;
    if (where == THERE)
        m->bind.addr = there;
    else
        netaddr_parse_ip(&m->bind.addr, where == ALL ? "::" : "127.0.0.1", 0);
    m->bind.any = where == ALL;
    netaddr_set_port(&m->bind.addr, port);
}
