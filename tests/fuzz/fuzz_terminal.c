/* A worker's output on its way to a terminal: the stream and the console as the pump uses them,
 * with a pipe in place of the terminal. However the output is cut into chunks and times, only text,
 * tabs, line ends and whole colour sequences are shown, and without a prefix the result is the same
 * as for one piece.
 *
 *   byte 0   the size of the chunks; its highest bit: in units of 256 bytes
 *   byte 1   bit 0: a prefix; bit 1: every second chunk is shown before its line is over; bit 2: a
 *            second stream writes between the chunks (and nothing is compared) */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/output/stdio_stream.h"
#include "core/bytes.h"
#include "core/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct stream_buffers buffers;
static int ends[2];
static struct buf got;

static void read_terminal(void)
{
    ssize_t n;
    do {
        if (!buf_reserve(&got, 65536))
            abort();
        n = read(ends[0], got.data + got.len, 65536);
        got.len += n > 0 ? (size_t)n : 0;
    } while (n > 0);
}

/* With an eye of its own for what a terminal obeys. */
static void check_shown(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] == 0x1b) {
            if (++i >= n || p[i] != '[')
                abort();
            for (i++; i < n && p[i] != 'm'; i++) {
                if (!strchr("0123456789:;", p[i]) || p[i] == 0)
                    abort();
            }
            if (i == n)
                abort();
        } else if (p[i] < 0x20 ? p[i] != '\n' && p[i] != '\t' && p[i] != '\r' : p[i] == 0x7f) {
            abort();
        } else if (p[i] >= 0x80) {
            int more = p[i] < 0xc2 ? -1 : p[i] < 0xe0 ? 1 : p[i] < 0xf0 ? 2 : p[i] < 0xf5 ? 3 : -1;
            if (more < 0 || (p[i] == 0xc2 && i + 1 < n && p[i + 1] < 0xa0))
                abort();
            for (; more; more--) {
                if (++i >= n || (p[i] & 0xc0) != 0x80)
                    abort();
            }
        }
    }
}

/* Escapes the whole input in one pass, for comparison. */
static void show_whole(const uint8_t *p, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n;) {
        bool passes;
        char shown[ESCAPE_SHOWN_LEN];
        size_t unit = escape_unit(p + i, n - i, ESCAPE_TERMINAL, &passes);
        escape_show(shown, p[i]);
        buf_put(out, passes ? (const void *)(p + i) : shown, passes ? unit : sizeof(shown));
        i += unit;
    }
}

static void feed(struct stdio_stream *s, const uint8_t *p, size_t n, uint64_t now_ns)
{
    memcpy(buffers.room + STREAM_BEFORE, p, n);
    stream_feed(s, &buffers, n, now_ns);
    read_terminal();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > 300000)
        return 0;
    if (!buffers.room) {
        buffers.room = xmalloc(STREAM_BEFORE + STREAM_CHUNK);
        buffers.visible = xmalloc(STREAM_CHUNK);
        if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) < 0)
            abort();
    }
    struct console c;
    struct stdio_stream s[2] = {{.fd = -1, .file = {.fd = -1}}, {.fd = -1, .file = {.fd = -1}}};
    const char *prefix = data[1] & 1 ? "[a]:" : "";
    console_init(&c, ends[1], "terminal", -1, NULL);
    c.tty = true;
    for (int i = 0; i < 2; i++) {
        s[i].console = &c;
        s[i].label = stdio_label_new(i, i, prefix, NULL);
    }
    size_t piece = 1 + (data[0] & 127) * (data[0] & 128 ? 256 : 1);
    uint64_t now = 1;
    got.len = 0;
    const uint8_t *p = data + 2, *end = data + size;
    for (int turn = 0; p < end; turn++, now++) {
        size_t n = (size_t)(end - p) < piece ? (size_t)(end - p) : piece;
        feed(&s[0], p, n, now);
        p += n;
        if ((data[1] & 2) && turn % 2 && stream_due_ns(&s[0]))
            stream_show_partial(&s[0], &buffers, now);
        if (data[1] & 4)
            feed(&s[1], (const uint8_t *)"other\n", 6, now);
        read_terminal();
    }
    for (int i = 0; i < 2; i++)
        stream_end(&s[i], &buffers, now);
    bool coloured = c.coloured;
    console_end(&c, now);
    read_terminal();
    while (console_has_backlog(&c)) {
        console_flush(&c, now);
        read_terminal();
    }
    console_fini(&c);
    check_shown(got.data, got.len);
    if (!(data[1] & 5)) {
        struct buf want = BUF_INIT;
        show_whole(data + 2, size - 2, &want);
        if (coloured)
            buf_put(&want, "\x1b[m", 3);
        if (want.len != got.len || (want.len && memcmp(want.data, got.data, want.len) != 0))
            abort();
        buf_fini(&want);
    }
    return 0;
}
