/* Work handles, sends and receives, groups, and what is made of several operations: ranks are
 * threads, over TCP and, where they share memory, through that. */
#include "tests/lib/test.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "collectives/perform/queue.h"
#include "collectives/comm/comm.h"
#include "core/clock.h"
#include "core/mem.h"
#include "tests/lib/thread_ranks.h"

static int code_of(const dlcoll_comm *c)
{
    dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_last_error(c, &e);
    return e.code;
}

/* ---------------------------------------------------------------------------------------- queue */

static void queue_of_operations(dlcoll_comm *comm, void *arg)
{
    enum { N = 40, LEN = 3000 };
    int n = dlcoll_size(comm), rank = dlcoll_rank(comm);
    int64_t *x = xmalloc(N * LEN * sizeof(*x));
    dlcoll_work *works[N];
    (void)arg;
    for (int k = 0; k < N; k++) {
        for (int i = 0; i < LEN; i++)
            x[k * LEN + i] = rank + k;
        THREAD_OK(dlcoll_all_reduce(x + k * LEN, x + k * LEN, k % 2 ? LEN : 3, DLCOLL_I64,
                                    DLCOLL_SUM, comm, NULL, &works[k]));
        THREAD_EXPECT(works[k], "no handle");
    }
    /* A blocking one waits for its turn. */
    int64_t one = 1;
    THREAD_OK(dlcoll_all_reduce(&one, &one, 1, DLCOLL_I64, DLCOLL_SUM, comm, NULL, NULL));
    THREAD_EXPECT(one == n, "%lld", (long long)one);
    for (int k = 0; k < N; k++) {
        THREAD_OK(dlcoll_test(works[k])); /* all before it are complete */
        for (int i = 0; i < (k % 2 ? LEN : 3); i++)
            THREAD_EXPECT(x[k * LEN + i] == n * (n - 1) / 2 + n * k, "operation %d", k);
        dlcoll_work_free(works[k]);
    }
    free(x);
}

START_TEST(operations_are_carried_out_in_the_order_of_calls)
{
    thread_ranks_run(_i, queue_of_operations, NULL);
}
END_TEST

static void waiting(dlcoll_comm *comm, void *arg)
{
    int rank = dlcoll_rank(comm);
    int32_t x[3] = {1, 1, 1};
    dlcoll_work *works[4] = {NULL};
    size_t index = 9;
    (void)arg;
    /* Only rank 0 has called the barrier. */
    if (rank == 0) {
        THREAD_OK(dlcoll_barrier(comm, NULL, &works[0]));
        THREAD_EXPECT(dlcoll_wait_for(works[0], 20) == DLCOLL_INPROGRESS, "too early");
        THREAD_EXPECT(dlcoll_test(works[0]) == DLCOLL_INPROGRESS, "too early");
        THREAD_EXPECT(dlcoll_wait_any(works, 4, &index, 5) == DLCOLL_INPROGRESS, "too early");
        THREAD_EXPECT(dlcoll_wait_all(works, 4, 5) == DLCOLL_INPROGRESS, "too early");
        uint8_t go = 1;
        for (int r = 1; r < dlcoll_size(comm); r++)
            THREAD_OK(dlcoll_send(&go, 1, DLCOLL_U8, r, comm, NULL, NULL));
    } else {
        uint8_t go = 0;
        THREAD_OK(dlcoll_recv(&go, 1, DLCOLL_U8, 0, comm, NULL, NULL));
        THREAD_EXPECT(go == 1, "%d", go);
        THREAD_OK(dlcoll_barrier(comm, NULL, &works[0]));
    }
    for (int i = 0; i < 3; i++)
        THREAD_OK(
            dlcoll_all_reduce(x + i, x + i, 1, DLCOLL_I32, DLCOLL_SUM, comm, NULL, &works[1 + i]));
    THREAD_OK(dlcoll_wait_any(works, 4, &index, -1));
    THREAD_EXPECT(index < 4, "%zu", index);
    THREAD_OK(dlcoll_wait(works[2]));
    THREAD_OK(dlcoll_wait_all(works, 4, -1));
    THREAD_EXPECT(x[0] == dlcoll_size(comm) && x[2] == x[0], "%d", x[2]);
    for (int i = 0; i < 4; i++)
        dlcoll_work_free(works[i]);
    works[0] = works[1] = works[2] = works[3] = NULL;
    THREAD_EXPECT(dlcoll_wait_any(works, 4, &index, 5) == DLCOLL_EINVAL, "nothing to wait for");
    THREAD_OK(dlcoll_wait_all(works, 4, 5));
    /* The program does not wait for this barrier. */
    THREAD_OK(dlcoll_barrier(comm, NULL, &works[0]));
    dlcoll_work_free(works[0]);
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
}

