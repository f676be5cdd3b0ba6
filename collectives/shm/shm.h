/* shm.h: the memory that the ranks of a communicator on one node share, and its rules of access.
 *
 *     head            why the communicator has stopped; how many ranks sleep
 *     peer[n]         facts that a rank publishes once
 *     arrival[16][n]  the record by which a rank enters operation seq: its signature, and small
 *                     data in the same cache line
 *     beside[16][n]   more data that belongs to the arrival
 *     progress[n]     how far a rank has advanced within an operation
 *     slot[n][4]      staging buffers; in an operation with uneven parts, their lengths at the end
 *     bell[n]         the world's only: what wakes a rank's progress thread (core/bell.h), where no
 *                     launcher's segment has it
 *     ring[n][n][2]   point to point (ring.h): messages, and answers to the opposite direction
 *     arena[n]        what dlcoll_mem_alloc() allocates
 *
 * Every cache line has one writer, which stores with release order; readers acquire. There are no
 * locks: a rank that dies at any point leaves nothing to repair.
 *
 * Operations and chunks are numbered from 1 without gaps. Lines carry the low 32 bits and are
 * compared by their difference, so that they may wrap. Hence no line may lag by 2^31: an operation
 * that does not need a rank's progress leaves it unchanged, and refresh() in sync.c publishes it
 * from time to time. Two rules keep a writer from overwriting what is still being read:
 *
 * - Operation seq uses arrival[seq % 16] and beside[seq % 16]. A rank writes them only after all
 *   others have entered operation seq - 15 or a later one: then nobody reads those of seq - 16.
 * - Chunk k uses slot[k % 4]. A rank writes its slot only after all readers have finished reading
 *   its previous content. Progress shows that: a rank raises `staged` to k + 1 after it has read
 *   the chunks up to k - 2 (k - 3 in operations with results). A rank that has entered an operation
 *   has finished all chunks of earlier operations, so that most operations need not wait. */
#ifndef COLLECTIVES_SHM_SHM_H
#define COLLECTIVES_SHM_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/base/op_signature.h"
#include "collectives/comm/comm.h"
#include "core/bell.h"
#include "collectives/shm/cost.h"
#include "core/debug_assert.h"

enum {
    SHM_LINE = 128, /* two cache lines: processors fetch them in pairs */
    /* The number of operations by which a rank may be ahead of the last one, in operations that do
     * not wait for all ranks. Where ranks share a CPU, each performs up to this many before another
     * is scheduled. */
    SHM_ARRIVALS = 16,
    SHM_SLOTS = 4, /* per rank */
    SHM_SLOT_BYTES = 512 * 1024,
    /* Slots of different ranks start in different cache sets and at other page offsets than a
     * program's buffers: copying is slow between addresses whose low 12 bits are nearly equal (see
     * FRAME_DISTANCE in wire/wire.h). */
    SHM_SLOT_SKEW = 4096,
    SHM_SLOT_BEGIN = SHM_SLOT_SKEW / 4,
    SHM_SLOT_STRIDE = SHM_SLOT_BYTES + SHM_SLOT_SKEW,
    SHM_RANKS_MAX = 1024,
};

struct shm_head {
    _Alignas(SHM_LINE) struct comm_stop stop;
    _Alignas(SHM_LINE) _Atomic uint32_t version; /* of this layout */
    /* Set only in memory made by a rank; a launcher's segment does not have them. */
    uint32_t magic;
    uint64_t nonce, bytes;
    int32_t n;
    /* Ranks that must be woken: threads that sleep on a word, plus SHM_PARKED for each task. */
    _Alignas(SHM_LINE) _Atomic uint32_t sleepers;
};

enum { SHM_PARKED = 1 << 16 };

enum shm_can { SHM_UNKNOWN, SHM_YES, SHM_NO };

