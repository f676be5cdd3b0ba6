#include "rendezvous/store/store_async.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/fsm.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "core/list.h"
#include "rendezvous/store/store_retry.h"

/* The happy path: store_async_open -> on_timer -> (on_resolved) -> connect -> on_poll (connected,
 * greeted) -> on_open; the requests of one turn of the loop -> on_timer, which sends them ->
 * on_poll, which receives the answers -> done.
 *
 * Refused, reset, unresolvable, no answer in time while connecting: the next address, then a pause
 *   and all again, until the deadline; then on_open with the error.
 * Anything else while connecting: on_open with the error at once.
 * Lost, out of step or silent later: every unfinished request is done with the error, and so is
 *   every later one.
 * A wait that takes too long: CANCEL_WAIT, whose answer the client awaits like any other. */

#define ADDRS_MAX   16
#define SEND_PIECES 32
#define CHUNK_BYTES 65536
#define NEVER       UINT64_MAX

enum { RESOLVING, CONNECTING, GREETING, PAUSING, READY, BROKEN };

static const struct fsm_state states[] = {
    [PAUSING] = {"pausing", FSM_BIT(RESOLVING) | FSM_BIT(CONNECTING) | FSM_BIT(BROKEN)},
    [RESOLVING] = {"resolving", FSM_BIT(CONNECTING) | FSM_BIT(PAUSING) | FSM_BIT(BROKEN)},
    [CONNECTING] = {"connecting",
                    FSM_BIT(CONNECTING) | FSM_BIT(GREETING) | FSM_BIT(PAUSING) | FSM_BIT(BROKEN)},
    [GREETING] = {"greeting",
                  FSM_BIT(READY) | FSM_BIT(CONNECTING) | FSM_BIT(PAUSING) | FSM_BIT(BROKEN)},
    [READY] = {"ready", FSM_BIT(BROKEN)},
    [BROKEN] = {"broken", 0},
};

/* One request: one step, or a step that waits (or checks) and one that reads. */
struct op {
    struct list_node link;
    struct step {
        enum store_cmd cmd;
        struct buf wire;
    } steps[2];
    int steps_n, step;
    size_t written; /* of the step's bytes */
    size_t count;   /* keys of a list */
    bool alone;     /* sent only as the first, and holds up the rest */
    bool canceling, came;
    int timeout_ms; /* of the wait */
    uint64_t wait_deadline;
    int refused; /* not 0: why it cannot be sent */
    char what[64];
    struct store_done done;
};

struct connection {
    uv_poll_t poll;
    struct store_async *client;
    int fd, events;
};

struct store_async {
    struct fsm fsm;
    uv_loop_t *loop;
    char host[HOST_MAX];
    int port, timeout_ms, backoff_ms;
    uint64_t deadline; /* for the connection to be there */
    uv_getaddrinfo_t resolve;
    struct netaddr addrs[ADDRS_MAX];
    int addrs_n, addr;
    struct connection *conn;
    uv_timer_t timer;
    uint64_t due; /* what the timer is set for */

    struct list_node ops; /* unfinished, in order */
    struct op *unsent;     /* the first one that is not wholly written; NULL: none */
    bool blocked;          /* the socket does not take more at the moment */
    uint64_t progress_ns;  /* when the first one last got on */
    struct buf greeting;
    size_t greeting_sent;
    struct buf in;
    size_t in_at;
    bool scanning;
    struct store_scan scan;

    struct err why; /* once broken */
    bool opened, closing;
    size_t handles;
    void (*on_open)(void *arg, const struct err *e);
    void *open_arg;
    void (*on_closed)(void *arg);
    void *closed_arg;
};

static void resolve(struct store_async *c);
static void attempt(struct store_async *c);
static void on_poll(uv_poll_t *poll, int status, int events);

/* --- Handles -----------------------------------------------------------------------------------*/

