#include "collectives/comm/comm.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collectives/base/error.h"
#include "collectives/base/task.h"
#include "collectives/comm/progress.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/parse.h"

/* ----------------------------------------------------------------------------------------- fork */

static unsigned g_fork_gen; /* counts the forks between the first process and this one */

static void in_child(void)
{
    g_fork_gen++;
}

int comm_watch_forks(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool watching;
    pthread_mutex_lock(&lock);
    watching = watching || pthread_atfork(NULL, NULL, in_child) == 0;
    int r = watching ? 0 : -ENOMEM;
    pthread_mutex_unlock(&lock);
    return r;
}

unsigned comm_forks(void)
{
    return g_fork_gen;
}

bool comm_is_forked(const dlcoll_comm *comm)
{
    return comm->fork_gen != g_fork_gen;
}

/* -------------------------------------------------------------------------------------- options */

int comm_take_opts(void *ours, size_t size, const void *given)
{
    size_t n;
    uint32_t version;
    if (!given)
        return 0;
    memcpy(&n, given, sizeof(n));
    if (n < sizeof(n) + sizeof(version) || n > 4096)
        return DLCOLL_EINVAL;
    memcpy(&version, (const char *)given + sizeof(n), sizeof(version));
    if (version == 0)
        return DLCOLL_EINVAL;
    for (size_t i = size; i < n; i++) {
        if (((const char *)given)[i])
            return DLCOLL_ENOSUP;
    }
    memcpy(ours, given, n < size ? n : size);
    return 0;
}

size_t *comm_keep_numbers(dlcoll_comm *c, size_t n)
{
    if (n <= c->cap_numbers)
        return c->numbers;
    size_t *p = malloc(n * sizeof(*p));
    if (!p)
        return NULL;
    free(c->numbers);
    c->numbers = p;
    c->cap_numbers = n;
    return p;
}

bool comm_keep_staging(dlcoll_comm *c, size_t bytes)
{
    if (bytes <= c->cap_staging)
        return true;
    uint8_t *p = malloc(bytes);
    if (!p)
        return false;
    free(c->staging);
    c->staging = p;
    c->cap_staging = bytes;
    return true;
}

uint64_t comm_deadline(int64_t timeout_ms)
{
    uint64_t now = mono_ns(), ns = (uint64_t)timeout_ms * 1000000u;
    if (timeout_ms < 0 || timeout_ms > INT64_MAX / 1000000 || now + ns < now)
        return 0;
    return now + ns;
}

/* ------------------------------------------------------------------------------------- entering */

int comm_error(dlcoll_comm *c, int code, const char *fmt, ...)
{
    va_list ap;
    pthread_mutex_lock(&c->error_lock);
    if (!atomic_load(&c->failed)) { /* else the cause is there to stay */
        va_start(ap, fmt);
        error_vset(&c->error, code, fmt, ap);
        va_end(ap);
    }
    pthread_mutex_unlock(&c->error_lock);
    return code;
}

int comm_usable(dlcoll_comm *comm)
{
    /* The last error has the cause. If the communicator failed while no operation was under way,
     * the next operation returns that failure. */
    if (atomic_load_explicit(&comm->failed, memory_order_acquire))
        return atomic_load(&comm->returned) ? DLCOLL_ESTATE : atomic_load(&comm->failed_code);
    if (comm->finalized)
        return comm_error(comm, DLCOLL_ESTATE, "the communicator has been finalized");
    return 0;
}

/* With `multiple` the flag is always set. */
bool comm_take(dlcoll_comm *comm)
{
    return !atomic_flag_test_and_set_explicit(&comm->busy, memory_order_acquire) ||
           (comm->multiple && pthread_mutex_lock(&comm->inside) == 0);
}

void comm_let_in(dlcoll_comm *comm)
{
    if (comm->multiple)
        pthread_mutex_unlock(&comm->inside);
}

void comm_keep_out(dlcoll_comm *comm)
{
    if (comm->multiple)
        pthread_mutex_lock(&comm->inside);
}

static inline int leave(dlcoll_comm *comm, int code, bool messages)
{
    if (code < 0 && atomic_load_explicit(&comm->failed, memory_order_acquire))
        atomic_store(&comm->returned, true);
    if (!comm->multiple)
        atomic_flag_clear_explicit(&comm->busy, memory_order_release);
    else if (!messages)
        pthread_mutex_unlock(&comm->inside);
    return code;
}

static inline int enter(dlcoll_comm *comm, bool messages)
{
    if (!comm)
        return error_set_global(DLCOLL_EINVAL, "comm is NULL");
    if (comm_is_forked(comm))
        return error_set_global(
            DLCOLL_ESTATE,
            "this process is a fork()'s child of the one that made the communicator");
    if (!(messages && comm->multiple) && !comm_take(comm))
        return DLCOLL_ESTATE; /* the last error belongs to the other thread */
    int code = comm_usable(comm);
    return code < 0 ? leave(comm, code, messages) : 0;
}

int comm_enter(dlcoll_comm *comm)
{
    return enter(comm, false);
}

int comm_enter_with_messages(dlcoll_comm *comm)
{
    return enter(comm, true);
}

int comm_leave(dlcoll_comm *comm, int code)
{
    return leave(comm, code, false);
}

int comm_leave_with_messages(dlcoll_comm *comm, int code)
{
    return leave(comm, code, true);
}

bool comm_has_exited(const dlcoll_comm *c, int rank)
{
    struct segment_local *line = job_segment_local(&c->world->segment, c->world_ranks[rank]);
    if (line && atomic_load_explicit(&line->exited, memory_order_acquire))
        return true;
    return c->watches && c->topo.node_of[rank] == c->topo.node &&
           job_has_ended(c->job, c->world_ranks[rank]);
}

