/* rdzv_election.c: the election of a new coordinator, and the limits of a minority.
 *
 * The election is of the kind in section 3.4 of the Raft dissertation (Ongaro, 2014): an epoch
 * corresponds to a term, and a candidate needs votes of a majority. Two things differ. The
 * electorate is the list of members of the last rounds, not a fixed configuration, and there is no
 * log: what votes protect is the right to run workers, which is a lease (Gray and Cheriton, 1989).
 *
 * D is the dead time (dead_ns), L = rdzv_lease_ns(D) < D the lease. Invariants:
 *
 * - P: Only three things prove that a launcher has ended: its goodbye (a LEAVING status without
 *   workers, answered by RELEASE or FINISH), an orderly close of a connection on which it has
 *   answered, and, for its workers only, the dead time. A launcher that goes on, or has workers,
 *   never closes in order without BACK. A reset and a refusal prove nothing.
 *
 * - I1: Any two sets of members that elect a coordinator by the same list have a member in
 *   common: each is more than half of that list (candidate_verdict()).
 *
 * - I2: A coordinator that may start or go on leaves too few members to elect another one: the
 *   members that are neither in reach nor proven to have ended are at most half (too_few()).
 *
 * - I3: Epochs rise: the epoch of an elected coordinator is above every epoch that one of its
 *   voters has seen (win()).
 *
 * - I4: An elected coordinator starts its first round only after the leases of the last
 *   coordinator have run out, or every member of the list has reported that it has no workers,
 *   or is proven to have ended (rdzv_election_may_start()).
 *
 * - I5: Never do two rounds of one job run workers at the same time. Assumption: the workers of
 *   a launcher end with it (its guardian sees to that within milliseconds) or with its lease.
 *
 *   Two rounds of one coordinator: the second one is prepared when every member of the first one
 *   has reported that its workers have ended (nbusy is 0), is proven to have ended, or has been
 *   silent for D. In the last case its lease, which counts from the time at which it sent the
 *   newest status that was answered, ended at least D - L before; the same holds when another
 *   launcher takes the place of a lost node (hold_for() in rdzv_state.c).
 *
 *   Rounds of two coordinators, A and later B: a member votes for B when it has not heard of A
 *   for D, or A is proven to have ended. A renews leases only while at most half of the members
 *   have been without contact for D (rdzv_election_lease_until()), so that A gives none later
 *   than D after the last contact with one of B's voters, and every lease of A has ended D + L
 *   after it. B is elected D after that contact at the earliest, and waits for D once more
 *   (quarantine_at), unless I4 holds without waiting.
 *
 *   The simulator checks I5 as its I13, by the time stamps of all workers. */
#include "rendezvous/rules/rdzv_election.h"

#include <assert.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/rdzv_round.h"

#define NEVER UINT64_MAX

void rdzv_election_init(struct rdzv_election *e, const struct rdzv_rules *rules,
                        const struct rdzv_nodes *nodes, uint64_t epoch)
{
    *e = (struct rdzv_election){.rules = rules, .nodes = nodes, .epoch = epoch};
    e->quarantine_at = e->look_at = NEVER;
}

void rdzv_election_fini(struct rdzv_election *e)
{
    rdzv_peers_fini(&e->peers);
    for (int k = 0; k < RDZV_LISTS; k++)
        rdzv_quorum_fini(&e->quorum[k]);
}

void rdzv_election_seen(struct rdzv_election *e, uint64_t epoch)
{
    if (epoch > e->seen_epoch)
        e->seen_epoch = epoch;
}

/* Whether this coordinator was elected and no round of its own has run. */
static bool election_is_new(const struct rdzv_election *e)
{
    return !e->standing && e->seen_epoch && e->quorum[RDZV_LIST_RAN].list.gen.epoch != e->epoch;
}

bool rdzv_election_is_replaced(const struct rdzv_election *e, uint64_t seen_epoch, uint32_t counter)
{
    if (election_is_new(e))
        return seen_epoch > e->seen_epoch && seen_epoch != e->epoch;
    return !e->standing && counter > 0 && rdzv_epoch_term(seen_epoch) > rdzv_epoch_term(e->epoch);
}

bool rdzv_election_is_of_another(const struct rdzv_election *e, const struct rdzv_peers *list)
{
    uint64_t epoch = list->gen.epoch;
    return election_is_new(e) && epoch != e->epoch &&
           epoch > e->quorum[RDZV_LIST_RAN].list.gen.epoch &&
           epoch > e->quorum[RDZV_LIST_PREPARED].list.gen.epoch;
}

void rdzv_election_stand(struct rdzv_election *e, const struct rdzv_electorate *by, uint64_t now)
{
    e->standing = true;
    e->random = by->random;
    e->dead_epoch = by->dead_epoch;
    e->stood_ns = now;
    rdzv_election_seen(e, by->seen_epoch);
    rdzv_election_add_list(e, by->ran);
    if (by->prepared)
        rdzv_election_add_list(e, by->prepared);
}

