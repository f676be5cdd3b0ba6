/* The workers' output: files, console, both, and how errors of either are handled. */
#include "tests/integration/job.h"

#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <sys/mount.h>

#include "core/fd.h"

/* The one path that matches. */
static char *only_path(const char *pattern)
{
    glob_t g;
    int rc = glob(pattern, 0, NULL, &g);
    ck_assert_msg(rc == 0 && g.gl_pathc == 1, "%zu paths match %s", rc ? 0 : g.gl_pathc, pattern);
    char *path = test_keep(xstrdup(g.gl_pathv[0]));
    globfree(&g);
    return path;
}

static char *log_text(const char *below)
{
    return text_of_file(only_path(test_text("%s/logs/%s", tmpdir(), below)));
}

static void run_job(struct proc *p, const char *line)
{
    dlaunch_start(p, NULL, "%s", line);
    expect_status(p, 0, 20);
}

/* torchrun's layout: DIR/<id>_<random>/attempt_<n>/<local rank>/std*.log */
START_TEST(layout)
{
    struct proc p;
    run_job(&p, "--nproc_per_node 2 --log_dir %T/logs --redirects 3 --rdzv_id job "
                "--max_restarts 1 %W env TORCHELASTIC_RESTART_COUNT env LOCAL_RANK err why "
                "append %T/up if-attempt 0 wait-lines 2 %T/up if-attempt 0 if-rank 1 exit 3 "
                "if-attempt 0 pause");
    ck_assert_str_eq(p.out, "");
    expect_no_text(p.err, "why");
    for (int attempt = 0; attempt < 2; attempt++) {
        for (int rank = 0; rank < 2; rank++) {
            char *dir = test_text("job_*/attempt_%d/%d", attempt, rank);
            ck_assert_str_eq(
                log_text(test_text("%s/stdout.log", dir)),
                test_text("TORCHELASTIC_RESTART_COUNT=%d\nLOCAL_RANK=%d\n", attempt, rank));
            ck_assert_str_eq(log_text(test_text("%s/stderr.log", dir)), "why\n");
        }
    }
    proc_fini(&p);
}
END_TEST

static const struct {
    const char *options;
    bool out_here[2], err_here[2], out_file[2], err_file[2];
    bool prefix;
} streams[] = {
    {"", {1, 1}, {1, 1}, {0, 0}, {0, 0}, false},
    {"-r 1", {0, 0}, {1, 1}, {1, 1}, {0, 0}, false},
    {"-r 2", {1, 1}, {0, 0}, {0, 0}, {1, 1}, false},
    {"-r 0:1,1:2", {0, 1}, {1, 0}, {1, 0}, {0, 1}, false},
    {"-t 3", {1, 1}, {1, 1}, {1, 1}, {1, 1}, true},
    {"-r 3 -t 0:1", {1, 0}, {0, 0}, {1, 1}, {1, 1}, true},
    {"--local_ranks_filter 1", {0, 1}, {0, 1}, {0, 0}, {0, 0}, false},
    {"-t 3 --local_ranks_filter 0", {1, 0}, {1, 0}, {1, 1}, {1, 1}, true},
};

static void in_file(int rank, const char *name, bool there, const char *text)
{
    char *path = test_text("%s/logs/job_*/attempt_0/%d/%s", tmpdir(), rank, name);
    glob_t g;
    bool found = glob(path, 0, NULL, &g) == 0;
    ck_assert_msg(found == there, "%s: %s", path, found ? "is there" : "is not there");
    if (found)
        ck_assert_str_eq(text_of_file(g.gl_pathv[0]), text);
    globfree(&g);
}

