/* The event log of whole jobs: the file, its order on several nodes, and what is left of earlier
 * attempts. */
#include "tests/integration/job.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define EVENTS_LINES 256

struct events {
    int n;
    json_t *line[EVENTS_LINES];
};

static struct events read_events(const char *path)
{
    struct events e = {0};
    char *text = text_of_file(path);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        ck_assert_int_lt(e.n, EVENTS_LINES);
        json_t *j = e.line[e.n++] = json_loads(line, 0, NULL);
        ck_assert_msg(j, "not JSON: %s", line);
        ck_assert(json_number_value(json_object_get(j, "timestamp")) > 1e9);
        ck_assert(json_is_string(json_object_get(j, "name")));
        ck_assert(json_is_object(json_object_get(j, "context")));
    }
    ck_assert_int_gt(e.n, 0);
    return e;
}

static void events_fini(struct events *e)
{
    for (int i = 0; i < e->n; i++)
        json_decref(e->line[i]);
}

static const char *name_of(const struct events *e, int i)
{
    return json_word(e->line[i], "name");
}

/* The k-th event of that name, from 0; fails if there is none. */
static json_t *event_context(const struct events *e, const char *name, int k)
{
    for (int i = 0; i < e->n; i++) {
        if (strcmp(name_of(e, i), name) == 0 && k-- == 0)
            return json_object_get(e->line[i], "context");
    }
    ck_abort_msg("no such event: %s", name);
    return NULL;
}

static int count_events(const struct events *e, const char *name)
{
    int n = 0;
    for (int i = 0; i < e->n; i++)
        n += strcmp(name_of(e, i), name) == 0;
    return n;
}

/* A job of one node that recovers: what happened is in the events and in the report. */
START_TEST(a_recovered_failure)
{
    struct proc p;
    ck_assert_int_eq(dlaunch_run(&p, 30,
                                 "--nproc_per_node 2 --max_restarts 1 --rdzv_id j --report %%T/r "
                                 "--events %%T/e --log_dir %%T/logs -r 3 %%W err why append %%T/up "
                                 "if-attempt 0 wait-lines 2 %%T/up if-attempt 0 if-rank 1 exit 17"),
                     0);
    struct events e = read_events(tmppath("e"));
    ck_assert_str_eq(name_of(&e, 0), "submit");
    ck_assert_str_eq(name_of(&e, e.n - 1), "finish");
    ck_assert_str_eq(json_word(event_context(&e, "submit", 0), "run_id"), "j");
    ck_assert_int_eq(json_number(event_context(&e, "submit", 0), "schema"), 1);
    ck_assert_int_eq(count_events(&e, "start"), 2);
    ck_assert_int_eq(count_events(&e, "worker.start"), 4);
    ck_assert_int_eq(count_events(&e, "worker.finish"), 4);
    ck_assert_int_eq(count_events(&e, "worker.first-output"), 4);
    const json_t *failure = event_context(&e, "failure", 0);
    ck_assert_str_eq(json_word(failure, "cause"), "exit");
    ck_assert_int_eq(json_number(failure, "rank"), 1);
    ck_assert_int_eq(json_number(failure, "exit_code"), 17);
    ck_assert_int_eq(json_number(event_context(&e, "restart", 0), "attempt"), 1);
    ck_assert_int_eq(json_number(event_context(&e, "finish", 0), "exit_code"), 0);
    events_fini(&e);

    json_t *r = json_of_file(tmppath("r")), *attempts = json_object_get(r, "attempts");
    ck_assert_uint_eq(json_array_size(attempts), 2);
    const json_t *first = json_array_get(attempts, 0), *second = json_array_get(attempts, 1);
    ck_assert_str_eq(json_word(first, "cause"), "exit");
    ck_assert_str_eq(json_word(first, "ranks"), "0-1");
    ck_assert_int_eq(json_number(json_object_get(first, "first_failure"), "rank"), 1);
    ck_assert_str_eq(json_word(json_object_get(first, "first_failure"), "stderr_tail"), "why");
    expect_text(json_word(first, "log_dir"), "/attempt_0");
    expect_text(json_word(first, "ended"), "Z");
    ck_assert(json_is_null(json_object_get(second, "cause")));
    ck_assert(json_is_null(json_object_get(second, "first_failure")));
    json_decref(r);
    proc_fini(&p);
}
END_TEST

/* Both launchers write the events of both, in one order. The first round is not ready before the
 * coordinator knows that the workers of both nodes have been started. */
