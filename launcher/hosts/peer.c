#include "launcher/hosts/peer.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"
#include "core/uvx.h"
#include "launcher/hosts/piped.h"
#include "rendezvous/wire/link.h"

#define SKIPPED_MAX (1u << 20)   /* bytes that a shell may print before dlaunch speaks */
#define AGAIN_NS    100000000ull /* before the second attempt; twice as long before the third */
#define SSH_FAILED  255          /* ssh's exit status for its own failures */
#define DEAD_MS     15000        /* after which the connection to a daemon that is silent is lost */

void peer_init(struct peer *p, const struct host *h, uint32_t number, bool is_local, bool srun)
{
    *p = (struct peer){.host = h,
                       .number = number,
                       .is_local = is_local,
                       .srun = srun,
                       .rank = -1,
                       .pid = -1,
                       .in = -1,
                       .out = -1,
                       .err = -1};
}

void peer_close_end(struct peer *p, enum peer_end end)
{
    int *const fds[] = {&p->in, &p->out, &p->err};
    uvx_watch_free(p->watch[end]);
    p->watch[end] = NULL;
    close_fd(fds[end]);
}

int peer_watch(struct peer *p, struct uvx_scope *s, void (*const on_ready[3])(void *peer),
               bool reads)
{
    const int fds[] = {p->in, p->out, p->err};
    const int events[] = {peer_has_to_write(p) ? UV_WRITABLE : 0, reads ? UV_READABLE : 0,
                          UV_READABLE};
    for (int i = PEER_IN; i <= PEER_ERR; i++) {
        if (fds[i] < 0)
            continue;
        if (!p->watch[i] && !(p->watch[i] = uvx_watch_new(s, fds[i], on_ready[i], p)))
            return -errno;
        uvx_watch_for(p->watch[i], events[i]);
    }
    return 0;
}

void peer_fini(struct peer *p)
{
    peer_close_end(p, PEER_IN);
    peer_close_end(p, PEER_OUT);
    peer_close_end(p, PEER_ERR);
    host_stream_fini(&p->stream);
    buf_fini(&p->to);
    buf_fini(&p->from);
    free(p->report);
    free(p->json);
}

static void begin_attempt(struct peer *p)
{
    p->state = PEER_CONNECTING;
    p->attempts++;
    p->magic = p->end_requested = p->mute = p->by_daemon = p->dialing = p->refused = false;
    p->skipped = p->said_len = p->from.len = p->to.len = 0;
    p->said[0] = '\0';
}

int peer_start(struct peer *p, struct spawner *s, const char *path, char **argv, struct err *e)
{
    struct piped child;
    int rc =
        piped_start(s, path, argv, p->srun, &child, e); /* srun hands on the end of its input */
    if (rc < 0)
        return rc;
    p->pid = child.pid;
    p->in = child.in;
    p->out = child.out;
    p->err = child.err;
    begin_attempt(p);
    return 0;
}

void peer_start_through(struct peer *p, char **argv, bool copied)
{
    struct forward_start start = {.copied = copied, .argv = argv};
    begin_attempt(p);
    p->through = true;
    forward_start_put(&p->via->to, p->number, &start);
    peer_write(p->via);
}

void peer_dial(struct peer *p)
{
    begin_attempt(p);
    p->by_daemon = p->dialing = true;
}

int peer_connected(struct peer *p, int fd, const struct tls_key *key, struct err *e)
{
    p->dialing = false;
    p->out = fd;
    p->in = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (p->in < 0)
        return err_sys(e, errno, "dup");
    link_tune(fd, DEAD_MS);
    return tls_new(&p->stream.tls, TLS_CLIENT, key, &p->stream.wire, e);
}

bool peer_is_known(const struct peer *p)
{
    return p->stream.tls && tls_established(p->stream.tls);
}

void peer_hang_up(struct peer *p)
{
    p->dialing = false;
    peer_close_end(p, PEER_IN);
    peer_close_end(p, PEER_OUT);
    host_stream_fini(&p->stream);
}

/* -------------------------------------------------------------------------------------- writing */

/* Whether something can be sent to it. */
static bool takes(const struct peer *p)
{
    return (p->in >= 0 || p->through) && !p->mute;
}

bool peer_has_to_write(const struct peer *p)
{
    return takes(p) &&
           (p->piece[0].n || p->piece[1].n || p->to.len || host_stream_unsent(&p->stream));
}

static void forward(struct peer *p, enum forward_what what, const void *bytes, size_t n)
{
    if (!takes(p->via))
        return; /* the end of the process, and so that of p, comes next */
    frame_forward_put(&p->via->to, FRAME_FORWARD, p->number, what, bytes, n);
    peer_write(p->via);
}

