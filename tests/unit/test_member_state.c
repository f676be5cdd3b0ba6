/* A member's rules, one by one, with a scripted coordinator and a clock of our own. */
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/member_state.h"

#define S  1000000000ull
#define MS 1000000ull

static struct member_state *M;
static uint64_t T;
static struct generation G; /* of the round that the coordinator is in */

/* What came out, in order: one letter each. h hello, s status, d disconnect, p prepare, r run,
 * w respawn, x stop, f finish, l log. */
static char out[1024];
static struct rdzv_hello said;
static struct rdzv_status status;
static struct member_action last;
static struct rdzv_stop why;
static struct rdzv_result result;
static char line[1024];
static int respawned_rank;

static void drain(void)
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
        else if (a.act == MEMBER_ACT_STATUS)
            status = *a.status;
        else if (a.act == MEMBER_ACT_STOP)
            why = *a.why;
        else if (a.act == MEMBER_ACT_FINISH)
            result = *a.result;
        else if (a.act == MEMBER_ACT_LOG)
            strcpy(line, a.text);
        else if (a.act == MEMBER_ACT_RESPAWN)
            respawned_rank = a.respawn.local_rank;
    }
}

#define OUT(expected)                      \
    do {                                   \
        drain();                           \
        ck_assert_str_eq(out, (expected)); \
    } while (0)

static void make(enum restart_policy policy)
{
    struct member_rules rules = {.coordinator = "head:29500",
                                 .join_ns = 600 * S,
                                 .read_ns = 60 * S,
                                 .heartbeat_ns = 5 * S,
                                 .dead_ns = 15 * S};
    rules.hello.nproc = 2;
    rules.hello.restart_policy = policy;
    T = 1000 * S;
    G = (struct generation){7, 0};
    log_init(LOG_LEVEL_VERBOSE, NULL);
    M = member_state_new(&rules, T);
}

static void setup(void)
{
    make(RESTART_GROUP);
}

static void teardown(void)
{
    member_state_free(M);
}

static struct rdzv_view view_of(enum rdzv_phase phase, int group_rank)
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

static void view(enum rdzv_phase phase, int group_rank)
{
    struct rdzv_view v = view_of(phase, group_rank);
    member_state_view(M, &v, T);
}

static void table(void)
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

static void connected(void)
{
    member_state_connected(M, false, T);
    OUT("hs");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
}

static void prepared(void)
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

static void running(void)
{
    connected();
    prepared();
    table();
    view(RDZV_RUN, 1);
    OUT("rs");
    ck_assert_int_eq(status.phase, MEMBER_RUNNING);
    ck_assert(status.workers);
}

static struct failure failure_of(int local_rank, enum failure_kind kind)
{
    struct failure f;
    failure_init(&f);
    f.kind = kind;
    f.local_rank = local_rank;
    f.exit_code = 3;
    f.seen_ns = T;
    return f;
}

static void refused(bool retry, const char *text)
{
    struct rdzv_refusal r = {.retry = retry};
    strcpy(r.text, text);
    member_state_refused(M, &r, T);
}

static void report(int exit_code, const char *text)
{
    struct rdzv_result r = {.exit_code = exit_code, .reason = STOP_FAILURE};
    strcpy(r.text, text);
    member_state_report(M, &r);
}

/* ------------------------------------------------------------------------------------- a life */

START_TEST(a_job_that_goes_well)
{
    ck_assert(member_state_wants_link(M));
    running();
    member_state_done(M);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_DONE);
    ck_assert(!status.workers);
    report(0, "");
    view(RDZV_FINISH, 1);
    OUT("df");
    ck_assert(!last.reset);
    ck_assert_int_eq(result.exit_code, 0);
    ck_assert(!member_state_wants_link(M));
    ck_assert_uint_eq(member_state_deadline(M), UINT64_MAX);
}
END_TEST

