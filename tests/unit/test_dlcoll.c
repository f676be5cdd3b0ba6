/* libdlcoll over TCP, with forked ranks: under a launcher, which the test plays (segment, listening
 * sockets, abort record), and without one (a store). */
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "collectives/net/wire.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/segment.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_thread.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* ------------------------------------------------------------------------- counted allocations */

static long g_allocations;
static long g_fail_after = -1; /* so many more succeed, then one fails */

#ifndef SANITIZED
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *malloc(size_t n);
void *calloc(size_t n, size_t size);
void *realloc(void *p, size_t n);

static bool refused(void)
{
    g_allocations++;
    return g_fail_after >= 0 && g_fail_after-- == 0;
}

void *malloc(size_t n)
{
    return refused() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return refused() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return refused() ? NULL : __libc_realloc(p, n);
}
#endif

/* ---------------------------------------------------------------------------------------- jobs */

enum { RANKS_MAX = 16 };

/* What ranks and test share. */
struct shared {
    _Atomic int ready; /* ranks that have come to the point that the test waits for */
    _Atomic int go;    /* the test has let them go on */
    struct {
        _Atomic uint64_t returned_ns;
        int code;
        dlcoll_error error;
    } rank[RANKS_MAX];
};

struct job {
    int n, nnodes;
    struct shared *shared;
    int segment_fd[RANKS_MAX];
    struct segment_header *segment[RANKS_MAX]; /* by node */
    int listener[RANKS_MAX];
    uint16_t port[RANKS_MAX];
    pid_t pid[RANKS_MAX];
    int status[RANKS_MAX];
    bool ended[RANKS_MAX];
};

typedef void rank_fn(struct job *job, int rank);

/* A rank that sees something wrong says so and exits with 1. */
#define EXPECT(fact, ...)                               \
    do {                                                \
        if (!(fact))                                    \
            complain(__LINE__, #fact, " " __VA_ARGS__); \
    } while (0)

__attribute__((format(printf, 3, 4), noreturn)) static void complain(int line, const char *fact,
                                                                     const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    dprintf(STDERR_FILENO, "line %d, RANK %s: %s: %s\n", line, getenv("LOCAL_RANK"), fact, text);
    _exit(1);
}

static const char *why(const dlcoll_comm *comm)
{
    static dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_last_error(comm, &e);
    return e.text;
}

static int listen_anywhere(uint16_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, len), 0);
    ck_assert_int_eq(listen(fd, 64), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static int node_base(const struct job *j, int node)
{
    return j->n * node / j->nnodes;
}

/* The segment of one node, as an agent lays it out. */
static void make_segment(struct job *j, int node)
{
    uint64_t off_nodes = (sizeof(struct segment_header) + 127) / 128 * 128;
    uint64_t off_ports = off_nodes + sizeof(struct segment_node) * (size_t)j->nnodes;
    uint64_t off_local = (off_ports + 2 * (size_t)j->n + 127) / 128 * 128;
    int base = node_base(j, node), nlocal = node_base(j, node + 1) - base;
    uint64_t total = off_local + sizeof(struct segment_local) * (size_t)nlocal;
    int fd = memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)total), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    uint8_t *p = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(p, MAP_FAILED);
    struct segment_header *h = (struct segment_header *)p;
    *h = (struct segment_header){.magic = SEGMENT_MAGIC,
                                 .version = SEGMENT_VERSION,
                                 .total_bytes = total,
                                 .epoch = 0x1234567890abcdefu,
                                 .counter = 3,
                                 .nnodes = j->nnodes,
                                 .world_size = j->n,
                                 .group_rank = node,
                                 .nlocal = nlocal,
                                 .base_rank = base,
                                 .usable_cpus = 2,
                                 .off_nodes = off_nodes,
                                 .off_ports = off_ports,
                                 .off_local = off_local,
                                 .off_heap = total};
    struct segment_node *nodes = (struct segment_node *)(p + off_nodes);
    for (int i = 0; i < j->nnodes; i++) {
        snprintf(nodes[i].host, sizeof(nodes[i].host), "node-%c", 'a' + i);
        snprintf(nodes[i].addr, sizeof(nodes[i].addr), "127.0.0.1");
        nodes[i].base_rank = node_base(j, i);
        nodes[i].nproc = node_base(j, i + 1) - node_base(j, i);
    }
    for (int i = 0; i < j->n; i++)
        ((uint16_t *)(p + off_ports))[i] = j->port[i];
    j->segment_fd[node] = fd;
    j->segment[node] = h;
}

static struct segment_local *line_of(const struct job *j, int rank)
{
    for (int node = 0;; node++) {
        if (rank < node_base(j, node + 1)) {
            struct segment_header *h = j->segment[node];
            return (struct segment_local *)((uint8_t *)h + h->off_local) + rank - h->base_rank;
        }
    }
}

static void set_env_int(const char *name, int v)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", v);
    setenv(name, text, 1);
}

