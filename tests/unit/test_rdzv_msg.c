/* The rendezvous' messages: what is written is read, what is malformed is not. */
#include "tests/lib/test.h"

#include <string.h>

#include "rendezvous/rules/rdzv_msg.h"

static struct buf B;

static void teardown(void)
{
    buf_fini(&B);
}

/* The body of the one frame in B. */
static struct rd body_of(enum rdzv_msg type)
{
    struct rd r = rd_init(B.data, B.len);
    ck_assert_uint_eq(rd_u32(&r), B.len - 4);
    ck_assert_uint_eq(rd_u8(&r), type);
    return r;
}

static struct failure some_failure(void)
{
    struct failure f;
    failure_init(&f);
    f.kind = FAILURE_SIGNAL;
    f.rank = 5;
    f.local_rank = 1;
    f.signal = 11;
    strcpy(f.host, "gpu-b");
    strcpy(f.stderr_tail, "a\nb\n");
    return f;
}

START_TEST(preamble)
{
    rdzv_put_preamble(&B);
    ck_assert_uint_eq(B.len, RDZV_PREAMBLE_LEN);
    ck_assert_uint_eq(rdzv_get_preamble(B.data), RDZV_PROTOCOL);
    B.data[3] = '2';
    ck_assert_uint_eq(rdzv_get_preamble(B.data), 0);
}
END_TEST

static struct rdzv_hello some_hello(void)
{
    struct rdzv_hello h = {.backend = RDZV_FILE,
                           .min_nodes = 2,
                           .max_nodes = 8,
                           .max_restarts = 3,
                           .restart_policy = RESTART_WORKER,
                           .agent_store = true,
                           .pid = 4711,
                           .node_rank = -1,
                           .nproc = NPROC_MAX};
    memset(h.id.b, 0xab, sizeof(h.id.b));
    memset(h.run_id, 'r', sizeof(h.run_id) - 1);
    memset(h.host, 'h', sizeof(h.host) - 1);
    memset(h.role, 'o', sizeof(h.role) - 1);
    memset(h.local_addr, 'l', sizeof(h.local_addr) - 1);
    memset(h.version, 'v', sizeof(h.version) - 1);
    return h;
}

START_TEST(hello)
{
    struct rdzv_hello h = some_hello(), g;
    memset(&g, 0, sizeof(g));
    rdzv_put_hello(&B, &h);
    ck_assert_uint_le(B.len - 4, RDZV_FRAME_MAX_FIRST); /* the longest fits where it must */
    struct rd r = body_of(RDZV_MSG_HELLO);
    ck_assert(rdzv_get_hello(&r, &g));
    ck_assert(node_id_equal(&h.id, &g.id));
    ck_assert_str_eq(g.run_id, h.run_id);
    ck_assert_str_eq(g.host, h.host);
    ck_assert_str_eq(g.role, h.role);
    ck_assert_str_eq(g.local_addr, h.local_addr);
    ck_assert_str_eq(g.version, h.version);
    ck_assert_int_eq(g.backend, RDZV_FILE);
    ck_assert_int_eq(g.restart_policy, RESTART_WORKER);
    ck_assert_int_eq(g.min_nodes, 2);
    ck_assert_int_eq(g.max_nodes, 8);
    ck_assert_int_eq(g.max_restarts, 3);
    ck_assert_int_eq(g.pid, 4711);
    ck_assert_int_eq(g.node_rank, -1);
    ck_assert_int_eq(g.nproc, NPROC_MAX);
    ck_assert(g.agent_store && !g.relay);
    h.relay = true;
    B.len = 0;
    rdzv_put_hello(&B, &h);
    r = body_of(RDZV_MSG_HELLO);
    ck_assert(rdzv_get_hello(&r, &g));
    ck_assert(g.agent_store && g.relay);
    ck_assert_int_eq(g.mpi, MPI_NONE);
    h.restart_policy = RESTART_GROUP;
    for (int kind = MPI_NONE; kind < MPI_KINDS; kind++) {
        h.mpi = (enum mpi_kind)kind;
        B.len = 0;
        rdzv_put_hello(&B, &h);
        r = body_of(RDZV_MSG_HELLO);
        ck_assert(rdzv_get_hello(&r, &g));
        ck_assert_int_eq(g.mpi, kind);
        ck_assert_int_eq(g.restart_policy, RESTART_GROUP);
    }
}
END_TEST

