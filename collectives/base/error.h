/* error.h: what dlcoll_last_error() shows. */
#ifndef COLLECTIVES_BASE_ERROR_H
#define COLLECTIVES_BASE_ERROR_H

#include <stdarg.h>

#include "collectives/dlcoll.h"

/* Sets code and text; all other fields are "unknown". Returns code. */
int error_set(dlcoll_error *out, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

int error_vset(dlcoll_error *out, int code, const char *fmt, va_list ap);

/* Sets the error of a call that has no communicator, which is kept per thread. */
int error_set_global(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int error_copy_global(const dlcoll_error *e); /* returns its code */
const dlcoll_error *error_global(void);       /* this thread's */

/* The code for a negative errno value of the inside. */
int error_code(int errnum);

#endif
