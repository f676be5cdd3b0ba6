#include "agent/output/stdio_stream.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

/* -------------------------------------------------------------------------------- where it goes */

static void stream_put(struct stdio_stream *s, const void *data, size_t len, uint64_t now_ns)
{
    console_put(s->console, s->writer, s->label, data, len, now_ns);
}

/* The end of the stretch at p that gets one prefix: behind its first newline or carriage return.
 */
static const uint8_t *stretch_end(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *nl = memchr(p, '\n', (size_t)(end - p));
    const uint8_t *stop = nl ? nl + 1 : end;
    const uint8_t *cr = memchr(p, '\r', (size_t)(stop - p));
    return cr ? cr + 1 : stop;
}

static void stream_append(struct stream_buffers *b, const void *p, size_t n)
{
    if (b->len + n > b->cap) {
        b->cap = 2 * (b->len + n);
        b->prefixed = xrealloc(b->prefixed, b->cap);
    }
    memcpy(b->prefixed + b->len, p, n);
    b->len += n;
}

static void put_prefixed(struct stdio_stream *s, struct stream_buffers *b, const uint8_t *p,
                         size_t len, uint64_t now_ns)
{
    const uint8_t *end = p + len, *stop;
    uint8_t before = console_continues(s->console, s->writer) ? s->console->tail_byte : '\n';
    b->len = 0;
    for (; p < end; p = stop) {
        stop = stretch_end(p, end);
        if (before == '\n' || (before == '\r' && *p != '\n'))
            stream_append(b, s->label->prefix, s->label->prefix_len);
        stream_append(b, p, (size_t)(stop - p));
        before = stop[-1];
        if (b->len >= STREAM_CHUNK) {
            stream_put(s, b->prefixed, b->len, now_ns);
            b->len = 0;
        }
    }
    stream_put(s, b->prefixed, b->len, now_ns);
}

static void print(struct stdio_stream *s, struct stream_buffers *b, const uint8_t *p, size_t len,
                  uint64_t now_ns)
{
    if (len == 0)
        return;
    if (s->label->prefix_len && s->console->kind != CONSOLE_JOB)
        put_prefixed(s, b, p, len, now_ns);
    else
        stream_put(s, p, len, now_ns);
}

/* Whole units, with what could move or reprogram the terminal shown instead. */
static void print_visibly(struct stdio_stream *s, struct stream_buffers *b, const uint8_t *p,
                          size_t len, uint64_t now_ns)
{
    size_t n = escape_span(p, len, ESCAPE_TERMINAL), at = 0;
    if (n == len) {
        print(s, b, p, len, now_ns);
        return;
    }
    for (; len; n = escape_span(p, len, ESCAPE_TERMINAL)) {
        bool passes = n > 0;
        n = passes ? n : ESCAPE_SHOWN_LEN;
        if (n > STREAM_CHUNK - at) {
            print(s, b, b->visible, at, now_ns);
            at = 0;
        }
        if (n > STREAM_CHUNK) {
            print(s, b, p, n, now_ns);
        } else {
            if (passes)
                memcpy(b->visible + at, p, n);
            else
                escape_show((char *)b->visible + at, *p);
            at += n;
        }
        p += passes ? n : 1;
        len -= passes ? n : 1;
    }
    print(s, b, b->visible, at, now_ns);
}

static void stream_show(struct stdio_stream *s, struct stream_buffers *b, const uint8_t *p,
                        size_t len, uint64_t now_ns)
{
    if (len)
        s->midline = p[len - 1] != '\n';
    if (s->console && s->console->tty)
        print_visibly(s, b, p, len, now_ns);
    else if (s->console)
        print(s, b, p, len, now_ns);
}

/* Puts text that is to be folded: whole lines, but for the end of a line that has been shown in
 * part, and a piece of a line that is too long. */
static void stream_fold(struct stdio_stream *s, struct stream_buffers *b, const uint8_t *p,
                        size_t len, uint64_t now_ns)
{
    if (s->midline && len) {
        const uint8_t *nl = memchr(p, '\n', len);
        size_t n = nl ? (size_t)(nl - p) + 1 : len;
        stream_show(s, b, p, n, now_ns);
        p += n;
        len -= n;
    }
    const uint8_t *nl = len ? memrchr(p, '\n', len) : NULL;
    size_t n = nl ? fold_put(s->fold, &s->source, p, (size_t)(nl - p) + 1, now_ns) : 0;
    if (n == len)
        return;
    fold_settle(s->fold, &s->source, now_ns);
    stream_show(s, b, p + n, len - n, now_ns);
}

/* Returns how many bytes of the unfinished line are whole: the beginning of a colour or of a
 * character does not go to a console without its rest. */
static size_t whole_units(const struct stdio_stream *s)
{
    return s->len - escape_tail(s->line + s->shown, s->len - s->shown, ESCAPE_TERMINAL);
}

static bool matches(char *const *match, const uint8_t *line, size_t len)
{
    for (; *match; match++) {
        if (memmem(line, len, *match, strlen(*match)))
            return true;
    }
    return false;
}

