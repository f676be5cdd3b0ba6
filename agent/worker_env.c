#include "agent/worker_env.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/base/job_env.h"
#include "agent/base/template.h"
#include "core/bytes.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/segment.h"

extern char **environ;

struct worker_env_shared {
    /* strings "NAME=value", each with its NUL; copied as one block into every environment */
    struct buf image;
    size_t *at; /* where each begins */
    size_t n, cap;
    uint64_t env_wins; /* bit i: [env] sets worker_rows[i] */
    char **gpus;       /* --virtual_local_rank: the entries of CUDA_VISIBLE_DEVICES; NULL: unset */
};

/* ------------------------------------------------------------------------------------ variables */

/* Returns the value of one variable, in tmp or elsewhere; NULL if the worker does not get it. */
struct row {
    const char *name;
    const char *(*value)(const struct worker_env_input *in, char tmp[24]);
};

static const struct rank_table_node *node_of(const struct worker_env_input *in)
{
    return &in->table->nodes[in->group_rank];
}

static const char *decimal(char tmp[24], long v)
{
    snprintf(tmp, 24, "%ld", v);
    return tmp;
}

static const char *descriptor(char tmp[24], int fd)
{
    return fd < 0 ? NULL : decimal(tmp, fd);
}

#define ROW(fn, expr)                                                      \
    static const char *fn(const struct worker_env_input *in, char tmp[24]) \
    {                                                                      \
        (void)in, (void)tmp;                                               \
        return (expr);                                                     \
    }

ROW(local_rank, decimal(tmp, in->job->virtual_local_rank ? 0 : in->local_rank))
ROW(rank, decimal(tmp, node_of(in)->base_rank + in->local_rank))
ROW(role_rank, decimal(tmp, node_of(in)->role_base_rank + in->local_rank))
ROW(error_file, in->error_file ? in->error_file : "")
ROW(listen_fd, descriptor(tmp, in->listen_fd))
ROW(appnum, in->program ? decimal(tmp, in->program - in->job->programs->list) : NULL)

