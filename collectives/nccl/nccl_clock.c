/* nccl_clock.c: when the device began and ended operations, in the host's time, for the flight
 * recorder.
 *
 * CUDA tells only the time between two events. So an event on the library's own stream, whose
 * completion the host sees at once, ties the device's clock to CLOCK_MONOTONIC. A new one follows
 * every ten seconds: the driver returns milliseconds as a float, which is exact to a microsecond
 * for as long. */
#include <math.h>

#include "collectives/api/wait.h"
#include "collectives/nccl/nccl_comm.h"
#include "core/clock.h"

enum {
    TIE_NS = 1000 * 1000,        /* how long a tie may take: the stream may be busy */
    TIE_FIRST_NS = 100 * TIE_NS, /* the first one */
    TIE_EVERY_MS = 10 * 1000,
    TIE_AGAIN_NS = 1000 * 1000 * 1000 /* after one that took too long */
};

static bool tie(struct nccl *n, uint64_t limit_ns)
{
    struct nccl_clock *k = &n->clock;
    cuda_event next = k->next;
    uint64_t before = mono_ns();
    int rc = n->cuda->EventRecord(next, n->stream);
    k->tried_ns = before;
    while (rc == CUDA_OK && (rc = n->cuda->EventQuery(next)) == CUDA_NOT_READY &&
           mono_ns() - before < limit_ns) {
        wait_relax();
        rc = CUDA_OK;
    }
    if (rc != CUDA_OK || n->cuda->EventQuery(next) != CUDA_OK)
        return false;
    k->next = k->tied;
    k->tied = next;
    k->tied_ns = before + (mono_ns() - before) / 2;
    return true;
}

bool nccl_clock_open(struct nccl *n)
{
    struct nccl_clock *k = &n->clock;
    return n->cuda->EventElapsedTime && n->cuda->EventCreate(&k->start, 0) == CUDA_OK &&
           n->cuda->EventCreate(&k->tied, 0) == CUDA_OK &&
           n->cuda->EventCreate(&k->next, 0) == CUDA_OK && tie(n, TIE_FIRST_NS);
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
