/* pickle.h: reads plain data that Python has pickled: dicts, lists, tuples, strings, whole numbers,
 * floats, booleans and None, of protocol 2 and later. Nothing is called and nothing imported: what
 * asks for that is refused, except the constructors by which PyTorch marks lists of one type, which
 * are read as the lists. Any input is safe. */
#ifndef AGENT_INSPECT_PICKLE_H
#define AGENT_INSPECT_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PICKLE_BYTES_MAX  (64u << 20)
#define PICKLE_VALUES_MAX (4u << 20)

enum pickle_type {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,
    PICKLE_FLOAT,
    PICKLE_STRING, /* the text's bytes are those of the input */
    PICKLE_LIST,   /* or a tuple */
    PICKLE_DICT,
};

struct pickle_item;

struct pickle_value {
    enum pickle_type type;
    union {
        int64_t number; /* of a boolean, too; a longer one is cut off */
        double real;
        struct {
            const char *text;
            size_t len;
        };
        struct {
            struct pickle_item *first, *last;
            size_t n;
        };
    };
};

struct pickle_item {
    struct pickle_item *next;
    const struct pickle_value *key; /* NULL in a list */
    const struct pickle_value *value;
};

struct pickle;

/* NULL: the input is malformed, holds other data, or is too large. The values borrow the input. */
struct pickle *pickle_read(const void *data, size_t len);
const struct pickle_value *pickle_root(const struct pickle *p);
void pickle_free(struct pickle *p); /* NULL is allowed */

/* Returns the dict's value under the key; NULL: the dict lacks the key, v is no dict, or v is
 * NULL. */
const struct pickle_value *pickle_get(const struct pickle_value *v, const char *key);
/* A number, or `without` if v is none. */
int64_t pickle_number(const struct pickle_value *v, int64_t without);
/* Copies a string, cut off; "" if v is none. */
void pickle_text(const struct pickle_value *v, char *out, size_t cap);

#endif
