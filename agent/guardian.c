/*   agent exits, clean               -> its status
 *   a signal to be forwarded         -> the agent gets it, and is continued if it was stopped
 *   a further stop signal, unheard   -> SIGKILL to all, sweep; a line; 128+signal
 *   a stop signal, not forwarded     -> we die of it: as "guardian killed"
 *   another child dies               -> it is reaped
 *   agent exits, not clean           -> sweep; its status, 125 for 0
 *   agent killed by a signal         -> sweep; a line, with the word memory if the kernel wanted
 *                                       some; 128+signal
 *   lease over                       -> SIGKILL to all, sweep; a line; 125; also if guardian and
 *                                       agent are stopped
 *   a sweep that does not end        -> a line for each that is left; 125
 *   SIGTSTP                          -> it stays pending, and the agent is told; when the agent has
 *                                       stopped, we take the signal: we stop as well, unless a
 *                                       SIGCONT has come since, which removes it
 *   SIGCONT                          -> the agent is continued, also if it stops a moment later
 *   guardian killed                  -> the agent is continued if it was stopped; its lifeline
 *                                       ends: it sweeps
 */
#include "agent/guardian.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/base/mpir.h"
#include "agent/process/cgroup.h"
#include "agent/process/clone3.h"
#include "agent/process/oom.h"
#include "agent/process/pidns.h"
#include "agent/process/spawn.h"
#include "agent/process/sweep.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "rendezvous/wire/endpoint.h"

#define EXIT_OURS         125
#define LISTED_MAX        16 /* lines about descendants that do not die */
#define SIGNALS_AT_ONCE   8
#define FUSE_NS           100000000u /* from the lease's end to the death of an agent that does nothing */
#define ABANDONED_GRACE_S 0.1        /* for processes that the agent has waited for already */

struct guardian {
    const struct guardian_opts *opts;
    struct guardian_page *page;
    int signals;          /* signalfd; all but SIGTSTP */
    int tstp;             /* signalfd; SIGTSTP stays pending, it is not read */
    bool tstp_announced;  /* the agent knows of the SIGTSTP that is pending */
    int agent_end;        /* the agent's end of the lifeline, in the agent */
    uint64_t asked_ns;    /* when the first stop signal came; 0: none has */
    uint64_t react_ns;    /* until when the agent is to handle a further one; 0: none has come */
    uint32_t heard;       /* page->heard when the further one came */
    int further, deaf_to; /* the further stop signal, sent again if the agent has not handled it */
    timer_t waker;        /* continues this process at the lease's end */
    bool wakes;           /* there is one */
    int our_end; /* the guardian's end; no other process has it, so it closes when the guardian dies
                  */
    pid_t agent; /* -1 when it has been reaped */
    siginfo_t exit; /* how the agent ended, once it is reaped */
    pid_t *others;  /* children that this process had before it was dlaunch (a shell's exec) */
    int nothers;
    struct oom_watch oom;
};

/* --------------------------------------------------------------------------------- agent's side */

static void set_timer(timer_t timer, uint64_t at_ns)
{
    uint64_t at = at_ns ? at_ns + lease_clock_of_boot() : 0; /* 0: never */
    const struct itimerspec when = {
        .it_value = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)}};
    timer_settime(timer, TIMER_ABSTIME, &when, NULL);
}

static bool make_timer(timer_t *out, int signo)
{
    struct sigevent how = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = signo};
    return timer_create(CLOCK_BOOTTIME, &how, out) == 0;
}

/* Sets the fuse as the lease is: again if another thread has changed the lease meanwhile. */
static void set_fuse(const struct guardian_link *link)
{
    uint64_t lease, set = UINT64_MAX;
    while (link->fused && (lease = atomic_load(&link->page->lease_ns)) != set) {
        set_timer(link->fuse, lease ? lease + FUSE_NS : 0);
        set = lease;
    }
}

