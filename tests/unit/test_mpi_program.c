/* Detection of the MPI that a program has been linked with. */
#include "launcher/options/mpi_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/mem.h"
#include "launcher/options/library_search.h"
#include "tests/lib/test.h"

START_TEST(libraries)
{
    static const struct {
        const char *soname, *name;
        enum mpi_kind kind;
    } cases[] = {
        {"libmpich.so.12", "MPICH", MPI_PMI},
        {"libmpichfort.so.12", "MPICH", MPI_PMI},
        {"libmpi.so.12", "MPICH's ABI", MPI_PMI},
        {"libmpi.so.40", "Open MPI", MPI_PMIX},
        {"libmpi_mpifh.so.40", "Open MPI", MPI_PMIX},
        {"libpmix.so.2", "PMIx", MPI_PMIX},
        {"libmpi.so.20", "an unknown MPI", MPI_NONE},
        {"libmpi_cray.so.12", "an unknown MPI", MPI_NONE},
        {"libmpich.so.10", "an unknown MPICH", MPI_NONE},
        {"libmpi", NULL, MPI_NONE},
        {"libmpich.so.120", "an unknown MPICH", MPI_NONE},
        {"libmpir.so.1", NULL, MPI_NONE},
        {"libmpfr.so.6", NULL, MPI_NONE},
        {"libc.so.6", NULL, MPI_NONE},
        {"", NULL, MPI_NONE},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct mpi_program m = {0};
        ck_assert_msg(mpi_library(cases[i].soname, &m) == (cases[i].name != NULL), "%s",
                      cases[i].soname);
        if (!cases[i].name)
            continue;
        ck_assert_str_eq(m.name, cases[i].name);
        ck_assert_str_eq(m.library, cases[i].soname);
        ck_assert_int_eq(m.kind, cases[i].kind);
        ck_assert_int_eq(m.foreign, cases[i].kind == MPI_NONE);
    }
}
END_TEST

/* A program that needs these libraries, which are empty. */
static char *program_that_needs(const char *const *sonames)
{
    char *link = test_keep(xstrdup("")), *path = tmppath("program");
    write_file(tmppath("empty.c"), "");
    write_file(tmppath("main.c"), "int main(void) { return 0; }");
    for (; *sonames; sonames++) {
        const char *lib = tmppath(*sonames);
        ck_assert_int_eq(system(test_text("cc -shared -Wl,-soname,%s -o %s %s", *sonames, lib,
                                          tmppath("empty.c"))),
                         0);
        link = test_text("%s %s", link, lib);
    }
    ck_assert_int_eq(
        system(test_text("cc -o %s %s -Wl,--no-as-needed %s", path, tmppath("main.c"), link)), 0);
    return path;
}

START_TEST(programs)
{
    struct mpi_program m;
    mpi_program_look(
        program_that_needs((const char *const[]){"libother.so.1", "libmpich.so.12", NULL}), &m);
    ck_assert_int_eq(m.kind, MPI_PMI);
    ck_assert_str_eq(m.library, "libmpich.so.12");
    mpi_program_look(program_that_needs((const char *const[]){"libmpi.so.40", NULL}), &m);
    ck_assert_int_eq(m.kind, MPI_PMIX);
    /* An MPICH that was built for PMIx. */
    mpi_program_look(
        program_that_needs((const char *const[]){"libmpich.so.12", "libpmix.so.2", NULL}), &m);
    ck_assert_int_eq(m.kind, MPI_PMIX);
    ck_assert_str_eq(m.name, "PMIx");

    static const char *const others[] = {"/proc/self/exe", "/bin/sh", "/", "/nowhere", "/dev/null"};
    uint64_t start = mono_ns();
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        mpi_program_look(others[i], &m);
        ck_assert_msg(!m.name && m.kind == MPI_NONE, "%s: %s", others[i], m.name);
    }
    for (int i = 0; i < 1000; i++)
        mpi_program_look("/bin/sh", &m);
    printf("one look at a program: %.1f us\n", (double)(mono_ns() - start) / 1e6);
}
END_TEST

