#include "collectives/comm.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectives/error.h"
#include "collectives/net/tcp.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/parse.h"

#define DEFAULT_TIMEOUT_MS (10 * 60 * 1000)

static _Atomic uint32_t g_made; /* communicators of all workers; failed tries do not count */

/* ---------------------------------------------------------------------------------------- fork */

static unsigned g_fork_gen; /* counts the forks between the first process and this one */

static void in_child(void)
{
    g_fork_gen++;
}

/* Registers in_child() once. 0 or -ENOMEM. */
static int watch_forks(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool watching;
    pthread_mutex_lock(&lock);
    watching = watching || pthread_atfork(NULL, NULL, in_child) == 0;
    int r = watching ? 0 : -ENOMEM;
    pthread_mutex_unlock(&lock);
    return r;
}

bool comm_is_forked(const dlcoll_comm *comm)
{
    return comm->fork_gen != g_fork_gen;
}

/* ------------------------------------------------------------------------------------- options */

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

uint64_t comm_deadline(int64_t timeout_ms)
{
    uint64_t now = mono_ns(), ns = (uint64_t)timeout_ms * 1000000u;
    if (timeout_ms < 0 || timeout_ms > INT64_MAX / 1000000 || now + ns < now)
        return 0;
    return now + ns;
}

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
        return error_set_global(DLCOLL_EINVAL, "dlcoll_init: DLCOLL_TIMEOUT: %s is no time", env);
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
            code == DLCOLL_EINVAL ? "opts has no valid size and version (use DLCOLL_INIT_OPTS_INIT)"
                                  : "opts asks for what this library does not know");
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

static void set_up_debugging(void)
{
    bool on = false;
    const char *env = getenv("DLCOLL_DEBUG");
    if (env && parse_bool(env, &on, NULL) == 0 && on)
        log_init(LOG_LEVEL_VERBOSE, "dlcoll: ");
}

/* ---------------------------------------------------------------------------------------- life */

/* Everything that the world does not need itself. */
static int set_up(dlcoll_comm *c, struct err *e)
{
    int r = tcp_new(&c->transport, &c->world, e);
    if (r < 0)
        return r;
    c->rank = c->world.rank;
    c->size = c->world.size;
    c->fork_gen = g_fork_gen;
    c->error = (dlcoll_error)DLCOLL_ERROR_INIT;
    atomic_flag_clear(&c->busy);
    schedule_init(&c->schedule);
    engine_init(&c->engine, c->transport, c->rank, c->size,
                job_segment_abort_word(&c->world.segment),
                wait_policy_choose(c->world.neighbours, c->world.usable_cpus));
    return 0;
}

static int open_comm(dlcoll_comm *c, const dlcoll_init_opts *o, struct err *e)
{
    if (!c || watch_forks() < 0)
        return err_set(e, -ENOMEM, "no memory");
    int r = world_init(&c->world, atomic_load(&g_made) + 1, comm_deadline(o->init_timeout_ms), e);
    if (r < 0)
        return r;
    c->timeout_ms = o->timeout_ms;
    r = set_up(c, e);
    if (r < 0)
        world_fini(&c->world);
    return r;
}

int dlcoll_init(dlcoll_comm **comm, const dlcoll_init_opts *opts)
{
    dlcoll_init_opts o;
    struct err e = ERR_INIT;
    if (!comm)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_init: comm is NULL");
    *comm = NULL;
    set_up_debugging();
    int code = read_options(&o, opts);
    if (code < 0)
        return code;
    dlcoll_comm *c = calloc(1, sizeof(*c));
    int r = open_comm(c, &o, &e);
    if (r < 0) {
        free(c);
        return error_set_global(error_code(r), "dlcoll_init: %s", e.msg);
    }
    log_verbose("rank %d of %d, %s; %d ranks and %d usable CPUs on this host", c->rank, c->size,
                c->world.segment.base ? "started by dlaunch"
                : c->world.members    ? "met through a store"
                                      : "alone",
                c->world.neighbours, c->world.usable_cpus);
    atomic_fetch_add(&g_made, 1);
    *comm = c;
    return 0;
}

void dlcoll_destroy(dlcoll_comm *comm)
{
    if (!comm)
        return;
    struct segment_local *line = world_line(&comm->world);
    if (line && !comm->failed && !comm_is_forked(comm))
        atomic_store_explicit(&line->state, SEGMENT_LOCAL_DONE, memory_order_release);
    engine_fini(&comm->engine);
    schedule_fini(&comm->schedule);
    comm->transport->ops->free(comm->transport);
    world_fini(&comm->world);
    free(comm);
}

/* ------------------------------------------------------------------------------------- entering */

int comm_enter(dlcoll_comm *comm)
{
    if (!comm)
        return error_set_global(DLCOLL_EINVAL, "comm is NULL");
    if (comm_is_forked(comm))
        return error_set(&comm->error, DLCOLL_ESTATE,
                         "this process is a fork()'s child of the one that made the communicator");
    if (atomic_flag_test_and_set_explicit(&comm->busy, memory_order_acquire))
        return DLCOLL_ESTATE; /* its last error is the other thread's */
    if (comm->failed)
        return comm_leave(comm, DLCOLL_ESTATE); /* its last error has the cause */
    if (comm->finalized)
        return comm_leave(
            comm, error_set(&comm->error, DLCOLL_ESTATE, "the communicator has been finalized"));
    return 0;
}

int comm_leave(dlcoll_comm *comm, int code)
{
    atomic_flag_clear_explicit(&comm->busy, memory_order_release);
    return code;
}

/* ------------------------------------------------------------------------------------- queries */

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
    return comm ? comm->world.local_rank : DLCOLL_EINVAL;
}
