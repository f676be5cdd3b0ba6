/* What the head of a job of many hosts decides, on a made-up clock: who is in the job, what signals
 * and losses mean, and above all how the job ended, whoever tells of it first or last. */
#include "launcher/hosts/head_rules.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"

#define S 1000000000ull

static struct head_rules *r;
static char g_done[4096]; /* the actions, in words */

static void open_job(size_t nhosts, int min, int max, int spares)
{
    r = head_rules_new(nhosts, min, max, spares);
}

static void teardown(void)
{
    head_rules_free(r);
    r = NULL;
}

/* Carries out nothing, and writes down what was to be done. */
static const char *done(void)
{
    static const char *const names[] = {"log", "plan", "drop", "signal", "kill", "hurry"};
    struct head_action a;
    size_t n = 0;
    g_done[0] = '\0';
    head_rules_check(r);
    while (head_rules_next(r, &a)) {
        n += (size_t)snprintf(g_done + n, sizeof(g_done) - n, "%s%s", n ? ", " : "", names[a.act]);
        if (a.host != HEAD_NO_HOST)
            n += (size_t)snprintf(g_done + n, sizeof(g_done) - n, " %zu", a.host);
        if (a.act == HEAD_ACT_SIGNAL)
            n += (size_t)snprintf(g_done + n, sizeof(g_done) - n, " %d", a.signo);
        if (a.act == HEAD_ACT_LOG)
            n += (size_t)snprintf(g_done + n, sizeof(g_done) - n, " %s", a.text);
    }
    head_rules_check(r);
    return g_done;
}

/* All hosts come, and their workers begin to run. */
static void begin(size_t nhosts, int min, int max, int spares)
{
    open_job(nhosts, min, max, spares);
    for (size_t i = 0; i < nhosts; i++)
        head_rules_ready(r, i);
    ck_assert_str_eq(done(), "plan");
    for (size_t i = 0; i < nhosts; i++)
        head_rules_began(r, i);
}

/* A launcher ends with a result that a coordinator of this epoch has told; 0: with its own. */
static void ends(size_t host, int status, uint64_t epoch)
{
    struct frame_exit x = {status, epoch != 0, epoch, 1};
    head_rules_ended(r, host, &x, status != 0);
    head_rules_check(r);
    head_rules_closed(r, host, "");
    head_rules_check(r);
}

static void expect(int status, size_t teller)
{
    ck_assert_int_eq(head_rules_status(r), status);
    ck_assert_uint_eq(head_rules_teller(r), teller);
}

/* ------------------------------------------------------------------------------------ the result
 */

/* A host is cut off from the others, not from the head. They succeed; it gives up, before or after
 * they have told, whichever of them has the coordinator. */
START_TEST(who_tells_last_does_not_matter)
{
    static const size_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                        {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t cut = 0; cut < 3; cut++) {
        for (size_t k = 0; k < 6; k++) {
            begin(3, 2, 3, 0);
            for (size_t i = 0; i < 3; i++) {
                size_t host = orders[k][i];
                ends(host, host == cut, host == cut ? 0 : 7);
            }
            expect(0, cut == 0 ? 1 : 0);
            ck_assert_str_eq(done(), "");
            teardown();
        }
    }
}
END_TEST

/* The host that is cut off has the coordinator, which decides that the job has failed for want of
 * nodes; the others elect another one, and succeed. */
START_TEST(of_two_coordinators_the_later_one_knows)
{
    begin(3, 2, 3, 0);
    ends(1, 0, 8);
    ends(0, 1, 7);
    ends(2, 0, 8);
    expect(0, 1);
    teardown();
    begin(3, 2, 3, 0);
    ends(0, 1, 7);
    ends(1, 0, 8);
    expect(0, 1);
    teardown();
    begin(2, 1, 2, 0); /* and the other way round */
    ends(0, 0, 7);
    ends(1, 75, 8);
    expect(75, 1);
}
END_TEST

