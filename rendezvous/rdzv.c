/* The facade: finds the coordinator or becomes it, and wires the parts together.
 *
 *     reach -> look (backend; on the pool when it may block) -> decide
 *           -> host: listen, coordinator, store; publish; own member by a socketpair
 *           -> join: connect to one of the addresses; member by that socket
 *
 *   nobody there, a name that does not resolve   again after a while, until the join timeout
 *   the port is taken when this node must host   an error that names the owner: by rdzv_open() when
 *                                                no name had to be resolved, else by on_finish
 *   the connection breaks later                  again, to the same address
 *   no coordinator listens there                 whoever listens is asked where it is, before the
 *                                                next attempt; not by the backend file
 *
 * The redirect. A launcher that is started again at the endpoint where the job began cannot know
 * that another coordinator was elected meanwhile, and hosts a new one there. The elected
 * coordinator redirects it, so that there is one job:
 *
 *     elected: redirect_start() -> on_redirect(), every second: ELSEWHERE to each configured
 *              endpoint (rdzv_discovery_tell() on the pool)
 *     other:   redirect_received() -> redirect_move(): the coordinator closes, its endpoint becomes
 *              a standby, and the member connects to the elected coordinator
 *
 *   nobody, or a standby, listens at the endpoint     nothing
 *   the other one has begun a round                   both warn of two jobs
 *   the other one has another job token               both warn of it
 *   the elected coordinator does not answer           the other one hosts again after the dead time
 */
#include "rendezvous/rdzv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/uvx.h"
#include "rendezvous/coordinator.h"
#include "rendezvous/discovery/rdzv_backend.h"
#include "rendezvous/discovery/rdzv_config.h"
#include "rendezvous/member.h"
#include "rendezvous/rdzv_host.h"
#include "rendezvous/rdzv_rules.h"
#include "rendezvous/rules/text.h"
#include "rendezvous/store/store_server.h"
#include "rendezvous/wire/auth.h"
#include "rendezvous/wire/beat_call.h"
#include "rendezvous/wire/endpoint.h"
#include "rendezvous/wire/relay.h"
#include "rendezvous/wire/standby.h"

#define CONNECT_MS       5000 /* one round of attempts */
#define RETRY_MIN_MS     4    /* launchers that are started at once are milliseconds apart */
#define RETRY_MAX_MS     1000
#define RETRY_HERE_MS    2 /* on this host, where a refused connection costs microseconds, */
#define RETRY_LATER_MS   10
#define HERE_SOON        500  /* so many times, then RETRY_LATER_MS */
#define CALLS_LOST       3    /* to an elector, before the next one is called */
#define CONNECT_AGAIN_MS 1000 /* to one launcher: no longer than until TCP asks once more */
#define KEEP_SOON_MS     250  /* between attempts to get what another node has published */
#define HURRY_MS         1000 /* longest wait for nodes that have not taken the result */
#define WITNESSES        64   /* places for heartbeats of launchers without workers */
/* The coordinator's launcher has made the token before it listens: so long until a shared home
 * folder shows it here. */
#define TOKEN_WAIT_NS 15000000000u

/* The period of the redirects. It is much shorter than the last call, before whose end a job of MIN
 * nodes does not begin. One redirect costs a refused connection, or a handshake with a standby. */
#define REDIRECT_MS 1000

static struct auth no_auth = {.open = true};

struct rdzv {
    uv_loop_t *loop;
    struct rdzv_config config;
    struct uvx_scope scope;
    struct link_hub hub;
    struct beats *beats;                                        /* NULL: one node */
    struct event_log *events;                                   /* NULL: none is kept */
    bool (*on_output)(void *arg, const void *output, size_t n); /* of the callbacks; NULL */
    void *on_output_arg;
    struct beat_call *beat_call;
    struct member *member;
    struct coordinator *coordinator; /* NULL, like the next two, if this process does not host it */
    struct endpoint *endpoint;
    struct store_server *store;
    bool as_called;          /* meeting.h */
    char doubt[ERR_MSG_MAX]; /* why the other nodes may not find this one, or "" */
    struct relay *relay;     /* NULL: none */
    struct auth *auth;
    struct standby *standby; /* answers at the endpoint while another node is the coordinator, if
                                this one may be elected */
    int candidate;           /* the elector to connect to, an index in the member's list */
    int lost;                /* attempts to connect to that elector without an answer */
    uint64_t candidate_ns;   /* when the first of these attempts began */
    int listen_fd;           /* bound by rdzv_open(), not yet watched; -1 */

    struct rdzv_discovery *discovery; /* NULL while a thread of the pool has it */
    struct discovery_request *discovery_request;
    struct connector *connector;
    uv_timer_t retry;
    double retry_ms;
    int attempts;          /* since a coordinator has answered */
    bool here, refused;    /* the last attempt: to addresses of this host; refused */
    bool met;              /* the last attempt: the connection was accepted... */
    bool ask;              /* ...but not by a coordinator: ask there where it is */
    uint64_t tokenless_ns; /* when a coordinator first answered while there was no token; 0 */
    struct netaddr good;   /* the address of the last connection */
    bool have_good;
    char where[HOST_MAX + 16]; /* the coordinator's address, for messages */
    char local_addr[ADDR_STRLEN];

    uv_timer_t keep;             /* of a coordinator whose address is published */
    struct generation keep_list; /* that was the newest one then */
    bool keep_warned;            /* that the place cannot be reached */
    uv_timer_t redirect;         /* of an elected coordinator */
    uint64_t split_brain_ns;     /* since when two jobs have this id; 0: only one has */
    bool split_brain_logged;     /* the warning about it was printed */
    bool wrong_key_logged;       /* the warning about another job token was printed */
    bool moving;                 /* redirected to `elsewhere`; redirect_move() is due */
    struct netaddr elsewhere;    /* of the elected coordinator */
    uint64_t moved_ns;           /* when this node moved there; 0: never */
    unsigned shed;               /* dismissed parts of the coordinator that are not closed yet */

