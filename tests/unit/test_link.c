/* Links between two ends of a socket pair, and connections to one of several addresses. */
#include "tests/lib/preamble.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "rendezvous/wire/pending.h"
#include "rendezvous/wire/connector.h"
#include "rendezvous/wire/endpoint.h"
#include "rendezvous/wire/link.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/wire/standby.h"
#include "tests/lib/loop.h"

static uv_loop_t loop;
static struct link_hub hub;
static struct link *L;
static bool closed, ended;
static enum rdzv_end ended_how;
static int frames, last_type;
static size_t last_len;
static uint8_t last_first;
static uint32_t version;
static char why_ended[128];
static bool close_in_frame;

static void on_closed(void *arg)
{
    (void)arg;
    closed = true;
}

static bool on_preamble(struct link *l, uint32_t v)
{
    (void)l;
    version = v;
    return true;
}

static void on_frame(struct link *l, uint8_t type, struct rd body)
{
    frames++;
    last_type = type;
    last_len = (size_t)(body.end - body.p);
    last_first = last_len ? body.p[0] : 0;
    if (close_in_frame) {
        link_close(l);
        L = NULL;
    }
}

static void on_end(struct link *l, enum rdzv_end how, const char *why)
{
    ended = true;
    ended_how = how;
    strncpy(why_ended, why, sizeof(why_ended) - 1);
    link_close(l);
    L = NULL;
}

static const struct link_events events = {on_preamble, on_frame, on_end};
static int peer = -1; /* the other end, in the test's hands */

static void setup(void)
{
    signal(SIGPIPE, SIG_IGN);
    loop_setup(&loop);
    link_hub_init(&hub, &loop, NULL, NULL);
}

static void open_link(void)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    peer = pair[1];
    L = link_new(&hub, pair[0], true, &events, NULL);
    ck_assert_ptr_nonnull(L);
}

static void teardown(void)
{
    link_hub_close(&hub, on_closed, NULL);
    loop_run_until(&loop, &closed, 5, "close");
    close_fd(&peer);
    loop_teardown(&loop);
}

static void give(const void *p, size_t n)
{
    ck_assert_int_eq(send(peer, p, n, 0), (ssize_t)n);
    loop_turns(&loop, 2);
}

#define HELLO PREAMBLE

START_TEST(frames_come_whole_however_they_are_cut)
{
    static const uint8_t bytes[] = HELLO "\x03\0\0\0\x07"
                                         "ab\x01\0\0\0\x08\x04\0\0\0\x09"
                                         "xyz";
    open_link();
    for (size_t i = 0; i + 1 < sizeof(bytes); i++)
        give(bytes + i, 1);
    ck_assert_uint_eq(version, RDZV_PROTOCOL);
    ck_assert_int_eq(frames, 3);
    ck_assert_int_eq(last_type, 9);
    ck_assert_uint_eq(last_len, 3);
    give(bytes + RDZV_PREAMBLE_LEN, sizeof(bytes) - 1 - RDZV_PREAMBLE_LEN); /* all at once */
    ck_assert_int_eq(frames, 6);
}
END_TEST

START_TEST(a_large_frame_in_pieces)
{
    enum { N = 1 << 20 };
    uint8_t *big = xcalloc(1, N);
    struct buf b = BUF_INIT;
    open_link();
    link_set_frame_max(L, RDZV_FRAME_MAX);
    rdzv_put_preamble(&b);
    buf_u32(&b, N + 1);
    buf_u8(&b, 5);
    big[0] = 42;
    buf_put(&b, big, N);
    for (size_t at = 0; at < b.len;) {
        ssize_t n = send(peer, b.data + at, b.len - at, 0);
        if (n > 0)
            at += (size_t)n;
        loop_turns(&loop, 1);
    }
    loop_turns(&loop, 3);
    ck_assert_int_eq(frames, 1);
    ck_assert_uint_eq(last_len, N);
    ck_assert_int_eq(last_first, 42);
    buf_fini(&b);
    free(big);
}
END_TEST

