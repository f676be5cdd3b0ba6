#include "core/uvx.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/err.h"
#include "core/mem.h"

void uvx_scope_init(struct uvx_scope *s, uv_loop_t *loop)
{
    *s = (struct uvx_scope){.loop = loop};
}

void uvx_own(struct uvx_scope *s, void *handle)
{
    ((uv_handle_t *)handle)->data = s;
    s->open++;
}

static void uvx_on_handle_closed(uv_handle_t *h)
{
    struct uvx_scope *s = h->data;
    if (--s->open == 0 && s->closing)
        s->on_closed(s->arg);
}

void uvx_close(void *handle)
{
    uv_handle_t *h = handle;
    if (!uv_is_closing(h))
        uv_close(h, uvx_on_handle_closed);
}

static void close_if_owned(uv_handle_t *h, void *arg)
{
    if (h->data == arg)
        uvx_close(h);
}

void uvx_scope_close(struct uvx_scope *s, void (*on_closed)(void *arg), void *arg)
{
    s->closing = true;
    s->on_closed = on_closed;
    s->arg = arg;
    if (s->open == 0) { /* one handle, so that the callback comes from the loop */
        uv_idle_init(s->loop, &s->idle);
        uvx_own(s, &s->idle);
    }
    uv_walk(s->loop, close_if_owned, s);
}

/* -------------------------------------------------------------------------------- a descriptor */

struct uvx_watch {
    uv_poll_t poll;
    int events;
    void (*on_ready)(void *arg);
    void *arg;
};

static void uvx_on_ready(uv_poll_t *poll, int status, int events)
{
    struct uvx_watch *w = container_of(poll, struct uvx_watch, poll);
    (void)events;
    if (status < 0)
        w->events = 0; /* libuv has stopped it */
    w->on_ready(w->arg);
}

struct uvx_watch *uvx_watch_new(struct uvx_scope *s, int fd, void (*on_ready)(void *arg), void *arg)
{
    struct uvx_watch *w = xcalloc(1, sizeof(*w));
    int r = uv_poll_init(s->loop, &w->poll, fd);
    if (r < 0) {
        free(w);
        errno = -r;
        return NULL;
    }
    uvx_own(s, &w->poll);
    w->on_ready = on_ready;
    w->arg = arg;
    return w;
}

void uvx_watch_for(struct uvx_watch *w, int events)
{
    if (events == w->events)
        return;
    w->events = events;
    if (events)
        uv_poll_start(&w->poll, events, uvx_on_ready);
    else
        uv_poll_stop(&w->poll);
}

static void uvx_on_watch_closed(uv_handle_t *h)
{
    uvx_on_handle_closed(h);
    free(container_of((uv_poll_t *)h, struct uvx_watch, poll));
}

void uvx_watch_free(struct uvx_watch *w)
{
    if (w)
        uv_close((uv_handle_t *)&w->poll, uvx_on_watch_closed);
}

/* The signal's default action follows: SA_RESETHAND. */
static void on_abort(int signo)
{
    static const char text[] = "dlaunch: the event loop cannot go on: ";
    const char *why = strerrordesc_np(errno);
    if (write(STDERR_FILENO, text, sizeof(text) - 1) > 0 && why &&
        write(STDERR_FILENO, why, strlen(why)) > 0 && write(STDERR_FILENO, "\n", 1) > 0)
        raise(signo);
}

void uvx_explain_abort(void)
{
    struct sigaction sa = {.sa_handler = on_abort, .sa_flags = (int)SA_RESETHAND | SA_NODEFER};
    sigaction(SIGABRT, &sa, NULL);
}

int uvx_err(struct err *e, int uv_status, const char *fmt, ...)
{
    char what[ERR_MSG_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    return err_set(e, uv_status, "%s: %s", what, uv_strerror(uv_status));
}
