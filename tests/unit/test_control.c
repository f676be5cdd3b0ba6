/* The control socket, its folder, and dlaunchctl's view of it. */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "launcher/control/control.h"
#include "launcher/control/control_dir.h"
#include "tests/lib/loop.h"

#define PID 4242

static uv_loop_t loop;
static struct control *control;
static struct guardian_page page;
static bool closed;
static int stops, nworkers;
static unsigned client_ms;
static struct agent_worker_status workers[4096];

static void get_status(void *arg, struct agent_status *out)
{
    ck_assert_ptr_eq(arg, &stops);
    ck_assert(!closed);
    *out = (struct agent_status){.state = "RUNNING",
                                 .health = "HEALTHY",
                                 .elapsed = 12.5,
                                 .nworkers = nworkers,
                                 .workers = workers,
                                 .rdzv = {.phase = "running",
                                          .gen = {0xfedcba9876543210u, 3},
                                          .group_rank = 1,
                                          .nnodes = 2,
                                          .world_size = 8,
                                          .restart_count = 1,
                                          .coordinator = true,
                                          .endpoint = "10.0.0.1:29500"}};
}

static void stop(void *arg, const char *why)
{
    ck_assert_ptr_eq(arg, &stops);
    ck_assert_str_eq(why, "dlaunchctl stop");
    stops++;
}

static struct job_spec job = {.host = "node-a",
                              .name = "./tr\xff\x1b"
                                      "ain",
                              .rdzv = {.run_id = "my job", .max_restarts = 3}};

static int open_control(struct err *e)
{
    struct control_opts opts = {.pid = PID,
                                .job = &job,
                                .page = &page,
                                .get_status = get_status,
                                .stop = stop,
                                .arg = &stops,
                                .client_ms = client_ms};
    return control_open(&control, &loop, &opts, e);
}

static void setup(void)
{
    setenv("XDG_RUNTIME_DIR", tmpdir(), 1);
    loop_setup(&loop);
    nworkers = 2;
    workers[0] =
        (struct agent_worker_status){.rank = 2, .pid = 100, .state = "running", .seconds = 1.5};
    workers[1] = (struct agent_worker_status){
        .rank = 3, .local_rank = 1, .pid = 101, .state = "failed", .signal = 11, .seconds = 0.5};
    struct err e = ERR_INIT;
    ck_assert_msg(open_control(&e) == 0, "%s", e.msg);
}

static void on_closed(void *arg)
{
    (void)arg;
    closed = true;
}

static void teardown(void)
{
    if (!closed)
        control_close(control, on_closed, NULL);
    loop_run_until(&loop, &closed, 5, "the control socket closes");
    loop_teardown(&loop);
    ck_assert_str_eq(page.unlink_path[0], "");
}

static int client(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/dlaunch/%d.sock", tmpdir(), PID);
    ck_assert_msg(connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0, "%s: %s", a.sun_path,
                  strerror(errno));
    return fd;
}

static void send_text(int fd, const char *text)
{
    ck_assert_int_eq(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Runs the loop and returns what it receives up to a newline or the end. */
static char *receive(int fd)
{
    size_t len = 0, cap = 1 << 20;
    char *text = xmalloc(cap);
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(10) * 1e9);
    for (;;) {
        uv_run(&loop, UV_RUN_NOWAIT);
        ssize_t n = read(fd, text + len, cap - len - 1);
        ck_assert_msg(mono_ns() < end, "no answer");
        if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {fd, POLLIN, 0};
            poll(&p, 1, 1);
            continue;
        }
        len += n > 0 ? (size_t)n : 0;
        if (n <= 0 || text[len - 1] == '\n')
            break;
    }
    text[len] = '\0';
    return text;
}

static char *ask(const char *command)
{
    int fd = client();
    send_text(fd, command);
    char *text = receive(fd);
    close(fd);
    return text;
}

