/* schedule.h: the steps of one rank in one collective operation, as an algorithm has written them.
 * A schedule names buffers and offsets, not addresses; the engine carries it out over a transport.
 *
 * A schedule is a list of rounds. The steps of a round proceed concurrently, in no order; the next
 * round begins when all of them are complete on this rank (other ranks are in rounds of their own).
 * Rules, which tests/unit/test_algo.c checks for every algorithm:
 *   - no step of a round writes what another step of it reads or writes. PLACE_IN and PLACE_OUT
 *     count as one buffer there, because in an in-place call they are;
 *   - a round has at most one send to, and one receive from, the same rank;
 *   - the k-th send from rank a to rank b and the k-th receive on b from a have the same length.
 *
 * Appending has no result: a failed allocation sets `oom`, which the engine checks once.
 * schedule_reset() keeps the storage, so that repeated operations do not allocate. */
#ifndef COLLECTIVES_NET_SCHEDULE_H
#define COLLECTIVES_NET_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum place_buffer {
    PLACE_IN,  /* the caller's send buffer; never written */
    PLACE_OUT, /* the caller's receive buffer; PLACE_IN itself in an in-place call */
    PLACE_TMP, /* tmp_bytes of scratch memory, contents undefined at the start */
    PLACE_BUFFERS,
};

struct place {
    enum place_buffer buffer;
    size_t at; /* offset in bytes */
};

enum step_kind {
    STEP_SEND,        /* a -> peer */
    STEP_RECV,        /* peer -> dst */
    STEP_RECV_REDUCE, /* dst = a op (peer's data), or the other way round; dst may be a */
    STEP_COPY,        /* dst = a */
    STEP_REDUCE,      /* dst = a op b; dst may be a or b */
};

struct step {
    enum step_kind kind;
    bool incoming_first; /* STEP_RECV_REDUCE: the peer's data is the left operand */
    int peer;
    size_t len; /* bytes; 0 for a pure notification */
    struct place dst, a, b;
};

struct round {
    size_t end; /* index after its last step */
    bool loose; /* the next round may begin before this one is complete, once the one before this is
                   complete */
};

struct schedule {
    struct step *steps;
    size_t nsteps, cap_steps;
    struct round *rounds;
    size_t nrounds, cap_rounds;
    size_t tmp_bytes;
    size_t most_steps;   /* in one round */
    size_t most_reduces; /* STEP_RECV_REDUCE in one round */
    bool oom;
};

void schedule_init(struct schedule *s);
void schedule_fini(struct schedule *s);
void schedule_reset(struct schedule *s); /* empty, storage kept */

static inline struct place in(size_t at)
{
    return (struct place){PLACE_IN, at};
}

static inline struct place out(size_t at)
{
    return (struct place){PLACE_OUT, at};
}

static inline struct place tmp(size_t at)
{
    return (struct place){PLACE_TMP, at};
}

void schedule_send(struct schedule *s, int peer, struct place from, size_t len);
void schedule_recv(struct schedule *s, int peer, struct place to, size_t len);

enum operand_order { MINE_FIRST, INCOMING_FIRST };
void schedule_recv_reduce(struct schedule *s, int peer, struct place to, struct place mine,
                          size_t len, enum operand_order order);
void schedule_copy(struct schedule *s, struct place to, struct place from, size_t len);
void schedule_reduce(struct schedule *s, struct place to, struct place left, struct place right,
                     size_t len);

/* Ends the round. A round without steps is dropped, and the next round waits for the one before
 * it. */
void schedule_end_round(struct schedule *s);

/* Likewise; the next round does not depend on this one. The rules for the steps of a round hold for
 * both rounds together; messages between two ranks keep their order. */
void schedule_end_round_loosely(struct schedule *s);

#ifdef DLAUNCH_CHECKED
/* Whether every round has steps, every message goes to another of `size` ranks, at most one each
 * way per rank and round, nothing writes PLACE_IN, and scratch memory is used within its bounds. */
bool schedule_is_valid(const struct schedule *s, int rank, int size);
#endif

/* Requests scratch memory: PLACE_TMP has at least `bytes` bytes. */
void schedule_need_tmp(struct schedule *s, size_t bytes);

#endif
