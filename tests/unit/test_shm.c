/* The numbers by which ranks of one node meet in shared memory: across their wrap, when ranks are
 * as far ahead of each other as they can be, and when two ways are compared. Ranks are threads, so
 * that a thread sanitizer sees who reads what while who writes it.
 * (tests/unit/test_dlcoll_ops_shm.c has the cross of operations.) */
#include "tests/lib/test.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/shm/memory.h"
#include "collectives/shm/shm.h"
#include "tests/lib/cross.h"
#include "tests/lib/shm_world.h"
#include "tests/lib/thread_ranks.h"

static struct cross_way g_way;
static pthread_barrier_t g_aged;

/* The k-th way; the last one is mixed. */
static bool set_way(int k)
{
    struct cross_way last;
    bool more = cross_way(&g_way, CROSS_SHM, k);
    if (!more && (k == 0 || !cross_way(&last, CROSS_SHM, k - 1)))
        return false;
    if (!more)
        cross_way_mixed(&g_way);
    cross_way_set(&g_way);
    return true;
}

static void again(dlcoll_comm *comm, void *arg)
{
    (void)arg;
    cross_again(comm, &g_way, 20);
}

START_TEST(every_kind_again_and_again)
{
    cross_values_make(_i);
    for (int k = 0; set_way(k); k++)
        thread_ranks_run(_i, again, NULL);
}
END_TEST

/* Sets the counters as if the rank had done so many small operations, each with a chunk. */
static void age(dlcoll_comm *comm, uint64_t done)
{
    struct shm *s = comm->shm;
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
    pthread_barrier_wait(&g_aged);
    s->seq = s->all_entered = done;
    s->chunk = s->read = done + 1;
    /* The library publishes progress every 2^24 operations. */
    struct shm_progress *p = &s->progress[comm->topo.local];
    atomic_store(&p->staged, (uint32_t)(done - 1000));
    atomic_store(&p->reduced, (uint32_t)(done - 1000));
    atomic_store(&p->done, (uint32_t)(done - 1000));
    for (uint64_t seq = s->seq - SHM_ARRIVALS + 1; seq <= s->seq; seq++) {
        s->bases[seq % SHM_ARRIVALS] = seq;
        atomic_store(&shm_arrival(s, seq, comm->topo.local)->seq, (uint32_t)seq);
    }
    pthread_barrier_wait(&g_aged);
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
}

static void aged(dlcoll_comm *comm, void *done)
{
    age(comm, *(const uint64_t *)done);
    cross_again(comm, &g_way, 5);
}

/* Each way, after others that have published nothing of it, and across the wrap. */
START_TEST(numbers_may_wrap)
{
    static const uint64_t done[] = {(1ull << 31) - 20, (1ull << 31) + 5, (1ull << 32) - 20};
    uint64_t from = done[_i];
    cross_values_make(3);
    pthread_barrier_init(&g_aged, NULL, 3);
    for (int k = 0; set_way(k); k++)
        thread_ranks_run(3, aged, &from);
    pthread_barrier_destroy(&g_aged);
}
END_TEST

static bool has_timed_both(const struct shm_peer *p)
{
    for (int kind = 0; kind < COST_KINDS; kind++) {
        if (p->costs[kind][0].ps[COST_STAGED] && p->costs[kind][0].ps[COST_PULLED])
            return true;
    }
    return false;
}

static void compare(dlcoll_comm *comm, void *arg)
{
    enum { BYTES = 4096 };
    static uint8_t send[3][3 * BYTES], recv[3][3 * BYTES];
    int me = dlcoll_rank(comm);
    (void)arg;
    for (int i = 0; i < 120; i++)
        THREAD_OK(dlcoll_all_to_all(send[me], recv[me], BYTES, DLCOLL_U8, comm, NULL, NULL));
    THREAD_EXPECT(has_timed_both(&comm->shm->peers[comm->topo.local]));
}

/* While two ways are compared, data takes both, and each rank learns the cost of each. */
START_TEST(both_ways_are_tried)
{
    ck_assert(cross_way(&g_way, CROSS_SHM, 6) && g_way.memory.compare == 512);
    cross_way_set(&g_way);
    thread_ranks_run(3, compare, NULL);
}
END_TEST

/* In the launcher's memory nobody offers what others then know the version of. */
START_TEST(memory_of_another_version_is_refused)
{
    struct shm_world w;
    struct err e = ERR_INIT;
    shm_world_init(&w, 2, 2);
    dlcoll_comm *c = shm_world_comm(&w, 0);
    atomic_fetch_add(&c->shm->head->version, 1);
    shm_close(c);
    ck_assert_int_eq(shm_open_heap(c, (char *)w.heap + 4096, w.bytes - 4096, &e), -EPROTO);
    ck_assert_msg(strstr(e.msg, "another version of libdlcoll"), "%s", e.msg);
    shm_world_close(c);
    shm_world_fini(&w);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("shm");
    TCase *tc = test_case(s, "operations", 120);
    cross_seen_init();
    tcase_add_loop_test(tc, every_kind_again_and_again, 2, 5);
    tcase_add_loop_test(tc, numbers_may_wrap, 0, 3);
    tcase_add_test(tc, both_ways_are_tried);
    tcase_add_test(tc, memory_of_another_version_is_refused);
    return s;
}

TEST_MAIN(suite)
