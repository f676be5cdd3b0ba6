/* settings.h: what must be set alike on all ranks, because it decides who sends what to whom, as 64
 * bits that ranks compare when they connect. 0: all of it has its default. */
#ifndef COLLECTIVES_BOOTSTRAP_SETTINGS_H
#define COLLECTIVES_BOOTSTRAP_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct settings {
    int sockets;        /* DLCOLL_SOCKETS */
    int nccl_roots;     /* DLCOLL_NCCL_ROOTS; 0: as NCCL thinks best */
    bool shared_memory; /* DLCOLL_SHM */
    bool lacks_memory;  /* the launcher's segment has no room for what ranks share */
    uint64_t rules;     /* a digest of DLCOLL_ALGO and the file DLCOLL_TUNE_FILE; 0: no rules */
};

uint64_t settings_pack(const struct settings *s);

/* "DLCOLL_SOCKETS is 4 there and 1 here": which of them differ; "" if they are the same. Returns
 * out. */
const char *settings_differ(uint64_t theirs, uint64_t ours, char *out, size_t cap);

#endif
