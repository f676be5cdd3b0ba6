/* The guardian: exit statuses, signals, terminal, lease, what it leaves behind. Whether anything
 * survives kill -9 is test_kill.c's. */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/cgroup.h"
#include "agent/process/sweep.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "tests/lib/freezer.h"
#include "tests/lib/guarded.h"

#define WORKER(...) ((char *[]){build_path("tests/worker"), __VA_ARGS__, NULL})
#define SECONDS     20

static struct guarded g_g;

static void setup(void)
{
    guarded_init();
}

static int finish(void)
{
    int status = guarded_wait(&g_g, SECONDS);
    ck_assert_msg(guarded_all_dead(&g_g, SECONDS), "something lives on");
    guarded_fini(&g_g);
    return status;
}

static void expect_text(const char *text)
{
    ck_assert_msg(strstr(g_g.text, text), "\"%s\" was not said, but:\n%s", text, g_g.text);
}

/* -------------------------------------------------------------------------------- exit statuses */

static int clean_exit(struct guardian_link *link, void *arg)
{
    link->page->clean = 1;
    return *(int *)arg;
}

static int unclean_exit(struct guardian_link *link, void *arg)
{
    (void)link;
    return *(int *)arg;
}

START_TEST(the_agents_status)
{
    int codes[] = {0, 1, 2, 7, 124, 127, 137, 255};
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        struct guarded_job job = {.at_start = clean_exit, .arg = &codes[i], .stop_grace = 5};
        guarded_start(&g_g, &job);
        ck_assert_int_eq(finish(), codes[i]);
        ck_assert_str_eq(g_g.text, "");
    }
}
END_TEST

START_TEST(an_agent_that_is_not_clean)
{
    int zero = 0, two = 2;
    struct guarded_job job = {.at_start = unclean_exit, .arg = &zero, .stop_grace = 5};
    guarded_start(&g_g, &job);
    ck_assert_int_eq(finish(), 125);
    expect_text(") exited with status 0 and left work undone; ended 0 processes\n");
    job.arg = &two; /* it failed before it started anything: its own words are enough */
    guarded_start(&g_g, &job);
    ck_assert_int_eq(finish(), 2);
    ck_assert_str_eq(g_g.text, "");
}
END_TEST

static int leave_a_child(struct guardian_link *link, void *arg)
{
    int ready[2];
    char c;
    if (pipe(ready) < 0)
        return 111;
    pid_t between = fork();
    if (between == 0) {
        setsid();
        if (fork() == 0) {
            signal(SIGTERM, SIG_IGN);
            if (write(ready[1], "", 1) < 0)
                _exit(1);
            for (;;)
                pause();
        }
        _exit(0);
    }
    if (read(ready[0], &c, 1) != 1 || waitpid(between, NULL, 0) != between)
        return 111; /* else it might be left, too */
    link->page->clean = *(int *)arg == 0;
    return *(int *)arg;
}

START_TEST(children_that_were_left)
{
    for (int code = 0; code < 4; code += 3) {
        struct guarded_job job = {.at_start = leave_a_child, .arg = &code, .stop_grace = 5};
        guarded_start(&g_g, &job);
        ck_assert_int_eq(finish(), code);
        char want[64];
        snprintf(want, sizeof(want),
                 ") exited with status %d and left work undone; ended 1 process", code);
        expect_text(want);
    }
}
END_TEST

START_TEST(an_agent_killed_by_a_signal)
{
    int signals[] = {SIGKILL, SIGABRT, SIGSYS};
    for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
        struct guarded_job job = {
            .nworkers = 2, .worker = WORKER("child", "pause"), .stop_grace = 5};
        char want[128];
        guarded_start(&g_g, &job);
        guarded_wait_ready(&g_g);
        pid_t agent = guarded_agent(&g_g);
        kill(agent, signals[i]);
        ck_assert_int_eq(finish(), 128 + signals[i]);
        snprintf(want, sizeof(want), "dlaunch: the agent (pid %d) was killed by SIG%s; ended ",
                 (int)agent, sigabbrev_np(signals[i]));
        expect_text(want);
    }
}
END_TEST

static int killed_by_real_time_signal(struct guardian_link *link, void *arg)
{
    (void)link, (void)arg;
    return raise(SIGRTMIN + 3);
}

