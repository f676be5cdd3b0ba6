/* shrink.c: who is left after a failure.
 *
 *   everybody      takes the ranks that he does not know to be dead for alive; the lowest of them
 *                  leads
 *   the leader     hears from all others, until everybody has said that he is here, or is gone, or
 *                  the time is up; then tells those who came who they are
 *   the others     say to the leader that they are here, and hear the list from him; when he is
 *                  gone, the next one leads
 *
 * Connections are those of a communicator of their own, whose number everybody derives from the
 * failed one's. A rank that is gone shows by its closed door. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm.h"
#include "collectives/error.h"
#include "collectives/group.h"
#include "collectives/net/net.h"
#include "core/clock.h"

enum { MOST_MS = 60 * 1000, HERE = 0x48 };

struct roll {
    dlcoll_comm *comm; /* the failed one */
    struct transport *t;
    char *gone;    /* by rank */
    char *here;    /* has said so, or is told so: 1 */
    size_t *moved; /* of the list, to or from each rank */
    struct transport_want *wants;
    uint64_t deadline_ns;
};

static int leader(const struct roll *r)
{
    int i = 0;
    while (r->gone[i])
        i++;
    return i;
}

static bool is_over(const struct roll *r)
{
    return r->deadline_ns && mono_ns() >= r->deadline_ns;
}

static void wait_for(struct roll *r, size_t n)
{
    struct err e = ERR_INIT;
    (void)r->t->ops->wait(r->t, r->wants, n, 1, &e);
}

/* The leader: until all others have come or gone. */
static void call_roll(struct roll *r)
{
    int size = r->comm->size, me = r->comm->rank;
    for (;;) {
        size_t n = 0;
        for (int i = 0; i < size; i++) {
            struct err e = ERR_INIT;
            char word;
            if (i == me || r->here[i] || r->gone[i])
                continue;
            ssize_t got = r->t->ops->recv(r->t, i, &(struct iovec){&word, 1}, 1, &e);
            if (got < 0)
                r->gone[i] = 1;
            else if (got == 1)
                r->here[i] = 1;
            else
                r->wants[n++] = (struct transport_want){.stream = i, .recv = true};
        }
        if (n == 0 || is_over(r))
            break;
        wait_for(r, n);
    }
    r->here[me] = 1;
}

/* The leader: the list to all who are on it. Who is gone by now shows later. */
static void announce(struct roll *r)
{
    int size = r->comm->size, me = r->comm->rank;
    for (;;) {
        size_t n = 0;
        for (int i = 0; i < size; i++) {
            struct err e = ERR_INIT;
            if (i == me || !r->here[i] || r->gone[i] || r->moved[i] == (size_t)size)
                continue;
            struct iovec iov = {r->here + r->moved[i], (size_t)size - r->moved[i]};
            ssize_t got = r->t->ops->send(r->t, i, &iov, 1, &e);
            if (got < 0)
                r->gone[i] = 1;
            else
                r->moved[i] += (size_t)got;
            if (got >= 0 && r->moved[i] < (size_t)size)
                r->wants[n++] = (struct transport_want){.stream = i, .send = true};
        }
        if (n == 0 || is_over(r))
            break;
        wait_for(r, n);
    }
}

/* 0: the list is here; -EPIPE: the leader is gone; -ETIMEDOUT. */
static int follow(struct roll *r, int lead)
{
    bool said = false;
    size_t size = (size_t)r->comm->size, have = 0;
    while (!is_over(r)) {
        struct err e = ERR_INIT;
        char word = HERE;
        ssize_t got = 0;
        if (!said && (got = r->t->ops->send(r->t, lead, &(struct iovec){&word, 1}, 1, &e)) > 0)
            said = true;
        if (got >= 0 && said) {
            got = r->t->ops->recv(r->t, lead, &(struct iovec){r->here + have, size - have}, 1, &e);
            have += got > 0 ? (size_t)got : 0;
        }
        if (got < 0)
            return -EPIPE;
        if (have == size)
            return 0;
        r->wants[0] = (struct transport_want){.stream = lead, .send = !said, .recv = said};
        wait_for(r, 1);
    }
    return -ETIMEDOUT;
}

static int find_out(struct roll *r)
{
    for (;;) {
        int lead = leader(r), status;
        if (lead == r->comm->rank) {
            call_roll(r);
            announce(r);
            return 0;
        }
        status = follow(r, lead);
        if (status != -EPIPE)
            return status;
        r->gone[lead] = 1;
        memset(r->here, 0, (size_t)r->comm->size);
    }
}

static int make_group(struct roll *r, uint64_t id, const dlcoll_group_opts *o, dlcoll_comm **group)
{
    dlcoll_comm *c = r->comm;
    int *ranks = malloc((size_t)c->size * sizeof(*ranks)), n = 0, me = -1;
    if (!ranks)
        return error_set_global(DLCOLL_ENOMEM, "comm_shrink: no memory");
    for (int i = 0; i < c->size; i++) {
        if (!r->here[i] || r->gone[i])
            continue;
        me = i == c->rank ? n : me;
        ranks[n++] = i;
    }
    if (me < 0) {
        free(ranks);
        return error_set_global(DLCOLL_EPEER, "comm_shrink: this rank came too late");
    }
    return group_make(c, id, ranks, n, me, o, true, group);
}

static int shrink(dlcoll_comm *c, dlcoll_comm **group, const dlcoll_group_opts *o)
{
    struct err e = ERR_INIT;
    size_t size = (size_t)c->size;
    uint64_t id = group_hash(group_hash(c->id, 0x736872696e6b), ++c->shrunk);
    int64_t ms = o->timeout_ms < 0 || o->timeout_ms > MOST_MS ? MOST_MS : o->timeout_ms;
    struct tcp_opts to = net_tcp_opts(c, CHANNEL_COLL);
    struct roll r = {.comm = c,
                     .gone = calloc(size, 1),
                     .here = calloc(size, 1),
                     .moved = calloc(size, sizeof(size_t)),
                     .wants = calloc(size, sizeof(struct transport_want)),
                     .deadline_ns = comm_deadline(ms)};
    int code = 0, status = -ENOMEM;
    to.comm = group_hash(id, 1);
    to.lanes = 1;
    if (r.gone && r.here && r.moved && r.wants && tcp_new(&r.t, &to, &e) == 0) {
        for (int i = 0; i < c->size; i++)
            r.gone[i] = c->error.code == DLCOLL_EPEER && c->world_ranks[i] == c->error.rank;
        status = find_out(&r);
        r.t->ops->free(r.t);
    }
    if (status < 0)
        code =
            error_set_global(error_code(status), "comm_shrink: %s",
                             status == -ENOMEM ? "no memory" : "the others did not come in time");
    else
        code = make_group(&r, id, o, group);
    free(r.gone);
    free(r.here);
    free(r.moved);
    free(r.wants);
    return code;
}

int dlcoll_comm_shrink(dlcoll_comm *comm, dlcoll_comm **group, const dlcoll_group_opts *opts)
{
    dlcoll_group_opts o;
    if (!comm || !group)
        return error_set_global(DLCOLL_EINVAL, "comm_shrink: comm or group is NULL");
    *group = NULL;
    if (comm_is_forked(comm) || !atomic_load(&comm->failed))
        return comm_error(comm, DLCOLL_ESTATE, "comm_shrink: nothing has failed");
    if (atomic_flag_test_and_set_explicit(&comm->busy, memory_order_acquire))
        return DLCOLL_ESTATE;
    int code = group_take_opts(comm, opts, &o);
    return comm_leave(comm, code < 0 ? code : shrink(comm, group, &o));
}
