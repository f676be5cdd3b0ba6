/* Consoles that are slow, stuck, closed, or do not like to be written to. */
#include "tests/lib/pump.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "core/log.h"
#include "core/mem.h"

START_TEST(stopped_terminal_costs_oldest_lines_and_says_so)
{
    enum { LINES = 100000 }; /* 10 MB; 4 MiB are kept */
    struct fixture f;
    setup_stopped_terminal(&f);
    const char *path = tmppath("log");
    struct stdio_route out = shown(NULL);
    out.file = path;
    struct ends a = open_worker(&f, 3, out, shown(NULL));
    write_numbered(a.out, 10); /* so that the console is in the middle of something */
    stdio_write_line(f.pump, "dlaunch: on standard error\n", 27);
    write_numbered(a.out, LINES); /* comes back: nobody is held up */
    end_worker(&f, 3, &a);
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (f.ndrained == 0) {
        ck_assert_msg(mono_ns() < end, "not drained while the console is stuck");
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    close_pump(&f);
    unsigned lines = 0, gaps = 0, after = 0, last = 0;
    double missing = 0;
    for (char *line = (char *)f.out.data, *nl; *line; line = nl + 1) {
        nl = strchr(line, '\n');
        ck_assert_ptr_nonnull(nl);
        *nl = '\0';
        static const char gap[] = "\x1b[mdlaunch: local rank 3: ";
        if (strncmp(line, gap, sizeof(gap) - 1) == 0) {
            char *rest = size_text(line + sizeof(gap) - 1, &missing);
            char *want = test_text(" of output dropped here: the console is too slow (all of it is "
                                   "in %s)",
                                   path);
            ck_assert_str_eq(rest, want);
            gaps++;
        } else {
            ck_assert_msg(nl - line == 99, "not a whole line: %s", line);
            last = (unsigned)atoi(line);
            lines++;
            after += gaps;
        }
    }
    ck_assert_uint_eq(gaps, 1);
    ck_assert_uint_eq(last, LINES - 1);
    ck_assert_msg(after * 100 > STDIO_CONSOLE_BACKLOG * 9 / 10, "only %u lines kept", after);
    double lost = 100.0 * (LINES + 10 - lines);
    ck_assert_msg(missing > lost * 0.98 && missing < lost * 1.02, "%.0f said, %.0f lost", missing,
                  lost);
    ck_assert_str_eq(text(&f.err), "dlaunch: on standard error\n");
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_size, 100 * (LINES + 10));
    teardown(&f);
}
END_TEST

