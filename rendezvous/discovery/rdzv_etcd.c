/* Nodes meet at etcd servers: the coordinator's address is published in etcd, in the key
 * PREFIX/RUN_ID/coordinator, and the newest list of members in PREFIX/RUN_ID/round. The rules, what
 * is asked and what follows, are in etcd_rules.h; this file asks, on a thread of the pool. */
#include "rendezvous/discovery/rdzv_etcd.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/mem.h"
#include "rendezvous/discovery/etcd_api.h"
#include "rendezvous/discovery/notice_board.h"
#include "rendezvous/rules/text.h"

#define CLAIM "dlaunch-claim "

/* ------------------------------------------------------------------------------------ the state */

struct rdzv_etcd {
    struct etcd_config config; /* its strings are owned */
    struct etcd *client;
    char *key, *round_key;
    struct etcd_rules *rules;
    int lease_s;
    char claim[64];
    char line[NOTICE_BOARD_MAX]; /* of this node while it listens on `port`; 0: none yet */
    int port;
};

static char *copy(const char *text)
{
    return text ? xstrdup(text) : NULL;
}

static void etcd_open(struct rdzv_discovery *f, const struct rdzv_config *c)
{
    const struct rdzv_etcd_config *from = &c->etcd;
    struct rdzv_etcd *d = xcalloc(1, sizeof(*d));
    struct etcd_config *to = &d->config;
    _Static_assert(ETCD_SERVERS_MAX >= RDZV_PLACES_MAX, "room for each endpoint");
    for (int i = 0; i <= c->nmore; i++)
        to->servers[to->nservers++] =
            (struct etcd_server){xstrdup(i ? c->more[i - 1].host : c->endpoint_host),
                                 i ? c->more[i - 1].port : c->endpoint_port};
    to->tls = from->tls;
    to->files = (struct tls_files){copy(from->ca), copy(from->cert), copy(from->key)};
    to->user = copy(from->user);
    to->password = copy(from->password);
    d->client = etcd_new(to);
    d->key = xasprintf("%s/%s/coordinator", from->prefix, c->run_id);
    d->round_key = xasprintf("%s/%s/round", from->prefix, c->run_id);
    double dead_s = c->keep_alive_interval * c->keep_alive_max_attempt;
    d->lease_s = (int)ceil(dead_s);
    d->rules = etcd_rules_new(&(struct etcd_rules_config){
        .key = d->key, .dead_ns = (uint64_t)(dead_s * 1e9), .may_host = c->is_host != 0});
    snprintf(d->claim, sizeof(d->claim), CLAIM "%d %" PRIx64, (int)getpid(), mono_ns());
    f->etcd = d;
}

static void etcd_close(struct rdzv_discovery *f)
{
    struct rdzv_etcd *d = f->etcd;
    struct etcd_config *c = &d->config;
    for (int i = 0; i < c->nservers; i++)
        free((char *)c->servers[i].host);
    free((char *)c->files.ca);
    free((char *)c->files.cert);
    free((char *)c->files.key);
    free((char *)c->user);
    if (c->password)
        tls_wipe((char *)c->password, strlen(c->password));
    free((char *)c->password);
    etcd_free(d->client);
    etcd_rules_free(d->rules);
    free(d->key);
    free(d->round_key);
    free(d);
}

/* The text of this node in the key: the same one as long as it listens there. */
static const char *line_of(struct rdzv_discovery *f)
{
    struct rdzv_etcd *d = f->etcd;
    if (d->port != f->listen_port)
        notice_board_format(f, d->line, sizeof(d->line));
    d->port = f->listen_port;
    return d->line;
}

/* ------------------------------------------------------------------------------------ questions */

static int read_key(const struct rdzv_etcd *d, struct etcd_answer *a, char **value, struct err *e)
{
    struct notice_board b;
    int rc = etcd_get(d->client, d->key, value, e);
    char *line = *value ? xstrdup(*value) : NULL;
    a->value = *value;
    a->kind = !line                                          ? ETCD_NOTHING
              : strncmp(line, CLAIM, strlen(CLAIM)) == 0     ? ETCD_CLAIM
              : notice_board_parse(line, &b) && b.naddrs > 0 ? ETCD_LINE
                                                             : ETCD_FOREIGN;
    free(line);
    return rc;
}

static int read_round(const struct rdzv_etcd *d, struct etcd_answer *a, struct err *e)
{
    struct generation *g = &a->round;
    char *value;
    unsigned counter = 0, taken = 0;
    int rc = etcd_get(d->client, d->round_key, &value, e);
    if (value && sscanf(value, "%16" SCNx64 " %u %u", &g->epoch, &counter, &taken) < 2)
        rc = err_set(e, -EINVAL, "etcd: something else is in the key %s", d->round_key);
    g->counter = counter;
    a->taken = taken;
    free(value);
    return rc;
}

static int put(const struct rdzv_etcd *d, const struct etcd_action *a, struct err *e)
{
    char round[48];
    struct etcd_put puts[2];
    int n = 0;
    text_set(round, sizeof(round), "%016" PRIx64 " %u%s", a->round.epoch,
             (unsigned)a->round.counter, a->taken ? " 1" : "");
    if (a->key != ETCD_LEAVE)
        puts[n++] = (struct etcd_put){d->key, a->key == ETCD_SET ? a->value : NULL, a->lease};
    if (a->record != ETCD_LEAVE)
        puts[n++] = (struct etcd_put){d->round_key, a->record == ETCD_SET ? round : NULL, 0};
    return etcd_put_if(d->client, d->key, a->is, puts, n, e);
}

