/* cross.h: the operations of dlcoll.h crossed with everything that they depend on:
 *
 *     operation    every one that has data, the _v forms, coalesced ones and batches among them
 *     type         all 15
 *     reduction    all that the type has; a premultiplied sum, a user's, and an ordered one
 *     place        in place, out of place
 *     count        0, 1, 3, 15, 17; one less and one more than, and exactly, what the library cuts
 *                  data into; a large one
 *     alignment    of neither buffer, of one, of both
 *     root         each rank; displacements: none, or parts in reverse and apart
 *     way          every algorithm between hosts, every way through memory, by leaders or in lanes
 *
 * A rank checks its result, that its input is as it was, and that no byte around either has changed
 * (cross_values.h has the data); and that what it has forced is what has run.
 *
 * CROSS=full in the environment: the product of all these, but that the root is another one each
 * time, and that of counts which take long, from the pieces' on, some are tried with each of the
 * rest. Else, as `make test` has it: each operation, type, reduction, place and way with each other
 * in some worlds, and the rest in turn, each of one sort with each of every other. */
#ifndef TESTS_LIB_CROSS_H
#define TESTS_LIB_CROSS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/base/op_signature.h"
#include "collectives/dlcoll.h"
#include "collectives/net/algo.h"
#include "collectives/shm/tuning.h"
#include "tests/lib/cross_values.h"

struct Suite;

enum cross_transport { CROSS_TCP, CROSS_SHM, CROSS_HIER };

enum {
    CROSS_WAYS = 16,
    CROSS_SMALL = 5,                             /* counts: these, */
    CROSS_EDGES = 6,                             /* counts around the ends of pieces, */
    CROSS_COUNTS = CROSS_SMALL + CROSS_EDGES + 1 /* and a large one */
};

/* The way in which operations are carried out. */
struct cross_way {
    enum cross_transport transport;
    int index;                 /* among those of the transport */
    int algo;                  /* between hosts: number so much of each kind; -1: as the library
                                  chooses */
    bool lanes;                /* hierarchy: as for much data; else by leaders */
    bool shared;               /* buffers are of dlcoll_mem_alloc() */
    bool mixed;                /* cross_way_mixed(); ranks differ in their alignment, too */
    bool as_it_is;             /* memory: as the library chooses */
    struct shm_tuning memory;  /* how much goes in which way */
    size_t edges[CROSS_EDGES]; /* bytes; with CROSS_EACH: so many times the ranks */
};

#define CROSS_EACH ((size_t)1 << 40)

/* The k-th of a transport, into *way. False: there are no more. */
bool cross_way(struct cross_way *way, enum cross_transport transport, int k);
/* A further way through memory, for cross_again(): each rank decides which of its buffers are
 * shared, so that a way is tried, and left. */
void cross_way_mixed(struct cross_way *way);
/* Sets the environment and the tuning for worlds made from now on. */
void cross_way_set(const struct cross_way *way);
/* True if an algorithm can be forced for that kind. */
bool cross_way_has(const struct cross_way *way, enum call_kind kind);

struct cross_case {
    enum call_kind kind;
    int op;
    int count_class;
    size_t count;
    bool in_place;
    int shift; /* 0: neither buffer is off its alignment by a byte; 1: both; 2: send; 3: recv */
    int root;
};

struct cross_buffer {
    uint8_t *p;
    size_t room;
};

/* The state of one rank. */
struct cross {
    dlcoll_comm *comm;
    int n, me;
    const struct cross_way *way;
    bool full;
    int turn;      /* which part of everything this world does, when it does a part */
    uint64_t done; /* operations; so much are tables shifted, as no two in a row may look alike */
    struct cross_values v;
    dlcoll_op op;
    struct cross_buffer buffers[2]; /* send, recv */
};

/* Tries all combinations in this world. */
void cross_run(dlcoll_comm *comm, const struct cross_way *way);
/* Each kind so many times in a row, so that ranks get as far ahead of each other as they can;
 * types, reductions, counts, places and roots are drawn. */
void cross_again(dlcoll_comm *comm, const struct cross_way *way, int times);
bool cross_is_full(void);
/* True if worlds of this size are to be tried: CROSS_SIZE=n selects one size. */
bool cross_has_size(int n);
/* Reductions of floats, which round: the same bits on every rank, wherever the buffers lie, and in
 * every world of a test that has as many ranks on as many nodes. Their data is made before ranks
 * start. (cross_bits.c) */
void cross_bits_make(void);
void cross_bits(dlcoll_comm *comm, const struct cross_way *way);

/* Runs one operation with the reduction and type of x->v. (cross_ops.c) */
void cross_do(struct cross *x, const struct cross_case *c);
/* The number of bytes of a buffer that the case may need. */
size_t cross_need(const struct cross *x, const struct cross_case *c);
bool cross_kind_places(enum call_kind kind); /* whether the operation can be in place */

void cross_complain(const struct cross *x, const struct cross_case *c, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), noreturn));

/* Fails the test unless the forced algorithm has run, where it is allowed. (cross_algo.c) */
void cross_check_algo(const struct cross *x, const struct cross_case *c);
/* An algorithm of the network's that runs this kind, when number `k` is forced; NULL: none has that
 * number. */
const struct algo *cross_algo(enum call_kind kind, int k);

/* Opens the record of covered combinations, in memory that forked processes share; called first.
 * (cross_seen.c) */
void cross_seen_init(void);
/* forced: the way's own algorithm was free to run. */
void cross_see(const struct cross *x, const struct cross_case *c, bool forced);
void cross_count(enum call_kind kind, const char *layer, const char *algo);
/* Fails the test unless every combination that can occur was covered, in worlds of at least
 * sizes_from ranks. */
void cross_seen_check(enum cross_transport transport, int sizes_from);
/* Runs the suite; with CROSS in the environment, says how many operations have been checked. */
int cross_main(struct Suite *s, const char *transport);
/* All ranks must find the same value for `what`: the first caller sets it. False: the values
 * differ. */
bool cross_same(uint64_t what, uint64_t value);

#endif
