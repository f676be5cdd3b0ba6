/* libdlcoll over TCP, with forked ranks: it does what it says, under a launcher and without one. */
#include "tests/lib/test.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/comm/comm.h"
#include "core/clock.h"
#include "core/mem.h"
#include "rendezvous/store/store_client.h"
#include "rendezvous/store/store_thread.h"
#include "tests/lib/proxy.h"
#include "tests/lib/ranks.h"
#include "tests/lib/store.h"

/* ------------------------------------------------------------------------------ it does its job */

static const size_t g_counts[] = {0, 1, 3, 15, 17, 1000, 16383, 200001};

static double value(int rank, size_t i)
{
    return (double)((size_t)rank * 7 + i % 1001) - 500;
}

/* send is at `shift` bytes from an aligned address. */
static void check_all_reduce(dlcoll_comm *c, size_t count, dlcoll_dtype t, dlcoll_op op,
                             bool in_place, size_t shift)
{
    int n = dlcoll_size(c), rank = dlcoll_rank(c);
    size_t size = t == DLCOLL_F32 ? 4 : 8;
    char *a = malloc(count * size + 16), *b = malloc(count * size + 16);
    char *send = a + shift, *recv = in_place ? send : b + shift;
    for (size_t i = 0; i < count; i++) {
        double v = value(rank, i);
        float f = (float)v;
        int64_t k = (int64_t)v;
        memcpy(send + i * size,
               t == DLCOLL_F32   ? (void *)&f
               : t == DLCOLL_F64 ? (void *)&v
                                 : &k,
               size);
    }
    int r = dlcoll_all_reduce(send, recv, count, t, op, c, NULL, NULL);
    EXPECT(r == 0, "%d %s", r, why(c));
    for (size_t i = 0; i < count; i++) {
        double want = value(0, i), got = 0;
        for (int k = 1; k < n; k++) {
            double v = value(k, i);
            want = op == DLCOLL_SUM ? want + v : op == DLCOLL_MIN ? fmin(want, v) : fmax(want, v);
        }
        float f;
        int64_t k;
        memcpy(&f, recv + i * size, 4);
        memcpy(&k, recv + i * size, size == 8 ? 8 : 4);
        memcpy(&got, recv + i * size, size == 8 ? 8 : 4);
        got = t == DLCOLL_F32 ? (double)f : t == DLCOLL_I64 ? (double)k : got;
        EXPECT(got == want, "count %zu type %d op %d: [%zu] is %g, not %g", count, t, op, i, got,
               want);
    }
    free(a);
    free(b);
}

static void check_broadcast(dlcoll_comm *c, size_t count, int root, bool in_place)
{
    uint8_t *a = xcalloc(count + 1, 1), *b = xcalloc(count + 1, 1), *recv = in_place ? a : b;
    for (size_t i = 0; i < count; i++)
        a[i] = (uint8_t)(i * 31 + (size_t)dlcoll_rank(c));
    int r = dlcoll_broadcast(a, recv, count, DLCOLL_U8, root, c, NULL, NULL);
    EXPECT(r == 0, "%d %s", r, why(c));
    for (size_t i = 0; i < count; i++)
        EXPECT(recv[i] == (uint8_t)(i * 31 + (size_t)root), "[%zu] from %d", i, root);
    free(a);
    free(b);
}

static void check_everything(dlcoll_comm *c)
{
    static const dlcoll_dtype types[] = {DLCOLL_F32, DLCOLL_F64, DLCOLL_I64};
    static const dlcoll_op ops[] = {DLCOLL_SUM, DLCOLL_MIN, DLCOLL_MAX};
    int k = 0;
    for (size_t i = 0; i < ARRAY_LEN(g_counts); i++) {
        for (size_t t = 0; t < ARRAY_LEN(types); t++)
            for (size_t o = 0; o < ARRAY_LEN(ops); o++, k++)
                check_all_reduce(c, g_counts[i], types[t], ops[o], k % 2, k % 5 == 0 ? 3 : 0);
        check_broadcast(c, g_counts[i], k % dlcoll_size(c), k % 2);
        EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    }
    for (int root = 0; root < dlcoll_size(c); root++)
        check_broadcast(c, 100, root, false);
}