START_TEST(every_stream_goes_where_it_should)
{
    struct proc p;
    run_job(&p, test_text("--nproc_per_node 2 --rdzv_id job --log_dir %%T/logs %s %%W "
                          "if-rank 0 print out0 if-rank 1 print out1 if-rank 0 err err0 "
                          "if-rank 1 err err1",
                          streams[_i].options));
    for (int r = 0; r < 2; r++) {
        const char *prefix = streams[_i].prefix ? test_text("[default%d]:", r) : "";
        char *out = test_text("%sout%d\n", prefix, r), *err = test_text("%serr%d\n", prefix, r);
        ck_assert_msg(!!strstr(p.out, out) == streams[_i].out_here[r], "%s: stdout: %s",
                      streams[_i].options, p.out);
        ck_assert_msg(!!strstr(p.err, err) == streams[_i].err_here[r], "%s: stderr: %s",
                      streams[_i].options, p.err);
        in_file(r, "stdout.log", streams[_i].out_file[r], test_text("out%d\n", r));
        in_file(r, "stderr.log", streams[_i].err_file[r], test_text("err%d\n", r));
    }
    proc_fini(&p);
}
END_TEST

START_TEST(prefix_and_filters)
{
    struct proc p;
    char host[256];
    gethostname(host, sizeof(host));
    run_job(&p, "--nproc_per_node 2 --role tr --log_dir %T/logs --rdzv_id job -t 3 "
                "--log_line_prefix_template '<${role_name}/${local_rank}/${rank}/${hostname}> ' "
                "--duplicate_stdout_filters loss,epoch --duplicate_stderr_filters warn "
                "%W print 'loss 0.5' print other err 'warn me' err quiet");
    for (int r = 0; r < 2; r++) {
        expect_text(p.out, test_text("<tr/%d/%d/%s> loss 0.5\n", r, r, host));
        expect_text(p.err, test_text("<tr/%d/%d/%s> quiet\n", r, r, host));
    }
    char *out = log_text("job_*/attempt_0/filtered_stdout.log");
    char *err = log_text("job_*/attempt_0/filtered_stderr.log");
    ck_assert_int_eq(count_text(out, "loss 0.5\n"), 2);
    ck_assert_int_eq(count_text(out, "\n"), 2);
    ck_assert_int_eq(count_text(err, "warn me\n"), 2);
    ck_assert_int_eq(count_text(err, "\n"), 2);
    proc_fini(&p);
}
END_TEST

