/* libdlcoll as others see it: its header in C99 and in C++, its symbols, and the examples, started
 * by hand: the plain environment, no launcher. */
#include "tests/lib/test.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/futex.h"
#include "core/mem.h"
#include "tests/lib/proc.h"
#include "tests/lib/ranks.h"

/* For argument lists, which are of char *. */
#define TEXT(...)     ((char *)test_text(__VA_ARGS__))
#define PROGRAM(name) (build_path(name))
#define TMP(name)     (tmppath(name))

/* The file's text, valid until the process ends. */
static const char *text_of(const char *path)
{
    char *text = read_file(path);
    const char *kept = test_text("%s", text);
    free(text);
    return kept;
}

/* n processes of one command. */
struct crowd {
    int n, port_fd;
    struct proc proc[RANKS_MOST];
};

static void crowd_start(struct crowd *c, int n, char *const argv[], const char *attempt)
{
    uint16_t port;
    c->port_fd = reserve_port(&port);
    c->n = n;
    for (int r = 0; r < n; r++) {
        char *env[] = {TEXT("RANK=%d", r),
                       TEXT("WORLD_SIZE=%d", n),
                       "MASTER_ADDR=127.0.0.1",
                       TEXT("MASTER_PORT=%d", port),
                       TEXT("TORCHELASTIC_RESTART_COUNT=%s", attempt),
                       NULL};
        proc_start(&c->proc[r], argv, env, 0);
    }
}

/* Waits for all; returns how many ended with `status`. */
static int crowd_wait(struct crowd *c, int status)
{
    int as_expected = 0;
    for (int r = 0; r < c->n; r++)
        as_expected += proc_wait(&c->proc[r], 60) == status;
    return as_expected;
}

static void crowd_fini(struct crowd *c)
{
    for (int r = 0; r < c->n; r++)
        proc_fini(&c->proc[r]);
    close_fd(&c->port_fd);
}

/* Rank 0 waits for rank 1, or the other way round. */
START_TEST(a_long_wait_is_reported_once)
{
    struct proc p;
    uint16_t port;
    int fd = reserve_port(&port);
    char *env[] = {TEXT("RANK=%d", _i), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                   TEXT("MASTER_PORT=%d", port), NULL};
    const char *why =
        _i ? test_text(":%d: Connection refused\n", port)
           : test_text("not all of the 2 have arrived at 127.0.0.1:%d; missing: 1\n", port);
    proc_start(&p, ARGV(PROGRAM("examples/hello")), env, 0);
    proc_expect_err(&p, why, 60);
    const char *says = test_text("dlcoll: rank %d has waited 10 s for the other ranks: ", _i);
    ck_assert_msg(strncmp(p.err, says, strlen(says)) == 0, "%s", p.err);
    proc_fini(&p);
    close_fd(&fd);
}
END_TEST

static void run_crowd(int n, char *const argv[], const char *attempt)
{
    struct crowd c;
    crowd_start(&c, n, argv, attempt);
    int good = crowd_wait(&c, 0);
    for (int r = 0; r < n && good < n; r++)
        fprintf(stderr, "rank %d: %s%s\n", r, c.proc[r].out, c.proc[r].err);
    ck_assert_msg(good == n, "%d of %d ended well", good, n);
    crowd_fini(&c);
}

/* ---------------------------------------------------------------------------------- the library */

static bool have_program(const char *name)
{
    struct proc p;
    bool have = proc_run(&p, ARGV("sh", "-c", TEXT("command -v %s", name)), NULL, 10) == 0;
    proc_fini(&p);
    return have;
}

static void compile(const char *command)
{
    struct proc p;
    int rc = proc_run(&p, ARGV("sh", "-c", (char *)command), NULL, 60);
    ck_assert_msg(rc == 0, "%s\n%s", command, p.err);
    proc_fini(&p);
}

