/* dlaunchctl against processes that have a control socket and nothing else of a launcher. */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"
#include "launcher/control/control.h"
#include "rendezvous/rules/event_log.h"
#include "tests/lib/proc.h"

static char *dlaunchctl;

static void setup(void)
{
    dlaunchctl = build_path("dlaunchctl");
    setenv("XDG_RUNTIME_DIR", tmpdir(), 1);
}

/* ------------------------------------------------------------------------ a launcher, so to say */

static struct control *control;
static struct agent_worker_status workers[] = {
    {.rank = 2, .local_rank = 0, .pid = 100, .state = "running", .seconds = 3700},
    {.rank = 3, .local_rank = 1, .pid = 101, .state = "exited", .seconds = 61},
    {.rank = 4, .local_rank = 2, .pid = 102, .state = "failed", .exit_code = 3, .seconds = 5},
    {.rank = 5, .local_rank = 3, .pid = 103, .state = "failed", .signal = SIGSEGV, .seconds = 5}};

static bool starting;

static void get_status(void *arg, struct agent_status *out)
{
    (void)arg;
    *out = (struct agent_status){.state = starting ? "STARTING" : "RUNNING",
                                 .health = "HEALTHY",
                                 .elapsed = 3725,
                                 .nworkers = 4,
                                 .workers = workers,
                                 .rdzv = {.phase = "running",
                                          .group_rank = 1,
                                          .nnodes = 2,
                                          .world_size = 6,
                                          .restart_count = 1,
                                          .endpoint = "10.0.0.1:29500"}};
}

static struct event_list events; /* empty: this launcher keeps none */

static const struct event_list *get_events(void *arg)
{
    (void)arg;
    return &events;
}

static void on_closed(void *arg)
{
    (void)arg;
}

static void on_linger(uv_timer_t *t)
{
    uv_stop(t->loop);
}

static void stop(void *arg, const char *why)
{
    (void)why;
    uv_timer_start(arg, on_linger, 50, 0); /* time for the answer to go out */
}

