/* How a rank reads another rank's flight recorder about an operation that both should be in. */
#include "tests/lib/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "collectives/base/recorder.h"

enum { GROUP = 7 };

static struct recorder g_recorder;
static struct segment_local g_line;

/* The one of exactly that number. */
static bool found(uint64_t group, uint64_t seq, struct op_signature *c)
{
    uint64_t at = seq;
    return recorder_find(&g_line, group, &at, c) && at == seq;
}

static void set_up(void)
{
    memset(&g_line, 0, sizeof(g_line));
    recorder_init(&g_recorder, &g_line);
}

static uint64_t begin(uint64_t group, uint64_t seq, enum call_kind kind)
{
    static const char name[sizeof(((struct segment_op *)NULL)->group_name)] = "";
    struct op_signature c = {.kind = (uint8_t)kind, .dtype = DLCOLL_F32, .count = 12};
    if (call_rooted(kind))
        c.root = 3;
    return recorder_begin(&g_recorder, group, name, seq, &c, 48, 0);
}

START_TEST(an_operation_is_found_by_its_number)
{
    struct op_signature c;
    uint64_t first = begin(GROUP, 1, CALL_ALL_REDUCE);
    recorder_end(&g_recorder, first, 0);
    begin(GROUP, 2, CALL_BROADCAST);
    begin(0, 3, CALL_BARRIER);
    ck_assert(found(GROUP, 1, &c));
    ck_assert(sig_equal(
        &c, &(struct op_signature){
                .kind = CALL_ALL_REDUCE, .dtype = DLCOLL_F32, .op = DLCOLL_SUM, .count = 12}));
    ck_assert(found(GROUP, 2, &c));
    ck_assert(
        sig_equal(&c, &(struct op_signature){
                          .kind = CALL_BROADCAST, .dtype = DLCOLL_F32, .root = 3, .count = 12}));
    ck_assert(found(0, 3, &c) && c.kind == CALL_BARRIER);
    ck_assert(!found(GROUP, 3, &c));
    ck_assert(!found(0, 1, &c));
}
END_TEST

/* Each kind is recorded as itself, except messages, and the barrier that consists of messages,
 * which are counted apart. */
START_TEST(every_kind_is_recorded_as_itself)
{
    struct op_signature c;
    for (int kind = CALL_NONE + 1; kind < CALL_KINDS; kind++) {
        bool message = kind == CALL_SEND || kind == CALL_RECV || kind == CALL_BATCH ||
                       kind == CALL_PROBE || kind == CALL_MONITORED_BARRIER;
        begin(GROUP, (uint64_t)kind, (enum call_kind)kind);
        ck_assert_int_eq(found(GROUP, (uint64_t)kind, &c), !message);
        ck_assert(message || c.kind == kind);
    }
}
END_TEST

/* The operation is withdrawn: the next one has its number. */
START_TEST(failed_operations_are_skipped)
{
    struct op_signature c;
    recorder_end(&g_recorder, begin(GROUP, 1, CALL_ALL_REDUCE), DLCOLL_ENOMEM);
    ck_assert(!found(GROUP, 1, &c));
    begin(GROUP, 1, CALL_BARRIER);
    ck_assert(found(GROUP, 1, &c) && c.kind == CALL_BARRIER);
}
END_TEST

/* An operation without elements is not recorded. */
START_TEST(operations_without_elements_are_skipped)
{
    struct op_signature c;
    uint64_t seq = 1;
    ck_assert(!recorder_find(&g_line, GROUP, &seq, &c));
    begin(GROUP, 2, CALL_BROADCAST);
    begin(0, 1, CALL_REDUCE);
    begin(GROUP, 5, CALL_BARRIER);
    ck_assert(recorder_find(&g_line, GROUP, &seq, &c) && seq == 2 && c.kind == CALL_BROADCAST);
    seq = 3;
    ck_assert(recorder_find(&g_line, GROUP, &seq, &c) && seq == 5 && c.kind == CALL_BARRIER);
    seq = 6; /* it is to come yet */
    ck_assert(!recorder_find(&g_line, GROUP, &seq, &c));
    for (uint64_t k = 6; k < 6 + SEGMENT_OPS; k++)
        begin(GROUP, k, CALL_ALL_REDUCE);
    seq = 3; /* nobody knows what it was */
    ck_assert(!recorder_find(&g_line, GROUP, &seq, &c));
}
END_TEST

START_TEST(overwritten_records_are_not_found)
{
    struct op_signature c;
    begin(GROUP, 1, CALL_ALL_REDUCE);
    for (int k = 0; k < SEGMENT_OPS; k++) {
        ck_assert(found(GROUP, 1, &c));
        begin(GROUP, (uint64_t)k + 1, CALL_SEND);
    }
    ck_assert(!found(GROUP, 1, &c));
}
END_TEST

enum { WRITERS = 4, ROUNDS = 20000 };

static _Atomic bool g_over;

/* The fields of each record have one number in common. */
static void *write_records(void *arg)
{
    static const char name[sizeof(((struct segment_op *)NULL)->group_name)] = "";
    uint64_t first = (uint64_t)(uintptr_t)arg * ROUNDS;
    for (uint64_t k = first + 1; k <= first + ROUNDS; k++) {
        struct op_signature c = {.kind = CALL_BROADCAST, .dtype = DLCOLL_F32, .count = k};
        uint64_t number = recorder_begin(&g_recorder, k, name, k, &c, k, 0);
        recorder_end(&g_recorder, number, -(int)k);
    }
    return NULL;
}

static void *read_records(void *arg)
{
    dlcoll_record all[SEGMENT_OPS];
    (void)arg;
    for (bool over = false; !over;) {
        over = atomic_load(&g_over);
        int n = recorder_read(&g_line, all, SEGMENT_OPS);
        for (int i = 0; i < n; i++) {
            const dlcoll_record *r = &all[i];
            if (r->group != r->seq || r->count != r->seq || r->bytes != r->seq ||
                (r->end_ns && r->result != -(int)r->seq))
                return "a record is of several operations";
        }
    }
    return NULL;
}

START_TEST(a_record_is_of_one_operation)
{
    pthread_t writers[WRITERS], reader;
    void *wrong = NULL;
    atomic_store(&g_over, false);
    ck_assert_int_eq(pthread_create(&reader, NULL, read_records, NULL), 0);
    for (uintptr_t i = 0; i < WRITERS; i++)
        ck_assert_int_eq(pthread_create(&writers[i], NULL, write_records, (void *)i), 0);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    atomic_store(&g_over, true);
    pthread_join(reader, &wrong);
    ck_assert_msg(!wrong, "%s", (const char *)wrong);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("recorder");
    TCase *tc = test_case(s, "recorder", 10);
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_add_test(tc, an_operation_is_found_by_its_number);
    tcase_add_test(tc, every_kind_is_recorded_as_itself);
    tcase_add_test(tc, failed_operations_are_skipped);
    tcase_add_test(tc, operations_without_elements_are_skipped);
    tcase_add_test(tc, overwritten_records_are_not_found);
    tcase_add_test(tc, a_record_is_of_one_operation);
    return s;
}

TEST_MAIN(suite)