static void everything(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    EXPECT(dlcoll_rank(c) == rank && dlcoll_size(c) == j->n);
    EXPECT(dlcoll_local_rank(c) == atoi(getenv("LOCAL_RANK")));
    check_everything(c);
    comm_end(c);
}

START_TEST(all_operations_under_a_launcher)
{
    ranks_run(_i, _i > 2 ? 2 : 1, everything);
}
END_TEST

START_TEST(a_world_of_one_with_nothing_set)
{
    dlcoll_comm *c = comm_start();
    ck_assert_int_eq(dlcoll_rank(c), 0);
    ck_assert_int_eq(dlcoll_size(c), 1);
    ck_assert_int_eq(dlcoll_local_rank(c), 0);
    char host[256], own[256] = "";
    int pid;
    ck_assert_int_eq(gethostname(own, sizeof(own) - 1), 0);
    ck_assert_int_eq(dlcoll_rank_host(c, 0, host, sizeof(host), &pid), 0);
    ck_assert_str_eq(host, own);
    ck_assert_int_eq(pid, getpid());
    check_everything(c);
    comm_end(c);
    set_env_int("RANK", 0);
    set_env_int("WORLD_SIZE", 1); /* needs no master */
    c = comm_start();
    check_everything(c);
    comm_end(c);
}
END_TEST

static void many_times(struct ranks *j, int rank)
{
    for (int k = 0; k < 10; k++) {
        dlcoll_comm *c = comm_start();
        int64_t v = rank;
        EXPECT(dlcoll_mem_alloc(c, 4096), "no memory in world %d", k);
        EXPECT(dlcoll_all_reduce(&v, &v, 1, DLCOLL_I64, DLCOLL_SUM, c, NULL, NULL) == 0, "%s",
               why(c));
        EXPECT(v == j->n * (j->n - 1) / 2);
        /* Nobody's leaving before the others have their result looks like a death. */
        comm_end(c);
    }
}

START_TEST(communicators_may_follow_each_other)
{
    ranks_run(5, 1, many_times);
}
END_TEST

