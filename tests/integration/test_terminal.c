/* A terminal: its keys, and what is shown on it; and signals as systemd and a scheduler send them.
 */
#include "tests/integration/job.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* -------------------------------------------------------------------------------- at a terminal */

struct terminal {
    int fd;
    pid_t pid;
    char text[65536]; /* what it has shown */
    size_t len;
};

/* dlaunch as the leader of a terminal's session. */
static void at_terminal(struct terminal *t, const char *line)
{
    char **argv = dlaunch_argv("", line);
    memset(t, 0, sizeof(*t));
    t->pid = forkpty(&t->fd, NULL, NULL, NULL);
    ck_assert_int_ge(t->pid, 0);
    if (t->pid == 0) {
        execv(argv[0], argv);
        _exit(127);
    }
    fcntl(t->fd, F_SETFL, O_NONBLOCK);
}

static void press(struct terminal *t, char key)
{
    ck_assert_int_eq(write(t->fd, &key, 1), 1);
}

static void look(struct terminal *t)
{
    for (ssize_t n; (n = read(t->fd, t->text + t->len, sizeof(t->text) - 1 - t->len)) > 0;)
        t->len += (size_t)n;
}

static bool has_shown_refusal(void *arg)
{
    struct terminal *t = arg;
    look(t);
    return strstr(t->text, "not suspended: the other nodes would take this one for lost") ||
           strstr(t->text, "not suspended: the first process of a PID namespace cannot be");
}

static int g_status;

static bool has_ended(void *arg)
{
    struct terminal *t = arg;
    look(t);
    return waitpid(t->pid, &g_status, WNOHANG) == t->pid && WIFEXITED(g_status);
}

/* Returns the exit status of dlaunch, after reading all its output. */
static int end_of(struct terminal *t)
{
    wait_until(has_ended, t, 20, "the end of dlaunch");
    look(t);
    close(t->fd);
    return WEXITSTATUS(g_status);
}

/* A signal soon after the first one counts as the same one, so this repeats the signal. */
static bool kills(void *arg)
{
    struct terminal *t = arg;
    look(t);
    if (strstr(t->text, "killing the workers"))
        return true;
    press(t, 3);
    return false;
}

START_TEST(ctrl_c_is_delivered_once)
{
    static struct terminal t;
    at_terminal(&t, "--nproc_per_node 2 %W trap INT %T/int append %T/up wait-lines 2 %T/int "
                    "append %T/wait pause");
    wait_lines(tmppath("up"), 2, 10);
    press(&t, 3);
    wait_lines(tmppath("wait"), 2, 10); /* each has had one, and neither a second */
    ck_assert_int_eq(count_lines(tmppath("int")), 2);
    wait_until(kills, &t, 10, "Ctrl-C once more kills");
    ck_assert_int_eq(end_of(&t), 128 + SIGINT);
    ck_assert_int_eq(count_lines(tmppath("int")), 2);
    expect_text(t.text, "received SIGINT: stopping 2 workers, SIGKILL after 30 s (repeat to kill "
                        "now)");
}
END_TEST

START_TEST(ctrl_backslash_and_hangup)
{
    static struct terminal t;
    at_terminal(&t, "--nproc_per_node 2 %W exit-on QUIT 0 append %T/up pause");
    wait_lines(tmppath("up"), 2, 10);
    press(&t, 28);
    ck_assert_int_eq(end_of(&t), 128 + SIGQUIT);
    /* The terminal goes. */
    at_terminal(&t, "--nproc_per_node 2 %W trap HUP %T/hup append %T/up2 wait-lines 2 %T/hup "
                    "append %T/end");
    wait_lines(tmppath("up2"), 2, 10);
    close(t.fd);
    wait_lines(tmppath("hup"), 2, 10);
    wait_lines(tmppath("end"), 2, 10);
    int status;
    ck_assert_int_eq(waitpid(t.pid, &status, 0), t.pid);
    ck_assert_int_eq(WEXITSTATUS(status), 128 + SIGHUP);
}
END_TEST

static int ticks(void)
{
    return count_lines(tmppath("tick"));
}

static bool ticks_again(void *before)
{
    return count_lines(tmppath("tick")) > *(int *)before;
}

static char state_of(int pid, int *parent)
{
    char state, *stat = text_of_file(test_text("/proc/%d/stat", pid)), *paren = strrchr(stat, ')');
    ck_assert_int_eq(sscanf(paren, ") %c %d", &state, parent), 2);
    return state;
}

/* Whether the agent has stopped, which it does after its workers; a worker's process id is in the
 * first line of a file. */
static bool agent_stopped(void *path)
{
    int pid, agent, guardian;
    ck_assert_int_eq(sscanf(text_of_file(path), "%*d %*d %*d %d", &pid), 1);
    state_of(pid, &agent);
    return state_of(agent, &guardian) == 'T';
}

