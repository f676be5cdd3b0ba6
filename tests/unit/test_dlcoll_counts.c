/* Ranks disagree on the lengths of the parts: every rank that would receive another length than it
 * expects gets an error, and so do all others. */
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/dlcoll.h"
#include "tests/lib/ranks.h"

enum { RANKS = 3, ODD = 1 }; /* the one with other counts */

static const struct {
    const char *name;
    int told; /* who would have wrong data */
} g_ops[] = {{"gather_v", 0},     {"scatter_v", ODD},        {"all_to_all_v", ODD},
             {"all_gather_v", 0}, {"reduce_scatter_v", ODD}, {"scatter_v of nothing", ODD}};
enum { OPS = sizeof(g_ops) / sizeof(g_ops[0]) };

static const size_t g_sizes[] = {16, 20000, 400000}; /* staged, or read where they are */

static int g_op;
static size_t g_n;

static int perform(dlcoll_comm *c, uint8_t *x, uint8_t *y)
{
    bool odd = dlcoll_rank(c) == ODD;
    size_t n = g_n, all[] = {n, n, n}, half[] = {n / 2, n, n}, split[] = {n / 2, n, n + n / 2};
    size_t none[] = {n, 0, n};
    switch (g_op) {
    case 0:
        return dlcoll_gather_v(x, odd ? n / 2 : n, y, all, NULL, DLCOLL_U8, 0, c, NULL, NULL);
    case 1:
        return dlcoll_scatter_v(x, all, NULL, y, odd ? 2 * n : n, DLCOLL_U8, 0, c, NULL, NULL);
    case 2:
        return dlcoll_all_to_all_v(x, all, NULL, y, odd ? half : all, NULL, DLCOLL_U8, c, NULL,
                                   NULL);
    case 3:
        return dlcoll_all_gather_v(x, y, odd ? split : all, NULL, DLCOLL_U8, c, NULL, NULL);
    case 4:
        return dlcoll_reduce_scatter_v(x, y, odd ? split : all, DLCOLL_U8, DLCOLL_SUM, c, NULL,
                                       NULL);
    default:
        return dlcoll_scatter_v(x, none, NULL, y, n, DLCOLL_U8, 0, c, NULL, NULL);
    }
}

static void disagree(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    uint8_t *x = calloc(RANKS * 2, g_n), *y = calloc(RANKS * 2, g_n);
    for (int k = 0; k < 3; k++) /* whether memory of others can be read is found out */
        EXPECT(dlcoll_all_gather(x, y, g_n, DLCOLL_U8, c, NULL, NULL) == 0, "%s", why(c));
    int r = perform(c, x, y);
    EXPECT(rank != g_ops[g_op].told || r == DLCOLL_EMISMATCH, "%d %s", r, why(c));
    for (int k = 0; k < 10 && r == 0; k++) /* one that only sends may be through */
        r = dlcoll_barrier(c, NULL, NULL);
    ranks_keep_result(j, rank, c, r);
    dlcoll_destroy(c);
    free(x);
    free(y);
}

START_TEST(different_counts_are_reported)
{
    struct ranks j;
    g_op = _i / 6;
    g_n = g_sizes[_i / 2 % 3];
    if (_i % 2)
        setenv("DLCOLL_SHM", "0", 1);
    ranks_init(&j, RANKS, 1);
    ranks_start(&j, disagree);
    ranks_wait(&j, 20, 0);
    for (int r = 0; r < RANKS; r++) {
        const char *text = j.shared->rank[r].error.text;
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_EMISMATCH &&
                          (_i % 2 || strstr(text, "counts of their parts")),
                      "%s of %zu: rank %d: %d %s", g_ops[g_op].name, g_n, r, j.shared->rank[r].code,
                      text);
    }
    ranks_fini(&j);
}
END_TEST

/* A rank that receives nothing may pass any output pointer, and a rank that sends nothing any input
 * pointer. */
static void get_nothing(struct ranks *j, int rank)
{
    enum { N = 3000 };
    static int32_t out[RANKS * N], in[RANKS * N];
    static const size_t none[RANKS] = {0}, give[RANKS] = {0, N, N}, get[RANKS] = {N, 0, 0};
    dlcoll_comm *c = comm_start();
    (void)j;
    for (int i = 0; i < RANKS * N; i++)
        out[i] = i + 1;
    int r = rank == 0
                ? dlcoll_all_to_all_v(out, give, NULL, out, none, NULL, DLCOLL_I32, c, NULL, NULL)
                : dlcoll_all_to_all_v(out, none, NULL, in, get, NULL, DLCOLL_I32, c, NULL, NULL);
    EXPECT(r == 0, "%d %s", r, why(c));
    for (int i = 0; i < N && rank > 0; i++)
        EXPECT(in[i] == (rank - 1) * N + i + 1, "element %d is %d", i, in[i]);
    comm_end(c);
}