START_TEST(status)
{
    char *text = ask("status\n");
    json_t *j = json_loads(text, 0, NULL), *w;
    ck_assert_msg(j, "%s", text);
    ck_assert_int_eq(json_integer_value(json_object_get(j, "pid")), PID);
    ck_assert_str_eq(json_string_value(json_object_get(j, "version")), DLAUNCH_VERSION);
    ck_assert_str_eq(json_string_value(json_object_get(j, "program")), "./tr\\xff\\x1bain");
    ck_assert_str_eq(json_string_value(json_object_get(j, "run_id")), "my job");
    ck_assert_str_eq(json_string_value(json_object_get(j, "host")), "node-a");
    ck_assert_str_eq(json_string_value(json_object_get(j, "state")), "RUNNING");
    ck_assert_str_eq(json_string_value(json_object_get(j, "health")), "HEALTHY");
    ck_assert_str_eq(json_string_value(json_object_get(j, "generation")), "fedcba9876543210.3");
    ck_assert_str_eq(json_string_value(json_object_get(j, "endpoint")), "10.0.0.1:29500");
    ck_assert_int_eq(json_integer_value(json_object_get(j, "node")), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(j, "restarts")), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(j, "max_restarts")), 3);
    ck_assert(json_is_true(json_object_get(j, "coordinator")));
    ck_assert(json_real_value(json_object_get(j, "elapsed_s")) == 12.5);
    json_t *list = json_object_get(j, "workers");
    ck_assert_uint_eq(json_array_size(list), 2);
    w = json_array_get(list, 0);
    ck_assert_int_eq(json_integer_value(json_object_get(w, "rank")), 2);
    ck_assert_int_eq(json_integer_value(json_object_get(w, "pid")), 100);
    ck_assert_ptr_null(json_object_get(w, "exit_code"));
    w = json_array_get(list, 1);
    ck_assert_int_eq(json_integer_value(json_object_get(w, "signal")), 11);
    ck_assert_ptr_null(json_object_get(w, "exit_code"));
    json_decref(j);
    free(text);
}
END_TEST

START_TEST(stopping)
{
    char *text = ask("1 stop\n");
    ck_assert_str_eq(text, "{\"stopping\":true}\n");
    ck_assert_int_eq(stops, 1);
    free(text);
    text = ask("1 stop\n");
    ck_assert_int_eq(stops, 2);
    free(text);
}
END_TEST

/* Of another build: it is told so, whatever it asks for but the status, which says it, too. */
START_TEST(another_protocol)
{
    static const char *const words[] = {"stop\n",     "\n",         "2 stop\n", "2 events 0\n",
                                        "2 follow\n", "2 stacks\n", "2\n",      "3 kill\n"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        char *text = ask(words[i]);
        char theirs[] = "(control 0, not 1)";
        theirs[9] = words[i][0] >= '0' && words[i][0] <= '9' ? words[i][0] : '0';
        ck_assert_msg(strstr(text, "\"control\":1") && strstr(text, "\"error\":"), "%s", text);
        ck_assert_msg(strstr(text, theirs), "%s", text);
        free(text);
    }
    ck_assert_int_eq(stops, 0);
    static const char *const asks[] = {"status\n", "1 status\n", "2 status\n"};
    for (size_t i = 0; i < ARRAY_LEN(asks); i++) {
        char *text = ask(asks[i]);
        ck_assert_msg(strstr(text, "\"control\":1") && strstr(text, "RUNNING"), "%s", text);
        free(text);
    }
}
END_TEST

START_TEST(unknown_commands)
{
    static const char *const words[] = {"1 \n", "1 stop \n", "1 STOP\n", "1 help\n", "1 stop\r\n"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        char *text = ask(words[i]);
        ck_assert_str_eq(text, "{\"error\":\"unknown command (status or stop)\"}\n");
        free(text);
    }
    ck_assert_int_eq(stops, 0);
}
END_TEST

START_TEST(several_requests_on_one_connection)
{
    int fd = client();
    for (int i = 0; i < 20; i++) {
        send_text(fd, "sta");
        loop_turns(&loop, 2);
        send_text(fd, "tus\n");
        char *text = receive(fd);
        ck_assert_ptr_nonnull(strstr(text, "\"RUNNING\""));
        free(text);
    }
    close(fd);
    loop_turns(&loop, 3);
}
END_TEST

START_TEST(many_workers)
{
    nworkers = 4096;
    for (int i = 0; i < nworkers; i++)
        workers[i] = (struct agent_worker_status){
            .rank = i, .local_rank = i, .pid = i, .state = "running", .seconds = 1};
    char *text = ask("status\n");
    json_t *j = json_loads(text, 0, NULL);
    ck_assert_uint_eq(json_array_size(json_object_get(j, "workers")), 4096);
    json_decref(j);
    free(text);
}
END_TEST

/* Long lines, garbage, half lines, silent ones, those that never read: nobody is disturbed, and the
 * number that is served at a time has a bound. */
