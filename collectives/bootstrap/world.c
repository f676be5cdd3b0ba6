#include "collectives/bootstrap/world.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectives/bootstrap/bootstrap.h"
#include "collectives/bootstrap/starter.h"
#include "collectives/base/wait.h"
#include "core/fd.h"
#include "rendezvous/store/store_thread.h"

/* Worlds that have been made, of two sorts: those of the launcher, and those that all ranks have
 * met for in a store and given no name. Every rank of one of them has made equally many before.
 * Named worlds, and those of one, are some ranks' own affair and do not count; nor do failed tries.
 */
static _Atomic uint32_t g_met; /* the launcher's: in the worker's line, as a worker may run several
                                  programs, one after the other */

static bool is_set(const char *name)
{
    const char *v = getenv(name);
    return v && *v;
}

int world_init(struct world *w, const struct world_opts *o, struct err *e)
{
    const char *method = o->method ? o->method : getenv("DLCOLL_INIT_METHOD");
    struct world_opts with = *o;
    int r = 0;
    memset(w, 0, sizeof(*w));
    w->listen_fd = -1;
    with.method = method && *method ? method : NULL;
    with.whence = o->method ? "init_method" : "DLCOLL_INIT_METHOD";
    bool asked = with.method || o->store || o->size > 0;
    bool launched = is_set(SEGMENT_ENV_FD) && !asked;
    bool told = asked || is_set("RANK") || is_set("WORLD_SIZE");
    struct starter starter;
    w->made = !launched && !*o->name ? &g_met : NULL;
    w->instance = w->made ? atomic_load(w->made) + 1 : 1;
    if (o->store && o->size <= 0) {
        r = err_set(e, -EINVAL, "with a store, rank and world_size must be given");
    } else if (launched) {
        r = bootstrap_segment(w, e);
    } else if (told || ((r = starter_find(&starter, e)) == 0 && starter.size > 1)) {
        with.starter = told ? NULL : &starter;
        r = bootstrap_store(w, &with, e);
    } else {
        w->size = 1;
    }
    if (r == 0 && launched) {
        w->made = &world_line(w)->worlds;
        w->instance = atomic_load(w->made) + 1;
    }
    if (r == 0 && !launched && w->size == 1) { /* a world of one has met nobody */
        const struct wait_cpus own = wait_own_cpus();
        w->neighbours = 1;
        w->usable_cpus = wait_count_cpus(&own);
    }
    assert(r < 0 || (w->instance > 0 && w->rank >= 0 && w->rank < w->size));
    if (r < 0)
        world_fini(w);
    return r;
}

void world_made(struct world *w)
{
    if (w->made && w->size > 1)
        atomic_fetch_add(w->made, 1);
}

void world_fini(struct world *w)
{
    close_fd(&w->listen_fd);
    bootstrap_segment_leave(w);
    store_thread_free(w->store_server);
    w->store_server = NULL;
    free(w->members);
    w->members = NULL;
}

int world_addr(const struct world *w, int rank, struct netaddr *out, struct err *e)
{
    char ip[ADDR_STRLEN];
    int port;
    if (w->segment.base) {
        struct segment_node node;
        job_segment_node(&w->segment, job_segment_node_of(&w->segment, rank), &node);
        snprintf(ip, sizeof(ip), "%s", node.addr);
        port = job_segment_port(&w->segment, rank);
    } else {
        const struct member *m = &w->members[rank], *self = &w->members[w->rank];
        struct netaddr theirs, mine;
        snprintf(ip, sizeof(ip), "%s", m->addr);
        port = m->port;
        /* A loopback address is valid on the master's host only. */
        if (netaddr_parse_ip(&theirs, ip, port) && netaddr_is_loopback(&theirs) &&
            netaddr_parse_ip(&mine, self->addr, 0) && !netaddr_is_loopback(&mine))
            snprintf(ip, sizeof(ip), "%s", w->master_ip);
    }
    if (!port || !netaddr_parse_ip(out, ip, port))
        return err_set(e, -EINVAL, "rank %d has no address (%.60s, port %d)", rank, ip, port);
    return 0;
}

bool world_same_node(const struct world *w, int a, int b)
{
    if (w->segment.base)
        return job_segment_node_of(&w->segment, a) == job_segment_node_of(&w->segment, b);
    return a == b || (w->members && w->members[a].host_id == w->members[b].host_id);
}

bool world_shares_pids(const struct world *w, int rank)
{
    return !w->members || w->members[rank].pid_ns == w->members[w->rank].pid_ns;
}

void world_who(const struct world *w, int rank, char host[MEMBER_HOST_MAX], int *pid)
{
    host[0] = '\0';
    *pid = 0;
    if (w->segment.base) {
        struct segment_node node;
        struct segment_local *line = job_segment_local(&w->segment, rank);
        job_segment_node(&w->segment, job_segment_node_of(&w->segment, rank), &node);
        snprintf(host, MEMBER_HOST_MAX, "%s", node.host);
        if (line)
            *pid = atomic_load_explicit(&line->pid, memory_order_relaxed);
    } else if (w->members) {
        snprintf(host, MEMBER_HOST_MAX, "%s", w->members[rank].host);
        *pid = (int)w->members[rank].pid;
    } else { /* alone */
        char name[HOST_MAX] = "";
        if (gethostname(name, sizeof(name) - 1) == 0)
            snprintf(host, MEMBER_HOST_MAX, "%.*s", MEMBER_HOST_MAX - 1, name);
        *pid = (int)getpid();
    }
}

const char *world_name(const struct world *w, int rank, char out[WORLD_NAME_MAX])
{
    char host[MEMBER_HOST_MAX];
    int pid;
    world_who(w, rank, host, &pid);
    if (pid)
        snprintf(out, WORLD_NAME_MAX, "rank %d (%s, pid %d)", rank, host, pid);
    else if (host[0])
        snprintf(out, WORLD_NAME_MAX, "rank %d (%s)", rank, host);
    else
        snprintf(out, WORLD_NAME_MAX, "rank %d", rank);
    return out;
}
