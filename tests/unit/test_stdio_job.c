/* One console for several nodes: what their workers print alike is shown once, nothing else is
 * lost, and the order of each worker's lines stays. Node 0 shows; each node has a pump. */
#include "agent/output/fold_console.h"
#include "agent/output/stdio_job.h"
#include "tests/lib/folded.h"
#include "tests/lib/pump.h"

#include <stdlib.h>
#include <sys/epoll.h>

#include "core/mem.h"

enum { NODES_MAX = 8, WORKERS = 3 };

static struct fixture nodes[NODES_MAX];
static struct ends ends[NODES_MAX][WORKERS];
static int nnodes;
static size_t untaken[NODES_MAX]; /* node 0 has no room */
static bool lost[NODES_MAX];      /* the node reaches no coordinator */

static void take_back(struct fixture *f, size_t n)
{
    stdio_job_was_taken(f->pump, n);
}

static void on_output(void *fixture, struct buf *records)
{
    struct fixture *f = fixture;
    int i = (int)(f - nodes);
    bool room = stdio_show_job(nodes[lost[i] ? i : 0].pump, records->data, records->len);
    untaken[i] += records->len;
    if (room) {
        take_back(f, untaken[i]);
        untaken[i] = 0;
    }
    buf_fini(records);
}

static void on_room(void *fixture)
{
    (void)fixture;
    for (int i = 0; i < nnodes; i++) {
        take_back(&nodes[i], untaken[i]);
        untaken[i] = 0;
    }
}

static void open_workers(int i, int nworkers)
{
    for (int k = 0; k < nworkers; k++) {
        struct stdio_route r = shown(NULL);
        r.rank = i * nworkers + k;
        ends[i][k] = open_worker(&nodes[i], k, r, r);
    }
}

/* Opens n nodes with `nworkers` workers each; the first one's console is a terminal, or a pipe. */
static void open_nodes(int n, int nworkers, enum fold_mode fold, bool tty)
{
    nnodes = n;
    memset(lost, 0, sizeof(lost));
    memset(untaken, 0, sizeof(untaken));
    for (int i = 0; i < n; i++) {
        struct fixture *f = &nodes[i];
        if (i == 0 && tty)
            setup_tty(f);
        else
            setup(f);
        f->nworkers = nworkers;
        f->fold = fold;
        f->job = true;
        f->on_output = on_output;
        f->on_room = on_room;
        open_pump(f, f->out_w, tty ? f->out_w : f->err_w);
        stdio_begin_job(f->pump, n * nworkers);
        open_workers(i, nworkers);
    }
}

static void turn(void)
{
    for (int i = 1; i < nnodes; i++)
        uv_run(&nodes[i].loop, UV_RUN_NOWAIT);
}

/* As UNTIL() for the console of node 0, while all nodes run. */
#define SHOWN(condition, what) UNTIL(&nodes[0], (turn(), condition), what)

static void end_workers(int i)
{
    for (int k = 0; k < nodes[i].nworkers; k++)
        end_worker(&nodes[i], k, &ends[i][k]);
}

/* Ends all. Node 0 is the last: what the others have held is on its console by then. */
static void close_nodes(void)
{
    for (int i = 0; i < nnodes; i++)
        end_workers(i);
    for (int i = nnodes - 1; i >= 0; i--) {
        SHOWN(nodes[i].ndrained == nodes[i].nworkers, "not drained");
        close_pump(&nodes[i]);
        if (i > 0 && !lost[i]) {
            ck_assert_str_eq(text(&nodes[i].out), "");
            ck_assert_str_eq(text(&nodes[i].err), "");
        }
        nnodes = i;
    }
}

static void teardown_nodes(int n)
{
    for (int i = 0; i < n; i++)
        teardown(&nodes[i]);
}

static void say_all(bool err, const char *line)
{
    for (int i = nnodes - 1; i >= 0; i--) {
        for (int k = 0; k < nodes[i].nworkers; k++)
            say(err ? ends[i][k].err : ends[i][k].out, line);
    }
}

#define TRIES 10 /* on a busy machine alike lines come too far apart to be one */

