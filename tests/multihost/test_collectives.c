/* libdlcoll between hosts: results over a network that delays and loses packets, how much goes over
 * a good one, and what is told of a host that is lost. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/coll_job.h"
#include "tests/lib/test.h"
#include "tests/lib/wan.h"
#include "tests/multihost/hosts.h"

/* The same command on hosts 0 to n - 1, workers' data over `interface`. */
static void run_on(int n, const char *interface, const char *line)
{
    struct hosts h = {0};
    for (int i = 0; i < n; i++)
        launch(&h, i, "--nnodes %d --node_rank %d --master_addr 10.77.0.1 --interface %s %s %s", n,
               i, interface, QUICK, line);
    for (int i = 0; i < n; i++)
        expect_exit(&h, i, 0, 120);
    hosts_fini(&h);
}

/* dlcoll_perf looks at every element of every result. Three ranks on each host, so there are lanes
 * and leaders, in a number that is no power of two. */
START_TEST(every_operation_over_a_bad_network)
{
    struct wan wan;
    long lost;
    if (!wan_available())
        return;
    wan_start(&wan, _i, &(struct wan_rules){.delay_ms = 2, .loss = 0.01, .seed = 7});
    run_on(_i, "wan0",
           test_text("--nproc_per_node 3 %s all -b 8 -e 200K -f 150 -w 1 -n 2",
                     build_path("dlcoll_perf")));
    long carried = wan_stop(&wan, &lost);
    ck_assert_msg(carried > 1000 && lost > 5, "%ld packets carried, %ld lost", carried, lost);
}
END_TEST

/* -------------------------------------------------------------------------------------- traffic */

struct traffic {
    double in, out; /* bytes */
};

static struct traffic traffic_of(int host)
{
    struct proc p;
    struct traffic t = {0};
    netns_start(&p, host, ARGV("cat", "/proc/net/dev"), NULL);
    ck_assert_int_eq(proc_wait(&p, 20), 0);
    const char *line = strstr(p.out, "eth0:");
    ck_assert_msg(line &&
                      sscanf(line, "eth0: %lf %*f %*f %*f %*f %*f %*f %*f %lf", &t.in, &t.out) == 2,
                  "%s", p.out);
    proc_fini(&p);
    return t;
}

/* Bytes over host 0's interface while 8 workers on 2 hosts add up 8 MB so many times. */
static struct traffic reduce_often(int times)
{
    struct traffic before = traffic_of(0);
    run_on(2, "eth0",
           test_text("--nproc_per_node 4 %s all_reduce -b 8M -e 8M -p in -w 1 -c 0 -n %d",
                     build_path("dlcoll_perf"), times));
    struct traffic after = traffic_of(0);
    return (struct traffic){after.in - before.in, after.out - before.out};
}

/* Each node sends half of its sum and the result of the other half: as many bytes as a buffer has,
 * however many ranks there are on it. */
START_TEST(a_byte_leaves_a_node_once)
{
    const double each = 8 << 20;
    struct traffic few = reduce_often(5), many = reduce_often(25);
    double in = (many.in - few.in) / 20 / each, out = (many.out - few.out) / 20 / each;
    ck_assert_msg(in > 0.9 && in <= 1.05 && out > 0.9 && out <= 1.05,
                  "%.3f of the buffer came in, %.3f went out", in, out);
}
END_TEST

/* ---------------------------------------------------------------------------------- a lost host */

static struct coll_job *g_job;

static bool ranks_are_ready(void *n)
{
    return atomic_load(&g_job->ready) >= *(int *)n;
}

static void link_down(int host)
{
    ck_assert_int_eq(netns_sh(host, "ip link set eth0 down"), 0);
}

static void link_up(int host)
{
    ck_assert_int_eq(netns_sh(host, "ip link set eth0 up"), 0);
}

static const struct {
    const char *name;
    void (*lose)(int host), (*heal)(int host);
} losses[] = {{"unplugged", netns_cut, netns_heal},
              {"interface down", link_down, link_up},
              {"switched off", netns_power_off, netns_heal}};

static const char *const g_watched[] = {"all_reduce", "broadcast"};

/* Two ranks on each of three hosts, one of which is lost while all of them are in an all_reduce:
 * each one that is left is told of a rank of that host, as soon as the launchers know. */
START_TEST(a_host_is_lost_in_an_operation)
{
    enum { EACH = 2 };
    struct hosts h;
    int way = _i % (int)ARRAY_LEN(losses), lost = _i < (int)ARRAY_LEN(losses) ? 2 : 1;
    int ranks = HOSTS * EACH;
    double most = 0;
    setenv("SURVIVORS", test_text("%d", ranks - EACH), 1);
    g_job = coll_job_open(tmppath("job"));
    launch_all(&h, "--master_addr 10.77.0.1 %s --nproc_per_node %d %s for-ever all_reduce %%T/job",
               QUICK, EACH, build_path("tests/coll_worker"));
    wait_until(ranks_are_ready, &ranks, 30, "all ranks are in the operation");
    uint64_t start = mono_ns();
    losses[way].lose(lost);
    for (int i = 0; i < HOSTS; i++) {
        if (i != lost)
            expect_exit(&h, i, 1, 2 * (DEAD_S + MARGIN_S));
    }
    for (int r = 0; r < ranks; r++) {
        const struct coll_job_rank *mine = &g_job->rank[r];
        const dlcoll_error *e = &mine->error;
        double s = (double)(mine->returned_ns - start) / 1e9;
        if (r / EACH == lost)
            continue;
        ck_assert_msg(atomic_load(&mine->told), "%s: rank %d said nothing\n%s", losses[way].name, r,
                      h.node[r / EACH].err);
        ck_assert_msg(mine->code == DLCOLL_EPEER && e->rank >= 0 && e->rank / EACH == lost &&
                          strstr(e->text, test_text("node host%d", lost)),
                      "%s: rank %d: %d, rank %d: %s", losses[way].name, r, mine->code, e->rank,
                      e->text);
        ck_assert_msg(s < test_seconds(DEAD_S + MARGIN_S), "%s: rank %d: after %.1f s",
                      losses[way].name, r, s);
        most = s > most ? s : most;
    }
    printf("%s: the last rank knew after %.2f s: %s\n", losses[way].name, most,
           g_job->rank[0].error.text);
    netns_kill(lost, NULL, SIGKILL);
    losses[way].heal(lost);
    hosts_fini(&h);
}
END_TEST

