/* Only children of this process are signalled by pid: a child keeps its pid until it is reaped. For
 * a deeper descendant a pidfd is opened first and its parent checked afterwards, so that a signal
 * never reaches a process which got the pid meanwhile. No function here allocates memory, because
 * the guardian must work when memory is short. */
#include "agent/process/sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"

#define DEPTH_MAX  64        /* deeper descendants become our children as their parents die */
#define DESCEND_NS 20000000u /* after this time a child that is not dead counts as hanging */
#define NAP_MIN_NS 200000u   /* doubled while no process dies, up to NAP_MAX_NS */
#define NAP_MAX_NS 20000000u

bool sweep_without_children_files;

/* -------------------------------------------------------------------------------------- listing */

struct visitor {
    void (*visit)(struct visitor *v, pid_t child);
};

/* Pids in decimal with blanks between them, as the children files have them. */
static void visit_pids_in(int fd, struct visitor *v)
{
    char chunk[2048];
    pid_t pid = 0;
    for (ssize_t n; (n = read(fd, chunk, sizeof(chunk))) > 0;) {
        for (ssize_t i = 0; i < n; i++) {
            if (chunk[i] >= '0' && chunk[i] <= '9') {
                pid = pid * 10 + (chunk[i] - '0');
            } else if (pid) {
                v->visit(v, pid);
                pid = 0;
            }
        }
    }
}

bool sweep_read_stat(pid_t pid, char *state, pid_t *parent)
{
    char path[64], stat[2048];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (fd_read_file(AT_FDCWD, path, stat, sizeof(stat)) < 0)
        return false;
    char *end_of_name = strrchr(stat, ')'); /* the name may contain any character */
    int ppid;
    if (!end_of_name || sscanf(end_of_name + 1, " %c %d", state, &ppid) != 2)
        return false;
    *parent = ppid;
    return true;
}

static bool scan_for_children(pid_t parent, struct visitor *v)
{
    DIR *d = opendir("/proc");
    if (!d)
        return false;
    for (struct dirent *e; (e = readdir(d));) {
        char state;
        pid_t pid = (pid_t)atoi(e->d_name), its_parent;
        if (pid > 0 && sweep_read_stat(pid, &state, &its_parent) && its_parent == parent)
            v->visit(v, pid);
    }
    closedir(d);
    return true;
}

static int open_children_file(pid_t pid, const char *tid)
{
    char path[96];
    if (sweep_without_children_files)
        return -1;
    snprintf(path, sizeof(path), "/proc/%d/task/%.20s/children", (int)pid, tid);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* The children of every thread of a process. */
static void each_child(pid_t parent, struct visitor *v)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/task", (int)parent);
    DIR *tasks = opendir(path);
    if (!tasks)
        return;
    bool any_file = false;
    for (struct dirent *e; (e = readdir(tasks));) {
        if (e->d_name[0] == '.')
            continue;
        _cleanup_fd_ int fd = open_children_file(parent, e->d_name);
        if (fd < 0)
            continue;
        any_file = true;
        visit_pids_in(fd, v);
    }
    closedir(tasks);
    if (!any_file)
        scan_for_children(parent, v);
}

/* The children of the main thread, which outlives the other threads and inherits their children.
 * False: they cannot be listed now. */
static bool each_own_child(struct visitor *v)
{
    char tid[16];
    snprintf(tid, sizeof(tid), "%d", (int)getpid());
    _cleanup_fd_ int fd = open_children_file(getpid(), tid);
    if (fd < 0)
        return scan_for_children(getpid(), v);
    visit_pids_in(fd, v);
    return true;
}

struct collector {
    struct visitor v;
    pid_t *out;
    int max, n;
};

static void collect(struct visitor *v, pid_t child)
{
    struct collector *c = (struct collector *)v;
    if (c->n < c->max)
        c->out[c->n] = child;
    c->n++;
}

int sweep_children(pid_t *out, int max)
{
    struct collector c = {.v = {collect}, .out = out, .max = max};
    each_own_child(&c.v);
    return c.n;
}

int sweep_children_of(pid_t parent, pid_t *out, int max)
{
    struct collector c = {.v = {collect}, .out = out, .max = max};
    each_child(parent, &c.v);
    return c.n;
}

/* -------------------------------------------------------------------------------------- killing */

struct step {
    struct visitor v;
    struct sweep *sweep;
    const pid_t *keep;
    size_t n;
    bool descend;
    int left;
};

static bool is_kept(const struct step *s, pid_t pid)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->keep[i] == pid)
            return true;
    }
    return false;
}

static void count_reaped(struct sweep *s, const siginfo_t *si)
{
    s->killed += si->si_code != CLD_EXITED && si->si_status == SIGKILL;
}

struct descent {
    struct visitor v;
    pid_t parent;
    int depth;
};

