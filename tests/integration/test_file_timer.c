/* The watchdog that torchrun calls file timer, with a client in plain Python that writes what
 * PyTorch's client writes. */
#include "agent/base/signals.h"
#include "tests/integration/job.h"

static const char client[] =
    "import json, os, signal, sys, time\n"
    "def send(scope, expiration_time, signo=signal.SIGKILL, pid=os.getpid()):\n"
    "    line = json.dumps({'version': 1, 'pid': pid, 'scope_id': scope,\n"
    "                       'expiration_time': expiration_time, 'signal': signo}) + '\\n'\n"
    "    fifo = os.open(os.environ['TORCHELASTIC_TIMER_FILE'], os.O_WRONLY | os.O_NONBLOCK)\n"
    "    assert os.write(fifo, line.encode()) == len(line)\n"
    "    os.close(fifo)\n"
    "rank, first = os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n";

static void write_client(const char *program)
{
    write_file(tmppath("client.py"), test_text("%s%s", client, program));
}

static char *const enabled[] = {"TORCHELASTIC_ENABLE_FILE_TIMER=1", "TORCHELASTIC_TIMER_FILE",
                                NULL};

#define LINE "--nproc_per_node 2 --max_restarts %d --report %%T/report python3 %%T/client.py"

static void expect_timer_failure(struct proc *p, const char *signal_name)
{
    json_t *report = json_of_file(tmppath("report")), *f = json_object_get(report, "first_failure");
    ck_assert_str_eq(json_word(f, "kind"), "signal");
    ck_assert_str_eq(json_word(f, "signal_name"), signal_name);
    ck_assert_int_eq(json_number(f, "rank"), 1);
    expect_text(json_word(f, "message"), "timer 'forward' of pid ");
    expect_words(p->err, test_text("expired; dlaunch sent %s", signal_name));
    json_decref(report);
}

START_TEST(expired_timer_kills_its_worker)
{
    struct proc p;
    write_client("if rank == '1':\n"
                 "    send('backward', time.time() + 600)\n"
                 "    send('forward', time.time() + 0.1)\n"
                 "time.sleep(600)\n");
    dlaunch_start(&p, enabled, LINE, 0);
    expect_status(&p, 128 + SIGKILL, 30);
    expect_timer_failure(&p, "SIGKILL");
    proc_fini(&p);
}
END_TEST

START_TEST(client_chooses_the_signal)
{
    struct proc p;
    write_client("if rank == '1': send('forward', time.time() - 1, signal.SIGUSR1)\n"
                 "time.sleep(600)\n");
    dlaunch_start(&p, enabled, LINE, 0);
    expect_status(&p, 128 + SIGUSR1, 30);
    expect_timer_failure(&p, "SIGUSR1");
    proc_fini(&p);
}
END_TEST

/* The client is often not the worker itself, because a script starts it. */
START_TEST(timer_of_a_descendant)
{
    struct proc p;
    write_client("if rank == '1': send('forward', time.time() + 0.05)\n"
                 "time.sleep(600)\n");
    dlaunch_start(&p, enabled,
                  "--nproc_per_node 2 --report %%T/report sh -c 'python3 %%T/client.py; exit 9'");
    expect_status(&p, 9, 30);
    json_t *report = json_of_file(tmppath("report")), *f = json_object_get(report, "first_failure");
    expect_text(json_word(f, "message"), "timer 'forward' of pid ");
    json_decref(report);
    proc_fini(&p);
}
END_TEST

/* Released, replaced by a later time, without a signal, and of a process that is not a worker's.
 * The last timer of each worker shows that the earlier lines have been read. */