START_TEST(the_header_is_c99_and_cpp)
{
    static const char text[] =
        "#include <dlcoll.h>\n"
        "int main(void) {\n"
        "    dlcoll_comm *c;\n"
        "    dlcoll_opts o = DLCOLL_OPTS_INIT;\n"
        "    dlcoll_init_opts i = DLCOLL_INIT_OPTS_INIT;\n"
        "    dlcoll_error e = DLCOLL_ERROR_INIT;\n"
        "    double x = 1, y = 0;\n"
        "    if (dlcoll_init(&c, &i) < 0 || e.rank != -1 || e.exit_code != -1) return 1;\n"
        "    if (dlcoll_all_reduce(&x, &y, 1, DLCOLL_F64, DLCOLL_SUM, c, &o, NULL) < 0) return 2;\n"
        "    dlcoll_destroy(c);\n"
        "    return y == 1 ? 0 : 3;\n"
        "}\n";
    const char *flags = "-Wall -Wextra -Werror -pedantic-errors -Icollectives";
    const char *lib = build_path("");
    write_file(tmppath("use.c"), text);
    if (have_program("cc"))
        compile(test_text("cc -std=c99 %s %s -o %s -L%s -ldlcoll -Wl,-rpath,%s", flags,
                          tmppath("use.c"), tmppath("use"), lib, lib));
    else
        test_skip("there is no cc");
    if (have_program("c++"))
        compile(test_text("c++ -x c++ -std=c++11 %s -fsyntax-only %s", flags, tmppath("use.c")));
    else
        test_skip("there is no c++");
    /* Under a sanitizer the library needs its runtime, which a plain program lacks. */
    if (access(tmppath("use"), X_OK) == 0 && !strstr(lib, "build-")) {
        struct proc p;
        ck_assert_int_eq(proc_run(&p, ARGV(TMP("use")), NULL, 10), 0);
        proc_fini(&p);
    }
}
END_TEST

START_TEST(exports_are_the_declared_functions)
{
    enum { NAMES = 200, NAME = 64 };
    static char exported[NAMES][NAME];
    struct proc p;
    if (!have_program("nm")) {
        test_skip("there is no nm");
        return;
    }
    ck_assert_int_eq(
        proc_run(&p, ARGV("nm", "-D", "--defined-only", PROGRAM("libdlcoll.so")), NULL, 10), 0);
    int functions = 0;
    for (char *line = strtok(p.out, "\n"); line; line = strtok(NULL, "\n")) {
        const char *name = strrchr(line, ' ') + 1;
        ck_assert_msg(strncmp(name, "dlcoll_", 7) == 0 || strncmp(name, "DLCOLL_", 7) == 0,
                      "%s is exported", name);
        if (strstr(name, "@@DLCOLL_"))
            snprintf(exported[functions++ % NAMES], NAME, "%.*s", (int)strcspn(name, "@"), name);
    }
    /* The library also exports all that the header declares. */
    char *header = read_file("collectives/dlcoll.h");
    int declared = 0;
    for (char *at = header; (at = strstr(at, "DLCOLL_API ")); at++) {
        char *open = strchr(at, '('), *from = open;
        bool found = false;
        if (!open || (at >= header + 8 && strncmp(at - 8, "#define ", 8) == 0))
            continue;
        while (from > at && (from[-1] == '_' || isalnum((unsigned char)from[-1])))
            from--;
        for (int i = 0; i < functions && i < NAMES; i++)
            found = found || (strncmp(exported[i], from, (size_t)(open - from)) == 0 &&
                              !exported[i][open - from]);
        ck_assert_msg(found, "%.*s is not exported", (int)(open - from), from);
        declared++;
    }
    ck_assert_int_eq(declared, functions);
    free(header);
    proc_fini(&p);
}
END_TEST

/* --------------------------------------------------------------------------------- the examples */

START_TEST(hello_and_allreduce_run)
{
    struct crowd c;
    crowd_start(&c, 3, ARGV(PROGRAM("examples/hello")), "0");
    ck_assert_int_eq(crowd_wait(&c, 0), 3);
    for (int r = 0; r < 3; r++)
        ck_assert_ptr_nonnull(strstr(c.proc[r].out, TEXT("rank %d of 3", r)));
    crowd_fini(&c);
    crowd_start(&c, 3, ARGV(PROGRAM("examples/allreduce"), "100000", "5"), "0");
    ck_assert_int_eq(crowd_wait(&c, 0), 3);
    ck_assert_int_eq(strncmp(c.proc[0].out, "3 ranks, 100000 bytes: ", 23), 0);
    crowd_fini(&c);
}
END_TEST

/* Where address space is limited (ulimit -v, some batch systems, valgrind), the launcher's segment
 * leaves most of it to the worker. */
START_TEST(a_limit_on_address_space)
{
    struct proc p;
    if (test_skip_sanitized("they take more address space than any limit"))
        return;
    char *command = TEXT("ulimit -v 2000000; exec %s --nproc_per_node 2 %s", PROGRAM("dlaunch"),
                         PROGRAM("examples/allreduce"));
    ck_assert_msg(proc_run(&p, ARGV("sh", "-c", command), NULL, 60) == 0, "%s%s", p.out, p.err);
    ck_assert_int_eq(strncmp(p.out, "2 ranks, ", 9), 0);
    proc_fini(&p);
}
END_TEST

