/* top.h: dlaunchctl top: what the nodes and their workers do and use now. */
#ifndef AGENT_REPORT_TOP_H
#define AGENT_REPORT_TOP_H

#include <jansson.h>

#include "agent/base/feature.h"

extern const struct feature top_feature;

/* Asks all nodes what they and their workers do and use, for at most `most` rows of nodes and of
 * ranks (top_rows_cut(); 0: all). on_done is called once, from the loop, and takes {"now_s" (when
 * they were asked), "state", "elapsed_s", "restarts", "nnodes", "complete" (all have answered)} and
 * what top_rows_json() adds; NULL: the job has ended. */
void top_of_job(void *state, size_t most, void (*on_done)(void *arg, json_t *top), void *arg);

#endif
