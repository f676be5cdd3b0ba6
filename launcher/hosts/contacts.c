#include "launcher/hosts/contacts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "launcher/hosts/plan_options.h"
#include "rendezvous/rules/tree.h"

#define CONNECTING_MAX 64
#define DAEMON_MS      500 /* for a daemon to show that it knows the token, before ssh is tried */

size_t contacts_index(const struct contacts *a, const struct peer *p)
{
    return (size_t)(p - a->peers);
}

void contacts_lose(struct contacts *a, struct peer *p, const char *why, int status)
{
    p->state = PEER_GONE;
    head_rules_absent(a->rules, contacts_index(a, p), why, status);
}

uint64_t contacts_deadline(const struct contacts *a, const struct peer *p)
{
    uint64_t end = p->first_ns + (uint64_t)(a->timeout_s * 1e9);
    uint64_t of_daemon = p->first_ns + DAEMON_MS * 1000000ull;
    bool known = !p->by_daemon || peer_is_known(p) || a->reach.way == REACH_DAEMON;
    return known || end < of_daemon ? end : of_daemon;
}

void contacts_lose_daemon(struct contacts *a, struct peer *p, const char *why, bool again)
{
    char text[ERR_MSG_MAX];
    peer_hang_up(p);
    if (head_rules_ends(a->rules)) {
        contacts_lose(a, p, why, 1);
    } else if (a->reach.way == REACH_BOTH) {
        log_verbose("%s: not by its daemon: %s", p->host->name, why);
        p->no_daemon = true;
        p->state = PEER_WAITING;
        p->next_ns = a->now_ns;
    } else if (again && peer_again(p, contacts_deadline(a, p), a->now_ns)) {
        log_verbose("%s: its daemon: %s; trying again", p->host->name, why);
    } else {
        snprintf(text, sizeof(text), "its daemon, at port %s, cannot be used: %s",
                 opt_text(a->o, OPT_serve_port), why);
        contacts_lose(a, p, text, 1);
    }
}

static void try_daemon(struct contacts *a, struct peer *p)
{
    struct err e = ERR_INIT;
    peer_dial(p);
    uint64_t end = contacts_deadline(a, p);
    int ms = end > a->now_ns ? (int)((end - a->now_ns) / 1000000) : 0;
    if (dial_start(&a->dial, (unsigned)contacts_index(a, p), p->attempts, p->host->name,
                   (int)opt_number(a->o, OPT_serve_port), ms, &e) < 0)
        contacts_lose_daemon(a, p, e.msg, false);
}

void contacts_read(struct contacts *a)
{
    struct dial_result r;
    struct err e = ERR_INIT;
    while (dial_next(&a->dial, &r)) {
        struct peer *p = &a->peers[r.peer];
        if (!p->dialing || p->attempts != r.attempt || p->state != PEER_CONNECTING) {
            close_fd(&r.fd); /* its time was over */
        } else if (r.error == ETIMEDOUT) {
            continue; /* contacts_check() says so */
        } else if (r.fd < 0) {
            contacts_lose_daemon(a, p, r.why, r.error == ECONNREFUSED || r.error == ECONNRESET);
        } else if (peer_connected(p, r.fd, &a->key, &e) < 0) {
            contacts_lose_daemon(a, p, e.msg, false);
        } else {
            peer_write(p);
        }
    }
}

static int try_command(struct contacts *a, struct peer *p, struct err *e)
{
    char *own[] = {(char *)"dlaunch", (char *)"--from_head", NULL};
    if (p->via) {
        peer_start_through(p, reach_argv(&a->reach, a->o, p->host), a->copies.n > 0);
        return 0;
    }
    int rc = peer_start(p, a->spawner, p->is_local ? "/proc/self/exe" : a->reach.path,
                        p->is_local ? own : reach_argv(&a->reach, a->o, p->host), e);
    if (rc == 0 && !p->is_local)
        p->piece[0] = (struct peer_piece){a->copies.p, a->copies.n};
    return rc;
}

/* Whether the host that is to reach this one has come. A host above takes the place of one that is
 * lost. */
static bool way_is_ready(struct peer *p)
{
    while (p->via && !peer_is_left(p->via))
        p->via = p->via->via;
    return !p->via || p->via->state == PEER_READY;
}

void contacts_start(struct contacts *a)
{
    size_t connecting = 0;
    for (size_t i = 0; i < a->npeers; i++)
        connecting += a->peers[i].state == PEER_CONNECTING && !a->peers[i].through;
    for (size_t i = 0; i < a->npeers && connecting < CONNECTING_MAX; i++) {
        struct peer *p = &a->peers[i];
        struct err e = ERR_INIT;
        if (p->state != PEER_WAITING || p->next_ns > a->now_ns || !way_is_ready(p))
            continue;
        if (!p->first_ns)
            p->first_ns = a->now_ns;
        if (a->dial.results >= 0 && !p->is_local && !p->no_daemon && !p->host->user)
            try_daemon(a, p);
        else if (try_command(a, p, &e) < 0)
            contacts_lose(a, p, e.msg, 125);
        connecting += p->state == PEER_CONNECTING && !p->through;
    }
}

