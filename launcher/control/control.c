/* control.c
 *
 * A client: accepted, checked (SO_PEERCRED), reads a line, gets the answer written, reads the next
 * line; reading stops while an answer is on its way, so that nobody can pile up answers. It is
 * closed at its end of file, on any error, after a line that is too long, and when its time is up.
 */
#include "launcher/control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/base/fs.h"
#include "agent/report/event_json.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/protocols.h"
#include "core/uvx.h"
#include "launcher/control/control_dir.h"
#include "rendezvous/rules/event_log.h"

/* The time between two checks that the socket exists. inotify would be slower: to close an inotify
 * descriptor the kernel waits for an RCU grace period, which adds up to 20 ms to the end of every
 * job. */
#define LOOK_MS 2000

#define EVENTS_AT_ONCE 256 /* that are written to a client that follows */

/* The state of the socket. A job may outlive the login session that started it. When the folder of
 * the session is removed, the socket is made anew in another folder. */
struct place {
    struct control *control;
    struct uvx_scope scope;
    uv_pipe_t listener;
    int dirfd;
    bool abstract; /* the socket is not in the folder (control_dir.h) */
    char folder[CONTROL_PATH_MAX - 32], name[32];
    struct stat socket; /* device and inode of the file */
};

struct client {
    struct client *next;
    struct control *control;
    struct uvx_scope scope;
    uv_pipe_t pipe;
    uint64_t deadline_ms; /* of the loop's clock */
    size_t len;
    char line[CONTROL_LINE_MAX];
    uv_write_t write;
    char *answer; /* being written; malloc'ed */
    bool follows; /* the events, of which those before number `at` were sent */
    uint64_t at;
    struct job_wait *wait; /* for an answer that other nodes have a part in; NULL: it does not */
    bool closing;
};

/* Outlives its client. */
struct job_wait {
    struct client *client; /* NULL: it has gone */
};

