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

void sim_broken(const char *invariant, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    printf("seed %llu at %.6f: %s: %s\n", (unsigned long long)W.seed, (double)now / 1e9, invariant,
           text);
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

/* Where nobody is elected, a coordinator that is started again begins another job, and what is left
 * of the one before it ends by itself. */
static bool other_job(struct generation a, struct generation b)
{
    return !W.rules.elect && a.epoch != b.epoch;
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
        r->failed[r->nfailed] = (struct sim_failed){f->rank, failure_exit_status(f), now};
    r->nfailed++;
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
        CHECK("I6", W.epochs[i] != epoch, "epoch %llx once more", (unsigned long long)epoch);
    if (W.nepochs == W.cap_epochs) {
        W.cap_epochs = W.cap_epochs ? 2 * W.cap_epochs : 16;
        W.epochs = xrealloc(W.epochs, (size_t)W.cap_epochs * sizeof(*W.epochs));
    }
    W.epochs[W.nepochs++] = epoch;
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
    n->in_second++;
    CHECK("I11", n->in_second <= MESSAGES_PER_SECOND, "node %d sent %d messages in a second",
          sim_index(n), n->in_second);
    CHECK("I10", !b->oom && b->len <= RDZV_FRAME_MAX, "a message of %zu bytes", b->len);
}

/* -------------------------------------------------------------------------------------- the end */

/* The status, and the failure that is named first, are those of something that has happened. */
static void check_truth(const struct rdzv_result *res, const struct sim_round *r)
{
    const struct failure *first = res->n ? &res->failures[0] : NULL;
    bool found = !first || first->kind == FAILURE_NODE || r->nfailed > (int)ARRAY_LEN(r->failed);
    if (res->exit_code == 0)
        CHECK("I20", r->ok == r->world, "the job succeeds, and %d of %d workers have", r->ok,
              r->world);
    if (res->reason != STOP_FAILURE || res->exit_code == 0)
        return;
    for (int i = 0; i < r->nfailed && i < (int)ARRAY_LEN(r->failed) && !found; i++)
        found = r->failed[i].rank == first->rank && r->failed[i].status == res->exit_code;
    CHECK("I20", found, "the job ends with %d for rank %d, which has not failed so", res->exit_code,
          first ? first->rank : -1);
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
        check_truth(r, sim_round_of(n));
    if (info.finished)
        CHECK("I12",
              r->exit_code == info.result->exit_code && strcmp(r->text, info.result->text) == 0,
              "node %d was told %d (%s), the result is %d (%s)", sim_index(n), r->exit_code,
              r->text, info.result->exit_code, info.result->text);
}

void sim_check_end(void)
{
    check_rounds_apart();
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
