/* tool.h: what the command-line tools of libdlcoll have in common. */
#ifndef COLLECTIVES_TOOLS_TOOL_H
#define COLLECTIVES_TOOLS_TOOL_H

#include <stddef.h>

extern const char tool_name[]; /* each tool's own */

/* "dlcoll_perf: --op 'mean': must be one that --help lists", and the end, with status 2. Every rank
 * says so: one of them may be stopped because another one has ended. */
_Noreturn void tool_wrong(const char *what, const char *given, const char *want);

/* Arguments of options, or tool_wrong(). */
size_t tool_size(const char *what, const char *s); /* 8, 4K, 64M, 1G */
int tool_int(const char *what, const char *s, int low, int high);

/* Flushes standard output; if that fails, prints the reason and exits with status 1. */
void tool_flush(void);
_Noreturn void tool_help(const char *usage);

#endif
