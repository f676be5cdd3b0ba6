/* From options to the job: every default, every rule, every mistake. */
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/device/placement.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "agent/device/gpu.h"
#include "launcher/options/config_file.h"
#include "launcher/options/job_build.h"
#include "launcher/options/rdzv_conf.h"
#include "tests/lib/proc.h"

static char g_said[4096];

static void keep_line(void *arg, const char *line, size_t len)
{
    (void)arg;
    size_t n = strlen(g_said);
    snprintf(g_said + n, sizeof(g_said) - n, "%.*s", (int)len, line);
}

/* A folder of its own, with programs in it; and an environment without surprises. */
static void setup(void)
{
    static const char *const unset[] = {"CUDA_VISIBLE_DEVICES", "PYTHON_EXEC",
                                        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
                                        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"};
    for (size_t i = 0; i < ARRAY_LEN(unset); i++)
        unsetenv(unset[i]);
    setenv("OMP_NUM_THREADS", "2", 1);
    log_set_writer(keep_line, NULL);
    ck_assert_int_eq(chdir(tmpdir()), 0);
    write_file("train", "#!/bin/sh\n");
    write_file("plain", "#!/bin/sh\n");
    write_file("script.py", "print()\n");
    write_file("direct.py", "#!/bin/sh\n");
    write_file("mounted.py", "print()\n"); /* executable as everything on its mount, but no "#!" */
    chmod("train", 0755);
    chmod("direct.py", 0755);
    chmod("mounted.py", 0755);
    ck_assert_int_eq(mkdir("bin", 0755), 0);
    write_file("bin/python3", "#!/bin/sh\n");
    write_file("bin/tool", "#!/bin/sh\n");
    chmod("bin/python3", 0755);
    chmod("bin/tool", 0755);
    char *path = xasprintf("%s/bin:/usr/bin:/bin", tmpdir());
    setenv("PATH", path, 1);
    free(path);
}

struct built {
    struct options o;
    struct job_spec job;
    struct err e;
    int rc, status;
};

static const char *g_ini; /* the configuration file; NULL: none */

static void on_config_error(void *arg, const char *line)
{
    (void)arg;
    ck_abort_msg("%s", line);
}

static void build(struct built *b, const char *prog, char *const *args)
{
    char *argv[24] = {(char *)prog};
    int argc = 1;
    for (; *args; args++)
        argv[argc++] = *args;
    memset(b, 0, sizeof(*b));
    options_init(&b->o, prog);
    ck_assert_msg(options_read_argv(&b->o, argc, argv, &b->e) == 0, "%s", b->e.msg);
    if (g_ini)
        config_text_read(&b->o, "job.ini", g_ini, strlen(g_ini), on_config_error, NULL);
    g_said[0] = '\0';
    b->o.envp = environ;
    b->rc = job_build(&b->job, &b->o, &b->status, &b->e);
    options_log_notes(&b->o);
}

static void build_ok(struct built *b, const char *prog, char *const *args)
{
    build(b, prog, args);
    ck_assert_msg(b->rc == 0, "%s", b->e.msg);
}

#define BUILD(b, ...)    build_ok(b, "dlaunch", ARGV(__VA_ARGS__))
#define TORCHRUN(b, ...) build_ok(b, "torchrun", ARGV(__VA_ARGS__))

static void check_fails(const char *prog, char *const *args, int status, const char *why)
{
    struct built b;
    build(&b, prog, args);
    ck_assert_msg(b.rc < 0, "%s %s was taken", args[0], args[1]);
    ck_assert_msg(strstr(b.e.msg, why), "%s\n  lacks %s", b.e.msg, why);
    ck_assert_msg(b.status == status, "%s\n  status %d, not %d", b.e.msg, b.status, status);
    ck_assert_msg(!strchr(b.e.msg, '\n'), "%s", b.e.msg);
    options_fini(&b.o);
}

#define FAILS(status, why, ...)    check_fails("dlaunch", ARGV(__VA_ARGS__), status, why)
#define TR_FAILS(status, why, ...) check_fails("torchrun", ARGV(__VA_ARGS__), status, why)

static void check_argv(const struct built *b, const char *want)
{
    char text[1024] = "";
    for (char **a = b->job.argv; *a; a++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "<%s>", *a);
    const char *dir = tmpdir(), *at;
    char shown[1024] = "";
    size_t n = strlen(dir);
    for (const char *p = text; *p; p = at + n) { /* DIR for the test's folder */
        at = strstr(p, dir);
        snprintf(shown + strlen(shown), sizeof(shown) - strlen(shown), "%.*s%s",
                 (int)(at ? (size_t)(at - p) : strlen(p)), p, at ? "DIR" : "");
        if (!at)
            break;
    }
    ck_assert_str_eq(shown, want);
}

/* ------------------------------------------------------------------------------------- defaults */

START_TEST(a_plain_job)
{
    struct built b;
    char host[256];
    BUILD(&b, "./train", "a");
    gethostname(host, sizeof(host));
    const struct rdzv_config *c = &b.job.rdzv;
    ck_assert_int_eq(c->backend, RDZV_C10D); /* one node: nothing to agree on */
    ck_assert_str_eq(c->endpoint_host, "127.0.0.1");
    ck_assert_int_eq(c->endpoint_port, 0);
    ck_assert_int_eq(c->is_host, 1);
    ck_assert_int_eq(c->min_nodes, 1);
    ck_assert_int_eq(c->max_nodes, 1);
    ck_assert_int_eq(c->node_rank, -1);
    ck_assert_int_eq(c->nproc, 1);
    ck_assert_int_eq(c->max_restarts, 0);
    ck_assert_int_eq(c->restart_policy, RESTART_GROUP);
    ck_assert(c->restart_backoff == 0 && c->join_timeout > 0 && c->agent_store);
    ck_assert(!c->legacy_store_113);
    ck_assert_ptr_null(c->local_addr);
    ck_assert_str_eq(c->role, "default");
    ck_assert_str_eq(c->host, host);
    ck_assert_str_eq(b.job.host, host);
    ck_assert_uint_eq(strlen(c->run_id), 36);
    ck_assert_int_eq(c->run_id[14], '4'); /* a random UUID */
    check_argv(&b, "<./train><a>");
    ck_assert_str_eq(b.job.path, "./train");
    ck_assert_str_eq(b.job.name, "./train");
    ck_assert_int_eq(b.job.nproc, 1);
    ck_assert_int_eq(b.job.stdin_mode, STDIN_RANK0);
    ck_assert_int_eq(b.job.bind, BIND_NONE);
    ck_assert_int_eq(b.job.isolation, ISOLATE_AUTO);
    ck_assert(b.job.timeout == 0 && b.job.shutdown_timeout == 30);
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, 0};
    ck_assert_int_eq(memcmp(b.job.stop_signals, signals, sizeof(signals)), 0);
    ck_assert_ptr_null(b.job.log_dir);
    ck_assert_ptr_null(b.job.report_path);
    ck_assert_ptr_null(b.job.prefix_template);
    ck_assert_ptr_null(b.job.env);
    ck_assert_ptr_null(b.job.omp_num_threads);
    ck_assert_ptr_null(b.job.dup_stdout);
    ck_assert_int_eq(b.job.redirects[0], STD_NONE);
    ck_assert_int_eq(b.job.tee[0], STD_NONE);
    ck_assert(b.job.show[0]);
    ck_assert(!b.job.torchrun && !b.job.quiet && !b.job.launch_local_rank_arg);
    ck_assert_str_eq(g_said, "");
    struct built again;
    BUILD(&again, "./train");
    ck_assert_str_ne(c->run_id, again.job.rdzv.run_id);
    options_fini(&again.o);
    options_fini(&b.o);
}
END_TEST