START_TEST(handles_are_tested_and_waited_for)
{
    thread_ranks_run(3, waiting, NULL);
}
END_TEST

/* ------------------------------------------------------------------------------- point to point */

enum { MESSAGES = 12 };

static size_t length(int from, int to, int k)
{
    static const size_t lens[] = {0, 1, 100, 4096, 40000, 300000};
    return lens[(size_t)(from * 5 + to * 3 + k) % 6];
}

static void fill(uint8_t *p, size_t len, int from, int to, int k)
{
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)(from * 31 + to * 7 + k * 3 + (int)i);
}

static void check(const uint8_t *p, size_t len, int from, int to, int k)
{
    for (size_t i = 0; i < len; i++)
        THREAD_EXPECT(p[i] == (uint8_t)(from * 31 + to * 7 + k * 3 + (int)i),
                      "message %d from %d to %d, byte %zu of %zu", k, from, to, i, len);
}

/* Everybody sends to everybody, himself included, and receives in another order than that of the
 * sends; tags tell the messages apart. */
static void everybody_to_everybody(dlcoll_comm *comm, void *arg)
{
    enum { MOST = 2 * MESSAGES * 8 };
    int n = dlcoll_size(comm), rank = dlcoll_rank(comm), count = 0;
    dlcoll_work *works[MOST];
    uint8_t *bufs[MOST];
    (void)arg;
    for (int k = 0; k < MESSAGES; k++) {
        for (int r = 0; r < n; r++) {
            int peer = (rank + r) % n, other = MESSAGES - 1 - k;
            dlcoll_opts opts = DLCOLL_OPTS_INIT;
            size_t len = length(rank, peer, k);
            bufs[count] = xmalloc(len + 1);
            fill(bufs[count], len, rank, peer, k);
            opts.tag = k;
            THREAD_OK(dlcoll_send(bufs[count], len, DLCOLL_U8, peer, comm, &opts, &works[count]));
            count++;
            len = length(peer, rank, other);
            bufs[count] = xcalloc(1, len + 1);
            opts.tag = other;
            THREAD_OK(dlcoll_recv(bufs[count], len, DLCOLL_U8, peer, comm, &opts, &works[count]));
            count++;
        }
        if (k == MESSAGES / 2)
            THREAD_OK(dlcoll_barrier(comm, NULL, NULL)); /* while they are under way */
    }
    for (int i = count - 1; i >= 0; i--) {
        THREAD_OK(dlcoll_wait(works[i]));
        dlcoll_work_free(works[i]);
    }
    for (int k = 0, i = 0; k < MESSAGES; k++) {
        for (int r = 0; r < n; r++, i += 2) {
            int peer = (rank + r) % n, other = MESSAGES - 1 - k;
            check(bufs[i + 1], length(peer, rank, other), peer, rank, other);
            free(bufs[i]);
            free(bufs[i + 1]);
        }
    }
}

START_TEST(messages_in_any_order)
{
    thread_ranks_run(_i, everybody_to_everybody, NULL);
}
END_TEST

/* Short messages complete without the work thread, so that blocking calls stay fast. */
static void short_messages(dlcoll_comm *comm, void *arg)
{
    int rank = dlcoll_rank(comm), got = -1;
    (void)arg;
    for (int turn = 0; turn < 20; turn++) {
        dlcoll_work *work;
        THREAD_OK(dlcoll_send(&turn, 1, DLCOLL_I32, 1 - rank, comm, NULL, &work));
        THREAD_OK(dlcoll_wait(work));
        dlcoll_work_free(work);
        THREAD_OK(dlcoll_recv(&got, 1, DLCOLL_I32, 1 - rank, comm, NULL, NULL));
        THREAD_EXPECT(got == turn, "%d", got);
    }
    THREAD_EXPECT(!comm->shm || !comm_has_task(comm), "a thread was started");
}

START_TEST(short_messages_need_no_thread)
{
    thread_ranks_run(2, short_messages, NULL);
}
END_TEST

