/* Both store servers, the one on libuv and the one on a thread, on real sockets: what torch clients
 * rely on, then those who misbehave, then many of them, then what several clients see together. */
#include "tests/lib/test.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/mem.h"
#include "rendezvous/store/store_client.h"
#include "rendezvous/store/store_thread.h"
#include "tests/lib/store.h"

static struct test_server *server;

/* Every test runs once for each kind of server. */
#define WITH_SERVER(kind, ...) server = server_start(kind, &(struct store_server_opts){__VA_ARGS__})

static int open_client(void)
{
    return raw_open(server_port(server));
}

#define SEND(fd, ...)             \
    do {                          \
        struct buf b_ = BUF_INIT; \
        __VA_ARGS__;              \
        raw_send(fd, &b_);        \
    } while (0)

static void set(int fd, const char *key, const char *val)
{
    SEND(fd, put_set(&b_, STORE_SET, key, val));
}

static void wait_for(int fd, const char *key)
{
    SEND(fd, put_list(&b_, STORE_WAIT, KEYS(key)));
    raw_expect_silence(fd); /* and by its answer the wait is registered */
}

/* --- What clients rely on ----------------------------------------------------------------------*/

static const char talk[] = "00 CE F7 85 3C  0D 92 10 00 00"
                           "04 05 00 00 00 00 00 00 00 69 6E 69 74 2F 01 00 00 00 00 00 00 00"
                           "01 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 76"
                           "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B"
                           "03 02 00 00 00 00 00 00 00 2F 6B"
                           "05 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B"
                           "   02 00 00 00 00 00 00 00 2F 78"
                           "02 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 76"
                           "   01 00 00 00 00 00 00 00 77"
                           "08 02 00 00 00 00 00 00 00 2F 6B  07";
static const char answers[] = "92 10 00 00  01 00 00 00 00 00 00 00  00"
                              "01 00 00 00 00 00 00 00 76  01  01 00 00 00 00 00 00 00 77"
                              "01 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00";

START_TEST(a_conversation)
{
    WITH_SERVER(_i);
    for (int whole = 0; whole < 2; whole++) {
        struct buf b = BUF_INIT, want = BUF_INIT;
        int fd = raw_connect(server_port(server));
        put_hex(&b, talk);
        put_hex(&want, answers);
        if (whole) {
            raw_send(fd, &b);
        } else {
            for (size_t i = 0; i < b.len; i++)
                ck_assert_int_eq(send(fd, b.data + i, 1, 0), 1); /* TCP_NODELAY: a packet each */
            buf_fini(&b);
        }
        raw_expect(fd, want.data, want.len);
        SEND(fd, put_key(&b_, STORE_DELETE_KEY, "init/"));
        raw_expect_i64(fd, 1);
        buf_fini(&want);
        close(fd);
    }
    server_stop(server);
}
END_TEST

START_TEST(waiting_and_being_woken)
{
    WITH_SERVER(_i);
    int a = open_client(), b = open_client();
    for (int way = 0; way < 5; way++) {
        char key[8];
        snprintf(key, sizeof(key), "k%d", way);
        wait_for(a, key);
        if (way == 0) {
            set(b, key, "1");
        } else if (way == 1) {
            SEND(b, put_number(&b_, STORE_ADD, key, 7));
            raw_expect_i64(b, 7);
        } else if (way == 2) {
            SEND(b, put_set(&b_, STORE_APPEND, key, "x"));
        } else if (way == 3) {
            SEND(b, put_compare(&b_, key, "", "y"));
            raw_expect_value(b, "y");
        } else {
            SEND(b, put_pairs(&b_, KEYS(key, "z")));
        }
        raw_expect_u8(a, STORE_STOP_WAITING);
        set(b, key, "again");
        raw_expect_silence(b);
        raw_expect_silence(a); /* once */
    }
    close(a);
    close(b);
    server_stop(server);
}
END_TEST

