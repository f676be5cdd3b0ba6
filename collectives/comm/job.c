#include "collectives/comm/job.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collectives/bootstrap/env.h"
#include "collectives/bootstrap/settings.h"
#include "core/fd.h"
#include "core/hash.h"
#include "collectives/wire/tcp.h"
#include "collectives/bootstrap/store.h"
#include "core/parse.h"

static int env_bool(const char *name, bool otherwise, bool *out, struct err *e)
{
    const char *v = getenv(name);
    *out = otherwise;
    if (v && *v && parse_bool(v, out, e) < 0)
        return err_wrap(e, "%s", name);
    return 0;
}

static int read_congestion(struct job_conf *c, struct err *e)
{
    const char *v = getenv("DLCOLL_TCP_CONGESTION");
    if (!v || !*v)
        return 0;
    size_t len = strlen(v);
    int r = len < sizeof(c->congestion) ? tcp_try_congestion(v) : -ENOENT;
    if (r < 0)
        return err_set(
            e, -EINVAL,
            "DLCOLL_TCP_CONGESTION: %s '%.40s' here; "
            "/proc/sys/net/ipv4/tcp_allowed_congestion_control names those for everybody",
            r == -EPERM ? "not everybody may use" : "there is no", v);
    memcpy(c->congestion, v, len + 1);
    return 0;
}

static int read_conf(struct job_conf *c, struct err *e)
{
    c->sockets = 1;
    int r = env_read_int("DLCOLL_SOCKETS", 1, TCP_SOCKETS_MAX, &c->sockets, e);
    if (r == 0)
        r = env_read_int("DLCOLL_NCCL_ROOTS", 1, INT_MAX, &c->nccl_roots, e);
    if (r >= 0)
        r = env_read_int("DLCOLL_DEVICE_TIMES", 0, 1, &c->device_times, e);
    if (r == 0)
        r = read_congestion(c, e);
    return r < 0 ? r : env_bool("DLCOLL_SHM", true, &c->shared_memory, e);
}

static uint8_t job_fold(uint64_t h)
{
    return (uint8_t)(1 + h % 255);
}

static uint64_t digest_rules(const struct algo_select *s)
{
    char rule[256];
    uint64_t h = s->n > 0;
    for (size_t i = 0; i < s->n; i++) {
        algo_select_format(&s->rules[i], rule, sizeof(rule));
        for (const char *p = rule; *p; p++)
            h = hash_add(h, (uint64_t)*p);
    }
    return h;
}

/* Says what must be equal on all ranks: when they connect, and as a byte of every call's signature.
 */
static void publish_settings(struct job *j, bool lacks_memory)
{
    struct job_conf *c = &j->conf;
    struct segment_local *line = world_line(&j->world);
    j->world.settings = settings_pack(&(struct settings){.sockets = c->sockets,
                                                         .nccl_roots = c->nccl_roots,
                                                         .shared_memory = c->shared_memory,
                                                         .lacks_memory = lacks_memory,
                                                         .rules = digest_rules(&j->algo_select)});
    c->settings = j->world.settings ? job_fold(hash_add(1, j->world.settings)) : 0;
    if (line)
        atomic_store_explicit(&line->settings, 1u + j->conf.settings, memory_order_release);
}

int job_new(struct job **out, const struct world_opts *opts,
            const struct coll_provider *const *providers, struct err *e)
{
    struct job *j = calloc(1, sizeof(*j));
    if (!j)
        return err_set(e, -ENOMEM, "no memory");
    int r = read_conf(&j->conf, e);
    if (r == 0)
        r = algo_select_init(&j->algo_select, providers, e);
    if (r == 0 && (r = world_init(&j->world, opts, e)) < 0)
        algo_select_fini(&j->algo_select);
    if (r < 0) {
        free(j);
        return r;
    }
    acceptor_init(&j->acceptor, &j->world);
    recorder_init(&j->recorder, world_line(&j->world));
    publish_settings(j, false);
    j->bell = job_bell(j, j->world.rank);
    pthread_mutex_init(&j->store_lock, NULL);
    pthread_mutex_init(&j->watch_lock, NULL);
    atomic_store(&j->users, 1);
    *out = j;
    return 0;
}

