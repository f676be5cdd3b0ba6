/* Metrics of a running job: over HTTP, as a file, and what Prometheus' own checker says of them. */
#include "tests/integration/job.h"

#include <dirent.h>
#include <stdlib.h>

#include "core/fd.h"
#include "core/netaddr.h"

static struct proc job;

/* The port that the launcher has printed. */
static int metrics_port(void)
{
    int port = 0;
    proc_expect_err(&job, "metrics are served at port", 30);
    proc_expect_err(&job, "of 127.0.0.1", 30);
    sscanf(strstr(job.err, "at port ") + 8, "%d", &port);
    ck_assert_int_gt(port, 0);
    return port;
}

/* The whole answer, valid until the process ends. */
static char *get(int port, const char *path, const char *accept)
{
    static char text[65536];
    struct netaddr a;
    size_t n = 0;
    netaddr_parse_ip(&a, "127.0.0.1", port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, &a.sa, a.len), 0);
    const char *request =
        test_text("GET %s HTTP/1.1\r\nHost: x\r\nAccept: %s\r\n\r\n", path, accept);
    fd_write_all(fd, request, strlen(request));
    for (ssize_t r; (r = read(fd, text + n, sizeof(text) - 1 - n)) > 0;)
        n += (size_t)r;
    text[n] = '\0';
    close(fd);
    return text;
}

static const char *body_of(const char *answer)
{
    const char *body = strstr(answer, "\r\n\r\n");
    ck_assert_msg(body, "%s", answer);
    return body + 4;
}

/* The verdict of Prometheus' checker, where it is installed. */
static void check(const char *text)
{
    struct proc p;
    if (access("/usr/bin/promtool", X_OK) < 0) {
        printf("SKIPPED: promtool is not installed (conf/install-deps.sh metrics)\n");
        return;
    }
    FILE *f = fopen(tmppath("metrics"), "w");
    fputs(text, f);
    fclose(f);
    const char *line = test_text("/usr/bin/promtool check metrics < %s", tmppath("metrics"));
    int status = proc_run(&p, ARGV("/bin/sh", "-c", (char *)line), NULL, 30);
    ck_assert_msg(status == 0, "%s%s\n%s", p.out, p.err, text);
    proc_fini(&p);
}

static void end_job(void)
{
    kill(job.pid, SIGTERM);
    expect_status(&job, 143, 30);
    proc_fini(&job);
}

START_TEST(over_http)
{
    dlaunch_start(&job, NULL,
                  "--nproc_per_node 2 --metrics 0 --ledger --max_restarts 1 --rdzv_id 'a\"b' %%W "
                  "append %%T/up "
                  "if-attempt 0 wait-lines 2 %%T/up if-attempt 0 if-rank 1 exit 3 pause");
    int port = metrics_port();
    wait_lines(tmppath("up"), 4, 30);
    const char *answer = get(port, "/metrics", "*/*"), *text = body_of(answer);
    expect_text(answer, "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4");
    expect_text(text, "dlaunch_workers{state=\"running\"} 2\n");
    expect_text(text, "dlaunch_rounds_total 2\n");
    expect_text(text, "dlaunch_failures_total{class=\"exit\"} 1\n");
    expect_text(text, "dlaunch_restarts_total{cause=\"exit\"} 1\n");
    expect_text(text, "dlaunch_recovery_seconds_count{part=\"stop\"} 1\n");
    expect_text(text, "dlaunch_time_seconds{phase=\"restart\"} ");
    expect_text(text, "dlaunch_worker_resident_memory_bytes{rank=\"1\"} ");
    check(text);
    answer = get(port, "/metrics", "application/openmetrics-text; version=1.0.0");
    expect_text(answer, "Content-Type: application/openmetrics-text; version=1.0.0");
    expect_text(answer, "# TYPE dlaunch_rounds counter\n");
    ck_assert_str_eq(answer + strlen(answer) - 6, "# EOF\n");
    expect_text(get(port, "/healthz", "*/*"), "HTTP/1.1 200 OK");
    expect_text(get(port, "/other", "*/*"), "HTTP/1.1 404 ");
    end_job();
}
END_TEST

static bool is_metrics_file(const char *name)
{
    size_t n = strlen(name);
    return strncmp(name, "dlaunch_", 8) == 0 && n > 5 && strcmp(name + n - 5, ".prom") == 0;
}

/* The file's path, or NULL. */
static char *metrics_file(void)
{
    DIR *d = opendir(tmppath("prom"));
    char *path = NULL;
    for (struct dirent *e; (e = readdir(d));) {
        if (is_metrics_file(e->d_name))
            path = tmppath(test_text("prom/%s", e->d_name));
    }
    closedir(d);
    return path;
}

static bool has_metrics_file(void *arg)
{
    (void)arg;
    return metrics_file() != NULL;
}

START_TEST(as_a_file)
{
    mkdir(tmppath("prom"), 0755);
    dlaunch_start(&job, NULL, "--metrics_file %%T/prom %%W append %%T/up pause");
    wait_lines(tmppath("up"), 1, 30);
    wait_until(has_metrics_file, NULL, 30, "the file is there");
    const char *text = text_of_file(metrics_file());
    expect_text(text, "dlaunch_build_info{version=");
    check(text);
    end_job();
    ck_assert_ptr_null(metrics_file());
}
END_TEST

