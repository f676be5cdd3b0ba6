/* Detaching, the pid file, and what systemd is told. */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "launcher/control/daemon.h"

static char g_said[1024];
/* Made before anything is forked: the folder is a process's own. */
static const char *pid_path, *log_path, *done_path, *gone_path;

static void setup(void)
{
    pid_path = tmppath("pid");
    log_path = tmppath("log");
    done_path = tmppath("done");
    gone_path = tmppath("gone");
}

static void keep_line(void *arg, const char *line, size_t len)
{
    (void)arg;
    snprintf(g_said, sizeof(g_said), "%.*s", (int)len, line);
}

/* ------------------------------------------------------------------------------------- pid file */

START_TEST(pid_file_exists_as_long_as_the_job)
{
    struct pid_file p;
    struct err e = ERR_INIT;
    char want[32];
    ck_assert_msg(pid_file_open(&p, pid_path, &e) == 0, "%s", e.msg);
    ck_assert_msg(pid_file_write(&p, &e) == 0, "%s", e.msg);
    char *text = read_file(pid_path);
    snprintf(want, sizeof(want), "%d\n", (int)getpid());
    ck_assert_str_eq(text, want);
    free(text);
    struct pid_file other;
    ck_assert_int_eq(pid_file_open(&other, pid_path, &e), -EBUSY);
    snprintf(want, sizeof(want), "is locked by process %d", (int)getpid());
    ck_assert_msg(strstr(e.msg, want), "%s", e.msg);
    ck_assert_int_eq(truncate(pid_path, 0), 0); /* not written yet */
    ck_assert_int_eq(pid_file_open(&other, pid_path, &e), -EBUSY);
    ck_assert_msg(strstr(e.msg, "is locked by another process"), "%s", e.msg);
    pid_file_close(&other); /* never open: removes nothing */
    ck_assert_int_eq(access(pid_path, F_OK), 0);
    pid_file_close(&p);
    ck_assert(access(pid_path, F_OK) < 0);
    pid_file_close(&p);
    struct pid_file none = {.fd = -1};
    ck_assert_int_eq(pid_file_write(&none, &e), 0);
}
END_TEST

/* The holder was killed: its file says so, and holds up nobody. */
START_TEST(pid_file_left_behind)
{
    struct pid_file p;
    struct err e = ERR_INIT;
    int ready[2], status;
    char c;
    ck_assert_int_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        pid_file_open(&p, pid_path, NULL);
        pid_file_write(&p, NULL);
        fd_write_all(ready[1], "x", 1);
        pause();
    }
    ck_assert_int_eq(read(ready[0], &c, 1), 1);
    ck_assert_int_eq(pid_file_open(&p, pid_path, &e), -EBUSY);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    log_set_writer(keep_line, NULL);
    ck_assert_msg(pid_file_open(&p, pid_path, &e) == 0, "%s", e.msg);
    char want[80];
    snprintf(want, sizeof(want), "pid of process %d", (int)pid);
    ck_assert_msg(strstr(g_said, want), "%s", g_said);
    pid_file_close(&p);
}
END_TEST

START_TEST(pid_file_of_another_is_not_removed)
{
    struct pid_file p;
    ck_assert_int_eq(pid_file_open(&p, pid_path, NULL), 0);
    unlink(pid_path);
    write_file(pid_path, "1\n");
    pid_file_close(&p);
    ck_assert_int_eq(access(pid_path, F_OK), 0);
}
END_TEST

START_TEST(pid_file_mistakes)
{
    struct pid_file p;
    struct err e = ERR_INIT;
    char big[600];
    ck_assert_int_eq(pid_file_open(&p, tmppath("no/where"), &e), -ENOENT);
    ck_assert_int_eq(pid_file_open(&p, tmpdir(), &e), -EISDIR);
    ck_assert_int_eq(symlink("/etc/passwd", tmppath("link")), 0);
    ck_assert_int_eq(pid_file_open(&p, tmppath("link"), &e), -ELOOP);
    static const char *const foreign[] = {
        "my notes\n", "12 apples\n", "-5\n",
        "0\n",        "\n",          "1234567890123456789012345678901234567890\n"};
    for (size_t i = 0; i < ARRAY_LEN(foreign); i++) {
        write_file(tmppath("notes"), foreign[i]);
        ck_assert_int_eq(pid_file_open(&p, tmppath("notes"), &e), -EINVAL);
        ck_assert_msg(strstr(e.msg, "exists and is not a pid file"), "%s", e.msg);
        pid_file_close(&p);
        char *still = read_file(tmppath("notes"));
        ck_assert_str_eq(still, foreign[i]);
        free(still);
    }
    ck_assert_int_eq(mkfifo(tmppath("fifo"), 0600), 0);
    ck_assert_int_eq(pid_file_open(&p, tmppath("fifo"), &e), -EINVAL);
    memset(big, 'x', sizeof(big));
    big[sizeof(big) - 1] = '\0';
    ck_assert_int_eq(pid_file_open(&p, big, &e), -ENAMETOOLONG);
    ck_assert_int_eq(p.fd, -1);
}
END_TEST

