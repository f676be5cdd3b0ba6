#include "core/uvx.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
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
