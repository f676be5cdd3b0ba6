#include "rendezvous/discovery/rdzv_name.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/discovery/rdzv_probe.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/rules/text.h"

#define ASK_MS 500 /* for an answer of one place */

static void name_open(struct rdzv_discovery *f, const struct rdzv_config *c)
{
    for (int i = 0; i <= c->nmore && i < RDZV_PLACES_MAX; i++) {
        f->places[i].host = xstrdup(i ? c->more[i - 1].host : c->endpoint_host);
        f->places[i].port = i ? c->more[i - 1].port : c->endpoint_port;
        f->nplaces++;
    }
    f->ask = f->nplaces > 1;
}

static void name_close(struct rdzv_discovery *f)
{
    for (int i = 0; i < f->nplaces; i++)
        free(f->places[i].host);
}

/* ---------------------------------------------------------------------------------------- names */

static bool name_quick(const struct rdzv_discovery *f)
{
    struct netaddr a;
    if ((f->local_addr && !f->have_local) || f->ask)
        return false;
    return !f->host[0] || netaddr_names_loopback(f->host) || netaddr_parse_ip(&a, f->host, 0);
}

/* The addresses of a place. Returns how many, or a negative errno with f->why. */
static int look_up(struct rdzv_discovery *f, const char *host, int port,
                   struct netaddr out[CONNECTOR_ADDRS_MAX])
{
    if (netaddr_parse_ip(&out[0], host, port))
        return 1;
    if (netaddr_names_loopback(host)) {
        netaddr_parse_ip(&out[0], "127.0.0.1", port);
        netaddr_parse_ip(&out[1], "::1", port);
        return 2;
    }
    return host[0] ? rdzv_discovery_resolve(host, port, out, CONNECTOR_ADDRS_MAX, f->why,
                                            sizeof(f->why))
                   : 0;
}

/* ------------------------------------------------------------------------- asking at the places */

static bool is_self(const struct rdzv_discovery *f, const struct rdzv_identity *id)
{
    return id->pid == (int)getpid() && strcmp(id->host, f->node_name) == 0;
}

/* Asks the listener there for the coordinator of this job. True: f->addrs are its addresses. */
static bool backend_ask(struct rdzv_discovery *f, const struct netaddr *a)
{
    struct rdzv_identity id;
    struct netaddr other;
    char ip[ADDR_STRLEN];
    if (rdzv_probe(a, ASK_MS, f->auth, &id) < 0)
        return false;
    if (is_self(f, &id) || strcmp(id.run_id, f->run_id) != 0 || id.finished)
        return false;
    f->naddrs = 1;
    f->addrs[0] = *a;
    if (!id.elsewhere)
        return true;
    f->wait |= id.follows;
    netaddr_rescope_like(id.addr, sizeof(id.addr), a);
    if (id.port == 0 || !netaddr_parse_ip(&other, id.addr, id.port))
        return false;
    /* A loopback address in the answer means the host that answers. */
    if (netaddr_is_loopback(&other))
        netaddr_parse_ip(&other, netaddr_ip(a, ip), id.port);
    f->addrs[0] = f->reported = other;
    return rdzv_probe(&other, ASK_MS, f->auth, &id) == 0 && !id.elsewhere && !id.finished &&
           strcmp(id.run_id, f->run_id) == 0;
}

/* Whether the endpoint is an address of this host. Every node with such an endpoint would host. */
static bool leads_here(const struct rdzv_discovery *f, const char *host, int port,
                       const struct netaddr *addrs, int naddrs, struct endpoint_bind *bind)
{
    struct meeting m;
    meeting_choose(&m, host, port, addrs, naddrs, f->max_nodes, NULL);
    *bind = m.bind;
    return m.kind != MEETING_ELSEWHERE && m.kind != MEETING_EVERY;
}

/* Asks the endpoints in turn: which of them is the coordinator, or knows the coordinator. A job
 * begins at the first endpoint, where this node's standby listens only if the job has begun. */
