/* Lists of hosts: what is read of them, how workers are shared out, and what is said of mistakes.
 */
#include "launcher/hosts/host_list.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/mem.h"
#include "launcher/hosts/plan_options.h"
#include "launcher/hosts/reach.h"
#include "tests/lib/test.h"

static struct options o;

static void setup(void)
{
    options_init(&o, "dlaunch");
}

static void teardown(void)
{
    options_fini(&o);
}

/* "user@name:slots/max+ids=nproc", what there is of it, parted by blanks. */
static char *describe(const struct host_list *l)
{
    char *text = xcalloc(1, 4096);
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        const struct host *h = &l->host[i];
        n += (size_t)snprintf(text + n, 4096 - n, "%s%s%s%s", i ? " " : "", h->user ? h->user : "",
                              h->user ? "@" : "", h->name);
        if (h->slots)
            n += (size_t)snprintf(text + n, 4096 - n, ":%d", h->slots);
        if (h->max_slots)
            n += (size_t)snprintf(text + n, 4096 - n, "/%d", h->max_slots);
        if (h->ids)
            n += (size_t)snprintf(text + n, 4096 - n, "+%s", h->ids);
        if (h->nproc)
            n += (size_t)snprintf(text + n, 4096 - n, "=%d", h->nproc);
    }
    return test_keep(text);
}

static const struct {
    const char *text, *hosts; /* "! ...": the message */
} lists[] = {
    {"a", "a"},
    {"a:4,b:4", "a:4 b:4"},
    {"a:4 b:4", "a:4 b:4"},
    {"ann@a:2,b", "ann@a:2 b"},
    {"n[1-3]:8", "n1:8 n2:8 n3:8"},
    {"n[1-9/4,12],m", "n1 n5 n9 n12 m"},
    {"r[0-1]n[08-09]-ib:2", "r0n08-ib:2 r0n09-ib:2 r1n08-ib:2 r1n09-ib:2"},
    {"10.0.0.1:2", "10.0.0.1:2"},
    {"[fd77::1]:4,[::1]", "fd77::1:4 ::1"},
    {"fd77::1", "fd77::1"},
    {"fe80::1%eth0", "fe80::1%eth0"},
    {"ann@[fd77::1]:4", "ann@fd77::1:4"},
    {"a:2,b:1,a:2", "a:4 b:1"},
    {"a,a,a", "a:3"},
    {"a.b-c_d:1", "a.b-c_d:1"},
    {"", "! there is no host in it"},
    {"a,,b", "! 'a,,b' has an empty entry"},
    {"a,", "! 'a,' ends with a comma"},
    {",a", "! ',a' has an empty entry"},
    {"a:0", "! 'a:0': the slots behind ':': 0 is out of range (1 to 4096)"},
    {"a:x", "! 'a:x': the slots behind ':': 'x' is not a whole number"},
    {"a:", "! 'a:': the slots behind ':': '' is not a whole number"},
    {"a:1:2", "! 'a:1' has two ':'; write an IPv6 address as [ADDRESS]:SLOTS"},
    {"a@b@c", "! 'a@b@c' has two '@'; user@HOST has one"},
    {"@b", "! '@b': the user name is empty"},
    {"a@", "! there is no host name; HOST, HOST:SLOTS or user@HOST"},
    {"-oProxyCommand=x", "! '-oProxyCommand=x': a name cannot begin with '-'"},
    {"-l@host", "! '-l': a name cannot begin with '-'"},
    {"a;reboot", "! 'a;reboot' is not a host name (';')"},
    {"[fd77::1:4", "! '[fd77::1:4' is not [ADDRESS] or [ADDRESS]:SLOTS"},
    {"[fd77::x]:4", "! 'fd77::x' is not an IPv6 address"},
    {"[fd77::1]4", "! '[fd77::1]4' is not [ADDRESS] or [ADDRESS]:SLOTS"},
    {"n[3-1]", "! '3-1]': the first number of the range is greater than the last"},
    {"n[1-3", "! '1-3': brackets must contain numbers and ranges, such as [1-3,7]"},
    {"n[0-99999]", "! more than 8192 hosts"},
};

START_TEST(a_list_is_read)
{
    struct host_list l = {.o = &o};
    struct err e = ERR_INIT;
    int rc = host_list_add(&l, lists[_i].text, &e);
    const char *got = rc < 0 ? test_text("! %s", e.msg) : describe(&l);
    ck_assert_str_eq(got, lists[_i].hosts);
}
END_TEST

