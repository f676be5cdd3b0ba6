/* The key table: each rule by itself, then random requests of several peers against a model of it
 * that is as simple as can be, then its limits, its cost, and every allocation failing in turn. */
#include "tests/lib/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/store/store_table.h"
#include "tests/lib/store.h"

/* --- Failing allocations -----------------------------------------------------------------------*/

#if SANITIZED
#define CAN_FAIL_MALLOC 0
#else
#define CAN_FAIL_MALLOC 1
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
static long fail_in; /* the n-th allocation from now on fails, and all after it; 0: none */

static bool failing(void)
{
    return fail_in && (fail_in == 1 || --fail_in == 1);
}

void *malloc(size_t n)
{
    return failing() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return failing() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return failing() ? NULL : __libc_realloc(p, n);
}
#endif

/* --- Peers -------------------------------------------------------------------------------------*/

#define PEERS 4

static struct store_table table;
static struct store_peer peers[PEERS];

static void setup(void)
{
    store_table_init(&table);
    for (int i = 0; i < PEERS; i++)
        store_peer_init(&peers[i]);
}

static void teardown(void)
{
    for (int i = 0; i < PEERS; i++)
        store_peer_fini(&table, &peers[i]);
    store_table_fini(&table);
    ck_assert_uint_eq(table.bytes, 0);
}

static enum store_reason apply(int peer, struct buf *b)
{
    struct store_decoder d;
    struct store_request r;
    store_decoder_init(&d, false);
    struct buf hello = BUF_INIT;
    put_hello(&hello);
    buf_put(&hello, b->data, b->len);
    buf_fini(b);
    store_decoder_feed(&d, hello.data, hello.len);
    if (store_decoder_next(&d, &r) <= 0 || store_decoder_next(&d, &r) <= 0)
        ck_abort_msg("not a request"); /* an assertion that holds costs a write */
    enum store_reason why = store_table_apply(&table, &peers[peer], &r);
    store_decoder_fini(&d);
    buf_fini(&hello);
    return why;
}

static struct buf output(struct store_peer *p)
{
    struct buf b = BUF_INIT;
    struct iovec iov[8];
    size_t n;
    while ((n = store_out_iov(&p->out, iov, 8))) {
        size_t sum = 0;
        for (size_t i = 0; i < n; i++) {
            buf_put(&b, iov[i].iov_base, iov[i].iov_len);
            sum += iov[i].iov_len;
        }
        store_out_sent(&p->out, sum);
    }
    return b;
}

static void drain(int peer)
{
    struct buf b = output(&peers[peer]);
    buf_fini(&b);
}

/* The peer was sent exactly this since it was last asked. */
static void expect(int peer, struct buf *want)
{
    struct buf got = output(&peers[peer]);
    if (got.len != want->len || (got.len && memcmp(got.data, want->data, got.len) != 0))
        ck_abort_msg("peer %d: %zu bytes came, not %zu, or other ones", peer, got.len, want->len);
    buf_fini(&got);
    buf_fini(want);
}

static void expect_nothing(int peer)
{
    expect(peer, &(struct buf)BUF_INIT);
}

static void expect_u8(int peer, uint8_t v)
{
    struct buf b = BUF_INIT;
    buf_u8(&b, v);
    expect(peer, &b);
}

static void expect_i64(int peer, int64_t v)
{
    struct buf b = BUF_INIT;
    buf_u64(&b, (uint64_t)v);
    expect(peer, &b);
}

static void expect_value(int peer, const char *v)
{
    struct buf b = BUF_INIT;
    put_bytes(&b, v, strlen(v));
    expect(peer, &b);
}

#define OK(peer, ...)                                 \
    do {                                              \
        struct buf b_ = BUF_INIT;                     \
        __VA_ARGS__;                                  \
        ck_assert_int_eq(apply(peer, &b_), STORE_OK); \
    } while (0)
#define BAD(peer, reason, ...)                      \
    do {                                            \
        struct buf b_ = BUF_INIT;                   \
        __VA_ARGS__;                                \
        ck_assert_int_eq(apply(peer, &b_), reason); \
    } while (0)

static void set(int peer, const char *key, const char *val)
{
    OK(peer, put_set(&b_, STORE_SET, key, val));
}

static void wait_for(int peer, const char *const *keys)
{
    OK(peer, put_list(&b_, STORE_WAIT, keys));
}

static void expect_get(const char *key, const char *val)
{
    OK(3, put_key(&b_, STORE_GET, key));
    expect_value(3, val);
}

static void expect_ready(int peer)
{
    ck_assert_ptr_eq(store_table_next_ready(&table), &peers[peer]);
}

static void expect_nobody_ready(void)
{
    ck_assert_ptr_null(store_table_next_ready(&table));
}

/* --- Rules -------------------------------------------------------------------------------------*/

START_TEST(values)
{
    set(0, "a", "1");
    expect_nothing(0); /* SET has no answer */
    expect_get("a", "1");
    set(0, "a", "a longer one");
    expect_get("a", "a longer one");
    set(0, "a", "");
    expect_get("a", "");
    OK(0, put_list(&b_, STORE_CHECK, KEYS("a")));
    expect_u8(0, STORE_READY); /* empty, but there */
    expect_get("missing", "");
    OK(0, put_list(&b_, STORE_CHECK, KEYS("missing", "a")));
    expect_u8(0, STORE_NOT_READY);
    OK(0, put_list(&b_, STORE_CHECK, KEYS(NULL)));
    expect_u8(0, STORE_READY);
    set(0, "", "the empty key");
    expect_get("", "the empty key");
}
END_TEST

