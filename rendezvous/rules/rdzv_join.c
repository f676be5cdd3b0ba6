/* rdzv_join.c: which nodes may join, which were turned away, and the notices while nodes wait. */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/rdzv_state_impl.h"
#include "rendezvous/rules/text.h"

#define NAMES_MAX         8 /* in one line */
#define NOTICE_NS         5000000000u
#define NOTICE_LATER_NS   30000000000u
#define ATTEMPT_LOG_NS    30000000000u
#define WITNESSES_MAX     8
#define SPARES_MAX(nodes) (64 + (nodes) / 4)

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

const char *rdzv_join_name(const struct rdzv_node *n, char *out, size_t cap)
{
    text_set(out, cap, "%s", n->hello.host);
    if (n->peer.addr[0])
        text_add(out, cap, " (%s)", n->peer.addr);
    return out;
}

/* ------------------------------------------------------------------------------------ joining */

static const char *backend_name(enum rdzv_backend b)
{
    static const char *const names[] = {"static", "c10d", "file"};
    return names[b];
}

static void nnodes_text(char out[32], int min, int max)
{
    if (min == max)
        text_set(out, 32, "%d", max);
    else
        text_set(out, 32, "%d:%d", min, max);
}

static const char *store_name(bool agent_store, bool relay)
{
    return relay ? "relay" : agent_store ? "agent" : "none";
}

/* Whether a hello belongs to another job or has other settings. True: text gives the reason. */
static bool other_job(const struct rdzv_state *s, const struct rdzv_hello *h, char *text,
                      size_t cap)
{
    const struct rdzv_rules *r = &s->rules;
    char ours[32], theirs[32];
    nnodes_text(ours, r->min_nodes, r->max_nodes);
    nnodes_text(theirs, h->min_nodes, h->max_nodes);
    if (strcmp(h->run_id, r->run_id) != 0)
        text_set(text, cap, "this is job '%s', not '%s' (--rdzv_id)", r->run_id, h->run_id);
    else if (h->nproc == 0) /* it takes part in no round */
        return false;
    else if (h->backend != r->backend)
        text_set(text, cap, "this job meets by --rdzv_backend %s, not %s", backend_name(r->backend),
                 backend_name(h->backend));
    else if (h->min_nodes != r->min_nodes || h->max_nodes != r->max_nodes)
        text_set(text, cap, "this job has --nnodes %s, not %s", ours, theirs);
    else if (h->agent_store != r->agent_store || h->relay != r->relay)
        text_set(text, cap, "this job has --master_store %s, not %s",
                 store_name(r->agent_store, r->relay), store_name(h->agent_store, h->relay));
    else if (h->node_rank >= r->max_nodes)
        text_set(text, cap, "node_rank %d is too high for --nnodes %s (0 to %d)", h->node_rank,
                 ours, r->max_nodes - 1);
    else
        return false;
    return true;
}

static struct rdzv_node *holder_of(const struct rdzv_state *s, int node_rank)
{
    return node_rank >= 0 && node_rank < s->cap_by_rank ? s->by_rank[node_rank] : NULL;
}

/* Why the newcomer is turned away, or false. *retry: it may be otherwise soon. */
static bool objection(const struct rdzv_state *s, const struct rdzv_hello *h, uint64_t now,
                      char *text, size_t cap, bool *retry)
{
    const struct rdzv_node *holder = holder_of(s, h->node_rank);
    char name[RDZV_TEXT_MAX];
    *retry = false;
    if (s->phase == RDZV_FINISH) {
        *retry = true; /* the next job may be about to start here */
        text_set(text, cap, "the job here is over: it ended %.1f s ago with exit status %d",
                 seconds(now - s->result_ns), s->result.exit_code);
        return true;
    }
    if (other_job(s, h, text, cap))
        return true;
    if (h->nproc == 0) {
        *retry = true;
        text_set(text, cap, "%d witnesses are here already", s->nwitnesses);
        return s->nwitnesses >= WITNESSES_MAX;
    }
    if (holder && holder->conn != RDZV_NO_CONN) {
        /* Silent for two heartbeats: it may be the ghost of the one that asks. */
        *retry = now - holder->heard_ns > 2 * s->rules.heartbeat_ns;
        text_set(text, cap, "node_rank %d is already taken by %s, pid %d, joined %.1f s ago",
                 h->node_rank, rdzv_join_name(holder, name, sizeof(name)), holder->hello.pid,
                 seconds(now - holder->joined_ns));
        return true;
    }
    if (!rdzv_state_dynamic(s) && rdzv_state_live(s) - (holder != NULL) >= rdzv_state_places(s)) {
        text_set(text, cap, "the job is complete: all %d nodes have joined", rdzv_state_places(s));
        return true;
    }
    if (rdzv_state_count(s) >= rdzv_state_places(s) + SPARES_MAX(s->rules.max_nodes)) {
        *retry = true;
        text_set(text, cap, "%d nodes are here already, for %d places", rdzv_state_count(s),
                 s->rules.max_nodes);
        return true;
    }
    return false;
}

