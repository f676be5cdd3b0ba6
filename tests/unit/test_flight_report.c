/* The report from the workers' flight recorders, and the wake-up of workers that wait. */
#include "tests/lib/test.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/report/flight_report.h"
#include "core/fd.h"
#include "core/netaddr.h"

static struct segment_local *line(const struct segment *s, int i)
{
    return (struct segment_local *)((char *)s->header + s->off_local) + i;
}

static struct segment make(uint16_t *ports, int workers)
{
    static struct rank_table_node node;
    static struct rank_table table = {.nnodes = 1};
    struct segment s = SEGMENT_INIT;
    struct err e = ERR_INIT;
    snprintf(node.addr, sizeof(node.addr), "127.0.0.1");
    node.nproc = table.world_size = workers;
    node.ports = ports;
    table.nodes = &node;
    ck_assert_msg(segment_open(&s, &table, 0, 2, &e) == 0, "%s", e.msg);
    return s;
}

static struct segment_op *record(struct segment_local *l, uint64_t start, uint64_t end, int result)
{
    uint64_t n = atomic_fetch_add(&l->nops, 1) + 1;
    struct segment_op *op = &l->ops[n % SEGMENT_OPS];
    memset(op, 0, sizeof(*op));
    op->seq = n;
    op->count = 12;
    op->start_ns = start;
    op->result = result;
    strcpy(op->op, "all_reduce");
    strcpy(op->dtype, "f32");
    strcpy(op->reduction, "sum");
    atomic_store(&op->end_ns, end);
    atomic_store(&op->number, n);
    return op;
}

START_TEST(workers_that_have_hung_are_described)
{
    uint16_t ports[2] = {0, 0};
    struct segment s = make(ports, 2);
    const uint64_t second = 1000000000;
    ck_assert_ptr_null(flight_report_text(&s, 4, 100 * second));
    record(line(&s, 0), 80 * second, 81 * second, 0);
    for (int i = 0; i < 40; i++)
        record(line(&s, 1), 90 * second, 91 * second, 0);
    ck_assert_ptr_null(flight_report_text(&s, 4, 100 * second)); /* nobody is in one */
    struct segment_op *op = record(line(&s, 1), 98 * second, 0, 0);
    ck_assert_ptr_null(flight_report_text(&s, 4, 100 * second)); /* not for long */
    char *text = flight_report_text(&s, 4, 120 * second);
    ck_assert_str_eq(text, "rank 4: not in any operation for 39.0 s\n"
                           "  all_reduce #1 of 12 f32 (sum) ended 39.0 s ago, took 1.0 s\n"
                           "rank 5: in all_reduce #41 of 12 f32 (sum) for 22.0 s\n"
                           "  all_reduce #40 of 12 f32 (sum) ended 29.0 s ago, took 1.0 s\n"
                           "  all_reduce #39 of 12 f32 (sum) ended 29.0 s ago, took 1.0 s\n"
                           "  all_reduce #38 of 12 f32 (sum) ended 29.0 s ago, took 1.0 s\n");
    free(text);
    /* A worker that has timed out is reported at once. */
    strcpy(op->group_name, "dp");
    op->result = -5;
    atomic_store(&op->end_ns, 99 * second);
    line(&s, 1)->cause_code = -5;
    line(&s, 1)->state = SEGMENT_LOCAL_FAILED;
    text = flight_report_text(&s, 4, 100 * second);
    ck_assert_ptr_nonnull(
        strstr(text, "rank 5: all_reduce #41 of 12 f32 (sum) in group dp failed after 1.0 s\n"));
    free(text);
    /* Beside others one is under way still; what is small has no exact time. */
    record(line(&s, 0), 90 * second, 0, 0);
    record(line(&s, 0), 91 * second, 91 * second + 9000000, 0);
    record(line(&s, 0), 99 * second, 99 * second + 250 * 1000000, 0);
    text = flight_report_text(&s, 4, 100 * second);
    const char *begin = "rank 4: all_reduce #4 of 12 f32 (sum) ended 0.8 s ago, took 250 ms\n"
                        "  all_reduce #3 of 12 f32 (sum) ended 9.0 s ago, took <10 ms\n"
                        "  in all_reduce #2 of 12 f32 (sum) for 10.0 s\n"
                        "  all_reduce #1 of 12 f32 (sum) ended 19.0 s ago, took 1.0 s\nrank 5";
    ck_assert_msg(strncmp(text, begin, strlen(begin)) == 0, "%s", text);
    free(text);
    /* Operations on device memory, with the times of the device. */
    record(line(&s, 0), 90 * second, 90 * second + 1250000, 0)->device = SEGMENT_OP_BEGUN;
    record(line(&s, 0), 92 * second, 0, 0)->device = SEGMENT_OP_BEGUN;
    record(line(&s, 0), 93 * second, 0, 0)->device = SEGMENT_OP_ENQUEUED;
    record(line(&s, 0), 93 * second, 94 * second, -5)->device = SEGMENT_OP_BEGUN;
    text = flight_report_text(&s, 4, 100 * second);
    begin = "rank 4: all_reduce #8 of 12 f32 (sum) failed after 1.0 s\n"
            "  in all_reduce #7 of 12 f32 (sum) for 7.0 s: enqueued, the device has not begun it\n"
            "  in all_reduce #6 of 12 f32 (sum) for 8.0 s on the device\n"
            "  all_reduce #5 of 12 f32 (sum) ended 10.0 s ago, took 1.250 ms on the device\n";
    ck_assert_msg(strncmp(text, begin, strlen(begin)) == 0, "%s", text);
    free(text);
    /* A worker may write what it likes. */
    memset(line(&s, 0), 0xff, sizeof(struct segment_local));
    memset(op->op, 'x', sizeof(*op) - offsetof(struct segment_op, op));
    text = flight_report_text(&s, 4, 100 * second);
    ck_assert_uint_lt(strlen(text), 800);
    ck_assert_ptr_nonnull(strstr(text, "rank 5: "));
    free(text);
    segment_close(&s);
}
END_TEST

