#include "tests/lib/start.h"

#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/test.h"

/* Names with a dot: tests look for what dlaunch leaves in their folder. */
static struct proc g_server;

static const char *by_daemon(void)
{
    static int port;
    if (!port) {
        port = free_port();
        write_file(tmppath(".token"), "a token of the tests' own\n");
        ck_assert_int_eq(chmod(tmppath(".token"), 0600), 0);
        proc_start(&g_server,
                   ARGV(build_path("dlaunch"), "--serve", "--serve_port", test_text("%d", port),
                        "--token_file", tmppath(".token")),
                   NULL, 0);
        proc_expect_err(&g_server, "waiting for jobs", 20);
    }
    return test_text("-H localhost --launch_agent daemon --serve_port %d --token_file %s ", port,
                     tmppath(".token"));
}

static const char *by_ssh(void)
{
    static int port;
    const struct passwd *user = getpwuid(geteuid());
    ck_assert_ptr_nonnull(user);
    if (!port) {
        port = free_port();
        ck_assert_int_eq(
            system(test_text("mkdir -p /run/sshd; ssh-keygen -q -t ed25519 -N '' -f %s && "
                             "ssh-keygen -q -t ed25519 -N '' -f %s",
                             tmppath(".host_key"), tmppath(".user_key"))),
            0);
        write_file(tmppath(".sshd"),
                   test_text("ListenAddress 127.0.0.1:%d\nHostKey %s\nAuthorizedKeysFile %s.pub\n"
                             "StrictModes no\nUsePAM no\nPidFile none\nPrintMotd no\n",
                             port, tmppath(".host_key"), tmppath(".user_key")));
        write_file(tmppath(".ssh"),
                   test_text("Host *\n  IdentityFile %s\n  IdentitiesOnly yes\n  LogLevel ERROR\n"
                             "  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n",
                             tmppath(".user_key")));
        proc_start(&g_server, ARGV("/usr/sbin/sshd", "-D", "-e", "-f", tmppath(".sshd")), NULL, 0);
        proc_expect_err(&g_server, "Server listening on", 20);
    }
    return test_text("-H %s@127.0.0.1 --launch_agent ssh --ssh_port %d --ssh_args '-F %s' "
                     "--start_timeout 60 ",
                     user->pw_name, port, tmppath(".ssh"));
}

const char *start_options(const char *line, char *const env[])
{
    const char *start = getenv("START");
    if (!start || strstr(line, "--nnodes") || strstr(line, "--rdzv_only") ||
        strstr(line, "--witness"))
        return "";
    ck_assert_msg(strcmp(start, "daemon") == 0 || strcmp(start, "ssh") == 0,
                  "START=%s: not daemon or ssh", start);
    const char *options = *start == 'd' ? by_daemon() : by_ssh();
    for (; env && *env; env++) {
        if (strchr(*env, '=') && strncmp(*env, "DLAUNCH_", 8) != 0 && strncmp(*env, "PET_", 4) != 0)
            options = test_text("%s -x \"%s\"", options, *env);
    }
    return options;
}

bool start_skips(const char *why)
{
    const char *start = getenv("START");
    if (start)
        test_skip("with START=%s: %s", start, why);
    return start != NULL;
}