START_TEST(cancelling_races_with_the_key)
{
    WITH_SERVER(_i);
    int a = open_client(), b = open_client();
    wait_for(a, "k");
    set(b, "k", "1");
    raw_expect_silence(b); /* done: the answer to the wait is on its way */
    SEND(a, put_plain(&b_, STORE_CANCEL_WAIT));
    raw_expect_u8(a, STORE_STOP_WAITING);
    raw_expect_u8(a, STORE_CANCELED);
    wait_for(a, "later");
    SEND(a, put_plain(&b_, STORE_CANCEL_WAIT));
    raw_expect_u8(a, STORE_CANCELED);
    set(b, "later", "1");
    raw_expect_silence(b);
    raw_expect_silence(a);
    wait_for(a, "last");
    set(b, "last", "1");
    raw_expect_u8(a, STORE_STOP_WAITING);
    close(a);
    close(b);
    server_stop(server);
}
END_TEST

START_TEST(lists_of_keys)
{
    WITH_SERVER(_i);
    int a = open_client(), b = open_client();
    SEND(a, put_list(&b_, STORE_WAIT, KEYS(NULL)));
    raw_expect_u8(a, STORE_STOP_WAITING);
    set(b, "there", "1");
    raw_expect_silence(b);
    SEND(a, put_list(&b_, STORE_WAIT, KEYS("x", "x", "there", "x")));
    raw_expect_silence(a);
    set(b, "x", "1");
    raw_expect_u8(a, STORE_STOP_WAITING);
    close(a);
    close(b);
    server_stop(server);
}
END_TEST

