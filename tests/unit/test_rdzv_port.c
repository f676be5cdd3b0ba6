/* The one port of a job: unauthenticated peers, who owns it, the address it is bound to, and its
 * limits. */
#include "tests/lib/preamble.h"
#include "tests/lib/rdzv_nodes.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "rendezvous/wire/pending.h"
#include "rendezvous/discovery/meeting.h"
#include "rendezvous/wire/auth.h"
#include "rendezvous/rules/rdzv_msg.h"

/* ------------------------------------------------------------------------------------ strangers */

START_TEST(garbage_on_the_port_is_ignored)
{
    static const struct {
        const char *bytes;
        size_t n;
    } garbage[] = {{"GET / HTTP/1.1\r\n\r\n", 18},
                   {"SSH-2.0-OpenSSH\r\n", 17},
                   {"\x16\x03\x01\x02\x00\x01", 6},
                   {"\xff\xff\xff\xff\xff\xff", 6},
                   {"DLR0abcdefgh", 12},
                   {PREAMBLE "\xff\xff\xff\xff\x04", 13}, /* a giant */
                   {PREAMBLE "\0\0\0\0\x04", 13},         /* an empty frame */
                   {PREAMBLE "\x01\x10\0\0\x04", 13},     /* too long before hello */
                   {PREAMBLE "\x05\0\0\0\x04zzzz", 17},   /* a malformed hello */
                   {PREAMBLE "\x01\0\0\0\x05", 13},       /* a status first */
                   {"D", 1}};
    int port = unused_port();
    config_of(0, RDZV_STATIC, port, 2, 2)->node_rank = 0;
    config_of(1, RDZV_STATIC, port, 2, 2)->node_rank = 1;
    open_node(0);
    loop_turns(&loop, 5);
    char out[1024];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < ARRAY_LEN(garbage); i++) {
            int fd = call(port);
            ck_assert_int_eq(send(fd, garbage[i].bytes, garbage[i].n, MSG_NOSIGNAL),
                             (ssize_t)garbage[i].n);
            if (garbage[i].n == 1)
                shutdown(fd, SHUT_WR);
            hear(fd, out, sizeof(out), sizeof(out));
            close(fd);
        }
    }
    char *line = strstr(logs, "none of ours");
    ck_assert_ptr_nonnull(line);
    ck_assert_ptr_null(strstr(line + 1, "none of ours")); /* one line per source */
    open_node(1);
    wait_runs(0, 1, 1);
}
END_TEST

/* A node that shares an address with a refused one is not refused for that. (All nodes of a host
 * share the loopback address.) */
