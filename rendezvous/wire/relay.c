#include "rendezvous/wire/relay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/map.h"
#include "core/mem.h"
#include "rendezvous/wire/connector.h"
#include "rendezvous/wire/endpoint.h"
#include "rendezvous/rules/rank_table.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "core/list.h"

#define CONNECT_MS 5000
#define DEAD_MS    15000 /* for link_tune() */
#define GIVE_BACK  (RELAY_WINDOW / 4)
#define READ_MOST  32768
#define FRAME_MOST (READ_MOST + 16)

/* A link and its streams. */
struct trunk {
    struct relay *relay;
    struct trunk *next;
    struct link *link;        /* NULL: being connected; the streams wait */
    struct map streams;       /* id -> struct stream */
    struct list_node waiting; /* streams that wait for the link, or for room in it */
    size_t most;              /* streams */
    uint32_t next_id;
    bool caller; /* this side has connected, and opens the streams */
};

/* One connection: fd is the worker's, or one end of a socketpair; the store has the other end. */
struct stream {
    uv_poll_t poll;
    struct trunk *trunk; /* NULL: closed */
    struct relay *relay;
    struct list_node waiting; /* in the trunk's list */
    uint32_t id;
    int fd;
    struct buf out;  /* received over the link, not yet written to fd; at most RELAY_WINDOW */
    uint32_t credit; /* bytes that may be sent over the link */
    uint32_t owed;   /* bytes written to fd, whose credit is not yet returned */
    bool opened;     /* the other side was told to open it */
    bool read_all;   /* fd is at its end, and the other side was told */
    bool got_fin;    /* the other side's fd is at its end: shut fd down when all is written */
    bool got_end;    /* the other side has closed: close fd when all is written */
};

struct relay {
    uv_loop_t *loop;
    struct relay_config config;
    struct endpoint *endpoint;
    struct trunk *trunks, *up; /* up: to the coordinator; NULL: none */
    struct connector *connector;
    unsigned open; /* handles not yet closed */
    bool said_full, said_none, closing;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

static void update(struct stream *s);

/* ------------------------------------------------------------------------------------- messages */

static void send_message(struct stream *s, enum rdzv_msg type, const void *p, size_t n)
{
    struct buf b = BUF_INIT;
    rdzv_put_stream(&b, type, s->id, p, n);
    link_send_buf(s->trunk->link, &b);
}

static void send_credit(struct stream *s)
{
    struct buf n = BUF_INIT;
    buf_u32(&n, s->owed);
    send_message(s, RDZV_MSG_RELAY_CREDIT, n.data, n.len);
    buf_fini(&n);
    s->owed = 0;
}

/* -------------------------------------------------------------------------------------- closing */

static void one_closed(struct relay *r)
{
    if (--r->open > 0 || !r->closing)
        return;
    void (*on_closed)(void *arg) = r->on_closed;
    void *arg = r->on_closed_arg;
    free(r);
    on_closed(arg);
}

static void on_stream_closed(uv_handle_t *handle)
{
    struct stream *s = handle->data;
    struct relay *r = s->relay;
    buf_fini(&s->out);
    free(s);
    one_closed(r);
}

/* Closes a stream that is not in the map of its trunk, or not any more. */
static void relay_release(struct stream *s)
{
    list_remove(&s->waiting);
    s->trunk = NULL;
    uv_close((uv_handle_t *)&s->poll, on_stream_closed);
    close_fd(&s->fd);
}

/* Closes a stream without a message to the other side. */
static void close_stream(struct stream *s)
{
    map_remove(&s->trunk->streams, &s->id, sizeof(s->id));
    relay_release(s);
}

static void end_stream(struct stream *s)
{
    if (s->opened)
        send_message(s, RDZV_MSG_RELAY_END, NULL, 0);
    close_stream(s);
}

/* The caller closes the link. */
static void close_trunk(struct trunk *t)
{
    struct relay *r = t->relay;
    struct map_entry *e;
    for (size_t i = 0; (e = map_next(&t->streams, &i));)
        relay_release(e->value);
    for (struct trunk **p = &r->trunks; *p; p = &(*p)->next) {
        if (*p == t) {
            *p = t->next;
            break;
        }
    }
    if (r->up == t)
        r->up = NULL;
    map_fini(&t->streams, NULL);
    free(t);
}

/* ----------------------------------------------------------------------------- a stream's bytes */

static void write_out(struct stream *s)
{
    while (s->out.len) {
        ssize_t n = send(s->fd, s->out.data, s->out.len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0) { /* credit is returned, or the other side would never reach its end */
            s->owed += (uint32_t)s->out.len;
            buf_fini(&s->out);
            break;
        }
        buf_consume(&s->out, (size_t)n);
        s->owed += (uint32_t)n;
    }
    if (s->owed >= GIVE_BACK)
        send_credit(s);
    if (s->out.len == 0 && s->got_fin && !s->got_end)
        shutdown(s->fd, SHUT_WR);
}

/* Reads one piece, so that other streams have their turn. */
static void read_in(struct stream *s)
{
    uint8_t piece[READ_MOST];
    ssize_t n;
    do
        n = recv(s->fd, piece, s->credit < sizeof(piece) ? s->credit : sizeof(piece), 0);
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        s->credit -= (uint32_t)n;
        send_message(s, RDZV_MSG_RELAY_DATA, piece, (size_t)n);
    } else if (n == 0 && s->trunk->caller && !s->got_fin) {
        s->read_all = true; /* the worker may still read */
        send_message(s, RDZV_MSG_RELAY_FIN, NULL, 0);
    } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
        end_stream(s); /* the store never closes half */
    }
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
    struct stream *s = poll->data;
    if (status < 0) {
        end_stream(s);
        return;
    }
    if (events & UV_WRITABLE)
        write_out(s);
    if ((events & UV_READABLE) && s->credit && link_is_full(s->trunk->link))
        list_append(&s->trunk->waiting, &s->waiting);
    else if ((events & UV_READABLE) && s->credit)
        read_in(s);
    if (s->trunk)
        update(s);
}

