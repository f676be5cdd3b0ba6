/* The coordinator's rules, one by one, with scripted nodes and a clock of our own. */
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rdzv_round.h"
#include "rendezvous/rdzv_state.h"

#define S     1000000000ull
#define MS    1000000ull
#define CONNS 64

/* What a node, which is connection number i, was told. */
struct seen {
    struct rdzv_view view;
    struct rdzv_stop why; /* of the newest view that had one */
    int views, tables, reports;
    struct rdzv_result result;
    struct failure first; /* of the result */
    bool closed, refused, retry;
    char refusal[RDZV_TEXT_MAX];
    char notice[RDZV_NOTICE_MAX];
    struct rdzv_respawn order; /* the newest */
    uint64_t clock;            /* of the node: rises with every status */
};

static struct rdzv_state *S_;
static struct rdzv_rules R;
static uint64_t T; /* now */
static struct seen seen[CONNS];
static int rounds;
static bool finished;
static char logs[65536];
static struct rank_table table; /* the newest, a shallow copy */

static void drain(void)
{
    struct rdzv_action a;
    while (rdzv_state_next(S_, &a, T)) {
        struct seen *c = &seen[a.conn];
        switch (a.act) {
        case RDZV_ACT_LOG:
            strncat(logs, a.text, sizeof(logs) - strlen(logs) - 2);
            strcat(logs, "\n");
            break;
        case RDZV_ACT_NEW_ROUND:
            rounds++;
            break;
        case RDZV_ACT_TABLE:
            c->tables++;
            table = *a.table;
            break;
        case RDZV_ACT_REPORT:
            c->reports++;
            c->result = *a.result;
            if (a.result->n)
                c->first = a.result->failures[0];
            break;
        case RDZV_ACT_VIEW:
            c->views++;
            c->view = a.view;
            if (a.view.why)
                c->why = *a.view.why;
            if (a.view.nrespawns)
                c->order = a.view.respawns[a.view.nrespawns - 1];
            break;
        case RDZV_ACT_NOTICE:
            strcpy(c->notice, a.text);
            break;
        case RDZV_ACT_CLOSE:
            c->closed = true;
            c->refused = a.text != NULL;
            c->retry = a.retry;
            snprintf(c->refusal, sizeof(c->refusal), "%s", a.text ? a.text : "");
            break;
        case RDZV_ACT_FINISHED:
            finished = true;
            break;
        }
    }
}

static void rules(enum rdzv_backend backend, int min, int max)
{
    R = (struct rdzv_rules){.backend = backend,
                            .run_id = "job",
                            .version = "0.1",
                            .min_nodes = min,
                            .max_nodes = max,
                            .join_ns = 600 * S,
                            .last_call_ns = 30 * S,
                            .close_ns = 30 * S,
                            .heartbeat_ns = 5 * S,
                            .dead_ns = 15 * S,
                            .agent_store = true,
                            .bound_addr = "",
                            .port = 29500,
                            .local_addr = ""};
}

static void start(void)
{
    T = 1000 * S;
    log_init(LOG_LEVEL_VERBOSE, NULL);
    S_ = rdzv_state_new(&R, 0xabc, T);
}

static void teardown(void)
{
    rdzv_state_free(S_);
}

/* Who says hello; zero is a plain node on another host. */
struct who {
    const char *host, *addr, *local_addr, *run_id, *version, *role;
    int id;    /* 0: the number of its connection + 1 */
    int rank1; /* node_rank + 1 */
    int nproc, pid, min, max, restarts1;
    bool own, same_host, no_store;
    enum restart_policy policy;
};

static void hello(uint32_t conn, struct who w)
{
    struct rdzv_hello h = {.backend = R.backend,
                           .min_nodes = w.min ? w.min : R.min_nodes,
                           .max_nodes = w.max ? w.max : R.max_nodes,
                           .max_restarts = w.restarts1 ? w.restarts1 - 1 : R.max_restarts,
                           .restart_policy = w.policy ? w.policy : R.restart_policy,
                           .agent_store = w.no_store ? false : R.agent_store,
                           .pid = w.pid ? w.pid : 100 + (int)conn,
                           .node_rank = w.rank1 - 1,
                           .nproc = w.nproc ? w.nproc : 2};
    struct rdzv_peer p = {.own = w.own, .same_host = w.own || w.same_host};
    h.id.b[0] = (uint8_t)(w.id ? w.id : (int)conn + 1);
    strcpy(h.run_id, w.run_id ? w.run_id : "job");
    strcpy(h.version, w.version ? w.version : "0.1");
    strcpy(h.role, w.role ? w.role : "default");
    if (w.host)
        strcpy(h.host, w.host);
    else
        snprintf(h.host, sizeof(h.host), "n%u", conn);
    if (w.addr)
        strcpy(p.addr, w.addr);
    else if (!w.own)
        snprintf(p.addr, sizeof(p.addr), "10.0.0.%u", 10 + conn);
    strcpy(p.via, "10.0.0.1");
    if (w.local_addr)
        strcpy(h.local_addr, w.local_addr);
    uint64_t clock = seen[conn].clock;
    seen[conn] = (struct seen){.clock = clock};
    rdzv_state_hello(S_, conn, &h, &p, T);
    drain();
}

static struct rdzv_status status_of(uint32_t conn, enum member_phase phase)
{
    seen[conn].clock += MS;
    return (struct rdzv_status){.phase = phase,
                                .workers = phase == MEMBER_RUNNING || phase == MEMBER_STOPPING,
                                .gen = seen[conn].view.gen,
                                .send_ns = 7 * S + seen[conn].clock};
}

static void tell(uint32_t conn, struct rdzv_status st)
{
    rdzv_state_status(S_, conn, &st, T);
    drain();
}

static void say(uint32_t conn, enum member_phase phase)
{
    tell(conn, status_of(conn, phase));
}

static void join(uint32_t conn, struct who w)
{
    hello(conn, w);
    say(conn, MEMBER_IDLE);
}

static void prepared(uint32_t conn)
{
    struct rdzv_status st = status_of(conn, MEMBER_PREPARED);
    st.free_port = 40000 + (int)conn;
    tell(conn, st);
}

static void run_all(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        prepared(i);
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_int_eq(seen[i].view.phase, RDZV_RUN);
        say(i, MEMBER_RUNNING);
    }
}

static void stop_all(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (seen[i].view.phase == RDZV_STOP)
            say(i, MEMBER_IDLE);
    }
}

/* A job of n nodes, running. */
static void running(enum rdzv_backend backend, int min, int max, uint32_t n, int max_restarts)
{
    rules(backend, min, max);
    R.max_restarts = max_restarts;
    start();
    for (uint32_t i = 0; i < n; i++)
        join(i, (struct who){.own = i == 0});
    if ((int)n < max) {
        T += 30 * S;
        for (uint32_t i = 0; i < n; i++)
            say(i, MEMBER_IDLE);
        rdzv_state_tick(S_, T);
        drain();
    }
    run_all(n);
}

static struct failure failure_of(int local_rank, enum failure_kind kind, int code_or_signal)
{
    struct failure f;
    failure_init(&f);
    f.kind = kind;
    f.local_rank = local_rank;
    if (kind == FAILURE_SIGNAL)
        f.signal = code_or_signal;
    else
        f.exit_code = code_or_signal;
    return f;
}

/* A status with failures; ago: how long before the status was sent they were seen. */
static void tell_failures(uint32_t conn, enum member_phase phase, uint32_t seq,
                          const struct failure *f, int n, uint64_t ago)
{
    struct buf b = BUF_INIT;
    struct rdzv_status st = status_of(conn, phase);
    for (int i = 0; i < n; i++) {
        struct failure copy = f[i];
        copy.seen_ns = st.send_ns - ago;
        failure_encode(&b, &copy);
    }
    st.first_seq = seq;
    st.nfailures = n;
    st.failures = b.data;
    st.failures_len = b.len;
    st.failures_total = (uint32_t)n;
    tell(conn, st);
    buf_fini(&b);
}

static void worker_fails(uint32_t conn, enum failure_kind kind, int code_or_signal)
{
    struct failure f = failure_of(0, kind, code_or_signal);
    static uint32_t seq;
    tell_failures(conn, MEMBER_STOPPING, ++seq, &f, 1, 0);
}

static void leave(uint32_t conn, enum stop_reason reason, int code, const char *text, bool workers)
{
    struct rdzv_status st = status_of(conn, MEMBER_LEAVING);
    st.workers = workers;
    st.leave_reason = reason;
    st.leave_code = code;
    strcpy(st.leave_text, text);
    tell(conn, st);
}

