/* sync.h: synchronization in shared memory: entering an operation, and waiting for other ranks. */
#ifndef COLLECTIVES_SHM_SYNC_H
#define COLLECTIVES_SHM_SYNC_H

#include "collectives/comm/coll_call.h"
#include "collectives/shm/shm.h"
#include "collectives/base/wait.h"

/* One operation of this rank. */
struct shm_op {
    struct shm *s;
    struct coll_call *call;
    uint64_t seq;
    uint64_t base; /* the first chunk of the operation */
    /* A rank whose `staged` is k has read chunks up to k - lag. */
    uint64_t lag;
    struct shm_arrival *mine;
    bool late;   /* the arrival was published before the first chunk was staged */
    bool pulled; /* data has been read from another rank's buffer */
};

/* Begins the next operation: waits until its arrival may be written. Like all waiting functions
 * here, returns 0 or a negative value as described in coll_call.h. */
int shm_begin(struct shm_op *op, struct shm *s, struct coll_call *call);

/* Publishes the arrival of this rank. Data, flags and a staged chunk that belong to it must have
 * been written before. */
void shm_arrive(struct shm_op *op, unsigned flags);

/* Ends the operation: wakes sleeping ranks. */
void shm_end(struct shm_op *op);

/* Wait until rank i, or all ranks, have entered this operation, and compare their calls. */
int shm_await(struct shm_op *op, int i);
int shm_await_all(struct shm_op *op);
/* Records the call of rank i, which has entered another operation, as the mismatch. Returns
 * -EBADMSG. */
int shm_differs(struct shm_op *op, int i);

/* All ranks have entered this operation, hence finished all chunks of earlier ones. */
static inline void shm_note_all_entered(struct shm_op *op)
{
    struct shm *s = op->s;
    debug_assert(s->all_entered <= op->seq && op->seq == s->seq);
    s->all_entered = op->seq;
    if (s->read < op->base)
        s->read = op->base;
}

/* Waits until *word, written by rank i, is at least `want`. */
int shm_await_slow(struct shm_op *op, int i, const _Atomic uint32_t *word, uint64_t want);

static inline int shm_await_word(struct shm_op *op, int i, const _Atomic uint32_t *word,
                                 uint64_t want)
{
    return shm_at_least(atomic_load_explicit(word, memory_order_acquire), want)
               ? 0
               : shm_await_slow(op, i, word, want);
}

/* Waits until this rank's slot of the chunk may be written. Before waiting for the first chunk, the
 * caller must publish its arrival: otherwise all ranks might wait for each other. */
bool shm_is_free(const struct shm_op *op, uint64_t chunk);
int shm_claim(struct shm_op *op, uint64_t chunk);

/* Waits until rank i has staged the chunk. */
int shm_await_staged(struct shm_op *op, int i, uint64_t chunk);

/* Publishes a number of this rank; published numbers only grow. */
static inline void shm_publish(_Atomic uint32_t *word, uint64_t value)
{
    debug_assert(shm_at_least((uint32_t)value, atomic_load_explicit(word, memory_order_relaxed)));
    atomic_store_explicit(word, (uint32_t)value, memory_order_release);
}

#endif
