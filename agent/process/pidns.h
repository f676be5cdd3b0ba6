/* pidns.h: the agent as the first process of a PID namespace: when it dies, the kernel kills every
 * process in the namespace. */
#ifndef AGENT_PROCESS_PIDNS_H
#define AGENT_PROCESS_PIDNS_H

#include "core/err.h"

/* For the guardian: makes the next child the first process of a new PID namespace, in a new user
 * namespace unless this process is root. A negative errno with a text on failure. */
int pidns_prepare(struct err *e);

/* For that child: mounts a /proc of the namespace, because the old /proc shows other pids. */
int pidns_enter(struct err *e);

#endif