    bool closing, tearing_down;
    unsigned parts; /* not yet closed */
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* A step of a backend on the pool. Outlives struct rdzv if it does not return. */
struct discovery_request {
    uv_work_t work;
    struct rdzv *rdzv; /* NULL: closed meanwhile */
    struct rdzv_discovery *discovery;
    void (*step)(struct rdzv_discovery *f);
    void (*done)(struct rdzv *r);
};

/* ------------------------------------------------------------------------------------- the pool */

static void on_work(uv_work_t *work)
{
    struct discovery_request *w = container_of(work, struct discovery_request, work);
    w->step(w->discovery);
}

static void on_worked(uv_work_t *work, int status)
{
    struct discovery_request *w = container_of(work, struct discovery_request, work);
    struct rdzv *r = w->rdzv;
    (void)status;
    if (r) {
        r->discovery_request = NULL;
        r->discovery = w->discovery;
    } else {
        rdzv_discovery_free(w->discovery);
    }
    void (*done)(struct rdzv *) = w->done;
    free(w);
    if (r)
        done(r);
}

static void rdzv_work(struct rdzv *r, void (*step)(struct rdzv_discovery *f),
                      void (*done)(struct rdzv *r))
{
    struct discovery_request *w = xcalloc(1, sizeof(*w));
    *w = (struct discovery_request){
        .rdzv = r, .discovery = r->discovery, .step = step, .done = done};
    r->discovery_request = w;
    r->discovery = NULL;
    uv_queue_work(r->loop, &w->work, on_work, on_worked); /* fails only without a callback */
}

/* Where the coordinator is, as the user gave it. */
static void name_endpoint(struct rdzv *r)
{
    const struct rdzv_config *c = &r->config;
    if (c->backend == RDZV_ETCD)
        text_set(r->where, sizeof(r->where), "the etcd key %s/%s/coordinator", c->etcd.prefix,
                 c->run_id);
    else if (c->endpoint_host)
        endpoint_format(r->where, sizeof(r->where),
                        c->endpoint_host[0] ? c->endpoint_host : c->host, c->endpoint_port);
    else
        text_set(r->where, sizeof(r->where), "%s", c->endpoint_path);
}

/* ----------------------------------------------------------- a launcher that hosts: connections */

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

static bool show_output(void *arg, const void *output, size_t n)
{
    struct rdzv *r = arg;
    return r->on_output(r->on_output_arg, output, n);
}

static bool serve_store(void *arg, int fd)
{
    struct rdzv *r = arg;
    if (r->store)
        store_server_adopt(r->store, fd);
    return r->store != NULL;
}

static bool whereabouts(void *arg, struct netaddr *out)
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

/* -------------------------------------------------------------------------------------- hosting */

static void tear_down(struct rdzv *r);
static void part_shed(void *arg);
static void redirect_received(void *arg, const struct netaddr *there, bool begun);

static void on_coordinator_finished(void *arg)
{
    struct rdzv *r = arg;
    if (r->closing)
        tear_down(r);
}

/* ------------------------------------------------------- keeping what is published about this node
 */

static void on_keep(uv_timer_t *timer);

static void keep_after(struct rdzv *r, uint64_t ms)
{
    if (r->coordinator && rdzv_backend_ops(r->config.backend)->keep)
        uv_timer_start(&r->keep, on_keep, ms, 0);
}

/* With each heartbeat, and often enough for a lease of the dead time. */
static uint64_t keep_ms(const struct rdzv *r)
{
    uint64_t third = rdzv_config_dead_ns(&r->config) / 3000000;
    uint64_t beat = (uint64_t)(r->config.keep_alive_interval * 1000);
    return beat < third ? beat : third;
}

static void warn_of_keeping(struct rdzv *r, const char *why)
{
    if (why[0] && !r->keep_warned)
        log_warn("this node cannot renew its lease, so that there is no vote of etcd: %s", why);
    else if (!why[0] && r->keep_warned)
        log_notice("etcd answers again");
    r->keep_warned = why[0];
}

static void on_kept(struct rdzv *r)
{
    const struct rdzv_discovery *f = r->discovery;
    if (!r->coordinator || r->closing)
        return;
    warn_of_keeping(r, f->why);
    if (f->kept)
        coordinator_hear_arbiter(r->coordinator, f->ops->name, f->kept_ns);
    else if (f->found && !coordinator_is_elected(r->coordinator)) /* else votes decide */
        redirect_received(r, &f->told, coordinator_has_begun(r->coordinator));
    /* A candidate waits for the end of the lease of the coordinator that was. */
    bool soon = !f->kept && coordinator_stands(r->coordinator);
    keep_after(r, soon && keep_ms(r) > KEEP_SOON_MS ? KEEP_SOON_MS : keep_ms(r));
}

static void on_keep(uv_timer_t *timer)
{
    struct rdzv *r = container_of(timer, struct rdzv, keep);
    struct rdzv_discovery *f = r->discovery;
    if (!f) {
        keep_after(r, KEEP_SOON_MS);
        return;
    }
    f->list_gen = r->keep_list = coordinator_newest_list(r->coordinator);
    f->dead_epoch = coordinator_dead_epoch(r->coordinator);
    f->leads = coordinator_leads(r->coordinator);
    f->listen_port = endpoint_port(r->endpoint);
    rdzv_work(r, f->ops->keep, on_kept);
}

/* A vote of etcd counts in a list that is recorded there: at once, because an elected coordinator
 * may wait for the vote. */
static void keep_new_list(struct rdzv *r)
{
    bool keeps = r->coordinator && !r->closing && uv_is_active((uv_handle_t *)&r->keep);
    if (keeps && !generation_equal(coordinator_newest_list(r->coordinator), r->keep_list))
        keep_after(r, 0);
}

static void make_coordinator(struct rdzv *r, const struct rdzv_electorate *electorate)
{
    const struct rdzv_config *c = &r->config;
    struct rdzv_rules rules = rdzv_config_rules(c);
    rules.bound_addr = endpoint_addr(r->endpoint);
    rules.port = endpoint_port(r->endpoint);
    rules.local_addr = r->local_addr;
    rules.doubt = r->doubt;
    if (electorate || !r->as_called)
        rules.master_addr = NULL;
    const struct coordinator_events events = {r,
                                              on_new_round,
                                              on_coordinator_finished,
                                              on_wrong_key,
                                              r->relay ? on_relay : NULL,
                                              redirect_received,
                                              r->on_output ? show_output : NULL};
    r->coordinator = coordinator_new(&r->hub, r->beats, &rules, c->host, (int)getpid(), electorate,
                                     &events, r->events);
    keep_after(r, 0);
}

static void make_store(struct rdzv *r)
{
    const struct store_server_opts store = {.legacy_113 = r->config.legacy_store_113};
    if (r->config.agent_store && !r->store)
        r->store = store_server_new(r->loop, &store);
}

static int open_endpoint(struct rdzv *r, int listen_fd, struct err *e)
{
    const struct endpoint_events events = {r, on_agent, r->config.agent_store ? on_store : NULL,
                                           on_silent};
    return endpoint_open(&r->endpoint, r->loop, listen_fd, r->config.max_nodes + r->config.spares,
                         &events, e);
}

static bool make_host(struct rdzv *r, int listen_fd)
{
    struct err e = ERR_INIT;
    char where[HOST_MAX + 8];
    if (open_endpoint(r, listen_fd, &e) < 0) {
        member_state_fail(member_state_of(r->member), e.msg);
        link_hub_wake(&r->hub);
        return false;
    }
    make_store(r);
    make_coordinator(r, NULL);
    const char *addr = endpoint_addr(r->endpoint);
    log_verbose("listening on %s", endpoint_format(where, sizeof(where), addr[0] ? addr : "*",
                                                   endpoint_port(r->endpoint)));
    return true;
}

static void attach_own(struct rdzv *r)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        member_unreachable(r->member, false, strerror(errno));
        return;
    }
    coordinator_adopt(r->coordinator, pair[0], NULL, NULL);
    member_attach(r->member, pair[1], true, NULL);
}