/* ------------------------------------------------------------------------------------ detaching */

/* Forked processes must not report to Check. */
static void touch(const char *path)
{
    close(open(path, O_WRONLY | O_CREAT, 0600));
}

static bool exists(void *path)
{
    return access(path, F_OK) == 0;
}

/* Runs body() in the background of a command; returns the command's exit status, and what it showed
 * in *shown. */
static int detached(void (*body)(struct daemon *d), char **shown)
{
    int err[2], status;
    ck_assert_int_eq(pipe(err), 0);
    pid_t pid = fork();
    if (pid == 0) { /* the command */
        struct daemon d;
        struct err e = ERR_INIT;
        int exit_status = 99;
        dup2(err[1], STDERR_FILENO);
        close(err[0]);
        close(err[1]);
        int rc = daemon_detach(&d, &exit_status, &e);
        if (rc != 0)
            _exit(rc < 0 ? 98 : exit_status);
        log_set_writer(daemon_say, &d);
        body(&d);
        _exit(0);
    }
    close(err[1]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    char text[4096];
    size_t len = 0;
    fd_set_nonblock(err[0], true);
    for (ssize_t n; (n = read(err[0], text + len, sizeof(text) - 1 - len)) > 0;)
        len += (size_t)n;
    text[len] = '\0';
    *shown = xstrdup(text);
    close(err[0]);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void fail_early(struct daemon *d)
{
    (void)d;
    log_error("the port is in use");
    _exit(2);
}

static void die_early(struct daemon *d)
{
    (void)d;
    raise(SIGKILL);
}

static void fail_when_logged(struct daemon *d)
{
    log_notice("output in a file");
    daemon_log_to(d, log_path, NULL);
    log_error("a late error");
    _exit(3);
}

START_TEST(errors_are_shown_and_returned)
{
    char *shown;
    ck_assert_int_eq(detached(fail_early, &shown), 2);
    ck_assert_str_eq(shown, "dlaunch: the port is in use\n");
    free(shown);
    ck_assert_int_eq(detached(die_early, &shown), 128 + SIGKILL);
    ck_assert_str_eq(shown, "");
    free(shown);
    ck_assert_int_eq(detached(fail_when_logged, &shown), 3);
    ck_assert_str_eq(shown, "dlaunch: output in a file\ndlaunch: a late error\n");
    free(shown);
    shown = read_file(log_path);
    ck_assert_str_eq(shown, "dlaunch: a late error\n");
    free(shown);
}
END_TEST

static void become_ready(struct daemon *d)
{
    struct stat in, null;
    daemon_log_to(d, log_path, NULL);
    log_notice("up");
    daemon_ready(d);
    daemon_ready(d);
    printf("stdout too\n");
    fflush(stdout);
    /* in a session of its own, nothing to read */
    bool ok = getsid(0) == getpid() && fstat(0, &in) == 0 && stat("/dev/null", &null) == 0 &&
              in.st_rdev == null.st_rdev;
    log_notice(ok ? "detached" : "not detached");
    touch(done_path);
}

START_TEST(ready_lets_the_command_go)
{
    char *shown;
    ck_assert_int_eq(detached(become_ready, &shown), 0);
    ck_assert_str_eq(shown, "dlaunch: up\n");
    free(shown);
    wait_until(exists, (char *)done_path, 10, "the background process goes on");
    shown = read_file(log_path);
    ck_assert_str_eq(shown, "dlaunch: up\nstdout too\ndlaunch: detached\n");
    free(shown);
}
END_TEST

/* A process that still has the other end, as the guardian has, may speak when nobody reads. */
static void speak_late(struct daemon *d)
{
    struct daemon kept = *d;
    daemon_log_to(d, log_path, NULL);
    kept.logged = true;
    kept.ready = dup(d->ready);
    daemon_ready(d);
    log_set_writer(daemon_say, &kept);
    for (int i = 0; i < 10000 && !exists((char *)gone_path); i++)
        test_poll_pause();
    log_notice("alive");
    touch(done_path);
}

START_TEST(the_starting_process_has_exited)
{
    char *shown;
    ck_assert_int_eq(detached(speak_late, &shown), 0);
    free(shown);
    write_file(gone_path, "");
    wait_until(exists, (char *)done_path, 10, "the background process survives");
    shown = read_file(log_path);
    ck_assert_str_eq(shown, "dlaunch: alive\n");
    free(shown);
}
END_TEST

START_TEST(log_file_mistakes)
{
    struct daemon d = DAEMON_INIT;
    struct err e = ERR_INIT;
    ck_assert_int_eq(daemon_log_to(&d, tmppath("no/where"), &e), -ENOENT);
    ck_assert_ptr_nonnull(strstr(e.msg, "/no/where: No such file"));
    ck_assert(!d.logged);
}
END_TEST

/* -------------------------------------------------------------------------------------- systemd */

static int listener(const char *path, size_t len)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, path, len);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(
        bind(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)),
        0);
    return fd;
}

