#include "launcher/hosts/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/inspect/lines.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"
#include "launcher/hosts/forward.h"
#include "launcher/hosts/frame.h"
#include "rendezvous/wire/endpoint.h"

#define GRACE_MS   300      /* between SIGTERM and SIGKILL when the head is gone */
#define PARTIAL_MS 50       /* how long an unfinished line waits for its end */
#define DRAIN_MS   250      /* for output whose pipe somebody else holds, at the end */
#define CANCEL_MS  1000     /* for what was written of a program to be removed again */
#define CLOSE_S    2        /* for the head to close its end of the socket */
#define LAST_S     5        /* for the head to take the end, after a signal */
#define QUEUE_MAX  262144   /* bytes for the head before the workers have to wait */
#define PIECE_MAX  1048576u /* bytes of a program that are written at once */

extern char **environ;

/* A stream of the launcher on its way to the head. */
struct stream {
    int fd; /* -1: at its end */
    enum frame_type type;
    struct buf kept; /* of a line without its end */
    uint64_t since_ns;
};

struct remote {
    struct plan_of_host plan;
    const struct remote_head *head; /* NULL: standard input and output are pipes */
    struct host_stream stream;
    struct buf in, out; /* from the head, to the head */
    struct buf input;   /* for the workers */
    struct forwards forwards;
    struct pollfd *fds; /* turn()'s */
    bool planned;       /* the plan has come */
    int refused;        /* exit status: there is no plan, or what comes is none; 0: go on */
    bool head_gone, input_ended, began;
    struct frame_exit result; /* of the launcher */
    int listen_fd, state_fd, input_fd, report_fd, json_fd, signals;
    struct stream streams[4];            /* output, error, dlaunch's own lines, events */
    pid_t launcher;                      /* -1: the launcher has ended */
    sigset_t mask;                       /* for the launcher */
    uint64_t kill_ns, drain_ns, stop_ns; /* stop_ns: of the first signal that asks for the end */
    char folder[512];                    /* of the copied program; "" none */
    int inspect_fd;                      /* the copied dlaunch-inspect; -1: none was copied */
    char inspect[32];                    /* the program's path */
};
enum { OUT, ERR, LOG, EVENTS };

/* ------------------------------------------------------------------------------------ the start */

static void say_hello(struct remote *r)
{
    struct frame_hello h = {.version = DLAUNCH_VERSION};
    struct endpoint_bind all = {.any = true};
    struct netaddr a = {.len = sizeof(a.ss)};
    const char *ssh = getenv("SSH_CONNECTION"); /* the head's address, port; ours, port */
    netaddr_parse_ip(&all.addr, "::", 0);
    r->listen_fd = endpoint_listen(&all, NULL);
    if (r->listen_fd >= 0 && getsockname(r->listen_fd, &a.sa, &a.len) == 0)
        h.port = netaddr_port(&a);
    gethostname(h.host, sizeof(h.host) - 1);
    if (r->head) {
        memcpy(h.head, r->head->there, sizeof(h.head));
        memcpy(h.here, r->head->here, sizeof(h.here));
    } else if (ssh && sscanf(ssh, "%63s %*s %63s", h.head, h.here) != 2) {
        h.head[0] = h.here[0] = '\0';
    }
    xbuf_reserve(&r->out, sizeof(FRAME_MAGIC));
    buf_put(&r->out, FRAME_MAGIC, strlen(FRAME_MAGIC));
    frame_hello_put(&r->out, &h);
}

static void read_signals(struct remote *r);

/* The file server of TMPDIR may not answer. */
struct writing {
    char folder[512];
    uint8_t *program;
    size_t len;
    int done_fd, rc;
    atomic_bool cancelled; /* nobody wants the copy any more: the written part is removed */
};

static int write_pieces(struct writing *w, const char *path)
{
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
    int rc = fd < 0 ? -errno : 0;
    for (size_t at = 0, n; rc == 0 && at < w->len && !atomic_load(&w->cancelled); at += n) {
        n = w->len - at < PIECE_MAX ? w->len - at : PIECE_MAX;
        rc = fd_write_all(fd, w->program + at, n);
    }
    return rc;
}

