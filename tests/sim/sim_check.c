/* The invariants: sim.h lists them. */
#include "tests/sim/sim.h"

#include <check.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODES_BEYOND(max)   (64 + (max) / 4) /* launchers that may wait beside those with a place */
#define MESSAGES_PER_SECOND 200              /* of one node */
#define CLOCK_ERROR         (5 * SEC)        /* half of the slowest way there and back */

void sim_broken(const char *invariant, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    printf("seed %llu at %.6f: %s: %s\n", (unsigned long long)W.seed, (double)now / 1e9, invariant,
           text);
    fflush(stdout);
    if (W.small)
        abort(); /* all.c shows the way to it */
    signal(SIGABRT, SIG_DFL);
    ck_abort_msg("%s is broken, SIM_SEED=%llu", invariant, (unsigned long long)W.seed);
    abort();
}

static void on_abort(int signo)
{
    (void)signo;
    printf("seed %llu at %.6f: I16: an assertion fails\n", (unsigned long long)W.seed,
           (double)now / 1e9);
    fflush(stdout);
    _exit(1);
}

void sim_expect_assertions(void)
{
    signal(SIGABRT, on_abort);
}

/* --------------------------------------------------------------------------------------- rounds */

static uint64_t hash_table(const struct rank_table *t)
{
    struct buf b = BUF_INIT;
    uint64_t h = 14695981039346656037ull;
    rank_table_encode(&b, t);
    for (size_t i = 0; i < b.len; i++)
        h = (h ^ b.data[i]) * 0x100000001b3ull;
    buf_fini(&b);
    return h;
}

int sim_job_of(struct generation g)
{
    for (int i = 0; i < W.nepochs; i++) {
        if (W.epochs[i].epoch == g.epoch)
            return W.epochs[i].job;
    }
    return 0;
}

/* A coordinator that is started again begins another job. Where nobody is elected, what is left of
 * the one before it ends by itself; else that one goes on if it has a majority, and the new one's
 * nodes are sent there unless they have begun a round before. */
static bool other_job(struct generation a, struct generation b)
{
    return sim_job_of(a) != sim_job_of(b);
}

/* The first of its members starts its workers. */
static void round_begins(struct sim_round *r, const struct rank_table *t)
{
    CHECK("I11", W.nrounds < ROUNDS - 1, "too many rounds");
    for (int i = 0; i < W.nrounds; i++)
        CHECK("I6",
              other_job(W.rounds[i].gen, t->gen) || generation_before(W.rounds[i].gen, t->gen),
              "round %u of epoch %llx begins after a newer one", t->gen.counter,
              (unsigned long long)t->gen.epoch);
    W.nrounds++;
    sim_total.rounds++;
    *r = (struct sim_round){.gen = t->gen,
                            .n = t->nnodes,
                            .world = t->world_size,
                            .table_hash = hash_table(t),
                            .rank0 = t->nodes[0].pid / 1000,
                            .rank_of = xmalloc((size_t)W.n * sizeof(*r->rank_of))};
    CHECK("I2", r->n >= W.rules.min_nodes && r->n <= W.rules.max_nodes, "%d nodes", r->n);
    for (int i = 0; i < W.n; i++)
        r->rank_of[i] = -1;
    for (int i = 0; i < r->n; i++) {
        int who = t->nodes[i].pid / 1000;
        const struct sim_node *other = &W.nodes[who];
        CHECK("I1", r->rank_of[who] < 0, "node %d has two places", who);
        r->rank_of[who] = i;
        if (!other->m || other->incarnation != t->nodes[i].pid % 1000)
            continue; /* it has died meanwhile */
        CHECK("I3", generation_equal(other->prepared, t->gen), "node %d is not prepared", who);
    }
}

