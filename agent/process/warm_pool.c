#include "agent/process/warm_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/spawn.h"
#include "agent/process/sweep.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/uvx.h"

#define FORK_NS     1000000000u  /* limit for a fork */
#define END_NS      10000000000u /* limit for the end of those that were killed */
#define SWEEP_MS    2
#define FORK_MAX    64 /* children in one message */
#define MESSAGE_MAX 4096

/* The text of warm_pool.py. */
extern const char warm_pool_code[], warm_pool_code_end[];
__asm__(".pushsection .rodata\n"
        "warm_pool_code:\n"
        ".incbin \"agent/process/warm_pool.py\"\n"
        "warm_pool_code_end:\n"
        ".byte 0\n"
        ".popsection\n");

enum interpreter_state {
    ABSENT,
    LOADING, /* the interpreter imports */
    FORKS,   /* the interpreter makes children */
    WAITS,   /* the interpreter becomes the worker of its local rank */
};

struct interpreter {
    struct warm_pool *pool;
    enum interpreter_state state;
    pid_t pid;
    int fd;
    struct uvx_watch *watch; /* of fd */
};

struct child {
    pid_t pid;
    int fd;
};

struct warm_pool {
    struct node *node;
    int n; /* workers of this node */
    struct uvx_scope scope;
    uv_timer_t ending; /* looks whether those that were killed have ended */
    struct sweep sweep;
    struct interpreter *interpreters; /* one for each worker; the first one may fork */
    struct child *children;           /* that can be started */
    int nchildren;
    int forking[FORK_MAX]; /* sockets of the children that are being forked */
    int nforking;
    uint64_t forking_ns; /* when that began */
    bool one_each;       /* the interpreters do not fork */
    bool useless;        /* there are no warm starts in this job */
    bool told;           /* that the workers of this round wait */
    /* Whether the workers of the first round wait for the first interpreter. */
    enum { NOT_AWAITED, AWAITED, SETTLED } first_round;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* ----------------------------------------------------------------------------------- their ends */

static void end_forking(struct warm_pool *s)
{
    while (s->nforking)
        close_fd(&s->forking[--s->nforking]);
}

static void drop_interpreter(struct warm_pool *s, struct interpreter *in)
{
    if (in->state == FORKS)
        end_forking(s);
    uvx_watch_free(in->watch);
    close_fd(&in->fd);
    *in = (struct interpreter){.pool = s, .state = ABSENT, .fd = -1};
}

static void kill_all(struct warm_pool *s)
{
    for (int i = 0; i < s->n; i++) {
        if (s->interpreters[i].state != ABSENT)
            kill(s->interpreters[i].pid, SIGKILL);
        drop_interpreter(s, &s->interpreters[i]);
    }
    while (s->nchildren) {
        struct child *c = &s->children[--s->nchildren];
        kill(c->pid, SIGKILL);
        close_fd(&c->fd);
    }
}

static void give_up_pool(struct warm_pool *s, const char *why)
{
    log_verbose("no warm starts: %s", why);
    s->useless = true;
    kill_all(s);
}

/* The workers of the first round need not wait any more. */
static void settle(struct warm_pool *s)
{
    if (s->first_round != AWAITED)
        return;
    s->first_round = SETTLED;
    s->node->calls->go_on(s->node);
}

static void settle_if_loaded(struct warm_pool *s)
{
    if (s->interpreters[0].state != LOADING && !s->nforking)
        settle(s);
}

static void warm_reaped(void *state, pid_t pid)
{
    struct warm_pool *s = state;
    for (int i = 0; i < s->n; i++) {
        struct interpreter *in = &s->interpreters[i];
        if (in->state == ABSENT || in->pid != pid)
            continue;
        bool loading = in->state == LOADING;
        drop_interpreter(s, in);
        if (loading)
            give_up_pool(s, "it died while it imported the program's modules");
        settle_if_loaded(s);
        return;
    }
    for (int i = 0; i < s->nchildren; i++) {
        if (s->children[i].pid == pid) {
            close_fd(&s->children[i].fd);
            s->children[i] = s->children[--s->nchildren];
            return;
        }
    }
}

static bool warm_helpers(void *state, struct pids *out)
{
    struct warm_pool *s = state;
    if (s->nforking && mono_ns() - s->forking_ns < FORK_NS)
        return false;
    for (int i = 0; i < s->n; i++) {
        if (s->interpreters[i].state != ABSENT)
            pids_add(out, s->interpreters[i].pid);
    }
    for (int i = 0; i < s->nchildren; i++)
        pids_add(out, s->children[i].pid);
    return true;
}

static void warm_killed(void *state)
{
    kill_all(state);
}

/* ------------------------------------------------------------------------------- an interpreter */

/* The interpreter's arguments and the worker's in one block: see warm_pool.py. */
static char **interpreter_argv(const struct warm_pool *s, const struct spawn_request *req, int fd)
{
    const struct job_spec *job = s->node->job;
    char code[128], at[16];
    const char *words[16];
    size_t n = 0, bytes = 0, count = 0, skip = 0;
    snprintf(code, sizeof(code),
             "import os; exec(compile(os.read(%d, 1 << 20), '<dlaunch>', 'exec'), {'FD': %d})", fd,
             fd);
    snprintf(at, sizeof(at), "%d", job->warm.program);
    for (char **w = job->warm.argv; *w; w++)
        words[n++] = *w;
    words[n++] = "-c";
    words[n++] = code;
    words[n++] = job->warm.modules;
    words[n++] = job->warm.comm;
    words[n++] = s->first_round == AWAITED && !s->one_each ? "first" : "";
    words[n++] = at;
    if (*job->warm.comm) { /* the command line that the kernel makes of the script's */
        for (char **w = job->warm.argv; *w; w++)
            words[n++] = *w;
        words[n++] = req->path;
        skip = 1;
    }
    for (size_t i = 0; i < n; i++)
        bytes += strlen(words[i]) + 1;
    for (char *const *w = req->argv + skip; *w; w++, count++)
        bytes += strlen(*w) + 1;
    char **argv = xmalloc((n + count + 1) * sizeof(*argv) + bytes);
    char *to = (char *)(argv + n + count + 1);
    for (size_t i = 0; i < n + count; i++) {
        argv[i] = to;
        to = stpcpy(to, i < n ? words[i] : req->argv[skip + i - n]) + 1;
    }
    argv[n + count] = NULL;
    return argv;
}

static void on_readable(void *arg);

static int spawn_interpreter(struct warm_pool *s, int local_rank, struct err *e)
{
    struct interpreter *in = &s->interpreters[local_rank];
    struct spawn_request req;
    int ends[2], pidfd;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return err_sys(e, errno, "a socket to an interpreter");
    _cleanup_fd_ int ours = ends[0], theirs = ends[1];
    _cleanup_fd_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    _cleanup_fd_ int out = memfd_create("stdout", MFD_CLOEXEC);
    _cleanup_fd_ int err = memfd_create("stderr", MFD_CLOEXEC);
    size_t len = (size_t)(warm_pool_code_end - warm_pool_code);
    if (null < 0 || out < 0 || err < 0 ||
        send(ours, warm_pool_code, len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return err_sys(e, errno, "prepare an interpreter");
    int r = s->node->calls->spawn_request(s->node, local_rank, &req, e);
    if (r < 0)
        return r;
    char **argv = interpreter_argv(s, &req, theirs);
    free(req.owned[1]);
    req.path = s->node->job->warm.python;
    req.argv = argv;
    req.owned[1] = argv;
    memcpy(req.stdio, (int[3]){null, out, err}, sizeof(req.stdio));
    req.keep = &theirs;
    req.nkeep = 1;
    req.cpus = NULL;
    r = spawn(s->node->spawner, &req, &in->pid, &pidfd, e);
    if (r < 0)
        return r;
    close_fd(&pidfd);
    in->fd = take_fd(&ours);
    in->state = LOADING;
    in->watch = uvx_watch_new(&s->scope, in->fd, on_readable, in);
    if (!in->watch)
        return err_sys(e, errno, "watch an interpreter");
    uvx_watch_for(in->watch, UV_READABLE);
    return 0;
}

/* Sends a text with descriptors. */
static bool send_fds(int fd, const char *text, const int *fds, size_t n)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FORK_MAX * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec iov = {.iov_base = (char *)text, .iov_len = strlen(text)};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = CMSG_SPACE(n * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(n * sizeof(int));
    memcpy(CMSG_DATA(c), fds, n * sizeof(int));
    return sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

static void ask_for_children(struct warm_pool *s)
{
    int theirs[FORK_MAX], n = 0;
    if (s->nforking)
        return;
    while (s->nchildren + n < s->n && n < FORK_MAX) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
            break;
        s->forking[n] = ends[0];
        theirs[n++] = ends[1];
    }
    s->nforking = n;
    s->forking_ns = mono_ns();
    if (n && !send_fds(s->interpreters[0].fd, "fork", theirs, (size_t)n))
        end_forking(s);
    while (n)
        close_fd(&theirs[--n]);
}

/* Begins to bring up what is missing. */
static void fill(struct warm_pool *s)
{
    struct err e = ERR_INIT;
    if (s->useless)
        return;
    for (int i = 0; i < (s->one_each ? s->n : 1); i++) {
        if (s->interpreters[i].state == ABSENT && spawn_interpreter(s, i, &e) < 0) {
            give_up_pool(s, e.msg);
            return;
        }
    }
    if (s->interpreters[0].state == FORKS)
        ask_for_children(s);
}

static void warm_prepare(void *state)
{
    struct warm_pool *s = state;
    s->told = false;
}

/* Before the first round: whether workers can begin warm, or cannot, is known. */
static bool warm_may_start(void *state)
{
    struct warm_pool *s = state;
    if (s->useless || !s->node->job->warm.first_round || s->first_round == SETTLED)
        return true;
    s->first_round = AWAITED;
    fill(s);
    if (s->useless)
        s->first_round = SETTLED;
    else if (!s->told)
        log_verbose("the first workers wait for a warm interpreter");
    s->told = true;
    return s->useless;
}

/* Interpreters for the next start are made when the workers run. */
static void warm_state_changed(void *state, enum node_state from)
{
    struct warm_pool *s = state;
    (void)from;
    if (s->node->state == NODE_RUNNING)
        fill(s);
}

static void warm_worker_started(void *state, const struct worker *w)
{
    struct warm_pool *s = state;
    (void)w;
    if (s->node->state == NODE_RUNNING) /* it has been started again */
        fill(s);
}

/* ------------------------------------------------------------------------------------- messages */

static bool is_living_child(pid_t pid)
{
    siginfo_t si = {.si_pid = 0};
    return waitid(P_PID, (id_t)pid, &si, WEXITED | WNOHANG | WNOWAIT) == 0 && si.si_pid == 0;
}

/* "<pid> ...", in the order of the sockets. */
static void add_children(struct warm_pool *s, char *pids)
{
    int used = 0;
    for (char *p = pids, *end; used < s->nforking; p = end, used++) {
        pid_t pid = (pid_t)strtol(p, &end, 10);
        if (end == p)
            break;
        if (is_living_child(pid))
            s->children[s->nchildren++] = (struct child){pid, take_fd(&s->forking[used])};
    }
    end_forking(s);
    if (s->nchildren < s->n && used == FORK_MAX)
        ask_for_children(s);
    else
        log_verbose("%d warm interpreter%s ready", s->nchildren,
                    s->nchildren == 1 ? " is" : "s are");
}

static void on_message(struct warm_pool *s, int local_rank, char *text)
{
    struct interpreter *in = &s->interpreters[local_rank];
    if (strcmp(text, "ready fork") == 0 && local_rank == 0) {
        in->state = FORKS;
        ask_for_children(s);
    } else if (strncmp(text, "ready", 5) == 0) {
        in->state = WAITS;
        s->one_each = true;
        log_verbose("the interpreter of local rank %d is warm", local_rank);
        fill(s);
    } else if (strncmp(text, "forked", 6) == 0) {
        add_children(s, text + 6);
    } else if (strcmp(text, "later") == 0) {
        settle(s);
    } else if (strcmp(text, "stale") == 0) {
        log_verbose("a file of the program has changed: another interpreter takes over");
        kill_all(s);
        fill(s);
    } else {
        give_up_pool(s, strncmp(text, "useless ", 8) == 0 ? text + 8 : text);
    }
}

static void on_readable(void *arg)
{
    struct interpreter *in = arg;
    struct warm_pool *s = in->pool;
    char text[MESSAGE_MAX];
    ssize_t len = recv(in->fd, text, sizeof(text) - 1, MSG_DONTWAIT);
    if (len > 0) {
        text[len] = '\0';
        on_message(s, (int)(in - s->interpreters), text);
    } else if (len == 0 || errno != EAGAIN) {
        uvx_watch_for(in->watch, 0); /* warm_reaped() does the rest */
    }
    settle_if_loaded(s);
}

/* ------------------------------------------------------------------------------------- a worker */

static void put_word(struct buf *b, const char *s)
{
    buf_put(b, s, strlen(s) + 1);
}

/* Writes an Order, as warm_pool.py reads it; -1: no memory or descriptor. */
static int order_file(const struct spawn_request *req)
{
    struct buf b = BUF_INIT;
    char number[24];
    size_t argc = 0;
    snprintf(number, sizeof(number), "%d", (int)getpid());
    put_word(&b, number);
    for (size_t i = 0; i < req->nkeep; i++) {
        int n = snprintf(number, sizeof(number), "%d ", req->keep[i]);
        buf_put(&b, number, (size_t)n);
    }
    put_word(&b, "");
    for (size_t i = 0; req->cpus && i < 8 * req->cpus_size; i++) {
        int n = snprintf(number, sizeof(number), "%zu ", i);
        if (CPU_ISSET_S(i, req->cpus_size, req->cpus))
            buf_put(&b, number, (size_t)n);
    }
    put_word(&b, "");
    put_word(&b, req->path);
    while (req->argv[argc])
        argc++;
    snprintf(number, sizeof(number), "%zu", argc);
    put_word(&b, number);
    for (size_t i = 0; i < argc; i++)
        put_word(&b, req->argv[i]);
    for (char *const *v = req->envp; *v; v++)
        put_word(&b, *v);
    int fd = b.oom ? -1 : memfd_create("order", MFD_CLOEXEC);
    if (fd >= 0 && fd_write_all(fd, b.data, b.len) < 0)
        close_fd(&fd);
    if (fd >= 0)
        lseek(fd, 0, SEEK_SET);
    buf_fini(&b);
    return fd;
}

static bool warm_worker_takes(void *state, const struct worker *w, const struct spawn_request *req,
                              pid_t *pid, int *pidfd)
{
    struct warm_pool *s = state;
    struct interpreter *in = &s->interpreters[w->local_rank];
    if (req->cwd)
        return false;
    if (!s->nchildren && in->state != WAITS)
        return false;
    int fds[4 + SPAWN_KEEP_MAX] = {order_file(req), req->stdio[0], req->stdio[1], req->stdio[2]};
    memcpy(fds + 4, req->keep, req->nkeep * sizeof(int));
    bool sent = false;
    while (fds[0] >= 0 && !sent && s->nchildren) { /* a dead one refuses */
        struct child *c = &s->children[--s->nchildren];
        *pid = c->pid;
        sent = send_fds(c->fd, "work", fds, 4 + req->nkeep);
        close_fd(&c->fd);
    }
    if (fds[0] >= 0 && !sent && in->state == WAITS) {
        *pid = in->pid;
        sent = send_fds(in->fd, "work", fds, 4 + req->nkeep);
        drop_interpreter(s, in);
    }
    close_fd(&fds[0]);
    if (!sent)
        return false;
    *pidfd = (int)syscall(SYS_pidfd_open, *pid, 0);
    free(req->owned[0]);
    free(req->owned[1]);
    return true;
}

/* ------------------------------------------------------------------------------------- lifetime */

static int warm_open(void **state, struct node *n, struct err *e)
{
    (void)e;
    if (!n->job->warm.modules || n->job->nproc == 0)
        return 0;
    struct warm_pool *s = *state = xcalloc(1, sizeof(*s));
    *s = (struct warm_pool){.node = n, .n = n->job->nproc};
    uvx_scope_init(&s->scope, n->loop);
    uv_timer_init(n->loop, &s->ending);
    uvx_own(&s->scope, &s->ending);
    s->interpreters = xcalloc((size_t)s->n, sizeof(*s->interpreters));
    s->children = xcalloc((size_t)s->n, sizeof(*s->children));
    for (int i = 0; i < s->n; i++)
        s->interpreters[i] = (struct interpreter){.pool = s, .fd = -1};
    return 0;
}

static void warm_finish(void *state, const struct rdzv_result *result)
{
    (void)result;
    kill_all(state);
}

/* The interpreters end before the agent does. */
static void on_ending(uv_timer_t *t)
{
    struct warm_pool *s = container_of(t, struct warm_pool, ending);
    bool overdue = mono_ns() - s->sweep.started_ns > END_NS;
    if (sweep_step(&s->sweep, NULL, 0) > 0 && !overdue)
        uv_timer_start(t, on_ending, SWEEP_MS, 0);
    else
        uvx_scope_close(&s->scope, s->on_closed, s->on_closed_arg);
}

static void warm_close(void *state, void (*on_closed)(void *arg), void *arg)
{
    struct warm_pool *s = state;
    s->on_closed = on_closed;
    s->on_closed_arg = arg;
    s->useless = true;
    kill_all(s);
    sweep_init(&s->sweep);
    on_ending(&s->ending);
}

static void warm_free(void *state)
{
    struct warm_pool *s = state;
    free(s->interpreters);
    free(s->children);
    free(s);
}

const struct feature warm_feature = {
    .name = "warm interpreters",
    .open = warm_open,
    .prepare = warm_prepare,
    .state_changed = warm_state_changed,
    .may_start = warm_may_start,
    .worker_takes = warm_worker_takes,
    .worker_started = warm_worker_started,
    .helpers = warm_helpers,
    .killed = warm_killed,
    .reaped = warm_reaped,
    .finish = warm_finish,
    .close = warm_close,
    .free = warm_free,
};