void rdzv_election_add_list(struct rdzv_election *e, const struct rdzv_peers *list)
{
    struct rdzv_quorum *run = &e->quorum[RDZV_LIST_RAN], *prepared = &e->quorum[RDZV_LIST_PREPARED];
    if (!e->standing || list->n == 0)
        return;
    rdzv_election_seen(e, list->gen.epoch);
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
    for (int k = 0; k < RDZV_LISTS;
         k++) { /* the host of the dead coordinator's own rounds has ended */
        struct rdzv_quorum *q = &e->quorum[k];
        for (int i = 0; e->dead_epoch && q->list.gen.epoch == e->dead_epoch && i < q->list.n; i++)
            q->dead[i] |= q->list.e[i].host;
    }
}

void rdzv_election_dead(struct rdzv_election *e, const struct node_id *id)
{
    for (int k = 0; k < RDZV_LISTS; k++)
        rdzv_quorum_dead(&e->quorum[k], id);
}

static void win(struct rdzv_election *e, int votes, uint64_t now)
{
    assert(e->standing && 2 * votes > e->quorum[RDZV_LIST_RAN].list.n); /* I1 */
    e->standing = false;
    e->epoch = rdzv_epoch_next(e->seen_epoch, e->random);
    assert(e->epoch > e->seen_epoch); /* I3 */
    e->quarantine_at = now + e->rules->dead_ns;
}

/* Whether the members in reach are too few for a round to begin or to go on. A set of members is a
 * quorum if the remaining members cannot elect another coordinator (I2). Before its first round
 * runs, an elected coordinator needs more: members may have voted for another candidate earlier, so
 * that two elected coordinators can exist. Each of them therefore needs more than half of the list
 * itself. */
static bool too_few(const struct rdzv_election *e, const struct rdzv_quorum *q, uint64_t since)
{
    if (election_is_new(e) && q->list.n)
        return 2 * rdzv_quorum_votes(q, &e->nodes->by_id, since) <= q->list.n;
    return 2 * rdzv_quorum_unknown(q, &e->nodes->by_id, since) > q->list.n;
}

static enum rdzv_verdict candidate_verdict(struct rdzv_election *e, uint64_t grace_at, uint64_t now,
                                           struct rdzv_tally *tally)
{
    int votes = 0;
    e->look_at = e->stood_ns + 2 * e->rules->dead_ns;
    for (int k = 0; k < RDZV_LISTS; k++) {
        const struct rdzv_quorum *q = &e->quorum[k];
        int present = rdzv_quorum_present(q, &e->nodes->by_id, 0);
        if (q->list.n && 2 * present <= q->list.n) {
            *tally = (struct rdzv_tally){present, q->list.n};
            return now >= e->look_at && now >= grace_at ? ELECTION_MINORITY : ELECTION_WAIT;
        }
        votes = k == RDZV_LIST_RAN ? present : votes;
    }
    win(e, votes, now);
    *tally = (struct rdzv_tally){votes, e->quorum[RDZV_LIST_RAN].list.n};
    return ELECTION_ELECTED;
}

/* The order of the checks: votes (I1), old leases (I4), majority (I2). */
enum rdzv_verdict rdzv_election_may_start(struct rdzv_election *e, uint64_t grace_at, uint64_t now,
                                          struct rdzv_tally *tally)
{
    if (e->standing)
        return candidate_verdict(e, grace_at, now, tally);
    for (int k = 0; k < RDZV_LISTS; k++) {
        const struct rdzv_quorum *q = &e->quorum[k];
        int unknown = q->list.n ? rdzv_quorum_unknown(q, &e->nodes->by_id, 0) : 0;
        if (e->quarantine_at != NEVER && rdzv_quorum_busy(q, &e->nodes->by_id)) {
            e->look_at = NEVER - 1; /* until that member reports that its workers have ended */
            return ELECTION_WAIT;
        }
        if (unknown && e->quarantine_at != NEVER && now < e->quarantine_at) {
            e->look_at = e->quarantine_at;
            return ELECTION_WAIT;
        }
        if (too_few(e, q, 0)) {
            if (e->few_ns == 0)
                e->few_ns = now;
            e->look_at = e->few_ns + e->rules->dead_ns;
            *tally = (struct rdzv_tally){q->list.n - unknown, q->list.n};
            return now >= e->look_at && now >= grace_at ? ELECTION_MINORITY : ELECTION_WAIT;
        }
    }
    e->quarantine_at = e->look_at = NEVER;
    e->few_ns = 0;
    return ELECTION_MAY_START;
}

/* The witness that votes: the connected witness that joined first. NULL: there is no witness. */
static const struct rdzv_node *voting_witness(const struct rdzv_nodes *nodes)
{
    const struct rdzv_node *w = NULL;
    for (int i = 0; i < nodes->n && nodes->nwitnesses; i++) {
        const struct rdzv_node *n = nodes->e[i];
        if (rdzv_node_is_witness(n) && !n->peer.own && !n->leaving && n->conn != RDZV_NO_CONN &&
            n->status_ns && (!w || n->joined_ns < w->joined_ns))
            w = n;
    }
    return w;
}