void sim_check_round(struct sim_node *n, const struct rank_table *t, int rank)
{
    int me = sim_index(n);
    struct sim_round *r = W.rounds + W.nrounds;
    while (r > W.rounds && !generation_equal(r[-1].gen, t->gen))
        r--;
    if (r > W.rounds)
        r--;
    else
        round_begins(r = W.rounds + W.nrounds, t);
    n->round = (int)(r - W.rounds);
    CHECK("I5", rank != 0 || r->rank0 == me, "nodes %d and %d have rank 0", r->rank0, me);
    CHECK("I1", rank >= 0 && rank < t->nnodes, "rank %d of %d", rank, t->nnodes);
    CHECK("I1", r->rank_of[me] == rank, "node %d has rank %d and %d", me, r->rank_of[me], rank);
    if (W.n <= 256 || rank % 64 == 0) /* of very many, some */
        CHECK("I2", r->n == t->nnodes && r->table_hash == hash_table(t), "tables differ");
    CHECK("I1", t->nodes[rank].pid == 1000 * me + n->incarnation, "rank %d is another's", rank);
}

struct sim_round *sim_round_of(const struct sim_node *n)
{
    return &W.rounds[n->round];
}

/* A worker of its round starts. */
void sim_check_start(struct sim_node *n, int i)
{
    struct sim_round *r = sim_round_of(n);
    for (const struct sim_round *o = W.rounds; o < W.rounds + W.nrounds; o++)
        CHECK(
            "I13", o == r || o->alive == 0 || other_job(o->gen, r->gen),
            "worker %d of node %d starts in round %u of epoch %llx, beside %d of round %u of epoch "
            "%llx",
            i, sim_index(n), r->gen.counter, (unsigned long long)r->gen.epoch, o->alive,
            o->gen.counter, (unsigned long long)o->gen.epoch);
    r->alive++;
    r->from_ns = r->from_ns ? r->from_ns : now;
}

void sim_check_ended(struct sim_node *n)
{
    struct sim_round *r = sim_round_of(n);
    CHECK("I13", r->alive > 0, "more workers of round %u end than have started", r->gen.counter);
    r->alive--;
    r->until_ns = now;
}

void sim_check_failed(struct sim_node *n, int i)
{
    struct sim_round *r = sim_round_of(n);
    const struct failure *f = &n->workers[i].failure;
    W.failures++;
    if (r->nfailed < (int)ARRAY_LEN(r->failed))
        r->failed[r->nfailed] =
            (struct sim_failed){f->kind, f->rank, failure_exit_status(f), f->caused_by, now};
    r->nfailed++;
}

void sim_check_again(struct sim_node *n, int i)
{
    struct sim_round *r = sim_round_of(n);
    for (int k = 0; k < r->nfailed && r->nfailed <= (int)ARRAY_LEN(r->failed); k++) {
        if (r->failed[k].rank == n->base_rank + i)
            r->failed[k--] = r->failed[--r->nfailed];
    }
}

/* The same once more at the end, by the time stamps alone. */
static void check_rounds_apart(void)
{
    for (int i = 0; i < W.nrounds; i++) {
        const struct sim_round *a = &W.rounds[i];
        for (int k = 0; k < i; k++) {
            const struct sim_round *b = &W.rounds[k];
            CHECK("I13",
                  other_job(a->gen, b->gen) || !a->from_ns ||
                      (!b->alive && b->until_ns <= a->from_ns),
                  "rounds %u and %u overlap: %d workers, %.6f to %.6f, %.6f", b->gen.counter,
                  a->gen.counter, b->alive, (double)b->from_ns / 1e9, (double)b->until_ns / 1e9,
                  (double)a->from_ns / 1e9);
        }
    }
}

/* --------------------------------------------------------------------------------- coordinators */

/* A new coordinator: elected, or the first one. (After a long sleep a candidate may count votes of
 * an earlier election: it is then not the only coordinator, but cannot begin a round.) */
static void check_epoch(struct sim_node *n, uint64_t epoch)
{
    n->s_epoch = epoch;
    for (int i = 0; i < W.nepochs; i++)
        CHECK("I6", W.epochs[i].epoch != epoch, "epoch %llx once more", (unsigned long long)epoch);
    if (W.nepochs == W.cap_epochs) {
        W.cap_epochs = W.cap_epochs ? 2 * W.cap_epochs : 16;
        W.epochs = xrealloc(W.epochs, (size_t)W.cap_epochs * sizeof(*W.epochs));
    }
    W.epochs[W.nepochs++] = (struct sim_epoch){epoch, n->job};
}

