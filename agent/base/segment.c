#include "agent/base/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/futex.h"
#include "core/mem.h"
#include "core/memory_fence.h"
#include "core/netaddr.h"

#define GIB ((uint64_t)1 << 30)

static uint64_t align_up(uint64_t v, uint64_t to)
{
    return (v + to - 1) / to * to;
}

/* The size of the area for slots and shared buffers: address space, not memory. Half of the
 * physical memory, at most a quarter of RLIMIT_AS, because workers need most of it themselves.
 * RLIMIT_FSIZE counts it together with the `before` bytes in front of it. */
static uint64_t heap_bytes(uint64_t before)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page / 2 : 0;
    bytes = bytes < 8 * GIB ? 8 * GIB : bytes < 64 * GIB ? bytes : 64 * GIB;
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur / 4 < bytes)
        bytes = limit.rlim_cur / 4;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < before + bytes)
        bytes = limit.rlim_cur > before ? limit.rlim_cur - before : 0;
    return bytes / 4096 * 4096;
}

static void lay_out(struct segment_header *h)
{
    h->off_nodes = align_up(sizeof(*h), 128);
    h->off_ports = align_up(h->off_nodes + (uint64_t)h->nnodes * sizeof(struct segment_node), 128);
    h->off_local = align_up(h->off_ports + (uint64_t)h->world_size * sizeof(uint16_t), 128);
    h->off_heap = align_up(h->off_local + (uint64_t)h->nlocal * sizeof(struct segment_local), 4096);
    h->heap_bytes = heap_bytes(h->off_heap);
    h->total_bytes = h->off_heap + h->heap_bytes;
}

static void segment_fill(struct segment_header *h, const struct rank_table *table)
{
    char *base = (char *)h;
    struct segment_node *nodes = (struct segment_node *)(base + h->off_nodes);
    uint16_t *ports = (uint16_t *)(base + h->off_ports);
    for (int i = 0; i < table->nnodes; i++) {
        const struct rank_table_node *n = &table->nodes[i];
        snprintf(nodes[i].host, sizeof(nodes[i].host), "%.*s", (int)sizeof(nodes[i].host) - 1,
                 n->host);
        snprintf(nodes[i].addr, sizeof(nodes[i].addr), "%s", n->addr);
        nodes[i].base_rank = n->base_rank;
        nodes[i].nproc = n->nproc;
        if (n->ports)
            memcpy(ports + n->base_rank, n->ports, (size_t)n->nproc * sizeof(*ports));
    }
    struct segment_local *local = (struct segment_local *)(base + h->off_local);
    for (int i = 0; i < h->nlocal; i++)
        atomic_store_explicit(&local[i].cause_rank, -1, memory_order_relaxed);
}