START_TEST(appending)
{
    OK(0, put_set(&b_, STORE_APPEND, "a", "one"));
    for (int i = 0; i < 1000; i++)
        OK(0, put_set(&b_, STORE_APPEND, "a", "x"));
    OK(0, put_set(&b_, STORE_APPEND, "a", ""));
    expect_nothing(0);
    char want[1100] = "one";
    memset(want + 3, 'x', 1000);
    expect_get("a", want);
}
END_TEST

/* A reader that has not been sent the value yet gets it as it was. */
START_TEST(values_on_their_way_do_not_change)
{
    char before[STORE_REF_MIN + 1] = "";
    memset(before, 'b', STORE_REF_MIN);
    set(0, "a", before);
    OK(1, put_key(&b_, STORE_GET, "a"));
    OK(0, put_set(&b_, STORE_APPEND, "a", "more"));
    set(0, "a", "other");
    expect_value(1, before);
    set(0, "a", before);
    OK(1, put_key(&b_, STORE_GET, "a"));
    OK(0, put_key(&b_, STORE_DELETE_KEY, "a"));
    expect_value(1, before);
}
END_TEST

START_TEST(adding)
{
    OK(0, put_number(&b_, STORE_ADD, "n", 5));
    expect_i64(0, 5);
    expect_get("n", "5");
    OK(0, put_number(&b_, STORE_ADD, "n", -8));
    expect_i64(0, -3);
    expect_get("n", "-3");
    OK(0, put_number(&b_, STORE_ADD, "n", 0));
    expect_i64(0, -3);
    set(0, "n", "9223372036854775807");
    OK(0, put_number(&b_, STORE_ADD, "n", 1));
    expect_i64(0, INT64_MIN); /* around */
    expect_get("n", "-9223372036854775808");
    OK(0, put_number(&b_, STORE_ADD, "n", 0));
    expect_i64(0, INT64_MIN);
    static const char *const numbers[] = {" \t12", "+12", "12abc", "012", "12 13"};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        set(0, "n", numbers[i]);
        OK(0, put_number(&b_, STORE_ADD, "n", 1));
        expect_i64(0, 13);
    }
    static const char *const others[] = {
        "abc", "", "-", "+-1", " ", "9223372036854775808", "-9223372036854775809"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        set(0, "n", others[i]);
        BAD(1, STORE_ERR_NOT_A_NUMBER, put_number(&b_, STORE_ADD, "n", 1));
        BAD(1, STORE_ERR_NOT_A_NUMBER, put_number(&b_, STORE_BARRIER, "n", 2));
        expect_get("n", others[i]);
    }
}
END_TEST

START_TEST(compare_and_set_in_four_cases)
{
    OK(0, put_compare(&b_, "k", "not empty", "new"));
    expect_value(0, "not empty"); /* as torch's server answers */
    OK(0, put_list(&b_, STORE_CHECK, KEYS("k")));
    expect_u8(0, STORE_NOT_READY);
    OK(0, put_compare(&b_, "k", "", "first"));
    expect_value(0, "first");
    expect_get("k", "first");
    OK(0, put_compare(&b_, "k", "other", "second"));
    expect_value(0, "first");
    OK(0, put_compare(&b_, "k", "", "second"));
    expect_value(0, "first");
    OK(0, put_compare(&b_, "k", "first", "second"));
    expect_value(0, "second");
    expect_get("k", "second");
    set(0, "k", "");
    OK(0, put_compare(&b_, "k", "", "third"));
    expect_value(0, "third");
}
END_TEST

START_TEST(several_at_once)
{
    OK(0, put_pairs(&b_, KEYS("a", "1", "b", "", "a", "2")));
    expect_nothing(0);
    OK(0, put_list(&b_, STORE_MULTI_GET, KEYS("b", "a", "missing", "a")));
    struct buf want = BUF_INIT;
    put_bytes(&want, "", 0);
    put_bytes(&want, "2", 1);
    put_bytes(&want, "", 0);
    put_bytes(&want, "2", 1);
    expect(0, &want);
    OK(0, put_list(&b_, STORE_MULTI_GET, KEYS(NULL)));
    expect_nothing(0);
}
END_TEST

START_TEST(counting_and_listing_and_deleting)
{
    OK(0, put_plain(&b_, STORE_LIST_KEYS));
    expect_i64(0, 0);
    set(0, "a", "1");
    OK(0, put_set(&b_, STORE_QUEUE_PUSH, "q", "1")); /* queues do not count */
    wait_for(1, KEYS("w"));                          /* nor does what is waited for */
    OK(0, put_plain(&b_, STORE_GETNUMKEYS));
    expect_i64(0, 1);
    OK(0, put_plain(&b_, STORE_LIST_KEYS));
    struct buf want = BUF_INIT;
    buf_u64(&want, 1);
    put_bytes(&want, "a", 1);
    expect(0, &want);
    OK(0, put_key(&b_, STORE_DELETE_KEY, "q"));
    expect_i64(0, 0);
    OK(0, put_key(&b_, STORE_DELETE_KEY, "w"));
    expect_i64(0, 0);
    OK(0, put_key(&b_, STORE_DELETE_KEY, "a"));
    expect_i64(0, 1);
    OK(0, put_key(&b_, STORE_DELETE_KEY, "a"));
    expect_i64(0, 0);
    OK(0, put_plain(&b_, STORE_GETNUMKEYS));
    expect_i64(0, 0);
    OK(0, put_key(&b_, STORE_QUEUE_LEN, "q"));
    expect_i64(0, 1);
}
END_TEST