START_TEST(lists_of_peers)
{
    struct rdzv_peer_entry e[3] = {{.addr = "10.0.0.1", .port = 65535, .host = true},
                                   {.addr = "fe80::1", .port = 1},
                                   {.addr = ""}};
    struct rdzv_peers p = {.gen = {7, 9}, .ran = true, .n = 3, .e = e}, got = {0};
    for (int i = 0; i < 3; i++)
        memset(e[i].id.b, i + 1, sizeof(e[i].id.b));
    rdzv_put_peers(&B, &p);
    struct rd r = body_of(RDZV_MSG_PEERS), whole = r;
    ck_assert(rdzv_get_peers(&r, &got));
    ck_assert(generation_equal(got.gen, p.gen) && got.ran && got.n == 3);
    for (int i = 0; i < 3; i++) {
        ck_assert(node_id_equal(&got.e[i].id, &e[i].id) && got.e[i].host == e[i].host);
        ck_assert_str_eq(got.e[i].addr, e[i].addr);
        ck_assert_int_eq(got.e[i].port, e[i].port);
        ck_assert_int_eq(rdzv_peers_find(&got, &e[i].id), i);
    }
    rdzv_peers_fini(&got);
    for (size_t cut = 0; cut < (size_t)(whole.end - whole.p); cut++) { /* every shorter one */
        struct rd part = rd_init(whole.p, cut);
        ck_assert(!rdzv_get_peers(&part, &got));
        ck_assert_ptr_null(got.e);
    }
    B.len = 0;
    p.n = 0;
    rdzv_put_peers(&B, &p);
    buf_set_u32(&B, 4 + 1 + 13, 1000000); /* so many are not there */
    r = body_of(RDZV_MSG_PEERS);
    ck_assert(!rdzv_get_peers(&r, &got));
}
END_TEST

START_TEST(hello_that_cannot_be)
{
    for (int i = 0; i < 9; i++) {
        struct rdzv_hello h = some_hello(), g;
        int *const fields[] = {&h.min_nodes, &h.max_nodes, &h.nproc,
                               &h.pid,       &h.node_rank, &h.max_restarts};
        static const int bad[] = {0, NNODES_MAX + 1, NPROC_MAX + 1, -1, -2, -1};
        if (i < 6)
            *fields[i] = bad[i];
        else if (i == 6)
            h.min_nodes = h.max_nodes + 1;
        else if (i == 7)
            h.backend = (enum rdzv_backend)9;
        else
            h.mpi = (enum mpi_kind)MPI_KINDS;
        B.len = 0;
        rdzv_put_hello(&B, &h);
        struct rd r = body_of(RDZV_MSG_HELLO);
        ck_assert_msg(!rdzv_get_hello(&r, &g), "case %d", i);
    }
}
END_TEST

