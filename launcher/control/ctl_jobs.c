#include "launcher/control/ctl_jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/protocols.h"
#include "launcher/control/control_dir.h"

#define ANSWER_SECONDS 3
#define ANSWER_MAX     (16u << 20)
#define PREFIX_MIN     4 /* characters of a run id that stand for it */

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

int job_connect(struct job *j)
{
    if (j->ended)
        return -ESRCH;
    struct sockaddr_un a;
    struct ucred peer;
    socklen_t len = sizeof(peer);
    struct timeval limit = {.tv_sec = ANSWER_SECONDS};
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t alen = control_dir_address(&a, j->dirfd, j->name);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0 ||
        connect(fd, (struct sockaddr *)&a, alen) < 0)
        return -errno;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.uid != geteuid())
        return -EPERM;
    find_pid(j, peer.pid);
    return take_fd(&fd);
}

int job_send(int fd, const char *command)
{
    char line[512];
    int n = snprintf(line, sizeof(line), "%u %s", PROTOCOL_CONTROL, command);
    if (n >= (int)sizeof(line))
        return -EMSGSIZE;
    ssize_t sent = send(fd, line, (size_t)n, MSG_NOSIGNAL);
    return sent == n ? 0 : sent < 0 ? -errno : -EIO;
}

/* Sends the command and reads the line of JSON that answers it. NULL with errno set. */
json_t *job_ask(struct job *j, const char *command)
{
    char *text = NULL;
    size_t len = 0, cap = 0;
    json_t *answer = NULL;
    _cleanup_fd_ int fd = job_connect(j);
    if (fd < 0) {
        errno = -fd;
        return NULL;
    }
    int rc = job_send(fd, command);
    if (rc < 0) {
        errno = -rc;
        return NULL;
    }
    for (;;) {
        if (len == cap)
            text = xrealloc(text, cap = cap ? 2 * cap : 4096);
        ssize_t n = read(fd, text + len, cap - len);
        if (n < 0 && errno == EINTR)
            continue;
        errno = n > 0 ? EMSGSIZE : n == 0 ? ECONNRESET : errno == EAGAIN ? ETIMEDOUT : errno;
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

int job_events_add(struct job *j, json_t *all, long *at)
{
    char command[40];
    bool more = !j->ended;
    if (j->ended && *at == 0)
        json_array_extend(all, json_object_get(j->status, "events"));
    *at += j->ended;
    while (more) {
        snprintf(command, sizeof(command), "events %ld\n", *at);
        json_t *answer = job_ask(j, command), *list = json_object_get(answer, "events");
        if (!list) { /* errno is job_ask()'s, or the launcher keeps none */
            errno = answer ? ENOTSUP : errno;
            json_decref(answer);
            return -1;
        }
        json_array_extend(all, list);
        *at = number_of(answer, "next");
        more = json_is_true(json_object_get(answer, "more"));
        json_decref(answer);
    }
    return 0;
}

json_t *job_events(struct job *j)
{
    json_t *all = json_array();
    long at = 0;
    if (job_events_add(j, all, &at) == 0)
        return all;
    json_decref(all);
    return NULL;
}

/* ------------------------------------------------------------------------------------- the jobs */

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

long job_shown_pid(const struct job *j)
{
    return j->pid ? j->pid : j->number;
}

/* Whether a launcher is meant that does not say who it is. */
static bool is_meant(const struct job *j, const char *which)
{
    char number[24];
    snprintf(number, sizeof(number), "%ld", j->number);
    return generations_below(j, which) >= 0 || (which && strcmp(which, number) == 0);
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
        log_warn("process %ld does not answer: %s", job_shown_pid(j), strerror(why));
    jobs->nsilent++;
    jobs->named_is_silent |= is_meant(j, which);
}

/* Whether the launcher speaks as this program does; else says so. */
static bool speaks_alike(struct jobs *jobs, const struct job *j, const char *which)
{
    char text[256];
    long theirs = number_of(j->status, "control");
    if (theirs == PROTOCOL_CONTROL)
        return true;
    log_warn("process %ld: %s", job_shown_pid(j),
             protocols_control_differs((uint32_t)theirs, text, sizeof(text)));
    jobs->nsilent++;
    jobs->named_is_silent |=
        is_meant(j, which) || (which && strcmp(which, text_of(j->status, "run_id")) == 0);
    return false;
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
    j->status = job_ask(j, "status\n");
    if (j->status && !speaks_alike(jobs, j, which)) {
        json_decref(j->status);
        return;
    }
    if (j->status && j->pid)
        json_object_set_new(j->status, "pid", json_integer(j->pid));
    if (j->status)
        jobs->n++;
    else if (errno != ECONNREFUSED && errno != ENOENT &&
             errno != ECONNRESET &&                       /* the job has not ended */
             (errno != EPERM || dirfd != CONTROL_NO_DIR)) /* anybody can take such a name */
        add_silent_job(jobs, j, which);
}

/* Reads the file that a job has left. */
static void add_ended_job(struct jobs *jobs, int dirfd, const char *name)
{
    int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r"); /* with a buffer: json_loadfd() reads bytewise */
    json_t *record = file ? json_loadf(file, 0, NULL) : NULL;
    if (file)
        fclose(file);
    else
        close_fd(&fd);
    if (!json_is_number(json_object_get(record, "ended")) ||
        !json_is_array(json_object_get(record, "events"))) { /* another one is being written */
        json_decref(record);
        return;
    }
    jobs->ended = xrealloc(jobs->ended, (jobs->nended + 1) * sizeof(*jobs->ended));
    jobs->ended[jobs->nended++] = (struct job){
        .number = number_of(record, "pid"), .dirfd = -1, .status = record, .ended = true};
}

static double end_of(const struct job *j)
{
    return json_number_value(json_object_get(j->status, "ended"));
}

static int by_end(const void *a, const void *b)
{
    double x = end_of(a), y = end_of(b);
    return x > y ? -1 : x < y;
}

static int by_pid(const void *a, const void *b)
{
    const struct job *x = a, *y = b;
    return x->pid < y->pid ? -1 : x->pid > y->pid;
}

struct abstract_search {
    struct jobs *jobs;
    const char *which;
};

static void add_abstract(void *arg, const char *name)
{
    struct abstract_search *s = arg;
    add_job(s->jobs, CONTROL_NO_DIR, name, s->which);
}

void jobs_find(struct jobs *jobs, const char *which)
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
        for (struct dirent *de; jobs->dir[i] && (de = readdir(jobs->dir[i]));) {
            if (!control_dir_is_ended(de->d_name))
                add_job(jobs, dir, de->d_name, which);
        }
    }
    control_dir_abstract(add_abstract, &(struct abstract_search){jobs, which});
    qsort(jobs->job, jobs->n, sizeof(jobs->job[0]), by_pid);
}

