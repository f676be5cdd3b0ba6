#include "rendezvous/wire/link.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/log.h"
#include "core/mem.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/rules/text.h"

#define LINGER_MS     2000
#define ENCRYPT_AHEAD 65536 /* encrypted bytes of a link that wait to be written */
#define KEEP_BYTES    65536 /* a larger input buffer is freed when it is empty */

struct link {
    union {
        uv_tcp_t tcp;
        uv_pipe_t pipe;
        uv_stream_t stream;
        uv_handle_t handle;
    };
    struct link_hub *hub;
    const struct link_events *events; /* NULL: the owner has closed the link */
    void *owner;
    struct link *prev, *next; /* in hub->all */
    struct link *next_dirty;
    bool local, dirty, closing, got_preamble;
    bool unproven; /* the user of the other end is not checked yet */
    bool failed;   /* the queue was too long, or a write failed */
    bool reset;    /* a write reported a reset, which reading does not report again */
    bool at_end;   /* reading has reported the end; a failed write will report its cause */
    bool abort;    /* close by a reset: an end of file would prove the end of this launcher */
    bool full;
    void (*on_room)(struct link *l); /* NULL: not wanted */
    uint32_t frame_max;
    struct tls *tls;         /* NULL: not encrypted */
    struct buf wire;         /* encrypted, to write in this turn */
    size_t encrypted;        /* bytes of out[0] that are encrypted */
    struct buf in;           /* an incomplete frame */
    struct shared_buf **out; /* to write in this turn */
    size_t nout, cap_out;
    size_t queued_bytes; /* not yet taken by the kernel */
    unsigned writes;     /* in progress */
    bool finishing, refused;
    void (*taken)(void *owner, int fd, struct tls *tls); /* NULL: not detached */
    uint64_t linger_until;                               /* ms of the loop's clock */
    uv_shutdown_t shutdown;
};

struct write {
    uv_write_t req;
    struct link *link;
    size_t bytes, n;
    struct shared_buf *bufs[];
};

struct shared_buf *shared_buf_new(struct buf *b)
{
    struct shared_buf *s = xmalloc(sizeof(*s));
    if (b->oom) { /* as in core/mem.h: a launcher that cannot make a message cannot run a job */
        log_error("out of memory");
        _exit(125);
    }
    *s = (struct shared_buf){1, *b};
    *b = (struct buf)BUF_INIT;
    return s;
}

void shared_buf_unref(struct shared_buf *s)
{
    if (!s || --s->refs)
        return;
    buf_fini(&s->b);
    free(s);
}

/* ------------------------------------------------------------------------------------------ hub */

static void hub_handle_closed(uv_handle_t *handle)
{
    struct link_hub *h = handle->data;
    if (--h->open == 0 && h->closing)
        h->on_closed(h->on_closed_arg);
}

static void unlink_all(struct link *l)
{
    if (l->prev)
        l->prev->next = l->next;
    else
        l->hub->all = l->next;
    if (l->next)
        l->next->prev = l->prev;
}

static void on_link_closed(uv_handle_t *handle)
{
    struct link *l = handle->data;
    struct link_hub *h = l->hub;
    for (size_t i = 0; i < l->nout; i++)
        shared_buf_unref(l->out[i]);
    free(l->out);
    buf_fini(&l->in);
    buf_fini(&l->wire);
    tls_free(l->tls);
    free(l);
    if (--h->open == 0 && h->closing)
        h->on_closed(h->on_closed_arg);
}

static void close_link(struct link *l)
{
    if (l->closing)
        return;
    l->closing = true;
    l->events = NULL;
    l->hub->nrefused -= l->refused;
    unlink_all(l);
    for (struct link **p = &l->hub->dirty; l->dirty && *p; p = &(*p)->next_dirty) {
        if (*p == l) {
            *p = l->next_dirty;
            break;
        }
    }
    l->dirty = false;
    if (l->local || !l->abort || uv_tcp_close_reset(&l->tcp, on_link_closed) < 0)
        uv_close(&l->handle, on_link_closed);
}

static void mark_dirty(struct link *l)
{
    if (l->dirty)
        return;
    l->dirty = true;
    l->next_dirty = l->hub->dirty;
    l->hub->dirty = l;
    link_hub_wake(l->hub);
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
    (void)req, (void)status; /* the other side or the linger timer closes the link */
}

static bool is_idle(const struct link *l)
{
    return !l->writes && !l->nout && !l->wire.len;
}

