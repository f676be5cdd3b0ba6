#include "agent/doctor/facts.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/device/placement.h"
#include "agent/doctor/facts_gpu.h"
#include "agent/doctor/program_needs.h"
#include "agent/report/json_text.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/netaddr.h"

extern char **environ;

#define HASHED_BYTES (16u << 20) /* of the program */

struct place { /* where the facts are found */
    char root[256];
};

/* ------------------------------------------------------------------------------------ small things
 */

static void set_text(json_t *j, const char *key, const char *text)
{
    json_object_set_new(j, key, json_of_text(text));
}

static void set_number(json_t *j, const char *key, double n)
{
    bool whole = n > -1e15 && n < 1e15 && n == (double)(json_int_t)n;
    json_object_set_new(j, key, whole ? json_integer((json_int_t)n) : json_real(n));
}

static const char *text_of(const json_t *j, const char *key)
{
    const char *text = json_string_value(json_object_get(j, key));
    return text ? text : "";
}

/* The first line of a file below the root; false: it cannot be read. */
static bool read_line(const struct place *p, char *out, size_t cap, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static bool read_line(const struct place *p, char *out, size_t cap, const char *fmt, ...)
{
    char path[1024];
    int at = snprintf(path, sizeof(path), "%s", p->root);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(path + at, sizeof(path) - (size_t)at, fmt, ap);
    va_end(ap);
    if (fd_read_file(AT_FDCWD, path, out, cap) < 0)
        return false;
    out[strcspn(out, "\n")] = '\0';
    return true;
}

/* The number behind a word in a file of lines such as "MemTotal:  1024 kB"; negative: none. */
static double number_behind(const struct place *p, const char *path, const char *word)
{
    char full[1024], line[256];
    double n = -1;
    snprintf(full, sizeof(full), "%s%s", p->root, path);
    FILE *f = fopen(full, "re");
    size_t len = strlen(word);
    while (f && n < 0 && fgets(line, sizeof(line), f)) {
        if (strncmp(line, word, len) == 0 && (line[len] == ' ' || line[len] == ':'))
            n = strtod(line + len + 1, NULL);
    }
    if (f)
        fclose(f);
    return n;
}

/* ---------------------------------------------------------------------------------------- commands
 */

/* Runs a command, and all that it starts, until its output ends or `ms` are over. Returns its wait
 * status; -1: it was not done in time, -2: it could not be started. */
static int run_command(char *const argv[], char *const envp[], int ms, char *out, size_t cap)
{
    int fds[2], status = -2;
    size_t n = 0;
    out[0] = '\0';
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -2;
    _cleanup_fd_ int in = fds[0], to = fds[1];
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        dup2(to, STDOUT_FILENO);
        dup2(to, STDERR_FILENO);
        execve(argv[0], argv, envp);
        _exit(127);
    }
    close_fd(&to);
    if (pid < 0)
        return -2;
    uint64_t deadline = mono_ns() + (uint64_t)ms * 1000000;
    for (bool over = false; !over;) {
        char rest[512];
        uint64_t now = mono_ns();
        struct pollfd f = {.fd = in, .events = POLLIN};
        int left = now < deadline ? (int)((deadline - now) / 1000000) + 1 : 0;
        if (poll(&f, 1, left) <= 0) {
            status = -1;
            break;
        }
        bool room = n + 1 < cap;
        ssize_t k = read(in, room ? out + n : rest, room ? cap - 1 - n : sizeof(rest));
        over = k <= 0;
        n += room && k > 0 ? (size_t)k : 0;
    }
    out[n] = '\0';
    kill(-pid, SIGKILL); /* leftover processes; the program itself has closed its output */
    if (status == -1) {
        waitpid(pid, NULL, 0);
        return -1;
    }
    return waitpid(pid, &status, 0) == pid ? status : -2;
}

/* The environment of this process with the job's settings on top; the array is malloc'ed. */
static char **job_environment(const json_t *question)
{
    const json_t *set = json_object_get(question, "env");
    size_t n = 0, i;
    json_t *v;
    while (environ[n])
        n++;
    char **env = xcalloc(n + json_array_size(set) + 1, sizeof(*env));
    n = 0;
    json_array_foreach(set, i, v) env[n++] = (char *)json_string_value(v);
    for (char **e = environ; *e; e++) {
        size_t len = strcspn(*e, "="), k = 0;
        while (k < json_array_size(set) && strncmp(env[k], *e, len + 1) != 0)
            k++;
        if (k == json_array_size(set))
            env[n++] = *e;
    }
    return env;
}

