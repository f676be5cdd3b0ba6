/* libdlcoll and memory: operations take none when they are warm, and want of it is an error code
 * that harms nothing. Ranks are forked. */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "collectives/comm/comm.h"
#include "collectives/shm/tuning.h"
#include "core/fd.h"
#include "core/reserve.h"
#include "tests/lib/coll_ops.h"
#include "tests/lib/ranks.h"

/* -------------------------------------------------------------------------- counted allocations */

static long g_allocations;
static long g_fail_after = -1;  /* so many more succeed, then one fails */
static long g_moves_after = -1; /* likewise what is sent, or read out of another's memory */

#if SANITIZED
static const bool g_counting = false; /* it has a malloc of its own */
#else
static const bool g_counting = true;
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

static bool moves(void)
{
    bool yes = g_moves_after < 0 || g_moves_after-- > 0;
    errno = yes ? errno : ENOMEM;
    return yes;
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    return moves() ? syscall(SYS_sendmsg, fd, m, flags) : -1;
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *here, unsigned long nhere,
                         const struct iovec *there, unsigned long nthere, unsigned long flags)
{
    return moves() ? syscall(SYS_process_vm_readv, pid, here, nhere, there, nthere, flags) : -1;
}
#endif

/* ------------------------------------------------------------------------------------ the tests */

enum { ANY = 100, LARGE = 70000, WARM = 20, CALLS = 1000 };

/* Ways and roots have had their turns when it is warm; every fiftieth call is a large one. */
static void count_allocations(struct ranks *j, int rank)
{
    (void)j, (void)rank;
    dlcoll_comm *c = comm_start();
    struct coll_buffers b = coll_buffers_new(LARGE, dlcoll_size(c));
    EXPECT(b.x);
    for (int op = 0; op < COLL_SELDOM; op++) {
        for (int k = -WARM; k < CALLS; k++) {
            if (k == 0)
                g_allocations = 0;
            b.count = (k < 0 ? k % 2 : k % 50) ? ANY : LARGE;
            int r = coll_op_call((enum coll_op)op, c, &b, k + WARM);
            EXPECT(r == 0, "%s: %d %s", coll_op_names[op], r, why(c));
        }
        EXPECT(g_allocations == 0, "%s: %ld allocations", coll_op_names[op], g_allocations);
    }
    comm_end(c);
    coll_buffers_free(&b);
}

/* Through shared memory, over TCP, on two nodes. */
START_TEST(operations_do_not_allocate_after_warm_up)
{
    setenv("DLCOLL_SHM", _i == 1 ? "0" : "1", 1);
    ranks_run_for(_i == 2 ? 4 : 3, _i == 2 ? 2 : 1, count_allocations, 60);
    unsetenv("DLCOLL_SHM");
}
END_TEST

static bool g_lists; /* large and small buffers, so that it begins with the large ones */

static int sum_up(dlcoll_comm *c, int64_t *v)
{
    static int64_t large[40000];
    int64_t two[2] = {5, 5};
    dlcoll_span list[] = {{large, large, 40000}, {two, two, 1}, {two + 1, v, 1}};
    *v = 5;
    return g_lists ? dlcoll_all_reduce_coalesced(list, 3, DLCOLL_I64, DLCOLL_SUM, c, NULL, NULL)
                   : dlcoll_all_reduce(v, v, 1, DLCOLL_I64, DLCOLL_SUM, c, NULL, NULL);
}

/* Rank 0 runs out of memory at every allocation in turn. Either nothing has been sent, and it goes
 * on, or all are told. In all worlds but the first, the others wait for it in dlcoll_init(), and
 * try again as well. */
static void run_out_of_memory(struct ranks *j, int rank)
{
    int64_t v;
    for (long k = 0;; k++) {
        dlcoll_comm *c = NULL;
        int r = 0;
        do { /* the whole of init and one operation, failing at the k-th allocation */
            g_fail_after = rank == 0 && r == 0 ? k : -1;
            r = dlcoll_init(&c, NULL);
            bool peers = rank > 0 && k > 0 && r == DLCOLL_ENET;
            EXPECT(r == 0 || ((r == DLCOLL_ENOMEM || peers) && !c), "%d %s", r, why(NULL));
        } while (r < 0);
        do {
            r = sum_up(c, &v);
            EXPECT(r == 0 || r == DLCOLL_ENOMEM, "%d %s", r, why(c));
        } while (r < 0 && !c->failed);
        int64_t untouched = g_fail_after >= 0;
        g_fail_after = -1;
        if (r < 0) {
            dlcoll_destroy(c);
            continue;
        }
        EXPECT(v == 5 * j->n);
        EXPECT(dlcoll_broadcast(&untouched, &untouched, 1, DLCOLL_I64, 0, c, NULL, NULL) == 0);
        comm_end(c);
        if (untouched)
            break;
        EXPECT(k < 100);
    }
}

