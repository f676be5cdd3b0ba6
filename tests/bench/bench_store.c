/* bench_store: the clients that measure a store server, and the floor they are compared with.
 *
 *     bench_store run PORT KIND OP CLIENTS MS    one line: usec p50, usec p99, ops/s
 *     bench_store idle PORT KIND COUNT           prints "ready" when so many are connected; stays
 *     bench_store floor                          prints its port; serves until its parent dies
 *
 * KIND: newest (a store for torch 2.5 and later), 113 (torch 1.13's), floor. Every client is a
 * process with one blocking socket, one request under way, 64-byte values. OP:
 *     set   SET, and a CHECK in the same write, so that the answer says it is stored
 *     get   WAIT, answer, GET, answer: what torch's clients do
 *     add   ADD to a counter that all share
 *     wait  WAIT for a key that is there
 * The floor is a bare epoll server on one thread that answers messages of the same sizes; a client
 * tells it first which sizes those are. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/clock.h"
#include "core/mem.h"
#include "rendezvous/store/store_proto.h"

#define VALUE_BYTES 64
#define CLIENTS_MAX 1024
#define TRIPS_MAX   2

static void fail(const char *what)
{
    fprintf(stderr, "bench_store: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* --- The floor ---------------------------------------------------------------------------------*/

struct floor_conn {
    int fd;
    struct sizes {
        uint32_t trips;
        uint32_t of[2 * TRIPS_MAX]; /* request, reply, request, reply */
    } sizes;
    bool introduced;
    uint32_t trip, got;
};

static void floor_serve(struct floor_conn *c, ssize_t n)
{
    static const uint8_t reply[4096];
    c->got += (uint32_t)n;
    while (c->got >= c->sizes.of[2 * c->trip]) {
        c->got -= c->sizes.of[2 * c->trip];
        if (send(c->fd, reply, c->sizes.of[2 * c->trip + 1], MSG_NOSIGNAL) < 0)
            break;
        c->trip = (c->trip + 1) % c->sizes.trips;
    }
}

static _Noreturn void serve_floor(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), ep = epoll_create1(0), on = 1;
    if (bind(listener, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(listener, 4096) < 0 ||
        getsockname(listener, (struct sockaddr *)&a, &len) < 0)
        fail("listen");
    struct epoll_event ev[64] = {{.events = EPOLLIN}};
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, ev);
    printf("%d\n", ntohs(a.sin_port));
    fflush(stdout);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    for (;;) {
        int n = epoll_wait(ep, ev, 64, -1);
        for (int i = 0; i < n; i++) {
            static uint8_t in[65536];
            struct floor_conn *c = ev[i].data.ptr;
            if (!c) {
                int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (fd < 0)
                    continue;
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
                c = xcalloc(1, sizeof(*c));
                c->fd = fd;
                struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
                epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
                continue;
            }
            ssize_t got = c->introduced ? recv(c->fd, in, sizeof(in), 0)
                                        : recv(c->fd, &c->sizes, sizeof(c->sizes), MSG_WAITALL);
            if (got <= 0) {
                close(c->fd);
                free(c);
            } else if (c->introduced) {
                floor_serve(c, got);
            } else {
                c->introduced = true;
            }
        }
    }
}

/* --- Clients -----------------------------------------------------------------------------------*/

struct trip {
    struct buf request;
    size_t reply;
};

struct plan {
    struct trip trips[TRIPS_MAX];
    uint32_t n;
};

static struct store_view text(const char *s)
{
    return (struct store_view){(const uint8_t *)s, strlen(s)};
}

static void put_key_list(struct buf *b, enum store_dialect d, enum store_cmd cmd, const char *key)
{
    struct buf items = BUF_INIT;
    store_items_put(&items, key, strlen(key));
    store_encode(b, d,
                 &(struct store_request){.cmd = cmd, .count = 1, .items = {items.data, items.len}});
    buf_fini(&items);
}

static void plan_op(struct plan *p, enum store_dialect d, const char *op, const char *key)
{
    static const uint8_t value[VALUE_BYTES];
    struct store_request r = {.key = text(key), .val = {value, sizeof(value)}, .number = 1};
    struct trip *t = p->trips;
    memset(p, 0, sizeof(*p));
    if (strcmp(op, "set") == 0) {
        r.cmd = STORE_SET;
        store_encode(&t->request, d, &r);
        put_key_list(&t->request, d, STORE_CHECK, key);
        t++->reply = 1;
    } else if (strcmp(op, "get") == 0) {
        put_key_list(&t->request, d, STORE_WAIT, key);
        t++->reply = 1;
        r.cmd = STORE_GET;
        store_encode(&t->request, d, &r);
        t++->reply = 8 + VALUE_BYTES;
    } else if (strcmp(op, "add") == 0) {
        r.cmd = STORE_ADD;
        r.key = text("/bench/counter");
        store_encode(&t->request, d, &r);
        t++->reply = 8;
    } else if (strcmp(op, "wait") == 0) {
        put_key_list(&t->request, d, STORE_WAIT, key);
        t++->reply = 1;
    } else {
        errno = EINVAL;
        fail(op);
    }
    p->n = (uint32_t)(t - p->trips);
}

static void send_all(int fd, const struct buf *b)
{
    if (send(fd, b->data, b->len, MSG_NOSIGNAL) != (ssize_t)b->len)
        fail("send");
}

