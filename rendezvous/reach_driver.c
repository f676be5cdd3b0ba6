/*     LOOK -> on the pool when it may block -> decide -> HOST: listen, coordinator, store; publish;
 *                                                              own member by a socketpair
 *                                                     -> JOIN: connect to one of the addresses
 *
 *   nobody there, a name that does not resolve   again after a while, until the join timeout
 *   the port is taken when this node must host   an error that names the owner: at once when no
 *                                                name had to be resolved, else as the job's result
 *   the port is its predecessor's, which ends    again after a while
 *   the connection breaks later                  again, to the same address
 *   no coordinator listens there                 whoever listens is asked where it is, before the
 *                                                next attempt; not when a backend publishes it
 *   no job token                                 the coordinator's host is named; reach.h waits */
#include "rendezvous/reach_driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/uvx.h"
#include "rendezvous/discovery/backends.h"
#include "rendezvous/rdzv_rules.h"
#include "rendezvous/rules/reach.h"
#include "rendezvous/rules/text.h"
#include "rendezvous/wire/beat_call.h"

#define CONNECT_MS       5000 /* one round of attempts */
#define CONNECT_AGAIN_MS 1000 /* to one launcher: no longer than until TCP asks once more */

struct reach_driver {
    struct reach_driver_config config;
    struct beats *beats; /* NULL: one node */
    struct host *host;
    struct member *member;
    struct reach *reach;
    struct uvx_scope scope;
    uv_timer_t timer;
    struct connector *connector;
    struct beat_call *beat_call;
    int listen_fd; /* bound already, not yet watched; -1 */
    bool ask;      /* of the last look */
    char where[HOST_MAX + 16];
    bool stopped;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

static void drive(struct reach_driver *d);

/* ---------------------------------------------------------------------------------------- names */

/* The place of the coordinator as the user gave it. */
static void name_endpoint(struct reach_driver *d)
{
    const struct rdzv_config *c = d->config.config;
    if (c->backend == RDZV_ETCD)
        text_set(d->where, sizeof(d->where), "the etcd key %s/%s/coordinator", c->etcd.prefix,
                 c->run_id);
    else if (c->endpoint_host)
        endpoint_format(d->where, sizeof(d->where),
                        c->endpoint_host[0] ? c->endpoint_host : c->host, c->endpoint_port);
    else
        text_set(d->where, sizeof(d->where), "%s", c->endpoint_path);
}

/* An address that is nobody else's and not of this host can be of no use to a job on one node. */
static void note_local_addr(struct reach_driver *d, struct rdzv_discovery *f)
{
    char ip[ADDR_STRLEN];
    if (!f->have_local || host_local_addr(d->host)[0])
        return;
    netaddr_ip(&f->local, ip);
    if (f->max_nodes == 1 && !netaddr_is_local(&f->local)) {
        log_notice("--local_addr: %s is no address of this host: the job on this one node does not "
                   "use it",
                   ip);
        rdzv_discovery_forget_local(f);
        return;
    }
    host_set_local_addr(d->host, ip);
    member_state_set_local_addr(member_state_of(d->member), ip);
}

static void log_note(struct rdzv_discovery *f)
{
    if (f->auth->made)
        log_notice("created a job token in %s; the other nodes need a copy of this file",
                   f->auth->source);
    f->auth->made = false;
    if (f->note[0])
        log_notice("%s", f->note);
    f->note[0] = '\0';
}

/* Whether all addresses to join at are this host's. */
static bool all_here(const struct rdzv_discovery *f)
{
    bool local = true;
    for (int i = 0; i < f->naddrs; i++)
        local &= netaddr_is_local(&f->addrs[i]);
    return local;
}

/* --------------------------------------------------------------------------------------- events */

static struct reach_member facts(const struct reach_driver *d)
{
    const struct member_state *m = member_state_of(d->member);
    struct rdzv_info info = {0};
    struct reach_member facts = {.answered = member_state_answered(m),
                                 .joined = member_state_joined(m),
                                 .electing = member_state_electing(m),
                                 .may_stand = member_state_may_stand(m)};
    member_state_get_info(m, &info);
    facts.begun = info.gen.counter > 0;
    facts.electors = member_state_electors(m, &facts.self);
    return facts;
}

static void on_timer(uv_timer_t *timer)
{
    struct reach_driver *d = container_of(timer, struct reach_driver, timer);
    const struct reach_member m = facts(d);
    reach_tick(d->reach, &m, mono_ns());
    drive(d);
}

void reach_driver_wants_link(struct reach_driver *d)
{
    const struct reach_member m = facts(d);
    uint64_t now = mono_ns(), chance = now ^ (uint64_t)getpid() * 0x9e3779b97f4a7c15u;
    beat_call_cancel(d->beat_call);
    d->beat_call = NULL;
    reach_wanted(d->reach, &m, chance, now);
    drive(d);
}

static void on_beat_called(void *arg, int beat)
{
    struct reach_driver *d = arg;
    d->beat_call = NULL;
    if (beat >= 0)
        member_take_beat(d->member, beat);
}

void reach_driver_wants_beat(struct reach_driver *d, const struct node_id *id, uint64_t dead_ns)
{
    const struct reach_driver_config *c = &d->config;
    struct netaddr at;
    if (!d->beat_call && reach_where(d->reach, &at))
        d->beat_call =
            beat_call_new(c->hub, d->beats, &at, c->auth, id, dead_ns, on_beat_called, d);
}

void reach_driver_redirect(struct reach_driver *d, const struct netaddr *there)
{
    reach_redirected(d->reach, there); /* in the next turn, not inside the coordinator */
    link_hub_wake(d->config.hub);
}

/* -------------------------------------------------------------------------------------- looking */

static void looked(struct reach_driver *d, struct rdzv_discovery *f)
{
    static const enum reach_found found[] = {[RDZV_ROLE_HOST] = REACH_FOUND_HOST,
                                             [RDZV_ROLE_JOIN] = REACH_FOUND_JOIN,
                                             [RDZV_ROLE_RETRY] = REACH_FOUND_RETRY,
                                             [RDZV_ROLE_FAIL] = REACH_FOUND_FAIL};
    struct err e = ERR_INIT;
    enum rdzv_role role = f->ops->decide(f, &e);
    note_local_addr(d, f);
    log_note(f);
    reach_looked(d->reach, found[role], all_here(f), role == RDZV_ROLE_FAIL ? e.msg : f->why);
}

static void on_looked(void *arg, struct rdzv_discovery *f)
{
    struct reach_driver *d = arg;
    looked(d, f);
    drive(d);
}

static void prepare_to_look(void *arg, struct rdzv_discovery *f)
{
    struct reach_driver *d = arg;
    struct auth *g = d->config.auth;
    f->ask = d->ask;
    if ((f->ask || d->config.config->backend == RDZV_FILE) && g->secret_len && !g->open)
        auth_ready(g, NULL); /* without the key, nobody is asked */
}

static void look(struct reach_driver *d, const struct reach_action *a)
{
    struct rdzv_discovery *f = search_idle(d->config.search);
    host_follow(d->host, "", 0, false);
    d->ask = a->ask;
    if (f && a->known) {
        looked(d, f);
        return;
    }
    if (f)
        prepare_to_look(d, f);
    if (f && rdzv_discovery_quick(f)) {
        rdzv_discovery_look(f);
        looked(d, f);
        return;
    }
    search_run(d->config.search,
               &(struct search_step){d, prepare_to_look, rdzv_discovery_look, on_looked});
}

/* -------------------------------------------------------------------------------------- hosting */

static void host_here(struct reach_driver *d)
{
    struct rdzv_discovery *f = search_idle(d->config.search);
    struct err e = ERR_INIT;
    note_local_addr(d, f);
    if (d->listen_fd < 0 && host_listens(d->host) &&
        netaddr_port(&f->bind.addr) == host_port(d->host)) {
        name_endpoint(d); /* this node was redirected to a coordinator that does not answer */
        host_begin_again(d->host, f);
        reach_hosted(d->reach, REACH_HOSTS_AGAIN, false, NULL);
        return;
    }
    int fd = d->listen_fd >= 0 ? take_fd(&d->listen_fd) : host_listen(f, &e);
    if (fd >= 0)
        fd = host_begin(d->host, fd, f, &e);
    f->listen_port = host_port(d->host);
    reach_hosted(d->reach,
                 fd >= 0             ? REACH_HOSTS
                 : fd == -EADDRINUSE ? REACH_TAKEN
                 : fd == -EBUSY      ? REACH_HOSTS_LATER
                                     : REACH_CANNOT_HOST,
                 all_here(f), e.msg);
}

static void on_published(void *arg, struct rdzv_discovery *f)
{
    struct reach_driver *d = arg;
    const struct reach_member m = facts(d);
    if (f->found) /* another launcher has become the coordinator meanwhile */
        reach_redirected(d->reach, &f->reported);
    reach_published(d->reach, &m, f->status < 0 ? f->why : NULL, mono_ns());
    drive(d);
}

static void publish(struct reach_driver *d)
{
    search_run(d->config.search,
               &(struct search_step){d, NULL, rdzv_backend_ops(d->config.config->backend)->publish,
                                     on_published});
}

static void attach_own(struct reach_driver *d)
{
    int fd = host_connect(d->host);
    if (fd < 0)
        member_unreachable(d->member, false, strerror(-fd));
    else
        member_attach(d->member, fd, true, NULL);
}

/* Makes this node a candidate, to which the other members connect. */
static void stand_for_election(struct reach_driver *d)
{
    struct member_state *m = member_state_of(d->member);
    struct rdzv_electorate e;
    host_follow(d->host, "", 0, true);
    member_state_electorate(m, &e);
    endpoint_format(d->where, sizeof(d->where), d->config.config->host, host_port(d->host));
    host_stand(d->host, &e);
    attach_own(d);
    member_state_noticed(m, lease_clock_ns());
}

/* The elected coordinator has redirected the one of this node. */
static void move(struct reach_driver *d, const struct netaddr *there)
{
    netaddr_format(there, d->where, sizeof(d->where));
    log_notice("the job '%s' runs already: its nodes have made the one at %s their coordinator. "
               "This node joins it there",
               d->config.config->run_id, d->where);
    host_move(d->host, there);
}

/* -------------------------------------------------------------------------------------- calling */

/* Whether the token that is needed for this address is here. Else *how and why say what follows. */
static bool may_call(struct reach_driver *d, const struct netaddr *to, enum reach_called *how,
                     struct err *e)
{
    struct auth *g = d->config.auth;
    char ip[ADDR_STRLEN];
    if (!auth_wants_tls(g, to) || auth_ready(g, e) == 0)
        return true;
    *how = auth_may_come(g) ? REACH_NO_TOKEN : REACH_NO_CALL;
    if (*how == REACH_NO_TOKEN)
        text_add(e->msg, sizeof(e->msg),
                 ": copy this file, with mode 600, from the coordinator's host (%s), or name a "
                 "token with --token_file",
                 netaddr_ip(to, ip));
    return false;
}

static void on_connected(void *arg, int fd, const struct netaddr *peer, bool refused,
                         const char *why)
{
    struct reach_driver *d = arg;
    const struct reach_member m = facts(d);
    const struct rdzv_discovery *f = search_idle(d->config.search);
    enum reach_called how = fd >= 0 ? REACH_CONNECTED : refused ? REACH_REFUSED : REACH_UNANSWERED;
    char ip[ADDR_STRLEN], text[RDZV_TEXT_MAX];
    struct err e = ERR_INIT;
    d->connector = NULL;
    text_set(text, sizeof(text), "%s", fd < 0 ? why : "");
    if (refused && f && f->naddrs && netaddr_is_loopback(&f->addrs[0]))
        text_add(text, sizeof(text), "; %s can be reached from this host only",
                 netaddr_ip(&f->addrs[0], ip));
    if (fd >= 0 && !may_call(d, peer, &how, &e)) {
        text_set(text, sizeof(text), "%s", e.msg);
        close_fd(&fd);
    }
    reach_called(d->reach, &m, how, fd >= 0 ? peer : NULL, text, mono_ns());
    if (fd >= 0) {
        if (m.electing || d->ask || d->config.config->backend == RDZV_ETCD)
            netaddr_format(peer, d->where, sizeof(d->where));
        host_follow(d->host, netaddr_ip(peer, ip), netaddr_port(peer), true);
        member_attach(d->member, fd, false, d->config.auth);
    }
    drive(d);
}

/* Connects to the addresses that the look has found. */
static void join(struct reach_driver *d)
{
    const struct rdzv_discovery *f = search_idle(d->config.search);
    struct err e = ERR_INIT;
    enum reach_called how;
    /* True if some way to the coordinator needs no token, or the token comes with the
     * coordinator. */
    bool clear = f->naddrs == 0 || auth_may_come(d->config.auth);
    for (int i = 0; i < f->naddrs; i++)
        clear |= !auth_wants_tls(d->config.auth, &f->addrs[i]);
    if (!clear && !may_call(d, &f->addrs[0], &how, &e)) {
        const struct reach_member m = facts(d);
        reach_called(d->reach, &m, how, NULL, e.msg, mono_ns());
        return;
    }
    if (f->naddrs)
        host_open_standby(d->host, f, &f->addrs[0]);
    reach_listens(d->reach, host_listens(d->host));
    d->connector = connector_new(d->config.loop, f->addrs, f->naddrs, CONNECT_MS, on_connected, d);
}

static void call(struct reach_driver *d, const struct reach_action *a)
{
    if (a->elector)
        host_follow(d->host, "", 0, true);
    if (a->has_to)
        d->connector = connector_new(d->config.loop, &a->to, 1, CONNECT_AGAIN_MS, on_connected, d);
    else
        join(d);
}

/* -------------------------------------------------------------------------------------- actions */

static void fail(struct reach_driver *d, const struct reach_action *a)
{
    struct err e = ERR_INIT;
    err_set(&e, -EACCES, "%s", a->why);
    if (a->calling)
        err_wrap(&e, "cannot join %s", d->where);
    member_state_fail(member_state_of(d->member), e.msg);
    link_hub_wake(d->config.hub);
}

static void act(struct reach_driver *d, const struct reach_action *a)
{
    switch (a->act) {
    case REACH_ACT_MOVE:
        move(d, &a->to);
        break;
    case REACH_ACT_LOOK:
        look(d, a);
        break;
    case REACH_ACT_HOST:
        host_here(d);
        break;
    case REACH_ACT_PUBLISH:
        publish(d);
        break;
    case REACH_ACT_OWN:
        attach_own(d);
        break;
    case REACH_ACT_STAND:
        stand_for_election(d);
        break;
    case REACH_ACT_CALL:
        call(d, a);
        break;
    case REACH_ACT_UNREACHABLE:
        member_unreachable(d->member, a->refused, a->why);
        break;
    case REACH_ACT_FAIL:
        fail(d, a);
        break;
    }
}

static void drive(struct reach_driver *d)
{
    struct reach_action a;
    while (!d->stopped && reach_next(d->reach, &a, mono_ns()))
        act(d, &a);
    uint64_t at = reach_deadline(d->reach), now = mono_ns();
    if (at == UINT64_MAX)
        uv_timer_stop(&d->timer);
    else
        uv_timer_start(&d->timer, on_timer, at > now ? (at - now + 999999) / 1000000 : 0, 0);
}

void reach_driver_advance(struct reach_driver *d)
{
    drive(d);
}

const char *reach_driver_where(const struct reach_driver *d)
{
    return d->where;
}

bool reach_driver_address(const struct reach_driver *d, struct netaddr *out)
{
    return reach_where(d->reach, out);
}

/* ------------------------------------------------------------------------------- open and close */

/* Checks what can be checked at once, before anything is started. */
static int look_at_once(struct reach_driver *d, struct err *e)
{
    struct rdzv_discovery *f = search_idle(d->config.search);
    if (!f->ops->quick(f))
        return 0;
    rdzv_discovery_look(f);
    if (f->ops->decide(f, e) != RDZV_ROLE_HOST)
        return 0; /* the backend decides again; nothing is lost */
    log_note(f);
    int fd = host_listen(f, e);
    d->listen_fd = fd >= 0 ? fd : -1;
    return fd >= 0 || fd == -EADDRINUSE || fd == -EBUSY ? 0 : fd;
}

int reach_driver_new(struct reach_driver **out, const struct reach_driver_config *config,
                     struct err *e)
{
    const struct rdzv_config *c = config->config;
    const struct reach_rules rules = {.dead_ns = rdzv_config_dead_ns(c),
                                      .publishes = rdzv_backend_publishes(c->backend),
                                      .several = c->nmore > 0};
    struct reach_driver *d = xcalloc(1, sizeof(*d));
    d->config = *config;
    d->listen_fd = -1;
    int rc = look_at_once(d, e);
    if (rc < 0) {
        free(d);
        return rc;
    }
    name_endpoint(d);
    d->reach = reach_new(&rules);
    if (d->listen_fd >= 0)
        reach_bound(d->reach);
    *out = d;
    return 0;
}

void reach_driver_free(struct reach_driver *d)
{
    close_fd(&d->listen_fd);
    reach_free(d->reach);
    free(d);
}

void reach_driver_start(struct reach_driver *d, struct beats *beats, struct host *host,
                        struct member *member)
{
    uvx_scope_init(&d->scope, d->config.loop);
    uv_timer_init(d->config.loop, &d->timer);
    uvx_own(&d->scope, &d->timer);
    d->beats = beats;
    d->host = host;
    d->member = member;
}

void reach_driver_stop(struct reach_driver *d)
{
    d->stopped = true;
    connector_cancel(d->connector);
    d->connector = NULL;
    beat_call_cancel(d->beat_call);
    d->beat_call = NULL;
    uv_timer_stop(&d->timer);
    close_fd(&d->listen_fd);
    search_forget(d->config.search, d);
    reach_close(d->reach);
}

static void on_scope_closed(void *arg)
{
    struct reach_driver *d = arg;
    void (*on_closed)(void *arg) = d->on_closed;
    void *on_closed_arg = d->on_closed_arg;
    reach_driver_free(d);
    on_closed(on_closed_arg);
}

void reach_driver_close(struct reach_driver *d, void (*on_closed)(void *arg), void *arg)
{
    d->on_closed = on_closed;
    d->on_closed_arg = arg;
    uvx_scope_close(&d->scope, on_scope_closed, d);
}
