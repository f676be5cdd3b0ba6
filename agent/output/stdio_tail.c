#include "agent/output/stdio_tail.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "agent/output/stdio_opts.h"
#include "core/escape.h"
#include "core/log.h"
#include "core/mem.h"
#include "rendezvous/rules/failure.h"

#define TAIL_BYTES FAILURE_TAIL_MAX

void stdio_tail_put(struct stdio_tail *t, const void *data, size_t len)
{
    const uint8_t *p = data;
    if (!t->ring)
        t->ring = xmalloc(TAIL_BYTES);
    if (len > TAIL_BYTES) {
        t->seen += len - TAIL_BYTES;
        p += len - TAIL_BYTES;
        len = TAIL_BYTES;
    }
    size_t at = t->seen % TAIL_BYTES;
    size_t first = len < TAIL_BYTES - at ? len : TAIL_BYTES - at;
    memcpy(t->ring + at, p, first);
    memcpy(t->ring, p + first, len - first);
    t->seen += len;
}

void stdio_tail_fini(struct stdio_tail *t)
{
    free(t->ring);
    *t = (struct stdio_tail){0};
}

/* Cuts a line down, in place, to what a terminal would show: no colours, nothing that a carriage
 * return has overwritten. Returns its length. */
static size_t settle_line(char *line, size_t len)
{
    size_t n = 0, from = 0;
    while (len && line[len - 1] == '\r')
        len--;
    char *cr = memrchr(line, '\r', len);
    if (cr)
        from = (size_t)(cr - line) + 1;
    while (from < len) {
        size_t skip = escape_colour(line + from, len - from);
        if (skip)
            from += skip;
        else
            line[n++] = line[from++];
    }
    return n;
}

/* Puts the line in front of what stands in out[*start..cap). False: no room for it. */
static bool put_in_front(char *out, size_t cap, size_t *start, const char *line, size_t len)
{
    char shown[4 * TAIL_BYTES + 8];
    size_t n = log_escape(shown, sizeof(shown), line, len, 1);
    bool first = *start == cap - 1; /* the last byte is for the NUL */
    if (n + !first > *start) {
        if (!first)
            return false;
        memmove(shown, shown + n - *start, *start);
        memcpy(shown, "...", *start < 3 ? *start : 3);
        n = *start;
    }
    if (!first)
        out[--*start] = '\n';
    *start -= n;
    memcpy(out + *start, shown, n);
    return true;
}

size_t stdio_tail_text(const struct stdio_tail *t, char *out, size_t cap)
{
    if (cap == 0)
        return 0;
    char text[TAIL_BYTES];
    size_t len = t->seen < TAIL_BYTES ? (size_t)t->seen : TAIL_BYTES;
    for (size_t i = 0, at = (t->seen - len) % TAIL_BYTES; i < len; i++)
        text[i] = (char)t->ring[(at + i) % TAIL_BYTES];
    bool cut = t->seen > len; /* the first line in the ring may have lost its beginning */
    while (len && (text[len - 1] == '\n' || text[len - 1] == '\r'))
        len--;
    size_t start = cap - 1;
    for (int lines = 0; len && lines < STDIO_TAIL_LINES; lines++) {
        char *nl = memrchr(text, '\n', len);
        char *line = nl ? nl + 1 : text;
        size_t n = (size_t)(text + len - line);
        if (!nl && cut && lines > 0)
            break;
        n = settle_line(line, n);
        if (!nl && cut && n > 3)
            memcpy(line, "...", 3);
        if (!put_in_front(out, cap, &start, line, n) || !nl)
            break;
        len = (size_t)(nl - text);
    }
    memmove(out, out + start, cap - 1 - start);
    out[cap - 1 - start] = '\0';
    return cap - 1 - start;
}
