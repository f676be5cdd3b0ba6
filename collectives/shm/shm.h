/* shm.h: the memory that the ranks of a communicator on one node share, and how they take turns in
 * it.
 *
 *     head        why the communicator has stopped; how many ranks sleep
 *     peer[n]     what a rank says of itself once
 *     arrival[16][n]  "I have come to the operation numbered seq, and this is what I called", with
 *                     small data in the same line
 *     beside[16][n]   more of it, that belongs to the arrival
 *     progress[n] how far a rank is within an operation
 *     slot[n][4]  room for data on its way; at its end, in an operation with uneven parts, how long
 *                 they are
 *     ring[n][n][2]   point to point (ring.h): messages, and the answers to the other way's
 *     arena[n]    what dlcoll_mem_alloc() gives out
 *
 * Every line has one writer, who stores with release order; readers acquire. There are no locks:
 * whoever dies, at any point, leaves nothing that another one would have to repair.
 *
 * Operations and rounds are numbered, and the numbers only grow; they are compared by their
 * difference, so that they may wrap, and no line may fall far behind: where an operation leaves a
 * rank's progress as it was, it is brought up to date from time to time. Two rules keep a writer
 * from overwriting what is still read:
 *
 *   arrival  Operation seq uses arrival[seq % 16] and what is beside it. They are written only
 *            when all others are known to have come to operation seq - 15 or a later one: then
 *            nobody reads those of seq - 16 any more.
 *   slot     Round k uses a rank's slot[k % 4]. It is written only when all readers are known to be
 *            through with what the rank has put there before. A rank's progress says so: it raises
 *            `staged` to k + 1 when it is through with reading rounds up to k - 2 (k - 3 for
 *            results). In most operations everybody has heard that from everybody anyway, and
 * whoever has come to an operation is through with the rounds of those before it. */
#ifndef COLLECTIVES_SHM_SHM_H
#define COLLECTIVES_SHM_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/api/op_signature.h"
#include "collectives/api/comm.h"
#include "collectives/shm/cost.h"

enum {
    SHM_LINE = 128, /* two cache lines: processors fetch them in pairs */
    /* So many operations may a rank be ahead of the last one, in those that do not wait for all:
     * where ranks share a CPU, each does so many before another one has its turn. */
    SHM_ARRIVALS = 16,
    SHM_SLOTS = 4, /* of a rank */
    SHM_SLOT_BYTES = 512 * 1024,
    /* Slots of different ranks do not begin in the same set of a cache, and none where buffers of
     * a program begin in their pages: what lies a few bytes further on, as far as the low 12 bits
     * of an address tell, is slow to copy to (net/wire.h). */
    SHM_SLOT_SKEW = 4096,
    SHM_SLOT_BEGIN = SHM_SLOT_SKEW / 4,
    SHM_SLOT_STRIDE = SHM_SLOT_BYTES + SHM_SLOT_SKEW,
    SHM_RANKS_MAX = 1024,
};

struct shm_head {
    _Alignas(SHM_LINE) struct comm_stop stop;
    _Alignas(SHM_LINE) _Atomic uint32_t version; /* of this layout */
    /* Only what has been made by a rank, and not by a launcher, has these. */
    uint32_t magic;
    uint64_t nonce, bytes;
    int32_t n;
    _Alignas(SHM_LINE) _Atomic uint32_t sleepers; /* ranks that must be woken */
};

enum shm_can { SHM_UNKNOWN, SHM_YES, SHM_NO };

struct shm_peer {
    _Alignas(SHM_LINE) _Atomic int32_t pid;
    uint64_t probe;            /* the address of a word in its own memory that holds `nonce` */
    uint64_t nonce;            /* which others read there to see whether they may */
    _Atomic uint32_t can_read; /* enum shm_can: it may read the memory of all others */
    _Atomic uint32_t left;     /* it has closed the communicator: there is nothing to come */
    /* Its threads that sleep until something comes to it, on a number that changes when it has. */
    _Alignas(SHM_LINE) _Atomic uint32_t asleep;
    _Atomic uint32_t doorbell;
    /* What it has seen of both ways to move blocks, for the others to choose by. */
    _Alignas(SHM_LINE) struct cost costs[COST_KINDS][COST_SIZES];
};

enum {
    SHM_INLINE_BYTES = 96,   /* of a rank's data, in its arrival itself */
    SHM_BESIDE_BYTES = 2048, /* more has a place of its own with each arrival */
};

/* Flags of an arrival. */
enum {
    SHM_LATE = 1, /* its first round is staged later than this was written */
    SHM_SHARED =
        2,        /* its buffers lie in the arenas: at `send` and `recv` from the memory's start */
    SHM_PULL = 4, /* its data is not staged: the others read it at `send`, an address of its own
                     unless SHM_SHARED is set */
};

