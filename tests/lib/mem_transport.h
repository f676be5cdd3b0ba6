/* mem_transport.h: a transport between ranks of one process and one thread, for proofs without a
 * network: a bounded pipe each way between every two ranks. Bytes move in pieces of random size, so
 * that whoever relies on a message coming whole, or on a deep buffer, is found out. */
#ifndef TESTS_LIB_MEM_TRANSPORT_H
#define TESTS_LIB_MEM_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "collectives/wire/transport.h"

struct mem_net;

/* n ranks; a pipe holds at most `capacity` bytes; `seed` for the sizes of the pieces. */
struct mem_net *mem_net_new(int n, size_t capacity, unsigned seed);
void mem_net_free(struct mem_net *net);

/* The end of one rank; lives as long as the net. */
struct transport *mem_net_end(struct mem_net *net, int rank);

/* True if no byte is under way. */
bool mem_net_is_empty(const struct mem_net *net);

/* Ends the rank's pipes for the other ranks, after the bytes that they hold. */
void mem_net_close(struct mem_net *net, int rank);

#endif