static void job_init(struct job *j, int n, int nnodes)
{
    memset(j, 0, sizeof(*j));
    j->n = n;
    j->nnodes = nnodes;
    j->shared =
        mmap(NULL, sizeof(*j->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < n; i++)
        j->listener[i] = nnodes ? listen_anywhere(&j->port[i]) : -1;
    for (int i = 0; i < nnodes; i++)
        make_segment(j, i);
}

/* What the launcher leaves in a worker's environment. */
static void become_worker(struct job *j, int rank)
{
    int node = 0;
    while (rank >= node_base(j, node + 1))
        node++;
    set_env_int("LOCAL_RANK", rank - node_base(j, node));
    set_env_int("RANK", rank);
    set_env_int("WORLD_SIZE", j->n);
    set_env_int(SEGMENT_ENV_FD, j->segment_fd[node]);
    set_env_int(SEGMENT_ENV_LISTEN, j->listener[rank]);
    fd_set_cloexec(j->segment_fd[node], false);
    fd_set_cloexec(j->listener[rank], false);
    for (int i = 0; i < j->n; i++) {
        if (i != rank)
            close(j->listener[i]);
    }
}

static void job_start(struct job *j, rank_fn *fn)
{
    for (int r = 0; r < j->n; r++) {
        j->pid[r] = fork();
        ck_assert_int_ge(j->pid[r], 0);
        if (j->pid[r] == 0) {
            if (j->nnodes)
                become_worker(j, r);
            else
                set_env_int("RANK", r), set_env_int("WORLD_SIZE", j->n), unsetenv("LOCAL_RANK");
            fn(j, r);
            _exit(0);
        }
    }
    for (int r = 0; r < j->n; r++)
        close_fd(&j->listener[r]);
}

static bool all_ended(void *arg)
{
    struct job *j = arg;
    int left = 0;
    for (int r = 0; r < j->n; r++) {
        if (!j->ended[r] && waitpid(j->pid[r], &j->status[r], WNOHANG) == j->pid[r])
            j->ended[r] = true;
        left += !j->ended[r];
    }
    return left == 0;
}

/* Waits for all ranks; those in `but` (a bit each) may have ended in any way. */
static void job_wait(struct job *j, double seconds, unsigned but)
{
    wait_until(all_ended, j, seconds, "all ranks have ended");
    for (int r = 0; r < j->n; r++) {
        if (!(but & (1u << r)))
            ck_assert_msg(WIFEXITED(j->status[r]) && WEXITSTATUS(j->status[r]) == 0,
                          "rank %d ended with wait status %#x", r, (unsigned)j->status[r]);
    }
}

static void job_fini(struct job *j)
{
    for (int i = 0; i < j->nnodes; i++) {
        munmap(j->segment[i], j->segment[i]->total_bytes);
        close(j->segment_fd[i]);
    }
    munmap(j->shared, sizeof(*j->shared));
}

static void run_job(int n, int nnodes, rank_fn *fn)
{
    struct job j;
    job_init(&j, n, nnodes);
    job_start(&j, fn);
    job_wait(&j, 30, 0);
    job_fini(&j);
}

/* The agent has seen a worker die. */
static void play_agent(struct job *j, int rank)
{
    for (int i = 0; i < j->nnodes; i++) {
        struct segment_abort *a = &j->segment[i]->abort;
        a->rank = rank;
        a->pid = j->pid[rank];
        a->signal = WIFSIGNALED(j->status[rank]) ? WTERMSIG(j->status[rank]) : 0;
        a->exit_code = WIFEXITED(j->status[rank]) ? WEXITSTATUS(j->status[rank]) : 0;
        snprintf(a->host, sizeof(a->host), "node-%c", 'a' + i);
        atomic_store_explicit(&a->word, 1, memory_order_release);
        syscall(SYS_futex, &a->word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
}

static void reap(struct job *j, int rank)
{
    ck_assert_int_eq(waitpid(j->pid[rank], &j->status[rank], 0), j->pid[rank]);
    j->ended[rank] = true;
}

static bool are_ready(void *arg)
{
    struct job *j = arg;
    return atomic_load(&j->shared->ready) >= j->n;
}

static void say_ready(struct job *j)
{
    atomic_fetch_add(&j->shared->ready, 1);
}

static void await_go(struct job *j)
{
    while (!atomic_load(&j->shared->go))
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* Waits in a rank until all ranks have said so. */
static void await_ready(struct job *j)
{
    while (!are_ready(j))
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static dlcoll_comm *start_comm(void)
{
    dlcoll_comm *comm = NULL;
    int r = dlcoll_init(&comm, NULL);
    EXPECT(r == 0 && comm, "%d %s", r, why(NULL));
    return comm;
}

static void end_comm(dlcoll_comm *comm)
{
    EXPECT(dlcoll_finalize(comm) == 0, "%s", why(comm));
    dlcoll_destroy(comm);
}

static void keep_result(struct job *j, int rank, const dlcoll_comm *comm, int code)
{
    j->shared->rank[rank].code = code;
    j->shared->rank[rank].error = (dlcoll_error)DLCOLL_ERROR_INIT;
    dlcoll_last_error(comm, &j->shared->rank[rank].error);
    atomic_store(&j->shared->rank[rank].returned_ns, mono_ns());
}

/* ------------------------------------------------------------------------------ it does its job */

static const size_t g_counts[] = {0, 1, 3, 15, 17, 1000, 16383, 200001};

static double value(int rank, size_t i)
{
    return (double)((size_t)rank * 7 + i % 1001) - 500;
}

/* send is at `shift` bytes from an aligned address. */
static void check_all_reduce(dlcoll_comm *c, size_t count, dlcoll_dtype t, dlcoll_op op,
                             bool in_place, size_t shift)
{
    int n = dlcoll_size(c), rank = dlcoll_rank(c);
    size_t size = t == DLCOLL_F32 ? 4 : 8;
    char *a = malloc(count * size + 16), *b = malloc(count * size + 16);
    char *send = a + shift, *recv = in_place ? send : b + shift;
    for (size_t i = 0; i < count; i++) {
        double v = value(rank, i);
        float f = (float)v;
        int64_t k = (int64_t)v;
        memcpy(send + i * size,
               t == DLCOLL_F32   ? (void *)&f
               : t == DLCOLL_F64 ? (void *)&v
                                 : &k,
               size);
    }
    int r = dlcoll_all_reduce(send, recv, count, t, op, c, NULL, NULL);
    EXPECT(r == 0, "%d %s", r, why(c));
    for (size_t i = 0; i < count; i++) {
        double want = value(0, i), got = 0;
        for (int k = 1; k < n; k++) {
            double v = value(k, i);
            want = op == DLCOLL_SUM ? want + v : op == DLCOLL_MIN ? fmin(want, v) : fmax(want, v);
        }
        float f;
        int64_t k;
        memcpy(&f, recv + i * size, 4);
        memcpy(&k, recv + i * size, size == 8 ? 8 : 4);
        memcpy(&got, recv + i * size, size == 8 ? 8 : 4);
        got = t == DLCOLL_F32 ? (double)f : t == DLCOLL_I64 ? (double)k : got;
        EXPECT(got == want, "count %zu type %d op %d: [%zu] is %g, not %g", count, t, op, i, got,
               want);
    }
    free(a);
    free(b);
}

static void check_broadcast(dlcoll_comm *c, size_t count, int root, bool in_place)
{
    uint8_t *a = malloc(count + 1), *b = malloc(count + 1), *recv = in_place ? a : b;
    for (size_t i = 0; i < count; i++)
        a[i] = (uint8_t)(i * 31 + (size_t)dlcoll_rank(c));
    int r = dlcoll_broadcast(a, recv, count, DLCOLL_U8, root, c, NULL, NULL);
    EXPECT(r == 0, "%d %s", r, why(c));
    for (size_t i = 0; i < count; i++)
        EXPECT(recv[i] == (uint8_t)(i * 31 + (size_t)root), "[%zu] from %d", i, root);
    free(a);
    free(b);
}

static void check_everything(dlcoll_comm *c)
{
    static const dlcoll_dtype types[] = {DLCOLL_F32, DLCOLL_F64, DLCOLL_I64};
    static const dlcoll_op ops[] = {DLCOLL_SUM, DLCOLL_MIN, DLCOLL_MAX};
    int k = 0;
    for (size_t i = 0; i < ARRAY_LEN(g_counts); i++) {
        for (size_t t = 0; t < ARRAY_LEN(types); t++)
            for (size_t o = 0; o < ARRAY_LEN(ops); o++, k++)
                check_all_reduce(c, g_counts[i], types[t], ops[o], k % 2, k % 5 == 0 ? 3 : 0);
        check_broadcast(c, g_counts[i], k % dlcoll_size(c), k % 2);
        EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    }
    for (int root = 0; root < dlcoll_size(c); root++)
        check_broadcast(c, 100, root, false);
}

static void everything(struct job *j, int rank)
{
    dlcoll_comm *c = start_comm();
    EXPECT(dlcoll_rank(c) == rank && dlcoll_size(c) == j->n);
    EXPECT(dlcoll_local_rank(c) == atoi(getenv("LOCAL_RANK")));
    check_everything(c);
    end_comm(c);
}

START_TEST(all_operations_under_a_launcher)
{
    run_job(_i, _i > 2 ? 2 : 1, everything);
}
END_TEST

START_TEST(a_world_of_one_with_nothing_set)
{
    dlcoll_comm *c = start_comm();
    ck_assert_int_eq(dlcoll_rank(c), 0);
    ck_assert_int_eq(dlcoll_size(c), 1);
    ck_assert_int_eq(dlcoll_local_rank(c), 0);
    check_everything(c);
    end_comm(c);
    set_env_int("RANK", 0);
    set_env_int("WORLD_SIZE", 1); /* needs no master */
    c = start_comm();
    check_everything(c);
    end_comm(c);
}
END_TEST

static void many_times(struct job *j, int rank)
{
    for (int k = 0; k < 10; k++) {
        dlcoll_comm *c = start_comm();
        int64_t v = rank;
        EXPECT(dlcoll_all_reduce(&v, &v, 1, DLCOLL_I64, DLCOLL_SUM, c, NULL, NULL) == 0, "%s",
               why(c));
        EXPECT(v == j->n * (j->n - 1) / 2);
        /* Nobody's leaving before the others have their result looks like a death. */
        end_comm(c);
    }
}

START_TEST(communicators_may_follow_each_other)
{
    run_job(5, 1, many_times);
}
END_TEST

static void large(struct job *j, int rank)
{
    (void)j;
    dlcoll_comm *c = start_comm();
    size_t n = (16 << 20) / 4;
    float *x = malloc(n * 4);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(rank + 1);
    EXPECT(dlcoll_all_reduce(x, x, n, DLCOLL_F32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s", why(c));
    for (size_t i = 0; i < n; i++)
        EXPECT(x[i] == 10, "[%zu]", i);
    EXPECT(dlcoll_broadcast(x, x, n, DLCOLL_F32, 3, c, NULL, NULL) == 0, "%s", why(c));
    free(x);
    end_comm(c);
}

START_TEST(large_messages)
{
    run_job(4, 2, large);
}
END_TEST

/* Ranks outnumber CPUs, and one comes late: those who wait must not keep it from coming. */
static void crowd(struct job *j, int rank)
{
    (void)j;
    dlcoll_comm *c = start_comm();
    for (int k = 0; k < 300; k++) {
        double v[64] = {[5] = rank};
        if (k % 8 == rank)
            sched_yield();
        EXPECT(dlcoll_all_reduce(v, v, 64, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL) == 0, "%s",
               why(c));
        EXPECT(v[5] == 28);
    }
    end_comm(c);
}

START_TEST(eight_ranks_on_two_cpus_do_not_crawl)
{
    uint64_t before = mono_ns();
    run_job(8, 1, crowd);
    /* Takes some 50 ms; 300 operations of 4 hops that each wait for a time slice would take 5 s. */
    ck_assert_uint_lt(mono_ns() - before, (uint64_t)(test_seconds(3) * 1e9));
}
END_TEST

/* -------------------------------------------------------------------------- without a launcher */

static uint16_t g_store_port;

static void with_agent_store(struct job *j, int rank)
{
    (void)j, (void)rank;
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("MASTER_ADDR", "localhost", 1);
    set_env_int("MASTER_PORT", g_store_port);
    dlcoll_comm *c = start_comm();
    EXPECT(dlcoll_rank(c) == rank && dlcoll_size(c) == j->n && dlcoll_local_rank(c) == rank);
    check_everything(c);
    end_comm(c);
    c = start_comm(); /* the same store again */
    check_everything(c);
    end_comm(c);
}

START_TEST(ranks_meet_in_a_store_that_is_served)
{
    struct store_thread *store;
    struct err e = ERR_INIT;
    struct store_thread_opts opts = {.addr = "127.0.0.1"};
    ck_assert_int_eq(store_thread_new(&store, &opts, &e), 0);
    g_store_port = (uint16_t)store_thread_port(store);
    run_job(_i, 0, with_agent_store);
    /* A second run of the program finds nothing of the first. */
    run_job(_i, 0, with_agent_store);
    store_thread_free(store);
}
END_TEST

/* A port that stays ours while nobody listens on it. */
static int reserve_port(uint16_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, len), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static void by_hand(struct job *j, int rank)
{
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_store_port);
    many_times(j, rank);
}

START_TEST(ranks_meet_in_a_store_that_rank_0_hosts)
{
    int fd = reserve_port(&g_store_port);
    run_job(_i, 0, by_hand);
    close(fd);
}
END_TEST

static void expect_init(int code, const char *text)
{
    dlcoll_comm *c = (dlcoll_comm *)1;
    dlcoll_error e = DLCOLL_ERROR_INIT;
    ck_assert_int_eq(dlcoll_init(&c, NULL), code);
    ck_assert_ptr_null(c);
    dlcoll_last_error(NULL, &e);
    ck_assert_int_eq(e.code, code);
    ck_assert_msg(strstr(e.text, text), "'%s' is not in '%s'", text, e.text);
}

START_TEST(a_wrong_environment_is_told)
{
    setenv("RANK", "0", 1);
    expect_init(DLCOLL_EINVAL, "WORLD_SIZE is not set");
    setenv("WORLD_SIZE", "x", 1);
    expect_init(DLCOLL_EINVAL, "WORLD_SIZE: 'x' is not a whole number");
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", "2", 1);
    expect_init(DLCOLL_EINVAL, "RANK: 2 is out of range");
    setenv("RANK", "0", 1);
    expect_init(DLCOLL_EINVAL, "MASTER_ADDR is not set");
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    expect_init(DLCOLL_EINVAL, "MASTER_PORT is not set");
    setenv("MASTER_PORT", "70000", 1);
    expect_init(DLCOLL_EINVAL, "MASTER_PORT: 70000 is out of range");
    unsetenv("RANK");
    expect_init(DLCOLL_EINVAL, "RANK is not set");
    setenv("DLCOLL_TIMEOUT", "soon", 1);
    expect_init(DLCOLL_EINVAL, "DLCOLL_TIMEOUT");
}
END_TEST

START_TEST(ranks_that_do_not_come_are_listed)
{
    int fd = reserve_port(&g_store_port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_store_port);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("DLCOLL_TIMEOUT", "200ms", 1);
    expect_init(DLCOLL_ETIMEDOUT, "missing: 1, 2, 3");
    setenv("RANK", "1", 1); /* and nobody hosts the store */
    expect_init(DLCOLL_ETIMEDOUT, "127.0.0.1");
    setenv("MASTER_ADDR", "no-such-host.invalid", 1);
    expect_init(DLCOLL_ETIMEDOUT, "no-such-host.invalid");
    close(fd);
}
END_TEST

START_TEST(two_processes_with_one_rank_are_told)
{
    struct store_thread *store;
    struct err e = ERR_INIT;
    struct store_thread_opts opts = {.addr = "127.0.0.1"};
    ck_assert_int_eq(store_thread_new(&store, &opts, &e), 0);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", store_thread_port(store));
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", "1", 1);
    setenv("DLCOLL_TIMEOUT", "100ms", 1);
    pid_t other = fork();
    if (other == 0) {
        expect_init(DLCOLL_ETIMEDOUT, "missing: 0");
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(other, &status, 0), other);
    ck_assert_int_eq(status, 0);
    expect_init(DLCOLL_EINVAL, "there is a rank 1 at 127.0.0.1");
    store_thread_free(store);
}
END_TEST

/* What a stranger may have put into the store. */
START_TEST(a_malformed_table_is_refused)
{
    struct store_thread *store;
    struct store_client *client;
    struct err e = ERR_INIT;
    struct store_thread_opts opts = {.addr = "127.0.0.1"};
    ck_assert_int_eq(store_thread_new(&store, &opts, &e), 0);
    ck_assert_int_eq(store_client_new(&client, "127.0.0.1", store_thread_port(store), 5000, &e), 0);
    ck_assert_int_eq(store_client_set(client, "dlcoll//0/1/table", "abc", 3, &e), 0);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", store_thread_port(store));
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", "1", 1);
    expect_init(DLCOLL_ENET, "the table of ranks is malformed");
    ck_assert_int_eq(store_client_set(client, "dlcoll//0/1/rank/1", "\xff\xff\xff\xff", 4, &e), 0);
    setenv("RANK", "0", 1);
    expect_init(DLCOLL_ENET, "what rank 1 has published is malformed");
    store_client_free(client);
    store_thread_free(store);
}
END_TEST

/* -------------------------------------------------------------------------------- bad segments */

START_TEST(a_wrong_segment_is_refused)
{
    struct job j;
    job_init(&j, 4, 2);
    struct segment_header *h = j.segment[0], good = *h;
    become_worker(&j, 1);
#define REFUSED(change, text)             \
    do {                                  \
        change;                           \
        expect_init(DLCOLL_EINVAL, text); \
        memcpy(h, &good, sizeof(good));   \
    } while (0)
    REFUSED(h->magic++, "does not begin as a segment");
    REFUSED(h->version++, "version 2");
    REFUSED(h->total_bytes++, "bytes");
    REFUSED(h->off_nodes = h->total_bytes - 4, "damaged");
    REFUSED(h->off_nodes = UINT64_MAX - 3, "damaged");
    REFUSED(h->off_ports = 1, "damaged");
    REFUSED(h->off_local++, "damaged");
    REFUSED(h->off_local = h->total_bytes, "damaged");
    REFUSED(h->world_size = INT32_MAX, "damaged");
    REFUSED(h->world_size = -1, "damaged");
    REFUSED(h->world_size = 3, "damaged");
    REFUSED(h->nnodes = INT32_MAX, "damaged");
    REFUSED(h->nnodes = 0, "damaged");
    REFUSED(h->nlocal = 1, "damaged");
    REFUSED(h->group_rank = 2, "damaged");
    REFUSED(h->group_rank = 1, "damaged");
    REFUSED(h->base_rank = 2, "damaged");
    REFUSED(h->heap_bytes = 1, "damaged");
    REFUSED(setenv("RANK", "0", 1), "RANK is 0 where the launcher's table says 1");
    REFUSED(setenv("RANK", "7", 1), "RANK: 7");
    setenv("RANK", "1", 1);
    REFUSED(setenv("LOCAL_RANK", "2", 1), "LOCAL_RANK: 2");
    REFUSED(unsetenv("LOCAL_RANK"), "LOCAL_RANK is not set");
    setenv("LOCAL_RANK", "1", 1);
    REFUSED(setenv(SEGMENT_ENV_LISTEN, "0", 1), "no listening socket");
    REFUSED(setenv(SEGMENT_ENV_LISTEN, "999", 1), "is not open");
    REFUSED(unsetenv(SEGMENT_ENV_LISTEN), "is not set");
    set_env_int(SEGMENT_ENV_LISTEN, j.listener[1]);
    REFUSED(setenv(SEGMENT_ENV_FD, "999", 1), "is not open");
    REFUSED(setenv(SEGMENT_ENV_FD, "-3", 1), "DLAUNCH_SEGMENT_FD: -3");
    REFUSED(set_env_int(SEGMENT_ENV_FD, j.listener[1]), "no memory file");
    int unsealed = memfd_create("x", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(unsealed, 4096), 0);
    REFUSED(set_env_int(SEGMENT_ENV_FD, unsealed), "sealed against shrinking");
    int empty = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    fcntl(empty, F_ADD_SEALS, F_SEAL_SHRINK);
    REFUSED(set_env_int(SEGMENT_ENV_FD, empty), "too short");

    set_env_int(SEGMENT_ENV_FD, j.segment_fd[0]); /* and the good one is taken */
    dlcoll_comm *c, *second;
    ck_assert_int_eq(dlcoll_init(&c, NULL), 0);
    ck_assert_int_eq(line_of(&j, 1)->state, SEGMENT_LOCAL_READY);
    ck_assert_int_eq(line_of(&j, 1)->pid, getpid());
    ck_assert_int_eq(dlcoll_init(&second, NULL), DLCOLL_ESTATE);
    dlcoll_destroy(c);
    ck_assert_int_eq(line_of(&j, 1)->state, SEGMENT_LOCAL_DONE);
    ck_assert_int_eq(dlcoll_init(&second, NULL), 0);
    dlcoll_destroy(second);
}
END_TEST

/* ----------------------------------------------------------------------------------- arguments */

static void expect_refused(dlcoll_comm *c, int got, int code, const char *text)
{
    ck_assert_int_eq(got, code);
    ck_assert_msg(strstr(why(c), text), "'%s' is not in '%s'", text, why(c));
}

START_TEST(wrong_arguments_are_refused_and_harm_nothing)
{
    dlcoll_comm *c = start_comm();
    double x[8] = {0};
    dlcoll_work *work;
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
#define ALL_REDUCE(...) dlcoll_all_reduce(__VA_ARGS__)
    expect_refused(c, ALL_REDUCE(x, x, 8, (dlcoll_dtype)6, DLCOLL_SUM, c, NULL, NULL),
                   DLCOLL_EINVAL, "all_reduce: there is no such dtype");
    expect_refused(c, ALL_REDUCE(x, x, 8, (dlcoll_dtype)(256 + 8), DLCOLL_SUM, c, NULL, NULL),
                   DLCOLL_EINVAL, "no such dtype");
    expect_refused(c, ALL_REDUCE(x, x, 8, DLCOLL_F64, (dlcoll_op)256, c, NULL, NULL), DLCOLL_EINVAL,
                   "no such op");
    expect_refused(c, ALL_REDUCE(x, x, SIZE_MAX / 8, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL),
                   DLCOLL_EINVAL, "too large");
    expect_refused(c, ALL_REDUCE(NULL, x, 8, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL), DLCOLL_EINVAL,
                   "NULL");
    expect_refused(c, ALL_REDUCE(x, NULL, 8, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL), DLCOLL_EINVAL,
                   "NULL");
    expect_refused(c, ALL_REDUCE(x, x + 1, 7, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL), DLCOLL_EINVAL,
                   "overlap");
    expect_refused(c, ALL_REDUCE(x, x, 8, DLCOLL_F64, DLCOLL_SUM, c, NULL, &work), DLCOLL_ENOSUP,
                   "work must be NULL");
    expect_refused(c, dlcoll_broadcast(x, x, 8, DLCOLL_F64, 1, c, NULL, NULL), DLCOLL_EINVAL,
                   "broadcast: root");
    expect_refused(c, dlcoll_broadcast(x, x, 8, DLCOLL_F64, -1, c, NULL, NULL), DLCOLL_EINVAL,
                   "root");
    opts.size = 3;
    expect_refused(c, dlcoll_barrier(c, &opts, NULL), DLCOLL_EINVAL, "DLCOLL_OPTS_INIT");
    ck_assert_int_eq(dlcoll_barrier(NULL, NULL, NULL), DLCOLL_EINVAL);
    ck_assert_int_eq(dlcoll_rank(NULL), DLCOLL_EINVAL);
    ck_assert_int_eq(dlcoll_init(NULL, NULL), DLCOLL_EINVAL);
    ck_assert_int_eq(ALL_REDUCE(NULL, NULL, 0, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL), 0);
    check_everything(c);
    end_comm(c);
    dlcoll_destroy(NULL);
}
END_TEST

/* A newer program on this library, and an older one. */
START_TEST(structs_grow_both_ways)
{
    dlcoll_comm *c = start_comm();
    struct {
        dlcoll_opts opts;
        uint64_t new_field;
    } newer = {DLCOLL_OPTS_INIT, 0};
    newer.opts.size = sizeof(newer);
    ck_assert_int_eq(dlcoll_barrier(c, &newer.opts, NULL), 0);
    newer.new_field = 1;
    ck_assert_int_eq(dlcoll_barrier(c, &newer.opts, NULL), DLCOLL_ENOSUP);
    dlcoll_opts older = DLCOLL_OPTS_INIT;
    older.size = offsetof(dlcoll_opts, timeout_ms);
    ck_assert_int_eq(dlcoll_barrier(c, &older, NULL), 0);

    dlcoll_error e = DLCOLL_ERROR_INIT;
    memset(e.text, 'x', sizeof(e.text));
    e.size = offsetof(dlcoll_error, text);
    ck_assert_int_eq(dlcoll_last_error(c, &e), 0);
    ck_assert_int_eq(e.text[0], 'x');
    e.size = 0;
    ck_assert_int_eq(dlcoll_last_error(c, &e), DLCOLL_EINVAL);
    ck_assert_int_eq(dlcoll_last_error(c, NULL), DLCOLL_EINVAL);
    end_comm(c);
}
END_TEST

START_TEST(codes_have_texts)
{
    for (int code = -20; code < 20; code++)
        ck_assert_int_gt((int)strlen(dlcoll_strerror(code)), 3);
    ck_assert_str_eq(dlcoll_strerror(DLCOLL_EPEER), "a rank has died or left");
    ck_assert_str_eq(dlcoll_strerror(-12), "unknown error");
    ck_assert_str_eq(dlcoll_strerror(INT32_MIN), "unknown error");
}
END_TEST

/* ------------------------------------------------------------------------------- things go wrong
 */

static void reduce_for_ever(struct job *j, int rank)
{
    /* Standard error stays empty: the library says nothing by itself. */
    int quiet[2];
    char byte;
    EXPECT(pipe2(quiet, O_NONBLOCK | O_CLOEXEC) == 0);
    int saved = dup(STDERR_FILENO);
    dup2(quiet[1], STDERR_FILENO);
    dlcoll_comm *c = start_comm();
    size_t n = 4 << 20;
    float *x = calloc(n, 4);
    int r = 0;
    for (int k = 0; r == 0; k++) {
        if (k == 1)
            say_ready(j);
        r = dlcoll_all_reduce(x, x, n, DLCOLL_F32, DLCOLL_SUM, c, NULL, NULL);
    }
    keep_result(j, rank, c, r);
    uint64_t before = mono_ns();
    r = dlcoll_barrier(c, NULL, NULL);
    uint64_t took = mono_ns() - before;
    dup2(saved, STDERR_FILENO);
    EXPECT(r == DLCOLL_ESTATE, "%d", r);
    EXPECT(took < 1000000000);
    EXPECT(strcmp(why(c), j->shared->rank[rank].error.text) == 0, "%s", why(c));
    EXPECT(dlcoll_finalize(c) == DLCOLL_ESTATE);
    EXPECT(read(quiet[0], &byte, 1) < 0 && errno == EAGAIN);
    dlcoll_destroy(c);
    free(x);
}

static void check_survivors(struct job *j, int victim, uint64_t killed_ns, bool by_agent)
{
    double most = 0;
    for (int r = 0; r < j->n; r++) {
        dlcoll_error *e = &j->shared->rank[r].error;
        if (r == victim)
            continue;
        double ms = (double)(j->shared->rank[r].returned_ns - killed_ns) / 1e6;
        most = ms > most ? ms : most;
        ck_assert_msg(j->shared->rank[r].code == DLCOLL_EPEER, "rank %d: %d %s", r,
                      j->shared->rank[r].code, e->text);
        ck_assert_msg(e->rank == victim, "rank %d: %s", r, e->text);
        ck_assert_int_eq(e->pid, j->pid[victim]);
        ck_assert_str_eq(e->op, "all_reduce");
        ck_assert_uint_gt(e->seq, 1);
        ck_assert_int_gt((int)strlen(e->host), 0);
        ck_assert_int_eq(e->signal, by_agent ? SIGKILL : 0);
        ck_assert_ptr_nonnull(strstr(e->text, by_agent ? "was killed by SIGKILL" : "died or left"));
        ck_assert_int_eq(strncmp(e->text, "all_reduce #", 12), 0);
    }
    printf("%d ranks, %s: the last survivor knew after %.1f ms\n", j->n,
           by_agent ? "with an agent" : "without", most);
    /* 50 ms on a quiet machine; the machine may not be quiet. */
    ck_assert_double_lt(most, test_seconds(1) * 1000);
}

START_TEST(a_killed_rank_is_named_by_every_survivor)
{
    struct job j;
    int victim = _i % 4;
    job_init(&j, 4, _i < 4 ? 1 : 2);
    job_start(&j, reduce_for_ever);
    wait_until(are_ready, &j, 20, "all ranks are in their second operation");
    nanosleep(&(struct timespec){.tv_nsec = _i * 1700000}, NULL); /* some point in it */
    uint64_t killed_ns = mono_ns();
    kill(j.pid[victim], SIGKILL);
    reap(&j, victim);
    play_agent(&j, victim);
    job_wait(&j, 20, 1u << victim);
    check_survivors(&j, victim, killed_ns, true);
    for (int r = 0; r < 4; r++) {
        if (r == victim)
            continue;
        ck_assert_int_eq(line_of(&j, r)->state, SEGMENT_LOCAL_FAILED);
        ck_assert_int_eq(line_of(&j, r)->cause_rank, victim);
        ck_assert_uint_eq(line_of(&j, r)->seq, j.shared->rank[r].error.seq);
    }
    job_fini(&j);
}
END_TEST

static void reduce_for_ever_alone(struct job *j, int rank)
{
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_store_port);
    reduce_for_ever(j, rank);
}

START_TEST(a_killed_rank_is_named_without_an_agent)
{
    struct job j;
    int victim = _i % 4, n = _i < 4 ? 4 : 7;
    int fd = reserve_port(&g_store_port);
    job_init(&j, n, 0);
    job_start(&j, reduce_for_ever_alone);
    wait_until(are_ready, &j, 20, "all ranks are in their second operation");
    nanosleep(&(struct timespec){.tv_nsec = _i * 1700000}, NULL);
    uint64_t killed_ns = mono_ns();
    kill(j.pid[victim], SIGKILL);
    reap(&j, victim);
    job_wait(&j, 20, 1u << victim);
    check_survivors(&j, victim, killed_ns, false);
    job_fini(&j);
    close(fd);
}
END_TEST

/* The agent's word ends waits in which nothing moves, long before any socket would. */
static void wait_for_nobody(struct job *j, int rank)
{
    dlcoll_comm *c = start_comm();
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    say_ready(j);
    if (rank == 0)
        await_go(j);
    int r = dlcoll_barrier(c, NULL, NULL);
    keep_result(j, rank, c, r);
    dlcoll_destroy(c);
}

START_TEST(the_abort_word_ends_a_wait)
{
    struct job j;
    job_init(&j, 3, 1);
    job_start(&j, wait_for_nobody);
    wait_until(are_ready, &j, 20, "all ranks are there");
    struct segment_abort *a = &j.segment[0]->abort;
    a->rank = _i ? 1 : -1;
    a->exit_code = _i ? 7 : 0;
    a->pid = 1234;
    strcpy(a->host, "node-x");
    strcpy(a->text, "the job was stopped by SIGTERM");
    uint64_t set_ns = mono_ns();
    atomic_store_explicit(&a->word, 1, memory_order_release);
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL); /* rank 0 is not even waiting */
    atomic_store(&j.shared->go, 1);
    job_wait(&j, 20, 0);
    for (int r = 0; r < 3; r++) {
        dlcoll_error *e = &j.shared->rank[r].error;
        ck_assert_int_eq(j.shared->rank[r].code, _i ? DLCOLL_EPEER : DLCOLL_EABORTED);
        ck_assert_str_eq(e->text, _i ? "barrier #2: rank 1 (node-x, pid 1234) exited with status 7"
                                     : "barrier #2: the job was stopped by SIGTERM");
        ck_assert_int_eq(e->rank, _i ? 1 : -1);
        ck_assert_int_eq(e->exit_code, _i ? 7 : 0);
    }
    for (int r = 1; r < 3; r++)
        ck_assert_uint_lt(j.shared->rank[r].returned_ns - set_ns,
                          (uint64_t)(test_seconds(1) * 1e9));
    job_fini(&j);
}
END_TEST

static void come_too_late(struct job *j, int rank)
{
    dlcoll_comm *c = start_comm();
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    int64_t v = 1;
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 2) {
        say_ready(j);
        await_ready(j);
        keep_result(j, rank, c, 0);
    } else {
        opts.timeout_ms = rank == 0 ? 100 : 20000;
        int r = dlcoll_all_reduce(&v, &v, 1, DLCOLL_I64, DLCOLL_SUM, c, &opts, NULL);
        keep_result(j, rank, c, r);
        say_ready(j);
    }
    dlcoll_destroy(c);
}

START_TEST(a_timeout_names_the_one_awaited)
{
    struct job j;
    job_init(&j, 3, 1);
    job_start(&j, come_too_late);
    job_wait(&j, 20, 0);
    for (int r = 0; r < 2; r++) {
        dlcoll_error *e = &j.shared->rank[r].error;
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_ETIMEDOUT, "rank %d: %s", r, e->text);
        ck_assert_msg(e->rank == (r == 0 ? e->rank : 1) || e->rank == 2, "%s", e->text);
        ck_assert_ptr_nonnull(strstr(e->text, "all_reduce #2: rank 0 timed out waiting for rank"));
    }
    job_fini(&j);
}
END_TEST

static void differ(struct job *j, int rank)
{
    dlcoll_comm *c = start_comm();
    float x[12] = {0};
    int r;
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 2)
        r = dlcoll_broadcast(x, x, 10, DLCOLL_F32, 1, c, NULL, NULL);
    else
        r = dlcoll_all_reduce(x, x, 12, DLCOLL_F32, DLCOLL_SUM, c, NULL, NULL);
    for (int k = 0; k < 10 && r == 0; k++) /* one that only sends may be through */
        r = dlcoll_barrier(c, NULL, NULL);
    keep_result(j, rank, c, r);
    dlcoll_destroy(c);
}

START_TEST(different_calls_are_told_on_every_rank)
{
    struct job j;
    job_init(&j, _i, 1);
    job_start(&j, differ);
    job_wait(&j, 20, 0);
    for (int r = 0; r < _i; r++) {
        const char *text = j.shared->rank[r].error.text;
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_EMISMATCH, "rank %d: %s", r, text);
        ck_assert_msg(strstr(text, "rank 2") && strstr(text, "broadcast of 10 f32 from rank 1"),
                      "rank %d: %s", r, text);
    }
    job_fini(&j);
}
END_TEST