static void *write_it(void *arg)
{
    struct writing *w = arg;
    char path[600];
    if (mkdtemp(w->folder)) {
        snprintf(path, sizeof(path), "%s/program", w->folder);
        w->rc = write_pieces(w, path);
        if (atomic_load(&w->cancelled)) {
            unlink(path);
            rmdir(w->folder);
        }
    } else {
        w->rc = -errno;
        w->folder[0] = '\0';
    }
    eventfd_write(w->done_fd, 1);
    return NULL;
}

/* Waits for the thread, until a signal asks for the end or the head is gone: then the thread keeps
 * what it has, and gets a moment to remove what it has made. */
static bool is_written(struct remote *r, struct writing *w)
{
    struct pollfd f[] = {
        {w->done_fd, POLLIN, 0}, {r->signals, POLLIN, 0}, {STDIN_FILENO, POLLRDHUP, 0}};
    while (!r->stop_ns && !f[0].revents && !f[2].revents) {
        if (poll(f, 3, -1) > 0 && f[1].revents)
            read_signals(r);
    }
    if (f[0].revents)
        return true;
    atomic_store(&w->cancelled, true);
    poll(f, 1, CANCEL_MS);
    return false;
}

static int write_program(struct remote *r, const struct frame *f)
{
    const char *tmp = getenv("TMPDIR");
    struct writing *w = xcalloc(1, sizeof(*w));
    *w = (struct writing){.program = xmalloc(f->len + 1), .len = f->len};
    snprintf(w->folder, sizeof(w->folder), "%s/dlaunch.XXXXXX", tmp && *tmp ? tmp : "/tmp");
    memcpy(w->program, f->body, f->len);
    w->done_fd = eventfd(0, EFD_CLOEXEC);
    int rc = w->done_fd < 0 ? -errno : -thread_start(NULL, 0, write_it, w);
    if (rc == 0 && !is_written(r, w))
        return -ECANCELED;
    if (rc == 0) {
        rc = w->rc;
        strcpy(r->folder, w->folder);
    }
    close_fd(&w->done_fd);
    free(w->program);
    free(w);
    return rc;
}

static void remove_program(struct remote *r)
{
    if (!r->folder[0])
        return;
    const char *word = r->plan.program_at ? r->plan.argv[r->plan.program_at] : NULL;
    char *first = xasprintf("%s/program", r->folder);
    unlink(first);
    free(first);
    if (word)
        unlink(word);
    rmdir(r->folder);
}

/* The copied program keeps its name, which a worker may look at. */
static int use_program(struct remote *r)
{
    char **word = &r->plan.argv[r->plan.program_at], *slash = strrchr(*word, '/');
    char *from = xasprintf("%s/program", r->folder);
    char *to = xasprintf("%s/%s", r->folder, slash ? slash + 1 : *word);
    int rc = rename(from, to) < 0 ? -errno : 0;
    free(from);
    free(*word);
    *word = to;
    return rc;
}

/* Variables that would be options are not this job's: all its options are in the plan. */
static void set_environment(const struct plan_of_host *p)
{
    for (char **v = environ; *v;) {
        char *name = strncmp(*v, "DLAUNCH_", 8) == 0 || strncmp(*v, "PET_", 4) == 0
                         ? xstrndup(*v, strcspn(*v, "="))
                         : NULL;
        if (name)
            unsetenv(name); /* the rest moves up */
        else
            v++;
        free(name);
    }
    for (char **v = p->env; *v; v++) {
        char *eq = strchr(*v, '=');
        if (!eq || eq == *v)
            continue;
        char *name = xstrndup(*v, (size_t)(eq - *v));
        setenv(name, eq + 1, 1);
        free(name);
    }
    static const char *const paths[][2] = {{"PATH", "bin"}, {"LD_LIBRARY_PATH", "lib"}};
    for (size_t i = 0; *p->prefix && i < ARRAY_LEN(paths); i++) {
        const char *old = getenv(paths[i][0]);
        char *value =
            xasprintf("%s/%s%s%s", p->prefix, paths[i][1], old && *old ? ":" : "", old ? old : "");
        setenv(paths[i][0], value, 1);
        free(value);
    }
}