static void on_published(struct rdzv *r)
{
    if (r->discovery->status < 0) {
        member_state_fail(member_state_of(r->member), r->discovery->why);
        link_hub_wake(&r->hub);
        return;
    }
    attach_own(r);
}

static void host_and_join(struct rdzv *r, int listen_fd)
{
    if (!make_host(r, listen_fd))
        return;
    r->discovery->listen_port = endpoint_port(r->endpoint);
    if (r->discovery->ops->publish)
        rdzv_work(r, r->discovery->ops->publish, on_published);
    else
        attach_own(r);
}

/* This node listens at the endpoint already: it was redirected to a coordinator that does not
 * answer. */
static void host_again(struct rdzv *r)
{
    name_endpoint(r);
    make_store(r);
    make_coordinator(r, NULL);
    attach_own(r);
}

/* -------------------------------------------------------------------------------------- joining */

/* False: a token is needed and there is none. The member has the reason: it tries again as long as
 * the token may come. */
static bool may_call(struct rdzv *r, const struct netaddr *to)
{
    struct err e = ERR_INIT;
    char ip[ADDR_STRLEN];
    if (!auth_wants_tls(r->auth, to) || auth_ready(r->auth, &e) == 0)
        return true;
    bool may_come = auth_may_come(r->auth);
    if (may_come)
        text_add(e.msg, sizeof(e.msg),
                 ": copy this file, with mode 600, from the coordinator's host (%s), or name a "
                 "token with --token_file",
                 netaddr_ip(to, ip));
    if (!r->tokenless_ns)
        r->tokenless_ns = uv_hrtime();
    if (may_come && uv_hrtime() - r->tokenless_ns < TOKEN_WAIT_NS) {
        r->refused = false;
        member_unreachable(r->member, false, e.msg);
        return false;
    }
    err_wrap(&e, "cannot join %s", r->where);
    member_state_fail(member_state_of(r->member), e.msg);
    link_hub_wake(&r->hub);
    return false;
}

static void rdzv_on_connected(void *arg, int fd, const struct netaddr *peer, bool refused,
                              const char *why)
{
    struct rdzv *r = arg;
    r->connector = NULL;
    r->refused = refused;
    r->met = fd >= 0;
    r->ask &= !refused;
    char ip[ADDR_STRLEN], text[RDZV_TEXT_MAX];
    const struct rdzv_discovery *f = r->discovery;
    if (fd < 0) {
        bool own = refused && f->naddrs && netaddr_is_loopback(&f->addrs[0]);
        if (own)
            text_set(text, sizeof(text), "%s; %s can be reached from this host only", why,
                     netaddr_ip(&f->addrs[0], ip));
        member_unreachable(r->member, refused, own ? text : why);
        return;
    }
    if (!may_call(r, peer)) {
        close(fd);
        return;
    }
    r->good = *peer;
    r->have_good = true;
    if (member_state_electing(member_state_of(r->member)) || r->discovery->ask ||
        r->config.backend == RDZV_ETCD)
        netaddr_format(peer, r->where, sizeof(r->where));
    if (r->standby)
        standby_set_coordinator(r->standby, netaddr_ip(peer, ip), netaddr_port(peer), true);
    member_attach(r->member, fd, false, r->auth);
}

