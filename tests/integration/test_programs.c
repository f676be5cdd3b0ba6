/* Jobs of several programs: "-n 1 ./a : -n 4 ./b" and --multi_prog; and options as users of mpirun
 * and mpiexec type them. */
#include "tests/integration/job.h"

#include <glob.h>

/* Each rank prints its rank, the number of workers, the number of its program, X, and its folder.
 */
#define SAYS "sh -c 'echo $RANK/$WORLD_SIZE $DLAUNCH_APPNUM $X $PWD $0' "

/* Runs dlaunch on a host that has another name each time: -H with this in place of ssh. */
static char *hosts(const char *list)
{
    char *agent = tmppath("agent");
    write_file(agent, "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
    chmod(agent, 0755);
    return test_text("--launch_agent %s -H %s ", agent, list);
}

static void start(struct proc *p, const char *line)
{
    proc_start(
        p,
        ARGV("sh", "-c", test_text("cd %s && exec %s %s", tmpdir(), build_path("dlaunch"), line)),
        (char *[]){test_text("TMPDIR=%s", tmpdir()), "OMP_NUM_THREADS=1", "X=here", NULL}, 0);
}

static void prints(const char *line, const char *const *lines, int n)
{
    struct proc p;
    start(&p, line);
    expect_status(&p, 0, 30);
    for (int i = 0; i < n; i++)
        ck_assert_msg(count_text(p.out, lines[i]) == 1, "%s: not once: %s:\n%s", line, lines[i],
                      p.out);
    ck_assert_msg(count_text(p.out, "\n") == n, "%s: not %d lines:\n%s", line, n, p.out);
    proc_fini(&p);
}
#define PRINTS(line, ...)                                           \
    do {                                                            \
        const char *lines[] = {__VA_ARGS__};                        \
        prints(line, lines, (int)(sizeof(lines) / sizeof(*lines))); \
    } while (0)

START_TEST(parted_by_a_colon)
{
    char *here = test_text(" %s ", tmpdir());
    char *job = "-n 1 " SAYS "ps : -n 2 -x X=there --wdir / " SAYS "worker : -np 1 " SAYS "last";
    const char *lines[] = {test_text("0/4 0 here%sps\n", here), "1/4 1 there / worker\n",
                           "2/4 1 there / worker\n", test_text("3/4 2 here%slast\n", here)};
    prints(job, lines, 4);
    prints(test_text("%s%s", hosts("a:1,b:3"), job), lines, 4);
    prints(test_text("%s%s", hosts("a:3,b:1"), job), lines, 4);
}
END_TEST

/* A variable that is exported by name has the value of the head's environment. */
START_TEST(exported_to_one_program)
{
    PRINTS(test_text("%s-n 1 -x X=1 -x Y=2 sh -c 'echo $X $Y' : -n 1 -x 'X*' sh -c 'echo $X $Y.'",
                     hosts("a,b")),
           "1 2\n", "here .\n");
}
END_TEST

/* A ':' of the program itself. */
START_TEST(colon_of_the_program)
{
    PRINTS("-n 1 -- echo a : b", "a : b\n");
    PRINTS("echo a : b", "a : b\n");
    PRINTS("--nproc_per_node 1 sh -c :", );
}
END_TEST

static const char file[] = "# a comment\n"
                           "0 echo ps %t %o\n"
                           "\n"
                           "1-2,4 echo worker \\\n   %t %o '%t %o' 50% %%\n"
                           "*\techo rest %t %o\n";

START_TEST(from_a_file)
{
    write_file(tmppath("file"), file);
    for (int i = 0; i < 2; i++)
        PRINTS(test_text("%s-n 6 --multi-prog file more", i ? hosts("a:4,b:2") : ""),
               "ps 0 0 more\n", "worker 1 0 %t %o 50% %% more\n", "worker 2 1 %t %o 50% %% more\n",
               "rest 3 0 more\n", "worker 4 2 %t %o 50% %% more\n", "rest 5 1 more\n");
    write_file(tmppath("file"), "0 echo ps\n* echo worker %o\n");
    PRINTS(test_text("%s--multi_prog file", hosts("a:2,b:1")), "ps\n", "worker 0\n", "worker 1\n");
}
END_TEST

/* Without -n the file says how many workers there are. */
START_TEST(the_file_counts)
{
    write_file(tmppath("file"), "0 echo a\n1,2 echo b%o\n");
    PRINTS("--multi_prog file", "a\n", "b0\n", "b1\n");
}
END_TEST

/* Launchers that are started on each node, with different numbers of workers. */
START_TEST(on_each_node)
{
    struct proc p[2];
    int port = free_port();
    for (int i = 0; i < 2; i++)
        start(&p[i],
              test_text("--nnodes 2 --node_rank %d --master_port %d --nproc_per_node %d -n 1 " SAYS
                        "a : -n 4 " SAYS "b",
                        i, port, 2 + i));
    for (int i = 0; i < 2; i++)
        expect_status(&p[i], 0, 30);
    expect_text(p[0].out, "0/5 0 here");
    for (int r = 1; r < 5; r++)
        expect_text(p[r >= 2].out, test_text("%d/5 1 here", r));
    for (int i = 0; i < 2; i++)
        proc_fini(&p[i]);
}
END_TEST

/* The nodes together have other workers than the programs are for. */
START_TEST(nodes_that_do_not_fit)
{
    struct proc p[2];
    int port = free_port();
    for (int i = 0; i < 2; i++)
        start(&p[i],
              test_text("--nnodes 2 --node_rank %d --master_port %d --nproc_per_node 2 -n 1 " SAYS
                        "a : -n 4 " SAYS "b",
                        i, port));
    for (int i = 0; i < 2; i++) {
        ck_assert_int_ne(proc_wait(&p[i], 30), 0);
        expect_words(p[i].err, "a program is given for rank 4 (sh), but the job has 4 workers");
        ck_assert_str_eq(p[i].out, "");
        proc_fini(&p[i]);
    }
}
END_TEST

/* A rank runs the same program in the next round; reports, events and status name it. */
START_TEST(restarted)
{
    struct proc p;
    write_file(tmppath("first"), "#!/bin/sh\nexec sleep 600\n");
    write_file(tmppath("second"), "#!/bin/sh\necho $TORCHELASTIC_RESTART_COUNT $RANK\n"
                                  "[ $RANK = 2 ] || exec sleep 600\nread -r status < "
                                  "wait$TORCHELASTIC_RESTART_COUNT\nexit 3\n");
    chmod(tmppath("first"), 0755);
    chmod(tmppath("second"), 0755);
    for (int round = 0; round < 2; round++)
        ck_assert_int_eq(mkfifo(tmppath(test_text("wait%d", round)), 0600), 0);
    start(&p, "--max_restarts 1 --events events --report report -n 1 ./first : -n 2 ./second");
    for (int round = 0; round < 2; round++) {
        proc_expect_out(&p, test_text("%d 2\n", round), 30);
        proc_expect_out(&p, test_text("%d 1\n", round), 30);
        if (round == 0) {
            struct proc ctl;
            proc_start(&ctl, ARGV(build_path("dlaunchctl"), "status", test_text("%d", (int)p.pid)),
                       (char *[]){test_text("TMPDIR=%s", tmpdir()), NULL}, 0);
            expect_status(&ctl, 0, 20);
            expect_text(ctl.out, "./first : ./second: run id");
            ck_assert_int_eq(count_text(ctl.out, "  ./first\n"), 1);
            ck_assert_int_eq(count_text(ctl.out, "  ./second\n"), 2);
            proc_fini(&ctl);
            proc_start(&ctl, ARGV(build_path("dlaunchctl"), "top", test_text("%d", (int)p.pid)),
                       (char *[]){test_text("TMPDIR=%s", tmpdir()), NULL}, 0);
            expect_status(&ctl, 0, 20);
            expect_text(ctl.out, "  PROGRAM           LAST OPERATION\n");
            ck_assert_int_eq(count_text(ctl.out, "  first             -\n"), 1);
            ck_assert_int_eq(count_text(ctl.out, "  second            -\n"), 2);
            proc_fini(&ctl);
        }
        write_file(tmppath(test_text("wait%d", round)), "go\n");
    }
    expect_status(&p, 3, 30);
    expect_text(p.err, "./first : ./second FAILED");
    expect_words(p.err, ", program ./second");
    const char *events = text_of_file(tmppath("events"));
    ck_assert_int_eq(count_text(events, "\"program\":\"./first\""), 2);
    ck_assert_int_eq(count_text(events, "\"program\":\"./second\""), 4);
    json_t *report = json_of_file(tmppath("report"));
    const json_t *first = json_object_get(report, "first_failure");
    ck_assert_int_eq(json_number(first, "rank"), 2);
    ck_assert_str_eq(json_word(first, "program"), "./second");
    json_decref(report);
    proc_fini(&p);
}
END_TEST

/* Variables of one program and of all, from the command line and from the head. */
START_TEST(variables_as_for_mpiexec)
{
    char *job = "-genv A 1 -genvlist X,NONE -mca btl self -n 1 -env B 2 sh -c 'echo $A $X $B "
                "$OMPI_MCA_btl' : -n 1 -env B 3 -x A=4 sh -c 'echo $A $X $B $OMPI_MCA_btl'";
    for (int i = 0; i < 2; i++)
        PRINTS(test_text("%s%s", i ? hosts("a,b") : "", job), "1 here 2 self\n", "4 here 3 self\n");
}
END_TEST

START_TEST(placing_as_for_mpirun)
{
    struct proc p;
    char *one = "sh -c 'echo $RANK $LOCAL_RANK'";
    PRINTS(test_text("%s-map-by ppr:2:node --rank-by slot -np 4 %s", hosts("a,b"), one), "0 0\n",
           "1 1\n", "2 0\n", "3 1\n");
    for (int i = 0; i < 2; i++)
        PRINTS(test_text("%s%s -n 5 %s", hosts("a:1,b:1"),
                         i ? "--oversubscribe" : "--map-by slot:OVERSUBSCRIBE", one),
               "0 0\n", "1 1\n", "2 2\n", "3 0\n", "4 1\n");
    static const char *const binds[][2] = {{"-bind-to core", "core"},
                                           {"--bind-to numa", "NUMA node 0"},
                                           {"--bind_to=package", "socket 0"},
                                           {"-bind-to none", "any CPU"}};
    for (size_t i = 0; i < ARRAY_LEN(binds); i++) {
        start(&p, test_text("%s --dry_run true", binds[i][0]));
        expect_status(&p, 0, 20);
        expect_text(p.out, binds[i][1]);
        proc_fini(&p);
    }
}
END_TEST

static const struct {
    const char *line, *file, *says;
} wrong[] = {
    {"-bind-to hwthread true", NULL, "-bind-to hwthread is not possible here: none, core, numa"},
    {"--bind-to core:x true", NULL, "--bind-to core:x: 'x' is not possible here"},
    {"-map-by node true", NULL, "-map-by node is not possible here: slot, core and ppr:N:node"},
    {"--map-by slot:PE=2 true", NULL, "--map-by slot:PE=2: 'PE=2' is not possible here"},
    {"--map-by ppr:2:socket true", NULL, "ppr:N:node is (N workers on each)"},
    {"--map-by ppr:x:node true", NULL, "ppr:N:node is (N workers on each)"},
    {"--rank-by node true", NULL, "--rank-by node is not possible here: slot is"},
    {"--report-bindings true", NULL, "--print_binding prints the CPUs of each worker"},
    {"-genvnone true", NULL, "-genvnone is not possible here"},
    {"-genv =A 1 true", NULL, "-genv: '=A' is not a valid variable name"},
    {"-genvlist A,,B true", NULL, "-genvlist: '' is not a valid variable name"},
    {"-genv 1A 1 true", NULL, "-genv: '1A' is not a valid variable name"},
    {"-genvlist A,B-C true", NULL, "-genvlist: 'B-C' is not a valid variable name"},
    {"-env A=B 1 true", NULL, "-env: 'A=B' is not a valid variable name"},
    {"-mca a=b 1 true", NULL, "-mca: 'a=b' is not the name of a parameter"},
    {"-x 1A=2 true", NULL, "-x: '1A' is not a valid variable name (letters, digits and _"},
    {"-x A-B true", NULL, "'A-B' is not a valid variable name"},
    {"--export =1 true", NULL, "--export: '' is not a valid variable name"},
    {"-x A*=1 true", NULL, "-x: 'A*' is not a valid variable name"},
    {"-genv A", NULL, "-genv needs a name and a value"},
    {"--oversubscribe=3 true", NULL, "--oversubscribe takes no value"},
    {"-np", NULL, "-np needs a value (N)"},
    {"-n 1 true : -n 1 -genv A 1 true", NULL, "A=1 is for all programs"},
    {": -n 1 true", NULL, "the program is missing in front of ':'"},
    {"-n 1 : -n 1 true", NULL, "the program is missing in front of ':'"},
    {"-n 1 true :", NULL, "the program is missing behind ':'"},
    {"-n 1 true : : -n 1 true", NULL, "the program is missing between ':' and ':'"},
    {"-n 1 true : -n 1", NULL, "the program is missing behind ':' and its options"},
    {"-n 0 true : -n 1 true", NULL, "true: -n 0 is out of range"},
    {"-n 1 true : -n 0 false", NULL, "false: -n 0 is out of range"},
    {"-n 1 true : -n x false", NULL, "program 2, behind ':': -n: 'x' is not a whole number"},
    {"-n 1 true : false", NULL, "false: say how many workers run it"},
    {"true : -n 1 false", NULL, "true: say how many workers run it"},
    {"-n 1 true : -n 1 --tee 3 false", NULL, "--tee is of the whole job"},
    {"-n 1 true : -n 1 --wdir no-such-folder false", NULL, "--wdir no-such-folder: No such file"},
    {"--nnodes 1:2 --rdzv_backend c10d --nproc_per_node 2 -n 1 true : -n 1 false", NULL,
     "the number of workers must be, too"},
    {"--multi_prog no-such-file", NULL, "--multi_prog: no-such-file: No such file or directory"},
    {"--multi_prog file", "# nothing\n", "file: there is no program in it"},
    {"--multi_prog file", "0 true\n0-1 true\n", "file:2: rank 0 has a program already, on line 1"},
    {"--multi_prog file", "0,0 true\n", "file:1: rank 0 is there twice"},
    {"--multi_prog file", "0 true\n2 true\n", "file: rank 1 has no program"},
    {"-n 3 --multi_prog file", "0-1 true\n", "file: rank 2 has no program"},
    {"-n 2 --multi_prog file", "0 true\n1-2 true\n",
     "file:2: rank 2, but the job has 2 workers (-n)"},
    {"--multi_prog file", "* true\n* true\n", "file:2: '*' is there already, on line 1"},
    {"--multi_prog file", "0 true\n\n1,,2 true\n",
     "file:3: '1,,2' is neither ranks such as 0,4-7 nor *"},
    {"--multi_prog file", "2-1 true\n", "file:1: ranks 2-1: the first is greater than the last"},
    {"--multi_prog file", "0-99999999999 true\n",
     "file:1: ranks 0-99999999999: the greatest possible is"},
    {"--multi_prog file", "0 true\n1\n", "file:2: the program is missing behind the ranks"},
    {"--multi_prog file", "0 'true\n", "file:1: missing closing '"},
};

START_TEST(refused)
{
    struct proc p;
    if (wrong[_i].file)
        write_file(tmppath("file"), wrong[_i].file);
    start(&p, wrong[_i].line);
    expect_status(&p, 2, 20);
    expect_text(p.err, wrong[_i].says);
    ck_assert_msg(count_text(p.err, "\n") == 1, "%s: not one line:\n%s", wrong[_i].line, p.err);
    proc_fini(&p);
}
END_TEST

START_TEST(refused_on_hosts)
{
    struct proc p;
    write_file(tmppath("file"), "0 true\n1-3 true\n");
    start(&p, test_text("%s--multi_prog file", hosts("a:2,b:3")));
    expect_status(&p, 2, 20);
    expect_text(p.err, "--multi_prog: rank 4 of 5 has no program");
    proc_fini(&p);
    start(&p, test_text("%s-n 2 true : -n 4 true", hosts("a:2,b:3")));
    expect_status(&p, 2, 20);
    expect_text(p.err, "6 workers, but the hosts have 5 slots");
    proc_fini(&p);
    start(&p, test_text("%s--bcast -n 2 true : -n 3 true", hosts("a:2,b:3")));
    expect_status(&p, 2, 20);
    expect_text(p.err, "--bcast copies one program");
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("programs");
    TCase *tc = test_case(s, "colon", 120);
    tcase_add_test(tc, parted_by_a_colon);
    tcase_add_test(tc, exported_to_one_program);
    tcase_add_test(tc, colon_of_the_program);
    tcase_add_test(tc, on_each_node);
    tcase_add_test(tc, nodes_that_do_not_fit);
    tcase_add_test(tc, restarted);
    tc = test_case(s, "file", 120);
    tcase_add_test(tc, from_a_file);
    tcase_add_test(tc, the_file_counts);
    tc = test_case(s, "habits", 120);
    tcase_add_test(tc, variables_as_for_mpiexec);
    tcase_add_test(tc, placing_as_for_mpirun);
    tc = test_case(s, "refused", 60);
    tcase_add_loop_test(tc, refused, 0, ARRAY_LEN(wrong));
    tcase_add_test(tc, refused_on_hosts);
    return s;
}

TEST_MAIN(suite)
