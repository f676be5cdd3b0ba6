/* How a launcher handles GPUs, with a fake management library (tests/fake/nvml.c). */
#include "tests/integration/job.h"

#define GPU_A "0000:12:00.0 GPU-aaaa-1"
#define GPU_B "0000:1a:00.0 GPU-bbbb-2"

static char *g_env[8];

static void setup(void)
{
    ck_assert_int_eq(chdir(tmpdir()), 0);
    g_env[0] = test_text("LD_LIBRARY_PATH=%s", build_path("tests/fake"));
    g_env[1] = test_text("FAKE_NVML=%s/gpus", tmpdir());
    g_env[2] = "CUDA_VISIBLE_DEVICES";
    g_env[3] = "OMP_NUM_THREADS=1";
}

static void gpus(const char *text)
{
    write_file("gpus", text);
}

START_TEST(a_lost_gpu_ends_the_job)
{
    struct proc p;
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 lost 0 0 0\n");
    int status = proc_run(
        &p, ARGV(build_path("dlaunch"), "--nproc_per_node=gpu", "echo", "started"), g_env, 30);
    ck_assert_msg(status == 125, "exit %d\n%s", status, p.err);
    expect_text(p.err, "--nproc_per_node gpu: 2 GPUs (NVML)");
    expect_text(p.err, "GPU 0000:1a:00.0 is lost");
    expect_no_text(p.out, "started");
    proc_fini(&p);
    status = proc_run(
        &p,
        ARGV(build_path("dlaunch"), "--nproc_per_node=gpu", "--gpu_check=off", "echo", "started"),
        g_env, 30);
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    ck_assert_int_eq(count_text(p.out, "started"), 2);
    proc_fini(&p);
}
END_TEST

START_TEST(errors_are_in_the_report)
{
    struct proc p;
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 ok 5 0 0\n");
    int status = proc_run(
        &p,
        ARGV(build_path("dlaunch"), "--nproc_per_node=2", "--virtual_local_rank", "--report=r.json",
             "sh", "-c",
             "[ $RANK = 0 ] && exec sleep 30; sed 's/ok 5/ok 8/' gpus > new; mv new gpus; exit 3"),
        g_env, 30);
    ck_assert_msg(status == 3, "exit %d\n%s", status, p.err);
    expect_text(p.err,
                "GPU 1 (0000:1a:00.0): 3 uncorrectable ECC errors since the workers were started");
    json_t *j = json_of_file("r.json");
    expect_text(json_word(json_object_get(j, "first_failure"), "message"),
                "GPU 1 (0000:1a:00.0): 3 uncorrectable ECC errors");
    json_decref(j);
    proc_fini(&p);
}
END_TEST

/* What a GPU had before a worker was started is not why that worker failed. */
START_TEST(errors_of_an_earlier_round)
{
    struct proc p;
    gpus(GPU_A " 4 80000 ok 5 0 0\n");
    int status = proc_run(&p,
                          ARGV(build_path("dlaunch"), "--virtual_local_rank", "--max_restarts=1",
                               "--report=r.json", "sh", "-c",
                               "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 4; sed 's/ok 5/ok 8/' "
                               "gpus > new; mv new gpus; exit 3"),
                          g_env, 30);
    ck_assert_msg(status == 4, "exit %d\n%s", status, p.err);
    json_t *j = json_of_file("r.json"), *first = json_object_get(j, "first_failure");
    ck_assert_int_eq((int)json_number(first, "exit_code"), 4);
    expect_no_text(json_word(first, "message"), "ECC");
    json_decref(j);
    proc_fini(&p);
}
END_TEST

START_TEST(a_restart_waits_for_memory)
{
    struct proc p;
    gpus(GPU_A " 4 80000 ok 0 0 0\n");
    int status = proc_run(&p,
                          ARGV(build_path("dlaunch"), "--virtual_local_rank", "--max_restarts=1",
                               "--gpu_memory_wait=0.2", "sh", "-c",
                               "sed 's/ 4 / 9000 /' gpus > new; mv new gpus; echo try "
                               "$TORCHELASTIC_RESTART_COUNT; exit 1"),
                          g_env, 30);
    ck_assert_msg(status == 1, "exit %d\n%s", status, p.err);
    expect_text(p.out, "try 0\n");
    expect_text(p.out, "try 1\n");
    expect_text(p.err, "GPU 0000:12:00.0: 9.4 GB are still in use after 0.2 s");
    proc_fini(&p);
}
END_TEST