static void closed(uint32_t conn, bool orderly)
{
    rdzv_state_closed(S_, conn, orderly, T);
    drain();
}

static void tick(uint64_t seconds)
{
    T += seconds * S;
    rdzv_state_tick(S_, T);
    drain();
}

static struct rdzv_state_info info(void)
{
    struct rdzv_state_info i;
    rdzv_state_get_info(S_, &i);
    return i;
}

#define PHASE(p)          ck_assert_int_eq(info().phase, p)
#define HAS(text, part)   ck_assert_msg(strstr(text, part), "'%s' is not in: %s", part, text)
#define LACKS(text, part) ck_assert_msg(!strstr(text, part), "'%s' is in: %s", part, text)

/* ------------------------------------------------------------------------------------ joining */

START_TEST(complete_set_starts_at_once)
{
    rules(RDZV_STATIC, 3, 3);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    ck_assert_int_eq(seen[1].view.phase, RDZV_COLLECT);
    join(2, (struct who){0});
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(seen[i].view.phase, RDZV_PREPARE);
        ck_assert_int_eq(seen[i].view.nnodes, 3);
        ck_assert_int_eq(seen[i].view.group_rank, i);
        ck_assert_uint_eq(seen[i].view.gen.epoch, 0xabc);
        ck_assert_uint_eq(seen[i].view.gen.counter, 1);
    }
    ck_assert_int_eq(rounds, 1);
}
END_TEST

START_TEST(nothing_runs_before_all_are_prepared)
{
    rules(RDZV_STATIC, 2, 2);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    prepared(0);
    ck_assert_int_eq(seen[0].view.phase, RDZV_PREPARE);
    struct rdzv_status stale = status_of(1, MEMBER_PREPARED);
    stale.gen.counter = 0;
    tell(1, stale);
    ck_assert_int_eq(seen[0].view.phase, RDZV_PREPARE);
    prepared(1);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(seen[i].view.phase, RDZV_RUN);
        ck_assert_int_eq(seen[i].tables, 1);
    }
}
END_TEST

START_TEST(last_call_waits_for_more)
{
    rules(RDZV_C10D, 2, 4);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    PHASE(RDZV_COLLECT);
    ck_assert_uint_le(rdzv_state_deadline(S_), T + 30 * S);
    tick(10);
    say(0, MEMBER_IDLE);
    say(1, MEMBER_IDLE);
    join(2, (struct who){0});
    tick(10);
    PHASE(RDZV_COLLECT);
    for (uint32_t i = 0; i < 3; i++)
        say(i, MEMBER_IDLE);
    tick(10); /* 30 s after the second, not after the third */
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 3);
}
END_TEST

START_TEST(last_call_ends_when_all_are_there)
{
    rules(RDZV_C10D, 2, 3);
    start();
    for (uint32_t i = 0; i < 3; i++)
        join(i, (struct who){0});
    PHASE(RDZV_PREPARE);
}
END_TEST

START_TEST(last_call_is_called_off_when_too_few_are_left)
{
    rules(RDZV_C10D, 2, 4);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    tick(14);
    say(0, MEMBER_IDLE);
    closed(1, true);
    tick(14);
    say(0, MEMBER_IDLE);
    join(2, (struct who){0});
    tick(14);
    PHASE(RDZV_COLLECT);
    say(0, MEMBER_IDLE);
    say(2, MEMBER_IDLE);
    tick(14);
    say(0, MEMBER_IDLE);
    say(2, MEMBER_IDLE);
    tick(2);
    PHASE(RDZV_PREPARE);
}
END_TEST

/* Keeps n nodes from falling silent. */
static void beat(uint64_t seconds, const uint32_t *conns, int n)
{
    for (uint64_t end = T + seconds * S; T < end;) {
        T += 5 * S;
        for (int i = 0; i < n; i++)
            say(conns[i], MEMBER_IDLE);
        rdzv_state_tick(S_, T);
        drain();
    }
}

START_TEST(join_timeout_names_who_is_missing)
{
    rules(RDZV_STATIC, 4, 4);
    start();
    join(0, (struct who){.own = true, .rank1 = 1, .host = "gpu-a"});
    join(1, (struct who){.rank1 = 3, .host = "gpu-c"});
    for (int i = 0; i < 5; i++)
        join(2, (struct who){.rank1 = 3, .host = "gpu-d", .addr = "10.0.0.4"});
    beat(600, (const uint32_t[]){0, 1}, 2);
    PHASE(RDZV_FINISH);
    const struct rdzv_result *r = &seen[1].result;
    ck_assert_int_eq(r->exit_code, 1);
    ck_assert_int_eq(r->reason, STOP_RENDEZVOUS);
    HAS(r->text, "only 2 of 4 nodes joined within 600 s");
    HAS(r->text, "gpu-a, gpu-c");
    HAS(r->text, "missing: node_rank 1, 3");
    HAS(r->text, "gpu-d (10.0.0.4), 5 times: node_rank 2 is already taken by gpu-c");
    ck_assert_uint_eq(r->n, 0);
}
END_TEST

START_TEST(waiting_is_told_every_few_seconds)
{
    rules(RDZV_STATIC, 4, 4);
    start();
    join(0, (struct who){.own = true, .rank1 = 1, .host = "gpu-a"});
    join(1, (struct who){.rank1 = 4, .host = "gpu-d"});
    tick(3);
    HAS(seen[1].notice,
        "waiting for nodes, 3 s: 2 of 4 here: gpu-a, gpu-d; missing: node_rank 1, 2");
    ck_assert_str_eq(seen[0].notice, seen[1].notice);
    seen[1].notice[0] = '\0';
    tick(4);
    ck_assert_str_eq(seen[1].notice, "");
    tick(1);
    HAS(seen[1].notice, "8 s");
}
END_TEST

START_TEST(a_long_list_of_nodes_is_bounded)
{
    rules(RDZV_C10D, 60, 62);
    start();
    for (uint32_t i = 0; i < 50; i++)
        join(i, (struct who){.host = "a-host-name-of-some-length.example.org"});
    tick(3);
    HAS(seen[1].notice, "50 of 60 to 62 here");
    HAS(seen[1].notice, "and 42 more");
}
END_TEST

/* Each gets a clear text, is named in the log, and disturbs nobody. */
START_TEST(those_who_do_not_fit_are_turned_away)
{
    static const struct {
        struct who w;
        const char *text;
        bool retry;
    } cases[] = {
        {{.run_id = "other"}, "this is job 'job', not 'other'", false},
        {{.min = 1, .max = 3}, "this job has --nnodes 3, not 1:3", false},
        {{.min = 2, .max = 2}, "this job has --nnodes 3, not 2", false},
        {{.rank1 = 4}, "node_rank 3 is too high for --nnodes 3", false},
        {{.rank1 = 2},
         "node_rank 1 is already taken by gpu-b (10.0.0.2), pid 881, joined 4.0 s ago",
         false},
        {{.no_store = true}, "this job has --master_store agent, not none", false},
    };
    rules(RDZV_STATIC, 3, 3);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){.rank1 = 2, .host = "gpu-b", .addr = "10.0.0.2", .pid = 881});
    tick(4);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint32_t conn = 10 + (uint32_t)i;
        logs[0] = '\0';
        struct who w = cases[i].w;
        w.host = "gpu-c";
        hello(conn, w);
        ck_assert(seen[conn].closed && seen[conn].refused);
        HAS(seen[conn].refusal, cases[i].text);
        HAS(logs, cases[i].text);
        HAS(logs, "gpu-c (10.0.0.");
        ck_assert_int_eq(seen[conn].retry, cases[i].retry);
        say(conn, MEMBER_IDLE); /* what it goes on to say is nothing to us */
        ck_assert_int_eq(seen[conn].views, 0);
    }
    ck_assert_int_eq(info().nodes, 2);
    join(2, (struct who){0});
    PHASE(RDZV_PREPARE);
}
END_TEST

START_TEST(another_backend_is_turned_away)
{
    rules(RDZV_STATIC, 2, 2);
    start();
    join(0, (struct who){.own = true});
    R.backend = RDZV_C10D; /* what the next one says */
    hello(1, (struct who){0});
    HAS(seen[1].refusal, "this job meets by --rdzv_backend static, not c10d");
}
END_TEST