START_TEST(ctrl_z_and_on)
{
    static struct terminal t;
    char *script = tmppath("script");
    write_file(script, test_text("#!/bin/sh\n"
                                 "echo 0 0 0 $$ 0 >%s/pid\n"
                                 "while :; do echo >>%s/tick; sleep 0.01; done\n",
                                 tmpdir(), tmpdir()));
    ck_assert_int_eq(chmod(script, 0755), 0);
    at_terminal(&t, "%T/script");
    wait_lines(tmppath("tick"), 2, 10);
    press(&t, 26); /* no shell is there to be told: dlaunch itself need not stop */
    wait_until(agent_stopped, tmppath("pid"), 5, "the workers and the agent stop");
    int before = ticks();
    kill(t.pid, SIGCONT);
    wait_until(ticks_again, &before, 10, "the worker goes on");
    press(&t, 3);
    ck_assert_int_eq(end_of(&t), 128 + SIGINT);
}
END_TEST

/* A SIGCONT that comes at once after a SIGTSTP, while dlaunch is about to stop, is not lost. */
START_TEST(ctrl_z_taken_back)
{
    enum { PAIRS = 200 };
    struct proc p;
    dlaunch_start(&p, NULL,
                  "--nproc_per_node 2 sh -c 'while :; do echo >>%s/tick; sleep 0.01; done'",
                  tmpdir());
    for (int i = 0; i < PAIRS; i++) {
        int before = count_lines(tmppath("tick"));
        proc_kill(&p, SIGTSTP);
        for (uint64_t until = mono_ns() + (uint64_t)(i % 20) * 100000; mono_ns() < until;)
            ; /* up to 2 ms later, at any point of the stop */
        proc_kill(&p, SIGCONT);
        wait_until(ticks_again, &before, 10, "the workers go on");
    }
    proc_kill(&p, SIGTERM);
    expect_status(&p, 128 + SIGTERM, 10);
    proc_fini(&p);
}
END_TEST

/* A node that sleeps would count as lost. */
START_TEST(ctrl_z_with_other_nodes)
{
    static struct terminal t;
    int port = free_port();
    struct proc other;
    at_terminal(&t, test_text("--nnodes 2 --node_rank 0 --master_port %d %%W append %%T/up wait "
                              "%%T/go",
                              port));
    dlaunch_start(&other, NULL,
                  "--nnodes 2 --node_rank 1 --master_port %d %%W append %%T/up wait "
                  "%%T/go",
                  port);
    wait_lines(tmppath("up"), 2, 10);
    press(&t, 26);
    wait_until(has_shown_refusal, &t, 10, "it says that it does not stop");
    write_file(tmppath("go"), "");
    ck_assert_int_eq(end_of(&t), 0);
    expect_status(&other, 0, 10);
    proc_fini(&other);
}
END_TEST

START_TEST(ctrl_z_in_a_namespace)
{
    static struct terminal t;
    struct proc p;
    test_no_leak_check();
    if (dlaunch_run(&p, 20, "--isolate pidns true") == 125) {
        test_skip("no PID namespace can be made here");
        return;
    }
    at_terminal(&t, "--isolate pidns %W append %T/up wait %T/go");
    wait_lines(tmppath("up"), 1, 10);
    press(&t, 26);
    wait_until(has_shown_refusal, &t, 10, "it says that it does not stop");
    write_file(tmppath("go"), "");
    ck_assert_int_eq(end_of(&t), 0);
    proc_fini(&p);
}
END_TEST

/* Escape sequences of workers cannot move the cursor of a terminal, with --tee or without; a pipe
 * gets them unchanged. */
START_TEST(escape_sequences_of_workers)
{
    static const char *const options[] = {"", "--tee 3 --log_dir %T/logs"};
    static struct terminal t;
    struct proc p;
    write_file(tmppath("script"), "#!/bin/sh\n"
                                  "printf '\\033[32mgreen\\033[m \\033[2J\\033]0;title\\007\\n'\n"
                                  "printf '\\033[31mred \\233 \\303\\251\\n' >&2\n");
    ck_assert_int_eq(chmod(tmppath("script"), 0755), 0);
    at_terminal(&t, test_text("%s %%T/script", options[_i]));
    ck_assert_int_eq(end_of(&t), 0);
    const char *prefix = _i ? "[default0]:" : "";
    expect_text(t.text, test_text("%s\x1b[32mgreen\x1b[m \\x1b[2J\\x1b]0;title\\x07\r\n", prefix));
    expect_text(t.text, test_text("%s\x1b[31mred \\x9b \xc3\xa9\r\n\x1b[m", prefix));
    dlaunch_start(&p, NULL, "%s %%T/script", options[_i]);
    expect_status(&p, 0, 20);
    expect_text(p.out, test_text("%s\x1b[32mgreen\x1b[m \x1b[2J\x1b]0;title\a\n", prefix));
    expect_text(p.err, test_text("%s\x1b[31mred \x9b \xc3\xa9\n", prefix));
    proc_fini(&p);
}
END_TEST