/* CUDA shows a process one instance of MIG: each worker gets its own, which is its device 0. */
START_TEST(a_worker_for_each_instance)
{
    static char say[] = "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES.";
    struct proc p;
    gpus(GPU_A " 4 80000 ok 0 0 0\nmig MIG-11 4 20000\nmig MIG-12 4 20000\n" GPU_B
               " 4 80000 ok 0 0 0\n");
    int status = proc_run(&p, ARGV(build_path("dlaunch"), "--nproc_per_node=gpu", "sh", "-c", say),
                          g_env, 30);
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    expect_text(p.err, "--nproc_per_node gpu: 3 MIG instances and GPUs (NVML)");
    expect_text(p.out, "0 0 MIG-11.\n");
    expect_text(p.out, "1 0 MIG-12.\n");
    expect_text(p.out, "2 0 GPU-bbbb-2.\n");
    proc_fini(&p);
    status = proc_run(
        &p,
        ARGV(build_path("dlaunch"), "--nproc_per_node=4", "--virtual_local_rank", "sh", "-c", say),
        g_env, 30);
    ck_assert_msg(status == 2, "exit %d\n%s", status, p.err);
    ck_assert_str_eq(p.err,
                     "dlaunch: --virtual_local_rank: NVML has 3 MIG instances and GPUs for 4 "
                     "workers\n");
    proc_fini(&p);
    g_env[2] = "CUDA_VISIBLE_DEVICES=MIG-12,MIG-11";
    status = proc_run(&p, ARGV(build_path("dlaunch"), "--nproc_per_node=auto", "sh", "-c", say),
                      g_env, 30);
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    expect_text(p.out, "0 0 MIG-12.\n");
    expect_text(p.out, "1 0 MIG-11.\n");
    ck_assert_int_eq(count_text(p.out, "MIG"), 2);
    proc_fini(&p);
}
END_TEST

START_TEST(the_table)
{
    struct proc p;
    char *xml =
        realpath(test_text("%s/../tests/unit/machines/8gpu-2socket.xml", build_path(".")), NULL);
    if (!xml)
        return test_skip("the machines' files are not beside the build folder");
    g_env[4] = test_text("HWLOC_XMLFILE=%s", xml);
    free(xml);
    int status = proc_run(&p,
                          ARGV(build_path("dlaunch"), "--print_binding", "--numa_binding=exclusive",
                               "--nproc_per_node=2", "true"),
                          g_env, 30);
    if (strstr(p.err, "hwloc"))
        test_skip("%s", p.err);
    else
        ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    if (status == 0) {
        ck_assert_str_eq(p.out, "local rank  GPU                 network           CPUs\n"
                                "0           0 (0000:12:00.0)    mlx5_0            cores 0-3 (CPUs "
                                "0-3,32-35)\n"
                                "1           1 (0000:1a:00.0)    mlx5_1            cores 4-7 (CPUs "
                                "4-7,36-39)\n"
                                "NCCL chooses its network cards itself; to keep it to these: "
                                "NCCL_IB_HCA==mlx5_0,mlx5_1\n");
    }
    proc_fini(&p);
}
END_TEST

/* Asks until the thread of the GPUs has looked at them. */
static bool shows_gpus(void *arg)
{
    struct proc *job = arg, p;
    int status = proc_run(
        &p, ARGV(build_path("dlaunchctl"), "-p", test_text("%d", (int)job->pid), "top"), NULL, 20);
    bool shown = status == 0 && strstr(p.out, "GPU MEMORY") && strstr(p.out, " 25 % ") &&
                 strstr(p.out, "19.5 GiB");
    proc_fini(&p);
    return shown;
}

START_TEST(top_shows_gpus)
{
    struct proc p;
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 ok 0 0 0\n");
    proc_start(&p,
               ARGV(build_path("dlaunch"), "--nproc_per_node=gpu", "sh", "-c",
                    "echo $RANK >> up; exec sleep 100"),
               g_env, 0);
    wait_lines("up", 2, 30);
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 20000 80000 ok 0 0 0\n");
    wait_until(shows_gpus, &p, 30, "the use of the GPUs is shown");
    proc_kill(&p, SIGTERM);
    ck_assert_int_eq(proc_wait(&p, 30), 128 + SIGTERM);
    proc_fini(&p);
}
END_TEST

/* Runs dlaunch where /dev has device files of two GPUs, which are plain files, and a kernel log
 * that is a FIFO. False: such a place cannot be made here. */
static bool run_with_devices(struct proc *p, int *status, char *const *argv)
{
    static const char place[] =
        "mkdir dev && mount -t tmpfs none dev && "
        "for f in null zero full random urandom tty; do "
        "  : > dev/$f && mount --bind /dev/$f dev/$f || exit 99; "
        "done && mkdir dev/shm dev/pts && ln -s /proc/self/fd dev/fd && ln -s pts/ptmx dev/ptmx && "
        "mount --rbind /dev/pts dev/pts && mount --rbind /dev/shm dev/shm && "
        ": > dev/nvidiactl && : > dev/nvidia0 && : > dev/nvidia1 && : > dev/kmsg && "
        "mount --rbind dev /dev || exit 99; exec \"$@\"";
    const char *all[32] = {"unshare", "-m", "sh", "-c", place, "sh"};
    size_t n = 6;
    for (; *argv && n < 31; argv++)
        all[n++] = *argv;
    *status = proc_run(p, (char **)all, g_env, 60);
    if (*status != 99 && !strstr(p->err, "unshare failed"))
        return true;
    test_skip("device files of GPUs: cannot make a /dev: %s", p->err);
    proc_fini(p);
    return false;
}