START_TEST(every_node_has_the_same_events)
{
    struct cluster c = {.n = 2, .port = free_port()};
    for (int i = 0; i < 2; i++)
        cluster_start_node(
            &c, i,
            "--nproc_per_node 2 --max_restarts 1 --events %%T/e%d %%W print hi append "
            "%%T/up if-attempt 0 wait-lines 4 %%T/up if-attempt 1 wait-lines 8 "
            "%%T/up if-attempt 0 wait-text \"ready\" %%T/e%d if-attempt 0 if-rank 2 exit 17",
            i, i);
    cluster_wait(&c, 0, 60);
    struct events a = read_events(tmppath("e0")), b = read_events(tmppath("e1"));
    ck_assert_int_eq(a.n, b.n);
    for (int i = 0; i < a.n; i++)
        ck_assert_msg(json_equal(a.line[i], b.line[i]), "line %d: %s and %s", i, name_of(&a, i),
                      name_of(&b, i));
    ck_assert_int_eq(count_events(&a, "submit"), 2);
    ck_assert_int_eq(count_events(&a, "node-join"), 2);
    ck_assert_int_eq(count_events(&a, "worker.start"), 8);
    ck_assert_int_eq(count_events(&a, "worker.finish"), 8);
    ck_assert_int_eq(count_events(&a, "ready"), 2);
    ck_assert_str_eq(name_of(&a, a.n - 1), "finish");
    ck_assert_int_eq(json_number(event_context(&a, "failure", 0), "rank"), 2);
    ck_assert_int_eq(json_number(event_context(&a, "failure", 0), "node"), 1);
    events_fini(&a);
    events_fini(&b);
    cluster_fini(&c);
}
END_TEST

/* ----------------------------------------------------------------------------------- dlaunchctl */

static int ctl(struct proc *p, const char *line)
{
    char *argv[12] = {(char *)build_path("dlaunchctl")}, *copy = (char *)test_text("%s", line);
    int n = 1;
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[n++] = word;
    return proc_run(p, argv, NULL, 60);
}

/* The classes of a ledger add up to the time of all nodes. */
static double ledger_sum(const json_t *ledger)
{
    const char *key;
    json_t *value;
    double sum = 0;
    json_object_foreach((json_t *)ledger, key, value)
    {
        bool part = strcmp(key, "total_s") != 0 && strcmp(key, "nodes") != 0;
        sum += part ? json_number_value(value) : 0;
    }
    return sum;
}

START_TEST(the_ledger_of_two_nodes)
{
    struct cluster c = {.n = 2, .port = free_port()};
    for (int i = 0; i < 2; i++)
        cluster_start_node(
            &c, i,
            "--nproc_per_node 2 --max_restarts 1 --ledger --checkpoint_mark %%T/mark --report "
            "%%T/r%d %%W append %%T/up if-attempt 0 wait-lines 4 %%T/up if-attempt 1 wait-lines 8 "
            "%%T/up if-attempt 0 if-rank 2 exit 17",
            i);
    cluster_wait(&c, 0, 60);
    expect_text(c.node[0].err, "\nWhere the time went (2 nodes, ");
    expect_text(c.node[0].err, "\n  lost since the last checkpoint ");
    json_t *ledger[2], *report[2];
    for (int i = 0; i < 2; i++) {
        report[i] = json_load_file(tmppath(i ? "r1" : "r0"), 0, NULL);
        ledger[i] = json_object_get(report[i], "ledger");
        double total = json_number_value(json_object_get(ledger[i], "total_s"));
        ck_assert_int_eq(json_number(ledger[i], "nodes"), 2);
        ck_assert_double_gt(total, 0);
        ck_assert_double_eq_tol(ledger_sum(ledger[i]), total, 1e-8 * 16);
        ck_assert_double_gt(json_number_value(json_object_get(ledger[i], "lost_s")), 0);
        ck_assert_double_gt(json_number_value(json_object_get(ledger[i], "restart_s")), 0);
        ck_assert_double_gt(json_number_value(json_object_get(ledger[i], "running_s")), 0);
    }
    ck_assert(json_equal(ledger[0], ledger[1]));
    json_decref(report[0]);
    json_decref(report[1]);
    cluster_fini(&c);
}
END_TEST