static uint64_t deadline_in(int timeout_ms)
{
    return timeout_ms < 0 ? NEVER : mono_ns() + (uint64_t)timeout_ms * 1000000u;
}

static void finish(struct store_async *c, struct op *op, struct store_answer *a);

/* The last handle is closed: unfinished requests are told, and all is freed. */
static void release_when_closed(struct store_async *c)
{
    if (--c->handles)
        return;
    while (!list_alone(&c->ops)) {
        struct store_answer a = {.status = -ECANCELED, .text = "store: the client was closed"};
        finish(c, container_of(c->ops.next, struct op, link), &a);
    }
    buf_fini(&c->greeting);
    buf_fini(&c->in);
    c->on_closed(c->closed_arg);
    free(c);
}

static void on_poll_closed(uv_handle_t *h)
{
    struct connection *conn = container_of((uv_poll_t *)h, struct connection, poll);
    struct store_async *c = conn->client;
    free(conn);
    release_when_closed(c);
}

static void disconnect(struct store_async *c)
{
    struct connection *conn = c->conn;
    if (!conn)
        return;
    c->conn = NULL;
    uv_close((uv_handle_t *)&conn->poll, on_poll_closed);
    close(conn->fd);
}

static void on_timer(uv_timer_t *t);

static void set_timer(struct store_async *c, uint64_t due)
{
    c->due = due;
    if (due == NEVER) {
        uv_timer_stop(&c->timer);
        return;
    }
    uint64_t now = mono_ns();
    uv_update_time(c->loop);
    uv_timer_start(&c->timer, on_timer, due > now ? (due - now + 999999) / 1000000 : 0, 0);
}

/* --- The end of a request ----------------------------------------------------------------------*/

static struct op *first(const struct store_async *c)
{
    return list_alone(&c->ops) ? NULL : container_of(c->ops.next, struct op, link);
}

static struct op *after(const struct store_async *c, struct op *op)
{
    return op->link.next == &c->ops ? NULL : container_of(op->link.next, struct op, link);
}

/* Calls back; the client may be closing afterwards. */
static void finish(struct store_async *c, struct op *op, struct store_answer *a)
{
    struct store_done done = op->done;
    if (c->unsent == op)
        c->unsent = after(c, op);
    list_remove(&op->link);
    buf_fini(&op->steps[0].wire);
    buf_fini(&op->steps[1].wire);
    free(op);
    c->progress_ns = mono_ns();
    if (done.call)
        done.call(done.arg, a);
}

static void finish_with(struct store_async *c, struct op *op, int status, const char *text)
{
    char line[ERR_MSG_MAX];
    snprintf(line, sizeof(line), "store: %s: %s", op->what, text);
    finish(c, op, &(struct store_answer){.status = status, .text = line});
}

static void fail_all(struct store_async *c)
{
    struct op *op;
    while (!c->closing && (op = first(c)))
        finish_with(c, op, c->why.code, c->why.msg);
}

/* Nothing more comes of this connection. c->why is set. */
static void give_up(struct store_async *c)
{
    fsm_move(&c->fsm, BROKEN);
    disconnect(c);
    set_timer(c, NEVER);
    if (!c->opened) {
        c->opened = true;
        c->on_open(c->open_arg, &c->why);
    }
    fail_all(c);
}

/* --- Connecting --------------------------------------------------------------------------------*/

/* All addresses have failed; c->why says how the last one did. */
static void pause_before_next(struct store_async *c)
{
    fsm_move(&c->fsm, PAUSING);
    uint64_t again = mono_ns() + retry_pause_ns(&c->backoff_ms);
    set_timer(c, again < c->deadline ? again : c->deadline);
}

static void on_pause_over(struct store_async *c)
{
    if (c->why.code && mono_ns() >= c->deadline) {
        char why[ERR_MSG_MAX];
        memcpy(why, c->why.msg, sizeof(why));
        err_set(&c->why, -ETIMEDOUT, "store: no connection within %d ms: %s", c->timeout_ms, why);
        give_up(c);
    } else {
        resolve(c);
    }
}

