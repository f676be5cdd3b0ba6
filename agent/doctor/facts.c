#include "agent/doctor/facts.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <math.h>
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
#include "agent/doctor/fact.h"
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

/* The number behind a word in a file of lines such as "MemTotal:  1024 kB"; NAN: none. */
static double number_behind(const struct place *p, const char *path, const char *word)
{
    char full[1024], line[256];
    double n = NAN;
    snprintf(full, sizeof(full), "%s%s", p->root, path);
    FILE *f = fopen(full, "re");
    size_t len = strlen(word);
    while (f && isnan(n) && fgets(line, sizeof(line), f)) {
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
        return NAN;
    rlim_t n = soft ? r.rlim_cur : r.rlim_max;
    return n == RLIM_INFINITY ? NAN : (double)n;
}

static void find_limits(struct node_facts *f)
{
    f->limits.nofile = limit_of(RLIMIT_NOFILE, false);
    f->limits.memlock_bytes = limit_of(RLIMIT_MEMLOCK, true);
    if (geteuid() != 0) /* of root's processes any number is allowed */
        f->limits.nproc = limit_of(RLIMIT_NPROC, true);
    f->limits.file_bytes = limit_of(RLIMIT_FSIZE, true);
    f->limits.address_space_bytes = limit_of(RLIMIT_AS, true);
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

static void look_at_folder(struct folder_facts *f, const char *path)
{
    struct statvfs s;
    f->path = xstrdup(path);
    if (statvfs(path, &s) < 0) {
        f->error = xstrdup(strerror(errno));
        return;
    }
    f->bytes = (double)s.f_blocks * (double)s.f_frsize;
    f->free_bytes = (double)s.f_bavail * (double)s.f_frsize;
    if (s.f_files)
        f->free_files = (double)s.f_favail;
    if (access(path, W_OK | X_OK) < 0)
        f->error = xstrdup(strerror(errno));
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
static void cgroup_room(const struct place *p, double *limit, double *room, const char *controller,
                        const char *max, const char *used, const char *soft)
{
    char dir[512] = "", text[64];
    if (!cgroup_folder(p, controller, dir))
        return;
    for (size_t top = strlen("/sys/fs/cgroup"); strlen(dir) >= top;) {
        double n, now;
        char stat_path[600];
        snprintf(stat_path, sizeof(stat_path), "%s/memory.stat", dir);
        if (read_line(p, text, sizeof(text), "%s/%s", dir, max) && *text >= '0' && *text <= '9' &&
            (n = strtod(text, NULL)) < 1e18) {
            now = soft ? number_behind(p, stat_path, soft) : NAN;
            if (isnan(now))
                now = read_line(p, text, sizeof(text), "%s/%s", dir, used) ? strtod(text, NULL) : 0;
            if (isnan(*room) || n - now < *room) {
                *room = n > now ? n - now : 0;
                *limit = n;
            }
        }
        char *slash = strrchr(dir, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
}

static void find_memory(const struct place *p, struct node_facts *f)
{
    double *limit = &f->cgroup.memory.limit, *room = &f->cgroup.memory.free;
    cgroup_room(p, &f->cgroup.pids.limit, &f->cgroup.pids.free, "pids", "pids.max", "pids.current",
                NULL);
    cgroup_room(p, limit, room, "memory", "memory.max", "memory.current", "anon");
    if (isnan(*limit))
        cgroup_room(p, limit, room, "memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                    "total_rss");
    f->memory.bytes = number_behind(p, "/proc/meminfo", "MemTotal") * 1024;
    f->memory.available_bytes = number_behind(p, "/proc/meminfo", "MemAvailable") * 1024;
}

/* Threads that the kernel still allows, and ports for outgoing connections. */
static void find_kernel_limits(const struct place *p, struct node_facts *f)
{
    char threads[64], pids[64], load[128], ports[64];
    int low, high, all = 0;
    if (read_line(p, load, sizeof(load), "/proc/loadavg"))
        sscanf(load, "%*s %*s %*s %*d/%d", &all);
    if (read_line(p, threads, sizeof(threads), "/proc/sys/kernel/threads-max") &&
        read_line(p, pids, sizeof(pids), "/proc/sys/kernel/pid_max")) {
        double a = strtod(threads, NULL), b = strtod(pids, NULL);
        f->threads_left = (a < b ? a : b) - all;
    }
    if (read_line(p, ports, sizeof(ports), "/proc/sys/net/ipv4/ip_local_port_range") &&
        sscanf(ports, "%d %d", &low, &high) == 2)
        f->ports = high - low + 1;
}

/* ------------------------------------------------------------------------------------------
 * network */

static void resolve(struct name_facts *f, const char *name)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all = NULL;
    f->name = xstrdup(name);
    uint64_t start = mono_ns();
    int rc = getaddrinfo(name, NULL, &hints, &all);
    f->seconds = (double)(mono_ns() - start) / 1e9;
    if (rc)
        f->error = xstrdup(gai_strerror(rc));
    f->loopback = all != NULL;
    for (const struct addrinfo *a = all; a; a = a->ai_next) {
        struct netaddr n;
        char ip[ADDR_STRLEN];
        netaddr_from_sockaddr(&n, a->ai_addr);
        fact_add_text(&f->addresses, netaddr_ip(&n, ip));
        f->loopback = f->loopback && netaddr_is_loopback(&n);
    }
    if (all)
        freeaddrinfo(all);
}

static double mtu_of(const char *name)
{
    struct ifreq r = {0};
    _cleanup_fd_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", name);
    return fd >= 0 && ioctl(fd, SIOCGIFMTU, &r) == 0 ? r.ifr_mtu : NAN;
}

/* The facts about this interface, begun when it comes first. */
static struct interface_facts *facts_of(const struct place *p, struct fact_list *all,
                                        const struct ifaddrs *i)
{
    struct interface_facts *one = all->v;
    char text[64];
    for (size_t k = 0; k < all->n; k++) {
        if (strcmp(one[k].name, i->ifa_name) == 0)
            return &one[k];
    }
    one = fact_add_interface(all, i->ifa_name);
    one->up = (i->ifa_flags & IFF_UP) && (i->ifa_flags & IFF_RUNNING);
    one->mtu = mtu_of(i->ifa_name);
    if (read_line(p, text, sizeof(text), "/sys/class/net/%s/speed", i->ifa_name) &&
        strtod(text, NULL) > 0)
        one->speed_mbit = strtod(text, NULL);
    if (read_line(p, text, sizeof(text), "/sys/class/net/%s/duplex", i->ifa_name))
        one->duplex = xstrdup(text);
    return one;
}

static void find_interfaces(const struct place *p, struct fact_list *all)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) < 0)
        return;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        struct interface_facts *one = facts_of(p, all, i);
        char ip[ADDR_STRLEN];
        struct netaddr a;
        if (!i->ifa_addr ||
            (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
            continue;
        netaddr_from_sockaddr(&a, i->ifa_addr);
        fact_add_text(&one->addresses, netaddr_ip(&a, ip));
    }
    freeifaddrs(list);
}

/* InfiniBand and RoCE: "mlx5_0:1" is "ACTIVE". */
static void find_rdma(const struct place *p, struct fact_list *all)
{
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
            fact_add_word(all, name, word ? word + 1 : text);
        }
    }
    if (d)
        closedir(d);
}

/* ------------------------------------------------------------------------------- programs,
 * libraries */

/* Variables that have to be alike on all nodes; where interfaces are called differently, their
 * names may differ. */
static void find_variables(struct fact_list *all, char *const env[])
{
    static const char *const prefixes[] = {
        "NCCL_", "GLOO_",        "UCX_",       "TORCH_",         "DLCOLL_", "FI_",   "OMP_",
        "MKL_",  "CUDA_LAUNCH_", "PYTHONPATH", "PYTHONHASHSEED", "TP_",     "CUBLAS"};
    for (; *env; env++) {
        for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
            size_t len = strcspn(*env, "=");
            if (strncmp(*env, prefixes[i], strlen(prefixes[i])) != 0 || !(*env)[len])
                continue;
            char *name = xstrndup(*env, len);
            fact_add_word(all, name, *env + len + 1);
            free(name);
        }
    }
}

