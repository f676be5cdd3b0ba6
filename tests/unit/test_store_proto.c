/* The store's codec: requests in every dialect at every split, limits, replies, the output chain.
 * The byte vectors are what a torch 2.5 client and server say to each other. */
#include "tests/lib/test.h"

#include <string.h>

#include "core/mem.h"
#include "rendezvous/store/store_session.h"
#include "tests/lib/store.h"

/* --- A session without a socket ----------------------------------------------------------------*/

struct session {
    struct store_shared shared;
    struct store_session s;
};

static void open_session(struct session *x, bool legacy_113)
{
    memset(x, 0, sizeof(*x));
    store_table_init(&x->shared.table);
    store_session_init(&x->s, &x->shared, legacy_113);
}

static void close_session(struct session *x)
{
    store_session_fini(&x->s);
    ck_assert_uint_eq(x->shared.buffered, 0);
    store_table_fini(&x->shared.table);
    ck_assert_uint_eq(x->shared.table.bytes, 0);
}

/* Takes all that is to be sent. */
static struct buf take_output(struct store_session *s)
{
    struct buf b = BUF_INIT;
    struct iovec iov[3];
    size_t n;
    while ((n = store_out_iov(&s->peer.out, iov, 3))) {
        size_t sum = 0;
        for (size_t i = 0; i < n; i++) {
            buf_put(&b, iov[i].iov_base, iov[i].iov_len);
            sum += iov[i].iov_len;
        }
        store_session_sent(s, sum);
    }
    ck_assert_uint_eq(s->peer.out.len, 0);
    return b;
}

static void expect_output(struct store_session *s, const char *hex, const char *what)
{
    struct buf want = BUF_INIT, got = take_output(s);
    put_hex(&want, hex);
    ck_assert_msg(got.len == want.len && (!got.len || memcmp(got.data, want.data, got.len) == 0),
                  "%s: %zu bytes, not %zu, or other ones", what, got.len, want.len);
    buf_fini(&want);
    buf_fini(&got);
}

/* Feeds hex in chunks of `step` bytes. */
static enum store_reason feed_hex(struct session *x, const char *hex, size_t step)
{
    struct buf b = BUF_INIT;
    enum store_reason why = STORE_OK;
    put_hex(&b, hex);
    for (size_t at = 0; at < b.len && !why; at += step)
        why = store_session_feed(&x->s, b.data + at, b.len - at < step ? b.len - at : step);
    buf_fini(&b);
    return why;
}

/* --- Vectors -----------------------------------------------------------------------------------*/

static const struct {
    const char *what, *request, *reply;
} vectors[] = {
    {"connect", "00 CE F7 85 3C", ""},
    {"ping", "0D 92 10 00 00", "92 10 00 00"},
    {"add init/", "04 05 00 00 00 00 00 00 00 69 6E 69 74 2F 01 00 00 00 00 00 00 00",
     "01 00 00 00 00 00 00 00"},
    {"set", "01 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 76", ""},
    {"wait", "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B", "00"},
    {"get", "03 02 00 00 00 00 00 00 00 2F 6B", "01 00 00 00 00 00 00 00 76"},
    {"check",
     "05 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B 02 00 00 00 00 00 00 00 2F 78",
     "01"},
    {"compare_set",
     "02 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 76 01 00 00 00 00 00 00 00 77",
     "01 00 00 00 00 00 00 00 77"},
    {"append", "09 02 00 00 00 00 00 00 00 2F 6B 01 00 00 00 00 00 00 00 78", ""},
    {"multi_get", "0A 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B",
     "02 00 00 00 00 00 00 00 77 78"},
    {"multi_set",
     "0B 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6D 00 00 00 00 00 00 00 00", ""},
    {"numkeys", "07", "03 00 00 00 00 00 00 00"},
    {"delete m", "08 02 00 00 00 00 00 00 00 2F 6D", "01 00 00 00 00 00 00 00"},
    {"delete", "08 02 00 00 00 00 00 00 00 2F 6B", "01 00 00 00 00 00 00 00"},
    {"numkeys again", "07", "01 00 00 00 00 00 00 00"},
    {"list_keys", "11", "01 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 69 6E 69 74 2F"},
    {"queue_push", "0E 01 00 00 00 00 00 00 00 71 01 00 00 00 00 00 00 00 65", ""},
    {"queue_len", "10 01 00 00 00 00 00 00 00 71", "01 00 00 00 00 00 00 00"},
    {"queue_pop", "0F 01 00 00 00 00 00 00 00 71",
     "01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 65"},
    {"queue_pop empty", "0F 01 00 00 00 00 00 00 00 71", "00 00 00 00 00 00 00 00"},
    {"barrier of one", "12 01 00 00 00 00 00 00 00 62 01 00 00 00 00 00 00 00", "00"},
    {"wait that is cancelled", "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2F 6B", ""},
    {"cancel_wait", "0C", "01"},
};

