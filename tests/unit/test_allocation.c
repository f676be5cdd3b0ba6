/* The hosts of a scheduler's job: when dlaunch starts itself on them, and by which program. */
#include "launcher/hosts/allocation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/log.h"
#include "core/mem.h"
#include "tests/lib/test.h"

static char g_said[1024];

static void keep_line(void *arg, const char *line, size_t len)
{
    (void)arg;
    snprintf(g_said, sizeof(g_said), "%.*s", (int)len, line);
}

/* Programs by which hosts are reached, and a file of hosts of each kind. */
static void setup(void)
{
    static const char *const programs[] = {"srun", "blaunch", "qrsh", "ssh"};
    for (size_t i = 0; i < ARRAY_LEN(programs); i++) {
        write_file(tmppath(programs[i]), "#!/bin/sh\n");
        ck_assert_int_eq(chmod(tmppath(programs[i]), 0755), 0);
    }
    setenv("PATH", tmppath(""), 1); /* of this test's process */
    write_file(tmppath("slots"), "n1\nn1\nn2\nn2\n");
    write_file(tmppath("sge"), "n1.site 4 all.q@n1 UNDEFINED\nn2.site 2 all.q@n2 UNDEFINED\n");
    log_set_writer(keep_line, NULL);
    g_said[0] = '\0';
}

/* "hosts by agent", "none", or "! error". %T in a variable is the folder of files. */
static char *allocation(const char *prog, const char *const *env, const char *const *args)
{
    struct options o;
    struct err e = ERR_INIT;
    char *argv[16] = {(char *)prog}, *vars[8] = {NULL}, *text;
    int argc = 1;
    for (int i = 0; env[i]; i++) {
        const char *t = strstr(env[i], "%T");
        vars[i] = t ? test_text("%.*s%s%s", (int)(t - env[i]), env[i], tmppath(""), t + 2)
                    : (char *)env[i];
    }
    for (; *args; args++)
        argv[argc++] = (char *)*args;
    argv[argc++] = (char *)"x";
    options_init(&o, prog);
    ck_assert_msg(options_read_argv(&o, argc, argv, &e) == 0, "%s", e.msg);
    int rc = allocation_read(&o, vars, &e);
    if (rc < 0)
        text = test_text("! %s", e.msg);
    else
        text = rc > 0
                   ? (char *)"none"
                   : test_text("%s by %s", opt_text(&o, OPT_host), opt_text(&o, OPT_launch_agent));
    options_fini(&o);
    return text;
}

#define SLURM "SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=n[1-3]"

