/* rdzv_elect.c: the election of a new coordinator, and the limits of a minority.
 *
 * The election is of the kind in section 3.4 of the Raft dissertation (Ongaro, 2014): an epoch
 * corresponds to a term, and a candidate needs votes of a majority. Two things differ. The
 * electorate is the list of members of the last rounds, not a fixed configuration, and there is no
 * log: what votes protect is the right to run workers. Invariants:
 *
 *   I1  Any two sets of members that elect a coordinator by the same list have a member in common:
 *       each is more than half of that list (stand()).
 *   I2  A coordinator that may start or go on leaves too few members to elect another one: the
 *       members that are neither in reach nor known to be dead are at most half (too_few()).
 *   I3  Epochs rise: the epoch of an elected coordinator is above every epoch that one of its
 * voters has seen (elected()). I4  A new round prepares workers only after the leases of the last
 * coordinator have run out, or every member of the list has reported that it has no workers
 * (rdzv_elect_may_start()). */
#include <assert.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/rdzv_round.h"
#include "rendezvous/rules/rdzv_state.h"
#include "rendezvous/rules/rdzv_state_impl.h"
#include "rendezvous/rules/text.h"

/* Records an epoch that a voter has seen. The epoch of a new coordinator must be above it (I3). */
void rdzv_elect_seen(struct rdzv_state *s, uint64_t epoch)
{
    if (epoch > s->seen_epoch)
        s->seen_epoch = epoch;
}

bool rdzv_elect_is_new(const struct rdzv_state *s)
{
    return !s->standing && s->seen_epoch && s->quorum[0].list.gen.epoch != s->gen.epoch;
}

void rdzv_elect_start(struct rdzv_state *s, const struct rdzv_electorate *e, uint64_t now)
{
    s->standing = s->began = true;
    s->restarts = e->restarts;
    s->node_restarts = e->node_restarts;
    s->random = e->random;
    s->dead_epoch = e->dead_epoch;
    s->stood_ns = now;
    s->gone_reason = STOP_COORDINATOR_LOST;
    s->gone_code = 1;
    text_set(s->gone_text, sizeof(s->gone_text), "%s", e->gone);
    rdzv_elect_seen(s, e->seen_epoch);
    rdzv_elect_list(s, e->ran);
    if (e->prepared)
        rdzv_elect_list(s, e->prepared);
}

/* Two lists count: the newest list of a round that ran, and the newest list of a round that was
 * prepared after that one. */
void rdzv_elect_list(struct rdzv_state *s, const struct rdzv_peers *list)
{
    struct rdzv_quorum *run = &s->quorum[0], *prepared = &s->quorum[1];
    if (!s->standing || list->n == 0)
        return;
    rdzv_elect_seen(s, list->gen.epoch);
    if (list->ran && generation_before(run->list.gen, list->gen))
        rdzv_quorum_set(run, list);
    else if (generation_equal(run->list.gen, list->gen) && list->n > run->list.n)
        rdzv_quorum_grow(run, list);
    else if (generation_equal(prepared->list.gen, list->gen) && list->n > prepared->list.n)
        rdzv_quorum_grow(prepared, list);
    else if (!list->ran && generation_before(prepared->list.gen, list->gen))
        rdzv_quorum_set(prepared, list);
    if (generation_equal(run->list.gen, prepared->list.gen) && prepared->list.n > run->list.n)
        rdzv_quorum_grow(run, &prepared->list);
    if (!generation_before(run->list.gen, prepared->list.gen))
        rdzv_quorum_fini(prepared);
    for (int k = 0; k < 2; k++) {
        struct rdzv_quorum *q = &s->quorum[k];
        for (int i = 0; s->dead_epoch && q->list.gen.epoch == s->dead_epoch && i < q->list.n; i++)
            q->dead[i] |= q->list.e[i].host;
    }
}

/* A voter has connected. The notice tells it that this node stands for election. */
void rdzv_elect_hello(struct rdzv_state *s, uint32_t conn, const struct rdzv_hello *h)
{
    struct rdzv_node *n = s->conns[conn].node;
    rdzv_elect_seen(s, h->seen_epoch);
    if (!n || n->peer.own)
        return;
    text_set(s->notice, sizeof(s->notice),
             "the coordinator is lost; another node stands in for it when more than half of the "
             "last round's %d are there",
             s->quorum[0].list.n);
    rdzv_state_send(s, n, PENDING_NOTICE);
}

