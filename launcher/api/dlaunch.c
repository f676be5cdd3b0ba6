/* dlaunch.c: a job's dlaunch as a child, which gets its plan and says what happens through a pair
 * of sockets (launcher/hosts/frame.h). */
#include "launcher/api/dlaunch.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/parse.h"
#include "launcher/hosts/frame.h"

#define PLAN_MS 10000 /* for a dlaunch that does not take its plan */
#define END_MS  5000  /* for one that was told to end; it needs about half a second */

extern char **environ;

struct dlaunch_job {
    int fd;      /* -1 in a forked child, see g_jobs */
    int peer;    /* the other end, until dlaunch has it; -1 */
    pid_t pid;   /* -1: it has been waited for */
    pid_t owner; /* the process that has started it: a forked child has a copy only */
    struct buf in;
    size_t used;    /* of `in`: the frame of the last event */
    bool hello;     /* dlaunch has said who it is */
    bool ended;     /* DLAUNCH_END was the last event */
    struct buf log; /* lines of --events, of which `taken` bytes are done with */
    size_t taken;
    char *name;
    char *text; /* of the last event, with a NUL */
    char *why;  /* of the job's end: an error of dlaunch, or what the event "finish" says */
    char *report, *json; /* NULL: none */
    dlaunch_event event;
    struct dlaunch_job *next; /* of g_jobs */
};

/* dlaunch waits for the end of the socket, by which it learns that the program is gone. A child
 * that is forked and does not exec would keep the socket open, close-on-exec or not: it closes its
 * copies at once. */
static struct {
    pthread_mutex_t lock;
    pthread_once_t once;
    struct dlaunch_job *first;
} g_jobs = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static void before_fork(void)
{
    pthread_mutex_lock(&g_jobs.lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&g_jobs.lock);
}

