/* shrink.c: agrees on the ranks that are left after a failure.
 *
 *   each rank      assumes that the ranks that it does not know to be dead are alive; the lowest of
 *                  them leads
 *   the leader     waits until every other rank has reported, is dead, or the time is over; then
 *                  sends the list of ranks to those that have reported
 *   the others     report to the leader and wait for the list; if the leader dies, or its host
 *                  answers nothing for SILENT_MS, the next rank leads, which is not of that host
 *
 * A host that answers nothing may be alive beyond a network that is cut, where others may make the
 * same call. A launcher decides which side goes on; without one, that is the side with more than
 * half of the ranks, or with half of them and the lowest. Ranks whose end the kernel of a reporting
 * rank has seen do not count. As no rank is on two sides, and as the group is made only when every
 * rank of the list takes part, two sides never have one each.
 *
 * Another rank waits for the list for the whole time, counted from its report, and SLACK_MS more,
 * because the leader waits for the slowest rank. A rank that reports after the leader has left gets
 * no list, but sees that the leader's process is alive: it came too late.
 *
 * The list also says whether the group follows the launcher's abort record, which is written only
 * once: all ranks of the group do, or none.
 *
 * The connections are those of a communicator with a number that each rank derives from the failed
 * one's. A dead rank refuses connections. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "collectives/comm/comm.h"
#include "core/hash.h"
#include "collectives/base/error.h"
#include "collectives/ops/group.h"
#include "collectives/net/net.h"
#include "core/clock.h"
#include "core/fd.h"

enum {
    MOST_MS = 60 * 1000,
    SLACK_MS = 5000,  /* the list follows after the leader's time */
    REFUSAL_MS = 200, /* until a refused connection shows */
    SILENT_MS = 5000, /* in which the kernel asks three times for a connection */
    KNOWN_MS = 7000,  /* after which a silent host is known to be one */
};

/* The states of a rank in the list. LISTED_LISTENS: the leader, if the group follows the launcher's
 * abort record; LISTED_TOO_FEW: the leader, if there is no group. */
enum { ABSENT, LISTED, LISTED_LISTENS, LISTED_TOO_FEW };

struct roll {
    dlcoll_comm *comm; /* the failed one */
    struct transport *t;
    char *gone;    /* by rank */
    char *here;    /* the list */
    char *ended;   /* ranks whose end a kernel has reported: what a rank reports */
    size_t *moved; /* bytes of reports or of the list received from or sent to each rank */
    struct transport_want *wants;
    bool met;   /* this rank has led or reported: another attempt uses another number */
    int64_t ms; /* how long ranks are waited for */
    uint64_t deadline_ns;
};

static int leader(const struct roll *r)
{
    int i = 0;
    while (r->gone[i])
        i++;
    return i;
}

static bool roll_is_over(const struct roll *r)
{
    return r->deadline_ns && mono_ns() >= r->deadline_ns;
}

static void shrink_wait_for(struct roll *r, size_t n)
{
    struct err e = ERR_INIT;
    (void)r->t->ops->wait(r->t, r->wants, n, 1, &e);
}

/* Whether the launcher's abort record, if it comes, is about a rank of the list: the launcher does
 * not report ranks that have exited with status 0. */
static bool may_listen(const struct roll *r)
{
    const dlcoll_comm *c = r->comm;
    bool may = !c->after_failure && !atomic_load(c->job_word);
    for (int i = 0; i < c->size && may; i++) {
        const struct segment_local *line = job_segment_local(&c->world->segment, c->world_ranks[i]);
        may = r->here[i] || (line && atomic_load_explicit(&line->exited, memory_order_acquire));
    }
    return may;
}

/* Whether the ranks on the list may go on. */
static bool is_quorum(const struct roll *r)
{
    int counted = 0, here = 0, lowest = -1;
    for (int i = 0; i < r->comm->size; i++) {
        if (r->ended[i] && !r->here[i])
            continue;
        lowest = lowest < 0 ? i : lowest;
        counted++;
        here += r->here[i] != ABSENT;
    }
    return r->comm->world->segment.base || 2 * here > counted ||
           (2 * here == counted && r->here[lowest]);
}

static void note_ended(struct roll *r)
{
    for (int i = 0; i < r->comm->size; i++)
        r->ended[i] = i != r->comm->rank && comm_has_exited(r->comm, i);
}

/* Reads what has come of a rank's report. False: the rank is dead. */
static bool take_report(struct roll *r, int rank)
{
    size_t size = (size_t)r->comm->size;
    char part[256];
    ssize_t got = 1;
    while (got > 0 && r->moved[rank] < size) {
        struct err e = ERR_INIT;
        size_t at = r->moved[rank], left = size - at;
        struct iovec iov = {part, left < sizeof(part) ? left : sizeof(part)};
        got = r->t->ops->recv(r->t, rank, &iov, 1, &e);
        for (ssize_t i = 0; i < got; i++)
            r->ended[at + (size_t)i] |= part[i];
        r->moved[rank] += got > 0 ? (size_t)got : 0;
    }
    if (got < 0)
        return false;
    char word;
    struct err e = ERR_INIT; /* whoever has reported says no more, but may die */
    return r->moved[rank] < size ||
           r->t->ops->recv(r->t, rank, &(struct iovec){&word, 1}, 1, &e) >= 0;
}

