#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collectives/bootstrap/bootstrap.h"
#include "collectives/bootstrap/env.h"
#include "collectives/bootstrap/world.h"
#include "collectives/bootstrap/exit_notify.h"
#include "core/fd.h"

/* The listening socket can serve one communicator at a time. */
static _Atomic int g_in_use;

/* A descriptor that the launcher has left open for us, closed at our own exec from now on. */
static int inherited_fd(const char *name, int *out, struct err *e)
{
    *out = -1;
    int r = env_read_int(name, 0, INT_MAX, out, e);
    if (r < 0)
        return r;
    if (*out < 0)
        return err_set(e, -EINVAL, "%s is not set", name);
    if (fd_set_cloexec(*out, true) < 0)
        return err_set(e, -EINVAL,
                       "%s=%d is not open: has something between dlaunch and this program closed "
                       "it? Without the variable the ranks meet through MASTER_ADDR",
                       name, *out);
    return 0;
}

static int take_listener(struct world *w, struct err *e)
{
    int fd, on = 0;
    socklen_t len = sizeof(on);
    int r = inherited_fd(SEGMENT_ENV_LISTEN, &fd, e);
    if (r < 0)
        return r;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &len) < 0 || !on)
        return err_set(e, -EINVAL, "%s=%d is not a listening socket", SEGMENT_ENV_LISTEN, fd);
    w->listen_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (w->listen_fd < 0)
        return err_sys(e, errno, "dup");
    r = fd_set_nonblock(w->listen_fd, true);
    return r < 0 ? err_sys(e, -r, "fcntl") : 0;
}

static int find_rank(struct world *w, struct err *e)
{
    const struct segment_header *h = &w->segment.header;
    w->local_rank = -1;
    int rank = -1, r = env_read_int("LOCAL_RANK", 0, h->nlocal - 1, &w->local_rank, e);
    if (r < 0 || (r = env_read_int("RANK", 0, h->world_size - 1, &rank, e)) < 0)
        return r;
    if (w->local_rank < 0)
        return err_set(e, -EINVAL, "LOCAL_RANK is not set");
    w->size = h->world_size;
    w->rank = h->base_rank + w->local_rank;
    if (rank >= 0 && rank != w->rank)
        return err_set(e, -EINVAL,
                       "RANK is %d, but the launcher's table has rank %d for LOCAL_RANK %d", rank,
                       w->rank, w->local_rank);
    return 0;
}

/* Several launchers may share a host, as in a trial run. */
static int count_neighbours(const struct world *w)
{
    struct segment_node self, node;
    int n = 0;
    job_segment_node(&w->segment, w->segment.header.group_rank, &self);
    for (int i = 0; i < w->segment.header.nnodes; i++) {
        job_segment_node(&w->segment, i, &node);
        if (strcmp(node.addr, self.addr) == 0)
            n += node.nproc;
    }
    return n;
}

static int bootstrap(struct world *w, struct err *e)
{
    int fd, r = inherited_fd(SEGMENT_ENV_FD, &fd, e);
    if (r < 0)
        return r;
    r = job_segment_init(&w->segment, fd, e);
    if (r < 0)
        return err_wrap(e, "%s=%d", SEGMENT_ENV_FD, fd);
    if ((r = find_rank(w, e)) < 0 || (w->size > 1 && (r = take_listener(w, e)) < 0))
        return r;

    const struct segment_header *h = &w->segment.header;
    w->epoch = h->epoch;
    w->counter = h->counter;
    w->neighbours = count_neighbours(w);
    w->usable_cpus = h->usable_cpus > 0 ? h->usable_cpus : 1;
    struct segment_local *line = world_line(w);
    atomic_store_explicit(&line->pid, getpid(), memory_order_relaxed);
    atomic_store_explicit(&line->cause_rank, -1, memory_order_relaxed);
    atomic_store_explicit(&line->seq, 0, memory_order_relaxed);
    atomic_store_explicit(&line->state, SEGMENT_LOCAL_READY, memory_order_release);
    exit_notify_begin(fd, (uint64_t)((uint8_t *)line - w->segment.base), line,
                      job_segment_exit_word_count(&w->segment), (uint32_t)h->nlocal);
    return 0;
}

int bootstrap_segment(struct world *w, struct err *e)
{
    if (atomic_exchange(&g_in_use, 1))
        return err_set(e, -EBUSY, "there is a communicator of all workers already");
    int r = bootstrap(w, e);
    if (r < 0) {
        job_segment_fini(&w->segment);
        atomic_store(&g_in_use, 0);
    }
    return r;
}

void bootstrap_segment_leave(struct world *w)
{
    if (!w->segment.base)
        return;
    job_segment_fini(&w->segment);
    atomic_store(&g_in_use, 0);
}
