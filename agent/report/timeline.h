/* timeline.h: a job as a trace in Chrome's format, for Perfetto and chrome://tracing: rounds,
 * rendezvous and restarts, the states of the launchers, the workers, and their operations. Process
 * and thread of a span are node and rank; the job and the launchers have numbers of their own. */
#ifndef AGENT_REPORT_TIMELINE_H
#define AGENT_REPORT_TIMELINE_H

#include <jansson.h>

/* events: objects as event_json() makes them, in the job's order. operations: as
 * operations_json(); NULL: none. Times are those of the coordinator's clock; 0 is the first event.
 */
json_t *timeline_json(const json_t *events, const json_t *operations);

#endif
