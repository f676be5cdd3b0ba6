/* kill_trials: kill -9 at random moments, and what is left afterwards.
 *
 *     kill_trials BUILD [TRIALS] [NODES] [SEED]        exit status 77: no namespaces to be had here
 *
 * Every trial starts NODES launchers with 4 workers in all. Each worker ignores SIGTERM and has a
 * child, a child in a session of its own and a double-forked daemon. One process is killed: a
 * worker, a guardian (the launcher that the user started), an agent, or one of a worker's
 * descendants; half of the time within 12 ms of the start, else when all are up. Then:
 *
 *   worker       every launcher exits with 137, and every report names that process as the first
 *   agent        its launcher exits with 137 and says so; the others name the node that was lost
 *   guardian     its agent ends all and says so; the others name the node that was lost
 *   descendant   nothing happens; told to go on, every worker exits with 0, and so does the job
 *
 * All this runs in PID, network, mount and IPC namespaces of its own, so that what is left can be
 * counted without doubt: every process, every file under /dev/shm, every socket there is. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <linux/futex.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/cgroup.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"

#define SKIP        77
#define WORKERS     4
#define NODES_MAX   4
#define EARLY_MS    12  /* a trial's first half */
#define LATE_MS     3   /* after all are up */
#define WAIT_S      30  /* for anything that is to happen */
#define CLEAN_S     10  /* for everything to be gone */
#define JOIN_S      "3" /* a node that waits for one that was killed on the way gives up */
#define TOLD_MAX    5   /* failed trials told at length */
#define TOLD_LENGTH 3000

enum victim { WORKER, GUARDIAN, AGENT, DESCENDANT, VICTIMS };
static const char *const victim_name[VICTIMS] = {"worker", "guardian", "agent", "descendant"};

enum { SELF, CHILD, SETSID_CHILD, DAEMON, KINDS };

/* Shared with the workers. */
struct control {
    _Atomic pid_t pids[WORKERS][KINDS];
    atomic_uint go;
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "kill_trials: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void nap_us(long us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* ----------------------------------------------------------------------------------- the worker */

static _Noreturn void pause_for_ever(void)
{
    for (;;)
        pause();
}

static struct control *map_control(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct control *c =
        fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (c == MAP_FAILED)
        die(path);
    close(fd);
    return c;
}

static int be_worker(const char *path)
{
    struct control *c = map_control(path);
    int rank = atoi(getenv("RANK"));
    _Atomic pid_t *mine = c->pids[rank];
    signal(SIGTERM, SIG_IGN);
    mine[SELF] = getpid();
    for (int kind = CHILD; kind < KINDS; kind++) {
        if (fork() != 0)
            continue;
        if (kind != CHILD)
            setsid();
        if (kind == DAEMON && fork() != 0)
            _exit(0);
        mine[kind] = getpid();
        pause_for_ever();
    }
    while (!c->go)
        syscall(SYS_futex, &c->go, FUTEX_WAIT, 0, NULL, NULL, 0);
    return 0;
}

/* ------------------------------------------------------------------------------------ the place */

static void write_text(const char *path, const char *text)
{
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0)
        fd_write_all(fd, text, strlen(text));
}

/* Namespaces; without root, in a user namespace of one user. False: not to be had. */
static bool unshare_all(void)
{
    int flags = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC;
    char map[64];
    unsigned uid = getuid(), gid = getgid();
    if (unshare(flags) == 0)
        return true;
    if (unshare(flags | CLONE_NEWUSER) < 0)
        return false;
    write_text("/proc/self/setgroups", "deny");
    snprintf(map, sizeof(map), "0 %u 1", uid);
    write_text("/proc/self/uid_map", map);
    snprintf(map, sizeof(map), "0 %u 1", gid);
    write_text("/proc/self/gid_map", map);
    return true;
}

