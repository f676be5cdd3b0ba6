/* The happy path: beats_open -> run() -> beats_add -> send_beat -> take_beat (answers) ->
 * take_answer -> on_turn -> beats_look ... beats_drop.
 *
 *   the connection ends, or brings what cannot be   broken: the loop drops it, and makes a new one
 *   the other side takes nothing                    the message that waits goes first; no other
 *   the loop does not turn                          said to the others; after BEAT_STUCK_MS silence
 */
#include "rendezvous/wire/beat.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"
#include "core/tls.h"
#include "core/uvx.h"
#include "rendezvous/rules/rdzv_msg.h"

#define EVENTS      64
#define WAKE        UINT32_MAX
#define SEALED_MAX  128 /* a message under TLS takes 46 bytes */
#define READ_MAX    4096
#define TURN_MIN_NS 50000000u
#define TURN_MAX_NS 2500000000u
#define NO_LINK     (-1)

/* A message is two clocks, the sender's lag, and: */
#define MSG_LEN   24
#define MSG_LEASE 1u

enum link_state { FREE, LIVE, CLOSING, BROKEN, DEAD };

/* Owned by the thread, but for the atomics, while LIVE, and while CLOSING until the thread sets
 * DEAD; else by the loop. */
struct beat_link {
    _Atomic int state;
    int next_free;
    enum beat_side side;
    int fd;
    struct tls *tls;
    uint64_t dead_ns;
    uint64_t seen_ns; /* BEAT_NODE: the coordinator's clock in its newest answer */
    uint8_t in[MSG_LEN], out[SEALED_MAX];
    size_t in_len, out_len; /* out: bytes that the kernel has not taken yet */
    _Atomic uint64_t heard_ns, touch_ns, lease_ns;
    _Atomic uint32_t lag_ms;
};

struct beats {
    struct beats_config config;
    uint64_t every_ns;
    pthread_t thread;
    int epoll, wake;
    struct beat_link *links;
    int nlinks, used, first_free; /* the loop's */
    int ndying;
    struct uvx_scope scope;
    uv_async_t turn;
    _Atomic bool stop, own, resting;
    _Atomic uint64_t grant_ns, own_lease_ns;
    _Atomic uint64_t asked, turned; /* turns of the loop, asked for and made */
    void (*on_closed)(void *arg);
    void *on_closed_arg;

    /* The thread's. */
    uint64_t next_ns, asked_ns; /* asked_ns: when the oldest turn was asked for that is not made */
    uint32_t lag_ms;
    bool stuck;
    struct buf plain, wire;
    uint8_t chunk[READ_MAX];
};

/* -------------------------------------------------------------------------------- on the thread */

static void put_message(uint8_t p[MSG_LEN], uint64_t a, uint64_t b, uint32_t lag_ms, uint32_t flags)
{
    for (int i = 0; i < 8; i++) {
        p[i] = (uint8_t)(a >> 8 * i);
        p[8 + i] = (uint8_t)(b >> 8 * i);
    }
    for (int i = 0; i < 4; i++) {
        p[16 + i] = (uint8_t)(lag_ms >> 8 * i);
        p[20 + i] = (uint8_t)(flags >> 8 * i);
    }
}

/* Returns a link to the loop, in this state. */
static void let_go(struct beats *b, struct beat_link *l, int state)
{
    epoll_ctl(b->epoll, EPOLL_CTL_DEL, l->fd, NULL);
    atomic_store(&l->state, state);
}

static void broken(struct beats *b, struct beat_link *l)
{
    int live = LIVE;
    epoll_ctl(b->epoll, EPOLL_CTL_DEL, l->fd, NULL);
    atomic_compare_exchange_strong(&l->state, &live, BROKEN); /* else the link is being dropped */
}