START_TEST(hostile_clients)
{
    char big[4096];
    int silent[CONTROL_CLIENTS_MAX], fd, extra;
    memset(big, 'x', sizeof(big));
    for (int i = 0; i < 50; i++) {
        fd = client();
        send(fd, big, sizeof(big), MSG_NOSIGNAL);
        char *text = receive(fd); /* closed without an answer */
        ck_assert_str_eq(text, "");
        free(text);
        close(fd);
    }
    fd = client();
    send(fd, "stop", 4, 0); /* no newline: not a command */
    close(fd);
    loop_turns(&loop, 5);
    ck_assert_int_eq(stops, 0);
    fd = client();
    send(fd, "sta\0tus\n", 8, 0);
    char *text = receive(fd);
    ck_assert_ptr_nonnull(strstr(text, "error"));
    free(text);
    close(fd);
    loop_turns(&loop, 5);

    for (int i = 0; i < CONTROL_CLIENTS_MAX; i++)
        silent[i] = client();
    loop_turns(&loop, 5);
    extra = client();
    text = receive(extra); /* one too many */
    ck_assert_str_eq(text, "");
    free(text);
    close(extra);
    close(silent[0]);
    loop_turns(&loop, 5);
    text = ask("status\n");
    ck_assert_ptr_nonnull(strstr(text, "RUNNING"));
    free(text);
    for (int i = 1; i < CONTROL_CLIENTS_MAX; i++)
        close(silent[i]);
    loop_turns(&loop, 5);

    /* Asks for a large answer and never reads it. */
    nworkers = 4096;
    for (int i = 0; i < nworkers; i++)
        workers[i] = (struct agent_worker_status){
            .rank = i, .local_rank = i, .pid = i, .state = "running", .seconds = 1};
    fd = client();
    for (int i = 0; i < 100; i++)
        send(fd, "status\n", 7, MSG_NOSIGNAL);
    loop_turns(&loop, 20);
    nworkers = 1;
    text = ask("status\n");
    ck_assert_ptr_nonnull(strstr(text, "RUNNING"));
    free(text);
    /* fd stays open: closing the control socket has to end it (teardown). */
}
END_TEST

static bool is_gone(void *arg)
{
    char c;
    uv_run(&loop, UV_RUN_NOWAIT);
    return recv(*(int *)arg, &c, 1, MSG_DONTWAIT) == 0;
}

START_TEST(silent_clients_are_closed_in_time)
{
    control_close(control, on_closed, NULL);
    loop_run_until(&loop, &closed, 5, "the first socket closes");
    closed = false;
    client_ms = 400;
    ck_assert_int_eq(open_control(NULL), 0);
    int fd = client();
    uint64_t start = mono_ns();
    loop_turns(&loop, 3);
    wait_until(is_gone, &fd, 5, "the silent client is closed");
    ck_assert_uint_ge(mono_ns() - start, 350u * 1000000u);
    close(fd);
}
END_TEST

START_TEST(closed_while_clients_are_there)
{
    int a = client(), b = client();
    send_text(a, "status\n");
    loop_turns(&loop, 2);
    send_text(b, "status\n");
    control_close(control, on_closed, NULL);
    loop_run_until(&loop, &closed, 5, "the control socket closes");
    ck_assert(access(tmppath("dlaunch/4242.sock"), F_OK) < 0);
    close(a);
    close(b);
}
END_TEST

/* ----------------------------------------------------------------------------------- the folder */

START_TEST(modes_and_names)
{
    struct stat st;
    ck_assert_int_eq(stat(tmppath("dlaunch"), &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0700);
    ck_assert_int_eq(stat(tmppath("dlaunch/4242.sock"), &st), 0);
    ck_assert(S_ISSOCK(st.st_mode));
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    ck_assert_str_eq(page.unlink_path[0], tmppath("dlaunch/4242.sock"));
}
END_TEST

static void expect_answer(void)
{
    char *text = ask("status\n");
    ck_assert_ptr_nonnull(strstr(text, "RUNNING"));
    free(text);
}

/* Replaces a socket that an earlier process with the same pid left behind. */
START_TEST(stale_socket_is_replaced)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct err e = ERR_INIT;
    control_close(control, on_closed, NULL);
    loop_run_until(&loop, &closed, 5, "the first socket closes");
    closed = false;
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/dlaunch/%d.sock", tmpdir(), PID);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    close(fd);
    ck_assert_msg(open_control(&e) == 0, "%s", e.msg);
    ck_assert_str_eq(page.unlink_path[0], a.sun_path);
    expect_answer();
}
END_TEST

