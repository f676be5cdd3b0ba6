#include "launcher/control/ctl_events.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "agent/report/timeline.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/parse.h"

#define EXIT_TIMEOUT   124
#define ASK_MS         60      /* between two requests for the events of other nodes */
#define UNREAD_LOOK_MS 1000    /* for those */
#define LOG_MS         100     /* between two looks at log files */
#define LONG_MS        3600000 /* poll(2) takes no more than an int has */

static bool is_named(const json_t *event, const char *name)
{
    return strcmp(text_of(event, "name"), name) == 0;
}

static int by_time(const void *a, const void *b)
{
    double x = json_number_value(json_object_get(*(json_t *const *)a, "timestamp"));
    double y = json_number_value(json_object_get(*(json_t *const *)b, "timestamp"));
    return (x > y) - (x < y);
}

/* ------------------------------------------------------------------------------------ the state */

/* The object with this number under `key`, which is made if it is not there. */
static json_t *entry_of(json_t *list, const char *key, long number)
{
    json_t *e;
    size_t i;
    json_array_foreach(list, i, e)
    {
        if (number_of(e, key) == number)
            return e;
    }
    e = json_object();
    json_object_set_new(e, key, json_integer(number));
    json_array_append_new(list, e);
    return e;
}

static void note_worker(json_t *workers, const json_t *event, const json_t *c)
{
    static const char *const kept[] = {"local_rank", "node", "host", "pid", "attempt"};
    bool over = is_named(event, "worker.finish");
    json_t *w = entry_of(workers, "rank", number_of(c, "rank")), *code, *signo;
    for (size_t i = 0; i < ARRAY_LEN(kept); i++)
        json_object_set(w, kept[i], json_object_get(c, kept[i]));
    if (!over) {
        json_object_set_new(w, "state", json_string("running"));
        json_object_set(w, "started", json_object_get(event, "timestamp"));
        json_object_set(w, "log_dir", json_object_get(c, "log_dir"));
        json_object_set(w, "program", json_object_get(c, "program"));
        json_object_del(w, "exit_code");
        json_object_del(w, "signal");
        return;
    }
    code = json_object_get(c, "exit_code");
    signo = json_object_get(c, "signal");
    bool well = code && json_integer_value(code) == 0;
    json_object_set_new(w, "state",
                        json_string(well                          ? "exited"
                                    : json_object_get(c, "cause") ? "failed"
                                                                  : "stopped"));
    if (signo)
        json_object_set(w, "signal", signo);
    else
        json_object_set(w, "exit_code", code);
}

/* The state after all events. A round's events are those after its `start`. */
static json_t *fold(const json_t *events)
{
    json_t *nodes = json_array(), *workers = json_array(), *event;
    long nnodes = 1;
    size_t i;
    json_array_foreach(events, i, event)
    {
        const json_t *c = json_object_get(event, "context");
        if (is_named(event, "start")) {
            json_array_clear(nodes);
            nnodes = number_of(c, "nnodes");
        } else if (is_named(event, "node.state") && json_object_get(c, "node")) {
            json_t *n = entry_of(nodes, "node", number_of(c, "node"));
            json_object_set(n, "host", json_object_get(c, "host"));
            json_object_set(n, "state", json_object_get(c, "state"));
        } else if (is_named(event, "worker.start") || is_named(event, "worker.finish")) {
            note_worker(workers, event, c);
        }
    }
    return json_pack("{s:I,s:b,s:o,s:o}", "nnodes", (json_int_t)nnodes, "complete",
                     (int)(json_array_size(nodes) >= (size_t)nnodes), "nodes", nodes, "workers",
                     workers);
}

static bool is_complete(const json_t *state, const struct job *j)
{
    if (number_of(j->status, "nodes") <= 1 || j->ended)
        return true;
    return json_is_true(json_object_get(state, "complete")) &&
           number_of(state, "nnodes") >= number_of(j->status, "nodes");
}

static json_t *in_order(const json_t *events)
{
    size_t n = json_array_size(events);
    json_t **e = xcalloc(n + 1, sizeof(json_t *)), *sorted = json_array();
    for (size_t i = 0; i < n; i++)
        e[i] = json_array_get(events, i);
    qsort(e, n, sizeof(json_t *), by_time);
    for (size_t i = 0; i < n; i++)
        json_array_append(sorted, e[i]);
    free(e);
    return sorted;
}

