#include "collectives/wire/acceptor.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collectives/base/task.h"
#include "collectives/base/error.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/peer_uid.h"

enum {
    UNREAD_LOOK_MS = 200, /* how long a silent peer keeps its slot while others wait for one */
    ACCEPTED_MAX = 65536, /* data connections for communicators that do not exist yet */
    ACCEPTS = 64,         /* in one call; poll() reports the rest again */
};

void acceptor_init(struct acceptor *a, const struct world *w)
{
    memset(a, 0, sizeof(*a));
    pthread_mutex_init(&a->lock, NULL);
    a->world = w;
    for (int i = 0; i < ACCEPTOR_PENDING; i++)
        a->pending[i].fd = -1;
}

void acceptor_fini(struct acceptor *a)
{
    for (int i = 0; i < ACCEPTOR_PENDING; i++)
        close_fd(&a->pending[i].fd);
    for (size_t i = 0; i < a->naccepted; i++)
        close_fd(&a->accepted[i].fd);
    free(a->accepted);
    pthread_mutex_destroy(&a->lock);
}

struct hello acceptor_hello(const struct acceptor *a, enum hello_kind kind, uint64_t comm, int to)
{
    const struct world *w = a->world;
    return (struct hello){.magic = HELLO_MAGIC,
                          .version = HELLO_VERSION,
                          .kind = (uint16_t)kind,
                          .epoch = w->epoch,
                          .counter = w->counter,
                          .instance = w->instance,
                          .comm = comm,
                          .from = (uint32_t)w->rank,
                          .to = (uint32_t)to,
                          .settings = w->settings};
}

/* Whether the hello, of whatever version, is from a rank of this job, to this rank; in this or
 * another of the worlds that use the listening socket in turn. */
static bool is_of_job(const struct acceptor *a, const struct hello *h)
{
    const struct world *w = a->world;
    return h->magic == HELLO_MAGIC && h->epoch == w->epoch && h->counter == w->counter &&
           h->to == (uint32_t)w->rank && h->from < (uint32_t)w->size && h->from != h->to;
}

const char *acceptor_versions(const struct acceptor *a, const struct hello *theirs, char *out,
                              size_t cap)
{
    char name[WORLD_NAME_MAX];
    snprintf(out, cap,
             "%s speaks version %u of libdlcoll's protocol, rank %d version %u: all ranks need the "
             "same libdlcoll",
             world_name(a->world, (int)theirs->from, name), theirs->version, a->world->rank,
             HELLO_VERSION);
    return out;
}

/* ---------------------------------------------------------------------------------- subscribers */

static bool acceptor_reserve(struct acceptor *a)
{
    size_t want = a->cap_accepted ? a->cap_accepted * 2 : 16;
    if (a->naccepted < a->cap_accepted)
        return true;
    struct accepted_conn *p =
        a->naccepted < ACCEPTED_MAX ? realloc(a->accepted, want * sizeof(*p)) : NULL;
    if (!p)
        return false;
    a->accepted = p;
    a->cap_accepted = want;
    return true;
}

void acceptor_expect(struct acceptor *a, struct acceptor_subscriber *s)
{
    pthread_mutex_lock(&a->lock);
    s->next = a->subscribers;
    a->subscribers = s;
    pthread_mutex_unlock(&a->lock);
}

static void answer_closed(const struct acceptor *a, struct accepted_conn *from)
{
    struct hello h = acceptor_hello(a, HELLO_GONE, from->hello.comm, (int)from->hello.from);
    h.instance = from->hello.instance;
    (void)!send(from->fd, &h, sizeof(h), MSG_NOSIGNAL | MSG_DONTWAIT);
    close_fd(&from->fd);
}

void acceptor_forget(struct acceptor *a, struct acceptor_subscriber *s)
{
    pthread_mutex_lock(&a->lock);
    for (struct acceptor_subscriber **at = &a->subscribers; *at; at = &(*at)->next) {
        if (*at == s) {
            *at = s->next;
            break;
        }
    }
    a->closed[a->nclosed++ % ACCEPTOR_CLOSED] = s->comm;
    size_t kept = 0;
    for (size_t i = 0; i < a->naccepted; i++) {
        if (a->accepted[i].hello.comm == s->comm)
            answer_closed(a, &a->accepted[i]);
        else
            a->accepted[kept++] = a->accepted[i];
    }
    a->naccepted = kept;
    pthread_mutex_unlock(&a->lock);
}

static struct acceptor_subscriber *find_subscriber(const struct acceptor *a, uint64_t comm)
{
    struct acceptor_subscriber *s = a->subscribers;
    while (s && s->comm != comm)
        s = s->next;
    return s;
}

static bool was_closed(const struct acceptor *a, uint64_t comm)
{
    size_t n = a->nclosed < ACCEPTOR_CLOSED ? a->nclosed : ACCEPTOR_CLOSED;
    while (n && a->closed[n - 1] != comm)
        n--;
    return n;
}

