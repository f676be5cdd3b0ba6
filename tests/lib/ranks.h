/* ranks.h: forked ranks of libdlcoll, under a launcher that the test plays: it makes the segments
 * and the listening sockets, and fills in the abort record. Or under none.
 *
 *     static void rank(struct ranks *j, int rank) { ... EXPECT(...) ... }
 *     ranks_run(4, 2, rank);      4 ranks on 2 nodes; 0 nodes: without a launcher
 *
 * A rank is a child of the test's process: it may not use Check's assertions, but EXPECT(). */
#ifndef TESTS_LIB_RANKS_H
#define TESTS_LIB_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "collectives/dlcoll.h"
#include "core/segment.h"

enum { RANKS_MOST = 16 };

/* Memory shared by the ranks and the test. */
struct ranks_shared {
    _Atomic int ready; /* ranks that have come to the point that the test waits for */
    _Atomic int go;    /* the test has let them go on */
    struct {
        _Atomic uint64_t returned_ns;
        int code;
        dlcoll_error error;
    } rank[RANKS_MOST];
};

struct ranks {
    int n, nnodes;
    struct ranks_shared *shared;
    int segment_fd[RANKS_MOST];
    struct segment_header *segment[RANKS_MOST]; /* by node */
    int listener[RANKS_MOST];
    uint16_t port[RANKS_MOST];
    pid_t pid[RANKS_MOST];
    int status[RANKS_MOST];
    bool ended[RANKS_MOST];
};

typedef void rank_fn(struct ranks *j, int rank);

void ranks_init(struct ranks *j, int n, int nnodes);
void ranks_start(struct ranks *j, rank_fn *fn);
/* Waits for all ranks; those in `but` (a bit each) may have ended in any way, the others with 0. */
void ranks_wait(struct ranks *j, double seconds, unsigned but);
void ranks_fini(struct ranks *j);
/* Makes, starts and waits for ranks, within `seconds`; ranks_run() within 30. */
void ranks_run_for(int n, int nnodes, rank_fn *fn, double seconds);
void ranks_run(int n, int nnodes, rank_fn *fn);

/* Makes this process the rank: what the launcher leaves in a worker's environment. */
void ranks_become(struct ranks *j, int rank);
/* The rank's line in its node's segment. */
struct segment_local *ranks_line(const struct ranks *j, int rank);
void ranks_reap(struct ranks *j, int rank);       /* one that has been killed */
void ranks_play_agent(struct ranks *j, int rank); /* the agents have seen that one die */

/* The agent has seen that one, which has been reaped, end with status 0. */
void ranks_tell_exit(struct ranks *j, int rank);

/* A fact for wait_until() in the test: every rank is ready. */
bool ranks_are_ready(void *ranks);
/* Called in a rank. */
void ranks_say_ready(struct ranks *j);
void ranks_await_ready(struct ranks *j); /* until all have */
void ranks_await_go(struct ranks *j);    /* until the test has set shared->go */
void ranks_keep_result(struct ranks *j, int rank, const dlcoll_comm *comm, int code);

/* A rank that sees something wrong says so and exits with 1. */
#define EXPECT(fact, ...)                                     \
    do {                                                      \
        if (!(fact))                                          \
            ranks_complain(__LINE__, #fact, " " __VA_ARGS__); \
    } while (0)
void ranks_complain(int line, const char *fact, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), noreturn));

dlcoll_comm *comm_start(void); /* dlcoll_init(), which must succeed */
void comm_end(dlcoll_comm *comm);
const char *why(const dlcoll_comm *comm); /* the last error's text */

void set_env_int(const char *name, int v);
/* Fails the test unless dlcoll_init() fails with the code and a message that contains `text`. */
void expect_init(int code, const char *text);
/* A port that stays ours, while nobody listens on it, until the descriptor is closed. */
int reserve_port(uint16_t *port);

#endif