static void large(struct ranks *j, int rank)
{
    (void)j;
    dlcoll_comm *c = comm_start();
    size_t n = (16 << 20) / 4;
    float *x = malloc(n * 4);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(rank + 1);
    EXPECT(dlcoll_all_reduce(x, x, n, DLCOLL_F32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s", why(c));
    for (size_t i = 0; i < n; i++)
        EXPECT(x[i] == 10, "[%zu]", i);
    EXPECT(dlcoll_broadcast(x, x, n, DLCOLL_F32, 3, c, NULL, NULL) == 0, "%s", why(c));
    free(x);
    comm_end(c);
}

START_TEST(large_messages)
{
    ranks_run(4, 2, large);
}
END_TEST

/* Ranks outnumber CPUs, and one comes late: those who wait must not keep it from coming. */
static void crowd(struct ranks *j, int rank)
{
    (void)j;
    dlcoll_comm *c = comm_start();
    for (int k = 0; k < 300; k++) {
        double v[64] = {[5] = rank};
        if (k % 8 == rank)
            sched_yield();
        EXPECT(dlcoll_all_reduce(v, v, 64, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL) == 0, "%s",
               why(c));
        EXPECT(v[5] == 28);
    }
    comm_end(c);
}

START_TEST(eight_ranks_on_two_cpus_do_not_crawl)
{
    uint64_t before = mono_ns();
    ranks_run(8, 1, crowd);
    /* Takes some 50 ms; 300 operations of 4 hops that each wait for a time slice would take 5 s. */
    ck_assert_uint_lt(mono_ns() - before, (uint64_t)(test_seconds(3) * 1e9));
}
END_TEST

/* --------------------------------------------------------------------------- without a launcher */

static uint16_t g_store_port;

/* A store in a process of its own, so that the test, which forks ranks, has one thread. */
static pid_t serve_store(uint16_t *port)
{
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct store_thread *store;
        struct err e = ERR_INIT;
        struct store_thread_opts opts = {.addr = "127.0.0.1"};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (store_thread_new(&store, &opts, &e) < 0)
            _exit(1);
        uint16_t p = (uint16_t)store_thread_port(store);
        if (write(fds[1], &p, sizeof(p)) != sizeof(p))
            _exit(1);
        for (;;)
            pause();
    }
    close(fds[1]);
    ck_assert_int_eq(read(fds[0], port, sizeof(*port)), sizeof(*port));
    close(fds[0]);
    return pid;
}

static void stop_store(pid_t pid)
{
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

static void with_agent_store(struct ranks *j, int rank)
{
    (void)j, (void)rank;
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("MASTER_ADDR", "localhost", 1);
    set_env_int("MASTER_PORT", g_store_port);
    dlcoll_comm *c = comm_start();
    EXPECT(dlcoll_rank(c) == rank && dlcoll_size(c) == j->n && dlcoll_local_rank(c) == rank);
    check_everything(c);
    comm_end(c);
    c = comm_start(); /* the same store again */
    check_everything(c);
    comm_end(c);
}

START_TEST(ranks_meet_in_a_store_that_is_served)
{
    pid_t store = serve_store(&g_store_port);
    ranks_run(_i, 0, with_agent_store);
    /* A second run of the program finds nothing of the first. */
    ranks_run(_i, 0, with_agent_store);
    stop_store(store);
}
END_TEST

static void by_hand(struct ranks *j, int rank)
{
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_store_port);
    setenv("LOCAL_RANK", "", 1); /* as good as not set */
    many_times(j, rank);
}

START_TEST(ranks_meet_in_a_store_that_rank_0_hosts)
{
    int fd = reserve_port(&g_store_port);
    ranks_run(_i, 0, by_hand);
    close(fd);
}
END_TEST

static bool has_std(void)
{
    return fcntl(0, F_GETFD) >= 0 || fcntl(1, F_GETFD) >= 0 || fcntl(2, F_GETFD) >= 0;
}

/* A program that has closed what it was started with may open it again. */
static void without_std(struct ranks *j, int rank)
{
    int32_t x = rank;
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_store_port);
    close(0), close(1), close(2);
    dlcoll_comm *c = NULL;
    EXPECT(dlcoll_init(&c, NULL) == 0);
    EXPECT(dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0);
    EXPECT(x == j->n * (j->n - 1) / 2);
    if (rank < 2)
        EXPECT((rank ? dlcoll_recv(&x, 1, DLCOLL_I32, 0, c, NULL, NULL)
                     : dlcoll_send(&x, 1, DLCOLL_I32, 1, c, NULL, NULL)) == 0);
    ranks_keep_result(j, rank, c, has_std());
    comm_end(c);
}

START_TEST(standard_input_and_output_are_not_ours)
{
    struct ranks j;
    int fd = reserve_port(&g_store_port);
    setenv("DLCOLL_SHM", _i ? "1" : "0", 1);
    ranks_init(&j, 3, 0);
    ranks_start(&j, without_std);
    ranks_wait(&j, 30, 0);
    for (int r = 0; r < 3; r++)
        ck_assert_msg(j.shared->rank[r].code == 0, "rank %d has made one of the three", r);
    ranks_fini(&j);
    unsetenv("DLCOLL_SHM");
    close(fd);
}
END_TEST

static int g_slow_port;

static void slowly(struct ranks *j, int rank)
{
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", rank == 0 ? g_slow_port : g_store_port);
    if (rank == 1)
        ranks_await_go(j);
    comm_end(comm_start());
}

struct keys {
    int fd; /* of a client of the store */
    int64_t most;
};

