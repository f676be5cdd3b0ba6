#include "tests/lib/test.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"

#define SLOWER (SANITIZED ? 4 : 1)

double test_seconds(double s)
{
    const char *m = getenv("CK_TIMEOUT_MULTIPLIER");
    return s * SLOWER * (m ? atof(m) : 1);
}

static char *g_cases; /* the names of all, for whom asks for one that is not there */

TCase *test_case(Suite *s, const char *name, double timeout)
{
    char *before = g_cases;
    if (asprintf(&g_cases, "%s%s%s", before ? before : "", before ? ", " : "", name) < 0)
        abort();
    free(before);
    const char *filter = getenv("TEST_FILTER");
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, timeout * SLOWER);
    if (!filter || strstr(name, filter))
        suite_add_tcase(s, tc);
    else
        test_keep((char *)tc); /* no leak */
    return tc;
}

static char g_tmpdir[PATH_MAX];
static pid_t g_tmpdir_owner;

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    remove(path);
    return 0;
}

int test_main(Suite *s)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    /* A shell that starts us in the background has these ignored, and so would what we start. */
    signal(SIGINT, SIG_DFL);
    signal(SIGQUIT, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    char config[] = "/tmp/dlaunch-test-config.XXXXXX"; /* a job token of the tests' own */
    if (mkdtemp(config))
        setenv("XDG_CONFIG_HOME", config, 1);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r), run = srunner_ntests_run(r);
    srunner_free(r);
    nftw(config, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    const char *wanted = getenv("CK_RUN_CASE");
    if (run == 0 && wanted) {
        fprintf(stderr, "CK_RUN_CASE: no test case is called '%s'; there are: %s\n", wanted,
                g_cases);
        return 2;
    }
    return failed ? 1 : 0;
}

static void remove_tmpdir(void)
{
    if (getpid() == g_tmpdir_owner && !getenv("TEST_KEEP"))
        nftw(g_tmpdir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *tmpdir(void)
{
    if (g_tmpdir_owner != getpid()) {
        const char *base = getenv("TMPDIR");
        snprintf(g_tmpdir, sizeof(g_tmpdir), "%s/dlaunch-test.XXXXXX", base ? base : "/tmp");
        ck_assert_ptr_nonnull(mkdtemp(g_tmpdir));
        g_tmpdir_owner = getpid();
        atexit(remove_tmpdir);
    }
    return g_tmpdir;
}

char *test_keep(char *owned)
{
    static char **kept; /* where a leak checker sees them */
    static size_t n;
    kept = xrealloc(kept, (n + 1) * sizeof(*kept));
    return kept[n++] = owned;
}

char *test_text(const char *fmt, ...)
{
    char *text;
    va_list ap;
    va_start(ap, fmt);
    ck_assert_int_ge(vasprintf(&text, fmt, ap), 0);
    va_end(ap);
    return test_keep(text);
}

char *tmppath(const char *name)
{
    return test_text("%s/%s", tmpdir(), name);
}

void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    ck_assert_msg(f, "open %s: %s", path, strerror(errno));
    fputs(text, f);
    ck_assert_int_eq(fclose(f), 0);
}

char *read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    ck_assert_msg(f, "open %s: %s", path, strerror(errno));
    size_t cap = 1 << 16, len = 0;
    char *text = xmalloc(cap + 1);
    for (size_t n; (n = fread(text + len, 1, cap - len, f)) > 0;) {
        len += n;
        if (len == cap)
            text = xrealloc(text, (cap *= 2) + 1);
    }
    fclose(f);
    text[len] = '\0';
    return text;
}

void wait_until(bool (*fact)(void *arg), void *arg, double seconds, const char *what)
{
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(seconds) * 1e9);
    while (!fact(arg)) {
        ck_assert_msg(mono_ns() < end, "did not happen within %.1f s: %s", test_seconds(seconds),
                      what);
        test_poll_pause();
    }
}

void test_poll_pause(void)
{
    test_elapse(0.001);
}

void test_elapse(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR)
        ;
}

void test_skip(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("SKIPPED: ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
}

bool test_skip_sanitized(const char *reason)
{
    if (SANITIZED)
        test_skip("with sanitizers: %s", reason);
    return SANITIZED;
}

void test_no_leak_check(void)
{
    const char *options = getenv("ASAN_OPTIONS");
    setenv("ASAN_OPTIONS", test_text("%s:detect_leaks=0", options ? options : ""), 1);
}

char *build_path(const char *name)
{
    static char dir[PATH_MAX];
    if (!dir[0]) {
        /* This program is <build>/tests/<kind>/test_x. */
        ssize_t n = readlink("/proc/self/exe", dir, sizeof(dir) - 1);
        ck_assert_int_gt(n, 0);
        dir[n] = '\0';
        for (int up = 0; up < 3; up++)
            *strrchr(dir, '/') = '\0';
    }
    return test_text("%s/%s", dir, name);
}