/* The same between neighbours, as one batch that would deadlock if its operations ran in order. */
static void batches(dlcoll_comm *comm, void *arg)
{
    enum { LEN = 200000 };
    int n = dlcoll_size(comm), rank = dlcoll_rank(comm);
    int right = (rank + 1) % n, left = (rank + n - 1) % n;
    int32_t *out = xmalloc(LEN * 4), *in = xmalloc(2 * LEN * 4);
    (void)arg;
    for (int i = 0; i < LEN; i++)
        out[i] = rank * LEN + i;
    dlcoll_p2p list[4] = {
        {.send = out, .count = LEN, .dtype = DLCOLL_I32, .peer = right},
        {.send = out, .count = LEN, .dtype = DLCOLL_I32, .peer = left, .tag = 1},
        {.recv = in, .count = LEN, .dtype = DLCOLL_I32, .peer = left},
        {.recv = in + LEN, .count = LEN, .dtype = DLCOLL_I32, .peer = right, .tag = 1}};
    for (int turn = 0; turn < 3; turn++) {
        memset(in, 0, 2 * LEN * 4);
        THREAD_OK(dlcoll_batch(list, 4, comm, NULL, NULL));
        THREAD_EXPECT(in[0] == left * LEN && in[LEN - 1] == left * LEN + LEN - 1, "left");
        THREAD_EXPECT(in[LEN] == right * LEN && in[2 * LEN - 1] == right * LEN + LEN - 1, "right");
    }
    THREAD_OK(dlcoll_batch(NULL, 0, comm, NULL, NULL));
    list[0].recv = in;
    THREAD_EXPECT(dlcoll_batch(list, 4, comm, NULL, NULL) == DLCOLL_EINVAL, "both buffers");
    free(out);
    free(in);
}

START_TEST(batches_do_not_block_themselves)
{
    thread_ranks_run(_i, batches, NULL);
}
END_TEST

static void from_anybody(dlcoll_comm *comm, void *arg)
{
    int n = dlcoll_size(comm), rank = dlcoll_rank(comm);
    (void)arg;
    if (rank == 0) {
        int seen[16] = {0};
        for (int i = 0; i < 3 * (n - 1); i++) {
            double x = -1;
            int from = -1;
            THREAD_OK(dlcoll_recv_any(&x, 1, DLCOLL_F64, &from, comm, NULL, NULL));
            THREAD_EXPECT(from > 0 && from < n && x == from * 10 + seen[from], "%g from %d", x,
                          from); /* those of one sender come in order */
            seen[from]++;
        }
    } else {
        for (int k = 0; k < 3; k++) {
            double x = rank * 10 + k;
            THREAD_OK(dlcoll_send(&x, 1, DLCOLL_F64, 0, comm, NULL, NULL));
        }
    }
}

START_TEST(messages_from_anybody)
{
    thread_ranks_run(_i, from_anybody, NULL);
}
END_TEST

static void another_count(dlcoll_comm *comm, void *arg)
{
    int32_t x[4] = {0};
    (void)arg;
    if (dlcoll_rank(comm) == 0) {
        THREAD_OK(dlcoll_recv(x, 1, DLCOLL_I32, 1, comm, NULL, NULL));
        dlcoll_send(x, 3, DLCOLL_I32, 1, comm, NULL, NULL);
        int code = dlcoll_recv(x, 1, DLCOLL_I32, 1, comm, NULL, NULL);
        THREAD_EXPECT(code == DLCOLL_EMISMATCH || code == DLCOLL_ESTATE, "%d %s", code,
                      thread_error(comm));
    } else {
        THREAD_OK(dlcoll_send(x, 1, DLCOLL_I32, 0, comm, NULL, NULL));
        int code = dlcoll_recv(x, 4, DLCOLL_I32, 0, comm, NULL, NULL);
        THREAD_EXPECT(code == DLCOLL_EMISMATCH, "%d %s", code, thread_error(comm));
        THREAD_EXPECT(strstr(thread_error(comm),
                             "called send of 3 i32 to rank 1 (message 1 from there), rank 1 called "
                             "recv of 4 i32 from rank 0 as its #2"),
                      "%s", thread_error(comm));
    }
    THREAD_EXPECT(code_of(comm) == DLCOLL_EMISMATCH, "%s", thread_error(comm));
}

START_TEST(a_too_long_message_is_detected)
{
    thread_ranks_run(2, another_count, NULL);
}
END_TEST

