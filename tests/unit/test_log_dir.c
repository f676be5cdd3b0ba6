/* Log directories: torchrun's layout, and what others may have put in the way. */
#include "tests/lib/test.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/base/fs.h"
#include "agent/output/log_dir.h"
#include "core/mem.h"

static bool is_dir(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static unsigned mode_of(const char *path)
{
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_mode & 07777;
}

START_TEST(layout)
{
    struct log_dir d;
    struct err e = ERR_INIT;
    char path[600];
    umask(022);
    const char *base = tmppath("a/b//c");
    ck_assert_msg(log_dir_open(&d, base, "job", &e) == 0, "%s", e.msg);
    ck_assert_int_eq(fnmatch(test_text("%s/job_????????", base), d.run, FNM_PATHNAME), 0);
    ck_assert_uint_eq(mode_of(d.run), 0755);
    ck_assert_str_eq(log_dir_file(&d, 0, "stdout.log", path, sizeof(path)), "");
    ck_assert_msg(log_dir_attempt(&d, 3, 0, 2, &e) == 0, "%s", e.msg);
    ck_assert_str_eq(d.attempt, test_text("%s/attempt_3", d.run));
    ck_assert_str_eq(log_dir_file(&d, 1, "error.json", path, sizeof(path)),
                     test_text("%s/attempt_3/1/error.json", d.run));
    write_file(path, "{}");
    log_dir_close(&d);
    ck_assert(is_dir(test_text("%s/attempt_3/0", d.run)));
}
END_TEST

START_TEST(empty_tree_is_removed)
{
    struct log_dir d;
    struct err e = ERR_INIT;
    setenv("TMPDIR", tmpdir(), 1);
    ck_assert_msg(log_dir_open(&d, NULL, "none", &e) == 0, "%s", e.msg);
    ck_assert_int_eq(fnmatch(test_text("%s/torchelastic_*/none_*", tmpdir()), d.run, FNM_PATHNAME),
                     0);
    ck_assert_uint_eq(mode_of(d.run), 0700);
    char *parent = test_text("%s", d.run);
    *strrchr(parent, '/') = '\0';
    ck_assert_uint_eq(mode_of(parent), 0700);
    ck_assert_int_eq(log_dir_attempt(&d, 0, 0, 8, &e), 0);
    ck_assert_int_eq(log_dir_attempt(&d, 1, 0, 8, &e), 0);
    log_dir_close(&d);
    ck_assert(!is_dir(parent));
    log_dir_close(&d); /* nothing left to do */
}
END_TEST

/* How many entries the run directory has. */
static int entries_of(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2;
}

/* _i: how many workers are started again each time; with fewer than all, the others stay. A job
 * that is started again and again has no more folders at its end than at its first start. */
START_TEST(many_starts_leave_no_empty_folders)
{
    enum { NPROC = 4, STARTS = 200 };
    struct log_dir d;
    struct err e = ERR_INIT;
    char dir[NPROC][600] = {"", "", "", ""}, path[600];
    int first = 0;
    ck_assert_int_eq(log_dir_open(&d, tmpdir(), "job", &e), 0);
    for (int n = 0; n < STARTS; n++) {
        int count = n ? _i : NPROC;
        first = n % (NPROC - count + 1);
        for (int i = first; i < first + count; i++)
            log_dir_left(&d, i, dir[i]);
        ck_assert_msg(log_dir_attempt(&d, n, first, count, &e) == 0, "%s", e.msg);
        for (int i = first; i < first + count; i++) {
            bool starts = _i < NPROC || i != n % 7; /* else the round is stopped before */
            snprintf(dir[i], sizeof(dir[i]), "%s/%d", d.attempt, i);
            dir[i][0] = starts ? dir[i][0] : '\0';
        }
        ck_assert_int_le(entries_of(d.run), NPROC);
    }
    write_file(log_dir_file(&d, first, "error.json", path, sizeof(path)), "{}");
    log_dir_left(&d, first, dir[first]);
    ck_assert_int_eq(access(path, F_OK), 0);
    unlink(path);
    log_dir_close(&d);
    ck_assert(!is_dir(d.run));
}
END_TEST

START_TEST(an_earlier_start_keeps_its_files)
{
    struct log_dir d;
    struct err e = ERR_INIT;
    char path[600], later[600];
    ck_assert_int_eq(log_dir_open(&d, tmpdir(), "job", &e), 0);
    ck_assert_int_eq(log_dir_attempt(&d, 0, 0, 2, &e), 0);
    write_file(log_dir_file(&d, 1, "stdout.log", path, sizeof(path)), "old");
    for (int again = 1; again <= 2; again++) {
        ck_assert_msg(log_dir_attempt(&d, 0, 0, 2, &e) == 0, "%s", e.msg);
        ck_assert_str_eq(d.attempt, test_text("%s/attempt_0.%d", d.run, again));
        ck_assert_int_eq(access(log_dir_file(&d, 1, "stdout.log", later, sizeof(later)), F_OK), -1);
        ck_assert(is_dir(test_text("%s/1", d.attempt)));
    }
    ck_assert_str_eq(test_keep(read_file(path)), "old");
    /* A link in the place of the directory itself is not entered. */
    mkdir(tmppath("theirs"), 0700);
    ck_assert_int_eq(symlink(tmppath("theirs"), test_text("%s/attempt_1", d.run)), 0);
    ck_assert_int_eq(log_dir_attempt(&d, 1, 0, 2, &e), 0);
    ck_assert_str_eq(d.attempt, test_text("%s/attempt_1.1", d.run));
    ck_assert(!is_dir(tmppath("theirs/0")));
}
END_TEST

START_TEST(run_ids_are_made_harmless)
{
    static const struct {
        const char *id, *pattern;
    } cases[] = {{"../../etc", "_._.._etc_????????"},
                 {"", "_????????"},
                 {".hidden", "_hidden_????????"},
                 {"a b%n\n", "a_b_n__????????"},
                 {"x.y-z_1", "x.y-z_1_????????"}};
    struct log_dir d;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        ck_assert_int_eq(log_dir_open(&d, tmpdir(), cases[i].id, NULL), 0);
        ck_assert_msg(
            fnmatch(test_text("%s/%s", tmpdir(), cases[i].pattern), d.run, FNM_PATHNAME) == 0,
            "'%s' became %s", cases[i].id, d.run);
    }
    char longest[1000];
    memset(longest, 'r', sizeof(longest));
    longest[999] = '\0';
    ck_assert_int_eq(log_dir_open(&d, tmpdir(), longest, NULL), 0);
    ck_assert_uint_eq(strlen(strrchr(d.run, '/')), 1 + 128 + 1 + 8);
}
END_TEST

