#include "agent/base/text.h"

#include <stdio.h>
#include <string.h>

const char *text_bytes(char out[TEXT_BYTES_MAX], uint64_t n)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (n < 1024) {
        snprintf(out, TEXT_BYTES_MAX, "%u byte%s", (unsigned)n, n == 1 ? "" : "s");
        return out;
    }
    double v = (double)n / 1024;
    size_t unit = 0;
    for (; v >= 1023.95; v /= 1024) /* 1023.95 would be shown as 1024.0 */
        unit++;
    snprintf(out, TEXT_BYTES_MAX, "%.1f %s", v, units[unit]);
    return out;
}

static size_t count_lines(const char *text, size_t len)
{
    size_t n = 0;
    for (const char *end = text + len; (text = memchr(text, '\n', (size_t)(end - text))); text++)
        n++;
    return n;
}

size_t text_keep_end(char *out, size_t cap, const char *text, size_t len)
{
    while (len && (text[len - 1] == '\n' || text[len - 1] == '\r'))
        len--;
    if (len < cap) {
        memcpy(out, text, len);
        out[len] = '\0';
        return len;
    }
    size_t room = cap - 1 - sizeof("[18446744073709551615 lines left out]\n");
    const char *from = text + len - room;
    const char *line = memchr(from - 1, '\n', room + 1);
    int n;
    if (line) {
        from = line + 1;
        n = snprintf(out, cap, "[%zu lines left out]\n", count_lines(text, (size_t)(from - text)));
    } else {
        for (int i = 0; i < 3 && ((unsigned char)*from & 0xc0) == 0x80; i++)
            from++; /* not into the middle of a character */
        n = snprintf(out, cap, "...");
    }
    size_t kept = (size_t)(text + len - from);
    memcpy(out + n, from, kept);
    out[(size_t)n + kept] = '\0';
    return (size_t)n + kept;
}

size_t text_span(const char *text, int columns)
{
    size_t n = 0;
    for (; text[n] && columns > 0; columns--) {
        do
            n++;
        while (((unsigned char)text[n] & 0xc0) == 0x80);
    }
    return n;
}