/* Asks what the rules want to know. The text that it may return is the answer's value. */
static char *ask(struct rdzv_discovery *f, const struct etcd_action *a, struct etcd_answer *answer,
                 struct err *e)
{
    struct rdzv_etcd *d = f->etcd;
    char *value = NULL;
    int rc = 0;
    switch (a->act) {
    case ETCD_ACT_READ:
        rc = read_key(d, answer, &value, e);
        break;
    case ETCD_ACT_ROUND:
        rc = read_round(d, answer, e);
        break;
    case ETCD_ACT_GRANT:
        rc = etcd_grant(d->client, d->lease_s, &answer->lease, e);
        break;
    case ETCD_ACT_PUT:
        rc = put(d, a, e);
        break;
    case ETCD_ACT_RENEW:
        rc = etcd_keep_alive(d->client, a->lease, e);
        break;
    case ETCD_ACT_REVOKE:
        rc = etcd_revoke(d->client, a->lease, e);
        break;
    case ETCD_ACT_PAUSE:
        usleep(ETCD_PAUSE_NS / 1000);
        rc = atomic_load(&f->stop) ? -ECANCELED : 0;
        break;
    case ETCD_ACT_DONE:
        break;
    }
    answer->yes = rc > 0;
    answer->rc = rc < 0 ? rc : 0;
    answer->why = rc < 0 ? e->msg : "";
    answer->revision = rc < 0 ? 0 : etcd_revision(d->client);
    return value;
}

/* Where another coordinator is. */
static void found(struct rdzv_discovery *f, const char *line)
{
    struct notice_board b;
    char *copied = xstrdup(line);
    if (notice_board_parse(copied, &b) && b.naddrs > 0) {
        notice_board_join(f, &b);
        f->reported = b.addrs[0];
        f->found = true;
    }
    free(copied);
}

/* The operation that has begun, to its end. */
static void run(struct rdzv_discovery *f)
{
    struct etcd_action a = {.act = ETCD_ACT_READ};
    f->found = false;
    f->status = f->naddrs = 0;
    while (a.act != ETCD_ACT_DONE && etcd_rules_next(f->etcd->rules, &a)) {
        struct etcd_answer answer = {0};
        struct err e = ERR_INIT;
        if (a.act == ETCD_ACT_DONE)
            break;
        char *value = ask(f, &a, &answer, &e);
        etcd_rules_answered(f->etcd->rules, &answer, lease_clock_ns());
        free(value);
    }
    if (a.outcome == ETCD_THEIRS)
        found(f, a.value);
    f->kept = a.outcome == ETCD_OURS;
    f->locked = etcd_rules_holds(f->etcd->rules);
    f->status = a.outcome == ETCD_FAILED ? a.rc : a.outcome == ETCD_WAIT ? -EAGAIN : 0;
    text_set(f->why, sizeof(f->why), "%s", f->status < 0 ? a.why : "");
}

/* ----------------------------------------------------------------------------------- operations */

static void etcd_look(struct rdzv_discovery *f)
{
    struct err e = ERR_INIT;
    if (rdzv_discovery_resolve_local(f) < 0)
        return;
    int rc = f->etcd->config.tls ? tls_load(&e) : 0;
    if (rc < 0) {
        text_set(f->why, sizeof(f->why), "%s", e.msg);
        f->status = rc;
        return;
    }
    etcd_rules_look(f->etcd->rules, f->etcd->claim, lease_clock_ns());
    run(f);
}

static enum rdzv_role etcd_decide(struct rdzv_discovery *f, struct err *e)
{
    int rc = f->status;
    if (rc == -EACCES || rc == -EOPNOTSUPP || rc == -EINVAL) {
        err_set(e, rc, "%s", f->why);
        return RDZV_ROLE_FAIL;
    }
    if (rc < 0)
        return RDZV_ROLE_RETRY;
    if (f->found)
        return RDZV_ROLE_JOIN;
    return rdzv_discovery_host(f, 0);
}

static void etcd_publish(struct rdzv_discovery *f)
{
    etcd_rules_publish(f->etcd->rules, line_of(f), lease_clock_ns());
    run(f);
    if (f->status == -EAGAIN) /* everything ends */
        f->status = 0;
}

static void etcd_withdraw(struct rdzv_discovery *f)
{
    etcd_rules_withdraw(f->etcd->rules, atomic_load(&f->over), lease_clock_ns());
    run(f);
}

static void etcd_keep(struct rdzv_discovery *f)
{
    f->kept_ns = lease_clock_ns();
    etcd_rules_keep(f->etcd->rules, &f->by, line_of(f), f->kept_ns);
    run(f);
    if (f->status == -EAGAIN) /* no trouble of etcd's */
        f->why[0] = '\0';
    if (atomic_load(&f->stop))
        etcd_withdraw(f);
}

static bool etcd_quick(const struct rdzv_discovery *f)
{
    (void)f;
    return false;
}

static int etcd_check(const struct rdzv_config *c, struct err *e)
{
    if (!c->endpoint_host || !c->endpoint_host[0])
        return err_set(e, -EINVAL,
                       "the etcd rendezvous needs a server (--rdzv_endpoint HOST:PORT)");
    assert(c->etcd.prefix);
    return 0;
}

const struct rdzv_backend_ops rdzv_etcd_ops = {.name = "etcd",
                                               .open = etcd_open,
                                               .close = etcd_close,
                                               .check = etcd_check,
                                               .quick = etcd_quick,
                                               .look = etcd_look,
                                               .decide = etcd_decide,
                                               .publish = etcd_publish,
                                               .withdraw = etcd_withdraw,
                                               .keep = etcd_keep};
