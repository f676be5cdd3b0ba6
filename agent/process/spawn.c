/* The child shares the agent's memory and, where several children are starting, its thread's errno,
 * while the agent goes on. So the child must not return, must not allocate, and must not run
 * instrumented code or functions of the C library: bare system calls only.
 *
 * Measured with 128 workers that exit at once, on 2 CPUs: fork with the agent's few megabytes costs
 * 1.3 to 1.6 times as much. Waiting for each exec in turn (vfork) costs the same on an idle
 * machine; on a busy one every wait costs a time slice, and the job starts 3 times as late. */
#include "agent/process/spawn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/exec_why.h"
#include "agent/process/cgroup.h"
#include "core/fd.h"
#include "core/mem.h"

#define STACK_BYTES     16384
#define BIRTHS          16 /* children that are started at the same time */
#define SETTLE_MS       50 /* longest wait for a child that does not come to its program */
#define NSIGNALS        64
#define SIGNAL_BIT(sig) (UINT64_C(1) << ((sig)-1)) /* the kernel's layout of a signal set */

#if defined(__clang__)
#define IN_THE_CHILD __attribute__((no_sanitize("address", "thread", "undefined"), noinline))
#else
#define IN_THE_CHILD \
    __attribute__((no_sanitize_address, no_sanitize_thread, no_sanitize_undefined, noinline))
#endif

bool spawn_as_on_old_kernel;

/* ---------------------------------------------------------------- what dlaunch was started with */

static struct {
    bool known;
    struct rlimit nofile;
    uint64_t ignored;
} g_start;

/* The kernel's struct sigaction. The C library's sigaction() refuses 32 and 33. */
struct disposition {
    uintptr_t handler;
    unsigned long flags;
    uintptr_t restorer;
    uint64_t mask;
};

static uint64_t ignored_now(void)
{
    uint64_t ignored = 0;
    for (int sig = 1; sig <= NSIGNALS; sig++) {
        struct disposition d;
        if (syscall(SYS_rt_sigaction, sig, NULL, &d, sizeof(d.mask)) == 0 &&
            d.handler == (uintptr_t)SIG_IGN)
            ignored |= SIGNAL_BIT(sig);
    }
    return ignored;
}

void spawn_remember(void)
{
    if (g_start.known)
        return;
    g_start.known = true;
    getrlimit(RLIMIT_NOFILE, &g_start.nofile);
    /* Python, among others, starts its children with SIGPIPE ignored, others with the two signals
     * that the C library reserves: no worker should inherit that. */
    g_start.ignored = ignored_now() & ~(SIGNAL_BIT(SIGPIPE) | SIGNAL_BIT(SIGCHLD) | SIGNAL_BIT(32) |
                                        SIGNAL_BIT(33));
}

bool spawn_was_ignored(int sig)
{
    return g_start.ignored & SIGNAL_BIT(sig);
}

/* ------------------------------------------------------------------------------------ the child */

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

/* Shared by parent and child. */
struct birth {
    struct birth *next; /* of the spawner's births that are slow, or free */
    struct spawn_request req;
    int keep[SPAWN_KEEP_MAX];
    pid_t parent;
    bool close_range;
    uint64_t reset; /* signals whose disposition is to be set */
    int stdio[3];
    enum stage failed; /* written by the child */
    int errnum;
    int detail;

    pid_t pid;             /* 0: free */
    atomic_uint under_way; /* the kernel clears this and wakes the parent when the child no longer
                              uses the parent's memory */
    char stack[STACK_BYTES] __attribute__((aligned(16)));
};

/* A system call's result: the value, or -errno. */
#if defined(__x86_64__)
IN_THE_CHILD static long call(long number, long a, long b, long c, long d, long e)
{
    long ret;
    register long d_in_r10 __asm__("r10") = d;
    register long e_in_r8 __asm__("r8") = e;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(d_in_r10), "r"(e_in_r8)
                     : "rcx", "r11", "memory");
    return ret;
}
#define BARE_CALLS 1
#elif defined(__aarch64__)
IN_THE_CHILD static long call(long number, long a, long b, long c, long d, long e)
{
    register long number_in_x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc #0"
                     : "+r"(x0)
                     : "r"(number_in_x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
                     : "memory", "cc");
    return x0;
}
#define BARE_CALLS 1
#else
#define BARE_CALLS 0
IN_THE_CHILD static long call(long number, long a, long b, long c, long d, long e)
{
    long ret = syscall(number, a, b, c, d, e); /* the parent waits: see spawn_start() */
    return ret < 0 ? -errno : ret;
}
#endif
#define CALL(...) CALL_(__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define CALL_(number, a, b, c, d, e, ...) \
    call(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e))