static bool are_there(void *arg)
{
    struct keys *k = arg;
    return raw_num_keys(k->fd) >= k->most;
}

/* Rank 0, which cannot serve a store where there is one, tries for a short time only to reach that,
 * and then has time. */
START_TEST(a_store_may_take_its_time)
{
    struct ranks j;
    struct proxy slow;
    pid_t store = serve_store(&g_store_port);
    struct keys keys = {.most = 1};
    proxy_start(&slow, g_store_port);
    g_slow_port = slow.port;
    ranks_init(&j, 2, 0);
    ranks_start(&j, slowly);
    keys.fd = raw_open(g_store_port);
    wait_until(are_there, &keys, 20, "rank 0 has come");
    atomic_store(&slow.rules->delay_ms, 300); /* there, and back again */
    atomic_store(&j.shared->go, 1);
    keys.most = 3;
    wait_until(are_there, &keys, 20, "rank 0 has told of both ranks");
    atomic_store(&slow.rules->delay_ms, 0);
    ranks_wait(&j, 30, 0);
    ranks_fini(&j);
    close(keys.fd);
    proxy_stop(&slow);
    stop_store(store);
}
END_TEST

/* Some ranks have made worlds of their own before that of all. */
static void some_alone(struct ranks *j, int rank)
{
    dlcoll_init_opts o = DLCOLL_INIT_OPTS_INIT;
    dlcoll_comm *c = NULL;
    dlcoll_store *s = NULL;
    int64_t v = rank;
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_store_port);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    o.world_size = 1;
    EXPECT(rank != 2 || dlcoll_init(&c, &o) == 0, "%s", why(NULL));
    dlcoll_destroy(c);
    if (rank < 2) {
        char url[64];
        snprintf(url, sizeof(url), "tcp://127.0.0.1:%d", g_store_port);
        EXPECT(dlcoll_store_open(&s, url, 0, 10000) == 0, "%s", why(NULL));
        o.rank = rank, o.world_size = 2, o.store = s, o.name = "pair";
        EXPECT(dlcoll_init(&c, &o) == 0, "%s", why(NULL));
        comm_end(c);
        dlcoll_store_close(s);
    }
    setenv("DLCOLL_TIMEOUT", "20s", 1);
    for (int k = 0; k < 2; k++) {
        c = comm_start();
        EXPECT(dlcoll_all_reduce(&v, &v, 1, DLCOLL_I64, DLCOLL_MAX, c, NULL, NULL) == 0, "%s",
               why(c));
        EXPECT(v == j->n - 1);
        comm_end(c);
    }
}

START_TEST(worlds_of_some_ranks_do_not_count)
{
    pid_t store = serve_store(&g_store_port);
    ranks_run(4, _i, some_alone);
    stop_store(store);
}
END_TEST

/* There is memory to share as far as the limit on files lets there be; no signal says otherwise. */
static void under_a_limit(struct ranks *j, int rank)
{
    static const rlim_t limits[] = {(rlim_t)1 << 30, 4096};
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_store_port);
    for (int k = 0; k < 2; k++) {
        dlcoll_comm *group;
        int64_t v = 1;
        struct rlimit limit = {limits[k], limits[k]};
        EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        dlcoll_comm *c = comm_start();
        EXPECT(dlcoll_comm_split(c, 0, rank, &group, NULL) == 0, "%s", why(c));
        EXPECT(!dlcoll_mem_alloc(group, 4096) == (k == 1), "limit %d", k);
        EXPECT(dlcoll_all_reduce(&v, &v, 1, DLCOLL_I64, DLCOLL_SUM, group, NULL, NULL) == 0, "%s",
               why(group));
        EXPECT(v == j->n);
        comm_end(group);
        comm_end(c);
    }
}

START_TEST(files_may_be_limited)
{
    int fd = reserve_port(&g_store_port);
    ranks_run(3, _i, under_a_limit);
    close(fd);
}
END_TEST

/* Ranks that were started bound, each to its own CPU, have all of these together: else they would
 * yield to nobody, where they should spin. */
