#include "core/peer_uid.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/netaddr.h"

struct question {
    struct nlmsghdr head;
    struct inet_diag_req_v2 req;
};

/* The 16 bytes that inet_diag has for an address, IPv4 in the first four. */
static void put_addr(__be32 out[4], const struct netaddr *a)
{
    if (a->sa.sa_family == AF_INET6)
        memcpy(out, &a->in6.sin6_addr, 16);
    else
        memcpy(out, &a->in.sin_addr, 4);
}

/* The other end's socket is the one whose source is our peer, and whose destination is us. */
static void make_question(struct question *q, const struct netaddr *own, const struct netaddr *peer)
{
    *q = (struct question){
        .head = {.nlmsg_len = sizeof(*q),
                 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                 .nlmsg_flags = NLM_F_REQUEST},
        .req = {.sdiag_family = (uint8_t)own->sa.sa_family,
                .sdiag_protocol = IPPROTO_TCP,
                .idiag_states = ~0u},
    };
    q->req.id.idiag_sport = htons((uint16_t)netaddr_port(peer));
    q->req.id.idiag_dport = htons((uint16_t)netaddr_port(own));
    q->req.id.idiag_cookie[0] = q->req.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    if (own->sa.sa_family == AF_INET6) /* link-local: both ends are bound to the interface */
        q->req.id.idiag_if = own->in6.sin6_scope_id;
    put_addr(q->req.id.idiag_src, peer);
    put_addr(q->req.id.idiag_dst, own);
}

/* Whether a socket that the kernel reports with uid 0 and without an inode is root's. A socket
 * without an inode has been closed, or no process has accepted the connection; the kernel reports
 * uid 0 also where it does not know the user. Linux 6.17 and later report the user of a closed
 * socket until the other end has acknowledged all that was sent. */
static bool is_roots(const struct inet_diag_msg *m)
{
    struct utsname u;
    int major = 0, minor = 0;
    return m->idiag_state == TCP_FIN_WAIT1 && uname(&u) == 0 &&
           sscanf(u.release, "%d.%d", &major, &minor) == 2 &&
           (major > 6 || (major == 6 && minor >= 17));
}

static int peer_uid_ask(int nl, const struct question *q, uid_t *uid)
{
    union {
        struct nlmsghdr head;
        char bytes[1024];
    } a;
    if (send(nl, q, sizeof(*q), 0) != (ssize_t)sizeof(*q))
        return -errno;
    ssize_t n;
    do
        n = recv(nl, &a, sizeof(a), 0);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    if (!NLMSG_OK(&a.head, (size_t)n))
        return -EPROTO;
    if (a.head.nlmsg_type == NLMSG_ERROR &&
        a.head.nlmsg_len >= NLMSG_LENGTH(sizeof(struct nlmsgerr)))
        return ((struct nlmsgerr *)NLMSG_DATA(&a.head))->error;
    if (a.head.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
        a.head.nlmsg_len < NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
        return -EPROTO;
    const struct inet_diag_msg *m = NLMSG_DATA(&a.head);
    /* A listener answers for a port when there is no exact match. */
    if (m->id.idiag_sport != q->req.id.idiag_sport || m->id.idiag_dport != q->req.id.idiag_dport ||
        (m->idiag_inode == 0 && m->idiag_uid == 0 && !is_roots(m)))
        return -ENOENT;
    *uid = m->idiag_uid;
    return 0;
}

/* An IPv4 connection that came in through an IPv6 socket is an IPv4 socket at its other end. */
static void unmap(struct netaddr *a)
{
    struct netaddr v4 = {.len = sizeof(v4.in)};
    if (a->sa.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr))
        return;
    v4.in.sin_family = AF_INET;
    v4.in.sin_port = a->in6.sin6_port;
    memcpy(&v4.in.sin_addr, (const char *)&a->in6.sin6_addr + 12, 4);
    *a = v4;
}

/* Finds the user in /proc/net/tcp and tcp6, for containers in which the kernel's socket diagnosis
 * does not answer. These files write an address as 32-bit words in hexadecimal, each in the byte
 * order of the host. */
static int look_up(const struct question *q, uid_t *uid)
{
    bool v6 = q->req.sdiag_family == AF_INET6;
    char want[96], line[512], *at = want;
    FILE *f = fopen(v6 ? "/proc/net/tcp6" : "/proc/net/tcp", "re");
    if (!f)
        return -errno;
    for (int side = 0; side < 2; side++) {
        const __be32 *ip = side ? q->req.id.idiag_dst : q->req.id.idiag_src;
        for (int i = 0; i < (v6 ? 4 : 1); i++)
            at += sprintf(at, "%08X", ip[i]);
        at += sprintf(at, ":%04X%s", ntohs(side ? q->req.id.idiag_dport : q->req.id.idiag_sport),
                      side ? "" : " ");
    }
    int rc = -ENOENT;
    while (rc < 0 && fgets(line, sizeof(line), f)) {
        unsigned long owner, inode;
        const char *p = strstr(line, want);
        if (p &&
            sscanf(p + strlen(want), " %*x %*x:%*x %*x:%*x %*x %lu %*u %lu", &owner, &inode) == 2 &&
            (inode || owner)) {
            *uid = (uid_t)owner;
            rc = 0;
        }
    }
    fclose(f);
    return rc;
}

static int peer_uid_find(int nl, const struct question *q, uid_t *uid)
{
    int rc = nl >= 0 ? peer_uid_ask(nl, q, uid) : -EPERM;
    return rc == 0 || rc == -ENOENT ? rc : look_up(q, uid);
}

int peer_uid(int fd, uid_t *uid)
{
    struct netaddr own = {.len = sizeof(own.ss)}, peer = {.len = sizeof(peer.ss)};
    struct question q;
    if (getsockname(fd, &own.sa, &own.len) < 0 || getpeername(fd, &peer.sa, &peer.len) < 0)
        return -errno;
    _cleanup_fd_ int nl =
        fd_above_std(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
    unmap(&own);
    unmap(&peer);
    make_question(&q, &own, &peer);
    int rc = peer_uid_find(nl, &q, uid);
    if (rc < 0 && own.sa.sa_family == AF_INET) { /* a client's IPv6 socket may speak IPv4 too */
        struct netaddr own6, peer6;
        char ip[ADDR_STRLEN + 8] = "::ffff:";
        netaddr_ip(&own, ip + 7);
        if (!netaddr_parse_ip(&own6, ip, netaddr_port(&own)))
            return rc;
        netaddr_ip(&peer, ip + 7);
        if (!netaddr_parse_ip(&peer6, ip, netaddr_port(&peer)))
            return rc;
        make_question(&q, &own6, &peer6);
        rc = peer_uid_find(nl, &q, uid);
    }
    return rc;
}