void sim_check_coordinator(struct sim_node *n)
{
    const struct rdzv_rules *r = &W.rules;
    struct rdzv_state_info info;
    rdzv_state_get_info(n->s, &info);
    if (!info.standing && info.gen.epoch != n->s_epoch)
        check_epoch(n, info.gen.epoch);
    CHECK("I8", info.restarts <= r->max_restarts, "%d restarts", info.restarts);
    CHECK("I8", info.restarts <= W.failures, "%d restarts for %d failures", info.restarts,
          W.failures);
    CHECK("I8", r->max_node_restarts < 0 || info.node_restarts <= r->max_node_restarts,
          "%d restarts for nodes", info.node_restarts);
    CHECK("I10", info.nodes <= r->max_nodes + r->spares + NODES_BEYOND(r->max_nodes),
          "%d nodes are here", info.nodes);
}

/* ------------------------------------------------------------------------------------- messages */

void sim_check_message(struct sim_node *n, const struct buf *b)
{
    if (n->second != now / SEC) {
        n->second = now / SEC;
        n->in_second = 0;
    }
    n->in_second += !W.small;
    CHECK("I11", n->in_second <= MESSAGES_PER_SECOND, "node %d sent %d messages in a second",
          sim_index(n), n->in_second);
    CHECK("I10", !b->oom && b->len <= RDZV_FRAME_MAX, "a message of %zu bytes", b->len);
}

/* For good, by a coordinator that has begun a round: then some other launcher of the scenario has
 * the rank that it asks for. */
void sim_check_turned_away(const struct sim_node *coordinator, int who, const char *why)
{
    const struct sim_node *n = &W.nodes[who];
    struct rdzv_state_info info;
    int same_rank = 0;
    rdzv_state_get_info(coordinator->s, &info);
    if (info.gen.counter == 0)
        return;
    for (int k = 0; k < W.n; k++) {
        const struct sim_node *o = &W.nodes[k];
        same_rank += o != n && o->nproc > 0 && o->node_rank == n->node_rank;
    }
    CHECK("I26", same_rank || !strstr(why, "is already taken"),
          "node %d, whose rank is nobody else's, is turned away: %s", who, why);
}

/* -------------------------------------------------------------------------------------- the end */

/* What the schedule let happen to the rank; NULL: nothing but an end by dlaunch. */
static const struct sim_failed *scheduled(const struct sim_round *r, int rank)
{
    for (int i = 0; i < r->nfailed; i++) {
        if (r->failed[i].rank == rank)
            return &r->failed[i];
    }
    return NULL;
}

/* Every failure of the report is one of the schedule, at its time, as far as clocks that do not run
 * alike allow to know it. */
static void check_happened(const struct rdzv_result *res, const struct sim_round *r,
                           const struct sim_node *coordinator)
{
    for (size_t i = 0; i < res->n; i++) {
        const struct failure *f = &res->failures[i];
        if (f->kind == FAILURE_NODE)
            continue;
        const struct sim_failed *s = scheduled(r, f->rank);
        if (f->kind == FAILURE_STOPPED) {
            CHECK("I20", !s, "rank %d has failed, and is reported as stopped", f->rank);
            continue;
        }
        CHECK("I20", s && s->kind == f->kind && s->status == failure_exit_status(f),
              "rank %d is reported with status %d, which it has not ended with", f->rank,
              failure_exit_status(f));
        uint64_t at = sim_when(coordinator, f->seen_ns);
        uint64_t off = at > s->at ? at - s->at : s->at - at;
        CHECK("I20", off <= CLOCK_ERROR, "rank %d is reported as failed %.1f s too early or late",
              f->rank, (double)off / 1e9);
        sim_total.clock_error_ns = off > sim_total.clock_error_ns ? off : sim_total.clock_error_ns;
    }
}