/* A file that only this process and its children know of. */
static int unnamed_file(const char *name)
{
    return memfd_create(name, MFD_CLOEXEC);
}

/* The token as a pipe, which the launcher reads to its end. -1: there is none. */
static int token_pipe(const struct plan_of_host *p)
{
    int ends[2];
    if (!*p->token || pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    int rc = fd_write_all(ends[1], p->token, strlen(p->token));
    close(ends[1]);
    if (rc == 0)
        return ends[0];
    close(ends[0]);
    return -1;
}

/* argv of the launcher: the plan's, with options behind the first word for the descriptors that it
 * gets. */
static char **launcher_argv(const struct remote *r, int *argc, int *noptions, int token, int events)
{
    int n = 0, at = 0;
    while (r->plan.argv[n])
        n++;
    char **argv = xcalloc((size_t)n + 4, sizeof(*argv));
    argv[at++] = r->plan.argv[0];
    if (token >= 0)
        argv[at++] = xasprintf("--token_fd=%d", token);
    if (r->json_fd >= 0)
        argv[at++] = xasprintf("--report=/proc/self/fd/%d", r->json_fd);
    if (events >= 0)
        argv[at++] = xasprintf("--events=/proc/self/fd/%d", events);
    *noptions = at - 1;
    for (int i = 1; i < n; i++)
        argv[at++] = r->plan.argv[i];
    *argc = at;
    return argv;
}

/* child: standard input, output and error; the log, the state, events (-1: not wanted). */
static int run_launcher(struct remote *r, const int child[6],
                        int (*launch)(const struct remote_job *, int, char **))
{
    struct remote_job job = {.log_fd = child[3],
                             .state_fd = child[4],
                             .report_fd = r->report_fd,
                             .columns = r->plan.columns,
                             .programs = r->plan.programs,
                             .inspect = *r->inspect ? r->inspect : NULL,
                             .listen_fd = r->plan.hosts_rendezvous ? r->listen_fd : 0};
    int argc, noptions;
    log_set_fd(job.log_fd);
    if (dup2(child[0], 0) < 0 || dup2(child[1], 1) < 0 || dup2(child[2], 2) < 0) {
        log_error("dup2: %s", strerror(errno));
        return 125;
    }
    for (int i = 0; i < 3; i++)
        close(child[i]);
    if (!job.listen_fd)
        close_fd(&r->listen_fd);
    if (chdir(r->plan.cwd) < 0) {
        log_error("cannot change to the folder %s: %s", r->plan.cwd, strerror(errno));
        return 2;
    }
    set_environment(&r->plan);
    char **argv = launcher_argv(r, &argc, &noptions, token_pipe(&r->plan), child[5]);
    int status = launch(&job, argc, argv);
    while (noptions > 0)
        free(argv[noptions--]);
    free(argv);
    return status;
}

/* A scheduler asks a job to stop by a signal to this process, the only one that it knows; it is
 * handed on to the launcher. */
static int open_signals(struct remote *r)
{
    static const int read[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_LEN(read); i++)
        sigaddset(&set, read[i]);
    r->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (r->signals < 0 || sigprocmask(SIG_BLOCK, &set, &r->mask) < 0)
        return -errno;
    return 0;
}

/* Makes the pipes and forks the launcher. 0, or -errno. */
static int start_launcher(struct remote *r, int (*launch)(const struct remote_job *, int, char **))
{
    int pipes[5][2] = {[4] = {-1, -1}}, state[2]; /* input, output, error, own lines, events */
    for (int i = 0; i < 4 + r->plan.events; i++) {
        if (pipe2(pipes[i], O_CLOEXEC) < 0)
            return -errno;
    }
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, state) < 0)
        return -errno;
    r->report_fd = unnamed_file("report");
    r->json_fd = r->plan.json ? unnamed_file("report.json") : -1;
    pid_t parent = getpid();
    r->launcher = fork();
    if (r->launcher < 0)
        return -errno;
    if (r->launcher == 0) {
        close(r->signals);
        host_stream_fini(&r->stream);
        forwards_fini(&r->forwards);
        sigprocmask(SIG_SETMASK, &r->mask, NULL);
        const int child[6] = {pipes[0][0], pipes[1][1], pipes[2][1],
                              pipes[3][1], state[1],    pipes[4][1]};
        prctl(PR_SET_NAME, "dlaunch");
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGPIPE, SIG_DFL);
        if (getppid() != parent)
            _exit(125);
        close(pipes[0][1]);
        close(state[0]);
        for (int i = 1; i < 5; i++)
            close_fd(&pipes[i][0]);
        exit(run_launcher(r, child, launch));
    }
    close(pipes[0][0]);
    close(state[1]);
    for (int i = 0; i < 4; i++) {
        static const enum frame_type types[] = {FRAME_OUT, FRAME_ERR, FRAME_LOG, FRAME_EVENTS};
        close_fd(&pipes[i + 1][1]);
        r->streams[i] = (struct stream){.fd = pipes[i + 1][0], .type = types[i]};
        if (r->streams[i].fd >= 0)
            fd_set_nonblock(r->streams[i].fd, true);
    }
    r->input_fd = pipes[0][1];
    fd_set_nonblock(r->input_fd, true);
    r->state_fd = state[0];
    close_fd(&r->listen_fd);
    return 0;
}