START_TEST(lengths_that_cannot_be_end_the_link)
{
    static const char *const bad[] = {HELLO "\0\0\0\0\x01", HELLO "\x01\x10\0\0\x01",
                                      HELLO "\xff\xff\xff\xff\x01"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        ended = false;
        open_link();
        give(bad[i], RDZV_PREAMBLE_LEN + 5);
        ck_assert(ended && ended_how == RDZV_END_BROKEN);
        ck_assert_ptr_nonnull(strstr(why_ended, "length"));
        close_fd(&peer);
        loop_turns(&loop, 2);
    }
    ck_assert_int_eq(frames, 0);
}
END_TEST

START_TEST(closed_from_inside_a_frame)
{
    open_link();
    close_in_frame = true;
    give(HELLO "\x01\0\0\0\x07\x01\0\0\0\x07", RDZV_PREAMBLE_LEN + 10);
    ck_assert_int_eq(frames, 1); /* what came after it is nobody's */
    ck_assert(!ended);
}
END_TEST

static size_t drain_peer(void)
{
    static uint8_t sink[1 << 16];
    size_t all = 0;
    ssize_t n;
    while ((n = recv(peer, sink, sizeof(sink), 0)) > 0)
        all += (size_t)n;
    return all;
}

START_TEST(the_end_is_reported)
{
    open_link();
    give(HELLO, RDZV_PREAMBLE_LEN);
    drain_peer(); /* unread, our preamble would make it a reset */
    close_fd(&peer);
    loop_turns(&loop, 2);
    ck_assert(ended && ended_how == RDZV_END_CLOSED);
}
END_TEST

START_TEST(a_reset_is_no_end_in_order)
{
    for (int writing = 0; writing < 2; writing++) {
        struct buf b = BUF_INIT;
        ended = false;
        open_link();
        give(HELLO, RDZV_PREAMBLE_LEN);
        close_fd(&peer); /* our preamble is unread there */
        if (writing) {   /* the write takes the error that reading would have found */
            rdzv_put_notice(&b, "hello");
            link_send_buf(L, &b);
        }
        loop_turns(&loop, 4);
        ck_assert(ended && ended_how == RDZV_END_RESET);
    }
}
END_TEST

static void open_tcp_link(void)
{
    struct netaddr at = {.len = sizeof(at.ss)};
    netaddr_parse_ip(&at, "127.0.0.1", 0);
    _cleanup_fd_ int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, &at.sa, at.len), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    ck_assert_int_eq(getsockname(listener, &at.sa, &at.len), 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, &at.sa, at.len), 0);
    ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    L = link_new(&hub, fd, false, &events, NULL);
    ck_assert_ptr_nonnull(L);
    loop_turns(&loop, 2);
}

