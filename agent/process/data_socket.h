/* data_socket.h: the listening socket at which the other ranks reach a worker, made before the
 * worker is. */
#ifndef AGENT_PROCESS_DATA_SOCKET_H
#define AGENT_PROCESS_DATA_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

/* Listens on loopback, or on every address of this host, at a free port, and sets *port. Returns
 * the descriptor, which is the caller's, or -errnum with a text that names the local rank. */
int data_socket_listen(int local_rank, bool loopback, uint16_t *port, struct err *e);

#endif
