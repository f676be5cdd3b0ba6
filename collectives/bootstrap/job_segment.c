#include "collectives/bootstrap/job_segment.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "core/reserve.h"

static const struct segment_node *nodes(const struct job_segment *s)
{
    return (const void *)(s->base + s->header.off_nodes);
}

/* Whether n items of `size` bytes at `off` lie inside the segment, aligned. */
static bool inside(const struct segment_header *h, uint64_t off, int64_t n, size_t size,
                   size_t align)
{
    return n > 0 && off % align == 0 && off >= sizeof(*h) && off <= h->total_bytes &&
           (uint64_t)n <= (h->total_bytes - off) / size;
}

/* The nodes' ranks must be one after the other: everything else is found by them. */
static bool ranks_in_order(const struct job_segment *s)
{
    const struct segment_header *h = &s->header;
    int64_t next = 0;
    for (int i = 0; i < h->nnodes; i++) {
        int32_t base = nodes(s)[i].base_rank, nproc = nodes(s)[i].nproc;
        if (base != next || nproc <= 0)
            return false;
        if (i == h->group_rank && (base != h->base_rank || nproc != h->nlocal))
            return false;
        next += nproc;
    }
    return next == h->world_size;
}

static int check(const struct job_segment *s, struct err *e)
{
    const struct segment_header *h = &s->header;
    if (h->magic != SEGMENT_MAGIC)
        return err_set(e, -EINVAL, "it does not begin as a segment");
    if (h->version != SEGMENT_VERSION)
        return err_set(e, -EINVAL, "it has version %u, this library reads version %u", h->version,
                       SEGMENT_VERSION);
    if (h->total_bytes > s->bytes)
        return err_set(e, -EINVAL, "it has %zu bytes, but its header says %llu", s->bytes,
                       (unsigned long long)h->total_bytes);
    if (!inside(h, h->off_nodes, h->nnodes, sizeof(struct segment_node), 4) ||
        !inside(h, h->off_ports, h->world_size, sizeof(uint16_t), 2) ||
        !inside(h, h->off_local, h->nlocal, sizeof(struct segment_local), 128) ||
        h->group_rank < 0 || h->group_rank >= h->nnodes || h->off_heap > h->total_bytes ||
        h->heap_bytes > h->total_bytes - h->off_heap || !ranks_in_order(s))
        return err_set(e, -EINVAL, "its tables are damaged");
    return 0;
}

int job_segment_init(struct job_segment *s, int fd, struct err *e)
{
    struct stat st;
    memset(s, 0, sizeof(*s));
    if (fstat(fd, &st) < 0)
        return err_sys(e, errno, "fstat");
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return err_set(e, -EINVAL, "it is not a memory file sealed against shrinking");
    if (st.st_size < (off_t)sizeof(s->header))
        return err_set(e, -EINVAL, "it is too short");
    void *base = reserve_map(fd, (size_t)st.st_size);
    if (base == MAP_FAILED)
        return err_sys(e, errno, "mmap");
    s->base = base;
    s->bytes = (size_t)st.st_size;
    memcpy(&s->header, base, sizeof(s->header));
    int r = check(s, e);
    if (r < 0)
        job_segment_fini(s);
    return r;
}

void job_segment_fini(struct job_segment *s)
{
    if (s->base)
        munmap(s->base, s->bytes);
    memset(s, 0, sizeof(*s));
}

void job_segment_node(const struct job_segment *s, int node, struct segment_node *out)
{
    assert(node >= 0 && node < s->header.nnodes);
    memcpy(out, &nodes(s)[node], sizeof(*out));
    out->host[sizeof(out->host) - 1] = out->addr[sizeof(out->addr) - 1] = '\0';
}

int job_segment_node_of(const struct job_segment *s, int rank)
{
    assert(rank >= 0 && rank < s->header.world_size);
    int low = 0, high = s->header.nnodes - 1;
    while (low < high) {
        int mid = low + (high - low + 1) / 2;
        if (nodes(s)[mid].base_rank <= rank)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

int job_segment_port(const struct job_segment *s, int rank)
{
    assert(rank >= 0 && rank < s->header.world_size);
    return ((const uint16_t *)(s->base + s->header.off_ports))[rank];
}

struct segment_local *job_segment_local(const struct job_segment *s, int rank)
{
    int local = rank - s->header.base_rank;
    if (!s->base || local < 0 || local >= s->header.nlocal)
        return NULL;
    return (struct segment_local *)(s->base + s->header.off_local) + local;
}

_Atomic uint32_t *job_segment_exit_word_count(const struct job_segment *s)
{
    return &((struct segment_header *)s->base)->exit_word_count;
}

_Atomic uint32_t *job_segment_warned(const struct job_segment *s)
{
    return s->base ? &((struct segment_header *)s->base)->warned : NULL;
}

static struct segment_abort *abort_record(const struct job_segment *s)
{
    return &((struct segment_header *)s->base)->abort;
}

const _Atomic uint32_t *job_segment_abort_word(const struct job_segment *s)
{
    return s->base ? &abort_record(s)->word : NULL;
}

bool job_segment_aborted(const struct job_segment *s, struct job_abort *out)
{
    if (!s->base || !atomic_load_explicit(&abort_record(s)->word, memory_order_acquire))
        return false;
    const struct segment_abort *a = abort_record(s);
    out->rank = a->rank;
    out->pid = a->pid;
    out->signal = a->signal;
    out->exit_code = a->exit_code;
    memcpy(out->host, a->host, sizeof(out->host));
    memcpy(out->text, a->text, sizeof(out->text));
    out->host[sizeof(out->host) - 1] = out->text[sizeof(out->text) - 1] = '\0';
    return true;
}
