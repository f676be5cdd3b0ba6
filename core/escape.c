#include "core/escape.h"

#include <string.h>

#define ESC   0x1b
#define BLOCK 128

/* The length of the well-formed UTF-8 sequence at p (RFC 3629), 0 when there is none. */
static size_t utf8_len(const uint8_t *p, size_t left)
{
    size_t n = p[0] < 0x80   ? 1
               : p[0] < 0xc2 ? 0
               : p[0] < 0xe0 ? 2
               : p[0] < 0xf0 ? 3
               : p[0] < 0xf5 ? 4
                             : 0;
    if (n == 0 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] >= 0xa0) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] >= 0x90))
        return 0;
    return n;
}

/* The bytes at p that may begin a colour sequence, its last one ("m") not among them. */
static size_t colour_body(const uint8_t *p, size_t len)
{
    size_t most = len < ESCAPE_COLOUR_MAX - 1 ? len : ESCAPE_COLOUR_MAX - 1, i = 0;
    if (i < most && p[i] == ESC)
        i++;
    if (i == 1 && i < most && p[i] == '[')
        i++;
    while (i >= 2 && i < most && ((p[i] >= '0' && p[i] <= '9') || p[i] == ';' || p[i] == ':'))
        i++;
    return i;
}

size_t escape_colour(const void *text, size_t len)
{
    const uint8_t *p = text;
    size_t n = colour_body(p, len);
    return n >= 2 && n < len && p[n] == 'm' ? n + 1 : 0;
}

size_t escape_unit(const void *text, size_t len, unsigned keep, bool *passes)
{
    const uint8_t *p = text;
    size_t n = utf8_len(p, len);
    bool control = p[0] < 0x20 || p[0] == 0x7f || (p[0] == 0xc2 && n == 2 && p[1] < 0xa0);
    if (control && (keep & ESCAPE_KEEP_WS) && (p[0] == '\n' || p[0] == '\t'))
        control = false;
    if (control && (keep & ESCAPE_KEEP_COLOUR) && p[0] == '\r')
        control = false;
    if (control && (keep & ESCAPE_KEEP_COLOUR) && (n = escape_colour(p, len)) > 0)
        control = false;
    *passes = n > 0 && !control;
    return *passes ? n : 1;
}

/* Whether all of a block is ASCII that passes on a terminal. The loop has no branch, so that the
 * compiler turns the loop into vector instructions. */
static bool is_plain(const uint8_t *p)
{
    uint8_t bad = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        uint8_t c = p[i], odd = (uint8_t)(c - 0x20) > 0x7e - 0x20;
        bad |= odd & (c != '\n') & (c != '\t') & (c != '\r');
    }
    return !bad;
}

size_t escape_span(const void *text, size_t len, unsigned keep)
{
    const uint8_t *p = text;
    size_t i = 0;
    while (i < len) {
        while ((keep & ESCAPE_TERMINAL) == ESCAPE_TERMINAL && len - i >= BLOCK && is_plain(p + i))
            i += BLOCK;
        for (size_t end = len - i < BLOCK ? len : i + BLOCK; i < end;) {
            bool passes = p[i] >= 0x20 && p[i] < 0x7f;
            size_t n = passes ? 1 : escape_unit(p + i, len - i, keep, &passes);
            if (!passes)
                return i;
            i += n;
        }
    }
    return i;
}

/* Both an ESC and the first byte of a character begin a unit wherever they stand. */
size_t escape_tail(const void *text, size_t len, unsigned keep)
{
    const uint8_t *p = text;
    for (size_t n = 1; n <= 3 && n <= len && p[len - n] >= 0x80; n++) {
        uint8_t c = p[len - n];
        if (c >= 0xc0)
            return n < (c < 0xe0 ? 2u : c < 0xf0 ? 3u : 4u) ? n : 0;
    }
    size_t most = len < ESCAPE_COLOUR_MAX - 1 ? len : ESCAPE_COLOUR_MAX - 1;
    const uint8_t *esc =
        keep & ESCAPE_KEEP_COLOUR && most ? memrchr(p + len - most, ESC, most) : NULL;
    size_t n = esc ? (size_t)(p + len - esc) : 0;
    return n && colour_body(esc, n) == n ? n : 0;
}

void escape_show(char *out, uint8_t byte)
{
    static const char digits[] = "0123456789abcdef";
    out[0] = '\\';
    out[1] = 'x';
    out[2] = digits[byte >> 4];
    out[3] = digits[byte & 15];
}
