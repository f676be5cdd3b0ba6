/* The GPUs' health, with a management library of our own (tests/fake/nvml.c) and a kernel log that
 * is a file. */
#include "tests/lib/test.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/device/gpu_watch.h"
#include "agent/device/nvml.h"
#include "agent/device/xid.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "tests/lib/loop.h"

#define GPU_A "0000:12:00.0 GPU-aaaa-1"
#define GPU_B "0000:1a:00.0 GPU-bbbb-2"

static char g_said[4096];
static struct job_spec g_job;
static uv_loop_t g_loop;
static struct uvx_scope g_scope;
static struct gpu_watch *g_watch;
static bool g_closed, g_answered;
static struct err g_why;
static const char *g_kmsg;

static void keep_line(void *arg, const char *line, size_t len)
{
    (void)arg;
    size_t n = strlen(g_said);
    snprintf(g_said + n, sizeof(g_said) - n, "%.*s", (int)len, line);
}

static void gpus(const char *text)
{
    char *path = tmppath("gpus"), *next = tmppath("gpus.new");
    write_file(next, text);
    ck_assert_int_eq(rename(next, path), 0); /* at once, for who reads it meanwhile */
}

static void setup(void)
{
    ck_assert_msg(dlopen(build_path("tests/fake/libnvidia-ml.so.1"), RTLD_NOW), "%s", dlerror());
    unsetenv("CUDA_VISIBLE_DEVICES");
    setenv("FAKE_NVML", tmppath("gpus"), 1);
    log_set_writer(keep_line, NULL);
    g_kmsg = tmppath("kmsg");
    write_file(g_kmsg, "4,1,1,-;NVRM: Xid (PCI:0000:12:00): 31, pid=1, of another job\n");
    g_job = (struct job_spec){.nproc = 2, .gpus = true, .gpu_wait = 20};
    uv_loop_init(&g_loop);
    uvx_scope_init(&g_scope, &g_loop);
}

static void on_closed(void *arg)
{
    *(bool *)arg = true;
}

static void teardown(void)
{
    gpu_watch_stop(g_watch);
    uvx_scope_close(&g_scope, on_closed, &g_closed);
    loop_run_until(&g_loop, &g_closed, 10, "the handles are closed");
    gpu_watch_free(g_watch);
    ck_assert_int_eq(uv_loop_close(&g_loop), 0);
}

static void open_watch(void)
{
    struct gpu_paths paths = {"/nonexistent", "/nonexistent", g_kmsg};
    g_watch = gpu_watch_new(&g_loop, &g_scope, &g_job, &paths);
    ck_assert_ptr_nonnull(g_watch);
}

static void on_answer(void *arg, const struct err *e)
{
    (void)arg;
    g_answered = true;
    g_why = e ? *e : (struct err)ERR_INIT;
}

static const char *ask(enum gpu_question q)
{
    g_answered = false;
    gpu_watch_ask(g_watch, q, on_answer, NULL);
    ck_assert_msg(!g_answered, "called back from inside the call");
    loop_run_until(&g_loop, &g_answered, 30, "an answer");
    return g_why.code ? g_why.msg : "";
}

static uint64_t g_since; /* when the worker was started */

static uint64_t g_until; /* when the worker ended */
static struct gpu_files g_files;

/* Takes the times out of the note: ", seen at 12:00:01.250 (0.8 s before the worker ended)". */
static void take_times(char *note)
{
    for (char *at; (at = strstr(note, ", seen at "));) {
        unsigned h, m, s, ms;
        int n = 0;
        ck_assert_msg(sscanf(at, ", seen at %2u:%2u:%2u.%3u%n", &h, &m, &s, &ms, &n) == 4 &&
                          n == 22,
                      "%s", at);
        if (at[n] == ' ')
            n += (int)strcspn(at + n, ")") + 1;
        memmove(at, at + n, strlen(at + n) + 1);
    }
}

static void expect_note(int local_rank, pid_t pid, const char *text)
{
    char note[1024];
    struct gpu_user u = {local_rank, pid, g_files, g_since, g_until};
    gpu_watch_note(g_watch, &u, note, sizeof(note));
    take_times(note);
    ck_assert_str_eq(note, text);
}

START_TEST(healthy)
{
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 ok 0 0 0\n");
    open_watch();
    ck_assert_str_eq(ask(GPU_ASK_READY), "");
    ck_assert_str_eq(ask(GPU_ASK_READY), "");
    ck_assert_str_eq(g_said, "");
    expect_note(0, 1, ""); /* what was there before is another job's */
}
END_TEST

