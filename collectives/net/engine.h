/* engine.h: carries out schedules over a transport, in the calling thread.
 *
 *     engine_start()      allocates all memory that the run needs; sends nothing
 *     engine_progress()   does what is possible without blocking
 *     engine_wait()       makes progress until the run is complete: spins for a while, then sleeps
 *
 * Each message travels as one frame whose header names the call, so that ranks detect that they
 * called different operations; a large message travels as one frame on each of several streams, and
 * in pieces: data is reduced while the kernel receives the next piece. One run at a time. */
#ifndef COLLECTIVES_NET_ENGINE_H
#define COLLECTIVES_NET_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/net/schedule.h"
#include "collectives/wire/transport.h"
#include "collectives/wire/wire.h"
#include "collectives/reduce/reduce.h"
#include "collectives/base/wait.h"
#include "core/err.h"

struct engine_run {
    const struct schedule *schedule; /* borrowed until the run ends */
    const void *in;
    void *out;
    const struct reduce_info *reduce; /* borrowed; NULL when the schedule reduces nothing */
    size_t elem;                      /* bytes of an element */
    struct frame frame; /* the header of every message; the engine fills in socket and len */
    const int *map;     /* the transport's rank of each rank of the schedule; NULL: the same */
};

enum { ENGINE_ASKED = 16 };

struct part;

/* A step in progress. */
struct engine_step {
    bool begun;
    size_t number, first; /* the step's number, and its first entry */
    struct part *parts;   /* the step's messages */
    size_t nparts, left;  /* parts, and the number of incomplete ones */
    uint8_t *pieces;
};

struct engine {
    struct transport *transport; /* borrowed */
    int rank;                    /* in the transport */
    struct wait_policy policy;

    /* Whether to give up. NULL: never. */
    bool (*stopped)(const void *arg);
    const void *stopped_arg;
    /* Whether the peer of that stream has exited without connecting. NULL: unknown. */
    bool (*lost)(const void *stopped_arg, int stream);
    /* Called when this rank has waited long for these n ranks (at most ENGINE_ASKED). May be
     * NULL. */
    void (*ask)(const void *stopped_arg, const int *ranks, int n);

    struct engine_run run;
    struct engine_step steps[2]; /* the current step, and possibly the one after it */
    bool moved;                  /* the last engine_progress() moved data */

    /* After a failure: the rank of the transport that caused the failure, and its frame
     * (-EBADMSG). */
    int culprit;
    struct frame theirs;

    int suspect;   /* the rank whose stream was lost at the last check; -1: none */
    int next_peek; /* the rank to peek at next, while waiting */
    size_t next_ask;

    /* Kept between runs. */
    struct part *parts;
    struct transport_want *wants;
    size_t cap_parts;
    uint8_t *tmp, *pieces;
    size_t cap_tmp, cap_pieces;
};

void engine_init(struct engine *en, struct transport *t, int rank, struct wait_policy policy);
void engine_fini(struct engine *en);

/* 0, or -ENOMEM: nothing was sent. */
int engine_start(struct engine *en, const struct engine_run *run, struct err *e);

/* 1: in progress. 0: complete. On failure `culprit` is the rank that caused it, or -1:
 *   -EPIPE      it has closed its connection or exited
 *   -EBADMSG    it is in another operation (`theirs`)
 *   another     from the transport, with a text */
int engine_progress(struct engine *en, struct err *e);

/* 0 or negative. Also:
 *   -ETIMEDOUT  mono_ns() reached deadline_ns (0: none) while waiting for the culprit
 *   -ECANCELED  stopped
 * After a while it also checks messages from ranks that it does not wait for: ranks in different
 * operations may wait for each other in a circle, where nobody sends the awaited message. And it
 * asks the ranks that it waits for. */
int engine_wait(struct engine *en, uint64_t deadline_ns, struct err *e);

#endif
