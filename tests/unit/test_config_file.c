/* INI files: what is understood, and every way in which one can be wrong. */
#include "tests/lib/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/mem.h"
#include "launcher/options/config_file.h"
#include "launcher/options/usage.h"

struct result {
    struct options o;
    char *errors; /* one a line */
    int n;
};

static void on_error(void *arg, const char *line)
{
    struct result *r = arg;
    char *more = xasprintf("%s%s\n", r->errors, line);
    free(r->errors);
    r->errors = more;
}

static void read_text(struct result *r, const char *text, size_t len)
{
    options_init(&r->o, "dlaunch");
    r->errors = xstrdup("");
    r->n = config_text_read(&r->o, "job.ini", text, len, on_error, r);
}

static void result_fini(struct result *r)
{
    options_fini(&r->o);
    free(r->errors);
}

static const char *text_of(struct result *r, enum opt_id id)
{
    return opt_text(&r->o, id);
}

static char *join(char **words)
{
    char *text = xstrdup("");
    for (; words && *words; words++) {
        char *more = xasprintf("%s<%s>", text, *words);
        free(text);
        text = more;
    }
    return text;
}

START_TEST(everything_in_its_place)
{
    static const char text[] = "; a comment\n"
                               "# another\n"
                               "\n"
                               "nnodes = 2\n"
                               "[job]\n"
                               "nproc-per-node=4\r\n"
                               "command = ./train --lr 0.1 'a b' \"c d\" e\\ f ''\n"
                               "Node_Rank = 1\n"
                               "[rendezvous]\n"
                               "rdzv_backend = c10d\n"
                               "endpoint = head:29400\n"
                               "id = my job\n"
                               "conf = join_timeout=60, is_host=no\n"
                               "[restart]\n"
                               "max_restarts= 3\n"
                               "policy =worker\n"
                               "backoff = 500ms\n"
                               "[stop]  ; comment\n"
                               "timeout = 2h\n"
                               "[log]\n"
                               "dir = \"/logs # 1\"\n"
                               "tee = 3\n"
                               "quiet = yes\n"
                               "log_line_prefix_template = '[${rank} '\n"
                               "[env]\n"
                               "FOO = bar baz\n"
                               "foo=other\n"
                               "EMPTY =\n"
                               "QUOTED = \" a ; b \"\n"
                               "EQ = a=b:c\n"
                               "[bind]\n"
                               "bind = core"; /* no newline at the end */
    struct result r;
    read_text(&r, text, sizeof(text) - 1);
    ck_assert_msg(r.n == 0, "%s", r.errors);
    ck_assert_str_eq(text_of(&r, OPT_nnodes), "2");
    ck_assert_str_eq(text_of(&r, OPT_nproc_per_node), "4");
    ck_assert_str_eq(text_of(&r, OPT_node_rank), "1");
    ck_assert_str_eq(text_of(&r, OPT_rdzv_backend), "c10d");
    ck_assert_str_eq(text_of(&r, OPT_rdzv_endpoint), "head:29400");
    ck_assert_str_eq(text_of(&r, OPT_rdzv_id), "my job");
    ck_assert_str_eq(text_of(&r, OPT_rdzv_conf), "join_timeout=60, is_host=no");
    ck_assert_str_eq(text_of(&r, OPT_max_restarts), "3");
    ck_assert_str_eq(text_of(&r, OPT_restart_policy), "worker");
    ck_assert_str_eq(text_of(&r, OPT_restart_backoff), "500ms");
    ck_assert_str_eq(text_of(&r, OPT_timeout), "2h");
    ck_assert_str_eq(text_of(&r, OPT_log_dir), "/logs # 1");
    ck_assert_str_eq(text_of(&r, OPT_log_line_prefix_template), "[${rank} ");
    ck_assert(opt_flag(&r.o, OPT_quiet));
    ck_assert_str_eq(text_of(&r, OPT_bind), "core");
    ck_assert_str_eq(r.o.value[OPT_nnodes].source, "job.ini:4");
    ck_assert_str_eq(r.o.value[OPT_bind].source, "job.ini:32");
    char *command = join(r.o.command), *env = join(r.o.env);
    ck_assert_str_eq(command, "<./train><--lr><0.1><a b><c d><e f><>");
    ck_assert_str_eq(r.o.command_source, "job.ini:7");
    ck_assert_str_eq(env, "<FOO=bar baz><foo=other><EMPTY=><QUOTED= a ; b ><EQ=a=b:c>");
    ck_assert_str_eq(r.o.env_source[4], "job.ini:30");
    free(command);
    free(env);
    result_fini(&r);
}
END_TEST

