/* Files that users name in options: what other users can plant in a shared folder is refused,
 * nothing hangs, and everything that people legitimately name works. */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/base/fs.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/named_file.h"
#include "launcher/control/daemon.h"

#define STRANGER 12345

/* Opens a file in each way that an option does. Returns 0 or -errno. */

static int open_plain(const char *path, struct err *e)
{
    _cleanup_fd_ int fd = named_file_open(path, O_WRONLY | O_CREAT | O_APPEND, 0644, e);
    return fd < 0 ? fd : fd_write_all(fd, "mine\n", 5);
}

static int open_log_file(const char *path, struct err *e)
{
    struct daemon d = DAEMON_INIT;
    int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    int rc = daemon_log_to(&d, path, e);
    if (rc == 0)
        rc = fd_write_all(STDERR_FILENO, "mine\n", 5);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    return rc;
}

static int open_pid_file(const char *path, struct err *e)
{
    struct pid_file p;
    int rc = pid_file_open(&p, path, e);
    if (rc == 0)
        rc = pid_file_write(&p, e);
    pid_file_close(&p);
    return rc;
}

static int open_report(const char *path, struct err *e)
{
    return fs_replace_file(path, "mine\n", 5, e);
}

static const struct way {
    const char *name;
    int (*open)(const char *path, struct err *e);
} ways[] = {{"named_file_open", open_plain},
            {"--log_file", open_log_file},
            {"--pid_file", open_pid_file},
            {"--report", open_report}};

static const char *shared, *victim;

static void setup(void)
{
    if (geteuid() != 0)
        return;
    shared = tmppath("shared");
    victim = tmppath("victim");
    ck_assert_int_eq(chmod(tmpdir(), 0755), 0);
    ck_assert_int_eq(mkdir(shared, 0777), 0);
    ck_assert_int_eq(chmod(shared, 01777), 0);
    write_file(victim, "precious\n");
}

/* Runs act(path) as another user. */
static void as_stranger(void (*act)(const char *path), const char *path)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        umask(0);
        if (setresgid(STRANGER, STRANGER, STRANGER) < 0 ||
            setresuid(STRANGER, STRANGER, STRANGER) < 0)
            _exit(1);
        act(path);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    struct stat st;
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert_uint_eq(st.st_uid, STRANGER);
}

static void plant_link(const char *path)
{
    if (symlink(victim, path) < 0)
        _exit(2);
}

static void plant_dangling_link(const char *path)
{
    if (symlink(test_text("%s.new", victim), path) < 0)
        _exit(2);
}

static void plant_file(const char *path)
{
    close(open(path, O_WRONLY | O_CREAT, 0666));
}

static void plant_fifo(const char *path)
{
    if (mkfifo(path, 0666) < 0)
        _exit(2);
}

static void plant_folder(const char *path)
{
    if (mkdir(path, 0777) < 0 || symlink(victim, test_text("%s/inside", path)) < 0)
        _exit(2);
}

static void check_refused(const struct way *w, const char *path)
{
    struct err e = ERR_INIT;
    int rc = w->open(path, &e);
    ck_assert_msg(rc == -EPERM, "%s, %s: returned %d, %s", w->name, path, rc, e.msg);
    ck_assert_msg(strstr(e.msg, path) && strstr(e.msg, "of another user (uid 12345)"), "%s: %s",
                  w->name, e.msg);
    ck_assert_str_eq(test_keep(read_file(victim)), "precious\n");
    ck_assert(access(test_text("%s.new", victim), F_OK) < 0);
}

static void expect_kind(const struct way *w, const char *path, const char *kind)
{
    struct err e = ERR_INIT;
    w->open(path, &e);
    ck_assert_msg(strstr(e.msg, kind), "%s: %s", w->name, e.msg);
}

