/* dlaunch-protocol(7) agrees with the code. A table between markers lists the fields of every
 * frame: the test encodes a frame, decodes it by the table, and compares every field and the
 * length. The limits in the text equal those in the code. */
#include "tests/lib/test.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "collectives/wire/wire.h"
#include "collectives/p2p/p2p_state.h"
#include "core/mem.h"
#include "core/segment.h"
#include "rendezvous/wire/pending.h"
#include "rendezvous/wire/endpoint.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/rules/tree.h"
#include "rendezvous/wire/relay.h"
#include "rendezvous/store/store_session.h"

static char *page;

static void add(struct buf *out, const char *text)
{
    buf_put(out, text, strlen(text));
}

/* ------------------------------------------------------------------------ reading by the tables */

/* The numbers read so far, by name: the count of a field depends on an earlier field. */
struct number {
    char name[32];
    uint64_t value;
};
static struct number numbers[256];
static size_t nnumbers;

static uint64_t number_of(const char *name, size_t len, const char *row)
{
    for (size_t i = nnumbers; i > 0; i--) {
        if (strlen(numbers[i - 1].name) == len && memcmp(numbers[i - 1].name, name, len) == 0)
            return numbers[i - 1].value;
    }
    ck_abort_msg("no field before this one is called %.*s: %s", (int)len, name, row);
    return 0;
}

/* Evaluates the text in brackets: field, field*field, field=value or field&bit. */
static uint64_t times(const char *row)
{
    const char *open = strchr(row, '['), *p = open + 1;
    if (!open)
        return 1;
    size_t n = strcspn(p, "*=&]");
    uint64_t a = number_of(p, n, row);
    if (p[n] == '=')
        return a == strtoull(p + n + 1, NULL, 10);
    if (p[n] == '&')
        return (a & strtoull(p + n + 1, NULL, 10)) != 0;
    if (p[n] == '*')
        return a * number_of(p + n + 1, strcspn(p + n + 1, "]"), row);
    return a;
}

static void read_part(const char *part, struct rd *r, struct buf *out);

static bool read_number(const char *type, struct rd *r, uint64_t *v)
{
    if (strcmp(type, "u8") == 0)
        *v = rd_u8(r);
    else if (strcmp(type, "u16") == 0)
        *v = rd_u16(r);
    else if (strcmp(type, "u32") == 0)
        *v = rd_u32(r);
    else if (strcmp(type, "u64") == 0)
        *v = rd_u64(r);
    else
        return false;
    return true;
}

static void read_field(const char *type, const char *name, struct rd *r, struct buf *out)
{
    uint64_t v;
    char text[64];
    const uint8_t *id;
    add(out, test_text(" %s=", name));
    if (read_number(type, r, &v)) {
        ck_assert_uint_lt(nnumbers, ARRAY_LEN(numbers));
        snprintf(numbers[nnumbers].name, sizeof(numbers[0].name), "%s", name);
        numbers[nnumbers++].value = v;
        snprintf(text, sizeof(text), v == UINT32_MAX ? "-1" : "%llu", (unsigned long long)v);
        add(out, text);
    } else if (strcmp(type, "string") == 0) {
        rd_str(r, text, sizeof(text));
        add(out, test_text("'%s'", text));
    } else if (strcmp(type, "id") == 0) {
        id = rd_take(r, 16);
        if (id)
            add(out, test_text("id%d", id[0] == id[15] ? id[0] : -1));
    } else if (strcmp(type, "bytes") == 0) {
        add(out, test_text("'%.*s'", (int)(r->end - r->p), r->p));
        r->p = r->end;
    } else {
        add(out, test_text("(%s", type));
        read_part(type, r, out);
        add(out, ")");
    }
}

/* By the table that is called so. A row is type, name and meaning; one without a type goes on with
 * the meaning. */
static void read_part(const char *part, struct rd *r, struct buf *out)
{
    const char *begin = test_text(".\\\" %s begin\n", part);
    const char *end = test_text(".\\\" %s end\n", part);
    const char *row = strstr(page, begin), *to = strstr(page, end);
    ck_assert_msg(row && to, "man/dlaunch-protocol.7 has no table between the markers of %s", part);
    for (row += strlen(begin); row < to; row = strchr(row, '\n') + 1) {
        char type[32], tab[2], name[32];
        if (sscanf(row, "%31[a-z0-9]%1[\t]%31[a-z_]", type, tab, name) != 3)
            continue;
        for (uint64_t n = times(test_text("%.*s", (int)strcspn(row, "\n"), row)); n > 0; n--)
            read_field(type, name, r, out);
        ck_assert_msg(!r->bad, "%s has no %s any more; so far:%.*s", part, name, (int)out->len,
                      out->data);
    }
}

