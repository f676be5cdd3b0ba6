/* event_file.h: --events FILE: the events of the job as lines of JSON, appended. */
#ifndef AGENT_REPORT_EVENT_FILE_H
#define AGENT_REPORT_EVENT_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "rendezvous/rules/event_log.h"

struct event_file;

/* Opens the file under the rule of core/named_file.h; a new one gets mode 0666 less the umask.
 */
int event_file_open(struct event_file **out, const char *path, struct err *e);

/* Appends at most `most` of the new events; returns how many. Does not wait: a thread writes them.
 * An error is reported once, and ends the writing. NULL is allowed. */
size_t event_file_write(struct event_file *f, const struct event_list *l, size_t most);
/* Whether there are further new events. */
bool event_file_is_behind(const struct event_file *f, const struct event_list *l);

/* Waits until all is written: for a reader that takes nothing a second, for a file server that does
 * not answer three, and no longer than most_ms, 0: as long as it takes. NULL is allowed. */
void event_file_close(struct event_file *f, int most_ms);

#endif