START_TEST(vectors_in_chunks_of_any_size)
{
    struct session x;
    for (size_t step = 1; step < 40; step++) {
        open_session(&x, false);
        for (size_t i = 0; i < ARRAY_LEN(vectors); i++) {
            ck_assert_msg(feed_hex(&x, vectors[i].request, step) == STORE_OK, "%s",
                          vectors[i].what);
            expect_output(&x.s, vectors[i].reply, vectors[i].what);
        }
        close_session(&x);
    }
}
END_TEST

START_TEST(vectors_all_in_one)
{
    struct session x;
    char requests[4096] = "", replies[4096] = "";
    open_session(&x, false);
    for (size_t i = 0; i < ARRAY_LEN(vectors); i++) {
        strcat(strcat(requests, " "), vectors[i].request);
        strcat(strcat(replies, " "), vectors[i].reply);
    }
    ck_assert_int_eq(feed_hex(&x, requests, SIZE_MAX / 2), STORE_OK);
    expect_output(&x.s, replies, "all");
    ck_assert_uint_eq(x.shared.requests, ARRAY_LEN(vectors));
    close_session(&x);
}
END_TEST

/* --- Every command in every dialect ------------------------------------------------------------*/

static struct buf sample_items(bool pairs)
{
    struct buf items = BUF_INIT;
    store_items_put(&items, "one", 3);
    store_items_put(&items, "", 0);
    if (pairs) {
        store_items_put(&items, "two", 3);
        store_items_put(&items, "value", 5);
    }
    return items;
}

static struct store_request sample(enum store_cmd cmd, const struct buf *items)
{
    return (struct store_request){.cmd = cmd,
                                  .key = {(const uint8_t *)"a key", 5},
                                  .expected = {(const uint8_t *)"old", 3},
                                  .val = {(const uint8_t *)"new value", 9},
                                  .number = -1234567890123,
                                  .word = STORE_MAGIC,
                                  .count = 2,
                                  .items = {items->data, items->len}};
}

static void check_view(struct store_view a, struct store_view b, const char *what)
{
    if (a.len != b.len || (a.len && memcmp(a.p, b.p, a.len) != 0))
        ck_abort_msg("%s", what); /* an assertion that holds costs a write, and there are many */
}

/* Compares the fields that the command has. */
static void check_equal(const struct store_request *a, const struct store_request *b,
                        const char *fields)
{
    if (a->cmd != b->cmd)
        ck_abort_msg("%s, not %s", store_cmd_name(b->cmd), store_cmd_name(a->cmd));
    for (; *fields; fields++) {
        if (*fields == 'k')
            check_view(a->key, b->key, "key");
        else if (*fields == 'v')
            check_view(a->val, b->val, "value");
        else if (*fields == 'e')
            check_view(a->expected, b->expected, "expected");
        else if (*fields == 'i')
            ck_assert_int_eq(a->number, b->number);
        else if (*fields == 'u')
            ck_assert_uint_eq(a->word, b->word);
        else {
            ck_assert_uint_eq(a->count, b->count);
            check_view(a->items, b->items, "items");
        }
    }
}

static const struct {
    enum store_cmd cmd;
    const char *fields;
    int opcode[STORE_DIALECTS];
} wire[] = {
    {STORE_VALIDATE, "u", {0, -1, -1}},     {STORE_SET, "kv", {1, 0, 0}},
    {STORE_COMPARE_SET, "kev", {2, 1, 1}},  {STORE_GET, "k", {3, 2, 2}},
    {STORE_ADD, "ki", {4, 3, 3}},           {STORE_CHECK, "K", {5, 4, 4}},
    {STORE_WAIT, "K", {6, 5, 5}},           {STORE_GETNUMKEYS, "", {7, 6, 6}},
    {STORE_DELETE_KEY, "k", {8, 7, 8}},     {STORE_APPEND, "kv", {9, 8, -1}},
    {STORE_MULTI_GET, "K", {10, 9, -1}},    {STORE_MULTI_SET, "P", {11, 10, -1}},
    {STORE_CANCEL_WAIT, "", {12, 11, -1}},  {STORE_PING, "u", {13, -1, -1}},
    {STORE_QUEUE_PUSH, "kv", {14, -1, -1}}, {STORE_QUEUE_POP, "k", {15, -1, -1}},
    {STORE_QUEUE_LEN, "k", {16, -1, -1}},   {STORE_LIST_KEYS, "", {17, -1, -1}},
    {STORE_BARRIER, "ki", {18, -1, -1}},    {STORE_WATCH_KEY, "k", {-1, -1, 7}},
};