/* The events once those of all nodes are here, or the time is up. Those that are here are not asked
 * for again. */
static json_t *events_of_all(struct job *j, json_t **state)
{
    json_t *all = json_array(), *events = NULL;
    uint64_t end = mono_ns() + UNREAD_LOOK_MS * 1000000ull;
    long at = 0;
    for (bool last = false;; poll(NULL, 0, ASK_MS)) {
        size_t before = json_array_size(all);
        if (job_events_add(j, all, &at) < 0) {
            if (errno != ENOTSUP)
                log_error("process %ld does not answer: %s", job_shown_pid(j), strerror(errno));
            json_decref(events);
            events = NULL;
            break;
        }
        last = mono_ns() >= end;
        if (!events || json_array_size(all) > before) {
            json_decref(events);
            json_decref(*state);
            events = in_order(all);
            *state = fold(events);
        }
        if (is_complete(*state, j))
            break;
        if (last) {
            json_object_set_new(*state, "complete", json_false());
            break;
        }
    }
    json_decref(all);
    return events;
}

json_t *ctl_job_state(struct job *j)
{
    json_t *state = NULL, *events = events_of_all(j, &state);
    json_decref(events);
    return state;
}

/* ------------------------------------------------------------------------------------- the list */

/* Whether the word can be printed as it is. */
static bool is_plain(const char *word)
{
    for (; *word; word++) {
        if ((unsigned char)*word <= ' ' || (unsigned char)*word >= 0x7f || strchr("\"\\=", *word))
            return false;
    }
    return true;
}

/* "01:30:29.875 failure rank=1 node=0 host=vm text="..."". */
static void print_event(const json_t *event)
{
    const char *key;
    json_t *value;
    char clock[32] = "";
    double at = json_number_value(json_object_get(event, "timestamp"));
    time_t t = (time_t)at;
    struct tm tm;
    if (localtime_r(&t, &tm))
        strftime(clock, sizeof(clock), "%F %T", &tm);
    printf("%s.%03d  %-23s", clock, (int)((at - (double)t) * 1000), text_of(event, "name"));
    json_object_foreach(json_object_get(event, "context"), key, value)
    {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
        const char *word = json_string_value(value);
        if (strcmp(key, "mono_s") != 0)
            printf(" %s=%s", key, word && is_plain(word) ? word : text);
        free(text);
    }
    putchar('\n');
}

static void put_event(const json_t *event, bool json)
{
    if (!json) {
        print_event(event);
        return;
    }
    json_dumpf(event, stdout, JSON_COMPACT | JSON_REAL_PRECISION(16));
    putchar('\n');
}

/* A connection to a launcher that sends its events, and those to come. */
struct follower {
    int fd;
    struct buf b;
    bool finished; /* the last event of a job that has ended in order has come */
};

static int follower_init(struct follower *f, struct job *j)
{
    static const char command[] = "follow\n";
    *f = (struct follower){.fd = job_connect(j), .b = BUF_INIT};
    int rc = f->fd < 0 ? f->fd : job_send(f->fd, command);
    if (rc == 0)
        return 0;
    log_error("process %ld does not answer: %s", job_shown_pid(j), strerror(-rc));
    return -1;
}

static void follower_fini(struct follower *f)
{
    close_fd(&f->fd);
    buf_fini(&f->b);
}

/* Reads what comes within so many milliseconds (-1: no limit). 1: go on; 0: take() has returned
 * false; -1: the launcher has closed the connection, or is gone. */
static int follower_read(struct follower *f, int ms, bool (*take)(void *arg, const json_t *event),
                         void *arg)
{
    struct pollfd p = {f->fd, POLLIN, 0};
    int ready = poll(&p, 1, ms), rc = 1;
    if (ready <= 0)
        return ready == 0 || errno == EINTR ? 1 : -1;
    xbuf_reserve(&f->b, 65536);
    ssize_t n = read(f->fd, f->b.data + f->b.len, 65536);
    if (n <= 0)
        return -1;
    f->b.len += (size_t)n;
    for (uint8_t *nl; rc > 0 && (nl = memchr(f->b.data, '\n', f->b.len));) {
        json_t *event = json_loadb((char *)f->b.data, (size_t)(nl - f->b.data), 0, NULL);
        buf_consume(&f->b, (size_t)(nl - f->b.data) + 1);
        f->finished |= event && is_named(event, "finish");
        rc = event && !take(arg, event) ? 0 : 1;
        json_decref(event);
    }
    return rc;
}