void contacts_check(struct contacts *a)
{
    char why[64];
    for (size_t i = 0; i < a->npeers; i++) {
        struct peer *p = &a->peers[i];
        if (p->state != PEER_CONNECTING || a->now_ns < contacts_deadline(a, p))
            continue;
        if (p->by_daemon && a->reach.way == REACH_BOTH && !peer_is_known(p)) {
            snprintf(why, sizeof(why), "it does not answer within %g s", DAEMON_MS / 1e3);
            contacts_lose_daemon(a, p, why, false);
            continue;
        }
        snprintf(why, sizeof(why), "does not answer within %g s (--start_timeout)", a->timeout_s);
        peer_kill(p);
        contacts_lose(a, p, why, 1);
    }
}

/* ---------------------------------------------------------------------------------------- hosts */

/* Where --launch_agent demands the daemon: there must be a token, and no host with another user. */
static int check_daemons(const struct contacts *a, const struct host_list *hosts, struct err *e)
{
    struct options *o = a->o;
    if (a->reach.way != REACH_DAEMON)
        return 0;
    if (!*a->tokens->daemon)
        return err_set(e, -EINVAL,
                       "%s daemon needs the token of the daemons (--token_file, or dlaunch "
                       "--new_token): %.300s",
                       opt_where(o, OPT_launch_agent), a->tokens->why.msg);
    for (size_t i = 0; i < hosts->n; i++) {
        if (hosts->host[i].user)
            return err_set(e, -EINVAL,
                           "%s daemon: %s@%s: a daemon starts jobs of its own user; leave the "
                           "user out, or use ssh",
                           opt_where(o, OPT_launch_agent), hosts->host[i].user,
                           hosts->host[i].name);
    }
    return 0;
}

static void make_peers(struct contacts *a, const struct host_list *hosts)
{
    int width = (int)opt_number(a->o, OPT_ssh_tree), nremote = 0;
    a->npeers = hosts->n;
    if (a->min == a->max && a->npeers > (size_t)(a->max + a->spares))
        a->npeers = (size_t)(a->max + a->spares); /* all must come, so no other is needed */
    a->peers = xcalloc(a->npeers, sizeof(*a->peers));
    struct peer **remote = xcalloc(a->npeers, sizeof(struct peer *));
    for (size_t i = 0; i < a->npeers; i++) {
        struct peer *p = &a->peers[i];
        bool is_local = a->reach.way != REACH_DAEMON && reach_is_here(&hosts->host[i]);
        peer_init(p, &hosts->host[i], (uint32_t)i, is_local, a->reach.srun && !is_local);
        if (!width || is_local)
            continue;
        int via = tree_parent(nremote, -1, width);
        p->via = via < 0 ? NULL : remote[via];
        remote[nremote++] = p;
    }
    free(remote);
}

int contacts_init(struct contacts *a, struct options *o, const struct host_list *hosts,
                  const struct head_tokens *tokens, struct err *e)
{
    *a = (struct contacts){.o = o,
                           .tokens = tokens,
                           .dial = DIAL_INIT,
                           .timeout_s = opt_seconds(o, OPT_start_timeout)};
    if (plan_options_check(o, hosts, e) < 0 ||
        plan_options_nodes(o, hosts->n, &a->min, &a->max, &a->spares, e) < 0 ||
        copies_of_job(&a->copies, o, e) < 0 || reach_init(&a->reach, o, &a->copies, e) < 0 ||
        check_daemons(a, hosts, e) < 0)
        return -EINVAL;
    make_peers(a, hosts);
    return 0;
}

int contacts_open(struct contacts *a, struct err *e)
{
    if (a->reach.way == REACH_COMMAND || !*a->tokens->daemon)
        return 0;
    int rc = host_stream_key(&a->key, a->tokens->daemon, e);
    if (rc < 0 && a->reach.way == REACH_BOTH) {
        log_verbose("daemons are not tried: %s", e->msg);
        *e = (struct err)ERR_INIT;
        return 0;
    }
    return rc == 0 ? dial_open(&a->dial, e) : rc;
}

void contacts_fini(struct contacts *a)
{
    for (size_t i = 0; i < a->npeers; i++)
        peer_fini(&a->peers[i]);
    free(a->peers);
    dial_close(&a->dial);
    tls_wipe(&a->key, sizeof(a->key));
}
