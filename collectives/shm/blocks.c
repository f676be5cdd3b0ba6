#include "collectives/shm/blocks.h"

void blocks_parts(const struct coll_call *c, const struct coll_parts *p, struct shm_block *out)
{
    size_t at = 0;
    for (int i = 0; i < c->ranks.size; i++) {
        size_t count = p->counts ? p->counts[i] : c->count;
        out[i] =
            (struct shm_block){(p->displs && count ? p->displs[i] : at) * c->elem, count * c->elem};
        at += count;
    }
}

void blocks_slices(size_t len, size_t elem, int n, struct shm_block *out)
{
    size_t unit = blocks_unit(elem), lines = (len + unit - 1) / unit, each = lines / (size_t)n,
           more = lines % (size_t)n, at = 0;
    for (int i = 0; i < n; i++) {
        size_t end = at + (each + ((size_t)i < more)) * unit;
        end = end < len ? end : len;
        out[i] = (struct shm_block){at, end - at};
        at = end;
    }
}

size_t blocks_longest(const struct shm_block *b, int n, int but)
{
    size_t most = 0;
    for (int i = 0; i < n; i++)
        most = i != but && b[i].len > most ? b[i].len : most;
    return most;
}