static void attempt_failed(struct store_async *c, int code)
{
    char where[HOST_MAX + 16];
    disconnect(c);
    err_sys(&c->why, -code, "%s", endpoint_format(where, sizeof(where), c->host, c->port));
    if (code == -EPROTO)
        err_set(&c->why, code, "%s does not answer as a store", where);
    if (!retry_helps(code)) {
        err_wrap(&c->why, "store");
        give_up(c);
    } else if (++c->addr < c->addrs_n) {
        attempt(c);
    } else {
        pause_before_next(c);
    }
}

/* Begins to connect to the next address. */
static void attempt(struct store_async *c)
{
    const struct netaddr *a = &c->addrs[c->addr];
    fsm_move(&c->fsm, CONNECTING);
    _cleanup_fd_ int fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || (connect(fd, &a->sa, a->len) < 0 && errno != EINPROGRESS)) {
        attempt_failed(c, -errno);
        return;
    }
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    struct connection *conn = xmalloc(sizeof(*conn));
    conn->client = c;
    int rc = uv_poll_init(c->loop, &conn->poll, fd);
    if (rc < 0) {
        free(conn);
        attempt_failed(c, rc);
        return;
    }
    conn->fd = take_fd(&fd);
    conn->events = UV_WRITABLE;
    c->conn = conn;
    c->blocked = false;
    c->handles++;
    uint64_t due = deadline_in(RETRY_ATTEMPT_MS);
    set_timer(c, due < c->deadline ? due : c->deadline);
    uv_poll_start(&conn->poll, UV_WRITABLE, on_poll);
}

static void add_address(struct store_async *c, const struct sockaddr *sa)
{
    if (c->addrs_n == ADDRS_MAX || (sa->sa_family != AF_INET && sa->sa_family != AF_INET6))
        return;
    struct netaddr *a = &c->addrs[c->addrs_n++];
    netaddr_from_sockaddr(a, sa);
    netaddr_set_port(a, c->port);
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct store_async *c = container_of(req, struct store_async, resolve);
    for (struct addrinfo *i = list; i; i = i->ai_next)
        add_address(c, i->ai_addr);
    uv_freeaddrinfo(list);
    if (!c->closing && c->fsm.state == RESOLVING) {
        if (c->addrs_n) {
            attempt(c);
        } else {
            err_set(&c->why, -EHOSTUNREACH, "%s: %s", c->host,
                    status < 0 ? uv_strerror(status) : "no address");
            pause_before_next(c);
        }
    }
    release_when_closed(c);
}

static void resolve(struct store_async *c)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct netaddr a;
    c->addrs_n = c->addr = 0;
    if (netaddr_parse_ip(&a, c->host, c->port)) {
        add_address(c, &a.sa);
        attempt(c);
        return;
    }
    fsm_move(&c->fsm, RESOLVING);
    int rc = uv_getaddrinfo(c->loop, &c->resolve, on_resolved, c->host, NULL, &hints);
    if (rc < 0) {
        err_set(&c->why, rc, "store: %s: %s", c->host, uv_strerror(rc));
        give_up(c);
        return;
    }
    c->handles++;
    set_timer(c, NEVER); /* the resolver has limits of its own */
}

/* --- Sending -----------------------------------------------------------------------------------*/

static bool sendable(const struct store_async *c, const struct op *op)
{
    const struct op *head = first(c);
    return !op->refused && (op == head || (!head->alone && !op->alone));
}

static bool waiting(const struct op *op)
{
    enum store_cmd cmd = op->steps[op->step].cmd;
    return (cmd == STORE_WAIT || cmd == STORE_BARRIER) && !op->canceling;
}

