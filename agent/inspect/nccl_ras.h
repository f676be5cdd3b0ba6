/* nccl_ras.h: what NCCL's RAS service (2.28.7 and later) says of the ranks of its communicators:
 * how many operations each has launched. Any process of the job that serves it on this host knows
 * those of all hosts. One that has launched fewer than others of its communicator is waited for. */
#ifndef AGENT_INSPECT_NCCL_RAS_H
#define AGENT_INSPECT_NCCL_RAS_H

#include <stdbool.h>
#include <stddef.h>

#include "agent/inspect/sample.h"

#define NCCL_RAS_MS   150 /* for the whole answer */
#define NCCL_RAS_PORT 28028

/* Processes of this host in communicators whose ranks have launched different numbers of
 * operations. */
struct nccl_ras {
    struct nccl_ras_rank {
        int pid;
        struct sample_op op; /* open: the process has launched an operation that others have not */
    } * ranks;
    size_t n;
};

/* Asks the service at an address as in NCCL_RAS_ADDR; NULL: at the usual one. Nothing is known if
 * it does not answer in time. */
void nccl_ras_ask(struct nccl_ras *r, const char *address);
/* Reads the service's answer. False: malformed; nothing is known then. */
bool nccl_ras_parse(struct nccl_ras *r, const char *json, size_t len);
/* NULL: nothing is known of the process. */
const struct sample_op *nccl_ras_of(const struct nccl_ras *r, int pid);
void nccl_ras_fini(struct nccl_ras *r);

/* Whether the process has loaded NCCL. */
bool nccl_ras_concerns(int pid);

#endif
