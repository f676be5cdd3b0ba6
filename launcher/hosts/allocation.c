#include "launcher/hosts/allocation.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/process/exec_why.h"
#include "core/hostlist.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/parse.h"
#include "core/slurm.h"
#include "launcher/options/detect.h"
#include "launcher/hosts/host_list.h"

#define HET_GROUP "SLURM_JOB_NODELIST_HET_GROUP_"

static const char *env_get(char *const *envp, const char *name)
{
    size_t n = strlen(name);
    for (; *envp; envp++) {
        if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=' && (*envp)[n + 1])
            return *envp + n + 1;
    }
    return NULL;
}

/* -------------------------------------------------------------------------------------- sources */

/* Whether this process is a task of srun's, and not the script of a job (or a shell in it). */
static bool in_slurm_step(char *const *envp)
{
    const char *step = env_get(envp, "SLURM_STEP_ID");
    long id;
    return step && parse_int(step, 0, LONG_MAX, &id, NULL) == 0 && id < SLURM_STEP_SPECIAL;
}

static int read_list(struct host_list *l, char *const *envp, const char *text, struct err *e)
{
    (void)envp;
    return host_list_add(l, text, e);
}

static const char *het_list(char *const *envp, int group)
{
    char name[sizeof(HET_GROUP) + 12];
    snprintf(name, sizeof(name), HET_GROUP "%d", group);
    return env_get(envp, name);
}

static int read_het_groups(struct host_list *l, char *const *envp, const char *text, struct err *e)
{
    int rc = 0;
    for (int i = 1; text && rc == 0; text = het_list(envp, i++))
        rc = host_list_add(l, text, e);
    return rc;
}

struct name_search {
    const char *name;
    bool found;
};

static bool compare_name(void *arg, const char *name)
{
    struct name_search *s = arg;
    s->found |= strcmp(name, s->name) == 0;
    return !s->found;
}

int allocation_het_group(char *const *envp, const char *host)
{
    struct name_search s = {.name = host};
    struct err e;
    size_t count;
    const char *list;
    for (int i = 0; (list = het_list(envp, i)); i++) {
        if (hostlist_walk(list, compare_name, &s, &count, &e) == 0 && s.found)
            return i;
    }
    return -1;
}

/* "n1 4 n2 4" */
static int read_pairs(struct host_list *l, char *const *envp, const char *text, struct err *e)
{
    (void)envp;
    char *copy = xstrdup(text), *save, *word = strtok_r(copy, " ", &save);
    int rc = 0;
    for (int i = 0; word && rc == 0; i++, word = strtok_r(NULL, " ", &save))
        rc = i % 2 ? 0 : host_list_add(l, word, e);
    free(copy);
    return rc;
}

/* A line for each slot, or for each host with further words behind its name. */
static int read_file(struct host_list *l, char *const *envp, const char *path, struct err *e)
{
    (void)envp;
    char *line = NULL;
    size_t cap = 0;
    int rc = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return err_sys(e, errno, "%s", path);
    while (rc == 0 && getline(&line, &cap, f) > 0) {
        char *word = line + strspn(line, " \t");
        word[strcspn(word, " \t\r\n")] = '\0';
        rc = *word ? host_list_add(l, word, e) : 0;
    }
    free(line);
    fclose(f);
    return rc < 0 ? err_wrap(e, "%s", path) : 0;
}

