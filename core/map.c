#include "core/map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/clock.h"

#define ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))

/* SipHash-1-3: Aumasson and Bernstein, "SipHash: a fast short-input PRF", with one compression and
 * three finalisation rounds, as most language runtimes use it for their tables. */
static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = ROTL(v[1], 13) ^ v[0];
    v[0] = ROTL(v[0], 32);
    v[2] += v[3];
    v[3] = ROTL(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = ROTL(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = ROTL(v[1], 17) ^ v[2];
    v[2] = ROTL(v[2], 32);
}

static uint64_t hash_bytes(const uint64_t seed[2], const void *key, size_t len)
{
    uint64_t v[4] = {seed[0] ^ 0x736f6d6570736575u, seed[1] ^ 0x646f72616e646f6du,
                     seed[0] ^ 0x6c7967656e657261u, seed[1] ^ 0x7465646279746573u};
    const unsigned char *p = key;
    uint64_t last = (uint64_t)len << 56, word;
    size_t left = len;
    for (; left >= 8; left -= 8, p += 8) {
        memcpy(&word, p, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    for (size_t i = 0; i < left; i++)
        last |= (uint64_t)p[i] << (8 * i);
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void map_init(struct map *m)
{
    memset(m, 0, sizeof(*m));
    if (getrandom(m->seed, sizeof(m->seed), GRND_NONBLOCK) != sizeof(m->seed))
        m->seed[0] = mono_ns() ^ (uint64_t)(uintptr_t)m;
}

void map_fini(struct map *m, void (*free_value)(void *value))
{
    for (size_t i = 0; i < m->cap; i++) {
        if (!m->slots[i].key)
            continue;
        if (free_value)
            free_value(m->slots[i].value);
        free(m->slots[i].key);
    }
    free(m->slots);
    m->slots = NULL;
    m->cap = m->n = 0;
}

/* The slot of the key, or the free slot where it belongs. Needs a free slot somewhere. */
static struct map_entry *probe(const struct map *m, const void *key, size_t len, uint64_t hash)
{
    for (size_t i = hash & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
        struct map_entry *e = &m->slots[i];
        if (!e->key || (e->hash == hash && e->len == len && memcmp(e->key, key, len) == 0))
            return e;
    }
}

static int grow(struct map *m)
{
    struct map bigger = *m;
    bigger.cap = m->cap ? m->cap * 2 : 16;
    bigger.slots = calloc(bigger.cap, sizeof(*bigger.slots));
    if (!bigger.slots)
        return -1;
    for (size_t i = 0; i < m->cap; i++) {
        struct map_entry *e = &m->slots[i];
        if (e->key)
            *probe(&bigger, e->key, e->len, e->hash) = *e;
    }
    free(m->slots);
    *m = bigger;
    return 0;
}

void *map_get(const struct map *m, const void *key, size_t len)
{
    if (m->n == 0)
        return NULL;
    return probe(m, key, len, hash_bytes(m->seed, key, len))->value;
}

void **map_put(struct map *m, const void *key, size_t len)
{
    uint64_t hash = hash_bytes(m->seed, key, len);
    if (m->cap) {
        struct map_entry *e = probe(m, key, len, hash);
        if (e->key)
            return &e->value;
    }
    if ((m->n + 1) * 4 > m->cap * 3 && grow(m) < 0)
        return NULL;
    struct map_entry *e = probe(m, key, len, hash);
    e->key = malloc(len + 1);
    if (!e->key)
        return NULL;
    memcpy(e->key, key, len);
    e->key[len] = '\0';
    e->len = len;
    e->hash = hash;
    e->value = NULL;
    m->n++;
    return &e->value;
}

void *map_remove(struct map *m, const void *key, size_t len)
{
    if (m->n == 0)
        return NULL;
    struct map_entry *e = probe(m, key, len, hash_bytes(m->seed, key, len));
    if (!e->key)
        return NULL;
    void *value = e->value;
    free(e->key);
    /* Close the gap: pull back every entry of the run that may sit there. */
    size_t mask = m->cap - 1, hole = (size_t)(e - m->slots);
    for (size_t i = (hole + 1) & mask; m->slots[i].key; i = (i + 1) & mask) {
        size_t home = m->slots[i].hash & mask;
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    memset(&m->slots[hole], 0, sizeof(m->slots[hole]));
    m->n--;
    return value;
}

struct map_entry *map_next(const struct map *m, size_t *i)
{
    while (*i < m->cap) {
        struct map_entry *e = &m->slots[(*i)++];
        if (e->key)
            return e;
    }
    return NULL;
}
