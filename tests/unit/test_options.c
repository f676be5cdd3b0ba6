/* Command lines, environment and what wins; the same as Python's argparse where that matters. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "launcher/options/options.h"
#include "launcher/options/shell_split.h"
#include "tests/lib/proc.h"

/* The parsed options as text: "name=value ..." of the given ones, then ": program arguments". */
static char *describe(const struct options *o)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    for (int i = 0; i < OPT_COUNT; i++) {
        if (opt_given(o, i))
            fprintf(f, "%s=%s ", OPT_KEY(&opt_table[i]), opt_text(o, i));
    }
    fprintf(f, ":");
    for (char **c = o->command; c && *c; c++)
        fprintf(f, " %s", *c);
    fclose(f);
    return text;
}

/* Parses a line of shell words. Returns malloc'ed "... : ..." or "! error". */
static char *parse(const char *prog, const char *line, int *exit_status)
{
    struct options words, o;
    struct err e = ERR_INIT;
    char **argv, *text;
    int argc = 0;
    options_init(&words, "x");
    char *whole = xasprintf("%s %s", prog, line);
    ck_assert_msg(shell_split(&words, whole, &argv, &e) == 0, "%s: %s", line, e.msg);
    while (argv[argc])
        argc++;
    options_init(&o, prog);
    int rc = options_read_argv(&o, argc, argv, &e);
    text = rc < 0 ? xasprintf("! %s", e.msg) : describe(&o);
    if (exit_status)
        *exit_status = o.exit_status;
    options_fini(&o);
    options_fini(&words);
    free(whole);
    return text;
}

struct line {
    const char *line, *want;
};

static void check_lines(const char *prog, const struct line *l, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *got = parse(prog, l[i].line, NULL);
        ck_assert_msg(strcmp(got, l[i].want) == 0, "%s %s\n  gave %s\n  not  %s", prog, l[i].line,
                      got, l[i].want);
        free(got);
    }
}

