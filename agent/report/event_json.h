/* event_json.h: an event as a line of JSON, in the form of Flux's RFC 18:
 *
 *     {"timestamp":1764032477.104233,"name":"worker.start","context":{"attempt":0,"node":1,...}}
 *
 * The keys of a context are those that report and status use for the same things; event.c has which
 * name has which. Times in seconds end in _s, sizes in bytes in _bytes. `mono_s` is the time by the
 * coordinator's monotonic clock. */
#ifndef AGENT_REPORT_EVENT_JSON_H
#define AGENT_REPORT_EVENT_JSON_H

#include "rendezvous/rules/event.h"

#define EVENT_SCHEMA 1

/* Returns the line with its newline; malloc'ed. NULL: no memory. */
char *event_json(const struct event *e);

#endif
