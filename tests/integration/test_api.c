/* dlaunch.h: jobs that a program starts, watches and stops. */
#include "tests/integration/job.h"

#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <sys/wait.h>

#include "launcher/api/dlaunch.h"

static const char *const *words(const char *const *list)
{
    return list;
}
#define WORDS(...) words((const char *const[]){__VA_ARGS__, NULL})

static dlaunch_opts of(const char *const *argv, int nproc)
{
    dlaunch_opts o = DLAUNCH_OPTS_INIT;
    o.argv = argv;
    o.nproc_per_node = nproc;
    o.dlaunch = build_path("dlaunch");
    return o;
}

static dlaunch_job *started(const dlaunch_opts *o)
{
    dlaunch_job *j = NULL;
    char why[256] = "";
    int rc = dlaunch_job_start(o, &j, why, sizeof(why));
    ck_assert_msg(rc == 0 && j, "%d: %s", rc, why);
    return j;
}

/* All that a job has said. */
struct heard {
    char *out, *err, *log, *names; /* names of events, a blank behind each */
    size_t out_len, err_len;
    int status;
    char *why, *report, *json;
};

static char *joined(char *text, size_t *len, const dlaunch_event *e)
{
    text = xrealloc(text, *len + e->len + 2);
    memcpy(text + *len, e->data, e->len);
    *len += e->len;
    text[*len] = '\0';
    return text;
}

static void hear(struct heard *h, const dlaunch_event *e)
{
    char *more;
    switch (e->type) {
    case DLAUNCH_OUT:
        h->out = joined(h->out, &h->out_len, e);
        break;
    case DLAUNCH_ERR:
        h->err = joined(h->err, &h->err_len, e);
        break;
    case DLAUNCH_LOG:
        more = xasprintf("%s%s\n", h->log, e->data);
        free(h->log);
        h->log = more;
        break;
    case DLAUNCH_EVENT: {
        json_t *j = json_loads(e->data, 0, NULL);
        ck_assert_msg(j && strcmp(json_word(j, "name"), e->name) == 0, "%s", e->data);
        json_decref(j);
        more = xasprintf("%s%s ", h->names, e->name);
        free(h->names);
        h->names = more;
        break;
    }
    case DLAUNCH_END:
        h->status = e->exit_status;
        h->why = xstrdup(e->data);
        h->report = xstrdup(e->report);
        h->json = xstrdup(e->report_json);
    }
}

static struct heard nothing(void)
{
    return (struct heard){.out = xstrdup(""),
                          .err = xstrdup(""),
                          .log = xstrdup(""),
                          .names = xstrdup(""),
                          .status = -1};
}

static void heard_fini(struct heard *h)
{
    char *all[] = {h->out, h->err, h->log, h->names, h->why, h->report, h->json};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        free(all[i]);
}

static int ms(double seconds)
{
    return (int)(1000 * test_seconds(seconds));
}

static struct heard heard_to_the_end(dlaunch_job *j)
{
    struct heard h = nothing();
    while (h.status < 0) {
        const dlaunch_event *e = dlaunch_job_wait(j, ms(30));
        ck_assert_msg(e != NULL, "the job does not end: %s%s%s", h.log, h.err, h.names);
        hear(&h, e);
    }
    ck_assert_ptr_null(dlaunch_job_next(j));
    ck_assert_ptr_null(dlaunch_job_wait(j, -1));
    return h;
}

static struct heard run(const dlaunch_opts *o)
{
    dlaunch_job *j = started(o);
    struct heard h = heard_to_the_end(j);
    dlaunch_job_free(j);
    return h;
}

START_TEST(output_events_and_end)
{
    dlaunch_opts o = of(WORDS("sh", "-c", "echo out $RANK of $WORLD_SIZE; echo err >&2"), 2);
    struct heard h = run(&o);
    ck_assert_msg(h.status == 0, "%d %s", h.status, h.log);
    expect_text(h.out, "out 0 of 2\n");
    expect_text(h.out, "out 1 of 2\n");
    ck_assert_int_eq(count_text(h.err, "err\n"), 2);
    ck_assert_msg(strncmp(h.names, "submit ", 7) == 0, "%s", h.names);
    ck_assert_int_eq(count_text(h.names, "worker.start "), 2);
    ck_assert_int_eq(count_text(h.names, "worker.finish "), 2);
    ck_assert_msg(strcmp(h.names + strlen(h.names) - 7, "finish ") == 0, "%s", h.names);
    ck_assert_str_eq(h.why, "");
    ck_assert_str_eq(h.report, "");
    json_t *report = json_loads(h.json, 0, NULL);
    ck_assert_msg(report && json_number(report, "exit_code") == 0, "%s", h.json);
    json_decref(report);
    heard_fini(&h);
}
END_TEST