/* The leader: waits until all others have reported or died. Those that have reported may still die.
 */
static void call_roll(struct roll *r)
{
    int size = r->comm->size, me = r->comm->rank;
    r->deadline_ns = comm_deadline(r->ms);
    for (;;) {
        size_t n = 0, awaited = 0;
        for (int i = 0; i < size; i++) {
            if (i == me || r->gone[i])
                continue;
            r->gone[i] = !take_report(r, i);
            r->here[i] = !r->gone[i] && r->moved[i] == (size_t)size ? LISTED : ABSENT;
            if (r->gone[i])
                continue;
            awaited += !r->here[i];
            r->wants[n++] = (struct transport_want){.stream = i, .recv = true};
        }
        if (awaited == 0 || roll_is_over(r))
            break;
        shrink_wait_for(r, n);
    }
    memset(r->moved, 0, (size_t)size * sizeof(*r->moved));
    r->here[me] = LISTED;
    if (!is_quorum(r))
        r->here[me] = LISTED_TOO_FEW;
    else if (may_listen(r))
        r->here[me] = LISTED_LISTENS;
}

/* The leader: sends the list to all ranks on it. A rank that has died meanwhile stays on the list,
 * which must be the same for all: making the group then fails. */
static void announce(struct roll *r)
{
    int size = r->comm->size, me = r->comm->rank;
    r->deadline_ns = comm_deadline(SLACK_MS);
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
        if (n == 0 || roll_is_over(r))
            break;
        shrink_wait_for(r, n);
    }
}

/* Whether the process of a rank that has closed its connection is alive and still listens. A
 * process that is just ending may accept a connection before its socket is closed, and then resets
 * it. */
static bool is_listening(const dlcoll_comm *c, int rank)
{
    struct netaddr to;
    int errnum = 0;
    socklen_t len = sizeof(errnum);
    if (comm_has_exited(c, rank) || world_addr(c->world, c->world_ranks[rank], &to, NULL) < 0)
        return false;
    _cleanup_fd_ int fd = socket(to.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || (connect(fd, &to.sa, to.len) < 0 && errno != EINPROGRESS))
        return false;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (poll(&p, 1, REFUSAL_MS) != 1 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &errnum, &len) < 0 ||
        errnum)
        return false;
    p.events = POLLIN;
    return poll(&p, 1, REFUSAL_MS) == 0;
}

/* 0: the list has come; -EPIPE: the leader is dead; -EHOSTUNREACH: its host is silent; -ETIMEDOUT:
 * it has not answered, or no list has come; -ECONNRESET: it has answered, and left without this
 * rank. */
static int shrink_follow(struct roll *r, int lead)
{
    bool answers = false;
    size_t size = (size_t)r->comm->size, said = 0, have = 0;
    uint64_t known_ns = comm_deadline(KNOWN_MS);
    r->deadline_ns = comm_deadline(r->ms);
    note_ended(r);
    for (;;) {
        struct err e = ERR_INIT;
        struct iovec report = {r->ended + said, size - said}, list = {r->here + have, size - have};
        ssize_t got = said < size ? r->t->ops->send(r->t, lead, &report, 1, &e) : 0;
        said += got > 0 ? (size_t)got : 0;
        if (got > 0 && said == size) {
            r->met = true;
            r->deadline_ns = comm_deadline(r->ms + SLACK_MS);
        }
        if (got >= 0 && said == size) {
            got = r->t->ops->recv(r->t, lead, &list, 1, &e);
            have += got > 0 ? (size_t)got : 0;
        }
        if (got < 0)
            return is_listening(r->comm, lead) ? -ECONNRESET : -EPIPE;
        if (have == size)
            return 0;
        answers = answers || tcp_host_answers(r->t, lead);
        if (!answers && tcp_unanswered_ns(r->t, lead) >= SILENT_MS * 1000000ull)
            return -EHOSTUNREACH;
        if (roll_is_over(r) && (answers || mono_ns() >= known_ns))
            return -ETIMEDOUT;
        r->wants[0] =
            (struct transport_want){.stream = lead, .send = said < size, .recv = said == size};
        shrink_wait_for(r, 1);
    }
}

/* The leader is dead, or its whole host is lost. */
static void give_up(struct roll *r, int lead, bool host)
{
    const struct topology *t = &r->comm->topo;
    for (int i = 0; i < r->comm->size; i++) {
        bool same = i == lead || (host && t->node_of[i] == t->node_of[lead]);
        r->gone[i] = r->gone[i] || (same && i != r->comm->rank);
    }
    memset(r->here, 0, (size_t)r->comm->size);
}

