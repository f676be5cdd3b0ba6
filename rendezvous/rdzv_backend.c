/* The table of backends, and the two whose endpoint is host:port. */
#include "rendezvous/rdzv_backend.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "rendezvous/text.h"

/* ------------------------------------------------------------------------------------- finder */

struct rdzv_finder *rdzv_finder_new(const struct rdzv_config *c)
{
    struct rdzv_finder *f = xcalloc(1, sizeof(*f));
    f->ops = rdzv_backend_ops(c->backend);
    f->host = c->endpoint_host ? xstrdup(c->endpoint_host) : NULL;
    f->path = c->endpoint_path ? xstrdup(c->endpoint_path) : NULL;
    f->run_id = xstrdup(c->run_id);
    f->node_name = xstrdup(c->host);
    f->local_addr = c->local_addr ? xstrdup(c->local_addr) : NULL;
    f->port = c->endpoint_port;
    f->max_nodes = c->max_nodes + c->spares;
    f->node_rank = c->node_rank;
    f->is_host = c->is_host;
    f->lock_fd = -1;
    if (f->local_addr)
        f->have_local = netaddr_parse_ip(&f->local, f->local_addr, 0);
    return f;
}

void rdzv_finder_free(struct rdzv_finder *f)
{
    if (!f)
        return;
    if (f->lock_fd >= 0)
        close(f->lock_fd);
    free(f->host);
    free(f->path);
    free(f->run_id);
    free(f->node_name);
    free(f->local_addr);
    free(f);
}

/* ------------------------------------------------------------------------------------- names */

static bool is_localhost(const char *host)
{
    return strcasecmp(host, "localhost") == 0 || strcasecmp(host, "localhost.localdomain") == 0 ||
           strcasecmp(host, "ip6-localhost") == 0;
}

static void add_ip(struct rdzv_finder *f, const char *ip)
{
    if (netaddr_parse_ip(&f->addrs[f->naddrs], ip, f->port))
        f->naddrs++;
}

/* Resolves a name into at most max addresses. Returns how many, or a negative errno with a text. */
static int resolve(const char *host, int port, struct netaddr *out, int max, char *why, size_t cap)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG}, *list = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &list), n = 0;
    if (rc != 0) {
        text_set(why, cap, "cannot resolve %s: %s", host,
                 rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
        return -EADDRNOTAVAIL;
    }
    for (struct addrinfo *i = list; i && n < max; i = i->ai_next) {
        netaddr_from_sockaddr(&out[n], i->ai_addr);
        if (out[n].len == 0)
            continue;
        netaddr_set_port(&out[n], port);
        bool seen = false;
        for (int k = 0; k < n; k++)
            seen |= netaddr_same_ip(&out[k], &out[n]);
        n += !seen;
    }
    freeaddrinfo(list);
    if (n == 0)
        text_set(why, cap, "%s has no address", host);
    return n > 0 ? n : -EADDRNOTAVAIL;
}

static bool name_quick(const struct rdzv_finder *f)
{
    struct netaddr a;
    if (f->local_addr && !f->have_local)
        return false;
    return f->max_nodes == 1 || !f->host[0] || is_localhost(f->host) ||
           netaddr_parse_ip(&a, f->host, 0);
}

int rdzv_finder_resolve_local(struct rdzv_finder *f)
{
    f->status = 0;
    if (!f->local_addr || f->have_local)
        return 0;
    int n = resolve(f->local_addr, 0, &f->local, 1, f->why, sizeof(f->why));
    f->have_local = n > 0;
    if (n < 0)
        text_add(f->why, sizeof(f->why), " (--local_addr)");
    return f->status = n < 0 ? n : 0;
}

static void name_look(struct rdzv_finder *f)
{
    f->naddrs = 0;
    if (rdzv_finder_resolve_local(f) < 0)
        return;
    if (is_localhost(f->host) || f->max_nodes == 1) {
        add_ip(f, "127.0.0.1");
        add_ip(f, "::1");
        return;
    }
    add_ip(f, f->host);
    if (f->naddrs || !f->host[0])
        return;
    int n = resolve(f->host, f->port, f->addrs, CONNECTOR_ADDRS_MAX, f->why, sizeof(f->why));
    f->naddrs = n > 0 ? n : 0;
    f->status = n < 0 ? n : 0;
}

/* -------------------------------------------------------------------------------------- binding */