START_TEST(own_lines_survive_a_gap_and_workers_are_named)
{
    enum { WORKERS = 16 };
    struct fixture f;
    setup_stopped_terminal(&f);
    close_alone(&f, -1);
    open_pump(&f, f.out_w, f.out_w);
    struct ends w[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        char prefix[32];
        snprintf(prefix, sizeof(prefix), "[default%d]:", i);
        w[i] = open_worker(&f, i, shown(prefix), shown(NULL));
    }
    write_numbered(w[0].out, 3000);
    stdio_write_line(f.pump, "dlaunch: worker 5 was killed\n", 29);
    for (int i = 0; i < WORKERS; i++)
        write_numbered(w[i].out, 8000);
    for (int i = 0; i < WORKERS; i++)
        end_worker(&f, i, &w[i]);
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (f.ndrained < WORKERS) {
        ck_assert_msg(mono_ns() < end, "not drained while the console is stuck");
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    close_pump(&f);
    const char *own = strstr(text(&f.out), "\ndlaunch: worker 5 was killed\n");
    ck_assert_msg(own, "dlaunch's own line was dropped");
    const char *gap = strstr(text(&f.out), "\x1b[mdlaunch: [default0]: ");
    ck_assert_msg(gap && gap < own, "the gap is not declared before it");
    ck_assert_ptr_nonnull(strstr(text(&f.out), " of output of other workers dropped here: "));
    ck_assert_ptr_nonnull(strstr(text(&f.out), "[default15]:0007999 "));
    teardown(&f);
}
END_TEST

START_TEST(line_in_progress_is_not_cut_by_a_gap)
{
    struct fixture f;
    setup_stopped_terminal(&f);
    struct ends a = open_worker(&f, 0, shown("[a]:"), shown(NULL));
    struct ends b = open_worker(&f, 1, shown("[b]:"), shown(NULL));
    /* Fill the terminal so that it ends within a line of a. */
    int room = 100000; /* more than it takes */
    char *big = xcalloc(1, (size_t)room + 3001);
    memset(big, 'A', (size_t)room + 3000);
    for (int at = 0; at < room + 3000; at += 4000)
        big[at] = at ? '\n' : 'A';
    big[room + 2999] = '\n';
    ck_assert_int_eq(fd_write_all(a.out, big, (size_t)room + 3000), 0);
    write_numbered(b.out, 60000);
    write_numbered(a.out, 1);
    end_worker(&f, 0, &a);
    end_worker(&f, 1, &b);
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (f.ndrained < 2) {
        ck_assert_msg(mono_ns() < end, "not drained while the console is stuck");
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    close_pump(&f);
    /* Every line is one of a's, one of b's, or the gap's. */
    int gaps = 0;
    for (char *line = (char *)f.out.data, *nl; *line; line = nl + 1) {
        nl = strchr(line, '\n');
        ck_assert_ptr_nonnull(nl);
        *nl = '\0';
        line += strncmp(line, "\x1b[m", 3) == 0 ? 3 : 0;
        gaps += strncmp(line, "dlaunch: [b]: ", 14) == 0;
        const char *rest = line + 4;
        while (strncmp(line, "[a]:A", 5) == 0 && *rest == 'A')
            rest++;
        ck_assert_msg(strncmp(line, "dlaunch: ", 9) == 0 || *rest == '\0' ||
                          (nl - line == 103 && strncmp(line + 12, "xxxx", 4) == 0),
                      "mixed line: %.120s", line);
    }
    ck_assert_int_eq(gaps, 1);
    free(big);
    teardown(&f);
}
END_TEST

START_TEST(closed_reader_stops_the_console_only)
{
    enum { LINES = 5000 };
    struct fixture f;
    setup_open(&f);
    log_set_writer(stdio_write_line, f.pump);
    const char *path = tmppath("log");
    struct stdio_route out = shown(NULL);
    out.file = path;
    struct ends a = open_worker(&f, 0, out, shown(NULL));
    say(a.out, "head\n");
    UNTIL(&f, strcmp(text(&f.out), "head\n") == 0, "not shown");
    close_fd(&f.out_r); /* | head -1 */
    write_numbered(a.out, LINES);
    UNTIL(&f, strstr(text(&f.err), "\n"), "nothing said");
    ck_assert_str_eq(
        text(&f.err),
        "dlaunch: standard output: Broken pipe: its reader has closed it; workers get an "
        "error when they write to it, log files continue\n");
    say(a.err, "stderr is still shown\n");
    UNTIL(&f, strstr(text(&f.err), "still shown\n"), "stderr is gone too");
    end_worker(&f, 0, &a);
    UNTIL(&f, f.ndrained == 1, "not drained");
    log_set_writer(NULL, NULL);
    close_pump(&f);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_size, 5 + 100 * LINES);
    ck_assert_int_eq(sigismember(&(sigset_t){0}, SIGPIPE), 0);
    teardown(&f);
}
END_TEST

START_TEST(close_waits_for_a_slow_reader)
{
    enum { LINES = 20000 };
    struct fixture f;
    setup_open(&f);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    write_numbered(a.out, LINES);
    end_worker(&f, 0, &a);
    begin_close(&f, -1);
    size_t got = 0;
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (got < 100 * LINES) {
        static char chunk[3000];
        struct pollfd p = {f.out_r, POLLIN, 0};
        ck_assert_msg(mono_ns() < end, "only %zu bytes came", got);
        ck_assert_msg(!f.closed || 100 * LINES - got <= 65536, "closed with output left");
        uv_run(&f.loop, UV_RUN_NOWAIT);
        poll(&p, 1, 100);
        ssize_t n = read(f.out_r, chunk, sizeof(chunk));
        got += n > 0 ? (size_t)n : 0;
    }
    loop_run_until(&f.loop, &f.closed, 20, "the pump is closed");
    teardown(&f);
}
END_TEST

START_TEST(close_gives_up_when_told)
{
    struct fixture f;
    setup_open(&f);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    write_numbered(a.out, 20000);
    end_worker(&f, 0, &a);
    /* The pipe is full: without help close would wait for ever. */
    struct pollfd room = {f.out_w, POLLOUT, 0};
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (poll(&room, 1, 0) > 0)
        ck_assert_msg(mono_ns() < end, "the console's pipe is not filled");
    begin_close(&f, -1);
    loop_turns(&f.loop, 3);
    ck_assert(!f.closed);
    stdio_pump_hurry(f.pump);
    loop_run_until(&f.loop, &f.closed, 20, "the pump is closed");
    ck_assert(!f.all);
    teardown(&f);
}
END_TEST

/* A terminal that shows nothing (Ctrl-S), then all of it. */
START_TEST(stopped_terminal_holds_nobody_up)
{
    struct fixture f;
    setup(&f);
    int master, slave;
    make_terminal(&master, &slave);
    int flags = fcntl(slave, F_GETFL);
    open_pump(&f, slave, slave);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    write_numbered(a.out, 20000); /* 2 MB: more than a terminal's buffer */
    end_worker(&f, 0, &a);
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (f.ndrained == 0) {
        ck_assert_msg(mono_ns() < end, "not drained while the terminal is stopped");
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    ck_assert_int_eq(fcntl(slave, F_GETFL), flags); /* shared with the shell */
    close_fd(&f.out_r);
    f.out_r = master;
    fd_set_nonblock(master, true);
    UNTIL(&f, f.out.len == 2000000, "not all of it came");
    ck_assert_ptr_nonnull(strstr(text(&f.out), "\n0019999 "));
    close_alone(&f, -1);
    ck_assert_int_eq(fcntl(slave, F_GETFL), flags);
    close(slave);
    teardown(&f);
}
END_TEST

/* If the pipe cannot be opened again (here: no descriptor is left), each write is preceded by a
 * poll(). */
START_TEST(pipe_that_blocks_holds_nobody_up)
{
    struct fixture f;
    setup_open(&f);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    struct rlimit old, none;
    getrlimit(RLIMIT_NOFILE, &old);
    none = old;
    none.rlim_cur = 64;
    setrlimit(RLIMIT_NOFILE, &none);
    int filler[64], n = 0;
    while (n < 64 && (filler[n] = dup(a.out)) >= 0)
        n++;
    write_numbered(a.out, 20000);
    int flags = fcntl(f.out_w, F_GETFL);
    while (n > 0)
        close(filler[--n]);
    setrlimit(RLIMIT_NOFILE, &old);
    end_worker(&f, 0, &a);
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (f.ndrained == 0) {
        ck_assert_msg(mono_ns() < end, "not drained while the console is stuck");
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    ck_assert_int_eq(flags & O_NONBLOCK, 0);
    close_pump(&f);
    ck_assert_uint_eq(f.out.len, 2000000);
    teardown(&f);
}
END_TEST

/* The master side of a terminal cannot be opened anew at all. */
START_TEST(terminal_that_blocks_holds_nobody_up)
{
    struct fixture f;
    setup(&f);
    int master, slave;
    make_terminal(&master, &slave);
    open_pump(&f, master, master);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    write_numbered(a.out, 10000);
    end_worker(&f, 0, &a);
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (f.ndrained == 0) {
        ck_assert_msg(mono_ns() < end, "not drained while the terminal is stuck");
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    close_fd(&f.out_r);
    f.out_r = slave;
    fd_set_nonblock(slave, true);
    UNTIL(&f, f.out.len == 1000000, "not all of it came");
    close_alone(&f, -1);
    close(master);
    teardown(&f);
}
END_TEST

/* One line of carriage returns, each of which brings the prefix along. */
START_TEST(prefix_that_multiplies_is_bounded)
{
    enum { LEN = 150000 };
    struct fixture f;
    setup_stopped_terminal(&f);
    char *prefix = xmalloc(301), *line = xmalloc(LEN + 1);
    memset(prefix, 'p', 300);
    prefix[300] = '\0';
    memset(line, '\r', LEN);
    line[LEN] = '\n';
    struct ends a = open_worker(&f, 0, shown(prefix), shown(NULL));
    ck_assert_int_eq(fd_write_all(a.out, line, LEN + 1), 0);
    end_worker(&f, 0, &a);
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (f.ndrained == 0) {
        ck_assert_msg(mono_ns() < end, "not drained");
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    close_pump(&f);
    ck_assert_uint_le(f.out.len, STDIO_CONSOLE_BACKLOG + 300000);
    ck_assert_ptr_nonnull(strstr(text(&f.out), "dlaunch: ppp"));
    free(prefix), free(line);
    teardown(&f);
}
END_TEST

START_TEST(regular_file_as_console_is_byte_exact)
{
    struct fixture f;
    setup(&f);
    const char *path = tmppath("console");
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    open_pump(&f, fd, f.err_w);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    write_numbered(a.out, 3000);
    say(a.out, "no newline at the end");
    end_worker(&f, 0, &a);
    UNTIL(&f, f.ndrained == 1, "not drained");
    close_pump(&f);
    close(fd);
    char *all = test_keep(read_file(path));
    ck_assert_uint_eq(strlen(all), 300000 + 21);
    ck_assert_str_eq(all + 300000, "no newline at the end");
    teardown(&f);
}
END_TEST

/* -------------------------------------------------------------------- pipes, which lose nothing */

struct writer {
    pthread_t thread;
    int fd, result;
    unsigned lines;
};

static void *write_lines(void *arg)
{
    struct writer *w = arg;
    static const char rest[] = " 23456789abcdef0123456789abcdef0123456789abcdef0123456789\n";
    char line[64 * 1024 + 1]; /* sprintf() terminates */
    unsigned n = 0;
    while (n < w->lines && w->result == 0) {
        size_t len = 0;
        for (; n < w->lines && len + 64 < sizeof(line); n++)
            len += (size_t)sprintf(line + len, "%06u%s", n, rest);
        w->result = fd_write_all(w->fd, line, len);
    }
    return NULL;
}

static void start_writer(struct writer *w, int fd, unsigned lines)
{
    *w = (struct writer){.fd = fd, .lines = lines};
    ck_assert_int_eq(pthread_create(&w->thread, NULL, write_lines, w), 0);
}

/* Writes lines of 64 bytes until the worker is held up. Returns how many bytes that took: whole
 * pages, and so whole lines. */
static size_t fill(int fd)
{
    static char chunk[1 << 16];
    size_t n = 0;
    memset(chunk, 'f', sizeof(chunk));
    for (size_t i = 63; i < sizeof(chunk); i += 64)
        chunk[i] = '\n';
    fd_set_nonblock(fd, true);
    for (struct pollfd room = {fd, POLLOUT, 0}; poll(&room, 1, 300) > 0;) {
        ssize_t k = write(fd, chunk, sizeof(chunk));
        n += k > 0 ? (size_t)k : 0;
        ck_assert_msg(n < 16 * STDIO_CONSOLE_BACKLOG, "the worker is not held up");
    }
    fd_set_nonblock(fd, false);
    ck_assert_uint_eq(n % 64, 0);
    return n;
}

START_TEST(a_worker_waits_for_the_reader_of_a_pipe)
{
    enum { LINES = 1000000 }; /* 64 MB */
    struct fixture f;
    setup_open(&f);
    const char *path = tmppath("log");
    struct stdio_route out = shown(NULL);
    out.file = path;
    struct ends a = open_worker(&f, 0, out, shown(NULL));
    size_t held = fill(a.out);
    ck_assert_uint_lt(held, STDIO_CONSOLE_BACKLOG + (1 << 20));
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_le(st.st_size, STDIO_CONSOLE_BACKLOG + (1 << 20)); /* what is teed waits too */
    say(a.err, "stderr has a reader\n");
    UNTIL(&f, f.err.len > 0, "one stream holds up the other");
    struct writer w;
    start_writer(&w, a.out, LINES);
    UNTIL(&f, f.out.len == held + 64 * (size_t)LINES, "not all of it came");
    pthread_join(w.thread, NULL);
    for (unsigned i = 0; i < LINES; i++)
        ck_assert_msg((unsigned)atoi((char *)f.out.data + held + 64 * (size_t)i) == i,
                      "line %u is another: %.60s", i, f.out.data + held + 64 * (size_t)i);
    end_worker(&f, 0, &a);
    UNTIL(&f, f.ndrained == 1, "not drained");
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_size, (off_t)f.out.len);
    close_pump(&f);
    teardown(&f);
}
END_TEST

static bool all_have_written(const struct ends *w)
{
    for (int i = 1; i < WORKERS_MAX; i++) {
        int n = 0;
        ck_assert_int_eq(ioctl(w[i].out, FIONREAD, &n), 0);
        if (n == 0)
            return false;
    }
    return true;
}

/* Every worker gets its turn, however many are blocked: at first only the first one is. */
START_TEST(many_workers_wait_for_one_reader)
{
    enum { LINES = 16384 }; /* 1 MiB each: 16 pipes full */
    struct fixture f;
    setup_open(&f);
    static struct ends w[WORKERS_MAX];
    static struct writer writers[WORKERS_MAX];
    static unsigned next[WORKERS_MAX];
    memset(next, 0, sizeof(next));
    for (int i = 0; i < WORKERS_MAX; i++) {
        char prefix[16];
        snprintf(prefix, sizeof(prefix), "[%02d]:", i);
        w[i] = open_worker(&f, i, shown(prefix), shown(NULL));
    }
    size_t lines = fill(w[0].out) / 64 + (WORKERS_MAX - 1) * (size_t)LINES;
    for (int i = 1; i < WORKERS_MAX; i++)
        start_writer(&writers[i], w[i].out, LINES);
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (!all_have_written(w))
        ck_assert_msg(mono_ns() < end, "not all workers have begun");
    UNTIL(&f, f.out.len == lines * 69, "not all of it came");
    for (const char *line = text(&f.out); *line; line += 69) {
        int i = atoi(line + 1);
        ck_assert_msg(line[68] == '\n' && i >= 0 && i < WORKERS_MAX, "mixed: %.69s", line);
        ck_assert_msg(i == 0 || (unsigned)atoi(line + 5) == next[i], "%u: %.69s", next[i], line);
        next[i]++;
        for (int k = 1; i > 0 && next[i] == LINES && k < WORKERS_MAX; k++)
            ck_assert_msg(next[k] > 0, "%d is through before %d has had a turn", i, k);
    }
    for (int i = 0; i < WORKERS_MAX; i++) {
        if (i > 0)
            pthread_join(writers[i].thread, NULL);
        end_worker(&f, i, &w[i]);
    }
    close_pump(&f);
    teardown(&f);
}
END_TEST

/* Workers end, and the job with them, whether anybody reads or not; what they wrote is kept. */
START_TEST(a_worker_that_waited_ends_and_all_comes_out)
{
    struct fixture f;
    setup_open(&f);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    struct ends b = open_worker(&f, 1, shown(NULL), shown(NULL));
    size_t written = fill(a.out) + fill(b.out);
    end_worker(&f, 0, &a);
    end_worker(&f, 1, &b);
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (f.ndrained < 2) {
        ck_assert_msg(mono_ns() < end, "not drained while nobody reads");
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    close_pump(&f);
    ck_assert_uint_eq(f.out.len, written);
    teardown(&f);
}
END_TEST

/* The launcher's own lines wait for the reader as workers' lines do, in bounded memory, and are all
 * written in the end. */
START_TEST(own_lines_wait_for_the_reader)
{
    enum { LINES = 20000 }; /* 600 kB: more than may wait */
    struct fixture f;
    setup(&f);
    open_pump(&f, f.out_w, f.out_w);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    size_t held = fill(a.out);
    for (int i = 0; i < LINES; i++)
        stdio_write_line(f.pump, "dlaunch: this is a line of 30\n", 30);
    UNTIL(&f, f.out.len > held && strstr(text(&f.out), " of its own lines dropped here\n"),
          "dlaunch's own lines did not come");
    unsigned own = 0;
    for (const char *p = text(&f.out); (p = strstr(p, "dlaunch: this is a line of 30\n")); p++)
        own++;
    ck_assert_msg(own > 5000 && own < LINES, "%u lines", own);
    end_worker(&f, 0, &a);
    close_pump(&f);
    teardown(&f);
}
END_TEST

/* A closed reader ends the workers with SIGPIPE, as if they had written to the pipe themselves; log
 * files go on. */
START_TEST(closed_reader_is_a_broken_pipe_for_the_workers)
{
    struct fixture f;
    signal(SIGPIPE, SIG_IGN);
    setup(&f);
    open_pump(&f, f.out_w, f.out_w);
    struct stdio_route teed = shown(NULL);
    teed.file = tmppath("log");
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    struct ends b = open_worker(&f, 1, teed, shown(NULL));
    struct writer held, later;
    fill(a.out);
    start_writer(&held, a.out, 1000000);
    close_fd(&f.out_r);
    pthread_join(held.thread, NULL);
    ck_assert_int_eq(held.result, -EPIPE);
    start_writer(&later, a.err, 1000000);
    pthread_join(later.thread, NULL);
    ck_assert_int_eq(later.result, -EPIPE);
    write_numbered(b.out, 5000);
    end_worker(&f, 0, &a);
    end_worker(&f, 1, &b);
    UNTIL(&f, f.ndrained == 2, "not drained");
    /* The next round's, too. */
    struct ends c = open_worker(&f, 2, shown(NULL), shown(NULL));
    start_writer(&later, c.out, 1000000);
    pthread_join(later.thread, NULL);
    ck_assert_int_eq(later.result, -EPIPE);
    end_worker(&f, 2, &c);
    close_pump(&f);
    struct stat st;
    ck_assert_int_eq(stat(teed.file, &st), 0);
    ck_assert_int_eq(st.st_size, 500000);
    teardown(&f);
}
END_TEST

START_TEST(close_does_not_wait_long_for_a_reader_that_takes_nothing)
{
    struct fixture f;
    setup_open(&f);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    fill(a.out);
    end_worker(&f, 0, &a);
    ck_assert(!close_alone(&f, 0.2));
    open_pump(&f, f.err_w, f.err_w);
    a = open_worker(&f, 0, shown(NULL), shown(NULL));
    say(a.out, "taken at once\n");
    end_worker(&f, 0, &a);
    ck_assert(close_alone(&f, 0.2));
    teardown(&f);
}
END_TEST

/* The message about the closed stream waits in the other stream behind all other output. */
START_TEST(close_does_not_wait_for_a_reader_to_be_told_of_another)
{
    struct fixture f;
    setup_open(&f);
    _cleanup_fd_ int before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    ck_assert_int_eq(dup2(f.err_w, STDERR_FILENO), STDERR_FILENO);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    fill(a.err);
    close_fd(&f.out_r);
    say(a.out, "nobody reads it\n");
    end_worker(&f, 0, &a);
    bool all = close_alone(&f, 0.2);
    ck_assert_int_eq(dup2(before, STDERR_FILENO), STDERR_FILENO);
    ck_assert(!all);
    teardown(&f);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stdio_console");
    TCase *tc = test_case(s, "readers", 60);
    tcase_add_test(tc, stopped_terminal_costs_oldest_lines_and_says_so);
    tcase_add_test(tc, own_lines_survive_a_gap_and_workers_are_named);
    tcase_add_test(tc, line_in_progress_is_not_cut_by_a_gap);
    tcase_add_test(tc, closed_reader_stops_the_console_only);
    tcase_add_test(tc, close_waits_for_a_slow_reader);
    tcase_add_test(tc, close_gives_up_when_told);
    tcase_add_test(tc, stopped_terminal_holds_nobody_up);
    tcase_add_test(tc, pipe_that_blocks_holds_nobody_up);
    tcase_add_test(tc, terminal_that_blocks_holds_nobody_up);
    tcase_add_test(tc, prefix_that_multiplies_is_bounded);
    tcase_add_test(tc, regular_file_as_console_is_byte_exact);
    tc = test_case(s, "pipes", 120);
    tcase_add_test(tc, a_worker_waits_for_the_reader_of_a_pipe);
    tcase_add_test(tc, many_workers_wait_for_one_reader);
    tcase_add_test(tc, a_worker_that_waited_ends_and_all_comes_out);
    tcase_add_test(tc, own_lines_wait_for_the_reader);
    tcase_add_test(tc, closed_reader_is_a_broken_pipe_for_the_workers);
    tcase_add_test(tc, close_does_not_wait_long_for_a_reader_that_takes_nothing);
    tcase_add_test(tc, close_does_not_wait_for_a_reader_to_be_told_of_another);
    return s;
}

TEST_MAIN(suite)