START_TEST(want_of_memory_is_an_error_code)
{
    g_lists = _i > 0;
    ranks_run(_i == 1 ? 4 : 2, _i == 1 ? 2 : 1, run_out_of_memory);
}
END_TEST

/* The system has no memory for it while an operation goes on. */
static void move_without_memory(struct ranks *j, int rank)
{
    enum { COUNT = 1 << 17 };
    static int64_t x[COUNT], y[COUNT];
    (void)j;
    for (long k = 0; k < 3; k++) {
        dlcoll_comm *c = comm_start();
        int r = 0;
        for (int i = 0; i < 10 && r == 0; i++) { /* whether memory can be read is found out */
            g_moves_after = rank == 0 && i == 9 ? k : -1;
            r = c->shm ? dlcoll_broadcast(x, y, COUNT, DLCOLL_I64, 1, c, NULL, NULL)
                       : dlcoll_all_reduce(x, y, COUNT, DLCOLL_I64, DLCOLL_SUM, c, NULL, NULL);
        }
        bool untouched = g_moves_after >= 0;
        g_moves_after = -1;
        EXPECT(r == 0 || (r == DLCOLL_ENOMEM && c->failed), "%d %s", r, why(c));
        EXPECT(rank != 0 || (r == 0) == untouched, "%d %s", r, why(c));
        EXPECT(rank != 0 || r < 0 || k > 0 || c->shm);
        if (r == 0)
            comm_end(c);
        else
            dlcoll_destroy(c);
    }
}

START_TEST(want_of_memory_in_the_middle_ends_it)
{
    setenv("DLCOLL_SHM", _i ? "1" : "0", 1);
    shm_tuning.pull = shm_tuning.pull_shared = shm_tuning.pull_crowded = 1;
    shm_tuning.compare = SIZE_MAX;
    ranks_run(2, 1, move_without_memory);
    unsetenv("DLCOLL_SHM");
}
END_TEST

/* A group that could not be made for want of memory is made by another call, as the others', who
 * wait for it, are by their first. */
static void group_without_memory(struct ranks *j, int rank)
{
    static const int both[2] = {0, 1};
    dlcoll_group_opts opts = DLCOLL_GROUP_OPTS_INIT;
    dlcoll_comm *c = comm_start();
    (void)j;
    opts.timeout_ms = 10000;
    for (int64_t k = 0, untouched = 0; !untouched; k++) {
        dlcoll_comm *g = NULL;
        int r;
        g_fail_after = rank == 0 ? k : -1;
        do
            r = dlcoll_comm_new_group(c, both, 2, &g, &opts);
        while (r == DLCOLL_ENOMEM);
        EXPECT(r == 0, "%d: %d %s", (int)k, r, why(c));
        untouched = g_fail_after >= 0;
        g_fail_after = -1;
        EXPECT(dlcoll_broadcast(&untouched, &untouched, 1, DLCOLL_I64, 0, g, NULL, NULL) == 0, "%s",
               why(g));
        comm_end(g);
        EXPECT(k < 100);
    }
    comm_end(c);
}

START_TEST(a_group_without_memory)
{
    ranks_run(2, 1, group_without_memory);
}
END_TEST

/* Rank 0 sends with a handle, for which no thread can be started at first: what has been refused
 * has not been sent, so that the message comes once. Nor is a handle lost that came to nothing. */