/* Whether another coordinator made this list, and was elected after the rounds by whose lists this
 * coordinator was elected. */
static bool is_of_another(const struct rdzv_state *s, const struct rdzv_peers *list)
{
    uint64_t epoch = list->gen.epoch;
    return rdzv_elect_is_new(s) && epoch != s->gen.epoch && epoch > s->quorum[0].list.gen.epoch &&
           epoch > s->quorum[1].list.gen.epoch;
}

/* A voter has sent a list that it knows. */
void rdzv_state_peers(struct rdzv_state *s, uint32_t conn, const struct rdzv_peers *list)
{
    if (conn >= s->nconns || !s->conns[conn].node)
        return;
    if (is_of_another(s, list))
        rdzv_state_close(s, conn, RDZV_REPLACED, true);
    else
        rdzv_elect_list(s, list);
}

static void elected(struct rdzv_state *s, int votes, uint64_t now)
{
    assert(s->standing && 2 * votes > s->quorum[0].list.n); /* I1 */
    s->standing = false;
    s->gen = (struct generation){rdzv_epoch_next(s->seen_epoch, s->random), 0};
    assert(s->gen.epoch > s->seen_epoch); /* I3 */
    s->quarantine_at = s->settle_at = now + s->rules.dead_ns;
    rdzv_state_log(s, LOG_LEVEL_NOTICE,
                   "this node is the coordinator now, by %d of the %d nodes of the last round",
                   votes, s->quorum[0].list.n);
    int max = s->rules.max_node_restarts;
    s->node_restarts++; /* the coordinator's node is lost */
    if (max >= 0 && s->node_restarts > max) {
        s->node_restarts = max;
        text_set(s->result.final, sizeof(s->result.final),
                 "restarts after a lost node: %d of %d used (--max_node_restarts)", max, max);
        rdzv_phase_finish(s, 1, STOP_COORDINATOR_LOST, s->gone_text, now);
    }
    rdzv_state_send_all(s, PENDING_VIEW);
}

/* Launchers that have been in no round, and have no vote, look for another coordinator: the other
 * nodes of the job may go on. */
static void send_away(struct rdzv_state *s)
{
    for (int i = s->nnodes - 1; i >= 0; i--) {
        struct rdzv_node *n = s->nodes[i];
        bool votes =
            rdzv_node_is_witness(n) && rdzv_peers_find(&s->quorum[0].list, &n->hello.id) >= 0;
        if (n->peer.own || n->took_part || votes)
            continue;
        if (n->conn != RDZV_NO_CONN)
            rdzv_state_close(s, n->conn, "this coordinator has lost most of its nodes", true);
        rdzv_state_remove(s, n);
    }
}

static void minority(struct rdzv_state *s, int here, int n, uint64_t now)
{
    char text[RDZV_TEXT_MAX];
    send_away(s);
    text_set(
        text, sizeof(text),
        "%s%sonly %d of the %d nodes of the last round are in reach, which is no majority: the "
        "others may go on without them",
        s->gone_text, s->gone_text[0] ? "; " : "", here, n);
    rdzv_phase_finish(s, 1, STOP_COORDINATOR_LOST, text, now);
}

/* Whether the members in reach are too few for a round to begin or to go on. A set of members is a
 * quorum if the remaining members cannot elect another coordinator (I2). Before its first round
 * runs, an elected coordinator needs more: members may have voted for another candidate earlier, so
 * that two elected coordinators can exist. Each of them therefore needs more than half of the list
 * itself. */
static bool too_few(const struct rdzv_state *s, const struct rdzv_quorum *q, uint64_t since)
{
    if (rdzv_elect_is_new(s) && q->list.n)
        return 2 * rdzv_quorum_votes(q, &s->by_id, since) <= q->list.n;
    return 2 * rdzv_quorum_unknown(q, &s->by_id, since) > q->list.n;
}

