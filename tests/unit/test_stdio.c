/* The pump, with real pipes, terminals, files and slow, stuck and closed readers. */
#include "tests/lib/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "agent/stdio.h"
#include "agent/stdio_logfile.h"
#include "agent/stdio_tail.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "tests/lib/loop.h"

#define WORKERS_MAX 64

/* A pump whose consoles are pipes that the test reads. */
struct fixture {
    uv_loop_t loop;
    struct stdio_pump *pump;
    int out_r, out_w, err_r, err_w;
    struct buf out, err; /* what has come out, terminated */
    bool drained[WORKERS_MAX];
    int ndrained;
    char *const *dup_stdout;
    atomic_bool give_up;
};

static void on_drained(void *arg, int local_rank)
{
    struct fixture *f = arg;
    ck_assert(!f->drained[local_rank]);
    f->drained[local_rank] = true;
    f->ndrained++;
}

static void open_pump(struct fixture *f, int console_out, int console_err)
{
    struct err e = ERR_INIT;
    struct stdio_pump_opts opts = {.console_out = console_out,
                                   .console_err = console_err,
                                   .dup_stdout = f->dup_stdout,
                                   .give_up = &f->give_up,
                                   .on_drained = on_drained,
                                   .arg = f};
    ck_assert_msg(stdio_pump_open(&f->pump, &f->loop, &opts, &e) == 0, "%s", e.msg);
}

static void make_pipe(int *r, int *w)
{
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    *r = ends[0];
    *w = ends[1];
    fd_set_nonblock(*r, true);
}

static void setup(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    loop_setup(&f->loop);
    make_pipe(&f->out_r, &f->out_w);
    make_pipe(&f->err_r, &f->err_w);
}

static void setup_open(struct fixture *f)
{
    setup(f);
    open_pump(f, f->out_w, f->err_w);
}

static void drain(int fd, struct buf *b)
{
    for (ssize_t n = 1; fd >= 0 && n > 0;) {
        ck_assert(buf_reserve(b, 65537));
        n = read(fd, b->data + b->len, 65536);
        b->len += n > 0 ? (size_t)n : 0;
        b->data[b->len] = '\0';
    }
}

static void read_consoles(struct fixture *f)
{
    drain(f->out_r, &f->out);
    drain(f->err_r, &f->err);
}

static const char *text(const struct buf *b)
{
    return b->data ? (const char *)b->data : "";
}

/* Runs the loop and reads the consoles until the condition holds. */
#define UNTIL(f, condition, what)                                                                 \
    do {                                                                                          \
        uint64_t end_ = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);                           \
        while (!(condition)) {                                                                    \
            ck_assert_msg(mono_ns() < end_, "%s\n--- out (%zu)\n%.2000s\n--- err\n%.2000s", what, \
                          (f)->out.len, text(&(f)->out), text(&(f)->err));                        \
            uv_run(&(f)->loop, UV_RUN_NOWAIT);                                                    \
            read_consoles(f);                                                                     \
            struct pollfd fds_[2] = {{(f)->out_r, POLLIN, 0}, {(f)->err_r, POLLIN, 0}};           \
            poll(fds_, 2, 1);                                                                     \
        }                                                                                         \
    } while (0)

/* Closes the pump while a reader keeps its consoles empty. */
static void *read_on(void *arg)
{
    struct fixture *f = arg;
    struct pollfd fds[2] = {{f->out_r, POLLIN, 0}, {f->err_r, POLLIN, 0}};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        poll(fds, 2, -1);
        read_consoles(f);
        for (int i = 0; i < 2; i++) {
            if ((fds[i].revents & POLLHUP) && !(fds[i].revents & POLLIN))
                fds[i].fd = -1;
        }
    }
    return NULL;
}

static void close_pump(struct fixture *f)
{
    pthread_t reader;
    ck_assert_int_eq(pthread_create(&reader, NULL, read_on, f), 0);
    stdio_pump_close(f->pump);
    close_fd(&f->out_w);
    close_fd(&f->err_w);
    pthread_join(reader, NULL);
}

static void teardown(struct fixture *f)
{
    close_fd(&f->out_w);
    close_fd(&f->err_w);
    close_fd(&f->out_r);
    close_fd(&f->err_r);
    buf_fini(&f->out);
    buf_fini(&f->err);
    loop_teardown(&f->loop);
}

static struct stdio_route shown(const char *prefix)
{
    return (struct stdio_route){.console = true, .prefix = prefix};
}