ROW(group_rank, decimal(tmp, in->group_rank))
ROW(role_name, node_of(in)->role)
ROW(local_world_size, decimal(tmp, node_of(in)->nproc))
ROW(world_size, decimal(tmp, in->table->world_size))
ROW(group_world_size, decimal(tmp, in->table->nnodes))
ROW(role_world_size, decimal(tmp, node_of(in)->role_world_size))
ROW(master_addr, in->master_addr ? in->master_addr : in->table->master_addr)
ROW(master_port, decimal(tmp, in->table->master_port))
ROW(restart_count, decimal(tmp, in->table->restart_count))
ROW(max_restarts, decimal(tmp, in->job->rdzv.max_restarts))
ROW(run_id, in->job->rdzv.run_id)
ROW(agent_store, in->table->agent_store ? "True" : "False")
ROW(signals, in->job->signals_to_handle)
ROW(nccl_async, getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") ?: "1")
ROW(omp_num_threads, getenv("OMP_NUM_THREADS") ?: in->job->omp_num_threads)
ROW(profiler, in->job->nccl_profiler ?: getenv("NCCL_PROFILER_PLUGIN"))
ROW(next_profiler, in->job->nccl_profiler ? getenv("NCCL_PROFILER_PLUGIN") : NULL)
ROW(progress_file, in->job->progress_file)
ROW(segment_fd, descriptor(tmp, in->segment_fd))

/* Different for each worker of the node. */
static const struct row worker_rows[] = {
    {"LOCAL_RANK", local_rank},      {"RANK", rank},
    {"ROLE_RANK", role_rank},        {"TORCHELASTIC_ERROR_FILE", error_file},
    {SEGMENT_ENV_LISTEN, listen_fd},
};

/* Variables whose value is equal for all workers. */
static const struct row shared_rows[] = {
    {"GROUP_RANK", group_rank},
    {"NODE_RANK", group_rank},
    {"ROLE_NAME", role_name},
    {"LOCAL_WORLD_SIZE", local_world_size},
    {"WORLD_SIZE", world_size},
    {"GROUP_WORLD_SIZE", group_world_size},
    {"ROLE_WORLD_SIZE", role_world_size},
    {"MASTER_ADDR", master_addr},
    {"MASTER_PORT", master_port},
    {"TORCHELASTIC_RESTART_COUNT", restart_count},
    {"TORCHELASTIC_MAX_RESTARTS", max_restarts},
    {"TORCHELASTIC_RUN_ID", run_id},
    {"TORCHELASTIC_USE_AGENT_STORE", agent_store},
    {"TORCHELASTIC_SIGNALS_TO_HANDLE", signals},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", nccl_async},
    {"OMP_NUM_THREADS", omp_num_threads},
    {"NCCL_PROFILER_PLUGIN", profiler},
    {"DLAUNCH_NCCL_PROFILER", next_profiler},
    {"DLAUNCH_PROGRESS_FILE", progress_file},
    {"DLAUNCH_APPNUM", appnum},
    {SEGMENT_ENV_FD, segment_fd},
};

#define GPUS "CUDA_VISIBLE_DEVICES"

/* Variables that an MPI launcher around dlaunch has set for its own processes; see the header. A
 * "*" at the end matches any rest; "!" in front makes an exception to the patterns behind it. */
static const char *const outer_mpi[] = {
    "!PMIX_MCA_*",
    "PMI_*",
    "PMIX_*",
    "SLURM_PMI*",
    "HYDI_*",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_*",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_MCA_ess",
    "OMPI_MCA_ess_base_*",
    "OMPI_MCA_orte_ess_*",
    "OMPI_MCA_orte_hnp_uri",
    "OMPI_MCA_orte_local_daemon_uri",
};

static bool is_outer_mpi(const char *name, size_t len)
{
    /* All the patterns begin with one of these. */
    if (!strchr("PSHMO", name[0]))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(outer_mpi); i++) {
        bool except = outer_mpi[i][0] == '!';
        const char *pattern = outer_mpi[i] + except;
        size_t n = strlen(pattern);
        if (pattern[n - 1] == '*' ? len >= n - 1 && memcmp(name, pattern, n - 1) == 0
                                  : len == n && memcmp(name, pattern, n) == 0)
            return !except;
    }
    return false;
}

/* ------------------------------------------------------------------------------ the common part */

static void add_entry(struct worker_env_shared *s, const char *name, size_t name_len,
                      const char *value)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 128;
        s->at = xrealloc(s->at, s->cap * sizeof(*s->at));
    }
    s->at[s->n++] = s->image.len;
    buf_put(&s->image, name, name_len);
    buf_put(&s->image, "=", 1);
    buf_put(&s->image, value, strlen(value) + 1);
}

/* Marks the variable as settled. False: it was settled before. */
static bool settle(struct map *names, const char *name, size_t len)
{
    void **seen = map_put(names, name, len);
    if (seen && *seen)
        return false;
    if (seen)
        *seen = names;
    return true;
}

/* The entries of the list as the worker would see it: like CUDA, up to the first that cannot be a
 * device; for torchrun, all. NULL if the variable is not set. */
static char **split_gpus(const char *list, bool all, int *n)
{
    *n = 0;
    if (!list)
        return NULL;
    size_t commas = 0;
    for (const char *p = list; *p; p++)
        commas += *p == ',';
    char **gpus = xmalloc((commas + 2) * sizeof(*gpus) + strlen(list) + 1);
    char *p = strcpy((char *)(gpus + commas + 2), list), *gpu;
    while ((gpu = strsep(&p, ","))) {
        gpu += strspn(gpu, " \t");
        gpu[strcspn(gpu, " \t")] = '\0';
        if (!all && (!*gpu || *gpu == '-'))
            break;
        gpus[(*n)++] = gpu;
    }
    gpus[*n] = NULL;
    return gpus;
}

