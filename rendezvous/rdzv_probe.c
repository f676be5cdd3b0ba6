#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "rendezvous/rdzv_backend.h"
#include "rendezvous/rdzv_msg.h"

#define ANSWER_MAX 2048 /* an identity is shorter */

static int wait_for(int fd, short events, uint64_t until)
{
    for (;;) {
        uint64_t now = mono_ns();
        struct pollfd p = {.fd = fd, .events = events};
        int n = now < until ? poll(&p, 1, (int)((until - now + 999999) / 1000000)) : 0;
        if (n > 0)
            return 0;
        if (n == 0)
            return -ETIMEDOUT;
        if (errno != EINTR)
            return -errno;
    }
}

static int connect_to(int fd, const struct netaddr *a, uint64_t until)
{
    int error = 0;
    socklen_t len = sizeof(error);
    if (connect(fd, &a->sa, a->len) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return -errno;
    int rc = wait_for(fd, POLLOUT, until);
    if (rc == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
        return -errno;
    return rc < 0 ? rc : -error;
}

/* 1: it is there; 0: not all of it yet; -EPROTO. */
static int parse(const uint8_t *p, size_t n, struct rdzv_identity *id)
{
    if (n < RDZV_PREAMBLE_LEN + RDZV_FRAME_HEADER)
        return 0;
    if (rdzv_get_preamble(p) == 0)
        return -EPROTO;
    struct rd r = rd_init(p + RDZV_PREAMBLE_LEN, n - RDZV_PREAMBLE_LEN);
    uint32_t len = rd_u32(&r);
    uint8_t type = rd_u8(&r);
    if (len < 1 || len > ANSWER_MAX - RDZV_PREAMBLE_LEN - 4 || type != RDZV_MSG_IDENTITY)
        return -EPROTO;
    if ((size_t)(r.end - r.p) < len - 1)
        return 0;
    r.end = r.p + len - 1;
    return rdzv_get_identity(&r, id) ? 1 : -EPROTO;
}

int rdzv_probe(const struct netaddr *a, int timeout_ms, struct rdzv_identity *id)
{
    uint64_t until = mono_ns() + (uint64_t)timeout_ms * 1000000;
    uint8_t answer[ANSWER_MAX];
    size_t n = 0;
    _cleanup_fd_ int fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int rc = connect_to(fd, a, until);
    if (rc < 0)
        return rc;
    struct buf b = BUF_INIT;
    rdzv_put_preamble(&b);
    rdzv_put_probe(&b);
    ssize_t sent = b.oom ? -1 : send(fd, b.data, b.len, MSG_NOSIGNAL);
    bool whole = sent == (ssize_t)b.len; /* a fresh socket has room for 13 bytes */
    buf_fini(&b);
    if (!whole)
        return -EIO;
    while ((rc = parse(answer, n, id)) == 0) {
        rc = wait_for(fd, POLLIN, until);
        if (rc < 0)
            return rc;
        ssize_t got = recv(fd, answer + n, sizeof(answer) - n, 0);
        if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN))
            return got == 0 ? -EPROTO : -errno;
        n += got > 0 ? (size_t)got : 0;
    }
    return rc > 0 ? 0 : rc;
}
