#include "collectives/shm/memory.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectives/comm/comm.h"
#include "collectives/shm/arena.h"
#include "collectives/shm/shm.h"
#include "core/fd.h"
#include "core/protocols.h"
#include "core/reserve.h"

#define SHM_MAGIC   0x314d4853u /* "SHM1" */
#define SHM_VERSION PROTOCOL_SHM

/* Address space, not memory: at most so much for one communicator, and less when many live at the
 * same time, or where address space is limited. */
#define ARENAS_BYTES ((size_t)64 << 30)
#define ARENAS_LEAST ((size_t)64 << 20)
#define RINGS_BYTES  ((size_t)64 << 20)

static _Atomic size_t g_reserved; /* bytes reserved by all communicators of this process */

enum { MAP_LEAST = 32 * 1024 };
enum { RING_MOST = 512 * 1024, RING_LEAST = 4096, CELLS_MOST = 64, RING_BYTES_A_CELL = 128 };

/* The content of struct shm_offer. */
struct offer {
    uint32_t magic, version;
    uint64_t nonce, bytes;
    int32_t pid, fd, n, unused;
};
_Static_assert(sizeof(struct offer) <= sizeof(struct shm_offer), "an offer fits");

/* --------------------------------------------------------------------------------------- layout */

static size_t align_up(size_t v, size_t to)
{
    return (v + to - 1) / to * to;
}

struct layout {
    size_t peers, arrivals, beside, progress, bells, slots, rings, ring_bytes, ring_cells,
        ring_stride, arenas;
};

/* The number of rings grows with the square of the ranks. */
static size_t choose_ring(size_t n)
{
    size_t bytes = RING_MOST;
    while (bytes > RING_LEAST && bytes * n * n > RINGS_BYTES)
        bytes /= 2;
    return bytes;
}

static struct layout lay_out(int ranks)
{
    size_t n = (size_t)ranks;
    struct layout l = {.peers = align_up(sizeof(struct shm_head), SHM_LINE)};
    l.arrivals = l.peers + n * sizeof(struct shm_peer);
    l.beside = align_up(l.arrivals + n * SHM_ARRIVALS * sizeof(struct shm_arrival), 4096);
    l.beside += SHM_SLOT_BEGIN; /* skewed like the slots */
    l.progress = l.beside + n * SHM_ARRIVALS * SHM_BESIDE_BYTES;
    l.bells = align_up(l.progress + n * sizeof(struct shm_progress), 4096);
    l.slots = align_up(l.bells + n * sizeof(struct bell), 4096);
    l.rings = align_up(l.slots + n * SHM_SLOTS * SHM_SLOT_STRIDE + SHM_SLOT_SKEW, 4096);
    l.ring_bytes = choose_ring(n);
    l.ring_cells = l.ring_bytes / RING_BYTES_A_CELL;
    if (l.ring_cells > CELLS_MOST) /* small messages reuse few cache lines */
        l.ring_cells = CELLS_MOST;
    l.ring_stride = sizeof(struct shm_ring) + l.ring_cells * sizeof(struct shm_cell) + l.ring_bytes;
    l.arenas = align_up(l.rings + 2 * n * n * l.ring_stride, 4096);
    assert(ranks > 0 && ranks <= SHM_RANKS_MAX);
    assert(l.peers % SHM_LINE == 0 && l.arrivals % SHM_LINE == 0 && l.progress % SHM_LINE == 0);
    assert((l.ring_bytes & (l.ring_bytes - 1)) == 0 && (l.ring_cells & (l.ring_cells - 1)) == 0);
    return l;
}

static bool keep_scratch(struct shm *s)
{
    size_t n = (size_t)s->n;
    s->out = calloc(n, sizeof(*s->out));
    s->in = calloc(n, sizeof(*s->in));
    s->sources = calloc(2 * n, sizeof(*s->sources));
    s->targets = calloc(n, sizeof(*s->targets));
    s->may_read = calloc(n, sizeof(*s->may_read));
    s->mapped_bytes = calloc(n, sizeof(*s->mapped_bytes));
    s->bells = calloc(n, sizeof(struct bell *));
    for (size_t i = 0; s->mapped_bytes && i < n; i++)
        s->mapped_bytes[i] = MAP_LEAST / 2; /* below this, page faults are as fast */
    return s->out && s->in && s->sources && s->targets && s->may_read && s->mapped_bytes &&
           s->bells;
}