START_TEST(a_stop_and_a_restart)
{
    running();
    view(RDZV_STOP, 1);
    OUT("xs");
    ck_assert_str_eq(why.text, "worker 3 failed");
    ck_assert_int_eq(status.phase, MEMBER_STOPPING);
    view(RDZV_STOP, 1); /* said again: nothing new */
    OUT("");
    struct failure all[2] = {failure_of(0, FAILURE_STOPPED), failure_of(1, FAILURE_STOPPED)};
    member_state_stopped(M, all, 2);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
    ck_assert(generation_equal(status.gen, G));
    ck_assert_int_eq(status.nfailures, 2);
    ck_assert_uint_eq(status.failures_total, 2);
    struct rdzv_view v = view_of(RDZV_COLLECT, -1);
    v.acked = 2;
    member_state_view(M, &v, T);
    prepared();
    ck_assert_int_eq(status.nfailures, 0);
}
END_TEST

START_TEST(a_failure_of_its_own)
{
    running();
    struct failure f = failure_of(1, FAILURE_EXIT);
    member_state_failed(M, &f);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_STOPPING);
    ck_assert_int_eq(status.nfailures, 1);
    struct failure got;
    struct rd r = rd_init(status.failures, status.failures_len);
    ck_assert(failure_decode(&r, &got));
    ck_assert_int_eq(got.local_rank, 1);
    view(RDZV_STOP, 1); /* what follows from it */
    OUT("x");
    member_state_stopped(M, &f, 1);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
}
END_TEST

START_TEST(stopped_before_the_coordinator_could_say_so)
{
    running();
    struct failure f = failure_of(1, FAILURE_EXIT);
    member_state_failed(M, &f);
    member_state_stopped(M, &f, 1);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
    ck_assert_int_eq(status.nfailures, 2); /* the quick one and the full one */
    view(RDZV_STOP, 1);
    OUT("x"); /* nothing to stop, but why and what follows */
    view(RDZV_STOP, 1);
    OUT("");
    prepared();
}
END_TEST

START_TEST(the_next_round_before_the_news_of_the_stop)
{
    running();
    struct failure f = failure_of(1, FAILURE_EXIT);
    member_state_failed(M, &f);
    member_state_stopped(M, &f, 1);
    OUT("s");
    struct rdzv_view stop = view_of(RDZV_STOP, 1);
    G.counter++;
    struct rdzv_view v = view_of(RDZV_PREPARE, 1);
    v.why = stop.why;
    v.why_counter = stop.why_counter;
    member_state_view(M, &v, T);
    OUT("xps");
    member_state_prepared(M, NULL, 0, 0);
    OUT("s");
    member_state_view(M, &v, T); /* the stop is of the round before */
    OUT("");
}
END_TEST

START_TEST(a_done_node_is_stopped_too)
{
    running();
    member_state_done(M);
    OUT("s");
    view(RDZV_STOP, 1);
    OUT("xs");
    member_state_stopped(M, NULL, 0);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
}
END_TEST

START_TEST(stopped_while_preparing)
{
    connected();
    prepared();
    view(RDZV_STOP, 1); /* nothing was ever started */
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
    prepared();
    view(RDZV_COLLECT, -1);
    OUT("s");
    prepared();
}
END_TEST

START_TEST(several_views_in_one_batch)
{
    connected();
    G.counter = 1;
    view(RDZV_PREPARE, 1);
    G.counter = 2;
    view(RDZV_PREPARE, 0); /* another round before the agent heard of the first */
    OUT("ps");
    ck_assert_uint_eq(status.gen.counter, 2);
    member_state_prepared(M, NULL, 0, 0);
    OUT("s");
    table();
    view(RDZV_RUN, 0);
    view(RDZV_STOP, 0); /* over before it began */
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
}
END_TEST

/* What comes late, or a second time, is older than what is known. */
START_TEST(an_older_view)
{
    running();
    struct rdzv_view v = view_of(RDZV_PREPARE, 1);
    v.sent_ns = T - 1;
    member_state_view(M, &v, T);
    OUT("");
    v = view_of(RDZV_STOP, 1);
    v.gen.counter--;
    member_state_view(M, &v, T);
    OUT("");
}
END_TEST

START_TEST(an_answer_to_an_older_question)
{
    connected();
    G.counter = 1;
    view(RDZV_PREPARE, 1);
    OUT("ps");
    G.counter = 2;
    view(RDZV_PREPARE, 1);
    member_state_prepared(M, NULL, 0, 0); /* for round 1: on_prepare for 2 is not out yet */
    OUT("ps");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
    member_state_prepared(M, NULL, 0, 0);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_PREPARED);
}
END_TEST

