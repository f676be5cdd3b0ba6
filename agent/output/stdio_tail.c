#include "agent/output/stdio_tail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent/base/stdio_opts.h"
#include "core/escape.h"
#include "core/log.h"
#include "core/mem.h"
#include "rendezvous/rules/failure.h"

#define TAIL_BYTES FAILURE_TAIL_MAX
#define TAIL_HEAD  1024
#define HEAD_LINES 5 /* of a long traceback: two frames */
#define MARGIN_MAX 64

static const char BEGIN[] = "Traceback (most recent call last):\n";

/* The frames of a traceback are indented; the first line that is not indented ends the
 * traceback. */
static void note_head_end(struct stdio_tail *t, const uint8_t *p, size_t len, uint64_t seen)
{
    for (const uint8_t *at = p, *end = p + len, *nl; at < end && !t->head_end;) {
        if (t->column > t->margin) {
            if (!(nl = memchr(at, '\n', (size_t)(end - at))))
                return;
            at = nl;
        } else if (t->frames && (t->column == t->margin ? *at != ' ' : *at == '\n')) {
            t->head_end = seen + (uint64_t)(at - p) - t->column;
        }
        t->frames |= *at == '\n';
        t->column = *at == '\n' ? 0 : t->column + 1;
        at++;
    }
}

/* Keeps the beginning of a traceback, and what stands in front of its lines, as PyTorch's
 * "[rank0]: ". */
static void note_head(struct stdio_tail *t, const uint8_t *data, size_t len)
{
    const uint8_t *begin = NULL, *p = data, *end = data + len;
    for (const uint8_t *at = p; (at = memmem(at, (size_t)(end - at), BEGIN, sizeof(BEGIN) - 1));)
        begin = at++;
    if (begin) {
        for (p = begin; p > data && p[-1] != '\n' && begin - p < MARGIN_MAX;)
            p--;
        if (!t->head)
            t->head = xmalloc(TAIL_HEAD);
        t->margin = (size_t)(begin - p);
        t->head_at = t->seen + (uint64_t)(p - data);
        t->head_len = t->column = 0;
        t->head_end = 0;
        t->frames = false;
    }
    if (!t->head)
        return;
    size_t n =
        (size_t)(end - p) < TAIL_HEAD - t->head_len ? (size_t)(end - p) : TAIL_HEAD - t->head_len;
    memcpy(t->head + t->head_len, p, n);
    t->head_len += n;
    note_head_end(t, p, (size_t)(end - p), t->seen + (uint64_t)(p - data));
}

void stdio_tail_put(struct stdio_tail *t, const void *data, size_t len)
{
    const uint8_t *p = data;
    if (!t->ring)
        t->ring = xmalloc(TAIL_BYTES);
    note_head(t, p, len);
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
    free(t->head);
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

/* The last lines of the text that is kept, at most `most`, as stdio_tail_text(). *from: how many
 * bytes have been put before the first of them. */
static size_t last_lines(const struct stdio_tail *t, int most, char *out, size_t cap,
                         uint64_t *from)
{
    char text[TAIL_BYTES];
    size_t len = t->seen < TAIL_BYTES ? (size_t)t->seen : TAIL_BYTES;
    uint64_t before = t->seen - len;
    for (size_t i = 0, at = before % TAIL_BYTES; i < len; i++)
        text[i] = (char)t->ring[(at + i) % TAIL_BYTES];
    bool cut = before > 0; /* the first line in the ring may have lost its beginning */
    while (len && (text[len - 1] == '\n' || text[len - 1] == '\r'))
        len--;
    size_t start = cap - 1;
    *from = t->seen;
    for (int lines = 0; len && lines < most; lines++) {
        char *nl = memrchr(text, '\n', len);
        char *line = nl ? nl + 1 : text;
        size_t n = (size_t)(text + len - line);
        if (!nl && cut && lines > 0)
            break;
        n = settle_line(line, n);
        if (!nl && cut && n > 3)
            memcpy(line, "...", 3);
        if (!put_in_front(out, cap, &start, line, n))
            break;
        *from = before + (uint64_t)(line - text);
        if (!nl)
            break;
        len = (size_t)(nl - text);
    }
    memmove(out, out + start, cap - 1 - start);
    out[cap - 1 - start] = '\0';
    return cap - 1 - start;
}

/* Copies the first lines of the newest traceback, and a line that says that others are left out
 * behind them. */
static size_t head_lines(const struct stdio_tail *t, char *out, size_t cap)
{
    static const char more[] = "[frames left out]\n";
    char text[TAIL_HEAD];
    size_t len = 0, at = 0;
    memcpy(text, t->head, t->head_len);
    for (int lines = 0; lines < HEAD_LINES; lines++) {
        char *nl = memchr(text + at, '\n', t->head_len - at);
        if (!nl || cap - len < sizeof(more) + 8)
            break;
        size_t n = settle_line(text + at, (size_t)(nl - text) - at);
        len += log_escape(out + len, cap - len - sizeof(more) - 1, text + at, n, 1);
        out[len++] = '\n';
        at = (size_t)(nl - text) + 1;
    }
    assert(len + sizeof(more) <= cap);
    memcpy(out + len, more, sizeof(more));
    return len + sizeof(more) - 1;
}

size_t stdio_tail_text(const struct stdio_tail *t, char *out, size_t cap)
{
    uint64_t from;
    if (cap == 0)
        return 0;
    size_t len = last_lines(t, STDIO_TAIL_LINES, out, cap, &from);
    bool reaches = t->head && t->head_at < from && (!t->head_end || from <= t->head_end);
    if (!reaches || cap < 4 * TAIL_HEAD)
        return len;
    char head[2 * TAIL_HEAD];
    size_t n = head_lines(t, head, sizeof(head));
    len = last_lines(t, STDIO_TAIL_LINES - HEAD_LINES - 1, out + n, cap - n, &from);
    memcpy(out, head, n);
    return n + len;
}
