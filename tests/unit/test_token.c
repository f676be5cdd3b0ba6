/* The sources of a job token, and files that are refused as one. */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/mem.h"
#include "launcher/options/config_file.h"
#include "launcher/options/job_build.h"
#include "launcher/options/token.h"
#include "rendezvous/wire/auth.h"
#include "tests/lib/proc.h"

#define LONG "0123456789abcdef0123456789abcdef"

static char g_said[4096];

static void keep_line(void *arg, const char *line, size_t len)
{
    (void)arg;
    size_t n = strlen(g_said);
    snprintf(g_said + n, sizeof(g_said) - n, "%.*s", (int)len, line);
}

static void setup(void)
{
    log_set_writer(keep_line, NULL);
    setenv("XDG_CONFIG_HOME", tmppath("config"), 1);
    unsetenv("DLAUNCH_TOKEN");
    unsetenv("KUBERNETES_SERVICE_HOST");
}

static void secret_file(const char *path, const char *text, mode_t mode)
{
    write_file(path, text);
    ck_assert_int_eq(chmod(path, mode), 0);
}

/* The guard of a job with this command line, or NULL and g_error. */
static struct options g_options;
static struct err g_error;
static const char *g_ini; /* the configuration file; NULL: none */

static void on_config_error(void *arg, const char *line)
{
    (void)arg;
    ck_abort_msg("%s", line);
}

static struct auth *guard_for(const char *prog, ...)
{
    static struct job_spec job;
    const char *argv[16] = {prog};
    int argc = 1, status = 0;
    va_list ap;
    va_start(ap, prog);
    while (argc < 15 && (argv[argc] = va_arg(ap, const char *)))
        argc++;
    va_end(ap);
    g_said[0] = '\0';
    g_error = (struct err)ERR_INIT;
    options_fini(&g_options);
    options_init(&g_options, prog);
    ck_assert_msg(options_read_argv(&g_options, argc, (char **)argv, &g_error) == 0, "%s",
                  g_error.msg);
    ck_assert_msg(options_read_env(&g_options, environ, &g_error) == 0, "%s", g_error.msg);
    if (g_ini)
        config_text_read(&g_options, "job.ini", g_ini, strlen(g_ini), on_config_error, NULL);
    memset(&job, 0, sizeof(job));
    bool ok = job_build(&job, &g_options, &status, &g_error) == 0;
    options_log_notes(&g_options);
    return ok && token_build(&job, &g_options, &g_error) == 0 ? job.rdzv.auth : NULL;
}

#define HAS(text, part) ck_assert_msg(strstr(text, part), "'%s' is not in: %s", part, text)
#define REMOTE          "--nnodes=2", "--node_rank=1", "--master_addr=192.0.2.77", "/bin/true", NULL

static bool has_own(void)
{
    return access(tmppath("config/dlaunch/token"), F_OK) == 0;
}

/* Not before the launcher is about to listen where others can reach it: those that only join need
 * the token of that one. */
