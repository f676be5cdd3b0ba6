/* nccl_ops.c: each operation by NCCL's call for it, or composed of grouped sends and receives. */
#include "collectives/nccl/nccl.h"
#include "collectives/nccl/nccl_comm.h"

#include <string.h>

/* Returns NCCL's type of an element; *per_element becomes how many of them make one of ours. Types
 * that NCCL lacks are moved as bytes, and so are 8-bit floats, which older versions and GPUs lack.
 */
static int type_of(int dtype, bool reduces, size_t elem, size_t *per_element)
{
    bool bytes = dtype > DLCOLL_F8E5M2 || (!reduces && dtype >= DLCOLL_F8E4M3);
    *per_element = bytes ? elem : 1;
    return bytes ? NCCL_U8 : dtype;
}

static bool does_reduce(const struct coll_call *c)
{
    return c->dtype && (call_reduces(c->kind) || c->kind == CALL_ALL_REDUCE_COALESCED);
}

static bool is_f8(const struct coll_call *c)
{
    return c->sig.dtype == DLCOLL_F8E4M3 || c->sig.dtype == DLCOLL_F8E5M2;
}

/* Returns NCCL's reduction; -1: NCCL has none. The sum of bools, bytes of 0 or 1, is the larger
 * one. */
static int op_of(const struct coll_call *c)
{
    bool boolean = c->sig.dtype == DLCOLL_BOOL;
    switch (c->reduce.code) {
    case DLCOLL_SUM:
        return boolean ? NCCL_MAX : NCCL_SUM;
    case DLCOLL_PROD:
        return boolean ? NCCL_MIN : NCCL_PROD;
    case DLCOLL_MAX:
        return NCCL_MAX;
    case DLCOLL_MIN:
        return NCCL_MIN;
    case DLCOLL_AVG:
        return boolean ? -1 : NCCL_AVG;
    case DLCOLL_BOR:
    case DLCOLL_LOR:
        return boolean ? NCCL_MAX : -1;
    case DLCOLL_BAND:
    case DLCOLL_LAND:
        return boolean ? NCCL_MIN : -1;
    default:
        return -1;
    }
}

const char *nccl_refuses(const struct nccl *n, const struct coll_call *c)
{
    if (!c->dtype)
        return NULL;
    bool reduces = does_reduce(c);
    if (call_scans(c->kind))
        return "NCCL does not have this operation";
    if (reduces && (c->sig.dtype == DLCOLL_I16 || c->sig.dtype == DLCOLL_U16))
        return "NCCL does not reduce this type";
    if (reduces && op_of(c) < 0 && c->reduce.code != REDUCE_PREMUL)
        return "NCCL does not have this reduction";
    if (is_f8(c) && reduces && n->api->version < NCCL_WITH_F8)
        return "NCCL reduces 8-bit floats from 2.24 on; this one is older";
    if (is_f8(c) && reduces && n->capability < NCCL_F8_CAPABILITY)
        return "NCCL reduces 8-bit floats on GPUs of compute capability 9.0 or later; a rank's is "
               "older";
    return NULL;
}

/* ----------------------------------------------------------------------------------- one by one */

struct job_of { /* one call being enqueued */
    const struct nccl_api *api;
    nccl_comm_t comm;
    const struct coll_call *c;
    cuda_stream stream;
    int type, op, size, me;
    size_t per, elem; /* elements of NCCL's per one of ours; bytes of one of ours */
    int rc;
};

static void take(struct job_of *j, int rc)
{
    if (rc != NCCL_OK && (j->rc == NCCL_OK || j->rc == NCCL_IN_PROGRESS))
        j->rc = rc;
}

static const void *at(const struct job_of *j, const void *p, size_t elements)
{
    return (const char *)p + elements * j->elem;
}

static size_t nccl_count_of(const struct coll_parts *p, size_t even, int i)
{
    return p->counts ? p->counts[i] : even;
}

static size_t start_of(const struct coll_parts *p, size_t even, int i)
{
    size_t start = 0;
    if (!p->counts)
        return even * (size_t)i;
    if (p->displs)
        return p->displs[i];
    for (int k = 0; k < i; k++)
        start += p->counts[k];
    return start;
}

static void send_to(struct job_of *j, const void *p, size_t n, int peer)
{
    if (n)
        take(j, j->api->Send(p, n * j->per, j->type, peer, j->comm, j->stream));
}

