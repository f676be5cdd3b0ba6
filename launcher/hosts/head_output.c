#include "launcher/hosts/head_output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "agent/output/stdio_console.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/map.h"
#include "core/mem.h"

#define LINES_MAX 20000 /* lines that are remembered */
#define ALL_HOSTS UINT32_MAX

struct head_output {
    struct console console[2];
    struct console *route[2]; /* one and the same where both lead to one terminal or file */
    const struct host *hosts;
    struct stdio_label **labels;
    char *streams; /* two bytes for each host: their addresses stand for its streams */
    size_t nhosts;
    bool all, hurried, reported[2];
    struct map said; /* host (u32, ALL_HOSTS), line -> how often */
    int epfd;
};

static void write_line(void *arg, const char *line, size_t n)
{
    struct head_output *w = arg;
    console_put(w->route[1], w, NULL, line, n, mono_ns());
}

struct head_output *head_output_new(const struct host *const hosts, size_t nhosts, bool all,
                                    struct err *e)
{
    int epfd = epoll_create1(EPOLL_CLOEXEC);
    if (epfd < 0) {
        err_sys(e, errno, "epoll");
        return NULL;
    }
    struct head_output *w = xcalloc(1, sizeof(*w));
    w->epfd = epfd;
    w->hosts = hosts;
    w->nhosts = nhosts;
    w->all = all;
    w->labels = xcalloc(nhosts, sizeof(*w->labels));
    w->streams = xcalloc(nhosts, 2);
    for (size_t i = 0; i < nhosts; i++) {
        char *name = xasprintf("[%s]", hosts[i].name);
        w->labels[i] = stdio_label_new((int)i, (int)i, name, "");
        free(name);
    }
    console_init(&w->console[0], STDOUT_FILENO, "standard output", epfd, &w->console[0]);
    console_init(&w->console[1], STDERR_FILENO, "standard error", epfd, &w->console[1]);
    w->route[0] = &w->console[0];
    w->route[1] = console_same(STDOUT_FILENO, STDERR_FILENO) ? &w->console[0] : &w->console[1];
    map_init(&w->said);
    log_set_writer(write_line, w);
    return w;
}

void head_output_put(struct head_output *w, size_t host, bool err, const void *text, size_t n)
{
    struct console *c = w->route[err];
    if (w->hurried && console_full(c))
        return;
    console_put(c, &w->streams[2 * host + err], w->labels[host], text, n, mono_ns());
}

/* Counts the line; returns how often it has come from this host. */
static uintptr_t count(struct head_output *w, uint32_t host, const char *line, size_t n, bool add)
{
    char key[4 + 4096];
    n = n > sizeof(key) - 4 ? sizeof(key) - 4 : n;
    memcpy(key, &host, 4);
    memcpy(key + 4, line, n);
    if (!add)
        return (uintptr_t)map_get(&w->said, key, n + 4);
    void **value = map_put(&w->said, key, n + 4);
    if (!value)
        return 0;
    *value = (void *)((uintptr_t)*value + 1);
    return (uintptr_t)*value;
}

void head_output_log(struct head_output *w, size_t host, enum log_level level, const char *line,
                     size_t n)
{
    static void (*const say[])(const char *, ...) = {
        [LOG_LEVEL_ERROR] = log_error,
        [LOG_LEVEL_WARN] = log_warn,
        [LOG_LEVEL_NOTICE] = log_notice,
        [LOG_LEVEL_VERBOSE] = log_verbose,
    };
    if (level > LOG_LEVEL_VERBOSE)
        return;
    if (w->said.n > LINES_MAX)
        map_fini(&w->said, NULL);
    if (!w->all) {
        if (count(w, (uint32_t)host, line, n, true) <= count(w, ALL_HOSTS, line, n, false))
            return;
        count(w, ALL_HOSTS, line, n, true);
    }
    bool named = w->all || level <= LOG_LEVEL_WARN;
    say[level]("%s%s%.*s", named ? w->hosts[host].name : "", named ? ": " : "", (int)n, line);
}

bool head_output_takes(const struct head_output *w)
{
    return w->hurried || (console_has_room(w->route[0]) && console_has_room(w->route[1]));
}

bool head_output_lost_reader(struct head_output *w, int stream)
{
    bool lost = !w->reported[stream - 1] && console_unread(w->route[stream - 1]);
    w->reported[stream - 1] |= lost;
    return lost;
}

int head_output_fd(const struct head_output *w)
{
    return w->epfd;
}

bool head_output_ready(struct head_output *w, const void *tag, uint64_t now_ns)
{
    struct epoll_event ev[3];
    bool other = false;
    int n = epoll_wait(w->epfd, ev, ARRAY_LEN(ev), 0);
    for (int i = 0; i < n; i++) {
        if (ev[i].data.ptr == tag)
            other = true;
        else
            console_flush(ev[i].data.ptr, now_ns);
    }
    return other;
}

void head_output_turn(struct head_output *w, uint64_t now_ns)
{
    for (int i = 0; i < 2; i++) {
        struct console *c = &w->console[i];
        if (c->blocked && c->retry_ns && c->retry_ns <= now_ns)
            console_flush(c, now_ns);
    }
}

int head_output_timeout(const struct head_output *w, uint64_t now_ns)
{
    int ms = -1;
    for (int i = 0; i < 2; i++) {
        const struct console *c = &w->console[i];
        if (!c->blocked || !c->retry_ns)
            continue;
        int left = c->retry_ns > now_ns ? (int)((c->retry_ns - now_ns + 999999) / 1000000) : 0;
        ms = ms < 0 || left < ms ? left : ms;
    }
    return ms;
}

void head_output_hurry(struct head_output *w)
{
    w->hurried = true;
    for (int i = 0; i < 2; i++) {
        if (console_full(&w->console[i]))
            console_lose(&w->console[i]);
    }
}

void head_output_report(struct head_output *w, const char *text, size_t n)
{
    console_put(w->route[1], w, NULL, text, n, mono_ns());
}

void head_output_finish(struct head_output *w, double patience, uint64_t end_ns)
{
    uint64_t now = mono_ns(), taken_ns = now, least = UINT64_MAX;
    struct epoll_event ev[2];
    console_end(w->route[0], now);
    console_end(w->route[1], now);
    while (!w->hurried &&
           (console_has_backlog(&w->console[0]) || console_has_backlog(&w->console[1]))) {
        uint64_t kept = console_kept(&w->console[0]) + console_kept(&w->console[1]);
        now = mono_ns();
        if (kept < least) {
            least = kept;
            taken_ns = now;
        }
        if ((patience >= 0 && (double)(now - taken_ns) > patience * 1e9) ||
            (end_ns && now >= end_ns) || w->console[0].error || w->console[1].error)
            break;
        if (epoll_wait(w->epfd, ev, 2, 100) >= 0) {
            console_flush(&w->console[0], now);
            console_flush(&w->console[1], now);
        }
    }
    log_set_writer(NULL, NULL);
    console_fini(&w->console[0]);
    console_fini(&w->console[1]);
    for (size_t i = 0; i < w->nhosts; i++)
        stdio_label_unref(w->labels[i]);
    map_fini(&w->said, NULL);
    close_fd(&w->epfd);
    free(w->labels);
    free(w->streams);
    free(w);
}
