/* peer_limit.c: what this machine allows. Forks its ranks itself.
 *
 *     peer_limit RANKS NAME OPS SIZES BUDGET_MS
 *
 * The operations as they would be if every rank saw every other one's buffers: a flag from each
 * rank, one pass over the memory, in which each byte of input is read and each of output written
 * once, and a flag again. Nothing is checked in them, no rank may die, and all buffers are shared;
 * so this is a limit, not a library. BENCH_TCP=1: the ranks, a power of two, move over bare TCP
 * connections what any way of doing the operation must move at least, in as few rounds as it takes,
 * add it, and copy their own block of an all_to_all; nothing is compared. BENCH_MEANS=staged or
 * read: limit_private.h.
 *
 *     peer_limit machine
 *
 * One line for each: copying, adding, a flag from one CPU to the other, a socket. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collectives/reduce/reduce.h"
#include "tests/bench/coll/harness.h"
#include "tests/bench/coll/limit_private.h"

enum { RANKS_MAX = 64, PAST_CACHES = 4 << 20, BLOCK = 16 << 10 };

struct flag {
    _Alignas(128) _Atomic uint64_t count;
};

static struct shared {
    struct flag flags[RANKS_MAX], ball;
    double values[RANKS_MAX];
    _Atomic int agreed;
} * g;

static struct bench_peer g_peer;
static char *g_memory;
static size_t g_each; /* bytes of a rank's two buffers */
static uint64_t g_turn;
static bool g_crowded; /* more ranks than CPUs */
static struct reduce_info g_sum;
static int g_sockets[RANKS_MAX]; /* to each other rank */
static bool g_tcp;
static char *g_spare; /* for what is received and not kept */

/* ---------------------------------------------------------------------------------------- flags */

static void wait_for(_Atomic uint64_t *flag, uint64_t count)
{
    for (int i = 0; atomic_load_explicit(flag, memory_order_acquire) < count; i++) {
        if (g_crowded || i > 2000)
            sched_yield();
#if defined(__x86_64__)
        else
            __builtin_ia32_pause();
#endif
    }
}

static void barrier(void)
{
    g_turn++;
    atomic_store_explicit(&g->flags[g_peer.rank].count, g_turn, memory_order_release);
    for (int r = 0; r < g_peer.ranks; r++)
        wait_for(&g->flags[r].count, g_turn);
}

static int agree(int value)
{
    if (g_peer.rank == 0)
        g->agreed = value;
    barrier();
    value = g->agreed;
    barrier();
    return value;
}

static double most(double value)
{
    g->values[g_peer.rank] = value;
    barrier();
    for (int r = 0; r < g_peer.ranks; r++)
        value = g->values[r] > value ? g->values[r] : value;
    barrier();
    return value;
}

/* ----------------------------------------------------------------------------------- operations */

static char *of_rank(char *mine, int rank)
{
    return mine + ((ptrdiff_t)rank - g_peer.rank) * (ptrdiff_t)g_each;
}

/* Elements [from, to) of all ranks' a, summed into dst's of ranks [first, last]: in blocks that
 * stay in the cache while they are written to each. */
static void sum_into(char *a, char *dst, size_t shift, size_t from, size_t to, int first, int last)
{
    const void *src[RANKS_MAX];
    bool past = (to - from) * 4 >= PAST_CACHES;
    for (size_t i = from; i < to; i += BLOCK / 4) {
        size_t n = to - i < BLOCK / 4 ? to - i : BLOCK / 4;
        static _Alignas(64) char block[BLOCK];
        for (int r = 0; r < g_peer.ranks; r++)
            src[r] = of_rank(a, r) + i * 4;
        if (first == last) {
            char *to_one = of_rank(dst, first) + (i - shift) * 4;
            (past ? reduce_many_stream : reduce_many)(&g_sum, to_one, src, g_peer.ranks, n);
            continue;
        }
        reduce_many(&g_sum, block, src, g_peer.ranks, n);
        for (int r = first; r <= last; r++)
            memcpy(of_rank(dst, r) + i * 4, block, n * 4);
    }
}

static size_t slice(size_t count, int rank)
{
    return rank == g_peer.ranks ? count : count / (size_t)g_peer.ranks * (size_t)rank / 16 * 16;
}

static void pingpong(char *a, size_t count)
{
    static uint64_t turn;
    int me = g_peer.rank;
    if (me == 0)
        atomic_store_explicit(&g->ball.count, turn + 1, memory_order_release);
    wait_for(&g->ball.count, turn + (me ? 1 : 2));
    memcpy(a, of_rank(a, 1 - me), count * 4);
    if (me == 1)
        atomic_store_explicit(&g->ball.count, turn + 2, memory_order_release);
    turn += 2;
}

