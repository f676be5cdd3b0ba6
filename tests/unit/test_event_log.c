/* The event log: one order for the job, nothing twice, nothing lost; the names, the codec and the
 * JSON of events. */
#include "agent/base/signals.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/report/event_file.h"
#include "agent/report/event_json.h"
#include "core/mem.h"
#include "rendezvous/rules/event_log.h"

static struct event_log coordinator, node;
static const struct node_id ids[2] = {{{1}}, {{2}}};
static int changes;

static void on_change(void *arg)
{
    (void)arg;
    changes++;
}

static void setup(void)
{
    event_log_init(&coordinator, &ids[0]);
    event_log_init(&node, &ids[1]);
    event_log_lead(&coordinator, true);
    node.on_change = on_change;
    changes = 0;
}

static void teardown(void)
{
    event_log_fini(&coordinator);
    event_log_fini(&node);
}

static void happens(struct event_log *l, int rank)
{
    event_log_add(l, &(struct event){.name = EVENT_WORKER_START, .rank = rank, .host = "h"});
}

/* Sends a list's events from *at on, as EVENTS frames carry them. */
static void send_list(struct event_log *to, const struct event_list *l, uint64_t *at)
{
    const struct event *e;
    struct event copy;
    while ((e = event_list_next(l, at))) {
        struct buf b = BUF_INIT;
        event_encode(&b, e);
        struct rd r = rd_init(b.data, b.len);
        ck_assert(event_decode(&r, &copy) && rd_done(&r));
        event_log_take(to, &copy);
        buf_fini(&b);
    }
}

/* The ranks in the order of the list. */
static const char *order(const struct event_list *l)
{
    static char text[256];
    uint64_t at = 0;
    const struct event *e;
    for (text[0] = '\0'; (e = event_list_next(l, &at));)
        sprintf(text + strlen(text), "%d ", e->rank);
    return text;
}

START_TEST(every_node_has_the_order_of_the_coordinator)
{
    uint64_t up = 0, down = 0;
    happens(&node, 1);
    happens(&coordinator, 0);
    happens(&node, 2);
    ck_assert_uint_eq(node.job.n, 0);
    send_list(&coordinator, &node.own, &up);
    happens(&coordinator, 3);
    send_list(&node, &coordinator.job, &down);
    ck_assert_str_eq(order(&coordinator.job), "0 1 2 3 ");
    ck_assert_str_eq(order(&node.job), "0 1 2 3 ");
    ck_assert_int_eq(changes, 2 + 4);
}
END_TEST

START_TEST(what_is_sent_again_is_not_there_twice)
{
    uint64_t up = 0, again = 0;
    happens(&node, 1);
    send_list(&coordinator, &node.own, &up);
    happens(&node, 2);
    send_list(&coordinator, &node.own, &again);
    send_list(&coordinator, &node.own, &up);
    ck_assert_str_eq(order(&coordinator.job), "1 2 ");
}
END_TEST

START_TEST(a_new_coordinator_keeps_the_order_that_it_knows)
{
    uint64_t up = 0, down = 0;
    happens(&coordinator, 0);
    happens(&node, 1);
    send_list(&coordinator, &node.own, &up);
    send_list(&node, &coordinator.job, &down);
    happens(&node, 2); /* which the former coordinator does not get any more */
    event_log_lead(&node, true);
    happens(&node, 3);
    ck_assert_str_eq(order(&node.job), "0 1 2 3 ");
}
END_TEST

/* The clock of the host that comes after is an hour behind. */
START_TEST(times_do_not_go_back_with_another_coordinator)
{
    uint64_t down = 0, last = 0;
    const struct event *e;
    struct event before = {.name = EVENT_START, .wall_ns = 7200}, after = {.name = EVENT_ELECTED};
    event_log_add(&coordinator, &before);
    send_list(&node, &coordinator.job, &down);
    event_log_lead(&node, true);
    for (after.wall_ns = 3600; after.wall_ns <= 9000; after.wall_ns += 1800)
        event_log_add(&node, &after);
    for (uint64_t at = 0; (e = event_list_next(&node.job, &at)); last = e->wall_ns)
        ck_assert_uint_ge(e->wall_ns, last);
    ck_assert_uint_eq(last, 9000);
}
END_TEST

