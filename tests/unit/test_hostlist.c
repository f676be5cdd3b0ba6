/* Slurm's compressed lists of host names. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "core/netaddr.h"
#include "core/hostlist.h"

struct names {
    char text[4096];
    size_t n, limit;
};

static bool add(void *arg, const char *name)
{
    struct names *x = arg;
    snprintf(x->text + strlen(x->text), sizeof(x->text) - strlen(x->text), "%s%s", x->n ? " " : "",
             name);
    return ++x->n < x->limit;
}

START_TEST(expansion)
{
    static const struct {
        const char *list, *want;
    } rows[] = {
        {"n1", "n1"},
        {"n1,n2", "n1 n2"},
        {"n[1-3]", "n1 n2 n3"},
        {"node[1-3,7]", "node1 node2 node3 node7"},
        {"n[08-11]", "n08 n09 n10 n11"},
        {"n[8-11]", "n8 n9 n10 n11"},
        {"n[098-101]", "n098 n099 n100 n101"},
        {"n[1-2]-ib", "n1-ib n2-ib"},
        {"r[0-1]n[0-2]", "r0n0 r0n1 r0n2 r1n0 r1n1 r1n2"},
        {"r[0-1]n[0-1]p[1,3]x", "r0n0p1x r0n0p3x r0n1p1x r0n1p3x r1n0p1x r1n0p3x r1n1p1x r1n1p3x"},
        {"a,n[2,1],a,b[01]", "a n2 n1 a b01"},
        {"n1 n2\tn3", "n1 n2 n3"},
        {" n1 , n2,", "n1 n2"},
        {"n[5-5]", "n5"},
        {"n[1-9/2,12]", "n1 n3 n5 n7 n9 n12"},
        {"n[01-04/5]", "n01"},
        {"head,gpu[1-2].cluster", "head gpu1.cluster gpu2.cluster"},
        {"[1-3]", "1 2 3"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct names got = {.limit = 1000};
        struct err e = ERR_INIT;
        size_t count;
        ck_assert_msg(hostlist_walk(rows[i].list, add, &got, &count, &e) == 0, "%s: %s",
                      rows[i].list, e.msg);
        ck_assert_str_eq(got.text, rows[i].want);
        ck_assert_uint_eq(got.n, count);
    }
}
END_TEST

START_TEST(malformed)
{
    static const char *const lists[] = {"",
                                        ",",
                                        "  ",
                                        "n[1",
                                        "n[1-",
                                        "n[]",
                                        "n[,1]",
                                        "n[1,]",
                                        "n[1-3",
                                        "n1]",
                                        "n[1]]",
                                        "n[a-b]",
                                        "n[3-1]",
                                        "n[1--3]",
                                        "n[1-3/]",
                                        "n[1-3/0]",
                                        "n[1/2]",
                                        "n[-1]",
                                        "n[1 2]",
                                        "n[[1]]",
                                        "n[1-2-3]",
                                        "n[0-9999999999]",
                                        "n[12345678901]",
                                        "n[0-1000000]",
                                        "a[1-1000]b[1-1001]",
                                        "a[1-1000]b[1-1000]c[1-1000]d[1-1000]e[1-1000]f[1-1000]",
                                        "n[1-600000],m[1-600000]",
                                        "ok,n[1"};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        struct names got = {.limit = 1000};
        struct err e = ERR_INIT;
        size_t count;
        ck_assert_msg(hostlist_walk(lists[i], add, &got, &count, &e) < 0, "'%s' was taken",
                      lists[i]);
        ck_assert_msg(got.n == 0, "'%s' was walked", lists[i]);
        ck_assert(*e.msg);
    }
}
END_TEST

START_TEST(limits)
{
    size_t count;
    struct names got = {.limit = 3};
    ck_assert_int_eq(hostlist_walk("n[0-999999]", add, &got, &count, NULL), 0);
    ck_assert_uint_eq(count, HOSTLIST_MAX);
    ck_assert_str_eq(got.text, "n0 n1 n2"); /* stopped when told to */
    ck_assert_int_eq(hostlist_walk("n[1-4],m", NULL, NULL, &count, NULL), 0);
    ck_assert_uint_eq(count, 5);

    /* Names never outgrow HOST_MAX, whatever the list. */
    char list[2 * HOST_MAX] = "";
    for (size_t len = 1; len < sizeof(list) - 16; len++) {
        memset(list, 'a', len);
        strcpy(list + len, "[1-2]");
        got = (struct names){.limit = 2};
        if (hostlist_walk(list, add, &got, &count, NULL) == 0)
            ck_assert_uint_le(strlen(got.text), 2 * HOST_MAX);
        else
            ck_assert_uint_ge(len + 16, HOST_MAX);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("hostlist");
    TCase *tc = test_case(s, "hostlist", 20);
    tcase_add_test(tc, expansion);
    tcase_add_test(tc, malformed);
    tcase_add_test(tc, limits);
    return s;
}

TEST_MAIN(suite)