START_TEST(a_refused_peer_does_not_block_its_address)
{
    struct netaddr own;
    char ip[ADDR_STRLEN], out[8];
    if (netaddr_list_local(&own, 1) < 1) {
        test_skip("this host has no address but loopback");
        return;
    }
    int port = unused_port();
    netaddr_ip(&own, ip);
    netaddr_set_port(&own, port);
    for (int i = 0; i < 2; i++) {
        config_of(i, RDZV_STATIC, port, 2, 2)->node_rank = i;
        nodes[i].config.endpoint_host = ip;
    }
    open_node(0);
    loop_turns(&loop, 5);
    for (int i = 0; i < 20; i++) {
        int fd = socket(own.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(connect(fd, &own.sa, own.len), 0);
        ck_assert_int_eq(send(fd, "G", 1, MSG_NOSIGNAL), 1);
        hear(fd, out, sizeof(out), sizeof(out)); /* it is closed */
        close(fd);
    }
    open_node(1);
    wait_runs(0, 1, 1);
}
END_TEST

START_TEST(store_clients_get_to_the_store)
{
    config_of(0, RDZV_C10D, 0, 1, 1);
    open_node(0);
    wait_runs(0, 0, 1);
    int fd = call(nodes[0].master_port);
    static const uint8_t hello[] = {0, 0xce, 0xf7, 0x85, 0x3c, 13, 1, 2, 3, 4};
    uint8_t answer[4];
    ck_assert_int_eq(send(fd, hello, sizeof(hello), 0), sizeof(hello));
    ck_assert_uint_eq(hear(fd, answer, sizeof(answer), 4), 4);
    ck_assert_int_eq(memcmp(answer, "\1\2\3\4", 4), 0);
    close(fd);
}
END_TEST

START_TEST(another_version_is_refused_with_a_reason)
{
    int port = unused_port();
    config_of(0, RDZV_STATIC, port, 2, 2)->node_rank = 0;
    open_node(0);
    int fd = call(port);
    ck_assert_int_eq(send(fd, "DLR1\x09\0\0\0", 8, 0), 8);
    uint8_t answer[1024];
    size_t n = hear(fd, answer, sizeof(answer), sizeof(answer));
    ck_assert_uint_gt(n, RDZV_PREAMBLE_LEN + RDZV_FRAME_HEADER);
    ck_assert_uint_eq(rdzv_get_preamble(answer), RDZV_PROTOCOL);
    ck_assert_int_eq(answer[12], RDZV_MSG_REFUSE);
    struct rd r = rd_init(answer + 13, n - 13);
    struct rdzv_refusal refusal;
    ck_assert(rdzv_get_refusal(&r, &refusal));
    ck_assert(!refusal.retry);
    HAS(refusal.text, test_text("rendezvous 9, not %u", PROTOCOL_RENDEZVOUS));
    HAS(logs, "turned away 127.0.0.1");
    close(fd);
}
END_TEST

/* A listener that sends `answer` to every client. */
static struct endpoint *stranger;
static const char *stranger_says;
static size_t stranger_says_n;
static bool stranger_closed;

static void on_stranger(void *arg, int fd, const struct netaddr *peer, bool tls)
{
    (void)arg, (void)peer, (void)tls;
    if (send(fd, stranger_says, stranger_says_n, MSG_NOSIGNAL) < 0)
        ck_abort();
    shutdown(fd, SHUT_WR);
    char sink[4096];
    while (recv(fd, sink, sizeof(sink), 0) > 0)
        ;
    close(fd);
}

static void on_stranger_closed(void *arg)
{
    (void)arg;
    stranger_closed = true;
}

static void member_of_stranger(const char *says, size_t n, int exit_code)
{
    struct endpoint_bind b = {0};
    struct endpoint_events ev = {NULL, on_stranger, NULL, NULL};
    struct err e = ERR_INIT;
    netaddr_parse_ip(&b.addr, "127.0.0.1", 0);
    int fd = endpoint_listen(&b, &e);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(endpoint_open(&stranger, &loop, fd, 2, &ev, &e), 0);
    stranger_says = says;
    stranger_says_n = n;
    stranger_closed = false;
    config_of(0, RDZV_STATIC, endpoint_port(stranger), 2, 2)->node_rank = 1;
    nodes[0].config.join_timeout = 0.3;
    open_node(0);
    wait_finished(0, 0);
    ck_assert_int_eq(nodes[0].result.exit_code, exit_code);
    endpoint_close(stranger, on_stranger_closed, NULL);
    loop_run_until(&loop, &stranger_closed, 5, "close");
}

START_TEST(the_listener_is_not_a_coordinator)
{
    member_of_stranger("SSH-2.0-OpenSSH\r\n", 17, 1);
    HAS(nodes[0].result.text, "what listens there is no coordinator of dlaunch");
}
END_TEST

START_TEST(the_listener_sends_garbage)
{
    member_of_stranger(PREAMBLE "\x05\0\0\0\x06zzzz", 17, 1);
    HAS(nodes[0].result.text, "malformed message");
}
END_TEST

START_TEST(the_coordinator_has_another_version)
{
    struct buf b = BUF_INIT;
    rdzv_put_preamble(&b);
    b.data[4] = 77;
    rdzv_put_refusal(&b, false, "two versions");
    member_of_stranger((const char *)b.data, b.len, 2);
    HAS(nodes[0].result.text, "turned this node away: two versions");
    buf_fini(&b);
}
END_TEST

static int lines_said;
static char last_line[256];

static void on_line(void *arg, const char *line, size_t len)
{
    (void)arg;
    lines_said++;
    snprintf(last_line, sizeof(last_line), "%.*s", (int)len, line);
}

/* However many addresses connections come from, and an IPv6 network has 2^64 of them, the log tells
 * of few. */
START_TEST(refused_connections_of_many_addresses)
{
    static const struct {
        const char *format;
        int lines;
    } cases[] = {{"2001:db8:0:1::%x", 1},
                 {"2001:db8:0:%x::1", 16},
                 {"::ffff:10.9.8.%d", 16},
                 {"10.9.8.%d", 16},
                 {"10.9.8.7", 1}};
    struct endpoint_bind b = {0};
    struct endpoint_events ev = {NULL, on_stranger, NULL, NULL};
    struct err e = ERR_INIT;
    struct netaddr peer;
    netaddr_parse_ip(&b.addr, "127.0.0.1", 0);
    int fd = endpoint_listen(&b, &e);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(endpoint_open(&stranger, &loop, fd, 2, &ev, &e), 0);
    lines_said = 0;
    stranger_closed = false;
    log_set_writer(on_line, NULL);
    for (int i = 0; i < 2000; i++) {
        ck_assert(netaddr_parse_ip(&peer, test_text(cases[_i].format, 1 + i % 200), 0));
        endpoint_complain(stranger, &peer, "a connection that lacks manners");
    }
    log_set_writer(NULL, NULL);
    ck_assert_int_eq(lines_said, cases[_i].lines);
    HAS(last_line, "refused a connection that lacks manners, from ");
    endpoint_close(stranger, on_stranger_closed, NULL);
    loop_run_until(&loop, &stranger_closed, 5, "close");
}
END_TEST

/* ------------------------------------------------------------------------------------- the port */

START_TEST(port_in_use_names_the_owner)
{
    struct err e = ERR_INIT;
    char pid[32];
    struct endpoint_bind b = {0};
    netaddr_parse_ip(&b.addr, "127.0.0.1", 0);
    _cleanup_fd_ int fd = endpoint_listen(&b, NULL);
    struct netaddr a = {.len = sizeof(a.ss)};
    getsockname(fd, &a.sa, &a.len);
    config_of(0, RDZV_STATIC, netaddr_port(&a), 2, 2)->node_rank = 0;
    ck_assert_int_lt(try_open(0, &e), 0);
    nodes[0].r = NULL;
    HAS(e.msg, "Address already in use");
    snprintf(pid, sizeof(pid), "by pid %d (", (int)getpid());
    HAS(e.msg, pid);
    HAS(e.msg, "; choose another port with --master_port or --rdzv_endpoint");
}
END_TEST

START_TEST(port_in_use_by_another_job)
{
    struct err e = ERR_INIT;
    int port = unused_port();
    config_of(1, RDZV_STATIC, port, 2, 2)->node_rank = 0;
    nodes[1].config.run_id = "first job";
    pid_t pid = fork_node(1);
    config_of(2, RDZV_STATIC, port, 2, 2)->node_rank = 1; /* it is up when this one is let in */
    nodes[2].config.run_id = "first job";
    open_node(2);
    wait_runs(2, 2, 1);
    config_of(0, RDZV_STATIC, port, 2, 2)->node_rank = 0;
    ck_assert_int_lt(try_open(0, &e), 0);
    nodes[0].r = NULL;
    HAS(e.msg, "in use by the coordinator of job 'first job' (node1, pid ");
    const char *owner = strstr(e.msg, "pid ");
    ck_assert_msg(owner && !strstr(owner + 1, "pid "), "the pid once: %s", e.msg);
    HAS(e.msg, "; choose another port with --master_port or --rdzv_endpoint");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
END_TEST

/* An agent that listens there, and its guardian. Returns the guardian's pid; the agent writes its
 * own, and ends when the pipe is closed. */
static pid_t fork_launcher(int fd, int ends[2])
{
    pid_t agent, guardian = fork();
    if (guardian)
        return guardian;
    close(ends[0]);
    agent = fork();
    if (agent) {
        close(fd);
        for (;;)
            pause();
    }
    prctl(PR_SET_NAME, ENDPOINT_AGENT);
    agent = getpid();
    struct pollfd gone = {.fd = ends[1], .events = POLLIN};
    if (listen(fd, 1) < 0 || write(ends[1], &agent, sizeof(agent)) < 0 || poll(&gone, 1, 60000) < 0)
        _exit(1);
    _exit(0);
}

/* The predecessor's guardian was killed; its agent is about to end its workers. */
START_TEST(a_port_that_is_let_go_is_waited_for)
{
    struct err e = ERR_INIT;
    int ends[2], port = unused_port();
    pid_t agent;
    struct endpoint_bind b = {0};
    netaddr_parse_ip(&b.addr, "127.0.0.1", port);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    int fd = endpoint_listen(&b, &e);
    ck_assert_int_ge(fd, 0);
    pid_t guardian = fork_launcher(fd, ends);
    close(fd);
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], &agent, sizeof(agent)), sizeof(agent));
    for (int i = 0; i < 2; i++)
        config_of(i, RDZV_STATIC, port, 2, 2)->node_rank = i;
    ck_assert_int_lt(try_open(0, &e), 0); /* as long as the guardian lives */
    nodes[0].r = NULL;
    HAS(e.msg, test_text("in use by pid %d (" ENDPOINT_AGENT "); choose another port", agent));
    kill(guardian, SIGKILL);
    open_node(0);
    waitpid(guardian, NULL, 0);
    ck_assert(endpoint_port_is_let_go(port));
    loop_turns(&loop, 50);
    ck_assert(!nodes[0].finished);
    close(ends[0]);
    open_node(1);
    wait_runs(0, 1, 1);
}
END_TEST