static void recv_from(struct job_of *j, void *p, size_t n, int peer)
{
    if (n)
        take(j, j->api->Recv(p, n * j->per, j->type, peer, j->comm, j->stream));
}

static void gather(struct job_of *j)
{
    const struct coll_call *c = j->c;
    if (c->kind == CALL_GATHER && j->api->Gather) {
        take(j, j->api->Gather(c->send, c->recv, c->count * j->per, j->type, c->root, j->comm,
                               j->stream));
        return;
    }
    take(j, j->api->GroupStart());
    send_to(j, c->send, c->count, c->root);
    for (int i = 0; j->me == c->root && i < j->size; i++)
        recv_from(j, (void *)at(j, c->recv, start_of(&c->recv_parts, c->count, i)),
                  nccl_count_of(&c->recv_parts, c->count, i), i);
    take(j, j->api->GroupEnd());
}

static void scatter(struct job_of *j)
{
    const struct coll_call *c = j->c;
    if (c->kind == CALL_SCATTER && j->api->Scatter) {
        take(j, j->api->Scatter(c->send, c->recv, c->count * j->per, j->type, c->root, j->comm,
                                j->stream));
        return;
    }
    take(j, j->api->GroupStart());
    for (int i = 0; j->me == c->root && i < j->size; i++)
        send_to(j, at(j, c->send, start_of(&c->send_parts, c->count, i)),
                nccl_count_of(&c->send_parts, c->count, i), i);
    recv_from(j, c->recv, c->count, c->root);
    take(j, j->api->GroupEnd());
}

static void all_to_all(struct job_of *j, const void *send)
{
    const struct coll_call *c = j->c;
    if (c->kind == CALL_ALL_TO_ALL && j->api->AlltoAll) {
        take(j, j->api->AlltoAll(send, c->recv, c->count * j->per, j->type, j->comm, j->stream));
        return;
    }
    take(j, j->api->GroupStart());
    for (int i = 0; i < j->size; i++) {
        send_to(j, at(j, send, start_of(&c->send_parts, c->count, i)),
                nccl_count_of(&c->send_parts, c->count, i), i);
        recv_from(j, (void *)at(j, c->recv, start_of(&c->recv_parts, c->count, i)),
                  nccl_count_of(&c->recv_parts, c->count, i), i);
    }
    take(j, j->api->GroupEnd());
}

static void all_gather_v(struct job_of *j)
{
    const struct coll_call *c = j->c;
    take(j, j->api->GroupStart());
    for (int i = 0; i < j->size; i++) {
        void *to = (void *)at(j, c->recv, start_of(&c->recv_parts, 0, i));
        if (c->recv_parts.counts[i])
            take(j,
                 j->api->Broadcast(i == j->me ? c->send : to, to, c->recv_parts.counts[i] * j->per,
                                   j->type, i, j->comm, j->stream));
    }
    take(j, j->api->GroupEnd());
}

static void reduce_scatter_v(struct job_of *j)
{
    const struct coll_call *c = j->c;
    take(j, j->api->GroupStart());
    for (int i = 0; i < j->size; i++) {
        const void *part = at(j, c->send, start_of(&c->send_parts, 0, i));
        if (c->send_parts.counts[i]) /* recv counts on the root alone */
            take(j, j->api->Reduce(part, i == j->me ? c->recv : NULL, c->send_parts.counts[i],
                                   j->type, j->op, i, j->comm, j->stream));
    }
    take(j, j->api->GroupEnd());
}

static void coalesced(struct job_of *j)
{
    take(j, j->api->GroupStart());
    for (size_t i = 0; i < j->c->nspans; i++) {
        const dlcoll_span *s = &j->c->spans[i];
        if (s->count)
            take(j,
                 j->api->AllReduce(s->send, s->recv, s->count, j->type, j->op, j->comm, j->stream));
    }
    take(j, j->api->GroupEnd());
}

