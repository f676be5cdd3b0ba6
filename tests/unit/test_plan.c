/* The exact output of --print_config and --dry_run. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/mem.h"
#include "launcher/options/config_file.h"
#include "launcher/options/job_build.h"
#include "launcher/options/plan.h"
#include "tests/lib/proc.h"

extern char **environ;

static void drop_line(void *arg, const char *line, size_t len)
{
    (void)arg, (void)line, (void)len;
}

static void setup(void)
{
    static const char *const unset[] = {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHON_EXEC",
                                        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"};
    for (size_t i = 0; i < ARRAY_LEN(unset); i++)
        unsetenv(unset[i]);
    log_set_writer(drop_line, NULL);
    ck_assert_int_eq(chdir(tmpdir()), 0);
    write_file("train", "#!/bin/sh\n");
    chmod("train", 0755);
}

/* The plan of a command line, on a host called node-a. The environment part is cut off into *env.
 */
static char *plan(char *const *args, const char *nodelist, char **env)
{
    struct options o;
    struct job_spec job;
    struct err e = ERR_INIT;
    char *argv[24] = {"dlaunch"}, *text = NULL;
    int argc = 1, status;
    size_t len;
    for (; *args; args++)
        argv[argc++] = *args;
    options_init(&o, "dlaunch");
    ck_assert_msg(options_read_argv(&o, argc, argv, &e) == 0, "%s", e.msg);
    o.nodelist = nodelist;
    o.envp = environ;
    ck_assert_msg(job_build(&job, &o, &status, &e) == 0, "%s", e.msg);
    job.host = job.rdzv.host = "node-a";
    FILE *f = open_memstream(&text, &len);
    ck_assert_msg(plan_print(f, &job, &o, &e) == 0, "%s", e.msg);
    fclose(f);
    options_fini(&o);
    char *at = strstr(text, "\nEnvironment");
    ck_assert_ptr_nonnull(at);
    if (env)
        *env = xstrdup(at);
    *at = '\0';
    return text;
}

START_TEST(two_nodes)
{
    char *env, *text = plan(ARGV("--nnodes=2", "--node_rank=1", "--nproc=2", "--master_addr=n0",
                                 "--max_restarts=3", "--tee=3", "--redirects=0:1", "--log_dir=logs",
                                 "--report=r.json", "--timeout=90min", "--rdzv_id=job 7", "./train",
                                 "--lr", "0.1", "a b"),
                            NULL, &env);
    ck_assert_str_eq(text,
                     "Job         2 nodes, 2 workers on this one (node-a), run id job 7\n"
                     "Rendezvous  static at n0:29500; this is node 1; waits for 15 min\n"
                     "Store       served by dlaunch at MASTER_ADDR:MASTER_PORT\n"
                     "Command     ./train --lr 0.1 'a b'\n"
                     "Restarts    3, of all workers\n"
                     "Stopping    SIGTERM, SIGINT, SIGHUP, SIGQUIT; SIGKILL after 30 s; the whole "
                     "job after 90 min\n"
                     "Logs        logs\n"
                     "Report      r.json\n"
                     "\n"
                     "Ranks, if every node has 2 workers:\n"
                     "  node   ranks\n"
                     "  0      0-1\n"
                     "  1      2-3  (this node)\n"
                     "\n"
                     "Workers of this node:\n"
                     "  rank  local rank  CPUs and output\n"
                     "  2     0           any CPU; both streams to file and console\n"
                     "  3     1           any CPU; both streams to file and console\n");
    static const char *const want[] = {"\n  GROUP_RANK=1\n",
                                       "\n  ROLE_NAME=default\n",
                                       "\n  LOCAL_WORLD_SIZE=2\n",
                                       "\n  WORLD_SIZE=4\n",
                                       "\n  MASTER_ADDR=n0\n",
                                       "\n  MASTER_PORT=29500\n",
                                       "\n  OMP_NUM_THREADS=1\n",
                                       "\nEnvironment of each:\n",
                                       "\n  2     LOCAL_RANK=0 RANK=2 ",
                                       "\n  3     LOCAL_RANK=1 RANK=3 ",
                                       " ROLE_RANK=3"};
    for (size_t i = 0; i < ARRAY_LEN(want); i++)
        ck_assert_msg(strstr(env, want[i]), "no '%s' in%s", want[i], env);
    ck_assert_msg(!strstr(env, "PATH="), "what dlaunch has itself is not shown: %s", env);
    free(env);
    free(text);
}
END_TEST

START_TEST(alone)
{
    char *env, *text = plan(ARGV("--rdzv_id=x", "./train"), NULL, &env);
    ck_assert_str_eq(text, "Job         1 node, 1 worker on this one (node-a), run id x\n"
                           "Rendezvous  none needed: one node, on a free port of loopback\n"
                           "Store       served by dlaunch at MASTER_ADDR:MASTER_PORT\n"
                           "Command     ./train\n"
                           "Restarts    none\n"
                           "Stopping    SIGTERM, SIGINT, SIGHUP, SIGQUIT; SIGKILL after 30 s\n"
                           "\n"
                           "Workers of this node:\n"
                           "  rank  local rank  CPUs and output\n"
                           "  0     0           any CPU; console\n");
    ck_assert_ptr_nonnull(strstr(env, "\n  MASTER_PORT=(a free port)\n"));
    ck_assert_ptr_nonnull(strstr(env, "\n  TORCHELASTIC_ERROR_FILE=(a new file for each)\n"));
    ck_assert_ptr_nonnull(strstr(env, "\n  RANK=0\n"));
    ck_assert_ptr_null(strstr(env, "Environment of each"));
    free(text);
    free(env);
}
END_TEST

