#include "core/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <errno.h>
#include <string.h>
#include <sys/resource.h>

static void mark_cut(char *buf, size_t cap)
{
    memcpy(buf + cap - 4, "...", 4);
}

static void err_format(char *buf, size_t cap, const char *fmt, va_list ap)
{
    int n = vsnprintf(buf, cap, fmt, ap);
    if (n < 0)
        buf[0] = '\0';
    else if ((size_t)n >= cap)
        mark_cut(buf, cap);
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        e->code = code;
        err_format(e->msg, sizeof(e->msg), fmt, ap);
        va_end(ap);
    }
    return code;
}

const char *err_text(int errnum, char out[ERR_TEXT_MAX])
{
    struct rlimit r = {RLIM_INFINITY, RLIM_INFINITY};
    if (errnum == EMFILE || errnum == EFBIG)
        getrlimit(errnum == EMFILE ? RLIMIT_NOFILE : RLIMIT_FSIZE, &r);
    if (r.rlim_cur == RLIM_INFINITY)
        snprintf(out, ERR_TEXT_MAX, "%s", strerror(errnum));
    else
        snprintf(out, ERR_TEXT_MAX, "%s (ulimit -%s: %llu%s)", strerror(errnum),
                 errnum == EMFILE ? "n" : "f", (unsigned long long)r.rlim_cur,
                 errnum == EMFILE ? "" : " bytes");
    return out;
}

int err_sys(struct err *e, int errnum, const char *fmt, ...)
{
    if (e) {
        char what[ERR_MSG_MAX], why[ERR_TEXT_MAX];
        va_list ap;
        va_start(ap, fmt);
        err_format(what, sizeof(what), fmt, ap);
        va_end(ap);
        err_set(e, -errnum, "%s: %s", what, err_text(errnum, why));
    }
    return -errnum;
}

int err_wrap(struct err *e, const char *fmt, ...)
{
    if (!e)
        return -1;
    char inner[ERR_MSG_MAX], context[ERR_MSG_MAX];
    va_list ap;
    va_start(ap, fmt);
    err_format(context, sizeof(context), fmt, ap);
    va_end(ap);
    memcpy(inner, e->msg, sizeof(inner));
    return err_set(e, e->code, "%s: %s", context, inner);
}
