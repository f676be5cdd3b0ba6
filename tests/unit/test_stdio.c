/* Workers in the pump: opened, ended, opened again; and the last lines that are kept of them. */
#include "tests/lib/pump.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>

#include "agent/output/stdio_tail.h"
#include "core/mem.h"

static int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

START_TEST(pipe_held_by_a_descendant_is_closed)
{
    struct fixture f;
    setup_open(&f);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    int held = fcntl(a.out, F_DUPFD_CLOEXEC, 3);
    say(a.out, "last words\n");
    end_worker(&f, 0, &a);
    uint64_t t0 = mono_ns();
    say(held, "of a descendant\n");
    UNTIL(&f, f.ndrained == 1, "waits for the descendant");
    ck_assert_uint_ge(mono_ns() - t0, (STDIO_DRAIN_MS - 1) * UINT64_C(1000000));
    ck_assert_str_eq(text(&f.out), "last words\nof a descendant\n");
    signal(SIGPIPE, SIG_IGN);
    ck_assert_int_lt(fd_write_all(held, "x", 1), 0);
    close(held);
    close_pump(&f);
    teardown(&f);
}
END_TEST

START_TEST(worker_again_in_the_same_place)
{
    struct fixture f;
    char tail[100];
    setup_open(&f);
    int fds = count_fds();
    for (int i = 0; i < 20; i++) {
        char line[32];
        struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
        struct err e = ERR_INIT;
        int x, y;
        ck_assert_int_eq(stdio_worker_open(f.pump, 0, &(struct stdio_route){0},
                                           &(struct stdio_route){0}, &x, &y, &e),
                         -EBUSY);
        snprintf(line, sizeof(line), "attempt %d\n", i);
        say(a.err, line);
        end_worker(&f, 0, &a);
        stdio_worker_exited(f.pump, 0); /* twice does no harm */
        f.drained[0] = false;
        UNTIL(&f, f.drained[0], "not drained");
        line[strlen(line) - 1] = '\0';
        stdio_worker_tail(f.pump, 0, tail, sizeof(tail));
        ck_assert_str_eq(tail, line);
    }
    ck_assert_int_eq(count_fds(), fds + 1); /* the console, opened anew */
    close_pump(&f);
    teardown(&f);
}
END_TEST

START_TEST(worker_that_cannot_be_opened_leaves_nothing)
{
    struct fixture f;
    setup_open(&f);
    int fds = count_fds(), out, err;
    struct err e = ERR_INIT;
    struct stdio_route bad = {.file = "/nonexistent/file"}, good = shown(NULL);
    ck_assert_int_eq(stdio_worker_open(f.pump, 2, &good, &bad, &out, &err, &e), -ENOENT);
    ck_assert_str_eq(e.msg, "open /nonexistent/file: No such file or directory");
    ck_assert(out == -1 && err == -1);
    ck_assert_int_eq(count_fds(), fds);
    ck_assert_int_eq(stdio_worker_open(f.pump, 1 << 20, &good, &good, &out, &err, &e), -EINVAL);
    struct ends a = open_worker(&f, 2, good, good);
    end_worker(&f, 2, &a);
    UNTIL(&f, f.ndrained == 1, "not drained");
    close_pump(&f);
    teardown(&f);
}
END_TEST

START_TEST(nobody_listens_to_stdout)
{
    struct fixture f;
    struct stat st, null;
    setup(&f);
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    open_pump(&f, fd, f.err_w);
    fstat(fd, &null);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    ck_assert_int_eq(fstat(a.out, &st), 0);
    ck_assert(S_ISCHR(st.st_mode) && st.st_rdev == null.st_rdev);
    ck_assert_int_eq(fstat(a.err, &st), 0);
    ck_assert(S_ISFIFO(st.st_mode));
    struct stdio_route hidden = {0};
    struct ends b = open_worker(&f, 1, hidden, hidden);
    say(b.err, "kept for the report\n");
    end_worker(&f, 0, &a);
    end_worker(&f, 1, &b);
    UNTIL(&f, f.ndrained == 2, "not drained");
    char tail[64];
    stdio_worker_tail(f.pump, 1, tail, sizeof(tail));
    ck_assert_str_eq(tail, "kept for the report");
    close_pump(&f);
    ck_assert_str_eq(text(&f.err), "");
    close(fd);
    teardown(&f);
}
END_TEST