START_TEST(a_failure_is_explained)
{
    dlaunch_opts o = of(WORDS("sh", "-c", "[ $RANK = 0 ] || exit 3; sleep 60"), 2);
    o.max_restarts = 1;
    struct heard h = run(&o);
    ck_assert_int_eq(h.status, 3);
    expect_text(h.why, "worker 1 (local rank 1) on ");
    expect_text(h.why, "exited with code 3");
    expect_text(h.report, "First failure: rank 1");
    expect_text(h.names, "restart ");
    json_t *report = json_loads(h.json, 0, NULL);
    ck_assert_msg(report && json_number(report, "exit_code") == 3, "%s", h.json);
    json_decref(report);
    heard_fini(&h);
}
END_TEST

static const struct {
    const char *options[2];
    const char *program;
    int status;
    const char *why;
} g_refused[] = {
    {{"--max_restarts=x"}, "true", 2, "--max_restarts: 'x' is not a whole number"},
    {{"--no_such_option"}, "true", 2, "--no_such_option"},
    {{NULL}, "./no-such-program", 127, "no-such-program"},
    {{"--nnodes=0"}, "true", 2, "--nnodes"},
};

START_TEST(what_dlaunch_refuses)
{
    dlaunch_opts o = of(WORDS(g_refused[_i].program), 1);
    o.options = g_refused[_i].options;
    struct heard h = run(&o);
    ck_assert_msg(h.status == g_refused[_i].status, "%d %s", h.status, h.why);
    expect_text(h.why, g_refused[_i].why);
    heard_fini(&h);
}
END_TEST

static void refused(const dlaunch_opts *o, int code, const char *text)
{
    dlaunch_job *j = (dlaunch_job *)1;
    char why[256] = "";
    ck_assert_int_eq(dlaunch_job_start(o, &j, why, sizeof(why)), code);
    ck_assert_ptr_null(j);
    expect_text(why, text);
    ck_assert_int_eq(dlaunch_job_start(o, &j, NULL, 0), code);
}

START_TEST(what_the_library_refuses)
{
    dlaunch_opts good = of(WORDS("true"), 1), o = good;
    o.size = 1;
    refused(&o, -EINVAL, "DLAUNCH_OPTS_INIT");
    o = good, o.size = sizeof(o) + 8;
    refused(&o, -EINVAL, "opts is that of a newer dlaunch.h");
    o = good, o.version++;
    refused(&o, -EINVAL, "opts is that of a newer dlaunch.h");
    o = good, o.env = WORDS("1A=1");
    refused(&o, -EINVAL, "env: '1A=1' is not NAME=value");
    o = good, o.env = WORDS("A-B=1");
    refused(&o, -EINVAL, "env: 'A-B=1' is not NAME=value");
    o = good, o.argv = NULL;
    refused(&o, -EINVAL, "argv names no program");
    o = good, o.argv = WORDS("");
    refused(&o, -EINVAL, "argv names no program");
    o = good, o.nproc_per_node = -1;
    refused(&o, -EINVAL, "nproc_per_node is -1; it must be 0 or more");
    o = good, o.max_restarts = -2;
    refused(&o, -EINVAL, "max_restarts is -2; it must be -1 or more");
    o = good, o.env = WORDS("A=1", "B");
    refused(&o, -EINVAL, "env: 'B' is not NAME=value");
    o = good, o.options = WORDS("--log_dir", "logs");
    refused(&o, -EINVAL, "options: 'logs' does not begin with '-'");
    o = good, o.options = WORDS("--events=x");
    refused(&o, -EINVAL, "dlaunch_job_next() gives the events");
    o = good, o.options = WORDS("--report=x");
    refused(&o, -EINVAL, "DLAUNCH_END has the report");
    o = good, o.options = WORDS("--daemon");
    refused(&o, -EINVAL, "the job ends with the program");
    o = good, o.dlaunch = "/no/such/dlaunch";
    refused(&o, -ENOENT, "cannot run /no/such/dlaunch: No such file or directory");
}
END_TEST