/* Publishes the facts about this rank. */
static void introduce(struct shm *s)
{
    struct shm_peer *p = &s->peers[s->me];
    if (getrandom(&s->probe, sizeof(s->probe), GRND_NONBLOCK) < 0)
        s->probe = (uintptr_t)s ^ (uint64_t)getpid() << 32;
    p->probe = (uintptr_t)&s->probe;
    p->nonce = s->probe;
    atomic_store_explicit(&p->pid, getpid(), memory_order_release);
}

/* Makes comm->shm from mapped memory and owns it (mapped: unmaps it at the end). */
static int memory_take(dlcoll_comm *comm, void *base, size_t bytes, bool mapped, struct err *e)
{
    struct shm *s = calloc(1, sizeof(*s));
    struct layout l = lay_out(comm->topo.nlocal);
    if (!s) {
        if (mapped)
            munmap(base, bytes);
        return err_set(e, -ENOMEM, "no memory");
    }
    *s = (struct shm){.me = comm->topo.local,
                      .n = comm->topo.nlocal,
                      .base = base,
                      .bytes = bytes,
                      .mapped = mapped,
                      .fd = -1,
                      .chunk = 1,
                      .read = 1};
    if (mapped)
        atomic_fetch_add(&g_reserved, bytes);
    comm->shm = s;
    s->head = (struct shm_head *)s->base;
    s->peers = (struct shm_peer *)(s->base + l.peers);
    s->arrivals = (struct shm_arrival *)(s->base + l.arrivals);
    s->beside = s->base + l.beside;
    s->progress = (struct shm_progress *)(s->base + l.progress);
    s->slots = s->base + l.slots;
    s->rings = s->base + l.rings;
    s->ring_bytes = (uint32_t)l.ring_bytes;
    s->ring_cells = (uint32_t)l.ring_cells;
    s->ring_stride = l.ring_stride;
    s->arenas_at = l.arenas;
    s->arena_bytes = (bytes - l.arenas) / (size_t)s->n / 4096 * 4096;
    s->arena = arena_new(s->base + l.arenas + (size_t)s->me * s->arena_bytes, s->arena_bytes);
    if (!s->arena || !keep_scratch(s)) {
        shm_close(comm);
        return err_set(e, -ENOMEM, "no memory");
    }
    for (int i = 0; i < s->n && comm->job; i++) /* tests have communicators without a job */
        s->bells[i] = job_bell(comm->job, comm->world_ranks[comm->topo.local_ranks[i]]);
    introduce(s);
    comm->shared_stop = &s->head->stop;
    comm->wake_sharers = shm_wake_all;
    return 0;
}

static int check_ranks(const dlcoll_comm *comm, struct err *e)
{
    if (comm->topo.nlocal > SHM_RANKS_MAX)
        return err_set(e, -ENOTSUP, "%d ranks on one node are more than %d", comm->topo.nlocal,
                       SHM_RANKS_MAX);
    return 0;
}

size_t shm_least_bytes(int ranks)
{
    return ranks > SHM_RANKS_MAX ? SIZE_MAX : lay_out(ranks).arenas;
}

int shm_open_heap(dlcoll_comm *comm, void *heap, size_t bytes, struct err *e)
{
    int r = check_ranks(comm, e);
    if (r < 0)
        return r;
    if ((uintptr_t)heap % SHM_LINE || bytes < lay_out(comm->topo.nlocal).arenas)
        return err_set(e, -ENOSPC,
                       "the launcher's shared memory of %zu bytes is too small for %d ranks", bytes,
                       comm->topo.nlocal);
    /* There is no offer whose version could be checked: the first rank writes the version. */
    uint32_t version = 0;
    if (!atomic_compare_exchange_strong(&((struct shm_head *)heap)->version, &version,
                                        SHM_VERSION) &&
        version != SHM_VERSION)
        return err_set(e, -EPROTO, "a rank of this node has another version of libdlcoll");
    return memory_take(comm, heap, bytes, false, e);
}

/* The bells of the world's memory stay when its communicator is gone: groups use them. */
static void keep_bells(dlcoll_comm *comm, int fd)
{
    size_t n = (size_t)comm->topo.nlocal, page = (size_t)sysconf(_SC_PAGESIZE);
    size_t at = lay_out((int)n).bells;
    if (comm->id != 0 || comm->world->segment.base || comm->job->bells || at % page)
        return;
    struct bell *bells =
        mmap(NULL, n * sizeof(*bells), PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);
    int *places = malloc((size_t)comm->size * sizeof(*places));
    for (int r = 0; places && r < comm->size; r++)
        places[r] = comm->topo.node_of[r] == comm->topo.node ? comm->topo.local_of[r] : -1;
    if (bells != MAP_FAILED && (!places || job_take_bells(comm->job, bells, n, places) < 0))
        munmap(bells, n * sizeof(*bells));
    free(places);
}