static void bound_by_hand(struct ranks *j, int rank)
{
    static const char want[] = "cpus: 2 usable for 4 ranks of this host";
    cpu_set_t all, own;
    int nth = rank % 2;
    EXPECT(sched_getaffinity(0, sizeof(all), &all) == 0);
    CPU_ZERO(&own);
    for (int c = 0; c < CPU_SETSIZE && nth >= 0; c++) {
        if (CPU_ISSET(c, &all) && nth-- == 0)
            CPU_SET(c, &own);
    }
    EXPECT(sched_setaffinity(0, sizeof(own), &own) == 0);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_store_port);
    dlcoll_comm *c = comm_start();
    char text[8192];
    dlcoll_describe(c, text, sizeof(text));
    EXPECT(strstr(text, want), "%s", text);
    comm_end(c);
    (void)j;
}

START_TEST(cpus_of_bound_ranks_are_counted_together)
{
    cpu_set_t all;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    if (CPU_COUNT(&all) < 2) {
        test_skip("cpus_of_bound_ranks_are_counted_together: there is one CPU");
        return;
    }
    int fd = reserve_port(&g_store_port);
    ranks_run(4, 0, bound_by_hand);
    close(fd);
}
END_TEST

/* -------------------------------------------------------------------- containers of one network */

/* Process 1 of a PID namespace, and its children, are the next ones. False: there can be none. */
static bool new_pids(void)
{
    return unshare(CLONE_NEWPID) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0;
}

static bool can_have_pids(void)
{
    pid_t pid = fork();
    int status;
    if (pid == 0)
        _exit(new_pids() ? 0 : 1);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    if (status)
        test_skip("no PID namespaces here");
    return status == 0;
}

/* Ends with the child's status. */
static void end_as(pid_t child)
{
    int status = 0;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

/* `other` ends; where it is, rank 1's process has the number that rank 0's has with it. */
static void contained(struct ranks *j, int rank, pid_t other)
{
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_store_port);
    dlcoll_comm *c = comm_start();
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    int pid, x = 0, status;
    EXPECT(dlcoll_rank_host(c, 0, NULL, 0, &pid) == 0 && pid == (rank == 0 ? getpid() : other),
           "%d", pid);
    if (rank == 0) {
        ranks_await_go(j);
    } else {
        EXPECT(other == pid && kill(other, SIGKILL) == 0);
        EXPECT(waitpid(other, &status, 0) == other);
        o.timeout_ms = 50; /* many looks */
        int code = dlcoll_recv(&x, 1, DLCOLL_I32, 0, c, &o, NULL);
        EXPECT(code == DLCOLL_ETIMEDOUT, "%d %s", code, why(c));
        atomic_store(&j->shared->go, 1);
    }
    dlcoll_destroy(c);
    _exit(0);
}

static void in_container(struct ranks *j, int rank)
{
    EXPECT(new_pids());
    pid_t init = fork();
    if (init != 0)
        end_as(init);
    /* The first child of init is rank 0 in the one, and a child of rank 1 in the other. */
    if (rank == 0 && (init = fork()) != 0)
        end_as(init);
    if (rank == 0)
        contained(j, rank, 0);
    pid_t other = fork();
    while (other == 0)
        pause();
    contained(j, rank, other);
}

START_TEST(pids_of_another_container_mean_nothing)
{
    if (!can_have_pids())
        return;
    int fd = reserve_port(&g_store_port);
    ranks_run(2, 0, in_container);
    close(fd);
}
END_TEST

