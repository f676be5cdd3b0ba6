/* Which settings of Slurm and Kubernetes are used, and which are refused. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "launcher/options/detect.h"
#include "tests/lib/proc.h"

static char g_said[4096];

static void keep_line(void *arg, const char *line, size_t len)
{
    (void)arg;
    size_t n = strlen(g_said);
    snprintf(g_said + n, sizeof(g_said) - n, "%.*s", (int)len, line);
}

static void setup(void)
{
    g_said[0] = '\0';
    log_set_writer(keep_line, NULL);
}

#define ENV(...) ((char *[]){__VA_ARGS__, NULL})

/* Runs detection on top of a command line and environment; the result as "nnodes node_rank id addr
 * port", or "! error". */
static char *run_as(const char *prog, char *const *env, char *const *args, const char *host,
                    const char *hosts)
{
    struct options o;
    struct err e = ERR_INIT;
    char *argv[16] = {(char *)prog}, *text;
    int argc = 1;
    for (; args && *args; args++)
        argv[argc++] = *args;
    options_init(&o, prog);
    ck_assert_msg(options_read_argv(&o, argc, argv, &e) == 0, "%s", e.msg);
    ck_assert_msg(options_read_env(&o, env, &e) == 0, "%s", e.msg);
    write_file(tmppath("hosts"), hosts ? hosts : "127.0.0.1 localhost\n");
    struct detect_host where = {host ? host : "here", tmppath("hosts"), NULL};
    g_said[0] = '\0';
    if (detect(&o, env, &where, &e) < 0)
        text = xasprintf("! %s", e.msg);
    else
        text = xasprintf("%s %s %s %s %s", opt_text(&o, OPT_nnodes), opt_text(&o, OPT_node_rank),
                         opt_text(&o, OPT_rdzv_id), opt_text(&o, OPT_master_addr),
                         opt_text(&o, OPT_master_port));
    options_fini(&o);
    return text;
}

static char *run(char *const *env, char *const *args, const char *host, const char *hosts)
{
    return run_as("dlaunch", env, args, host, hosts);
}

#define STEP                                                                                \
    "SLURM_JOB_ID=123", "SLURM_STEP_ID=0", "SLURM_NODEID=3", "SLURM_STEP_NUM_NODES=8",      \
        "SLURM_STEP_NUM_TASKS=8", "SLURM_STEP_NODELIST=n[01-08]", "SLURM_JOB_NUM_NODES=16", \
        "SLURM_NNODES=16", "SLURM_JOB_NODELIST=m[01-16]"