static void look_around(struct rdzv_discovery *f)
{
    struct netaddr addrs[CONNECTOR_ADDRS_MAX];
    struct endpoint_bind own[RDZV_PLACES_MAX];
    bool is_own[RDZV_PLACES_MAX] = {false};
    for (int i = 0; i < f->nplaces; i++) {
        int n = look_up(f, f->places[i].host, f->places[i].port, addrs);
        is_own[i] = n > 0 && leads_here(f, f->places[i].host, f->places[i].port, addrs, n, &own[i]);
        for (int k = 0; k < n && !f->found; k++)
            f->found = backend_ask(f, &addrs[k]);
    }
    f->nstandby_binds = 0;
    for (int i = 1; i < f->nplaces; i++) {
        if (is_own[i])
            f->standby_binds[f->nstandby_binds++] = own[i];
    }
    if (f->found && is_own[0])
        f->standby_binds[f->nstandby_binds++] = own[0];
}

static bool is_own_place(const struct rdzv_discovery *f, const struct netaddr *a)
{
    return netaddr_port(a) == netaddr_port(&f->own.addr) && netaddr_is_local(a) &&
           (f->own.any || netaddr_same_ip(a, &f->own.addr));
}

static void tell(struct rdzv_discovery *f, const struct netaddr *a,
                 const struct rdzv_elsewhere *where)
{
    struct rdzv_identity id;
    int rc = is_own_place(f, a) ? -EALREADY : rdzv_tell(a, ASK_MS, f->auth, where, &id);
    if (rc == -EACCES && auth_wants_tls(f->auth, a) && f->auth->have_key)
        f->wrong_key = *a;
    if (rc < 0)
        return;
    if (!id.elsewhere && !id.finished && !is_self(f, &id) && strcmp(id.run_id, f->run_id) == 0)
        f->split_brain = *a;
}

void rdzv_discovery_tell(struct rdzv_discovery *f)
{
    struct netaddr addrs[CONNECTOR_ADDRS_MAX];
    struct rdzv_elsewhere where = {.port = netaddr_port(&f->own.addr)};
    text_set(where.run_id, sizeof(where.run_id), "%s", f->run_id);
    text_set(where.addr, sizeof(where.addr), "%s", f->own_addr);
    f->split_brain.len = f->wrong_key.len = 0;
    for (int i = 0; i < f->nplaces && !atomic_load(&f->stop); i++) {
        int n = look_up(f, f->places[i].host, f->places[i].port, addrs);
        for (int k = 0; k < n && !atomic_load(&f->stop); k++)
            tell(f, &addrs[k], &where);
    }
}

static void name_look(struct rdzv_discovery *f)
{
    char where[ADDR_STRLEN + 8];
    f->naddrs = 0;
    f->found = f->wait = false;
    f->reported.len = 0;
    if (rdzv_discovery_resolve_local(f) < 0)
        return;
    if (f->ask)
        look_around(f);
    if (f->found)
        return;
    int n = look_up(f, f->host, f->port, f->addrs);
    f->naddrs = n > 0 ? n : 0;
    f->status = n < 0 ? n : 0;
    if (f->wait && f->reported.len)
        text_set(f->why, sizeof(f->why), "its nodes follow the one at %s, which does not answer",
                 netaddr_format(&f->reported, where, sizeof(where)));
    else if (f->wait)
        text_set(f->why, sizeof(f->why), "its nodes are about to choose a coordinator");
}

/* -------------------------------------------------------------------------------------- hosting */

/* Decides where this node hosts. The endpoint may be a name or an address that only the other hosts
 * know, or that does not exist yet: a line says so, and again while the job waits. */