/* When the first request has taken too long. */
static uint64_t head_due(const struct store_async *c)
{
    const struct op *head = first(c);
    if (!head)
        return NEVER;
    if (waiting(head))
        return head->wait_deadline;
    return c->timeout_ms < 0 ? NEVER : c->progress_ns + (uint64_t)c->timeout_ms * 1000000u;
}

static bool has_reply(const struct op *op)
{
    return *store_cmd_reply(op->steps[op->step].cmd);
}

/* Something can be sent or finished without anything coming in. */
static bool work_at_hand(const struct store_async *c)
{
    const struct op *head = first(c);
    bool to_send = c->unsent && sendable(c, c->unsent) && !c->blocked;
    return to_send || (head && (head->refused || (head != c->unsent && !has_reply(head))));
}

/* Sees to it that what can be done is done soon, from the loop: the requests of one turn are sent
 * together at the beginning of the next. */
static void settle(struct store_async *c)
{
    if (c->closing || c->fsm.state != READY)
        return;
    int events = UV_READABLE | (c->blocked ? UV_WRITABLE : 0);
    if (events != c->conn->events) {
        c->conn->events = events;
        uv_poll_start(&c->conn->poll, events, on_poll);
    }
    set_timer(c, work_at_hand(c) ? 0 : head_due(c));
}

static void enter_step(struct store_async *c, struct op *op, int step)
{
    op->step = step;
    op->written = 0;
    c->unsent = op;
    c->progress_ns = mono_ns();
}