START_TEST(timers_that_do_not_kill)
{
    struct proc p;
    write_client("signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))\n"
                 "send('released', time.time() + 3)\n"
                 "send('released', -1, 0)\n"
                 "send('later', time.time() + 3)\n"
                 "send('later', time.time() + 600)\n"
                 "send('silent', time.time() - 1, 0)\n"
                 "send('foreign', time.time() - 1, pid=os.getppid())\n"
                 "send('foreign', time.time() - 1, pid=1)\n"
                 "send('end', time.time() + 3.5, signal.SIGUSR2)\n"
                 "time.sleep(600)\n");
    dlaunch_start(&p, enabled, LINE, 0);
    expect_status(&p, 0, 30);
    expect_text(p.err, "a process that is not a running one of this node's workers; ignored");
    expect_text(p.err, "timer 'silent' of pid ");
    proc_fini(&p);
}
END_TEST

START_TEST(malformed_lines_are_refused)
{
    struct proc p;
    write_client("def raw(text):\n"
                 "    with open(os.environ['TORCHELASTIC_TIMER_FILE'], 'w') as f: f.write(text)\n"
                 "raw('nonsense\\n')\n"
                 "raw('{\"pid\": \"x\"}\\n')\n"
                 "raw('x' * 4095 + '\\n')\n"
                 "for i in range(3): raw('x' * 4000)\n"
                 "raw('\\n')\n"
                 "send('forward', time.time())\n"
                 "time.sleep(600)\n");
    dlaunch_start(&p, enabled, "--report %%T/report python3 %%T/client.py");
    expect_status(&p, 128 + SIGKILL, 30);
    expect_text(p.err, ": not a line of a timer; ignored, as are further such lines\n");
    ck_assert_int_eq(count_text(p.err, "not a line of a timer"), 1);
    expect_text(p.err, "timer 'forward' of pid ");
    proc_fini(&p);
}
END_TEST

START_TEST(job_restarts_after_an_expired_timer)
{
    struct proc p;
    write_client("starts = sys.argv[0] + '.starts'\n"
                 "with open(starts, 'a') as f: f.write(rank)\n"
                 "while os.path.getsize(starts) < 2: time.sleep(0.01)\n"
                 "if first and rank == '1': send('forward', time.time() + 0.05)\n"
                 "if first: time.sleep(600)\n"
                 "send('forward', time.time() + 600)\n");
    dlaunch_start(&p, enabled, LINE, 1);
    expect_status(&p, 0, 30);
    ck_assert_uint_eq(strlen(text_of_file(tmppath("client.py.starts"))), 4);
    proc_fini(&p);
}
END_TEST

static void run_with_file(int status, const char *program)
{
    struct proc p;
    char *const env[] = {"TORCHELASTIC_ENABLE_FILE_TIMER=1",
                         test_text("TORCHELASTIC_TIMER_FILE=%s", tmppath("fifo")), NULL};
    write_client(program);
    dlaunch_start(&p, env, LINE, 0);
    expect_status(&p, status, 30);
    proc_fini(&p);
}

START_TEST(path_of_the_user)
{
    write_file(tmppath("fifo"), ""); /* as mktemp leaves it */
    run_with_file(0, "assert os.environ['TORCHELASTIC_TIMER_FILE'].endswith('/fifo')\n"
                     "send('scope', time.time() + 600)\n");
    ck_assert_int_lt(access(tmppath("fifo"), F_OK), 0);
}
END_TEST

START_TEST(file_with_content_is_not_replaced)
{
    struct proc p;
    char *const env[] = {"TORCHELASTIC_ENABLE_FILE_TIMER=1",
                         test_text("TORCHELASTIC_TIMER_FILE=%s", tmppath("notes")), NULL};
    write_file(tmppath("notes"), "mine");
    dlaunch_start(&p, env, "true");
    expect_status(&p, 2, 30);
    expect_text(
        p.err, test_text("TORCHELASTIC_TIMER_FILE: %s exists and is not a FIFO", tmppath("notes")));
    ck_assert_str_eq(text_of_file(tmppath("notes")), "mine");
    proc_fini(&p);
}
END_TEST

/* If timers are not enabled, no timer is served, and TORCHELASTIC_TIMER_FILE is passed on, as
 * torchrun does. */