START_TEST(restarts_of_nodes_and_their_limits)
{
    struct built b;
    BUILD(&b, "--nnodes=2", "--master_addr=127.0.0.1", "./train");
    const struct rdzv_config *c = &b.job.rdzv;
    ck_assert(!c->elastic && c->spares == 0 && c->max_node_restarts == -1 &&
              c->progress_time == 10);
    ck_assert(!exit_codes_has(&c->no_restart, 1));
    options_fini(&b.o);
    BUILD(&b, "--nnodes=2:4", "--rdzv_backend=c10d", "--elastic", "--spares=2", "--node_rank=5",
          "--max_node_restarts=0", "--no_restart_codes=2,64-78,255", "--progress_time=0",
          "./train");
    c = &b.job.rdzv;
    ck_assert_int_eq(c->tree_width, 32);
    ck_assert(c->elastic && c->spares == 2 && c->max_node_restarts == 0 && c->progress_time == 0);
    ck_assert_int_eq(c->node_rank, -1); /* one of the spares */
    for (int code = 0; code < 256; code++)
        ck_assert_int_eq(exit_codes_has(&c->no_restart, code),
                         code == 2 || (code >= 64 && code <= 78) || code == 255);
    options_fini(&b.o);
}
END_TEST

START_TEST(everything_given)
{
    struct built b;
    BUILD(&b, "--max_restarts=3", "--restart_policy=worker", "--restart_backoff=500ms",
          "--timeout=2h", "--shutdown_timeout=5", "--bind=core", "--stdin=rank0", "--isolate=pidns",
          "--nproc=3", "--role=actor", "--report=r.json", "--tee=0:3,2:1", "--redirects=2",
          "--local_ranks_filter=0,2", "--duplicate_stdout_filters=a,b,,c",
          "--log_line_prefix_template=x", "--log_dir=logs/deep", "--quiet",
          "--signals_to_handle=TERM, SIGUSR1,SIGTERM", "./train");
    ck_assert_int_eq(b.job.rdzv.max_restarts, 3);
    ck_assert_int_eq(b.job.rdzv.restart_policy, RESTART_WORKER);
    ck_assert(b.job.rdzv.restart_backoff == 0.5 && b.job.timeout == 7200);
    ck_assert(b.job.shutdown_timeout == 5);
    ck_assert_int_eq(b.job.bind, BIND_CORE);
    ck_assert_int_eq(b.job.stdin_mode, STDIN_RANK0);
    ck_assert_int_eq(b.job.isolation, ISOLATE_PIDNS);
    ck_assert_int_eq(b.job.rdzv.nproc, 3);
    ck_assert_str_eq(b.job.role, "actor");
    ck_assert_str_eq(b.job.report_path, "r.json");
    ck_assert_int_eq(b.job.tee[0], STD_BOTH);
    ck_assert_int_eq(b.job.tee[1], STD_NONE);
    ck_assert_int_eq(b.job.tee[2], STD_OUT);
    ck_assert_int_eq(b.job.redirects[1], STD_ERR);
    ck_assert(b.job.show[0] && !b.job.show[1] && b.job.show[2]);
    ck_assert_str_eq(b.job.dup_stdout[0], "a");
    ck_assert_str_eq(b.job.dup_stdout[1], "b,c");
    ck_assert_ptr_null(b.job.dup_stdout[2]);
    ck_assert_str_eq(b.job.prefix_template, "x");
    ck_assert_str_eq(b.job.log_dir, "logs/deep");
    ck_assert(access("logs", F_OK) < 0); /* only looked at */
    ck_assert_int_eq(b.job.stop_signals[0], SIGTERM);
    ck_assert_int_eq(b.job.stop_signals[1], SIGUSR1);
    ck_assert_int_eq(b.job.stop_signals[2], 0);
    ck_assert(b.job.quiet);
    options_fini(&b.o);
}
END_TEST

/* ----------------------------------------------------------------------------------- rendezvous */

