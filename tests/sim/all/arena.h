/* arena.h: memory at a fixed address for all that a simulated world allocates, so that a state is
 * saved and restored by copying. malloc() and its relatives are wrapped by the linker. */
#ifndef TESTS_SIM_ALL_ARENA_H
#define TESTS_SIM_ALL_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_BYTES ((size_t)4 << 20)

extern volatile bool
    arena_on; /* whether malloc() takes from it, of which the compiler knows nothing */

void arena_open(void);
/* The block in use that p points to the beginning of, zero behind its content; NULL: there is none.
 */
struct arena_block *arena_block(uint64_t p);
size_t arena_size(const struct arena_block *b);
void *arena_data(struct arena_block *b);
/* The number of the block in hash `of`: a new one, *n, which rises, when it has none. */
uint32_t arena_number(struct arena_block *b, uint32_t of, uint32_t *n);

struct arena_copy {
    char *bytes; /* what is not zero */
    size_t n;
};
void arena_save(struct arena_copy *c); /* freed by arena_drop() */
void arena_restore(const struct arena_copy *c);
void arena_drop(struct arena_copy *c);

#endif