/* Finds a process of this node that has died, where no launcher reports deaths. */
static bool neighbour_gone(const dlcoll_comm *c, int *culprit)
{
    for (int i = 0; c->watches && i < c->topo.nlocal; i++) {
        if (job_has_ended(c->job, c->world_ranks[c->topo.local_ranks[i]])) {
            *culprit = c->topo.local_ranks[i];
            return true;
        }
    }
    return false;
}

int comm_look(dlcoll_comm *c, int *culprit)
{
    struct err e = ERR_INIT;
    *culprit = -1;
    if (c->topo.nnodes > 1 || !c->shared_stop || !c->world->segment.base)
        acceptor_serve(&c->job->acceptor, &e);
    if (comm_is_stopped(c))
        return -ECANCELED;
    return neighbour_gone(c, culprit) ? -EPIPE : 0;
}

/* ------------------------------------------------------------------------------------- the facts
 */

static size_t average(const size_t *counts, int n)
{
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum / (size_t)n;
}

struct algo_key comm_algo_key(const struct coll_call *c)
{
    const size_t *counts = c->kind == CALL_ALL_GATHER_V       ? c->recv_parts.counts
                           : c->kind == CALL_REDUCE_SCATTER_V ? c->send_parts.counts
                                                              : NULL;
    size_t count = counts ? average(counts, c->ranks.size) : c->count;
    /* The _v kinds whose counts not all ranks know are selected as 0 bytes. */
    return (struct algo_key){.kind = algo_select_plain_kind(c->kind),
                             .ranks = c->ranks.size,
                             .nodes = c->comm->topo.nnodes,
                             .bytes = call_counts_differ(c->kind) ? 0 : count * c->elem};
}

struct tcp_opts comm_tcp_opts(dlcoll_comm *comm, enum channel channel)
{
    return (struct tcp_opts){.acceptor = &comm->job->acceptor,
                             .comm = comm->id,
                             .channel = channel,
                             .rule = channel == CHANNEL_P2P ? TCP_SENDER : TCP_LOWER,
                             .rank = comm->rank,
                             .size = comm->size,
                             .world_ranks = comm->world_ranks,
                             .sockets = comm->job->conf.sockets,
                             .congestion = comm->job->conf.congestion,
                             .stop_word = comm->job_word};
}

int comm_start_task(dlcoll_comm *c, struct task *t, void (*run)(void *arg), void *arg,
                    _Atomic uint32_t *slot)
{
    if (atomic_load_explicit(slot, memory_order_relaxed))
        return 0;
    int r = 0;
    pthread_mutex_lock(&c->making);
    if (!atomic_load(&t->slot)) {
        t->run = run;
        t->arg = arg;
        r = progress_join(c->job, t);
        atomic_store(slot, atomic_load(&t->slot));
    }
    pthread_mutex_unlock(&c->making);
    return r;
}

void comm_ring(const dlcoll_comm *c)
{
    task_ring(atomic_load_explicit(&c->coll_slot, memory_order_acquire));
    task_ring(atomic_load_explicit(&c->p2p_slot, memory_order_acquire));
}

int dlcoll_last_error(const dlcoll_comm *comm, dlcoll_error *out)
{
    dlcoll_error last = *error_global();
    size_t size = out ? out->size : 0;
    if (size < offsetof(dlcoll_error, code) + sizeof(out->code))
        return DLCOLL_EINVAL;
    if (comm && !comm_is_forked(comm)) {
        pthread_mutex_t *lock = &((dlcoll_comm *)comm)->error_lock;
        pthread_mutex_lock(lock);
        last = comm->error;
        pthread_mutex_unlock(lock);
    }
    memcpy(out, &last, size < sizeof(last) ? size : sizeof(last));
    out->size = size;
    return 0;
}

/* -------------------------------------------------------------------------------------- queries */

int dlcoll_rank(const dlcoll_comm *comm)
{
    return comm ? comm->rank : DLCOLL_EINVAL;
}

int dlcoll_size(const dlcoll_comm *comm)
{
    return comm ? comm->size : DLCOLL_EINVAL;
}

int dlcoll_local_rank(const dlcoll_comm *comm)
{
    return comm ? comm->world->local_rank : DLCOLL_EINVAL;
}

int dlcoll_local_size(const dlcoll_comm *comm)
{
    return comm ? comm->topo.nlocal : DLCOLL_EINVAL;
}

int dlcoll_world_rank(const dlcoll_comm *comm, int rank)
{
    return comm && rank >= 0 && rank < comm->size ? comm->world_ranks[rank] : DLCOLL_EINVAL;
}

int dlcoll_rank_host(const dlcoll_comm *comm, int rank, char *host, size_t size, int *pid)
{
    char name[MEMBER_HOST_MAX];
    int its_pid;
    if (!comm || rank < 0 || rank >= comm->size)
        return DLCOLL_EINVAL;
    world_who(comm->world, comm->world_ranks[rank], name, &its_pid);
    if (host && size)
        snprintf(host, size, "%s", name);
    if (pid)
        *pid = its_pid;
    return 0;
}

const char *dlcoll_version(void)
{
    return DLAUNCH_VERSION;
}

int dlcoll_version_number(void)
{
    int major = 0, minor = 0, patch = 0;
    sscanf(DLAUNCH_VERSION, "%d.%d.%d", &major, &minor, &patch);
    return DLCOLL_VERSION_NUMBER(major, minor, patch);
}
