#include "agent/report/json_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/log.h"
#include "core/mem.h"

json_t *json_of_text(const char *text)
{
    json_t *s = json_string(text);
    if (!s) {
        size_t len = strlen(text), cap = 4 * len + 8;
        char *shown = xmalloc(cap);
        log_escape(shown, cap, text, len, 1);
        s = json_string(shown);
        free(shown);
    }
    return s;
}

json_t *json_of_time(uint64_t wall_ns)
{
    char text[64];
    struct tm tm;
    time_t t = (time_t)(wall_ns / 1000000000u);
    if (wall_ns == 0 || !gmtime_r(&t, &tm))
        return json_null();
    size_t n = strftime(text, sizeof(text), "%FT%T", &tm);
    snprintf(text + n, sizeof(text) - n, ".%03uZ", (unsigned)(wall_ns / 1000000u % 1000u));
    return json_string(text);
}
