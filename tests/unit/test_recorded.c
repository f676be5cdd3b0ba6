/* What the report says of the workers' flight recorders; and the knock at their doors. */
#include "tests/lib/test.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/recorded.h"
#include "core/fd.h"
#include "core/netaddr.h"

static struct segment_local *line(const struct segment *s, int i)
{
    return (struct segment_local *)((char *)s->header + s->off_local) + i;
}

static struct segment make(uint16_t ports[2])
{
    static struct rank_table_node node = {.nproc = 2, .base_rank = 4};
    static struct rank_table table = {.nnodes = 1, .world_size = 2};
    struct segment s = SEGMENT_INIT;
    struct err e = ERR_INIT;
    snprintf(node.addr, sizeof(node.addr), "127.0.0.1");
    node.base_rank = 0;
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
    struct segment s = make(ports);
    const uint64_t second = 1000000000;
    ck_assert_ptr_null(recorded_text(&s, 4, 100 * second));
    record(line(&s, 0), 80 * second, 81 * second, 0);
    for (int i = 0; i < 40; i++)
        record(line(&s, 1), 90 * second, 91 * second, 0);
    ck_assert_ptr_null(recorded_text(&s, 4, 100 * second)); /* nobody is in one */
    struct segment_op *op = record(line(&s, 1), 98 * second, 0, 0);
    ck_assert_ptr_null(recorded_text(&s, 4, 100 * second)); /* not for long */
    char *text = recorded_text(&s, 4, 120 * second);
    ck_assert_str_eq(text, "rank 4: in none; all_reduce #1 of 12 f32 (sum) ended 39.0 s ago\n"
                           "rank 5: in all_reduce #41 of 12 f32 (sum) for 22.0 s\n");
    free(text);
    /* One that has timed out tells at once. */
    strcpy(op->group_name, "dp");
    op->result = -5;
    atomic_store(&op->end_ns, 99 * second);
    line(&s, 1)->cause_code = -5;
    line(&s, 1)->state = SEGMENT_LOCAL_FAILED;
    text = recorded_text(&s, 4, 100 * second);
    ck_assert_ptr_nonnull(
        strstr(text, "rank 5: all_reduce #41 of 12 f32 (sum) in group dp failed after 1.0 s\n"));
    free(text);
    /* A worker may write what it likes. */
    memset(line(&s, 0), 0xff, sizeof(struct segment_local));
    memset(op->op, 'x', sizeof(*op) - offsetof(struct segment_op, op));
    text = recorded_text(&s, 4, 100 * second);
    ck_assert_uint_lt(strlen(text), 400);
    ck_assert_ptr_nonnull(strstr(text, "rank 5: "));
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

START_TEST(who_sleeps_at_his_door_is_woken)
{
    uint16_t ports[2];
    _cleanup_fd_ int awake = listen_at(&ports[0]), asleep = listen_at(&ports[1]);
    struct segment s = make(ports);
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
    tcase_add_test(tc, who_sleeps_at_his_door_is_woken);
    return s;
}

TEST_MAIN(suite)
