/* log.h: what dlaunch itself says, one line at a time, on standard error.
 *
 * Every line is written with a single write(2), begins with "dlaunch: " (or the prefix set), and
 * has its control characters shown as \xNN, so that a host name or a worker's text cannot move the
 * terminal. Thread-safe.
 */
#ifndef CORE_LOG_H
#define CORE_LOG_H

#include <stddef.h>

enum log_level {
    LOG_LEVEL_ERROR,   /* why this command fails */
    LOG_LEVEL_WARN,    /* something is not as the user may expect; --quiet hides it */
    LOG_LEVEL_NOTICE,  /* what was decided for the user, restarts, waiting; the default */
    LOG_LEVEL_VERBOSE, /* every step with its time; --verbose */
};

/* Lines above `level` are dropped. `prefix` is borrowed for the life of the process. */
void log_init(enum log_level level, const char *prefix);
enum log_level log_get_level(void);

/* The form of a line:
 *     LOG_PLAIN    dlaunch: text
 *     LOG_TIMED    2026-11-25T01:30:29.875+01:00 dlaunch: text
 *     LOG_JSON     {"timestamp":1764034229.875123,"name":"log","context":{"level":"notice",
 *                  "text":"..."}}, the form of events (rendezvous/rules/event.h) */
enum log_format { LOG_PLAIN, LOG_TIMED, LOG_JSON };
void log_set_format(enum log_format format);

/* Hands finished lines (newline included) to `write` instead of standard error, so that they take
 * their turn with the workers' output. NULL restores standard error. */
void log_set_writer(void (*write)(void *arg, const char *line, size_t len), void *arg);

/* Writes finished lines to `fd` instead of standard error, each with the digit of its level in
 * front and without the prefix: `fd` leads to a process that passes the lines on. A writer of
 * log_set_writer() gets the lines in the same form, and has to write them to `fd`. -1 restores
 * standard error. */
void log_set_fd(int fd);
int log_get_fd(void); /* -1: none is set */

/* How long a line waits for the reader of standard error before it is left out; -1: for ever. */
#define LOG_LAST_WORDS_MS 1000 /* for a process that must end soon */
void log_set_timeout(int ms);

void log_at(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_notice(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_verbose(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Copies `text` of `len` bytes to `out`, control characters shown as \xNN, always terminated. Keeps
 * newlines and tabs when `keep_ws`. Bytes of valid UTF-8 pass; C1 controls are shown. Returns the
 * length written; text that does not fit ends in "...". */
size_t log_escape(char *out, size_t cap, const char *text, size_t len, int keep_ws);

#endif