/* All workers print the unit, which ends with the line `last`, until it is shown as one. */
static void expect_one(bool err, const char *unit, const char *last, const char *want)
{
    const struct buf *shown = err ? &nodes[0].err : &nodes[0].out;
    for (int try = 0; try < TRIES; try++) {
        size_t before = shown->len;
        say_all(err, unit);
        SHOWN(ranks_that_say(text(shown) + before, last) == nnodes * nodes[0].nworkers,
              "not shown");
        if (strcmp(text(shown) + before, want) == 0)
            return;
    }
    ck_abort_msg("never shown as one: %s", text(shown));
}

#define TRACE(rank)                           \
    "Traceback (most recent call last):\n"    \
    "  File \"/t.py\", line 7, in <module>\n" \
    "    raise ValueError(3)\n"               \
    "ValueError: rank " rank " of 9\n"

START_TEST(lines_of_all_nodes_are_one)
{
    open_nodes(3, WORKERS, FOLD_ON, false);
    expect_one(false, "ready\n", "ready", "[0-8]: ready\n");
    size_t len = nodes[0].out.len;
    expect_one(true, TRACE("5"), "ValueError: rank 5 of 9",
               "[0-8]: Traceback (most recent call last):\n"
               "[0-8]:   File \"/t.py\", line 7, in <module>\n"
               "[0-8]:     raise ValueError(3)\n"
               "[0-8]: ValueError: rank 5 of 9\n");
    ck_assert_uint_eq(nodes[0].out.len, len);
    close_nodes();
    teardown_nodes(3);
}
END_TEST

/* The smallest and the largest of the numbers of all nodes, and who does not say the same. */
START_TEST(numbers_and_lines_that_differ)
{
    static const char folded[] = "[1-3]: loss 5..30 at 10.0.0.9..10.0.0.11\n";
    open_nodes(2, 2, FOLD_ON, false);
    for (int try = 0; !strstr(text(&nodes[0].out), folded); try++) {
        size_t before = nodes[0].out.len;
        ck_assert_int_lt(try, TRIES);
        say(ends[1][0].out, "loss 7 at 10.0.0.9\n");
        say(ends[1][1].out, "loss 30 at 10.0.0.11\n");
        say(ends[0][1].out, "loss 5 at 10.0.0.10\n");
        say(ends[0][0].out, "other\n");
        say_all(false, "end\n");
        SHOWN(ranks_that_say(text(&nodes[0].out) + before, "end") == 4, "not shown");
        ck_assert_ptr_nonnull(strstr(text(&nodes[0].out) + before, "other\n"));
    }
    close_nodes();
    teardown_nodes(2);
}
END_TEST

START_TEST(lines_that_are_not_folded_have_their_rank)
{
    open_nodes(2, 2, FOLD_OFF, false);
    say(ends[1][1].out, "half");
    say(ends[1][0].out, "ready\n");
    SHOWN(nodes[0].out.len > 0, "not shown");
    ck_assert_str_eq(text(&nodes[0].out), "[2]: ready\n"); /* no half line in a pipe */
    say(ends[1][1].out, " done\n");
    say(ends[1][1].err, "ready\n");
    SHOWN(nodes[0].out.len >= 26 && nodes[0].err.len > 0, "not shown");
    ck_assert_str_eq(text(&nodes[0].out), "[2]: ready\n[3]: half done\n");
    ck_assert_str_eq(text(&nodes[0].err), "[3]: ready\n");
    say(ends[0][0].out, "no newline");
    close_nodes();
    ck_assert_str_eq(text(&nodes[0].out), "[2]: ready\n[3]: half done\nno newline");
    teardown_nodes(2);
}
END_TEST

/* A prompt, a progress bar and controls of a worker of another node on a terminal. */
START_TEST(unfinished_lines_on_a_terminal)
{
    open_nodes(2, 1, FOLD_ON, true);
    say(ends[1][0].out, "before\nname? ");
    SHOWN(strstr(text(&nodes[0].out), "name? "), "the prompt is not shown");
    ck_assert_str_eq(text(&nodes[0].out), "[1]: before\n[1]: name? ");
    say(ends[1][0].out, "x\nsame \x1b[2J\n");
    say(ends[0][0].out, "same \x1b[2J\n");
    SHOWN(strstr(text(&nodes[0].out), "2J"), "the rest is not shown");
    ck_assert_str_eq(text(&nodes[0].out), "[1]: before\n[1]: name? x\n[0-1]: same \\x1b[2J\n");
    say(ends[1][0].out, " 10%\r 20%\r");
    SHOWN(strstr(text(&nodes[0].out), "[1]:  10%\r[1]:  20%\r"), "no progress bar");
    close_nodes();
    teardown_nodes(2);
}
END_TEST

