/* Ranks from nodes, and the table's encoding. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/rules/rank_table.h"

struct row {
    const char *host, *addr, *role;
    int nproc;
};

static void make(struct rank_table *t, const struct row *rows, int n, bool ports)
{
    rank_table_init(t);
    ck_assert_int_eq(rank_table_alloc(t, n), 0);
    for (int i = 0; i < n; i++) {
        struct rank_table_node *node = &t->nodes[i];
        strcpy(node->host, rows[i].host);
        strcpy(node->addr, rows[i].addr);
        strcpy(node->role, rows[i].role);
        node->nproc = rows[i].nproc;
        node->pid = 100 + i;
        if (!ports)
            continue;
        ck_assert_int_eq(rank_table_alloc_ports(node), 0);
        for (int k = 0; k < node->nproc; k++)
            node->ports[k] = (uint16_t)(65535 - 16 * i - k);
    }
}

static const struct row unequal[] = {{"gpu-1", "10.0.0.1", "trainer", 3},
                                     {"gpu-2", "10.0.0.2", "reader", 1},
                                     {"gpu-10", "10.0.0.10", "trainer", 2},
                                     {"x", "fe80::1%eth0", "reader", 4}};

START_TEST(ranks_of_unequal_nodes_and_roles)
{
    struct rank_table t;
    make(&t, unequal, 4, false);
    ck_assert_int_eq(rank_table_compute(&t, NULL), 0);
    static const int expected[4][3] = {{0, 0, 5}, {3, 0, 5}, {4, 3, 5}, {6, 1, 5}};
    ck_assert_int_eq(t.world_size, 10);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(t.nodes[i].base_rank, expected[i][0]);
        ck_assert_int_eq(t.nodes[i].role_base_rank, expected[i][1]);
        ck_assert_int_eq(t.nodes[i].role_world_size, expected[i][2]);
    }
    static const int node_of[] = {-1, 0, 0, 0, 1, 2, 2, 3, 3, 3, 3, -1};
    for (int rank = -1; rank <= t.world_size; rank++)
        ck_assert_int_eq(rank_table_find(&t, rank), node_of[rank + 1]);
    rank_table_fini(&t);
}
END_TEST

START_TEST(ranks_that_cannot_be)
{
    static const int bad[] = {0, -1, NPROC_MAX + 1};
    struct rank_table t;
    struct err e = ERR_INIT;
    for (size_t i = 0; i < 3; i++) {
        make(&t, unequal, 4, false);
        t.nodes[2].nproc = bad[i];
        ck_assert_int_eq(rank_table_compute(&t, &e), -EINVAL);
        ck_assert_ptr_nonnull(strstr(e.msg, "gpu-10"));
        rank_table_fini(&t);
    }
    rank_table_init(&t);
    ck_assert_int_eq(rank_table_alloc(&t, WORLD_SIZE_MAX / NPROC_MAX + 1), 0);
    for (int i = 0; i < t.nnodes; i++)
        t.nodes[i].nproc = NPROC_MAX;
    ck_assert_int_eq(rank_table_compute(&t, &e), -EINVAL);
    t.nnodes--;
    ck_assert_int_eq(rank_table_compute(&t, &e), 0);
    ck_assert_int_eq(t.world_size, WORLD_SIZE_MAX);
    rank_table_fini(&t);
}
END_TEST

START_TEST(ranks_of_many_roles)
{
    enum { N = 5000 };
    struct rank_table t;
    rank_table_init(&t);
    ck_assert_int_eq(rank_table_alloc(&t, N), 0);
    for (int i = 0; i < N; i++) {
        snprintf(t.nodes[i].role, ROLE_MAX, "role%d", i % 2500);
        t.nodes[i].nproc = 1 + i / 2500;
    }
    ck_assert_int_eq(rank_table_compute(&t, NULL), 0);
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(t.nodes[i].role_base_rank, i / 2500);
        ck_assert_int_eq(t.nodes[i].role_world_size, 3);
    }
    rank_table_fini(&t);
}
END_TEST

static void fill_head(struct rank_table *t)
{
    t->gen = (struct generation){0x1122334455667788u, 9};
    t->restart_count = 3;
    strcpy(t->master_addr, "gpu-1.cluster");
    t->master_port = 29500;
    t->agent_store = true;
}

START_TEST(codec_is_an_exact_inverse)
{
    struct rank_table t, u;
    struct buf b = BUF_INIT;
    for (int ports = 0; ports < 2; ports++) {
        make(&t, unequal, 4, ports);
        fill_head(&t);
        ck_assert_int_eq(rank_table_compute(&t, NULL), 0);
        b.len = 0;
        rank_table_encode(&b, &t);
        struct rd r = rd_init(b.data, b.len);
        ck_assert_int_eq(rank_table_decode(&r, &u, NULL), 0);
        ck_assert(rd_done(&r));
        ck_assert(generation_equal(u.gen, t.gen));
        ck_assert_int_eq(u.restart_count, 3);
        ck_assert_str_eq(u.master_addr, "gpu-1.cluster");
        ck_assert_int_eq(u.master_port, 29500);
        ck_assert(u.agent_store);
        ck_assert_int_eq(u.world_size, 10);
        for (int i = 0; i < 4; i++) {
            ck_assert_str_eq(u.nodes[i].host, unequal[i].host);
            ck_assert_str_eq(u.nodes[i].addr, unequal[i].addr);
            ck_assert_str_eq(u.nodes[i].role, unequal[i].role);
            ck_assert_int_eq(u.nodes[i].pid, 100 + i);
            ck_assert_int_eq(u.nodes[i].base_rank, t.nodes[i].base_rank);
            ck_assert_int_eq(u.nodes[i].ports != NULL, ports);
            for (int k = 0; ports && k < unequal[i].nproc; k++)
                ck_assert_int_eq(u.nodes[i].ports[k], t.nodes[i].ports[k]);
        }
        rank_table_fini(&u);
        for (size_t n = 0; n < b.len; n++) { /* cut short anywhere */
            struct err e = ERR_INIT;
            r = rd_init(b.data, n);
            ck_assert_int_eq(rank_table_decode(&r, &u, &e), -EPROTO);
            ck_assert_ptr_null(u.nodes);
        }
        rank_table_fini(&t);
    }
    buf_fini(&b);
}
END_TEST