START_TEST(calls_out_of_place_do_nothing)
{
    struct failure f = failure_of(0, FAILURE_EXIT);
    connected();
    member_state_prepared(M, NULL, 0, 0);
    member_state_failed(M, &f);
    member_state_done(M);
    member_state_stopped(M, &f, 1);
    OUT("");
    prepared();
    member_state_done(M);
    member_state_failed(M, &f);
    member_state_stopped(M, &f, 1);
    OUT("");
}
END_TEST

START_TEST(the_table_must_be_there_and_fit)
{
    connected();
    prepared();
    view(RDZV_RUN, 1);
    OUT(""); /* it comes first: this is not our coordinator's order */
    struct rank_table t;
    rank_table_init(&t);
    ck_assert_int_eq(rank_table_alloc(&t, 2), 0);
    t.nodes[0].nproc = 2;
    t.nodes[1].nproc = 3; /* we have two */
    t.gen = G;
    member_state_table(M, &t);
    view(RDZV_RUN, 1);
    OUT("df");
    ck_assert_int_eq(result.reason, STOP_INTERNAL);
}
END_TEST

START_TEST(an_answer_of_long_ago_starts_nothing)
{
    connected();
    prepared();
    table();
    struct rdzv_view v = view_of(RDZV_RUN, 1);
    T += 12 * S; /* this process was stopped meanwhile */
    member_state_view(M, &v, T);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_PREPARED);
    view(RDZV_RUN, 1);
    OUT("rs");
}
END_TEST

START_TEST(generations_never_go_back)
{
    running();
    struct generation newer = G;
    G.counter--;
    view(RDZV_STOP, 1);
    OUT("");
    G = newer;
    view(RDZV_STOP, 1);
    OUT("xs");
}
END_TEST

START_TEST(respawns_are_handed_out_once)
{
    member_state_free(M);
    make(RESTART_WORKER);
    running();
    struct failure f = failure_of(1, FAILURE_EXIT);
    member_state_failed(M, &f);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_RUNNING);
    const struct rdzv_respawn orders[] = {{1, 1, 1}, {2, 0, 2}, {3, 9, 3}};
    struct rdzv_view v = view_of(RDZV_RUN, 1);
    v.respawns = orders;
    v.nrespawns = 1;
    member_state_view(M, &v, T);
    OUT("ws");
    ck_assert_int_eq(respawned_rank, 1);
    ck_assert_uint_eq(status.respawned, 1);
    v.nrespawns = 3; /* the first again, a new one, and one for a worker we do not have */
    member_state_view(M, &v, T);
    OUT("ws");
    ck_assert_int_eq(respawned_rank, 0);
    ck_assert_uint_eq(status.respawned, 2);
}
END_TEST

START_TEST(more_failures_than_fit_one_status)
{
    running();
    view(RDZV_STOP, 1);
    OUT("xs");
    enum { N = 500 };
    struct failure *all = xcalloc(N, sizeof(*all));
    for (int i = 0; i < N; i++)
        all[i] = failure_of(i, i == 400 ? FAILURE_EXIT : FAILURE_STOPPED);
    member_state_stopped(M, all, N);
    OUT("s");
    ck_assert_int_eq(status.nfailures, RDZV_STATUS_FAILURES);
    ck_assert_uint_eq(status.failures_total, N);
    struct failure first;
    struct rd r = rd_init(status.failures, status.failures_len);
    ck_assert(failure_decode(&r, &first));
    ck_assert_int_eq(first.local_rank, 400); /* what tells most is not what is left out */
    free(all);
}
END_TEST

START_TEST(many_quick_failures_come_in_several_statuses)
{
    member_state_free(M);
    make(RESTART_WORKER);
    running();
    for (int i = 0; i < 100; i++) {
        struct failure f = failure_of(i % 2, FAILURE_EXIT);
        member_state_failed(M, &f);
    }
    OUT("ss");
    ck_assert_uint_eq(status.first_seq, RDZV_STATUS_FAILURES + 1);
    ck_assert_int_eq(status.nfailures, 100 - RDZV_STATUS_FAILURES);
}
END_TEST

/* ------------------------------------------------------------------------------ the connection */