/* Lines of several workers that are alike are one on a terminal, and all are in the files; a pipe
 * gets what it was given. The workers wait for each other, so that a busy machine folds them, too.
 */
START_TEST(lines_of_all_workers_are_folded)
{
    static struct terminal t;
    struct proc p;
    write_file(tmppath("script"), "#!/bin/sh\necho $RANK >> $1\n"
                                  "while [ $(wc -l < $1) -lt 3 ]; do sleep 0.01; done\n"
                                  "echo \"rank $RANK is ready\"\n"
                                  "[ $RANK != 2 ] || echo 'only two' >&2\n");
    ck_assert_int_eq(chmod(tmppath("script"), 0755), 0);
    at_terminal(&t, "--nproc_per_node 3 --tee 3 --log_dir %T/logs %T/script %T/one");
    ck_assert_int_eq(end_of(&t), 0);
    expect_text(t.text, "[0-2]: rank 0..2 is ready\r\n");
    expect_text(t.text, "[default2]:only two\r\n");
    at_terminal(&t, "--nproc_per_node 3 --ranks 1-2 %T/script %T/two");
    ck_assert_int_eq(end_of(&t), 0);
    expect_text(t.text, "[1-2]: rank 1..2 is ready\r\n");
    dlaunch_start(&p, NULL, "--nproc_per_node 3 --ranks 1 %%T/script %%T/three");
    expect_status(&p, 0, 20);
    ck_assert_str_eq(p.out, "rank 1 is ready\n");
    proc_fini(&p);
    dlaunch_start(&p, NULL, "--nproc_per_node 2 --ranks 1- %%T/script %%T/four");
    expect_status(&p, 2, 20);
    expect_text(p.err, "--ranks: '1-' is not a list of numbers such as 0,8-15");
    proc_fini(&p);
}
END_TEST

static bool has_drawn_twice(void *arg)
{
    struct terminal *t = arg;
    look(t);
    char *first = strstr(t->text, " OUTPUT");
    return first && strstr(first + 1, "\033[H") && strstr(first + 1, " OUTPUT");
}

/* dlaunchctl top draws the screen again and again, and ends with the job, which has a socket with
 * an abstract address in a Slurm job; it knows a launcher that was killed, and one that is silent.
 */
START_TEST(top_at_a_terminal)
{
    static const char *const words[] = {"the job has ended", "is gone without the end of the job",
                                        "the job has ended", "does not answer: "};
    static char *const slurm[] = {"SLURM_JOB_ID=77", NULL};
    static struct terminal t;
    struct proc p;
    struct winsize size = {.ws_row = 8, .ws_col = 60};
    dlaunch_start(&p, _i == 2 ? slurm : NULL, "--nproc_per_node 9 %%W append %%T/up pause");
    wait_lines(tmppath("up"), 9, 20);
    char *argv[] = {(char *)build_path("dlaunchctl"), "-p", (char *)test_text("%d", (int)p.pid),
                    "top", NULL};
    memset(&t, 0, sizeof(t));
    t.pid = forkpty(&t.fd, NULL, NULL, &size);
    ck_assert_int_ge(t.pid, 0);
    if (t.pid == 0) {
        execv(argv[0], argv);
        _exit(127);
    }
    fcntl(t.fd, F_SETFL, O_NONBLOCK);
    wait_until(has_drawn_twice, &t, 20, "the screen is drawn again");
    pid_t agent = agent_of(&p);
    if (_i == 3) {
        kill(agent, SIGSTOP);
        ck_assert_int_eq(end_of(&t), 1);
        kill(agent, SIGCONT);
    }
    if (_i == 1)
        kill(agent, SIGKILL);
    else
        proc_kill(&p, SIGTERM);
    expect_status(&p, _i == 1 ? 128 + SIGKILL : 128 + SIGTERM, 20);
    if (_i != 3)
        ck_assert_int_eq(end_of(&t), _i == 1);
    expect_text(t.text, words[_i]);
    *strstr(t.text, "dlaunchctl: ") = '\0';
    for (char *line = t.text, *nl; (nl = strchr(line, '\n')); line = nl + 1)
        ck_assert_msg(nl - line <= 60 + 16, "too wide: %.*s", (int)(nl - line), line);
    proc_fini(&p);
}
END_TEST

/* ------------------------------------------------------------------------------- from elsewhere */

static const struct {
    const char *name;
    int no;
} stops[] = {{"TERM", SIGTERM}, {"INT", SIGINT}, {"HUP", SIGHUP}, {"QUIT", SIGQUIT}};

