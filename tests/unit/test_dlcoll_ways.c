/* The ways in that need neither a launcher nor its environment: tcp://, file://, a store of the
 * program's, a world of one; and what is said when they are wrong. */
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "core/clock.h"
#include "core/fd.h"
#include "tests/lib/ranks.h"
#include "tests/lib/thread_ranks.h"

struct way {
    const char *url;
    int rank, size; /* size 0: in the URL */
    const char *name;
    int code;
    char text[512];
    int64_t timeout_ms;
};

static void *go(void *arg)
{
    struct way *w = arg;
    dlcoll_comm *comm = NULL;
    dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_init_opts o = DLCOLL_INIT_OPTS_INIT;
    int32_t x = 1;
    o.init_method = w->url;
    o.rank = w->rank;
    o.world_size = w->size;
    o.name = w->name;
    o.init_timeout_ms = w->timeout_ms ? w->timeout_ms : (int64_t)(test_seconds(20) * 1000);
    w->code = dlcoll_init(&comm, &o);
    if (w->code < 0) {
        dlcoll_last_error(NULL, &e);
        snprintf(w->text, sizeof(w->text), "%s", e.text);
        return NULL;
    }
    w->code = dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, comm, NULL, NULL);
    THREAD_EXPECT(w->code == 0 && x == dlcoll_size(comm), "%d", w->code);
    w->rank = dlcoll_rank(comm);
    w->size = dlcoll_size(comm);
    THREAD_EXPECT(dlcoll_finalize(comm) == 0, "finalize");
    dlcoll_destroy(comm);
    return NULL;
}

/* n ranks at once, the one with rank 0 last. */
static void all_meet(const char *url, int n, bool in_url)
{
    static int worlds;
    struct way ways[8] = {{0}};
    pthread_t threads[8];
    const char *name = test_text("way-%d", worlds++);
    for (int r = n - 1; r >= 0; r--) {
        ways[r] = (struct way){.url = url, .rank = r, .size = n, .name = name};
        if (in_url) {
            ways[r].url = test_text("%s?rank=%d&world_size=%d", url, r, n);
            ways[r].rank = ways[r].size = 0;
        }
        ck_assert_int_eq(pthread_create(&threads[r], NULL, go, &ways[r]), 0);
    }
    for (int r = 0; r < n; r++) {
        pthread_join(threads[r], NULL);
        ck_assert_msg(ways[r].code == 0, "rank %d: %d %s", r, ways[r].code, ways[r].text);
        ck_assert_int_eq(ways[r].rank, r);
        ck_assert_int_eq(ways[r].size, n);
    }
}

START_TEST(ranks_meet_at_an_address)
{
    uint16_t port;
    _cleanup_fd_ int hold = reserve_port(&port);
    const char *url = test_text("tcp://127.0.0.1:%d", port);
    all_meet(url, 3, false);
    all_meet(url, 4, true);
}
END_TEST

START_TEST(ranks_meet_behind_a_file)
{
    const char *path = tmppath("meeting"), *url = test_text("file://%s", path);
    struct stat st;
    all_meet(url, 3, false);
    ck_assert_int_lt(stat(path, &st), 0); /* it has done its work */
    all_meet(url, 4, true);
}
END_TEST

/* A file of an earlier job that has died: its store is gone, or another one is there now. */
START_TEST(a_stale_file_is_noticed)
{
    const char *path = tmppath("meeting"), *url = test_text("file://%s", path);
    uint16_t port;
    _cleanup_fd_ int hold = reserve_port(&port);
    const char *stale = test_text("dlcoll 1\nhost 00000000000000aa elsewhere\npid 4711\nnonce "
                                  "00000000000000bb\nport %d\naddr 127.0.0.1\nend\n",
                                  port);
    write_file(path, stale);
    struct way alone = {.url = url, .rank = 1, .size = 2, .name = "stale", .timeout_ms = 1300};
    go(&alone);
    ck_assert_int_eq(alone.code, DLCOLL_ETIMEDOUT);
    ck_assert_msg(strstr(alone.text, "of an earlier job (pid 4711 on elsewhere)"), "%s",
                  alone.text);
    all_meet(url, 3, false);
    write_file(path, "something else\n");
    alone = (struct way){.url = url, .rank = 1, .size = 2, .name = "stale", .timeout_ms = 50};
    go(&alone);
    ck_assert_int_eq(alone.code, DLCOLL_ETIMEDOUT);
    ck_assert_msg(strstr(alone.text, "not a file that rank 0 has written"), "%s", alone.text);
    all_meet(url, 2, false);
}
END_TEST

