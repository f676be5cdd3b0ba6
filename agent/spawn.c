/* Measured with 128 workers that exit at once: the vfork way costs as much as posix_spawn, fork
 * with the agent's few megabytes 1.3 to 1.6 times as much, and after fork a signal to the new
 * worker's group can come before the group exists.
 *
 * The child shares our memory while we wait for it. So it must not return, must not allocate, and
 * must not run instrumented code or libc functions that a sanitizer intercepts: system calls only.
 */
#include "agent/spawn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "core/fd.h"
#include "core/mem.h"

#define STACK_BYTES     16384
#define NSIGNALS        64
#define SIGNAL_BIT(sig) (UINT64_C(1) << ((sig)-1)) /* the kernel's layout of a signal set */

#if defined(__clang__)
#define IN_THE_CHILD __attribute__((no_sanitize("address", "thread", "undefined"), noinline))
#else
#define IN_THE_CHILD \
    __attribute__((no_sanitize_address, no_sanitize_thread, no_sanitize_undefined, noinline))
#endif

bool spawn_as_on_old_kernel;

/* -------------------------------------------------------------- what dlaunch was started with */

static struct {
    bool known;
    struct rlimit nofile;
    uint64_t ignored;
} g_start;

void spawn_remember(void)
{
    if (g_start.known)
        return;
    g_start.known = true;
    getrlimit(RLIMIT_NOFILE, &g_start.nofile);
    for (int sig = 1; sig <= NSIGNALS; sig++) {
        struct sigaction sa;
        /* Python, among others, starts its children with SIGPIPE ignored: nobody wants that. */
        if (sig != SIGPIPE && sig != SIGCHLD && sigaction(sig, NULL, &sa) == 0 &&
            sa.sa_handler == SIG_IGN)
            g_start.ignored |= SIGNAL_BIT(sig);
    }
}

bool spawn_was_ignored(int sig)
{
    return g_start.ignored & SIGNAL_BIT(sig);
}

/* ----------------------------------------------------------------------------------- the child */

enum stage {
    STAGE_DONE,
    STAGE_PARENT,
    STAGE_CPUS,
    STAGE_STDIN,
    STAGE_STDOUT,
    STAGE_STDERR,
    STAGE_KEEP,
    STAGE_CHDIR,
    STAGE_EXEC,
};

/* Shared by parent and child: one waits while the other works on it. */
struct birth {
    const struct spawn_request *req;
    pid_t parent;
    bool close_range;
    int stdio[3];
    volatile enum stage failed; /* written by the child */
    volatile int errnum;
    volatile int detail;
};

/* A system call's result: the value, or -errno. */
#define SYS(...) (syscall(__VA_ARGS__) < 0 ? -errno : 0)

IN_THE_CHILD static void give_up(struct birth *b, enum stage stage, int neg_errno)
{
    b->errnum = -neg_errno;
    b->failed = stage;
    int code = stage < STAGE_EXEC ? 125 : neg_errno == -ENOENT || neg_errno == -ENOTDIR ? 127 : 126;
    for (;;)
        syscall(SYS_exit_group, code);
}

IN_THE_CHILD static void reset_signals(void)
{
    /* What the kernel takes; the C library's sigaction() refuses 32 and 33. */
    struct {
        uintptr_t handler;
        unsigned long flags;
        uintptr_t restorer;
        uint64_t mask;
    } sa = {0, 0, 0, 0};
    for (int sig = 1; sig <= NSIGNALS; sig++) {
        sa.handler = (uintptr_t)(g_start.ignored & SIGNAL_BIT(sig) ? SIG_IGN : SIG_DFL);
        syscall(SYS_rt_sigaction, sig, &sa, NULL, sizeof(uint64_t));
    }
}

/* The sources may be 0, 1 and 2 in any order: they are first moved out of each other's way. */
IN_THE_CHILD static void connect_stdio(struct birth *b)
{
    for (int i = 0; i < 3; i++) {
        if (b->stdio[i] < 3 && b->stdio[i] != i) {
            long fd = syscall(SYS_fcntl, b->stdio[i], F_DUPFD_CLOEXEC, 3);
            if (fd < 0)
                give_up(b, STAGE_STDIN + i, -errno);
            b->stdio[i] = (int)fd;
        }
    }
    for (int i = 0; i < 3; i++) {
        int rc =
            b->stdio[i] == i ? SYS(SYS_fcntl, i, F_SETFD, 0) : SYS(SYS_dup3, b->stdio[i], i, 0);
        if (rc < 0)
            give_up(b, STAGE_STDIN + i, rc);
    }
}

