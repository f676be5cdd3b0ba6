#include "rendezvous/rules/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void text_put(char *out, size_t cap, size_t at, const char *fmt, va_list ap)
{
    int n = vsnprintf(out + at, cap - at, fmt, ap);
    if (n < 0)
        out[at] = '\0';
    else if ((size_t)n >= cap - at && cap >= 4)
        memcpy(out + cap - 4, "...", 4);
}

void text_set(char *out, size_t cap, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    text_put(out, cap, 0, fmt, ap);
    va_end(ap);
}

void text_add(char *out, size_t cap, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    text_put(out, cap, strlen(out), fmt, ap);
    va_end(ap);
}