static bool is_used(void *arg)
{
    struct gpu_usage *u = arg;
    struct gpu_user user = {.local_rank = 1};
    gpu_watch_look(g_watch);
    return gpu_watch_usage(g_watch, &user, u) && u->used == 20000ull << 20;
}

START_TEST(usage)
{
    struct gpu_usage u;
    struct gpu_user user = {.local_rank = 0};
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 ok 0 0 0\n");
    open_watch();
    gpu_watch_look(g_watch); /* nothing is known yet */
    ck_assert(!gpu_watch_usage(g_watch, &user, &u));
    ck_assert_str_eq(ask(GPU_ASK_READY), "");
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 20000 80000 ok 0 0 0\n");
    wait_until(is_used, &u, 20, "the usage is known");
    ck_assert_int_eq(u.percent, 25);
    ck_assert_uint_eq(u.total, 80000ull << 20);
    ck_assert(gpu_watch_usage(g_watch, &user, &u));
    ck_assert_int_eq(u.percent, 0);
}
END_TEST

static bool state_is(void *arg)
{
    const struct gpu_state *want = arg;
    struct gpu_user user = {.local_rank = 1};
    gpu_watch_look(g_watch);
    struct gpu_state s = gpu_watch_state(g_watch, &user);
    return s.known && s.reasons == want->reasons && s.celsius == want->celsius &&
           s.pcie_generation == want->pcie_generation && s.pcie_width == want->pcie_width &&
           s.nvlink_errors == want->nvlink_errors;
}