START_TEST(made_by_the_launcher_that_hosts)
{
    struct stat st;
    struct auth *g = guard_for("dlaunch", "--nnodes=2", "--node_rank=1", "/bin/true", NULL);
    ck_assert(g && !g->open && g->secret_len == 0 && !auth_may_come(g)); /* loopback: not needed */
    g = guard_for("dlaunch", "--dry_run", REMOTE);
    ck_assert(g && g->secret_len == 0 && !auth_may_come(g));
    g = guard_for("dlaunch", "--print_binding", REMOTE);
    ck_assert(g && g->secret_len == 0 && !auth_may_come(g));
    g = guard_for("dlaunch", REMOTE);
    ck_assert(g && !g->open && !g->everywhere && auth_may_come(g));
    auth_find(g, false);
    ck_assert(auth_may_come(g) && !has_own());
    HAS(g->source, "config/dlaunch/token does not exist");
    auth_find(g, true);
    ck_assert(!auth_may_come(g) && g->made);
    ck_assert_uint_eq(g->secret_len, 64);
    ck_assert_int_eq(stat(tmppath("config/dlaunch/token"), &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    uint8_t first[64];
    memcpy(first, g->secret, 64);
    g = guard_for("dlaunch", REMOTE);
    ck_assert_mem_eq(first, g->secret, 64);
    ck_assert(!g->made);
    options_fini(&g_options);
    options_init(&g_options, "dlaunch");
    ck_assert_int_eq(token_new(&g_options, &g_error), 0);
    g = guard_for("dlaunch", REMOTE);
    ck_assert_mem_ne(first, g->secret, 64);
}
END_TEST

/* The coordinator has made it meanwhile, in a home folder that both see; or the user has copied it,
 * badly at first. */
START_TEST(comes_later)
{
    struct auth *g = guard_for("dlaunch", REMOTE);
    ck_assert(g && auth_may_come(g));
    ck_assert_int_eq(mkdir(tmppath("config"), 0700), 0);
    ck_assert_int_eq(mkdir(tmppath("config/dlaunch"), 0700), 0);
    secret_file(tmppath("config/dlaunch/token"), LONG, 0644);
    auth_find(g, true);
    ck_assert(auth_may_come(g));
    HAS(g->source, "is accessible to other users");
    ck_assert_int_eq(chmod(tmppath("config/dlaunch/token"), 0600), 0);
    auth_find(g, false);
    ck_assert(!auth_may_come(g) && !g->made);
    ck_assert_uint_eq(g->secret_len, 32);
}
END_TEST

static bool needs_token(const char *prog, const char *const *options)
{
    const char *o[4] = {"--verbose", "--verbose", "--verbose", "--verbose"};
    for (int i = 0; i < 4 && options[i]; i++)
        o[i] = options[i];
    struct auth *g = guard_for(prog, o[0], o[1], o[2], o[3], "/bin/true", NULL);
    ck_assert_msg(g, "%s", g_error.msg);
    return g->open || auth_may_come(g);
}

/* Whether strangers could reach where the nodes meet: not when that is loopback. */
START_TEST(needed_where_others_can_come)
{
    static const struct {
        const char *options[4];
        bool dlaunch, torchrun; /* there it runs open, and says so */
    } rows[] = {
        /* etcd is at localhost, not the nodes. */
        {{"--nnodes=2", "--rdzv_backend=etcd"}, true, true},
        {{"--nnodes=2", "--rdzv_backend=etcd", "--rdzv_endpoint=localhost:2379"}, true, true},
        {{"--nnodes=2", "--rdzv_backend=etcd", "--rdzv_endpoint=192.0.2.7:2379"}, true, true},
        {{"--nnodes=2", "--rdzv_backend=file", "--rdzv_endpoint=f"}, true, true},
        {{"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost"}, false, false},
        {{"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost.localdomain"},
         false,
         false},
        {{"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=[::1]"}, false, false},
        {{"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=192.0.2.7"}, true, true},
        {{"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1,192.0.2.7"}, true, true},
        {{"--nnodes=1", "--spares=1", "--rdzv_backend=c10d", "--rdzv_endpoint=192.0.2.7"},
         true,
         true},
        /* One node: the kernel tells who comes from here, and whoever comes from elsewhere is
         * refused; torchrun's store is open to them. */
        {{"--nnodes=1"}, false, false},
        {{"--nnodes=1", "--rdzv_backend=etcd"}, false, false},
        {{"--nnodes=1", "--rdzv_backend=file", "--rdzv_endpoint=f"}, false, false},
        {{"--nnodes=1", "--master_addr=192.0.2.7", "--master_port=29600"}, false, true},
        {{"--nnodes=1", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"}, false, false},
        {{"--nnodes=1", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0",
          "--local_addr=192.0.2.7"},
         false,
         true},
        {{"--standalone", "--local_addr=192.0.2.7"}, false, true},
        {{"--standalone"}, false, false},
    };
    ck_assert_int_eq(chdir(tmppath(".")), 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        ck_assert_msg(needs_token("dlaunch", rows[i].options) == rows[i].dlaunch, "row %zu", i);
        ck_assert_msg(needs_token("torchrun", rows[i].options) == rows[i].torchrun,
                      "torchrun: row %zu", i);
        ck_assert_msg(!strstr(g_said, "anybody") == !rows[i].torchrun, "row %zu: %s", i, g_said);
    }
}
END_TEST

START_TEST(named)
{
    char *path = tmppath("named");
    secret_file(path, LONG "\n", 0600);
    struct auth *g = guard_for("dlaunch", "--token_file", path, "/bin/true", NULL);
    ck_assert_msg(g, "%s", g_error.msg);
    ck_assert(g->everywhere);
    ck_assert_uint_eq(g->secret_len, 32);
    ck_assert_str_eq(g->source, path);
    setenv("DLAUNCH_TOKEN", "from the environment, long enough", 1);
    g = guard_for("dlaunch", "--token_file", path, "/bin/true", NULL); /* argv wins */
    ck_assert(g && g->secret_len == 32);
    ck_assert_ptr_null(getenv("DLAUNCH_TOKEN")); /* not for the workers, used or not */
    setenv("DLAUNCH_TOKEN", "from the environment, long enough", 1);
    g = guard_for("dlaunch", "/bin/true", NULL);
    ck_assert(g && g->secret_len == 33 && g->everywhere);
    ck_assert_ptr_null(getenv("DLAUNCH_TOKEN"));
    int fd = open(path, O_RDONLY);
    g = guard_for("dlaunch", "--token_fd", test_text("%d", fd), "/bin/true", NULL);
    ck_assert(g && g->secret_len == 32);
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
    /* The place of standard input stays taken: who opens something next would get it. */
    ck_assert_int_eq(dup2(open(path, O_RDONLY), STDIN_FILENO), STDIN_FILENO);
    g = guard_for("dlaunch", "--token_fd", "0", "/bin/true", NULL);
    ck_assert(g && g->secret_len == 32);
    struct stat st, null;
    ck_assert_int_eq(fstat(STDIN_FILENO, &st) | stat("/dev/null", &null), 0);
    ck_assert_uint_eq(st.st_rdev, null.st_rdev);
}
END_TEST

/* The environment is stronger than a file, and what is in it twice is a mistake. */
START_TEST(named_in_the_environment)
{
    static const char *const vars[] = {"DLAUNCH_TOKEN_FILE", "DLAUNCH_TOKEN_FD"};
    char *path = tmppath("named");
    secret_file(path, LONG, 0600);
    g_ini = test_text("token_file = %s\n", path);
    struct auth *g = guard_for("dlaunch", "/bin/true", NULL);
    ck_assert(g && g->secret_len == 32);
    setenv("DLAUNCH_TOKEN", "from the environment, long enough", 1);
    g = guard_for("dlaunch", "/bin/true", NULL);
    ck_assert_msg(g, "%s", g_error.msg);
    ck_assert_uint_eq(g->secret_len, 33);
    g_ini = NULL;
    for (size_t i = 0; i < ARRAY_LEN(vars); i++) {
        int fd = open(path, O_RDONLY);
        setenv("DLAUNCH_TOKEN", "from the environment, long enough", 1);
        setenv(vars[i], i ? test_text("%d", fd) : path, 1);
        ck_assert_ptr_null(guard_for("dlaunch", "/bin/true", NULL));
        ck_assert_str_eq(g_error.msg,
                         test_text("%s cannot be combined with DLAUNCH_TOKEN", vars[i]));
        unsetenv(vars[i]);
    }
    int fd = open(path, O_RDONLY);
    setenv("DLAUNCH_TOKEN_FD", test_text("%d", fd), 1);
    g = guard_for("dlaunch", "/bin/true", NULL);
    ck_assert(g && g->secret_len == 32);
    ck_assert_ptr_null(getenv("DLAUNCH_TOKEN_FD")); /* that descriptor is closed */
}
END_TEST

START_TEST(not_believed)
{
    static const struct {
        const char *text;
        mode_t mode;
        const char *says;
    } bad[] = {{LONG, 0640, "is accessible to other users (mode 0640)"},
               {LONG, 0602, "is accessible to other users"},
               {"short\n", 0600, "the token has only 5 bytes"},
               {"", 0600, "the token has only 0 bytes"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char *path = tmppath(test_text("bad%zu", i));
        secret_file(path, bad[i].text, bad[i].mode);
        ck_assert_ptr_null(guard_for("dlaunch", "--token_file", path, "/bin/true", NULL));
        HAS(g_error.msg, bad[i].says);
        HAS(g_error.msg, "--token_file");
        /* The user's own, when it is there and wrong, is not passed over either. */
        mkdir(tmppath("config"), 0700);
        mkdir(tmppath("config/dlaunch"), 0700);
        secret_file(tmppath("config/dlaunch/token"), bad[i].text, bad[i].mode);
        ck_assert_ptr_null(guard_for("dlaunch", REMOTE));
        HAS(g_error.msg, bad[i].says);
    }
    char *big = test_text("%02000d", 7), *path = tmppath("big");
    secret_file(path, big, 0600);
    ck_assert_ptr_null(guard_for("dlaunch", "--token_file", path, "/bin/true", NULL));
    HAS(g_error.msg, "longer than 1024 bytes");
    ck_assert_ptr_null(guard_for("dlaunch", "--token_file", tmpdir(), "/bin/true", NULL));
    HAS(g_error.msg, "not a regular file");
    ck_assert_ptr_null(guard_for("dlaunch", "--token_file", "/nowhere", "/bin/true", NULL));
    HAS(g_error.msg, "/nowhere: No such file");
    ck_assert_ptr_null(guard_for("dlaunch", "--token_file", "", "/bin/true", NULL));
    HAS(g_error.msg, "--token_file: the value is empty");
    ck_assert_ptr_null(guard_for("dlaunch", "--token_fd", "999", "/bin/true", NULL));
    HAS(g_error.msg, "descriptor 999: Bad file descriptor");
    secret_file(path, LONG, 0600);
    ck_assert_ptr_null(guard_for("dlaunch", "--token_file", path, "--insecure", "/bin/true", NULL));
    HAS(g_error.msg, "cannot be combined with a job token");
    setenv("DLAUNCH_TOKEN", "short", 1);
    ck_assert_ptr_null(guard_for("dlaunch", "/bin/true", NULL));
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(path, 65534, 65534), 0);
        ck_assert_ptr_null(guard_for("dlaunch", "--token_file", path, "/bin/true", NULL));
        HAS(g_error.msg, "belongs to user 65534");
    }
}
END_TEST

START_TEST(open_on_purpose)
{
    struct auth *g = guard_for("dlaunch", "--insecure", REMOTE);
    ck_assert(g && g->open);
    g = guard_for("torchrun", REMOTE);
    ck_assert(g && g->open);
    HAS(g_said, "called as torchrun without a job token");
    setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1);
    g = guard_for("dlaunch", REMOTE);
    ck_assert(g && g->open);
    HAS(g_said, "running in a pod without a job token");
    ck_assert_int_lt(access(tmppath("config/dlaunch/token"), F_OK), 0);
    unsetenv("KUBERNETES_SERVICE_HOST");
    setenv("XDG_CONFIG_HOME", "/proc/nowhere", 1);
    g = guard_for("dlaunch", REMOTE);
    ck_assert(g && !g->open && g->secret_len == 0);
    auth_find(g, true);
    HAS(g->source, "cannot create /proc/nowhere");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("token");
    TCase *tc = tcase_create("token");
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, made_by_the_launcher_that_hosts);
    tcase_add_test(tc, comes_later);
    tcase_add_test(tc, needed_where_others_can_come);
    tcase_add_test(tc, named);
    tcase_add_test(tc, named_in_the_environment);
    tcase_add_test(tc, not_believed);
    tcase_add_test(tc, open_on_purpose);
    suite_add_tcase(s, tc);
    return s;
}

TEST_MAIN(suite)
