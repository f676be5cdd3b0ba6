#include "collectives/net/acceptor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"

enum {
    PATIENCE_MS = 200,    /* with a stranger who says nothing while others wait for his place */
    ARRIVALS_MAX = 65536, /* who wait for a communicator that is not made yet */
};

void acceptor_init(struct acceptor *l, const struct world *w)
{
    memset(l, 0, sizeof(*l));
    pthread_mutex_init(&l->lock, NULL);
    l->world = w;
    for (int i = 0; i < LOBBY_STRANGERS; i++)
        l->strangers[i].fd = -1;
}

void acceptor_fini(struct acceptor *l)
{
    for (int i = 0; i < LOBBY_STRANGERS; i++)
        close_fd(&l->strangers[i].fd);
    for (size_t i = 0; i < l->narrivals; i++)
        close_fd(&l->arrivals[i].fd);
    free(l->arrivals);
    pthread_mutex_destroy(&l->lock);
}

struct hello acceptor_hello(const struct acceptor *l, enum hello_kind kind, uint64_t comm, int to)
{
    const struct world *w = l->world;
    return (struct hello){.magic = HELLO_MAGIC,
                          .version = HELLO_VERSION,
                          .kind = (uint16_t)kind,
                          .epoch = w->epoch,
                          .counter = w->counter,
                          .instance = w->instance,
                          .comm = comm,
                          .from = (uint32_t)w->rank,
                          .to = (uint32_t)to};
}

/* Whether the hello is from a rank of our world, to us. */
static bool is_ours(const struct acceptor *l, const struct hello *h)
{
    const struct world *w = l->world;
    return h->magic == HELLO_MAGIC && h->version == HELLO_VERSION && h->epoch == w->epoch &&
           h->counter == w->counter && h->instance == w->instance && h->to == (uint32_t)w->rank &&
           h->from < (uint32_t)w->size && h->from != h->to && h->channel < CHANNELS;
}

/* -------------------------------------------------------------------------------------- guests */

static void *grow(void *items, size_t *cap, size_t n, size_t item_bytes)
{
    if (n < *cap)
        return items;
    size_t want = *cap ? *cap * 2 : 16;
    void *p = realloc(items, want * item_bytes);
    if (p)
        *cap = want;
    return p;
}

void acceptor_expect(struct acceptor *l, struct acceptor_subscriber *g)
{
    pthread_mutex_lock(&l->lock);
    g->next = l->guests;
    l->guests = g;
    pthread_mutex_unlock(&l->lock);
}

static void say_gone(const struct acceptor *l, struct arrival *a)
{
    struct hello h = acceptor_hello(l, HELLO_GONE, a->hello.comm, (int)a->hello.from);
    (void)!send(a->fd, &h, sizeof(h), MSG_NOSIGNAL | MSG_DONTWAIT);
    close_fd(&a->fd);
}

void acceptor_forget(struct acceptor *l, struct acceptor_subscriber *g)
{
    pthread_mutex_lock(&l->lock);
    for (struct acceptor_subscriber **at = &l->guests; *at; at = &(*at)->next) {
        if (*at == g) {
            *at = g->next;
            break;
        }
    }
    l->gone[l->ngone++ % LOBBY_GONE] = g->comm;
    size_t kept = 0;
    for (size_t i = 0; i < l->narrivals; i++) {
        if (l->arrivals[i].hello.comm == g->comm)
            say_gone(l, &l->arrivals[i]);
        else
            l->arrivals[kept++] = l->arrivals[i];
    }
    l->narrivals = kept;
    pthread_mutex_unlock(&l->lock);
}

static struct acceptor_subscriber *find_subscriber(const struct acceptor *l, uint64_t comm)
{
    struct acceptor_subscriber *g = l->guests;
    while (g && g->comm != comm)
        g = g->next;
    return g;
}

static bool is_gone(const struct acceptor *l, uint64_t comm)
{
    size_t n = l->ngone < LOBBY_GONE ? l->ngone : LOBBY_GONE;
    while (n && l->gone[n - 1] != comm)
        n--;
    return n;
}

/* ----------------------------------------------------------------------------------- strangers */

/* A place for the next one: a free one, or that of the one who has kept silent longest. */
static struct stranger *find_place(struct acceptor *l, uint64_t now)
{
    struct stranger *oldest = &l->strangers[0];
    for (int i = 0; i < LOBBY_STRANGERS; i++) {
        struct stranger *s = &l->strangers[i];
        if (s->fd < 0)
            return s;
        if (s->since_ns < oldest->since_ns)
            oldest = s;
    }
    if (now - oldest->since_ns < PATIENCE_MS * 1000000u)
        return NULL;
    close_fd(&oldest->fd);
    return oldest;
}

