/* Lines on their way through the pump: whole, in order, under their own names. */
#include "tests/lib/pump.h"

#include <stdlib.h>
#include <sys/wait.h>

#include "agent/output/stdio_stream.h"

static unsigned checksum(unsigned worker, unsigned line)
{
    return (worker * 7919u + line * 104729u) % 1000003u;
}

/* Appends one line of worker's; without a newline. */
static size_t put_line(char *out, unsigned worker, unsigned line, unsigned longest)
{
    size_t len = (size_t)sprintf(out, "w%u %u %u ", worker, line, checksum(worker, line));
    for (unsigned pad = checksum(line, worker) % longest; pad; pad--)
        out[len++] = (char)('a' + pad % 26);
    return len;
}

/* A child that writes `lines` lines; in blocks, as buffered output is written, or in pieces cut at
 * random places. Async-signal-safe. */
static pid_t fork_writer(unsigned worker, unsigned lines, unsigned longest, bool blocks, int fd)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid)
        return pid;
    static char text[1 << 16];
    size_t len = 0;
    unsigned seed = worker + 1;
    for (unsigned i = 0; i < lines; i++) {
        len += put_line(text + len, worker, i, longest);
        text[len++] = '\n';
        bool last = i + 1 == lines;
        while (len >= 8192 || (last && len)) {
            size_t n = blocks ? 8192 : 1 + (size_t)rand_r(&seed) % 8192;
            n = n < len ? n : len;
            if (fd_write_all(fd, text, n) < 0)
                _exit(1);
            memmove(text, text + n, len -= n);
        }
    }
    _exit(0);
}

/* Every line is one of a worker's, whole and in its order. */
static void check_lines(char *all, int workers, unsigned lines, unsigned longest, bool prefixed)
{
    unsigned next[WORKERS_MAX] = {0}, total = 0;
    for (char *line = all, *nl; *line; line = nl + 1, total++) {
        char want[1000];
        unsigned w;
        nl = strchr(line, '\n');
        ck_assert_msg(nl, "the last line has no end: %s", line);
        *nl = '\0';
        if (prefixed) {
            unsigned local = WORKERS_MAX;
            int at = 0;
            ck_assert_msg(sscanf(line, "[default%u]:%n", &local, &at) == 1 && at, "no prefix: %s",
                          line);
            line += at;
            ck_assert_msg(sscanf(line, "w%u ", &w) == 1 && w == local, "mixed line: %s", line);
        }
        ck_assert_msg(sscanf(line, "w%u ", &w) == 1 && (int)w < workers, "mixed line: %s", line);
        want[put_line(want, w, next[w]++, longest)] = '\0';
        ck_assert_str_eq(line, want);
    }
    ck_assert_uint_eq(total, (unsigned)workers * lines);
}

/* 100,000 lines. To a file they may be long; a pipe gets less than a backlog of them, so that
 * nothing is dropped however slow this test is. */
static void many_lines(bool piped)
{
    enum { WORKERS = 8, LINES = 12500 };
    struct fixture f;
    const char *path = tmppath("console");
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    unsigned longest = piped ? 8 : 200;
    setup(&f);
    open_pump(&f, piped ? f.out_w : file, f.err_w);
    struct ends w[WORKERS];
    pid_t pid[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        char prefix[32];
        snprintf(prefix, sizeof(prefix), "[default%d]:", i);
        w[i] = open_worker(&f, i, shown(piped ? prefix : NULL), shown(NULL));
    }
    for (int i = 0; i < WORKERS; i++)
        pid[i] = fork_writer((unsigned)i, LINES, longest, !piped, w[i].out);
    for (int i = 0; i < WORKERS; i++) {
        int status;
        UNTIL(&f, waitpid(pid[i], &status, WNOHANG) == pid[i], "a writer has not ended");
        ck_assert_int_eq(status, 0);
        end_worker(&f, i, &w[i]);
    }
    UNTIL(&f, f.ndrained == WORKERS, "not drained");
    close_pump(&f);
    char *all = piped ? test_text("%s", text(&f.out)) : test_keep(read_file(path));
    check_lines(all, WORKERS, LINES, longest, piped);
    ck_assert_str_eq(text(&f.err), "");
    close(file);
    teardown(&f);
}

START_TEST(lines_of_eight_workers_stay_whole)
{
    many_lines(false);
}
END_TEST

START_TEST(prefixed_lines_of_eight_workers_stay_whole)
{
    many_lines(true);
}
END_TEST