static void end_link(struct link *l, enum rdzv_end how, const char *why);

static void on_written(uv_write_t *req, int status)
{
    struct write *w = container_of(req, struct write, req);
    struct link *l = w->link;
    l->writes--;
    l->queued_bytes -= w->bytes;
    for (size_t i = 0; i < w->n; i++)
        shared_buf_unref(w->bufs[i]);
    free(w);
    if (l->closing)
        return;
    if (status < 0 && l->at_end) { /* EPIPE: the other side had closed in order before */
        end_link(l, status == UV_EPIPE ? RDZV_END_CLOSED : RDZV_END_RESET,
                 status == UV_EPIPE ? "connection closed" : uv_strerror(status));
        return;
    } else if (status == UV_EPIPE) {
        return; /* reading reports how the link ended */
    } else if (status < 0) {
        l->failed = true;
        l->reset = status == UV_ECONNRESET;
        mark_dirty(l);
    } else if ((l->tls && l->nout) || l->taken) {
        mark_dirty(l); /* to write the next part, or to give the connection away */
    } else if (l->finishing && is_idle(l)) {
        uv_shutdown(&l->shutdown, &l->stream, on_shutdown);
    }
    if (l->full && !l->failed && l->queued_bytes <= LINK_QUEUE_FULL / 2) {
        l->full = false;
        if (l->events && l->on_room)
            l->on_room(l);
    }
}

/* Encrypts the next ENCRYPT_AHEAD bytes of the queued messages after the handshake. The encrypted
 * bytes are a copy for each link, so they are limited. False: there is nothing to write, or the
 * link has ended. */
static bool encrypt(struct link *l)
{
    int rc = 0;
    bool may = tls_established(l->tls) && l->writes == 0;
    while (may && rc == 0 && l->nout && l->wire.len < ENCRYPT_AHEAD) {
        const struct buf *b = &l->out[0]->b;
        size_t n = b->len - l->encrypted, room = ENCRYPT_AHEAD - l->wire.len;
        n = n < room ? n : room;
        rc = tls_encrypt(l->tls, b->data + l->encrypted, n, &l->wire, NULL);
        l->queued_bytes -= n;
        l->encrypted += n;
        if (l->encrypted < b->len)
            continue;
        l->encrypted = 0;
        shared_buf_unref(l->out[0]);
        memmove(l->out, l->out + 1, --l->nout * sizeof(l->out[0]));
    }
    if (rc < 0)
        end_link(l, RDZV_END_BROKEN, "what is sent cannot be encrypted");
    return rc == 0 && l->wire.len > 0;
}

/* Writes bufs[0..n), and takes their references. */
static void write_bufs(struct link *l, struct shared_buf *const *out, size_t n)
{
    struct write *w = xmalloc(sizeof(*w) + n * sizeof(w->bufs[0]));
    uv_buf_t small[8], *bufs = n <= ARRAY_LEN(small) ? small : xcalloc(n, sizeof(*bufs));
    *w = (struct write){.link = l, .n = n};
    for (size_t i = 0; i < n; i++) {
        w->bufs[i] = out[i];
        bufs[i] = uv_buf_init((char *)out[i]->b.data, (unsigned)out[i]->b.len);
        w->bytes += out[i]->b.len;
    }
    l->writes++;
    if (uv_write(&w->req, &l->stream, bufs, (unsigned)n, on_written) < 0)
        on_written(&w->req, UV_EPIPE);
    if (bufs != small)
        free(bufs);
}

static void link_flush(struct link *l)
{
    if (!l->tls) {
        size_t n = l->nout;
        l->nout = 0;
        write_bufs(l, l->out, n);
    } else if (encrypt(l)) {
        l->queued_bytes += l->wire.len;
        struct shared_buf *s = shared_buf_new(&l->wire);
        write_bufs(l, &s, 1);
    }
}

static void end_link(struct link *l, enum rdzv_end how, const char *why)
{
    const struct link_events *events = l->events;
    /* Before the end of the handshake the link ends in order: this launcher has no lease that could
     * end, and a reset would take the alert from the other side. */
    if (how == RDZV_END_BROKEN && (!l->tls || tls_established(l->tls)))
        l->abort = true;
    if (!events) {
        close_link(l);
        return;
    }
    l->events = NULL; /* the last event; the owner closes the link */
    events->on_end(l, how, why);
}