static void kill_descendant(struct visitor *v, pid_t pid)
{
    struct descent *d = (struct descent *)v;
    char state;
    pid_t parent;
    _cleanup_fd_ int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (!sweep_read_stat(pid, &state, &parent) || (parent != d->parent && parent != getpid()))
        return;
    if (pidfd >= 0)
        syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
    else if (errno == ENOSYS)
        kill(pid, SIGKILL);
    if (d->depth < DEPTH_MAX) {
        struct descent below = {.v = {kill_descendant}, .parent = pid, .depth = d->depth + 1};
        each_child(pid, &below.v);
    }
}

static void kill_child(struct visitor *v, pid_t pid)
{
    struct step *s = (struct step *)v;
    if (is_kept(s, pid))
        return;
    kill(pid, SIGKILL);
    if (s->descend) {
        struct descent below = {.v = {kill_descendant}, .parent = pid};
        each_child(pid, &below.v);
    }
}

static void reap_child(struct visitor *v, pid_t pid)
{
    struct step *s = (struct step *)v;
    siginfo_t si = {.si_pid = 0};
    if (is_kept(s, pid) || waitid(P_PID, (id_t)pid, &si, WEXITED | WNOHANG) < 0)
        return;
    if (si.si_pid)
        count_reaped(s->sweep, &si);
}

static void count_child(struct visitor *v, pid_t pid)
{
    struct step *s = (struct step *)v;
    s->left += !is_kept(s, pid);
}

/* Reaps every dead child. False: no child is left. */
static bool reap_any(struct sweep *s)
{
    siginfo_t si;
    do {
        si.si_pid = 0;
        if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG) < 0)
            return errno != ECHILD;
        if (si.si_pid)
            count_reaped(s, &si);
    } while (si.si_pid);
    return true;
}

void sweep_init(struct sweep *s)
{
    *s = (struct sweep){.started_ns = mono_ns()};
}

int sweep_step(struct sweep *s, const pid_t *keep, size_t n)
{
    struct step step = {
        .sweep = s, .keep = keep, .n = n, .descend = mono_ns() - s->started_ns > DESCEND_NS};
    if (n == 0 && !reap_any(s))
        return 0;
    step.v.visit = kill_child;
    each_own_child(&step.v);
    if (n == 0) {
        if (!reap_any(s))
            return 0;
    } else {
        step.v.visit = reap_child;
        each_own_child(&step.v);
    }
    /* Counts in a listing of its own: a listing skips entries while children are reaped. */
    step.v.visit = count_child;
    bool listed = each_own_child(&step.v);
    bool surely_some = n == 0 || !listed; /* waitid() found a child, even if the listing has none */
    return step.left == 0 && surely_some ? 1 : step.left;
}

int sweep_run(struct sweep *s, const pid_t *keep, size_t n, double seconds)
{
    uint64_t end = mono_ns() + (uint64_t)(seconds * 1e9);
    sigset_t chld, old;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &chld, &old);
    int left;
    long nap = NAP_MIN_NS;
    while ((left = sweep_step(s, keep, n)) > 0 && mono_ns() < end) {
        struct timespec t = {.tv_nsec = nap};
        if (sigtimedwait(&chld, NULL, &t) == SIGCHLD)
            nap = NAP_MIN_NS;
        else if (nap < (long)NAP_MAX_NS)
            nap *= 2;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return left;
}

/* ----------------------------------------------------------------------------------- describing */

static const char *state_in_words(char state)
{
    switch (state) {
    case 'D':
        return "D (uninterruptible sleep)";
    case 'Z':
        return "Z (dead, waiting to be reaped)";
    case 'T':
        return "T (stopped)";
    case 't':
        return "t (held by a debugger)";
    case 'R':
        return "R (running)";
    case 'S':
        return "S (sleeping)";
    case 'I':
        return "I (idle)";
    default:
        return "unknown to dlaunch";
    }
}

const char *sweep_describe(pid_t pid, char *out, size_t cap)
{
    char path[64], text[64], name[64] = "?", where[128] = "", state;
    pid_t parent;
    snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    ssize_t len = fd_read_file(AT_FDCWD, path, text, sizeof(text));
    if (len > 0) {
        text[strcspn(text, "\n")] = '\0';
        log_escape(name, sizeof(name), text, strlen(text), 0);
    }
    if (!sweep_read_stat(pid, &state, &parent)) {
        snprintf(out, cap, "pid %d (%s) is gone", (int)pid, name);
        return out;
    }
    snprintf(path, sizeof(path), "/proc/%d/wchan", (int)pid);
    len = fd_read_file(AT_FDCWD, path, where, sizeof(where));
    bool known = len > 0 && strcmp(where, "0") != 0;
    snprintf(out, cap, "pid %d (%s) in state %s%s%s", (int)pid, name, state_in_words(state),
             known ? " in " : "", known ? where : "");
    return out;
}
