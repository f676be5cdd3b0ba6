/* hostname_check.h: detects that this host's own name leads other hosts to a wrong address.
 *
 * Gloo and TensorPipe tell their peers the address to which the host's own name resolves. If that
 * is 127.0.1.1 (as Debian's installer sets it), or if the name does not resolve, workers on several
 * hosts cannot connect. Such workers get the interface to use by GLOO_SOCKET_IFNAME and similar
 * variables.
 *
 * A thread looks the name up while the nodes meet, because a name server may be slow; dlaunch does
 * not wait for this thread when it exits. The functions below are for the loop's thread. */
#ifndef AGENT_HOSTNAME_CHECK_H
#define AGENT_HOSTNAME_CHECK_H

#include <stdbool.h>
#include <uv.h>

#include "rendezvous/rules/rank_table.h"

struct hostname_check;
struct job_spec;

/* Begins to look the name up if the job may run on several hosts and the user has not set these
 * variables; else returns NULL, which all functions below accept. Borrows the job. on_settled is
 * called once, when the answer is there or the wait for it has ended, and never after
 * hostname_check_close(). */
struct hostname_check *hostname_check_open(uv_loop_t *loop, const struct job_spec *job,
                                           void (*on_settled)(void *arg), void *arg);

/* Whether the answer is there. If not, the wait for it ends 2 seconds after this call. */
bool hostname_check_settled(struct hostname_check *n);

/* The interface that workers of this node must use, valid until the close; NULL if they need none,
 * because all nodes are on this host or the name is right. Logs its choice in one line, once. */
const char *hostname_check_interface(struct hostname_check *n, const struct rank_table *t,
                                     int group_rank);

void hostname_check_close(struct hostname_check *n);

#endif
