/* tcp_ways: what moves bytes over TCP between two processes fastest: one connection, several, sends
 * without copying (MSG_ZEROCOPY), io_uring; half of a round trip, median, in us.
 *
 *     tcp_ways ADDRESS [NETNS]      the other process listens at that address, in that namespace */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"

enum { STREAMS = 4, ENTRIES = 8, ROUNDS = 400, CHUNK = 1 << 20 };

struct way {
    const char *name;
    int streams;
    bool zerocopy, uring, spins;
};

static const struct way g_ways[] = {
    {"send, recv", 1, false, false, false},    {"not blocking", 1, false, false, true},
    {"2 connections", 2, false, false, true},  {"4 connections", 4, false, false, true},
    {"MSG_ZEROCOPY", 1, true, false, true},    {"io_uring", 1, false, true, false},
    {"io_uring, looks", 1, false, true, true},
};
enum { WAYS = sizeof(g_ways) / sizeof(g_ways[0]) };
static const size_t g_sizes[] = {8, 1024, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20};
enum { SIZES = sizeof(g_sizes) / sizeof(g_sizes[0]) };

struct side {
    int fd[STREAMS];
    uint32_t copies_begun, copies_ended; /* sends with MSG_ZEROCOPY */
    uint8_t *out, *in;
    int ring;
    struct io_uring_sqe *sqes;
    _Atomic uint32_t *sq_tail, *cq_head, *cq_tail;
    uint32_t sq_mask, cq_mask, *sq_array;
    struct io_uring_cqe *cqes;
};

static void die(const char *what)
{
    perror(what);
    _exit(1);
}

/* ----------------------------------------------------------------------------------------- calls
 */

/* What the kernel says about sends that it did not copy. */
static void reap(struct side *s)
{
    char control[128];
    struct msghdr m = {.msg_control = control, .msg_controllen = sizeof(control)};
    while (recvmsg(s->fd[0], &m, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0) {
        struct sock_extended_err *e = (void *)CMSG_DATA(CMSG_FIRSTHDR(&m));
        s->copies_ended = e->ee_data + 1;
        m.msg_controllen = sizeof(control);
    }
}

/* A part of the message for each connection, all at once. */
static void move(struct side *s, const struct way *w, size_t n, bool sends)
{
    size_t part = n / (size_t)w->streams, at[STREAMS] = {0};
    for (size_t left = n / (size_t)w->streams * (size_t)w->streams; left;) {
        for (int i = 0; i < w->streams; i++) {
            size_t more = part - at[i] < CHUNK ? part - at[i] : CHUNK;
            uint8_t *p = (sends ? s->out : s->in) + (size_t)i * part + at[i];
            int flags = (w->spins ? MSG_DONTWAIT : 0) | (w->zerocopy && sends ? MSG_ZEROCOPY : 0);
            if (!more)
                continue;
            ssize_t got = sends ? send(s->fd[i], p, more, flags) : recv(s->fd[i], p, more, flags);
            if (got < 0 && errno == ENOBUFS && w->zerocopy)
                reap(s);
            else if (got < 0 ? errno != EAGAIN && errno != EINTR : got == 0)
                die(sends ? "send" : "recv");
            if (got <= 0)
                continue;
            s->copies_begun += w->zerocopy && sends;
            at[i] += (size_t)got;
            left -= (size_t)got;
        }
    }
    while (w->zerocopy && sends && s->copies_ended != s->copies_begun)
        reap(s); /* the buffer may be used again */
}

/* -------------------------------------------------------------------------------------- io_uring
 */

static void open_ring(struct side *s)
{
    struct io_uring_params p = {0};
    s->ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &p);
    if (s->ring < 0)
        return;
    size_t sq = p.sq_off.array + p.sq_entries * 4;
    size_t cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    int prot = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    uint8_t *base = mmap(NULL, sq > cq ? sq : cq, prot, flags, s->ring, IORING_OFF_SQ_RING);
    s->sqes = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), prot, flags, s->ring,
                   IORING_OFF_SQES);
    if (base == MAP_FAILED || s->sqes == MAP_FAILED || !(p.features & IORING_FEAT_SINGLE_MMAP))
        die("io_uring");
    s->sq_tail = (void *)(base + p.sq_off.tail);
    s->sq_mask = *(uint32_t *)(base + p.sq_off.ring_mask);
    s->sq_array = (uint32_t *)(base + p.sq_off.array);
    s->cq_head = (void *)(base + p.cq_off.head);
    s->cq_tail = (void *)(base + p.cq_off.tail);
    s->cq_mask = *(uint32_t *)(base + p.cq_off.ring_mask);
    s->cqes = (struct io_uring_cqe *)(base + p.cq_off.cqes);
}

static void put(struct side *s, uint8_t op, uint8_t *p, size_t n, uint64_t what)
{
    uint32_t tail = atomic_load_explicit(s->sq_tail, memory_order_relaxed), i = tail & s->sq_mask;
    s->sqes[i] = (struct io_uring_sqe){.opcode = op,
                                       .fd = s->fd[0],
                                       .addr = (uintptr_t)p,
                                       .len = (uint32_t)n,
                                       .msg_flags = MSG_WAITALL,
                                       .user_data = what};
    s->sq_array[i] = i;
    atomic_store_explicit(s->sq_tail, tail + 1, memory_order_release);
}

