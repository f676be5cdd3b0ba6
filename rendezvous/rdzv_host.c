/* rdzv_host.c: a launcher that hosts the coordinator: it listens, and hands each connection to the
 * coordinator, the store or the relay, or turns it away. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "rendezvous/rdzv_rules.h"
#include "rendezvous/rdzv_impl.h"
#include "rendezvous/rules/text.h"

#define PROBE_MS 300

/* ---------------------------------------------------------------------------------- connections */

static void take_agent(struct rdzv *r, int fd, const struct netaddr *peer,
                       const struct tls_key *key)
{
    if (r->coordinator)
        coordinator_adopt(r->coordinator, fd, peer, key);
    else
        standby_adopt(r->standby, fd, key);
}

static void on_agent(void *arg, int fd, const struct netaddr *peer, bool tls)
{
    struct rdzv *r = arg;
    if (tls && (r->auth->open || auth_ready(r->auth, NULL) < 0)) {
        close(fd);
        endpoint_complain(r->endpoint, peer,
                          "a launcher that comes with a job token, while there is none here");
    } else if (tls) {
        take_agent(r, fd, peer, &r->auth->key);
    } else if (auth_admits_plain(r->auth, fd, peer)) {
        take_agent(r, fd, peer, NULL);
    } else if (auth_whose(fd, peer) == AUTH_GONE) {
        close(fd);
        log_verbose("a launcher of this host has closed before it was seen whose it is");
    } else if (!r->coordinator) {
        close(fd);
        endpoint_complain(r->endpoint, peer, "a launcher without the job token");
    } else {
        coordinator_turn_away(r->coordinator, fd, peer,
                              "this job is protected by a job token, and the launcher came without "
                              "one (--insecure, the name torchrun, or another user's)");
        endpoint_complain(r->endpoint, peer, "a launcher without the job token");
    }
}

static void on_wrong_key(void *arg, const struct netaddr *peer)
{
    struct rdzv *r = arg;
    endpoint_complain(r->endpoint, peer, "a launcher with another job token than this node's");
}

static void on_relay(void *arg, struct link *l)
{
    struct rdzv *r = arg;
    relay_adopt(r->relay, l);
}

bool rdzv_host_serve_store(void *arg, int fd)
{
    struct rdzv *r = arg;
    if (r->store)
        store_server_adopt(r->store, fd);
    return r->store != NULL;
}

bool rdzv_host_whereabouts(void *arg, struct netaddr *out)
{
    const struct rdzv *r = arg;
    *out = r->good;
    return r->have_good;
}

/* Whether the connection comes from a process of this user on this host or, without a relay, from
 * the address of another node of the job. */
static bool is_of_job(const struct rdzv *r, int fd, const struct netaddr *peer)
{
    enum auth_whose whose = auth_whose(fd, peer);
    return whose == AUTH_OWN ||
           (whose == AUTH_ELSEWHERE && !r->relay && coordinator_is_node(r->coordinator, peer));
}

/* PyTorch's clients cannot send a token: they are admitted by where they connect from. */
static void on_store(void *arg, int fd, const struct netaddr *peer)
{
    struct rdzv *r = arg;
    if (!r->store) { /* a standby: there may be a store later */
        close(fd);
        return;
    }
    if ((r->auth->open && !r->relay) || is_of_job(r, fd, peer)) {
        store_server_adopt(r->store, fd);
        return;
    }
    enum auth_whose whose = auth_whose(fd, peer);
    close(fd);
    if (whose == AUTH_GONE) {
        log_verbose(ENDPOINT_STORE_GONE);
        return;
    }
    endpoint_complain(r->endpoint, peer,
                      whose == AUTH_OTHERS ? "a client of the workers' store that is another user's"
                      : r->relay
                          ? "a client of the workers' store that did not come by its own node"
                          : "a client of the workers' store that is on no other node of this job");
}

/* The connection has sent nothing, as some clients of the store do at first. */
static void on_silent(void *arg, int fd, const struct netaddr *peer)
{
    struct rdzv *r = arg;
    if (r->store && is_of_job(r, fd, peer))
        store_server_adopt(r->store, fd);
    else
        close(fd);
}

static void on_new_round(void *arg)
{
    struct rdzv *r = arg;
    if (r->store)
        store_server_reset(r->store);
}

/* ------------------------------------------------------------------------------------ its parts */

void rdzv_host_coordinator(struct rdzv *r, const struct rdzv_electorate *electorate)
{
    const struct rdzv_config *c = &r->config;
    struct rdzv_rules rules = rdzv_config_rules(c);
    rules.bound_addr = endpoint_addr(r->endpoint);
    rules.port = endpoint_port(r->endpoint);
    rules.local_addr = r->local_addr;
    if (electorate)
        rules.master_addr = NULL;
    const struct coordinator_events events = {r,
                                              on_new_round,
                                              rdzv_coordinator_finished,
                                              on_wrong_key,
                                              r->relay ? on_relay : NULL,
                                              rdzv_redirect_received};
    r->coordinator = coordinator_new(&r->hub, r->beats, &rules, c->host, (int)getpid(), electorate,
                                     &events, r->events);
}

void rdzv_host_store(struct rdzv *r)
{
    const struct store_server_opts store = {.legacy_113 = r->config.legacy_store_113};
    if (r->config.agent_store && !r->store)
        r->store = store_server_new(r->loop, &store);
}

int rdzv_host_endpoint(struct rdzv *r, int listen_fd, struct err *e)
{
    const struct endpoint_events events = {r, on_agent, r->config.agent_store ? on_store : NULL,
                                           on_silent};
    return endpoint_open(&r->endpoint, r->loop, listen_fd, r->config.max_nodes + r->config.spares,
                         &events, e);
}

bool rdzv_host(struct rdzv *r, int listen_fd)
{
    struct err e = ERR_INIT;
    char where[HOST_MAX + 8];
    if (rdzv_host_endpoint(r, listen_fd, &e) < 0) {
        member_state_fail(member_state_of(r->member), e.msg);
        link_hub_wake(&r->hub);
        return false;
    }
    rdzv_host_store(r);
    rdzv_host_coordinator(r, NULL);
    const char *addr = endpoint_addr(r->endpoint);
    log_verbose("listening on %s", endpoint_format(where, sizeof(where), addr[0] ? addr : "*",
                                                   endpoint_port(r->endpoint)));
    return true;
}

/* ------------------------------------------------------------------------------------ listening */

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

/* Without a token (and without --insecure) only a loopback address is listened on: elsewhere other
 * users' launchers could not be told from the nodes. */
static bool may_listen(const struct rdzv_discovery *f, struct err *e)
{
    const struct auth *g = f->auth;
    char where[ADDR_STRLEN];
    if (g->open || g->secret_len || (!f->bind.any && netaddr_is_loopback(&f->bind.addr)))
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