static void connect_pair(int fd[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(at);
    int l = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(l, (struct sockaddr *)&at, len) || listen(l, 1) ||
        getsockname(l, (struct sockaddr *)&at, &len) ||
        connect(fd[0], (struct sockaddr *)&at, len) || (fd[1] = accept(l, NULL, NULL)) < 0) {
        perror("socket");
        exit(1);
    }
    for (int i = 0; i < 2; i++) {
        setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        setsockopt(fd[i], IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    }
    close(l);
}

/* Both ways at once, without blocking, as an all_reduce of two ranks over TCP moves data. */
static void swap(int fd, const char *out, size_t out_len, char *in, size_t in_len)
{
    const size_t most = 256 << 10;
    size_t sent = 0, got = 0;
    for (int idle = 0; sent < out_len || got < in_len; idle++) {
        size_t before = sent + got, left = out_len - sent;
        ssize_t n =
            left ? send(fd, out + sent, left < most ? left : most, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
        sent += n > 0 ? (size_t)n : 0;
        n = got < in_len ? recv(fd, in + got, in_len - got, MSG_DONTWAIT) : 0;
        got += n > 0 ? (size_t)n : 0;
        if (sent + got != before)
            idle = 0;
        if (idle > (g_crowded ? 1 : 1000))
            sched_yield();
    }
}

static void swap_with(int rank, const char *out, size_t out_len, char *in, size_t in_len)
{
    swap(g_sockets[rank], out, out_len, in, in_len);
}

/* Adds what has come to len bytes of a. */
static void add_spare(char *a, size_t len)
{
    const void *src[] = {a, g_spare};
    reduce_many(&g_sum, a, src, 2, len / 4);
}

/* Does what a reduce_scatter of a vector of len bytes must do: log(n) rounds, (n - 1) / n of the
 * vector in, out and added, which is the least. */
static void halve(char *a, size_t len)
{
    for (int bit = g_peer.ranks / 2; bit; bit /= 2) {
        len /= 2;
        swap_with(g_peer.rank ^ bit, a, len, g_spare, len);
        add_spare(a, len);
    }
}

/* Each rank gets all parts: the reverse. */
static void gather(char *a, size_t part)
{
    for (int bit = 1; bit < g_peer.ranks; bit *= 2, part *= 2)
        swap_with(g_peer.rank ^ bit, a, part, a + part, part);
}

/* From the root, or to it, along a binomial tree: len bytes for each rank but the root. */
static void along_tree(char *a, size_t len, bool to_root)
{
    int n = g_peer.ranks,
        v = g_peer.rank ^ bench_root; /* a tree for each root: n is a power of 2 */
    int lowest = v ? v & -v : n;
    if (v && !to_root)
        swap_with(g_peer.rank ^ lowest, NULL, 0, a, len);
    for (int k = 1; k < n; k *= 2) {
        int bit = to_root ? k : n / 2 / k;
        if (bit < lowest)
            swap_with(g_peer.rank ^ bit, a, to_root ? 0 : len, g_spare, to_root ? len : 0);
        if (bit < lowest && to_root)
            add_spare(a, len);
    }
    if (v && to_root)
        swap_with(g_peer.rank ^ lowest, a, len, NULL, 0);
}

enum { FEW_ROUNDS = 8 << 10 }; /* bytes up to which rounds count, not bytes */

static void run_tcp(enum bench_op op, char *a, char *b, size_t count)
{
    int me = g_peer.rank, n = g_peer.ranks;
    size_t len = count * 4, part = len / (size_t)n;
    switch (op) {
    case PINGPONG:
        if (me == 0)
            swap_with(1, a, len, NULL, 0);
        swap_with(1 - me, NULL, 0, a, len);
        if (me == 1)
            swap_with(0, a, len, NULL, 0);
        break;
    case BROADCAST:
    case REDUCE:
        along_tree(a, len, op == REDUCE);
        break;
    case ALL_REDUCE:
        for (int bit = 1; bit < n && len <= FEW_ROUNDS; bit *= 2) {
            swap_with(me ^ bit, a, len, g_spare, len);
            add_spare(a, len);
        }
        if (len <= FEW_ROUNDS)
            break;
        halve(a, len);
        gather(a, part);
        break;
    case REDUCE_SCATTER:
        halve(a, len);
        break;
    case ALL_GATHER:
        gather(a, part);
        break;
    case ALL_TO_ALL:
        memcpy(b + (size_t)me * part, a + (size_t)me * part, part);
        for (int k = 1; k < n; k++)
            swap_with(me ^ k, a + (size_t)(me ^ k) * part, part, b + (size_t)(me ^ k) * part, part);
        break;
    default:
        for (int bit = 1; bit < n; bit *= 2)
            swap_with(me ^ bit, a, 1, g_spare, 1); /* barrier */
    }
}

static void run(enum bench_op op, char *a, char *b, size_t count)
{
    int me = g_peer.rank, n = g_peer.ranks;
    size_t part = count / (size_t)n, len = part * 4;
    if (g_tcp) {
        run_tcp(op, a, b, count);
        return;
    }
    if (op == PINGPONG) {
        pingpong(a, count);
        return;
    }
    barrier();
    switch (op) {
    case ALL_REDUCE:
        sum_into(a, a, 0, slice(count, me), slice(count, me + 1), 0, n - 1);
        break;
    case REDUCE:
        sum_into(a, b, 0, slice(count, me), slice(count, me + 1), bench_root, bench_root);
        break;
    case REDUCE_SCATTER:
        sum_into(a, b, (size_t)me * part, (size_t)me * part, (size_t)(me + 1) * part, me, me);
        break;
    case BROADCAST:
        if (me != bench_root)
            memcpy(a, of_rank(a, bench_root), count * 4);
        break;
    case ALL_GATHER:
        for (int i = 1; i < n; i++) {
            int r = (me + i) % n;
            memcpy(a + (size_t)r * len, of_rank(a, r) + (size_t)r * len, len);
        }
        break;
    case ALL_TO_ALL:
        for (int i = 0; i < n; i++) {
            int r = (me + i) % n;
            memcpy(b + (size_t)r * len, of_rank(a, r) + (size_t)me * len, len);
        }
        break;
    default:
        return; /* barrier: done */
    }
    barrier();
}

static int prepare(enum bench_op op, char *a, char *b, size_t count)
{
    (void)a, (void)b, (void)count;
    barrier();
    return op == ALL_REDUCE_BF16 || op == ALL_REDUCE_F16;
}

static void *memory(size_t bytes)
{
    static size_t used;
    char *p = g_memory + (size_t)g_peer.rank * g_each + used;
    used += (bytes + 4095) & ~(size_t)4095;
    return p;
}

/* ---------------------------------------------------------------------------------- the machine */

static double median_of(double *x, int n)
{
    qsort(x, (size_t)n, sizeof(double), bench_by_value);
    return x[n / 2];
}

static void memory_speed(size_t bytes)
{
    enum { TIMES = 9 };
    double copy[TIMES], add[TIMES];
    char *p[3];
    for (int i = 0; i < 3; i++) {
        p[i] = aligned_alloc(4096, bytes);
        memset(p[i], i, bytes);
    }
    int reps = (int)((32u << 20) / bytes) + 1;
    for (int i = 0; i < TIMES; i++) {
        double t = bench_now_us();
        for (int k = 0; k < reps; k++)
            memcpy(p[0], p[1], bytes);
        copy[i] = (double)bytes * reps / (bench_now_us() - t) / 1e3;
        t = bench_now_us();
        for (int k = 0; k < reps; k++)
            reduce_two(&g_sum, p[0], p[1], p[2], bytes / 4);
        add[i] = (double)bytes * reps / (bench_now_us() - t) / 1e3;
    }
    printf("one core, %zu KB: copying %.1f GB/s, adding %.1f GB/s of results\n", bytes >> 10,
           median_of(copy, TIMES), median_of(add, TIMES));
    for (int i = 0; i < 3; i++)
        free(p[i]);
}

static void pin(int cpu)
{
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof(all), &all);
    CPU_ZERO(&one);
    for (int i = 0, n = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &all) && n++ == cpu % CPU_COUNT(&all))
            CPU_SET(i, &one);
    }
    sched_setaffinity(0, sizeof(one), &one);
}