/* --------------------------------------------------------------------------- limits and file
 * systems */

static double limit_of(int which, bool soft)
{
    struct rlimit r;
    if (getrlimit((__rlimit_resource_t)which, &r) < 0)
        return -1;
    rlim_t n = soft ? r.rlim_cur : r.rlim_max;
    return n == RLIM_INFINITY ? -1 : (double)n;
}

/* Limits that are not set are left out. */
static json_t *limits(void)
{
    json_t *j = json_object();
    double nofile = limit_of(RLIMIT_NOFILE, false), memlock = limit_of(RLIMIT_MEMLOCK, true);
    double nproc = limit_of(RLIMIT_NPROC, true), size = limit_of(RLIMIT_FSIZE, true);
    double space = limit_of(RLIMIT_AS, true);
    if (nofile >= 0)
        set_number(j, "nofile", nofile);
    if (memlock >= 0)
        set_number(j, "memlock_bytes", memlock);
    if (nproc >= 0 && geteuid() != 0) /* of root's processes any number is allowed */
        set_number(j, "nproc", nproc);
    if (size >= 0)
        set_number(j, "file_bytes", size);
    if (space >= 0)
        set_number(j, "address_space_bytes", space);
    return j;
}

/* The number of threads of this user is what the limit counts. */
static double own_threads(void)
{
    DIR *d = opendir("/proc");
    const struct dirent *e;
    double n = 0;
    while (d && (e = readdir(d))) {
        char path[300];
        struct stat st;
        snprintf(path, sizeof(path), "/proc/%s/task", e->d_name);
        if (*e->d_name >= '0' && *e->d_name <= '9' && stat(path, &st) == 0 &&
            st.st_uid == geteuid())
            n += st.st_nlink > 2 ? (double)(st.st_nlink - 2) : 1;
    }
    if (d)
        closedir(d);
    return n;
}

static json_t *folder(const char *path)
{
    json_t *j = json_object();
    struct statvfs s;
    set_text(j, "path", path);
    if (statvfs(path, &s) < 0) {
        set_text(j, "error", strerror(errno));
        return j;
    }
    set_number(j, "bytes", (double)s.f_blocks * (double)s.f_frsize);
    set_number(j, "free_bytes", (double)s.f_bavail * (double)s.f_frsize);
    if (s.f_files)
        set_number(j, "free_files", (double)s.f_favail);
    if (access(path, W_OK | X_OK) < 0)
        set_text(j, "error", strerror(errno));
    return j;
}

/* Joins the mount point and the path of a cgroup. A container without a cgroup namespace sees the
 * host's path, while only its own part of the tree is mounted: so the front of the path is left out
 * until the rest is there, at last all of it. False: not even the mount point is. */
static bool cgroup_join(const struct place *p, const char *mount, const char *path, char out[512])
{
    for (char full[1024];; path = strchr(path + 1, '/') ? strchr(path + 1, '/') : "") {
        if (strncmp(path, "/..", 3) == 0) /* outside of our namespace */
            continue;
        snprintf(out, 512, "%s%s", mount, strcmp(path, "/") == 0 ? "" : path);
        snprintf(full, sizeof(full), "%s%s", p->root, out);
        if (access(full, F_OK) == 0)
            return true;
        if (!*path)
            return false;
    }
}

/* The folder of this cgroup controller that this process is in, relative to the root; false: none
 * is to be seen. */
static bool cgroup_folder(const struct place *p, const char *controller, char out[512])
{
    char path[1024], line[512], mount[96] = "", own[512] = "";
    bool found = false;
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", p->root);
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof(line), f)) {
        char *names = strchr(line, ':'), *where = names ? strchr(names + 1, ':') : NULL;
        if (!where)
            continue;
        *where++ = '\0';
        where[strcspn(where, "\n")] = '\0';
        found = strcmp(names + 1, controller) == 0;
        if (found || !*(names + 1)) {
            snprintf(mount, sizeof(mount), "/sys/fs/cgroup%s%s", found ? "/" : "",
                     found ? controller : "");
            snprintf(own, sizeof(own), "%s", where);
        }
    }
    if (f)
        fclose(f);
    return *mount && cgroup_join(p, mount, own, out);
}

