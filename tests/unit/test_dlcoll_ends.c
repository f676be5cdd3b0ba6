/* Communicators that end before their time: aborted, left, shrunk. Ranks are threads, over TCP and,
 * where they share memory, through that. */
#include "tests/lib/test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "collectives/comm/comm.h"
#include "collectives/shm/tuning.h"
#include "core/clock.h"
#include "tests/lib/thread_ranks.h"

static void abort_all(dlcoll_comm *comm, void *arg)
{
    int32_t x = 1;
    int code = dlcoll_barrier(comm, NULL, NULL); /* one may be through, and abort, before another */
    (void)arg;
    THREAD_EXPECT(code == 0 || code == DLCOLL_EABORTED, "%d %s", code, thread_error(comm));
    if (dlcoll_rank(comm) == 1) {
        THREAD_OK(dlcoll_abort(comm, "no more data"));
        THREAD_EXPECT(dlcoll_abort(comm, "again") == DLCOLL_ESTATE, "twice");
    } else {
        if (code == 0)
            code = dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, comm, NULL, NULL);
        THREAD_EXPECT(code == DLCOLL_EABORTED, "%d %s", code, thread_error(comm));
    }
    THREAD_EXPECT(strstr(thread_error(comm), "rank 1") &&
                      strstr(thread_error(comm), "no more data"),
                  "%s", thread_error(comm));
    code = dlcoll_barrier(comm, NULL, NULL);
    THREAD_EXPECT(code == DLCOLL_ESTATE, "%d", code);
}

START_TEST(abort_ends_the_communicator_for_all)
{
    thread_ranks_run(_i, abort_all, NULL);
}
END_TEST

/* Between raising the word and writing down why, whoever stops the others may be held up... */
static void *say_why(void *arg)
{
    dlcoll_comm *comm = arg;
    dlcoll_record r;
    while (dlcoll_recent(comm, -1, &r, 1) != 1 || strcmp(r.op, "all_reduce") != 0)
        ;
    comm->own_stop.why = (struct notice){.rank = 1, .code = DLCOLL_EABORTED, .exit_code = -1};
    snprintf(comm->own_stop.why.text, sizeof(comm->own_stop.why.text), "%s", "out of data");
    atomic_store(&comm->own_stop.word, STOP_SAID);
    return NULL;
}

/* ...or die. */
static void stopped_first_told_later(dlcoll_comm *comm, void *arg)
{
    const bool *says = arg;
    pthread_t t;
    int32_t x = 1;
    atomic_store(&comm->own_stop.word, STOP_CLAIMED);
    if (*says)
        pthread_create(&t, NULL, say_why, comm);
    int code = dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, comm, NULL, NULL);
    THREAD_EXPECT(code == DLCOLL_EABORTED, "%d %s", code, thread_error(comm));
    THREAD_EXPECT(strstr(thread_error(comm), *says ? "out of data" : "died before it could report"),
                  "%s", thread_error(comm));
    if (*says)
        pthread_join(t, NULL);
}

START_TEST(a_reason_that_is_written_late_or_never)
{
    bool says = _i;
    thread_ranks_run(1, stopped_first_told_later, &says);
}
END_TEST

/* A thread aborts what another one is in. */
static void *abort_soon(void *comm)
{
    dlcoll_record r;
    while (dlcoll_recent(comm, -1, &r, 1) != 1 || strcmp(r.op, "recv") != 0)
        ;
    dlcoll_abort(comm, "by another thread");
    return NULL;
}

static void abort_from_beside(dlcoll_comm *comm, void *arg)
{
    pthread_t t;
    int32_t x;
    (void)arg;
    if (dlcoll_rank(comm) == 0)
        pthread_create(&t, NULL, abort_soon, comm);
    int code = dlcoll_recv(&x, 1, DLCOLL_I32, 1 - dlcoll_rank(comm), comm, NULL, NULL);
    THREAD_EXPECT(code == DLCOLL_EABORTED, "%d %s", code, thread_error(comm));
    if (dlcoll_rank(comm) == 0)
        pthread_join(t, NULL);
}

START_TEST(abort_by_another_thread)
{
    thread_ranks_run(2, abort_from_beside, NULL);
}
END_TEST

/* Rank 1 is held up while it reads what lies in rank 0's memory. Meanwhile rank 0's operation is
 * aborted, and the program fills the buffer with something else: that is nobody's result. */