/* What a node holds is out before its workers count as ended, and what comes after that as well. */
START_TEST(the_end_of_a_round)
{
    open_nodes(2, 2, FOLD_ON, false);
    say(ends[1][0].out, "last\n");
    say(ends[1][1].err, "Traceback (most recent call last):\n  File\n");
    end_workers(1);
    while (nodes[1].ndrained < 2)
        uv_run(&nodes[1].loop, UV_RUN_ONCE);
    SHOWN(nodes[0].out.len && nodes[0].err.len, "not shown");
    ck_assert_str_eq(text(&nodes[0].out), "[2]: last\n");
    ck_assert_str_eq(text(&nodes[0].err), "[3]: Traceback (most recent call last):\n[3]:   File\n");
    nodes[1].ndrained = 0;
    memset(nodes[1].drained, 0, sizeof(nodes[1].drained));
    stdio_begin_job(nodes[0].pump, 4);
    open_workers(1, 2);
    expect_one(false, "again\n", "again", "[0-3]: again\n");
    close_nodes();
    teardown_nodes(2);
}
END_TEST

/* What a worker has printed before comes before a line of dlaunch, although it waits for others. */
START_TEST(own_lines_come_behind)
{
    static const char own[] = "dlaunch: own\n";
    open_nodes(2, 2, FOLD_ON, false);
    bool behind = false;
    for (int try = 0; !behind; try++) {
        size_t before = nodes[0].err.len;
        ck_assert_int_lt(try, TRIES);
        say(ends[1][0].err, TRACE("2"));
        stdio_write_line(nodes[0].pump, own, sizeof(own) - 1);
        SHOWN(strstr(text(&nodes[0].err) + before, own) &&
                  strstr(text(&nodes[0].err) + before, "of 9\n"),
              "not shown");
        behind = strstr(text(&nodes[0].err) + before, "[2]: ValueError: rank 2 of 9\n"
                                                      "dlaunch: own\n");
    }
    say(ends[1][0].err, "after\n");
    SHOWN(strstr(text(&nodes[0].err), "own\n[2]: after\n"), "not shown");
    close_nodes();
    teardown_nodes(2);
}
END_TEST

/* A node that no coordinator takes anything from shows its workers' output itself. */
START_TEST(a_node_alone)
{
    open_nodes(2, 2, FOLD_ON, false);
    lost[1] = true;
    for (int try = 0; !strstr(text(&nodes[0].out), "[0-1]: alone\n") ||
                      !strstr(text(&nodes[1].out), "[2-3]: alone\n");
         try++) {
        size_t before[] = {nodes[0].out.len, nodes[1].out.len};
        ck_assert_int_lt(try, TRIES);
        say_all(false, "alone\n");
        UNTIL(&nodes[1], ranks_that_say(text(&nodes[1].out) + before[1], "alone") == 2,
              "not shown");
        SHOWN(ranks_that_say(text(&nodes[0].out) + before[0], "alone") == 2, "not shown");
    }
    close_nodes();
    teardown_nodes(2);
}
END_TEST

/* Random lines of random workers in random pieces, more than all buffers hold, to a console that is
 * read late: of each worker, a hash over its lines in the order in which the console shows them is
 * that of what it wrote. Some are a flood. */
START_TEST(the_order_of_each_worker_stays)
{
    enum { NODES = 5, RANKS = NODES * WORKERS, LINES = 3000 };
    uint64_t want[RANKS] = {0}, got[RANKS] = {0};
    unsigned seed = 11, total = 0, lines = 0;
    open_nodes(NODES, WORKERS, FOLD_ON, false);
    for (int n = 0; n < LINES; n++) {
        for (int i = 0; i < RANKS; i++)
            total += folded_write(ends[i / WORKERS][i % WORKERS].out, n, i == 7, &seed, &want[i]);
        turn();
        uv_run(&nodes[0].loop, UV_RUN_NOWAIT);
        if (n % 500 == 0)
            read_consoles(&nodes[0]);
    }
    close_nodes();
    folded_lines(text(&nodes[0].out), RANKS, got, &lines);
    for (int i = 0; i < RANKS; i++)
        ck_assert_msg(got[i] == want[i], "rank %d: lines are missing or not in order", i);
    ck_assert_uint_lt(lines, total);
    teardown_nodes(NODES);
}
END_TEST

