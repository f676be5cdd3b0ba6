/* config_file.h: options, program and environment from an INI file, dlaunch.ini(5). */
#ifndef LAUNCHER_OPTIONS_CONFIG_FILE_H
#define LAUNCHER_OPTIONS_CONFIG_FILE_H

#include "launcher/options/options.h"

#define CONFIG_FILE_MAX   (1u << 20) /* bytes */
#define CONFIG_LINE_MAX   65536u     /* bytes, where the installed inih can hold that many */
#define CONFIG_ERRORS_MAX 20         /* told; then the rest of the file is left alone */

/* Reads the file into the options. Everything that is wrong with it is told by on_error, one line
 * each ("job.ini:12: ..."), in order; nothing of a wrong line is used. Returns how many errors
 * there were. */
int config_file_read(struct options *o, const char *path,
                     void (*on_error)(void *arg, const char *line), void *arg);

/* Reads options from text in memory; `path` is its name in messages. */
int config_text_read(struct options *o, const char *path, const char *text, size_t len,
                     void (*on_error)(void *arg, const char *line), void *arg);

#endif