/* Updates the events that the stream waits for, or ends the stream. */
static void update(struct stream *s)
{
    bool may_read = s->opened && s->credit && !s->read_all && list_alone(&s->waiting);
    int events = (s->out.len ? UV_WRITABLE : 0) | (may_read ? UV_READABLE : 0);
    if (s->got_end && !s->out.len)
        close_stream(s);
    else if (!events)
        uv_poll_stop(&s->poll);
    else if (uv_poll_start(&s->poll, events, on_ready) < 0)
        end_stream(s);
}

/* Takes fd. NULL: there are too many streams. */
static struct stream *new_stream(struct trunk *t, uint32_t id, int fd)
{
    struct stream *s = xcalloc(1, sizeof(*s));
    void **place = t->streams.n < t->most ? map_put(&t->streams, &id, sizeof(id)) : NULL;
    if (!place || uv_poll_init(t->relay->loop, &s->poll, fd) < 0) {
        if (place)
            map_remove(&t->streams, &id, sizeof(id));
        close(fd);
        free(s);
        return NULL;
    }
    *place = s;
    t->relay->open++;
    s->poll.data = s;
    list_init(&s->waiting);
    s->trunk = t;
    s->relay = t->relay;
    s->id = id;
    s->fd = fd;
    s->credit = RELAY_WINDOW;
    return s;
}

/* ------------------------------------------------------------------------------- a trunk's link */

/* Makes a connection to the store for a new connection of the other side. */
static bool open_for_other(struct trunk *t, uint32_t id)
{
    struct relay *r = t->relay;
    int pair[2];
    if (t->caller || map_get(&t->streams, &id, sizeof(id)))
        return false;
    struct stream none = {.trunk = t, .id = id};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        if (!r->said_none)
            log_warn("workers of other nodes cannot reach the store: %s (ulimit -n)",
                     strerror(errno));
        r->said_none = true;
        send_message(&none, RDZV_MSG_RELAY_END, NULL, 0);
        return true;
    }
    struct stream *s = new_stream(t, id, pair[1]);
    if (!s || !r->config.serve(r->config.arg, pair[0])) {
        close(pair[0]);
        send_message(&none, RDZV_MSG_RELAY_END, NULL, 0);
        if (s)
            close_stream(s);
        return true;
    }
    s->opened = true;
    update(s);
    return true;
}

