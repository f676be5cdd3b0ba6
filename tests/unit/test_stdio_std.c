/* The texts of --redirects, --tee, the filters and the prefix. */
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>

#include "agent/output/stdio_std.h"
#include "agent/base/template.h"
#include "agent/base/text.h"
#include "core/mem.h"

START_TEST(std_values)
{
    static const struct {
        const char *text;
        uint8_t want[4];
    } good[] = {{"0", {0, 0, 0, 0}},        {"3", {3, 3, 3, 3}},       {"0:3", {3, 0, 0, 0}},
                {"0:1,2:3", {1, 0, 3, 0}},  {"1:2,1:3", {0, 3, 0, 0}}, {" 2 ", {2, 2, 2, 2}},
                {"12:3,3:1", {0, 0, 0, 1}}, {"4095:3", {0, 0, 0, 0}},  {"0:0", {0, 0, 0, 0}}};
    static const char *const bad[] = {"",
                                      "4",
                                      "-1",
                                      "x",
                                      "03",
                                      "0:4",
                                      "0:",
                                      ":1",
                                      "0:1,",
                                      ",0:1",
                                      "0:1,3",
                                      "0:1 1:1",
                                      "4096:1",
                                      "0;1",
                                      "0:11",
                                      "0=1",
                                      "99999999999999999999:1"};
    uint8_t out[4] = {9, 9, 9, 9};
    struct err e = ERR_INIT;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        ck_assert_msg(stdio_std_parse(bad[i], 4, out, &e) == -EINVAL, "'%s' was taken", bad[i]);
        ck_assert_mem_eq(out, ((uint8_t[]){9, 9, 9, 9}), 4);
    }
    ck_assert_int_eq(strncmp(e.msg, "'99999999999999999999:1' is not 0, 1, 2 or 3", 44), 0);
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        ck_assert_msg(stdio_std_parse(good[i].text, 4, out, &e) == 0, "%s", e.msg);
        ck_assert_msg(memcmp(out, good[i].want, 4) == 0, "'%s'", good[i].text);
    }
}
END_TEST

START_TEST(rank_lists)
{
    bool show[3];
    struct err e = ERR_INIT;
    ck_assert_int_eq(stdio_ranks_parse("", 3, show, &e), 0);
    ck_assert(show[0] && show[1] && show[2]);
    ck_assert_int_eq(stdio_ranks_parse("0, 2,77", 3, show, &e), 0);
    ck_assert(show[0] && !show[1] && show[2]);
    ck_assert_int_eq(stdio_ranks_parse("11", 3, show, &e), 0);
    ck_assert(!show[0] && !show[1] && !show[2]);
    ck_assert_int_eq(stdio_ranks_parse("-1", 3, show, &e), 0);
    ck_assert(!show[0] && !show[1] && !show[2]);
    ck_assert_int_eq(stdio_ranks_parse("1, -1", 3, show, &e), 0);
    ck_assert(!show[0] && show[1] && !show[2]);
    static const char *const bad[] = {",", "0,", ",0", "a", "0;1", "-", "--1", "0 1", "1.5"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_msg(stdio_ranks_parse(bad[i], 3, show, &e) == -EINVAL, "'%s' was taken", bad[i]);
    ck_assert_str_eq(e.msg, "'1.5' is not a list of local ranks such as 0,2");
}
END_TEST

START_TEST(substring_lists)
{
    ck_assert_ptr_null(stdio_list_parse(""));
    ck_assert_ptr_null(stdio_list_parse(","));
    static const struct {
        const char *text, *items[4];
    } good[] = {{"a", {"a"}},
                {"loss,NaN", {"loss", "NaN"}},
                {"a,,b", {"a,b"}},
                {"a,,,b", {"a,", "b"}},
                {",,", {","}},
                {"a,b,", {"a", "b"}},
                {" a b ,c", {" a b ", "c"}}};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        char **items = stdio_list_parse(good[i].text);
        size_t n = 0;
        for (; good[i].items[n]; n++) {
            ck_assert_msg(items && items[n], "'%s' item %zu", good[i].text, n);
            ck_assert_str_eq(items[n], good[i].items[n]);
        }
        ck_assert_ptr_null(items[n]);
        free(items);
    }
}
END_TEST

