/* thread_ranks.h: ranks of libdlcoll as threads of one process, so that a thread sanitizer sees all
 * that they share. They meet through a store of the test's.
 *
 *     static void rank(dlcoll_comm *comm, void *arg) { ... }
 *     thread_ranks_run(4, rank, NULL);
 *
 * A thread that fails says so with THREAD_EXPECT(), which ends the test's process. */
#ifndef TESTS_LIB_THREAD_RANKS_H
#define TESTS_LIB_THREAD_RANKS_H

#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "collectives/dlcoll.h"

typedef void thread_rank_fn(dlcoll_comm *comm, void *arg);

/* n ranks, each in dlcoll_init(), fn, dlcoll_finalize() unless it has failed, dlcoll_destroy(). */
void thread_ranks_run(int n, thread_rank_fn *fn, void *arg);
/* thread_ranks_run() with flags of dlcoll_init(). */
void thread_ranks_run_with(int n, thread_rank_fn *fn, void *arg, uint32_t flags);

#define THREAD_EXPECT(fact, ...)                            \
    do {                                                    \
        if (!(fact)) {                                      \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
            fprintf(stderr, #fact ": " __VA_ARGS__);        \
            fprintf(stderr, "\n");                          \
            _Exit(1);                                       \
        }                                                   \
    } while (0)

/* The last error's text; until this thread's next call. */
const char *thread_error(const dlcoll_comm *comm);

/* Expects that an operation on `comm` returns 0. */
#define THREAD_OK(call)                                                 \
    do {                                                                \
        int code_ = (call);                                             \
        THREAD_EXPECT(code_ == 0, "%d: %s", code_, thread_error(comm)); \
    } while (0)

/* A case, of 60 s, whose ranks share memory or talk over TCP. */
TCase *thread_ranks_case(Suite *s, bool shm);

/* Runs an operation that all ranks must enter, in which each adds its `rank`. */
int thread_sum_of_ranks(dlcoll_comm *comm, int rank);

#endif
