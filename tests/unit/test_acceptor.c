/* The acceptor of a process, and the connections that it accepts: a rank that connects is served at
 * once while others open connections and stay silent; an error says why a connection has ended. */
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/wire/acceptor.h"
#include "collectives/wire/tcp.h"
#include "core/clock.h"
#include "core/fd.h"
#include "tests/lib/netns.h"

enum { NOBODY = 65534, FLOOD = 400, COMM = 7 };

static struct world g_world = {.size = 2, .epoch = 5, .instance = 1, .listen_fd = -1};
static struct acceptor g_acceptor;
static struct sockaddr_in g_addr;

static void listen_at(const char *ip)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t len = sizeof(a);
    g_world.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(inet_pton(AF_INET, ip, &a.sin_addr), 1);
    ck_assert_int_eq(bind(g_world.listen_fd, (struct sockaddr *)&a, len), 0);
    ck_assert_int_eq(listen(g_world.listen_fd, 2 * FLOOD), 0);
    ck_assert_int_eq(getsockname(g_world.listen_fd, (struct sockaddr *)&a, &len), 0);
    g_addr = a;
    acceptor_init(&g_acceptor, &g_world);
}

static int connect_silently(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return connect(fd, (struct sockaddr *)&g_addr, sizeof(g_addr)) == 0 ? fd : -1;
}

static int connect_as_rank_1(void)
{
    struct world other = g_world;
    other.rank = 1;
    struct acceptor its = {.world = &other};
    struct hello h = acceptor_hello(&its, HELLO_DATA, COMM, 0);
    int fd = connect_silently();
    ck_assert_int_eq((int)write(fd, &h, sizeof(h)), sizeof(h));
    return fd;
}

static void enter(int host)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)netns_holder(host));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(setns(fd, CLONE_NEWNET), 0);
    close(fd);
}

/* A process on `host` (-1: here) opens `n` connections as user `uid`, and keeps them until this
 * test ends. */
static void flood_from(int host, uid_t uid, int n)
{
    int ready[2];
    char ok = 0;
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (host >= 0)
            enter(host);
        ok = setuid(uid) == 0;
        for (int i = 0; i < n; i++)
            ok = ok && connect_silently() >= 0;
        (void)!write(ready[1], &ok, 1);
        pause();
        _exit(0);
    }
    ck_assert_int_eq((int)read(ready[0], &ok, 1), 1);
    ck_assert(ok);
    close(ready[0]);
    close(ready[1]);
}

static bool rank_1_is_in(void *arg)
{
    struct accepted_conn in;
    struct err e = ERR_INIT;
    ck_assert_int_eq(acceptor_serve(&g_acceptor, &e), 0);
    bool found = acceptor_take(&g_acceptor, COMM, CHANNEL_COLL, &in);
    if (found) {
        ck_assert_uint_eq(in.hello.from, 1);
        close_fd(&in.fd);
    }
    (void)arg;
    return found;
}

/* 400 silent peers would keep 16 slots for 200 ms each: five seconds. */
static void expect_rank_1_soon(void)
{
    uint64_t began = mono_ns();
    wait_until(rank_1_is_in, NULL, 1, "rank 1 is accepted in spite of the silent connections");
    printf("accepted after %.1f ms\n", (double)(mono_ns() - began) * 1e-6);
    acceptor_fini(&g_acceptor);
    close_fd(&g_world.listen_fd);
}

START_TEST(another_user_of_this_host_delays_no_peer)
{
    if (geteuid() != 0) {
        test_skip("becoming another user takes root");
        return;
    }
    listen_at("127.0.0.1");
    flood_from(-1, NOBODY, FLOOD);
    connect_as_rank_1();
    expect_rank_1_soon();
}
END_TEST

/* Ranks of this user that are slow keep their slots, and lose nothing. */
START_TEST(peers_of_the_same_user_keep_their_slots)
{
    struct err e = ERR_INIT;
    int fds[ACCEPTOR_PENDING], kept = 0;
    char byte;
    listen_at("127.0.0.1");
    for (int i = 0; i < ACCEPTOR_PENDING; i++)
        fds[i] = connect_silently();
    ck_assert_int_eq(acceptor_serve(&g_acceptor, &e), 0);
    int extra = connect_silently();
    ck_assert_int_eq(acceptor_serve(&g_acceptor, &e), 0);
    for (int i = 0; i < ACCEPTOR_PENDING; i++)
        kept += recv(fds[i], &byte, 1, MSG_DONTWAIT) < 0;
    /* The kernel was not asked about the first ones, which count as an address at its limit. */
    ck_assert_int_ge(kept, ACCEPTOR_PENDING - 1);
    ck_assert_int_lt((int)recv(extra, &byte, 1, MSG_DONTWAIT), 0);
    acceptor_fini(&g_acceptor);
    close_fd(&g_world.listen_fd);
}
END_TEST

static void setup_hosts(void)
{
    if (netns_available())
        netns_setup(3, -1);
}

START_TEST(other_hosts_delay_no_peer)
{
    if (!netns_available())
        return;
    enter(0);
    listen_at(netns_addr(0));
    flood_from(1, 0, FLOOD);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        enter(2);
        connect_as_rank_1();
        pause();
        _exit(0);
    }
    expect_rank_1_soon();
}
END_TEST

static bool is_open(void *transport)
{
    struct err e = ERR_INIT;
    ck_assert_int_eq(tcp_admit(transport, &e), 0);
    return tcp_open_fd(transport, 1) >= 0;
}

/* Looking at a connection takes its error from the socket; the operation after it reports it. */
START_TEST(a_reset_is_reported_after_a_look)
{
    static const int ranks[] = {0, 1};
    struct tcp_opts o = {.acceptor = &g_acceptor,
                         .comm = COMM,
                         .channel = CHANNEL_COLL,
                         .rule = TCP_SENDER,
                         .size = 2,
                         .world_ranks = ranks,
                         .sockets = 1,
                         .congestion = ""};
    struct linger reset = {.l_onoff = 1};
    struct transport *t;
    struct err e = ERR_INIT;
    char byte = 0;
    struct iovec iov = {&byte, 1};
    listen_at("127.0.0.1");
    ck_assert_int_eq(tcp_new(&t, &o, &e), 0);
    int fd = connect_as_rank_1();
    wait_until(is_open, t, 10, "rank 1 is accepted");
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    close(fd);
    struct pollfd p = {.fd = tcp_open_fd(t, 1), .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 10000), 1);
    ck_assert_int_eq(t->ops->peek(t, 1, &byte, 1), 0);
    ssize_t r = _i ? t->ops->send(t, 1, &iov, 1, &e) : t->ops->recv(t, 1, &iov, 1, &e);
    ck_assert_int_eq((int)r, -EPIPE);
    ck_assert_str_eq(e.msg, strerror(ECONNRESET));
    t->ops->free(t);
    acceptor_fini(&g_acceptor);
    close_fd(&g_world.listen_fd);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("acceptor");
    TCase *tc = test_case(s, "silent", 60);
    tcase_add_test(tc, another_user_of_this_host_delays_no_peer);
    tcase_add_test(tc, peers_of_the_same_user_keep_their_slots);
    tc = test_case(s, "connections", 60);
    tcase_add_loop_test(tc, a_reset_is_reported_after_a_look, 0, 2);
    tc = test_case(s, "hosts", 60);
    tcase_add_checked_fixture(tc, setup_hosts, netns_teardown);
    tcase_add_test(tc, other_hosts_delay_no_peer);
    return s;
}
TEST_MAIN(suite)
