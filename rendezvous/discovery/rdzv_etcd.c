/* The etcd backend: the coordinator's address is published in etcd. Two keys:
 *
 *     PREFIX/RUN_ID/coordinator   notice_board.h's line, under a lease of the launcher that hosts
 *                                 the coordinator; before that launcher listens, a claim
 *     PREFIX/RUN_ID/round         the newest list of members that has a vote of etcd: its epoch and
 *                                 its counter. Not under a lease
 *
 *   neither                       claim, listen, publish, host
 *   a line                        join at the addresses in it
 *   a claim                       look again
 *   a round without coordinator   its coordinator is lost, and its nodes are about to elect another
 *                                 one: the first key stays free for WAIT_NS, then as above
 *   something else                not ours: left alone, an error
 *
 * Who holds the first key is etcd's vote. A coordinator renews it (keep()) with each heartbeat, and
 * then counts etcd as a witness that it has just heard of (coordinator_hear_arbiter()); so a node
 * of two can go on when the other one is lost. What a witness promises, etcd does, because:
 *
 * - A launcher gets the key when it is free, that is at the earliest the lease's TTL after the last
 *   renewal of the launcher that had it, and a TTL is a dead time at least. So etcd votes for
 *   another coordinator when it has not heard of the former one for the dead time.
 * - A candidate gets it only if it knows the list in `round` or a newer one; and a list with a vote
 *   of etcd counts when it is in `round` (has_vote in rdzv_election.c).
 * - A coordinator that the members have elected without etcd takes the key from the former one,
 *   which then can no longer renew it; and a candidate takes it from one whose end is proven. */
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

#define CLAIM      "dlaunch-claim "
#define WAIT_NS    3000000000u /* a candidate asks for the key several times in a second */
#define PUBLISH_MS 200         /* from one attempt to publish to the next */
#define PUBLISHES  15

/* ------------------------------------------------------------------------------------ the state */

struct rdzv_etcd {
    struct etcd_config config; /* its strings are owned */
    struct etcd *client;
    char *key, *round_key;
    int64_t lease;
    char *line;       /* the value that this node has put under the lease; NULL: none */
    uint64_t lost_ns; /* since when `round` has been seen without a coordinator; 0: it has not */
    struct generation recorded;
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
    f->etcd = d;
    f->lease_s = (int)ceil(c->keep_alive_interval * c->keep_alive_max_attempt);
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
    free(d->key);
    free(d->round_key);
    free(d->line);
    free(d);
}

static int trouble(struct rdzv_discovery *f, int rc, const struct err *e)
{
    text_set(f->why, sizeof(f->why), "%s", e->msg);
    return f->status = rc;
}

static int not_now(struct rdzv_discovery *f, const char *why)
{
    text_set(f->why, sizeof(f->why), "%s", why);
    return f->status = -EAGAIN;
}

/* Remembers which value this node has put into the key; NULL: none. */
static void set_line(struct rdzv_discovery *f, const char *line)
{
    char *old = f->etcd->line;
    f->etcd->line = copy(line);
    free(old);
    f->locked = line != NULL;
    f->etcd->recorded = (struct generation){0};
}

/* The key is another launcher's, or free: the lease is worth nothing. */
static void lose_key(struct rdzv_discovery *f)
{
    struct err e = ERR_INIT;
    set_line(f, NULL);
    if (f->etcd->lease)
        etcd_revoke(f->etcd->client, f->etcd->lease, &e); /* else it ends by itself */
    f->etcd->lease = 0;
}

static void round_text(char out[48], struct generation g)
{
    text_set(out, 48, "%016" PRIx64 " %u", g.epoch, (unsigned)g.counter);
}

/* `round`; zero: there is none. */
static int get_round(struct rdzv_discovery *f, struct generation *g, struct err *e)
{
    char *value;
    unsigned counter = 0;
    int rc = etcd_get(f->etcd->client, f->etcd->round_key, &value, e);
    *g = (struct generation){0};
    if (value && sscanf(value, "%16" SCNx64 " %u", &g->epoch, &counter) != 2)
        rc = err_set(e, -EINVAL, "etcd: something else is in the key %s", f->etcd->round_key);
    g->counter = counter;
    free(value);
    return rc;
}