/* The launcher counts that as a good end, and tells those who wait for it all the same. */
START_TEST(a_worker_that_exits_without_destroy_is_reported)
{
    static const char text[] =
        "#include <dlcoll.h>\n"
        "#include <stdio.h>\n"
        "#include <unistd.h>\n"
        "int main(void) {\n"
        "    dlcoll_comm *c;\n"
        "    dlcoll_error e = DLCOLL_ERROR_INIT;\n"
        "    int x = 0;\n"
        "    if (dlcoll_init(&c, NULL) < 0 || dlcoll_barrier(c, NULL, NULL) < 0) return 1;\n"
        "    if (dlcoll_rank(c) == 1) _exit(0);\n"
        "    int r = dlcoll_recv(&x, 1, DLCOLL_I32, 1, c, NULL, NULL);\n"
        "    dlcoll_last_error(c, &e);\n"
        "    puts(e.text);\n"
        "    dlcoll_destroy(c);\n"
        "    return r == DLCOLL_EPEER && e.rank == 1 && e.exit_code == 0 ? 0 : 2;\n"
        "}\n";
    const char *lib = build_path("");
    if (!have_program("cc")) {
        test_skip("there is no cc");
        return;
    }
    write_file(tmppath("leave.c"), text);
    compile(test_text("cc " SANITIZE_FLAGS " -Icollectives %s -o %s -L%s -ldlcoll -Wl,-rpath,%s",
                      tmppath("leave.c"), tmppath("leave"), lib, lib));
    for (int shm = 0; shm < 2; shm++) {
        struct proc p;
        char *env[] = {TEXT("DLCOLL_SHM=%d", shm), NULL};
        proc_start(&p, ARGV(PROGRAM("dlaunch"), "--nproc_per_node", "2", TMP("leave")), env, 0);
        ck_assert_msg(proc_wait(&p, 30) == 0, "%s%s", p.out, p.err);
        ck_assert_msg(strstr(p.out, "has left: it exited with status 0"), "%s", p.out);
        proc_fini(&p);
    }
}
END_TEST

/* The kernel frees a killed process's memory first, which takes 100 ms for each GB; only then can
 * the process be reaped. The other ranks get the error while the process still exists. */
START_TEST(a_dying_rank_is_reported_at_once)
{
    static const char text[] =
        "#include <dlcoll.h>\n"
        "#include <signal.h>\n"
        "#include <stdio.h>\n"
        "#include <string.h>\n"
        "#include <sys/mman.h>\n"
        "#include <unistd.h>\n"
        "int main(void) {\n"
        "    size_t n = (size_t)1 << 30;\n"
        "    char path[32], stat[512] = \"\";\n"
        "    static dlcoll_comm *c;\n"
        "    dlcoll_error e = DLCOLL_ERROR_INIT;\n"
        "    signal(SIGTERM, SIG_IGN);\n"
        "    if (dlcoll_init(&c, NULL) < 0) return 1;\n"
        "    if (dlcoll_rank(c) == 1) {\n"
        "        char *p = mmap(NULL, n, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n"
        "        if (p == MAP_FAILED) return 2;\n"
        "        madvise(p, n, MADV_NOHUGEPAGE);\n"
        "        memset(p, 1, n);\n"
        "    }\n"
        "    if (dlcoll_barrier(c, NULL, NULL) < 0) return 3;\n"
        "    if (dlcoll_rank(c) == 1) kill(getpid(), SIGKILL);\n"
        "    if (dlcoll_barrier(c, NULL, NULL) != DLCOLL_EPEER) return 4;\n"
        "    dlcoll_last_error(c, &e);\n"
        "    snprintf(path, sizeof(path), \"/proc/%d/stat\", e.pid);\n"
        "    FILE *f = fopen(path, \"r\");\n"
        "    char *got = f ? fgets(stat, sizeof(stat), f) : NULL;\n"
        "    puts(e.text);\n"
        "    puts(got && strncmp(strrchr(stat, ')'), \") Z\", 3) != 0 ? \"early\" : \"late\");\n"
        "    return 0;\n"
        "}\n";
    uint32_t word = 0;
    struct futex_waiter w = {.value = 1, .address = (uintptr_t)&word, .flags = FUTEX_32BIT};
    if (futex_wait_any(&w, 1, 0) < 0) {
        test_skip("this kernel does not let one sleep on several words (5.16 does)");
        return;
    }
    const char *lib = build_path("");
    if (!have_program("cc")) {
        test_skip("there is no cc");
        return;
    }
    write_file(tmppath("big.c"), text);
    compile(test_text("cc " SANITIZE_FLAGS
                      " -D_GNU_SOURCE -Icollectives %s -o %s -L%s -ldlcoll -Wl,-rpath,%s",
                      tmppath("big.c"), tmppath("big"), lib, lib));
    bool early = false;
    for (int tries = 0; tries < 3 && !early; tries++) { /* the CPU may be elsewhere meanwhile */
        struct proc p;
        proc_start(&p, ARGV(PROGRAM("dlaunch"), "--nproc_per_node", "2", TMP("big")), NULL, 0);
        ck_assert_msg(proc_wait(&p, 30) == 128 + SIGKILL, "%s%s", p.out, p.err);
        ck_assert_msg(strstr(p.out, "killed by SIGKILL"), "%s", p.out);
        ck_assert_msg(strstr(p.err, "First failure: rank 1"), "%s", p.err);
        early = strstr(p.out, "early");
        proc_fini(&p);
    }
    ck_assert_msg(early, "told only when it could be reaped");
}
END_TEST