/* The number of entries of that name; `phase` is the letter of their kind. Checks all. */
static int count_entries(const json_t *trace, const char *phase, const char *name)
{
    json_t *e;
    size_t i;
    int n = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, e)
    {
        bool hit =
            strcmp(json_word(e, "ph"), phase) == 0 && strcmp(json_word(e, "name"), name) == 0;
        ck_assert(json_is_integer(json_object_get(e, "pid")));
        ck_assert(json_is_integer(json_object_get(e, "tid")));
        ck_assert(json_is_number(json_object_get(e, "ts")));
        if (*phase == 'X' && hit) {
            ck_assert(json_number_value(json_object_get(e, "ts")) >= 0);
            ck_assert(json_number_value(json_object_get(e, "dur")) >= 0);
        }
        n += hit;
    }
    return n;
}

/* Rounds, restarts and workers of both nodes, in the file of either. */
START_TEST(the_timeline_of_two_nodes)
{
    struct cluster c = {.n = 2, .port = free_port()};
    for (int i = 0; i < 2; i++)
        cluster_start_node(
            &c, i,
            "--nproc_per_node 2 --max_restarts 1 --timeline %%T/t%d %%W print hi append "
            "%%T/up if-attempt 0 wait-lines 4 %%T/up if-attempt 1 wait-lines 8 %%T/up "
            "if-attempt 0 if-rank 2 exit 17",
            i);
    cluster_wait(&c, 0, 60);
    for (int i = 0; i < 2; i++) {
        json_t *t = json_load_file(tmppath(i ? "t1" : "t0"), 0, NULL);
        ck_assert_ptr_nonnull(t);
        ck_assert_int_eq(count_entries(t, "X", "round 1"), 1);
        ck_assert_int_eq(count_entries(t, "X", "round 2"), 1);
        ck_assert_int_eq(count_entries(t, "X", "rendezvous"), 2);
        ck_assert_int_eq(count_entries(t, "X", "restart"), 1);
        ck_assert_int_eq(count_entries(t, "X", "worker"), 8);
        ck_assert_int_eq(count_entries(t, "X", "RUNNING"), 4);
        ck_assert_int_ge(count_entries(t, "i", "failure"), 1);
        ck_assert_int_eq(count_entries(t, "M", "process_name"), 3);
        json_decref(t);
    }
    cluster_fini(&c);
}
END_TEST

/* Operations of libdlcoll, in the file and while the job runs. */
START_TEST(operations_in_the_timeline)
{
    struct proc p;
    char *allreduce = build_path("examples/allreduce");
    dlaunch_start(&p, NULL, "--nproc_per_node 2 --timeline %%T/t %s", allreduce);
    expect_status(&p, 0, 60);
    json_t *t = json_load_file(tmppath("t"), 0, NULL);
    ck_assert_ptr_nonnull(t);
    ck_assert_int_ge(count_entries(t, "X", "all_reduce"), 2);
    ck_assert_int_eq(count_entries(t, "X", "worker"), 2);
    json_decref(t);
    proc_fini(&p);
    ck_assert_int_eq(dlaunch_run(&p, 30, "--timeline %%T/no/t %%W exit 0"), 2);
    expect_text(p.err, "--timeline");
    proc_fini(&p);
}
END_TEST

/* Ranks whose operations dlaunchctl timeline has, one bit each. */
static bool has_operations_of_all(void *arg)
{
    struct proc p;
    json_t *e;
    size_t i;
    unsigned ranks = 0;
    if (ctl(&p, arg) == 0) {
        json_t *t = json_loads(p.out, 0, NULL);
        json_array_foreach(json_object_get(t, "traceEvents"), i, e)
        {
            if (strcmp(json_word(e, "name"), "all_reduce") == 0)
                ranks |= 1u << json_number(e, "tid");
        }
        json_decref(t);
    }
    proc_fini(&p);
    return ranks == 15;
}

/* While a job runs, of both nodes. */
START_TEST(operations_of_two_nodes)
{
    struct cluster c = {.n = 2, .port = free_port()};
    for (int i = 0; i < 2; i++)
        cluster_start_node(&c, i, "--nproc_per_node 2 %s --epochs 1000000",
                           build_path("examples/train"));
    proc_expect_out(&c.node[0], "epoch", 60);
    wait_until(has_operations_of_all, test_text("-p %d timeline", (int)c.node[1].pid), 60,
               "operations of all ranks");
    proc_kill(&c.node[0], SIGTERM);
    proc_kill(&c.node[1], SIGTERM);
    for (int i = 0; i < 2; i++)
        proc_wait(&c.node[i], 60);
    cluster_fini(&c);
}
END_TEST

