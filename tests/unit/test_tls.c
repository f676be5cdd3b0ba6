#include "core/tls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "tests/lib/test.h"

/* Two ends and what is on its way between them. */
struct pair {
    struct tls *t[2];
    struct buf wire[2]; /* from t[i] */
    struct buf got[2];
    int rc[2];
    struct err e[2];
};

static struct tls_key key_of(const char *secret)
{
    struct tls_key k;
    ck_assert_int_eq(tls_load(NULL), 0);
    ck_assert_int_eq(tls_key_derive(&k, secret, strlen(secret), "test", NULL), 0);
    return k;
}

static void start(struct pair *p, const char *client, const char *server)
{
    struct tls_key a = key_of(client), b = key_of(server);
    *p = (struct pair){.wire = {BUF_INIT, BUF_INIT}, .got = {BUF_INIT, BUF_INIT}};
    ck_assert_int_eq(tls_new(&p->t[0], TLS_CLIENT, &a, &p->wire[0], &p->e[0]), 0);
    ck_assert_int_eq(tls_new(&p->t[1], TLS_SERVER, &b, &p->wire[1], &p->e[1]), 0);
    ck_assert_uint_gt(p->wire[0].len, 0);
    ck_assert_uint_eq(p->wire[1].len, 0);
}

/* Carries bytes, `step` at a time, until none is left. */
static void carry(struct pair *p, size_t step)
{
    while (p->wire[0].len || p->wire[1].len) {
        for (int i = 0; i < 2; i++) {
            struct buf *w = &p->wire[i];
            size_t n = w->len < step ? w->len : step;
            if (n && p->rc[!i] == 0)
                p->rc[!i] = tls_feed(p->t[!i], w->data, n, &p->got[!i], &p->wire[!i], &p->e[!i]);
            buf_consume(w, n);
        }
    }
}

static void end(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        tls_free(p->t[i]);
        buf_fini(&p->wire[i]);
        buf_fini(&p->got[i]);
    }
}

START_TEST(both_ways_in_any_pieces)
{
    size_t steps[] = {1, 7, 100, 100000};
    char *big = malloc(300000);
    for (size_t i = 0; i < 300000; i++)
        big[i] = (char)(i * 7 + i / 251);
    for (size_t s = 0; s < 4; s++) {
        size_t n = steps[s] < 1000 ? 20000 : 300000;
        struct pair p;
        start(&p, "secret", "secret");
        carry(&p, steps[s]);
        ck_assert(tls_established(p.t[0]) && tls_established(p.t[1]));
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(tls_encrypt(p.t[i], big, n, &p.wire[i], NULL), 0);
            ck_assert_ptr_null(memmem(p.wire[i].data, p.wire[i].len, big + 1000, 32));
        }
        carry(&p, steps[s]);
        for (int i = 0; i < 2; i++) {
            ck_assert_uint_eq(p.got[i].len, n);
            ck_assert_mem_eq(p.got[i].data, big, n);
        }
        end(&p);
    }
    free(big);
}
END_TEST

START_TEST(another_key)
{
    struct pair p;
    start(&p, "secret", "secret ");
    carry(&p, 4096);
    ck_assert(!tls_established(p.t[0]) && !tls_established(p.t[1]));
    ck_assert_int_eq(p.rc[1], -EACCES);
    ck_assert_int_eq(p.rc[0], -EACCES); /* by the alert */
    ck_assert_str_eq(p.e[0].msg, "the two sides have different keys");
    ck_assert_uint_eq(p.got[0].len + p.got[1].len, 0);
    end(&p);
}
END_TEST

/* A server that knows no keys of this kind ends the handshake by an alert; so does one with another
 * key. Neither is more than a word in the clear, but they are not the same word. */
START_TEST(alerts_in_the_clear)
{
    static const struct {
        uint8_t alert;
        int rc;
    } cases[] = {{40, -EPROTO}, {70, -EPROTO}, {47, -EACCES}, {51, -EACCES}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint8_t record[] = {0x15, 3, 3, 0, 2, 2, cases[i].alert};
        struct pair p;
        start(&p, "secret", "secret");
        p.wire[0].len = 0;
        buf_put(&p.wire[1], record, sizeof(record));
        carry(&p, 4096);
        ck_assert_int_eq(p.rc[0], cases[i].rc);
        end(&p);
    }
}
END_TEST