static pid_t fork_rank(int rank)
{
    pid_t parent = getpid(), pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    g_peer.rank = rank;
    return 0;
}

/* Returns microseconds. */
static double flag_latency(uint64_t times)
{
    pid_t pid = fork_rank(1);
    pin(g_peer.rank);
    barrier();
    double t = bench_now_us();
    for (uint64_t i = 1; i <= times; i++) {
        wait_for(&g->ball.count, 2 * i - 2 + (uint64_t)g_peer.rank);
        atomic_store_explicit(&g->ball.count, 2 * i - 1 + (uint64_t)g_peer.rank,
                              memory_order_release);
    }
    if (g_peer.rank)
        _exit(0);
    wait_for(&g->ball.count, 2 * times);
    t = (bench_now_us() - t) / (double)times / 2;
    waitpid(pid, NULL, 0);
    return t;
}

static void socket_speed(size_t bytes)
{
    enum { MOST = 4000 };
    static double swaps[MOST];
    int fd[2], n = bytes < 4096 ? MOST : 15;
    char *out = malloc(bytes), *in = malloc(bytes);
    memset(out, 1, bytes), memset(in, 1, bytes);
    connect_pair(fd);
    pid_t pid = fork_rank(1);
    pin(g_peer.rank);
    for (int i = 0; i < n; i++) {
        double t = bench_now_us();
        swap(fd[g_peer.rank], out, bytes, in, bytes);
        swaps[i] = bench_now_us() - t;
    }
    if (g_peer.rank)
        _exit(0);
    waitpid(pid, NULL, 0);
    double us = median_of(swaps, n);
    printf("two processes swap %zu bytes over TCP: %.1f us", bytes, us);
    if (bytes >= 4096)
        printf(" (%.2f GB/s each way)", (double)bytes / us / 1e3);
    puts("");
    close(fd[0]), close(fd[1]);
    free(out), free(in);
}

