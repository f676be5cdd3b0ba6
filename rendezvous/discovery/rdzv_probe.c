#include "rendezvous/discovery/rdzv_probe.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "rendezvous/rules/rdzv_msg.h"

#define ANSWER_MAX 2048 /* larger than an identity */

static int probe_wait_for(int fd, short events, uint64_t until)
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

/* The code is not -EACCES, which a missing route can cause too. */
static int probe_connect(int fd, const struct netaddr *a, uint64_t until)
{
    int error = 0;
    socklen_t len = sizeof(error);
    if (connect(fd, &a->sa, a->len) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return errno == EACCES ? -EPERM : -errno;
    int rc = probe_wait_for(fd, POLLOUT, until);
    if (rc == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
        return -errno;
    return rc < 0 ? rc : -error;
}

/* 1: the identity is complete; 0: more bytes are needed; -EPROTO. */
static int probe_parse(const uint8_t *p, size_t n, struct rdzv_identity *id)
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

static int send_all(int fd, const struct buf *b)
{
    if (b->oom)
        return -ENOMEM;
    /* The buffer of a new socket has room for these few hundred bytes. */
    return send(fd, b->data, b->len, MSG_NOSIGNAL) == (ssize_t)b->len ? 0 : -EIO;
}

/* Takes the received bytes, directly or through TLS, whose handshake may have something to send. */
static int probe_take(int fd, struct tls *tls, const uint8_t *p, size_t n,
                      const struct buf *question, struct buf *answer)
{
    struct buf wire = BUF_INIT;
    if (!tls) {
        buf_put(answer, p, n);
        return 0;
    }
    bool before = tls_established(tls);
    int rc = tls_feed(tls, p, n, answer, &wire, NULL);
    if (rc == 0 && !before && tls_established(tls))
        rc = tls_encrypt(tls, question->data, question->len, &wire, NULL);
    if (wire.len && rc == 0)
        rc = send_all(fd, &wire);
    buf_fini(&wire);
    return rc;
}

static int probe_ask(int fd, struct tls *tls, uint64_t until, const struct buf *question,
                     struct buf *answer, struct rdzv_identity *id)
{
    uint8_t bytes[ANSWER_MAX];
    int rc;
    while ((rc = probe_parse(answer->data, answer->len, id)) == 0) {
        rc = answer->len > ANSWER_MAX ? -EPROTO : probe_wait_for(fd, POLLIN, until);
        if (rc < 0)
            return rc;
        ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
            return n == 0 ? -EPROTO : -errno;
        rc = n > 0 ? probe_take(fd, tls, bytes, (size_t)n, question, answer) : 0;
        if (rc < 0 || answer->oom)
            return rc < 0 ? rc : -ENOMEM;
    }
    return rc > 0 ? 0 : rc;
}

/* Sends the preamble; then the rest, once the preamble of the other side shows that it has accepted
 * the connection and belongs to this user. */
static int prove(int fd, const struct netaddr *a, uint64_t until, const struct buf *question,
                 struct buf *answer)
{
    uint8_t got[RDZV_PREAMBLE_LEN];
    if (question->oom)
        return -ENOMEM;
    if (send(fd, question->data, RDZV_PREAMBLE_LEN, MSG_NOSIGNAL) != RDZV_PREAMBLE_LEN)
        return -EIO;
    while (answer->len < RDZV_PREAMBLE_LEN) {
        int rc = probe_wait_for(fd, POLLIN, until);
        ssize_t n = rc < 0 ? rc : recv(fd, got, sizeof(got) - answer->len, 0);
        if (rc < 0 || n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
            return rc < 0 ? rc : n == 0 ? -EPROTO : -errno;
        if (n > 0)
            buf_put(answer, got, (size_t)n);
    }
    if (auth_whose(fd, a) != AUTH_OWN)
        return -EACCES;
    size_t rest = question->len - RDZV_PREAMBLE_LEN;
    return send(fd, question->data + RDZV_PREAMBLE_LEN, rest, MSG_NOSIGNAL) == (ssize_t)rest ? 0
                                                                                             : -EIO;
}

/* Asks one question on a connection of its own; the answer is an IDENTITY. */
static int probe_exchange(const struct netaddr *a, int timeout_ms, const struct auth *auth,
                          const struct buf *question, struct rdzv_identity *id)
{
    uint64_t until = mono_ns() + (uint64_t)timeout_ms * 1000000;
    struct buf hello = BUF_INIT, answer = BUF_INIT;
    struct tls *tls = NULL;
    const struct tls_key *key = auth && auth_wants_tls(auth, a) ? &auth->key : NULL;
    if (key && !auth->have_key)
        return -EACCES;
    _cleanup_fd_ int fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int rc = probe_connect(fd, a, until);
    if (rc == 0 && key)
        rc = tls_new(&tls, TLS_CLIENT, key, &hello, NULL);
    if (rc == 0 && auth && !auth->open && !key)
        rc = prove(fd, a, until, question, &answer);
    else if (rc == 0)
        rc = send_all(fd, key ? &hello : question);
    if (rc == 0)
        rc = probe_ask(fd, tls, until, question, &answer, id);
    tls_free(tls);
    buf_fini(&hello);
    buf_fini(&answer);
    return rc;
}

int rdzv_probe(const struct netaddr *a, int timeout_ms, const struct auth *auth,
               struct rdzv_identity *id)
{
    struct buf question = BUF_INIT;
    rdzv_put_preamble(&question);
    rdzv_put_probe(&question);
    int rc = probe_exchange(a, timeout_ms, auth, &question, id);
    buf_fini(&question);
    return rc;
}

int rdzv_tell(const struct netaddr *a, int timeout_ms, const struct auth *auth,
              const struct rdzv_elsewhere *where, struct rdzv_identity *id)
{
    struct buf question = BUF_INIT;
    rdzv_put_preamble(&question);
    rdzv_put_elsewhere(&question, where);
    int rc = probe_exchange(a, timeout_ms, auth, &question, id);
    buf_fini(&question);
    return rc;
}
