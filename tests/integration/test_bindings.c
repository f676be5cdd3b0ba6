/* Other languages: dlcoll.hpp in C++17, and the Python package dlcoll with numpy arrays, each on
 * three ranks. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

#include "tests/lib/proc.h"

static bool works(char *const argv[])
{
    struct proc p;
    bool good = proc_run(&p, argv, NULL, 60) == 0;
    proc_fini(&p);
    return good;
}

/* Under dlaunch on three ranks, each of which must say `line`. */
static void run_ranks(char *program, const char *line, char *const env[])
{
    struct proc p;
    int rc = proc_run(&p, ARGV(build_path("dlaunch"), "--nproc_per_node", "3", program), env, 60);
    ck_assert_msg(rc == 0, "%d\n%s%s", rc, p.out, p.err);
    for (int r = 0; r < 3; r++) {
        const char *want = test_text(line, r);
        ck_assert_msg(strstr(p.out, want), "no '%s' in\n%s%s", want, p.out, p.err);
    }
    proc_fini(&p);
}

START_TEST(cpp_17)
{
    static const char *const compilers[] = {"c++", "clang++"};
    for (int i = 0; i < 2; i++) {
        struct proc p;
        const char *command =
            test_text("%s -std=c++17 -O1 -Wall -Wextra -Werror -pedantic " SANITIZE_FLAGS
                      " -Icollectives -o %s tests/integration/use_dlcoll.cc -L%s -ldlcoll "
                      "-Wl,-rpath,$(realpath %s)",
                      compilers[i], tmppath("use"), build_path(""), build_path(""));
        if (i > 0 && test_skip_sanitized("those of clang++ do not fit a library that gcc built"))
            continue;
        if (!works(ARGV("sh", "-c", (char *)test_text("command -v %s", compilers[i])))) {
            test_skip("there is no %s", compilers[i]);
            continue;
        }
        int rc = proc_run(&p, ARGV("sh", "-c", (char *)command), NULL, 60);
        ck_assert_msg(rc == 0, "%s", p.err);
        proc_fini(&p);
        run_ranks(tmppath("use"), "rank %d of 3 is content", (char *[]){"OMP_NUM_THREADS=1", NULL});
    }
}
END_TEST

/* One line says what is wanted, and not what each line lacks. */
START_TEST(cpp_11)
{
    struct proc p;
    const char *command = "echo '#include <dlcoll.hpp>' | c++ -std=c++11 -Icollectives "
                          "-fsyntax-only -x c++ - 2>&1 | grep -c error:";
    if (!works(ARGV("sh", "-c", "command -v c++"))) {
        test_skip("there is no c++");
        return;
    }
    proc_run(&p, ARGV("sh", "-c", (char *)command), NULL, 60);
    ck_assert_str_eq(p.out, "1\n");
    proc_fini(&p);
}
END_TEST

/* Buffers of one operation whose elements differ are turned down by the compiler, in each. */
START_TEST(cpp_element_types)
{
    static const char text[] = "#include <dlcoll.hpp>\n"
                               "template <class A, class B> struct two {\n"
                               "    std::vector<A> a{8};\n"
                               "    std::vector<B> b{8};\n"
                               "};\n"
                               "int main() {\n"
                               "    dlcoll::comm w;\n"
                               "    std::vector<std::size_t> c{8};\n"
                               "    two<float, double> x1;\n"
                               "    two<int, float> x2;\n"
                               "    two<short, char> x3;\n"
                               "    two<long, double> x4;\n"
                               "    two<char, int> x5;\n"
                               "    two<unsigned, int> x6;\n"
                               "    two<double, float> x7;\n"
                               "    two<float, int> x8;\n"
                               "    two<char, short> x9;\n"
                               "    two<double, long> x10;\n"
                               "    two<int, char> x11;\n"
                               "    two<int, unsigned> x12;\n"
                               "    w.all_reduce(x1.a, x1.b);\n"
                               "    w.reduce(x2.a, x2.b, 0);\n"
                               "    w.all_gather(x3.a, x3.b);\n"
                               "    w.gather(x4.a, x4.b, 0);\n"
                               "    w.scatter(x5.a, x5.b, 0);\n"
                               "    w.reduce_scatter(x6.a, x6.b);\n"
                               "    w.all_to_all(x7.a, x7.b);\n"
                               "    w.all_gather_v(x8.a, x8.b, c);\n"
                               "    w.gather_v(x9.a, x9.b, c, 0);\n"
                               "    w.scatter_v(x10.a, x10.b, c, 0);\n"
                               "    w.reduce_scatter_v(x11.a, x11.b, c);\n"
                               "    w.all_to_all_v(x12.a, c, x12.b, c);\n"
                               "}\n";
    if (!works(ARGV("sh", "-c", "command -v c++"))) {
        test_skip("there is no c++");
        return;
    }
    write_file(tmppath("types.cc"), text);
    struct proc p;
    int rc = proc_run(
        &p,
        ARGV("c++", "-std=c++17", "-Icollectives", "-fsyntax-only", (char *)tmppath("types.cc")),
        NULL, 60);
    ck_assert_int_ne(rc, 0);
    int found = 0;
    for (char *line = strtok(p.err, "\n"); line; line = strtok(NULL, "\n"))
        found += strstr(line, "error:") && strstr(line, "the buffers differ in element type");
    ck_assert_int_eq(found, 12);
    proc_fini(&p);
}
END_TEST

/* An interpreter that loads a library with a sanitizer needs the sanitizer's runtime first; to
 * LeakSanitizer, interpreters leak. NULL without a sanitizer. */
static char *preload(void)
{
    struct proc p;
    if (!SANITIZED)
        return NULL;
    test_no_leak_check();
    ck_assert_int_eq(
        proc_run(&p, ARGV("sh", "-c", "${CC:-cc} -print-file-name=" SANITIZE_RUNTIME), NULL, 60),
        0);
    p.out[strcspn(p.out, "\n")] = '\0';
    char *entry = test_text("LD_PRELOAD=%s", p.out);
    proc_fini(&p);
    return entry;
}

START_TEST(python)
{
    static char *const pythons[] = {"python3", "/usr/bin/python3"};
    for (int i = 0; i < 2; i++) {
        if (!works(ARGV(pythons[i], "-c", "import numpy")))
            continue;
        char *env[] = {"OMP_NUM_THREADS=1", test_text("PYTHON_EXEC=%s", pythons[i]),
                       test_text("DLCOLL_LIBRARY=%s", build_path("libdlcoll.so.0")), preload(),
                       NULL};
        run_ranks("tests/lib/use_arrays.py", "rank %d of 3: everything is as it should be", env);
        return;
    }
    test_skip("no python3 has numpy: the Python package dlcoll was not tried");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("bindings");
    TCase *tc = test_case(s, "bindings", 150);
    tcase_add_test(tc, cpp_17);
    tcase_add_test(tc, cpp_11);
    tcase_add_test(tc, cpp_element_types);
    tcase_add_test(tc, python);
    return s;
}

TEST_MAIN(suite)