/* How many files there are, with those half written. */
static int count_metrics_files(void)
{
    DIR *d = opendir(tmppath("prom"));
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += strncmp(e->d_name, "dlaunch_", 8) == 0;
    closedir(d);
    return n;
}

static bool has_files(void *n)
{
    return count_metrics_files() == *(int *)n && metrics_file();
}

static void wait_files(int n)
{
    wait_until(has_files, &n, 30, test_text("there are %d files", n));
}

/* Each series has the label that no other launcher's has. */
static void check_labels(void)
{
    const char *path = metrics_file();
    char *name = test_text("%s", strrchr(path, '/') + strlen("/dlaunch_"));
    name[strlen(name) - strlen(".prom")] = '\0';
    const char *label = test_text("launcher=\"%s\"} ", name);
    for (char *line = strtok(text_of_file(path), "\n"); line; line = strtok(NULL, "\n"))
        ck_assert_msg(*line == '#' || strstr(line, label), "%s", line);
}

/* Two pods of a job on one host: the run id and the process id are the same. Neither touches the
 * other's file, and the collector, which reads both as one page, finds no series twice. */
START_TEST(of_two_pods)
{
    struct proc p[2];
    if (proc_run(&p[0], ARGV("unshare", "-pf", "--mount-proc", "true"), NULL, 10) != 0) {
        test_skip("of_two_pods: no PID namespaces here");
        return;
    }
    mkdir(tmppath("prom"), 0755);
    for (int i = 0; i < 2; i++)
        proc_start(&p[i],
                   ARGV("unshare", "-pf", "--mount-proc", build_path("dlaunch"), "--rdzv_id", "job",
                        "--metrics_file", (char *)tmppath("prom"), build_path("tests/worker"),
                        "pause"),
                   NULL, 0);
    wait_files(2);
    check_labels();
    for (int i = 0; i < 2; i++) {
        kill(agent_of(&p[i]), SIGTERM); /* unshare's only child */
        proc_wait(&p[i], 20);
        ck_assert_int_eq(count_metrics_files(), 1 - i);
        proc_fini(&p[i]);
    }
}
END_TEST

/* The guardian removes the file of its agent; where both are killed, the next launcher does. */
START_TEST(of_a_killed_launcher)
{
    struct proc p;
    mkdir(tmppath("prom"), 0755);
    dlaunch_start(&p, NULL, "--metrics_file %%T/prom %%W pause");
    wait_files(1);
    kill(agent_of(&p), SIGKILL);
    proc_wait(&p, 20);
    ck_assert_int_eq(count_metrics_files(), 0);
    proc_fini(&p);
    dlaunch_start(&p, NULL, "--metrics_file %%T/prom %%W pause");
    wait_files(1);
    const char *left = metrics_file();
    pid_t agent = agent_of(&p);
    proc_kill(&p, SIGSTOP);
    kill(agent, SIGKILL);
    proc_kill(&p, SIGKILL);
    proc_wait(&p, 20);
    write_file(test_text("%s.tmp", left), "half");
    write_file(tmppath("prom/others.prom"), "");
    ck_assert_int_eq(count_metrics_files(), 2);
    dlaunch_start(&job, NULL, "--metrics_file %%T/prom %%W append %%T/up pause");
    wait_lines(tmppath("up"), 1, 30);
    wait_files(1);
    ck_assert_str_ne(metrics_file(), left);
    ck_assert_int_eq(access(tmppath("prom/others.prom"), F_OK), 0);
    end_job();
    proc_fini(&p);
}
END_TEST

START_TEST(mistakes)
{
    static const char *const bad[][2] = {{"--metrics web", "'web' is not a port (0 to 65535)"},
                                         {"--metrics host:9100", "'host' is not an IP address"},
                                         {"--metrics_file /nonexistent", "/nonexistent"}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct proc p;
        ck_assert_int_eq(dlaunch_run(&p, 30, "%s %%W exit 0", bad[i][0]), 2);
        expect_text(p.err, bad[i][1]);
        proc_fini(&p);
    }
    struct netaddr a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    netaddr_parse_ip(&a, "127.0.0.1", 0);
    ck_assert(bind(fd, &a.sa, a.len) == 0 && listen(fd, 1) == 0);
    ck_assert(getsockname(fd, &a.sa, &(socklen_t){sizeof(a.ss)}) == 0);
    struct proc p;
    ck_assert_int_eq(dlaunch_run(&p, 30, "--metrics %d %%W exit 0", netaddr_port(&a)), 2);
    expect_text(p.err, "address already in use");
    proc_fini(&p);
    close(fd);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("metrics");
    TCase *tc = test_case(s, "metrics", 120);
    tcase_add_test(tc, over_http);
    tcase_add_test(tc, as_a_file);
    tcase_add_test(tc, of_two_pods);
    tcase_add_test(tc, of_a_killed_launcher);
    tcase_add_test(tc, mistakes);
    return s;
}

TEST_MAIN(suite)