START_TEST(equal_pointers_of_different_parts)
{
    setenv("DLCOLL_SHM", _i ? "1" : "0", 1);
    ranks_run(RANKS, 1 + (_i == 2), get_nothing);
}
END_TEST

/* The displacement of an empty part is ignored. */
static void have_nothing(struct ranks *j, int rank)
{
    enum { N = 400 };
    static const size_t far[RANKS] = {0, SIZE_MAX, 5}, none[RANKS] = {0}, give[RANKS] = {N, 0, 0};
    static int32_t out[N], in[N + N];
    dlcoll_comm *c = comm_start();
    (void)j;
    for (int i = 0; i < N; i++)
        out[i] = 10 * i + rank;
    int r = dlcoll_all_gather_v(NULL, NULL, none, far, DLCOLL_I32, c, NULL, NULL);
    EXPECT(r == 0, "%d %s", r, why(c));
    static const size_t near[RANKS] = {0, 1, N + N};
    r = dlcoll_all_gather_v(rank == 0 ? in + N : NULL, in, give, near, DLCOLL_I32, c, NULL, NULL);
    EXPECT(r == 0, "%d %s", r, why(c));
    /* Rank 2 sends to rank 0, which has nothing to send, and nobody else anything. */
    size_t counts[RANKS] = {rank == 2 ? N : 0}, expected[RANKS] = {0, 0, rank == 0 ? N : 0};
    r = dlcoll_all_to_all_v(rank == 2 ? out : NULL, counts, far, rank == 0 ? in : NULL, expected,
                            NULL, DLCOLL_I32, c, NULL, NULL);
    EXPECT(r == 0, "%d %s", r, why(c));
    for (int i = 0; i < N && rank == 0; i++)
        EXPECT(in[i] == 10 * i + 2, "element %d is %d", i, in[i]);
    comm_end(c);
}

START_TEST(a_part_of_nothing_lies_nowhere)
{
    setenv("DLCOLL_SHM", _i ? "1" : "0", 1);
    ranks_run(RANKS, 1 + (_i == 2), have_nothing);
}
END_TEST

/* Only some ranks know the counts of these: a rank with no elements takes part, and its type must
 * be that of the others. */
static void have_nothing_of_another_type(struct ranks *j, int rank)
{
    static const size_t none[RANKS] = {0};
    dlcoll_dtype type = rank == ODD ? DLCOLL_F64 : DLCOLL_I32;
    dlcoll_comm *c = comm_start();
    EXPECT(dlcoll_all_to_all_v(NULL, none, NULL, NULL, none, NULL, DLCOLL_I32, c, NULL, NULL) == 0,
           "%s", why(c));
    int r = g_op == 0 ? dlcoll_all_to_all_v(NULL, none, NULL, NULL, none, NULL, type, c, NULL, NULL)
            : g_op == 1 ? dlcoll_gather_v(NULL, 0, NULL, none, NULL, type, 0, c, NULL, NULL)
                        : dlcoll_scatter_v(NULL, none, NULL, NULL, 0, type, 0, c, NULL, NULL);
    if (r == 0)
        r = dlcoll_barrier(c, NULL, NULL);
    ranks_keep_result(j, rank, c, r);
    ranks_say_ready(j);
    ranks_await_ready(j);
    dlcoll_destroy(c);
}

START_TEST(the_type_counts_without_elements)
{
    struct ranks j;
    g_op = _i / 3;
    setenv("DLCOLL_SHM", _i % 3 ? "1" : "0", 1);
    ranks_init(&j, RANKS, 1 + (_i % 3 == 2));
    ranks_start(&j, have_nothing_of_another_type);
    ranks_wait(&j, 20, 0);
    for (int r = 0; r < RANKS; r++)
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_EMISMATCH, "rank %d: %d %s", r,
                      j.shared->rank[r].code, j.shared->rank[r].error.text);
    ranks_fini(&j);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_counts");
    TCase *tc = test_case(s, "counts", 60);
    tcase_add_loop_test(tc, different_counts_are_reported, 0, OPS * 6);
    tcase_add_loop_test(tc, equal_pointers_of_different_parts, 0, 3);
    tcase_add_loop_test(tc, a_part_of_nothing_lies_nowhere, 0, 3);
    tcase_add_loop_test(tc, the_type_counts_without_elements, 0, 9);
    return s;
}

TEST_MAIN(suite)
