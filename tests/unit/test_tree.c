/* The tree of the launchers: who is whose parent, answers that travel together, and rounds of nodes
 * over real sockets whose messages go down it, also when a node of it does not do its part. */
#include <stdlib.h>

#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/rules/tree.h"
#include "rendezvous/wire/request_log.h"
#include "tests/lib/rdzv_nodes.h"

/* ------------------------------------------------------------------------------------ arithmetic
 */

START_TEST(parent_by_rank)
{
    for (int rank = 1; rank <= 32; rank++)
        ck_assert_int_eq(tree_parent(rank, 0, 32), -1);
    for (int rank = 33; rank < 5000; rank++)
        ck_assert_int_eq(tree_parent(rank, 0, 32), (rank - 1) / 32);
    ck_assert_int_eq(tree_depth(32, 0, 32), 0);
    ck_assert_int_eq(tree_depth(33, 0, 32), 1);
    ck_assert_int_eq(tree_depth(1056, 0, 32), 1);
    ck_assert_int_eq(tree_depth(1057, 0, 32), 2);
    ck_assert_int_eq(tree_depth(65535, 0, 32), 3);
}
END_TEST

/* Wherever the coordinator's node is: every node has a parent in front of it, at most `width` nodes
 * have the same one, and only the last inner node has fewer. */
START_TEST(every_shape)
{
    enum { MOST = 40 };
    for (int n = 1; n <= MOST; n++) {
        for (int width = 1; width <= 8; width++) {
            for (int host = -1; host < n; host++) {
                int children[MOST + 1] = {0}, fewer = 0;
                for (int rank = 0; rank < n; rank++) {
                    if (rank == host)
                        continue;
                    int parent = tree_parent(rank, host, width);
                    ck_assert(parent >= -1 && parent < rank && (parent != host || host < 0));
                    ck_assert_int_eq(tree_depth(rank, host, width),
                                     parent < 0 ? 0 : tree_depth(parent, host, width) + 1);
                    children[parent + 1]++;
                }
                for (int i = 0; i <= n; i++) {
                    ck_assert_int_le(children[i], width);
                    fewer += children[i] > 0 && children[i] < width;
                }
                ck_assert_int_le(fewer, 1);
            }
        }
    }
}
END_TEST

/* --------------------------------------------------------------------------------------- answers
 */

static struct rdzv_answers take(struct tree_answers *a, struct buf *frame)
{
    struct rdzv_answers m;
    buf_fini(frame);
    ck_assert(tree_answers_take(a, NULL, NULL, frame));
    struct rd r = rd_init(frame->data + RDZV_FRAME_HEADER, frame->len - RDZV_FRAME_HEADER);
    ck_assert_uint_eq(frame->data[4], RDZV_MSG_ANSWERS);
    ck_assert(rdzv_get_answers(&r, &m));
    ck_assert_uint_eq(m.id, 7);
    ck_assert_uint_eq(m.to.b[3], 9);
    return m;
}

START_TEST(answers_travel_together)
{
    static const char *const texts[] = {"one", "", "three"};
    struct tree_answers a = {.id = 7, .wanted = 3};
    struct buf frame = BUF_INIT;
    struct rdzv_answer one;
    a.to.b[3] = 9;
    ck_assert(!tree_answers_take(&a, NULL, NULL, &frame));
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        ck_assert(!tree_answers_complete(&a));
        tree_answers_add(&a, (const uint8_t *)texts[i], strlen(texts[i]));
        a.have++;
    }
    ck_assert(tree_answers_complete(&a));
    struct rdzv_answers m = take(&a, &frame);
    ck_assert_int_eq(m.n, 3);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        ck_assert(rdzv_next_answer(&m, &one));
        ck_assert_uint_eq(one.len, strlen(texts[i]));
        ck_assert_int_eq(memcmp(one.data, texts[i], one.len), 0);
    }
    ck_assert(!rdzv_next_answer(&m, &one));
    ck_assert(!tree_answers_take(&a, NULL, NULL, &frame)); /* nothing is sent twice */
    tree_answers_add(&a, (const uint8_t *)"late", 4);
    m = take(&a, &frame);
    ck_assert_int_eq(m.n, 1);
    buf_fini(&frame);
    tree_answers_fini(&a);
}
END_TEST

