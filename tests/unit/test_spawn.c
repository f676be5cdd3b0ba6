/* Starting one worker: what it is born with, and what is said when it cannot be. Most run twice:
 * as this kernel allows, and without clone3() and close_range(). */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/cgroup.h"
#include "agent/process/spawn.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"

#define SECONDS      20
#define ARGV_OF(...) ((char *[]){__VA_ARGS__, NULL})
#define WORKER(...)  ((char *[]){build_path("tests/worker"), __VA_ARGS__, NULL})

extern char **environ;

static struct spawner *g_spawner;

static void new_spawner(int old_kernel)
{
    struct err e;
    spawn_as_on_old_kernel = old_kernel;
    ck_assert_int_eq(spawner_new(&g_spawner, &e), 0);
}

static struct spawn_request request(char *const *argv)
{
    return (struct spawn_request){
        .path = argv[0], .argv = argv, .envp = environ, .stdio = {0, 1, 2}, .cgroup_fd = -1};
}

static pid_t start(const struct spawn_request *req, int *pidfd)
{
    struct err e = ERR_INIT;
    pid_t pid;
    int fd;
    ck_assert_msg(spawn(g_spawner, req, &pid, &fd, &e) == 0, "%s", e.msg);
    if (pidfd)
        *pidfd = fd;
    else
        close_fd(&fd);
    return pid;
}

/* Returns the wait status of pid; fails the test when the process does not end in time. */
static int end_of(pid_t pid)
{
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(SECONDS) * 1e9);
    int status;
    while (waitpid(pid, &status, WNOHANG) != pid) {
        ck_assert_msg(mono_ns() < end, "pid %d has not ended", pid);
        test_poll_pause();
    }
    return status;
}

static int run(const struct spawn_request *req)
{
    return end_of(start(req, NULL));
}

/* Runs the request to its end and returns its stdout, read through a pipe. */
static const char *output_of(struct spawn_request *req, int *status)
{
    static char text[65536];
    int p[2];
    ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
    req->stdio[1] = p[1];
    pid_t pid = start(req, NULL);
    req->stdio[1] = 1;
    close(p[1]);
    size_t len = 0;
    for (ssize_t n; (n = read(p[0], text + len, sizeof(text) - 1 - len)) > 0;)
        len += (size_t)n;
    close(p[0]);
    text[len] = '\0';
    int st = end_of(pid);
    if (status)
        *status = st;
    return text;
}

/* ------------------------------------------------------------------------------- exits, signals */

START_TEST(every_exit_code)
{
    new_spawner(_i);
    for (int code = 0; code < 256; code++) {
        char text[8];
        snprintf(text, sizeof(text), "%d", code);
        struct spawn_request req = request(WORKER("exit", text));
        int status = run(&req), exit_code;
        ck_assert(WIFEXITED(status));
        ck_assert_int_eq(WEXITSTATUS(status), code);
        ck_assert_msg(!spawn_failure(g_spawner, 1, &exit_code, NULL), "nothing of ours failed");
    }
    spawner_free(g_spawner);
}
END_TEST

static bool ends_a_process(int sig)
{
    static const int harmless[] = {SIGCHLD, SIGCONT, SIGURG,  SIGWINCH,
                                   SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU};
    for (size_t i = 0; i < ARRAY_LEN(harmless); i++)
        if (harmless[i] == sig)
            return false;
    return sig < 32 || sig >= SIGRTMIN; /* those between are the C library's */
}

START_TEST(every_signal_right_after_the_spawn)
{
    for (int sig = 1; sig <= 64; sig++) { /* whatever we do with it ourselves */
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, sig);
        sigprocmask(sig % 2 ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
    }
    spawn_remember();
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    new_spawner(_i);
    /* A sanitizer's runtime in our own worker would soon have handlers. */
    struct spawn_request req = request(((char *[]){"/bin/sleep", "1000", NULL}));
    for (int sig = 1; sig <= 64; sig++) {
        if (!ends_a_process(sig))
            continue;
        pid_t pid = start(&req, NULL);
        ck_assert_int_eq(kill(-pid, sig), 0);
        int status = end_of(pid);
        ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == sig, "signal %d: status %x", sig,
                      status);
    }
    spawner_free(g_spawner);
}
END_TEST

