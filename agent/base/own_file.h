/* own_file.h: where the files are that belong to this program: its other programs and libraries
 * stand beside it where it is built and in a wheel, else where `make install` and the packages put
 * them. */
#ifndef AGENT_BASE_OWN_FILE_H
#define AGENT_BASE_OWN_FILE_H

#include <stddef.h>

/* Returns the path of the file in out, of cap bytes; NULL: the file does not exist, and out has the
 * path at which it belongs, beside this program. */
const char *own_file_find(const char *name, char *out, size_t cap);

#endif