struct control {
    struct control_opts opts;
    uv_loop_t *loop;
    struct uvx_scope scope;
    uv_timer_t timer; /* runs while there are clients */
    uv_timer_t look;  /* checks that the socket still exists */
    struct client *clients;
    int nclients;
    struct place *place; /* NULL: there is none */
    int nplaces;         /* not yet closed */
    bool swept;          /* sockets that others left behind were removed */
    bool scope_closed;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* -------------------------------------------------------------------------------------- answers */

/* A JSON string of text that need not be UTF-8. */
static json_t *json_text(const char *text)
{
    char shown[2048];
    log_escape(shown, sizeof(shown), text ? text : "", text ? strlen(text) : 0, 0);
    return json_string(shown);
}

static json_t *worker_json(const struct agent_worker_status *w)
{
    json_t *j = json_pack("{s:i,s:i,s:i,s:o,s:f}", "rank", w->rank, "local_rank", w->local_rank,
                          "pid", w->pid, "state", json_text(w->state), "elapsed_s", w->seconds);
    if (w->program)
        json_object_set_new(j, "program", json_text(w->program));
    bool over = strcmp(w->state, "running") != 0 && strcmp(w->state, "waiting") != 0;
    if (over && w->signal)
        json_object_set_new(j, "signal", json_integer(w->signal));
    else if (over)
        json_object_set_new(j, "exit_code", json_integer(w->exit_code));
    return j;
}

static json_t *status_json(const struct control *c)
{
    struct agent_status s;
    const struct job_spec *job = c->opts.job;
    char generation[40];
    c->opts.get_status(c->opts.arg, &s);
    snprintf(generation, sizeof(generation), "%016llx.%u", (unsigned long long)s.rdzv.gen.epoch,
             s.rdzv.gen.counter);
    json_t *workers = json_array();
    for (int i = 0; i < s.nworkers; i++)
        json_array_append_new(workers, worker_json(&s.workers[i]));
    json_t *j = json_pack(
        "{s:i,s:s,s:i,s:o,s:o,s:o,s:o,s:o,s:o,s:f,s:o,s:s,s:i,s:i,s:i,s:i,s:i,s:b,s:o,s:o}",
        "control", (int)PROTOCOL_CONTROL, "version", DLAUNCH_VERSION, "pid", (int)c->opts.pid,
        "host", json_text(job->host), "run_id", json_text(job->rdzv.run_id), "program",
        json_text(job->name), "state", json_text(s.state), "health", json_text(s.health),
        "lost_output", s.lost_output ? json_text(s.lost_output) : json_null(), "elapsed_s",
        s.elapsed, "rendezvous", json_text(s.rdzv.phase), "generation", generation, "node",
        s.rdzv.group_rank, "nodes", s.rdzv.nnodes, "world_size", s.rdzv.world_size, "restarts",
        s.rdzv.restart_count, "max_restarts", job->rdzv.max_restarts, "coordinator",
        s.rdzv.coordinator, "endpoint", json_text(s.rdzv.endpoint), "workers", workers);
    json_object_set_new(
        j, "hang",
        s.hang ? json_pack("{s:s,s:o}", "state", s.hang, "text", json_text(s.hang_text))
               : json_null());
    json_object_set_new(j, "slow", s.slow ? json_text(s.slow) : json_null());
    json_object_set_new(j, "stop", s.stop_text ? json_text(s.stop_text) : json_null());
    json_object_set_new(j, "ends_at", s.ends_at_s > 0 ? json_real(s.ends_at_s) : json_null());
    return j;
}

/* The events from number *at on, each on a line, at most EVENTS_AT_ONCE; malloc'ed. NULL: there are
 * none. */
static char *event_lines(const struct event_list *l, uint64_t *at)
{
    struct buf b = BUF_INIT;
    const struct event *e;
    for (int n = 0; n < EVENTS_AT_ONCE && (e = event_list_next(l, at)); n++) {
        char *line = event_json(e);
        buf_put(&b, line, line ? strlen(line) : 0);
        free(line);
    }
    if (b.len)
        buf_u8(&b, '\0');
    return (char *)b.data;
}

/* {"events":[...],"next":N,"more":BOOL}: the events from number `at` on, at most EVENTS_AT_ONCE, so
 * that a long log neither holds the loop nor fills an answer. malloc'ed. */
static char *events_answer(const struct control *c, uint64_t at)
{
    const struct event_list *l = c->opts.get_events(c->opts.arg);
    char *lines = event_lines(l, &at);
    for (char *p = lines; p && (p = strchr(p, '\n'));)
        *p = p[1] ? ',' : '\0';
    uint64_t next = at;
    bool more = event_list_next(l, &next) != NULL;
    char *text = xasprintf("{\"events\":[%s],\"next\":%llu,\"more\":%s}", lines ? lines : "",
                           (unsigned long long)at, more ? "true" : "false");
    free(lines);
    return text;
}

/* kill, restart and signal; NULL: it is none of them. */
static json_t *request_json(const struct control *c, const char *line)
{
    int signo = 0, at = 0;
    enum request_kind kind;
    if (!c->opts.request)
        return NULL;
    if (strcmp(line, "kill") == 0)
        kind = REQUEST_KILL;
    else if (strcmp(line, "restart") == 0)
        kind = REQUEST_RESTART;
    else if (sscanf(line, "signal %d %n", &signo, &at) == 1 && at > 0 && signo > 0 && signo < NSIG)
        kind = REQUEST_SIGNAL;
    else
        return NULL;
    bool all = c->opts.request(c->opts.arg, kind, signo, kind == REQUEST_SIGNAL ? line + at : "");
    if (kind == REQUEST_RESTART && !all)
        return json_pack("{s:s}", "error", "no coordinator is in reach");
    return json_pack("{s:b}", "job", (int)all);
}

/* Returns the text behind the verb; NULL: the line has another verb. */
static const char *argument_of(const char *line, const char *verb)
{
    size_t n = strlen(verb);
    if (strncmp(line, verb, n) != 0 || (line[n] != ' ' && line[n] != '\0'))
        return NULL;
    return line + n + (line[n] == ' ');
}

/* One line of JSON, malloc'ed. */
static char *answer_to(struct control *c, const char *line)
{
    json_t *j = NULL;
    const char *at = argument_of(line, "events");
    char *text = NULL, *answer;
    if (at && *at && c->opts.get_events) {
        text = events_answer(c, strtoull(at, NULL, 10));
    } else if (strcmp(line, "status") == 0) {
        j = status_json(c);
    } else if (strcmp(line, "stop") == 0) {
        c->opts.stop(c->opts.arg, "dlaunchctl stop");
        j = json_pack("{s:b}", "stopping", 1);
    } else if (strcmp(line, "operations") == 0 && c->opts.get_operations) {
        j = c->opts.get_operations(c->opts.arg);
    } else if ((j = request_json(c, line))) {
        ;
    } else {
        j = json_pack("{s:s}", "error", "unknown command (status or stop)");
    }
    text = text ? text : json_dumps(j, JSON_COMPACT);
    json_decref(j);
    answer = xasprintf("%s\n", text ? text : "{\"error\":\"out of memory\"}");
    free(text);
    return answer;
}

/* Leaves workers out, first those that exited with 0. */
static void bound_workers(json_t *record)
{
    json_t *all = json_object_get(record, "workers"), *kept = json_array(), *w;
    size_t n = json_array_size(all), i;
    if (n > CONTROL_ENDED_WORKERS) {
        for (int well = 0; well < 2; well++) {
            json_array_foreach(all, i, w)
            {
                bool exited = strcmp(json_string_value(json_object_get(w, "state")), "exited") == 0;
                if (exited == well && json_array_size(kept) < CONTROL_ENDED_WORKERS)
                    json_array_append(kept, w);
            }
        }
        json_object_set(record, "workers", kept);
        json_object_set_new(record, "workers_omitted",
                            json_integer((json_int_t)(n - CONTROL_ENDED_WORKERS)));
    }
    json_decref(kept);
}

/* Puts the newest events that fit into so many bytes of JSON into the record. */
static void add_events(struct control *c, json_t *record, size_t room)
{
    const struct event_list *l = c->opts.get_events(c->opts.arg);
    json_t *kept = json_array();
    size_t first = l->n;
    for (; first > 0; first--) {
        char *line = event_json(&l->e[first - 1]);
        size_t size = line ? strlen(line) : 0;
        if (size <= room)
            json_array_insert_new(kept, 0, json_loads(line ? line : "null", 0, NULL));
        free(line);
        if (size > room)
            break;
        room -= size;
    }
    json_object_set_new(record, "events", kept);
    json_object_set_new(record, "events_omitted", json_integer((json_int_t)first));
}

void control_keep(struct control *c, int exit_status, const char *text)
{
    char name[64];
    if (!c || !c->place)
        return;
    uint64_t now = wall_ns();
    json_t *record = status_json(c);
    json_object_set_new(record, "ended", json_real((double)(now / 1000000) / 1e3));
    json_object_set_new(record, "exit_status", json_integer(exit_status));
    json_object_set_new(record, "text", json_text(text));
    bound_workers(record);
    size_t used = json_dumpb(record, NULL, 0, JSON_COMPACT) + 100;
    add_events(c, record, used < CONTROL_ENDED_BYTES ? CONTROL_ENDED_BYTES - used : 0);
    char *line = json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(16));
    json_decref(record);
    snprintf(name, sizeof(name), "%d-%llu" CONTROL_ENDED, (int)c->opts.pid,
             (unsigned long long)(now / 1000000));
    int fd = openat(c->place->dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || !line || fd_write_all(fd, line, strlen(line)) < 0)
        log_verbose("%s/%s: %s; dlaunchctl will not find the job that has ended", c->place->folder,
                    name, strerror(errno));
    close_fd(&fd);
    free(line);
}