static void send_without_memory(struct ranks *j, int rank)
{
    enum { COUNT = 100000 }; /* waits for its receive */
    static int32_t x[COUNT], end[COUNT] = {-1};
    struct rlimit all, none = {0};
    dlcoll_comm *c = comm_start();
    dlcoll_work *w = NULL;
    (void)j;
    if (rank == 1) {
        EXPECT(dlcoll_recv(x, COUNT, DLCOLL_I32, 0, c, NULL, NULL) == 0 && x[0] == 1);
        EXPECT(dlcoll_recv(x, COUNT, DLCOLL_I32, 0, c, NULL, NULL) == 0, "%s", why(c));
        EXPECT(x[0] == -1, "the message came again");
        comm_end(c);
        return;
    }
    x[0] = 1;
    EXPECT(getrlimit(RLIMIT_AS, &all) == 0);
    none.rlim_max = all.rlim_max;
    EXPECT(setrlimit(RLIMIT_AS, &none) == 0);
    int r = dlcoll_send(x, COUNT, DLCOLL_I32, 1, c, NULL, &w);
    EXPECT(setrlimit(RLIMIT_AS, &all) == 0);
    EXPECT(r == DLCOLL_ENOMEM && !w, "%d %s", r, why(c));
    EXPECT(dlcoll_send(x, COUNT, DLCOLL_I32, 1, c, NULL, &w) == 0, "%s", why(c));
    EXPECT(dlcoll_send(end, COUNT, DLCOLL_I32, 1, c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(dlcoll_wait(w) == 0, "%s", why(c));
    dlcoll_work_free(w);

    const dlcoll_p2p self[3] = {{.recv = x, .count = 1, .dtype = DLCOLL_I32}};
    g_fail_after = 0;
    EXPECT(dlcoll_batch(self, 3, c, NULL, &w) == DLCOLL_ENOMEM && !w, "%s", why(c));
    g_allocations = 0;
    EXPECT(dlcoll_batch(self, 1, c, NULL, &w) == 0, "%s", why(c));
    EXPECT(g_allocations == 0, "%ld allocations: the handle was lost", g_allocations);
    EXPECT(dlcoll_send(end, 1, DLCOLL_I32, 0, c, NULL, NULL) == 0 && dlcoll_wait(w) == 0);
    dlcoll_work_free(w);
    comm_end(c);
}

START_TEST(operations_refused_without_memory_send_nothing)
{
    ranks_run(2, 1, send_without_memory);
}
END_TEST

/* Each allocation of an exchange fails in turn: either it may be repeated, or it has failed on both
 * ranks for want of memory, and for no other reason. */
static void exchange_without_memory(struct ranks *j, int rank)
{
    (void)j;
    char data[3000] = {0};
    for (int64_t k = 0, untouched = 0; !untouched; k++) {
        dlcoll_comm *c = comm_start();
        dlcoll_bytes *all = NULL;
        int r;
        g_fail_after = rank == 0 ? k : -1;
        do
            r = dlcoll_exchange_bytes(data, sizeof(data), &all, c, NULL);
        while (r == DLCOLL_ENOMEM && !c->failed);
        EXPECT(r == 0 || r == DLCOLL_ENOMEM, "%d: %d %s", (int)k, r, why(c));
        untouched = g_fail_after >= 0;
        g_fail_after = -1;
        if (r == 0) {
            EXPECT(all[0].len == sizeof(data) && all[1].len == sizeof(data));
            EXPECT(dlcoll_broadcast(&untouched, &untouched, 1, DLCOLL_I64, 0, c, NULL, NULL) == 0);
            comm_end(c);
        } else {
            untouched = false;
            dlcoll_destroy(c);
        }
        dlcoll_bytes_free(all);
        EXPECT(k < 100);
    }
}

START_TEST(an_exchange_without_memory)
{
    setenv("DLCOLL_SHM", "0", 1);
    ranks_run(2, 1, exchange_without_memory);
    unsetenv("DLCOLL_SHM");
}
END_TEST

/* -------------------------------------------------------------------- memory that none may read */

enum { PART = 128 * 1024, PARTS = 2 * PART };

/* The part of a buffer that other processes cannot read: all of it, its first or its last pages. */
enum hidden { HIDDEN_ALL, HIDDEN_FIRST, HIDDEN_LAST, HIDDEN_PLACES };
static enum hidden g_hidden;

static int secret_fd(void)
{
#ifdef SYS_memfd_secret
    return (int)syscall(SYS_memfd_secret, 0);
#else
    errno = ENOSYS;
    return -1;
#endif
}

static uint8_t *hide(int fd)
{
    size_t at = g_hidden == HIDDEN_LAST ? PARTS - 4096 : 0;
    size_t len = g_hidden == HIDDEN_ALL ? PARTS : 4096;
    uint8_t *p = mmap(NULL, PARTS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(p != MAP_FAILED && ftruncate(fd, PARTS) == 0);
    EXPECT(mmap(p + at, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p + at);
    return p;
}

static void expect_parts(const uint8_t *y, int first, int second)
{
    for (size_t i = 0; i < PARTS; i++)
        EXPECT(y[i] == (i < PART ? first : second), "byte %zu is %d", i, y[i]);
}

static int count_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Groups whose ranks share memory have no descriptors, and work; also those of which the ranks
 * make the memory while others use theirs already. */
static void many_groups(struct ranks *j, int rank)
{
    enum { GROUPS = 20 };
    dlcoll_comm *c = comm_start(), *groups[GROUPS];
    int32_t sum, word;
    (void)j;
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    int before = count_descriptors();
    for (int k = 0; k < GROUPS; k++) {
        EXPECT(dlcoll_comm_dup(c, &groups[k], NULL, NULL) == 0, "%s", why(c));
        EXPECT(dlcoll_all_reduce(&(int32_t){rank}, &sum, 1, DLCOLL_I32, DLCOLL_SUM, groups[k], NULL,
                                 NULL) == 0,
               "%s", why(groups[k]));
        dlcoll_p2p ring[] = {
            {.send = &rank, .count = 1, .dtype = DLCOLL_I32, .peer = (rank + 1) % 4},
            {.recv = &word, .count = 1, .dtype = DLCOLL_I32, .peer = (rank + 3) % 4}};
        EXPECT(dlcoll_batch(ring, 2, groups[k], NULL, NULL) == 0, "%s", why(groups[k]));
        EXPECT(sum == 6 && word == (rank + 3) % 4);
    }
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(count_descriptors() <= before, "%d descriptors before, %d with groups", before,
           count_descriptors());
    for (int k = 0; k < GROUPS; k++)
        comm_end(groups[k]);
    comm_end(c);
}

START_TEST(groups_in_memory_have_no_descriptors)
{
    ranks_run(4, 1, many_groups);
}
END_TEST

static void send_what_is_hidden(struct ranks *j, int rank)
{
    int fd = secret_fd(), other = 1 - rank;
    uint8_t *x = hide(fd), *y = calloc(1, PARTS);
    dlcoll_comm *c = comm_start();
    (void)j;
    for (int k = 1; k < 40; k++) { /* either way of moving it has its turn */
        int mine = 4 * k + rank, theirs = 4 * k + other;
        memset(x, mine, PARTS);
        dlcoll_p2p both[2] = {{.send = x, .count = PARTS, .dtype = DLCOLL_U8, .peer = other},
                              {.recv = y, .count = PARTS, .dtype = DLCOLL_U8, .peer = other}};
        EXPECT(dlcoll_batch(both, 2, c, NULL, NULL) == 0, "%s", why(c));
        expect_parts(y, theirs, theirs);
        EXPECT(dlcoll_broadcast(x, y, PARTS, DLCOLL_U8, 0, c, NULL, NULL) == 0, "%s", why(c));
        expect_parts(y, 4 * k, 4 * k);
        EXPECT(dlcoll_all_to_all(x, y, PART, DLCOLL_U8, c, NULL, NULL) == 0, "%s", why(c));
        expect_parts(y, 4 * k, 4 * k + 1);
        EXPECT(dlcoll_scatter(x, y, PART, DLCOLL_U8, 0, c, NULL, NULL) == 0, "%s", why(c));
        expect_parts(y, 4 * k, 4 * k + 1);
        EXPECT(dlcoll_reduce(x, y, PARTS, DLCOLL_U8, DLCOLL_MAX, 0, c, NULL, NULL) == 0, "%s",
               why(c));
        if (rank == 0)
            expect_parts(y, 4 * k + 1, 4 * k + 1);
    }
    comm_end(c);
    free(y);
}

START_TEST(memory_that_peers_cannot_read_is_sent)
{
    int fd = secret_fd();
    if (fd < 0) {
        test_skip("there is no secret memory here: %s", strerror(errno));
        return;
    }
    close(fd);
    g_hidden = (enum hidden)(_i % HIDDEN_PLACES);
    if (_i >= HIDDEN_PLACES) { /* else as the library has it */
        shm_tuning.pull = shm_tuning.pull_crowded = 1;
        shm_tuning.compare = SIZE_MAX;
    }
    ranks_run(2, 1, send_what_is_hidden);
}
END_TEST

/* Reads a line "NAME: N kB" of /proc/self/status. In MiB. */
static long status_mb(const char *name)
{
    char text[8192];
    ssize_t n = fd_read_file(AT_FDCWD, "/proc/self/status", text, sizeof(text));
    const char *at = n > 0 ? strstr(text, name) : NULL;
    return at ? atol(at + strlen(name)) / 1024 : -1;
}

/* Mappings of files in memory of at least `least` bytes, and those of them that a core dump has. */
static int count_reservations(unsigned long least, int *dumped)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    bool ours = false;
    int n = *dumped = 0;
    while (f && fgets(line, sizeof(line), f)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            ours = strstr(line, "/memfd:") && to - from >= least;
        if (ours && strncmp(line, "VmFlags:", 8) == 0) {
            n++;
            *dumped += !strstr(line, " dd");
        }
    }
    if (f)
        fclose(f);
    return n;
}

/* The limit bounds the harm where everything is allocated. */
static void lock_all_memory(struct ranks *j, int rank)
{
    const struct rlimit least = {(rlim_t)3 << 30, (rlim_t)3 << 30};
    int x = 1, dumped, before;
    (void)j, (void)rank;
    EXPECT(setrlimit(RLIMIT_AS, &least) == 0 && mlockall(MCL_FUTURE) == 0, "%s", strerror(errno));
    count_reservations(32 << 20, &before); /* those of the test */
    dlcoll_comm *c = comm_start(), *own;   /* in the launcher's segment, and in a file of its own */
    EXPECT(dlcoll_comm_dup(c, &own, NULL, NULL) == 0 && own->shm, "%s", why(c));
    EXPECT(dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, own, NULL, NULL) == 0 && x == 2);
    EXPECT(count_reservations(32 << 20, &dumped) >= 1, "no memory is shared");
    EXPECT(dumped == before, "a core dump has %d reservations", dumped - before);
    EXPECT(status_mb("RssShmem:") < 64, "%ld MiB of memory", status_mb("RssShmem:"));
    comm_end(own);
    comm_end(c);
}

START_TEST(reservations_are_not_touched)
{
    if (geteuid() != 0) {
        test_skip("memory is locked without a limit by root only");
        return;
    }
    ranks_run(2, 1, lock_all_memory);
}
END_TEST

enum { ALIVE = 600 };

/* 64 GiB for each would be more. */
static void many_alive(struct ranks *j, int rank)
{
    static dlcoll_comm *group[ALIVE];
    long limit = (long)(reserve_limit() >> 20) + 64 * ALIVE;
    (void)j, (void)rank;
    dlcoll_comm *c = comm_start();
    for (int k = 0; k < ALIVE; k++)
        EXPECT(dlcoll_comm_dup(c, &group[k], NULL, NULL) == 0, "%d: %s", k, why(c));
    EXPECT(group[ALIVE - 1]->shm, "the last one shares no memory");
    EXPECT(status_mb("VmSize:") < limit, "%ld MiB of addresses", status_mb("VmSize:"));
    for (int k = 0; k < ALIVE; k++)
        comm_end(group[k]);
    comm_end(c);
}

START_TEST(many_communicators_leave_addresses)
{
    ranks_run_for(2, 1, many_alive, 60);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_memory");
    TCase *tc = test_case(s, "hidden", 60);
    tcase_add_loop_test(tc, memory_that_peers_cannot_read_is_sent, 0, 2 * HIDDEN_PLACES);
    tc = test_case(s, "memory", 90);
#if !SANITIZED /* it reserves addresses itself */
    tcase_add_test(tc, reservations_are_not_touched);
    tcase_add_test(tc, many_communicators_leave_addresses);
#endif
    if (!g_counting) {
        test_skip("allocations are not counted under a sanitizer");
        return s;
    }
    tcase_add_loop_test(tc, operations_do_not_allocate_after_warm_up, 0, 3);
    tcase_add_loop_test(tc, want_of_memory_is_an_error_code, 0, 3);
    tcase_add_loop_test(tc, want_of_memory_in_the_middle_ends_it, 0, 2);
    tcase_add_test(tc, a_group_without_memory);
    tcase_add_test(tc, groups_in_memory_have_no_descriptors);
    tcase_add_test(tc, operations_refused_without_memory_send_nothing);
    tcase_add_test(tc, an_exchange_without_memory);
    return s;
}

TEST_MAIN(suite)
