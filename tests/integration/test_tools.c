/* The tools of libdlcoll, and dlaunchctl: what they print, what they refuse. */
#include "tests/lib/test.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "tests/lib/proc.h"

/* Under dlaunch, with n ranks; arguments after the program's name. Returns the exit status. */
#define RUN(p, n, program, ...)                                                                    \
    proc_run(p,                                                                                    \
             ARGV(build_path("dlaunch"), "--nproc_per_node", n, build_path(program), __VA_ARGS__), \
             (char *[]){"OMP_NUM_THREADS=1", NULL}, 120)

static int count_lines(const char *text, const char *begin)
{
    int n = 0;
    for (const char *s = text; s && *s; s = strchr(s, '\n') ? strchr(s, '\n') + 1 : NULL)
        n += strncmp(s, begin, strlen(begin)) == 0;
    return n;
}

/* ---------------------------------------------------------------------------------- dlcoll_perf */

START_TEST(perf_measures_and_checks_every_operation)
{
    struct proc p;
    json_error_t error;
    int rc = RUN(&p, "3", "dlcoll_perf", "all", "-b", "12", "-e", "11000", "-f", "29", "-t", "1",
                 "-o", "sum,avg,user", "-d", "f32,u8,bf16", "--json");
    ck_assert_msg(rc == 0, "%d\n%s%s", rc, p.out, p.err);
    json_t *root = json_loads(p.out, 0, &error);
    ck_assert_msg(root, "line %d: %s", error.line, error.text);
    ck_assert_int_eq(json_integer_value(json_object_get(root, "ranks")), 3);
    ck_assert_int_eq(json_integer_value(json_object_get(root, "wrong")), 0);
    json_t *results = json_object_get(root, "results"), *r;
    size_t i, reduces = 0, barriers = 0;
    json_array_foreach(results, i, r)
    {
        const char *op = json_string_value(json_object_get(r, "op"));
        reduces += strcmp(op, "all_reduce") == 0;
        barriers += strcmp(op, "barrier") == 0;
        ck_assert(json_real_value(json_object_get(r, "mean_us")) > 0);
        ck_assert(json_real_value(json_object_get(r, "median_us")) <=
                  json_real_value(json_object_get(r, "p99_us")));
        ck_assert_int_eq(json_integer_value(json_object_get(r, "wrong")), 0);
        ck_assert_int_gt(json_integer_value(json_object_get(r, "iters")), 0);
    }
    ck_assert_uint_eq(reduces, 3 * 3 * 3 * 2); /* sizes, types, reductions, places */
    ck_assert_uint_eq(barriers, 1);
    json_decref(root);
    proc_fini(&p);
}
END_TEST

START_TEST(perf_prints_tables_and_csv)
{
    struct proc p;
    ck_assert_int_eq(RUN(&p, "2", "dlcoll_perf", "all_reduce,broadcast", "-b", "64", "-e", "64",
                         "-n", "3", "-w", "1", "-r", "-1", "-O", "3", "-A", "-B", "-m", "-a", "3"),
                     0);
    ck_assert_msg(strstr(p.out, "# 2 ranks, 2 of them on this node"), "%s", p.out);
    ck_assert_msg(strstr(p.out, "# 6 measurements, 0 wrong elements"), "%s", p.out);
    proc_fini(&p);
    ck_assert_int_eq(RUN(&p, "2", "dlcoll_perf", "all_gather", "-b", "1K", "-e", "3K", "-i", "1K",
                         "-n", "2", "-p", "in", "-c", "0", "--csv"),
                     0);
    ck_assert_int_eq(count_lines(p.out, "op,dtype,redop,root,ranks,bytes,count,place,"), 1);
    ck_assert_int_eq(count_lines(p.out, "all_gather,f32,none,-1,2,"), 3);
    ck_assert_int_eq(count_lines(p.out, "all_gather,f32,none,-1,2,3072,384,in,2,"), 1);
    proc_fini(&p);
}
END_TEST