void shm_map_slots(struct shm *s, int i, size_t bytes)
{
    size_t *mapped = &s->mapped_bytes[i], page = (size_t)sysconf(_SC_PAGESIZE);
    while (*mapped < bytes)
        *mapped *= 2;
    for (uint64_t k = 0; k < SHM_SLOTS; k++) {
        uintptr_t slot = (uintptr_t)shm_slot(s, i, k), at = slot / page * page;
        size_t len = slot - at + (*mapped < SHM_SLOT_BYTES ? *mapped : SHM_SLOT_BYTES);
        /* since Linux 5.14; otherwise page faults do it */
        (void)!madvise((void *)at, align_up(len, page), MADV_POPULATE_WRITE);
    }
    s->has_mapped = true;
}

/* --------------------------------------------------------------------------------------- making */

static int set_length(int fd, size_t bytes, struct err *e)
{
    struct rlimit most;
    /* Exceeding the limit would raise SIGXFSZ. */
    bool fits = getrlimit(RLIMIT_FSIZE, &most) < 0 || bytes <= most.rlim_cur;
    if (fits && ftruncate(fd, (off_t)bytes) == 0)
        return 0;
    return err_sys(e, fits ? errno : EFBIG, "a memory file of %zu bytes", bytes);
}

/* Takes an eighth of the remaining address space: however many communicators live, there is room
 * for another one. */
static size_t choose_arenas(void)
{
    size_t limit = reserve_limit(), reserved = atomic_load(&g_reserved);
    size_t share = reserved < limit ? (limit - reserved) / 8 / 4096 * 4096 : 0;
    return share < ARENAS_LEAST ? ARENAS_LEAST : share < ARENAS_BYTES ? share : ARENAS_BYTES;
}

/* Makes a memory file, as large as the system permits, and maps it. */
static int make_file(size_t fixed, int *fd, void **base, size_t *bytes, struct err *e)
{
    *fd = fd_above_std(memfd_create("dlcoll", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (*fd < 0)
        return err_sys(e, errno, "memfd_create");
    int r = 0;
    for (size_t arenas = choose_arenas(); arenas >= ARENAS_LEAST;
         arenas = arenas / 8 / 4096 * 4096) {
        *bytes = fixed + arenas;
        if ((r = set_length(*fd, *bytes, e)) < 0)
            continue;
        *base = reserve_map(*fd, *bytes);
        if (*base != MAP_FAILED)
            return 0;
        r = err_sys(e, errno, "mmap of %zu bytes", *bytes);
    }
    return r;
}

int shm_create(dlcoll_comm *comm, struct shm_offer *offer, struct err *e)
{
    _cleanup_fd_ int fd = -1;
    struct offer o = {.magic = SHM_MAGIC, .version = SHM_VERSION, .n = comm->topo.nlocal};
    void *base = NULL;
    size_t bytes = 0;
    int r = check_ranks(comm, e);
    if (r < 0 || (r = make_file(lay_out(o.n).arenas, &fd, &base, &bytes, e)) < 0)
        return r;
    /* The file is sealed, because shrinking it would kill processes that touch its pages. */
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0 ||
        getrandom(&o.nonce, sizeof(o.nonce), 0) != sizeof(o.nonce)) {
        r = err_sys(e, errno, "a memory file cannot be sealed");
        munmap(base, bytes);
        return r;
    }
    keep_bells(comm, fd);
    if ((r = memory_take(comm, base, bytes, true, e)) < 0)
        return r;
    struct shm_head *h = comm->shm->head;
    h->magic = SHM_MAGIC;
    h->version = SHM_VERSION;
    h->nonce = o.nonce;
    h->bytes = o.bytes = bytes;
    h->n = o.n;
    o.pid = getpid();
    o.fd = fd;
    comm->shm->fd = take_fd(&fd);
    memset(offer, 0, sizeof(*offer));
    memcpy(offer, &o, sizeof(o));
    return 0;
}

/* ------------------------------------------------------------------------------------ attaching */

static int check_offer(const dlcoll_comm *comm, const struct offer *o, struct err *e)
{
    if (o->magic != SHM_MAGIC || o->version != SHM_VERSION)
        return err_set(e, -EPROTO, "it is offered by another version of libdlcoll");
    if (o->n != comm->topo.nlocal || o->pid <= 0 || o->fd < 0 || o->bytes > SIZE_MAX / 2 ||
        o->bytes < lay_out(o->n).arenas)
        return err_set(e, -EPROTO, "the offer is damaged");
    return 0;
}

/* Opens the descriptor of another process, which the kernel permits to processes that may trace it.
 * The nonce proves that it is the right process, and not one with the same pid in another
 * namespace. */
static int open_file(const struct offer *o, struct err *e)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", o->pid, o->fd);
    _cleanup_fd_ int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return err_sys(e, errno, "%s", path);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) < 0 ||
        (uint64_t)st.st_size != o->bytes)
        return err_set(e, -EPROTO, "%s is not the memory that was offered", path);
    return take_fd(&fd);
}

