/* Folded output: what several workers print alike is shown once, nothing else is lost, and the
 * order of each worker's lines stays. */
#include <sys/epoll.h>

#include "agent/output/stdio_console.h"
#include "agent/output/fold_console.h"
#include "tests/lib/folded.h"
#include "tests/lib/pump.h"

#include <stdlib.h>
#include <sys/resource.h>

#include "core/mem.h"

static void open_folding(struct fixture *f, int nworkers, enum fold_mode mode)
{
    setup(f);
    f->nworkers = nworkers;
    f->fold = mode;
    open_pump(f, f->out_w, f->out_w);
}

static struct ends open_rank(struct fixture *f, int rank)
{
    struct stdio_route r = shown(NULL);
    r.rank = rank;
    return open_worker(f, rank, r, r);
}

static void close_all(struct fixture *f, struct ends *w, int n)
{
    for (int i = 0; i < n; i++)
        end_worker(f, i, &w[i]);
    UNTIL(f, f->ndrained == n, "not drained");
    close_pump(f);
    teardown(f);
}

#define TRACE(rank, value)                    \
    "Traceback (most recent call last):\n"    \
    "  File \"/t.py\", line 7, in <module>\n" \
    "    raise ValueError(" value ")\n"       \
    "ValueError: rank " rank " has " value " at 0x7f0" rank "\n"

/* What two workers print, each on its own, and what is shown. Rank 1 writes first. */
static const struct {
    const char *one, *zero, *shown;
} cases[] = {
    {"ready\n", "ready\n", "[0-1]: ready\n"},
    {"rank 1 of 2, loss -0.5e-3\n", "rank 0 of 2, loss 1.25\n",
     "[0-1]: rank 0..1 of 2, loss -0.5e-3..1.25\n"},
    {"a\nb\nc\n", "a\nx\nc\n", "[0-1]: a\n[1]: b\nx\n[0-1]: c\n"},
    {"a\na\na\n", "a\na\n", "[0-1]: a\n[0-1]: a\n[1]: a\n"},
    {"a\nb\n", "b\na\n", "[1]: a\n[0-1]: b\na\n"},
    {"worker1: up\n", "worker0: up\n", "[0-1]: worker0..1: up\n"},
    {"10.0.0.11:80 - 0x7f1c\n", "10.0.0.9:80 - 0x7f0b\n",
     "[0-1]: 10.0.0.9..10.0.0.11:80 - 0x7f0b..0x7f1c\n"},
    {"size 1\n", "size 1 \n", "[1]: size 1\nsize 1 \n"},
    {TRACE("1", "3"), TRACE("0", "3"),
     "[0-1]: Traceback (most recent call last):\n"
     "[0-1]:   File \"/t.py\", line 7, in <module>\n"
     "[0-1]:     raise ValueError(3)\n"
     "[0-1]: ValueError: rank 0..1 has 3 at 0x7f00..0x7f01\n"},
    {"[rank1]: " TRACE("1", "3"), "[rank0]: " TRACE("0", "3"),
     "[0-1]: [rank0..1]: Traceback (most recent call last):\n"
     "[0-1]:   File \"/t.py\", line 7, in <module>\n"
     "[0-1]:     raise ValueError(3)\n"
     "[0-1]: ValueError: rank 0..1 has 3 at 0x7f00..0x7f01\n"},
    {"\n\n", "\n\n", "[0-1]: \n[0-1]: \n"},
    /* More digits than a double has, and than a number that may differ has. */
    {"seed 1234567890123456788\n", "seed 1234567890123456789\n",
     "[0-1]: seed 1234567890123456788..1234567890123456789\n"},
    {"id 0x11111111111111111111111111111111111111111111111111\n",
     "id 0x22222222222222222222222222222222222222222222222222\n",
     "[1]: id 0x11111111111111111111111111111111111111111111111111\n"
     "id 0x22222222222222222222222222222222222222222222222222\n"},
};

START_TEST(alike_lines_are_shown_once)
{
    struct fixture f;
    open_folding(&f, 2, FOLD_ON);
    struct ends w[2] = {open_rank(&f, 0), open_rank(&f, 1)};
    say(w[1].out, cases[_i].one);
    say(w[1].out, "end of 1\n");
    UNTIL(&f, f.out.len == 0, "not held");
    say(w[0].out, cases[_i].zero);
    say(w[0].out, "end of 0\n");
    UNTIL(&f, strstr(text(&f.out), "end of 0..1\n"), "not shown");
    ck_assert_str_eq(text(&f.out), test_text("%s[0-1]: end of 0..1\n", cases[_i].shown));
    close_all(&f, w, 2);
}
END_TEST