/* -------------------------------------------------------------------------------- where they meet
 */

/* In a network with the addresses 10.0.0.1 and 10.0.0.2. `resolved`: what the name leads to. */
static const struct {
    const char *called, *resolved[3];
    enum meeting_kind kind;
    const char *one, *several; /* where it listens: "*" everywhere */
    bool one_as_called, several_as_called;
} places[] = {
    {"", {NULL}, MEETING_EVERY, "*", "*", false, false},
    {"0.0.0.0", {NULL}, MEETING_EVERY, "*", "*", false, false},
    {"::", {NULL}, MEETING_EVERY, "*", "*", false, false},
    {"localhost", {NULL}, MEETING_LOOPBACK, "127.0.0.1", "127.0.0.1", true, true},
    {"127.0.0.2", {NULL}, MEETING_LOOPBACK, "127.0.0.2", "127.0.0.2", true, true},
    {"::1", {NULL}, MEETING_LOOPBACK, "::1", "::1", true, true},
    {"myhost", {"127.0.1.1"}, MEETING_LOOPBACK_NAME, "127.0.1.1", "*", true, true},
    {"myhost", {"127.0.1.1", "::1"}, MEETING_SEVERAL, "*", "*", true, true},
    {"10.0.0.1", {NULL}, MEETING_OWN, "10.0.0.1", "10.0.0.1", true, true},
    {"myhost", {"10.0.0.2"}, MEETING_OWN, "10.0.0.2", "10.0.0.2", true, true},
    {"myhost", {"10.0.0.2", "10.0.0.2"}, MEETING_OWN, "10.0.0.2", "10.0.0.2", true, true},
    {"myhost", {"192.0.2.1", "10.0.0.2"}, MEETING_OWN, "10.0.0.2", "10.0.0.2", true, true},
    {"myhost", {"10.0.0.1", "10.0.0.2"}, MEETING_SEVERAL, "*", "*", true, true},
    {"myhost", {"127.0.1.1", "10.0.0.1"}, MEETING_SEVERAL, "*", "*", true, true},
    {"192.0.2.1", {NULL}, MEETING_ELSEWHERE, "127.0.0.1", "*", false, true},
    {"elsewhere", {"192.0.2.1"}, MEETING_ELSEWHERE, "127.0.0.1", "*", false, true},
    {"nohost", {NULL}, MEETING_ELSEWHERE, "127.0.0.1", "*", false, true},
};

