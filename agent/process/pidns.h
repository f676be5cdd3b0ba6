/* pidns.h: the agent as the first process of a PID namespace: when it dies the kernel kills
 * everything in there, whatever became of guardian and sessions. */
#ifndef AGENT_PROCESS_PIDNS_H
#define AGENT_PROCESS_PIDNS_H

#include "core/err.h"

/* In the guardian: the next child will be the first of a new PID namespace; within a user
 * namespace of its own where we are not root. -EPERM and the like with a text. */
int pidns_prepare(struct err *e);

/* In that child: its own view of /proc, without which pids in there would mean other processes. */
int pidns_enter(struct err *e);

#endif
