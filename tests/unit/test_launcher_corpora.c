/* Replays the corpora of the launcher's fuzz targets. */
#include "tests/lib/test.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"

#define LLVMFuzzerTestOneInput fuzz_argv
#include "tests/fuzz/fuzz_argv.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_ini
#include "tests/fuzz/fuzz_ini.c"
#undef LLVMFuzzerTestOneInput

static void replay(const char *dir, int (*target)(const uint8_t *data, size_t size))
{
    DIR *d = opendir(dir);
    int n = 0;
    ck_assert_msg(d, "%s: run the tests in the repository's root", dir);
    for (struct dirent *de; (de = readdir(d));) {
        if (de->d_name[0] == '.')
            continue;
        char *path = xasprintf("%s/%s", dir, de->d_name);
        FILE *f = fopen(path, "rb");
        static uint8_t data[1 << 20];
        size_t size = fread(data, 1, sizeof(data), f);
        fclose(f);
        ck_assert_int_eq(target(data, size), 0);
        free(path);
        n++;
    }
    closedir(d);
    ck_assert_int_gt(n, 10);
}

START_TEST(ini)
{
    replay("tests/fuzz/corpus/ini", fuzz_ini);
}
END_TEST

START_TEST(argv)
{
    replay("tests/fuzz/corpus/argv", fuzz_argv);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("launcher_corpora");
    TCase *tc = test_case(s, "corpora", 60);
    tcase_add_test(tc, ini);
    tcase_add_test(tc, argv);
    return s;
}

TEST_MAIN(suite)