/* Without a launcher, one rank on each of n hosts. */
static void start_alone(struct hosts *h, int n, char *const env[], char *const argv[])
{
    g_job = coll_job_open(tmppath("job"));
    for (int i = 0; i < n; i++) {
        char *all[8] = {test_text("RANK=%d", i), test_text("WORLD_SIZE=%d", n), "MASTER_PORT=29500",
                        "MASTER_ADDR=10.77.0.1"};
        for (int k = 0; env[k]; k++)
            all[4 + k] = env[k];
        netns_start(&h->node[i], i, argv, all);
    }
    wait_until(ranks_are_ready, &n, 30, "all ranks are in the operation");
}

/* Without a launcher, one rank on each host: whether a rank waits for data or has sent some that
 * nobody acknowledges, it notices the silence after 30 s, as does the one that is cut off. */
START_TEST(a_silent_host_is_noticed)
{
    const double silent_s = 30, most_s = silent_s + test_seconds(10);
    struct hosts h = {0};
    int ranks = HOSTS, lost = 1;
    char *env[] = {test_text("SURVIVORS=%d", ranks), NULL};
    start_alone(
        &h, HOSTS, env,
        ARGV(build_path("tests/coll_worker"), "for-ever", (char *)g_watched[_i], tmppath("job")));
    uint64_t start = mono_ns();
    netns_cut(lost);
    for (int i = 0; i < HOSTS; i++)
        expect_exit(&h, i, 0, 2 * most_s);
    for (int r = 0; r < ranks; r++) {
        const struct coll_job_rank *mine = &g_job->rank[r];
        double s = (double)(mine->returned_ns - start) / 1e9;
        ck_assert_msg(mine->code == DLCOLL_EPEER && s > silent_s - 5 && s < most_s,
                      "rank %d: %d after %.1f s: %s", r, mine->code, s, mine->error.text);
        printf("%s: rank %d knew after %.1f s: %s\n", g_watched[_i], r, s, mine->error.text);
    }
    netns_heal(lost);
    hosts_fini(&h);
}
END_TEST

static const struct {
    int hosts, cut, sum; /* of the ranks that go on */
} sides[] = {{3, 0, 1 + 2}, {3, 2, 0 + 1}, {2, 0, 0}, {2, 1, 0}};

/* Without a launcher, both sides of a network that is cut shrink what is left: the one with more
 * than half of the ranks goes on, or the half with the lowest rank, and the other one is told. */
START_TEST(one_side_goes_on)
{
    struct hosts h = {0};
    int n = sides[_i].hosts, cut = sides[_i].cut, few = 0, sum = 0;
    char *env[] = {"SURVIVORS=1", "DLCOLL_TIMEOUT=4", NULL};
    start_alone(&h, n, env, ARGV(build_path("tests/coll_worker"), "shrink", tmppath("job")));
    netns_cut(cut);
    for (int i = 0; i < n; i++) {
        int status = proc_wait(&h.node[i], test_seconds(60));
        few += status == 2;
        sum += status == 0 ? i : 0;
        ck_assert_msg(status == 0 || status == 2, "rank %d: %d: %s", i, status, h.node[i].err);
        if (status == 0)
            ck_assert_msg(g_job->rank[i].sum == sides[_i].sum, "rank %d: the sum is %d", i,
                          g_job->rank[i].sum);
        else
            expect_text(h.node[i].err, test_text("only 1 of %d ranks are here", n));
    }
    ck_assert_msg(few == 1 && sum == sides[_i].sum, "%d ranks are too few, the others' sum is %d",
                  few, sum);
    netns_heal(cut);
    hosts_fini(&h);
}
END_TEST

static void setup(void)
{
    netns_setup(HOSTS, -1);
}

static Suite *suite(void)
{
    Suite *s = suite_create("collectives");
    if (!netns_available())
        return s;
    TCase *tc = test_case(s, "hosts", 150);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_loop_test(tc, every_operation_over_a_bad_network, 2, HOSTS + 1);
    tcase_add_test(tc, a_byte_leaves_a_node_once);
    tcase_add_loop_test(tc, a_host_is_lost_in_an_operation, 0, 2 * ARRAY_LEN(losses));
    tcase_add_loop_test(tc, a_silent_host_is_noticed, 0, ARRAY_LEN(g_watched));
    tc = test_case(s, "sides", 150);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_loop_test(tc, one_side_goes_on, 0, ARRAY_LEN(sides));
    return s;
}

TEST_MAIN(suite)