static enum rdzv_role host_here(struct rdzv_discovery *f)
{
    struct meeting m;
    bool advertises = f->have_local && !f->ops->tells_endpoint;
    meeting_choose(&m, f->host, f->port, f->addrs, f->naddrs, f->max_nodes,
                   advertises ? &f->local : NULL);
    f->bind = m.bind;
    f->as_called = m.as_called;
    char was[ERR_MSG_MAX];
    text_set(was, sizeof(was), "%s", f->doubt);
    f->doubt[0] = '\0';
    if (m.kind == MEETING_ELSEWHERE && f->status < 0)
        text_set(f->doubt, sizeof(f->doubt), "%s", f->why);
    else if (m.kind == MEETING_ELSEWHERE)
        text_set(f->doubt, sizeof(f->doubt), "%s is no address of this host", f->host);
    if (f->doubt[0] && strcmp(f->doubt, was) != 0)
        text_set(f->note, sizeof(f->note), "%s: %s", f->doubt,
                 f->max_nodes == 1 ? "this job on one node uses 127.0.0.1"
                 : f->status < 0   ? "listening on all addresses of this host"
                                   : "listening on all of its own");
    return RDZV_ROLE_HOST;
}

/* The node that has the address and can listen on the port hosts the coordinator. */
static enum rdzv_role find_out(struct rdzv_discovery *f)
{
    struct endpoint_bind unused;
    if (f->status < 0)
        return RDZV_ROLE_RETRY;
    return leads_here(f, f->host, f->port, f->addrs, f->naddrs, &unused) ? host_here(f)
                                                                         : RDZV_ROLE_JOIN;
}

/* is_host: whether this node hosts at first; -1: unknown. */
static enum rdzv_role decide(struct rdzv_discovery *f, int is_host)
{
    if (f->local_addr && !f->have_local)
        return RDZV_ROLE_RETRY;
    if (f->found)
        return RDZV_ROLE_JOIN;
    if (f->wait)
        return RDZV_ROLE_RETRY;
    f->must_host = is_host == 1 || f->max_nodes == 1;
    if (f->must_host)
        return host_here(f);
    if (is_host < 0)
        return find_out(f);
    return f->status < 0 ? RDZV_ROLE_RETRY : RDZV_ROLE_JOIN;
}

static int name_check(const struct rdzv_config *c, struct err *e)
{
    bool everywhere = c->is_host == 1; /* "": on all addresses */
    if (!c->endpoint_host || (!c->endpoint_host[0] && !everywhere))
        return err_set(e, -EINVAL, "the rendezvous needs an endpoint (--rdzv_endpoint HOST:PORT)");
    if (c->endpoint_port < 0 || c->endpoint_port > 65535)
        return err_set(e, -EINVAL, "port %d is not a port", c->endpoint_port);
    if (c->nmore && (c->backend != RDZV_C10D || c->nmore >= RDZV_PLACES_MAX))
        return err_set(e, -EINVAL, "a list of endpoints is for c10d, and of %d at most",
                       RDZV_PLACES_MAX);
    if (c->endpoint_port == 0 && c->max_nodes + c->spares > 1)
        return err_set(e, -EINVAL,
                       "port 0 is a port that no other node can know: %s needs one for %d nodes",
                       c->endpoint_host, c->max_nodes);
    return 0;
}

static enum rdzv_role static_decide(struct rdzv_discovery *f, struct err *e)
{
    (void)e;
    return decide(f, f->node_rank < 0 ? -1 : f->node_rank == 0);
}

static enum rdzv_role c10d_decide(struct rdzv_discovery *f, struct err *e)
{
    (void)e;
    return decide(f, f->is_host);
}

const struct rdzv_backend_ops rdzv_static_ops = {.name = "static",
                                                 .tells_endpoint = true,
                                                 .open = name_open,
                                                 .close = name_close,
                                                 .check = name_check,
                                                 .quick = name_quick,
                                                 .look = name_look,
                                                 .decide = static_decide};

const struct rdzv_backend_ops rdzv_c10d_ops = {.name = "c10d",
                                               .open = name_open,
                                               .close = name_close,
                                               .check = name_check,
                                               .quick = name_quick,
                                               .look = name_look,
                                               .decide = c10d_decide};