int segment_open(struct segment *s, const struct rank_table *table, int group_rank, int usable_cpus,
                 struct err *e)
{
    struct segment_header h = {
        .magic = SEGMENT_MAGIC,
        .version = SEGMENT_VERSION,
        .epoch = table->gen.epoch,
        .counter = table->gen.counter,
        .nnodes = table->nnodes,
        .world_size = table->world_size,
        .group_rank = group_rank,
        .nlocal = table->nodes[group_rank].nproc,
        .base_rank = table->nodes[group_rank].base_rank,
        .usable_cpus = usable_cpus,
        .warned = s->warned,
        .abort = {.rank = -1},
    };
    lay_out(&h);
    _cleanup_fd_ int fd = memfd_create("dlaunch-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return err_sys(e, errno, "memfd_create for the shared segment");
    if (ftruncate(fd, (off_t)h.total_bytes) < 0)
        return err_sys(e, errno, "ftruncate of the shared segment to %llu bytes",
                       (unsigned long long)h.total_bytes);
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return err_sys(e, errno, "sealing the shared segment");
    /* The agent needs the tables and the local lines, not the heap. */
    void *p = mmap(NULL, h.off_heap, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return err_sys(e, errno, "mmap of the shared segment");
    memcpy(p, &h, sizeof(h));
    segment_fill(p, table);
    s->header = p;
    s->bytes = h.off_heap;
    s->off_local = h.off_local;
    s->nlocal = h.nlocal;
    s->world_size = h.world_size;
    const struct rank_table_node *own = &table->nodes[group_rank];
    s->addr = (struct netaddr){0};
    s->ports = NULL;
    if (own->ports && netaddr_parse_ip(&s->addr, own->addr, 0)) {
        s->ports = xcalloc((size_t)own->nproc, sizeof(*s->ports));
        memcpy(s->ports, own->ports, (size_t)own->nproc * sizeof(*s->ports));
    }
    s->fd = take_fd(&fd);
    return 0;
}

/* Ranks that sleep in poll() wake up at a connection, which is closed at once, and then read the
 * abort word. This takes as long as the rest of raising the word, so it comes last. */
static void wake_waiters(const struct segment *s)
{
    const struct segment_local *local =
        (const struct segment_local *)((const char *)s->header + s->off_local);
    for (int i = 0; i < s->nlocal && s->ports; i++) {
        struct netaddr to = s->addr;
        if (!atomic_load(&local[i].polling))
            continue;
        _cleanup_fd_ int fd =
            socket(to.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        netaddr_set_port(&to, s->ports[i]);
        if (fd >= 0 && s->ports[i])
            (void)!connect(fd, &to.sa, to.len);
    }
}

void segment_raise(struct segment *s, const struct failure *first, const char *text)
{
    if (s->fd < 0)
        return;
    struct segment_abort *a = &s->header->abort;
    if (atomic_load_explicit(&a->word, memory_order_relaxed))
        return;
    if (first) {
        a->rank = first->rank;
        a->pid = first->pid;
        a->signal = first->kind == FAILURE_SIGNAL ? first->signal : 0;
        a->exit_code = first->exit_code;
        snprintf(a->host, sizeof(a->host), "%s", first->host);
    }
    snprintf(a->text, sizeof(a->text), "%s", text);
    atomic_store(&a->word, 1);
    futex_wake((const void *)&a->word);
    wake_waiters(s);
}

static struct segment_local *line_of(const struct segment *s, int local_rank)
{
    return (struct segment_local *)((char *)s->header + s->off_local) + local_rank;
}

/* Wakes no rank: a rank that waits for this worker looks every few milliseconds, and in most jobs
 * no rank does. */
void segment_exited(struct segment *s, int local_rank)
{
    if (s->fd >= 0 && local_rank < s->nlocal)
        atomic_store_explicit(&line_of(s, local_rank)->exited, 1, memory_order_release);
}

int segment_cause_of(const struct segment *s, int local_rank)
{
    if (s->fd < 0 || local_rank >= s->nlocal)
        return -1;
    int rank = atomic_load_explicit(&line_of(s, local_rank)->cause_rank, memory_order_acquire);
    return rank >= 0 && rank < s->world_size ? rank : -1;
}

#define EMISMATCH_CODE (-8) /* DLCOLL_EMISMATCH */

bool segment_is_mismatch(const struct segment *s, int local_rank)
{
    if (s->fd < 0 || local_rank >= s->nlocal)
        return false;
    const struct segment_local *l = line_of(s, local_rank);
    return atomic_load_explicit(&l->state, memory_order_acquire) == SEGMENT_LOCAL_FAILED &&
           atomic_load_explicit(&l->cause_code, memory_order_relaxed) == EMISMATCH_CODE;
}

/* The recorder keeps the last operations only: a worker that has begun more than these has begun
 * the first one some time before the oldest of them. */
uint64_t segment_first_op_ns(const struct segment *s, int local_rank)
{
    if (s->fd < 0 || local_rank >= s->nlocal)
        return 0;
    const struct segment_local *l = line_of(s, local_rank);
    uint64_t n = atomic_load_explicit(&l->nops, memory_order_acquire);
    if (n == 0)
        return 0;
    uint64_t oldest = n > SEGMENT_OPS ? n - SEGMENT_OPS + 1 : 1;
    return l->ops[oldest % SEGMENT_OPS].start_ns;
}

bool segment_in_operation(const struct segment *s, int local_rank)
{
    return s->fd >= 0 && local_rank < s->nlocal &&
           atomic_load_explicit(&line_of(s, local_rank)->state, memory_order_relaxed) ==
               SEGMENT_LOCAL_CALL;
}

uint64_t segment_ops(const struct segment *s, int local_rank)
{
    return s->fd >= 0 && local_rank < s->nlocal
               ? atomic_load_explicit(&line_of(s, local_rank)->nops, memory_order_relaxed)
               : 0;
}

bool segment_numbered_op(const struct segment *s, int local_rank, uint64_t number, uint64_t now_ns,
                         struct segment_last_op *out)
{
    if (s->fd < 0 || local_rank >= s->nlocal || number == 0)
        return false;
    const struct segment_op *op = &line_of(s, local_rank)->ops[number % SEGMENT_OPS];
    if (atomic_load_explicit(&op->number, memory_order_acquire) != number)
        return false;
    uint64_t end_ns = atomic_load_explicit(&op->end_ns, memory_order_acquire);
    *out = (struct segment_last_op){.number = number,
                                    .group = op->group,
                                    .seq = op->seq,
                                    .bytes = op->bytes,
                                    .start_ns = op->start_ns,
                                    .end_ns = end_ns,
                                    .open = !end_ns};
    memory_fence(memory_order_acquire);
    uint64_t since = end_ns ? end_ns : out->start_ns;
    out->age_ms = now_ns > since ? (now_ns - since) / 1000000 : 0;
    return atomic_load_explicit(&op->number, memory_order_relaxed) == number;
}

bool segment_last_op(const struct segment *s, int local_rank, uint64_t now_ns,
                     struct segment_last_op *out)
{
    if (s->fd < 0 || local_rank >= s->nlocal)
        return false;
    uint64_t n = atomic_load_explicit(&line_of(s, local_rank)->nops, memory_order_acquire);
    return segment_numbered_op(s, local_rank, n, now_ns, out);
}

void segment_watch(struct segment *s)
{
    for (int i = 0; i < s->nlocal; i++)
        atomic_store_explicit(&line_of(s, i)->watched, 1, memory_order_relaxed);
}

uint64_t segment_waited(const struct segment *s, int local_rank, uint64_t now_ns, bool *inside)
{
    enum { THREADS_MAX = 64 };
    *inside = false;
    if (s->fd < 0 || local_rank >= s->nlocal)
        return 0;
    int64_t waited = atomic_load_explicit(&line_of(s, local_rank)->waited_ns, memory_order_relaxed);
    *inside = waited < 0;
    for (int i = 0; i < THREADS_MAX && waited < 0; i++) /* one for each call that is open */
        waited += (int64_t)now_ns;
    return waited < 0 ? 0 : (uint64_t)waited;
}

const _Atomic uint32_t *segment_exit_word(const struct segment *s, int local_rank)
{
    const struct segment_local *l = line_of(s, local_rank);
    uint32_t at = atomic_load(&l->exit_notify_word);
    if (at == 0 || (at - 1) % sizeof(uint32_t) ||
        at - 1 > SEGMENT_EXIT_MUTEX_BYTES - sizeof(uint32_t))
        return NULL;
    return (const _Atomic uint32_t *)(l->exit_mutex + at - 1);
}

void segment_close(struct segment *s)
{
    if (s->fd < 0)
        return;
    s->warned = atomic_load_explicit(&s->header->warned, memory_order_relaxed);
    munmap(s->header, s->bytes);
    close_fd(&s->fd);
    free(s->ports);
    s->ports = NULL;
    s->header = NULL;
}
