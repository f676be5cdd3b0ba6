/* doubles.c: weak stand-ins for the parts of agent/ and rendezvous/ that the launcher calls, so
 * that it links and can be tested by itself. Every one of them gives way to the real function. This
 * file goes when they are all there. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/guardian.h"
#include "agent/placement.h"
#include "agent/spawn.h"
#include "agent/worker_env.h"
#include "core/mem.h"

#define WEAK __attribute__((weak))

extern char **environ;

WEAK void rdzv_config_defaults(struct rdzv_config *c)
{
    *c = (struct rdzv_config){.min_nodes = 1,
                              .max_nodes = 1,
                              .node_rank = -1,
                              .nproc = 1,
                              .is_host = -1,
                              .join_timeout = 600,
                              .last_call_timeout = 30,
                              .close_timeout = 30,
                              .keep_alive_interval = 5,
                              .keep_alive_max_attempt = 3,
                              .read_timeout = 60,
                              .agent_store = true};
}

WEAK void rank_table_init(struct rank_table *t)
{
    memset(t, 0, sizeof(*t));
}

WEAK int rank_table_alloc(struct rank_table *t, int nnodes)
{
    t->nodes = calloc((size_t)nnodes, sizeof(*t->nodes));
    t->nnodes = nnodes;
    return t->nodes ? 0 : -ENOMEM;
}

WEAK void rank_table_fini(struct rank_table *t)
{
    free(t->nodes);
    rank_table_init(t);
}

WEAK int rank_table_compute(struct rank_table *t, struct err *e)
{
    (void)e;
    t->world_size = 0;
    for (int i = 0; i < t->nnodes; i++) {
        t->nodes[i].base_rank = t->nodes[i].role_base_rank = t->world_size;
        t->world_size += t->nodes[i].nproc;
    }
    for (int i = 0; i < t->nnodes; i++)
        t->nodes[i].role_world_size = t->world_size;
    return 0;
}

WEAK int worker_env_new(char ***out, const struct worker_env_input *in, struct err *e)
{
    size_t n = 0, own = 0;
    const struct rank_table_node *node = &in->table->nodes[in->group_rank];
    (void)e;
    while (environ[own])
        own++;
    char **env = xcalloc(own + 32, sizeof(*env));
    for (; n < own; n++)
        env[n] = xstrdup(environ[n]);
    env[n++] = xasprintf("LOCAL_RANK=%d", in->local_rank);
    env[n++] = xasprintf("RANK=%d", node->base_rank + in->local_rank);
    env[n++] = xasprintf("GROUP_RANK=%d", in->group_rank);
    env[n++] = xasprintf("ROLE_RANK=%d", node->role_base_rank + in->local_rank);
    env[n++] = xasprintf("ROLE_NAME=%s", in->job->role);
    env[n++] = xasprintf("LOCAL_WORLD_SIZE=%d", in->job->nproc);
    env[n++] = xasprintf("WORLD_SIZE=%d", in->table->world_size);
    env[n++] =
        xasprintf("MASTER_ADDR=%s", in->master_addr ? in->master_addr : in->table->master_addr);
    env[n++] = xasprintf("MASTER_PORT=%d", in->table->master_port);
    if (in->job->omp_num_threads)
        env[n++] = xasprintf("OMP_NUM_THREADS=%s", in->job->omp_num_threads);
    *out = env;
    return 0;
}

WEAK char **worker_argv_new(const struct job_spec *job, int local_rank)
{
    size_t n = 0;
    (void)local_rank;
    while (job->argv[n])
        n++;
    char **argv = xcalloc(n + 1, sizeof(*argv));
    for (size_t i = 0; i < n; i++)
        argv[i] = xstrdup(job->argv[i]);
    return argv;
}

WEAK void worker_env_free(char **env)
{
    for (char **p = env; p && *p; p++)
        free(*p);
    free(env);
}

WEAK int placement_new(struct placement **out, enum bind_mode mode, int nproc, struct err *e)
{
    (void)mode, (void)nproc, (void)e;
    *out = NULL;
    return 0;
}

WEAK void placement_free(struct placement *p)
{
    (void)p;
}

WEAK const char *placement_describe(const struct placement *p, int local_rank, char *out,
                                    size_t cap)
{
    (void)p, (void)local_rank;
    snprintf(out, cap, "all CPUs");
    return out;
}

WEAK int usable_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

WEAK int exec_check(const char *path, int *exit_code, struct err *e)
{
    struct stat st;
    int errnum = stat(path, &st) < 0      ? errno
                 : S_ISDIR(st.st_mode)    ? EISDIR
                 : access(path, X_OK) < 0 ? errno
                                          : 0;
    if (!errnum)
        return 0;
    *exit_code = errnum == ENOENT || errnum == ENOTDIR ? 127 : 126;
    return err_sys(e, errnum, "exec %s", path);
}

WEAK char *exec_find(const char *name, struct err *e)
{
    const char *path = getenv("PATH"), *end;
    if (strchr(name, '/'))
        return xstrdup(name);
    for (path = path ? path : "/bin:/usr/bin"; *path; path = *end ? end + 1 : end) {
        end = path + strcspn(path, ":");
        char *full = xasprintf("%.*s/%s", (int)(end - path), path, name);
        if (access(full, X_OK) == 0)
            return full;
        free(full);
    }
    err_set(e, -ENOENT, "%s: not found in PATH", name);
    return NULL;
}

WEAK int guardian_run(const struct guardian_opts *opts,
                      int (*agent_main)(void *arg, struct guardian_link *), void *arg)
{
    static struct guard_page page;
    struct guardian_link link = {-1, getpid(), &page};
    (void)opts;
    return agent_main(arg, &link);
}

WEAK int agent_open(struct agent **out, uv_loop_t *loop, const struct job_spec *job,
                    struct guardian_link *link, void (*on_done)(void *arg, int exit_status),
                    void *arg, struct err *e)
{
    (void)out, (void)loop, (void)job, (void)link, (void)on_done, (void)arg;
    return err_set(e, -ENOSYS, "this build has no agent");
}

WEAK void agent_stop(struct agent *a, const char *why)
{
    (void)a, (void)why;
}

WEAK void agent_get_status(struct agent *a, struct agent_status *out)
{
    (void)a;
    memset(out, 0, sizeof(*out));
}