static void expect_listening(const struct meeting *m, const char *where, const char *called)
{
    char ip[ADDR_STRLEN];
    bool all = strcmp(where, "*") == 0;
    ck_assert_msg(m->bind.any == all, "%s", called);
    ck_assert_int_eq(netaddr_port(&m->bind.addr), 5);
    if (!all)
        ck_assert_str_eq(netaddr_ip(&m->bind.addr, ip), where);
}

START_TEST(where_the_coordinator_listens)
{
    if (!enter_network_of(2)) {
        test_skip("no network namespace to be had");
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        struct netaddr addrs[3];
        struct meeting m;
        int n = 0;
        for (; n < 3 && places[i].resolved[n]; n++)
            netaddr_parse_ip(&addrs[n], places[i].resolved[n], 5);
        meeting_choose(&m, places[i].called, 5, addrs, n, 1, NULL);
        ck_assert_int_eq(m.kind, places[i].kind);
        expect_listening(&m, places[i].one, places[i].called);
        ck_assert_int_eq(m.as_called, places[i].one_as_called);
        meeting_choose(&m, places[i].called, 5, addrs, n, 2, NULL);
        expect_listening(&m, places[i].several, places[i].called);
        ck_assert_int_eq(m.as_called, places[i].several_as_called);
    }
}
END_TEST