/* The least room between a limit and what is used, of this cgroup and those around it. `soft`: a
 * word of memory.stat with what is really used; NULL: the counter itself. */
static void cgroup_room(const struct place *p, json_t *j, const char *controller, const char *max,
                        const char *used, const char *soft, const char *key)
{
    char dir[512] = "", text[64];
    double room = -1, limit = -1;
    if (!cgroup_folder(p, controller, dir))
        return;
    for (size_t top = strlen("/sys/fs/cgroup"); strlen(dir) >= top;) {
        double n, now;
        char stat_path[600];
        snprintf(stat_path, sizeof(stat_path), "%s/memory.stat", dir);
        if (read_line(p, text, sizeof(text), "%s/%s", dir, max) && *text >= '0' && *text <= '9' &&
            (n = strtod(text, NULL)) < 1e18) {
            now = soft ? number_behind(p, stat_path, soft) : -1;
            if (now < 0 && read_line(p, text, sizeof(text), "%s/%s", dir, used))
                now = strtod(text, NULL);
            if (room < 0 || n - now < room) {
                room = n > now ? n - now : 0;
                limit = n;
            }
        }
        char *slash = strrchr(dir, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
    if (limit >= 0)
        json_object_set_new(j, key, json_pack("{s:f,s:f}", "limit", limit, "free", room));
}

static json_t *cgroup(const struct place *p)
{
    json_t *j = json_object();
    cgroup_room(p, j, "pids", "pids.max", "pids.current", NULL, "pids");
    cgroup_room(p, j, "memory", "memory.max", "memory.current", "anon", "memory");
    if (!json_object_get(j, "memory"))
        cgroup_room(p, j, "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_rss",
                    "memory");
    return j;
}

static json_t *memory(const struct place *p)
{
    json_t *j = json_object();
    double total = number_behind(p, "/proc/meminfo", "MemTotal");
    double there = number_behind(p, "/proc/meminfo", "MemAvailable");
    if (total >= 0)
        set_number(j, "bytes", total * 1024);
    if (there >= 0)
        set_number(j, "available_bytes", there * 1024);
    return j;
}

/* Threads that the kernel still allows, and ports for outgoing connections. */
static void kernel_limits(const struct place *p, json_t *facts)
{
    char threads[64], pids[64], load[128], ports[64];
    int low, high, all = 0;
    if (read_line(p, load, sizeof(load), "/proc/loadavg"))
        sscanf(load, "%*s %*s %*s %*d/%d", &all);
    if (read_line(p, threads, sizeof(threads), "/proc/sys/kernel/threads-max") &&
        read_line(p, pids, sizeof(pids), "/proc/sys/kernel/pid_max")) {
        double a = strtod(threads, NULL), b = strtod(pids, NULL);
        set_number(facts, "threads_left", (a < b ? a : b) - all);
    }
    if (read_line(p, ports, sizeof(ports), "/proc/sys/net/ipv4/ip_local_port_range") &&
        sscanf(ports, "%d %d", &low, &high) == 2)
        set_number(facts, "ports", high - low + 1);
}

/* ------------------------------------------------------------------------------------------
 * network */

static json_t *resolve(const char *name)
{
    json_t *j = json_object(), *list = json_array();
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all = NULL;
    set_text(j, "name", name);
    uint64_t start = mono_ns();
    int rc = getaddrinfo(name, NULL, &hints, &all);
    set_number(j, "seconds", (double)(mono_ns() - start) / 1e9);
    if (rc)
        set_text(j, "error", gai_strerror(rc));
    bool loopback = all != NULL;
    for (const struct addrinfo *a = all; a; a = a->ai_next) {
        struct netaddr n;
        char ip[ADDR_STRLEN];
        netaddr_from_sockaddr(&n, a->ai_addr);
        json_array_append_new(list, json_string(netaddr_ip(&n, ip)));
        loopback &= netaddr_is_loopback(&n);
    }
    if (all)
        freeaddrinfo(all);
    json_object_set_new(j, "addresses", list);
    json_object_set_new(j, "loopback", json_boolean(loopback));
    return j;
}

static void set_mtu(json_t *one, const char *name)
{
    struct ifreq r = {0};
    _cleanup_fd_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", name);
    if (fd >= 0 && ioctl(fd, SIOCGIFMTU, &r) == 0)
        set_number(one, "mtu", r.ifr_mtu);
}

static json_t *interfaces(const struct place *p)
{
    json_t *all = json_object();
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) < 0)
        return all;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        json_t *one = json_object_get(all, i->ifa_name);
        char text[64], ip[ADDR_STRLEN];
        struct netaddr a;
        if (!one) {
            one = json_pack("{s:b,s:[]}", "up",
                            (i->ifa_flags & IFF_UP) && (i->ifa_flags & IFF_RUNNING), "addresses");
            json_object_set_new(all, i->ifa_name, one);
            set_mtu(one, i->ifa_name);
            if (read_line(p, text, sizeof(text), "/sys/class/net/%s/speed", i->ifa_name) &&
                strtod(text, NULL) > 0)
                set_number(one, "speed_mbit", strtod(text, NULL));
            if (read_line(p, text, sizeof(text), "/sys/class/net/%s/duplex", i->ifa_name))
                set_text(one, "duplex", text);
        }
        if (!i->ifa_addr ||
            (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
            continue;
        netaddr_from_sockaddr(&a, i->ifa_addr);
        json_array_append_new(json_object_get(one, "addresses"), json_string(netaddr_ip(&a, ip)));
    }
    freeifaddrs(list);
    return all;
}

/* InfiniBand and RoCE: {"mlx5_0:1": "ACTIVE"}. */
static json_t *rdma_ports(const struct place *p)
{
    json_t *all = json_object();
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/sys/class/infiniband", p->root);
    DIR *d = opendir(dir);
    const struct dirent *e;
    while (d && (e = readdir(d))) {
        for (int port = 1; *e->d_name != '.' && port < 5; port++) {
            char text[64], name[300];
            if (!read_line(p, text, sizeof(text), "/sys/class/infiniband/%s/ports/%d/state",
                           e->d_name, port))
                break;
            const char *word = strchr(text, ' '); /* "4: ACTIVE" */
            snprintf(name, sizeof(name), "%s:%d", e->d_name, port);
            set_text(all, name, word ? word + 1 : text);
        }
    }
    if (d)
        closedir(d);
    return all;
}

/* ------------------------------------------------------------------------------- programs,
 * libraries */

/* Variables that have to be alike on all nodes; where interfaces are called differently, their
 * names may differ. */
static json_t *variables(char *const env[])
{
    static const char *const prefixes[] = {
        "NCCL_", "GLOO_",        "UCX_",       "TORCH_",         "DLCOLL_", "FI_",   "OMP_",
        "MKL_",  "CUDA_LAUNCH_", "PYTHONPATH", "PYTHONHASHSEED", "TP_",     "CUBLAS"};
    json_t *j = json_object();
    for (; *env; env++) {
        for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
            size_t len = strcspn(*env, "=");
            if (strncmp(*env, prefixes[i], strlen(prefixes[i])) != 0 || !(*env)[len])
                continue;
            char *name = xstrndup(*env, len);
            set_text(j, name, *env + len + 1);
            free(name);
        }
    }
    return j;
}

