/* The life of one worker of a node. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

#include "agent/worker.h"
#include "tests/lib/loop.h"

static bool g_drained, g_exited;

static void on_drained(void *arg, int local_rank)
{
    (void)arg, (void)local_rank;
    g_drained = true;
}

static void on_worker_exit(void *arg, void *tag, const struct reaper_exit *x)
{
    (void)arg, (void)tag, (void)x;
    g_exited = true;
}

static void on_closed(void *closed)
{
    *(bool *)closed = true;
}

/* A worker that could not be started leaves nothing behind that prevents a second start. */
static void on_pump_closed(void *closed, bool all)
{
    (void)all;
    *(bool *)closed = true;
}

START_TEST(started_after_a_start_that_failed)
{
    uv_loop_t loop;
    struct err e = ERR_INIT;
    uint8_t none[1] = {0};
    bool show[1] = {true}, closed = false;
    struct job_spec job = {.nproc = 1,
                           .path = "/bin/true",
                           .argv = (char *[]){"true", NULL},
                           .redirects = none,
                           .tee = none,
                           .show = show,
                           .host = "here",
                           .role = "default",
                           .virtual_local_rank = true, /* of which there is none: cannot be */
                           .rdzv = {.run_id = "j"}};
    struct rank_table_node node = {.host = "here", .nproc = 1};
    struct rank_table table = {.master_addr = "127.0.0.1",
                               .master_port = 29500,
                               .nnodes = 1,
                               .world_size = 1,
                               .nodes = &node};
    struct stdio_pump_opts pump = {.console_out = STDOUT_FILENO,
                                   .console_err = STDERR_FILENO,
                                   .nworkers = 1,
                                   .on_drained = on_drained};
    struct reaper_callbacks reaper = {.on_worker = on_worker_exit};
    struct cgroup cgroup = {.fd = -1};
    struct node here = {.job = &job, .table = &table, .segment = SEGMENT_INIT};
    struct log_dir log_dir = {.run = ""};
    struct worker_env_shared *env = NULL;
    struct worker_context ctx = {.node = &here,
                                 .cgroup = &cgroup,
                                 .log_dir = &log_dir,
                                 .env = &env,
                                 .stdin_fd = STDIN_FILENO};
    struct worker w = {.listen_fd = -1};
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    loop_setup(&loop);
    ck_assert_int_eq(spawner_new(&here.spawner, &e), 0);
    ck_assert_int_eq(reaper_open(&ctx.reaper, &loop, &reaper, &e), 0);
    ck_assert_int_eq(stdio_pump_open(&ctx.pump, &loop, &pump, &e), 0);

    ck_assert_int_lt(worker_start(&w, &ctx, &w, &e), 0);
    ck_assert_int_eq(w.failure.kind, FAILURE_EXEC);
    ck_assert_int_eq(w.state, WORKER_EXITED);
    loop_run_until(&loop, &g_drained, 10, "its pipes are closed");
    worker_closed(&w, &ctx);
    ck_assert_int_eq(w.state, WORKER_CLOSED);
    ck_assert_str_eq(w.failure.message, e.msg);

    job.virtual_local_rank = false;
    worker_env_shared_free(env);
    env = NULL;
    e = (struct err)ERR_INIT;
    ck_assert_msg(worker_start(&w, &ctx, &w, &e) == 0, "%s", e.msg);
    spawn_settle(here.spawner);
    loop_run_until(&loop, &g_exited, 10, "it has ended");
    worker_env_shared_free(env);
    stdio_pump_close(ctx.pump, &(struct stdio_pump_end){
                                   .unread_s = -1, .on_closed = on_pump_closed, .arg = &closed});
    loop_run_until(&loop, &closed, 10, "the pump is closed");
    closed = false;
    reaper_close(ctx.reaper, on_closed, &closed);
    loop_run_until(&loop, &closed, 10, "the reaper is closed");
    spawner_free(here.spawner);
    loop_teardown(&loop);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("worker");
    TCase *tc = test_case(s, "worker", 30);
    tcase_add_test(tc, started_after_a_start_that_failed);
    return s;
}
TEST_MAIN(suite)