/* Forks a process with a control socket. It ends when told to stop. Not for Check's ears. */
static pid_t launcher(const char *run_id)
{
    int ready[2];
    char c;
    ck_assert_int_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        uv_loop_t loop;
        uv_timer_t linger;
        struct job_spec job = {
            .host = "node-a", .name = "./train", .rdzv = {.run_id = run_id, .max_restarts = 3}};
        struct control_opts opts = {
            .pid = getpid(), .job = &job, .get_status = get_status, .stop = stop, .arg = &linger};
        opts.get_events = events.n ? get_events : NULL;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        uv_loop_init(&loop);
        uv_timer_init(&loop, &linger);
        if (control_open(&control, &loop, &opts, NULL) < 0)
            _exit(9);
        fd_write_all(ready[1], "x", 1);
        uv_run(&loop, UV_RUN_DEFAULT);
        control_close(control, on_closed, NULL);
        uv_close((uv_handle_t *)&linger, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
        _exit(0);
    }
    ck_assert_int_eq(read(ready[0], &c, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return pid;
}

static void end(pid_t pid)
{
    int status;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
}

static int ctl(struct proc *p, char *const args[])
{
    char *argv[12] = {dlaunchctl};
    for (int i = 0; args[i]; i++)
        argv[i + 1] = args[i];
    return proc_run(p, argv, NULL, 30);
}

static char *pid_text(pid_t pid)
{
    static char text[24];
    snprintf(text, sizeof(text), "%d", (int)pid);
    return text;
}

/* ---------------------------------------------------------------------------------------- tests */

START_TEST(one_job)
{
    struct proc p;
    char want[1024];
    pid_t pid = launcher("my job");
    ck_assert_int_eq(ctl(&p, ARGV("-p", pid_text(pid), "status")), 0);
    snprintf(want, sizeof(want),
             "./train: run id my job, process %d on node-a\n"
             "  RUNNING (HEALTHY) for 1 h 2 min, rendezvous running, 1 of 3 restarts used\n"
             "  node 1 of 2, 6 workers in the job; coordinator at 10.0.0.1:29500\n"
             "\n"
             "  RANK   LOCAL  PID      STATE     SINCE START\n"
             "  2      0      100      running   1 h 1 min\n"
             "  3      1      101      exited    1 min 1 s    exit status 0\n"
             "  4      2      102      failed    5 s          exit status 3\n"
             "  5      3      103      failed    5 s          SIGSEGV\n",
             (int)pid);
    ck_assert_str_eq(p.out, want);
    ck_assert_str_eq(p.err, "");
    proc_fini(&p);
    ck_assert_int_eq(ctl(&p, ARGV("--json", "--job=my job", "status")), 0);
    json_t *j = json_loads(p.out, 0, NULL);
    ck_assert_int_eq(json_integer_value(json_object_get(j, "pid")), pid);
    ck_assert_uint_eq(json_array_size(json_object_get(j, "workers")), 4);
    json_decref(j);
    proc_fini(&p);
    end(pid);
}
END_TEST

/* The exec probe of a Kubernetes pod. */
START_TEST(readiness)
{
    struct proc p;
    pid_t pid = launcher("ready");
    ck_assert_int_eq(ctl(&p, ARGV("--job=ready", "status", "--ready")), 0);
    ck_assert_str_eq(p.out, "RUNNING\n");
    proc_fini(&p);
    kill(pid, SIGKILL);
    starting = true;
    launcher("not yet");
    ck_assert_int_eq(ctl(&p, ARGV("--job=not yet", "--ready", "status")), 1);
    ck_assert_str_eq(p.out, "STARTING\n");
    proc_fini(&p);
    ck_assert_int_eq(ctl(&p, ARGV("--job=gone", "--ready", "status")), 1);
    ck_assert_str_eq(p.out, "");
    ck_assert_ptr_nonnull(strstr(p.err, "you have no running job"));
    proc_fini(&p);
    ck_assert_int_eq(ctl(&p, ARGV("--ready", "stop")), 2);
    proc_fini(&p);
}
END_TEST

START_TEST(several_jobs)
{
    struct proc p;
    pid_t a = launcher("job-a"), b = launcher("twin"), c = launcher("twin");
    ck_assert_int_eq(ctl(&p, ARGV("status")), 0);
    ck_assert_ptr_nonnull(strstr(
        p.out,
        "PID      RUN ID         NODE    WORKERS RESTARTS STATE        RUNNING FOR   PROGRAM\n"));
    char want[200];
    snprintf(want, sizeof(want),
             "%-8d job-a          1 of 2  4       1 of 3   RUNNING      1 h 2 min     ./train\n",
             (int)a);
    ck_assert_msg(strstr(p.out, want), "%s\nlacks\n%s", p.out, want);
    proc_fini(&p);
    ck_assert_int_eq(ctl(&p, ARGV("--json", "status")), 0);
    json_t *j = json_loads(p.out, 0, NULL);
    ck_assert_uint_ge(json_array_size(j), 3);
    json_decref(j);
    proc_fini(&p);
    ck_assert_int_eq(ctl(&p, ARGV("-p", "twin", "stop")), 1);
    ck_assert_str_eq(p.err,
                     "dlaunchctl: you have 2 running jobs on this host; select one with -p PID\n");
    proc_fini(&p);
    ck_assert_int_eq(ctl(&p, ARGV("stop")), 1);
    ck_assert_ptr_nonnull(strstr(p.err, "select one with -p PID"));
    proc_fini(&p);
    ck_assert_int_eq(ctl(&p, ARGV("-p", "nothing", "status")), 1);
    ck_assert_str_eq(
        p.err,
        "dlaunchctl: you have no running job with process or run id 'nothing' on this host\n");
    proc_fini(&p);
    end(a);
    end(b);
    end(c);
}
END_TEST

START_TEST(stopping)
{
    struct proc p;
    char want[200];
    int status;
    pid_t pid = launcher("x");
    ck_assert_int_eq(ctl(&p, ARGV("-p", pid_text(pid), "stop", "--wait")), 0);
    snprintf(want, sizeof(want), "./train: stopping process %d\n./train: process %d has ended\n",
             (int)pid, (int)pid);
    ck_assert_str_eq(p.out, want);
    ck_assert_int_eq(waitpid(pid, &status, WNOHANG), pid); /* it had ended */
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    proc_fini(&p);
    pid = launcher("x");
    ck_assert_int_eq(ctl(&p, ARGV("-p", pid_text(pid), "--json", "stop")), 0);
    json_t *j = json_loads(p.out, 0, NULL);
    ck_assert(json_is_true(json_object_get(j, "stopping")));
    ck_assert(json_is_false(json_object_get(j, "ended")));
    json_decref(j);
    proc_fini(&p);
    end(pid);
}
END_TEST

/* A socket whose launcher was killed is taken away; a launcher that hangs does not hang others. */
START_TEST(dead_and_hung_launchers)
{
    struct proc p;
    pid_t dead = launcher("dead"), hung = launcher("hung"), well = launcher("well");
    char *path = xasprintf("%s/dlaunch/%d.sock", tmpdir(), (int)dead), said[160];
    end(dead);
    ck_assert_int_eq(access(path, F_OK), 0);
    kill(hung, SIGSTOP);
    ck_assert_int_eq(ctl(&p, ARGV("-p", "well", "status")), 0);
    ck_assert_int_lt(access(path, F_OK), 0);
    snprintf(said, sizeof(said),
             "dlaunchctl: process %d does not answer because it is stopped, for example by Ctrl-Z "
             "(kill -CONT %d continues it)\n",
             (int)hung, (int)hung);
    ck_assert_ptr_nonnull(strstr(p.err, said)); /* other jobs of this user may hang, too */
    proc_fini(&p);
    ck_assert_int_eq(ctl(&p, ARGV("stop")), 1); /* which of them is not for us to choose */
    ck_assert_ptr_nonnull(strstr(p.err, "running jobs on this host; select one with -p PID"));
    proc_fini(&p);
    end(well);
    ck_assert_int_eq(ctl(&p, ARGV("-p", pid_text(hung), "stop")), 1);
    ck_assert_ptr_nonnull(strstr(p.err, said));
    ck_assert_ptr_null(strstr(p.err, "is running on this host"));
    proc_fini(&p);
    ck_assert_int_eq(ctl(&p, ARGV("-p", "nothing", "stop")), 1);
    ck_assert_ptr_nonnull(
        strstr(p.err, "you have no other running job with process or run id 'nothing'"));
    proc_fini(&p);
    int status = ctl(&p, ARGV("status"));
    ck_assert_ptr_nonnull(strstr(p.err, said));
    ck_assert_ptr_null(strstr(p.err, "no job of yours"));
    ck_assert(status == 1 || *p.out); /* other jobs of this user may run, too */
    proc_fini(&p);
    end(hung);
    free(path);
}
END_TEST

/* A launcher that has bound its socket but does not listen yet. */
static bool is_gone(void *path)
{
    return access(path, F_OK) < 0;
}

/* The next launcher takes the socket of a killed one away: soon while it runs, or when it ends. */
START_TEST(the_next_launcher_sweeps)
{
    pid_t dead = launcher("dead");
    char *path = test_text("%s/dlaunch/%d.sock", tmpdir(), (int)dead);
    end(dead);
    ck_assert_int_eq(access(path, F_OK), 0);
    pid_t next = launcher("next");
    wait_until(is_gone, path, 20, "the socket is removed while a launcher runs");
    end(next);
    struct proc p; /* a short job */
    path = test_text("%s/dlaunch/%d.sock", tmpdir(), (int)next);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_int_eq(
        proc_run(&p, ARGV(build_path("dlaunch"), "--nproc_per_node", "1", "true"), NULL, 60), 0);
    proc_fini(&p);
    ck_assert(is_gone(path));
}
END_TEST

/* The processes that a person sees: the launcher's, the agent's and the worker's. */
START_TEST(processes_of_a_job)
{
    struct proc p;
    char *shell = test_text("for pid in $$ $PPID $(ps -o ppid= -p $PPID); do '%s' -p $pid --json "
                            "status | grep '\"run_id\"' || exit; done",
                            dlaunchctl);
    int status = proc_run(&p,
                          ARGV(build_path("dlaunch"), "--nproc_per_node", "1", "--rdzv_id", "this",
                               "sh", "-c", shell),
                          NULL, 60);
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    ck_assert_str_eq(p.out, "  \"run_id\": \"this\",\n  \"run_id\": \"this\",\n"
                            "  \"run_id\": \"this\",\n");
    proc_fini(&p);
    ck_assert_int_eq(ctl(&p, ARGV("-p", "1", "status")), 1);
    proc_fini(&p);
}
END_TEST

START_TEST(a_launcher_that_is_not_ready)
{
    struct proc p;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    end(launcher("gone")); /* the folder is there */
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/dlaunch/%d.sock", tmpdir(), (int)getpid());
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(fchmod(fd, 0600), 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    ctl(&p, ARGV("status"));
    ck_assert_int_eq(access(a.sun_path, F_OK), 0);
    proc_fini(&p);
    close(fd);
}
END_TEST

/* Something else that answers: garbage is no status. */
START_TEST(a_liar)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct proc p;
    pid_t well = launcher("well");
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/dlaunch/77.sock", tmpdir());
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    ck_assert_int_eq(listen(fd, 5), 0);
    static const char *const answers[] = {"[1]\n", "{}\n", "garbage\n", "{\"pid\":", "", "\n"};
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        proc_start(&p, ARGV(dlaunchctl, "-p", "well", "status"), NULL, 0);
        int c = accept(fd, NULL, NULL);
        ck_assert_int_ge(c, 0);
        ssize_t sent = send(c, answers[i], strlen(answers[i]), MSG_NOSIGNAL);
        if (sent < 0) /* on a busy machine dlaunchctl has stopped waiting */
            ck_assert_int_eq(errno, EPIPE);
        else
            ck_assert_int_eq(sent, strlen(answers[i]));
        close(c);
        ck_assert_int_eq(proc_wait(&p, 20), 0);
        ck_assert_ptr_nonnull(strstr(p.out, "run id well"));
        proc_fini(&p);
    }
    end(well);
    close(fd);
}
END_TEST

/* Older ones have no number; later ones have another one. Nothing is asked of either but its
 * status, and the line that says so is the only one. */
START_TEST(a_launcher_of_another_build)
{
    static const struct {
        const char *answer, *numbers;
    } builds[] = {{"{\"pid\":1,\"run_id\":\"there\",\"version\":\"0.1\"}\n", "(control 0, not 1)"},
                  {"{\"error\":\"unknown command (status or stop)\"}\n", "(control 0, not 1)"},
                  {"{\"control\":7,\"error\":\"what?\"}\n", "(control 7, not 1)"}};
    char *own = test_text("%d", getpid());
    char *const asks[][4] = {{"-p", own, "stop"}, {"-p", own, "status"}, {"status"}};
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char said[64];
    struct proc p;
    end(launcher("gone")); /* the folder is there */
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/dlaunch/%s.sock", tmpdir(), own);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    ck_assert_int_eq(listen(fd, 5), 0);
    for (size_t i = 0; i < ARRAY_LEN(builds) * ARRAY_LEN(asks); i++) {
        char *argv[6] = {dlaunchctl};
        memcpy(argv + 1, asks[i % ARRAY_LEN(asks)], sizeof(asks[0]));
        const char *answer = builds[i / ARRAY_LEN(asks)].answer;
        proc_start(&p, argv, NULL, 0);
        int c = accept(fd, NULL, NULL);
        ssize_t n = read(c, said, sizeof(said) - 1);
        said[n > 0 ? n : 0] = '\0';
        ck_assert_str_eq(said, "1 status\n");
        ck_assert_int_eq(send(c, answer, strlen(answer), MSG_NOSIGNAL), strlen(answer));
        close(c);
        int status = proc_wait(&p, 20);
        ck_assert_int_le(status, 1);
        if (asks[i % ARRAY_LEN(asks)][1]) /* else jobs of other tests are listed as well */
            ck_assert_int_eq(status, 1);
        ck_assert_msg(strstr(p.err, builds[i / ARRAY_LEN(asks)].numbers), "%s", p.err);
        ck_assert_ptr_eq(strchr(p.err, '\n'), p.err + strlen(p.err) - 1);
        proc_fini(&p);
    }
    close(fd);
}
END_TEST

START_TEST(usage)
{
    struct proc p;
    ck_assert_int_eq(ctl(&p, ARGV("--help")), 0);
    ck_assert_ptr_nonnull(strstr(p.out, "Usage: dlaunchctl [options] [command] [job]\n"));
    proc_fini(&p);
    ck_assert_int_eq(ctl(&p, ARGV("--version")), 0);
    ck_assert_str_eq(p.out, "dlaunchctl " DLAUNCH_VERSION "\n");
    proc_fini(&p);
    static const struct {
        char *args[4];
    } bad[] = {{{"stat"}},
               {{"status", "a", "b"}},
               {{"--bananas"}},
               {{"-p"}},
               {{"--wait", "status"}},
               {{"wait"}},
               {{"wait", "tea"}},
               {{"signal", "SIGTEA"}},
               {{"-o", "xml"}},
               {{"logs", "--ranks", "all"}},
               {{"events", "--timeout", "3"}},
               {{"causes", "a"}}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        ck_assert_int_eq(ctl(&p, bad[i].args), 2);
        ck_assert_str_eq(p.out, "");
        ck_assert(*p.err);
        proc_fini(&p);
    }
    ck_assert_int_eq(ctl(&p, ARGV("stat")), 2);
    ck_assert_ptr_nonnull(strstr(p.err, "unknown command 'stat'; see dlaunchctl --help"));
    proc_fini(&p);
    ck_assert_int_eq(ctl(&p, ARGV("stop", "42", "43")), 2);
    ck_assert_ptr_nonnull(strstr(p.err, "unexpected argument '43'\n"));
    proc_fini(&p);
}
END_TEST

/* TMPDIR is often /tmp, and XDG_RUNTIME_DIR what it is by default. */
START_TEST(folders_with_two_names)
{
    struct proc p;
    const char *runtime = test_text("/run/user/%u", geteuid());
    setenv("TMPDIR", "/tmp", 1);
    setenv("XDG_RUNTIME_DIR", access(runtime, F_OK) == 0 ? runtime : "", 1);
    pid_t hung = launcher("hung");
    kill(hung, SIGSTOP);
    ctl(&p, ARGV("status"));
    const char *said = test_text("process %d does not answer", (int)hung);
    const char *once = strstr(p.err, said);
    ck_assert_msg(once && !strstr(once + 1, said), "%s", p.err);
    proc_fini(&p);
    end(hung);
}
END_TEST

/* Jobs that ended, in a folder of their own. */
START_TEST(jobs_that_ended_are_listed_for_a_day)
{
    struct proc p;
    char *dlaunch = build_path("dlaunch"), *folder = tmppath("dlaunch");
    proc_run(&p, ARGV(dlaunch, "--rdzv_id", "ended-well", "--nproc_per_node", "2", "true"), NULL,
             20);
    ck_assert_int_eq(p.status, 0);
    proc_fini(&p);
    ck_assert_int_eq(
        proc_run(&p, ARGV(dlaunch, "--rdzv_id", "ended-bad", "sh", "-c", "exit 3"), NULL, 20), 3);
    proc_fini(&p);
    ck_assert_int_eq(proc_run(&p, ARGV(dlaunchctl), NULL, 20), 0);
    char *bad = strstr(p.out, " ended-bad "), *good = strstr(p.out, " ended-well ");
    ck_assert_msg(bad && good && bad < good, "%s", p.out); /* the newest first */
    ck_assert_ptr_nonnull(strstr(p.out, " FAILED (3) "));
    ck_assert_ptr_nonnull(strstr(p.out, " SUCCEEDED "));
    proc_fini(&p);
    ck_assert_int_eq(proc_run(&p, ARGV(dlaunchctl, "describe", "ended-b"), NULL, 20), 0);
    ck_assert_ptr_nonnull(strstr(p.out, "with exit status 3 after 0 s, 0 of 0 restarts used: "));
    ck_assert_ptr_nonnull(strstr(p.out, "exit status 3\n"));
    ck_assert_ptr_nonnull(strstr(p.out, "worker.finish"));
    proc_fini(&p);
    ck_assert_int_eq(proc_run(&p, ARGV(dlaunchctl, "timeline", "ended-bad"), NULL, 20), 0);
    json_t *trace = json_loads(p.out, 0, NULL);
    ck_assert_uint_gt(json_array_size(json_object_get(trace, "traceEvents")), 0);
    json_decref(trace);
    proc_fini(&p);
    ck_assert_int_eq(proc_run(&p, ARGV(dlaunchctl, "logs", "-f", "ended-bad"), NULL, 20), 1);
    ck_assert_ptr_nonnull(strstr(p.err, "there are no log files")); /* it does not wait for more */
    proc_fini(&p);
    ck_assert_int_eq(proc_run(&p, ARGV(dlaunchctl, "-o", "json", "status"), NULL, 20), 0);
    json_t *list = json_loads(p.out, 0, NULL);
    json_t *entry;
    size_t k;
    int found = 0; /* other folders of this user may have jobs as well */
    json_array_foreach(list, k, entry)
    {
        const char *id = json_string_value(json_object_get(entry, "run_id"));
        bool is_bad = id && strcmp(id, "ended-bad") == 0;
        found += is_bad;
        ck_assert(!is_bad || json_integer_value(json_object_get(entry, "exit_status")) == 3);
    }
    ck_assert_int_eq(found, 1);
    json_decref(list);
    proc_fini(&p);
    ck_assert_int_eq(proc_run(&p, ARGV(dlaunchctl, "stop", "ended-bad"), NULL, 20), 1);
    ck_assert_ptr_nonnull(strstr(p.err, "the job 'ended-bad' has ended"));
    proc_fini(&p);
    /* What is a day old goes, and of very many the oldest. */
    for (int i = 0; i < 70; i++) {
        char *path = test_text("%s/%d-1.ended", folder, 100 + i);
        time_t at = time(NULL) - (i == 0 ? 90000 : 1000 + i);
        write_file(path, "{}");
        ck_assert_int_eq(utimensat(AT_FDCWD, path, (struct timespec[]){{at, 0}, {at, 0}}, 0), 0);
    }
    ck_assert_int_eq(proc_run(&p, ARGV(dlaunchctl), NULL, 20), 0);
    ck_assert_ptr_nonnull(strstr(p.out, " ended-well "));
    proc_fini(&p);
    int left = 0;
    for (int i = 0; i < 70; i++) {
        bool there = access(test_text("%s/%d-1.ended", folder, 100 + i), F_OK) == 0;
        ck_assert(there == (i > 0 && i <= 62)); /* and the two jobs */
        left += there;
    }
    ck_assert_int_eq(left, 62);
}
END_TEST

/* Digits are a process, and a run id begins with them by chance; four characters of one show a job,
 * but change none. */
START_TEST(beginnings_of_a_run_id)
{
    static const struct {
        char *command, *job;
        int status;
        const char *said;
    } tries[] = {
        {"stop", "9", 1, "no running job with process or run id '9'"},
        {"status", "9", 1, "no running job with process or run id '9'"},
        {"status", "9876", 1, "no running job with process or run id '9876'"},
        {"status", "98765f", 0, ""},
        {"stop", "98765f", 1, "'98765f' is only the beginning of the run id 98765f00ba12cd; give"},
        {"kill", "98765f", 1, "is only the beginning of the run id"},
        {"restart", "98765f", 1, "is only the beginning of the run id"},
        {"stop", "98765f00ba12cd", 0, ""},
    };
    struct proc p;
    pid_t pid = launcher("98765f00ba12cd");
    for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
        int status = ctl(&p, ARGV(tries[i].command, tries[i].job));
        ck_assert_msg(status == tries[i].status, "%s %s: %d %s", tries[i].command, tries[i].job,
                      status, p.err);
        ck_assert_msg(strstr(p.err, tries[i].said), "%s", p.err);
        proc_fini(&p);
    }
    end(pid);
}
END_TEST

