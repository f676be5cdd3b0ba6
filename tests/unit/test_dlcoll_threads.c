/* DLCOLL_THREAD_MULTIPLE: threads of one rank send, receive, probe and wait on the same
 * communicator, beside one that is in collective operations. Ranks are threads, too. */
#include "tests/lib/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "collectives/dlcoll.h"
#include "core/mem.h"
#include "tests/lib/cross_values.h"
#include "tests/lib/thread_ranks.h"

enum { THREADS = 4, ROUNDS = 40, MOST = 60 * 1000 };

static int32_t value_of(int rank, int tag, int round, size_t i)
{
    return (int32_t)cross_mix(((uint64_t)rank << 32) + (uint64_t)(tag * 1000 + round) * 65536 + i);
}

/* Elements: mostly small, some above every limit at which messages go another way. */
static size_t count_of(int rank, int tag, int round)
{
    static const size_t most[] = {1, 20, 900, 5000, MOST};
    uint64_t d = cross_mix((uint64_t)(rank * 7919 + tag * 131 + round));
    return d / 8 % most[d % 5];
}

static dlcoll_opts with_tag(int tag)
{
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    o.tag = tag;
    return o;
}

static int32_t *message_of(int rank, int tag, int round, size_t *n)
{
    *n = count_of(rank, tag, round);
    int32_t *x = xcalloc(*n + 1, sizeof(*x));
    for (size_t i = 0; i < *n; i++)
        x[i] = value_of(rank, tag, round, i);
    return x;
}

static void check_message(const int32_t *x, int rank, int tag, int round)
{
    for (size_t i = 0; i < count_of(rank, tag, round); i++)
        THREAD_EXPECT(x[i] == value_of(rank, tag, round, i), "element %zu of round %d", i, round);
}

/* A thread of a rank. */
struct one {
    dlcoll_comm *comm;
    int tag;
    pthread_t thread;
    _Atomic int *seen;
};

static void start(struct one *one, void *(*fn)(void *))
{
    THREAD_EXPECT(pthread_create(&one->thread, NULL, fn, one) == 0, "pthread_create");
}

/* ------------------------------------------------------------------------------------ a tag each
 */

/* Around the ranks: sent by handle or not, to a receive that is there or not. */
static void *around(void *arg)
{
    struct one *one = arg;
    dlcoll_comm *comm = one->comm;
    int n = dlcoll_size(comm), me = dlcoll_rank(comm), to = (me + 1) % n, from = (me + n - 1) % n;
    dlcoll_opts o = with_tag(one->tag);
    for (int k = 0; k < ROUNDS; k++) {
        size_t len, in = count_of(from, one->tag, k);
        int32_t *x = message_of(me, one->tag, k, &len), *y = xcalloc(in + 1, sizeof(*y));
        dlcoll_work *work;
        if (cross_mix((uint64_t)(k * 31 + one->tag + me)) % 2) {
            THREAD_OK(dlcoll_send(x, len, DLCOLL_I32, to, comm, &o, &work));
            THREAD_OK(dlcoll_recv(y, in, DLCOLL_I32, from, comm, &o, NULL));
        } else {
            THREAD_OK(dlcoll_recv(y, in, DLCOLL_I32, from, comm, &o, &work));
            THREAD_OK(dlcoll_send(x, len, DLCOLL_I32, to, comm, &o, NULL));
        }
        THREAD_OK(dlcoll_wait(work));
        dlcoll_work_free(work);
        check_message(y, from, one->tag, k);
        free(x);
        free(y);
    }
    return NULL;
}

/* The library's own thread is not the only one that is in collective operations meanwhile. */
static void collect(dlcoll_comm *comm)
{
    int n = dlcoll_size(comm), me = dlcoll_rank(comm);
    for (int k = 0; k < ROUNDS; k++) {
        int64_t x[300], sum = 0;
        dlcoll_work *work = NULL;
        dlcoll_comm *group;
        for (int i = 0; i < 300; i++)
            x[i] = me * 1000 + i + k;
        THREAD_OK(dlcoll_all_reduce(x, x, 300, DLCOLL_I64, DLCOLL_SUM, comm, NULL,
                                    (k + me) % 3 ? NULL : &work));
        if (work)
            THREAD_OK(dlcoll_wait(work));
        dlcoll_work_free(work);
        for (int r = 0; r < n; r++)
            sum += r * 1000 + 299 + k;
        THREAD_EXPECT(x[299] == sum, "%lld", (long long)x[299]);
        if (k % 16 == 0) {
            THREAD_OK(dlcoll_comm_split(comm, me % 2, 0, &group, NULL));
            THREAD_OK(dlcoll_barrier(group, NULL, NULL));
            THREAD_OK(dlcoll_finalize(group));
            dlcoll_destroy(group);
        }
        if (k % 8 == 3)
            THREAD_OK(dlcoll_monitored_barrier(comm, NULL, NULL, NULL));
    }
}