static void check_message(int fd, const char *want)
{
    char got[256] = "";
    ck_assert_int_ge(recv(fd, got, sizeof(got) - 1, 0), 0);
    ck_assert_str_eq(got, want);
}

/* Without a terminal the system's log gets the warning. */
START_TEST(log_file_that_fails)
{
    struct daemon d = DAEMON_INIT;
    char *path = tmppath("syslog"), *shown = tmppath("shown");
    _cleanup_fd_ int fd = listener(path, strlen(path));
    daemon_warn(&d, path, "not the log file"); /* it stands on standard error */
    d.logged = true;
    daemon_warn(&d, path, "job.log: it\nfails");
    check_message(fd, test_text("<12>dlaunch[%d]: job.log: it\\x0afails", (int)getpid()));
    d.terminal = open(shown, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    daemon_warn(&d, path, "job.log: it fails");
    ck_assert_int_lt(recv(fd, &(char){0}, 1, 0), 0);
    ck_assert_str_eq(test_keep(read_file(shown)), "dlaunch: job.log: it fails\n");
    close_fd(&d.terminal);
}
END_TEST

START_TEST(systemd_is_notified)
{
    struct notify n;
    const char *path = tmppath("notify");
    int fd = listener(path, strlen(path));
    setenv("NOTIFY_SOCKET", path, 1);
    notify_open(&n);
    ck_assert_ptr_null(getenv("NOTIFY_SOCKET"));
    notify_send(&n, "READY=1");
    check_message(fd, "READY=1");
    notify_send(&n, "STATUS=4 workers");
    check_message(fd, "STATUS=4 workers");
    close(fd);
    notify_send(&n, "STOPPING=1"); /* gone: no signal, no error */
    notify_close(&n);
    notify_send(&n, "STOPPING=1");

    char name[64], env[64];
    int len = snprintf(name, sizeof(name), "_dlaunch-test-%d", (int)getpid());
    snprintf(env, sizeof(env), "@%s", name + 1);
    name[0] = '\0'; /* the abstract namespace */
    fd = listener(name, (size_t)len);
    setenv("NOTIFY_SOCKET", env, 1);
    notify_open(&n);
    notify_send(&n, "READY=1");
    check_message(fd, "READY=1");
    notify_close(&n);
    close(fd);
}
END_TEST

START_TEST(no_process_to_notify)
{
    static const char *const paths[] = {"", "/", "relative", "/nonexistent/socket"};
    struct notify n;
    unsetenv("NOTIFY_SOCKET");
    notify_open(&n);
    ck_assert_int_eq(n.fd, -1);
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        setenv("NOTIFY_SOCKET", paths[i], 1);
        notify_open(&n);
        ck_assert_int_eq(n.fd, -1);
    }
    char big[300];
    memset(big, 'x', sizeof(big));
    big[0] = '/';
    big[sizeof(big) - 1] = '\0';
    setenv("NOTIFY_SOCKET", big, 1);
    notify_open(&n);
    ck_assert_int_eq(n.fd, -1);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("daemon");
    TCase *tc = test_case(s, "daemon", 30);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, pid_file_exists_as_long_as_the_job);
    tcase_add_test(tc, pid_file_left_behind);
    tcase_add_test(tc, pid_file_of_another_is_not_removed);
    tcase_add_test(tc, pid_file_mistakes);
    tcase_add_test(tc, errors_are_shown_and_returned);
    tcase_add_test(tc, ready_lets_the_command_go);
    tcase_add_test(tc, the_starting_process_has_exited);
    tcase_add_test(tc, log_file_mistakes);
    tcase_add_test(tc, log_file_that_fails);
    tcase_add_test(tc, systemd_is_notified);
    tcase_add_test(tc, no_process_to_notify);
    return s;
}

TEST_MAIN(suite)
