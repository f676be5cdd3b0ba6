/* A client: accepted, reads a request up to its empty line, gets the answer and is closed. It is
 * closed as well after CLIENT_MS, and if the request is too long. */
#include "launcher/control/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "core/uvx.h"
#include "launcher/control/metrics_file.h"
#include "launcher/control/metrics_text.h"

#define CLIENTS_MAX 16
#define CLIENT_MS   10000
#define REQUEST_MAX 8192
#define FILE_MS     15000 /* between two files */

struct metrics_client {
    struct metrics *metrics;
    struct uvx_scope scope;
    uv_tcp_t tcp;
    uv_timer_t timer;
    size_t len;
    char request[REQUEST_MAX + 1];
    uv_write_t write;
    char *answer; /* malloc'ed */
    bool closing;
    struct metrics_client *next;
};

struct metrics {
    struct metrics_opts opts;
    uv_loop_t *loop;
    struct uvx_scope scope;
    uv_tcp_t listener;
    uv_timer_t timer; /* of the file */
    struct metrics_sums sums;
    struct metrics_client *clients;
    int nclients;
    bool listens, started, closing, scope_closed;
    struct metrics_file *file; /* NULL: none */
};

/* ------------------------------------------------------------------------------------- the page */

/* malloc'ed; NULL: no memory. */
static char *page(struct metrics *m, bool openmetrics, size_t *len)
{
    char *text = NULL;
    struct agent_status status;
    FILE *out = open_memstream(&text, len);
    if (!out)
        return NULL;
    const struct event_log *log = m->opts.get_log(m->opts.arg);
    m->opts.get_status(m->opts.arg, &status);
    if (log->leads)
        metrics_sums_add(&m->sums, log);
    struct ledger ledger;
    bool accounts = log->leads && m->opts.job->ledger;
    if (accounts)
        ledger_of_events(&ledger, &log->job, mono_ns());
    metrics_text(out, m->opts.job, &status, log->leads ? &m->sums : NULL, accounts ? &ledger : NULL,
                 openmetrics);
    fclose(out);
    return text;
}

/* ------------------------------------------------------------------------------------- the file */

static void on_file_timer(uv_timer_t *t)
{
    struct metrics *m = container_of(t, struct metrics, timer);
    size_t len = 0;
    char *text = page(m, false, &len);
    metrics_file_write(m->file, text, len);
}

/* ---------------------------------------------------------------------------------- the clients */

static void maybe_free(struct metrics *m)
{
    if (m->closing && m->scope_closed && m->nclients == 0)
        free(m);
}

static void on_client_closed(void *arg)
{
    struct metrics_client *c = arg, **link;
    struct metrics *m = c->metrics;
    for (link = &m->clients; *link != c; link = &(*link)->next)
        ;
    *link = c->next;
    m->nclients--;
    free(c->answer);
    free(c);
    maybe_free(m);
}

static void close_client(struct metrics_client *c)
{
    if (c->closing)
        return;
    c->closing = true;
    uvx_scope_close(&c->scope, on_client_closed, c);
}

static void on_client_late(uv_timer_t *t)
{
    close_client(container_of(t, struct metrics_client, timer));
}

static void on_written(uv_write_t *w, int status)
{
    (void)status;
    close_client(container_of(w, struct metrics_client, write));
}

static char *response(const char *status, const char *type, const char *body, size_t len)
{
    return xasprintf("HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                     "Connection: close\r\n\r\n%.*s",
                     status, type, len, (int)len, body);
}

static char *answer_to(struct metrics *m, const char *request)
{
    static const char plain[] = "text/plain; charset=utf-8";
    size_t len = 0;
    bool openmetrics = strstr(request, "application/openmetrics-text") != NULL;
    if (strncmp(request, "GET ", 4) != 0)
        return response("405 Method Not Allowed", plain, "only GET\n", 9);
    if (!m->started)
        return response("503 Service Unavailable", plain, "starting\n", 9);
    if (strncmp(request + 4, "/healthz ", 9) == 0) {
        struct agent_status s;
        m->opts.get_status(m->opts.arg, &s);
        char *line = xasprintf("%s\n", s.state),
             *all = response(strcmp(s.health, "FAILED") == 0 ? "503 Service Unavailable" : "200 OK",
                             plain, line, strlen(line));
        free(line);
        return all;
    }
    if (strncmp(request + 4, "/metrics ", 9) != 0)
        return response("404 Not Found", plain, "/metrics or /healthz\n", 21);
    char *text = page(m, openmetrics, &len);
    char *all = response("200 OK",
                         openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                     : "text/plain; version=0.0.4; charset=utf-8",
                         text ? text : "", text ? len : 0);
    free(text);
    return all;
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct metrics_client *c = container_of(h, struct metrics_client, tcp);
    (void)suggested;
    *buf = uv_buf_init(c->request + c->len, (unsigned)(REQUEST_MAX - c->len));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct metrics_client *c = container_of(s, struct metrics_client, tcp);
    (void)buf;
    if (n < 0) {
        close_client(c);
        return;
    }
    c->len += (size_t)n;
    c->request[c->len] = '\0';
    if (!strstr(c->request, "\r\n\r\n")) {
        if (c->len == REQUEST_MAX)
            close_client(c);
        return;
    }
    uv_read_stop(s);
    c->answer = answer_to(c->metrics, c->request);
    uv_buf_t out = uv_buf_init(c->answer, (unsigned)strlen(c->answer));
    if (uv_write(&c->write, s, &out, 1, on_written) < 0)
        close_client(c);
}

