/* folded.h: reads lines that are shown once for several ranks, "[0-3,8]: ready". */
#ifndef TESTS_LIB_FOLDED_H
#define TESTS_LIB_FOLDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns how many ranks have printed the word as a line, folded or not; a line without a label
 * belongs to one rank. */
int ranks_that_say(const char *out, const char *word);

/* A hash over lines in their order; it begins with 0. */
uint64_t folded_mix(uint64_t hash, const char *p, size_t n);
/* Mixes each line that is shown into the hash of each rank that it is of; counts the lines. */
void folded_lines(const char *shown, int ranks, uint64_t *hashes, unsigned *lines);

/* Writes the n-th of random lines, some of them in two pieces, which goes into the worker's hash.
 * False: none this time. floods: from line 500 on each is another. */
bool folded_write(int fd, int n, bool floods, unsigned *seed, uint64_t *hash);

#endif