static int flag(void)
{
    g_peer.ranks = 2;
    printf("%.4f\n", flag_latency(10000));
    return 0;
}

static int machine(void)
{
    static const size_t sizes[] = {32 << 10, 1 << 20, 64 << 20};
    g_peer.ranks = 2;
    for (size_t i = 0; i < 3; i++)
        memory_speed(sizes[i]);
    fflush(stdout);
    printf("a flag from one process to another: %.3f us\n", flag_latency(200000));
    fflush(stdout);
    socket_speed(8);
    fflush(stdout);
    socket_speed(16 << 20);
    return 0;
}

/* ----------------------------------------------------------------------------------------- main */

static int ranks_of(const char *s)
{
    int n = atoi(s);
    return n > 0 && n <= RANKS_MAX ? n : 1;
}

static size_t largest(const char *list)
{
    size_t max = 0;
    for (const char *s = list; s && *s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) {
        size_t n = bench_size(s);
        max = n > max ? n : max;
    }
    return max;
}

static void *map_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return p;
}

int main(int argc, char **argv)
{
    g = map_shared(sizeof(*g));
    reduce_find(DLCOLL_F32, DLCOLL_SUM, &g_sum);
    if (argc == 2 && strcmp(argv[1], "machine") == 0)
        return machine();
    if (argc == 2 && strcmp(argv[1], "flag") == 0)
        return flag();
    if (argc != 6) {
        fprintf(stderr, "usage: peer_limit machine | flag | RANKS NAME OPS SIZES BUDGET_MS\n");
        return 2;
    }
    int ranks = ranks_of(argv[1]), code = 0;
    cpu_set_t cpus;
    sched_getaffinity(0, sizeof(cpus), &cpus);
    g_crowded = ranks > CPU_COUNT(&cpus);
    g_each = (2 * (largest(argv[4]) + 8192 + 4096 + 4 * RANKS_MAX) + 8191) & ~(size_t)8191;
    g_memory = map_shared(g_each * (size_t)ranks);
    g_peer = (struct bench_peer){.ranks = ranks,
                                 .prepare = prepare,
                                 .run = run,
                                 .barrier = barrier,
                                 .agree = agree,
                                 .most = most,
                                 .memory = memory};
    int pairs[RANKS_MAX][RANKS_MAX];
    g_tcp = getenv("BENCH_TCP");
    const char *means = getenv("BENCH_MEANS");
    if (means) {
        limit_private_map(ranks);
        g_peer.run = limit_private_run;
        g_peer.memory = limit_private_memory;
    }
    if (g_tcp && (ranks & (ranks - 1)))
        return 0; /* the rounds of run_tcp() are those of a power of two */
    for (int i = 0; g_tcp && i < ranks; i++) {
        for (int k = 0, pair[2]; k < i; k++) {
            connect_pair(pair);
            pairs[i][k] = pair[0];
            pairs[k][i] = pair[1];
        }
    }
    g_peer.unchecked = g_tcp;
    if (g_tcp)
        g_spare = map_shared(largest(argv[4]) + 8192); /* aligned, as the others */
    for (int r = 1; r < ranks && g_peer.rank == 0; r++)
        fork_rank(r);
    for (int r = 0; g_tcp && r < ranks; r++)
        g_sockets[r] = r == g_peer.rank ? -1 : pairs[g_peer.rank][r];
    if (!g_crowded)
        pin(g_peer.rank);
    if (means)
        limit_private_init(strcmp(means, "read") ? LIMIT_STAGED : LIMIT_READ, &g_peer, &g_sum);
    code = bench_main(argc - 1, argv + 1, &g_peer);
    if (g_peer.rank)
        _exit(code);
    while (wait(NULL) > 0)
        ;
    return code;
}
