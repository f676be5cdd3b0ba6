#include "launcher/options/time_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/parse.h"
#include "launcher/options/requeue_rules.h"

#define ANSWER_S 20 /* for scontrol, which waits 10 s for Slurm's controller by default */

extern char **environ;

static const char *env_get(char *const *envp, const char *name)
{
    size_t n = strlen(name);
    for (; *envp; envp++) {
        if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=' && (*envp)[n + 1])
            return *envp + n + 1;
    }
    return NULL;
}

static long env_number(char *const *envp, const char *name)
{
    const char *text = env_get(envp, name);
    long v;
    return text && parse_int(text, 0, LONG_MAX, &v, NULL) == 0 ? v : -1;
}

/* Starts "scontrol words...", which writes to fd. Returns a negative errno. */
static int start_scontrol(char *const *words, int fd, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_adddup2(&files, fd, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, fd, STDERR_FILENO);
    setenv("SLURM_TIME_FORMAT", "standard", 1);
    int rc = posix_spawnp(pid, "scontrol", &files, &attr, words, environ);
    unsetenv("SLURM_TIME_FORMAT");
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return -rc;
}

/* Reads to the end, keeping what fits as a string; false: that has not come within ANSWER_S. */
static bool read_answer(int fd, char *out, size_t cap)
{
    uint64_t end = mono_ns() + ANSWER_S * 1000000000ull, now;
    char rest[4096];
    size_t len = 0;
    ssize_t n = 1;
    while (n != 0 && (now = mono_ns()) < end) {
        struct pollfd f = {fd, POLLIN, 0};
        if (poll(&f, 1, (int)((end - now) / 1000000) + 1) <= 0)
            continue;
        bool full = len + 1 == cap;
        n = read(fd, full ? rest : out + len, full ? sizeof(rest) : cap - 1 - len);
        len += n > 0 && !full ? (size_t)n : 0;
    }
    out[len] = '\0';
    out[strcspn(out, "\n")] = '\0';
    return n == 0;
}

/* Runs "scontrol words... job"; its first line in out, also when it fails. -EINVAL: it says that
 * this cannot be; -ENOENT: there is no scontrol; -EAGAIN: it does not answer, or has no answer. */
static int ask_scontrol(char *const *words, long job, char *out, size_t cap, struct err *e)
{
    char id[24], *argv[8] = {(char *)"scontrol"}, what[64] = "scontrol";
    int ends[2], status = 0, n = 1;
    pid_t pid;
    snprintf(id, sizeof(id), "%ld", job);
    for (; *words; words++)
        argv[n++] = *words;
    argv[n++] = id;
    for (int i = 1; i < n; i++)
        snprintf(what + strlen(what), sizeof(what) - strlen(what), " %s", argv[i]);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_sys(e, errno, "scontrol");
    int rc = start_scontrol(argv, ends[1], &pid);
    close(ends[1]);
    bool answered = rc == 0 && read_answer(ends[0], out, cap);
    close(ends[0]);
    if (rc < 0)
        return err_set(e, -ENOENT, "%s: %s", what, strerror(-rc));
    if (!answered)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (!answered)
        return err_set(e, -EAGAIN, "%s: no answer within %d s", what, ANSWER_S);
    if (status == 0)
        return 0;
    return err_set(e, strstr(out, "Invalid job id") ? -EINVAL : -EAGAIN, "%s: %.200s", what,
                   *out ? out : "no answer");
}

/* The value of " name=value" in the line; NULL: there is none. */
static const char *field(const char *line, const char *name)
{
    char key[32];
    snprintf(key, sizeof(key), " %s=", name);
    const char *at = strstr(line, key);
    return at ? at + strlen(key) : NULL;
}

/* The local time "2026-11-26T20:15:00"; -1: it is none, as of a job without an end. */
static time_t read_time(const char *text)
{
    struct tm tm = {.tm_isdst = -1};
    return text && strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) ? mktime(&tm) : -1;
}

