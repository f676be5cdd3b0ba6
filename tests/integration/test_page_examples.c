/* The programs in the manual pages of libdlcoll and libdlaunch compile and run unchanged. */
#include "tests/lib/test.h"

#include <glob.h>
#include <string.h>

#include "tests/lib/proc.h"

/* The program of a page: the literal text that begins with #include; mdoc's \e is a backslash. */
static char *program_of(const char *page)
{
    char *text = read_file(page), *from = strstr(text, ".Bd -literal\n#include"), *out = text;
    ck_assert_msg(from != NULL, "%s has no program", page);
    from += strlen(".Bd -literal\n");
    *strstr(from, "\n.Ed") = '\0';
    for (char *p = from; *p; p++) {
        *out++ = *p;
        p += p[0] == '\\' && p[1] == 'e';
    }
    strcpy(out, "\n");
    return text;
}

START_TEST(programs_of_the_pages_run)
{
    glob_t pages;
    struct proc p;
    ck_assert_int_eq(glob("man/dlcoll*.3", 0, NULL, &pages), 0);
    ck_assert_uint_ge(pages.gl_pathc, 5);
    char *lib = build_path("");
    for (size_t i = 0; i < pages.gl_pathc; i++) {
        char *text = program_of(pages.gl_pathv[i]), *source = tmppath("program.c");
        write_file(source, text);
        free(text);
        char *script = test_text("${CC:-cc} -std=c99 -Wall -Wextra -Werror " SANITIZE_FLAGS
                                 " -Icollectives -o %s %s -L%s -ldlcoll -Wl,-rpath,%s &&"
                                 " %s/dlaunch --quiet --nproc_per_node 3 %s",
                                 tmppath("program"), source, lib, lib, lib, tmppath("program"));
        int status = proc_run(&p, ARGV("sh", "-c", script), NULL, 60);
        ck_assert_msg(status == 0, "%s\n%d\n%s%s", pages.gl_pathv[i], status, p.out, p.err);
        proc_fini(&p);
    }
    globfree(&pages);
}
END_TEST

START_TEST(the_program_that_starts_a_job_runs)
{
    struct proc p;
    char *text = program_of("man/dlaunch.3"), *source = tmppath("program.c"), *lib = build_path("");
    write_file(source, text);
    free(text);
    char *script = test_text("${CC:-cc} -std=c99 -Wall -Wextra -Werror " SANITIZE_FLAGS
                             " -Ilauncher/api -o %s %s -L%s -ldlaunch -Wl,-rpath,%s &&"
                             " PATH=%s:$PATH %s",
                             tmppath("program"), source, lib, lib, lib, tmppath("program"));
    int status = proc_run(&p, ARGV("sh", "-c", script), NULL, 60);
    ck_assert_msg(status == 0, "%d\n%s%s", status, p.out, p.err);
    for (int r = 0; r < 3; r++)
        ck_assert_msg(strstr(p.out, test_text("rank %d of 3\n", r)), "%s", p.out);
    ck_assert_msg(strstr(p.err, "finish\n"), "%s", p.err);
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("page_examples");
    TCase *tc = test_case(s, "page_examples", 120);
    tcase_add_test(tc, programs_of_the_pages_run);
    tcase_add_test(tc, the_program_that_starts_a_job_runs);
    return s;
}

TEST_MAIN(suite)