/* ---------------------------------------------------------------------------------- to the head */

static void head_is_gone(struct remote *r)
{
    if (r->head_gone)
        return;
    r->head_gone = true;
    r->out.len = 0;
    forwards_hang_up(&r->forwards);
    if (r->launcher <= 0)
        return;
    kill(r->launcher, SIGTERM);
    r->kill_ns = mono_ns() + GRACE_MS * 1000000ull;
}

static void put_data(struct remote *r, enum frame_type type, const uint8_t *p, size_t n)
{
    for (size_t part; n && !r->head_gone; p += part, n -= part) {
        part = n < FRAME_DATA_MAX ? n : FRAME_DATA_MAX;
        frame_put(&r->out, type, p, part);
    }
}

static bool has_to_write(const struct remote *r)
{
    return !r->head_gone && (r->out.len || host_stream_unsent(&r->stream));
}

static void write_head(struct remote *r)
{
    ssize_t n = host_stream_write(&r->stream, STDOUT_FILENO, r->out.data, r->out.len);
    if (n > 0)
        buf_consume(&r->out, (size_t)n);
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
        head_is_gone(r);
}

/* Writes all of it. A head that takes nothing is waited for, until a signal asks for the end: then
 * for LAST_S more. */
static void flush_head(struct remote *r)
{
    while (has_to_write(r)) {
        uint64_t now = mono_ns();
        struct pollfd f[] = {{STDOUT_FILENO, POLLOUT, 0}, {r->signals, POLLIN, 0}};
        if (r->stop_ns && now >= r->stop_ns + LAST_S * 1000000000ull)
            head_is_gone(r);
        else if (poll(f, 2, r->stop_ns ? 100 : -1) <= 0)
            continue;
        if (f[1].revents)
            read_signals(r);
        if (f[0].revents)
            write_head(r);
    }
}

/* Why there is no job: to ssh, which shows it at the head, or to the head itself. */
static void complain(struct remote *r, const char *what, int errnum)
{
    char why[ERR_TEXT_MAX];
    char *text = xasprintf("%c%s: %s", LOG_LEVEL_ERROR, what, err_text(errnum, why));
    if (r->head)
        put_data(r, FRAME_LOG, (const uint8_t *)text, strlen(text + 1) + 1);
    else
        fprintf(stderr, "%s\n", text + 1);
    free(text);
    flush_head(r);
}

/* -------------------------------------------------------------------------- what the head sends */

