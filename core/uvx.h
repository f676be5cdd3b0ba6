/* uvx.h: closing libuv handles without bookkeeping in every owner.
 *
 * A scope counts the open handles of one owner. uvx_own() after uv_xxx_init() puts a handle in the
 * scope (it uses handle->data; the owner finds itself with container_of() on the handle).
 * uvx_close() closes one. uvx_scope_close() closes all that are still open and calls back, once and
 * never from inside the call, when the last one is closed: only then may the owner free itself. */
#ifndef CORE_UVX_H
#define CORE_UVX_H

#include <stdbool.h>
#include <uv.h>

struct uvx_scope {
    uv_loop_t *loop;
    unsigned open; /* handles not yet closed */
    bool closing;
    void (*on_closed)(void *arg);
    void *arg;
    uv_idle_t idle; /* calls back when there was nothing to close */
};

void uvx_scope_init(struct uvx_scope *s, uv_loop_t *loop);
void uvx_own(struct uvx_scope *s, void *handle); /* any uv_*_t */
void uvx_close(void *handle);                    /* idempotent; handle must be owned by a scope */
void uvx_scope_close(struct uvx_scope *s, void (*on_closed)(void *arg), void *arg);

/* A descriptor on the loop. The handle's memory is its own, so a watch may be dropped at any time,
 * and from inside on_ready, but before its descriptor and the scope are closed. libuv makes the
 * descriptor non-blocking: not for one that is shared with other processes. */
struct uvx_watch;
/* NULL with errno: it cannot be watched; a regular file is one such. */
struct uvx_watch *uvx_watch_new(struct uvx_scope *s, int fd, void (*on_ready)(void *arg),
                                void *arg);
/* UV_READABLE, UV_WRITABLE; 0: nothing, as at the start. An error on the descriptor counts as what
 * is asked for. */
void uvx_watch_for(struct uvx_watch *w, int events);
void uvx_watch_free(struct uvx_watch *w); /* NULL is allowed */

/* libuv aborts when the kernel has no resources left, in places where it could tell no caller.
 * After this call dlaunch prints on stderr, before such an abort, which resource was missing. */
void uvx_explain_abort(void);

/* uv error (negative errno value) as text for err_sys() messages: uv_strerror without its table. */
struct err;
int uvx_err(struct err *e, int uv_status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
