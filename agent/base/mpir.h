/* mpir.h: the table of a job's processes that debuggers know as MPIR: they attach to the process
 * that the user has started, the guardian, and read there which processes they have to attach to.
 *
 * The agent fills the table in memory that it shares with the guardian, and wakes the guardian,
 * which sets MPIR's variables and calls MPIR_Breakpoint(). Nothing of this happens unless it is
 * wanted. */
#ifndef AGENT_BASE_MPIR_H
#define AGENT_BASE_MPIR_H

#include <stdbool.h>
#include <stdint.h>

struct event_list;

/* Makes the table, before the guardian forks, if `wanted` is set or a debugger has started this
 * process. */
void mpir_init(bool wanted, const char *executable);
bool mpir_is_wanted(void);

/* Called in the agent: takes the events from number *at on. True: the guardian has something to
 * show. */
bool mpir_take_events(const struct event_list *events, uint64_t *at);

/* Called in the guardian: shows new processes to the debugger. */
void mpir_show(void);

#endif
