/* cross_values.h: data for operations, such that a wrong order, a wrong place, and an element that
 * is dropped or taken twice show in the result.
 *
 * Element e of rank r is one of a table's CROSS_PERIOD, a prime number, so no two places that a
 * power of two lies between look alike. What comes out is computed here in plain C, not by the
 * library's kernels. It is exact whatever the order in which ranks are combined:
 *
 *   integers          anything, as sums and products wrap around
 *   floats            whole numbers whose sums the type has; products of small numbers; anything
 *                     finite for max and min
 *   truth values      any byte for true; true, or false, on few ranks as it takes to decide
 *   user's            bytes, added with a constant
 *   ordered           bytes, each a pair (a, b) of a map x -> a x + b modulo 16; maps are applied
 *                     one after the other, which is associative and not commutative
 *   nothing (moved)   any bytes */
#ifndef TESTS_LIB_CROSS_VALUES_H
#define TESTS_LIB_CROSS_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/dlcoll.h"

enum { CROSS_PERIOD = 1021, CROSS_RANKS = 9, CROSS_TYPES = 15 };

/* The built-in reductions as reduction_index() numbers them; and: */
enum { CROSS_PREMUL = 11, CROSS_USER, CROSS_ORDERED, CROSS_MOVE, CROSS_OPS };

extern const dlcoll_dtype g_cross_types[CROSS_TYPES];

bool cross_has(dlcoll_dtype dtype, int op); /* as dlcoll.h says */
const char *cross_op_name(int op);

struct cross_values {
    dlcoll_dtype dtype;
    int op, n;
    size_t size;              /* of an element */
    uint8_t *in[CROSS_RANKS]; /* each of CROSS_PERIOD elements */
    uint8_t *out;             /* of all ranks' */
};

/* Makes all tables for worlds of n ranks, which take longer than most worlds do: once, before ranks
 * start, which share them. */
void cross_values_make(int n);
const struct cross_values *cross_values(int type, int op); /* as in g_cross_types */

/* Elements from, from + 1, ... of a table. */
void cross_put(const struct cross_values *v, const uint8_t *table, uint8_t *to, size_t from,
               size_t count);
/* The first one that is not as in the table; `count`: there is none. */
size_t cross_differs(const struct cross_values *v, const uint8_t *table, const uint8_t *got,
                     size_t from, size_t count);

/* Makes what dlcoll_op CROSS_PREMUL, CROSS_USER or CROSS_ORDERED is on a rank. */
dlcoll_op cross_op_make(dlcoll_dtype dtype, int op, int rank);

/* Floats whose sums are rounded, between -2 and 2. */
void cross_rounded(dlcoll_dtype dtype, int rank, uint8_t *to, size_t count);
double cross_decode(dlcoll_dtype dtype, const uint8_t *element);
double cross_epsilon(dlcoll_dtype dtype); /* how far rounding is off at most, of 1 */

uint64_t cross_mix(uint64_t x);

#endif
