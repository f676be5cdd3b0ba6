/* The ledger: every nanosecond of every node is in one class. */
#include "tests/lib/test.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/ledger.h"

#define S 1000000000ull

static struct event_log g_log;

static void setup(void)
{
    struct node_id id = {{9}};
    event_log_init(&g_log, &id);
}

static void teardown(void)
{
    ledger_forget(&g_log.job);
    event_log_fini(&g_log);
}

/* An event of node `n`, at so many seconds. */
static void put(int n, enum event_name name, double at, const char *text)
{
    static uint64_t seq;
    struct event e = {.name = name, .seq = ++seq, .at_ns = (uint64_t)(at * 1e9), .pid = 100 + n};
    e.origin.b[0] = (uint8_t)n;
    e.host = xstrdup("host");
    e.text = text ? xstrdup(text) : NULL;
    ck_assert(event_log_take(&g_log, &e));
}

static void state(int n, double at, const char *text)
{
    put(n, EVENT_NODE_STATE, at, text);
}

static struct ledger account(double now)
{
    struct ledger l;
    uint64_t sum = 0;
    ledger_of_events(&l, &g_log.job, (uint64_t)(now * 1e9));
    for (int c = 0; c < LEDGER_CLASSES; c++)
        sum += l.ns[c];
    ck_assert_uint_eq(sum, l.total_ns);
    return l;
}

START_TEST(a_job_of_two_nodes_with_a_restart)
{
    char note[96];
    put(1, EVENT_SUBMIT, 0, NULL);
    state(1, 0, "RENDEZVOUS");
    state(2, 1, "RENDEZVOUS");
    for (int n = 1; n <= 2; n++) {
        state(n, 3, "STARTING");
        state(n, 4, "RUNNING");
    }
    put(1, EVENT_WORKER_COLLECTIVE, 6, NULL);
    put(1, EVENT_WORKER_COLLECTIVE, 7, NULL); /* of another worker */
    ledger_note(note, sizeof(note), 2, 3);    /* 8 s after its first operation, 2 of them waiting */
    put(1, EVENT_NODE_LEDGER, 14, note);
    state(1, 14, "STOPPING");
    state(2, 14, "STOPPING"); /* without libdlcoll and without a mark */
    for (int n = 1; n <= 2; n++) {
        state(n, 15, "RENDEZVOUS");
        state(n, 16, "STARTING");
        state(n, 17, "RUNNING");
        state(n, 20, n == 1 ? "EXIT_BARRIER" : "STOPPING");
    }
    put(1, EVENT_FINISH, 22, NULL);
    struct ledger l = account(0);
    ck_assert_int_eq(l.nodes, 2);
    ck_assert_uint_eq(l.total_ns, (22 + 21) * S);
    ck_assert_uint_eq(l.ns[LEDGER_RENDEZVOUS], (3 + 2) * S);
    ck_assert_uint_eq(l.ns[LEDGER_START], 2 * S);
    ck_assert_uint_eq(l.ns[LEDGER_FIRST], 2 * S);
    ck_assert_uint_eq(l.ns[LEDGER_LOST], 3 * S);
    ck_assert_uint_eq(l.ns[LEDGER_WAITING],
                      2 * S - 3 * S / 4 + 2 * S); /* a quarter of 3 s is lost */
    ck_assert_uint_eq(l.ns[LEDGER_RUNNING], 6 * S - 9 * S / 4 + 10 * S + 6 * S);
    ck_assert_uint_eq(l.ns[LEDGER_RESTART], 6 * S);
    ck_assert_uint_eq(l.ns[LEDGER_END], 2 * S);
}
END_TEST

START_TEST(a_node_that_is_lost_and_a_job_that_runs)
{
    state(1, 0, "RENDEZVOUS");
    state(2, 0, "RENDEZVOUS");
    state(1, 1, "STARTING");
    state(2, 1, "STARTING");
    state(1, 2, "RUNNING");
    state(2, 2, "RUNNING");
    struct event lost = {.name = EVENT_NODE_LOST, .seq = 1, .at_ns = 5 * S, .pid = 102};
    lost.origin.b[0] = 7;
    lost.host = xstrdup("host");
    ck_assert(event_log_take(&g_log, &lost));
    state(2, 8, "STOPPING"); /* arrives late, from a process that is gone for the job */
    struct ledger l = account(10);
    ck_assert_uint_eq(l.total_ns, (10 + 5) * S);
    ck_assert_uint_eq(l.ns[LEDGER_RUNNING], (8 + 3) * S);
    l = account(0); /* until the last event */
    ck_assert_uint_eq(l.total_ns, (8 + 5) * S);
}
END_TEST

