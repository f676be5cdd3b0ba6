/* kill -9 at random moments: of the guardian, the agent, a worker, a grandchild; workers that
 * ignore SIGTERM and have a child, a child in its own session and a daemon each. Nothing may be
 * alive afterwards, and no cgroup may be left.
 *
 *   KILL_TRIALS=1000   so many for each case; default 40 */
#include "tests/lib/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "tests/lib/guarded.h"

#define SECONDS 20

enum target { GUARDIAN, AGENT, WORKER_PROCESS, GRANDCHILD, BOTH };

static const struct trial_case {
    const char *name;
    enum target target;
    enum isolation isolation;
    bool while_starting;
    int want; /* the guardian's exit status; 0: any */
} g_cases[] = {
    {"guardian", GUARDIAN, ISOLATE_AUTO, false, 137},
    {"guardian, while starting", GUARDIAN, ISOLATE_AUTO, true, 137},
    {"guardian, no cgroup", GUARDIAN, ISOLATE_NONE, false, 137},
    {"guardian, no cgroup, while starting", GUARDIAN, ISOLATE_NONE, true, 137},
    {"agent", AGENT, ISOLATE_AUTO, false, 137},
    {"agent, while starting", AGENT, ISOLATE_AUTO, true, 137},
    {"agent, no cgroup", AGENT, ISOLATE_NONE, false, 137},
    {"agent, no cgroup, while starting", AGENT, ISOLATE_NONE, true, 137},
    {"worker", WORKER_PROCESS, ISOLATE_AUTO, false, 1},
    {"worker, no cgroup", WORKER_PROCESS, ISOLATE_NONE, false, 1},
    {"grandchild", GRANDCHILD, ISOLATE_AUTO, false, 0},
    {"grandchild, no cgroup", GRANDCHILD, ISOLATE_NONE, false, 0},
    {"guardian, PID namespace", GUARDIAN, ISOLATE_PIDNS, false, 137},
    {"guardian, PID namespace, while starting", GUARDIAN, ISOLATE_PIDNS, true, 137},
    {"agent, PID namespace", AGENT, ISOLATE_PIDNS, true, 137},
    {"both, PID namespace", BOTH, ISOLATE_PIDNS, false, 137},
    {"both, PID namespace, while starting", BOTH, ISOLATE_PIDNS, true, 137},
};

static void spin(unsigned us)
{
    for (uint64_t end = mono_ns() + (uint64_t)us * 1000; mono_ns() < end;)
        ;
}

/* Returns one of the worker's children, if it has any yet. */
static pid_t child_of(pid_t pid, unsigned *seed)
{
    char path[64], text[256];
    int pids[3];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
    if (fd_read_file(AT_FDCWD, path, text, sizeof(text)) < 0)
        return 0;
    int n = sscanf(text, "%d %d %d", &pids[0], &pids[1], &pids[2]);
    return n > 0 ? pids[rand_r(seed) % n] : 0;
}

static void strike(struct guarded *g, const struct trial_case *c, unsigned *seed)
{
    pid_t agent, worker = g->shared->workers[rand_r(seed) % GUARDED_WORKERS], child;
    switch (c->target) {
    case GUARDIAN:
        kill(g->pid, SIGKILL);
        break;
    case BOTH:
    case AGENT:
        while ((agent = guarded_agent(g)) == 0 && !guarded_ended(g)) /* not forked yet */
            ;
        if (agent > 0)
            kill(agent, SIGKILL);
        if (c->target == BOTH)
            kill(g->pid, SIGKILL);
        break;
    case WORKER_PROCESS:
        kill(worker, SIGKILL);
        break;
    case GRANDCHILD:
        if ((child = child_of(worker, seed)) > 0)
            kill(child, SIGKILL);
        spin((unsigned)rand_r(seed) % 1000);
        kill(g->pid, SIGTERM);
        break;
    }
}

static int cgroups_left(const char *of)
{
    char dir[256];
    if (!of[0])
        return 0;
    snprintf(dir, sizeof(dir), "%s", of);
    return access(dir, F_OK) == 0;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

START_TEST(nothing_survives)
{
    const struct trial_case *c = &g_cases[_i];
    const char *want = getenv("KILL_TRIALS");
    int trials = want ? atoi(want) : 40, survivors = 0;
    double *ms = xcalloc((size_t)trials, sizeof(*ms));
    unsigned seed = (unsigned)_i + 1;
    char *argv[] = {build_path("tests/worker"),
                    "ignore",
                    "TERM",
                    "child",
                    "setsid-child",
                    "daemon",
                    "pause",
                    NULL};
    struct guarded_job job = {
        .isolation = c->isolation, .nworkers = GUARDED_WORKERS, .worker = argv, .stop_grace = 10};
    guarded_init();
    for (int i = 0; i < trials; i++) {
        struct guarded g;
        guarded_start(&g, &job);
        if (!c->while_starting)
            guarded_wait_ready(&g);
        spin((unsigned)rand_r(&seed) % 3000);
        uint64_t began = mono_ns();
        if (!guarded_ended(&g))
            strike(&g, c, &seed);
        struct pollfd p = {g.alive, POLLIN, 0};
        poll(&p, 1, (int)(test_seconds(SECONDS) * 1000));
        ms[i] = (double)(mono_ns() - began) / 1e6;
        int status = guarded_wait(&g, SECONDS);
        if (status == 125 && strstr(g.text, "--isolate pidns is not possible here")) {
            test_skip("%s: %s", c->name, g.text);
            return;
        }
        ck_assert_msg(status == c->want, "%s: status %d, said: %s", c->name, status, g.text);
        survivors += !guarded_all_dead(&g, SECONDS);
        ck_assert_int_eq(cgroups_left(g.shared->cgroup), 0);
        guarded_fini(&g);
    }
    ck_assert_msg(survivors == 0, "%s: something survived %d of %d times", c->name, survivors,
                  trials);
    qsort(ms, (size_t)trials, sizeof(*ms), by_size);
    if (want)
        printf("%-40s %5d trials, 0 survivors, all dead after p50 %.2f, p99 %.2f, max %.2f ms\n",
               c->name, trials, ms[trials / 2], ms[trials * 99 / 100], ms[trials - 1]);
    free(ms);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("kill");
    TCase *tc = test_case(s, "kill", 600);
    tcase_add_loop_test(tc, nothing_survives, 0, (int)ARRAY_LEN(g_cases));
    return s;
}
TEST_MAIN(suite)
