/* Messages as MPI has them: of any length up to a limit, from any rank, with any tag, probed,
 * claimed, cancelled, synchronous; in shared memory, over TCP and on two nodes. What a receive gets
 * is compared with a plain list of what each rank has sent. */
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/dlcoll.h"
#include "core/mem.h"
#include "tests/lib/cross_values.h"
#include "tests/lib/ranks.h"

enum { RANKS = 5, MESSAGES = 60, TAGS = 3, MOST = 200 * 1000 };

static const struct {
    int nodes;
    const char *shm;
} g_ways[] = {{1, "1"}, {1, "0"}, {2, "1"}};
enum { WAYS = 3 };

static void run(int n, rank_fn *fn, int way)
{
    setenv("DLCOLL_SHM", g_ways[way].shm, 1);
    ranks_run(n, g_ways[way].nodes, fn);
}

static dlcoll_opts with_tag(int tag)
{
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    o.tag = tag;
    return o;
}

static uint64_t draw(uint64_t a, uint64_t b, uint64_t c)
{
    return cross_mix(a * 1000003 + cross_mix(b * 10007 + c + 1));
}

/* ------------------------------------------------------------------------- against a plain list */

/* Message k of a rank. */
static int tag_of(int rank, int k)
{
    return (int)(draw((uint64_t)rank, (uint64_t)k, 1) % TAGS);
}

static size_t count_of(int rank, int k)
{
    static const size_t most[] = {1, 50, 9000, 20000, MOST / 4};
    uint64_t d = draw((uint64_t)rank, (uint64_t)k, 2);
    return d % 10 == 0 ? 0 : d / 16 % most[d / 1024 % 5] + 1;
}

static int32_t value_of(int rank, int k, size_t i)
{
    return (int32_t)draw((uint64_t)rank, (uint64_t)k, i + 3);
}

static void send_all(dlcoll_comm *c, int me, int to)
{
    dlcoll_work *works[MESSAGES];
    int32_t *x[MESSAGES];
    for (int k = 0; k < MESSAGES; k++) {
        size_t n = count_of(me, k);
        dlcoll_opts o = with_tag(tag_of(me, k));
        bool handle = draw((uint64_t)me, (uint64_t)k, 0) % 3;
        o.flags = draw((uint64_t)me, (uint64_t)k, 7) % 4 == 0 && me != to ? DLCOLL_SYNCHRONOUS : 0;
        /* A message that is claimed may be received after later ones. */
        handle = handle || o.flags || me == to || n > 1000;
        works[k] = NULL;
        x[k] = xmalloc(n * 4 + 1);
        for (size_t i = 0; i < n; i++)
            x[k][i] = value_of(me, k, i);
        EXPECT(dlcoll_send(x[k], n, DLCOLL_I32, to, c, &o, handle ? &works[k] : NULL) == 0, "%s",
               why(c));
    }
    if (me == to)
        return; /* they are complete when they have been received */
    EXPECT(dlcoll_wait_all(works, MESSAGES, -1) == 0, "%s", why(c));
    for (int k = 0; k < MESSAGES; k++) {
        dlcoll_work_free(works[k]);
        free(x[k]);
    }
}

struct model {
    bool gone[RANKS][MESSAGES];
    int left;
};

/* The message that a receive with that source and tag may have from that rank; -1: none. */
static int first_of(const struct model *m, int rank, int tag)
{
    for (int k = 0; k < MESSAGES; k++) {
        if (!m->gone[rank][k] && (tag == DLCOLL_ANY_TAG || tag_of(rank, k) == tag))
            return k;
    }
    return -1;
}

static int check_message(struct model *m, const dlcoll_message *got, int source, int tag)
{
    EXPECT(source == DLCOLL_ANY_SOURCE || got->source == source, "%d", got->source);
    EXPECT(got->source >= 0 && got->source < RANKS);
    int k = first_of(m, got->source, tag);
    EXPECT(k >= 0 && got->tag == tag_of(got->source, k), "tag %d of rank %d", got->tag,
           got->source);
    EXPECT(got->count == count_of(got->source, k), "%zu", got->count);
    EXPECT(got->bytes == 4 * got->count && got->dtype == DLCOLL_I32);
    return k;
}