START_TEST(the_same_refusal_is_logged_once_in_a_while)
{
    rules(RDZV_STATIC, 2, 2);
    start();
    for (int i = 0; i < 100; i++)
        hello(1, (struct who){.run_id = "other"});
    char *first = strstr(logs, "turned away");
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_null(strstr(first + 1, "turned away"));
}
END_TEST

START_TEST(small_differences_are_warned_about)
{
    rules(RDZV_STATIC, 2, 2);
    R.max_restarts = 3;
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){.restarts1 = 6, .policy = RESTART_WORKER, .version = "0.9"});
    PHASE(RDZV_PREPARE);
    HAS(logs, "node n1 has --max_restarts 5; 3 counts");
    HAS(logs, "--restart_policy");
    HAS(logs, "runs dlaunch 0.9, this is 0.1");
}
END_TEST

START_TEST(static_job_that_is_complete_takes_nobody)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    hello(2, (struct who){0});
    HAS(seen[2].refusal, "the job is complete: all 2 nodes have joined");
    PHASE(RDZV_RUN);
}
END_TEST

START_TEST(a_holder_that_is_silent_is_not_believed_to_be_there)
{
    rules(RDZV_STATIC, 3, 3);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){.rank1 = 2});
    T += 11 * S; /* two heartbeats are missing */
    hello(2, (struct who){.rank1 = 2});
    ck_assert(seen[2].refused && seen[2].retry);
    closed(1, false); /* and now its connection broke */
    join(2, (struct who){.rank1 = 2});
    ck_assert(!seen[2].refused);
    ck_assert_int_eq(info().nodes, 2);
}
END_TEST

START_TEST(those_who_come_after_the_end_may_try_again)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    say(0, MEMBER_DONE);
    say(1, MEMBER_DONE);
    PHASE(RDZV_FINISH);
    tick(2);
    hello(2, (struct who){0});
    HAS(seen[2].refusal, "the job here is over: it ended 2.0 s ago with exit status 0");
    ck_assert(seen[2].retry);
}
END_TEST

START_TEST(spares_are_bounded)
{
    rules(RDZV_C10D, 1, 1);
    start();
    join(0, (struct who){.own = true});
    for (int i = 1; i < 100; i++) /* they all come by a connection that breaks */
    {
        hello(1, (struct who){.id = i + 1});
        if (seen[1].refused)
            break;
        closed(1, false);
    }
    ck_assert(seen[1].refused && seen[1].retry);
    HAS(seen[1].refusal, "are here already, for 1 places");
}
END_TEST

/* -------------------------------------------------------------------------------------- ranks */

START_TEST(natural_order_of_host_names)
{
    static const char *const order[] = {"a",       "gpu-1", "gpu-2", "gpu-10", "gpu-10a", "gpu-10b",
                                        "gpu-100", "node",  "node1", "node01", "node2"};
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        for (size_t k = 0; k < ARRAY_LEN(order); k++) {
            int c = rdzv_round_compare_hosts(order[i], order[k]);
            bool zeros = strcmp(order[i], "node01") == 0 || strcmp(order[k], "node01") == 0;
            if (i == k)
                ck_assert_int_eq(c, 0);
            else if (!zeros)
                ck_assert_msg((c < 0) == (i < k), "%s %s: %d", order[i], order[k], c);
        }
    }
    ck_assert_int_ne(rdzv_round_compare_hosts("node1", "node01"), 0);
}
END_TEST

static void check_ranks(const int *expected, uint32_t n)
{
    PHASE(RDZV_PREPARE);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_msg(seen[i].view.group_rank == expected[i], "conn %u has rank %d, not %d", i,
                      seen[i].view.group_rank, expected[i]);
}

START_TEST(rank_order_without_wishes)
{
    rules(RDZV_C10D, 6, 6);
    start();
    join(0, (struct who){.host = "node10"});
    join(1, (struct who){.host = "node2", .addr = "10.0.0.10"});
    join(2, (struct who){.host = "node2", .addr = "10.0.0.9", .pid = 30});
    join(3, (struct who){.host = "zulu", .own = true}); /* the coordinator's own is first */
    join(4, (struct who){.host = "node1"});
    join(5, (struct who){.host = "node2", .addr = "10.0.0.9", .pid = 4});
    check_ranks((const int[]){5, 4, 3, 0, 1, 2}, 6);
}
END_TEST

START_TEST(rank_that_was_asked_for_is_given)
{
    for (int backend = RDZV_STATIC; backend <= RDZV_FILE; backend++) {
        rules((enum rdzv_backend)backend, 4, 4);
        start();
        join(0, (struct who){.host = "a", .own = true, .rank1 = 4});
        join(1, (struct who){.host = "d"});
        join(2, (struct who){.host = "c", .rank1 = 1});
        join(3, (struct who){.host = "b"});
        check_ranks((const int[]){3, 2, 0, 1}, 4);
        if (backend < RDZV_FILE)
            rdzv_state_free(S_);
    }
}
END_TEST

START_TEST(ranks_are_dense_when_some_are_missing)
{
    rules(RDZV_C10D, 3, 8);
    start();
    join(0, (struct who){.host = "a", .own = true});
    join(1, (struct who){.host = "b", .rank1 = 8});
    join(2, (struct who){.host = "c", .rank1 = 3});
    join(3, (struct who){.host = "d", .rank1 = 6});
    T += 30 * S;
    for (uint32_t i = 0; i < 4; i++)
        say(i, MEMBER_IDLE);
    rdzv_state_tick(S_, T);
    drain();
    check_ranks((const int[]){0, 3, 1, 2}, 4);
}
END_TEST

START_TEST(ranks_stay_over_restarts)
{
    rules(RDZV_C10D, 2, 4);
    R.max_restarts = 5;
    start();
    join(0, (struct who){.host = "d", .own = true});
    join(1, (struct who){.host = "c"});
    join(2, (struct who){.host = "b"});
    join(3, (struct who){.host = "a"});
    check_ranks((const int[]){0, 3, 2, 1}, 4);
    run_all(4);
    worker_fails(1, FAILURE_EXIT, 1);
    stop_all(4);
    check_ranks((const int[]){0, 3, 2, 1}, 4);
    run_all(4);
    closed(2, true); /* rank 2 is gone: the last one moves up */
    stop_all(4);
    ck_assert_int_eq(seen[0].view.group_rank, 0);
    ck_assert_int_eq(seen[3].view.group_rank, 1);
    ck_assert_int_eq(seen[1].view.group_rank, 2);
}
END_TEST

START_TEST(a_new_node_takes_the_place_of_the_lost_one)
{
    running(RDZV_C10D, 3, 4, 4, 0);
    join(4, (struct who){.host = "spare"});
    ck_assert_int_eq(seen[4].view.phase, RDZV_COLLECT);
    ck_assert_int_eq(seen[4].view.group_rank, -1);
    ck_assert(seen[4].view.spare);
    closed(1, true);
    stop_all(4);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 4);
    ck_assert_int_eq(seen[0].view.group_rank, 0);
    ck_assert_int_eq(seen[4].view.group_rank, 1);
    ck_assert_int_eq(seen[2].view.group_rank, 2);
    ck_assert_int_eq(seen[3].view.group_rank, 3);
    ck_assert(!seen[4].view.spare);
}
END_TEST

