/* match.h: what two nodes find out about the path between them: whether each can connect to the
 * other's port, the latency and the bandwidth. Blocking, with a deadline: for a thread of its own.
 *
 * One node calls, the other one serves. The caller says what is measured; then the server dials
 * back. Strangers at the port lack the nonce and are hung up on. */
#ifndef AGENT_DOCTOR_MATCH_H
#define AGENT_DOCTOR_MATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/netaddr.h"

#define MATCH_CALL_MS 700  /* for a connection to be made */
#define MATCH_MS      2500 /* for all of it */

enum match_stage { MATCH_CONNECT, MATCH_HELLO, MATCH_PING, MATCH_BULK, MATCH_OVER };

struct match {
    struct netaddr peer; /* where it listens */
    int listen_fd;       /* where this node does; non-blocking */
    uint64_t nonce;      /* of this match */
    bool caller;
    bool patient; /* the caller measures the bandwidth longer: others may use the CPUs meanwhile */

    /* How far this node's own connection came, and the errno value that ended it. */
    enum match_stage stage;
    int error;
    double rtt_us;          /* the caller's: the shortest of some; 0: not known */
    double out_bps, in_bps; /* the caller's: bytes per second, from it and to it */
};

void match_run(struct match *m);

/* The partner of node `me` among n nodes in this round; -1: the node pauses. In n - 1 rounds (n, if
 * n is odd) each node meets each other one once. */
int match_partner(int n, int round, int me);
int match_rounds(int n);

#endif