static void give_away(struct link *l)
{
    uv_os_fd_t fd;
    void (*taken)(void *, int, struct tls *) = l->taken;
    void *owner = l->owner;
    struct tls *tls = l->tls;
    int copy = uv_fileno(&l->handle, &fd) < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0) {
        end_link(l, RDZV_END_BROKEN, "no descriptor is left");
        return;
    }
    l->tls = NULL;
    close_link(l);
    taken(owner, copy, tls);
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct link_hub *h = container_of(prepare, struct link_hub, prepare);
    do {
        h->woken = false;
        if (h->before_flush)
            h->before_flush(h->arg);
        while (h->dirty) {
            struct link *l = h->dirty;
            h->dirty = l->next_dirty;
            l->dirty = false;
            if (l->failed)
                end_link(l, l->reset ? RDZV_END_RESET : RDZV_END_BROKEN,
                         l->reset ? "connection reset" : "it does not take what it is sent");
            else if ((l->nout || l->wire.len) && !l->unproven)
                link_flush(l);
            else if (l->taken && is_idle(l))
                give_away(l);
        }
    } while (h->woken && !h->closing);
    uv_prepare_stop(prepare);
}

void link_hub_wake(struct link_hub *h)
{
    if (h->closing)
        return;
    h->woken = true;
    uv_prepare_start(&h->prepare, on_prepare);
}

static void on_linger(uv_timer_t *timer)
{
    struct link_hub *h = container_of(timer, struct link_hub, linger);
    uint64_t now = uv_now(h->loop);
    bool more = false;
    for (struct link *l = h->all, *next; l; l = next) {
        next = l->next;
        if (l->finishing && now >= l->linger_until) {
            l->abort = !is_idle(l); /* the last message, which says what the end means, is lost */
            close_link(l);
        } else {
            more |= l->finishing;
        }
    }
    if (!more)
        uv_timer_stop(timer);
}

void link_hub_init(struct link_hub *h, uv_loop_t *loop, void (*before_flush)(void *arg), void *arg)
{
    h->loop = loop;
    h->all = h->dirty = NULL;
    h->before_flush = before_flush;
    h->arg = arg;
    h->closing = h->woken = false;
    h->nrefused = 0;
    uv_prepare_init(loop, &h->prepare);
    uv_timer_init(loop, &h->linger);
    h->prepare.data = h->linger.data = h;
    h->open = 2;
}

void link_hub_close(struct link_hub *h, void (*on_closed)(void *arg), void *arg)
{
    h->closing = true;
    h->on_closed = on_closed;
    h->on_closed_arg = arg;
    while (h->all)
        close_link(h->all);
    uv_close((uv_handle_t *)&h->prepare, hub_handle_closed);
    uv_close((uv_handle_t *)&h->linger, hub_handle_closed);
}

void link_hub_abandon(struct link_hub *h)
{
    for (struct link *l = h->all; l; l = l->next) {
        uv_os_fd_t fd;
        if (uv_fileno(&l->handle, &fd) < 0)
            continue;
        while (recv(fd, h->buffer, sizeof(h->buffer), MSG_DONTWAIT) > 0)
            ;
        shutdown(fd, SHUT_RDWR);
    }
}

/* -------------------------------------------------------------------------------------- reading */

/* Checks the user of the other end, on this host. Called when the first bytes have arrived: they
 * show that a process has accepted the connection, before which it has no owner. False: the link
 * has ended. */
static bool prove(struct link *l)
{
    struct netaddr peer = {.len = sizeof(peer.ss)};
    uv_os_fd_t fd;
    enum auth_whose whose = AUTH_GONE;
    if (uv_fileno(&l->handle, &fd) == 0 && getpeername(fd, &peer.sa, &peer.len) == 0)
        whose = auth_whose(fd, &peer);
    if (whose == AUTH_OWN) {
        l->unproven = false;
        mark_dirty(l);
    } else if (whose == AUTH_GONE) {
        end_link(l, RDZV_END_CLOSED, "connection closed");
    } else {
        end_link(l, RDZV_END_USER, "what listens there is another user's");
    }
    return whose == AUTH_OWN;
}

/* Passes the complete frames in p[0..n) to the owner. Returns how many bytes they had, or -1 when
 * the link was closed meanwhile. */