START_TEST(too_many_nodes_leave_the_newest_out)
{
    rules(RDZV_C10D, 2, 3);
    start();
    hello(0, (struct who){.host = "a"}); /* there, but not ready */
    join(1, (struct who){.host = "b", .own = true});
    T += S;
    join(2, (struct who){.host = "c"});
    T += S;
    hello(3, (struct who){.host = "d"});
    T += S;
    hello(4, (struct who){.host = "e", .rank1 = 1});
    /* Now three more are ready at once. */
    seen[0].view.gen = seen[3].view.gen = seen[4].view.gen = (struct generation){0};
    say(4, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    say(3, MEMBER_IDLE);
    ck_assert(seen[3].view.spare);
}
END_TEST

/* --------------------------------------------------------------------------- addresses, master */

static void table_of(struct who *w, uint32_t n)
{
    start();
    for (uint32_t i = 0; i < n; i++)
        join(i, w[i]);
    for (uint32_t i = 0; i < n; i++)
        prepared(i);
    PHASE(RDZV_RUN);
}

#define ADDR(i, a) ck_assert_str_eq(table.nodes[i].addr, a)

START_TEST(addresses_on_several_hosts)
{
    rules(RDZV_C10D, 3, 3);
    table_of((struct who[]){{.own = true, .rank1 = 1},
                            {.same_host = true, .addr = "127.0.0.1", .rank1 = 2},
                            {.addr = "10.0.0.7", .rank1 = 3}},
             3);
    ADDR(0, "10.0.0.1"); /* as the one on the other host reached it */
    ADDR(1, "10.0.0.1");
    ADDR(2, "10.0.0.7");
    ck_assert_str_eq(table.master_addr, "10.0.0.1");
    ck_assert_int_eq(table.master_port, 29500);
    ck_assert(table.agent_store);
}
END_TEST

START_TEST(addresses_on_one_host)
{
    rules(RDZV_C10D, 2, 2);
    table_of((struct who[]){{.own = true}, {.same_host = true, .addr = "10.0.0.1"}}, 2);
    ADDR(0, "127.0.0.1");
    ADDR(1, "127.0.0.1");
    ck_assert_str_eq(table.master_addr, "127.0.0.1");
    rdzv_state_free(S_);
    R.bound_addr = "10.0.0.1"; /* it listens nowhere else */
    table_of((struct who[]){{.own = true}, {.same_host = true, .addr = "10.0.0.1"}}, 2);
    ADDR(0, "10.0.0.1");
    ADDR(1, "10.0.0.1");
    ck_assert_str_eq(table.master_addr, "10.0.0.1");
    rdzv_state_free(S_);
    R.bound_addr = "::1";
    table_of((struct who[]){{.own = true}, {.same_host = true, .addr = "::1"}}, 2);
    ck_assert_str_eq(table.master_addr, "::1");
}
END_TEST

START_TEST(addresses_that_were_given)
{
    rules(RDZV_C10D, 3, 3);
    R.local_addr = "192.168.1.1";
    table_of((struct who[]){{.own = true, .local_addr = "192.168.1.1", .rank1 = 1},
                            {.local_addr = "192.168.1.2", .rank1 = 2},
                            {.local_addr = "127.0.0.1", .rank1 = 3, .host = "odd"}},
             3);
    ADDR(0, "192.168.1.1");
    ADDR(1, "192.168.1.2");
    ADDR(2, "10.0.0.12"); /* never a loopback between hosts */
    HAS(logs, "--local_addr 127.0.0.1 of node odd");
    ck_assert_str_eq(table.master_addr, "192.168.1.1");
}
END_TEST

START_TEST(master_addr_as_the_user_gave_it)
{
    rules(RDZV_STATIC, 2, 2);
    R.master_addr = "head.cluster";
    table_of((struct who[]){{.own = true}, {.addr = "10.0.0.7"}}, 2);
    ck_assert_str_eq(table.master_addr, "head.cluster");
    rdzv_state_free(S_);
    static const char *const local[] = {"127.0.0.1", "localhost", "::1"};
    for (size_t i = 0; i < ARRAY_LEN(local); i++) {
        R.master_addr = local[i];
        logs[0] = '\0';
        table_of((struct who[]){{.own = true}, {.addr = "10.0.0.7"}}, 2);
        ck_assert_str_eq(table.master_addr, "10.0.0.1");
        HAS(logs, "MASTER_ADDR is 10.0.0.1");
        rdzv_state_free(S_);
        table_of((struct who[]){{.own = true}, {.same_host = true, .addr = "127.0.0.1"}}, 2);
        ck_assert_str_eq(table.master_addr, local[i]);
        if (i + 1 < ARRAY_LEN(local))
            rdzv_state_free(S_);
    }
}
END_TEST

START_TEST(master_of_programs_that_listen_themselves)
{
    rules(RDZV_STATIC, 2, 2);
    R.agent_store = false;
    R.master_addr = "head.cluster";
    table_of((struct who[]){{.own = true, .rank1 = 2}, {.addr = "10.0.0.7", .rank1 = 1}}, 2);
    ck_assert_str_eq(table.master_addr, "10.0.0.7"); /* of group rank 0 */
    ck_assert_int_eq(table.master_port, 40001);      /* the one that it offered */
    ck_assert(!table.agent_store);
}
END_TEST

START_TEST(unequal_nodes_and_roles)
{
    rules(RDZV_STATIC, 3, 3);
    start();
    join(0, (struct who){.own = true, .nproc = 3});
    join(1, (struct who){.nproc = 1, .role = "reader"});
    join(2, (struct who){.nproc = 2});
    uint8_t ports[] = {1, 0, 2, 0, 3, 1};
    struct rdzv_status st = status_of(0, MEMBER_PREPARED);
    st.nports = 3;
    st.ports = ports;
    tell(0, st);
    prepared(1);
    prepared(2);
    ck_assert_int_eq(table.world_size, 6);
    ck_assert_int_eq(table.nodes[2].base_rank, 4);
    ck_assert_int_eq(table.nodes[2].role_base_rank, 3);
    ck_assert_int_eq(table.nodes[2].role_world_size, 5);
    ck_assert_int_eq(table.nodes[0].ports[2], 259);
    ck_assert_ptr_null(table.nodes[1].ports);
}
END_TEST

START_TEST(ports_must_be_as_many_as_workers)
{
    rules(RDZV_STATIC, 2, 2);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    uint8_t ports[] = {1, 0, 2, 0, 3, 1};
    struct rdzv_status st = status_of(1, MEMBER_PREPARED);
    st.nports = 3;
    st.ports = ports;
    tell(1, st);
    ck_assert(seen[1].closed);
    HAS(seen[1].refusal, "data ports");
    PHASE(RDZV_COLLECT);
}
END_TEST

/* ----------------------------------------------------------------------------------- failures */

START_TEST(all_done_is_success)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    say(0, MEMBER_DONE);
    PHASE(RDZV_RUN);
    say(0, MEMBER_DONE);
    say(1, MEMBER_DONE);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(seen[i].view.phase, RDZV_FINISH);
        ck_assert_int_eq(seen[i].reports, 1);
        ck_assert_int_eq(seen[i].result.exit_code, 0);
        ck_assert_str_eq(seen[i].result.text, "");
    }
    ck_assert(!finished);
    closed(0, true);
    ck_assert(!finished);
    closed(1, true);
    ck_assert(finished);
}
END_TEST

START_TEST(finish_does_not_wait_for_ever)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    say(0, MEMBER_DONE);
    say(1, MEMBER_DONE);
    closed(0, true);
    for (int i = 0; i < 6; i++) {
        ck_assert(!finished);
        ck_assert_uint_ne(rdzv_state_deadline(S_), UINT64_MAX);
        say(1, MEMBER_DONE);
        tick(5);
    }
    ck_assert(finished);
    HAS(logs, "1 node, among them n1 (10.0.0.11), did not take the job's result");
    ck_assert_uint_eq(rdzv_state_deadline(S_), UINT64_MAX);
}
END_TEST

START_TEST(failure_stops_everybody_at_once)
{
    running(RDZV_STATIC, 3, 3, 3, 0);
    worker_fails(1, FAILURE_SIGNAL, SIGSEGV);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(seen[i].view.phase, RDZV_STOP);
        ck_assert_int_eq(seen[i].why.reason, STOP_FAILURE);
        ck_assert(!seen[i].why.restarting);
        HAS(seen[i].why.text, "worker 2 (local rank 0) on n1 was killed by SIGSEGV");
        ck_assert(seen[i].why.has_first);
        ck_assert_int_eq(seen[i].why.first.rank, 2);
    }
    ck_assert_uint_gt(seen[1].view.acked, 0);
    say(0, MEMBER_IDLE);
    say(1, MEMBER_IDLE);
    PHASE(RDZV_STOP); /* not before all have stopped */
    say(2, MEMBER_IDLE);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[2].result.exit_code, 128 + SIGSEGV);
    ck_assert_int_eq(seen[2].result.reason, STOP_FAILURE);
    HAS(seen[2].result.text, "SIGSEGV");
    ck_assert_uint_eq(seen[2].result.n, 1);
    ck_assert_int_eq(seen[2].first.rank, 2);
    ck_assert_int_eq(seen[2].first.node, 1);
    ck_assert_str_eq(seen[2].first.host, "n1");
}
END_TEST

START_TEST(restarts_are_charged_to_the_job)
{
    running(RDZV_STATIC, 2, 2, 2, 2);
    for (int i = 1; i <= 2; i++) {
        worker_fails((uint32_t)i % 2, FAILURE_EXIT, 3);
        ck_assert(seen[0].why.restarting);
        char text[32];
        snprintf(text, sizeof(text), "restart %d of 2", i);
        HAS(seen[0].why.text, text);
        stop_all(2);
        PHASE(RDZV_PREPARE);
        ck_assert_uint_eq(info().gen.counter, (uint32_t)i + 1);
        run_all(2);
        ck_assert_int_eq(table.restart_count, i);
        ck_assert_int_eq(rounds, i + 1);
    }
    worker_fails(0, FAILURE_EXIT, 3);
    ck_assert(!seen[0].why.restarting);
    stop_all(2);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.exit_code, 3);
    ck_assert_int_eq(seen[0].result.restarts, 2);
}
END_TEST

