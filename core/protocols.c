#include "core/protocols.h"

#include <stdio.h>

const char *protocols_differ(uint32_t theirs, char *out, size_t cap)
{
    static const char *const names[] = {"rendezvous", "store relay", "data of libdlcoll",
                                        "nothing"};
    size_t len = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < 4; i++) {
        unsigned there = theirs >> 8 * i & 0xff, here = PROTOCOLS_OF_NODES >> 8 * i & 0xff;
        if (there != here && len < cap)
            len += (size_t)snprintf(out + len, cap - len, "%s%s %u, not %u", len ? "; " : "",
                                    names[i], there, here);
    }
    return out;
}