START_TEST(a_signal_is_never_lost)
{
    new_spawner(_i);
    struct spawn_request req = request(WORKER("pause"));
    for (int round = 0; round < 300; round++) {
        pid_t pid = start(&req, NULL);
        ck_assert_int_eq(kill(round % 2 ? -pid : pid, SIGTERM), 0);
        int status = end_of(pid);
        ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "round %d: %x", round,
                      status);
    }
    spawner_free(g_spawner);
}
END_TEST

static void *copy_of(char *const *strings)
{
    size_t n = 0;
    while (strings[n])
        n++;
    char **copy = xcalloc(n + 1, sizeof(*copy));
    memcpy(copy, strings, n * sizeof(*copy));
    return copy;
}

START_TEST(many_under_way_at_once)
{
    enum { N = 50 };
    pid_t pids[N];
    new_spawner(_i);
    for (int i = 0; i < N; i++) {
        struct err e = ERR_INIT;
        int pidfd;
        bool absent = i % 5 == 3;
        struct spawn_request req =
            request(copy_of(absent ? ARGV_OF("/no/such/program") : WORKER("exit", "7")));
        req.owned[0] = (void *)req.argv;
        req.envp = req.owned[1] = copy_of(environ);
        ck_assert_msg(spawn_begin(g_spawner, &req, &pids[i], &pidfd, &e) == 0, "%s", e.msg);
        close_fd(&pidfd);
    }
    spawn_settle(g_spawner);
    for (int i = 0; i < N; i++) {
        struct err why = ERR_INIT;
        int status = end_of(pids[i]), code = 0;
        bool absent = i % 5 == 3;
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == (absent ? 127 : 7), "%d: %x", i,
                      status);
        ck_assert_int_eq(spawn_failure(g_spawner, pids[i], &code, &why), absent);
        if (absent)
            ck_assert_str_eq(why.msg, "exec /no/such/program: No such file or directory");
    }
    spawner_free(g_spawner);
}
END_TEST

START_TEST(a_signal_before_the_program_runs_is_not_lost)
{
    new_spawner(_i);
    struct spawn_request req = request(WORKER("pause"));
    for (int round = 0; round < 200; round++) {
        struct err e = ERR_INIT;
        int pidfd;
        pid_t pid;
        ck_assert_msg(spawn_begin(g_spawner, &req, &pid, &pidfd, &e) == 0, "%s", e.msg);
        close_fd(&pidfd);
        int signo = round % 2 ? SIGTERM : SIGKILL;
        ck_assert_int_eq(kill(pid, signo), 0);
        spawn_settle(g_spawner);
        int status = end_of(pid);
        ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == signo, "round %d: %x", round,
                      status);
    }
    spawner_free(g_spawner);
}
END_TEST

START_TEST(too_many_descriptors_to_keep)
{
    int keep[SPAWN_KEEP_MAX + 1] = {0}, pidfd;
    struct err e = ERR_INIT;
    pid_t pid;
    new_spawner(_i);
    struct spawn_request req = request(WORKER("exit", "0"));
    req.keep = keep;
    req.nkeep = ARRAY_LEN(keep);
    req.owned[0] = xcalloc(1, 1);
    ck_assert_int_eq(spawn_begin(g_spawner, &req, &pid, &pidfd, &e), -EINVAL);
    spawner_free(g_spawner);
}
END_TEST

static uint64_t mask_in(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    ck_assert_msg(at, "no %s in: %s", name, text);
    return strtoull(at + strlen(name) + 1, NULL, 16);
}

