/* The relay of a node: how many connections of workers it takes, and a coordinator that reads
 * nothing for a while. */
#include "tests/lib/test.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "rendezvous/wire/relay.h"
#include "tests/lib/loop.h"

#define NPROC   30
#define STREAMS RELAY_STREAMS_MAX(NPROC)

/* All streams together may have more bytes under way than a link queues. */
_Static_assert((size_t)STREAMS *RELAY_WINDOW > LINK_QUEUE_MAX, "the link could not be cut off");

static uv_loop_t loop;
static struct link_hub hub;
static struct auth auth = {.open = true};
static struct relay *R;
static int listener = -1, trunk = -1; /* the coordinator's door, and its end of the link */
static struct netaddr where;
static int clients[STREAMS];
static int closed;

static bool serve(void *arg, int fd)
{
    (void)arg, (void)fd;
    return false;
}

static bool coordinator_is(void *arg, struct netaddr *out)
{
    (void)arg;
    *out = where;
    return true;
}

static void setup(void)
{
    struct err e = ERR_INIT;
    signal(SIGPIPE, SIG_IGN);
    loop_setup(&loop);
    link_hub_init(&hub, &loop, NULL, NULL);
    ck_assert(netaddr_parse_ip(&where, "127.0.0.1", 0));
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, &where.sa, where.len), 0);
    ck_assert_int_eq(listen(listener, 4), 0);
    ck_assert_int_eq(getsockname(listener, &where.sa, &where.len), 0);
    const struct relay_config c = {.hub = &hub,
                                   .auth = &auth,
                                   .run_id = "job",
                                   .nproc = NPROC,
                                   .serve = serve,
                                   .where = coordinator_is};
    ck_assert_int_eq(relay_open(&R, &loop, &c, &e), 0);
    memset(clients, -1, sizeof(clients));
}

static void one_closed(void *arg)
{
    (void)arg;
    closed++;
}

static void teardown(void)
{
    relay_close(R, one_closed, NULL);
    link_hub_close(&hub, one_closed, NULL);
    loop_turns(&loop, 10);
    ck_assert_int_eq(closed, 2);
    loop_teardown(&loop);
    for (int i = 0; i < STREAMS; i++)
        close_fd(&clients[i]);
    close_fd(&trunk);
    close_fd(&listener);
}

/* Connects as a client of the store, as its first byte shows the relay. */
static int new_client(void)
{
    struct netaddr door;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert(netaddr_parse_ip(&door, "127.0.0.1", relay_port(R)));
    ck_assert_int_eq(connect(fd, &door.sa, door.len), 0);
    ck_assert_int_eq(send(fd, "\0", 1, 0), 1);
    loop_turns(&loop, 3);
    return fd;
}

static void send_buf(int fd, struct buf *b)
{
    ck_assert_int_eq(send(fd, b->data, b->len, 0), (ssize_t)b->len);
    buf_fini(b);
}

/* The coordinator answers the relay, which calls it when it has its first client. */
static void answer_relay(void)
{
    uint64_t end = mono_ns() + 5000000000u;
    while (trunk < 0 && mono_ns() < end) {
        loop_turns(&loop, 1);
        trunk = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    }
    ck_assert_int_ge(trunk, 0);
    struct buf b = BUF_INIT;
    rdzv_put_preamble(&b);
    send_buf(trunk, &b);
}

static void open_all(void)
{
    for (int i = 0; i < STREAMS; i++)
        clients[i] = new_client();
    answer_relay();
}

/* Counts the bytes of each stream in what has come. Returns how many there were. */
static size_t take_frames(struct buf *in, size_t came[STREAMS])
{
    size_t at = 0, sum = 0;
    while (in->len - at >= RDZV_FRAME_HEADER) {
        struct rd r = rd_init(in->data + at, in->len - at);
        uint32_t len = rd_u32(&r);
        if (in->len - at - 4 < len)
            break;
        uint8_t type = rd_u8(&r);
        at += 4 + (size_t)len;
        ck_assert_int_ne(type, RDZV_MSG_RELAY_END);
        if (type != RDZV_MSG_RELAY_DATA)
            continue;
        uint32_t id = rd_u32(&r);
        ck_assert_uint_lt(id, STREAMS);
        came[id] += len - 5;
        sum += len - 5;
    }
    buf_consume(in, at);
    return sum;
}