/* Returns the signal of a frame, which is one that a launcher may get. */
static int signal_of(const struct frame *f)
{
    int signo = f->len == 1 ? f->body[0] : 0;
    return signo > 0 && signo < SIGRTMIN && signo != SIGKILL && signo != SIGSTOP ? signo : 0;
}

/* Frames that may come before the launcher runs. */
static void on_early_frame(struct remote *r, const struct frame *f)
{
    int rc;
    if (f->type == FRAME_PROGRAM && (rc = write_program(r, f)) < 0) {
        const char *tmp = getenv("TMPDIR");
        char *what = xasprintf("cannot write the program under %s", tmp ? tmp : "/tmp");
        complain(r, what, -rc);
        free(what);
        r->refused = 125;
    } else if (f->type == FRAME_PLAN && plan_get(f, &r->plan) == 0) {
        r->planned = true;
    } else if (f->type != FRAME_PROGRAM) {
        r->refused = 2;
    }
    if (f->type == FRAME_PLAN)
        explicit_bzero((void *)f->body, f->len); /* there is a token in it */
}

/* The path of the program that has been copied to this host. NULL: there is none. */
static char *copied_program(const struct remote *r)
{
    if (!r->folder[0])
        return NULL;
    return r->planned && r->plan.program_at ? xasprintf("%s", r->plan.argv[r->plan.program_at])
                                            : xasprintf("%s/program", r->folder);
}

static void on_forward(struct remote *r, const struct frame *f)
{
    char *program = copied_program(r);
    if (forwards_take(&r->forwards, f, program, &r->out) < 0)
        head_is_gone(r);
    free(program);
}

static void on_frame(struct remote *r, const struct frame *f)
{
    switch (f->type) {
    case FRAME_INPUT:
        xbuf_reserve(&r->input, f->len);
        buf_put(&r->input, f->body, f->len);
        break;
    case FRAME_INPUT_END:
        r->input_ended = true;
        break;
    case FRAME_SIGNAL:
        if (signal_of(f) && r->launcher > 0)
            kill(r->launcher, signal_of(f));
        break;
    case FRAME_UNREAD:
        if (f->len == 1 && (f->body[0] == 1 || f->body[0] == 2))
            close_fd(&r->streams[f->body[0] - 1].fd);
        break;
    default:
        head_is_gone(r);
    }
}

static void read_signals(struct remote *r)
{
    struct signalfd_siginfo si;
    while (read(r->signals, &si, sizeof(si)) == sizeof(si)) {
        int signo = (int)si.ssi_signo;
        if (signo == SIGCHLD) {
            forwards_reap(&r->forwards, &r->out);
            continue;
        }
        if (signo != SIGUSR1 && signo != SIGUSR2 && !r->stop_ns)
            r->stop_ns = mono_ns();
        if (r->launcher > 0)
            kill(r->launcher, signo);
        else if (!r->planned)
            head_is_gone(r);
    }
}

