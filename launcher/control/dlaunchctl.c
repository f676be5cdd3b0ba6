/* dlaunchctl.c: asks running launchers for their state, and stops them. dlaunchctl(1).
 *
 * It finds them by their control sockets (control_dir.h), so it sees the jobs of this user on this
 * host. Exit status: 0; 1 no such job, or it does not answer; 2 usage. */
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <getopt.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "launcher/control/control_dir.h"
#include "rendezvous/rules/cause.h"

#define ANSWER_SECONDS 3
#define ANSWER_MAX     (16u << 20)
#define JOBS_MAX       1024

struct job {
    long number; /* its pid as its socket's name has it */
    long pid; /* as it is seen from here: another one where it runs in a container; 0: not at all */
    long agent; /* the pid of its agent; 0: unknown */
    int dirfd;  /* of the folder that its socket is in; borrowed */
    char name[32];
    json_t *status;
};

#define DIRS_MAX 8

struct jobs {
    struct job job[JOBS_MAX];
    size_t n;
    int nsilent; /* launchers that do not answer, such as one that was stopped with Ctrl-Z */
    bool named_is_silent;
    DIR *dir[DIRS_MAX]; /* the folders that were looked into */
};

/* ---------------------------------------------------------------------------------- connections */

/* The last number in a line of /proc/<pid>/status; 0 when there is none. */
static long status_number(long pid, const char *field)
{
    char path[40], status[16384], *line;
    snprintf(path, sizeof(path), "/proc/%ld/status", pid);
    if (fd_read_file(AT_FDCWD, path, status, sizeof(status)) < 0 || !(line = strstr(status, field)))
        return 0;
    line[1 + strcspn(line + 1, "\n")] = '\0';
    char *last = strrchr(line, '\t');
    return last ? atol(last + 1) : 0;
}

/* The kernel says who listens, by the number that is good here: the launcher's agent. */
static void find_pid(struct job *j, pid_t listener)
{
    long candidates[] = {status_number(listener, "\nPPid:"), listener};
    j->pid = 0;
    j->agent = listener;
    for (size_t i = 0; i < ARRAY_LEN(candidates) && j->pid == 0; i++) {
        if (status_number(candidates[i], "\nNSpid:") == j->number)
            j->pid = candidates[i];
    }
}

static int ctl_connect(struct job *j)
{
    struct sockaddr_un a;
    struct ucred peer;
    socklen_t len = sizeof(peer);
    struct timeval limit = {.tv_sec = ANSWER_SECONDS};
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    control_dir_address(&a, j->dirfd, j->name);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0 ||
        connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        return -errno;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.uid != geteuid())
        return -EPERM;
    find_pid(j, peer.pid);
    return take_fd(&fd);
}

/* Sends the command and reads the line of JSON that answers it. NULL with errno set. */
static json_t *ctl_ask(struct job *j, const char *command)
{
    char *text = NULL;
    size_t len = 0, cap = 0;
    json_t *answer = NULL;
    _cleanup_fd_ int fd = ctl_connect(j);
    if (fd < 0) {
        errno = -fd;
        return NULL;
    }
    if (send(fd, command, strlen(command), MSG_NOSIGNAL) != (ssize_t)strlen(command))
        return NULL;
    for (;;) {
        if (len == cap)
            text = xrealloc(text, cap = cap ? 2 * cap : 4096);
        ssize_t n = read(fd, text + len, cap - len);
        if (n < 0 && errno == EINTR)
            continue;
        errno = n == 0 ? ECONNRESET : errno == EAGAIN ? ETIMEDOUT : errno;
        if (n <= 0 || len + (size_t)n > ANSWER_MAX)
            break;
        len += (size_t)n;
        if (text[len - 1] == '\n') {
            answer = json_loadb(text, len, 0, NULL);
            errno = EPROTO;
            break;
        }
    }
    free(text);
    if (answer && !json_is_object(answer)) {
        json_decref(answer);
        answer = NULL;
    }
    return answer;
}

/* ----------------------------------------------------------------------------------- the jobs */

