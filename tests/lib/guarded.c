#include "tests/lib/guarded.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/cgroup.h"
#include "agent/process/spawn.h"
#include "agent/process/sweep.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "tests/lib/test.h"

extern char **environ;

/* ------------------------------------------------------------------------------------ the agent */

struct agent_arg {
    const struct guarded_job *job;
    struct guarded_shared *shared;
    int alive;
};

struct small_agent {
    const struct agent_arg *arg;
    struct guardian_link *link;
    struct cgroup cgroup;
    struct spawner *spawner;
};

static void start_workers(struct small_agent *a)
{
    struct guarded_shared *shared = a->arg->shared;
    struct err e;
    spawner_new(&a->spawner, &e);
    for (int i = 0; i < a->arg->job->nworkers; i++) {
        char *const *argv = a->arg->job->worker;
        struct spawn_request req = {.path = argv[0],
                                    .argv = argv,
                                    .envp = environ,
                                    .stdio = {0, 1, 2},
                                    .keep = &a->arg->alive,
                                    .nkeep = 1,
                                    .cgroup_fd = a->cgroup.fd};
        pid_t pid;
        int pidfd;
        if (spawn(a->spawner, &req, &pid, &pidfd, &e) < 0) {
            log_error("%s", e.msg);
            exit(3);
        }
        close_fd(&pidfd);
        shared->workers[i] = pid;
        a->link->page->nworkers++;
    }
    shared->ready = 1;
}

static void end_all(struct small_agent *a)
{
    struct sweep s;
    sweep_init(&s);
    sweep_run(&s, NULL, 0, 10);
    cgroup_close(&a->cgroup);
    spawner_free(a->spawner);
    close(a->link->lifeline);
    a->link->page->clean = 1;
}

static void signal_workers(struct small_agent *a, int sig)
{
    for (int i = 0; i < a->arg->job->nworkers; i++)
        kill(-a->arg->shared->workers[i], sig);
}

/* Handles one signal. True: the agent goes on; otherwise *status is set. */
static bool on_signal(struct small_agent *a, int sig, int *status)
{
    siginfo_t si = {.si_pid = 0};
    a->arg->shared->got[sig]++;
    switch (sig) {
    case SIGINT:
        signal_workers(a, SIGINT);
        return true;
    case SIGTSTP:
        signal_workers(a, SIGSTOP);
        guardian_suspend(a->link);
        signal_workers(a, SIGCONT);
        return true;
    case SIGTERM:
        *status = a->arg->job->status;
        return false;
    case SIGCHLD:
        waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT);
        for (int i = 0; i < a->arg->job->nworkers; i++) {
            if (si.si_pid && si.si_pid == a->arg->shared->workers[i]) {
                *status = 1;
                return false;
            }
        }
        if (si.si_pid)
            waitpid(si.si_pid, NULL, 0);
        return true;
    default:
        return true;
    }
}

static const int stops[] = {SIGTERM, SIGINT, 0};

static int small_agent_main(void *p, struct guardian_link *link)
{
    struct small_agent a = {.arg = p, .link = link, .cgroup = {.fd = -1}};
    const struct guarded_job *job = a.arg->job;
    sigset_t all;
    int status = 0;
    a.arg->shared->agent = getpid();
    if (job->at_start && (status = job->at_start(link, job->arg)) >= 0)
        return status;
    sigfillset(&all);
    sigdelset(&all, SIGABRT);
    sigdelset(&all, SIGSYS);
    sigprocmask(SIG_BLOCK, &all, NULL);
    int signals = signalfd(-1, &all, SFD_CLOEXEC);
    if (job->isolation == ISOLATE_AUTO)
        cgroup_open(&a.cgroup);
    guardian_set_path(link->page->cgroup, a.cgroup.path);
    strcpy(a.arg->shared->cgroup, a.cgroup.path);
    start_workers(&a);
    for (;;) {
        struct pollfd fds[2] = {{link->lifeline, POLLIN, 0}, {signals, POLLIN, 0}};
        struct signalfd_siginfo si;
        poll(fds, 2, -1);
        if (fds[0].revents) {
            end_all(&a);
            _exit(99);
        }
        if (fds[1].revents && read(signals, &si, sizeof(si)) == sizeof(si) &&
            !on_signal(&a, (int)si.ssi_signo, &status)) {
            end_all(&a);
            close(signals);
            return status;
        }
    }
}

