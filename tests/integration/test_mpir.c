/* --mpir: a debugger finds the job's processes in the launcher that the user has started. */
#include "tests/integration/job.h"

#include <stdlib.h>
#include <unistd.h>

static char *env[1];

static bool has_gdb(void)
{
    if (access("/usr/bin/gdb", X_OK) == 0)
        return true;
    printf("SKIPPED: debuggers attach by MPIR: gdb is not installed\n");
    return false;
}

/* Returns the text that gdb prints of a process's table. */
static char *read_table(int pid)
{
    struct proc p;
    proc_start(&p,
               ARGV("/usr/bin/gdb", "-nx", "-batch", "-p", test_text("%d", pid), "-ex",
                    "print MPIR_proctable_size", "-ex",
                    "print *MPIR_proctable@MPIR_proctable_size"),
               env, 0);
    expect_status(&p, 0, 120);
    char *out = test_text("%s", p.out);
    proc_fini(&p);
    return out;
}

/* On one node and on two, the table of each launcher has all ranks, with their pids. */
START_TEST(the_table_of_a_running_job)
{
    struct cluster c = {.n = 1 + _i, .port = free_port()};
    if (!has_gdb())
        return;
    for (int i = 0; i < c.n; i++)
        dlaunch_start(&c.node[i], env,
                      "--nnodes %d --node_rank %d --master_port %d --nproc_per_node 2 --mpir "
                      "--events %%T/e%d sh -c 'echo $$ > %%T/pid$RANK; echo up; exec sleep 1000'",
                      c.n, i, c.port, i);
    for (int i = 0; i < c.n; i++)
        proc_expect_out(&c.node[i], "up\nup\n", 60);
    for (int i = 0; i < c.n; i++) {
        char *out = NULL;
        for (int k = 0; k < 100; k++) { /* the other node's events may be under way */
            out = read_table((int)c.node[i].pid);
            if (strstr(out, test_text("$1 = %d\n", 2 * c.n)))
                break;
        }
        expect_text(out, test_text("$1 = %d\n", 2 * c.n));
        expect_text(out, "executable_name = ");
        for (int rank = 0; rank < 2 * c.n; rank++)
            expect_text(
                out, test_text("pid = %d}", atoi(text_of_file(tmppath(test_text("pid%d", rank))))));
    }
    for (int i = 0; i < c.n; i++)
        signal_until_end(&c.node[i], SIGKILL, 60);
    cluster_fini(&c);
}
END_TEST

/* A debugger that starts the launcher is told when the processes are there. */
START_TEST(a_launcher_under_a_debugger)
{
    struct proc p;
    if (!has_gdb())
        return;
    proc_start(&p,
               ARGV("/usr/bin/gdb", "-nx", "-batch", "-ex", "set breakpoint pending on", "-ex",
                    "handle all nostop noprint pass", "-ex", "break main", "-ex", "run", "-ex",
                    "set var MPIR_being_debugged = 1", "-ex", "break MPIR_Breakpoint", "-ex",
                    "continue", "-ex", "print MPIR_proctable_size", "-ex", "print MPIR_debug_state",
                    "-ex", "kill", "--args", build_path("dlaunch"), "--nproc_per_node", "3",
                    "sleep", "1000"),
               env, 0);
    expect_status(&p, 0, 120);
    expect_text(p.out, "$1 = 3\n");
    expect_text(p.out, "$2 = 1\n");
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("mpir");
    TCase *t = test_case(s, "mpir", 300);
    tcase_add_loop_test(t, the_table_of_a_running_job, 0, 2);
    tcase_add_test(t, a_launcher_under_a_debugger);
    suite_add_tcase(s, t);
    return s;
}

TEST_MAIN(suite)