START_TEST(perf_works_alone)
{
    struct proc p;
    char *none[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", NULL};
    const char *types = SANITIZED ? "f32" : "all"; /* all take minutes then */
    int rc = proc_run(&p,
                      ARGV(build_path("dlcoll_perf"), "all", "-e", "64", "-n", "2", "-d",
                           (char *)types, "-o", "all"),
                      none, 60);
    ck_assert_msg(rc == 0, "%s%s", p.out, p.err);
    ck_assert(strstr(p.out, " 0 wrong elements"));
    proc_fini(&p);
}
END_TEST

/* On device memory: by the libraries of tests/fake, whose results are real. Managed and plain
 * memory, waited for and on a stream. */
START_TEST(perf_measures_device_memory)
{
    static char *const modes[][4] = {{"-M", "managed", NULL},
                                     {"-M", "device", NULL},
                                     {"-M", "device", "-S", "7"},
                                     {"-S", "7", "-B", NULL}};
    char *lib = build_path("tests/fake/libnccl.so.2"), *fault[] = {"FAKE_NCCL_FAULT", NULL};
    char *env[] = {"OMP_NUM_THREADS=1",
                   test_text("DLCOLL_NCCL_LIB=%s", lib),
                   test_text("DLCOLL_CUDA_LIB=%s", lib),
                   test_text("FAKE_NCCL_SHARED=%s/shared", tmpdir()),
                   fault[0],
                   NULL};
    for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
        struct proc p;
        char *argv[32] = {build_path("dlaunch"),
                          "--nproc_per_node=2",
                          build_path("dlcoll_perf"),
                          "all",
                          "-G",
                          "nccl",
                          "-e",
                          "4K",
                          "-f",
                          "16",
                          "-n",
                          "3",
                          "-w",
                          "1",
                          "-d",
                          "f32,i8"};
        memcpy(&argv[16], modes[i], sizeof(modes[i]));
        unlink(test_text("%s/shared", tmpdir()));
        int rc = proc_run(&p, argv, env, 120);
        ck_assert_msg(rc == 0, "mode %zu: %d\n%s%s", i, rc, p.out, p.err);
        ck_assert_msg(strstr(p.out, " 0 wrong elements"), "%s", p.out);
        ck_assert_msg(strstr(p.out, i % 3 ? "buffers: device memory" : "buffers: managed memory"),
                      "%s", p.out);
        ck_assert_msg(!strstr(p.out, "# 7 operations at a time on a stream") == (i < 2), "%s",
                      p.out);
        proc_fini(&p);
    }
    struct proc p; /* a wrong element is found in a copy, too */
    env[4] = "FAKE_NCCL_FAULT=wrong-sum";
    int rc = proc_run(&p,
                      ARGV(build_path("dlaunch"), build_path("dlcoll_perf"), "-G", "nccl", "-M",
                           "device", "-S", "2", "-e", "64", "-n", "1", "-d", "i32"),
                      env, 60);
    ck_assert_msg(rc == 1, "%d\n%s%s", rc, p.out, p.err);
    ck_assert_msg(!strstr(p.out, " 0 wrong elements"), "%s", p.out);
    proc_fini(&p);
}
END_TEST