START_TEST(planted_by_another_user)
{
    static void (*const plants[])(const char *) = {plant_link, plant_dangling_link, plant_file,
                                                   plant_fifo};
    if (geteuid() != 0) {
        test_skip("needs root, to be two users");
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(plants); i++) {
        const char *path = test_text("%s/plant%zu", shared, i);
        as_stranger(plants[i], path);
        check_refused(&ways[_i], path);
        struct stat st;
        ck_assert(lstat(path, &st) == 0 && st.st_uid == STRANGER);
        ck_assert(S_ISLNK(st.st_mode) || st.st_size == 0);
    }
    const char *folder = test_text("%s/folder", shared);
    as_stranger(plant_folder, folder);
    check_refused(&ways[_i], test_text("%s/inside", folder));
    check_refused(&ways[_i], folder);
    expect_kind(&ways[_i], folder, "is a folder of another user");
    /* One's own link does not make the other user's one behind it safe. */
    ck_assert_int_eq(symlink(test_text("%s/plant0", shared), tmppath("own")), 0);
    struct err e = ERR_INIT;
    int rc = ways[_i].open(tmppath("own"), &e);
    ck_assert_msg(rc == -EPERM || (rc == -ELOOP && ways[_i].open == open_pid_file), "%s", e.msg);
    ck_assert_str_eq(test_keep(read_file(victim)), "precious\n");
}
END_TEST

/* A process holds the FIFO open and never reads: opening succeeds, and writing would wait forever.
 */
START_TEST(a_fifo_without_a_reader)
{
    struct err e = ERR_INIT;
    if (geteuid() != 0) {
        test_skip("needs root, to be two users");
        return;
    }
    const char *path = test_text("%s/held", shared);
    as_stranger(plant_fifo, path);
    _cleanup_fd_ int held = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    char full[4096] = {0};
    while (write(held, full, sizeof(full)) > 0)
        ;
    ck_assert_int_eq(ways[_i].open(path, &e), -EPERM);
    /* A report to one's own FIFO gives up. */
    ck_assert_int_eq(chown(path, 0, 0), 0);
    if (ways[_i].open == open_report)
        ck_assert_int_eq(ways[_i].open(path, &e), -ETIMEDOUT);
}
END_TEST

