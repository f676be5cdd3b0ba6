/* member_script.h: a member's rules under a script: the test is the coordinator and the agent, and
 * has a clock of its own. All of it is the test program's own, with short names. */
#ifndef TESTS_LIB_MEMBER_SCRIPT_H
#define TESTS_LIB_MEMBER_SCRIPT_H

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/member_state.h"
#include "tests/lib/test.h"

#define S  1000000000ull
#define MS 1000000ull

static struct member_state *M;
static uint64_t T;
static struct generation G; /* of the round that the coordinator is in */

/* What came out, in order: one letter each. l log, h hello, v list of a round, s status,
 * d disconnect, p prepare, r run, w respawn, x stop, k fence, e end of the lease, f finish. */
static char out[1024];
static struct rdzv_hello said;
static struct rdzv_peers told; /* a shallow copy */
static struct rdzv_status status;
static struct member_action last;
static struct rdzv_stop why;
static struct rdzv_result result;
static char line[1024];
static bool closed_in_order; /* by the newest MEMBER_ACT_DISCONNECT */
static int respawned_rank;

static inline void drain(void)
{
    static const char letters[] = "lhvsdprwxkef";
    struct member_action a;
    out[0] = '\0';
    while (member_state_next(M, &a, T)) {
        size_t n = strlen(out);
        out[n] = letters[a.act];
        out[n + 1] = '\0';
        last = a;
        if (a.act == MEMBER_ACT_HELLO)
            said = *a.hello;
        else if (a.act == MEMBER_ACT_PEERS)
            told = *a.peers;
        else if (a.act == MEMBER_ACT_STATUS)
            status = *a.status;
        else if (a.act == MEMBER_ACT_STOP)
            why = *a.why;
        else if (a.act == MEMBER_ACT_FINISH)
            result = *a.result;
        else if (a.act == MEMBER_ACT_LOG)
            strcpy(line, a.text);
        else if (a.act == MEMBER_ACT_DISCONNECT)
            closed_in_order = !a.reset;
        else if (a.act == MEMBER_ACT_RESPAWN)
            respawned_rank = a.respawn.local_rank;
    }
}

#define OUT(expected)                      \
    do {                                   \
        drain();                           \
        ck_assert_str_eq(out, (expected)); \
    } while (0)

static inline void make(enum restart_policy policy, bool lease)
{
    struct member_rules rules = {.coordinator = "head:29500",
                                 .join_ns = 600 * S,
                                 .read_ns = 60 * S,
                                 .heartbeat_ns = 5 * S,
                                 .dead_ns = 15 * S};
    rules.lease = lease;
    rules.hello.nproc = 2;
    rules.hello.id = (struct node_id){{2}};
    rules.hello.restart_policy = policy;
    T = 1000 * S;
    G = (struct generation){7, 0};
    log_init(LOG_LEVEL_VERBOSE, NULL);
    M = member_state_new(&rules, T);
}

static inline void setup(void)
{
    make(RESTART_GROUP, false);
}

static inline void teardown(void)
{
    member_state_free(M);
}

static inline struct rdzv_view view_of(enum rdzv_phase phase, int group_rank)
{
    struct rdzv_view v = {.phase = phase,
                          .gen = G,
                          .group_rank = group_rank,
                          .nnodes = group_rank < 0 ? 0 : 2,
                          .sent_ns = T,
                          .echo_ns = status.send_ns,
                          .heartbeat_ms = 5000,
                          .dead_ms = 15000};
    static const struct rdzv_stop failed = {
        .reason = STOP_FAILURE, .restarting = true, .text = "worker 3 failed"};
    if (phase == RDZV_STOP) {
        v.why = &failed;
        v.why_counter = G.counter;
    }
    return v;
}

static inline void view(enum rdzv_phase phase, int group_rank)
{
    struct rdzv_view v = view_of(phase, group_rank);
    member_state_view(M, &v, T);
}

static inline void table(void)
{
    struct rank_table t;
    rank_table_init(&t);
    ck_assert_int_eq(rank_table_alloc(&t, 2), 0);
    t.nodes[0].nproc = t.nodes[1].nproc = 2;
    t.gen = G;
    ck_assert_int_eq(rank_table_compute(&t, NULL), 0);
    member_state_table(M, &t);
    ck_assert_ptr_null(t.nodes); /* taken, or freed */
}

static inline void connected(void)
{
    member_state_connected(M, T);
    OUT("hs");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
}

static inline void prepared(void)
{
    G.counter++;
    view(RDZV_PREPARE, 1);
    OUT("ps");
    ck_assert(generation_equal(last.gen, G) || last.act == MEMBER_ACT_STATUS);
    member_state_prepared(M, (const uint16_t[]){1000, 1001}, 2, 5000);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_PREPARED);
    ck_assert(generation_equal(status.gen, G));
    ck_assert_int_eq(status.nports, 2);
    ck_assert_int_eq(status.ports[2] | status.ports[3] << 8, 1001);
    ck_assert_int_eq(status.free_port, 5000);
}

static inline void running(void)
{
    connected();
    prepared();
    table();
    view(RDZV_RUN, 1);
    OUT("rs");
    ck_assert_int_eq(status.phase, MEMBER_RUNNING);
    ck_assert(status.workers);
}

static inline struct failure failure_of(int local_rank, enum failure_kind kind)
{
    struct failure f;
    failure_init(&f);
    f.kind = kind;
    f.local_rank = local_rank;
    f.exit_code = 3;
    f.seen_ns = T;
    return f;
}

static inline void refused(bool retry, const char *text)
{
    struct rdzv_refusal r = {.retry = retry};
    strcpy(r.text, text);
    member_state_refused(M, &r, T);
}

static inline void report(int exit_code, const char *text)
{
    struct rdzv_result r = {.exit_code = exit_code, .reason = STOP_FAILURE};
    strcpy(r.text, text);
    member_state_report(M, &r);
}

/* Ticks as a driver does. */
static inline void pass(uint64_t ns)
{
    uint64_t end = T + ns;
    while (member_state_deadline(M) <= end) {
        T = member_state_deadline(M) > T ? member_state_deadline(M) : T + 1;
        member_state_tick(M, T);
        drain();
        if (strchr(out, 'd') || strchr(out, 'x') || strchr(out, 'f'))
            return;
    }
    T = end;
}

static inline void make_on_lease(void)
{
    member_state_free(M);
    make(RESTART_GROUP, true);
}

/* A round that runs, on a lease. */
static inline void running_on_lease(void)
{
    make_on_lease();
    connected();
    G.counter++;
    struct rdzv_view v = view_of(RDZV_PREPARE, 1);
    v.lease = true;
    v.echo_ns = T;
    member_state_view(M, &v, T);
    drain();
    member_state_prepared(M, NULL, 0, 0);
    drain();
    table();
    v.phase = RDZV_RUN;
    member_state_view(M, &v, T);
    OUT("rs");
}

#endif