/* A file is appended to; a bad one is refused before anything starts. */
START_TEST(the_file)
{
    struct proc p;
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(dlaunch_run(&p, 30, "--events %%T/e %%W exit 0"), 0);
        proc_fini(&p);
    }
    struct events e = read_events(tmppath("e"));
    ck_assert_int_eq(count_events(&e, "finish"), 2);
    events_fini(&e);
    ck_assert_int_eq(dlaunch_run(&p, 30, "--events %%T/no/e %%W exit 0"), 2);
    expect_text(p.err, "--events");
    proc_fini(&p);
}
END_TEST

START_TEST(own_lines)
{
    struct proc p;
    ck_assert_int_eq(dlaunch_run(&p, 30,
                                 "--log_format json --max_restarts 1 %%W if-attempt 0 "
                                 "exit 3"),
                     0);
    json_t *j = json_loads(strtok(p.err, "\n"), 0, NULL);
    ck_assert_ptr_nonnull(j);
    ck_assert_str_eq(json_word(j, "name"), "log");
    ck_assert_str_eq(json_word(json_object_get(j, "context"), "level"), "notice");
    expect_text(json_word(json_object_get(j, "context"), "text"), "restart 1 of 1");
    json_decref(j);
    proc_fini(&p);
    ck_assert_int_eq(dlaunch_run(&p, 30,
                                 "--log_file %%T/log --max_restarts 1 %%W if-attempt 0 "
                                 "exit 3"),
                     0);
    char *text = text_of_file(tmppath("log"));
    int year, zone;
    ck_assert_int_eq(sscanf(text, "%4d-%*2d-%*2dT%*2d:%*2d:%*6f%3d", &year, &zone), 2);
    expect_text(text, " dlaunch: worker 0 (local rank 0) on ");
    proc_fini(&p);
}
END_TEST

/* The figures of both nodes, asked on the one that is not the coordinator. */
START_TEST(top_of_two_nodes)
{
    struct proc p;
    struct cluster c = {.n = 2, .port = free_port()};
    for (int i = 0; i < 2; i++)
        cluster_start_node(&c, i, "--nproc_per_node 2 %%W print hi append %%T/up pause");
    wait_lines(tmppath("up"), 4, 30);
    char *line = test_text("-o json -p %d top", (int)c.node[1].pid);
    ck_assert_msg(ctl(&p, line) == 0, "%s%s", p.out, p.err);
    json_t *top = json_loads(p.out, 0, NULL), *node, *w;
    size_t i, k;
    int ranks = 0;
    ck_assert_msg(json_is_true(json_object_get(top, "complete")), "%s", p.out);
    ck_assert_uint_eq(json_array_size(json_object_get(top, "nodes")), 2);
    json_array_foreach(json_object_get(top, "nodes"), i, node)
    {
        ck_assert_str_eq(json_word(node, "state"), "RUNNING");
        json_array_foreach(json_object_get(node, "workers"), k, w)
        {
            ck_assert_int_eq(json_number(w, "rank"), ranks++);
            ck_assert_str_eq(json_word(w, "state"), "running");
            ck_assert_int_gt(json_number(w, "memory_bytes"), 0);
            ck_assert(json_number_value(json_object_get(w, "output_age_s")) >= 0);
        }
    }
    ck_assert_int_eq(ranks, 4);
    json_decref(top);
    proc_fini(&p);
    line = test_text("-p %d top", (int)c.node[1].pid);
    ck_assert_int_eq(ctl(&p, line), 0);
    expect_text(p.out, "RUNNING for ");
    expect_text(p.out, "2 of 2 nodes, 4 of 4 workers run");
    expect_text(p.out, "\n3      1 ");
    proc_fini(&p);
    proc_kill(&c.node[0], SIGTERM);
    proc_kill(&c.node[1], SIGTERM);
    cluster_wait(&c, 128 + SIGTERM, 60);
    cluster_fini(&c);
}
END_TEST

static void expect_ctl(const char *line, const char *text)
{
    struct proc p;
    ck_assert_msg(ctl(&p, line) == 0, "%s: %s%s", line, p.out, p.err);
    expect_text(p.out, text);
    proc_fini(&p);
}

static pid_t pid_of(const struct cluster *c, int i)
{
    return c->node[i].pid;
}

