/* env.h: numbers in environment variables. */
#ifndef COLLECTIVES_BOOTSTRAP_ENV_H
#define COLLECTIVES_BOOTSTRAP_ENV_H

#include "core/err.h"

/* Leaves *out unchanged when the variable is not set or empty. -EINVAL with a text that names the
 * variable when it is not a number from min to max. */
int env_read_int(const char *name, long min, long max, int *out, struct err *e);

#endif