/* Puts the value into the key under a lease, if the key has the value `is`, and the list into
 * `round`. 1: done; 0: it has another value. */
static int take_key(struct rdzv_discovery *f, const char *is, const char *line,
                    struct generation list, struct err *e)
{
    struct rdzv_etcd *d = f->etcd;
    char round[48], *now = NULL;
    int rc = d->lease ? 0 : etcd_grant(d->client, f->lease_s, &d->lease, e);
    round_text(round, list);
    const struct etcd_put puts[] = {{d->key, line, d->lease}, {d->round_key, round, 0}};
    if (rc == 0)
        rc = etcd_put_if(d->client, d->key, is, puts, list.counter ? 2 : 1, e);
    if (rc == 0) /* or an answer was lost */
        rc = etcd_get(d->client, d->key, &now, e);
    bool ours = rc == 1 || (rc == 0 && now && strcmp(now, line) == 0);
    free(now);
    if (ours) {
        set_line(f, line);
        d->recorded = list;
    } else {
        lose_key(f);
    }
    return rc < 0 ? rc : ours;
}

/* ----------------------------------------------------------------------------------------- look */

/* The key is another launcher's. */
static void join_value(struct rdzv_discovery *f, char *value)
{
    struct notice_board b;
    if (strncmp(value, CLAIM, strlen(CLAIM)) == 0) {
        not_now(f, "a launcher is about to become the coordinator");
    } else if (notice_board_parse(value, &b)) {
        notice_board_join(f, &b);
    } else {
        text_set(f->why, sizeof(f->why), "etcd: something else is in the key %s", f->etcd->key);
        f->status = -EINVAL;
    }
}

/* Nobody has the key. */
static void claim(struct rdzv_discovery *f)
{
    struct err e = ERR_INIT;
    struct generation round;
    char text[64];
    int rc = get_round(f, &round, &e);
    if (rc < 0) {
        trouble(f, rc, &e);
        return;
    }
    if (round.counter && !f->etcd->lost_ns)
        f->etcd->lost_ns = mono_ns();
    if (f->is_host == 0) {
        not_now(f, "no launcher has become the coordinator");
        return;
    }
    if (round.counter && mono_ns() - f->etcd->lost_ns < WAIT_NS) {
        not_now(f, "the coordinator is lost, and its nodes may be about to elect another one");
        return;
    }
    text_set(text, sizeof(text), CLAIM "%d %" PRIx64, (int)getpid(), mono_ns());
    rc = take_key(f, NULL, text, (struct generation){0}, &e);
    if (rc < 0)
        trouble(f, rc, &e);
    else if (rc == 0)
        not_now(f, "a launcher is about to become the coordinator");
}

static void etcd_look(struct rdzv_discovery *f)
{
    struct err e = ERR_INIT;
    char *value = NULL;
    f->naddrs = 0;
    if (rdzv_discovery_resolve_local(f) < 0)
        return;
    int rc = f->etcd->config.tls ? tls_load(&e) : 0;
    if (rc == 0)
        rc = etcd_get(f->etcd->client, f->etcd->key, &value, &e);
    if (rc < 0) {
        trouble(f, rc, &e);
    } else if (value && f->etcd->line && strcmp(value, f->etcd->line) == 0) {
        f->locked = true; /* since the last look */
    } else {
        lose_key(f);
        if (value)
            join_value(f, value);
        else
            claim(f);
    }
    free(value);
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
    if (!f->locked)
        return RDZV_ROLE_JOIN;
    return rdzv_discovery_host(f, 0);
}

/* ------------------------------------------------------------------------- publish, keep, withdraw
 */

static int publish_once(struct rdzv_discovery *f, const char *line, struct err *e)
{
    struct rdzv_etcd *d = f->etcd;
    const struct etcd_put puts[] = {{d->key, line, d->lease}, {d->round_key, NULL, 0}};
    char *now = NULL;
    int rc = etcd_put_if(d->client, d->key, d->line, puts, 2, e);
    if (rc == 0) /* or an answer was lost */
        rc = etcd_get(d->client, d->key, &now, e);
    if (rc == 0)
        rc = now && strcmp(now, line) == 0
                 ? 1
                 : err_set(e, -ESTALE, "etcd: the lease of %s ended before this node was ready",
                           d->key);
    free(now);
    return rc;
}

