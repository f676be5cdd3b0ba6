#include "rendezvous/store/store_thread.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/netaddr.h"
#include "core/thread.h"
#include "rendezvous/store/store_service.h"

#define BACKLOG         4096 /* backlog of the listener, because all ranks connect at the same time */
#define ACCEPT_PAUSE_MS 100 /* the pause when descriptors or memory have run out */

enum { LISTENER, STOP }; /* the numbers of its own descriptors in the epoll set */

struct store_thread {
    struct store_service service;
    pthread_t thread;
    pid_t owner;        /* the process in which the thread runs */
    int listener, stop; /* stop: an eventfd */
    int port;
    uint64_t accept_again_ns; /* not 0: the listener is not polled until then */
};

/* --- On the thread -----------------------------------------------------------------------------*/

static int set_accepting(struct store_thread *t, bool on)
{
    int rc = store_service_watch(&t->service, LISTENER, t->listener, on);
    t->accept_again_ns = on && rc == 0 ? 0 : mono_ns() + ACCEPT_PAUSE_MS * 1000000u;
    return rc;
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
        store_service_adopt(&t->service, fd);
    }
}

static void *serve(void *arg)
{
    struct store_thread *t = arg;
    for (;;) {
        int period = store_service_period_ms(&t->service);
        unsigned ready =
            store_service_turn(&t->service, t->accept_again_ns ? ACCEPT_PAUSE_MS : period);
        if (ready & 1u << STOP)
            return NULL;
        if (t->accept_again_ns && mono_ns() >= t->accept_again_ns)
            set_accepting(t, true);
        if (ready & 1u << LISTENER)
            accept_all(t);
    }
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
    t->stop = fd_above_std(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (t->stop < 0)
        return err_sys(e, errno, "eventfd");
    int rc = set_accepting(t, true);
    rc = rc ? rc : store_service_watch(&t->service, STOP, t->stop, true);
    if (rc < 0)
        return err_sys(e, -rc, "epoll");
    rc = thread_start(&t->thread, 0, serve, t);
    return rc ? err_sys(e, rc, "start a thread") : 0;
}

static void store_thread_release(struct store_thread *t)
{
    store_service_fini(&t->service);
    close_fd(&t->listener);
    close_fd(&t->stop);
    free(t);
}

int store_thread_new(struct store_thread **out, const struct store_thread_opts *opts, struct err *e)
{
    struct store_thread *t = malloc(sizeof(*t));
    if (!t)
        return err_set(e, -ENOMEM, "store: out of memory");
    t->listener = t->stop = -1;
    t->owner = getpid();
    t->accept_again_ns = 0;
    const struct store_service_opts service = {.legacy_113 = opts->legacy_113,
                                               .stall_ms = opts->stall_ms};
    store_service_init(&t->service, &service);
    int rc = store_service_open(&t->service);
    if (rc < 0)
        err_sys(e, -rc, "epoll");
    else
        rc = t->listener = listen_on(opts, e);
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
        /* In a fork()'s child nothing is closed or freed: the eventfd and the epoll set are also
         * the parent's, and the thread's data may be half changed. */
        close_fd(&t->listener);
        close_fd(&t->service.epoll);
        close_fd(&t->stop);
        return;
    }
    uint64_t one = 1;
    while (write(t->stop, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
    pthread_join(t->thread, NULL);
    store_thread_release(t);
}
