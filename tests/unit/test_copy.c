/* A copy of every alignment, and of lengths about those where the way changes. */
#include "tests/lib/test.h"

#include <string.h>

#include "collectives/shm/copy.h"
#include "core/mem.h"

enum { ROOM = 96 * 1024 + 256, EDGE = 0xee };

static uint8_t g_from[ROOM], g_to[ROOM], g_edge[ROOM];

static void check_copy(size_t to, size_t from, size_t len)
{
    memset(g_to, EDGE, sizeof(g_to));
    copy_fresh(g_to + to, g_from + from, len);
    ck_assert_msg(memcmp(g_to + to, g_from + from, len) == 0, "%zu bytes from %zu to %zu", len,
                  from, to);
    ck_assert_msg(memcmp(g_to, g_edge, to) == 0, "%zu bytes to %zu: before it", len, to);
    ck_assert_msg(memcmp(g_to + to + len, g_edge, sizeof(g_to) - to - len) == 0,
                  "%zu bytes to %zu: after it", len, to);
}

START_TEST(all_bytes_and_no_others)
{
    static const size_t lengths[] = {0,     1,     63,    64,    127,   129,   4096,      32767,
                                     32768, 32769, 32831, 32832, 32895, 32896, 64 * 1024, 90001};
    static const size_t shifts[] = {0, 1, 7, 15, 16, 31, 63, 64, 65, 127};
    for (size_t i = 0; i < sizeof(g_from); i++)
        g_from[i] = (uint8_t)(i * 7 + i / 251);
    memset(g_edge, EDGE, sizeof(g_edge));
    for (size_t l = 0; l < ARRAY_LEN(lengths); l++) {
        for (size_t t = 0; t < ARRAY_LEN(shifts); t++) {
            for (size_t f = 0; f < ARRAY_LEN(shifts); f++)
                check_copy(shifts[t], shifts[f], lengths[l]);
        }
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("copy");
    TCase *tc = test_case(s, "copy", 60);
    tcase_add_test(tc, all_bytes_and_no_others);
    return s;
}

TEST_MAIN(suite)