START_TEST(status)
{
    struct failure f = some_failure(), got;
    struct buf failures = BUF_INIT;
    failure_encode(&failures, &f);
    failure_encode(&failures, &f);
    const uint8_t ports[] = {1, 2, 3, 4, 5, 6};
    struct rdzv_status m = {.phase = MEMBER_LEAVING,
                            .workers = true,
                            .gen = {UINT64_MAX, UINT32_MAX},
                            .send_ns = 1,
                            .view_sent_ns = 2,
                            .view_seen_ns = 3,
                            .respawned = 4,
                            .nports = 3,
                            .ports = ports,
                            .free_port = 65535,
                            .leave_reason = STOP_TIMEOUT,
                            .leave_code = 124,
                            .leave_text = "too long",
                            .failures_total = 9,
                            .first_seq = 7,
                            .nfailures = 2,
                            .failures = failures.data,
                            .failures_len = failures.len},
                       n;
    rdzv_put_status(&B, &m);
    struct rd r = body_of(RDZV_MSG_STATUS);
    ck_assert(rdzv_get_status(&r, &n));
    ck_assert_int_eq(n.phase, MEMBER_LEAVING);
    ck_assert(n.workers);
    ck_assert(generation_equal(n.gen, m.gen));
    ck_assert_uint_eq(n.send_ns, 1);
    ck_assert_uint_eq(n.view_sent_ns, 2);
    ck_assert_uint_eq(n.view_seen_ns, 3);
    ck_assert_uint_eq(n.respawned, 4);
    ck_assert_int_eq(memcmp(n.ports, ports, sizeof(ports)), 0);
    ck_assert_int_eq(n.free_port, 65535);
    ck_assert_int_eq(n.leave_reason, STOP_TIMEOUT);
    ck_assert_int_eq(n.leave_code, 124);
    ck_assert_str_eq(n.leave_text, "too long");
    ck_assert_uint_eq(n.failures_total, 9);
    ck_assert_uint_eq(n.first_seq, 7);
    struct rd inner = rd_init(n.failures, n.failures_len);
    for (int i = 0; i < n.nfailures; i++)
        ck_assert(failure_decode(&inner, &got));
    ck_assert(rd_done(&inner));
    ck_assert_str_eq(got.stderr_tail, f.stderr_tail);
    for (size_t len = 0; len < (size_t)(r.end - (B.data + 5)); len++) { /* cut short anywhere */
        struct rd cut = rd_init(B.data + 5, len);
        ck_assert(!rdzv_get_status(&cut, &n));
    }
    buf_fini(&failures);
}
END_TEST

START_TEST(view)
{
    const struct rdzv_respawn orders[2] = {{1, 0, 1}, {2, 7, 3}};
    struct rdzv_stop why = {.reason = STOP_NODE_LOST,
                            .restarting = true,
                            .text = "gone",
                            .has_first = true,
                            .first = some_failure()};
    struct rdzv_view m = {.phase = RDZV_STOP,
                          .gen = {5, 6},
                          .group_rank = 3,
                          .nnodes = 4,
                          .restart_count = 2,
                          .sent_ns = 10,
                          .echo_ns = 11,
                          .acked = 12,
                          .heartbeat_ms = 5000,
                          .dead_ms = 15000,
                          .spare = true,
                          .why = &why,
                          .why_counter = 6,
                          .nrespawns = 2,
                          .respawns = orders},
                     n;
    rdzv_put_view(&B, &m);
    struct rd r = body_of(RDZV_MSG_VIEW);
    ck_assert(rdzv_get_view(&r, &n));
    ck_assert_int_eq(n.phase, RDZV_STOP);
    ck_assert_int_eq(n.group_rank, 3);
    ck_assert_int_eq(n.nnodes, 4);
    ck_assert_int_eq(n.restart_count, 2);
    ck_assert_uint_eq(n.echo_ns, 11);
    ck_assert_uint_eq(n.acked, 12);
    ck_assert_uint_eq(n.dead_ms, 15000);
    ck_assert(n.spare);
    ck_assert_uint_eq(n.why_counter, 6);
    ck_assert_str_eq(n.why->text, "gone");
    ck_assert(n.why->restarting && n.why->has_first);
    ck_assert_int_eq(n.why->first.rank, 5);
    ck_assert_int_eq(n.respawns[1].local_rank, 7);
    rdzv_view_fini(&n);
    for (size_t len = 0; len < B.len - 5; len++) {
        struct rd cut = rd_init(B.data + 5, len);
        ck_assert(!rdzv_get_view(&cut, &n));
    }
    m.group_rank = 4; /* of 4 nodes */
    B.len = 0;
    rdzv_put_view(&B, &m);
    r = body_of(RDZV_MSG_VIEW);
    ck_assert(!rdzv_get_view(&r, &n));
}
END_TEST

