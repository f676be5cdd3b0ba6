/* nccl_clock.c: when the device began and ended operations, in the host's time, for the flight
 * recorder.
 *
 * CUDA tells only the time between two events. So an event on the library's own stream, whose
 * completion the host sees at once, ties the device's clock to CLOCK_MONOTONIC. A new one follows
 * every ten seconds: the driver returns milliseconds as a float, which is exact to a microsecond
 * for as long. */
#include <math.h>

#include "collectives/nccl/nccl_comm.h"
#include "core/clock.h"

enum {
    TIE_NS = 200 * 1000,               /* how long a tie may take: the stream may be busy */
    TIE_FIRST_NS = 1000 * 1000 * 1000, /* the first one, of several */
    TIES = 8,
    TIE_EVERY_MS = 10 * 1000,
    TIE_AGAIN_NS = 1000 * 1000 * 1000 /* after one that took too long */
};

/* The error is at most half of the time that this takes. How long, in ns; 0: longer than limit_ns,
 * and the old tie stands. */
static uint64_t tie(struct nccl *n, uint64_t limit_ns)
{
    struct nccl_clock *k = &n->clock;
    cuda_event next = k->next;
    uint64_t before = k->tried_ns = mono_ns(), took = 0;
    int rc = n->cuda->EventRecord(next, n->stream);
    if (rc == CUDA_OK) {
        do {
            rc = n->cuda->EventQuery(next);
            took = mono_ns() - before;
        } while (rc == CUDA_NOT_READY && took < limit_ns);
    }
    if (rc != CUDA_OK || took >= limit_ns)
        return 0;
    k->next = k->tied;
    k->tied = next;
    k->tied_ns = before + took / 2;
    return took;
}

bool nccl_clock_open(struct nccl *n)
{
    struct nccl_clock *k = &n->clock;
    if (!n->cuda->EventElapsedTime || n->cuda->EventCreate(&k->start, 0) != CUDA_OK ||
        n->cuda->EventCreate(&k->tied, 0) != CUDA_OK ||
        n->cuda->EventCreate(&k->next, 0) != CUDA_OK)
        return false;
    uint64_t best = tie(n, TIE_FIRST_NS);
    for (int i = 1; best && i < TIES; i++) {
        uint64_t took = tie(n, best);
        best = took ? took : best;
    }
    return best != 0;
}

void nccl_clock_close(struct nccl *n)
{
    cuda_event all[] = {n->clock.start, n->clock.tied, n->clock.next};
    for (int i = 0; i < 3; i++) {
        if (all[i])
            n->cuda->EventDestroy(all[i]);
    }
}

uint64_t nccl_clock_read(struct nccl *n, cuda_event event)
{
    struct nccl_clock *k = &n->clock;
    float ms = 0;
    int rc = n->cuda->EventElapsedTime(&ms, k->tied, event);
    bool old = fabsf(ms) > TIE_EVERY_MS && mono_ns() - k->tried_ns > TIE_AGAIN_NS;
    if (rc == CUDA_OK && old && tie(n, TIE_NS))
        rc = n->cuda->EventElapsedTime(&ms, k->tied, event);
    return rc == CUDA_OK ? k->tied_ns + (uint64_t)(int64_t)((double)ms * 1e6) : 0;
}