/* False: a protocol error. An unknown stream is one that this side has closed. */
static bool take_message(struct trunk *t, uint8_t type, struct rd body)
{
    uint32_t id = rd_u32(&body), more;
    struct stream *s = map_get(&t->streams, &id, sizeof(id));
    size_t n = (size_t)(body.end - body.p);
    if (body.bad)
        return false;
    switch (type) {
    case RDZV_MSG_RELAY_OPEN:
        return open_for_other(t, id);
    case RDZV_MSG_RELAY_DATA:
        if (!s)
            return true;
        if (n > RELAY_WINDOW - s->out.len || s->got_fin)
            return false;
        buf_put(&s->out, body.p, n);
        if (s->out.oom)
            return false;
        write_out(s);
        break;
    case RDZV_MSG_RELAY_CREDIT:
        more = rd_u32(&body);
        if (!s)
            return true;
        if (!rd_done(&body) || more > RELAY_WINDOW - s->credit)
            return false;
        s->credit += more;
        break;
    case RDZV_MSG_RELAY_FIN:
        if (!s)
            return true;
        s->got_fin = true;
        write_out(s);
        break;
    case RDZV_MSG_RELAY_END:
        if (!s)
            return true;
        s->got_end = true;
        break;
    default:
        return false;
    }
    update(s);
    return true;
}

static bool relay_on_preamble(struct link *l, uint32_t version)
{
    struct trunk *t = link_owner(l);
    if (version == RDZV_PROTOCOL)
        return true;
    link_close(l);
    close_trunk(t);
    return false;
}

static void relay_on_frame(struct link *l, uint8_t type, struct rd body)
{
    struct trunk *t = link_owner(l);
    if (take_message(t, type, body))
        return;
    log_verbose("store: a link of the relay is closed: malformed message");
    link_close(l);
    close_trunk(t);
}

static void relay_on_end(struct link *l, enum rdzv_end how, const char *why)
{
    struct trunk *t = link_owner(l);
    (void)how;
    log_verbose("store: a link of the relay ended: %s", why);
    link_close(l);
    close_trunk(t);
}

/* Removes and returns the stream that has waited longest; NULL: none waits. */
static struct stream *next_waiting(struct trunk *t)
{
    struct list_node *first = t->waiting.next;
    if (list_alone(&t->waiting))
        return NULL;
    list_remove(first);
    return container_of(first, struct stream, waiting);
}

static void on_room(struct link *l)
{
    struct trunk *t = link_owner(l);
    for (struct stream *s; (s = next_waiting(t));)
        update(s);
}

static const struct link_events trunk_events = {relay_on_preamble, relay_on_frame, relay_on_end};

static struct trunk *new_trunk(struct relay *r, bool caller)
{
    struct trunk *t = xcalloc(1, sizeof(*t));
    t->relay = r;
    t->caller = caller;
    t->most = RELAY_STREAMS_MAX(caller ? r->config.nproc : NPROC_MAX); /* which node calls? */
    map_init(&t->streams);
    list_init(&t->waiting);
    t->next = r->trunks;
    r->trunks = t;
    return t;
}

void relay_adopt(struct relay *r, struct link *l)
{
    struct trunk *t = new_trunk(r, false);
    t->link = l;
    link_set_frame_max(l, FRAME_MOST);
    link_set_on_room(l, on_room);
    link_set_owner(l, &trunk_events, t);
}

static void open_stream(struct stream *s)
{
    s->opened = true;
    send_message(s, RDZV_MSG_RELAY_OPEN, NULL, 0);
    update(s);
}