void guardian_set_lease(struct guardian_link *link, uint64_t until_ns)
{
    uint64_t old = atomic_load(&link->page->lease_ns);
    do { /* another thread may extend the lease meanwhile */
        if (old && until_ns && until_ns <= old)
            return;
    } while (!atomic_compare_exchange_weak(&link->page->lease_ns, &old, until_ns));
    set_fuse(link);
    if (until_ns && old == 0 && send(link->lifeline, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return; /* full: the guardian is awake. Closed: the reader of the lifeline detects that */
}

void guardian_show(struct guardian_link *link)
{
    if (send(link->lifeline, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return; /* full: the guardian is awake. Closed: the reader of the lifeline detects that */
}

void guardian_suspend(struct guardian_link *link)
{
    atomic_store(&link->page->suspended, 1);
    raise(SIGSTOP);
    atomic_store(&link->page->suspended, 0);
}

void guardian_refuse_suspend(struct guardian_link *link)
{
    atomic_store(&link->page->refused, 1);
    guardian_show(link);
}

void guardian_extend_lease(struct guardian_link *link, uint64_t until_ns)
{
    uint64_t old = atomic_load(&link->page->lease_ns);
    while (old && old < until_ns) {
        if (!atomic_compare_exchange_weak(&link->page->lease_ns, &old, until_ns))
            continue;
        set_fuse(link);
        return;
    }
}

bool guardian_set_path(char field[256], const char *path)
{
    size_t len = path ? strlen(path) : 0;
    if (len >= 256)
        return false;
    /* Writes the first byte last: until then the field reads as "". */
    _Atomic char *first = (_Atomic char *)field;
    atomic_store(first, '\0');
    if (len) {
        memcpy(field + 1, path + 1, len);
        atomic_store(first, path[0]);
    }
    return true;
}

void guardian_unlink(const struct guardian_page *page)
{
    for (size_t i = 0; i < ARRAY_LEN(page->unlink_path); i++) {
        const char *path = page->unlink_path[i];
        if (path[0] && unlink(path) < 0 && errno == EISDIR)
            rmdir(path);
    }
}

static void agent_process(struct guardian *g, int (*agent_main)(void *, struct guardian_link *),
                          void *arg, struct guardian_link *link) __attribute__((noreturn));
static void agent_process(struct guardian *g, int (*agent_main)(void *, struct guardian_link *),
                          void *arg, struct guardian_link *link)
{
    struct err e;
    sigset_t forwarded;
    close(g->our_end);
    close(g->signals);
    close(g->tstp);
    link->lifeline = g->agent_end;
    setsid();
    prctl(PR_SET_NAME, ENDPOINT_AGENT);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGCONT); /* a stopped agent could not detect the end of the lifeline */
    link->fused = make_timer(&link->fuse, SIGKILL);
    sigemptyset(&forwarded);
    for (const int *sig = g->opts->forward_signals; *sig; sig++)
        sigaddset(&forwarded, *sig);
    sigprocmask(SIG_SETMASK, &forwarded, NULL);
    if (g->opts->isolation == ISOLATE_PIDNS && pidns_enter(&e) < 0) {
        log_error("%s", e.msg);
        atomic_store(&link->page->clean, 1);
        exit(EXIT_OURS);
    }
    free(g->others);
    exit(agent_main(arg, link));
}

/* ------------------------------------------------------------------------------------ the start */

static bool is_listed(const int *signals, int sig)
{
    while (*signals && *signals != sig)
        signals++;
    return *signals == sig;
}

/* Blocks the signals that the guardian reads from its signalfd. Two kinds stay unblocked: a signal
 * that was ignored when dlaunch was started, because the kernel keeps a blocked signal pending even
 * if its action is to ignore it; and a signal of `ends` that --forward_signals does not name, of
 * which the guardian then dies. */
static void block_signals(const struct guardian *g, sigset_t *blocked)
{
    static const int ends[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    sigfillset(blocked);
    for (int sig = 1; sig < SIGRTMAX; sig++) {
        if (spawn_was_ignored(sig))
            sigdelset(blocked, sig);
    }
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        if (!is_listed(g->opts->forward_signals, ends[i]))
            sigdelset(blocked, ends[i]);
    }
    sigprocmask(SIG_SETMASK, blocked, NULL);
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
}

static void note_other_children(struct guardian *g)
{
    siginfo_t si;
    if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) < 0) /* ECHILD, nearly always */
        return;
    int n = sweep_children(NULL, 0);
    g->others = xcalloc((size_t)n, sizeof(pid_t));
    g->nothers = sweep_children(g->others, n);
    if (g->nothers > n)
        g->nothers = n;
}

static int prepare(struct guardian *g, struct guardian_link *link, struct err *e)
{
    int ends[2];
    sigset_t blocked, tstp;
    block_signals(g, &blocked);
    sigemptyset(&tstp);
    if (sigismember(&blocked, SIGTSTP))
        sigaddset(&tstp, SIGTSTP);
    sigdelset(&blocked, SIGTSTP);
    g->signals = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    g->tstp = signalfd(-1, &tstp, SFD_CLOEXEC | SFD_NONBLOCK);
    if (g->signals < 0 || g->tstp < 0)
        return err_sys(e, errno, "signalfd of the guardian");
    g->page =
        mmap(NULL, sizeof(*g->page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (g->page == MAP_FAILED)
        return err_sys(e, errno, "memory for the guardian");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
        return err_sys(e, errno, "lifeline between guardian and agent");
    g->our_end = ends[0];
    g->agent_end = ends[1];
    *link = (struct guardian_link){.lifeline = -1, .guardian = getpid(), .page = g->page};
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    note_other_children(g);
    lease_clock_of_boot(); /* equal in guardian and agent */
    g->wakes = make_timer(&g->waker, SIGCONT);
    return g->opts->isolation == ISOLATE_PIDNS ? pidns_prepare(e) : 0;
}

/* ---------------------------------------------------------------------------------- supervising */

/* The process has been reaped: its number may be another process's from now on, so it is no longer
 * one of `others`. */
static void forget_other(struct guardian *g, pid_t pid)
{
    for (int i = 0; i < g->nothers; i++) {
        if (g->others[i] == pid)
            g->others[i] = g->others[--g->nothers];
    }
}

/* Takes the SIGTSTP that is pending by its default action. The kernel removes it when a SIGCONT
 * comes, up to the moment when it acts, so that none comes too early. In an orphaned process group,
 * where no shell waits, the action is none; the workers are stopped there all the same. */
static void take_tstp(struct guardian *g)
{
    sigset_t tstp;
    sigemptyset(&tstp);
    sigaddset(&tstp, SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &tstp, NULL);
    sigprocmask(SIG_BLOCK, &tstp, NULL);
    g->tstp_announced = false;
}

static void drop_tstp(struct guardian *g)
{
    struct signalfd_siginfo si;
    if (read(g->tstp, &si, sizeof(si)) < 0)
        return; /* a SIGCONT has removed it */
    g->tstp_announced = false;
}

static bool tstp_is_pending(void)
{
    sigset_t set;
    sigpending(&set);
    return sigismember(&set, SIGTSTP);
}

/* The agent has stopped: as it was told, unless some other process has stopped it. */
static void on_agent_stopped(struct guardian *g)
{
    if (!atomic_load(&g->page->suspended))
        return;
    if (!tstp_is_pending()) /* a SIGCONT has come, and reached the agent before it stopped */
        kill(g->agent, SIGCONT);
    else if (atomic_load(&g->page->lease_ns)) /* to be watched over */
        drop_tstp(g);
    else
        take_tstp(g);
}

static void look_at_agent(struct guardian *g)
{
    siginfo_t si;
    for (;;) {
        si.si_pid = 0;
        if (waitid(P_PID, (id_t)g->agent, &si, WEXITED | WSTOPPED | WNOHANG) < 0 || !si.si_pid)
            return;
        if (si.si_code != CLD_STOPPED) {
            g->agent = -1;
            g->exit = si;
            return;
        }
        on_agent_stopped(g);
    }
}

/* Reaps orphans: all of a container's come to its first process, and those of `others` come to the
 * guardian. What dies together with the agent is left to the last sweep, which counts it. */
static void reap_strays(struct guardian *g)
{
    siginfo_t si = {.si_pid = 0};
    while (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) == 0 && si.si_pid) {
        pid_t stray = si.si_pid;
        look_at_agent(g);
        if (g->agent < 0)
            return;
        waitid(P_PID, (id_t)stray, &si, WEXITED | WNOHANG);
        forget_other(g, stray);
        si.si_pid = 0;
    }
}

/* The agent's loop may hang: a further request to stop must end the job all the same. */
static void note_stop(struct guardian *g, int sig)
{
    uint64_t now = mono_ns();
    if (!g->asked_ns) {
        g->asked_ns = now;
    } else if (!g->react_ns && now - g->asked_ns >= (uint64_t)(GUARDIAN_FURTHER_S * 1e9)) {
        g->react_ns = now + GUARDIAN_REACT_S * UINT64_C(1000000000);
        g->heard = atomic_load(&g->page->heard);
        g->further = sig;
    }
}

/* False: the agent has not handled the further request in time. */
static bool agent_reacts(struct guardian *g)
{
    if (!g->react_ns || mono_ns() < g->react_ns)
        return true;
    g->react_ns = 0;
    if (atomic_load(&g->page->heard) == g->heard)
        g->deaf_to = g->further;
    return !g->deaf_to;
}

static void handle_signal(struct guardian *g, int sig)
{
    if (sig == SIGCHLD) {
        look_at_agent(g);
        if (g->agent > 0)
            reap_strays(g);
    } else if (sig == SIGTSTP && g->opts->isolation == ISOLATE_PIDNS) {
        log_warn("not suspended: the first process of a PID namespace cannot be (--isolate pidns)");
    } else if (sig == SIGCONT || is_listed(g->opts->forward_signals, sig)) {
        if (g->opts->stop_signals && is_listed(g->opts->stop_signals, sig)) {
            note_stop(g, sig);
            atomic_fetch_add(&g->page->sent, 1);
        }
        if (g->agent > 0)
            kill(g->agent, sig);
        if (g->agent > 0)
            kill(g->agent, SIGCONT); /* stopped, it would not act on the signal */
    }
    if (sig == SIGCONT)
        g->tstp_announced = false;
}

static void read_signals(struct guardian *g)
{
    struct signalfd_siginfo si[SIGNALS_AT_ONCE];
    ssize_t n = read(g->signals, si, sizeof(si));
    for (ssize_t i = 0; i < n / (ssize_t)sizeof(si[0]); i++) {
        if (si[i].ssi_code != SI_TIMER) /* our own, to wake up */
            handle_signal(g, (int)si[i].ssi_signo);
    }
}

static void on_tstp(struct guardian *g)
{
    if (g->opts->isolation == ISOLATE_PIDNS) {
        drop_tstp(g);
        log_warn("not suspended: the first process of a PID namespace cannot be (--isolate pidns)");
        return;
    }
    g->tstp_announced = true;
    if (g->agent > 0)
        kill(g->agent, SIGTSTP);
}

/* The time to wait for signals; NULL: no limit. */
static struct timespec *time_left(const struct guardian *g, uint64_t lease, uint64_t now,
                                  struct timespec *out)
{
    uint64_t left = lease ? lease - now : UINT64_MAX, mono = mono_ns();
    if (g->react_ns && (g->react_ns > mono ? g->react_ns - mono : 0) < left)
        left = g->react_ns > mono ? g->react_ns - mono : 0;
    *out = (struct timespec){(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
    return left == UINT64_MAX ? NULL : out;
}

/* Forwards signals until the agent is gone, its lease is over, or it handles no further request to
 * stop. */
static void supervise(struct guardian *g)
{
    struct pollfd fds[3] = {{g->signals, POLLIN, 0}, {g->our_end, POLLIN, 0}, {-1, POLLIN, 0}};
    uint64_t set = 0; /* the time to which the waker is set */
    while (g->agent > 0 && agent_reacts(g)) {
        struct timespec left;
        uint64_t lease = atomic_load(&g->page->lease_ns), now = lease ? lease_clock_ns() : 0;
        if (lease && now >= lease) {
            look_at_agent(g); /* the agent may have ended in time */
            return;
        }
        if (g->wakes && lease != set)
            set_timer(g->waker, set = lease);
        fds[2].fd = g->tstp_announced ? -1 : g->tstp;
        if (ppoll(fds, 3, time_left(g, lease, now, &left), NULL) <= 0)
            continue;
        char wakes[64];
        if (fds[1].revents && read(g->our_end, wakes, sizeof(wakes)) <= 0)
            fds[1].fd = -1; /* the agent has closed it; its end comes as a signal */
        if (atomic_exchange(&g->page->refused, 0))
            drop_tstp(g);
        if (fds[0].revents)
            read_signals(g);
        if (fds[2].revents & POLLIN)
            on_tstp(g);
        mpir_show();
    }
}

/* -------------------------------------------------------------------------------------- the end */

static bool is_other(const struct guardian *g, pid_t pid)
{
    for (int i = 0; i < g->nothers; i++) {
        if (g->others[i] == pid)
            return true;
    }
    return false;
}

static void list_what_is_left(const struct guardian *g)
{
    pid_t left[LISTED_MAX];
    char text[256];
    int n = sweep_children(left, LISTED_MAX);
    for (int i = 0; i < n && i < LISTED_MAX; i++) {
        if (!is_other(g, left[i]))
            log_error("%s does not die; giving up after %g s",
                      sweep_describe(left[i], text, sizeof(text)), g->opts->stop_grace);
    }
    if (n > LISTED_MAX)
        log_error("... and %d more", n - LISTED_MAX);
}

/* The agent, if it is there, and all that it has started. Returns how many processes were ended;
 * *all: whether none is left. */
static unsigned end_everything(struct guardian *g, pid_t agent, bool *all)
{
    const struct guardian_page *page = g->page;
    struct sweep s;
    sweep_init(&s);
    if (g->agent > 0)
        kill(g->agent, SIGKILL); /* first, so that it starts nothing more */
    if (g->opts->isolation == ISOLATE_AUTO)
        cgroup_kill_at(page->cgroup, agent);
    double grace = atomic_load(&page->abandoned) ? ABANDONED_GRACE_S : g->opts->stop_grace;
    *all = sweep_run(&s, g->others, (size_t)g->nothers, grace) == 0;
    if (*all && g->opts->isolation == ISOLATE_AUTO)
        cgroup_remove(page->cgroup, agent);
    guardian_unlink(page);
    /* In a PID namespace the kernel has ended them. */
    unsigned nworkers = g->opts->isolation == ISOLATE_PIDNS ? atomic_load(&page->nworkers) : 0;
    return s.killed > nworkers ? s.killed : nworkers;
}

/* Whether no process of the job is left; asked when the agent has reported that it ended all. */
static bool nothing_is_left(const struct guardian *g)
{
    siginfo_t si;
    if (getpid() == 1) /* live processes need not be the job's, and end with us */
        return true;
    if (g->nothers)
        return sweep_children(NULL, 0) <= g->nothers;
    return waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) < 0;
}

static void block_all_signals(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
}

static int guardian_finish(struct guardian *g, pid_t agent)
{
    bool gone = g->agent < 0, exited = gone && g->exit.si_code == CLD_EXITED, all;
    if (exited && atomic_load(&g->page->clean) && nothing_is_left(g))
        return g->exit.si_status;
    uint64_t lease = atomic_load(&g->page->lease_ns);
    bool over = lease && lease_clock_ns() >= lease; /* then the agent died of its fuse */
    block_all_signals();                            /* nothing may be left by half */
    log_set_timeout(LOG_LAST_WORDS_MS);
    unsigned ended = end_everything(g, agent, &all);
    int status = EXIT_OURS;
    const char *plural = ended == 1 ? "process" : "processes";
    if (g->deaf_to && !gone) {
        status = 128 + g->deaf_to;
        log_error("the agent (pid %d) does not react to a further request to stop; ended %u %s",
                  (int)agent, ended, plural);
    } else if (!gone || (!exited && over)) {
        log_error("the lease of this node ran out; ended %u %s", ended, plural);
    } else if (!exited) {
        const char *name = sigabbrev_np(g->exit.si_status);
        char number[24];
        snprintf(number, sizeof(number), "signal %d", g->exit.si_status);
        status = 128 + g->exit.si_status;
        log_error("the agent (pid %d) was killed by %s%s%s; ended %u %s", (int)agent,
                  name ? "SIG" : "", name ? name : number,
                  g->exit.si_status == SIGKILL ? oom_words(&g->oom) : "", ended, plural);
    } else {
        if (g->exit.si_status || atomic_load(&g->page->clean))
            status = g->exit.si_status;
        if (ended || status != g->exit.si_status)
            log_error("the agent (pid %d) exited with status %d and left work undone; ended %u %s",
                      (int)agent, g->exit.si_status, ended, plural);
    }
    if (all)
        return status;
    if (!atomic_load(&g->page->abandoned))
        list_what_is_left(g);
    return EXIT_OURS;
}

int guardian_run(const struct guardian_opts *opts,
                 int (*agent_main)(void *arg, struct guardian_link *), void *arg)
{
    struct guardian g = {
        .opts = opts, .signals = -1, .tstp = -1, .our_end = -1, .agent_end = -1, .agent = -1};
    struct guardian_link link;
    struct err e;
    spawn_remember();
    clone3_make_absent_if_refused();
    if (prepare(&g, &link, &e) < 0) {
        log_error("%s", e.msg);
        return EXIT_OURS;
    }
    fflush(NULL); /* or guardian and agent would both write the line */
    pid_t agent = g.agent = fork();
    int error = errno;
    if (agent == 0)
        agent_process(&g, agent_main, arg, &link);
    close_fd(&g.agent_end);
    oom_open(&g.oom, &g.page->oom_reported);
    int status = EXIT_OURS;
    if (agent < 0) {
        spawn_explain("start the agent", error, &e);
        log_error("%s", e.msg);
    } else {
        supervise(&g);
        status = guardian_finish(&g, agent);
    }
    close_fd(&g.signals);
    close_fd(&g.tstp);
    close_fd(&g.our_end);
    oom_close(&g.oom);
    free(g.others);
    munmap(g.page, sizeof(*g.page));
    return status;
}