START_TEST(gone_while_waiting)
{
    WITH_SERVER(_i);
    int a = open_client(), b = open_client(), c = open_client();
    struct linger at_once = {1, 0};
    wait_for(a, "k");
    wait_for(c, "k");
    setsockopt(c, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    close(a);
    close(c); /* by a reset */
    set(b, "k", "1");
    raw_expect_silence(b);
    close(b);
    server_stop(server);
}
END_TEST

START_TEST(arithmetic_on_text_ends_only_that_connection)
{
    WITH_SERVER(_i);
    int a = open_client(), b = open_client();
    set(a, "k", "abc");
    raw_expect_silence(a);
    SEND(b, put_number(&b_, STORE_ADD, "n", -5), put_number(&b_, STORE_ADD, "k", 1));
    raw_expect_i64(b, -5); /* what was asked before is still answered */
    raw_expect_closed(b);
    SEND(a, put_key(&b_, STORE_GET, "k"));
    raw_expect_value(a, "abc");
    if (_i == SERVER_LOOP) {
        struct store_server_stats s = server_stats(server);
        ck_assert_uint_eq(s.rejected, 1);
        ck_assert_uint_eq(s.rejected_for[STORE_ERR_NOT_A_NUMBER], 1);
        ck_assert_uint_eq(s.connections, 1);
        ck_assert_uint_eq(s.keys, 2);
    }
    close(a);
    server_stop(server);
}
END_TEST

START_TEST(queues)
{
    WITH_SERVER(_i);
    int a = open_client(), b = open_client(), c = open_client();
    SEND(a, put_key(&b_, STORE_QUEUE_POP, "q"));
    raw_expect_i64(a, 0);
    wait_for(a, "q");
    wait_for(b, "q");
    SEND(c, put_set(&b_, STORE_QUEUE_PUSH, "q", "1"));
    raw_expect_u8(a, STORE_STOP_WAITING);
    raw_expect_silence(b);
    SEND(a, put_key(&b_, STORE_QUEUE_POP, "q"));
    raw_expect_i64(a, 1);
    raw_expect_value(a, "1");
    close(a);
    close(b);
    close(c);
    server_stop(server);
}
END_TEST

START_TEST(a_barrier_of_many_most_of_whom_gave_up)
{
    WITH_SERVER(_i);
    int fd[8];
    for (int i = 0; i < 7; i++) {
        fd[i] = open_client();
        SEND(fd[i], put_number(&b_, STORE_BARRIER, "b", 8), put_plain(&b_, STORE_CANCEL_WAIT));
        raw_expect_u8(fd[i], STORE_CANCELED);
    }
    fd[7] = open_client();
    SEND(fd[7], put_number(&b_, STORE_BARRIER, "b", 8), put_key(&b_, STORE_GET, "b"));
    raw_expect_u8(fd[7], STORE_STOP_WAITING);
    raw_expect_value(fd[7], "8");
    for (int i = 0; i < 7; i++)
        raw_expect_silence(fd[i]);
    for (int i = 0; i < 8; i++)
        close(fd[i]);
    server_stop(server);
}
END_TEST

static void put_sized(struct buf *b, enum store_cmd cmd, size_t key_len, size_t len)
{
    uint8_t *bytes = xmalloc(key_len > len ? key_len : len + 1);
    memset(bytes, 'k', key_len > len ? key_len : len + 1);
    store_encode(b, STORE_NEWEST,
                 &(struct store_request){.cmd = cmd, .key = {bytes, key_len}, .val = {bytes, len}});
    free(bytes);
}

START_TEST(limits)
{
    WITH_SERVER(_i);
    int a = open_client(), b = open_client();
    SEND(a, put_sized(&b_, STORE_SET, STORE_KEY_MAX, 8 << 20));
    raw_expect_silence(a);
    SEND(a, put_sized(&b_, STORE_SET, 1, STORE_VALUE_MAX));
    raw_expect_silence(a);
    SEND(b, put_sized(&b_, STORE_SET, STORE_KEY_MAX + 1, 0));
    raw_expect_closed(b);
    b = open_client();
    struct buf big = BUF_INIT;
    put_hex(&big, "01 01 00 00 00 00 00 00 00 6B 01 00 00 04 00 00 00 00"); /* 64 MiB and 1 */
    raw_send(b, &big);
    raw_expect_closed(b);
    raw_expect_silence(a);
    /* The value of full size comes back whole, by reference, to several at once. */
    struct buf want = BUF_INIT;
    uint8_t *bytes = xmalloc(STORE_VALUE_MAX);
    memset(bytes, 'k', STORE_VALUE_MAX);
    put_bytes(&want, bytes, STORE_VALUE_MAX);
    b = open_client();
    SEND(a, put_key(&b_, STORE_GET, "k"));
    SEND(b, put_key(&b_, STORE_GET, "k"));
    raw_expect(a, want.data, want.len);
    raw_expect(b, want.data, want.len);
    buf_fini(&want);
    free(bytes);
    close(a);
    close(b);
    server_stop(server);
}
END_TEST

START_TEST(older_clients)
{
    for (int legacy_113 = 0; legacy_113 < 2; legacy_113++) {
        struct buf b = BUF_INIT;
        WITH_SERVER(_i, .legacy_113 = legacy_113);
        int fd = raw_connect(server_port(server)), newest = open_client();
        put_hex(&b, "03 05 00 00 00 00 00 00 00 69 6E 69 74 2F 01 00 00 00 00 00 00 00");
        raw_send(fd, &b);
        raw_expect_i64(fd, 1);
        put_hex(&b, "00 01 00 00 00 00 00 00 00 6B 01 00 00 00 00 00 00 00 76"); /* SET */
        put_hex(&b, "02 01 00 00 00 00 00 00 00 6B");                            /* GET */
        raw_send(fd, &b);
        raw_expect_value(fd, "v");
        put_hex(&b, legacy_113 ? "08 01 00 00 00 00 00 00 00 6B"   /* DELETE in either, */
                               : "07 01 00 00 00 00 00 00 00 6B"); /* by its own number */
        raw_send(fd, &b);
        raw_expect_i64(fd, 1);
        SEND(newest, put_number(&b_, STORE_ADD, "init/", 1));
        raw_expect_i64(newest, 2); /* old and new meet in one store */
        close(fd);
        close(newest);
        server_stop(server);
    }
}
END_TEST

START_TEST(watching_by_clients_of_113)
{
    WITH_SERVER(_i, .legacy_113 = true);
    int watcher = raw_connect(server_port(server)), other = open_client();
    struct buf b = BUF_INIT;
    put_hex(&b, "07 01 00 00 00 00 00 00 00 6B");
    raw_send(watcher, &b);
    raw_expect_u8(watcher, STORE_WATCHING);
    set(other, "k", "1");
    set(other, "k", "2");
    SEND(other, put_key(&b_, STORE_DELETE_KEY, "k"));
    raw_expect_i64(other, 1);
    static const char *const told[] = {"\1", "", "1", "\0", "1", "2", "\2", "2", ""};
    for (int i = 0; i < 9; i += 3) {
        raw_expect_u8(watcher, (uint8_t)*told[i]);
        raw_expect_value(watcher, "k");
        raw_expect_value(watcher, told[i + 1]);
        raw_expect_value(watcher, told[i + 2]);
    }
    close(watcher);
    close(other);
    server_stop(server);
}
END_TEST

/* 1.13 cannot cancel: a client whose wait timed out at its side just asks the next thing. */
START_TEST(giving_up_by_clients_of_113)
{
    WITH_SERVER(_i, .legacy_113 = true);
    int fd = raw_connect(server_port(server)), other = open_client();
    struct buf b = BUF_INIT;
    put_hex(&b, "05 01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 6B 06"); /* WAIT, NUMKEYS */
    raw_send(fd, &b);
    raw_expect_i64(fd, 0);
    set(other, "k", "1");
    raw_expect_silence(other);
    put_hex(&b, "06");
    raw_send(fd, &b);
    raw_expect_i64(fd, 1); /* no stray answer before it */
    close(fd);
    close(other);
    server_stop(server);
}
END_TEST

/* --- Those who misbehave -----------------------------------------------------------------------*/

START_TEST(other_protocols)
{
    static const struct {
        const char *bytes;
        size_t n;
    } garbage[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27},
        {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11},
        {"SSH-2.0-OpenSSH_9.2\r\n", 21},
        {"\x00\xCE\xF7\x85\x3D garbage", 13},
        {"\xff\xff\xff\xff\xff\xff\xff\xff", 8},
        {"\x00\xCE\xF7\x85\x3C\x0b\xff\xff\xff\xff\xff\xff\xff\xff", 14},
        {"\x04\xff\xff\xff\xff\xff\xff\xff\x7f", 9},
    };
    WITH_SERVER(_i);
    int good = open_client();
    for (size_t i = 0; i < ARRAY_LEN(garbage); i++) {
        int fd = raw_connect(server_port(server));
        ck_assert_int_eq(send(fd, garbage[i].bytes, garbage[i].n, 0), (ssize_t)garbage[i].n);
        raw_expect_closed(fd);
        raw_expect_silence(good);
    }
    close(good);
    server_stop(server);
}
END_TEST