/* Adds up answers of four bytes; others cannot be merged. */
static bool add_up(void *arg, const struct rdzv_answers *answers, struct buf *out)
{
    struct rdzv_answers rest = *answers;
    uint32_t sum = 0, value;
    struct rdzv_answer one;
    (void)arg;
    while (rdzv_next_answer(&rest, &one)) {
        if (one.len != sizeof(value))
            return false;
        memcpy(&value, one.data, sizeof(value));
        sum += value;
    }
    buf_put(out, &sum, sizeof(sum));
    return true;
}

START_TEST(answers_are_merged)
{
    static const uint32_t numbers[] = {1, 20, 300};
    struct tree_answers a = {.id = 7, .wanted = 3};
    struct buf frame = BUF_INIT;
    struct rdzv_answer one;
    struct rdzv_answers m;
    for (int odd = 0; odd < 2; odd++) {
        for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
            tree_answers_add(&a, (const uint8_t *)&numbers[i], sizeof(numbers[i]));
        if (odd)
            tree_answers_add(&a, (const uint8_t *)"other", 5);
        buf_fini(&frame);
        ck_assert(tree_answers_take(&a, add_up, NULL, &frame));
        struct rd r = rd_init(frame.data + RDZV_FRAME_HEADER, frame.len - RDZV_FRAME_HEADER);
        ck_assert(rdzv_get_answers(&r, &m));
        ck_assert_int_eq(m.n, odd ? 4 : 1);
        ck_assert(rdzv_next_answer(&m, &one));
        ck_assert_uint_eq(one.len, sizeof(uint32_t));
        uint32_t value;
        memcpy(&value, one.data, sizeof(value));
        ck_assert_uint_eq(value, odd ? 1 : 321);
    }
    ck_assert(!tree_answers_take(&a, add_up, NULL, &frame));
    buf_fini(&frame);
    tree_answers_fini(&a);
}
END_TEST

START_TEST(answers_that_are_cut_off)
{
    struct tree_answers a = {.id = 7, .wanted = 1};
    struct buf frame = BUF_INIT;
    a.to.b[3] = 9;
    tree_answers_add(&a, (const uint8_t *)"one", 3);
    tree_answers_add(&a, (const uint8_t *)"", 0);
    take(&a, &frame);
    for (size_t n = RDZV_FRAME_HEADER; n < frame.len; n++) {
        struct rdzv_answers m;
        struct rd r = rd_init(frame.data + RDZV_FRAME_HEADER, n - RDZV_FRAME_HEADER);
        ck_assert(!rdzv_get_answers(&r, &m));
    }
    buf_fini(&frame);
}
END_TEST

static struct shared_buf *some_frame(void)
{
    struct buf b = BUF_INIT;
    buf_u8(&b, 1);
    return shared_buf_new(&b);
}

/* The newest REQUEST_LOG_MAX are kept, by their numbers, whatever numbers come. */
START_TEST(requests_are_numbered)
{
    struct request_log t = {0};
    for (uint32_t i = 1; i <= 3 * REQUEST_LOG_MAX; i += 1 + i % 3) {
        struct shared_buf *s = some_frame();
        request_log_add(&t, i, s);
        ck_assert_uint_eq(t.last, i);
        ck_assert_uint_eq(s->refs, 2);
        ck_assert_ptr_eq(t.frame[i % REQUEST_LOG_MAX], s);
        ck_assert(i % 3 != 2 || !t.frame[(i - 1) % REQUEST_LOG_MAX] || i < 3);
        shared_buf_unref(s);
    }
    struct shared_buf *s = some_frame();
    request_log_add(&t, UINT32_MAX - 1, s);
    ck_assert_uint_eq(t.last, UINT32_MAX - 1);
    for (uint32_t i = 0; i < REQUEST_LOG_MAX; i++)
        ck_assert((t.frame[i] != NULL) == (i == (UINT32_MAX - 1) % REQUEST_LOG_MAX));
    shared_buf_unref(s);
    request_log_clear(&t);
}
END_TEST

/* ---------------------------------------------------------------------------------------- rounds
 */

enum { N = 8 };

static void configure(int n, int width)
{
    int port = unused_port();
    for (int i = 0; i < n; i++) {
        struct rdzv_config *c = config_of(i, RDZV_C10D, port, n, n);
        c->node_rank = i;
        c->tree_width = width;
        c->max_restarts = 3;
        c->is_host = i == 0;
        c->elect = true; /* so that the lists of members go down, too */
        c->keep_alive_interval = 1.2;
    }
}

