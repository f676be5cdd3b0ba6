/* hostname_check.h: whether this host's own name leads other hosts astray.
 *
 * Gloo and TensorPipe tell their peers the address that the host's own name resolves to. Where that
 * is 127.0.1.1 (as Debian's installer has it) or none at all, workers on several hosts cannot
 * connect: such workers are told by GLOO_SOCKET_IFNAME and its like which interface to use.
 *
 * A thread of its own looks the name up while the nodes meet: a name server may take its time, and
 * nobody waits for it at the end. One thread: the loop's. */
#ifndef AGENT_HOSTNAME_CHECK_H
#define AGENT_HOSTNAME_CHECK_H

#include <stdbool.h>
#include <uv.h>

#include "rendezvous/rules/rank_table.h"

struct hostname_check;
struct job_spec;

/* Begins to look the name up when the job may be on several hosts and the user has left one of the
 * variables to us; else returns NULL, which all the functions below take for "nothing to say".
 * Borrows the job. on_settled comes once, when the answer is there or has been waited for long
 * enough, and not after hostname_check_close(). */
struct hostname_check *hostname_check_open(uv_loop_t *loop, const struct job_spec *job,
                                           void (*on_settled)(void *arg), void *arg);

/* Whether the answer is there. If not, it is waited for from now on for at most 2 seconds. */
bool hostname_check_settled(struct hostname_check *n);

/* The interface that workers of this node must be told, valid until the close; NULL: none need be,
 * for all nodes are on this host, or the name is right. Says in one line what it does, once. */
const char *hostname_check_interface(struct hostname_check *n, const struct rank_table *t,
                                     int group_rank);

void hostname_check_close(struct hostname_check *n);

#endif