START_TEST(restart_waits_for_the_backoff)
{
    rules(RDZV_STATIC, 1, 1);
    R.max_restarts = 3;
    R.backoff_ns = 2 * S;
    start();
    join(0, (struct who){.own = true});
    for (int i = 1; i <= 2; i++) {
        run_all(1);
        worker_fails(0, FAILURE_EXIT, 1);
        stop_all(1);
        PHASE(RDZV_COLLECT);
        ck_assert_uint_le(rdzv_state_deadline(S_), T + 2 * (uint64_t)i * S);
        tick(2 * (uint64_t)i - 1);
        PHASE(RDZV_COLLECT);
        tick(1);
        PHASE(RDZV_PREPARE);
    }
}
END_TEST

START_TEST(exec_failures_are_never_retried)
{
    running(RDZV_STATIC, 2, 2, 2, 5);
    worker_fails(1, FAILURE_EXEC, 127);
    ck_assert(!seen[0].why.restarting);
    stop_all(2);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.exit_code, 127);
}
END_TEST

START_TEST(first_cause_is_found_over_all_nodes)
{
    running(RDZV_STATIC, 3, 3, 3, 0);
    T += 100 * MS;
    struct failure victim = failure_of(0, FAILURE_EXIT, 1);
    tell_failures(2, MEMBER_STOPPING, 1, &victim, 1, 0);
    HAS(seen[0].why.text, "worker 4");
    T += 5 * MS; /* what comes in later happened before, on another clock */
    struct failure cause = failure_of(1, FAILURE_EXIT, 9);
    tell_failures(1, MEMBER_STOPPING, 1, &cause, 1, 20 * MS);
    struct failure others[2] = {failure_of(0, FAILURE_STOPPED, 0),
                                failure_of(1, FAILURE_STOPPED, 0)};
    tell_failures(0, MEMBER_IDLE, 1, others, 2, 0);
    say(1, MEMBER_IDLE);
    say(2, MEMBER_IDLE);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.exit_code, 9);
    ck_assert_int_eq(seen[0].first.rank, 3);
    ck_assert_uint_eq(seen[0].result.n, 4);
}
END_TEST

START_TEST(clock_offsets_put_failures_on_one_clock)
{
    rules(RDZV_STATIC, 2, 2);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    /* An exchange without delay tells the offset; node 1's clock runs 1,000 s behind. */
    struct rdzv_status st = status_of(1, MEMBER_PREPARED);
    st.view_sent_ns = seen[1].view.sent_ns;
    st.view_seen_ns = st.send_ns;
    tell(1, st);
    uint64_t at = st.send_ns, ours = T; /* the same moment on both clocks */
    prepared(0);
    T += S;
    struct failure f = failure_of(0, FAILURE_EXIT, 1);
    struct failure g = failure_of(1, FAILURE_EXIT, 2);
    struct buf b = BUF_INIT;
    tell_failures(0, MEMBER_STOPPING, 1, &f, 1, 100 * MS); /* 900 ms after that moment */
    g.seen_ns = at + 800 * MS;
    failure_encode(&b, &g);
    T += S; /* its message was on its way for a second */
    struct rdzv_status late = status_of(1, MEMBER_STOPPING);
    late.send_ns = at + 1000 * MS;
    late.first_seq = 1;
    late.nfailures = 1;
    late.failures = b.data;
    late.failures_len = b.len;
    tell(1, late);
    seen[1].clock = 2000 * MS;
    stop_all(2);
    ck_assert_int_eq(seen[0].result.exit_code, 2);
    ck_assert_uint_eq(seen[0].first.seen_ns, ours + 800 * MS);
    buf_fini(&b);
}
END_TEST

START_TEST(failures_are_taken_once)
{
    running(RDZV_STATIC, 2, 2, 2, 1);
    struct failure f = failure_of(0, FAILURE_EXIT, 1);
    tell_failures(1, MEMBER_STOPPING, 1, &f, 1, 0);
    closed(1, false);
    hello(1, (struct who){0});
    tell_failures(1, MEMBER_IDLE, 1, &f, 1, 0); /* again, since the answer was lost */
    say(0, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    tell_failures(1, MEMBER_IDLE, 1, &f, 1, 0);
    run_all(2);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(info().restarts, 1);
}
END_TEST

START_TEST(failures_of_others_are_not_believed)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    struct failure f = failure_of(2, FAILURE_EXIT, 1); /* it has local ranks 0 and 1 */
    tell_failures(1, MEMBER_RUNNING, 1, &f, 1, 0);
    f = failure_of(-1, FAILURE_NODE, 0);
    tell_failures(1, MEMBER_RUNNING, 2, &f, 1, 0);
    PHASE(RDZV_RUN);
    HAS(logs, "none of its own");
    f = failure_of(1, FAILURE_EXIT, 1);
    f.rank = 0; /* the coordinator knows better */
    strcpy(f.host, "innocent");
    tell_failures(1, MEMBER_STOPPING, 3, &f, 1, 0);
    stop_all(2);
    ck_assert_int_eq(seen[0].first.rank, 3);
    ck_assert_str_eq(seen[0].first.host, "n1");
}
END_TEST

START_TEST(failure_when_others_are_done)
{
    running(RDZV_STATIC, 3, 3, 3, 1);
    say(0, MEMBER_DONE);
    say(1, MEMBER_DONE);
    worker_fails(2, FAILURE_EXIT, 1);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(seen[i].view.phase, RDZV_STOP);
    stop_all(3);
    PHASE(RDZV_PREPARE);
    run_all(3);
    for (uint32_t i = 0; i < 3; i++)
        say(i, MEMBER_DONE);
    ck_assert_int_eq(seen[0].result.exit_code, 0);
    ck_assert_int_eq(seen[0].result.restarts, 1);
    ck_assert_uint_eq(seen[0].result.n, 0);
}
END_TEST

START_TEST(report_is_bounded_and_counts_the_rest)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    worker_fails(1, FAILURE_EXIT, 7);
    struct rdzv_status st = status_of(0, MEMBER_IDLE);
    st.failures_total = 500; /* 500 records, none of which fitted */
    tell(0, st);
    say(1, MEMBER_IDLE);
    PHASE(RDZV_FINISH);
    ck_assert_uint_eq(seen[0].result.n, 1);
    ck_assert_uint_eq(seen[0].result.omitted, 500);
}
END_TEST

START_TEST(a_node_that_stops_without_a_reason)
{
    running(RDZV_STATIC, 2, 2, 2, 5);
    say(1, MEMBER_IDLE);
    PHASE(RDZV_STOP);
    stop_all(2);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.reason, STOP_INTERNAL);
    HAS(seen[0].result.text, "node n1 has stopped its workers without a reason");
}
END_TEST

/* ------------------------------------------------------------------- restart policy "worker" */

START_TEST(only_the_failed_worker_is_respawned)
{
    rules(RDZV_STATIC, 2, 2);
    R.max_restarts = 2;
    R.restart_policy = RESTART_WORKER;
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    run_all(2);
    struct failure f = failure_of(1, FAILURE_SIGNAL, SIGKILL);
    tell_failures(1, MEMBER_RUNNING, 1, &f, 1, 0);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(seen[0].view.phase, RDZV_RUN);
    ck_assert_int_eq(seen[1].view.nrespawns, 1);
    ck_assert_int_eq(seen[1].order.local_rank, 1);
    ck_assert_int_eq(seen[1].order.restart_count, 1);
    HAS(logs, "restart 1 of 2");
    /* Until it says that it did. */
    say(1, MEMBER_RUNNING);
    ck_assert_int_eq(seen[1].view.nrespawns, 1);
    struct rdzv_status st = status_of(1, MEMBER_RUNNING);
    st.respawned = seen[1].order.id;
    tell(1, st);
    ck_assert_int_eq(seen[1].view.nrespawns, 0);
    /* The first of the last failure is not one that was mended. */
    f = failure_of(0, FAILURE_EXIT, 3);
    tell_failures(0, MEMBER_RUNNING, 1, &f, 1, 0);
    ck_assert_int_eq(seen[0].order.restart_count, 2);
    tell_failures(0, MEMBER_RUNNING, 2, &f, 1, 0);
    PHASE(RDZV_STOP);
    stop_all(2);
    ck_assert_int_eq(seen[1].result.exit_code, 3);
    ck_assert_int_eq(seen[1].result.restarts, 2);
    ck_assert_uint_eq(seen[1].result.n, 1);
}
END_TEST

