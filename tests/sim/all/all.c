/* all.c: every order in which messages, ends of workers, faults and times can come in a small job:
 * all states of it, not a sample. tests/README.md says what is bounded.
 *
 *     sim_all NODES FAULTS [KINDS]          all states; KINDS: which faults may come, of FSKVRLZH
 *     sim_all NODES FAULTS KINDS MOVE...    one path, loudly, as a violation prints it
 *
 * SIM_ALL_SECONDS: gives up after so many; SIM_ALL_LOUD: prints how far it is; SIM_ALL_DUMP: the
 * folder into which it writes the first 200 end states, for a look at what tells two apart.
 *
 * A move is one of these: the oldest message of a direction of a connection arrives; a step of a
 * worker or of an answer to the agent is told; what is due at a node is done; when nothing is left
 * to do at this time, it goes on to the next time at which something is due; a fault. What is local
 * to one node, and can be met by nothing that comes from elsewhere at the same time, follows at
 * once.
 *
 * A state's hash is that of all that can be reached from the world: pointers count by what they
 * point to, times by how far they are from now. Two states that are told apart by something that
 * can have no effect count as two; none is left out. (Two of n states have one hash of 64 bits by
 * chance with a probability of n * n / 2^65.)
 *
 * That the job ends (I7): from each state, the path that always takes the first move meets no state
 * twice. The first moves are those of a world in which faults end, messages arrive in the order in
 * which they were sent, and workers exit. */
#include "tests/sim/all/all.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/clock.h"
#include "tests/sim/all/arena.h"

#define GRID_NS (500 * MSEC) /* pauses between calls are made longer, to whole ones of these */
#define PAST_NS (17 * SEC)   /* the longest wait of all rules is 16 s here */
#define SPAN_NS (1000000 * SEC)
#define DEPTH   (1 << 20)
#define CHOICES 64

enum move {
    ARRIVES,
    DUE,
    THAW,
    RELEASE,
    TIME,
    FAIL,
    STOP,
    KILL,
    VANISH,
    RESET,
    SILENCE,
    FREEZE,
    HOLD
};
static const char *const names[] = {"",     "due at", "thaw",  "release", "time",   "fails", "stop",
                                    "kill", "vanish", "reset", "silence", "freeze", "hold"};
struct choice {
    enum move move;
    int who; /* a node, a link, or which of the events */
};

/* ------------------------------------------------------------------------------------ the states
 */

struct saved {
    uint64_t hash, now;
    struct arena_copy arena;
    char queue[SIM_QUEUE_BYTES], *world;
    size_t nrounds;
    int n, next, faults;
};

static struct saved *stack;
static int depth, deepest, faults_left;
static uint64_t nmoves, nends, start_ns, limit_s;
static const char *kinds;
static uint64_t *states, nstates, cap_states;

static size_t copy_world(char *to, const char *from, size_t nrounds)
{
    size_t rounds = offsetof(struct sim_world, rounds), used = nrounds * sizeof(W.rounds[0]);
    size_t rest = rounds + sizeof(W.rounds), n = rounds + used;
    bool back = to == (char *)&W;
    memcpy(to, from, n);
    memcpy(to + (back ? rest : n), from + (back ? n : rest), sizeof(W) - rest);
    return n + sizeof(W) - rest;
}

static void save(struct saved *f)
{
    arena_save(&f->arena);
    memcpy(f->queue, sim_queue(), SIM_QUEUE_BYTES);
    f->nrounds = (size_t)W.nrounds;
    arena_on = false;
    f->world = xmalloc(sizeof(W) - sizeof(W.rounds) + f->nrounds * sizeof(W.rounds[0]));
    arena_on = true;
    copy_world(f->world, (char *)&W, f->nrounds);
    f->now = now;
    f->faults = faults_left;
}

static void restore(const struct saved *f)
{
    arena_restore(&f->arena);
    memcpy(sim_queue(), f->queue, SIM_QUEUE_BYTES);
    copy_world((char *)&W, f->world, f->nrounds);
    now = f->now;
    faults_left = f->faults;
}