void jobs_find_ended(struct jobs *jobs)
{
    for (int i = 0; i < DIRS_MAX; i++) {
        if (jobs->dir[i])
            rewinddir(jobs->dir[i]);
        for (struct dirent *de; jobs->dir[i] && (de = readdir(jobs->dir[i]));) {
            if (control_dir_is_ended(de->d_name))
                add_ended_job(jobs, dirfd(jobs->dir[i]), de->d_name);
        }
    }
    if (jobs->nended)
        qsort(jobs->ended, jobs->nended, sizeof(jobs->ended[0]), by_end);
}

void jobs_fini(struct jobs *jobs)
{
    for (size_t i = 0; i < jobs->n; i++)
        json_decref(jobs->job[i].status);
    for (size_t i = 0; i < jobs->nended; i++)
        json_decref(jobs->ended[i].status);
    free(jobs->ended);
    for (int i = 0; i < DIRS_MAX; i++) {
        if (jobs->dir[i])
            closedir(jobs->dir[i]);
    }
}

const char *text_of(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "?";
}

long number_of(const json_t *j, const char *key)
{
    return (long)json_integer_value(json_object_get(j, key));
}

/* Whether the word is the program's name, with or without its folder. */
static bool is_program(const char *word, const char *program)
{
    const char *slash = strrchr(program, '/');
    return strcmp(word, program) == 0 || (slash && strcmp(word, slash + 1) == 0);
}

