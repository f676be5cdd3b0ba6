#include "rendezvous/store/store_thread.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "core/thread.h"
#include "rendezvous/store/store_service.h"

#define BACKLOG         4096 /* because all ranks connect at the same time */
#define EVENTS          64
#define ACCEPT_PAUSE_MS 100 /* the pause when descriptors or memory have run out */

struct store_thread {
    struct store_service service;
    pthread_t thread;
    pid_t owner;               /* the process in which the thread runs */
    int epoll, listener, stop; /* stop: an eventfd */
    int port;
    uint64_t accept_again_ns; /* not 0: the listener is not polled until then */
    struct list_node dead;    /* closed connections that an event of this turn may still name */
};

struct thread_conn {
    struct store_conn conn;
    struct list_node dead;
};

/* --- On the thread -----------------------------------------------------------------------------*/

static struct store_thread *thread_of(struct store_service *s)
{
    return container_of(s, struct store_thread, service);
}

static bool store_thread_watch(struct store_service *s, struct store_conn *c)
{
    struct epoll_event ev = {.events = (c->events & STORE_POLL_IN ? (unsigned)EPOLLIN : 0) |
                                       (c->events & STORE_POLL_OUT ? (unsigned)EPOLLOUT : 0),
                             .data.ptr = c};
    int epoll = thread_of(s)->epoll;
    return epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &ev) == 0 ||
           (errno == ENOENT && epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &ev) == 0);
}

static void gone(struct store_service *s, struct store_conn *c, enum store_reason why)
{
    (void)why;
    /* Closing alone does not remove it from the epoll set while a fork()'s child has the connection
     * open. */
    epoll_ctl(thread_of(s)->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    c->fd = -1;
    list_append(&thread_of(s)->dead, &container_of(c, struct thread_conn, conn)->dead);
}

static const struct store_driver driver = {.watch = store_thread_watch, .gone = gone};

static void bury(struct store_thread *t)
{
    while (!list_alone(&t->dead)) {
        struct thread_conn *tc = container_of(t->dead.next, struct thread_conn, dead);
        list_remove(&tc->dead);
        free(tc);
    }
}

static int set_accepting(struct store_thread *t, bool on)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &t->listener};
    t->accept_again_ns = on ? 0 : mono_ns() + ACCEPT_PAUSE_MS * 1000000u;
    return epoll_ctl(t->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, t->listener, &ev);
}

