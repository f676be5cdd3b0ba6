/* libdlcoll in whole jobs, under real launchers: what every rank is told when one of them is
 * killed, and what the report says when one of them does not come. */
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
START_TEST(every_survivor_of_two_launchers_gets_an_error)
{
    struct cluster c;
    const char *op = coll_op_names[_i];
    int victim = (_i * 3 + 1) % RANKS;
    double most = 0;
    setenv("STAYS_OUT", test_text("%d", victim), 1);
    start_ranks(&c, 2, RANKS, "", test_text("for-ever %s", op));
    test_elapse((_i + 1) * 0.0007); /* another point of the operation each time */
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

/* The surviving ranks continue by themselves, whichever rank is killed, and whatever the launcher
 * does. */
START_TEST(survivors_shrink_and_go_on)
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

/* -------------------------------------------------------------------------------------- hanging */

/* The paragraph of the report on what the ranks of a node were in: its lines, without the margin.
 */
static const char *calls_of(const char *err)
{
    const char *from = strstr(err, "  calls     "), *end = from ? strstr(from, "\n\n") : NULL;
    char *flat = test_keep(xcalloc(1, strlen(err) + 1)), *to = flat;
    ck_assert_msg(end, "%s", err);
    const char *stacks = strstr(from, "\n  stacks    ");
    end = stacks && stacks < end ? stacks + 1 : end;
    for (from += 12; from < end; from += strncmp(from, "            ", 12) == 0 ? 12 : 0) {
        size_t n = (size_t)(strchr(from, '\n') - from) + 1;
        memcpy(to, from, n);
        to += n;
        from += n;
    }
    return flat;
}

/* `text` with what a rank says: at most two times in it, in seconds. */
static void expect_operation(const char *text, const char *head, const char *rest)
{
    for (const char *at = text; (at = strstr(at, head)); at++) {
        const char *p = at + strlen(head);
        size_t line = strcspn(p, "\n");
        if (strstr(test_text("%.*s", (int)line, p), rest))
            return;
    }
    ck_abort_msg("no line \"%s...%s\" in\n%s", head, rest, text);
}

/* Checks the operations recorded by the ranks from `base` on: a barrier, a broadcast, and an
 * all_reduce without rank 1. */
static void expect_story(const char *text, int base, int ranks, const char *end)
{
    for (int r = base; r < base + ranks; r++) {
        const char *from = strstr(text, test_text("rank %d: ", r));
        ck_assert_msg(from, "no rank %d in\n%s", r, text);
        const char *next = strstr(from, "\nrank ");
        const char *own =
            test_text("%.*s\n", (int)(next ? (size_t)(next - from) : strlen(from)), from);
        ck_assert_int_eq(count_text(own, "\n"), r == 1 ? 3 : 3 + !next);
        if (r == 1)
            expect_operation(own, "rank 1: not in any operation for ", "s");
        else
            expect_operation(own, "all_reduce #3 of 70000 f32 (sum)", end);
        expect_operation(own, "\n  broadcast #2 of 1000 f32 ended ", " s ago, took ");
        expect_operation(own, "\n  barrier #1 ended ", " s ago, took ");
    }
    ck_assert_msg(!strstr(text, test_text("rank %d:", base + ranks)) &&
                      (base == 0 || !strstr(text, test_text("rank %d:", base - 1))),
                  "%s", text);
}

static void expect_report(struct cluster *c, int node, const char *end)
{
    json_t *j = json_of_file(tmppath(node ? "report1" : "report0"));
    expect_story(calls_of(c->node[node].err), node * 3, 3, end);
    expect_story(test_text("%s", json_word(j, "operations")), node * 3, 3, end);
    json_decref(j);
}

/* Rank 1 stays out of an operation that has 300 ms. Each launcher shows its own ranks. */
START_TEST(a_timeout_is_reported_with_the_last_operations)
{
    struct cluster c = {.n = 2, .port = free_port()};
    g_job = coll_job_open(tmppath("job"));
    for (int i = 0; i < 2; i++)
        cluster_start_node(&c, i, "--nproc_per_node 3 --report %%T/report%d %s hang 300 %%T/job", i,
                           build_path("tests/coll_worker"));
    cluster_wait(&c, 3, 30);
    for (int i = 0; i < 2; i++)
        expect_report(&c, i, " failed after ");
    for (int r = 0; r < 6; r++) {
        if (r != 1)
            ck_assert_msg(g_job->rank[r].code == DLCOLL_ETIMEDOUT, "rank %d: %s", r,
                          g_job->rank[r].error.text);
    }
    cluster_fini(&c);
}
END_TEST

/* Without a time of its own it hangs until the launcher's is over. */
START_TEST(a_hang_is_reported_with_the_last_operations)
{
    struct cluster c = {.n = 1, .port = free_port()};
    g_job = coll_job_open(tmppath("job"));
    cluster_start_node(&c, 0,
                       "--nproc_per_node 3 --timeout 6 --report %%T/report0 %s hang 0 %%T/job",
                       build_path("tests/coll_worker"));
    int status = proc_wait(&c.node[0], 30);
    ck_assert_msg(status == 124, "%d\n%s", status, c.node[0].err);
    expect_report(&c, 0, " s");
    expect_operation(calls_of(c.node[0].err), "rank 0: in all_reduce #3 of 70000 f32 (sum) for ",
                     " s");
    cluster_fini(&c);
}
END_TEST

/* ------------------------------------------------------------------------------ the first cause */

/* The launchers' reports, which say the same. */
static void expect_cause(int launchers, int per_node, const char *what, int status,
                         const char *cause, int rank, const char *text)
{
    struct cluster c = {.n = launchers, .port = free_port()};
    g_job = coll_job_open(tmppath("job"));
    for (int i = 0; i < launchers; i++)
        cluster_start_node(&c, i, "--nproc_per_node %d --report %%T/report%d %s %s %%T/job",
                           per_node, i, build_path("tests/coll_worker"), what);
    cluster_wait(&c, status, 60);
    for (int i = 0; i < launchers; i++) {
        json_t *j = json_of_file(tmppath(test_text("report%d", i)));
        const json_t *first = json_object_get(j, "first_failure");
        ck_assert_msg(first, "%s", c.node[i].err);
        ck_assert_msg(strcmp(json_word(first, "cause"), cause) == 0, "%s", c.node[i].err);
        ck_assert(json_is_null(json_object_get(first, "caused_by")));
        if (rank >= 0)
            ck_assert_msg(json_number(first, "rank") == rank, "%s", c.node[i].err);
        expect_words(c.node[i].err, text);
        json_decref(j);
    }
    cluster_fini(&c);
}

/* Rank 1 was reported to have followed the loss of rank 0, which dlaunch had stopped. */
START_TEST(a_message_of_another_size_is_a_mismatch)
{
    expect_cause(1, 2, "unequal", 2, "mismatch", -1, "the ranks called different operations");
}
END_TEST

START_TEST(the_odd_one_out_is_named)
{
    expect_cause(_i + 1, 4 / (_i + 1), "differ 2", 2, "mismatch", -1,
                 "all_reduce of 3 i32 (sum) (this rank is the odd one out)");
}
END_TEST

/* The early exit appeared nowhere. */
START_TEST(an_early_exit_with_0_is_the_first_failure)
{
    expect_cause(_i + 1, 4 / (_i + 1), "leave 1", 1, "early-exit", 1,
                 "exited with code 0 while other workers needed it");
}
END_TEST

/* ---------------------------------------------------------------------------------- end of time */

/* The warning (--end_warning) ends no operation: all ranks learn of it by one, and save together.
 */
START_TEST(operations_go_on_after_the_warning_of_the_end)
{
    struct cluster c;
    start_ranks(&c, 2, 4, test_text("--end_time %lld --end_warning 20", (long long)time(NULL) + 24),
                "agree");
    cluster_wait(&c, 75, 20);
    for (int r = 0; r < 4; r++)
        ck_assert_msg(g_job->rank[r].told && g_job->rank[r].code == 0, "rank %d", r);
    for (int i = 0; i < 2; i++)
        expect_words(c.node[i].err, "the job's time ends in 20 s (--end_warning)");
    cluster_fini(&c);
}
END_TEST

/* ----------------------------------------------------------------------------- programs in turn */

/* The programs that rank 0 runs first, that rank 1 runs at the same time, and that rank 0 runs
 * after that. */
static const struct turns {
    const char *first, *other, *second;
    bool differ; /* the ranks run different numbers of programs */
} g_turns[] = {
    {"sums 0", "sums 1", "sums 1", true},
    {"sums 1", "sums 2", "sums 1", true},
    {"sums 0", "receive", "sums 1", true},
    {"sums 3", "sums 3", "sums 3", false},
};
enum { TURNS = sizeof(g_turns) / sizeof(g_turns[0]) };

/* The worker of rank 0 is a shell that runs two programs, one after the other; that of rank 1 runs
 * one. The launcher cannot know: the shell of rank 0 lives on. Over TCP the first program's end
 * closes the connection; it resets it if data of rank 1 was not read. */
START_TEST(a_rank_in_its_next_program_is_named)
{
    const struct turns *t = &g_turns[_i / 2];
    const char *program = build_path("tests/coll_worker"), *file = tmppath("job");
    const char *both = t->differ ? "" : test_text("%s %s %s && ", program, t->second, file);
    const char *line =
        test_text("if [ $RANK = 0 ]; then %s %s %s && exec %s %s %s; "
                  "else %s exec %s %s %s; fi",
                  program, t->first, file, program, t->second, file, both, program, t->other, file);
    char *env[] = {(char *)test_text("DLCOLL_SHM=%d", _i % 2), "DLCOLL_TIMEOUT=5", NULL};
    struct proc p;
    proc_start(&p,
               ARGV((char *)build_path("dlaunch"), "--nproc_per_node", "2", "--no_python", "sh",
                    "-c", (char *)line),
               env, 0);
    int status = proc_wait(&p, 40);
    if (t->differ)
        ck_assert_msg(status == 2 && !strstr(p.err, "timed out") &&
                          strstr(p.err, _i % 2 ? "(it runs its next program: do all workers"
                                               : "has died or left ("),
                      "%d\n%s", status, p.err);
    else
        ck_assert_msg(status == 0, "%d\n%s", status, p.err);
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_job");
    TCase *tc = test_case(s, "kill", 60);
    tcase_add_loop_test(tc, every_survivor_of_two_launchers_gets_an_error, 0, COLL_OPS);
    tcase_add_loop_test(tc, survivors_shrink_and_go_on, 0, 4);
    tc = test_case(s, "cause", 90);
    tcase_add_test(tc, a_message_of_another_size_is_a_mismatch);
    tcase_add_loop_test(tc, the_odd_one_out_is_named, 0, 2);
    tcase_add_loop_test(tc, an_early_exit_with_0_is_the_first_failure, 0, 2);
    tc = test_case(s, "hang", 60);
    tcase_add_test(tc, a_timeout_is_reported_with_the_last_operations);
    tcase_add_test(tc, a_hang_is_reported_with_the_last_operations);
    tc = test_case(s, "end of time", 60);
    tcase_add_test(tc, operations_go_on_after_the_warning_of_the_end);
    tc = test_case(s, "programs in turn", 60);
    tcase_add_loop_test(tc, a_rank_in_its_next_program_is_named, 0, 2 * TURNS);
    return s;
}

TEST_MAIN(suite)
