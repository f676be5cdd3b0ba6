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

const char *protocols_control_differs(uint32_t theirs, char *out, size_t cap)
{
    snprintf(out, cap,
             "dlaunchctl and the launcher are of different builds, and speak differently (control "
             "%u, not %u): use the dlaunchctl that was installed with the launcher",
             theirs, PROTOCOL_CONTROL);
    return out;
}

const char *protocols_refusal(uint32_t theirs, const char *whom, char *out, size_t cap)
{
    char how[128];
    snprintf(out, cap,
             "it is another build of dlaunch than %s, and they speak differently (%s): install the "
             "same on all nodes",
             whom, protocols_differ(theirs, how, sizeof(how)));
    return out;
}
