/* error_file.h: the JSON that a worker wrote to TORCHELASTIC_ERROR_FILE (torchelastic's @record, or
 * a program of its own): {"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT,
 * "timestamp": "SECONDS"}}}, or the simple form {"message": TEXT, "timestamp": SECONDS}. Truncated,
 * malformed, oversized or hostile files are survived: only a regular file is read, never through a
 * symbolic link in its place, and never waited for. */
#ifndef AGENT_REPORT_ERROR_FILE_H
#define AGENT_REPORT_ERROR_FILE_H

#include <stddef.h>
#include <stdint.h>

#define ERROR_FILE_MAX (1u << 20) /* bytes read at most */

struct error_file {
    /* One or several lines, as the worker wrote them (nothing is escaped); "" when there is none.
     * The Python traceback when there is one, else the message; of what is too long, the end. */
    char message[2048];
    int64_t timestamp; /* seconds since the epoch; 0 unknown */
};

/* 0; -ENOENT when there is no file or it is empty; -EINVAL when it is not such a JSON: then message
 * holds the start of the file as text, so that nothing is lost, or says what stands in its place.
 * Other errors of the file system as they are. */
int error_file_read(const char *path, struct error_file *out);

/* Parses the content of an error file; returns as error_file_read() does. */
int error_file_parse(const char *data, size_t len, struct error_file *out);

/* Puts the file at `to` (the agent's own TORCHELASTIC_ERROR_FILE, for an agent that is a worker of
 * another one), with errorCode set to exit_code when that is not 0, as torchelastic does. What is
 * not such a JSON is wrapped in one, so that whoever started this agent can read it. 0, -ENOENT
 * when there is nothing to copy, or the error of the file system. */
int error_file_copy(const char *from, const char *to, int exit_code);

#endif