static void accept_all(struct store_thread *t)
{
    for (;;) {
        int fd = fd_above_std(accept4(t->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd < 0) {
            if (errno == ECONNABORTED || errno == EINTR)
                continue;
            if (errno != EAGAIN)
                set_accepting(t, false);
            return;
        }
        struct thread_conn *tc = malloc(sizeof(*tc));
        if (!tc) {
            close(fd);
            continue;
        }
        list_init(&tc->dead);
        store_service_adopt(&t->service, &tc->conn, fd);
    }
}

static void on_conn_event(struct store_thread *t, struct store_conn *c, unsigned events)
{
    if (c->fd < 0) /* an earlier event of this turn has dropped it */
        return;
    unsigned ready = (events & EPOLLIN ? STORE_POLL_IN : 0) |
                     (events & EPOLLOUT ? STORE_POLL_OUT : 0) |
                     (events & (EPOLLERR | EPOLLHUP) ? STORE_POLL_HANGUP : 0);
    store_service_ready(&t->service, c, ready);
}

static int next_timeout_ms(const struct store_thread *t)
{
    if (t->accept_again_ns)
        return ACCEPT_PAUSE_MS;
    if (store_service_has_stalled(&t->service))
        return (int)(t->service.stall_ns / 4000000 + 1);
    return -1;
}

static void *serve(void *arg)
{
    struct store_thread *t = arg;
    struct epoll_event ev[EVENTS];
    bool stopping = false;
    while (!stopping) {
        int n = epoll_wait(t->epoll, ev, EVENTS, next_timeout_ms(t));
        if (t->accept_again_ns && mono_ns() >= t->accept_again_ns)
            set_accepting(t, true);
        for (int i = 0; i < n; i++) {
            if (ev[i].data.ptr == &t->stop)
                stopping = true;
            else if (ev[i].data.ptr == &t->listener)
                accept_all(t);
            else
                on_conn_event(t, ev[i].data.ptr, ev[i].events);
        }
        if (store_service_has_stalled(&t->service))
            store_service_tick(&t->service, mono_ns());
        bury(t);
    }
    return NULL;
}

/* --- From outside ------------------------------------------------------------------------------*/

static int open_listener(const struct netaddr *a, struct err *e)
{
    _cleanup_fd_ int fd =
        fd_above_std(socket(a->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return err_sys(e, errno, "socket");
    int on = 1, off = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (a->sa.sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    char text[ADDR_STRLEN + 16];
    if (bind(fd, &a->sa, a->len) < 0 || listen(fd, BACKLOG) < 0)
        return err_sys(e, errno, "listen on %s", netaddr_format(a, text, sizeof(text)));
    return take_fd(&fd);
}

/* Returns a socket or a negative errno value. */
static int listen_on(const struct store_thread_opts *opts, struct err *e)
{
    struct netaddr a;
    if (opts->port < 0 || opts->port > 65535)
        return err_set(e, -EINVAL, "%d is not a port", opts->port);
    if (opts->addr) {
        if (!netaddr_parse_ip(&a, opts->addr, opts->port))
            return err_set(e, -EINVAL, "'%s' is not an IP address", opts->addr);
        return open_listener(&a, e);
    }
    netaddr_parse_ip(&a, "::", opts->port);
    int fd = open_listener(&a, e);
    if (fd >= 0 || fd == -EADDRINUSE || fd == -EACCES)
        return fd;
    netaddr_parse_ip(&a, "0.0.0.0", opts->port); /* a host without IPv6 */
    return open_listener(&a, e);
}

static int store_thread_start(struct store_thread *t, struct err *e)
{
    struct netaddr a = {.len = sizeof(a.ss)};
    if (getsockname(t->listener, &a.sa, &a.len) < 0)
        return err_sys(e, errno, "getsockname");
    t->port = netaddr_port(&a);
    t->epoll = fd_above_std(epoll_create1(EPOLL_CLOEXEC));
    t->stop = fd_above_std(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &t->stop};
    if (t->epoll < 0 || t->stop < 0 || set_accepting(t, true) < 0 ||
        epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->stop, &ev) < 0)
        return err_sys(e, errno, "epoll");
    int rc = thread_start(&t->thread, 0, serve, t);
    return rc ? err_sys(e, rc, "start a thread") : 0;
}

static void store_thread_release(struct store_thread *t)
{
    store_service_fini(&t->service);
    bury(t);
    close_fd(&t->listener);
    close_fd(&t->epoll);
    close_fd(&t->stop);
    free(t);
}

int store_thread_new(struct store_thread **out, const struct store_thread_opts *opts, struct err *e)
{
    struct store_thread *t = malloc(sizeof(*t));
    if (!t)
        return err_set(e, -ENOMEM, "store: out of memory");
    t->listener = t->epoll = t->stop = -1;
    t->owner = getpid();
    t->accept_again_ns = 0;
    list_init(&t->dead);
    store_service_init(&t->service, &driver, opts->legacy_113, opts->stall_ms);
    int rc = t->listener = listen_on(opts, e);
    if (rc >= 0)
        rc = store_thread_start(t, e);
    if (rc < 0) {
        store_thread_release(t);
        err_wrap(e, "store");
        return rc;
    }
    *out = t;
    return 0;
}

int store_thread_port(const struct store_thread *t)
{
    return t->port;
}

void store_thread_free(struct store_thread *t)
{
    if (!t)
        return;
    if (t->owner != getpid()) {
        /* In a fork()'s child: the eventfd and the epoll set are also the parent's, and the
         * thread's data may be half changed. */
        close_fd(&t->listener);
        close_fd(&t->epoll);
        close_fd(&t->stop);
        return;
    }
    uint64_t one = 1;
    while (write(t->stop, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
    pthread_join(t->thread, NULL);
    store_thread_release(t);
}