START_TEST(every_way_to_store_wakes)
{
    for (int way = 0; way < 5; way++) {
        char key[8];
        snprintf(key, sizeof(key), "k%d", way);
        wait_for(0, KEYS(key));
        wait_for(1, KEYS(key));
        expect_nothing(0);
        expect_nobody_ready();
        if (way == 0)
            set(2, key, "1");
        else if (way == 1)
            OK(2, put_number(&b_, STORE_ADD, key, 0));
        else if (way == 2)
            OK(2, put_set(&b_, STORE_APPEND, key, ""));
        else if (way == 3)
            OK(2, put_compare(&b_, key, "", ""));
        else
            OK(2, put_pairs(&b_, KEYS("x", "", key, "")));
        drain(2);
        expect_ready(0);
        expect_ready(1);
        expect_nobody_ready();
        expect_u8(0, STORE_STOP_WAITING);
        expect_u8(1, STORE_STOP_WAITING);
        set(2, key, "2"); /* once */
        expect_nothing(0);
    }
}
END_TEST

START_TEST(what_does_not_wake)
{
    wait_for(0, KEYS("k"));
    OK(1, put_compare(&b_, "k", "something", "new"));
    OK(1, put_key(&b_, STORE_GET, "k"));
    OK(1, put_key(&b_, STORE_DELETE_KEY, "k"));
    OK(1, put_list(&b_, STORE_CHECK, KEYS("k")));
    set(1, "kk", "");
    expect_nobody_ready();
    expect_nothing(0);
}
END_TEST

START_TEST(waiting_for_several)
{
    set(0, "there", "1");
    wait_for(1, KEYS(NULL));
    expect_u8(1, STORE_STOP_WAITING);
    wait_for(1, KEYS("there", "there"));
    expect_u8(1, STORE_STOP_WAITING);
    wait_for(1, KEYS("a", "there", "b", "a", "a")); /* some of them again and again */
    expect_nothing(1);
    set(0, "a", "1");
    expect_nobody_ready();
    OK(0, put_key(&b_, STORE_DELETE_KEY, "a")); /* it has come all the same */
    set(0, "b", "1");
    expect_ready(1);
    expect_u8(1, STORE_STOP_WAITING);
    set(0, "a", "1");
    expect_nobody_ready();
}
END_TEST

START_TEST(cancelling)
{
    OK(1, put_plain(&b_, STORE_CANCEL_WAIT)); /* there is nothing to cancel */
    expect_u8(1, STORE_CANCELED);
    wait_for(1, KEYS("a", "b"));
    set(0, "a", "1");
    OK(1, put_plain(&b_, STORE_CANCEL_WAIT));
    expect_u8(1, STORE_CANCELED);
    set(0, "b", "1");
    expect_nobody_ready();
    wait_for(1, KEYS("c"));
    set(0, "c", "1");
    OK(1, put_plain(&b_, STORE_CANCEL_WAIT)); /* too late: both answers come */
    expect(1, &(struct buf){(uint8_t *)memcpy(xmalloc(2), "\0\1", 2), 2, 2, false});
    wait_for(1, KEYS("d"));
    set(0, "d", "1");
    expect_u8(1, STORE_STOP_WAITING);
}
END_TEST

START_TEST(a_second_wait_replaces_the_first)
{
    wait_for(1, KEYS("a", "b", "c"));
    wait_for(1, KEYS("d"));
    set(0, "a", "");
    set(0, "b", "");
    set(0, "c", "");
    expect_nobody_ready();
    set(0, "d", "");
    expect_u8(1, STORE_STOP_WAITING);
}
END_TEST

START_TEST(a_peer_that_goes_while_it_waits)
{
    wait_for(1, KEYS("a", "b", "a"));
    wait_for(2, KEYS("a"));
    store_peer_fini(&table, &peers[1]);
    store_peer_init(&peers[1]);
    set(0, "a", "1");
    expect_ready(2);
    expect_nobody_ready();
    wait_for(1, KEYS("c"));
    set(0, "c", "1");
    store_peer_fini(&table, &peers[1]); /* woken, and gone before it was told */
    store_peer_init(&peers[1]);
    expect_nobody_ready();
}
END_TEST

START_TEST(queues)
{
    OK(0, put_key(&b_, STORE_QUEUE_POP, "q"));
    expect_i64(0, 0);
    OK(0, put_key(&b_, STORE_QUEUE_LEN, "q"));
    expect_i64(0, 0);
    OK(0, put_set(&b_, STORE_QUEUE_PUSH, "q", "first"));
    OK(0, put_set(&b_, STORE_QUEUE_PUSH, "q", ""));
    expect_nothing(0);
    OK(0, put_key(&b_, STORE_QUEUE_LEN, "q"));
    expect_i64(0, 2);
    OK(0, put_list(&b_, STORE_CHECK, KEYS("q")));
    expect_u8(0, STORE_READY);
    OK(0, put_key(&b_, STORE_QUEUE_POP, "q"));
    struct buf want = BUF_INIT;
    buf_u64(&want, 2);
    put_bytes(&want, "first", 5);
    expect(0, &want);
    expect_get("q", ""); /* it is no key */
    set(0, "q", "the key of that name");
    OK(0, put_key(&b_, STORE_QUEUE_POP, "q"));
    buf_u64(&want, 1);
    put_bytes(&want, "", 0);
    expect(0, &want);
    OK(0, put_key(&b_, STORE_QUEUE_POP, "q"));
    expect_i64(0, 0);
    expect_get("q", "the key of that name");
}
END_TEST