START_TEST(perf_refuses_unknown_arguments)
{
    static const struct {
        char *argument, *value;
        const char *says;
    } wrong[] = {
        {"allreduce", NULL, "operation 'allreduce': must be one that --help lists"},
        {"-d", "f31", "--datatype 'f31': must be one that --help lists"},
        {"-o", "mean", "--op 'mean': must be one that --help lists"},
        {"-b", "12Q", "--minbytes '12Q': must be a number of bytes such as 8, 4K, 64M or 1G"},
        {"-b", "-8", "--minbytes '-8'"},
        {"-e", "99999G", "--maxbytes '99999G'"},
        {"-b", "1G", "--minbytes"},
        {"-f", "1", "--stepfactor '1': must be a number from 2 to"},
        {"-i", "0", "--stepbytes '0'"},
        {"-r", "2", "--root '2': must be less than the 2 ranks there are"},
        {"-a", "4", "--average '4': must be a number from 0 to 3"},
        {"-p", "here", "--place 'here': must be out, in or both"},
        {"--fast", NULL, "--fast"},
        {"all", "more", "argument 'more'"},
        {"-S", "20", "--stream '20': must be used with --backend nccl"},
        {"-S", "0", "--stream '0': must be a number from 1 to"},
        {"-M", "device", "--memory 'device': must be used with --backend nccl"},
        {"-M", "pinned", "--memory 'pinned': must be managed or device"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct proc p;
        int rc = RUN(&p, "2", "dlcoll_perf", wrong[i].argument, wrong[i].value);
        ck_assert_msg(rc == 2, "%s %s: %d", wrong[i].argument, wrong[i].value, rc);
        ck_assert_msg(strstr(p.err, wrong[i].says), "'%s' is not in\n%s", wrong[i].says, p.err);
        ck_assert_msg(!strchr(p.out, '\n'), "%s", p.out);
        proc_fini(&p);
    }
}
END_TEST

/* ---------------------------------------------------------------------------------- dlcoll_info */

START_TEST(info_reports_rank_0_and_differences)
{
    struct proc p;
    char *script = (char *)test_text("[ $RANK -lt 2 ] || export DLCOLL_CPU=portable; exec %s",
                                     build_path("dlcoll_info"));
    int rc = RUN(&p, "4", "dlcoll_info", NULL);
    ck_assert_msg(rc == 0, "%s", p.err);
    ck_assert_int_eq(count_lines(p.out, "rank: 0 of 4"), 1);
    ck_assert_int_eq(count_lines(p.out, "kernels: "), 1);
    ck_assert_int_eq(count_lines(p.out, "version: "), 1);
    ck_assert_msg(!strstr(p.out, "differ"), "%s", p.out);
    proc_fini(&p);
    rc = proc_run(
        &p, ARGV(build_path("dlaunch"), "--nproc_per_node", "4", "--no_python", "sh", "-c", script),
        (char *[]){"OMP_NUM_THREADS=1", NULL}, 60);
    ck_assert_msg(rc == 0, "%s", p.err);
    ck_assert_int_eq(count_lines(p.out, "ranks 2-3 differ: kernels: portable (by DLCOLL_CPU)"),
                     strstr(p.out, "\nkernels: portable") ? 0 : 1);
    proc_fini(&p);
}
END_TEST

START_TEST(info_works_alone_and_takes_no_arguments)
{
    struct proc p;
    char *none[] = {"RANK",        "WORLD_SIZE",          "MASTER_ADDR",
                    "MASTER_PORT", "DLCOLL_CPU=portable", NULL};
    char *bad[] = {"DLCOLL_CPU=386", NULL};
    ck_assert_int_eq(proc_run(&p, ARGV(build_path("dlcoll_info")), none, 20), 0);
    ck_assert_int_eq(count_lines(p.out, "rank: 0 of 1"), 1);
    ck_assert_int_eq(count_lines(p.out, "kernels: portable"), 1);
    proc_fini(&p);
    ck_assert_int_eq(proc_run(&p, ARGV(build_path("dlcoll_info"), "all"), none, 20), 2);
    ck_assert_str_eq(p.err, "dlcoll_info: argument 'all': must be --help or nothing\n");
    proc_fini(&p);
    ck_assert_int_eq(proc_run(&p, ARGV(build_path("dlcoll_info")), bad, 20), 1);
    ck_assert_msg(strstr(p.err, "DLCOLL_CPU=386: must be portable, avx2 or avx512"), "%s", p.err);
    proc_fini(&p);
}
END_TEST

/* ---------------------------------------------------------------------------------- dlcoll_tune */

START_TEST(tune_refuses_unknown_arguments)
{
    static const struct {
        char *argument, *value;
        const char *says;
        int status;
    } wrong[] = {
        {"allreduce", NULL, "operation 'allreduce': must be one that --help lists", 2},
        {"-e", "12Q", "-e '12Q': must be a number of bytes such as 8, 4K, 64M or 1G", 2},
        {"-e", "8G", "-e '8G': must be 8 to 4G", 2},
        {"-t", "nan", "-t 'nan': must be a number from 1 to", 2},
        {"-x", NULL, "invalid option -- 'x'", 2},
        {"-o", NULL, "option requires an argument -- 'o'", 2},
        /* detected at once, not after all measurements */
        {"-o", "/does/not/exist", "-o '/does/not/exist': No such file or directory", 1},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct proc p;
        int rc = RUN(&p, "2", "dlcoll_tune", wrong[i].argument, wrong[i].value);
        ck_assert_msg(rc == wrong[i].status, "%s: %d", wrong[i].argument, rc);
        ck_assert_msg(strstr(p.err, wrong[i].says), "'%s' is not in\n%s", wrong[i].says, p.err);
        ck_assert_msg(!strstr(p.err, "usage:"), "%s", p.err);
        proc_fini(&p);
    }
}
END_TEST

START_TEST(tune_opens_its_file_first)
{
    struct proc p;
    char *folder = (char *)tmpdir();
    int rc = RUN(&p, "2", "dlcoll_tune", "-t", "16777216", "-o", folder);
    ck_assert_msg(rc == 1 && strstr(p.err, ": Is a directory"), "%d %s", rc, p.err);
    proc_fini(&p);
}
END_TEST

/* ---------------------------------------------------------------------------------- all of them */

static const char *const unwritable[] = {
    "dlcoll_info",         "dlcoll_info -h", "dlcoll_perf -e 8",  "dlcoll_perf -h",
    "dlcoll_tune barrier", "dlcoll_tune -h", "dlaunchctl --help", "dlaunchctl --version"};

START_TEST(output_errors_are_reported)
{
    const char *command = unwritable[_i];
    int name = (int)strcspn(command, " ");
    struct proc p;
    char *line = (char *)test_text("exec %s >/dev/full", build_path(command));
    int rc = proc_run(&p, ARGV("sh", "-c", line), NULL, 20);
    ck_assert_msg(rc == 1, "%s: %d", command, rc);
    ck_assert_str_eq(p.err,
                     test_text("%.*s: standard output: No space left on device\n", name, command));
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("tools");
    TCase *tc = test_case(s, "dlcoll_perf", 150);
    tcase_add_test(tc, perf_measures_and_checks_every_operation);
    tcase_add_test(tc, perf_prints_tables_and_csv);
    tcase_add_test(tc, perf_works_alone);
    tcase_add_test(tc, perf_measures_device_memory);
    tcase_add_test(tc, perf_refuses_unknown_arguments);
    tc = test_case(s, "dlcoll_info", 60);
    tcase_add_test(tc, info_reports_rank_0_and_differences);
    tcase_add_test(tc, info_works_alone_and_takes_no_arguments);
    tc = test_case(s, "dlcoll_tune", 60);
    tcase_add_test(tc, tune_refuses_unknown_arguments);
    tcase_add_test(tc, tune_opens_its_file_first);
    tc = test_case(s, "all", 60);
    tcase_add_loop_test(tc, output_errors_are_reported, 0, ARRAY_LEN(unwritable));
    return s;
}

TEST_MAIN(suite)
