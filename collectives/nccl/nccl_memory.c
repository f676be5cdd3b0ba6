/* nccl_memory.c: memory that NCCL moves without a copy: NCCL has allocated it, or it is registered.
 */
#include <errno.h>
#include <stdint.h>

#include "collectives/nccl/nccl.h"
#include "collectives/nccl/nccl_comm.h"

enum { NCCL_INTERNAL = 3 };

/* Waits for a call that NCCL continues in the background. The caller is inside the communicator.
 * Returns the public code. */
static int settle_memory(struct nccl *n, const char *what, int rc)
{
    struct coll_failure failure;
    struct coll_call call = nccl_internal_call(n->comm, CALL_NCCL_INIT, NULL, 0,
                                               comm_deadline(n->comm->timeout_ms), &failure);
    call.seq = n->comm->seq;
    if (rc != NCCL_OK && rc != NCCL_IN_PROGRESS)
        return comm_error(n->comm, DLCOLL_EBACKEND, "%s: NCCL: %s", what,
                          n->api->GetErrorString(rc));
    int status = nccl_settle(n, rc, call.deadline_ns, &call);
    return status < 0 ? nccl_fail(n, status, &call) : 0;
}

static int register_with(dlcoll_comm *comm, void *p, size_t bytes, void **handle, bool window,
                         const char *what)
{
    int code = comm_enter(comm), rc = NCCL_OK;
    if (code < 0)
        return code;
    struct nccl *n = NULL;
    if (!p || !handle)
        code = comm_error(comm, DLCOLL_EINVAL, "%s: an argument is NULL", what);
    else if (window && (uintptr_t)p % NCCL_WINDOW_ALIGN)
        code = comm_error(comm, DLCOLL_EINVAL, "%s: the memory is not aligned to %d bytes", what,
                          NCCL_WINDOW_ALIGN);
    else
        n = nccl_get(comm, &(struct nccl_wish){.buffer = p}, comm_deadline(comm->timeout_ms),
                     &code);
    if (n)
        *handle = NULL;
    if (n && window && !n->api->CommWindowRegister)
        code = comm_error(comm, DLCOLL_ENOSUP, "%s: NCCL has windows from 2.27 on", what);
    else if (n && (window || n->api->CommRegister)) { /* older ones do without */
        struct nccl_place place = nccl_enter(n);
        pthread_mutex_lock(&n->lock);
        rc = !n->nccl ? NCCL_INTERNAL
             : window ? n->api->CommWindowRegister(n->nccl, p, bytes, handle, NCCL_WINDOW_SYMMETRIC)
                      : n->api->CommRegister(n->nccl, p, bytes, handle);
        pthread_mutex_unlock(&n->lock);
        code = settle_memory(n, what, rc);
        nccl_leave(n, place);
    }
    return comm_leave(comm, code);
}

static int deregister(dlcoll_comm *comm, void *handle, bool window, const char *what)
{
    int code = comm_enter(comm), rc = NCCL_OK;
    if (code < 0)
        return code;
    struct nccl *n = comm->nccl;
    if (n && handle && (window ? n->api->CommWindowDeregister : n->api->CommDeregister)) {
        struct nccl_place place = nccl_enter(n);
        pthread_mutex_lock(&n->lock);
        if (n->nccl)
            rc = window ? n->api->CommWindowDeregister(n->nccl, handle)
                        : n->api->CommDeregister(n->nccl, handle);
        pthread_mutex_unlock(&n->lock);
        code = settle_memory(n, what, rc);
        nccl_leave(n, place);
    }
    return comm_leave(comm, code);
}

int dlcoll_mem_register(dlcoll_comm *comm, void *p, size_t bytes, void **handle)
{
    return register_with(comm, p, bytes, handle, false, "mem_register");
}

int dlcoll_mem_deregister(dlcoll_comm *comm, void *handle)
{
    return deregister(comm, handle, false, "mem_deregister");
}

int dlcoll_window_register(dlcoll_comm *comm, void *p, size_t bytes, void **window)
{
    return register_with(comm, p, bytes, window, true, "window_register");
}

int dlcoll_window_deregister(dlcoll_comm *comm, void *window)
{
    return deregister(comm, window, true, "window_deregister");
}

int dlcoll_device_alloc(dlcoll_comm *comm, void **p, size_t bytes)
{
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    struct nccl *n = NULL;
    if (!p)
        code = comm_error(comm, DLCOLL_EINVAL, "device_alloc: p is NULL");
    else if (!(n = comm->nccl))
        code = comm_error(comm, DLCOLL_ESTATE,
                          "device_alloc: call dlcoll_device_init() on all ranks first");
    else if (!n->api->MemAlloc || !n->api->MemFree)
        code = comm_error(comm, DLCOLL_ENOSUP, "device_alloc: this NCCL has no ncclMemAlloc()");
    if (code == 0) {
        *p = NULL;
        struct nccl_place place = nccl_enter(n);
        int rc = n->api->MemAlloc(p, bytes);
        nccl_leave(n, place);
        if (rc != NCCL_OK)
            code = comm_error(comm, DLCOLL_EBACKEND, "device_alloc: NCCL: %s",
                              n->api->GetErrorString(rc));
    }
    return comm_leave(comm, code);
}

int dlcoll_device_free(dlcoll_comm *comm, void *p)
{
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    struct nccl *n = comm->nccl;
    if (n && p && n->api->MemFree) {
        struct nccl_place place = nccl_enter(n);
        int rc = n->api->MemFree(p);
        nccl_leave(n, place);
        if (rc != NCCL_OK)
            code = comm_error(comm, DLCOLL_EBACKEND, "device_free: NCCL: %s",
                              n->api->GetErrorString(rc));
    }
    return comm_leave(comm, code);
}
