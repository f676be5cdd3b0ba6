#include "launcher/options/time_limit.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "core/log.h"
#include "core/parse.h"

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

/* Runs "scontrol <what> <job>"; its first line in out, also when it fails with -EINVAL. */
static int ask_scontrol(const char *what, long job, char *out, int cap, struct err *e)
{
    char command[128];
    snprintf(command, sizeof(command), "SLURM_TIME_FORMAT=standard exec scontrol %s %ld 2>&1", what,
             job);
    FILE *f = popen(command, "re");
    if (!f)
        return err_sys(e, errno, "scontrol");
    if (!fgets(out, cap, f))
        *out = '\0';
    while (fgetc(f) != EOF) /* so that it can write all */
        ;
    int status = pclose(f);
    out[strcspn(out, "\n")] = '\0';
    if (status == 0)
        return 0;
    return err_set(e, -EINVAL, "scontrol %s %ld: %.200s", what, job, *out ? out : "no answer");
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
    if (ask_scontrol("-o show job", job, line, sizeof(line), e) < 0)
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
    if (opt_given(o, OPT_end_warning) && !opt_given(o, OPT_end_time))
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
    if (ask_scontrol("requeue", job, line, sizeof(line), &e) < 0)
        log_error("--requeue: %s", e.msg);
}
