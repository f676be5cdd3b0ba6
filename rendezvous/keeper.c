#include "rendezvous/keeper.h"

#include <stdlib.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/uvx.h"
#include "rendezvous/discovery/backends.h"
#include "rendezvous/discovery/rdzv_name.h"
#include "rendezvous/rdzv_rules.h"
#include "rendezvous/rules/keep.h"
#include "rendezvous/rules/text.h"
#include "rendezvous/wire/auth.h"

/* The period of the redirects. It is much shorter than the last call, before whose end a job of MIN
 * nodes does not begin. One redirect costs a refused connection, or a handshake with a standby. */
#define REDIRECT_MS 1000

struct keeper {
    struct keeper_config config;
    struct uvx_scope scope;
    uv_timer_t keep, redirect;
    bool keeping, telling;       /* a step waits or runs on the pool */
    struct generation keep_list; /* that was the newest one then */
    bool keep_warned;            /* that the place cannot be reached */
    struct two_jobs two_jobs;
    bool wrong_key_logged;
    bool stopped;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* ------------------------------------------------------------------------------------- renewing */

static void on_keep(uv_timer_t *timer);

static bool keeps(const struct keeper *k)
{
    return rdzv_backend_ops(k->config.config->backend)->keep;
}

static void keep_after(struct keeper *k, uint64_t ms)
{
    if (keeps(k) && !k->stopped)
        uv_timer_start(&k->keep, on_keep, ms, 0);
}

static void warn_of_keeping(struct keeper *k, const char *why)
{
    if (why[0] && !k->keep_warned)
        log_warn("this node cannot renew its lease, so that there is no vote of etcd: %s", why);
    else if (!why[0] && k->keep_warned)
        log_notice("etcd answers again");
    k->keep_warned = why[0];
}

static void prepare_to_keep(void *arg, struct rdzv_discovery *f)
{
    struct keeper *k = arg;
    const struct coordinator *c = k->config.coordinator;
    k->keep_list = coordinator_newest_list(c);
    f->by = (struct etcd_coordinator){.list = k->keep_list,
                                      .dead_epoch = coordinator_dead_epoch(c),
                                      .stands = coordinator_stands(c),
                                      .leads = coordinator_leads(c),
                                      .begun = coordinator_has_begun(c) && !coordinator_ended(c)};
    f->listen_port = endpoint_port(k->config.endpoint);
}

static void follow(struct keeper *k, enum keep_verdict verdict, const struct rdzv_discovery *f)
{
    if (verdict == KEEP_VOTE)
        coordinator_hear_arbiter(k->config.coordinator, f->ops->name, f->kept_ns);
    else if (verdict == KEEP_MOVE || verdict == KEEP_TWO_JOBS)
        keeper_elsewhere(k, &f->reported, verdict == KEEP_TWO_JOBS);
}

static void on_kept(void *arg, struct rdzv_discovery *f)
{
    struct keeper *k = arg;
    struct coordinator *c = k->config.coordinator;
    k->keeping = false;
    uint64_t beat_ns = (uint64_t)(k->config.config->keep_alive_interval * 1e9);
    uint64_t dead_ns = rdzv_config_dead_ns(k->config.config);
    warn_of_keeping(k, f->why);
    follow(k, keep_verdict(f->kept, f->found, coordinator_is_elected(c), coordinator_has_begun(c)),
           f);
    keep_after(k, keep_again_ns(beat_ns, dead_ns, f->kept, coordinator_stands(c)) / 1000000);
}

static void on_keep(uv_timer_t *timer)
{
    struct keeper *k = container_of(timer, struct keeper, keep);
    if (k->keeping)
        return;
    k->keeping = true;
    search_run(k->config.search,
               &(struct search_step){k, prepare_to_keep,
                                     rdzv_backend_ops(k->config.config->backend)->keep, on_kept});
}

/* A vote of etcd counts in a list that is recorded there: at once, because an elected coordinator
 * may wait for the vote. */
void keeper_advance(struct keeper *k)
{
    bool waits = uv_is_active((uv_handle_t *)&k->keep);
    if (waits && !generation_equal(coordinator_newest_list(k->config.coordinator), k->keep_list))
        keep_after(k, 0);
}

/* ------------------------------------------------------------------------------------ redirects */

/* Warns of a second job with the same run id. */
static void warn_of_split_brain(struct keeper *k, const struct netaddr *there)
{
    char where[ADDR_STRLEN + 8];
    if (!two_jobs_seen(&k->two_jobs, rdzv_config_dead_ns(k->config.config), mono_ns()))
        return;
    log_warn("another job with the id '%s' runs at %s, begun apart from this one: stop one of the "
             "two, or give it another --rdzv_id",
             k->config.config->run_id, netaddr_format(there, where, sizeof(where)));
}

/* Warns of a launcher that has refused this node, because the two have different job tokens. */
static void warn_of_wrong_key(struct keeper *k, const struct rdzv_discovery *f)
{
    char where[ADDR_STRLEN + 8];
    if (k->wrong_key_logged)
        return;
    k->wrong_key_logged = true;
    log_warn("the launcher at %s has another job token than this node (%s), so that it cannot come "
             "to this job: copy the file, or name it with --token_file",
             netaddr_format(&f->wrong_key, where, sizeof(where)), f->auth->source);
}

void keeper_elsewhere(struct keeper *k, const struct netaddr *there, bool begun)
{
    if (keep_elsewhere(begun) == KEEP_TWO_JOBS)
        warn_of_split_brain(k, there);
    else if (!k->stopped)
        k->config.on_elsewhere(k->config.arg, there);
}

static void prepare_to_tell(void *arg, struct rdzv_discovery *f)
{
    struct keeper *k = arg;
    const char *bound = endpoint_addr(k->config.endpoint);
    int port = endpoint_port(k->config.endpoint);
    f->own.any = !netaddr_parse_ip(&f->own.addr, bound, port);
    if (f->own.any)
        netaddr_parse_ip(&f->own.addr, "::", port);
    text_set(f->own_addr, sizeof(f->own_addr), "%s", bound[0] ? bound : k->config.local_addr);
    if (f->auth->secret_len && !f->auth->open)
        auth_ready(f->auth, NULL); /* without the key, only loopback endpoints are redirected */
}

static void on_redirect(uv_timer_t *timer);

static void on_told(void *arg, struct rdzv_discovery *f)
{
    struct keeper *k = arg;
    k->telling = false;
    if (f->wrong_key.len)
        warn_of_wrong_key(k, f);
    if (f->split_brain.len)
        warn_of_split_brain(k, &f->split_brain);
    else
        k->two_jobs.since_ns = 0;
}

static void on_redirect(uv_timer_t *timer)
{
    struct keeper *k = container_of(timer, struct keeper, redirect);
    uv_timer_start(&k->redirect, on_redirect, REDIRECT_MS, 0);
    if (k->telling || !coordinator_leads(k->config.coordinator))
        return; /* not yet, or not any more */
    k->telling = true;
    search_run(k->config.search,
               &(struct search_step){k, prepare_to_tell, rdzv_discovery_tell, on_told});
}

/* ------------------------------------------------------------------------------- open and close */

struct keeper *keeper_new(const struct keeper_config *config)
{
    struct keeper *k = xcalloc(1, sizeof(*k));
    k->config = *config;
    uvx_scope_init(&k->scope, config->loop);
    uv_timer_init(config->loop, &k->keep);
    uvx_own(&k->scope, &k->keep);
    uv_timer_init(config->loop, &k->redirect);
    uvx_own(&k->scope, &k->redirect);
    keep_after(k, 0);
    if (config->elected && !rdzv_backend_publishes(config->config->backend))
        uv_timer_start(&k->redirect, on_redirect, REDIRECT_MS, 0);
    return k;
}

void keeper_stop(struct keeper *k)
{
    k->stopped = true;
    uv_timer_stop(&k->keep);
    uv_timer_stop(&k->redirect);
    search_forget(k->config.search, k);
}

static void on_scope_closed(void *arg)
{
    struct keeper *k = arg;
    void (*on_closed)(void *arg) = k->on_closed;
    void *on_closed_arg = k->on_closed_arg;
    free(k);
    on_closed(on_closed_arg);
}

void keeper_close(struct keeper *k, void (*on_closed)(void *arg), void *arg)
{
    keeper_stop(k);
    k->on_closed = on_closed;
    k->on_closed_arg = arg;
    uvx_scope_close(&k->scope, on_scope_closed, k);
}