static void tags(dlcoll_comm *comm, void *arg)
{
    struct one ones[THREADS];
    (void)arg;
    for (int t = 0; t < THREADS; t++) {
        ones[t] = (struct one){.comm = comm, .tag = t};
        start(&ones[t], around);
    }
    collect(comm);
    for (int t = 0; t < THREADS; t++)
        pthread_join(ones[t].thread, NULL);
}

START_TEST(each_thread_has_a_tag)
{
    thread_ranks_run_with(_i, tags, NULL, DLCOLL_THREAD_MULTIPLE);
}
END_TEST

/* ---------------------------------------------------------------------------------- who comes
 * first */

enum { STOP = 1000 };

/* Takes messages from anybody until its last one; each arrives once, whoever takes it. */
static void *take_any(void *arg)
{
    struct one *one = arg;
    dlcoll_comm *comm = one->comm;
    dlcoll_opts o = with_tag(DLCOLL_ANY_TAG);
    int32_t *x = xcalloc(MOST + 1, sizeof(*x));
    int how = one->tag;
    for (;; how++) {
        dlcoll_message m = DLCOLL_MESSAGE_INIT;
        if (how % 3 == 0) {
            THREAD_OK(dlcoll_recv_upto(x, MOST, DLCOLL_I32, DLCOLL_ANY_SOURCE, &m, comm, &o, NULL));
        } else {
            int code;
            while ((code = how % 3 == 1 ? dlcoll_mprobe(DLCOLL_ANY_SOURCE, &m, comm, &o)
                                        : dlcoll_improbe(DLCOLL_ANY_SOURCE, &m, comm, &o)) ==
                   DLCOLL_INPROGRESS)
                ;
            THREAD_OK(code);
            THREAD_OK(dlcoll_mrecv(x, MOST, DLCOLL_I32, &m, comm, NULL, NULL));
        }
        if (m.tag == STOP)
            break;
        THREAD_EXPECT(m.count == count_of(m.source, 9, m.tag), "%zu of round %d", m.count, m.tag);
        check_message(x, m.source, 9, m.tag);
        THREAD_EXPECT(atomic_fetch_add(&one->seen[m.tag], 1) == 0, "twice");
    }
    free(x);
    return NULL;
}

static void any_source(dlcoll_comm *comm, void *arg)
{
    int me = dlcoll_rank(comm);
    _Atomic int seen[ROUNDS] = {0};
    struct one ones[THREADS];
    (void)arg;
    for (int t = 0; t < THREADS && me == 0; t++) {
        ones[t] = (struct one){.comm = comm, .tag = t, .seen = seen};
        start(&ones[t], take_any);
    }
    for (int k = 0; k < ROUNDS && me; k++) {
        size_t len;
        int32_t *x = message_of(me, 9, k, &len);
        dlcoll_opts o = with_tag(k);
        o.flags = k % 4 ? 0 : DLCOLL_SYNCHRONOUS;
        THREAD_OK(dlcoll_send(x, len, DLCOLL_I32, 0, comm, &o, NULL));
        free(x);
    }
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL)); /* all have been sent */
    dlcoll_opts o = with_tag(STOP);
    for (int t = 0; t < THREADS && me == 1; t++)
        THREAD_OK(dlcoll_send(NULL, 0, DLCOLL_I32, 0, comm, &o, NULL));
    for (int t = 0; t < THREADS && me == 0; t++)
        pthread_join(ones[t].thread, NULL);
    for (int k = 0; k < ROUNDS && me == 0; k++)
        THREAD_EXPECT(seen[k] == 1, "message %d", k);
}

START_TEST(each_message_is_taken_once)
{
    thread_ranks_run_with(2, any_source, NULL, DLCOLL_THREAD_MULTIPLE);
}
END_TEST

/* ------------------------------------------------------------------------------------------
 * handles */

struct handles {
    dlcoll_comm *comm;
    _Atomic(dlcoll_work *) slots[2 * ROUNDS];
};

