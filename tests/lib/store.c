#include "tests/lib/store.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/mem.h"
#include "rendezvous/store/store_thread.h"
#include "tests/lib/test.h"

/* --- Servers -----------------------------------------------------------------------------------*/

enum order { NONE, RESET, STATS, STOP };

struct test_server {
    int kind, port;
    struct store_thread *thread;

    pthread_t loop_thread;
    uv_loop_t loop;
    uv_async_t wake;
    uv_poll_t listener;
    int fd;
    struct store_server *server;
    struct store_server_opts opts;
    pthread_mutex_t lock;
    pthread_cond_t answered;
    enum order order;
    struct store_server_stats stats;
};

static void on_listener(uv_poll_t *h, int status, int events)
{
    struct test_server *s = container_of(h, struct test_server, listener);
    int fd;
    (void)status, (void)events;
    while ((fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
        store_server_adopt(s->server, fd);
}

static void on_server_closed(void *arg)
{
    struct test_server *s = arg;
    uv_close((uv_handle_t *)&s->listener, NULL);
    uv_close((uv_handle_t *)&s->wake, NULL);
}

static void on_wake(uv_async_t *h)
{
    struct test_server *s = container_of(h, struct test_server, wake);
    pthread_mutex_lock(&s->lock);
    if (s->order == RESET)
        store_server_reset(s->server);
    else if (s->order == STATS)
        store_server_get_stats(s->server, &s->stats);
    else if (s->order == STOP)
        store_server_close(s->server, on_server_closed, s);
    s->order = NONE;
    pthread_cond_signal(&s->answered);
    pthread_mutex_unlock(&s->lock);
}

static void command(struct test_server *s, enum order order)
{
    ck_assert_int_eq(s->kind, SERVER_LOOP);
    pthread_mutex_lock(&s->lock);
    s->order = order;
    uv_async_send(&s->wake);
    while (s->order != NONE)
        pthread_cond_wait(&s->answered, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static void *run_loop(void *arg)
{
    struct test_server *s = arg;
    uv_run(&s->loop, UV_RUN_DEFAULT);
    return NULL;
}

static void start_loop(struct test_server *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(bind(s->fd, (struct sockaddr *)&a, sizeof(a)), 0);
    ck_assert_int_eq(listen(s->fd, 4096), 0);
    ck_assert_int_eq(getsockname(s->fd, (struct sockaddr *)&a, &len), 0);
    s->port = ntohs(a.sin_port);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->answered, NULL);
    ck_assert_int_eq(uv_loop_init(&s->loop), 0);
    s->server = store_server_new(&s->loop, &s->opts);
    uv_async_init(&s->loop, &s->wake, on_wake);
    uv_poll_init(&s->loop, &s->listener, s->fd);
    uv_poll_start(&s->listener, UV_READABLE, on_listener);
    ck_assert_int_eq(pthread_create(&s->loop_thread, NULL, run_loop, s), 0);
}

struct test_server *server_start(int kind, const struct store_server_opts *opts)
{
    struct test_server *s = xcalloc(1, sizeof(*s));
    s->kind = kind;
    s->opts = opts ? *opts : (struct store_server_opts){.legacy_113 = false};
    if (kind == SERVER_LOOP) {
        start_loop(s);
        return s;
    }
    struct err e = ERR_INIT;
    struct store_thread_opts t = {
        .addr = "127.0.0.1", .legacy_113 = s->opts.legacy_113, .stall_ms = s->opts.stall_ms};
    ck_assert_msg(store_thread_new(&s->thread, &t, &e) == 0, "%s", e.msg);
    s->port = store_thread_port(s->thread);
    return s;
}

int server_port(const struct test_server *s)
{
    return s->port;
}

void server_stop(struct test_server *s)
{
    if (s->kind == SERVER_LOOP) {
        command(s, STOP);
        pthread_join(s->loop_thread, NULL);
        ck_assert_msg(uv_loop_close(&s->loop) == 0, "handles left open");
        close(s->fd);
    } else {
        store_thread_free(s->thread);
    }
    free(s);
}

void server_reset(struct test_server *s)
{
    command(s, RESET);
}

struct store_server_stats server_stats(struct test_server *s)
{
    command(s, STATS);
    return s->stats;
}

/* --- Servers that are none ---------------------------------------------------------------------*/

static void *play(void *arg)
{
    struct fake *f = arg;
    int fd = -1;
    for (int i = 0; i < f->n; i++) {
        static uint8_t in[1 << 16];
        const struct act *a = &f->acts[i];
        if (fd < 0)
            fd = accept(f->listener, NULL, NULL);
        for (size_t at = 0; at < a->take;) {
            ssize_t n = recv(fd, in + at, a->take - at, 0);
            if (n <= 0)
                break;
            at += (size_t)n;
        }
        struct buf b = BUF_INIT;
        if (a->say && strcmp(a->say, "PING") == 0)
            buf_put(&b, in + a->take - 4, 4);
        else if (a->say)
            put_hex(&b, a->say);
        if (b.len && send(fd, b.data, b.len, MSG_NOSIGNAL) < 0)
            break;
        buf_fini(&b);
        if (a->stay && (!a->first || in[0] == a->first))
            continue;
        close(fd);
        fd = -1;
    }
    char byte;
    if (fd >= 0 && read(f->ended[0], &byte, 1) >= 0)
        close(fd);
    return NULL;
}

int listen_anywhere(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    ck_assert_int_eq(listen(fd, 16), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

void fake_start(struct fake *f, const struct act *acts, int n)
{
    *f = (struct fake){.acts = acts, .n = n};
    f->listener = listen_anywhere(&f->port);
    ck_assert_int_eq(pipe(f->ended), 0);
    pthread_create(&f->thread, NULL, play, f);
}

void fake_end(struct fake *f)
{
    close(f->ended[1]);
    pthread_join(f->thread, NULL);
    close(f->ended[0]);
    close(f->listener);
}

/* --- Requests as bytes -------------------------------------------------------------------------*/

static struct store_view text(const char *s)
{
    return (struct store_view){(const uint8_t *)s, strlen(s)};
}

static void put(struct buf *b, const struct store_request *r)
{
    store_encode(b, STORE_NEWEST, r);
}

void put_hello(struct buf *b)
{
    put(b, &(struct store_request){.cmd = STORE_VALIDATE, .word = STORE_MAGIC});
}

void put_ping(struct buf *b, uint32_t nonce)
{
    put(b, &(struct store_request){.cmd = STORE_PING, .word = nonce});
}

void put_plain(struct buf *b, enum store_cmd cmd)
{
    put(b, &(struct store_request){.cmd = cmd});
}

void put_key(struct buf *b, enum store_cmd cmd, const char *key)
{
    put(b, &(struct store_request){.cmd = cmd, .key = text(key)});
}

void put_set(struct buf *b, enum store_cmd cmd, const char *key, const char *val)
{
    put(b, &(struct store_request){.cmd = cmd, .key = text(key), .val = text(val)});
}

void put_number(struct buf *b, enum store_cmd cmd, const char *key, int64_t number)
{
    put(b, &(struct store_request){.cmd = cmd, .key = text(key), .number = number});
}

void put_compare(struct buf *b, const char *key, const char *expected, const char *desired)
{
    put(b, &(struct store_request){.cmd = STORE_COMPARE_SET,
                                   .key = text(key),
                                   .expected = text(expected),
                                   .val = text(desired)});
}

static void put_strings(struct buf *b, enum store_cmd cmd, const char *const *strings, size_t each)
{
    struct buf items = BUF_INIT;
    size_t n = 0;
    for (; strings[n]; n++)
        store_items_put(&items, strings[n], strlen(strings[n]));
    put(b,
        &(struct store_request){.cmd = cmd, .count = n / each, .items = {items.data, items.len}});
    buf_fini(&items);
}

void put_list(struct buf *b, enum store_cmd cmd, const char *const *keys)
{
    put_strings(b, cmd, keys, 1);
}

void put_pairs(struct buf *b, const char *const *keys_and_values)
{
    put_strings(b, STORE_MULTI_SET, keys_and_values, 2);
}

void put_bytes(struct buf *b, const void *p, size_t n)
{
    store_items_put(b, p, n);
}

void put_hex(struct buf *b, const char *hex)
{
    for (unsigned v, n; sscanf(hex, " %2x%n", &v, (int *)&n) == 1; hex += n)
        buf_u8(b, (uint8_t)v);
}

/* --- A client on a socket ----------------------------------------------------------------------*/

int raw_connect(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = (time_t)test_seconds(20)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    ck_assert_int_ge(fd, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    ck_assert_msg(connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0, "connect: %s",
                  strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return fd;
}

int raw_open(int port)
{
    struct buf b = BUF_INIT;
    int fd = raw_connect(port);
    put_hello(&b);
    raw_send(fd, &b);
    return fd;
}

void raw_send(int fd, struct buf *b)
{
    ck_assert(!b->oom);
    for (size_t at = 0; at < b->len;) {
        ssize_t n = send(fd, b->data + at, b->len - at, MSG_NOSIGNAL);
        ck_assert_msg(n > 0, "send: %s", strerror(errno));
        at += (size_t)n;
    }
    buf_fini(b);
}

void raw_expect(int fd, const void *p, size_t n)
{
    const uint8_t *want = p;
    uint8_t got[65536];
    for (size_t at = 0; at < n;) {
        size_t some = n - at < sizeof(got) ? n - at : sizeof(got);
        ssize_t r = recv(fd, got, some, 0);
        ck_assert_msg(r > 0, "%zu of %zu bytes came, then: %s", at, n,
                      r == 0 ? "end of file" : strerror(errno));
        ssize_t same = 0;
        while (same < r && got[same] == want[at + (size_t)same])
            same++;
        ck_assert_msg(same == r, "byte %zu of %zu is %02x, not %02x", at + (size_t)same, n,
                      got[same], want[at + (size_t)same]);
        at += (size_t)r;
    }
}

static void expect(int fd, struct buf *b)
{
    raw_expect(fd, b->data, b->len);
    buf_fini(b);
}

void raw_expect_u8(int fd, uint8_t v)
{
    raw_expect(fd, &v, 1);
}

void raw_expect_i64(int fd, int64_t v)
{
    struct buf b = BUF_INIT;
    buf_u64(&b, (uint64_t)v);
    expect(fd, &b);
}

int64_t raw_num_keys(int fd)
{
    struct buf b = BUF_INIT;
    uint8_t answer[8];
    struct rd r = rd_init(answer, sizeof(answer));
    put_plain(&b, STORE_GETNUMKEYS);
    raw_send(fd, &b);
    ck_assert_int_eq(recv(fd, answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
    return (int64_t)rd_u64(&r);
}

void raw_expect_value(int fd, const char *val)
{
    struct buf b = BUF_INIT;
    put_bytes(&b, val, strlen(val));
    expect(fd, &b);
}

void raw_expect_silence(int fd)
{
    struct buf b = BUF_INIT;
    put_ping(&b, 0xfeedbeef);
    raw_send(fd, &b);
    buf_u32(&b, 0xfeedbeef);
    expect(fd, &b);
}

void raw_expect_closed(int fd)
{
    uint8_t got;
    ssize_t n = recv(fd, &got, 1, 0);
    ck_assert_msg(n == 0 || (n < 0 && errno == ECONNRESET), "not closed: %s",
                  n > 0 ? "a byte came" : strerror(errno));
    close(fd);
}
