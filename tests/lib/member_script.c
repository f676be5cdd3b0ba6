#include "tests/lib/member_script.h"

struct member_state *self;
uint64_t now_ns;
struct generation round_gen;
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
    member_state_check(self);
    while (member_state_next(self, &a, now_ns)) {
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
                                 .join_ns = 600 * SEC,
                                 .read_ns = 60 * SEC,
                                 .heartbeat_ns = 5 * SEC,
                                 .dead_ns = 15 * SEC};
    rules.lease = lease;
    rules.hello.nproc = 2;
    rules.hello.id = (struct node_id){{2}};
    rules.hello.restart_policy = policy;
    now_ns = 1000 * SEC;
    round_gen = (struct generation){7, 0};
    log_init(LOG_LEVEL_VERBOSE, NULL);
    self = member_state_new(&rules, now_ns);
}

void setup(void)
{
    make(RESTART_GROUP, false);
}

void teardown(void)
{
    member_state_free(self);
}

struct rdzv_view view_of(enum rdzv_phase phase, int group_rank)
{
    struct rdzv_view v = {.phase = phase,
                          .gen = round_gen,
                          .group_rank = group_rank,
                          .nnodes = group_rank < 0 ? 0 : 2,
                          .sent_ns = now_ns,
                          .echo_ns = status.send_ns,
                          .heartbeat_ms = 5000,
                          .dead_ms = 15000};
    static const struct rdzv_stop failed = {
        .reason = STOP_FAILURE, .restarting = true, .text = "worker 3 failed"};
    if (phase == RDZV_STOP) {
        v.why = &failed;
        v.why_counter = round_gen.counter;
    }
    return v;
}

void view(enum rdzv_phase phase, int group_rank)
{
    struct rdzv_view v = view_of(phase, group_rank);
    member_state_view(self, &v, now_ns);
}

void table(void)
{
    struct rank_table t;
    rank_table_init(&t);
    ck_assert_int_eq(rank_table_alloc(&t, 2), 0);
    t.nodes[0].nproc = t.nodes[1].nproc = 2;
    t.gen = round_gen;
    ck_assert_int_eq(rank_table_compute(&t, NULL), 0);
    member_state_table(self, &t);
    ck_assert_ptr_null(t.nodes); /* taken, or freed */
}

void connected(void)
{
    member_state_connected(self, now_ns);
    OUT("hs");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
}

void prepared(void)
{
    round_gen.counter++;
    view(RDZV_PREPARE, 1);
    OUT("ps");
    ck_assert(generation_equal(last.gen, round_gen) || last.act == MEMBER_ACT_STATUS);
    member_state_prepared(self, (const uint16_t[]){1000, 1001}, 2, 5000);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_PREPARED);
    ck_assert(generation_equal(status.gen, round_gen));
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
    f.seen_ns = now_ns;
    return f;
}

void refused(bool retry, const char *text)
{
    struct rdzv_refusal r = {.retry = retry};
    strcpy(r.text, text);
    member_state_refused(self, &r, now_ns);
}

void report(int exit_code, const char *text)
{
    struct rdzv_result r = {.exit_code = exit_code, .reason = STOP_FAILURE};
    strcpy(r.text, text);
    member_state_report(self, &r);
}

void pass(uint64_t ns)
{
    uint64_t end = now_ns + ns;
    while (member_state_deadline(self) <= end) {
        now_ns = member_state_deadline(self) > now_ns ? member_state_deadline(self) : now_ns + 1;
        member_state_tick(self, now_ns);
        drain();
        if (strchr(out, 'd') || strchr(out, 'x') || strchr(out, 'f'))
            return;
    }
    now_ns = end;
}

void make_on_lease(void)
{
    member_state_free(self);
    make(RESTART_GROUP, true);
}

void running_on_lease(void)
{
    make_on_lease();
    connected();
    round_gen.counter++;
    struct rdzv_view v = view_of(RDZV_PREPARE, 1);
    v.lease = true;
    v.echo_ns = now_ns;
    member_state_view(self, &v, now_ns);
    drain();
    member_state_prepared(self, NULL, 0, 0);
    drain();
    table();
    v.phase = RDZV_RUN;
    member_state_view(self, &v, now_ns);
    OUT("rs");
}
