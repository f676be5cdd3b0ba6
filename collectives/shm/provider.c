/* provider.c: carries out operations among the ranks of one node. The name of the way, by size:
 *
 *     "inline"          no data, or data in the arrivals or beside them
 *     "flat"            every rank stages; each copies or reduces all it needs
 *     "slices"          every rank reduces one slice
 *     "direct", "pull"  directly from buffer to buffer */
#include "collectives/shm/provider.h"

#include "collectives/comm/provider.h"
#include "collectives/shm/direct.h"
#include "collectives/shm/inline_msg.h"
#include "collectives/shm/staged.h"
#include "collectives/shm/tuning.h"

struct shm_tuning shm_tuning = {
#define SHM(name, bytes, decides, measured) .name = bytes,
#include "collectives/comm/selection.def"
};

_Static_assert(SHM_FITS_ALWAYS *SHM_RANKS_MAX <= SHM_SLOT_BYTES, "elements of all ranks fit");

bool shm_fits_large(size_t elem, int ranks)
{
    return (elem + 63) / 64 * 64 * (size_t)ranks <= SHM_SLOT_BYTES;
}

static bool shm_can(const struct coll_call *c)
{
    const dlcoll_comm *comm = c->comm;
    if (c->reduce.dtype && !shm_fits(c->elem, c->ranks.size))
        return false;
    return comm->shm && c->ranks.size == comm->topo.nlocal &&
           (c->ranks.map ? c->ranks.map == comm->topo.local_ranks : comm->topo.nnodes == 1);
}

static int shm_perform(struct shm_op *op)
{
    int r;
    switch (op->call->kind) {
    case CALL_ALL_REDUCE:
        r = direct_all_reduce(op);
        return r > 0 ? staged_all_reduce(op) : r;
    case CALL_REDUCE:
        r = direct_reduce(op);
        return r > 0 ? staged_reduce(op) : r;
    case CALL_REDUCE_SCATTER:
    case CALL_REDUCE_SCATTER_V:
        r = direct_reduce_scatter(op);
        return r > 0 ? staged_reduce_scatter(op) : r;
    case CALL_SCAN:
    case CALL_EXSCAN:
        return staged_scan(op);
    case CALL_BROADCAST:
        return staged_broadcast(op);
    case CALL_ALL_GATHER:
    case CALL_ALL_GATHER_V:
        return staged_all_gather(op);
    case CALL_GATHER:
    case CALL_GATHER_V:
        return staged_gather(op);
    case CALL_SCATTER:
    case CALL_SCATTER_V:
        return staged_scatter(op);
    default:
        return staged_all_to_all(op);
    }
}

static int shm_run(struct coll_call *c)
{
    struct shm_op op;
    c->may_repeat = false;
    int r = shm_begin(&op, c->comm->shm, c);
    if (r < 0)
        return r;
    size_t bytes = inline_msg_bytes(op.s, c);
    if (bytes <= shm_tuning.inlined) {
        c->algo = "inline";
        r = inline_msg_run(&op, bytes);
    } else {
        r = shm_perform(&op);
    }
    shm_end(&op);
    return r;
}

const struct coll_provider shm_provider = {.name = "shm", .can = shm_can, .run = shm_run};
