/* The blocking store client: every call against our server, then time-outs, races, servers that
 * come late, die in the middle of an answer, or are none. */
#include "tests/lib/test.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/mem.h"
#include "rendezvous/store/store_client.h"
#include "rendezvous/store/store_thread.h"
#include "tests/lib/store.h"

static struct test_server *server;
static struct store_client *c;
static struct err e;

static void setup(void)
{
    server = server_start(SERVER_THREAD, NULL);
    ck_assert_msg(store_client_new(&c, "127.0.0.1", server_port(server),
                                   (int)(test_seconds(20) * 1000), &e) == 0,
                  "%s", e.msg);
}

static void teardown(void)
{
    store_client_free(c);
    server_stop(server);
}

#define OK(call) ck_assert_msg((call) == 0, "%s: %s", #call, e.msg)

static void expect_value(void *val, size_t len, const char *want)
{
    ck_assert_uint_eq(len, strlen(want));
    ck_assert_str_eq(val, want); /* terminated, too */
    free(val);
}

/* --- Calls -------------------------------------------------------------------------------------*/

START_TEST(all_calls)
{
    void *val;
    size_t len;
    int64_t number;
    bool yes;
    OK(store_client_set(c, "a", "1", 1, &e));
    OK(store_client_get(c, "a", &val, &len, 1000, &e));
    expect_value(val, len, "1");
    OK(store_client_try_get(c, "a", &val, &len, &e));
    expect_value(val, len, "1");
    ck_assert_int_eq(store_client_try_get(c, "missing", &val, &len, &e), -ENOENT);
    OK(store_client_set(c, "empty", NULL, 0, &e));
    ck_assert_int_eq(store_client_try_get(c, "empty", &val, &len, &e), -ENOENT);
    OK(store_client_get(c, "empty", &val, &len, 1000, &e));
    expect_value(val, len, "");
    OK(store_client_add(c, "n", 5, &number, &e));
    ck_assert_int_eq(number, 5);
    OK(store_client_add(c, "n", -7, &number, &e));
    ck_assert_int_eq(number, -2);
    OK(store_client_wait(c, KEYS("a", "n"), 2, 1000, &e));
    OK(store_client_wait(c, NULL, 0, 1000, &e));
    OK(store_client_check(c, KEYS("a", "n"), 2, &yes, &e));
    ck_assert(yes);
    OK(store_client_check(c, KEYS("a", "missing"), 2, &yes, &e));
    ck_assert(!yes);
    OK(store_client_compare_set(c, "a", "1", 1, "2", 1, &val, &len, &e));
    expect_value(val, len, "2");
    OK(store_client_compare_set(c, "a", "1", 1, "3", 1, &val, &len, &e));
    expect_value(val, len, "2");
    OK(store_client_set(c, "x", "X", 1, &e));
    OK(store_client_delete(c, "x", &yes, &e));
    ck_assert(yes);
    OK(store_client_delete(c, "x", &yes, &e));
    ck_assert(!yes);
}
END_TEST

/* Larger than any buffer on the way, both ways. */
START_TEST(large_values)
{
    size_t n = 40 << 20, len;
    uint8_t *big = xmalloc(n);
    void *val;
    for (size_t i = 0; i < n; i++)
        big[i] = (uint8_t)(i * 2654435761u >> 13);
    OK(store_client_set(c, "big", big, n, &e));
    OK(store_client_get(c, "big", &val, &len, 10000, &e));
    ck_assert_uint_eq(len, n);
    ck_assert(memcmp(val, big, n) == 0);
    free(val);
    free(big);
}
END_TEST

START_TEST(many_keys)
{
    enum { N = 20000 };
    const char **keys = xcalloc(N, sizeof(*keys));
    bool exist;
    for (int i = 0; i < N; i++) {
        keys[i] = xasprintf("key number %d", i);
        OK(store_client_set(c, keys[i], NULL, 0, &e));
    }
    OK(store_client_wait(c, keys, N, 1000, &e));
    OK(store_client_check(c, keys, N, &exist, &e));
    ck_assert(exist);
    for (int i = 0; i < N; i++)
        free((void *)keys[i]);
    free(keys);
}
END_TEST