/* Opens the endpoint at which this node is reached by its children in the tree of the launchers,
 * and if the coordinator is lost, where it stands for election. A node without it only votes. */
static void open_standby(struct rdzv *r, const struct netaddr *coordinator)
{
    struct endpoint_bind b = {.any = !netaddr_is_loopback(coordinator)};
    struct err e = ERR_INIT;
    int fd = -1;
    bool tree = r->config.max_nodes > r->config.tree_width;
    if (r->endpoint || (!rdzv_config_may_elect(&r->config) && !tree) || r->config.nproc == 0)
        return;
    if (auth_wants_tls(r->auth, coordinator) && auth_ready(r->auth, NULL) < 0)
        return; /* without a token it listens to nobody */
    for (int i = 0; i < r->discovery->nstandby_binds && fd < 0; i++)
        fd = endpoint_listen(&r->discovery->standby_binds[i], NULL);
    bool at_endpoint = fd >= 0;
    netaddr_parse_ip(&b.addr, b.any ? "::" : "127.0.0.1", 0);
    if (fd < 0)
        fd = endpoint_listen(&b, &e);
    if (fd < 0 || open_endpoint(r, fd, &e) < 0) {
        log_warn("this node cannot become the coordinator: %s", e.msg);
        return;
    }
    r->standby = standby_new(&r->hub, r->config.run_id, r->config.host, member_branch(r->member));
    if (at_endpoint)
        standby_at_endpoint(r->standby);
    member_state_set_peer_port(member_state_of(r->member), endpoint_port(r->endpoint));
}

static void rdzv_join(struct rdzv *r)
{
    const struct rdzv_discovery *f = r->discovery;
    /* Some way there needs no token, or it comes with the coordinator. */
    bool clear = f->naddrs == 0 || auth_may_come(r->auth);
    for (int i = 0; i < f->naddrs; i++)
        clear |= !auth_wants_tls(r->auth, &f->addrs[i]);
    if (!clear && !may_call(r, &f->addrs[0]))
        return;
    if (f->naddrs)
        open_standby(r, &f->addrs[0]);
    if (r->attempts <= 1) {
        r->here = true;
        for (int i = 0; i < f->naddrs; i++)
            r->here &= netaddr_is_local(&f->addrs[i]);
    }
    r->connector = connector_new(r->loop, f->addrs, f->naddrs, CONNECT_MS, rdzv_on_connected, r);
}