/* Two candidates without a majority have the epoch of the coordinator that both have lost, and each
 * ends its part of the job for a reason of its own. */
START_TEST(the_order_of_telling_is_nothing)
{
    for (int first = 0; first < 2; first++) {
        begin(3, 2, 3, 0);
        ends(first ? 1 : 2, first ? 143 : 1, 7);
        ends(first ? 2 : 1, first ? 1 : 143, 7);
        head_rules_closed(r, 0, "closed");
        expect(143, 1);
        if (!first)
            teardown();
    }
}
END_TEST

/* The time of the job is over (75), which the head answers with --requeue: not the status of a host
 * that was lost before. */
START_TEST(the_end_of_the_time_is_the_jobs)
{
    begin(3, 2, 3, 0);
    ends(2, 1, 0);
    ends(0, 75, 7);
    ends(1, 75, 7);
    expect(75, 0);
    teardown();
    begin(3, 2, 3, 0);
    ends(0, 75, 7);
    ends(1, 75, 7);
    ends(2, 1, 0);
    expect(75, 0);
}
END_TEST

/* Without a coordinator's word the first report counts, before what has none. */
START_TEST(launchers_alone)
{
    begin(3, 3, 3, 0);
    struct frame_exit killed = {.status = 137};
    head_rules_ended(r, 0, &killed, false);
    expect(137, HEAD_NO_HOST);
    ends(2, 1, 0);
    ends(1, 3, 0);
    expect(1, 2);
    teardown();
    begin(1, 1, 1, 0);
    head_rules_closed(r, 0, "gone");
    ck_assert_str_eq(done(), "log 0 the connection is lost: gone");
    expect(1, HEAD_NO_HOST);
}
END_TEST

START_TEST(a_refusal_ends_the_job)
{
    open_job(2, 2, 2, 0);
    head_rules_ready(r, 1);
    head_rules_ready(r, 0);
    ck_assert_str_eq(done(), "plan");
    struct frame_exit refused = {.status = 2};
    head_rules_ended(r, 1, &refused, false);
    ck_assert_str_eq(done(), "signal 0 15");
    ck_assert(head_rules_ends(r));
    ends(0, 143, 7);
    ck_assert_int_eq(head_rules_status(r), 2);
    teardown();
    open_job(3, 1, 3, 0); /* the others suffice */
    for (size_t i = 0; i < 3; i++)
        head_rules_ready(r, i);
    head_rules_ended(r, 1, &refused, false);
    ck_assert_str_eq(done(), "plan");
    ends(0, 0, 7);
    ends(2, 0, 7);
    expect(0, 0);
}
END_TEST

/* ------------------------------------------------------------------------------------- the hosts
 */

START_TEST(hosts_that_do_not_come)
{
    open_job(4, 2, 4, 0);
    head_rules_absent(r, 1, "does not answer", 1);
    ck_assert_str_eq(done(), "log 1 does not answer; the job goes on without it");
    head_rules_ready(r, 0);
    head_rules_ready(r, 3);
    ck_assert_str_eq(done(), "");
    head_rules_closed(r, 2, "refused");
    ck_assert_str_eq(done(), "log 2 refused; the job goes on without it, plan");
    ck_assert_int_eq(head_rules_nodes(r), 2);
    ck_assert_int_eq(head_rules_rank(r, 0), 0);
    ck_assert_int_eq(head_rules_rank(r, 1), -1);
    ck_assert_int_eq(head_rules_rank(r, 3), 1);
    teardown();
    open_job(3, 3, 3, 0);
    head_rules_ready(r, 2);
    head_rules_absent(r, 1, "does not answer", 1);
    ck_assert_str_eq(done(), "log 1 does not answer, drop 0, drop 2");
    head_rules_ready(r, 0); /* it comes late */
    ck_assert_str_eq(done(), "drop 0");
    head_rules_closed(r, 0, "");
    head_rules_closed(r, 2, "");
    expect(1, HEAD_NO_HOST);
}
END_TEST