START_TEST(nothing_blocked_and_only_the_ignored_of_the_start_ignored)
{
    sigset_t all;
    signal(SIGHUP, SIG_IGN); /* nohup */
    signal(SIGPIPE, SIG_IGN);
    spawn_remember();
    signal(SIGUSR1, SIG_IGN);
    signal(SIGHUP, SIG_DFL); /* what we do later is our own affair */
    new_spawner(_i);
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    struct spawn_request req = request(WORKER("sigs"));
    const char *text = output_of(&req, NULL);
    ck_assert_uint_eq(mask_in(text, "SigBlk:"), 0);
    ck_assert_uint_eq(mask_in(text, "SigIgn:"), 1u << (SIGHUP - 1));
    ck_assert(spawn_was_ignored(SIGHUP) && !spawn_was_ignored(SIGPIPE));
    sigset_t now;
    sigprocmask(SIG_SETMASK, NULL, &now);
    ck_assert_msg(sigismember(&now, SIGTERM), "our own mask is as it was");
    spawner_free(g_spawner);
}
END_TEST

/* ---------------------------------------------------------------------------------- descriptors */

START_TEST(only_its_stdio_and_the_kept_descriptors)
{
    int leak = open("/dev/null", O_RDONLY), high = dup2(leak, 777), kept = dup2(leak, 50);
    ck_assert_int_gt(leak, 2);
    ck_assert_int_eq(high, 777);
    new_spawner(_i);
    int ours = open("/dev/null", O_RDONLY | O_CLOEXEC),
        ours_kept = fcntl(ours, F_DUPFD_CLOEXEC, 60);
    struct spawn_request req = request(WORKER("fds"));
    req.keep = (int[]){kept, ours_kept};
    req.nkeep = 2;
    char want[64];
    snprintf(want, sizeof(want), "fds 0 1 2 %d %d\n", kept, ours_kept);
    ck_assert_str_eq(output_of(&req, NULL), want);
    ck_assert_int_eq(fcntl(ours_kept, F_GETFD), FD_CLOEXEC);

    int exit_code;
    struct err e;
    req.keep = (int[]){600};
    req.nkeep = 1;
    pid_t pid = start(&req, NULL);
    ck_assert_int_eq(WEXITSTATUS(end_of(pid)), 125);
    ck_assert(spawn_failure(g_spawner, pid, &exit_code, &e));
    ck_assert_int_eq(exit_code, 125);
    ck_assert_str_eq(e.msg, "hand descriptor 600 down to the worker: Bad file descriptor");
    spawner_free(g_spawner);
}
END_TEST

static void file_at(pid_t pid, int fd, char out[256])
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
    ssize_t n = readlink(path, out, 255);
    out[n < 0 ? 0 : n] = '\0';
}