START_TEST(requests_above_a_limit_are_not_sent)
{
    static char key[STORE_KEY_MAX + 2];
    static const char *keys[STORE_KEYS_MAX + 1];
    uint8_t byte = 0;
    int64_t n;
    memset(key, 'k', STORE_KEY_MAX + 1);
    ck_assert_int_eq(store_client_set(c, key, "", 0, &e), -EMSGSIZE);
    ck_assert_str_eq(e.msg, "store: SET: a key longer than 8 KiB");
    ck_assert_int_eq(store_client_set(c, "k", &byte, STORE_VALUE_MAX + 1, &e), -EMSGSIZE);
    for (unsigned i = 0; i <= STORE_KEYS_MAX; i++)
        keys[i] = "k";
    ck_assert_int_eq(store_client_wait(c, keys, STORE_KEYS_MAX + 1, 10, &e), -EMSGSIZE);
    OK(store_client_add(c, "n", 1, &n, &e)); /* and the client is as good as before */
}
END_TEST

START_TEST(what_the_server_refuses_ends_the_client)
{
    int64_t n;
    OK(store_client_set(c, "k", "text", 4, &e));
    ck_assert_int_eq(store_client_add(c, "k", 1, &n, &e), -ECONNRESET);
    ck_assert_str_eq(e.msg, "store: ADD k: the server closed the connection");
    ck_assert_int_eq(store_client_add(c, "n", 1, &n, &e), -ENOTCONN);
}
END_TEST

/* --- Time --------------------------------------------------------------------------------------*/

START_TEST(waits_end_in_time)
{
    void *val;
    size_t len;
    uint64_t start = mono_ns();
    ck_assert_int_eq(store_client_get(c, "never", &val, &len, 30, &e), -ETIMEDOUT);
    ck_assert_str_eq(e.msg, "store: WAIT never: not there after 30 ms");
    ck_assert_int_eq(store_client_wait(c, KEYS("never"), 1, 0, &e), -ETIMEDOUT);
    ck_assert_uint_ge(mono_ns() - start, 30000000);
    OK(store_client_set(c, "k", "v", 1, &e));
    OK(store_client_get(c, "k", &val, &len, 0, &e)); /* no time, but it is there */
    expect_value(val, len, "v");
}
END_TEST

static void *set_soon(void *arg)
{
    struct store_client *other;
    struct err why;
    (void)arg;
    if (store_client_new(&other, "localhost", server_port(server), 20000, &why) < 0 ||
        store_client_set(other, "k", "v", 1, &why) < 0)
        abort();
    store_client_free(other);
    return NULL;
}

START_TEST(waits_end_when_the_key_comes)
{
    pthread_t t;
    void *val;
    size_t len;
    pthread_create(&t, NULL, set_soon, NULL);
    OK(store_client_get(c, "k", &val, &len, -1, &e));
    expect_value(val, len, "v");
    pthread_join(t, NULL);
}
END_TEST

static _Atomic bool hammering;

static void *hammer(void *arg)
{
    struct store_client *other = arg;
    struct err why;
    bool was;
    while (hammering)
        if (store_client_set(other, "k", "v", 1, &why) < 0 ||
            store_client_delete(other, "k", &was, &why) < 0)
            abort();
    return NULL;
}

/* The key comes and goes while waits with no or little time run out: whatever the outcome, the
 * client stays in step. */
START_TEST(cancelling_races_with_the_key)
{
    pthread_t t;
    struct store_client *other;
    int came = 0, late = 0;
    int64_t n;
    OK(store_client_new(&other, "127.0.0.1", server_port(server), 20000, &e));
    hammering = true;
    pthread_create(&t, NULL, hammer, other);
    uint64_t end = mono_ns() + 300000000;
    for (int64_t i = 1; mono_ns() < end; i++) {
        int rc = store_client_wait(c, KEYS("k"), 1, (int)(i % 2), &e);
        ck_assert_msg(rc == 0 || rc == -ETIMEDOUT, "%s", e.msg);
        *(rc ? &late : &came) += 1;
        OK(store_client_add(c, "n", 1, &n, &e));
        ck_assert_int_eq(n, i);
    }
    hammering = false;
    pthread_join(t, NULL);
    ck_assert_int_gt(came, 0);
    store_client_free(other);
    (void)late;
}
END_TEST

/* --- Servers that are none ---------------------------------------------------------------------*/

START_TEST(a_server_that_dies_in_its_answer)
{
    static const char *const answers[] = {NULL, "05", "05 00 00 00 00 00 00 00",
                                          "05 00 00 00 00 00 00 00 61 62"};
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        struct fake f;
        struct act acts[] = {HELLO, ACT(18, "00", true), ACT(10, answers[i], false)};
        struct store_client *client;
        void *val;
        size_t len;
        fake_start(&f, acts, 3);
        OK(store_client_new(&client, "127.0.0.1", f.port, 20000, &e));
        ck_assert_int_eq(store_client_get(client, "k", &val, &len, 20000, &e), -ECONNRESET);
        ck_assert_str_eq(e.msg, "store: GET k: the server closed the connection");
        ck_assert_int_eq(store_client_set(client, "k", "", 0, &e), -ENOTCONN);
        store_client_free(client);
        fake_end(&f);
    }
}
END_TEST