static const struct {
    const char *text, *errors;
} traps[] = {
    {"nnode = 2\n", "job.ini:1: unknown key nnode (did you mean nnodes?)\n"},
    {"[job]\nnproc = 2\n", "job.ini:2: unknown key nproc (did you mean nproc_per_node?)\n"},
    {"[job]\nbananas = 2\n", "job.ini:2: unknown key bananas\n"},
    {"[job]\nOMP_NUM_THREADS = 2\n",
     "job.ini:2: unknown key OMP_NUM_THREADS (variables belong in [env])\n"},
    {"[rendevous]\nid = x\nbananas = 1\n",
     "job.ini:1: unknown section [rendevous] (did you mean [rendezvous]?)\n"},
    {"[bananas]\n",
     "job.ini:1: unknown section [bananas] (known sections: job, hosts, rendezvous, security, "
     "program, restart, stop, log, bind, check, daemon and env)\n"},
    {"[]\nx = 1\n",
     "job.ini:1: unknown section [] (known sections: job, hosts, rendezvous, security, program, "
     "restart, stop, log, bind, check, daemon and env)\n"},
    {"[job\nnnodes = 2\n", "job.ini:1: a section header must be written as [name]\n"},
    {"[job] x\n", "job.ini:1: a section header must be written as [name]\n"},
    {"nnodes = 2\nnnodes = 3\n", "job.ini:2: nnodes is given twice (first in line 1)\n"},
    {"nnodes = 2\n[job]\nNNodes = 2\n", "job.ini:3: nnodes is given twice (first in line 1)\n"},
    {"command = a\ncommand = b\n", "job.ini:2: command is given twice (first in line 1)\n"},
    {"[env]\nA = 1\nB = 2\nA = 3\n", "job.ini:4: A is given twice (first at job.ini:2)\n"},
    {"nnodes = two\n", "job.ini:1: nnodes: 'two' is neither N nor MIN:MAX\n"},
    {"nproc_per_node = 8 # gpus\n", "job.ini:1: nproc_per_node: '8 # gpus' is neither a number nor "
                                    "auto, cpu or gpu (a comment must "
                                    "be a line of its own)\n"},
    {"max_restarts = 8 ; gpus\n", "job.ini:1: max_restarts: '8 ; gpus' is not a whole number (a "
                                  "comment must be a line of its own)\n"},
    {"log_dir = /logs # here\n",
     "job.ini:1: log_dir: '/logs # here' is ambiguous; a comment must be a line of its own, and a "
     "value with '#' or ';' needs double quotes\n"},
    {"[env]\nA = b ; c\n", "job.ini:2: A: 'b ; c' is ambiguous; a comment must be a line of its "
                           "own, and a value with '#' or ';' needs double quotes\n"},
    {"max_restarts =\n", "job.ini:1: max_restarts: '' is not a whole number\n"},
    {"bind = cores\n",
     "job.ini:1: bind: 'cores' is not one of none, core, numa, socket (did you mean core?)\n"},
    {"standalone = perhaps\n", "job.ini:1: standalone: 'perhaps' is neither yes nor no\n"},
    {"nnodes = 2\n  nproc_per_node = 8\n",
     "job.ini:2: the line must not be indented (it would continue the line above)\n"},
    {"[job]\n\tnnodes = 2\n",
     "job.ini:2: the line must not be indented (it would continue the line above)\n"},
    {"command = ./train \\\n  --lr 3\n",
     "job.ini:2: the line must not be indented (it would continue the line above)\n"},
    {"nnodes\n", "job.ini:1: 'nnodes' is not key = value\n"},
    {"nnodes: 2\n", "job.ini:1: 'nnodes: 2' is not key = value\n"},
    {"[env]\nA:B = c\n", "job.ini:2: 'A:B = c' is not key = value\n"},
    {"= 2\n", "job.ini:1: the key before '=' is missing\n"},
    {"[env]\nA B = 2\n",
     "job.ini:2: 'A B' is not a valid variable name (letters, digits and _, not beginning with a "
     "digit)\n"},
    {"[env]\nA-B = 2\n",
     "job.ini:2: 'A-B' is not a valid variable name (letters, digits and _, not "
     "beginning with a digit)\n"},
    {"[env]\n1A = 2\n", "job.ini:2: '1A' is not a valid variable name (letters, digits and _, not "
                        "beginning with a digit)\n"},
    {"[log]\nnnodes = 2\n", "job.ini:2: nnodes belongs in [job]\n"},
    {"[log]\nmax_restarts = 2\n", "job.ini:2: max_restarts belongs in [restart] (or in [job])\n"},
    {"[log]\ncommand = x\n", "job.ini:2: command belongs in [job]\n"},
    {"[rendezvous]\ntimeout = 3\n", "job.ini:2: timeout belongs in [stop] (or in [job])\n"},
    {"[rendezvous]\njoin_timeout = 60\n",
     "job.ini:2: join_timeout is a key of rdzv_conf; write rdzv_conf = join_timeout=VALUE\n"},
    {"help = yes\n", "job.ini:1: --help is for the command line only\n"},
    {"conf = x\n", "job.ini:1: --conf is for the command line and the environment only\n"},
    {"[security]\ntoken-fd = 3\n",
     "job.ini:2: --token_fd is for the command line and the environment only\n"},
    {"dry-run = yes\n", "job.ini:1: --dry_run is for the command line only\n"},
    {"command =\n", "job.ini:1: command: the command is empty\n"},
    {"command = './train\n", "job.ini:1: command: missing closing '\n"},
    {"command = ./train \"a\n", "job.ini:1: command: missing closing \"\n"},
    {"command = ./a && ./b\n", "job.ini:1: command: '&&' has no meaning, because the command is "
                               "not run by a shell (use sh -c '...', or quote it)\n"},
    {"command = ./a ; ./b\n", "job.ini:1: command: ';' has no meaning, because the command is not "
                              "run by a shell (use sh -c '...', or quote it)\n"},
    {"command = ./a # go\n",
     "job.ini:1: command: '# go': a comment must be a line of its own (or quote it)\n"},
    /* everything is told, in order */
    {"nnode = 2\n[jop]\nx = 1\n[job]\n nnodes = 2\nmax_restarts = x\nrole\n",
     "job.ini:1: unknown key nnode (did you mean nnodes?)\n"
     "job.ini:2: unknown section [jop] (did you mean [job]?)\n"
     "job.ini:5: the line must not be indented (it would continue the line above)\n"
     "job.ini:6: max_restarts: 'x' is not a whole number\n"
     "job.ini:7: 'role' is not key = value\n"},
};