/* A log of more than 16 MiB comes in parts, all of it. */
START_TEST(a_long_log)
{
    enum { EVENTS = 20000 };
    static char text[EVENT_TEXT_MAX];
    struct proc p;
    int lines = 0;
    memset(text, 'x', sizeof(text) - 1);
    events = (struct event_list){.e = xcalloc(EVENTS, sizeof(struct event)), .n = EVENTS};
    for (int i = 0; i < EVENTS; i++)
        events.e[i] = (struct event){.name = EVENT_FAILURE, .wall_ns = 1, .text = text};
    pid_t pid = launcher("long");
    ck_assert_msg(ctl(&p, ARGV("events", pid_text(pid))) == 0, "%s", p.err);
    for (const char *at = p.out; (at = strchr(at, '\n')); at++)
        lines++;
    ck_assert_int_eq(lines, EVENTS);
    proc_fini(&p);
    end(pid);
    free(events.e);
}
END_TEST

/* What the launcher refuses has not been done, in JSON either. */
START_TEST(a_refusal)
{
    struct proc p;
    pid_t pid = launcher("r");
    ck_assert_int_eq(ctl(&p, ARGV("kill", "--json", pid_text(pid))), 1);
    ck_assert_msg(strstr(p.err, "refuses: unknown command"), "%s", p.err);
    ck_assert_str_eq(p.out, "");
    proc_fini(&p);
    end(pid);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlaunchctl");
    TCase *tc = test_case(s, "dlaunchctl", 60);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, one_job);
    tcase_add_test(tc, readiness);
    tcase_add_test(tc, several_jobs);
    tcase_add_test(tc, stopping);
    tcase_add_test(tc, beginnings_of_a_run_id);
    tcase_add_test(tc, a_refusal);
    tcase_add_test(tc, a_long_log);
    tcase_add_test(tc, dead_and_hung_launchers);
    tcase_add_test(tc, folders_with_two_names);
    tcase_add_test(tc, the_next_launcher_sweeps);
    tcase_add_test(tc, processes_of_a_job);
    tcase_add_test(tc, a_launcher_that_is_not_ready);
    tcase_add_test(tc, a_liar);
    tcase_add_test(tc, a_launcher_of_another_build);
    tcase_add_test(tc, usage);
    tcase_add_test(tc, jobs_that_ended_are_listed_for_a_day);
    return s;
}

TEST_MAIN(suite)
