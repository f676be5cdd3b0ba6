/* TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT: a worker that stays in state D is a failure. */
#include "tests/integration/job.h"

/* posix_spawn() waits in state D (vfork) until its child, which opens a FIFO first, executes. */
static const char blocks[] =
    "import os, sys, time\n"
    "if os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
    "    os.posix_spawn('/bin/true', ['true'], {},\n"
    "                   file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])\n"
    "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': time.sleep(600)\n";

static void start(struct proc *p, char *timeout, const char *options)
{
    char *const env[] = {timeout, NULL};
    write_file(tmppath("blocks.py"), blocks);
    ck_assert_int_eq(mkfifo(tmppath("fifo"), 0600), 0);
    dlaunch_start(p, env,
                  "--nproc_per_node 2 --report %%T/report %s python3 %%T/blocks.py %%T/fifo",
                  options);
}

START_TEST(blocked_worker_is_a_failure)
{
    struct proc p;
    start(&p, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=0.2", "");
    expect_status(&p, 128 + SIGKILL, 30);
    json_t *report = json_of_file(tmppath("report")), *f = json_object_get(report, "first_failure");
    ck_assert_int_eq(json_number(f, "rank"), 1);
    expect_text(json_word(f, "message"), "in state D (uninterruptible sleep)");
    expect_text(json_word(f, "message"),
                " for 0.2 s (TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT); dlaunch sent SIGKILL");
    json_decref(report);
    proc_fini(&p);
}
END_TEST

START_TEST(job_restarts_after_a_blocked_worker)
{
    struct proc p;
    start(&p, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=0.2", "--max_restarts 1");
    expect_status(&p, 0, 30);
    proc_fini(&p);
}
END_TEST

START_TEST(worker_policy_restarts_the_blocked_worker)
{
    struct proc p;
    start(&p, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=0.2",
          "--max_restarts 1 --restart_policy worker");
    proc_expect_err(&p, "restart 1 of 1", 30);
    proc_kill(&p, SIGTERM);
    expect_status(&p, 128 + SIGTERM, 30);
    proc_fini(&p);
}
END_TEST

static bool is_blocked(void *arg)
{
    pid_t agent = agent_of(arg);
    char *children =
        agent ? text_of_file(test_text("/proc/%d/task/%d/children", agent, agent)) : "";
    for (char *pid = strtok(test_text("%s", children), " "); pid; pid = strtok(NULL, " ")) {
        char *stat = test_text("/proc/%s/stat", pid);
        if (access(stat, R_OK) == 0 && strstr(text_of_file(stat), ") D "))
            return true;
    }
    return false;
}

/* A value that is not a positive number sets no limit: the blocked worker is not reported. */
START_TEST(no_limit)
{
    static char *const values[] = {"", "=0", "=-1", "=x"};
    struct proc p;
    start(&p, test_text("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT%s", values[_i]),
          "--shutdown_timeout 0.2");
    wait_until(is_blocked, &p, 30, "a worker is in state D");
    ck_assert(!proc_poll(&p));
    proc_kill(&p, SIGTERM);
    expect_status(&p, 128 + SIGTERM, 60);
    expect_no_text(p.err, "state D");
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("blocked_worker");
    TCase *tc = test_case(s, "blocked_worker", 60);
    tcase_add_test(tc, blocked_worker_is_a_failure);
    tcase_add_test(tc, job_restarts_after_a_blocked_worker);
    tcase_add_test(tc, worker_policy_restarts_the_blocked_worker);
    tcase_add_loop_test(tc, no_limit, 0, 4);
    return s;
}

TEST_MAIN(suite)