START_TEST(a_wrong_environment_is_reported)
{
    setenv("RANK", "0", 1);
    expect_init(DLCOLL_EINVAL, "WORLD_SIZE is not set");
    setenv("WORLD_SIZE", "x", 1);
    expect_init(DLCOLL_EINVAL, "WORLD_SIZE: 'x' is not a whole number");
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", "2", 1);
    expect_init(DLCOLL_EINVAL, "RANK: 2 is out of range");
    setenv("RANK", "0", 1);
    expect_init(DLCOLL_EINVAL, "MASTER_ADDR is not set");
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    expect_init(DLCOLL_EINVAL, "MASTER_PORT is not set");
    setenv("MASTER_PORT", "70000", 1);
    expect_init(DLCOLL_EINVAL, "MASTER_PORT: 70000 is out of range");
    unsetenv("RANK");
    expect_init(DLCOLL_EINVAL, "RANK is not set");
    setenv("DLCOLL_TIMEOUT", "soon", 1);
    expect_init(DLCOLL_EINVAL, "DLCOLL_TIMEOUT");
    setenv("DLCOLL_TIMEOUT", "0", 1);
    expect_init(DLCOLL_EINVAL, "DLCOLL_TIMEOUT: 0 is too short: must be 1ms or more");
}
END_TEST

/* Errors name the function that the program called. */
static void one_makes_a_group(struct ranks *j, int rank)
{
    dlcoll_group_opts o = DLCOLL_GROUP_OPTS_INIT;
    dlcoll_comm *group;
    int both[] = {0, 1};
    ranks_become(j, rank);
    dlcoll_comm *c = comm_start();
    o.timeout_ms = 50;
    if (rank == 1) {
        ranks_await_go(j);
    } else {
        int code = dlcoll_comm_new_group(c, both, 2, &group, &o);
        EXPECT(code == DLCOLL_ETIMEDOUT, "%d", code);
        EXPECT(strstr(why(c), "comm_new_group: rank 0 timed out") == why(c), "%s", why(c));
        atomic_store(&j->shared->go, 1);
    }
    dlcoll_destroy(c);
}

START_TEST(a_group_that_no_other_rank_joins)
{
    ranks_run(2, 1, one_makes_a_group);
}
END_TEST

START_TEST(missing_ranks_are_listed)
{
    int fd = reserve_port(&g_store_port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_store_port);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("DLCOLL_TIMEOUT", "200ms", 1);
    expect_init(DLCOLL_ETIMEDOUT, "missing: 1, 2, 3");
    setenv("RANK", "1", 1); /* and nobody hosts the store */
    expect_init(DLCOLL_ETIMEDOUT, "127.0.0.1");
    setenv("MASTER_ADDR", "no-such-host.invalid", 1);
    expect_init(DLCOLL_ETIMEDOUT, "no-such-host.invalid");
    close(fd);
}
END_TEST

START_TEST(two_processes_with_one_rank_get_an_error)
{
    pid_t store = serve_store(&g_store_port);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_store_port);
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", "1", 1);
    if (_i && !can_have_pids())
        return stop_store(store);
    const struct {
        int code;
        const char *text, *timeout;
    } want[] = {/* it stores its record long before */
                {DLCOLL_ETIMEDOUT, "missing: 0", test_text("%ds", (int)test_seconds(1))},
                {DLCOLL_EINVAL, "there is a rank 1 at 127.0.0.1", "1min"}};
    for (int k = 0; k < 2; k++) {
        int status;
        pid_t pid = fork(), init = 0;
        if (pid == 0 && _i) { /* each has number 1 in its container */
            EXPECT(new_pids());
            if ((init = fork()) != 0)
                end_as(init);
        }
        if (pid == 0) {
            setenv("DLCOLL_TIMEOUT", want[k].timeout, 1);
            expect_init(want[k].code, want[k].text);
            _exit(0);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
    }
    stop_store(store);
}
END_TEST