START_TEST(a_push_wakes_who_has_waited_longest)
{
    wait_for(2, KEYS("q"));
    wait_for(0, KEYS("q"));
    wait_for(1, KEYS("q"));
    OK(3, put_set(&b_, STORE_QUEUE_PUSH, "q", "1"));
    expect_ready(2);
    expect_nobody_ready();
    OK(3, put_set(&b_, STORE_QUEUE_PUSH, "q", "2"));
    expect_ready(0);
    set(3, "q", "a key wakes all");
    expect_ready(1);
    expect_nobody_ready();
}
END_TEST

START_TEST(barriers)
{
    wait_for(3, KEYS("b"));
    OK(0, put_number(&b_, STORE_BARRIER, "b", 3));
    expect_nothing(0);
    expect_nobody_ready(); /* the WAIT is not woken before the barrier is complete */
    OK(1, put_number(&b_, STORE_BARRIER, "b", 3));
    OK(2, put_number(&b_, STORE_BARRIER, "b", 3));
    expect_u8(2, STORE_STOP_WAITING);
    expect_ready(3);
    expect_ready(0);
    expect_ready(1);
    expect_nobody_ready();
    for (int i = 0; i < 4; i++)
        if (i != 2)
            expect_u8(i, STORE_STOP_WAITING);
    expect_get("b", "3");
    OK(0, put_number(&b_, STORE_BARRIER, "b", 3)); /* it stays complete */
    expect_u8(0, STORE_STOP_WAITING);
    expect_get("b", "4");
    OK(0, put_number(&b_, STORE_BARRIER, "none", 0));
    expect_u8(0, STORE_STOP_WAITING);
}
END_TEST

START_TEST(a_cancelled_barrier_has_counted)
{
    for (int i = 0; i < 2; i++) {
        OK(i, put_number(&b_, STORE_BARRIER, "b", 3));
        OK(i, put_plain(&b_, STORE_CANCEL_WAIT));
        expect_u8(i, STORE_CANCELED);
    }
    OK(2, put_number(&b_, STORE_BARRIER, "b", 3));
    expect_u8(2, STORE_STOP_WAITING);
    expect_nobody_ready();
    expect_get("b", "3");
}
END_TEST

static void watch(int peer, const char *key)
{
    struct store_request r = {.cmd = STORE_WATCH_KEY, .key = {(const uint8_t *)key, strlen(key)}};
    ck_assert_int_eq(store_table_apply(&table, &peers[peer], &r), STORE_OK);
    expect_u8(peer, STORE_WATCHING);
}

static void expect_told(int peer, uint8_t kind, const char *key, const char *before,
                        const char *after)
{
    struct buf b = BUF_INIT;
    buf_u8(&b, kind);
    put_bytes(&b, key, strlen(key));
    put_bytes(&b, before, strlen(before));
    put_bytes(&b, after, strlen(after));
    expect_ready(peer);
    expect(peer, &b);
}

START_TEST(watching)
{
    watch(0, "k");
    set(1, "k", "1");
    expect_told(0, STORE_KEY_CREATED, "k", "", "1");
    set(1, "k", "22");
    expect_told(0, STORE_KEY_UPDATED, "k", "1", "22");
    OK(1, put_number(&b_, STORE_ADD, "k", 1));
    expect_told(0, STORE_KEY_UPDATED, "k", "22", "23");
    OK(1, put_compare(&b_, "k", "23", "x"));
    expect_told(0, STORE_KEY_UPDATED, "k", "23", "x");
    OK(1, put_key(&b_, STORE_DELETE_KEY, "k"));
    expect_told(0, STORE_KEY_DELETED, "k", "x", "");
    store_peer_fini(&table, &peers[0]);
    store_peer_init(&peers[0]);
    set(1, "k", "nobody is told");
    expect_nobody_ready();
}
END_TEST

/* --- A naive model -----------------------------------------------------------------------------*/

#define MODEL_KEYS 6
#define MODEL_LEN  40

struct model_queue {
    char val[64][MODEL_LEN];
    int n;
};

static struct {
    bool there[MODEL_KEYS];
    char val[MODEL_KEYS][MODEL_LEN];
    struct model_queue queue[MODEL_KEYS];
    struct {
        int need[MODEL_KEYS]; /* how often its wait still names the key */
        bool waiting;
        long since;
        struct buf out;
    } peer[PEERS];
    long clock;
} model;

static const char *const model_keys[MODEL_KEYS] = {"", "a", "bb", "counter", "queue/1", "x"};

static bool model_exists(int k)
{
    return model.there[k] || model.queue[k].n;
}

static void model_satisfy(int p, int k)
{
    int left = 0;
    model.peer[p].need[k] = 0;
    for (int i = 0; i < MODEL_KEYS; i++)
        left += model.peer[p].need[i];
    if (left)
        return;
    model.peer[p].waiting = false;
    buf_u8(&model.peer[p].out, 0);
}

static void model_wake(int k)
{
    for (int p = 0; p < PEERS; p++)
        if (model.peer[p].waiting && model.peer[p].need[k])
            model_satisfy(p, k);
}

