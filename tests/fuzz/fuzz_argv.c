/* Command lines: words parted by newlines, the first of which picks the name that we are called by;
 * those with a '=' in front are the environment. Everything up to the finished job. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "launcher/options/detect.h"
#include "launcher/options/job_build.h"
#include "launcher/options/token.h"

#define WORDS_MAX 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void drop_line(void *arg, const char *line, size_t len)
{
    (void)arg, (void)line, (void)len;
}

static void check_error(const struct err *e)
{
    if (!e->msg[0] || strlen(e->msg) >= ERR_MSG_MAX || e->code >= 0)
        abort();
}

static void check_job(const struct job_spec *job)
{
    if (job->nproc < 1 || job->nproc > NPROC_MAX || !job->path || !job->argv[0] ||
        job->rdzv.min_nodes < 1 || job->rdzv.max_nodes < job->rdzv.min_nodes ||
        job->rdzv.node_rank >= job->rdzv.max_nodes || job->rdzv.endpoint_port < 0 ||
        job->rdzv.endpoint_port > 65535 || !job->stop_signals || !(job->shutdown_timeout >= 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *argv[WORDS_MAX + 1], *env[WORDS_MAX + 1], *next = text, *word;
    int argc = 0, n = 0, status;
    struct options o;
    struct job_spec job;
    struct err e = {.code = 0};
    struct detect_host host = {"job-0-2.job.ns", "/etc/hosts", NULL};
    setenv("CUDA_VISIBLE_DEVICES", "0,1", 1); /* keeps NVML away */
    log_set_writer(drop_line, NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    while ((word = strsep(&next, "\n")) && argc < WORDS_MAX && n < WORDS_MAX) {
        if (word[0] == '=')
            env[n++] = word + 1;
        else
            argv[argc++] = word;
    }
    argv[argc] = env[n] = NULL;
    options_init(&o, argc ? argv[0] : "dlaunch");
    if (options_read_argv(&o, argc, argv, &e) < 0 || options_read_env(&o, env, &e) < 0 ||
        detect(&o, env, &host, &e) < 0 || job_build(&job, &o, &status, &e) < 0 ||
        token_build(&job, &o, &e) < 0)
        check_error(&e);
    else
        check_job(&job);
    options_fini(&o);
    free(text);
    return 0;
}