START_TEST(prefixes)
{
    static const struct {
        const char *template, *want;
    } good[] = {{NULL, "[trainer3]:"},
                {"", ""},
                {"[${hostname} ${rank}] ", "[node-a 11] "},
                {"$local_rank/$rank|", "3/11|"},
                {"$$${rank}$", "$11$"},
                {"${nosuch} $rankx ${rank", "${nosuch} $rankx ${rank"},
                {"${ rank}$1", "${ rank}$1"}};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        char *p = stdio_prefix_new(good[i].template, "trainer", 3, 11, "node-a");
        ck_assert_str_eq(p, good[i].want);
        free(p);
    }
    struct template_var v = {"x", "1"};
    char *p = template_expand("$x ${x} $$ ${y}", &v, 1, TEMPLATE_BRACED);
    ck_assert_str_eq(p, "$x 1 $$ ${y}");
    free(p);
}
END_TEST

START_TEST(sizes)
{
    static const struct {
        uint64_t n;
        const char *want;
    } good[] = {{0, "0 bytes"},        {1, "1 byte"},           {1023, "1023 bytes"},
                {1024, "1.0 KiB"},     {1258291, "1.2 MiB"},    {1048575, "1.0 MiB"},
                {3u << 30, "3.0 GiB"}, {UINT64_MAX, "16.0 EiB"}};
    char out[TEXT_BYTES_MAX];
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        ck_assert_str_eq(text_bytes(out, good[i].n), good[i].want);
}
END_TEST

START_TEST(ends_of_texts)
{
    char out[64], text[1000] = "";
    ck_assert_uint_eq(text_keep_end(out, sizeof(out), "one\ntwo\n\n", 9), 7);
    ck_assert_str_eq(out, "one\ntwo");
    ck_assert_uint_eq(text_keep_end(out, sizeof(out), "", 0), 0);
    for (int i = 0; i < 50; i++)
        strcat(text, "line\n");
    text_keep_end(out, sizeof(out), text, strlen(text));
    ck_assert_str_eq(out, "[45 lines left out]\nline\nline\nline\nline\nline");
    memset(text, 'x', 900);
    text_keep_end(out, sizeof(out), text, 900);
    ck_assert_int_eq(strncmp(out, "...xxx", 6), 0);
    for (int i = 0; i + 2 < 900; i += 3)
        memcpy(text + i, "\xe2\x82\xac", 3);
    text_keep_end(out, sizeof(out), text, 900);
    ck_assert_int_eq(strncmp(out, "...\xe2\x82\xac", 6), 0);
}
END_TEST

/* Columns of a terminal are characters, not bytes. */
START_TEST(columns_of_text)
{
    ck_assert_uint_eq(text_span("abc", 2), 2);
    ck_assert_uint_eq(text_span("abc", 9), 3);
    ck_assert_uint_eq(text_span("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80z", 1), 2);
    ck_assert_uint_eq(text_span("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80z", 2), 5);
    ck_assert_uint_eq(text_span("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80z", 3), 9);
    ck_assert_uint_eq(text_span("\xc3\xa4", 0), 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stdio_std");
    TCase *tc = test_case(s, "stdio_std", 10);
    tcase_add_test(tc, columns_of_text);
    tcase_add_test(tc, std_values);
    tcase_add_test(tc, rank_lists);
    tcase_add_test(tc, substring_lists);
    tcase_add_test(tc, prefixes);
    tcase_add_test(tc, sizes);
    tcase_add_test(tc, ends_of_texts);
    return s;
}

TEST_MAIN(suite)
