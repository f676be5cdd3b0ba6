#include "rendezvous/store/store_client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "rendezvous/store/store_proto.h"

#define NO_DEADLINE UINT64_MAX

#define RETRY_FIRST_MS   10
#define RETRY_MAX_MS     1000
#define RETRY_ATTEMPT_MS 3000 /* time to connect to one address of a host */

struct store_client {
    int fd;         /* -1: dead */
    int timeout_ms; /* of requests that the server answers at once */
    struct buf out;
    uint8_t in[4096]; /* received bytes that are not consumed yet: in[at..end) */
    size_t at, end;
};

/* Whether another attempt can help, because the server may be starting, or the network. The code is
 * a negative errno value. */
static bool retry_helps(int code)
{
    switch (-code) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
        return true;
    default:
        return false;
    }
}

/* The pause before the next attempt, jittered by half, so that ranks that started together do not
 * retry together; *backoff_ms becomes the next mean. */
static uint64_t retry_pause_ns(int *backoff_ms)
{
    uint64_t half = (uint64_t)*backoff_ms * 500000u;
    uint64_t mix = mono_ns() * 6364136223846793005u + (uint64_t)getpid() * 1442695040888963407u;
    *backoff_ms += *backoff_ms / 2;
    if (*backoff_ms > RETRY_MAX_MS)
        *backoff_ms = RETRY_MAX_MS;
    return half + (mix >> 32) % (2 * half);
}

/* --- Time --------------------------------------------------------------------------------------*/

static uint64_t deadline_in(int timeout_ms)
{
    return timeout_ms < 0 ? NO_DEADLINE : mono_ns() + (uint64_t)timeout_ms * 1000000u;
}

/* Waits for the socket. 0: it is ready, perhaps with an error, which the next call on it reports;
 * -ETIMEDOUT. */
static int wait_ready(int fd, short events, uint64_t deadline)
{
    for (;;) {
        int timeout_ms = -1;
        if (deadline != NO_DEADLINE) {
            uint64_t now = mono_ns();
            uint64_t left_ms = deadline > now ? (deadline - now + 999999) / 1000000 : 0;
            timeout_ms = left_ms > 86400000 ? 86400000 : (int)left_ms;
        }
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, timeout_ms);
        if (n > 0)
            return 0;
        if (n == 0 && deadline != NO_DEADLINE && mono_ns() >= deadline)
            return -ETIMEDOUT;
        if (n < 0 && errno != EINTR)
            return -errno;
    }
}

/* --- Bytes -------------------------------------------------------------------------------------*/

/* Marks the connection as unusable. Returns code. */
static int die(struct store_client *c, int code, struct err *e, const char *what)
{
    close_fd(&c->fd);
    if (code == -ETIMEDOUT)
        return err_set(e, code, "store: %s: no answer in time", what);
    if (code == -EPIPE || code == -ECONNRESET)
        return err_set(e, -ECONNRESET, "store: %s: the server closed the connection", what);
    return err_sys(e, -code, "store: %s", what);
}

static int send_all(struct store_client *c, struct store_view head, struct store_view tail,
                    uint64_t deadline)
{
    struct iovec iov[2] = {{(void *)head.p, head.len}, {(void *)tail.p, tail.len}};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = tail.len ? 2 : 1};
    while (m.msg_iovlen) {
        ssize_t n = sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            int rc = wait_ready(c->fd, POLLOUT, deadline);
            if (rc < 0)
                return rc;
        } else if (n < 0 && errno != EINTR) {
            return -errno;
        }
        for (size_t left = n > 0 ? (size_t)n : 0; m.msg_iovlen;) {
            size_t some = left < m.msg_iov->iov_len ? left : m.msg_iov->iov_len;
            m.msg_iov->iov_base = (uint8_t *)m.msg_iov->iov_base + some;
            m.msg_iov->iov_len -= some;
            left -= some;
            if (m.msg_iov->iov_len)
                break;
            m.msg_iov++;
            m.msg_iovlen--;
        }
    }
    return 0;
}

