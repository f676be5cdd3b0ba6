/* json_text.h: text of workers, users and peers as JSON. */
#ifndef AGENT_REPORT_JSON_TEXT_H
#define AGENT_REPORT_JSON_TEXT_H

#include <jansson.h>
#include <stdint.h>

/* Text as it is, when it is UTF-8; else with what is none, and controls, shown as \xNN. */
json_t *json_of_text(const char *text);

/* "2024-05-01T12:00:00.123Z"; null for 0. */
json_t *json_of_time(uint64_t wall_ns);

#endif