static const struct line lines[] = {
    /* programs */
    {"./train", ": ./train"},
    {"./train a b", ": ./train a b"},
    {"", ":"},
    {"./train --nnodes 2", ": ./train --nnodes 2"},
    {"./train -h --version", ": ./train -h --version"},
    {"./train -- x", ": ./train -- x"},
    {"./train x -- y", ": ./train x -- y"},
    {"./train --n", ": ./train --n"},
    {"-- ./train", ": ./train"},
    {"-- --nnodes 2", ": --nnodes 2"},
    {"-- -- x", ": -- x"},
    {"--", ":"},
    {"-- ./train -- x", ": ./train -- x"},
    {"--standalone -- ./train -m", "standalone=1 : ./train -m"},
    {"-", ": -"},
    {"- --nnodes 2", ": - --nnodes 2"},
    {"-5", ": -5"},
    {"-.5 x", ": -.5 x"},
    {"-5x", "! unknown option -5x"},
    {"'' x", ":  x"},
    {"'-x y'", ": -x y"},
    {"'--nope nope'", ": --nope nope"},
    {"'my program' 'a b'", ": my program a b"},
    /* values */
    {"--nnodes 2 ./t", "nnodes=2 : ./t"},
    {"--nnodes=2 ./t", "nnodes=2 : ./t"},
    {"--nnodes=1:4 ./t", "nnodes=1:4 : ./t"},
    {"--nnodes 2 --nnodes 3 ./t", "nnodes=3 : ./t"},
    {"--rdzv_conf a=1,b=2 ./t", "rdzv_conf=a=1,b=2 : ./t"},
    {"--rdzv_conf=a=1,b=2 ./t", "rdzv_conf=a=1,b=2 : ./t"},
    {"--rdzv_endpoint= ./t", "rdzv_endpoint= : ./t"},
    {"--rdzv_endpoint '' ./t", "rdzv_endpoint= : ./t"},
    {"--role '-x y' ./t", "role=-x y : ./t"},
    {"--role - ./t", "role=- : ./t"},
    {"--role -5 ./t", "role=-5 : ./t"},
    {"--role=--tee ./t", "role=--tee : ./t"},
    {"--role --tee ./t", "! --role needs a value (NAME)"},
    {"--role -x ./t", "! --role needs a value (NAME)"},
    {"--role -- ./t", "! --role needs a value (NAME)"},
    {"--role", "! --role needs a value (NAME)"},
    {"--nnodes", "! --nnodes needs a value (N|MIN:MAX)"},
    /* '-' and '_' */
    {"--nproc-per-node 4 ./t", "nproc_per_node=4 : ./t"},
    {"--nproc_per_node 4 ./t", "nproc_per_node=4 : ./t"},
    {"--nproc-per_node=4 ./t", "nproc_per_node=4 : ./t"},
    {"--duplicate-stdout_filters a ./t", "duplicate_stdout_filters=a : ./t"},
    {"--print-config", "print_config=1 :"},
    {"--_nnodes 2 ./t", "! unknown option --_nnodes (did you mean --nnodes?)"},
    {"__nnodes 2", ": __nnodes 2"},
    {"--NNODES 2", "! unknown option --NNODES (did you mean --nnodes?)"},
    /* beginnings */
    {"--nproc 4 ./t", "nproc_per_node=4 : ./t"},
    {"--nproc=4 ./t", "nproc_per_node=4 : ./t"},
    {"--nproc-per=4 ./t", "nproc_per_node=4 : ./t"},
    {"--stand ./t", "standalone=1 : ./t"},
    {"--max_r 3 ./t", "max_restarts=3 : ./t"},
    {"--tee 3 ./t", "tee=3 : ./t"},
    {"--te 3 ./t", "tee=3 : ./t"},
    {"--log_l x ./t", "log_line_prefix_template=x : ./t"},
    {"--n 4 ./t", "! --n is ambiguous: --nnodes, --nproc_per_node, --node_rank, --no_detect, --np, "
                  "--new_token, --no_python, "
                  "--no_restart_codes, --numa_binding"},
    {"--dup=x ./t", "! --dup is ambiguous: --duplicate_stdout_filters, --duplicate_stderr_filters"},
    {"--master- x ./t", "! --master- is ambiguous: --master_addr, --master_port, --master_store"},
    {"--nnodesx 4 ./t", "! unknown option --nnodesx (did you mean --nnodes?)"},
    /* flags */
    {"--standalone ./t", "standalone=1 : ./t"},
    {"--standalone=1 ./t", "! --standalone takes no value: --standalone=1"},
    {"--standalone= ./t", "! --standalone takes no value: --standalone="},
    {"--standalone --standalone ./t", "standalone=1 : ./t"},
    {"--module pkg.mod a", "module=1 : pkg.mod a"},
    {"--no-python ./t", "no_python=1 : ./t"},
    {"--run-path x.py", "run_path=1 : x.py"},
    /* letters */
    {"-m pkg.mod", "module=1 : pkg.mod"},
    {"-r 3 ./t", "redirects=3 : ./t"},
    {"-r3 ./t", "redirects=3 : ./t"},
    {"-r=3 ./t", "redirects=3 : ./t"},
    {"-r 0:1,1:2 -t 3 ./t", "redirects=0:1,1:2 tee=3 : ./t"},
    {"-t0:1 ./t", "tee=0:1 : ./t"},
    {"-r -t 3", "! -r needs a value (STD|RANK:STD,...)"},
    {"-mr3 x", "module=1 redirects=3 : x"},
    {"-mr 3 x", "module=1 redirects=3 : x"},
    {"-mr=3 x", "module=1 redirects=3 : x"},
    {"-mt 3 x", "module=1 tee=3 : x"},
    {"-rm x", "redirects=m : x"},
    {"-mm x", "module=1 : x"},
    {"-mx y", "! -m takes no value: -mx"},
    {"-m=x y", "! -m takes no value: -m=x"},
    {"-r", "! -r needs a value (STD|RANK:STD,...)"},
    {"'-r 3' ./t", "redirects= 3 : ./t"},
    {"-z ./t", "! unknown option -z"},
    {"-env ./t", "! -env needs a name and a value"},
    {"-n 4 ./t", "np=4 : ./t"},
    {"-n4 ./t", "np=4 : ./t"},
    {"-np 4 -ppn=2 ./t", "np=4 ppn=2 : ./t"},
    {"-host a,b -x V -x W=1 ./t", "host=a,b export=W=1 : ./t"},
    {"--ssh_args '-i key' -f h ./t", "hostfile=h ssh_args=-i key : ./t"},
    {"-nnodes 2", "! unknown option -nnodes"},
    {"---nnodes 2", "! unknown option ---nnodes (did you mean --nnodes?)"},
    /* did you mean */
    {"--nproc_per_nod3 4 ./t",
     "! unknown option --nproc_per_nod3 (did you mean --nproc_per_node?)"},
    {"--max-retsarts=4 ./t", "! unknown option --max-retsarts (did you mean --max_restarts?)"},
    {"--bananas ./t", "! unknown option --bananas"},
    /* help and version end it */
    {"--help --bananas", "help=1 :"},
    {"-h", "help=1 :"},
    {"-hm x", "module=1 help=1 :"},
    {"--nnodes 2 --version --nnodes 0", "nnodes=2 version=1 :"},
    {"./t --help", ": ./t --help"},
    /* bad values */
    {"--nnodes 0 ./t", "! --nnodes: 0 is out of range (1 to 1000000)"},
    {"--nnodes 3:2 ./t", "! --nnodes: 3:2: MIN is greater than MAX"},
    {"--nnodes a ./t", "! --nnodes: 'a' is neither N nor MIN:MAX"},
    {"--nnodes 1:2:3 ./t", "! --nnodes: '1:2:3' is neither N nor MIN:MAX"},
    {"--nnodes= ./t", "! --nnodes: '' is neither N nor MIN:MAX"},
    {"-x 1A=2 ./t", "! -x: '1A' is not a valid variable name (letters, digits and _, not beginning "
                    "with a digit)"},
    {"--nproc-per-node x ./t", "! --nproc-per-node: 'x' is neither a number nor auto, cpu or gpu"},
    {"--nproc-per-node", "! --nproc-per-node needs a value (N|auto|cpu|gpu)"},
    {"--nproc x ./t", "! --nproc_per_node: 'x' is neither a number nor auto, cpu or gpu"},
    {"--nproc 0 ./t", "! --nproc_per_node: 0 is out of range (1 to 4096)"},
    {"--nproc -1 ./t", "! --nproc_per_node: -1 is out of range (1 to 4096)"},
    {"--nproc 4097 ./t", "! --nproc_per_node: 4097 is out of range (1 to 4096)"},
    {"--nproc 4.5 ./t", "! --nproc_per_node: '4.5' is neither a number nor auto, cpu or gpu"},
    {"--max_restarts x ./t", "! --max_restarts: 'x' is not a whole number"},
    {"--max_restarts -1 ./t", "! --max_restarts: -1 is out of range (0 to 2147483647)"},
    {"--max_restarts 99999999999999999999 ./t",
     "! --max_restarts: 99999999999999999999 is out of range (0 to 2147483647)"},
    {"--node_rank x ./t", "! --node_rank: 'x' is neither a whole number nor any"},
    {"--node_rank any ./t", "node_rank=any : ./t"},
    {"--master_port 65536 ./t", "! --master_port: 65536 is out of range (0 to 65535)"},
    {"--timeout 5x ./t",
     "! --timeout: '5x' is not a time (seconds, or a number with ms, s, min or h)"},
    {"--timeout 1.5h ./t", "timeout=1.5h : ./t"},
    {"--bind cores ./t",
     "! --bind: 'cores' is not one of none, core, numa, socket (did you mean core?)"},
    {"--bind '' ./t", "! --bind: '' is not one of none, core, numa, socket"},
    {"--stdin rank ./t", "! --stdin: 'rank' is not one of none, rank0, all (did you mean rank0?)"},
    {"--start_method thread ./t",
     "! --start_method: 'thread' is not one of spawn, fork, forkserver"},
    {"--store_compat=1.13 ./t", "store_compat=1.13 : ./t"},
    {"--isolate pidns --bind numa --restart_policy worker --master_store none ./t",
     "master_store=none restart_policy=worker isolate=pidns bind=numa : ./t"},
};