START_TEST(what_makes_it_slow)
{
    static struct {
        const char *state;
        struct gpu_state is;
    } rows[] = {
        {"ok", {true, 0, 60, 5, 16, 0}},
        {"hot", {true, GPU_SLOW_THERMAL | GPU_SLOW_HARDWARE, 95, 5, 16, 0}},
        {"narrow", {true, 0, 60, 1, 4, 0}},
        {"noisy", {true, 0, 60, 5, 16, 40}},
    };
    gpus(test_text(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 %s 0 0 0\n", rows[_i].state));
    open_watch();
    ck_assert_str_eq(ask(GPU_ASK_READY), "");
    wait_until(state_is, &rows[_i].is, 20, "the state is known");
}
END_TEST

START_TEST(not_fit)
{
    static const struct {
        const char *gpus;
        enum gpu_check check;
        const char *why, *said;
    } rows[] = {
        {GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 lost 0 0 0\n", GPU_CHECK_AUTO,
         "GPU 0000:1a:00.0 is lost", ""},
        {GPU_A " 4 80000 gone 0 0 0\n" GPU_B " 4 80000 ok 0 0 0\n", GPU_CHECK_AUTO,
         "GPU 0000:12:00.0 was not found", ""},
        {GPU_A " 4 80000 lost 0 0 0\n" GPU_B " 4 80000 ok 0 0 0\n", GPU_CHECK_OFF, "", ""},
        {GPU_A " 40000 80000 ok 0 0 1\n" GPU_B " 4 80000 ok 0 0 0\n", GPU_CHECK_AUTO, "",
         "GPU 0000:12:00.0 is used by pid 1 ("},
        {GPU_A " 40000 80000 ok 0 0 1\n" GPU_B " 4 80000 ok 0 0 0\n", GPU_CHECK_FREE,
         "which --gpu_check free does not allow", ""},
        {GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 40000 80000 ok 0 0 0\n", GPU_CHECK_AUTO, "",
         "GPU 0000:1a:00.0 is in use (41.9 of 83.9 GB)"},
        {GPU_A " 40000 80000 ok 0 0 1\n" GPU_B " 4 80000 ok 0 0 0\n", GPU_CHECK_OFF, "", ""},
    };
    gpus(rows[_i].gpus);
    g_job.gpu_check = rows[_i].check;
    open_watch();
    const char *why = ask(GPU_ASK_READY);
    ck_assert_msg(*rows[_i].why ? strstr(why, rows[_i].why) != NULL : !*why, "%s", why);
    ck_assert_msg(*rows[_i].said ? strstr(g_said, rows[_i].said) != NULL : !*g_said, "%s", g_said);
}
END_TEST

static void free_the_memory(uv_timer_t *t)
{
    ck_assert_msg(!g_answered, "answered before the memory was free");
    gpus(GPU_A " 600 80000 ok 0 0 0\n" GPU_B " 300 80000 ok 0 0 0\n");
    uv_close((uv_handle_t *)t, NULL);
}

START_TEST(memory_is_waited_for)
{
    uv_timer_t t;
    gpus(GPU_A " 300 80000 ok 0 0 0\n" GPU_B " 300 80000 ok 0 0 0\n");
    open_watch();
    ck_assert_str_eq(ask(GPU_ASK_READY), "");
    gpus(GPU_A " 40000 80000 ok 0 0 0\n" GPU_B " 300 80000 ok 0 0 0\n");
    uv_timer_init(&g_loop, &t);
    uv_timer_start(&t, free_the_memory, 200, 0);
    ck_assert_str_eq(ask(GPU_ASK_READY), "");
    ck_assert_str_eq(g_said, "");
    char *now = read_file(tmppath("gpus"));
    ck_assert_msg(strstr(now, " 600 "), "it did not wait");
    free(now);
}
END_TEST

START_TEST(memory_that_stays_in_use)
{
    g_job.gpu_wait = 0.15;
    gpus(GPU_A " 300 80000 ok 0 0 0\n" GPU_B " 300 80000 ok 0 0 0\n");
    open_watch();
    ck_assert_str_eq(ask(GPU_ASK_READY), "");
    gpus(GPU_A " 40000 80000 ok 0 0 1\n" GPU_B " 300 80000 ok 0 0 0\n");
    ck_assert_str_eq(ask(GPU_ASK_READY), "");
    ck_assert_msg(strstr(g_said, "GPU 0000:12:00.0: 41.6 GB are still in use after 0.15 s (used by "
                                 "pid 1"),
                  "%s", g_said);
    gpus(GPU_A " 300 80000 lost 0 0 0\n" GPU_B " 300 80000 ok 0 0 0\n");
    ck_assert_ptr_nonnull(strstr(ask(GPU_ASK_READY), "is lost"));
}
END_TEST

static void kernel_says(const char *text)
{
    int fd = open(g_kmsg, O_WRONLY | O_APPEND);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq((int)write(fd, text, strlen(text)), (int)strlen(text));
    close(fd);
}

START_TEST(xid_in_the_kernel_log)
{
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 ok 0 0 0\n");
    open_watch();
    kernel_says("4,99,7,-;NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', name=<unknown>, GPU has "
                "fallen off the bus.\n");
    expect_note(1, 500, "GPU 1 (0000:1a:00.0): Xid 79, GPU has fallen off the bus");
    expect_note(0, 400, "");
    kernel_says(
        "4,100,8,-;NVRM: Xid (PCI:0000:77:00): 13, pid=400, name=train, Graphics Exception\n");
    expect_note(0, 400,
                "GPU (0000:77:00.0): Xid 13, graphics engine exception, mostly a fault of the "
                "program");
    kernel_says("12,101,9,-;NVRM: Xid (PCI:0000:12:00): 79, somebody's joke\n");
    expect_note(0, 1, "");
}
END_TEST

/* An error stays one of the worker during whose life it was. */
START_TEST(xid_of_an_earlier_worker)
{
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 ok 0 0 0\n");
    open_watch();
    kernel_says("4,99,7,-;NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', name=<unknown>, GPU has "
                "fallen off the bus.\n");
    gpu_watch_read_log(g_watch);
    g_since = mono_ns();
    expect_note(1, 500, "");
    kernel_says("4,100,8,-;NVRM: Xid (PCI:0000:1a:00): 94, pid=500, name=train, Contained\n");
    expect_note(1, 500, "GPU 1 (0000:1a:00.0): Xid 94, contained ECC error");
    g_since = 0;
    expect_note(1, 500,
                "GPU 1 (0000:1a:00.0): Xid 79, GPU has fallen off the bus\n"
                "GPU 1 (0000:1a:00.0): Xid 94, contained ECC error");
}
END_TEST

START_TEST(xid_and_ecc_from_the_driver)
{
    g_kmsg = "/nonexistent";
    gpus(GPU_A " 4 80000 ok 7 0 0\n" GPU_B " 4 80000 ok 0 0 0\n");
    open_watch();
    ck_assert_str_eq(ask(GPU_ASK_READY), "");
    gpus(GPU_A " 4 80000 ok 9 0 0\n" GPU_B " 4 80000 ok 0 94 0\n");
    ck_assert_str_eq(ask(GPU_ASK_FAILURES), "");
    expect_note(0, 1,
                "GPU 0 (0000:12:00.0): 2 uncorrectable ECC errors since the workers were started");
    expect_note(1, 1, "GPU 1 (0000:1a:00.0): Xid 94, contained ECC error");
}
END_TEST

/* A job that has not said that it uses GPUs: nothing is loaded before a question. */
static void open_quiet_watch(void)
{
    g_job.gpus = false;
    open_watch();
}

START_TEST(a_job_that_did_not_say_so)
{
    gpus(GPU_A " 4 80000 stuck 0 0 0\n"); /* NVML is not called, else the test hangs here */
    open_quiet_watch();
    expect_note(0, 1, "");
    g_kmsg = "/nonexistent";
    gpus(GPU_A " 4 80000 ok 7 0 0\n" GPU_B " 9000 80000 ok 0 0 77\n");
    ck_assert_str_eq(ask(GPU_ASK_BEGIN), "");
    ck_assert_str_eq(g_said, ""); /* the workers themselves use the GPUs */
    gpus(GPU_A " 4 80000 ok 9 0 0\n" GPU_B " 9000 80000 lost 0 0 0\n");
    ck_assert_str_eq(ask(GPU_ASK_FAILURES), "");
    expect_note(0, 1,
                "GPU 0 (0000:12:00.0): 2 uncorrectable ECC errors since the workers were started");
    expect_note(1, 1, "GPU 1 (0000:1a:00.0): lost: it does not answer its driver");
    g_since = mono_ns();
    gpus(GPU_A " 4 80000 ok 12 0 0\n" GPU_B " 9000 80000 lost 0 0 0\n");
    ck_assert_str_eq(ask(GPU_ASK_BEGIN), ""); /* of another round */
    expect_note(0, 1, "");
    ck_assert_str_eq(ask(GPU_ASK_FAILURES), "");
    expect_note(0, 1, "");
    expect_note(1, 1, "GPU 1 (0000:1a:00.0): lost: it does not answer its driver"); /* still */
}
END_TEST

/* Without a question, so before any worker was seen to use a GPU: by the kernel's log alone. */
START_TEST(an_xid_before_the_first_look)
{
    gpus(GPU_A " 4 80000 stuck 0 0 0\n");
    open_quiet_watch();
    kernel_says("4,9,7,-;NVRM: Xid (PCI:0000:1a:00): 31, pid=500, name=train, MMU Fault\n");
    expect_note(0, 400, "");
    expect_note(0, 500,
                "GPU (0000:1a:00.0): Xid 31, memory page fault, mostly a fault of the program");
    g_files = (struct gpu_files){.pid = 500}; /* the worker is a shell */
    expect_note(0, 400,
                "GPU (0000:1a:00.0): Xid 31, memory page fault, mostly a fault of the program");
}
END_TEST

static bool is_known_to_compute(void *arg)
{
    char note[1024];
    struct gpu_user u = {0, 77, g_files, 0, 0};
    (void)arg;
    gpu_watch_look(g_watch);
    return *gpu_watch_note(g_watch, &u, note, sizeof(note)) != '\0';
}

/* Whose GPU it is: who NVML says computes on it, else whose only open file it is, else worker i has
 * device i. */
START_TEST(whose_gpu_it_is)
{
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 9000 80000 ok 0 0 77\n");
    open_quiet_watch();
    ck_assert_str_eq(ask(GPU_ASK_BEGIN), "");
    kernel_says("4,9,7,-;NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n");
    wait_until(is_known_to_compute, NULL, 20, "it is known who computes");
    expect_note(0, 77, "GPU 1 (0000:1a:00.0): Xid 79, GPU has fallen off the bus");
    expect_note(0, 400, "");
    expect_note(1, 400, "GPU 1 (0000:1a:00.0): Xid 79, GPU has fallen off the bus");
    g_files = (struct gpu_files){.pid = 400, .minors = 2};
    expect_note(0, 400, "GPU 1 (0000:1a:00.0): Xid 79, GPU has fallen off the bus");
    g_files.minors = 1;
    expect_note(1, 400, "");
    g_files.minors = 3; /* as everybody has who can see both */
    expect_note(1, 400, "GPU 1 (0000:1a:00.0): Xid 79, GPU has fallen off the bus");
}
END_TEST

/* Which errors are why a worker failed, and which of them are if it was stopped. */
START_TEST(faults)
{
    static const struct {
        const char *kernel, *gpus;
        bool failed, stopped;
    } rows[] = {
        {"", GPU_A " 4 80000 ok 0 0 0\n", false, false},
        {"4,9,7,-;NVRM: Xid (PCI:0000:12:00): 31, pid=1, name=x, MMU Fault\n",
         GPU_A " 4 80000 ok 0 0 0\n", false, false},
        {"4,9,7,-;NVRM: Xid (PCI:0000:12:00): 79, GPU has fallen off the bus.\n",
         GPU_A " 4 80000 ok 0 0 0\n", true, true},
        {"4,9,7,-;NVRM: Xid (PCI:0000:12:00): 63, row\n", GPU_A " 4 80000 ok 0 0 0\n", true, false},
        {"", GPU_A " 4 80000 lost 0 0 0\n", true, true},
        {"", GPU_A " 4 80000 ok 2 0 0\n", true, true},
        {"", GPU_A " 4 80000 nolink 0 0 0\n", true, true},
        {"", GPU_A " 4 80000 pending 0 0 0\n", true, false},
    };
    gpus(GPU_A " 4 80000 ok 0 0 0\n");
    open_quiet_watch();
    ck_assert_str_eq(ask(GPU_ASK_BEGIN), "");
    kernel_says(rows[_i].kernel);
    gpus(rows[_i].gpus);
    ck_assert_str_eq(ask(GPU_ASK_FAILURES), "");
    gpu_watch_read_log(g_watch);
    struct gpu_user u = {0, 1, {0}, 0, mono_ns()};
    ck_assert_int_eq(gpu_watch_fault(g_watch, &u, true), rows[_i].failed);
    ck_assert_int_eq(gpu_watch_fault(g_watch, &u, false), rows[_i].stopped);
}
END_TEST

START_TEST(links_that_went_down)
{
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 nolink 0 0 0\n");
    open_quiet_watch();
    ck_assert_str_eq(ask(GPU_ASK_BEGIN), "");
    gpus(GPU_A " 4 80000 nolink 0 0 0\n" GPU_B " 4 80000 pending 0 0 0\n");
    ck_assert_str_eq(ask(GPU_ASK_FAILURES), "");
    expect_note(0, 1, "GPU 0 (0000:12:00.0): 1 NVLink went down since the workers were started");
    expect_note(1, 1,
                "GPU 1 (0000:1a:00.0): rows of its memory have to be, or could not be, remapped");
}
END_TEST

START_TEST(times)
{
    char note[1024];
    gpus(GPU_A " 4 80000 ok 0 0 0\n");
    open_quiet_watch();
    kernel_says("4,9,7,-;NVRM: Xid (PCI:0000:12:00): 31, pid=1, name=x, MMU Fault\n");
    gpu_watch_read_log(g_watch);
    struct gpu_user u = {0, 1, {0}, 0, mono_ns() + 2500000000u};
    ck_assert_ptr_nonnull(
        strstr(gpu_watch_note(g_watch, &u, note, sizeof(note)), "(2.5 s before the worker ended)"));
    u.until_ns = mono_ns() - 1200000000u;
    ck_assert_ptr_null(strstr(gpu_watch_note(g_watch, &u, note, sizeof(note)), "the worker ended"));
    ck_assert_ptr_nonnull(strstr(note, ", seen at "));
}
END_TEST

/* A question that another has replaced does not answer the other. */
START_TEST(questions_in_a_row)
{
    g_kmsg = "/nonexistent";
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 ok 0 0 0\n");
    open_quiet_watch();
    ck_assert_str_eq(ask(GPU_ASK_BEGIN), "");
    gpus(GPU_A " 4 80000 ok 3 0 0\n" GPU_B " 4 80000 ok 0 0 0\n");
    gpu_watch_ask(g_watch, GPU_ASK_FAILURES, NULL, NULL);
    ck_assert_str_eq(ask(GPU_ASK_FAILURES), "");
    expect_note(0, 1,
                "GPU 0 (0000:12:00.0): 3 uncorrectable ECC errors since the workers were started");
}
END_TEST

START_TEST(files_of_a_worker)
{
    struct gpu_files f;
    const char *dev = tmppath("dev");
    ck_assert_int_eq(mkdir(dev, 0755), 0);
    write_file(test_text("%s/nvidia3", dev), "");
    write_file(test_text("%s/nvidiactl", dev), "");
    write_file(test_text("%s/nvidia3x", dev), "");
    int ctl = open(test_text("%s/nvidiactl", dev), O_RDONLY);
    int odd = open(test_text("%s/nvidia3x", dev), O_RDONLY);
    ck_assert(!gpu_files_of(getpid(), dev, &f));
    int pipes[2];
    ck_assert_int_eq(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) { /* as the program that a shell runs */
        int fd = open(test_text("%s/nvidia3", dev), O_RDONLY);
        _exit(write(pipes[1], "x", 1) == 1 && pause() && fd);
    }
    char byte;
    ck_assert_int_eq((int)read(pipes[0], &byte, 1), 1);
    ck_assert(gpu_files_of(getpid(), dev, &f));
    ck_assert_int_eq(f.pid, child);
    ck_assert_uint_eq(f.minors, 8);
    ck_assert(!gpu_files_of(getpid(), "/dev", &f));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ctl);
    close(odd);
}
END_TEST

START_TEST(a_driver_that_is_stuck)
{
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 ok 0 0 0\n");
    open_watch();
    ck_assert_str_eq(ask(GPU_ASK_READY), "");
    gpus(GPU_A " 4 80000 stuck 0 0 0\n");
    ck_assert_str_eq(ask(GPU_ASK_FAILURES), ""); /* after half a second, without an answer */
    ck_assert_str_eq(ask(GPU_ASK_READY), "");    /* not asked again */
}
END_TEST

START_TEST(visible_devices)
{
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 lost 0 0 0\n");
    setenv("CUDA_VISIBLE_DEVICES", "GPU-bbbb", 1); /* [env] counts, and not this */
    g_job.env = (char *[]){"CUDA_VISIBLE_DEVICES=GPU-aaaa", NULL};
    g_job.nproc = 1;
    open_watch();
    ck_assert_str_eq(ask(GPU_ASK_READY), "");
    kernel_says("4,99,7,-;NVRM: Xid (PCI:0000:12:00): 48, pid=1, DBE\n");
    expect_note(0, 2, "GPU 0 (0000:12:00.0): Xid 48, double bit ECC error");
}
END_TEST

START_TEST(no_gpu)
{
    gpus("");
    struct gpu_paths paths = {"/nonexistent", "/nonexistent", g_kmsg};
    ck_assert_ptr_null(gpu_watch_new(&g_loop, &g_scope, &g_job, &paths));
}
END_TEST

/* ----------------------------------------------------------------------------------- pure parts */

START_TEST(xid_lines)
{
    static const struct {
        const char *line;
        int code, pid;
        const char *bus, *text;
    } rows[] = {
        {"4,1,2,-;NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen "
         "off the bus.\n",
         79, 0, "0000:17:00.0", "GPU has fallen off the bus."},
        {"6,1,2,-;NVRM: Xid (PCI:0002:01:00): 31, pid=4711, name=python3, Ch 00000008, intr\n", 31,
         4711, "0002:01:00.0", "Ch 00000008, intr"},
        {"4,1,2,-;NVRM: Xid (0000:03:00): 43, Ch 1\x01\n", 43, 0, "0000:03:00.0", "Ch 1?"},
        {"4,1,2,-;NVRM: Xid (PCI:0000:17:00): ", -1, 0, "", ""},
        {"4,1,2,-;NVRM: Xid (PCI:zz", -1, 0, "", ""},
        {"14,1,2,-;NVRM: Xid (PCI:0000:17:00): 79", -1, 0, "", ""}, /* a user wrote it */
        {"4,1,2,-;something else", -1, 0, "", ""},
        {"", -1, 0, "", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct xid x;
        bool is = xid_parse(rows[i].line, &x);
        ck_assert_msg(is == (rows[i].code >= 0), "%s", rows[i].line);
        if (!is)
            continue;
        ck_assert_int_eq(x.code, rows[i].code);
        ck_assert_int_eq(x.pid, rows[i].pid);
        ck_assert_str_eq(x.bus, rows[i].bus);
        ck_assert_str_eq(x.text, rows[i].text);
    }
    ck_assert_str_eq(xid_meaning(79), "GPU has fallen off the bus");
    ck_assert_ptr_null(xid_meaning(100000));
}
END_TEST

START_TEST(which_devices)
{
    static const struct gpu all[] = {{"0000:12:00.0", "GPU-aaaa-1", "", 0, 0},
                                     {"0000:1a:00.0", "GPU-aabb-2", "", 1, 1},
                                     {"0000:32:00.0", "GPU-cccc-3", "", 2, 2}};
    static const struct {
        const char *visible;
        int n, order[3];
    } rows[] = {
        {NULL, 3, {0, 1, 2}}, {"2,0", 2, {2, 0}},  {"GPU-cccc-3, GPU-aab", 2, {2, 1}},
        {"GPU-aa", 1, {-1}},  {"MIG-x", 1, {-1}},  {"", 0, {0}},
        {"1,7,0", 1, {1}},    {"GPU-zz", 1, {-1}}, {" 1 ", 1, {1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int order[3];
        int n = gpu_visible(rows[i].visible, all, 3, order, 3);
        ck_assert_msg(n == rows[i].n, "%s: %d", rows[i].visible, n);
        for (int j = 0; j < n; j++)
            ck_assert_msg(order[j] == rows[i].order[j], "%s: %d", rows[i].visible, order[j]);
    }
}
END_TEST

START_TEST(the_drivers_files)
{
    struct gpu *all;
    ck_assert_int_eq(mkdir(tmppath("proc"), 0755), 0);
    ck_assert_int_eq(mkdir(tmppath("proc/0000:1A:00.0"), 0755), 0);
    ck_assert_int_eq(mkdir(tmppath("proc/0000:12:00.0"), 0755), 0);
    write_file(tmppath("proc/0000:12:00.0/information"),
               "Model: \t\t NVIDIA X\nGPU UUID: \t GPU-1234-5678\nBus Type: \t PCIe\n");
    write_file(tmppath("proc/0000:1A:00.0/information"), "GPU UUID: \t GPU-??????\n");
    ck_assert_int_eq(gpu_list(&all, tmppath("proc"), tmppath("dev"), false), 2);
    ck_assert_str_eq(all[0].bus, "0000:12:00.0");
    ck_assert_str_eq(all[0].uuid, "GPU-1234-5678");
    ck_assert_str_eq(all[1].bus, "0000:1a:00.0");
    ck_assert_str_eq(all[1].uuid, "");
    free(all);
    ck_assert_int_eq(gpu_list(&all, "/nonexistent", "/nonexistent", false), 0);
    ck_assert_ptr_null(all);
}
END_TEST

/* A container has device files for its own GPUs only, and the driver's list of all. */
START_TEST(a_container_has_some_gpus)
{
    struct gpu *all;
    ck_assert_int_eq(mkdir(tmppath("proc"), 0755), 0);
    ck_assert_int_eq(mkdir(tmppath("dev"), 0755), 0);
    for (int i = 0; i < 3; i++) {
        const char *dir = tmppath(test_text("proc/0000:1%d:00.0", i));
        ck_assert_int_eq(mkdir(dir, 0755), 0);
        write_file(test_text("%s/information", dir), test_text("Device Minor: \t %d\n", 2 - i));
    }
    ck_assert_int_eq(gpu_list(&all, tmppath("proc"), tmppath("dev"), false), 3);
    free(all);
    write_file(tmppath("dev/nvidia0"), "");
    ck_assert_int_eq(gpu_list(&all, tmppath("proc"), tmppath("dev"), false), 1);
    ck_assert_str_eq(all[0].bus, "0000:12:00.0");
    free(all);
    write_file(tmppath("dev/nvidia2"), "");
    ck_assert_int_eq(gpu_list(&all, tmppath("proc"), tmppath("dev"), false), 2);
    ck_assert_str_eq(all[0].bus, "0000:10:00.0");
    free(all);
}
END_TEST

#define DIVIDED                                                           \
    GPU_A " 500 80000 ok 0 0 0\n"                                         \
          "mig MIG-11 10 20000\nmig - 0 0\nmig MIG-12 10 20000\n" GPU_B   \
          " 4 80000 ok 0 0 0\n0000:32:00.0 GPU-cccc-3 4 80000 ok 0 0 0\n" \
          "mig MIG-31 10 20000\n"

/* An instance is a device; a GPU that MIG divides is none, and whoever names it gets all of them.
 */
START_TEST(instances_by_mig)
{
    static const struct {
        const char *visible, *instances, *how;
        int n;
    } rows[] = {
        {NULL, "MIG-11,MIG-12,GPU-bbbb-2,MIG-31", "NVML", 4},
        {"0", "MIG-11,MIG-12", "CUDA_VISIBLE_DEVICES", 2},
        {"2,0", "MIG-31,MIG-11,MIG-12", "CUDA_VISIBLE_DEVICES", 3},
        {"1", NULL, "CUDA_VISIBLE_DEVICES", 1},
        {"GPU-aaaa", "MIG-11,MIG-12", "CUDA_VISIBLE_DEVICES", 2},
        {"MIG-31,MIG-12", "MIG-31,MIG-12", "CUDA_VISIBLE_DEVICES", 2},
        {"MIG-of-another-host", "MIG-of-another-host", "CUDA_VISIBLE_DEVICES", 1},
        {"", NULL, "CUDA_VISIBLE_DEVICES", 0},
    };
    gpus(DIVIDED);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *instances;
        const char *how;
        int n = gpu_count(rows[i].visible, "/nonexistent", true, &instances, &how);
        ck_assert_msg(n == rows[i].n, "%s: %d", rows[i].visible, n);
        ck_assert_str_eq(how, rows[i].how);
        ck_assert_pstr_eq(instances, rows[i].instances);
        free(instances);
    }
}
END_TEST

/* NVML is asked where the driver's files show instances, and not elsewhere. */
START_TEST(the_drivers_files_show_instances)
{
    struct gpu *all;
    gpus(DIVIDED);
    for (const char *const *dir =
             (const char *[]){"proc", "proc/gpus", "proc/gpus/0000:12:00.0",
                              "proc/gpus/0000:1a:00.0", "proc/capabilities",
                              "proc/capabilities/gpu0", "proc/capabilities/gpu0/mig", NULL};
         *dir; dir++)
        ck_assert_int_eq(mkdir(tmppath(*dir), 0755), 0);
    ck_assert_int_eq(gpu_list(&all, tmppath("proc/gpus"), tmppath("dev"), true), 2);
    free(all);
    ck_assert_int_eq(mkdir(tmppath("proc/capabilities/gpu0/mig/gi1"), 0755), 0);
    ck_assert_int_eq(gpu_list(&all, tmppath("proc/gpus"), tmppath("dev"), true), 3);
    ck_assert_str_eq(all[1].mig, "MIG-12");
    ck_assert_str_eq(all[1].bus, "0000:12:00.0");
    ck_assert_str_eq(all[2].mig, "");
    ck_assert_int_eq(all[2].card, 1);
    free(all);
    ck_assert_int_eq(gpu_list(&all, tmppath("proc/gpus"), tmppath("dev"), false), 2);
    free(all);
}
END_TEST

START_TEST(an_instance_in_use)
{
    gpus(GPU_A " 9000 80000 ok 3 0 0\nmig MIG-11 10 20000\nmig MIG-12 8990 20000\n");
    g_kmsg = "/nonexistent";
    open_watch();
    ck_assert_str_eq(ask(GPU_ASK_READY), "");
    ck_assert_str_eq(g_said, "dlaunch: GPU 0000:12:00.0 MIG-12 is in use (9.4 of 21.0 GB)\n");
    gpus(GPU_A " 9000 80000 ok 3 63 0\nmig MIG-11 10 20000\nmig MIG-12 8990 20000\n");
    ck_assert_str_eq(ask(GPU_ASK_FAILURES), "");
    expect_note(1, 1,
                "GPU 1 (0000:12:00.0): Xid 63, ECC page retirement or row remapping was "
                "recorded");
}
END_TEST

START_TEST(compute_modes)
{
    static const struct {
        const char *gpus;
        int nproc;
        const char *why, *said;
    } rows[] = {
        {GPU_A " 4 80000 exclusive 0 0 0\n" GPU_B " 4 80000 ok 0 0 0\n", 2, "", ""},
        {GPU_A " 4 80000 exclusive 0 0 0\n" GPU_B " 4 80000 ok 0 0 0\n", 3, "",
         "dlaunch: GPU 0000:12:00.0 is in the compute mode Exclusive_Process: only one of its 2 "
         "workers can "
         "use it (to change that: nvidia-smi -i 0000:12:00.0 -c DEFAULT)\n"},
        {GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 prohibited 0 0 0\n", 2,
         "GPU 0000:1a:00.0 is in the compute mode Prohibited: no process can use it (to change "
         "that: nvidia-smi -i 0000:1a:00.0 -c DEFAULT)",
         ""},
        {GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 prohibited 0 0 0\n", 1, "", ""},
    };
    gpus(rows[_i].gpus);
    g_job.nproc = rows[_i].nproc;
    open_watch();
    ck_assert_str_eq(ask(GPU_ASK_READY), rows[_i].why);
    ck_assert_str_eq(ask(GPU_ASK_READY), "");
    ck_assert_str_eq(g_said, rows[_i].said);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("gpu_watch");
    TCase *tc = test_case(s, "watch", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, healthy);
    tcase_add_test(tc, usage);
    tcase_add_loop_test(tc, what_makes_it_slow, 0, 4);
    tcase_add_loop_test(tc, not_fit, 0, 7);
    tcase_add_test(tc, memory_is_waited_for);
    tcase_add_test(tc, memory_that_stays_in_use);
    tcase_add_test(tc, xid_in_the_kernel_log);
    tcase_add_test(tc, xid_of_an_earlier_worker);
    tcase_add_test(tc, xid_and_ecc_from_the_driver);
    tcase_add_test(tc, a_job_that_did_not_say_so);
    tcase_add_test(tc, an_xid_before_the_first_look);
    tcase_add_test(tc, whose_gpu_it_is);
    tcase_add_loop_test(tc, faults, 0, 8);
    tcase_add_test(tc, links_that_went_down);
    tcase_add_test(tc, times);
    tcase_add_test(tc, questions_in_a_row);
    tcase_add_test(tc, files_of_a_worker);
    tcase_add_test(tc, a_driver_that_is_stuck);
    tcase_add_test(tc, visible_devices);
    tcase_add_test(tc, no_gpu);
    tcase_add_test(tc, an_instance_in_use);
    tcase_add_loop_test(tc, compute_modes, 0, 4);
    tcase_add_test(tc, instances_by_mig);
    tcase_add_test(tc, the_drivers_files_show_instances);
    tc = test_case(s, "parts", 20);
    tcase_add_test(tc, xid_lines);
    tcase_add_test(tc, which_devices);
    tcase_add_test(tc, the_drivers_files);
    tcase_add_test(tc, a_container_has_some_gpus);
    return s;
}

TEST_MAIN(suite)