/* What a worker does: opens the GPU it uses, waits until the GPUs were looked at (the fake notes
 * that), and makes its GPU fail. */
#define USES                                                                                     \
    "exec 3<>/dev/nvidia$RANK; n=0; until [ -e nvml.looked ]; do n=$((n+1)); [ $n -gt 200 ] && " \
    "exit 9; sleep 0.1; done; [ $RANK = 0 ] && exec sleep 60; "

/* No option says that the job uses GPUs: a worker has opened one. */
START_TEST(errors_without_options)
{
    static const struct {
        const char *fault, *line;
    } rows[] = {
        {"sed 's/ok 5/ok 8/' gpus > new; mv new gpus; exit 3",
         "GPU 1 (0000:1a:00.0): 3 uncorrectable ECC errors since the workers were started"},
        {"sed 's/ok 5/lost 5/' gpus > new; mv new gpus; exit 3",
         "GPU 1 (0000:1a:00.0): lost: it does not answer its driver"},
        {"echo '4,99,7,-;NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.' >> /dev/kmsg;"
         " exit 3",
         "GPU 1 (0000:1a:00.0): Xid 79, GPU has fallen off the bus, seen at "},
    };
    struct proc p;
    int status;
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 ok 5 0 0\n");
    g_env[4] = test_text("FAKE_NVML_LOOKED=%s/nvml.looked", tmpdir());
    if (!run_with_devices(&p, &status,
                          ARGV(build_path("dlaunch"), "--nproc_per_node=2", "--report=r.json", "sh",
                               "-c", test_text(USES "%s", rows[_i].fault))))
        return;
    ck_assert_msg(status == 3, "exit %d\n%s", status, p.err);
    expect_text(p.err, rows[_i].line);
    json_t *j = json_of_file("r.json"), *first = json_object_get(j, "first_failure");
    ck_assert_int_eq((int)json_number(first, "rank"), 1);
    expect_text(json_word(first, "message"), rows[_i].line);
    ck_assert_str_eq(json_word(first, "cause"), "gpu");
    json_decref(j);
    proc_fini(&p);
}
END_TEST

/* The rank with the failed GPU hangs, and another one gives up: the first one is to blame. */
START_TEST(the_rank_of_the_failed_gpu_is_the_first)
{
    struct proc p;
    int status;
    gpus(GPU_A " 4 80000 ok 0 0 0\n" GPU_B " 4 80000 ok 5 0 0\n");
    g_env[4] = test_text("FAKE_NVML_LOOKED=%s/nvml.looked", tmpdir());
    if (!run_with_devices(&p, &status,
                          ARGV(build_path("dlaunch"), "--nproc_per_node=2", "--report=r.json", "sh",
                               "-c",
                               USES "sed '/aaaa/s/ok 0/lost 0/' gpus > new; mv new gpus; exit 3")))
        return;
    ck_assert_msg(status == 1, "exit %d\n%s", status, p.err);
    expect_text(p.err, "First failure: rank 0 on ");
    expect_text(p.err, "had a GPU that failed: GPU 0 (0000:12:00.0): lost");
    json_t *j = json_of_file("r.json"), *first = json_object_get(j, "first_failure");
    ck_assert_int_eq((int)json_number(first, "rank"), 0);
    ck_assert_str_eq(json_word(first, "cause"), "gpu");
    json_decref(j);
    proc_fini(&p);
}
END_TEST

/* On a host with GPUs, a job whose workers open none does not load NVML. */
START_TEST(a_plain_program_loads_nothing)
{
    struct proc p;
    int status;
    gpus(GPU_A " 4 80000 ok 0 0 0\n");
    g_env[4] = test_text("FAKE_NVML_LOOKED=%s/nvml.looked", tmpdir());
    if (!run_with_devices(
            &p, &status,
            ARGV(build_path("dlaunch"), "--nproc_per_node=2", "sh", "-c", "sleep 1; exit 3")))
        return;
    ck_assert_msg(status == 3, "exit %d\n%s", status, p.err);
    ck_assert_int_ne(access("nvml.looked", F_OK), 0);
    proc_fini(&p);
}
END_TEST

/* A worker that writes what PyTorch's flight recorder and NCCL would: rank 2 has not come to the
 * operation in which the others wait. */