/* Reads the available bytes. False: the stream has ended. */
static bool read_head(struct remote *r)
{
    ssize_t n = host_stream_read(&r->stream, STDIN_FILENO, &r->in);
    return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

/* Frames behind the plan are for the launcher, which must run first. */
static void take_frames(struct remote *r)
{
    struct frame f;
    size_t at = 0;
    bool early = !r->planned;
    long n = 0;
    while (!(early && r->planned) && !r->refused &&
           (n = frame_get(r->in.data + at, r->in.len - at, &f)) > 0) {
        if (f.type == FRAME_FORWARD)
            on_forward(r, &f);
        else if (early)
            on_early_frame(r, &f);
        else
            on_frame(r, &f);
        at += (size_t)n;
    }
    buf_consume(&r->in, at);
    if (n < 0)
        head_is_gone(r);
}

/* ------------------------------------------------------------------------ what the head is sent */

/* dlaunch's own lines, each with its level in front (log_set_fd()). */
static void put_lines(struct remote *r, const uint8_t *p, size_t n)
{
    for (const uint8_t *end; n && (end = memchr(p, '\n', n));
         n -= (size_t)(end + 1 - p), p = end + 1) {
        uint8_t line[FRAME_DATA_MAX];
        size_t len = (size_t)(end - p);
        if (len < 2 || len > sizeof(line))
            continue;
        memcpy(line, p, len);
        line[0] = (uint8_t)(p[0] - '0');
        if (!r->head_gone)
            frame_put(&r->out, FRAME_LOG, line, len);
    }
}

/* Whole lines go on; the rest of one waits for its end, unless it has waited long or is long. */
static void pass_on(struct remote *r, struct stream *s, bool all)
{
    const uint8_t *nl = s->kept.len ? memrchr(s->kept.data, '\n', s->kept.len) : NULL;
    size_t n = nl ? (size_t)(nl + 1 - s->kept.data) : 0;
    if (all || s->kept.len - n >= FRAME_DATA_MAX)
        n = s->kept.len;
    if (n == 0)
        return;
    if (s->type == FRAME_LOG)
        put_lines(r, s->kept.data, n);
    else
        put_data(r, s->type, s->kept.data, n);
    buf_consume(&s->kept, n);
}

static void read_stream(struct remote *r, struct stream *s)
{
    xbuf_reserve(&s->kept, FRAME_DATA_MAX);
    ssize_t n = read(s->fd, s->kept.data + s->kept.len, FRAME_DATA_MAX);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n > 0) {
        s->kept.len += (size_t)n;
        s->since_ns = mono_ns();
        pass_on(r, s, false);
        return;
    }
    pass_on(r, s, true);
    close_fd(&s->fd);
}

static void read_state(struct remote *r)
{
    char text[256];
    ssize_t n;
    while ((n = recv(r->state_fd, text, sizeof(text) - 1, 0)) > 0) {
        if (!r->began && n >= 14 && memcmp(text, "STATUS=RUNNING", 14) == 0) {
            r->began = true;
            put_data(r, FRAME_BEGAN, (const uint8_t *)"", 1);
        }
        text[n] = '\0';
        unsigned long long epoch;
        if (sscanf(text, REMOTE_DECIDED, &epoch, &r->result.counter) == 2) {
            r->result.decided = true;
            r->result.epoch = epoch;
        }
    }
}