static int ask_slurm(struct options *o, long job, struct err *e)
{
    char line[4096];
    const char *batch, *requeue;
    bool unknown = opt_given(o, OPT_end_warning) && !opt_given(o, OPT_end_time);
    char *const show[] = {(char *)"-o", (char *)"show", (char *)"job", NULL};
    int rc = ask_scontrol(show, job, line, sizeof(line), e);
    if (rc == -EAGAIN) { /* Slurm's controller may answer when the job's time ends */
        log_warn("%s; the job begins without it%s%s%s", e->msg,
                 unknown ? ", and without the end of its time, so that " : "",
                 unknown ? opt_where(o, OPT_end_warning) : "", unknown ? " has no effect" : "");
        *e = (struct err)ERR_INIT;
        return 0;
    }
    if (rc < 0)
        return -EINVAL;
    batch = field(line, "BatchFlag");
    requeue = field(line, "Requeue");
    if (opt_flag(o, OPT_requeue) && batch && *batch == '0')
        return err_set(e, -EINVAL,
                       "%s: Slurm job %ld is none of sbatch's, which alone can be requeued",
                       opt_where(o, OPT_requeue), job);
    if (opt_flag(o, OPT_requeue) && requeue && *requeue == '0')
        return err_set(e, -EINVAL,
                       "%s: Slurm job %ld may not be requeued; submit it with sbatch --requeue",
                       opt_where(o, OPT_requeue), job);
    time_t end = read_time(field(line, "EndTime"));
    if (end > 0)
        return options_set(o, OPT_end_time, options_printf(o, "%lld", (long long)end),
                           FROM_DETECTED, "scontrol", e);
    if (unknown)
        log_notice("Slurm job %ld has no time limit, so that %s has no effect", job,
                   opt_where(o, OPT_end_warning));
    return 0;
}

int time_limit_warning(struct options *o, int *signo, double *seconds, struct err *e)
{
    const char *s = opt_text(o, OPT_end_warning), *at = strchr(s, '@');
    int len = at ? (int)(at - s) : 0;
    *signo = at ? parse_signal(s, (size_t)len) : SIGTERM;
    if (*signo == 0 || *signo == SIGKILL || *signo == SIGSTOP)
        return err_set(e, -EINVAL,
                       "%s %s: '%.*s' is no signal that a program can handle, as USR1 is",
                       opt_where(o, OPT_end_warning), s, len, s);
    if (parse_seconds(at ? at + 1 : s, seconds, e) < 0)
        return err_wrap(e, "%s %s", opt_where(o, OPT_end_warning), s);
    if (*seconds < 1)
        return err_set(e, -EINVAL, "%s %s: less than 1 s is no time to stop in",
                       opt_where(o, OPT_end_warning), s);
    return 0;
}

int time_limit_read(struct options *o, char *const *envp, struct err *e)
{
    long job = env_number(envp, "SLURM_JOB_ID"), end = env_number(envp, "SLURM_JOB_END_TIME");
    bool warning = opt_given(o, OPT_end_warning), requeue = opt_flag(o, OPT_requeue);
    double seconds;
    int signo;
    if (warning && time_limit_warning(o, &signo, &seconds, e) < 0)
        return -EINVAL;
    if (requeue && job < 0)
        return err_set(e, -EINVAL,
                       "%s: this is no job of Slurm (SLURM_JOB_ID is not set), so that nothing can "
                       "be requeued",
                       opt_where(o, OPT_requeue));
    if (end > 0 && job >= 0 && !opt_flag(o, OPT_no_detect) &&
        options_set(o, OPT_end_time, options_printf(o, "%ld", end), FROM_DETECTED,
                    "SLURM_JOB_END_TIME", e) < 0)
        return -EINVAL;
    bool known = opt_given(o, OPT_end_time);
    if (!requeue && (!warning || known))
        return 0;
    if (!requeue && (job < 0 || opt_flag(o, OPT_no_detect)))
        return err_set(e, -EINVAL,
                       "%s: the end of the job's time is not known, because this is no job of "
                       "Slurm; give --end_time, such as --end_time $(($(date +%%s) + 3600))",
                       opt_where(o, OPT_end_warning));
    return env_number(envp, "SLURM_NODEID") > 0 ? 0 : ask_slurm(o, job, e);
}

void time_limit_requeue(void)
{
    const char *id = getenv("SLURM_JOB_ID");
    struct err e = ERR_INIT;
    char line[256];
    long job;
    if (!id || parse_int(id, 0, LONG_MAX, &job, &e) < 0)
        return;
    log_notice("Slurm job %ld goes back into the queue (--requeue)", job);
    char *const requeue[] = {(char *)"requeue", NULL};
    if (ask_scontrol(requeue, job, line, sizeof(line), &e) == 0)
        return;
    if (requeue_is_done(e.msg))
        log_notice("Slurm job %ld is in the queue already", job);
    else
        log_error("--requeue: %s", e.msg);
}
