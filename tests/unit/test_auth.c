/* Authentication: launchers with and without the token, store clients of this and of another user.
 */
#include "tests/lib/rdzv_nodes.h"

#include <poll.h>
#include <signal.h>
#include <sys/utsname.h>

#include "core/peer_uid.h"
#include "rendezvous/wire/pending.h"
#include "rendezvous/wire/auth.h"
#include "rendezvous/discovery/rdzv_probe.h"
#include "rendezvous/rules/rdzv_msg.h"

static struct auth guards[NODES_MAX];

/* everywhere: or the loopback connections of these tests would be in the clear. */
static struct auth *guard_of(int i, const char *secret)
{
    struct auth *g = &guards[i];
    *g = (struct auth){
        .everywhere = true, .open = !secret, .secret_len = secret ? strlen(secret) : 0};
    strcpy(g->source, "token");
    if (secret)
        memcpy(g->secret, secret, g->secret_len);
    return g;
}

static void node_with(int i, int port, const char *secret)
{
    struct rdzv_config *c = config_of(i, RDZV_STATIC, port, 2, 2);
    c->node_rank = i % 2;
    c->auth = guard_of(i, secret);
    c->join_timeout = i < 2 ? 20 : 1;
    open_node(i);
}

START_TEST(a_job_under_tls)
{
    int port = unused_port();
    node_with(0, port, "a secret of some length");
    node_with(1, port, "a secret of some length");
    wait_runs(0, 1, 1);
    worker_fails(1, 3);
    rdzv_stopped(nodes[1].r, NULL, 0);
    wait_finished(0, 1);
    ck_assert_int_eq(nodes[0].result.exit_code, 3);
}
END_TEST

START_TEST(peers_without_the_token_are_refused_with_a_reason)
{
    int port = unused_port();
    node_with(0, port, "a secret of some length");
    loop_turns(&loop, 5);
    node_with(3, port, "another secret of some length");
    wait_finished(3, 3);
    ck_assert_int_eq(nodes[3].result.exit_code, 2);
    HAS(nodes[3].result.text, "has another job token than this node (token)");
    HAS(logs, "refused a launcher with another job token than this node's, from 127.0.0.1");
    node_with(5, port, NULL);
    wait_finished(5, 5);
    ck_assert_int_eq(nodes[5].result.exit_code, 2);
    HAS(nodes[5].result.text, "protected by a job token");
    node_with(1, port, "a secret of some length");
    wait_runs(0, 1, 1);
    ck_assert_int_eq(nodes[3].runs + nodes[5].runs, 0);
}
END_TEST

START_TEST(a_token_against_a_job_without_one)
{
    int port = unused_port();
    node_with(0, port, NULL);
    loop_turns(&loop, 5);
    node_with(3, port, "a secret of some length");
    wait_finished(3, 3);
    ck_assert_int_eq(nodes[3].result.exit_code, 1); /* it tried until its join timeout */
    HAS(nodes[3].result.text, "may run without a job token");
    node_with(1, port, NULL);
    wait_runs(0, 1, 1);
}
END_TEST

/* Handshakes that are left halfway, or that begin well and go on badly. */
START_TEST(half_handshakes_do_not_block_others)
{
    int port = unused_port();
    struct buf hello = BUF_INIT;
    struct tls *t;
    struct tls_key key = {{1, 2, 3}};
    node_with(0, port, "a secret of some length");
    loop_turns(&loop, 5);
    ck_assert_int_eq(tls_new(&t, TLS_CLIENT, &key, &hello, NULL), 0);
    for (size_t n = 1; n < hello.len; n += 7) {
        char out[1024];
        int fd = call(port);
        hello.data[hello.len - 1 - n % 5] ^= (uint8_t)n;
        ck_assert_int_eq(send(fd, hello.data, n, MSG_NOSIGNAL), (ssize_t)n);
        if (n % 2)
            shutdown(fd, SHUT_WR);
        loop_turns(&loop, 2);
        if (n % 2)
            hear(fd, out, sizeof(out), sizeof(out));
        close(fd);
    }
    tls_free(t);
    buf_fini(&hello);
    node_with(1, port, "a secret of some length");
    wait_runs(0, 1, 1);
}
END_TEST