bool rdzv_choose_bind(const char *host, int port, const struct netaddr *addrs, int naddrs,
                      int max_nodes, struct endpoint_bind *out)
{
    struct netaddr a;
    *out = (struct endpoint_bind){0};
    if (netaddr_parse_ip(&a, host, port) && netaddr_is_loopback(&a)) {
        out->addr = a;
        return true;
    }
    if (max_nodes == 1 || is_localhost(host))
        return netaddr_parse_ip(&out->addr, "127.0.0.1", port);
    for (int i = 0; i < naddrs; i++) {
        if (!netaddr_is_loopback(&addrs[i]) && netaddr_is_local(&addrs[i])) {
            out->addr = addrs[i];
            return true;
        }
    }
    for (int i = 0; i < naddrs; i++) {
        if (netaddr_is_loopback(&addrs[i])) {
            out->any = true;
            return netaddr_parse_ip(&out->addr, "::", port);
        }
    }
    return false;
}

/* This node is the host, whatever the name says. */
static enum rdzv_role host_anyway(struct rdzv_finder *f)
{
    f->must_host = true;
    if (!rdzv_choose_bind(f->host, f->port, f->addrs, f->naddrs, f->max_nodes, &f->bind)) {
        f->bind.any = true; /* a name or address that only the others see, or not yet anybody */
        netaddr_parse_ip(&f->bind.addr, "::", f->port);
    }
    return RDZV_ROLE_HOST;
}

/* Whoever has the address and gets the port is the host. */
static enum rdzv_role find_out(struct rdzv_finder *f)
{
    if (f->status < 0)
        return RDZV_ROLE_RETRY;
    f->must_host = f->max_nodes == 1;
    return rdzv_choose_bind(f->host, f->port, f->addrs, f->naddrs, f->max_nodes, &f->bind)
               ? RDZV_ROLE_HOST
               : RDZV_ROLE_JOIN;
}

static enum rdzv_role join(const struct rdzv_finder *f)
{
    return f->status < 0 ? RDZV_ROLE_RETRY : RDZV_ROLE_JOIN;
}

static int name_check(const struct rdzv_config *c, struct err *e)
{
    bool everywhere = c->is_host == 1; /* "": on all addresses */
    if (!c->endpoint_host || (!c->endpoint_host[0] && !everywhere))
        return err_set(e, -EINVAL, "the rendezvous needs an endpoint (--rdzv_endpoint HOST:PORT)");
    if (c->endpoint_port < 0 || c->endpoint_port > 65535)
        return err_set(e, -EINVAL, "port %d is not a port", c->endpoint_port);
    if (c->endpoint_port == 0 && c->max_nodes + c->spares > 1)
        return err_set(e, -EINVAL,
                       "port 0 is a port that no other node can know: %s needs one for %d nodes",
                       c->endpoint_host, c->max_nodes);
    return 0;
}

static enum rdzv_role static_decide(struct rdzv_finder *f, struct err *e)
{
    (void)e;
    if (f->local_addr && !f->have_local)
        return RDZV_ROLE_RETRY;
    if (f->node_rank == 0 || f->max_nodes == 1)
        return host_anyway(f);
    return f->node_rank > 0 ? join(f) : find_out(f);
}

static enum rdzv_role c10d_decide(struct rdzv_finder *f, struct err *e)
{
    (void)e;
    if (f->local_addr && !f->have_local)
        return RDZV_ROLE_RETRY;
    if (f->is_host == 1 || f->max_nodes == 1)
        return host_anyway(f);
    return f->is_host == 0 ? join(f) : find_out(f);
}

static const struct rdzv_backend_ops static_ops = {.name = "static",
                                                   .check = name_check,
                                                   .quick = name_quick,
                                                   .look = name_look,
                                                   .decide = static_decide};

static const struct rdzv_backend_ops c10d_ops = {.name = "c10d",
                                                 .check = name_check,
                                                 .quick = name_quick,
                                                 .look = name_look,
                                                 .decide = c10d_decide};

const struct rdzv_backend_ops *rdzv_backend_ops(enum rdzv_backend backend)
{
    static const struct rdzv_backend_ops *const table[] = {
        [RDZV_STATIC] = &static_ops,
        [RDZV_C10D] = &c10d_ops,
        [RDZV_FILE] = &rdzv_file_ops,
    };
    return table[backend];
}
