/* Ranks that call different operations: in kind, count, type, reduction, root or order, through
 * shared memory, over TCP, and on two nodes. Each rank is told which one is odd, and of both calls;
 * nobody waits for ever, and nothing is written where no result belongs. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "core/mem.h"
#include "tests/lib/ranks.h"

enum { RANKS = 4, SMALL = 12, LARGE = 60000, SENT = 0x11, BEYOND = 0x5a, GUARD = 4096 };

enum kind {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    ALL_GATHER,
    GATHER,
    SCATTER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    SCAN,
    EXSCAN,
    BARRIER,
    KINDS
};

enum { REDUCES = 1, TO_ROOT = 2, FROM_ROOT = 4, SENDS_ALL = 8, GETS_ALL = 16, NO_DATA = 32 };

static const struct {
    const char *name;
    unsigned has;
} g_kinds[KINDS] = {
    [ALL_REDUCE] = {"all_reduce", REDUCES},
    [REDUCE] = {"reduce", REDUCES | TO_ROOT},
    [BROADCAST] = {"broadcast", FROM_ROOT},
    [ALL_GATHER] = {"all_gather", GETS_ALL},
    [GATHER] = {"gather", TO_ROOT | GETS_ALL},
    [SCATTER] = {"scatter", FROM_ROOT | SENDS_ALL},
    [REDUCE_SCATTER] = {"reduce_scatter", REDUCES | SENDS_ALL},
    [ALL_TO_ALL] = {"all_to_all", SENDS_ALL | GETS_ALL},
    [SCAN] = {"scan", REDUCES},
    [EXSCAN] = {"exscan", REDUCES},
    [BARRIER] = {"barrier", NO_DATA},
};

struct asked {
    enum kind kind;
    size_t count;
    dlcoll_dtype dtype;
    dlcoll_op op;
    int root;
};

/* The operation as the error's text spells it. */
static const char *text_of(const struct asked *a)
{
    unsigned has = g_kinds[a->kind].has;
    if (has & NO_DATA)
        return g_kinds[a->kind].name;
    const char *data = test_text("%s of %zu %s%s", g_kinds[a->kind].name, a->count,
                                 a->dtype == DLCOLL_F32 ? "f32" : "i64",
                                 !(has & REDUCES)      ? ""
                                 : a->op == DLCOLL_SUM ? " (sum)"
                                                       : " (max)");
    if (!(has & (TO_ROOT | FROM_ROOT)))
        return data;
    return test_text("%s %s rank %d", data, has & TO_ROOT ? "to" : "from", a->root);
}

static size_t bytes_of(const struct asked *a, unsigned all)
{
    size_t parts = g_kinds[a->kind].has & all ? RANKS : 1;
    return g_kinds[a->kind].has & NO_DATA ? 0 : parts * a->count * (a->dtype == DLCOLL_F32 ? 4 : 8);
}

static int perform(const struct asked *a, const uint8_t *x, uint8_t *y, dlcoll_comm *c)
{
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    o.timeout_ms = (int64_t)(test_seconds(10) * 1000);
    switch (a->kind) {
    case ALL_REDUCE:
        return dlcoll_all_reduce(x, y, a->count, a->dtype, a->op, c, &o, NULL);
    case REDUCE:
        return dlcoll_reduce(x, y, a->count, a->dtype, a->op, a->root, c, &o, NULL);
    case BROADCAST:
        return dlcoll_broadcast(x, y, a->count, a->dtype, a->root, c, &o, NULL);
    case ALL_GATHER:
        return dlcoll_all_gather(x, y, a->count, a->dtype, c, &o, NULL);
    case GATHER:
        return dlcoll_gather(x, y, a->count, a->dtype, a->root, c, &o, NULL);
    case SCATTER:
        return dlcoll_scatter(x, y, a->count, a->dtype, a->root, c, &o, NULL);
    case REDUCE_SCATTER:
        return dlcoll_reduce_scatter(x, y, a->count, a->dtype, a->op, c, &o, NULL);
    case ALL_TO_ALL:
        return dlcoll_all_to_all(x, y, a->count, a->dtype, c, &o, NULL);
    case SCAN:
        return dlcoll_scan(x, y, a->count, a->dtype, a->op, c, &o, NULL);
    case EXSCAN:
        return dlcoll_exscan(x, y, a->count, a->dtype, a->op, c, &o, NULL);
    default:
        return dlcoll_barrier(c, &o, NULL);
    }
}

static void expect_all(const uint8_t *p, size_t n, int value, const char *what)
{
    for (size_t i = 0; i < n; i++)
        EXPECT(p[i] == value, "%s, byte %zu is %#x", what, i, p[i]);
}