void job_lacks_memory(struct job *j)
{
    publish_settings(j, true);
}

/* ---------------------------------------------------------------------------------------- bells */

int job_take_bells(struct job *j, struct bell *bells, size_t n, const int *at)
{
    size_t size = (size_t)j->world.size;
    int *copy = malloc(size * sizeof(*copy));
    if (!copy)
        return -ENOMEM;
    j->bell_at = memcpy(copy, at, size * sizeof(*copy));
    j->bells = bells;
    j->nbells = n;
    j->bell = job_bell(j, j->world.rank);
    return 0;
}

struct bell *job_bell(const struct job *j, int rank)
{
    struct segment_local *line = job_segment_local(&j->world.segment, rank);
    if (line)
        return &line->bell;
    return j->bells && j->bell_at[rank] >= 0 ? &j->bells[j->bell_at[rank]] : NULL;
}

const _Atomic uint32_t *job_abort_word(const struct job *j)
{
    static const _Atomic uint32_t never;
    return j->world.segment.base ? job_segment_abort_word(&j->world.segment) : &never;
}

/* ----------------------------------------------------------------------------------- neighbours */

void job_watch(struct job *j, int rank)
{
    size_t size = (size_t)j->world.size;
    char host[MEMBER_HOST_MAX];
    int pid = 0;
    world_who(&j->world, rank, host, &pid);
    if (rank == j->world.rank || pid <= 0 || !world_shares_pids(&j->world, rank))
        return;
    pthread_mutex_lock(&j->watch_lock);
    if (!j->pidfds && (j->pidfds = malloc(size * sizeof(*j->pidfds))))
        memset(j->pidfds, -1, size * sizeof(*j->pidfds));
    if (j->pidfds && j->pidfds[rank] < 0)
        j->pidfds[rank] = fd_above_std((int)syscall(SYS_pidfd_open, pid, 0));
    pthread_mutex_unlock(&j->watch_lock);
}

bool job_has_ended(struct job *j, int rank)
{
    pthread_mutex_lock(&j->watch_lock);
    struct pollfd p = {.fd = j->pidfds ? j->pidfds[rank] : -1, .events = POLLIN};
    pthread_mutex_unlock(&j->watch_lock); /* the descriptor stays open */
    return p.fd >= 0 && poll(&p, 1, 0) == 1;
}

int job_count_ended(struct job *j)
{
    const struct job_segment *s = &j->world.segment;
    int n = 0;
    for (int i = 0; s->base && i < s->header.nlocal; i++) {
        struct segment_local *line = job_segment_local(s, s->header.base_rank + i);
        n += line && atomic_load_explicit(&line->exited, memory_order_acquire);
    }
    for (int r = 0; !s->base && r < j->world.size; r++)
        n += job_has_ended(j, r);
    return n;
}

/* ------------------------------------------------------------------------------------------ use */

struct job *job_ref(struct job *j)
{
    atomic_fetch_add(&j->users, 1);
    return j;
}

void job_unref(struct job *j)
{
    if (!j || atomic_fetch_sub(&j->users, 1) != 1)
        return;
    if (j->at_end)
        j->at_end(j);
    dlcoll_store_close(j->store);
    acceptor_fini(&j->acceptor);
    for (int r = 0; j->pidfds && r < j->world.size; r++)
        close_fd(&j->pidfds[r]);
    world_fini(&j->world);
    algo_select_fini(&j->algo_select);
    pthread_mutex_destroy(&j->store_lock);
    pthread_mutex_destroy(&j->watch_lock);
    free(j->pidfds);
    free(j->bell_at);
    if (j->bells)
        munmap(j->bells, j->nbells * sizeof(*j->bells));
    free(j);
}
