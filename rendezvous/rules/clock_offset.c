#include "rendezvous/rules/clock_offset.h"

#define RTT_MAX_NS    60000000000u
#define DRIFT_DIVISOR 10000u /* 100 ppm, twice what a bad quartz does */

void clock_offset_sample(struct clock_offset *c, uint64_t sent, uint64_t seen, uint64_t answered,
                         uint64_t now)
{
    if (sent == 0 || sent > now || answered < seen)
        return;
    uint64_t away = now - sent, there = answered - seen;
    if (there > away || away - there > RTT_MAX_NS)
        return;
    uint64_t rtt = away - there;
    if (c->known && rtt > c->rtt_ns + (now - c->at_ns) / DRIFT_DIVISOR)
        return;
    *c = (struct clock_offset){
        .known = true, .offset = seen - sent - rtt / 2, .rtt_ns = rtt, .at_ns = now};
}

uint64_t clock_offset_to_ours(const struct clock_offset *c, uint64_t theirs, uint64_t sent,
                              uint64_t now)
{
    uint64_t ago = c->known ? now - (theirs - c->offset) : sent - theirs;
    if (ago > INT64_MAX) /* in the future */
        return now;
    return ago < now ? now - ago : 0;
}