struct shm_arrival {
    _Alignas(SHM_LINE) _Atomic uint32_t seq;
    uint8_t flags, part, unused[2];
    struct op_signature id;
    uint32_t call_seq; /* its low half */
    uint32_t history;  /* op_history() of the calls before it */
    union {
        uint8_t data[SHM_INLINE_BYTES]; /* the first 32 in the same line of the cache */
        struct {
            uint64_t send, recv;
        };
        uint64_t most; /* v-operations: the longest block, in bytes, that it sends or receives */
    };
};
_Static_assert(sizeof(struct shm_arrival) == SHM_LINE, "one line");

struct shm_progress {
    _Alignas(SHM_LINE) _Atomic uint32_t staged; /* rounds put into the slots */
    _Atomic uint32_t reduced;                   /* rounds whose results are in the slots */
    _Atomic uint32_t done;                      /* the last operation it is through with */
};

/* Bytes on their way from one rank to another. A cell carries a number of them: the first ones
 * itself, the rest, if any, follow what earlier ones have left in the ring's data. A short message
 * is one line of the cache. */
enum { SHM_CELL_BYTES = 120 };

struct shm_cell {
    _Alignas(SHM_LINE) _Atomic uint32_t number; /* of those ever filled: this one is */
    uint32_t len;
    uint8_t data[SHM_CELL_BYTES];
};

struct shm_ring {
    /* Of the reader, who has done with so many cells, and with so much of the data. */
    _Alignas(SHM_LINE) _Atomic uint32_t cells_read;
    _Atomic uint32_t data_read;
    _Alignas(SHM_LINE) struct shm_cell cells[]; /* then the data */
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
    bool mapped; /* by us: not the launcher's heap */
    int fd;      /* whoever made it, until all have attached */

    struct shm_head *head;
    struct shm_peer *peers;
    struct shm_arrival *arrivals; /* [SHM_ARRIVALS][n] */
    uint8_t *beside;              /* [SHM_ARRIVALS][n], SHM_BESIDE_BYTES each */
    struct shm_progress *progress;
    uint8_t *slots;
    uint8_t *rings;      /* [n][n][2]: messages, answers */
    uint32_t ring_bytes; /* of data, and */
    uint32_t ring_cells; /* cells of each; powers of two */
    size_t ring_stride;
    uint64_t probe;   /* what others try to read */
    size_t arenas_at; /* from base; to the end */
    size_t arena_bytes;
    struct arena *arena; /* this rank's */

    /* Private to this process; the first two are the same on all ranks. From 1, and too large to
     * wrap: lines carry their low halves. */
    uint64_t seq;   /* the operation under way or the last one */
    uint64_t round; /* the next round */

    uint64_t refresh_at;          /* seq + round at which `progress` is brought up to date */
    uint64_t all_entered;         /* all have come to this operation */
    uint64_t bases[SHM_ARRIVALS]; /* the first rounds of the last operations */
    uint64_t staged[SHM_SLOTS];   /* the round that I have last put into the slot; 0: none */
    uint64_t read;                /* all have read my rounds before this one */
    enum shm_can can_pull;        /* all may read my memory */
    uint8_t *may_read;            /* by rank, enum shm_can: I may read its memory */
    size_t *mapped_bytes;         /* by rank: of each of its slots (shm_use_slots()) */
    bool has_mapped;              /* in the operation under way */
    struct cost_turn turns[COST_KINDS][COST_SIZES]; /* with this rank's costs */
    struct shm_range readable[SHM_RANGES];          /* of my memory, for others */

    uint32_t waits; /* that took a while */

    /* Scratch, n each. */
    struct shm_block *out, *in;
    const void **sources; /* twice as many */
    uint8_t **targets;
};

static inline struct shm_arrival *shm_arrival(const struct shm *s, uint64_t seq, int i)
{
    return &s->arrivals[(size_t)(seq % SHM_ARRIVALS) * (size_t)s->n + (size_t)i];
}

static inline uint8_t *shm_beside(const struct shm *s, uint64_t seq, int i)
{
    return s->beside + ((size_t)(seq % SHM_ARRIVALS) * (size_t)s->n + (size_t)i) * SHM_BESIDE_BYTES;
}

static inline uint8_t *shm_slot(const struct shm *s, int i, uint64_t round)
{
    size_t k = (size_t)i * SHM_SLOTS + round % SHM_SLOTS;
    return s->slots + k * SHM_SLOT_STRIDE + SHM_SLOT_BEGIN + (size_t)i % 16 * (SHM_SLOT_SKEW / 32);
}

void shm_map_slots(struct shm *s, int i, size_t bytes);

/* Before so much of a rank's slots is used: for the first time it is mapped all at once, which
 * takes the system a fraction of the time that it takes to map what is touched page by page. */
static inline void shm_use_slots(struct shm *s, int i, size_t bytes)
{
    if (bytes > s->mapped_bytes[i])
        shm_map_slots(s, i, bytes);
}

/* Whether a number in a line has come to `want`. */
static inline bool shm_at_least(uint32_t value, uint64_t want)
{
    return (int32_t)(value - (uint32_t)want) >= 0;
}

/* Whether [p, p + len) lies in the arenas; then *at is where, from the memory's start. */
bool shm_holds(const struct shm *s, const void *p, size_t len, uint64_t *at);

#endif