/* Sends the bytes that wait, as far as the kernel takes them. False: the connection is broken. */
static bool beat_flush(struct beat_link *l)
{
    while (l->out_len) {
        ssize_t n = send(l->fd, l->out, l->out_len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        l->out_len -= (size_t)n;
        memmove(l->out, l->out + n, l->out_len);
    }
    return true;
}

/* The newest message, unless an older one still waits. */
static bool send_message(struct beats *b, struct beat_link *l, const uint8_t msg[MSG_LEN])
{
    if (!beat_flush(l))
        return false;
    if (l->out_len)
        return true;
    if (!l->tls) {
        memcpy(l->out, msg, MSG_LEN);
        l->out_len = MSG_LEN;
        return beat_flush(l);
    }
    b->wire.len = 0;
    if (tls_encrypt(l->tls, msg, MSG_LEN, &b->wire, NULL) < 0 || b->wire.len > sizeof(l->out))
        return false;
    memcpy(l->out, b->wire.data, b->wire.len);
    l->out_len = b->wire.len;
    return beat_flush(l);
}

static void send_beat(struct beats *b, struct beat_link *l)
{
    uint8_t msg[MSG_LEN];
    put_message(msg, lease_clock_ns(), l->seen_ns, b->lag_ms, 0);
    if (!send_message(b, l, msg))
        broken(b, l);
}

static void extend(struct beats *b, uint64_t from_ns, uint64_t dead_ns)
{
    if (b->config.on_lease)
        b->config.on_lease(b->config.lease_arg, from_ns + rdzv_guardian_lease_ns(dead_ns));
}

/* The coordinator hears a node. */
static bool take_beat(struct beats *b, struct beat_link *l, uint64_t sent_ns, uint64_t seen_ns)
{
    uint8_t msg[MSG_LEN];
    uint64_t now = lease_clock_ns(), before = atomic_load(&l->heard_ns);
    if (b->stuck)
        return true;
    if (seen_ns <= now && seen_ns > atomic_load(&l->touch_ns))
        atomic_store(&l->touch_ns, seen_ns);
    atomic_store(&l->heard_ns, now);
    now = lease_clock_ns();
    if (atomic_load(&l->state) != LIVE)
        return true;
    bool lease = now < before + l->dead_ns && now < atomic_load(&b->grant_ns);
    put_message(msg, sent_ns, now, b->lag_ms, lease ? MSG_LEASE : 0);
    return send_message(b, l, msg);
}

/* A node hears the coordinator. */
static bool take_answer(struct beats *b, struct beat_link *l, uint64_t echo_ns, uint64_t sent_ns,
                        uint32_t flags)
{
    uint64_t now = lease_clock_ns();
    if (echo_ns > now)
        return false;
    l->seen_ns = sent_ns;
    atomic_store(&l->heard_ns, now);
    if ((flags & MSG_LEASE) && !b->stuck && echo_ns > atomic_load(&l->lease_ns)) {
        atomic_store(&l->lease_ns, echo_ns);
        extend(b, echo_ns, l->dead_ns);
    }
    return true;
}

static bool take_message(struct beats *b, struct beat_link *l)
{
    struct rd r = rd_init(l->in, MSG_LEN);
    uint64_t first = rd_u64(&r), second = rd_u64(&r);
    uint32_t lag_ms = rd_u32(&r), flags = rd_u32(&r);
    atomic_store(&l->lag_ms, lag_ms);
    return l->side == BEAT_COORDINATOR ? take_beat(b, l, first, second)
                                       : take_answer(b, l, first, second, flags);
}

static bool take_bytes(struct beats *b, struct beat_link *l, const uint8_t *p, size_t n)
{
    while (n > 0) {
        size_t part = MSG_LEN - l->in_len < n ? MSG_LEN - l->in_len : n;
        memcpy(l->in + l->in_len, p, part);
        l->in_len += part;
        p += part;
        n -= part;
        if (l->in_len == MSG_LEN) {
            l->in_len = 0;
            if (!take_message(b, l))
                return false;
        }
    }
    return true;
}

/* False: the connection is broken. */
static bool read_link(struct beats *b, struct beat_link *l)
{
    ssize_t n = recv(l->fd, b->chunk, sizeof(b->chunk), MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (n == 0)
        return false;
    if (!l->tls)
        return take_bytes(b, l, b->chunk, (size_t)n);
    b->plain.len = b->wire.len = 0;
    return tls_feed(l->tls, b->chunk, (size_t)n, &b->plain, &b->wire, NULL) == 0 &&
           b->wire.len == 0 && take_bytes(b, l, b->plain.data, b->plain.len);
}

/* Takes over the settings that the loop has changed. */
static void look_at_orders(struct beats *b)
{
    uint64_t count;
    while (read(b->wake, &count, sizeof(count)) < 0 && errno == EINTR)
        ;
    for (int i = 0; i < b->nlinks; i++) {
        int state = atomic_load(&b->links[i].state);
        if (state == CLOSING)
            let_go(b, &b->links[i], DEAD);
        else if (state == LIVE && b->links[i].side == BEAT_NODE)
            b->next_ns = 0; /* a new one: the first heartbeat at once */
    }
}

/* Whether the loop still turns. Asks it to, again and again. */
static void watch_loop(struct beats *b, uint64_t now)
{
    uint64_t asked = atomic_load(&b->asked);
    if (atomic_load(&b->turned) == asked || atomic_load(&b->resting)) {
        b->asked_ns = now;
        atomic_store(&b->asked, asked + 1);
    }
    uv_async_send(&b->turn);
    b->lag_ms = (uint32_t)((now - b->asked_ns) / 1000000);
    bool stuck = b->lag_ms >= BEAT_STUCK_MS;
    if (stuck == b->stuck)
        return;
    b->stuck = stuck;
    if (stuck)
        log_error("this launcher has been stuck for %u s: it is unhealthy and sends no heartbeats "
                  "any more, so that the other nodes go on without it",
                  b->lag_ms / 1000);
    else
        log_warn("this launcher is no longer stuck");
}

static void beat(struct beats *b, uint64_t now)
{
    watch_loop(b, now);
    if (b->stuck)
        return;
    for (int i = 0; i < b->nlinks; i++) {
        struct beat_link *l = &b->links[i];
        if (atomic_load(&l->state) == LIVE && l->side == BEAT_NODE)
            send_beat(b, l);
    }
    now = lease_clock_ns();
    if (atomic_load(&b->own) && now < atomic_load(&b->grant_ns)) {
        atomic_store(&b->own_lease_ns, now);
        extend(b, now, b->config.dead_ns);
    }
}

static void *beats_run(void *arg)
{
    struct beats *b = arg;
    struct epoll_event ev[EVENTS];
    prctl(PR_SET_NAME, "dlaunch-beat");
    b->asked_ns = lease_clock_ns();
    while (!atomic_load(&b->stop)) {
        uint64_t now = lease_clock_ns();
        if (now >= b->next_ns) {
            beat(b, now);
            b->next_ns = now + b->every_ns;
        }
        int ms = b->next_ns > now ? (int)((b->next_ns - now + 999999) / 1000000) : 0;
        int n = epoll_wait(b->epoll, ev, EVENTS, ms);
        for (int i = 0; i < n; i++) {
            struct beat_link *l = ev[i].data.u32 == WAKE ? NULL : &b->links[ev[i].data.u32];
            if (!l)
                look_at_orders(b);
            else if (atomic_load(&l->state) == LIVE && !read_link(b, l))
                broken(b, l);
        }
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------- on the loop */

static void wake(struct beats *b)
{
    uint64_t one = 1;
    while (write(b->wake, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static void free_link(struct beats *b, struct beat_link *l)
{
    close_fd(&l->fd);
    tls_free(l->tls);
    l->tls = NULL;
    atomic_store(&l->state, FREE);
    l->next_free = b->first_free;
    b->first_free = (int)(l - b->links);
}

static void bury(struct beats *b)
{
    for (int i = 0; i < b->used && b->ndying; i++) {
        if (atomic_load(&b->links[i].state) == DEAD) {
            free_link(b, &b->links[i]);
            b->ndying--;
        }
    }
}

static void on_turn(uv_async_t *turn)
{
    struct beats *b = container_of(turn, struct beats, turn);
    atomic_store(&b->turned, atomic_load(&b->asked));
    bury(b);
    b->config.on_turn(b->config.arg);
}

int beats_add(struct beats *b, enum beat_side side, int fd, struct tls *tls, uint64_t dead_ns)
{
    int i = b->first_free;
    if (i != NO_LINK)
        b->first_free = b->links[i].next_free;
    else if (b->used < b->nlinks)
        i = b->used++;
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
    if (i == NO_LINK) {
        close(fd);
        tls_free(tls);
        return -1;
    }
    struct beat_link *l = &b->links[i];
    l->side = side;
    l->fd = fd;
    l->tls = tls;
    l->dead_ns = dead_ns;
    l->seen_ns = 0;
    l->in_len = l->out_len = 0;
    if (tls)
        tls_keep_buffers(tls);
    atomic_store(&l->heard_ns, lease_clock_ns());
    atomic_store(&l->touch_ns, 0);
    atomic_store(&l->lease_ns, 0);
    atomic_store(&l->lag_ms, 0);
    atomic_store(&l->state, LIVE);
    if (epoll_ctl(b->epoll, EPOLL_CTL_ADD, fd, &ev) < 0) {
        beats_drop(b, i, &(struct beat_news){0});
        return -1;
    }
    wake(b);
    return i;
}

void beats_look(struct beats *b, int link, struct beat_news *out)
{
    struct beat_link *l = &b->links[link];
    *out = (struct beat_news){.broken = atomic_load(&l->state) != LIVE,
                              .heard_ns = atomic_load(&l->heard_ns),
                              .touch_ns = atomic_load(&l->touch_ns),
                              .lease_ns = atomic_load(&l->lease_ns),
                              .lag_ms = atomic_load(&l->lag_ms)};
}

void beats_drop(struct beats *b, int link, struct beat_news *out)
{
    struct beat_link *l = &b->links[link];
    int live = LIVE;
    bool dying = atomic_compare_exchange_strong(&l->state, &live, CLOSING);
    beats_look(b, link, out); /* after the state: the thread may have answered the last heartbeats
                                 that it recorded */
    if (!dying) {
        free_link(b, l);
        return;
    }
    b->ndying++;
    wake(b);
}

void beats_grant(struct beats *b, uint64_t until_ns)
{
    atomic_store(&b->grant_ns, until_ns);
}

void beats_own(struct beats *b, bool own)
{
    atomic_store(&b->own, own);
}

uint64_t beats_own_lease(const struct beats *b)
{
    return atomic_load(&b->own_lease_ns);
}

void beats_rest(struct beats *b)
{
    atomic_store(&b->resting, true);
}

/* ------------------------------------------------------------------------------- open and close */

static void beat_release(struct beats *b)
{
    for (int i = 0; i < b->used; i++) {
        if (atomic_load(&b->links[i].state) != FREE)
            free_link(b, &b->links[i]);
    }
    close_fd(&b->epoll);
    close_fd(&b->wake);
    buf_fini(&b->plain);
    buf_fini(&b->wire);
    free(b->links);
    free(b);
}

static int beat_start(struct beats *b, struct err *e)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = WAKE};
    b->epoll = epoll_create1(EPOLL_CLOEXEC);
    b->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->epoll < 0 || b->wake < 0 || epoll_ctl(b->epoll, EPOLL_CTL_ADD, b->wake, &ev) < 0)
        return err_sys(e, errno, "heartbeats");
    /* The most memory that TLS asks for at once. */
    if (!buf_reserve(&b->plain, 4 * 16384) || !buf_reserve(&b->wire, 16384))
        return err_set(e, -ENOMEM, "heartbeats: out of memory");
    int rc = uv_async_init(b->config.loop, &b->turn, on_turn);
    if (rc < 0)
        return uvx_err(e, rc, "heartbeats");
    uvx_scope_init(&b->scope, b->config.loop);
    uvx_own(&b->scope, &b->turn);
    rc = thread_start(&b->thread, 0, beats_run, b);
    return rc ? err_sys(e, rc, "start the thread of the heartbeats") : 0;
}

static void nothing(void *arg)
{
    beat_release(arg);
}

int beats_open(struct beats **out, const struct beats_config *config, struct err *e)
{
    struct beats *b = xcalloc(1, sizeof(*b));
    b->config = *config;
    b->every_ns = config->heartbeat_ns / 2;
    b->every_ns = b->every_ns < TURN_MIN_NS   ? TURN_MIN_NS
                  : b->every_ns > TURN_MAX_NS ? TURN_MAX_NS
                                              : b->every_ns;
    b->epoll = b->wake = -1;
    b->first_free = NO_LINK;
    b->nlinks = config->links;
    b->links = xcalloc((size_t)b->nlinks, sizeof(*b->links));
    b->plain = b->wire = (struct buf)BUF_INIT;
    int rc = beat_start(b, e);
    if (rc == 0)
        *out = b;
    else if (b->scope.loop)
        uvx_scope_close(&b->scope, nothing, b);
    else
        beat_release(b);
    return rc;
}

static void beat_on_closed(void *arg)
{
    struct beats *b = arg;
    void (*done)(void *) = b->on_closed;
    void *done_arg = b->on_closed_arg;
    beat_release(b);
    done(done_arg);
}

void beats_close(struct beats *b, void (*done)(void *arg), void *arg)
{
    atomic_store(&b->stop, true);
    wake(b);
    pthread_join(b->thread, NULL);
    b->on_closed = done;
    b->on_closed_arg = arg;
    uvx_scope_close(&b->scope, beat_on_closed, b);
}