/* -------------------------------------------------------------------------------------- clients */

static void maybe_closed(struct control *c)
{
    if (!c->scope_closed || c->nclients || c->nplaces)
        return;
    void (*on_closed)(void *) = c->on_closed;
    void *arg = c->on_closed_arg;
    free(c);
    on_closed(arg);
}

static void on_client_closed(void *arg)
{
    struct client *cl = arg, **link;
    struct control *c = cl->control;
    for (link = &c->clients; *link != cl; link = &(*link)->next)
        ;
    *link = cl->next;
    c->nclients--;
    if (cl->wait)
        cl->wait->client = NULL;
    free(cl->answer);
    free(cl);
    if (c->nclients == 0 && !c->scope.closing)
        uv_timer_stop(&c->timer);
    maybe_closed(c);
}

static void close_client(struct client *cl)
{
    if (cl->closing)
        return;
    cl->closing = true;
    uvx_scope_close(&cl->scope, on_client_closed, cl);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct client *cl = container_of(h, struct client, pipe);
    (void)suggested;
    *buf = uv_buf_init(cl->line + cl->len, (unsigned)(sizeof(cl->line) - cl->len));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf);

static void on_written(uv_write_t *w, int status);

static void write_answer(struct client *cl)
{
    uv_buf_t buf = uv_buf_init(cl->answer, (unsigned)strlen(cl->answer));
    if (uv_write(&cl->write, (uv_stream_t *)&cl->pipe, &buf, 1, on_written) < 0)
        close_client(cl);
}

