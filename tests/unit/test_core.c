/* The bottom layer: errors, bytes, map, parsing, addresses. */
#include "tests/lib/test.h"

#include <errno.h>
#include <linux/capability.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/err.h"
#include "core/escape.h"
#include "core/log.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/memlock.h"
#include "core/netaddr.h"
#include "core/parse.h"

START_TEST(err_text_and_context)
{
    struct err e = ERR_INIT;
    ck_assert_int_eq(err_sys(&e, ENOENT, "open %s", "x"), -ENOENT);
    ck_assert_str_eq(e.msg, "open x: No such file or directory");
    ck_assert_int_eq(err_wrap(&e, "config"), -ENOENT);
    ck_assert_str_eq(e.msg, "config: open x: No such file or directory");
    ck_assert_int_eq(err_set(NULL, -EINVAL, "unused"), -EINVAL);
}
END_TEST

START_TEST(too_long_errors_are_marked)
{
    char big[2 * ERR_MSG_MAX];
    memset(big, 'a', sizeof(big));
    big[sizeof(big) - 1] = '\0';
    struct err e = ERR_INIT;
    err_set(&e, -EIO, "%s", big);
    ck_assert_uint_eq(strlen(e.msg), ERR_MSG_MAX - 1);
    ck_assert_str_eq(e.msg + ERR_MSG_MAX - 4, "...");
    err_wrap(&e, "context");
    ck_assert_int_eq(strncmp(e.msg, "context: aaa", 12), 0);
    ck_assert_str_eq(e.msg + ERR_MSG_MAX - 4, "...");
}
END_TEST

START_TEST(log_escape_shows_controls)
{
    char out[64];
    static const char text[] = "a\x1b[2Jb\x07\xc2\x9b\xc3\xa9\x9b";
    log_escape(out, sizeof(out), text, sizeof(text) - 1, 0);
    ck_assert_str_eq(out, "a\\x1b[2Jb\\x07\\xc2\\x9b\xc3\xa9\\x9b");
    log_escape(out, 12, "0123456789abcdef", 16, 0);
    ck_assert_str_eq(out, "01234567...");
}
END_TEST

static char g_line[8192];

static void keep_line(void *arg, const char *line, size_t len)
{
    (void)arg;
    snprintf(g_line, sizeof(g_line), "%.*s", (int)len, line);
}

START_TEST(too_long_log_lines_are_marked)
{
    char big[3000];
    memset(big, 'a', sizeof(big));
    big[sizeof(big) - 1] = '\0';
    log_set_writer(keep_line, NULL);
    log_notice("%s", big);
    size_t len = strlen(g_line);
    ck_assert_uint_gt(len, 2000);
    ck_assert_str_eq(g_line + len - 5, "a...\n");
}
END_TEST

