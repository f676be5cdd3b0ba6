/* clock_offset.h: how far another host's monotonic clock is from ours, from the times in messages
 * that went there and came back (as NTP does it). The exchange with the smallest round trip says it
 * best; it is trusted less as it grows old, since clocks drift. */
#ifndef RENDEZVOUS_RULES_CLOCK_OFFSET_H
#define RENDEZVOUS_RULES_CLOCK_OFFSET_H

#include <stdbool.h>
#include <stdint.h>

struct clock_offset {
    bool known;
    uint64_t offset; /* theirs - ours, modulo 2^64 */
    uint64_t rtt_ns;
    uint64_t at_ns; /* ours */
};

/* Records an exchange: a message sent at `sent` (ours) and seen at `seen` (theirs), whose answer
 * was sent at `answered` (theirs) and arrived at `now`. Impossible times are ignored: two of the
 * times come from the other side. */
void clock_offset_sample(struct clock_offset *c, uint64_t sent, uint64_t seen, uint64_t answered,
                         uint64_t now);

/* `theirs` on our clock. Without an estimate, a message that they sent at `sent` (theirs) and that
 * is here `now` is taken to have needed no time. Never later than now. */
uint64_t clock_offset_to_ours(const struct clock_offset *c, uint64_t theirs, uint64_t sent,
                              uint64_t now);

#endif