static bool is_zombie(void *pid)
{
    char *stat = read_file(test_text("/proc/%d/stat", *(int *)pid));
    bool is = strncmp(strrchr(stat, ')'), ") Z", 3) == 0;
    free(stat);
    return is;
}

/* The loop stands still until both are dead; its other threads do not. */
START_TEST(a_late_launcher_reports_the_first_failure)
{
    static const char text[] = "#include <dlcoll.h>\n"
                               "#include <stdio.h>\n"
                               "#include <unistd.h>\n"
                               "int main(void) {\n"
                               "    dlcoll_comm *c;\n"
                               "    if (dlcoll_init(&c, NULL) < 0) return 1;\n"
                               "    dlcoll_barrier(c, NULL, NULL);\n"
                               "    printf(\"<%d %d>\\n\", dlcoll_rank(c), getpid());\n"
                               "    fflush(stdout);\n"
                               "    for (;;) pause();\n"
                               "}\n";
    const char *lib = build_path("");
    if (!have_program("cc")) {
        test_skip("there is no cc");
        return;
    }
    write_file(tmppath("idle.c"), text);
    compile(test_text("cc " SANITIZE_FLAGS " -Icollectives %s -o %s -L%s -ldlcoll -Wl,-rpath,%s",
                      tmppath("idle.c"), tmppath("idle"), lib, lib));
    struct proc p;
    int pids[2], agent, status;
    proc_start(&p, ARGV(PROGRAM("dlaunch"), "--nproc_per_node", "2", TMP("idle")), NULL, 0);
    for (int i = 0; i < 2; i++) {
        const char *from = test_text("<%d ", i);
        proc_expect_out(&p, from, 30);
        pids[i] = atoi(strstr(p.out, from) + 3);
    }
    agent = atoi(text_of(test_text("/proc/%d/task/%d/children", p.pid, p.pid)));
    ck_assert_int_eq(ptrace(PTRACE_SEIZE, agent, NULL, NULL), 0);
    ck_assert_int_eq(ptrace(PTRACE_INTERRUPT, agent, NULL, NULL), 0);
    ck_assert_int_eq(waitpid(agent, &status, __WALL), agent);
    for (int i = 1; i >= 0; i--) {
        kill(pids[i], SIGKILL);
        wait_until(is_zombie, &pids[i], 20, "the worker's end");
    }
    ptrace(PTRACE_DETACH, agent, NULL, NULL);
    ck_assert_int_eq(proc_wait(&p, 30), 128 + SIGKILL);
    ck_assert_msg(strstr(p.err, "First failure: rank 1"), "%s", p.err);
    proc_fini(&p);
}
END_TEST

START_TEST(the_tuners_rules_are_taken)
{
    char *rules = TMP("rules");
    run_crowd(3, ARGV(PROGRAM("dlcoll_tune"), "-o", rules, "-e", "4096", "-t", "1"), "0");
    const char *text = text_of(rules);
    ck_assert_ptr_nonnull(strstr(text, "all_reduce     ranks=3 nodes=1 bytes="));
    ck_assert_ptr_nonnull(strstr(text, "barrier"));
    ck_assert_ptr_null(strstr(text, "/pair ")); /* which is for two */
    setenv("DLCOLL_TUNE_FILE", rules, 1);
    run_crowd(3, ARGV(PROGRAM("examples/allreduce"), "10000", "3"), "0");
    unsetenv("DLCOLL_TUNE_FILE");
}
END_TEST

static char *train(void)
{
    return PROGRAM("examples/train");
}

