#include "agent/output/stdio_console.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "agent/base/stdio_opts.h"
#include "agent/output/stdio_logfile.h"
#include "agent/base/text.h"
#include "core/escape.h"
#include "core/fd.h"
#include "core/mem.h"

#define SAVED_MAX  65536 /* of dlaunch's own lines out of one gap */
#define RECORD_MAX 16384 /* that small ones grow to: what is dropped at a time */

/* A terminal that we could only open blocking and that says it is writable has room for 256 bytes
 * at least (the kernel's buffers come in that size), and each newline becomes two. */
#define BLOCKING_TTY_MAX 128

struct console_record {
    struct stdio_label *who; /* one reference; NULL: dlaunch itself */
    uint32_t len;
    bool cont; /* begins within the unfinished line of the record before it */
};

static const char RESET[] = "\x1b[m";

static const char ENDED_WORKER; /* stands for no writer */

/* The label of a newline that ends a line on behalf of its writer. */
static struct stdio_label FILLER = {.refs = 1};

void console_init(struct console *c, int fd, const char *name, int epfd, void *tag)
{
    struct stat st;
    *c = (struct console){.fd = fd,
                          .own_fd = -1,
                          .name = name,
                          .epfd = epfd,
                          .tag = tag,
                          .tail_byte = '\n',
                          .sent_byte = '\n'};
    if (fstat(fd, &st) < 0)
        c->kind =
            CONSOLE_DEAD; /* closed by the process that started dlaunch, which wants no output */
    else if (S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3))
        c->kind = CONSOLE_NULL;
    else
        c->tty = S_ISCHR(st.st_mode) && isatty(fd);
}

bool console_same(int fd_a, int fd_b)
{
    struct stat a, b;
    return fd_a == fd_b || (fstat(fd_a, &a) == 0 && fstat(fd_b, &b) == 0 && a.st_dev == b.st_dev &&
                            a.st_ino == b.st_ino && a.st_rdev == b.st_rdev);
}

/* ---------------------------------------------------------------------------------- the backlog */

static struct console_record *record_at(const struct console *c, size_t i)
{
    return &c->records[(c->record_head + i) & (c->record_cap - 1)];
}

static size_t backlog_size(const struct console *c)
{
    return c->ring_len + c->nrecords * sizeof(struct console_record);
}

bool console_has_backlog(const struct console *c)
{
    return c->first.len || c->saved.len || c->ring_len || c->own_lost || c->gap[0].bytes;
}

/* Whether output waits for the console's reader. It does not wait for a terminal, which may be
 * stopped (Ctrl-S) or forgotten in a window while the job has to go on, nor for a full disk. */
static bool waits(const struct console *c)
{
    return !c->tty && !c->error;
}

bool console_full(const struct console *c)
{
    if (c->kind == CONSOLE_JOB)
        return c->job->kept(c->job->arg) >= STDIO_CONSOLE_BACKLOG;
    return backlog_size(c) >= STDIO_CONSOLE_BACKLOG && waits(c);
}

bool console_has_room(const struct console *c)
{
    if (c->kind == CONSOLE_JOB)
        return c->job->kept(c->job->arg) <= STDIO_CONSOLE_BACKLOG / 2;
    return backlog_size(c) <= STDIO_CONSOLE_BACKLOG / 2 || !waits(c);
}

uint64_t console_kept(const struct console *c)
{
    uint64_t n = c->ring_len + c->own_lost + c->first.len + c->saved.len;
    for (size_t i = 0; i <= CONSOLE_GAPS; i++)
        n += c->gap[i].bytes;
    return n;
}

static void ring_reserve(struct console *c, size_t n)
{
    size_t cap = c->ring_cap ? c->ring_cap : 65536;
    while (cap < c->ring_len + n)
        cap *= 2;
    if (cap == c->ring_cap)
        return;
    uint8_t *ring = xmalloc(cap);
    size_t first = c->ring_cap - c->ring_head;
    if (first > c->ring_len)
        first = c->ring_len;
    if (c->ring_len) {
        memcpy(ring, c->ring + c->ring_head, first);
        memcpy(ring + first, c->ring, c->ring_len - first);
    }
    free(c->ring);
    c->ring = ring;
    c->ring_cap = cap;
    c->ring_head = 0;
}