/* A write that fails takes the error from the socket, and reading then reports an end of file. */
START_TEST(a_reset_that_a_write_has_met_is_no_end_in_order)
{
    for (int orderly = 0; orderly < 2; orderly++) {
        const struct linger abort = {.l_onoff = 1};
        struct buf b = BUF_INIT;
        ended = false;
        open_tcp_link();
        if (orderly) /* our preamble is read, lest closing send a reset */
            drain_peer();
        else
            setsockopt(peer, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
        close_fd(&peer);
        for (int i = 0; i < 2 && L; i++) { /* the second write meets what the first one causes */
            buf_put(&b, "last words", 10);
            link_send_buf(L, &b);
            loop_turns(&loop, 1);
        }
        loop_turns(&loop, 3);
        ck_assert(ended);
        ck_assert_msg(ended_how == (orderly ? RDZV_END_CLOSED : RDZV_END_RESET), "%d: %d (%s)",
                      orderly, ended_how, why_ended);
    }
}
END_TEST

/* The errno with which the test's end finds the connection closed, when all is read; 0: in order.
 */
static int end_of_peer(void)
{
    const struct timeval timeout = {.tv_sec = 10};
    char sink[4096];
    ssize_t n;
    fcntl(peer, F_SETFL, 0);
    setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    while ((n = recv(peer, sink, sizeof(sink), 0)) > 0)
        ;
    return n < 0 ? errno : 0;
}

START_TEST(an_error_of_this_side_is_not_an_end_in_order)
{
    open_tcp_link();
    give(HELLO "\0\0\0\0\x01", RDZV_PREAMBLE_LEN + 5); /* an empty frame */
    ck_assert(ended && ended_how == RDZV_END_BROKEN);
    ck_assert_int_eq(end_of_peer(), ECONNRESET);
}
END_TEST

START_TEST(closed_by_the_owner_is_an_end_in_order)
{
    open_tcp_link();
    give(HELLO, RDZV_PREAMBLE_LEN);
    link_close(L);
    loop_turns(&loop, 2);
    ck_assert_int_eq(end_of_peer(), 0);
}
END_TEST

START_TEST(a_last_message_that_cannot_be_written_is_not_an_end_in_order)
{
    enum { MUCH = 24 << 20 };
    struct buf b = BUF_INIT;
    uint64_t start = mono_ns();
    open_tcp_link();
    ck_assert(buf_reserve(&b, MUCH));
    memset(b.data, 0, MUCH);
    b.len = MUCH; /* more than the kernel takes while the other side does not read */
    link_send_buf(L, &b);
    link_finish(L);
    while (hub.all) {
        ck_assert(mono_ns() - start < 10000000000u);
        uv_run(&loop, UV_RUN_ONCE);
    }
    loop_turns(&loop, 1);
    ck_assert_int_eq(end_of_peer(), ECONNRESET);
}
END_TEST

START_TEST(abandoned_links_end_in_order)
{
    char sink[64];
    open_link();
    loop_turns(&loop, 2);
    drain_peer();
    ck_assert_int_eq(send(peer, HELLO, 3, 0), 3); /* unread here */
    link_hub_abandon(&hub);
    ck_assert_int_eq(recv(peer, sink, sizeof(sink), 0), 0);
}
END_TEST

START_TEST(shared_bytes_go_to_all_and_are_freed_with_the_last)
{
    struct buf b = BUF_INIT;
    open_link();
    rdzv_put_notice(&b, "hello");
    size_t len = b.len;
    struct shared_buf *s = shared_buf_new(&b);
    ck_assert_ptr_null(b.data);
    for (int i = 0; i < 20; i++)
        link_send(L, s);
    ck_assert_uint_eq(s->refs, 21);
    loop_turns(&loop, 3);
    ck_assert_uint_eq(s->refs, 1);
    ck_assert_uint_eq(drain_peer(), RDZV_PREAMBLE_LEN + 20 * len);
    shared_buf_unref(s);
}
END_TEST

START_TEST(a_peer_that_does_not_read_is_cut_off)
{
    struct buf b = BUF_INIT;
    open_link();
    uint8_t *big = xcalloc(1, 1 << 20);
    buf_put(&b, big, 1 << 20);
    free(big);
    struct shared_buf *s = shared_buf_new(&b);
    for (int i = 0; i < 60 && !ended; i++) {
        link_send(L, s);
        loop_turns(&loop, 1);
    }
    ck_assert(ended && ended_how == RDZV_END_BROKEN);
    loop_turns(&loop, 3);
    ck_assert_uint_eq(s->refs, 1);
    shared_buf_unref(s);
}
END_TEST

START_TEST(finish_sends_the_last_word)
{
    struct buf b = BUF_INIT;
    open_link();
    give(HELLO "\x01\0\0\0\x07", RDZV_PREAMBLE_LEN + 5);
    rdzv_put_refusal(&b, false, "no");
    size_t len = b.len;
    link_send_buf(L, &b);
    link_finish(L);
    give("never read", 10); /* does not turn the end into a reset */
    loop_turns(&loop, 5);
    uint8_t out[256];
    size_t got = 0;
    ssize_t n;
    while ((n = recv(peer, out + got, sizeof(out) - got, 0)) > 0)
        got += (size_t)n;
    ck_assert_uint_eq(got, RDZV_PREAMBLE_LEN + len);
    ck_assert_int_eq(n, 0); /* the end, in order */
    close_fd(&peer);
    loop_turns(&loop, 2);
    ck_assert(!ended); /* the owner was done with it */
}
END_TEST

START_TEST(finish_does_not_wait_for_ever)
{
    open_link();
    loop_turns(&loop, 2);
    link_finish(L);
    uint64_t start = mono_ns();
    while (hub.all) {
        ck_assert(mono_ns() - start < 10000000000u);
        uv_run(&loop, UV_RUN_ONCE);
    }
}
END_TEST

/* Refused peers that do not close their ends hold only few descriptors here. */
START_TEST(few_refused_peers_hold_descriptors)
{
    enum { N = 2 * LINK_REFUSED_MAX };
    int others[N], left = 0;
    char byte;
    for (int i = 0; i < N; i++) {
        open_link();
        others[i] = peer;
        link_refuse(L);
    }
    peer = -1;
    loop_turns(&loop, 3);
    for (int i = 0; i < N; i++)
        left += send(others[i], "more", 4, MSG_NOSIGNAL) == 4;
    ck_assert_int_eq(left, LINK_REFUSED_MAX);
    for (int i = 0; i < N; i++)
        close(others[i]);
    loop_turns(&loop, 3);
    ck_assert_ptr_null(hub.all);
    open_link();
    link_refuse(L); /* as the first of them */
    loop_turns(&loop, 3);
    ck_assert_int_eq(recv(peer, &byte, 1, 0), 1);
}
END_TEST

/* ------------------------------------------------------------------------------------ connector */

static int got_fd = -1;
static bool done, refused;
static struct netaddr got_peer;
static char why[128];

static void on_done(void *arg, int fd, const struct netaddr *p, bool r, const char *text)
{
    (void)arg;
    done = true;
    got_fd = fd;
    refused = r;
    if (p)
        got_peer = *p;
    strncpy(why, text, sizeof(why) - 1);
}

static int listener(struct netaddr *a)
{
    struct endpoint_bind b = {0};
    netaddr_parse_ip(&b.addr, "127.0.0.1", 0);
    int fd = endpoint_listen(&b, NULL);
    ck_assert_int_ge(fd, 0);
    a->len = sizeof(a->ss);
    ck_assert_int_eq(getsockname(fd, &a->sa, &a->len), 0);
    return fd;
}

#define FILL 8

/* A full backlog: its connections are never completed. */
static int deaf_listener(struct netaddr *a, int fill[FILL])
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    netaddr_parse_ip(a, "127.0.0.1", 0);
    ck_assert_int_eq(bind(fd, &a->sa, a->len), 0);
    ck_assert_int_eq(listen(fd, 0), 0);
    ck_assert_int_eq(getsockname(fd, &a->sa, &a->len), 0);
    for (int i = 0; i < FILL; i++) {
        fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (connect(fill[i], &a->sa, a->len) < 0)
            ck_assert_int_eq(errno, EINPROGRESS);
    }
    return fd;
}