/* ----------------------------------------------------------------------------------- the frames */

static struct failure some_failure(int rank)
{
    struct failure f = {.kind = FAILURE_STOPPED,
                        .rank = rank,
                        .local_rank = 2,
                        .node = 3,
                        .pid = 4,
                        .attempt = 5,
                        .exit_code = 6,
                        .signal = 7,
                        .oom = true,
                        .caused_by = -1,
                        .seen_ns = 8,
                        .wall_ns = 9,
                        .host = "h",
                        .role = "r",
                        .operation = "o",
                        .message = "m",
                        .log_path = "l",
                        .stderr_tail = "t"};
    return f;
}

static const struct generation round_no = {77, 78};

static void refuse(struct buf *b)
{
    rdzv_put_refusal(b, true, "why");
}

static void put_identity(struct buf *b, bool finished)
{
    const struct rdzv_identity m = {"job", "host", 1, finished, !finished, false, "addr", 2};
    rdzv_put_identity(b, &m);
}

static void identity(struct buf *b)
{
    put_identity(b, true);
}

static void identity_of_another(struct buf *b)
{
    put_identity(b, false);
}

static void hello(struct buf *b)
{
    struct rdzv_hello m = {.run_id = "job",
                           .version = "1.2",
                           .backend = RDZV_FILE,
                           .min_nodes = 1,
                           .max_nodes = 3,
                           .max_restarts = 4,
                           .restart_policy = RESTART_WORKER,
                           .agent_store = true,
                           .relay = true,
                           .host = "host",
                           .role = "role",
                           .local_addr = "addr",
                           .pid = 5,
                           .node_rank = -1,
                           .nproc = 6,
                           .peer_port = 7,
                           .prev_rank = 8,
                           .seen_epoch = 9};
    memset(m.id.b, 10, sizeof(m.id.b));
    rdzv_put_hello(b, &m);
}

static void put_status(struct buf *b, enum member_phase phase)
{
    const struct failure f[] = {some_failure(0), some_failure(1)};
    const uint8_t ports[] = {1, 0, 2, 0};
    struct buf failures = BUF_INIT;
    failure_encode(&failures, &f[0]);
    failure_encode(&failures, &f[1]);
    const struct rdzv_status m = {.phase = phase,
                                  .workers = true,
                                  .gen = round_no,
                                  .send_ns = 10,
                                  .view_sent_ns = 11,
                                  .view_seen_ns = 12,
                                  .respawned = 13,
                                  .nports = 2,
                                  .ports = ports,
                                  .free_port = 14,
                                  .leave_reason = STOP_SIGNAL,
                                  .leave_code = 15,
                                  .leave_text = "bye",
                                  .failures_total = 16,
                                  .first_seq = 17,
                                  .nfailures = 2,
                                  .failures = failures.data,
                                  .failures_len = failures.len};
    rdzv_put_status(b, &m);
    buf_fini(&failures);
}

static void leaving(struct buf *b)
{
    put_status(b, MEMBER_LEAVING);
}

static void running(struct buf *b)
{
    put_status(b, MEMBER_RUNNING);
}

static void fenced(struct buf *b)
{
    const struct rdzv_status m = {.phase = MEMBER_IDLE, .fenced = true};
    rdzv_put_status(b, &m);
}

static void put_view(struct buf *b, bool first, bool elect)
{
    const struct rdzv_respawn orders[] = {{20, 21, 22}, {23, 24, 25}};
    const struct rdzv_stop why = {STOP_NODE_LOST, true, "lost", first, some_failure(1)};
    const struct rdzv_view m = {.phase = RDZV_STOP,
                                .gen = round_no,
                                .group_rank = 10,
                                .nnodes = 11,
                                .restart_count = 12,
                                .node_restarts = 13,
                                .sent_ns = 14,
                                .echo_ns = 15,
                                .acked = 16,
                                .heartbeat_ms = 17,
                                .dead_ms = 18,
                                .spare = !elect,
                                .elect = elect,
                                .lease = false,
                                .why = &why,
                                .why_counter = 19,
                                .nrespawns = 2,
                                .respawns = orders};
    rdzv_put_view(b, &m);
}