/* runs: the kernel is to execute the file; else an interpreter reads it. */
static json_t *program(const char *path, bool runs, char *const env[])
{
    json_t *j = json_object();
    struct stat st;
    char lacks[512];
    set_text(j, "path", path);
    if (runs && program_lacks(path, env, run_command, lacks, sizeof(lacks)))
        set_text(j, "lacks", lacks);
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return j;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    unsigned char *block = xmalloc(1 << 16);
    size_t n = 0;
    for (ssize_t k; n < HASHED_BYTES && (k = read(fd, block, 1 << 16)) > 0; n += (size_t)k) {
        for (ssize_t i = 0; i < k; i++)
            hash = (hash ^ block[i]) * UINT64_C(0x100000001b3);
    }
    free(block);
    char text[32];
    snprintf(text, sizeof(text), "%016llx", (unsigned long long)hash);
    set_number(j, "bytes", (double)st.st_size);
    set_text(j, "content", text);
    return j;
}

/* The version of libdlcoll as the workers would load it. */
static void dlcoll_of(json_t *versions)
{
    char path[600] = "";
    ssize_t n = readlink("/proc/self/exe", path, 500);
    char *slash = n > 0 ? strrchr(path, '/') : NULL;
    void *lib = NULL;
    static const char *const places[] = {"/libdlcoll.so.0", "/../lib/libdlcoll.so.0"};
    for (size_t i = 0; slash && !lib && i < ARRAY_LEN(places); i++) {
        strcpy(slash, places[i]);
        lib = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    }
    lib = lib ? lib : dlopen("libdlcoll.so.0", RTLD_LAZY | RTLD_LOCAL);
    const char *(*version)(void) = lib ? (const char *(*)(void))dlsym(lib, "dlcoll_version") : NULL;
    if (version)
        set_text(versions, "libdlcoll", version());
}