START_TEST(a_signal_without_a_name)
{
    struct guarded_job job = {.at_start = killed_by_real_time_signal, .stop_grace = 5};
    char want[64];
    guarded_start(&g_g, &job);
    ck_assert_int_eq(finish(), 128 + SIGRTMIN + 3);
    snprintf(want, sizeof(want), "was killed by signal %d; ended 0 processes", SIGRTMIN + 3);
    expect_text(want);
}
END_TEST

static int says_where_it_is(struct guardian_link *link, void *arg)
{
    char name[32];
    int subreaper = 0;
    (void)arg;
    prctl(PR_GET_NAME, name);
    prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    int blocked = 0;
    for (int sig = 1; sig < 65; sig++)
        blocked += sigismember(&mask, sig) == 1;
    printf("%s %s %s %d of %d %s %s", name, getsid(0) == getpid() ? "session" : "-",
           subreaper ? "subreaper" : "-", sigismember(&mask, SIGTERM) + sigismember(&mask, SIGUSR2),
           blocked, getppid() == link->guardian ? "child" : "-",
           fcntl(link->lifeline, F_GETFD) & FD_CLOEXEC ? "cloexec" : "-");
    link->page->clean = 1;
    return 0;
}

static void print_something(void *arg)
{
    (void)arg;
    printf("once ");
}

START_TEST(what_the_agent_gets)
{
    struct guarded_job job = {
        .before = print_something, .at_start = says_where_it_is, .stop_grace = 5};
    guarded_start(&g_g, &job);
    ck_assert_int_eq(finish(), 0);
    ck_assert_str_eq(g_g.text, "once dl-agent session subreaper 2 of 6 child cloexec");
}
END_TEST

/* -------------------------------------------------------------------------------------- signals */

static bool has_got(void *arg)
{
    return g_g.shared->got[*(int *)arg] > 0;
}

START_TEST(signals_are_forwarded_once)
{
    int signals[] = {SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    struct guarded_job job = {.status = 9, .stop_grace = 5};
    guarded_start(&g_g, &job);
    guarded_wait_ready(&g_g);
    for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
        kill(g_g.pid, signals[i]);
        wait_until(has_got, &signals[i], SECONDS, "the signal has come through");
    }
    kill(g_g.pid, SIGALRM); /* not on the list */
    kill(g_g.pid, SIGTTOU);
    kill(g_g.pid, SIGTERM);
    int status = guarded_wait(&g_g, SECONDS);
    ck_assert_int_eq(status, 9);
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        ck_assert_int_eq(g_g.shared->got[signals[i]], 1);
    ck_assert_int_eq(g_g.shared->got[SIGALRM], 0);
    ck_assert_int_eq(g_g.shared->got[SIGTTOU], 0);
    ck_assert(guarded_all_dead(&g_g, SECONDS));
    guarded_fini(&g_g);
}
END_TEST

static int waits_for_sigterm(struct guardian_link *link, void *arg)
{
    struct timespec limit = {.tv_sec = SECONDS};
    sigset_t term;
    (void)arg;
    kill(link->guardian, SIGTERM);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    link->page->clean = 1;
    return sigtimedwait(&term, NULL, &limit) == SIGTERM ? 7 : 111;
}

START_TEST(a_signal_waits_until_the_agent_is_ready)
{
    struct guarded_job job = {.at_start = waits_for_sigterm, .stop_grace = 5};
    guarded_start(&g_g, &job);
    ck_assert_int_eq(finish(), 7);
    ck_assert_str_eq(g_g.text, "");
}
END_TEST

/* An agent that is asked to stop twice. arg: whether its loop turns. */
static int asked_twice(struct guardian_link *link, void *arg)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    kill(link->guardian, SIGTERM);
    test_elapse(GUARDIAN_FURTHER_S + 0.1);
    kill(link->guardian, SIGINT);
    test_elapse(0.2);
    if (*(bool *)arg)
        atomic_fetch_add(&link->page->heard, 1);
    test_elapse(GUARDIAN_REACT_S + 0.5);
    link->page->clean = 1;
    return 9;
}