struct shm_peer {
    _Alignas(SHM_LINE) _Atomic int32_t pid;
    uint64_t probe;            /* address in the rank's process of a word that holds `nonce` */
    uint64_t nonce;            /* read by the others to test process_vm_readv() */
    _Atomic uint32_t can_read; /* enum shm_can: this rank may read the memory of all others */
    _Atomic uint32_t left;     /* nonzero: this rank has closed the communicator */
    /* 1 + the slot of its task that is parked in an operation, to be rung for on its bell. */
    _Atomic uint32_t coll_parked;
    /* The number of the rank's threads that sleep on the doorbell, a futex that is incremented on
     * new data, plus SHM_PARKED while the rank's task is parked, and 1 + the slot of that task. */
    _Alignas(SHM_LINE) _Atomic uint32_t asleep;
    _Atomic uint32_t doorbell;
    _Atomic uint32_t p2p_parked;
    /* The rank's timings of both ways to move blocks, read by all ranks. */
    _Alignas(SHM_LINE) struct cost costs[COST_KINDS][COST_SIZES];
};

enum {
    SHM_INLINE_BYTES = 96,   /* of a rank's data inside the arrival */
    SHM_BESIDE_BYTES = 2048, /* of a rank's data beside the arrival */
};

/* Flags of an arrival. */
enum {
    SHM_LATE = 1,   /* the first chunk is staged after this arrival was written */
    SHM_SHARED = 2, /* the buffers lie in the arenas; `send` and `recv` are offsets from the
                       memory's start */
    SHM_PULL = 4,   /* the data is not staged: others read it at `send`, an address in the rank's
                       process unless SHM_SHARED is set */
};

struct shm_arrival {
    _Alignas(SHM_LINE) _Atomic uint32_t seq;
    uint8_t flags, part, unused[2];
    struct op_signature sig;
    uint32_t call_seq; /* low 32 bits */
    uint32_t history;  /* op_history() of the calls before it */
    union {
        uint8_t data[SHM_INLINE_BYTES]; /* the first 32 bytes share the cache line of `seq` */
        struct {
            uint64_t send, recv;
        };
        struct {
            uint64_t most;     /* _v operations: bytes of the longest block of this rank */
            uint64_t block[3]; /* SHM_PULL: describes this rank's only block (cma.c) */
        };
    };
};
_Static_assert(sizeof(struct shm_arrival) == SHM_LINE, "one line");

struct shm_progress {
    _Alignas(SHM_LINE) _Atomic uint32_t staged; /* chunks put into the slots */
    _Atomic uint32_t reduced;                   /* chunks whose results are in the slots */
    _Atomic uint32_t done;                      /* the last operation that the rank has finished */
};

/* Bytes in transit from one rank to another. A cell holds the first bytes of a piece; the rest
 * is in the ring's data area, after that of earlier cells. A short message fits into one cache
 * line. */
enum { SHM_CELL_BYTES = 120 };

struct shm_cell {
    _Alignas(SHM_LINE) _Atomic uint32_t number; /* sequence number of the cell, from 1 */
    uint32_t len;
    uint8_t data[SHM_CELL_BYTES];
};

struct shm_ring {
    /* Written by the reader: cells and data bytes that it has consumed. */
    _Alignas(SHM_LINE) _Atomic uint32_t cells_read;
    _Atomic uint32_t data_read;
    /* Written by the reader, seldom: ring_say_kept(). */
    _Alignas(SHM_LINE) _Atomic uint64_t kept;
    _Alignas(SHM_LINE) struct shm_cell cells[]; /* followed by the data area */
};

/* A block of a buffer, in bytes. */
struct shm_block {
    size_t at, len;
};

/* Memory of this process. */
struct shm_range {
    const uint8_t *p;
    size_t len;
};

enum { SHM_RANGES = 16 };

struct arena;

struct shm {
    int me, n;
    uint8_t *base;
    size_t bytes;
    bool mapped; /* by this process; false: the launcher's heap */
    int fd;      /* on the rank that made the memory, until all have attached */

    struct shm_head *head;
    struct shm_peer *peers;
    struct shm_arrival *arrivals; /* [SHM_ARRIVALS][n] */
    uint8_t *beside;              /* [SHM_ARRIVALS][n], SHM_BESIDE_BYTES each */
    struct shm_progress *progress;
    uint8_t *slots;
    uint8_t *rings;      /* [n][n][2]: messages, answers */
    uint32_t ring_bytes; /* of data; a power of two */
    uint32_t ring_cells; /* cells of each ring; a power of two */
    size_t ring_stride;
    uint64_t probe;   /* the word that others read as a test */
    size_t arenas_at; /* offset from base; the arenas reach to the end */
    size_t arena_bytes;
    struct arena *arena; /* this rank's */

