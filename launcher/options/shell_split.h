/* shell_split.h: splits a line of text into words, as a shell does: blanks part words, 'single' and
 * "double" quotes and backslashes keep them together. Nothing is expanded. */
#ifndef LAUNCHER_OPTIONS_SHELL_SPLIT_H
#define LAUNCHER_OPTIONS_SHELL_SPLIT_H

#include "launcher/options/options.h"

/* NULL-terminated; lives as long as the options. -EINVAL: a quote without its end, or no word. */
int shell_split(struct options *o, const char *text, char ***out, struct err *e);

/* The text with quotes where a shell would need them, at most cap bytes with the NUL; returns the
 * length that it wanted. */
size_t shell_quote(const char *word, char *out, size_t cap);

#endif