/* Waits for what another thread has begun, in its own way. */
static void *wait_for_them(void *arg)
{
    struct handles *h = arg;
    for (int i = 0; i < 2 * ROUNDS; i++) {
        dlcoll_work *w;
        size_t which;
        int code;
        while (!(w = atomic_load(&h->slots[i])))
            sched_yield();
        switch (i % 4) {
        case 0:
            code = dlcoll_wait(w);
            break;
        case 1:
            while ((code = dlcoll_test(w)) == DLCOLL_INPROGRESS)
                sched_yield();
            break;
        case 2:
            code = dlcoll_wait_any(&w, 1, &which, -1);
            break;
        default:
            while ((code = dlcoll_wait_for(w, 1)) == DLCOLL_INPROGRESS)
                ;
        }
        THREAD_EXPECT(code == 0, "%d: %s", code, thread_error(h->comm));
        dlcoll_work_free(w);
    }
    return NULL;
}

static void begun_and_awaited(dlcoll_comm *comm, void *arg)
{
    struct handles *h = xcalloc(1, sizeof(*h));
    int32_t *in[ROUNDS], *out[ROUNDS];
    int n = dlcoll_size(comm), me = dlcoll_rank(comm), from = (me + n - 1) % n;
    pthread_t waiter;
    size_t len;
    (void)arg;
    h->comm = comm;
    THREAD_EXPECT(pthread_create(&waiter, NULL, wait_for_them, h) == 0, "pthread_create");
    for (int k = 0; k < ROUNDS; k++) {
        dlcoll_work *w;
        dlcoll_opts o = with_tag(k % 3);
        in[k] = xcalloc(MOST + 1, sizeof(int32_t));
        THREAD_OK(dlcoll_recv(in[k], count_of(from, 5, k), DLCOLL_I32, from, comm, &o, &w));
        atomic_store(&h->slots[2 * k], w);
        out[k] = message_of(me, 5, k, &len);
        THREAD_OK(dlcoll_send(out[k], len, DLCOLL_I32, (me + 1) % n, comm, &o, &w));
        atomic_store(&h->slots[2 * k + 1], w);
    }
    pthread_join(waiter, NULL);
    for (int k = 0; k < ROUNDS; k++) {
        check_message(in[k], from, 5, k);
        free(in[k]);
        free(out[k]);
    }
    free(h);
}

START_TEST(handles_are_awaited_by_another_thread)
{
    thread_ranks_run_with(3, begun_and_awaited, NULL, DLCOLL_THREAD_MULTIPLE);
}
END_TEST

/* ------------------------------------------------------------------------------------------
 * blocked */

static void *receive_last(void *arg)
{
    struct one *one = arg;
    dlcoll_comm *comm = one->comm;
    dlcoll_opts o = with_tag(1);
    int32_t x = 0;
    THREAD_OK(dlcoll_recv(&x, 1, DLCOLL_I32, 1, comm, &o, NULL));
    THREAD_EXPECT(x == 77, "%d", x);
    return NULL;
}

static void *in_a_barrier(void *arg)
{
    dlcoll_comm *comm = ((struct one *)arg)->comm;
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
    return NULL;
}

static bool is_under_way(dlcoll_comm *c, const char *op)
{
    dlcoll_record r[32];
    int n = dlcoll_recent(c, -1, r, 32);
    for (int i = 0; i < n; i++) {
        if (strcmp(r[i].op, op) == 0 && r[i].end_ns == 0)
            return true;
    }
    return false;
}

/* Rank 0 is in a receive and in a barrier, which end when rank 1 has had an answer of it. */
static void blocked(dlcoll_comm *comm, void *arg)
{
    struct one receiver = {.comm = comm}, barrier = {.comm = comm};
    dlcoll_opts two = with_tag(2), one = with_tag(1);
    int32_t x = 5;
    (void)arg;
    if (dlcoll_rank(comm) == 0) {
        start(&receiver, receive_last);
        start(&barrier, in_a_barrier);
        while (!is_under_way(comm, "recv") || !is_under_way(comm, "barrier"))
            sched_yield();
        THREAD_OK(dlcoll_send(&x, 1, DLCOLL_I32, 1, comm, &two, NULL));
        THREAD_OK(dlcoll_recv(&x, 1, DLCOLL_I32, 1, comm, &two, NULL));
        THREAD_EXPECT(x == 6, "%d", x);
        THREAD_OK(dlcoll_send(&x, 1, DLCOLL_I32, 1, comm, &two, NULL));
        pthread_join(receiver.thread, NULL);
        pthread_join(barrier.thread, NULL);
    } else {
        THREAD_OK(dlcoll_recv(&x, 1, DLCOLL_I32, 0, comm, &two, NULL));
        x++;
        THREAD_OK(dlcoll_send(&x, 1, DLCOLL_I32, 0, comm, &two, NULL));
        THREAD_OK(dlcoll_recv(&x, 1, DLCOLL_I32, 0, comm, &two, NULL));
        THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
        x = 77;
        THREAD_OK(dlcoll_send(&x, 1, DLCOLL_I32, 0, comm, &one, NULL));
    }
}

