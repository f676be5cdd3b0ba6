/* comm_memory.c: the memory of a communicator's ranks on one node, when no launcher has prepared
 * it: the lowest local rank makes it and all are told how to reach it; unless every rank of every
 * node has it, nobody uses it, so that all choose their algorithms by the same facts. */
#include "collectives/ops/comm_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/comm/provider.h"
#include "collectives/net/net.h"
#include "collectives/shm/memory.h"

struct share {
    uint64_t works;
    struct shm_offer offer;
};

/* The operations of the library's own, before the program's first: all have number 0. */
enum memory_part { OFFERS, ALL_ATTACHED, ALL_MEET };

static int memory_perform(dlcoll_comm *c, enum memory_part part, const void *send, void *recv,
                          size_t count, uint64_t deadline_ns, struct coll_failure *failure)
{
    enum call_kind kind = part == OFFERS ? CALL_ALL_GATHER : CALL_ALL_REDUCE;
    struct coll_call call = {.sig = {.kind = (uint8_t)kind,
                                     .dtype = DLCOLL_U64,
                                     .settings = c->job->conf.settings,
                                     .count = count},
                             .kind = kind,
                             .part = part,
                             .comm = c,
                             .ranks = {.size = c->size, .me = c->rank},
                             .send = send,
                             .recv = recv,
                             .count = count,
                             .dtype = dtype_get(DLCOLL_U64),
                             .elem = sizeof(uint64_t),
                             .op = DLCOLL_MIN,
                             .deadline_ns = deadline_ns,
                             .failure = failure};
    if (kind == CALL_ALL_REDUCE) {
        reduce_find(DLCOLL_U64, DLCOLL_MIN, &call.reduce);
        call.reduce.ranks = c->size;
        call.sig.op = call.reduce.code;
    }
    return net_provider.run(&call);
}

int comm_share_memory(dlcoll_comm *c, bool meets, uint64_t deadline_ns,
                      struct coll_failure *failure)
{
    enum { WORDS = sizeof(struct share) / sizeof(uint64_t) };
    struct err e = ERR_INIT;
    struct share own = {.works = 1};
    if (c->size == 1 || !c->job->conf.shared_memory || c->topo.most_local == 1)
        return meets && c->size > 1
                   ? memory_perform(c, ALL_MEET, &own.works, &own.works, 1, deadline_ns, failure)
                   : 0;
    struct share *all = malloc((size_t)c->size * sizeof(*all));
    if (!all)
        return err_set(&failure->err, -ENOMEM, "no memory");
    bool maker = c->topo.local == 0;
    if (c->topo.nlocal > 1 && maker)
        own.works = shm_create(c, &own.offer, &e) == 0;
    int r = memory_perform(c, OFFERS, &own, all, WORDS, deadline_ns, failure);
    const struct share *offer = &all[c->topo.local_ranks[0]];
    uint64_t works = r == 0 && offer->works;
    if (works && c->topo.nlocal > 1 && !maker)
        works = shm_attach(c, &offer->offer, &e) == 0;
    if (r == 0)
        r = memory_perform(c, ALL_ATTACHED, &works, &works, 1, deadline_ns, failure);
    c->shares_memory = r == 0 && works;
    if (c->shares_memory)
        shm_all_attached(c);
    else
        shm_close(c);
    if (c->shares_memory && c->topo.nnodes == 1) /* nothing goes over them from here on */
        tcp_disconnect(c->net->transport);
    free(all);
    return r;
}