/* Not dlaunch, though it can be run. */
START_TEST(another_program)
{
    static const char *const scripts[][2] = {
        {"#!/bin/sh\nexit 7\n", "has ended without a word, with status 7"},
        {"#!/bin/sh\nhead -c 100 /dev/zero\ncat >/dev/null\n", "its answer makes no sense"},
        {"#!/bin/sh\nkill -9 $$\n", "was killed by signal 9"},
        /* A program that closes its outputs and does not exit. */
        {"#!/bin/sh\nhead -c 1 >/dev/null\nexec sleep 300 </dev/null >/dev/null 2>&1\n",
         "was killed by signal 9"},
    };
    dlaunch_opts o = of(WORDS("true"), 1);
    dlaunch_job *j;
    o.dlaunch = tmppath("program");
    write_file(o.dlaunch, scripts[_i][0]);
    ck_assert_int_eq(chmod(o.dlaunch, 0700), 0);
    int rc = dlaunch_job_start(&o, &j, NULL, 0); /* it may have ended before it is given the plan */
    if (rc == 0) {
        struct heard h = heard_to_the_end(j);
        ck_assert_int_eq(h.status, 125);
        expect_text(h.why, scripts[_i][1]);
        heard_fini(&h);
        dlaunch_job_free(j);
    } else {
        ck_assert_msg(rc == -EPIPE || rc == -ECONNRESET, "%d", rc);
    }
}
END_TEST

/* The process number that a worker has printed. */
static pid_t worker_of(dlaunch_job *j)
{
    for (;;) {
        const dlaunch_event *e = dlaunch_job_wait(j, ms(30));
        ck_assert_msg(e && e->type != DLAUNCH_END, "%s", e ? e->data : "nothing is printed");
        if (e->type == DLAUNCH_OUT)
            return (pid_t)atol(e->data);
    }
}

static bool is_gone(void *arg)
{
    return kill(*(pid_t *)arg, 0) < 0 && errno == ESRCH;
}

static const char *const g_sleeper[] = {"sh", "-c", "echo $$; exec sleep 300", NULL};

START_TEST(signals_stop_it)
{
    dlaunch_opts o = of(g_sleeper, 1);
    dlaunch_job *j = started(&o);
    pid_t worker = worker_of(j);
    ck_assert_int_eq(dlaunch_job_signal(j, 0), -EINVAL);
    ck_assert_int_eq(dlaunch_job_signal(j, SIGKILL), -EINVAL);
    ck_assert_int_eq(dlaunch_job_signal(j, SIGTERM), 0);
    struct heard h = heard_to_the_end(j);
    ck_assert_int_eq(h.status, 128 + SIGTERM);
    ck_assert(is_gone(&worker));
    ck_assert_int_eq(dlaunch_job_signal(j, SIGTERM), -ESRCH);
    heard_fini(&h);
    dlaunch_job_free(j);
}
END_TEST

START_TEST(free_ends_it)
{
    dlaunch_opts o = of(g_sleeper, 1);
    dlaunch_job *j = started(&o);
    pid_t worker = worker_of(j);
    dlaunch_job_free(j);
    ck_assert(is_gone(&worker));
    dlaunch_job_free(started(&o)); /* at any moment */
    dlaunch_job_free(NULL);
}
END_TEST

/* The calling program is killed. */
START_TEST(it_ends_with_the_program)
{
    int ends[2];
    pid_t worker = 0;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t program = fork();
    if (program == 0) {
        dlaunch_opts o = of(g_sleeper, 1);
        worker = worker_of(started(&o));
        if (write(ends[1], &worker, sizeof(worker)) != sizeof(worker))
            _exit(1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(ends[0], &worker, sizeof(worker)), sizeof(worker));
    ck_assert_int_eq(kill(program, SIGKILL), 0);
    ck_assert_int_eq(waitpid(program, NULL, 0), program);
    wait_until(is_gone, &worker, 10, "the worker is still there");
}
END_TEST

/* Several at once, watched by poll(2). */
START_TEST(several_jobs)
{
    enum { N = 4 };
    dlaunch_job *j[N];
    struct heard h[N];
    int left = N;
    for (int i = 0; i < N; i++) {
        dlaunch_opts o = of(WORDS("sh", "-c", test_text("echo job %d; exit %d", i, i)), 2);
        j[i] = started(&o);
        h[i] = nothing();
    }
    while (left) {
        struct pollfd f[N];
        for (int i = 0; i < N; i++)
            f[i] = (struct pollfd){h[i].status < 0 ? dlaunch_job_fd(j[i]) : -1, POLLIN, 0};
        ck_assert_int_gt(poll(f, N, ms(30)), 0);
        for (int i = 0; i < N; i++) {
            const dlaunch_event *e;
            while (f[i].revents && (e = dlaunch_job_next(j[i])))
                hear(&h[i], e);
            left -= f[i].revents && h[i].status >= 0;
        }
    }
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(h[i].status, i);
        expect_text(h[i].out, test_text("job %d\n", i));
        heard_fini(&h[i]);
        dlaunch_job_free(j[i]);
    }
}
END_TEST