static const struct {
    const char *text, *hosts;
} files[] = {
    {"a slots=4\nb slots=4 max_slots=8\n", "a:4 b:4/8"}, /* Open MPI, PRRTE, DeepSpeed */
    {"a slots = 4 max-slots = 6", "a:4/6"},
    {"# all\n\n  a:2 # two\r\nb\n", "a:2 b"}, /* MPICH, horovod */
    {"ann@a slots=2\nb user=bob\n", "ann@a:2 bob@b"},
    {"a\na\nb\na\n", "a:3 b"}, /* PBS */
    {"n[1-2] slots=8\n", "n1:8 n2:8"},
    {"[fd77::1]:4\n::1 slots=2", "fd77::1:4 ::1:2"},
    {"a\nb slot=4\n", "! F:2: 'slot=4' is not one of slots=N, max_slots=N, user=NAME"},
    {"a slots\n", "! F:1: slots needs a value: slots=N"},
    {"a slots=\n", "! F:1: slots needs a value: slots=N"},
    {"a slots=four\n", "! F:1: slots: 'four' is not a whole number"},
    {"a\n\nb slots=0\n", "! F:3: slots: 0 is out of range (1 to 4096)"},
    {"a slots=4 max_slots=2\n", "! F:1: max_slots=2 is less than slots=4"},
    {"a,b\n", "! F:1: one host on each line; lists parted by commas are for -H"},
    {"a@b@c slots=1\n", "! F:1: 'a@b@c' has two '@'; user@HOST has one"},
    {"a user=-x\n", "! F:1: '-x': a name cannot begin with '-'"},
    {"# none\n", "! F: there is no host in it"},
    {"", "! F: there is no host in it"},
};

START_TEST(a_file_is_read)
{
    struct host_list l = {.o = &o};
    struct err e = ERR_INIT;
    int rc = host_list_add_lines(&l, files[_i].text, "F", &e);
    const char *got = rc < 0 ? test_text("! %s", e.msg) : describe(&l);
    ck_assert_str_eq(got, files[_i].hosts);
}
END_TEST

static const struct {
    bool include;
    const char *list, *filter, *hosts;
} filters[] = {
    {true, "w0:4,w1:4,w2:4", "w1", "w1:4"},
    {true, "w0:4,w1:4,w2:4", "w2@w0", "w0:4 w2:4"},
    {true, "w0:4,w1:4", "w0@w1:0,2", "w0:4 w1:2+0,2"},
    {true, "w0,w1", "w1:1,3", "w1:2+1,3"},
    {false, "w0:4,w1:4", "w1", "w0:4"},
    {false, "w0:4,w1:4", "w1:0", "w0:4 w1:3+1,2,3"},
    {false, "w0:1,w1:4", "w0:0", "w1:4"},
    {true, "w0:4,w1:4", "w9", "! 'w9' is not one of the hosts (w0, w1)"},
    {true, "w0:4", "w0:4", "! w0 has no slot 4: its slots are 0 to 3"},
    {true, "w0:4", "w0:x", "! the slot of w0: 'x' is not a whole number"},
    {true, "w0:4", "w0:", "! the slot of w0: '' is not a whole number"},
    {true, "w0:4", "@w0", "! '@w0' has an entry without a host; HOST[:SLOT,...][@...]"},
    {false, "w0:4", "w0", "! no host is left"},
    {false, "w0,w1", "w0:1", "! the slots of w0 are not known: give them as w0:N or slots=N"},
};

START_TEST(a_list_is_filtered)
{
    struct host_list l = {.o = &o};
    struct err e = ERR_INIT;
    ck_assert_int_eq(host_list_add(&l, filters[_i].list, &e), 0);
    int rc = host_list_filter(&l, filters[_i].filter, filters[_i].include, &e);
    const char *got = rc < 0 ? test_text("! %s", e.msg) : describe(&l);
    ck_assert_str_eq(got, filters[_i].hosts);
}
END_TEST

static const struct {
    const char *list;
    long np, ppn;
    const char *hosts;
} shares[] = {
    {"a:4,b:2", 0, 0, "a:4=4 b:2=2"},
    {"a,b", 0, 0, "a b"},
    {"a:4,b:4", 6, 0, "a:4=4 b:4=2"},
    {"a:4,b:4", 3, 0, "a:4=3"},
    {"a,b", 8, 0, "a=4 b=4"},
    {"a,b,c", 8, 0, "a=3 b=3 c=2"},
    {"a,b,c", 2, 0, "a=1 b=1"},
    {"a,b,c", 8, 4, "a=4 b=4"},
    {"a,b", 7, 4, "a=4 b=3"},
    {"a:2,b:2", 0, 3, "a:2=3 b:2=3"},
    {"a:4,b:4", 9, 0,
     "! 9 workers, but the hosts have 8 slots (a:4, b:4); --oversubscribe, --ppn or max_slots "
     "allows more"},
    {"a,b", 12, 4, "! 12 workers, 4 on each host, need 3 hosts, and there are 2"},
    {"a", 8, 4, "! 8 workers, 4 on each host, need 2 hosts, and there is 1"},
};