START_TEST(a_server_that_falls_silent)
{
    struct fake f;
    struct act acts[] = {HELLO, ACT(18, "00", true), ACT(10, "05 00 00 00 00 00 00 00 61", true)};
    struct store_client *client;
    void *val;
    size_t len;
    fake_start(&f, acts, 3);
    OK(store_client_new(&client, "127.0.0.1", f.port, 100, &e));
    ck_assert_int_eq(store_client_get(client, "k", &val, &len, 20000, &e), -ETIMEDOUT);
    ck_assert_str_eq(e.msg, "store: GET k: no answer in time");
    ck_assert_int_eq(store_client_set(client, "k", "", 0, &e), -ENOTCONN); /* out of step */
    store_client_free(client);
    fake_end(&f);
}
END_TEST

/* The answer to CANCEL_WAIT is 1, or 0 and 1; a server that knows no CANCEL_WAIT closes. */
START_TEST(answers_to_a_cancel)
{
    static const struct {
        const char *answer;
        bool stay;
        int rc, after;
    } cases[] = {
        {"01", true, -ETIMEDOUT, 0},          {"00 01", true, 0, 0},
        {NULL, false, -ETIMEDOUT, -ENOTCONN}, {"00", false, -ETIMEDOUT, -ENOTCONN},
        {"07", true, -ETIMEDOUT, -ENOTCONN},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fake f;
        struct act acts[] = {HELLO, ACT(18, NULL, true), ACT(1, cases[i].answer, cases[i].stay)};
        struct store_client *client;
        fake_start(&f, acts, 3);
        OK(store_client_new(&client, "127.0.0.1", f.port, 20000, &e));
        ck_assert_int_eq(store_client_wait(client, KEYS("k"), 1, 20, &e), cases[i].rc);
        ck_assert_int_eq(store_client_set(client, "k", "", 0, &e), cases[i].after);
        store_client_free(client);
        fake_end(&f);
    }
}
END_TEST

START_TEST(answers_that_make_no_sense)
{
    static const char *const answers[] = {"FF FF FF FF FF FF FF FF", "01 00 00 40 00 00 00 00"};
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        struct fake f;
        struct act acts[] = {HELLO, ACT(18, "00", true), ACT(10, answers[i], true)};
        struct store_client *client;
        void *val;
        size_t len;
        fake_start(&f, acts, 3);
        OK(store_client_new(&client, "127.0.0.1", f.port, 20000, &e));
        ck_assert_int_eq(store_client_get(client, "k", &val, &len, 20000, &e), -EPROTO);
        store_client_free(client);
        fake_end(&f);
    }
}
END_TEST

START_TEST(not_a_store)
{
    struct fake f;
    struct act acts[] = {ACT(10, "48 54 54 50 2F", true)};
    struct store_client *client;
    char want[96];
    fake_start(&f, acts, 1);
    ck_assert_int_eq(store_client_new(&client, "127.0.0.1", f.port, 20000, &e), -EPROTO);
    snprintf(want, sizeof(want), "store: 127.0.0.1:%d does not answer as a store", f.port);
    ck_assert_str_eq(e.msg, want);
    fake_end(&f);
    ck_assert_int_eq(store_client_new(&client, "127.0.0.1", 0, 10, &e), -EINVAL);
    ck_assert_int_eq(store_client_new(&client, "127.0.0.1", 65536, 10, &e), -EINVAL);
}
END_TEST

START_TEST(nobody_listens)
{
    struct store_client *client;
    int port, fd = listen_anywhere(&port);
    close(fd);
    uint64_t start = mono_ns();
    ck_assert_int_eq(store_client_new(&client, "127.0.0.1", port, 100, &e), -ETIMEDOUT);
    ck_assert_uint_ge(mono_ns() - start, 100000000);
    ck_assert_ptr_nonnull(strstr(e.msg, "Connection refused"));
    ck_assert_ptr_nonnull(strstr(e.msg, "no connection within 100 ms"));
    ck_assert_int_eq(store_client_new(&client, "no-such-host.invalid", port, 50, &e), -ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "no-such-host.invalid"));
}
END_TEST