static void leave_early(struct job *j, int rank)
{
    dlcoll_comm *c = start_comm();
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 1) {
        dlcoll_destroy(c);
        return;
    }
    int r = dlcoll_barrier(c, NULL, NULL);
    keep_result(j, rank, c, r);
    dlcoll_destroy(c);
}

START_TEST(a_rank_that_leaves_is_told)
{
    struct job j;
    job_init(&j, 2, 1);
    job_start(&j, leave_early);
    job_wait(&j, 20, 0);
    ck_assert_int_eq(j.shared->rank[0].code, DLCOLL_EPEER);
    ck_assert_int_eq(j.shared->rank[0].error.rank, 1);
    ck_assert_ptr_nonnull(strstr(j.shared->rank[0].error.text, "has left the job"));
    job_fini(&j);
}
END_TEST

/* --------------------------------------------------------------------------------- the process */

static void count_allocations(struct job *j, int rank)
{
    (void)j, (void)rank;
    dlcoll_comm *c = start_comm();
    static double x[70000], y[70000];
    for (int k = 0; k < 1010; k++) {
        if (k == 10)
            g_allocations = 0;
        size_t n = k % 50 ? 100 : 70000;
        EXPECT(dlcoll_all_reduce(x, y, n, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL) == 0);
        EXPECT(dlcoll_broadcast(x, y, n, DLCOLL_F64, k % 3, c, NULL, NULL) == 0);
        EXPECT(dlcoll_barrier(c, NULL, NULL) == 0);
        if (k == 0)
            for (int root = 0; root < 3; root++)
                EXPECT(dlcoll_broadcast(x, y, 70000, DLCOLL_F64, root, c, NULL, NULL) == 0);
    }
    EXPECT(g_allocations == 0, "%ld allocations", g_allocations);
    end_comm(c);
}