START_TEST(more_hosts_than_there_is_room_for)
{
    open_job(5, 1, 2, 1);
    for (size_t i = 5; i-- > 0;)
        head_rules_ready(r, i);
    ck_assert_str_eq(done(), "drop 3, drop 4, plan");
    ck_assert_int_eq(head_rules_nodes(r), 2);
    ck_assert_int_eq(head_rules_rank(r, 2), 2); /* a spare */
}
END_TEST

/* Once workers run, the launchers see to a host that is lost, also one that waits as a spare. */
START_TEST(a_lost_host_of_a_running_job)
{
    open_job(3, 2, 2, 1);
    for (size_t i = 0; i < 3; i++)
        head_rules_ready(r, i);
    head_rules_began(r, 0);
    head_rules_began(r, 1);
    ck_assert_str_eq(done(), "plan");
    head_rules_closed(r, 2, "ssh has ended");
    ck_assert_str_eq(done(), "log 2 the connection is lost: ssh has ended");
    ck_assert(!head_rules_ends(r));
    ends(0, 0, 7);
    head_rules_closed(r, 1, "killed"); /* the job is over: nobody needs to know */
    ck_assert_str_eq(done(), "");
    expect(0, 0);
    teardown();
    open_job(2, 2, 2, 0); /* before workers run, the others would wait for it */
    head_rules_ready(r, 0);
    head_rules_ready(r, 1);
    done();
    head_rules_closed(r, 1, "killed");
    ck_assert_str_eq(done(), "log 1 the connection is lost: killed, signal 0 15");
}
END_TEST

/* ----------------------------------------------------------------------------------- the signals
 */

START_TEST(signals_before_the_job_begins)
{
    open_job(2, 2, 2, 0);
    head_rules_ready(r, 1);
    head_rules_signal(r, SIGUSR1, 5 * S);
    ck_assert_str_eq(done(), "");
    head_rules_signal(r, SIGINT, 10 * S);
    ck_assert_str_eq(done(), "log received SIGINT: the job had not begun, drop 0, drop 1");
    head_rules_signal(r, SIGINT, 10 * S + S / 4); /* the same key press */
    ck_assert_str_eq(done(), "");
    head_rules_signal(r, SIGTERM, 11 * S);
    ck_assert_str_eq(done(), "hurry, kill 0, kill 1");
    ck_assert_int_eq(head_rules_status(r), 130);
}
END_TEST

START_TEST(signals_of_a_running_job)
{
    begin(2, 2, 2, 0);
    head_rules_signal(r, SIGUSR2, S);
    ck_assert_str_eq(done(), test_text("signal 0 %d, signal 1 %d", SIGUSR2, SIGUSR2));
    ck_assert(!head_rules_was_stopped(r));
    head_rules_signal(r, SIGTERM, 2 * S);
    ck_assert_str_eq(done(), "signal 0 15, signal 1 15");
    ck_assert(!head_rules_ends(r)); /* the launchers do */
    ends(1, 143, 7);
    head_rules_signal(r, SIGTERM, 4 * S);
    ck_assert_str_eq(done(), "hurry, signal 0 15");
    ck_assert_uint_eq(head_rules_deadline(r, true), 14 * S);
    head_rules_tick(r, true, 14 * S - 1);
    ck_assert_str_eq(done(), "");
    head_rules_tick(r, true, 14 * S);
    ck_assert_str_eq(
        done(), "log 0 has not told within 10 s how its launcher ended; it was given up, kill 0");
    ck_assert_uint_eq(head_rules_deadline(r, true), UINT64_MAX);
    expect(143, 1);
}
END_TEST

/* A reader of the output that takes nothing holds up no job that was stopped, or whose --timeout is
 * over. */