/* The launcher has closed the connection: whether the job had ended; else says that it is gone. */
static bool has_finished(const struct follower *f, const struct job *j)
{
    if (!f->finished)
        log_error("process %ld is gone without the end of the job: it was killed",
                  job_shown_pid(j));
    return f->finished;
}

static bool show(void *arg, const json_t *event)
{
    put_event(event, *(bool *)arg);
    return fflush(stdout) == 0;
}

int ctl_events(struct job *j, bool follow, bool json)
{
    json_t *state = NULL, *event;
    struct follower f;
    size_t i;
    if (follow && !j->ended) {
        int rc = follower_init(&f, j) < 0 ? 0 : 1, failed = rc == 0;
        while (rc > 0)
            rc = follower_read(&f, -1, show, &json);
        failed |= rc < 0 && !has_finished(&f, j);
        follower_fini(&f);
        return failed;
    }
    json_t *events = events_of_all(j, &state);
    if (!events)
        return 1;
    json_array_foreach(events, i, event) put_event(event, json);
    if (!is_complete(state, j))
        log_warn("not all nodes have answered; their events are missing");
    json_decref(events);
    json_decref(state);
    return 0;
}

/* The last operations once all nodes have answered, or the time is up. */
static json_t *operations_of_all(struct job *j)
{
    for (int ms = 0;; ms += ASK_MS) {
        json_t *operations = job_ask(j, "operations\n");
        if (!operations || ms >= UNREAD_LOOK_MS ||
            number_of(operations, "answered") >= number_of(j->status, "nodes"))
            return operations;
        json_decref(operations);
        poll(NULL, 0, ASK_MS);
    }
}

int ctl_timeline(struct job *j)
{
    json_t *state = NULL, *events = events_of_all(j, &state);
    if (!events)
        return 1;
    json_t *operations = j->ended ? NULL : operations_of_all(j);
    if (!operations && !j->ended)
        log_warn("the launcher does not tell the operations; they are missing");
    json_t *trace = timeline_json(events, operations);
    json_dumpf(trace, stdout, JSON_COMPACT | JSON_REAL_PRECISION(16));
    putchar('\n');
    json_decref(trace);
    json_decref(operations);
    json_decref(events);
    json_decref(state);
    return 0;
}

struct awaited {
    const char *name;
    bool json;
};

static bool is_not_awaited(void *arg, const json_t *event)
{
    const struct awaited *a = arg;
    if (!is_named(event, a->name))
        return true;
    put_event(event, a->json);
    return false;
}

int ctl_wait(struct job *j, const char *event, double timeout, bool json)
{
    struct awaited a = {event, json};
    struct follower f;
    uint64_t end = timeout < 0 ? UINT64_MAX : mono_ns() + (uint64_t)(timeout * 1e9), now = 0;
    int rc = 1;
    if (follower_init(&f, j) < 0)
        return 1;
    while (rc > 0 && (now = mono_ns()) < end) {
        uint64_t ms = (end - now) / 1000000 + 1;
        rc = follower_read(&f, ms < LONG_MS ? (int)ms : LONG_MS, is_not_awaited, &a);
    }
    if (rc > 0)
        log_error("the event %s did not happen within %g s", event, timeout);
    else if (rc < 0 && has_finished(&f, j))
        log_error("the job ended without the event %s", event);
    follower_fini(&f);
    return rc > 0 ? EXIT_TIMEOUT : rc < 0;
}

/* ------------------------------------------------------------------------------------- the logs */

/* A log file of one rank, of which the bytes before `at` are shown. */
struct log_file {
    char path[1100];
    long rank;
    int stream;
    off_t at;
};

struct log_files {
    struct log_file *f;
    size_t n;
};