static void relay_on_connected(void *arg, int fd, const struct netaddr *peer, bool refused,
                               const char *why)
{
    struct relay *r = arg;
    struct trunk *t = r->up;
    struct buf first = BUF_INIT;
    struct err e = ERR_INIT;
    (void)refused;
    r->connector = NULL;
    if (fd >= 0)
        link_tune(fd, DEAD_MS);
    if (fd >= 0 && auth_wants_tls(r->config.auth, peer) && auth_ready(r->config.auth, &e) < 0)
        close_fd(&fd);
    if (fd >= 0)
        t->link = link_new(r->config.hub, fd, false, &trunk_events, t);
    if (!t->link) {
        log_verbose("store: no link to the coordinator for the workers: %s",
                    e.msg[0] ? e.msg : why);
        close_trunk(t);
        return;
    }
    link_auth(t->link, r->config.auth);
    link_set_frame_max(t->link, FRAME_MOST);
    link_set_on_room(t->link, on_room);
    rdzv_put_relay(&first, r->config.run_id);
    link_send_buf(t->link, &first);
    for (struct stream *s; (s = next_waiting(t));)
        open_stream(s);
}

/* ------------------------------------------------------------------------------------- endpoint */

static void on_store(void *arg, int fd, const struct netaddr *peer)
{
    struct relay *r = arg;
    struct netaddr to;
    enum auth_whose whose = auth_whose(fd, peer);
    if (whose != AUTH_OWN) {
        close(fd);
        if (whose == AUTH_GONE)
            log_verbose(ENDPOINT_STORE_GONE);
        else
            endpoint_complain(r->endpoint, peer,
                              "a client of the workers' store that is another user's");
        return;
    }
    if (r->config.serve(r->config.arg, fd))
        return;
    if (!r->up && !r->config.where(r->config.arg, &to)) {
        close(fd);
        return;
    }
    if (!r->up) {
        r->up = new_trunk(r, true);
        r->connector = connector_new(r->loop, &to, 1, CONNECT_MS, relay_on_connected, r);
    }
    struct stream *s = new_stream(r->up, r->up->next_id++, fd);
    if (s && r->up->link)
        open_stream(s);
    else if (s)
        list_append(&r->up->waiting, &s->waiting);
    if (!s && !r->said_full)
        log_warn("this node's workers have %zu connections to the store, which is the most for %d "
                 "workers: others are closed",
                 r->up->streams.n, r->config.nproc);
    r->said_full |= !s;
}

static void on_agent(void *arg, int fd, const struct netaddr *peer, bool tls)
{
    struct relay *r = arg;
    (void)tls;
    close(fd);
    endpoint_complain(r->endpoint, peer, "a launcher that calls where only workers are served");
}

int relay_open(struct relay **out, uv_loop_t *loop, const struct relay_config *config,
               struct err *e)
{
    struct relay *r = xcalloc(1, sizeof(*r));
    const struct endpoint_events events = {r, on_agent, on_store, on_store};
    struct endpoint_bind b = {0};
    r->loop = loop;
    r->config = *config;
    netaddr_parse_ip(&b.addr, "127.0.0.1", 0);
    int fd = endpoint_listen(&b, e);
    int rc = fd < 0 ? fd : endpoint_open(&r->endpoint, loop, fd, 1, &events, e);
    if (rc < 0) {
        free(r);
        return err_wrap(e, "the endpoint of the workers' store");
    }
    r->open = 1; /* the endpoint */
    *out = r;
    return 0;
}

int relay_port(const struct relay *r)
{
    return endpoint_port(r->endpoint);
}

static void on_endpoint_closed(void *arg)
{
    one_closed(arg);
}

void relay_close(struct relay *r, void (*on_closed)(void *arg), void *arg)
{
    r->closing = true;
    r->on_closed = on_closed;
    r->on_closed_arg = arg;
    if (r->connector)
        connector_cancel(r->connector);
    while (r->trunks) {
        if (r->trunks->link)
            link_close(r->trunks->link);
        close_trunk(r->trunks);
    }
    endpoint_close(r->endpoint, on_endpoint_closed, r);
}