static void nobody_sends(dlcoll_comm *comm, void *arg)
{
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    int32_t x;
    (void)arg;
    opts.timeout_ms = 50;
    if (dlcoll_rank(comm) == 0) {
        int code = dlcoll_recv(&x, 1, DLCOLL_I32, 1, comm, &opts, NULL);
        THREAD_EXPECT(code == DLCOLL_ETIMEDOUT, "%d %s", code, thread_error(comm));
        THREAD_EXPECT(strstr(thread_error(comm), "rank 1"), "%s", thread_error(comm));
    } else {
        int code = dlcoll_recv(&x, 1, DLCOLL_I32, 0, comm, NULL, NULL);
        THREAD_EXPECT(code == DLCOLL_ETIMEDOUT, "%d %s", code, thread_error(comm)); /* is told */
    }
}

START_TEST(a_receive_times_out)
{
    thread_ranks_run(2, nobody_sends, NULL);
}
END_TEST

/* ---------------------------------------------------------------------------- beside operations */

enum { WAIT, TEST, WAIT_FOR, WAIT_ALL, WAIT_ANY, NOBODY_WAITS, WAYS };

struct beside {
    int way;              /* how rank 0 comes to know that both are complete */
    bool sends;           /* it does, and rank 1 receives */
    _Atomic bool through; /* rank 1 is, with both */
};

static int message(const struct beside *b, uint8_t *p, size_t len, dlcoll_comm *comm,
                   const dlcoll_opts *opts, dlcoll_work **work)
{
    int rank = dlcoll_rank(comm);
    return (rank == 0) == b->sends ? dlcoll_send(p, len, DLCOLL_U8, 1 - rank, comm, opts, work)
                                   : dlcoll_recv(p, len, DLCOLL_U8, 1 - rank, comm, opts, work);
}

/* The collective operation first, the message after it. */
static int come_to_know(struct beside *b, dlcoll_work *works[2], uint64_t until_ns)
{
    size_t index;
    int code = DLCOLL_INPROGRESS;
    switch (b->way) {
    case WAIT:
        return dlcoll_wait(works[0]);
    case TEST:
        while ((code = dlcoll_test(works[0])) == DLCOLL_INPROGRESS)
            sched_yield();
        return code;
    case WAIT_FOR:
        while ((code = dlcoll_wait_for(works[0], 20)) == DLCOLL_INPROGRESS)
            ;
        return code;
    case WAIT_ALL:
        return dlcoll_wait_all(works, 2, -1);
    case WAIT_ANY:
        return dlcoll_wait_any(works, 1, &index, -1);
    default:
        while (!atomic_load(&b->through) && mono_ns() < until_ns)
            sched_yield();
        return atomic_load(&b->through) ? dlcoll_wait(works[0]) : code;
    }
}

/* Rank 1 comes to the operation when it is through with the message, which is too long to be on
 * its way before rank 0 has done its part. */
static void operation_and_message(dlcoll_comm *comm, void *arg)
{
    enum { LEN = 4 << 20 };
    struct beside *b = arg;
    int rank = dlcoll_rank(comm);
    bool sends = (rank == 0) == b->sends;
    uint8_t *p = xcalloc(1, LEN);
    int32_t x = 1;
    dlcoll_work *works[2] = {NULL};
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    opts.timeout_ms = (int64_t)(test_seconds(8) * 1000);
    uint64_t until_ns = mono_ns() + (uint64_t)(test_seconds(9) * 1e9);
    if (sends)
        fill(p, LEN, rank, 1 - rank, 0);
    THREAD_OK(message(b, p, LEN, comm, &opts, rank == 0 ? &works[1] : NULL));
    THREAD_OK(dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, comm, &opts,
                                rank == 0 ? &works[0] : NULL));
    if (rank == 1)
        atomic_store(&b->through, true);
    else
        THREAD_OK(come_to_know(b, works, until_ns));
    THREAD_EXPECT(x == 2, "%d", x);
    THREAD_OK(dlcoll_wait_all(works, 2, -1));
    if (!sends)
        check(p, LEN, 1 - rank, rank, 0);
    dlcoll_work_free(works[0]);
    dlcoll_work_free(works[1]);
    free(p);
}

START_TEST(messages_go_on_beside_operations)
{
    struct beside b = {.way = _i / 2, .sends = _i % 2};
    thread_ranks_run(2, operation_and_message, &b);
}
END_TEST

