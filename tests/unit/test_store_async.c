/* The store client on the loop: every call, the order of answers, waits that are cancelled, and
 * every way in which a connection does not come about or ends. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/mem.h"
#include "rendezvous/store/store_async.h"
#include "tests/lib/loop.h"
#include "tests/lib/store.h"

static uv_loop_t loop;
static struct test_server *server;
static struct store_async *c;
static struct err e;
static bool opened, closed, inside; /* inside: in a function of the client */
static int open_rc;
static char open_msg[ERR_MSG_MAX];

static void setup(void)
{
    loop_setup(&loop);
    server = server_start(SERVER_THREAD, NULL);
}

static void on_open(void *arg, const struct err *why)
{
    (void)arg;
    ck_assert(!opened && !inside);
    opened = true;
    open_rc = why ? why->code : 0;
    snprintf(open_msg, sizeof(open_msg), "%s", why ? why->msg : "");
}

static void on_closed(void *arg)
{
    (void)arg;
    ck_assert(!closed && !inside);
    closed = true;
}

static void start(const char *host, int port, int timeout_ms)
{
    opened = closed = false;
    inside = true;
    ck_assert_int_eq(store_async_open(&c, &loop, host, port, timeout_ms, on_open, NULL, &e), 0);
    inside = false;
}

static void open_client(void)
{
    start("127.0.0.1", server_port(server), (int)(test_seconds(20) * 1000));
    loop_run_until(&loop, &opened, 20, "the client is connected");
    ck_assert_msg(open_rc == 0, "%s", open_msg);
}

static void close_client(void)
{
    inside = true;
    store_async_close(c, on_closed, NULL);
    inside = false;
    loop_run_until(&loop, &closed, 20, "the client is closed");
}

static void teardown(void)
{
    server_stop(server);
    loop_teardown(&loop);
}

/* --- Answers -----------------------------------------------------------------------------------*/

/* The last answer, copied; and what each request of a row got, in the order of the answers. */
static struct {
    bool done;
    int status;
    int64_t number;
    char text[ERR_MSG_MAX], val[256];
    size_t len, count;
    char items[256];
} last;

static void keep(void *arg, const struct store_answer *a)
{
    (void)arg;
    ck_assert(!inside);
    last.done = true;
    last.status = a->status;
    last.number = a->number;
    snprintf(last.text, sizeof(last.text), "%s", a->text ? a->text : "");
    last.len = a->val.len;
    if (a->val.len < sizeof(last.val))
        snprintf(last.val, sizeof(last.val), "%.*s", (int)a->val.len, (const char *)a->val.p);
    last.count = a->count;
    last.items[0] = '\0';
    struct store_view items = a->items;
    for (size_t i = 0; i < a->count; i++) {
        struct store_view v = store_items_next(&items);
        strncat(strcat(last.items, "<"), (const char *)v.p, v.len);
        strcat(last.items, ">");
    }
}

static const struct store_done kept = {keep, NULL};

static int failed[64], failed_n;

static void count_failure(void *arg, const struct store_answer *a)
{
    (void)arg;
    failed[failed_n++] = a->status;
    ck_assert(a->status == 0 || (a->text && *a->text));
}

static const struct store_done counted = {count_failure, NULL};