START_TEST(the_first_that_answers_is_taken)
{
    struct netaddr addrs[3];
    int closed_fd = listener(&addrs[0]), fd = listener(&addrs[1]);
    close(closed_fd);
    addrs[2] = addrs[1];
    connector_new(&loop, addrs, 3, 5000, on_done, NULL);
    ck_assert(!done);
    loop_run_until(&loop, &done, 5, "connection");
    ck_assert_int_ge(got_fd, 0);
    ck_assert_int_eq(netaddr_port(&got_peer), netaddr_port(&addrs[1]));
    close(got_fd);
    close(fd);
}
END_TEST

START_TEST(refused_by_all)
{
    struct netaddr addrs[2];
    for (int i = 0; i < 2; i++)
        close(listener(&addrs[i]));
    connector_new(&loop, addrs, 2, 5000, on_done, NULL);
    loop_run_until(&loop, &done, 5, "answer");
    ck_assert_int_lt(got_fd, 0);
    ck_assert(refused);
    ck_assert_str_eq(why, strerror(ECONNREFUSED));
}
END_TEST

START_TEST(a_silent_address_does_not_delay_the_next)
{
    struct netaddr addrs[2];
    int fill[FILL], deaf = deaf_listener(&addrs[0], fill), fd = listener(&addrs[1]);
    uint64_t start = mono_ns();
    connector_new(&loop, addrs, 2, 10000, on_done, NULL);
    loop_run_until(&loop, &done, 9, "connection");
    ck_assert_int_eq(netaddr_port(&got_peer), netaddr_port(&addrs[1]));
    ck_assert_uint_lt(mono_ns() - start, 8000000000u);
    close(got_fd);
    /* A half-open connection alone still runs into the time limit. */
    done = false;
    connector_new(&loop, &addrs[0], 1, 300, on_done, NULL);
    loop_run_until(&loop, &done, 9, "answer");
    ck_assert_int_lt(got_fd, 0);
    ck_assert(!refused);
    ck_assert_str_eq(why, strerror(ETIMEDOUT));
    for (int i = 0; i < FILL; i++)
        close(fill[i]);
    close(deaf);
    close(fd);
}
END_TEST