static void count_name(void *arg, const char *name)
{
    *(int *)arg += strncmp(name, "4242", 4) == 0;
}

/* Where everything may be killed at once, the socket has no file. Another one of that pid may be
 * there already, as in another container. */
START_TEST(a_socket_without_a_file)
{
    struct control *with_file = control, *first;
    struct sockaddr_un a;
    struct err e = ERR_INIT;
    int n = 0;
    unlink(tmppath("dlaunch/4242.sock"));
    job.killed_at_once = true;
    ck_assert_msg(open_control(&e) == 0, "%s", e.msg);
    first = control;
    ck_assert_msg(open_control(&e) == 0, "%s", e.msg);
    ck_assert_int_eq(access(tmppath("dlaunch/4242.sock"), F_OK), -1);
    control_dir_abstract(count_name, &n);
    ck_assert_int_eq(n, 2);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t len = control_dir_address(&a, CONTROL_NO_DIR, "4242.sock");
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&a, len), 0);
    send_text(fd, "status\n");
    char *text = receive(fd);
    ck_assert_ptr_nonnull(strstr(text, "RUNNING"));
    free(text);
    close(fd);
    struct control *all[] = {control, first, with_file};
    for (int i = 0; i < 3; i++) {
        closed = false;
        control_close(all[i], on_closed, NULL);
        loop_run_until(&loop, &closed, 5, "a control socket closes");
    }
    control_dir_abstract(count_name, &n);
    ck_assert_int_eq(n, 2); /* as before: none */
    job.killed_at_once = false;
}
END_TEST

/* Another container may have a process with our number, and the same /tmp. */
START_TEST(live_socket_is_left_alone)
{
    struct control *first = control;
    struct err e = ERR_INIT;
    ck_assert_msg(open_control(&e) == 0, "%s", e.msg);
    char *other = test_text("%s", page.unlink_path[0]), *mine = tmppath("dlaunch/4242.sock");
    ck_assert_str_ne(other, mine);
    ck_assert_int_eq(access(other, F_OK), 0);
    expect_answer();
    control_close(control, on_closed, NULL);
    loop_run_until(&loop, &closed, 5, "the second socket closes");
    ck_assert_int_lt(access(other, F_OK), 0);
    ck_assert_int_eq(access(mine, F_OK), 0);
    closed = false;
    control = first;
    expect_answer();
}
END_TEST

/* The folder of a session goes when the session ends. */
static bool has_moved(void *old)
{
    uv_run(&loop, UV_RUN_NOWAIT);
    return *page.unlink_path[0] && strcmp(page.unlink_path[0], old) != 0;
}

START_TEST(a_folder_that_goes)
{
    const char *old = tmppath("dlaunch/4242.sock");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    ck_assert_int_eq(mkdir(tmppath("tmp"), 0700), 0);
    setenv("TMPDIR", tmppath("tmp"), 1);
    setenv("XDG_RUNTIME_DIR", tmppath("no"), 1); /* as if all of it were gone */
    ck_assert_int_eq(system(test_text("rm -r %s/dlaunch", tmpdir())), 0);
    wait_until(has_moved, (void *)old, 20, "the socket is made elsewhere");
    strcpy(a.sun_path, page.unlink_path[0]);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    send_text(fd, "status\n");
    char *text = receive(fd);
    ck_assert_ptr_nonnull(strstr(text, "RUNNING"));
    free(text);
    close(fd);
    control_close(control, on_closed, NULL);
    loop_run_until(&loop, &closed, 5, "the control socket closes");
    ck_assert_int_lt(access(a.sun_path, F_OK), 0);
}
END_TEST

static bool is_back(void *path)
{
    uv_run(&loop, UV_RUN_NOWAIT);
    return access(path, F_OK) == 0;
}

START_TEST(a_socket_that_goes)
{
    ck_assert_int_eq(unlink(tmppath("dlaunch/4242.sock")), 0);
    wait_until(is_back, tmppath("dlaunch/4242.sock"), 20, "the socket is made anew");
    expect_answer();
}
END_TEST

static void check_refused(const char *why)
{
    struct err e = ERR_INIT;
    int fd = control_dir_open(tmppath("d"), true, &e);
    ck_assert_msg(fd < 0, "the folder was taken");
    ck_assert_msg(strstr(e.msg, why), "%s", e.msg);
}