IN_THE_CHILD static void child_give_up(struct birth *b, enum stage stage, int neg_errno)
{
    b->errnum = -neg_errno;
    b->failed = stage;
    int code = stage < STAGE_EXEC ? 125 : neg_errno == -ENOENT || neg_errno == -ENOTDIR ? 127 : 126;
    for (;;)
        CALL(SYS_exit_group, code);
}

/* The worker ignores the signals that were ignored when dlaunch was started. Handlers need no reset
 * where the kernel clears them (CLONE_CLEAR_SIGHAND). */
IN_THE_CHILD static void reset_signals(uint64_t which)
{
    struct disposition d = {0, 0, 0, 0};
    for (; which; which &= which - 1) {
        int sig = __builtin_ctzll(which) + 1;
        d.handler = (uintptr_t)(g_start.ignored & SIGNAL_BIT(sig) ? SIG_IGN : SIG_DFL);
        CALL(SYS_rt_sigaction, sig, &d, NULL, sizeof(d.mask));
    }
}

/* The sources may be 0, 1 and 2 in any order: they are first moved out of each other's way. */
IN_THE_CHILD static void connect_stdio(struct birth *b)
{
    for (int i = 0; i < 3; i++) {
        if (b->stdio[i] < 3 && b->stdio[i] != i) {
            long fd = CALL(SYS_fcntl, b->stdio[i], F_DUPFD_CLOEXEC, 3);
            if (fd < 0)
                child_give_up(b, STAGE_STDIN + i, (int)fd);
            b->stdio[i] = (int)fd;
        }
    }
    for (int i = 0; i < 3; i++) {
        long rc =
            b->stdio[i] == i ? CALL(SYS_fcntl, i, F_SETFD, 0) : CALL(SYS_dup3, b->stdio[i], i, 0);
        if (rc < 0)
            child_give_up(b, STAGE_STDIN + i, (int)rc);
    }
}

IN_THE_CHILD static int child_main(void *arg)
{
    struct birth *b = arg;
    const struct spawn_request *req = &b->req;
    int rc;

    /* Where the kernel shares out the CPUs by session (autogroup), a rank that yields would not
     * yield to ranks in other sessions: no session of its own, unlike torchrun's workers. Ranks
     * that spin and never yield get a share of the CPUs each by one, beside other programs. */
    if (req->session)
        CALL(SYS_setsid);
    else
        CALL(SYS_setpgid, 0, 0);
    /* If the parent has died before this request, the signal will never come. */
    CALL(SYS_prctl, PR_SET_PDEATHSIG, req->outlives ? 0 : SIGKILL, 0, 0, 0);
    if (CALL(SYS_getppid) != b->parent)
        child_give_up(b, STAGE_PARENT, -ESRCH);
    /* Where Yama is, the agent's helper may look at this process, which is its sibling. */
    CALL(SYS_prctl, PR_SET_PTRACER, b->parent, 0, 0, 0);
    struct {
        uint64_t soft, hard;
    } nofile = {g_start.nofile.rlim_cur, g_start.nofile.rlim_max};
    CALL(SYS_prlimit64, 0, RLIMIT_NOFILE, &nofile, NULL);
    if (req->cpus && (rc = (int)CALL(SYS_sched_setaffinity, 0, req->cpus_size, req->cpus)) < 0)
        child_give_up(b, STAGE_CPUS, rc);
    reset_signals(b->reset);
    connect_stdio(b);
    if (b->close_range)
        CALL(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC);
    for (size_t i = 0; i < req->nkeep; i++) {
        if ((rc = (int)CALL(SYS_fcntl, b->keep[i], F_SETFD, 0)) < 0) {
            b->detail = b->keep[i];
            child_give_up(b, STAGE_KEEP, rc);
        }
    }
    if (req->cwd && (rc = (int)CALL(SYS_chdir, req->cwd)) < 0)
        child_give_up(b, STAGE_CHDIR, rc);
    uint64_t none = 0;
    CALL(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof(none));
    child_give_up(b, STAGE_EXEC, (int)CALL(SYS_execve, req->path, req->argv, req->envp));
    return 0;
}

/* ----------------------------------------------------------------------------------- the parent */

struct failure {
    struct failure *next;
    pid_t pid;
    int exit_code;
    struct err err;
};