static int send_ops(struct store_async *c)
{
    struct iovec iov[SEND_PIECES];
    struct msghdr m = {.msg_iov = iov};
    for (struct op *op = c->unsent; op && sendable(c, op) && m.msg_iovlen < SEND_PIECES;
         op = after(c, op)) {
        struct buf *wire = &op->steps[op->step].wire;
        iov[m.msg_iovlen++] = (struct iovec){wire->data + op->written, wire->len - op->written};
    }
    if (m.msg_iovlen == 0)
        return 0;
    ssize_t n = sendmsg(c->conn->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    c->blocked = n < 0 && errno == EAGAIN;
    if (n < 0)
        return c->blocked || errno == EINTR ? 0 : -errno;
    c->progress_ns = mono_ns();
    while (n > 0) {
        struct op *op = c->unsent;
        size_t left = op->steps[op->step].wire.len - op->written;
        size_t some = (size_t)n < left ? (size_t)n : left;
        op->written += some;
        n -= (ssize_t)some;
        if (some == left)
            c->unsent = after(c, op);
    }
    return 0;
}

/* --- Receiving ---------------------------------------------------------------------------------*/

/* > 0: something came. */
static int receive(struct store_async *c)
{
    if (!buf_reserve(&c->in, CHUNK_BYTES))
        return -ENOMEM;
    ssize_t n = recv(c->conn->fd, c->in.data + c->in.len, CHUNK_BYTES, MSG_DONTWAIT);
    if (n == 0)
        return -ECONNRESET;
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    c->in.len += (size_t)n;
    return 1;
}

/* A byte that answers WAIT, BARRIER or CANCEL_WAIT: 0 it has come, 1 it is cancelled. */
static int on_wait_answer(struct store_async *c, struct op *op, uint8_t byte)
{
    if (byte == STORE_STOP_WAITING && op->canceling && !op->came) {
        op->came = true; /* just then; the 1 still follows */
        return 0;
    }
    if (byte != (op->canceling ? STORE_CANCELED : STORE_STOP_WAITING))
        return -EPROTO;
    if (op->canceling && !op->came) {
        char text[64];
        snprintf(text, sizeof(text), "not there after %d ms", op->timeout_ms);
        finish_with(c, op, -ETIMEDOUT, text);
    } else if (op->steps_n == 2) {
        enter_step(c, op, 1);
    } else {
        finish(c, op, &(struct store_answer){.status = 0});
    }
    return 0;
}

static int on_check_answer(struct store_async *c, struct op *op, uint8_t byte)
{
    if (byte != STORE_READY && byte != STORE_NOT_READY)
        return -EPROTO;
    if (op->steps_n == 1)
        finish(c, op, &(struct store_answer){.number = byte == STORE_READY});
    else if (byte == STORE_READY)
        enter_step(c, op, 1);
    else
        finish_with(c, op, -ENOENT, "not there");
    return 0;
}

/* One complete answer to the first request. Its bytes are valid until the callback returns. */
static int on_answer(struct store_async *c, struct op *op, struct store_view answer)
{
    enum store_cmd cmd = op->steps[op->step].cmd;
    struct rd r = rd_init(answer.p, answer.len);
    struct store_answer a = {.status = 0};
    switch (*store_cmd_reply(cmd)) {
    case 'b':
        return cmd == STORE_CHECK ? on_check_answer(c, op, *answer.p)
                                  : on_wait_answer(c, op, *answer.p);
    case 'i':
        a.number = (int64_t)rd_u64(&r);
        break;
    case 'v':
        a.val = store_items_next(&answer);
        if (op->steps_n == 2 && op->steps[0].cmd == STORE_CHECK && a.val.len == 0) {
            finish_with(c, op, -ENOENT, "not there");
            return 0;
        }
        break;
    case 'q':
        if ((int64_t)rd_u64(&r) <= 0) { /* another client was faster */
            if (op->canceling)
                op->steps[0].wire.len--; /* the CANCEL_WAIT behind it */
            op->canceling = op->came = false;
            enter_step(c, op, 0);
            return 0;
        }
        answer = (struct store_view){r.p, (size_t)(r.end - r.p)};
        a.val = store_items_next(&answer);
        break;
    case 'V':
        a.count = op->count;
        a.items = answer;
        break;
    case 'S':
        a.count = rd_u64(&r);
        a.items = (struct store_view){r.p, (size_t)(r.end - r.p)};
        break;
    default:
        return -EPROTO;
    }
    finish(c, op, &a);
    return 0;
}

/* Finishes what can be finished. */
static int advance(struct store_async *c)
{
    struct op *op;
    while (!c->closing && (op = first(c))) {
        const struct step *step = &op->steps[op->step];
        if (op->refused) {
            finish_with(c, op, -EMSGSIZE, store_reason_text((enum store_reason)op->refused));
            continue;
        }
        if (op->written < step->wire.len)
            break;
        if (!has_reply(op)) {
            finish(c, op, &(struct store_answer){.status = 0});
            continue;
        }
        if (!c->scanning)
            store_scan_reply(&c->scan, step->cmd, op->count);
        c->scanning = true;
        const uint8_t *p = c->in.data + c->in_at;
        int rc = store_scan(&c->scan, p, c->in.len - c->in_at);
        if (rc < 0)
            return -EPROTO;
        if (rc == 0)
            break;
        c->scanning = false;
        c->in_at += c->scan.at;
        rc = on_answer(c, op, (struct store_view){p, c->scan.at});
        if (rc < 0)
            return rc;
    }
    if (!c->closing && !c->scanning && c->in_at < c->in.len)
        return -EPROTO; /* an answer that nobody asked for */
    if (c->in_at)
        buf_consume(&c->in, c->in_at);
    c->in_at = 0;
    if (c->in.len == 0 && c->in.cap > CHUNK_BYTES)
        buf_fini(&c->in);
    return 0;
}

/* --- Events ------------------------------------------------------------------------------------*/

static void on_connected(struct store_async *c)
{
    int status = 0;
    socklen_t n = sizeof(status);
    if (getsockopt(c->conn->fd, SOL_SOCKET, SO_ERROR, &status, &n) < 0)
        status = errno;
    if (status) {
        attempt_failed(c, -status);
        return;
    }
    fsm_move(&c->fsm, GREETING);
    c->greeting.len = c->greeting_sent = c->in.len = c->in_at = 0;
    store_encode(&c->greeting, STORE_NEWEST,
                 &(struct store_request){.cmd = STORE_VALIDATE, .word = STORE_MAGIC});
    store_encode(&c->greeting, STORE_NEWEST,
                 &(struct store_request){.cmd = STORE_PING, .word = (uint32_t)getpid()});
    set_timer(c, c->deadline);
}

static void on_greeting(struct store_async *c)
{
    size_t left = c->greeting.len - c->greeting_sent;
    int rc = 0;
    if (left) {
        ssize_t n = send(c->conn->fd, c->greeting.data + c->greeting_sent, left,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0)
            c->greeting_sent += (size_t)n;
        else if (errno != EAGAIN && errno != EINTR)
            rc = -errno;
    }
    if (rc == 0)
        rc = receive(c);
    if (rc >= 0 && c->in.len >= 4) {
        struct rd r = rd_init(c->in.data, c->in.len);
        bool echoed = rd_u32(&r) == (uint32_t)getpid() && rd_done(&r);
        rc = echoed ? 0 : -EPROTO;
    } else if (rc >= 0) {
        c->conn->events = c->greeting_sent < c->greeting.len ? UV_WRITABLE : UV_READABLE;
        uv_poll_start(&c->conn->poll, c->conn->events, on_poll);
        return;
    }
    if (rc < 0) {
        attempt_failed(c, rc);
        return;
    }
    c->in.len = 0;
    fsm_move(&c->fsm, READY);
    c->progress_ns = mono_ns();
    c->opened = true;
    c->on_open(c->open_arg, NULL);
    settle(c);
}

static void lost(struct store_async *c, int code)
{
    if (c->closing)
        return;
    if (code == -EPROTO)
        err_set(&c->why, code, "the server's answer makes no sense");
    else if (code == -ECONNRESET || code == -EPIPE)
        err_set(&c->why, -ECONNRESET, "the server closed the connection");
    else if (code == -ETIMEDOUT)
        err_set(&c->why, code, "no answer in time");
    else
        err_sys(&c->why, -code, "the connection is lost");
    give_up(c);
}

/* Sends what can be sent, and finishes what can be finished. `rc` is how receiving went. */
static void step(struct store_async *c, int rc)
{
    int sent = c->blocked || rc < 0 ? 0 : send_ops(c);
    int done = advance(c); /* also what came before the connection was lost */
    rc = rc < 0 ? rc : sent < 0 ? sent : done;
    if (rc < 0)
        lost(c, rc);
    else
        settle(c);
}

/* After an error libuv has stopped polling; what came before it is still received. */
static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct store_async *c = container_of(poll, struct connection, poll)->client;
    int rc = 0;
    if (c->fsm.state == CONNECTING) {
        on_connected(c);
        if (c->fsm.state == GREETING)
            on_greeting(c);
        return;
    }
    if (c->fsm.state == GREETING) {
        on_greeting(c);
        return;
    }
    if (events & UV_WRITABLE)
        c->blocked = false;
    if (events & UV_READABLE || status < 0)
        rc = receive(c);
    while (status < 0 && rc > 0)
        rc = receive(c);
    step(c, status < 0 ? -ECONNRESET : rc);
}