/* Lines wait for the others no longer than a window, and a pipe is not folded unless asked. */
START_TEST(a_line_of_one_worker_is_shown_alone)
{
    struct fixture f;
    open_folding(&f, 3, FOLD_ON);
    struct ends w[3] = {open_rank(&f, 0), open_rank(&f, 1), open_rank(&f, 2)};
    say(w[2].out, "mine\n");
    UNTIL(&f, f.out.len == 10, "not shown");
    say(w[0].err, "zero\n");
    UNTIL(&f, f.out.len == 15, "not shown");
    ck_assert_str_eq(text(&f.out), "[2]: mine\nzero\n");
    close_all(&f, w, 3);

    open_folding(&f, 2, FOLD_AUTO);
    w[0] = open_rank(&f, 0);
    w[1] = open_rank(&f, 1);
    say(w[0].out, "same\n");
    say(w[1].out, "same\n");
    UNTIL(&f, f.out.len == 10, "not shown");
    ck_assert_str_eq(text(&f.out), "same\nsame\n");
    close_all(&f, w, 2);
}
END_TEST

/* Takes what the console has got; time does not pass. */
static void expect_shown(int fd, const char *want)
{
    char got[256] = "";
    ssize_t n = read(fd, got, sizeof(got) - 1);
    ck_assert_str_eq(n < 0 ? "" : got, want);
}

/* A group of lines does not wait for workers that are not shown. */
START_TEST(hidden_workers_are_not_waited_for)
{
    int fds[2], epfd = epoll_create1(EPOLL_CLOEXEC);
    struct console c;
    struct fold_source s[3];
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    console_init(&c, fds[1], "standard output", epfd, &c);
    struct fold_console shown = {.console = {&c, &c}};
    const struct fold_out out = {fold_console_show, &shown, FOLD_WINDOW_NS, false};
    struct fold *f = fold_new(&out, 3);
    for (int i = 0; i < 3; i++)
        s[i] = (struct fold_source){.writer = &s[i], .label = stdio_label_new(i, i, "", "")};
    fold_expect(f, 1, false);
    fold_expect(f, 2, false);
    fold_expect(f, 2, false);
    fold_put(f, &s[0], (const uint8_t *)"first\n", 6, 1);
    expect_shown(fds[0], "first\n");
    fold_expect(f, 1, true); /* of the next round */
    fold_put(f, &s[0], (const uint8_t *)"second\n", 7, 2);
    expect_shown(fds[0], "");
    fold_put(f, &s[1], (const uint8_t *)"second\n", 7, 3);
    expect_shown(fds[0], "[0-1]: second\n");
    fold_free(f);
    for (int i = 0; i < 3; i++)
        stdio_label_unref(s[i].label);
    console_fini(&c);
    buf_fini(&shown.page);
    close(fds[0]);
    close(fds[1]);
    close(epfd);
}
END_TEST

/* A traceback that a worker is in the middle of is shown when the worker falls silent or ends. */
START_TEST(an_unfinished_traceback_is_shown)
{
    static const char head[] = "Traceback (most recent call last):\n  File \"x\", line 1\n";
    struct fixture f;
    open_folding(&f, 2, FOLD_ON);
    struct ends w[2] = {open_rank(&f, 0), open_rank(&f, 1)};
    say(w[0].err, head);
    UNTIL(&f, f.out.len == strlen(head), "not shown");
    ck_assert_str_eq(text(&f.out), head);
    say(w[0].err, head);
    say(w[1].err, head);
    close_all(&f, w, 2);
}
END_TEST

/* On a terminal: unfinished lines come at once, behind what the worker printed before, and controls
 * are shown. */
START_TEST(prompts_and_controls_on_a_terminal)
{
    struct fixture f;
    int slave;
    setup(&f);
    f.nworkers = 2;
    close_fd(&f.out_r);
    make_terminal(&f.out_r, &slave);
    fd_set_nonblock(f.out_r, true);
    open_pump(&f, slave, slave);
    struct ends w[2] = {open_rank(&f, 0), open_rank(&f, 1)};
    say(w[1].out, "before\nname? ");
    UNTIL(&f, strstr(text(&f.out), "name? "), "the prompt is not shown");
    ck_assert_str_eq(text(&f.out), "[1]: before\n[1]: name? ");
    say(w[1].out, "x\nsame \x1b[2J\n");
    say(w[0].out, "same \x1b[2J\n");
    UNTIL(&f, strstr(text(&f.out), "2J"), "the rest is not shown");
    ck_assert_str_eq(text(&f.out), "[1]: before\n[1]: name? x\n[0-1]: same \\x1b[2J\n");
    say(w[1].out, " 10%\r 20%\r\n");
    UNTIL(&f, strstr(text(&f.out), "20%\r\n"), "the progress bar is not shown");
    ck_assert_ptr_nonnull(strstr(text(&f.out), "[1]:  10%\r[1]:  20%\r\n"));
    for (int i = 0; i < 2; i++)
        end_worker(&f, i, &w[i]);
    UNTIL(&f, f.ndrained == 2, "not drained");
    close_alone(&f, 1);
    close(slave);
    teardown(&f);
}
END_TEST

/* Random lines of random workers in random pieces: of each worker, a hash over its lines in the
 * order in which the console shows them is that of what it wrote. Some are a flood. */
