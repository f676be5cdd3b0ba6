/* Log files: disks that are full, things that are no files, lines that match. */
#include "tests/lib/pump.h"

#include <errno.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "agent/output/stdio_logfile.h"
#include "core/log.h"

static const char *g_disk;

static void unmount_disk(void)
{
    umount2(g_disk, MNT_DETACH);
}

/* A tmpfs of 1 MiB that nobody else sees; NULL when that is not possible here. */
static const char *small_disk(void)
{
    const char *dir = g_disk = tmppath("disk");
    mkdir(dir, 0700);
    if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", dir, "tmpfs", 0, "size=1m") < 0)
        return NULL;
    atexit(unmount_disk); /* before tmpdir()'s own, which could not remove it */
    return dir;
}

START_TEST(full_disk_is_said_and_survived)
{
    enum { LINES = 20000 }; /* 2 MB */
    const char *dir = small_disk();
    if (!dir) {
        test_skip("full_disk_is_said_and_survived: needs root and a mount namespace");
        return;
    }
    struct fixture f;
    setup_open(&f);
    log_set_writer(stdio_write_line, f.pump);
    char *ballast = test_text("%s/ballast", dir), *path = test_text("%s/log", dir);
    int fd = open(ballast, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ck_assert_int_eq(posix_fallocate(fd, 0, 512 << 10), 0);
    close(fd);
    struct ends a = open_worker(&f, 0, (struct stdio_route){.file = path}, shown(NULL));
    struct ends b =
        open_worker(&f, 1, (struct stdio_route){.file = test_text("%s/log2", dir)}, shown(NULL));
    write_numbered(a.out, LINES);
    write_numbered(b.out, LINES);
    UNTIL(&f, strstr(text(&f.err), "\n"), "nothing said");
    end_worker(&f, 1, &b);
    UNTIL(&f, f.ndrained == 1, "not drained");
    unlink(ballast); /* there is room again: the last words go in */
    end_worker(&f, 0, &a);
    UNTIL(&f, f.ndrained == 2, "not drained");
    log_set_writer(NULL, NULL);
    close_pump(&f);
    char *all = test_keep(read_file(path)), *gap = strstr(all, "dlaunch: ");
    ck_assert_msg(gap, "no word in the file");
    ck_assert(gap == all || gap[-1] == '\n');
    double missing;
    ck_assert_str_eq(size_text(gap + 9, &missing),
                     " of output missing here: No space left on device\n");
    double lost = 100.0 * LINES - (double)(gap - all);
    ck_assert_msg(missing > lost * 0.95 && missing < lost * 1.05, "%.0f said, %.0f lost", missing,
                  lost);
    char *want = test_text("dlaunch: %s: No space left on device: output is dropped until the file "
                           "can be written again\n",
                           strstr(text(&f.err), "/log2:") ? test_text("%s/log2", dir) : path);
    ck_assert_int_eq(strncmp(text(&f.err), want, strlen(want)), 0);
    const char *sum = text(&f.err) + strlen(want);
    ck_assert_int_eq(strncmp(sum, "dlaunch: ", 9), 0);
    size_text((char *)sum + 9, &missing);
    ck_assert_ptr_nonnull(strstr(sum, " of output missing at the end of 1 log file: "));
    ck_assert_ptr_nonnull(strstr(sum, "/log2\n"));
    teardown(&f);
}
END_TEST

START_TEST(log_file_is_tried_again)
{
    const char *dir = small_disk();
    if (!dir) {
        test_skip("log_file_is_tried_again: needs root and a mount namespace");
        return;
    }
    static char big[1 << 20];
    char *path = test_text("%s/log", dir), *ballast = test_text("%s/ballast", dir);
    uint64_t now = 1, later = now + (STDIO_RETRY_S + 1) * UINT64_C(1000000000);
    struct logfile f;
    struct err e = ERR_INIT;
    memset(big, 'b', sizeof(big));
    ck_assert_msg(logfile_open(&f, path, &e) == 0, "%s", e.msg);
    ck_assert(logfile_write(&f, "begin\n", 6, now));
    int fd = open(ballast, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ck_assert_int_lt(fd_write_all(fd, big, sizeof(big)), 0);
    close(fd);
    ck_assert(!logfile_write(&f, big, 10000, now)); /* said once: */
    ck_assert(logfile_write(&f, "x", 1, now));
    ck_assert(logfile_write(&f, "x", 1, later)); /* still full */
    ck_assert_int_eq(f.error, ENOSPC);
    unlink(ballast);
    ck_assert(logfile_write(&f, "x", 1, later)); /* not yet time */
    ck_assert(logfile_write(&f, "after\n", 6, 2 * later));
    ck_assert(logfile_write(&f, "end\n", 4, 2 * later));
    ck_assert_uint_eq(logfile_close(&f), 0);
    char *all = test_keep(read_file(path));
    const char *gap = strstr(all, "dlaunch: ");
    ck_assert(gap && gap[-1] == '\n' && gap >= all + 6);
    double missing;
    ck_assert_str_eq(size_text((char *)gap + 9, &missing),
                     " of output missing here: No space left on device\nafter\nend\n");
}
END_TEST

START_TEST(files_that_are_not_files_are_refused)
{
    struct logfile f;
    struct err e = ERR_INIT;
    const char *fifo = tmppath("fifo"), *link = tmppath("link");
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ck_assert_int_eq(symlink(tmppath("target"), link), 0);
    ck_assert_int_lt(logfile_open(&f, fifo, &e), 0);
    ck_assert_int_eq(logfile_open(&f, link, &e), -ELOOP);
    ck_assert_int_eq(logfile_open(&f, "/dev/full", &e), -EINVAL);
    ck_assert_int_eq(logfile_open(&f, tmpdir(), &e), -EISDIR);
    ck_assert_int_eq(access(tmppath("target"), F_OK), -1);
}
END_TEST

START_TEST(matching_lines_are_copied)
{
    struct fixture f;
    setup_tty(&f);
    f.dup_stdout = (char *const[]){"loss=", "NaN", NULL};
    open_pump(&f, f.out_w, f.err_w);
    stdio_set_filtered_dir(f.pump, tmpdir());
    struct stdio_route out = shown("[a]:");
    out.filtered = true;
    struct ends a = open_worker(&f, 0, out, shown(NULL));
    say(a.out, "step 1 loss=3\nstep 2\nhalf NaN");
    UNTIL(&f, strstr(text(&f.out), "half NaN"), "the unfinished line is not shown");
    say(a.out, " line\nloss=4");
    end_worker(&f, 0, &a);
    UNTIL(&f, f.ndrained == 1, "not drained");
    close_pump(&f);
    ck_assert_str_eq(text(&f.out), "[a]:step 1 loss=3\n[a]:step 2\n[a]:half NaN line\n[a]:loss=4");
    char *copied = test_keep(read_file(tmppath("filtered_stdout.log")));
    ck_assert_str_eq(copied, "[a]:step 1 loss=3\n[a]:half NaN line\n[a]:loss=4\n");
    ck_assert_int_eq(access(tmppath("filtered_stderr.log"), F_OK), -1);
    teardown(&f);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stdio_files");
    TCase *tc = test_case(s, "files", 60);
    tcase_add_test(tc, full_disk_is_said_and_survived);
    tcase_add_test(tc, log_file_is_tried_again);
    tcase_add_test(tc, files_that_are_not_files_are_refused);
    tcase_add_test(tc, matching_lines_are_copied);
    return s;
}

TEST_MAIN(suite)