static void take(struct model *m, const dlcoll_message *got, int k, const int32_t *x)
{
    for (size_t i = 0; i < got->count; i++)
        EXPECT(x[i] == value_of(got->source, k, i), "element %zu of message %d", i, k);
    m->gone[got->source][k] = true;
    m->left--;
}

/* Receives one of those that are left, in a way that is drawn. */
static void receive_one(dlcoll_comm *c, struct model *m, int32_t *x, uint64_t d)
{
    dlcoll_message got = DLCOLL_MESSAGE_INIT, seen = DLCOLL_MESSAGE_INIT;
    dlcoll_work *work = NULL, **w = d / 64 % 2 ? &work : NULL;
    int source = (int)(d / 8 % RANKS), tag, how = (int)(d / 128 % 6), k, r = 0;
    while (first_of(m, source, DLCOLL_ANY_TAG) < 0)
        source = (source + 1) % RANKS;
    tag = tag_of(source, first_of(m, source, DLCOLL_ANY_TAG));
    if (d % 2)
        source = DLCOLL_ANY_SOURCE;
    if (d / 2 % 2)
        tag = DLCOLL_ANY_TAG;
    dlcoll_opts o = with_tag(tag);
    switch (how) {
    case 0: /* found, then received by its own tag from its own rank */
    case 1:
        while ((r = how ? dlcoll_iprobe(source, &seen, c, &o)
                        : dlcoll_probe(source, &seen, c, &o)) == DLCOLL_INPROGRESS)
            ;
        EXPECT(r == 0 && !seen.matched, "%s", why(c));
        check_message(m, &seen, source, tag);
        source = seen.source;
        o.tag = tag = seen.tag;
        r = dlcoll_recv_upto(x, seen.count, DLCOLL_I32, source, &got, c, &o, w);
        break;
    case 2: /* claimed */
    case 3:
        while ((r = how == 3 ? dlcoll_improbe(source, &seen, c, &o)
                             : dlcoll_mprobe(source, &seen, c, &o)) == DLCOLL_INPROGRESS)
            ;
        EXPECT(r == 0 && seen.matched, "%s", why(c));
        k = check_message(m, &seen, source, tag);
        m->gone[seen.source][k] = true; /* nobody else gets it */
        m->left--;
        if (m->left && d / 4096 % 2)
            receive_one(c, m, x, draw(d, 1, 1));
        m->gone[seen.source][k] = false;
        m->left++;
        got = seen;
        r = dlcoll_mrecv(x, MOST, DLCOLL_I32, &got, c, NULL, w);
        if (r == 0 && w)
            r = dlcoll_wait(work);
        dlcoll_work_free(work);
        EXPECT(r == 0 && !got.matched, "%s", why(c));
        EXPECT(got.source == seen.source && got.tag == seen.tag && got.count == seen.count);
        take(m, &got, k, x);
        return;
    default:
        r = dlcoll_recv_upto(x, MOST, DLCOLL_I32, source, &got, c, &o, w);
    }
    if (r == 0 && w)
        r = dlcoll_wait(work);
    dlcoll_work_free(work);
    EXPECT(r == 0, "%s", why(c));
    take(m, &got, check_message(m, &got, source, tag), x);
}

static void against_a_list(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    (void)j;
    for (int turn = 0; turn < 3; turn++) {
        int to = (turn * 2 + 1) % RANKS;
        send_all(c, rank, to);
        if (rank == to) {
            struct model m = {.left = RANKS * MESSAGES};
            int32_t *x = xmalloc(MOST * 4);
            for (uint64_t k = 0; m.left; k++)
                receive_one(c, &m, x, draw((uint64_t)turn, k, 99));
            free(x);
        }
        EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    }
    comm_end(c);
}

START_TEST(what_is_received_is_the_first_that_fits)
{
    run(RANKS, against_a_list, _i);
}
END_TEST

