#include "core/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/escape.h"
#include "core/fd.h"

#define LINE_MAX_BYTES 4096

static enum log_level g_level = LOG_LEVEL_NOTICE;
static const char *g_prefix = "dlaunch: ";
static int g_patience_ms = -1;
static void (*g_write)(void *arg, const char *line, size_t len);
static void *g_write_arg;

void log_init(enum log_level level, const char *prefix)
{
    g_level = level;
    if (prefix)
        g_prefix = prefix;
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

void log_set_patience(int ms)
{
    g_patience_ms = ms;
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

static void emit(enum log_level level, const char *fmt, va_list ap)
{
    if (level > g_level)
        return;
    char text[LINE_MAX_BYTES / 2], line[LINE_MAX_BYTES];
    int len = vsnprintf(text, sizeof(text), fmt, ap);
    if (len < 0)
        return;
    if ((size_t)len >= sizeof(text)) {
        len = sizeof(text) - 1;
        memcpy(text + len - 3, "...", 4);
    }
    size_t n = strlen(g_prefix);
    memcpy(line, g_prefix, n);
    n += log_escape(line + n, sizeof(line) - n - 2, text, (size_t)len, 0);
    line[n++] = '\n';
    if (g_write) {
        g_write(g_write_arg, line, n);
        return;
    }
    /* Standard error may be gone; there is nobody left to tell. */
    if (g_patience_ms >= 0)
        fd_write_patiently(STDERR_FILENO, line, n, g_patience_ms, NULL);
    else if (write(STDERR_FILENO, line, n) < 0)
        return;
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