START_TEST(silent_half_and_slow_ones_hold_up_nobody)
{
    WITH_SERVER(_i);
    int silent = raw_connect(server_port(server)), half = open_client(), slow = open_client();
    struct buf b = BUF_INIT, drop_by_drop = BUF_INIT;
    put_hex(&b, "01 01 00 00 00 00 00 00 00 6B 00 00 00 01 00 00 00 00 78"); /* 1 of 16 Mi bytes */
    raw_send(half, &b);
    put_set(&drop_by_drop, STORE_SET, "slow", "but at last");
    int good = open_client();
    for (size_t i = 0; i < drop_by_drop.len; i++) {
        ck_assert_int_eq(send(slow, drop_by_drop.data + i, 1, 0), 1);
        raw_expect_silence(good);
    }
    SEND(slow, put_key(&b_, STORE_GET, "slow"));
    raw_expect_value(slow, "but at last");
    buf_fini(&drop_by_drop);
    close(silent);
    close(half);
    close(slow);
    close(good);
    server_stop(server);
}
END_TEST

/* A client that closes its sending side still gets its answers. */
START_TEST(half_closed)
{
    WITH_SERVER(_i);
    int fd = open_client();
    SEND(fd, put_sized(&b_, STORE_SET, 1, 16 << 20), put_key(&b_, STORE_GET, "k"));
    SEND(fd, put_key(&b_, STORE_GET, "k"));
    ck_assert_int_eq(shutdown(fd, SHUT_WR), 0);
    struct buf want = BUF_INIT;
    uint8_t *bytes = xmalloc(16 << 20);
    memset(bytes, 'k', 16 << 20);
    put_bytes(&want, bytes, 16 << 20);
    raw_expect(fd, want.data, want.len);
    raw_expect(fd, want.data, want.len);
    raw_expect_closed(fd);
    fd = open_client(); /* one that waits is gone when it says so */
    SEND(fd, put_list(&b_, STORE_WAIT, KEYS("never")));
    ck_assert_int_eq(shutdown(fd, SHUT_WR), 0);
    raw_expect_closed(fd);
    buf_fini(&want);
    free(bytes);
    server_stop(server);
}
END_TEST