START_TEST(respawn_waits_for_the_backoff)
{
    rules(RDZV_STATIC, 1, 1);
    R.max_restarts = 2;
    R.restart_policy = RESTART_WORKER;
    R.backoff_ns = 3 * S;
    start();
    join(0, (struct who){.own = true});
    run_all(1);
    struct failure f = failure_of(1, FAILURE_EXIT, 1);
    tell_failures(0, MEMBER_RUNNING, 1, &f, 1, 0);
    ck_assert_int_eq(seen[0].view.nrespawns, 0);
    ck_assert_uint_eq(rdzv_state_deadline(S_), T + 3 * S);
    tick(3);
    ck_assert_int_eq(seen[0].view.nrespawns, 1);
}
END_TEST

START_TEST(exec_failure_is_not_respawned)
{
    rules(RDZV_STATIC, 1, 1);
    R.max_restarts = 2;
    R.restart_policy = RESTART_WORKER;
    start();
    join(0, (struct who){.own = true});
    run_all(1);
    struct failure f = failure_of(1, FAILURE_EXEC, 126);
    tell_failures(0, MEMBER_RUNNING, 1, &f, 1, 0);
    stop_all(1);
    ck_assert_int_eq(seen[0].result.exit_code, 126);
}
END_TEST

/* ------------------------------------------------------------------------------- nodes come and go
 */

START_TEST(a_connection_that_breaks_and_comes_back_resumes)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    closed(1, false);
    PHASE(RDZV_RUN);
    T += 14 * S;
    say(0, MEMBER_RUNNING);
    tick(0);
    hello(7, (struct who){.id = 2}); /* by another connection */
    ck_assert_int_eq(seen[7].view.phase, RDZV_RUN);
    ck_assert_int_eq(seen[7].view.group_rank, 1);
    ck_assert_int_eq(seen[7].tables, 0); /* it has it */
    seen[7].clock = 100 * S;
    say(7, MEMBER_RUNNING);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(info().nodes, 2);
    say(0, MEMBER_DONE);
    say(7, MEMBER_DONE);
    PHASE(RDZV_FINISH);
}
END_TEST

START_TEST(a_connection_is_replaced_before_its_end_is_seen)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    hello(7, (struct who){.id = 2});
    ck_assert(seen[1].closed && !seen[1].refused);
    seen[7].clock = 100 * S;
    say(7, MEMBER_RUNNING);
    say(1, MEMBER_IDLE); /* the ghost speaks: nobody listens */
    PHASE(RDZV_RUN);
    closed(1, true);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(info().nodes, 2);
}
END_TEST

START_TEST(one_that_missed_the_table_gets_it_when_it_is_back)
{
    rules(RDZV_STATIC, 2, 2);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    prepared(1);
    closed(1, false);
    prepared(0);
    PHASE(RDZV_RUN);
    struct generation gen = seen[0].view.gen;
    hello(1, (struct who){0});
    ck_assert_int_eq(seen[1].tables, 1);
    ck_assert_int_eq(seen[1].view.phase, RDZV_RUN);
    ck_assert(generation_equal(seen[1].view.gen, gen));
}
END_TEST

START_TEST(old_statuses_are_ignored)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    struct rdzv_status old = status_of(1, MEMBER_IDLE);
    say(1, MEMBER_RUNNING);
    int views = seen[1].views;
    tell(1, old);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(seen[1].views, views);
}
END_TEST

START_TEST(a_closed_connection_is_a_lost_node)
{
    running(RDZV_C10D, 1, 2, 2, 0);
    closed(1, true);
    ck_assert_int_eq(seen[0].view.phase, RDZV_STOP);
    ck_assert_int_eq(seen[0].why.reason, STOP_NODE_LOST);
    ck_assert(seen[0].why.restarting);
    HAS(seen[0].why.text, "node n1 (10.0.0.11) was lost: its launcher is gone");
    stop_all(1);
    PHASE(RDZV_PREPARE); /* at once: no last call */
    ck_assert_int_eq(info().nnodes, 1);
    ck_assert_int_eq(info().restarts, 0);
}
END_TEST

START_TEST(a_silent_node_is_lost)
{
    running(RDZV_C10D, 1, 2, 2, 0);
    for (int i = 0; i < 2; i++) {
        tick(5);
        say(0, MEMBER_RUNNING);
        PHASE(RDZV_RUN);
    }
    tick(5);
    PHASE(RDZV_STOP);
    HAS(seen[0].why.text, "nothing heard of it for 15.0 s");
    ck_assert(seen[1].closed);
}
END_TEST

START_TEST(silence_is_not_held_against_a_node_while_we_slept)
{
    running(RDZV_C10D, 1, 2, 2, 0);
    tick(60); /* the deadline was after 15 */
    PHASE(RDZV_RUN);
    say(0, MEMBER_RUNNING);
    say(1, MEMBER_RUNNING);
    for (int i = 0; i < 3; i++) {
        PHASE(RDZV_RUN);
        say(0, MEMBER_RUNNING);
        tick(5);
    }
    PHASE(RDZV_STOP);
}
END_TEST

START_TEST(too_few_left_ends_a_job_without_restarts)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    closed(1, true);
    ck_assert(!seen[0].why.restarting);
    stop_all(1);
    PHASE(RDZV_FINISH);
    const struct rdzv_result *r = &seen[0].result;
    ck_assert_int_eq(r->exit_code, 1);
    ck_assert_int_eq(r->reason, STOP_NODE_LOST);
    HAS(r->text, "node n1 (10.0.0.11) was lost");
    ck_assert_uint_eq(r->n, 1);
    ck_assert_int_eq(seen[0].first.kind, FAILURE_NODE);
    ck_assert_int_eq(seen[0].first.pid, 101);
}
END_TEST

START_TEST(too_few_left_wait_for_another_when_there_are_restarts)
{
    running(RDZV_STATIC, 2, 2, 2, 1);
    closed(1, true);
    ck_assert(seen[0].why.restarting);
    stop_all(1);
    PHASE(RDZV_COLLECT);
    ck_assert_int_eq(seen[0].view.phase, RDZV_COLLECT);
    beat(100, (const uint32_t[]){0}, 1);
    HAS(seen[0].notice, "1 of 2 here");
    join(2, (struct who){.host = "new"});
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(seen[2].view.group_rank, 1);
    seen[1] = seen[2];
    ck_assert_int_eq(info().restarts, 0);
}
END_TEST

START_TEST(the_wait_for_another_ends)
{
    running(RDZV_STATIC, 2, 2, 2, 1);
    closed(1, true);
    stop_all(1);
    beat(600, (const uint32_t[]){0}, 1);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.reason, STOP_NODE_LOST);
    HAS(seen[0].result.text, "node n1 (10.0.0.11) was lost");
    HAS(seen[0].result.text, "only 1 of 2 nodes joined within 600 s");
    ck_assert_int_eq(seen[0].first.kind, FAILURE_NODE);
}
END_TEST

START_TEST(survivors_of_a_lost_node_are_not_charged)
{
    running(RDZV_C10D, 1, 3, 3, 3);
    T += S;
    worker_fails(1, FAILURE_EXIT, 1); /* its peer has gone, and it saw that first */
    T += 20 * MS;
    closed(2, true);
    stop_all(2);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().restarts, 0);
    ck_assert_int_eq(info().nnodes, 2);
}
END_TEST

START_TEST(a_silent_node_was_lost_before_what_followed)
{
    running(RDZV_C10D, 1, 3, 3, 3);
    tick(5);
    say(0, MEMBER_RUNNING);
    say(1, MEMBER_RUNNING);
    tick(4); /* the last of node 2 was 9 s ago */
    worker_fails(1, FAILURE_EXIT, 1);
    stop_all(2);
    PHASE(RDZV_STOP); /* node 2 has not stopped */
    tick(1);
    say(0, MEMBER_IDLE);
    say(1, MEMBER_IDLE);
    tick(5);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().restarts, 0);
}
END_TEST