/* Copies n bytes from `at` bytes behind the ring's head. */
static void ring_copy(const struct console *c, size_t at, void *out, size_t n)
{
    size_t from = (c->ring_head + at) & (c->ring_cap - 1);
    size_t first = n < c->ring_cap - from ? n : c->ring_cap - from;
    memcpy(out, c->ring + from, first);
    memcpy((uint8_t *)out + first, c->ring, n - first);
}

static void enqueue(struct console *c, struct stdio_label *who, const uint8_t *p, size_t n,
                    bool cont)
{
    ring_reserve(c, n);
    size_t at = (c->ring_head + c->ring_len) & (c->ring_cap - 1);
    size_t first = n < c->ring_cap - at ? n : c->ring_cap - at;
    memcpy(c->ring + at, p, first);
    memcpy(c->ring, p + first, n - first);
    c->ring_len += n;
    struct console_record *last = c->nrecords ? record_at(c, c->nrecords - 1) : NULL;
    if (last && last->who == who && last->len + n <= RECORD_MAX) {
        last->len += (uint32_t)n;
        return;
    }
    if (c->nrecords == c->record_cap) {
        size_t cap = c->record_cap ? 2 * c->record_cap : 64;
        struct console_record *records = xmalloc(cap * sizeof(*records));
        for (size_t i = 0; i < c->nrecords; i++)
            records[i] = *record_at(c, i);
        free(c->records);
        c->records = records;
        c->record_cap = cap;
        c->record_head = 0;
    }
    *record_at(c, c->nrecords++) = (struct console_record){
        .who = who ? stdio_label_ref(who) : NULL, .len = (uint32_t)n, .cont = cont};
}

/* Takes n bytes off the ring; the record that is left at its head begins within a line, or not. */
static void dequeue(struct console *c, size_t n, bool cont)
{
    c->ring_head = (c->ring_head + n) & (c->ring_cap - 1);
    c->ring_len -= n;
    while (n) {
        struct console_record *r = record_at(c, 0);
        if (n < r->len) {
            r->len -= (uint32_t)n;
            break;
        }
        n -= r->len;
        stdio_label_unref(r->who);
        c->record_head = (c->record_head + 1) & (c->record_cap - 1);
        c->nrecords--;
    }
    if (c->nrecords)
        record_at(c, 0)->cont = cont;
}

static void drop_backlog(struct console *c)
{
    if (c->ring_len)
        dequeue(c, c->ring_len, false);
    for (size_t i = 0; i <= CONSOLE_GAPS; i++) {
        stdio_label_unref(c->gap[i].who);
        c->gap[i].who = NULL;
        c->gap[i].bytes = 0;
    }
    c->own_lost = 0;
    buf_fini(&c->first);
    buf_fini(&c->saved);
    free(c->ring);
    free(c->records);
    c->ring = NULL;
    c->records = NULL;
    c->ring_cap = c->record_cap = 0;
}

/* -------------------------------------------------------------------------------------- the gap */

static void count_gap(struct console *c, struct stdio_label *who, size_t n)
{
    size_t i = 0;
    c->gap_error = c->error;
    while (i < CONSOLE_GAPS && c->gap[i].who && c->gap[i].who != who)
        i++;
    if (i < CONSOLE_GAPS && !c->gap[i].who)
        c->gap[i].who = stdio_label_ref(who);
    c->gap[i].bytes += n;
}

/* Drops n bytes from the ring's head, all of one record. */
static void console_drop(struct console *c, size_t n, bool cont)
{
    struct stdio_label *who = record_at(c, 0)->who;
    if (who == &FILLER) {
        /* the label is dropped with its line */
    } else if (who) {
        count_gap(c, who, n);
    } else if (c->saved.len + n <= SAVED_MAX && buf_reserve(&c->saved, n)) {
        ring_copy(c, 0, c->saved.data + c->saved.len, n);
        c->saved.len += n;
    } else {
        c->own_lost += n;
    }
    dequeue(c, n, cont);
}

/* The bytes at the ring's head up to the first newline, with it; 0 when there is none in the first
 * `max`. */