/* Whether the death of another rank in the report has made this one fail. */
static bool is_consequence(const struct rdzv_result *res, const struct failure *f)
{
    bool node_lost = false, known = false;
    if (f->kind == FAILURE_STOPPED)
        return true;
    for (size_t i = 0; i < res->n; i++) {
        const struct failure *o = &res->failures[i];
        node_lost |= o->kind == FAILURE_NODE;
        known |= o->rank >= 0 && o->rank == f->caused_by;
        if (o->rank >= 0 && o->rank == f->caused_by && o->kind != FAILURE_STOPPED)
            return true;
    }
    return f->caused_by >= 0 && !known && node_lost;
}

static bool is_hard(const struct failure *f)
{
    return f->kind != FAILURE_EXIT;
}

/* Whether a is the cause rather than b, by their times: an exit may be what survivors do. */
static bool precedes(const struct failure *a, const struct failure *b)
{
    if (is_hard(a) == is_hard(b))
        return a->seen_ns < b->seen_ns;
    return is_hard(a) ? a->seen_ns <= b->seen_ns + FAILURE_SKEW_NS
                      : a->seen_ns + FAILURE_SKEW_NS < b->seen_ns;
}

/* The failure that is named first is the cause of the others, and has given the status. */
static void check_first(const struct rdzv_result *res)
{
    const struct failure *first = &res->failures[0];
    CHECK("I20", res->exit_code == failure_exit_status(first),
          "the job ends with %d, and with %d for the first failure", res->exit_code,
          failure_exit_status(first));
    CHECK("I20", !is_consequence(res, first), "rank %d is named first, and was not the cause",
          first->rank);
    for (size_t i = 1; i < res->n; i++) {
        const struct failure *f = &res->failures[i];
        CHECK("I20", is_consequence(res, f) || !precedes(f, first),
              "rank %d is named first, and rank %d has failed before", first->rank, f->rank);
    }
}

/* A program that cannot be executed is not started again. */
static bool has_exec(const struct rdzv_result *res)
{
    for (size_t i = 0; i < res->n; i++) {
        if (res->failures[i].kind == FAILURE_EXEC)
            return true;
    }
    return false;
}

/* What the result of a round says is what the schedule let happen in it. */
static void check_truth(const struct rdzv_result *res, const struct sim_round *r,
                        const struct sim_node *coordinator)
{
    if (res->exit_code == 0)
        CHECK("I20", r->ok == r->world, "the job succeeds, and %d of %d workers have", r->ok,
              r->world);
    if (res->exit_code == 0 || r->nfailed > (int)ARRAY_LEN(r->failed))
        return;
    check_happened(res, r, coordinator);
    if (res->reason != STOP_FAILURE)
        return;
    CHECK("I20", res->n > 0, "the job ends for a failure that it does not name");
    CHECK("I20", res->restarts == W.rules.max_restarts || res->final[0] || has_exec(res),
          "the job ends with %d of %d restarts", res->restarts, W.rules.max_restarts);
    check_first(res);
}

static bool was_asked(const struct rdzv_result *r)
{
    bool asks = r->reason == STOP_SIGNAL || r->reason == STOP_TIMEOUT ||
                r->reason == STOP_REQUEST || r->reason == STOP_TIME_LIMIT;
    return !asks || r->exit_code == 0 || (W.asked[r->reason] && W.codes[r->exit_code]);
}

