/* A worker's pidfd becomes readable when it dies; the epoll set lists those in the order of their
 * deaths, and we take them from its front. SIGCHLD says nothing about order or number: it is for
 * what has no pidfd in the set. On each SIGCHLD the set is emptied first; then every dead child
 * that is left is looked at without reaping it (WNOWAIT), so that it is known whose it is.
 *
 *   pidfd readable, reaped               on_worker
 *   pidfd readable, nothing to reap      a debugger still holds it: left to SIGCHLD
 *   SIGCHLD, a watched pid               on_worker
 *   SIGCHLD, any other pid               on_orphan
 *   reaped by someone else (the sweep)   on_worker with the status of SIGKILL, which is what it got
 */
#include "agent/process/reaper.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/uvx.h"

#define EVENTS_AT_ONCE 64

struct watch {
    struct watch *next;
    pid_t pid;
    int pidfd; /* in the epoll set; -1: by SIGCHLD */
    void *tag;
};

struct reaper {
    struct reaper_callbacks cb;
    struct uvx_scope scope;
    uv_poll_t poll;
    uv_signal_t sigchld;
    int epfd;
    bool closing;
    struct watch *watches;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

static struct watch *find_pid(struct reaper *r, pid_t pid)
{
    struct watch *w = r->watches;
    while (w && w->pid != pid)
        w = w->next;
    return w;
}

static void unlink_watch(struct reaper *r, struct watch *w)
{
    struct watch **at = &r->watches;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
}

/* Removes the descriptor explicitly: close() does so only if no other process has a copy. */
static void close_pidfd(struct reaper *r, struct watch *w)
{
    if (w->pidfd >= 0)
        epoll_ctl(r->epfd, EPOLL_CTL_DEL, w->pidfd, NULL);
    close_fd(&w->pidfd);
}

/* Returns 1: reaped, 0: not dead, -1: not a child of this process any more. */
static int reap(pid_t pid, struct reaper_exit *x)
{
    pid_t got;
    do
        got = wait4(pid, &x->status, WNOHANG, &x->usage);
    while (got < 0 && errno == EINTR);
    x->pid = pid;
    x->seen_ns = mono_ns();
    return got == pid ? 1 : got == 0 ? 0 : -1;
}

/* Kills what a dead worker left in its process group. The zombie still holds the number: once the
 * worker is reaped, another process group may have that number. */
static void kill_group_of_zombie(pid_t pid)
{
    siginfo_t si = {.si_pid = 0};
    if (waitid(P_PID, (id_t)pid, &si, WEXITED | WNOHANG | WNOWAIT) == 0 && si.si_pid == pid)
        kill(-pid, SIGKILL);
}

/* Returns whether the worker was dead; *w is freed then. */
static bool reap_worker(struct reaper *r, struct watch *w)
{
    struct reaper_exit x = {.status = 0};
    kill_group_of_zombie(w->pid);
    int rc = reap(w->pid, &x);
    if (rc == 0) { /* a debugger holds it: SIGCHLD follows when the debugger detaches */
        close_pidfd(r, w);
        return false;
    }
    if (rc < 0)
        x.status = SIGKILL; /* as wait(2) encodes it */
    unlink_watch(r, w);
    close_pidfd(r, w);
    void *tag = w->tag;
    free(w);
    r->cb.on_worker(r->cb.arg, tag, &x);
    return true;
}

void reaper_look(struct reaper *r)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    int n;
    do {
        n = epoll_wait(r->epfd, events, EVENTS_AT_ONCE, 0);
        for (int i = 0; i < n && !r->closing; i++)
            reap_worker(r, events[i].data.ptr);
    } while (n == EVENTS_AT_ONCE && !r->closing);
}

static void on_set_readable(uv_poll_t *p, int status, int events)
{
    (void)status, (void)events;
    reaper_look(container_of(p, struct reaper, poll));
}