START_TEST(clear_errors)
{
    struct log_dir d;
    struct err e = ERR_INIT;
    char path[64];
    write_file(tmppath("file"), "");
    ck_assert_int_eq(log_dir_open(&d, tmppath("file"), "j", &e), -ENOTDIR);
    ck_assert_str_eq(e.msg, test_text("log directory %s is a file", tmppath("file")));
    ck_assert_int_eq(log_dir_open(&d, tmppath("file/below"), "j", &e), -ENOTDIR);
    ck_assert_int_eq(log_dir_open(&d, "/proc/nope/x", "j", &e), -ENOENT);
    ck_assert_str_eq(e.msg, "log directory /proc/nope: No such file or directory");
    ck_assert_int_eq(log_dir_open(&d, "", "j", &e), -EINVAL);
    char longest[2000];
    memset(longest, 'r', sizeof(longest));
    longest[1999] = '\0';
    ck_assert_int_eq(log_dir_open(&d, longest, "j", &e), -ENAMETOOLONG);
    /* No files at all. */
    ck_assert_int_eq(log_dir_open(&d, "/dev/null", "j", &e), 0);
    ck_assert_int_eq(log_dir_attempt(&d, 0, 0, 4, &e), 0);
    ck_assert_str_eq(log_dir_file(&d, 0, "stdout.log", path, sizeof(path)), "");
    log_dir_close(&d);
}
END_TEST

START_TEST(links_of_other_users_are_refused)
{
    struct log_dir d;
    struct err e = ERR_INIT;
    if (geteuid() != 0) {
        test_skip("links_of_other_users_are_refused: needs root to make one");
        return;
    }
    mkdir(tmppath("shared"), 0700);
    chmod(tmppath("shared"), 01777);
    mkdir(tmppath("trap"), 0777);
    ck_assert_int_eq(symlink(tmppath("trap"), tmppath("shared/logs")), 0);
    ck_assert_int_eq(lchown(tmppath("shared/logs"), 12345, 12345), 0);
    ck_assert_int_eq(log_dir_open(&d, tmppath("shared/logs"), "j", &e), -EPERM);
    ck_assert_ptr_nonnull(strstr(e.msg, "a symbolic link of another user (uid 12345)"));
    ck_assert_int_eq(log_dir_open(&d, tmppath("shared/logs/below"), "j", &e), -EPERM);
    ck_assert_int_eq(lchown(tmppath("shared/logs"), 0, 0), 0);
    ck_assert_int_eq(log_dir_open(&d, tmppath("shared/logs"), "j", &e), 0);
}
END_TEST

