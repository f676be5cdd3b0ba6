#include "collectives/nccl/nccl_helper.h"

#include <stdio.h>
#include <stdlib.h>

#include "collectives/base/wait.h"
#include "core/clock.h"
#include "core/thread.h"

enum { RUNNING, DONE, LEFT };
#define PATIENCE_NS UINT64_C(500000000) /* for calls that come to an end without an abort */

static void helper_free(struct nccl_helper *h)
{
    free(h->ids);
    free(h);
}

void nccl_go_inside(_Atomic uint32_t *inside)
{
    if (inside)
        atomic_fetch_add(inside, 1);
}

void nccl_come_out(_Atomic uint32_t *inside)
{
    if (inside && atomic_fetch_sub(inside, 1) == 1)
        wait_wake(inside); /* an address: nothing is read there, should it have been freed */
}

static void await_callers(_Atomic uint32_t *inside, uint64_t until_ns)
{
    uint64_t now;
    uint32_t n;
    while (inside && (n = atomic_load(inside)) > 0 && (now = mono_ns()) < until_ns)
        wait_sleep(&(struct wait_word){inside, n}, 1,
                   until_ns - now < PATIENCE_NS ? until_ns - now : PATIENCE_NS);
}

static int abort_all(struct nccl_helper *h)
{
    await_callers(h->inside, mono_ns() + PATIENCE_NS);
    int rc = h->api->CommAbort(h->nccl);
    await_callers(h->inside, UINT64_MAX);
    if (h->made && h->made->is_comm && h->made->p)
        h->api->CommAbort(h->made->p);
    free(h->made);
    return rc;
}

int nccl_helper_call(struct nccl_helper *h)
{
    const struct nccl_api *api = h->api;
    switch (h->job) {
    case NCCL_INIT:
        return h->nids == 1
                   ? api->CommInitRankConfig(&h->nccl, h->size, h->ids[0], h->rank, &h->conf)
                   : api->CommInitRankScalable(&h->nccl, h->size, h->rank, h->nids, h->ids,
                                               &h->conf);
    case NCCL_SPLIT:
        return api->CommSplit(h->nccl, h->color, h->key, &h->made->p, &h->conf);
    case NCCL_WINDOW:
        return api->CommWindowRegister(h->nccl, h->memory, h->len, &h->made->p,
                                       NCCL_WINDOW_SYMMETRIC);
    case NCCL_FINALIZE:
        return api->CommFinalize(h->nccl);
    case NCCL_DESTROY:
        return api->CommDestroy(h->nccl);
    default:
        return abort_all(h);
    }
}

static void *helper_main(void *arg)
{
    struct nccl_helper *h = arg;
    int relaxed = CUDA_CAPTURE_RELAXED;
    h->cuda->ThreadExchangeStreamCaptureMode(&relaxed);
    h->cuda->CtxPushCurrent(h->ctx);
    h->rc = nccl_helper_call(h);
    if (h->job != NCCL_ABORT)
        nccl_come_out(h->inside);
    uint32_t running = RUNNING;
    if (atomic_compare_exchange_strong(&h->state, &running, DONE)) {
        wait_wake(&h->state); /* an address, as above */
        return NULL;
    }
    if (h->job == NCCL_INIT && h->nccl)
        h->api->CommAbort(h->nccl);
    helper_free(h);
    return NULL;
}

struct nccl_helper *nccl_helper_start(const struct nccl_helper *what)
{
    struct nccl_helper *h = malloc(sizeof(*h));
    if (!h)
        return NULL;
    *h = *what;
    if (h->conf.name) {
        snprintf(h->name, sizeof(h->name), "%s", h->conf.name);
        h->conf.name = h->name;
    }
    h->since_ns = mono_ns();
    atomic_init(&h->state, RUNNING);
    if (h->job != NCCL_ABORT)
        nccl_go_inside(h->inside);
    if (thread_start(NULL, 0, helper_main, h) == 0)
        return h;
    if (h->job != NCCL_ABORT)
        nccl_come_out(h->inside);
    free(h);
    return NULL;
}

bool nccl_helper_is_done(const struct nccl_helper *h)
{
    return atomic_load_explicit(&h->state, memory_order_acquire) == DONE;
}

bool nccl_helper_wait(const struct nccl_helper *h, uint64_t until_ns)
{
    uint64_t now;
    while (!nccl_helper_is_done(h) && (now = mono_ns()) < until_ns)
        wait_sleep(&(struct wait_word){&h->state, RUNNING}, 1, until_ns - now);
    return nccl_helper_is_done(h);
}

void nccl_helper_leave(struct nccl_helper *h)
{
    uint32_t running = RUNNING;
    if (!atomic_compare_exchange_strong(&h->state, &running, LEFT))
        helper_free(h);
}