static size_t rest_of_line(const struct console *c, size_t max)
{
    size_t n = max < c->ring_len ? max : c->ring_len;
    size_t first = n < c->ring_cap - c->ring_head ? n : c->ring_cap - c->ring_head;
    const uint8_t *p = c->ring + c->ring_head, *nl = memchr(p, '\n', first);
    if (nl)
        return (size_t)(nl - p) + 1;
    nl = memchr(c->ring, '\n', n - first);
    return nl ? first + (size_t)(nl - c->ring) + 1 : 0;
}

/* Drops the oldest whole lines, where some may be, until there is room for `need` more bytes. The
 * newest record is never dropped, because one is much smaller than the backlog. */
static void console_make_room(struct console *c, size_t need)
{
    if (c->nrecords == 0 || backlog_size(c) + need <= STDIO_CONSOLE_BACKLOG || waits(c))
        return;
    if (record_at(c, 0)->cont) { /* the line that the console is in the middle of stays whole */
        size_t rest = rest_of_line(c, STDIO_LINE_MAX);
        if (rest) {
            xbuf_reserve(&c->first, rest);
            ring_copy(c, 0, c->first.data + c->first.len, rest);
            c->first.len += rest;
            dequeue(c, rest, false);
        }
    }
    while (c->nrecords && backlog_size(c) + need > STDIO_CONSOLE_BACKLOG) {
        size_t len = record_at(c, 0)->len;
        bool ends_line = c->nrecords < 2 || !record_at(c, 1)->cont;
        console_drop(c, len, !ends_line);
        while (c->nrecords && record_at(c, 0)->cont) { /* the rest of the console's last line */
            size_t rest = rest_of_line(c, record_at(c, 0)->len);
            console_drop(c, rest ? rest : record_at(c, 0)->len, !rest);
        }
    }
}

static void __attribute__((format(printf, 2, 3))) say(struct buf *b, const char *fmt, ...)
{
    char line[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    buf_put(b, line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1);
}

/* Writes lines about the dropped output. */
static void declare_gap(struct console *c)
{
    char size[TEXT_BYTES_MAX], name[128], error[ERR_TEXT_MAX];
    const char *why = c->gap_error ? err_text(c->gap_error, error) : "the console is too slow";
    if (c->tty) /* a colour may be on, or half of its sequence be out */
        buf_put(&c->first, RESET, sizeof(RESET) - 1);
    if (c->sent_byte != '\n')
        buf_put(&c->first, "\n", 1);
    for (size_t i = 0; i <= CONSOLE_GAPS; i++) {
        struct stdio_label *who = c->gap[i].who;
        if (c->gap[i].bytes == 0)
            continue;
        text_bytes(size, c->gap[i].bytes);
        if (!who) {
            say(&c->first, "dlaunch: %s of output of other workers dropped here: %s\n", size, why);
        } else {
            say(&c->first, "dlaunch: %s: %s of output dropped here: %s",
                stdio_label_name(who, name, sizeof(name)), size, why);
            if (*who->file) {
                buf_put(&c->first, " (all of it is in ", 18);
                buf_put(&c->first, who->file, strlen(who->file));
                buf_put(&c->first, ")", 1);
            }
            buf_put(&c->first, "\n", 1);
        }
        stdio_label_unref(who);
        c->gap[i].who = NULL;
        c->gap[i].bytes = 0;
    }
    if (c->own_lost)
        say(&c->first, "dlaunch: %s of its own lines dropped here: %s\n",
            text_bytes(size, c->own_lost), why);
    c->own_lost = 0;
    buf_put(&c->first, c->saved.data, c->saved.len);
    buf_fini(&c->saved);
    xbuf_reserve(&c->first, 0);
}

/* -------------------------------------------------------------------------------------- writing */

/* Opens the same pipe or terminal anew, for a descriptor with flags of its own. -1: that fails. */
static int open_anew(int fd)
{
    char path[40];
    int n;
    if (ioctl(fd, TIOCGPTN, &n) == 0)
        return -1; /* the master side of a pty: opening that again makes another pty */
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int anew = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (anew >= 0 && !console_same(fd, anew))
        close_fd(&anew);
    return anew;
}

static void find_kind(struct console *c)
{
    struct stat st;
    int flags = fcntl(c->fd, F_GETFL);
    if (fstat(c->fd, &st) < 0 || flags < 0)
        st.st_mode = S_IFREG; /* the write will report the error */
    c->kind = CONSOLE_BLOCKING;
    if (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)) {
        c->kind = CONSOLE_FILE;
    } else if (S_ISSOCK(st.st_mode)) {
        c->kind = CONSOLE_SOCKET;
    } else if (flags & O_NONBLOCK) {
        c->kind = CONSOLE_STREAM;
    } else if (S_ISFIFO(st.st_mode) || c->tty) {
        c->own_fd = open_anew(c->fd);
        if (c->own_fd >= 0)
            c->kind = CONSOLE_STREAM;
    }
}

