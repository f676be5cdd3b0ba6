#include "tests/lib/member_script.h"

struct member_state *M;
uint64_t T;
struct generation G;
char out[1024];
struct rdzv_hello said;
struct rdzv_peers told;
struct rdzv_status status;
struct member_action last;
struct rdzv_stop stopped;
struct rdzv_result result;
char line[1024];
bool closed_in_order;
int respawned_rank;

void drain(void)
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
            stopped = *a.why;
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

void make(enum restart_policy policy, bool lease)
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

void setup(void)
{
    make(RESTART_GROUP, false);
}

void teardown(void)
{
    member_state_free(M);
}

struct rdzv_view view_of(enum rdzv_phase phase, int group_rank)
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

void view(enum rdzv_phase phase, int group_rank)
{
    struct rdzv_view v = view_of(phase, group_rank);
    member_state_view(M, &v, T);
}

void table(void)
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

void connected(void)
{
    member_state_connected(M, T);
    OUT("hs");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
}

void prepared(void)
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

void running(void)
{
    connected();
    prepared();
    table();
    view(RDZV_RUN, 1);
    OUT("rs");
    ck_assert_int_eq(status.phase, MEMBER_RUNNING);
    ck_assert(status.workers);
}

struct failure failure_of(int local_rank, enum failure_kind kind)
{
    struct failure f;
    failure_init(&f);
    f.kind = kind;
    f.local_rank = local_rank;
    f.exit_code = 3;
    f.seen_ns = T;
    return f;
}

void refused(bool retry, const char *text)
{
    struct rdzv_refusal r = {.retry = retry};
    strcpy(r.text, text);
    member_state_refused(M, &r, T);
}

void report(int exit_code, const char *text)
{
    struct rdzv_result r = {.exit_code = exit_code, .reason = STOP_FAILURE};
    strcpy(r.text, text);
    member_state_report(M, &r);
}

void pass(uint64_t ns)
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

void make_on_lease(void)
{
    member_state_free(M);
    make(RESTART_GROUP, true);
}

void running_on_lease(void)
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
