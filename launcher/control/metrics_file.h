/* metrics_file.h: the file of --metrics_file, for the textfile collector of node_exporter, which
 * reads all files of a folder as one page: those of several jobs, and of several pods of one job,
 * in which run ids and process ids are the same. So each launcher has a name of its own, which is a
 * label of all its series too.
 *
 * A launcher holds a lock on its file. One that starts removes files without a lock: their
 * launchers have been killed. What may wait for a file server is done on a thread
 * (core/timed_call.h).
 */
#ifndef LAUNCHER_CONTROL_METRICS_FILE_H
#define LAUNCHER_CONTROL_METRICS_FILE_H

#include <stddef.h>

struct metrics_file;

struct metrics_file *metrics_file_new(const char *folder, const char *run_id);

const char *metrics_file_path(const struct metrics_file *f);

/* Writes the page as the whole file, which a reader sees whole; takes the text, which is malloc'ed.
 * Nothing is done while an earlier page is still being written. After an error, which is reported
 * once, no further page is written. */
void metrics_file_write(struct metrics_file *f, char *text, size_t len);

/* Removes the file; waits for its server, but not for long. NULL is allowed. */
void metrics_file_close(struct metrics_file *f);

/* The page with this label behind those of each series; malloc'ed. */
char *metrics_file_label(const char *text, const char *name, const char *value);

#endif
