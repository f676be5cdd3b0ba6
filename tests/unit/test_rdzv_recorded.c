/* The launchers' protocol stays as it was: the messages of a recorded conversation between two
 * launchers of an earlier version are understood, and encoded again to the same bytes. */
#include "tests/lib/preamble.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bytes.h"
#include "rendezvous/rules/rank_table.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/rules/rdzv_peers.h"

#define RECORD "tests/unit/data/launchers.txt"

/* Decodes one body and encodes what was decoded; false: the body is malformed. */
static bool again(int type, struct rd *body, struct buf *out)
{
    struct node_id id;
    struct rdzv_refusal refusal;
    struct rdzv_identity identity;
    struct rdzv_hello hello;
    struct rdzv_status status;
    struct rdzv_view view;
    struct rank_table table;
    struct rdzv_result result;
    struct rdzv_peers peers = {0};
    struct err e = ERR_INIT;
    bool good = false;
    switch (type) {
    case RDZV_MSG_BEAT:
        good = rdzv_get_beat(body, &id);
        if (good)
            rdzv_put_beat(out, &id);
        break;
    case RDZV_MSG_REFUSE:
        good = rdzv_get_refusal(body, &refusal);
        if (good)
            rdzv_put_refusal(out, refusal.retry, refusal.text);
        break;
    case RDZV_MSG_IDENTITY:
        good = rdzv_get_identity(body, &identity);
        if (good)
            rdzv_put_identity(out, &identity);
        break;
    case RDZV_MSG_HELLO:
        good = rdzv_get_hello(body, &hello);
        if (good)
            rdzv_put_hello(out, &hello);
        break;
    case RDZV_MSG_STATUS:
        good = rdzv_get_status(body, &status);
        if (good)
            rdzv_put_status(out, &status);
        break;
    case RDZV_MSG_VIEW:
        good = rdzv_get_view(body, &view);
        if (good) {
            rdzv_put_view(out, &view);
            rdzv_view_fini(&view);
        }
        break;
    case RDZV_MSG_TABLE:
        good = rank_table_decode(body, &table, &e) == 0;
        if (good) {
            rdzv_put_table(out, &table);
            rank_table_fini(&table);
        }
        break;
    case RDZV_MSG_REPORT:
        good = rdzv_get_report(body, &result);
        if (good) {
            rdzv_put_report(out, &result);
            free((void *)result.failures);
        }
        break;
    case RDZV_MSG_PEERS:
        good = rdzv_get_peers(body, &peers);
        if (good) {
            rdzv_put_peers(out, &peers);
            rdzv_peers_fini(&peers);
        }
        break;
    }
    return good;
}

static void add_hex(struct buf *b, const char *hex)
{
    for (unsigned byte; sscanf(hex, "%2x", &byte) == 1; hex += 2)
        buf_u8(b, (uint8_t)byte);
}

START_TEST(an_earlier_version_says_and_understands_the_same)
{
    static char line[8192], hex[8192];
    char sender[16];
    int type, messages = 0, kinds[256] = {0};
    FILE *f = fopen(RECORD, "re");
    ck_assert_msg(f, "%s: not found", RECORD);
    while (fgets(line, sizeof(line), f)) {
        struct buf frame = BUF_INIT, body = BUF_INIT, encoded = BUF_INIT;
        if (line[0] == '#')
            continue;
        ck_assert_int_eq(sscanf(line, "%15s %d %8191s", sender, &type, hex), 3);
        add_hex(&body, hex);
        buf_u32(&frame, (uint32_t)body.len + 1);
        buf_u8(&frame, (uint8_t)type);
        buf_put(&frame, body.data, body.len);
        struct rd r = rd_init(body.data, body.len);
        ck_assert_msg(again(type, &r, &encoded), "not understood: %s", line);
        ck_assert_msg(encoded.len == frame.len && memcmp(encoded.data, frame.data, frame.len) == 0,
                      "encoded otherwise: %s", line);
        buf_fini(&frame);
        buf_fini(&body);
        buf_fini(&encoded);
        kinds[type & 255]++;
        messages++;
    }
    fclose(f);
    ck_assert_int_eq(messages, 24);
    ck_assert_int_eq(kinds[RDZV_MSG_STATUS], 8);
    ck_assert_int_ge(kinds[RDZV_MSG_VIEW], 5);
    ck_assert(kinds[RDZV_MSG_HELLO] && kinds[RDZV_MSG_TABLE] && kinds[RDZV_MSG_REPORT] &&
              kinds[RDZV_MSG_PEERS] && kinds[RDZV_MSG_BEAT] && kinds[RDZV_MSG_REFUSE] &&
              kinds[RDZV_MSG_IDENTITY]);
}
END_TEST

/* A launcher of the recorded version is told that the two differ, and in what. */
START_TEST(the_preamble)
{
    static const uint8_t recorded[RDZV_PREAMBLE_LEN] = {'D', 'L', 'R', '1', 1, 0, 0, 0};
    char how[128];
    struct buf b = BUF_INIT;
    rdzv_put_preamble(&b);
    ck_assert_uint_eq(b.len, sizeof(recorded));
    ck_assert_mem_eq(b.data, PREAMBLE, sizeof(recorded));
    ck_assert_uint_eq(rdzv_get_preamble(b.data), RDZV_PROTOCOL);
    ck_assert_str_eq(protocols_differ(RDZV_PROTOCOL, how, sizeof(how)), "");
    ck_assert_str_eq(
        protocols_differ(rdzv_get_preamble(recorded), how, sizeof(how)),
        test_text("rendezvous 1, not %u; store relay 0, not %u; data of libdlcoll 0, not %u",
                  PROTOCOL_RENDEZVOUS, PROTOCOL_RELAY, PROTOCOL_DATA));
    buf_fini(&b);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("rdzv_recorded");
    TCase *tc = test_case(s, "recorded", 10);
    tcase_add_test(tc, an_earlier_version_says_and_understands_the_same);
    tcase_add_test(tc, the_preamble);
    return s;
}

TEST_MAIN(suite)
