/* nccl_advice.c: what on this node will make NCCL fail or crawl, as a line with the remedy. Each is
 * printed once on a node, by the library or by the launcher. */
#include "collectives/nccl/nccl_comm.h"
#include "core/log.h"
#include "core/memlock.h"

static bool is_first(const dlcoll_comm *c, enum segment_warning what)
{
    static _Atomic uint32_t printed; /* by this process */
    _Atomic uint32_t *on_node = job_segment_warned(&c->world->segment);
    if (atomic_fetch_or(&printed, what) & what)
        return false;
    return on_node ? !(atomic_fetch_or(on_node, what) & what) : c->world->local_rank == 0;
}

static void look_for_copies(const struct nccl *n)
{
    char used[256], other[256];
    if (nccl_is_loaded_twice(n->api, used, other, sizeof(used)) &&
        is_first(n->comm, SEGMENT_WARNED_NCCL_TWICE))
        log_warn("this process has loaded NCCL twice: %s, which libdlcoll uses, and %s; to use the "
                 "other one: DLCOLL_NCCL_LIB=%s",
                 used, other, other);
}

static void look_at_compute_mode(const struct nccl *n)
{
    int mode = 0, devices = 0, ranks = n->comm->topo.nlocal;
    if (n->cuda->DeviceGetAttribute(&mode, CUDA_COMPUTE_MODE, n->device) == CUDA_OK &&
        mode == CUDA_MODE_EXCLUSIVE && n->cuda->DeviceGetCount(&devices) == CUDA_OK &&
        ranks > devices && is_first(n->comm, SEGMENT_WARNED_COMPUTE_MODE))
        log_warn("device %d is in the compute mode Exclusive_Process, and %d ranks share %d "
                 "device%s: only one rank can use each (to change that: nvidia-smi -c DEFAULT)",
                 n->device, ranks, devices, devices == 1 ? "" : "s");
}

static void look_at_memlock(const struct nccl *n)
{
    char text[256];
    if (n->comm->topo.nlocal < n->comm->size && memlock_is_low(MEMLOCK_CARDS, text, sizeof(text)) &&
        is_first(n->comm, SEGMENT_WARNED_MEMLOCK))
        log_warn("%s", text);
}

void nccl_advise(const struct nccl *n)
{
    look_for_copies(n);
    look_at_compute_mode(n);
    look_at_memlock(n);
}