static void note_local_addr(struct rdzv *r)
{
    const struct netaddr *local = &r->discovery->local;
    char ip[ADDR_STRLEN];
    if (!r->discovery->have_local || r->local_addr[0])
        return;
    if (r->discovery->max_nodes == 1 && !netaddr_is_local(local)) {
        log_notice("--local_addr: %s is no address of this host: the job on this one node does not "
                   "use it",
                   netaddr_ip(local, ip));
        r->discovery->have_local = false; /* nor looks for it again */
        free(r->discovery->local_addr);
        r->discovery->local_addr = NULL;
        return;
    }
    netaddr_ip(&r->discovery->local, r->local_addr);
    member_state_set_local_addr(member_state_of(r->member), r->local_addr);
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

static void note_meeting(struct rdzv *r)
{
    r->as_called = r->discovery->as_called;
    text_set(r->doubt, sizeof(r->doubt), "%s", r->discovery->doubt);
}

static void on_looked(struct rdzv *r)
{
    struct rdzv_discovery *f = r->discovery;
    struct err e = ERR_INIT;
    int fd = -1;
    enum rdzv_role role = f->ops->decide(f, &e);
    note_local_addr(r);
    log_note(f);
    if (role == RDZV_ROLE_HOST && r->endpoint &&
        netaddr_port(&f->bind.addr) == endpoint_port(r->endpoint)) {
        host_again(r);
        return;
    }
    if (role == RDZV_ROLE_HOST) {
        note_meeting(r);
        fd = rdzv_host_listen(f, &e);
        role = fd >= 0 ? RDZV_ROLE_HOST : fd == -EADDRINUSE ? RDZV_ROLE_JOIN : RDZV_ROLE_FAIL;
    }
    if (role == RDZV_ROLE_HOST && r->endpoint) { /* this node was about to follow, as a standby */
        r->shed++;
        endpoint_close(r->endpoint, part_shed, r);
        r->endpoint = NULL;
        member_state_set_peer_port(member_state_of(r->member), 0);
    }
    switch (role) {
    case RDZV_ROLE_HOST:
        host_and_join(r, fd);
        break;
    case RDZV_ROLE_JOIN:
        rdzv_join(r);
        break;
    case RDZV_ROLE_RETRY:
        r->refused = false;
        member_unreachable(r->member, false, f->why);
        break;
    case RDZV_ROLE_FAIL:
        member_state_fail(member_state_of(r->member), e.msg);
        link_hub_wake(&r->hub);
        break;
    }
}

/* ------------------------------------------------------------------------------------ redirects */

/* Warns of a second job with the same run id. A coordinator of this job that was only cut off does
 * not cause the warning: it detects that it has no majority, and ends within twice the dead time.
 */
static void warn_of_split_brain(struct rdzv *r, const struct netaddr *there)
{
    char where[ADDR_STRLEN + 8];
    uint64_t now = uv_hrtime();
    if (!r->split_brain_ns)
        r->split_brain_ns = now;
    if (r->split_brain_logged || now - r->split_brain_ns < 2 * rdzv_config_dead_ns(&r->config))
        return;
    r->split_brain_logged = true;
    log_warn("another job with the id '%s' runs at %s, begun apart from this one: stop one of the "
             "two, or give it another --rdzv_id",
             r->config.run_id, netaddr_format(there, where, sizeof(where)));
}

/* Warns of a launcher that has refused this node, because the two have different job tokens. */
static void warn_of_wrong_key(struct rdzv *r, const struct netaddr *there)
{
    char where[ADDR_STRLEN + 8];
    if (r->wrong_key_logged)
        return;
    r->wrong_key_logged = true;
    log_warn("the launcher at %s has another job token than this node (%s), so that it cannot come "
             "to this job: copy the file, or name it with --token_file",
             netaddr_format(there, where, sizeof(where)), r->auth->source);
}

static void on_redirect(uv_timer_t *timer);

static void on_reported(struct rdzv *r)
{
    if (r->discovery->wrong_key.len)
        warn_of_wrong_key(r, &r->discovery->wrong_key);
    if (r->discovery->split_brain.len)
        warn_of_split_brain(r, &r->discovery->split_brain);
    else
        r->split_brain_ns = 0;
    uv_timer_start(&r->redirect, on_redirect, REDIRECT_MS, 0);
}

static void on_redirect(uv_timer_t *timer)
{
    struct rdzv *r = container_of(timer, struct rdzv, redirect);
    struct rdzv_discovery *f = r->discovery;
    uv_timer_start(&r->redirect, on_redirect, REDIRECT_MS, 0);
    if (!f || !coordinator_leads(r->coordinator))
        return; /* not yet, or not any more */
    const char *bound = endpoint_addr(r->endpoint);
    f->own.any = !netaddr_parse_ip(&f->own.addr, bound, endpoint_port(r->endpoint));
    if (f->own.any)
        netaddr_parse_ip(&f->own.addr, "::", endpoint_port(r->endpoint));
    text_set(f->own_addr, sizeof(f->own_addr), "%s", bound[0] ? bound : r->local_addr);
    if (r->auth->secret_len && !r->auth->open)
        auth_ready(r->auth, NULL); /* without the key, only loopback endpoints are redirected */
    uv_timer_stop(&r->redirect);
    rdzv_work(r, rdzv_discovery_tell, on_reported);
}

static void redirect_start(struct rdzv *r)
{
    uv_timer_start(&r->redirect, on_redirect, REDIRECT_MS, 0);
}

static void redirect_received(void *arg, const struct netaddr *there, bool begun)
{
    struct rdzv *r = arg;
    if (begun) {
        warn_of_split_brain(r, there);
        return;
    }
    r->moving = true; /* in the next turn, not inside the coordinator, which it closes */
    r->elsewhere = *there;
    link_hub_wake(&r->hub);
}

static void redirect_move(struct rdzv *r)
{
    char ip[ADDR_STRLEN];
    r->moving = false;
    r->good = r->elsewhere;
    r->have_good = true;
    r->moved_ns = uv_hrtime();
    netaddr_format(&r->good, r->where, sizeof(r->where));
    log_notice("the job '%s' runs already: its nodes have made the one at %s their coordinator. "
               "This node joins it there",
               r->config.run_id, r->where);
    uv_timer_stop(&r->keep);
    uv_timer_stop(&r->redirect);
    coordinator_dismiss(r->coordinator);
    r->shed++;
    coordinator_close(r->coordinator, part_shed, r);
    r->coordinator = NULL;
    if (r->store) {
        r->shed++;
        store_server_close(r->store, part_shed, r);
        r->store = NULL;
    }
    if (!r->standby)
        r->standby =
            standby_new(&r->hub, r->config.run_id, r->config.host, member_branch(r->member));
    standby_at_endpoint(r->standby);
    standby_set_coordinator(r->standby, netaddr_ip(&r->good, ip), netaddr_port(&r->good), true);
    if (rdzv_config_may_elect(&r->config) && r->config.nproc > 0)
        member_state_set_peer_port(member_state_of(r->member), endpoint_port(r->endpoint));
}

static bool redirect_followed(const struct rdzv *r)
{
    return r->moved_ns && uv_hrtime() - r->moved_ns < rdzv_config_dead_ns(&r->config);
}

/* ------------------------------------------------------------------------------------- electing */

/* This node stands for election: the other members connect to it. */
static void stand(struct rdzv *r)
{
    struct rdzv_electorate e;
    member_state_electorate(member_state_of(r->member), &e);
    endpoint_format(r->where, sizeof(r->where), r->config.host, endpoint_port(r->endpoint));
    make_store(r);
    make_coordinator(r, &e);
    attach_own(r);
    member_state_noticed(member_state_of(r->member), uv_hrtime());
    if (!rdzv_backend_publishes(r->config.backend))
        redirect_start(r);
}

/* Goes on to the next member of the list: at once, unless all of them have been tried. */
static void next_candidate(struct rdzv *r)
{
    int self;
    const struct rdzv_peers *p = member_state_electors(member_state_of(r->member), &self);
    r->candidate++;
    r->candidate_ns = uv_hrtime();
    r->lost = 0;
    if (p && r->candidate < p->n) {
        r->retry_ms = 0;
        r->attempts = 0;
    }
}

static void on_elector(void *arg, int fd, const struct netaddr *peer, bool refused, const char *why)
{
    struct rdzv *r = arg;
    r->lost = fd < 0 ? r->lost + 1 : 0;
    if (refused || r->lost == CALLS_LOST)
        next_candidate(r); /* it is not there; one packet alone may be lost */
    rdzv_on_connected(r, fd, peer, refused, why);
}

/* Connects to the first member of the last round that is alive. If that is this node, it stands for
 * election. */
static void reach_elector(struct rdzv *r)
{
    int self;
    struct netaddr a;
    const struct rdzv_peers *p = member_state_electors(member_state_of(r->member), &self);
    if (r->candidate_ns == 0)
        r->candidate_ns = uv_hrtime();
    else if (uv_hrtime() - r->candidate_ns > rdzv_config_dead_ns(&r->config) * 3 / 2)
        /* The candidate neither stands nor has a coordinator for us, or does not answer. A
         * candidate whose connection was reset has no proof of the death and stands after the dead
         * time only: with less patience both would stand, each without a majority. */
        next_candidate(r);
    for (int i = 0; i <= p->n; i++, r->candidate++) {
        int k = r->candidate % p->n;
        if (k == self) {
            if (!r->endpoint || !member_state_may_stand(member_state_of(r->member)))
                continue;
            stand(r);
            return;
        }
        if (!p->e[k].host && p->e[k].port && netaddr_parse_ip(&a, p->e[k].addr, p->e[k].port)) {
            r->connector = connector_new(r->loop, &a, 1, CONNECT_AGAIN_MS, on_elector, r);
            return;
        }
    }
    member_unreachable(r->member, false, "none of the nodes of the last round can be called");
}

static void on_retry(uv_timer_t *timer);

/* Makes a connection for the member. */
static void reach(struct rdzv *r)
{
    if (!r->discovery) { /* with the thread that keeps what this node has published */
        uv_timer_start(&r->retry, on_retry, RETRY_LATER_MS, 0);
        return;
    }
    r->attempts++;
    if (member_state_electing(member_state_of(r->member)) && !r->coordinator) {
        if (r->standby)
            standby_set_coordinator(r->standby, "", 0, true);
        reach_elector(r);
        return;
    }
    r->candidate = 0;
    r->candidate_ns = 0;
    if (r->listen_fd >= 0) { /* rdzv_open() has seen to it that the port is ours */
        note_local_addr(r);
        host_and_join(r, take_fd(&r->listen_fd));
        return;
    }
    if (r->coordinator) {
        attach_own(r);
        return;
    }
    bool back = member_state_joined(member_state_of(r->member)) && r->have_good && !r->ask;
    if (back || redirect_followed(r)) {
        r->connector = connector_new(r->loop, &r->good, 1, CONNECT_AGAIN_MS, rdzv_on_connected, r);
        return;
    }
    if (r->standby)
        standby_set_coordinator(r->standby, "", 0, false);
    r->discovery->ask = r->ask || r->config.nmore > 0;
    if ((r->discovery->ask || r->config.backend == RDZV_FILE) && r->auth->secret_len &&
        !r->auth->open)
        auth_ready(r->auth, NULL); /* without the key, nobody is asked */
    bool known = r->refused && r->here && !r->discovery->ops->publish && !r->discovery->ask;
    if (known || rdzv_discovery_quick(r->discovery)) {
        if (!known)
            rdzv_discovery_look(r->discovery);
        on_looked(r);
    } else {
        rdzv_work(r, rdzv_discovery_look, on_looked);
    }
}

static void on_retry(uv_timer_t *timer)
{
    reach(container_of(timer, struct rdzv, retry));
}

static uint64_t backoff_ms(struct rdzv *r)
{
    if (r->refused && r->here && !r->config.nmore &&
        !member_state_electing(member_state_of(r->member)))
        return r->attempts < HERE_SOON ? RETRY_HERE_MS : RETRY_LATER_MS;
    r->retry_ms = r->retry_ms < RETRY_MIN_MS ? RETRY_MIN_MS : r->retry_ms * 1.5;
    if (r->retry_ms > RETRY_MAX_MS)
        r->retry_ms = RETRY_MAX_MS;
    uint64_t jitter = uv_hrtime() ^ (uint64_t)getpid() * 0x9e3779b97f4a7c15u;
    return (uint64_t)(r->retry_ms * (0.5 + (double)(jitter % 1024) / 2048));
}

static void on_beat_called(void *arg, int beat)
{
    struct rdzv *r = arg;
    r->beat_call = NULL;
    if (beat >= 0)
        member_take_beat(r->member, beat);
}

static void on_wants_beat(void *arg, const struct node_id *id, uint64_t dead_ns)
{
    struct rdzv *r = arg;
    if (r->beat_call || !r->have_good)
        return;
    r->beat_call =
        beat_call_new(&r->hub, r->beats, &r->good, r->auth, id, dead_ns, on_beat_called, r);
}

static void on_wants_link(void *arg)
{
    struct rdzv *r = arg;
    const struct member_state *m = member_state_of(r->member);
    struct rdzv_info info;
    beat_call_cancel(r->beat_call);
    r->beat_call = NULL;
    if (member_state_answered(m)) {
        r->attempts = 0;
        r->retry_ms = 0;
        r->refused = r->ask = false;
    } else if (r->met && !rdzv_backend_publishes(r->config.backend) && !member_state_electing(m)) {
        member_state_get_info(m, &info); /* who has begun a round stays with its coordinator */
        r->ask = info.gen.counter == 0;
    }
    r->met = false;
    if (r->attempts == 0)
        reach(r);
    else
        uv_timer_start(&r->retry, on_retry, backoff_ms(r), 0);
}

/* ----------------------------------------------------------------------------------------- open */

static void make_member(struct rdzv *r, const struct rdzv_callbacks *callbacks)
{
    const struct member_events events = {r, on_wants_link, on_wants_beat};
    struct member_rules rules = rdzv_config_member_rules(&r->config);
    rules.coordinator = r->where;
    rules.token = r->auth->source;
    r->member = member_new(&r->hub, r->beats, &rules, callbacks, &events);
}

static void advance(void *arg)
{
    struct rdzv *r = arg;
    if (r->moving && !r->closing)
        redirect_move(r);
    if (!r->closing)
        member_advance(r->member);
    if (r->coordinator && !r->tearing_down)
        coordinator_advance(r->coordinator);
    keep_new_list(r);
}

static void on_turn(void *arg)
{
    struct rdzv *r = arg;
    if (r->closing)
        return;
    member_look_at_beats(r->member);
    if (r->coordinator)
        coordinator_look_at_beats(r->coordinator);
    link_hub_wake(&r->hub);
}

#define BEATS_MAX 65536 /* nodes; those beyond send none but on their first connection */

static int open_beats(struct rdzv *r, const struct rdzv_callbacks *callbacks, struct err *e)
{
    const struct rdzv_config *c = &r->config;
    int places = c->max_nodes + c->spares;
    if (places == 1 && c->nproc > 0)
        return 0;
    const struct beats_config config = {
        .loop = r->loop,
        .links = (places < BEATS_MAX ? places : BEATS_MAX) + WITNESSES,
        .heartbeat_ns = (uint64_t)(c->keep_alive_interval * 1e9),
        .dead_ns = rdzv_config_dead_ns(c),
        .on_turn = on_turn,
        .on_lease = callbacks->extend_lease,
        .arg = r,
        .lease_arg = callbacks->arg,
    };
    return beats_open(&r->beats, &config, e);
}

/* Checks what can be checked at once, before anything is started. */
static int look_at_once(struct rdzv *r, struct err *e)
{
    struct rdzv_discovery *f = r->discovery;
    if (!f->ops->quick(f))
        return 0;
    rdzv_discovery_look(f);
    if (f->ops->decide(f, e) != RDZV_ROLE_HOST)
        return 0; /* it will be decided again; nothing is lost */
    log_note(f);
    note_meeting(r);
    int fd = rdzv_host_listen(f, e);
    r->listen_fd = fd >= 0 ? fd : -1;
    return fd >= 0 || fd == -EADDRINUSE ? 0 : fd;
}

int rdzv_open(struct rdzv **out, uv_loop_t *loop, const struct rdzv_config *config,
              const struct rdzv_callbacks *callbacks, struct err *e)
{
    int rc = rdzv_config_check(config, e);
    if (rc < 0)
        return rc;
    struct auth *auth = config->auth ? config->auth : &no_auth;
    /* A thread of the pool asks who answers where the file says: it finds the key ready. */
    if ((config->backend == RDZV_FILE || config->nmore) && auth->secret_len && !auth->open)
        rc = auth_ready(auth, e);
    if (rc < 0)
        return rc;
    struct rdzv *r = xcalloc(1, sizeof(*r));
    r->loop = loop;
    r->config = *config;
    r->listen_fd = -1;
    r->auth = auth;
    r->discovery = rdzv_discovery_new(config);
    r->discovery->auth = r->auth;
    rc = look_at_once(r, e);
    if (rc == 0)
        rc = open_beats(r, callbacks, e);
    if (rc < 0) {
        close_fd(&r->listen_fd);
        rdzv_discovery_free(r->discovery);
        free(r);
        return rc;
    }
    name_endpoint(r);
    uvx_scope_init(&r->scope, loop);
    uv_timer_init(loop, &r->retry);
    uvx_own(&r->scope, &r->retry);
    uv_timer_init(loop, &r->redirect);
    uvx_own(&r->scope, &r->redirect);
    uv_timer_init(loop, &r->keep);
    uvx_own(&r->scope, &r->keep);
    link_hub_init(&r->hub, loop, advance, r);
    r->events = callbacks->events;
    r->on_output = callbacks->on_output;
    r->on_output_arg = callbacks->arg;
    make_member(r, callbacks);
    const struct relay_config relay = {&r->hub, auth,        config->run_id, config->nproc,
                                       r,       serve_store, whereabouts};
    *out = r;
    return config->relay ? relay_open(&r->relay, loop, &relay, e) : 0;
}

/* ------------------------------------------------------------------------------------ the agent */

/* A TCP port of this host on which nothing listens now; 0: none was to be had. Bound and let go
 * again: the kernel does not hand the same one out to the next who asks. */
static int free_port(void)
{
    const struct endpoint_bind any = {.any = true};
    struct endpoint_bind b = any;
    struct netaddr a = {.len = sizeof(a.ss)};
    netaddr_parse_ip(&b.addr, "::", 0);
    _cleanup_fd_ int fd = endpoint_listen(&b, NULL);
    if (fd < 0 || getsockname(fd, &a.sa, &a.len) < 0)
        return 0;
    return netaddr_port(&a);
}

void rdzv_prepared(struct rdzv *r, const uint16_t *ports, int n)
{
    struct rdzv_info info = {0};
    struct member_state *m = member_state_of(r->member);
    member_state_get_info(m, &info);
    int port = !r->config.agent_store && info.group_rank == 0 ? free_port() : 0;
    member_state_prepared(m, ports, n, port);
    link_hub_wake(&r->hub);
}

void rdzv_failed(struct rdzv *r, const struct failure *f)
{
    member_state_failed(member_state_of(r->member), f);
    link_hub_wake(&r->hub);
}

void rdzv_done(struct rdzv *r)
{
    member_state_done(member_state_of(r->member));
    link_hub_wake(&r->hub);
}

void rdzv_stopped(struct rdzv *r, const struct failure *all, size_t n)
{
    member_state_stopped(member_state_of(r->member), all, n);
    link_hub_wake(&r->hub);
}

void rdzv_leave(struct rdzv *r, enum stop_reason reason, int exit_code, const char *text)
{
    member_state_leave(member_state_of(r->member), reason, exit_code, text);
    link_hub_wake(&r->hub);
}

bool rdzv_request(struct rdzv *r, const struct rdzv_request *request)
{
    return member_request(r->member, request);
}

void rdzv_answer(struct rdzv *r, const struct rdzv_answer *answer)
{
    member_answer(r->member, answer);
}

void rdzv_gather(struct rdzv *r, const void *value, size_t len)
{
    member_gather(r->member, value, len);
}

void rdzv_output(struct rdzv *r, struct buf *output)
{
    member_output(r->member, output);
}

void rdzv_output_room(struct rdzv *r)
{
    if (r->coordinator)
        coordinator_output_room(r->coordinator);
    link_hub_wake(&r->hub);
}

void rdzv_events_changed(struct rdzv *r)
{
    if (r->closing || (!r->events->wanted && !r->events->send))
        return;
    if (r->coordinator)
        coordinator_events_changed(r->coordinator);
    link_hub_wake(&r->hub);
}

int rdzv_relay_port(const struct rdzv *r)
{
    return r->relay ? relay_port(r->relay) : 0;
}

void rdzv_get_info(const struct rdzv *r, struct rdzv_info *out)
{
    memset(out, 0, sizeof(*out));
    member_state_get_info(member_state_of(r->member), out);
    out->coordinator = r->coordinator != NULL;
    if (r->coordinator && endpoint_addr(r->endpoint)[0])
        endpoint_format(out->endpoint, sizeof(out->endpoint), endpoint_addr(r->endpoint),
                        endpoint_port(r->endpoint));
    else if (r->coordinator)
        endpoint_format(out->endpoint, sizeof(out->endpoint),
                        r->config.endpoint_host && r->config.endpoint_host[0] &&
                                r->config.backend != RDZV_ETCD
                            ? r->config.endpoint_host
                            : r->config.host,
                        endpoint_port(r->endpoint));
    else if (r->have_good)
        netaddr_format(&r->good, out->endpoint, sizeof(out->endpoint));
}

/* ---------------------------------------------------------------------------------------- close */

void rdzv_abandon(struct rdzv *r)
{
    if (r->endpoint && !r->tearing_down)
        endpoint_abandon(r->endpoint); /* first: who comes again is to be refused */
    link_hub_abandon(&r->hub);
}

static void part_closed(void *arg)
{
    struct rdzv *r = arg;
    if (--r->parts > 0)
        return;
    void (*on_closed)(void *arg) = r->on_closed;
    void *on_closed_arg = r->on_closed_arg;
    rdzv_discovery_free(r->discovery);
    free(r);
    on_closed(on_closed_arg);
}

static void part_shed(void *arg)
{
    struct rdzv *r = arg;
    r->shed--;
    if (r->tearing_down)
        part_closed(r);
}

static void on_withdrawn(struct rdzv *r)
{
    part_closed(r);
}

static void tear_down(struct rdzv *r)
{
    if (r->tearing_down)
        return;
    r->tearing_down = true;
    r->parts = 3 + r->shed;
    if (r->discovery && r->discovery->ops->withdraw && r->discovery->locked) {
        r->parts++;
        rdzv_work(r, r->discovery->ops->withdraw, on_withdrawn);
    }
    if (r->endpoint) {
        r->parts++;
        endpoint_close(r->endpoint, part_closed, r);
    }
    if (r->store) {
        r->parts++;
        store_server_close(r->store, part_closed, r);
    }
    if (r->standby) {
        r->parts++;
        standby_close(r->standby, part_closed, r);
    }
    if (r->coordinator) {
        r->parts++;
        coordinator_close(r->coordinator, part_closed, r);
    }
    if (r->relay) {
        r->parts++;
        relay_close(r->relay, part_closed, r);
    }
    member_close(r->member, part_closed, r);
    if (r->beats) { /* nobody asks it any more */
        r->parts++;
        beats_close(r->beats, part_closed, r);
    }
    link_hub_close(&r->hub, part_closed, r);
    uvx_scope_close(&r->scope, part_closed, r);
}

void rdzv_close(struct rdzv *r, void (*on_closed)(void *arg), void *arg)
{
    r->closing = true;
    r->on_closed = on_closed;
    r->on_closed_arg = arg;
    connector_cancel(r->connector);
    r->connector = NULL;
    beat_call_cancel(r->beat_call);
    r->beat_call = NULL;
    uv_timer_stop(&r->retry);
    uv_timer_stop(&r->redirect);
    uv_timer_stop(&r->keep);
    close_fd(&r->listen_fd);
    struct rdzv_discovery *f =
        r->discovery_request ? r->discovery_request->discovery : r->discovery;
    atomic_store(&f->over, r->coordinator && coordinator_ended(r->coordinator));
    if (r->discovery_request) { /* it may take its time */
        uv_cancel((uv_req_t *)&r->discovery_request->work);
        atomic_store(&r->discovery_request->discovery->stop, true);
        r->discovery_request->rdzv = NULL;
        r->discovery_request = NULL;
    }
    /* The others get the result first. */
    bool wait = r->coordinator && coordinator_ended(r->coordinator) &&
                !coordinator_finished(r->coordinator);
    if (!wait)
        tear_down(r);
}

static void on_hurried(uv_timer_t *t)
{
    tear_down(container_of(t, struct rdzv, retry));
}

void rdzv_hurry(struct rdzv *r)
{
    if (!r->tearing_down && !uv_is_active((uv_handle_t *)&r->retry))
        uv_timer_start(&r->retry, on_hurried, HURRY_MS, 0);
}