START_TEST(command_lines)
{
    ck_assert_int_ge(ARRAY_LEN(lines), 80);
    check_lines("dlaunch", lines, ARRAY_LEN(lines));
}
END_TEST

START_TEST(torchrun_name)
{
    static const struct line rows[] = {
        /* argparse drops the first "--", wherever it is */
        {"t.py -- a", ": t.py a"},
        {"t.py -- a -- b", ": t.py a -- b"},
        {"-- t.py -- a", ": t.py -- a"},
        {"t.py a -- b", ": t.py a -- b"},
        /* what is unambiguous there stays so */
        {"--t 3 t.py", "tee=3 : t.py"},
        {"--re 3 t.py", "redirects=3 : t.py"},
        {"--v t.py", "virtual_local_rank=1 : t.py"},
        {"--nn 2 t.py", "nnodes=2 : t.py"},
        {"--no 2 t.py",
         "! --no is ambiguous: --node_rank, --no_detect, --no_python, --no_restart_codes"},
        /* and ours can be used */
        {"--report x t.py", "report=x : t.py"},
    };
    check_lines("torchrun", rows, ARRAY_LEN(rows));
    struct options o;
    options_init(&o, "/usr/bin/torchrun");
    ck_assert(o.torchrun);
    ck_assert_str_eq(o.prog, "torchrun");
    ck_assert_str_eq(opt_text(&o, OPT_stdin), "all");
    ck_assert(opt_flag(&o, OPT_use_env));
    options_init(&o, "torch.distributed.launch");
    ck_assert(o.torchrun && !opt_flag(&o, OPT_use_env));
    options_init(&o, "./dlaunch");
    ck_assert(!o.torchrun && opt_flag(&o, OPT_use_env));
    ck_assert_str_eq(opt_text(&o, OPT_stdin), "rank0");
}
END_TEST