START_TEST(a_listener_for_others_wants_a_token)
{
    struct netaddr own;
    char ip[ADDR_STRLEN];
    struct err e = ERR_INIT;
    if (netaddr_list_local(&own, 1) < 1) {
        test_skip("this host has no address but loopback");
        return;
    }
    struct rdzv_config *c = config_of(0, RDZV_STATIC, unused_port(), 2, 2);
    c->endpoint_host = netaddr_ip(&own, ip);
    c->node_rank = 0;
    c->auth = guard_of(0, NULL);
    c->auth->open = false;
    ck_assert_int_eq(try_open(0, &e), -EACCES);
    HAS(e.msg, "no job token: not listening on");
    HAS(e.msg, "--new_token");
    nodes[0].r = NULL;
}
END_TEST

/* Whether its coordinator is there or not: it does not listen meanwhile. */
START_TEST(a_node_that_joins_others_requires_a_token)
{
    struct rdzv_config *c = config_of(0, RDZV_C10D, 29400, 1, 2);
    c->endpoint_host = "192.0.2.1"; /* nobody's */
    c->is_host = 0;
    c->auth = guard_of(0, NULL);
    c->auth->open = false;
    open_node(0);
    wait_finished(0, 0);
    ck_assert_int_eq(nodes[0].result.exit_code, 2);
    HAS(nodes[0].result.text, "cannot join 192.0.2.1:29400: there is no job token (token)");
}
END_TEST

START_TEST(probed_under_tls)
{
    struct rdzv_identity id;
    struct netaddr a;
    int port = unused_port();
    node_with(0, port, "a secret of some length");
    node_with(1, port, "a secret of some length");
    wait_runs(0, 1, 1);
    ck_assert_int_eq(auth_ready(&guards[0], NULL), 0);
    pid_t pid = fork();
    if (pid == 0) {
        netaddr_parse_ip(&a, "127.0.0.1", port);
        int right = rdzv_probe(&a, 5000, &guards[0], &id);
        _exit(right == 0 && strcmp(id.run_id, "job") == 0 && rdzv_probe(&a, 5000, NULL, &id) < 0
                  ? 0
                  : 1);
    }
    int status = -1;
    while (waitpid(pid, &status, WNOHANG) == 0)
        uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_int_eq(status, 0);
}
END_TEST

/* ---------------------------------------------------------------------------------- whose it is */

/* In a process of user nobody: connects from that address, says n bytes, and is hung up on (0) or
 * answered (1). */
static int nobody_from(const char *ip, int port, const void *bytes, size_t n)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct netaddr a, from;
        char answer[64];
        netaddr_parse_ip(&a, "127.0.0.1", port);
        netaddr_parse_ip(&from, ip, 0);
        if (setgid(65534) < 0 || setuid(65534) < 0)
            _exit(98);
        int fd = socket(AF_INET, SOCK_STREAM, 0); /* whose it is is set here */
        if (bind(fd, &from.sa, from.len) < 0)
            _exit(97);
        if (connect(fd, &a.sa, a.len) < 0 || send(fd, bytes, n, MSG_NOSIGNAL) != (ssize_t)n)
            _exit(99);
        _exit(recv(fd, answer, sizeof(answer), 0) > 0);
    }
    int status = -1;
    uint64_t until = mono_ns() + 20000000000u;
    while (waitpid(pid, &status, WNOHANG) == 0 && mono_ns() < until)
        uv_run(&loop, UV_RUN_NOWAIT);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int as_nobody(int port, const void *bytes, size_t n)
{
    return nobody_from("127.0.0.1", port, bytes, n);
}

/* A process, of user nobody or of this one, that listens on a port of loopback, says n bytes to
 * whoever comes, and writes down how many it has heard from him when he has gone. */
struct impostor {
    pid_t pid;
    int port, heard; /* heard: a pipe */
};

static void impostor_run(int out, bool nobody, const void *bytes, size_t n)
{
    struct endpoint_bind b = {0};
    struct netaddr a = {.len = sizeof(a.ss)};
    char in[4096];
    alarm(60);
    netaddr_parse_ip(&b.addr, "127.0.0.1", 0);
    if (nobody && (setgid(65534) < 0 || setuid(65534) < 0))
        _exit(98);
    int fd = endpoint_listen(&b, NULL);
    if (fd < 0 || getsockname(fd, &a.sa, &a.len) < 0)
        _exit(99);
    fd_set_nonblock(fd, false);
    int said = netaddr_port(&a);
    for (;;) {
        if (write(out, &said, sizeof(said)) != sizeof(said))
            _exit(97);
        int c = accept(fd, NULL, NULL);
        send(c, bytes, n, MSG_NOSIGNAL);
        said = 0;
        for (ssize_t got; (got = recv(c, in, sizeof(in), 0)) > 0;)
            said += (int)got;
        close(c);
    }
}