static char *folder_of(const char *name, uid_t uid, mode_t mode)
{
    char *path = tmppath(name);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(chmod(path, mode), 0);
    ck_assert_int_eq(chown(path, uid, uid), 0);
    return path;
}

/* Another user can exchange what is in a folder of his. A place that only a group can write to is
 * that group's affair. */
START_TEST(folders_of_other_users_are_refused)
{
    struct log_dir d;
    struct err e = ERR_INIT;
    if (geteuid() != 0) {
        test_skip("folders_of_other_users_are_refused: needs root to make one");
        return;
    }
    folder_of("shared", 0, 01777);
    char *theirs = folder_of("shared/theirs", 12345, 0777);
    ck_assert_int_eq(log_dir_open(&d, theirs, "j", &e), -EPERM);
    ck_assert_str_eq(e.msg, test_text("log directory: %s: not used, because 'theirs' is a folder "
                                      "of another user (uid 12345) in a folder that others can "
                                      "write to",
                                      theirs));
    ck_assert_int_eq(log_dir_open(&d, tmppath("shared/theirs/below"), "j", &e), -EPERM);
    folder_of("shared/theirs/mine", 0, 0700);
    ck_assert_int_eq(symlink(tmppath("shared/theirs/mine"), tmppath("link")), 0);
    ck_assert_int_eq(log_dir_open(&d, tmppath("link"), "j", &e), -EPERM);
    ck_assert_ptr_nonnull(strstr(e.msg, "leads through a folder that another user made"));
    ck_assert_int_eq(log_dir_open(&d, tmppath("shared/new"), "j", &e), 0);
    ck_assert_int_eq(log_dir_open(&d, tmppath("shared"), "j", &e), 0);
    folder_of("team", 0, 0775);
    ck_assert_int_eq(log_dir_open(&d, folder_of("team/theirs", 12345, 0775), "j", &e), 0);
}
END_TEST

START_TEST(files_are_replaced_whole)
{
    struct err e = ERR_INIT;
    const char *path = tmppath("report"), *link = tmppath("link");
    umask(027);
    ck_assert_msg(fs_replace_file(path, "one", 3, &e) == 0, "%s", e.msg);
    ck_assert_uint_eq(mode_of(path), 0640);
    chmod(path, 0604);
    ck_assert_int_eq(symlink(path, link), 0);
    ck_assert_int_eq(fs_replace_file(link, "two", 3, &e), 0);
    ck_assert_str_eq(test_keep(read_file(path)), "two");
    ck_assert_uint_eq(mode_of(path), 0604);
    struct stat st;
    ck_assert(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
    ck_assert_int_eq(fs_replace_file("/dev/null", "x", 1, &e), 0);
    ck_assert(stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode));
    ck_assert_int_eq(fs_replace_file("/dev/full", "x", 1, &e), -ENOSPC);
    ck_assert_str_eq(e.msg, "write /dev/full: No space left on device");
    ck_assert_int_eq(fs_replace_file(tmppath("no/such"), "x", 1, &e), -ENOENT);
    ck_assert_int_eq(mkfifo(tmppath("fifo"), 0600), 0);
    ck_assert_int_eq(fs_replace_file(tmppath("fifo"), "x", 1, &e), -ENXIO); /* does not wait */
    ck_assert_int_eq(system(test_text("test $(ls -A %s | wc -l) = 3", tmpdir())), 0);
}
END_TEST

/* A folder that we may not write to, with a file that we may: as Kubernetes' /dev/termination-log
 * is for most users. */