/* Runs in a process whose descriptors 0, 1 and 2 are three files: every way to pass them on. */
static int shuffle(const char *const files[4])
{
    int fds[4];
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    for (int i = 0; i < 4; i++)
        fds[i] = open(files[i], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct spawn_request req = request(WORKER("pause"));
    int wrong = 0;
    for (int n = 0; n < 64; n++) {
        int pick[3] = {n & 3, n >> 2 & 3, n >> 4 & 3};
        for (int i = 0; i < 3; i++)
            req.stdio[i] = fds[pick[i]];
        pid_t pid;
        int pidfd;
        if (spawn(g_spawner, &req, &pid, &pidfd, NULL) < 0)
            return 250;
        close_fd(&pidfd);
        for (int i = 0; i < 3; i++) {
            char at[256];
            file_at(pid, i, at);
            wrong += strcmp(at, files[pick[i]]) != 0;
        }
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    return wrong;
}

START_TEST(stdio_in_any_order)
{
    const char *files[4] = {tmppath("a"), tmppath("b"), tmppath("c"), tmppath("d")};
    build_path("tests/worker"); /* while its stdio is in order */
    new_spawner(_i);
    pid_t pid = fork();
    if (pid == 0)
        _exit(shuffle(files));
    int status = end_of(pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    spawner_free(g_spawner);
}
END_TEST

START_TEST(stdio_that_is_not_there)
{
    int exit_code;
    struct err e;
    new_spawner(_i);
    struct spawn_request req = request(WORKER("pause"));
    req.stdio[1] = 999;
    pid_t pid = start(&req, NULL);
    ck_assert_int_eq(WEXITSTATUS(end_of(pid)), 125);
    ck_assert(spawn_failure(g_spawner, pid, &exit_code, &e));
    ck_assert_str_eq(e.msg,
                     "connect the worker's standard output (descriptor 999): Bad file descriptor");
    ck_assert_msg(!spawn_failure(g_spawner, pid, &exit_code, &e), "once for each failure");
    spawner_free(g_spawner);
}
END_TEST

/* ----------------------------------------------------------------------------- group and parent */

START_TEST(a_process_group_of_its_own)
{
    int pidfd;
    new_spawner(_i);
    struct spawn_request req = request(WORKER("pause"));
    pid_t pid = start(&req, &pidfd);
    ck_assert_int_eq(getsid(pid), getsid(0));
    ck_assert_int_eq(getpgid(pid), pid);
    struct pollfd p = {pidfd, POLLIN, 0};
    ck_assert_int_eq(poll(&p, 1, 0), 0);
    ck_assert(fcntl(pidfd, F_GETFD) & FD_CLOEXEC);
    kill(pid, SIGKILL);
    ck_assert_int_eq(poll(&p, 1, (int)(test_seconds(SECONDS) * 1000)), 1);
    end_of(pid);
    close(pidfd);
    spawner_free(g_spawner);
}
END_TEST

START_TEST(it_dies_with_its_parent)
{
    int alive[2];
    ck_assert_int_eq(pipe2(alive, O_CLOEXEC), 0);
    build_path("tests/worker");
    pid_t parent = fork();
    if (parent == 0) {
        new_spawner(_i);
        struct spawn_request req = request(WORKER("ignore", "TERM", "pause"));
        req.stdio[1] = alive[1];
        start(&req, NULL);
        kill(getpid(), SIGKILL);
    }
    close(alive[1]);
    end_of(parent);
    struct pollfd p = {alive[0], POLLIN, 0};
    ck_assert_msg(poll(&p, 1, (int)(test_seconds(SECONDS) * 1000)) == 1, "the worker lives on");
    ck_assert(p.revents & POLLHUP);
    close(alive[0]);
}
END_TEST

/* --------------------------------------------------------------------------------- surroundings */

START_TEST(in_a_directory)
{
    int exit_code;
    struct err e;
    new_spawner(_i);
    ck_assert_int_eq(symlink(build_path("tests/worker"), tmppath("prog")), 0);
    struct spawn_request req = request(((char *[]){"./prog", "cwd", NULL}));
    req.cwd = tmpdir();
    char want[300];
    snprintf(want, sizeof(want), "%s\n", tmpdir());
    ck_assert_str_eq(output_of(&req, NULL), want);

    req = request(((char *[]){"./other", NULL}));
    req.cwd = tmpdir();
    pid_t pid = start(&req, NULL);
    ck_assert_int_eq(WEXITSTATUS(end_of(pid)), 127);
    ck_assert(spawn_failure(g_spawner, pid, &exit_code, &e));
    ck_assert_str_eq(e.msg, "exec ./other: No such file or directory");

    req.cwd = "/no/such/place";
    pid = start(&req, NULL);
    ck_assert_int_eq(WEXITSTATUS(end_of(pid)), 125);
    ck_assert(spawn_failure(g_spawner, pid, &exit_code, &e));
    ck_assert_str_eq(e.msg, "chdir /no/such/place: No such file or directory");
    spawner_free(g_spawner);
}
END_TEST

START_TEST(on_its_cpus)
{
    cpu_set_t ours, one;
    int last = -1, exit_code;
    struct err e;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(ours), &ours), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        last = CPU_ISSET(cpu, &ours) ? cpu : last;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    new_spawner(_i);
    struct spawn_request req = request(WORKER("cpus"));
    req.cpus = &one;
    req.cpus_size = sizeof(one);
    char want[32];
    snprintf(want, sizeof(want), "cpus %d\n", last);
    ck_assert_str_eq(output_of(&req, NULL), want);

    CPU_ZERO(&one);
    pid_t pid = start(&req, NULL);
    ck_assert_int_eq(WEXITSTATUS(end_of(pid)), 125);
    ck_assert(spawn_failure(g_spawner, pid, &exit_code, &e));
    ck_assert_str_eq(e.msg, "bind the worker to its CPUs: Invalid argument");
    spawner_free(g_spawner);
}
END_TEST

START_TEST(the_soft_limit_of_files_is_the_first_one)
{
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    rlim_t hard = r.rlim_max;
    r.rlim_cur = 333;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &r), 0);
    spawn_remember();
    r.rlim_cur = r.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &r), 0);
    new_spawner(_i);
    struct spawn_request req =
        request(((char *[]){"/bin/sh", "-c", "ulimit -Sn; ulimit -Hn", NULL}));
    char want[64];
    snprintf(want, sizeof(want), "333\n%llu\n", (unsigned long long)hard);
    ck_assert_str_eq(output_of(&req, NULL), want);
    spawner_free(g_spawner);
}
END_TEST

