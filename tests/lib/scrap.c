#include "tests/lib/scrap.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/mem.h"
#include "tests/lib/test.h"

static char **g_kept;
static size_t g_n;

char *scrap_keep(char *owned)
{
    g_kept = xrealloc(g_kept, (g_n + 1) * sizeof(*g_kept));
    return g_kept[g_n++] = owned;
}

char *scrap(const char *fmt, ...)
{
    char *s;
    va_list ap;
    va_start(ap, fmt);
    ck_assert_int_ge(vasprintf(&s, fmt, ap), 0);
    va_end(ap);
    return scrap_keep(s);
}

char *scrap_path(const char *name)
{
    return scrap("%s/%s", tmpdir(), name);
}

char *scrap_file(const char *path)
{
    return scrap_keep(read_file(path));
}