/* More output, and a larger environment, than any buffer between holds. */
START_TEST(large_ones)
{
    enum { LINES = 200000, BYTES = 1 << 16 };
    dlaunch_opts o =
        of(WORDS("sh", "-c", "seq 200000; echo ${#BIG1} ${#BIG9} in $PWD $DLAUNCH_X"), 1);
    char *big[10];
    const char *env[12] = {[10] = "DLAUNCH_X=kept"};
    for (int i = 0; i < 10; i++) {
        big[i] = xmalloc(BYTES + 8);
        snprintf(big[i], BYTES + 8, "BIG%d=", i);
        memset(big[i] + 5, 'x', BYTES);
        big[i][BYTES + 5] = '\0';
        env[i] = big[i];
    }
    o.env = env;
    o.cwd = "/usr";
    struct heard h = run(&o);
    ck_assert_msg(h.status == 0, "%s", h.why);
    char *at = h.out, *end;
    for (long i = 1; i <= LINES; i++, at = end + 1) {
        ck_assert_int_eq(strtol(at, &end, 10), i);
        ck_assert_int_eq(*end, '\n');
    }
    expect_text(at, "65536 65536 in /usr kept\n");
    heard_fini(&h);
    for (int i = 0; i < 10; i++)
        free(big[i]);
}
END_TEST

/* As one command for many hosts: its head passes the events on. */
START_TEST(hosts)
{
    dlaunch_opts o = of(WORDS("sh", "-c", "echo rank $RANK"), 0);
    o.hosts = "localhost:2";
    struct heard h = run(&o);
    ck_assert_msg(h.status == 0, "%d %s", h.status, h.log);
    expect_text(h.out, "rank 1\n");
    ck_assert_int_eq(count_text(h.names, "worker.start "), 2);
    expect_text(h.names, "finish ");
    heard_fini(&h);
}
END_TEST

/* A program that was built before the options had a version. */
START_TEST(older_options)
{
    dlaunch_opts o = of(WORDS("sh", "-c", "echo hi"), 1);
    o.size = offsetof(dlaunch_opts, version);
    o.version = 77;
    struct heard h = run(&o);
    ck_assert_int_eq(h.status, 0);
    heard_fini(&h);
    ck_assert_int_ge(dlaunch_version(), DLAUNCH_VERSION_NUMBER(0, 1, 0));
    ck_assert_int_lt(DLAUNCH_VERSION_NUMBER(1, 9, 30), DLAUNCH_VERSION_NUMBER(1, 10, 2));
}
END_TEST