#define ASK_PYTHON                                                                             \
    "import json,sys\n"                                                                        \
    "import importlib.metadata as m\n"                                                         \
    "v={'Python':'.'.join(map(str,sys.version_info[:3]))}\n"                                   \
    "for n,k in (('torch','PyTorch'),('nvidia-nccl-cu11','NCCL'),('nvidia-nccl-cu12','NCCL')," \
    "('nvidia-nccl-cu13','NCCL'),('numpy','numpy')):\n"                                        \
    " try: v[k]=m.version(n)\n"                                                                \
    " except Exception: pass\n"                                                                \
    "print(json.dumps(v))\n"

static void python_of(json_t *facts, json_t *versions, const char *python, char *const env[])
{
    char out[4096];
    char *const argv[] = {(char *)python, (char *)"-c", (char *)ASK_PYTHON, NULL};
    int status = run_command(argv, env, FACTS_MS - 1000, out, sizeof(out));
    const char *line = strrchr(out, '{');
    json_t *j = status == 0 && line ? json_loads(line, 0, NULL) : NULL;
    if (j)
        json_object_update(versions, j);
    else if (status == -1)
        json_object_set_new(facts, "python_error",
                            json_pack("{s:s,s:s}", "path", python, "error", "it does not answer"));
    else
        json_object_set_new(facts, "python_error",
                            json_pack("{s:s,s:o}", "path", python, "error", json_of_text(out)));
    json_decref(j);
}

static json_t *versions_of(json_t *facts, const json_t *question, char *const env[])
{
    json_t *j = json_object();
    const char *python = text_of(question, "python");
    set_text(j, "dlaunch", DLAUNCH_VERSION);
    dlcoll_of(j);
    if (*python)
        python_of(facts, j, python, env);
    return j;
}

/* The contract of NVIDIA's resiliency extension: status 0 and no failed check is healthy. What is
 * not JSON says nothing. */
static json_t *node_check(const char *command, int ms, char *const env[])
{
    static char out[65536];
    json_t *j = json_object(), *answer = NULL;
    char *const argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)command, NULL};
    int status = run_command(argv, env, ms, out, sizeof(out));
    set_text(j, "command", command);
    if (status == -1)
        set_text(j, "error", "it was not done in time");
    else if (status == -2)
        set_text(j, "error", "it could not be started");
    else if (WIFSIGNALED(status))
        json_object_set_new(j, "signal", json_integer(WTERMSIG(status)));
    else
        json_object_set_new(j, "status", json_integer(WEXITSTATUS(status)));
    for (const char *p = strchr(out, '{'); p && !answer; p = strchr(p + 1, '{'))
        answer = json_loads(p, JSON_DISABLE_EOF_CHECK, NULL);
    if (answer)
        json_object_set_new(j, "answer", answer);
    char *last = out + strlen(out);
    while (last > out && (last[-1] == '\n' || last[-1] == ' '))
        *--last = '\0';
    last = strrchr(out, '\n');
    set_text(j, "output", last ? last + 1 : out);
    return j;
}

/* --------------------------------------------------------------------------------------- all of it
 */

