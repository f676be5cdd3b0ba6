/* store_retry.h: how the store client tries again to connect. */
#ifndef RENDEZVOUS_STORE_STORE_RETRY_H
#define RENDEZVOUS_STORE_STORE_RETRY_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "core/clock.h"

#define RETRY_FIRST_MS   10
#define RETRY_MAX_MS     1000
#define RETRY_ATTEMPT_MS 3000 /* to one of a host's addresses, before the next is tried */

/* Whether trying again can help: the server may be about to start, or the network to come up. The
 * code is a negative errno value. */
static inline bool retry_helps(int code)
{
    switch (-code) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
        return true;
    default:
        return false;
    }
}

/* How long to pause now, jittered by half, so that ranks that were started together do not come
 * back together; *backoff_ms becomes the next mean. */
static inline uint64_t retry_pause_ns(int *backoff_ms)
{
    uint64_t half = (uint64_t)*backoff_ms * 500000u;
    uint64_t mix = mono_ns() * 6364136223846793005u + (uint64_t)getpid() * 1442695040888963407u;
    *backoff_ms += *backoff_ms / 2;
    if (*backoff_ms > RETRY_MAX_MS)
        *backoff_ms = RETRY_MAX_MS;
    return half + (mix >> 32) % (2 * half);
}

#endif