START_TEST(codec_checks_counts)
{
    struct rank_table t, u;
    struct buf b = BUF_INIT;
    make(&t, unequal, 4, false);
    ck_assert_int_eq(rank_table_compute(&t, NULL), 0);
    rank_table_encode(&b, &t);
    size_t at = 8 + 4 + 4 + 4 + 2 + 1; /* of nnodes, master_addr being empty */
    static const uint32_t bad[] = {0, 5, 1000000, 0xffffffffu};
    for (size_t i = 0; i < 4; i++) {
        buf_set_u32(&b, at, bad[i]);
        struct rd r = rd_init(b.data, b.len);
        ck_assert_int_eq(rank_table_decode(&r, &u, NULL), -EPROTO);
    }
    /* A name that shares more with the one before than there is. */
    b.len = 0;
    rank_table_encode(&b, &t);
    b.data[at + 4] = 1;
    struct rd r = rd_init(b.data, b.len);
    ck_assert_int_eq(rank_table_decode(&r, &u, NULL), -EPROTO);
    rank_table_fini(&t);
    buf_fini(&b);
}
END_TEST

START_TEST(codec_of_the_longest_names)
{
    struct rank_table t, u;
    struct buf b = BUF_INIT;
    make(&t, unequal, 3, false);
    for (int i = 0; i < 2; i++)
        memset(t.nodes[i].host, 'h', HOST_MAX - 1);
    t.nodes[1].host[HOST_MAX - 2] = 'x';
    ck_assert_int_eq(rank_table_compute(&t, NULL), 0);
    rank_table_encode(&b, &t);
    struct rd r = rd_init(b.data, b.len);
    ck_assert_int_eq(rank_table_decode(&r, &u, NULL), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_str_eq(u.nodes[i].host, t.nodes[i].host);
    rank_table_fini(&u);
    rank_table_fini(&t);
    buf_fini(&b);
}
END_TEST

/* The table goes to every node: its size counts with the square of their number. */
START_TEST(codec_is_small)
{
    enum { N = 4096, PROC = 8 };
    struct rank_table t;
    struct buf b = BUF_INIT;
    rank_table_init(&t);
    ck_assert_int_eq(rank_table_alloc(&t, N), 0);
    for (int i = 0; i < N; i++) {
        snprintf(t.nodes[i].host, HOST_MAX, "gpu-node-%04d.cluster.example.org", i);
        snprintf(t.nodes[i].addr, ADDR_STRLEN, "10.1.%d.%d", i / 256, i % 256);
        strcpy(t.nodes[i].role, "default");
        t.nodes[i].nproc = PROC;
        ck_assert_int_eq(rank_table_alloc_ports(&t.nodes[i]), 0);
    }
    rank_table_encode(&b, &t);
    ck_assert_uint_lt(b.len, N * 42); /* 16 of them are ports */
    rank_table_fini(&t);
    buf_fini(&b);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("rank_table");
    TCase *tc = test_case(s, "ranks", 10);
    tcase_add_test(tc, ranks_of_unequal_nodes_and_roles);
    tcase_add_test(tc, ranks_that_cannot_be);
    tcase_add_test(tc, ranks_of_many_roles);
    tc = test_case(s, "codec", 10);
    tcase_add_test(tc, codec_is_an_exact_inverse);
    tcase_add_test(tc, codec_checks_counts);
    tcase_add_test(tc, codec_of_the_longest_names);
    tcase_add_test(tc, codec_is_small);
    return s;
}

TEST_MAIN(suite)