static bool stand(struct rdzv_state *s, uint64_t now)
{
    int votes = 0;
    s->elect_at = s->stood_ns + 2 * s->rules.dead_ns;
    for (int k = 0; k < 2; k++) {
        const struct rdzv_quorum *q = &s->quorum[k];
        int here = rdzv_quorum_present(q, &s->by_id, 0);
        if (q->list.n && 2 * here <= q->list.n) {
            if (now >= s->elect_at && now >= s->grace_at)
                minority(s, here, q->list.n, now);
            return false;
        }
        votes = k == 0 ? here : votes;
    }
    elected(s, votes, now);
    return s->phase == RDZV_COLLECT;
}

/* Whether this coordinator may start rounds. Otherwise it still stands for election, waits for old
 * leases to run out (I4), or is in a minority. */
bool rdzv_elect_may_start(struct rdzv_state *s, uint64_t now)
{
    if (s->standing && !stand(s, now))
        return false;
    for (int k = 0; k < 2; k++) {
        const struct rdzv_quorum *q = &s->quorum[k];
        int unknown = q->list.n ? rdzv_quorum_unknown(q, &s->by_id, 0) : 0;
        if (s->quarantine_at != NEVER && rdzv_quorum_busy(q, &s->by_id)) {
            s->elect_at = NEVER - 1; /* until that member reports that its workers have ended */
            return false;
        }
        if (unknown && s->quarantine_at != NEVER && now < s->quarantine_at) {
            s->elect_at = s->quarantine_at;
            return false;
        }
        if (too_few(s, q, 0)) {
            if (s->few_ns == 0)
                s->few_ns = now;
            s->elect_at = s->few_ns + s->rules.dead_ns;
            if (now >= s->elect_at && now >= s->grace_at)
                minority(s, q->list.n - unknown, q->list.n, now);
            return false;
        }
    }
    s->quarantine_at = s->elect_at = NEVER;
    s->few_ns = 0;
    return true;
}

/* Lists the members of the round that is about to be prepared. */
static void make_list(struct rdzv_state *s, struct rdzv_peers *list)
{
    const struct rdzv_place place = {s->rules.bound_addr, s->rules.port, s->rules.local_addr,
                                     s->rules.master_addr, s->rules.agent_store};
    rdzv_round_peers(list, s->members, s->nmembers, &place);
    list->gen = s->gen;
}

/* The witness that votes: the connected witness that joined first. NULL: there is no witness. */
static const struct rdzv_node *voting_witness(const struct rdzv_state *s)
{
    const struct rdzv_node *w = NULL;
    for (int i = 0; i < s->nnodes && s->nwitnesses; i++) {
        const struct rdzv_node *n = s->nodes[i];
        if (rdzv_node_is_witness(n) && !n->peer.own && !n->leaving && n->conn != RDZV_NO_CONN &&
            n->status_ns && (!w || n->joined_ns < w->joined_ns))
            w = n;
    }
    return w;
}

/* Adds a witness to a list of even length, in which half of the members is not a majority. */
static bool add_witness(struct rdzv_state *s)
{
    const struct rdzv_node *w = voting_witness(s);
    struct rdzv_peers *p = &s->peers;
    if (!w || p->n == 0 || p->n % 2)
        return false;
    p->e = xrealloc(p->e, (size_t)(p->n + 1) * sizeof(*p->e));
    p->e[p->n++] =
        (struct rdzv_peer_entry){.id = w->hello.id}; /* no address: members do not call a witness */
    return true;
}

void rdzv_elect_prepare(struct rdzv_state *s, uint64_t now)
{
    if (!s->rules.elect)
        return;
    make_list(s, &s->peers);
    s->vote_ns = add_witness(s) ? now : 0;
    s->prepare_ns = now;
    rdzv_state_send_all(s, PENDING_PEERS);
}

/* A witness has joined. It gets a vote in the running round too. This keeps I1: the majority of 2k
 * members and the majority of the same members with one witness are both k + 1, and any two sets of
 * k + 1 among 2k + 1 have a member in common. (With an odd number of members the two majorities
 * would differ, so that a witness is added to lists of even length only.) */