static void on_wait_timeout(struct store_async *c, struct op *op)
{
    struct buf *wire = &op->steps[op->step].wire;
    if (op->written < wire->len) { /* the server does not even take the request */
        lost(c, -ETIMEDOUT);
        return;
    }
    op->canceling = true;
    buf_u8(wire, (uint8_t)store_cmd_opcode(STORE_NEWEST, STORE_CANCEL_WAIT));
    c->unsent = op;
    c->progress_ns = mono_ns();
    settle(c);
}

static void on_timer(uv_timer_t *t)
{
    struct store_async *c = container_of(t, struct store_async, timer);
    if (mono_ns() < c->due) {
        set_timer(c, c->due);
        return;
    }
    struct op *head = first(c);
    switch (c->fsm.state) {
    case PAUSING:
        on_pause_over(c);
        break;
    case CONNECTING:
    case GREETING:
        attempt_failed(c, -ETIMEDOUT);
        break;
    case READY:
        if (work_at_hand(c))
            step(c, 0);
        else if (mono_ns() < head_due(c))
            settle(c);
        else if (waiting(head))
            on_wait_timeout(c, head);
        else
            lost(c, -ETIMEDOUT);
        break;
    case BROKEN:
        fail_all(c);
        break;
    }
}

/* --- Requests ----------------------------------------------------------------------------------*/