enum { TAKEN_BYTES = 1 << 20, SENT = 1, REUSED = 9 };
enum taking { BROADCAST, MESSAGE, REDUCTION, TAKINGS };

static _Atomic int g_held; /* 1: it is held up; 2: it goes on; 3: it is through */
static _Thread_local bool t_is_held;

static void await_held(int step)
{
    while (atomic_load(&g_held) != step)
        sched_yield();
}

static void hold(void)
{
    int no = 0;
    if (!t_is_held || !atomic_compare_exchange_strong(&g_held, &no, 1))
        return;
    await_held(2);
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *here, unsigned long nhere,
                         const struct iovec *there, unsigned long nthere, unsigned long flags)
{
    if (here->iov_len == TAKEN_BYTES)
        hold();
    return syscall(SYS_process_vm_readv, pid, here, nhere, there, nthere, flags);
}

static void add_and_hold(void *acc, const void *in, size_t n, dlcoll_dtype dtype, void *ctx)
{
    (void)dtype, (void)ctx;
    hold();
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)acc)[i] += ((const uint8_t *)in)[i];
}

static void *abort_when_held(void *comm)
{
    await_held(1);
    dlcoll_abort(comm, "meanwhile");
    return NULL;
}

static int take(dlcoll_comm *comm, enum taking how, dlcoll_op op, uint8_t *x, uint8_t *y)
{
    if (how == BROADCAST)
        return dlcoll_broadcast(x, y, TAKEN_BYTES, DLCOLL_U8, 0, comm, NULL, NULL);
    if (how == REDUCTION)
        return dlcoll_all_reduce(x, y, TAKEN_BYTES, DLCOLL_U8, op, comm, NULL, NULL);
    return dlcoll_rank(comm) == 0 ? dlcoll_send(x, TAKEN_BYTES, DLCOLL_U8, 1, comm, NULL, NULL)
                                  : dlcoll_recv(y, TAKEN_BYTES, DLCOLL_U8, 0, comm, NULL, NULL);
}

static void take_what_is_reused(dlcoll_comm *comm, void *arg)
{
    enum taking how = *(enum taking *)arg;
    static uint8_t buffers[2][2][TAKEN_BYTES];
    bool shared = how == REDUCTION, owner = dlcoll_rank(comm) == 0;
    uint8_t *x = shared ? dlcoll_mem_alloc(comm, TAKEN_BYTES) : buffers[owner][0];
    uint8_t *y = shared ? dlcoll_mem_alloc(comm, TAKEN_BYTES) : buffers[owner][1];
    pthread_t t;
    dlcoll_op op;
    int code = 0;
    THREAD_OK(dlcoll_op_create_user(&op, add_and_hold, NULL, 0));
    memset(x, SENT, TAKEN_BYTES);
    t_is_held = !owner;
    if (owner)
        pthread_create(&t, NULL, abort_when_held, comm);
    for (int k = 0; code == 0; k++) { /* it may be staged at first */
        THREAD_EXPECT(k < 100, "nothing is taken out of rank 0's buffer");
        code = take(comm, how, op, x, y);
        for (size_t i = 0; code == 0 && !owner && i < TAKEN_BYTES; i++)
            THREAD_EXPECT(y[i] == (shared ? 2 * SENT : SENT), "byte %zu is %d", i, y[i]);
    }
    THREAD_EXPECT(code == DLCOLL_EABORTED, "%d %s", code, thread_error(comm));
    if (owner) {
        pthread_join(t, NULL);
        memset(x, REUSED, TAKEN_BYTES);
        atomic_store(&g_held, 2);
        await_held(3); /* having left, it would be missed */
    } else {
        atomic_store(&g_held, 3);
    }
    dlcoll_op_free(op);
}

START_TEST(what_is_reused_is_no_result)
{
    enum taking how = (enum taking)_i;
    shm_tuning.pull = shm_tuning.pull_shared = shm_tuning.pull_crowded = 1;
    shm_tuning.compare = SIZE_MAX;
    thread_ranks_run(2, take_what_is_reused, &how);
}
END_TEST

/* One rank destroys the communicator with an operation under way: for the other ranks it has left.
 */
