/* comm_create.c: how communicators begin and end: dlcoll_init(), comm_new() and dlcoll_destroy().
 * Only this file knows every part that a communicator has. */
#include "collectives/ops/comm_create.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collectives/base/error.h"
#include "collectives/comm/comm.h"
#include "collectives/comm/failure.h"
#include "collectives/comm/work.h"
#include "collectives/hier/hier.h"
#include "collectives/nccl/nccl.h"
#include "collectives/net/net.h"
#include "collectives/ops/comm_memory.h"
#include "collectives/p2p/p2p.h"
#include "collectives/perform/choose.h"
#include "collectives/perform/queue.h"
#include "collectives/shm/memory.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/parse.h"

#define DEFAULT_TIMEOUT_MS (10 * 60 * 1000)

/* -------------------------------------------------------------------------------------- options */

static int env_timeout(int64_t *ms)
{
    struct err e = ERR_INIT;
    const char *env = getenv("DLCOLL_TIMEOUT");
    double seconds;
    if (!env || !*env)
        return 0;
    if (parse_seconds(env, &seconds, &e) < 0)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_init: DLCOLL_TIMEOUT: %s", e.msg);
    if (seconds < 0.001)
        return error_set_global(DLCOLL_EINVAL,
                                "dlcoll_init: DLCOLL_TIMEOUT: %s is too short: must be 1ms or more",
                                env);
    *ms = seconds < 1e9 ? (int64_t)(seconds * 1000) : -1;
    return 0;
}

/* The options with the environment filled in. */
static int read_options(dlcoll_init_opts *o, const dlcoll_init_opts *given)
{
    *o = (dlcoll_init_opts)DLCOLL_INIT_OPTS_INIT;
    int code = comm_take_opts(o, sizeof(*o), given);
    if (code < 0)
        return error_set_global(
            code, "dlcoll_init: %s",
            code == DLCOLL_EINVAL
                ? "opts has no valid size and version (use DLCOLL_INIT_OPTS_INIT)"
                : "opts sets fields that this version of the library does not have");
    if (o->flags & ~DLCOLL_THREAD_MULTIPLE)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_init: opts has an unknown flag");
    int64_t otherwise = DEFAULT_TIMEOUT_MS;
    code = env_timeout(&otherwise);
    if (code < 0)
        return code;
    if (o->timeout_ms == 0)
        o->timeout_ms = otherwise;
    if (o->init_timeout_ms == 0)
        o->init_timeout_ms = otherwise;
    return 0;
}

static int read_debug(bool *on, struct err *e)
{
    const char *env = getenv("DLCOLL_DEBUG");
    *on = false;
    return env && *env ? parse_bool(env, on, e) : 0;
}

static void init_log(void)
{
    struct err e = ERR_INIT;
    bool on;
    log_init(read_debug(&on, &e) == 0 && on ? LOG_LEVEL_VERBOSE : LOG_LEVEL_NOTICE, "dlcoll: ");
}

/* Sets up logging once in a process, because other threads may log already. */
static int set_up_debugging(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct err e = ERR_INIT;
    bool on;
    if (read_debug(&on, &e) < 0)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_init: DLCOLL_DEBUG: %s", e.msg);
    pthread_once(&once, init_log);
    return 0;
}

/* ----------------------------------------------------------------------------------------- life */

