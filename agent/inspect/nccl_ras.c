/* The happy path: nccl_ras_ask() sends three requests; the answers are "SERVER PROTOCOL n", "OK",
 * and a JSON object until the end of the connection, for nccl_ras_parse().
 *
 *   nobody listens, or not NCCL     nothing is known
 *   it knows no JSON                the answer is text, in which no object begins: the same
 *   it does not answer in time      the same: it waits for processes that do not answer */
#include "agent/inspect/nccl_ras.h"

#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/inspect/remote.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/netaddr.h"

enum { ANSWER_MAX = 64 << 20 };

/* ---------------------------------------------------------------------------------- the answer */

/* "AllReduce" -> "all_reduce". */
static void put_name(char *out, size_t cap, const char *func)
{
    size_t n = 0;
    for (const char *p = func; *p && n + 2 < cap; p++) {
        if (*p >= 'A' && *p <= 'Z' && n)
            out[n++] = '_';
        out[n++] = (char)(*p >= 'A' && *p <= 'Z' ? *p - 'A' + 'a' : *p);
    }
    out[n] = '\0';
}

static json_int_t launched(const json_t *rank)
{
    json_int_t sum = 0;
    const char *func;
    json_t *n;
    json_object_foreach(json_object_get(rank, "collective_counts"), func, n) sum +=
        json_integer_value(n);
    return sum;
}

/* The kind of operation of which `more` has launched more than `fewer`; "": of none. */
static void find_kind(const json_t *more, const json_t *fewer, char *out, size_t cap)
{
    const json_t *counts = json_object_get(fewer, "collective_counts");
    const char *func;
    json_t *n;
    *out = '\0';
    json_object_foreach(json_object_get(more, "collective_counts"), func, n)
    {
        if (json_integer_value(n) > json_integer_value(json_object_get(counts, func)) && !*out)
            put_name(out, cap, func);
    }
}

static bool is_here(const json_t *rank)
{
    struct netaddr a;
    const char *host = json_string_value(json_object_get(rank, "host"));
    return host && netaddr_parse_ip(&a, host, 0) && netaddr_is_local(&a);
}

/* A rank that waits in one communicator and is late in another is late because it waits. */
static void put_rank(struct nccl_ras *r, int pid, const struct sample_op *op)
{
    for (size_t i = 0; i < r->n; i++) {
        if (r->ranks[i].pid != pid)
            continue;
        if (op->open)
            r->ranks[i].op = *op;
        return;
    }
    if ((r->n & (r->n - 1)) == 0)
        r->ranks = xrealloc(r->ranks, (r->n ? 2 * r->n : 1) * sizeof(*r->ranks));
    r->ranks[r->n++] = (struct nccl_ras_rank){pid, *op};
}

static void take_communicator(struct nccl_ras *r, const json_t *c)
{
    const json_t *ranks = json_object_get(c, "ranks"), *most = NULL, *least = NULL, *rank;
    const char *hash = json_string_value(json_object_get(c, "hash"));
    size_t i;
    char kind[32];
    json_array_foreach(ranks, i, rank)
    {
        most = !most || launched(rank) > launched(most) ? rank : most;
        least = !least || launched(rank) < launched(least) ? rank : least;
    }
    if (!most || launched(most) == launched(least))
        return;
    find_kind(most, least, kind, sizeof(kind));
    json_array_foreach(ranks, i, rank)
    {
        json_int_t n = launched(rank);
        struct sample_op op = {.number = n > 0 ? (uint64_t)n : 0,
                               .group = hash ? strtoull(hash, NULL, 16) : 0,
                               .seq = n > 0 ? (uint64_t)n : 0,
                               .open = n == launched(most),
                               .reported = true};
        snprintf(op.text, sizeof(op.text), "%s in communicator %.24s", kind, hash ? hash : "?");
        if (is_here(rank))
            put_rank(r, (int)json_integer_value(json_object_get(rank, "pid")), &op);
    }
}

bool nccl_ras_parse(struct nccl_ras *r, const char *json, size_t len)
{
    *r = (struct nccl_ras){0};
    json_t *all = json_loadb(json, len, 0, NULL), *c;
    bool good = json_is_array(json_object_get(all, "communicators"));
    size_t i;
    json_array_foreach(json_object_get(all, "communicators"), i, c) take_communicator(r, c);
    json_decref(all);
    return good;
}

/* ------------------------------------------------------------------------------------- the talk */

static int ms_until(uint64_t end_ns)
{
    uint64_t now = mono_ns();
    return now < end_ns ? (int)((end_ns - now + 999999) / 1000000) : 0;
}

static int connect_to(const char *address, uint64_t end_ns)
{
    char host[HOST_MAX];
    int port, failed = 0;
    socklen_t len = sizeof(failed);
    struct netaddr a;
    struct err e;
    if (endpoint_parse(address ? address : "", NCCL_RAS_PORT, host, &port, &e) < 0 ||
        !netaddr_parse_ip(&a, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, port))
        return -1;
    _cleanup_fd_ int fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (fd < 0)
        return -1;
    if (connect(fd, &a.sa, a.len) < 0 &&
        (poll(&p, 1, ms_until(end_ns)) != 1 ||
         getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &len) < 0 || failed))
        return -1;
    return take_fd(&fd);
}

/* Everything until the other side has closed the connection. */
static bool read_all(int fd, struct buf *b, uint64_t end_ns)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (b->len < ANSWER_MAX && poll(&p, 1, ms_until(end_ns)) == 1) {
        xbuf_reserve(b, 65536);
        ssize_t n = recv(fd, b->data + b->len, 65536, 0);
        if (n <= 0)
            return n == 0;
        b->len += (size_t)n;
    }
    return false;
}

void nccl_ras_ask(struct nccl_ras *r, const char *address)
{
    static const char requests[] = "CLIENT PROTOCOL 2\nSET FORMAT json\nSTATUS\n";
    uint64_t end_ns = mono_ns() + NCCL_RAS_MS * UINT64_C(1000000);
    struct buf b = BUF_INIT;
    *r = (struct nccl_ras){0};
    _cleanup_fd_ int fd = connect_to(address, end_ns);
    if (fd < 0 || send(fd, requests, sizeof(requests) - 1, MSG_NOSIGNAL) < 0)
        return;
    bool good = read_all(fd, &b, end_ns);
    const char *text = (const char *)b.data, *json = good ? memchr(text, '{', b.len) : NULL;
    if (json && b.len > 16 && memcmp(text, "SERVER PROTOCOL ", 16) == 0)
        nccl_ras_parse(r, json, b.len - (size_t)(json - text));
    buf_fini(&b);
}

const struct sample_op *nccl_ras_of(const struct nccl_ras *r, int pid)
{
    for (size_t i = 0; i < r->n; i++) {
        if (r->ranks[i].pid == pid)
            return &r->ranks[i].op;
    }
    return NULL;
}

void nccl_ras_fini(struct nccl_ras *r)
{
    free(r->ranks);
    *r = (struct nccl_ras){0};
}

static bool look_at_map(void *found, const struct remote_map *m)
{
    const char *base = strrchr(m->path, '/');
    *(bool *)found |= base && strncmp(base, "/libnccl.so", 11) == 0;
    return !*(bool *)found;
}

bool nccl_ras_concerns(int pid)
{
    bool found = false;
    remote_maps(pid, look_at_map, &found);
    return found;
}
