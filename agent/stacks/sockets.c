#include "agent/stacks/sockets.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"

#define LIST_MS      2000 /* from one list of a worker's descriptors to the next */
#define BATCH        32   /* sockets that are asked for at once */
#define MS           UINT64_C(1000000)
#define ESTABLISHED  1 /* a bit of idiag_states, as TCP_ESTABLISHED numbers it */
#define ANSWER_BYTES 32768

struct owner {
    uint32_t inode;
    int local_rank;
    uint8_t family; /* 0: the kernel has not listed the socket, or it does not count */
    struct inet_diag_sockid id;
};

struct sockets {
    int fd; /* netlink; -1: the kernel cannot tell */
    int nproc;
    int *pids;
    struct sockets_traffic *traffic;
    struct owner *owners; /* sorted by inode */
    size_t n, cap;
    uint64_t asked_ns, listed_ns;
};

struct sockets *sockets_new(int nproc)
{
    struct sockets *s = xcalloc(1, sizeof(*s));
    s->nproc = nproc;
    s->pids = xcalloc((size_t)nproc, sizeof(*s->pids));
    s->traffic = xcalloc((size_t)nproc, sizeof(*s->traffic));
    s->fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
    return s;
}

void sockets_free(struct sockets *s)
{
    if (!s)
        return;
    close_fd(&s->fd);
    free(s->pids);
    free(s->traffic);
    free(s->owners);
    free(s);
}

/* -------------------------------------------------------------------------- owners of sockets */

static int compare_owners(const void *a, const void *b)
{
    uint32_t x = ((const struct owner *)a)->inode, y = ((const struct owner *)b)->inode;
    return x < y ? -1 : x > y;
}

static void list_descriptors(struct sockets *s, int local_rank)
{
    char path[32], link[64];
    unsigned inode;
    snprintf(path, sizeof(path), "/proc/%d/fd", s->pids[local_rank]);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        ssize_t n = readlinkat(dirfd(d), e->d_name, link, sizeof(link) - 1);
        link[n > 0 ? n : 0] = '\0';
        if (sscanf(link, "socket:[%u]", &inode) != 1)
            continue;
        if (s->n == s->cap) {
            s->cap = s->cap ? 2 * s->cap : 64;
            s->owners = xrealloc(s->owners, s->cap * sizeof(*s->owners));
        }
        s->owners[s->n++] = (struct owner){.inode = inode, .local_rank = local_rank};
    }
    if (d)
        closedir(d);
}

static void list_all(struct sockets *s)
{
    s->n = 0;
    for (int i = 0; i < s->nproc; i++) {
        if (s->pids[i])
            list_descriptors(s, i);
    }
    if (s->n)
        qsort(s->owners, s->n, sizeof(*s->owners), compare_owners);
}

/* ---------------------------------------------------------------------- traffic of sockets */

/* The later one of a time and of what was so many milliseconds ago. */
static uint64_t later(uint64_t at, uint64_t now, uint64_t ago_ms)
{
    return now > ago_ms * MS && now - ago_ms * MS > at ? now - ago_ms * MS : at;
}

static void take_socket(struct sockets *s, const struct nlmsghdr *h, int store_port, uint64_t now)
{
    const struct inet_diag_msg *m = NLMSG_DATA(h);
    struct tcp_info info = {0};
    if (h->nlmsg_len < NLMSG_LENGTH(sizeof(*m)) || m->idiag_state != ESTABLISHED ||
        ntohs(m->id.idiag_sport) == store_port || ntohs(m->id.idiag_dport) == store_port)
        return;
    const struct owner key = {.inode = m->idiag_inode};
    struct owner *o = s->n ? bsearch(&key, s->owners, s->n, sizeof(key), compare_owners) : NULL;
    if (!o)
        return;
    o->family = m->idiag_family;
    o->id = m->id;
    size_t left = h->nlmsg_len - NLMSG_LENGTH(sizeof(*m));
    const struct rtattr *a = (const struct rtattr *)(m + 1);
    for (; RTA_OK(a, left); a = RTA_NEXT(a, left)) {
        if (a->rta_type == INET_DIAG_INFO)
            memcpy(&info, RTA_DATA(a),
                   RTA_PAYLOAD(a) < sizeof(info) ? RTA_PAYLOAD(a) : sizeof(info));
    }
    uint64_t bytes = info.tcpi_bytes_acked + info.tcpi_bytes_received;
    struct sockets_traffic *t = &s->traffic[o->local_rank];
    t->bytes += bytes;
    t->sent += info.tcpi_bytes_acked;
    if (bytes) {
        t->sent_ns = later(t->sent_ns, now, info.tcpi_last_data_sent);
        t->at_ns = later(t->at_ns, now, info.tcpi_last_data_sent);
        t->at_ns = later(t->at_ns, now, info.tcpi_last_data_recv);
    }
}