START_TEST(options_without_effect_are_reported)
{
    static const struct {
        const char *options, *says;
    } rows[] = {
        {"--duplicate_stdout_filters a",
         "--duplicate_stdout_filters has no effect without --tee 1"},
        {"-t 1 --log_dir %T/logs --duplicate_stderr_filters a", "has no effect without --tee 2"},
        {"--local_ranks_filter 2,9", "--local_ranks_filter 2,9: the local ranks of this "
                                     "node are 0 to 1"},
        {"--local_ranks_filter 1,9", NULL},
        {"--local_ranks_filter -1", NULL},
        {"--elastic", "--elastic has no effect without --nnodes MIN:MAX"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct proc p;
        run_job(&p, test_text("--nproc_per_node 2 %s %%W", rows[i].options));
        if (rows[i].says)
            expect_text(p.err, rows[i].says);
        ck_assert_int_eq(count_text(p.err, "dlaunch: "),
                         1 + !!rows[i].says); /* and OMP_NUM_THREADS */
        proc_fini(&p);
    }
}
END_TEST

static int entries(const char *dir)
{
    glob_t g;
    int n = glob(test_text("%s/*", dir), 0, NULL, &g) == 0 ? (int)g.gl_pathc : 0;
    globfree(&g);
    return n;
}

/* Without files there is no folder after the job, however it ended, and none is spoken of. */
START_TEST(no_files_no_folder)
{
    static const struct {
        const char *line;
        int status, signo;
    } rows[] = {{"%W print x", 0, 0},
                {"%W exit 3", 3, 0},
                {"%W append %T/up pause", 143, SIGTERM},
                {"%W append %T/up pause", 137, SIGKILL},
                {"/no/such/program", 127, 0},
                {"--nnodes 2 --node_rank 0 --master_port 1 --master_addr 192.0.2.1 "
                 "--rdzv_conf join_timeout=0.2 %W",
                 1, 0}};
    char *tmp = tmppath("tmp"), *env[] = {test_text("TMPDIR=%s", tmp), "XDG_RUNTIME_DIR=/", NULL};
    ck_assert_int_eq(mkdir(tmp, 0755), 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct proc p;
        unlink(tmppath("up"));
        dlaunch_start(&p, env, "%s", rows[i].line);
        if (rows[i].signo) {
            wait_lines(tmppath("up"), 1, 10);
            proc_kill(&p, rows[i].signo);
        }
        expect_status(&p, rows[i].status, 20); /* its output ends when the agent has ended */
        expect_no_text(p.err, "torchelastic_");
        char *left = test_text("%s/torchelastic_*", tmp);
        glob_t g;
        ck_assert_msg(glob(left, 0, NULL, &g) == GLOB_NOMATCH, "%s left %s", rows[i].line,
                      g.gl_pathv[0]);
        proc_fini(&p);
    }
    ck_assert_int_le(entries(tmp), 1);
}
END_TEST

/* When log files cannot be created, only workers that do not need one start. */
START_TEST(log_files_that_cannot_be_created)
{
    static const char ro[] = "for d in /tmp /var/tmp /usr/tmp; do test ! -d $d || { "
                             "mount --bind $d $d && mount -o remount,ro,bind $d; } || exit 99; "
                             "done; cd /proc && exec \"$@\"";
    char *env[] = {"TMPDIR=/proc", NULL};
    for (int needed = 0; needed <= 1; needed++) {
        struct proc p;
        proc_start(&p,
                   ARGV("unshare", "-m", "sh", "-c", (char *)ro, "sh", build_path("dlaunch"),
                        needed ? "--tee=1" : "--tee=0", build_path("tests/worker"), "env",
                        "TORCHELASTIC_ERROR_FILE"),
                   env, 0);
        int status = proc_wait(&p, 20);
        if (status == 99 || strstr(p.err, "unshare failed")) {
            test_skip("no place for files: cannot create folders read-only: %s", p.err);
            return;
        }
        ck_assert_msg(status == (needed ? 2 : 0), "exit %d: %s", status, p.err);
        ck_assert_str_eq(p.out, needed ? "" : "TORCHELASTIC_ERROR_FILE=\n");
        expect_text(p.err, "no place for temporary files (tried TMPDIR, ");
        proc_fini(&p);
    }
}
END_TEST

/* -------------------------------------------------------------------------------------- trouble */

/* The disk is full: the job goes on, the console has every line, and what is missing is counted. */
START_TEST(full_disk)
{
    struct proc p;
    char *disk = tmppath("disk");
    ck_assert_int_eq(mkdir(disk, 0755), 0);
    if (mount("dlaunch-test", disk, "tmpfs", 0, "size=64k") < 0) {
        test_skip("a full disk: cannot mount a small one (%s)", strerror(errno));
        return;
    }
    dlaunch_start(&p, NULL, "--nproc_per_node 2 --log_dir %%T/disk -t 3 %%W spew 4000 %s",
                  "'some words on a line'");
    int status = proc_wait(&p, 20);
    umount2(disk, MNT_DETACH);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(count_text(p.out, "]:some words on a line\n"), 8000);
    expect_text(p.err, "No space left on device");
    expect_text(p.err, "missing at the end of 2 log files");
    proc_fini(&p);
}
END_TEST

/* Nobody sees a message in a log file that cannot be written. */
START_TEST(full_disk_of_the_log_file)
{
    struct proc p;
    char *disk = tmppath("disk"), *seen = tmppath("seen"), *report = tmppath("report.json");
    ck_assert_int_eq(mkdir(disk, 0755), 0);
    if (mount("dlaunch-test", disk, "tmpfs", 0, "size=64k") < 0) {
        test_skip("a full disk: cannot mount a small one (%s)", strerror(errno));
        return;
    }
    char *shell = test_text("exec '%s' --log_file '%s/job.log' --report '%s' --nproc_per_node 2 "
                            "'%s' spew 4000 'some words on a line' 2>'%s'",
                            build_path("dlaunch"), disk, report, build_path("tests/worker"), seen);
    int status = proc_run(&p, ARGV("sh", "-c", shell), NULL, 20);
    umount2(disk, MNT_DETACH);
    ck_assert_int_eq(status, 0); /* of the workers */
    char *text = text_of_file(seen), *begin = test_text("dlaunch: %s/job.log: ", disk);
    expect_text(text, test_text("%sNo space left on device: the job goes on; ", begin));
    expect_text(text, " KiB of output could not be written\n");
    ck_assert_int_eq(count_text(text, begin), 2);
    json_t *j = json_of_file(report);
    expect_text(json_word(j, "lost_output"), "/job.log: No space left on device: ");
    json_decref(j);
    proc_fini(&p);
}
END_TEST

START_TEST(limit_of_file_size_is_named)
{
    struct proc p;
    int status = proc_run(&p,
                          ARGV("prlimit", "--fsize=65536", build_path("dlaunch"), "--log_dir",
                               tmppath("logs"), "--redirects", "3", build_path("tests/worker"),
                               "spew", "4000", "some words on a line"),
                          NULL, 20);
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    expect_text(p.err, "/stdout.log: File too large (ulimit -f: 65536 bytes): ");
    proc_fini(&p);
}
END_TEST

/* Bytes of one worker pass unchanged; the unfinished lines of two are separated. */
START_TEST(unfinished_lines)
{
    static const struct {
        const char *nproc, *shell, *shown, *alike;
    } cases[] = {
        {"1", "printf ab; printf cd >&2", "abcd", "cdab"},
        {"1", "printf ab; sleep 0.4; printf cd >&2", "abcd", "abcd"},
        {"1", "exec 2>&-; printf 'a\nb'", "a\nb", "a\nb"},
        {"2", "printf ab", "ab\nab", "ab\nab"},
    };
    struct proc p;
    char *shell = test_text("exec '%s' --quiet --nproc_per_node %s sh -c \"%s\" 2>&1",
                            build_path("dlaunch"), cases[_i].nproc, cases[_i].shell);
    int status = proc_run(&p, ARGV("sh", "-c", shell), NULL, 20);
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.out);
    ck_assert_msg(strcmp(p.out, cases[_i].shown) == 0 || strcmp(p.out, cases[_i].alike) == 0,
                  "'%s', not '%s'", p.out, cases[_i].shown);
    proc_fini(&p);
}
END_TEST