static void after_fork_in_child(void)
{
    for (struct dlaunch_job *j = g_jobs.first; j; j = j->next)
        close_fd(&j->fd), close_fd(&j->peer);
    pthread_mutex_unlock(&g_jobs.lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void list_job(struct dlaunch_job *j)
{
    pthread_once(&g_jobs.once, watch_forks);
    pthread_mutex_lock(&g_jobs.lock);
    j->next = g_jobs.first;
    g_jobs.first = j;
    pthread_mutex_unlock(&g_jobs.lock);
}

static void unlist_job(struct dlaunch_job *j)
{
    pthread_mutex_lock(&g_jobs.lock);
    for (struct dlaunch_job **at = &g_jobs.first; *at; at = &(*at)->next) {
        if (*at == j) {
            *at = j->next;
            break;
        }
    }
    pthread_mutex_unlock(&g_jobs.lock);
}

__attribute__((format(printf, 4, 5))) static int refuse(char *why, size_t cap, int code,
                                                        const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (why && cap)
        vsnprintf(why, cap, fmt, ap);
    va_end(ap);
    return code;
}

/* ------------------------------------------------------------------------------------ the start */

struct words {
    char **list;
    size_t n;
};

static void add_word(struct words *w, char *text)
{
    w->list = xrealloc(w->list, (w->n + 2) * sizeof(*w->list));
    w->list[w->n++] = text;
    w->list[w->n] = NULL;
}

static void add_words(struct words *w, const char *const *list)
{
    for (; list && *list; list++)
        add_word(w, xstrdup(*list));
}

static void free_words(struct words *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->list[i]);
    free(w->list);
}

/* The options of a program that was built with this header, or with an older one, whose struct is
 * shorter and has no version; newer ones are refused, because what they ask for is not known. */
static int take_opts(const dlaunch_opts *given, dlaunch_opts *o, char *why, size_t cap)
{
    *o = (dlaunch_opts)DLAUNCH_OPTS_INIT;
    if (!given || given->size < offsetof(dlaunch_opts, version))
        return refuse(why, cap, -EINVAL, "opts is not set up by DLAUNCH_OPTS_INIT");
    if (given->size > sizeof(*o) ||
        (given->size == sizeof(*o) && given->version != DLAUNCH_OPTS_VERSION))
        return refuse(why, cap, -EINVAL,
                      "opts is that of a newer dlaunch.h than the library's, " DLAUNCH_VERSION);
    memcpy(o, given, given->size < sizeof(*o) ? offsetof(dlaunch_opts, version) : sizeof(*o));
    return 0;
}

static int check_opts(const dlaunch_opts *o, char *why, size_t cap)
{
    if (!o->argv || !o->argv[0] || !o->argv[0][0])
        return refuse(why, cap, -EINVAL, "argv names no program");
    if (o->nproc_per_node < 0)
        return refuse(why, cap, -EINVAL, "nproc_per_node is %d; it must be 0 or more",
                      o->nproc_per_node);
    if (o->max_restarts < -1)
        return refuse(why, cap, -EINVAL, "max_restarts is %d; it must be -1 or more",
                      o->max_restarts);
    for (const char *const *v = o->env; v && *v; v++) {
        size_t len = strcspn(*v, "=");
        if (!(*v)[len] || !parse_is_variable(*v, len))
            return refuse(why, cap, -EINVAL,
                          "env: '%.60s' is not NAME=value (letters, digits and _ in the name, not "
                          "beginning with a digit)",
                          *v);
    }
    for (const char *const *v = o->options; v && *v; v++) {
        if ((*v)[0] != '-' || !(*v)[1])
            return refuse(why, cap, -EINVAL,
                          "options: '%.60s' does not begin with '-'; write an option and its "
                          "value in one word, --name=value",
                          *v);
        if (strncmp(*v, "--event", 7) == 0 || strncmp(*v, "--report", 8) == 0 ||
            strncmp(*v, "--daemon", 8) == 0)
            return refuse(why, cap, -EINVAL, "options: %.60s is not for a job of a program; %s", *v,
                          (*v)[2] == 'e'   ? "dlaunch_job_next() gives the events"
                          : (*v)[2] == 'r' ? "DLAUNCH_END has the report"
                                           : "the job ends with the program");
    }
    return 0;
}

static void put_plan(struct buf *to, const dlaunch_opts *o)
{
    char cwd[PATH_MAX];
    const char *token = getenv("DLAUNCH_TOKEN");
    struct words argv = {0};
    add_word(&argv, xstrdup("dlaunch"));
    if (o->hosts)
        add_word(&argv, xasprintf("--host=%s", o->hosts));
    if (o->nnodes)
        add_word(&argv, xasprintf("--nnodes=%s", o->nnodes));
    if (o->nproc_per_node)
        add_word(&argv, xasprintf("--nproc_per_node=%d", o->nproc_per_node));
    if (o->max_restarts >= 0)
        add_word(&argv, xasprintf("--max_restarts=%d", o->max_restarts));
    add_words(&argv, o->options);
    add_word(&argv, xstrdup("--"));
    add_words(&argv, o->argv);
    struct plan_of_host plan = {
        .cwd = (char *)(o->cwd                     ? o->cwd
                        : getcwd(cwd, sizeof(cwd)) ? cwd
                                                   : "/"),
        .name = (char *)"",
        .argv = argv.list,
        .env = (char **)o->env,
        .token = (char *)(token ? token : ""),
        .prefix = (char *)"",
        .json = true,
        .events = true,
    };
    plan_put(to, &plan);
    frame_put(to, FRAME_INPUT_END, NULL, 0);
    free_words(&argv);
}

/* dlaunch gets a process group of its own: a Ctrl-C goes to the calling program alone, which
 * decides. */
static int start_dlaunch(struct dlaunch_job *j, const char *program, int end)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    char *argv[] = {(char *)"dlaunch", (char *)"--from_head", NULL};
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attr);
    int rc = posix_spawn_file_actions_adddup2(&files, end, STDIN_FILENO);
    if (rc == 0)
        rc = posix_spawn_file_actions_adddup2(&files, end, STDOUT_FILENO);
    if (rc == 0)
        rc = posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                        POSIX_SPAWN_SETPGROUP);
    if (rc == 0)
        rc = posix_spawnp(&j->pid, program, &files, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    if (rc != 0)
        j->pid = -1;
    return -rc;
}

