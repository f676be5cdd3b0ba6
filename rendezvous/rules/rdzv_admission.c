#include "rendezvous/rules/rdzv_admission.h"

#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/text.h"

#define NAMES_MAX         8 /* in one line */
#define ATTEMPT_LOG_NS    30000000000u
#define WITNESSES_MAX     8
#define SPARES_MAX(nodes) (64 + (nodes) / 4)

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

/* ------------------------------------------------------------------------------------ admission */

static const char *backend_name(enum rdzv_backend b)
{
    static const char *const names[] = {"static", "c10d", "file", "etcd"};
    _Static_assert(ARRAY_LEN(names) == RDZV_BACKENDS, "a name for each enum rdzv_backend");
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

/* The kind of MPI that the job has; -1: not known yet. */
static int mpi_of_job(const struct rdzv_rules *r, const struct rdzv_nodes *nodes)
{
    if (r->workers)
        return (int)r->mpi;
    for (int i = 0; i < nodes->n; i++) {
        if (nodes->e[i] && nodes->e[i]->hello.nproc > 0)
            return (int)nodes->e[i]->hello.mpi;
    }
    return -1;
}

static const char *mpi_name(int kind)
{
    static const char *const names[MPI_KINDS] = {"off", "pmi", "pmix"};
    return names[kind];
}

/* Whether a hello belongs to another job or has other settings. True: text gives the reason. */
static bool other_job(const struct rdzv_rules *r, const struct rdzv_nodes *nodes,
                      const struct rdzv_hello *h, char *text, size_t cap)
{
    char ours[32], theirs[32];
    int mpi = mpi_of_job(r, nodes);
    nnodes_text(ours, r->min_nodes, r->max_nodes);
    nnodes_text(theirs, h->min_nodes, h->max_nodes);
    if (strcmp(h->run_id, r->run_id) != 0)
        text_set(text, cap, "this is job '%s', not '%s' (--rdzv_id)", r->run_id, h->run_id);
    else if (h->nproc == 0) /* a launcher without workers takes part in no round */
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
    else if (mpi >= 0 && mpi != (int)h->mpi)
        text_set(
            text, cap,
            "this job has --mpi %s, not %s: by its program, by the option, or because an older "
            "dlaunch does not know MPI programs",
            mpi_name(mpi), mpi_name((int)h->mpi));
    else
        return false;
    return true;
}

/* It may be the ghost of a launcher that asks anew. */
static bool may_be_gone(const struct rdzv_rules *r, const struct rdzv_node *n, uint64_t now)
{
    return n->conn == RDZV_NO_CONN || now - n->heard_ns > 2 * r->heartbeat_ns;
}

static bool some_may_be_gone(const struct rdzv_rules *r, const struct rdzv_nodes *nodes,
                             uint64_t now)
{
    bool some = false;
    for (int i = 0; i < nodes->n; i++)
        some |= !nodes->e[i]->peer.own && may_be_gone(r, nodes->e[i], now);
    return some;
}

bool rdzv_admission_objection(const struct rdzv_rules *r, const struct rdzv_nodes *nodes,
                              const struct rdzv_hello *h, bool began, uint64_t now, char *text,
                              size_t cap, bool *retry)
{
    const struct rdzv_node *holder = rdzv_nodes_holder(nodes, h->node_rank);
    char name[RDZV_TEXT_MAX];
    *retry = false;
    if (other_job(r, nodes, h, text, cap))
        return true;
    if (h->nproc == 0) {
        *retry = true;
        text_set(text, cap, "%d witnesses are here already", nodes->nwitnesses);
        return nodes->nwitnesses >= WITNESSES_MAX;
    }
    if (holder && holder->conn != RDZV_NO_CONN) {
        *retry = began || may_be_gone(r, holder, now);
        text_set(text, cap, "node_rank %d is already taken by %s, pid %d, joined %.1f s ago",
                 h->node_rank, rdzv_node_name(holder, name, sizeof(name)), holder->hello.pid,
                 seconds(now - holder->joined_ns));
        return true;
    }
    if (!rdzv_rules_dynamic(r) &&
        rdzv_nodes_live(nodes) - (holder != NULL) >= rdzv_rules_places(r)) {
        *retry = some_may_be_gone(r, nodes, now);
        text_set(text, cap, "the job is complete: all %d nodes have joined", rdzv_rules_places(r));
        return true;
    }
    if (rdzv_nodes_count(nodes) >= rdzv_rules_places(r) + SPARES_MAX(r->max_nodes)) {
        *retry = true;
        text_set(text, cap, "%d nodes are here already, for %d places", rdzv_nodes_count(nodes),
                 r->max_nodes);
        return true;
    }
    return false;
}

void rdzv_admission_warn(const struct rdzv_rules *r, const struct rdzv_hello *h,
                         struct rdzv_output *out)
{
    if (h->max_restarts != r->max_restarts)
        rdzv_output_log(out, LOG_LEVEL_WARN,
                        "node %s has --max_restarts %d; %d counts, as it is here", h->host,
                        h->max_restarts, r->max_restarts);
    if (h->restart_policy != r->restart_policy)
        rdzv_output_log(out, LOG_LEVEL_WARN,
                        "node %s has another --restart_policy; '%s' counts, as it is "
                        "here",
                        h->host, r->restart_policy == RESTART_GROUP ? "group" : "worker");
    if (strcmp(h->version, r->version) != 0)
        rdzv_output_log(out, LOG_LEVEL_WARN, "node %s runs dlaunch %s, this is %s", h->host,
                        h->version, r->version);
}

/* ---------------------------------------------------------------------------------- turned away */

void rdzv_attempts_add(struct rdzv_attempts *attempts, struct rdzv_output *out, const char *host,
                       const char *addr, const char *text, uint64_t now)
{
    char who[sizeof(attempts->e[0].who)];
    text_set(who, sizeof(who), host[0] ? "%s (%s)" : "%s%s", host, addr[0] ? addr : "this host");
    struct rdzv_attempt *a = attempts->e, *end = a + attempts->n;
    while (a < end && strcmp(a->who, who) != 0)
        a++;
    if (a == end) {
        if (attempts->n < RDZV_ATTEMPTS_MAX)
            attempts->n++;
        else
            a--; /* the last element stands for all other hosts */
        *a = (struct rdzv_attempt){0};
        text_set(a->who, sizeof(a->who), "%s", who);
    }
    a->count++;
    if (strcmp(a->text, text) != 0)
        text_set(a->text, sizeof(a->text), "%s", text);
    if (a->logged_ns == 0 || now - a->logged_ns >= ATTEMPT_LOG_NS) {
        a->logged_ns = now;
        rdzv_output_log(out, LOG_LEVEL_WARN, "turned away %s: %s", who, text);
    }
}

/* -------------------------------------------------------------------------------------- waiting */

static void add_present(const struct rdzv_nodes *nodes, char *out, size_t cap)
{
    int shown = 0;
    for (int i = 0; i < nodes->n && shown < NAMES_MAX; i++) {
        if (!rdzv_node_is_witness(nodes->e[i]))
            text_add(out, cap, "%s%s", shown++ ? ", " : ": ", nodes->e[i]->hello.host);
    }
    if (rdzv_nodes_count(nodes) > NAMES_MAX)
        text_add(out, cap, " and %d more", rdzv_nodes_count(nodes) - NAMES_MAX);
}

/* The node ranks nobody has taken, when everybody asks for one. */
static void add_missing(const struct rdzv_rules *r, const struct rdzv_nodes *nodes, char *out,
                        size_t cap)
{
    int missing = r->max_nodes - rdzv_nodes_count(nodes), shown = 0;
    for (int i = 0; i < nodes->n; i++) {
        if (nodes->e[i]->hello.node_rank < 0 && !rdzv_node_is_witness(nodes->e[i]))
            return;
    }
    if (missing <= 0)
        return;
    text_add(out, cap, "; missing: node_rank");
    for (int rank = 0; rank < r->max_nodes && shown < NAMES_MAX; rank++) {
        if (!rdzv_nodes_holder(nodes, rank))
            text_add(out, cap, "%s%d", shown++ ? ", " : " ", rank);
    }
    if (missing > shown)
        text_add(out, cap, " and %d more", missing - shown);
}

static void wanted_text(const struct rdzv_rules *r, char out[32])
{
    if (r->min_nodes == r->max_nodes)
        text_set(out, 32, "%d", r->max_nodes);
    else
        text_set(out, 32, "%d to %d", r->min_nodes, r->max_nodes);
}

static void add_place(const struct rdzv_rules *r, char *out, size_t cap)
{
    struct netaddr a;
    if (rdzv_rules_places(r) > 1 && netaddr_parse_ip(&a, r->bound_addr, 0) &&
        netaddr_is_loopback(&a))
        text_add(out, cap, " (%s can be reached from this host only)", r->bound_addr);
    else if (r->doubt && r->doubt[0])
        text_add(out, cap, " (%s)", r->doubt);
}

/* The time at which a job that may begin with fewer than MAX nodes begins. */
static void add_start(const struct rdzv_rules *r, const struct rdzv_nodes *nodes,
                      uint64_t starts_ns, char *out, size_t cap)
{
    if (r->min_nodes == r->max_nodes)
        return;
    if (starts_ns)
        text_add(out, cap, "; the job starts in %.0f s, or when all %d are here",
                 seconds(starts_ns), r->max_nodes);
    else if (nodes->nready < r->min_nodes)
        text_add(out, cap, "; the job starts %g s after %d are here (last_call_timeout)",
                 seconds(r->last_call_ns), r->min_nodes);
}

void rdzv_admission_notice(const struct rdzv_rules *r, const struct rdzv_nodes *nodes,
                           uint64_t waited_ns, bool first, uint64_t starts_ns, char *out,
                           size_t cap)
{
    char wanted[32];
    wanted_text(r, wanted);
    text_set(out, cap, "waiting for nodes, %.0f s: %d of %s here", seconds(waited_ns),
             rdzv_nodes_count(nodes), wanted);
    add_present(nodes, out, cap);
    add_missing(r, nodes, out, cap);
    if (first)
        add_start(r, nodes, starts_ns, out, cap);
    add_place(r, out, cap);
}

void rdzv_admission_timeout(const struct rdzv_rules *r, const struct rdzv_nodes *nodes,
                            const struct rdzv_attempts *turned_away, uint64_t waited_ns, char *out,
                            size_t cap)
{
    char wanted[32];
    wanted_text(r, wanted);
    text_set(out, cap, "only %d of %s nodes joined within %.0f s", rdzv_nodes_count(nodes), wanted,
             seconds(waited_ns));
    add_present(nodes, out, cap);
    add_missing(r, nodes, out, cap);
    for (int i = 0; i < turned_away->n; i++) {
        const struct rdzv_attempt *a = &turned_away->e[i];
        text_add(out, cap, "; turned away: %s, %d time%s: %s", a->who, a->count,
                 a->count > 1 ? "s" : "", a->text);
    }
    add_place(r, out, cap);
}
