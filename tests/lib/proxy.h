/* proxy.h: a bad network on loopback: connections to it go on to another port, slowed, cut or
 * damaged as its rules say at that moment. A process of its own, which ends with the test's. */
#ifndef TESTS_LIB_PROXY_H
#define TESTS_LIB_PROXY_H

#include <stdatomic.h>
#include <sys/types.h>

struct proxy_rules {
    atomic_int delay_ms, jitter_ms; /* of every piece of up to 64 KiB, plus or minus the jitter */
    atomic_int resets;              /* so many connections yet are reset ... */
    atomic_int reset_after;         /* ... when so many bytes have come from the client */
    atomic_int flip_at;     /* of each connection, the byte of the server's that is changed; -1 */
    atomic_int connections; /* so far */
};

struct proxy {
    pid_t pid;
    int port; /* on 127.0.0.1 */
    struct proxy_rules *rules;
};

void proxy_start(struct proxy *p, int to_port);
void proxy_stop(struct proxy *p);

#endif