/* A push counts one naming of the key down, of the peer that has waited longest. */
static void model_wake_one(int k)
{
    int best = -1;
    for (int p = 0; p < PEERS; p++)
        if (model.peer[p].waiting && model.peer[p].need[k] &&
            (best < 0 || model.peer[p].since < model.peer[best].since))
            best = p;
    if (best < 0)
        return;
    int left = --model.peer[best].need[k];
    for (int i = 0; i < MODEL_KEYS; i++)
        left += i == k ? 0 : model.peer[best].need[i];
    if (left)
        return;
    model.peer[best].waiting = false;
    buf_u8(&model.peer[best].out, 0);
}

static void model_set(int k, const char *val)
{
    model.there[k] = true;
    if (val != model.val[k])
        strcpy(model.val[k], val);
    model_wake(k);
}

static void model_forget(int p)
{
    model.peer[p].waiting = false;
    memset(model.peer[p].need, 0, sizeof(model.peer[p].need));
}

static void model_wait(int p, const int *keys, int n)
{
    int missing = 0;
    model_forget(p);
    for (int i = 0; i < n; i++)
        if (!model_exists(keys[i]))
            missing++, model.peer[p].need[keys[i]]++;
    if (missing == 0) {
        buf_u8(&model.peer[p].out, 0);
        return;
    }
    model.peer[p].waiting = true;
    model.peer[p].since = ++model.clock;
}

static bool model_number(int k, long long *v)
{
    char *end;
    *v = 0;
    if (!model.there[k])
        return true;
    *v = strtoll(model.val[k], &end, 10);
    return end != model.val[k];
}

/* One random request, to the table and to the model. */
static void random_request(unsigned *seed)
{
    static const char *const vals[] = {"", "1", "-7", "text", "a longer value of some bytes"};
    int p = rand_r(seed) % PEERS, k = rand_r(seed) % MODEL_KEYS, rc = STORE_OK;
    const char *key = model_keys[k], *val = vals[rand_r(seed) % ARRAY_LEN(vals)];
    struct buf *out = &model.peer[p].out, b = BUF_INIT;
    long long number;
    switch (rand_r(seed) % 14) {
    case 0:
        put_set(&b, STORE_SET, key, val);
        model_set(k, val);
        break;
    case 1: {
        const char *old = vals[rand_r(seed) % ARRAY_LEN(vals)];
        put_compare(&b, key, old, val);
        if (model.there[k] ? strcmp(model.val[k], old) == 0 : !*old) {
            model_set(k, val);
            put_bytes(out, val, strlen(val));
        } else {
            const char *now = model.there[k] ? model.val[k] : old;
            put_bytes(out, now, strlen(now));
        }
        break;
    }
    case 2:
        put_key(&b, STORE_GET, key);
        put_bytes(out, model.val[k], model.there[k] ? strlen(model.val[k]) : 0);
        break;
    case 3:
        put_number(&b, STORE_ADD, key, 3);
        if (model_number(k, &number)) {
            char text[MODEL_LEN];
            snprintf(text, sizeof(text), "%lld", number + 3);
            buf_u64(out, (uint64_t)(number + 3));
            model_set(k, text);
        } else {
            rc = STORE_ERR_NOT_A_NUMBER;
        }
        break;
    case 4:
        put_list(&b, STORE_CHECK, KEYS(key, "a"));
        buf_u8(out, !(model_exists(k) && model_exists(1)));
        break;
    case 5:
    case 6: {
        int keys[3] = {k, rand_r(seed) % MODEL_KEYS, rand_r(seed) % MODEL_KEYS};
        put_list(&b, STORE_WAIT,
                 KEYS(model_keys[keys[0]], model_keys[keys[1]], model_keys[keys[2]]));
        model_wait(p, keys, 3);
        break;
    }
    case 7: {
        int n = 0;
        put_plain(&b, STORE_GETNUMKEYS);
        for (int i = 0; i < MODEL_KEYS; i++)
            n += model.there[i];
        buf_u64(out, (uint64_t)n);
        break;
    }
    case 8:
        put_key(&b, STORE_DELETE_KEY, key);
        buf_u64(out, model.there[k]);
        model.there[k] = false;
        break;
    case 9:
        put_set(&b, STORE_APPEND, key, "+");
        if (model.there[k] && strlen(model.val[k]) + 2 > MODEL_LEN) {
            buf_fini(&b);
            return;
        }
        if (!model.there[k])
            model.val[k][0] = '\0';
        model_set(k, strcat(model.val[k], "+"));
        break;
    case 10:
        put_plain(&b, STORE_CANCEL_WAIT);
        model_forget(p);
        buf_u8(out, 1);
        break;
    case 11:
        if (model.queue[k].n == 64)
            return;
        put_set(&b, STORE_QUEUE_PUSH, key, val);
        strcpy(model.queue[k].val[model.queue[k].n++], val);
        model_wake_one(k);
        break;
    case 12: {
        struct model_queue *q = &model.queue[k];
        put_key(&b, STORE_QUEUE_POP, key);
        buf_u64(out, (uint64_t)q->n);
        if (q->n) {
            put_bytes(out, q->val[0], strlen(q->val[0]));
            memmove(q->val[0], q->val[1], sizeof(q->val[0]) * (size_t)--q->n);
        }
        break;
    }
    case 13: {
        int64_t world = 1 + rand_r(seed) % 4;
        put_number(&b, STORE_BARRIER, key, world);
        model_forget(p);
        if (!model_number(k, &number)) {
            rc = STORE_ERR_NOT_A_NUMBER;
            break;
        }
        model.there[k] = true;
        snprintf(model.val[k], MODEL_LEN, "%lld", ++number);
        if (number >= world) {
            buf_u8(out, 0);
            model_wake(k);
        } else {
            model.peer[p].waiting = true;
            model.peer[p].need[k] = 1;
            model.peer[p].since = ++model.clock;
        }
        break;
    }
    }
    int got = (int)apply(p, &b);
    if (got != rc)
        ck_abort_msg("%s, not %s", store_reason_text((enum store_reason)got),
                     store_reason_text((enum store_reason)rc));
}

