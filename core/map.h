/* map.h: a hash map from byte strings to pointers.
 *
 * Open addressing with linear probing and backward-shift deletion; keys are copied and owned by the
 * map, values are the caller's. The hash is keyed per map from getrandom(2), so that whoever
 * chooses the keys cannot make them collide. Not thread-safe. */
#ifndef CORE_MAP_H
#define CORE_MAP_H

#include <stddef.h>
#include <stdint.h>

struct map_entry {
    char *key; /* owned by the map, NUL after its `len` bytes; NULL: free slot */
    size_t len;
    uint64_t hash;
    void *value;
};

struct map {
    struct map_entry *slots;
    size_t cap; /* a power of two, or 0 */
    size_t n;   /* entries */
    uint64_t seed[2];
};

void map_init(struct map *m);
/* Frees keys and slots, after free_value (may be NULL) on each value. *m is empty and usable again.
 */
void map_fini(struct map *m, void (*free_value)(void *value));

/* The value, or NULL when the key is absent. */
void *map_get(const struct map *m, const void *key, size_t len);

/* The place of the key's value, made (holding NULL) when absent; NULL when memory ran out. Valid
 * until the next map_put() or map_remove(). A caller that asks for a new key stores a non-NULL
 * value. */
void **map_put(struct map *m, const void *key, size_t len);

/* Takes the key out and returns its value, or NULL when it was absent. */
void *map_remove(struct map *m, const void *key, size_t len);

/* Walks all entries, in no order: `for (size_t i = 0; (e = map_next(m, &i));)`. No change
 * meanwhile. */
struct map_entry *map_next(const struct map *m, size_t *i);

#endif
