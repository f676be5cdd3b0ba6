/* The expected results of dlcoll_perf: the right result of every type and reduction passes,
 * computed in any order of ranks; a changed element is found. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

#include "collectives/reduce/reduce.h"
#include "collectives/tools/perf_data.c"

enum { COUNT = 1000, RANKS_MOST = 33 };

/* dlcoll's reduction of what all ranks have, beginning with rank `first`. False: there is none. */
static bool reduce_all(const struct perf_data *d, int first, uint8_t *out)
{
    static uint8_t in[COUNT * 8];
    struct reduce_info r;
    dlcoll_op op = (dlcoll_op)d->reduction;
    uint64_t factor = 0;
    if (d->reduction == PERF_USER)
        ck_assert_int_eq(dlcoll_op_create_user(&op, perf_user, NULL, 0), 0);
    for (int i = 0; i < d->ranks; i++) {
        int rank = (first + i) % d->ranks;
        if (d->reduction == PERF_PREMUL) {
            perf_factor(d->type, rank, &factor);
            if (dlcoll_op_create_premul(&op, &factor, (dlcoll_dtype)d->type) < 0)
                return false;
        }
        if (reduce_find(d->type, op, &r) < 0)
            return false;
        r.ranks = d->ranks;
        perf_fill(d, in, rank, 0, COUNT);
        if (r.has_pre)
            reduce_pre(&r, in, in, COUNT);
        if (i)
            reduce_two(&r, out, out, in, COUNT);
        else
            memcpy(out, in, sizeof(in));
        if (d->reduction == PERF_PREMUL)
            dlcoll_op_free(op);
    }
    if (d->ranks == 1)
        reduce_alone(&r, out, COUNT);
    if (r.has_post)
        reduce_post(&r, out, out, COUNT);
    if (d->reduction == PERF_USER)
        dlcoll_op_free(op);
    return true;
}

START_TEST(right_results_are_right_and_others_wrong)
{
    static uint8_t out[COUNT * 8];
    static const int ranks[] = {1, 2, 3, 8, RANKS_MOST};
    int type = perf_types[_i].value;
    size_t size = perf_type_size(type);
    ck_assert_uint_eq(size, dtype_get(type)->size);
    for (int o = 0; o < PERF_REDUCTIONS; o++) {
        for (size_t n = 0; n < sizeof(ranks) / sizeof(ranks[0]); n++) {
            struct perf_data d = {type, perf_reductions[o].value, ranks[n], 7, 0};
            for (int first = 0; first < ranks[n]; first += 4) {
                if (!reduce_all(&d, first, out))
                    break;
                size_t wrong = perf_wrong_reduced(&d, out, 0, COUNT);
                ck_assert_msg(wrong == 0, "%s of %s over %d ranks from %d: %zu wrong",
                              perf_reductions[o].name, perf_types[_i].name, ranks[n], first, wrong);
                bool coarse = d.reduction == DLCOLL_AVG; /* of floats: may be off by a rounding */
                if (type == DLCOLL_BOOL)
                    out[17] = !out[17];
                else
                    memset(out + 17 * size, coarse ? 0x5a : out[17 * size] ^ 1, coarse ? size : 1);
                ck_assert_uint_eq(perf_wrong_reduced(&d, out, 0, COUNT), 1);
            }
        }
    }
}
END_TEST

START_TEST(moved_elements_differ_by_rank_and_index)
{
    static uint8_t buf[COUNT * 8];
    struct perf_data d = {DLCOLL_F32, PERF_MOVE, 4, 9, 0};
    perf_fill(&d, buf, 2, 100, COUNT);
    ck_assert_uint_eq(perf_wrong(&d, buf, 2, 100, COUNT), 0);
    ck_assert_uint_gt(perf_wrong(&d, buf, 1, 100, COUNT), COUNT - 10);
    ck_assert_uint_gt(perf_wrong(&d, buf, 2, 101, COUNT), COUNT - 10);
    buf[4] ^= 0x80;
    ck_assert_uint_eq(perf_wrong(&d, buf, 2, 100, COUNT), 1);
    d.seed++;
    ck_assert_uint_gt(perf_wrong(&d, buf, 2, 100, COUNT), COUNT - 10);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("perf_data");
    TCase *tc = test_case(s, "data", 60);
    tcase_add_loop_test(tc, right_results_are_right_and_others_wrong, 0, PERF_TYPES);
    tcase_add_test(tc, moved_elements_differ_by_rank_and_index);
    return s;
}

TEST_MAIN(suite)