/* The first row whose two variables are set is used. */
static const struct source {
    const char *scheduler, *id, *hosts;
    int (*read)(struct host_list *l, char *const *envp, const char *value, struct err *e);
    const char *agent; /* ssh where the host has no such program */
} g_sources[] = {
    {"Slurm", "SLURM_JOB_ID", HET_GROUP "0", read_het_groups, "srun"},
    {"Slurm", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", read_list, "srun"},
    {"PBS", "PBS_JOBID", "PBS_NODEFILE", read_file, "pbs_tmrsh"},
    {"LSF", "LSB_JOBID", "LSB_DJOB_HOSTFILE", read_file, "blaunch"},
    {"LSF", "LSB_JOBID", "LSB_MCPU_HOSTS", read_pairs, "blaunch"},
    {"SGE", "JOB_ID", "PE_HOSTFILE", read_file, "qrsh -inherit"},
};

static bool is_slurm(const struct source *s)
{
    return strcmp(s->scheduler, "Slurm") == 0;
}

static const struct source *find_source(char *const *envp)
{
    for (size_t i = 0; i < ARRAY_LEN(g_sources); i++) {
        const struct source *s = &g_sources[i];
        if (env_get(envp, s->id) && env_get(envp, s->hosts))
            return (is_slurm(s) && in_slurm_step(envp)) || env_get(envp, "PALS_NODEID") ? NULL : s;
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------- the options */

/* Returns the number of hosts that the user asks for; 0: not several, or the user has named the
 * place to meet. */
static long hosts_wanted(const struct options *o)
{
    long np = opt_given(o, OPT_np) ? opt_number(o, OPT_np) : 0;
    long ppn = opt_given(o, OPT_ppn) ? opt_number(o, OPT_ppn) : 0, nodes = 1;
    int lo = 0, hi = 0;
    if (*opt_text(o, OPT_rdzv_endpoint) || opt_given(o, OPT_master_addr) ||
        opt_given(o, OPT_node_rank))
        return 0;
    if (opt_given(o, OPT_nnodes) && parse_range(opt_text(o, OPT_nnodes), &lo, &hi, NULL) == 0)
        nodes = hi;
    else if (np && ppn)
        nodes = (np + ppn - 1) / ppn;
    return nodes > 1 ? nodes + opt_number(o, OPT_spares) : 0;
}

/* The program of the scheduler that reaches the hosts, where it is installed. */
static const char *choose_agent(struct options *o, const struct source *s)
{
    struct err e = ERR_INIT;
    char *path = exec_find(options_printf(o, "%.*s", (int)strcspn(s->agent, " "), s->agent), &e);
    const char *agent = path ? s->agent : "ssh";
    free(path);
    return agent;
}

static int set(struct options *o, enum opt_id id, const char *text, const struct source *s,
               struct err *e)
{
    return options_set(o, id, text, FROM_DETECTED, s->hosts, e);
}

static char *names_of(struct options *o, const struct host_list *l, size_t n)
{
    size_t len = 1, at = 0;
    for (size_t i = 0; i < n; i++)
        len += strlen(l->host[i].name) + 1;
    char *text = options_alloc(o, len);
    for (size_t i = 0; i < n; i++)
        at += (size_t)sprintf(text + at, "%s%s", i ? "," : "", l->host[i].name);
    return text;
}

int allocation_read(struct options *o, char *const *envp, struct err *e)
{
    const struct source *s = find_source(envp);
    struct host_list l = {.o = o};
    long wanted = hosts_wanted(o);
    if (!s || o->torchrun || opt_flag(o, OPT_no_detect) || opt_flag(o, OPT_standalone) ||
        !opt_workers(o) || (opt_given(o, OPT_nnodes) && !wanted))
        return 1;
    const char *id = env_get(envp, s->id);
    if (s->read(&l, envp, env_get(envp, s->hosts), e) < 0)
        return err_wrap(e, "%s", s->hosts);
    if (!wanted) {
        if (l.n > 1)
            log_notice("%s job %.40s has %zu nodes, but without --nnodes dlaunch runs on this host "
                       "only; --nnodes %zu runs the job on all of them",
                       s->scheduler, id, l.n, l.n);
        return 1;
    }
    if (wanted > (long)l.n)
        return err_set(e, -EINVAL, "%s %s: %s job %.40s has %zu node%s (--no_detect ignores %s)",
                       opt_where(o, opt_given(o, OPT_nnodes) ? OPT_nnodes : OPT_np),
                       opt_text(o, opt_given(o, OPT_nnodes) ? OPT_nnodes : OPT_np), s->scheduler,
                       id, l.n, l.n == 1 ? "" : "s", s->scheduler);
    if (set(o, OPT_host, names_of(o, &l, (size_t)wanted), s, e) < 0 ||
        (!opt_given(o, OPT_launch_agent) && set(o, OPT_launch_agent, choose_agent(o, s), s, e) < 0))
        return -EINVAL;
    if (is_slurm(s) && set(o, OPT_shutdown_timeout, SCHEDULER_GRACE, s, e) < 0)
        return -EINVAL;
    log_notice("%s job %.40s: starting on %ld of its %zu nodes by %s (--no_detect to ignore)",
               s->scheduler, id, wanted, l.n, opt_text(o, OPT_launch_agent));
    return 0;
}
