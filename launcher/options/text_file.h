/* text_file.h: whole texts that users hand over: of a file, of standard input, of a command. */
#ifndef LAUNCHER_OPTIONS_TEXT_FILE_H
#define LAUNCHER_OPTIONS_TEXT_FILE_H

#include "core/err.h"

/* Reads to the end. Returns a malloc'ed text, or NULL: it cannot be read, has a NUL byte in it, or
 * is larger than 16 MB. `name` is for messages. */
char *text_read(int fd, const char *name, struct err *e);

/* Reads a file to its end in the same way; "-": standard input. */
char *text_file_read(const char *path, struct err *e);

#endif