START_TEST(own_events_without_a_coordinator_are_kept)
{
    happens(&node, 1);
    event_log_settle(&node);
    event_log_settle(&node);
    ck_assert_str_eq(order(&node.job), "1 ");
}
END_TEST

/* What the texts of a list take at least, with the events. */
static size_t bytes_in(const struct event_list *l)
{
    size_t n = l->n * sizeof(*l->e);
    for (size_t i = 0; i < l->n; i++)
        n += strlen(l->e[i].host) + (l->e[i].text ? strlen(l->e[i].text) : 0);
    return n;
}

/* _i: length of the texts. A list that is full drops its older half, and what it holds is bounded
 * in bytes. */
START_TEST(a_full_list_drops_its_older_half)
{
    uint64_t at = 0, first;
    char text[EVENT_TEXT_MAX] = "";
    memset(text, 'x', (size_t)_i);
    for (int i = 0; i < 100000; i++) {
        const struct event e = {.name = EVENT_FAILURE, .rank = i, .host = "host", .text = text};
        event_log_add(&coordinator, &e);
    }
    first = coordinator.job.first;
    ck_assert_uint_gt(first, 0);
    ck_assert_uint_eq(first + coordinator.job.n, 100000);
    ck_assert_int_eq(event_list_next(&coordinator.job, &at)->rank, (int)first);
    ck_assert_uint_eq(at, first + 1);
    ck_assert_uint_le(bytes_in(&coordinator.job), EVENT_LOG_BYTES);
    ck_assert_uint_ge(bytes_in(&coordinator.job), EVENT_LOG_BYTES / 4);
}
END_TEST

/* A new launcher every hour, for seventeen years. */
START_TEST(origins_are_bounded)
{
    char text[EVENT_TEXT_MAX] = "";
    bool new_ones = true, known_ones = false;
    memset(text, 'x', sizeof(text) - 1);
    for (uint32_t i = 1; i <= 150000; i++) {
        struct event e = {.name = EVENT_NODE_STATE, .seq = 1, .text = xstrdup(i % 16 ? "" : text)};
        memcpy(e.origin.b, &i, sizeof(i));
        new_ones &= event_log_take(&coordinator, &e);
        e = (struct event){.name = EVENT_NODE_STATE, .seq = 1};
        memcpy(e.origin.b, &i, sizeof(i));
        known_ones |= event_log_take(&coordinator, &e);
    }
    ck_assert(new_ones && !known_ones);
    ck_assert_uint_le(coordinator.seen.n, 2 * (coordinator.job.n + 1) + 1);
    ck_assert_uint_lt(coordinator.job.n, 200000);
}
END_TEST

START_TEST(malformed_events_are_refused)
{
    struct buf b = BUF_INIT;
    struct event e, good = {.name = EVENT_FINISH, .seq = 1, .cause = CAUSE_EXIT, .text = "t"};
    event_encode(&b, &good);
    for (size_t n = 0; n < b.len; n++) {
        struct rd r = rd_init(b.data, n);
        ck_assert(!event_decode(&r, &e));
    }
    b.data[0] = EVENT_NAMES;
    struct rd r = rd_init(b.data, b.len);
    ck_assert(!event_decode(&r, &e));
    buf_fini(&b);
}
END_TEST

START_TEST(names_are_found)
{
    enum event_name n;
    for (enum event_name i = 0; i < EVENT_NAMES; i++)
        ck_assert(event_find(event_text(i), &n) && n == i);
    ck_assert(!event_find("nonsense", &n));
}
END_TEST