/* Runs in the first process of the namespaces. */
static bool furnish(void)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    _cleanup_fd_ int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("proc", "/proc", "proc", 0, NULL) == 0 &&
           mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL) == 0 && ioctl(s, SIOCSIFFLAGS, &lo) == 0;
}

/* -------------------------------------------------------------------------------- what is there */

static int count_entries(const char *path, bool (*wanted)(const char *name))
{
    int n = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
             (!wanted || wanted(e->d_name));
    if (d)
        closedir(d);
    return n;
}

/* Another than this one. */
static bool is_process(const char *name)
{
    return name[0] >= '1' && name[0] <= '9' && atoi(name) != getpid();
}

static bool is_cgroup(const char *name)
{
    return strncmp(name, "dlaunch.", 8) == 0;
}

/* Not what dlaunchctl tells of a job that has ended, for a day. */
static bool is_leftover(const char *name)
{
    const char *dot = strrchr(name, '.');
    return !dot || strcmp(dot, ".ended") != 0;
}

/* Lines but the first; of TCP only those that are more than a memory (TIME_WAIT). */
static int count_sockets(void)
{
    static const char *const files[] = {"unix", "tcp", "tcp6", "udp", "udp6"};
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        char path[64], line[512];
        unsigned state;
        snprintf(path, sizeof(path), "/proc/net/%s", files[i]);
        FILE *f = fopen(path, "re");
        if (!f || !fgets(line, sizeof(line), f))
            die(path);
        while (fgets(line, sizeof(line), f))
            n += files[i][0] != 't' || sscanf(line, "%*s %*s %*s %x", &state) != 1 || state != 6;
        fclose(f);
    }
    return n;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static void remove_tree(const char *path)
{
    if (nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        die(path);
}

struct leftovers {
    int processes, shm, sockets, named, temporary, cgroups;
};

static char dir[128]; /* of this run */
static char own_cgroup[512];

static struct leftovers look(void)
{
    char sockets[160], temporary[160];
    snprintf(sockets, sizeof(sockets), "%s/run/dlaunch", dir);
    snprintf(temporary, sizeof(temporary), "%s/tmp", dir);
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
    return (struct leftovers){
        .processes = count_entries("/proc", is_process),
        .shm = count_entries("/dev/shm", NULL),
        .sockets = count_sockets(),
        .named = count_entries(sockets, is_leftover),
        .temporary = count_entries(temporary, NULL),
        .cgroups = own_cgroup[0] ? count_entries(own_cgroup, is_cgroup) : 0,
    };
}

static bool is_clean(const struct leftovers *l)
{
    return !l->processes && !l->shm && !l->sockets && !l->named;
}

/* ------------------------------------------------------------------------------------ one trial */

struct node {
    pid_t pid; /* the launcher; 0: has been waited for */
    int status;
};

struct trial {
    int number, nnodes;
    enum victim victim;
    bool early;
    int node;   /* whose guardian or agent it is */
    pid_t pid;  /* of what was killed */
    bool agent; /* the guardian's agent was there already */
    struct node nodes[NODES_MAX];
    struct control *control;
    const char *wrong; /* what was not as it should be */
    double end_ms, clean_ms;
    struct leftovers left;
};

static const char *build;

static char *path_of(char out[160], const char *what, int node)
{
    snprintf(out, 160, "%s/%s.%d", dir, what, node);
    return out;
}

static void start(struct trial *t, int node)
{
    char path[160], program[512], self[512], err[160], report[160], rank[16], count[16], port[16],
        per_node[16];
    char *argv[] = {program,
                    "--nnodes",
                    count,
                    "--node_rank",
                    rank,
                    "--master_port",
                    port,
                    "--nproc_per_node",
                    per_node,
                    "--shutdown_timeout",
                    "0.02",
                    "--rdzv_conf",
                    t->nnodes > 1 ? "join_timeout=" JOIN_S : "join_timeout=30",
                    "--report",
                    report,
                    self,
                    "worker",
                    path,
                    NULL};
    snprintf(program, sizeof(program), "%s/dlaunch", build);
    snprintf(self, sizeof(self), "%s/tests/trials/kill_trials", build);
    snprintf(rank, sizeof(rank), "%d", node);
    snprintf(count, sizeof(count), "%d", t->nnodes);
    snprintf(port, sizeof(port), "%d", 20000 + t->number % 20000);
    snprintf(per_node, sizeof(per_node), "%d", WORKERS / t->nnodes);
    snprintf(path, sizeof(path), "%s/control", dir);
    unlink(path_of(report, "report", node));
    int fd = open(path_of(err, "err", node), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    pid_t pid = fd < 0 ? -1 : fork();
    if (pid < 0)
        die(err);
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        dup2(fd, 2);
        execv(program, argv);
        die(program);
    }
    close(fd);
    t->nodes[node].pid = pid;
}

/* The children of a process, from /proc; 0 when it is gone. */
static int children_of(pid_t pid, pid_t *out, int max)
{
    char path[64], text[8192], *at = text, *end;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
    if (fd_read_file(AT_FDCWD, path, text, sizeof(text)) <= 0)
        return 0;
    int n = 0;
    for (long c; n < max && (c = strtol(at, &end, 10)) > 0 && end != at; at = end)
        out[n++] = (pid_t)c;
    return n;
}

static pid_t agent_of(const struct trial *t, int node)
{
    pid_t agent;
    return children_of(t->nodes[node].pid, &agent, 1) == 1 ? agent : 0;
}

static bool all_up(const struct trial *t)
{
    for (int r = 0; r < WORKERS; r++) {
        for (int k = 0; k < KINDS; k++) {
            if (!t->control->pids[r][k])
                return false;
        }
    }
    return true;
}

/* A worker of the node: each leads a process group of its own; daemons do not. */
static pid_t some_worker(const struct trial *t)
{
    pid_t children[64], agent = agent_of(t, t->node);
    int n = agent ? children_of(agent, children, (int)ARRAY_LEN(children)) : 0, workers = 0;
    for (int i = 0; i < n; i++) {
        if (getpgid(children[i]) == children[i])
            children[workers++] = children[i];
    }
    return workers ? children[random() % workers] : 0;
}

static pid_t find_victim(struct trial *t)
{
    switch (t->victim) {
    case WORKER:
        return some_worker(t);
    case GUARDIAN:
        t->agent = agent_of(t, t->node) != 0;
        return t->nodes[t->node].pid;
    case AGENT:
        return agent_of(t, t->node);
    default:
        return t->control->pids[random() % WORKERS][1 + random() % (KINDS - 1)];
    }
}

static bool reap_launchers(struct trial *t)
{
    bool any = false;
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        for (int i = 0; i < t->nnodes; i++) {
            if (t->nodes[i].pid == pid)
                t->nodes[i] = (struct node){0, status};
        }
    }
    for (int i = 0; i < t->nnodes; i++)
        any |= t->nodes[i].pid != 0;
    return !any;
}