/* Receives that wait get messages in the order of their calls. */
static void posted_before(struct ranks *j, int rank)
{
    enum { N = 24 };
    dlcoll_comm *c = comm_start();
    dlcoll_work *works[N];
    dlcoll_message got[N];
    int32_t x[N][8], next[RANKS][TAGS + 1] = {{0}};
    (void)j;
    for (int k = 0; k < N && rank == 0; k++) {
        dlcoll_opts o = with_tag(k % 3 == 0 ? DLCOLL_ANY_TAG : k % 2);
        got[k] = (dlcoll_message)DLCOLL_MESSAGE_INIT;
        EXPECT(dlcoll_recv_upto(x[k], 8, DLCOLL_I32, k % 4 ? DLCOLL_ANY_SOURCE : 1, &got[k], c, &o,
                                &works[k]) == 0);
    }
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    for (int32_t k = 0; k < 2 * N && rank > 0; k++) { /* enough for each */
        int32_t y[8] = {rank, k % 2, k / 2, 0, 0, 0, 0, 0};
        dlcoll_opts o = with_tag(k % 2);
        EXPECT(dlcoll_send(y, 3 + (size_t)k % 5, DLCOLL_I32, 0, c, &o, NULL) == 0, "%s", why(c));
    }
    if (rank == 0) {
        dlcoll_message rest = DLCOLL_MESSAGE_INIT;
        dlcoll_opts any = with_tag(DLCOLL_ANY_TAG);
        EXPECT(dlcoll_wait_all(works, N, -1) == 0, "%s", why(c));
        for (int k = 0; k < N; k++) {
            int from = got[k].source, tag = got[k].tag;
            EXPECT(x[k][0] == from && x[k][1] == tag, "%d %d", x[k][0], x[k][1]);
            EXPECT(x[k][2] == next[from][tag]++, "receive %d: %d of rank %d", k, x[k][2], from);
            dlcoll_work_free(works[k]);
        }
        for (int k = N; k < 2 * N * (RANKS - 1); k++) {
            EXPECT(dlcoll_recv_upto(x[0], 8, DLCOLL_I32, DLCOLL_ANY_SOURCE, &rest, c, &any, NULL) ==
                       0,
                   "%s", why(c));
            EXPECT(x[0][2] == next[rest.source][rest.tag]++, "%d", x[0][2]);
        }
    }
    comm_end(c);
}

START_TEST(waiting_receives_match_in_order)
{
    run(RANKS, posted_before, _i);
}
END_TEST

/* A receive waits while messages for others come first, so that their bytes, or a part of them, may
 * lie in its buffer already. */
static void later_one_first(struct ranks *j, int rank)
{
    static const size_t counts[] = {1, 1500, 40 * 1000, 5000, 17 * 1000, 0, 65 * 1000, 1024};
    enum { N = sizeof(counts) / sizeof(counts[0]), LARGEST = 65 * 1000 };
    dlcoll_comm *c = comm_start();
    int32_t *x = xmalloc(2 * LARGEST * 4);
    for (int turn = 0; turn < N * N; turn++) {
        int of[] = {turn / N, turn % N};
        dlcoll_work *works[2] = {NULL, NULL};
        for (int k = 1; k >= 0 && rank == 0; k--) {
            dlcoll_opts o = with_tag(k);
            int32_t *y = x + k * LARGEST;
            for (size_t i = 0; i < counts[of[k]]; i++)
                y[i] = value_of(turn, k, i);
            EXPECT(dlcoll_send(y, counts[of[k]], DLCOLL_I32, 1, c, &o, &works[k]) == 0, "%s",
                   why(c));
        }
        EXPECT(dlcoll_wait_all(works, 2, -1) == 0, "%s", why(c));
        dlcoll_work_free(works[0]);
        dlcoll_work_free(works[1]);
        for (int k = 0; k < 2 && rank == 1; k++) {
            dlcoll_opts o = with_tag(k);
            dlcoll_message got = DLCOLL_MESSAGE_INIT;
            size_t n = counts[of[k]];
            bool upto = turn % 3 == 0;
            int r = upto ? dlcoll_recv_upto(x, LARGEST, DLCOLL_I32, 0, &got, c, &o, NULL)
                         : dlcoll_recv(x, n, DLCOLL_I32, 0, c, &o, NULL);
            EXPECT(r == 0 && (!upto || got.count == n), "%s", why(c));
            for (size_t i = 0; i < n; i++)
                EXPECT(x[i] == value_of(turn, k, i), "element %zu in turn %d", i, turn);
        }
    }
    comm_end(c);
    free(x);
    (void)j;
}