/* Writes all of it. dlaunch takes its plan at once, and each signal. */
static int write_frames(struct dlaunch_job *j, const struct buf *b)
{
    uint64_t until = mono_ns() + PLAN_MS * 1000000ull;
    for (size_t at = 0; at < b->len;) {
        struct pollfd f = {j->fd, POLLOUT, 0};
        ssize_t n = send(j->fd, b->data + at, b->len - at, MSG_NOSIGNAL);
        if (n > 0)
            at += (size_t)n;
        else if (errno != EAGAIN && errno != EINTR)
            return -errno;
        else if (mono_ns() >= until)
            return -ETIMEDOUT;
        else
            poll(&f, 1, 100);
    }
    return 0;
}

int dlaunch_version(void)
{
    int major = 0, minor = 0, patch = 0;
    sscanf(DLAUNCH_VERSION, "%d.%d.%d", &major, &minor, &patch);
    return DLAUNCH_VERSION_NUMBER(major, minor, patch);
}

/* Another thread may fork meanwhile: the child has to know both ends. */
static int open_socket(struct dlaunch_job *j)
{
    int ends[2];
    pthread_mutex_lock(&g_jobs.lock);
    int rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0 ? -errno : 0;
    if (rc == 0) {
        j->fd = ends[0];
        j->peer = ends[1];
    }
    pthread_mutex_unlock(&g_jobs.lock);
    return rc;
}

static void close_peer(struct dlaunch_job *j)
{
    pthread_mutex_lock(&g_jobs.lock);
    close_fd(&j->peer);
    pthread_mutex_unlock(&g_jobs.lock);
}

int dlaunch_job_start(const dlaunch_opts *given, dlaunch_job **job, char *why, size_t cap)
{
    dlaunch_opts taken, *o = &taken;
    int rc = take_opts(given, o, why, cap);
    struct buf plan = BUF_INIT;
    *job = NULL;
    rc = rc < 0 ? rc : check_opts(o, why, cap);
    if (rc < 0)
        return rc;
    const char *program = o->dlaunch ? o->dlaunch : getenv("DLAUNCH");
    program = program && *program ? program : "dlaunch";
    struct dlaunch_job *j = xcalloc(1, sizeof(*j));
    j->fd = j->peer = -1;
    j->owner = getpid();
    list_job(j);
    if ((rc = open_socket(j)) < 0) {
        refuse(why, cap, rc, "socketpair: %s", strerror(-rc));
        dlaunch_job_free(j);
        return rc;
    }
    fd_set_nonblock(j->fd, true);
    rc = start_dlaunch(j, program, j->peer);
    close_peer(j);
    if (rc < 0) {
        refuse(why, cap, rc, "cannot run %s: %s", program, strerror(-rc));
        dlaunch_job_free(j);
        return rc;
    }
    put_plan(&plan, o);
    rc = write_frames(j, &plan);
    explicit_bzero(plan.data, plan.len);
    buf_fini(&plan);
    if (rc < 0) {
        refuse(why, cap, rc, "%s does not take its plan: %s", program, strerror(-rc));
        dlaunch_job_free(j);
        return rc;
    }
    *job = j;
    return 0;
}

/* --------------------------------------------------------------------------------------- events */

static const dlaunch_event *give(struct dlaunch_job *j, enum dlaunch_event_type type,
                                 const void *data, size_t n)
{
    free(j->text);
    j->text = xstrndup(data, n);
    if (n) /* which may hold a NUL */
        memcpy(j->text = xrealloc(j->text, n + 1), data, n);
    j->text[n] = '\0';
    j->event = (dlaunch_event){
        .type = type, .data = j->text, .len = n, .name = "", .report = "", .report_json = ""};
    return &j->event;
}

static const dlaunch_event *give_end(struct dlaunch_job *j, int status, const char *why)
{
    give(j, DLAUNCH_END, why, strlen(why));
    j->ended = true;
    j->event.exit_status = status;
    j->event.report = j->report ? j->report : "";
    j->event.report_json = j->json ? j->json : "";
    return &j->event;
}

/* The text behind "key":" in a line of dlaunch's JSON, malloc'ed; "" if it is not there. Texts of
 * events are plain lines: of the escapes only those of the quote and the backslash can be in them,
 * and control characters, which become a question mark. */
static char *json_text(const char *line, const char *key)
{
    const char *p = strstr(line, key);
    char *out = xmalloc(strlen(line) + 1), *to = out;
    for (p = p ? p + strlen(key) : ""; *p && *p != '"'; p++) {
        bool escape = *p == '\\' && p[1];
        p += escape;
        *to++ = (char)(escape && *p != '"' && *p != '\\' ? '?' : *p);
        if (escape && *p == 'u' && strnlen(p, 5) == 5)
            p += 4;
    }
    *to = '\0';
    return out;
}