static int impostor_heard(const struct impostor *m)
{
    int n = -1;
    struct pollfd p = {.fd = m->heard, .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 20000), 1);
    ck_assert_int_eq(read(m->heard, &n, sizeof(n)), sizeof(n));
    return n;
}

static struct impostor impostor(bool nobody, const void *bytes, size_t n)
{
    struct impostor m = {0};
    int pipes[2];
    ck_assert_int_eq(pipe(pipes), 0);
    m.pid = fork();
    if (m.pid == 0)
        impostor_run(pipes[1], nobody, bytes, n);
    close(pipes[1]);
    m.heard = pipes[0];
    m.port = impostor_heard(&m);
    return m;
}

static void impostor_end(struct impostor *m)
{
    kill(m->pid, SIGKILL);
    ck_assert_int_eq(waitpid(m->pid, NULL, 0), m->pid);
    close(m->heard);
}

/* A program that was first to bind a port of loopback is not trusted for that. */
START_TEST(a_coordinator_of_another_user)
{
    struct buf preamble = BUF_INIT;
    if (geteuid() != 0) {
        test_skip("becoming another user takes root");
        return;
    }
    rdzv_put_preamble(&preamble);
    struct impostor m = impostor(true, preamble.data, preamble.len);
    config_of(1, RDZV_STATIC, m.port, 2, 2)->auth = guard_of(1, NULL);
    nodes[1].config.node_rank = 1;
    guards[1].open = guards[1].everywhere = false;
    open_node(1);
    wait_finished(1, 1);
    ck_assert_int_eq(nodes[1].result.exit_code, 2);
    HAS(nodes[1].result.text, "the coordinator at 127.0.0.1:");
    HAS(nodes[1].result.text, " is another user's");
    ck_assert_int_eq(impostor_heard(&m), RDZV_PREAMBLE_LEN); /* and no word of the job */
    impostor_end(&m);
    buf_fini(&preamble);
}
END_TEST

START_TEST(an_answer_of_another_user)
{
    struct buf b = BUF_INIT;
    struct rdzv_identity id = {.run_id = "job", .host = "h"};
    struct netaddr a;
    if (geteuid() != 0) {
        test_skip("becoming another user takes root");
        return;
    }
    rdzv_put_preamble(&b);
    rdzv_put_identity(&b, &id);
    struct auth *g = guard_of(0, NULL);
    g->everywhere = false;
    for (int nobody = 0; nobody < 2; nobody++) {
        struct impostor m = impostor(nobody, b.data, b.len);
        netaddr_parse_ip(&a, "127.0.0.1", m.port);
        g->open = true;
        ck_assert_int_eq(rdzv_probe(&a, 20000, g, &id), 0);
        g->open = false;
        ck_assert_int_eq(rdzv_probe(&a, 20000, g, &id), nobody ? -EACCES : 0);
        impostor_end(&m);
    }
    buf_fini(&b);
}
END_TEST

/* An unauthenticated server that rejects the handshake proves nothing about the keys. */
START_TEST(a_server_of_another_kind)
{
    static const uint8_t handshake_failure[] = {0x15, 3, 3, 0, 2, 2, 40};
    struct impostor m = impostor(false, handshake_failure, sizeof(handshake_failure));
    config_of(1, RDZV_STATIC, m.port, 2, 2)->auth = guard_of(1, "a secret of some length");
    nodes[1].config.node_rank = 1;
    nodes[1].config.join_timeout = 1;
    open_node(1);
    wait_finished(1, 1);
    ck_assert_int_eq(nodes[1].result.exit_code, 1);
    HAS(nodes[1].result.text, "within 1 s");
    HAS(nodes[1].result.text, "is no launcher of dlaunch, or has another job token");
    impostor_end(&m);
}
END_TEST

/* Closed when all that was sent is acknowledged: nothing is left then that says whose it was. */
static void close_acknowledged(int fd)
{
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(10) * 1e9);
    struct tcp_info info = {.tcpi_state = 0};
    socklen_t len = sizeof(info);
    shutdown(fd, SHUT_WR);
    while (info.tcpi_state != TCP_FIN_WAIT2 && mono_ns() < end)
        ck_assert_int_eq(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
    ck_assert_int_eq(info.tcpi_state, TCP_FIN_WAIT2);
    close(fd);
}

