/* events.h: what happens on this node, as events: the states of the agent, and the starts, first
 * signs and ends of its workers. --events FILE: the events of the job as they come. */
#ifndef AGENT_REPORT_EVENTS_H
#define AGENT_REPORT_EVENTS_H

#include "agent/base/feature.h"

extern const struct feature events_feature;

/* The events of the job, as far as they are known here; asks the other nodes for theirs. Valid for
 * the agent's life. */
const struct event_list *events_want(void *state);

/* This process ends at once, and its loop does not run any more: writes what is known here to the
 * file of --events, within three seconds. */
void events_last_words(void *state);

#endif
