#include "collectives/bootstrap/settings.h"

#include <stdio.h>

/* From the lowest bit on: 8 bits of sockets less 1, 1 of no shared memory, 1 of no room for it, 22
 * of roots and 32 of rules. */
enum { SOCKETS_BITS = 8, ROOTS_AT = 10, ROOTS_BITS = 22, RULES_AT = 32 };
static const uint64_t g_no_shm = 1 << SOCKETS_BITS, g_no_room = 2 << SOCKETS_BITS;

/* Encodes a number in so many bits: exactly if it fits, and as 0 only if it is 0. */
static uint64_t fit(uint64_t v, int bits)
{
    uint64_t most = (UINT64_C(1) << bits) - 1;
    return v < most ? v : 1 + (v ^ v >> bits) % most;
}

uint64_t settings_pack(const struct settings *s)
{
    return fit((uint64_t)(s->sockets - 1), SOCKETS_BITS) | (s->shared_memory ? 0 : g_no_shm) |
           (s->lacks_memory ? g_no_room : 0) |
           fit((uint64_t)s->nccl_roots, ROOTS_BITS) << ROOTS_AT |
           fit(s->rules ^ s->rules >> RULES_AT, RULES_AT) << RULES_AT;
}

static int sockets_of(uint64_t s)
{
    return 1 + (int)(s & 0xff);
}

static int roots_of(uint64_t s)
{
    return (int)(s >> ROOTS_AT & ((1 << ROOTS_BITS) - 1));
}

const char *settings_differ(uint64_t theirs, uint64_t ours, char *out, size_t cap)
{
    uint64_t differ = theirs ^ ours;
    size_t n = 0;
    out[0] = '\0';
#define ADD(...) n += n < cap ? (size_t)snprintf(out + n, cap - n, __VA_ARGS__) : 0
    if (sockets_of(theirs) != sockets_of(ours))
        ADD("; DLCOLL_SOCKETS is %d there and %d here", sockets_of(theirs), sockets_of(ours));
    if (differ & g_no_shm)
        ADD("; DLCOLL_SHM is %s there and %s here", theirs & g_no_shm ? "off" : "on",
            ours & g_no_shm ? "off" : "on");
    if (differ & g_no_room)
        ADD("; there is no room for shared memory %s (ulimit -f, ulimit -v of dlaunch)",
            theirs & g_no_room ? "there" : "here");
    if (roots_of(theirs) != roots_of(ours))
        ADD("; DLCOLL_NCCL_ROOTS is %d there and %d here", roots_of(theirs), roots_of(ours));
    if (differ >> RULES_AT)
        ADD("; the rules of DLCOLL_ALGO and DLCOLL_TUNE_FILE are others");
#undef ADD
    return n ? out + 2 : out;
}