/* Reads nothing of what it asks for: the server stops reading from it, then drops it. */
START_TEST(a_reader_that_does_not_read)
{
    WITH_SERVER(_i, .stall_ms = 200);
    int fd = open_client(), good = open_client();
    int small = 65536;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    SEND(good, put_sized(&b_, STORE_SET, 1, 32 << 20));
    raw_expect_silence(good);
    struct buf b = BUF_INIT;
    for (int i = 0; i < 100000; i++) {
        put_key(&b, STORE_GET, "k");
        put_key(&b, STORE_GET, "a longer key that is not there");
    }
    /* The client goes on sending until it is stopped (the socket takes no more) and dropped. */
    bool stopped = false, dropped = false;
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    for (size_t at = 0; !dropped && mono_ns() < end;) {
        ssize_t n = at < b.len ? send(fd, b.data + at, b.len - at, MSG_DONTWAIT | MSG_NOSIGNAL)
                               : send(fd, b.data, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0)
            at += (size_t)n;
        stopped = stopped || (n < 0 && errno == EAGAIN);
        dropped = n < 0 && (errno == ECONNRESET || errno == EPIPE);
        struct pollfd p = {fd, POLLOUT, 0};
        if (n < 0 && !dropped)
            poll(&p, 1, 10);
        raw_expect_silence(good);
    }
    ck_assert(stopped);
    ck_assert(dropped);
    if (_i == SERVER_LOOP) {
        struct store_server_stats s = server_stats(server);
        ck_assert_uint_eq(s.rejected_for[STORE_ERR_STALLED], 1);
        ck_assert_uint_lt(s.requests, 200000); /* its requests were not all taken */
        ck_assert_uint_eq(s.connections, 1);
    }
    buf_fini(&b);
    close(fd);
    close(good);
    server_stop(server);
}
END_TEST

/* A slow reader that does read is served to the end, however long it takes. */
START_TEST(a_reader_that_reads_slowly)
{
    WITH_SERVER(_i, .stall_ms = 2000);
    int fd = open_client();
    SEND(fd, put_sized(&b_, STORE_SET, 1, 8 << 20));
    for (int i = 0; i < 12; i++) /* 96 MiB */
        SEND(fd, put_key(&b_, STORE_GET, "k"));
    struct buf want = BUF_INIT;
    uint8_t *bytes = xmalloc(8 << 20);
    memset(bytes, 'k', 8 << 20);
    put_bytes(&want, bytes, 8 << 20);
    for (int i = 0; i < 12; i++)
        for (size_t at = 0; at < want.len;) {
            size_t some = want.len - at < 100000 ? want.len - at : 100000;
            raw_expect(fd, want.data + at, some);
            at += some;
        }
    raw_expect_silence(fd);
    buf_fini(&want);
    free(bytes);
    close(fd);
    server_stop(server);
}
END_TEST