static uint64_t after_s(double s)
{
    return mono_ns() + (uint64_t)(s * 1e9);
}

/* Ends and removes all that this trial has left. */
static void clear_up(void)
{
    char path[160];
    kill(-1, SIGKILL); /* we are the first process of a PID namespace: all but us */
    uint64_t end = after_s(CLEAN_S);
    while ((waitpid(-1, NULL, WNOHANG) >= 0 || errno != ECHILD) && mono_ns() < end)
        nap_us(500);
    snprintf(path, sizeof(path), "%s/run/dlaunch", dir);
    remove_tree(path);
    snprintf(path, sizeof(path), "%s/tmp", dir);
    remove_tree(path);
    mkdir(path, 0700);
}

static void run(struct trial *t)
{
    uint64_t end = after_s(WAIT_S);
    memset(t->control, 0, sizeof(*t->control));
    for (int i = 0; i < t->nnodes; i++)
        start(t, i);
    if (t->early) {
        nap_us(random() % (EARLY_MS * 1000));
    } else {
        while (!all_up(t) && mono_ns() < end && !reap_launchers(t))
            nap_us(200);
        nap_us(random() % (LATE_MS * 1000));
    }
    while (!(t->pid = find_victim(t)) && mono_ns() < end && !reap_launchers(t))
        nap_us(50);
    if (!t->pid || kill(t->pid, SIGKILL) < 0) {
        t->wrong = "what was to be killed was not there";
        t->left = look();
        return;
    }
    uint64_t killed = mono_ns();
    if (t->victim == DESCENDANT) {
        nap_us(random() % 1000);
        t->control->go = 1;
        syscall(SYS_futex, &t->control->go, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
    while (!reap_launchers(t)) {
        if (mono_ns() > end) {
            t->wrong = "a launcher hangs";
            t->left = look();
            return;
        }
        nap_us(200);
    }
    uint64_t ended = mono_ns();
    t->end_ms = (double)(ended - killed) * 1e-6;
    /* A launcher that has exited has left no process. One that was killed has an agent that sees to
     * that. */
    t->left = look();
    if (t->left.processes && t->victim != GUARDIAN)
        t->wrong = "processes were left when the launchers had exited";
    end = after_s(CLEAN_S);
    while (!is_clean(&t->left) && mono_ns() < end) {
        nap_us(500);
        t->left = look();
    }
    t->clean_ms = (double)(mono_ns() - killed) * 1e-6;
    if (!is_clean(&t->left))
        t->wrong = "not everything is gone";
}

/* ----------------------------------------------------------------------------------- the report */

static char *text_of(const char *path)
{
    static char text[1 << 16];
    ssize_t n = fd_read_file(AT_FDCWD, path, text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = '\0';
    char *to = text; /* the report is wrapped: one blank for any white space */
    for (const char *at = text; *at; at++) {
        if (!isspace((unsigned char)*at))
            *to++ = *at;
        else if (to > text && to[-1] != ' ')
            *to++ = ' ';
    }
    *to = '\0';
    return text;
}

static int exit_status(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The pid of the first failure in a node's report; 0: there is none; -1: no report. */
static int first_pid(int node)
{
    char path[160];
    json_t *j = json_load_file(path_of(path, "report", node), 0, NULL);
    json_t *first = json_object_get(j, "first_failure");
    int pid = !j ? -1 : (int)json_integer_value(json_object_get(first, "pid"));
    json_decref(j);
    return pid;
}

/* A node other than the one whose launcher was hit: whether it names that as the cause. */
static bool names_the_lost_node(const struct trial *t, int node)
{
    char path[160];
    const char *said = text_of(path_of(path, "err", node));
    if (exit_status(t->nodes[node].status) == 0)
        return false;
    if (t->node == 0) /* it had the coordinator */
        return strstr(said, "the coordinator at ") || strstr(said, "no coordinator at ");
    return (strstr(said, "node ") && strstr(said, " was lost")) ||
           strstr(said, "missing: node_rank");
}

static const char *fault_of(const struct trial *t)
{
    char path[160], line[160];
    for (int i = 0; i < t->nnodes; i++) {
        int status = exit_status(t->nodes[i].status);
        const char *said = text_of(path_of(path, "err", i));
        switch (t->victim) {
        case WORKER:
            if (status != 137)
                return "exit status is not 137";
            if (first_pid(i) != t->pid)
                return "the report does not name the worker that was killed";
            break;
        case DESCENDANT:
            if (status != 0 || first_pid(i) != 0)
                return "a job whose workers all exit with 0 has failed";
            break;
        default:
            if (i != t->node) {
                if (!names_the_lost_node(t, i))
                    return "a surviving launcher does not name the lost node";
                break;
            }
            if (status != 137)
                return "exit status is not 137";
            snprintf(line, sizeof(line), "the agent (pid %d) was killed by SIGKILL", (int)t->pid);
            if (t->victim == AGENT && !strstr(said, line))
                return "the guardian does not say that the agent was killed";
            if (t->agent && !strstr(said, "the guardian process was killed"))
                return "the agent does not say that the guardian was killed";
        }
    }
    return NULL;
}

static void tell(const struct trial *t)
{
    char path[160];
    const struct leftovers *l = &t->left;
    printf("trial %d, %s %d of node %d killed %s: %s\n"
           "  left: %d processes, %d files in /dev/shm, %d sockets, %d named ones\n",
           t->number, victim_name[t->victim], (int)t->pid, t->node,
           t->early ? "on the way" : "when all were up", t->wrong, l->processes, l->shm, l->sockets,
           l->named);
    for (int i = 0; i < t->nnodes; i++)
        printf("  launcher %d, status %x, said:\n%.*s\n", i, t->nodes[i].status, TOLD_LENGTH,
               text_of(path_of(path, "err", i)));
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median and largest of n values; sorts them. */
static void two_of(double *v, int n, double out[2])
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    out[0] = n ? v[n / 2] : 0;
    out[1] = n ? v[n - 1] : 0;
}

struct sums {
    int trials, wrong, processes, shm, sockets, temporary, cgroups;
    double *end_ms, *clean_ms;
};

static void add_up(struct sums *s, const struct trial *t)
{
    s->end_ms[s->trials] = t->end_ms;
    s->clean_ms[s->trials++] = t->clean_ms;
    s->wrong += t->wrong != NULL;
    s->processes += t->left.processes;
    s->shm += t->left.shm;
    s->sockets += t->left.sockets + t->left.named;
    s->temporary += t->left.temporary;
    s->cgroups += t->left.cgroups;
}

static int print_sums(struct sums *sums, int nnodes)
{
    struct sums all = {0};
    printf("kill -9 with %d launcher%s, %d workers and %d descendants of theirs; in ms, median and "
           "longest\n%-12s %7s %7s %10s %6s %8s %18s %18s\n",
           nnodes, nnodes > 1 ? "s" : "", WORKERS, WORKERS * (KINDS - 1), "killed", "trials",
           "wrong", "processes", "files", "sockets", "launchers ended", "all gone");
    for (int v = 0; v < VICTIMS; v++) {
        struct sums *s = &sums[v];
        double end[2], clean[2];
        two_of(s->end_ms, s->trials, end);
        two_of(s->clean_ms, s->trials, clean);
        printf("%-12s %7d %7d %10d %6d %8d %9.1f %8.1f %9.1f %8.1f\n", victim_name[v], s->trials,
               s->wrong, s->processes, s->shm, s->sockets, end[0], end[1], clean[0], clean[1]);
        all.trials += s->trials;
        all.wrong += s->wrong;
        all.processes += s->processes;
        all.shm += s->shm;
        all.sockets += s->sockets;
        all.temporary += s->temporary;
        all.cgroups += s->cgroups;
    }
    if (all.temporary || all.cgroups)
        printf("also left: %d temporary directories, %d empty cgroups\n", all.temporary,
               all.cgroups);
    printf("bar: nothing left and the right first cause, %d launcher%s: %d processes, %d files in "
           "/dev/shm, %d sockets, %d wrong in %d trials (%s)\n",
           nnodes, nnodes > 1 ? "s" : "", all.processes, all.shm, all.sockets, all.wrong,
           all.trials, all.wrong ? "missed" : "met");
    return all.wrong ? 1 : 0;
}

/* --------------------------------------------------------------------------------------- trials */

static int run_trials(int trials, int nnodes)
{
    struct sums sums[VICTIMS] = {0};
    char path[160];
    int told = 0;
    for (int v = 0; v < VICTIMS; v++) {
        sums[v].end_ms = xcalloc((size_t)trials, sizeof(double));
        sums[v].clean_ms = xcalloc((size_t)trials, sizeof(double));
    }
    snprintf(path, sizeof(path), "%s/control", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct control)) < 0)
        die(path);
    close(fd);
    struct control *control = map_control(path);
    for (int i = 0; i < trials; i++) {
        struct trial t = {.number = i,
                          .nnodes = nnodes,
                          .victim = (enum victim)(random() % VICTIMS),
                          .early = random() % 2,
                          .node = (int)(random() % nnodes),
                          .control = control};
        run(&t);
        if (!t.wrong)
            t.wrong = fault_of(&t);
        if (t.wrong && told++ < TOLD_MAX)
            tell(&t);
        add_up(&sums[t.victim], &t);
        clear_up();
        if (isatty(STDERR_FILENO) && i % 50 == 49)
            fprintf(stderr, "\r%d of %d ", i + 1, trials);
    }
    int status = print_sums(sums, nnodes);
    for (int v = 0; v < VICTIMS; v++) {
        free(sums[v].end_ms);
        free(sums[v].clean_ms);
    }
    munmap(control, sizeof(*control));
    return status;
}

/* A cgroup of our own, where one can be had: what launchers leave in there is theirs. */
static void enter_cgroup(void)
{
    char procs[600];
    char parent[400];
    if (!cgroup_own(NULL, parent, sizeof(parent), NULL))
        return;
    snprintf(own_cgroup, sizeof(own_cgroup), "%s/kill_trials.%d", parent, (int)getpid());
    snprintf(procs, sizeof(procs), "%s/cgroup.procs", own_cgroup);
    if (mkdir(own_cgroup, 0755) < 0)
        own_cgroup[0] = '\0';
    else
        write_text(procs, "0");
}

static void leave_cgroup(void)
{
    char procs[600];
    if (!own_cgroup[0])
        return;
    snprintf(procs, sizeof(procs), "%.*s/cgroup.procs",
             (int)(strrchr(own_cgroup, '/') - own_cgroup), own_cgroup);
    write_text(procs, "0");
    rmdir(own_cgroup);
}

static int in_namespaces(int trials, int nnodes)
{
    char path[160];
    if (!furnish()) {
        printf("SKIPPED: kill trials: cannot mount or set up lo in namespaces: %s\n",
               strerror(errno));
        return SKIP;
    }
    setenv("OMP_NUM_THREADS", "1", 1);
    snprintf(path, sizeof(path), "%s/run", dir);
    mkdir(path, 0700);
    setenv("XDG_RUNTIME_DIR", path, 1);
    snprintf(path, sizeof(path), "%s/tmp", dir);
    mkdir(path, 0700);
    setenv("TMPDIR", path, 1);
    return run_trials(trials, nnodes);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "worker") == 0)
        return be_worker(argv[2]);
    int trials = argc > 2 ? atoi(argv[2]) : 3000, nnodes = argc > 3 ? atoi(argv[3]) : 1;
    unsigned seed = argc > 4 ? (unsigned)atoi(argv[4]) : (unsigned)mono_ns();
    if (argc < 2 || trials < 1 || nnodes < 1 || nnodes > NODES_MAX || WORKERS % nnodes) {
        fprintf(stderr, "usage: kill_trials BUILD [TRIALS] [NODES: 1, 2 or 4] [SEED]\n");
        return 2;
    }
    build = realpath(argv[1], NULL);
    snprintf(dir, sizeof(dir), "/tmp/kill_trials.XXXXXX");
    if (!build || !mkdtemp(dir))
        die(argv[1]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    srandom(seed);
    printf("seed %u\n", seed);
    fflush(stdout);
    enter_cgroup();
    int status = SKIP;
    if (!unshare_all()) {
        printf("SKIPPED: kill trials: no namespaces: %s\n", strerror(errno));
    } else {
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            exit(in_namespaces(trials, nnodes));
        }
        if (pid < 0 || waitpid(pid, &status, 0) < 0)
            die("fork");
        status = exit_status(status);
    }
    leave_cgroup();
    remove_tree(dir);
    fflush(NULL);
    _exit(status); /* a leak checker would fork, and in our PID namespace nobody can any more */
}