/* Writes the next events unless some are being written. */
static void follow(struct client *cl)
{
    const struct control *c = cl->control;
    if (cl->answer || cl->closing)
        return;
    const struct event_list *events = c->opts.get_events(c->opts.arg);
    if (cl->answer || cl->closing) /* the look at the workers found events: see below */
        return;
    cl->answer = event_lines(events, &cl->at);
    if (cl->answer)
        write_answer(cl);
}

void control_events_changed(struct control *c)
{
    for (struct client *cl = c ? c->clients : NULL; cl; cl = cl->next) {
        if (cl->follows)
            follow(cl);
    }
}

static void on_written(uv_write_t *w, int status)
{
    struct client *cl = container_of(w, struct client, write);
    free(cl->answer);
    cl->answer = NULL;
    if (status >= 0 && cl->follows) {
        follow(cl);
        return;
    }
    if (status < 0 || cl->closing || uv_read_start((uv_stream_t *)&cl->pipe, on_alloc, on_read) < 0)
        close_client(cl);
}

static void on_job_answer(void *arg, json_t *j)
{
    struct job_wait *w = arg;
    struct client *cl = w->client;
    free(w);
    if (cl)
        cl->wait = NULL;
    if (cl && !cl->closing) {
        char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
        cl->answer = xasprintf("%s\n", text ? text : "{\"error\":\"the job has ended\"}");
        free(text);
        write_answer(cl);
    }
    json_decref(j);
}

/* stacks RANKS, top MOST; false: something else is wanted. */
static bool ask_job(struct client *cl)
{
    const struct control_opts *o = &cl->control->opts;
    const char *ranks = o->get_stacks ? argument_of(cl->line, "stacks") : NULL;
    const char *most = o->get_top ? argument_of(cl->line, "top") : NULL;
    if (!ranks && !most)
        return false;
    cl->wait = xcalloc(1, sizeof(*cl->wait));
    cl->wait->client = cl;
    if (ranks)
        o->get_stacks(o->arg, ranks, on_job_answer, cl->wait);
    else
        o->get_top(o->arg, strtoul(most, NULL, 10), on_job_answer, cl->wait);
    return true;
}

/* Takes the number of the protocol off the line. True: the line is one of this protocol, or it is
 * status, whose answer says which one this launcher speaks. Else it has its answer. */
static bool understands(struct client *cl)
{
    char *verb = cl->line, text[256];
    unsigned long number = strtoul(cl->line, &verb, 10);
    verb += verb > cl->line && *verb == ' ';
    memmove(cl->line, verb, strlen(verb) + 1);
    if (number == PROTOCOL_CONTROL || strcmp(cl->line, "status") == 0)
        return true;
    json_t *j = json_pack("{s:i,s:s}", "control", (int)PROTOCOL_CONTROL, "error",
                          protocols_control_differs((uint32_t)number, text, sizeof(text)));
    char *line = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    cl->answer = xasprintf("%s\n", line ? line : "{\"error\":\"out of memory\"}");
    free(line);
    return false;
}

/* A line is there: answers it. What came behind it is dropped: a client asks when it has its
 * answer. */
static void on_line(struct client *cl)
{
    cl->len = 0;
    if (!understands(cl)) {
        uv_read_stop((uv_stream_t *)&cl->pipe);
        write_answer(cl);
        return;
    }
    if (strcmp(cl->line, "follow") == 0 && cl->control->opts.get_events) {
        cl->follows = true;
        follow(cl); /* and reads on, for the end of the client */
        return;
    }
    uv_read_stop((uv_stream_t *)&cl->pipe);
    if (ask_job(cl))
        return;
    cl->answer = answer_to(cl->control, cl->line);
    write_answer(cl);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct client *cl = container_of(s, struct client, pipe);
    (void)buf;
    if (n < 0) {
        close_client(cl);
        return;
    }
    cl->len += (size_t)n;
    char *nl = memchr(cl->line, '\n', cl->len);
    if (cl->follows) { /* a client that follows sends nothing more */
        cl->len = 0;
    } else if (nl) {
        *nl = '\0';
        on_line(cl);
    } else if (cl->len == sizeof(cl->line)) {
        close_client(cl);
    }
}