/* Another program may have put malformed values into the store. */
START_TEST(a_malformed_table_is_refused)
{
    struct store_thread *store;
    struct store_client *client;
    struct err e = ERR_INIT;
    struct store_thread_opts opts = {.addr = "127.0.0.1"};
    ck_assert_int_eq(store_thread_new(&store, &opts, &e), 0);
    ck_assert_int_eq(store_client_new(&client, "127.0.0.1", store_thread_port(store), 5000, &e), 0);
    ck_assert_int_eq(store_client_set(client, "dlcoll//0/1/table", "abc", 3, &e), 0);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", store_thread_port(store));
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", "1", 1);
    expect_init(DLCOLL_ENET, "the table of ranks is malformed");
    ck_assert_int_eq(store_client_set(client, "dlcoll//0/1/rank/1", "\xff\xff\xff\xff", 4, &e), 0);
    setenv("RANK", "0", 1);
    expect_init(DLCOLL_ENET, "what rank 1 has published is malformed");
    store_client_free(client);
    store_thread_free(store);
}
END_TEST

/* ------------------------------------------------------------------------------------ arguments */

static void expect_refused(dlcoll_comm *c, int got, int code, const char *text)
{
    ck_assert_int_eq(got, code);
    ck_assert_msg(strstr(why(c), text), "'%s' is not in '%s'", text, why(c));
}

START_TEST(wrong_arguments_are_refused_and_harm_nothing)
{
    dlcoll_comm *c = comm_start();
    double x[8] = {0};
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
#define ALL_REDUCE(...) dlcoll_all_reduce(__VA_ARGS__)
    expect_refused(c, ALL_REDUCE(x, x, 8, (dlcoll_dtype)12, DLCOLL_SUM, c, NULL, NULL),
                   DLCOLL_EINVAL, "all_reduce: unknown dtype");
    expect_refused(c, ALL_REDUCE(x, x, 8, (dlcoll_dtype)(256 + 8), DLCOLL_SUM, c, NULL, NULL),
                   DLCOLL_EINVAL, "unknown dtype");
    expect_refused(c, ALL_REDUCE(x, x, 8, DLCOLL_F64, (dlcoll_op)256, c, NULL, NULL), DLCOLL_EINVAL,
                   "unknown op");
    expect_refused(c, ALL_REDUCE(x, x, SIZE_MAX / 8, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL),
                   DLCOLL_EINVAL, "too large");
    expect_refused(c, ALL_REDUCE(NULL, x, 8, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL), DLCOLL_EINVAL,
                   "NULL");
    expect_refused(c, ALL_REDUCE(x, NULL, 8, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL), DLCOLL_EINVAL,
                   "NULL");
    expect_refused(c, ALL_REDUCE(x, x + 1, 7, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL), DLCOLL_EINVAL,
                   "overlap");
    expect_refused(c, dlcoll_broadcast(x, x, 8, DLCOLL_F64, 1, c, NULL, NULL), DLCOLL_EINVAL,
                   "broadcast: root");
    expect_refused(c, dlcoll_broadcast(x, x, 8, DLCOLL_F64, -1, c, NULL, NULL), DLCOLL_EINVAL,
                   "root");
    opts.size = 3;
    expect_refused(c, dlcoll_barrier(c, &opts, NULL), DLCOLL_EINVAL, "DLCOLL_OPTS_INIT");
    opts = (dlcoll_opts){.size = sizeof(opts)};
    expect_refused(c, dlcoll_barrier(c, &opts, NULL), DLCOLL_EINVAL, "DLCOLL_OPTS_INIT");
    dlcoll_bytes *all = (void *)x;
    expect_refused(c, dlcoll_exchange_bytes(NULL, 4, &all, c, NULL), DLCOLL_EINVAL, "data is NULL");
    ck_assert_ptr_null(all); /* nothing to free */
    all = (void *)x;
    ck_assert_int_eq(dlcoll_exchange_bytes(x, 4, &all, NULL, NULL), DLCOLL_EINVAL);
    ck_assert_ptr_null(all);
    ck_assert_int_eq(dlcoll_barrier(NULL, NULL, NULL), DLCOLL_EINVAL);
    ck_assert_int_eq(dlcoll_rank(NULL), DLCOLL_EINVAL);
    ck_assert_int_eq(dlcoll_init(NULL, NULL), DLCOLL_EINVAL);
    ck_assert_int_eq(ALL_REDUCE(NULL, NULL, 0, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL), 0);
    check_everything(c);
    comm_end(c);
    dlcoll_destroy(NULL);
}
END_TEST