START_TEST(escape_recognises_unfinished_units)
{
    static const struct {
        const char *text;
        size_t span, tail; /* for a terminal */
    } cases[] = {
        {"text\r\n\t", 7, 0},       {"a\x1b", 1, 1},        {"a\x1b[", 1, 2},
        {"a\x1b[1;3", 1, 5},        {"a\x1b[1;3m", 7, 0},   {"a\x1b[1;3x", 1, 0},
        {"a\x1b[m\x1b[", 4, 2},     {"a\x1b]0", 1, 0},      {"\xc3", 0, 1},
        {"a\xe6\xad", 1, 2},        {"\xe6\xad\xa5", 3, 0}, {"\xf0\x9f\x98", 0, 3},
        {"\x80\x80\x80\x80", 0, 0}, {"\x1b[3\xc3", 0, 1},   {"", 0, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        size_t len = strlen(cases[i].text);
        ck_assert_uint_eq(escape_span(cases[i].text, len, ESCAPE_TERMINAL), cases[i].span);
        ck_assert_uint_eq(escape_tail(cases[i].text, len, ESCAPE_TERMINAL), cases[i].tail);
    }
    /* A colour of the greatest length, and one that is longer; the quick way through long text. */
    char text[300];
    memset(text, '1', sizeof(text));
    memcpy(text, "\x1b[", 2);
    text[ESCAPE_COLOUR_MAX - 1] = 'm';
    ck_assert_uint_eq(escape_colour(text, sizeof(text)), ESCAPE_COLOUR_MAX);
    ck_assert_uint_eq(escape_tail(text, ESCAPE_COLOUR_MAX - 1, ESCAPE_TERMINAL),
                      ESCAPE_COLOUR_MAX - 1);
    text[ESCAPE_COLOUR_MAX - 1] = '1';
    text[ESCAPE_COLOUR_MAX] = 'm';
    ck_assert_uint_eq(escape_colour(text, sizeof(text)), 0);
    ck_assert_uint_eq(escape_tail(text, ESCAPE_COLOUR_MAX, ESCAPE_TERMINAL), 0);
    for (size_t at = 0; at < sizeof(text); at++) {
        for (int c = 0; c < 256; c++) {
            memset(text, 'x', sizeof(text));
            text[at] = (char)c;
            bool passes = (c >= 0x20 && c < 0x7f) || c == '\n' || c == '\t' || c == '\r';
            ck_assert_uint_eq(escape_span(text, sizeof(text), ESCAPE_TERMINAL),
                              passes ? sizeof(text) : at);
        }
    }
}
END_TEST

START_TEST(bytes_round_trip)
{
    struct buf b = BUF_INIT;
    char s[8];
    buf_u8(&b, 7);
    buf_u16(&b, 0x1234);
    buf_u32(&b, 0xdeadbeef);
    buf_u64(&b, 0x0123456789abcdefu);
    buf_str(&b, "hello");
    buf_str(&b, NULL);
    struct rd r = rd_init(b.data, b.len);
    ck_assert_uint_eq(rd_u8(&r), 7);
    ck_assert_uint_eq(rd_u16(&r), 0x1234);
    ck_assert_uint_eq(rd_u32(&r), 0xdeadbeef);
    ck_assert_uint_eq(rd_u64(&r), 0x0123456789abcdefu);
    rd_str(&r, s, sizeof(s));
    ck_assert_str_eq(s, "hello");
    rd_str(&r, s, sizeof(s));
    ck_assert_str_eq(s, "");
    ck_assert(rd_done(&r));
    buf_fini(&b);
}
END_TEST

START_TEST(bytes_never_read_past_the_end)
{
    uint8_t m[] = {200, 0, 0, 0, 'x'};
    char s[256];
    struct rd r = rd_init(m, sizeof(m));
    rd_str(&r, s, sizeof(s));
    ck_assert(r.bad);
    ck_assert_uint_eq(rd_u64(&r), 0);
    uint8_t nul[] = {2, 0, 0, 0, 'x', 0};
    r = rd_init(nul, sizeof(nul));
    rd_str(&r, s, sizeof(s));
    ck_assert_msg(r.bad, "a string with a NUL inside must be refused");
}
END_TEST

START_TEST(map_against_a_plain_array)
{
    enum { KEYS = 500, STEPS = 40000 };
    static void *model[KEYS];
    struct map m;
    map_init(&m);
    unsigned seed = 1;
    size_t n = 0;
    for (int step = 0; step < STEPS; step++) {
        int k = rand_r(&seed) % KEYS;
        char key[16];
        int len = snprintf(key, sizeof(key), "key%d", k);
        if (rand_r(&seed) % 3) {
            void *v = (void *)(uintptr_t)(step + 1);
            n += model[k] == NULL;
            *map_put(&m, key, (size_t)len) = model[k] = v;
        } else {
            ck_assert_ptr_eq(map_remove(&m, key, (size_t)len), model[k]);
            n -= model[k] != NULL;
            model[k] = NULL;
        }
        ck_assert_uint_eq(m.n, n);
    }
    for (int k = 0; k < KEYS; k++) {
        char key[16];
        int len = snprintf(key, sizeof(key), "key%d", k);
        ck_assert_ptr_eq(map_get(&m, key, (size_t)len), model[k]);
    }
    size_t seen = 0;
    for (size_t i = 0; map_next(&m, &i);)
        seen++;
    ck_assert_uint_eq(seen, n);
    map_fini(&m, NULL);
}
END_TEST

START_TEST(parse_numbers)
{
    struct err e = ERR_INIT;
    long v = 5;
    ck_assert_int_eq(parse_int(" 12 ", 0, 100, &v, &e), 0);
    ck_assert_int_eq(v, 12);
    static const char *const bad[] = {"", "x", "1x", "12.5", "101", "-1", "99999999999999999999"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_msg(parse_int(bad[i], 0, 100, &v, &e) == -EINVAL, "'%s' was taken", bad[i]);
    ck_assert_int_eq(v, 12);
    ck_assert_str_eq(e.msg, "99999999999999999999 is out of range (0 to 100)");
}
END_TEST

START_TEST(parse_times)
{
    static const struct {
        const char *text;
        double seconds;
    } good[] = {{"0", 0},       {"1.5", 1.5},  {"500ms", 0.5}, {"15s", 15},
                {"10min", 600}, {"2 h", 7200}, {".5", 0.5},    {"1m", 60},
                {" 3 ", 3},     {"1e9", 1e9},  {"1e17", 1e9},  {"1e308d", 1e9}};
    static const char *const bad[] = {"", "s", "-1", "1q", "1 2", "nan", "inf", "0x10s5", "1e999"};
    double v;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        ck_assert_msg(parse_seconds(good[i].text, &v, NULL) == 0, "'%s'", good[i].text);
        ck_assert_msg(fabs(v - good[i].seconds) < 1e-9, "'%s' gave %g", good[i].text, v);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_msg(parse_seconds(bad[i], &v, NULL) == -EINVAL, "'%s' was taken", bad[i]);
}
END_TEST

START_TEST(parse_node_ranges)
{
    int lo = 0, hi = 0;
    struct err e = ERR_INIT;
    ck_assert_int_eq(parse_range("3", &lo, &hi, NULL), 0);
    ck_assert(lo == 3 && hi == 3);
    ck_assert_int_eq(parse_range("1:4", &lo, &hi, NULL), 0);
    ck_assert(lo == 1 && hi == 4);
    static const char *const bad[] = {"", ":", "1:", ":2", "1:2:3", "0", "0:2", "3:2", "a", "1:b"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_msg(parse_range(bad[i], &lo, &hi, &e) == -EINVAL, "'%s' was taken", bad[i]);
}
END_TEST

START_TEST(parse_did_you_mean)
{
    static const char *const names[] = {"nnodes", "nproc-per-node", "max-restarts", NULL};
    ck_assert_str_eq(parse_nearest("nproc_per_nodes", names), "nproc-per-node");
    ck_assert_str_eq(parse_nearest("nodes", names), "nnodes");
    ck_assert_str_eq(parse_nearest("max-retsarts", names), "max-restarts");
    ck_assert_ptr_null(parse_nearest("bananas", names));
    char long_one[301] = ""; /* a third of its letters would do for any name */
    memset(long_one, 'x', sizeof(long_one) - 1);
    ck_assert_ptr_null(parse_nearest(long_one, names));
}
END_TEST

START_TEST(endpoints)
{
    static const struct {
        const char *text, *host;
        int port;
    } good[] = {{"", "localhost", 7},    {"h", "h", 7},
                {"h:1", "h", 1},         {" node-1.x_y:29400 ", "node-1.x_y", 29400},
                {"[::1]:80", "::1", 80}, {"[fe80::1%eth0]", "fe80::1%eth0", 7},
                {"::1", "::1", 7},       {"10.0.0.1:0", "10.0.0.1", 0}};
    static const char *const bad[] = {
        "h:",  "h:x", "h:65536", "h:-1",          "[::1",        "[::1]x",  "a b",
        "h/x", ":5",  "h:1:2",   "fd77::1:29400", "[h:1]:29400", "::ffff::"};
    char host[HOST_MAX];
    int port;
    struct err e = ERR_INIT;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        ck_assert_msg(endpoint_parse(good[i].text, 7, host, &port, &e) == 0, "%s", e.msg);
        ck_assert_str_eq(host, good[i].host);
        ck_assert_int_eq(port, good[i].port);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_msg(endpoint_parse(bad[i], 7, host, &port, &e) == -EINVAL, "'%s' was taken",
                      bad[i]);
}
END_TEST

START_TEST(addresses)
{
    struct netaddr a, b;
    char ip[ADDR_STRLEN], text[80];
    ck_assert(netaddr_parse_ip(&a, "127.0.1.1", 80));
    ck_assert(netaddr_is_loopback(&a) && netaddr_is_local(&a));
    ck_assert_str_eq(netaddr_format(&a, text, sizeof(text)), "127.0.1.1:80");
    ck_assert(netaddr_parse_ip(&b, "::ffff:127.0.1.1", 81));
    ck_assert(netaddr_is_loopback(&b) && netaddr_same_ip(&a, &b));
    ck_assert_str_eq(netaddr_ip(&b, ip), "127.0.1.1");
    ck_assert(netaddr_parse_ip(&a, "2001:db8::1", 5));
    ck_assert_str_eq(netaddr_format(&a, text, sizeof(text)), "[2001:db8::1]:5");
    ck_assert(!netaddr_is_local(&a) && !netaddr_is_loopback(&a));
    ck_assert(netaddr_parse_ip(&a, "fe80::1%lo", 0) && netaddr_is_link_local(&a));
    static const char *const scopes[][2] = {
        {"fe80::1%va", "fe80::1%eth0"}, {"fe80::1%a-longer-name", "fe80::1%eth0"},
        {"fe80::1", "fe80::1"},         {"node%va", "node%va"},
        {"fd77::1%va", "fd77::1%va"},   {"", ""}};
    for (size_t i = 0; i < ARRAY_LEN(scopes); i++) {
        char words[ADDR_STRLEN];
        strcpy(words, scopes[i][0]);
        netaddr_rescope(words, sizeof(words), "eth0");
        ck_assert_str_eq(words, scopes[i][1]);
    }
    char small[12] = "fe80::1%va"; /* what does not fit is left */
    netaddr_rescope(small, sizeof(small), "eth0");
    ck_assert_str_eq(small, "fe80::1%va");
    ck_assert(!netaddr_parse_ip(&a, "node1", 0));
    struct err e = ERR_INIT;
    ck_assert_int_eq(netaddr_of_interface("lo", &a, &e), 0);
    ck_assert(netaddr_is_loopback(&a));
    ck_assert_int_eq(netaddr_of_interface("nosuch0", &a, &e), -ENODEV);
    ck_assert_ptr_nonnull(strstr(e.msg, "available: lo"));
}
END_TEST

/* A limit binds a process without CAP_IPC_LOCK, and matters where there is an InfiniBand card. */
START_TEST(memlock_that_is_low)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];
    struct rlimit limit;
    char text[256];
    ck_assert_int_eq(syscall(SYS_capget, &header, caps), 0);
    caps[0].effective &= ~(1u << CAP_IPC_LOCK);
    ck_assert_int_eq(syscall(SYS_capset, &header, caps), 0);
    ck_assert_int_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    limit.rlim_cur = 1 << 20;
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    const char *cards = tmppath("infiniband");
    ck_assert(!memlock_is_low(cards, text, sizeof(text)));
    ck_assert_int_eq(mkdir(cards, 0755), 0);
    ck_assert(!memlock_is_low(cards, text, sizeof(text)));
    write_file(tmppath("infiniband/mlx5_0"), "");
    ck_assert(memlock_is_low(cards, text, sizeof(text)));
    ck_assert_str_eq(text, "only 1024 KiB of memory may be locked, which is too little for NCCL "
                           "over InfiniBand: raise the limit (ulimit -l unlimited; systemd: "
                           "LimitMEMLOCK=infinity)");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("core");
    TCase *tc = test_case(s, "core", 10);
    tcase_add_test(tc, err_text_and_context);
    tcase_add_test(tc, too_long_errors_are_marked);
    tcase_add_test(tc, log_escape_shows_controls);
    tcase_add_test(tc, too_long_log_lines_are_marked);
    tcase_add_test(tc, escape_recognises_unfinished_units);
    tcase_add_test(tc, bytes_round_trip);
    tcase_add_test(tc, bytes_never_read_past_the_end);
    tcase_add_test(tc, map_against_a_plain_array);
    tcase_add_test(tc, parse_numbers);
    tcase_add_test(tc, parse_times);
    tcase_add_test(tc, parse_node_ranges);
    tcase_add_test(tc, parse_did_you_mean);
    tcase_add_test(tc, endpoints);
    tcase_add_test(tc, addresses);
    tcase_add_test(tc, memlock_that_is_low);
    return s;
}

TEST_MAIN(suite)
