/* log_dir.h: torchrun's layout of log files:
 *     <base>/<run_id>_<random>/attempt_<n>/<local_rank>/{stdout.log,stderr.log,error.json}
 * The run directory is made once per agent, mode 0700 when under TMPDIR; an attempt's directory
 * that exists already is emptied first. */
#ifndef AGENT_LOG_DIR_H
#define AGENT_LOG_DIR_H

#include <stddef.h>

#include "core/err.h"

struct log_dir {
    char run[512];     /* the run directory; "": no files at all (--log_dir /dev/null) */
    char attempt[544]; /* the current attempt's directory */
};

/* base NULL: a fresh torchelastic_XXXXXX under TMPDIR. "/dev/null": no files. -ENOTDIR when base is
 * a file. run_id is made harmless for a path. */
int log_dir_open(struct log_dir *d, const char *base, const char *run_id, struct err *e);

/* Makes attempt_<n> and a directory for each of nproc local ranks. */
int log_dir_attempt(struct log_dir *d, int n, int nproc, struct err *e);

/* "<attempt>/<local_rank>/<name>", or "" when there are no files. Returns out. */
const char *log_dir_file(const struct log_dir *d, int local_rank, const char *name, char *out,
                         size_t cap);

/* Removes the run directory when nothing but empty directories is in it. */
void log_dir_close(struct log_dir *d);

#endif