START_TEST(workers_are_shared_out)
{
    struct host_list l = {.o = &o};
    struct err e = ERR_INIT;
    ck_assert_int_eq(host_list_add(&l, shares[_i].list, &e), 0);
    int rc = host_list_share(&l, shares[_i].np, shares[_i].ppn, &e);
    const char *got = rc < 0 ? test_text("! %s", e.msg) : describe(&l);
    ck_assert_str_eq(got, shares[_i].hosts);
}
END_TEST

START_TEST(max_slots_allows_more)
{
    struct host_list l = {.o = &o};
    struct err e = ERR_INIT;
    ck_assert_int_eq(host_list_add_lines(&l, "a slots=2 max_slots=4\nb slots=2", "F", &e), 0);
    ck_assert_int_eq(host_list_share(&l, 6, 0, &e), 0);
    ck_assert_str_eq(describe(&l), "a:2/4=4 b:2=2");
    ck_assert_int_lt(host_list_share(&l, 0, 5, &e), 0);
    ck_assert_str_eq(e.msg, "a can have 4 workers (max_slots), not 5");
}
END_TEST

/* ---------------------------------------------------------------------------------- the options */

static const char *read_options(const char *line)
{
    static char *argv[32];
    struct host_list l;
    struct err e = ERR_INIT;
    int argc = 0;
    char *text = test_keep(xstrdup(line)), *word;
    argv[argc++] = (char *)"dlaunch";
    while ((word = strsep(&text, " ")))
        argv[argc++] = word;
    argv[argc] = NULL;
    int rc = options_read_argv(&o, argc, argv, &e);
    if (rc == 0)
        rc = host_list_read(&l, &o, &e);
    if (rc == 0)
        return describe(&l);
    if (rc > 0 && plan_options_without_hosts(&o, &e) == 0)
        return test_text("nnodes=%s nproc=%s", opt_text(&o, OPT_nnodes),
                         opt_text(&o, OPT_nproc_per_node));
    return test_text("! %s", e.msg);
}

static const struct {
    const char *line, *hosts;
} lines[] = {
    {"-H a:4,b:4 -n 8 ./t", "a:4=4 b:4=4"},
    {"-host a,b -np 4 ./t", "a=2 b=2"},
    {"--hosts a,b -n 4 -ppn 2 ./t", "a=2 b=2"},
    {"-hosts=a,b -n4 ./t", "a=2 b=2"},
    {"--host_discovery_script echo\ta:2 ./t", "a:2=2"},
    {"--host_discovery_script false ./t", "! --host_discovery_script: false: exit status 1"},
    {"-H w0:2,w1:2 -i w1:1 ./t", "w1:1+1=1"},
    {"-H w0:2,w1:2 -e w1 ./t", "w0:2=2"},
    {"-H w0,w1 -e w1 -i w0 ./t", "! -e cannot be combined with -i"},
    {"-H a -f x ./t", "! -f cannot be combined with -H"},
    {"-f /nonexistent ./t", "! -f: /nonexistent: No such file or directory"},
    {"-H a:1 -n 2 ./t", "! -n: 2 workers, but the hosts have 1 slots (a:1); --oversubscribe, "
                        "--ppn or max_slots allows more"},
    {"-n 8 ./t", "nnodes=1 nproc=8"},
    {"-n 8 -ppn 4 ./t", "nnodes=2 nproc=4"},
    {"--nnodes 2 -np 8 ./t", "nnodes=2 nproc=4"},
    {"-ppn 3 ./t", "nnodes=1 nproc=3"},
    {"-n 7 -ppn 4 ./t", "! -n 7: not a whole number of nodes with 4 workers each"},
    {"--ssh_port 22 ./t", "! --ssh_port has no effect without --host or --hostfile"},
};

START_TEST(options_name_hosts)
{
    ck_assert_str_eq(read_options(lines[_i].line), lines[_i].hosts);
}
END_TEST

