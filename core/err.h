/* err.h: the one error type.
 *
 * A function that can fail returns an int, 0 or negative, and takes a `struct err *` as its last
 * argument. On failure the code is a negative errno value (-EINVAL, -ENOENT, ...) and the text is
 * one line a user can act on, without a trailing newline. On success *e is left alone. Callers add
 * context in front with err_wrap() on the way up; whoever handles the error prints it, once.
 *
 * `struct err` is a value: no allocation, nothing to free. A NULL err is allowed everywhere.
 */
#ifndef CORE_ERR_H
#define CORE_ERR_H

#define ERR_MSG_MAX 512

struct err {
    int code;
    char msg[ERR_MSG_MAX];
};

#define ERR_INIT             \
    {                        \
        .code = 0, .msg = "" \
    }

/* Sets code and text; returns code. A text that does not fit ends in "...". */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Does what err_set() does, and appends err_text() of errno value `errnum` (positive): "open x: No
 * such file or directory". Returns -errnum. */
int err_sys(struct err *e, int errnum, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The text of errno value `errnum`, with the limit of this process that was reached: "Too many open
 * files (ulimit -n: 64)". Returns `out`. */
#define ERR_TEXT_MAX 128
const char *err_text(int errnum, char out[ERR_TEXT_MAX]);

/* Puts "<context>: " in front of the text. Returns the code, unchanged. */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