START_TEST(a_folder_that_takes_no_file)
{
    struct err e = ERR_INIT;
    const char *file = tmppath("f/log");
    char big[65536] = {0};
    if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mkdir(tmppath("f"), 0755) < 0 ||
        mount("tmpfs", tmppath("f"), "tmpfs", 0, "size=32k,mode=755") < 0) {
        test_skip("needs root and a mount namespace");
        return;
    }
    write_file(file, "old and long");
    chmod(file, 0666);
    chmod(tmpdir(), 0755);
    ck_assert_int_eq(seteuid(12345), 0);
    ck_assert_msg(fs_replace_file(file, "new", 3, &e) == 0, "%s", e.msg);
    ck_assert_str_eq(test_keep(read_file(file)), "new");
    ck_assert_int_eq(fs_replace_file(file, big, sizeof(big), &e), -ENOSPC);
    ck_assert_str_eq(test_keep(read_file(file)), "new");
    ck_assert_int_eq(seteuid(0), 0);
    /* Another user's file, in a folder that everyone may write to. */
    ck_assert_int_eq(chmod(tmppath("f"), 01777) | chown(file, 54321, 54321), 0);
    ck_assert_int_eq(seteuid(12345), 0);
    ck_assert_int_eq(fs_replace_file(file, "x", 1, &e), -EPERM);
    ck_assert_str_eq(test_keep(read_file(file)), "new");
    ck_assert_int_eq(seteuid(0), 0);
    /* A mount point. */
    write_file(tmppath("mounted"), "old");
    write_file(tmppath("point"), "");
    ck_assert_int_eq(mount(tmppath("mounted"), tmppath("point"), NULL, MS_BIND, NULL), 0);
    ck_assert_msg(fs_replace_file(tmppath("point"), "an", 2, &e) == 0, "%s", e.msg);
    ck_assert_str_eq(test_keep(read_file(tmppath("mounted"))), "an");
    ck_assert_int_eq(umount(tmppath("point")), 0);
    ck_assert_int_eq(umount(tmppath("f")), 0);
    ck_assert_int_eq(system(test_text("test $(ls -A %s | wc -l) = 3", tmpdir())), 0);
}
END_TEST

START_TEST(error_files_alone_are_flat)
{
    struct log_dir d;
    struct err e = ERR_INIT;
    char first[600], path[600];
    setenv("TMPDIR", tmpdir(), 1);
    ck_assert_msg(log_dir_open_flat(&d, false, &e) == 0, "%s", e.msg);
    ck_assert_int_eq(
        fnmatch(test_text("%s/torchelastic_dlaunch_????????", tmpdir()), d.run, FNM_PATHNAME), 0);
    ck_assert_uint_eq(mode_of(d.run), 0700);
    ck_assert_str_eq(log_dir_file(&d, 0, "error.json", path, sizeof(path)), "");
    ck_assert_int_eq(log_dir_attempt(&d, 0, 0, 2, &e), 0);
    log_dir_file(&d, 1, "error.json", first, sizeof(first));
    ck_assert_str_eq(first, test_text("%s/attempt_0.1.error.json", d.run));
    write_file(first, "{}");
    ck_assert_int_eq(log_dir_attempt(&d, 0, 0, 2, &e), 0); /* again: nothing old is in there */
    ck_assert_int_eq(access(first, F_OK), -1);
    write_file(first, "{}");
    ck_assert_int_eq(log_dir_attempt(&d, 1, 0, 2, &e), 0);
    ck_assert_int_eq(access(first, F_OK), 0);
    log_dir_close(&d); /* holds a file: stays */
    ck_assert_int_eq(access(first, F_OK), 0);
    unlink(first);
    char *run = test_text("%s", d.run);
    log_dir_close(&d);
    ck_assert(!is_dir(run) && d.run[0] == '\0');
}
END_TEST

/* Nothing is made that only a living agent would remove, but for what workers write. */
START_TEST(error_files_in_the_directory_of_the_user)
{
    struct log_dir d;
    struct err e = ERR_INIT;
    char path[600];
    char *own = test_text("%s/dlaunch-%u", tmpdir(), (unsigned)geteuid());
    setenv("TMPDIR", tmpdir(), 1);
    ck_assert_msg(log_dir_open_flat(&d, true, &e) == 0, "%s", e.msg);
    ck_assert_str_eq(d.run, own);
    ck_assert_uint_eq(mode_of(own), 0700);
    ck_assert_int_eq(log_dir_attempt(&d, 1, 0, 2, &e), 0);
    log_dir_file(&d, 1, "error.json", path, sizeof(path));
    ck_assert_int_eq(
        fnmatch(test_text("%s/????????.attempt_1.1.error.json", own), path, FNM_PATHNAME), 0);
    log_dir_close(&d);
    ck_assert(rmdir(own) == 0); /* it was empty */
    write_file(own, "");        /* not a directory: as if there were no such thing */
    ck_assert_msg(log_dir_open_flat(&d, true, &e) == 0, "%s", e.msg);
    ck_assert_str_ne(d.run, own);
    log_dir_close(&d);
}
END_TEST