START_TEST(messages_for_others_come_first)
{
    run(2, later_one_first, _i);
}
END_TEST

/* ----------------------------------------------------------------------------- synchronous sends
 */

static void synchronously(struct ranks *j, int rank)
{
    static const size_t lens[] = {0, 8, 3000, 40 * 1000, 1000 * 1000};
    dlcoll_comm *c = comm_start();
    uint8_t *x = xcalloc(1, 1000 * 1000);
    dlcoll_opts sync = with_tag(4), word = with_tag(5);
    sync.flags = DLCOLL_SYNCHRONOUS;
    for (int turn = 0; turn < 20; turn++) {
        size_t len = lens[turn % 5];
        bool handle = turn % 2, early = turn / 2 % 2;
        dlcoll_work *work = NULL;
        if (rank == 0 && handle) {
            EXPECT(dlcoll_send(x, len, DLCOLL_U8, 1, c, &sync, &work) == 0, "%s", why(c));
            for (int k = 0; k < 50 && !early; k++)
                EXPECT(dlcoll_test(work) == DLCOLL_INPROGRESS, "nobody has received it");
            EXPECT(dlcoll_send(x, 1, DLCOLL_U8, 1, c, &word, NULL) == 0, "%s", why(c));
            EXPECT(dlcoll_wait(work) == 0, "%s", why(c));
            dlcoll_work_free(work);
        } else if (rank == 0) {
            atomic_store(&j->shared->go, 0);
            EXPECT(dlcoll_send(x, 1, DLCOLL_U8, 1, c, &word, NULL) == 0, "%s", why(c));
            EXPECT(dlcoll_send(x, len, DLCOLL_U8, 1, c, &sync, NULL) == 0, "%s", why(c));
            EXPECT(atomic_load(&j->shared->go), "it has been received");
        } else if (early && handle) {
            EXPECT(dlcoll_recv(x, len, DLCOLL_U8, 0, c, &sync, &work) == DLCOLL_EINVAL);
            sync.flags = 0;
            EXPECT(dlcoll_recv(x, len, DLCOLL_U8, 0, c, &sync, &work) == 0, "%s", why(c));
            EXPECT(dlcoll_recv(x, 1, DLCOLL_U8, 0, c, &word, NULL) == 0, "%s", why(c));
            EXPECT(dlcoll_wait(work) == 0, "%s", why(c));
            dlcoll_work_free(work);
        } else {
            dlcoll_opts o = with_tag(4);
            EXPECT(dlcoll_recv(x, 1, DLCOLL_U8, 0, c, &word, NULL) == 0, "%s", why(c));
            EXPECT(dlcoll_probe(0, NULL, c, &o) == 0, "%s", why(c)); /* does not receive */
            atomic_store(&j->shared->go, 1);
            EXPECT(dlcoll_recv(x, len, DLCOLL_U8, 0, c, &o, NULL) == 0, "%s", why(c));
        }
        sync.flags = DLCOLL_SYNCHRONOUS;
        EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    }
    /* To each other at once, and to themselves. */
    dlcoll_p2p list[] = {{.send = x, .count = 100, .dtype = DLCOLL_U8, .peer = 1 - rank},
                         {.recv = x + 100, .count = 100, .dtype = DLCOLL_U8, .peer = -1},
                         {.send = x, .count = 7, .dtype = DLCOLL_U8, .peer = rank, .tag = 6},
                         {.recv = x + 200, .count = 7, .dtype = DLCOLL_U8, .peer = -1, .tag = 6}};
    dlcoll_opts all = DLCOLL_OPTS_INIT;
    all.flags = DLCOLL_SYNCHRONOUS;
    EXPECT(dlcoll_batch(list, 4, c, &all, NULL) == 0, "%s", why(c));
    comm_end(c);
    free(x);
}

START_TEST(synchronous_sends_end_with_their_receive)
{
    run(2, synchronously, _i);
}
END_TEST

/* ---------------------------------------------------------------------------- cancel, finalize */