/* A decoder that speaks the dialect already. */
static void open_decoder(struct store_decoder *d, enum store_dialect dialect)
{
    struct store_request r;
    store_decoder_init(d, dialect == STORE_113);
    if (dialect == STORE_NEWEST) {
        store_decoder_feed(d, "\x00\xCE\xF7\x85\x3C", 5);
        ck_assert_int_gt(store_decoder_next(d, &r), 0);
        ck_assert_int_eq(r.cmd, STORE_VALIDATE);
    } else {
        store_decoder_feed(d, "\x06", 1);
        ck_assert_int_gt(store_decoder_next(d, &r), 0);
        ck_assert_int_eq(r.cmd, STORE_GETNUMKEYS);
    }
    ck_assert_int_eq(store_decoder_next(d, &r), 0);
    ck_assert_int_eq(d->dialect, dialect);
}

START_TEST(every_command_in_every_dialect)
{
    ck_assert_uint_eq(ARRAY_LEN(wire), STORE_CMDS);
    for (int dialect = 0; dialect < STORE_DIALECTS; dialect++) {
        for (size_t i = 0; i < ARRAY_LEN(wire); i++) {
            ck_assert_int_eq(store_cmd_opcode((enum store_dialect)dialect, wire[i].cmd),
                             wire[i].opcode[dialect]);
            if (wire[i].opcode[dialect] < 0)
                continue;
            struct buf items = sample_items(*wire[i].fields == 'P'), b = BUF_INIT;
            struct store_request r, want = sample(wire[i].cmd, &items);
            store_encode(&b, (enum store_dialect)dialect, &want);
            ck_assert_uint_eq(b.data[0], (unsigned)wire[i].opcode[dialect]);
            for (size_t split = 0; split <= b.len; split++) {
                struct store_decoder d;
                open_decoder(&d, (enum store_dialect)dialect);
                store_decoder_feed(&d, b.data, split);
                if (split < b.len) {
                    ck_assert_int_eq(store_decoder_next(&d, &r), 0);
                    store_decoder_feed(&d, b.data + split, b.len - split);
                }
                ck_assert_int_gt(store_decoder_next(&d, &r), 0);
                check_equal(&want, &r, wire[i].fields);
                ck_assert_int_eq(store_decoder_next(&d, &r), 0);
                store_decoder_fini(&d);
            }
            buf_fini(&b);
            buf_fini(&items);
        }
    }
}
END_TEST

START_TEST(unknown_opcodes)
{
    for (int dialect = 0; dialect < STORE_DIALECTS; dialect++)
        for (int op = 0; op < 256; op++) {
            bool known = false;
            for (size_t i = 0; i < ARRAY_LEN(wire); i++)
                known = known || wire[i].opcode[dialect] == op;
            struct store_decoder d;
            struct store_request r;
            uint8_t byte = (uint8_t)op;
            open_decoder(&d, (enum store_dialect)dialect);
            store_decoder_feed(&d, &byte, 1);
            int rc = store_decoder_next(&d, &r);
            ck_assert_msg(known ? rc >= 0 : rc == -STORE_ERR_OPCODE, "opcode %d: %d", op, rc);
            store_decoder_fini(&d);
        }
}
END_TEST