/* Asked on one node, it answers for both, and what it does happens on both. */
START_TEST(the_whole_job_from_one_node)
{
    struct cluster c;
    struct proc p;
    setenv("XDG_RUNTIME_DIR", tmpdir(), 1);
    cluster_start(&c, 2,
                  "--nproc_per_node 2 --rdzv_id abcdef -r 3 --log_dir %%T/logs %%W print hi "
                  "trap USR1 %%T/usr1 append %%T/up pause");
    wait_lines(tmppath("up"), 4, 30);
    int pid = (int)pid_of(&c, 1);
    expect_ctl(test_text("wait ready %d --timeout 30", pid), "ready");
    ck_assert_int_eq(ctl(&p, test_text("status %d -o json", pid)), 0);
    json_t *j = json_loads(p.out, 0, NULL), *job = json_object_get(j, "job");
    ck_assert_msg(json_is_true(json_object_get(job, "complete")), "%s", p.out);
    ck_assert_uint_eq(json_array_size(json_object_get(job, "nodes")), 2);
    ck_assert_uint_eq(json_array_size(json_object_get(job, "workers")), 4);
    json_decref(j);
    proc_fini(&p);
    expect_ctl(test_text("events %d", pid), "worker.start");
    expect_ctl(test_text("logs --ranks 3 %d", pid), "[3]:hi\n");
    expect_ctl(test_text("describe %d", pid), "node 0, ");
    expect_ctl(test_text("signal USR1 --ranks 0,3 %d", pid), "signalling");
    wait_lines(tmppath("usr1"), 2, 30);
    expect_ctl(test_text("restart %d", pid), "restarting");
    wait_lines(tmppath("up"), 8, 30);
    ck_assert_int_eq(ctl(&p, test_text("wait failure %d --timeout 0.2", pid)), 124);
    proc_fini(&p);
    struct proc following;
    proc_start(&following,
               ARGV((char *)build_path("dlaunchctl"), "events", "-f", (char *)test_text("%d", pid)),
               NULL, 0);
    proc_expect_out(&following, "restart", 30); /* it follows */
    expect_ctl(test_text("kill --wait %d", pid), "has ended");
    ck_assert_int_eq(proc_wait(&following, 30), 0);
    expect_text(following.out, "  finish ");
    proc_fini(&following);
    cluster_wait(&c, 137, 30);
    cluster_fini(&c);
}
END_TEST

/* A job by what people call it. */
START_TEST(names_of_a_job)
{
    struct proc a, b, p;
    setenv("XDG_RUNTIME_DIR", tmpdir(), 1);
    /* Other users of this host have jobs, too. */
    char *id = (char *)test_text("night%d", (int)getpid()), *of_b = (char *)test_text("b%s", id);
    ck_assert_int_eq(symlink(build_path("tests/worker"), tmppath(of_b)), 0);
    dlaunch_start(&a, NULL, "--rdzv_id %s-7 %%W append %%T/up pause", id);
    dlaunch_start(&b, NULL, "--rdzv_id %s-8 %%T/%s append %%T/up pause", id, of_b);
    wait_lines(tmppath("up"), 2, 30);
    expect_ctl(test_text("status %s-7", id), "-7, process");
    expect_ctl(test_text("status %s", of_b), "-8, process");
    ck_assert_int_eq(ctl(&p, test_text("status %s", id)), 1);
    expect_text(p.err, "2 running jobs");
    proc_fini(&p);
    expect_ctl("", of_b);
    expect_ctl(test_text("stop --wait %s", of_b), "has ended");
    expect_ctl(test_text("status %s", id), "-7, process");
    ck_assert_int_eq(ctl(&p, test_text("kill --wait %s", id)), 1); /* a slip would cost a job */
    expect_text(p.err, "is only the beginning of the run id");
    proc_fini(&p);
    expect_ctl(test_text("kill --wait %s-7", id), "has ended");
    ck_assert_int_eq(proc_wait(&a, 30), 137);
    ck_assert_int_eq(proc_wait(&b, 30), 143);
    proc_fini(&a);
    proc_fini(&b);
}
END_TEST

/* A launcher that is killed tells no end: who follows it says so. A time that is longer than an int
 * has milliseconds is no short one. */
