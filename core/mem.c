#include "core/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/bytes.h"

static void out_of_memory(void) __attribute__((noreturn));
static void out_of_memory(void)
{
    static const char msg[] = "dlaunch: out of memory\n";
    if (write(STDERR_FILENO, msg, sizeof(msg) - 1) < 0)
        _exit(125);
    _exit(125);
}

static void *checked(void *p)
{
    if (!p)
        out_of_memory();
    return p;
}

void *xmalloc(size_t size)
{
    return checked(malloc(size ? size : 1));
}

void *xcalloc(size_t n, size_t size)
{
    return checked(calloc(n ? n : 1, size ? size : 1));
}

void *xrealloc(void *p, size_t size)
{
    return checked(realloc(p, size ? size : 1));
}

char *xstrdup(const char *s)
{
    return checked(strdup(s));
}

char *xstrndup(const char *s, size_t n)
{
    return checked(strndup(s, n));
}

char *xasprintf(const char *fmt, ...)
{
    char *s;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    if (n < 0)
        out_of_memory();
    return s;
}

void xbuf_reserve(struct buf *b, size_t extra)
{
    if (!buf_reserve(b, extra))
        out_of_memory();
}