static bool is_full(void *fd)
{
    struct pollfd room = {*(int *)fd, POLLOUT, 0};
    return poll(&room, 1, 0) == 0;
}

#define LINE_63 "a line of 63 bytes, ... ... ... ... ... ... ... ... ... ... ..."

/* The workers wait, and nothing is lost: neither of what is shown nor of what is teed. */
START_TEST(slow_reader)
{
    enum { LINES = 100000 }; /* 15 MB: far more than pipes and buffers hold */
    struct proc p;
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    dlaunch_start_into(
        &p, ends[1],
        test_text("--nproc_per_node 2 --log_dir %%T/logs --rdzv_id job -t 1 %%W spew %d "
                  "'" LINE_63 "' append %%T/up",
                  LINES));
    wait_until(is_full, &ends[1], 20, "the job's output");
    close(ends[1]);
    ck_assert_int_eq(count_lines(tmppath("up")), 0);
    size_t len = 0, cap = 2 * LINES * 80;
    char *shown = test_keep(xcalloc(1, cap));
    for (ssize_t n; (n = read(ends[0], shown + len, cap - len - 1)) > 0;)
        len += (size_t)n;
    close(ends[0]);
    expect_status(&p, 0, 30);
    expect_no_text(p.err, "dropped");
    static const char *const lines[] = {"[default0]:" LINE_63 "\n", "[default1]:" LINE_63 "\n"};
    enum { LENGTH = 11 + 64 };
    int seen[2] = {0};
    for (size_t at = 0; at + LENGTH <= len; at += LENGTH) {
        for (int r = 0; r < 2; r++)
            seen[r] += memcmp(shown + at, lines[r], LENGTH) == 0;
    }
    ck_assert_int_eq(seen[0], LINES);
    ck_assert_int_eq(seen[1], LINES);
    ck_assert_uint_eq(len, (size_t)2 * LINES * LENGTH);
    for (int r = 0; r < 2; r++) {
        struct stat st;
        ck_assert_int_eq(
            stat(only_path(test_text("%s/logs/job_*/attempt_0/%d/stdout.log", tmpdir(), r)), &st),
            0);
        ck_assert_int_eq(st.st_size, LINES * 64);
    }
    proc_fini(&p);
}
END_TEST