/* The send buffer stays unchanged, and so does the memory behind the receive buffer. */
static int perform_within_bounds(const struct asked *a, dlcoll_comm *c)
{
    size_t in = bytes_of(a, SENDS_ALL), out = bytes_of(a, GETS_ALL);
    uint8_t *x = xmalloc(in + 1), *y = xmalloc(out + 2 * GUARD);
    memset(x, SENT, in + 1);
    memset(y, BEYOND, out + 2 * GUARD);
    int r = perform(a, x, y + GUARD, c);
    expect_all(x, in, SENT, "what was sent");
    expect_all(y, GUARD, BEYOND, "in front of what was received");
    expect_all(y + GUARD + out, GUARD, BEYOND, "behind what was received");
    free(x);
    free(y);
    return r;
}

static struct asked g_all[2], g_odds[2]; /* what all call, one after the other; what one calls */
static int g_odd;
static uint16_t g_port;

static void differ(struct ranks *j, int rank)
{
    if (j->nnodes == 0) {
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        set_env_int("MASTER_PORT", g_port);
    }
    dlcoll_comm *c = comm_start();
    static const struct asked barrier = {.kind = BARRIER};
    const struct asked *mine = rank == g_odd ? g_odds : g_all;
    int r = perform(&barrier, NULL, NULL, c); /* others may be in the next one by now */
    for (int k = 0; k < 2 && r == 0; k++) {
        if (mine[k].kind != KINDS)
            r = perform_within_bounds(&mine[k], c);
    }
    for (int k = 0; k < 10 && r == 0; k++) /* one that only sends may be through */
        r = perform(&barrier, NULL, NULL, c);
    ranks_keep_result(j, rank, c, r);
    ranks_say_ready(j);
    ranks_await_ready(j); /* so that nobody is told by the other's end */
    dlcoll_destroy(c);
}

static const char *const g_ways[] = {"shared memory",  "TCP",         "two nodes",
                                     "two nodes, TCP", "no launcher", "no launcher, TCP"};
enum { WAYS = 6, FIELDS = 7 };
enum field { KIND, COUNT, ZERO, DTYPE, REDUCTION, ROOT, ORDER };
static const char *const g_fields[FIELDS] = {"kind",      "count", "count 0", "dtype",
                                             "reduction", "root",  "order"};

/* Makes the odd rank's call, which differs in `field`. False: the operation does not have this
 * field. */
static bool make_odd(enum field field, const struct asked *all, struct asked *odd)
{
    unsigned has = g_kinds[all->kind].has;
    *odd = *all;
    switch (field) {
    case KIND:
    case ORDER:
        odd->kind = (enum kind)((all->kind + 1) % KINDS);
        break;
    case COUNT:
        odd->count += all->count / 4;
        break;
    case ZERO: /* does nothing: it is in the next one by then */
        odd->count = 0;
        break;
    case DTYPE:
        odd->dtype = DLCOLL_I64;
        break;
    case REDUCTION:
        odd->op = DLCOLL_MAX;
        break;
    case ROOT:
        odd->root = (all->root + 1) % RANKS;
        break;
    }
    return field == KIND || field == ORDER ||
           (field == ROOT        ? has & (TO_ROOT | FROM_ROOT)
            : field == REDUCTION ? has & REDUCES
                                 : !(has & NO_DATA));
}

/* The name of the seq-th call of `rank`. */
static const char *call_of(int rank, unsigned seq)
{
    const struct asked *its = rank == g_odd ? g_odds : g_all;
    return seq == 1 || seq > 3 || its[seq - 2].kind == KINDS ? "barrier" : text_of(&its[seq - 2]);
}

/* Reads "operation #N: rank R (...) called CALL, WHO called CALL", or with a number for each of the
 * two, and looks whether that is true. WHO is "all others", "most others" or a rank. True: the odd
 * one is named as such. */