START_TEST(closed_consoles_are_no_trouble)
{
    struct fixture f;
    setup(&f);
    open_pump(&f, 700, 701); /* >&- 2>&- */
    struct ends a =
        open_worker(&f, 0, shown(NULL), (struct stdio_route){.file = tmppath("e"), .console = 1});
    say(a.err, "to the file\n");
    stdio_write_line(f.pump, "dlaunch: nobody hears\n", 22);
    end_worker(&f, 0, &a);
    UNTIL(&f, f.ndrained == 1, "not drained");
    close_alone(&f, -1);
    char *all = test_keep(read_file(tmppath("e")));
    ck_assert_str_eq(all, "to the file\n");
    teardown(&f);
}
END_TEST

START_TEST(close_with_workers_open_loses_nothing)
{
    struct fixture f;
    setup_open(&f);
    struct ends a = open_worker(&f, 0, shown("[a]:"), shown(NULL));
    struct ends b = open_worker(&f, 1, shown("[b]:"), shown(NULL));
    write_numbered(a.out, 500);
    say(b.err, "half a line");
    close_pump(&f);
    ck_assert_uint_eq(f.out.len, 500 * 104);
    ck_assert_str_eq(text(&f.err), "half a line");
    close(a.out), close(a.err), close(b.out), close(b.err);
    teardown(&f);
}
END_TEST

START_TEST(many_workers)
{
    enum { WORKERS = 300 };
    struct fixture f;
    static struct ends w[WORKERS];
    setup(&f);
    struct stdio_pump_opts opts = {.console_out = f.out_w, .console_err = f.err_w};
    ck_assert_int_eq(stdio_pump_open(&f.pump, &f.loop, &opts, NULL), 0);
    for (int i = 0; i < WORKERS; i++)
        w[i] = open_worker(&f, i, shown(NULL), shown(NULL));
    for (int i = 0; i < WORKERS; i++) {
        say(w[i].out, "x\n");
        end_worker(&f, i, &w[i]);
    }
    UNTIL(&f, f.out.len == 2 * WORKERS, "not all of it came");
    close_pump(&f);
    teardown(&f);
}
END_TEST

static const char *tail_of(const char *data, size_t len, size_t cap)
{
    static char out[5000];
    struct stdio_tail t = {0};
    stdio_tail_put(&t, data, len);
    ck_assert_uint_eq(stdio_tail_text(&t, out, cap), strlen(out));
    stdio_tail_fini(&t);
    return out;
}
#define TAIL(s) tail_of(s, sizeof(s) - 1, sizeof((char[4096]){0}))

START_TEST(tail_is_what_a_person_saw)
{
    ck_assert_str_eq(TAIL(""), "");
    ck_assert_str_eq(TAIL("one\ntwo\n"), "one\ntwo");
    ck_assert_str_eq(TAIL("one\n\ntwo\n\n\n"), "one\n\ntwo");
    ck_assert_str_eq(TAIL("10%\r20%\r30%\r\ndone\r\n"), "30%\ndone");
    ck_assert_str_eq(TAIL("\x1b[1;31mError\x1b[0m: \x1b[2Jx\a"), "Error: \\x1b[2Jx\\x07");
    ck_assert_str_eq(TAIL("a\0b\xff\n"), "a\\x00b\\xff");
    struct buf b = BUF_INIT;
    for (int i = 0; i < 100; i++) {
        char line[32];
        buf_put(&b, line, (size_t)sprintf(line, "line %d\n", i));
    }
    const char *tail = tail_of((char *)b.data, b.len, 4096);
    ck_assert_int_eq(strncmp(tail, "line 80\n", 8), 0);
    ck_assert_str_eq(strrchr(tail, '\n'), "\nline 99");
    ck_assert_str_eq(tail_of((char *)b.data, b.len, 20), "line 98\nline 99");
    ck_assert_str_eq(tail_of((char *)b.data, b.len, 6), "...99");
    buf_fini(&b);
    char *big = xcalloc(1, 20000);
    memset(big, 'x', 19999);
    tail = tail_of(big, 19999, 4096);
    ck_assert_int_eq(strncmp(tail, "...xxx", 6), 0);
    ck_assert_uint_eq(strlen(tail), 4095);
    memcpy(big + 19000, "\nend", 5);
    ck_assert_str_eq(tail_of(big, 19004, 4096), "end");
    free(big);
}
END_TEST

