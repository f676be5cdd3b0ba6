#include "launcher/hosts/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "launcher/hosts/remote.h"
#include "launcher/hosts/host_stream.h"
#include "rendezvous/wire/endpoint.h"
#include "rendezvous/wire/link.h"

#define HANDSHAKES_MAX   64
#define HANDSHAKE_NS     3000000000ull
#define LINE_INTERVAL_NS 10000000000ull /* between two lines about refused connections */
#define PAUSE_NS         100000000ull   /* of accepting, without descriptors */
#define DEAD_MS          15000          /* after which a silent head is gone */

/* A connection before the end of its handshake. */
struct handshake {
    int fd;
    struct netaddr from;
    struct host_stream stream;
    uint64_t deadline_ns;
};

struct job {
    pid_t pid;
    char from[ADDR_STRLEN];
};

struct serve {
    const struct serve_opts *opts;
    struct tls_key key;
    int listen_fd, signals;
    struct handshake handshakes[HANDSHAKES_MAX]; /* the oldest first */
    size_t nhandshakes;
    struct job *jobs;
    size_t njobs, cap;
    uint64_t next_line_ns, pause_ns; /* until then */
    unsigned refused;                /* connections that no line has told of */
    bool stopping;
};

/* ---------------------------------------------------------------------------------- the options */

/* The options that concern a daemon; a job's options come from its head. */
static bool may_serve(enum opt_id id)
{
    static const enum opt_id own[] = {OPT_serve,    OPT_serve_addr, OPT_serve_port, OPT_token_file,
                                      OPT_token_fd, OPT_conf,       OPT_daemon,     OPT_pid_file,
                                      OPT_log_file, OPT_log_format, OPT_log_time,   OPT_verbose,
                                      OPT_quiet};
    for (size_t i = 0; i < ARRAY_LEN(own); i++) {
        if (own[i] == id)
            return true;
    }
    return false;
}

static int check_options(struct options *o, struct err *e)
{
    for (int i = 0; i < OPT_COUNT; i++) {
        if (o->value[i].from == FROM_ARGV && !may_serve(i))
            return err_set(e, -EINVAL, "%s has no effect with %s: give it to dlaunch -H",
                           opt_where(o, i), opt_where(o, OPT_serve));
    }
    if (o->command)
        return err_set(e, -EINVAL, "%s runs no program: give %.100s to dlaunch -H",
                       opt_where(o, OPT_serve), o->command[0]);
    return 0;
}

int serve_listen(struct options *o, struct err *e)
{
    const char *at = opt_text(o, OPT_serve_addr);
    int port = (int)opt_number(o, OPT_serve_port);
    struct endpoint_bind bind = {.any = strcmp(at, "all") == 0};
    char owner[128];
    if (check_options(o, e) < 0)
        return -EINVAL;
    if (!netaddr_parse_ip(&bind.addr, bind.any ? "::" : at, port))
        return err_set(e, -EINVAL, "%s: '%s' is not an address of this host, nor all",
                       opt_where(o, OPT_serve_addr), at);
    int fd = endpoint_listen(&bind, e);
    if (fd == -EADDRINUSE && endpoint_port_owner(port, owner, sizeof(owner)))
        return err_set(e, fd, "port %d: %s listens there already; --serve_port names another port",
                       port, owner);
    return fd;
}

/* --------------------------------------------------------------------------- the process of a job
 */

static void close_all_from(int first)
{
    struct rlimit r;
    if (syscall(SYS_close_range, first, ~0u, 0) == 0 || getrlimit(RLIMIT_NOFILE, &r) < 0)
        return;
    for (int fd = first; fd < (int)r.rlim_cur; fd++)
        close(fd);
}

/* The process for a job keeps nothing of the daemon but its environment, and its log for failures
 * before there is a launcher. */
