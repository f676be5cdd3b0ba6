#include "launcher/hosts/dial.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/thread.h"

#define STACK_BYTES 262144 /* resolving a name takes up to 100 KB */

struct attempt {
    struct dial_result result;
    char *host, port[8];
    uint64_t deadline_ns;
    int threads;
};

int dial_open(struct dial *d, struct err *e)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_sys(e, errno, "pipe");
    fd_set_nonblock(ends[0], true);
    *d = (struct dial){ends[0], ends[1]};
    return 0;
}

void dial_close(struct dial *d)
{
    close_fd(&d->results);
}

static int ms_left(const struct attempt *c)
{
    uint64_t now = mono_ns();
    return now < c->deadline_ns ? (int)((c->deadline_ns - now + 999999) / 1000000) : 0;
}

/* Returns the connected socket, or a negative errno. */
static int connect_to(const struct attempt *c, const struct addrinfo *a)
{
    int error = 0;
    socklen_t len = sizeof(error);
    _cleanup_fd_ int fd =
        socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (fd < 0)
        return -errno;
    if (connect(fd, a->ai_addr, a->ai_addrlen) < 0 && errno != EINPROGRESS)
        return -errno;
    struct pollfd p = {fd, POLLOUT, 0};
    if (poll(&p, 1, ms_left(c)) <= 0)
        return -ETIMEDOUT;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error)
        return error ? -error : -errno;
    return take_fd(&fd);
}

static void *dial_run(void *arg)
{
    struct attempt *c = arg;
    struct dial_result *r = &c->result;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char why[ERR_TEXT_MAX];
    int rc = getaddrinfo(c->host, c->port, &hints, &list);
    for (struct addrinfo *a = list; a && r->fd < 0 && ms_left(c) > 0; a = a->ai_next) {
        int fd = connect_to(c, a);
        r->error = fd < 0 ? -fd : 0;
        r->fd = fd < 0 ? -1 : fd;
    }
    if (list)
        freeaddrinfo(list);
    if (rc == 0 && r->fd < 0 && !r->error)
        r->error = ETIMEDOUT; /* all of the time was the name server's */
    snprintf(r->why, sizeof(r->why), "%s", rc != 0 ? gai_strerror(rc) : err_text(r->error, why));
    if (write(c->threads, r, sizeof(*r)) != sizeof(*r) && r->fd >= 0)
        close(r->fd); /* nobody waits for the connection any more */
    free(c->host);
    free(c);
    return NULL;
}

int dial_start(struct dial *d, unsigned peer, unsigned attempt, const char *host, int port,
               int timeout_ms, struct err *e)
{
    struct attempt *c = xcalloc(1, sizeof(*c));
    c->result = (struct dial_result){.peer = peer, .attempt = attempt, .fd = -1};
    c->host = xstrdup(host);
    snprintf(c->port, sizeof(c->port), "%d", port);
    c->deadline_ns = mono_ns() + (uint64_t)timeout_ms * 1000000;
    c->threads = d->threads;
    int rc = thread_start(NULL, STACK_BYTES, dial_run, c);
    if (rc == 0)
        return 0;
    free(c->host);
    free(c);
    return err_sys(e, rc, "a thread that connects to %s", host);
}

bool dial_next(struct dial *d, struct dial_result *out)
{
    return read(d->results, out, sizeof(*out)) == sizeof(*out);
}