static int console_fd(const struct console *c)
{
    return c->own_fd >= 0 ? c->own_fd : c->fd;
}

/* Writes once, at most n bytes. 0: the console takes nothing now. -errno: the write failed. */
static ssize_t write_some(struct console *c, const uint8_t *p, size_t n)
{
    size_t max = c->kind == CONSOLE_BLOCKING && c->tty ? BLOCKING_TTY_MAX : PIPE_BUF;
    if (c->kind != CONSOLE_FILE && n > max) {
        const uint8_t *nl = memrchr(p, '\n', max);
        n = nl ? (size_t)(nl - p) + 1 : max;
    }
    if (c->kind == CONSOLE_BLOCKING) {
        struct pollfd ready = {.fd = c->fd, .events = POLLOUT};
        if (poll(&ready, 1, 0) == 0)
            return 0;
    }
    for (;;) {
        ssize_t done = c->kind == CONSOLE_SOCKET ? send(c->fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL)
                                                 : write(console_fd(c), p, n);
        if (done >= 0)
            return done;
        if (errno != EINTR)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
    }
}

static void disarm(struct console *c)
{
    if (c->armed)
        epoll_ctl(c->epfd, EPOLL_CTL_DEL, console_fd(c), NULL);
    c->armed = false;
}

static void block(struct console *c, int error, uint64_t now_ns)
{
    struct epoll_event ev = {.events = EPOLLOUT, .data.ptr = c->tag};
    c->blocked = true;
    c->error = error;
    c->retry_ns = 0;
    if (error)
        c->retry_ns = now_ns + STDIO_RETRY_S * UINT64_C(1000000000);
    else if (!c->armed && epoll_ctl(c->epfd, EPOLL_CTL_ADD, console_fd(c), &ev) == 0)
        c->armed = true;
    else if (!c->armed) /* epoll cannot watch the descriptor, although it blocks */
        c->retry_ns = now_ns + 50 * UINT64_C(1000000);
}

static void die(struct console *c, int error)
{
    disarm(c);
    drop_backlog(c);
    close_fd(&c->own_fd);
    c->kind = CONSOLE_DEAD;
    c->error = error;
    c->blocked = false;
    c->retry_ns = 0;
}

/* Writes until all of it is gone or the console takes no more. Returns how much was written. */
static size_t write_now(struct console *c, const uint8_t *p, size_t n, uint64_t now_ns)
{
    size_t done = 0;
    if (c->kind == CONSOLE_NEW)
        find_kind(c);
    while (done < n && !c->blocked && c->kind != CONSOLE_DEAD) {
        ssize_t k = write_some(c, p + done, n - done);
        if (k > 0) {
            c->error = 0;
            done += (size_t)k;
            c->sent_byte = p[done - 1];
        } else if (k == 0) {
            block(c, 0, now_ns);
        } else if (k == -ENOSPC || k == -EDQUOT || (k == -EIO && !c->tty)) {
            block(c, (int)-k, now_ns);
        } else {
            die(c, (int)-k);
        }
    }
    return done;
}

static void console_accept(struct console *c, struct stdio_label *who, const uint8_t *p, size_t n,
                           uint64_t now_ns)
{
    bool cont = c->tail_byte != '\n';
    c->tail_byte = p[n - 1];
    if (!console_has_backlog(c) && !c->blocked) {
        size_t done = write_now(c, p, n, now_ns);
        p += done;
        n -= done;
        cont = c->sent_byte != '\n';
    }
    if (n == 0 || c->kind == CONSOLE_DEAD)
        return;
    console_make_room(c, n + sizeof(struct console_record));
    enqueue(c, who, p, n, cont);
}