/* A long random conversation, cut at random places, comes out as it went in. */
START_TEST(random_requests_at_random_splits)
{
    unsigned seed = 1;
    for (int round = 0; round < 200; round++) {
        struct buf b = BUF_INIT, items = sample_items(false), pairs = sample_items(true);
        struct store_request want[64], r;
        struct store_decoder d;
        static uint8_t big[5000];
        size_t got = 0;
        for (size_t i = 0; i < ARRAY_LEN(want); i++) {
            const size_t w = rand_r(&seed) % (ARRAY_LEN(wire) - 1); /* WATCH_KEY is the last */
            want[i] = sample(wire[w].cmd, *wire[w].fields == 'P' ? &pairs : &items);
            want[i].val = (struct store_view){big, rand_r(&seed) % sizeof(big)};
            want[i].word = wire[w].cmd == STORE_VALIDATE ? STORE_MAGIC : (uint32_t)rand_r(&seed);
            store_encode(&b, STORE_NEWEST, &want[i]);
        }
        open_decoder(&d, STORE_NEWEST);
        for (size_t at = 0; at < b.len;) {
            size_t n = 1 + rand_r(&seed) % (round % 2 ? 20 : 9000);
            uint8_t *chunk = xmalloc(n = n < b.len - at ? n : b.len - at);
            memcpy(chunk, b.data + at, n); /* of its own: reading past it is seen */
            store_decoder_feed(&d, chunk, n);
            int rc;
            while ((rc = store_decoder_next(&d, &r)) > 0)
                check_equal(&want[got], &r, wire[r.cmd].fields), got++;
            ck_assert_int_eq(rc, 0);
            free(chunk);
            at += n;
        }
        ck_assert_uint_eq(got, ARRAY_LEN(want));
        store_decoder_fini(&d);
        buf_fini(&b);
        buf_fini(&items);
        buf_fini(&pairs);
    }
}
END_TEST

/* Were a request measured anew for every byte that comes, this would take hours. */
START_TEST(one_byte_at_a_time_is_linear)
{
    struct buf b = BUF_INIT, items = BUF_INIT;
    for (int i = 0; i < 131072; i++)
        store_items_put(&items, "key", 3);
    struct store_request r = {
        .cmd = STORE_CHECK, .count = 131072, .items = {items.data, items.len}};
    store_encode(&b, STORE_NEWEST, &r);
    struct store_decoder d;
    open_decoder(&d, STORE_NEWEST);
    size_t too_soon = 0;
    for (size_t i = 0; i < b.len - 1; i++) {
        store_decoder_feed(&d, b.data + i, 1);
        too_soon += store_decoder_next(&d, &r) != 0;
    }
    ck_assert_uint_eq(too_soon, 0);
    store_decoder_feed(&d, b.data + b.len - 1, 1);
    ck_assert_int_gt(store_decoder_next(&d, &r), 0);
    ck_assert_uint_eq(r.count, 131072);
    ck_assert_int_eq(store_decoder_next(&d, &r), 0);
    ck_assert_uint_eq(d.partial.cap, 0); /* a large buffer is not kept */
    store_decoder_fini(&d);
    buf_fini(&b);
    buf_fini(&items);
}
END_TEST

/* --- Limits ------------------------------------------------------------------------------------*/

/* Feeds the decoder an incomplete request and returns its result; *kept: the memory that it
 * reserved. */
static int begin(const struct buf *b, size_t *kept)
{
    struct store_decoder d;
    struct store_request r;
    open_decoder(&d, STORE_NEWEST);
    store_decoder_feed(&d, b->data, b->len);
    int rc = store_decoder_next(&d, &r);
    *kept = d.partial.cap;
    store_decoder_fini(&d);
    return rc;
}

START_TEST(limits_are_checked_before_the_bytes_come)
{
    static const struct {
        const char *what, *head; /* opcode, and what stands before the number */
        uint64_t max;
        enum store_reason above;
    } limits[] = {
        {"key", "03", STORE_KEY_MAX, STORE_ERR_KEY_LENGTH},
        {"value", "01 01 00 00 00 00 00 00 00 6B", STORE_VALUE_MAX, STORE_ERR_VALUE_LENGTH},
        {"expected value", "02 01 00 00 00 00 00 00 00 6B", STORE_VALUE_MAX,
         STORE_ERR_VALUE_LENGTH},
        {"keys of check", "05", STORE_KEYS_MAX, STORE_ERR_KEY_COUNT},
        {"keys of wait", "06", STORE_KEYS_MAX, STORE_ERR_KEY_COUNT},
        {"keys of multi_get", "0A", STORE_KEYS_MAX, STORE_ERR_KEY_COUNT},
        {"pairs of multi_set", "0B", STORE_KEYS_MAX, STORE_ERR_KEY_COUNT},
        {"key in a list", "06 01 00 00 00 00 00 00 00", STORE_KEY_MAX, STORE_ERR_KEY_LENGTH},
        {"value in a list", "0B 01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 6B",
         STORE_VALUE_MAX, STORE_ERR_VALUE_LENGTH},
    };
    for (size_t i = 0; i < ARRAY_LEN(limits); i++)
        for (int k = 0; k < 5; k++) {
            uint64_t n = (uint64_t[]){limits[i].max, limits[i].max + 1, 1ull << 32, INT64_MAX,
                                      UINT64_MAX}[k];
            struct buf b = BUF_INIT;
            size_t kept;
            put_hex(&b, limits[i].head);
            buf_u64(&b, n);
            int rc = begin(&b, &kept);
            ck_assert_msg(rc == (k ? -(int)limits[i].above : 0), "%s %llu: %d", limits[i].what,
                          (unsigned long long)n, rc);
            ck_assert_uint_le(kept, 256);
            buf_fini(&b);
        }
}
END_TEST