START_TEST(reset_while_clients_wait)
{
    WITH_SERVER(SERVER_LOOP);
    int waiting = open_client(), idle = open_client(), half = open_client();
    set(idle, "k", "of the last round");
    raw_expect_silence(idle);
    wait_for(waiting, "never");
    SEND(half, put_hex(&b_, "01 01 00"));
    server_reset(server);
    raw_expect_closed(waiting);
    raw_expect_closed(idle);
    raw_expect_closed(half);
    struct store_server_stats s = server_stats(server);
    ck_assert_uint_eq(s.connections + s.keys + s.bytes + s.requests + s.rejected, 0);
    int next = open_client();
    SEND(next, put_list(&b_, STORE_CHECK, KEYS("k")));
    raw_expect_u8(next, STORE_NOT_READY);
    close(next);
    server_stop(server);
}
END_TEST

START_TEST(stopping_while_clients_wait)
{
    WITH_SERVER(_i);
    int waiting = open_client(), half = open_client();
    wait_for(waiting, "never");
    SEND(half, put_hex(&b_, "01 01 00"));
    raw_expect_silence(waiting);
    server_stop(server);
    raw_expect_closed(waiting);
    raw_expect_closed(half);
}
END_TEST

/* --- Many --------------------------------------------------------------------------------------*/

START_TEST(a_thousand_clients)
{
    enum { N = 1000 };
    static int fd[N];
    struct rlimit files = {4096, 20000};
    setrlimit(RLIMIT_NOFILE, &files);
    WITH_SERVER(_i);
    for (int i = 0; i < N; i++)
        fd[i] = raw_connect(server_port(server));
    for (int i = 0; i < N; i++) { /* all wait for one key */
        SEND(fd[i], put_hello(&b_), put_number(&b_, STORE_ADD, "init/", 1),
             put_list(&b_, STORE_WAIT, KEYS("go")));
    }
    static bool seen[N + 1];
    for (int i = 0; i < N; i++) {
        uint64_t n;
        ck_assert_int_eq(recv(fd[i], &n, 8, MSG_WAITALL), 8);
        ck_assert_uint_le(n, N);
        ck_assert(!seen[n]);
        seen[n] = true;
    }
    int other = open_client();
    set(other, "go", "1");
    for (int i = 0; i < N; i++)
        raw_expect_u8(fd[i], STORE_STOP_WAITING);
    for (int i = 0; i < N; i++)
        SEND(fd[i], put_number(&b_, STORE_BARRIER, "end", N));
    for (int i = 0; i < N; i++)
        raw_expect_u8(fd[i], STORE_STOP_WAITING);
    for (int i = 0; i < N; i++)
        close(fd[i]);
    raw_expect_silence(other);
    close(other);
    server_stop(server);
}
END_TEST

/* Descriptors run out: those who are connected are served on, the rest when some are free again. */
START_TEST(descriptors_run_out)
{
    struct rlimit files;
    int fd[64], more[8], n = 0;
    WITH_SERVER(SERVER_THREAD); /* the one that accepts itself */
    int good = open_client();
    raw_expect_silence(good);
    for (int i = 0; i < 8; i++)
        more[i] = socket(AF_INET, SOCK_STREAM, 0); /* ours to connect with */
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = (rlim_t)more[7] + 1;
    setrlimit(RLIMIT_NOFILE, &files);
    while (n < 64 && (fd[n] = dup(good)) >= 0)
        n++;
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    getpeername(good, (struct sockaddr *)&a, &len);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(connect(more[i], (struct sockaddr *)&a, len), 0); /* in the backlog */
    raw_expect_silence(good);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    for (int i = 0; i < 8; i++) {
        SEND(more[i], put_hello(&b_));
        raw_expect_silence(more[i]);
        close(more[i]);
    }
    while (n > 0)
        close(fd[--n]);
    close(good);
    server_stop(server);
}
END_TEST

