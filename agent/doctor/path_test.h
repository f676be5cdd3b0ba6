/* path_test.h: what two nodes find out about the path between them: whether each can connect to the
 * other's port, the latency and the bandwidth. Blocking, with a deadline: for a thread of its own.
 *
 * One node calls, the other one serves. The caller says what is measured; then the server dials
 * back. Strangers at the port lack the nonce and are hung up on. */
#ifndef AGENT_DOCTOR_PATH_TEST_H
#define AGENT_DOCTOR_PATH_TEST_H

#include <stdbool.h>
#include <stdint.h>

#include "core/netaddr.h"

#define PATH_TEST_CALL_MS 700  /* for a connection to be made */
#define PATH_TEST_MS      2500 /* for all of it */

enum path_test_stage {
    PATH_TEST_CONNECT,
    PATH_TEST_HELLO,
    PATH_TEST_PING,
    PATH_TEST_BULK,
    PATH_TEST_OVER
};

struct path_test {
    struct netaddr peer; /* where the other node listens */
    int listen_fd;       /* where this node listens; non-blocking */
    uint64_t nonce;      /* of this test */
    bool caller;
    bool longer; /* the caller measures the bandwidth longer: others may use the CPUs meanwhile */

    /* The stage that this node's own connection reached, and the errno value that ended the
     * connection. */
    enum path_test_stage stage;
    int error;
    double rtt_us;          /* the caller's: the shortest of some; 0: not known */
    double out_bps, in_bps; /* bytes per second, from the caller and to the caller */
};

void path_test_run(struct path_test *m);

/* The partner of node `me` among n nodes in this round; -1: the node pauses. In n - 1 rounds (n, if
 * n is odd) each node meets each other one once. */
int path_test_partner(int n, int round, int me);
int path_test_rounds(int n);

#endif
