/* rendezvous_file.h: the file by which ranks find rank 0's store ("file:///path").
 *
 * Rank 0 writes it, whole or not at all, and removes it when all have met. What an earlier job has
 * left there is told apart by a number that only the store of the living job knows. */
#ifndef COLLECTIVES_BOOTSTRAP_RENDEZVOUS_FILE_H
#define COLLECTIVES_BOOTSTRAP_RENDEZVOUS_FILE_H

#include <stdint.h>

#include "core/err.h"
#include "core/netaddr.h"

enum { MEETING_ADDRS = 8 };

struct meeting_place {
    uint64_t host_id; /* of rank 0's kernel and network */
    uint64_t nonce;
    int pid, port;
    char host[64]; /* for people */
    int naddrs;
    char addrs[MEETING_ADDRS][ADDR_STRLEN];
};

/* Rank 0, whose store is served at the port: lays the nonce down there and writes the file. */
int rendezvous_file_write(const char *path, const char *prefix, const struct meeting_place *p,
                          int timeout_ms, struct err *e);
void rendezvous_file_remove(const char *path);

/* Another rank: waits until the file leads to a store that knows its number. -ETIMEDOUT says what
 * lies there instead; -EINVAL: no regular file. */
int rendezvous_file_find(const char *path, const char *prefix, uint64_t host_id,
                         uint64_t deadline_ns, char host[HOST_MAX], int *port, struct err *e);

#endif