START_TEST(the_order_of_each_worker_stays)
{
    enum { RANKS = 12, LINES = 3000 };
    struct fixture f;
    struct ends w[RANKS];
    uint64_t want[RANKS] = {0}, got[RANKS] = {0};
    unsigned seed = 11, total = 0, lines = 0;
    open_folding(&f, RANKS, FOLD_ON);
    for (int i = 0; i < RANKS; i++)
        w[i] = open_rank(&f, i);
    for (int n = 0; n < LINES; n++) {
        for (int i = 0; i < RANKS; i++)
            total += folded_write(w[i].out, n, i == 3, &seed, &want[i]);
        uv_run(&f.loop, UV_RUN_NOWAIT);
        read_consoles(&f);
    }
    for (int i = 0; i < RANKS; i++)
        end_worker(&f, i, &w[i]);
    UNTIL(&f, f.ndrained == RANKS, "not drained");
    close_pump(&f);
    folded_lines(text(&f.out), RANKS, got, &lines);
    for (int i = 0; i < RANKS; i++)
        ck_assert_msg(got[i] == want[i], "rank %d: lines are missing or not in order", i);
    ck_assert_uint_lt(lines, total);
    teardown(&f);
}
END_TEST

/* Thousands of workers, the most that descriptors allow: one traceback, its middle left out, and
 * each line that differs. */
START_TEST(one_exception_of_all_workers_is_shown_once)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    int n = files.rlim_cur >= 4 * 4096 + 200 ? 4096 : ((int)files.rlim_cur - 200) / 4;
    struct fixture f;
    struct ends *w = xcalloc((size_t)n, sizeof(*w));
    struct buf trace = BUF_INIT;
    buf_put(&trace, "Traceback (most recent call last):\n", 35);
    for (int i = 0; i < 60; i++) {
        char frame[80];
        int len = snprintf(frame, sizeof(frame), "  File \"m.py\", line %d, in step\n", i);
        buf_put(&trace, frame, (size_t)len);
    }
    open_folding(&f, n, FOLD_ON);
    for (int i = 0; i < n; i++)
        w[i] = open_rank(&f, i);
    for (int i = 0; i < n; i++) {
        char last[100];
        int len = i % 1000 == 999 ? snprintf(last, sizeof(last), "KeyError: '%c'\n", 'a' + i / 1000)
                                  : snprintf(last, sizeof(last), "RuntimeError: rank %d\n", i);
        ck_assert_int_eq(fd_write_all(w[i].err, trace.data, trace.len), 0);
        ck_assert_int_eq(fd_write_all(w[i].err, last, (size_t)len), 0);
        uv_run(&f.loop, UV_RUN_NOWAIT);
        read_consoles(&f);
    }
    for (int i = 0; i < n; i++) {
        close_fd(&w[i].out);
        close_fd(&w[i].err);
    }
    close_pump(&f);
    ck_assert_ptr_nonnull(f.out.data);
    int lines = 0, differ = 0;
    for (const char *p = text(&f.out), *nl; (nl = strchr(p, '\n')); p = nl + 1, lines++) {
        const char *key = strstr(p, "KeyError: ");
        if (key && key < nl)
            ck_assert_int_eq(key[strlen("KeyError: '")], 'a' + differ++);
    }
    ck_assert_int_eq(differ, n / 1000);
    ck_assert_ptr_nonnull(strstr(text(&f.out), "[23 lines left out]\n"));
    ck_assert_int_lt(lines, n);
    buf_fini(&trace);
    free(w);
    teardown(&f);
}
END_TEST

/* Workers that are read one after the other, each with many lines at once. */
START_TEST(a_burst_of_equal_lines_is_folded)
{
    enum { LINES = 5000 };
    struct fixture f;
    open_folding(&f, 2, FOLD_ON);
    struct ends w[2] = {open_rank(&f, 0), open_rank(&f, 1)};
    struct buf lines = BUF_INIT, folded = BUF_INIT;
    for (int i = 0; i < LINES; i++) {
        buf_put(&lines, "layer\n", 6);
        buf_put(&folded, "[0-1]: layer\n", 13);
    }
    buf_put(&lines, "", 1);
    buf_put(&folded, "", 1);
    say(w[1].out, (char *)lines.data);
    say(w[0].out, (char *)lines.data);
    UNTIL(&f, f.out.len >= folded.len - 1, "not shown");
    ck_assert_str_eq(text(&f.out), (char *)folded.data);
    close_all(&f, w, 2);
    buf_fini(&lines);
    buf_fini(&folded);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stdio_fold");
    TCase *tc = test_case(s, "fold", 120);
    tcase_add_loop_test(tc, alike_lines_are_shown_once, 0, ARRAY_LEN(cases));
    tcase_add_test(tc, a_burst_of_equal_lines_is_folded);
    tcase_add_test(tc, a_line_of_one_worker_is_shown_alone);
    tcase_add_test(tc, hidden_workers_are_not_waited_for);
    tcase_add_test(tc, an_unfinished_traceback_is_shown);
    tcase_add_test(tc, prompts_and_controls_on_a_terminal);
    tcase_add_test(tc, the_order_of_each_worker_stays);
    tcase_add_test(tc, one_exception_of_all_workers_is_shown_once);
    return s;
}

TEST_MAIN(suite)
