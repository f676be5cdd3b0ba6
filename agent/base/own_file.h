/* own_file.h: where the files are that belong to this program: its other programs and libraries
 * stand beside it where it is built and in a wheel, else where `make install` and the packages put
 * them. */
#ifndef AGENT_BASE_OWN_FILE_H
#define AGENT_BASE_OWN_FILE_H

#include <stddef.h>

/* The path of the file that exists; NULL: there is none. Where it belongs is in out then, as the
 * folder of this program. Returns out, of cap bytes. */
const char *own_file_find(const char *name, char *out, size_t cap);

#endif