START_TEST(a_folder_that_is_not_ours_alone)
{
    ck_assert_int_eq(mkdir(tmppath("real"), 0700), 0);
    ck_assert_int_eq(symlink(tmppath("real"), tmppath("d")), 0);
    check_refused("Not a directory"); /* a link is not followed */
    unlink(tmppath("d"));
    write_file(tmppath("d"), "");
    check_refused("Not a directory");
    unlink(tmppath("d"));
    ck_assert_int_eq(mkdir(tmppath("d"), 0755), 0);
    check_refused("not a folder of this user's alone (mode 755");
    ck_assert_int_eq(chmod(tmppath("d"), 0700), 0);
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(tmppath("d"), 65534, 65534), 0);
        check_refused("owner 65534");
        rmdir(tmppath("d"));
    }
    ck_assert_int_lt(control_dir_open(tmppath("no/where"), true, NULL), 0);
    ck_assert_int_lt(control_dir_open(tmppath("nowhere"), false, NULL), 0);
    ck_assert_int_lt(control_dir_open("", true, NULL), 0);
}
END_TEST

START_TEST(folders_in_order)
{
    char path[CONTROL_PATH_MAX - 32], want[CONTROL_PATH_MAX];
    setenv("XDG_RUNTIME_DIR", "/run/x", 1);
    setenv("TMPDIR", "/t", 1);
    ck_assert(control_dir_path(0, path));
    ck_assert_str_eq(path, "/run/x/dlaunch");
    ck_assert(control_dir_path(1, path));
    snprintf(want, sizeof(want), "/run/user/%u/dlaunch", geteuid());
    ck_assert_str_eq(path, want);
    ck_assert(control_dir_path(2, path));
    snprintf(want, sizeof(want), "/t/dlaunch-%u", geteuid());
    ck_assert_str_eq(path, want);
    ck_assert(control_dir_path(3, path));
    snprintf(want, sizeof(want), "/tmp/dlaunch-%u", geteuid());
    ck_assert_str_eq(path, want);
    ck_assert(!control_dir_path(4, path));
    setenv("XDG_RUNTIME_DIR", "relative", 1);
    ck_assert(control_dir_path(0, path));
    ck_assert_str_eq(path, "");
    char big[400];
    memset(big, '/', sizeof(big));
    big[sizeof(big) - 1] = '\0';
    setenv("XDG_RUNTIME_DIR", big, 1);
    ck_assert(control_dir_path(0, path));
    ck_assert_str_eq(path, "");
}
END_TEST

/* A folder whose path is longer than a socket's address may be. */
START_TEST(a_long_path)
{
    char dir[200], path[CONTROL_PATH_MAX];
    snprintf(dir, sizeof(dir), "%s/", tmpdir());
    while (strlen(dir) < 150)
        strcat(dir, "x");
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    setenv("XDG_RUNTIME_DIR", dir, 1);
    struct control *first = control;
    struct err e = ERR_INIT;
    ck_assert_msg(open_control(&e) == 0, "%s", e.msg);
    snprintf(path, sizeof(path), "%s/dlaunch/4242.sock", dir);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_str_eq(page.unlink_path[0], path);
    control_close(control, on_closed, NULL);
    loop_run_until(&loop, &closed, 5, "the socket closes");
    closed = false;
    control = first;
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("control");
    TCase *tc = test_case(s, "control", 40);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, status);
    tcase_add_test(tc, stopping);
    tcase_add_test(tc, another_protocol);
    tcase_add_test(tc, unknown_commands);
    tcase_add_test(tc, several_requests_on_one_connection);
    tcase_add_test(tc, many_workers);
    tcase_add_test(tc, hostile_clients);
    tcase_add_test(tc, silent_clients_are_closed_in_time);
    tcase_add_test(tc, closed_while_clients_are_there);
    tcase_add_test(tc, modes_and_names);
    tcase_add_test(tc, stale_socket_is_replaced);
    tcase_add_test(tc, live_socket_is_left_alone);
    tcase_add_test(tc, a_socket_without_a_file);
    tcase_add_test(tc, a_folder_that_goes);
    tcase_add_test(tc, a_socket_that_goes);
    tcase_add_test(tc, a_long_path);
    tc = test_case(s, "folder", 10);
    tcase_add_test(tc, a_folder_that_is_not_ours_alone);
    tcase_add_test(tc, folders_in_order);
    return s;
}

TEST_MAIN(suite)