static void view(struct buf *b)
{
    put_view(b, true, true);
}

static void view_without_a_failure(struct buf *b)
{
    put_view(b, false, false);
}

static void table(struct buf *b)
{
    uint16_t ports[] = {31, 32};
    struct rank_table_node nodes[] = {
        {.host = "gpu-1.x", .addr = "10.1", .role = "w", .pid = 20, .nproc = 2, .ports = ports},
        {.host = "gpu-2.x", .addr = "10.2", .role = "w", .pid = 21, .nproc = 3}};
    const struct rank_table t = {.gen = round_no,
                                 .restart_count = 1,
                                 .master_addr = "addr",
                                 .master_port = 3,
                                 .agent_store = true,
                                 .nnodes = 2,
                                 .nodes = nodes};
    rdzv_put_table(b, &t);
}

static void report(struct buf *b)
{
    const struct failure f[] = {some_failure(0), some_failure(1)};
    const struct rdzv_result m = {9, STOP_TIMEOUT, "text", "final", 10, f, 2, 11};
    rdzv_put_report(b, &m);
}

static void notice(struct buf *b)
{
    rdzv_put_notice(b, "text");
}

static void peers(struct buf *b)
{
    struct rdzv_peer_entry e[] = {{.addr = "a", .port = 1, .host = true}, {.addr = "b", .port = 2}};
    const struct rdzv_peers m = {.gen = round_no, .ran = true, .n = 2, .e = e};
    memset(e[0].id.b, 3, sizeof(e[0].id.b));
    memset(e[1].id.b, 4, sizeof(e[1].id.b));
    rdzv_put_peers(b, &m);
}

static void relay_hello(struct buf *b)
{
    rdzv_put_relay(b, "job");
}

static void stream_open(struct buf *b)
{
    rdzv_put_stream(b, RDZV_MSG_RELAY_OPEN, 5, NULL, 0);
}

static void stream_data(struct buf *b)
{
    rdzv_put_stream(b, RDZV_MSG_RELAY_DATA, 5, "text", 4);
}

static void stream_credit(struct buf *b)
{
    rdzv_put_stream(b, RDZV_MSG_RELAY_CREDIT, 5, (const uint8_t[]){6, 0, 0, 0}, 4);
}

static void stream_fin(struct buf *b)
{
    rdzv_put_stream(b, RDZV_MSG_RELAY_FIN, 5, NULL, 0);
}

static void stream_end(struct buf *b)
{
    rdzv_put_stream(b, RDZV_MSG_RELAY_END, 5, NULL, 0);
}

static void beat(struct buf *b)
{
    struct node_id id;
    memset(id.b, 6, sizeof(id.b));
    rdzv_put_beat(b, &id);
}

static void elsewhere(struct buf *b)
{
    rdzv_put_elsewhere(b, &(struct rdzv_elsewhere){.run_id = "job", .addr = "addr", .port = 7});
}

static void request(struct buf *b)
{
    const struct rdzv_request m = {.kind = REQUEST_STACKS, .id = 9};
    rdzv_put_request(b, &m);
}

static void answer(struct buf *b)
{
    const struct rdzv_answer m = {{{0}}, REQUEST_TOP, 9, (const uint8_t *)"", 0};
    rdzv_put_answer(b, &m);
}

static void gather(struct buf *b)
{
    const struct rdzv_gather m = {round_no, 3, 1, (const uint8_t *)"text", 4};
    rdzv_put_gather(b, &m);
}

static void output(struct buf *b)
{
    rdzv_put_output(b, 7, "text", 4);
}

static void shown(struct buf *b)
{
    const struct rdzv_shown m = {7, true};
    rdzv_put_shown(b, &m);
}

static void gathered(struct buf *b)
{
    const struct buf values[] = {{.data = (uint8_t *)"a", .len = 1}, {.data = NULL}};
    rdzv_put_gathered(b, round_no, 3, values, 2);
}

static const struct node_id sixes = {{6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6}};

static void branch(struct buf *b)
{
    const struct rdzv_branch m = {round_no, true, sixes, "addr", 7};
    rdzv_put_branch(b, &m);
}