static ssize_t take_frames(struct link *l, const uint8_t *p, size_t n)
{
    size_t at = 0;
    if (!l->got_preamble) {
        if (n < RDZV_PREAMBLE_LEN)
            return 0;
        uint32_t version = rdzv_get_preamble(p);
        l->got_preamble = true;
        at = RDZV_PREAMBLE_LEN;
        if (version && l->unproven && !prove(l))
            return -1;
        if (!l->events->on_preamble(l, version))
            return -1;
    }
    while (l->events && n - at >= RDZV_FRAME_HEADER) {
        struct rd r = rd_init(p + at, n - at);
        uint32_t len = rd_u32(&r);
        if (len < 1 || len > l->frame_max) {
            end_link(l, RDZV_END_BROKEN, "it sent a frame of a length that cannot be");
            return -1;
        }
        if (n - at - 4 < len)
            break;
        uint8_t type = rd_u8(&r);
        at += 4 + (size_t)len;
        l->events->on_frame(l, type, rd_init(r.p, len - 1));
    }
    return l->events ? (ssize_t)at : -1;
}

static void bytes_in(struct link *l, const uint8_t *p, size_t n)
{
    if (!l->events) /* finishing: further messages are ignored */
        return;
    if (l->in.len == 0) {
        ssize_t taken = take_frames(l, p, n);
        if (taken >= 0)
            buf_put(&l->in, p + taken, n - (size_t)taken);
    } else {
        buf_put(&l->in, p, n);
        ssize_t taken = l->in.oom ? 0 : take_frames(l, l->in.data, l->in.len);
        if (taken > 0)
            buf_consume(&l->in, (size_t)taken);
    }
    if (l->in.oom && l->events)
        end_link(l, RDZV_END_BROKEN, "out of memory");
    else if (l->in.len == 0 && l->in.cap > KEEP_BYTES)
        buf_fini(&l->in);
}

/* Reads bytes that arrive under TLS. */
static void decrypt(struct link *l, const uint8_t *p, size_t n)
{
    struct buf plain = BUF_INIT;
    struct err e = ERR_INIT;
    bool before = tls_established(l->tls);
    int rc = tls_feed(l->tls, p, n, &plain, &l->wire, &e);
    if (l->wire.len || (!before && tls_established(l->tls)))
        mark_dirty(l);
    if (plain.len)
        bytes_in(l, plain.data, plain.len);
    buf_fini(&plain);
    if (rc < 0 && !l->closing) {
        if (l->wire.len) /* an alert with the reason for the other side */
            link_flush(l);
        if (rc == -EPROTO && !tls_established(l->tls))
            text_add(e.msg, sizeof(e.msg),
                     ": the other side is no launcher of dlaunch, or has another job token");
        end_link(l, rc == -EACCES ? RDZV_END_KEY : RDZV_END_BROKEN, e.msg);
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)suggested;
    struct link *l = handle->data;
    *buf = uv_buf_init((char *)l->hub->buffer, sizeof(l->hub->buffer));
}

/* Reading has reported an end of file. libuv reports one for an error too, if a write has taken the
 * error from the socket. The kernel's state decides: only a connection that the other side has
 * closed in order is half open here. */
static void on_eof(struct link *l)
{
    struct tcp_info info;
    socklen_t len = sizeof(info), error_len = sizeof(int);
    uv_os_fd_t fd;
    int error = 0;
    bool half_open = l->local || uv_fileno(&l->handle, &fd) < 0 ||
                     getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 ||
                     info.tcpi_state != TCP_CLOSE;
    if (!half_open && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_len) == 0 && error == 0 &&
        l->writes > 0) {
        l->at_end = true; /* on_written() gets the error */
        return;
    }
    if (half_open ||
        error == EPIPE) /* EPIPE: the connection was reset after the other side had closed it */
        end_link(l, RDZV_END_CLOSED, "connection closed");
    else
        end_link(l, RDZV_END_RESET, strerror(error ? error : ECONNRESET));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct link *l = stream->data;
    if (n > 0 && l->tls)
        decrypt(l, (const uint8_t *)buf->base, (size_t)n);
    else if (n > 0)
        bytes_in(l, (const uint8_t *)buf->base, (size_t)n);
    else if (n < 0 && l->tls && !tls_established(l->tls))
        end_link(l, RDZV_END_BROKEN,
                 "the connection ended in the TLS handshake: the other side may run without a job "
                 "token (--insecure, or called as torchrun)");
    else if (n == UV_EOF)
        on_eof(l);
    else if (n < 0)
        end_link(l, n == UV_ECONNRESET ? RDZV_END_RESET : RDZV_END_BROKEN, uv_strerror((int)n));
}

/* ---------------------------------------------------------------------------------------- links */