static const char traces[] =
    "import os, pickle, sys\n"
    "rank = int(os.environ['RANK'])\n"
    "def entry(n, state):\n"
    "    return dict(record_id=n, profiling_name='nccl:all_reduce', pg_id=0, is_p2p=False,\n"
    "                process_group=('0', 'default_pg'), collective_seq_id=n, state=state)\n"
    "entries = [entry(16, 'completed')] + ([] if rank == 2 else [entry(17, 'started')])\n"
    "name = os.environ['TORCH_FR_DUMP_TEMP_FILE']\n"
    "assert name == os.environ['TORCH_NCCL_DEBUG_INFO_TEMP_FILE'] and "
    "name.startswith(os.getcwd())\n"
    "assert os.environ['TORCH_FR_DUMP_ON_TIMEOUT'] == os.environ['TORCH_NCCL_DUMP_ON_TIMEOUT']\n"
    "assert os.environ['NCCL_DEBUG'] == 'WARN'\n"
    "pickle.dump(dict(entries=entries), open(name + str(rank), 'wb'))\n"
    "log = open(os.environ['NCCL_DEBUG_FILE'], 'w')\n"
    "log.write('node:12:34 [0] NCCL INFO nothing\\n\\n[2026] node:12:34 [0] net.cc:1 NCCL WARN '\n"
    "          'Net: rank %d: Connection reset\\n' % rank)\n"
    "log.close()\n"
    "open('up', 'a').write('%d\\n' % rank)\n"
    "while len(open('up').readlines()) < 4:\n"
    "    pass\n"
    "if rank == 1:\n"
    "    sys.exit(3)\n"
    "import signal; signal.pause()\n";

START_TEST(evidence_in_the_report)
{
    struct proc p;
    write_file("traces.py", traces);
    int status = proc_run(&p,
                          ARGV(build_path("dlaunch"), "--nproc_per_node=4", "--log_dir=logs",
                               "--report=r.json", "python3", "traces.py"),
                          g_env, 60);
    ck_assert_msg(status == 3, "exit %d\n%s", status, p.err);
    expect_text(p.err, "NCCL WARN Net: rank 1: Connection reset");
    expect_text(p.err, "called    ranks 0, 1, 3 (");
    expect_text(p.err, "all_reduce in group 0, #17, not ended");
    expect_text(p.err, "rank 2 (");
    expect_text(p.err, "all_reduce in group 0, #16, ended (this rank is the");
    json_t *j = json_of_file("r.json"), *first = json_object_get(j, "first_failure");
    expect_text(json_word(first, "message"), "NCCL WARN Net: rank 1: Connection reset");
    ck_assert_str_eq(json_word(first, "operation"), "all_reduce in group 0, #17, not ended");
    json_decref(j);
    proc_fini(&p);
}
END_TEST

/* What the user has set stays, by either name. */
START_TEST(evidence_where_the_user_wants_it)
{
    struct proc p;
    g_env[4] = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/x/y_";
    g_env[5] = "NCCL_DEBUG=INFO";
    int status = proc_run(&p,
                          ARGV(build_path("dlaunch"), "--log_dir=logs", "sh", "-c",
                               "env | grep -e ^TORCH_FR -e ^TORCH_NCCL_D -e ^NCCL_DEBUG"),
                          g_env, 60);
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    ck_assert_int_eq(count_text(p.out, "\n"), 2);
    expect_text(p.out, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/x/y_\n");
    expect_text(p.out, "NCCL_DEBUG=INFO\n");
    proc_fini(&p);
    g_env[4] = g_env[5] = NULL;
    status = proc_run(&p, /* no log files, so nothing is set */
                      ARGV(build_path("dlaunch"), "sh", "-c",
                           "env | grep -c -e ^TORCH_FR -e ^TORCH_NCCL_D -e ^NCCL_DEBUG || :"),
                      g_env, 60);
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    ck_assert_str_eq(p.out, "0\n");
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("gpus");
    TCase *tc = test_case(s, "gpus", 90);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, a_lost_gpu_ends_the_job);
    tcase_add_test(tc, errors_are_in_the_report);
    tcase_add_test(tc, errors_of_an_earlier_round);
    tcase_add_test(tc, a_restart_waits_for_memory);
    tcase_add_test(tc, a_worker_for_each_instance);
    tcase_add_test(tc, the_table);
    tcase_add_test(tc, top_shows_gpus);
    tcase_add_loop_test(tc, errors_without_options, 0, 3);
    tcase_add_test(tc, the_rank_of_the_failed_gpu_is_the_first);
    tcase_add_test(tc, a_plain_program_loads_nothing);
    tcase_add_test(tc, evidence_in_the_report);
    tcase_add_test(tc, evidence_where_the_user_wants_it);
    return s;
}

TEST_MAIN(suite)