START_TEST(a_connection_that_breaks_changes_nothing)
{
    running();
    struct failure f = failure_of(0, FAILURE_EXIT);
    member_state_failed(M, &f);
    OUT("s");
    member_state_disconnected(M, RDZV_END_BROKEN, "reset", T);
    ck_assert(member_state_wants_link(M));
    OUT("");
    T += S;
    member_state_connected(M, false, T);
    OUT("hs");
    ck_assert_int_eq(status.phase, MEMBER_STOPPING);
    ck_assert_int_eq(status.nfailures, 1); /* said again: it was not acknowledged */
    ck_assert_uint_eq(status.first_seq, 1);
}
END_TEST

START_TEST(closed_then_refused_is_the_end_of_the_coordinator)
{
    running();
    member_state_disconnected(M, RDZV_END_CLOSED, "closed", T);
    member_state_unreachable(M, true, "connection refused", T);
    OUT("x");
    ck_assert_int_eq(why.reason, STOP_COORDINATOR_LOST);
    ck_assert(!why.restarting);
    member_state_stopped(M, NULL, 0);
    OUT("f");
    ck_assert_int_eq(result.exit_code, 1);
    ck_assert_int_eq(result.reason, STOP_COORDINATOR_LOST);
    ck_assert_ptr_nonnull(strstr(result.text, "the coordinator at head:29500 was lost"));
}
END_TEST

START_TEST(reset_then_refused_for_a_while_is_the_end_too)
{
    running();
    member_state_disconnected(M, RDZV_END_RESET, "connection reset", T);
    member_state_unreachable(M, true, "connection refused", T);
    OUT("");
    T += 200 * MS;
    member_state_unreachable(M, false, "timed out", T); /* no longer without a break */
    T += 100 * MS;
    member_state_unreachable(M, true, "connection refused", T);
    OUT("");
    T += 249 * MS;
    member_state_unreachable(M, true, "connection refused", T);
    OUT("");
    T += MS;
    member_state_unreachable(M, true, "connection refused", T);
    OUT("x");
    ck_assert_int_eq(why.reason, STOP_COORDINATOR_LOST);
}
END_TEST

START_TEST(reset_then_refused_on_this_host_is_proof)
{
    running();
    member_state_disconnected(M, RDZV_END_BROKEN, "broken", T);
    member_state_connected(M, true, T);
    drain();
    view(RDZV_RUN, 1);
    member_state_disconnected(M, RDZV_END_RESET, "connection reset", T);
    OUT("");
    member_state_unreachable(M, true, "connection refused", T);
    OUT("x");
    ck_assert_int_eq(why.reason, STOP_COORDINATOR_LOST);
}
END_TEST

START_TEST(closed_then_let_in_by_a_listener_that_dies)
{
    running();
    member_state_disconnected(M, RDZV_END_CLOSED, "closed", T);
    member_state_connected(M, false, T); /* the kernel took it, nobody was there any more */
    drain();
    member_state_disconnected(M, RDZV_END_RESET, "connection reset", T);
    member_state_unreachable(M, true, "connection refused", T);
    OUT("x");
    ck_assert_int_eq(why.reason, STOP_COORDINATOR_LOST);
}
END_TEST

START_TEST(a_break_then_refused_may_be_the_network)
{
    running();
    member_state_disconnected(M, RDZV_END_BROKEN, "reset", T);
    member_state_unreachable(M, true, "connection refused", T);
    OUT("");
    T += 14 * S;
    member_state_unreachable(M, true, "connection refused", T);
    OUT("");
    T += S;
    member_state_unreachable(M, true, "connection refused", T);
    OUT("x");
    ck_assert_int_eq(why.reason, STOP_COORDINATOR_LOST);
}
END_TEST

/* Ticks as a driver does. */
static void pass(uint64_t ns)
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

START_TEST(heartbeats_go_out)
{
    running();
    uint64_t before = status.send_ns;
    for (int i = 0; i < 10; i++) {
        pass(5 * S);
        ck_assert_str_eq(out, "s");
        ck_assert_uint_ge(status.send_ns - before + MS, 5 * S);
        before = status.send_ns;
        view(RDZV_RUN, 1);
    }
}
END_TEST

