/* A job in the background: pid file, log, systemd's notification, dlaunchctl. */
#include "tests/integration/job.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "core/fd.h"
#include "core/netaddr.h"

static char *g_env[4];

static void setup(void)
{
    g_env[0] = test_text("XDG_RUNTIME_DIR=%s", tmpdir());
    g_env[1] = NULL;
}

static void ctl(struct proc *p, int status, char *const args[])
{
    char *argv[12] = {build_path("dlaunchctl")};
    for (int i = 0; args[i]; i++)
        argv[i + 1] = args[i];
    proc_start(p, argv, g_env, 0);
    expect_status(p, status, 20);
}

static pid_t pid_in(const char *path)
{
    return (pid_t)atoi(text_of_file(path));
}

/* Init, whose child it is, may take its time to reap it. */
static bool is_gone(void *pid)
{
    char state = 'Z', path[32];
    snprintf(path, sizeof(path), "/proc/%d/stat", *(pid_t *)pid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%*d %*[^)]) %c", &state) != 1)
        state = 'Z';
    if (f)
        fclose(f);
    return state == 'Z';
}

/* The lock tells whether the file is still in use: an exiting process that has it open may no
 * longer show its descriptors in /proc. */
static bool is_unlocked(void *path)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
}

static void start_in_background(const char *more)
{
    struct proc p;
    dlaunch_start(&p, g_env, "--daemon --pid_file %%T/pid --log_file %%T/log --rdzv_id night %s",
                  more);
    expect_status(&p, 0, 20);
    expect_text(p.err, "running in the background as process ");
    ck_assert_int_eq(pid_in(tmppath("pid")), atoi(strstr(p.err, "as process ") + 11));
    proc_fini(&p);
}