static bool is_allowed(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

static void on_tick(uv_timer_t *t)
{
    struct control *c = container_of(t, struct control, timer);
    for (struct client *cl = c->clients; cl; cl = cl->next) {
        if (uv_now(c->loop) >= cl->deadline_ms && !cl->follows)
            close_client(cl);
    }
}

static void on_connection(uv_stream_t *s, int status)
{
    struct control *c = container_of(s, struct place, listener)->control;
    if (status < 0)
        return;
    struct client *cl = xcalloc(1, sizeof(*cl));
    cl->control = c;
    cl->deadline_ms = uv_now(c->loop) + c->opts.client_ms;
    cl->next = c->clients;
    c->clients = cl;
    c->nclients++;
    uvx_scope_init(&cl->scope, c->loop);
    uv_pipe_init(c->loop, &cl->pipe, 0);
    uvx_own(&cl->scope, &cl->pipe);
    int fd = -1;
    if (uv_accept(s, (uv_stream_t *)&cl->pipe) < 0 ||
        uv_fileno((uv_handle_t *)&cl->pipe, &fd) < 0 || !is_allowed(fd) ||
        c->nclients > CONTROL_CLIENTS_MAX ||
        uv_read_start((uv_stream_t *)&cl->pipe, on_alloc, on_read) < 0) {
        close_client(cl);
        return;
    }
    if (!uv_is_active((uv_handle_t *)&c->timer))
        uv_timer_start(&c->timer, on_tick, c->opts.client_ms / 8, c->opts.client_ms / 8);
}

/* ------------------------------------------------------------------------------------ listening */

/* Gives the path to the guardian, which removes the socket if the agent dies. This happens before
 * the socket exists, so that it is never left behind. (If the guardian removes another launcher's
 * socket of this name, that launcher makes it anew.) */
static void announce(const struct place *p, bool there)
{
    char path[CONTROL_PATH_MAX];
    struct guardian_page *page = p->control->opts.page;
    if (!page || p->abstract)
        return;
    snprintf(path, sizeof(path), "%s/%s", p->folder, p->name);
    guardian_set_path(page->unlink_path[0], there ? path : NULL);
}

static bool is_ours(const struct place *p, const struct stat *st)
{
    return st->st_dev == p->socket.st_dev && st->st_ino == p->socket.st_ino;
}

/* 0 or an errno. */
static int bind_name(struct place *p, int fd, int dirfd)
{
    char suffix[FS_SUFFIX_LEN + 1];
    struct sockaddr_un a;
    int pid = (int)p->control->opts.pid;
    snprintf(p->name, sizeof(p->name), "%d.sock", pid);
    socklen_t len = control_dir_address(&a, dirfd, p->name);
    announce(p, true);
    if (bind(fd, (struct sockaddr *)&a, len) == 0)
        return 0;
    if (errno != EADDRINUSE)
        return errno;
    if (!p->abstract && control_dir_is_deaf(dirfd, p->name)) { /* of an earlier process */
        unlinkat(dirfd, p->name, 0);
    } else { /* of a process with this pid in another container */
        fs_random_suffix(suffix);
        snprintf(p->name, sizeof(p->name), "%d-%s.sock", pid, suffix);
        len = control_dir_address(&a, dirfd, p->name);
        announce(p, true);
    }
    return bind(fd, (struct sockaddr *)&a, len) < 0 ? errno : 0;
}

/* A bound, not yet listening socket with mode 0600 in the first folder that will do. */
static int bind_socket(struct place *p, struct err *e)
{
    for (int i = 0; control_dir_path(i, p->folder); i++) {
        _cleanup_fd_ int dirfd = control_dir_open(p->folder, true, e);
        if (dirfd < 0)
            continue;
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        /* The mode of the socket is that of the file. */
        int rc = fd < 0 || fchmod(fd, 0600) < 0
                     ? errno
                     : bind_name(p, fd, p->abstract ? CONTROL_NO_DIR : dirfd);
        if (rc == 0 && !p->abstract && fstatat(dirfd, p->name, &p->socket, AT_SYMLINK_NOFOLLOW) < 0)
            rc = errno;
        if (rc) {
            err_sys(e, rc, "%s/%s", p->folder, p->name);
            announce(p, false);
            continue;
        }
        p->dirfd = take_fd(&dirfd);
        return take_fd(&fd);
    }
    return e && e->code ? e->code : -ENOENT;
}

static int open_place(struct control *c, struct err *e)
{
    struct place *p = xcalloc(1, sizeof(*p));
    p->control = c;
    p->abstract = c->opts.job->killed_at_once;
    int fd = bind_socket(p, e);
    if (fd < 0) {
        free(p);
        return fd;
    }
    c->place = p;
    c->nplaces++;
    uvx_scope_init(&p->scope, c->loop);
    uv_pipe_init(c->loop, &p->listener, 0);
    uvx_own(&p->scope, &p->listener);
    /* A descriptor of ours that is a socket: this cannot fail but for want of memory. */
    int rc = uv_pipe_open(&p->listener, fd);
    if (rc < 0)
        close(fd);
    else
        rc = uv_listen((uv_stream_t *)&p->listener, CONTROL_CLIENTS_MAX, on_connection);
    if (rc < 0)
        log_warn("control socket: %s; dlaunchctl will not find this job", uv_strerror(rc));
    return 0;
}

static void on_place_closed(void *arg)
{
    struct place *p = arg;
    struct control *c = p->control;
    free(p);
    c->nplaces--;
    maybe_closed(c);
}

static void close_place(struct control *c)
{
    struct place *p = c->place;
    struct stat st;
    if (!p)
        return;
    c->place = NULL;
    if (!p->abstract && fstatat(p->dirfd, p->name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        is_ours(p, &st))
        unlinkat(p->dirfd, p->name, 0);
    close_fd(&p->dirfd);
    announce(p, false);
    uvx_scope_close(&p->scope, on_place_closed, p);
}

/* Removes sockets of dead launchers at the first check, or at the end of a shorter job; at the
 * start, workers would wait for the removal. */
static void sweep_once(struct control *c)
{
    if (!c->swept && c->place)
        control_dir_sweep(c->place->dirfd);
    c->swept = true;
}

/* A folder that is removed while this runs may take the new socket with it; the next look finds
 * that out. */
static void on_look(uv_timer_t *t)
{
    struct control *c = container_of(t, struct control, look);
    struct err e = ERR_INIT;
    struct stat st;
    char path[CONTROL_PATH_MAX];
    sweep_once(c);
    if (c->place->abstract) {
        uv_timer_stop(t);
        return;
    }
    snprintf(path, sizeof(path), "%s/%s", c->place->folder, c->place->name);
    if (lstat(path, &st) == 0 && is_ours(c->place, &st))
        return;
    close_place(c);
    if (open_place(c, &e) < 0) {
        log_verbose("control socket: %s; dlaunchctl will not find this job any more", e.msg);
        uv_timer_stop(t);
        return;
    }
    log_verbose("the control socket %s is gone; it is now %s/%s", path, c->place->folder,
                c->place->name);
}

int control_open(struct control **out, uv_loop_t *loop, const struct control_opts *opts,
                 struct err *e)
{
    struct control *c = xcalloc(1, sizeof(*c));
    struct err why = ERR_INIT;
    c->opts = *opts;
    if (!c->opts.client_ms)
        c->opts.client_ms = CONTROL_CLIENT_SECONDS * 1000;
    c->loop = loop;
    if (open_place(c, &why) < 0) {
        free(c);
        return err_set(e, why.code, "control socket: %s", why.msg);
    }
    uvx_scope_init(&c->scope, loop);
    uv_timer_init(loop, &c->timer);
    uvx_own(&c->scope, &c->timer);
    uv_timer_init(loop, &c->look);
    uvx_own(&c->scope, &c->look);
    uv_timer_start(&c->look, on_look, LOOK_MS, LOOK_MS);
    *out = c;
    return 0;
}

static void on_scope_closed(void *arg)
{
    struct control *c = arg;
    c->scope_closed = true;
    maybe_closed(c);
}

void control_close(struct control *c, void (*on_closed)(void *arg), void *arg)
{
    if (!c) {
        on_closed(arg);
        return;
    }
    sweep_once(c);
    close_place(c);
    c->on_closed = on_closed;
    c->on_closed_arg = arg;
    for (struct client *cl = c->clients; cl; cl = cl->next)
        close_client(cl);
    uvx_scope_close(&c->scope, on_scope_closed, c);
}
