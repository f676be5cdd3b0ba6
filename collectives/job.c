#include "collectives/job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/net/tcp.h"
#include "collectives/store.h"
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
    const char *sockets = getenv("DLCOLL_SOCKETS");
    long n = 1;
    if (sockets && *sockets && parse_int(sockets, 1, TCP_LANES_MAX, &n, e) < 0)
        return err_wrap(e, "DLCOLL_SOCKETS");
    c->sockets = (int)n;
    int r = read_congestion(c, e);
    return r < 0 ? r : env_bool("DLCOLL_SHM", true, &c->shared_memory, e);
}

int job_new(struct job **out, const struct world_opts *opts, struct err *e)
{
    struct job *j = calloc(1, sizeof(*j));
    if (!j)
        return err_set(e, -ENOMEM, "no memory");
    int r = read_conf(&j->conf, e);
    if (r == 0)
        r = choice_init(&j->choice, e);
    if (r == 0 && (r = world_init(&j->world, opts, e)) < 0)
        choice_fini(&j->choice);
    if (r < 0) {
        free(j);
        return r;
    }
    lobby_init(&j->lobby, &j->world);
    recorder_init(&j->recorder, world_line(&j->world));
    pthread_mutex_init(&j->store_lock, NULL);
    atomic_store(&j->users, 1);
    *out = j;
    return 0;
}

struct job *job_ref(struct job *j)
{
    atomic_fetch_add(&j->users, 1);
    return j;
}

void job_unref(struct job *j)
{
    if (!j || atomic_fetch_sub(&j->users, 1) != 1)
        return;
    dlcoll_store_close(j->store);
    lobby_fini(&j->lobby);
    world_fini(&j->world);
    choice_fini(&j->choice);
    pthread_mutex_destroy(&j->store_lock);
    free(j);
}