/* --------------------------------------------------------------------------------------- groups */

static void groups(dlcoll_comm *comm, void *arg)
{
    int n = dlcoll_size(comm), rank = dlcoll_rank(comm), code;
    dlcoll_comm *half = NULL, *back = NULL, *none = (dlcoll_comm *)1, *pair = NULL, *again = NULL;
    dlcoll_group_opts opts = DLCOLL_GROUP_OPTS_INIT;
    (void)arg;
    opts.name = "half";
    THREAD_OK(dlcoll_comm_split(comm, rank % 2, -rank, &half, &opts));
    int even = (n + 1) / 2, size = rank % 2 ? n - even : even;
    THREAD_EXPECT(dlcoll_size(half) == size, "%d", dlcoll_size(half));
    THREAD_EXPECT(dlcoll_world_rank(half, dlcoll_rank(half)) == rank, "%d", dlcoll_rank(half));
    THREAD_EXPECT(dlcoll_rank(half) == size - 1 - rank / 2, "keys turn the order round");
    int want = 0;
    for (int r = rank % 2; r < n; r += 2)
        want += r;
    THREAD_EXPECT(thread_sum_of_ranks(half, rank) == want, "in the half");
    THREAD_OK(dlcoll_comm_split(comm, DLCOLL_NO_COLOR, 0, &none, NULL));
    THREAD_EXPECT(!none, "no colour, no group");

    /* The first and the last, who make it twice; the others need not care. */
    int ends[2] = {n - 1, 0};
    if (rank == 0 || rank == n - 1) {
        THREAD_OK(dlcoll_comm_new_group(comm, ends, 2, &pair, NULL));
        THREAD_OK(dlcoll_comm_new_group(comm, ends, 2, &again, NULL));
        THREAD_EXPECT(dlcoll_rank(pair) == (rank == 0), "in the order of the list");
        THREAD_EXPECT(thread_sum_of_ranks(pair, rank) == n - 1, "in the pair");
        THREAD_EXPECT(thread_sum_of_ranks(again, rank) == n - 1, "in the other pair");
    } else if (rank == 1) {
        THREAD_OK(dlcoll_comm_new_group(comm, ends, 2, &pair, NULL));
        THREAD_EXPECT(!pair, "not listed");
    }
    int bad[2] = {0, 0};
    code = dlcoll_comm_new_group(comm, bad, 2, &back, NULL);
    THREAD_EXPECT(code == DLCOLL_EINVAL && strstr(thread_error(comm), "twice"), "%s",
                  thread_error(comm));
    code = dlcoll_comm_new_group(comm, bad, -1, &back, NULL);
    THREAD_EXPECT(code == DLCOLL_EINVAL && strstr(thread_error(comm), "n is negative"), "%s",
                  thread_error(comm));
    /* A group of a group; and the parent still works beside them. */
    THREAD_OK(dlcoll_comm_split(half, 0, 0, &back, NULL));
    THREAD_EXPECT(thread_sum_of_ranks(back, rank) == want, "in the group's group");
    THREAD_EXPECT(thread_sum_of_ranks(comm, rank) == n * (n - 1) / 2, "in all");
    dlcoll_destroy(half); /* what was made of it stays */
    THREAD_EXPECT(thread_sum_of_ranks(back, rank) == want, "after its parent");
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
    dlcoll_destroy(back);
    dlcoll_destroy(pair);
    dlcoll_destroy(again);
}

START_TEST(groups_work_beside_their_parent)
{
    thread_ranks_run(_i, groups, NULL);
}
END_TEST

/* Operations of two groups under way at once, in different orders. */
static void crossed(dlcoll_comm *comm, void *arg)
{
    int n = dlcoll_size(comm), rank = dlcoll_rank(comm);
    dlcoll_comm *a, *b;
    dlcoll_work *works[2];
    int32_t x[2] = {1, 1};
    (void)arg;
    THREAD_OK(dlcoll_comm_split(comm, 0, rank, &a, NULL));
    THREAD_OK(dlcoll_comm_split(comm, 0, -rank, &b, NULL));
    for (int turn = 0; turn < 20; turn++) {
        x[0] = x[1] = 1;
        for (int k = 0; k < 2; k++) {
            int which = (k + rank) % 2;
            THREAD_OK(dlcoll_all_reduce(&x[which], &x[which], 1, DLCOLL_I32, DLCOLL_SUM,
                                        which ? b : a, NULL, &works[which]));
        }
        THREAD_OK(dlcoll_wait_all(works, 2, -1));
        THREAD_EXPECT(x[0] == n && x[1] == n, "%d %d", x[0], x[1]);
        dlcoll_work_free(works[0]);
        dlcoll_work_free(works[1]);
    }
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
    dlcoll_destroy(a);
    dlcoll_destroy(b);
}