/* Whatever the events, their order and what the notes claim. */
START_TEST(the_sum_is_the_whole)
{
    static const char *const states[] = {"RENDEZVOUS", "STARTING", "RUNNING", "EXIT_BARRIER",
                                         "STOPPING",   "DONE",     "?"};
    unsigned seed = 1 + (unsigned)_i;
    double at = 0;
    for (int i = 0; i < 300; i++) {
        int n = 1 + rand_r(&seed) % 5;
        char note[96];
        at += (rand_r(&seed) % 1000 - 100) / 977.0;
        double when = at > 0 ? at : 0;
        ledger_note(note, sizeof(note), rand_r(&seed) % 100 / 7.0, rand_r(&seed) % 90 / 7.0 - 2);
        switch (rand_r(&seed) % 8) {
        case 0:
            put(n, EVENT_NODE_LEDGER, when, note);
            break;
        case 1:
            put(n, EVENT_WORKER_COLLECTIVE, when, NULL);
            break;
        case 2:
            if (rand_r(&seed) % 20 == 0)
                put(n, EVENT_NODE_LOST, when, NULL);
            break;
        default:
            state(n, when, states[(unsigned)rand_r(&seed) % ARRAY_LEN(states)]);
        }
        account(at + 1);
    }
    ck_assert_uint_gt(account(at + 1).total_ns, 0);
}
END_TEST

/* The list forgets old events, the ledger does not: a node that has left and one that has been lost
 * long ago count, and so does the round that runs. */
START_TEST(events_that_the_list_has_dropped)
{
    enum { MANY = 3 * EVENT_LOG_BYTES / sizeof(struct event) };
    struct ledger want, l;
    for (int keep = 1; keep >= 0; keep--) {
        teardown();
        setup();
        if (keep)
            ledger_keep(&g_log.job);
        for (int n = 1; n <= 3; n++) {
            state(n, 0, "RENDEZVOUS");
            state(n, 1, "STARTING");
            state(n, 2, "RUNNING");
        }
        put(2, EVENT_WORKER_COLLECTIVE, 3, NULL);
        put(3, EVENT_NODE_LOST, 5, NULL);
        state(1, 6, "STOPPING");
        state(1, 7, "RUNNING");
        for (int i = 0; keep && i < MANY; i++)
            put(1 + i % 2, EVENT_WORKER_START, 8, NULL);
        ck_assert_int_eq(g_log.job.first > 20, keep);
        state(2, 9, "EXIT_BARRIER");
        put(1, EVENT_FINISH, 10, NULL);
        l = account(0);
        if (keep)
            want = l;
    }
    ck_assert_int_eq(l.nodes, 3);
    ck_assert_uint_eq(l.total_ns, 25 * S);
    ck_assert_mem_eq(&l, &want, sizeof(l));
}
END_TEST

/* A pod that ends every hour, and another one in its place. */
START_TEST(nodes_that_have_gone_are_forgotten)
{
    enum { PODS = 200 };
    struct ledger l;
    size_t used[2];
    put(1, EVENT_SUBMIT, 0, NULL);
    ledger_keep(&g_log.job);
    for (int round = 0, pod = 0; round < 2; round++) {
        for (int i = 0; i < PODS; i++, pod++) {
            double at = 3600.0 * pod;
            const struct {
                enum event_name name;
                double at;
                const char *text;
            } events[] = {{EVENT_NODE_STATE, at, "RENDEZVOUS"},
                          {EVENT_NODE_STATE, at + 1, "RUNNING"},
                          {EVENT_NODE_LOST, at + 3601, NULL},
                          {EVENT_NODE_STATE, at + 3602, "STOPPING"}};
            for (size_t k = 0; k < ARRAY_LEN(events); k++) {
                struct event e = {.name = events[k].name,
                                  .at_ns = (uint64_t)(events[k].at * 1e9),
                                  .pid = pod,
                                  .host = "host",
                                  .text = events[k].text};
                memcpy(e.origin.b, &pod, sizeof(pod));
                g_log.job.on_drop(g_log.job.past, &e);
            }
        }
        used[round] = mallinfo2().uordblks;
        l = account(0);
        ck_assert_int_eq(l.nodes, pod);
        ck_assert_uint_eq(l.total_ns, (uint64_t)pod * 3601 * S);
    }
    ck_assert_uint_le(used[1], used[0] + 4096);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("ledger");
    TCase *tc = test_case(s, "ledger", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_job_of_two_nodes_with_a_restart);
    tcase_add_test(tc, a_node_that_is_lost_and_a_job_that_runs);
    tcase_add_test(tc, events_that_the_list_has_dropped);
    tcase_add_test(tc, nodes_that_have_gone_are_forgotten);
    tcase_add_loop_test(tc, the_sum_is_the_whole, 0, 30);
    return s;
}

TEST_MAIN(suite)