static void drop(struct saved *f)
{
    arena_drop(&f->arena);
    free(f->world);
    f->world = NULL;
}

/* Whether the state is a new one. */
static bool add_state(uint64_t h)
{
    if (2 * nstates >= cap_states) {
        uint64_t *old = states, n = cap_states;
        arena_on = false;
        cap_states = n ? 2 * n : 1 << 16;
        states = xcalloc(cap_states, sizeof(*states));
        nstates = 0;
        for (uint64_t i = 0; i < n; i++)
            old[i] ? (void)add_state(old[i]) : (void)0;
        free(old);
        arena_on = true;
    }
    uint64_t i = h & (cap_states - 1);
    while (states[i] && states[i] != h)
        i = (i + 1) & (cap_states - 1);
    bool new = !states[i];
    nstates += new;
    states[i] = h;
    return new;
}

/* -------------------------------------------------------------------------------------- the hash
 */

static uint64_t hash;
static uint32_t hashes, nblocks;
static struct arena_block *blocks[1 << 12];
static FILE *dump;
static uint32_t dump_block;

static void mix(uint64_t w)
{
    hash = (hash ^ w) * 0x9fb21c651e98df25ull;
    hash ^= hash >> 29;
}

static bool is_time(uint64_t w)
{
    return w - (SIM_SMALL_START - SPAN_NS) < 2 * SPAN_NS;
}

/* Digits in a text do not count: seconds that have passed are told in some. */
static uint64_t without_digits(uint64_t w)
{
    uint64_t out = 0;
    for (int i = 0; i < 64; i += 8) {
        uint64_t c = w >> i & 255;
        if (c && (c < ' ' || c > '~'))
            return w;
        out |= (c >= '0' && c <= '9' ? '0' : c) << i;
    }
    return w >> 8 ? out : w; /* one character may be a number */
}

static void mix_word(uint64_t w)
{
    struct arena_block *b = arena_block(w);
    if (b) {
        uint32_t n = nblocks, number = arena_number(b, hashes, &nblocks);
        assert(nblocks < ARRAY_LEN(blocks));
        if (nblocks > n)
            blocks[n] = b;
        w = 0x100000000 + number;
    } else if (is_time(w)) {
        w = w + PAST_NS > now ? (w - now) ^ 0x5555555555555555u : 0x3333;
    } else {
        w = without_digits(w);
    }
    mix(w);
}

static void mix_words(const char *p, size_t at, size_t n)
{
    for (size_t i = at; i + 8 <= at + n; i += 8) {
        uint64_t w;
        memcpy(&w, p + i, 8);
        if (w == 0)
            continue;
        mix(i);
        mix_word(w);
        if (dump)
            fprintf(dump, "%u+%zu %s%lld\n", dump_block, i,
                    arena_block(w) ? "-> "
                    : is_time(w)   ? "t "
                                   : "",
                    arena_block(w) ? 1 + (long long)arena_number(arena_block(w), hashes, &nblocks)
                    : is_time(w)   ? (long long)(w - now)
                                   : (long long)w);
    }
}

typedef uint64_t __attribute__((may_alias)) word;

/* Most of a state is the empty rest of texts. */
static void mix_bytes(const void *p, size_t n)
{
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        const word *w = (const word *)((const char *)p + i);
        if (w[0] | w[1] | w[2] | w[3] | w[4] | w[5] | w[6] | w[7])
            mix_words(p, i, 64);
    }
    mix_words(p, i, n - i);
}

/* Times stand anywhere in a message. */
static void mix_message(const struct buf *b)
{
    mix(b->len);
    for (size_t i = 0; i < b->len;) {
        uint64_t w = 0;
        memcpy(&w, b->data + i, b->len - i < 8 ? b->len - i : 8);
        if (i + 8 <= b->len && is_time(w)) {
            mix_word(w);
            i += 8;
        } else {
            uint8_t c = b->data[i++];
            mix(c >= '0' && c <= '9' && b->len > 300 ? '0'
                                                     : c); /* only those with texts are long */
        }
    }
}