/* Every stop signal: itself to each worker, once; those that end are done; the others are killed
 * when their time is over. */
START_TEST(stop_signals)
{
    struct proc p;
    const char *name = stops[_i].name;
    dlaunch_start(&p, NULL,
                  "--nproc_per_node 3 --shutdown_timeout 500ms "
                  "--signals_to_handle TERM,INT,HUP,QUIT,SIGTERM,SIGINT,SIGHUP,SIGQUIT %%W trap %s "
                  "%%T/got if-rank 2 "
                  "exit-on %s 9 append %%T/up pause",
                  name, name);
    wait_lines(tmppath("up"), 3, 10);
    uint64_t start = mono_ns();
    proc_kill(&p, stops[_i].no);
    expect_status(&p, 128 + stops[_i].no, 10);
    ck_assert_uint_ge(mono_ns() - start, 490000000u);
    ck_assert_int_eq(count_lines(tmppath("got")), 2);
    expect_text(p.err, test_text("received SIG%s: stopping 3 workers", name));
    expect_text(p.err, "2 workers did not stop within 0.5 s: killing");
    expect_text(p.err, test_text("STOPPED: "));
    proc_fini(&p);
}
END_TEST

/* Several nodes: one that is told to stop takes the others with it. */
START_TEST(stop_of_one_node)
{
    for (int told = 0; told < 2; told++) {
        struct cluster c;
        char *up = tmppath(told ? "up1" : "up0");
        cluster_start(&c, 2, "--nproc_per_node 2 %%W exit-on TERM 0 exit-on INT 0 append %s pause",
                      up);
        wait_lines(up, 4, 20);
        proc_kill(&c.node[told], SIGINT);
        cluster_wait(&c, 128 + SIGINT, 10);
        for (int i = 0; i < 2; i++)
            expect_text(c.node[i].err, "received SIGINT");
        cluster_fini(&c);
    }
}
END_TEST

/* While the nodes wait for each other. */
START_TEST(stop_before_the_start)
{
    struct cluster c = {.n = 1, .port = free_port()};
    dlaunch_start(&c.node[0], NULL, "--nnodes 2 --node_rank 0 --master_port %d %%W append %%T/up",
                  c.port);
    proc_expect_err(&c.node[0], "waiting for nodes", 10);
    proc_kill(&c.node[0], SIGTERM);
    cluster_wait(&c, 128 + SIGTERM, 10);
    ck_assert_int_ne(access(tmppath("up"), F_OK), 0);
    cluster_fini(&c);
}
END_TEST

/* torchrun's option: these stop the job. */
START_TEST(signals_to_handle)
{
    struct proc p;
    dlaunch_start(&p, NULL,
                  "--signals_to_handle SIGUSR1,SIGTERM %%W exit-on USR1 0 append %%T/up pause");
    wait_lines(tmppath("up"), 1, 10);
    proc_kill(&p, SIGUSR1);
    expect_status(&p, 128 + SIGUSR1, 10);
    proc_fini(&p);
}
END_TEST

/* Signals that --signals_to_handle does not name have their default action, and no process survives
 * the launcher. */
START_TEST(signals_not_to_handle)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
        struct proc p;
        char *up = tmppath(test_text("up%zu", i));
        dlaunch_start(&p, NULL,
                      "--signals_to_handle SIGUSR1 --nproc_per_node 2 %%W append %s pause", up);
        wait_lines(up, 2, 10);
        proc_kill(&p, signals[i]);
        expect_status(&p, 128 + signals[i], 10);
        ck_assert(WIFSIGNALED(p.status));
        expect_text(p.err, "the guardian process was killed; ended every worker");
        proc_fini(&p);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("terminal");
    TCase *tc = test_case(s, "terminal", 60);
    tcase_add_test(tc, ctrl_c_is_delivered_once);
    tcase_add_test(tc, ctrl_backslash_and_hangup);
    tcase_add_test(tc, ctrl_z_and_on);
    tcase_add_test(tc, ctrl_z_taken_back);
    tcase_add_test(tc, ctrl_z_with_other_nodes);
    tcase_add_test(tc, ctrl_z_in_a_namespace);
    tcase_add_loop_test(tc, escape_sequences_of_workers, 0, 2);
    tcase_add_test(tc, lines_of_all_workers_are_folded);
    tcase_add_loop_test(tc, top_at_a_terminal, 0, 4);
    tc = test_case(s, "from elsewhere", 60);
    tcase_add_loop_test(tc, stop_signals, 0, ARRAY_LEN(stops));
    tcase_add_test(tc, stop_of_one_node);
    tcase_add_test(tc, stop_before_the_start);
    tcase_add_test(tc, signals_to_handle);
    tcase_add_test(tc, signals_not_to_handle);
    return s;
}

TEST_MAIN(suite)