/* A new job: the list of an earlier one is none of its own. */
static void etcd_publish(struct rdzv_discovery *f)
{
    char line[NOTICE_BOARD_MAX];
    struct err e = ERR_INIT;
    int rc = 0;
    notice_board_format(f, line, sizeof(line));
    for (int i = 0; i < PUBLISHES && rc <= 0 && rc != -ESTALE && !atomic_load(&f->stop); i++) {
        if (i)
            usleep(PUBLISH_MS * 1000);
        rc = publish_once(f, line, &e);
    }
    f->status = 0;
    if (rc < 0)
        trouble(f, rc, &e);
    else
        set_line(f, line);
}

static void etcd_withdraw(struct rdzv_discovery *f)
{
    struct rdzv_etcd *d = f->etcd;
    struct err e = ERR_INIT;
    const struct etcd_put puts[] = {{d->key, NULL, 0}, {d->round_key, NULL, 0}};
    if (d->line && atomic_load(&f->over))
        etcd_put_if(d->client, d->key, d->line, puts, 2, &e);
    lose_key(f); /* the key goes with its lease */
}

/* Whether this coordinator may take the key from that of the round: it was elected after it, or the
 * other one is known to have ended, and this candidate knows who has a vote. */
static bool may_oust(const struct rdzv_discovery *f, struct generation round)
{
    bool ended = round.epoch && round.epoch == f->dead_epoch;
    return (f->leads && round.epoch < f->list_gen.epoch) ||
           (ended && !generation_before(f->list_gen, round));
}

/* The value is another coordinator's. */
static int oust(struct rdzv_discovery *f, char *value, struct err *e)
{
    struct notice_board b;
    struct generation round;
    char line[NOTICE_BOARD_MAX], *was = xstrdup(value);
    int rc = get_round(f, &round, e);
    if (rc == 0 && may_oust(f, round)) {
        notice_board_format(f, line, sizeof(line));
        rc = take_key(f, was, line, f->list_gen, e);
    } else if (rc == 0 && notice_board_parse(value, &b) && b.naddrs > 0) {
        f->reported = b.addrs[0];
        f->found = true;
    }
    free(was);
    return rc;
}

static int get_key(struct rdzv_discovery *f, struct err *e)
{
    char line[NOTICE_BOARD_MAX], *value;
    struct generation round;
    int rc = etcd_get(f->etcd->client, f->etcd->key, &value, e);
    if (rc == 0 && value) {
        rc = oust(f, value, e);
        free(value);
        return rc;
    }
    if (rc == 0)
        rc = get_round(f, &round, e);
    if (rc < 0 || generation_before(f->list_gen, round))
        return rc; /* this candidate does not know who has a vote */
    notice_board_format(f, line, sizeof(line));
    return take_key(f, NULL, line, f->list_gen, e);
}

/* 1: the key is this node's, and the list is recorded. */
static int renew_key(struct rdzv_discovery *f, struct err *e)
{
    struct rdzv_etcd *d = f->etcd;
    char round[48], *value = NULL;
    bool newer = generation_before(d->recorded, f->list_gen);
    const struct etcd_put puts[] = {{d->round_key, round, 0}};
    round_text(round, f->list_gen);
    int rc = etcd_put_if(d->client, d->key, d->line, puts, newer, e);
    if (rc == 1)
        rc = etcd_keep_alive(d->client, d->lease, e);
    if (rc == 1)
        d->recorded = newer ? f->list_gen : d->recorded;
    if (rc == 0) {
        lose_key(f);
        rc = etcd_get(d->client, d->key, &value, e);
        if (rc == 0 && value)
            rc = oust(f, value, e);
        free(value);
    }
    return rc;
}

static void etcd_keep(struct rdzv_discovery *f)
{
    struct err e = ERR_INIT;
    f->kept_ns = lease_clock_ns();
    f->found = false;
    int rc = f->etcd->line ? renew_key(f, &e) : get_key(f, &e);
    f->kept = rc == 1;
    text_set(f->why, sizeof(f->why), "%s", rc < 0 ? e.msg : "");
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
