/* coalesced.c: an all_reduce of a list of buffers: small ones are packed together, large ones go by
 * themselves; each of these is a call of its own, all of them under the numbers that the operation
 * has taken. */
#include "collectives/api/coalesced.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/api/coll.h"
#include "collectives/api/comm.h"
#include "collectives/nccl/nccl.h"
#include "collectives/api/provider.h"

enum { PACK_BYTES = 1024 * 1024, ALONE_BYTES = 256 * 1024 };

/* The spans from `first` on that make one call; *count is their sum. */
static size_t one_call(const struct coll_call *c, size_t first, size_t *count)
{
    size_t n = 0;
    *count = 0;
    while (first + n < c->nspans) {
        size_t more = c->spans[first + n].count;
        if (n && (more * c->elem > ALONE_BYTES || (*count + more) * c->elem > PACK_BYTES))
            break;
        *count += more;
        n++;
        if (more * c->elem > ALONE_BYTES)
            break;
    }
    return n;
}

uint64_t coalesced_calls(const struct coll_call *c)
{
    uint64_t calls = 0;
    size_t count;
    for (size_t i = 0; i < c->nspans; i += one_call(c, i, &count))
        calls++;
    return calls;
}

static bool keep_staging(dlcoll_comm *c, size_t bytes)
{
    if (bytes <= c->cap_staging)
        return true;
    uint8_t *p = malloc(bytes);
    if (!p)
        return false;
    free(c->staging);
    c->staging = p;
    c->cap_staging = bytes;
    return true;
}

int coalesced_run(struct coll_call *c)
{
    struct coll_call part = *c;
    size_t count, n;
    int r = 0;
    part.kind = CALL_ALL_REDUCE;
    for (size_t i = 0; i < c->nspans && r == 0; i += n) {
        const dlcoll_span *s = &c->spans[i];
        n = one_call(c, i, &count);
        part.count = part.id.count = count;
        part.send = s->send;
        part.recv = s->recv;
        if (n > 1 && !keep_staging(c->comm, count * c->elem))
            return err_set(&c->err, -ENOMEM, "no memory for the operation");
        for (size_t k = 0, at = 0; n > 1 && k < n; at += s[k++].count * c->elem) {
            part.send = part.recv = c->comm->staging;
            if (s[k].count)
                memcpy(c->comm->staging + at, s[k].send, s[k].count * c->elem);
        }
        if (count)
            r = provider_choose(&part)->run(&part);
        for (size_t k = 0, at = 0; n > 1 && k < n && r == 0; at += s[k++].count * c->elem) {
            if (s[k].count)
                memcpy(s[k].recv, c->comm->staging + at, s[k].count * c->elem);
        }
        c->culprit = part.culprit;
        c->theirs = part.theirs;
        c->theirs_seq = part.theirs_seq;
        c->err = part.err;
        c->may_repeat = part.may_repeat;
        c->algo = part.algo;
        part.seq++;
    }
    return r;
}

static int check(const struct coll_args *a, const dlcoll_span *list, size_t n, size_t *total)
{
    const struct dtype *type = dtype_get(a->dtype);
    size_t elem = type ? type->size : 1;
    *total = 0;
    if (n && !list)
        return comm_error(a->comm, DLCOLL_EINVAL, "%s: list is NULL", call_name(a->kind));
    for (size_t i = 0; i < n; i++) {
        uintptr_t x = (uintptr_t)list[i].send, y = (uintptr_t)list[i].recv;
        if (list[i].count > SIZE_MAX / 4 / elem || *total > SIZE_MAX / 4 / elem - list[i].count)
            return comm_error(a->comm, DLCOLL_EINVAL, "%s: the counts are too large",
                              call_name(a->kind));
        size_t len = list[i].count * elem;
        if (len && (!x || !y))
            return comm_error(a->comm, DLCOLL_EINVAL, "%s: a buffer is NULL", call_name(a->kind));
        if (len && x != y && x < y + len && y < x + len)
            return comm_error(a->comm, DLCOLL_EINVAL,
                              "%s: send and recv overlap without being the same",
                              call_name(a->kind));
        *total += list[i].count;
    }
    return 0;
}

/* NULL: all are empty. */
static const void *first_buffer(const dlcoll_span *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i].count)
            return list[i].send;
    }
    return NULL;
}

int dlcoll_all_reduce_coalesced(const dlcoll_span *list, size_t n, dlcoll_dtype dtype, dlcoll_op op,
                                dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    struct coll_call call;
    size_t total;
    struct coll_args a = {.kind = CALL_ALL_REDUCE_COALESCED,
                          .dtype = dtype,
                          .op = op,
                          .comm = comm,
                          .opts = opts,
                          .work = work};
    if (work)
        *work = NULL;
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    code = coll_args_check(&a, &call);
    if (code == 0)
        code = check(&a, list, n, &total);
    if (code == 0) {
        call.id.count = call.count = total;
        call.id.root = (int32_t)(n & 0x7fffffff);
        call.spans = list;
        call.nspans = n;
        call.device = nccl_is_for(comm, first_buffer(list, n), call.stream);
        code = coll_perform(comm, &call, work);
    }
    return comm_leave(comm, code);
}
