/* Rendezvous messages as a hostile peer may send them. The first byte picks who gets them:
 *   0  the decoders: what is accepted must encode to the same bytes again
 *   1  a coordinator: a script of frames, closed connections and time that passes
 *   2  a member: a script of frames and of what its agent does, in and out of place
 *
 * A script is steps of one byte. Some take a frame: u8 type, u16 length, body; others make one that
 * is well-formed out of a few bytes, so that the inside of the rules is reached. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "rendezvous/rules/member_state.h"
#include "rendezvous/rules/rdzv_state.h"
#include "rendezvous/rules/tree.h"
#include "tests/lib/nsec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CONNS 16

static void drop_line(void *arg, const char *line, size_t len)
{
    (void)arg, (void)line, (void)len;
}

/* ------------------------------------------------------------------------------------- decoders */

static void same(struct buf *b, const uint8_t *body, size_t n)
{
    assert(!b->oom && b->len == n + RDZV_FRAME_HEADER);
    assert(n == 0 || memcmp(b->data + RDZV_FRAME_HEADER, body, n) == 0);
    buf_fini(b);
}

static void decode_report(struct rd r, const uint8_t *p, size_t n)
{
    struct rdzv_result m;
    struct buf b = BUF_INIT;
    if (!rdzv_get_report(&r, &m))
        return;
    rdzv_put_report(&b, &m);
    same(&b, p, n);
    free((void *)m.failures);
}

static void decode_view(struct rd r, const uint8_t *p, size_t n)
{
    struct rdzv_view m;
    struct buf b = BUF_INIT;
    if (!rdzv_get_view(&r, &m))
        return;
    rdzv_put_view(&b, &m);
    same(&b, p, n);
    rdzv_view_fini(&m);
}

static void decode_gathered(struct rd r, const uint8_t *p, size_t n)
{
    struct rdzv_gathered m;
    struct buf b = BUF_INIT;
    if (!rdzv_get_gathered(&r, &m))
        return;
    struct buf *values = calloc((size_t)m.nnodes + 1, sizeof(*values));
    for (int i = 0; i < m.nnodes; i++) {
        size_t len = rd_u32(&m.values);
        buf_put(&values[i], rd_take(&m.values, len), len);
    }
    rdzv_put_gathered(&b, m.gen, m.number, values, m.nnodes);
    same(&b, p, n);
    for (int i = 0; i < m.nnodes; i++)
        buf_fini(&values[i]);
    free(values);
}

static void decode_table(struct rd r)
{
    struct rank_table t, u;
    struct buf b = BUF_INIT;
    if (rank_table_decode(&r, &t, NULL) < 0)
        return;
    for (int i = 0; i < t.nnodes; i++)
        assert(t.nodes[i].base_rank >= 0 && t.nodes[i].base_rank < t.world_size);
    rank_table_encode(&b, &t); /* names can be written in more ways than one: once more the same */
    struct rd again = rd_init(b.data, b.len);
    int rc = rank_table_decode(&again, &u, NULL);
    assert(rc == 0 && rd_done(&again) && u.world_size == t.world_size);
    rank_table_fini(&u);
    rank_table_fini(&t);
    buf_fini(&b);
}

static void put_answers(struct buf *b, const struct rdzv_answers *m)
{
    struct tree_answers a = {.to = m->to, .kind = m->kind, .id = m->id};
    struct rdzv_answers rest = *m;
    struct rdzv_answer one;
    while (rdzv_next_answer(&rest, &one))
        tree_answers_add(&a, one.data, one.len);
    assert(a.n == m->n);
    tree_answers_take(&a, NULL, NULL, b);
}

