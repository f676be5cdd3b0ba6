#include "rendezvous/store/store_out.h"

#include <stdlib.h>
#include <string.h>

#define BLOB_OVERHEAD 16   /* approximate overhead of the allocator */
#define BYTES_KEPT    4096 /* an empty buffer that is larger is freed */
#define COMPACT_MIN   65536

size_t store_blob_cost(size_t cap)
{
    return sizeof(struct store_blob) + cap + BLOB_OVERHEAD;
}

struct store_blob *store_blob_new(size_t cap, size_t *charged)
{
    struct store_blob *b = malloc(sizeof(*b) + cap);
    if (!b)
        return NULL;
    b->next = NULL;
    b->charged = charged;
    b->len = 0;
    b->cap = cap;
    b->refs = 1;
    *charged += store_blob_cost(cap);
    return b;
}

void store_blob_unref(struct store_blob *b)
{
    if (!b || --b->refs)
        return;
    *b->charged -= store_blob_cost(b->cap);
    free(b);
}

void store_out_init(struct store_out *o)
{
    *o = (struct store_out){.bytes = BUF_INIT};
}

void store_out_fini(struct store_out *o)
{
    for (size_t i = o->refs_first; i < o->refs_end; i++)
        store_blob_unref(o->refs[i].blob);
    free(o->refs);
    buf_fini(&o->bytes);
    store_out_init(o);
}

/* Called after buf_...(&o->bytes): counts the added bytes. */
static void added(struct store_out *o, size_t n)
{
    if (o->bytes.oom)
        o->oom = true;
    else
        o->len += n;
}

void store_out_u8(struct store_out *o, uint8_t v)
{
    buf_u8(&o->bytes, v);
    added(o, 1);
}

void store_out_u32(struct store_out *o, uint32_t v)
{
    buf_u32(&o->bytes, v);
    added(o, 4);
}

void store_out_i64(struct store_out *o, int64_t v)
{
    buf_u64(&o->bytes, (uint64_t)v);
    added(o, 8);
}

void store_out_bytes(struct store_out *o, const void *p, size_t n)
{
    store_out_i64(o, (int64_t)n);
    buf_put(&o->bytes, p, n);
    added(o, n);
}

void store_out_blob(struct store_out *o, struct store_blob *b)
{
    if (!b || b->len < STORE_REF_MIN) {
        store_out_bytes(o, b ? b->data : NULL, b ? b->len : 0);
        return;
    }
    store_out_i64(o, (int64_t)b->len);
    if (o->refs_end == o->refs_cap) {
        size_t cap = o->refs_cap ? 2 * o->refs_cap : 4;
        struct store_ref *refs = realloc(o->refs, cap * sizeof(*refs));
        if (!refs) {
            o->oom = true;
            return;
        }
        o->refs = refs;
        o->refs_cap = cap;
    }
    b->refs++;
    o->refs[o->refs_end++] = (struct store_ref){o->bytes.len, b};
    o->len += b->len;
}

size_t store_out_iov(const struct store_out *o, struct iovec *iov, size_t max)
{
    size_t n = 0, at = o->bytes_sent, skip = o->ref_sent;
    for (size_t i = o->refs_first; i < o->refs_end && n < max; i++) {
        const struct store_ref *r = &o->refs[i];
        if (r->at > at) {
            iov[n++] = (struct iovec){o->bytes.data + at, r->at - at};
            at = r->at;
            if (n == max)
                return n;
        }
        iov[n++] = (struct iovec){r->blob->data + skip, r->blob->len - skip};
        skip = 0;
    }
    if (n < max && o->bytes.len > at)
        iov[n++] = (struct iovec){o->bytes.data + at, o->bytes.len - at};
    return n;
}

/* Everything is sent: keeps small buffers for the next answers. */
static void rewind_empty(struct store_out *o)
{
    o->bytes_sent = o->bytes.len = 0;
    if (o->bytes.cap > BYTES_KEPT)
        buf_fini(&o->bytes);
    free(o->refs);
    o->refs = NULL;
    o->refs_first = o->refs_end = o->refs_cap = 0;
}

/* Drops the sent front of a long queue, so that a queue that is never empty does not grow. */
static void compact(struct store_out *o)
{
    size_t gone = o->bytes_sent, n = o->refs_end - o->refs_first;
    if (gone < COMPACT_MIN || gone < o->bytes.len / 2)
        return;
    buf_consume(&o->bytes, gone);
    o->bytes_sent = 0;
    if (n)
        memmove(o->refs, o->refs + o->refs_first, n * sizeof(*o->refs));
    o->refs_first = 0;
    o->refs_end = n;
    for (size_t i = 0; i < n; i++)
        o->refs[i].at -= gone;
}

void store_out_sent(struct store_out *o, size_t n)
{
    o->len -= n;
    while (o->refs_first < o->refs_end) {
        struct store_ref *r = &o->refs[o->refs_first];
        size_t before = r->at - o->bytes_sent;
        if (n < before)
            break;
        o->bytes_sent = r->at;
        n -= before;
        if (n < r->blob->len - o->ref_sent) {
            o->ref_sent += n;
            n = 0;
            break;
        }
        n -= r->blob->len - o->ref_sent;
        o->ref_sent = 0;
        store_blob_unref(r->blob);
        o->refs_first++;
    }
    o->bytes_sent += n;
    if (o->len == 0)
        rewind_empty(o);
    else
        compact(o);
}