/* Receives 1 to n bytes into p. */
static ssize_t receive_some(struct store_client *c, void *p, size_t n, uint64_t deadline)
{
    for (;;) {
        ssize_t got = recv(c->fd, p, n, MSG_DONTWAIT);
        if (got > 0)
            return got;
        if (got == 0)
            return -ECONNRESET;
        if (errno == EAGAIN) {
            int rc = wait_ready(c->fd, POLLIN, deadline);
            if (rc < 0)
                return rc;
        } else if (errno != EINTR) {
            return -errno;
        }
    }
}

/* Receives exactly n bytes: many directly to p, few by way of the buffer. */
static int receive(struct store_client *c, void *out, size_t n, uint64_t deadline)
{
    uint8_t *p = out;
    while (n) {
        size_t have = c->end - c->at;
        if (have) {
            size_t some = have < n ? have : n;
            memcpy(p, c->in + c->at, some);
            c->at += some;
            p += some;
            n -= some;
            continue;
        }
        bool direct = n >= sizeof(c->in);
        ssize_t got = receive_some(c, direct ? p : c->in, direct ? n : sizeof(c->in), deadline);
        if (got < 0)
            return (int)got;
        if (direct) {
            p += got;
            n -= (size_t)got;
        } else {
            c->at = 0;
            c->end = (size_t)got;
        }
    }
    return 0;
}

static int receive_u8(struct store_client *c, uint8_t *v, uint64_t deadline)
{
    return receive(c, v, 1, deadline);
}

static int receive_i64(struct store_client *c, int64_t *v, uint64_t deadline)
{
    uint8_t b[8];
    int rc = receive(c, b, sizeof(b), deadline);
    struct rd r = rd_init(b, sizeof(b));
    if (rc == 0)
        *v = (int64_t)rd_u64(&r);
    return rc;
}

/* Receives a length and that many bytes; malloc'ed, with a NUL behind. */
static int receive_value(struct store_client *c, void **val, size_t *len, uint64_t deadline)
{
    int64_t n = 0;
    int rc = receive_i64(c, &n, deadline);
    if (rc < 0)
        return rc;
    if (n < 0 || n > (int64_t)STORE_REPLY_MAX)
        return -EPROTO;
    char *p = malloc((size_t)n + 1);
    if (!p)
        return -ENOMEM;
    rc = receive(c, p, (size_t)n, deadline);
    if (rc < 0) {
        free(p);
        return rc;
    }
    p[n] = '\0';
    *val = p;
    *len = (size_t)n;
    return 0;
}

/* --- Requests ----------------------------------------------------------------------------------*/

static struct store_view view(const void *p, size_t len)
{
    return (struct store_view){p, len};
}

static struct store_view text(const char *s)
{
    return view(s, strlen(s));
}

/* The name of the request in error texts: "store: ADD counter". */
static const char *client_describe(const struct store_request *r, char out[64])
{
    snprintf(out, 64, "%s%s%.40s%s", store_cmd_name(r->cmd), r->key.p ? " " : "",
             r->key.p ? (const char *)r->key.p : "", r->key.len > 40 ? "..." : "");
    return out;
}

static int client_fail(struct store_client *c, const struct store_request *r, int code,
                       struct err *e)
{
    char what[64];
    return die(c, code, e, client_describe(r, what));
}

static int client_request(struct store_client *c, const struct store_request *r, uint64_t deadline,
                          struct err *e)
{
    if (c->fd < 0)
        return err_set(e, -ENOTCONN, "store: the connection is lost");
    enum store_reason why = store_request_check(r);
    if (why)
        return err_set(e, -EMSGSIZE, "store: %s: %s", store_cmd_name(r->cmd),
                       store_reason_text(why));
    c->out.len = 0;
    struct store_view tail = store_encode_head(&c->out, STORE_NEWEST, r);
    if (c->out.oom) {
        buf_fini(&c->out);
        return err_set(e, -ENOMEM, "store: out of memory");
    }
    int rc = send_all(c, view(c->out.data, c->out.len), tail, deadline);
    return rc < 0 ? client_fail(c, r, rc, e) : 0;
}

