/* The rows of dlaunchctl top: which of them stay, that they arrive as they were sent, and that the
 * sum over a tree does not depend on who has added what. */
#include <stdlib.h>
#include <string.h>

#include "agent/report/top_asks.h"
#include "agent/report/top_rows.h"
#include "core/mem.h"
#include "tests/lib/test.h"

static struct top_rank *add_rank(struct top_rows *t, int rank, const char *state)
{
    struct top_rank *k = top_rows_add_rank(t);
    k->rank = rank;
    k->node = rank / 4;
    k->cpu_s = k->output_age_s = -1;
    snprintf(k->state, sizeof(k->state), "%s", state);
    return k;
}

/* Four ranks; rank 9 has failed, 6 has been in its operation for long, 13 has left an earlier one
 * long ago. */
static void fill(struct top_rows *t, int node)
{
    struct top_node *n = top_rows_add_node(t);
    n->node = node;
    n->nworkers = n->nrunning = 4;
    snprintf(n->host, sizeof(n->host), "host%d", node);
    snprintf(n->state, sizeof(n->state), "RUNNING");
    for (int rank = 4 * node; rank < 4 * node + 4; rank++) {
        struct top_rank *k = add_rank(t, rank, rank == 9 ? "failed" : "running");
        k->has_op = true;
        k->op_number = rank == 13 ? 7 : 8;
        k->op_age_s = rank == 6 || rank == 13 ? 30 : 0.1;
        k->op_open = rank != 13;
        snprintf(k->op_name, sizeof(k->op_name), "all_reduce");
        n->nrunning -= rank == 9;
    }
    t->nrunning += (uint32_t)n->nrunning;
}

static void encode(struct buf *b, const struct top_rows *t)
{
    top_rows_encode(b, t);
    ck_assert(!b->oom);
}

static void check_four(const struct top_rows *t)
{
    static const int ranks[] = {0, 6, 9, 13}, nodes[] = {0, 1, 2, 3};
    ck_assert_uint_eq(t->nnodes, 8);
    ck_assert_uint_eq(t->nranks, 32);
    ck_assert_uint_eq(t->nrunning, 31);
    ck_assert_uint_eq(t->nrank_rows, 4);
    ck_assert_uint_eq(t->nnode_rows, 4);
    for (size_t i = 0; i < 4; i++) {
        ck_assert_int_eq(t->ranks[i].rank, ranks[i]);
        ck_assert_int_eq(t->nodes[i].node, nodes[i]);
    }
}

START_TEST(those_that_need_a_look_stay)
{
    struct top_rows t = {0};
    for (int node = 7; node >= 0; node--)
        fill(&t, node);
    top_rows_cut(&t, 4);
    check_four(&t);
    top_rows_cut(&t, 1);
    ck_assert_int_eq(t.ranks[0].rank, 9);
    ck_assert_int_eq(t.nodes[0].node, 2); /* not all of its workers run */
    top_rows_fini(&t);
    for (int rank = 5; rank >= 0; rank--)
        add_rank(&t, rank, "running");
    top_rows_cut(&t, 0);
    ck_assert_uint_eq(t.nrank_rows, 6);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(t.ranks[i].rank, i);
    top_rows_fini(&t);
}
END_TEST

/* Takes the answers of the nodes from first to first + n as one message. */
static void merged(struct buf *out, uint32_t most, int first, int n)
{
    struct buf items = BUF_INIT;
    for (int node = first; node < first + n; node++) {
        struct top_rows t = {0};
        struct buf one = BUF_INIT;
        fill(&t, node);
        buf_u32(&one, most);
        encode(&one, &t);
        buf_u32(&items, (uint32_t)one.len);
        buf_put(&items, one.data, one.len);
        buf_fini(&one);
        top_rows_fini(&t);
    }
    const struct rdzv_answers all = {
        .kind = REQUEST_TOP, .n = n, .items = rd_init(items.data, items.len)};
    ck_assert(top_merge(&all, out));
    buf_fini(&items);
}

/* However the nodes are grouped, the asking one sees the same. */
START_TEST(the_sum_is_the_same_by_every_way)
{
    for (int group = 1; group <= 8; group *= 2) {
        struct top_rows t = {0};
        for (int first = 0; first < 8; first += group) {
            struct buf b = BUF_INIT;
            merged(&b, 4, first, group);
            struct rd r = rd_init(b.data, b.len);
            uint32_t most;
            ck_assert(top_answer_decode(&r, &most, &t));
            ck_assert_uint_eq(most, 4);
            buf_fini(&b);
        }
        top_rows_cut(&t, 4);
        check_four(&t);
        top_rows_fini(&t);
    }
}
END_TEST

START_TEST(rows_arrive_as_they_were)
{
    struct top_rows t = {0}, got = {0};
    struct buf b = BUF_INIT, again = BUF_INIT;
    fill(&t, 3);
    t.ranks[1].has_gpu = true;
    t.ranks[1].gpu_percent = -1;
    t.ranks[1].gpu_memory_total = UINT64_C(80) << 30;
    t.ranks[2].has_op = false;
    t.ranks[2].rank = -1;
    strcpy(t.ranks[3].program, "./worker");
    encode(&b, &t);
    struct rd r = rd_init(b.data, b.len);
    ck_assert(top_rows_decode(&r, &got));
    encode(&again, &got);
    ck_assert_uint_eq(b.len, again.len);
    ck_assert_mem_eq(b.data, again.data, b.len);
    for (size_t cut = 0; cut < b.len; cut++) {
        struct top_rows part = {0};
        r = rd_init(b.data, cut);
        ck_assert(!top_rows_decode(&r, &part));
        top_rows_fini(&part);
    }
    top_rows_fini(&t);
    top_rows_fini(&got);
    buf_fini(&b);
    buf_fini(&again);
}
END_TEST

START_TEST(json_has_what_is_known)
{
    struct top_rows t = {0};
    json_t *j = json_object();
    fill(&t, 0);
    t.ranks[0].cpu_s = 2.5;
    top_rows_json(&t, j);
    const json_t *first = json_array_get(json_object_get(j, "ranks"), 0);
    const json_t *second = json_array_get(json_object_get(j, "ranks"), 1);
    ck_assert(json_real_value(json_object_get(first, "cpu_s")) == 2.5);
    ck_assert_ptr_null(json_object_get(second, "cpu_s"));
    ck_assert_ptr_null(json_object_get(first, "output_age_s"));
    ck_assert_ptr_null(json_object_get(first, "gpu_memory_bytes"));
    ck_assert_str_eq(
        json_string_value(json_object_get(json_object_get(first, "operation"), "name")),
        "all_reduce");
    json_decref(j);
    top_rows_fini(&t);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("top_rows");
    TCase *tc = test_case(s, "rows", 20);
    tcase_add_test(tc, those_that_need_a_look_stay);
    tcase_add_test(tc, the_sum_is_the_same_by_every_way);
    tcase_add_test(tc, rows_arrive_as_they_were);
    tcase_add_test(tc, json_has_what_is_known);
    return s;
}

TEST_MAIN(suite)