/* Nothing answers the news that an order is carried out: the lease must not wait for what follows.
 */
START_TEST(news_are_no_heartbeat)
{
    connected();
    prepared();
    table();
    T += 4 * S;
    view(RDZV_RUN, 1);
    OUT("rs");
    T += S - MS;
    member_state_tick(M, T);
    OUT("");
    T += MS;
    member_state_tick(M, T);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_RUNNING);
}
END_TEST

START_TEST(a_silent_coordinator_is_called_again_and_then_lost)
{
    running();
    uint64_t since = T;
    pass(60 * S);
    ck_assert_uint_le(T - since, 12 * S);
    ck_assert_ptr_nonnull(strchr(out, 'd'));
    ck_assert(last.reset || strcmp(out, "d") != 0);
    pass(60 * S); /* nobody answers */
    ck_assert_str_eq(out, "x");
    ck_assert_uint_eq(T - since, 15 * S);
}
END_TEST

/* A round that runs, on a lease. */
static void running_on_lease(void)
{
    struct member_rules rules = {.coordinator = "head:29500",
                                 .join_ns = 600 * S,
                                 .read_ns = 60 * S,
                                 .heartbeat_ns = 5 * S,
                                 .dead_ns = 15 * S,
                                 .lease = true,
                                 .hello = {.nproc = 2}};
    member_state_free(M);
    M = member_state_new(&rules, T);
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

START_TEST(silence_while_we_slept_is_forgiven)
{
    running();
    T += 100 * S;
    member_state_tick(M, T);
    OUT("s");
    view(RDZV_RUN, 1);
    OUT("");
}
END_TEST

static void tick_ms(uint64_t ms)
{
    T += ms * (S / 1000);
    member_state_tick(M, T);
    drain();
}

START_TEST(own_lateness_is_not_held_against_the_coordinator)
{
    running();
    tick_ms(5000);
    tick_ms(5900); /* due at 10.0 */
    tick_ms(4900);
    ck_assert_ptr_null(strchr(out, 'x'));
    tick_ms(200);
    ck_assert_ptr_nonnull(strchr(out, 'x'));
    ck_assert_ptr_nonnull(strstr(why.text, "nothing heard of it for 16.0 s"));
}
END_TEST

START_TEST(one_that_is_always_late_finds_a_silent_coordinator)
{
    running();
    int late = 0;
    do {
        tick_ms(9000); /* due after 5 s */
        late++;
    } while (late < 5 && !strchr(out, 'x'));
    ck_assert_int_lt(late, 5);
}
END_TEST

/* The others do not wait for one that is late. */
START_TEST(a_lease_is_over_however_late_one_is)
{
    running_on_lease();
    T += 30 * S;
    member_state_tick(M, T);
    drain();
    ck_assert_ptr_nonnull(strchr(out, 'k'));
}
END_TEST

/* Those of the others who would elect another one are gone: the coordinator gives out no lease. */
START_TEST(a_round_that_gets_no_lease_is_left)
{
    running_on_lease();
    view(RDZV_STOP, 1);
    member_state_stopped(M, NULL, 0);
    drain();
    T += 20 * S;
    struct rdzv_view v;
    G.counter++;
    view(RDZV_PREPARE, 1);
    drain();
    member_state_prepared(M, NULL, 0, 0);
    drain();
    table();
    for (int k = 0; k < 4; k++) {
        v = view_of(RDZV_RUN, 1);
        member_state_view(M, &v, T);
        drain();
        ck_assert_int_eq(status.phase, MEMBER_PREPARED);
        ck_assert(!status.fenced);
        T += 5 * S;
    }
    v = view_of(RDZV_RUN, 1);
    member_state_view(M, &v, T);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
    ck_assert(status.fenced && !status.workers);
}
END_TEST

START_TEST(another_coordinator_in_its_place)
{
    running();
    member_state_disconnected(M, RDZV_END_CLOSED, "closed", T);
    member_state_connected(M, false, T);
    drain();
    G.epoch++;
    view(RDZV_COLLECT, -1);
    OUT("dx");
    ck_assert_int_eq(why.reason, STOP_COORDINATOR_LOST);
}
END_TEST

START_TEST(a_coordinator_that_goes_before_anything_began)
{
    connected();
    view(RDZV_COLLECT, -1);
    ck_assert(member_state_joined(M));
    member_state_disconnected(M, RDZV_END_CLOSED, "closed", T);
    member_state_unreachable(M, true, "connection refused", T);
    OUT("");
    ck_assert(!member_state_joined(M) && member_state_wants_link(M));
    connected(); /* to another one, which hears whom it has followed */
    ck_assert_uint_eq(said.seen_epoch, 7);
    G = (struct generation){99, 0};
    view(RDZV_COLLECT, -1);
    prepared();
}
END_TEST

START_TEST(waiting_for_the_coordinator_is_said_and_ends)
{
    member_state_unreachable(M, true, "connection refused", T);
    pass(2 * S);
    ck_assert_str_eq(out, "l");
    ck_assert_str_eq(line, "waiting for the coordinator at head:29500 (connection refused), 2 s");
    pass(600 * S);
    ck_assert_str_eq(out, "f");
    ck_assert_int_eq(result.exit_code, 1);
    ck_assert_int_eq(result.reason, STOP_RENDEZVOUS);
    ck_assert_str_eq(result.text, "no coordinator at head:29500 within 600 s: connection refused");
}
END_TEST

START_TEST(a_coordinator_that_accepts_and_says_nothing)
{
    connected();
    uint64_t since = T;
    pass(100 * S);
    ck_assert_ptr_nonnull(strchr(out, 'd'));
    ck_assert_uint_eq(T - since, 60 * S);
}
END_TEST

START_TEST(refused_for_good)
{
    connected();
    refused(false, "this is job 'a', not 'b'");
    OUT("df");
    ck_assert_int_eq(result.exit_code, 2);
    ck_assert_int_eq(result.reason, STOP_RENDEZVOUS);
    ck_assert_str_eq(result.text, "the coordinator at head:29500 turned this node away: this is "
                                  "job 'a', not 'b'");
}
END_TEST

START_TEST(refused_for_now)
{
    connected();
    refused(true, "the job here is over");
    OUT("dl");
    ck_assert_ptr_nonnull(strstr(line, "(trying again)"));
    connected();
    refused(true, "the job here is over"); /* said once */
    OUT("d");
    ck_assert(member_state_wants_link(M));
}
END_TEST

START_TEST(refused_with_workers_alive)
{
    running();
    member_state_disconnected(M, RDZV_END_BROKEN, "reset", T);
    member_state_connected(M, false, T);
    drain();
    refused(true, "the job here is over");
    OUT("dx");
    member_state_stopped(M, NULL, 0);
    OUT("f");
}
END_TEST

START_TEST(given_up_and_back)
{
    running();
    member_state_disconnected(M, RDZV_END_BROKEN, "reset", T);
    member_state_connected(M, false, T);
    drain();
    G.counter++;
    view(RDZV_RUN, -1); /* the job runs without it */
    OUT("xs");
    member_state_stopped(M, NULL, 0);
    OUT("s");
    view(RDZV_PREPARE, -1);
    OUT("");
    prepared();
}
END_TEST

START_TEST(a_spare_is_told_so)
{
    connected();
    struct rdzv_view v = view_of(RDZV_COLLECT, -1);
    v.spare = true;
    member_state_view(M, &v, T);
    OUT("l");
    ck_assert_ptr_nonnull(strstr(line, "waits for a place"));
    member_state_view(M, &v, T);
    OUT("");
}
END_TEST

/* ------------------------------------------------------------------------------------- the end */

START_TEST(finish_waits_for_the_workers)
{
    running();
    report(1, "over");
    view(RDZV_FINISH, -1);
    OUT("dx");
    ck_assert_str_eq(why.text, "over");
    member_state_stopped(M, NULL, 0);
    OUT("f");
    ck_assert_int_eq(result.exit_code, 1);
}
END_TEST

START_TEST(finish_without_a_report)
{
    connected();
    view(RDZV_FINISH, -1);
    OUT("df");
    ck_assert_int_eq(result.reason, STOP_INTERNAL);
}
END_TEST

START_TEST(own_failures_are_reported_when_the_coordinator_is_lost)
{
    running();
    struct failure f = failure_of(1, FAILURE_EXIT);
    member_state_failed(M, &f);
    drain();
    member_state_disconnected(M, RDZV_END_CLOSED, "closed", T);
    member_state_unreachable(M, true, "connection refused", T);
    OUT("x");
    member_state_stopped(M, NULL, 0);
    OUT("f");
    ck_assert_uint_eq(result.n, 1);
    ck_assert_int_eq(result.failures[0].local_rank, 1);
}
END_TEST

START_TEST(leave_while_running)
{
    running();
    member_state_leave(M, STOP_SIGNAL, 143, "received SIGTERM");
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_LEAVING);
    ck_assert(status.workers);
    ck_assert_int_eq(status.leave_code, 143);
    view(RDZV_STOP, 1);
    OUT(""); /* it is stopping already */
    member_state_stopped(M, NULL, 0);
    OUT("s");
    ck_assert(!status.workers);
    view(RDZV_PREPARE, 1); /* not with us */
    OUT("");
    view(RDZV_RELEASE, -1);
    OUT("df");
    ck_assert_int_eq(result.exit_code, 143);
    ck_assert_int_eq(result.reason, STOP_SIGNAL);
    ck_assert_str_eq(result.text, "received SIGTERM");
}
END_TEST