START_TEST(mistakes)
{
    for (size_t i = 0; i < ARRAY_LEN(traps); i++) {
        struct result r;
        read_text(&r, traps[i].text, strlen(traps[i].text));
        ck_assert_msg(strcmp(r.errors, traps[i].errors) == 0, "%s\n  gave %s\n  not  %s",
                      traps[i].text, r.errors, traps[i].errors);
        ck_assert_int_gt(r.n, 0);
        result_fini(&r);
    }
}
END_TEST

START_TEST(fine_though_odd)
{
    static const char *const texts[] = {
        "",
        "\n\n",
        "\xef\xbb\xbf[job]\nnnodes = 2\n",
        "\xef\xbb\xbfnnodes = 2\n",
        "nnodes=2\r\n\r\n[job]\r\n",
        "   \n\t\n   # indented comment\n  ; another\nnnodes = 2\n",
        "[ENV]\nA=1\n[Environment]\nB=2\n[rdzv]\nid=x\n[Logs]\ndir=/x\n[dlaunch]\nnnodes=2\n",
        "[job]\n[job]\nnnodes = 2\n[job]\n",
        "command = sh -c 'a; b && c # d' \\; \"&&\"\n",
        "[env]\nA.B_c1 = x#y\nURL = http://h/#a;b\n",
        "[job]#comment\nnnodes=2\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct result r;
        read_text(&r, texts[i], strlen(texts[i]));
        ck_assert_msg(r.n == 0, "%s\n%s", texts[i], r.errors);
        result_fini(&r);
    }
}
END_TEST

