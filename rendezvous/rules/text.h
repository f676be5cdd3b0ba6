/* text.h: sentences for people in fixed buffers. What does not fit ends in "...". */
#ifndef RENDEZVOUS_RULES_TEXT_H
#define RENDEZVOUS_RULES_TEXT_H

#include <stddef.h>

void text_set(char *out, size_t cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Appends to the terminated text in `out`. */
void text_add(char *out, size_t cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