START_TEST(in_a_cgroup)
{
    struct cgroup cg;
    char path[64], text[4096];
    cgroup_open(&cg);
    if (cg.fd < 0) {
        test_skip("no cgroup can be made here");
        return;
    }
    new_spawner(false);
    struct spawn_request req = request(WORKER("pause"));
    req.cgroup_fd = cg.fd;
    pid_t pid = start(&req, NULL);
    snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
    ck_assert_int_gt(fd_read_file(AT_FDCWD, path, text, sizeof(text)), 0);
#ifdef __x86_64__
    ck_assert_msg(strstr(text, strrchr(cg.path, '/')), "not in %s but\n%s", cg.path, text);
#endif
    cgroup_kill(&cg);
    int status = end_of(pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

    /* A cgroup that has gone is done without. */
    int gone = dup(cg.fd);
    cgroup_close(&cg);
    req.cgroup_fd = gone;
    pid = start(&req, NULL);
    kill(pid, SIGTERM);
    end_of(pid);
    close(gone);
    spawner_free(g_spawner);
}
END_TEST

/* --------------------------------------------------------------------------------------- limits */

START_TEST(a_failure_belongs_to_its_process)
{
    enum { N = 40 };
    pid_t good[N], bad[N];
    int exit_code;
    struct err e;
    new_spawner(_i);
    struct spawn_request works = request(WORKER("exit", "127")),
                         fails = request(((char *[]){"/no/such/program", NULL}));
    for (int i = 0; i < N; i++) {
        good[i] = start(&works, NULL);
        bad[i] = start(&fails, NULL);
    }
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(WEXITSTATUS(end_of(good[i])), 127);
        ck_assert(!spawn_failure(g_spawner, good[i], &exit_code, &e));
        ck_assert_int_eq(WEXITSTATUS(end_of(bad[i])), 127);
        ck_assert(i % 2 || spawn_failure(g_spawner, bad[i], &exit_code, &e));
    }
    ck_assert_str_eq(e.msg, "exec /no/such/program: No such file or directory");
    spawner_free(g_spawner); /* with failures that nobody asked for */
}
END_TEST

/* Runs fact() in a process of its own and expects its text. */
static void expect_from_child(void (*fact)(char *out, size_t cap), const char *text)
{
    char *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = fork();
    if (pid == 0) {
        fact(shared, 4096);
        _exit(0);
    }
    end_of(pid);
    ck_assert_msg(strstr(shared, text), "\"%s\" is not in \"%s\"", text, shared);
    munmap(shared, 4096);
}

static void spawn_and_say(char *out, size_t cap)
{
    struct err e = ERR_INIT;
    struct spawn_request req = request(((char *[]){"/bin/true", NULL}));
    pid_t pid;
    int pidfd, rc = spawn(g_spawner, &req, &pid, &pidfd, &e);
    snprintf(out, cap, rc < 0 ? "%s" : "started%s", e.msg);
}

static void with_too_few_files(char *out, size_t cap)
{
    struct rlimit r = {16, 16};
    setrlimit(RLIMIT_NOFILE, &r);
    while (open("/dev/null", O_RDONLY) >= 0)
        ;
    spawn_and_say(out, cap);
}