START_TEST(what_blocks_one_thread_does_not_block_another)
{
    thread_ranks_run_with(2, blocked, NULL, DLCOLL_THREAD_MULTIPLE);
}
END_TEST

/* A rank that waits in a receive, and one in a barrier, learn both that the communicator ends. */
static void *expect_abort(void *arg)
{
    struct one *one = arg;
    dlcoll_opts o = with_tag(one->tag);
    int32_t x;
    int code = one->tag ? dlcoll_recv(&x, 1, DLCOLL_I32, 1, one->comm, &o, NULL)
                        : dlcoll_barrier(one->comm, NULL, NULL);
    THREAD_EXPECT(code == DLCOLL_EABORTED || code == DLCOLL_ESTATE, "%d", code);
    THREAD_EXPECT(strstr(thread_error(one->comm), "enough"), "%s", thread_error(one->comm));
    return NULL;
}

static void aborted(dlcoll_comm *comm, void *arg)
{
    struct one ones[THREADS];
    dlcoll_opts o = with_tag(100);
    (void)arg;
    if (dlcoll_rank(comm) == 1) {
        THREAD_OK(dlcoll_recv(NULL, 0, DLCOLL_U8, 0, comm, &o, NULL));
        THREAD_OK(dlcoll_abort(comm, "enough"));
        return;
    }
    for (int t = 0; t < THREADS; t++) {
        ones[t] = (struct one){.comm = comm, .tag = t};
        start(&ones[t], expect_abort);
    }
    while (!is_under_way(comm, "recv") || !is_under_way(comm, "barrier"))
        sched_yield();
    THREAD_OK(dlcoll_send(NULL, 0, DLCOLL_U8, 1, comm, &o, NULL));
    for (int t = 0; t < THREADS; t++)
        pthread_join(ones[t].thread, NULL);
}

START_TEST(an_abort_ends_the_calls_of_all_threads)
{
    thread_ranks_run_with(2, aborted, NULL, DLCOLL_THREAD_MULTIPLE);
}
END_TEST

/* ------------------------------------------------------------------------------------------
 * options */

static int init_with(dlcoll_init_opts *o)
{
    dlcoll_comm *comm;
    int code = dlcoll_init(&comm, o);
    dlcoll_destroy(comm);
    return code;
}

/* A struct of the first version, which ends before the flags, and one of a later version. */
START_TEST(structs_of_other_versions)
{
    struct {
        dlcoll_init_opts o;
        uint64_t more;
    } later = {DLCOLL_INIT_OPTS_INIT, 0};
    dlcoll_init_opts *o = &later.o;
    o->size = offsetof(dlcoll_init_opts, flags);
    o->version = 1;
    o->flags = 0xffffffff; /* not the struct's */
    ck_assert_int_eq(init_with(o), 0);
    o->size = sizeof(later);
    o->version = 3;
    o->flags = DLCOLL_THREAD_MULTIPLE;
    ck_assert_int_eq(init_with(o), 0);
    later.more = 1;
    ck_assert_int_eq(init_with(o), DLCOLL_ENOSUP);
    o->size = sizeof(*o);
    o->flags = 2;
    ck_assert_int_eq(init_with(o), DLCOLL_EINVAL);
    ck_assert_str_eq(thread_error(NULL), "dlcoll_init: opts has an unknown flag");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_threads");
    for (int shm = 0; shm < 2; shm++) {
        TCase *tc = thread_ranks_case(s, shm);
        tcase_add_loop_test(tc, each_thread_has_a_tag, 1, 4);
        tcase_add_test(tc, each_message_is_taken_once);
        tcase_add_test(tc, handles_are_awaited_by_another_thread);
        tcase_add_test(tc, what_blocks_one_thread_does_not_block_another);
        tcase_add_test(tc, an_abort_ends_the_calls_of_all_threads);
    }
    TCase *tc = test_case(s, "options", 20);
    tcase_add_test(tc, structs_of_other_versions);
    return s;
}

TEST_MAIN(suite)
