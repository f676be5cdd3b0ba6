/* error_file.h: the JSON that a worker wrote to TORCHELASTIC_ERROR_FILE (torchelastic's @record, or
 * a program of its own): {"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT,
 * "timestamp": "SECONDS"}}}, or the simple form {"message": TEXT, "timestamp": SECONDS}. Truncated,
 * malformed, oversized or hostile files are survived. */
#ifndef AGENT_ERROR_FILE_H
#define AGENT_ERROR_FILE_H

#include <stddef.h>
#include <stdint.h>

#define ERROR_FILE_MAX (1u << 20) /* bytes read at most */

struct error_file {
    char message[2048]; /* one or several lines; "" when there is none */
    int64_t timestamp;  /* seconds since the epoch; 0 unknown */
};

/* 0; -ENOENT when there is no file or it is empty; -EINVAL when it is not such a JSON: then message
 * holds the start of the file as text, so that nothing is lost. */
int error_file_read(const char *path, struct error_file *out);

/* Copies the file to `to` (the agent's own TORCHELASTIC_ERROR_FILE), errorCode added when absent.
 */
int error_file_copy(const char *from, const char *to, int exit_code);

#endif