static int share_gpus(struct worker_env_shared *s, const struct job_spec *job, const char *list,
                      struct err *e)
{
    int n;
    s->gpus = split_gpus(list, job->torchrun, &n);
    if (s->gpus && n < job->nproc)
        return err_set(e, -EINVAL,
                       "--virtual_local_rank: " GPUS "=%s names %d GPU%s, too few for %d workers",
                       list, n, n == 1 ? "" : "s", job->nproc);
    return 0;
}

/* The last of two values for one name counts. */
static void share_settings(struct worker_env_shared *s, char *const *env, struct map *names)
{
    size_t n = 0;
    while (env && env[n])
        n++;
    while (n-- > 0) {
        size_t len = strcspn(env[n], "=");
        if (env[n][len] && settle(names, env[n], len))
            add_entry(s, env[n], len, env[n] + len + 1);
    }
}

/* Collects the variables: those of the program and of [env] first, then of features and of the
 * table, then the inherited ones that remain. A variable of the table is never inherited: its
 * value() decides about it. */
static void share_variables(struct worker_env_shared *s, const struct worker_env_input *in,
                            struct map *names)
{
    char tmp[24];
    share_settings(s, in->program ? in->program->env : NULL, names);
    share_settings(s, in->job->env, names);
    for (size_t i = 0; i < ARRAY_LEN(worker_rows); i++) {
        if (!settle(names, worker_rows[i].name, strlen(worker_rows[i].name)))
            s->env_wins |= UINT64_C(1) << i;
    }
    for (char *const *v = in->own; v && *v; v++)
        settle(names, *v, strcspn(*v, "="));
    for (char *const *v = in->variables; v && *v; v++) {
        size_t len = strcspn(*v, "=");
        if (settle(names, *v, len))
            add_entry(s, *v, len, *v + len + 1);
    }
    for (size_t i = 0; i < ARRAY_LEN(shared_rows); i++) {
        const char *name = shared_rows[i].name, *value = shared_rows[i].value(in, tmp);
        if (settle(names, name, strlen(name)) && value)
            add_entry(s, name, strlen(name), value);
    }
    for (char **v = environ; v && *v; v++) {
        size_t len = strcspn(*v, "=");
        if ((*v)[len] && settle(names, *v, len) && (in->job->torchrun || !is_outer_mpi(*v, len)))
            add_entry(s, *v, len, *v + len + 1);
    }
}

static int shared_new(struct worker_env_shared **out, const struct worker_env_input *in,
                      struct err *e)
{
    struct worker_env_shared *s = xcalloc(1, sizeof(*s));
    struct map names;
    map_init(&names);
    if (in->job->virtual_local_rank) {
        int rc = share_gpus(s, in->job, job_env_gpus(in->job), e);
        if (rc < 0) {
            worker_env_shared_free(s);
            return rc;
        }
        settle(&names, GPUS, strlen(GPUS));
    }
    share_variables(s, in, &names);
    bool oom = s->image.oom;
    map_fini(&names, NULL);
    if (oom) {
        worker_env_shared_free(s);
        return err_sys(e, ENOMEM, "environment of the workers");
    }
    *out = s;
    return 0;
}

void worker_env_shared_free(struct worker_env_shared *s)
{
    if (!s)
        return;
    buf_fini(&s->image);
    free(s->at);
    free(s->gpus);
    free(s);
}

/* ----------------------------------------------------------------------------------- one worker */

#define OWN_MAX (ARRAY_LEN(worker_rows) + 1)

