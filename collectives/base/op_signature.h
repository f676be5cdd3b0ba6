/* op_signature.h: what a rank asks for in one collective call. Ranks that take part in an operation
 * compare these values. */
#ifndef COLLECTIVES_BASE_OP_SIGNATURE_H
#define COLLECTIVES_BASE_OP_SIGNATURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "collectives/base/dtype.h"

/* In the kinds with _V the parts differ in length; a rank may not know the lengths of all parts. */
enum call_kind {
    CALL_NONE,
    CALL_ALL_REDUCE,
    CALL_BROADCAST,
    CALL_BARRIER,
    CALL_FINALIZE,
    CALL_REDUCE,
    CALL_GATHER,
    CALL_GATHER_V,
    CALL_ALL_GATHER,
    CALL_ALL_GATHER_V,
    CALL_SCATTER,
    CALL_SCATTER_V,
    CALL_REDUCE_SCATTER,
    CALL_REDUCE_SCATTER_V,
    CALL_ALL_TO_ALL,
    CALL_ALL_TO_ALL_V,
    CALL_SCAN,
    CALL_EXSCAN,
    /* all_to_all_v under other names. */
    CALL_ALL_TO_ALL_W,
    CALL_NEIGHBOR_ALL_GATHER,
    CALL_NEIGHBOR_ALL_TO_ALL,
    /* Operations that consist of others. */
    CALL_ALL_REDUCE_COALESCED, /* root: how many buffers */
    CALL_EXCHANGE_BYTES,
    CALL_MONITORED_BARRIER,
    CALL_COMM_SPLIT,
    CALL_COMM_NEW_GROUP,
    CALL_COMM_SHRINK,
    CALL_COMM_DUP,
    /* Kinds that are not collective; root: the peer. */
    CALL_SEND,
    CALL_RECV,
    CALL_BATCH,
    CALL_PROBE,
    /* The library's own, before the first operation on device memory. */
    CALL_NCCL_INIT,
    CALL_WINDOW_REGISTER, /* of device memory */
    CALL_KINDS,
};

/* Fields that the kind does not have are 0. Travels between ranks as it is. */
struct op_signature {
    uint8_t kind;     /* enum call_kind */
    uint8_t dtype;    /* dlcoll_dtype */
    uint8_t op;       /* struct reduce_info's code */
    uint8_t settings; /* struct job_conf's: two ranks with others do not understand each other */
    int32_t root;     /* or what else the kind compares: two of the _V, a digest of all counts */
    uint64_t count;   /* elements */
};

_Static_assert(sizeof(struct op_signature) == 16, "compared as bytes");

/* The properties of each kind. */
enum { CALL_HAS_DATA = 1, CALL_HAS_OP = 2, CALL_HAS_ROOT = 4, CALL_UNEVEN = 8, CALL_TO_ROOT = 16 };
extern const uint8_t g_call_has[CALL_KINDS];

static inline bool call_has_data(enum call_kind kind)
{
    return g_call_has[kind] & CALL_HAS_DATA;
}

static inline bool call_reduces(enum call_kind kind)
{
    return g_call_has[kind] & CALL_HAS_OP;
}

static inline bool call_scans(enum call_kind kind)
{
    return kind == CALL_SCAN || kind == CALL_EXSCAN;
}

static inline bool call_rooted(enum call_kind kind) /* or has a peer */
{
    return g_call_has[kind] & CALL_HAS_ROOT;
}

/* Whether a rank may not know the counts of all parts. */
static inline bool call_counts_differ(enum call_kind kind)
{
    return kind == CALL_GATHER_V || kind == CALL_SCATTER_V || kind == CALL_ALL_TO_ALL_V;
}

/* The count of elements of the program's own type carries their size. */
enum { SIG_COUNT_BITS = 48 };

static inline uint64_t sig_pack(uint64_t count, size_t elem)
{
    return count ? count | (uint64_t)(elem - 1) << SIG_COUNT_BITS : 0;
}

/* The count alone. */
static inline uint64_t sig_count(const struct op_signature *sig)
{
    return sig->dtype == DTYPE_CODE_BYTES ? sig->count & (((uint64_t)1 << SIG_COUNT_BITS) - 1)
                                          : sig->count;
}

static inline bool sig_equal(const struct op_signature *a, const struct op_signature *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* The digest of a communicator's calls so far and one more: ranks with different digests have
 * called different operations. What travels is its upper half, op_history(). */
static inline uint64_t op_history_add(uint64_t history, const struct op_signature *sig)
{
    uint64_t words[2];
    memcpy(words, sig, sizeof(words));
    history = (history ^ words[0]) * 0x9e3779b97f4a7c15u;
    return ((history ^ history >> 32) + words[1]) * 0xbf58476d1ce4e5b9u;
}

static inline uint32_t op_history(uint64_t history)
{
    return (uint32_t)(history >> 32);
}

/* Whether the texts of both are equal, so that only the parts differ. */
static inline bool sig_alike(const struct op_signature *a, const struct op_signature *b)
{
    struct op_signature c = *a;
    if ((g_call_has[b->kind] & CALL_UNEVEN) && !call_rooted((enum call_kind)b->kind)) {
        c.root = b->root;
        c.count = b->count;
    }
    return sig_equal(&c, b);
}

/* Whether two that flight recorders have kept are the same, as far as all ranks have that in
 * common. For zero elements the type is not part of the signature. */
bool sig_same(const struct op_signature *a, const struct op_signature *b);

/* "all_reduce"; "unknown operation" for what is none. */
const char *call_name(int kind);

/* "all_reduce of 12 f32 (sum)". Never more than SIG_TEXT_MAX with its NUL, whatever the values.
 * Returns out. */
#define SIG_TEXT_MAX 112
const char *sig_describe(const struct op_signature *c, char out[SIG_TEXT_MAX]);

#endif
