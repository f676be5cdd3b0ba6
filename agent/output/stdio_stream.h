/* stdio_stream.h: one stream of one worker, from chunks as they are read to lines.
 *
 *   chunk -> log file, as it is
 *         -> tail (stderr), as it is
 *         -> whole lines -> console, a prefix in front of each
 *                        -> filtered file, those that match
 *
 * Bytes pass untouched, NUL and broken UTF-8 too, unless the console is a terminal: there colours,
 * tabs and carriage returns pass and every other control is shown (core/escape.h). Without a prefix
 * and a filter lines are not looked at one by one: everything up to the chunk's last newline goes
 * on in one piece. An unfinished line (a prompt, a progress bar) is kept back, on its way to a
 * terminal for 50 ms of silence or 250 ms in all, to a pipe or a file for 300 ms, where lines of
 * several workers are to stay whole; or until a carriage return begins its next state. Then it is
 * shown as it is, but for what may be the beginning of a colour or a character. What follows it
 * continues it, unless another worker has printed meanwhile: then it begins a new line. Not so
 * after a chunk of whole pages: that is a program's full buffer, or a full pipe, cut anywhere, and
 * the rest of the line is still in the program; the line waits for it. A line of more than
 * STDIO_LINE_MAX goes on in pieces, which count as lines for the filters. A carriage return within
 * a prefixed line is followed by the prefix again, so that a progress bar does not write over it.
 *
 * For the pump's thread. */
#ifndef AGENT_OUTPUT_STDIO_STREAM_H
#define AGENT_OUTPUT_STDIO_STREAM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "agent/base/stdio_opts.h"
#include "agent/output/stdio_console.h"
#include "agent/output/stdio_fold.h"
#include "agent/output/stdio_label.h"
#include "agent/output/stdio_logfile.h"
#include "core/escape.h"

#define STREAM_CHUNK      65536 /* bytes read at a time: as many as a pipe holds */
#define STREAM_BEFORE     (STDIO_LINE_MAX + ESCAPE_COLOUR_MAX) /* bytes that a chunk may continue */
#define STREAM_PAGE       4096 /* buffers of programs are multiples of this */
#define STREAM_SILENCE_NS UINT64_C(50000000)
#define STREAM_HOLD_NS    UINT64_C(250000000)
#define STREAM_KEPT_NS    UINT64_C(300000000)

/* filtered_stdout.log and filtered_stderr.log, shared by the workers of an attempt. */
struct stream_filter {
    _Atomic unsigned refs;
    struct logfile file[2];
    char *path[2];
    char *const *match[2]; /* substrings; NULL: none for this stream */
};

/* Buffers that all streams use in turn. */
struct stream_buffers {
    uint8_t *room;     /* STREAM_BEFORE bytes for what comes before a chunk, then the chunk */
    uint8_t *visible;  /* STREAM_CHUNK bytes on their way to a terminal */
    uint8_t *prefixed; /* lines on their way to the console */
    size_t len, cap;   /* of prefixed */
};

struct stdio_stream {
    int fd; /* the pipe; -1: closed, or there is none */
    bool is_err;
    const void *writer; /* the worker, for the console: both of its streams continue one line */
    struct stdio_label *label;
    struct logfile file;
    struct console *console;   /* NULL: not shown */
    struct fold *fold;         /* NULL: lines go straight to the console */
    struct fold_source source; /* for it */
    bool midline; /* the bytes that went to the console past the fold end without a newline */
    struct stream_filter *filter; /* NULL: none */

    /* The unfinished line, of which `shown` bytes are on the console already. */
    uint8_t *line;
    size_t len, cap, shown;
    uint64_t since_ns, last_ns; /* the first and the last byte not shown */
    bool cut; /* the line ends at a page's end, or within a character: more is to come */

    bool waiting; /* in the list of streams with text that is not shown */
    struct stdio_stream *prev, *next;
    bool held; /* not read while the console is full: in that one's list */
    TAILQ_ENTRY(stdio_stream) held_link;
};

/* Takes a chunk of len bytes that stands at b->room + STREAM_BEFORE. Returns false when a log file
 * has just failed. */
bool stream_feed(struct stdio_stream *s, struct stream_buffers *b, size_t len, uint64_t now_ns);

/* Writes the unfinished line to the console as far as it is complete. */
void stream_show_partial(struct stdio_stream *s, struct stream_buffers *b, uint64_t now_ns);

/* The time at which stream_show_partial() is due; 0: the stream has no unfinished text. */
uint64_t stream_due_ns(const struct stdio_stream *s);

/* Ends the stream: writes the last line, finished or not. Returns how many bytes the log file
 * lacks. */
uint64_t stream_end(struct stdio_stream *s, struct stream_buffers *b, uint64_t now_ns);

#endif