json_t *facts_question(const struct job_spec *job, bool brief)
{
    const struct rdzv_config *c = &job->rdzv;
    const char *tmp = getenv("TMPDIR");
    json_t *j = json_pack("{s:i,s:i,s:b,s:b,s:s}", "nproc", job->nproc, "nodes", c->max_nodes,
                          "gpus", job->gpus && job->gpu_check != GPU_CHECK_OFF, "brief", brief,
                          "tmp", tmp && *tmp ? tmp : "/tmp");
    set_text(j, "host", job->host);
    if (c->endpoint_host && *c->endpoint_host && !brief)
        set_text(j, "meet", c->endpoint_host);
    if (job->log_dir && strcmp(job->log_dir, "/dev/null") != 0)
        set_text(j, "log_dir", job->log_dir);
    if (job->doctor.program && !brief)
        set_text(j, "program", job->doctor.program);
    if (job->doctor.program_error)
        set_text(j, "program_error", job->doctor.program_error);
    if (job->doctor.python && !brief)
        set_text(j, "python", job->doctor.python);
    if (job->doctor.node_check) {
        set_text(j, "node_check", job->doctor.node_check);
        json_object_set_new(j, "node_check_ms",
                            json_integer((json_int_t)(job->doctor.node_check_timeout * 1e3)));
    }
    json_t *env = json_array();
    for (char **e = job->env; e && *e; e++)
        json_array_append_new(env, json_of_text(*e));
    json_object_set_new(j, "env", env);
    return j;
}

static void copy(json_t *to, const json_t *from, const char *key)
{
    json_t *v = json_object_get(from, key);
    if (v)
        json_object_set(to, key, v);
}

json_t *facts_collect(const json_t *question)
{
    struct place p;
    static const char *const given[] = {"host", "nproc", "nodes", "gpus", "program_error"};
    json_t *facts = json_object();
    char **env = job_environment(question);
    const char *path;
    bool brief = json_is_true(json_object_get(question, "brief"));
    bool several = json_integer_value(json_object_get(question, "nodes")) > 1;
    snprintf(p.root, sizeof(p.root), "%s", text_of(question, "root"));
    for (size_t i = 0; i < ARRAY_LEN(given); i++)
        copy(facts, question, given[i]);
    json_object_set_new(facts, "limits", limits());
    set_number(facts, "own_threads", own_threads());
    json_object_set_new(facts, "cgroup", cgroup(&p));
    json_object_set_new(facts, "memory", memory(&p));
    json_object_set_new(facts, "shm", folder("/dev/shm"));
    json_object_set_new(facts, "tmp", folder(text_of(question, "tmp")));
    if (*(path = text_of(question, "log_dir")))
        json_object_set_new(facts, "log_dir", folder(path));
    kernel_limits(&p, facts);
    json_object_set_new(facts, "interfaces", interfaces(&p));
    json_object_set_new(facts, "rdma", rdma_ports(&p));
    json_object_set_new(facts, "variables", variables(env));
    json_object_set_new(facts, "cpus", json_integer(usable_cpus()));
    if (several) {
        char host[HOST_MAX];
        if (gethostname(host, sizeof(host) - 1) == 0)
            json_object_set_new(facts, "hostname", resolve(host));
    }
    if (*(path = text_of(question, "meet")))
        json_object_set_new(facts, "meet", resolve(path));
    json_t *versions = brief ? NULL : versions_of(facts, question, env);
    json_t *gpus = facts_gpu(p.root, json_is_true(json_object_get(question, "gpus")), versions);
    if (gpus)
        json_object_set_new(facts, "gpu", gpus);
    if (versions)
        json_object_set_new(facts, "versions", versions);
    if (*(path = text_of(question, "program")))
        json_object_set_new(facts, "program",
                            program(path, !json_object_get(question, "python"), env));
    if (*(path = text_of(question, "node_check")))
        json_object_set_new(
            facts, "node_check",
            node_check(path, (int)json_integer_value(json_object_get(question, "node_check_ms")),
                       env));
    free(env);
    return facts;
}

int facts_main(int argc, char **argv)
{
    json_t *question = argc > 1 ? json_loads(argv[1], 0, NULL) : NULL;
    if (!question)
        return 2;
    json_t *facts = facts_collect(question);
    char *text = json_dumps(facts, JSON_COMPACT);
    int rc = text ? fd_write_all(STDOUT_FILENO, text, strlen(text)) : -1;
    free(text);
    json_decref(facts);
    json_decref(question);
    return rc < 0;
}