static bool is_up(const struct sim_event *e)
{
    return e->kind == EV_TO_COORDINATOR || e->kind == EV_END_COORDINATOR;
}

static bool is_on_link(const struct sim_event *e)
{
    return e->kind <= EV_END_MEMBER;
}

static bool is_before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static int by_content(const void *a, const void *b)
{
    const struct sim_event *x = *(struct sim_event *const *)a, *y = *(struct sim_event *const *)b;
    int diff = (int)is_on_link(x) - (int)is_on_link(y);
    diff = diff || is_on_link(x) ? diff : (int)x->kind - (int)y->kind;
    diff = diff ? diff : x->who - y->who;
    diff = diff || !is_on_link(x) ? diff : is_up(x) - is_up(y);
    return diff ? diff : is_before(x, y) ? -1 : 1;
}

/* Events under way, in an order of their own on each connection. */
static void mix_events(void)
{
    const struct sim_event *e[CHOICES];
    size_t n = sim_events();
    assert(n <= CHOICES);
    for (size_t i = 0; i < n; i++)
        e[i] = sim_event(i);
    qsort(e, n, sizeof(e[0]), by_content);
    for (size_t i = 0; i < n; i++) {
        mix(e[i]->kind * 64u + (uint64_t)e[i]->who);
        mix(e[i]->kind == EV_CALL_LOST ? e[i]->at - now : 0);
        mix((uint64_t)e[i]->incarnation << 8 | e[i]->number << 16 | e[i]->second);
        mix_message(&e[i]->bytes);
        if (dump)
            fprintf(dump, "event %d of %d: %llu\n", (int)e[i]->kind, e[i]->who,
                    (unsigned long long)e[i]->number);
    }
}

static void forget_node(struct sim_node *n)
{
    if (n->m)
        all_forget_member(n->m);
    if (n->s)
        all_forget_coordinator(n->s);
    if (n->agent)
        all_forget_agent(n->agent);
    if (n->reach)
        all_forget_reach(n->reach);
    n->tick_at = n->s_tick_at = n->agent_tick_at = n->guard_at = n->second = n->until_ns = 0;
    if (!n->left)
        n->left_ns = n->idle_ns = 0;
    if (!n->in_round && !n->left)
        n->heard_ns = 0;
    if (n->grant <= now)
        n->grant = 0;
    if (n->closed || !n->m)
        n->left_ns = n->idle_ns = n->heard_ns = n->asked_ns = n->thawed_ns = n->lease = 0;
    for (int i = 0; i < n->nproc; i++)
        n->workers[i].failure.seen_ns = all_cap(n->workers[i].failure.seen_ns, SEC);
}

static void mix_round(const struct sim_round *r)
{
    mix(r->gen.epoch);
    mix(r->gen.counter);
    mix((uint64_t)r->alive << 32 | (uint64_t)r->ok << 16 | (uint64_t)r->nfailed << 8);
    for (int i = 0; i < r->nfailed; i++) {
        mix((uint64_t)r->failed[i].rank << 16 | (uint64_t)r->failed[i].status);
        mix(W.finished || r != &W.rounds[W.nrounds - 1] ? 0 : now - all_cap(r->failed[i].at, SEC));
    }
    for (int i = 0; i < W.n; i++)
        mix((uint64_t)r->rank_of[i]);
}

static uint64_t hash_of_state(void)
{
    hash = 14695981039346656037ull;
    nblocks = 0;
    hashes++;
    for (int i = 0; i < W.n; i++)
        forget_node(&W.nodes[i]);
    mix((uint64_t)faults_left << 32 | (uint64_t)W.finished << 16 | (uint64_t)W.failures);
    mix_bytes(W.asked, sizeof(W.asked));
    mix_bytes(W.nodes, (size_t)W.n * sizeof(*W.nodes));
    for (int i = 0; i < W.nlinks; i++) {
        struct sim_link l = W.links[i];
        l.up_at = l.down_at = 0;
        mix(100 + (uint64_t)i);
        if (!sim_link_is_free(i))
            mix_bytes(&l, sizeof(l));
    }
    for (int i = 0; i < W.nrounds; i++)
        mix_round(&W.rounds[i]);
    for (int i = 0; i < W.nepochs; i++)
        mix(W.epochs[i].epoch);
    mix_events();
    for (uint32_t i = 0; i < nblocks; i++) {
        dump_block = i + 1;
        mix_bytes(arena_data(blocks[i]), arena_size(blocks[i]));
    }
    return hash ? hash : 1;
}