/* runs: the kernel is to execute the file; else an interpreter reads it. */
static void look_at_program(struct node_facts *f, const char *path, bool runs, char *const env[])
{
    struct stat st;
    char lacks[512];
    f->program.path = xstrdup(path);
    if (runs && program_lacks(path, env, run_command, lacks, sizeof(lacks)))
        f->program.lacks = xstrdup(lacks);
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    unsigned char *block = xmalloc(1 << 16);
    size_t n = 0;
    for (ssize_t k; n < HASHED_BYTES && (k = read(fd, block, 1 << 16)) > 0; n += (size_t)k) {
        for (ssize_t i = 0; i < k; i++)
            hash = (hash ^ block[i]) * UINT64_C(0x100000001b3);
    }
    free(block);
    f->program.bytes = (double)st.st_size;
    f->program.content = xasprintf("%016llx", (unsigned long long)hash);
}

/* The version of libdlcoll as the workers would load it. */
static void find_dlcoll(struct fact_list *versions)
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
        fact_add_word(versions, "libdlcoll", version());
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

static void find_python(struct node_facts *f, const char *python, char *const env[])
{
    char out[4096];
    char *const argv[] = {(char *)python, (char *)"-c", (char *)ASK_PYTHON, NULL};
    int status = run_command(argv, env, FACTS_MS - 1000, out, sizeof(out));
    const char *line = strrchr(out, '{'), *name;
    json_t *j = status == 0 && line ? json_loads(line, 0, NULL) : NULL, *version;
    if (!j) {
        f->python_error.path = xstrdup(python);
        f->python_error.error = xstrdup(status == -1 ? "it does not answer" : out);
    }
    json_object_foreach(j, name, version)
    {
        if (json_is_string(version))
            fact_add_word(&f->versions, name, json_string_value(version));
    }
    json_decref(j);
}