static void cancelled(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    dlcoll_work *a, *b, *other;
    int32_t x = -1, y = -1, z = rank;
    dlcoll_opts o = with_tag(DLCOLL_ANY_TAG);
    int next = (rank + 1) % RANKS;
    (void)j;
    EXPECT(dlcoll_recv_upto(&x, 1, DLCOLL_I32, DLCOLL_ANY_SOURCE, NULL, c, &o, &a) == 0);
    EXPECT(dlcoll_recv(&y, 1, DLCOLL_I32, (rank + RANKS - 1) % RANKS, c, NULL, &b) == 0);
    EXPECT(dlcoll_cancel(a) == 0, "%s", why(c));
    EXPECT(dlcoll_test(a) == DLCOLL_ECANCELED && dlcoll_wait(a) == DLCOLL_ECANCELED);
    EXPECT(dlcoll_cancel(a) == DLCOLL_ESTATE);
    dlcoll_work_free(a);
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(dlcoll_send(&z, 1, DLCOLL_I32, next, c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(dlcoll_wait(b) == 0 && x == -1 && y == (rank + RANKS - 1) % RANKS, "%d %d", x, y);
    EXPECT(dlcoll_cancel(b) == DLCOLL_ESTATE, "it is complete");
    dlcoll_work_free(b);
    EXPECT(dlcoll_send(&z, 1, DLCOLL_I32, rank, c, NULL, &a) == 0);
    EXPECT(dlcoll_cancel(a) == DLCOLL_EINVAL && strstr(why(c), "not a receive"), "%s", why(c));
    EXPECT(dlcoll_finalize(c) == DLCOLL_ESTATE && strstr(why(c), "under way"), "%s", why(c));
    EXPECT(dlcoll_recv(&x, 1, DLCOLL_I32, rank, c, NULL, NULL) == 0 && x == rank);
    EXPECT(dlcoll_wait(a) == 0);
    dlcoll_work_free(a);
    /* Two that nobody sends to do not hinder the end. */
    EXPECT(dlcoll_recv(&x, 1, DLCOLL_I32, next, c, NULL, &a) == 0);
    EXPECT(dlcoll_recv_any(&y, 1, DLCOLL_I32, NULL, c, NULL, &b) == 0);
    if (rank % 2) {
        EXPECT(dlcoll_finalize(c) == 0, "%s", why(c));
    } else {
        EXPECT(dlcoll_finalize_async(c, NULL, &other) == 0, "%s", why(c));
        EXPECT(dlcoll_wait(other) == 0, "%s", why(c));
        dlcoll_work_free(other);
    }
    EXPECT(dlcoll_wait(a) == DLCOLL_ECANCELED && dlcoll_wait(b) == DLCOLL_ECANCELED);
    dlcoll_work_free(a);
    dlcoll_work_free(b);
    dlcoll_destroy(c);
}

START_TEST(receives_are_cancelled)
{
    run(RANKS, cancelled, _i);
}
END_TEST

/* ----------------------------------------------------------------------- what a buffer may hold
 */

enum { ROOM = 64 * 1024, OTHERS = 30 * 1000, FILL = 0xaa };

/* Of what has come already, the message of n bytes and, behind it, another one: only the former may
 * be in the buffer of a receive that takes up to ROOM. */
static void only_its_message(dlcoll_comm *c, int rank, size_t n, bool handle)
{
    static uint8_t x[ROOM], other[OTHERS];
    dlcoll_message m = DLCOLL_MESSAGE_INIT;
    dlcoll_opts first = with_tag(1), second = with_tag(2);
    dlcoll_work *work = NULL;
    memset(x, rank == 0 ? 1 : FILL, sizeof(x));
    memset(other, 2, sizeof(other));
    if (rank == 0) {
        EXPECT(dlcoll_send(x, n, DLCOLL_U8, 1, c, &first, NULL) == 0, "%s", why(c));
        EXPECT(dlcoll_send(other, sizeof(other), DLCOLL_U8, 1, c, &second, NULL) == 0);
    }
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 1) {
        int r = dlcoll_recv_upto(x, ROOM, DLCOLL_U8, 0, &m, c, &first, handle ? &work : NULL);
        EXPECT(r == 0 && (!handle || dlcoll_wait(work) == 0) && m.bytes == n, "%s", why(c));
        dlcoll_work_free(work);
        for (size_t i = 0; i < ROOM; i++)
            EXPECT(x[i] == (i < n ? 1 : FILL), "of %zu bytes, byte %zu is %d", n, i, x[i]);
        EXPECT(dlcoll_recv(other, sizeof(other), DLCOLL_U8, 0, c, &second, NULL) == 0);
    }
}

/* A receive that no message matches, of which one comes and others do not, and is cancelled. */
static void not_its_message(dlcoll_comm *c, int rank, bool upto)
{
    static uint8_t x[ROOM], other[OTHERS];
    dlcoll_opts first = with_tag(1), second = with_tag(2);
    dlcoll_work *work;
    memset(x, FILL, sizeof(x));
    memset(other, 2, sizeof(other));
    if (rank == 0)
        EXPECT(dlcoll_send(other, sizeof(other), DLCOLL_U8, 1, c, &second, NULL) == 0);
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 1) {
        int r = upto ? dlcoll_recv_upto(x, ROOM, DLCOLL_U8, 0, NULL, c, &first, &work)
                     : dlcoll_recv(x, ROOM, DLCOLL_U8, 0, c, &first, &work);
        EXPECT(r == 0 && dlcoll_test(work) == DLCOLL_INPROGRESS, "%s", why(c));
        EXPECT(dlcoll_recv(other, sizeof(other), DLCOLL_U8, 0, c, &second, NULL) == 0);
        EXPECT(dlcoll_cancel(work) == 0 && dlcoll_wait(work) == DLCOLL_ECANCELED, "%s", why(c));
        dlcoll_work_free(work);
        for (size_t i = 0; i < ROOM; i++)
            EXPECT(x[i] == FILL, "byte %zu is %d, upto %d", i, x[i], upto);
    }
}

