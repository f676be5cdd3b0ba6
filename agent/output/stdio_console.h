/* stdio_console.h: one of the launcher's own output streams, with its backlog.
 *
 * The happy path: the console takes what it is given at once, nothing is copied. Otherwise:
 *   - it is full: what it has not taken is kept, epoll says when it takes more
 *   - the backlog is full too, and it is a pipe or a socket: console_full(), the pump reads no more
 *     for it until console_has_room(). What is put there all the same is kept
 *   - the same, and it is a terminal (stopped, or one that nobody looks at) or has failed: the
 *     oldest whole lines go, and in their place a line says how much of whose output is missing;
 *     dlaunch's own lines are kept
 *   - its reader is gone (EPIPE, a terminal that hung up): what is kept and all that follows is
 *     thrown away; `error` says why
 *   - its disk is full (a regular file): it is tried again every STDIO_RETRY_S seconds
 *
 * The descriptor is shared with whoever started dlaunch, so its flags stay as they are: a pipe or a
 * terminal is opened anew through /proc, which gives a descriptor with flags of its own; where that
 * fails it is asked before each small write. No write is longer than PIPE_BUF (except to a regular
 * file), and it ends with a line where it can, so that two launchers that write to one pipe do not
 * mix their lines either.
 *
 * All functions are for the pump's thread. */
#ifndef AGENT_OUTPUT_STDIO_CONSOLE_H
#define AGENT_OUTPUT_STDIO_CONSOLE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/output/stdio_label.h"
#include "core/bytes.h"

#define CONSOLE_GAPS 8 /* workers named in one gap; further workers are summed up */

enum console_kind {
    CONSOLE_NEW,    /* not yet written to */
    CONSOLE_NULL,   /* /dev/null */
    CONSOLE_FILE,   /* a regular file: takes everything, or fails */
    CONSOLE_STREAM, /* does not block: opened anew, or found so */
    CONSOLE_SOCKET,
    CONSOLE_BLOCKING, /* asked before each write */
    CONSOLE_JOB,      /* the job's console: another node shows its content */
    CONSOLE_DEAD,
};

struct console_job {
    void (*put)(void *arg, const struct stdio_label *who, const void *data, size_t n);
    size_t (*kept)(void *arg); /* bytes that are not shown yet */
    void *arg;
};

struct console_record; /* a stretch of the backlog that one stream wrote */

struct console {
    int fd;     /* as given; borrowed */
    int own_fd; /* the descriptor for writes, if another one; -1 */
    enum console_kind kind;
    bool tty;         /* a terminal: control sequences are escaped */
    bool coloured;    /* the last accepted bytes leave a colour on */
    const char *name; /* "standard output" */
    int error;        /* why the console is dead, or takes nothing now (ENOSPC); 0 */
    uint64_t retry_ns;

    const struct console_job *job; /* of a CONSOLE_JOB, which of the rest has writer, tail_byte */

    int epfd;
    void *tag;    /* for epoll */
    bool blocked; /* nothing is written until epoll or the clock says so */
    bool armed;   /* in the epoll set */

    const void *writer; /* whose line is unfinished, when tail_byte is no newline */
    uint8_t tail_byte;  /* the last byte accepted */
    uint8_t sent_byte;  /* the last byte written */

    /* The backlog, in the order in which it is written: `first` (the rest of a line that had been
     * begun, then what is said about the gap), and the ring. */
    struct buf first, saved; /* saved: dlaunch's own lines out of the gap */
    uint8_t *ring;
    size_t ring_cap, ring_head, ring_len;
    struct console_record *records;
    size_t record_cap, record_head, nrecords;
    struct {
        struct stdio_label *who; /* the last: NULL, all others */
        uint64_t bytes;
    } gap[CONSOLE_GAPS + 1];
    int gap_error;     /* why, if the reason was not slowness */
    uint64_t own_lost; /* bytes of dlaunch's own lines that had no room in `saved` */
};

/* fd is borrowed. `tag` is what epoll events for this console carry. */
void console_init(struct console *c, int fd, const char *name, int epfd, void *tag);
void console_fini(struct console *c);

/* Whether both descriptors lead to the same terminal, pipe, socket or file. */
bool console_same(int fd_a, int fd_b);

/* False: output to the console is discarded. */
static inline bool console_takes(const struct console *c)
{
    return c->kind != CONSOLE_NULL && c->kind != CONSOLE_DEAD;
}

/* Ends a colour that is still on. */
void console_end(struct console *c, uint64_t now_ns);

/* Takes `n` bytes, whole lines or the last of them unfinished. `writer` stands for the worker that
 * they come from, or dlaunch: the unfinished line of another one is ended first, and its colour.
 * `who` is NULL for dlaunch's own lines. */
void console_put(struct console *c, const void *writer, struct stdio_label *who, const void *data,
                 size_t n, uint64_t now_ns);

/* Whether what `writer` puts next continues its unfinished line; else it begins a new one. */
static inline bool console_continues(const struct console *c, const void *writer)
{
    return c->tail_byte != '\n' && c->writer == writer;
}

/* The backlog is full and none of it may be dropped. */
bool console_full(const struct console *c);
/* The backlog is empty enough for its writers to continue. */
bool console_has_room(const struct console *c);

/* The pipe or socket has no reader any more. */
static inline bool console_unread(const struct console *c)
{
    return c->kind == CONSOLE_DEAD && (c->error == EPIPE || c->error == ECONNRESET);
}

/* The worker has ended: no writer continues its unfinished line. */
void console_forget(struct console *c, const void *writer);

/* Writes as much as the console takes; to be called when epoll or retry_ns says so. */
void console_flush(struct console *c, uint64_t now_ns);
bool console_has_backlog(const struct console *c);
uint64_t console_kept(const struct console *c); /* bytes that the console has not taken yet */

/* Discards the backlog and all later output. Returns the size of the backlog. */
uint64_t console_lose(struct console *c);

#endif