/* The contract of NVIDIA's resiliency extension: status 0 and no failed check is healthy. What is
 * not JSON says nothing. */
static void run_node_check(struct node_facts *f, const char *command, int ms, char *const env[])
{
    static char out[65536];
    char *const argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)command, NULL};
    int status = run_command(argv, env, ms, out, sizeof(out));
    f->node_check.command = xstrdup(command);
    if (status < 0)
        f->node_check.error =
            xstrdup(status == -1 ? "it was not done in time" : "it could not be started");
    else if (WIFSIGNALED(status))
        f->node_check.signal = WTERMSIG(status);
    else
        f->node_check.status = WEXITSTATUS(status);
    for (const char *p = strchr(out, '{'); p && !f->node_check.answer; p = strchr(p + 1, '{'))
        f->node_check.answer = json_loads(p, JSON_DISABLE_EOF_CHECK, NULL);
    char *last = out + strlen(out);
    while (last > out && (last[-1] == '\n' || last[-1] == ' '))
        *--last = '\0';
    last = strrchr(out, '\n');
    f->node_check.output = xstrdup(last ? last + 1 : out);
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

static void find_software(struct node_facts *f, const json_t *question, char *const env[])
{
    const char *python = text_of(question, "python"), *program = text_of(question, "program");
    fact_add_word(&f->versions, "dlaunch", DLAUNCH_VERSION);
    find_dlcoll(&f->versions);
    if (*python)
        find_python(f, python, env);
    if (*program)
        look_at_program(f, program, !*python, env);
}

json_t *facts_collect(const json_t *question)
{
    struct place p;
    struct node_facts f;
    char **env = job_environment(question), host[HOST_MAX];
    const char *text;
    bool brief = json_is_true(json_object_get(question, "brief"));
    node_facts_get(&f, question); /* host, nproc, nodes, gpus, program_error are handed on */
    snprintf(p.root, sizeof(p.root), "%s", text_of(question, "root"));
    find_limits(&f);
    f.own_threads = own_threads();
    find_memory(&p, &f);
    look_at_folder(&f.shm, "/dev/shm");
    look_at_folder(&f.tmp, text_of(question, "tmp"));
    if (*(text = text_of(question, "log_dir")))
        look_at_folder(&f.log_dir, text);
    find_kernel_limits(&p, &f);
    find_interfaces(&p, &f.interfaces);
    find_rdma(&p, &f.rdma);
    find_variables(&f.variables, env);
    f.cpus = usable_cpus();
    if (f.nodes > 1 && gethostname(host, sizeof(host) - 1) == 0)
        resolve(&f.hostname, host);
    if (*(text = text_of(question, "meet")))
        resolve(&f.meet, text);
    if (!brief)
        find_software(&f, question, env);
    facts_gpu(&f, p.root, !brief);
    if (*(text = text_of(question, "node_check")))
        run_node_check(&f, text,
                       (int)json_integer_value(json_object_get(question, "node_check_ms")), env);
    json_t *j = node_facts_json(&f);
    node_facts_fini(&f);
    free(env);
    return j;
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