START_TEST(a_call_is_limited_as_a_whole)
{
    struct buf b = BUF_INIT;
    uint8_t *zeros = xcalloc(1, STORE_VALUE_MAX);
    size_t kept;
    /* Two values of half the size still fit, with little to spare. */
    put_hex(&b, "0B 03 00 00 00 00 00 00 00");
    for (int i = 0; i < 2; i++) {
        store_items_put(&b, "k", 1);
        store_items_put(&b, zeros, STORE_VALUE_MAX / 2);
    }
    store_items_put(&b, "k", 1);
    buf_u64(&b, 65000);
    ck_assert_int_eq(begin(&b, &kept), 0);
    b.len -= 8;
    buf_u64(&b, 66000);
    ck_assert_int_eq(begin(&b, &kept), -STORE_ERR_CALL_LENGTH);
    buf_fini(&b);
    free(zeros);
}
END_TEST

/* Few bytes of requests can ask for many of answers. */
START_TEST(answers_to_one_chunk_are_limited)
{
    enum { MARGIN = 1 << 20, KEY = 200 };
    static struct store_session s;
    struct store_shared shared = {.buffered = STORE_BUFFERS_MAX - MARGIN};
    struct buf b = BUF_INIT;
    put_hello(&b);
    for (int i = 0; i < 100; i++) {
        char key[KEY + 1];
        snprintf(key, sizeof(key), "%0*d", KEY, i);
        put_hex(&b, "01 C8 00 00 00 00 00 00 00"); /* SET */
        buf_put(&b, key, KEY);
        put_hex(&b, "00 00 00 00 00 00 00 00");
    }
    store_table_init(&shared.table);
    store_session_init(&s, &shared, false);
    ck_assert_int_eq(store_session_feed(&s, b.data, b.len), STORE_OK);
    ck_assert_uint_eq(shared.table.keys, 100);
    b.len = 0;
    for (int i = 0; i < 10000; i++)
        put_hex(&b, "11"); /* LIST_KEYS */
    ck_assert_int_eq(store_session_feed(&s, b.data, b.len), STORE_ERR_FULL_BUFFERS);
    ck_assert_uint_lt(s.peer.out.bytes.len, MARGIN + 100 * (KEY + 16));
    store_session_fini(&s);
    ck_assert_uint_eq(shared.buffered, STORE_BUFFERS_MAX - MARGIN);
    store_table_fini(&shared.table);
    buf_fini(&b);
}
END_TEST

/* Unfinished requests of all connections together; nobody is refused for a request that fits. */
START_TEST(buffers_are_limited_as_a_whole)
{
    enum { N = 17 };
    static struct store_session s[N];
    struct store_shared shared = {.buffered = 0};
    struct buf b = BUF_INIT;
    put_hello(&b);
    put_hex(&b, "01 01 00 00 00 00 00 00 00 6B 01 00 F0 03 00 00 00 00"); /* SET k, 63 MiB + 1 */
    size_t head = b.len, part = 63 << 20;
    ck_assert(buf_reserve(&b, part));
    memset(b.data + b.len, 'v', part);
    store_table_init(&shared.table);
    for (int i = 0; i < N; i++) {
        store_session_init(&s[i], &shared, false);
        enum store_reason why = store_session_feed(&s[i], b.data, head + part);
        ck_assert_int_eq(why, i < 16 ? STORE_OK : STORE_ERR_FULL_BUFFERS);
    }
    store_session_fini(&s[16]); /* as it would be; the others go on */
    ck_assert_int_eq(store_session_feed(&s[3], "v", 1), STORE_OK);
    ck_assert_uint_eq(shared.table.keys, 1);
    for (int i = 0; i < 16; i++)
        store_session_fini(&s[i]);
    ck_assert_uint_eq(shared.buffered, 0);
    store_table_fini(&shared.table);
    buf_fini(&b);
}
END_TEST