static struct log_file *log_file_of(struct log_files *all, const char *dir, long rank, int stream)
{
    struct log_file new = {.rank = rank, .stream = stream};
    snprintf(new.path, sizeof(new.path), "%s/%s", dir, stream ? "stderr.log" : "stdout.log");
    for (size_t i = 0; i < all->n; i++) {
        if (strcmp(all->f[i].path, new.path) == 0)
            return &all->f[i];
    }
    all->f = xrealloc(all->f, (all->n + 1) * sizeof(*all->f));
    all->f[all->n] = new;
    return &all->f[all->n++];
}

static void put_line(const struct log_file *f, const char *line, size_t len, bool json)
{
    if (json) {
        char *text = xmalloc(4 * len + 8);
        log_escape(text, 4 * len + 8, line, len, 1);
        json_t *o = json_pack("{s:I,s:s,s:s}", "rank", (json_int_t)f->rank, "stream",
                              f->stream ? "stderr" : "stdout", "line", text);
        json_dumpf(o, stdout, JSON_COMPACT);
        json_decref(o);
        free(text);
    } else {
        printf("[%ld]:", f->rank);
        fwrite(line, 1, len, stdout);
    }
    putchar('\n');
}

/* Shows the whole lines that are new; at the end also a line without an end. False: there is no
 * such file. */
static bool show_new_lines(struct log_file *f, bool end, bool json)
{
    char text[65536];
    _cleanup_fd_ int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    for (ssize_t n; (n = pread(fd, text, sizeof(text), f->at)) > 0;) {
        char *p = text, *stop = text + n, *nl;
        for (; (nl = memchr(p, '\n', (size_t)(stop - p))); p = nl + 1)
            put_line(f, p, (size_t)(nl - p), json);
        if (p == text && (end || n == (ssize_t)sizeof(text))) {
            put_line(f, p, (size_t)n, json);
            p = stop;
        }
        if (p == text)
            break;
        f->at += p - text;
    }
    return true;
}

/* The log files of ranks. */
struct logs {
    struct log_files all;
    const char *ranks; /* NULL: all of them */
    bool json;
};

/* Adds the files that the event names. */
static bool note_files(void *arg, const json_t *event)
{
    struct logs *l = arg;
    const json_t *c = json_object_get(event, "context"), *dir = json_object_get(c, "log_dir");
    long rank = number_of(c, "rank");
    if (is_named(event, "worker.start") && dir && (!l->ranks || parse_has(l->ranks, rank))) {
        for (int stream = 0; stream < 2; stream++)
            log_file_of(&l->all, json_string_value(dir), rank, stream);
    }
    return true;
}

/* One pass over the files. Returns how many there are. */
static int show_logs(struct logs *l, bool end)
{
    int n = 0;
    for (size_t i = 0; i < l->all.n; i++)
        n += show_new_lines(&l->all.f[i], end, l->json);
    return n;
}

/* Goes on until the job has ended. */
static int follow_logs(struct logs *l, struct job *j)
{
    struct follower f;
    int rc = follower_init(&f, j) < 0 ? -2 : 1;
    bool any = false;
    while (rc > 0 && fflush(stdout) == 0) {
        rc = follower_read(&f, LOG_MS, note_files, l);
        any |= show_logs(l, rc < 0) > 0;
    }
    int failed = rc == -2 || (rc == -1 && !has_finished(&f, j));
    follower_fini(&f);
    return failed ? -1 : any;
}

int ctl_logs(struct job *j, const char *ranks, bool follow, bool json)
{
    struct logs l = {.ranks = ranks, .json = json};
    json_t *events = NULL, *event;
    size_t i;
    int any = -1;
    if (follow && !j->ended) {
        any = follow_logs(&l, j);
    } else if ((events = job_events(j))) {
        json_array_foreach(events, i, event) note_files(&l, event);
        any = show_logs(&l, true) > 0;
    } else {
        log_error("process %ld does not answer: %s", job_shown_pid(j), strerror(errno));
    }
    json_decref(events);
    free(l.all.f);
    if (any == 0)
        log_error("there are no log files%s%s on this host; --redirects or --tee of dlaunch make "
                  "them",
                  ranks ? " of the ranks " : " of this job", ranks ? ranks : "");
    return any <= 0;
}
