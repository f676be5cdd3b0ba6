/* A timer holds its process by a pidfd from the moment it is registered, so a pid that the kernel
 * has given to another process meanwhile is never hit. */
#include "agent/process/file_timer.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/base/fs.h"
#include "agent/base/signals.h"
#include "agent/process/sweep.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"

#define TIMERS_MAX  4096 /* of one node; each holds a descriptor */
#define PARENTS_MAX 64
#define LOOK_MS     1000 /* the wall clock may be set meanwhile */
#define FIFO_PREFIX "watchdog_timer_"

struct timer {
    pid_t pid;
    int pidfd;
    char *scope;
    double end; /* seconds since 1970 */
    int signo;
};

struct file_timer {
    char path[512];
    bool temporary; /* the user gave no path */
    int fd;
    uv_poll_t poll;
    uv_timer_t clock;
    struct node *node;
    bool warned;   /* a refused line was reported; further ones are not */
    size_t used;   /* bytes in `line` */
    bool skipping; /* the rest of a line that was too long */
    char line[PIPE_BUF];
    size_t n;
    struct timer timers[TIMERS_MAX];
};

/* --------------------------------------------------------------------------------------- timers */

static void timer_drop(struct file_timer *t, size_t i)
{
    close_fd(&t->timers[i].pidfd);
    free(t->timers[i].scope);
    t->timers[i] = t->timers[--t->n];
}

/* The process, its parent and so on, up to a child of this process. 0: the process is not a
 * descendant. */
static int parents_of(pid_t pid, pid_t *out)
{
    char state;
    pid_t self = getpid();
    for (int n = 0; n < PARENTS_MAX && pid > 0 && pid != self;) {
        out[n++] = pid;
        if (!sweep_read_stat(pid, &state, &pid))
            return 0;
        if (pid == self)
            return n;
    }
    return 0;
}

/* The process is a worker or a descendant of one. */
static void blame(struct file_timer *t, pid_t child, int signo, const char *text)
{
    char name[24], why[320];
    const char *sent = signal_name(signo, name);
    log_error("%s: sending %s", text, sent);
    snprintf(why, sizeof(why), "%s; dlaunch sent %s", text, sent);
    for (int i = 0; i < t->node->job->nproc; i++) {
        const struct worker *w = &t->node->workers[i];
        if (worker_is_alive(w) && w->pid == child)
            t->node->calls->kill(t->node, i, 0, why);
    }
}

static void expire(struct file_timer *t, size_t i)
{
    struct timer x = t->timers[i];
    pid_t parents[PARENTS_MAX];
    char text[256];
    snprintf(text, sizeof(text), "timer '%.160s' of pid %d expired", x.scope, (int)x.pid);
    if (x.signo <= 0) {
        log_notice("%s; it names no signal", text);
        timer_drop(t, i);
        return;
    }
    int n = parents_of(x.pid, parents);
    if (n > 0 && syscall(SYS_pidfd_send_signal, x.pidfd, 0, NULL, 0) == 0) {
        blame(t, parents[n - 1], x.signo, text);
        syscall(SYS_pidfd_send_signal, x.pidfd, x.signo, NULL, 0);
    }
    for (size_t k = t->n; k-- > 0;) { /* all its timers end with the process */
        if (t->timers[k].pid == x.pid)
            timer_drop(t, k);
    }
}

static void timer_look(struct file_timer *t);

static void on_clock(uv_timer_t *clock)
{
    timer_look(container_of(clock, struct file_timer, clock));
}

static void timer_look(struct file_timer *t)
{
    double now = (double)wall_ns() / 1e9;
    for (;;) { /* the earliest first, whose signal counts */
        size_t first = 0;
        for (size_t i = 1; i < t->n; i++) {
            if (t->timers[i].end < t->timers[first].end)
                first = i;
        }
        if (t->n == 0) {
            uv_timer_stop(&t->clock);
            return;
        }
        double ms = ceil((t->timers[first].end - now) * 1000);
        if (ms > 0) {
            uv_timer_start(&t->clock, on_clock, ms < LOOK_MS ? (uint64_t)ms : LOOK_MS, 0);
            return;
        }
        expire(t, first);
    }
}

/* ---------------------------------------------------------------------------------------- lines */

static void timer_refuse(struct file_timer *t, const char *why)
{
    if (!t->warned)
        log_warn("%s: %s; ignored, as are further such lines", t->path, why);
    t->warned = true;
}

static void timer_set(struct file_timer *t, const struct timer *new)
{
    size_t i = 0;
    pid_t parents[PARENTS_MAX];
    while (i < t->n &&
           (t->timers[i].pid != new->pid || strcmp(t->timers[i].scope, new->scope) != 0))
        i++;
    if (new->end < 0) {
        if (i < t->n)
            timer_drop(t, i);
        return;
    }
    if (i == t->n) {
        if (t->n == TIMERS_MAX) {
            timer_refuse(t, "too many timers");
            return;
        }
        _cleanup_fd_ int pidfd = (int)syscall(SYS_pidfd_open, new->pid, 0);
        if (pidfd < 0 || parents_of(new->pid, parents) == 0) {
            timer_refuse(t,
                         "a timer of a process that is not a running one of this node's workers");
            return;
        }
        t->timers[t->n++] =
            (struct timer){.pid = new->pid, .pidfd = take_fd(&pidfd), .scope = xstrdup(new->scope)};
    }
    t->timers[i].end = new->end;
    t->timers[i].signo = new->signo;
}