void store_async_request(struct store_async *c, const struct store_request *r,
                         const struct store_request *then, int timeout_ms, struct store_done done)
{
    struct op *op = xcalloc(1, sizeof(*op));
    op->done = done;
    op->timeout_ms = timeout_ms;
    op->wait_deadline = deadline_in(timeout_ms);
    op->count = then ? then->count : r->count;
    op->alone = then || r->cmd == STORE_WAIT || r->cmd == STORE_BARRIER;
    snprintf(op->what, sizeof(op->what), "%s%s%.40s%s", store_cmd_name(then ? then->cmd : r->cmd),
             r->key.p ? " " : "", r->key.p ? (const char *)r->key.p : "",
             r->key.len > 40 ? "..." : "");
    op->refused = store_request_check(r);
    op->steps_n = then ? 2 : 1;
    op->steps[0].cmd = r->cmd;
    if (!op->refused)
        store_encode(&op->steps[0].wire, STORE_NEWEST, r);
    if (then && !op->refused) {
        op->steps[1].cmd = then->cmd;
        store_encode(&op->steps[1].wire, STORE_NEWEST, then);
    }
    if (op->steps[0].wire.oom || op->steps[1].wire.oom)
        op->refused = STORE_ERR_MEMORY;
    if (list_alone(&c->ops))
        c->progress_ns = mono_ns();
    list_append(&c->ops, &op->link);
    if (!c->unsent)
        c->unsent = op;
    if (c->fsm.state == BROKEN)
        set_timer(c, 0);
    else
        settle(c);
}

/* --- Opening and closing -----------------------------------------------------------------------*/

int store_async_open(struct store_async **out, uv_loop_t *loop, const char *host, int port,
                     int timeout_ms, void (*on_open)(void *arg, const struct err *e), void *arg,
                     struct err *e)
{
    if (port < 1 || port > 65535)
        return err_set(e, -EINVAL, "store: %d is not a port", port);
    if (strlen(host) >= HOST_MAX)
        return err_set(e, -EINVAL, "store: the host name is too long");
    struct store_async *c = xmalloc(sizeof(*c));
    *c = (struct store_async){.fsm = {"store client", states, PAUSING},
                              .loop = loop,
                              .port = port,
                              .timeout_ms = timeout_ms,
                              .backoff_ms = RETRY_FIRST_MS,
                              .deadline = deadline_in(timeout_ms),
                              .on_open = on_open,
                              .open_arg = arg,
                              .handles = 1};
    strcpy(c->host, host);
    list_init(&c->ops);
    uv_timer_init(loop, &c->timer);
    set_timer(c, 0);
    *out = c;
    return 0;
}

static void on_timer_closed(uv_handle_t *h)
{
    release_when_closed(container_of((uv_timer_t *)h, struct store_async, timer));
}

void store_async_close(struct store_async *c, void (*on_closed)(void *arg), void *arg)
{
    c->closing = true;
    c->on_closed = on_closed;
    c->closed_arg = arg;
    disconnect(c);
    if (c->fsm.state == RESOLVING)
        uv_cancel((uv_req_t *)&c->resolve);
    uv_close((uv_handle_t *)&c->timer, on_timer_closed);
}