struct ends {
    int out, err;
};

static struct ends open_worker(struct fixture *f, int rank, struct stdio_route out,
                               struct stdio_route err)
{
    struct err e = ERR_INIT;
    struct ends w;
    ck_assert_msg(stdio_worker_open(f->pump, rank, &out, &err, &w.out, &w.err, &e) == 0, "%s",
                  e.msg);
    return w;
}

static void say(int fd, const char *s)
{
    ck_assert_int_eq(fd_write_all(fd, s, strlen(s)), 0);
}

static void end_worker(struct fixture *f, int rank, struct ends *w)
{
    close_fd(&w->out);
    close_fd(&w->err);
    stdio_worker_exited(f->pump, rank);
}

static int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* ------------------------------------------------------------------------------------- lines */

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
static void check_lines(char *all, int workers, unsigned lines, unsigned longest)
{
    unsigned next[WORKERS_MAX] = {0}, total = 0;
    for (char *line = all, *nl; *line; line = nl + 1, total++) {
        char want[1000];
        unsigned w;
        nl = strchr(line, '\n');
        ck_assert_msg(nl, "the last line has no end: %s", line);
        *nl = '\0';
        ck_assert_msg(sscanf(line, "w%u ", &w) == 1 && (int)w < workers, "mixed line: %s", line);
        want[put_line(want, w, next[w]++, longest)] = '\0';
        ck_assert_str_eq(line, want);
    }
    ck_assert_uint_eq(total, (unsigned)workers * lines);
}

/* What a worker's lines hold, prefixes and newlines taken out, is what it wrote: a line may have
 * been shown in two parts (its writer paused within it), but each under its own name. */