/* Nothing is cut: a line is read whole or refused. */
START_TEST(long_lines)
{
    static const size_t lengths[] = {190, 199, 200, 201, 400, 4096, 65000};
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        struct result r;
        size_t len = lengths[i];
        char *value = xcalloc(len + 1, 1);
        memset(value, 'v', len);
        value[len / 2] = '=';
        char *text = xasprintf("[env]\nLONG = %s\nB = 1\n", value);
        read_text(&r, text, strlen(text));
        if (r.n == 0) {
            ck_assert_str_eq(r.o.env[0] + 5, value);
            ck_assert_str_eq(r.o.env[1], "B=1");
        } else {
            ck_assert_msg(strstr(r.errors, "job.ini:2: the line is too long") == r.errors, "%s",
                          r.errors);
            ck_assert_int_eq(r.n, 1);
            ck_assert_str_eq(r.o.env[0], "B=1");
        }
        result_fini(&r);
        free(text);
        free(value);
    }
    struct result r;
    char *text = xcalloc(CONFIG_LINE_MAX + 100, 1);
    memset(text, 'x', CONFIG_LINE_MAX + 1);
    memcpy(text, "role=", 5);
    read_text(&r, text, strlen(text));
    ck_assert_int_eq(r.n, 1);
    ck_assert_ptr_nonnull(strstr(r.errors, "job.ini:1: the line is too long"));
    result_fini(&r);
    memset(text, '#', 5); /* a comment may be as long as it likes */
    read_text(&r, text, strlen(text));
    ck_assert_int_eq(r.n, 0);
    result_fini(&r);
    free(text);
}
END_TEST

START_TEST(long_section_name)
{
    struct result r;
    char name[120] = "", text[300];
    memset(name, 'j', sizeof(name) - 1);
    snprintf(text, sizeof(text), "[log]\n[%s]\nnnodes = 2\n[job]\nrole = x\n", name);
    read_text(&r, text, strlen(text));
    ck_assert_int_eq(r.n, 1);
    ck_assert_ptr_nonnull(strstr(r.errors, "job.ini:2: unknown section"));
    ck_assert_str_eq(text_of(&r, OPT_role), "x");
    result_fini(&r);
}
END_TEST

START_TEST(long_path)
{
    struct result r = {.errors = xstrdup("")};
    char path[300];
    memset(path, 'p', sizeof(path));
    path[sizeof(path) - 1] = '\0';
    options_init(&r.o, "dlaunch");
    r.n = config_text_read(&r.o, path, "x = 1\n", 6, on_error, &r);
    ck_assert_int_eq(r.n, 1);
    ck_assert_int_eq(strncmp(r.errors, path, strlen(path)), 0);
    ck_assert_ptr_nonnull(strstr(r.errors, ":1: unknown key x\n"));
    result_fini(&r);
}
END_TEST

