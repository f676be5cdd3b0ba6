/* Bad input: one line that names it and says what would be right, the exit status, and nothing
 * started or made. What concerns the meeting of nodes is in test_meeting.c. */
#include "tests/integration/job.h"

#include <glob.h>
#include <sys/mount.h>

/* ---------------------------------------------------------------------------------- the options */

/* Every option with a value, and one that it does not take. %W stands in front of nothing: the
 * program would leave a file. */
static const struct {
    const char *options;
    const char *says;
} options[] = {
    {"--nnodes 2:", "--nnodes: "},
    {"--nnodes -1", "--nnodes: "},
    {"--nnodes 99999999999999999999", "--nnodes: "},
    {"--nproc_per_node 5000", "--nproc_per_node: 5000 is out of range (1 to 4096)"},
    {"--nproc_per_node some", "--nproc_per_node: "},
    {"--node_rank -2", "--node_rank: "},
    {"--nnodes 2 --node_rank 2", "--node_rank: 2 is out of range: with 2 nodes, ranks are 0 to 1"},
    {"--rdzv_backend zoo", "--rdzv_backend: "},
    {"--nnodes 2 --rdzv_backend file", "--rdzv_endpoint"},
    {"--nnodes 2 --rdzv_backend file --rdzv_endpoint %T/no/f",
     "--rdzv_endpoint: cannot create a file"},
    {"--rdzv_endpoint host:0x10", "--rdzv_endpoint: "},
    {"--nnodes 2 --rdzv_endpoint [fd77::1", "--rdzv_endpoint: "},
    {"--nnodes 2 --rdzv_endpoint fd77::1:29400",
     "--rdzv_endpoint: 'fd77::1:29400' is not host:port (an IPv6 address is written [addr]:port)"},
    {"--rdzv_conf join_timeout=abc", "--rdzv_conf: join_timeout: 'abc' is not a time"},
    {"--rdzv_conf keep_alive_max_attempt=0", "--rdzv_conf: keep_alive_max_attempt: "},
    {"--rdzv_conf what", "--rdzv_conf: 'what' is not KEY=VALUE"},
    {"--master_port 65536", "--master_port: "},
    {"--interface nosuch0",
     "--interface: no interface 'nosuch0' with an address on this host (available: "},
    {"--master_store some", "--master_store: 'some' is not one of agent, relay, none"},
    {"--store_compat 3", "--store_compat: '3' is not one of 2.1, 1.13"},
    {"--stdin rank1", "--stdin: 'rank1' is not one of none, rank0, all"},
    {"--start_method thread", "--start_method: 'thread' is not one of spawn, fork, forkserver"},
    {"--max_restarts -1", "--max_restarts: "},
    {"--restart_policy each", "--restart_policy: 'each' is not one of group, worker"},
    {"--restart_backoff soon", "--restart_backoff: 'soon' is not a time"},
    {"--timeout 3y", "--timeout: '3y' is not a time (seconds, or a number with ms, s, min or h)"},
    {"--shutdown_timeout -1", "--shutdown_timeout: '-1' is not a time"},
    {"--signals_to_handle SIGTERM,SIGFOO", "--signals_to_handle: unknown signal 'SIGFOO'"},
    {"--signals_to_handle SIGKILL", "--signals_to_handle: "},
    {"--signals_to_handle SIGCHLD", "--signals_to_handle: SIGCHLD cannot be handled"},
    {"--isolate jail", "--isolate: 'jail' is not one of auto, none, pidns"},
    {"--redirects 4", "--redirects: '4' is not 0, 1, 2 or 3"},
    {"--tee 0:1,x", "--tee: "},
    {"--local_ranks_filter 0,x", "--local_ranks_filter: "},
    {"--bind sockets", "--bind: 'sockets' is not one of none, core, numa, socket"},
    {"--numa_binding far", "--numa_binding: "},
    {"--logs_specs mine", "--logs_specs: "},
    {"--quiet=yes,please", "--quiet"},
    {"--verbsoe", "unknown option --verbsoe (did you mean --verbose?)"},
    {"--rdzv x", "--rdzv"},
    {"-q", "unknown option -q"},
    {"-H a:0", "-H: 'a:0': the slots behind ':': 0 is out of range (1 to 4096)"},
    {"-H a,b -n 4 -i c", "-i: 'c' is not one of the hosts (a, b)"},
    {"-H a,b --node_rank 1", "--node_rank is for a launcher on one node"},
    {"-H a,b --nnodes 3", "--nnodes 3: there are only 2 hosts"},
    {"-H a --launch_agent nothing", "--launch_agent: exec nothing: not found in PATH"},
    {"-H a --launch_agent daemon", "--launch_agent daemon needs the token of the daemons"},
    {"-H a --launch_agent daemon --ssh_port 2",
     "--ssh_port has no effect with --launch_agent daemon"},
    {"-H a --launch_agent daemon --ssh_tree 2",
     "--ssh_tree has no effect with --launch_agent daemon"},
    {"-H a --launch_agent 'sh -x' --ssh_tree 2",
     "--ssh_tree has no effect with --launch_agent sh -x"},
    {"-H a --ssh_tree -1", "--ssh_tree: "},
    {"-H a --ssh_tree 2000000", "--ssh_tree: 2000000 is out of range (0 to 1000000)"},
    {"--ssh_tree 2", "--ssh_tree has no effect without --host or --hostfile"},
    {"-H a --serve_addr all", "--serve_addr has no effect without --serve"},
    {"--serve_port 99999", "--serve_port: 99999 is out of range"},
    {"--serve_port 29391", "--serve_port has no effect without --host or --hostfile"},
    {"--serve", "--serve runs no program: give "},
    {"--serve --nnodes 2", "--nnodes has no effect with --serve: give it to dlaunch -H"},
    {"-np 7 -ppn 4", "-np 7: not a whole number of nodes with 4 workers each"},
    {"--nodes 2", "unknown option --nodes (use --nnodes for nodes and --nproc_per_node for the "
                  "workers on a node)"},
    {"--hostfile=h", "--hostfile: h: No such file or directory"},
    {"--nprocs 4", "unknown option --nprocs (use --np for all workers, --nproc_per_node"},
    {"--node_rank first", "--node_rank: 'first' is neither a whole number nor any"},
    {"--no_restart_codes 2,300", "--no_restart_codes: 300: out of range (1 to 255)"},
    {"--no_restart_codes 78-64", "--no_restart_codes: 78-64: the first code is greater than"},
    {"--nnodes 2 --rdzv_conf keep_alive_interval=1,keep_alive_max_attempt=1",
     "--rdzv_conf: keep_alive_interval 1 s times keep_alive_max_attempt 1 make a dead time of 1 s, "
     "too short: it must be 3.1 s at least"},
};