/* The owner of a closed socket cannot be known: the peer is not let in, and nobody is accused. */
START_TEST(a_peer_that_closes_at_once)
{
    static const uint8_t set[] = {0, 0xce, 0xf7, 0x85, 0x3c};
    struct buf probe = BUF_INIT;
    int port = unused_port();
    config_of(0, RDZV_STATIC, port, 2, 2)->auth = guard_of(0, NULL);
    nodes[0].config.node_rank = 0;
    guards[0].open = guards[0].everywhere = false;
    open_node(0);
    loop_turns(&loop, 5);
    rdzv_put_preamble(&probe);
    rdzv_put_probe(&probe);
    int fd = call(port);
    ck_assert_int_eq(send(fd, set, sizeof(set), 0), sizeof(set));
    close_acknowledged(fd);
    wait_logged("a client of the workers' store has closed before it was seen whose it is");
    fd = call(port);
    ck_assert_int_eq(send(fd, probe.data, probe.len, 0), (ssize_t)probe.len);
    close_acknowledged(fd);
    wait_logged("a launcher of this host has closed before it was seen whose it is");
    ck_assert_ptr_null(strstr(logs, "refused"));
    buf_fini(&probe);
}
END_TEST

static int begin_handshake(const char *from, int port)
{
    static const uint8_t first = TLS_FIRST_BYTE;
    struct netaddr a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    netaddr_parse_ip(&a, from, 0);
    ck_assert_int_eq(bind(fd, &a.sa, a.len), 0);
    netaddr_parse_ip(&a, "127.0.0.1", port);
    ck_assert_int_eq(connect(fd, &a.sa, a.len), 0);
    ck_assert_int_eq(send(fd, &first, 1, 0), 1);
    return fd;
}

/* Handshakes from one address cannot use up the limit for another address. */
START_TEST(handshakes_of_many_from_one)
{
    enum { N = 100 };
    int port = unused_port(), flood[N];
    char byte;
    node_with(0, port, "a secret of some length");
    int honest = begin_handshake("127.0.0.2", port);
    loop_turns(&loop, 5);
    for (int i = 0; i < N; i++) {
        flood[i] = begin_handshake("127.0.0.3", port);
        loop_turns(&loop, 2);
    }
    /* As many as there are beyond the limit have made room. */
    ck_assert_uint_eq(hear(flood[N - PENDING_MAX(2)], &byte, 1, 1), 0);
    fd_set_nonblock(honest, true);
    ck_assert_int_eq(recv(honest, &byte, 1, 0), -1);
    ck_assert_int_eq(errno, EAGAIN);
    for (int i = 0; i < N; i++)
        close(flood[i]);
    close(honest);
}
END_TEST

static const uint8_t hello[] = {0, 0xce, 0xf7, 0x85, 0x3c, 13, 1, 2, 3, 4};

START_TEST(the_store_of_another_user)
{
    if (geteuid() != 0) {
        test_skip("becoming another user takes root");
        return;
    }
    config_of(0, RDZV_C10D, 0, 1, 1)->auth = guard_of(0, NULL);
    guards[0].open = false;
    guards[0].everywhere = false;
    open_node(0);
    wait_runs(0, 0, 1);
    ck_assert_int_eq(as_nobody(nodes[0].master_port, hello, sizeof(hello)), 0);
    HAS(logs, "refused a client of the workers' store that is another user's");
    int fd = call(nodes[0].master_port);
    uint8_t answer[4];
    ck_assert_int_eq(send(fd, hello, sizeof(hello), 0), sizeof(hello));
    ck_assert_uint_eq(hear(fd, answer, sizeof(answer), 4), 4);
    close(fd);
}
END_TEST

/* Another user connects from the address that the coordinator's node has in the round's table. */
START_TEST(another_user_at_the_nodes_address)
{
    if (geteuid() != 0 || !enter_network_of(1)) {
        test_skip("a network and becoming another user take root");
        return;
    }
    config_of(0, RDZV_STATIC, 0, 1, 1)->auth = guard_of(0, NULL);
    nodes[0].config.endpoint_host = "0.0.0.0";
    nodes[0].config.local_addr = "10.0.0.1";
    guards[0].open = false;
    guards[0].everywhere = false;
    open_node(0);
    wait_runs(0, 0, 1);
    ck_assert_int_eq(nobody_from("10.0.0.1", nodes[0].master_port, hello, sizeof(hello)), 0);
    HAS(logs, "refused a client of the workers' store that is another user's, from 10.0.0.1");
}
END_TEST