START_TEST(report)
{
    struct failure f[2] = {some_failure(), some_failure()};
    f[1].rank = 6;
    struct rdzv_result m = {.exit_code = 139,
                            .reason = STOP_FAILURE,
                            .text = "worker 5 was killed",
                            .restarts = 2,
                            .failures = f,
                            .n = 2,
                            .omitted = 100},
                       n;
    rdzv_put_report(&B, &m);
    struct rd r = body_of(RDZV_MSG_REPORT);
    ck_assert(rdzv_get_report(&r, &n));
    ck_assert_int_eq(n.exit_code, 139);
    ck_assert_int_eq(n.restarts, 2);
    ck_assert_uint_eq(n.omitted, 100);
    ck_assert_str_eq(n.text, m.text);
    ck_assert_uint_eq(n.n, 2);
    ck_assert_int_eq(n.failures[1].rank, 6);
    free((void *)n.failures);
    for (size_t len = 0; len < B.len - 5; len++) {
        struct rd cut = rd_init(B.data + 5, len);
        ck_assert(!rdzv_get_report(&cut, &n));
    }
}
END_TEST

START_TEST(the_largest_fit_into_a_frame)
{
    struct failure f = some_failure();
    memset(f.message, 'm', sizeof(f.message) - 1);
    memset(f.log_path, 'l', sizeof(f.log_path) - 1);
    memset(f.stderr_tail, 't', sizeof(f.stderr_tail) - 1);
    struct failure all[RDZV_REPORT_MAX];
    for (int i = 0; i < RDZV_REPORT_MAX; i++)
        all[i] = f;
    struct rdzv_result m = {.failures = all, .n = RDZV_REPORT_MAX, .exit_code = 1};
    rdzv_put_report(&B, &m);
    ck_assert_uint_lt(B.len, RDZV_FRAME_MAX);
}
END_TEST

START_TEST(small_messages)
{
    struct rdzv_identity id = {.run_id = "job", .host = "gpu-a", .pid = 7, .finished = true}, jd;
    struct rdzv_refusal refusal;
    char text[RDZV_NOTICE_MAX];
    rdzv_put_identity(&B, &id);
    struct rd r = body_of(RDZV_MSG_IDENTITY);
    ck_assert(rdzv_get_identity(&r, &jd));
    ck_assert_str_eq(jd.run_id, "job");
    ck_assert_str_eq(jd.host, "gpu-a");
    ck_assert(jd.finished);
    B.len = 0;
    rdzv_put_refusal(&B, true, "not now");
    buf_put(&B, "more of a later version", 23);
    buf_set_u32(&B, 0, (uint32_t)B.len - 4);
    r = body_of(RDZV_MSG_REFUSE);
    ck_assert(rdzv_get_refusal(&r, &refusal));
    ck_assert(refusal.retry);
    ck_assert_str_eq(refusal.text, "not now");
    B.len = 0;
    rdzv_put_notice(&B, "waiting");
    r = body_of(RDZV_MSG_NOTICE);
    ck_assert(rdzv_get_notice(&r, text));
    ck_assert_str_eq(text, "waiting");
    B.len = 0;
    rdzv_put_probe(&B);
    r = body_of(RDZV_MSG_PROBE);
    ck_assert(rd_done(&r));
}
END_TEST