static void write_input(struct remote *r)
{
    uint32_t n = 0;
    if (r->input.len) {
        ssize_t w = write(r->input_fd, r->input.data, r->input.len);
        if (w < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (w < 0) { /* nobody reads it: as with a pipe of the shell, that is the writer's loss */
            n = (uint32_t)r->input.len;
            close_fd(&r->input_fd);
        } else {
            n = (uint32_t)w;
        }
        buf_consume(&r->input, n);
    }
    if (n && !r->head_gone) {
        struct buf taken = BUF_INIT;
        buf_u32(&taken, n);
        frame_put(&r->out, FRAME_TAKEN, taken.data, taken.len);
        buf_fini(&taken);
    }
    if (r->input_ended && !r->input.len)
        close_fd(&r->input_fd);
}

/* ------------------------------------------------------------------------------------- the loop */

static int ms_until(uint64_t when_ns, uint64_t now, int most)
{
    if (when_ns <= now)
        return 0;
    uint64_t ms = (when_ns - now + 999999) / 1000000;
    return most >= 0 && ms > (uint64_t)most ? most : (int)ms;
}

/* Whether the launcher's guardian and agent are gone, and their output is read. */
static bool is_over(struct remote *r, uint64_t now)
{
    if (r->streams[LOG].fd >= 0)
        return false;
    if (!r->drain_ns)
        r->drain_ns = now + DRAIN_MS * 1000000ull;
    return (r->streams[OUT].fd < 0 && r->streams[ERR].fd < 0 && r->streams[EVENTS].fd < 0) ||
           now >= r->drain_ns;
}

static int next_timeout(const struct remote *r, uint64_t now)
{
    int ms = -1;
    for (int i = 0; i < 2; i++) {
        if (r->streams[i].kept.len)
            ms = ms_until(r->streams[i].since_ns + PARTIAL_MS * 1000000ull, now, ms);
    }
    if (r->kill_ns)
        ms = ms_until(r->kill_ns, now, ms);
    return r->drain_ns ? ms_until(r->drain_ns, now, ms) : ms;
}

static void turn(struct remote *r)
{
    uint64_t now = mono_ns();
    bool full = r->out.len >= QUEUE_MAX;
    size_t nforwards = forwards_polled(&r->forwards);
    struct pollfd own[] = {
        {r->head_gone ? -1 : STDIN_FILENO, POLLIN, 0},
        {has_to_write(r) ? STDOUT_FILENO : -1, POLLOUT, 0},
        {full ? -1 : r->streams[OUT].fd, POLLIN, 0},
        {full ? -1 : r->streams[ERR].fd, POLLIN, 0},
        {r->streams[LOG].fd, POLLIN, 0},
        {r->state_fd, POLLIN, 0},
        {r->input.len || r->input_ended ? r->input_fd : -1, POLLOUT, 0},
        {full ? -1 : r->streams[EVENTS].fd, POLLIN, 0},
        {r->signals, POLLIN, 0},
    };
    struct pollfd *f = r->fds = xrealloc(r->fds, sizeof(own) + nforwards * sizeof(*f));
    struct pollfd *of_forwards = f + ARRAY_LEN(own);
    memcpy(f, own, sizeof(own));
    forwards_poll(&r->forwards, of_forwards, full);
    if (poll(f, ARRAY_LEN(own) + nforwards, next_timeout(r, now)) < 0)
        return;
    forwards_go_on(&r->forwards, of_forwards, &r->out);
    if (f[0].revents && !read_head(r))
        head_is_gone(r);
    take_frames(r);
    for (int i = 0; i < 3; i++) { /* output comes before what the launcher has said after it */
        bool ready = f[i + 2].revents || (f[LOG + 2].revents && !full);
        if (ready && r->streams[i].fd >= 0)
            read_stream(r, &r->streams[i]);
    }
    if (f[7].revents && r->streams[EVENTS].fd >= 0)
        read_stream(r, &r->streams[EVENTS]);
    if (f[8].revents)
        read_signals(r);
    if (f[5].revents)
        read_state(r);
    if (f[6].revents && r->input_fd >= 0)
        write_input(r);
    now = mono_ns();
    for (int i = 0; i < 2; i++) {
        if (r->streams[i].kept.len && now - r->streams[i].since_ns >= PARTIAL_MS * 1000000ull)
            pass_on(r, &r->streams[i], true);
    }
    if (r->kill_ns && now >= r->kill_ns) {
        if (r->launcher > 0)
            kill(r->launcher, SIGKILL);
        r->kill_ns = 0;
    }
    if (f[1].revents)
        write_head(r);
}

static void send_file(struct remote *r, enum frame_type type, int fd)
{
    off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    if (size <= 0 || size > FRAME_TEXT_MAX || r->head_gone)
        return;
    char *text = xmalloc((size_t)size);
    if (pread(fd, text, (size_t)size, 0) == size)
        frame_put(&r->out, type, text, (size_t)size);
    free(text);
}

static int wait_for_launcher(struct remote *r)
{
    int status = 0;
    struct pollfd f = {r->signals, POLLIN, 0};
    while (waitpid(r->launcher, &status, WNOHANG) == 0) { /* the last output was read already */
        if (poll(&f, 1, 100) > 0)
            read_signals(r);
        if (r->stop_ns && mono_ns() >= r->stop_ns + LAST_S * 1000000000ull)
            kill(r->launcher, SIGKILL);
    }
    r->launcher = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Reads until the head closes: closing a socket with unread bytes resets the connection, and a
 * reset may overtake the last frames. */
static void await_close(void)
{
    char rest[4096];
    struct pollfd f = {STDIN_FILENO, POLLIN, 0};
    uint64_t end = mono_ns() + CLOSE_S * 1000000000ull;
    shutdown(STDOUT_FILENO, SHUT_WR);
    while (poll(&f, 1, ms_until(end, mono_ns(), -1)) > 0 &&
           read(STDIN_FILENO, rest, sizeof(rest)) > 0)
        ;
}

static int finish(struct remote *r)
{
    pass_on(r, &r->streams[OUT], true);
    pass_on(r, &r->streams[ERR], true);
    pass_on(r, &r->streams[EVENTS], true);
    read_state(r);
    r->result.status = wait_for_launcher(r);
    send_file(r, FRAME_REPORT, r->report_fd);
    send_file(r, FRAME_JSON, r->json_fd);
    if (!r->head_gone)
        frame_exit_put(&r->out, &r->result);
    r->drain_ns = 0;
    while (r->forwards.n && !r->head_gone)
        turn(r);
    flush_head(r);
    if (r->head)
        await_close();
    remove_program(r);
    return r->result.status;
}

static int remote_run(struct remote *r,
                      int (*launch)(const struct remote_job *job, int argc, char **argv))
{
    int rc = open_signals(r);
    say_hello(r);
    fd_set_nonblock(STDOUT_FILENO, true);
    while (rc == 0 && !r->planned && !r->head_gone && !r->refused)
        turn(r);
    if (rc == 0 && !r->planned)
        rc = r->refused ? r->refused : 125; /* else nobody wants the job any more */
    if (rc == 0 && r->plan.program_at)
        rc = use_program(r);
    if (rc == 0)
        rc = start_launcher(r, launch);
    if (rc != 0) {
        if (rc < 0)
            complain(r, "cannot start the job", -rc);
        remove_program(r);
        return rc < 0 ? 125 : rc;
    }
    take_frames(r);
    while (!is_over(r, mono_ns()))
        turn(r);
    return finish(r);
}

static void remote_fini(struct remote *r)
{
    plan_fini(&r->plan);
    host_stream_fini(&r->stream);
    forwards_fini(&r->forwards);
    free(r->fds);
    close_fd(&r->inspect_fd);
    buf_fini(&r->in);
    buf_fini(&r->out);
    buf_fini(&r->input);
    for (int i = 0; i < 4; i++)
        buf_fini(&r->streams[i].kept);
}

/* Takes over what has been copied to this folder, which goes: the files are needed no more by their
 * names. */
static void take_copies(struct remote *r, const char *folder)
{
    char *dlaunch = xasprintf("%s/dlaunch", folder);
    char *inspect = xasprintf("%s/" INSPECT_NAME, folder);
    struct stat st;
    r->inspect_fd = open(inspect, O_RDONLY | O_CLOEXEC);
    if (r->inspect_fd >= 0 && fstat(r->inspect_fd, &st) == 0 && st.st_size > 0) {
        snprintf(r->inspect, sizeof(r->inspect), "/proc/self/fd/%d", r->inspect_fd);
        r->forwards.inspect = r->inspect;
    }
    unlink(dlaunch);
    unlink(inspect);
    rmdir(folder);
    free(dlaunch);
    free(inspect);
}

int remote_main(const struct remote_head *head,
                int (*launch)(const struct remote_job *job, int argc, char **argv))
{
    struct remote r = {.head = head,
                       .listen_fd = -1,
                       .state_fd = -1,
                       .input_fd = -1,
                       .signals = -1,
                       .inspect_fd = -1,
                       .streams = {{.fd = -1}, {.fd = -1}, {.fd = -1}, {.fd = -1}},
                       .launcher = -1};
    const char *copied = getenv("DLAUNCH_COPIED"); /* a folder: reach.c has put dlaunch there */
    if (isatty(STDIN_FILENO)) {
        log_error("--from_head is for dlaunch itself, which reads a plan from standard input");
        return 2;
    }
    if (head)
        r.stream = head->stream;
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_NAME, "dl-host");
    if (copied)
        take_copies(&r, copied);
    int status = remote_run(&r, launch);
    remote_fini(&r);
    return status;
}