/* --------------------------------------------------------------------------------- what can come
 */

static int node_of(const struct sim_event *e)
{
    return !is_on_link(e) ? e->who : is_up(e) ? W.links[e->who].to : W.links[e->who].node;
}

static bool is_held(const struct sim_event *e)
{
    return W.nodes[node_of(e)].frozen || (is_on_link(e) && W.links[e->who].stalled_ns[is_up(e)]);
}

/* What follows at once: steps of one node that nothing from elsewhere can meet at the same time.
 * A coordinator and its own node hear each other before all others. */
static bool is_at_once(const struct sim_event *e)
{
    switch (e->kind) {
    case EV_START:
    case EV_REACH:
    case EV_LOOK_FOUND:
    case EV_CALL:
    case EV_EXEC:
    case EV_FAILING:
    case EV_FREED:
    case EV_DRAINED:
    case EV_PREPARED:
    case EV_LOOKED:
    case EV_WRITTEN:
        return true;
    default:
        return is_on_link(e) && W.links[e->who].node == W.links[e->who].to;
    }
}

static bool is_later(const struct sim_event *e)
{
    return e->kind == EV_CALL_LOST && e->at > now;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* When the node has something to do by itself. */
static uint64_t due_at(const struct sim_node *n)
{
    uint64_t at = n->m && n->lease && sim_workers_alive(n) ? n->lease : UINT64_MAX;
    if (!n->m || n->frozen)
        return at;
    at = sooner(at, member_state_deadline(n->m));
    at = sooner(at, agent_rules_deadline(n->agent));
    if (n->s)
        at = sooner(at, rdzv_state_deadline(n->s));
    uint64_t call = reach_deadline(n->reach);
    return call == UINT64_MAX ? at : sooner(at, (call + GRID_NS - 1) / GRID_NS * GRID_NS);
}

static void add(struct choice *c, int *n, enum move move, int who)
{
    assert(*n < CHOICES);
    c[(*n)++] = (struct choice){move, who};
}

static bool may(enum move m)
{
    static const char letters[] = "....."
                                  "FSKVRLZH";
    return faults_left && strchr(kinds, letters[m]);
}

static void add_faults(struct choice *c, int *n)
{
    for (int i = 0; i < W.n; i++) {
        const struct sim_node *o = &W.nodes[i];
        if (!o->m || o->closed)
            continue;
        for (enum move m = STOP; m <= VANISH; m++)
            if (may(m) && (m != STOP || !o->requests))
                add(c, n, m, i);
        if (may(FREEZE) && !o->frozen)
            add(c, n, FREEZE, i);
        const struct sim_link *l = o->link >= 0 ? &W.links[o->link] : NULL;
        if (!l || l->to == i || l->dead)
            continue;
        if (may(RESET))
            add(c, n, RESET, i);
        if (may(SILENCE))
            add(c, n, SILENCE, i);
        for (int up = 0; up < 2 && may(HOLD); up++)
            if (!l->stalled_ns[up])
                add(c, n, HOLD, 2 * o->link + up);
    }
}

/* What is the oldest on its connection, or is no message. */
static bool is_next(const struct sim_event *e)
{
    for (size_t i = 0; is_on_link(e) && i < sim_events(); i++) {
        const struct sim_event *o = sim_event(i);
        if (is_on_link(o) && o->who == e->who && is_up(o) == is_up(e) && is_before(o, e))
            return false;
    }
    return true;
}

/* All moves, the first being that of a world in which all goes well. */
static int choices(struct choice *c)
{
    int n = 0;
    bool waits = false, later = false;
    for (int i = 0; i < W.n; i++) {
        if (W.nodes[i].frozen)
            add(c, &n, THAW, i);
    }
    for (int i = 0; i < 2 * W.nlinks; i++) {
        if (W.links[i / 2].stalled_ns[i % 2])
            add(c, &n, RELEASE, i);
    }
    int first = n;
    for (size_t i = 0; i < sim_events(); i++) {
        const struct sim_event *e = sim_event(i);
        bool comes = !is_later(e) && !is_held(e) && is_next(e);
        later |= is_later(e);
        if (comes)
            add(c, &n, ARRIVES, (int)i);
        waits |= comes && e->kind != EV_EXIT;
    }
    for (int i = first + 1; i < n; i++) { /* in their order, workers' ends last */
        for (int k = i; k > first; k--) {
            const struct sim_event *a = sim_event((size_t)c[k - 1].who),
                                   *b = sim_event((size_t)c[k].who);
            bool a_exits = a->kind == EV_EXIT, b_exits = b->kind == EV_EXIT;
            if (a_exits != b_exits ? b_exits : is_before(a, b))
                break;
            struct choice swap = c[k];
            c[k] = c[k - 1];
            c[k - 1] = swap;
        }
    }
    int arrivals = n;
    for (int i = 0; i < W.n; i++) {
        uint64_t at = due_at(&W.nodes[i]);
        if (at <= now)
            add(c, &n, DUE, i);
        waits |= at <= now;
        later |= at > now && at != UINT64_MAX;
    }
    if (later && !waits)
        add(c, &n, TIME, 0);
    for (int i = first; i < arrivals; i++) {
        const struct sim_event *e = sim_event((size_t)c[i].who);
        if (e->kind == EV_EXIT && may(FAIL))
            add(c, &n, FAIL, c[i].who);
    }
    if (faults_left)
        add_faults(c, &n);
    return n;
}

/* ------------------------------------------------------------------------------------- it happens
 */

static void due(struct sim_node *n)
{
    uint64_t t = now;
    if (!n->frozen) {
        struct sim_event e = {.kind = EV_REACH, .who = sim_index(n), .incarnation = n->incarnation};
        if (n->s && rdzv_state_deadline(n->s) <= t)
            sim_coordinator_tick(n);
        if (n->m && member_state_deadline(n->m) <= t)
            member_state_tick(n->m, t);
        if (n->m)
            sim_member_drain(n);
        if (n->m && agent_rules_deadline(n->agent) <= t)
            agent_rules_tick(n->agent, t);
        sim_agent_drain(n);
        sim_member_drain(n);
        if (n->m && reach_deadline(n->reach) <= t)
            sim_step(&e);
    }
    if (n->m && n->lease && n->lease <= t && sim_workers_alive(n))
        sim_guardian_look(n);
}

/* What is due at a node; once it has been thawed, what has arrived meanwhile may come first. */
static bool due_at_once(void)
{
    for (int i = 0; i < W.n; i++) {
        struct sim_node *n = &W.nodes[i];
        if (due_at(n) <= now && (n->frozen || n->thawed_ns != now)) {
            due(n);
            return true;
        }
    }
    return false;
}

static void follow(void)
{
    int steps = 0;
    do {
        for (;;) {
            size_t best = SIZE_MAX;
            for (size_t i = 0; i < sim_events(); i++) {
                const struct sim_event *e = sim_event(i);
                if (is_at_once(e) && !is_held(e) &&
                    (best == SIZE_MAX || is_before(e, sim_event(best))))
                    best = i;
            }
            if (best == SIZE_MAX)
                break;
            struct sim_event e = sim_take(best);
            sim_step(&e);
        }
        CHECK("I11", steps++ < 1000, "something is due without an end");
    } while (due_at_once());
}

static void check_in_time(struct sim_node *n)
{
    uint64_t within = 5 * SEC + n->grace_ns;
    if (!n->m)
        return;
    sim_agent_watch(n, n->runs);
    if (n->left)
        sim_agent_leaves(n);
    if (n->requests && now - n->asked_ns > within / 50 * 51 + SEC)
        sim_agent_gone(n, within);
}

static void time_passes(void)
{
    uint64_t at = UINT64_MAX;
    for (size_t i = 0; i < sim_events(); i++) {
        if (is_later(sim_event(i)))
            at = sooner(at, sim_event(i)->at);
    }
    for (int i = 0; i < W.n; i++) {
        uint64_t t = due_at(&W.nodes[i]);
        at = t > now ? sooner(at, t) : at;
    }
    now = at;
    for (int i = 0; i < W.n; i++)
        check_in_time(&W.nodes[i]);
}

static void come(const struct choice *c)
{
    struct sim_event e;
    struct sim_node *n = c->move >= ARRIVES && c->who < W.n ? &W.nodes[c->who] : NULL;
    faults_left -= c->move >= FAIL;
    switch (c->move) {
    case FAIL:
        e = *sim_event((size_t)c->who);
        W.nodes[e.who].workers[e.second].fails = true;
        /* fall through */
    case ARRIVES:
        e = sim_take((size_t)c->who);
        sim_step(&e);
        break;
    case DUE:
        due(n);
        break;
    case TIME:
        time_passes();
        break;
    case THAW:
        n->frozen = false;
        n->thawed_ns = now;
        break;
    case FREEZE:
        n->frozen = true;
        break;
    case HOLD:
    case RELEASE:
        W.links[c->who / 2].stalled_ns[c->who % 2] = c->move == HOLD;
        break;
    case STOP:
        sim_agent_request(n, ASK_SIGTERM);
        sim_member_drain(n);
        break;
    case KILL:
    case VANISH:
        sim_kill(c->who, c->move == KILL ? 0 : 2);
        break;
    case RESET:
    case SILENCE:
        sim_cut_link(c->who, c->move == SILENCE);
        break;
    }
    follow();
}

/* -------------------------------------------------------------------------------------- the search
 */

static int *taken; /* the moves that have led here, by their numbers */

static void describe(const struct choice *c)
{
    if (c->move != ARRIVES && c->move != FAIL) {
        printf("%s %d", names[c->move], c->who);
        return;
    }
    const struct sim_event *e = sim_event((size_t)c->who);
    static const char *const on_link[] = {"message to coordinator from", "message to",
                                          "end to coordinator from", "end to"};
    static const char *const local[] = {
        [EV_BEGUN] = "begun",   [EV_ENDED] = "ended",        [EV_FAILING] = "failing",
        [EV_REAPED] = "reaped", [EV_DRAINED] = "drained",    [EV_EXIT] = "exit",
        [EV_DIES] = "dies",     [EV_CALL_LOST] = "call lost"};
    printf("%s%s %d", c->move == FAIL ? "fails: " : "",
           is_on_link(e)                                  ? on_link[e->kind]
           : e->kind < ARRAY_LEN(local) && local[e->kind] ? local[e->kind]
                                                          : "event",
           is_on_link(e) ? W.links[e->who].node : e->who);
}

static void print_path(int signo)
{
    signal(SIGABRT, SIG_DFL);
    printf("an invariant or an assertion is broken at %.1f s, after %d moves:\n",
           (double)(now - SIM_SMALL_START) / 1e9, depth);
    for (int i = 0; i < depth; i++)
        printf("%s%d", i ? " " : "", taken[i]);
    printf("\n");
    fflush(stdout);
    _exit(signo ? 1 : 0);
}

/* Whether the last moves have all been first ones since a state with this hash. */
static bool is_round_trip(uint64_t h)
{
    for (int i = depth - 1; i >= 0 && taken[i] == 0; i--) {
        if (stack[i].hash == h)
            return true;
    }
    return false;
}

static void come_to_end(void)
{
    sim_check_end();
    nends++;
}

static uint64_t nth_dump;
static void dump_end(void)
{
    char name[64];
    const char *to = getenv("SIM_ALL_DUMP");
    if (!to || nth_dump >= 200)
        return;
    snprintf(name, sizeof(name), "%s/%llu", to, (unsigned long long)nth_dump++);
    arena_on = false;
    dump = fopen(name, "w");
    arena_on = true;
    hash_of_state();
    arena_on = false;
    fclose(dump);
    arena_on = true;
    dump = NULL;
}

static bool visit(struct choice *c)
{
    uint64_t h = hash_of_state();
    struct saved *f = &stack[depth];
    bool first = depth == 0 || taken[depth - 1] == 0;
    W.look = true;
    if (!add_state(h)) {
        CHECK("I7", !first || !is_round_trip(h), "the job does not end by itself");
        return false;
    }
    W.look = true;
    f->n = sim_is_over() ? 0 : choices(c);
    f->next = 0;
    f->hash = h;
    deepest = depth > deepest ? depth : deepest;
    W.look = true;
    if (f->n == 0) {
        come_to_end();
        dump_end();
        return false;
    }
    return true;
}

static bool search(void)
{
    struct choice c[CHOICES];
    if (!visit(c))
        return true;
    while (depth >= 0) {
        struct saved *f = &stack[depth];
        if (f->next == f->n) {
            drop(f);
            depth--;
            continue;
        }
        if (f->next > 0) {
            restore(f);
            choices(c);
        } else if (f->n > 1) {
            save(f);
        }
        if (++nmoves % 65536 == 0) {
            double s = (double)(mono_ns() - start_ns) / 1e9;
            if (getenv("SIM_ALL_LOUD"))
                fprintf(stderr, "%llu states, %llu moves, depth %d of %d, %.0f moves/s\n",
                        (unsigned long long)nstates, (unsigned long long)nmoves, depth, deepest,
                        (double)nmoves / s);
            if (limit_s && s > (double)limit_s)
                return false;
        }
        taken[depth] = f->next;
        depth++;
        assert(depth < DEPTH);
        const struct choice chosen = c[f->next++];
        come(&chosen);
        if (!visit(c))
            depth--;
    }
    return true;
}

static int replay(int n, char **moves)
{
    struct choice c[CHOICES];
    W.loud = true;
    log_init(LOG_LEVEL_VERBOSE, NULL);
    for (depth = 0; depth < n; depth++) {
        int k = atoi(moves[depth]);
        hash_of_state();
        W.look = true;
        if (sim_is_over() || k >= choices(c)) {
            printf("there is no such move\n");
            return 1;
        }
        W.look = true;
        printf("%4d at %.1f s: ", depth, (double)(now - SIM_SMALL_START) / 1e9);
        describe(&c[k]);
        printf("\n");
        taken[depth] = k;
        come(&c[k]);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int nodes = argc > 2 ? atoi(argv[1]) : 0, faults = argc > 2 ? atoi(argv[2]) : 0;
    kinds = argc > 3 ? argv[3] : "FSKVRLZH";
    if (nodes < 2 || nodes > 3) {
        fprintf(stderr, "usage: sim_all NODES(2, 3) FAULTS [KINDS of FSKVRLZH [MOVE...]]\n");
        return 2;
    }
    start_ns = mono_ns();
    limit_s = getenv("SIM_ALL_SECONDS") ? strtoull(getenv("SIM_ALL_SECONDS"), NULL, 10) : 0;
    stack = xcalloc(DEPTH, sizeof(*stack));
    taken = xcalloc(DEPTH, sizeof(*taken));
    log_init(LOG_LEVEL_NOTICE, NULL);
    faults_left = faults;
    setvbuf(stdout, xmalloc(1 << 16), _IOFBF, 1 << 16); /* not from the arena */
    arena_open();
    arena_on = true;
    signal(SIGABRT, print_path);
    sim_small_world(nodes);
    follow();
    if (argc > 4)
        return replay(argc - 4, argv + 4);
    bool all = search();
    double s = (double)(mono_ns() - start_ns) / 1e9;
    arena_on = false;
    printf("%d nodes, %d faults of %-8s %s%10llu states, %11llu moves, %7llu ends, longest path "
           "%6d, %5.0f s, %.0f moves/s\n",
           nodes, faults, kinds, all ? "all:" : "NOT ALL:", (unsigned long long)nstates,
           (unsigned long long)nmoves, (unsigned long long)nends, deepest, s, (double)nmoves / s);
    return all ? 0 : 1;
}
