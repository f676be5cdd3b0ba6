/* folded.h: reads lines that are shown once for several ranks, "[0-3,8]: ready". */
#ifndef TESTS_LIB_FOLDED_H
#define TESTS_LIB_FOLDED_H

/* How many ranks have printed the word as a line, folded or not; a line without a label is of one
 * of them. */
int ranks_that_say(const char *out, const char *word);

#endif