static void ignore_signal(int signo)
{
    (void)signo;
}

START_TEST(the_thread_takes_no_signals)
{
    struct err e = ERR_INIT;
    struct store_thread *t, *second;
    sigset_t usr1;
    struct sigaction sa = {.sa_handler = ignore_signal};
    sigaction(SIGUSR1, &sa, NULL);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    ck_assert_int_eq(store_thread_new(&t, &(struct store_thread_opts){.port = 0}, &e), 0);
    /* Blocked here and blocked there: it stays pending until we take it. */
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    kill(getpid(), SIGUSR1);
    int fd = raw_open(store_thread_port(t)); /* any address: IPv4 is served, too */
    raw_expect_silence(fd);
    struct timespec limit = {10, 0};
    ck_assert_int_eq(sigtimedwait(&usr1, NULL, &limit), SIGUSR1);
    /* A port in use, an address that is none. */
    struct store_thread_opts opts = {.port = store_thread_port(t)};
    ck_assert_int_eq(store_thread_new(&second, &opts, &e), -EADDRINUSE);
    ck_assert_ptr_nonnull(strstr(e.msg, "in use"));
    opts = (struct store_thread_opts){.addr = "nowhere"};
    ck_assert_int_eq(store_thread_new(&second, &opts, &e), -EINVAL);
    close(fd);
    store_thread_free(t);
    store_thread_free(NULL);
}
END_TEST

/* --- A history ---------------------------------------------------------------------------------*/

/* Clients add to one counter and hand a lock around by COMPARE_SET, with the times noted. Seen from
 * outside, everything must have happened at one moment between its call and its return. */
#define CLIENTS 8
#define ADDS    300

struct moment {
    uint64_t call, back;
    int64_t result;
};

static struct moment adds[CLIENTS][ADDS];
static int lock_holders, lock_errors;

static void check_rc(int rc, const struct err *e)
{
    if (rc < 0)
        fprintf(stderr, "%s\n", e->msg), abort(); /* ck_assert is not for threads */
}

static void with_lock(struct store_client *c, const char *me, struct err *e)
{
    int64_t times;
    char key[32];
    for (int64_t n = 0;; n++) {
        void *now;
        size_t len;
        check_rc(store_client_compare_set(c, "lock", "free", 4, me, strlen(me), &now, &len, e), e);
        bool mine = len == strlen(me) && memcmp(now, me, len) == 0;
        free(now);
        if (mine)
            break;
    }
    if (__atomic_add_fetch(&lock_holders, 1, __ATOMIC_SEQ_CST) != 1)
        __atomic_add_fetch(&lock_errors, 1, __ATOMIC_SEQ_CST);
    snprintf(key, sizeof(key), "log/%s", me);
    check_rc(store_client_add(c, key, 1, &times, e), e);
    __atomic_sub_fetch(&lock_holders, 1, __ATOMIC_SEQ_CST);
    check_rc(store_client_set(c, "lock", "free", 4, e), e);
}

