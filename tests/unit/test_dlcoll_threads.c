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

/* While a thread of rank 0 is in `call`, which ends when rank 1 has had a message, another one
 * makes a group with rank 1, begins an all_reduce, and sends that message. */
static void others_go_on(dlcoll_comm *comm, void *(*call)(void *), const char *name)
{
    struct one waiting = {.comm = comm};
    dlcoll_opts one = with_tag(1);
    dlcoll_work *work;
    dlcoll_comm *group;
    const int both[2] = {0, 1};
    int32_t x = 5, sum = 0;
    if (dlcoll_rank(comm) == 0) {
        start(&waiting, call);
        while (!is_under_way(comm, name))
            sched_yield();
        THREAD_OK(dlcoll_comm_new_group(comm, both, 2, &group, NULL));
        THREAD_OK(dlcoll_all_reduce(&x, &sum, 1, DLCOLL_I32, DLCOLL_SUM, comm, NULL, &work));
        THREAD_OK(dlcoll_send(&x, 1, DLCOLL_I32, 1, comm, &one, NULL));
        THREAD_OK(dlcoll_wait(work));
        dlcoll_work_free(work);
        pthread_join(waiting.thread, NULL);
    } else {
        THREAD_OK(dlcoll_comm_new_group(comm, both, 2, &group, NULL));
        THREAD_OK(dlcoll_recv(&x, 1, DLCOLL_I32, 0, comm, &one, NULL));
        call(&waiting);
        THREAD_OK(dlcoll_all_reduce(&x, &sum, 1, DLCOLL_I32, DLCOLL_SUM, comm, NULL, NULL));
    }
    THREAD_EXPECT(sum == 10, "%d", sum);
    THREAD_OK(dlcoll_barrier(group, NULL, NULL));
    dlcoll_destroy(group);
}

static void *in_a_monitored_barrier(void *arg)
{
    dlcoll_comm *comm = ((struct one *)arg)->comm;
    THREAD_OK(dlcoll_monitored_barrier(comm, NULL, NULL, NULL));
    return NULL;
}

static void *in_a_gather_of_neighbors(void *arg)
{
    dlcoll_comm *comm = ((struct one *)arg)->comm;
    int other = 1 - dlcoll_rank(comm);
    dlcoll_graph g = DLCOLL_GRAPH_INIT;
    int32_t x = dlcoll_rank(comm) + 40, y = 0;
    g.nsources = g.ndests = 1;
    g.sources = g.dests = &other;
    THREAD_OK(dlcoll_neighbor_all_gather(&x, &y, 1, DLCOLL_I32, &g, comm, NULL, NULL));
    THREAD_EXPECT(y == other + 40, "%d", y);
    return NULL;
}

static void each_call(dlcoll_comm *comm, void *arg)
{
    (void)arg;
    others_go_on(comm, in_a_barrier, "barrier");
    others_go_on(comm, in_a_monitored_barrier, "monitored_barrier");
    others_go_on(comm, in_a_gather_of_neighbors, "neighbor_all_gather");
}

START_TEST(what_waits_for_ranks_keeps_no_thread_out)
{
    thread_ranks_run_with(2, each_call, NULL, DLCOLL_THREAD_MULTIPLE);
}
END_TEST

/* Threads make groups of the same ranks and of others at once. */
static void *make_groups(void *arg)
{
    struct one *one = arg;
    dlcoll_comm *comm = one->comm, *group;
    const int pairs[3][2] = {{0, 1}, {1, 2}, {2, 0}};
    int me = dlcoll_rank(comm);
    for (int k = 0; k < 6; k++) {
        int32_t x = 1, sum = 0;
        const int *pair = pairs[one->tag];
        if (pair[0] != me && pair[1] != me)
            continue;
        THREAD_OK(dlcoll_comm_new_group(comm, pair, 2, &group, NULL));
        THREAD_OK(dlcoll_all_reduce(&x, &sum, 1, DLCOLL_I32, DLCOLL_SUM, group, NULL, NULL));
        THREAD_EXPECT(sum == 2, "%d", sum);
        THREAD_OK(dlcoll_finalize(group));
        dlcoll_destroy(group);
    }
    return NULL;
}