static void on_seen(uv_poll_t *poll, int status, int what)
{
    (void)status, (void)what;
    done = true;
    uv_close((uv_handle_t *)poll, NULL);
}

/* The descriptor number of a refused connection may be reused at once, and must then be left alone.
 */
START_TEST(cancelled_after_one_was_refused)
{
    struct netaddr addrs[2];
    int fill[FILL], deaf = deaf_listener(&addrs[0], fill);
    int first = eventfd(0, EFD_CLOEXEC), second = eventfd(0, EFD_CLOEXEC);
    close(listener(&addrs[1]));
    close(first);
    close(second);
    struct connector *c = connector_new(&loop, addrs, 2, 20000, on_done, NULL);
    uint64_t end = mono_ns() + 10000000000u;
    while (uv_backend_timeout(&loop) <= 1000 || fcntl(second, F_GETFD) >= 0) {
        ck_assert_msg(mono_ns() < end, "the second is not refused");
        loop_turns(&loop, 1);
    }
    uv_poll_t poll;
    ck_assert_int_eq(eventfd(0, EFD_CLOEXEC), second);
    ck_assert_int_eq(uv_poll_init(&loop, &poll, second), 0);
    ck_assert_int_eq(uv_poll_start(&poll, UV_READABLE, on_seen), 0);
    loop_turns(&loop, 2);
    connector_cancel(c);
    loop_turns(&loop, 2);
    ck_assert(!done);
    ck_assert_int_eq(eventfd_write(second, 1), 0);
    loop_run_until(&loop, &done, 5, "event");
    close(second);
    for (int i = 0; i < FILL; i++)
        close(fill[i]);
    close(deaf);
}
END_TEST

START_TEST(cancelled)
{
    struct netaddr addrs[2];
    int fds[2] = {listener(&addrs[0]), listener(&addrs[1])};
    struct connector *c = connector_new(&loop, addrs, 2, 5000, on_done, NULL);
    connector_cancel(c);
    connector_cancel(NULL);
    loop_turns(&loop, 5);
    ck_assert(!done);
    close(fds[0]);
    close(fds[1]);
}
END_TEST

/* -------------------------------------------------------------------------------------- pending */

static struct pending_queue queue;
static struct pending *dropped;

static void on_drop(struct pending *p, const char *reason)
{
    ck_assert_ptr_nonnull(reason);
    pending_remove(&queue, p);
    dropped = p;
}

static struct pending *add(struct pending *p, const char *ip)
{
    struct netaddr a;
    netaddr_parse_ip(&a, ip, 0);
    *p = (struct pending){0};
    dropped = NULL;
    pending_add(&queue, p, &a);
    pending_limit(&queue);
    return dropped;
}

START_TEST(pending_peers_are_dropped_by_address_and_age)
{
    enum { MAX = 20, ROOM = MAX - PENDING_PER_ADDRESS };
    struct pending few[ROOM], many[PENDING_PER_ADDRESS + 1], last;
    struct netaddr a;
    netaddr_parse_ip(&a, "192.0.2.2", 0);
    pending_init(&queue, &loop, MAX, on_drop);
    for (int i = 0; i < ROOM; i++)
        ck_assert_ptr_null(add(&few[i], "192.0.2.1"));
    for (int i = 0; i < PENDING_PER_ADDRESS; i++)
        ck_assert_ptr_null(add(&many[i], "192.0.2.2"));
    ck_assert_int_eq(pending_from(&queue, &a), PENDING_PER_ADDRESS);
    ck_assert_ptr_eq(add(&many[PENDING_PER_ADDRESS], "192.0.2.2"), &many[0]);
    ck_assert_ptr_eq(add(&last, "192.0.2.3"), &few[0]); /* no address has too many: the oldest */
    ck_assert_ptr_eq(pending_first(&queue), &few[1]);
    while (pending_first(&queue))
        pending_remove(&queue, pending_first(&queue));
    ck_assert_int_eq(pending_from(&queue, &a), 0);
    ck_assert_uint_eq(queue.per_address.n, 0);
    ck_assert(!uv_is_active((uv_handle_t *)&queue.timer));
    pending_fini(&queue);
    uv_close((uv_handle_t *)&queue.timer, NULL);
    loop_turns(&loop, 1);
}
END_TEST

/* -------------------------------------------------------------------------------------- standby */