/* Makes one request and runs the loop until it is answered. */
#define ASK(call)                                     \
    do {                                              \
        last.done = false;                            \
        inside = true;                                \
        call;                                         \
        inside = false;                               \
        loop_run_until(&loop, &last.done, 20, #call); \
    } while (0)
#define OK(call)                                                     \
    do {                                                             \
        ASK(call);                                                   \
        ck_assert_msg(last.status == 0, "%s: %s", #call, last.text); \
    } while (0)

START_TEST(all_calls)
{
    open_client();
    OK(store_async_set(c, "a", "1", 1, kept));
    OK(store_async_get(c, "a", 1000, kept));
    ck_assert_str_eq(last.val, "1");
    OK(store_async_try_get(c, "a", kept));
    ck_assert_str_eq(last.val, "1");
    ASK(store_async_try_get(c, "missing", kept));
    ck_assert_int_eq(last.status, -ENOENT);
    OK(store_async_set(c, "empty", NULL, 0, kept));
    ASK(store_async_try_get(c, "empty", kept));
    ck_assert_int_eq(last.status, -ENOENT);
    OK(store_async_add(c, "n", -2, kept));
    ck_assert_int_eq(last.number, -2);
    OK(store_async_wait(c, KEYS("a", "n"), 2, 1000, kept));
    OK(store_async_wait(c, NULL, 0, 1000, kept));
    OK(store_async_check(c, KEYS("a", "n"), 2, kept));
    ck_assert_int_eq(last.number, 1);
    OK(store_async_check(c, KEYS("missing"), 1, kept));
    ck_assert_int_eq(last.number, 0);
    OK(store_async_compare_set(c, "a", "1", 1, "2", 1, kept));
    ck_assert_str_eq(last.val, "2");
    OK(store_async_append(c, "a", "34", 2, kept));
    OK(store_async_multi_get(c, KEYS("a", "empty", "n"), 3, 1000, kept));
    ck_assert_str_eq(last.items, "<234><><-2>");
    OK(store_async_multi_set(c, KEYS("x", "y"), (const void *const[]){"X", "YY"},
                             (const size_t[]){1, 2}, 2, kept));
    OK(store_async_num_keys(c, kept));
    ck_assert_int_eq(last.number, 5);
    for (int i = 0; i < 4; i++) {
        OK(store_async_delete(c, ((const char *[]){"a", "empty", "n", "x"})[i], kept));
        ck_assert_int_eq(last.number, 1);
    }
    OK(store_async_delete(c, "x", kept));
    ck_assert_int_eq(last.number, 0);
    OK(store_async_list_keys(c, kept));
    ck_assert_str_eq(last.items, "<y>");
    OK(store_async_queue_push(c, "q", "one", 3, kept));
    OK(store_async_queue_len(c, "q", kept));
    ck_assert_int_eq(last.number, 1);
    OK(store_async_queue_pop(c, "q", 1000, kept));
    ck_assert_str_eq(last.val, "one");
    OK(store_async_barrier(c, "b", 1, 1000, kept));
    close_client();
}
END_TEST

START_TEST(large_values)
{
    size_t n = 40 << 20;
    uint8_t *big = xcalloc(1, n);
    open_client();
    OK(store_async_set(c, "big", big, n, kept));
    OK(store_async_get(c, "big", 10000, kept));
    ck_assert_uint_eq(last.len, n);
    free(big);
    close_client();
}
END_TEST

static int64_t next_number;
static int out_of_order;

static void in_order(void *arg, const struct store_answer *a)
{
    (void)arg;
    last.status = a->status;
    if (a->status || a->number != ++next_number)
        out_of_order++;
    if (next_number == 3000)
        last.done = true;
}

/* Made before the connection is there, all in a row, between others without an answer: each is
 * answered in its turn. */
START_TEST(many_in_a_row)
{
    next_number = 0;
    start("localhost", server_port(server), (int)(test_seconds(20) * 1000));
    last.done = false;
    for (int i = 0; i < 3000; i++) {
        char key[32];
        snprintf(key, sizeof(key), "key%d", i);
        store_async_set(c, key, key, strlen(key), (struct store_done){NULL, NULL});
        store_async_add(c, "n", 1, (struct store_done){in_order, NULL});
    }
    loop_run_until(&loop, &last.done, 20, "all are answered");
    ck_assert_int_eq(out_of_order, 0);
    OK(store_async_num_keys(c, kept));
    ck_assert_int_eq(last.number, 3001);
    close_client();
}
END_TEST

START_TEST(a_wait_holds_up_what_comes_after)
{
    int other = raw_open(server_port(server));
    struct buf b = BUF_INIT;
    open_client();
    next_number = 0;
    store_async_get(c, "k", -1, counted);
    store_async_add(c, "n", 1, (struct store_done){in_order, NULL});
    store_async_wait(c, KEYS("k"), 1, -1, counted);
    loop_turns(&loop, 5);
    put_list(&b, STORE_CHECK, KEYS("n"));
    raw_send(other, &b);
    raw_expect_u8(other, STORE_NOT_READY);
    put_set(&b, STORE_SET, "k", "v");
    raw_send(other, &b);
    OK(store_async_num_keys(c, kept));
    ck_assert_int_eq(failed_n, 2);
    ck_assert_int_eq(failed[0] + failed[1], 0);
    ck_assert_int_eq(next_number, 1);
    ck_assert_int_eq(last.number, 2);
    close(other);
    close_client();
}
END_TEST

START_TEST(waits_end_in_time)
{
    open_client();
    ASK(store_async_get(c, "never", 20, kept));
    ck_assert_int_eq(last.status, -ETIMEDOUT);
    ck_assert_str_eq(last.text, "store: GET never: not there after 20 ms");
    ASK(store_async_wait(c, KEYS("never", "x"), 2, 0, kept));
    ck_assert_int_eq(last.status, -ETIMEDOUT);
    ASK(store_async_barrier(c, "b", 2, 1, kept));
    ck_assert_int_eq(last.status, -ETIMEDOUT);
    ASK(store_async_queue_pop(c, "q", 1, kept));
    ck_assert_int_eq(last.status, -ETIMEDOUT);
    OK(store_async_set(c, "k", "v", 1, kept));
    OK(store_async_get(c, "k", 0, kept)); /* no time, but it is there */
    ck_assert_str_eq(last.val, "v");
    OK(store_async_barrier(c, "b", 2, 1000, kept));
    close_client();
}
END_TEST

START_TEST(requests_above_a_limit_are_not_sent)
{
    static char key[STORE_KEY_MAX + 2];
    memset(key, 'k', STORE_KEY_MAX + 1);
    open_client();
    ASK(store_async_set(c, key, "", 0, kept));
    ck_assert_int_eq(last.status, -EMSGSIZE);
    next_number = 0;
    store_async_add(c, "n", 1, (struct store_done){in_order, NULL});
    store_async_wait(c, (const char *const[]){key}, 1, 10, counted);
    store_async_get(c, key, 10, counted);
    OK(store_async_add(c, "n", 1, kept));
    ck_assert_int_eq(failed_n, 2);
    ck_assert_int_eq(failed[0], -EMSGSIZE);
    ck_assert_int_eq(failed[1], -EMSGSIZE);
    ck_assert_int_eq(next_number, 1);
    ck_assert_int_eq(last.number, 2);
    close_client();
}
END_TEST

/* --- Ends --------------------------------------------------------------------------------------*/

START_TEST(closing_with_requests_under_way)
{
    for (int turns = 0; turns < 6; turns++) {
        failed_n = 0;
        start(turns % 2 ? "localhost" : "127.0.0.1", server_port(server), 10000);
        store_async_wait(c, KEYS("never"), 1, -1, counted);
        store_async_add(c, "n", 1, counted);
        loop_turns(&loop, turns);
        close_client();
        ck_assert_int_eq(failed_n, 2);
        ck_assert_int_eq(failed[0], -ECANCELED);
        ck_assert_int_eq(failed[1], -ECANCELED);
    }
}
END_TEST

static void close_inside(void *arg, const struct store_answer *a)
{
    (void)arg, (void)a;
    store_async_close(c, on_closed, NULL);
}

START_TEST(closing_from_a_callback)
{
    failed_n = 0;
    start("127.0.0.1", server_port(server), 10000);
    store_async_add(c, "n", 1, (struct store_done){close_inside, NULL});
    store_async_add(c, "n", 1, counted);
    loop_run_until(&loop, &closed, 20, "closed");
    ck_assert_int_eq(failed_n, 1);
    ck_assert_int_eq(failed[0], -ECANCELED);
}
END_TEST

START_TEST(the_server_ends)
{
    open_client();
    failed_n = 0;
    store_async_wait(c, KEYS("never"), 1, -1, counted);
    store_async_add(c, "n", 1, counted);
    loop_turns(&loop, 5);
    server_stop(server);
    server = server_start(SERVER_THREAD, NULL);
    ASK(store_async_num_keys(c, kept));
    ck_assert_int_eq(last.status, -ECONNRESET);
    ck_assert_int_eq(failed_n, 2);
    ck_assert_int_eq(failed[0], -ECONNRESET);
    ck_assert_int_eq(failed[1], -ECONNRESET);
    ASK(store_async_num_keys(c, kept)); /* later ones end as well, each once */
    ck_assert_int_eq(last.status, -ECONNRESET);
    close_client();
}
END_TEST

START_TEST(the_server_refuses)
{
    open_client();
    store_async_set(c, "k", "text", 4, counted);
    ASK(store_async_add(c, "k", 1, kept));
    ck_assert_int_eq(last.status, -ECONNRESET);
    ck_assert_str_eq(last.text, "store: ADD k: the server closed the connection");
    close_client();
}
END_TEST

/* --- Odd servers -------------------------------------------------------------------------------*/

/* Opens on a server that plays the script, makes a request, and ends both. */
#define WITH_FAKE(timeout_ms, acts, request)         \
    do {                                             \
        struct fake f_;                              \
        fake_start(&f_, acts, (int)ARRAY_LEN(acts)); \
        start("127.0.0.1", f_.port, timeout_ms);     \
        ASK(request);                                \
        close_client();                              \
        fake_end(&f_);                               \
    } while (0)

START_TEST(answers_to_a_cancel)
{
    static const struct {
        const char *answer;
        bool stay;
        int status;
    } cases[] = {
        {"01", true, -ETIMEDOUT},   {"00 01", true, 0},    {NULL, false, -ECONNRESET},
        {"00", false, -ECONNRESET}, {"07", true, -EPROTO},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct act acts[] = {HELLO, ACT(18, NULL, true), ACT(1, cases[i].answer, cases[i].stay)};
        WITH_FAKE(10000, acts, store_async_wait(c, KEYS("k"), 1, 20, kept));
        ck_assert_int_eq(last.status, cases[i].status);
    }
}
END_TEST

/* Woken for an element that another client takes first, it waits again. That wait is over and
 * cancelled, while the element came after all; and so once more. */
START_TEST(a_pop_that_comes_too_late)
{
    struct act acts[] = {
        HELLO,
        {.take = 18, .say = "00", .stay = true, .first = 0x06},
        {.take = 10, .say = "00 00 00 00 00 00 00 00", .stay = true, .first = 0x0f}, /* POP: none */
        {.take = 18, .say = NULL, .stay = true, .first = 0x06},
        {.take = 1, .say = "00 01", .stay = true, .first = 0x0c}, /* CANCEL */
        {.take = 10, .say = "00 00 00 00 00 00 00 00", .stay = true, .first = 0x0f},
        {.take = 18, .say = NULL, .stay = true, .first = 0x06},
        {.take = 1, .say = "00 01", .stay = true, .first = 0x0c},
        {.take = 10,
         .say = "01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 65",
         .stay = true,
         .first = 0x0f},
    };
    WITH_FAKE(10000, acts, store_async_queue_pop(c, "q", 50, kept));
    ck_assert_int_eq(last.status, 0);
    ck_assert_str_eq(last.val, "e");
}
END_TEST

START_TEST(answers_that_make_no_sense)
{
    static const char *const answers[] = {"FF FF FF FF FF FF FF FF", "01 00 00 40 00 00 00 00",
                                          "00 00 00 00 00 00 00 00 99"};
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        struct act acts[] = {HELLO, ACT(18, "00", true), ACT(10, answers[i], true)};
        WITH_FAKE(10000, acts, store_async_get(c, "k", 1000, kept));
        ck_assert_int_eq(last.status, i == 2 ? 0 : -EPROTO); /* the value, and one byte too much */
    }
}
END_TEST

START_TEST(a_server_that_falls_silent)
{
    struct act acts[] = {HELLO, ACT(18, "00", true), ACT(10, "05 00", true)};
    WITH_FAKE(100, acts, store_async_get(c, "k", 10000, kept));
    ck_assert_int_eq(last.status, -ETIMEDOUT);
    ck_assert_str_eq(last.text, "store: GET k: no answer in time");
}
END_TEST

START_TEST(not_a_store)
{
    struct act acts[] = {ACT(10, "48 54 54 50 2F", true)};
    WITH_FAKE(10000, acts, store_async_add(c, "n", 1, kept));
    ck_assert_int_eq(open_rc, -EPROTO);
    ck_assert_ptr_nonnull(strstr(open_msg, "does not answer as a store"));
    ck_assert_int_eq(last.status, -EPROTO);
    ck_assert_int_eq(store_async_open(&c, &loop, "h", 0, 1, on_open, NULL, &e), -EINVAL);
}
END_TEST

START_TEST(nobody_listens)
{
    int port, fd = listen_anywhere(&port);
    close(fd);
    start("127.0.0.1", port, 100);
    loop_run_until(&loop, &opened, 20, "it is given up");
    ck_assert_int_eq(open_rc, -ETIMEDOUT);
    ck_assert_msg(strstr(open_msg, "Connection refused") != NULL, "%s", open_msg);
    ASK(store_async_add(c, "n", 1, kept));
    ck_assert_int_eq(last.status, -ETIMEDOUT);
    close_client();
    start("no-such-host.invalid", port, 50);
    loop_run_until(&loop, &opened, 30, "it is given up");
    ck_assert_int_eq(open_rc, -ETIMEDOUT);
    close_client();
}
END_TEST

/* It is closed twice, and comes again. */
START_TEST(a_server_that_comes_late)
{
    struct act acts[] = {ACT(10, NULL, false), ACT(0, NULL, false), HELLO,
                         ACT(21, "07 00 00 00 00 00 00 00", true)};
    WITH_FAKE(20000, acts, store_async_add(c, "n123", 1, kept));
    ck_assert_int_eq(last.status, 0);
    ck_assert_int_eq(last.number, 7);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("store_async");
    TCase *tc = test_case(s, "calls", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, all_calls);
    tcase_add_test(tc, large_values);
    tcase_add_test(tc, many_in_a_row);
    tcase_add_test(tc, a_wait_holds_up_what_comes_after);
    tcase_add_test(tc, waits_end_in_time);
    tcase_add_test(tc, requests_above_a_limit_are_not_sent);
    tc = test_case(s, "ends", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, closing_with_requests_under_way);
    tcase_add_test(tc, closing_from_a_callback);
    tcase_add_test(tc, the_server_ends);
    tcase_add_test(tc, the_server_refuses);
    tc = test_case(s, "odd servers", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, answers_to_a_cancel);
    tcase_add_test(tc, a_pop_that_comes_too_late);
    tcase_add_test(tc, answers_that_make_no_sense);
    tcase_add_test(tc, a_server_that_falls_silent);
    tcase_add_test(tc, not_a_store);
    tcase_add_test(tc, nobody_listens);
    tcase_add_test(tc, a_server_that_comes_late);
    return s;
}

TEST_MAIN(suite)