START_TEST(operations_do_not_allocate_after_warm_up)
{
    run_job(3, 1, count_allocations);
}
END_TEST

/* Rank 0 runs out of memory at every allocation in turn, and can go on each time. */
static void run_out_of_memory(struct job *j, int rank)
{
    (void)j;
    int64_t v;
    for (long k = 0;; k++) {
        dlcoll_comm *c = NULL;
        int r = 0;
        do { /* the whole of init and one operation, failing at the k-th allocation */
            g_fail_after = rank == 0 && r == 0 ? k : -1;
            r = dlcoll_init(&c, NULL);
            EXPECT(r == 0 || (r == DLCOLL_ENOMEM && !c), "%d %s", r, why(NULL));
        } while (r < 0);
        do {
            v = 5;
            r = dlcoll_all_reduce(&v, &v, 1, DLCOLL_I64, DLCOLL_SUM, c, NULL, NULL);
            EXPECT(r == 0 || r == DLCOLL_ENOMEM, "%d %s", r, why(c));
        } while (r < 0);
        EXPECT(v == 10);
        int64_t untouched = g_fail_after >= 0;
        g_fail_after = -1;
        EXPECT(dlcoll_broadcast(&untouched, &untouched, 1, DLCOLL_I64, 0, c, NULL, NULL) == 0);
        end_comm(c);
        if (untouched)
            break;
        EXPECT(k < 100);
    }
}