static void decode(const uint8_t *p, size_t n)
{
    if (n == 0)
        return;
    uint8_t type = *p++;
    struct rd r = rd_init(p, --n);
    struct buf b = BUF_INIT;
    union {
        struct rdzv_hello hello;
        struct rdzv_status status;
        struct rdzv_refusal refusal;
        struct rdzv_identity identity;
        struct rdzv_elsewhere elsewhere;
        char notice[RDZV_NOTICE_MAX];
        struct failure failure;
        struct node_id id;
        struct rdzv_gather gather;
        struct rdzv_branch branch;
        struct rdzv_child child;
        struct rdzv_direct direct;
        struct rdzv_request request;
        struct rdzv_answer answer;
        struct rdzv_answers answers;
        struct rdzv_shown shown;
        struct output {
            uint64_t number;
            struct rd bytes;
        } output;
        struct told {
            struct generation gen;
            uint32_t number;
            struct rdzv_request request;
        } told;
    } m;
    if (type == RDZV_MSG_HELLO && rdzv_get_hello(&r, &m.hello))
        rdzv_put_hello(&b, &m.hello);
    else if (type == RDZV_MSG_STATUS && rdzv_get_status(&r, &m.status))
        rdzv_put_status(&b, &m.status);
    else if (type == RDZV_MSG_REFUSE && rdzv_get_refusal(&r, &m.refusal))
        rdzv_put_refusal(&b, m.refusal.retry, m.refusal.text);
    else if (type == RDZV_MSG_IDENTITY && rdzv_get_identity(&r, &m.identity))
        rdzv_put_identity(&b, &m.identity);
    else if (type == RDZV_MSG_NOTICE && rdzv_get_notice(&r, m.notice))
        rdzv_put_notice(&b, m.notice);
    else if (type == RDZV_MSG_BEAT && rdzv_get_beat(&r, &m.id))
        rdzv_put_beat(&b, &m.id);
    else if (type == RDZV_MSG_ELSEWHERE && rdzv_get_elsewhere(&r, &m.elsewhere))
        rdzv_put_elsewhere(&b, &m.elsewhere);
    else if (type == RDZV_MSG_GATHER && rdzv_get_gather(&r, &m.gather))
        rdzv_put_gather(&b, &m.gather);
    else if (type == RDZV_MSG_BRANCH && rdzv_get_branch(&r, &m.branch))
        rdzv_put_branch(&b, &m.branch);
    else if (type == RDZV_MSG_CHILD && rdzv_get_child(&r, &m.child))
        rdzv_put_child(&b, &m.child);
    else if (type == RDZV_MSG_DIRECT && rdzv_get_direct(&r, &m.direct))
        rdzv_put_direct(&b, &m.direct);
    else if (type == RDZV_MSG_REQUEST && rdzv_get_request(&r, &m.request))
        rdzv_put_request(&b, &m.request);
    else if (type == RDZV_MSG_ANSWER && rdzv_get_answer(&r, &m.answer))
        rdzv_put_answer(&b, &m.answer);
    else if (type == RDZV_MSG_TOLD &&
             rdzv_get_told(&r, &m.told.gen, &m.told.number, &m.told.request))
        rdzv_put_told(&b, m.told.gen, m.told.number, &m.told.request);
    else if (type == RDZV_MSG_OUTPUT && rdzv_get_output(&r, &m.output.number, &m.output.bytes))
        rdzv_put_output(&b, m.output.number, m.output.bytes.p,
                        (size_t)(m.output.bytes.end - m.output.bytes.p));
    else if (type == RDZV_MSG_SHOWN && rdzv_get_shown(&r, &m.shown))
        rdzv_put_shown(&b, &m.shown);
    else if (type == RDZV_MSG_ANSWERS && rdzv_get_answers(&r, &m.answers))
        put_answers(&b, &m.answers);
    if (b.len)
        same(&b, p, n - (size_t)(r.end - r.p)); /* a refusal may go on */
    decode_view(rd_init(p, n), p, n);
    decode_report(rd_init(p, n), p, n);
    decode_gathered(rd_init(p, n), p, n);
    decode_table(rd_init(p, n));
}

/* -------------------------------------------------------------------------------------- scripts */

static struct rd script;

static uint64_t now;

/* The body of a frame in the script, in memory of its own so that reading past it is seen. */
static uint8_t *take_body(size_t *n)
{
    *n = rd_u16(&script);
    size_t left = (size_t)(script.end - script.p);
    if (*n > left)
        *n = left;
    uint8_t *body = malloc(*n ? *n : 1);
    const uint8_t *p = rd_take(&script, *n);
    if (p)
        memcpy(body, p, *n);
    return body;
}

static void pass_time(void)
{
    static const uint64_t steps[] = {1, SEC / 1000, SEC, 5 * SEC, 20 * SEC, 700 * SEC};
    now += steps[rd_u8(&script) % 6];
}

/* One encoded failure, or none. */
static void make_failure(struct buf *b, uint8_t seed, uint64_t seen)
{
    struct failure f;
    failure_init(&f);
    f.kind = (enum failure_kind)(seed % FAILURE_KINDS);
    f.local_rank = seed / 8 % 4;
    f.exit_code = seed % 256;
    f.signal = seed % 32;
    f.caused_by = seed / 32 - 1;
    f.seen_ns = seen;
    failure_encode(b, &f);
}