static void child(struct buf *b)
{
    const struct rdzv_child m = {"job", sixes, round_no, 8};
    rdzv_put_child(b, &m);
}

static void told(struct buf *b)
{
    const struct rdzv_request m = {.kind = REQUEST_STACKS, .id = 9};
    rdzv_put_told(b, round_no, 8, &m);
}

static void direct(struct buf *b)
{
    const struct rdzv_direct m = {round_no, 8, false, true};
    rdzv_put_direct(b, &m);
}

static void answers(struct buf *b)
{
    struct tree_answers a = {.to = sixes, .kind = REQUEST_STACKS, .id = 9};
    tree_answers_add(&a, (const uint8_t *)"1", 1);
    tree_answers_add(&a, (const uint8_t *)"23", 2);
    ck_assert(tree_answers_take(&a, NULL, NULL, b));
}

static void events(struct buf *b)
{
    struct event e[2] = {{.name = EVENT_FAILURE,
                          .seq = 1,
                          .at_ns = 2,
                          .wall_ns = 3,
                          .round = 4,
                          .attempt = 5,
                          .max_restarts = 6,
                          .nnodes = 7,
                          .world_size = 8,
                          .node = 9,
                          .pid = 10,
                          .rank = 11,
                          .local_rank = 12,
                          .exit_code = 13,
                          .signal = 14,
                          .caused_by = -1,
                          .cause = CAUSE_OOM,
                          .host = "h",
                          .text = "t",
                          .extra = "x"},
                         {.name = EVENT_SUBMIT, .seq = 2}};
    const struct event_list l = {.e = e, .n = 2};
    uint64_t at = 0;
    memset(e[0].origin.b, 5, sizeof(e[0].origin.b));
    ck_assert(rdzv_put_events(b, 77, &l, &at));
    ck_assert_uint_eq(at, 2);
}

#define FAILURE(rank)                                                                         \
    "(failure kind=3 flags=10 rank=" rank " local_rank=2 node=3 pid=4 attempt=5 exit_code=6 " \
    "signal=7 caused_by=-1 time=8 wall_time=9 host='h' role='r' operation='o' message='m' "   \
    "log_path='l' "                                                                           \
    "last_lines='t')"
#define ROUND " round=(generation epoch=77 counter=78)"
#define STATUS_CLOCKS \
    " now=10 view_sent=11 view_seen=12 respawned=13 free_port=14 ports=2 port=1 port=2"
#define VIEW_CLOCKS " restarts=12 node_restarts=13 now=14 echo=15 acked=16 heartbeat=17 dead=18"
#define TWO_ORDERS                                       \
    " order=(order number=20 local_rank=21 restarts=22)" \
    " order=(order number=23 local_rank=24 restarts=25)"
#define GPU_1 "byte=103 byte=112 byte=117 byte=45 byte=49 byte=46 byte=120"