void peer_forward_program(struct peer *p)
{
    forward(p, FORWARD_PROGRAM, NULL, 0);
}

/* Stops writing to a peer that does not read any more; the end of its process, which comes next,
 * says why. A socket stays open for reading. */
static void give_up_writing(struct peer *p)
{
    if (p->through) {
        if (!p->mute)
            forward(p, FORWARD_CLOSE, NULL, 0);
        p->mute = true;
    } else if (p->by_daemon && p->in >= 0) {
        shutdown(p->in, SHUT_WR);
        p->mute = true;
    } else {
        peer_close_end(p, PEER_IN);
    }
    p->to.len = 0;
    p->piece[0].n = p->piece[1].n = 0;
}

void peer_write(struct peer *p)
{
    if (p->through && takes(p)) {
        if (p->to.len)
            forward(p, FORWARD_BYTES, p->to.data, p->to.len);
        p->to.len = 0;
        return;
    }
    while (peer_has_to_write(p)) {
        struct peer_piece *piece = p->piece[0].n ? &p->piece[0] : &p->piece[1];
        const void *data = piece->n ? piece->p : p->to.data;
        ssize_t n = host_stream_write(&p->stream, p->in, data, piece->n ? piece->n : p->to.len);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            give_up_writing(p);
        if (n < 0)
            return;
        if (piece->n) {
            piece->p += n;
            piece->n -= (size_t)n;
        } else {
            buf_consume(&p->to, (size_t)n);
        }
    }
}

void peer_send(struct peer *p, enum frame_type type, const void *body, size_t n)
{
    if (!takes(p))
        return;
    frame_put(&p->to, type, body, n);
    peer_write(p);
}

void peer_send_byte(struct peer *p, enum frame_type type, int byte)
{
    uint8_t b = (uint8_t)byte;
    peer_send(p, type, &b, 1);
}

/* -------------------------------------------------------------------------------------- reading */

/* Keeps the end of what ssh prints. */
static void keep_said(struct peer *p, const char *text, size_t n)
{
    size_t cap = sizeof(p->said) - 1;
    if (n > cap) {
        text += n - cap;
        n = cap;
    }
    if (p->said_len + n > cap) {
        size_t drop = p->said_len + n - cap;
        memmove(p->said, p->said + drop, p->said_len - drop);
        p->said_len -= drop;
    }
    memcpy(p->said + p->said_len, text, n);
    p->said_len += n;
    p->said[p->said_len] = '\0';
}

/* Returns how many bytes there were; 0 also at the end, where err is closed. */
static size_t read_said(struct peer *p)
{
    char text[1024];
    ssize_t n = read(p->err, text, sizeof(text));
    if (n > 0)
        keep_said(p, text, (size_t)n);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        peer_close_end(p, PEER_ERR);
    return n > 0 ? (size_t)n : 0;
}

/* Drops what a shell has printed before dlaunch. */
static void skip_to_magic(struct peer *p)
{
    size_t len = strlen(FRAME_MAGIC);
    const uint8_t *at = p->from.len ? memmem(p->from.data, p->from.len, FRAME_MAGIC, len) : NULL;
    size_t before = at                  ? (size_t)(at - p->from.data)
                    : p->from.len < len ? 0
                                        : p->from.len - len + 1;
    p->skipped += before;
    p->magic = at != NULL;
    buf_consume(&p->from, at ? before + len : before);
}

/* Looks for dlaunch in what has come. False: this will not be dlaunch. */
static bool is_dlaunch(struct peer *p)
{
    if (!p->magic)
        skip_to_magic(p);
    return p->magic || p->skipped <= SKIPPED_MAX;
}

bool peer_read(struct peer *p, enum peer_end end)
{
    if (end == PEER_ERR) {
        read_said(p);
        return p->err >= 0;
    }
    ssize_t n = host_stream_read(&p->stream, p->out, &p->from);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0) {
        const char *why = n == 0            ? "closed from there"
                          : errno == EACCES ? "it has another token"
                                            : strerror(errno);
        p->refused = p->by_daemon && n < 0 && errno == EACCES;
        if (p->by_daemon)
            keep_said(p, why, strlen(why));
        peer_close_end(p, PEER_OUT);
        return false;
    }
    if (is_dlaunch(p))
        return true;
    peer_close_end(p, PEER_OUT);
    return false;
}