/* Errors that argparse detects exit with 2; errors that torchrun detects later exit with 1 under
 * its name. */
START_TEST(exit_statuses)
{
    static const struct {
        const char *line;
        int dlaunch, torchrun;
    } rows[] = {
        {"--bananas", 2, 2},           {"--nnodes", 2, 2},
        {"--nnodes 0 x", 2, 1},        {"--nnodes a x", 2, 1},
        {"--nproc x x", 2, 1},         {"--max_restarts x x", 2, 2},
        {"--max_restarts -1 x", 2, 1}, {"--master_port x x", 2, 2},
        {"--start_method x x", 2, 2},  {"--n 3 x", 2, 2},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int a, b;
        free(parse("dlaunch", rows[i].line, &a));
        free(parse("torchrun", rows[i].line, &b));
        ck_assert_msg(a == rows[i].dlaunch && b == rows[i].torchrun, "%s: %d and %d", rows[i].line,
                      a, b);
    }
}
END_TEST

static char *read_env(char *const *envp, const char *prog)
{
    struct options o;
    struct err e = ERR_INIT;
    options_init(&o, prog);
    char *text = options_read_env(&o, envp, &e) < 0 ? xasprintf("! %s", e.msg) : describe(&o);
    options_fini(&o);
    return text;
}