START_TEST(elsewhere)
{
    struct rdzv_elsewhere m = {.run_id = "job", .addr = "fd77::2", .port = 65535}, d;
    rdzv_put_elsewhere(&B, &m);
    struct rd r = body_of(RDZV_MSG_ELSEWHERE);
    ck_assert(rdzv_get_elsewhere(&r, &d));
    ck_assert_str_eq(d.run_id, "job");
    ck_assert_str_eq(d.addr, "fd77::2");
    ck_assert_int_eq(d.port, 65535);
    for (size_t cut = 1; cut <= B.len - RDZV_FRAME_HEADER; cut++) { /* nor a part of it */
        r = body_of(RDZV_MSG_ELSEWHERE);
        r.end -= cut;
        ck_assert(!rdzv_get_elsewhere(&r, &d));
    }
    buf_u8(&B, 0); /* nor more */
    buf_set_u32(&B, 0, (uint32_t)B.len - 4);
    r = body_of(RDZV_MSG_ELSEWHERE);
    ck_assert(!rdzv_get_elsewhere(&r, &d));
    B.len = 0;
    m.port = 0; /* nowhere */
    m.addr[0] = '\0';
    rdzv_put_elsewhere(&B, &m);
    r = body_of(RDZV_MSG_ELSEWHERE);
    ck_assert(!rdzv_get_elsewhere(&r, &d));
    B.len = 0;
    m.port = 1;
    memset(m.run_id, 'j', sizeof(m.run_id)); /* too long, whatever follows it */
    size_t at = B.len;
    buf_u32(&B, 0);
    buf_u8(&B, RDZV_MSG_ELSEWHERE);
    buf_u32(&B, sizeof(m.run_id));
    buf_put(&B, m.run_id, sizeof(m.run_id));
    buf_str(&B, "");
    buf_u16(&B, 1);
    buf_set_u32(&B, at, (uint32_t)B.len - 4);
    r = body_of(RDZV_MSG_ELSEWHERE);
    ck_assert(!rdzv_get_elsewhere(&r, &d));
}
END_TEST

/* The messages of the tree are understood whole, and neither cut off nor with more behind them. */
START_TEST(messages_of_the_tree)
{
    const struct generation gen = {5, 6};
    const struct rdzv_branch branch = {gen, true, {{1, 2}}, "10.0.0.1", 29500};
    const struct rdzv_child child = {"job", {{3, 4}}, gen, 7};
    const struct rdzv_direct direct = {gen, 8, true, false};
    const struct rdzv_request request = {
        .kind = REQUEST_SIGNAL, .id = 9, .from = {{5}}, .signal = {10, "0-3", "text"}};
    struct buf again = BUF_INIT;
    for (int type = RDZV_MSG_BRANCH; type <= RDZV_MSG_DIRECT; type++) {
        B.len = 0;
        if (type == RDZV_MSG_BRANCH)
            rdzv_put_branch(&B, &branch);
        else if (type == RDZV_MSG_CHILD)
            rdzv_put_child(&B, &child);
        else if (type == RDZV_MSG_TOLD)
            rdzv_put_told(&B, gen, 10, &request);
        else
            rdzv_put_direct(&B, &direct);
        buf_u8(&B, 0);
        buf_set_u32(&B, 0, (uint32_t)B.len - 4);
        for (size_t cut = 0; cut <= B.len - RDZV_FRAME_HEADER; cut++) {
            struct rdzv_branch b;
            struct rdzv_child c;
            struct rdzv_direct d;
            struct rdzv_request r;
            struct generation g;
            uint32_t number;
            struct rd rd = body_of(type);
            rd.end -= cut;
            bool good = type == RDZV_MSG_BRANCH  ? rdzv_get_branch(&rd, &b)
                        : type == RDZV_MSG_CHILD ? rdzv_get_child(&rd, &c)
                        : type == RDZV_MSG_TOLD  ? rdzv_get_told(&rd, &g, &number, &r)
                                                 : rdzv_get_direct(&rd, &d);
            ck_assert_msg(good == (cut == 1), "type %d, %zu bytes less", type, cut);
            if (!good)
                continue;
            again.len = 0;
            if (type == RDZV_MSG_BRANCH)
                rdzv_put_branch(&again, &b);
            else if (type == RDZV_MSG_CHILD)
                rdzv_put_child(&again, &c);
            else if (type == RDZV_MSG_TOLD)
                rdzv_put_told(&again, g, number, &r);
            else
                rdzv_put_direct(&again, &d);
            ck_assert_uint_eq(again.len, B.len - 1);
            ck_assert_mem_eq(again.data + 4, B.data + 4, again.len - 4);
        }
    }
    buf_fini(&again);
}
END_TEST

