/* test.h: what every test program shares.
 *
 * A test program is one file with a `static Suite *suite(void)` and TEST_MAIN(suite). Check runs
 * each test in a process of its own with a timeout. A test polls for a fact with a deadline
 * (wait_until, loop_run_until, proc_expect) and fails with the state that it found instead; it
 * never sleeps to synchronise. */
#ifndef TESTS_LIB_TEST_H
#define TESTS_LIB_TEST_H

#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Runs the suite in Check's fork mode and prints its summary line. TEST_FILTER=substring in the
 * environment keeps only the test cases whose name contains it. */
#define TEST_MAIN(suite)           \
    int main(void)                 \
    {                              \
        return test_main(suite()); \
    }
int test_main(Suite *s);

/* A test case with a timeout in seconds (scaled under sanitizers and valgrind). */
TCase *test_case(Suite *s, const char *name, double timeout);

/* Scales a deadline as the timeouts are scaled. */
double test_seconds(double s);

/* A fresh directory, removed with all that is in it when the test's process ends well. */
const char *tmpdir(void);
/* "<tmpdir>/<name>", valid until the process ends. */
char *tmppath(const char *name);
/* A formatted text, valid until the process ends, as is a malloc'ed one that test_keep() takes. */
char *test_keep(char *owned);
char *test_text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void write_file(const char *path, const char *text);
/* The whole file, malloc'ed; fails the test when it cannot be read. */
char *read_file(const char *path);

/* Calls fact(arg) every millisecond or so until it is true; fails the test with `what` after
 * `seconds`. */
void wait_until(bool (*fact)(void *arg), void *arg, double seconds, const char *what);

/* The pause of a loop that polls for a fact, where wait_until() does not fit. */
void test_poll_pause(void);

/* Lets `seconds` pass where the time itself is tested: a freeze, a cut, a silence. A test never
 * waits for a fact by it. */
void test_elapse(double seconds);

/* A skipped check says so in one line, with the reason. */
void test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The sanitizer that everything was built with, and its flags for a test that compiles a program
 * against the tested code. */
#if defined(__SANITIZE_THREAD__)
#define SANITIZED        1
#define SANITIZE_FLAGS   "-fsanitize=thread"
#define SANITIZE_RUNTIME "libtsan.so"
#elif defined(__SANITIZE_ADDRESS__)
#define SANITIZED        1
#define SANITIZE_FLAGS   "-fsanitize=address,undefined"
#define SANITIZE_RUNTIME "libasan.so"
#else
#define SANITIZED        0
#define SANITIZE_FLAGS   ""
#define SANITIZE_RUNTIME ""
#endif

/* Skips a test that sanitizers cannot run, for this reason. False: built without a sanitizer. */
bool test_skip_sanitized(const char *reason);

/* For tests where LeakSanitizer cannot work: LeakSanitizer stops the process at its end, by a
 * thread that it starts then, and reads /proc. Programs that are started from now on are not
 * checked for leaks. */
void test_no_leak_check(void);

/* The path of a built program: "<build>/<name>". */
char *build_path(const char *name);

#endif