/* How one node is told to meet, and what its workers must be able to connect to. */
static const struct {
    enum rdzv_backend backend;
    const char *endpoint, *local;
    const char *told; /* MASTER_ADDR */
} meetings[] = {
    {RDZV_STATIC, "127.0.0.1", NULL, "127.0.0.1"},
    {RDZV_STATIC, "localhost", NULL, "localhost"},
    {RDZV_STATIC, "::1", NULL, "::1"},
    {RDZV_STATIC, "10.0.0.2", NULL, "10.0.0.2"},
    {RDZV_STATIC, "10.0.0.2", "10.0.0.1", "10.0.0.2"},
    {RDZV_STATIC, "0.0.0.0", NULL, "127.0.0.1"},
    {RDZV_STATIC, "::", "10.0.0.1", "10.0.0.1"},
    {RDZV_STATIC, "192.0.2.1", NULL, "127.0.0.1"},
    {RDZV_STATIC, "nohost.invalid", NULL, "127.0.0.1"},
    {RDZV_C10D, "127.0.0.1", NULL, "127.0.0.1"},
    {RDZV_C10D, "localhost", "10.0.0.1", "10.0.0.1"},
    {RDZV_C10D, "10.0.0.2", NULL, "10.0.0.2"},
    {RDZV_C10D, "0.0.0.0", "10.0.0.1", "10.0.0.1"},
    {RDZV_C10D, "192.0.2.1", NULL, "127.0.0.1"},
    {RDZV_C10D, "127.0.0.1", "192.0.2.1", "127.0.0.1"}, /* nobody's */
    {RDZV_FILE, NULL, NULL, "127.0.0.1"},
    {RDZV_FILE, NULL, "10.0.0.2", "10.0.0.2"},
};