START_TEST(flux_and_pals)
{
    static const char flux[] = "FLUX_JOB_ID=f7", nodes[] = "FLUX_JOB_NNODES=4";
    char *file = test_text("PBS_NODEFILE=%s", tmppath("slots"));
    write_file(tmppath("slots"), "x1\nx1\nx2\nx1\nx3\n");
    const struct {
        char *const *env, *const *args;
        const char *want;
    } cases[] = {
        {ENV((char *)flux, (char *)nodes, "FLUX_TASK_RANK=2", "FLUX_TASK_LOCAL_ID=0",
             "FLUX_JOB_SIZE=4"),
         ENV("--master_addr", "n0"), "4 2 none n0 29500"},
        {ENV((char *)flux, (char *)nodes, "FLUX_TASK_RANK=2", "FLUX_TASK_LOCAL_ID=0",
             "FLUX_JOB_SIZE=4"),
         NULL, "! Flux job f7, launcher 2: where the nodes meet is in no variable"},
        {ENV((char *)flux, (char *)nodes, "FLUX_TASK_RANK=0", "FLUX_TASK_LOCAL_ID=0",
             "FLUX_JOB_SIZE=8"),
         NULL, "! Flux job f7 has several dlaunch on a node"},
        {ENV((char *)flux, (char *)nodes, "FLUX_TASK_RANK=1", "FLUX_TASK_LOCAL_ID=1",
             "FLUX_JOB_SIZE=8"),
         NULL, "! "},
        {ENV((char *)flux, "FLUX_JOB_NNODES=1", "FLUX_TASK_RANK=0"), NULL,
         "1 any none 127.0.0.1 29500"},
        {ENV((char *)flux, (char *)nodes), NULL, "1 any none 127.0.0.1 29500"}, /* a batch script */
        {ENV("PALS_APID=a", file, "PALS_NODEID=1", "PALS_LOCAL_RANKID=0"), NULL, "3 1 a x1 27476"},
        {ENV("PALS_APID=a", file, "PALS_NODEID=0", "PALS_LOCAL_RANKID=1"), NULL,
         "! PALS job a has several dlaunch on a node"},
        {ENV("PALS_APID=a", "PBS_NODEFILE=/nowhere", "PALS_NODEID=1"), NULL,
         "! PBS_NODEFILE: /nowhere: No such file or directory"},
        {ENV("PALS_APID=a", file, "PALS_NODEID=1"), ENV("--no_detect"),
         "1 any none 127.0.0.1 29500"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char *got = run(cases[i].env, cases[i].args, NULL, NULL);
        size_t n = strlen(cases[i].want);
        ck_assert_msg(n > 2 ? strncmp(got, cases[i].want, n) == 0 : strcmp(got, cases[i].want) == 0,
                      "%zu: %s", i, got);
        free(got);
    }
}
END_TEST

START_TEST(slurm_step)
{
    char *got = run(ENV(STEP), NULL, NULL, NULL);
    ck_assert_str_eq(got, "8 3 123.0 n01 22091");
    ck_assert_str_eq(g_said, "dlaunch: Slurm step 123.0: 8 nodes, this is node 3, head n01, port "
                             "22091 (--no_detect to ignore)\n");
    free(got);
    got = run(ENV(STEP, "SLURM_RESTART_COUNT=2"), NULL, NULL, NULL);
    ck_assert_str_eq(got, "8 3 123.0.2 n01 22091");
    free(got);
    got = run(ENV(STEP), ARGV("--no_detect", "x"), NULL, NULL);
    ck_assert_str_eq(got, "1 any none 127.0.0.1 29500");
    ck_assert_str_eq(g_said, "");
    free(got);
}
END_TEST

/* Spare nodes are nodes of the step, the last ones. */
START_TEST(spare_nodes_of_a_slurm_step)
{
    char *got = run(ENV(STEP), ARGV("--spares", "2", "x"), NULL, NULL);
    ck_assert_str_eq(got, "6 3 123.0 n01 22091");
    ck_assert_str_eq(g_said, "dlaunch: Slurm step 123.0: 6 nodes and 2 to spare, this is node 3, "
                             "head n01, port 22091 (--no_detect to ignore)\n");
    free(got);
    got = run(ENV(STEP), ARGV("--nnodes", "3", "--spares", "5", "x"), NULL, NULL);
    ck_assert_str_eq(got, "3 any 123.0 n01 22091");
    ck_assert_str_eq(g_said, "dlaunch: Slurm step 123.0: 3 nodes and 5 to spare, head n01, port "
                             "22091 (--no_detect to ignore)\n");
    free(got);
}
END_TEST

static double grace_under(char *const *env, char *const *args)
{
    struct options o;
    struct err e = ERR_INIT;
    struct detect_host where = {"here", "/etc/hosts", NULL};
    char *argv[8] = {"dlaunch"};
    int argc = 1;
    for (; *args; args++)
        argv[argc++] = *args;
    options_init(&o, "dlaunch");
    ck_assert_msg(options_read_argv(&o, argc, argv, &e) == 0, "%s", e.msg);
    ck_assert_msg(detect(&o, env, &where, &e) == 0, "%s", e.msg);
    double seconds = opt_seconds(&o, OPT_shutdown_timeout);
    options_fini(&o);
    return seconds;
}

/* The report is to be written before the scheduler kills dlaunch, 30 s after it asked it to stop.
 */
START_TEST(grace_is_shorter_than_that_of_the_scheduler)
{
    char *slurm = "SLURM_JOB_ID=123", *kubernetes = "KUBERNETES_SERVICE_HOST=10.0.0.1";
    ck_assert_double_eq(grace_under(ENV("A=b"), ARGV("x")), 30);
    ck_assert_double_eq(grace_under(ENV(slurm), ARGV("x")), 25);
    ck_assert_double_eq(grace_under(ENV(kubernetes), ARGV("--standalone", "x")), 25);
    ck_assert_double_eq(grace_under(ENV(kubernetes), ARGV("--no_detect", "x")), 30);
    ck_assert_double_eq(grace_under(ENV(slurm), ARGV("--shutdown_timeout", "50", "x")), 50);
}
END_TEST

static char *log_under(char *const *env, char *const *args, const char *path)
{
    struct options o;
    struct err e = ERR_INIT;
    struct detect_host where = {"here", "/etc/hosts", path};
    char *argv[8] = {"dlaunch"};
    int argc = 1;
    for (; *args; args++)
        argv[argc++] = *args;
    options_init(&o, "dlaunch");
    ck_assert_msg(options_read_argv(&o, argc, argv, &e) == 0, "%s", e.msg);
    ck_assert_msg(detect(&o, env, &where, &e) == 0, "%s", e.msg);
    const char *text = o.value[OPT_pod_message].text;
    char *copy = test_keep(xstrdup(text ? text : "none"));
    options_fini(&o);
    return copy;
}

START_TEST(message_of_a_pod)
{
    char *pod = "KUBERNETES_SERVICE_HOST=10.0.0.1", *log = tmppath("log");
    char *taken = test_text("TORCHELASTIC_ERROR_FILE=%s", log);
    ck_assert_str_eq(log_under(ENV(pod), ARGV("x"), log), "none"); /* not there */
    write_file(log, "");
    ck_assert_str_eq(log_under(ENV(pod), ARGV("x"), log), log);
    ck_assert_str_eq(log_under(ENV(pod), ARGV("--standalone", "x"), log), log);
    ck_assert_str_eq(log_under(ENV(pod, taken), ARGV("x"), log), "none");
    ck_assert_str_eq(log_under(ENV(pod, "TORCHELASTIC_ERROR_FILE=/x"), ARGV("x"), log), log);
    ck_assert_str_eq(log_under(ENV("A=b"), ARGV("x"), log), "none");
    ck_assert_str_eq(log_under(ENV(pod), ARGV("--no_detect", "x"), log), "none");
    ck_assert_str_eq(log_under(ENV(pod), ARGV("--pod_message", "/dev/null", "x"), log),
                     "/dev/null");
}
END_TEST

/* Detected values only replace options that the user did not give. */
START_TEST(slurm_and_user)
{
    static const struct {
        char *args[6];
        const char *want;
    } rows[] = {
        {{"--rdzv_id", "mine", "x"}, "8 3 mine n01 22091"},
        {{"--master_port", "5", "x"}, "8 3 123.0 n01 5"},
        {{"--master_addr", "h", "x"}, "8 3 123.0 h 22091"},
        {{"--node_rank", "1", "x"}, "8 1 123.0 n01 22091"},
        {{"--nnodes", "2:4", "x"}, "2:4 3 123.0 n01 22091"},
        /* each launcher a job of its own */
        {{"--nnodes", "1", "x"}, "1 any none 127.0.0.1 29500"},
        {{"--standalone", "x"}, "1 any none 127.0.0.1 29500"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *got = run(ENV(STEP), rows[i].args, NULL, NULL);
        ck_assert_str_eq(got, rows[i].want);
        free(got);
    }
}
END_TEST

#define POD "KUBERNETES_SERVICE_HOST=10.0.0.1", "JOB_COMPLETION_INDEX=2"
static const char pod_hosts[] = "# Kubernetes-managed hosts file.\n"
                                "127.0.0.1\tlocalhost\n"
                                "10.2.3.4\ttrain-2.svc.ns.svc.cluster.local\ttrain-2\n";

#define ONE_NODE_STEP                                                                 \
    "SLURM_JOB_ID=77", "SLURM_STEP_ID=1", "SLURM_NODEID=0", "SLURM_STEP_NUM_NODES=1", \
        "SLURM_STEP_NODELIST=n2", "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_NODELIST=n[1-2]"

/* A job of more nodes than the step has, which meet where the user says: one srun for each node. */
START_TEST(slurm_step_is_a_part_of_the_job)
{
    static const struct {
        char *args[10];
        const char *want;
    } rows[] = {
        {{"--nnodes", "2", "--node_rank", "1", "--master_addr", "n1", "x"}, "2 1 none n1 29500"},
        {{"--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "n1:5", "x"},
         "2 any none 127.0.0.1 29500"},
        {{"--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "n1:5", "x"},
         "1:2 any none 127.0.0.1 29500"},
        /* an empty place is none */
        {{"--nnodes", "2", "--rdzv_endpoint", "", "x"}, "2 0 77.1 n2 21310"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *got = run(ENV(ONE_NODE_STEP, "SLURM_STEP_NUM_TASKS=1"), rows[i].args, NULL, NULL);
        ck_assert_str_eq(got, rows[i].want);
        free(got);
    }
    /* a job that may grow beyond the step still begins in it */
    char *got = run(ENV(STEP), ARGV("--nnodes", "2:16", "--rdzv_backend", "c10d", "x"), NULL, NULL);
    ck_assert_str_eq(got, "2:16 3 123.0 n01 22091");
    free(got);
}
END_TEST

/* The nodes of a job, a spare and a witness, each in a step or a pod of its own, or several in one:
 * they are of one name where they meet. */
START_TEST(of_one_name)
{
    char *const step[] = {STEP, NULL}, *const one_node[] = {ONE_NODE_STEP, NULL},
                *const pod[] = {POD, NULL};
    char *const *const envs[] = {step, one_node, pod};
    static char *const lines[][12] = {
        {"--nnodes", "8", "--rdzv_backend", "c10d", "--rdzv_endpoint", "n0", "x"},
        {"--nnodes", "1:8", "--spares", "1", "--rdzv_backend", "c10d", "--rdzv_endpoint", "n0",
         "x"},
        {"--rdzv_backend", "c10d", "--rdzv_endpoint", "n0", "x"},
        {"--witness", "n0"},
        {"--witness", "n0", "--nnodes", "8"},
        {"--rdzv_only", "--nnodes", "8", "--rdzv_endpoint", ":29400"},
    };
    for (size_t i = 0; i < ARRAY_LEN(envs); i++) {
        for (size_t k = 0; k < ARRAY_LEN(lines); k++) {
            char *got = run(envs[i], lines[k], "train-2", pod_hosts);
            ck_assert_msg(strstr(got, " any none "), "%zu %zu: %s", i, k, got);
            free(got);
        }
    }
}
END_TEST

/* Several launchers on a node, or one where several tasks were asked for: nothing is refused where
 * nothing but a name is taken from the step. */
START_TEST(slurm_tasks_without_a_job_of_the_step)
{
    char *const one_node[] = {ONE_NODE_STEP, "SLURM_STEP_NUM_TASKS=4",
                              "SLURM_STEP_TASKS_PER_NODE=4", NULL};
    char *got = run_as("torchrun", one_node, ARGV("--nproc_per_node", "1", "x"), NULL, NULL);
    ck_assert_str_eq(got, "1 any 77.1 127.0.0.1 29500");
    ck_assert_str_eq(
        g_said, "dlaunch: Slurm step 77.1 has 4 tasks on this node, and each dlaunch is a separate "
                "job; to start N workers by one dlaunch, use srun --ntasks=1 "
                "dlaunch --nproc_per_node N ...\n");
    free(got);
    char *const terminal[] = {ONE_NODE_STEP, "SLURM_STEP_NUM_TASKS=4",
                              "SLURM_STEP_TASKS_PER_NODE=4", "SLURM_PTY_PORT=40000", NULL};
    got = run(terminal, ARGV("x"), NULL, NULL);
    ck_assert_str_eq(got, "1 any 77.1 127.0.0.1 29500");
    ck_assert_str_eq(g_said, "");
    free(got);
    got = run(
        one_node,
        ARGV("--nnodes", "2", "--node_rank", "1", "--master_addr", "h", "--master_port", "5", "x"),
        NULL, NULL);
    ck_assert_str_eq(got, "2 1 none h 5");
    free(got);
    /* two jobs of the step's two nodes */
    char *const two_nodes[] = {"SLURM_JOB_ID=1",
                               "SLURM_STEP_ID=0",
                               "SLURM_NODEID=1",
                               "SLURM_STEP_NUM_NODES=2",
                               "SLURM_STEP_NUM_TASKS=4",
                               "SLURM_STEP_NODELIST=n[1-2]",
                               NULL};
    got = run(two_nodes,
              ARGV("--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "h:5", "x"), NULL,
              NULL);
    ck_assert_str_eq(got, "2 any none n1 20017");
    free(got);
    got = run(
        two_nodes,
        ARGV("--nnodes", "2", "--node_rank", "1", "--master_addr", "h", "--master_port", "5", "x"),
        NULL, NULL);
    ck_assert_str_eq(got, "2 1 none h 5");
    ck_assert_str_eq(g_said, ""); /* nothing was taken */
    free(got);
    /* its number among the nodes would be that of both */
    got = run(two_nodes, ARGV("--nnodes", "2", "--master_addr", "h", "--master_port", "5", "x"),
              NULL, NULL);
    ck_assert_ptr_nonnull(strstr(got, "! the Slurm step has 4 tasks on 2 nodes"));
    free(got);
}
END_TEST

/* Ranks that the user did not give, where the rendezvous gives some. */
START_TEST(ranks_of_dynamic_rendezvous)
{
    char *const c10d[] = {"--rdzv_backend", "c10d", "--nnodes", "8", "x", NULL};
    char *got = run(ENV(STEP), c10d, NULL, NULL);
    ck_assert_str_eq(got, "8 3 123.0 n01 22091");
    free(got);
    got = run_as("torchrun", ENV(STEP), c10d, NULL, NULL);
    ck_assert_str_eq(got, "8 any 123.0 127.0.0.1 29500"); /* it takes no address there */
    ck_assert_str_eq(g_said, "dlaunch: Slurm step 123.0: 8 nodes, no --rdzv_endpoint "
                             "(--no_detect to ignore)\n");
    free(got);
    /* others may come to a place of the user's */
    got =
        run(ENV(STEP), ARGV("--rdzv_backend", "c10d", "--nnodes", "8", "--rdzv_endpoint", "h", "x"),
            NULL, NULL);
    ck_assert_str_eq(got, "8 any none n01 22091");
    free(got);
    got = run(ENV(STEP), ARGV("--rdzv_backend", "file", "--rdzv_endpoint", "/f", "x"), NULL, NULL);
    ck_assert_str_eq(got, "8 any none n01 22091");
    free(got);
    /* more nodes than an elastic job takes */
    got = run(ENV(STEP), ARGV("--rdzv_backend", "c10d", "--nnodes", "1:3", "x"), NULL, NULL);
    ck_assert_str_eq(got, "1:3 any 123.0 n01 22091");
    free(got);
    got = run(ENV(STEP), ARGV("--rdzv_backend", "c10d", "--nnodes", "1:4", "x"), NULL, NULL);
    ck_assert_str_eq(got, "1:4 3 123.0 n01 22091");
    free(got);
    /* too many for one that is not: said by who checks ranks */
    got = run(ENV(STEP), ARGV("--nnodes", "2", "x"), NULL, NULL);
    ck_assert_str_eq(got, "2 3 123.0 n01 22091");
    free(got);
}
END_TEST

START_TEST(slurm_refusals)
{
    static const struct {
        char *env[10];
        const char *want;
    } rows[] = {
        {{"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_NODEID=0", "SLURM_STEP_NUM_NODES=2",
          "SLURM_STEP_NUM_TASKS=8", "SLURM_STEP_NODELIST=n[1-2]"},
         "! the Slurm step has 8 tasks on 2 nodes, each of which would start --nproc_per_node N "
         "workers; start one dlaunch per node: srun --nodes=2 --ntasks=2 --ntasks-per-node=1 "
         "dlaunch --nproc_per_node N ... (--no_detect ignores Slurm, --standalone runs a job on "
         "this node only)"},
        {{"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_NODEID=0", "SLURM_STEP_NUM_NODES=2",
          "SLURM_STEP_NUM_TASKS=8", "SLURM_STEP_NODELIST=n[1-2]", "SLURM_PROCID=0",
          "SLURM_NTASKS_PER_NODE=4"},
         "! the Slurm step has 8 tasks on 2 nodes, each of which would start --nproc_per_node N "
         "workers; leave out --ntasks-per-node=4: srun --nodes=2 --ntasks=2 --ntasks-per-node=1 "
         "dlaunch --nproc_per_node N ... (--no_detect ignores Slurm, --standalone runs a job on "
         "this node only)"},
        /* the first task has said it */
        {{"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_NODEID=0", "SLURM_STEP_NUM_NODES=2",
          "SLURM_STEP_NUM_TASKS=8", "SLURM_STEP_NODELIST=n[1-2]", "SLURM_PROCID=3"},
         "! "},
        {{"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_NODEID=0", "SLURM_STEP_NUM_NODES=3",
          "SLURM_STEP_NUM_TASKS=3", "SLURM_STEP_TASKS_PER_NODE=2,1", "SLURM_STEP_NODELIST=n[1-3]"},
         "! the Slurm step has 3 tasks on 3 nodes, each of which would start --nproc_per_node N "
         "workers; start one dlaunch per node: srun --nodes=3 --ntasks=3 --ntasks-per-node=1 "
         "dlaunch --nproc_per_node N ... (--no_detect ignores Slurm, --standalone runs a job on "
         "this node only)"},
        {{"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_NODEID=0", "SLURM_STEP_NUM_NODES=2",
          "SLURM_STEP_NODELIST=n[1-"},
         "! SLURM_STEP_NODELIST: '1-': brackets must contain numbers and ranges, such as [1-3,7]"},
        {{"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_NODEID=0", "SLURM_STEP_NUM_NODES=2"},
         "! this Slurm step has no SLURM_STEP_NODELIST; use --no_detect to ignore Slurm"},
        {{"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_NODEID=x", "SLURM_STEP_NUM_NODES=2",
          "SLURM_STEP_NODELIST=n[1-2]"},
         "! SLURM_NODEID: 'x' is neither a whole number nor any"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *got = run(rows[i].env, NULL, NULL, NULL);
        ck_assert_str_eq(got, rows[i].want);
        free(got);
    }
}
END_TEST

START_TEST(slurm_elsewhere)
{
    /* batch script or salloc: no step */
    static const char none[] = "1 any none 127.0.0.1 29500";
    char *got =
        run(ENV("SLURM_JOB_ID=7", "SLURM_NODEID=0", "SLURM_JOB_NUM_NODES=4"), NULL, NULL, NULL);
    ck_assert_str_eq(got, none);
    ck_assert_str_eq(g_said, "");
    free(got);
    got = run(ENV("SLURM_JOB_ID=7", "SLURM_STEP_ID=4294967291", "SLURM_NODEID=0",
                  "SLURM_JOB_NUM_NODES=1"),
              NULL, NULL, NULL);
    ck_assert_str_eq(got, none);
    ck_assert_str_eq(g_said, "");
    free(got);
    /* a step of one node needs no meeting, but its name is good */
    got = run(ENV("SLURM_JOB_ID=7", "SLURM_STEP_ID=2", "SLURM_NODEID=0", "SLURM_STEP_NUM_NODES=1",
                  "SLURM_NTASKS=1"),
              NULL, NULL, NULL);
    ck_assert_str_eq(got, "1 any 7.2 127.0.0.1 29500");
    ck_assert_str_eq(g_said, "");
    free(got);
    /* no Slurm, or half of it */
    got = run(ENV("SLURM_CONF=/x", "SLURM_JOB_ID=abc"), NULL, NULL, NULL);
    ck_assert_str_eq(got, none);
    free(got);
}
END_TEST

/* Two jobs that may share nodes, or two steps of one job, get different ports. */
START_TEST(slurm_ports)
{
    static bool used[65536];
    for (int job = 5000; job < 5500; job++) {
        char id[32], *got, *port;
        snprintf(id, sizeof(id), "SLURM_JOB_ID=%d", job);
        got = run(ENV(id, "SLURM_STEP_ID=0", "SLURM_NODEID=0", "SLURM_STEP_NUM_NODES=2",
                      "SLURM_STEP_NODELIST=a,b"),
                  NULL, NULL, NULL);
        port = strrchr(got, ' ') + 1;
        ck_assert_int_ge(atoi(port), 20000);
        ck_assert_int_lt(atoi(port), 30000);
        ck_assert_msg(!used[atoi(port)], "job %d gets the port of another", job);
        used[atoi(port)] = true;
        free(got);
    }
}
END_TEST

START_TEST(kubernetes_indexed_job)
{
    char *got = run(ENV(POD), ARGV("--nnodes", "4", "x"), "train-2", pod_hosts);
    ck_assert_str_eq(got, "4 2 train train-0.svc.ns.svc.cluster.local 29500");
    ck_assert_str_eq(g_said, "dlaunch: indexed Kubernetes job train: 4 nodes, this is node 2, head "
                             "train-0.svc.ns.svc.cluster.local, port 29500 (--no_detect to "
                             "ignore)\n");
    free(got);
    /* setHostnameAsFQDN */
    got = run(ENV(POD), ARGV("--nnodes", "4", "x"), "train-2.svc.ns", NULL);
    ck_assert_str_eq(got, "4 2 train train-0.svc.ns 29500");
    free(got);
    got = run(ENV(POD), ARGV("--nnodes", "4", "--master_addr", "m", "x"), "odd", NULL);
    ck_assert_str_eq(got, "4 2 none m 29500");
    free(got);
    /* the place is the user's: pods of other jobs may come to it, too */
    got = run(ENV(POD), ARGV("--nnodes", "4", "--master_addr", "m", "x"), "train-2", pod_hosts);
    ck_assert_str_eq(got, "4 2 none m 29500");
    free(got);
    got = run(ENV(POD),
              ARGV("--nnodes", "4", "--rdzv_backend", "c10d", "--rdzv_endpoint", "m:5", "x"),
              "train-2", pod_hosts);
    ck_assert_str_eq(got, "4 any none 127.0.0.1 29500");
    ck_assert_str_eq(g_said, "");
    free(got);
    /* more pods than an elastic job takes */
    got =
        run(ENV(POD), ARGV("--nnodes", "1:2", "--rdzv_backend", "c10d", "x"), "train-2", pod_hosts);
    ck_assert_str_eq(got, "1:2 any train train-0.svc.ns.svc.cluster.local 29500");
    ck_assert_str_eq(g_said, "dlaunch: indexed Kubernetes job train: 1:2 nodes, head "
                             "train-0.svc.ns.svc.cluster.local, port 29400 (--no_detect to "
                             "ignore)\n");
    free(got);
    got = run_as("torchrun", ENV(POD), ARGV("--nnodes", "4", "--rdzv_backend", "c10d", "x"),
                 "train-2", pod_hosts);
    ck_assert_str_eq(got, "4 any none 127.0.0.1 29500");
    ck_assert_str_eq(g_said, "");
    free(got);
    got = run(ENV(POD), ARGV("x"), "train-2", pod_hosts);
    ck_assert_str_eq(got, "1 any none 127.0.0.1 29500");
    ck_assert_str_eq(
        g_said,
        "dlaunch: indexed Kubernetes job, pod 2: without --nnodes the job runs on this pod only\n");
    free(got);
    got = run(ENV(POD), ARGV("--nnodes", "4", "x"), "train-2", NULL);
    ck_assert_str_eq(got, "! indexed Kubernetes job, pod 2 (train-2): cannot find the address of "
                          "pod 0; set the pods' subdomain to a headless service, or give "
                          "--master_addr");
    free(got);
    got = run(ENV(POD), ARGV("--nnodes", "4", "x"), "train-3", pod_hosts);
    ck_assert_ptr_nonnull(strstr(got, "cannot find the address"));
    free(got);
    /* not in Kubernetes, or not indexed */
    got = run(ENV("JOB_COMPLETION_INDEX=2"), ARGV("--nnodes", "4", "x"), "train-2", pod_hosts);
    ck_assert_str_eq(got, "4 any none 127.0.0.1 29500");
    free(got);
    got = run(ENV("KUBERNETES_SERVICE_HOST=1"), ARGV("--nnodes", "4", "x"), "train-2", pod_hosts);
    ck_assert_str_eq(got, "4 any none 127.0.0.1 29500");
    free(got);
}
END_TEST

START_TEST(kubernetes_jobset)
{
    char *got = run(ENV(POD), ARGV("--nnodes", "4", "x"), "js-workers-0-2",
                    "10.2.3.4 js-workers-0-2.js.ns.svc.cluster.local js-workers-0-2\n");
    ck_assert_str_eq(got, "4 2 js-workers-0 js-workers-0-0.js.ns.svc.cluster.local 29500");
    ck_assert_ptr_nonnull(
        strstr(g_said, "JobSet js: 4 nodes, this is node 2, head js-workers-0-0"));
    free(got);
    got = run(ENV(POD), ARGV("--nnodes", "8", "x"), "js-workers-1-2",
              "10.2.3.4 js-workers-1-2.js.ns.svc.cluster.local js-workers-1-2\n");
    ck_assert_str_eq(
        got,
        "! js-workers-1 looks like job 1 of JobSet js, and this is pod 2 of it: for a JobSet of "
        "several jobs give --master_addr and --node_rank (job-global-index times pods per job, "
        "plus pod); for a plain Job give --master_addr of pod 0 (--no_detect ignores Kubernetes)");
    free(got);
    /* A plain job whose name begins as that of its service does looks the same. */
    got = run(ENV(POD), ARGV("--nnodes", "4", "--master_addr", "train-run-3-0.train", "x"),
              "train-run-3-2", "10.2.3.4 train-run-3-2.train.ns train-run-3-2\n");
    ck_assert_str_eq(got, "4 2 none train-run-3-0.train 29500");
    ck_assert_str_eq(g_said,
                     "dlaunch: train-run-3 looks like job 3 of JobSet train: if that has "
                     "several jobs, give each pod its --node_rank\n"
                     "dlaunch: indexed Kubernetes job train-run-3: 4 nodes, this is node 2, head "
                     "train-run-3-0.train, port 29500 (--no_detect to ignore)\n");
    free(got);
    /* both said, or a rendezvous that gives the ranks */
    static char *const said[][8] = {
        {"--nnodes", "8", "--node_rank", "6", "--master_addr", "h", "x"},
        {"--nnodes", "8", "--rdzv_backend", "c10d", "--rdzv_endpoint", "h", "x"}};
    static const char *const want[] = {"8 6 none h 29500", "8 any none 127.0.0.1 29500"};
    for (size_t i = 0; i < ARRAY_LEN(said); i++) {
        got = run(ENV(POD), said[i], "js-workers-1-2",
                  "10.2.3.4 js-workers-1-2.js.ns.svc.cluster.local js-workers-1-2\n");
        ck_assert_str_eq(got, want[i]);
        free(got);
    }
    /* A job whose name ends in a number is not a JobSet. */
    got = run(ENV(POD), ARGV("--nnodes", "4", "x"), "train-7-2",
              "10.2.3.4 train-7-2.train.ns train-7-2\n");
    ck_assert_str_eq(got, "4 2 train-7 train-7-0.train.ns 29500");
    free(got);
}
END_TEST

START_TEST(kubeflow)
{
    char *got = run(ENV("KUBERNETES_SERVICE_HOST=1", "PET_NNODES=2", "PET_NODE_RANK=1",
                        "PET_MASTER_ADDR=job-node-0-0.job", "PET_MASTER_PORT=29500",
                        "JOB_COMPLETION_INDEX=1", "RANK=7", "WORLD_SIZE=9"),
                    NULL, "job-node-0-1", NULL);
    ck_assert_str_eq(got, "2 1 none job-node-0-0.job 29500");
    ck_assert_str_eq(g_said, "dlaunch: Kubeflow (PET_*): 2 nodes, this is node 1, head "
                             "job-node-0-0.job, port 29500\n");
    free(got);
    got = run(ENV("KUBERNETES_SERVICE_HOST=1", "PET_NNODES=1:4", "PET_NODE_RANK=1",
                  "PET_RDZV_ENDPOINT=e:29400"),
              NULL, NULL, NULL);
    ck_assert_str_eq(g_said,
                     "dlaunch: Kubeflow (PET_*): 1:4 nodes, this is node 1, head e:29400\n");
    free(got);
}
END_TEST

/* The environment is anybody's: nothing in it may do harm. */
START_TEST(hostile_environment)
{
    char big[70000];
    snprintf(big, sizeof(big), "SLURM_STEP_NODELIST=");
    memset(big + strlen(big), 'n', sizeof(big) - strlen(big) - 1);
    big[sizeof(big) - 1] = '\0';
    char *got = run(
        ENV("SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_NODEID=0", "SLURM_STEP_NUM_NODES=2", big),
        NULL, NULL, NULL);
    ck_assert_ptr_nonnull(strstr(got, "is too long for a host name"));
    free(got);
    got = run(ENV("SLURM_JOB_ID=99999999999999999999", "SLURM_STEP_ID=-5", "SLURM_NNODES=1e9",
                  "SLURM_NODEID=", "=x", "NOEQUALS"),
              NULL, NULL, NULL);
    ck_assert_str_eq(got, "1 any none 127.0.0.1 29500");
    free(got);
    char host[300];
    memset(host, '7', sizeof(host));
    host[sizeof(host) - 1] = '\0';
    got = run(ENV(POD), ARGV("--nnodes", "4", "x"), host, pod_hosts);
    ck_assert_ptr_nonnull(strstr(got, "cannot find the address"));
    free(got);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("detect");
    TCase *tc = test_case(s, "detect", 20);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, flux_and_pals);
    tcase_add_test(tc, slurm_step);
    tcase_add_test(tc, spare_nodes_of_a_slurm_step);
    tcase_add_test(tc, slurm_and_user);
    tcase_add_test(tc, message_of_a_pod);
    tcase_add_test(tc, grace_is_shorter_than_that_of_the_scheduler);
    tcase_add_test(tc, slurm_step_is_a_part_of_the_job);
    tcase_add_test(tc, of_one_name);
    tcase_add_test(tc, slurm_tasks_without_a_job_of_the_step);
    tcase_add_test(tc, ranks_of_dynamic_rendezvous);
    tcase_add_test(tc, slurm_refusals);
    tcase_add_test(tc, slurm_elsewhere);
    tcase_add_test(tc, slurm_ports);
    tcase_add_test(tc, kubernetes_indexed_job);
    tcase_add_test(tc, kubernetes_jobset);
    tcase_add_test(tc, kubeflow);
    tcase_add_test(tc, hostile_environment);
    return s;
}

TEST_MAIN(suite)
