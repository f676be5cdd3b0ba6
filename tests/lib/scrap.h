/* scrap.h: strings for tests that nobody frees: they live until the test's process ends, and are no
 * leak to a sanitizer. */
#ifndef TESTS_LIB_SCRAP_H
#define TESTS_LIB_SCRAP_H

char *scrap(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
char *scrap_path(const char *name); /* "<tmpdir>/<name>" */
char *scrap_keep(char *owned);      /* takes a malloc'ed string; returns it */
char *scrap_file(const char *path); /* what is in the file */

#endif
