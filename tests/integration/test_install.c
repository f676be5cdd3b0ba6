/* `make install` copies a working installation to a prefix, and `make uninstall` removes all of it.
 */
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/proc.h"

/* Variables of an outer make, which must not reach the make of this test. */
static char *g_env[] = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", NULL};

static void shell(const char *script)
{
    struct proc p;
    int status = proc_run(&p, ARGV("sh", "-euc", (char *)script), g_env, 60);
    ck_assert_msg(status == 0, "%s\n  exit status %d\n%s%s", script, status, p.out, p.err);
    proc_fini(&p);
}

/* `make TARGET` for what is built already, into dest under the prefix /opt/dl. */
static void make_target(const char *target, const char *dest)
{
    char *build = build_path("");
    build[strlen(build) - 1] = '\0';
    shell(test_text("make -s BUILD='%s' "
                    "PREFIX=/opt/dl DESTDIR='%s' %s",
                    build, dest, target));
}

START_TEST(install_use_uninstall)
{
    char *dest = tmppath("dest");
    make_target("install-built", dest);

    /* Everything is there, with the prefix in it and nothing of DESTDIR. */
    shell(test_text(
        "cd '%s/opt/dl'; test -x bin/dlaunch -a -x bin/dlaunchctl -a -x "
        "libexec/dlaunch/dlaunch-inspect -a -L lib/libdlcoll.so -a -L "
        "lib/libdlaunch.so -a -f lib/libdlaunch_nccl.so;"
        "test -f share/man/man1/dlaunch.1 -a -f share/man/man3/dlcoll.3 -a"
        " -f share/bash-completion/completions/dlaunchctl -a -f share/doc/dlaunch/dlaunch.ini;"
        "test -f include/dlaunch.h -a -f include/dlcoll.h -a -f include/dlcoll.hpp -a -f "
        "include/dlcoll_types.hpp;"
        "grep -qx 'prefix=/opt/dl' lib/pkgconfig/dlcoll.pc lib/pkgconfig/dlaunch.pc;"
        "grep -q '^ExecStart=/opt/dl/bin/dlaunch ' lib/systemd/system/dlaunch@.service;"
        "test -L bin/dlaunchd;"
        "grep -q '^ExecStart=/opt/dl/bin/dlaunchd ' lib/systemd/user/dlaunchd.service;"
        "! grep -rIl '@[A-Z]*@\\|%s' .; ! find . -perm /022 ! -type l | grep .",
        dest, dest));

    /* Each library that the launcher needs makes its start longer by a tenth. */
    if (!*SANITIZE_FLAGS)
        shell(
            test_text("! LC_ALL=C readelf -d '%s/opt/dl/bin/dlaunch' | grep 'NEEDED.*libm'", dest));

    /* A program is built against it and runs under it. */
    shell(test_text("cd '%s'; export PKG_CONFIG_SYSROOT_DIR='%s' LD_LIBRARY_PATH='%s/opt/dl/lib'"
                    " PKG_CONFIG_PATH='%s/opt/dl/lib/pkgconfig';"
                    "test \"$(pkg-config --modversion dlcoll)\" = " DLAUNCH_VERSION ";"
                    "${CC:-cc} " SANITIZE_FLAGS
                    " -o hello opt/dl/share/doc/dlaunch/examples/hello.c"
                    " $(pkg-config --cflags --libs dlcoll);"
                    "test $(opt/dl/bin/dlaunch --nproc_per_node 3 ./hello | grep -c ' of 3,') = 3;"
                    "rm hello;"
                    "cd opt/dl/share/doc/dlaunch/examples; ${CC:-cc} " SANITIZE_FLAGS
                    " $(sed -n 's/.*: cc \\(-O2 .* -lm\\), and$/\\1/p' train.c |"
                    "   sed \"s|[$](.*)|$(pkg-config --cflags --libs dlcoll)|\");"
                    "'%s/opt/dl/bin/dlaunch' --nproc_per_node 2 ./train --epochs 1 --data data"
                    " | grep -q '^done: 1 epochs'; rm train",
                    dest, dest, dest, dest, dest));

    make_target("uninstall", dest);
    shell(test_text("! find '%s' ! -type d | grep .; ! test -e '%s/opt/dl/share/doc/dlaunch'", dest,
                    dest));
}
END_TEST

/* A second installation over the first, over files that are in use. */
START_TEST(install_again)
{
    struct proc p;
    char *dest = tmppath("dest");
    make_target("install-built", dest);
    proc_start(&p, ARGV(test_text("%s/opt/dl/bin/dlaunch", dest), "sh", "-c", "echo here; read x"),
               g_env, PROC_STDIN);
    proc_expect_out(&p, "here", 20);
    make_target("install-built", dest);
    ck_assert_int_eq(write(p.in_fd, "\n", 1), 1);
    ck_assert_int_eq(proc_wait(&p, 20), 0);
    proc_fini(&p);
}
END_TEST

/* Without a library that is needed, a build stops before it compiles, with the line to type. */
START_TEST(build_without_libraries)
{
    struct proc p;
    ck_assert_int_eq(
        proc_run(&p, ARGV("make", "CC=gcc -nostdinc", test_text("BUILD=%s", tmppath("b")), "all"),
                 g_env, 60),
        2);
    ck_assert_ptr_nonnull(strstr(p.err, "uv.h is missing: type 'make deps'"));
    ck_assert_ptr_null(strstr(p.out, "CC "));
    proc_fini(&p);
    ck_assert_int_eq(
        proc_run(&p, ARGV("make", "CC=no-such-cc", test_text("BUILD=%s", tmppath("b")), "all"),
                 g_env, 60),
        2);
    ck_assert_ptr_nonnull(strstr(p.err, "The compiler no-such-cc is missing: type 'make deps'"));
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("install");
    TCase *tc = test_case(s, "install", 120);
    if (access("/usr/bin/pkg-config", X_OK) == 0) {
        tcase_add_test(tc, install_use_uninstall);
    } else {
        test_skip("no pkg-config to build against the installed library with");
    }
    tcase_add_test(tc, install_again);
    tcase_add_test(tc, build_without_libraries);
    return s;
}

TEST_MAIN(suite)