struct spawner {
    struct failure *failures;
    bool close_range;
    bool clone3;      /* false: the kernel or a seccomp filter refuses clone3() */
    bool cgroup;      /* false: starting in a cgroup has failed once */
    bool proc;        /* /proc shows our PID namespace */
    uint64_t ignored; /* the signals that this process ignores */
    unsigned next;    /* index of the oldest birth */
    struct birth *births[BIRTHS];
    struct birth *slow;         /* that were waited for in vain: execve() or chdir() may hang */
    struct birth *free;         /* to be used again */
    struct birth first[BIRTHS]; /* all that are needed unless some are slow */
};

/* For kernels before 5.11: marks the inherited descriptors once, here, instead of in each child.
 * dlaunch marks its own when it opens them. */
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

static bool shows_us(void)
{
    char self[24] = "";
    return readlink("/proc/self", self, sizeof(self) - 1) > 0 && atoi(self) == getpid();
}

int spawner_new(struct spawner **out, struct err *e)
{
    (void)e;
    spawn_remember();
    struct spawner *s =
        xmalloc(sizeof(*s)); /* without zeroing: the stacks stay untouched until they are used */
    s->failures = NULL;
    s->cgroup = true;
    s->proc = shows_us();
    s->ignored = ignored_now();
    s->next = 0;
    s->slow = s->free = NULL;
    for (int i = 0; i < BIRTHS; i++) {
        s->births[i] = &s->first[i];
        s->first[i].pid = 0;
    }
    s->clone3 = !spawn_as_on_old_kernel;
    s->close_range =
        !spawn_as_on_old_kernel && syscall(SYS_close_range, ~0u, ~0u, CLOSE_RANGE_CLOEXEC) == 0;
    if (!s->close_range)
        mark_inherited_cloexec();
    *out = s;
    return 0;
}

static bool is_first(const struct spawner *s, const struct birth *b)
{
    return b >= s->first && b < s->first + BIRTHS;
}

static void free_birth(const struct spawner *s, struct birth *b)
{
    if (!is_first(s, b))
        free(b);
}

void spawner_free(struct spawner *s)
{
    if (!s)
        return;
    spawn_settle(s);
    while (s->failures) {
        struct failure *f = s->failures;
        s->failures = f->next;
        free(f);
    }
    while (s->free) {
        struct birth *b = s->free;
        s->free = b->next;
        free_birth(s, b);
    }
    for (int i = 0; i < BIRTHS; i++)
        free_birth(s, s->births[i]);
    if (!s->slow) /* else its memory is in use by a child */
        free(s);
}

/* clone3() with a stack needs a few lines of assembly, because the child must not return into the
 * parent's frame. It is used for CLONE_INTO_CGROUP: moving a process into a cgroup afterwards waits
 * until all CPUs have passed a quiescent state, up to 35 ms where this was measured; starting it
 * there costs nothing. */
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

/* Starts a child that runs beside the parent or, without clone3(), one for which this call waits.
 */
