/* error_file.h: the JSON that a worker wrote to TORCHELASTIC_ERROR_FILE (torchelastic's @record, or
 * a program of its own): {"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT,
 * "timestamp": "SECONDS"}}}, or the simple form {"message": TEXT, "timestamp": SECONDS}. Truncated,
 * malformed, oversized or hostile files are survived: only a regular file is read, never through a
 * symbolic link in its place, and never waited for. */
#ifndef AGENT_REPORT_ERROR_FILE_H
#define AGENT_REPORT_ERROR_FILE_H

#include <stddef.h>
#include <stdint.h>

struct timed_calls;

#define ERROR_FILE_MAX (1u << 20) /* bytes read at most */

struct error_file {
    /* One or several lines as the worker wrote them (nothing is escaped): the Python traceback if
     * there is one, else the message. A text that is too long is cut at the beginning. "": none. */
    char message[2048];
    int64_t timestamp; /* seconds since the epoch; 0 unknown */
};

/* Returns 0; -ENOENT if there is no file or it is empty; -EINVAL if it is not such a JSON:
 * `message` then holds the start of the file as text, or names what is there instead of a file;
 * else an error of the file system. */
int error_file_read(const char *path, struct error_file *out);

/* Do what error_file_read() and error_file_copy() do, for the loop: -ETIMEDOUT, with a text in
 * `message`, when the file's server has not answered within ERROR_FILE_MS; while it does not
 * answer, it is not asked again. */
#define ERROR_FILE_MS 1000
int error_file_read_timed(struct timed_calls *server, const char *path, struct error_file *out);
int error_file_copy_timed(struct timed_calls *server, const char *from, const char *to,
                          int exit_code);

/* Parses the content of an error file; returns as error_file_read() does. */
int error_file_parse(const char *data, size_t len, struct error_file *out);

/* Copies the file to `to` (the agent's own TORCHELASTIC_ERROR_FILE, if the agent is a worker of
 * another one). Sets errorCode to exit_code if that is not 0, as torchelastic does. Other content
 * is wrapped in such a JSON, so that the process that started this agent can read it. 0, -ENOENT if
 * there is nothing to copy, or an error of the file system. */
int error_file_copy(const char *from, const char *to, int exit_code);

#endif