/* Every type at least once, with no two flags of a frame always alike. */
static const struct {
    enum rdzv_msg type;
    const char *name;
    void (*put)(struct buf *b);
    const char *fields; /* NULL: it has none, and needs no table */
} frames[] = {
    {RDZV_MSG_REFUSE, "REFUSE", refuse, " retry=1 text='why'"},
    {RDZV_MSG_PROBE, "PROBE", rdzv_put_probe, NULL},
    {RDZV_MSG_IDENTITY, "IDENTITY", identity,
     " run_id='job' host='host' pid=1 finished=1 elsewhere=0 follows=0 address='addr' port=2"},
    {RDZV_MSG_IDENTITY, "IDENTITY", identity_of_another,
     " run_id='job' host='host' pid=1 finished=0 elsewhere=1 follows=0 address='addr' port=2"},
    {RDZV_MSG_HELLO, "HELLO", hello,
     " node=id10 run_id='job' version='1.2' backend=2 min_nodes=1 max_nodes=3 max_restarts=4 "
     "policy=1 store=2 host='host' role='role' local_addr='addr' pid=5 node_rank=-1 workers=6 "
     "peer_port=7 prev_rank=8 seen_epoch=9"},
    {RDZV_MSG_STATUS, "STATUS", leaving,
     " phase=5 alive=1 fenced=0" ROUND STATUS_CLOCKS
     " reason=3 exit_code=15 text='bye' total=16 first=17 failures=2 failure=" FAILURE(
         "0") " failure=" FAILURE("1")},
    {RDZV_MSG_STATUS, "STATUS", running,
     " phase=2 alive=1 fenced=0" ROUND STATUS_CLOCKS
     " total=16 first=17 failures=2 failure=" FAILURE("0") " failure=" FAILURE("1")},
    {RDZV_MSG_STATUS, "STATUS", fenced,
     " phase=0 alive=0 fenced=1 round=(generation epoch=0 counter=0) now=0 view_sent=0 "
     "view_seen=0 "
     "respawned=0 free_port=0 ports=0 total=0 first=0 failures=0"},
    {RDZV_MSG_VIEW, "VIEW", view,
     " phase=3" ROUND " group_rank=10 nodes=11" VIEW_CLOCKS
     " spare=0 elect=1 lease=0 stopped=19 why=1 stop=(stop reason=1 restarting=1 text='lost' "
     "caused=1 first=" FAILURE("1") ") orders=2" TWO_ORDERS},
    {RDZV_MSG_VIEW, "VIEW", view_without_a_failure,
     " phase=3" ROUND " group_rank=10 nodes=11" VIEW_CLOCKS
     " spare=1 elect=0 lease=0 stopped=19 why=1 stop=(stop reason=1 restarting=1 text='lost' "
     "caused=0) orders=2" TWO_ORDERS},
    {RDZV_MSG_TABLE, "TABLE", table,
     ROUND
     " restarts=1 master_addr='addr' master_port=3 store=1 nodes=2 node=(node host=(name "
     "head=0 tail=0 count=7 " GPU_1
     ") address=(name head=0 tail=0 count=4 byte=49 byte=48 byte=46 byte=49) role=(name head=0 "
     "tail=0 count=1 byte=119) pid=20 workers=2 has_ports=1 port=31 port=32) node=(node "
     "host=(name "
     "head=4 tail=2 count=1 byte=50) address=(name head=3 tail=0 count=1 byte=50) role=(name "
     "head=1 tail=0 count=0) pid=21 workers=3 has_ports=0)"},
    {RDZV_MSG_REPORT, "REPORT", report,
     " exit_code=9 reason=4 text='text' final='final' restarts=10 omitted=11 failures=2 "
     "failure=" FAILURE("0") " failure=" FAILURE("1")},
    {RDZV_MSG_NOTICE, "NOTICE", notice, " text='text'"},
    {RDZV_MSG_BACK, "BACK", rdzv_put_back, NULL},
    {RDZV_MSG_PEERS, "PEERS", peers,
     ROUND " ran=1 nodes=2 peer=(peer node=id3 address='a' port=1 host=1) peer=(peer node=id4 "
           "address='b' port=2 host=0)"},
    {RDZV_MSG_RELAY, "RELAY", relay_hello, " run_id='job'"},
    {RDZV_MSG_RELAY_OPEN, "RELAY_OPEN", stream_open, " stream=5"},
    {RDZV_MSG_RELAY_DATA, "RELAY_DATA", stream_data, " stream=5 data='text'"},
    {RDZV_MSG_RELAY_CREDIT, "RELAY_CREDIT", stream_credit, " stream=5 count=6"},
    {RDZV_MSG_RELAY_FIN, "RELAY_FIN", stream_fin, " stream=5"},
    {RDZV_MSG_RELAY_END, "RELAY_END", stream_end, " stream=5"},
    {RDZV_MSG_BEAT, "BEAT", beat, " node=id6"},
    {RDZV_MSG_ELSEWHERE, "ELSEWHERE", elsewhere, " run_id='job' address='addr' port=7"},
    {RDZV_MSG_WANT, "WANT", rdzv_put_want, NULL},
    {RDZV_MSG_REQUEST, "REQUEST", request, " kind='stacks' id=9 from=id0 rest=''"},
    {RDZV_MSG_ANSWER, "ANSWER", answer, " to=id0 kind='top' id=9"},
    {RDZV_MSG_GATHER, "GATHER", gather, ROUND " number=3 node=1 value='text'"},
    {RDZV_MSG_GATHERED, "GATHERED", gathered,
     ROUND " number=3 nodes=2 value=(value length=1 byte=97) value=(value length=0)"},
    {RDZV_MSG_BRANCH, "BRANCH", branch, ROUND " peers=1 parent=id6 address='addr' port=7"},
    {RDZV_MSG_CHILD, "CHILD", child, " run_id='job' parent=id6" ROUND " told=8"},
    {RDZV_MSG_TOLD, "TOLD", told, ROUND " number=8 kind='stacks' id=9 from=id0 rest=''"},
    {RDZV_MSG_DIRECT, "DIRECT", direct, ROUND " told=8 peers=0 table=1"},
    {RDZV_MSG_ANSWERS, "ANSWERS", answers,
     " to=id6 kind='stacks' id=9 answers=2 answer='1' answer='23'"},
    {RDZV_MSG_OUTPUT, "OUTPUT", output, " number=7 records='text'"},
    {RDZV_MSG_SHOWN, "SHOWN", shown, " number=7 here=1"},
    {RDZV_MSG_EVENTS, "EVENTS", events,
     " now=77 events=2 event=(event name=8 origin=id5 number=1 time=2 wall_time=3 round=4 "
     "attempt=5 max_restarts=6 nodes=7 workers=8 node=9 pid=10 rank=11 local_rank=12 "
     "exit_code=13 "
     "signal=14 caused_by=-1 cause=4 host='h' text='t' extra='x') event=(event name=0 "
     "origin=id0 "
     "number=2 time=0 wall_time=0 round=0 attempt=0 max_restarts=0 nodes=0 workers=0 node=0 "
     "pid=0 "
     "rank=0 local_rank=0 exit_code=0 signal=0 caused_by=0 cause=0 host='' text='' extra='')"},
};