static void open_all(int n)
{
    for (int i = 0; i < n; i++)
        open_node(i);
    wait_runs(0, n - 1, 1);
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(nodes[i].group_rank, i);
        ck_assert_int_eq(nodes[i].world_size, 2 * n);
    }
}

/* Node i asks all, and gets the answers of those in `from`. */
static void ask(int i, uint64_t id, uint32_t from)
{
    const struct rdzv_request r = {.kind = REQUEST_TOP, .id = id};
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    nodes[i].answered = 0;
    nodes[i].answers = 0;
    ck_assert(rdzv_request(nodes[i].r, &r));
    while (nodes[i].answered < from && mono_ns() < end)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert_uint_eq(nodes[i].answered, from);
}

/* With two children a node, 3 and more are below 1 and 2, and 7 is below 3. */
START_TEST(eight_nodes)
{
    configure(N, 2);
    open_all(N);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(nodes[i].prepares, 1);
    HAS(logs, "this node is below");
    ck_assert_ptr_null(strstr(logs, "the one above this node"));
    for (int i = 0; i < N; i++)
        ask(i, (uint64_t)i, 255);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(nodes[i].requests, N); /* none came twice */
    ck_assert_int_eq(nodes[N - 1].answers, N);
}
END_TEST

START_TEST(eight_nodes_merge)
{
    nodes_merge = add_up;
    configure(N, 3);
    open_all(N);
    ask(5, 1, 255);
    ck_assert_int_eq(nodes[5].answers, 4); /* the coordinator's and those of three children */
    nodes_merge = NULL;
}
END_TEST

/* A round of as many nodes as the tree is wide has no tree. */
START_TEST(no_tree)
{
    configure(3, 3);
    open_all(3);
    ask(1, 1, 7);
    ck_assert_int_eq(nodes[1].answers, 3);
    ck_assert_ptr_null(strstr(logs, "this node is below"));
}
END_TEST

/* A second round has another tree: with other ranks, if a node has left. */
START_TEST(next_round)
{
    configure(N, 2);
    for (int i = 0; i < N; i++) {
        nodes[i].config.min_nodes = N - 1;
        nodes[i].config.last_call_timeout = 0.1;
    }
    open_all(N);
    ask(4, 1, 255);
    worker_fails(6, 3);
    wait_runs(0, N - 1, 2);
    ask(4, 2, 255);
    rdzv_leave(nodes[1].r, STOP_SIGNAL, 143, "told to stop");
    rdzv_stopped(nodes[1].r, NULL, 0);
    wait_finished(1, 1);
    wait_runs(2, N - 1, 3);
    wait_runs(0, 0, 3);
    ask(0, 3, 255 & ~2u);
    ck_assert_ptr_null(strstr(logs, "malformed"));
}
END_TEST

/* An answer that does not come holds up no other one for long. */
START_TEST(a_mute_node)
{
    configure(N, 2);
    nodes[3].mute = true; /* 7 is below it */
    open_all(N);
    ask(0, 1, 255 & ~8u);
}
END_TEST

/* Requests that follow each other closely do not delay the answers to the first. */
START_TEST(a_mute_node_and_many_requests)
{
    const struct rdzv_request first = {.kind = REQUEST_TOP, .id = 1};
    struct rdzv_request more = {.kind = REQUEST_TOP};
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9), next = 0;
    configure(N, 2);
    nodes[3].mute = true;
    open_all(N);
    ck_assert(rdzv_request(nodes[0].r, &first));
    while (nodes[0].answered < (255 & ~8u) && mono_ns() < end) {
        if (mono_ns() >= next) {
            more.id++;
            ck_assert(rdzv_request(nodes[5].r, &more));
            next = mono_ns() + 50 * 1000 * 1000;
        }
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    ck_assert_uint_eq(nodes[0].answered, 255 & ~8u);
}
END_TEST

/* Requests of all kinds come once, in their order, to a node whose parent has gone while the round
 * goes on. */
