/* parse.h: text to values, the whole text or nothing. Each returns 0 or -EINVAL with a text that
 * says what was given and what would be right; *out is untouched on failure. */
#ifndef CORE_PARSE_H
#define CORE_PARSE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"

/* A decimal integer from min to max; blanks around it are allowed. */
int parse_int(const char *s, long min, long max, long *out, struct err *e);

/* A time: "1.5", "500ms", "15s", "10min" or "10m", "2h". A bare number is in seconds. Zero or more;
 * what is longer than PARSE_SECONDS_MAX, about 31 years, is that long: nanoseconds still fit into
 * 64 bits, and nobody sees the difference. */
#define PARSE_SECONDS_MAX 1e9
int parse_seconds(const char *s, double *out, struct err *e);

/* 1/true/t/yes/y/on, 0/false/f/no/n/off, any case. */
int parse_bool(const char *s, bool *out, struct err *e);

/* "N" or "MIN:MAX" with 0 < MIN <= MAX. */
int parse_range(const char *s, int *min, int *max, struct err *e);

/* Ranges such as "0,8-15" of numbers from 0 on. */
int parse_ranges(const char *s, struct err *e);

/* Whether ranges as in parse_ranges() contain the number; a malformed range ends the list. */
bool parse_has(const char *ranges, long n);

/* Whether the text (len bytes) names a variable of the environment that every shell can read:
 * letters, digits and _ (and dots, which programs can), not beginning with a digit. */
bool parse_is_variable(const char *s, size_t len);
/* Describes the name in words, for messages about `s`, which may go on behind the name. */
#define PARSE_NO_VARIABLE \
    "'%.*s' is not a valid variable name (letters, digits and _, not beginning with a digit)"

/* Whether the text names variables for a job: NAME, NAME=VALUE, a prefix of names with * behind it,
 * or "*" alone for all variables. */
bool parse_is_export(const char *s);

/* The number of the signal "SIGTERM" or "TERM" (len bytes), or 0. */
int parse_signal(const char *name, size_t len);

/* The candidate nearest to `word` (at most a third of its letters differ), or NULL: "did you mean".
 * '-' and '_' are the same letter. candidates end with NULL. */
const char *parse_nearest(const char *word, const char *const *candidates);

#endif