/* Requests with one number, or one value, as the answer. */
static int ask_number(struct store_client *c, const struct store_request *r, int64_t *v,
                      struct err *e)
{
    uint64_t deadline = deadline_in(c->timeout_ms);
    int rc = client_request(c, r, deadline, e);
    if (rc < 0)
        return rc;
    rc = receive_i64(c, v, deadline);
    return rc < 0 ? client_fail(c, r, rc, e) : 0;
}

static int ask_value(struct store_client *c, const struct store_request *r, void **val, size_t *len,
                     struct err *e)
{
    uint64_t deadline = deadline_in(c->timeout_ms);
    int rc = client_request(c, r, deadline, e);
    if (rc < 0)
        return rc;
    rc = receive_value(c, val, len, deadline);
    return rc < 0 ? client_fail(c, r, rc, e) : 0;
}

/* The server has not answered a WAIT in time. CANCEL_WAIT is always answered by 1; a 0 before it
 * means that the wait was fulfilled at that moment. */
static int cancel_wait(struct store_client *c, const struct store_request *waited, int timeout_ms,
                       struct err *e)
{
    struct store_request cancel = {.cmd = STORE_CANCEL_WAIT};
    uint64_t deadline = deadline_in(c->timeout_ms);
    uint8_t answer = STORE_CANCELED;
    bool came = false;
    char what[64];
    int rc = client_request(c, &cancel, deadline, NULL);
    if (rc == 0)
        rc = receive_u8(c, &answer, deadline);
    if (rc == 0 && answer == STORE_STOP_WAITING) {
        came = true;
        rc = receive_u8(c, &answer, deadline);
    }
    if (rc == 0 && answer != STORE_CANCELED)
        rc = -EPROTO;
    if (rc == 0 && came)
        return 0;
    if (rc < 0)
        close_fd(&c->fd); /* the server is too old, or lost: later answers would be misread */
    return err_set(e, -ETIMEDOUT, "store: %s: not there after %d ms", client_describe(waited, what),
                   timeout_ms);
}

/* Requests that the server answers when the keys exist. */
static int ask_and_wait(struct store_client *c, const struct store_request *r, int timeout_ms,
                        struct err *e)
{
    uint8_t answer;
    int rc = client_request(c, r, deadline_in(c->timeout_ms), e);
    if (rc < 0)
        return rc;
    rc = receive_u8(c, &answer, deadline_in(timeout_ms));
    if (rc == -ETIMEDOUT)
        return cancel_wait(c, r, timeout_ms, e);
    if (rc == 0 && answer != STORE_STOP_WAITING)
        rc = -EPROTO;
    return rc < 0 ? client_fail(c, r, rc, e) : 0;
}

/* Fills in a request for a list of keys. r->key is the first one, for messages. */
static int put_keys(struct buf *items, const char *const *keys, size_t n, struct store_request *r,
                    struct err *e)
{
    if (n > STORE_KEYS_MAX)
        return err_set(e, -EMSGSIZE, "store: %s", store_reason_text(STORE_ERR_KEY_COUNT));
    for (size_t i = 0; i < n; i++)
        store_items_put(items, keys[i], strlen(keys[i]));
    if (items->oom) {
        buf_fini(items);
        return err_set(e, -ENOMEM, "store: out of memory");
    }
    if (n)
        r->key = text(keys[0]);
    r->items = view(items->data, items->len);
    r->count = n;
    return 0;
}

int store_client_set(struct store_client *c, const char *key, const void *val, size_t len,
                     struct err *e)
{
    struct store_request r = {.cmd = STORE_SET, .key = text(key), .val = view(val, len)};
    return client_request(c, &r, deadline_in(c->timeout_ms), e);
}

int store_client_wait(struct store_client *c, const char *const *keys, size_t n, int timeout_ms,
                      struct err *e)
{
    struct store_request r = {.cmd = STORE_WAIT};
    struct buf items = BUF_INIT;
    int rc = put_keys(&items, keys, n, &r, e);
    if (rc == 0)
        rc = ask_and_wait(c, &r, timeout_ms, e);
    buf_fini(&items);
    return rc;
}

