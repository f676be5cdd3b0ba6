/* file_time.h: when a file was changed last. Its server may not answer, so a thread of its own
 * asks, and the answer is waited for briefly. */
#ifndef AGENT_BASE_FILE_TIME_H
#define AGENT_BASE_FILE_TIME_H

#include <stdbool.h>
#include <stdint.h>

struct file_time;

/* Copies the path. */
struct file_time *file_time_new(const char *path);

/* Nanoseconds since 1970; waits up to FILE_TIME_MS. False: there is no such file, or its server has
 * not answered; while it does not, it is not waited for again. */
#define FILE_TIME_MS 100
bool file_time_get(struct file_time *f, uint64_t *wall_ns);

void file_time_free(struct file_time *f); /* NULL is allowed */

#endif