static void warn_of_differences(struct rdzv_state *s, const struct rdzv_hello *h)
{
    const struct rdzv_rules *r = &s->rules;
    if (h->max_restarts != r->max_restarts)
        rdzv_state_log(s, LOG_LEVEL_WARN, "node %s has --max_restarts %d; %d counts, as it is here",
                       h->host, h->max_restarts, r->max_restarts);
    if (h->restart_policy != r->restart_policy)
        rdzv_state_log(s, LOG_LEVEL_WARN,
                       "node %s has another --restart_policy; '%s' counts, as it is "
                       "here",
                       h->host, r->restart_policy == RESTART_GROUP ? "group" : "worker");
    if (strcmp(h->version, r->version) != 0)
        rdzv_state_log(s, LOG_LEVEL_WARN, "node %s runs dlaunch %s, this is %s", h->host,
                       h->version, r->version);
}

static void claim_rank(struct rdzv_state *s, struct rdzv_node *n)
{
    int rank = n->hello.node_rank;
    if (rank < 0)
        return;
    if (rank >= s->cap_by_rank) {
        int cap = s->cap_by_rank ? s->cap_by_rank : 8;
        while (cap <= rank)
            cap *= 2;
        s->by_rank = xrealloc(s->by_rank, (size_t)cap * sizeof(struct rdzv_node *));
        memset(s->by_rank + s->cap_by_rank, 0,
               (size_t)(cap - s->cap_by_rank) * sizeof(struct rdzv_node *));
        s->cap_by_rank = cap;
    }
    s->by_rank[rank] = n;
}

/* False: out of memory, and it has been told. */
static bool add_node(struct rdzv_state *s, uint32_t conn, const struct rdzv_hello *h,
                     const struct rdzv_peer *peer, uint64_t now)
{
    void **value = map_put(&s->by_id, h->id.b, sizeof(h->id.b));
    if (!value) {
        rdzv_state_close(s, conn, "out of memory", true);
        return false;
    }
    struct rdzv_node *n = *value = xcalloc(1, sizeof(*n));
    n->hello = *h;
    n->peer = *peer;
    n->conn = conn;
    n->joined_ns = now;
    n->group_rank = -1;
    n->prev_rank = s->began ? h->prev_rank : -1; /* as the coordinator before knew it */
    n->phase = MEMBER_STOPPING;                  /* not ready before it has said so */
    /* Nor without workers: if another coordinator started some, heartbeats renew their lease. */
    n->workers = h->seen_epoch != 0 && !rdzv_node_is_witness(n);
    s->nbusy += n->workers;
    if (s->nnodes == s->cap_nodes) {
        s->cap_nodes = s->cap_nodes ? 2 * s->cap_nodes : 8;
        s->nodes = xrealloc(s->nodes, (size_t)s->cap_nodes * sizeof(struct rdzv_node *));
    }
    n->slot = s->nnodes;
    s->nodes[s->nnodes++] = n;
    s->nwitnesses += rdzv_node_is_witness(n);
    s->conns[conn].node = n;
    claim_rank(s, n);
    rdzv_state_heard(s, n, now);
    return true;
}

void rdzv_join_hello(struct rdzv_state *s, uint32_t conn, const struct rdzv_hello *h,
                     const struct rdzv_peer *peer, uint64_t now)
{
    char text[RDZV_TEXT_MAX], name[RDZV_TEXT_MAX];
    bool retry;
    if (objection(s, h, now, text, sizeof(text), &retry)) {
        rdzv_join_attempt(s, h->host, peer->addr, text, now);
        rdzv_state_close(s, conn, text, retry);
        return;
    }
    struct rdzv_node *holder = holder_of(s, h->node_rank);
    if (holder) { /* its connection is broken */
        rdzv_state_hold_for(s, holder);
        rdzv_phase_lost(s, holder, "another launcher has taken its node_rank", holder->heard_ns,
                        now);
    }
    if (!add_node(s, conn, h, peer, now))
        return;
    rdzv_join_name(s->nodes[s->nnodes - 1], name, sizeof(name));
    if (h->nproc == 0) {
        rdzv_state_log(s, LOG_LEVEL_VERBOSE, "%s, pid %d, has joined, without workers", name,
                       h->pid);
        return;
    }
    warn_of_differences(s, h);
    rdzv_state_log(s, LOG_LEVEL_VERBOSE, "node %s, pid %d, has joined: %d of %d", name, h->pid,
                   rdzv_state_count(s), s->rules.max_nodes);
}

/* ---------------------------------------------------------------------------------- turned away */

