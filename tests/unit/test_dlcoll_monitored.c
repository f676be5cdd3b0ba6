/* The barrier that says who is missing: ranks are threads, over TCP and through shared memory. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "tests/lib/thread_ranks.h"

static void one_stays_away(dlcoll_comm *comm, void *arg)
{
    int n = dlcoll_size(comm), rank = dlcoll_rank(comm), missing[8] = {-1}, code;
    size_t room = 8;
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    (void)arg;
    THREAD_OK(dlcoll_monitored_barrier(comm, missing, &room, NULL));
    THREAD_EXPECT(room == 0, "%zu", room);
    opts.timeout_ms = 100;
    if (rank != n - 2) {
        room = 8;
        code = dlcoll_monitored_barrier(comm, missing, &room, &opts);
        THREAD_EXPECT(code == DLCOLL_ETIMEDOUT, "%d %s", code, thread_error(comm));
        THREAD_EXPECT(room == 1 && missing[0] == n - 2, "%zu missing, %d", room, missing[0]);
        THREAD_EXPECT(strstr(thread_error(comm), "pid"), "%s", thread_error(comm));
    }
    /* The communicator is still usable. */
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
    if (rank == n - 2) {
        code = dlcoll_monitored_barrier(comm, NULL, NULL, &opts);
        THREAD_EXPECT(code == DLCOLL_ETIMEDOUT, "who comes late is told: %d", code);
    }
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
}

START_TEST(a_barrier_that_names_the_missing_rank)
{
    thread_ranks_run(4, one_stays_away, NULL);
}
END_TEST

/* The flight recorder has it as one operation, and its number. */
static void expect_recorded(dlcoll_comm *comm, uint64_t seq, int result)
{
    dlcoll_record last;
    THREAD_EXPECT(dlcoll_recent(comm, -1, &last, 1) == 1 && last.seq == seq &&
                      strcmp(last.op, "monitored_barrier") == 0 && last.end_ns &&
                      last.result == result && last.peer == -1 && !last.dtype[0],
                  "%s #%llu: %d", last.op, (unsigned long long)last.seq, last.result);
}

enum { MANY = 40, MANY_MISSING = 36 };

/* All of them are told to everybody, and how many are not in the text. */
static void most_stay_away(dlcoll_comm *comm, void *arg)
{
    int rank = dlcoll_rank(comm), missing[MANY], more = 0, named = 0;
    size_t n = MANY;
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    (void)arg;
    opts.timeout_ms = (int64_t)(test_seconds(1) * 1000);
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
    if (rank >= 2 && rank < 2 + MANY_MISSING)
        return;
    int code = dlcoll_monitored_barrier(comm, missing, &n, &opts);
    const char *text = thread_error(comm), *last = strstr(text, " and ");
    THREAD_EXPECT(code == DLCOLL_ETIMEDOUT && n == MANY_MISSING, "%d, %zu: %s", code, n, text);
    for (int i = 0; i < MANY_MISSING; i++)
        THREAD_EXPECT(missing[i] == 2 + i, "%d: %d", i, missing[i]);
    for (const char *p = text; (p = strstr(p, "rank ")); p++)
        named++;
    bool cut = last && sscanf(last, " and %d more", &more) == 1 && strstr(last, "more")[4] == '\0';
    THREAD_EXPECT(strstr(text, "36 of 40 ranks") && cut && named + more == MANY_MISSING, "%s",
                  text);
    expect_recorded(comm, 1, DLCOLL_ETIMEDOUT);
}

START_TEST(a_barrier_that_names_all_missing_ranks)
{
    thread_ranks_run(MANY, most_stay_away, NULL);
}
END_TEST

/* Without rank 0 no rank learns which ranks have arrived. */
static void rank_0_stays_away(dlcoll_comm *comm, void *arg)
{
    int rank = dlcoll_rank(comm), missing[4];
    size_t n = 4;
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    (void)arg;
    opts.timeout_ms = 50;
    THREAD_OK(dlcoll_monitored_barrier(comm, NULL, NULL, NULL));
    expect_recorded(comm, 1, 0);
    if (rank % 2) {
        int code = dlcoll_monitored_barrier(comm, missing, &n, &opts);
        const char *text = thread_error(comm);
        THREAD_EXPECT(code == DLCOLL_ETIMEDOUT && n == 1 && missing[0] == 0, "%d, %zu", code, n);
        THREAD_EXPECT(strstr(text, "rank 0 (") && strstr(text, "other ranks may be missing"), "%s",
                      text);
        expect_recorded(comm, 2, DLCOLL_ETIMEDOUT);
    }
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
}

START_TEST(a_barrier_without_the_rank_that_hears_of_all)
{
    thread_ranks_run(4, rank_0_stays_away, NULL);
}
END_TEST

enum { SMALL = 32 * 1024, FLOOD = 160 }; /* more than a rank keeps of another one's messages */

/* Rank 0 waits for another message than those that rank 1 has sent, and keeps as much of them as it
 * may: that must not keep rank 1's arrival out. */
static void rank_0_has_many_messages(dlcoll_comm *comm, void *arg)
{
    static uint8_t flood[SMALL];
    int peer = 1 - dlcoll_rank(comm);
    uint8_t word = 0, *in = xmalloc(SMALL);
    dlcoll_work *sends[FLOOD];
    dlcoll_opts other = DLCOLL_OPTS_INIT, opts = DLCOLL_OPTS_INIT;
    (void)arg;
    other.tag = 1;
    opts.timeout_ms = 50;
    if (peer == 0) {
        for (int i = 0; i < FLOOD; i++)
            THREAD_OK(dlcoll_send(flood, SMALL, DLCOLL_U8, peer, comm, NULL, &sends[i]));
        THREAD_OK(dlcoll_send(&word, 1, DLCOLL_U8, peer, comm, &other, NULL));
        int code = dlcoll_monitored_barrier(comm, NULL, NULL, &opts);
        THREAD_EXPECT(code == DLCOLL_ETIMEDOUT, "%d", code);
        THREAD_OK(dlcoll_send(&word, 1, DLCOLL_U8, peer, comm, &other, NULL));
    } else {
        THREAD_OK(dlcoll_recv(&word, 1, DLCOLL_U8, peer, comm, &other, NULL));
        THREAD_OK(dlcoll_recv(&word, 1, DLCOLL_U8, peer, comm, &other, NULL));
    }
    for (int i = 0; i < FLOOD; i++) {
        if (peer == 0) {
            THREAD_OK(dlcoll_wait(sends[i]));
            dlcoll_work_free(sends[i]);
        } else {
            THREAD_OK(dlcoll_recv(in, SMALL, DLCOLL_U8, peer, comm, NULL, NULL));
        }
    }
    free(in);
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
}

START_TEST(a_barrier_beside_many_messages)
{
    thread_ranks_run(2, rank_0_has_many_messages, NULL);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_monitored");
    for (int shm = 0; shm <= 1; shm++) {
        TCase *tc = thread_ranks_case(s, shm);
        tcase_add_test(tc, a_barrier_that_names_the_missing_rank);
        tcase_add_test(tc, a_barrier_that_names_all_missing_ranks);
        tcase_add_test(tc, a_barrier_without_the_rank_that_hears_of_all);
        tcase_add_test(tc, a_barrier_beside_many_messages);
    }
    return s;
}

TEST_MAIN(suite)