static pid_t spawn_start(struct spawner *s, struct birth *b, int *pidfd)
{
    int cgroup = s->cgroup ? b->req.cgroup_fd : -1;
    while (s->clone3) {
        struct clone_args args = {
            .flags = CLONE_VM | CLONE_PIDFD | CLONE_CLEAR_SIGHAND | CLONE_CHILD_CLEARTID |
                     (cgroup >= 0 ? CLONE_INTO_CGROUP : 0),
            .pidfd = (uintptr_t)pidfd,
            .child_tid = (uintptr_t)&b->under_way,
            .exit_signal = SIGCHLD,
            .stack = (uintptr_t)b->stack,
            .stack_size = sizeof(b->stack),
            .cgroup = (uint64_t)(cgroup >= 0 ? cgroup : 0),
        };
        atomic_store(&b->under_way, 1);
        b->reset = s->ignored ^ g_start.ignored;
        long pid = clone3_onto_stack(&args, sizeof(args), child_main, b);
        if (pid >= 0)
            return (pid_t)pid;
        atomic_store(&b->under_way, 0);
        if (errno == EAGAIN || errno == ENOMEM || errno == EMFILE || errno == ENFILE)
            return -1;
        if (cgroup >= 0) { /* removed, forbidden, or unknown to this kernel: the sweep works without
                              a cgroup */
            s->cgroup = false;
            cgroup = -1;
        } else {
            s->clone3 = false;
        }
    }
    b->reset = ~UINT64_C(0);
    int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
    char *stack_top = b->stack + sizeof(b->stack);
    pid_t pid = -1;
    if (BARE_CALLS) {
        atomic_store(&b->under_way, 1);
        pid = clone(child_main, stack_top, CLONE_VM | CLONE_CHILD_CLEARTID | CLONE_PIDFD | SIGCHLD,
                    b, pidfd, NULL, &b->under_way);
        if (pid >= 0)
            return pid;
        atomic_store(&b->under_way, 0);
        if (errno != EINVAL)
            return -1;
    }
    pid = clone(child_main, stack_top, flags | CLONE_PIDFD, b, pidfd);
    if (pid < 0 && errno == EINVAL) /* emulated by qemu-user */
        pid = clone(child_main, stack_top, flags, b);
    return pid;
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

int spawn_explain(const char *what, int errnum, struct err *e)
{
    char full[640];
    struct rlimit r;
    if (errnum == EAGAIN) {
        if (find_full_cgroup(NULL, full, sizeof(full)) ||
            find_full_cgroup("pids", full, sizeof(full)))
            return err_set(e, -errnum, "%s: %s", what, full);
        if (getrlimit(RLIMIT_NPROC, &r) == 0 && r.rlim_cur != RLIM_INFINITY && geteuid() != 0)
            return err_set(e, -errnum,
                           "%s: the limit of this user's processes and threads (ulimit -u), %llu, "
                           "is reached",
                           what, (unsigned long long)r.rlim_cur);
        return err_set(e, -errnum,
                       "%s: a limit of this host is reached (kernel.threads-max, kernel.pid_max)",
                       what);
    }
    return err_sys(e, errnum, "%s", what);
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

/* Whether the program may be as it should: what execve() lacks is memory, descriptors, processes,
 * or a file server that answers. */
static bool is_want(int errnum)
{
    static const int wants[] = {EAGAIN, ENOMEM,    ENFILE,    EMFILE,       EIO,
                                ESTALE, ETIMEDOUT, EHOSTDOWN, EHOSTUNREACH, ENOTCONN};
    for (size_t i = 0; i < ARRAY_LEN(wants); i++) {
        if (wants[i] == errnum)
            return true;
    }
    return false;
}

static void explain_failure(const struct birth *b, struct failure *f)
{
    static const char *const stream[] = {"input", "output", "error"};
    const struct spawn_request *req = &b->req;
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
        if (is_want(b->errnum))
            f->exit_code = 125;
        break;
    default: /* STAGE_PARENT: the parent is dead */
        break;
    }
}

static void free_owned(const struct spawn_request *req)
{
    free(req->owned[0]);
    free(req->owned[1]);
}

/* Waits until the child runs its program or has failed, at most for SETTLE_MS. */
static bool spawn_await(struct birth *b)
{
    struct timespec limit = {0, SETTLE_MS * 1000000};
    while (atomic_load(
        &b->under_way)) { /* not a private futex, because the kernel does not wake those */
        if (syscall(SYS_futex, &b->under_way, FUTEX_WAIT, 1, &limit, NULL, 0) < 0 &&
            errno == ETIMEDOUT)
            return !atomic_load(&b->under_way);
    }
    return true;
}

/* The score is raised after execve(): before, the child shares its memory with this process, and
 * with it the score. A slow child may have been reaped meanwhile, and its number may belong to
 * another process. */
static void raise_oom_score(pid_t child)
{
    char path[48], text[24];
    siginfo_t si;
    if (waitid(P_PID, (id_t)child, &si, WEXITED | WNOHANG | WNOWAIT) < 0)
        return;
    snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)child);
    _cleanup_fd_ int fd = open(path, O_RDWR | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (n <= 0)
        return;
    text[n] = '\0';
    int more = atoi(text) + SPAWN_OOM_MORE;
    n = snprintf(text, sizeof(text), "%d", more < 1000 ? more : 1000);
    if (pwrite(fd, text, (size_t)n, 0) < 0)
        return; /* another user's program by its set-user-ID bit */
}

/* The child uses no memory of ours any more. */
static void spawn_end(struct spawner *s, struct birth *b)
{
    if (b->failed == STAGE_DONE && !b->req.vital && s->proc)
        raise_oom_score(b->pid);
    if (b->failed != STAGE_DONE) {
        struct failure *f = xcalloc(1, sizeof(*f));
        f->pid = b->pid;
        explain_failure(b, f);
        f->next = s->failures;
        s->failures = f;
    }
    b->pid = 0;
    free_owned(&b->req);
}

