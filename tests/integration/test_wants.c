/* What runs out on a node: memory, of which the kernel takes some by killing, and processes. In
 * cgroups that are too small, where the test may make some. */
#include "tests/integration/job.h"

#include <fcntl.h>

#include "agent/process/cgroup.h"
#include "agent/process/spawn.h"
#include "core/fd.h"
#include "tests/integration/elastic_nodes.h"

static int score_of(pid_t pid)
{
    return atoi(text_of_file(test_text("/proc/%d/oom_score_adj", pid)));
}

static pid_t child_of(pid_t pid)
{
    return atoi(text_of_file(test_text("/proc/%d/task/%d/children", pid, pid)));
}

static bool is_raised(void *pid)
{
    return score_of(*(pid_t *)pid) > score_of(child_of(getpid()));
}

/* Runs `command` of a shell in front of dlaunch, in the same process. */
static void start_behind(struct proc *p, const char *command, const char *options, const char *job)
{
    char **argv = dlaunch_argv(options, job);
    char *words[64] = {"sh", "-c", test_text("%s; exec \"$@\"", command), "sh"};
    for (int i = 0; argv[i]; i++)
        words[i + 4] = argv[i];
    proc_start(p, words, NULL, 0);
}

/* The user's score, and the workers' above it, as far as the kernel goes. */
START_TEST(a_worker_goes_first)
{
    static const int given[] = {0, 500, 900, 1000};
    for (size_t i = 0; i < ARRAY_LEN(given); i++) {
        struct proc p;
        char *up = tmppath(test_text("up%d", given[i]));
        start_behind(&p, test_text("echo %d >/proc/self/oom_score_adj", given[i]), "",
                     test_text("%%W append %s pause", up));
        wait_lines(up, 1, 20);
        pid_t agent = agent_of(&p), worker = child_of(agent);
        int want = given[i] + SPAWN_OOM_MORE < 1000 ? given[i] + SPAWN_OOM_MORE : 1000;
        if (want > given[i])
            wait_until(is_raised, &worker, 10, "the worker's score");
        ck_assert_int_eq(score_of(p.pid), given[i]);
        ck_assert_int_eq(score_of(agent), given[i]);
        ck_assert_int_eq(score_of(worker), want);
        proc_kill(&p, SIGTERM);
        expect_status(&p, 143, 20);
        proc_fini(&p);
    }
}
END_TEST

/* ------------------------------------------------------------------------------------- cgroups */

static bool put(const char *dir, const char *file, const char *text)
{
    _cleanup_fd_ int fd = open(test_text("%s/%s", dir, file), O_WRONLY | O_CLOEXEC);
    return fd >= 0 && fd_write_all(fd, text, strlen(text)) == 0;
}

/* A cgroup of this controller, v1 or v2, with a limit; NULL: the test is skipped. */
static char *small_cgroup(const char *controller, const char *v1_file, const char *v2_file,
                          const char *limit)
{
    char own[512];
    bool v1 = cgroup_own(controller, own, sizeof(own), NULL);
    char *dir = NULL;
    if (v1 || cgroup_own(NULL, own, sizeof(own), NULL)) {
        dir = test_text("%s/dlaunch-test.%d", own, (int)getpid());
        if (mkdir(dir, 0755) == 0 && put(dir, v1 ? v1_file : v2_file, limit))
            return dir;
        rmdir(dir);
    }
    test_skip("no cgroup of %s can be made", controller);
    return NULL;
}

static bool is_removed(void *dir)
{
    return rmdir(dir) == 0;
}