/* -------------------------------------------------------------------------------- the test side */

void guarded_init(void)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

struct guarded_shared *guarded_shared_new(void)
{
    void *p = mmap(NULL, sizeof(struct guarded_shared), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(p, MAP_FAILED);
    return p;
}

int guarded_run(const struct guarded_job *job, struct guarded_shared *shared, int alive)
{
    static const int forwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, 0};
    struct guardian_opts opts = {.isolation = job->isolation,
                                 .forward_signals = forwarded,
                                 .stop_signals = stops,
                                 .stop_grace = job->stop_grace};
    struct agent_arg arg = {job, shared, alive};
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nothing behind */
    signal(SIGTERM, SIG_DFL);         /* Check has handlers */
    signal(SIGINT, SIG_DFL);
    if (job->before)
        job->before(job->arg);
    return guardian_run(&opts, small_agent_main, &arg);
}

void guarded_start(struct guarded *g, const struct guarded_job *job)
{
    int alive[2], out[2];
    memset(g, 0, sizeof(*g));
    g->shared = guarded_shared_new();
    ck_assert_int_eq(pipe2(alive, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    fflush(NULL);
    g->pid = fork();
    ck_assert_int_ge(g->pid, 0);
    if (g->pid == 0) {
        dup2(out[1], 1);
        dup2(out[1], 2);
        close(out[0]);
        close(alive[0]);
        _exit(guarded_run(job, g->shared, alive[1]));
    }
    close(alive[1]);
    close(out[1]);
    g->alive = alive[0];
    g->output = out[0];
    fd_set_nonblock(g->output, true);
}

bool guarded_ended(const struct guarded *g)
{
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)g->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == g->pid;
}

static bool is_ready(void *arg)
{
    struct guarded *g = arg;
    return g->shared->ready || guarded_ended(g);
}

void guarded_wait_ready(struct guarded *g)
{
    wait_until(is_ready, g, 20, "the agent has started its workers");
}

pid_t guarded_agent(const struct guarded *g)
{
    char path[64], text[64];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)g->pid, (int)g->pid);
    return fd_read_file(AT_FDCWD, path, text, sizeof(text)) > 0 ? atoi(text) : 0;
}

static void drain(struct guarded *g)
{
    size_t len = strlen(g->text);
    for (ssize_t n; len < sizeof(g->text) - 1 &&
                    (n = read(g->output, g->text + len, sizeof(g->text) - 1 - len)) > 0;)
        len += (size_t)n;
    g->text[len] = '\0';
}

void guarded_expect(struct guarded *g, const char *text)
{
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (drain(g), !strstr(g->text, text)) {
        ck_assert_msg(mono_ns() < end, "\"%s\" was not said, but:\n%s", text, g->text);
        struct pollfd p = {g->output, POLLIN, 0};
        poll(&p, 1, 10);
    }
}

int guarded_wait(struct guarded *g, double seconds)
{
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(seconds) * 1e9);
    int status;
    while (waitpid(g->pid, &status, WNOHANG) != g->pid) {
        drain(g);
        if (mono_ns() > end)
            ck_abort_msg("the guardian has not ended; it said:\n%s", g->text);
        test_poll_pause();
    }
    drain(g);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool guarded_all_dead(struct guarded *g, double seconds)
{
    struct pollfd p = {g->alive, POLLIN, 0};
    bool dead = poll(&p, 1, (int)(test_seconds(seconds) * 1000)) == 1;
    struct sweep s;
    sweep_init(&s);
    sweep_run(&s, NULL, 0, 10); /* also reaps those that came to us dead */
    return dead;
}

void guarded_fini(struct guarded *g)
{
    close(g->alive);
    close(g->output);
    munmap(g->shared, sizeof(*g->shared));
}