START_TEST(groups_do_not_wait_for_each_other)
{
    thread_ranks_run(_i, crossed, NULL);
}
END_TEST

/* ------------------------------------------------------------------------------ made of several */

static void coalesced(dlcoll_comm *comm, void *arg)
{
    static const size_t counts[] = {1, 0, 17, 70000, 3, 3, 300000, 5};
    enum { N = sizeof(counts) / sizeof(counts[0]) };
    int n = dlcoll_size(comm), rank = dlcoll_rank(comm);
    dlcoll_span list[N];
    dlcoll_work *work = NULL;
    (void)arg;
    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < N; i++) {
            int32_t *x = xmalloc((counts[i] + 1) * 4), *y = i % 2 ? x : xmalloc(counts[i] * 4 + 4);
            for (size_t e = 0; e < counts[i]; e++)
                x[e] = rank + (int32_t)(i + e);
            list[i] = (dlcoll_span){x, y, counts[i]};
        }
        THREAD_OK(dlcoll_all_reduce_coalesced(list, N, DLCOLL_I32, DLCOLL_SUM, comm, NULL,
                                              turn ? &work : NULL));
        THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
        for (size_t i = 0; i < N; i++) {
            for (size_t e = 0; e < counts[i]; e++)
                THREAD_EXPECT(((int32_t *)list[i].recv)[e] ==
                                  n * (n - 1) / 2 + n * (int32_t)(i + e),
                              "buffer %zu, element %zu", i, e);
            if (list[i].recv != list[i].send)
                free(list[i].recv);
            free((void *)list[i].send);
        }
    }
    THREAD_OK(dlcoll_wait(work));
    dlcoll_work_free(work);
    THREAD_OK(dlcoll_all_reduce_coalesced(NULL, 0, DLCOLL_I32, DLCOLL_SUM, comm, NULL, NULL));
}

START_TEST(lists_of_buffers)
{
    thread_ranks_run(_i, coalesced, NULL);
}
END_TEST

static void strings(dlcoll_comm *comm, void *arg)
{
    int n = dlcoll_size(comm), rank = dlcoll_rank(comm);
    (void)arg;
    for (int turn = 0; turn < 2; turn++) {
        size_t len = turn ? 0 : (size_t)rank * 1000;
        uint8_t *mine = xmalloc(len + 1);
        dlcoll_bytes *all;
        fill(mine, len, rank, 0, 0);
        THREAD_OK(dlcoll_exchange_bytes(len ? mine : NULL, len, &all, comm, NULL));
        for (int r = 0; r < n; r++) {
            THREAD_EXPECT(all[r].len == (turn ? 0 : (size_t)r * 1000), "%zu", all[r].len);
            check(all[r].data, all[r].len, r, 0, 0);
        }
        dlcoll_bytes_free(all);
        free(mine);
    }
}

START_TEST(strings_of_unknown_length)
{
    thread_ranks_run(_i, strings, NULL);
}
END_TEST

/* -------------------------------------------------------------------------------- looking at it */

static void looking(dlcoll_comm *comm, void *arg)
{
    dlcoll_record records[20];
    int32_t x[100] = {0};
    char text[16384];
    (void)arg;
    THREAD_OK(dlcoll_all_reduce(x, x, 100, DLCOLL_I32, DLCOLL_MAX, comm, NULL, NULL));
    THREAD_OK(dlcoll_broadcast(x, x, 7, DLCOLL_I32, 1, comm, NULL, NULL));
    int n = dlcoll_recent(comm, -1, records, 20);
    THREAD_EXPECT(n >= 2, "%d", n);
    THREAD_EXPECT(strcmp(records[0].op, "broadcast") == 0 && records[0].peer == 1 &&
                      records[0].count == 7 && records[0].end_ns >= records[0].start_ns,
                  "%s", records[0].op);
    THREAD_EXPECT(strcmp(records[1].op, "all_reduce") == 0 && records[1].bytes == 400 &&
                      strcmp(records[1].dtype, "i32") == 0 &&
                      strcmp(records[1].reduction, "max") == 0 && records[1].peer == -1,
                  "%s", records[1].op);
    size_t len = dlcoll_describe(comm, text, sizeof(text));
    THREAD_EXPECT(len < sizeof(text) && strlen(text) == len, "%zu", len);
    THREAD_EXPECT(strstr(text, "rank 1: node 0"), "%s", text);
    THREAD_EXPECT(dlcoll_describe(comm, NULL, 0) == len, "the length alone");
}