START_TEST(from_start_to_stop)
{
    struct proc p;
    struct stat st;
    start_in_background("--nproc_per_node 2 %W print hello append %T/up pause");
    wait_lines(tmppath("up"), 2, 10);
    pid_t pid = pid_in(tmppath("pid"));
    char *pid_text = test_text("%d", pid);
    ck_assert_int_ne(getsid(pid), getsid(0));
    ctl(&p, 0, ARGV("status"));
    expect_text(p.out, "night");
    expect_text(p.out, "0 of 1");
    proc_fini(&p);
    ctl(&p, 0, ARGV("--json", "-p", pid_text, "status"));
    json_t *j = json_loads(p.out, 0, NULL);
    ck_assert_ptr_nonnull(j);
    ck_assert_int_eq(json_number(j, "pid"), pid);
    ck_assert_str_eq(json_word(j, "state"), "RUNNING");
    ck_assert_int_eq(json_number(j, "world_size"), 2);
    ck_assert_uint_eq(json_array_size(json_object_get(j, "workers")), 2);
    json_decref(j);
    proc_fini(&p);
    /* The socket is its owner's alone. */
    ctl(&p, 0, ARGV("-p", pid_text, "status"));
    proc_fini(&p);
    ck_assert_int_eq(proc_run(&p, ARGV("find", (char *)tmpdir(), "-type", "s"), NULL, 10), 0);
    ck_assert_int_eq(count_text(p.out, "\n"), 1);
    p.out[strcspn(p.out, "\n")] = '\0';
    ck_assert_int_eq(stat(p.out, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
    char *sock = test_keep(xstrdup(p.out));
    proc_fini(&p);
    ctl(&p, 0, ARGV("-p", pid_text, "--wait", "stop"));
    proc_fini(&p);
    wait_until(is_gone, &pid, 5, "the launcher ends");
    ck_assert_int_ne(access(tmppath("pid"), F_OK), 0);
    ck_assert_int_ne(access(sock, F_OK), 0);
    expect_text(text_of_file(tmppath("log")), "hello\nhello\n");
    char host[HOST_MAX];
    ck_assert_int_eq(gethostname(host, sizeof(host)), 0);
    expect_text(text_of_file(tmppath("log")),
                "dlaunch: received dlaunchctl stop: stopping 2 workers, SIGKILL after ");
    expect_words(text_of_file(tmppath("log")),
                 test_text("STOPPED: %s received dlaunchctl stop", host));
    ctl(&p, 1, ARGV("-p", pid_text, "status"));
    proc_fini(&p);
}
END_TEST

START_TEST(a_second_one_is_refused)
{
    struct proc p;
    start_in_background("%W append %T/up pause");
    wait_lines(tmppath("up"), 1, 10);
    pid_t pid = pid_in(tmppath("pid"));
    dlaunch_start(&p, g_env,
                  "--daemon --pid_file %%T/pid --log_file %%T/log2 %%W append %%T/second");
    expect_status(&p, 2, 10);
    expect_text(p.err, test_text("%d, so that job is still running", pid));
    ck_assert_int_ne(access(tmppath("second"), F_OK), 0);
    proc_fini(&p);
    kill(pid, SIGKILL); /* the pid file stays, and holds nobody up when the agent has ended too */
    wait_until(is_unlocked, tmppath("pid"), 5, "guardian and agent end");
    start_in_background("%W append %T/third wait %T/go");
    wait_lines(tmppath("third"), 1, 10);
    pid = pid_in(tmppath("pid"));
    write_file(tmppath("go"), "");
    wait_until(is_gone, &pid, 10, "it ends");
}
END_TEST

static bool stop_ends(void *pid)
{
    struct proc p;
    if (is_gone(pid))
        return true;
    proc_run(&p, ARGV(build_path("dlaunchctl"), "-p", test_text("%d", *(pid_t *)pid), "stop"),
             g_env, 20);
    proc_fini(&p);
    return false;
}

/* stop, and once more: the workers that do not mind are killed. */
START_TEST(stopped_twice)
{
    struct proc p;
    start_in_background("%W trap TERM %T/term append %T/up pause");
    wait_lines(tmppath("up"), 1, 10);
    pid_t pid = pid_in(tmppath("pid"));
    char *job = test_text("%d", pid);
    ctl(&p, 0, ARGV("-p", job, "stop"));
    proc_fini(&p);
    wait_lines(tmppath("term"), 1, 10);
    ck_assert(!is_gone(&pid));
    wait_until(stop_ends, &pid, 10, "stop once more ends it");
    expect_text(text_of_file(tmppath("log")), "killing the workers");
    ck_assert_int_eq(count_lines(tmppath("term")), 1);
}
END_TEST

static bool both_are_listed(void *arg)
{
    struct proc p;
    (void)arg;
    ctl(&p, 0, ARGV("status"));
    bool both = strstr(p.out, "box-a") && strstr(p.out, "box-b");
    proc_fini(&p);
    return both;
}

/* Each is process 1 of its container, and they share the folder of sockets. */
START_TEST(two_containers_share_a_pid)
{
    struct proc p[2], ctl_p;
    if (proc_run(&ctl_p, ARGV("unshare", "-pf", "--mount-proc", "true"), NULL, 10) != 0) {
        test_skip("cannot create a PID namespace: %s", ctl_p.err);
        return;
    }
    proc_fini(&ctl_p);
    for (int i = 0; i < 2; i++)
        proc_start(&p[i],
                   ARGV("unshare", "-pf", "--mount-proc", build_path("dlaunch"), "--rdzv_id",
                        i ? "box-b" : "box-a", build_path("tests/worker"), "exit-on", "TERM", "0",
                        "append", tmppath("up"), "pause"),
                   g_env, 0);
    wait_lines(tmppath("up"), 2, 10);
    wait_until(both_are_listed, NULL, 10, "dlaunchctl sees both");
    ctl(&ctl_p, 1, ARGV("-p", "1", "stop")); /* that number is another process's here */
    proc_fini(&ctl_p);
    char *pid = test_text("%d", agent_of(&p[1])); /* unshare's only child */
    ctl(&ctl_p, 0, ARGV("-p", pid, "status"));
    expect_text(ctl_p.out, test_text("run id box-b, process %s on ", pid));
    proc_fini(&ctl_p);
    ctl(&ctl_p, 0, ARGV("-p", pid, "--wait", "stop"));
    proc_fini(&ctl_p);
    expect_status(&p[1], 128 + SIGTERM, 10);
    ctl(&ctl_p, 0, ARGV("-p", "box-a", "stop"));
    proc_fini(&ctl_p);
    expect_status(&p[0], 128 + SIGTERM, 10);
    for (int i = 0; i < 2; i++)
        proc_fini(&p[i]);
}
END_TEST

/* systemd, Type=notify. */
static int notify_socket(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/notify", tmpdir());
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    struct timeval limit = {(time_t)test_seconds(10), 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    g_env[1] = test_text("NOTIFY_SOCKET=%s", a.sun_path);
    return fd;
}

/* Reads messages until one has `text`; what has come so far in all. */
static void expect_notice(int fd, char *all, size_t cap, const char *text)
{
    size_t len = strlen(all);
    while (!strstr(all, text)) {
        ssize_t n = recv(fd, all + len, cap - len - 2, 0);
        ck_assert_msg(n > 0, "no \"%s\" came; but: %s", text, all);
        len += (size_t)n;
        all[len++] = '\n';
        all[len] = '\0';
    }
}

START_TEST(systemd_is_notified)
{
    struct proc p;
    static char all[65536];
    int fd = notify_socket();
    dlaunch_start(&p, g_env, "%%W env NOTIFY_SOCKET append %%T/up pause");
    expect_notice(fd, all, sizeof(all), "READY=1");
    wait_lines(tmppath("up"), 1, 10);
    proc_kill(&p, SIGTERM);
    expect_notice(fd, all, sizeof(all), "STOPPING=1");
    expect_status(&p, 128 + SIGTERM, 10);
    expect_text(p.out, "NOTIFY_SOCKET unset\n"); /* it is not the workers' business */
    proc_fini(&p);
    close(fd);
}
END_TEST

/* The control socket answers until the loop's last turn, when parts of the status are already
 * freed. */
START_TEST(systemd_is_notified_of_the_end)
{
    struct proc p;
    static char all[65536];
    int fd = notify_socket();
    dlaunch_start(&p, g_env,
                  "--nnodes 1 --rdzv_backend file --rdzv_endpoint %%T/rdzv %%W print well");
    expect_notice(fd, all, sizeof(all), "STOPPING=1");
    expect_text(all, "STATUS=DONE (SUCCEEDED)");
    expect_status(&p, 0, 10);
    proc_fini(&p);
    close(fd);
}
END_TEST

START_TEST(a_log_file_that_cannot_be)
{
    struct proc p;
    dlaunch_start(&p, g_env, "--daemon --log_file %%T/none/log /bin/true");
    expect_status(&p, 2, 20);
    expect_text(p.err, "/none/log: No such file or directory");
    expect_no_text(p.err, "background");
    proc_fini(&p);
}
END_TEST

/* The first thing that a worker does: its launcher listens already. Not in the background, where
 * the command waits until the job is set up. */
START_TEST(a_worker_finds_its_launcher)
{
    const char *id = test_text("first-%d", (int)getpid());
    for (int i = 0; i < 20; i++) {
        struct proc p;
        dlaunch_start(&p, g_env, "--rdzv_id %s %s -p %s status", id, build_path("dlaunchctl"), id);
        expect_status(&p, 0, 20);
        expect_text(p.out, test_text("run id %s, process ", id));
        proc_fini(&p);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("background");
    TCase *tc = test_case(s, "background", 60);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, from_start_to_stop);
    tcase_add_test(tc, a_log_file_that_cannot_be);
    tcase_add_test(tc, a_second_one_is_refused);
    tcase_add_test(tc, stopped_twice);
    tcase_add_test(tc, two_containers_share_a_pid);
    tcase_add_test(tc, a_worker_finds_its_launcher);
    tcase_add_test(tc, systemd_is_notified);
    tcase_add_test(tc, systemd_is_notified_of_the_end);
    return s;
}

TEST_MAIN(suite)