/* 1: one has come; 0: none. */
static int accept_one(struct acceptor *l, struct err *e)
{
    uint64_t now = mono_ns();
    struct stranger *s = find_place(l, now);
    if (!s)
        return 0;
    s->fd = fd_above_std(accept4(l->world->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (s->fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            return err_sys(e, errno, "accept");
        return errno == ECONNABORTED || errno == EINTR; /* that one is lost: look again */
    }
    s->since_ns = now;
    s->have = 0;
    return 1;
}

/* He has said for whom he comes. */
static void receive(struct acceptor *l, struct stranger *s)
{
    struct arrival a = {.fd = take_fd(&s->fd), .hello = s->said.hello};
    struct arrival *all = grow(l->arrivals, &l->cap_arrivals, l->narrivals, sizeof(*all));
    if (all)
        l->arrivals = all;
    if (!find_subscriber(l, a.hello.comm) && is_gone(l, a.hello.comm))
        say_gone(l, &a);
    else if (a.hello.kind == HELLO_KNOCK)
        close_fd(&a.fd);
    else if (!all || l->narrivals >= ARRIVALS_MAX)
        close_fd(&a.fd); /* he tries again */
    else
        l->arrivals[l->narrivals++] = a;
}

/* Reads what a stranger has to say; he has left his place when it is said, or when it was wrong. */
static void hear(struct acceptor *l, struct stranger *s)
{
    for (;;) {
        bool more = s->have >= sizeof(s->said.hello), asks = s->said.hello.kind == HELLO_ASK;
        size_t want = sizeof(s->said.hello);
        if (more)
            want += asks ? sizeof(s->said.ask) : sizeof(s->said.notice);
        ssize_t n = recv(s->fd, (char *)&s->said + s->have, want - s->have, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0)
            break;
        s->have += (size_t)n;
        if (s->have < want)
            continue;
        if (more) {
            struct acceptor_subscriber *g = find_subscriber(l, s->said.hello.comm);
            if (g && asks)
                g->asked(g, (int)s->said.hello.from, &s->said.ask);
            else if (g)
                comm_stop_set(g->stop, (int)s->said.hello.from, &s->said.notice);
            break;
        }
        if (!is_ours(l, &s->said.hello))
            break;
        if (s->said.hello.kind == HELLO_NOTICE || s->said.hello.kind == HELLO_ASK)
            continue;
        if (s->said.hello.kind == HELLO_DATA || s->said.hello.kind == HELLO_KNOCK)
            receive(l, s);
        break;
    }
    close_fd(&s->fd);
}

int acceptor_serve(struct acceptor *l, struct err *e)
{
    int r = 0;
    if (l->world->listen_fd < 0)
        return 0;
    pthread_mutex_lock(&l->lock);
    do {
        r = accept_one(l, e);
        for (int i = 0; i < LOBBY_STRANGERS; i++) {
            if (l->strangers[i].fd >= 0)
                hear(l, &l->strangers[i]);
        }
    } while (r > 0);
    pthread_mutex_unlock(&l->lock);
    return r;
}

bool acceptor_take(struct acceptor *l, uint64_t comm, enum channel channel, struct arrival *out)
{
    bool found = false;
    pthread_mutex_lock(&l->lock);
    for (size_t i = 0; i < l->narrivals && !found; i++) {
        struct arrival *a = &l->arrivals[i];
        if (a->hello.comm == comm && a->hello.channel == channel) {
            *out = *a;
            /* Those of one communicator stay in order. */
            memmove(a, a + 1, (--l->narrivals - i) * sizeof(*a));
            found = true;
        }
    }
    pthread_mutex_unlock(&l->lock);
    return found;
}

/* ------------------------------------------------------------------------------------- polling */

size_t acceptor_poll(struct acceptor *l, struct pollfd *fds, int *timeout_ms)
{
    size_t n = 0;
    if (l->world->listen_fd < 0)
        return 0;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < LOBBY_STRANGERS; i++) {
        if (l->strangers[i].fd >= 0)
            fds[n++] = (struct pollfd){.fd = l->strangers[i].fd, .events = POLLIN};
    }
    pthread_mutex_unlock(&l->lock);
    if (n < LOBBY_STRANGERS)
        fds[n++] = (struct pollfd){.fd = l->world->listen_fd, .events = POLLIN};
    else if (*timeout_ms > PATIENCE_MS)
        *timeout_ms = PATIENCE_MS;
    return n;
}

int acceptor_sleep(struct acceptor *l, const _Atomic uint32_t *stop, struct pollfd *fds, size_t n,
                   int timeout_ms)
{
    struct segment_local *line = world_line(l->world);
    if (line)
        atomic_fetch_add(&line->polling, 1);
    int r = poll(fds, (nfds_t)n, stop && atomic_load(stop) ? 0 : timeout_ms);
    if (line)
        atomic_fetch_sub(&line->polling, 1);
    return r;
}

void acceptor_greet(struct acceptor *l)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    if (l->world->listen_fd < 0 ||
        getsockname(l->world->listen_fd, (struct sockaddr *)&ss, &len) < 0)
        return;
    _cleanup_fd_ int fd = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        (void)!connect(fd, (struct sockaddr *)&ss, len);
}
