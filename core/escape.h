/* escape.h: what may be written to a terminal as it is, and what is to be shown instead.
 *
 * Text is looked at in units: a character of UTF-8 (RFC 3629), a colour sequence, or a single byte
 * that is neither. A unit passes, or its first byte is shown as \xNN and the rest is looked at
 * anew; so "ESC [ 2 J" becomes "\x1b[2J". C0 and C1 controls (ECMA-48, 8.3), DEL and bytes that are
 * no UTF-8 are shown. Pure; any thread. */
#ifndef CORE_ESCAPE_H
#define CORE_ESCAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ESCAPE_KEEP_WS     1 /* newline and tab pass */
#define ESCAPE_KEEP_COLOUR 2 /* carriage return and colours pass: for a terminal */
#define ESCAPE_TERMINAL    (ESCAPE_KEEP_WS | ESCAPE_KEEP_COLOUR)

#define ESCAPE_SHOWN_LEN  4  /* of "\x1b" */
#define ESCAPE_COLOUR_MAX 64 /* a longer colour sequence is none */

/* The length of the unit at p, len > 0; *passes whether it does. */
size_t escape_unit(const void *p, size_t len, unsigned keep, bool *passes);

/* Returns how many bytes at p pass, up to the first one that must be shown as \xNN. */
size_t escape_span(const void *p, size_t len, unsigned keep);

/* How many bytes at the end of p belong to a unit that more bytes might complete; less than
 * ESCAPE_COLOUR_MAX. The bytes before them are whole units. */
size_t escape_tail(const void *p, size_t len, unsigned keep);

/* Writes "\xNN", ESCAPE_SHOWN_LEN bytes without a NUL. */
void escape_show(char *out, uint8_t byte);

/* The length of the colour sequence at p (SGR: ESC [ digits ; : m), 0 when there is none. */
size_t escape_colour(const void *p, size_t len);

#endif