START_TEST(clients_check_their_requests)
{
    static uint8_t bytes[STORE_KEY_MAX + 1];
    struct store_request r = {.cmd = STORE_SET, .key = {bytes, STORE_KEY_MAX}};
    ck_assert_int_eq(store_request_check(&r), STORE_OK);
    r.val.len = STORE_VALUE_MAX;
    ck_assert_int_eq(store_request_check(&r), STORE_OK);
    r.val.len++;
    ck_assert_int_eq(store_request_check(&r), STORE_ERR_VALUE_LENGTH);
    r.val.len = 0;
    r.key.len++;
    ck_assert_int_eq(store_request_check(&r), STORE_ERR_KEY_LENGTH);
    struct buf items = BUF_INIT;
    store_items_put(&items, bytes, STORE_KEY_MAX + 1);
    r = (struct store_request){.cmd = STORE_WAIT, .count = 1, .items = {items.data, items.len}};
    ck_assert_int_eq(store_request_check(&r), STORE_ERR_KEY_LENGTH);
    buf_fini(&items);
    r = (struct store_request){.cmd = STORE_WAIT, .count = STORE_KEYS_MAX + 1};
    ck_assert_int_eq(store_request_check(&r), STORE_ERR_KEY_COUNT);
    r = (struct store_request){.cmd = STORE_COMPARE_SET,
                               .expected = {bytes, STORE_VALUE_MAX / 2},
                               .val = {bytes, STORE_VALUE_MAX / 2 + 70000}};
    ck_assert_int_eq(store_request_check(&r), STORE_ERR_CALL_LENGTH);
    r.val.len -= 10000;
    ck_assert_int_eq(store_request_check(&r), STORE_OK);
}
END_TEST

/* --- Which dialect -----------------------------------------------------------------------------*/

static enum store_dialect dialect_of(const char *hex, bool legacy_113, size_t step, int *rc)
{
    struct store_decoder d;
    struct store_request r;
    struct buf b = BUF_INIT;
    put_hex(&b, hex);
    store_decoder_init(&d, legacy_113);
    for (size_t at = 0; at < b.len; at += step) {
        store_decoder_feed(&d, b.data + at, b.len - at < step ? b.len - at : step);
        while ((*rc = store_decoder_next(&d, &r)) > 0)
            ;
        if (*rc < 0)
            break;
    }
    enum store_dialect dialect = d.known ? d.dialect : STORE_DIALECTS;
    store_decoder_fini(&d);
    buf_fini(&b);
    return dialect;
}

START_TEST(dialects_are_told_apart)
{
    static const struct {
        const char *hex;
        bool newest;
        int rc;
    } first[] = {
        {"00 CE F7 85 3C", true, 0},
        {"00 CE F7 85 3C 0D 01 00 00 00", true, 0},
        /* torch 2.1 and 2.0 begin with ADD init/ */
        {"03 05 00 00 00 00 00 00 00 69 6E 69 74 2F 01 00 00 00 00 00 00 00", false, 0},
        /* or with SET, of a key of 206 bytes: its length begins as the magic number does */
        {"00 CE 00 00 00 00 00 00 00", false, 0},
        {"00 01 00 00 00 00 00 00 00 6B 00 00 00 00 00 00 00 00", false, 0},
        {"00 CE F7 85 3D 00 00 00 00", false, -STORE_ERR_KEY_LENGTH},
        {"47 45 54 20 2F 20 48 54 54 50 2F 31 2E 31", false, -STORE_ERR_OPCODE}, /* HTTP */
        {"16 03 01 02 00 01 00 01 fc 03 03", false, -STORE_ERR_OPCODE},          /* TLS */
        {"53 53 48 2d 32 2e 30", false, -STORE_ERR_OPCODE},                      /* SSH */
    };
    for (size_t i = 0; i < ARRAY_LEN(first); i++)
        for (int legacy_113 = 0; legacy_113 < 2; legacy_113++)
            for (size_t step = 1; step < 12; step++) {
                int rc;
                enum store_dialect d = dialect_of(first[i].hex, legacy_113, step, &rc);
                ck_assert_int_eq(d, first[i].newest ? STORE_NEWEST
                                    : legacy_113    ? STORE_113
                                                    : STORE_21);
                ck_assert_int_eq(rc, first[i].rc);
            }
    int rc;
    ck_assert_int_eq(dialect_of("00 CE F7 85", false, 1, &rc), STORE_DIALECTS); /* cannot know */
}
END_TEST