START_TEST(want_of_memory_is_an_error_code)
{
    run_job(2, 1, run_out_of_memory);
}
END_TEST

static void *call_barrier(void *arg)
{
    return (void *)(intptr_t)dlcoll_barrier(arg, NULL, NULL);
}

static void use_two_threads(struct job *j, int rank)
{
    dlcoll_comm *c = start_comm();
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 0) {
        pthread_t t;
        void *first;
        EXPECT(pthread_create(&t, NULL, call_barrier, c) == 0);
        /* The other thread is in the barrier, which rank 1 does not enter yet. */
        struct segment_local *line = line_of(j, 0);
        while (atomic_load(&line->state) != SEGMENT_LOCAL_CALL)
            sched_yield();
        EXPECT(dlcoll_barrier(c, NULL, NULL) == DLCOLL_ESTATE);
        say_ready(j);
        EXPECT(pthread_join(t, &first) == 0 && first == NULL);
    } else {
        while (atomic_load(&j->shared->ready) == 0)
            sched_yield();
        EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    }
    end_comm(c);
}

START_TEST(a_second_thread_is_turned_away)
{
    run_job(2, 1, use_two_threads);
}
END_TEST

static void fork_a_child(struct job *j, int rank)
{
    (void)j, (void)rank;
    dlcoll_comm *c = start_comm();
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    pid_t pid = fork();
    if (pid == 0) {
        EXPECT(dlcoll_barrier(c, NULL, NULL) == DLCOLL_ESTATE);
        EXPECT(strstr(why(c), "fork()'s child"), "%s", why(c));
        dlcoll_destroy(c);
        _exit(0);
    }
    int status;
    EXPECT(waitpid(pid, &status, 0) == pid && status == 0, "%#x", (unsigned)status);
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c)); /* the parent's is unharmed */
    end_comm(c);
}