static void into_buffers(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    uint8_t x = 0; /* then there is a connection, which takes what follows */
    (void)j;
    EXPECT((rank == 0 ? dlcoll_send(&x, 1, DLCOLL_U8, 1, c, NULL, NULL)
                      : dlcoll_recv(&x, 1, DLCOLL_U8, 0, c, NULL, NULL)) == 0);
    for (size_t n = 8; n <= ROOM; n *= 4) {
        only_its_message(c, rank, n, false);
        only_its_message(c, rank, n, true);
    }
    not_its_message(c, rank, false);
    not_its_message(c, rank, true);
    comm_end(c);
}

START_TEST(a_buffer_gets_its_message_only)
{
    run(2, into_buffers, _i);
}
END_TEST

/* -------------------------------------------------------------------------------------- errors */

static void refuse(dlcoll_comm *c, int code, const char *text)
{
    EXPECT(code == DLCOLL_EINVAL && strstr(why(c), text), "%d %s", code, why(c));
}

static void wrongly(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    int32_t x[10] = {rank};
    dlcoll_message m = DLCOLL_MESSAGE_INIT, bad = DLCOLL_MESSAGE_INIT;
    dlcoll_opts o = with_tag(-2), sync = DLCOLL_OPTS_INIT;
    (void)j;
    sync.flags = DLCOLL_SYNCHRONOUS;
    bad.size = 8;
    refuse(c, dlcoll_probe(2, &m, c, NULL), "out of range");
    refuse(c, dlcoll_probe(0, &bad, c, NULL), "DLCOLL_MESSAGE_INIT");
    refuse(c, dlcoll_probe(0, &m, c, &o), "tag is negative");
    refuse(c, dlcoll_mprobe(0, NULL, c, NULL), "message is NULL");
    refuse(c, dlcoll_mrecv(x, 1, DLCOLL_I32, &m, c, NULL, NULL), "dlcoll_mprobe()");
    refuse(c, dlcoll_send(x, 1, DLCOLL_I32, DLCOLL_ANY_SOURCE, c, NULL, NULL), "out of range");
    refuse(c, dlcoll_barrier(c, &sync, NULL), "only sends");
    o.tag = DLCOLL_ANY_TAG;
    refuse(c, dlcoll_send(x, 1, DLCOLL_I32, 1 - rank, c, &o, NULL), "tag is negative");
    EXPECT(dlcoll_cancel(NULL) == DLCOLL_EINVAL);
    EXPECT(dlcoll_iprobe(DLCOLL_ANY_SOURCE, &m, c, &o) == DLCOLL_INPROGRESS && m.source == -1);
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    /* A message of 10 is too long for 9. */
    if (rank == 0)
        EXPECT(dlcoll_send(x, 10, DLCOLL_I32, 1, c, NULL, NULL) == 0, "%s", why(c));
    int r = rank == 0 ? dlcoll_barrier(c, NULL, NULL)
                      : dlcoll_recv_upto(x, 9, DLCOLL_I32, 0, &m, c, &o, NULL);
    EXPECT(r == DLCOLL_EMISMATCH && strstr(why(c), "9 i32") && strstr(why(c), "10 i32"), "%d %s", r,
           why(c));
    dlcoll_destroy(c);
}