static void nothing_was_made(const char *line)
{
    glob_t g;
    if (glob(test_text("%s/*", tmpdir()), 0, NULL, &g) == 0)
        ck_abort_msg("%s made %s", line, g.gl_pathv[0]);
    globfree(&g);
}

static void refused(int status, const char *says, const char *line)
{
    struct proc p;
    char *env[] = {test_text("TMPDIR=%s", tmpdir()), test_text("XDG_RUNTIME_DIR=%s", tmpdir()),
                   NULL};
    dlaunch_start(&p, env, "%s", line);
    expect_status(&p, status, 10);
    ck_assert_msg(strstr(p.err, says), "dlaunch %s\n  said: %s  not: %s", line, p.err, says);
    ck_assert_msg(strncmp(p.err, "dlaunch: ", 9) == 0 && count_text(p.err, "\n") == 1,
                  "dlaunch %s: not one line of its own:\n%s", line, p.err);
    ck_assert_str_eq(p.out, "");
    nothing_was_made(line);
    proc_fini(&p);
}

START_TEST(option)
{
    refused(2, options[_i].says, test_text("%s %%W append %%T/up", options[_i].options));
}
END_TEST

/* The same value from the environment and from a file: it is said where it came from. */
START_TEST(errors_name_the_source_of_a_value)
{
    struct proc p;
    char *env[] = {"PET_MAX_RESTARTS=lots", NULL}, *env2[] = {"DLAUNCH_TIMEOUT=never", NULL};
    dlaunch_start(&p, env, "%%W append %%T/up");
    expect_status(&p, 2, 10);
    expect_text(p.err, "PET_MAX_RESTARTS");
    expect_text(p.err, "'lots' is not a whole number");
    proc_fini(&p);
    dlaunch_start(&p, env2, "%%W append %%T/up");
    expect_status(&p, 2, 10);
    expect_text(p.err, "DLAUNCH_TIMEOUT");
    proc_fini(&p);
    nothing_was_made("a bad environment");
}
END_TEST

/* An unknown variable may belong to another program: the job runs, with a warning. */
START_TEST(mistyped_variable)
{
    struct proc p;
    char *env[] = {"DLAUNCH_NPROC_PER_NODES=3", "PET_NPROC_PERNODE=3", NULL};
    dlaunch_start(&p, env, "sh -c ''");
    expect_status(&p, 0, 20);
    expect_text(p.err, "unknown variable DLAUNCH_NPROC_PER_NODES has no effect (did you mean "
                       "DLAUNCH_NPROC_PER_NODE?)\n");
    expect_text(p.err, "unknown variable PET_NPROC_PERNODE has no effect (did you mean "
                       "PET_NPROC_PER_NODE?)\n");
    proc_fini(&p);
}
END_TEST

/* ------------------------------------------------------------------------------------ the files */

static const struct {
    const char *content, *says;
} files[] = {
    {"[job]\nmax_restart = 3\n", "job.ini:2: unknown key max_restart (did you mean max_restarts?)"},
    {"[jbo]\nnnodes = 3\n", "job.ini:1: "},
    {"[restarts]\nmax_restarts = many\n", "job.ini:2: "},
    {"no equals sign\n", "job.ini:1: "},
};