static void enqueue(struct job_of *j, const void *send, void *word)
{
    const struct coll_call *c = j->c;
    size_t n = c->count * j->per;
    switch (c->kind) {
    case CALL_ALL_REDUCE:
        take(j, j->api->AllReduce(send, c->recv, n, j->type, j->op, j->comm, j->stream));
        break;
    case CALL_REDUCE:
        take(j, j->api->Reduce(send, c->recv, n, j->type, j->op, c->root, j->comm, j->stream));
        break;
    case CALL_BROADCAST:
        take(j, j->api->Broadcast(j->me == c->root ? send : c->recv, c->recv, n, j->type, c->root,
                                  j->comm, j->stream));
        break;
    case CALL_ALL_GATHER:
        take(j, j->api->AllGather(send, c->recv, n, j->type, j->comm, j->stream));
        break;
    case CALL_REDUCE_SCATTER:
        take(j, j->api->ReduceScatter(send, c->recv, n, j->type, j->op, j->comm, j->stream));
        break;
    case CALL_GATHER:
    case CALL_GATHER_V:
        gather(j);
        break;
    case CALL_SCATTER:
    case CALL_SCATTER_V:
        scatter(j);
        break;
    case CALL_ALL_TO_ALL:
    case CALL_ALL_TO_ALL_V:
        all_to_all(j, send);
        break;
    case CALL_ALL_GATHER_V:
        all_gather_v(j);
        break;
    case CALL_REDUCE_SCATTER_V:
        reduce_scatter_v(j);
        break;
    case CALL_ALL_REDUCE_COALESCED:
        coalesced(j);
        break;
    default: /* a barrier: all ranks add up a word that no program reads */
        take(j, j->api->AllReduce(word, word, 1, NCCL_F32, NCCL_SUM, j->comm, j->stream));
        break;
    }
}

/* In place, NCCL's all_to_all would read parts that it has already overwritten, so the data is
 * copied aside first. */
static bool goes_aside(const struct coll_call *c)
{
    return c->kind == CALL_ALL_TO_ALL && c->send == c->recv && c->comm->size > 1;
}

static size_t aside_len(const struct coll_call *c)
{
    return c->count * c->elem * (size_t)c->comm->size;
}

size_t nccl_room(const struct coll_call *c)
{
    return goes_aside(c) ? aside_len(c) : 0;
}

int nccl_enqueue(struct nccl *n, nccl_comm_t nccl, const struct coll_call *c, cuda_stream stream,
                 cuda_ptr room)
{
    struct job_of j = {.api = n->api,
                       .comm = nccl,
                       .c = c,
                       .stream = stream,
                       .elem = c->elem,
                       .size = n->comm->size,
                       .me = n->comm->rank,
                       .rc = NCCL_OK};
    const void *send = c->send;
    bool made = false;
    j.type = type_of(c->sig.dtype, does_reduce(c), c->elem, &j.per);
    if (goes_aside(c)) {
        send = (const void *)(uintptr_t)room;
        if (n->cuda->MemcpyAsync(room, (cuda_ptr)(uintptr_t)c->send, aside_len(c), stream))
            return 1; /* unhandled CUDA error */
    }
    if (does_reduce(c)) {
        uint64_t scalar = c->reduce.scalar;
        made = c->reduce.code == REDUCE_PREMUL;
        j.op = op_of(c);
        if (made)
            take(&j, n->api->RedOpCreatePreMulSum(&j.op, &scalar, j.type, NCCL_SCALAR_HOST, nccl));
        if (j.rc != NCCL_OK)
            return j.rc;
    }
    enqueue(&j, send, (void *)(uintptr_t)n->word);
    if (made)
        n->api->RedOpDestroy(j.op, nccl);
    return j.rc;
}

int nccl_enqueue_list(struct nccl *n, nccl_comm_t nccl, const dlcoll_p2p *list, size_t count,
                      cuda_stream stream)
{
    int rc = n->api->GroupStart();
    for (size_t i = 0; i < count && rc == NCCL_OK; i++) {
        size_t per, elem = dtype_get((int)list[i].dtype)->size;
        int type = type_of((int)list[i].dtype, false, elem, &per);
        size_t elements = list[i].count * per;
        if (elements && list[i].send)
            rc = n->api->Send(list[i].send, elements, type, list[i].peer, nccl, stream);
        else if (elements)
            rc = n->api->Recv(list[i].recv, elements, type, list[i].peer, nccl, stream);
        rc = rc == NCCL_IN_PROGRESS ? NCCL_OK : rc;
    }
    int end = n->api->GroupEnd();
    return rc == NCCL_OK ? end : rc;
}