START_TEST(a_parent_goes)
{
    struct rdzv_request r = {.kind = REQUEST_SIGNAL, .signal.signo = SIGUSR1};
    configure(N, 2);
    pid_t child;
    for (int i = 0; i < N; i++) {
        if (i == 1)
            continue;
        open_node(i);
    }
    child = fork_node(1); /* 3 and 4 are its children */
    wait_runs(2, N - 1, 1);
    wait_runs(0, 0, 1);
    kill(child, SIGSTOP); /* its children do not notice */
    ck_assert(rdzv_request(nodes[0].r, &r));
    wait_requests(2, 2, 1);
    wait_requests(5, 6, 1);
    wait_requests(0, 0, 1);
    ck_assert_int_eq(nodes[3].requests + nodes[4].requests + nodes[7].requests, 0);
    kill(child, SIGKILL);
    wait_requests(2, N - 1, 1);
    wait_logged("the one above this node");
    for (int i = 2; i < N; i++)
        ck_assert_int_eq(nodes[i].requests, 1);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    wait_stops(2, N - 1, 1);
}
END_TEST

/* The parent takes the connections of its children and sends nothing: the coordinator sends the
 * list of the members, behind which the nodes prepare. */
START_TEST(a_parent_is_frozen)
{
    configure(N, 2);
    open_node(0);
    pid_t child = fork_node(1);
    wait_logged("node1");
    kill(child, SIGSTOP);
    for (int i = 2; i < N; i++)
        open_node(i);
    while (nodes[3].prepares + nodes[4].prepares + nodes[7].prepares < 3)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert_ptr_nonnull(strstr(logs, "it sends nothing"));
    kill(child, SIGCONT);
    wait_runs(2, N - 1, 1);
    wait_runs(0, 0, 1);
    for (int i = 2; i < N; i++)
        ck_assert_int_eq(nodes[i].prepares, 1);
    const struct rdzv_request r = {.kind = REQUEST_SIGNAL, .signal.signo = SIGUSR1};
    for (int count = 1; count <= 3; count++) {
        ck_assert(rdzv_request(nodes[7].r, &r));
        wait_requests(2, N - 1, count);
    }
    for (int i = 2; i < N; i++)
        ck_assert_int_eq(nodes[i].requests, 3); /* none came twice */
    kill(child, SIGKILL);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}
END_TEST

/* A node that does not listen has no children. */
START_TEST(parents_that_do_not_listen)
{
    configure(N, 2);
    for (int i = 0; i < N; i++) {
        nodes[i].config.tree_width = i ? 100 : 2;
        nodes[i].config.elect = false;
    }
    open_all(N);
    ask(7, 1, 255);
    ck_assert_int_eq(nodes[7].answers, N);
}
END_TEST

/* The coordinator is lost: another one is elected by the lists that came down the tree, and the
 * next round has a tree under it. */
/* A coordinator that is killed with messages unread resets its connections. That proves nothing: a
 * node may come only after the dead time, and the next round waits for all that are left. */
START_TEST(the_coordinator_goes)
{
    configure(N, 2);
    for (int i = 0; i < N; i++) {
        nodes[i].config.min_nodes = N - 1;
        nodes[i].config.last_call_timeout = 1;
    }
    pid_t child = fork_node(0);
    for (int i = 1; i < N; i++)
        open_node(i);
    wait_runs(1, N - 1, 1);
    kill(child, SIGKILL);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    wait_runs(1, N - 1, 2);
    ck_assert_int_eq(nodes[7].nnodes, N - 1);
    ask(7, 1, 255 & ~1u);
    ck_assert_ptr_null(strstr(logs, "malformed"));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("tree");
    TCase *tc = test_case(s, "arithmetic", 20);
    tcase_add_test(tc, parent_by_rank);
    tcase_add_test(tc, every_shape);
    tc = test_case(s, "answers", 10);
    tcase_add_test(tc, answers_travel_together);
    tcase_add_test(tc, answers_are_merged);
    tcase_add_test(tc, answers_that_are_cut_off);
    tcase_add_test(tc, requests_are_numbered);
    tc = net_case(s, "rounds", 60);
    tcase_add_test(tc, eight_nodes);
    tcase_add_test(tc, eight_nodes_merge);
    tcase_add_test(tc, no_tree);
    tcase_add_test(tc, next_round);
    tcase_add_test(tc, a_mute_node);
    tcase_add_test(tc, a_mute_node_and_many_requests);
    tcase_add_test(tc, a_parent_goes);
    tcase_add_test(tc, a_parent_is_frozen);
    tcase_add_test(tc, parents_that_do_not_listen);
    tcase_add_test(tc, the_coordinator_goes);
    return s;
}

TEST_MAIN(suite)