START_TEST(usual_files_work)
{
    struct err e = ERR_INIT;
    struct stat st;
    const char *file = tmppath("file"), *link = tmppath("link"), *fifo = tmppath("fifo");
    bool pid = ways[_i].open == open_pid_file;
    int rc;
    ck_assert_msg(ways[_i].open(file, &e) == 0, "%s", e.msg);
    ck_assert_msg(pid || (stat(file, &st) == 0 && st.st_size == 5), "%s", ways[_i].name);
    ck_assert_int_eq(symlink("file", link), 0);
    rc = ways[_i].open(link, &e);
    ck_assert_int_eq(rc, pid ? -ELOOP : 0);
    ck_assert(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
    ck_assert_int_eq(symlink(tmppath("loop"), tmppath("loop")), 0);
    ck_assert_int_eq(ways[_i].open(tmppath("loop"), &e), -ELOOP);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    rc = ways[_i].open(fifo, &e); /* does not wait for a reader */
    ck_assert_int_eq(rc, pid ? -EINVAL : -ENXIO);
    _cleanup_fd_ int reader = open(fifo, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    rc = ways[_i].open(fifo, &e);
    ck_assert_msg(rc == (pid ? -EINVAL : 0), "%s", e.msg);
    char text[8] = "";
    if (!pid)
        ck_assert_int_eq(read(reader, text, sizeof(text)), 5);
    ck_assert_int_eq(ways[_i].open("/dev/null", &e), pid ? -EINVAL : 0);
    ck_assert(stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode));
    ck_assert_int_eq(ways[_i].open(tmpdir(), &e), -EISDIR);
    ck_assert_int_eq(ways[_i].open(test_text("%s/", file), &e), pid ? -ENOENT : -ENOTDIR);
    ck_assert_int_eq(ways[_i].open(tmppath("no/such"), &e), -ENOENT);
    ck_assert_int_eq(ways[_i].open(test_text("%s/../%s", tmpdir(), strrchr(tmpdir(), '/') + 1), &e),
                     -EISDIR);
}
END_TEST

/* /dev/stdout: a link to /proc/self/fd/1, which leads to a pipe or to a file that is being written.
 */
START_TEST(standard_output_by_its_name)
{
    struct err e = ERR_INIT;
    int pipes[2], out = dup(STDOUT_FILENO);
    char text[8] = "";
    if (ways[_i].open == open_pid_file)
        return;
    ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
    ck_assert_int_eq(symlink("/proc/self/fd/1", tmppath("stdout")), 0);
    dup2(pipes[1], STDOUT_FILENO);
    int rc = ways[_i].open(tmppath("stdout"), &e);
    if (rc == 0)
        ck_assert_int_eq(read(pipes[0], text, sizeof(text)), 5);
    const char *file = tmppath("file");
    write_file(file, "before\n");
    dup2(open(file, O_WRONLY | O_APPEND | O_CLOEXEC), STDOUT_FILENO);
    int rc2 = rc < 0 ? rc : ways[_i].open("/dev/stdout", &e);
    dup2(out, STDOUT_FILENO);
    ck_assert_msg(rc2 == 0, "%s", e.msg);
    ck_assert_str_eq(test_keep(read_file(file)), "before\nmine\n");
}
END_TEST

/* As /tmp is: the sticky folder is root's, the file its user's. */
START_TEST(own_files_in_a_shared_folder)
{
    struct err e = ERR_INIT;
    if (geteuid() != 0) {
        test_skip("needs root, to be two users");
        return;
    }
    const char *file = test_text("%s/log", shared), *link = test_text("%s/link", shared);
    ck_assert_int_eq(seteuid(STRANGER), 0);
    for (int again = 0; again < 2; again++)
        ck_assert_msg(ways[_i].open(file, &e) == 0, "%s", e.msg);
    ck_assert_int_eq(symlink("log", link), 0);
    int rc = ways[_i].open(link, &e);
    ck_assert_msg(rc == 0 || ways[_i].open == open_pid_file, "%s", e.msg);
    ck_assert_int_eq(seteuid(0), 0);
    /* As Kubernetes' /dev/termination-log: root's file that everybody may write to. */
    const char *dev = tmppath("dev");
    ck_assert_int_eq(mkdir(dev, 0755), 0);
    const char *termination = test_text("%s/termination-log", dev);
    write_file(termination, "");
    ck_assert_int_eq(chmod(termination, 0666), 0);
    ck_assert_int_eq(seteuid(STRANGER), 0);
    rc = ways[_i].open(termination, &e);
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_msg(rc == 0, "%s", e.msg);
    /* Links of an administrator who is not root, in a folder where only that user writes. */
    const char *project = tmppath("project");
    ck_assert_int_eq(mkdir(project, 0755), 0);
    ck_assert_int_eq(symlink(tmppath("file"), test_text("%s/log", project)), 0);
    ck_assert_int_eq(lchown(test_text("%s/log", project), STRANGER, STRANGER), 0);
    ck_assert_int_eq(chown(project, STRANGER, STRANGER), 0);
    rc = ways[_i].open(test_text("%s/log", project), &e);
    ck_assert_msg(rc == 0 || ways[_i].open == open_pid_file, "%s", e.msg);
}
END_TEST

/* protected_hardlinks: another user gives one of this user's files a second name. */
START_TEST(hard_links_in_a_shared_folder)
{
    struct err e = ERR_INIT;
    if (geteuid() != 0) {
        test_skip("needs root, to make a shared folder");
        return;
    }
    const char *path = test_text("%s/hard", shared);
    ck_assert_int_eq(link(victim, path), 0);
    ck_assert_int_eq(ways[_i].open(path, &e), -EPERM);
    ck_assert_ptr_nonnull(strstr(e.msg, "hard link"));
    ck_assert_str_eq(test_keep(read_file(victim)), "precious\n");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("named_file");
    TCase *tc = test_case(s, "named_file", 20);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_loop_test(tc, planted_by_another_user, 0, ARRAY_LEN(ways));
    tcase_add_loop_test(tc, a_fifo_without_a_reader, 0, ARRAY_LEN(ways));
    tcase_add_loop_test(tc, usual_files_work, 0, ARRAY_LEN(ways));
    tcase_add_loop_test(tc, standard_output_by_its_name, 0, ARRAY_LEN(ways));
    tcase_add_loop_test(tc, own_files_in_a_shared_folder, 0, ARRAY_LEN(ways));
    tcase_add_loop_test(tc, hard_links_in_a_shared_folder, 0, ARRAY_LEN(ways));
    return s;
}

TEST_MAIN(suite)