static void leave_in_the_middle(dlcoll_comm *comm, void *arg)
{
    static int32_t never;
    dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    dlcoll_work *work;
    (void)arg;
    opts.flags = DLCOLL_SYNCHRONOUS;
    if (dlcoll_rank(comm) == 1) {
        THREAD_OK(dlcoll_send(&never, 1, DLCOLL_I32, 0, comm, &opts, &work));
        dlcoll_work_free(work);
        return;
    }
    int code = dlcoll_barrier(comm, NULL, NULL);
    THREAD_EXPECT(code == DLCOLL_EPEER, "%d %s", code, thread_error(comm));
    dlcoll_last_error(comm, &e);
    THREAD_EXPECT(e.rank == 1 && strstr(e.text, "has destroyed"), "%d %s", e.rank, e.text);
}

START_TEST(destroy_during_an_operation_is_a_loss)
{
    thread_ranks_run(3, leave_in_the_middle, NULL);
}
END_TEST

/* One rank aborts its communicator; the others shrink theirs and go on without it. */
static void go_on(dlcoll_comm *comm, void *arg)
{
    int n = dlcoll_size(comm), rank = dlcoll_rank(comm), gone = n / 2;
    _Atomic int *left = arg;
    dlcoll_comm *rest = NULL;
    int32_t x = rank;
    int code = dlcoll_barrier(comm, NULL, NULL); /* one may be through, and leave, before another */
    THREAD_EXPECT(rank != gone || dlcoll_comm_shrink(comm, &rest, NULL) == DLCOLL_ESTATE,
                  "nothing has failed");
    if (rank == gone) {
        dlcoll_abort(comm, "leaves");
        atomic_store(left, 1);
        return;
    }
    while (code == 0)
        code = dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, comm, NULL, NULL);
    dlcoll_group_opts opts = DLCOLL_GROUP_OPTS_INIT;
    opts.timeout_ms = 500;
    code = dlcoll_comm_shrink(comm, &rest, &opts);
    THREAD_EXPECT(code == 0, "%d %s %s", code, thread_error(comm), thread_error(NULL));
    THREAD_EXPECT(dlcoll_size(rest) == n - 1, "%d", dlcoll_size(rest));
    THREAD_EXPECT(thread_sum_of_ranks(rest, rank) == n * (n - 1) / 2 - gone, "among the rest");
    dlcoll_destroy(rest);
}

START_TEST(survivors_shrink_and_go_on)
{
    _Atomic int left = 0;
    thread_ranks_run(_i, go_on, &left);
}
END_TEST

/* The last rank leaves; one of the others is alive and does not come in time. */
struct absence {
    int who;
    _Atomic int through; /* those who have come */
    _Atomic int heard;   /* `who` has come, too late, and been told so; rank 0 is waited for */
};

static void await(_Atomic int *word, int value)
{
    while (atomic_load(word) < value)
        test_poll_pause();
}

static void come_or_not(dlcoll_comm *comm, void *arg)
{
    struct absence *a = arg;
    int n = dlcoll_size(comm), rank = dlcoll_rank(comm), code = 0;
    dlcoll_comm *rest = NULL;
    int32_t x = rank;
    code = dlcoll_barrier(comm, NULL, NULL);
    if (rank == n - 1) {
        THREAD_EXPECT(code == 0, "%d %s", code, thread_error(comm));
        dlcoll_abort(comm, "leaves");
        return;
    }
    while (code == 0)
        code = dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, comm, NULL, NULL);
    dlcoll_group_opts opts = DLCOLL_GROUP_OPTS_INIT;
    opts.timeout_ms = (int64_t)(test_seconds(1) * 1000);
    if (rank == a->who)
        await(&a->through, n - 2);
    code = dlcoll_comm_shrink(comm, &rest, &opts);
    if (a->who == 0 && rank != 0) { /* who would have to say; they try again */
        THREAD_EXPECT(code == DLCOLL_ETIMEDOUT, "%d %s", code, thread_error(NULL));
        THREAD_EXPECT(strstr(thread_error(NULL), "rank 0 ("), "%s", thread_error(NULL));
        THREAD_EXPECT(strstr(thread_error(comm), "leaves"), "%s", thread_error(comm));
        atomic_fetch_add(&a->through, 1);
        while (code == DLCOLL_ETIMEDOUT)
            code = dlcoll_comm_shrink(comm, &rest, &opts);
    }
    if (rank == a->who && rank != 0) {
        THREAD_EXPECT(code == DLCOLL_EPEER, "%d %s", code, thread_error(NULL));
        THREAD_EXPECT(strstr(thread_error(NULL), "arrived too late"), "%s", thread_error(NULL));
    } else {
        THREAD_EXPECT(code == 0, "%d %s", code, thread_error(NULL));
        THREAD_EXPECT(dlcoll_size(rest) == n - 1 - (a->who != 0), "%d", dlcoll_size(rest));
        THREAD_EXPECT(thread_sum_of_ranks(rest, rank) == n * (n - 1) / 2 - (n - 1) - a->who, "sum");
    }
    atomic_fetch_add(&a->through, 1);
    if (rank == a->who)
        atomic_store(&a->heard, 1);
    await(&a->heard, 1);
    dlcoll_destroy(rest);
}