int peer_forwarded(struct peer *p, const struct frame_forward *f, int *status)
{
    struct rd r = rd_init(f->p, f->len);
    switch (f->what) {
    case FORWARD_OUT:
        xbuf_reserve(&p->from, f->len);
        buf_put(&p->from, f->p, f->len);
        if (!is_dlaunch(p))
            peer_kill(p);
        return 0;
    case FORWARD_ERR:
        keep_said(p, (const char *)f->p, f->len);
        return 0;
    case FORWARD_ENDED:
        *status = (int)rd_u32(&r);
        p->through = false;
        return rd_done(&r) ? 1 : -EPROTO;
    default:
        return -EPROTO;
    }
}

void peer_lose_via(struct peer *p)
{
    char why[HOST_MAX + 64];
    int n =
        snprintf(why, sizeof(why), "\nthe host that reached it, %s, is gone", p->via->host->name);
    p->through = false;
    keep_said(p, why, (size_t)n);
}

int peer_next_frame(struct peer *p, size_t *at, struct frame *f)
{
    if (!p->magic)
        return 0;
    long n = frame_get(p->from.data + *at, p->from.len - *at, f);
    if (n > 0) {
        *at += (size_t)n;
        return 1;
    }
    buf_consume(&p->from, *at);
    *at = 0;
    return (int)n;
}

/* ----------------------------------------------------------------------------------------- ends */

void peer_drop(struct peer *p)
{
    give_up_writing(p);
}

void peer_kill(struct peer *p)
{
    if (p->through)
        forward(p, FORWARD_KILL, NULL, 0);
    peer_drop(p);
    if (p->by_daemon && p->out >= 0)
        shutdown(p->out, SHUT_RDWR);
    if (p->pid > 0)
        kill(p->pid, p->srun && !p->end_requested ? SIGTERM : SIGKILL);
    p->end_requested = true;
}

/* Whether sshd may take the next connection: it drops some when many come at once (MaxStartups), or
 * is just being started. */
static bool may_pass(const struct peer *p)
{
    static const char *const texts[] = {
        "Connection refused",          "Connection closed",           "Connection reset",
        "kex_exchange_identification", "ssh_exchange_identification", "Broken pipe"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        if (strstr(p->said, texts[i]))
            return true;
    }
    return false;
}

bool peer_ended(struct peer *p, int status)
{
    bool early = p->state == PEER_CONNECTING;
    while (p->err >= 0 && read_said(p)) /* not to the pipe's end: ssh may leave a process behind */
        ;
    peer_close_end(p, PEER_IN);
    peer_close_end(p, PEER_ERR);
    p->pid = -1;
    return early && !p->is_local && WIFEXITED(status) && WEXITSTATUS(status) == SSH_FAILED &&
           may_pass(p);
}

bool peer_again(struct peer *p, uint64_t deadline_ns, uint64_t now)
{
    uint64_t wait = AGAIN_NS << (p->attempts < 5 ? p->attempts - 1 : 4);
    wait += wait * ((uintptr_t)p / sizeof(*p) % 64) / 64; /* not all at once again */
    if (now + wait >= deadline_ns)
        return false;
    peer_close_end(p, PEER_OUT);
    p->state = PEER_WAITING;
    p->next_ns = now + wait;
    return true;
}

/* The last line of what ssh has printed. */
static const char *last_line(const struct peer *p, char *out, size_t cap)
{
    size_t end = p->said_len, begin;
    while (end && isspace((unsigned char)p->said[end - 1]))
        end--;
    for (begin = end; begin && p->said[begin - 1] != '\n' && p->said[begin - 1] != '\r'; begin--)
        ;
    snprintf(out, cap, "%.*s", (int)(end - begin), p->said + begin);
    return out;
}

void peer_explain(const struct peer *p, int status, struct err *e)
{
    char line[sizeof(p->said)];
    last_line(p, line, sizeof(line));
    bool missing = !p->by_daemon && WIFEXITED(status) &&
                   (WEXITSTATUS(status) == 127 || WEXITSTATUS(status) == 126);
    bool said_by_via = p->via && p->via->state != PEER_GONE;
    if (missing)
        err_set(e, -ENOENT,
                "dlaunch cannot be run there%s%s; --prefix names its place, --bcast "
                "copies it",
                *line ? ": " : "", line);
    else if (*line && said_by_via)
        err_set(e, -EIO, "reached from %s: %s", p->via->host->name, line);
    else if (*line || p->by_daemon)
        err_set(e, -EIO, "%s", line);
    else if (WIFSIGNALED(status))
        err_set(e, -EIO, "what was to reach it was killed by signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) == 0)
        err_set(e, -EIO, "what was to start dlaunch there has ended without a word");
    else
        err_set(e, -EIO, "what was to start dlaunch there has ended with status %d",
                WEXITSTATUS(status));
}