static void *history_client(void *arg)
{
    int i = (int)(intptr_t)arg;
    int64_t here;
    struct store_client *c;
    struct err e = ERR_INIT;
    char me[16], key[32];
    check_rc(store_client_new(&c, "127.0.0.1", server_port(server), 20000, &e), &e);
    snprintf(me, sizeof(me), "client%d", i);
    check_rc(store_client_add(c, "here", 1, &here, &e), &e);
    if (here == CLIENTS)
        check_rc(store_client_set(c, "start", NULL, 0, &e), &e);
    check_rc(store_client_wait(c, KEYS("start"), 1, 20000, &e), &e);
    for (int k = 0; k < ADDS; k++) {
        struct moment *m = &adds[i][k];
        m->call = mono_ns();
        check_rc(store_client_add(c, "counter", 1, &m->result, &e), &e);
        m->back = mono_ns();
        /* Each waits for what the one before it stores. */
        snprintf(key, sizeof(key), "%d/%d", i, k);
        check_rc(store_client_set(c, key, &k, sizeof(k), &e), &e);
        snprintf(key, sizeof(key), "%d/%d", (i + 1) % CLIENTS, k);
        void *val;
        size_t len;
        check_rc(store_client_get(c, key, &val, &len, 20000, &e), &e);
        if (len != sizeof(k) || memcmp(val, &k, len) != 0)
            abort();
        free(val);
        if (k % 10 == 0)
            with_lock(c, me, &e);
    }
    store_client_free(c);
    return NULL;
}

static int by_result(const void *a, const void *b)
{
    const struct moment *x = a, *y = b;
    return x->result < y->result ? -1 : x->result > y->result;
}

START_TEST(a_history_that_makes_sense)
{
    pthread_t thread[CLIENTS];
    WITH_SERVER(_i);
    int fd = open_client();
    set(fd, "lock", "free");
    raw_expect_silence(fd);
    for (int i = 0; i < CLIENTS; i++)
        pthread_create(&thread[i], NULL, history_client, (void *)(intptr_t)i);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(thread[i], NULL);
    ck_assert_int_eq(lock_errors, 0);
    /* Every sum was given out once; and whoever had its answer before another asked has the lower
     * one: going down from the highest, nobody is called after the earliest return so far. */
    struct moment *all = &adds[0][0];
    qsort(all, CLIENTS * ADDS, sizeof(*all), by_result);
    uint64_t earliest_back = UINT64_MAX;
    for (int i = CLIENTS * ADDS - 1; i >= 0; i--) {
        ck_assert_int_eq(all[i].result, i + 1);
        ck_assert_uint_le(all[i].call, earliest_back);
        if (all[i].back < earliest_back)
            earliest_back = all[i].back;
    }
    SEND(fd, put_key(&b_, STORE_GET, "log/client0"));
    raw_expect_value(fd, "30");
    close(fd);
    server_stop(server);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("store_server");
    TCase *tc = test_case(s, "protocol", 60);
    tcase_add_loop_test(tc, a_conversation, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, waiting_and_being_woken, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, cancelling_races_with_the_key, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, lists_of_keys, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, gone_while_waiting, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, arithmetic_on_text_ends_only_that_connection, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, queues, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, a_barrier_of_many_most_of_whom_gave_up, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, limits, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, older_clients, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, watching_by_clients_of_113, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, giving_up_by_clients_of_113, 0, SERVER_KINDS);
    tc = test_case(s, "misbehaviour", 60);
    tcase_add_loop_test(tc, other_protocols, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, silent_half_and_slow_ones_hold_up_nobody, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, half_closed, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, a_reader_that_does_not_read, 0, SERVER_KINDS);
    tcase_add_loop_test(tc, a_reader_that_reads_slowly, 0, SERVER_KINDS);
    tcase_add_test(tc, reset_while_clients_wait);
    tcase_add_loop_test(tc, stopping_while_clients_wait, 0, SERVER_KINDS);
    tc = test_case(s, "many", 60);
    tcase_add_loop_test(tc, a_thousand_clients, 0, SERVER_KINDS);
    tcase_add_test(tc, descriptors_run_out);
    tcase_add_test(tc, the_thread_takes_no_signals);
    tc = test_case(s, "history", 60);
    tcase_add_loop_test(tc, a_history_that_makes_sense, 0, SERVER_KINDS);
    return s;
}

TEST_MAIN(suite)