START_TEST(training_ends_alike_on_any_number_of_workers)
{
    char *one = TMP("one"), *many = TMP("many");
    double accuracy = 0;
    run_crowd(1, ARGV(train(), "--out", one), "0");
    run_crowd(8, ARGV(train(), "--out", many), "0");
    ck_assert_str_eq(text_of(one), text_of(many));
    ck_assert_int_eq(sscanf(text_of(one), "epochs 20 accuracy %lf", &accuracy), 1);
    ck_assert_double_ge(accuracy, 0.95);
    run_crowd(3, ARGV(train(), "--out", many), "0");
    ck_assert_str_eq(text_of(one), text_of(many));
}
END_TEST

START_TEST(training_recovers_bit_for_bit)
{
    struct crowd c;
    char *straight = TMP("straight"), *resumed = TMP("resumed");
    char *ckpt = TMP("state");
    run_crowd(8, ARGV(train(), "--out", straight, "--epochs", "6"), "0");
    char *const argv[] = {train(), "--out",        resumed, "--epochs",      "6", "--checkpoint",
                          ckpt,    "--crash-rank", "5",     "--crash-epoch", "4", NULL};
    crowd_start(&c, 8, argv, "0");
    ck_assert_int_eq(crowd_wait(&c, 1), 7);
    ck_assert_int_eq(proc_wait(&c.proc[5], 1), 128 + SIGKILL);
    for (int r = 0; r < 8; r++) {
        if (r != 5)
            ck_assert_msg(strstr(c.proc[r].err, "rank 5 ("), "rank %d: %s", r, c.proc[r].err);
    }
    crowd_fini(&c);
    ck_assert_int_ne(access(resumed, F_OK), 0);

    crowd_start(&c, 8, argv, "1"); /* the second attempt does not crash */
    ck_assert_int_eq(crowd_wait(&c, 0), 8);
    ck_assert_ptr_nonnull(strstr(c.proc[0].out, "resumed after epoch 3"));
    crowd_fini(&c);
    ck_assert_str_eq(text_of(straight), text_of(resumed));
}
END_TEST

START_TEST(a_bad_checkpoint_is_refused)
{
    static const char *const wrongs[] = {"head -c 1000 %s > %s", "(cat %s; echo) > %s",
                                         "sed s/DIGITS1/DIGITS2/ %s > %s", "tr x y < %s > %s"};
    static const char *const texts[] = {"is not a whole checkpoint", "is damaged",
                                        "is not a checkpoint of this program", "is damaged"};
    char *good = TMP("good"), *bad = TMP("bad");
    run_crowd(2, ARGV(train(), "--epochs", "1", "--checkpoint", good), "0");
    for (size_t i = 0; i < ARRAY_LEN(wrongs); i++) {
        struct crowd c;
        compile(test_text(wrongs[i], good, bad));
        crowd_start(&c, 2, ARGV(train(), "--epochs", "2", "--checkpoint", bad), "0");
        ck_assert_int_eq(crowd_wait(&c, 1), 2);
        ck_assert_msg(strstr(c.proc[0].err, texts[i]), "%s", c.proc[0].err);
        ck_assert_str_eq(c.proc[1].err, "");
        crowd_fini(&c);
    }
    struct crowd c;
    crowd_start(&c, 1, ARGV(train(), "--seed", "2", "--checkpoint", good), "0");
    ck_assert_int_eq(crowd_wait(&c, 1), 1);
    ck_assert_ptr_nonnull(strstr(c.proc[0].err, "was made with another seed"));
    crowd_fini(&c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("libdlcoll");
    TCase *tc = test_case(s, "library", 120);
    tcase_add_test(tc, the_header_is_c99_and_cpp);
    tcase_add_test(tc, exports_are_the_declared_functions);
    tc = test_case(s, "examples", 120);
    tcase_add_test(tc, hello_and_allreduce_run);
    tcase_add_loop_test(tc, a_long_wait_is_reported_once, 0, 2);
    tcase_add_test(tc, a_limit_on_address_space);
    tcase_add_test(tc, a_worker_that_exits_without_destroy_is_reported);
    tcase_add_test(tc, a_dying_rank_is_reported_at_once);
    tcase_add_test(tc, a_late_launcher_reports_the_first_failure);
    tcase_add_test(tc, the_tuners_rules_are_taken);
    tcase_add_test(tc, training_ends_alike_on_any_number_of_workers);
    tcase_add_test(tc, training_recovers_bit_for_bit);
    tcase_add_test(tc, a_bad_checkpoint_is_refused);
    return s;
}

TEST_MAIN(suite)
