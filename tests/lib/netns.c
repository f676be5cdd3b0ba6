#include "tests/lib/netns.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/mem.h"
#include "tests/lib/test.h"

static int g_hosts;
static pid_t g_owner; /* namespaces are named after the process that made them */

static int shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int shell(const char *fmt, ...)
{
    char *cmd;
    va_list ap;
    va_start(ap, fmt);
    ck_assert_int_ge(vasprintf(&cmd, fmt, ap), 0);
    va_end(ap);
    int status = system(cmd);
    free(cmd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void must(int status, const char *what)
{
    if (status != 0) {
        fprintf(stderr, "netns: %s: exit status %d\n", what, status);
        netns_teardown();
        exit(1);
    }
}

bool netns_available(void)
{
    if (geteuid() != 0) {
        test_skip("network namespaces need root");
        return false;
    }
    if (shell("command -v ip >/dev/null && command -v unshare >/dev/null") != 0) {
        test_skip("ip(8) or unshare(1) is not installed");
        return false;
    }
    if (shell("unshare --net true 2>/dev/null") != 0) {
        test_skip("this machine does not allow new network namespaces");
        return false;
    }
    return true;
}

const char *netns_addr(int host)
{
    static char addr[NETNS_MAX][32];
    snprintf(addr[host], sizeof(addr[host]), "10.77.0.%d", host + 1);
    return addr[host];
}

static void write_hosts_file(int host, int n, int bad_name)
{
    char path[128];
    snprintf(path, sizeof(path), "/etc/netns/dl%d-%d", g_owner, host);
    must(shell("mkdir -p %s", path), "mkdir in /etc/netns");
    strcat(path, "/hosts");
    FILE *f = fopen(path, "w");
    must(f ? 0 : 1, path);
    fprintf(f, "127.0.0.1 localhost\n::1 localhost\n");
    for (int i = 0; i < n; i++)
        fprintf(f, "%s host%d\n", i == host && i == bad_name ? "127.0.1.1" : netns_addr(i), i);
    fclose(f);
}

void netns_setup(int n, int bad_name)
{
    g_owner = getpid();
    g_hosts = n;
    must(shell("ip netns add dl%d-sw && ip -n dl%d-sw link add br0 type bridge && "
               "ip -n dl%d-sw link set br0 up",
               g_owner, g_owner, g_owner),
         "the bridge");
    for (int i = 0; i < n; i++) {
        char ns[32], sw[32];
        snprintf(ns, sizeof(ns), "dl%d-%d", g_owner, i);
        snprintf(sw, sizeof(sw), "dl%d-sw", g_owner);
        write_hosts_file(i, n, bad_name);
        must(shell("ip netns add %s && ip -n %s link set lo up && "
                   "ip -n %s link add eth0 type veth peer name port%d netns %s && "
                   "ip -n %s link set port%d master br0 up && "
                   "ip -n %s addr add %s/24 dev eth0 && "
                   "ip -n %s addr add fd77::%d/64 dev eth0 nodad && ip -n %s link set eth0 up",
                   ns, ns, ns, i, sw, sw, i, ns, netns_addr(i), ns, i + 1, ns),
             "a host");
    }
}

void netns_teardown(void)
{
    for (int i = 0; i < g_hosts; i++)
        shell("ip netns del dl%d-%d 2>/dev/null; rm -rf /etc/netns/dl%d-%d", g_owner, i, g_owner,
              i);
    shell("ip netns del dl%d-sw 2>/dev/null", g_owner);
}

static void set_port(int host, int state)
{
    ck_assert_int_eq(
        shell("ip netns exec dl%d-sw bridge link set dev port%d state %d", g_owner, host, state),
        0);
}

void netns_cut(int host)
{
    set_port(host, 0);
}

void netns_heal(int host)
{
    set_port(host, 3);
}

void netns_start(struct proc *p, int host, char *const argv[], char *const env[])
{
    char *full[256] = {"ip",
                       "netns",
                       "exec",
                       xasprintf("dl%d-%d", g_owner, host),
                       "unshare",
                       "--uts",
                       "sh",
                       "-c",
                       xasprintf("hostname host%d && exec \"$@\"", host),
                       "sh"};
    int n = 10;
    while (*argv && n < 255)
        full[n++] = *argv++;
    proc_start(p, full, env, 0);
}

int netns_sh(int host, const char *fmt, ...)
{
    char *cmd;
    va_list ap;
    va_start(ap, fmt);
    ck_assert_int_ge(vasprintf(&cmd, fmt, ap), 0);
    va_end(ap);
    int status = shell("ip netns exec dl%d-%d sh -c '%s'", g_owner, host, cmd);
    free(cmd);
    return status;
}
