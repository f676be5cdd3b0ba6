/* nccl_choose.c: which backend the program wants, and whether a buffer is device memory.
 *
 * The check never creates a CUDA context, so a host operation uses no memory on a GPU. An
 * unexpected answer of the driver is an error: the library would dereference a device pointer if it
 * took the pointer for a host pointer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/nccl/nccl.h"
#include "collectives/nccl/nccl_api.h"
#include "collectives/nccl/nccl_comm.h"

int nccl_choose(int backend, bool *devices, struct err *e)
{
    static const char *const names[] = {"", "auto", "cpu", "nccl"};
    const char *env = getenv("DLCOLL_BACKEND");
    const struct nccl_api *nccl;
    const struct cuda_api *cuda;
    int b = backend;
    for (int i = 1; b == DLCOLL_BACKEND_DEFAULT && env && *env && i < 4; i++)
        b = strcmp(env, names[i]) == 0 ? i : b;
    if (b == DLCOLL_BACKEND_DEFAULT && env && *env)
        return err_set(e, -EINVAL, "DLCOLL_BACKEND: '%.40s' is not one of auto, cpu, nccl", env);
    if (b < 0 || b > DLCOLL_BACKEND_NCCL)
        return err_set(e, -EINVAL, "there is no such backend (%d)", b);
    *devices = b == DLCOLL_BACKEND_NCCL;
    if (*devices && (cuda_api_get(&cuda, e) < 0 || nccl_api_get(&nccl, e) < 0)) {
        err_wrap(e, "the nccl backend cannot be used");
        return e->code = -ENOTSUP;
    }
    if (b == DLCOLL_BACKEND_AUTO || b == DLCOLL_BACKEND_DEFAULT)
        *devices = cuda_is_likely();
    return 0;
}

/* Returns the driver's code. The attributes of a pointer that CUDA does not know are zero. */
static int pointer_attributes(const struct cuda_api *cuda, const void *p, bool *device)
{
    unsigned type = 0, managed = 0;
    int names[] = {CUDA_POINTER_TYPE, CUDA_POINTER_MANAGED};
    void *out[] = {&type, &managed};
    int rc = cuda->PointerGetAttributes(2, names, out, (cuda_ptr)(uintptr_t)p);
    *device = rc == CUDA_OK && (type == CUDA_MEMORY_DEVICE || managed);
    return rc;
}

int nccl_check_buffer(dlcoll_comm *c, enum call_kind kind, const char *name, const void *p,
                      bool device, int *on)
{
    const struct cuda_api *cuda;
    struct err e = ERR_INIT;
    unsigned type = 0, managed = 0;
    int ordinal = -1, names[] = {CUDA_POINTER_TYPE, CUDA_POINTER_MANAGED, CUDA_POINTER_DEVICE};
    void *out[] = {&type, &managed, &ordinal};
    if (!p || !c->job->conf.devices || cuda_api_if_loaded(&cuda, &e) < 0 || !cuda ||
        cuda->PointerGetAttributes(3, names, out, (cuda_ptr)(uintptr_t)p) != CUDA_OK)
        return 0; /* what decided the way has been asked, and the driver has said more */
    if (!device && (type == CUDA_MEMORY_DEVICE || managed))
        return comm_error(c, DLCOLL_EINVAL,
                          "%s: %s is device memory, and the operation is on host memory: all "
                          "buffers must be of one kind",
                          call_name(kind), name);
    if (device && !managed && type != CUDA_MEMORY_DEVICE && type != CUDA_MEMORY_HOST)
        return comm_error(c, DLCOLL_EINVAL,
                          "%s: %s is host memory, and the operation is on a device, as a buffer or "
                          "its stream says: all buffers must be of one kind",
                          call_name(kind), name);
    if (!device || managed || type != CUDA_MEMORY_DEVICE)
        return 0;
    if (*on < 0)
        *on = c->nccl ? c->nccl->device : ordinal;
    return ordinal == *on ? 0
                          : comm_error(c, DLCOLL_EINVAL,
                                       "%s: %s is memory of device %d, and the communicator works "
                                       "on device %d",
                                       call_name(kind), name, ordinal, *on);
}

/* Asks in the first active primary context, if any, because this thread has no context. */
static int ask_in_primary(const struct cuda_api *cuda, const void *p, bool *device)
{
    int n = 0, rc = cuda->DeviceGetCount(&n);
    for (int i = 0; i < n && rc == CUDA_OK; i++) {
        unsigned flags;
        int active = 0;
        cuda_context ctx;
        rc = cuda->DevicePrimaryCtxGetState(i, &flags, &active);
        if (rc != CUDA_OK || !active)
            continue;
        if ((rc = cuda->DevicePrimaryCtxRetain(&ctx, i)) != CUDA_OK)
            return rc;
        if ((rc = cuda->CtxPushCurrent(ctx)) == CUDA_OK) {
            rc = pointer_attributes(cuda, p, device);
            cuda->CtxPopCurrent(&ctx);
        }
        cuda->DevicePrimaryCtxRelease(i);
        return rc;
    }
    return rc;
}

int nccl_is_for(dlcoll_comm *c, const void *p, const void *stream, bool *device)
{
    const struct cuda_api *cuda;
    struct err e = ERR_INIT;
    *device = stream != NULL;
    if (stream || !p || !c->job->conf.devices)
        return 0;
    if (cuda_api_if_loaded(&cuda, &e) < 0)
        return comm_error(c, DLCOLL_EBACKEND, "%s", e.msg);
    if (!cuda)
        return 0;
    int rc = pointer_attributes(cuda, p, device);
    if (rc == CUDA_INVALID_CONTEXT)
        rc = ask_in_primary(cuda, p, device);
    switch (rc) {
    case CUDA_OK:
    case CUDA_INVALID_VALUE:   /* not a pointer of CUDA's */
    case CUDA_NOT_INITIALIZED: /* nobody has used the driver yet, */
    case CUDA_DEINITIALIZED:   /* or the process is about to exit: it has no device memory */
    case CUDA_NO_DEVICE:
        return 0;
    default:
        return comm_error(c, DLCOLL_EBACKEND,
                          "CUDA on rank %d cannot tell whether a buffer is device memory: %s",
                          c->world->rank, cuda_strerror(cuda, rc));
    }
}
