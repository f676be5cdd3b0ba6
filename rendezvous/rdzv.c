/* The facade: wires the parts together.
 *
 *     member        this launcher's side of the rendezvous
 *     reach_driver  finds the coordinator, or becomes it
 *     host          this launcher's port: coordinator, store, standby
 *     search        the backend, on the pool when it may block
 *     beats, relay  heartbeats; the workers' store on loopback of each node */
#include "rendezvous/rdzv.h"

#include <stdlib.h>
#include <string.h>

#include "core/fd.h"
#include "core/mem.h"
#include "core/uvx.h"
#include "rendezvous/host.h"
#include "rendezvous/rdzv_rules.h"
#include "rendezvous/reach_driver.h"

#define HURRY_MS  1000 /* longest wait for nodes that have not taken the result */
#define WITNESSES 64   /* places for heartbeats of launchers without workers */

static struct auth no_auth = {.open = true};

struct rdzv {
    uv_loop_t *loop;
    struct rdzv_config config;
    struct link_hub hub;
    struct beats *beats;      /* NULL: one node */
    struct event_log *events; /* NULL: none is kept */
    struct search *search;
    struct reach_driver *reach;
    struct member *member;
    struct host *host;
    struct relay *relay; /* NULL: none */
    uv_timer_t hurry;
    struct uvx_scope scope;