/* A network of its own, whose connections can only begin at that port. False: not allowed. */
static bool enter_network_of_one_port(int port)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    if (unshare(CLONE_NEWNET) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
        return false;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = ioctl(fd, SIOCSIFFLAGS, &lo) == 0;
    close(fd);
    FILE *range = fopen("/proc/sys/net/ipv4/ip_local_port_range", "w");
    if (!range)
        return false;
    fprintf(range, "%d %d", port, port);
    return fclose(range) == 0 && up;
}

/* The network has a single port, so that every attempt would connect to itself; it must be refused.
 */
START_TEST(never_connected_to_itself)
{
    struct store_client *client;
    struct store_thread *t;
    struct store_thread_opts opts = {.addr = "127.0.0.1", .port = 40123};
    if (!enter_network_of_one_port(opts.port)) {
        puts("SKIPPED: no network namespace to be had");
        return;
    }
    ck_assert_int_eq(store_client_new(&client, "127.0.0.1", opts.port, 200, &e), -ETIMEDOUT);
    ck_assert_msg(strstr(e.msg, "Connection refused"), "%s", e.msg);
    ck_assert_msg(store_thread_new(&t, &opts, &e) == 0, "%s", e.msg);
    store_thread_free(t);
}
END_TEST

/* Closes whoever connects, twice; then the port is closed; then the real one takes its place. The
 * client comes again and again, and in the end is served. */
static void *come_late(void *arg)
{
    struct fake *f = arg;
    for (int i = 0; i < 2; i++)
        close(accept(f->listener, NULL, NULL));
    close(f->listener);
    struct store_thread *t;
    struct store_thread_opts opts = {.addr = "127.0.0.1", .port = f->port};
    if (store_thread_new(&t, &opts, &e) < 0)
        abort();
    return t;
}

START_TEST(a_server_that_comes_late)
{
    struct fake f = {.listener = -1};
    struct store_client *client;
    struct err why;
    void *thread;
    f.listener = listen_anywhere(&f.port);
    pthread_create(&f.thread, NULL, come_late, &f);
    ck_assert_msg(store_client_new(&client, "127.0.0.1", f.port, 20000, &why) == 0, "%s", why.msg);
    pthread_join(f.thread, &thread);
    OK(store_client_set(client, "k", "v", 1, &e));
    store_client_free(client);
    store_thread_free(thread);
}
END_TEST

static void nothing(int signo)
{
    (void)signo;
}

static _Atomic bool interrupting;

static void *interrupt(void *arg)
{
    while (interrupting)
        pthread_kill(*(pthread_t *)arg, SIGUSR1), sched_yield();
    return NULL;
}

/* Signals without SA_RESTART break no call and lengthen no time-out. */
START_TEST(interrupted_again_and_again)
{
    pthread_t me = pthread_self(), t;
    struct sigaction sa = {.sa_handler = nothing};
    size_t n = 8 << 20, len;
    void *val, *big = xcalloc(1, n);
    sigaction(SIGUSR1, &sa, NULL);
    interrupting = true;
    pthread_create(&t, NULL, interrupt, &me);
    for (int i = 0; i < 10; i++) {
        OK(store_client_set(c, "k", big, n, &e));
        OK(store_client_get(c, "k", &val, &len, 20000, &e));
        ck_assert_uint_eq(len, n);
        free(val);
        ck_assert_int_eq(store_client_wait(c, KEYS("never"), 1, 5, &e), -ETIMEDOUT);
    }
    interrupting = false;
    pthread_join(t, NULL);
    free(big);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("store_client");
    TCase *tc = test_case(s, "calls", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, all_calls);
    tcase_add_test(tc, large_values);
    tcase_add_test(tc, many_keys);
    tcase_add_test(tc, requests_above_a_limit_are_not_sent);
    tcase_add_test(tc, what_the_server_refuses_ends_the_client);
    tcase_add_test(tc, waits_end_in_time);
    tcase_add_test(tc, waits_end_when_the_key_comes);
    tcase_add_test(tc, cancelling_races_with_the_key);
    tcase_add_test(tc, interrupted_again_and_again);
    tc = test_case(s, "servers", 60);
    tcase_add_test(tc, a_server_that_dies_in_its_answer);
    tcase_add_test(tc, a_server_that_falls_silent);
    tcase_add_test(tc, answers_to_a_cancel);
    tcase_add_test(tc, answers_that_make_no_sense);
    tcase_add_test(tc, not_a_store);
    tcase_add_test(tc, nobody_listens);
    tcase_add_test(tc, never_connected_to_itself);
    tcase_add_test(tc, a_server_that_comes_late);
    return s;
}

TEST_MAIN(suite)