/* A newer program on this library, and an older one. */
START_TEST(structs_grow_both_ways)
{
    dlcoll_comm *c = comm_start();
    struct {
        dlcoll_opts opts;
        uint64_t new_field;
    } newer = {DLCOLL_OPTS_INIT, 0};
    newer.opts.size = sizeof(newer);
    ck_assert_int_eq(dlcoll_barrier(c, &newer.opts, NULL), 0);
    newer.new_field = 1;
    ck_assert_int_eq(dlcoll_barrier(c, &newer.opts, NULL), DLCOLL_ENOSUP);
    dlcoll_opts older = DLCOLL_OPTS_INIT;
    older.size = offsetof(dlcoll_opts, timeout_ms);
    ck_assert_int_eq(dlcoll_barrier(c, &older, NULL), 0);

    dlcoll_error e = DLCOLL_ERROR_INIT;
    memset(e.text, 'x', sizeof(e.text));
    e.size = offsetof(dlcoll_error, text);
    ck_assert_int_eq(dlcoll_last_error(c, &e), 0);
    ck_assert_int_eq(e.text[0], 'x');
    e.size = 0;
    ck_assert_int_eq(dlcoll_last_error(c, &e), DLCOLL_EINVAL);
    ck_assert_int_eq(dlcoll_last_error(c, NULL), DLCOLL_EINVAL);
    comm_end(c);
}
END_TEST

START_TEST(codes_have_texts)
{
    for (int code = -20; code < 20; code++)
        ck_assert_int_gt((int)strlen(dlcoll_strerror(code)), 3);
    ck_assert_str_eq(dlcoll_strerror(DLCOLL_EPEER), "a rank has died or left");
    ck_assert_str_eq(dlcoll_strerror(-13), "unknown error");
    ck_assert_str_eq(dlcoll_strerror(INT32_MIN), "unknown error");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll");
    TCase *tc = test_case(s, "operations", 60);
    tcase_add_loop_test(tc, all_operations_under_a_launcher, 1, 6);
    tcase_add_loop_test(tc, all_operations_under_a_launcher, 8, 9);
    tcase_add_test(tc, a_world_of_one_with_nothing_set);
    tcase_add_test(tc, communicators_may_follow_each_other);
    tcase_add_test(tc, large_messages);
    tcase_add_test(tc, eight_ranks_on_two_cpus_do_not_crawl);
    tc = test_case(s, "without a launcher", 60);
    tcase_add_loop_test(tc, ranks_meet_in_a_store_that_is_served, 2, 5);
    tcase_add_loop_test(tc, worlds_of_some_ranks_do_not_count, 0, 3);
    tcase_add_loop_test(tc, files_may_be_limited, 0, 2);
    tcase_add_test(tc, cpus_of_bound_ranks_are_counted_together);
    tcase_add_loop_test(tc, ranks_meet_in_a_store_that_rank_0_hosts, 2, 6);
    tcase_add_loop_test(tc, standard_input_and_output_are_not_ours, 0, 2);
    tcase_add_test(tc, a_store_may_take_its_time);
    tcase_add_test(tc, a_wrong_environment_is_reported);
    tcase_add_test(tc, missing_ranks_are_listed);
    tcase_add_loop_test(tc, two_processes_with_one_rank_get_an_error, 0, 2);
    tcase_add_test(tc, pids_of_another_container_mean_nothing);
    tcase_add_test(tc, a_group_that_no_other_rank_joins);
    tcase_add_test(tc, a_malformed_table_is_refused);
    tc = test_case(s, "arguments", 30);
    tcase_add_test(tc, wrong_arguments_are_refused_and_harm_nothing);
    tcase_add_test(tc, structs_grow_both_ways);
    tcase_add_test(tc, codes_have_texts);
    return s;
}

TEST_MAIN(suite)