static void keep_why(struct dlaunch_job *j, char *why)
{
    free(j->why);
    j->why = why;
}

/* The next whole line of --events, if there is one. */
static const dlaunch_event *next_line(struct dlaunch_job *j)
{
    const uint8_t *line = j->log.data + j->taken;
    const uint8_t *end = j->log.len > j->taken ? memchr(line, '\n', j->log.len - j->taken) : NULL;
    if (!end) {
        buf_consume(&j->log, j->taken);
        j->taken = 0;
        return NULL;
    }
    j->taken += (size_t)(end + 1 - line);
    give(j, DLAUNCH_EVENT, line, (size_t)(end - line));
    free(j->name);
    j->event.name = j->name = json_text(j->text, "\"name\":\"");
    if (strcmp(j->name, "finish") == 0)
        keep_why(j, json_text(j->text, "\"text\":\""));
    return &j->event;
}

static void keep_text(char **to, const struct frame *f)
{
    free(*to);
    *to = xstrndup((const char *)f->body, f->len);
}

static const dlaunch_event *on_hello(struct dlaunch_job *j, const struct frame *f)
{
    struct frame_hello h;
    char why[256], differs[160];
    if (frame_hello_get(f, &h) < 0)
        return give_end(j, 125, "the program dlaunch has said something else than its version");
    if (!frame_hello_differs(&h, differs))
        return NULL;
    shutdown(j->fd, SHUT_RDWR);
    snprintf(why, sizeof(why), "the program dlaunch does not fit this library: %s", differs);
    return give_end(j, 125, why);
}

/* NULL: the frame is not an event. */
static const dlaunch_event *on_frame(struct dlaunch_job *j, const struct frame *f)
{
    switch (f->type) {
    case FRAME_HELLO:
        return on_hello(j, f);
    case FRAME_OUT:
        return give(j, DLAUNCH_OUT, f->body, f->len);
    case FRAME_ERR:
        return give(j, DLAUNCH_ERR, f->body, f->len);
    case FRAME_LOG:
        if (f->len < 1)
            return NULL;
        give(j, DLAUNCH_LOG, f->body + 1, f->len - 1);
        j->event.level = (enum dlaunch_level)f->body[0];
        if (j->event.level == DLAUNCH_ERROR)
            keep_why(j, xstrdup(j->text));
        return &j->event;
    case FRAME_EVENTS:
        xbuf_reserve(&j->log, f->len);
        buf_put(&j->log, f->body, f->len);
        return next_line(j);
    case FRAME_REPORT:
        keep_text(&j->report, f);
        return NULL;
    case FRAME_JSON:
        keep_text(&j->json, f);
        return NULL;
    case FRAME_EXIT: {
        struct frame_exit x;
        int status = frame_exit_get(f, &x) == 0 ? x.status : 125;
        const char *why = j->why ? j->why : "dlaunch has given no reason";
        return give_end(j, status, status ? why : "");
    }
    default: /* BEGAN: there is an event for that; TAKEN: no input was sent */
        return NULL;
    }
}

/* Waits for dlaunch, whose input is at its end, and kills one that does not end. Returns the status
 * of waitpid(2), or -1. */
static int reap(struct dlaunch_job *j)
{
    int pidfd = (int)syscall(SYS_pidfd_open, j->pid, 0), status, rc = 0;
    struct pollfd f = {pidfd, POLLIN, 0};
    while (pidfd >= 0 && (rc = poll(&f, 1, END_MS)) < 0 && errno == EINTR)
        ;
    if (pidfd >= 0 && rc == 0)
        kill(j->pid, SIGKILL); /* dlaunch's guardian ends the workers */
    close_fd(&pidfd);
    while ((rc = waitpid(j->pid, &status, 0)) < 0 && errno == EINTR)
        ;
    j->pid = -1;
    return rc < 0 ? -1 : status;
}