START_TEST(a_coordinator_that_reads_late)
{
    static uint8_t piece[RELAY_WINDOW - 1];
    static size_t came[STREAMS];
    struct buf in = BUF_INIT;
    open_all();
    for (int i = 0; i < STREAMS; i++) {
        size_t done = 0;
        for (ssize_t n; done < sizeof(piece); done += (size_t)n) {
            n = send(clients[i], piece + done, sizeof(piece) - done, MSG_DONTWAIT);
            ck_assert_msg(n > 0 || errno == EAGAIN, "%s", strerror(errno));
            n = n > 0 ? n : 0;
            loop_turns(&loop, 1);
        }
    }
    loop_turns(&loop, 100); /* all is read that will be */
    uint64_t end = mono_ns() + 30000000000u;
    uint8_t preamble[RDZV_PREAMBLE_LEN];
    ck_assert_int_eq(recv(trunk, preamble, sizeof(preamble), 0), sizeof(preamble));
    for (size_t sum = 0; sum < (size_t)STREAMS * RELAY_WINDOW;) {
        static uint8_t got[65536];
        ssize_t n = recv(trunk, got, sizeof(got), 0);
        ck_assert_msg(n > 0 || (n < 0 && errno == EAGAIN), "the link has ended");
        ck_assert_msg(mono_ns() < end, "only %zu bytes came", sum);
        if (n > 0)
            buf_put(&in, got, (size_t)n);
        sum += take_frames(&in, came);
        loop_turns(&loop, 1);
    }
    for (int i = 0; i < STREAMS; i++)
        ck_assert_uint_eq(came[i], RELAY_WINDOW);
    buf_fini(&in);
}
END_TEST

/* The type of the next frame that comes over the link; number: its first one after the stream. */
static uint8_t next_frame(struct buf *in, uint32_t *number)
{
    uint64_t end = mono_ns() + 5000000000u;
    for (;;) {
        uint8_t got[4096];
        struct rd r = rd_init(in->data, in->len);
        uint32_t len = rd_u32(&r);
        if (!r.bad && in->len - 4 >= len) {
            uint8_t type = rd_u8(&r);
            rd_u32(&r); /* the stream */
            *number = rd_u32(&r);
            buf_consume(in, 4 + (size_t)len);
            return type;
        }
        ck_assert_msg(mono_ns() < end, "no frame comes");
        ssize_t n = recv(trunk, got, sizeof(got), 0);
        if (n > 0)
            buf_put(in, got, (size_t)n);
        loop_turns(&loop, 1);
    }
}

/* Bytes for a worker that has died are acknowledged: otherwise the coordinator would stall and
 * never see that the store has finished with the worker. */
START_TEST(a_worker_that_dies_before_its_answer)
{
    static const uint8_t piece[32768];
    uint8_t preamble[RDZV_PREAMBLE_LEN];
    uint32_t number, back = 0;
    struct buf in = BUF_INIT;
    int fd = new_client();
    close(fd);
    answer_relay();
    while (recv(trunk, preamble, sizeof(preamble), 0) < 0)
        loop_turns(&loop, 1);
    ck_assert_int_eq(next_frame(&in, &number), RDZV_MSG_RELAY);
    ck_assert_int_eq(next_frame(&in, &number), RDZV_MSG_RELAY_OPEN);
    ck_assert_int_eq(next_frame(&in, &number), RDZV_MSG_RELAY_DATA);
    ck_assert_int_eq(next_frame(&in, &number), RDZV_MSG_RELAY_FIN);
    for (size_t sent = 0; sent < RELAY_WINDOW; sent += sizeof(piece)) {
        struct buf b = BUF_INIT;
        rdzv_put_stream(&b, RDZV_MSG_RELAY_DATA, 0, piece, sizeof(piece));
        send_buf(trunk, &b);
        loop_turns(&loop, 3);
    }
    while (back < RELAY_WINDOW) {
        ck_assert_int_eq(next_frame(&in, &number), RDZV_MSG_RELAY_CREDIT);
        back += number;
    }
    ck_assert_uint_eq(back, RELAY_WINDOW);
    buf_fini(&in);
}
END_TEST

START_TEST(one_connection_too_many)
{
    open_all();
    int fd = new_client();
    struct pollfd p = {fd, POLLIN, 0};
    char c;
    ck_assert_int_eq(poll(&p, 1, 5000), 1);
    ck_assert_int_le(recv(fd, &c, 1, 0), 0);
    close(fd);
    ck_assert_int_eq(recv(clients[0], &c, 1, MSG_DONTWAIT), -1); /* the others stay */
    ck_assert_int_eq(errno, EAGAIN);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("relay");
    TCase *tc = test_case(s, "relay", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_coordinator_that_reads_late);
    tcase_add_test(tc, a_worker_that_dies_before_its_answer);
    tcase_add_test(tc, one_connection_too_many);
    return s;
}

TEST_MAIN(suite)
