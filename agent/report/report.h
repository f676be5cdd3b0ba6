/* report.h: the report on one screen: what failed first, and what a person can do about it. */
#ifndef AGENT_REPORT_REPORT_H
#define AGENT_REPORT_REPORT_H

#include <stdio.h>

#include "agent/report/report_input.h"

/* Writes the text to `out`, beginning with an empty line; with colour if `color`. Text is broken
 * between words to fit `columns`; 0: not at all.
 * Prints nothing after success, unless processes are left over or there is a ledger. Escapes
 * control characters in what workers and peers wrote. */
void report_print(FILE *out, const struct report_input *in, int color, int columns);
/* Returns the text for the place to which the report goes, malloc'ed. NULL: there is no memory, or
 * the text has been written to job->report_fd. */
char *report_make_text(const struct report_input *in);

/* Writes the report as JSON to the file job->report_path, which is replaced atomically; also after
 * success. The file gets mode 0666 less the umask, as any output file that a user names; one that
 * exists keeps its mode (give it 0600 when stderr may hold secrets). One object:
 *
 *     schema          1; a change that old readers would misread raises it, added keys do not
 *     launcher        "dlaunch", and version: its version
 *     name, run_id    the program as the user gave it; --rdzv_id
 *     host, node      of the launcher that wrote this: its name and group rank
 *     nnodes, world_size
 *     outcome         "succeeded", "failed", "stopped" (by a signal or on request)
 *     exit_code       of the job; the launcher's own may differ (torchrun)
 *     reason          null after success, else "failure", "node_lost", "membership", "signal",
 *                     "timeout", "request", "coordinator_lost", "rendezvous", "internal",
 *                     "time_limit"
 *     text            one line on it, "" after success
 *     restarts, max_restarts
 *     started, ended  of this launcher, "2024-05-01T12:00:00.123Z"
 *     elapsed_s       seconds, a number
 *     log_dir         the run directory, or null
 *     leftover        processes that could not be ended, one line, or null
 *     lost_output     the first text about output that could not be written, or null
 *     slow            the ranks that were last found to be slow (--slow_ranks), one line, or null
 *     operations      what this node's workers were in when a collective operation timed out, met
 *                     another one, or had been under way for long, and what before that: lines, or
 *                     null
 *     stacks          of the workers before --timeout or SIGQUIT stopped them, lines, or null
 *     first_failure   the first of `failures` when it is a cause, or null
 *     failures        of the last round, the first cause leading; each:
 *         kind        "exit", "signal", "exec", "stopped" (by dlaunch), "node"
 *         rank, local_rank    null for "node"
 *         node, host, role, pid
 *         program     in a job of several programs, the one that the rank ran; else absent
 *         attempt     the restart count when it happened
 *         exit_code   null when a signal ended it
 *         signal, signal_name null when none did
 *         core_dumped, oom    booleans
 *         cause       its class, as dlaunchctl causes lists them; null for "stopped"
 *         caused_by   the rank whose death it was a consequence of, or null
 *         mismatch    whether the ranks called different operations of libdlcoll
 *         operation   the last operation of libdlcoll that it began, or the one that it waited
 *                     in, or its last one, as a dump of PyTorch's flight recorder says, or null
 *         time        "2024-05-01T12:00:00.123Z"
 *         message     of its error file, or why it could not be started; "" none
 *         log_path    its stderr file, or null
 *         stderr_tail its last lines
 *     ledger      where the time of all nodes went, or null (--ledger): nodes, total_s, and the
 *                 parts of it, seconds: rendezvous_s, start_s, first_operation_s, running_s,
 *                 waiting_s, lost_s, restart_s, end_s
 *     failures_omitted    how many more there were
 *     attempts        every start of the workers, the oldest first; each:
 *         attempt, round      the restart count, and the number of the round
 *         started, ended, elapsed_s   on this node
 *         nnodes, world_size
 *         ranks       of this node, "0-3"
 *         cause       why it ended: a class, or null: all workers exited with 0
 *         text        one line on it
 *         first_failure   as in `failures`, or null; with its message and last lines if it was on
 *                         this node
 *         log_dir     of this node's workers, or null
 *     attempts_omitted    how many older ones there were
 *
 * Text is UTF-8; bytes that are none are shown as \xNN. */
int report_write_json(const struct report_input *in, struct err *e);

#endif
