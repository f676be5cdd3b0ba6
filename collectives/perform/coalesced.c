/* coalesced.c: an all_reduce of a list of buffers: small ones are packed together, large ones go by
 * themselves; each of these is a call of its own, all of them under the numbers that the operation
 * has taken. */
#include "collectives/perform/coalesced.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/comm/provider.h"
#include "collectives/perform/choose.h"

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

int coalesced_run(struct coll_call *c)
{
    struct coll_call part = *c;
    size_t count, n;
    int r = 0;
    part.kind = CALL_ALL_REDUCE;
    for (size_t i = 0; i < c->nspans && r == 0; i += n) {
        const dlcoll_span *s = &c->spans[i];
        n = one_call(c, i, &count);
        part.count = part.sig.count = count;
        if (c->dtype->class == DTYPE_BYTES)
            part.sig.count = sig_pack(count, c->elem);
        part.send = s->send;
        part.recv = s->recv;
        if (n > 1 && !comm_keep_staging(c->comm, count * c->elem))
            return err_set(&c->failure->err, -ENOMEM, "no memory for the operation");
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
        c->may_repeat = part.may_repeat;
        c->algo = part.algo;
        part.seq++;
    }
    return r;
}