/* Adds a witness to a list of even length, in which half of the members is not a majority. */
static bool add_witness(struct rdzv_election *e)
{
    const struct rdzv_node *w = voting_witness(e->nodes);
    struct rdzv_peers *p = &e->peers;
    if (!w || p->n == 0 || p->n % 2)
        return false;
    p->e = xrealloc(p->e, (size_t)(p->n + 1) * sizeof(*p->e));
    p->e[p->n++] =
        (struct rdzv_peer_entry){.id = w->hello.id}; /* no address: members do not call a witness */
    return true;
}

void rdzv_election_prepare(struct rdzv_election *e, struct rdzv_node *const *members, int n,
                           const struct rdzv_place *place, struct generation gen, uint64_t now)
{
    rdzv_round_peers(&e->peers, members, n, place);
    e->peers.gen = gen;
    e->vote_ns = add_witness(e) ? now : 0;
    e->prepare_ns = now;
}

/* The witness gets a vote in the running round too. This keeps I1: the majority of 2k members and
 * the majority of the same members with one witness are both k + 1, and any two sets of k + 1 among
 * 2k + 1 have a member in common. (With an odd number of members the two majorities would differ,
 * so that a witness is added to lists of even length only.) */
bool rdzv_election_add_witness(struct rdzv_election *e, bool runs, uint64_t now)
{
    if (!add_witness(e))
        return false;
    if (runs)
        rdzv_quorum_grow(&e->quorum[RDZV_LIST_RAN], &e->peers);
    e->lease_look_at = 0;
    e->vote_ns = now;
    return true;
}

bool rdzv_election_witness_has_vote(struct rdzv_election *e, const struct rdzv_node *w)
{
    bool has = e->vote_ns && w->echo_ns >= e->vote_ns &&
               node_id_equal(&w->hello.id, &e->peers.e[e->peers.n - 1].id);
    if (has)
        e->vote_ns = 0;
    return has;
}

bool rdzv_election_is_voting_witness(const struct rdzv_election *e, const struct rdzv_node *n)
{
    return rdzv_node_is_witness(n) &&
           rdzv_peers_find(&e->quorum[RDZV_LIST_RAN].list, &n->hello.id) >= 0;
}

const struct rdzv_peers *rdzv_election_ran(struct rdzv_election *e)
{
    struct rdzv_peers *ran = &e->quorum[RDZV_LIST_RAN].list;
    ran->ran = true;
    return ran->n && generation_before(ran->gen, e->peers.gen) ? ran : NULL;
}

void rdzv_election_run(struct rdzv_election *e)
{
    rdzv_quorum_set(&e->quorum[RDZV_LIST_RAN], &e->peers);
    e->lease_look_at = 0;
    rdzv_quorum_fini(&e->quorum[RDZV_LIST_PREPARED]);
}

static bool is_quorum(const struct rdzv_election *e, uint64_t since)
{
    return !too_few(e, &e->quorum[RDZV_LIST_RAN], since) &&
           !too_few(e, &e->quorum[RDZV_LIST_PREPARED], since);
}

/* Two conditions. After this process has been suspended, members must have been heard of again,
 * since they may have elected another coordinator: I2 by contacts that are not older than the dead
 * time. And of the members that could elect another coordinator by an older list, most have this
 * round's list. */
bool rdzv_election_may_run(const struct rdzv_election *e, uint64_t now)
{
    uint64_t ago = now > e->rules->dead_ns ? now - e->rules->dead_ns : 1;
    uint64_t since = e->prepare_ns - 1 > ago ? e->prepare_ns - 1 : ago;
    return !e->rules->elect || e->quorum[RDZV_LIST_RAN].list.n == 0 || is_quorum(e, since);
}

bool rdzv_election_has_quorum(const struct rdzv_election *e)
{
    return is_quorum(e, 0);
}

/* The condition is I2 again: leases end before members out of reach can have elected another
 * coordinator and started workers (I5). */
uint64_t rdzv_election_lease_until(struct rdzv_election *e, uint64_t now)
{
    if (!e->rules->elect || e->quorum[RDZV_LIST_RAN].list.n == 0)
        return NEVER;
    if (now < e->lease_look_at)
        return e->lease_until;
    e->lease_look_at = now + e->rules->heartbeat_ns / 4;
    e->lease_until = NEVER;
    for (int k = 0; k < RDZV_LISTS; k++) {
        const struct rdzv_quorum *q = &e->quorum[k];
        uint64_t touch = q->list.n ? rdzv_quorum_touch(q, &e->nodes->by_id) : NEVER;
        if (touch < NEVER - e->rules->dead_ns && touch + e->rules->dead_ns < e->lease_until)
            e->lease_until = touch + e->rules->dead_ns;
    }
    return e->lease_until;
}