static void on_connection(uv_stream_t *s, int status)
{
    struct metrics *m = container_of(s, struct metrics, listener);
    if (status < 0)
        return;
    struct metrics_client *c = xcalloc(1, sizeof(*c));
    c->metrics = m;
    c->next = m->clients;
    m->clients = c;
    m->nclients++;
    uvx_scope_init(&c->scope, m->loop);
    uv_tcp_init(m->loop, &c->tcp);
    uvx_own(&c->scope, &c->tcp);
    uv_timer_init(m->loop, &c->timer);
    uvx_own(&c->scope, &c->timer);
    uv_timer_start(&c->timer, on_client_late, CLIENT_MS, 0);
    if (uv_accept(s, (uv_stream_t *)&c->tcp) < 0 || m->nclients > CLIENTS_MAX ||
        uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read) < 0)
        close_client(c);
}

/* ------------------------------------------------------------------------------- open and close */

static int listen_on(struct metrics *m, struct err *e)
{
    const struct job_spec *job = m->opts.job;
    struct netaddr a;
    char text[ADDR_STRLEN];
    netaddr_parse_ip(&a, job->metrics_addr, job->metrics_port); /* checked by job_build() */
    uv_tcp_init(m->loop, &m->listener);
    uvx_own(&m->scope, &m->listener);
    int rc = uv_tcp_bind(&m->listener, &a.sa, 0);
    if (rc == 0)
        rc = uv_listen((uv_stream_t *)&m->listener, CLIENTS_MAX, on_connection);
    if (rc < 0)
        return err_set(e, rc, "--metrics: port %d of %s: %s", job->metrics_port, job->metrics_addr,
                       uv_strerror(rc));
    m->listens = true;
    if (job->metrics_port == 0) {
        int len = sizeof(a.ss);
        uv_tcp_getsockname(&m->listener, &a.sa, &len);
        log_notice("metrics are served at port %d of %s", netaddr_port(&a), netaddr_ip(&a, text));
    }
    return 0;
}

int metrics_open(struct metrics **out, uv_loop_t *loop, const struct metrics_opts *opts,
                 struct err *e)
{
    *out = NULL;
    if (!opts->job->metrics_addr && !opts->job->metrics_dir)
        return 0;
    struct metrics *m = xcalloc(1, sizeof(*m));
    m->opts = *opts;
    m->loop = loop;
    uvx_scope_init(&m->scope, loop);
    uv_timer_init(loop, &m->timer);
    uvx_own(&m->scope, &m->timer);
    *out = m;
    if (opts->job->metrics_dir) {
        m->file = metrics_file_new(opts->job->metrics_dir, opts->job->rdzv.run_id);
        opts->unlink_later(opts->arg, metrics_file_path(m->file));
    }
    return opts->job->metrics_addr ? listen_on(m, e) : 0;
}

void metrics_start(struct metrics *m)
{
    if (!m)
        return;
    m->started = true;
    if (m->file)
        uv_timer_start(&m->timer, on_file_timer, 1, FILE_MS);
}

static void on_scope_closed(void *arg)
{
    struct metrics *m = arg;
    m->scope_closed = true;
    maybe_free(m);
}

void metrics_close(struct metrics *m)
{
    if (!m)
        return;
    m->started = false;
    m->closing = true;
    metrics_file_close(m->file);
    if (m->file)
        m->opts.unlink_later(m->opts.arg, NULL);
    for (struct metrics_client *c = m->clients; c; c = c->next)
        close_client(c);
    uvx_scope_close(&m->scope, on_scope_closed, m);
}
