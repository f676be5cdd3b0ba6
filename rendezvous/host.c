#include "rendezvous/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/log.h"
#include "core/mem.h"
#include "core/uvx.h"
#include "rendezvous/discovery/rdzv_probe.h"
#include "rendezvous/keeper.h"
#include "rendezvous/rdzv_rules.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/rules/text.h"
#include "rendezvous/store/store_server.h"
#include "rendezvous/wire/endpoint.h"
#include "rendezvous/wire/standby.h"

#define PROBE_MS 300

struct host {
    struct host_config config;
    struct relay *relay;
    struct endpoint *endpoint;       /* NULL: this launcher does not listen */
    struct standby *standby;         /* NULL until another node is the coordinator */
    struct coordinator *coordinator; /* NULL, like the next two, if another node has it */
    struct keeper *keeper;
    struct store_server *store;
    char local_addr[ADDR_STRLEN];
    char doubt[ERR_MSG_MAX]; /* rdzv_rules.doubt of the coordinator */

    unsigned open;          /* parts that are not closed yet, those given up earlier included */
    struct uvx_scope scope; /* calls back from the loop */
    bool closing;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

static void part_closed(void *arg);

/* -------------------------------------------------------------------------------- connections in
 */

static void take_agent(struct host *h, int fd, const struct netaddr *peer,
                       const struct tls_key *key)
{
    if (h->coordinator)
        coordinator_adopt(h->coordinator, fd, peer, key);
    else
        standby_adopt(h->standby, fd, key);
}

static void on_agent(void *arg, int fd, const struct netaddr *peer, bool tls)
{
    struct host *h = arg;
    struct auth *auth = h->config.auth;
    if (tls && (auth->open || auth_ready(auth, NULL) < 0)) {
        close(fd);
        endpoint_complain(h->endpoint, peer,
                          "a launcher that comes with a job token, while there is none here");
    } else if (tls) {
        take_agent(h, fd, peer, &auth->key);
    } else if (auth_admits_plain(auth, fd, peer)) {
        take_agent(h, fd, peer, NULL);
    } else if (auth_whose(fd, peer) == AUTH_GONE) {
        close(fd);
        log_verbose("a launcher of this host has closed before it was seen whose it is");
    } else if (!h->coordinator) {
        close(fd);
        endpoint_complain(h->endpoint, peer, "a launcher without the job token");
    } else {
        coordinator_turn_away(h->coordinator, fd, peer,
                              "this job is protected by a job token, and the launcher came without "
                              "one (--insecure, the name torchrun, or another user's)");
        endpoint_complain(h->endpoint, peer, "a launcher without the job token");
    }
}

static void on_wrong_key(void *arg, const struct netaddr *peer)
{
    struct host *h = arg;
    endpoint_complain(h->endpoint, peer, "a launcher with another job token than this node's");
}

static void on_relay(void *arg, struct link *l)
{
    struct host *h = arg;
    relay_adopt(h->relay, l);
}

/* Whether the connection comes from a process of this user on this host or, without a relay, from
 * the address of another node of the job. */
static bool is_of_job(const struct host *h, int fd, const struct netaddr *peer)
{
    enum auth_whose whose = auth_whose(fd, peer);
    return whose == AUTH_OWN ||
           (whose == AUTH_ELSEWHERE && !h->relay && coordinator_is_node(h->coordinator, peer));
}

/* PyTorch's clients cannot send a token: they are admitted by where they connect from. */
static void on_store(void *arg, int fd, const struct netaddr *peer)
{
    struct host *h = arg;
    if (!h->store) { /* a standby: there may be a store later */
        close(fd);
        return;
    }
    if ((h->config.auth->open && !h->relay) || is_of_job(h, fd, peer)) {
        store_server_adopt(h->store, fd);
        return;
    }
    enum auth_whose whose = auth_whose(fd, peer);
    close(fd);
    if (whose == AUTH_GONE) {
        log_verbose(ENDPOINT_STORE_GONE);
        return;
    }
    endpoint_complain(h->endpoint, peer,
                      whose == AUTH_OTHERS ? "a client of the workers' store that is another user's"
                      : h->relay
                          ? "a client of the workers' store that did not come by its own node"
                          : "a client of the workers' store that is on no other node of this job");
}

/* The connection has sent nothing, as some clients of the store do at first. */
static void on_silent(void *arg, int fd, const struct netaddr *peer)
{
    struct host *h = arg;
    if (h->store && is_of_job(h, fd, peer))
        store_server_adopt(h->store, fd);
    else
        close(fd);
}

bool host_serve_store(struct host *h, int fd)
{
    if (h->store)
        store_server_adopt(h->store, fd);
    return h->store != NULL;
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

int host_listen(struct rdzv_discovery *f, struct err *e)
{
    struct err no_token = ERR_INIT;
    if (f->listen_fd && may_listen(f, &no_token)) {
        int given = f->listen_fd;
        f->listen_fd = 0;
        return given;
    }
    int fd = may_listen(f, &no_token) ? endpoint_listen(&f->bind, e)
                                      : err_set(e, -EACCES, "%s", no_token.msg);
    if (fd != -EADDRINUSE || !f->must_host)
        return fd;
    bool ends = endpoint_port_is_let_go(netaddr_port(&f->bind.addr));
    if (ends && e)
        text_add(e->msg, sizeof(e->msg), " by a launcher that was killed");
    else if (!ends)
        add_port_owner(f, e);
    return ends ? -EBUSY : -EEXIST;
}

static int open_endpoint(struct host *h, int listen_fd, struct err *e)
{
    const struct rdzv_config *c = h->config.config;
    const struct endpoint_events events = {h, on_agent, c->agent_store ? on_store : NULL,
                                           on_silent};
    int rc = endpoint_open(&h->endpoint, h->config.loop, listen_fd, c->max_nodes + c->spares,
                           &events, e);
    h->open += rc == 0;
    return rc;
}

/* -------------------------------------------------------------------------------------- hosting */

static void on_new_round(void *arg)
{
    struct host *h = arg;
    if (h->store)
        store_server_reset(h->store);
}

static void on_finished(void *arg)
{
    struct host *h = arg;
    h->config.on_finished(h->config.arg);
}

static void on_elsewhere(void *arg, const struct netaddr *there, bool begun)
{
    struct host *h = arg;
    if (h->keeper)
        keeper_elsewhere(h->keeper, there, begun);
}

static void on_to_give_up(void *arg, const struct netaddr *there)
{
    struct host *h = arg;
    h->config.on_elsewhere(h->config.arg, there);
}

static bool show_output(void *arg, const void *output, size_t n)
{
    struct host *h = arg;
    return h->config.on_output(h->config.output_arg, output, n);
}

static void make_store(struct host *h)
{
    const struct store_server_opts opts = {.legacy_113 = h->config.config->legacy_store_113};
    if (!h->config.config->agent_store)
        return;
    h->store = store_server_new(h->config.loop, &opts);
    h->open++;
}

/* f: the discovery of a coordinator that is not elected; NULL: this node stands for election. */
static void make_coordinator(struct host *h, const struct rdzv_discovery *f,
                             const struct rdzv_electorate *electorate)
{
    const struct host_config *c = &h->config;
    struct rdzv_rules rules = rdzv_config_rules(c->config);
    rules.bound_addr = endpoint_addr(h->endpoint);
    rules.port = endpoint_port(h->endpoint);
    rules.local_addr = h->local_addr;
    if (!f || !f->as_called)
        rules.master_addr = NULL;
    text_set(h->doubt, sizeof(h->doubt), "%s", f ? f->doubt : "");
    rules.doubt = h->doubt;
    const struct coordinator_events events = {h,
                                              on_new_round,
                                              on_finished,
                                              on_wrong_key,
                                              h->relay ? on_relay : NULL,
                                              on_elsewhere,
                                              c->on_output ? show_output : NULL};
    make_store(h);
    h->coordinator = coordinator_new(c->hub, c->beats, &rules, c->config->host, (int)getpid(),
                                     electorate, &events, c->events);
    const struct keeper_config keeper = {.loop = c->loop,
                                         .config = c->config,
                                         .search = c->search,
                                         .coordinator = h->coordinator,
                                         .endpoint = h->endpoint,
                                         .local_addr = h->local_addr,
                                         .elected = electorate != NULL,
                                         .arg = h,
                                         .on_elsewhere = on_to_give_up};
    h->keeper = keeper_new(&keeper);
    h->open += 2;
}

int host_begin(struct host *h, int listen_fd, const struct rdzv_discovery *f, struct err *e)
{
    char where[HOST_MAX + 8];
    if (h->endpoint) { /* a standby's: this node was about to follow another coordinator */
        endpoint_close(h->endpoint, part_closed, h);
        h->endpoint = NULL;
        member_state_set_peer_port(member_state_of(h->config.member), 0);
    }
    int rc = open_endpoint(h, listen_fd, e);
    if (rc < 0)
        return rc;
    make_coordinator(h, f, NULL);
    const char *addr = endpoint_addr(h->endpoint);
    log_verbose("listening on %s", endpoint_format(where, sizeof(where), addr[0] ? addr : "*",
                                                   endpoint_port(h->endpoint)));
    return 0;
}

void host_begin_again(struct host *h, const struct rdzv_discovery *f)
{
    make_coordinator(h, f, NULL);
}

void host_stand(struct host *h, const struct rdzv_electorate *e)
{
    make_coordinator(h, NULL, e);
}

int host_connect(struct host *h)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return -errno;
    coordinator_adopt(h->coordinator, pair[0], NULL, NULL);
    return pair[1];
}

/* ------------------------------------------------------------------------------------ following */

static void make_standby(struct host *h)
{
    const struct rdzv_config *c = h->config.config;
    if (h->standby)
        return;
    h->standby = standby_new(h->config.hub, c->run_id, c->host, member_branch(h->config.member));
    h->open++;
}

static void announce_port(struct host *h)
{
    member_state_set_peer_port(member_state_of(h->config.member), endpoint_port(h->endpoint));
}

void host_open_standby(struct host *h, const struct rdzv_discovery *f,
                       const struct netaddr *coordinator)
{
    const struct rdzv_config *c = h->config.config;
    struct endpoint_bind b = {.any = !netaddr_is_loopback(coordinator)};
    struct err e = ERR_INIT;
    int fd = -1;
    bool tree = c->max_nodes > c->tree_width;
    if (h->endpoint || (!rdzv_config_may_elect(c) && !tree) || c->nproc == 0)
        return;
    if (auth_wants_tls(h->config.auth, coordinator) && auth_ready(h->config.auth, NULL) < 0)
        return; /* without a token a standby admits nobody */
    for (int i = 0; i < f->nstandby_binds && fd < 0; i++)
        fd = endpoint_listen(&f->standby_binds[i], NULL);
    bool at_endpoint = fd >= 0;
    netaddr_parse_ip(&b.addr, b.any ? "::" : "127.0.0.1", 0);
    if (fd < 0)
        fd = endpoint_listen(&b, &e);
    if (fd < 0 || open_endpoint(h, fd, &e) < 0) {
        log_warn("this node cannot become the coordinator: %s", e.msg);
        return;
    }
    make_standby(h);
    if (at_endpoint)
        standby_at_endpoint(h->standby);
    announce_port(h);
}

void host_follow(struct host *h, const char *addr, int port, bool follows)
{
    if (h->standby)
        standby_set_coordinator(h->standby, addr, port, follows);
}

/* Closes the coordinator, the store and the keeper. */
static void shed_coordinator(struct host *h)
{
    if (h->keeper)
        keeper_close(h->keeper, part_closed, h);
    if (h->coordinator)
        coordinator_close(h->coordinator, part_closed, h);
    if (h->store)
        store_server_close(h->store, part_closed, h);
    h->keeper = NULL;
    h->coordinator = NULL;
    h->store = NULL;
}

void host_move(struct host *h, const struct netaddr *there)
{
    char ip[ADDR_STRLEN];
    coordinator_dismiss(h->coordinator);
    shed_coordinator(h);
    make_standby(h);
    standby_at_endpoint(h->standby);
    host_follow(h, netaddr_ip(there, ip), netaddr_port(there), true);
    if (rdzv_config_may_elect(h->config.config) && h->config.config->nproc > 0)
        announce_port(h);
}

/* ----------------------------------------------------------------------------------------- facts
 */

void host_set_local_addr(struct host *h, const char *ip)
{
    text_set(h->local_addr, sizeof(h->local_addr), "%s", ip);
}

const char *host_local_addr(const struct host *h)
{
    return h->local_addr;
}

struct coordinator *host_coordinator(const struct host *h)
{
    return h->coordinator;
}

bool host_listens(const struct host *h)
{
    return h->endpoint != NULL;
}

int host_port(const struct host *h)
{
    return h->endpoint ? endpoint_port(h->endpoint) : 0;
}

const char *host_addr(const struct host *h)
{
    return h->endpoint ? endpoint_addr(h->endpoint) : "";
}

/* ------------------------------------------------------------------------------- open and close */

struct host *host_new(const struct host_config *config)
{
    struct host *h = xcalloc(1, sizeof(*h));
    h->config = *config;
    h->open = 1; /* the scope */
    uvx_scope_init(&h->scope, config->loop);
    return h;
}

void host_set_relay(struct host *h, struct relay *relay)
{
    h->relay = relay;
}

void host_advance(struct host *h)
{
    if (!h->coordinator || h->closing)
        return;
    coordinator_advance(h->coordinator);
    if (h->keeper) /* the coordinator may have finished, and everything closes */
        keeper_advance(h->keeper);
}

void host_abandon(struct host *h)
{
    if (h->endpoint && !h->closing)
        endpoint_abandon(h->endpoint); /* first: who comes again is to be refused */
}

void host_stop(struct host *h)
{
    if (h->keeper)
        keeper_stop(h->keeper);
}

static void part_closed(void *arg)
{
    struct host *h = arg;
    if (--h->open > 0)
        return;
    void (*on_closed)(void *arg) = h->on_closed;
    void *on_closed_arg = h->on_closed_arg;
    free(h);
    on_closed(on_closed_arg);
}

void host_close(struct host *h, void (*on_closed)(void *arg), void *arg)
{
    h->closing = true;
    h->on_closed = on_closed;
    h->on_closed_arg = arg;
    if (h->endpoint)
        endpoint_close(h->endpoint, part_closed, h);
    if (h->standby)
        standby_close(h->standby, part_closed, h);
    shed_coordinator(h);
    uvx_scope_close(&h->scope, part_closed, h);
}