START_TEST(a_peer_that_sends_nothing_to_a_standby)
{
    int pair[2];
    uv_poll_t poll;
    struct standby *s = standby_new(&hub, "job", "host", NULL);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    peer = pair[1];
    standby_adopt(s, pair[0], NULL);
    loop_turns(&loop, 2);
    drain_peer();
    ck_assert_int_eq(uv_poll_init(&loop, &poll, peer), 0);
    ck_assert_int_eq(uv_poll_start(&poll, UV_READABLE, on_seen), 0);
    ck_assert(!done);
    loop_run_until(&loop, &done, PENDING_MS / 1000 + 10, "end");
    done = false;
    standby_close(s, on_closed, NULL);
    loop_run_until(&loop, &closed, 5, "close of the standby");
    closed = false;
}
END_TEST

/* Another build is told why it is refused; it would go on asking. */
START_TEST(another_build_at_a_standby)
{
    int pair[2];
    uint8_t got[1024], preamble[RDZV_PREAMBLE_LEN];
    ssize_t n = 0, more;
    struct buf b = BUF_INIT;
    struct standby *s = standby_new(&hub, "job", "host", NULL);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    peer = pair[1];
    standby_adopt(s, pair[0], NULL);
    rdzv_put_preamble(&b);
    memcpy(preamble, b.data, sizeof(preamble));
    preamble[4]++; /* the number of the rendezvous' protocol */
    buf_fini(&b);
    ck_assert_int_eq(write(peer, preamble, sizeof(preamble)), (ssize_t)sizeof(preamble));
    for (int i = 0; i < 50 && !memmem(got, (size_t)n, "on all nodes", 12); i++) {
        loop_turns(&loop, 1);
        more = read(peer, got + n, sizeof(got) - (size_t)n);
        n += more > 0 ? more : 0;
    }
    ck_assert_ptr_nonnull(memmem(got, (size_t)n, "another build of dlaunch than node host", 39));
    const char *differ =
        test_text("rendezvous %u, not %u", PROTOCOL_RENDEZVOUS + 1, PROTOCOL_RENDEZVOUS);
    ck_assert_ptr_nonnull(memmem(got, (size_t)n, differ, strlen(differ)));
    close(peer);
    loop_turns(&loop, 2);
    standby_close(s, on_closed, NULL);
    loop_run_until(&loop, &closed, 5, "close of the standby");
    closed = false;
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("link");
    TCase *tc = test_case(s, "link", 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, frames_come_whole_however_they_are_cut);
    tcase_add_test(tc, a_large_frame_in_pieces);
    tcase_add_test(tc, lengths_that_cannot_be_end_the_link);
    tcase_add_test(tc, closed_from_inside_a_frame);
    tcase_add_test(tc, the_end_is_reported);
    tcase_add_test(tc, a_reset_is_no_end_in_order);
    tcase_add_test(tc, a_reset_that_a_write_has_met_is_no_end_in_order);
    tcase_add_test(tc, an_error_of_this_side_is_not_an_end_in_order);
    tcase_add_test(tc, closed_by_the_owner_is_an_end_in_order);
    tcase_add_test(tc, a_last_message_that_cannot_be_written_is_not_an_end_in_order);
    tcase_add_test(tc, abandoned_links_end_in_order);
    tcase_add_test(tc, shared_bytes_go_to_all_and_are_freed_with_the_last);
    tcase_add_test(tc, a_peer_that_does_not_read_is_cut_off);
    tcase_add_test(tc, finish_sends_the_last_word);
    tcase_add_test(tc, finish_does_not_wait_for_ever);
    tcase_add_test(tc, few_refused_peers_hold_descriptors);
    tc = test_case(s, "connector", 30);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, the_first_that_answers_is_taken);
    tcase_add_test(tc, refused_by_all);
    tcase_add_test(tc, a_silent_address_does_not_delay_the_next);
    tcase_add_test(tc, cancelled);
    tcase_add_test(tc, cancelled_after_one_was_refused);
    tc = test_case(s, "pending", 30);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, pending_peers_are_dropped_by_address_and_age);
    tc = test_case(s, "standby", 30);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_peer_that_sends_nothing_to_a_standby);
    tcase_add_test(tc, another_build_at_a_standby);
    return s;
}

TEST_MAIN(suite)