START_TEST(leave_that_ends_the_job)
{
    running();
    member_state_leave(M, STOP_TIMEOUT, 124, "too long");
    member_state_stopped(M, NULL, 0);
    OUT("s");
    report(124, "too long");
    view(RDZV_FINISH, 1);
    OUT("df");
    ck_assert_int_eq(result.exit_code, 124);
}
END_TEST

START_TEST(leave_before_anything)
{
    member_state_leave(M, STOP_SIGNAL, 130, "received SIGINT");
    OUT("f");
    ck_assert_int_eq(result.exit_code, 130);
}
END_TEST

START_TEST(leave_while_preparing)
{
    connected();
    G.counter++;
    view(RDZV_PREPARE, 1);
    member_state_leave(M, STOP_SIGNAL, 130, "received SIGINT");
    OUT("s"); /* no on_prepare any more */
    ck_assert_int_eq(status.phase, MEMBER_LEAVING);
    ck_assert(!status.workers);
    member_state_disconnected(M, RDZV_END_CLOSED, "closed", T); /* it need not wait for anybody */
    OUT("f");
}
END_TEST

START_TEST(leave_and_then_the_coordinator_goes)
{
    running();
    member_state_leave(M, STOP_SIGNAL, 143, "received SIGTERM");
    drain();
    member_state_disconnected(M, RDZV_END_BROKEN, "reset", T);
    OUT("");
    member_state_unreachable(M, true, "refused", T + 20 * S);
    OUT(""); /* its workers are still alive */
    member_state_stopped(M, NULL, 0);
    OUT("f");
    ck_assert_int_eq(result.exit_code, 143);
    ck_assert_int_eq(result.reason, STOP_SIGNAL);
}
END_TEST