START_TEST(like_the_model)
{
    unsigned seed = (unsigned)_i * 7919 + 1;
    for (int step = 0; step < 5000; step++) {
        random_request(&seed);
        for (int p = 0; p < PEERS; p++) {
            struct buf want = model.peer[p].out;
            model.peer[p].out = (struct buf)BUF_INIT;
            if (peers[p].out.len != want.len)
                ck_abort_msg("seed %d, step %d", _i, step);
            expect(p, &want);
        }
        while (store_table_next_ready(&table))
            ;
        if (rand_r(&seed) % 50 == 0) { /* one of them goes, and another comes */
            int p = rand_r(&seed) % PEERS;
            model_forget(p);
            store_peer_fini(&table, &peers[p]);
            store_peer_init(&peers[p]);
        }
    }
    /* Nothing is left behind by what is gone. */
    for (int p = 0; p < PEERS; p++)
        OK(p, put_plain(&b_, STORE_CANCEL_WAIT));
    for (int k = 0; k < MODEL_KEYS; k++) {
        OK(0, put_key(&b_, STORE_DELETE_KEY, model_keys[k]));
        for (; model.queue[k].n; model.queue[k].n--)
            OK(0, put_key(&b_, STORE_QUEUE_POP, model_keys[k]));
    }
    for (int p = 0; p < PEERS; p++)
        drain(p);
    ck_assert_uint_eq(table.names.n, 0);
    ck_assert_uint_eq(table.keys, 0);
    ck_assert_uint_eq(table.bytes, 0);
}
END_TEST

/* --- Limits ------------------------------------------------------------------------------------*/

static enum store_reason store_bytes(int peer, enum store_cmd cmd, const char *key,
                                     const uint8_t *val, size_t len)
{
    struct store_request r = {
        .cmd = cmd, .key = {(const uint8_t *)key, strlen(key)}, .val = {val, len}};
    return store_table_apply(&table, &peers[peer], &r);
}

START_TEST(a_million_names)
{
    char key[16];
    int stored = 0; /* an assertion for each would take longer than the rest */
    for (int i = 0; i < 1000000; i++) {
        snprintf(key, sizeof(key), "%d", i);
        stored += store_bytes(0, STORE_SET, key, NULL, 0) == STORE_OK;
    }
    ck_assert_int_eq(stored, 1000000);
    BAD(1, STORE_ERR_FULL_KEYS, put_set(&b_, STORE_SET, "one more", ""));
    BAD(1, STORE_ERR_FULL_KEYS, put_number(&b_, STORE_ADD, "one more", 1));
    BAD(1, STORE_ERR_FULL_KEYS, put_set(&b_, STORE_APPEND, "one more", ""));
    BAD(1, STORE_ERR_FULL_KEYS, put_set(&b_, STORE_QUEUE_PUSH, "one more", ""));
    BAD(1, STORE_ERR_FULL_KEYS, put_compare(&b_, "one more", "", ""));
    BAD(1, STORE_ERR_FULL_KEYS, put_number(&b_, STORE_BARRIER, "one more", 2));
    BAD(1, STORE_ERR_FULL_KEYS, put_pairs(&b_, KEYS("one more", "")));
    BAD(1, STORE_ERR_FULL_KEYS, put_list(&b_, STORE_WAIT, KEYS("one more")));
    store_peer_fini(&table, &peers[1]); /* as the connection would be */
    store_peer_init(&peers[1]);
    set(0, "999999", "those that are there still change"); /* and others go on */
    expect_get("999999", "those that are there still change");
    OK(0, put_key(&b_, STORE_DELETE_KEY, "7"));
    expect_i64(0, 1);
    set(0, "one more", "");
}
END_TEST

START_TEST(a_gibibyte)
{
    uint8_t *val = xcalloc(1, STORE_VALUE_MAX);
    size_t len = STORE_VALUE_MAX - 4096;
    char key[16];
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof(key), "%d", i);
        ck_assert_int_eq(store_bytes(0, STORE_SET, key, val, len), STORE_OK);
    }
    ck_assert_uint_le(table.bytes, STORE_BYTES_MAX);
    ck_assert_int_eq(store_bytes(1, STORE_SET, "more", val, 100000), STORE_ERR_FULL_BYTES);
    ck_assert_int_eq(store_bytes(1, STORE_QUEUE_PUSH, "more", val, 100000), STORE_ERR_FULL_BYTES);
    ck_assert_int_eq(store_bytes(1, STORE_APPEND, "1", val, 1000), STORE_ERR_FULL_BYTES);
    ck_assert_uint_eq(table.names.n, 16); /* what was refused left nothing */
    expect_nobody_ready();
    /* A reader holds the value although its key is gone: it still counts. */
    OK(2, put_key(&b_, STORE_GET, "3"));
    OK(0, put_key(&b_, STORE_DELETE_KEY, "3"));
    ck_assert_int_eq(store_bytes(1, STORE_SET, "more", val, len / 2), STORE_ERR_FULL_BYTES);
    drain(2);
    ck_assert_int_eq(store_bytes(1, STORE_SET, "more", val, len / 2), STORE_OK);
    free(val);
}
END_TEST