void rdzv_join_attempt(struct rdzv_state *s, const char *host, const char *addr, const char *text,
                       uint64_t now)
{
    char who[sizeof(s->attempts[0].who)];
    text_set(who, sizeof(who), host[0] ? "%s (%s)" : "%s%s", host, addr[0] ? addr : "this host");
    struct rdzv_attempt *a = s->attempts, *end = a + s->nattempts;
    while (a < end && strcmp(a->who, who) != 0)
        a++;
    if (a == end) {
        if (s->nattempts < ATTEMPTS_MAX)
            s->nattempts++;
        else
            a--; /* the last place is for all others */
        *a = (struct rdzv_attempt){0};
        text_set(a->who, sizeof(a->who), "%s", who);
    }
    a->count++;
    if (strcmp(a->text, text) != 0)
        text_set(a->text, sizeof(a->text), "%s", text);
    if (a->logged_ns == 0 || now - a->logged_ns >= ATTEMPT_LOG_NS) {
        a->logged_ns = now;
        rdzv_state_log(s, LOG_LEVEL_WARN, "turned away %s: %s", who, text);
    }
}

/* ------------------------------------------------------------------------------------- waiting */

static void add_present(const struct rdzv_state *s, char *out, size_t cap)
{
    int shown = 0;
    for (int i = 0; i < s->nnodes && shown < NAMES_MAX; i++) {
        if (!rdzv_node_is_witness(s->nodes[i]))
            text_add(out, cap, "%s%s", shown++ ? ", " : ": ", s->nodes[i]->hello.host);
    }
    if (rdzv_state_count(s) > NAMES_MAX)
        text_add(out, cap, " and %d more", rdzv_state_count(s) - NAMES_MAX);
}

/* The node ranks nobody has taken, when everybody asks for one. */
static void add_missing(const struct rdzv_state *s, char *out, size_t cap)
{
    int missing = s->rules.max_nodes - rdzv_state_count(s), shown = 0;
    for (int i = 0; i < s->nnodes; i++) {
        if (s->nodes[i]->hello.node_rank < 0 && !rdzv_node_is_witness(s->nodes[i]))
            return;
    }
    if (missing <= 0)
        return;
    text_add(out, cap, "; missing: node_rank");
    for (int rank = 0; rank < s->rules.max_nodes && shown < NAMES_MAX; rank++) {
        if (!holder_of(s, rank))
            text_add(out, cap, "%s%d", shown++ ? ", " : " ", rank);
    }
    if (missing > shown)
        text_add(out, cap, " and %d more", missing - shown);
}

static void wanted_text(const struct rdzv_state *s, char out[32])
{
    if (s->rules.min_nodes == s->rules.max_nodes)
        text_set(out, 32, "%d", s->rules.max_nodes);
    else
        text_set(out, 32, "%d to %d", s->rules.min_nodes, s->rules.max_nodes);
}

static void add_place(const struct rdzv_state *s, char *out, size_t cap)
{
    struct netaddr a;
    if (rdzv_state_places(s) > 1 && netaddr_parse_ip(&a, s->rules.bound_addr, 0) &&
        netaddr_is_loopback(&a))
        text_add(out, cap, " (%s can be reached from this host only)", s->rules.bound_addr);
}

/* When a job that may begin with fewer than MAX nodes does so. */
static void add_start(const struct rdzv_state *s, uint64_t now, char *out, size_t cap)
{
    const struct rdzv_rules *r = &s->rules;
    if (r->min_nodes == r->max_nodes || !rdzv_state_first_round(s))
        return;
    if (s->last_call_at != NEVER && s->last_call_at > now)
        text_add(out, cap, "; the job starts in %.0f s, or when all %d are here",
                 seconds(s->last_call_at - now), r->max_nodes);
    else if (s->nready < r->min_nodes)
        text_add(out, cap, "; the job starts %g s after %d are here (last_call_timeout)",
                 seconds(r->last_call_ns), r->min_nodes);
}

void rdzv_join_notice(struct rdzv_state *s, uint64_t now)
{
    char wanted[32];
    uint64_t waited = now - s->collect_ns;
    wanted_text(s, wanted);
    s->notice_at = now + (waited < 12 * NOTICE_NS ? NOTICE_NS : NOTICE_LATER_NS);
    text_set(s->notice, sizeof(s->notice), "waiting for nodes, %.0f s: %d of %s here",
             seconds(waited), rdzv_state_count(s), wanted);
    add_present(s, s->notice, sizeof(s->notice));
    add_missing(s, s->notice, sizeof(s->notice));
    add_start(s, now, s->notice, sizeof(s->notice));
    add_place(s, s->notice, sizeof(s->notice));
    rdzv_state_send_all(s, PENDING_NOTICE);
}

void rdzv_join_timeout_text(struct rdzv_state *s, uint64_t now, char *out, size_t cap)
{
    char wanted[32];
    wanted_text(s, wanted);
    text_set(out, cap, "only %d of %s nodes joined within %.0f s", rdzv_state_count(s), wanted,
             seconds(now - s->collect_ns));
    add_present(s, out, cap);
    add_missing(s, out, cap);
    for (int i = 0; i < s->nattempts; i++)
        text_add(out, cap, "; turned away: %s, %d time%s: %s", s->attempts[i].who,
                 s->attempts[i].count, s->attempts[i].count > 1 ? "s" : "", s->attempts[i].text);
    add_place(s, out, cap);
}
