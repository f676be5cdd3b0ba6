/* dial.h: connecting to the daemons of many hosts at once. A name server may not answer, so each
 * host has a thread, which ends when it has connected or its time is over. */
#ifndef LAUNCHER_HOSTS_DIAL_H
#define LAUNCHER_HOSTS_DIAL_H

#include <stdbool.h>

#include "core/err.h"

struct dial {
    int results; /* to be watched for dial_next(); -1: not open */
    int threads; /* the threads' end of the pipe, never closed: a thread may still run */
};
#define DIAL_INIT                    \
    {                                \
        .results = -1, .threads = -1 \
    }

int dial_open(struct dial *d, struct err *e);
void dial_close(struct dial *d);

/* `peer` and `attempt` come back with the result. */
int dial_start(struct dial *d, unsigned peer, unsigned attempt, const char *host, int port,
               int timeout_ms, struct err *e);

struct dial_result {
    unsigned peer, attempt;
    int fd;    /* connected, non-blocking, the caller's; or -1 */
    int error; /* errno; 0: the name has no address */
    char why[128];
};
/* False: there is no further result yet. */
bool dial_next(struct dial *d, struct dial_result *out);

#endif
