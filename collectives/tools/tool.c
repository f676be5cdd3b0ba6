#include "collectives/tools/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void tool_wrong(const char *what, const char *given, const char *want)
{
    fprintf(stderr, "%s: %s '%s': must be %s\n", tool_name, what, given, want);
    exit(2);
}

size_t tool_size(const char *what, const char *s)
{
    static const char want[] = "a number of bytes such as 8, 4K, 64M or 1G";
    char *end;
    errno = 0;
    unsigned long long n = strtoull(s, &end, 10);
    int shift = 0;
    if (*end == 'K' || *end == 'k')
        shift = 10;
    else if (*end == 'M' || *end == 'm')
        shift = 20;
    else if (*end == 'G' || *end == 'g')
        shift = 30;
    end += shift != 0;
    if (*s < '0' || *s > '9' || *end || errno || n > (1ull << 42) >> shift)
        tool_wrong(what, s, want);
    return (size_t)(n << shift);
}

int tool_int(const char *what, const char *s, int low, int high)
{
    char *end, want[64];
    errno = 0;
    long n = strtol(s, &end, 10);
    snprintf(want, sizeof(want), "a number from %d to %d", low, high);
    if (!*s || *end || errno || n < low || n > high)
        tool_wrong(what, s, want);
    return (int)n;
}

void tool_flush(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return;
    fprintf(stderr, "%s: standard output: %s\n", tool_name, strerror(errno));
    exit(1);
}

_Noreturn void tool_help(const char *usage)
{
    fputs(usage, stdout);
    tool_flush();
    exit(0);
}