/* Adds the entries that only this worker gets. Returns how many. */
static size_t own_entries(const struct worker_env_shared *s, const struct worker_env_input *in,
                          char tmp[][24], const char *names[], const char *values[])
{
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(worker_rows); i++) {
        if (s->env_wins & UINT64_C(1) << i)
            continue;
        names[n] = worker_rows[i].name;
        values[n] = worker_rows[i].value(in, tmp[i]);
        n += values[n] != NULL;
    }
    if (in->job->virtual_local_rank) {
        names[n] = GPUS;
        values[n++] = s->gpus ? s->gpus[in->local_rank]
                              : decimal(tmp[ARRAY_LEN(worker_rows)], in->local_rank);
    }
    return n;
}

/* One block: pointers, the common strings, the worker's own strings. */
static char **compose(const struct worker_env_shared *s, const struct worker_env_input *in)
{
    char tmp[OWN_MAX][24];
    const char *names[OWN_MAX + 1], *values[OWN_MAX + 1];
    size_t own = own_entries(s, in, tmp, names, values), bytes = 0, n = 0, nown = 0;
    for (size_t i = 0; i < own; i++)
        bytes += strlen(names[i]) + strlen(values[i]) + 2;
    for (; in->own && in->own[nown]; nown++)
        bytes += strlen(in->own[nown]) + 1;
    size_t head = (s->n + own + nown + 1) * sizeof(char *);
    char **env = xmalloc(head + s->image.len + bytes);
    char *to = (char *)env + head;
    if (s->image.len)
        memcpy(to, s->image.data, s->image.len);
    for (; n < s->n; n++)
        env[n] = to + s->at[n];
    to += s->image.len;
    for (size_t i = 0; i < own; i++) {
        env[n++] = to;
        to = stpcpy(stpcpy(stpcpy(to, names[i]), "="), values[i]) + 1;
    }
    for (size_t i = 0; i < nown; i++) {
        env[n++] = to;
        to = stpcpy(to, in->own[i]) + 1;
    }
    env[n] = NULL;
    return env;
}

int worker_env_new(char ***out, const struct worker_env_input *in, struct err *e)
{
    struct worker_env_shared *mine = NULL, **shared = in->shared ? in->shared : &mine;
    if (!*shared) {
        int rc = shared_new(shared, in, e);
        if (rc < 0)
            return rc;
    }
    *out = compose(*shared, in);
    worker_env_shared_free(mine);
    return 0;
}

char **worker_argv_new(const struct job_spec *job, int local_rank)
{
    char number[16];
    snprintf(number, sizeof(number), "%d", local_rank);
    struct template_var vars[] = {{"local_rank", number}};
    enum template_syntax syntax = job->torchrun ? TEMPLATE_PYTHON : TEMPLATE_BRACED;
    size_t argc = 0;
    while (job->argv[argc])
        argc++;
    /* Strings that differ from the job's are stored behind the pointers. */
    char **expanded = xcalloc(argc + 2, sizeof(*expanded));
    size_t n = 0, bytes = 0;
    for (size_t i = 0; i <= argc; i++) {
        if (job->launch_local_rank_arg && (int)i == job->local_rank_arg_at) {
            expanded[n] = xasprintf("--local-rank=%s", number);
            bytes += strlen(expanded[n++]) + 1;
        }
        if (i > 0 && i < argc && strchr(job->argv[i], '$')) {
            expanded[n] = template_expand(job->argv[i], vars, ARRAY_LEN(vars), syntax);
            bytes += strlen(expanded[n]) + 1;
        }
        n += i < argc;
    }
    char **argv = xmalloc((n + 1) * sizeof(*argv) + bytes);
    char *to = (char *)(argv + n + 1);
    for (size_t i = 0, from = 0; i < n; i++) {
        bool added = job->launch_local_rank_arg && (int)i == job->local_rank_arg_at;
        argv[i] = expanded[i] ? to : job->argv[from];
        if (expanded[i])
            to = stpcpy(to, expanded[i]) + 1;
        from += !added;
        free(expanded[i]);
    }
    argv[n] = NULL;
    free(expanded);
    return argv;
}

void worker_env_free(char **env)
{
    free(env);
}