static void with_too_few_processes(char *out, size_t cap)
{
    struct rlimit r = {0, 0};
    setrlimit(RLIMIT_NPROC, &r);
    if (setgroups(0, NULL) < 0 || setresgid(65534, 65534, 65534) < 0 ||
        setresuid(65534, 65534, 65534) < 0)
        snprintf(out, cap, "cannot become nobody");
    else
        spawn_and_say(out, cap);
}

START_TEST(the_limit_that_was_hit_is_named)
{
    new_spawner(_i);
    expect_from_child(with_too_few_files, "start a process: Too many open files (ulimit -n: 16)");
    if (geteuid() == 0)
        expect_from_child(with_too_few_processes,
                          "start a process: the limit of this user's processes and threads "
                          "(ulimit -u), 0, is reached");
    else
        test_skip("needs root: the limit of processes");
    spawner_free(g_spawner);
}
END_TEST

static char g_pids_dir[600];

static void with_a_full_cgroup(char *out, size_t cap)
{
    char procs[640];
    snprintf(procs, sizeof(procs), "%s/cgroup.procs", g_pids_dir);
    _cleanup_fd_ int fd = open(procs, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || fd_write_all(fd, "0", 1) < 0)
        snprintf(out, cap, "cannot enter %s", g_pids_dir);
    else
        spawn_and_say(out, cap);
}

START_TEST(a_full_cgroup_is_named)
{
    char own[512], path[640];
    if (!cgroup_own("pids", own, sizeof(own), NULL)) {
        test_skip("no cgroup v1 hierarchy of pids");
        return;
    }
    snprintf(g_pids_dir, sizeof(g_pids_dir), "%s/dlaunch-test.%d", own, (int)getpid());
    if (mkdir(g_pids_dir, 0755) < 0) {
        test_skip("cannot make %s", g_pids_dir);
        return;
    }
    snprintf(path, sizeof(path), "%s/pids.max", g_pids_dir);
    write_file(path, "1");
    new_spawner(_i);
    char want[700];
    snprintf(want, sizeof(want), "start a process: the limit pids.max 1 in %s is reached",
             g_pids_dir);
    expect_from_child(with_a_full_cgroup, want);
    rmdir(g_pids_dir);
    spawner_free(g_spawner);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("spawn");
    TCase *tc = test_case(s, "exits", 120);
    tcase_add_loop_test(tc, every_exit_code, 0, 2);
    tcase_add_loop_test(tc, every_signal_right_after_the_spawn, 0, 2);
    tcase_add_loop_test(tc, a_signal_is_never_lost, 0, 2);
    tcase_add_loop_test(tc, many_under_way_at_once, 0, 2);
    tcase_add_loop_test(tc, a_signal_before_the_program_runs_is_not_lost, 0, 2);
    tcase_add_loop_test(tc, too_many_descriptors_to_keep, 0, 2);
    tcase_add_loop_test(tc, nothing_blocked_and_only_the_ignored_of_the_start_ignored, 0, 2);
    tc = test_case(s, "descriptors", 60);
    tcase_add_loop_test(tc, only_its_stdio_and_the_kept_descriptors, 0, 2);
    tcase_add_loop_test(tc, stdio_in_any_order, 0, 2);
    tcase_add_loop_test(tc, stdio_that_is_not_there, 0, 2);
    tc = test_case(s, "surroundings", 60);
    tcase_add_loop_test(tc, a_process_group_of_its_own, 0, 2);
    tcase_add_loop_test(tc, it_dies_with_its_parent, 0, 2);
    tcase_add_loop_test(tc, in_a_directory, 0, 2);
    tcase_add_loop_test(tc, on_its_cpus, 0, 2);
    tcase_add_loop_test(tc, the_soft_limit_of_files_is_the_first_one, 0, 2);
    tcase_add_test(tc, in_a_cgroup);
    tc = test_case(s, "limits", 60);
    tcase_add_loop_test(tc, a_failure_belongs_to_its_process, 0, 2);
    tcase_add_loop_test(tc, the_limit_that_was_hit_is_named, 0, 2);
    tcase_add_loop_test(tc, a_full_cgroup_is_named, 0, 2);
    return s;
}
TEST_MAIN(suite)