/* -------------------------------------------------------------------------------- pending peers */

static void keep_accepted(struct acceptor *a, const struct accepted_conn *in)
{
    struct acceptor_subscriber *s = find_subscriber(a, in->hello.comm);
    a->accepted[a->naccepted++] = *in;
    if (s && s->arrived)
        s->arrived(s);
}

/* The hello of a data connection or of a probe is complete. A peer in an earlier world of this job
 * is late: this rank has left that world. A peer in a later one connects again. */
static void accept_hello(struct acceptor *a, struct pending_peer *p)
{
    struct accepted_conn in = {.fd = take_fd(&p->fd), .hello = p->in.hello};
    uint32_t own = a->world->instance;
    if (in.hello.instance < own ||
        (in.hello.instance == own && !find_subscriber(a, in.hello.comm) &&
         was_closed(a, in.hello.comm)))
        answer_closed(a, &in);
    else if (in.hello.instance > own || in.hello.kind == HELLO_PROBE || !acceptor_reserve(a))
        close_fd(&in.fd); /* without room: the peer connects again */
    else
        keep_accepted(a, &in);
}

/* A rank of this job speaks another version: what it says would not be understood, nor would it
 * understand. It is told the version, and this process's program which two there are. */
static void refuse_version(struct acceptor *a, struct pending_peer *p)
{
    const struct hello *theirs = &p->in.hello;
    struct hello own = acceptor_hello(a, HELLO_GONE, theirs->comm, (int)theirs->from);
    struct acceptor_subscriber *s = find_subscriber(a, theirs->comm);
    struct notice why = {.code = DLCOLL_EMISMATCH, .rank = (int32_t)theirs->from, .exit_code = -1};
    (void)!send(p->fd, &own, sizeof(own), MSG_NOSIGNAL | MSG_DONTWAIT);
    world_who(a->world, why.rank, why.host, &why.pid);
    acceptor_versions(a, theirs, why.text, sizeof(why.text));
    s = s ? s : find_subscriber(a, 0);
    if (s)
        comm_stop_set(s->stop, a->world->rank, &why);
}

/* The number of bytes of a pending peer that are looked at together. */
static size_t wanted_of(const struct pending_peer *p)
{
    if (p->have < HELLO_COMMON)
        return HELLO_COMMON;
    if (p->have < sizeof(p->in.hello))
        return sizeof(p->in.hello);
    return sizeof(p->in.hello) +
           (p->in.hello.kind == HELLO_ASK ? sizeof(p->in.ask) : sizeof(p->in.notice));
}

/* Reads what a pending peer has sent; frees its slot when its hello is complete or invalid. */
static void read_hello(struct acceptor *a, struct pending_peer *p)
{
    for (;;) {
        bool more = p->have >= sizeof(p->in.hello), asks = p->in.hello.kind == HELLO_ASK;
        size_t want = wanted_of(p);
        assert(p->have < want);
        ssize_t n = recv(p->fd, (char *)&p->in + p->have, want - p->have, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0)
            break;
        p->have += (size_t)n;
        if (p->have < want)
            continue;
        if (more) {
            struct acceptor_subscriber *s = find_subscriber(a, p->in.hello.comm);
            if (s && asks && s->asked(s, (int)p->in.hello.from, &p->in.ask))
                (void)!send(p->fd, &p->in.ask, sizeof(p->in.ask), MSG_DONTWAIT | MSG_NOSIGNAL);
            else if (s && !asks)
                comm_stop_set(s->stop, (int)p->in.hello.from, &p->in.notice);
            break;
        }
        if (p->have == HELLO_COMMON) {
            if (!is_of_job(a, &p->in.hello))
                break;
            if (p->in.hello.version == HELLO_VERSION)
                continue;
            refuse_version(a, p);
            break;
        }
        if (p->in.hello.channel >= CHANNELS)
            break;
        if (p->in.hello.kind == HELLO_NOTICE || p->in.hello.kind == HELLO_ASK) {
            if (p->in.hello.instance != a->world->instance)
                break;
            continue;
        }
        if (p->in.hello.kind == HELLO_DATA || p->in.hello.kind == HELLO_PROBE)
            accept_hello(a, p);
        break;
    }
    close_fd(&p->fd);
}

static void read_hellos(struct acceptor *a)
{
    for (int i = 0; i < ACCEPTOR_PENDING; i++) {
        if (a->pending[i].fd >= 0)
            read_hello(a, &a->pending[i]);
    }
}

/* Pending peers; from == NULL: all of them, else those of that address that may belong to another
 * user. */
static int count_pending(const struct acceptor *a, const struct netaddr *from)
{
    int n = 0;
    for (int i = 0; i < ACCEPTOR_PENDING; i++) {
        const struct pending_peer *p = &a->pending[i];
        n += p->fd >= 0 && (!from || (!p->own && netaddr_same_ip(&p->from, from)));
    }
    return n;
}