/* The plan for the launcher on a host. */
START_TEST(a_host_gets_the_options)
{
    struct job_of_hosts j = {2, 2, 0, "10.0.0.1:4567", "id"};
    struct err e = ERR_INIT;
    int at;
    char *text = xcalloc(1, 4096);
    char *argv[] = {"dlaunch", "-H", "a:2,b:3",     "--max_restarts", "3",       "--elastic",
                    "--conf",  "x",  "--rdzv_conf", "join_timeout=5", "./train", "--lr",
                    "a b",     NULL};
    struct host_list l;
    ck_assert_int_eq(options_read_argv(&o, (int)ARRAY_LEN(argv) - 1, argv, &e), 0);
    ck_assert_int_eq(host_list_read(&l, &o, &e), 0);
    char **got = plan_options_argv(&o, &j, &l.host[1], 1, &at);
    ck_assert_str_eq(got[at], "./train");
    for (char **w = got; *w; w++) {
        strcat(text, *w);
        strcat(text, "|");
    }
    ck_assert_str_eq(text, "dlaunch|--elastic|--max_restarts=3|--no_detect|--nnodes=2|"
                           "--nproc_per_node=3|--node_rank=1|--rdzv_id=id|--rdzv_backend=c10d|"
                           "--rdzv_endpoint=10.0.0.1:4567|"
                           "--rdzv_conf=last_call_timeout=1,join_timeout=5,is_host=0|"
                           "--log_line_prefix_template=[${hostname} ${role_name}${local_rank}]:|--|"
                           "./train|--lr|a b|");
    free(text);
}
END_TEST

static const struct {
    const char *agent, *option, *value, *command; /* the arguments before the command line */
    bool shell;                                   /* a login shell takes the command line */
} agents[] = {
    {"ssh", "--ssh_port", "2222",
     "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -p 2222 ann@n1", true},
    {"ssh", "--ssh_args", "-J 'my gate'",
     "ssh -J my gate -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 ann@n1",
     true},
    {"rsh", "--prefix", "/opt/my dl", "rsh ann@n1", true},
    {"srun", "--prefix", "/opt/my dl",
     "srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --overlap --mpi=none --unbuffered --no-kill "
     "--quiet "
     "--nodelist=n1 /bin/sh -c",
     false},
};

START_TEST(a_host_is_reached)
{
    const char *path = tmppath(agents[_i].agent);
    const char *prefix = "exec '/opt/my dl/bin/dlaunch' --from_head";
    struct host h = {.name = "n1", .user = "ann"};
    struct reach r;
    struct err e = ERR_INIT;
    write_file(path, "#!/bin/sh\n");
    ck_assert_int_eq(chmod(path, 0755), 0);
    ck_assert_int_eq(options_set(&o, OPT_launch_agent, path, FROM_ARGV, "--launch_agent", &e), 0);
    ck_assert_int_eq(options_set(&o, opt_find(agents[_i].option + 2, strlen(agents[_i].option) - 2),
                                 agents[_i].value, FROM_ARGV, agents[_i].option, &e),
                     0);
    ck_assert_msg(reach_init(&r, &o, NULL, &e) == 0, "%s", e.msg);
    ck_assert_str_eq(r.path, path);
    char **argv = reach_argv(&r, &o, &h);
    char *text = test_text("%s", agents[_i].agent);
    for (argv++; argv[1]; argv++)
        text = test_text("%s %s", text, *argv);
    ck_assert_str_eq(text, agents[_i].command);
    ck_assert_int_eq(strncmp(*argv, "exec /bin/sh -c '", 17) == 0, agents[_i].shell);
    if (strcmp(agents[_i].option, "--prefix") == 0 && !agents[_i].shell)
        ck_assert_str_eq(*argv, prefix);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("host_list");
    TCase *t = test_case(s, "host_list", 20);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, a_list_is_read, 0, ARRAY_LEN(lists));
    tcase_add_loop_test(t, a_file_is_read, 0, ARRAY_LEN(files));
    tcase_add_loop_test(t, a_list_is_filtered, 0, ARRAY_LEN(filters));
    tcase_add_loop_test(t, workers_are_shared_out, 0, ARRAY_LEN(shares));
    tcase_add_test(t, max_slots_allows_more);
    tcase_add_loop_test(t, options_name_hosts, 0, ARRAY_LEN(lines));
    tcase_add_test(t, a_host_gets_the_options);
    tcase_add_loop_test(t, a_host_is_reached, 0, ARRAY_LEN(agents));
    return s;
}

TEST_MAIN(suite)