/* ---------------------------------------------------------------------------------- coordinator */

static struct generation current;
static uint64_t clocks[CONNS];

static void drain_coordinator(struct rdzv_state *s, const struct rdzv_rules *rules)
{
    struct rdzv_action a;
    struct rdzv_state_info i;
    int steps = 0;
    rdzv_state_check(s);
    while (rdzv_state_next(s, &a, now)) {
        struct buf b = BUF_INIT;
        assert(++steps < 10000);
        if (a.act == RDZV_ACT_VIEW) {
            struct rdzv_view v;
            rdzv_put_view(&b, &a.view);
            struct rd r = rd_init(b.data + RDZV_FRAME_HEADER, b.len - RDZV_FRAME_HEADER);
            bool ok = rdzv_get_view(&r, &v); /* what we send, we take */
            assert(ok);
            rdzv_view_fini(&v);
            assert(a.view.gen.counter >= current.counter);
            current = a.view.gen;
            assert(a.view.group_rank < a.view.nnodes && a.view.nnodes <= rules->max_nodes);
        } else if (a.act == RDZV_ACT_TABLE) {
            assert(a.table->nnodes >= rules->min_nodes && a.table->nnodes <= rules->max_nodes);
            rdzv_put_table(&b, a.table);
            decode_table(rd_init(b.data + RDZV_FRAME_HEADER, b.len - RDZV_FRAME_HEADER));
        } else if (a.act == RDZV_ACT_REPORT) {
            assert(a.result->exit_code == 0 || a.result->text[0]);
            rdzv_put_report(&b, a.result);
        }
        buf_fini(&b);
    }
    rdzv_state_get_info(s, &i);
    assert(i.restarts <= rules->max_restarts && i.nodes >= 0 && i.nodes <= CONNS * 8);
}

static void make_hello(struct rdzv_state *s, uint32_t conn)
{
    uint8_t who = rd_u8(&script), how = rd_u8(&script);
    struct rdzv_hello h = {.backend = how & 1 ? RDZV_STATIC : RDZV_C10D,
                           .min_nodes = 2,
                           .max_nodes = 3,
                           .agent_store = true,
                           .relay = how >= 250,
                           .max_restarts = 2,
                           .node_rank = (how >> 1) % 5 - 1,
                           .nproc = 1 + who % 3,
                           .pid = who,
                           .run_id = "job",
                           .host = "h",
                           .role = "default"};
    struct rdzv_peer p = {
        .own = who == 0, .same_host = who % 2 == 0, .addr = "10.0.0.1", .via = "10.0.0.2"};
    h.id.b[0] = who % 24;
    rdzv_state_hello(s, conn, &h, &p, now);
}

static void make_status(struct rdzv_state *s, uint32_t conn)
{
    uint8_t what = rd_u8(&script), more = rd_u8(&script);
    struct buf failures = BUF_INIT;
    uint8_t ports[2 * 4] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct rdzv_status st = {.phase = (enum member_phase)(what % MEMBER_PHASES),
                             .workers = more & 1,
                             .gen = current,
                             .send_ns = ++clocks[conn],
                             .view_sent_ns = more & 2 ? now : 0,
                             .view_seen_ns = clocks[conn],
                             .respawned = more >> 5,
                             .ports = ports,
                             .nports = more & 4 ? 1 + more % 3 : 0,
                             .leave_reason = (enum stop_reason)(more % STOP_REASONS),
                             .leave_code = more,
                             .first_seq = 1 + (more >> 4)};
    if (more & 8) {
        make_failure(&failures, rd_u8(&script), clocks[conn]);
        st.nfailures = 1;
        st.failures_total = 1;
        st.failures = failures.data;
        st.failures_len = failures.len;
    }
    st.gen.counter -= what >> 7;
    rdzv_state_status(s, conn, &st, now);
    buf_fini(&failures);
}

static void raw_frame(struct rdzv_state *s, uint32_t conn)
{
    uint8_t type = rd_u8(&script);
    size_t n;
    uint8_t *body = take_body(&n);
    struct rd r = rd_init(body, n);
    struct rdzv_hello h;
    struct rdzv_status st;
    struct rdzv_peer p = {.addr = "10.0.0.9", .via = "10.0.0.2"};
    struct rdzv_peers list = {0};
    if (type == RDZV_MSG_HELLO && rdzv_get_hello(&r, &h))
        rdzv_state_hello(s, conn, &h, &p, now);
    else if (type == RDZV_MSG_PEERS && rdzv_get_peers(&r, &list))
        rdzv_state_peers(s, conn, &list);
    else if (type == RDZV_MSG_STATUS && rdzv_get_status(&r, &st))
        rdzv_state_status(s, conn, &st, now);
    rdzv_peers_fini(&list);
    free(body);
}

