#include "agent/output/fold_console.h"

#include <stdio.h>
#include <string.h>

#include "core/escape.h"

#define RANGES_MAX 12 /* in a set of ranks */

/* Writes "[0-3,8]: ". */
static void put_set(struct buf *b, const struct fold_shown *g)
{
    char text[48];
    int left = g->workers->n, len;
    buf_put(b, "[", 1);
    for (size_t i = 0; i < g->workers->nranges; i++) {
        int first = g->first_rank + g->workers->e[i].first;
        int last = g->first_rank + g->workers->e[i].last;
        if (i == RANGES_MAX) {
            len = snprintf(text, sizeof(text), " and %d more", left);
            buf_put(b, text, (size_t)len);
            break;
        }
        left -= last - first + 1;
        len = snprintf(text, sizeof(text), last > first ? "%s%d-%d" : "%s%d", i ? "," : "", first,
                       last);
        buf_put(b, text, (size_t)len);
    }
    buf_put(b, "]: ", 3);
}

/* Writes what a terminal may be given. */
static void put_visibly(struct buf *b, const uint8_t *p, size_t len)
{
    while (len) {
        size_t n = escape_span(p, len, ESCAPE_TERMINAL);
        buf_put(b, p, n);
        p += n;
        len -= n;
        if (len) {
            char shown[ESCAPE_SHOWN_LEN];
            escape_show(shown, *p);
            buf_put(b, shown, sizeof(shown));
            p++;
            len--;
        }
    }
}

static size_t count_lines(const uint8_t *p, size_t len)
{
    size_t n = 0;
    for (const uint8_t *end = p + len, *nl; (nl = memchr(p, '\n', (size_t)(end - p))); p = nl + 1)
        n++;
    return n;
}

void fold_console_show(void *arg, const struct fold_shown *g, uint64_t now_ns)
{
    struct fold_console *f = arg;
    struct console *c = f->console[g->label->is_err];
    bool several = g->workers->n > 1;
    struct buf prefix = BUF_INIT, text = BUF_INIT;
    if (several)
        put_set(&prefix, g);
    else
        buf_put(&prefix, g->label->prefix, g->label->prefix_len);
    fold_text_put(g->text, FOLD_BOTH, &text);
    size_t lines = count_lines(text.data, text.len), at = 0;
    bool cut = several && lines > FOLD_LINES;
    f->page.len = 0;
    for (uint8_t *p = text.data, *end = p + text.len, *stop; p < end; p = stop, at++) {
        uint8_t *nl = memchr(p, '\n', (size_t)(end - p)), *cr;
        stop = nl + 1; /* units are whole lines */
        if (cut && at >= FOLD_LINES / 2 && at < lines - (FOLD_LINES / 2 - 1)) {
            char left_out[48];
            int n = snprintf(left_out, sizeof(left_out), "[%zu lines left out]\n",
                             lines - (FOLD_LINES - 1));
            if (at == FOLD_LINES / 2) {
                buf_put(&f->page, prefix.data, prefix.len);
                buf_put(&f->page, left_out, (size_t)n);
            }
            continue;
        }
        do { /* a carriage return, unless it ends the line, is followed by the prefix again */
            cr = memchr(p, '\r', (size_t)(stop - p));
            uint8_t *to = cr && cr + 1 < nl ? cr + 1 : stop;
            buf_put(&f->page, prefix.data, prefix.len);
            if (c->tty)
                put_visibly(&f->page, p, (size_t)(to - p));
            else
                buf_put(&f->page, p, (size_t)(to - p));
            p = to;
        } while (p < stop);
    }
    console_put(c, several ? f : g->writer, g->label, f->page.data, f->page.len, now_ns);
    if (f->page.cap > 65536)
        buf_fini(&f->page);
    buf_fini(&prefix);
    buf_fini(&text);
}
