#include "tests/lib/netns.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"
#include "tests/lib/test.h"

static int g_hosts;
static pid_t g_switch;            /* holds the namespace of the bridges */
static pid_t g_holder[NETNS_MAX]; /* holds a host's namespaces */
static ino_t g_net[NETNS_MAX];    /* identifies its network namespace */

static char *format(const char *fmt, va_list ap)
{
    char *text; /* no ck_assert here: Check has none outside of a test */
    return test_keep(vasprintf(&text, fmt, ap) < 0 ? NULL : text);
}

static int shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int shell(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int status = system(format(fmt, ap));
    va_end(ap);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* Prints an error and exits: Check does not report failed assertions of an unchecked fixture. */
static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "netns: %s: failed (%s)\n", what, strerror(errno));
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
    if (shell("command -v ip >/dev/null && command -v nft >/dev/null && "
              "command -v nsenter >/dev/null && command -v unshare >/dev/null") != 0) {
        test_skip("ip(8), nft(8), nsenter(1) or unshare(1) is not installed");
        return false;
    }
    if (shell("unshare --net --mount --uts ip link add br0 type bridge 2>/dev/null") != 0) {
        test_skip("this machine does not allow new network namespaces with bridges");
        return false;
    }
    return true;
}

static const char *address(const char *fmt, int host) __attribute__((format(printf, 1, 0)));
static const char *address(const char *fmt, int host)
{
    char text[32];
    snprintf(text, sizeof(text), fmt, host + 1);
    return test_keep(xstrdup(text));
}

const char *netns_addr(int host)
{
    return address("10.77.0.%d", host);
}

const char *netns_addr6(int host)
{
    return address("fd77::%d", host);
}

const char *netns_addr_eth1(int host)
{
    return address("10.78.0.%d", host);
}

/* --------------------------------------------------------------------------------------- set-up */

/* Mounts an /etc/hosts for this host alone, in its mount namespace. */
static bool mount_hosts_file(int host, int n, int bad_name)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("hosts", "/mnt", "tmpfs", 0, NULL) < 0)
        return false;
    FILE *f = fopen("/mnt/hosts", "w");
    if (!f)
        return false;
    fprintf(f, "127.0.0.1 localhost\n::1 localhost\n");
    for (int i = 0; i < n; i++)
        fprintf(f, "%s host%d\n", i == host && i == bad_name ? "127.0.1.1" : netns_addr(i), i);
    return fclose(f) == 0 && mount("/mnt/hosts", "/etc/hosts", NULL, MS_BIND, NULL) == 0 &&
           umount2("/mnt", MNT_DETACH) == 0;
}

/* A process with namespaces of its own that does nothing but hold them; host < 0: the bridges'. */
static pid_t hold(int host, int n, int bad_name)
{
    int ready[2];
    char c, name[16];
    pid_t parent = getpid();
    must(pipe(ready) == 0, "pipe");
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(name, sizeof(name), host < 0 ? "switch" : "host%d", host);
        bool ok = getppid() == parent && unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS) == 0 &&
                  sethostname(name, strlen(name)) == 0 &&
                  (host < 0 || mount_hosts_file(host, n, bad_name));
        if (!ok || write(ready[1], "x", 1) != 1)
            _exit(1);
        close(ready[0]);
        close(ready[1]);
        for (;;)
            pause();
    }
    close(ready[1]);
    must(read(ready[0], &c, 1) == 1, "namespaces");
    close(ready[0]);
    return pid;
}

static ino_t network_of(const char *pid)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof(path), "/proc/%.20s/ns/net", pid);
    return stat(path, &st) < 0 ? 0 : st.st_ino;
}