static void run_coordinator(void)
{
    uint8_t how = rd_u8(&script);
    const struct rdzv_rules rules = {.backend = how & 1 ? RDZV_STATIC : RDZV_C10D,
                                     .run_id = "job",
                                     .version = "",
                                     .min_nodes = 2,
                                     .max_nodes = 3,
                                     .max_restarts = how >> 1 & 3,
                                     .restart_policy = how & 8 ? RESTART_WORKER : RESTART_GROUP,
                                     .backoff_ns = how & 16 ? SEC : 0,
                                     .join_ns = 600 * SEC,
                                     .last_call_ns = 30 * SEC,
                                     .close_ns = 30 * SEC,
                                     .heartbeat_ns = 5 * SEC,
                                     .dead_ns = 15 * SEC,
                                     .agent_store = true,
                                     .bound_addr = "",
                                     .local_addr = ""};
    struct rdzv_state *s = rdzv_state_new(&rules, 77, now);
    memset(clocks, 0, sizeof(clocks));
    current = (struct generation){77, 0};
    for (int steps = 0; !script.bad && script.p < script.end && steps < 2000; steps++) {
        uint8_t step = rd_u8(&script);
        uint32_t conn = step % CONNS;
        switch (step / CONNS % 8) {
        case 0:
        case 1:
            make_status(s, conn);
            break;
        case 2:
            make_hello(s, conn);
            break;
        case 3:
            raw_frame(s, conn);
            break;
        case 4:
            rdzv_state_closed(s, conn, rd_u8(&script) % 3, now);
            break;
        case 5:
            pass_time();
            rdzv_state_tick(s, now);
            break;
        case 6: /* at the time that it asked for */
            if (rdzv_state_deadline(s) != UINT64_MAX && rdzv_state_deadline(s) > now)
                now = rdzv_state_deadline(s);
            rdzv_state_tick(s, now);
            break;
        default:
            rdzv_state_turned_away(s, "10.0.0.8", "no", now);
            break;
        }
        drain_coordinator(s, &rules);
    }
    rdzv_state_free(s);
}

/* --------------------------------------------------------------------------------------- member */

struct agent {
    bool workers, ran, finished;
    struct generation gen;
};

static void drain_member(struct member_state *m, struct agent *a)
{
    struct member_action act;
    int steps = 0;
    member_state_check(m);
    while (member_state_next(m, &act, now)) {
        struct buf b = BUF_INIT;
        assert(++steps < 10000 && !a->finished);
        switch (act.act) {
        case MEMBER_ACT_STATUS:
            rdzv_put_status(&b, act.status);
            break;
        case MEMBER_ACT_PREPARE:
            assert(!a->workers);
            assert(act.gen.epoch != a->gen.epoch || act.gen.counter > a->gen.counter);
            a->gen = act.gen;
            break;
        case MEMBER_ACT_RUN:
            assert(!a->workers && generation_equal(act.table->gen, a->gen));
            assert(act.group_rank >= 0 && act.group_rank < act.table->nnodes);
            a->workers = a->ran = true;
            break;
        case MEMBER_ACT_STOP:
            assert(a->ran && act.why->text[0]);
            break;
        case MEMBER_ACT_FINISH:
            assert(!a->workers);
            assert(act.result->n == 0 || act.result->failures);
            a->finished = true;
            break;
        default:
            break;
        }
        buf_fini(&b);
    }
}

static void give_frame(struct member_state *m)
{
    uint8_t type = rd_u8(&script);
    size_t n;
    uint8_t *body = take_body(&n);
    struct rd r = rd_init(body, n);
    struct rdzv_view v;
    struct rdzv_result res;
    struct rdzv_refusal ref;
    struct rank_table t;
    struct rdzv_peers peers = {0};
    if (type == RDZV_MSG_VIEW && rdzv_get_view(&r, &v)) {
        member_state_view(m, &v, now);
        rdzv_view_fini(&v);
    } else if (type == RDZV_MSG_TABLE && rank_table_decode(&r, &t, NULL) == 0) {
        member_state_table(m, &t);
    } else if (type == RDZV_MSG_REPORT && rdzv_get_report(&r, &res)) {
        member_state_report(m, &res);
    } else if (type == RDZV_MSG_REFUSE && rdzv_get_refusal(&r, &ref)) {
        member_state_refused(m, &ref, now);
    } else if (type == RDZV_MSG_PEERS && rdzv_get_peers(&r, &peers)) {
        member_state_peers(m, &peers);
    }
    free(body);
}