START_TEST(wrong_calls_are_refused)
{
    run(2, wrongly, _i);
}
END_TEST

/* A probe that nothing comes for ends at its timeout, and its name is told. */
static void in_time(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    (void)j;
    o.timeout_ms = 50;
    int r = rank ? dlcoll_barrier(c, NULL, NULL) : dlcoll_probe(1, NULL, c, &o);
    EXPECT(r == DLCOLL_ETIMEDOUT && (rank || strstr(why(c), "probe")), "%d %s", r, why(c));
    dlcoll_destroy(c);
}

START_TEST(probes_have_a_timeout)
{
    run(2, in_time, _i);
}
END_TEST

/* Elements of the program's own; and a probe of what a rank has sent to itself. */
static void own_elements(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    char x[12 * 5] = "to myself", y[12 * 8] = {0};
    dlcoll_message m = DLCOLL_MESSAGE_INIT;
    dlcoll_work *work;
    (void)j;
    EXPECT(dlcoll_send(x, 5, DLCOLL_ELEMENT(12), rank, c, NULL, &work) == 0);
    EXPECT(dlcoll_probe(rank, &m, c, NULL) == 0, "%s", why(c));
    EXPECT(m.dtype == DLCOLL_U8 && m.count == 60 && m.bytes == 60 && m.source == rank);
    EXPECT(dlcoll_improbe(rank, &m, c, NULL) == 0 && m.matched, "%s", why(c));
    EXPECT(dlcoll_iprobe(rank, NULL, c, NULL) == DLCOLL_INPROGRESS);
    EXPECT(dlcoll_test(work) == DLCOLL_INPROGRESS, "it is not received yet");
    EXPECT(dlcoll_mrecv(y, 8, DLCOLL_ELEMENT(12), &m, c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(m.count == 5 && m.bytes == 60 && strcmp(y, "to myself") == 0, "%zu", m.count);
    EXPECT(dlcoll_wait(work) == 0);
    dlcoll_work_free(work);
    /* A message that is claimed and never received ends with the communicator. */
    EXPECT(dlcoll_send(x, 5, DLCOLL_U8, 1 - rank, c, NULL, NULL) == 0);
    EXPECT(dlcoll_mprobe(1 - rank, &m, c, NULL) == 0 && m.count == 5, "%s", why(c));
    comm_end(c);
}

START_TEST(elements_and_own_messages)
{
    run(2, own_elements, _i);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_messages");
    TCase *tc = test_case(s, "messages", 60);
    tcase_add_loop_test(tc, what_is_received_is_the_first_that_fits, 0, WAYS);
    tcase_add_loop_test(tc, waiting_receives_match_in_order, 0, WAYS);
    tcase_add_loop_test(tc, messages_for_others_come_first, 0, WAYS);
    tcase_add_loop_test(tc, synchronous_sends_end_with_their_receive, 0, WAYS);
    tcase_add_loop_test(tc, receives_are_cancelled, 0, WAYS);
    tcase_add_loop_test(tc, a_buffer_gets_its_message_only, 0, WAYS);
    tcase_add_loop_test(tc, wrong_calls_are_refused, 0, WAYS);
    tcase_add_loop_test(tc, probes_have_a_timeout, 0, WAYS);
    tcase_add_loop_test(tc, elements_and_own_messages, 0, WAYS);
    return s;
}

TEST_MAIN(suite)