static int find_out(struct roll *r)
{
    for (;;) {
        int lead = leader(r), status;
        if (lead == r->comm->rank) {
            r->met = true;
            note_ended(r);
            call_roll(r);
            announce(r);
            return 0;
        }
        status = shrink_follow(r, lead);
        if (status != -EPIPE && status != -EHOSTUNREACH)
            return status;
        give_up(r, lead, status == -EHOSTUNREACH);
    }
}

static int came_too_late(void)
{
    return error_set_global(DLCOLL_EPEER, "comm_shrink: this rank arrived too late");
}

static int too_few(int n, int size)
{
    return error_set_global(
        DLCOLL_EPEER,
        "comm_shrink: only %d of %d ranks are here, and the others may be alive "
        "where this one cannot reach them: without a launcher more than half "
        "of them go on, or half of them with the lowest rank",
        n, size);
}

static int make_group(struct roll *r, uint64_t id, const dlcoll_group_opts *o, dlcoll_comm **group)
{
    dlcoll_comm *c = r->comm;
    int *ranks = malloc((size_t)c->size * sizeof(*ranks)), n = 0, me = -1;
    bool listens = false, few = false;
    if (!ranks)
        return error_set_global(DLCOLL_ENOMEM, "comm_shrink: no memory");
    for (int i = 0; i < c->size; i++) {
        if (!r->here[i])
            continue;
        me = i == c->rank ? n : me;
        ranks[n++] = i;
        id = hash_add(id, (uint64_t)i); /* another list is another group */
        listens = listens || r->here[i] == LISTED_LISTENS;
        few = few || r->here[i] == LISTED_TOO_FEW;
    }
    if (me < 0 || few) {
        free(ranks);
        return few ? too_few(n, c->size) : came_too_late();
    }
    c->rest_listens = listens;
    return group_make(c, id, ranks, n, me, o, CALL_COMM_SHRINK, NULL, group);
}

/* The failure is handled: it is not the cause of later failures. */
static void clear_line(const struct world *w)
{
    struct segment_local *line = world_line(w);
    if (!line)
        return;
    atomic_store_explicit(&line->cause_rank, -1, memory_order_relaxed);
    atomic_store_explicit(&line->state, SEGMENT_LOCAL_READY, memory_order_release);
}

static int shrink(dlcoll_comm *c, dlcoll_comm **group, const dlcoll_group_opts *o)
{
    struct err e = ERR_INIT;
    size_t size = (size_t)c->size;
    uint64_t id = hash_add(hash_add(c->id, 0x736872696e6b), c->shrunk + 1);
    int64_t ms = o->timeout_ms < 0 || o->timeout_ms > MOST_MS ? MOST_MS : o->timeout_ms;
    struct tcp_opts to = comm_tcp_opts(c, CHANNEL_COLL);
    struct roll r = {.comm = c,
                     .ms = ms,
                     .gone = calloc(size, 1),
                     .here = calloc(size, 1),
                     .ended = calloc(size, 1),
                     .moved = calloc(size, sizeof(size_t)),
                     .wants = calloc(size, sizeof(struct transport_want))};
    char name[WORLD_NAME_MAX];
    int code = 0, status = -ENOMEM;
    to.comm = hash_add(id, 1);
    to.sockets = 1;
    to.stop_word = NULL; /* the word is set, if a rank's death has failed this communicator */
    if (r.gone && r.here && r.ended && r.moved && r.wants && tcp_new(&r.t, &to, &e) == 0) {
        for (int i = 0; i < c->size; i++)
            r.gone[i] = c->error.code == DLCOLL_EPEER && c->world_ranks[i] == c->error.rank &&
                        i != c->rank; /* a rank that reads of its own death is alive */
        status = find_out(&r);
        r.t->ops->free(r.t);
    }
    c->shrunk += r.met;
    if (status == -ECONNRESET)
        code = came_too_late();
    else if (status == -ETIMEDOUT)
        code = error_set_global(DLCOLL_ETIMEDOUT, "comm_shrink: %s did not arrive in time",
                                world_name(c->world, c->world_ranks[leader(&r)], name));
    else if (status < 0)
        code = error_set_global(error_code(status), "comm_shrink: no memory");
    else if ((code = make_group(&r, id, o, group)) == 0)
        clear_line(c->world);
    free(r.gone);
    free(r.here);
    free(r.ended);
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
        return error_set_global(DLCOLL_ESTATE, "comm_shrink: nothing has failed");
    if (!comm_take(comm))
        return DLCOLL_ESTATE;
    int code = group_take_opts(comm, opts, &o);
    return comm_leave(comm, code < 0 ? code : shrink(comm, group, &o));
}