START_TEST(elastic_with_names)
{
    char *text = plan(ARGV("--nnodes=2:20", "--rdzv_backend=c10d", "--rdzv_endpoint=h:1",
                           "--restart_policy=worker", "--max_restarts=1", "--master_store=none",
                           "--redirects=1", "--log_dir=/dev/null", "./train"),
                      "n[01-20]", NULL);
    ck_assert_ptr_nonnull(strstr(text, "Job         2 to 20 nodes, 1 worker on this one"));
    ck_assert_ptr_nonnull(strstr(text, "Rendezvous  c10d at h:1; waits for 10 min, for more than 2 "
                                       "nodes 30 s\n"));
    ck_assert_ptr_nonnull(strstr(text, "Store       none: MASTER_PORT is free for the program\n"));
    ck_assert_ptr_nonnull(strstr(text, "Restarts    1, of the worker that failed\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n  0      0  n01\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n  15     15  n16\n  ... and 4 more\n"));
    ck_assert_ptr_nonnull(strstr(text, "Which of them this node is, the rendezvous decides; below, "
                                       "it is node 0.\n"));
    ck_assert_ptr_nonnull(strstr(text, "any CPU; stdout to file\n"));
    free(text);
    text = plan(ARGV("--nproc=2", "--local_ranks_filter=1", "./train"), NULL, NULL);
    ck_assert_ptr_nonnull(strstr(text, "  0     0           any CPU; nowhere\n"
                                       "  1     1           any CPU; console\n"));
    free(text);
    /* a list that does not fit the job says nothing */
    text = plan(ARGV("--nnodes=2", "./train"), "n[01-20]", NULL);
    ck_assert_ptr_nonnull(strstr(text, "\n  0      0\n  1      1\n"));
    free(text);
}
END_TEST

/* Text from the user or the environment cannot move the terminal's cursor. */
START_TEST(controls_are_shown)
{
    char *text = plan(ARGV("./train", "a\x1b[2Jb\nc"), NULL, NULL);
    ck_assert_ptr_nonnull(strstr(text, "Command     ./train 'a\\x1b[2Jb\\x0ac'\n"));
    free(text);
}
END_TEST

START_TEST(a_full_disk_is_reported)
{
    struct options o;
    struct job_spec job;
    struct err e = ERR_INIT;
    int status;
    char *argv[] = {"dlaunch", "./train", NULL};
    options_init(&o, "dlaunch");
    ck_assert_int_eq(options_read_argv(&o, 2, argv, NULL), 0);
    ck_assert_int_eq(job_build(&job, &o, &status, NULL), 0);
    FILE *full = fopen("/dev/full", "w");
    ck_assert_int_lt(plan_print(full, &job, &o, &e), 0);
    ck_assert_str_eq(e.msg, "standard output: No space left on device");
    fclose(full);
    options_fini(&o);
}
END_TEST

static void on_config_error(void *arg, const char *line)
{
    (void)arg;
    ck_abort_msg("%s", line);
}

START_TEST(configuration)
{
    static const char file[] = "nnodes = 4\n"
                               "[log]\n"
                               "dir = /logs\n"
                               "[env]\n"
                               "NCCL_DEBUG = INFO\n"
                               "TEXT = \"a\tb\"\n";
    char *argv[] = {"dlaunch", "--nproc=2", "--standalone", "./train", "--lr", "a b", NULL};
    char *env[] = {"PET_MAX_RESTARTS=3", "DLAUNCH_ROLE=learner", NULL}, *text = NULL;
    struct options o;
    size_t len;
    options_init(&o, "dlaunch");
    ck_assert_int_eq(options_read_argv(&o, 6, argv, NULL), 0);
    ck_assert_int_eq(options_read_env(&o, env, NULL), 0);
    config_text_read(&o, "/etc/job.ini", file, sizeof(file) - 1, on_config_error, NULL);
    options_set(&o, OPT_master_addr, "n01", FROM_DETECTED, "SLURM_STEP_NODELIST", NULL);
    FILE *f = open_memstream(&text, &len);
    ck_assert_int_eq(plan_print_config(f, &o), 0);
    fclose(f);
    static const char *const want[] = {
        "nnodes                    4                                 /etc/job.ini:1\n",
        "nproc_per_node            2                                 --nproc_per_node\n",
        "node_rank                 any                               default\n",
        "role                      learner                           DLAUNCH_ROLE\n",
        "standalone                yes                               --standalone\n",
        "no_detect                 no                                default\n",
        "rdzv_endpoint             -                                 default\n",
        "master_addr               n01                               SLURM_STEP_NODELIST\n",
        "max_restarts              3                                 PET_MAX_RESTARTS\n",
        "log_dir                   /logs                             /etc/job.ini:3\n",
        "use_env                   yes                               default\n",
        "command                   ./train --lr 'a b'                command line\n",
        "[env] NCCL_DEBUG          INFO                              /etc/job.ini:5\n",
        "[env] TEXT                a\\x09b                            /etc/job.ini:6\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(want); i++)
        ck_assert_msg(strstr(text, want[i]), "no\n%s in\n%s", want[i], text);
    size_t lines = 0, options = 0;
    for (char *p = text; *p; p++)
        lines += *p == '\n';
    for (int i = 0; i < OPT_COUNT; i++)
        options += !(opt_table[i].flags & OPT_F_CLI);
    ck_assert_uint_eq(lines, options + 3);
    free(text);
    options_fini(&o);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("plan");
    TCase *tc = test_case(s, "plan", 20);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, two_nodes);
    tcase_add_test(tc, alone);
    tcase_add_test(tc, elastic_with_names);
    tcase_add_test(tc, controls_are_shown);
    tcase_add_test(tc, a_full_disk_is_reported);
    tcase_add_test(tc, configuration);
    return s;
}

TEST_MAIN(suite)