START_TEST(a_further_request_must_be_heard)
{
    bool turns = _i;
    struct guarded_job job = {.at_start = asked_twice, .arg = &turns, .stop_grace = 5};
    guarded_start(&g_g, &job);
    ck_assert_int_eq(finish(), turns ? 9 : 128 + SIGINT);
    if (turns)
        ck_assert_str_eq(g_g.text, "");
    else
        expect_text("does not react to a further request to stop; ended 1 process\n");
}
END_TEST

static void ignore_hup(void *arg)
{
    (void)arg;
    signal(SIGHUP, SIG_IGN);
    signal(SIGCHLD, SIG_IGN); /* some parents do; we must wait all the same */
}

START_TEST(what_was_ignored_stays_ignored)
{
    struct guarded_job job = {.before = ignore_hup,
                              .nworkers = 1,
                              .worker = WORKER("sigs", "print", "x", "pause"),
                              .stop_grace = 5};
    int usr1 = SIGUSR1;
    guarded_start(&g_g, &job);
    guarded_wait_ready(&g_g);
    kill(g_g.pid, SIGHUP);
    kill(g_g.pid, SIGUSR1);
    wait_until(has_got, &usr1, SECONDS, "the later signal has come through");
    ck_assert_int_eq(g_g.shared->got[SIGHUP], 0);
    guarded_expect(&g_g, "SigIgn:\t0000000000000001\n");
    kill(g_g.pid, SIGTERM);
    ck_assert_int_eq(guarded_wait(&g_g, SECONDS), 0);
    ck_assert(guarded_all_dead(&g_g, SECONDS));
    guarded_fini(&g_g);
}
END_TEST

/* ------------------------------------------------------------------------------------- terminal */

/* A shell with job control that runs one job on a terminal of its own. */
struct job_on_terminal {
    struct guarded_shared *shared;
    int master;
    pid_t shell;
    _Atomic int *job;   /* the guardian's pid */
    _Atomic int *stops; /* how often the job has stopped */
    _Atomic int *resume;
};

static void shell(const struct guarded_job *job, struct job_on_terminal *t, int alive)
{
    int status;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTTOU, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        tcsetpgrp(0, getpid());
        signal(SIGTTOU, SIG_DFL);
        _exit(guarded_run(job, t->shared, alive));
    }
    setpgid(pid, pid);
    tcsetpgrp(0, pid);
    atomic_store(t->job, pid);
    while (waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status)) {
        tcsetpgrp(0, getpid());
        atomic_fetch_add(t->stops, 1);
        while (!atomic_load(t->resume))
            test_poll_pause();
        atomic_store(t->resume, 0);
        tcsetpgrp(0, pid);
        kill(-pid, SIGCONT);
    }
    _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

static void start_on_terminal(struct job_on_terminal *t, const struct guarded_job *job)
{
    int alive[2];
    struct guarded_shared *extra = guarded_shared_new();
    t->shared = g_g.shared = guarded_shared_new();
    t->job = &extra->agent;
    t->stops = &extra->ready;
    t->resume = &extra->spare;
    ck_assert_int_eq(pipe2(alive, O_CLOEXEC), 0);
    fflush(NULL);
    t->shell = forkpty(&t->master, NULL, NULL, NULL);
    ck_assert_int_ge(t->shell, 0);
    if (t->shell == 0)
        shell(job, t, alive[1]);
    close(alive[1]);
    g_g.pid = t->shell;
    g_g.alive = alive[0];
    g_g.output = t->master;
    g_g.text[0] = '\0';
    fd_set_nonblock(t->master, true);
    guarded_wait_ready(&g_g);
}

static int lines_in(const char *path)
{
    if (access(path, F_OK) < 0)
        return 0;
    char *text = read_file(path);
    int n = 0;
    for (char *c = text; *c; c++)
        n += *c == '\n';
    free(text);
    return n;
}

static bool has_lines(void *arg)
{
    return lines_in(arg) > 0;
}