struct link *link_new(struct link_hub *h, int fd, bool local, const struct link_events *events,
                      void *owner)
{
    struct link *l = xcalloc(1, sizeof(*l));
    l->hub = h;
    l->events = events;
    l->owner = owner;
    l->local = local;
    l->frame_max = RDZV_FRAME_MAX_FIRST;
    int rc = local ? uv_pipe_init(h->loop, &l->pipe, 0) : uv_tcp_init(h->loop, &l->tcp);
    if (rc < 0) {
        close(fd);
        free(l);
        return NULL;
    }
    l->handle.data = l;
    h->open++;
    l->next = h->all;
    if (l->next)
        l->next->prev = l;
    h->all = l;
    rc = local ? uv_pipe_open(&l->pipe, fd) : uv_tcp_open(&l->tcp, fd);
    if (rc < 0)
        close(fd);
    if (rc < 0 || uv_read_start(&l->stream, on_alloc, on_read) < 0) {
        close_link(l);
        return NULL;
    }
    struct buf preamble = BUF_INIT;
    rdzv_put_preamble(&preamble);
    link_send_buf(l, &preamble);
    return l;
}

void link_protect(struct link *l, enum tls_side side, const struct tls_key *key)
{
    if (tls_new(&l->tls, side, key, &l->wire, NULL) < 0)
        l->failed = true; /* ends the link in this turn */
    mark_dirty(l);
}

void link_auth(struct link *l, const struct auth *g)
{
    struct netaddr peer = {.len = sizeof(peer.ss)};
    uv_os_fd_t fd;
    if (g->open)
        return;
    bool known = uv_fileno(&l->handle, &fd) == 0 && getpeername(fd, &peer.sa, &peer.len) == 0;
    if (known && auth_wants_tls(g, &peer)) {
        link_protect(l, TLS_CLIENT, &g->key);
    } else {
        link_flush(l); /* the preamble, by which the other side recognizes a launcher */
        l->unproven = true;
    }
}

void *link_owner(const struct link *l)
{
    return l->owner;
}

void link_set_owner(struct link *l, const struct link_events *events, void *owner)
{
    l->events = events;
    l->owner = owner;
}

void link_set_frame_max(struct link *l, uint32_t max)
{
    l->frame_max = max;
}

void link_send(struct link *l, struct shared_buf *s)
{
    if (l->closing || l->failed)
        return;
    if (l->nout == l->cap_out) {
        l->cap_out = l->cap_out ? 2 * l->cap_out : 4;
        l->out = xrealloc(l->out, l->cap_out * sizeof(struct shared_buf *));
    }
    s->refs++;
    l->out[l->nout++] = s;
    l->queued_bytes += s->b.len;
    l->failed = l->queued_bytes > LINK_QUEUE_MAX;
    l->full |= l->queued_bytes > LINK_QUEUE_FULL;
    mark_dirty(l);
}

bool link_is_full(const struct link *l)
{
    return l->full;
}

void link_set_on_room(struct link *l, void (*on_room)(struct link *l))
{
    l->on_room = on_room;
}

void link_send_buf(struct link *l, struct buf *b)
{
    struct shared_buf *s = shared_buf_new(b);
    link_send(l, s);
    shared_buf_unref(s);
}

void link_close(struct link *l)
{
    close_link(l);
}

void link_finish(struct link *l)
{
    l->events = NULL;
    l->finishing = true;
    l->linger_until = uv_now(l->hub->loop) + LINGER_MS;
    if (!uv_is_active((uv_handle_t *)&l->hub->linger))
        uv_timer_start(&l->hub->linger, on_linger, LINGER_MS / 4, LINGER_MS / 4);
    if (is_idle(l))
        uv_shutdown(&l->shutdown, &l->stream, on_shutdown);
}

void link_refuse(struct link *l)
{
    if (l->hub->nrefused == LINK_REFUSED_MAX) {
        close_link(l);
        return;
    }
    l->refused = true;
    l->hub->nrefused++;
    link_finish(l);
}

void link_detach(struct link *l, void (*taken)(void *owner, int fd, struct tls *tls))
{
    l->taken = taken;
    uv_read_stop(&l->stream);
    mark_dirty(l);
}

static void set_option(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value, sizeof(value)); /* an optimization: may fail */
}

void link_tune(int fd, uint32_t dead_ms)
{
    int seconds = (int)(dead_ms / 1000), idle = seconds / 4, interval = seconds / 8;
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle > 0 ? idle : 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval > 0 ? interval : 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(dead_ms / 10 * 6));
}