/* The agent has the highest score: the kernel takes it, and the guardian says why. */
START_TEST(the_agent_is_killed_for_memory)
{
    char *dir = small_cgroup("memory", "memory.limit_in_bytes", "memory.max", "67108864");
    struct proc p;
    if (!dir)
        return;
    put(dir, "memory.memsw.limit_in_bytes", "67108864");
    start_behind(&p, test_text("echo 0 >%s/cgroup.procs", dir), "",
                 test_text("sh -c 'echo >%s; until test -e %s; do sleep 0.01; done; for i in 1 2 3 "
                           "4 5; do head -c 30000000 /dev/zero | tail -n 1 >/dev/null & done; "
                           "wait; sleep 60'",
                           tmppath("up"), tmppath("go")));
    wait_lines(tmppath("up"), 1, 20);
    ck_assert(put(test_text("/proc/%d", agent_of(&p)), "oom_score_adj", "1000"));
    write_file(tmppath("go"), "");
    expect_status(&p, 137, 60);
    expect_text(p.err, "was killed by SIGKILL, out of memory (cgroup oom_kill); ended ");
    proc_fini(&p);
    wait_until(is_removed, dir, 20, "the end of all processes in the cgroup");
}
END_TEST

/* The same of the guardian, and the agent says why. */
START_TEST(the_guardian_is_killed_for_memory)
{
    char *dir = small_cgroup("memory", "memory.limit_in_bytes", "memory.max", "67108864");
    struct proc p;
    if (!dir)
        return;
    put(dir, "memory.memsw.limit_in_bytes", "67108864");
    start_behind(&p, test_text("echo 0 >%s/cgroup.procs", dir), "",
                 test_text("sh -c 'echo >%s; until test -e %s; do sleep 0.01; done; for i in 1 2 3 "
                           "4 5; do head -c 30000000 /dev/zero | tail -n 1 >/dev/null & done; "
                           "wait; sleep 60'",
                           tmppath("up"), tmppath("go")));
    wait_lines(tmppath("up"), 1, 20);
    ck_assert(put(test_text("/proc/%d", p.pid), "oom_score_adj", "1000"));
    write_file(tmppath("go"), "");
    expect_status(&p, 137, 60);
    expect_text(p.err, "the guardian process was killed, out of memory (cgroup oom_kill); ended "
                       "every worker");
    proc_fini(&p);
    wait_until(is_removed, dir, 20, "the end of all processes in the cgroup");
}
END_TEST

/* One that somebody else has killed did not want for memory. */
START_TEST(the_agent_is_killed_by_somebody)
{
    struct proc p;
    dlaunch_start(&p, NULL, "%%W append %%T/up pause");
    wait_lines(tmppath("up"), 1, 20);
    kill(agent_of(&p), SIGKILL);
    expect_status(&p, 137, 20);
    expect_text(p.err, "was killed by SIGKILL; ended ");
    proc_fini(&p);
}
END_TEST

/* A node whose cgroup has no room for its workers leaves a job that can do without it. */
START_TEST(a_node_is_refused_a_process)
{
    char *dir = small_cgroup("pids", "pids.max", "pids.max", "5");
    struct nodes c;
    if (!dir)
        return;
    nodes_begin(&c, "up");
    for (int i = 0; i < 2; i++)
        nodes_add(&c, "--nnodes 2:3", "wait %T/go");
    start_behind(&c.p[c.n++], test_text("echo 0 >%s/cgroup.procs", dir),
                 test_text("--nnodes 2:3 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint "
                           "127.0.0.1:%d",
                           c.port),
                 "%W wait %T/go");
    wait_lines(c.up, 6, 20); /* two rounds, the first one without some */
    write_file(tmppath("go"), "");
    nodes_expect(&c, 2, 125);
    nodes_expect(&c, 0, 0);
    nodes_expect(&c, 1, 0);
    expect_text(c.p[2].err, "start a process: the limit pids.max 5 in ");
    expect_text(c.p[0].err, "start a process: the limit pids.max 5 in ");
    nodes_end(&c);
    wait_until(is_removed, dir, 20, "the end of all processes in the cgroup");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("wants");
    TCase *tc = test_case(s, "memory", 120);
    tcase_add_test(tc, a_worker_goes_first);
    tcase_add_test(tc, the_agent_is_killed_for_memory);
    tcase_add_test(tc, the_guardian_is_killed_for_memory);
    tcase_add_test(tc, the_agent_is_killed_by_somebody);
    suite_add_tcase(s, tc);
    tc = test_case(s, "processes", 120);
    tcase_add_test(tc, a_node_is_refused_a_process);
    suite_add_tcase(s, tc);
    return s;
}

TEST_MAIN(suite)