START_TEST(appending_has_an_end)
{
    uint8_t *val = xcalloc(1, STORE_VALUE_MAX);
    ck_assert_int_eq(store_bytes(0, STORE_SET, "a", val, STORE_VALUE_MAX), STORE_OK);
    ck_assert_int_eq(store_bytes(0, STORE_APPEND, "a", val, 0), STORE_OK);
    ck_assert_int_eq(store_bytes(0, STORE_APPEND, "a", val, 1), STORE_ERR_VALUE_LENGTH);
    free(val);
}
END_TEST

START_TEST(an_answer_has_an_end)
{
    uint8_t *val = xcalloc(1, STORE_VALUE_MAX);
    const char *keys[19] = {NULL};
    for (int i = 0; i < 17; i++)
        keys[i] = "a";
    store_bytes(0, STORE_SET, "a", val, STORE_VALUE_MAX);
    size_t before = table.bytes;
    BAD(1, STORE_ERR_REPLY_LENGTH, put_list(&b_, STORE_MULTI_GET, keys));
    ck_assert_uint_eq(table.bytes, before); /* nothing was copied */
    free(val);
}
END_TEST

START_TEST(watches_have_a_limit_and_must_be_read)
{
    struct store_request r = {.cmd = STORE_WATCH_KEY, .key = {(const uint8_t *)"k", 1}};
    unsigned watches = 0;
    while (store_table_apply(&table, &peers[0], &r) == STORE_OK)
        watches++;
    ck_assert_uint_eq(watches, STORE_WATCHES_MAX);
    ck_assert_int_eq(store_table_apply(&table, &peers[0], &r), STORE_ERR_WATCHES);
    watch(1, "other");
    uint8_t *val = xcalloc(1, 1 << 20);
    for (int i = 0; i < 200 && !peers[1].violation; i++)
        ck_assert_int_eq(store_bytes(2, STORE_SET, "other", val, 1 << 20), STORE_OK);
    ck_assert_int_eq(peers[1].violation, STORE_ERR_STALLED);
    ck_assert_uint_lt(peers[1].out.len, STORE_UNREAD_MAX + (4 << 20));
    expect_ready(1);
    free(val);
}
END_TEST

/* However many watch, what a large value takes is there once. */
START_TEST(a_watched_value_is_kept_once)
{
    enum { N = 50, LEN = 1 << 20 };
    struct store_request r = {.cmd = STORE_WATCH_KEY, .key = {(const uint8_t *)"k", 1}};
    static struct store_peer many[N];
    uint8_t *val = xcalloc(1, LEN);
    for (int i = 0; i < N; i++) {
        store_peer_init(&many[i]);
        ck_assert_int_eq(store_table_apply(&table, &many[i], &r), STORE_OK);
    }
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(store_bytes(0, STORE_SET, "k", val, LEN), STORE_OK);
    for (int i = 0; i < N; i++) {
        ck_assert_uint_gt(many[i].out.len, 3u * LEN); /* "" and it, it and it */
        ck_assert_uint_lt(many[i].out.bytes.cap, 4096);
        store_peer_fini(&table, &many[i]);
    }
    ck_assert_uint_lt(table.bytes, 2u * LEN);
    free(val);
}
END_TEST

/* --- Cost --------------------------------------------------------------------------------------*/

/* Ten times as much takes about ten times as long, not a hundred times: the deadline of the test
 * case is far below what a quadratic one needs. */
START_TEST(many_waiters_of_one_key)
{
    enum { N = 200000 };
    struct store_peer *many = xmalloc(N * sizeof(*many));
    struct store_request wait = {.cmd = STORE_WAIT, .count = 1};
    struct buf items = BUF_INIT;
    store_items_put(&items, "k", 1);
    wait.items = (struct store_view){items.data, items.len};
    int parked = 0, woken = 0, told = 0;
    for (int i = 0; i < N; i++) {
        store_peer_init(&many[i]);
        parked += store_table_apply(&table, &many[i], &wait) == STORE_OK;
    }
    set(0, "k", "1");
    for (int i = 0; i < N; i++)
        woken += store_table_next_ready(&table) == &many[i];
    expect_nobody_ready();
    for (int i = 0; i < N; i++) {
        told += many[i].out.len == 1;
        store_peer_fini(&table, &many[i]);
    }
    ck_assert_int_eq(parked, N);
    ck_assert_int_eq(woken, N);
    ck_assert_int_eq(told, N);
    free(many);
    buf_fini(&items);
}
END_TEST

START_TEST(dropping_a_peer_with_many_waits)
{
    struct buf items = BUF_INIT;
    char key[16];
    for (int i = 0; i < 131072; i++)
        store_items_put(&items, key, (size_t)snprintf(key, sizeof(key), "%d", i));
    struct store_request wait = {
        .cmd = STORE_WAIT, .count = 131072, .items = {items.data, items.len}};
    for (int round = 0; round < 10; round++) {
        for (int p = 0; p < PEERS; p++)
            ck_assert_int_eq(store_table_apply(&table, &peers[p], &wait), STORE_OK);
        for (int p = 0; p < PEERS; p++) {
            store_peer_fini(&table, &peers[p]);
            store_peer_init(&peers[p]);
        }
        ck_assert_uint_eq(table.names.n, 0);
        ck_assert_uint_eq(table.bytes, 0);
    }
    buf_fini(&items);
}
END_TEST