START_TEST(a_second_hello)
{
    struct session x;
    open_session(&x, false);
    ck_assert_int_eq(feed_hex(&x, "00 CE F7 85 3C 00 CE F7 85 3C 0D 01 02 03 04", 1), STORE_OK);
    expect_output(&x.s, "01 02 03 04", "ping");
    ck_assert_int_eq(feed_hex(&x, "00 CE F7 85 3D", 1), STORE_ERR_MAGIC);
    close_session(&x);
}
END_TEST

/* --- Replies -----------------------------------------------------------------------------------*/

START_TEST(replies_are_measured_at_every_split)
{
    static const struct {
        enum store_cmd cmd;
        size_t count;
        const char *hex;
    } replies[] = {
        {STORE_SET, 0, ""},
        {STORE_CHECK, 2, "01"},
        {STORE_PING, 0, "01 02 03 04"},
        {STORE_ADD, 0, "FF FF FF FF FF FF FF FF"},
        {STORE_GET, 0, "03 00 00 00 00 00 00 00 61 62 63"},
        {STORE_GET, 0, "00 00 00 00 00 00 00 00"},
        {STORE_MULTI_GET, 0, ""},
        {STORE_MULTI_GET, 2, "01 00 00 00 00 00 00 00 61 00 00 00 00 00 00 00 00"},
        {STORE_LIST_KEYS, 0, "00 00 00 00 00 00 00 00"},
        {STORE_LIST_KEYS, 0, "01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 61"},
        {STORE_QUEUE_POP, 0, "00 00 00 00 00 00 00 00"},
        {STORE_QUEUE_POP, 0, "07 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 61"},
    };
    for (size_t i = 0; i < ARRAY_LEN(replies); i++) {
        struct store_scan s;
        struct buf b = BUF_INIT;
        put_hex(&b, replies[i].hex);
        store_scan_reply(&s, replies[i].cmd, replies[i].count);
        for (size_t n = 0; n < b.len; n++)
            ck_assert_int_eq(store_scan(&s, b.data, n), 0);
        buf_u8(&b, 0xEE); /* the next answer */
        ck_assert_int_gt(store_scan(&s, b.data, b.len), 0);
        ck_assert_uint_eq(s.at, b.len - 1);
        buf_fini(&b);
    }
}
END_TEST

START_TEST(replies_of_absurd_length)
{
    static const struct {
        enum store_cmd cmd;
        const char *hex;
    } replies[] = {
        {STORE_GET, "FF FF FF FF FF FF FF FF"},
        {STORE_GET, "01 00 00 40 00 00 00 00"},
        {STORE_LIST_KEYS, "FF FF FF FF FF FF FF FF"},
        {STORE_LIST_KEYS, "01 00 00 00 00 00 00 00 FF FF FF FF FF FF FF FF"},
        {STORE_QUEUE_POP, "01 00 00 00 00 00 00 00 FF FF FF FF FF FF FF 7F"},
    };
    for (size_t i = 0; i < ARRAY_LEN(replies); i++) {
        struct store_scan s;
        struct buf b = BUF_INIT;
        put_hex(&b, replies[i].hex);
        store_scan_reply(&s, replies[i].cmd, 1);
        ck_assert_int_lt(store_scan(&s, b.data, b.len), 0);
        buf_fini(&b);
    }
}
END_TEST

START_TEST(large_heads_leave_the_value_where_it_is)
{
    struct buf b = BUF_INIT, whole = BUF_INIT, items = sample_items(true);
    for (size_t i = 0; i < ARRAY_LEN(wire) - 1; i++) {
        struct store_request r = sample(wire[i].cmd, &items);
        b.len = whole.len = 0;
        struct store_view tail = store_encode_head(&b, STORE_NEWEST, &r);
        buf_put(&b, tail.p, tail.len);
        store_encode(&whole, STORE_NEWEST, &r);
        ck_assert_uint_eq(b.len, whole.len);
        ck_assert_mem_eq(b.data, whole.data, b.len);
        if (wire[i].cmd == STORE_SET)
            ck_assert_ptr_eq(tail.p, r.val.p);
    }
    buf_fini(&b);
    buf_fini(&whole);
    buf_fini(&items);
}
END_TEST

/* --- The output chain --------------------------------------------------------------------------*/