/* Ends the slow births whose child has begun its program or failed. */
static void look_at_slow(struct spawner *s)
{
    for (struct birth **at = &s->slow, *b; (b = *at);) {
        if (atomic_load(&b->under_way)) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        spawn_end(s, b);
        b->next = s->free;
        s->free = b;
    }
}

/* Makes room for a birth. While one is slow, none is waited for: what held it holds the others. */
static struct birth *settle_one(struct spawner *s, unsigned i)
{
    struct birth *b = s->births[i];
    if (!b->pid)
        return b;
    if (s->slow ? !atomic_load(&b->under_way) : spawn_await(b)) {
        spawn_end(s, b);
        return b;
    }
    b->next = s->slow;
    s->slow = b;
    b = s->free ? s->free : xmalloc(sizeof(*b));
    s->free = s->free ? s->free->next : NULL;
    b->pid = 0;
    return s->births[i] = b;
}

bool spawn_settle(struct spawner *s)
{
    look_at_slow(s);
    for (unsigned i = 0; i < BIRTHS; i++)
        settle_one(s, i);
    return !s->slow;
}

int spawn_begin(struct spawner *s, const struct spawn_request *req, pid_t *pid, int *pidfd,
                struct err *e)
{
    look_at_slow(s);
    struct birth *b = settle_one(s, s->next);
    *pidfd = -1;
    if (req->nkeep > SPAWN_KEEP_MAX) {
        free_owned(req);
        return err_set(e, -EINVAL, "start a process: %zu descriptors to hand down are too many",
                       req->nkeep);
    }
    b->req = *req;
    if (req->nkeep)
        memcpy(b->keep, req->keep, req->nkeep * sizeof(*req->keep));
    memcpy(b->stdio, req->stdio, sizeof(b->stdio));
    b->parent = getpid();
    b->close_range = s->close_range;
    b->failed = STAGE_DONE;
    atomic_store(&b->under_way, 0);
    uint64_t all = ~UINT64_C(0), old;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, sizeof(all));
    pid_t child = spawn_start(s, b, pidfd);
    int errnum = errno;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, sizeof(old));
    if (child < 0) {
        free_owned(req);
        return spawn_explain("start a process", errnum, e);
    }
    *pid = b->pid = child;
    s->next = (s->next + 1) % BIRTHS;
    if (s->failures) /* the record of an earlier process with this pid */
        free(take_failure(s, child));
    return 0;
}

static size_t size_of(char *const *strings)
{
    size_t size = sizeof(char *);
    for (; *strings; strings++)
        size += sizeof(char *) + strlen(*strings) + 1;
    return size;
}

/* Copies strings: the array to *at, and them to *text behind all arrays. */
static char *const *copy_strings(char *const *strings, char ***at, char **text)
{
    char **array = *at;
    for (; *strings; strings++) {
        *(*at)++ = strcpy(*text, *strings);
        *text += strlen(*strings) + 1;
    }
    *(*at)++ = NULL;
    return array;
}

static size_t count(char *const *strings)
{
    size_t n = 0;
    while (strings[n])
        n++;
    return n;
}

/* A slow child may use the request when the caller does not have it any more. */
static struct spawn_request copy_request(const struct spawn_request *req)
{
    struct spawn_request own = *req;
    size_t arrays = count(req->argv) + count(req->envp) + 2;
    size_t path = strlen(req->path) + 1, cwd = req->cwd ? strlen(req->cwd) + 1 : 0;
    char **at = xmalloc(size_of(req->argv) + size_of(req->envp) + path + cwd);
    char *text = (char *)(at + arrays);
    own.owned[0] = at;
    own.owned[1] = NULL;
    own.argv = copy_strings(req->argv, &at, &text);
    own.envp = copy_strings(req->envp, &at, &text);
    own.path = memcpy(text, req->path, path);
    if (cwd)
        own.cwd = memcpy(text + path, req->cwd, cwd);
    return own;
}

int spawn(struct spawner *s, const struct spawn_request *req, pid_t *pid, int *pidfd, struct err *e)
{
    const struct spawn_request own = copy_request(req);
    free_owned(req);
    int r = spawn_begin(s, &own, pid, pidfd, e);
    if (r == 0)
        spawn_settle(s);
    return r;
}

bool spawn_failure(struct spawner *s, pid_t pid, int *exit_code, struct err *e)
{
    spawn_settle(s);
    struct failure *f = take_failure(s, pid);
    if (!f)
        return false;
    *exit_code = f->exit_code;
    if (e)
        *e = f->err;
    free(f);
    return true;
}
