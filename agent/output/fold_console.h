/* fold_console.h: how a group of folded lines looks on a console. */
#ifndef AGENT_OUTPUT_FOLD_CONSOLE_H
#define AGENT_OUTPUT_FOLD_CONSOLE_H

#include "agent/output/stdio_console.h"
#include "agent/output/stdio_fold.h"

#define FOLD_LINES 40 /* shown of a unit of several workers, its head and its tail */

struct fold_console {
    struct console *console[2]; /* for standard output and error */
    struct buf page;
};

/* struct fold_out's show; arg: the struct fold_console. */
void fold_console_show(void *arg, const struct fold_shown *g, uint64_t now_ns);

#endif