static const struct rdzv_request requests[] = {
    {.kind = REQUEST_RESTART, .restart.text = "again"},
    {.kind = REQUEST_KILL, .kill.text = "now"},
    {.kind = REQUEST_SIGNAL, .signal = {10, "0,8-15", "USR1"}},
    {.kind = REQUEST_PRESENCE},
    {.kind = REQUEST_STACKS},
    {.kind = REQUEST_TOP, .top.most = 40},
    {.kind = REQUEST_OPERATIONS},
    {.kind = REQUEST_SUSPECT, .suspect = {1500, true}},
    {.kind = REQUEST_HANG, .hang = {true, false, "3", "rank 3"}},
    {.kind = REQUEST_PACE, .pace.others = 999999},
    {.kind = REQUEST_SLOW, .slow = {"", "no rank"}},
    {.kind = REQUEST_DOCTOR, .doctor = {"{}", "1-2"}},
    {.kind = REQUEST_MODEX, .modex.rank = 77},
};

/* Each kind is understood whole, and neither cut off nor with more behind it. */
START_TEST(requests_of_each_kind)
{
    struct rdzv_request in = requests[_i], out;
    struct buf b = BUF_INIT, again = BUF_INIT;
    in.id = 9;
    in.from.b[3] = 7;
    ck_assert_int_eq(in.kind, _i);
    request_encode(&b, &in);
    buf_u8(&b, 0);
    for (size_t n = 0; n <= b.len; n++) {
        struct rd r = rd_init(b.data, n);
        ck_assert_msg(request_decode(&r, &out) == (n == b.len - 1), "%zu of %zu bytes", n, b.len);
    }
    struct rd r = rd_init(b.data, b.len - 1);
    ck_assert(request_decode(&r, &out));
    request_encode(&again, &out);
    ck_assert_uint_eq(again.len, b.len - 1);
    ck_assert_mem_eq(again.data, b.data, again.len);
    buf_fini(&b);
    buf_fini(&again);
}
END_TEST

/* What another build asks for is refused, and by its name. */
START_TEST(a_request_of_an_unknown_kind)
{
    struct rdzv_request m;
    struct node_id from = {{0}};
    B.len = 0;
    buf_str(&B, "migrate");
    buf_u64(&B, 1);
    buf_put(&B, from.b, sizeof(from.b));
    buf_str(&B, "whatever it says");
    struct rd r = rd_init(B.data, B.len);
    ck_assert(!request_decode(&r, &m));
    ck_assert_int_eq(m.kind, REQUEST_KINDS);
    ck_assert_str_eq(m.unknown.name, "migrate");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("rdzv_msg");
    TCase *tc = test_case(s, "msg", 10);
    tcase_add_checked_fixture(tc, NULL, teardown);
    tcase_add_test(tc, preamble);
    tcase_add_test(tc, hello);
    tcase_add_test(tc, lists_of_peers);
    tcase_add_test(tc, hello_that_cannot_be);
    tcase_add_test(tc, status);
    tcase_add_test(tc, view);
    tcase_add_test(tc, report);
    tcase_add_test(tc, the_largest_fit_into_a_frame);
    tcase_add_test(tc, small_messages);
    tcase_add_test(tc, elsewhere);
    tcase_add_test(tc, messages_of_the_tree);
    tcase_add_loop_test(tc, requests_of_each_kind, 0, REQUEST_KINDS);
    tcase_add_test(tc, a_request_of_an_unknown_kind);
    return s;
}

TEST_MAIN(suite)