/* A recursion's traceback shows where it began and how it ended. */
START_TEST(tail_keeps_both_ends_of_a_traceback)
{
    struct buf b = BUF_INIT;
    static const char begin[] =
        "before\nTraceback (most recent call last):\n  File \"a.py\", line 9\n    a()\n";
    buf_put(&b, begin, sizeof(begin) - 1);
    for (int i = 0; i < 500; i++) {
        char line[64];
        buf_put(&b, line, (size_t)sprintf(line, "  File \"b.py\", line %d\n    b()\n", i));
    }
    buf_put(&b, "RecursionError: too deep\n", 25);
    const char *tail = tail_of((char *)b.data, b.len, 4096);
    static const char head[] =
        "Traceback (most recent call last):\n  File \"a.py\", line 9\n    a()\n"
        "  File \"b.py\", line 0\n    b()\n[frames left out]\n    b()\n";
    ck_assert_int_eq(strncmp(tail, head, sizeof(head) - 1), 0);
    ck_assert_str_eq(strrchr(tail, '\n'), "\nRecursionError: too deep");
    int lines = 1;
    for (const char *p = tail; (p = strchr(p, '\n')); p++)
        lines++;
    ck_assert_int_eq(lines, STDIO_TAIL_LINES);
    for (int i = 0; i < 30; i++) /* what comes later has nothing to do with it */
        buf_put(&b, "later\n", 6);
    ck_assert_int_eq(strncmp(tail_of((char *)b.data, b.len, 4096), "later\n", 6), 0);
    buf_fini(&b);
}
END_TEST

static void put_text(struct buf *b, const char *text, int times)
{
    while (times-- > 0)
        buf_put(b, text, strlen(text));
}

/* Lines of control characters, which are four times as long when they are shown. */
START_TEST(tail_of_a_traceback_of_nonsense)
{
    for (int n = 480; n < 520; n++) { /* one of these fills a buffer to its last byte */
        struct buf b = BUF_INIT;
        put_text(&b, "Traceback (most recent call last):\n ", 1);
        put_text(&b, "\x01", n);
        put_text(&b, "\n a\n ", 1);
        put_text(&b, "\x01", 460);
        put_text(&b, "\n", 1);
        put_text(&b, "  line\n", 40);
        const char *tail = tail_of((char *)b.data, b.len, 4096);
        ck_assert_int_eq(strncmp(tail, "Traceback (most", 15), 0);
        ck_assert_ptr_nonnull(strstr(tail, "[frames left out]\n  line\n"));
        buf_fini(&b);
    }
}
END_TEST

/* A traceback that was handled long ago is not put in front of other lines, though these are
 * indented. */
START_TEST(tail_without_an_old_traceback)
{
    struct buf b = BUF_INIT;
    put_text(&b, "Traceback (most recent call last):\n  File \"old.py\"\nValueError: handled\n", 1);
    put_text(&b, "step\n", 500);
    put_text(&b, "  #1 native_frame\n", 30);
    ck_assert_ptr_null(strstr(tail_of((char *)b.data, b.len, 4096), "old.py"));
    buf_fini(&b);
}
END_TEST

/* PyTorch puts the rank in front of each line. */
START_TEST(tail_of_a_traceback_with_a_margin)
{
    struct buf b = BUF_INIT;
    put_text(&b, "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"a.py\", line 9\n",
             1);
    put_text(&b, "[rank0]:   File \"b.py\", line 3\n[rank0]:     b()\n", 400);
    put_text(&b, "[rank0]: RecursionError: too deep\n", 1);
    const char *tail = tail_of((char *)b.data, b.len, 4096);
    ck_assert_int_eq(strncmp(tail, "[rank0]: Traceback", 18), 0);
    ck_assert_ptr_nonnull(strstr(tail, "a.py\", line 9\n"));
    ck_assert_str_eq(strrchr(tail, '\n'), "\n[rank0]: RecursionError: too deep");
    buf_fini(&b);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stdio");
    TCase *tc = test_case(s, "life", 60);
    tcase_add_test(tc, pipe_held_by_a_descendant_is_closed);
    tcase_add_test(tc, worker_again_in_the_same_place);
    tcase_add_test(tc, worker_that_cannot_be_opened_leaves_nothing);
    tcase_add_test(tc, nobody_listens_to_stdout);
    tcase_add_test(tc, closed_consoles_are_no_trouble);
    tcase_add_test(tc, close_with_workers_open_loses_nothing);
    tcase_add_test(tc, many_workers);
    tcase_add_test(tc, tail_is_what_a_person_saw);
    tcase_add_test(tc, tail_keeps_both_ends_of_a_traceback);
    tcase_add_test(tc, tail_of_a_traceback_of_nonsense);
    tcase_add_test(tc, tail_without_an_old_traceback);
    tcase_add_test(tc, tail_of_a_traceback_with_a_margin);
    return s;
}

TEST_MAIN(suite)
