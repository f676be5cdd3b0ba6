#include "core/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/escape.h"
#include "core/fd.h"

#define LINE_MAX_BYTES 4096

static enum log_level g_level = LOG_LEVEL_NOTICE;
static const char *g_prefix = "dlaunch: ";
static enum log_format g_format = LOG_PLAIN;
static int g_timeout_ms = -1;
static int g_fd = -1; /* log_set_fd() */
static void (*g_write)(void *arg, const char *line, size_t len);
static void *g_write_arg;

void log_init(enum log_level level, const char *prefix)
{
    g_level = level;
    if (prefix)
        g_prefix = prefix;
}

void log_set_format(enum log_format format)
{
    g_format = format;
}

enum log_level log_get_level(void)
{
    return g_level;
}

void log_set_writer(void (*write)(void *arg, const char *line, size_t len), void *arg)
{
    g_write_arg = arg;
    g_write = write;
}

void log_set_fd(int fd)
{
    g_fd = fd;
}

int log_get_fd(void)
{
    return g_fd;
}

void log_set_timeout(int ms)
{
    g_timeout_ms = ms;
}

size_t log_escape(char *out, size_t cap, const char *text, size_t len, int keep_ws)
{
    size_t n = 0, unit;
    for (size_t i = 0; i < len; i += unit) {
        bool passes;
        unit = escape_unit(text + i, len - i, keep_ws ? ESCAPE_KEEP_WS : 0, &passes);
        size_t need = passes ? unit : ESCAPE_SHOWN_LEN;
        if (n + need + 4 > cap) { /* keep room for the mark */
            if (cap < 4)
                break;
            memcpy(out + n, "...", 4);
            return n + 3;
        }
        if (passes)
            memcpy(out + n, text + i, unit);
        else
            escape_show(out + n, (uint8_t)text[i]);
        n += need;
    }
    if (cap)
        out[n] = '\0';
    return n;
}

/* "2026-11-25T01:30:29.875+01:00 "; returns its length. */
static size_t put_time(char *out, size_t cap)
{
    struct timespec t;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &t);
    if (!localtime_r(&t.tv_sec, &tm))
        return 0;
    size_t n = strftime(out, cap, "%FT%T", &tm);
    long minutes = tm.tm_gmtoff / 60, distance = minutes < 0 ? -minutes : minutes;
    n += (size_t)snprintf(out + n, cap - n, ".%03ld%c%02ld:%02ld ", t.tv_nsec / 1000000,
                          minutes < 0 ? '-' : '+', distance / 60, distance % 60);
    return n;
}

/* The text, in which control characters are shown already, as the inside of a JSON string. */
static size_t put_json_text(char *out, const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '"' || text[i] == '\\')
            out[n++] = '\\';
        out[n++] = text[i];
    }
    return n;
}

static size_t put_json(char *out, size_t cap, enum log_level level, const char *text, size_t len)
{
    static const char *const levels[] = {[LOG_LEVEL_ERROR] = "error",
                                         [LOG_LEVEL_WARN] = "warning",
                                         [LOG_LEVEL_NOTICE] = "notice",
                                         [LOG_LEVEL_VERBOSE] = "verbose"};
    uint64_t now = wall_ns();
    size_t n = (size_t)snprintf(out, cap,
                                "{\"timestamp\":%llu.%06llu,\"name\":\"log\",\"context\":"
                                "{\"level\":\"%s\",\"text\":\"",
                                (unsigned long long)(now / 1000000000u),
                                (unsigned long long)(now / 1000u % 1000000u), levels[level]);
    n += put_json_text(out + n, text, len);
    memcpy(out + n, "\"}}", 3);
    return n + 3;
}

static void emit(enum log_level level, const char *fmt, va_list ap)
{
    if (level > g_level)
        return;
    char text[LINE_MAX_BYTES / 2], shown[LINE_MAX_BYTES], line[2 * LINE_MAX_BYTES + 256];
    int len = vsnprintf(text, sizeof(text), fmt, ap);
    if (len < 0)
        return;
    if ((size_t)len >= sizeof(text)) {
        len = sizeof(text) - 1;
        memcpy(text + len - 3, "...", 4);
    }
    if (g_fd >= 0) { /* the process that reads the line adds the rest */
        line[0] = (char)('0' + level);
        size_t shown_len = log_escape(line + 1, sizeof(line) - 2, text, (size_t)len, 0);
        line[shown_len + 1] = '\n';
        if (g_write)
            g_write(g_write_arg, line, shown_len + 2);
        else
            fd_write_all(g_fd, line, shown_len + 2);
        return;
    }
    size_t nshown = log_escape(shown, sizeof(shown), text, (size_t)len, 0), n = 0;
    if (g_format == LOG_JSON) {
        n = put_json(line, sizeof(line), level, shown, nshown);
    } else {
        if (g_format == LOG_TIMED)
            n = put_time(line, sizeof(line));
        n += (size_t)snprintf(line + n, sizeof(line) - n, "%s%s", g_prefix, shown);
    }
    line[n++] = '\n';
    if (g_write) {
        g_write(g_write_arg, line, n);
        return;
    }
    /* Standard error may be gone; there is nobody left to tell. */
    if (g_timeout_ms >= 0)
        fd_write_timed(STDERR_FILENO, line, n, g_timeout_ms, NULL);
    else if (write(STDERR_FILENO, line, n) < 0)
        return;
}

void log_at(enum log_level level, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    emit(level, fmt, ap);
    va_end(ap);
}

#define LOG_FUNCTION(name, level)   \
    void name(const char *fmt, ...) \
    {                               \
        va_list ap;                 \
        va_start(ap, fmt);          \
        emit(level, fmt, ap);       \
        va_end(ap);                 \
    }

LOG_FUNCTION(log_error, LOG_LEVEL_ERROR)
LOG_FUNCTION(log_warn, LOG_LEVEL_WARN)
LOG_FUNCTION(log_notice, LOG_LEVEL_NOTICE)
LOG_FUNCTION(log_verbose, LOG_LEVEL_VERBOSE)