static const struct {
    const char *env[5], *args[6], *want;
} cases[] = {
    {{SLURM}, {"-N", "2"}, "n1,n2 by srun"},
    {{SLURM}, {"--nnodes", "1:3"}, "n1,n2,n3 by srun"},
    {{SLURM}, {"--nnodes=2", "--spares=1"}, "n1,n2,n3 by srun"},
    {{SLURM}, {"-n", "8", "-ppn", "4"}, "n1,n2 by srun"},
    {{SLURM}, {"-N", "2", "--launch_agent", "ssh"}, "n1,n2 by ssh"},
    {{SLURM, "SLURM_STEP_ID=4294967291"}, {"-N", "2"}, "n1,n2 by srun"}, /* the batch script */
    {{SLURM}, {"-N", "4"}, "! -N 4: Slurm job 7 has 3 nodes (--no_detect ignores Slurm)"},
    /* a heterogeneous job: in its script, the usual name is that of the first part */
    {{SLURM, "SLURM_JOB_NODELIST_HET_GROUP_0=n[1-3]", "SLURM_JOB_NODELIST_HET_GROUP_1=g1,g2"},
     {"-N", "5"},
     "n1,n2,n3,g1,g2 by srun"},
    {{"SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=n[1-"},
     {"-N", "2"},
     "! SLURM_JOB_NODELIST: '1-': brackets must contain numbers and ranges, such as [1-3,7]"},
    {{"PBS_JOBID=9.pbs", "PBS_NODEFILE=%T/slots"}, {"-N", "2"}, "n1,n2 by ssh"}, /* no pbs_tmrsh */
    {{"LSB_JOBID=9", "LSB_DJOB_HOSTFILE=%T/slots"}, {"-N", "2"}, "n1,n2 by blaunch"},
    {{"LSB_JOBID=9", "LSB_MCPU_HOSTS=n1 4 n2 4 "}, {"-N", "2"}, "n1,n2 by blaunch"},
    {{"JOB_ID=9", "PE_HOSTFILE=%T/sge"}, {"-N", "2"}, "n1.site,n2.site by qrsh -inherit"},
    {{"JOB_ID=9", "PE_HOSTFILE=/nowhere"},
     {"-N", "2"},
     "! PE_HOSTFILE: /nowhere: No such file or directory"},
    /* not asked for, or the user says how the nodes meet */
    {{"PBS_JOBID=9.pbs", "PBS_NODEFILE=%T/slots", "PALS_NODEID=0"}, {"-N", "2"}, "none"},
    {{SLURM, "SLURM_STEP_ID=0"}, {"-N", "2"}, "none"}, /* srun has started this launcher */
    {{SLURM}, {"-N", "1"}, "none"},
    {{SLURM}, {"-N", "2", "--no_detect"}, "none"},
    {{SLURM}, {"-N", "2", "--standalone"}, "none"},
    {{SLURM}, {"-N", "2", "--node_rank", "1"}, "none"},
    {{SLURM}, {"-N", "2", "--master_addr", "n1"}, "none"},
    {{SLURM}, {"-N", "2", "--rdzv_endpoint", "n1"}, "none"},
    {{"JOB_ID=9"}, {"-N", "2"}, "none"},
};

START_TEST(hosts_of_a_job)
{
    ck_assert_str_eq(allocation("dlaunch", cases[_i].env, cases[_i].args), cases[_i].want);
}
END_TEST

START_TEST(parts_of_a_heterogeneous_job)
{
    char *env[] = {SLURM, "SLURM_JOB_NODELIST_HET_GROUP_0=n[1-3]",
                   "SLURM_JOB_NODELIST_HET_GROUP_1=g1,g2", NULL};
    ck_assert_int_eq(allocation_het_group(env, "n3"), 0);
    ck_assert_int_eq(allocation_het_group(env, "g2"), 1);
    ck_assert_int_eq(allocation_het_group(env, "g3"), -1);
    env[2] = NULL;
    ck_assert_int_eq(allocation_het_group(env, "n3"), -1);
}
END_TEST

START_TEST(torchrun_stays_on_its_host)
{
    static const char *const env[] = {SLURM, NULL}, *const args[] = {"--nnodes", "2", NULL};
    ck_assert_str_eq(allocation("torchrun", env, args), "none");
    ck_assert_str_eq(g_said, "");
}
END_TEST

START_TEST(it_is_said)
{
    static const char *const env[] = {SLURM, NULL}, *const none[] = {NULL},
                             *const two[] = {"-N", "2", NULL};
    allocation("dlaunch", env, two);
    ck_assert_str_eq(g_said, "dlaunch: Slurm job 7: starting on 2 of its 3 nodes by srun "
                             "(--no_detect to ignore)\n");
    ck_assert_str_eq(allocation("dlaunch", env, none), "none");
    ck_assert_str_eq(g_said, "dlaunch: Slurm job 7 has 3 nodes, but without --nnodes dlaunch runs "
                             "on this host only; --nnodes 3 runs the job on all of them\n");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("allocation");
    TCase *t = test_case(s, "allocation", 20);
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_loop_test(t, hosts_of_a_job, 0, ARRAY_LEN(cases));
    tcase_add_test(t, parts_of_a_heterogeneous_job);
    tcase_add_test(t, torchrun_stays_on_its_host);
    tcase_add_test(t, it_is_said);
    return s;
}

TEST_MAIN(suite)