START_TEST(a_launcher_is_killed)
{
    struct proc p, f[3];
    setenv("XDG_RUNTIME_DIR", tmpdir(), 1);
    dlaunch_start(&p, NULL, "--log_dir %%T/logs --redirects 3 %%W append %%T/up pause");
    wait_lines(tmppath("up"), 1, 30);
    char *pid = test_text("%d", (int)p.pid), *ctl_path = build_path("dlaunchctl");
    /* 2^32 ms and 1 ms */
    proc_start(&f[2], ARGV(ctl_path, "wait", "failure", pid, "--timeout", "4294967.297"), NULL, 0);
    proc_start(&f[1], ARGV(ctl_path, "logs", "-f", pid), NULL, 0);
    proc_start(&f[0], ARGV(ctl_path, "events", "-f", pid), NULL, 0);
    proc_expect_out(&f[0], "worker.start", 30);
    expect_ctl(test_text("events %s", pid), "worker.start");
    ck_assert_int_eq(waitpid(f[2].pid, NULL, WNOHANG), 0);
    kill(agent_of(&p), SIGKILL);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(proc_wait(&f[i], 30), 1);
        expect_text(f[i].err, "is gone without the end of the job");
        proc_fini(&f[i]);
    }
    proc_fini(&p);
}
END_TEST

/* --on_cause, beside a mistake in it. */
START_TEST(actions)
{
    struct proc p;
    ck_assert_int_eq(dlaunch_run(&p, 30,
                                 "--max_restarts 3 --on_cause crash=restart,exit=end %%W "
                                 "append %%T/a exit 3"),
                     3);
    ck_assert_int_eq(count_lines(tmppath("a")), 1);
    expect_words(p.err, "a failure of the class exit ends the job (--on_cause)");
    proc_fini(&p);
    ck_assert_int_eq(dlaunch_run(&p, 30, "--on_cause exit=explode %%W exit 0"), 2);
    expect_text(p.err, "'explode' is not an action (restart, end, evict)");
    proc_fini(&p);
    ck_assert_int_eq(dlaunch_run(&p, 30, "--on_cause timeout=end %%W exit 0"), 2);
    expect_text(p.err, "the action of 'timeout' cannot be changed");
    proc_fini(&p);
    ck_assert_int_eq(proc_run(&p, ARGV((char *)build_path("dlaunchctl"), "causes"), NULL, 20), 0);
    expect_text(p.out, "early-exit        restart  a worker exited with 0");
    proc_fini(&p);
}
END_TEST

/* The guardian is killed while most events wait for the file's reader: it gets them all. */
START_TEST(events_of_a_launcher_that_was_killed)
{
    enum { WORKERS = 40 };
    struct proc p;
    static char read_so_far[1 << 16];
    size_t len = 0;
    ck_assert_int_eq(mkfifo(tmppath("events"), 0600), 0);
    int fd = open(tmppath("events"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ck_assert_int_ge(fcntl(fd, F_SETPIPE_SZ, 4096), 0);
    dlaunch_start(&p, NULL, "--events %%T/events -n %d %%W append %%T/up pause", WORKERS);
    wait_lines(tmppath("up"), WORKERS, 20);
    proc_kill(&p, SIGKILL);
    fcntl(fd, F_SETFL, 0);
    for (ssize_t n; (n = read(fd, read_so_far + len, sizeof(read_so_far) - 1 - len)) > 0;)
        len += (size_t)n;
    read_so_far[len] = '\0';
    ck_assert_int_gt((int)len, 4096);
    ck_assert_int_eq(count_text(read_so_far, "\"worker.start\""), WORKERS);
    ck_assert_int_eq(read_so_far[len - 1], '\n');
    proc_fini(&p);
    close(fd);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("events");
    TCase *tc = test_case(s, "events", 120);
    tcase_add_test(tc, a_recovered_failure);
    tcase_add_test(tc, every_node_has_the_same_events);
    tcase_add_test(tc, the_ledger_of_two_nodes);
    tcase_add_test(tc, the_timeline_of_two_nodes);
    tcase_add_test(tc, operations_in_the_timeline);
    tcase_add_test(tc, top_of_two_nodes);
    tcase_add_test(tc, operations_of_two_nodes);
    tcase_add_test(tc, the_file);
    tcase_add_test(tc, events_of_a_launcher_that_was_killed);
    tcase_add_test(tc, own_lines);
    tcase_add_test(tc, actions);
    tc = test_case(s, "dlaunchctl", 120);
    tcase_add_test(tc, the_whole_job_from_one_node);
    tcase_add_test(tc, names_of_a_job);
    tcase_add_test(tc, a_launcher_is_killed);
    suite_add_tcase(s, tc);
    return s;
}

TEST_MAIN(suite)