START_TEST(fields)
{
    struct buf b = BUF_INIT, out = BUF_INIT;
    page = read_file("man/dlaunch-protocol.7");
    ck_assert_msg(strstr(page, test_text("\n.It %d %s Pq ", frames[_i].type, frames[_i].name)),
                  "man/dlaunch-protocol.7 has no frame %d %s", frames[_i].type, frames[_i].name);
    frames[_i].put(&b);
    struct rd r = rd_init(b.data, b.len);
    ck_assert_uint_eq(rd_u32(&r), b.len - 4);
    ck_assert_uint_eq(rd_u8(&r), frames[_i].type);
    if (frames[_i].fields) {
        read_part(frames[_i].name, &r, &out);
        buf_u8(&out, '\0');
        ck_assert_str_eq((const char *)out.data, frames[_i].fields);
    }
    ck_assert_msg(rd_done(&r), "man/dlaunch-protocol.7: %s has %td bytes more than its table",
                  frames[_i].name, r.end - r.p);
    buf_fini(&b);
    buf_fini(&out);
    free(page);
}
END_TEST

START_TEST(every_frame_has_a_table)
{
    for (int type = 1; type < RDZV_MSGS; type++) {
        size_t i = 0;
        while (i < ARRAY_LEN(frames) && frames[i].type != (enum rdzv_msg)type)
            i++;
        ck_assert_msg(i < ARRAY_LEN(frames), "frame %d has no table", type);
    }
}
END_TEST

/* The table of kinds says what follows the fields of a REQUEST. */
START_TEST(kinds_of_requests)
{
    page = read_file("man/dlaunch-protocol.7");
    const char *row = strstr(page, ".\\\" kinds begin\n"), *to = strstr(page, ".\\\" kinds end\n");
    struct rd r = {0};
    struct buf b = BUF_INIT, out = BUF_INIT;
    int nkinds = 0;
    ck_assert(row && to);
    for (row = strchr(row, '\n') + 1; row < to; row = strchr(row, '\n') + 1) {
        char name[16] = "", type[16] = "";
        size_t n = strcspn(row, "\t\n");
        if (row[0] == '.' || row[n] == '\n')
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)n, row);
        snprintf(type, sizeof(type), "%.*s", (int)strcspn(row + n + 1, "\t\n"), row + n + 1);
        if (*name) {
            struct rdzv_request m = {.kind = REQUEST_RESTART};
            ck_assert_msg(rd_done(&r), "the kind before %s says more", name);
            while (m.kind < REQUEST_KINDS && strcmp(request_name(m.kind), name) != 0)
                m.kind++;
            ck_assert_msg(m.kind < REQUEST_KINDS, "there is no kind %s", name);
            b.len = 0;
            request_encode(&b, &m);
            r = rd_init(b.data, b.len);
            rd_take(&r, 4 + strlen(name) + 8 + sizeof(m.from.b));
            nkinds++;
        }
        if (*type)
            read_field(type, "it", &r, &out);
        ck_assert_msg(!r.bad, "%s does not say so much", name);
    }
    ck_assert(rd_done(&r));
    ck_assert_int_eq(nkinds, REQUEST_KINDS);
    buf_fini(&b);
    buf_fini(&out);
    free(page);
}
END_TEST