static void fini(dlcoll_comm *c)
{
    hier_free(c);
    shm_close(c);
    net_free(c->net);
    if (c->subscriber.stop && !comm_is_forked(c))
        acceptor_forget(&c->job->acceptor, &c->subscriber);
    for (struct group_count *k = c->group_counts, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    free(c->staging);
    free(c->numbers);
    topology_fini(&c->topo);
    free(c->world_ranks);
    pthread_mutex_destroy(&c->running);
    pthread_mutex_destroy(&c->making);
    pthread_mutex_destroy(&c->inside);
    pthread_mutex_destroy(&c->error_lock);
    job_unref(c->job);
    free(c);
}

static void watch_neighbours(dlcoll_comm *c)
{
    if ((c->world->segment.base && !c->after_failure) || c->topo.nlocal < 2)
        return;
    c->watches = true;
    for (int i = 0; i < c->topo.nlocal; i++)
        job_watch(c->job, c->world_ranks[c->topo.local_ranks[i]]);
}

static void comm_arrived(struct acceptor_subscriber *subscriber)
{
    comm_ring(container_of(subscriber, dlcoll_comm, subscriber));
}

int comm_new(dlcoll_comm **out, struct job *job, uint64_t id, int *world_ranks, int size, int rank,
             const char *name, int64_t timeout_ms, bool after_failure, struct err *e)
{
    static const _Atomic uint32_t never;
    struct world *w = &job->world;
    dlcoll_comm *c = world_ranks ? calloc(1, sizeof(*c)) : NULL;
    if (!c) {
        free(world_ranks);
        return err_set(e, -ENOMEM, "no memory");
    }
    c->job = job_ref(job);
    c->world = w;
    c->id = id;
    c->world_ranks = world_ranks;
    c->size = size;
    c->rank = rank;
    c->timeout_ms = timeout_ms;
    c->fork_gen = comm_forks();
    c->error = (dlcoll_error)DLCOLL_ERROR_INIT;
    c->after_failure = after_failure;
    bool listens = w->segment.base && !after_failure;
    c->job_word = listens ? job_segment_abort_word(&w->segment) : &never;
    c->policy = wait_policy_choose(w->neighbours, w->usable_cpus);
    snprintf(c->name, sizeof(c->name), "%s", name ? name : "");
    atomic_flag_clear(&c->busy);
    c->multiple = job->conf.multiple;
    if (c->multiple)
        (void)atomic_flag_test_and_set(&c->busy);
    pthread_mutex_init(&c->inside, NULL);
    pthread_mutex_init(&c->making, NULL);
    pthread_mutex_init(&c->running, NULL);
    pthread_mutex_init(&c->error_lock, NULL);
    int r = topology_init(&c->topo, w, world_ranks, size, rank, e);
    if (r == 0)
        r = net_new(&c->net, c, e);
    if (r < 0) {
        fini(c);
        return r;
    }
    watch_neighbours(c);
    c->subscriber = (struct acceptor_subscriber){
        .comm = id, .stop = &c->own_stop, .asked = comm_asked, .arrived = comm_arrived};
    acceptor_expect(&job->acceptor, &c->subscriber);
    *out = c;
    return 0;
}

static int *count_up(int n)
{
    int *ranks = malloc((size_t)n * sizeof(*ranks));
    for (int i = 0; ranks && i < n; i++)
        ranks[i] = i;
    return ranks;
}

static int share_heap(dlcoll_comm *c, const struct job_segment *s, struct err *e)
{
    uint8_t *heap = s->base + s->header.off_heap;
    uint64_t bytes = s->header.heap_bytes / 4096 * 4096;
    size_t least = shm_least_bytes(c->topo.most_local);
    c->shares_memory = bytes >= least;
    /* Records that this node lacks room, because other nodes may have room, and choose other
     * algorithms. */
    if (!c->shares_memory && least < SIZE_MAX && c->topo.nnodes > 1)
        job_lacks_memory(c->job);
    return c->shares_memory && c->topo.nlocal > 1 ? shm_open_heap(c, heap, bytes, e) : 0;
}

/* The memory of the world: the launcher's, which is zeroed once and so the first one's, or what
 * this node's ranks agree on. */
static int share_world(dlcoll_comm *c, uint64_t deadline_ns, struct err *e)
{
    struct job_segment *s = &c->world->segment;
    if (!c->job->conf.shared_memory || c->topo.most_local == 1)
        return 0;
    if (s->base && c->world->instance == 1)
        return share_heap(c, s, e);
    struct coll_failure failure;
    coll_failure_init(&failure);
    int r = comm_share_memory(c, false, deadline_ns, &failure);
    if (r == 0)
        return 0;
    if (r != -EBADMSG && r != -EPROTONOSUPPORT && !comm_is_stopped(c))
        return err_set(e, r, "sharing memory with this node's ranks: %s",
                       failure.err.msg[0] ? failure.err.msg : strerror(-r));
    comm_fail(c, r, /* a call without a name */
              &(struct coll_call){.sig = {.settings = c->job->conf.settings}, .failure = &failure});
    return err_set(e, c->error.code == DLCOLL_EMISMATCH ? -EBADMSG : r, "%s", c->error.text);
}

static int open_comm(dlcoll_comm **out, const dlcoll_init_opts *o, struct err *e)
{
    struct world_opts w = {.deadline_ns = comm_deadline(o->init_timeout_ms),
                           .method = o->init_method,
                           .rank = o->rank,
                           .size = o->world_size,
                           .store = o->store,
                           .name = o->name ? o->name : ""};
    struct job *job;
    bool devices;
    if (comm_watch_forks() < 0)
        return err_set(e, -ENOMEM, "no memory");
    int r = nccl_choose(o->backend, &devices, e);
    if (r == 0)
        r = job_new(&job, &w, g_providers, e);
    if (r < 0)
        return r;
    job->conf.devices = devices;
    job->conf.multiple = o->flags & DLCOLL_THREAD_MULTIPLE;
    dlcoll_comm *c = NULL;
    r = comm_new(&c, job, 0, count_up(job->world.size), job->world.size, job->world.rank, NULL,
                 o->timeout_ms, false, e);
    job_unref(job);
    if (r == 0 && (r = share_world(c, w.deadline_ns, e)) < 0)
        fini(c);
    else
        *out = c;
    return r;
}

int dlcoll_init(dlcoll_comm **comm, const dlcoll_init_opts *opts)
{
    dlcoll_init_opts o;
    struct err e = ERR_INIT;
    if (!comm)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_init: comm is NULL");
    *comm = NULL;
    int code = set_up_debugging();
    if (code == 0)
        code = read_options(&o, opts);
    if (code < 0)
        return code;
    if (reduce_choose(&e) < 0)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_init: %s", e.msg);
    dlcoll_comm *c = NULL;
    int r = open_comm(&c, &o, &e);
    if (r < 0)
        return error_set_global(error_code(r), "dlcoll_init: %s", e.msg);
    log_verbose("rank %d of %d, %s; %d ranks and %d usable CPUs on this host", c->rank, c->size,
                c->world->segment.base ? "started by dlaunch"
                : c->world->members    ? "met through a store"
                                       : "alone",
                c->world->neighbours, c->world->usable_cpus);
    world_made(c->world);
    *comm = c;
    return 0;
}

/* In a fork()'s child no lock may be taken, here or elsewhere: one that another thread had at that
 * moment is never given back. Nor is anybody told anything, since the parent goes on: what the
 * child has is closed and freed, no more. */
void dlcoll_destroy(dlcoll_comm *comm)
{
    if (!comm)
        return;
    struct segment_local *line = world_line(comm->world);
    bool forked = comm_is_forked(comm);
    if (line && comm->id == 0 && !comm->failed && !forked)
        atomic_store_explicit(&line->state, SEGMENT_LOCAL_DONE, memory_order_release);
    if (!forked && !comm->failed &&
        (queue_is_busy(comm) || p2p_is_busy(comm) || nccl_is_busy(comm)))
        comm_give_up(comm, DLCOLL_EABORTED, DLCOLL_EPEER, "has destroyed the communicator");
    nccl_free(comm, forked);
    queue_free(comm, forked);
    if (!forked)
        p2p_stop(comm);
    work_pool_free(comm, forked ? NULL : nccl_event_free);
    p2p_free(comm->p2p);
    fini(comm);
}