static void groups_at_once(dlcoll_comm *comm, void *arg)
{
    struct one ones[3];
    (void)arg;
    for (int t = 0; t < 3; t++) { /* each rank in another order */
        ones[t] = (struct one){.comm = comm, .tag = (t + dlcoll_rank(comm)) % 3};
        start(&ones[t], make_groups);
    }
    for (int t = 0; t < 3; t++)
        pthread_join(ones[t].thread, NULL);
}

START_TEST(threads_make_groups_in_any_order)
{
    thread_ranks_run_with(3, groups_at_once, NULL, DLCOLL_THREAD_MULTIPLE);
}
END_TEST

/* ------------------------------------------------------------------------------------------
 * notices */

static void count(void *arg)
{
    atomic_fetch_add((_Atomic int *)arg, 1);
}

static void await_count(_Atomic int *n, int want)
{
    while (atomic_load(n) < want)
        sched_yield();
    THREAD_EXPECT(atomic_load(n) == want, "%d notices, not %d", atomic_load(n), want);
}

static void notices(dlcoll_comm *comm, void *arg)
{
    static _Atomic int seen[2];
    int me = dlcoll_rank(comm);
    _Atomic int *n = &seen[me];
    int32_t x = 1, y = 0;
    dlcoll_work *w;
    dlcoll_opts one = with_tag(1);
    (void)arg;
    atomic_store(n, 0);
    /* one that nobody waits for, one whose handle is gone */
    THREAD_OK(dlcoll_all_reduce(&x, &y, 1, DLCOLL_I32, DLCOLL_SUM, comm, NULL, &w));
    THREAD_OK(dlcoll_notify(w, count, n));
    await_count(n, 1);
    THREAD_EXPECT(dlcoll_test(w) == 0 && y == 2, "%d", y);
    THREAD_OK(dlcoll_notify(w, count, n)); /* complete already */
    await_count(n, 2);
    dlcoll_work_free(w);
    THREAD_OK(dlcoll_recv(&y, 1, DLCOLL_I32, 1 - me, comm, &one, &w));
    THREAD_OK(dlcoll_notify(w, count, n));
    dlcoll_work_free(w);
    THREAD_OK(dlcoll_send(&x, 1, DLCOLL_I32, 1 - me, comm, &one, NULL));
    await_count(n, 3);
    /* one that a waiting thread carries out, and those that the end of the communicator ends */
    dlcoll_comm *group;
    THREAD_OK(dlcoll_barrier(comm, NULL, &w));
    THREAD_OK(dlcoll_notify(w, count, n));
    THREAD_OK(dlcoll_wait(w));
    await_count(n, 4);
    dlcoll_work_free(w);
    THREAD_OK(dlcoll_comm_dup(comm, &group, NULL, NULL));
    THREAD_OK(dlcoll_recv(&y, 1, DLCOLL_I32, 1 - me, group, &one, &w));
    THREAD_OK(dlcoll_notify(w, count, n));
    int again = dlcoll_notify(w, count, n), null = dlcoll_notify(NULL, count, n);
    THREAD_EXPECT(again == DLCOLL_ESTATE && null == DLCOLL_EINVAL, "%d %d", again, null);
    dlcoll_work_free(w);
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL)); /* the other rank has called so far */
    dlcoll_destroy(group);
    await_count(n, 5);
}

START_TEST(a_notice_comes_once)
{
    thread_ranks_run_with(2, notices, NULL, _i ? DLCOLL_THREAD_MULTIPLE : 0);
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
        tcase_add_test(tc, what_waits_for_ranks_keeps_no_thread_out);
        tcase_add_loop_test(tc, threads_make_groups_in_any_order, 0, 4);
        tcase_add_loop_test(tc, a_notice_comes_once, 0, 2);
        tcase_add_test(tc, an_abort_ends_the_calls_of_all_threads);
    }
    TCase *tc = test_case(s, "options", 20);
    tcase_add_test(tc, structs_of_other_versions);
    return s;
}

TEST_MAIN(suite)