void rdzv_elect_witness(struct rdzv_state *s, const struct rdzv_node *w, uint64_t now)
{
    bool runs = s->phase == RDZV_RUN;
    char name[RDZV_TEXT_MAX];
    if (!s->rules.elect || (!runs && s->phase != RDZV_PREPARE))
        return;
    if (add_witness(s)) {
        if (runs)
            rdzv_quorum_grow(&s->quorum[0], &s->peers);
        s->lease_look_at = 0;
        s->vote_ns = now;
        rdzv_state_send_all(s, PENDING_PEERS);
    } else if (s->vote_ns && w->echo_ns >= s->vote_ns &&
               node_id_equal(&w->hello.id, &s->peers.e[s->peers.n - 1].id)) {
        s->vote_ns = 0;
        rdzv_state_log(s, LOG_LEVEL_VERBOSE, "witness %s has a vote",
                       rdzv_join_name(w, name, sizeof(name)));
    }
}

/* The list of the newest round that ran, for members that are about to replace it by the list of
 * the prepared round. Until that round runs, the older list still counts in an election, and a
 * member that was not in the older round has never received it. NULL: no round ran before. */
const struct rdzv_peers *rdzv_elect_ran(struct rdzv_state *s)
{
    struct rdzv_peers *ran = &s->quorum[0].list;
    ran->ran = true;
    return ran->n && generation_before(ran->gen, s->peers.gen) ? ran : NULL;
}

void rdzv_elect_run(struct rdzv_state *s)
{
    if (!s->rules.elect)
        return;
    rdzv_quorum_set(&s->quorum[0], &s->peers);
    s->lease_look_at = 0;
    rdzv_quorum_fini(&s->quorum[1]);
}

/* The launcher of this node has closed its connection in order, which a launcher does only when it
 * ends. (A launcher that has lost this coordinator resets the connection instead, for it may be
 * about to elect another one.) */
void rdzv_elect_dead(struct rdzv_state *s, const struct rdzv_node *n)
{
    for (int k = 0; k < 2; k++)
        rdzv_quorum_dead(&s->quorum[k], &n->hello.id);
}

/* Whether I2 holds by contacts that are not older than the dead time. Members that elect another
 * coordinator wait for the dead time twice: until they count this coordinator as lost, and until
 * old leases have run out. A lease that rests on a contact of that age ends before. */
static bool in_touch(const struct rdzv_state *s, uint64_t since, uint64_t now)
{
    uint64_t ago = now > s->rules.dead_ns ? now - s->rules.dead_ns : 1;
    if (since < ago)
        since = ago;
    for (int k = 0; k < 2; k++) {
        const struct rdzv_quorum *q = &s->quorum[k];
        if (too_few(s, q, since))
            return false;
    }
    return true;
}

/* Whether a round whose members are all prepared may run. Two conditions: after this process has
 * been suspended, members must have been heard of again, since they may have elected another
 * coordinator; and of the members that could elect another coordinator by an older list, most have
 * this round's list. */
bool rdzv_elect_may_run(const struct rdzv_state *s, uint64_t now)
{
    return !s->rules.elect || s->quorum[0].list.n == 0 || in_touch(s, s->prepare_ns - 1, now);
}

/* Whether the connected members are a quorum (I2), so that this coordinator may stay one. */
bool rdzv_elect_quorum(const struct rdzv_state *s)
{
    for (int k = 0; k < 2; k++) {
        const struct rdzv_quorum *q = &s->quorum[k];
        if (too_few(s, q, 0))
            return false;
    }
    return true;
}

/* Until when leases may be given out. The condition is I2 again: leases end before members out of
 * reach can have elected another coordinator and started workers. */
uint64_t rdzv_elect_lease_until(struct rdzv_state *s, uint64_t now)
{
    if (!s->rules.elect || s->quorum[0].list.n == 0)
        return NEVER;
    if (now < s->lease_look_at)
        return s->lease_until;
    s->lease_look_at = now + s->rules.heartbeat_ns / 4;
    s->lease_until = NEVER;
    for (int k = 0; k < 2; k++) {
        const struct rdzv_quorum *q = &s->quorum[k];
        uint64_t touch = q->list.n ? rdzv_quorum_touch(q, &s->by_id) : NEVER;
        if (touch < NEVER - s->rules.dead_ns && touch + s->rules.dead_ns < s->lease_until)
            s->lease_until = touch + s->rules.dead_ns;
    }
    return s->lease_until;
}