int store_client_get(struct store_client *c, const char *key, void **val, size_t *len,
                     int timeout_ms, struct err *e)
{
    int rc = store_client_wait(c, &key, 1, timeout_ms, e);
    if (rc < 0)
        return rc;
    struct store_request r = {.cmd = STORE_GET, .key = text(key)};
    return ask_value(c, &r, val, len, e);
}

int store_client_check(struct store_client *c, const char *const *keys, size_t n, bool *exist,
                       struct err *e)
{
    struct store_request r = {.cmd = STORE_CHECK};
    struct buf items = BUF_INIT;
    uint64_t deadline = deadline_in(c->timeout_ms);
    uint8_t answer;
    int rc = put_keys(&items, keys, n, &r, e);
    if (rc == 0)
        rc = client_request(c, &r, deadline, e);
    buf_fini(&items);
    if (rc < 0)
        return rc;
    rc = receive_u8(c, &answer, deadline);
    if (rc == 0 && answer != STORE_READY && answer != STORE_NOT_READY)
        rc = -EPROTO;
    if (rc < 0)
        return client_fail(c, &r, rc, e);
    *exist = answer == STORE_READY;
    return 0;
}

/* Checks first that the key exists: one of torch's servers closes the connection of a client that
 * reads a missing key. */
int store_client_try_get(struct store_client *c, const char *key, void **val, size_t *len,
                         struct err *e)
{
    bool exist;
    int rc = store_client_check(c, &key, 1, &exist, e);
    if (rc < 0)
        return rc;
    struct store_request r = {.cmd = STORE_GET, .key = text(key)};
    void *got = NULL;
    size_t n = 0;
    if (exist && (rc = ask_value(c, &r, &got, &n, e)) < 0)
        return rc;
    if (n == 0) {
        free(got);
        return err_set(e, -ENOENT, "store: %s is not there", key);
    }
    *val = got;
    *len = n;
    return 0;
}

int store_client_add(struct store_client *c, const char *key, int64_t delta, int64_t *value,
                     struct err *e)
{
    struct store_request r = {.cmd = STORE_ADD, .key = text(key), .number = delta};
    return ask_number(c, &r, value, e);
}

int store_client_compare_set(struct store_client *c, const char *key, const void *expected,
                             size_t expected_len, const void *desired, size_t desired_len,
                             void **now, size_t *now_len, struct err *e)
{
    struct store_request r = {.cmd = STORE_COMPARE_SET,
                              .key = text(key),
                              .expected = view(expected, expected_len),
                              .val = view(desired, desired_len)};
    return ask_value(c, &r, now, now_len, e);
}

int store_client_delete(struct store_client *c, const char *key, bool *deleted, struct err *e)
{
    struct store_request r = {.cmd = STORE_DELETE_KEY, .key = text(key)};
    int64_t n;
    int rc = ask_number(c, &r, &n, e);
    if (rc == 0)
        *deleted = n > 0;
    return rc;
}

/* --- Connecting --------------------------------------------------------------------------------*/

static int handshake(struct store_client *c, uint64_t deadline)
{
    uint32_t nonce = (uint32_t)getpid();
    uint8_t echo[4];
    c->out.len = 0;
    store_encode(&c->out, STORE_NEWEST,
                 &(struct store_request){.cmd = STORE_VALIDATE, .word = STORE_MAGIC});
    store_encode(&c->out, STORE_NEWEST, &(struct store_request){.cmd = STORE_PING, .word = nonce});
    if (c->out.oom)
        return -ENOMEM;
    int rc = send_all(c, view(c->out.data, c->out.len), view(NULL, 0), deadline);
    if (rc == 0)
        rc = receive(c, echo, sizeof(echo), deadline);
    if (rc < 0)
        return rc;
    struct rd r = rd_init(echo, sizeof(echo));
    return rd_u32(&r) == nonce ? 0 : -EPROTO;
}

/* Makes a client on a connected socket, which it takes even if it fails. */
static int open_on(struct store_client **out, int fd, int timeout_ms, uint64_t deadline)
{
    struct store_client *c = malloc(sizeof(*c));
    if (!c) {
        close(fd);
        return -ENOMEM;
    }
    *c = (struct store_client){.fd = fd, .timeout_ms = timeout_ms, .out = BUF_INIT};
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on,
               sizeof(on)); /* to end a long wait for a lost host */
    fd_set_cloexec(fd, true);
    int rc = handshake(c, deadline);
    if (rc < 0) {
        store_client_free(c);
        return rc;
    }
    *out = c;
    return 0;
}

