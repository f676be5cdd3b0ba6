#include "collectives/base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local dlcoll_error g_error = DLCOLL_ERROR_INIT;

static void error_fill(dlcoll_error *out, int code, const char *fmt, va_list ap)
{
    *out = (dlcoll_error)DLCOLL_ERROR_INIT;
    out->code = code;
    if (vsnprintf(out->text, sizeof(out->text), fmt, ap) >= (int)sizeof(out->text))
        memcpy(out->text + sizeof(out->text) - 4, "...", 4);
}

int error_set(dlcoll_error *out, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    error_fill(out, code, fmt, ap);
    va_end(ap);
    return code;
}

int error_vset(dlcoll_error *out, int code, const char *fmt, va_list ap)
{
    error_fill(out, code, fmt, ap);
    return code;
}

int error_set_global(int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    error_fill(&g_error, code, fmt, ap);
    va_end(ap);
    return code;
}

int error_copy_global(const dlcoll_error *e)
{
    g_error = *e;
    return e->code;
}

const dlcoll_error *error_global(void)
{
    return &g_error;
}

int error_code(int errnum)
{
    switch (errnum) {
    case -EINVAL:
    case -EEXIST:
    case -EMSGSIZE: /* a key or value that is too long */
        return DLCOLL_EINVAL;
    case -EBUSY:
        return DLCOLL_ESTATE;
    case -ENOTSUP:
        return DLCOLL_ENOSUP;
    case -ENOMEM:
        return DLCOLL_ENOMEM;
    case -ETIMEDOUT:
        return DLCOLL_ETIMEDOUT;
    case -EPROTONOSUPPORT: /* a rank has another version of the library */
    case -EBADMSG:         /* of another operation, or of a rank with other settings */
        return DLCOLL_EMISMATCH;
    default:
        return DLCOLL_ENET;
    }
}

const char *dlcoll_strerror(int code)
{
    static const char *const texts[] = {
        [-DLCOLL_OK] = "success",
        [-DLCOLL_EINVAL] = "invalid argument",
        [-DLCOLL_ESTATE] = "not possible in this state",
        [-DLCOLL_ENOMEM] = "out of memory",
        [-DLCOLL_ENOSUP] = "not supported",
        [-DLCOLL_ETIMEDOUT] = "timed out",
        [-DLCOLL_EPEER] = "a rank has died or left",
        [-DLCOLL_EABORTED] = "the job was told to stop",
        [-DLCOLL_EMISMATCH] = "ranks called different operations or have different settings",
        [-DLCOLL_ENET] = "a rank cannot be reached",
        [-DLCOLL_EBACKEND] = "a device library failed",
        [-DLCOLL_EINTERNAL] = "internal error",
        [-DLCOLL_ECANCELED] = "the receive was cancelled",
    };
    _Static_assert(sizeof(texts) / sizeof(texts[0]) == 1 - DLCOLL_ECANCELED,
                   "every code has its text");
    if (code == DLCOLL_INPROGRESS)
        return "in progress";
    if (code > 0 || code <= -(int)(sizeof(texts) / sizeof(texts[0])))
        return "unknown error";
    return texts[-code];
}
