/* stdio_logfile.h: a log file that survives a full disk.
 *
 * When a write fails, that much of the output is counted instead of kept, the job goes on, and the
 * file is tried again every STDIO_RETRY_S seconds; as soon as it takes something, a line in it says
 * how much is missing there. Writing may block: only the pump's thread does it. */
#ifndef AGENT_OUTPUT_STDIO_LOGFILE_H
#define AGENT_OUTPUT_STDIO_LOGFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

#define STDIO_RETRY_S 10

struct logfile {
    int fd;           /* -1: not open */
    int error;        /* errno of the last write; 0: it succeeded */
    bool mid_line;    /* the last byte written is not a newline */
    uint64_t missing; /* bytes lost since the last successful write */
    uint64_t retry_ns;
};

/* Creates the file, or empties it. A regular file, and no symbolic link, or it is an error. */
int logfile_open(struct logfile *f, const char *path, struct err *e);

/* Never fails. False: this write is the first that failed; the caller reports it once. */
bool logfile_write(struct logfile *f, const void *data, size_t len, uint64_t now_ns);

/* Tries once more to write a line about missing output. Returns how many missing bytes no line
 * mentions. */
uint64_t logfile_close(struct logfile *f);

#endif
