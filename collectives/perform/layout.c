#include "collectives/perform/layout.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/perform/choose.h"

/* ------------------------------------------------------------------------------------- elements */

static size_t length_of(const dlcoll_layout *l, size_t i)
{
    return l->lengths ? l->lengths[i] : l->length;
}

static size_t offset_of(const dlcoll_layout *l, size_t i)
{
    return l->offsets ? l->offsets[i] : i * l->stride;
}

bool layout_measure(const dlcoll_layout *l, size_t most, size_t *count, size_t *end)
{
    size_t all;
    *count = *end = 0;
    if (!l->lengths && !l->offsets) { /* the longest ones need not be counted block by block */
        if (!l->blocks || !l->length)
            return true;
        if (__builtin_mul_overflow(l->blocks, l->length, count) || *count > most ||
            __builtin_mul_overflow(l->blocks - 1, l->stride, &all) || all > most - l->length)
            return false;
        *end = all + l->length;
        return true;
    }
    for (size_t i = 0; i < l->blocks; i++) {
        size_t length = length_of(l, i), at = 0;
        if (!length)
            continue;
        if (!l->offsets && __builtin_mul_overflow(i, l->stride, &at))
            return false;
        at = l->offsets ? l->offsets[i] : at;
        if (length > most - *count || at > most - length)
            return false;
        *count += length;
        *end = at + length > *end ? at + length : *end;
    }
    return true;
}

/* Copies blocks of one length, which the compiler knows for the usual ones. */
#define COPY_BLOCKS(bytes)                                         \
    for (size_t i = 0; i < l->blocks; i++, p += (bytes)) {         \
        uint8_t *there = (uint8_t *)buffer + i * l->stride * elem; \
        memcpy(unpacks ? there : p, unpacks ? p : there, (bytes)); \
    }

static inline void layout_move(const dlcoll_layout *l, size_t elem, void *packed, void *buffer,
                               bool unpacks)
{
    uint8_t *p = packed;
    bool even = !l->lengths && !l->offsets;
    size_t block = even ? l->length * elem : 0;
    if (even && block == 4) {
        COPY_BLOCKS(4)
    } else if (even && block == 8) {
        COPY_BLOCKS(8)
    } else {
        for (size_t i = 0; i < l->blocks; i++) {
            size_t bytes = length_of(l, i) * elem;
            if (!bytes)
                continue;
            uint8_t *there = (uint8_t *)buffer + offset_of(l, i) * elem;
            memcpy(unpacks ? there : p, unpacks ? p : there, bytes);
            p += bytes;
        }
    }
}

void layout_pack(const dlcoll_layout *l, size_t elem, void *packed, const void *buffer)
{
    layout_move(l, elem, packed, (void *)buffer, false);
}

void layout_unpack(const dlcoll_layout *l, size_t elem, void *buffer, const void *packed)
{
    layout_move(l, elem, (void *)packed, buffer, true);
}

size_t layout_copy_bytes(const dlcoll_layout *l)
{
    if (!l)
        return 0;
    size_t lists = (l->lengths ? 1 : 0) + (l->offsets ? 1 : 0);
    return sizeof(*l) + lists * l->blocks * sizeof(size_t);
}

const dlcoll_layout *layout_copy(const dlcoll_layout *l, void *room)
{
    dlcoll_layout *copy = room;
    size_t *lengths = (size_t *)(copy + 1), *offsets = l->lengths ? lengths + l->blocks : lengths;
    *copy = (dlcoll_layout)DLCOLL_LAYOUT_INIT;
    comm_take_opts(copy, sizeof(*copy), l);
    if (copy->lengths)
        copy->lengths = memcpy(lengths, copy->lengths, copy->blocks * sizeof(size_t));
    if (copy->offsets)
        copy->offsets = memcpy(offsets, copy->offsets, copy->blocks * sizeof(size_t));
    return copy;
}

/* -------------------------------------------------------------------------------------- running */

static size_t packed_bytes(const dlcoll_layout *l, size_t elem)
{
    size_t count, end;
    return l && layout_measure(l, SIZE_MAX / elem, &count, &end) ? count * elem : 0;
}

int layout_run(struct coll_call *c)
{
    dlcoll_comm *comm = c->comm;
    struct coll_call plain = *c;
    dlcoll_layout parts = DLCOLL_LAYOUT_INIT;
    const dlcoll_layout *from = c->send_layout, *to = c->recv_layout;
    if (c->pack_parts) {
        parts.blocks = (size_t)comm->size;
        parts.lengths = c->send_parts.counts;
        parts.offsets = c->send_parts.displs;
        size_t at = 0;
        for (int i = 0; !parts.offsets && i < comm->size; i++)
            at += parts.lengths[i];
        if (!parts.offsets) { /* one block */
            parts.blocks = 1;
            parts.length = at;
            parts.lengths = NULL;
        }
        from = &parts;
        plain.send_parts.displs = NULL;
        plain.pack_parts = false;
    }
    size_t out = (packed_bytes(from, c->elem) + 63) / 64 * 64, in = packed_bytes(to, c->elem);
    if (!comm_keep_staging(comm, out + in + 1))
        return err_set(&c->failure->err, -ENOMEM, "no memory for the operation");
    plain.send_layout = plain.recv_layout = NULL;
    if (from) {
        layout_pack(from, c->elem, comm->staging, c->send);
        plain.send = comm->staging;
    }
    if (to)
        plain.recv = comm->staging + out;
    int r = provider_run_step(c, &plain);
    if (r == 0 && to)
        layout_unpack(to, c->elem, c->recv, plain.recv);
    return r;
}
