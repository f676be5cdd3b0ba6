/* Strangers at the port of a job: what tests/bench/hostile.c does at length, and a launcher that
 * joins among them. */
#include "tests/integration/job.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "core/fd.h"
#include "tests/lib/proxy.h"

#define TOKEN "DLAUNCH_TOKEN=a token of the tests' own"

START_TEST(unauthenticated_peers_change_nothing)
{
    struct proc p;
    int status = proc_run(
        &p, ARGV(build_path("tests/bench/hostile"), build_path("."), "440", "400"), NULL, 90);
    ck_assert_msg(status == 0, "exit %d\n%s%s", status, p.out, p.err);
    expect_text(p.out, "while they go to the job");
    proc_fini(&p);
}
END_TEST

static void start(struct proc *p, int i, int port)
{
    char *env[] = {TOKEN, NULL};
    dlaunch_start(p, env,
                  "--nnodes 2 --node_rank %d --master_port %d --rdzv_conf join_timeout=30 %%W "
                  "append %%T/up",
                  i, port);
}

static int call_silently(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        close_fd(&fd);
    return fd;
}

/* Thousands of connections that never say what they are. */
START_TEST(a_launcher_joins_meanwhile)
{
    enum { SILENT = 3000 };
    struct proc p[2];
    static int fds[SILENT];
    int port = free_port();
    start(&p[0], 0, port);
    proc_expect_err(&p[0], "waiting for nodes", 10);
    for (int i = 0; i < SILENT; i++)
        fds[i] = call_silently(port);
    uint64_t began = mono_ns();
    start(&p[1], 1, port);
    wait_lines(tmppath("up"), 2, 10);
    ck_assert_double_lt((double)(mono_ns() - began) / 1e9, test_seconds(2));
    for (int i = 0; i < 2; i++) {
        expect_status(&p[i], 0, 20);
        proc_fini(&p[i]);
    }
    for (int i = 0; i < SILENT; i++)
        close_fd(&fds[i]);
}
END_TEST

static const int places[] = {8, 40, 100, 150};

/* Somebody on the way changes one byte of what the coordinator says: the launcher does not go on
 * with it. */
START_TEST(messages_changed_in_transit)
{
    struct proc p[2];
    struct proxy proxy;
    int port = free_port();
    proxy_start(&proxy, port);
    atomic_store(&proxy.rules->flip_at, places[_i]);
    start(&p[0], 0, port);
    proc_expect_err(&p[0], "waiting for nodes", 10);
    char *env[] = {TOKEN, NULL};
    dlaunch_start(&p[1], env,
                  "--nnodes 2 --node_rank 1 --master_port %d --rdzv_conf join_timeout=1.5 %%W "
                  "append %%T/up",
                  proxy.port);
    int status = proc_wait(&p[1], 15);
    ck_assert_msg(status == 1 || status == 2, "exit %d\n%s", status, p[1].err);
    ck_assert_int_ne(access(tmppath("up"), F_OK), 0);
    proc_fini(&p[1]);
    start(&p[1], 1, port); /* and one that comes straight is taken */
    for (int i = 0; i < 2; i++)
        expect_status(&p[i], 0, 20);
    ck_assert_int_eq(count_lines(tmppath("up")), 2);
    for (int i = 0; i < 2; i++)
        proc_fini(&p[i]);
    proxy_stop(&proxy);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("hostile");
    TCase *tc = test_case(s, "strangers", 120);
    tcase_add_test(tc, unauthenticated_peers_change_nothing);
    tcase_add_test(tc, a_launcher_joins_meanwhile);
    tcase_add_loop_test(tc, messages_changed_in_transit, 0, ARRAY_LEN(places));
    return s;
}

TEST_MAIN(suite)