START_TEST(steady_state_allocates_nothing)
{
#if CAN_FAIL_MALLOC
    struct store_request add = {.cmd = STORE_ADD, .key = {(const uint8_t *)"n", 1}, .number = 1};
    struct store_request put = {.cmd = STORE_SET,
                                .key = {(const uint8_t *)"k", 1},
                                .val = {(const uint8_t *)"some value", 10}};
    struct store_request get = {.cmd = STORE_GET, .key = {(const uint8_t *)"k", 1}};
    bool refused = false; /* ck_assert itself allocates */
    for (int i = 0; i < 1000; i++) {
        if (i == 10)
            fail_in = 1;
        refused = refused || store_table_apply(&table, &peers[0], &add) ||
                  store_table_apply(&table, &peers[0], &put) ||
                  store_table_apply(&table, &peers[0], &get);
        store_out_sent(&peers[0].out, peers[0].out.len);
    }
    fail_in = 0;
    ck_assert(!refused);
#else
    test_skip("allocations are the sanitizer's");
#endif
}
END_TEST

/* Every allocation fails in turn: the peer that asked is refused, the table stays whole. */
START_TEST(out_of_memory)
{
#if CAN_FAIL_MALLOC
    static uint8_t big[2 * STORE_REF_MIN];
    static const struct store_view key = {(const uint8_t *)"k", 1}, val = {big, sizeof(big)};
    struct buf items = BUF_INIT, pairs = BUF_INIT;
    for (int i = 0; i < 40; i++) {
        store_items_put(&items, &i, sizeof(i));
        store_items_put(&pairs, &i, sizeof(i));
        store_items_put(&pairs, "value", 5);
    }
    struct store_view list = {items.data, items.len};
    const struct store_request script[] = {
        {.cmd = STORE_SET, .key = key, .val = val},
        {.cmd = STORE_GET, .key = key},
        {.cmd = STORE_APPEND, .key = key, .val = val},
        {.cmd = STORE_WAIT, .count = 40, .items = list},
        {.cmd = STORE_CANCEL_WAIT},
        {.cmd = STORE_MULTI_SET, .count = 40, .items = {pairs.data, pairs.len}},
        {.cmd = STORE_MULTI_GET, .count = 40, .items = list},
        {.cmd = STORE_ADD, .key = {(const uint8_t *)"n", 1}, .number = 1},
        {.cmd = STORE_QUEUE_PUSH, .key = key, .val = val},
        {.cmd = STORE_QUEUE_POP, .key = key},
        {.cmd = STORE_WATCH_KEY, .key = {(const uint8_t *)"w", 1}},
        {.cmd = STORE_SET, .key = {(const uint8_t *)"w", 1}, .val = val},
        {.cmd = STORE_LIST_KEYS},
        {.cmd = STORE_BARRIER, .key = {(const uint8_t *)"b", 1}, .number = 2},
    };
    bool refused = true;
    for (long nth = 1; refused; nth++) {
        ck_assert_int_lt(nth, 10000);
        store_table_init(&table);
        store_peer_init(&peers[0]);
        refused = false;
        fail_in = nth + 1;
        for (size_t i = 0; i < ARRAY_LEN(script) && !refused; i++) {
            enum store_reason why = store_table_apply(&table, &peers[0], &script[i]);
            refused = why != STORE_OK;
            if (refused && why != STORE_ERR_MEMORY)
                fail_in = 0, ck_abort_msg("refused for: %s", store_reason_text(why));
        }
        fail_in = 0;
        store_peer_fini(&table, &peers[0]);
        store_table_fini(&table);
        ck_assert_uint_eq(table.bytes, 0);
    }
    buf_fini(&items);
    buf_fini(&pairs);
    store_peer_init(&peers[0]);
#else
    test_skip("allocations are the sanitizer's");
#endif
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("store_table");
    TCase *tc = test_case(s, "rules", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, values);
    tcase_add_test(tc, appending);
    tcase_add_test(tc, values_on_their_way_do_not_change);
    tcase_add_test(tc, adding);
    tcase_add_test(tc, compare_and_set_in_four_cases);
    tcase_add_test(tc, several_at_once);
    tcase_add_test(tc, counting_and_listing_and_deleting);
    tcase_add_test(tc, every_way_to_store_wakes);
    tcase_add_test(tc, what_does_not_wake);
    tcase_add_test(tc, waiting_for_several);
    tcase_add_test(tc, cancelling);
    tcase_add_test(tc, a_second_wait_replaces_the_first);
    tcase_add_test(tc, a_peer_that_goes_while_it_waits);
    tcase_add_test(tc, queues);
    tcase_add_test(tc, a_push_wakes_who_has_waited_longest);
    tcase_add_test(tc, barriers);
    tcase_add_test(tc, a_cancelled_barrier_has_counted);
    tcase_add_test(tc, watching);
    tcase_add_loop_test(tc, like_the_model, 0, 20);
    tc = test_case(s, "limits", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_million_names);
    tcase_add_test(tc, a_gibibyte);
    tcase_add_test(tc, appending_has_an_end);
    tcase_add_test(tc, an_answer_has_an_end);
    tcase_add_test(tc, watches_have_a_limit_and_must_be_read);
    tcase_add_test(tc, a_watched_value_is_kept_once);
    tc = test_case(s, "cost", 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, many_waiters_of_one_key);
    tcase_add_test(tc, dropping_a_peer_with_many_waits);
    tcase_add_test(tc, steady_state_allocates_nothing);
    tcase_add_test(tc, out_of_memory);
    return s;
}

TEST_MAIN(suite)