/* A client of the store at what a worker is told: an answer, or the connection is refused. */
static void expect_store_at(const struct node *n)
{
    static const uint8_t hello[] = {0, 0xce, 0xf7, 0x85, 0x3c, 13, 1, 2, 3, 4};
    struct netaddr a;
    uint8_t answer[4];
    const char *ip = strcmp(n->master_addr, "localhost") ? n->master_addr : "127.0.0.1";
    ck_assert_msg(netaddr_parse_ip(&a, ip, n->master_port), "%s", n->master_addr);
    int fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_msg(connect(fd, &a.sa, a.len) == 0, "nothing listens at %s:%d", n->master_addr,
                  n->master_port);
    ck_assert_int_eq(send(fd, hello, sizeof(hello), 0), sizeof(hello));
    ck_assert_uint_eq(hear(fd, answer, sizeof(answer), 4), 4);
    close(fd);
}

/* A port of this host's that is told, and nothing listens there: a worker can. */
static void expect_room_at(const struct node *n)
{
    struct endpoint_bind b = {0};
    struct err e = ERR_INIT;
    ck_assert(netaddr_parse_ip(&b.addr, n->master_addr, n->master_port));
    int fd = endpoint_listen(&b, &e);
    ck_assert_msg(fd >= 0, "%s", e.msg);
    close(fd);
}

enum { BY_AGENT, BY_RELAY, BY_NOBODY, STORES };

START_TEST(what_workers_are_told_listens)
{
    static struct auth no_token; /* as in a job on one node that names none */
    if (!enter_network_of(2)) {
        test_skip("no network namespace to be had");
        return;
    }
    int store = _i % STORES;
    struct rdzv_config *c = config_of(0, meetings[_i / STORES].backend, 0, 1, 1);
    c->endpoint_host = c->master_addr = meetings[_i / STORES].endpoint;
    c->endpoint_path = tmppath("meeting");
    c->local_addr = meetings[_i / STORES].local;
    c->agent_store = store != BY_NOBODY;
    c->relay = store == BY_RELAY;
    c->auth = &no_token;
    open_node(0);
    wait_runs(0, 0, 1);
    struct node *n = &nodes[0];
    if (store == BY_NOBODY) {
        expect_room_at(n);
        return;
    }
    ck_assert_str_eq(n->master_addr, meetings[_i / STORES].told);
    if (store == BY_RELAY) {
        strcpy(n->master_addr, "127.0.0.1");
        n->master_port = rdzv_relay_port(n->r);
    }
    expect_store_at(n);
}
END_TEST

/* ------------------------------------------------------------------------------------- endpoint */

START_TEST(silent_connections_are_bounded)
{
    config_of(0, RDZV_STATIC, unused_port(), 2, 2)->node_rank = 0;
    nodes[0].config.agent_store = false;
    open_node(0);
    loop_turns(&loop, 3);
    enum { N = 200 };
    int fds[N], open = 0;
    for (int i = 0; i < N; i++) {
        fds[i] = call(nodes[0].config.endpoint_port);
        loop_turns(&loop, 3);
    }
    char byte;
    for (int i = 0; i < N; i++) {
        fd_set_nonblock(fds[i], true);
        open += recv(fds[i], &byte, 1, 0) < 0 && errno == EAGAIN;
    }
    ck_assert_int_eq(open, PENDING_MAX(2)); /* the newest */
    config_of(1, RDZV_STATIC, nodes[0].config.endpoint_port, 2, 2)->node_rank = 1;
    nodes[1].config.agent_store = false;
    open_node(1);
    wait_runs(0, 1, 1);
    for (int i = 0; i < N; i++)
        close(fds[i]);
}
END_TEST

/* A client of PyTorch before 2.0 has a second connection, on which it is silent until it watches a
 * key: the store takes it, whatever else is silent. */