/* Two names may be of one folder. */
static bool is_known(const struct jobs *jobs, int dir)
{
    struct stat a, b;
    for (int i = 0; i < DIRS_MAX; i++) {
        if (jobs->dir[i] && fstat(dir, &a) == 0 && fstat(dirfd(jobs->dir[i]), &b) == 0 &&
            a.st_dev == b.st_dev && a.st_ino == b.st_ino)
            return true;
    }
    return false;
}

/* How many generations process `which` is below the job's guardian or agent; -1: it is not a
 * process of the job. */
static int generations_below(const struct job *j, const char *which)
{
    char *end;
    long pid = which ? strtol(which, &end, 10) : 0;
    for (int n = 0; pid > 0 && !*end; n++) {
        if (pid == j->pid || pid == j->agent)
            return n;
        pid = status_number(pid, "\nPPid:");
    }
    return -1;
}

static long shown_pid(const struct job *j)
{
    return j->pid ? j->pid : j->number;
}

static bool process_is_stopped(long pid)
{
    char path[40], stat[512];
    snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    if (fd_read_file(AT_FDCWD, path, stat, sizeof(stat)) < 0)
        return false;
    const char *end_of_name = strrchr(stat, ')'); /* the name may hold anything */
    return end_of_name && strncmp(end_of_name, ") T", 3) == 0;
}

static void add_silent_job(struct jobs *jobs, const struct job *j, const char *which)
{
    int why = errno;
    if (j->pid && process_is_stopped(j->pid))
        log_warn("process %ld does not answer because it is stopped, for example by Ctrl-Z (kill "
                 "-CONT %ld continues it)",
                 j->pid, j->pid);
    else
        log_warn("process %ld does not answer: %s", shown_pid(j), strerror(why));
    jobs->nsilent++;
    jobs->named_is_silent |= generations_below(j, which) >= 0;
}

/* Asks the launcher behind one socket. */
static void add_job(struct jobs *jobs, int dirfd, const char *name, const char *which)
{
    struct job *j = &jobs->job[jobs->n];
    *j = (struct job){.number = control_dir_pid(name), .dirfd = dirfd};
    j->pid = j->number;
    if (j->number == 0 || strlen(name) >= sizeof(j->name) || jobs->n == JOBS_MAX - 1)
        return;
    strcpy(j->name, name);
    j->status = ctl_ask(j, "status\n");
    if (j->status && j->pid)
        json_object_set_new(j->status, "pid", json_integer(j->pid));
    if (j->status)
        jobs->n++;
    else if (errno != ECONNREFUSED && errno != ENOENT && errno != ECONNRESET) /* it has not ended */
        add_silent_job(jobs, j, which);
}

static int by_pid(const void *a, const void *b)
{
    const struct job *x = a, *y = b;
    return x->pid < y->pid ? -1 : x->pid > y->pid;
}

static void find_jobs(struct jobs *jobs, const char *which)
{
    char path[CONTROL_PATH_MAX - 32];
    for (int i = 0; i < DIRS_MAX && control_dir_path(i, path); i++) {
        int dir = control_dir_open(path, false, NULL);
        bool known = dir >= 0 && is_known(jobs, dir);
        jobs->dir[i] = dir >= 0 && !known ? fdopendir(dir) : NULL;
        if (jobs->dir[i])
            control_dir_sweep(dir);
        else
            close_fd(&dir);
        for (struct dirent *de; jobs->dir[i] && (de = readdir(jobs->dir[i]));)
            add_job(jobs, dir, de->d_name, which);
    }
    qsort(jobs->job, jobs->n, sizeof(jobs->job[0]), by_pid);
}

static void jobs_fini(struct jobs *jobs)
{
    for (size_t i = 0; i < jobs->n; i++)
        json_decref(jobs->job[i].status);
    for (int i = 0; i < DIRS_MAX; i++) {
        if (jobs->dir[i])
            closedir(jobs->dir[i]);
    }
}

static const char *text_of(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "?";
}

static long number_of(const json_t *j, const char *key)
{
    return (long)json_integer_value(json_object_get(j, key));
}

/* The job that is meant: by the process id of its launcher, by its run id, or by a process below
 * its launcher (of nested jobs the inner one). NULL after a message. */
