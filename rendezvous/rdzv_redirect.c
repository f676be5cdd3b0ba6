/* rdzv_redirect.c: a launcher that is started again at the endpoint where the job began cannot know
 * that another coordinator was elected meanwhile, and hosts a new one there. The elected
 * coordinator redirects it, so that there is one job:
 *
 *     elected: rdzv_redirect_start() -> on_redirect(), every second: ELSEWHERE to each configured
 *              endpoint (rdzv_discovery_tell() on the pool)
 *     other:   rdzv_redirect_received() -> rdzv_redirect_move(): the coordinator closes, its
 *              endpoint becomes a standby, and the member connects to the elected coordinator
 *
 *   nobody, or a standby, listens at the endpoint     nothing
 *   the other one has begun a round                   both warn of two jobs
 *   the other one has another job token               both warn of it
 *   the elected coordinator does not answer           the other one hosts again after the dead time
 */
#include "core/log.h"
#include "core/mem.h"
#include "rendezvous/rdzv_rules.h"
#include "rendezvous/rdzv_impl.h"
#include "rendezvous/rules/text.h"

/* The period of the redirects. It is much shorter than the last call, before whose end a job of MIN
 * nodes does not begin. One redirect costs a refused connection, or a handshake with a standby. */
#define REDIRECT_MS 1000

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

/* ---------------------------------------------------------------------- the elected coordinator */

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

void rdzv_redirect_start(struct rdzv *r)
{
    uv_timer_start(&r->redirect, on_redirect, REDIRECT_MS, 0);
}

/* -------------------------------------------------------------- the launcher that is redirected */

void rdzv_redirect_received(void *arg, const struct netaddr *there, bool begun)
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

void rdzv_part_shed(void *arg)
{
    struct rdzv *r = arg;
    r->shed--;
    if (r->tearing_down)
        rdzv_part_closed(r);
}

void rdzv_redirect_move(struct rdzv *r)
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
    coordinator_dismiss(r->coordinator);
    r->shed++;
    coordinator_close(r->coordinator, rdzv_part_shed, r);
    r->coordinator = NULL;
    if (r->store) {
        r->shed++;
        store_server_close(r->store, rdzv_part_shed, r);
        r->store = NULL;
    }
    if (!r->standby)
        r->standby = standby_new(&r->hub, r->config.run_id, r->config.host);
    standby_at_endpoint(r->standby);
    standby_set_coordinator(r->standby, netaddr_ip(&r->good, ip), netaddr_port(&r->good), true);
    if (rdzv_config_may_elect(&r->config) && r->config.nproc > 0)
        member_state_set_peer_port(member_state_of(r->member), endpoint_port(r->endpoint));
}

bool rdzv_redirect_followed(const struct rdzv *r)
{
    return r->moved_ns && uv_hrtime() - r->moved_ns < rdzv_config_dead_ns(&r->config);
}