START_TEST(phases_for_people)
{
    struct rdzv_info i = {0};
    member_state_get_info(M, &i);
    ck_assert_str_eq(i.phase, "joining");
    connected();
    view(RDZV_COLLECT, -1);
    member_state_get_info(M, &i);
    ck_assert_str_eq(i.phase, "waiting");
    prepared();
    member_state_get_info(M, &i);
    ck_assert_str_eq(i.phase, "preparing");
    table();
    view(RDZV_RUN, 1);
    drain();
    member_state_get_info(M, &i);
    ck_assert_str_eq(i.phase, "running");
    ck_assert_int_eq(i.world_size, 4);
    ck_assert_int_eq(i.group_rank, 1);
    view(RDZV_STOP, 1);
    member_state_get_info(M, &i);
    ck_assert_str_eq(i.phase, "stopping");
}
END_TEST

START_TEST(one_that_is_turned_away_ends_its_workers_with_its_lease)
{
    running_on_lease();
    refused(false, "it is not the coordinator");
    OUT("dx");
    ck_assert_uint_eq(member_state_deadline(M), T + 12 * S); /* the others may have another one */
    T += 12 * S;
    member_state_tick(M, T);
    OUT("k");
    member_state_stopped(M, NULL, 0);
    OUT("f");
    ck_assert_uint_eq(member_state_deadline(M), UINT64_MAX);
}
END_TEST