START_TEST(file)
{
    struct proc p;
    write_file(tmppath("job.ini"), files[_i].content);
    dlaunch_start(&p, NULL, "--conf %%T/job.ini %%W append %%T/up");
    expect_status(&p, 2, 10);
    expect_text(p.err, files[_i].says);
    ck_assert_int_eq(count_text(p.err, "\n"), 1);
    ck_assert_int_ne(access(tmppath("up"), F_OK), 0);
    proc_fini(&p);
}
END_TEST

START_TEST(files_that_cannot_be_had)
{
    static const struct {
        const char *line, *says;
    } rows[] = {
        {"--conf /no/such.ini %W", "--conf: /no/such.ini: No such file or directory"},
        {"--conf /tmp %W", "/tmp: Is a directory"},
        {"--log_dir /proc/x -r 3 %W", "/proc/x: No such file or directory"},
        {"--log_dir /dev/null/x -r 3 %W", "--log_dir: "},
        {"--report /no/where/r %W", "--report: /no/where/r: No such file or directory"},
        {"--pid_file /no/where/p %W", "--pid_file: /no/where/p: No such file or directory"},
        {"--log_file /no/where/l %W", "--log_file: /no/where/l: No such file or directory"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        refused(2, rows[i].says, rows[i].line);
}
END_TEST

START_TEST(pid_file_that_is_not_one)
{
    struct proc p;
    write_file(tmppath("notes"), "my notes\n");
    dlaunch_start(&p, NULL, "--pid_file %%T/notes %%W append %%T/up");
    expect_status(&p, 2, 10);
    expect_text(p.err, "exists and is not a pid file, so it was not overwritten");
    ck_assert_int_eq(count_text(p.err, "\n"), 1);
    ck_assert_int_ne(access(tmppath("up"), F_OK), 0);
    ck_assert_str_eq(text_of_file(tmppath("notes")), "my notes\n");
    proc_fini(&p);
}
END_TEST

/* ---------------------------------------------------------------------------------- the program */

/* Each way in which exec fails, with what a person can do about it. */
START_TEST(program)
{
    static const struct {
        const char *name, *content;
        int mode, status;
        const char *says;
    } rows[] = {
        {"missing", NULL, 0, 127, "exec %s: No such file or directory"},
        {"plain", "#!/bin/sh\n", 0644, 126,
         "exec %s: Permission denied (it is not executable; try: chmod +x "},
        {"interpreter", "#!/no/such/interp\n", 0755, 127,
         "exec %s: interpreter '/no/such/interp' in its first line not found"},
        {"empty", "", 0755, 126, "exec %s: Exec format error (it is empty)"},
        {"text", "echo hello\n", 0755, 126,
         "exec %s: Exec format error (it is a text without a '#!'"},
        {"elf", "\177ELF\002\001\001", 0755, 126,
         "exec %s: Exec format error (it is a damaged or "},
        {"dos", "#!/bin/sh\r\necho x\r\n", 0755, 127, "exec %s: "},
    };
    char *dir = test_text("%s.programs", tmpdir());
    ck_assert_int_eq(mkdir(dir, 0755), 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *path = test_text("%s/%s", dir, rows[i].name);
        if (rows[i].content) {
            write_file(path, rows[i].content);
            ck_assert_int_eq(chmod(path, (mode_t)rows[i].mode), 0);
        }
        const char *at = strstr(rows[i].says, "%s");
        refused(rows[i].status,
                test_text("%.*s%s%s", (int)(at - rows[i].says), rows[i].says, path, at + 2),
                test_text("--nproc_per_node 3 %s", path));
        unlink(path);
    }
    refused(126, "Permission denied (it is a directory)", dir);
    refused(127, "no-such-program", "no-such-program");
    if (mount("dlaunch-test", dir, "tmpfs", MS_NOEXEC, "size=64k") < 0) {
        test_skip("a file system mounted noexec: %s", strerror(errno));
    } else {
        char *path = test_text("%s/script", dir);
        write_file(path, "#!/bin/sh\n");
        chmod(path, 0755);
        refused(126, "noexec", path);
        umount2(dir, MNT_DETACH);
    }
    rmdir(dir);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("refusals");
    TCase *tc = test_case(s, "options", 60);
    tcase_add_loop_test(tc, option, 0, ARRAY_LEN(options));
    tcase_add_test(tc, errors_name_the_source_of_a_value);
    tcase_add_test(tc, mistyped_variable);
    tc = test_case(s, "files", 60);
    tcase_add_loop_test(tc, file, 0, ARRAY_LEN(files));
    tcase_add_test(tc, files_that_cannot_be_had);
    tcase_add_test(tc, pid_file_that_is_not_one);
    tc = test_case(s, "program", 60);
    tcase_add_test(tc, program);
    return s;
}

TEST_MAIN(suite)
