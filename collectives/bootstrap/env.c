#include "collectives/bootstrap/env.h"

#include <stdlib.h>

#include "core/parse.h"

int env_read_int(const char *name, long min, long max, int *out, struct err *e)
{
    const char *v = getenv(name);
    long n = *out;
    if (v && *v && parse_int(v, min, max, &n, e) < 0)
        return err_wrap(e, "%s", name);
    *out = (int)n;
    return 0;
}