START_TEST(a_file_of_something_else)
{
    struct result r;
    char text[4000] = "";
    for (int i = 0; i < 500; i++)
        strcat(text, "x = 1\n");
    read_text(&r, text, strlen(text));
    ck_assert_int_eq(r.n, CONFIG_ERRORS_MAX + 1);
    ck_assert_ptr_nonnull(
        strstr(r.errors, "job.ini:20: too many errors; the rest of the file was not checked\n"));
    result_fini(&r);
}
END_TEST

START_TEST(binary)
{
    struct result r;
    static const char text[] = "nnodes = 2\nro\0le = x\nrole = y\n";
    read_text(&r, text, sizeof(text) - 1);
    ck_assert_str_eq(r.errors, "job.ini:2: the line has a NUL byte, so this is not a text file\n");
    ck_assert_str_eq(text_of(&r, OPT_role), "y");
    result_fini(&r);
}
END_TEST

START_TEST(a_wrong_value_is_reported_though_the_command_line_wins)
{
    struct result r = {.errors = xstrdup("")};
    options_init(&r.o, "dlaunch");
    options_set(&r.o, OPT_nnodes, "2", FROM_ARGV, "--nnodes", NULL);
    static const char text[] = "nnodes = x\nrole = a\n";
    ck_assert_int_eq(config_text_read(&r.o, "job.ini", text, strlen(text), on_error, &r), 1);
    ck_assert_str_eq(text_of(&r, OPT_nnodes), "2");
    result_fini(&r);
}
END_TEST

START_TEST(program_of_the_command_line_wins)
{
    struct result r = {.errors = xstrdup("")};
    char *argv[] = {"dlaunch", "./mine", NULL};
    options_init(&r.o, "dlaunch");
    ck_assert_int_eq(options_read_argv(&r.o, 2, argv, NULL), 0);
    static const char text[] = "command = ./theirs a b\n";
    ck_assert_int_eq(config_text_read(&r.o, "job.ini", text, strlen(text), on_error, &r), 0);
    ck_assert_str_eq(r.o.command[0], "./mine");
    ck_assert_str_eq(r.o.command_source, "command line");
    result_fini(&r);
}
END_TEST

static char *file_errors(const char *path)
{
    struct result r = {.errors = xstrdup("")};
    options_init(&r.o, "dlaunch");
    int n = config_file_read(&r.o, path, on_error, &r);
    ck_assert_int_eq(n > 0, *r.errors != '\0');
    options_fini(&r.o);
    return r.errors;
}

START_TEST(reading_files)
{
    char *errors = file_errors("/nonexistent/job.ini");
    ck_assert_str_eq(errors, "--conf: /nonexistent/job.ini: No such file or directory\n");
    free(errors);
    errors = file_errors("");
    ck_assert_str_eq(errors, "--conf: the value is empty\n");
    free(errors);
    const char *dir = tmpdir();
    errors = file_errors(dir);
    ck_assert_ptr_nonnull(strstr(errors, "Is a directory"));
    free(errors);
    const char *big = tmppath("big.ini");
    int fd = creat(big, 0600);
    ck_assert_int_eq(ftruncate(fd, CONFIG_FILE_MAX + 1), 0);
    close(fd);
    errors = file_errors(big);
    ck_assert_ptr_nonnull(strstr(errors, "larger than 1 MiB"));
    free(errors);
    write_file(tmppath("ok.ini"), "nnodes = 2\n");
    errors = file_errors(tmppath("ok.ini"));
    ck_assert_str_eq(errors, "");
    free(errors);
    /* a pipe, as from --conf <(...) */
    int p[2];
    char name[32];
    ck_assert_int_eq(pipe(p), 0);
    ck_assert_int_gt(write(p[1], "nnode = 2\n", 10), 0);
    close(p[1]);
    snprintf(name, sizeof(name), "/dev/fd/%d", p[0]);
    errors = file_errors(name);
    ck_assert_ptr_nonnull(strstr(errors, ":1: unknown key nnode (did you mean nnodes?)"));
    free(errors);
    close(p[0]);
}
END_TEST

