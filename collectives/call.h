/* call.h: what a rank asks for in one collective call. Ranks that take part in an operation compare
 * these values. */
#ifndef COLLECTIVES_CALL_H
#define COLLECTIVES_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum call_kind {
    CALL_NONE,
    CALL_ALL_REDUCE,
    CALL_BROADCAST,
    CALL_BARRIER,
    CALL_FINALIZE,
    CALL_KINDS,
};

/* Fields that the kind does not have are 0. Travels between ranks as it is. */
struct call {
    uint8_t kind;  /* enum call_kind */
    uint8_t dtype; /* dlcoll_dtype */
    uint8_t op;    /* dlcoll_op */
    uint8_t unused;
    int32_t root;
    uint64_t count; /* elements */
};

bool call_equal(const struct call *a, const struct call *b);

/* "all_reduce"; "unknown operation" for what is none. */
const char *call_name(int kind);

/* "all_reduce of 12 f32 (sum)". Never more than CALL_TEXT_MAX with its NUL, whatever the values.
 * Returns out. */
#define CALL_TEXT_MAX 80
const char *call_describe(const struct call *c, char out[CALL_TEXT_MAX]);

#endif