/* A device would be replaced, a pipe without a writer read for ever. */
START_TEST(a_path_that_is_not_a_file_is_left_alone)
{
    const char *path = tmppath("pipe"), *url = test_text("file://%s", path);
    struct stat st;
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    for (int rank = 0; rank < 2; rank++) {
        struct way w = {.url = url, .rank = rank, .size = 2, .name = "pipe", .timeout_ms = 50};
        go(&w);
        ck_assert_msg(w.code == DLCOLL_EINVAL, "rank %d: %d %s", rank, w.code, w.text);
        ck_assert_msg(strstr(w.text, "exists and is not a regular file"), "%s", w.text);
        ck_assert(stat(path, &st) == 0 && S_ISFIFO(st.st_mode));
    }
}
END_TEST

START_TEST(a_world_of_one_needs_nothing)
{
    struct way w = {0};
    unsetenv("RANK"), unsetenv("WORLD_SIZE"), unsetenv("MASTER_ADDR");
    go(&w);
    ck_assert_msg(w.code == 0 && w.size == 1, "%d %s", w.code, w.text);
    w = (struct way){.rank = 0, .size = 1};
    go(&w);
    ck_assert_msg(w.code == 0 && w.size == 1, "%d %s", w.code, w.text);
}
END_TEST

START_TEST(wrong_ways_are_refused)
{
    static const struct {
        const char *url;
        int rank, size;
        const char *text;
    } wrong[] = {
        {"udp://127.0.0.1:1", 0, 2, "none of env://, tcp://HOST:PORT and file:///PATH"},
        {"tcp://127.0.0.1", 0, 2, "no port"},
        {"tcp://127.0.0.1:1?color=2", 0, 2, "neither rank=N nor world_size=N"},
        {"tcp://127.0.0.1:1?rank=x&world_size=2", 0, 0, "rank"},
        {"tcp://127.0.0.1:1", 2, 2, "rank 2 is out of range (0 to 1)"},
        {"file://relative", 0, 2, "none of"},
        {"tcp://127.0.0.1:1?world_size=2", 0, 0, "RANK is not set"},
        {"foo", 0, 0, "init_method: foo is none of env://, tcp://HOST:PORT and file:///PATH"},
    };
    unsetenv("RANK"), unsetenv("WORLD_SIZE");
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct way w = {.url = wrong[i].url, .rank = wrong[i].rank, .size = wrong[i].size};
        go(&w);
        ck_assert_int_eq(w.code, DLCOLL_EINVAL);
        ck_assert_msg(strstr(w.text, wrong[i].text), "%s: %s", wrong[i].url, w.text);
    }
}
END_TEST

/* Both ranks report different world sizes, whichever of them is larger. */
START_TEST(worlds_of_different_sizes)
{
    static const int sizes[2][3] = {{3, 2, 3}, {2, 3}};
    int n = _i == 0 ? 3 : 2;
    uint16_t port;
    _cleanup_fd_ int hold = reserve_port(&port);
    const char *url = test_text("tcp://127.0.0.1:%d", port);
    pthread_t threads[3];
    struct way ways[3];
    for (int r = n - 1; r >= 0; r--) {
        ways[r] = (struct way){.url = url,
                               .rank = r,
                               .size = sizes[_i][r],
                               .name = "sizes",
                               .timeout_ms = (int64_t)(test_seconds(60) * 1000)};
        ck_assert_int_eq(pthread_create(&threads[r], NULL, go, &ways[r]), 0);
    }
    const char *want = test_text("rank 1 was given a world of %d ranks, rank 0 one of %d: "
                                 "WORLD_SIZE must be the same on all",
                                 ways[1].size, ways[0].size);
    for (int r = 0; r < n; r++) {
        pthread_join(threads[r], NULL);
        ck_assert_msg(ways[r].code == DLCOLL_EINVAL, "rank %d: %d", r, ways[r].code);
        ck_assert_msg(strstr(ways[r].text, want), "rank %d: %s", r, ways[r].text);
    }
}
END_TEST