START_TEST(lost_while_preparing_begins_anew)
{
    rules(RDZV_C10D, 2, 3);
    start();
    for (uint32_t i = 0; i < 3; i++)
        join(i, (struct who){.own = i == 0});
    PHASE(RDZV_PREPARE);
    prepared(0);
    closed(2, true);
    PHASE(RDZV_COLLECT);
    ck_assert_int_eq(seen[0].view.phase, RDZV_COLLECT);
    say(0, MEMBER_IDLE); /* it has let go of what it prepared */
    PHASE(RDZV_PREPARE); /* at once: the last call has been */
    ck_assert_uint_eq(info().gen.counter, 2);
    run_all(2);
}
END_TEST

START_TEST(a_late_node_is_taken_in)
{
    running(RDZV_C10D, 1, 3, 2, 0);
    join(2, (struct who){.host = "late"});
    PHASE(RDZV_STOP);
    ck_assert_int_eq(seen[0].why.reason, STOP_MEMBERSHIP);
    ck_assert(seen[0].why.restarting);
    HAS(seen[0].why.text, "node late (10.0.0.12) has joined");
    ck_assert_int_eq(seen[2].view.phase, RDZV_COLLECT);
    stop_all(2);
    PHASE(RDZV_PREPARE);
    run_all(3);
    ck_assert_int_eq(table.restart_count, 0); /* not charged */
}
END_TEST

START_TEST(a_late_node_does_not_undo_what_is_done)
{
    running(RDZV_C10D, 1, 3, 2, 0);
    say(0, MEMBER_DONE);
    join(2, (struct who){0});
    PHASE(RDZV_RUN);
    ck_assert(seen[2].view.spare);
    say(1, MEMBER_DONE);
    ck_assert_int_eq(seen[2].reports, 1); /* the spare is told, too */
    ck_assert_int_eq(seen[2].result.exit_code, 0);
}
END_TEST

START_TEST(a_late_node_while_preparing_is_taken_in_without_a_stop)
{
    rules(RDZV_C10D, 2, 3);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    T += 30 * S;
    say(0, MEMBER_IDLE);
    say(1, MEMBER_IDLE);
    tick(0);
    prepared(0);
    join(2, (struct who){0});
    PHASE(RDZV_COLLECT);
    say(0, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 3);
    run_all(3);
}
END_TEST

START_TEST(one_that_was_given_up_stops_and_comes_back)
{
    running(RDZV_C10D, 1, 2, 2, 0);
    for (int i = 0; i < 3; i++) {
        tick(5);
        say(0, MEMBER_RUNNING);
    }
    PHASE(RDZV_STOP); /* node 1 was silent */
    say(0, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    hello(1, (struct who){0}); /* it wakes up */
    struct rdzv_status st = status_of(1, MEMBER_RUNNING);
    st.gen = (struct generation){0xabc, 1};
    tell(1, st);
    ck_assert_int_eq(seen[1].view.phase, RDZV_COLLECT);
    ck_assert_int_eq(seen[1].view.group_rank, -1);
    HAS(seen[1].why.text, "given up");
    PHASE(RDZV_PREPARE); /* not with it as long as its workers live */
    st.phase = MEMBER_IDLE;
    st.workers = false;
    st.send_ns++;
    tell(1, st);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 2);
}
END_TEST

START_TEST(a_done_node_may_go)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    say(1, MEMBER_DONE);
    closed(1, true);
    PHASE(RDZV_RUN);
    say(0, MEMBER_DONE);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.exit_code, 0);
}
END_TEST

/* ------------------------------------------------------------------------------------- leaving */

START_TEST(leave_by_signal_goes_on_without_it)
{
    running(RDZV_C10D, 1, 2, 2, 0);
    leave(1, STOP_SIGNAL, 143, "received SIGTERM", true);
    ck_assert_int_eq(seen[0].view.phase, RDZV_STOP);
    ck_assert_int_eq(seen[0].why.reason, STOP_MEMBERSHIP);
    ck_assert_int_ne(seen[1].view.phase, RDZV_RELEASE); /* it still has workers */
    leave(1, STOP_SIGNAL, 143, "received SIGTERM", false);
    ck_assert_int_eq(seen[1].view.phase, RDZV_RELEASE);
    closed(1, true);
    LACKS(logs, "was lost");
    say(0, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 1);
    ck_assert_int_eq(info().restarts, 0);
}
END_TEST

START_TEST(leave_by_signal_ends_a_job_that_needs_it)
{
    running(RDZV_STATIC, 2, 2, 2, 7);
    leave(1, STOP_SIGNAL, 143, "received SIGTERM", true);
    ck_assert_int_eq(seen[0].why.reason, STOP_SIGNAL);
    ck_assert(!seen[0].why.restarting);
    leave(1, STOP_SIGNAL, 143, "received SIGTERM", false);
    ck_assert_int_ne(seen[1].view.phase, RDZV_RELEASE);
    say(0, MEMBER_IDLE);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(seen[i].result.exit_code, 143);
        ck_assert_int_eq(seen[i].result.reason, STOP_SIGNAL);
        ck_assert_str_eq(seen[i].result.text, "received SIGTERM");
        ck_assert_uint_eq(seen[i].result.n, 0);
    }
}
END_TEST

START_TEST(leave_of_the_last_that_is_needed_while_stopping)
{
    running(RDZV_C10D, 2, 3, 3, 0);
    leave(1, STOP_SIGNAL, 143, "first", true);
    ck_assert(seen[0].why.restarting);
    leave(2, STOP_SIGNAL, 130, "second", true);
    leave(1, STOP_SIGNAL, 143, "first", false);
    leave(2, STOP_SIGNAL, 130, "second", false);
    say(0, MEMBER_IDLE);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.exit_code, 130);
}
END_TEST

START_TEST(leave_by_timeout_or_request_ends_the_job_for_all)
{
    static const struct {
        enum stop_reason reason;
        int code;
    } cases[] = {{STOP_TIMEOUT, 124}, {STOP_REQUEST, 130}};
    for (size_t i = 0; i < 2; i++) {
        running(RDZV_C10D, 1, 3, 3, 7);
        leave(2, cases[i].reason, cases[i].code, "enough", true);
        ck_assert_int_eq(seen[0].why.reason, cases[i].reason);
        ck_assert(!seen[0].why.restarting);
        leave(2, cases[i].reason, cases[i].code, "enough", false);
        stop_all(2);
        PHASE(RDZV_FINISH);
        ck_assert_int_eq(seen[0].result.exit_code, cases[i].code);
        if (i == 0)
            rdzv_state_free(S_);
    }
}
END_TEST

START_TEST(leave_of_the_coordinators_own_ends_the_job)
{
    running(RDZV_C10D, 1, 3, 3, 7);
    leave(0, STOP_SIGNAL, 143, "received SIGTERM", true);
    leave(0, STOP_SIGNAL, 143, "received SIGTERM", false);
    ck_assert(!seen[1].why.restarting);
    stop_all(3);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[1].result.exit_code, 143);
}
END_TEST

START_TEST(leave_while_waiting)
{
    rules(RDZV_STATIC, 3, 3);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){.rank1 = 2});
    leave(1, STOP_SIGNAL, 130, "received SIGINT", false);
    ck_assert_int_eq(seen[1].view.phase, RDZV_RELEASE);
    closed(1, true);
    PHASE(RDZV_COLLECT);
    join(2, (struct who){.rank1 = 2}); /* its place is free */
    ck_assert(!seen[2].refused);
    leave(0, STOP_SIGNAL, 130, "received SIGINT", false);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[2].result.exit_code, 130);
}
END_TEST

START_TEST(leave_while_preparing)
{
    rules(RDZV_C10D, 2, 3);
    start();
    for (uint32_t i = 0; i < 3; i++)
        join(i, (struct who){.own = i == 0});
    prepared(2);
    leave(2, STOP_INTERNAL, 1, "no memory", false);
    ck_assert_int_eq(seen[2].view.phase, RDZV_RELEASE);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 2);
}
END_TEST

START_TEST(leave_of_a_node_that_is_done)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    say(1, MEMBER_DONE);
    leave(1, STOP_SIGNAL, 143, "received SIGTERM", false);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(seen[1].view.phase, RDZV_RELEASE);
    closed(1, true);
    say(0, MEMBER_DONE);
    ck_assert_int_eq(seen[0].result.exit_code, 0);
}
END_TEST

START_TEST(leave_of_a_spare)
{
    running(RDZV_C10D, 2, 2, 2, 0);
    join(2, (struct who){0});
    leave(2, STOP_SIGNAL, 143, "received SIGTERM", false);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(seen[2].view.phase, RDZV_RELEASE);
}
END_TEST