static bool expect_text(const char *text, const char *what)
{
    unsigned seq[2] = {0, 0};
    int who[2] = {-1, -1}, same = sscanf(text, "operation #%u: rank %d (", &seq[0], &who[0]) == 2;
    ck_assert_msg(same || sscanf(text, "rank %d (", &who[0]) == 1, "%s: %s", what, text);
    const char *one = strstr(text, ") called "), *two = one ? strstr(one + 9, " called ") : NULL;
    ck_assert_msg(two, "%s: %s", what, text);
    const char *comma = two;
    while (comma > one && *comma != ',')
        comma--;
    bool odd = sscanf(comma, ", rank %d called", &who[1]) != 1;
    if (odd) {
        ck_assert_msg(strncmp(comma, ", all others", 12) == 0 ||
                          strncmp(comma, ", most others", 13) == 0,
                      "%s: %s", what, text);
        ck_assert_msg(who[0] == g_odd, "%s: rank %d is not the odd one: %s", what, who[0], text);
        who[1] = (g_odd + 1) % RANKS;
    }
    one += strlen(") called ");
    two += strlen(" called ");
    if (same) {
        seq[1] = seq[0];
        ck_assert_msg(!strchr(strchr(text, ':'), '#'), "%s: a number twice: %s", what, text);
    } else {
        const char *first = strstr(one, " as operation #"),
                   *second = strstr(two, " as operation #");
        ck_assert_msg(first && second && sscanf(first, " as operation #%u", &seq[0]) == 1 &&
                          sscanf(second, " as operation #%u", &seq[1]) == 1,
                      "%s: %s", what, text);
    }
    const char *its = call_of(who[0], seq[0]), *theirs = call_of(who[1], seq[1]);
    ck_assert_msg(strncmp(one, its, strlen(its)) == 0 && strncmp(two, theirs, strlen(theirs)) == 0,
                  "%s: not %s and %s: %s", what, its, theirs, text);
    ck_assert_msg(seq[0] != seq[1] || strcmp(its, theirs) != 0, "%s: nothing differs: %s", what,
                  text);
    return odd;
}

/* Every rank is told of two calls that differ. How many are told which rank is odd. */
static int expect_told(const struct ranks *j, const char *what)
{
    int named = 0;
    for (int r = 0; r < RANKS; r++) {
        const dlcoll_error *e = &j->shared->rank[r].error;
        ck_assert_msg(j->shared->rank[r].code == DLCOLL_EMISMATCH && e->code == DLCOLL_EMISMATCH,
                      "%s: rank %d: %d %s", what, r, j->shared->rank[r].code, e->text);
        named += expect_text(e->text, what) && e->rank == g_odd;
    }
    return named;
}

/* A rank that waits for what others send may say that it wants nothing, and nobody misses it. */
static bool is_not_missed(const struct ranks *j, enum field field, enum kind kind)
{
    bool silent = field == ZERO && g_kinds[kind].has & FROM_ROOT;
    for (int r = 0; r < RANKS; r++)
        silent = silent && j->shared->rank[r].code == 0;
    return silent;
}

static void run(int way, struct ranks *j)
{
    int fd = reserve_port(&g_port);
    setenv("DLCOLL_SHM", way % 2 ? "0" : "1", 1);
    ranks_init(j, RANKS, way / 2 == 2 ? 0 : 1 + way / 2);
    ranks_start(j, differ);
    ranks_wait(j, 30, 0);
    close(fd);
}

/* One of four ranks makes a different call; each rank has its turn. */
START_TEST(the_difference_is_named)
{
    enum field field = (enum field)(_i / WAYS);
    int way = _i % WAYS, turn = _i, named = 0, told = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        for (int size = 0; size < 2; size++, turn++) {
            struct ranks j;
            if (way % 2 && size == (kind + (int)field) % 2)
                continue; /* over TCP either will do: some must wait for long before they ask */
            g_all[0] = (struct asked){.kind = (enum kind)kind,
                                      .count = size ? LARGE : SMALL,
                                      .dtype = DLCOLL_F32,
                                      .root = turn / 4 % RANKS};
            g_all[1] = g_odds[1] = (struct asked){.kind = KINDS};
            g_odd = turn % RANKS;
            if (!make_odd(field, &g_all[0], &g_odds[0]))
                continue;
            if (field == ORDER) {
                g_all[1] = g_odds[0];
                g_odds[1] = g_all[0];
            }
            const char *what =
                test_text("%s of %s, %s, rank %d is odd, root %d, count %zu", g_fields[field],
                          g_kinds[kind].name, g_ways[way], g_odd, g_all[0].root, g_all[0].count);
            run(way, &j);
            if (!is_not_missed(&j, field, (enum kind)kind)) {
                named += expect_told(&j, what);
                told += RANKS;
            }
            ranks_fini(&j);
        }
    }
    /* A rank that gets no CPU for a second has no vote. */
    ck_assert_msg(2 * named >= told, "%d of %d ranks were told which one is odd", named, told);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_differ");
    TCase *tc = test_case(s, "differ", 60);
    tcase_add_loop_test(tc, the_difference_is_named, 0, FIELDS * WAYS);
    return s;
}

TEST_MAIN(suite)