static void receive_all(int fd, size_t n)
{
    static uint8_t in[4096];
    for (size_t at = 0; at < n;) {
        ssize_t r = recv(fd, in, n - at, 0);
        if (r == 0)
            errno = ECONNRESET;
        if (r <= 0)
            fail("recv");
        at += (size_t)r;
    }
}

static int connect_to(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return fd;
}

/* Sends the messages before the first measured request: hello, then the key's value, or the sizes
 * for the floor. */
static void introduce(int fd, const char *kind, enum store_dialect d, const char *key,
                      const struct plan *p)
{
    struct buf b = BUF_INIT;
    if (strcmp(kind, "floor") == 0) {
        buf_u32(&b, p->n);
        for (uint32_t i = 0; i < TRIPS_MAX; i++) {
            buf_u32(&b, (uint32_t)p->trips[i].request.len);
            buf_u32(&b, (uint32_t)p->trips[i].reply);
        }
        send_all(fd, &b);
    } else {
        struct plan set;
        if (d == STORE_NEWEST)
            store_encode(&b, d,
                         &(struct store_request){.cmd = STORE_VALIDATE, .word = STORE_MAGIC});
        plan_op(&set, d, "set", key);
        buf_put(&b, set.trips[0].request.data, set.trips[0].request.len);
        send_all(fd, &b);
        receive_all(fd, 1);
        buf_fini(&set.trips[0].request);
    }
    buf_fini(&b);
}

/* Shared with the parent. */
struct result {
    double p50, p99, rate;
};

static struct shared {
    _Atomic int ready, go;
    struct result of[CLIENTS_MAX];
} * shared;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(struct result *r, int port, const char *kind, const char *op, int i, double ms)
{
    enum { MAX = 1 << 20 };
    enum store_dialect d = strcmp(kind, "113") == 0 ? STORE_113 : STORE_NEWEST;
    double *usec = xmalloc(MAX * sizeof(*usec));
    size_t n = 0;
    char key[32];
    struct plan p;
    snprintf(key, sizeof(key), "/bench/key%03d", i);
    plan_op(&p, d, op, key);
    int fd = connect_to(port);
    introduce(fd, kind, d, key, &p);
    shared->ready++;
    while (!shared->go)
        usleep(200);
    uint64_t start = mono_ns(), end = start + (uint64_t)(ms * 1e6), now = start;
    while (now < end && n < MAX) {
        for (uint32_t t = 0; t < p.n; t++) {
            send_all(fd, &p.trips[t].request);
            receive_all(fd, p.trips[t].reply);
        }
        uint64_t then = now;
        now = mono_ns();
        usec[n++] = (double)(now - then) * 1e-3;
    }
    qsort(usec, n, sizeof(*usec), by_value);
    *r = (struct result){usec[n / 2], usec[n * 99 / 100],
                         (double)n / ((double)(now - start) * 1e-9)};
}

static int run(int port, const char *kind, const char *op, int clients, double ms)
{
    if (clients < 1 || clients > CLIENTS_MAX)
        return 2;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < clients; i++) {
        pid_t pid = fork();
        if (pid < 0)
            fail("fork");
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            measure(&shared->of[i], port, kind, op, i, ms);
            _exit(0);
        }
    }
    while (shared->ready < clients) {
        int status;
        if (waitpid(-1, &status, WNOHANG) > 0)
            return 1; /* it has said why */
        usleep(1000);
    }
    shared->go = 1;
    double p50[CLIENTS_MAX], p99[CLIENTS_MAX], rate = 0;
    for (int i = 0, status; i < clients; i++)
        if (wait(&status) < 0 || status)
            return 1;
    for (int i = 0; i < clients; i++) {
        p50[i] = shared->of[i].p50;
        p99[i] = shared->of[i].p99;
        rate += shared->of[i].rate;
    }
    qsort(p50, (size_t)clients, sizeof(*p50), by_value);
    qsort(p99, (size_t)clients, sizeof(*p99), by_value);
    printf("%.1f %.1f %.0f\n", p50[clients / 2], p99[clients / 2], rate);
    return 0;
}

static _Noreturn void stay_idle(int port, const char *kind, int count)
{
    struct rlimit files;
    enum store_dialect d = strcmp(kind, "113") == 0 ? STORE_113 : STORE_NEWEST;
    struct plan p;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    plan_op(&p, d, "set", "/bench/idle");
    uint64_t start = mono_ns();
    for (int i = 0; i < count; i++)
        introduce(connect_to(port), kind, d, "/bench/idle", &p);
    printf("ready %.0f ms\n", (double)(mono_ns() - start) * 1e-6);
    fflush(stdout);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "floor") == 0)
        serve_floor();
    if (argc == 5 && strcmp(argv[1], "idle") == 0)
        stay_idle(atoi(argv[2]), argv[3], atoi(argv[4]));
    if (argc == 7 && strcmp(argv[1], "run") == 0)
        return run(atoi(argv[2]), argv[3], argv[4], atoi(argv[5]), atof(argv[6]));
    fprintf(stderr, "usage: bench_store run PORT newest|113|floor set|get|add|wait CLIENTS MS\n"
                    "       bench_store idle PORT newest|113|floor COUNT\n"
                    "       bench_store floor\n");
    return 2;
}