static void check_parts(char *all, int workers, unsigned lines, unsigned longest)
{
    struct buf got[WORKERS_MAX] = {0};
    for (char *line = all, *nl; *line; line = nl + 1) {
        unsigned w;
        int at = 0;
        nl = strchr(line, '\n');
        ck_assert_msg(nl, "the last line has no end: %s", line);
        *nl = '\0';
        ck_assert_msg(sscanf(line, "[default%u]:%n", &w, &at) == 1 && at && (int)w < workers,
                      "no prefix: %s", line);
        buf_put(&got[w], line + at, (size_t)(nl - line - at));
    }
    for (int w = 0; w < workers; w++) {
        size_t at = 0;
        for (unsigned i = 0; i < lines; i++) {
            char want[1000];
            size_t n = put_line(want, (unsigned)w, i, longest);
            ck_assert_msg(at + n <= got[w].len && memcmp(got[w].data + at, want, n) == 0,
                          "worker %d, line %u: %.*s", w, i, (int)n, (char *)got[w].data + at);
            at += n;
        }
        ck_assert_uint_eq(at, got[w].len);
        buf_fini(&got[w]);
    }
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
    if (piped)
        check_parts(test_text("%s", text(&f.out)), WORKERS, LINES, longest);
    else
        check_lines(test_keep(read_file(path)), WORKERS, LINES, longest);
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
    setup_open(&f);
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

START_TEST(line_cut_by_a_full_buffer_waits_for_its_rest)
{
    struct fixture f;
    setup_open(&f);
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
    setup_open(&f);
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
    setup(&f);
    open_pump(&f, f.out_w, f.out_w); /* 2>&1 */
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

/* -------------------------------------------------------------------------- slow and dead readers
 */

/* Writes `lines` numbered lines; the console is not read meanwhile. */
static void write_numbered(int fd, unsigned lines)
{
    static char line[128];
    for (unsigned i = 0; i < lines; i++) {
        int n = snprintf(line, sizeof(line), "%07u ", i);
        memset(line + n, 'x', 91);
        line[99] = '\n';
        ck_assert_int_eq(fd_write_all(fd, line, 100), 0);
    }
}

static char *size_text(char *p, double *bytes)
{
    static const char *const units[] = {" bytes", " KiB", " MiB"};
    char *end;
    *bytes = strtod(p, &end);
    for (size_t i = 0; i < 3; i++, *bytes *= 1024) {
        if (strncmp(end, units[i], strlen(units[i])) == 0)
            return end + strlen(units[i]);
    }
    ck_abort_msg("no size: %.60s", p);
}

START_TEST(stuck_reader_costs_oldest_lines_and_says_so)
{
    enum { LINES = 100000 }; /* 10 MB; 4 MiB are kept */
    struct fixture f;
    setup_open(&f);
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
        static const char gap[] = "dlaunch: local rank 3: ";
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
    setup(&f);
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
    const char *gap = strstr(text(&f.out), "\ndlaunch: [default0]: ");
    ck_assert_msg(gap && gap < own, "the gap is not declared before it");
    ck_assert_ptr_nonnull(strstr(text(&f.out), " of output of other workers dropped here: "));
    ck_assert_ptr_nonnull(strstr(text(&f.out), "[default15]:0007999 "));
    teardown(&f);
}
END_TEST

START_TEST(line_in_progress_is_not_cut_by_a_gap)
{
    struct fixture f;
    setup_open(&f);
    struct ends a = open_worker(&f, 0, shown("[a]:"), shown(NULL));
    struct ends b = open_worker(&f, 1, shown("[b]:"), shown(NULL));
    /* Fill the console's pipe so that it ends within a line of a. */
    int room = fcntl(f.out_w, F_GETPIPE_SZ);
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
        gaps += strncmp(line, "dlaunch: [b]: ", 14) == 0;
        size_t as = strncmp(line, "[a]:A", 5) == 0 ? strspn(line + 4, "A") : 0;
        ck_assert_msg(strncmp(line, "dlaunch: ", 9) == 0 || line[4 + as] == '\0' ||
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
    ck_assert_str_eq(text(&f.err), "dlaunch: standard output: Broken pipe: the workers' output is "
                                   "not shown any more; the job goes on\n");
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

struct closer {
    struct stdio_pump *pump;
    _Atomic bool closed;
};

static void *close_it(void *arg)
{
    struct closer *c = arg;
    stdio_pump_close(c->pump);
    c->closed = true;
    return NULL;
}

START_TEST(close_waits_for_a_slow_reader)
{
    enum { LINES = 20000 };
    struct fixture f;
    setup_open(&f);
    struct ends a = open_worker(&f, 0, shown(NULL), shown(NULL));
    write_numbered(a.out, LINES);
    end_worker(&f, 0, &a);
    struct closer c = {f.pump, false};
    pthread_t closing;
    pthread_create(&closing, NULL, close_it, &c);
    size_t got = 0;
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (got < 100 * LINES) {
        static char chunk[3000];
        struct pollfd p = {f.out_r, POLLIN, 0};
        ck_assert_msg(mono_ns() < end, "only %zu bytes came", got);
        ck_assert_msg(!c.closed || 100 * LINES - got <= 65536, "closed with output left");
        poll(&p, 1, 100);
        ssize_t n = read(f.out_r, chunk, sizeof(chunk));
        got += n > 0 ? (size_t)n : 0;
    }
    pthread_join(closing, NULL);
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
    struct closer c = {f.pump, false};
    pthread_t closing;
    /* The pipe is full: without help close would wait for ever. */
    struct pollfd room = {f.out_w, POLLOUT, 0};
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (poll(&room, 1, 0) > 0)
        ck_assert_msg(mono_ns() < end, "the console's pipe is not filled");
    pthread_create(&closing, NULL, close_it, &c);
    ck_assert(!c.closed);
    f.give_up = true;
    pthread_join(closing, NULL);
    ck_assert(c.closed);
    teardown(&f);
}
END_TEST

/* A terminal that shows nothing (Ctrl-S), then all of it. */
START_TEST(stopped_terminal_holds_nobody_up)
{
    struct fixture f;
    setup(&f);
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(master, 0);
    grantpt(master);
    unlockpt(master);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(slave, 0);
    struct termios raw;
    tcgetattr(slave, &raw);
    cfmakeraw(&raw);
    tcsetattr(slave, TCSANOW, &raw);
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
    stdio_pump_close(f.pump);
    ck_assert_int_eq(fcntl(slave, F_GETFL), flags);
    close(slave);
    teardown(&f);
}
END_TEST

/* Where the pipe cannot be opened anew (here: no descriptor is left), each write is asked for. */
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
    struct termios raw;
    setup(&f);
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(master, 0);
    grantpt(master);
    unlockpt(master);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(slave, 0);
    tcgetattr(slave, &raw);
    cfmakeraw(&raw);
    tcsetattr(slave, TCSANOW, &raw);
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
    stdio_pump_close(f.pump);
    close(master);
    teardown(&f);
}
END_TEST

/* One line of carriage returns, each of which brings the prefix along. */
START_TEST(prefix_that_multiplies_is_bounded)
{
    enum { LEN = 150000 };
    struct fixture f;
    setup_open(&f);
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

/* --------------------------------------------------------------------------------------- files */

/* A tmpfs of 1 MiB that nobody else sees; NULL when that is not possible here. */
static const char *small_disk(void)
{
    const char *dir = tmppath("disk");
    mkdir(dir, 0700);
    if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", dir, "tmpfs", 0, "size=1m") < 0)
        return NULL;
    return dir;
}

START_TEST(full_disk_is_said_and_survived)
{
    enum { LINES = 20000 }; /* 2 MB */
    const char *dir = small_disk();
    if (!dir) {
        test_skip("full_disk_is_said_and_survived: needs root and a mount namespace");
        return;
    }
    struct fixture f;
    setup_open(&f);
    log_set_writer(stdio_write_line, f.pump);
    char *ballast = test_text("%s/ballast", dir), *path = test_text("%s/log", dir);
    int fd = open(ballast, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ck_assert_int_eq(posix_fallocate(fd, 0, 512 << 10), 0);
    close(fd);
    struct ends a = open_worker(&f, 0, (struct stdio_route){.file = path}, shown(NULL));
    struct ends b =
        open_worker(&f, 1, (struct stdio_route){.file = test_text("%s/log2", dir)}, shown(NULL));
    write_numbered(a.out, LINES);
    write_numbered(b.out, LINES);
    UNTIL(&f, strstr(text(&f.err), "\n"), "nothing said");
    end_worker(&f, 1, &b);
    UNTIL(&f, f.ndrained == 1, "not drained");
    unlink(ballast); /* there is room again: the last words go in */
    end_worker(&f, 0, &a);
    UNTIL(&f, f.ndrained == 2, "not drained");
    log_set_writer(NULL, NULL);
    close_pump(&f);
    char *all = test_keep(read_file(path)), *gap = strstr(all, "dlaunch: ");
    ck_assert_msg(gap, "no word in the file");
    ck_assert(gap == all || gap[-1] == '\n');
    double missing;
    ck_assert_str_eq(size_text(gap + 9, &missing),
                     " of output missing here: No space left on device\n");
    double lost = 100.0 * LINES - (double)(gap - all);
    ck_assert_msg(missing > lost * 0.95 && missing < lost * 1.05, "%.0f said, %.0f lost", missing,
                  lost);
    char *want = test_text("dlaunch: %s: No space left on device: output is counted, not kept, "
                           "until it takes some again\n",
                           strstr(text(&f.err), "/log2:") ? test_text("%s/log2", dir) : path);
    ck_assert_int_eq(strncmp(text(&f.err), want, strlen(want)), 0);
    const char *sum = text(&f.err) + strlen(want);
    ck_assert_int_eq(strncmp(sum, "dlaunch: ", 9), 0);
    size_text((char *)sum + 9, &missing);
    ck_assert_ptr_nonnull(strstr(sum, " of output missing at the end of 1 log file: "));
    ck_assert_ptr_nonnull(strstr(sum, "/log2\n"));
    teardown(&f);
}
END_TEST

START_TEST(log_file_is_tried_again)
{
    const char *dir = small_disk();
    if (!dir) {
        test_skip("log_file_is_tried_again: needs root and a mount namespace");
        return;
    }
    static char big[1 << 20];
    char *path = test_text("%s/log", dir), *ballast = test_text("%s/ballast", dir);
    uint64_t now = 1, later = now + (STDIO_RETRY_S + 1) * UINT64_C(1000000000);
    struct logfile f;
    struct err e = ERR_INIT;
    memset(big, 'b', sizeof(big));
    ck_assert_msg(logfile_open(&f, path, &e) == 0, "%s", e.msg);
    ck_assert(logfile_write(&f, "begin\n", 6, now));
    int fd = open(ballast, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ck_assert_int_lt(fd_write_all(fd, big, sizeof(big)), 0);
    close(fd);
    ck_assert(!logfile_write(&f, big, 10000, now)); /* said once: */
    ck_assert(logfile_write(&f, "x", 1, now));
    ck_assert(logfile_write(&f, "x", 1, later)); /* still full */
    ck_assert_int_eq(f.error, ENOSPC);
    unlink(ballast);
    ck_assert(logfile_write(&f, "x", 1, later)); /* not yet time */
    ck_assert(logfile_write(&f, "after\n", 6, 2 * later));
    ck_assert(logfile_write(&f, "end\n", 4, 2 * later));
    ck_assert_uint_eq(logfile_close(&f), 0);
    char *all = test_keep(read_file(path));
    const char *gap = strstr(all, "dlaunch: ");
    ck_assert(gap && gap[-1] == '\n' && gap >= all + 6);
    double missing;
    ck_assert_str_eq(size_text((char *)gap + 9, &missing),
                     " of output missing here: No space left on device\nafter\nend\n");
}
END_TEST

START_TEST(files_that_are_not_files_are_refused)
{
    struct logfile f;
    struct err e = ERR_INIT;
    const char *fifo = tmppath("fifo"), *link = tmppath("link");
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ck_assert_int_eq(symlink(tmppath("target"), link), 0);
    ck_assert_int_lt(logfile_open(&f, fifo, &e), 0);
    ck_assert_int_eq(logfile_open(&f, link, &e), -ELOOP);
    ck_assert_int_eq(logfile_open(&f, "/dev/full", &e), -EINVAL);
    ck_assert_int_eq(logfile_open(&f, tmpdir(), &e), -EISDIR);
    ck_assert_int_eq(access(tmppath("target"), F_OK), -1);
}
END_TEST

START_TEST(matching_lines_are_copied)
{
    struct fixture f;
    setup(&f);
    f.dup_stdout = (char *const[]){"loss=", "NaN", NULL};
    open_pump(&f, f.out_w, f.err_w);
    stdio_set_filtered_dir(f.pump, tmpdir());
    struct stdio_route out = shown("[a]:");
    out.filtered = true;
    struct ends a = open_worker(&f, 0, out, shown(NULL));
    say(a.out, "step 1 loss=3\nstep 2\nhalf NaN");
    UNTIL(&f, strstr(text(&f.out), "half NaN"), "the unfinished line is not shown");
    say(a.out, " line\nloss=4");
    end_worker(&f, 0, &a);
    UNTIL(&f, f.ndrained == 1, "not drained");
    close_pump(&f);
    ck_assert_str_eq(text(&f.out), "[a]:step 1 loss=3\n[a]:step 2\n[a]:half NaN line\n[a]:loss=4");
    char *copied = test_keep(read_file(tmppath("filtered_stdout.log")));
    ck_assert_str_eq(copied, "[a]:step 1 loss=3\n[a]:half NaN line\n[a]:loss=4\n");
    ck_assert_int_eq(access(tmppath("filtered_stderr.log"), F_OK), -1);
    teardown(&f);
}
END_TEST

/* --------------------------------------------------------------------------------- life and death
 */

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
    stdio_pump_close(f.pump);
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

/* ---------------------------------------------------------------------------------------- tail */

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

static Suite *suite(void)
{
    Suite *s = suite_create("stdio");
    TCase *tc = test_case(s, "lines", 60);
    tcase_add_test(tc, lines_of_eight_workers_stay_whole);
    tcase_add_test(tc, prefixed_lines_of_eight_workers_stay_whole);
    tcase_add_test(tc, partial_line_is_shown_and_ended_for_another);
    tcase_add_test(tc, line_cut_by_a_full_buffer_waits_for_its_rest);
    tcase_add_test(tc, quick_progress_bar_is_shown_before_it_ends);
    tcase_add_test(tc, bytes_pass_untouched);
    tcase_add_test(tc, own_lines_take_their_turn);
    tc = test_case(s, "readers", 60);
    tcase_add_test(tc, stuck_reader_costs_oldest_lines_and_says_so);
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
    tc = test_case(s, "files", 60);
    tcase_add_test(tc, full_disk_is_said_and_survived);
    tcase_add_test(tc, log_file_is_tried_again);
    tcase_add_test(tc, files_that_are_not_files_are_refused);
    tcase_add_test(tc, matching_lines_are_copied);
    tc = test_case(s, "life", 60);
    tcase_add_test(tc, pipe_held_by_a_descendant_is_closed);
    tcase_add_test(tc, worker_again_in_the_same_place);
    tcase_add_test(tc, worker_that_cannot_be_opened_leaves_nothing);
    tcase_add_test(tc, nobody_listens_to_stdout);
    tcase_add_test(tc, closed_consoles_are_no_trouble);
    tcase_add_test(tc, close_with_workers_open_loses_nothing);
    tcase_add_test(tc, many_workers);
    tcase_add_test(tc, tail_is_what_a_person_saw);
    return s;
}

TEST_MAIN(suite)