/* A forked child has a copy of the job, which it can only free: the job goes on. */
START_TEST(a_forked_child_ends)
{
    int status;
    dlaunch_opts o = of(WORDS("sh", "-c", "echo up; read x < go; exit 7"), 1);
    o.cwd = tmpdir();
    ck_assert_int_eq(mkfifo(tmppath("go"), 0600), 0);
    dlaunch_job *j = started(&o);
    pid_t child = fork();
    if (child == 0) {
        int wrong = dlaunch_job_next(j) || dlaunch_job_signal(j, SIGTERM) != -EPERM;
        dlaunch_job_free(j);
        _exit(wrong);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    int go = open(tmppath("go"), O_WRONLY);
    ck_assert_int_eq(write(go, "\n", 1), 1);
    struct heard h = heard_to_the_end(j);
    ck_assert_int_eq(h.status, 7);
    close(go);
    heard_fini(&h);
    dlaunch_job_free(j);
}
END_TEST

static bool nobody_has(void *marker)
{
    return count_processes_with_env(marker) == 0;
}

/* A forked child that lives on keeps nothing of the job: dlaunch learns that the program is gone,
 * which frees the job, or is killed, and ends the workers in order. */
START_TEST(a_forked_child_lives_on)
{
    char *term = tmppath("term"), *up = tmppath("up"); /* this process's */
    char *marker = test_text("JOB_MARK=%d.%d", (int)getpid(), _i);
    dlaunch_opts o =
        of(WORDS(build_path("tests/worker"), "trap", "TERM", term, "append", up, "pause"), 1);
    o.env = WORDS(marker);
    int hold[2];
    ck_assert_int_eq(pipe(hold), 0);
    pid_t owner = fork();
    if (owner == 0) {
        dlaunch_job *j = started(&o);
        pid_t child = fork();
        if (child == 0) {
            close(hold[1]);
            char byte;
            _exit(read(hold[0], &byte, 1) < 0 || dlaunch_job_fd(j) != -1); /* until the test ends */
        }
        wait_lines(up, 1, 20);
        if (_i == 0) {
            dlaunch_job_free(j);
            _exit(0);
        }
        raise(SIGKILL);
    }
    int status;
    uint64_t start = mono_ns();
    close(hold[0]);
    ck_assert_int_eq(waitpid(owner, &status, 0), owner);
    ck_assert_int_eq(status, _i == 0 ? 0 : SIGKILL);
    wait_until(nobody_has, marker, 20, "the end of the job");
    ck_assert(_i > 0 || (double)(mono_ns() - start) / 1e9 < test_seconds(4)); /* 5 s: killed */
    ck_assert_int_eq(access(term, F_OK), 0);
    close(hold[1]);
}
END_TEST

/* The same from Python, whose children end by the interpreter; and run(), whatever standard output
 * takes. Lines come as bytes, of which a frame may end within a character. */
static const char g_python[] =
    "import dlaunch, io, os, sys\n"
    "j = dlaunch.Job(['sh', '-c', 'read x < go; exit 7'])\n"
    "if os.fork() == 0:\n"
    "    sys.exit(0)\n"
    "assert os.wait()[1] == 0\n"
    "open('go', 'w').write('\\n')\n"
    "assert [e.data.exit_status for e in j if e.type == 'end'] == [7]\n"
    "long = [sys.executable, '-c', 'import sys; sys.stdout.buffer.write(\"a\\u20ac\".encode() * "
    "99999)']\n"
    "text = io.TextIOWrapper(io.BytesIO(), encoding='ascii')\n"
    "plain, old = io.StringIO(), sys.stdout\n"
    "for sys.stdout in (text, plain):\n"
    "    dlaunch.run(long)\n"
    "sys.stdout = old\n"
    "assert text.buffer.getvalue().decode() == plain.getvalue() == 'a\\u20ac' * 99999\n"
    "print('all is well')\n";

START_TEST(python)
{
    struct proc p;
    char *env[] = {test_text("DLAUNCH=%s", build_path("dlaunch")),
                   test_text("PYTHONPATH=%s/collectives/python", getcwd(NULL, 0)), NULL};
    if (access("build/libdlaunch.so.0", F_OK) < 0) {
        test_skip("the package dlaunch takes libdlaunch of build/, which is not there");
        return;
    }
    write_file(tmppath("t.py"), g_python);
    proc_start(&p, ARGV("sh", "-c", "cd $0 && mkfifo go && exec python3 t.py", (char *)tmpdir()),
               env, 0);
    ck_assert_msg(proc_wait(&p, 60) == 0, "%s", p.err);
    expect_text(p.out, "all is well");
    proc_fini(&p);
}
END_TEST

/* Whoever runs dlaunch is killed: the job is over, and its workers are gone. */
START_TEST(dlaunch_is_killed)
{
    dlaunch_opts o = of(g_sleeper, 1);
    dlaunch_job *j = started(&o);
    pid_t worker = worker_of(j);
    char *children = text_of_file(test_text("/proc/%d/task/%d/children", getpid(), getpid()));
    ck_assert_int_eq(kill((pid_t)atol(children), SIGKILL), 0);
    struct heard h = heard_to_the_end(j);
    ck_assert_int_eq(h.status, 125);
    expect_text(h.why, "was killed by signal 9");
    wait_until(is_gone, &worker, 10, "the worker is still there");
    heard_fini(&h);
    dlaunch_job_free(j);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("api");
    TCase *tc = test_case(s, "api", 60);
    tcase_add_test(tc, output_events_and_end);
    tcase_add_test(tc, a_failure_is_explained);
    tcase_add_loop_test(tc, what_dlaunch_refuses, 0, sizeof(g_refused) / sizeof(*g_refused));
    tcase_add_test(tc, what_the_library_refuses);
    tcase_add_loop_test(tc, another_program, 0, 4);
    tcase_add_test(tc, signals_stop_it);
    tcase_add_test(tc, free_ends_it);
    tcase_add_test(tc, it_ends_with_the_program);
    tcase_add_test(tc, several_jobs);
    tcase_add_test(tc, large_ones);
    tcase_add_test(tc, hosts);
    tcase_add_test(tc, dlaunch_is_killed);
    tcase_add_test(tc, older_options);
    tcase_add_test(tc, a_forked_child_ends);
    tcase_add_loop_test(tc, a_forked_child_lives_on, 0, 2);
    tcase_add_test(tc, python);
    return s;
}

TEST_MAIN(suite)
