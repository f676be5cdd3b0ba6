/* schedule.h: the entries of one rank in one collective operation, as an algorithm has written
 * them. A schedule names buffers and offsets, not addresses; the engine carries it out over a
 * transport.
 *
 * A schedule is a list of steps. The entries of a step proceed concurrently, in no order; the next
 * step begins when all of them are complete on this rank (other ranks are in steps of their own).
 * Rules, which tests/unit/test_algo.c checks for every algorithm:
 *   - no entry of a step writes what another entry of it reads or writes. PLACE_IN and PLACE_OUT
 *     count as one buffer there, because in an in-place call they are;
 *   - a step has at most one send to, and one receive from, the same rank;
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

enum entry_kind {
    ENTRY_SEND,        /* a -> peer */
    ENTRY_RECV,        /* peer -> dst */
    ENTRY_RECV_REDUCE, /* dst = a op (peer's data), or the other way round; dst may be a */
    ENTRY_COPY,        /* dst = a */
    ENTRY_REDUCE,      /* dst = a op b; dst may be a or b */
};

struct entry {
    enum entry_kind kind;
    bool incoming_first; /* ENTRY_RECV_REDUCE: the peer's data is the left operand */
    int peer;
    size_t len; /* bytes; 0 for a pure notification */
    struct place dst, a, b;
};

struct step {
    size_t end; /* index after its last entry */
    bool loose; /* the next step may begin before this one is complete, once the one before this is
                   complete */
};

struct schedule {
    struct entry *entries;
    size_t nentries, cap_entries;
    struct step *steps;
    size_t nsteps, cap_steps;
    size_t tmp_bytes;
    size_t most_entries; /* in one step */
    size_t most_reduces; /* ENTRY_RECV_REDUCE in one step */
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

/* Ends the step. A step without entries is dropped, and the next step waits for the one before
 * it. */
void schedule_end_step(struct schedule *s);

/* Ends the step; the next step does not depend on this one. The rules for the entries of a step
 * hold for both steps together; messages between two ranks keep their order. */
void schedule_end_step_loosely(struct schedule *s);

#ifdef DLAUNCH_CHECKED
/* Whether every step has entries, every message goes to another of `size` ranks, at most one each
 * way per rank and step, nothing writes PLACE_IN, and scratch memory is used within its bounds. */
bool schedule_is_valid(const struct schedule *s, int rank, int size);
#endif

/* Requests scratch memory: PLACE_TMP has at least `bytes` bytes. */
void schedule_need_tmp(struct schedule *s, size_t bytes);

#endif
