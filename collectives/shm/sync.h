/* sync.h: taking turns in shared memory: coming to an operation, and waiting for the others. */
#ifndef COLLECTIVES_SHM_SYNC_H
#define COLLECTIVES_SHM_SYNC_H

#include "collectives/api/coll_call.h"
#include "collectives/shm/shm.h"
#include "collectives/api/wait.h"

/* One operation of this rank. */
struct shm_op {
    struct shm *s;
    struct coll_call *call;
    uint64_t seq;
    uint64_t base; /* its first round */
    /* A rank whose `staged` is k has read rounds up to k - lag. */
    uint64_t lag;
    struct shm_arrival *mine;
    bool pulled; /* something has been taken out of another rank's buffer */
};

/* Begins the next operation: waits until its arrival may be written. 0, or negative as
 * coll_call.h says; so return all that wait. */
int shm_begin(struct shm_op *op, struct shm *s, struct coll_call *call);

/* Says that this rank has come. What others find with it (data, flags, a staged round) has been
 * written before. */
void shm_arrive(struct shm_op *op, unsigned flags);

/* Ends it: whoever sleeps is woken. */
void shm_end(struct shm_op *op);

/* Until rank i has come, to the same operation as this one. */
int shm_await(struct shm_op *op, int i);
int shm_await_all(struct shm_op *op);
/* Rank i, which has come, is in another operation, or means another by the same name: what all that
 * wait return then. */
int shm_differs(struct shm_op *op, int i);

/* Everybody is seen to have come, and so is through with all rounds of earlier operations. */
static inline void shm_note_all_entered(struct shm_op *op)
{
    struct shm *s = op->s;
    s->all_entered = op->seq;
    if (s->read < op->base)
        s->read = op->base;
}

/* Until *word, a number of rank i's, is at least `want`. */
int shm_await_slow(struct shm_op *op, int i, const _Atomic uint32_t *word, uint64_t want);

static inline int shm_await_word(struct shm_op *op, int i, const _Atomic uint32_t *word,
                                 uint64_t want)
{
    return shm_at_least(atomic_load_explicit(word, memory_order_acquire), want)
               ? 0
               : shm_await_slow(op, i, word, want);
}

/* Until this rank's slot of the round may be written. In its first round a rank whose slot is not
 * free comes first: all might wait for each other. */
bool shm_is_free(const struct shm_op *op, uint64_t round);
int shm_claim(struct shm_op *op, uint64_t round);

/* Until rank i has put the round into its slot. */
int shm_await_staged(struct shm_op *op, int i, uint64_t round);

/* Puts a number of this rank's up, for all to see. */
static inline void shm_publish(_Atomic uint32_t *word, uint64_t value)
{
    atomic_store_explicit(word, (uint32_t)value, memory_order_release);
}

#endif