IN_THE_CHILD static int child_main(void *arg)
{
    struct birth *b = arg;
    const struct spawn_request *req = b->req;
    int rc;

    syscall(SYS_setsid);
    /* The parent may have died before the request to be killed with it: then nobody would. */
    syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (syscall(SYS_getppid) != b->parent)
        give_up(b, STAGE_PARENT, -ESRCH);
    struct {
        uint64_t soft, hard;
    } nofile = {g_start.nofile.rlim_cur, g_start.nofile.rlim_max};
    syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &nofile, NULL);
    if (req->cpus && (rc = SYS(SYS_sched_setaffinity, 0, req->cpus_size, req->cpus)) < 0)
        give_up(b, STAGE_CPUS, rc);
    reset_signals();
    connect_stdio(b);
    if (b->close_range)
        syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC);
    for (size_t i = 0; i < req->nkeep; i++) {
        if ((rc = SYS(SYS_fcntl, req->keep[i], F_SETFD, 0)) < 0) {
            b->detail = req->keep[i];
            give_up(b, STAGE_KEEP, rc);
        }
    }
    if (req->cwd && (rc = SYS(SYS_chdir, req->cwd)) < 0)
        give_up(b, STAGE_CHDIR, rc);
    uint64_t none = 0;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof(none));
    give_up(b, STAGE_EXEC, SYS(SYS_execve, req->path, req->argv, req->envp));
    return 0;
}

/* ---------------------------------------------------------------------------------- the parent */

struct failure {
    struct failure *next;
    pid_t pid;
    int exit_code;
    struct err err;
};

struct spawner {
    struct failure *failures;
    bool close_range;
    bool clone3; /* false: this kernel, or what filters its calls, has none */
    bool cgroup; /* false: starting in a cgroup has failed once */
    char stack[STACK_BYTES] __attribute__((aligned(16)));
};

/* For kernels before 5.11, once: what dlaunch was started with is marked here instead of in each
 * child. All that we open ourselves is marked when it is opened. */
static void mark_inherited_cloexec(void)
{
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        int fd = atoi(e->d_name);
        if (fd > 2)
            fd_set_cloexec(fd, true);
    }
    closedir(d);
}

int spawner_new(struct spawner **out, struct err *e)
{
    (void)e;
    spawn_remember();
    struct spawner *s = xmalloc(sizeof(*s)); /* the stack stays untouched until it is used */
    s->failures = NULL;
    s->cgroup = true;
    s->clone3 = !spawn_as_on_old_kernel;
    s->close_range =
        !spawn_as_on_old_kernel && syscall(SYS_close_range, ~0u, ~0u, CLOSE_RANGE_CLOEXEC) == 0;
    if (!s->close_range)
        mark_inherited_cloexec();
    *out = s;
    return 0;
}

void spawner_free(struct spawner *s)
{
    if (!s)
        return;
    while (s->failures) {
        struct failure *f = s->failures;
        s->failures = f->next;
        free(f);
    }
    free(s);
}

/* clone3() with a stack needs a few lines of assembly, for the child must not return into the
 * parent's frame. It buys CLONE_INTO_CGROUP: moving a process into a cgroup afterwards waits for
 * all CPUs to pass a quiet point, up to 35 ms where this was measured, against nothing. */
#if defined(__x86_64__)
IN_THE_CHILD static long clone3_onto_stack(struct clone_args *args, size_t size, int (*fn)(void *),
                                           void *arg)
{
    long ret;
    register int (*fn_in_r8)(void *) __asm__("r8") = fn;
    register void *arg_in_r9 __asm__("r9") = arg;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %[arg], %%rdi\n\t"
                     "call *%[fn]\n\t"
                     "ud2\n"
                     "1:"
                     : "=a"(ret)
                     : "0"((long)SYS_clone3), "D"(args),
                       "S"(size), [fn] "r"(fn_in_r8), [arg] "r"(arg_in_r9)
                     : "rcx", "r11", "memory", "cc");
    if (ret >= 0)
        return ret;
    errno = (int)-ret;
    return -1;
}
#else
static long clone3_onto_stack(struct clone_args *args, size_t size, int (*fn)(void *), void *arg)
{
    (void)args, (void)size, (void)fn, (void)arg;
    errno = ENOSYS;
    return -1;
}
#endif

static pid_t start(struct spawner *s, struct birth *b, int *pidfd)
{
    int cgroup = s->cgroup ? b->req->cgroup_fd : -1;
    while (s->clone3) {
        struct clone_args args = {
            .flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | (cgroup >= 0 ? CLONE_INTO_CGROUP : 0),
            .pidfd = (uintptr_t)pidfd,
            .exit_signal = SIGCHLD,
            .stack = (uintptr_t)s->stack,
            .stack_size = sizeof(s->stack),
            .cgroup = (uint64_t)(cgroup >= 0 ? cgroup : 0),
        };
        long pid = clone3_onto_stack(&args, sizeof(args), child_main, b);
        if (pid >= 0 || errno == EAGAIN || errno == ENOMEM || errno == EMFILE || errno == ENFILE)
            return (pid_t)pid;
        if (cgroup >= 0) { /* gone, not allowed, or not known here: the sweep does without */
            s->cgroup = false;
            cgroup = -1;
        } else {
            s->clone3 = false;
        }
    }
    return clone(child_main, s->stack + sizeof(s->stack),
                 CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, b, pidfd);
}