START_TEST(a_reader_is_not_waited_for)
{
    begin(1, 1, 1, 0);
    ck_assert_uint_eq(head_rules_deadline(r, false), UINT64_MAX);
    head_rules_limit(r, 20 * S);
    ck_assert_uint_eq(head_rules_deadline(r, true), UINT64_MAX);
    ck_assert_uint_eq(head_rules_deadline(r, false), 25 * S);
    head_rules_signal(r, SIGTERM, 10 * S);
    done();
    ck_assert_uint_eq(head_rules_deadline(r, false), 15 * S);
    head_rules_tick(r, true, 16 * S);
    ck_assert_str_eq(done(), "");
    head_rules_tick(r, false, 16 * S);
    ck_assert_str_eq(done(), "hurry");
    ck_assert_uint_eq(head_rules_deadline(r, false), UINT64_MAX);
}
END_TEST

/* ------------------------------------------------------------------------------- any order at all
 */

/* Events in any order, among them some that make no sense: the counts stay right, the choice is the
 * best, and a job that a coordinator has ended, and that the head has not, has its status. */
START_TEST(any_order)
{
    unsigned seed = 20;
    for (int run = 0; run < 20000; run++) {
        size_t n = 1 + (size_t)rand_r(&seed) % 5;
        int max = 1 + rand_r(&seed) % (int)n, min = 1 + rand_r(&seed) % max;
        int spares = rand_r(&seed) % 2 && (size_t)max < n;
        uint64_t now = S, best = 0;
        int status = -1;
        open_job(n, min, max, spares);
        for (int k = 0; k < 40; k++) {
            size_t host = (size_t)rand_r(&seed) % n;
            int code = rand_r(&seed) % 3;
            struct frame_exit x = {code, rand_r(&seed) % 2, 1 + (uint64_t)rand_r(&seed) % 4, 1};
            now += (uint64_t)rand_r(&seed) % S;
            switch (rand_r(&seed) % 12) {
            case 0:
                head_rules_absent(r, host, "absent", 1);
                break;
            case 1:
                head_rules_closed(r, host, "closed");
                break;
            case 2:
                head_rules_began(r, host);
                break;
            case 3:
            case 4: {
                size_t before = head_rules_teller(r);
                head_rules_ended(r, host, &x, code != 0);
                if (head_rules_teller(r) == host && before != host && x.decided) {
                    /* a later coordinator's, or another result of the same by an earlier host */
                    ck_assert(x.epoch > best || (x.epoch == best && host < before));
                    best = x.epoch;
                    status = code;
                }
                break;
            }
            case 5:
                if (rand_r(&seed) % 8 == 0)
                    head_rules_signal(r, rand_r(&seed) % 2 ? SIGTERM : SIGUSR1, now);
                break;
            case 6:
                head_rules_tick(r, rand_r(&seed) % 2, now);
                break;
            default:
                head_rules_ready(r, host);
            }
            head_rules_check(r);
            if (rand_r(&seed) % 2)
                done();
        }
        if (best && !head_rules_ends(r))
            ck_assert_int_eq(head_rules_status(r), status);
        teardown();
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("head_rules");
    TCase *tc = tcase_create("head_rules");
    tcase_add_checked_fixture(tc, NULL, teardown);
    tcase_add_test(tc, who_tells_last_does_not_matter);
    tcase_add_test(tc, of_two_coordinators_the_later_one_knows);
    tcase_add_test(tc, the_order_of_telling_is_nothing);
    tcase_add_test(tc, the_end_of_the_time_is_the_jobs);
    tcase_add_test(tc, launchers_alone);
    tcase_add_test(tc, a_refusal_ends_the_job);
    tcase_add_test(tc, hosts_that_do_not_come);
    tcase_add_test(tc, more_hosts_than_there_is_room_for);
    tcase_add_test(tc, a_lost_host_of_a_running_job);
    tcase_add_test(tc, signals_before_the_job_begins);
    tcase_add_test(tc, signals_of_a_running_job);
    tcase_add_test(tc, a_reader_is_not_waited_for);
    tcase_add_test(tc, any_order);
    suite_add_tcase(s, tc);
    return s;
}

TEST_MAIN(suite)