/* Sends (what & 1), receives (what & 2), or both: one call of the kernel, unless a part is short.
 */
static void move_by_ring(struct side *s, const struct way *w, size_t n, int what)
{
    size_t at[2] = {what & 1 ? 0 : n, what & 2 ? 0 : n};
    bool under_way[2] = {false, false};
    while (at[0] < n || at[1] < n) {
        uint32_t fresh = 0;
        for (int k = 0; k < 2; k++) {
            if (at[k] == n || under_way[k])
                continue;
            put(s, k ? IORING_OP_RECV : IORING_OP_SEND, (k ? s->in : s->out) + at[k], n - at[k],
                (uint64_t)k);
            under_way[k] = true;
            fresh++;
        }
        uint32_t least = w->spins ? 0 : (uint32_t)(under_way[0] + under_way[1]);
        if ((fresh || least) &&
            syscall(SYS_io_uring_enter, s->ring, fresh, least, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
            die("io_uring_enter");
        uint32_t head = atomic_load_explicit(s->cq_head, memory_order_relaxed);
        for (; head != atomic_load_explicit(s->cq_tail, memory_order_acquire); head++) {
            const struct io_uring_cqe *c = &s->cqes[head & s->cq_mask];
            if (c->res <= 0) {
                errno = -c->res;
                die("io_uring");
            }
            at[c->user_data] += (size_t)c->res;
            under_way[c->user_data] = false;
        }
        atomic_store_explicit(s->cq_head, head, memory_order_release);
    }
}

/* ----------------------------------------------------------------------------------------- rounds
 */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int rounds_of(size_t n)
{
    return n > CHUNK ? ROUNDS / 20 : ROUNDS;
}

/* Median of half a round trip; the one that answers receives first. */
static double run(struct side *s, const struct way *w, size_t n, bool answers)
{
    static double times[ROUNDS];
    int rounds = rounds_of(n);
    if (w->uring && answers)
        move_by_ring(s, w, n, 2);
    for (int i = 0; i < rounds; i++) {
        uint64_t began = mono_ns();
        if (w->uring) {
            move_by_ring(s, w, n, answers && i == rounds - 1 ? 1 : 3);
        } else {
            move(s, w, n, !answers);
            move(s, w, n, answers);
        }
        times[i] = (double)(mono_ns() - began) / 2e3;
    }
    qsort(times, (size_t)rounds, sizeof(*times), by_value);
    return times[rounds / 2];
}

static void be_alone(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

static void prepare(struct side *s)
{
    int one = 1;
    for (int i = 0; i < STREAMS; i++)
        setsockopt(s->fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(s->fd[0], SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one));
    s->out = mmap(NULL, g_sizes[SIZES - 1], PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    s->in = mmap(NULL, g_sizes[SIZES - 1], PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (s->out == MAP_FAILED || s->in == MAP_FAILED)
        die("mmap");
    open_ring(s);
}

static void run_all(struct side *s, bool answers)
{
    double medians[WAYS][3];
    for (int z = 0; z < SIZES; z++) {
        for (int k = 0; k < 3; k++) { /* interleaved */
            for (int i = 0; i < WAYS; i++)
                medians[i][k] =
                    g_ways[i].uring && s->ring < 0 ? 0 : run(s, &g_ways[i], g_sizes[z], answers);
        }
        if (answers)
            continue;
        printf("%9zu", g_sizes[z]);
        for (int i = 0; i < WAYS; i++) {
            qsort(medians[i], 3, sizeof(double), by_value);
            printf(" %15.2f", medians[i][1]);
        }
        printf("\n");
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    struct side s = {.ring = -1};
    int ready[2];
    if (argc < 2 || argc > 3 || inet_pton(AF_INET, argv[1], &a.sin_addr) != 1) {
        fprintf(stderr, "usage: tcp_ways ADDRESS [NETNS]\n");
        return 2;
    }
    if (pipe(ready) < 0)
        die("pipe");
    pid_t child = fork();
    be_alone(child ? 0 : 1);
    if (child == 0) {
        char path[256];
        socklen_t len = sizeof(a);
        snprintf(path, sizeof(path), "/var/run/netns/%s", argc == 3 ? argv[2] : "");
        if (argc == 3 && setns(open(path, O_RDONLY | O_CLOEXEC), CLONE_NEWNET) < 0)
            die(path);
        int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(l, (void *)&a, sizeof(a)) < 0 || listen(l, STREAMS) < 0 ||
            getsockname(l, (void *)&a, &len) < 0 ||
            write(ready[1], &a.sin_port, sizeof(a.sin_port)) != sizeof(a.sin_port))
            die(argv[1]);
        for (int i = 0; i < STREAMS; i++)
            s.fd[i] = accept(l, NULL, NULL);
        prepare(&s);
        run_all(&s, true);
        _exit(0);
    }
    close(ready[1]);
    if (read(ready[0], &a.sin_port, sizeof(a.sin_port)) != sizeof(a.sin_port))
        return 1;
    for (int i = 0; i < STREAMS; i++) {
        s.fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(s.fd[i], (void *)&a, sizeof(a)) < 0)
            die(argv[1]);
    }
    prepare(&s);
    printf("%9s", "bytes");
    for (int i = 0; i < WAYS; i++)
        printf(" %15s", g_ways[i].name);
    printf("\n");
    run_all(&s, false);
    int status;
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
