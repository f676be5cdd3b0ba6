/* engine.h: carries out schedules over a transport, in the calling thread.
 *
 *     engine_start()      checks nothing, sends nothing; takes all memory that the run needs
 *     engine_progress()   does what can be done without blocking
 *     engine_wait()       progress until it is complete: looks again for a while, then sleeps
 *
 * Each message travels as one frame whose header names the call, so that ranks that called
 * different operations find out; a large one as one frame on each of several lanes. Large messages
 * move in pieces: what has arrived is reduced while the kernel receives the next piece. One run at
 * a time. */
#ifndef COLLECTIVES_NET_ENGINE_H
#define COLLECTIVES_NET_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/net/schedule.h"
#include "collectives/net/transport.h"
#include "collectives/net/wire.h"
#include "collectives/reduce/reduce.h"
#include "collectives/api/wait.h"
#include "core/err.h"

struct engine_run {
    const struct schedule *schedule; /* borrowed to the end of the run */
    const void *in;
    void *out;
    const struct reduce_info *reduce; /* borrowed; NULL when the schedule reduces nothing */
    size_t elem;                      /* bytes of an element */
    struct frame frame;               /* of every message; lane and len are filled in */
    const int *map; /* the transport's rank of each of the schedule's; NULL: same */
};

enum { ENGINE_ASKED = 16 };

struct part;

/* A round under way. */
struct engine_round {
    bool begun;
    size_t number, first; /* of its steps */
    struct part *parts;   /* its messages, as they travel */
    size_t nparts, left;  /* how many are not complete */
    uint8_t *pieces;
};

struct engine {
    struct transport *transport; /* borrowed */
    int rank;                    /* in the transport */
    struct wait_policy policy;

    /* Whether to give up. NULL: never. */
    bool (*stopped)(const void *arg);
    const void *stopped_arg;
    /* Whether nobody will ever come for that stream, which is not connected. NULL: not known. */
    bool (*lost)(const void *stopped_arg, int stream);
    /* These n ranks (ENGINE_ASKED at most) have been waited for in vain for long. NULL: so what. */
    void (*ask)(const void *stopped_arg, const int *ranks, int n);

    struct engine_run run;
    struct engine_round rounds[2]; /* the one to complete next, and perhaps the one after it */
    bool moved;                    /* the last engine_progress() got something done */

    /* After a failure: who was the matter (the transport's number), and what its frame said
     * (-EBADMSG). */
    int culprit;
    struct frame theirs;

    int suspect;   /* whose stream was lost when last looked; -1: nobody's */
    int next_peek; /* the rank to look at next, while waiting */
    size_t next_ask;

    /* Kept from run to run. */
    struct part *parts;
    struct transport_want *wants;
    size_t cap_parts;
    uint8_t *tmp, *pieces;
    size_t cap_tmp, cap_pieces;
};

void engine_init(struct engine *en, struct transport *t, int rank, struct wait_policy policy);
void engine_fini(struct engine *en);

/* 0, or -ENOMEM: nothing has been sent and nothing is under way. */
int engine_start(struct engine *en, const struct engine_run *run, struct err *e);

/* 1: in progress. 0: complete. On failure `culprit` is the rank that was the matter, or -1:
 *   -EPIPE      it has closed its connection, or is gone
 *   -EBADMSG    it is in another operation (`theirs`)
 *   another     as the transport says, with a text */
int engine_progress(struct engine *en, struct err *e);

/* 0 or negative. Also:
 *   -ETIMEDOUT  mono_ns() reached deadline_ns (0: none) while waiting for the culprit
 *   -ECANCELED  stopped
 * When it has waited for a while, it looks also at what has come from ranks that it does not wait
 * for: ranks in different operations may wait for each other in a circle, where no message that one
 * of them expects is ever sent. And it asks those for whom it waits. */
int engine_wait(struct engine *en, uint64_t deadline_ns, struct err *e);

#endif
