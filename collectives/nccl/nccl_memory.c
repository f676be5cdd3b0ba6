/* nccl_memory.c: memory that NCCL moves without a copy: NCCL has allocated it, or it is registered.
 */
#include <stdint.h>

#include "collectives/nccl/nccl.h"
#include "collectives/nccl/nccl_comm.h"

static int memory_error(struct nccl *n, const char *what, int rc)
{
    return rc == NCCL_OK ? 0
                         : comm_error(n->comm, DLCOLL_EBACKEND, "%s: NCCL: %s", what,
                                      n->api->GetErrorString(rc));
}

/* Returns the communicator's NCCL, made if it is not there. NULL: *code is the public code. */
static struct nccl *nccl_for(dlcoll_comm *comm, const void *p, void **handle, const char *what,
                             int *code)
{
    if (!p || !handle) {
        *code = comm_error(comm, DLCOLL_EINVAL, "%s: an argument is NULL", what);
        return NULL;
    }
    *handle = NULL;
    return nccl_get(comm, &(struct nccl_wish){.buffer = p}, comm_deadline(comm->timeout_ms), code);
}

int dlcoll_mem_register(dlcoll_comm *comm, void *p, size_t bytes, void **handle)
{
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    struct nccl *n = nccl_for(comm, p, handle, "mem_register", &code);
    nccl_comm_t held = n && n->api->CommRegister ? nccl_hold(n) : NULL; /* older: they do without */
    if (held) {
        struct nccl_place place = nccl_enter(n);
        code = memory_error(n, "mem_register", n->api->CommRegister(held, p, bytes, handle));
        nccl_leave(n, place);
        nccl_let_go(n);
    }
    return comm_leave(comm, code);
}

/* Both kinds: by this rank alone, at once. */
static int deregister(dlcoll_comm *comm, void *handle, bool window, const char *what)
{
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    struct nccl *n = comm->nccl;
    int (*call)(nccl_comm_t, void *) = !n || !handle ? NULL
                                       : window      ? n->api->CommWindowDeregister
                                                     : n->api->CommDeregister;
    nccl_comm_t held = call ? nccl_hold(n) : NULL;
    if (held) {
        struct nccl_place place = nccl_enter(n);
        code = memory_error(n, what, call(held, handle));
        nccl_leave(n, place);
        nccl_let_go(n);
    }
    return comm_leave(comm, code);
}

int dlcoll_mem_deregister(dlcoll_comm *comm, void *handle)
{
    return deregister(comm, handle, false, "mem_deregister");
}

/* An operation of all ranks: one that cannot go on fails the communicator. */
static int register_window(struct nccl *n, void *p, size_t bytes, void **window)
{
    dlcoll_comm *c = n->comm;
    struct coll_failure failure;
    struct coll_call call = nccl_internal_call(c, CALL_WINDOW_REGISTER, NULL, 0,
                                               comm_deadline(c->timeout_ms), &failure);
    call.seq = c->seq;
    struct nccl_helper what = {.job = NCCL_WINDOW, .memory = p, .len = bytes};
    struct nccl_place place = nccl_enter(n);
    int status = nccl_make(n, &what, window, &call);
    nccl_leave(n, place);
    if (status < 0)
        return nccl_fail(n, status, &call);
    return *window ? 0
                   : comm_error(c, DLCOLL_ENOSUP,
                                "window_register: NCCL has no symmetric memory on the ranks' "
                                "devices (NCCL_DEBUG=INFO says why): use the memory without a "
                                "window");
}

int dlcoll_window_register(dlcoll_comm *comm, void *p, size_t bytes, void **window)
{
    int code = comm_enter(comm);
    struct nccl *n = NULL;
    if (code < 0)
        return code;
    if ((uintptr_t)p % NCCL_WINDOW_ALIGN)
        code =
            comm_error(comm, DLCOLL_EINVAL,
                       "window_register: the memory is not aligned to %d bytes", NCCL_WINDOW_ALIGN);
    else if (!bytes)
        code = comm_error(comm, DLCOLL_EINVAL, "window_register: bytes is 0");
    else
        n = nccl_for(comm, p, window, "window_register", &code);
    if (n && !n->api->CommWindowRegister)
        code = comm_error(comm, DLCOLL_ENOSUP, "window_register: NCCL has windows from 2.27 on");
    else if (n)
        code = register_window(n, p, bytes, window);
    return comm_leave(comm, code);
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
