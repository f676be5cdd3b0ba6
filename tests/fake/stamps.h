/* stamps.h: what a worker writes down of its own life; tests/trials/net_trials.py reads it too. */
#ifndef TESTS_FAKE_STAMPS_H
#define TESTS_FAKE_STAMPS_H

#include <stdint.h>

struct stamp {
    uint64_t start_ns, last_ns; /* CLOCK_MONOTONIC; start_ns 0: not yet written */
    int32_t rank, world_size, restart_count, master_port;
    char host[16];
};

#endif