/* A slot for the next peer: a free one, or that of the oldest peer that may lose it; NULL: none. */
static struct pending_peer *find_slot(struct acceptor *a, uint64_t now)
{
    struct pending_peer *oldest = NULL;
    for (int i = 0; i < ACCEPTOR_PENDING; i++) {
        struct pending_peer *p = &a->pending[i];
        if (p->fd < 0)
            return p;
        bool may_lose = now - p->since_ns >= UNREAD_LOOK_MS * 1000000u ||
                        (!p->own && count_pending(a, &p->from) >= ACCEPTOR_ADDRESS_MAX);
        if (may_lose && (!oldest || p->since_ns < oldest->since_ns))
            oldest = p;
    }
    return oldest;
}

/* Asks the kernel whose process the peer is. A peer on another host has no user here. */
static bool is_other_user(struct pending_peer *p)
{
    uid_t uid;
    if (peer_uid(p->fd, &uid) < 0)
        return false;
    p->own = uid == geteuid() || uid == 0;
    return !p->own;
}

/* 1: the listening socket may have another connection; 0: it has not, or there is no slot. */
static int accept_one(struct acceptor *a, struct err *e)
{
    uint64_t now = mono_ns();
    int others = count_pending(a, NULL);
    if (others == ACCEPTOR_PENDING)
        read_hellos(a);
    struct pending_peer *slot = find_slot(a, now);
    if (!slot)
        return 0;
    struct pending_peer p = {.since_ns = now, .from.len = sizeof(p.from.ss)};
    p.fd = fd_above_std(
        accept4(a->world->listen_fd, &p.from.sa, &p.from.len, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (p.fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            return err_sys(e, errno, "accept");
        return errno == ECONNABORTED || errno == EINTR; /* the connection is lost: try the next */
    }
    if (others >= ACCEPTOR_ADDRESS_MAX && is_other_user(&p)) {
        close_fd(&p.fd);
        return 1;
    }
    close_fd(&slot->fd);
    *slot = p;
    read_hello(a, slot);
    return 1;
}

int acceptor_serve(struct acceptor *a, struct err *e)
{
    int r = 1;
    if (a->world->listen_fd < 0)
        return 0;
    pthread_mutex_lock(&a->lock);
    read_hellos(a);
    for (int i = 0; i < ACCEPTS && r > 0; i++)
        r = accept_one(a, e);
    pthread_mutex_unlock(&a->lock);
    return r < 0 ? r : 0;
}

bool acceptor_take(struct acceptor *a, uint64_t comm, enum channel channel,
                   struct accepted_conn *out)
{
    bool found = false;
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < a->naccepted && !found; i++) {
        struct accepted_conn *in = &a->accepted[i];
        if (in->hello.comm == comm && in->hello.channel == channel) {
            *out = *in;
            /* The connections of one communicator stay in order. */
            memmove(in, in + 1, (--a->naccepted - i) * sizeof(*in));
            found = true;
        }
    }
    pthread_mutex_unlock(&a->lock);
    return found;
}

/* -------------------------------------------------------------------------------------- polling */

size_t acceptor_poll(struct acceptor *a, struct pollfd *fds, int *timeout_ms)
{
    size_t n = 0;
    if (a->world->listen_fd < 0 ||
        task_inside()) /* the progress thread serves the acceptor for all its tasks */
        return 0;
    pthread_mutex_lock(&a->lock);
    for (int i = 0; i < ACCEPTOR_PENDING; i++) {
        if (a->pending[i].fd >= 0)
            fds[n++] = (struct pollfd){.fd = a->pending[i].fd, .events = POLLIN};
    }
    bool has_slot = n < ACCEPTOR_PENDING || find_slot(a, mono_ns());
    pthread_mutex_unlock(&a->lock);
    if (has_slot)
        fds[n++] = (struct pollfd){.fd = a->world->listen_fd, .events = POLLIN};
    else if (*timeout_ms > UNREAD_LOOK_MS)
        *timeout_ms = UNREAD_LOOK_MS;
    return n;
}

int acceptor_sleep(struct acceptor *a, const _Atomic uint32_t *stop, struct pollfd *fds, size_t n,
                   int timeout_ms)
{
    struct segment_local *line = world_line(a->world);
    if (task_inside()) {
        if (!stop || !atomic_load(stop))
            task_poll(fds, n, timeout_ms < 0 ? UINT64_MAX : (uint64_t)timeout_ms * 1000000u);
        return 0;
    }
    if (line)
        atomic_fetch_add(&line->polling, 1);
    int r = poll(fds, (nfds_t)n, stop && atomic_load(stop) ? 0 : timeout_ms);
    if (line)
        atomic_fetch_sub(&line->polling, 1);
    return r;
}

void acceptor_wake(struct acceptor *a)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    if (a->world->listen_fd < 0 ||
        getsockname(a->world->listen_fd, (struct sockaddr *)&ss, &len) < 0)
        return;
    _cleanup_fd_ int fd = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        (void)!connect(fd, (struct sockaddr *)&ss, len);
}