START_TEST(environment)
{
    static const struct {
        char *env[4];
        const char *want;
    } rows[] = {
        {{"PET_NNODES=2", "PET_NPROC_PER_NODE=4"}, "nnodes=2 nproc_per_node=4 :"},
        {{"DLAUNCH_NNODES=3", "PET_NNODES=2"}, "nnodes=3 :"},
        {{"PET_NNODES=2", "DLAUNCH_NNODES=3"}, "nnodes=3 :"},
        {{"PET_NNODES=bad", "DLAUNCH_NNODES=3"}, "nnodes=3 :"},
        {{"PET_NNODES=bad"}, "! PET_NNODES: 'bad' is neither N nor MIN:MAX"},
        {{"DLAUNCH_MAX_RESTARTS="}, "! DLAUNCH_MAX_RESTARTS: '' is not a whole number"},
        {{"PET_STANDALONE=1"}, "standalone=1 :"},
        {{"PET_STANDALONE=0"}, "standalone=0 :"},
        {{"PET_STANDALONE=7"}, "standalone=1 :"},
        {{"PET_MODULE=true"}, "module=1 :"},
        {{"DLAUNCH_QUIET=yes"}, "quiet=1 :"},
        {{"PET_STANDALONE=maybe"}, "! PET_STANDALONE: 'maybe' is neither yes nor no"},
        /* not torchrun's, so not PET_ */
        {{"PET_REPORT=x", "PET_BIND=core", "PET_LOGS_SPECS=x", "PET_NUMA_BINDING=node"}, ":"},
        {{"DLAUNCH_REPORT=x", "DLAUNCH_CONF=y"}, "report=x conf=y :"},
        /* the command line's own */
        {{"DLAUNCH_HELP=1", "DLAUNCH_DRY_RUN=1", "PET_HELP=1"}, ":"},
        /* not variables of ours */
        {{"DLAUNCH_SEGMENT_FD=3", "DLAUNCH_nnodes=3", "DLAUNCH_", "PETNNODES=1"}, ":"},
        {{"PET_RDZV_ENDPOINT="}, "rdzv_endpoint= :"},
        {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7"}, "shutdown_timeout=7 :"},
        {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7", "PET_SHUTDOWN_TIMEOUT=8"}, "shutdown_timeout=8 :"},
        {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=[x]"}, "log_line_prefix_template=[x] :"},
        {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=[x]", "PET_LOG_LINE_PREFIX_TEMPLATE=[y]"},
         "log_line_prefix_template=[y] :"},
        {{"PET_START_METHOD=thread"},
         "! PET_START_METHOD: 'thread' is not one of spawn, fork, forkserver"},
        {{"TORCHELASTIC_RUN_ID=x", "TORCH_HOME=y", "NNODES=3", "PATH=/bin"}, ":"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *const *env = rows[i].env;
        char *with_end[5] = {env[0], env[1], env[2], env[3], NULL};
        char *got = read_env(with_end, "dlaunch");
        ck_assert_msg(strcmp(got, rows[i].want) == 0, "%s ...\n  gave %s\n  not  %s", env[0], got,
                      rows[i].want);
        free(got);
    }
}
END_TEST

/* torchrun does not look at the words of a default, which PET_* is. */
START_TEST(unknown_words_in_torchruns_variables)
{
    char *got = read_env((char *[]){"PET_START_METHOD=thread", "PET_NNODES=2", NULL}, "torchrun");
    ck_assert_str_eq(got, "nnodes=2 :");
    free(got);
    got = read_env((char *[]){"DLAUNCH_START_METHOD=thread", NULL}, "torchrun");
    ck_assert_ptr_nonnull(strstr(got, "! DLAUNCH_START_METHOD: 'thread'"));
    free(got);
}
END_TEST

static void keep_line(void *arg, const char *line, size_t len)
{
    struct buf *b = arg;
    buf_put(b, line, len);
}

/* The one that is meant is named; what is somebody else's is not spoken of. */
START_TEST(unknown_variables)
{
    static const struct {
        char *var, *says;
    } rows[] = {
        {"DLAUNCH_NPROC_PER_NODES=4", " (did you mean DLAUNCH_NPROC_PER_NODE?)"},
        {"DLAUNCH_MAX_RESTART=", " (did you mean DLAUNCH_MAX_RESTARTS?)"},
        {"DLAUNCH_NPROC=4", " (did you mean DLAUNCH_NPROC_PER_NODE?)"},
        {"DLAUNCH_nnodes=4", " (did you mean DLAUNCH_NNODES?)"},
        {"DLAUNCH_TOKN=secret", " (did you mean DLAUNCH_TOKEN?)"},
        {"DLAUNCH_DRY_RUN=1", ": --dry_run is for the command line only"},
        {"DLAUNCH_WORKERS=4", ""},
        {"DLAUNCH_=4", ""},
        {"PET_NPROC_PERNODE=4", " (did you mean PET_NPROC_PER_NODE?)"},
        {"PET_SPARES=4", " (did you mean DLAUNCH_SPARES?)"},
        {"DLAUNCH_NNODES=4", NULL},
        {"DLAUNCH_TOKEN=secret", NULL},
        {"DLAUNCH_SEGMENT_FD=4", NULL}, /* of a dlaunch around this one */
        {"DLAUNCH_LISTEN_FD=4", NULL},
        {"DLAUNCHER=4", NULL},
        {"PET_NNODES=4", NULL},
        {"PET_SOMETHING_NEW=4", NULL},
        {"DLCOLL_X=4", NULL},
        {"TORCHELASTIC_RUN_ID=4", NULL},
        /* in a pod: of the services "dlaunch-n0" and "dlaunch" */
        {"DLAUNCH_N0_PORT_29500_TCP=4", NULL},
        {"DLAUNCH_SERVICE_HOST=4", NULL},
        {"DLAUNCH_SERVICE_PORT=4", NULL},
        {"DLAUNCH_MAX_RESTART=4", " (did you mean DLAUNCH_MAX_RESTARTS?)"},
    };
    struct buf said = BUF_INIT;
    log_set_writer(keep_line, &said);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *const pod = i + 4 >= ARRAY_LEN(rows) ? "KUBERNETES_SERVICE_HOST=10.0.0.1" : NULL;
        char *want = rows[i].says
                         ? xasprintf("dlaunch: unknown variable %.*s has no effect%s\n",
                                     (int)strcspn(rows[i].var, "="), rows[i].var, rows[i].says)
                         : xstrdup("");
        said.len = 0;
        options_warn_env((char *[]){rows[i].var, pod, NULL});
        buf_u8(&said, '\0');
        ck_assert_str_eq((char *)said.data, want);
        free(want);
    }
    log_set_writer(NULL, NULL);
    buf_fini(&said);
}
END_TEST

/* Kubernetes gives these variables to every pod if a service is named dlaunch-master. */
START_TEST(addresses_of_services)
{
    static char ours[] = "DLAUNCH_MASTER_PORT=tcp://10.96.0.12:29500";
    struct options o;
    struct err e;
    options_init(&o, "dlaunch");
    ck_assert_int_eq(
        options_read_env(&o, (char *[]){ours, "KUBERNETES_SERVICE_HOST=10.0.0.1", NULL}, NULL), 0);
    ck_assert_str_eq(o.value[OPT_master_port].source, "default");
    ck_assert_int_lt(options_read_env(&o, (char *[]){ours, NULL}, &e), 0);
    options_fini(&o);
}
END_TEST

START_TEST(precedence_of_sources)
{
    static const enum opt_from order[] = {FROM_ARGV, FROM_DETECTED, FROM_DLAUNCH, FROM_FILE,
                                          FROM_PET};
    static const char *const texts[] = {"6", "2", "5", "3", "4"};
    /* All orders of setting give the same: the highest rank that there is. */
    for (unsigned set = 1; set < 32; set++) {
        for (size_t start = 0; start < 5; start++) {
            struct options o;
            int want = 0;
            options_init(&o, "dlaunch");
            for (size_t i = 0; i < 5; i++) {
                size_t k = (start + i) % 5;
                if (set & (1u << k)) {
                    ck_assert_int_eq(options_set(&o, OPT_nnodes, texts[k], order[k], "x", NULL), 0);
                    want = atoi(texts[k]) > want ? atoi(texts[k]) : want;
                }
            }
            ck_assert_int_eq(atoi(opt_text(&o, OPT_nnodes)), want);
        }
    }
}
END_TEST

START_TEST(sources)
{
    struct options o;
    char *argv[] = {"dlaunch", "--nproc", "4", "-r3", "./t", NULL};
    char *env[] = {"PET_NNODES=2", "DLAUNCH_ROLE=a", NULL};
    options_init(&o, "dlaunch");
    ck_assert_int_eq(options_read_argv(&o, 5, argv, NULL), 0);
    ck_assert_int_eq(options_read_env(&o, env, NULL), 0);
    options_set(&o, OPT_timeout, "5", FROM_FILE, "job.ini:7", NULL);
    ck_assert_str_eq(opt_where(&o, OPT_nproc_per_node), "--nproc_per_node");
    ck_assert_str_eq(opt_where(&o, OPT_redirects), "-r");
    ck_assert_str_eq(opt_where(&o, OPT_nnodes), "PET_NNODES");
    ck_assert_str_eq(opt_where(&o, OPT_role), "DLAUNCH_ROLE");
    ck_assert_str_eq(opt_where(&o, OPT_timeout), "job.ini:7: timeout");
    ck_assert_str_eq(opt_where(&o, OPT_tee), "--tee");
    ck_assert_str_eq(o.value[OPT_tee].source, "default");
    options_fini(&o);
}
END_TEST

/* The enums that options stand for, and the words in the table, in one order. */
START_TEST(choices)
{
    static const struct {
        enum opt_id id;
        const char *words;
    } rows[] = {{OPT_stdin, "none|rank0|all"},          {OPT_bind, "none|core|numa|socket"},
                {OPT_isolate, "auto|none|pidns"},       {OPT_restart_policy, "group|worker"},
                {OPT_master_store, "agent|relay|none"}, {OPT_store_compat, "2.1|1.13"}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        ck_assert_str_eq(opt_table[rows[i].id].values, rows[i].words);
}
END_TEST

START_TEST(every_default_passes_its_own_check)
{
    for (int i = 0; i < OPT_COUNT; i++) {
        struct err e = ERR_INIT;
        if (opt_table[i].def)
            ck_assert_msg(opt_check(i, opt_table[i].def, &e) == 0, "%s: %s", opt_table[i].name,
                          e.msg);
        for (int j = 0; j < i; j++)
            ck_assert_str_ne(opt_table[i].name, opt_table[j].name);
    }
}
END_TEST

/* Random command lines, by us and by argparse with the same options. */
START_TEST(same_as_argparse)
{
    enum { LINES = 4000, WORDS = 8 };
    static const char *const words[] = {"--nnodes",
                                        "--nnodes=2",
                                        "--nproc_per_node=3",
                                        "--nproc-per-node",
                                        "--nproc",
                                        "--standalone",
                                        "--standalone=1",
                                        "--stand",
                                        "-m",
                                        "-r",
                                        "-r3",
                                        "-r=1",
                                        "-t",
                                        "-t0:1",
                                        "-mr3",
                                        "-mr",
                                        "-mx",
                                        "--max-restarts",
                                        "--max_restarts=2",
                                        "--role",
                                        "--role=",
                                        "--role=a=b",
                                        "--rdzv-id",
                                        "--tee",
                                        "--no_python",
                                        "--n",
                                        "--master",
                                        "--",
                                        "-",
                                        "2",
                                        "-5",
                                        "-.5",
                                        "a",
                                        "a b",
                                        "-a b",
                                        "",
                                        "--bogus",
                                        "-x",
                                        "--log-dir",
                                        "t.py",
                                        "t.py",
                                        "--start-method=fork",
                                        "--start-method=bad",
                                        "--redirects"};
    struct proc p;
    if (access("tests/unit/argparse_model.py", R_OK) < 0 || system("python3 -c ''") != 0) {
        test_skip("no python3 to compare with");
        return;
    }
    const char *path = tmppath("lines");
    FILE *f = fopen(path, "w");
    unsigned seed = 20240607;
    static unsigned char pick[LINES][WORDS + 1];
    for (int l = 0; l < LINES; l++) {
        pick[l][0] = (unsigned char)(1 + rand_r(&seed) % WORDS);
        for (int w = 1; w <= pick[l][0]; w++) {
            pick[l][w] = (unsigned char)(rand_r(&seed) % ARRAY_LEN(words));
            fprintf(f, "%s%s", w > 1 ? "\t" : "", words[pick[l][w]]);
        }
        fprintf(f, "\n");
    }
    fclose(f);
    int rc = proc_run(&p, ARGV("python3", "tests/unit/argparse_model.py", (char *)path), NULL, 60);
    ck_assert_msg(rc == 0, "%s", p.err);
    char *next = p.out;
    int accepted = 0;
    for (int l = 0; l < LINES; l++) {
        char *want = strsep(&next, "\n"), *argv[WORDS + 2] = {"torchrun"}, *got;
        struct options o;
        int argc = 1;
        for (int w = 1; w <= pick[l][0]; w++)
            argv[argc++] = (char *)words[pick[l][w]];
        argv[argc] = NULL;
        options_init(&o, "torchrun");
        rc = options_read_argv(&o, argc, argv, NULL);
        got = rc < 0 || !o.command ? xstrdup("error") : describe(&o);
        ck_assert_ptr_nonnull(want);
        if (strcmp(got, want) != 0) {
            char line[512] = "";
            for (int w = 1; w <= pick[l][0]; w++)
                snprintf(line + strlen(line), sizeof(line) - strlen(line), " '%s'",
                         words[pick[l][w]]);
            ck_abort_msg("torchrun%s\n  here     %s\n  argparse %s", line, got, want);
        }
        accepted += strcmp(got, "error") != 0;
        free(got);
        options_fini(&o);
    }
    ck_assert_int_gt(accepted, LINES / 20);
    proc_fini(&p);
}
END_TEST

/* Reading a plain command line and environment costs microseconds. */
START_TEST(cost)
{
    enum { N = 2000 };
    char *env[101], text[100][32];
    for (int i = 0; i < 100; i++) {
        snprintf(text[i], sizeof(text[i]), "SOME_VARIABLE_%d=value", i);
        env[i] = text[i];
    }
    env[3] = "PET_NNODES=1";
    env[100] = NULL;
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < N; i++) {
        char *argv[] = {"dlaunch", "--nproc_per_node", "4", "--max_restarts", "3", "./t", NULL};
        struct options o;
        uint64_t t = mono_ns();
        options_init(&o, "dlaunch");
        options_read_argv(&o, 6, argv, NULL);
        options_read_env(&o, env, NULL);
        options_fini(&o);
        t = mono_ns() - t;
        best = t < best ? t : best;
    }
    printf("argv and environment: %llu ns\n", (unsigned long long)best);
    ck_assert_uint_lt(best, (uint64_t)(test_seconds(1) * 100000)); /* 0.1 ms */
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("options");
    TCase *tc = test_case(s, "options", 60);
    tcase_add_test(tc, command_lines);
    tcase_add_test(tc, torchrun_name);
    tcase_add_test(tc, exit_statuses);
    tcase_add_test(tc, environment);
    tcase_add_test(tc, unknown_words_in_torchruns_variables);
    tcase_add_test(tc, unknown_variables);
    tcase_add_test(tc, addresses_of_services);
    tcase_add_test(tc, precedence_of_sources);
    tcase_add_test(tc, sources);
    tcase_add_test(tc, choices);
    tcase_add_test(tc, every_default_passes_its_own_check);
    tcase_add_test(tc, same_as_argparse);
    tcase_add_test(tc, cost);
    return s;
}

TEST_MAIN(suite)
