/* rdzv_host.c: the listening socket of a launcher that hosts the coordinator. */
#include "rendezvous/rdzv_host.h"

#include <errno.h>

#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/rules/text.h"
#include "rendezvous/wire/auth.h"
#include "rendezvous/wire/endpoint.h"

#define PROBE_MS 300

/* Names the owner of the port, a coordinator by a probe and any other process through /proc, and
 * the remedy. */
static void add_port_owner(const struct rdzv_discovery *f, struct err *e)
{
    char owner[64];
    struct rdzv_identity id;
    struct netaddr a = f->bind.addr;
    if (!e)
        return;
    if (f->bind.any)
        netaddr_parse_ip(&a, "127.0.0.1", netaddr_port(&f->bind.addr));
    if (rdzv_probe(&a, PROBE_MS, NULL, &id) == 0)
        text_add(e->msg, sizeof(e->msg), " by the coordinator of job '%s' (%s, pid %d)", id.run_id,
                 id.host, id.pid);
    else if (endpoint_port_owner(netaddr_port(&a), owner, sizeof(owner)))
        text_add(e->msg, sizeof(e->msg), " by %s", owner);
    text_add(e->msg, sizeof(e->msg), "; choose another port with --master_port or --rdzv_endpoint");
}

/* Without a token (and without --insecure) a job on several nodes listens on a loopback address
 * only: elsewhere other users' launchers could not be told from the nodes. In a job on one node,
 * whoever comes from another host is refused. */
static bool may_listen(const struct rdzv_discovery *f, struct err *e)
{
    const struct auth *g = f->auth;
    char where[ADDR_STRLEN];
    if (g->open || g->secret_len || f->max_nodes == 1 ||
        (!f->bind.any && netaddr_is_loopback(&f->bind.addr)))
        return true;
    err_set(e, -EACCES,
            "no job token: not listening on %s, where strangers could join (%s). Make one with "
            "'dlaunch --new_token' and copy it to the other nodes, or use --insecure",
            f->bind.any ? "all addresses" : netaddr_ip(&f->bind.addr, where), g->source);
    return false;
}

int rdzv_host_listen(struct rdzv_discovery *f, struct err *e)
{
    struct err no_token = ERR_INIT;
    if (f->listen_fd && may_listen(f, &no_token)) {
        int given = f->listen_fd;
        f->listen_fd = 0;
        return given;
    }
    int fd = may_listen(f, &no_token) ? endpoint_listen(&f->bind, e)
                                      : err_set(e, -EACCES, "%s", no_token.msg);
    if (fd == -EADDRINUSE && f->must_host) {
        add_port_owner(f, e);
        return -EEXIST;
    }
    return fd;
}
