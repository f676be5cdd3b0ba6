/* sockets.h: what flows through the TCP sockets of a node's workers, as the kernel counts it
 * (sock_diag): a sign of life of workers whose operations are not recorded. */
#ifndef AGENT_STACKS_SOCKETS_H
#define AGENT_STACKS_SOCKETS_H

#include <stdint.h>

#define SOCKETS_MS 100 /* the kernel is asked no more often */

struct sockets;

struct sockets_traffic {
    uint64_t bytes; /* sent and acknowledged, and received, by all sockets that it has now */
    uint64_t at_ns; /* when the last byte was sent or received; 0: none */
    uint64_t sent;  /* the bytes that the worker has sent */
    uint64_t sent_ns;
};

struct sockets *sockets_new(int nproc);

/* The traffic of worker `local_rank`, which is process `pid`. Connections with `store_port` do not
 * count: libraries use the store now and then, whatever the program does. Zeros if the kernel
 * cannot tell.
 */
struct sockets_traffic sockets_traffic(struct sockets *s, int local_rank, int pid, int store_port,
                                       uint64_t now_ns);

void sockets_free(struct sockets *s); /* NULL is allowed */

#endif