START_TEST(a_forked_child_is_turned_away)
{
    run_job(2, 1, fork_a_child);
}
END_TEST

static void on_alarm(int signo)
{
    (void)signo;
}

static void be_interrupted(struct job *j, int rank)
{
    (void)j, (void)rank;
    struct sigaction sa = {.sa_handler = on_alarm}; /* no SA_RESTART */
    struct itimerval every = {{0, 500}, {0, 500}};
    sigaction(SIGALRM, &sa, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    dlcoll_comm *c = start_comm();
    static float x[300000];
    for (int k = 0; k < 30; k++)
        EXPECT(dlcoll_all_reduce(x, x, 300000, DLCOLL_F32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s",
               why(c));
    end_comm(c);
}

START_TEST(signals_do_not_disturb)
{
    run_job(3, 1, be_interrupted);
}
END_TEST

static void count_fds(struct job *j, int rank)
{
    (void)j, (void)rank;
    bool before[1024] = {false};
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; (e = readdir(d));)
        before[atoi(e->d_name) % 1024] = true;
    rewinddir(d);
    dlcoll_comm *c = start_comm();
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    for (struct dirent *e; (e = readdir(d));) {
        int fd = atoi(e->d_name);
        bool handed_down =
            fd == atoi(getenv(SEGMENT_ENV_FD)) || fd == atoi(getenv(SEGMENT_ENV_LISTEN));
        if (e->d_name[0] != '.' && (!before[fd % 1024] || handed_down))
            EXPECT(fcntl(fd, F_GETFD) & FD_CLOEXEC, "fd %d", fd);
    }
    end_comm(c);
    rewinddir(d);
    for (struct dirent *e; (e = readdir(d));)
        EXPECT(before[atoi(e->d_name) % 1024], "fd %s is left", e->d_name);
    closedir(d);
}

START_TEST(descriptors_are_closed_on_exec_and_at_the_end)
{
    run_job(3, 1, count_fds);
}
END_TEST

/* ----------------------------------------------------------------------------------- strangers */

static int connect_to(uint16_t port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        close_fd(&fd);
    return fd;
}

static void reduce_and_wait(struct job *j, int rank)
{
    (void)rank;
    dlcoll_comm *c = start_comm();
    say_ready(j);
    await_go(j); /* strangers have come first */
    for (int k = 0; k < 50; k++) {
        static float x[50000];
        EXPECT(dlcoll_all_reduce(x, x, k ? 50000 : 10, DLCOLL_F32, DLCOLL_SUM, c, NULL, NULL) == 0,
               "%s", why(c));
    }
    end_comm(c);
}

START_TEST(strangers_disturb_nobody)
{
    struct job j;
    enum { EACH = 30 };
    int fds[3 * EACH], n = 0;
    job_init(&j, 3, 1);
    struct hello hello = {.magic = HELLO_MAGIC,
                          .version = HELLO_VERSION,
                          .kind = HELLO_DATA,
                          .epoch = j.segment[0]->epoch,
                          .counter = 3,
                          .instance = 1};
    struct {
        struct hello hello;
        struct notice notice;
    } lie = {hello, {.code = DLCOLL_EPEER, .rank = 0}};
    job_start(&j, reduce_and_wait);
    wait_until(are_ready, &j, 20, "all ranks are there");
    for (int k = 0; k < 3 * EACH; k++) {
        int to = k % 3, fd = connect_to(j.port[to]);
        ck_assert_int_ge(fd, 0);
        struct hello h = hello;
        h.to = (uint32_t)to;
        h.from = (uint32_t)(to + 1) % 3;
        switch (k / 3 % 10) {
        case 0: /* says nothing */
            break;
        case 1:
            ck_assert_int_gt((int)write(fd, "GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", 36), 0);
            break;
        case 2: /* half of it */
            ck_assert_int_gt((int)write(fd, &h, 20), 0);
            break;
        case 3:
            close_fd(&fd);
            continue;
        case 4: /* another round */
            h.counter++;
            ck_assert_int_gt((int)write(fd, &h, sizeof(h)), 0);
            break;
        case 5: /* another job */
            h.epoch++;
            ck_assert_int_gt((int)write(fd, &h, sizeof(h)), 0);
            break;
        case 6: /* for another rank */
            h.to++;
            ck_assert_int_gt((int)write(fd, &h, sizeof(h)), 0);
            break;
        case 7: /* from no rank */
            h.from = 0xffffffff;
            ck_assert_int_gt((int)write(fd, &h, sizeof(h)), 0);
            break;
        case 8: /* a notice from another job */
            lie.hello.kind = HELLO_NOTICE;
            lie.hello.to = (uint32_t)to;
            lie.hello.epoch++;
            ck_assert_int_gt((int)write(fd, &lie, sizeof(lie)), 0);
            break;
        case 9: /* a notice cut short */
            lie.hello = h;
            lie.hello.kind = HELLO_NOTICE;
            ck_assert_int_gt((int)write(fd, &lie, sizeof(lie) - 1), 0);
            break;
        }
        fds[n++] = fd;
    }
    atomic_store(&j.shared->go, 1);
    job_wait(&j, 30, 0);
    while (n)
        close(fds[--n]);
    job_fini(&j);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll");
    TCase *tc = test_case(s, "operations", 60);
    tcase_add_loop_test(tc, all_operations_under_a_launcher, 1, 6);
    tcase_add_loop_test(tc, all_operations_under_a_launcher, 8, 9);
    tcase_add_test(tc, a_world_of_one_with_nothing_set);
    tcase_add_test(tc, communicators_may_follow_each_other);
    tcase_add_test(tc, large_messages);
    tcase_add_test(tc, eight_ranks_on_two_cpus_do_not_crawl);
    tc = test_case(s, "without a launcher", 60);
    tcase_add_loop_test(tc, ranks_meet_in_a_store_that_is_served, 2, 5);
    tcase_add_loop_test(tc, ranks_meet_in_a_store_that_rank_0_hosts, 2, 6);
    tcase_add_test(tc, a_wrong_environment_is_told);
    tcase_add_test(tc, ranks_that_do_not_come_are_listed);
    tcase_add_test(tc, two_processes_with_one_rank_are_told);
    tcase_add_test(tc, a_malformed_table_is_refused);
    tc = test_case(s, "arguments", 30);
    tcase_add_test(tc, a_wrong_segment_is_refused);
    tcase_add_test(tc, wrong_arguments_are_refused_and_harm_nothing);
    tcase_add_test(tc, structs_grow_both_ways);
    tcase_add_test(tc, codes_have_texts);
    tc = test_case(s, "failures", 60);
    tcase_add_loop_test(tc, a_killed_rank_is_named_by_every_survivor, 0, 8);
    tcase_add_loop_test(tc, a_killed_rank_is_named_without_an_agent, 0, 8);
    tcase_add_loop_test(tc, the_abort_word_ends_a_wait, 0, 2);
    tcase_add_test(tc, a_timeout_names_the_one_awaited);
    tcase_add_loop_test(tc, different_calls_are_told_on_every_rank, 3, 6);
    tcase_add_test(tc, a_rank_that_leaves_is_told);
    tc = test_case(s, "process", 60);
#ifndef SANITIZED
    tcase_add_test(tc, operations_do_not_allocate_after_warm_up);
    tcase_add_test(tc, want_of_memory_is_an_error_code);
#endif
    tcase_add_test(tc, a_second_thread_is_turned_away);
    tcase_add_test(tc, a_forked_child_is_turned_away);
    tcase_add_test(tc, signals_do_not_disturb);
    tcase_add_test(tc, descriptors_are_closed_on_exec_and_at_the_end);
    tcase_add_test(tc, strangers_disturb_nobody);
    return s;
}

TEST_MAIN(suite)
