/* libdlcoll in whole jobs, under real launchers: what every rank is told when one of them is
 * killed. */
#include "tests/integration/job.h"

#include <time.h>

#include "tests/lib/coll_job.h"

static struct coll_job *g_job;

static bool ranks_are_ready(void *n)
{
    return atomic_load(&g_job->ready) >= *(int *)n;
}

static void await_ranks(int n)
{
    wait_until(ranks_are_ready, &n, 30, "all ranks are in the operation");
}

/* Launchers, each of `ranks / launchers` workers that do what the line says. */
static void start_ranks(struct cluster *c, int launchers, int ranks, const char *options,
                        const char *what)
{
    g_job = coll_job_open(tmppath("job"));
    ck_assert_ptr_nonnull(g_job);
    cluster_start(c, launchers, "--nproc_per_node %d %s %s %s %%T/job", ranks / launchers, options,
                  build_path("tests/coll_worker"), what);
    await_ranks(ranks);
}

/* ----------------------------------------------------------------------------------------- kill */

enum { RANKS = 8 };

static void expect_named(const char *op, int rank, int victim)
{
    char host[256] = "";
    const struct coll_job_rank *mine = &g_job->rank[rank];
    const dlcoll_error *e = &mine->error;
    gethostname(host, sizeof(host) - 1);
    ck_assert_msg(atomic_load(&mine->told), "%s: rank %d said nothing", op, rank);
    ck_assert_msg(mine->code == DLCOLL_EPEER && e->code == DLCOLL_EPEER, "%s: rank %d: %d %s", op,
                  rank, mine->code, e->text);
    ck_assert_msg(e->rank == victim && e->pid == atomic_load(&g_job->rank[victim].pid) &&
                      e->signal == SIGKILL,
                  "%s: rank %d: rank %d, pid %d, signal %d: %s", op, rank, e->rank, e->pid,
                  e->signal, e->text);
    ck_assert_msg(strcmp(e->host, host) == 0, "%s: rank %d: host %s, not %s", op, rank, e->host,
                  host);
    ck_assert_msg(strstr(e->text, test_text("rank %d (%s, pid %d) was killed by SIGKILL", victim,
                                            host, e->pid)),
                  "%s: rank %d: %s", op, rank, e->text);
}

/* Four ranks under each of two launchers, one of which is killed at some point of an operation in
 * which all of them are. */
START_TEST(every_survivor_of_two_launchers_is_told)
{
    struct cluster c;
    const char *op = coll_op_names[_i];
    int victim = (_i * 3 + 1) % RANKS;
    double most = 0;
    setenv("STAYS_OUT", test_text("%d", victim), 1);
    start_ranks(&c, 2, RANKS, "", test_text("for-ever %s", op));
    nanosleep(&(struct timespec){.tv_nsec = (_i + 1) * 700000}, NULL); /* some point in it */
    uint64_t killed_ns = mono_ns();
    ck_assert_int_eq(kill(atomic_load(&g_job->rank[victim].pid), SIGKILL), 0);
    cluster_wait(&c, 128 + SIGKILL, 20);
    for (int r = 0; r < RANKS; r++) {
        double ms = (double)(g_job->rank[r].returned_ns - killed_ns) / 1e6;
        if (r == victim)
            continue;
        expect_named(op, r, victim);
        most = ms > most ? ms : most;
    }
    ck_assert_int_eq(g_job->rank[victim].told, 0);
    for (int i = 0; i < 2; i++)
        expect_text(c.node[i].err, test_text("First failure: rank %d on ", victim));
    printf("%s: the last survivor knew after %.1f ms\n", op, most);
    ck_assert_double_lt(most, test_seconds(5) * 1000);
    cluster_fini(&c);
}
END_TEST

/* Those who are left go on by themselves, whoever was killed, and whatever the launcher does. */
START_TEST(those_who_are_left_go_on)
{
    struct cluster c;
    int victim = _i % 2 ? 5 : 0, sum = RANKS * (RANKS - 1) / 2 - victim;
    setenv("DLCOLL_SHM", _i / 2 ? "0" : "1", 1);
    start_ranks(&c, 2, RANKS, "", "shrink");
    ck_assert_int_eq(kill(atomic_load(&g_job->rank[victim].pid), SIGKILL), 0);
    cluster_wait(&c, 128 + SIGKILL, 25);
    for (int r = 0; r < RANKS; r++) {
        if (r == victim)
            continue;
        expect_named("all_reduce", r, victim);
        ck_assert_msg(g_job->rank[r].sum == sum, "rank %d: %d, not %d\n%s%s", r, g_job->rank[r].sum,
                      sum, c.node[0].err, c.node[1].err);
    }
    cluster_fini(&c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_job");
    TCase *tc = test_case(s, "kill", 60);
    tcase_add_loop_test(tc, every_survivor_of_two_launchers_is_told, 0, COLL_OPS);
    tcase_add_loop_test(tc, those_who_are_left_go_on, 0, 4);
    return s;
}

TEST_MAIN(suite)
