/* dtype.h: the element types, and the names of the reductions. */
#ifndef COLLECTIVES_BASE_DTYPE_H
#define COLLECTIVES_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#include "collectives/dlcoll.h"

/* The class of a type: decides which reductions it has, and how they are computed. */
enum dtype_class {
    DTYPE_INTEGER, /* sum, prod and avg wrap around; bitwise and logical ones too */
    DTYPE_FLOAT,   /* narrow ones in f32 */
    DTYPE_BOOL,    /* a byte, anything but 0 is true; results are 0 or 1 */
    DTYPE_PAIR,    /* a value and an index: minloc and maxloc */
    DTYPE_BYTES,   /* the program's, of any size: only its own reductions combine them */
};

struct dtype {
    const char *name;
    size_t size; /* of one element, in bytes */
    enum dtype_class class;
};

/* NULL: there is no such type, or no memory for one of the program's. */
const struct dtype *dtype_get(int dtype);

/* The code of the program's types in op signatures, whatever their size; other types have their
 * value. */
enum { DTYPE_CODE_BYTES = 62 };
const char *dtype_code_name(int code); /* "f32"; NULL: unknown */

/* The alignment of an element; one of the program's is aligned as malloc() would align memory of
 * its size. */
static inline size_t dtype_alignment(const struct dtype *type)
{
    enum { MOST = 16 };
    size_t power = type->size & -type->size;
    return power < MOST ? power : MOST;
}

/* The types without the pairs, the pairs, and the built-in reductions, numbered without gaps, for
 * tables; -1: there is no such one. */
enum { DTYPES = 15, PAIRS = 7, REDUCTIONS = 13 };
int dtype_index(int dtype);
int pair_index(int dtype);
int reduction_index(int op);

/* The codes of a program's own reductions in op signatures; the built-in ones have their value. */
enum { REDUCE_PREMUL = 64, REDUCE_USER = 65, REDUCE_USER_MAY_FAIL = 66 };
/* "sum"; also of those codes. NULL: there is no such reduction. */
const char *reduction_name(int code);

#endif