    /* Private to this process. `seq` and `chunk` are equal on all ranks; 64 bits do not wrap. */
    uint64_t seq;   /* the current operation, or the last one */
    uint64_t chunk; /* the next chunk */

    uint64_t refresh_at;          /* seq + chunk at which to refresh `progress` */
    uint64_t all_entered;         /* all ranks are known to have entered this operation */
    uint64_t bases[SHM_ARRIVALS]; /* the first chunks of the last operations */
    uint64_t staged[SHM_SLOTS];   /* the last chunk that this rank staged in the slot; 0: none */
    uint64_t read;                /* all ranks have read this rank's chunks before this one */
    enum shm_can can_pull;        /* all ranks may read this rank's memory */
    uint8_t *may_read;            /* by rank, enum shm_can: this rank may read its memory */
    size_t *mapped_bytes;         /* by rank: bytes mapped of each of its slots (shm_use_slots()) */
    bool has_mapped;              /* in the current operation */
    struct cost_turn turns[COST_KINDS][COST_SIZES]; /* with this rank's costs */
    struct shm_range readable[SHM_RANGES];          /* known to be readable by the others */

    uint32_t waits; /* that were not satisfied at once */

    /* Scratch, n entries each. */
    struct shm_block *out, *in;
    const void **sources; /* 2 n entries */
    uint8_t **targets;
    uint8_t *sums; /* two large elements; NULL: not needed yet */

    struct bell **bells; /* by rank; entries may be NULL */
};

static inline struct shm_arrival *shm_arrival(const struct shm *s, uint64_t seq, int i)
{
    debug_assert(i >= 0 && i < s->n);
    return &s->arrivals[(size_t)(seq % SHM_ARRIVALS) * (size_t)s->n + (size_t)i];
}

static inline uint8_t *shm_beside(const struct shm *s, uint64_t seq, int i)
{
    return s->beside + ((size_t)(seq % SHM_ARRIVALS) * (size_t)s->n + (size_t)i) * SHM_BESIDE_BYTES;
}

static inline uint8_t *shm_slot(const struct shm *s, int i, uint64_t chunk)
{
    size_t k = (size_t)i * SHM_SLOTS + chunk % SHM_SLOTS;
    debug_assert(i >= 0 && i < s->n);
    return s->slots + k * SHM_SLOT_STRIDE + SHM_SLOT_BEGIN + (size_t)i % 16 * (SHM_SLOT_SKEW / 32);
}

/* Rings for the task of rank i whose 1 + slot is in *parked, if any. */
static inline void shm_ring(const struct shm *s, int i, _Atomic uint32_t *parked)
{
    uint32_t slot = atomic_load(parked) ? atomic_exchange(parked, 0) : 0;
    if (slot && s->bells[i])
        bell_ring(s->bells[i], slot - 1);
}

/* Rings for all tasks that are parked in an operation. */
void shm_ring_parked(struct shm *s);
/* Wakes whoever waits here, for data or for messages: this rank leaves, or all must stop. */
void shm_wake_all(struct shm *s);

void shm_map_slots(struct shm *s, int i, size_t bytes);

/* Call before using `bytes` of a rank's slots. Maps them in one system call, which takes a fraction
 * of the time of page faults. */
static inline void shm_use_slots(struct shm *s, int i, size_t bytes)
{
    if (bytes > s->mapped_bytes[i])
        shm_map_slots(s, i, bytes);
}

/* Whether a published number has reached `want`. */
static inline bool shm_at_least(uint32_t value, uint64_t want)
{
    return (int32_t)(value - (uint32_t)want) >= 0;
}

/* Whether [p, p + len) lies in the arenas; then *at is its offset from the memory's start. */
bool shm_holds(const struct shm *s, const void *p, size_t len, uint64_t *at);

#endif