START_TEST(a_launcher_of_another_user)
{
    struct buf b = BUF_INIT;
    if (geteuid() != 0) {
        test_skip("becoming another user takes root");
        return;
    }
    int port = unused_port();
    config_of(0, RDZV_STATIC, port, 2, 2)->auth = guard_of(0, NULL);
    nodes[0].config.node_rank = 0;
    guards[0].open = guards[0].everywhere = false;
    open_node(0);
    loop_turns(&loop, 5);
    rdzv_put_preamble(&b);
    rdzv_put_probe(&b);
    ck_assert_int_eq(as_nobody(port, b.data, b.len), 1); /* it is told */
    HAS(logs, "refused a launcher without the job token, from 127.0.0.1");
    buf_fini(&b);
}
END_TEST

static void check_uid(const char *listen_on, const char *call_at)
{
    struct endpoint_bind b = {0};
    struct netaddr a = {.len = sizeof(a.ss)};
    uid_t uid = 12345;
    if (!netaddr_parse_ip(&b.addr, listen_on, 0))
        ck_abort();
    b.any = listen_on[0] == ':' && !listen_on[2];
    int listener = endpoint_listen(&b, NULL);
    ck_assert_int_ge(listener, 0);
    ck_assert_int_eq(getsockname(listener, &a.sa, &a.len), 0);
    int port = netaddr_port(&a);
    netaddr_parse_ip(&a, call_at, port);
    int fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, &a.sa, a.len), 0);
    struct pollfd p = {.fd = listener, .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 5000), 1);
    int in = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(in, 0);
    ck_assert_int_eq(peer_uid(in, &uid), 0);
    ck_assert_uint_eq(uid, geteuid());
    close_acknowledged(fd);
    ck_assert_int_eq(peer_uid(in, &uid), -ENOENT);
    close(in);
    close(listener);
}

START_TEST(whose_socket)
{
    check_uid("127.0.0.1", "127.0.0.1");
    check_uid("::1", "::1");
    check_uid("::", "127.0.0.1");
    check_uid("::", "::1");
    check_uid("127.0.0.1", "::ffff:127.0.0.1");
}
END_TEST

/* A listener and a client of user `uid`, who closes while what it has sent is not all taken; 0 when
 * it is known then whose it was. */
static int name_closed(uid_t uid)
{
    struct endpoint_bind b = {0};
    struct netaddr a = {.len = sizeof(a.ss)};
    uid_t got = uid + 1;
    static char much[65536];
    netaddr_parse_ip(&b.addr, "127.0.0.1", 0);
    int listener = setuid(uid) == 0 ? endpoint_listen(&b, NULL) : -1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || getsockname(listener, &a.sa, &a.len) < 0 || connect(fd, &a.sa, a.len) < 0)
        return 99;
    while (send(fd, much, sizeof(much), MSG_DONTWAIT) > 0)
        ;
    int in = close(fd) == 0 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    return in >= 0 && peer_uid(in, &got) == 0 && got == uid ? 0 : 1;
}

START_TEST(whose_closed_socket)
{
    static const uid_t users[] = {65534, 0};
    int status;
    struct utsname u;
    if (geteuid() != 0) {
        test_skip("becoming another user takes root");
        return;
    }
    int major = 0, minor = 0;
    ck_assert_int_eq(uname(&u), 0);
    ck_assert_int_eq(sscanf(u.release, "%d.%d", &major, &minor), 2);
    if (major < 6 || (major == 6 && minor < 17)) {
        test_skip("this kernel does not tell whose a closed socket was");
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(users); i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(name_closed(users[i]));
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("auth");
    TCase *tc = tcase_create("guard");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_job_under_tls);
    tcase_add_test(tc, peers_without_the_token_are_refused_with_a_reason);
    tcase_add_test(tc, a_token_against_a_job_without_one);
    tcase_add_test(tc, half_handshakes_do_not_block_others);
    tcase_add_test(tc, a_listener_for_others_wants_a_token);
    tcase_add_test(tc, a_node_that_joins_others_requires_a_token);
    tcase_add_test(tc, probed_under_tls);
    tcase_add_test(tc, the_store_of_another_user);
    tcase_add_test(tc, another_user_at_the_nodes_address);
    tcase_add_test(tc, a_launcher_of_another_user);
    tcase_add_test(tc, whose_socket);
    tcase_add_test(tc, whose_closed_socket);
    tcase_add_test(tc, a_coordinator_of_another_user);
    tcase_add_test(tc, an_answer_of_another_user);
    tcase_add_test(tc, a_server_of_another_kind);
    tcase_add_test(tc, a_peer_that_closes_at_once);
    tcase_add_test(tc, handshakes_of_many_from_one);
    suite_add_tcase(s, tc);
    return s;
}

TEST_MAIN(suite)