START_TEST(not_enabled)
{
    struct proc p;
    char *const none[] = {"TORCHELASTIC_ENABLE_FILE_TIMER=0", "TORCHELASTIC_TIMER_FILE", NULL};
    char *const file[] = {"TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE=x", NULL};
    dlaunch_start(&p, none, "%%W env TORCHELASTIC_TIMER_FILE");
    expect_status(&p, 0, 30);
    ck_assert_str_eq(p.out, "TORCHELASTIC_TIMER_FILE unset\n");
    proc_fini(&p);
    dlaunch_start(&p, file, "%%W env TORCHELASTIC_TIMER_FILE");
    expect_status(&p, 0, 30);
    ck_assert_str_eq(p.out, "TORCHELASTIC_TIMER_FILE=x\n");
    proc_fini(&p);
}
END_TEST

static bool is_removed(void *path)
{
    return access(path, F_OK) < 0;
}

/* The guardian removes the FIFO of an agent that was killed. */
START_TEST(no_file_is_left_behind)
{
    struct proc p;
    char *const env[] = {"TORCHELASTIC_ENABLE_FILE_TIMER=1", "TORCHELASTIC_TIMER_FILE", NULL};
    write_client("print(os.environ['TORCHELASTIC_TIMER_FILE'], flush=True)\n"
                 "time.sleep(600)\n");
    dlaunch_start(&p, env, "--nproc_per_node 1 python3 %%T/client.py");
    proc_expect_out(&p, "\n", 30);
    char *path = test_text("%.*s", (int)strcspn(p.out, "\n"), p.out);
    ck_assert_int_eq(access(path, F_OK), 0);
    kill(agent_of(&p), SIGKILL);
    wait_until(is_removed, path, 10, "the FIFO is removed");
    proc_fini(&p);
}
END_TEST

/* Launcher and guardian of an earlier job were killed together. A running job's FIFO, another
 * program's FIFO and a file with the name of a FIFO stay. */
START_TEST(fifos_of_dead_launchers_are_removed)
{
    struct proc other, p;
    char *tmp = tmppath("tmp"), *dead = tmppath("tmp/watchdog_timer_abcdefgh"),
         *file = tmppath("tmp/watchdog_timer_abcdefgi"),
         *torchrun = tmppath("tmp/watchdog_timer_0b2d1f04-3a30-4b1c-9a27-7f5d0cbb91c4");
    char *const env[] = {"TORCHELASTIC_ENABLE_FILE_TIMER=1", "TORCHELASTIC_TIMER_FILE",
                         test_text("TMPDIR=%s", tmp), NULL};
    mkdir(tmp, 0700);
    mkfifo(torchrun, 0600);
    write_file(file, "");
    dlaunch_start(&other, env,
                  "sh -c 'echo up; until [ -e %%T/go ]; do sleep 0.01; done; "
                  "test -p $TORCHELASTIC_TIMER_FILE'");
    proc_expect_out(&other, "up\n", 30);
    mkfifo(dead, 0600);
    dlaunch_start(&p, env, "true");
    expect_status(&p, 0, 30);
    proc_fini(&p);
    ck_assert(is_removed(dead));
    ck_assert(!is_removed(torchrun));
    ck_assert(!is_removed(file));
    write_file(tmppath("go"), "");
    expect_status(&other, 0, 30);
    proc_fini(&other);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("file_timer");
    TCase *tc = test_case(s, "file_timer", 60);
    tcase_add_test(tc, expired_timer_kills_its_worker);
    tcase_add_test(tc, client_chooses_the_signal);
    tcase_add_test(tc, timer_of_a_descendant);
    tcase_add_test(tc, timers_that_do_not_kill);
    tcase_add_test(tc, malformed_lines_are_refused);
    tcase_add_test(tc, job_restarts_after_an_expired_timer);
    tcase_add_test(tc, fifos_of_dead_launchers_are_removed);
    tcase_add_test(tc, path_of_the_user);
    tcase_add_test(tc, file_with_content_is_not_replaced);
    tcase_add_test(tc, not_enabled);
    tcase_add_test(tc, no_file_is_left_behind);
    return s;
}

TEST_MAIN(suite)