static int lines_of(const char *text, const char *rank)
{
    int n = 0;
    const char *from = strstr(text, rank);
    ck_assert_msg(from, "no %s in\n%s", rank, text);
    do
        n++;
    while ((from = strchr(from, '\n')) && *++from == ' ');
    return n;
}

/* However many workers there are, it is one screen. */
START_TEST(the_more_workers_the_fewer_lines_of_each)
{
    static const struct {
        int workers, each, shown;
    } cases[] = {{1, 4, 1},   {8, 4, 8},   {9, 3, 9},   {10, 3, 10}, {11, 2, 11},
                 {16, 2, 16}, {17, 1, 17}, {32, 1, 32}, {33, 1, 32}};
    uint16_t ports[33] = {0};
    int total = 0, workers = cases[_i].workers;
    struct segment s = make(ports, workers);
    for (int i = 0; i < workers; i++) {
        for (int k = 0; k < 6; k++)
            record(line(&s, i), 1000000000, 2000000000, 0);
    }
    record(line(&s, 0), 3000000000, 0, 0);
    char *text = flight_report_text(&s, 4, 10000000000);
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        total++;
    for (int i = 0; i < cases[_i].shown; i++)
        ck_assert_int_eq(lines_of(text, test_text("rank %d: ", 4 + i)), cases[_i].each);
    ck_assert_int_eq(total, cases[_i].shown * cases[_i].each + (workers > cases[_i].shown));
    ck_assert_int_eq(strstr(text, "and 1 more\n") != NULL, workers > cases[_i].shown);
    ck_assert_int_eq(strstr(text, "rank 5: not in any operation; all_reduce #6 of") != NULL,
                     workers > 1 && cases[_i].each == 1);
    free(text);
    segment_close(&s);
}
END_TEST

static int listen_at(uint16_t *port)
{
    struct netaddr a;
    ck_assert(netaddr_parse_ip(&a, "127.0.0.1", 0));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, &a.sa, a.len), 0);
    ck_assert_int_eq(listen(fd, 4), 0);
    ck_assert_int_eq(getsockname(fd, &a.sa, &a.len), 0);
    *port = (uint16_t)netaddr_port(&a);
    return fd;
}

START_TEST(a_sleeping_worker_is_woken)
{
    uint16_t ports[2];
    _cleanup_fd_ int awake = listen_at(&ports[0]), asleep = listen_at(&ports[1]);
    struct segment s = make(ports, 2);
    struct pollfd p[] = {{.fd = asleep, .events = POLLIN}, {.fd = awake, .events = POLLIN}};
    atomic_store(&line(&s, 1)->polling, 1);
    ck_assert_int_eq(poll(p, 2, 0), 0);
    segment_raise(&s, NULL, "told to");
    ck_assert_int_eq(poll(p, 1, 5000), 1);
    ck_assert_int_eq(poll(&p[1], 1, 0), 0);
    ck_assert_uint_eq(s.header->abort.word, 1);
    segment_close(&s);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("recorded");
    TCase *tc = test_case(s, "recorded", 20);
    tcase_add_test(tc, workers_that_have_hung_are_described);
    tcase_add_loop_test(tc, the_more_workers_the_fewer_lines_of_each, 0, 9);
    tcase_add_test(tc, a_sleeping_worker_is_woken);
    return s;
}

TEST_MAIN(suite)