/* The port is somebody's, who does not listen there. */
START_TEST(rank_0_cannot_serve_the_store)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    _cleanup_fd_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, len), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    struct way w = {
        .url = test_text("tcp://127.0.0.1:%d", ntohs(a.sin_port)), .size = 2, .timeout_ms = 50};
    go(&w);
    ck_assert_int_eq(w.code, DLCOLL_ETIMEDOUT);
    const char *want = test_text("rank 0 cannot serve the store at 127.0.0.1:%d, as the port is in "
                                 "use, nor is one there",
                                 ntohs(a.sin_port));
    ck_assert_msg(strstr(w.text, want), "%s", w.text);
}
END_TEST

static void expect_setting(const char *name, const char *value, const char *text)
{
    struct way w = {.rank = 0, .size = 1};
    setenv(name, value, 1);
    go(&w);
    unsetenv(name);
    ck_assert_int_eq(w.code, DLCOLL_EINVAL);
    ck_assert_msg(strstr(w.text, text), "%s=%s: %s", name, value, w.text);
}

START_TEST(wrong_settings_are_refused)
{
    expect_setting("DLCOLL_ALGO", "all_reduce", "DLCOLL_ALGO, rule 1: 'all_reduce' alone");
    expect_setting("DLCOLL_ALGO", "net;all_sum:net", "rule 1");
    expect_setting("DLCOLL_ALGO", "*:net;all_sum:net", "rule 2: 'all_sum' is not an operation");
    expect_setting("DLCOLL_ALGO", "barrier:ranks=4-2:net", "'ranks=4-2' is not a range");
    expect_setting("DLCOLL_ALGO", "barrier:4x:net", "'4x' is not a range");
    expect_setting("DLCOLL_ALGO", "barrier:net/", "'net/' is not PROVIDER");
    expect_setting("DLCOLL_ALGO", "barrier:nett/flat", "'nett/flat' is not shm, hier, net");
    expect_setting("DLCOLL_ALGO", "barrier:net/ring",
                   "no 'net/ring' for barrier, but net/dissemination net/flat");
    expect_setting("DLCOLL_ALGO", "*:shm/ring", "no 'shm/ring' for any operation");
    expect_setting("DLCOLL_ALGO", "barrier 1 2 3 4 5 6 7 8", "too many words");
    expect_setting("DLCOLL_TUNE_FILE", "/does/not/exist", "/does/not/exist: No such file");
    expect_setting("DLCOLL_SOCKETS", "0", "DLCOLL_SOCKETS");
    expect_setting("DLCOLL_TCP_CONGESTION", "cubik", "there is no 'cubik' here; /proc/sys/net/");
    expect_setting("DLCOLL_TCP_CONGESTION", "a_name_beyond_the_kernels", "there is no 'a_name_b");
    expect_setting("DLCOLL_SHM", "maybe", "DLCOLL_SHM");
    expect_setting("DLCOLL_NCCL_ROOTS", "2x", "DLCOLL_NCCL_ROOTS: '2x' is not a whole number");
    expect_setting("DLCOLL_NCCL_ROOTS", "-1", "DLCOLL_NCCL_ROOTS: -1 is out of range");
    expect_setting("DLCOLL_DEBUG", "INFO", "DLCOLL_DEBUG: 'INFO' is neither yes nor no");
    expect_setting("DLCOLL_TIMEOUT", "soon", "DLCOLL_TIMEOUT");
    expect_setting("DLCOLL_INIT_METHOD", "foo", "DLCOLL_INIT_METHOD: foo is none of env://,");
    struct way w = {.rank = 0, .size = 1};
    setenv("DLCOLL_ALGO", " # a remark\n*: net ;all_reduce ranks=2- 4k-1M net/ring\n\n", 1);
    go(&w);
    ck_assert_msg(w.code == 0, "%s", w.text);
    unsetenv("DLCOLL_ALGO");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_ways");
    TCase *tc = test_case(s, "ways", 60);
    tcase_add_test(tc, ranks_meet_at_an_address);
    tcase_add_test(tc, ranks_meet_behind_a_file);
    tcase_add_test(tc, a_stale_file_is_noticed);
    tcase_add_test(tc, a_path_that_is_not_a_file_is_left_alone);
    tcase_add_test(tc, a_world_of_one_needs_nothing);
    tcase_add_test(tc, wrong_ways_are_refused);
    tcase_add_loop_test(tc, worlds_of_different_sizes, 0, 2);
    tcase_add_test(tc, rank_0_cannot_serve_the_store);
    tcase_add_test(tc, wrong_settings_are_refused);
    return s;
}

TEST_MAIN(suite)