static struct job *pick(struct jobs *jobs, const char *which)
{
    struct job *found = NULL, *above = NULL;
    int hits = which ? 0 : jobs->nsilent, nearest = INT_MAX;
    for (size_t i = 0; i < jobs->n; i++) {
        struct job *j = &jobs->job[i];
        int below = generations_below(j, which);
        if (below == 0)
            return j;
        if (below > 0 && below < nearest) {
            above = j;
            nearest = below;
        }
        if (!which || strcmp(which, text_of(j->status, "run_id")) == 0) {
            found = j;
            hits++;
        }
    }
    if (hits == 0 && above)
        return above;
    if (jobs->named_is_silent)
        return NULL; /* add_silent_job() has printed why */
    if (hits == 1)
        return found;
    if (jobs->n == 0 && jobs->nsilent == 0)
        log_error("you have no running job on this host");
    else if (hits == 0)
        log_error("you have no%s running job with process or run id '%.100s' on this host",
                  jobs->nsilent ? " other" : "", which);
    else
        log_error("you have %d running jobs on this host; select one with -p PID", hits);
    return NULL;
}

/* -------------------------------------------------------------------------------------- display */

/* "12 s", "3 min 12 s", "5 h 2 min", "2 d 3 h". Returns out. */
static const char *duration(double seconds, char out[32])
{
    unsigned long s = seconds > 0 ? (unsigned long)(seconds < 1e12 ? seconds : 1e12) : 0;
    if (s < 60)
        snprintf(out, 32, "%lu s", s);
    else if (s < 3600)
        snprintf(out, 32, "%lu min %lu s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, 32, "%lu h %lu min", s / 3600, s / 60 % 60);
    else
        snprintf(out, 32, "%lu d %lu h", s / 86400, s / 3600 % 24);
    return out;
}

static double seconds_of(const json_t *j, const char *key)
{
    return json_number_value(json_object_get(j, key));
}

/* A run id that is long (a random one, mostly) is cut in the list; -p shows it whole. */
static const char *short_id(const char *id, char out[24])
{
    if (strlen(id) <= 14)
        return id;
    snprintf(out, 24, "%.11s...", id);
    return out;
}

static void print_list(const struct jobs *jobs)
{
    printf("%-8s %-14s %-7s %-7s %-8s %-12s %-13s %s\n", "PID", "RUN ID", "NODE", "WORKERS",
           "RESTARTS", "STATE", "RUNNING FOR", "PROGRAM");
    for (size_t i = 0; i < jobs->n; i++) {
        const json_t *s = jobs->job[i].status;
        char pid[24] = "-", node[48], restarts[48], up[32], id[24];
        if (jobs->job[i].pid)
            snprintf(pid, sizeof(pid), "%ld", jobs->job[i].pid);
        if (number_of(s, "node") >= 0)
            snprintf(node, sizeof(node), "%ld of %ld", number_of(s, "node"), number_of(s, "nodes"));
        else
            strcpy(node, "-"); /* not in a round yet */
        snprintf(restarts, sizeof(restarts), "%ld of %ld", number_of(s, "restarts"),
                 number_of(s, "max_restarts"));
        printf("%-8s %-14s %-7s %-7zu %-8s %-12s %-13s %s\n", pid,
               short_id(text_of(s, "run_id"), id), node,
               json_array_size(json_object_get(s, "workers")), restarts, text_of(s, "state"),
               duration(seconds_of(s, "elapsed_s"), up), text_of(s, "program"));
    }
}

static void print_worker(const json_t *w)
{
    char t[32];
    const json_t *code = json_object_get(w, "exit_code"), *signo = json_object_get(w, "signal");
    printf("  %-6ld %-6ld %-8ld %-9s ", number_of(w, "rank"), number_of(w, "local_rank"),
           number_of(w, "pid"), text_of(w, "state"));
    duration(seconds_of(w, "elapsed_s"), t);
    if (signo) {
        const char *abbrev = sigabbrev_np((int)json_integer_value(signo));
        printf("%-12s SIG%s\n", t, abbrev ? abbrev : "?");
    } else if (code) {
        printf("%-12s exit status %ld\n", t, (long)json_integer_value(code));
    } else {
        printf("%s\n", t);
    }
}

static void print_job(const struct job *j)
{
    const json_t *s = j->status, *workers = json_object_get(s, "workers"), *w;
    char up[32];
    size_t i;
    printf("%s: run id %s, process %ld on %s\n", text_of(s, "program"), text_of(s, "run_id"),
           shown_pid(j), text_of(s, "host"));
    printf("  %s (%s) for %s, rendezvous %s, %ld of %ld restarts used\n", text_of(s, "state"),
           text_of(s, "health"), duration(seconds_of(s, "elapsed_s"), up), text_of(s, "rendezvous"),
           number_of(s, "restarts"), number_of(s, "max_restarts"));
    if (number_of(s, "node") >= 0)
        printf("  node %ld of %ld, %ld workers in the job; ", number_of(s, "node"),
               number_of(s, "nodes"), number_of(s, "world_size"));
    else
        printf("  not all nodes have joined yet; ");
    printf("coordinator %s%s\n",
           json_is_true(json_object_get(s, "coordinator")) ? "here, at " : "at ",
           text_of(s, "endpoint"));
    if (json_is_string(json_object_get(s, "lost_output")))
        printf("  output that could not be written: %s\n", text_of(s, "lost_output"));
    if (json_array_size(workers) == 0 || number_of(s, "node") < 0)
        return;
    printf("\n  %-6s %-6s %-8s %-9s %s\n", "RANK", "LOCAL", "PID", "STATE", "SINCE START");
    json_array_foreach(workers, i, w) print_worker(w);
}

static int print_json(json_t *j)
{
    int rc = json_dumpf(j, stdout, JSON_INDENT(2));
    printf("\n");
    return rc;
}

/* ------------------------------------------------------------------------------------- commands */

static int do_status(struct jobs *jobs, const char *which, bool json)
{
    if (which) {
        struct job *j = pick(jobs, which);
        if (!j)
            return 1;
        if (json)
            print_json(j->status);
        else
            print_job(j);
        return 0;
    }
    if (json) {
        json_t *list = json_array();
        for (size_t i = 0; i < jobs->n; i++)
            json_array_append(list, jobs->job[i].status);
        print_json(list);
        json_decref(list);
    } else if (jobs->n) {
        print_list(jobs);
    } else if (jobs->nsilent == 0) {
        log_notice("you have no running job on this host");
    }
    return jobs->n == 0 && jobs->nsilent;
}

/* Whether the workers run: what a readiness probe asks. */
static int do_ready(struct jobs *jobs, const char *which)
{
    const struct job *j = pick(jobs, which);
    if (!j)
        return 1;
    const char *state = text_of(j->status, "state");
    printf("%s\n", state);
    return strcmp(state, "RUNNING") == 0 ? 0 : 1;
}

static bool listens(struct job *j)
{
    _cleanup_fd_ int fd = ctl_connect(j);
    return fd >= 0 || fd == -EAGAIN;
}

/* Waits until the process has ended, by its descriptor where the kernel has pidfds. A process that
 * is not visible here has ended when its socket is gone. */
static void wait_for_end(int pidfd, struct job *j)
{
    struct pollfd p = {pidfd, POLLIN, 0};
    if (pidfd >= 0) {
        while (poll(&p, 1, -1) < 0 && errno == EINTR)
            ;
        return;
    }
    while (j->pid ? kill((pid_t)j->pid, 0) == 0 : listens(j))
        poll(NULL, 0, 50);
}

static int do_stop(struct jobs *jobs, const char *which, bool json, bool wait)
{
    struct job *j = pick(jobs, which);
    if (!j)
        return 1;
    /* Opened before the command is sent, because afterwards the pid may belong to another process.
     */
    _cleanup_fd_ int pidfd = j->pid ? (int)syscall(SYS_pidfd_open, (pid_t)j->pid, 0) : -1;
    json_t *answer = ctl_ask(j, "stop\n");
    if (!answer) {
        log_error("process %ld does not answer: %s", shown_pid(j), strerror(errno));
        return 1;
    }
    json_decref(answer);
    if (!json) {
        printf("%s: stopping process %ld\n", text_of(j->status, "program"), shown_pid(j));
        fflush(stdout);
    }
    if (wait)
        wait_for_end(pidfd, j);
    if (json) {
        answer = json_pack("{s:I,s:b,s:b}", "pid", (json_int_t)shown_pid(j), "stopping", 1, "ended",
                           (int)wait);
        print_json(answer);
        json_decref(answer);
    } else if (wait) {
        printf("%s: process %ld has ended\n", text_of(j->status, "program"), shown_pid(j));
    }
    return 0;
}

/* The classes of causes, and what follows from each. */
static int do_causes(bool json)
{
    json_t *list = json_array();
    if (!json)
        printf("%-17s %-8s %s\n", "CLASS", "ACTION", "CAUSE");
    for (enum cause c = CAUSE_NONE + 1; c < CAUSES; c++) {
        const struct cause_row *row = cause_row(c);
        const char *action = cause_action_name(row->action);
        if (!json)
            printf("%-17s %-8s %s\n", row->name, action, row->meaning);
        json_array_append_new(list,
                              json_pack("{s:s,s:s,s:b,s:s}", "cause", row->name, "action", action,
                                        "settable", (int)row->settable, "meaning", row->meaning));
    }
    if (json)
        print_json(list);
    json_decref(list);
    return 0;
}

static const char usage[] =
    "Usage: dlaunchctl [options] status | stop\n"
    "\n"
    "Show or stop your dlaunch jobs on this host.\n"
    "\n"
    "  status               List all jobs; with -p, show one job and its workers.\n"
    "  stop                 Stop a job as SIGTERM does. A second stop, at least half a\n"
    "                       second later, kills its workers. -p can be omitted if only\n"
    "                       one job is running.\n"
    "  causes               List the classes of causes, for --on_cause of dlaunch.\n"
    "\n"
    "  -p, --job PID|ID     Select a job by the process id of its dlaunch or one of its\n"
    "                       workers, or by run id.\n"
    "  --ready              With status: succeed if the job's workers are running.\n"
    "  --wait               With stop: return when the job has ended.\n"
    "  --json               Print JSON.\n"
    "  --version            Print the version.\n"
    "  -h, --help           Print this text.\n"
    "\n"
    "Exit status: 0; 1 if the job does not exist, does not answer or is not ready, or\n"
    "standard output cannot be written; 2 for wrong arguments.\n";

/* The exit status, when what was printed has arrived. */
static int end_output(int rc)
{
    if ((fflush(stdout) == 0 && !ferror(stdout)) || rc != 0)
        return rc;
    log_error("standard output: %s", strerror(errno));
    return 1;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {{"job", required_argument, NULL, 'p'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"wait", no_argument, NULL, 'w'},
                                          {"ready", no_argument, NULL, 'r'},
                                          {"version", no_argument, NULL, 'V'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    static struct jobs jobs;
    const char *which = NULL, *command;
    bool json = false, wait = false, ready = false, stop;
    int c, rc;
    fd_open_std();
    log_init(LOG_LEVEL_NOTICE, "dlaunchctl: ");
    while ((c = getopt_long(argc, argv, "p:h", longs, NULL)) != -1) {
        switch (c) {
        case 'p':
            which = optarg;
            break;
        case 'j':
            json = true;
            break;
        case 'w':
            wait = true;
            break;
        case 'r':
            ready = true;
            break;
        case 'V':
            printf("dlaunchctl %s\n", DLAUNCH_VERSION);
            return end_output(0);
        case 'h':
            fputs(usage, stdout);
            return end_output(0);
        default:
            return 2; /* getopt has said why */
        }
    }
    if (argc - optind != 1) {
        if (argc == optind)
            log_error("missing command (status or stop); see dlaunchctl --help");
        else
            log_error("unexpected argument '%s' (select a job with -p)", argv[optind + 1]);
        return 2;
    }
    command = argv[optind];
    if (strcmp(command, "causes") == 0)
        return end_output(do_causes(json));
    stop = strcmp(command, "stop") == 0;
    if (!stop && strcmp(command, "status") != 0) {
        log_error("unknown command '%s' (status or stop); see dlaunchctl --help", command);
        return 2;
    }
    if (wait && !stop) {
        log_error("--wait needs the command stop");
        return 2;
    }
    if (ready && (stop || json)) {
        log_error("--ready needs the command status, without --json");
        return 2;
    }
    find_jobs(&jobs, which);
    rc = ready  ? do_ready(&jobs, which)
         : stop ? do_stop(&jobs, which, json, wait)
                : do_status(&jobs, which, json);
    jobs_fini(&jobs);
    return end_output(rc);
}