START_TEST(recent_operations_are_listed)
{
    thread_ranks_run(2, looking, NULL);
}
END_TEST

static void use_store(dlcoll_comm *comm, void *arg)
{
    dlcoll_store *s;
    void *value = NULL;
    size_t len = 0;
    int64_t sum = 0;
    const char *keys[] = {"program/a"};
    char long_key[9000] = {0};
    (void)arg;
    THREAD_OK(dlcoll_comm_store(comm, &s));
    if (dlcoll_rank(comm) == 0)
        THREAD_OK(dlcoll_store_set(s, "program/a", "hello", 5));
    THREAD_OK(dlcoll_store_wait(s, keys, 1, 5000));
    THREAD_OK(dlcoll_store_get(s, "program/a", &value, &len, 5000));
    THREAD_EXPECT(len == 5 && memcmp(value, "hello", 5) == 0, "%zu", len);
    free(value);
    /* Invalid requests do not harm the connection. */
    memset(long_key, 'k', sizeof(long_key) - 1);
    THREAD_EXPECT(dlcoll_store_set(s, "program/d", NULL, 5) == DLCOLL_EINVAL, "no value");
    THREAD_EXPECT(dlcoll_store_compare_set(s, "program/d", NULL, 3, "x", 1, NULL, NULL) ==
                      DLCOLL_EINVAL,
                  "none expected");
    THREAD_EXPECT(dlcoll_store_compare_set(s, "program/d", "", 0, NULL, 4, NULL, NULL) ==
                      DLCOLL_EINVAL,
                  "no value");
    THREAD_EXPECT(dlcoll_store_set(s, long_key, "x", 1) == DLCOLL_EINVAL, "a long key");
    THREAD_OK(dlcoll_store_add(s, "program/n", 2, &sum));
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
    THREAD_OK(dlcoll_store_add(s, "program/n", 0, &sum));
    THREAD_EXPECT(sum == 2 * dlcoll_size(comm), "%lld", (long long)sum);
    THREAD_EXPECT(dlcoll_store_get(s, "program/b", &value, &len, 20) == DLCOLL_ETIMEDOUT, "nobody");
    THREAD_OK(dlcoll_store_compare_set(s, "program/c", "", 0, "x", 1, NULL, NULL));
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
    int deleted = dlcoll_store_delete(s, "program/c");
    THREAD_EXPECT(deleted == 0 || deleted == 1, "%d", deleted);
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
    THREAD_EXPECT(dlcoll_store_delete(s, "program/c") == 0, "deleted twice");
}

START_TEST(the_jobs_store_serves_the_program)
{
    thread_ranks_run(3, use_store, NULL);
}
END_TEST

/* ---------------------------------------------------------------------------------- allocations */

#if !SANITIZED
static _Atomic long g_allocations;
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

void *malloc(size_t n)
{
    g_allocations++;
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    g_allocations++;
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    g_allocations++;
    return __libc_realloc(p, n);
}
#endif

static void a_thousand(dlcoll_comm *comm, int calls)
{
    static _Thread_local int32_t x[2000], y[8000], z[2000], out[2000], in[2000];
    int n = dlcoll_size(comm), rank = dlcoll_rank(comm);
    for (int i = 0; i < calls; i++) {
        dlcoll_work *w[2];
        size_t count = i % 3 ? 10 : 2000;
        THREAD_OK(dlcoll_all_reduce(x, x, count, DLCOLL_I32, DLCOLL_MAX, comm, NULL, NULL));
        THREAD_OK(dlcoll_all_gather(x, y, count, DLCOLL_I32, comm, NULL, NULL));
        THREAD_OK(dlcoll_broadcast(z, z, count, DLCOLL_I32, i % n, comm, NULL, &w[0]));
        THREAD_OK(dlcoll_send(out, count, DLCOLL_I32, (rank + 1) % n, comm, NULL, &w[1]));
        THREAD_OK(dlcoll_recv(in, count, DLCOLL_I32, (rank + n - 1) % n, comm, NULL, NULL));
        THREAD_OK(dlcoll_wait_all(w, 2, -1));
        dlcoll_work_free(w[0]);
        dlcoll_work_free(w[1]);
        THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
    }
}