void sim_check_result(struct sim_node *n, const struct rdzv_result *r)
{
    struct rdzv_state_info info;
    struct rdzv_info own;
    struct rdzv_state *of = n->follows >= 0 ? W.nodes[n->follows].s : NULL;
    bool alone = strstr(r->text, "no majority") || strstr(r->text, "made coordinator");
    bool named = strstr(r->text, "node") || strstr(r->text, "rank") || r->reason == STOP_TIMEOUT;
    CHECK("I12", r->exit_code == 0 || named, "an end without a name: '%s'", r->text);
    CHECK("I12", r->exit_code == 0 || r->reason != STOP_INTERNAL || W.internal,
          "an end without sense: %s", r->text);
    CHECK("I14", !alone || n->prepares || n->nproc == 0 || n->s,
          "node %d ends with a coordinator whose rounds it was not in: %s", sim_index(n), r->text);
    CHECK("I8", r->restarts <= W.rules.max_restarts, "%d restarts", r->restarts);
    CHECK("I20", was_asked(r), "nobody has asked for an end with %d: %s", r->exit_code, r->text);
    if (!of || n->left || r->reason == STOP_COORDINATOR_LOST || r->reason == STOP_RENDEZVOUS)
        return; /* it speaks for itself */
    if (W.nodes[n->follows].incarnation != n->follows_incarnation)
        return; /* whose result this is has been started anew since, for a job that has its own */
    rdzv_state_get_info(of, &info);
    member_state_get_info(n->m, &own);
    if (own.gen.counter && other_job(own.gen, info.gen))
        return;
    if (n->round >= 0 && generation_equal(sim_round_of(n)->gen, info.gen))
        check_truth(r, sim_round_of(n), &W.nodes[n->follows]);
    if (info.finished)
        CHECK("I12",
              r->exit_code == info.result->exit_code && strcmp(r->text, info.result->text) == 0,
              "node %d was told %d (%s), the result is %d (%s)", sim_index(n), r->exit_code,
              r->text, info.result->exit_code, info.result->text);
}

/* Whether the head is to believe a rather than b, which stands before a in its list. */
static bool knows_more(const struct sim_host *a, const struct sim_host *b)
{
    const struct frame_exit *x = &a->exit, *y = &b->exit;
    bool a_has = a->reported || x->status == 0, b_has = b->reported || y->status == 0;
    if (!x->decided || !y->decided)
        return x->decided != y->decided ? x->decided : a_has > b_has;
    return x->epoch != y->epoch ? x->epoch > y->epoch : x->counter > y->counter;
}

/* A candidate that gives up has the epoch of the coordinator before, and no round. */
static bool tells_of_same(const struct frame_exit *a, const struct frame_exit *b)
{
    return a->decided && b->decided && a->epoch == b->epoch && a->counter == b->counter &&
           a->counter > 0;
}

/* The head's status, from what its hosts have told it. */
void sim_check_head(void)
{
    const struct sim_host *best = NULL;
    int status = head_rules_status(W.head.rules);
    if (head_rules_ends(W.head.rules)) {
        CHECK("I22", W.head.codes[status & 255], "the head ends the job with %d", status);
        return;
    }
    for (const struct sim_host *h = W.head.hosts; h < W.head.hosts + W.head.nhosts; h++) {
        if (!h->told)
            continue;
        sim_total.head_results += h->exit.decided;
        if (best && tells_of_same(&h->exit, &best->exit))
            CHECK("I22", best->exit.status == h->exit.status, "nodes %d and %d tell %d and %d",
                  best->node, h->node, best->exit.status, h->exit.status);
        if (!best || knows_more(h, best))
            best = h;
    }
    for (const struct sim_host *h = W.head.hosts; best && h < W.head.hosts + W.head.nhosts; h++) {
        if (h->told && !h->exit.decided && !knows_more(best, h) && h->exit.status == status)
            return; /* launchers' own results, which are alike: the first one told */
    }
    CHECK("I22", status == (best ? best->exit.status : 1),
          "the head ends with %d, and node %d has told %d", status, best ? best->node : -1,
          best ? best->exit.status : 1);
}

void sim_check_end(void)
{
    bool heads = W.head.rules && !W.head.over && !W.head.killed;
    CHECK("I7", !heads, "the head has not come to an end");
    check_rounds_apart();
    sim_requeue_check();
    for (int i = 0; i < W.n; i++) {
        struct sim_node *n = &W.nodes[i];
        struct rdzv_state_info info;
        CHECK("I7", !n->m || n->closed, "node %d has not come to an end", i);
        sim_total.success += n->m && n->finished && n->result.exit_code == 0;
        sim_total.failed += n->finished && (!n->m || n->result.exit_code != 0);
        if (!n->s)
            continue;
        CHECK("I7", n->s_finished, "the coordinator of node %d has not come to an end", i);
        rdzv_state_get_info(n->s, &info);
        sim_total.restarts += (uint64_t)info.restarts;
        sim_total.elected += i > 0 && !info.standing;
    }
}