/* Resets the colour. The sequence leaves unchanged whether the console's last line is
 * unfinished. */
static void reset_colour(struct console *c, uint64_t now_ns)
{
    uint8_t tail = c->tail_byte, sent = c->sent_byte;
    console_accept(c, &FILLER, (const uint8_t *)RESET, sizeof(RESET) - 1, now_ns);
    c->tail_byte = tail;
    if (!console_has_backlog(c))
        c->sent_byte = sent;
    c->coloured = false;
}

static void note_colour(struct console *c, const uint8_t *p, size_t n)
{
    const uint8_t *esc = memrchr(p, '\x1b', n);
    size_t len = esc ? escape_colour(esc, (size_t)(p + n - esc)) : 0;
    if (len)
        c->coloured = len > 4 || (len == 4 && esc[2] != '0');
}

void console_end(struct console *c, uint64_t now_ns)
{
    if (c->coloured && console_takes(c))
        reset_colour(c, now_ns);
}

void console_put(struct console *c, const void *writer, struct stdio_label *who, const void *data,
                 size_t n, uint64_t now_ns)
{
    if (n == 0 || !console_takes(c))
        return;
    if (c->kind == CONSOLE_JOB) {
        c->job->put(c->job->arg, who, data, n);
        c->tail_byte = ((const uint8_t *)data)[n - 1];
        c->writer = writer;
        return;
    }
    if (c->coloured && c->writer != writer)
        reset_colour(c, now_ns);
    if (c->tail_byte != '\n' && c->writer != writer && console_takes(c))
        console_accept(c, &FILLER, (const uint8_t *)"\n", 1, now_ns);
    if (c->kind != CONSOLE_DEAD)
        console_accept(c, who, data, n, now_ns);
    if (c->tty)
        note_colour(c, data, n);
    c->writer = writer;
}

void console_forget(struct console *c, const void *writer)
{
    if (c->writer == writer)
        c->writer = &ENDED_WORKER;
}

/* The piece of the backlog that is written next. One that runs round the ring's end is put together
 * in `piece`, to be written as one. */
static const uint8_t *next_piece(const struct console *c, uint8_t piece[PIPE_BUF], size_t *n)
{
    size_t run = c->ring_cap - c->ring_head;
    *n = run < c->ring_len ? run : c->ring_len;
    if (*n == c->ring_len || *n >= PIPE_BUF)
        return c->ring + c->ring_head;
    *n = c->ring_len < PIPE_BUF ? c->ring_len : PIPE_BUF;
    ring_copy(c, 0, piece, *n);
    return piece;
}

void console_flush(struct console *c, uint64_t now_ns)
{
    uint8_t piece[PIPE_BUF];
    bool progress = false;
    c->blocked = false;
    while (console_has_backlog(c) && !c->blocked && c->kind != CONSOLE_DEAD) {
        size_t n;
        if (!c->first.len && (c->gap[0].bytes || c->saved.len || c->own_lost)) {
            declare_gap(c);
        } else if (c->first.len) {
            n = write_now(c, c->first.data, c->first.len, now_ns);
            if (c->kind != CONSOLE_DEAD)
                buf_consume(&c->first, n);
            progress |= n > 0;
        } else {
            const uint8_t *p = next_piece(c, piece, &n);
            n = write_now(c, p, n, now_ns);
            if (n && c->kind != CONSOLE_DEAD)
                dequeue(c, n, c->sent_byte != '\n');
            progress |= n > 0;
        }
    }
    if (!c->blocked) {
        disarm(c);
        if (c->kind != CONSOLE_DEAD)
            drop_backlog(c); /* frees the memory */
    } else if (!progress && c->armed) {
        /* Prevents a busy loop: the descriptor polls as writable, but a write takes nothing. */
        disarm(c);
        c->retry_ns = now_ns + 20 * UINT64_C(1000000);
    }
}

uint64_t console_lose(struct console *c)
{
    uint64_t n = console_kept(c);
    die(c, c->error);
    return n;
}

void console_fini(struct console *c)
{
    disarm(c);
    drop_backlog(c);
    close_fd(&c->own_fd);
}