static void give_view(struct member_state *m)
{
    uint8_t what = rd_u8(&script), more = rd_u8(&script);
    const struct rdzv_respawn order = {more, more % 5, 1};
    const struct rdzv_stop why = {.reason = STOP_FAILURE, .restarting = more & 1, .text = "why"};
    struct rdzv_view v = {.phase = (enum rdzv_phase)(what % RDZV_PHASES),
                          .gen = {77, 1 + (more >> 4)},
                          .nnodes = 2,
                          .group_rank = what & 64 ? -1 : 1,
                          .sent_ns = now,
                          .echo_ns = now,
                          .heartbeat_ms = 5000,
                          .dead_ms = 15000,
                          .acked = more & 3,
                          .spare = what >> 7,
                          .why = what & 8 ? &why : NULL,
                          .why_counter = 1 + (more >> 4) - (more & 1),
                          .nrespawns = what >> 5 & 1,
                          .respawns = &order};
    member_state_view(m, &v, now);
}

static void give_table(struct member_state *m, const struct agent *a)
{
    struct rank_table t;
    rank_table_init(&t);
    if (rank_table_alloc(&t, 2) < 0)
        return;
    t.nodes[0].nproc = t.nodes[1].nproc = 2;
    t.gen = a->gen;
    if (rank_table_compute(&t, NULL) == 0)
        member_state_table(m, &t);
    rank_table_fini(&t);
}

static void agent_acts(struct member_state *m, struct agent *a)
{
    struct failure f[3];
    uint8_t what = rd_u8(&script);
    for (int i = 0; i < 3; i++) {
        failure_init(&f[i]);
        f[i].kind = (enum failure_kind)((what >> 4) % FAILURE_KINDS);
        f[i].local_rank = i;
    }
    switch (what % 6) {
    case 0:
        member_state_prepared(m, (const uint16_t[]){1, 2}, 2, 3);
        break;
    case 1:
        member_state_failed(m, &f[0]);
        break;
    case 2:
        if (a->workers)
            member_state_done(m);
        a->workers = false;
        break;
    case 3:
        member_state_leave(m, (enum stop_reason)((what >> 4) % STOP_REASONS), what, "leaves");
        break;
    default:
        member_state_stopped(m, f, what >> 4 & 3);
        a->workers = false;
        break;
    }
}

static void run_member(void)
{
    uint8_t how = rd_u8(&script);
    struct member_rules rules = {.coordinator = "c",
                                 .join_ns = 600 * SEC,
                                 .read_ns = 60 * SEC,
                                 .heartbeat_ns = 5 * SEC,
                                 .dead_ns = 15 * SEC};
    rules.hello.nproc = 2;
    rules.hello.restart_policy = how & 1 ? RESTART_WORKER : RESTART_GROUP;
    struct member_state *m = member_state_new(&rules, now);
    struct agent a = {0};
    struct rdzv_info info;
    for (int steps = 0; !script.bad && script.p < script.end && !a.finished && steps < 2000;
         steps++) {
        switch (rd_u8(&script) % 10) {
        case 0:
            give_frame(m);
            break;
        case 1:
        case 2:
            give_view(m);
            break;
        case 3:
            give_table(m, &a);
            break;
        case 4:
        case 5:
            agent_acts(m, &a);
            break;
        case 6:
            if (member_state_wants_link(m))
                member_state_connected(m, now);
            break;
        case 7:
            member_state_disconnected(m, rd_u8(&script) % 3, "gone", now);
            break;
        case 8:
            pass_time();
            member_state_tick(m, now);
            break;
        default:
            member_state_unreachable(m, rd_u8(&script) & 1, "refused", now);
            break;
        }
        drain_member(m, &a);
        member_state_get_info(m, &info);
        assert(info.phase && info.group_rank < info.nnodes + (info.nnodes == 0));
    }
    member_state_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    log_set_writer(drop_line, NULL);
    log_init(LOG_LEVEL_VERBOSE, NULL);
    if (size < 2)
        return 0;
    now = 1000 * SEC;
    script = rd_init(data + 1, size - 1);
    if (data[0] % 3 == 0)
        decode(data + 1, size - 1);
    else if (data[0] % 3 == 1)
        run_coordinator();
    else
        run_member();
    return 0;
}