START_TEST(no_tls_at_all)
{
    const char *texts[] = {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\xff\xff\0\0\0",
                           "\x16\x03\x01\x00\x05hello", "DLR1\0\0\0\1"};
    for (size_t i = 0; i < 4; i++) {
        struct pair p;
        start(&p, "secret", "secret");
        p.wire[0].len = 0;
        buf_put(&p.wire[0], texts[i], i == 0 ? strlen(texts[0]) : 8);
        carry(&p, 4096);
        ck_assert(!tls_established(p.t[1]));
        ck_assert_int_eq(p.rc[1], i == 1 ? -EPROTO : p.rc[1]);
        ck_assert_uint_eq(p.got[1].len, 0);
        end(&p);
    }
}
END_TEST

/* Any one bit that is turned on the way ends the connection; nothing wrong comes through. */
START_TEST(records_changed_in_transit)
{
    for (size_t at = 0; at < 60; at++) {
        struct pair p;
        start(&p, "secret", "secret");
        carry(&p, 4096);
        ck_assert_int_eq(
            tls_encrypt(p.t[0], "a message of 32 bytes of content", 32, &p.wire[0], NULL), 0);
        if (at >= p.wire[0].len) {
            end(&p);
            break;
        }
        p.wire[0].data[at] ^= 0x10;
        carry(&p, 4096);
        ck_assert(p.rc[1] < 0 || p.got[1].len == 0);
        end(&p);
    }
}
END_TEST

/* A recorded handshake cannot be replayed. */
START_TEST(replayed)
{
    struct pair p, q;
    start(&p, "secret", "secret");
    struct buf record = BUF_INIT;
    buf_put(&record, p.wire[0].data, p.wire[0].len);
    carry(&p, 4096);
    size_t hello = record.len;
    ck_assert_int_eq(tls_encrypt(p.t[0], "join", 4, &p.wire[0], NULL), 0);
    buf_put(&record, p.wire[0].data, p.wire[0].len);
    start(&q, "secret", "secret");
    q.rc[1] = tls_feed(q.t[1], record.data, hello, &q.got[1], &q.wire[1], &q.e[1]);
    if (q.rc[1] == 0)
        q.rc[1] = tls_feed(q.t[1], record.data + hello, record.len - hello, &q.got[1], &q.wire[1],
                           &q.e[1]);
    ck_assert_int_eq(q.rc[1], -EPROTO);
    ck_assert_uint_eq(q.got[1].len, 0);
    buf_fini(&record);
    end(&p);
    end(&q);
}
END_TEST

START_TEST(purposes)
{
    struct tls_key a, b, c;
    ck_assert_int_eq(tls_load(NULL), 0);
    tls_key_derive(&a, "s", 1, "one", NULL);
    tls_key_derive(&b, "s", 1, "two", NULL);
    tls_key_derive(&c, "s", 1, "one", NULL);
    ck_assert_mem_ne(&a, &b, sizeof(a));
    ck_assert_mem_eq(&a, &c, sizeof(a));
    /* RFC 4231, test case 2 */
    static const uint8_t want[4] = {0x5b, 0xdc, 0xc1, 0x46};
    tls_key_derive(&a, "Jefe", 4, "what do ya want for nothing?", NULL);
    ck_assert_mem_eq(&a, want, 4);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("tls");
    TCase *tc = tcase_create("tls");
    tcase_add_test(tc, both_ways_in_any_pieces);
    tcase_add_test(tc, another_key);
    tcase_add_test(tc, alerts_in_the_clear);
    tcase_add_test(tc, no_tls_at_all);
    tcase_add_test(tc, records_changed_in_transit);
    tcase_add_test(tc, replayed);
    tcase_add_test(tc, purposes);
    suite_add_tcase(s, tc);
    return s;
}

TEST_MAIN(suite)
