#include "tests/lib/shm_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collectives/comm/provider.h"
#include "collectives/shm/provider.h"
#include "collectives/reduce/reduce.h"
#include "collectives/shm/memory.h"

/* Benches use this, too, where there is no Check. */
static void must(bool fact, const char *what)
{
    if (fact)
        return;
    fprintf(stderr, "shm_world: %s\n", what);
    abort();
}

#define HEAP_BYTES ((size_t)16 << 30)

void shm_world_init(struct shm_world *w, int n, int usable_cpus)
{
    memset(w, 0, sizeof(*w));
    w->n = n;
    struct wait_cpus own = wait_own_cpus();
    must(n <= SHM_WORLD_MOST, "too many ranks");
    for (int i = 0; i < n; i++)
        w->world[i] =
            (struct world){.usable_cpus = usable_cpus ? usable_cpus : wait_count_cpus(&own),
                           .local_rank = i,
                           .instance = 1,
                           .size = n};
    w->bytes = HEAP_BYTES;
    int fd = memfd_create("heap", MFD_CLOEXEC);
    must(fd >= 0 && ftruncate(fd, (off_t)w->bytes) == 0, "no memory file");
    w->heap = mmap(NULL, w->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(w->heap != MAP_FAILED, "no memory");
    close(fd);
    w->abort_word = w->heap;
}

void shm_world_fini(struct shm_world *w)
{
    munmap(w->heap, w->bytes);
}

/* The acceptor that a waiting rank looks at: it has no socket, so no connection ever comes. */
static const struct world g_nowhere = {.listen_fd = -1};
static struct job g_job = {.acceptor = {.world = &g_nowhere}};

dlcoll_comm *shm_world_comm(struct shm_world *w, int i)
{
    struct err e = ERR_INIT;
    dlcoll_comm *c = calloc(1, sizeof(*c));
    int *ranks = calloc((size_t)w->n, sizeof(*ranks));
    must(c && ranks, "no memory");
    for (int k = 0; k < w->n; k++)
        ranks[k] = k;
    must(reduce_choose(&e) == 0, e.msg);
    c->world = &w->world[i];
    c->job = &g_job;
    c->world_ranks = ranks;
    c->rank = i;
    c->size = w->n;
    c->topo = (struct topology){.size = w->n,
                                .nnodes = 1,
                                .nlocal = w->n,
                                .local = i,
                                .by_node = ranks,
                                .local_ranks = ranks,
                                .contiguous = true};
    c->policy = wait_policy_choose(w->n, w->world[i].usable_cpus);
    c->job_word = w->abort_word;
    must(shm_open_heap(c, (char *)w->heap + 4096, w->bytes - 4096, &e) == 0, e.msg);
    return c;
}

void shm_world_close(dlcoll_comm *c)
{
    shm_close(c);
    free(c->topo.by_node);
    free(c);
}

struct coll_call shm_world_call(dlcoll_comm *comm, enum call_kind kind, size_t count,
                                dlcoll_dtype dtype, dlcoll_op op, int root)
{
    const struct dtype *type = dtype_get(dtype);
    struct coll_call c = {.sig = {.kind = (uint8_t)kind,
                                  .dtype = (uint8_t)dtype,
                                  .op = (uint8_t)op,
                                  .root = root,
                                  .count = count},
                          .kind = kind,
                          .comm = comm,
                          .ranks = {.size = comm->size, .me = comm->rank},
                          .root = root,
                          .count = count,
                          .dtype = type,
                          .elem = type->size,
                          .op = op};
    reduce_find(dtype, op, &c.reduce);
    c.reduce.ranks = comm->size;
    return c;
}

int shm_world_run(struct coll_call *c)
{
    static _Thread_local struct coll_failure failure; /* of this rank's last operation */
    coll_failure_init(&failure);
    c->failure = &failure;
    c->seq = ++c->comm->seq;
    return shm_provider.run(c);
}