/* Whether the word is the beginning of a run id. Digits are a process, and few characters a slip.
 */
static bool begins(const char *word, const char *run_id)
{
    return strlen(word) >= PREFIX_MIN && strspn(word, "0123456789") < strlen(word) &&
           strncmp(word, run_id, strlen(word)) == 0;
}

bool job_is_gone(int errnum)
{
    return errnum == ECONNREFUSED || errnum == ECONNRESET || errnum == ENOENT || errnum == EPIPE;
}

bool job_has_left_its_end(const struct job *j, double since_s)
{
    char path[CONTROL_PATH_MAX - 32];
    struct jobs left = {0};
    bool found = false;
    /* Looks in all folders: a socket with an abstract address does not say which folder has the
     * record. */
    for (int i = 0; i < DIRS_MAX && control_dir_path(i, path); i++) {
        int dir = control_dir_open(path, false, NULL);
        left.dir[i] = dir < 0 ? NULL : fdopendir(dir);
        if (!left.dir[i])
            close_fd(&dir);
    }
    jobs_find_ended(&left);
    for (size_t i = 0; i < left.nended && !found; i++)
        found = left.ended[i].number == j->number && end_of(&left.ended[i]) >= since_s;
    jobs_fini(&left);
    return found;
}

/* The newest job that has ended and is called so. */
static struct job *pick_ended(struct jobs *jobs, const char *which)
{
    for (size_t i = 0; i < jobs->nended; i++) {
        struct job *j = &jobs->ended[i];
        const char *id = text_of(j->status, "run_id");
        char pid[24];
        snprintf(pid, sizeof(pid), "%ld", j->number);
        if (!which || strcmp(which, pid) == 0 || strcmp(which, id) == 0 || begins(which, id) ||
            is_program(which, text_of(j->status, "program")))
            return j;
    }
    return NULL;
}

struct job *jobs_pick(struct jobs *jobs, const char *which, bool ended, bool whole)
{
    struct job *found = NULL, *above = NULL, *begun = NULL;
    int hits = which ? 0 : jobs->nsilent, nearest = INT_MAX, alike = 0;
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
    for (size_t i = 0; which && hits == 0 && i < jobs->n; i++) {
        struct job *j = &jobs->job[i];
        bool named = is_program(which, text_of(j->status, "program"));
        if (named || begins(which, text_of(j->status, "run_id"))) {
            found = j;
            begun = named ? begun : j;
            alike++;
        }
    }
    if (alike == 1 && begun && whole) {
        log_error("'%.100s' is only the beginning of the run id %.200s; give all of it, or -p %ld",
                  which, text_of(begun->status, "run_id"), job_shown_pid(begun));
        return NULL;
    }
    if (alike == 1)
        return found;
    if (jobs->named_is_silent)
        return NULL; /* add_silent_job() has printed why */
    if (hits == 1)
        return found;
    if (hits + alike == 0)
        jobs_find_ended(jobs);
    struct job *over = hits + alike == 0 ? pick_ended(jobs, which) : NULL;
    if (over && ended)
        return over;
    if (over && which)
        log_error("the job '%.100s' has ended; dlaunchctl describe %.100s shows it", which, which);
    else if (alike > 1)
        log_error("'%.100s' is the name or the beginning of the run id of %d running jobs on this "
                  "host; select one with -p PID",
                  which, alike);
    else if (jobs->n == 0 && jobs->nsilent == 0)
        log_error("you have no running job on this host");
    else if (hits == 0)
        log_error("you have no%s running job with process or run id '%.100s' on this host",
                  jobs->nsilent ? " other" : "", which);
    else
        log_error("you have %d running jobs on this host; select one with -p PID", hits);
    return NULL;
}
