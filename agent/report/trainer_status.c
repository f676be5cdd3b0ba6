#include "agent/report/trainer_status.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/fd.h"
#include "core/http.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"
#include "core/tls.h"

#define INTERVAL_NS    5000000000u /* the server limits the rate of each pod */
#define END_S          3
#define END_LOOK_MS    2 /* between two looks whether the thread has ended */
#define PROGRESS_BYTES 4096
#define TOKEN_BYTES    8192

struct trainer_status {
    char *url, *ca_file, *token_file, *progress_file; /* NULL: none */
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* protects what follows */
    pthread_cond_t changed;
    bool closed, dirty;
    char state[16];
    int nodes, workers, restarts;
    struct err trouble; /* of the last post; code 0: none */

    /* The loop's, at the end. */
    struct uvx_scope scope;
    uv_timer_t end;
    uint64_t end_ns;
    void (*on_closed)(void *arg);
    void *on_closed_arg;

    /* The thread's. */
    char progress[PROGRESS_BYTES]; /* as last seen */
};

/* ----------------------------------------------------------------------------------- the thread */

static void add_metric(json_t *metrics, const char *name, const char *value)
{
    json_t *m = *name && *value ? json_pack("{s:s,s:s}", "name", name, "value", value) : NULL;
    if (m) /* text that is not UTF-8 is left out */
        json_array_append_new(metrics, m);
}

static void add_number(json_t *metrics, const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    add_metric(metrics, name, text);
}

/* The lines of the progress file. */
static void add_progress(json_t *status, json_t *metrics, const char *text)
{
    char copy[PROGRESS_BYTES], *save, *end;
    snprintf(copy, sizeof(copy), "%s", text);
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        long percent = strtol(line, &end, 10);
        if (end > line && strspn(end, "% \t\r") == strlen(end)) {
            if (percent >= 0 && percent <= 100)
                json_object_set_new(status, "progressPercentage", json_integer(percent));
            continue;
        }
        char *value = line + strcspn(line, " \t=");
        if (*value)
            *value++ = '\0';
        value += strspn(value, " \t=");
        for (size_t n = strlen(value); n && isspace((unsigned char)value[n - 1]);)
            value[--n] = '\0';
        add_metric(metrics, line, value);
    }
}

/* Returns malloc'ed JSON. Called with the lock. */
static char *status_text(const struct trainer_status *t)
{
    char now[32];
    struct tm tm;
    time_t wall = time(NULL);
    strftime(now, sizeof(now), "%FT%TZ", gmtime_r(&wall, &tm));
    json_t *status = json_object(), *metrics = json_array();
    add_progress(status, metrics, t->progress);
    add_metric(metrics, "state", t->state);
    add_number(metrics, "nodes", t->nodes);
    add_number(metrics, "workers", t->workers);
    add_number(metrics, "restarts", t->restarts);
    json_object_set_new(status, "metrics", metrics);
    json_object_set_new(status, "lastUpdatedTime", json_string(now));
    json_t *whole = json_pack("{s:o}", "trainerStatus", status);
    char *text = json_dumps(whole, JSON_COMPACT);
    json_decref(whole);
    return text;
}

/* The token is read for each post because the kubelet renews it. */
static int trainer_post(const struct trainer_status *t, const char *body, struct err *e)
{
    char token[TOKEN_BYTES] = "", bearer[TOKEN_BYTES + 8];
    if (t->token_file && fd_read_file(AT_FDCWD, t->token_file, token, sizeof(token)) < 0)
        return err_sys(e, errno, "%s", t->token_file);
    token[strcspn(token, " \t\r\n")] = '\0';
    snprintf(bearer, sizeof(bearer), "Bearer %s", token);
    const struct http_post post = {.url = t->url,
                                   .files = {.ca = t->ca_file},
                                   .authorization = *token ? bearer : NULL,
                                   .body = body};
    int rc = http_post(&post, NULL, e);
    tls_wipe(token, sizeof(token));
    tls_wipe(bearer, sizeof(bearer));
    if (rc >= 0 && rc / 100 != 2)
        return err_set(e, -EPROTO, "the server answers with status %d", rc);
    return rc;
}

/* The thread reads without the lock, because the file's server may not answer, and does not wait
 * for a FIFO. */