/* The end of a list, and what says that a socket is gone, have no data. */
static void take_answer(struct sockets *s, const void *p, size_t n, int store_port, uint64_t now)
{
    for (const struct nlmsghdr *h = p; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
        if (h->nlmsg_type == SOCK_DIAG_BY_FAMILY)
            take_socket(s, h, store_port, now);
    }
}

struct question {
    struct nlmsghdr h;
    struct inet_diag_req_v2 r;
};

/* The kernel answers while it is asked: the socket never has to be waited for. */
static void ask(struct sockets *s, const struct question *q, size_t n, int store_port, uint64_t now)
{
    _Alignas(struct nlmsghdr) uint8_t answer[ANSWER_BYTES];
    if (send(s->fd, q, n * sizeof(*q), 0) < 0)
        return;
    for (ssize_t got; (got = recv(s->fd, answer, sizeof(answer), 0)) > 0;)
        take_answer(s, answer, (size_t)got, store_port, now);
}

static struct question question(int family, unsigned flags)
{
    return (struct question){.h = {.nlmsg_len = sizeof(struct question),
                                   .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                                   .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags)},
                             .r = {.sdiag_family = (uint8_t)family,
                                   .sdiag_protocol = IPPROTO_TCP,
                                   .idiag_ext = 1 << (INET_DIAG_INFO - 1),
                                   .idiag_states = 1u << ESTABLISHED}};
}

/* The kernel goes through its whole table, which takes milliseconds. */
static void ask_for_all(struct sockets *s, int store_port, uint64_t now)
{
    struct question v4 = question(AF_INET, NLM_F_DUMP), v6 = question(AF_INET6, NLM_F_DUMP);
    ask(s, &v4, 1, store_port, now);
    ask(s, &v6, 1, store_port, now);
}

static void ask_for_each(struct sockets *s, int store_port, uint64_t now)
{
    struct question q[BATCH];
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->owners[i].family) {
            q[n] = question(s->owners[i].family, 0);
            q[n++].r.id = s->owners[i].id;
        }
        if (n == BATCH || (n && i + 1 == s->n)) {
            ask(s, q, n, store_port, now);
            n = 0;
        }
    }
}

struct sockets_traffic sockets_traffic(struct sockets *s, int local_rank, int pid, int store_port,
                                       uint64_t now_ns)
{
    if (s->fd < 0)
        return (struct sockets_traffic){0};
    if (s->pids[local_rank] != pid) {
        s->pids[local_rank] = pid;
        s->traffic[local_rank] = (struct sockets_traffic){0};
        s->listed_ns = 0; /* once for all workers that have started since the last answer */
    }
    if (now_ns >= s->asked_ns + SOCKETS_MS * MS) {
        bool list = now_ns >= s->listed_ns + LIST_MS * MS;
        s->asked_ns = now_ns;
        memset(s->traffic, 0, (size_t)s->nproc * sizeof(*s->traffic));
        if (list) {
            list_all(s);
            s->listed_ns = now_ns;
            ask_for_all(s, store_port, now_ns);
        } else {
            ask_for_each(s, store_port, now_ns);
        }
    }
    return s->traffic[local_rank];
}