/* A connection to a port of this host where nobody listens may get that very port as its local one:
 * then it is connected to itself, and the process that should listen there finds the port in use.
 */
static bool is_connected_to_itself(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t n = sizeof(here), m = sizeof(there);
    return getsockname(fd, (struct sockaddr *)&here, &n) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &m) == 0 && n == m &&
           memcmp(&here, &there, n) == 0;
}

/* Returns a connected socket or a negative errno value. */
static int connect_to(const struct addrinfo *a, uint64_t deadline)
{
    uint64_t attempt = deadline_in(RETRY_ATTEMPT_MS);
    _cleanup_fd_ int fd =
        fd_above_std(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return -errno;
    if (connect(fd, a->ai_addr, a->ai_addrlen) < 0) {
        if (errno != EINPROGRESS)
            return -errno;
        int rc = wait_ready(fd, POLLOUT, attempt < deadline ? attempt : deadline), status = 0;
        socklen_t n = sizeof(status);
        if (rc < 0)
            return rc;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &status, &n) < 0 || status)
            return status ? -status : -errno;
    }
    if (is_connected_to_itself(fd)) {
        struct linger at_once = {.l_onoff = 1};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)); /* the port is free */
        return -ECONNREFUSED;
    }
    return take_fd(&fd);
}

/* Tries each address of the host once. */
static int try_once(struct store_client **out, const char *host, int port, int timeout_ms,
                    uint64_t deadline, struct err *why)
{
    char service[8], where[HOST_MAX + 16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
    snprintf(service, sizeof(service), "%d", port);
    endpoint_format(where, sizeof(where), host, port);
    int gai = getaddrinfo(host, service, &hints, &list);
    if (gai) {
        bool hopeless = gai == EAI_MEMORY || gai == EAI_BADFLAGS || gai == EAI_SERVICE;
        return err_set(why, hopeless ? -EINVAL : -EHOSTUNREACH, "%s: %s", where,
                       gai == EAI_SYSTEM ? strerror(errno) : gai_strerror(gai));
    }
    int rc = -EHOSTUNREACH;
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        rc = connect_to(a, deadline);
        if (rc >= 0)
            rc = open_on(out, rc, timeout_ms, deadline);
        if (rc == 0 || !retry_helps(rc))
            break;
    }
    freeaddrinfo(list);
    if (rc == -EPROTO)
        return err_set(why, rc, "%s does not answer as a store", where);
    return rc < 0 ? err_sys(why, -rc, "%s", where) : 0;
}

static void sleep_ns(uint64_t ns, uint64_t deadline)
{
    uint64_t now = mono_ns();
    if (deadline != NO_DEADLINE && now + ns > deadline)
        ns = deadline > now ? deadline - now : 0;
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

int store_client_new(struct store_client **out, const char *host, int port, int timeout_ms,
                     struct err *e)
{
    uint64_t deadline = deadline_in(timeout_ms);
    struct err why = ERR_INIT;
    if (port < 1 || port > 65535)
        return err_set(e, -EINVAL, "store: %d is not a port", port);
    for (int backoff_ms = RETRY_FIRST_MS;;) {
        int rc = try_once(out, host, port, timeout_ms, deadline, &why);
        if (rc == 0)
            return 0;
        if (!retry_helps(rc))
            return err_set(e, rc, "store: %s", why.msg);
        if (mono_ns() >= deadline)
            return err_set(e, -ETIMEDOUT, "store: no connection within %d ms: %s", timeout_ms,
                           why.msg);
        sleep_ns(retry_pause_ns(&backoff_ms), deadline);
    }
}

void store_client_set_timeout(struct store_client *c, int timeout_ms)
{
    c->timeout_ms = timeout_ms;
}

void store_client_free(struct store_client *c)
{
    if (!c)
        return;
    close_fd(&c->fd);
    buf_fini(&c->out);
    free(c);
}