static char *generated(int (*make)(FILE *))
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    ck_assert_int_eq(make(f), 0);
    fclose(f);
    return text;
}

/* The files in conf/ are what the table makes. When this fails: dlaunch --print_options ini >
 * conf/dlaunch.ini; dlaunch --print_completion bash > conf/dlaunch.bash. */
START_TEST(conf_agrees_with_the_table)
{
    static const struct {
        const char *path;
        int (*make)(FILE *);
    } files[] = {{"conf/dlaunch.ini", usage_ini}, {"conf/dlaunch.bash", usage_bash}};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        char *made = generated(files[i].make), *there = read_file(files[i].path);
        ck_assert_msg(strcmp(made, there) == 0, "%s is not what the table makes", files[i].path);
        free(made);
        free(there);
    }
}
END_TEST

/* The sample as it is says nothing; with the marks taken away every key of it is understood. */
START_TEST(sample_is_valid)
{
    struct result r;
    char *text = generated(usage_ini);
    read_text(&r, text, strlen(text));
    ck_assert_msg(r.n == 0, "%s", r.errors);
    for (int i = 0; i < OPT_COUNT; i++)
        ck_assert(!opt_given(&r.o, i));
    result_fini(&r);
    for (char *p = text; *p; p++) {
        if (*p == ';' && p[-1] == '\n')
            *p = '\n';
    }
    read_text(&r, text, strlen(text));
    ck_assert_msg(r.n == 0, "%s", r.errors);
    for (int i = 0; i < OPT_COUNT; i++) {
        bool in_file = !(opt_table[i].flags & (OPT_F_CLI | OPT_F_CLIENV));
        ck_assert_msg(opt_given(&r.o, i) == in_file, "%s", opt_table[i].name);
    }
    ck_assert_str_eq(r.o.command[0], "./train");
    result_fini(&r);
    free(text);
}
END_TEST

START_TEST(help_fits_the_terminal)
{
    char *text = NULL, *line, *next;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    ck_assert_int_eq(usage_help(f, "dlaunch"), 0);
    fclose(f);
    next = text;
    while ((line = strsep(&next, "\n"))) {
        ck_assert_msg(strlen(line) <= USAGE_COLUMNS, "%s", line);
        ck_assert_msg(!*line || line[strlen(line) - 1] != ' ', "'%s' ends in a blank", line);
    }
    free(text);
    text = generated(usage_mdoc);
    for (int i = 0; i < OPT_COUNT; i++) {
        char *item = xasprintf("Fl \\-%s", OPT_KEY(&opt_table[i]));
        ck_assert_msg(strstr(text, item), "%s", item);
        free(item);
    }
    free(text);
    f = fopen("/dev/full", "w");
    ck_assert_int_lt(usage_help(f, "dlaunch"), 0);
    fclose(f);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("config_file");
    TCase *tc = test_case(s, "config_file", 20);
    tcase_add_test(tc, everything_in_its_place);
    tcase_add_test(tc, mistakes);
    tcase_add_test(tc, fine_though_odd);
    tcase_add_test(tc, long_lines);
    tcase_add_test(tc, long_section_name);
    tcase_add_test(tc, long_path);
    tcase_add_test(tc, a_file_of_something_else);
    tcase_add_test(tc, binary);
    tcase_add_test(tc, a_wrong_value_is_reported_though_the_command_line_wins);
    tcase_add_test(tc, program_of_the_command_line_wins);
    tcase_add_test(tc, reading_files);
    tcase_add_test(tc, conf_agrees_with_the_table);
    tcase_add_test(tc, sample_is_valid);
    tcase_add_test(tc, help_fits_the_terminal);
    return s;
}

TEST_MAIN(suite)
