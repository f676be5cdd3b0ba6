#include "tests/lib/rdzv_script.h"

struct rdzv_state *state;
struct rdzv_rules next_rules;
uint64_t now_ns;
struct seen seen[CONNS];
int rounds;
bool finished;
char logs[65536];
struct rank_table table;
void drain(void)
{
    struct rdzv_action a;
    rdzv_state_check(state);
    while (rdzv_state_next(state, &a, now_ns)) {
        struct seen *c = &seen[a.conn];
        switch (a.act) {
        case RDZV_ACT_LOG:
            strncat(logs, a.text, sizeof(logs) - strlen(logs) - 2);
            strcat(logs, "\n");
            break;
        case RDZV_ACT_EVENT:
            break;
        case RDZV_ACT_NEW_ROUND:
            rounds++;
            break;
        case RDZV_ACT_TABLE:
            c->tables++;
            table = *a.table;
            break;
        case RDZV_ACT_PEERS:
            c->lists++;
            c->list = *a.peers;
            c->ran = a.ran ? *a.ran : (struct rdzv_peers){.n = 0};
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

void rules(enum rdzv_backend backend, int min, int max)
{
    next_rules = (struct rdzv_rules){.backend = backend,
                                     .run_id = "job",
                                     .version = "0.1",
                                     .min_nodes = min,
                                     .max_nodes = max,
                                     .max_node_restarts = -1,
                                     .join_ns = 600 * SEC,
                                     .last_call_ns = 30 * SEC,
                                     .close_ns = 30 * SEC,
                                     .heartbeat_ns = 5 * SEC,
                                     .dead_ns = 15 * SEC,
                                     .agent_store = true,
                                     .bound_addr = "",
                                     .port = 29500,
                                     .local_addr = ""};
}

void start(void)
{
    now_ns = 1000 * SEC;
    log_init(LOG_LEVEL_VERBOSE, NULL);
    state = rdzv_state_new(&next_rules, 0xabc, now_ns);
}

void teardown(void)
{
    rdzv_state_free(state);
}

void hello(uint32_t conn, struct who w)
{
    struct rdzv_hello h = {.backend = next_rules.backend,
                           .min_nodes = w.min ? w.min : next_rules.min_nodes,
                           .max_nodes = w.max ? w.max : next_rules.max_nodes,
                           .max_restarts = w.restarts1 ? w.restarts1 - 1 : next_rules.max_restarts,
                           .restart_policy = w.policy ? w.policy : next_rules.restart_policy,
                           .mpi = w.mpi,
                           .agent_store = w.no_store ? false : next_rules.agent_store,
                           .relay = w.relay,
                           .pid = w.pid ? w.pid : 100 + (int)conn,
                           .node_rank = w.rank1 - 1,
                           .prev_rank = -1,
                           .peer_port = w.peer_port,
                           .seen_epoch = w.seen_epoch,
                           .nproc = w.witness ? 0
                                    : w.nproc ? w.nproc
                                              : 2};
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
    rdzv_state_hello(state, conn, &h, &p, now_ns);
    drain();
}

struct rdzv_status status_of(uint32_t conn, enum member_phase phase)
{
    seen[conn].clock += MSEC;
    return (struct rdzv_status){.phase = phase,
                                .workers = phase == MEMBER_RUNNING || phase == MEMBER_STOPPING,
                                .gen = seen[conn].view.gen,
                                .send_ns = 7 * SEC + seen[conn].clock};
}

void tell(uint32_t conn, struct rdzv_status st)
{
    rdzv_state_status(state, conn, &st, now_ns);
    drain();
}

void say(uint32_t conn, enum member_phase phase)
{
    tell(conn, status_of(conn, phase));
}

void join(uint32_t conn, struct who w)
{
    hello(conn, w);
    say(conn, MEMBER_IDLE);
}

void prepared(uint32_t conn)
{
    struct rdzv_status st = status_of(conn, MEMBER_PREPARED);
    st.free_port = 40000 + (int)conn;
    tell(conn, st);
}

void run_all(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        prepared(i);
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_int_eq(seen[i].view.phase, RDZV_RUN);
        say(i, MEMBER_RUNNING);
    }
}

void stop_all(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (seen[i].view.phase == RDZV_STOP)
            say(i, MEMBER_IDLE);
    }
}

void running_by_rules(uint32_t n)
{
    int max = next_rules.max_nodes;
    start();
    for (uint32_t i = 0; i < n; i++)
        join(i, (struct who){.own = i == 0});
    if ((int)n < max) {
        now_ns += 30 * SEC;
        for (uint32_t i = 0; i < n; i++)
            say(i, MEMBER_IDLE);
        rdzv_state_tick(state, now_ns);
        drain();
    }
    run_all(n);
}

void running(enum rdzv_backend backend, int min, int max, uint32_t n, int max_restarts)
{
    rules(backend, min, max);
    next_rules.max_restarts = max_restarts;
    running_by_rules(n);
}

void elastic(int min, int max, uint32_t n)
{
    rules(RDZV_C10D, min, max);
    next_rules.elastic = true;
    running_by_rules(n);
}

struct failure failure_of(int local_rank, enum failure_kind kind, int code_or_signal)
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

void tell_failures(uint32_t conn, enum member_phase phase, uint32_t seq, const struct failure *f,
                   int n, uint64_t ago)
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

void worker_fails(uint32_t conn, enum failure_kind kind, int code_or_signal)
{
    struct failure f = failure_of(0, kind, code_or_signal);
    static uint32_t seq;
    tell_failures(conn, MEMBER_STOPPING, ++seq, &f, 1, 0);
}

void leave(uint32_t conn, enum stop_reason reason, int code, const char *text, bool workers)
{
    struct rdzv_status st = status_of(conn, MEMBER_LEAVING);
    st.workers = workers;
    st.leave_reason = reason;
    st.leave_code = code;
    strcpy(st.leave_text, text);
    tell(conn, st);
}

void closed(uint32_t conn, enum rdzv_end how)
{
    rdzv_state_closed(state, conn, how, now_ns);
    drain();
}

void tick_ms(uint64_t ms)
{
    now_ns += ms * MSEC;
    rdzv_state_tick(state, now_ns);
    drain();
}

void tick(uint64_t seconds)
{
    now_ns += seconds * SEC;
    rdzv_state_tick(state, now_ns);
    drain();
}

struct rdzv_state_info info(void)
{
    struct rdzv_state_info i;
    rdzv_state_get_info(state, &i);
    return i;
}

void beat(uint64_t seconds, const uint32_t *conns, int n)
{
    for (uint64_t end = now_ns + seconds * SEC; now_ns < end;) {
        now_ns += 5 * SEC;
        for (int i = 0; i < n; i++)
            say(conns[i], MEMBER_IDLE);
        rdzv_state_tick(state, now_ns);
        drain();
    }
}

TCase *rules_case(Suite *s, const char *name, double timeout)
{
    TCase *tc = test_case(s, name, timeout);
    tcase_add_checked_fixture(tc, NULL, teardown);
    return tc;
}