static void take_line(struct file_timer *t, const char *line, size_t len)
{
    int pid = 0, signo = 0;
    const char *scope = NULL;
    double end = 0;
    json_t *j = json_loadb(line, len, 0, NULL);
    if (j &&
        json_unpack(j, "{s:i, s:s, s:F, s:i}", "pid", &pid, "scope_id", &scope, "expiration_time",
                    &end, "signal", &signo) == 0 &&
        pid > 0 && signo < NSIG)
        timer_set(t,
                  &(struct timer){.pid = pid, .scope = (char *)scope, .end = end, .signo = signo});
    else
        timer_refuse(t, "not a line of a timer");
    json_decref(j);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct file_timer *t = container_of(poll, struct file_timer, poll);
    (void)status, (void)events;
    for (ssize_t n; (n = read(t->fd, t->line + t->used, sizeof(t->line) - t->used)) > 0;) {
        char *from = t->line, *end = t->line + t->used + n, *nl;
        while ((nl = memchr(from, '\n', (size_t)(end - from)))) {
            if (!t->skipping)
                take_line(t, from, (size_t)(nl - from));
            t->skipping = false;
            from = nl + 1;
        }
        t->used = (size_t)(end - from);
        memmove(t->line, from, t->used);
        if (t->used == sizeof(t->line)) {
            timer_refuse(t, "not a line of a timer");
            t->skipping = true;
        }
        if (t->skipping)
            t->used = 0;
    }
    timer_look(t);
}

/* ----------------------------------------------------------------------------------------- FIFO */

/* Replaces the file, as torchrun does: its users name a file that mktemp has made, or an old
 * FIFO. */
static int remove_old(const char *path, struct err *e)
{
    struct stat st;
    if (lstat(path, &st) < 0)
        return 0;
    if (!S_ISFIFO(st.st_mode) && !(S_ISREG(st.st_mode) && st.st_size == 0))
        return err_set(e, -EEXIST, "TORCHELASTIC_TIMER_FILE: %s exists and is not a FIFO", path);
    _cleanup_fd_ int fd =
        S_ISFIFO(st.st_mode) ? open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fd >= 0)
        return err_set(e, -EBUSY, "TORCHELASTIC_TIMER_FILE: %s is in use by another launcher",
                       path);
    return unlink(path) < 0 ? err_sys(e, errno, "TORCHELASTIC_TIMER_FILE: %s", path) : 0;
}

static int make_fifo(struct file_timer *t, const char *path, struct err *e)
{
    char suffix[FS_SUFFIX_LEN + 1];
    const char *folder = getenv("TMPDIR");
    fs_random_suffix(suffix);
    int n = path ? snprintf(t->path, sizeof(t->path), "%s", path)
                 : snprintf(t->path, sizeof(t->path), "%s/" FIFO_PREFIX "%s",
                            folder && *folder == '/' ? folder : "/tmp", suffix);
    if (n >= (int)sizeof(t->path))
        return err_set(e, -ENAMETOOLONG, "TORCHELASTIC_TIMER_FILE: the path is too long");
    int rc = remove_old(t->path, e);
    if (rc < 0)
        return rc;
    if (mkfifo(t->path, 0600) < 0)
        return err_sys(e, errno, "TORCHELASTIC_TIMER_FILE: %s", t->path);
    /* O_RDWR: with a writer in this process, the exit of a client is not the end of the file. */
    t->fd = open(t->path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    return t->fd < 0 ? err_sys(e, errno, "TORCHELASTIC_TIMER_FILE: %s", t->path) : 0;
}

static int file_timer_open(void **state, struct node *n, struct err *e)
{
    const char *enabled = getenv("TORCHELASTIC_ENABLE_FILE_TIMER");
    const char *path = getenv("TORCHELASTIC_TIMER_FILE");
    if (n->job->nproc == 0 || !enabled || strcmp(enabled, "1") != 0)
        return 0;
    struct file_timer *t = xcalloc(1, sizeof(*t));
    t->fd = -1;
    t->node = n;
    t->temporary = !path || !*path;
    int rc;
    do {
        close_fd(&t->fd);
        rc = make_fifo(t, t->temporary ? NULL : path, e);
    } while (rc == 0 && !fs_lock_temporary(t->fd));
    if (rc == 0 && (rc = uv_poll_init(n->loop, &t->poll, t->fd)) < 0)
        uvx_err(e, rc, "TORCHELASTIC_TIMER_FILE: %s", t->path);
    if (rc < 0) {
        if (t->fd >= 0)
            unlink(t->path);
        close_fd(&t->fd);
        free(t);
        return rc;
    }
    uv_timer_init(n->loop, &t->clock);
    uvx_own(n->scope, &t->poll);
    uvx_own(n->scope, &t->clock);
    uv_poll_start(&t->poll, UV_READABLE, on_readable);
    n->calls->unlink_later(n, t->path);
    *state = t;
    return 0;
}

static void file_timer_variables(void *state, struct variables *out)
{
    struct file_timer *t = state;
    variables_add(out, xasprintf("TORCHELASTIC_TIMER_FILE=%s", t->path));
}

/* Removes FIFOs that dead agents left beside this one, now that the workers run. */
static void file_timer_state_changed(void *state, enum node_state from)
{
    struct file_timer *t = state;
    (void)from;
    if (t->temporary && t->node->state == NODE_RUNNING && t->node->restart_count == 0)
        fs_sweep_temporary(t->path, FIFO_PREFIX, S_IFIFO, false);
}

static void file_timer_free(void *state)
{
    struct file_timer *t = state;
    while (t->n > 0)
        timer_drop(t, 0);
    unlink(t->path);
    close_fd(&t->fd);
    free(t);
}

const struct feature file_timer_feature = {
    .name = "file timer",
    .open = file_timer_open,
    .variables = file_timer_variables,
    .state_changed = file_timer_state_changed,
    .free = file_timer_free,
};