/* Values of all sizes between small replies, sent in pieces of any size, arrive in order. */
START_TEST(output_in_pieces_of_any_size)
{
    unsigned seed = 3;
    for (int round = 0; round < 100; round++) {
        struct store_out o;
        struct buf want = BUF_INIT, got = BUF_INIT;
        size_t charged = 0;
        store_out_init(&o);
        for (int i = 0; i < 60; i++) {
            size_t n = rand_r(&seed) % (rand_r(&seed) % 2 ? 10 : 3 * STORE_REF_MIN);
            struct store_blob *b = store_blob_new(n, &charged);
            for (size_t k = 0; k < n; k++)
                b->data[k] = (uint8_t)(k * 31 + (size_t)i);
            b->len = n;
            store_out_blob(&o, b);
            store_out_u8(&o, (uint8_t)i);
            put_bytes(&want, b->data, n);
            buf_u8(&want, (uint8_t)i);
            store_blob_unref(b); /* the chain keeps it alive */
            while (o.len && rand_r(&seed) % 3 == 0) {
                struct iovec iov[4];
                size_t pieces = store_out_iov(&o, iov, 1 + rand_r(&seed) % 4), sent = 0;
                for (size_t p = 0; p < pieces; p++) {
                    size_t some = p + 1 < pieces ? iov[p].iov_len
                                                 : (size_t)rand_r(&seed) % (iov[p].iov_len + 1);
                    buf_put(&got, iov[p].iov_base, some);
                    sent += some;
                }
                store_out_sent(&o, sent);
            }
        }
        struct iovec iov[200];
        size_t pieces = store_out_iov(&o, iov, 200), rest = o.len;
        for (size_t p = 0; p < pieces; p++)
            buf_put(&got, iov[p].iov_base, iov[p].iov_len);
        store_out_sent(&o, rest);
        ck_assert_uint_eq(got.len, want.len);
        ck_assert_mem_eq(got.data, want.data, got.len);
        ck_assert_uint_eq(charged, 0);
        store_out_fini(&o);
        buf_fini(&want);
        buf_fini(&got);
    }
}
END_TEST

START_TEST(output_that_never_runs_dry_does_not_grow)
{
    struct store_out o;
    static uint8_t line[1000];
    store_out_init(&o);
    for (int i = 0; i < 100000; i++) {
        store_out_bytes(&o, line, sizeof(line));
        if (o.len > 4 * sizeof(line))
            store_out_sent(&o, sizeof(line) + 8);
    }
    ck_assert_uint_lt(o.bytes.cap, 1 << 20);
    store_out_fini(&o);
}
END_TEST

START_TEST(unsent_output_is_released)
{
    struct store_out o;
    size_t charged = 0;
    store_out_init(&o);
    struct store_blob *b = store_blob_new(STORE_REF_MIN, &charged);
    b->len = STORE_REF_MIN;
    store_out_blob(&o, b);
    store_out_blob(&o, b);
    store_out_sent(&o, STORE_REF_MIN);
    store_blob_unref(b);
    ck_assert_uint_eq(charged, store_blob_cost(STORE_REF_MIN));
    store_out_fini(&o);
    ck_assert_uint_eq(charged, 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("store_proto");
    TCase *tc = test_case(s, "codec", 60);
    tcase_add_test(tc, vectors_in_chunks_of_any_size);
    tcase_add_test(tc, vectors_all_in_one);
    tcase_add_test(tc, every_command_in_every_dialect);
    tcase_add_test(tc, unknown_opcodes);
    tcase_add_test(tc, random_requests_at_random_splits);
    tcase_add_test(tc, one_byte_at_a_time_is_linear);
    tcase_add_test(tc, limits_are_checked_before_the_bytes_come);
    tcase_add_test(tc, a_call_is_limited_as_a_whole);
    tcase_add_test(tc, buffers_are_limited_as_a_whole);
    tcase_add_test(tc, answers_to_one_chunk_are_limited);
    tcase_add_test(tc, clients_check_their_requests);
    tcase_add_test(tc, dialects_are_told_apart);
    tcase_add_test(tc, a_second_hello);
    tcase_add_test(tc, replies_are_measured_at_every_split);
    tcase_add_test(tc, replies_of_absurd_length);
    tcase_add_test(tc, large_heads_leave_the_value_where_it_is);
    tcase_add_test(tc, output_in_pieces_of_any_size);
    tcase_add_test(tc, output_that_never_runs_dry_does_not_grow);
    tcase_add_test(tc, unsent_output_is_released);
    return s;
}

TEST_MAIN(suite)