    bool closing, tearing_down;
    unsigned parts; /* not yet closed */
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

static void tear_down(struct rdzv *r);

/* ------------------------------------------------------------------------------------- callbacks
 */

static void on_wants_link(void *arg)
{
    struct rdzv *r = arg;
    reach_driver_wants_link(r->reach);
}

static void on_wants_beat(void *arg, const struct node_id *id, uint64_t dead_ns)
{
    struct rdzv *r = arg;
    reach_driver_wants_beat(r->reach, id, dead_ns);
}

static void on_coordinator_finished(void *arg)
{
    struct rdzv *r = arg;
    if (r->closing)
        tear_down(r);
}

static void on_elsewhere(void *arg, const struct netaddr *there)
{
    struct rdzv *r = arg;
    reach_driver_redirect(r->reach, there);
}

static bool serve_store(void *arg, int fd)
{
    struct rdzv *r = arg;
    return host_serve_store(r->host, fd);
}

static bool whereabouts(void *arg, struct netaddr *out)
{
    const struct rdzv *r = arg;
    return reach_driver_address(r->reach, out);
}

static void advance(void *arg)
{
    struct rdzv *r = arg;
    if (!r->closing) {
        reach_driver_advance(r->reach);
        member_advance(r->member);
    }
    host_advance(r->host);
}

static void on_turn(void *arg)
{
    struct rdzv *r = arg;
    if (r->closing)
        return;
    member_look_at_beats(r->member);
    if (host_coordinator(r->host))
        coordinator_look_at_beats(host_coordinator(r->host));
    link_hub_wake(&r->hub);
}

/* ----------------------------------------------------------------------------------------- open */

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

static void make_member(struct rdzv *r, const struct rdzv_callbacks *callbacks, struct auth *auth)
{
    const struct member_events events = {r, on_wants_link, on_wants_beat};
    struct member_rules rules = rdzv_config_member_rules(&r->config);
    rules.coordinator = reach_driver_where(r->reach);
    rules.token = auth->source;
    r->member = member_new(&r->hub, r->beats, &rules, callbacks, &events);
}

static void make_host(struct rdzv *r, const struct rdzv_callbacks *callbacks, struct auth *auth)
{
    const struct host_config config = {.loop = r->loop,
                                       .config = &r->config,
                                       .auth = auth,
                                       .hub = &r->hub,
                                       .beats = r->beats,
                                       .events = callbacks->events,
                                       .search = r->search,
                                       .member = r->member,
                                       .output_arg = callbacks->arg,
                                       .on_output = callbacks->on_output,
                                       .arg = r,
                                       .on_finished = on_coordinator_finished,
                                       .on_elsewhere = on_elsewhere};
    r->host = host_new(&config);
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
    r->events = callbacks->events;
    r->search = search_new(loop, config);
    search_idle(r->search)->auth = auth;
    const struct reach_driver_config reach = {loop, &r->config, auth, &r->hub, r->search};
    rc = reach_driver_new(&r->reach, &reach, e);
    if (rc == 0) {
        rc = open_beats(r, callbacks, e);
        if (rc < 0)
            reach_driver_free(r->reach);
    }
    if (rc < 0) {
        search_free(r->search);
        free(r);
        return rc;
    }
    uvx_scope_init(&r->scope, loop);
    uv_timer_init(loop, &r->hurry);
    uvx_own(&r->scope, &r->hurry);
    link_hub_init(&r->hub, loop, advance, r);
    make_member(r, callbacks, auth);
    make_host(r, callbacks, auth);
    reach_driver_start(r->reach, r->beats, r->host, r->member);
    const struct relay_config relay = {&r->hub, auth,        config->run_id, config->nproc,
                                       r,       serve_store, whereabouts};
    *out = r;
    rc = config->relay ? relay_open(&r->relay, loop, &relay, e) : 0;
    host_set_relay(r->host, r->relay);
    return rc;
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
    if (host_coordinator(r->host))
        coordinator_output_room(host_coordinator(r->host));
    link_hub_wake(&r->hub);
}

void rdzv_events_changed(struct rdzv *r)
{
    if (r->closing || (!r->events->wanted && !r->events->send))
        return;
    if (host_coordinator(r->host))
        coordinator_events_changed(host_coordinator(r->host));
    link_hub_wake(&r->hub);
}

int rdzv_relay_port(const struct rdzv *r)
{
    return r->relay ? relay_port(r->relay) : 0;
}

void rdzv_get_info(const struct rdzv *r, struct rdzv_info *out)
{
    const struct rdzv_config *c = &r->config;
    struct netaddr at;
    memset(out, 0, sizeof(*out));
    member_state_get_info(member_state_of(r->member), out);
    out->coordinator = host_coordinator(r->host) != NULL;
    bool named = c->endpoint_host && c->endpoint_host[0] && c->backend != RDZV_ETCD;
    const char *bound = host_addr(r->host);
    if (out->coordinator)
        endpoint_format(out->endpoint, sizeof(out->endpoint),
                        bound[0] ? bound
                        : named  ? c->endpoint_host
                                 : c->host,
                        host_port(r->host));
    else if (reach_driver_address(r->reach, &at))
        netaddr_format(&at, out->endpoint, sizeof(out->endpoint));
}

/* ---------------------------------------------------------------------------------------- close */

void rdzv_abandon(struct rdzv *r)
{
    host_abandon(r->host);
    link_hub_abandon(&r->hub);
}

static void part_closed(void *arg)
{
    struct rdzv *r = arg;
    if (--r->parts > 0)
        return;
    void (*on_closed)(void *arg) = r->on_closed;
    void *on_closed_arg = r->on_closed_arg;
    search_free(r->search);
    free(r);
    on_closed(on_closed_arg);
}

static void tear_down(struct rdzv *r)
{
    if (r->tearing_down)
        return;
    r->tearing_down = true;
    r->parts = 5; /* host, reach, member, hub, scope */
    r->parts += search_withdraw(r->search, part_closed, r);
    host_close(r->host, part_closed, r);
    reach_driver_close(r->reach, part_closed, r);
    if (r->relay) {
        r->parts++;
        relay_close(r->relay, part_closed, r);
    }
    member_close(r->member, part_closed, r);
    if (r->beats) { /* nobody uses the heartbeats any more */
        r->parts++;
        beats_close(r->beats, part_closed, r);
    }
    link_hub_close(&r->hub, part_closed, r);
    uvx_scope_close(&r->scope, part_closed, r);
}

void rdzv_close(struct rdzv *r, void (*on_closed)(void *arg), void *arg)
{
    struct coordinator *c = host_coordinator(r->host);
    r->closing = true;
    r->on_closed = on_closed;
    r->on_closed_arg = arg;
    reach_driver_stop(r->reach);
    host_stop(r->host);
    search_stop(r->search, c && coordinator_ended(c));
    /* The other nodes get the result before this node leaves. */
    bool wait = c && coordinator_ended(c) && !coordinator_finished(c);
    if (!wait)
        tear_down(r);
}

static void on_hurried(uv_timer_t *t)
{
    tear_down(container_of(t, struct rdzv, hurry));
}

void rdzv_hurry(struct rdzv *r)
{
    if (!r->tearing_down && !uv_is_active((uv_handle_t *)&r->hurry))
        uv_timer_start(&r->hurry, on_hurried, HURRY_MS, 0);
}