static int run_as_job(struct serve *s, struct handshake *g)
{
    static const int own[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    struct remote_head head = {.stream = g->stream};
    struct netaddr here = {.len = sizeof(here.ss)};
    sigset_t none;
    if (getsockname(g->fd, &here.sa, &here.len) == 0)
        netaddr_ip(&here, head.here);
    netaddr_ip(&g->from, head.there);
    setsid(); /* the daemon's terminal is not the job's */
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        signal(own[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    tls_wipe(&s->key, sizeof(s->key));
    fd_set_nonblock(g->fd, false);
    link_tune(g->fd, DEAD_MS);
    if (dup2(g->fd, STDIN_FILENO) < 0 || dup2(g->fd, STDOUT_FILENO) < 0)
        return 125;
    log_set_writer(NULL, NULL);
    close_all_from(STDERR_FILENO + 1);
    return remote_main(&head, s->opts->launch);
}

/* ------------------------------------------------------------------------------------ connections
 */

/* Takes the handshake out of the list, and closes nothing. */
static struct handshake take_handshake(struct serve *s, size_t i)
{
    struct handshake g = s->handshakes[i];
    s->nhandshakes--;
    memmove(&s->handshakes[i], &s->handshakes[i + 1], (s->nhandshakes - i) * sizeof(g));
    return g;
}

static void drop_handshake(struct serve *s, size_t i)
{
    struct handshake g = take_handshake(s, i);
    close(g.fd);
    host_stream_fini(&g.stream);
}

static void refuse_handshake(struct serve *s, size_t i, const char *why)
{
    char ip[ADDR_STRLEN];
    uint64_t now = mono_ns();
    if (now < s->next_line_ns) {
        s->refused++;
    } else {
        char more[64] = "";
        if (s->refused)
            snprintf(more, sizeof(more), ", and %u others before", s->refused);
        log_notice("refused a connection from %s: %s%s", netaddr_ip(&s->handshakes[i].from, ip),
                   why, more);
        s->next_line_ns = now + LINE_INTERVAL_NS;
        s->refused = 0;
    }
    drop_handshake(s, i);
}

static void accept_connections(struct serve *s)
{
    for (int i = 0; i < HANDSHAKES_MAX; i++) {
        struct handshake g = {.from.len = sizeof(g.from.ss)};
        struct err e = ERR_INIT;
        g.fd = accept4(s->listen_fd, &g.from.sa, &g.from.len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (g.fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                s->pause_ns = mono_ns() + PAUSE_NS;
            return; /* also for a peer that has gone: the next turn goes on */
        }
        if (tls_new(&g.stream.tls, TLS_SERVER, &s->key, &g.stream.wire, &e) < 0) {
            log_warn("%s", e.msg);
            close(g.fd);
            continue;
        }
        g.deadline_ns = mono_ns() + HANDSHAKE_NS;
        if (s->nhandshakes == HANDSHAKES_MAX)
            refuse_handshake(s, 0, "too many do not say who they are");
        s->handshakes[s->nhandshakes++] = g;
    }
}

static void start_job(struct serve *s, size_t i)
{
    struct handshake g = take_handshake(s, i);
    struct job job;
    netaddr_ip(&g.from, job.from);
    fflush(NULL);
    job.pid = fork();
    if (job.pid == 0)
        exit(run_as_job(s, &g));
    if (job.pid < 0) {
        log_error("cannot start a job for %s: fork: %s", job.from, strerror(errno));
    } else {
        log_notice("a job from %s: process %d", job.from, (int)job.pid);
        if (s->njobs == s->cap) {
            s->cap = s->cap ? 2 * s->cap : 16;
            s->jobs = xrealloc(s->jobs, s->cap * sizeof(job));
        }
        s->jobs[s->njobs++] = job;
    }
    close(g.fd);
    host_stream_fini(&g.stream);
}

/* Reads what the peer of a handshake says, after which it may be out of the list. */
static void read_handshake(struct serve *s, size_t i)
{
    struct handshake *g = &s->handshakes[i];
    struct buf plain = BUF_INIT;
    ssize_t n = host_stream_read(&g->stream, g->fd, &plain);
    int error = n < 0 && errno != EAGAIN && errno != EINTR ? errno : 0;
    bool early = plain.len > 0; /* a head waits for HELLO */
    buf_fini(&plain);
    if (host_stream_write(&g->stream, g->fd, NULL, 0) < 0 && errno != EAGAIN && errno != EINTR)
        error = error ? error : errno;
    if (error == EACCES)
        refuse_handshake(s, i, "it has another token");
    else if (error == EPROTO || early)
        refuse_handshake(s, i, "it does not speak as dlaunch does");
    else if (error || n == 0)
        drop_handshake(s, i);
    else if (tls_established(g->stream.tls) && !host_stream_unsent(&g->stream))
        start_job(s, i);
}

/* ----------------------------------------------------------------------------------------- signals
 */

static void reap_jobs(struct serve *s)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (size_t i = 0; i < s->njobs; i++) {
            struct job *j = &s->jobs[i];
            if (j->pid != pid)
                continue;
            if (WIFSIGNALED(status))
                log_notice("the job from %s: process %d was killed by signal %d", j->from, (int)pid,
                           WTERMSIG(status));
            else
                log_notice("the job from %s: process %d has ended with status %d", j->from,
                           (int)pid, WEXITSTATUS(status));
            *j = s->jobs[--s->njobs];
            break;
        }
    }
}

static void stop_serving(struct serve *s, int signo)
{
    if (!s->stopping)
        log_notice("received SIG%s: no more jobs; %zu to be stopped", sigabbrev_np(signo),
                   s->njobs);
    s->stopping = true;
    close_fd(&s->listen_fd);
    while (s->nhandshakes)
        drop_handshake(s, 0);
    for (size_t i = 0; i < s->njobs; i++)
        kill(s->jobs[i].pid, SIGTERM);
}

static void read_signals(struct serve *s)
{
    struct signalfd_siginfo si;
    while (read(s->signals, &si, sizeof(si)) == sizeof(si)) {
        if (si.ssi_signo == SIGCHLD)
            reap_jobs(s);
        else
            stop_serving(s, (int)si.ssi_signo);
    }
}

static int open_signals(struct err *e)
{
    static const int all[] = {SIGCHLD, SIGTERM, SIGINT, SIGQUIT, SIGHUP};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        sigaddset(&set, all[i]);
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd < 0 ? err_sys(e, errno, "signalfd") : fd;
}

/* -------------------------------------------------------------------------------------------- loop
 */

/* The time until the next deadline, in ms; the oldest handshake has the first one. */
static int next_timeout(const struct serve *s, uint64_t now)
{
    uint64_t when = UINT64_MAX;
    if (s->nhandshakes)
        when = s->handshakes[0].deadline_ns;
    if (s->pause_ns > now && s->pause_ns < when)
        when = s->pause_ns;
    if (when == UINT64_MAX)
        return -1;
    return when > now ? (int)((when - now + 999999) / 1000000) : 0;
}

static void serve_turn(struct serve *s)
{
    struct pollfd f[2 + HANDSHAKES_MAX];
    uint64_t now = mono_ns();
    size_t n = s->nhandshakes;
    f[0] = (struct pollfd){s->signals, POLLIN, 0};
    f[1] = (struct pollfd){s->pause_ns > now ? -1 : s->listen_fd, POLLIN, 0};
    for (size_t i = 0; i < n; i++) {
        struct handshake *g = &s->handshakes[i];
        short out = host_stream_unsent(&g->stream) ? POLLOUT : 0;
        f[2 + i] = (struct pollfd){g->fd, (short)(POLLIN | out), 0};
    }
    if (poll(f, (nfds_t)(2 + n), next_timeout(s, now)) < 0)
        return;
    for (size_t i = n; i-- > 0;) { /* from the end: those before keep their places */
        if (f[2 + i].revents)
            read_handshake(s, i);
    }
    now = mono_ns();
    while (s->nhandshakes && s->handshakes[0].deadline_ns <= now)
        refuse_handshake(s, 0, "it has not said who it is in time");
    if (f[1].revents)
        accept_connections(s);
    if (f[0].revents)
        read_signals(s);
}

int serve_run(const struct serve_opts *opts)
{
    struct serve s = {.opts = opts, .listen_fd = opts->listen_fd};
    struct err e = ERR_INIT;
    struct netaddr at = {.len = sizeof(at.ss)};
    char where[HOST_MAX + 16] = "";
    s.signals = open_signals(&e);
    if (s.signals < 0 || host_stream_key(&s.key, opts->token, &e) < 0) {
        log_error("%s", e.msg);
        return 125;
    }
    if (getsockname(s.listen_fd, &at.sa, &at.len) == 0)
        netaddr_format(&at, where, sizeof(where));
    log_notice("waiting for jobs at %s%s", where,
               netaddr_is_loopback(&at) ? ", from this host only (--serve_addr)" : "");
    opts->on_ready(opts->arg);
    while (!s.stopping || s.njobs)
        serve_turn(&s);
    close_fd(&s.signals);
    tls_wipe(&s.key, sizeof(s.key));
    free(s.jobs);
    return 0;
}