START_TEST(partial_line_is_shown_and_ended_for_another)
{
    struct fixture f;
    setup_tty(&f);
    open_pump(&f, f.out_w, f.out_w);
    struct ends a = open_worker(&f, 0, shown("[a]:"), shown(NULL));
    struct ends b = open_worker(&f, 1, shown("[b]:"), shown(NULL));
    say(a.out, "name? ");
    UNTIL(&f, f.out.len == strlen("[a]:name? "), "the prompt is not shown");
    say(a.out, "x");
    say(a.out, "y\n");
    UNTIL(&f, strchr(text(&f.out), '\n'), "the rest is not shown");
    ck_assert_str_eq(text(&f.out), "[a]:name? xy\n");
    say(a.out, "half");
    UNTIL(&f, strstr(text(&f.out), "half"), "the second prompt is not shown");
    say(b.out, "mine\n");
    UNTIL(&f, strstr(text(&f.out), "mine\n"), "the other's line is not shown");
    say(a.out, "other half\n");
    UNTIL(&f, strstr(text(&f.out), "other half\n"), "the end is not shown");
    ck_assert_str_eq(text(&f.out), "[a]:name? xy\n[a]:half\n[b]:mine\n[a]:other half\n");
    say(b.out, "last words");
    end_worker(&f, 0, &a);
    end_worker(&f, 1, &b);
    UNTIL(&f, f.ndrained == 2, "not drained");
    UNTIL(&f, strstr(text(&f.out), "\n[b]:last words"), "what has no newline is lost");
    close_pump(&f);
    teardown(&f);
}
END_TEST

/* A reader of a pipe sees a prompt, too, and what follows another worker's line begins a new one.
 */
START_TEST(unfinished_line_goes_to_a_pipe_as_well)
{
    struct fixture f;
    setup_open(&f);
    struct ends a = open_worker(&f, 0, shown("[a]:"), shown(NULL));
    struct ends b = open_worker(&f, 1, shown("[b]:"), shown(NULL));
    uint64_t begun = mono_ns();
    say(a.out, "half");
    UNTIL(&f, f.out.len == strlen("[a]:half"), "the unfinished line is not shown");
    ck_assert_uint_ge(mono_ns() - begun, STREAM_KEPT_NS);
    say(b.out, "mine\n");
    UNTIL(&f, strstr(text(&f.out), "mine\n"), "the other's line is not shown");
    say(a.out, " a line\n");
    UNTIL(&f, strstr(text(&f.out), "a line\n"), "the end is not shown");
    ck_assert_str_eq(text(&f.out), "[a]:half\n[b]:mine\n[a]: a line\n");
    end_worker(&f, 0, &a);
    end_worker(&f, 1, &b);
    close_pump(&f);
    teardown(&f);
}
END_TEST

/* One worker without a prefix: what it prints arrives byte for byte, before the line has an end. */
START_TEST(progress_bar_goes_through_a_pipe_update_by_update)
{
    struct fixture f;
    setup_open(&f);
    struct ends a = open_worker(&f, 0, shown(""), shown(NULL));
    say(a.out, "\r 10% \xe2\x96\x88");
    say(a.out, "\r 20%");
    UNTIL(&f, strstr(text(&f.out), "10% \xe2\x96\x88"), "an update waits for the next one's end");
    say(a.out, "\r 30%");
    UNTIL(&f, strstr(text(&f.out), "\r 30%"), "the last update is not shown");
    say(a.out, "\r\n");
    UNTIL(&f, strchr(text(&f.out), '\n'), "not ended");
    ck_assert_str_eq(text(&f.out), "\r 10% \xe2\x96\x88\r 20%\r 30%\r\n");
    end_worker(&f, 0, &a);
    close_pump(&f);
    teardown(&f);
}
END_TEST

START_TEST(line_cut_by_a_full_buffer_waits_for_its_rest)
{
    struct fixture f;
    setup_tty(&f);
    open_pump(&f, f.out_w, f.out_w);
    struct ends a = open_worker(&f, 0, shown("[a]:"), shown(NULL));
    struct ends b = open_worker(&f, 1, shown("[b]:"), shown(NULL));
    char block[8193];
    memset(block, 'a', sizeof(block));
    block[5000] = '\n';
    block[8192] = '\0';
    say(a.out, block);
    UNTIL(&f, strchr(text(&f.out), '\n'), "the whole line is not shown");
    say(b.out, "a prompt"); /* is shown when an unfinished line of a's would have been */
    UNTIL(&f, strstr(text(&f.out), "prompt"), "the prompt is not shown");
    ck_assert_uint_eq(f.out.len, 4 + 5001 + strlen("[b]:a prompt"));
    say(a.out, "end\n");
    UNTIL(&f, strstr(text(&f.out), "aend\n"), "the rest is not shown");
    ck_assert_uint_eq(f.out.len, 4 + 5001 + strlen("[b]:a prompt\n[a]:") + 3191 + strlen("end\n"));
    end_worker(&f, 0, &a);
    end_worker(&f, 1, &b);
    close_pump(&f);
    teardown(&f);
}
END_TEST