/* A file that ends anywhere, or has any byte changed, is looked at without harm. */
START_TEST(damaged)
{
    const char *whole = program_that_needs((const char *const[]){"libmpich.so.12", NULL});
    char *path = tmppath("damaged");
    struct mpi_program m;
    static unsigned char bytes[65536];
    FILE *f = fopen(whole, "r");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(bytes, 1, sizeof(bytes), f);
    fclose(f);
    for (size_t i = 0; i < 1024; i++) {
        size_t len = i < 512 ? n * i / 512 : n, at = i - 512;
        f = fopen(path, "w");
        for (int k = 0; k < 8 && i >= 512; k++)
            bytes[at + (size_t)k] ^= 0xff;
        ck_assert_uint_eq(fwrite(bytes, 1, len, f), len);
        fclose(f);
        mpi_program_look(path, &m);
        for (int k = 0; k < 8 && i >= 512; k++)
            bytes[at + (size_t)k] ^= 0xff;
        if (m.name)
            ck_assert_str_eq(m.library, "libmpich.so.12");
    }
}
END_TEST

static void sh(const char *command)
{
    ck_assert_msg(system(test_text("cd %s && %s", tmpdir(), command)) == 0, "%s", command);
}

/* A program that needs libfoo.so, which needs libbar.so, which needs this library. `how`: how the
 * linker is told where they are. */
static char *program_behind(const char *soname, const char *how)
{
    write_file(tmppath("empty.c"), "");
    write_file(tmppath("main.c"), "int main(void) { return 0; }");
    sh("mkdir -p lib far");
    sh(test_text("cc -shared -Wl,-soname,%s -o far/%s empty.c", soname, soname));
    sh(test_text("cc -shared -o lib/libbar.so empty.c -Wl,--no-as-needed far/%s", soname));
    sh(test_text("cc -shared -o lib/libfoo.so empty.c -Llib -Wl,--no-as-needed -lbar %s", how));
    sh(test_text("cc -o behind main.c -Llib -Wl,--no-as-needed -lfoo "
                 "-Wl,--allow-shlib-undefined,-rpath-link,lib,-rpath-link,far %s",
                 how));
    return tmppath("behind");
}

START_TEST(behind_other_libraries)
{
    static const struct {
        const char *how, *path;
    } ways[] = {
        {"-Wl,--enable-new-dtags,-rpath,'$ORIGIN/lib:$ORIGIN'", NULL},
        {"-Wl,--disable-new-dtags,-rpath,'${ORIGIN}/lib'", NULL},
        {"", "lib"},
    };
    struct mpi_program m;
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        char *path = program_behind("libmpich.so.12", ways[i].how);
        mpi_program_look(path, &m);
        ck_assert_msg(ways[i].path ? !m.name : m.kind == MPI_PMI, "%s", ways[i].how);
        if (ways[i].path)
            setenv("LD_LIBRARY_PATH", tmppath(ways[i].path), 1);
        mpi_program_look(path, &m);
        ck_assert_msg(m.kind == MPI_PMI, "%s", ways[i].how);
        ck_assert_str_eq(m.library, "libmpich.so.12");
        ck_assert_str_eq(m.through, "libbar.so");
    }
    mpi_program_look(program_behind("libmpi.so.20", ""), &m);
    ck_assert(m.foreign);
    mpi_program_look(program_behind("libother.so.1", ""), &m);
    ck_assert_ptr_null(m.name);
}
END_TEST

/* A library that needs itself, or a missing one. */
START_TEST(circles)
{
    struct mpi_program m;
    program_behind("libother.so.1", "-Wl,-rpath,'$ORIGIN/lib:$ORIGIN'");
    sh("cc -shared -o lib/libbar.so empty.c -Llib -Wl,--no-as-needed -lfoo");
    mpi_program_look(tmppath("behind"), &m);
    ck_assert_ptr_null(m.name);
    sh("rm lib/libbar.so");
    mpi_program_look(tmppath("behind"), &m);
    ck_assert_ptr_null(m.name);
}
END_TEST

/* By the cache of the linker. */
START_TEST(of_the_system)
{
    struct elf_needed by = {0}, found;
    struct library_search search = LIBRARY_SEARCH_INIT(&by, "/bin/sh");
    char path[PATH_MAX];
    unsetenv("LD_LIBRARY_PATH");
    ck_assert(library_search_read(&search, "libm.so.6", &by, "/bin/sh", path, &found));
    ck_assert_msg(path[0] == '/' && strstr(path, "/libm.so.6"), "%s", path);
    elf_needed_fini(&found);
    ck_assert(!library_search_read(&search, "libno-such.so.6", &by, "/bin/sh", path, &found));
    library_search_fini(&search);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("mpi_program");
    TCase *tc = test_case(s, "mpi_program", 180);
    tcase_add_test(tc, libraries);
    tcase_add_test(tc, programs);
    tcase_add_test(tc, damaged);
    tcase_add_test(tc, behind_other_libraries);
    tcase_add_test(tc, circles);
    tcase_add_test(tc, of_the_system);
    return s;
}

TEST_MAIN(suite)