START_TEST(silent_clients_of_the_store_are_kept)
{
    enum { N = 200 };
    static const uint8_t hello[] = {0, 0xce, 0xf7, 0x85, 0x3c, 13, 1, 2, 3, 4};
    uint8_t answer[4];
    int fds[N];
    config_of(0, RDZV_C10D, 0, 1, 1);
    open_node(0);
    wait_runs(0, 0, 1);
    for (int i = 0; i < N; i++) {
        fds[i] = call(nodes[0].master_port);
        loop_turns(&loop, 3);
    }
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(send(fds[i], hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
        ck_assert_uint_eq(hear(fds[i], answer, sizeof(answer), 4), 4);
        close(fds[i]);
    }
}
END_TEST

START_TEST(silent_connections_are_closed_in_time)
{
    config_of(0, RDZV_STATIC, unused_port(), 2, 2)->node_rank = 0;
    nodes[0].config.agent_store = false;
    open_node(0);
    loop_turns(&loop, 3);
    int silent = call(nodes[0].config.endpoint_port), half = call(nodes[0].config.endpoint_port);
    ck_assert_int_eq(send(half, PREAMBLE "\x40", 9, 0), 9); /* a hello that never ends */
    uint64_t start = mono_ns();
    char out[64];
    hear(silent, out, sizeof(out), sizeof(out));
    hear(half, out, sizeof(out), sizeof(out));
    double seconds = (double)(mono_ns() - start) / 1e9;
    ck_assert_double_gt(seconds, 4);
    close(silent);
    close(half);
}
END_TEST

START_TEST(no_descriptors_left)
{
    config_of(0, RDZV_STATIC, unused_port(), 2, 2)->node_rank = 0;
    open_node(0);
    loop_turns(&loop, 3);
    int fd = call(nodes[0].config.endpoint_port);
    struct rlimit old, low;
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    int probe = dup(0);
    low.rlim_cur = (rlim_t)probe; /* not one more */
    close(probe);
    int fill = dup(0);
    setrlimit(RLIMIT_NOFILE, &low);
    char out[8];
    hear(fd, out, sizeof(out), sizeof(out)); /* it is hung up on */
    HAS(logs, "cannot accept connections: Too many open files");
    setrlimit(RLIMIT_NOFILE, &old);
    close(fill);
    close(fd);
    config_of(1, RDZV_STATIC, nodes[0].config.endpoint_port, 2, 2)->node_rank = 1;
    open_node(1);
    wait_runs(0, 1, 1);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("rdzv_port");
    TCase *tc = net_case(s, "strangers", 40);
    tcase_add_test(tc, garbage_on_the_port_is_ignored);
    tcase_add_test(tc, a_refused_peer_does_not_block_its_address);
    tcase_add_test(tc, store_clients_get_to_the_store);
    tcase_add_test(tc, another_version_is_refused_with_a_reason);
    tcase_add_test(tc, the_listener_is_not_a_coordinator);
    tcase_add_test(tc, the_listener_sends_garbage);
    tcase_add_test(tc, the_coordinator_has_another_version);
    tcase_add_loop_test(tc, refused_connections_of_many_addresses, 0, 5);
    tc = net_case(s, "port", 30);
    tcase_add_test(tc, port_in_use_names_the_owner);
    tcase_add_test(tc, port_in_use_by_another_job);
    tcase_add_test(tc, a_port_that_is_let_go_is_waited_for);
    tc = net_case(s, "meeting", 30);
    tcase_add_test(tc, where_the_coordinator_listens);
    tcase_add_loop_test(tc, what_workers_are_told_listens, 0, (int)(ARRAY_LEN(meetings) * STORES));
    tc = net_case(s, "endpoint", 40);
    tcase_add_test(tc, silent_connections_are_bounded);
    tcase_add_test(tc, silent_clients_of_the_store_are_kept);
    tcase_add_test(tc, silent_connections_are_closed_in_time);
    tcase_add_test(tc, no_descriptors_left);
    return s;
}

TEST_MAIN(suite)