/* As Python's tempfile looks for one. */
START_TEST(an_unusable_temporary_folder_is_skipped)
{
    struct log_dir d;
    struct err e = ERR_INIT;
    write_file(tmppath("file"), "");
    ck_assert_int_eq(mkdir(tmppath("third"), 0700), 0);
    ck_assert_int_eq(chdir(tmpdir()), 0);
    setenv("TMPDIR", tmppath("absent"), 1);
    setenv("TEMP", tmppath("file"), 1);
    for (int relative = 0; relative <= 1; relative++) {
        setenv("TMP", relative ? "third" : tmppath("third"), 1);
        ck_assert_msg(log_dir_open_flat(&d, false, &e) == 0, "%s", e.msg);
        ck_assert_int_eq(
            fnmatch(test_text("%s/third/torchelastic_*", tmpdir()), d.run, FNM_PATHNAME), 0);
        log_dir_close(&d);
        ck_assert_msg(log_dir_open(&d, NULL, "none", &e) == 0, "%s", e.msg);
        ck_assert_int_eq(
            fnmatch(test_text("%s/third/torchelastic_*/none_*", tmpdir()), d.run, FNM_PATHNAME), 0);
        log_dir_close(&d);
    }
    setenv("TMP", "", 1);
    ck_assert_msg(log_dir_open_flat(&d, false, &e) == 0, "%s", e.msg);
    ck_assert_int_eq(fnmatch("/tmp/torchelastic_*", d.run, FNM_PATHNAME), 0);
    log_dir_close(&d);
}
END_TEST

/* A dead agent has left its folder behind; live ones, files and other programs' folders stay. */
START_TEST(sweep_removes_what_dead_agents_left)
{
    struct log_dir dead, live, other;
    struct err e = ERR_INIT;
    setenv("TMPDIR", tmpdir(), 1);
    ck_assert_int_eq(log_dir_open_flat(&dead, false, &e), 0);
    ck_assert_int_eq(log_dir_open_flat(&live, false, &e), 0);
    ck_assert_int_eq(log_dir_open_flat(&other, false, &e), 0);
    const char *foreign = tmppath("torchelastic_abcdefgh"),
               *kept = tmppath("torchelastic_dlaunch_withfile");
    mkdir(foreign, 0700);
    mkdir(kept, 0700);
    write_file(tmppath("torchelastic_dlaunch_withfile/attempt_0.0.error.json"), "{}");
    close(dead.lock_fd); /* as its death would do */
    log_dir_sweep(&live);
    ck_assert(!is_dir(dead.run));
    ck_assert(is_dir(live.run));
    ck_assert(is_dir(other.run));
    ck_assert(is_dir(foreign));
    ck_assert(is_dir(kept));
    log_dir_close(&live);
    log_dir_close(&other);
    ck_assert(!is_dir(live.run));
    ck_assert(!is_dir(other.run));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("log_dir");
    TCase *tc = test_case(s, "log_dir", 10);
    tcase_add_test(tc, layout);
    tcase_add_test(tc, empty_tree_is_removed);
    tcase_add_loop_test(tc, many_starts_leave_no_empty_folders, 1, 2);
    tcase_add_loop_test(tc, many_starts_leave_no_empty_folders, 4, 5);
    tcase_add_test(tc, an_earlier_start_keeps_its_files);
    tcase_add_test(tc, error_files_alone_are_flat);
    tcase_add_test(tc, error_files_in_the_directory_of_the_user);
    tcase_add_test(tc, sweep_removes_what_dead_agents_left);
    tcase_add_test(tc, an_unusable_temporary_folder_is_skipped);
    tcase_add_test(tc, run_ids_are_made_harmless);
    tcase_add_test(tc, clear_errors);
    tcase_add_test(tc, links_of_other_users_are_refused);
    tcase_add_test(tc, folders_of_other_users_are_refused);
    tcase_add_test(tc, files_are_replaced_whole);
    tcase_add_test(tc, a_folder_that_takes_no_file);
    return s;
}

TEST_MAIN(suite)
