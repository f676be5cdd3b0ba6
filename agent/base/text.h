/* text.h: sizes and excerpts as people read them. Pure; any thread. */
#ifndef AGENT_BASE_TEXT_H
#define AGENT_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* "17 bytes", "3.4 KiB", "1.2 MiB". Returns out. */
#define TEXT_BYTES_MAX 32
const char *text_bytes(char out[TEXT_BYTES_MAX], uint64_t n);

/* Copies text to out, terminated, trailing newlines taken off. Of a text that does not fit (cap >=
 * 64), copies the last whole lines, behind a first line "[n lines left out]"; of a last line that
 * is too long by itself, the end, behind "...". Returns the length. */
size_t text_keep_end(char *out, size_t cap, const char *text, size_t len);

/* Returns how many bytes the first `columns` characters of the UTF-8 text have. */
size_t text_span(const char *text, int columns);

#endif