START_TEST(a_job_that_is_over_needs_no_lease)
{
    running_on_lease();
    report(1, "worker 3 failed");
    view(RDZV_FINISH, 1);
    drain();
    ck_assert_ptr_nonnull(strchr(out, 'e'));
    ck_assert_uint_eq(member_state_deadline(M), UINT64_MAX);
    member_state_stopped(M, NULL, 0);
    OUT("f");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("member_state");
    TCase *tc = test_case(s, "life", 10);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_job_that_goes_well);
    tcase_add_test(tc, a_stop_and_a_restart);
    tcase_add_test(tc, a_failure_of_its_own);
    tcase_add_test(tc, stopped_before_the_coordinator_could_say_so);
    tcase_add_test(tc, the_next_round_before_the_news_of_the_stop);
    tcase_add_test(tc, a_done_node_is_stopped_too);
    tcase_add_test(tc, stopped_while_preparing);
    tcase_add_test(tc, several_views_in_one_batch);
    tcase_add_test(tc, an_older_view);
    tcase_add_test(tc, an_answer_to_an_older_question);
    tcase_add_test(tc, calls_out_of_place_do_nothing);
    tcase_add_test(tc, the_table_must_be_there_and_fit);
    tcase_add_test(tc, an_answer_of_long_ago_starts_nothing);
    tcase_add_test(tc, generations_never_go_back);
    tcase_add_test(tc, respawns_are_handed_out_once);
    tcase_add_test(tc, more_failures_than_fit_one_status);
    tcase_add_test(tc, many_quick_failures_come_in_several_statuses);
    tc = test_case(s, "connection", 10);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_connection_that_breaks_changes_nothing);
    tcase_add_test(tc, closed_then_refused_is_the_end_of_the_coordinator);
    tcase_add_test(tc, reset_then_refused_for_a_while_is_the_end_too);
    tcase_add_test(tc, reset_then_refused_on_this_host_is_proof);
    tcase_add_test(tc, closed_then_let_in_by_a_listener_that_dies);
    tcase_add_test(tc, a_break_then_refused_may_be_the_network);
    tcase_add_test(tc, heartbeats_go_out);
    tcase_add_test(tc, news_are_no_heartbeat);
    tcase_add_test(tc, a_silent_coordinator_is_called_again_and_then_lost);
    tcase_add_test(tc, silence_while_we_slept_is_forgiven);
    tcase_add_test(tc, own_lateness_is_not_held_against_the_coordinator);
    tcase_add_test(tc, one_that_is_always_late_finds_a_silent_coordinator);
    tcase_add_test(tc, a_lease_is_over_however_late_one_is);
    tcase_add_test(tc, a_round_that_gets_no_lease_is_left);
    tcase_add_test(tc, another_coordinator_in_its_place);
    tcase_add_test(tc, a_coordinator_that_goes_before_anything_began);
    tcase_add_test(tc, waiting_for_the_coordinator_is_said_and_ends);
    tcase_add_test(tc, a_coordinator_that_accepts_and_says_nothing);
    tcase_add_test(tc, refused_for_good);
    tcase_add_test(tc, refused_for_now);
    tcase_add_test(tc, refused_with_workers_alive);
    tcase_add_test(tc, given_up_and_back);
    tcase_add_test(tc, a_spare_is_told_so);
    tc = test_case(s, "end", 10);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, finish_waits_for_the_workers);
    tcase_add_test(tc, finish_without_a_report);
    tcase_add_test(tc, own_failures_are_reported_when_the_coordinator_is_lost);
    tcase_add_test(tc, leave_while_running);
    tcase_add_test(tc, leave_that_ends_the_job);
    tcase_add_test(tc, leave_before_anything);
    tcase_add_test(tc, leave_while_preparing);
    tcase_add_test(tc, leave_and_then_the_coordinator_goes);
    tcase_add_test(tc, phases_for_people);
    tcase_add_test(tc, one_that_is_turned_away_ends_its_workers_with_its_lease);
    tcase_add_test(tc, a_job_that_is_over_needs_no_lease);
    return s;
}

TEST_MAIN(suite)
