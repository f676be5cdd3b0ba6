/* head_output.h: what the hosts print, on the head's own standard output and error. The consoles
 * are those of the agent (agent/output/stdio_console.h), with their rules for slow and absent
 * readers. */
#ifndef LAUNCHER_HOSTS_HEAD_OUTPUT_H
#define LAUNCHER_HOSTS_HEAD_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/log.h"
#include "launcher/hosts/host_list.h"

struct head_output;

/* From here on dlaunch's own lines take their turn, too. all: every host's lines are shown. NULL:
 * no descriptor is left. */
struct head_output *head_output_new(const struct host *const hosts, size_t nhosts, bool all,
                                    struct err *e);

/* The set of epoll that the standard streams are in: libuv would make them non-blocking, and they
 * are shared with other processes. Readable: head_output_ready() is to be called, which serves the
 * consoles; true: so is what has this tag in the set. */
int head_output_fd(const struct head_output *w);
bool head_output_ready(struct head_output *w, const void *tag, uint64_t now_ns);

/* Output of the workers of a host. */
void head_output_put(struct head_output *w, size_t host, bool err, const void *text, size_t n);

/* A line of dlaunch there. Launchers say the same of what happens to the job: it is shown as often
 * as the host says it that says it most. */
void head_output_log(struct head_output *w, size_t host, enum log_level level, const char *line,
                     size_t n);

/* False: a reader is slow, and the hosts are to wait. */
bool head_output_takes(const struct head_output *w);

/* True, once for each stream (1 or 2): its reader is gone. */
bool head_output_lost_reader(struct head_output *w, int stream);

/* What is due by the time. */
void head_output_turn(struct head_output *w, uint64_t now_ns);
int head_output_timeout(const struct head_output *w, uint64_t now_ns); /* -1: none */

/* No reader is waited for any more. */
void head_output_hurry(struct head_output *w);

/* The report of the job, behind all else. */
void head_output_report(struct head_output *w, const char *text, size_t n);

/* Writes what is kept, until a reader has taken nothing for so many seconds (-1: no limit), or
 * until end_ns (0: no limit), and frees everything. */
void head_output_finish(struct head_output *w, double patience, uint64_t end_ns);

#endif
