/* head_files.h: the files that dlaunch -H writes on its own host for the launchers: --events and
 * --report. They may be FIFOs, whose readers are waited for a moment. */
#ifndef LAUNCHER_HOSTS_HEAD_FILES_H
#define LAUNCHER_HOSTS_HEAD_FILES_H

#include "launcher/options/options.h"

/* Opens the file of --events; -1 with *e unset: none is asked for. */
int head_files_events(struct options *o, struct err *e);
/* Appends to it; closes it when that fails. */
void head_files_add(const struct options *o, int *events, const void *text, size_t n);

/* Writes the report of --report. */
void head_files_report(const struct options *o, const char *json, size_t n);

#endif
