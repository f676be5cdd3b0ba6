/* bench_stdio.c: what the pump costs. Eight workers print lines as fast as they can (tests/worker
 * spew); shown are the rate at which the launcher takes their output, the share of one core that it
 * needs for that (this process; the workers and the reader of the console are others), and what it
 * had to drop because the reader was slower. Then folded output: lines of which none, and of which
 * all are alike, and the time until one exception of thousands of workers is shown. The cost of
 * opening workers comes first.
 *
 *     bench_stdio [WORKERS [LINES-PER-WORKER]] */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <uv.h>

#include "agent/output/stdio.h"
#include "agent/worker_env.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"

#define LINE    "step 12345 loss 0.123456 lr 0.00100 tokens/s 123456 mem 12.3 GiB"
#define WORKERS 8

static int g_workers = WORKERS;
static char *g_lines = "400000";
static char g_worker[4096];
static int g_drained;

static void on_drained(void *arg, int local_rank)
{
    (void)arg, (void)local_rank;
    g_drained++;
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void must(int rc, const struct err *e)
{
    if (rc < 0) {
        fprintf(stderr, "bench_stdio: %s\n", e->msg);
        exit(1);
    }
}

/* A terminal whose reader sees what is written to it. */
static int open_terminal(int ends[2])
{
    struct termios raw;
    ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ends[0] < 0 || grantpt(ends[0]) < 0 || unlockpt(ends[0]) < 0)
        return -1;
    ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ends[1] < 0 || tcgetattr(ends[1], &raw) < 0)
        return -1;
    cfmakeraw(&raw);
    return tcsetattr(ends[1], TCSANOW, &raw);
}

/* A reader of the console's pipe or terminal in a process of its own; *count gives, at its end,
 * what it read. */
static pid_t start_reader(bool terminal, int *console, int *count)
{
    int data[2], result[2];
    if ((terminal ? open_terminal(data) : pipe2(data, O_CLOEXEC)) < 0 ||
        pipe2(result, O_CLOEXEC) < 0)
        exit(1);
    pid_t pid = fork();
    if (pid == 0) {
        static char chunk[1 << 16];
        uint64_t total = 0;
        close(data[1]);
        for (ssize_t n; (n = read(data[0], chunk, sizeof(chunk))) > 0;)
            total += (uint64_t)n;
        _exit(write(result[1], &total, sizeof(total)) < 0);
    }
    close(data[0]);
    close(result[1]);
    *console = data[1];
    *count = result[0];
    return pid;
}

static void start_worker(int out, int err, const char *line)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out, 1);
        dup2(err, 2);
        execl(g_worker, g_worker, "spew", g_lines, line, NULL);
        _exit(127);
    }
}

enum {
    TO_PIPE = 1,
    TO_FILE = 2,
    LOGGED = 4,
    PREFIXED = 8,
    TO_TERMINAL = 16,
    FOLDED = 32,
    DIFFER = 64
};