/* Whether a cgroup at or above ours is full: "the limit pids.max 512 in /x is reached". */
static bool find_full_cgroup(const char *controller, char *out, size_t cap)
{
    char dir[512], path[560], text[32];
    size_t top;
    if (!cgroup_own(controller, dir, sizeof(dir), &top))
        return false;
    for (;; *strrchr(dir, '/') = '\0') {
        snprintf(path, sizeof(path), "%s/pids.max", dir);
        if (fd_read_file(AT_FDCWD, path, text, sizeof(text)) > 0 && *text != 'm') {
            long max = atol(text);
            snprintf(path, sizeof(path), "%s/pids.current", dir);
            if (fd_read_file(AT_FDCWD, path, text, sizeof(text)) > 0 && atol(text) >= max) {
                snprintf(out, cap, "the limit pids.max %ld in %s is reached", max, dir);
                return true;
            }
        }
        if (strlen(dir) <= top)
            return false;
    }
}

static int explain_no_process(int errnum, struct err *e)
{
    char full[640];
    struct rlimit r;
    if (errnum == EMFILE && getrlimit(RLIMIT_NOFILE, &r) == 0)
        return err_sys(e, errnum, "start a process (limit of open files: %llu)",
                       (unsigned long long)r.rlim_cur);
    if (errnum == EAGAIN) {
        if (find_full_cgroup(NULL, full, sizeof(full)) ||
            find_full_cgroup("pids", full, sizeof(full)))
            return err_set(e, -errnum, "start a process: %s", full);
        if (getrlimit(RLIMIT_NPROC, &r) == 0 && r.rlim_cur != RLIM_INFINITY && geteuid() != 0)
            return err_set(e, -errnum,
                           "start a process: the limit of this user's processes and threads "
                           "(ulimit -u), %llu, is reached",
                           (unsigned long long)r.rlim_cur);
        return err_set(e, -errnum,
                       "start a process: a limit of this host is reached (kernel.threads-max, "
                       "kernel.pid_max)");
    }
    return err_sys(e, errnum, "start a process");
}

static struct failure *take_failure(struct spawner *s, pid_t pid)
{
    for (struct failure **f = &s->failures, *found; (found = *f); f = &found->next) {
        if (found->pid == pid) {
            *f = found->next;
            return found;
        }
    }
    return NULL;
}

static void explain_failure(const struct birth *b, struct failure *f)
{
    static const char *const stream[] = {"input", "output", "error"};
    const struct spawn_request *req = b->req;
    f->exit_code = 125;
    switch (b->failed) {
    case STAGE_CPUS:
        err_sys(&f->err, b->errnum, "bind the worker to its CPUs");
        break;
    case STAGE_STDIN:
    case STAGE_STDOUT:
    case STAGE_STDERR:
        err_sys(&f->err, b->errnum, "connect the worker's standard %s (descriptor %d)",
                stream[b->failed - STAGE_STDIN], req->stdio[b->failed - STAGE_STDIN]);
        break;
    case STAGE_KEEP:
        err_sys(&f->err, b->errnum, "hand descriptor %d down to the worker", b->detail);
        break;
    case STAGE_CHDIR:
        err_sys(&f->err, b->errnum, "chdir %s", req->cwd);
        break;
    case STAGE_EXEC:
        f->exit_code = exec_why(req->path, req->argv, req->envp, req->cwd, b->errnum, &f->err);
        break;
    default: /* STAGE_PARENT: we are not there to read it */
        break;
    }
}

int spawn(struct spawner *s, const struct spawn_request *req, pid_t *pid, int *pidfd, struct err *e)
{
    struct birth b = {
        .req = req,
        .parent = getpid(),
        .close_range = s->close_range,
        .stdio = {req->stdio[0], req->stdio[1], req->stdio[2]},
    };
    uint64_t all = ~UINT64_C(0), old;
    *pidfd = -1;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, sizeof(all));
    pid_t child = start(s, &b, pidfd);
    int errnum = errno;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, sizeof(old));
    if (child < 0)
        return explain_no_process(errnum, e);
    *pid = child;
    if (s->failures) /* one of an earlier process with this pid that nobody asked for */
        free(take_failure(s, child));
    if (b.failed != STAGE_DONE) {
        struct failure *f = xcalloc(1, sizeof(*f));
        f->pid = child;
        explain_failure(&b, f);
        f->next = s->failures;
        s->failures = f;
    }
    return 0;
}

bool spawn_failure(struct spawner *s, pid_t pid, int *exit_code, struct err *e)
{
    struct failure *f = take_failure(s, pid);
    if (!f)
        return false;
    *exit_code = f->exit_code;
    if (e)
        *e = f->err;
    free(f);
    return true;
}