static bool progress_has_changed(struct trainer_status *t)
{
    char text[PROGRESS_BYTES];
    struct stat st;
    _cleanup_fd_ int fd =
        t->progress_file ? open(t->progress_file, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return false;
    ssize_t n = pread(fd, text, sizeof(text), 0);
    if (n <= 0 || n == (ssize_t)sizeof(text))
        return false;
    text[n] = '\0';
    if (strcmp(text, t->progress) == 0)
        return false;
    strcpy(t->progress, text);
    return true;
}

/* Waits for news until the next look at the progress file is due. */
static void wait_for_news(struct trainer_status *t, uint64_t until_ns)
{
    struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    while (!t->closed && mono_ns() < until_ns)
        pthread_cond_timedwait(&t->changed, &t->lock, &until);
}

static void *trainer_thread(void *arg)
{
    struct trainer_status *t = arg;
    struct err e = ERR_INIT;
    pthread_mutex_lock(&t->lock);
    for (bool last = false; !last;) {
        last = t->closed;
        pthread_mutex_unlock(&t->lock);
        bool news = progress_has_changed(t);
        pthread_mutex_lock(&t->lock);
        if (news || (t->dirty && !last)) {
            char *body = status_text(t);
            t->dirty = false;
            pthread_mutex_unlock(&t->lock);
            int rc = body ? trainer_post(t, body, &e) : err_set(&e, -ENOMEM, "out of memory");
            free(body);
            pthread_mutex_lock(&t->lock);
            t->trouble = rc < 0 ? e : (struct err)ERR_INIT;
        }
        wait_for_news(t, mono_ns() + INTERVAL_NS);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* ------------------------------------------------------------------------------------- the loop */

static char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? xstrdup(value) : NULL;
}

struct trainer_status *trainer_status_open(const char *progress_file)
{
    struct err e;
    char *url = variable("KUBEFLOW_TRAINER_SERVER_URL");
    if (!url)
        return NULL;
    if (strncmp(url, "https:", 6) == 0 && tls_load(&e) < 0) {
        log_warn("no progress is reported to the TrainJob: %s", e.msg);
        free(url);
        return NULL;
    }
    struct trainer_status *t = xcalloc(1, sizeof(*t));
    pthread_condattr_t monotonic;
    t->url = url;
    t->ca_file = variable("KUBEFLOW_TRAINER_SERVER_CA_CERT");
    t->token_file = variable("KUBEFLOW_TRAINER_SERVER_TOKEN");
    t->progress_file = progress_file ? xstrdup(progress_file) : NULL;
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return t;
}

void trainer_status_report(struct trainer_status *t, const char *state, int nodes, int workers,
                           int restarts)
{
    pthread_mutex_lock(&t->lock);
    snprintf(t->state, sizeof(t->state), "%s", state);
    t->nodes = nodes;
    t->workers = workers;
    t->restarts = restarts;
    t->dirty = true;
    pthread_mutex_unlock(&t->lock);
    if (!t->started)
        t->started = thread_start(&t->thread, 0, trainer_thread, t) == 0;
}

static void free_status(struct trainer_status *t)
{
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t->url);
    free(t->ca_file);
    free(t->token_file);
    free(t->progress_file);
    free(t);
}

/* The handle has been closed. A thread that has not ended keeps what it uses; the process is about
 * to end. */
static void on_end_closed(void *arg)
{
    struct trainer_status *t = arg;
    void (*on_closed)(void *arg) = t->on_closed;
    void *on_closed_arg = t->on_closed_arg;
    if (!t->started)
        free_status(t);
    on_closed(on_closed_arg);
}

static void on_end(uv_timer_t *timer)
{
    struct trainer_status *t = container_of(timer, struct trainer_status, end);
    if (t->started && pthread_tryjoin_np(t->thread, NULL) == 0)
        t->started = false;
    if (t->started && mono_ns() < t->end_ns)
        return;
    if (t->started) {
        pthread_detach(t->thread);
        log_warn("the TrainJob's status server does not answer: the last progress may be missing");
    } else if (t->trouble.code) {
        log_warn("progress was not reported to the TrainJob: %s", t->trouble.msg);
    }
    uvx_scope_close(&t->scope, on_end_closed, t);
}

void trainer_status_close(struct trainer_status *t, uv_loop_t *loop, void (*on_closed)(void *arg),
                          void *arg)
{
    pthread_mutex_lock(&t->lock);
    t->closed = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    t->on_closed = on_closed;
    t->on_closed_arg = arg;
    t->end_ns = mono_ns() + END_S * UINT64_C(1000000000);
    uvx_scope_init(&t->scope, loop);
    uv_timer_init(loop, &t->end);
    uvx_own(&t->scope, &t->end);
    uv_timer_start(&t->end, on_end, 0, END_LOOK_MS);
}

/* ------------------------------------------------------------------------------------- feature */

struct trainer {
    struct node *n;
    struct trainer_status *status;
};

static int trainer_open(void **state, struct node *n, struct err *e)
{
    (void)e;
    struct trainer_status *status = trainer_status_open(n->job->progress_file);
    if (!status)
        return 0;
    struct trainer *t = xcalloc(1, sizeof(*t));
    *t = (struct trainer){n, status};
    *state = t;
    return 0;
}

static void tell(struct trainer *t, const char *what)
{
    const struct rank_table *table = t->n->table;
    if (t->n->group_rank == 0)
        trainer_status_report(t->status, what, table->nnodes, table->world_size,
                              t->n->restart_count);
}

static void trainer_state_changed(void *state, enum node_state from)
{
    if (from == NODE_STARTING)
        tell(state, "running");
}

static void trainer_stops(void *state, const struct rdzv_stop *why)
{
    if (why->restarting)
        tell(state, "restarting");
}

static void trainer_close(void *state, void (*on_closed)(void *arg), void *arg)
{
    struct trainer *t = state;
    trainer_status_close(t->status, t->n->loop, on_closed, arg);
}

const struct feature trainer_feature = {
    .name = "TrainJob",
    .open = trainer_open,
    .state_changed = trainer_state_changed,
    .stops = trainer_stops,
    .close = trainer_close,
    .free = free,
};