/* The job can be ended all the same; a second signal spares the wait for a last chance to read. */
START_TEST(output_without_a_reader)
{
    test_no_leak_check(); /* signals that arrive during the check can block it for ever */
    for (int signals = 1; signals <= 2; signals++) {
        struct proc p;
        int ends[2];
        ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
        dlaunch_start_into(&p, ends[1], "--nproc_per_node 2 %W spew 10000000 '" LINE_63 "'");
        wait_until(is_full, &ends[1], 20, "the job's output");
        proc_kill(&p, SIGTERM);
        proc_expect_err(&p, "received SIGTERM: stopping 2 workers", 20);
        if (signals == 2)
            signal_until_end(&p, SIGTERM, 4);
        expect_status(&p, 143, 20);
        close(ends[0]);
        close(ends[1]);
        proc_fini(&p);
    }
}
END_TEST

static bool is_gone(void *pid)
{
    char stat[512], *paren;
    const char *path = test_text("/proc/%d/stat", *(pid_t *)pid);
    if (fd_read_file(AT_FDCWD, path, stat, sizeof(stat)) < 0)
        return true;
    paren = strrchr(stat, ')');
    return paren && paren[2] == 'Z'; /* init may take its time */
}

/* The job is over, and waits for its reader: kill -9 of the guardian leaves nobody. */
START_TEST(nobody_reads_and_nobody_waits)
{
    struct proc p;
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    dlaunch_start_into(&p, ends[1], "--verbose %W spew 20000 '" LINE_63 "'");
    close(ends[1]);
    proc_expect_err(&p, "EXIT_BARRIER -> DONE", 20);
    pid_t agent = agent_of(&p);
    ck_assert(!is_gone(&agent));
    proc_kill(&p, SIGKILL);
    wait_until(is_gone, &agent, 10, "the agent ends");
    close(ends[0]);
    proc_fini(&p);
}
END_TEST

/* `dlaunch ... | head -1`: a worker that writes on ends of it, as it would without dlaunch; where
 * there is a log file it does not notice. */
START_TEST(reader_goes)
{
    for (int teed = 0; teed <= 1; teed++) {
        struct proc p;
        char *up = tmppath(test_text("up%d", teed));
        proc_start(&p,
                   ARGV("bash", "-c", "\"$@\" | head -1; exit ${PIPESTATUS[0]}", "bash",
                        build_path("dlaunch"), "--nproc_per_node=2", "--log_dir", tmppath("logs"),
                        teed ? "--tee=1" : "--tee=0", build_path("tests/worker"), "spew", "2000000",
                        "words", "append", up),
                   NULL, 0);
        expect_status(&p, teed ? 0 : 128 + SIGPIPE, 30);
        ck_assert_int_eq(count_text(p.out, "words\n"), 1);
        ck_assert_int_eq(count_text(p.out, "\n"), 1);
        expect_text(p.err, "standard output: Broken pipe: its reader has closed it");
        ck_assert_int_eq(count_lines(up), teed ? 2 : 0);
        proc_fini(&p);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("logs");
    TCase *tc = test_case(s, "where", 60);
    tcase_add_test(tc, layout);
    tcase_add_loop_test(tc, every_stream_goes_where_it_should, 0, ARRAY_LEN(streams));
    tcase_add_test(tc, prefix_and_filters);
    tcase_add_test(tc, options_without_effect_are_reported);
    tcase_add_test(tc, no_files_no_folder);
    tcase_add_test(tc, log_files_that_cannot_be_created);
    tc = test_case(s, "trouble", 120);
    tcase_add_test(tc, full_disk);
    tcase_add_loop_test(tc, unfinished_lines, 0, 4);
    tcase_add_test(tc, full_disk_of_the_log_file);
    tcase_add_test(tc, limit_of_file_size_is_named);
    tcase_add_test(tc, slow_reader);
    tcase_add_test(tc, output_without_a_reader);
    tcase_add_test(tc, nobody_reads_and_nobody_waits);
    tcase_add_test(tc, reader_goes);
    return s;
}

TEST_MAIN(suite)