void netns_setup(int n, int bad_name)
{
    char pid[24];
    g_hosts = n;
    g_switch = hold(-1, n, bad_name);
    must(shell("nsenter -t %d -n ip -batch - <<.\n"
               "link add br0 type bridge\nlink set br0 up\n"
               "link add br1 type bridge\nlink set br1 up\n.\n",
               g_switch) == 0,
         "the bridges");
    for (int i = 0; i < n; i++) {
        g_holder[i] = hold(i, n, bad_name);
        snprintf(pid, sizeof(pid), "%d", g_holder[i]);
        g_net[i] = network_of(pid);
        must(shell("nsenter -t %d -n ip -batch - <<.\n"
                   "link set lo up\n"
                   "link add eth0 type veth peer name h%de0 netns %d\n"
                   "link add eth1 type veth peer name h%de1 netns %d\n"
                   "addr add %s/24 dev eth0\naddr add %s/64 dev eth0 nodad\n"
                   "addr add %s/24 dev eth1\n"
                   "link set eth0 up\nlink set eth1 up\n.\n",
                   g_holder[i], i, g_switch, i, g_switch, netns_addr(i), netns_addr6(i),
                   netns_addr_eth1(i)) == 0,
             "a host's interfaces");
        must(shell("nsenter -t %d -n ip -batch - <<.\n"
                   "link set h%de0 master br0 up\nlink set h%de1 master br1 up\n.\n",
                   g_switch, i, i) == 0,
             "a host's ports");
    }
}

static void end(pid_t *pid)
{
    if (*pid > 0) {
        kill(*pid, SIGKILL);
        waitpid(*pid, NULL, 0);
    }
    *pid = 0;
}

void netns_teardown(void)
{
    for (int i = 0; i < g_hosts; i++)
        end(&g_holder[i]);
    end(&g_switch);
    g_hosts = 0;
}

/* --------------------------------------------------------------------------------------- cables */

static void set_ports(int host, int state)
{
    ck_assert_int_eq(shell("nsenter -t %d -n sh -c 'bridge link set dev h%de0 state %d && "
                           "bridge link set dev h%de1 state %d'",
                           g_switch, host, state, host, state),
                     0);
}

void netns_cut(int host)
{
    set_ports(host, 0);
}

void netns_heal(int host)
{
    set_ports(host, 3);
}

/* ------------------------------------------------------------------------------------ processes */

void netns_start(struct proc *p, int host, char *const argv[], char *const env[])
{
    netns_start_with(p, host, argv, env, 0);
}

void netns_start_with(struct proc *p, int host, char *const argv[], char *const env[],
                      unsigned flags)
{
    char *full[300] = {"nsenter", "-t",    test_text("%d", g_holder[host]),
                       "--net",   "--uts", "--mount",
                       "--wd=.",  "--"};
    int n = 8;
    while (*argv && n < 299)
        full[n++] = *argv++;
    /* PDEATHSIG ends the launchers with this process, whether Check or the test ends it. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    proc_start(p, full, env, flags);
    snprintf(p->name, sizeof(p->name), "host%d", host);
}

int netns_sh(int host, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *cmd = format(fmt, ap);
    va_end(ap);
    struct proc p;
    netns_start(&p, host, ARGV("sh", "-c", cmd), NULL);
    int status = proc_wait(&p, 20);
    fputs(p.err, stderr);
    proc_fini(&p);
    return status;
}

static bool is_called(const char *pid, const char *comm)
{
    char path[64], name[32];
    snprintf(path, sizeof(path), "/proc/%.20s/comm", pid);
    ssize_t n = fd_read_file(AT_FDCWD, path, name, sizeof(name));
    return n > 0 && strlen(comm) == (size_t)n - 1 && memcmp(name, comm, strlen(comm)) == 0;
}

int netns_kill(int host, const char *comm, int signo)
{
    int n = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e; (e = readdir(d));) {
        pid_t pid = atoi(e->d_name);
        if (pid > 0 && pid != g_holder[host] && network_of(e->d_name) == g_net[host] &&
            (!comm || is_called(e->d_name, comm))) {
            n++; /* a zombie has no namespace any more */
            if (signo)
                kill(pid, signo);
        }
    }
    closedir(d);
    return n;
}

pid_t netns_holder(int host)
{
    return g_holder[host];
}

int netns_count_processes(int host)
{
    return netns_kill(host, NULL, 0);
}

void netns_count_each(int counts[NETNS_MAX])
{
    memset(counts, 0, NETNS_MAX * sizeof(counts[0]));
    DIR *d = opendir("/proc");
    for (struct dirent *e; (e = readdir(d));) {
        pid_t pid = atoi(e->d_name);
        ino_t net = pid > 0 ? network_of(e->d_name) : 0;
        for (int i = 0; net && i < g_hosts; i++)
            counts[i] += g_net[i] == net && g_holder[i] != pid;
    }
    closedir(d);
}

void netns_power_off(int host)
{
    netns_cut(host);
    while (netns_kill(host, NULL, SIGKILL))
        ;
}