START_TEST(absent_ranks_are_left_out)
{
    struct absence a = {.who = _i};
    thread_ranks_run(5, come_or_not, &a);
}
END_TEST

/* With so many descriptors in use no rank asks whether rank 0's host answers. That proves nothing
 * about it: rank 0 is waited for, and leads when it comes. */
static void lead_late(dlcoll_comm *comm, void *arg)
{
    _Atomic int *tried = arg;
    int n = dlcoll_size(comm), rank = dlcoll_rank(comm);
    dlcoll_comm *rest = NULL;
    dlcoll_group_opts opts = DLCOLL_GROUP_OPTS_INIT;
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
    opts.timeout_ms = 1000;
    dlcoll_abort(comm, "fails");
    if (rank == 0)
        await(tried, n - 1);
    int code = dlcoll_comm_shrink(comm, &rest, &opts);
    THREAD_EXPECT(code == (rank ? DLCOLL_ETIMEDOUT : 0), "%d %s", code, thread_error(NULL));
    atomic_fetch_add(tried, rank != 0);
    while (code == DLCOLL_ETIMEDOUT)
        code = dlcoll_comm_shrink(comm, &rest, &opts);
    THREAD_EXPECT(code == 0 && dlcoll_size(rest) == n, "%d %s", code, thread_error(NULL));
    dlcoll_destroy(rest);
}

START_TEST(a_host_that_is_not_asked_is_not_silent)
{
    _Atomic int tried = 0;
    struct rlimit few = {.rlim_cur = 256, .rlim_max = 256};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int i = 0; i < 128; i++)
        ck_assert_int_ge(dup(2), 0);
    thread_ranks_run(3, lead_late, &tried);
}
END_TEST

static void shrink_badly(dlcoll_comm *comm, void *arg)
{
    dlcoll_comm *rest = NULL;
    dlcoll_group_opts opts = DLCOLL_GROUP_OPTS_INIT;
    (void)arg;
    THREAD_EXPECT(dlcoll_comm_shrink(comm, &rest, NULL) == DLCOLL_ESTATE, "nothing has failed");
    THREAD_EXPECT(strstr(thread_error(NULL), "nothing has failed"), "%s", thread_error(NULL));
    dlcoll_abort(comm, "fails");
    opts.size = 1;
    THREAD_EXPECT(dlcoll_comm_shrink(comm, &rest, &opts) == DLCOLL_EINVAL, "wrong options");
    THREAD_EXPECT(strstr(thread_error(NULL), "DLCOLL_GROUP_OPTS_INIT"), "%s", thread_error(NULL));
    THREAD_EXPECT(strstr(thread_error(comm), "fails"), "%s", thread_error(comm));
}

START_TEST(errors_of_shrink_are_described)
{
    thread_ranks_run(1, shrink_badly, NULL);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_ends");
    for (int shm = 0; shm <= 1; shm++) {
        TCase *tc = thread_ranks_case(s, shm);
        tcase_add_loop_test(tc, abort_ends_the_communicator_for_all, 2, 5);
        tcase_add_loop_test(tc, a_reason_that_is_written_late_or_never, 0, 2);
        tcase_add_test(tc, abort_by_another_thread);
        if (shm)
            tcase_add_loop_test(tc, what_is_reused_is_no_result, 0, TAKINGS);
        tcase_add_test(tc, destroy_during_an_operation_is_a_loss);
        tcase_add_loop_test(tc, survivors_shrink_and_go_on, 3, 6);
        tcase_add_loop_test(tc, absent_ranks_are_left_out, 0, 4);
        tcase_add_test(tc, errors_of_shrink_are_described);
        if (!shm)
            tcase_add_test(tc, a_host_that_is_not_asked_is_not_silent);
    }
    return s;
}

TEST_MAIN(suite)