START_TEST(endpoints_of_the_rendezvous)
{
    static const struct {
        char *args[10];
        int backend, port;
        const char *host, *id;
    } rows[] = {
        /* static */
        {{"--nnodes=2", "./train"}, RDZV_STATIC, 29500, "127.0.0.1", "none"},
        {{"--nnodes=2", "--master_addr=h", "./train"}, RDZV_STATIC, 29500, "h", "none"},
        {{"--nnodes=2", "--master_addr=h", "--master_port=5", "./train"},
         RDZV_STATIC,
         5,
         "h",
         "none"},
        {{"--nnodes=2", "--master_addr=[::1]", "./train"}, RDZV_STATIC, 29500, "::1", "none"},
        {{"--nnodes=2", "--master_addr=fe80::1%lo", "./train"},
         RDZV_STATIC,
         29500,
         "fe80::1%lo",
         "none"},
        {{"--nnodes=2", "--rdzv_endpoint=e:7", "--master_addr=h", "./train"},
         RDZV_STATIC,
         7,
         "e",
         "none"},
        {{"--nnodes=2", "--rdzv_endpoint=e", "./train"}, RDZV_STATIC, 29500, "e", "none"},
        {{"--master_port=5", "./train"}, RDZV_STATIC, 5, "127.0.0.1", "none"},
        {{"--rdzv_endpoint=e:5", "--rdzv_id=x", "./train"}, RDZV_STATIC, 5, "e", "x"},
        /* c10d */
        {{"--nnodes=2", "--rdzv_backend=c10d", "./train"}, RDZV_C10D, 29400, "127.0.0.1", "none"},
        {{"--nnodes=1:2", "--rdzv_backend=c10d", "--rdzv_endpoint=e", "./train"},
         RDZV_C10D,
         29400,
         "e",
         "none"},
        {{"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=[::1]:9", "./train"},
         RDZV_C10D,
         9,
         "::1",
         "none"},
        {{"--nnodes=2", "--rdzv_backend=c10d", "--master_addr=h", "./train"},
         RDZV_C10D,
         29400,
         "h",
         "none"},
        {{"--nnodes=2", "--rdzv_backend=c10d", "--master_addr=h", "--master_port=5", "./train"},
         RDZV_C10D,
         5,
         "h",
         "none"},
        {{"--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "./train"},
         RDZV_C10D,
         0,
         "localhost",
         "none"},
        /* alone */
        {{"--standalone", "--rdzv_id=x", "./train"}, RDZV_C10D, 0, "127.0.0.1", "x"},
        {{"--standalone", "--rdzv_endpoint=e:5", "--rdzv_id=y", "./train"},
         RDZV_C10D,
         0,
         "127.0.0.1",
         "y"},
        {{"--rdzv_endpoint=", "--rdzv_id=x", "./train"}, RDZV_C10D, 0, "127.0.0.1", "x"},
        {{"--rdzv_backend=c10d", "--rdzv_id=x", "./train"}, RDZV_C10D, 0, "127.0.0.1", "x"},
        {{"--rdzv_backend=c10d", "--master_port=7", "./train"}, RDZV_C10D, 7, "127.0.0.1", "none"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct built b;
        build_ok(&b, "dlaunch", rows[i].args);
        const struct rdzv_config *c = &b.job.rdzv;
        ck_assert_msg((int)c->backend == rows[i].backend && c->endpoint_port == rows[i].port &&
                          strcmp(c->endpoint_host, rows[i].host) == 0 &&
                          strcmp(c->run_id, rows[i].id) == 0,
                      "row %zu (%s %s): backend %d at %s:%d, id %s", i, rows[i].args[0],
                      rows[i].args[1], c->backend, c->endpoint_host, c->endpoint_port, c->run_id);
        if (c->backend == RDZV_STATIC)
            ck_assert_str_eq(c->master_addr, rows[i].host);
        else
            ck_assert_ptr_null(c->master_addr);
        ck_assert(c->join_timeout == (c->backend == RDZV_STATIC ? 900 : c->join_timeout));
        options_fini(&b.o);
    }
}
END_TEST

START_TEST(endpoints_of_the_file_backend)
{
    struct built b;
    BUILD(&b, "--nnodes=2", "--rdzv_backend=file", "--rdzv_endpoint=meet", "./train");
    ck_assert_int_eq(b.job.rdzv.backend, RDZV_FILE);
    ck_assert_str_eq(b.job.rdzv.endpoint_path, "meet");
    ck_assert_ptr_null(b.job.rdzv.endpoint_host);
    options_fini(&b.o);
    BUILD(&b, "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_conf=store_type=file",
          "--rdzv_endpoint=/tmp/meet", "./train");
    ck_assert_int_eq(b.job.rdzv.backend, RDZV_FILE);
    ck_assert_str_eq(b.job.rdzv.endpoint_path, "/tmp/meet");
    options_fini(&b.o);
    FAILS(2, "file needs --rdzv_endpoint PATH", "--rdzv_backend=file", "./train");
    FAILS(2, "--rdzv_endpoint: cannot create a file in no/where: No such file or directory",
          "--rdzv_backend=file", "--rdzv_endpoint=no/where/meet", "./train");
    FAILS(2, "'bin' is a folder", "--rdzv_backend=file", "--rdzv_endpoint=bin", "./train");
}
END_TEST

START_TEST(rendezvous_mistakes)
{
    FAILS(2, "--rdzv_backend: 'c10' is not one of static, c10d, file, etcd (did you mean c10d?)",
          "--rdzv_backend=c10", "./train");
    TR_FAILS(1, "--rdzv_backend: 'zeus'", "--rdzv_backend=zeus", "script.py");
    FAILS(2, "--rdzv_endpoint: 'h:x': port 'x' is not a number", "--nnodes=2",
          "--rdzv_endpoint=h:x", "./train");
    FAILS(2, "--rdzv_endpoint: port 0 (any free port) is not possible in a job of 2 nodes",
          "--nnodes=2", "--rdzv_endpoint=h:0", "./train");
    FAILS(2, "--master_port: port 0", "--nnodes=2", "--master_port=0", "./train");
    FAILS(2, "--master_addr: 'h:5' must not have a port", "--nnodes=2", "--master_addr=h:5",
          "./train");
    FAILS(2, "--master_addr: the value is empty", "--nnodes=2", "--master_addr=", "./train");
    FAILS(2, "--master_addr: 'a b' is not a host name or an IP address", "--nnodes=2",
          "--master_addr=a b", "./train");
    FAILS(2, "--node_rank: 2 is out of range: with 2 nodes, ranks are 0 to 1", "--nnodes=2",
          "--node_rank=2", "./train");
    FAILS(2, "--node_rank: 1 is out of range: with 1 node", "--node_rank=1", "./train");
    FAILS(2, "--node_rank: 3 is out of range", "--nnodes=2", "--spares=1", "--node_rank=3", "./t");
    FAILS(2, "--spares: 1 spare nodes, but --standalone runs a job on one node", "--spares=1",
          "--standalone", "./train");
    FAILS(2, "--tree_width: 1 is out of range (2 to 1000000)", "--nnodes=2", "--tree_width=1",
          "./train");
    FAILS(2, "--spares: 1000000 spare nodes are too many", "--spares=1000000", "./train");
    static char *const lists[] = {"--no_restart_codes=a", "--no_restart_codes=3,",
                                  "--no_restart_codes=3;4", "--no_restart_codes=,3",
                                  "--no_restart_codes=3-"};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        FAILS(2, "is not a list of exit codes such as 2,64-78", lists[i], "./train");
    FAILS(2, "--no_restart_codes: 0: out of range (1 to 255)", "--no_restart_codes=0", "./train");
    FAILS(2, "9-3: the first code is greater", "--no_restart_codes=1,9-3", "./train");
    FAILS(2, "4-256: out of range (1 to 255)", "--no_restart_codes=4-256", "./train");
    FAILS(2, "--nnodes: 2 nodes, but --standalone runs a job on one node", "--standalone",
          "--nnodes=2", "./train");
    FAILS(2, "--rdzv_backend: a witness (--witness) needs the backend c10d or static, not file",
          "--witness=n0", "--rdzv_backend=file");
    FAILS(2, "--rdzv_conf: a witness (--witness) needs the backend c10d or static, not file",
          "--witness=n0", "--rdzv_conf=store_type=file");
    FAILS(2, "--rdzv_id: the value is empty", "--nnodes=2", "--rdzv_id=", "./train");
    FAILS(2, "--rdzv_id: the value has a control character", "--nnodes=2", "--rdzv_id=a\nb",
          "./train");
    FAILS(2, "--role: the value is empty", "--role=", "./train");
    FAILS(2, "--interface: no interface 'nosuch0' with an address on this host (available: lo",
          "--interface=nosuch0", "./train");
    FAILS(2, "--interface: cannot be combined with --local_addr", "--interface=lo",
          "--local_addr=1.2.3.4", "./train");
    FAILS(2, "--master_addr: 'a b' is not a host name or an IP address", "--master_addr=a b",
          "./train");
    FAILS(2, "--local_addr: '1.2.3.4:5' must not have a port", "--local_addr=1.2.3.4:5", "./train");
    char id[RDZV_RUN_ID_MAX + 20] = "--rdzv_id=";
    memset(id + strlen(id), 'x', RDZV_RUN_ID_MAX);
    FAILS(2, "--rdzv_id: the value is longer than 255 bytes", "--nnodes=2", id, "./train");
}
END_TEST

START_TEST(addresses)
{
    struct built b;
    BUILD(&b, "--interface=lo", "./train");
    ck_assert_str_eq(b.job.rdzv.local_addr, "127.0.0.1");
    options_fini(&b.o);
    BUILD(&b, "--local_addr=node-7", "./train");
    ck_assert_str_eq(b.job.rdzv.local_addr, "node-7");
    options_fini(&b.o);
    FAILS(2, "--local_addr: the value is empty", "--local_addr=", "./train");
    TORCHRUN(&b, "--local_addr=", "script.py");
    ck_assert_ptr_null(b.job.rdzv.local_addr);
    options_fini(&b.o);
    TORCHRUN(&b, "--local_addr=", "--interface=lo", "script.py");
    ck_assert_str_eq(b.job.rdzv.local_addr, "127.0.0.1");
    options_fini(&b.o);
    /* the stronger source wins */
    struct err e = ERR_INIT;
    char *argv[] = {"dlaunch", "--local_addr=1.2.3.4", "./train", NULL};
    options_init(&b.o, "dlaunch");
    options_read_argv(&b.o, 3, argv, NULL);
    options_set(&b.o, OPT_interface, "lo", FROM_FILE, "job.ini:1", NULL);
    ck_assert_msg(job_build(&b.job, &b.o, &b.status, &e) == 0, "%s", e.msg);
    ck_assert_str_eq(b.job.rdzv.local_addr, "1.2.3.4");
    options_fini(&b.o);
}
END_TEST

START_TEST(node_ranks)
{
    struct built b;
    BUILD(&b, "--nnodes=2", "./train");
    ck_assert_int_eq(b.job.rdzv.node_rank, -1);
    options_fini(&b.o);
    BUILD(&b, "--nnodes=2", "--node_rank=1", "--rdzv_backend=c10d", "./train");
    ck_assert_int_eq(b.job.rdzv.node_rank, 1);
    options_fini(&b.o);
    TORCHRUN(&b, "--nnodes=2", "script.py");
    ck_assert_int_eq(b.job.rdzv.node_rank, 0);
    options_fini(&b.o);
    TORCHRUN(&b, "--nnodes=2", "--rdzv_backend=c10d", "--node_rank=1", "script.py");
    ck_assert_int_eq(b.job.rdzv.node_rank, -1);
    ck_assert_ptr_nonnull(strstr(g_said, "--node_rank 1 has no effect"));
    options_fini(&b.o);
    TORCHRUN(&b, "--rdzv_backend=c10d", "script.py");
    ck_assert_str_eq(b.job.rdzv.endpoint_host, "localhost");
    ck_assert_int_eq(b.job.rdzv.endpoint_port, 29400);
    options_fini(&b.o);
    TORCHRUN(&b, "--rdzv_id=x", "script.py");
    ck_assert_uint_eq(strlen(b.job.rdzv.run_id), 36); /* as there */
    options_fini(&b.o);
    TORCHRUN(&b, "--nnodes=2", "--rdzv_backend=c10d", "--master_addr=h", "script.py");
    ck_assert_str_eq(b.job.rdzv.endpoint_host, "localhost");
    ck_assert_ptr_nonnull(strstr(g_said, "--master_addr has no effect"));
    options_fini(&b.o);
}
END_TEST

START_TEST(node_counts)
{
    struct built b;
    BUILD(&b, "--nnodes=2:4", "--rdzv_backend=c10d", "./train");
    ck_assert_int_eq(b.job.rdzv.min_nodes, 2);
    ck_assert_int_eq(b.job.rdzv.max_nodes, 4);
    options_fini(&b.o);
    BUILD(&b, "--nnodes=2:4", "./train");
    ck_assert_int_eq(b.job.rdzv.min_nodes, 4);
    ck_assert_ptr_nonnull(strstr(g_said, "--nnodes 2:4: the static backend waits for all 4 nodes"));
    options_fini(&b.o);
    /* --standalone tries out what a file says for many nodes */
    struct err e = ERR_INIT;
    char *argv[] = {"dlaunch", "--standalone", "./train", NULL};
    options_init(&b.o, "dlaunch");
    options_read_argv(&b.o, 3, argv, NULL);
    options_set(&b.o, OPT_nnodes, "8", FROM_FILE, "job.ini:1", NULL);
    options_set(&b.o, OPT_node_rank, "3", FROM_PET, "PET_NODE_RANK", NULL);
    ck_assert_msg(job_build(&b.job, &b.o, &b.status, &e) == 0, "%s", e.msg);
    ck_assert_int_eq(b.job.rdzv.max_nodes, 1);
    ck_assert_int_eq(b.job.rdzv.node_rank, -1);
    options_fini(&b.o);
}
END_TEST

START_TEST(rdzv_conf)
{
    struct built b;
    BUILD(&b, "--nnodes=2", "--rdzv_backend=c10d",
          "--rdzv_conf= join_timeout=60 ,last_call_timeout=1.5,close_timeout=0,read_timeout=2min,"
          "keep_alive_interval=500ms,keep_alive_max_attempt=7,is_host=no,heartbeat_timeout=3,"
          "store_type=tcp,timeout=77",
          "./train");
    const struct rdzv_config *c = &b.job.rdzv;
    ck_assert(c->join_timeout == 60 && c->last_call_timeout == 1.5 && c->close_timeout == 0);
    ck_assert(c->read_timeout == 120 && c->keep_alive_interval == 0.5);
    ck_assert_int_eq(c->keep_alive_max_attempt, 7);
    ck_assert_int_eq(c->is_host, 0);
    options_fini(&b.o);
    BUILD(&b, "--nnodes=2", "--rdzv_conf=timeout=77", "./train");
    ck_assert(b.job.rdzv.join_timeout == 77);
    options_fini(&b.o);

    static const struct {
        char *conf;
        const char *why;
    } rows[] = {
        {"join_timeout", "--rdzv_conf: 'join_timeout' is not KEY=VALUE"},
        {"join_timeout=", "'join_timeout=' is not KEY=VALUE"},
        {"=3", "'=3' is not KEY=VALUE"},
        {",", "'' is not KEY=VALUE"},
        {"join_timeout=3,", "'' is not KEY=VALUE"},
        {"join_timeout=x", "--rdzv_conf: join_timeout: 'x' is not a time"},
        {"join_timeout=0", "join_timeout: must be more than 0"},
        {"keep_alive_interval=0", "keep_alive_interval: must be more than 0"},
        {"keep_alive_max_attempt=0", "keep_alive_max_attempt: 0 is out of range"},
        {"is_host=perhaps", "is_host: 'perhaps' is neither yes nor no"},
        {"store_type=x", "store_type: 'x' is neither tcp nor file"},
        {"heartbeat_timeout=-1", "heartbeat_timeout: '-1' is not a time"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *arg = xasprintf("--rdzv_conf=%s", rows[i].conf);
        FAILS(2, rows[i].why, "--nnodes=2", arg, "./train");
        free(arg);
    }
    char *arg = xasprintf("--rdzv_conf=join_timeout=%0256d", 7);
    FAILS(2, "--rdzv_conf: join_timeout: the value is longer than 255 bytes", "--nnodes=2", arg,
          "./train");
    free(arg);
    arg = xasprintf("--rdzv_conf=%064d=1", 7);
    FAILS(2, "--rdzv_conf: '00000", "--nnodes=2", arg, "./train");
    FAILS(2, "00...' is longer than 63 bytes", "--nnodes=2", arg, "./train");
    free(arg);
    FAILS(2, "timeout: '5'' is not a time", "--nnodes=2", "--rdzv_conf=timeout=5'", "./train");
    TR_FAILS(1, "join_timeout", "--rdzv_conf=join_timeout", "script.py");
}
END_TEST

/* As in torchrun; PyTorch's own tests of its launcher pass the quotes. */
START_TEST(rdzv_conf_ignores_keys_that_the_backend_does_not_read)
{
    struct built b;
    BUILD(&b, "--nnodes=2", "--rdzv_backend=c10d",
          "--rdzv_conf='last_call_timeout=5,join_timeout=60,timeout=5'", "./train");
    ck_assert_ptr_nonnull(strstr(g_said, "unknown key 'last_call_timeout has no effect; the quotes "
                                         "are part of it (known keys: join_timeout, "));
    ck_assert(b.job.rdzv.last_call_timeout == 30 && b.job.rdzv.join_timeout == 60);
    options_fini(&b.o);
    TORCHRUN(&b, "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=h:1",
             "--rdzv_conf=bananas=1,timeout=x", "script.py");
    ck_assert_ptr_nonnull(strstr(g_said, "unknown key bananas has no effect (known keys: "));
    ck_assert_ptr_null(strstr(g_said, "ca_cert"));
    options_fini(&b.o);
    BUILD(&b, "--nnodes=2", "--rdzv_backend=etcd", "--rdzv_conf=ca_crt=/ca", "./train");
    ck_assert_ptr_nonnull(strstr(g_said, "unknown key ca_crt has no effect (known keys: "));
    ck_assert_ptr_nonnull(strstr(g_said, ", ca_cert, "));
    options_fini(&b.o);
}
END_TEST

START_TEST(the_store)
{
    struct built b;
    BUILD(&b, "--master_store=none", "--store_compat=1.13", "./train");
    ck_assert(!b.job.rdzv.agent_store && b.job.rdzv.legacy_store_113);
    options_fini(&b.o);
    setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", 1);
    BUILD(&b, "./train");
    ck_assert(!b.job.rdzv.agent_store);
    options_fini(&b.o);
    BUILD(&b, "--nnodes=2", "./train"); /* static always shares */
    ck_assert(b.job.rdzv.agent_store);
    options_fini(&b.o);
    BUILD(&b, "--master_store=agent", "./train");
    ck_assert(b.job.rdzv.agent_store);
    options_fini(&b.o);
}
END_TEST

/* -------------------------------------------------------------------------------------- workers */

START_TEST(how_many_workers)
{
    struct built b;
    setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
    BUILD(&b, "--nproc_per_node=gpu", "./train");
    ck_assert_int_eq(b.job.nproc, 2);
    ck_assert_str_eq(g_said, "dlaunch: --nproc_per_node gpu: 2 GPUs (CUDA_VISIBLE_DEVICES)\n");
    options_fini(&b.o);
    BUILD(&b, "--nproc_per_node=auto", "./train");
    ck_assert_int_eq(b.job.nproc, 2);
    options_fini(&b.o);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    FAILS(2, "--nproc_per_node: gpu: no GPU was found (CUDA_VISIBLE_DEVICES)",
          "--nproc_per_node=gpu", "./train");
    TR_FAILS(1, "no GPU was found", "--nproc_per_node=gpu", "script.py");
    BUILD(&b, "--nproc_per_node=auto", "./train");
    ck_assert_int_eq(b.job.nproc, usable_cpus());
    options_fini(&b.o);
    g_ini = "[env]\nCUDA_VISIBLE_DEVICES = 4,5,7\n"; /* what the workers see */
    BUILD(&b, "--nproc_per_node=gpu", "./train");
    ck_assert_int_eq(b.job.nproc, 3);
    options_fini(&b.o);
    BUILD(&b, "--nproc_per_node=3", "--virtual_local_rank", "./train");
    options_fini(&b.o);
    g_ini = NULL;
    BUILD(&b, "--nproc_per_node=cpu", "./train");
    ck_assert_int_eq(b.job.nproc, usable_cpus());
    options_fini(&b.o);
    TORCHRUN(&b, "--nproc_per_node=cpu", "script.py");
    ck_assert_int_eq(b.job.nproc, sysconf(_SC_NPROCESSORS_ONLN));
    options_fini(&b.o);
}
END_TEST

START_TEST(visible_gpus)
{
    static const struct {
        const char *text;
        int present, want;
    } rows[] = {
        {"", 0, 0},
        {"0", 0, 1},
        {"0,1,2", 0, 3},
        {"0,1,2", 2, 2},
        {"2,0", 2, 0},
        {"0,-1,1", 0, 1},
        {"-1", 8, 0},
        {"-1,0", 8, 0},
        {" 1 , 2", 0, 2},
        {"0,0", 8, 0},
        {"0,1,0", 8, 0},
        {"x", 8, 0},
        {"0,x,1", 8, 1},
        {"GPU-abc", 8, 1},
        {"GPU-abc,GPU-def", 8, 2},
        {"GPU-a,GPU-a", 8, 0},
        {"GPU-a,1", 8, 1},
        {"MIG-GPU-a/1/0", 8, 1},
        {"MIG-a,MIG-b", 8, 2},
        {"GPU-", 8, 0},
        {",0", 8, 0},
        {"0,", 8, 1},
        {"NoDevFiles", 8, 0},
        {"99999999999999999999", 8, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        ck_assert_msg(gpu_count_visible(rows[i].text, rows[i].present) == rows[i].want,
                      "'%s' of %d gave %d, not %d", rows[i].text, rows[i].present,
                      gpu_count_visible(rows[i].text, rows[i].present), rows[i].want);
    const char *how;
    char *instances;
    ck_assert_int_eq(mkdir("gpus", 0755), 0);
    ck_assert_int_eq(gpu_count(NULL, "gpus", false, &instances, &how), 0);
    ck_assert_int_eq(mkdir("gpus/0000:01:00.0", 0755), 0);
    ck_assert_int_eq(mkdir("gpus/0000:02:00.0", 0755), 0);
    ck_assert_int_eq(gpu_count(NULL, "gpus", false, &instances, &how), 2);
    ck_assert_str_eq(how, "the driver's list");
    ck_assert_ptr_null(instances);
    ck_assert_int_eq(gpu_count("1,2", "gpus", false, &instances, &how), 1);
    ck_assert_int_eq(gpu_count("1,2", "nowhere", false, &instances, &how), 2);
}
END_TEST

START_TEST(virtual_local_ranks)
{
    struct built b;
    BUILD(&b, "--nproc=2", "--virtual_local_rank", "./train");
    ck_assert(b.job.virtual_local_rank);
    options_fini(&b.o);
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    FAILS(2, "--virtual_local_rank: CUDA_VISIBLE_DEVICES has 1 device for 2 workers", "--nproc=2",
          "--virtual_local_rank", "./train");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    FAILS(2, "--virtual_local_rank: CUDA_VISIBLE_DEVICES has 0 devices for 1 workers",
          "--virtual_local_rank", "./train");
    TORCHRUN(&b, "--virtual_local_rank", "script.py");
    options_fini(&b.o);
    TR_FAILS(1, "--virtual_local_rank: CUDA_VISIBLE_DEVICES has 1 device for 2 workers",
             "--nproc=2", "--virtual_local_rank", "script.py");
}
END_TEST

START_TEST(omp_num_threads)
{
    struct built b;
    unsetenv("OMP_NUM_THREADS");
    BUILD(&b, "./train");
    ck_assert_ptr_null(b.job.omp_num_threads);
    ck_assert_str_eq(g_said, "");
    options_fini(&b.o);
    BUILD(&b, "--nproc=2", "./train");
    ck_assert_str_eq(b.job.omp_num_threads, "1");
    ck_assert_ptr_nonnull(strstr(g_said, "OMP_NUM_THREADS is set to 1 for each of the 2 workers"));
    options_fini(&b.o);
    setenv("OMP_NUM_THREADS", "", 1); /* set is set */
    BUILD(&b, "--nproc=2", "./train");
    ck_assert_ptr_null(b.job.omp_num_threads);
    ck_assert_str_eq(g_said, "");
    options_fini(&b.o);
    unsetenv("OMP_NUM_THREADS");
    char *env[] = {"OMP_NUM_THREADS=4", NULL}, *argv[] = {"dlaunch", "--nproc=2", "./train", NULL};
    options_init(&b.o, "dlaunch");
    options_read_argv(&b.o, 3, argv, NULL);
    b.o.env = env;
    b.o.nenv = 1;
    ck_assert_int_eq(job_build(&b.job, &b.o, &b.status, NULL), 0);
    ck_assert_ptr_null(b.job.omp_num_threads);
    ck_assert_str_eq(b.job.env[0], "OMP_NUM_THREADS=4");
    options_fini(&b.o);
}
END_TEST

START_TEST(binding)
{
    struct built b;
    static const struct {
        const char *word;
        enum bind_mode mode;
    } rows[] = {{"node", BIND_GPU_NODE},
                {"socket", BIND_GPU_SOCKET},
                {"exclusive", BIND_GPU_EXCLUSIVE},
                {"core-complex", BIND_GPU_COMPLEX}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        BUILD(&b, "--numa-binding", (char *)rows[i].word, "./train");
        ck_assert_int_eq(b.job.bind, rows[i].mode);
        ck_assert(b.job.gpus);
        options_fini(&b.o);
    }
    BUILD(&b, "./train");
    ck_assert(!b.job.gpus);
    ck_assert_int_eq(b.job.gpu_check, GPU_CHECK_AUTO);
    ck_assert(b.job.gpu_wait == 50);
    options_fini(&b.o);
    BUILD(&b, "--virtual_local_rank", "--gpu_check=free", "--gpu_memory_wait=0", "./train");
    ck_assert(b.job.gpus);
    ck_assert_int_eq(b.job.gpu_check, GPU_CHECK_FREE);
    ck_assert(b.job.gpu_wait == 0);
    options_fini(&b.o);
    BUILD(&b, "--numa_binding=exclusive", "--bind=none", "./train");
    ck_assert_int_eq(b.job.bind, BIND_NONE);
    options_fini(&b.o);
}
END_TEST

/* --------------------------------------------------------------------------------------- output */

/* As another user than root, who may write everywhere. */
START_TEST(folders_that_cannot_be_written)
{
    int status;
    ck_assert_int_eq(mkdir("sealed", 0755), 0);
    write_file("sealed/mine", "");
    ck_assert_int_eq(chmod("sealed/mine", 0444), 0);
    ck_assert_int_eq(chmod("sealed", 0555), 0);
    ck_assert_int_eq(chmod(tmpdir(), 0755), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (geteuid() == 0 && setresuid(65534, 65534, 65534) < 0)
            _exit(3);
        FAILS(2, "--log_dir: cannot write in sealed: Permission denied", "--log_dir=sealed/x",
              "./train");
        FAILS(2, "--report: cannot write in sealed: Permission denied", "--report=sealed/r",
              "./train");
        FAILS(2, "--report: sealed/mine: Permission denied", "--report=sealed/mine", "./train");
        FAILS(2, "--rdzv_endpoint: cannot create a file in sealed", "--rdzv_backend=file",
              "--rdzv_endpoint=sealed/meet", "./train");
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
END_TEST

START_TEST(output_mistakes)
{
    FAILS(2, "--redirects: '4'", "--redirects=4", "./train");
    FAILS(2, "--tee: '0:'", "--tee=0:", "./train");
    TR_FAILS(1, "--tee: 'x'", "--tee=x", "script.py");
    FAILS(2, "--local_ranks_filter: 'a'", "--local_ranks_filter=a", "./train");
    FAILS(2, "--log_dir: train is not a folder", "--log_dir=train", "./train");
    FAILS(2, "--log_dir: train/x: Not a directory", "--log_dir=train/x", "./train");
    FAILS(2, "--report: bin is a folder", "--report=bin", "./train");
    FAILS(2, "--report: no/where/r.json: No such file or directory", "--report=no/where/r.json",
          "./train");
    FAILS(2, "--report: the value is empty", "--report=", "./train");
    FAILS(2, "--log_file: the value is empty", "--log_file=", "./train");
    FAILS(2, "--log_dir: the value is empty", "--log_dir=", "./train");
    FAILS(2, "--pid_file: the value is empty", "--pid_file=", "./train");
    FAILS(2, "--logs_specs: 'x' is not supported, because log plug-ins are", "--logs_specs=x",
          "./train");
    FAILS(2, "--signals_to_handle: unknown signal 'SIGFOO'", "--signals_to_handle=SIGFOO",
          "./train");
    FAILS(2, "--signals_to_handle: unknown signal 'SIGTERM SIGINT'",
          "--signals_to_handle=SIGTERM SIGINT", "./train");
    FAILS(2, "--signals_to_handle: unknown signal ''", "--signals_to_handle=", "./train");
    FAILS(2, "--signals_to_handle: SIGKILL cannot be handled", "--signals_to_handle=TERM,SIGKILL",
          "./train");
    struct built b;
    BUILD(&b, "--signals_to_handle= SIGTERM , INT\t", "./train");
    ck_assert_int_eq(b.job.stop_signals[0], SIGTERM);
    ck_assert_int_eq(b.job.stop_signals[1], SIGINT);
    options_fini(&b.o);
    TORCHRUN(&b, "--signals_to_handle=SIGFOO,SIGTERM", "script.py");
    ck_assert_ptr_nonnull(strstr(g_said, "unknown signal 'SIGFOO'"));
    ck_assert_int_eq(b.job.stop_signals[0], SIGTERM);
    options_fini(&b.o);
    BUILD(&b, "--log_dir=/dev/null", "--event_log_handler=console", "./train");
    ck_assert_str_eq(b.job.log_dir, "/dev/null");
    ck_assert_ptr_nonnull(strstr(g_said, "--event_log_handler console has no effect"));
    options_fini(&b.o);
}
END_TEST

/* torchrun takes an empty prefix for none, and then looks at its older variable. */
START_TEST(prefixes)
{
    struct built b;
    BUILD(&b, "--log_line_prefix_template=", "./train");
    ck_assert_str_eq(b.job.prefix_template, "");
    options_fini(&b.o);
    TORCHRUN(&b, "--log_line_prefix_template=", "script.py");
    ck_assert_ptr_null(b.job.prefix_template);
    options_fini(&b.o);
    setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[x]", 1);
    TORCHRUN(&b, "--log_line_prefix_template=", "script.py");
    ck_assert_str_eq(b.job.prefix_template, "[x]");
    options_fini(&b.o);
    TORCHRUN(&b, "--log_line_prefix_template=[y]", "script.py");
    ck_assert_str_eq(b.job.prefix_template, "[y]");
    options_fini(&b.o);
    setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "", 1);
    TORCHRUN(&b, "script.py");
    ck_assert_ptr_null(b.job.prefix_template);
    options_fini(&b.o);
}
END_TEST

/* To torchrun, no files mean that nothing is kept from the console, or has a prefix there. */
START_TEST(no_log_files_at_all)
{
    static char *const args[] = {
        "--log_dir=/dev/null", "--tee=1", "--redirects=2", "--local_ranks_filter=1", "--nproc=2",
        "script.py",           NULL};
    struct built b;
    build_ok(&b, "torchrun", args);
    ck_assert(b.job.tee[0] == 0 && b.job.redirects[0] == 0 && b.job.show[0] && b.job.show[1]);
    options_fini(&b.o);
    build_ok(&b, "dlaunch", args);
    ck_assert(b.job.tee[0] == 1 && b.job.redirects[0] == 2 && !b.job.show[0] && b.job.show[1]);
    options_fini(&b.o);
}
END_TEST

/* -------------------------------------------------------------------------------------- program */

START_TEST(programs)
{
    static const struct {
        const char *prog;
        char *args[6];
        const char *argv, *name;
    } rows[] = {
        {"dlaunch", {"./train", "a"}, "<./train><a>", "./train"},
        {"dlaunch", {"tool", "a"}, "<tool><a>", "tool"},
        {"dlaunch", {"script.py", "a"}, "<DIR/bin/python3><-u><script.py><a>", "script.py"},
        {"dlaunch", {"./script.py"}, "<DIR/bin/python3><-u><./script.py>", "./script.py"},
        {"dlaunch", {"./direct.py", "a"}, "<./direct.py><a>", "./direct.py"},
        {"dlaunch", {"direct.py", "a"}, "<direct.py><a>", "direct.py"},
        {"dlaunch", {"mounted.py"}, "<DIR/bin/python3><-u><mounted.py>", "mounted.py"},
        {"dlaunch", {"-m", "pkg.mod", "a"}, "<DIR/bin/python3><-u><-m><pkg.mod><a>", "pkg.mod"},
        {"dlaunch", {"--no_python", "./direct.py"}, "<./direct.py>", "./direct.py"},
        {"torchrun", {"script.py", "a"}, "<DIR/bin/python3><-u><script.py><a>", "script.py"},
        {"torchrun", {"./train", "a"}, "<DIR/bin/python3><-u><./train><a>", "./train"},
        {"torchrun", {"direct.py"}, "<DIR/bin/python3><-u><direct.py>", "direct.py"},
        {"torchrun", {"--no-python", "tool", "a"}, "<tool><a>", "tool"},
        {"torchrun", {"-m", "pkg.mod"}, "<DIR/bin/python3><-u><-m><pkg.mod>", "pkg.mod"},
        {"torchrun", {"bin"}, "<DIR/bin/python3><-u><bin>", "bin"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct built b;
        build_ok(&b, rows[i].prog, rows[i].args);
        check_argv(&b, rows[i].argv);
        ck_assert_str_eq(b.job.name, rows[i].name);
        ck_assert(!b.job.launch_local_rank_arg);
        options_fini(&b.o);
    }
    struct built b;
    BUILD(&b, "tool");
    ck_assert_ptr_nonnull(strstr(b.job.path, "/bin/tool"));
    options_fini(&b.o);
    TORCHRUN(&b, "--run-path", "--no-python", "script.py", "a");
    check_argv(&b, "<DIR/bin/python3><-u><-c><import runpy, sys; sys.argv = sys.argv[1:]; "
                   "runpy.run_path(sys.argv[0], run_name='__main__')><script.py><a>");
    options_fini(&b.o);
}
END_TEST

START_TEST(the_interpreter)
{
    struct built b;
    char *other = xasprintf("%s/bin/tool", tmpdir());
    setenv("PYTHON_EXEC", other, 1);
    BUILD(&b, "script.py");
    ck_assert_str_eq(b.job.path, other);
    ck_assert_str_eq(b.job.argv[0], other);
    options_fini(&b.o);
    setenv("PYTHON_EXEC", "/nonexistent/python", 1);
    FAILS(127, "/nonexistent/python", "script.py");
    unsetenv("PYTHON_EXEC");
    ck_assert_int_eq(rename("bin/python3", "bin/python"), 0);
    char *path = xasprintf("%s/bin", tmpdir());
    setenv("PATH", path, 1);
    BUILD(&b, "script.py");
    ck_assert_ptr_nonnull(strstr(b.job.path, "/bin/python"));
    options_fini(&b.o);
    unlink("bin/python");
    FAILS(127, "no interpreter for script.py (PYTHON_EXEC can name one): ", "script.py");
    free(path);
    free(other);
}
END_TEST

START_TEST(program_mistakes)
{
    FAILS(2, "no program is given; see dlaunch -h", "--nnodes=1");
    FAILS(127, "./nothing", "./nothing");
    FAILS(127, "nothing: ", "nothing");
    FAILS(126, "./plain", "./plain");
    FAILS(126, "./bin", "./bin");
    FAILS(127, "train: not in PATH (for the file in this folder, say ./train)", "train");
    FAILS(127, "nothing.py", "nothing.py");
    FAILS(127, "the name of the program is empty", "");
    TR_FAILS(127, "nothing.py: No such file or directory", "nothing.py");
    FAILS(2, "-m and --no_python exclude each other", "-m", "--no_python", "x");
    TR_FAILS(1, "exclude each other", "-m", "--no_python", "x");
}
END_TEST

START_TEST(distributed_launch)
{
    struct built b;
    build_ok(&b, "torch.distributed.launch", ARGV("--nproc=2", "script.py", "a"));
    check_argv(&b, "<DIR/bin/python3><-u><script.py><a>");
    ck_assert(b.job.launch_local_rank_arg);
    ck_assert_int_eq(b.job.local_rank_arg_at, 3);
    options_fini(&b.o);
    build_ok(&b, "torch.distributed.launch", ARGV("--use-env", "script.py"));
    ck_assert(!b.job.launch_local_rank_arg);
    options_fini(&b.o);
    check_fails("torch.distributed.launch", ARGV("--no_python", "./train"), 1,
                "--no_python needs --use_env");
    /* for dlaunch by its environment or file */
    options_init(&b.o, "dlaunch");
    char *argv[] = {"dlaunch", "./train", "a", NULL};
    options_read_argv(&b.o, 3, argv, NULL);
    options_set(&b.o, OPT_use_env, "no", FROM_FILE, "job.ini:1", NULL);
    ck_assert_int_eq(job_build(&b.job, &b.o, &b.status, NULL), 0);
    ck_assert(b.job.launch_local_rank_arg);
    ck_assert_int_eq(b.job.local_rank_arg_at, 1);
    options_fini(&b.o);
}
END_TEST

/* A plain command line becomes a job in far less than the 0.3 ms that are allowed for it. */
START_TEST(cost)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 500; i++) {
        struct built b;
        uint64_t t = mono_ns();
        BUILD(&b, "--nproc_per_node=4", "./train", "--lr", "0.1");
        options_fini(&b.o);
        t = mono_ns() - t;
        best = t < best ? t : best;
    }
    printf("a plain command line to a job: %llu ns\n", (unsigned long long)best);
    ck_assert_uint_lt(best, (uint64_t)(test_seconds(1) * 300000));
}
END_TEST

/* The table is about this host; a program that is not here yet is no reason to refuse it. */
START_TEST(binding_needs_no_program)
{
    struct built b;
    BUILD(&b, "--print_binding", "./not-there");
    ck_assert_msg(b.rc == 0, "%s", b.e.msg);
    options_fini(&b.o);
    build(&b, "dlaunch", ARGV("--print_binding", "--dry_run", "./not-there"));
    ck_assert_int_eq(b.status, 127);
    options_fini(&b.o);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("job_build");
    TCase *tc = test_case(s, "job_build", 20);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, a_plain_job);
    tcase_add_test(tc, restarts_of_nodes_and_their_limits);
    tcase_add_test(tc, everything_given);
    tcase_add_test(tc, endpoints_of_the_rendezvous);
    tcase_add_test(tc, endpoints_of_the_file_backend);
    tcase_add_test(tc, rendezvous_mistakes);
    tcase_add_test(tc, addresses);
    tcase_add_test(tc, node_ranks);
    tcase_add_test(tc, node_counts);
    tcase_add_test(tc, rdzv_conf);
    tcase_add_test(tc, rdzv_conf_ignores_keys_that_the_backend_does_not_read);
    tcase_add_test(tc, the_store);
    tcase_add_test(tc, how_many_workers);
    tcase_add_test(tc, visible_gpus);
    tcase_add_test(tc, virtual_local_ranks);
    tcase_add_test(tc, omp_num_threads);
    tcase_add_test(tc, binding);
    tcase_add_test(tc, folders_that_cannot_be_written);
    tcase_add_test(tc, output_mistakes);
    tcase_add_test(tc, prefixes);
    tcase_add_test(tc, no_log_files_at_all);
    tcase_add_test(tc, programs);
    tcase_add_test(tc, the_interpreter);
    tcase_add_test(tc, program_mistakes);
    tcase_add_test(tc, distributed_launch);
    tcase_add_test(tc, cost);
    tcase_add_test(tc, binding_needs_no_program);
    return s;
}

TEST_MAIN(suite)