/* ----------------------------------------------------------------------------------- the
 * limits */

/* 131,072 */
static const char *thousands(unsigned long n)
{
    if (n < 1000)
        return test_text("%lu", n);
    return test_text("%s,%03lu", thousands(n / 1000), n % 1000);
}

static void expect(const char *path, const char *text, const char *words)
{
    ck_assert_msg(strstr(text, words), "%s does not contain \"%s\"", path, words);
}

/* Line ends become blanks. */
static char *running_text(const char *path)
{
    char *text = test_keep(read_file(path));
    for (char *p = text; (p = strchr(p, '\n'));)
        *p = ' ';
    return text;
}

#define KIB(n) ((unsigned long)(n) >> 10)
#define MIB(n) ((unsigned long)(n) >> 20)
#define GIB(n) ((unsigned long)(n) >> 30)

START_TEST(limits)
{
    const char *const path = "man/dlaunch-protocol.7", *text = running_text(path);
    const char *keys = thousands(STORE_KEYS_MAX);
    expect(path, text, test_text("the protocol version, a u32, which is %u.", RDZV_PROTOCOL));
    expect(path, text,
           test_text(
               "A frame has at most %lu MiB, and at most %d bytes before the HELLO of the member.",
               MIB(RDZV_FRAME_MAX), RDZV_FRAME_MAX_FIRST));
    expect(path, text, test_text("u8\tfailures\tat most %d", RDZV_STATUS_FAILURES));
    expect(path, text, test_text("sends nothing within %d seconds", PENDING_MS / 1000));
    expect(path, text,
           test_text("%d may come from one address (any number over loopback), and %d plus two for "
                     "each node from all addresses",
                     PENDING_PER_ADDRESS, PENDING_MAX(0)));
    expect(path, text,
           test_text("at most %s streams at a time", thousands(RELAY_STREAMS_MAX(NPROC_MAX))));
    expect(path, text, test_text("%s bytes may be sent", thousands(RELAY_WINDOW)));
    expect(path, text,
           test_text(
               "Limits: a key %lu KiB; a value %lu MiB; a request %s keys, and %lu KiB more than "
               "a value; an answer %lu GiB; a client watches %s keys; the store holds %s "
               "keys and %lu GiB. Unfinished requests and unread answers of all clients "
               "together are limited to %lu GiB.",
               KIB(STORE_KEY_MAX), MIB(STORE_VALUE_MAX), keys,
               KIB(STORE_CALL_MAX - STORE_VALUE_MAX), GIB(STORE_REPLY_MAX),
               thousands(STORE_WATCHES_MAX), thousands(STORE_NAMES_MAX), GIB(STORE_BYTES_MAX),
               GIB(STORE_BUFFERS_MAX)));
    expect(path, text,
           test_text("more than %lu MiB of answers to read and reads nothing for",
                     MIB(STORE_UNREAD_MAX)));
    expect("man/dlaunch.1", running_text("man/dlaunch.1"),
           test_text("(up to %d connections per worker of the node, and at least %d)",
                     RELAY_STREAMS_MAX(NPROC_MAX) / NPROC_MAX, RELAY_STREAMS_MAX(1)));
}
END_TEST

/* "u32 seq, u16 part": the members in the order of the struct, which has no gaps. */
struct member_text {
    char words[400];
    size_t end;
};

static void add_member(struct member_text *t, const char *type, const char *name, size_t at,
                       size_t size)
{
    size_t n = strlen(t->words);
    ck_assert_msg(at == t->end, "%s lies at %zu", name, at);
    t->end = at + size;
    snprintf(t->words + n, sizeof(t->words) - n, "%s%s%zu %s", n ? ", " : "", type, size * 8, name);
}

