/* The command itself, as far as it goes without starting a worker: what it prints, what it refuses,
 * and with which exit status. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/mem.h"
#include "launcher/control/daemon.h"
#include "tests/lib/proc.h"

/* The test's environment does not influence the results. */
static char *const bare_env[] = {"SLURM_JOB_ID",
                                 "SLURM_STEP_ID",
                                 "PYTHON_EXEC",
                                 "KUBERNETES_SERVICE_HOST",
                                 "PET_NNODES",
                                 "DLAUNCH_CONF",
                                 "CUDA_VISIBLE_DEVICES",
                                 "OMP_NUM_THREADS",
                                 NULL};

static char *dlaunch, *torchrun;

static void setup(void)
{
    dlaunch = build_path("dlaunch");
    torchrun = tmppath("torchrun");
    ck_assert_int_eq(symlink(dlaunch, torchrun), 0);
    ck_assert_int_eq(chdir(tmpdir()), 0);
    write_file("train", "#!/bin/sh\n");
    ck_assert_int_eq(chmod("train", 0755), 0);
    write_file("script.py", "\n");
}

static int run(struct proc *p, char *const argv[])
{
    return proc_run(p, argv, bare_env, 20);
}

static size_t lines_of(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

START_TEST(information)
{
    struct proc p;
    ck_assert_int_eq(run(&p, ARGV(dlaunch, "--version")), 0);
    ck_assert_str_eq(p.out, "dlaunch " DLAUNCH_VERSION "\n");
    proc_fini(&p);
    ck_assert_int_eq(run(&p, ARGV(dlaunch, "-h")), 0);
    ck_assert_ptr_nonnull(strstr(p.out, "Usage: dlaunch [options] program [arguments]\n"));
    ck_assert_ptr_nonnull(strstr(p.out,
                                 "  --nproc_per_node N|auto|cpu|gpu  Number of workers on this "
                                 "node\n"));
    ck_assert_uint_le(lines_of(p.out), 33);
    ck_assert_str_eq(p.err, "");
    proc_fini(&p);
    ck_assert_int_eq(run(&p, ARGV(dlaunch, "--help")), 0);
    ck_assert_ptr_nonnull(strstr(p.out, "Usage: dlaunch [options] program [arguments]\n"));
    ck_assert_ptr_nonnull(strstr(p.out, "\n  --store_compat "));
    ck_assert_ptr_nonnull(strstr(p.out, "\nExit status:\n"));
    ck_assert_str_eq(p.err, "");
    proc_fini(&p);
    ck_assert_int_eq(run(&p, ARGV(torchrun, "--help")), 0);
    ck_assert_ptr_nonnull(strstr(p.out, "Usage: torchrun [options]"));
    proc_fini(&p);
    ck_assert_int_eq(run(&p, ARGV(dlaunch, "--print_options", "mdoc")), 0);
    ck_assert_ptr_nonnull(strstr(p.out, ".It Fl N , Fl \\-nnodes Ar N|MIN:MAX\n"));
    proc_fini(&p);
    ck_assert_int_eq(run(&p, ARGV(dlaunch, "--print-completion=zsh")), 2);
    ck_assert_str_eq(p.err, "dlaunch: --print_completion: zsh is not supported (only bash)\n");
    proc_fini(&p);
}
END_TEST

static const char *const unwritable[] = {"-h",
                                         "--help",
                                         "--version",
                                         "--dry_run true",
                                         "--print_config",
                                         "--print_binding true",
                                         "--print_options ini",
                                         "--print_completion bash"};

START_TEST(output_errors_are_reported)
{
    struct proc p;
    char *line = test_text("exec '%s' %s >/dev/full", dlaunch, unwritable[_i]);
    ck_assert_int_eq(run(&p, ARGV("sh", "-c", line)), 1);
    ck_assert_str_eq(p.err, "dlaunch: standard output: No space left on device\n");
    proc_fini(&p);
}
END_TEST

/* The completion code works in a shell, and mandoc finds nothing in the manual part. */
START_TEST(generated_texts)
{
    struct proc p;
    static const char script[] =
        "source <(\"$0\" --print_completion bash) || exit 3\n"
        "t() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _dlaunch;"
        " echo \"${COMPREPLY[*]}\"; }\n"
        "t dlaunch --nn; t dlaunch --nproc-p; t dlaunch --bind ''; t dlaunch --bind = c;\n"
        "t dlaunch ./train --nn; t dlaunch --nnodes 2 -r 3 --dry; t dlaunch --nnodes --\n"
        /* a value with : or = in it comes as several words */
        "t dlaunch --nnodes 2 : 4 --dry; t dlaunch --nnodes = 2 : 4 --dry\n"
        "t dlaunch --rdzv_endpoint : 29400 --dry; t dlaunch --rdzv_endpoint =: 29400 --dry\n"
        "t dlaunch -r 0 : 1,1 : 2 --dry; t dlaunch --rdzv_conf a = 1,b = 2 ./train --dry\n";
    ck_assert_int_eq(run(&p, ARGV("bash", "-c", (char *)script, dlaunch)), 0);
    ck_assert_str_eq(p.out,
                     "--nnodes\n--nproc_per_node\nnone core numa socket\ncore\n\n--dry_run\n\n"
                     "--dry_run\n--dry_run\n--dry_run\n--dry_run\n--dry_run\n\n");
    proc_fini(&p);
    int missing = run(&p, ARGV("sh", "-c", "command -v mandoc"));
    proc_fini(&p);
    if (missing) {
        test_skip("no mandoc to check the manual part with");
        return;
    }
    static const char lint[] =
        "(printf '.Dd $Mdocdate$\\n.Dt X 1\\n.Os\\n.Sh NAME\\n.Nm x\\n.Nd x\\n.Sh OPTIONS\\n';"
        " \"$0\" --print_options mdoc) | mandoc -T lint | grep -v Mdocdate; true";
    ck_assert_int_eq(run(&p, ARGV("sh", "-c", (char *)lint, dlaunch)), 0);
    ck_assert_str_eq(p.out, "");
    proc_fini(&p);
}
END_TEST

/* Bad input: one line, the right exit status, nothing started. */
START_TEST(refusals)
{
    static const struct {
        char *args[6];
        int dlaunch, torchrun;
        const char *why;
    } rows[] = {
        {{"--bananas"}, 2, 2, "unknown option --bananas\n"},
        {{"--nnodse", "2", "./train"}, 2, 2, "unknown option --nnodse (did you mean --nnodes?)\n"},
        {{"--nnodes"}, 2, 2, "--nnodes needs a value (N|MIN:MAX)\n"},
        {{"--nnodes=0", "./train"}, 2, 1, "--nnodes: 0 is out of range (1 to 1000000)\n"},
        {{"--nnodes=3:2", "./train"}, 2, 1, "--nnodes: 3:2: MIN is greater than MAX\n"},
        {{"--max_restarts=x", "./train"}, 2, 2, "--max_restarts: 'x' is not a whole number\n"},
        {{"--rdzv_backend=etc", "./train"},
         2,
         1,
         "not one of static, c10d, file, etcd (did you mean etcd?)"},
        {{"--log_dir=train", "./train"}, 2, 1, "--log_dir: train is not a folder\n"},
        {{"--conf=missing.ini", "./train"}, 2, 2, "missing.ini: No such file or directory\n"},
        {{"--nnodes=1"}, 2, 2, "no program is given"},
        {{"--no_python", "./missing"}, 127, 1, "./missing"},
        {{"--no_python", "./script.py"}, 126, 1, "./script.py"},
        {{"missing.py"}, 127, 1, "missing.py"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (int tr = 0; tr < 2; tr++) {
            struct proc p;
            char *argv[8] = {tr ? torchrun : dlaunch};
            for (int k = 0; rows[i].args[k]; k++)
                argv[k + 1] = rows[i].args[k];
            int status = run(&p, argv), want = tr ? rows[i].torchrun : rows[i].dlaunch;
            ck_assert_msg(status == want, "%s %s: %d, not %d\n%s", argv[0], argv[1], status, want,
                          p.err);
            ck_assert_msg(strstr(p.err, rows[i].why), "%s\n  lacks %s", p.err, rows[i].why);
            ck_assert_msg(lines_of(p.err) == 1, "not one line: %s", p.err);
            ck_assert_str_eq(p.out, "");
            proc_fini(&p);
        }
    }
}
END_TEST

START_TEST(every_mistake_of_a_file)
{
    struct proc p;
    write_file("job.ini", "nnode = 2\n[log]\n tee = 3\n[env]\nA = 1\nA = 2\n");
    ck_assert_int_eq(run(&p, ARGV(dlaunch, "--conf", "job.ini", "./train")), 2);
    ck_assert_str_eq(
        p.err,
        "dlaunch: job.ini:1: unknown key nnode (did you mean nnodes?)\n"
        "dlaunch: job.ini:3: the line must not be indented (it would continue the line above)\n"
        "dlaunch: job.ini:6: A is given twice (first at job.ini:5)\n");
    proc_fini(&p);
}
END_TEST

START_TEST(configuration_and_plan)
{
    struct proc p;
    char *env[] = {"PET_NNODES=3",
                   "DLAUNCH_MAX_RESTARTS=2",
                   "DLAUNCH_CONF=job.ini",
                   "SLURM_JOB_ID",
                   "KUBERNETES_SERVICE_HOST",
                   "OMP_NUM_THREADS=1",
                   NULL};
    write_file("job.ini", "nnodes = 9\ncommand = ./train --lr 1\n[env]\nA = b\n"
                          "[rendezvous]\nid = from file\n");
    ck_assert_int_eq(proc_run(&p, ARGV(dlaunch, "--print-config"), env, 20), 0);
    ck_assert_ptr_nonnull(strstr(p.out, "PET_NNODES\n"));
    ck_assert_ptr_nonnull(strstr(p.out, "DLAUNCH_MAX_RESTARTS\n"));
    ck_assert_ptr_nonnull(strstr(p.out, "job.ini:6\n"));
    ck_assert_ptr_nonnull(strstr(p.out, "./train --lr 1"));
    ck_assert_str_eq(p.err, "");
    proc_fini(&p);
    ck_assert_int_eq(proc_run(&p, ARGV(dlaunch, "--dry_run", "--nproc=2"), env, 20), 0);
    ck_assert_ptr_nonnull(strstr(p.out, "Job         3 nodes, 2 workers on this one ("));
    ck_assert_ptr_nonnull(strstr(p.out, "Command     ./train --lr 1\n"));
    ck_assert_str_eq(p.err, "");
    proc_fini(&p);
    /* Nothing is made, nothing is started. */
    ck_assert_int_eq(run(&p, ARGV(dlaunch, "--dry_run", "--log_dir=logs", "--pid_file=pid",
                                  "--report=r", "--daemon", "./train")),
                     0);
    ck_assert(access("logs", F_OK) < 0 && access("pid", F_OK) < 0 && access("r", F_OK) < 0);
    proc_fini(&p);
}
END_TEST

START_TEST(slurm)
{
    struct proc p;
    char *env[] = {
        "SLURM_JOB_ID=123",        "SLURM_STEP_ID=0",        "SLURM_NODEID=1",
        "SLURM_STEP_NUM_NODES=2",  "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=n[01-02]",
        "KUBERNETES_SERVICE_HOST", "OMP_NUM_THREADS=1",      NULL};
    ck_assert_int_eq(proc_run(&p, ARGV(dlaunch, "--dry_run", "./train"), env, 20), 0);
    ck_assert_str_eq(p.err, "dlaunch: Slurm step 123.0: 2 nodes, this is node 1, head n01, port "
                            "22091 (--no_detect to ignore)\n");
    ck_assert_ptr_nonnull(strstr(p.out, "static at n01:22091; this is node 1"));
    ck_assert_ptr_nonnull(strstr(p.out, "  1      1  n02  (this node)\n"));
    proc_fini(&p);
    ck_assert_int_eq(proc_run(&p, ARGV(dlaunch, "--quiet", "--dry_run", "./train"), env, 20), 0);
    ck_assert_str_eq(p.err, "");
    proc_fini(&p);
    env[4] = "SLURM_STEP_NUM_TASKS=4";
    ck_assert_int_eq(proc_run(&p, ARGV(dlaunch, "./train"), env, 20), 2);
    ck_assert_ptr_nonnull(strstr(p.err, "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 dlaunch"));
    ck_assert_ptr_nonnull(strstr(p.err, "(--no_detect ignores"));
    proc_fini(&p);
}
END_TEST

/* With --daemon, errors before the job is set up are still printed on the terminal. */
START_TEST(background_errors)
{
    struct proc p;
    ck_assert_int_eq(run(&p, ARGV(dlaunch, "--daemon", "./missing")), 127);
    ck_assert_ptr_nonnull(strstr(p.err, "./missing"));
    proc_fini(&p);
    ck_assert_int_eq(run(&p, ARGV(dlaunch, "--daemon", "--log_file=no/where", "./train")), 2);
    ck_assert_ptr_nonnull(
        strstr(p.err, "dlaunch: --log_file: no/where: No such file or directory\n"));
    proc_fini(&p);
    ck_assert_int_eq(run(&p, ARGV(dlaunch, "--pid_file=no/where", "./train")), 2);
    ck_assert_str_eq(p.err, "dlaunch: --pid_file: no/where: No such file or directory\n");
    proc_fini(&p);
    struct pid_file held;
    ck_assert_int_eq(pid_file_open(&held, "held.pid", NULL), 0);
    ck_assert_int_eq(pid_file_write(&held, NULL), 0);
    ck_assert_int_eq(run(&p, ARGV(dlaunch, "--daemon", "--pid_file=held.pid", "./train")), 2);
    ck_assert_ptr_nonnull(strstr(p.err, "so that job is still running\n"));
    ck_assert_int_eq(access("held.pid", F_OK), 0);
    proc_fini(&p);
    pid_file_close(&held);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("command_line");
    TCase *tc = test_case(s, "command_line", 60);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, information);
    tcase_add_loop_test(tc, output_errors_are_reported, 0, (int)ARRAY_LEN(unwritable));
    tcase_add_test(tc, generated_texts);
    tcase_add_test(tc, refusals);
    tcase_add_test(tc, every_mistake_of_a_file);
    tcase_add_test(tc, configuration_and_plan);
    tcase_add_test(tc, slurm);
    tcase_add_test(tc, background_errors);
    return s;
}

TEST_MAIN(suite)