/* A console that takes nothing stops the workers of all nodes, and loses nothing. */
START_TEST(a_reader_that_is_slow)
{
    enum { LINES = 400000, LEN = 40 };
    char line[LEN + 1];
    uint64_t want = 0, got[2] = {0};
    unsigned lines = 0;
    size_t written = 0, before = SIZE_MAX;
    open_nodes(2, 1, FOLD_ON, false);
    fd_set_nonblock(ends[1][0].out, true);
    struct buf all = BUF_INIT;
    for (int i = 0; i < LINES; i++) {
        snprintf(line, sizeof(line), "%c%c line %031d\n", 'a' + i % 26, 'a' + i / 26 % 26, i);
        buf_put(&all, line, LEN);
        want = folded_mix(want, line, LEN);
    }
    for (uint64_t still = mono_ns(); mono_ns() - still < 500000000; before = written) {
        ssize_t n = write(ends[1][0].out, all.data + written, all.len - written);
        written += n > 0 ? (size_t)n : 0;
        turn();
        uv_run(&nodes[0].loop, UV_RUN_NOWAIT);
        still = written == before ? still : mono_ns();
    }
    ck_assert_msg(written < all.len, "the worker does not wait for the reader");
    while (written < all.len) {
        ssize_t n = write(ends[1][0].out, all.data + written, all.len - written);
        written += n > 0 ? (size_t)n : 0;
        turn();
        uv_run(&nodes[0].loop, UV_RUN_NOWAIT);
        read_consoles(&nodes[0]);
    }
    close_nodes();
    folded_lines(text(&nodes[0].out), 2, got, &lines);
    ck_assert_uint_eq(lines, LINES);
    ck_assert_msg(got[1] == want, "lines are missing or not in order");
    buf_fini(&all);
    teardown_nodes(2);
}
END_TEST

/* ----------------------------------------------------------------------------- thousands of
 * workers
 */

struct place {
    struct stdio_job *job;
    struct fold_source *workers;
};

static void nothing(void *arg)
{
    (void)arg;
}

static void no_stream(void *arg, struct stdio_stream *s)
{
    (void)arg, (void)s;
}

static void pass_on(struct stdio_job *from, struct stdio_job *to)
{
    for (struct buf b; (b = stdio_job_next_page(from)).len; buf_fini(&b)) {
        ck_assert(stdio_job_add(to, b.data, b.len));
        stdio_job_taken(from, b.len);
    }
}

/* 4,096 workers on 512 nodes raise the same exception, a few with other words: within 300 ms there
 * is one traceback of at most 40 lines, and each line that differs. */
