/* hash.h: a digest of a sequence of numbers, the same on every machine. */
#ifndef CORE_HASH_H
#define CORE_HASH_H

#include <stdint.h>

/* Adds v to the digest h (0 or any start value). Never 0. */
static inline uint64_t hash_add(uint64_t h, uint64_t v)
{
    h ^= v + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    h = (h ^ h >> 31) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 29;
    return h ? h : 1;
}

#endif
