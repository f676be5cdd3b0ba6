/* fold_text.h: a text of which there are several, which differ in numbers and addresses only. Of a
 * number that differs the smallest and the largest are kept. Pure. */
#ifndef AGENT_OUTPUT_FOLD_TEXT_H
#define AGENT_OUTPUT_FOLD_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bytes.h"

#define FOLD_NUMBERS_MAX 256 /* in which two texts may differ */

struct fold_number; /* a number that differs between the texts */

struct fold_text {
    uint8_t *text; /* the first */
    size_t len;
    struct fold_number *numbers; /* in their order */
    size_t nnumbers;
};

/* Returns a hash that is equal for texts that differ in numbers only. seed: part of the hash. */
uint64_t fold_text_hash(const uint8_t *p, size_t len, uint64_t seed);

void fold_text_init(struct fold_text *t, const uint8_t *p, size_t len); /* copies it */
void fold_text_fini(struct fold_text *t);
size_t fold_text_bytes(const struct fold_text *t); /* of memory */

/* Whether the text differs from the others in numbers only. note: includes the numbers of the text
 * from now on. */
bool fold_text_alike(struct fold_text *t, const uint8_t *p, size_t len, bool note);

enum fold_side {
    FOLD_LOW, /* the smallest in the place of each number: a text that is alike */
    FOLD_HIGH,
    FOLD_BOTH, /* "0..7" */
};
void fold_text_put(const struct fold_text *t, enum fold_side side, struct buf *b);

#endif