START_TEST(one_exception_of_all_nodes_is_shown_once)
{
    enum { NODES = 512, EACH = 8, RANKS = NODES * EACH };
    struct fixture f;
    struct place *all = xcalloc(NODES, sizeof(*all));
    struct console c;
    struct stream_buffers buffers = {.room = xmalloc(STREAM_BEFORE + STREAM_CHUNK)};
    struct buf trace = BUF_INIT;
    int last_line = 0, lines = 0, differ = 0;
    setup(&f);
    console_init(&c, f.out_w, "standard output", epoll_create1(EPOLL_CLOEXEC), &c);
    buf_put(&trace, "Traceback (most recent call last):\n", 35);
    for (int i = 0; i < 60; i++) {
        char frame[80];
        int len = snprintf(frame, sizeof(frame), "  File \"m.py\", line %d, in step\n", i);
        buf_put(&trace, frame, (size_t)len);
    }
    for (int i = 0; i < NODES; i++) {
        const struct stdio_job_opts opts = {.route = {&c, &c},
                                            .buffers = &buffers,
                                            .nworkers = EACH,
                                            .nranks = RANKS,
                                            .fold = true,
                                            .on_page = nothing,
                                            .on_stream = no_stream};
        all[i].job = stdio_job_new(&opts);
        all[i].workers = xcalloc(EACH, sizeof(struct fold_source));
        for (int k = 0; k < EACH; k++) {
            char prefix[24];
            snprintf(prefix, sizeof(prefix), "[%d]: ", EACH * i + k);
            all[i].workers[k] =
                (struct fold_source){.writer = &all[i].workers[k],
                                     .label = stdio_label_new(EACH * i + k, k, prefix, NULL)};
        }
    }
    struct stdio_job *sink = all[0].job;
    stdio_job_begin(sink, RANKS);
    uint64_t start = mono_ns(), now = start;
    for (int i = 0; i < RANKS; i++) {
        char last[100];
        struct place *p = &all[i % NODES]; /* not in the order of the ranks */
        struct fold_source *s = &p->workers[i / NODES];
        int rank = s->label->rank;
        int len = rank % 1000 == 999
                      ? snprintf(last, sizeof(last), "KeyError: '%c'\n", 'a' + rank / 1000)
                      : snprintf(last, sizeof(last), "RuntimeError: rank %d\n", rank);
        fold_put(stdio_job_fold(p->job), s, trace.data, trace.len, now);
        fold_put(stdio_job_fold(p->job), s, (uint8_t *)last, (size_t)len, now);
    }
    double fed = (double)(mono_ns() - start) / 1e6;
    uint64_t end = start + (uint64_t)(test_seconds(20) * 1e9);
    while (differ < RANKS / 1000 || !last_line) {
        now = mono_ns();
        ck_assert_msg(now < end, "not shown");
        for (int i = 0; i < NODES; i++) {
            stdio_job_show(all[i].job, now);
            pass_on(all[i].job, sink);
        }
        stdio_job_take(sink, now);
        console_flush(&c, now);
        read_consoles(&f);
        differ = 0;
        lines = 0;
        for (const char *p = text(&f.out), *nl; (nl = strchr(p, '\n')); p = nl + 1, lines++) {
            const char *key = strstr(p, "KeyError: "), *run = strstr(p, "RuntimeError: ");
            differ += key && key < nl;
            if (run && run < nl)
                last_line = lines + 1;
        }
    }
    double ms = (double)(mono_ns() - start) / 1e6;
    printf("4096 workers: shown after %.0f ms, of which their 512 nodes need %.0f\n", ms, fed);
    ck_assert_int_eq(differ, RANKS / 1000);
    const char *said = strstr(text(&f.out), "RuntimeError: rank 0..4095\n");
    ck_assert_ptr_nonnull(said);
    ck_assert_ptr_null(strstr(said + 1, "RuntimeError"));
    ck_assert_ptr_eq(strstr(text(&f.out), "RuntimeError"), said);
    ck_assert_ptr_nonnull(strstr(text(&f.out), "[23 lines left out]\n"));
    ck_assert_ptr_nonnull(
        strstr(text(&f.out), "[0-998,1000-1998,2000-2998,3000-3998,4000-4095]: "));
    for (int i = 0; i < NODES; i++) {
        for (int k = 0; k < EACH; k++)
            stdio_label_unref(all[i].workers[k].label);
        stdio_job_free(all[i].job);
        free(all[i].workers);
    }
    ck_assert_msg(ms < 1000 * test_seconds(3), "%.0f ms", ms);
    free(all);
    free(buffers.room);
    buf_fini(&trace);
    console_fini(&c);
    close_fd(&c.epfd);
    teardown(&f);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stdio_job");
    TCase *tc = test_case(s, "job", 120);
    tcase_add_test(tc, lines_of_all_nodes_are_one);
    tcase_add_test(tc, numbers_and_lines_that_differ);
    tcase_add_test(tc, lines_that_are_not_folded_have_their_rank);
    tcase_add_test(tc, unfinished_lines_on_a_terminal);
    tcase_add_test(tc, the_end_of_a_round);
    tcase_add_test(tc, own_lines_come_behind);
    tcase_add_test(tc, a_node_alone);
    tcase_add_test(tc, the_order_of_each_worker_stays);
    tcase_add_test(tc, a_reader_that_is_slow);
    tcase_add_test(tc, one_exception_of_all_nodes_is_shown_once);
    return s;
}

TEST_MAIN(suite)