START_TEST(ctrl_c_comes_once)
{
    struct job_on_terminal t;
    const char *seen = tmppath("seen"), *up = tmppath("up");
    int sigint = SIGINT, usr1 = SIGUSR1;
    struct guarded_job job = {
        .nworkers = 1,
        .status = 5,
        .stop_grace = 5,
        .worker = WORKER("trap", "INT", (char *)seen, "append", (char *)up, "pause", "pause")};
    start_on_terminal(&t, &job);
    wait_until(has_lines, (void *)up, SECONDS, "the worker has its handler");
    ck_assert_int_eq(write(t.master, "\003", 1), 1);
    wait_until(has_got, &sigint, SECONDS, "the agent has the SIGINT");
    wait_until(has_lines, (void *)seen, SECONDS, "the worker has the SIGINT");
    kill(*t.job, SIGUSR1); /* behind it: had there been a second SIGINT, it would be here */
    wait_until(has_got, &usr1, SECONDS, "the agent has a later signal");
    ck_assert_int_eq(g_g.shared->got[SIGINT], 1);
    ck_assert_int_eq(lines_in(seen), 1);
    kill(*t.job, SIGTERM);
    ck_assert_int_eq(guarded_wait(&g_g, SECONDS), 5);
    ck_assert(guarded_all_dead(&g_g, SECONDS));
}
END_TEST

static char state_of(pid_t pid)
{
    char text[256];
    const char *at = strstr(sweep_describe(pid, text, sizeof(text)), "in state ");
    return at ? at[9] : '?';
}

static bool has_stopped(void *arg)
{
    return atomic_load(((struct job_on_terminal *)arg)->stops) > 0;
}

static bool workers_have_stopped(void *arg)
{
    struct job_on_terminal *t = arg;
    return state_of(t->shared->workers[0]) == 'T' && state_of(t->shared->workers[1]) == 'T';
}

static bool all_run(void *arg)
{
    struct job_on_terminal *t = arg;
    return state_of(*t->job) != 'T' && state_of(t->shared->agent) != 'T' &&
           state_of(t->shared->workers[0]) != 'T' && state_of(t->shared->workers[1]) != 'T';
}

START_TEST(ctrl_z_and_fg)
{
    struct job_on_terminal t;
    struct guarded_job job = {
        .nworkers = 2, .worker = WORKER("pause"), .status = 6, .stop_grace = 5};
    start_on_terminal(&t, &job);
    for (int round = 0; round < 3; round++) {
        ck_assert_int_eq(write(t.master, "\032", 1), 1);
        wait_until(has_stopped, &t, SECONDS, "the shell sees the job stopped");
        ck_assert_int_eq(state_of(*t.job), 'T');
        ck_assert_int_eq(state_of(t.shared->agent), 'T');
        wait_until(workers_have_stopped, &t, SECONDS, "the workers are stopped");
        *t.stops = 0;
        *t.resume = 1;
        wait_until(all_run, &t, SECONDS, "all go on");
    }
    ck_assert_int_eq(g_g.shared->got[SIGTSTP], 3);
    kill(*t.job, SIGTERM);
    ck_assert_int_eq(guarded_wait(&g_g, SECONDS), 6);
    ck_assert(guarded_all_dead(&g_g, SECONDS));
}
END_TEST

/* `kill -9 %1` of a job that is stopped: a stopped agent does not see its lifeline end. */
START_TEST(kill_of_a_stopped_job)
{
    struct job_on_terminal t;
    struct guarded_job job = {
        .nworkers = 2, .worker = WORKER("child", "setsid-child", "pause"), .stop_grace = 5};
    start_on_terminal(&t, &job);
    ck_assert_int_eq(write(t.master, "\032", 1), 1);
    wait_until(has_stopped, &t, SECONDS, "the shell sees the job stopped");
    kill(*t.job, SIGKILL);
    *t.resume = 1;
    ck_assert_int_eq(guarded_wait(&g_g, SECONDS), 137);
    ck_assert(guarded_all_dead(&g_g, SECONDS));
}
END_TEST

/* An agent stopped by somebody else: the guardian stays awake. */
START_TEST(a_stopped_agent_does_not_stop_the_guardian)
{
    struct guarded_job job = {.nworkers = 1, .worker = WORKER("pause"), .stop_grace = 5};
    guarded_start(&g_g, &job);
    guarded_wait_ready(&g_g);
    kill(g_g.shared->agent, SIGSTOP);
    int usr1 = SIGUSR1;
    kill(g_g.pid, SIGUSR1);
    kill(g_g.pid, SIGCONT);
    wait_until(has_got, &usr1, SECONDS, "SIGCONT has come through to the agent");
    kill(g_g.pid, SIGTERM);
    ck_assert_int_eq(finish(), 0);
}
END_TEST

