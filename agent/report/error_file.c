#include "agent/report/error_file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/base/fs.h"
#include "agent/base/text.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/timed_call.h"

/* Keeps the start of data as text, without NULs. */
static void keep_start(struct error_file *out, const char *data, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len && n < sizeof(out->message) - 1; i++) {
        if (data[i])
            out->message[n++] = data[i];
    }
    if (n == sizeof(out->message) - 1)
        memcpy(out->message + n - 3, "...", 3);
    out->message[n] = '\0';
}

static int64_t timestamp_of(const json_t *v)
{
    if (json_is_integer(v))
        return json_integer_value(v);
    if (json_is_real(v) && json_real_value(v) > 0 && json_real_value(v) < 1e15)
        return (int64_t)json_real_value(v);
    if (json_is_string(v)) {
        errno = 0;
        long long t = strtoll(json_string_value(v), NULL, 10);
        return errno ? 0 : t;
    }
    return 0;
}

/* Keeps the message, and the traceback after it unless the traceback ends with the message. */
static void put_message(struct error_file *out, const char *message, const char *callstack)
{
    if (!callstack || !*callstack) {
        text_keep_end(out->message, sizeof(out->message), message ? message : "",
                      message ? strlen(message) : 0);
    } else if (!message || strstr(callstack, message)) {
        text_keep_end(out->message, sizeof(out->message), callstack, strlen(callstack));
    } else {
        size_t n = text_keep_end(out->message, sizeof(out->message) / 2, message, strlen(message));
        out->message[n++] = '\n';
        text_keep_end(out->message + n, sizeof(out->message) - n, callstack, strlen(callstack));
    }
}

/* Reads the parts of a file of either form; false if it has neither form. */
static bool take_apart(json_t *root, struct error_file *out)
{
    json_t *message = json_object_get(root, "message");
    if (json_is_string(message)) {
        put_message(out, json_string_value(message), NULL);
        out->timestamp = timestamp_of(json_object_get(root, "timestamp"));
    } else if (json_is_object(message)) {
        const char *text = json_string_value(json_object_get(message, "message"));
        json_t *extra = json_object_get(message, "extraInfo");
        const char *callstack = json_string_value(json_object_get(extra, "py_callstack"));
        if (!text && !callstack)
            return false;
        put_message(out, text, callstack);
        out->timestamp = timestamp_of(json_object_get(extra, "timestamp"));
    } else {
        return false;
    }
    if (out->timestamp < 0)
        out->timestamp = 0;
    return true;
}

int error_file_parse(const char *data, size_t len, struct error_file *out)
{
    *out = (struct error_file){0};
    if (len == 0)
        return -ENOENT;
    json_t *root = json_loadb(data, len, 0, NULL);
    bool ok = take_apart(root, out);
    json_decref(root);
    if (!ok)
        keep_start(out, data, len);
    return ok ? 0 : -EINVAL;
}

static const char *error_file_kind(mode_t mode)
{
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

/* *data is malloc'ed. -EINVAL: the path is not a regular file; *what names what it is. */
static int error_file_load(const char *path, char **data, size_t *len, const char **what)
{
    struct stat st;
    *what = "a symbolic link";
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 && errno == ENXIO) /* a socket */
        *what = error_file_kind(S_IFSOCK);
    if (fd < 0)
        return errno == ELOOP || errno == ENXIO ? -EINVAL : errno == ENOTDIR ? -ENOENT : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode)) {
        *what = error_file_kind(st.st_mode);
        return -EINVAL;
    }
    char *p = xmalloc(ERROR_FILE_MAX);
    size_t got = 0;
    for (ssize_t n; got<ERROR_FILE_MAX; got += n> 0 ? (size_t)n : 0) {
        n = read(fd, p + got, ERROR_FILE_MAX - got);
        if (n == 0)
            break;
        if (n < 0 && errno != EINTR) {
            int rc = -errno;
            free(p);
            return rc;
        }
    }
    *data = p;
    *len = got;
    return 0;
}

int error_file_read(const char *path, struct error_file *out)
{
    char *data;
    size_t len;
    const char *what;
    *out = (struct error_file){0};
    int rc = error_file_load(path, &data, &len, &what);
    if (rc == -EINVAL)
        snprintf(out->message, sizeof(out->message), "(the error file is %s and was not read)",
                 what);
    if (rc < 0)
        return rc;
    rc = error_file_parse(data, len, out);
    free(data);
    return rc;
}

/* Makes a JSON string of any bytes: what is not UTF-8 becomes '?'. */
static json_t *string_of(char *text)
{
    json_t *s;
    while (!(s = json_string(text))) {
        bool changed = false;
        for (char *p = text; *p; p++) {
            if ((unsigned char)*p >= 0x80) {
                *p = '?';
                changed = true;
            }
        }
        if (!changed)
            return NULL; /* no memory */
    }
    return s;
}

int error_file_copy(const char *from, const char *to, int exit_code)
{
    struct error_file parts;
    char *data, now[24];
    size_t len;
    const char *what;
    int rc = error_file_load(from, &data, &len, &what);
    if (rc < 0)
        return rc;
    json_t *root = NULL;
    rc = error_file_parse(data, len, &parts);
    if (rc == -ENOENT) {
        free(data);
        return rc;
    }
    if (rc == 0) {
        root = json_loadb(data, len, 0, NULL);
    } else {
        snprintf(now, sizeof(now), "%llu", (unsigned long long)(wall_ns() / 1000000000u));
        json_t *text = string_of(parts.message);
        root = json_pack("{s:{s:O, s:{s:o, s:s}}}", "message", "message", text, "extraInfo",
                         "py_callstack", text, "timestamp", now);
    }
    free(data);
    json_t *message = json_object_get(root, "message");
    if (json_is_object(message) && exit_code)
        json_object_set_new(message, "errorCode", json_integer(exit_code));
    char *dump = root ? json_dumps(root, 0) : NULL;
    json_decref(root);
    rc = dump ? fs_replace_file(to, dump, strlen(dump), NULL) : -ENOMEM;
    free(dump);
    return rc;
}

/* - with a limit */

struct errand {
    char *from, *to; /* to NULL: the file is only read */
    int exit_code, rc;
    struct error_file out;
};

static void run_errand(void *arg)
{
    struct errand *a = arg;
    a->rc =
        a->to ? error_file_copy(a->from, a->to, a->exit_code) : error_file_read(a->from, &a->out);
}

static void drop_errand(void *arg)
{
    struct errand *a = arg;
    free(a->from);
    free(a->to);
    free(a);
}

int error_file_read_timed(struct timed_calls *server, const char *path, struct error_file *out)
{
    struct errand *a = xcalloc(1, sizeof(*a));
    a->from = xstrdup(path);
    if (!timed_call(server, run_errand, a, drop_errand, ERROR_FILE_MS)) {
        *out =
            (struct error_file){.message = "(the file server of the error file does not answer)"};
        return -ETIMEDOUT;
    }
    int rc = a->rc;
    *out = a->out;
    drop_errand(a);
    return rc;
}

int error_file_copy_timed(struct timed_calls *server, const char *from, const char *to,
                          int exit_code)
{
    struct errand *a = xcalloc(1, sizeof(*a));
    *a = (struct errand){.from = xstrdup(from), .to = xstrdup(to), .exit_code = exit_code};
    if (!timed_call(server, run_errand, a, drop_errand, ERROR_FILE_MS))
        return -ETIMEDOUT;
    int rc = a->rc;
    drop_errand(a);
    return rc;
}