/* Detects as well that the sweep has reaped a worker, for which no signal is sent. */
static void reap_without_pidfd(struct reaper *r)
{
    struct watch *w = r->watches;
    while (w && !r->closing) {
        struct watch *next = w->next;
        if (w->pidfd < 0 && reap_worker(r, w))
            next = r->watches; /* the callback may have changed the list */
        w = next;
    }
}

static void reap_orphans(struct reaper *r)
{
    siginfo_t si = {.si_pid = 0};
    while (!r->closing && waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) == 0 && si.si_pid) {
        if (find_pid(r, si.si_pid)) {
            reaper_look(r); /* the worker died after reaper_look() */
            struct watch *w = r->closing ? NULL : find_pid(r, si.si_pid);
            if (w)
                reap_worker(r, w);
        } else {
            struct reaper_exit x = {.status = 0};
            if (reap(si.si_pid, &x) == 1 && r->cb.on_orphan)
                r->cb.on_orphan(r->cb.arg, &x);
        }
        si.si_pid = 0;
    }
}

static void on_sigchld(uv_signal_t *sig, int signum)
{
    struct reaper *r = container_of(sig, struct reaper, sigchld);
    (void)signum;
    reaper_look(r);
    reap_without_pidfd(r);
    reap_orphans(r);
}

static void on_handles_closed(void *arg)
{
    struct reaper *r = arg;
    void (*on_closed)(void *) = r->on_closed;
    void *on_closed_arg = r->on_closed_arg;
    while (r->watches) {
        struct watch *w = r->watches;
        r->watches = w->next;
        close_fd(&w->pidfd);
        free(w);
    }
    close_fd(&r->epfd);
    free(r);
    if (on_closed)
        on_closed(on_closed_arg);
}

int reaper_open(struct reaper **out, uv_loop_t *loop, const struct reaper_callbacks *cb,
                struct err *e)
{
    struct reaper *r = xcalloc(1, sizeof(*r));
    r->cb = *cb;
    r->epfd = epoll_create1(EPOLL_CLOEXEC);
    if (r->epfd < 0) {
        int errnum = errno;
        free(r);
        return err_sys(e, errnum, "watch for the ends of workers");
    }
    uvx_scope_init(&r->scope, loop);
    int rc = uv_poll_init(loop, &r->poll, r->epfd);
    if (rc < 0) {
        close_fd(&r->epfd);
        free(r);
        return uvx_err(e, rc, "watch for the ends of workers");
    }
    uvx_own(&r->scope, &r->poll);
    rc = uv_poll_start(&r->poll, UV_READABLE, on_set_readable);
    if (rc == 0)
        rc = uv_signal_init(loop, &r->sigchld);
    if (rc == 0) {
        uvx_own(&r->scope, &r->sigchld);
        rc = uv_signal_start(&r->sigchld, on_sigchld, SIGCHLD);
    }
    if (rc < 0) {
        reaper_close(r, NULL, NULL);
        return uvx_err(e, rc, "watch for the ends of workers");
    }
    *out = r;
    return 0;
}

int reaper_watch(struct reaper *r, pid_t pid, int pidfd, void *tag, struct err *e)
{
    struct watch *w = xcalloc(1, sizeof(*w)), **end = &r->watches;
    *w = (struct watch){.pid = pid, .pidfd = pidfd, .tag = tag};
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = w};
    if (pidfd >= 0 && epoll_ctl(r->epfd, EPOLL_CTL_ADD, pidfd, &ev) < 0) {
        int errnum = errno;
        close_fd(&w->pidfd);
        free(w);
        return err_sys(e, errnum, "watch for the end of pid %d", (int)pid);
    }
    while (*end)
        end = &(*end)->next;
    *end = w;
    return 0;
}

void reaper_close(struct reaper *r, void (*on_closed)(void *arg), void *arg)
{
    if (!r)
        return;
    r->closing = true;
    r->on_closed = on_closed;
    r->on_closed_arg = arg;
    uvx_scope_close(&r->scope, on_handles_closed, r);
}