int shm_attach(dlcoll_comm *comm, const struct shm_offer *offer, struct err *e)
{
    struct offer o;
    memcpy(&o, offer, sizeof(o));
    int r = check_ranks(comm, e);
    if (r < 0 || (r = check_offer(comm, &o, e)) < 0)
        return r;
    _cleanup_fd_ int fd = open_file(&o, e);
    if (fd < 0)
        return fd;
    void *base = reserve_map(fd, o.bytes);
    if (base == MAP_FAILED)
        return err_sys(e, errno, "mmap of %llu bytes", (unsigned long long)o.bytes);
    const struct shm_head *h = base;
    if (h->magic != o.magic || h->nonce != o.nonce || h->bytes != o.bytes || h->n != o.n) {
        munmap(base, o.bytes);
        return err_set(e, -EPROTO, "process %d does not have the memory that was offered", o.pid);
    }
    keep_bells(comm, fd);
    return memory_take(comm, base, o.bytes, true, e);
}

void shm_all_attached(dlcoll_comm *comm)
{
    if (comm->shm)
        close_fd(&comm->shm->fd);
}

void shm_ring_parked(struct shm *s)
{
    for (int i = 0; i < s->n; i++)
        shm_ring(s, i, &s->peers[i].coll_parked);
}

void shm_wake_all(struct shm *s)
{
    shm_ring_parked(s);
    for (int i = 0; i < s->n; i++)
        shm_ring(s, i, &s->peers[i].p2p_parked);
}

/* Wakes the ranks that wait for this one. */
static void leave(struct shm *s)
{
    atomic_store(&s->peers[s->me].left, 1);
    shm_wake_all(s);
    if (!atomic_load(&s->head->sleepers))
        return;
    for (uint64_t seq = 0; seq < SHM_ARRIVALS; seq++)
        wait_wake(&shm_arrival(s, seq, s->me)->seq);
    wait_wake(&s->progress[s->me].staged);
    wait_wake(&s->progress[s->me].reduced);
    wait_wake(&s->progress[s->me].done);
}

void shm_close(dlcoll_comm *comm)
{
    struct shm *s = comm->shm;
    if (!s)
        return;
    if (!comm_is_forked(comm))
        leave(s);
    comm->shm = NULL;
    comm->shared_stop = NULL;
    arena_free(s->arena);
    free(s->out);
    free(s->in);
    free(s->sources);
    free(s->targets);
    free(s->sums);
    free(s->may_read);
    free(s->bells);
    free(s->mapped_bytes);
    close_fd(&s->fd);
    if (s->mapped) {
        munmap(s->base, s->bytes);
        atomic_fetch_sub(&g_reserved, s->bytes);
    }
    free(s);
}

bool shm_is_replaced(const struct dlcoll_comm *comm, int local)
{
    int rank = comm->world_ranks[comm->topo.local_ranks[local]];
    const struct segment_local *line = job_segment_local(&comm->world->segment, rank);
    int32_t attached = atomic_load_explicit(&comm->shm->peers[local].pid, memory_order_acquire);
    int32_t now = line ? atomic_load_explicit(&line->pid, memory_order_acquire) : attached;
    return attached && now && now != attached;
}

/* --------------------------------------------------------------------------------------- arenas */

bool shm_holds(const struct shm *s, const void *p, size_t len, uint64_t *at)
{
    uintptr_t from = (uintptr_t)s->base + s->arenas_at, to = (uintptr_t)s->base + s->bytes;
    uintptr_t x = (uintptr_t)p;
    if (x < from || x > to || len > to - x)
        return false;
    *at = x - (uintptr_t)s->base;
    return true;
}

void *shm_alloc(dlcoll_comm *comm, size_t bytes)
{
    return comm->shm ? arena_take(comm->shm->arena, bytes) : NULL;
}

bool shm_free(dlcoll_comm *comm, void *p)
{
    return comm->shm && arena_give(comm->shm->arena, p);
}
