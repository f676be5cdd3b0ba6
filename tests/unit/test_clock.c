/* The clock of leases beside the one that stands still while the host sleeps. */
#include "tests/lib/test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"

#define SECOND_NS 1000000000u

/* Lease clock less monotonic clock, in whole seconds. */
static int ahead_s(void)
{
    uint64_t before = mono_ns(), lease = lease_clock_ns();
    return (int)((int64_t)(lease - before + SECOND_NS / 2) / SECOND_NS);
}

/* Runs again with a clock that a minute of sleep can be put into. */
static void run_with_fake_clock(void)
{
    setenv("LD_PRELOAD", build_path("tests/fake/clock.so"), 1);
    setenv("FAKE_CLOCK_SLEPT", tmppath("slept"), 1);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "test_clock", "slept", NULL);
        _exit(127);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(status == 0, "status %x", status);
}

START_TEST(sleep_counts_for_leases)
{
    ck_assert_int_eq(ahead_s(), 0); /* however long this host has slept before */
    if (!test_skip_sanitized("the fake clock must be in front of a sanitizer, which comes first"))
        run_with_fake_clock();
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("clock");
    TCase *tc = test_case(s, "clock", 10);
    tcase_add_test(tc, sleep_counts_for_leases);
    return s;
}

int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "slept") != 0)
        return test_main(suite());
    int awake = ahead_s();
    close(creat(getenv("FAKE_CLOCK_SLEPT"), 0600));
    return awake == 0 && ahead_s() == 60 ? 0 : 1;
}
