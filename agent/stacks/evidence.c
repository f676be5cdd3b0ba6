/* evidence.c: variables before the start, files after the end. The files are those of the worker's
 * own attempt, so none is older. A file server that does not answer is waited for READ_MS, once. */
#include "agent/stacks/evidence.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/base/job_env.h"
#include "agent/inspect/torch_recorder.h"
#include "agent/report/report_input.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/timed_call.h"
#include "rendezvous/rules/text.h"

#define READ_MS     1000
#define LINES       3          /* of NCCL's log, in the report */
#define WARNING_MAX 300        /* bytes of one */
#define LOG_READ    (64 << 10) /* bytes of the log's end in which they are looked for */
#define TRACE       "torch_trace_rank_"
#define NCCL_LOG    "nccl.log"

struct evidence {
    struct node *n;
    struct timed_calls *files;
    bool dump, nccl; /* the user has not said where PyTorch's dumps, NCCL's log go */
    bool found;      /* a dump, in the last round */
};

static bool user_says(const struct job_spec *job, const char *const *names)
{
    for (; *names; names++) {
        if (job_env(job, *names))
            return true;
    }
    return false;
}

static int evidence_open(void **state, struct node *n, struct err *e)
{
    /* The newer name, and the one that PyTorch has read before. */
    static const char *const dump[] = {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
                                       NULL};
    static const char *const nccl[] = {"NCCL_DEBUG", "NCCL_DEBUG_FILE", NULL};
    (void)e;
    if (n->job->nproc == 0)
        return 0;
    struct evidence *v = xcalloc(1, sizeof(*v));
    *v = (struct evidence){.n = n, .files = timed_calls_new()};
    v->dump = !user_says(n->job, dump);
    v->nccl = !user_says(n->job, nccl);
    *state = v;
    return 0;
}

static int evidence_begin(void *state, struct err *e)
{
    struct evidence *v = state;
    (void)e;
    v->found = false;
    return 0;
}

static void evidence_variables(void *state, struct variables *out)
{
    static const char *const on_timeout[] = {"TORCH_FR_DUMP_ON_TIMEOUT",
                                             "TORCH_NCCL_DUMP_ON_TIMEOUT", NULL};
    struct evidence *v = state;
    if (!v->dump || !*v->n->log_dir)
        return;
    variables_add(out, xasprintf("TORCH_FR_DUMP_TEMP_FILE=%s/" TRACE, v->n->log_dir));
    variables_add(out, xasprintf("TORCH_NCCL_DEBUG_INFO_TEMP_FILE=%s/" TRACE, v->n->log_dir));
    for (int i = 0; on_timeout[i] && !user_says(v->n->job, on_timeout); i++)
        variables_add(out, xasprintf("%s=1", on_timeout[i]));
}

/* NCCL replaces %h and %p in the name of the file, and would any other % there. */
static int evidence_worker_starts(void *state, const struct worker *w, struct worker_extras *x,
                                  struct err *e)
{
    const struct evidence *v = state;
    (void)e;
    if (!v->nccl || !*w->dir || strchr(w->dir, '%'))
        return 0;
    variables_add(&x->env, xstrdup("NCCL_DEBUG=WARN"));
    variables_add(&x->env, xasprintf("NCCL_DEBUG_FILE=%s/" NCCL_LOG, w->dir));
    return 0;
}

/* What is read on another thread. */
struct reading {
    char trace[FAILURE_PATH_MAX + 64], nccl[FAILURE_PATH_MAX + 64]; /* "": not ours */
    struct sample_op op;                                            /* number 0: there is no dump */
    char warnings[LINES][WARNING_MAX];
    int nwarnings; /* of all; the last ones are kept */
};

/* Keeps the line without what stands in front of "NCCL WARN": host, process and thread. */
static void keep_warning(struct reading *r, const char *line)
{
    const char *at = strstr(line, "NCCL WARN ");
    if (at)
        snprintf(r->warnings[r->nwarnings++ % LINES], WARNING_MAX, "%s", at);
}

static void read_warnings(struct reading *r)
{
    struct stat st;
    _cleanup_fd_ int fd = open(r->nccl, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return;
    char *text = xmalloc(LOG_READ + 1), *save = NULL;
    ssize_t n = pread(fd, text, LOG_READ, st.st_size > LOG_READ ? st.st_size - LOG_READ : 0);
    text[n > 0 ? n : 0] = '\0';
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        keep_warning(r, line);
    free(text);
}

static void read_files(void *arg)
{
    struct reading *r = arg;
    if (*r->trace)
        torch_recorder_read(r->trace, &r->op);
    if (*r->nccl)
        read_warnings(r);
}

/* "all_reduce in group 0, #17, not ended": alike on all ranks that are at the same place. */
static void put_operation(struct evidence *v, struct failure *f, const struct sample_op *op)
{
    if (op->number == 0 || *f->operation)
        return;
    v->found = true;
    text_set(f->operation, sizeof(f->operation), "%.60s, #%llu, %s", op->text,
             (unsigned long long)op->seq, op->open ? "not ended" : "ended");
}

static void put_warnings(struct failure *f, const struct reading *r)
{
    int n = r->nwarnings < LINES ? r->nwarnings : LINES;
    if (n == 0 || f->kind == FAILURE_STOPPED || f->says_how)
        return;
    char *before = xstrdup(f->message);
    f->message[0] = '\0';
    for (int i = 0; i < n; i++)
        text_add(f->message, sizeof(f->message), "%s%s", i ? "\n" : "",
                 r->warnings[(r->nwarnings - n + i) % LINES]);
    text_add(f->message, sizeof(f->message), "%s%s", *before ? "\n" : "", before);
    free(before);
}

static void evidence_complete(void *state, struct worker *w)
{
    struct evidence *v = state;
    struct reading *r = xcalloc(1, sizeof(*r));
    if (v->dump && *v->n->log_dir)
        snprintf(r->trace, sizeof(r->trace), "%s/" TRACE "%d", v->n->log_dir, w->rank);
    if (v->nccl && *w->dir)
        snprintf(r->nccl, sizeof(r->nccl), "%s/" NCCL_LOG, w->dir);
    if (!*r->trace && !*r->nccl) {
        free(r);
    } else if (timed_call(v->files, read_files, r, free, READ_MS)) {
        put_operation(v, &w->failure, &r->op);
        put_warnings(&w->failure, r);
        free(r);
    }
}

static void evidence_report(void *state, struct report_input *in)
{
    const struct evidence *v = state;
    in->recorded = v->found;
}

static void evidence_free(void *state)
{
    struct evidence *v = state;
    timed_calls_free(v->files);
    free(v);
}

const struct feature evidence_feature = {
    .name = "evidence",
    .open = evidence_open,
    .begin = evidence_begin,
    .variables = evidence_variables,
    .worker_starts = evidence_worker_starts,
    .complete = evidence_complete,
    .report = evidence_report,
    .free = evidence_free,
};