START_TEST(json_has_the_form_of_rfc_18)
{
    const struct event e = {.name = EVENT_FAILURE,
                            .wall_ns = 1764032477104233000,
                            .at_ns = 12500000000,
                            .rank = 3,
                            .local_rank = 1,
                            .node = 1,
                            .pid = 77,
                            .signal = 9,
                            .caused_by = -1,
                            .cause = CAUSE_OOM,
                            .host = "n\xff\n",
                            .text = "killed"};
    char *line = event_json(&e);
    ck_assert_ptr_nonnull(strchr(line, '\n'));
    ck_assert_ptr_eq(strchr(line, '\n'), line + strlen(line) - 1);
    json_t *j = json_loads(line, 0, NULL), *c = json_object_get(j, "context");
    ck_assert_ptr_nonnull(c);
    ck_assert_uint_eq(json_object_size(j), 3);
    ck_assert(json_real_value(json_object_get(j, "timestamp")) == 1764032477.104233);
    ck_assert_str_eq(json_string_value(json_object_get(j, "name")), "failure");
    ck_assert_str_eq(json_string_value(json_object_get(c, "cause")), "oom");
    ck_assert_str_eq(json_string_value(json_object_get(c, "signal_name")), "SIGKILL");
    ck_assert_str_eq(json_string_value(json_object_get(c, "host")), "n\\xff\n");
    ck_assert_int_eq(json_integer_value(json_object_get(c, "rank")), 3);
    ck_assert(json_real_value(json_object_get(c, "mono_s")) == 12.5);
    ck_assert_ptr_null(json_object_get(c, "exit_code"));
    ck_assert_ptr_null(json_object_get(c, "caused_by"));
    json_decref(j);
    free(line);
}
END_TEST

static atomic_int lines_read;

/* Reads 4 KiB at a time, four times a second. */
static void *read_slowly(void *arg)
{
    char block[4096];
    for (ssize_t n; (n = read(*(int *)arg, block, sizeof(block))) > 0;) {
        for (ssize_t i = 0; i < n; i++)
            atomic_fetch_add(&lines_read, block[i] == '\n');
        poll(NULL, 0, 250);
    }
    return NULL;
}

/* Who reads slowly, but does read, is waited for; what is in the pipe then is still to be read. */
START_TEST(a_slow_reader_of_the_event_file)
{
    struct event_file *f;
    struct err e = ERR_INIT;
    pthread_t reader;
    ck_assert_int_eq(mkfifo(tmppath("events"), 0600), 0);
    int fd = open(tmppath("events"), O_RDONLY | O_NONBLOCK);
    ck_assert_int_eq(event_file_open(&f, tmppath("events"), &e), 0);
    fcntl(fd, F_SETFL, 0);
    fcntl(fd, F_SETPIPE_SZ, 4096);
    for (int i = 0; i < 600; i++)
        happens(&coordinator, i);
    event_file_write(f, &coordinator.job, SIZE_MAX);
    ck_assert_int_eq(pthread_create(&reader, NULL, read_slowly, &fd), 0);
    event_file_close(f, 0);
    ck_assert_int_ge(atomic_load(&lines_read), 500);
    ck_assert_int_eq(pthread_join(reader, NULL), 0);
    ck_assert_int_eq(atomic_load(&lines_read), 600);
    close(fd);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("event_log");
    TCase *t = tcase_create("event_log");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, every_node_has_the_order_of_the_coordinator);
    tcase_add_test(t, what_is_sent_again_is_not_there_twice);
    tcase_add_test(t, a_new_coordinator_keeps_the_order_that_it_knows);
    tcase_add_test(t, times_do_not_go_back_with_another_coordinator);
    tcase_add_test(t, own_events_without_a_coordinator_are_kept);
    tcase_add_loop_test(t, a_full_list_drops_its_older_half, 10, 11);
    tcase_add_loop_test(t, a_full_list_drops_its_older_half, EVENT_TEXT_MAX - 1, EVENT_TEXT_MAX);
    tcase_add_test(t, origins_are_bounded);
    tcase_add_test(t, malformed_events_are_refused);
    tcase_add_test(t, names_are_found);
    tcase_add_test(t, json_has_the_form_of_rfc_18);
    suite_add_tcase(s, t);
    t = test_case(s, "event_file", 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_slow_reader_of_the_event_file);
    return s;
}

TEST_MAIN(suite)