START_TEST(quick_progress_bar_is_shown_before_it_ends)
{
    struct fixture f;
    setup_tty(&f);
    open_pump(&f, f.out_w, f.out_w);
    struct ends a = open_worker(&f, 0, shown("[a]:"), shown(NULL));
    int n = 0;
    UNTIL(&f, (say(a.out, "\rstep"), ++n, f.out.len > 0), "never shown");
    say(a.out, "\r\n");
    UNTIL(&f, strchr(text(&f.out), '\n'), "not ended");
    /* Every carriage return but the one before the newline is followed by the prefix. */
    struct buf want = BUF_INIT;
    buf_put(&want, "[a]:", 4);
    for (int i = 0; i < n; i++)
        buf_put(&want, "\r[a]:step", 9);
    buf_put(&want, "\r\n", 3);
    ck_assert_str_eq(text(&f.out), (char *)want.data);
    buf_fini(&want);
    end_worker(&f, 0, &a);
    close_pump(&f);
    teardown(&f);
}
END_TEST

START_TEST(bytes_pass_untouched)
{
    enum { LEN = 300000 };
    struct fixture f;
    setup_open(&f);
    static uint8_t data[LEN];
    unsigned seed = 3;
    for (size_t i = 0; i < LEN; i++) /* all bytes; a line of 200 KiB without end among them */
        data[i] = (uint8_t)(i > 50000 && i < 250000 ? 128 + rand_r(&seed) % 128 : rand_r(&seed));
    data[LEN - 1] = 0xe2; /* ends within a character */
    const char *path = tmppath("out");
    struct stdio_route out = shown(NULL);
    out.file = path;
    struct ends a = open_worker(&f, 0, out, shown(NULL));
    for (size_t at = 0; at < LEN;) {
        size_t n = 1 + (size_t)rand_r(&seed) % 9000;
        n = n < LEN - at ? n : LEN - at;
        ck_assert_int_eq(fd_write_all(a.out, data + at, n), 0);
        at += n;
        uv_run(&f.loop, UV_RUN_NOWAIT);
        read_consoles(&f);
    }
    end_worker(&f, 0, &a);
    UNTIL(&f, f.ndrained == 1, "not drained");
    close_pump(&f);
    ck_assert_uint_eq(f.out.len, LEN);
    ck_assert_mem_eq(f.out.data, data, LEN);
    FILE *file = fopen(path, "r");
    static uint8_t kept[LEN + 1];
    ck_assert_uint_eq(fread(kept, 1, LEN + 1, file), LEN);
    ck_assert_mem_eq(kept, data, LEN);
    fclose(file);
    teardown(&f);
}
END_TEST

START_TEST(own_lines_take_their_turn)
{
    struct fixture f;
    setup_tty(&f);
    open_pump(&f, f.out_w, f.out_w);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    say(a.out, "in the middle of");
    UNTIL(&f, f.out.len > 0, "not shown");
    stdio_write_line(f.pump, "dlaunch: one\n", 13);
    UNTIL(&f, strstr(text(&f.out), "one\n"), "own line missing");
    say(a.err, " a line\n");
    UNTIL(&f, strstr(text(&f.out), "a line\n"), "not shown");
    ck_assert_str_eq(text(&f.out), "in the middle of\ndlaunch: one\n a line\n");
    end_worker(&f, 0, &a);
    close_pump(&f);
    teardown(&f);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stdio_lines");
    TCase *tc = test_case(s, "lines", 60);
    tcase_add_test(tc, lines_of_eight_workers_stay_whole);
    tcase_add_test(tc, prefixed_lines_of_eight_workers_stay_whole);
    tcase_add_test(tc, partial_line_is_shown_and_ended_for_another);
    tcase_add_test(tc, unfinished_line_goes_to_a_pipe_as_well);
    tcase_add_test(tc, progress_bar_goes_through_a_pipe_update_by_update);
    tcase_add_test(tc, line_cut_by_a_full_buffer_waits_for_its_rest);
    tcase_add_test(tc, quick_progress_bar_is_shown_before_it_ends);
    tcase_add_test(tc, bytes_pass_untouched);
    tcase_add_test(tc, own_lines_take_their_turn);
    return s;
}

TEST_MAIN(suite)