/* dlaunch has not told how the job ended. */
static const dlaunch_event *lost(struct dlaunch_job *j)
{
    char why[128];
    shutdown(j->fd, SHUT_RDWR);
    int status = reap(j);
    if (status >= 0 && WIFSIGNALED(status))
        snprintf(why, sizeof(why), "the program dlaunch was killed by signal %d", WTERMSIG(status));
    else
        snprintf(why, sizeof(why), "the program dlaunch has ended without a word, with status %d",
                 status >= 0 ? WEXITSTATUS(status) : -1);
    return give_end(j, 125, why);
}

/* Reads once. False: the other end is closed. */
static bool read_more(struct dlaunch_job *j, bool *any)
{
    xbuf_reserve(&j->in, FRAME_DATA_MAX);
    ssize_t n = recv(j->fd, j->in.data + j->in.len, j->in.cap - j->in.len, 0);
    *any = n > 0;
    if (n > 0)
        j->in.len += (size_t)n;
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* The next frame that has come. 1; 0: none; -EPROTO. */
static int take_frame(struct dlaunch_job *j, struct frame *f)
{
    size_t magic = strlen(FRAME_MAGIC);
    if (!j->hello && j->in.len >= magic) {
        if (memcmp(j->in.data, FRAME_MAGIC, magic) != 0)
            return -EPROTO;
        j->hello = true;
        j->used = magic;
    }
    if (!j->hello)
        return 0;
    long n = frame_get(j->in.data + j->used, j->in.len - j->used, f);
    if (n > 0)
        j->used += (size_t)n;
    if (n != 0)
        return n > 0 ? 1 : -EPROTO;
    buf_consume(&j->in, j->used);
    j->used = 0;
    return 0;
}

const dlaunch_event *dlaunch_job_next(dlaunch_job *j)
{
    if (j->owner != getpid()) /* a forked child would take bytes from the owner */
        return NULL;
    const dlaunch_event *e = j->ended ? NULL : next_line(j);
    while (!e && !j->ended) {
        struct frame f;
        bool any;
        int rc = take_frame(j, &f);
        if (rc < 0) {
            shutdown(j->fd, SHUT_RDWR);
            return give_end(j, 125, "what was started is not dlaunch: its answer makes no sense");
        }
        if (rc > 0)
            e = on_frame(j, &f);
        else if (!read_more(j, &any))
            return lost(j);
        else if (!any)
            return NULL;
    }
    return e;
}

const dlaunch_event *dlaunch_job_wait(dlaunch_job *j, int timeout_ms)
{
    uint64_t until = mono_ns() + (timeout_ms > 0 ? (uint64_t)timeout_ms * 1000000 : 0);
    for (;;) {
        const dlaunch_event *e = dlaunch_job_next(j);
        struct pollfd f = {j->fd, POLLIN, 0};
        uint64_t now = mono_ns();
        if (e || j->ended || (timeout_ms >= 0 && now >= until))
            return e;
        if (j->owner != getpid())
            return NULL;
        poll(&f, 1, timeout_ms < 0 ? -1 : (int)((until - now + 999999) / 1000000));
    }
}

int dlaunch_job_fd(const dlaunch_job *j)
{
    return j->fd;
}

int dlaunch_job_signal(dlaunch_job *j, int signo)
{
    struct buf b = BUF_INIT;
    uint8_t byte = (uint8_t)signo;
    if (signo <= 0 || signo >= SIGRTMIN || signo == SIGKILL || signo == SIGSTOP)
        return -EINVAL;
    if (j->owner != getpid())
        return -EPERM;
    if (j->ended)
        return -ESRCH;
    frame_put(&b, FRAME_SIGNAL, &byte, 1);
    int rc = write_frames(j, &b);
    buf_fini(&b);
    return rc == -EPIPE || rc == -ECONNRESET ? -ESRCH : rc;
}

void dlaunch_job_free(dlaunch_job *j)
{
    if (!j)
        return;
    unlist_job(j);
    if (j->owner == getpid() && j->fd >= 0)
        shutdown(j->fd, SHUT_RDWR); /* whoever else has a copy */
    close_fd(&j->fd);
    if (j->pid > 0 && j->owner == getpid())
        reap(j);
    buf_fini(&j->in);
    buf_fini(&j->log);
    free(j->text);
    free(j->why);
    free(j->name);
    free(j->report);
    free(j->json);
    free(j);
}
