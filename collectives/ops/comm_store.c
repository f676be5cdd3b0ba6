/* comm_store.c: the store that the ranks of a job share, as dlcoll_comm_store() gives it. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "collectives/comm/comm.h"
#include "collectives/base/error.h"
#include "collectives/bootstrap/store.h"
#include "core/parse.h"

static int env_port(void)
{
    long port = 0;
    const char *v = getenv("MASTER_PORT");
    return v && parse_int(v, 1, 65535, &port, NULL) == 0 ? (int)port : 0;
}

/* The store is the one in which the ranks have met, or the launcher's; a world of one has a store
 * of its own. */
static int open_own(struct job *j, int64_t timeout_ms, struct err *e)
{
    const struct world *w = &j->world;
    const char *host = w->segment.base ? getenv("MASTER_ADDR") : w->store_host;
    int port = w->segment.base ? env_port() : w->store_port;
    if (w->size == 1 && (!host || !*host || !port))
        return store_open(&j->store, "127.0.0.1", 0, true, timeout_ms, e);
    if (!host || !*host || !port)
        return err_set(e, -EINVAL, "MASTER_ADDR and MASTER_PORT are not set");
    return store_open(&j->store, host, port, false, timeout_ms, e);
}

int dlcoll_comm_store(dlcoll_comm *comm, dlcoll_store **store)
{
    struct err e = ERR_INIT;
    int r = 0;
    if (!comm || !store)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_comm_store: comm or store is NULL");
    *store = NULL;
    if (comm_is_forked(comm))
        return error_set_global(DLCOLL_ESTATE, "dlcoll_comm_store: comm is another process's");
    pthread_mutex_lock(&comm->job->store_lock);
    if (!comm->job->store)
        r = open_own(comm->job, comm->timeout_ms, &e);
    *store = comm->job->store;
    pthread_mutex_unlock(&comm->job->store_lock);
    return r < 0 ? error_set_global(error_code(r), "dlcoll_comm_store: %s", e.msg) : r;
}