/* One signal ends a job whose agent somebody has stopped with SIGSTOP. */
START_TEST(a_signal_continues_a_stopped_agent)
{
    struct guarded_job job = {.nworkers = 1, .worker = WORKER("pause"), .stop_grace = 5};
    guarded_start(&g_g, &job);
    guarded_wait_ready(&g_g);
    kill(g_g.shared->agent, SIGSTOP);
    kill(g_g.pid, SIGTERM);
    ck_assert_int_eq(finish(), 0);
}
END_TEST

/* ---------------------------------------------------------------------------------------- lease */

/* arg: where the last lease is written down, shared with the test. */
static int feed_for_a_while(struct guardian_link *link, void *arg)
{
    _Atomic uint64_t *last = arg;
    uint64_t stop = mono_ns() + 300000000;
    if (fork() == 0) {
        signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    while (mono_ns() < stop) {
        *last = mono_ns() + 150000000;
        guardian_set_lease(link, *last);
        test_elapse(0.01);
    }
    while (raise(SIGSTOP) == 0) /* a stopped agent feeds no more */
        ;
    return 111;
}

START_TEST(a_lease_that_runs_out)
{
    _Atomic uint64_t *last = (_Atomic uint64_t *)guarded_shared_new();
    struct guarded_job job = {.at_start = feed_for_a_while, .arg = last, .stop_grace = 5};
    guarded_start(&g_g, &job);
    ck_assert_int_eq(finish(), 125);
    expect_text("dlaunch: the lease of this node ran out; ended 2 processes\n");
    ck_assert_uint_ge(mono_ns(), *last);
    ck_assert_uint_lt(mono_ns() - *last, (uint64_t)(test_seconds(2) * 1e9));
}
END_TEST

static int feed_and_take_back(struct guardian_link *link, void *arg)
{
    (void)arg;
    for (int i = 0; i < 5; i++)
        guardian_set_lease(link, mono_ns() + 5000000000);
    guardian_set_lease(link, mono_ns() + 200000000);
    guardian_set_lease(link, 0);
    test_elapse(0.4); /* longer than the lease that was taken back */
    link->page->clean = 1;
    return 8;
}

/* A thread of heartbeats extends a lease, but never makes or shortens one; and what the loop says
 * behind it is older. */
static int extend(struct guardian_link *link, void *arg)
{
    (void)arg;
    uint64_t now = mono_ns();
    guardian_extend_lease(link, now + 1);
    if (atomic_load(&link->page->lease_ns) != 0)
        return 1;
    guardian_set_lease(link, now + 100000000);
    guardian_extend_lease(link, now + 5000000000);
    guardian_extend_lease(link, now + 3);
    guardian_set_lease(link, now + 100000001);
    if (atomic_load(&link->page->lease_ns) != now + 5000000000)
        return 2;
    test_elapse(0.3); /* longer than the lease before it was extended */
    guardian_set_lease(link, 0);
    link->page->clean = 1;
    return 9;
}

START_TEST(a_lease_extended)
{
    struct guarded_job job = {.at_start = extend, .stop_grace = 5};
    guarded_start(&g_g, &job);
    ck_assert_int_eq(finish(), 9);
}
END_TEST

START_TEST(a_lease_taken_back)
{
    struct guarded_job job = {.at_start = feed_and_take_back, .stop_grace = 5};
    guarded_start(&g_g, &job);
    ck_assert_int_eq(finish(), 8);
}
END_TEST

/* --------------------------------------------------------------------------------- what is left */

static int publish_and_die(struct guardian_link *link, void *arg)
{
    const char **files = arg;
    char too_long[300];
    memset(too_long, 'x', sizeof(too_long));
    too_long[299] = '\0';
    bool ok = guardian_set_path(link->page->unlink_path[0], files[0]) &&
              guardian_set_path(link->page->unlink_path[1], files[1]) &&
              guardian_set_path(link->page->unlink_path[1], NULL) && /* taken back */
              !guardian_set_path(link->page->unlink_path[0], too_long);
    return ok ? raise(SIGKILL) : 111;
}

START_TEST(files_are_removed_for_a_dead_agent)
{
    const char *files[] = {tmppath("socket"), tmppath("kept")};
    write_file(files[0], "");
    write_file(files[1], "");
    struct guarded_job job = {.at_start = publish_and_die, .arg = files, .stop_grace = 5};
    guarded_start(&g_g, &job);
    ck_assert_int_eq(finish(), 137);
    ck_assert_int_eq(access(files[0], F_OK), -1);
    ck_assert_int_eq(access(files[1], F_OK), 0);
}
END_TEST

static int make_cgroup_and_die(struct guardian_link *link, void *arg)
{
    struct cgroup cg;
    cgroup_open(&cg);
    strcpy(arg, cg.path);
    (void)link;
    return raise(SIGKILL);
}

START_TEST(the_cgroup_is_removed_for_a_dead_agent)
{
    struct guarded_shared *shared = guarded_shared_new();
    struct guarded_job unpublished = {
        .at_start = make_cgroup_and_die, .arg = shared->cgroup, .stop_grace = 5};
    guarded_start(&g_g, &unpublished);
    ck_assert_int_eq(finish(), 137);
    if (!shared->cgroup[0]) {
        test_skip("no cgroup can be made here");
        return;
    }
    ck_assert_int_eq(access(shared->cgroup, F_OK), -1);

    struct guarded_job job = {
        .nworkers = 2, .worker = WORKER("setsid-child", "daemon", "pause"), .stop_grace = 5};
    guarded_start(&g_g, &job);
    guarded_wait_ready(&g_g);
    strcpy(shared->cgroup, g_g.shared->cgroup);
    ck_assert_int_eq(access(shared->cgroup, F_OK), 0);
    kill(guarded_agent(&g_g), SIGKILL);
    ck_assert_int_eq(finish(), 137);
    ck_assert_int_eq(access(shared->cgroup, F_OK), -1);
}
END_TEST

static void have_a_child(void *arg)
{
    _Atomic int *pid = arg;
    pid_t child = fork();
    if (child == 0) {
        for (;;)
            pause();
    }
    *pid = child;
}

/* `sleep 100 & exec dlaunch ...` */
START_TEST(children_of_before_are_spared)
{
    struct guarded_shared *shared = guarded_shared_new();
    struct guarded_job job = {.before = have_a_child,
                              .arg = &shared->spare,
                              .nworkers = 2,
                              .worker = WORKER("child", "pause"),
                              .stop_grace = 5};
    guarded_start(&g_g, &job);
    guarded_wait_ready(&g_g);
    kill(g_g.shared->agent, SIGKILL);
    ck_assert_int_eq(guarded_wait(&g_g, SECONDS), 137);
    ck_assert_int_eq(kill(shared->spare, 0), 0);
    ck_assert_int_eq(sweep_children(NULL, 0), 1); /* it has come to us, and nothing else */
    kill(shared->spare, SIGKILL);
    ck_assert_int_eq(waitpid(shared->spare, NULL, 0), shared->spare);
    ck_assert(guarded_all_dead(&g_g, SECONDS));
}
END_TEST

START_TEST(a_worker_that_does_not_die)
{
    struct freezer f;
    struct guarded_job job = {.nworkers = 2, .worker = WORKER("child", "pause"), .stop_grace = 0.4};
    char want[128];
    if (!freezer_init(&f)) {
        test_skip("needs root and a cgroup v1 freezer");
        return;
    }
    guarded_start(&g_g, &job);
    guarded_wait_ready(&g_g);
    pid_t worker = g_g.shared->workers[1];
    freezer_freeze(&f, worker);
    kill(g_g.shared->agent, SIGKILL);
    uint64_t began = mono_ns();
    int status = guarded_wait(&g_g, SECONDS);
    ck_assert_int_eq(status, 125);
    ck_assert_uint_lt(mono_ns() - began, (uint64_t)(test_seconds(3) * 1e9));
    snprintf(want, sizeof(want), "dlaunch: pid %d (worker) in state D (uninterruptible sleep)",
             (int)worker);
    expect_text(want);
    expect_text(" does not die; giving up after 0.4 s\n");
    freezer_thaw(&f);
    guarded_all_dead(&g_g, SECONDS);
    freezer_fini(&f);
    rmdir(g_g.shared->cgroup); /* the guardian could not: it was not empty */
    guarded_fini(&g_g);
}
END_TEST

/* ------------------------------------------------------------------------------ a PID namespace */

static int says_where_it_is_isolated(struct guardian_link *link, void *arg)
{
    char self[32] = "";
    (void)arg;
    if (readlink("/proc/self", self, sizeof(self) - 1) < 0)
        return 111;
    printf("pid %d, /proc/self %s, parent %d, uid %d", (int)getpid(), self, (int)getppid(),
           (int)getuid());
    link->page->clean = 1;
    return 4;
}

static void become_nobody(void *arg)
{
    (void)arg;
    if (geteuid() == 0 && (setgroups(0, NULL) < 0 || setresgid(65534, 65534, 65534) < 0 ||
                           setresuid(65534, 65534, 65534) < 0))
        _exit(111);
    prctl(PR_SET_DUMPABLE, 1); /* or /proc/self belongs to root */
}

START_TEST(in_a_pid_namespace)
{
    struct guarded_job job = {.isolation = ISOLATE_PIDNS,
                              .at_start = says_where_it_is_isolated,
                              .stop_grace = 5,
                              .before = _i ? become_nobody : NULL};
    guarded_start(&g_g, &job);
    int status = finish(), uid = _i ? 65534 : (int)getuid();
    if (status == 125 && strstr(g_g.text, "--isolate pidns is not possible here")) {
        test_skip("%s", g_g.text);
        return;
    }
    char want[64];
    ck_assert_int_eq(status, 4);
    snprintf(want, sizeof(want), "pid 1, /proc/self 1, parent 0, uid %d", uid);
    ck_assert_str_eq(g_g.text, want);
}
END_TEST

static void forbid_pid_namespaces(void *arg)
{
    (void)arg;
    if (unshare(CLONE_NEWUSER) < 0) /* whose own limit is */
        _exit(111);
    int fd = open("/proc/sys/user/max_pid_namespaces", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || fd_write_all(fd, "0", 1) < 0)
        _exit(111);
    close(fd);
}

START_TEST(a_pid_namespace_is_refused)
{
    struct guarded_job job = {.isolation = ISOLATE_PIDNS,
                              .before = forbid_pid_namespaces,
                              .at_start = says_where_it_is_isolated,
                              .stop_grace = 5};
    guarded_start(&g_g, &job);
    int status = finish();
    if (status == 111) {
        test_skip("needs user namespaces");
        return;
    }
    ck_assert_int_eq(status, 125);
    expect_text("dlaunch: --isolate pidns is not possible here (it needs root or unprivileged user "
                "namespaces): unshare(CLONE_NEWPID): No space left on device\n");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("guardian");
    TCase *tc = test_case(s, "status", 60);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, the_agents_status);
    tcase_add_test(tc, an_agent_that_is_not_clean);
    tcase_add_test(tc, children_that_were_left);
    tcase_add_test(tc, an_agent_killed_by_a_signal);
    tcase_add_test(tc, a_signal_without_a_name);
    tcase_add_test(tc, what_the_agent_gets);
    tc = test_case(s, "signals", 60);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, signals_are_forwarded_once);
    tcase_add_test(tc, a_signal_waits_until_the_agent_is_ready);
    tcase_add_loop_test(tc, a_further_request_must_be_heard, 0, 2);
    tcase_add_test(tc, what_was_ignored_stays_ignored);
    tcase_add_test(tc, a_stopped_agent_does_not_stop_the_guardian);
    tcase_add_test(tc, a_signal_continues_a_stopped_agent);
    tc = test_case(s, "terminal", 60);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, ctrl_c_comes_once);
    tcase_add_test(tc, ctrl_z_and_fg);
    tcase_add_test(tc, kill_of_a_stopped_job);
    tc = test_case(s, "lease", 60);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, a_lease_that_runs_out);
    tcase_add_test(tc, a_lease_taken_back);
    tcase_add_test(tc, a_lease_extended);
    tc = test_case(s, "left", 60);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, files_are_removed_for_a_dead_agent);
    tcase_add_test(tc, the_cgroup_is_removed_for_a_dead_agent);
    tcase_add_test(tc, children_of_before_are_spared);
    tcase_add_test(tc, a_worker_that_does_not_die);
    tc = test_case(s, "pidns", 60);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_loop_test(tc, in_a_pid_namespace, 0, 2);
    tcase_add_test(tc, a_pid_namespace_is_refused);
    return s;
}
TEST_MAIN(suite)