/* --------------------------------------------------------------------------------------- cost */

START_TEST(thousands_of_nodes_cost_little)
{
    enum { N = 8192 };
    rules(RDZV_STATIC, N, N);
    R.max_restarts = 1;
    start();
    log_init(LOG_LEVEL_NOTICE, NULL);
    struct rdzv_hello h = {.backend = RDZV_STATIC,
                           .min_nodes = N,
                           .max_nodes = N,
                           .max_restarts = 1,
                           .agent_store = true,
                           .node_rank = -1,
                           .nproc = 8,
                           .run_id = "job",
                           .version = "0.1",
                           .role = "default"};
    struct rdzv_peer p = {.via = "10.0.0.1"};
    struct rdzv_action a;
    struct rdzv_status st = {.phase = MEMBER_IDLE};
    size_t views = 0, tables = 0;
    for (uint32_t i = 0; i < N; i++) {
        memcpy(h.id.b, &i, sizeof(i));
        snprintf(h.host, sizeof(h.host), "node%u", (i * 2654435761u) % N);
        snprintf(p.addr, sizeof(p.addr), "10.1.%u.%u", i / 256, i % 256);
        rdzv_state_hello(S_, i, &h, &p, T);
        st.send_ns = 1;
        rdzv_state_status(S_, i, &st, T);
        while (rdzv_state_next(S_, &a, T))
            views += a.act == RDZV_ACT_VIEW;
    }
    PHASE(RDZV_PREPARE);
    st = (struct rdzv_status){.phase = MEMBER_PREPARED, .gen = info().gen, .send_ns = 2};
    for (uint32_t i = 0; i < N; i++) {
        rdzv_state_status(S_, i, &st, T);
        while (rdzv_state_next(S_, &a, T))
            tables += a.act == RDZV_ACT_TABLE;
    }
    ck_assert_uint_eq(tables, N);
    PHASE(RDZV_RUN);
    st = (struct rdzv_status){.phase = MEMBER_DONE, .gen = info().gen, .send_ns = 3};
    for (uint32_t i = 0; i < N; i++)
        rdzv_state_status(S_, i, &st, T);
    for (uint32_t i = 0; i < N; i++)
        rdzv_state_closed(S_, i, true, T);
    while (rdzv_state_next(S_, &a, T))
        finished |= a.act == RDZV_ACT_FINISHED;
    PHASE(RDZV_FINISH);
}
END_TEST

static TCase *rules_case(Suite *s, const char *name, double timeout)
{
    TCase *tc = test_case(s, name, timeout);
    tcase_add_checked_fixture(tc, NULL, teardown);
    return tc;
}

static Suite *suite(void)
{
    Suite *s = suite_create("rdzv_state");
    TCase *tc = rules_case(s, "join", 10);
    tcase_add_test(tc, complete_set_starts_at_once);
    tcase_add_test(tc, nothing_runs_before_all_are_prepared);
    tcase_add_test(tc, last_call_waits_for_more);
    tcase_add_test(tc, last_call_ends_when_all_are_there);
    tcase_add_test(tc, last_call_is_called_off_when_too_few_are_left);
    tcase_add_test(tc, join_timeout_names_who_is_missing);
    tcase_add_test(tc, waiting_is_told_every_few_seconds);
    tcase_add_test(tc, a_long_list_of_nodes_is_bounded);
    tcase_add_test(tc, those_who_do_not_fit_are_turned_away);
    tcase_add_test(tc, another_backend_is_turned_away);
    tcase_add_test(tc, the_same_refusal_is_logged_once_in_a_while);
    tcase_add_test(tc, small_differences_are_warned_about);
    tcase_add_test(tc, static_job_that_is_complete_takes_nobody);
    tcase_add_test(tc, a_holder_that_is_silent_is_not_believed_to_be_there);
    tcase_add_test(tc, those_who_come_after_the_end_may_try_again);
    tcase_add_test(tc, spares_are_bounded);
    tc = rules_case(s, "ranks", 10);
    tcase_add_test(tc, natural_order_of_host_names);
    tcase_add_test(tc, rank_order_without_wishes);
    tcase_add_test(tc, rank_that_was_asked_for_is_given);
    tcase_add_test(tc, ranks_are_dense_when_some_are_missing);
    tcase_add_test(tc, ranks_stay_over_restarts);
    tcase_add_test(tc, a_new_node_takes_the_place_of_the_lost_one);
    tcase_add_test(tc, too_many_nodes_leave_the_newest_out);
    tc = rules_case(s, "table", 10);
    tcase_add_test(tc, addresses_on_several_hosts);
    tcase_add_test(tc, addresses_on_one_host);
    tcase_add_test(tc, addresses_that_were_given);
    tcase_add_test(tc, master_addr_as_the_user_gave_it);
    tcase_add_test(tc, master_of_programs_that_listen_themselves);
    tcase_add_test(tc, unequal_nodes_and_roles);
    tcase_add_test(tc, ports_must_be_as_many_as_workers);
    tc = rules_case(s, "failure", 10);
    tcase_add_test(tc, all_done_is_success);
    tcase_add_test(tc, finish_does_not_wait_for_ever);
    tcase_add_test(tc, failure_stops_everybody_at_once);
    tcase_add_test(tc, restarts_are_charged_to_the_job);
    tcase_add_test(tc, restart_waits_for_the_backoff);
    tcase_add_test(tc, exec_failures_are_never_retried);
    tcase_add_test(tc, first_cause_is_found_over_all_nodes);
    tcase_add_test(tc, clock_offsets_put_failures_on_one_clock);
    tcase_add_test(tc, failures_are_taken_once);
    tcase_add_test(tc, failures_of_others_are_not_believed);
    tcase_add_test(tc, failure_when_others_are_done);
    tcase_add_test(tc, report_is_bounded_and_counts_the_rest);
    tcase_add_test(tc, a_node_that_stops_without_a_reason);
    tc = rules_case(s, "worker policy", 10);
    tcase_add_test(tc, only_the_failed_worker_is_respawned);
    tcase_add_test(tc, respawn_waits_for_the_backoff);
    tcase_add_test(tc, exec_failure_is_not_respawned);
    tc = rules_case(s, "membership", 10);
    tcase_add_test(tc, a_connection_that_breaks_and_comes_back_resumes);
    tcase_add_test(tc, a_connection_is_replaced_before_its_end_is_seen);
    tcase_add_test(tc, one_that_missed_the_table_gets_it_when_it_is_back);
    tcase_add_test(tc, old_statuses_are_ignored);
    tcase_add_test(tc, a_closed_connection_is_a_lost_node);
    tcase_add_test(tc, a_silent_node_is_lost);
    tcase_add_test(tc, silence_is_not_held_against_a_node_while_we_slept);
    tcase_add_test(tc, too_few_left_ends_a_job_without_restarts);
    tcase_add_test(tc, too_few_left_wait_for_another_when_there_are_restarts);
    tcase_add_test(tc, the_wait_for_another_ends);
    tcase_add_test(tc, survivors_of_a_lost_node_are_not_charged);
    tcase_add_test(tc, a_silent_node_was_lost_before_what_followed);
    tcase_add_test(tc, lost_while_preparing_begins_anew);
    tcase_add_test(tc, a_late_node_is_taken_in);
    tcase_add_test(tc, a_late_node_does_not_undo_what_is_done);
    tcase_add_test(tc, a_late_node_while_preparing_is_taken_in_without_a_stop);
    tcase_add_test(tc, one_that_was_given_up_stops_and_comes_back);
    tcase_add_test(tc, a_done_node_may_go);
    tc = rules_case(s, "leave", 10);
    tcase_add_test(tc, leave_by_signal_goes_on_without_it);
    tcase_add_test(tc, leave_by_signal_ends_a_job_that_needs_it);
    tcase_add_test(tc, leave_of_the_last_that_is_needed_while_stopping);
    tcase_add_test(tc, leave_by_timeout_or_request_ends_the_job_for_all);
    tcase_add_test(tc, leave_of_the_coordinators_own_ends_the_job);
    tcase_add_test(tc, leave_while_waiting);
    tcase_add_test(tc, leave_while_preparing);
    tcase_add_test(tc, leave_of_a_node_that_is_done);
    tcase_add_test(tc, leave_of_a_spare);
    tc = rules_case(s, "cost", 5);
    tcase_add_test(tc, thousands_of_nodes_cost_little);
    return s;
}

TEST_MAIN(suite)