static void no_allocations(dlcoll_comm *comm, void *arg)
{
    (void)arg;
    a_thousand(comm, 20);
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
#if !SANITIZED
    long before = g_allocations;
#endif
    a_thousand(comm, 150);
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
#if !SANITIZED
    THREAD_EXPECT(g_allocations == before, "%ld allocations", g_allocations - before);
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
#endif
}

START_TEST(nothing_is_allocated_once_it_is_warm)
{
    thread_ranks_run(3, no_allocations, NULL);
}
END_TEST

/* Communicators that were each warmed alone wait in the progress thread at the same time. */
static void no_allocations_at_once(dlcoll_comm *comm, void *arg)
{
    enum { COMMS = 12 };
    int n = dlcoll_size(comm);
    dlcoll_comm *comms[COMMS];
    dlcoll_work *works[COMMS];
    uint8_t go = 1;
    (void)arg;
    for (int k = 0; k < COMMS; k++) {
        THREAD_OK(dlcoll_comm_split(comm, 0, 0, &comms[k], NULL));
        THREAD_OK(dlcoll_barrier(comms[k], NULL, &works[k]));
        THREAD_OK(dlcoll_wait(works[k]));
        dlcoll_work_free(works[k]);
    }
    a_thousand(comm, 20);
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
#if !SANITIZED
    long before = g_allocations;
#endif
    for (int r = 0; r < n - 1; r++) { /* the last rank begins only when the others have */
        if (dlcoll_rank(comm) == n - 1)
            THREAD_OK(dlcoll_recv(&go, 1, DLCOLL_U8, r, comm, NULL, NULL));
    }
    for (int k = 0; k < COMMS; k++)
        THREAD_OK(dlcoll_barrier(comms[k], NULL, &works[k]));
    if (dlcoll_rank(comm) < n - 1)
        THREAD_OK(dlcoll_send(&go, 1, DLCOLL_U8, n - 1, comm, NULL, NULL));
    THREAD_OK(dlcoll_wait_all(works, COMMS, -1));
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
#if !SANITIZED
    THREAD_EXPECT(g_allocations == before, "%ld allocations", g_allocations - before);
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
#endif
    for (int k = 0; k < COMMS; k++) {
        dlcoll_work_free(works[k]);
        dlcoll_destroy(comms[k]);
    }
}

START_TEST(nothing_is_allocated_when_more_tasks_wait_at_once)
{
    thread_ranks_run(3, no_allocations_at_once, NULL);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_async");
    for (int shm = 0; shm <= 1; shm++) {
        TCase *tc = thread_ranks_case(s, shm);
        tcase_add_loop_test(tc, operations_are_carried_out_in_the_order_of_calls, 1, 5);
        tcase_add_test(tc, handles_are_tested_and_waited_for);
        tcase_add_loop_test(tc, messages_in_any_order, 1, 6);
        tcase_add_test(tc, short_messages_need_no_thread);
        tcase_add_loop_test(tc, batches_do_not_block_themselves, 1, 5);
        tcase_add_loop_test(tc, messages_from_anybody, 2, 5);
        tcase_add_test(tc, a_too_long_message_is_detected);
        tcase_add_test(tc, a_receive_times_out);
        tcase_add_loop_test(tc, messages_go_on_beside_operations, 0, 2 * WAYS);
        tcase_add_loop_test(tc, groups_work_beside_their_parent, 3, 7);
        tcase_add_loop_test(tc, groups_do_not_wait_for_each_other, 2, 5);
        tcase_add_loop_test(tc, lists_of_buffers, 1, 4);
        tcase_add_loop_test(tc, strings_of_unknown_length, 1, 5);
        tcase_add_test(tc, recent_operations_are_listed);
        tcase_add_test(tc, the_jobs_store_serves_the_program);
        tcase_add_test(tc, nothing_is_allocated_once_it_is_warm);
        tcase_add_test(tc, nothing_is_allocated_when_more_tasks_wait_at_once);
    }
    return s;
}

TEST_MAIN(suite)