static void measure(const char *what, int mode)
{
    struct err e = ERR_INIT;
    uv_loop_t loop;
    struct stdio_pump *pump;
    char dir[] = "/tmp/bench-stdio.XXXXXX", path[64] = "", console_path[64] = "";
    int console = -1, count = -1, status;
    pid_t reader = 0;
    if (!mkdtemp(dir))
        exit(1);
    uv_loop_init(&loop);
    if (mode & (TO_PIPE | TO_TERMINAL))
        reader = start_reader(mode & TO_TERMINAL, &console, &count);
    snprintf(console_path, sizeof(console_path), "%s/console", dir);
    if (mode & TO_FILE)
        console = open(console_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    struct stdio_pump_opts opts = {.console_out = console,
                                   .console_err = 2,
                                   .on_drained = on_drained,
                                   .nworkers = g_workers,
                                   .fold = mode & FOLDED ? FOLD_ON : FOLD_OFF};
    must(stdio_pump_open(&pump, &loop, &opts, &e), &e);
    g_drained = 0;
    double cpu = cpu_seconds();
    uint64_t t0 = mono_ns();
    for (int i = 0; i < g_workers; i++) {
        int out, err;
        snprintf(path, sizeof(path), "%s/%d", dir, i);
        struct stdio_route r = {.file = mode & LOGGED ? path : NULL,
                                .console = mode & (TO_PIPE | TO_FILE | TO_TERMINAL),
                                .rank = i,
                                .prefix = mode & PREFIXED ? "[default0]:" : NULL};
        must(stdio_worker_open(pump, i, &r, &(struct stdio_route){.console = true}, &out, &err, &e),
             &e);
        char line[] = LINE;
        if (mode & DIFFER)
            line[0] = (char)('A' + i % 26);
        start_worker(out, err, line);
        close(out);
        close(err);
    }
    for (int left = g_workers; left > 0;) {
        if (wait(&status) != reader)
            left--;
    }
    double seconds = (double)(mono_ns() - t0) / 1e9;
    cpu = cpu_seconds() - cpu;
    for (int i = 0; i < g_workers; i++)
        stdio_worker_exited(pump, i);
    while (g_drained < g_workers)
        uv_run(&loop, UV_RUN_ONCE);
    stdio_pump_close(pump, &(struct stdio_pump_end){.unread_s = -1});
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    double bytes = (double)g_workers * atof(g_lines) * sizeof(LINE), got = bytes;
    bool counts = reader && !(mode & FOLDED); /* what came out is what went in */
    close(console);
    if (reader) {
        uint64_t n = 0;
        if (read(count, &n, sizeof(n)) == sizeof(n))
            got = !counts
                      ? bytes
                      : (double)n - (mode & PREFIXED ? 11 * (double)n / (sizeof(LINE) + 11) : 0);
        waitpid(reader, NULL, 0);
    }
    printf("%-42s %7.0f MB/s  %5.1f %% of a core  %5.2f ms CPU per MB  dropped %4.1f %%\n", what,
           bytes / seconds / 1e6, 100 * cpu / seconds, 1e9 * cpu / bytes,
           got >= bytes ? 0 : 100 * (1 - got / bytes));
    for (int i = 0; i < g_workers; i++) {
        snprintf(path, sizeof(path), "%s/%d", dir, i);
        unlink(path);
    }
    unlink(console_path);
    rmdir(dir);
}

/* The time from the first byte of n tracebacks until one is shown, and the lines on the console. */
static void measure_exception(int n)
{
    static const char trace[] = "Traceback (most recent call last):\n"
                                "  File \"train.py\", line 83, in <module>\n    main()\n"
                                "  File \"train.py\", line 41, in main\n    step(batch)\n"
                                "RuntimeError: rank %d: CUDA error: device-side assert triggered\n";
    struct err e = ERR_INIT;
    uv_loop_t loop;
    struct stdio_pump *pump;
    int console[2], *ends = xmalloc(2 * (size_t)n * sizeof(*ends)), lines = 0, differ = 0;
    if (pipe2(console, O_CLOEXEC) < 0)
        exit(1);
    struct stdio_pump_opts opts = {
        .console_out = console[1], .console_err = console[1], .nworkers = n, .fold = FOLD_ON};
    uv_loop_init(&loop);
    must(stdio_pump_open(&pump, &loop, &opts, &e), &e);
    for (int i = 0; i < n; i++) {
        struct stdio_route r = {.console = true, .rank = i};
        must(stdio_worker_open(pump, i, &r, &r, &ends[2 * i], &ends[2 * i + 1], &e), &e);
    }
    uint64_t t0 = mono_ns(), t1, t2 = 0;
    for (int i = 0; i < n; i++) {
        char text[sizeof(trace) + 64];
        int len = snprintf(text, sizeof(text), trace, i);
        if (i % 1000 == 500)
            len = snprintf(text, sizeof(text), "worker on fire: %c\n", 'a' + i / 1000);
        if (write(ends[2 * i + 1], text, (size_t)len) != len)
            exit(1);
    }
    t1 = mono_ns();
    static char shown[1 << 20];
    size_t got = 0;
    while (t2 == 0 || differ < (n + 499) / 1000) {
        ssize_t k = read(console[0], shown + got, sizeof(shown) - 1 - got);
        if (k <= 0)
            exit(1);
        shown[got += (size_t)k] = '\0';
        if (t2 == 0 && strstr(shown, "assert triggered"))
            t2 = mono_ns();
        differ = 0;
        for (char *p = shown; (p = strstr(p, "on fire")); p++)
            differ++;
    }
    for (char *p = shown; (p = strchr(p, '\n')); p++)
        lines++;
    printf(
        "%d workers raise one exception (written within %.0f ms): shown after %.0f ms; %d lines in "
        "all, %d of %d that differ\n",
        n, (double)(t1 - t0) / 1e6, (double)(t2 - t0) / 1e6, lines, differ, (n + 499) / 1000);
    for (int i = 0; i < 2 * n; i++)
        close(ends[i]);
    for (int i = 0; i < n; i++)
        stdio_worker_exited(pump, i);
    stdio_pump_close(pump, &(struct stdio_pump_end){.unread_s = 0});
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    close(console[0]);
    close(console[1]);
    free(ends);
}

static void measure_opening(int n)
{
    struct err e = ERR_INIT;
    uv_loop_t loop;
    struct stdio_pump *pump;
    struct stdio_pump_opts opts = {.console_out = 1, .console_err = 2, .nworkers = n};
    struct stdio_route r = {.console = true, .prefix = "[default0]:"};
    uv_loop_init(&loop);
    uint64_t t0 = mono_ns();
    must(stdio_pump_open(&pump, &loop, &opts, &e), &e);
    uint64_t t1 = mono_ns();
    int *ends = xmalloc(2 * (size_t)n * sizeof(*ends));
    for (int i = 0; i < n; i++)
        must(stdio_worker_open(pump, i, &r, &r, &ends[2 * i], &ends[2 * i + 1], &e), &e);
    uint64_t t2 = mono_ns();
    for (int i = 0; i < 2 * n; i++)
        close(ends[i]);
    uint64_t t3 = mono_ns();
    for (int i = 0; i < n; i++)
        stdio_worker_exited(pump, i);
    stdio_pump_close(pump, &(struct stdio_pump_end){.unread_s = -1});
    uv_run(&loop, UV_RUN_DEFAULT);
    uint64_t t4 = mono_ns();
    uv_loop_close(&loop);
    free(ends);

    struct rank_table_node node = {.nproc = n, .role = "default", .role_world_size = n};
    struct rank_table table = {
        .nnodes = 1, .world_size = n, .nodes = &node, .master_addr = "127.0.0.1"};
    struct job_spec job = {.nproc = n, .omp_num_threads = "1", .rdzv = {.run_id = "none"}};
    struct worker_env_shared *shared = NULL;
    uint64_t t5 = mono_ns();
    for (int i = 0; i < n; i++) {
        char **env;
        struct worker_env_input in = {.job = &job,
                                      .table = &table,
                                      .local_rank = i,
                                      .error_file = "/tmp/x/error.json",
                                      .segment_fd = 5,
                                      .listen_fd = 6,
                                      .shared = &shared};
        must(worker_env_new(&env, &in, &e), &e);
        worker_env_free(env);
    }
    uint64_t t6 = mono_ns();
    worker_env_shared_free(shared);
    printf("%d workers: pump %.0f us; per worker: pipes %.1f us, closing the child's ends %.1f us, "
           "exit and close %.1f us, environment %.1f us\n",
           n, (double)(t1 - t0) / 1e3, (double)(t2 - t1) / 1e3 / n, (double)(t3 - t2) / 1e3 / n,
           (double)(t4 - t3) / 1e3 / n, (double)(t6 - t5) / 1e3 / n);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        g_workers = atoi(argv[1]);
    if (argc > 2)
        g_lines = argv[2];
    ssize_t n = readlink("/proc/self/exe", g_worker, sizeof(g_worker) - 1);
    for (int up = 0; n > 0 && up < 2; up++) /* <build>/tests/bench/bench_stdio */
        *strrchr(g_worker, '/') = '\0';
    strcat(g_worker, "/worker");
    struct rlimit files = {65536, 65536};
    setrlimit(RLIMIT_NOFILE, &files);
    measure_opening(8);
    measure_opening(128);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur >= 4096 * 4 + 100)
        measure_opening(4096);
    measure_exception(512);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur >= 4096 * 4 + 100)
        measure_exception(4096);
    if (access(g_worker, X_OK) < 0) {
        fprintf(stderr, "bench_stdio: %s: %s\n", g_worker, strerror(errno));
        return 1;
    }
    measure("console a pipe", TO_PIPE);
    measure("console a pipe, prefixed", TO_PIPE | PREFIXED);
    measure("console a file", TO_FILE);
    measure("console a file, prefixed", TO_FILE | PREFIXED);
    measure("console a pipe, folding, all lines differ", TO_PIPE | FOLDED | DIFFER);
    measure("console a pipe, folding, all lines alike", TO_PIPE | FOLDED);
    measure("console a terminal", TO_TERMINAL);
    measure("console a terminal, prefixed", TO_TERMINAL | PREFIXED);
    measure("log files (redirect)", LOGGED);
    measure("log files and console a pipe (tee)", LOGGED | TO_PIPE | PREFIXED);
    return 0;
}