#define MEMBER(t, sign, s, m) \
    add_member(t, sign, #m, offsetof(struct s, m), sizeof(((struct s *)NULL)->m))
#define UNSIGNED(s, m) MEMBER(&text_of_##s, "u", s, m)
#define SIGNED(s, m)   MEMBER(&text_of_##s, "i", s, m)

START_TEST(data_connections)
{
    const char *const path = "man/dlaunch-protocol.7", *text = running_text(path);
    struct member_text text_of_hello = {0}, text_of_op_signature = {0}, text_of_p2p_frame = {0};
    struct member_text text_of_frame = {0};
    UNSIGNED(hello, magic), UNSIGNED(hello, version), UNSIGNED(hello, kind), UNSIGNED(hello, epoch),
        UNSIGNED(hello, counter);
    UNSIGNED(hello, instance), UNSIGNED(hello, comm), UNSIGNED(hello, from), UNSIGNED(hello, to),
        UNSIGNED(hello, channel);
    UNSIGNED(hello, socket), UNSIGNED(hello, unused), UNSIGNED(hello, settings);
    UNSIGNED(op_signature, kind), UNSIGNED(op_signature, dtype), UNSIGNED(op_signature, op),
        UNSIGNED(op_signature, settings), SIGNED(op_signature, root), UNSIGNED(op_signature, count);
    UNSIGNED(p2p_frame, kind), UNSIGNED(p2p_frame, dtype), UNSIGNED(p2p_frame, flags),
        SIGNED(p2p_frame, tag);
    UNSIGNED(p2p_frame, count), UNSIGNED(p2p_frame, id), UNSIGNED(p2p_frame, taken);
    expect(path, text, test_text("a hello of %zu bytes in each direction", text_of_hello.end));
    expect(path, text, test_text("connected: %s.", text_of_hello.words));
    expect(path, text, test_text("the version %u.", HELLO_VERSION));
    expect(path, text,
           test_text("The kinds are %d data, %d notice, %d gone, %d probe, %d ask.", HELLO_DATA,
                     HELLO_NOTICE, HELLO_GONE, HELLO_PROBE, HELLO_ASK));
    UNSIGNED(frame, seq), UNSIGNED(frame, history), UNSIGNED(frame, part), UNSIGNED(frame, socket);
    expect(path, text,
           test_text("has a header of %zu bytes: %s, then the call, then u64 len",
                     sizeof(struct frame), text_of_frame.words));
    ck_assert_uint_eq(text_of_frame.end, offsetof(struct frame, sig));
    ck_assert_uint_eq(offsetof(struct frame, last_seq), offsetof(struct frame, len) + 8);
    ck_assert_uint_eq(offsetof(struct frame, last), offsetof(struct frame, last_seq) + 8);
    expect(path, text, test_text("The call is %s;", text_of_op_signature.words));
    expect(path, text,
           test_text("In channel %d the header is %s.", CHANNEL_P2P, text_of_p2p_frame.words));
    expect(path, text, test_text("A message of more than %lu KiB is offered", KIB(P2P_AHEAD_MOST)));
    expect(path, text,
           test_text("offered if more than %lu MiB of messages that were not would be unmatched "
                     "at the receiver, where each counts as %d bytes or more",
                     KIB(P2P_WINDOW_BYTES) / 1024, P2P_KEEP_BYTES));
    expect(path, text,
           test_text("a message of more than %lu KiB is offered; the receiver writes",
                     KIB(P2P_EAGER_BYTES)));
    expect(path, text,
           test_text("a message of %d KiB or more, so that the message begins %d bytes after",
                     FRAME_LONG / 1024, FRAME_DISTANCE));
    expect(path, text, test_text("offered (%d), and sent (%d)", P2P_RTS, P2P_DATA));
    expect(path, text, test_text("asked for it (%d)", P2P_CTS));
    expect(path, text, test_text("and then reports this (%d).", P2P_FETCHED));
    expect(path, text, test_text("the last %d operations", SEGMENT_OPS));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("protocol_page");
    TCase *tc = test_case(s, "frames", 10);
    tcase_add_loop_test(tc, fields, 0, ARRAY_LEN(frames));
    tcase_add_test(tc, every_frame_has_a_table);
    tcase_add_test(tc, kinds_of_requests);
    tcase_add_test(tc, limits);
    tcase_add_test(tc, data_connections);
    return s;
}

TEST_MAIN(suite)