/* Copies the lines that match, each with its prefix: the file is shared by all workers. */
static bool copy_matching(struct stdio_stream *s, const uint8_t *p, size_t len, uint64_t now_ns)
{
    struct stream_filter *f = s->filter;
    struct logfile *file = &f->file[s->is_err];
    bool well = true;
    for (const uint8_t *end = p + len, *stop; p < end; p = stop) {
        const uint8_t *nl = memchr(p, '\n', (size_t)(end - p));
        stop = nl ? nl + 1 : end;
        if (!matches(f->match[s->is_err], p, (size_t)(stop - p)))
            continue;
        well &= logfile_write(file, s->label->prefix, s->label->prefix_len, now_ns);
        well &= logfile_write(file, p, (size_t)(stop - p), now_ns);
        if (!nl)
            well &= logfile_write(file, "\n", 1, now_ns);
    }
    return well;
}

/* Whole lines, or a piece of a long one; the first `shown` bytes are on the console already. */
static bool pass_on(struct stdio_stream *s, struct stream_buffers *b, const uint8_t *p, size_t len,
                    size_t shown, uint64_t now_ns)
{
    if (s->fold)
        stream_fold(s, b, p + shown, len - shown, now_ns);
    else
        stream_show(s, b, p + shown, len - shown, now_ns);
    return s->filter ? copy_matching(s, p, len, now_ns) : true;
}

/* --------------------------------------------------------------------------------------- chunks */

static void stream_keep(struct stdio_stream *s, const uint8_t *p, size_t n, uint64_t now_ns)
{
    if (n == 0)
        return;
    if (s->len + n > s->cap) {
        s->cap = s->len + n < 256 ? 256 : 2 * (s->len + n);
        s->line = xrealloc(s->line, s->cap);
    }
    if (s->len == s->shown)
        s->since_ns = now_ns;
    s->last_ns = now_ns;
    memcpy(s->line + s->len, p, n);
    s->len += n;
}

/* Drops the first n bytes of the unfinished line. */
static void let_go(struct stdio_stream *s, size_t n)
{
    s->len -= n;
    s->shown = 0;
    if (s->len) {
        memmove(s->line, s->line + n, s->len);
    } else if (s->cap > 4096) { /* frees the memory of an occasional long line */
        free(s->line);
        s->line = NULL;
        s->cap = 0;
    }
}

/* Shows the first n bytes of the unfinished line. */
static void show_beginning(struct stdio_stream *s, struct stream_buffers *b, size_t n,
                           uint64_t now_ns)
{
    if (n <= s->shown)
        return;
    if (s->fold)
        fold_settle(s->fold, &s->source, now_ns);
    stream_show(s, b, s->line + s->shown, n - s->shown, now_ns);
    s->since_ns = s->last_ns = now_ns;
    if (s->filter)
        s->shown = n;
    else
        let_go(s, n);
}

/* A carriage return ends an update of a progress bar, and begins the next one. */
static void show_updates(struct stdio_stream *s, struct stream_buffers *b, uint64_t now_ns)
{
    const uint8_t *unseen = s->line + s->shown;
    const uint8_t *cr = s->len > s->shown ? memrchr(unseen, '\r', s->len - s->shown) : NULL;
    if (cr && cr + 1 < s->line + s->len) /* else it may be that of "\r\n" */
        show_beginning(s, b, (size_t)(cr - s->line), now_ns);
}

bool stream_feed(struct stdio_stream *s, struct stream_buffers *b, size_t len, uint64_t now_ns)
{
    uint8_t *data = b->room + STREAM_BEFORE;
    bool well = s->file.fd < 0 || logfile_write(&s->file, data, len, now_ns);
    if ((!s->console || !console_takes(s->console)) && !s->filter)
        return well;
    const uint8_t *nl = memrchr(data, '\n', len);
    size_t whole = nl ? (size_t)(nl - data) + 1 : 0;
    if (whole) {
        uint8_t *from = data - s->len;
        if (s->len)
            memcpy(from, s->line, s->len);
        well &= pass_on(s, b, from, s->len + whole, s->shown, now_ns);
        let_go(s, s->len);
    }
    if (s->len + len - whole > STDIO_LINE_MAX) {
        size_t n = whole_units(s);
        well &= pass_on(s, b, s->line, n, s->shown, now_ns);
        let_go(s, n);
        s->since_ns = now_ns;
    }
    stream_keep(s, data + whole, len - whole, now_ns);
    show_updates(s, b, now_ns);
    s->cut = len % STREAM_PAGE == 0;
    return well;
}

void stream_show_partial(struct stdio_stream *s, struct stream_buffers *b, uint64_t now_ns)
{
    size_t n = whole_units(s);
    bool cut = n < s->len;
    show_beginning(s, b, n, now_ns);
    s->cut = cut;
}

uint64_t stream_due_ns(const struct stdio_stream *s)
{
    if (!s->console || s->shown == s->len || s->cut)
        return 0;
    if (!s->console->tty && s->console->kind != CONSOLE_JOB)
        return s->since_ns + STREAM_KEPT_NS;
    uint64_t silence = s->last_ns + STREAM_SILENCE_NS, hold = s->since_ns + STREAM_HOLD_NS;
    if (s->source.open) /* a traceback is written in small pieces */
        return hold;
    return silence < hold ? silence : hold;
}

uint64_t stream_end(struct stdio_stream *s, struct stream_buffers *b, uint64_t now_ns)
{
    if (s->len)
        pass_on(s, b, s->line, s->len, s->shown, now_ns);
    if (s->fold)
        fold_end(s->fold, &s->source, now_ns);
    free(s->line);
    s->line = NULL;
    s->len = s->cap = s->shown = 0;
    stdio_label_unref(s->label);
    s->label = NULL;
    return logfile_close(&s->file);
}
