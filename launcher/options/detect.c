#include "launcher/options/detect.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/hash.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "core/parse.h"
#include "core/slurm.h"
#include "core/hostlist.h"
#include "launcher/options/job_build.h"

static const char *env_get(char *const *envp, const char *name)
{
    size_t n = strlen(name);
    for (; *envp; envp++) {
        if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=' && (*envp)[n + 1])
            return *envp + n + 1;
    }
    return NULL;
}

/* The first of the variables (NULL-terminated) that is set to a number; its name in *which. */
static long env_number(char *const *envp, const char *const *names, const char **which)
{
    long v;
    for (; *names; names++) {
        const char *text = env_get(envp, *names);
        if (text && parse_int(text, 0, LONG_MAX, &v, NULL) == 0) {
            *which = *names;
            return v;
        }
    }
    *which = NULL;
    return -1;
}

static int set(struct options *o, enum opt_id id, const char *text, const char *source,
               struct err *e)
{
    return options_set(o, id, text, FROM_DETECTED, source, e);
}

/* Whether the user asked for a job on this node alone. */
static bool one_node(const struct options *o)
{
    int lo = 0, hi = 0;
    parse_range(opt_text(o, OPT_nnodes), &lo, &hi, NULL);
    return opt_flag(o, OPT_standalone) || (opt_given(o, OPT_nnodes) && hi == 1);
}

/* Whether the user said where the nodes meet. */
static bool where_given(const struct options *o)
{
    return *opt_text(o, OPT_rdzv_endpoint) || opt_given(o, OPT_master_addr);
}

/* Whether the scheduler's number of this node is to be its rank. To be asked before an address is
 * set. */
static bool takes_rank(const struct options *o, long number)
{
    int lo = 0, hi = 0;
    parse_range(opt_text(o, OPT_nnodes), &lo, &hi, NULL);
    if (opt_given(o, OPT_node_rank) || (number >= hi && opt_number(o, OPT_spares)))
        return false; /* or the node is a spare */
    if (strcmp(opt_text(o, OPT_rdzv_backend), "static") == 0)
        return true;
    /* Nodes of other steps or jobs, numbered from 0 as well, may come to a place of the user's; and
     * torchrun's backends give the ranks themselves. */
    if (o->torchrun || where_given(o))
        return false;
    /* An elastic job keeps those that are too many waiting. */
    return lo == hi || number < hi;
}

static bool is_c10d(const struct options *o)
{
    return strcmp(opt_text(o, OPT_rdzv_backend), "c10d") == 0;
}

/* torchrun's c10d takes an endpoint, and no master's address. */
static bool takes_address(const struct options *o)
{
    return !o->torchrun || !is_c10d(o);
}

/* One line for what was found: `what` is "Slurm step 123.0" or the like. */
static void say(struct options *o, const char *what, const char *how_to_ignore)
{
    const char *rank = opt_text(o, OPT_node_rank), *where = opt_text(o, OPT_rdzv_endpoint);
    bool any = strcmp(rank, "any") == 0, c10d = is_c10d(o) && !opt_given(o, OPT_master_port);
    if (*where)
        where = options_printf(o, "head %s", where);
    else if (!takes_address(o))
        where = "no --rdzv_endpoint";
    else
        where = options_printf(o, "head %s, port %ld", opt_text(o, OPT_master_addr),
                               c10d ? C10D_PORT : opt_number(o, OPT_master_port));
    const char *spares = opt_number(o, OPT_spares)
                             ? options_printf(o, " and %s to spare", opt_text(o, OPT_spares))
                             : "";
    log_notice("%s: %s nodes%s%s%s, %s%s", what, opt_text(o, OPT_nnodes), spares,
               any ? "" : ", this is node ", any ? "" : rank, where, how_to_ignore);
}
#define TO_IGNORE " (--no_detect to ignore)"

/* ---------------------------------------------------------------------------------------- Slurm */

/* Whether any count of "2(x3),1" is above 1. */
static bool any_above_one(const char *counts)
{
    while (counts && *counts) {
        if (strtol(counts, NULL, 10) > 1)
            return true;
        counts += strcspn(counts, ",");
        counts += *counts == ',';
    }
    return false;
}

static bool keep_first(void *arg, const char *name)
{
    snprintf(arg, HOST_MAX, "%s", name);
    return false;
}

static int slurm_head(struct options *o, char *const *envp, char head[HOST_MAX],
                      const char **source, struct err *e)
{
    static const char *const names[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
                                        "SLURM_NODELIST"};
    size_t count;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *list = env_get(envp, names[i]);
        if (!list)
            continue;
        if (hostlist_walk(list, keep_first, head, &count, e) < 0)
            return err_wrap(e, "%s", names[i]);
        o->nodelist = list;
        *source = names[i];
        return 0;
    }
    return err_set(e, -EINVAL,
                   "this Slurm step has no SLURM_STEP_NODELIST; use --no_detect to ignore Slurm");
}

static long slurm_tasks(char *const *envp)
{
    static const char *const names[] = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", NULL};
    const char *which;
    return env_number(envp, names, &which);
}

/* The step's nodes become the job's nodes: one launcher on each. All tasks of a wrong step find
 * that out; the first one says it. (srun refuses --ntasks-per-node=1 alone where the job has
 * --ntasks.) */
static int slurm_check_tasks(struct options *o, char *const *envp, long nnodes, struct err *e)
{
    static const char *const per_node_names[] = {"SLURM_NTASKS_PER_NODE", NULL};
    static const char *const rank_names[] = {"SLURM_PROCID", NULL};
    const char *which;
    long tasks = slurm_tasks(envp), per_node = env_number(envp, per_node_names, &which);
    if (tasks <= nnodes && !any_above_one(env_get(envp, "SLURM_STEP_TASKS_PER_NODE")))
        return 0;
    if (env_number(envp, rank_names, &which) > 0)
        return err_set(e, -EINVAL, "%s", "");
    const char *workers = opt_given(o, OPT_nproc_per_node) ? opt_text(o, OPT_nproc_per_node) : "N";
    char drop[64] = "start one dlaunch per node";
    if (per_node > 1)
        snprintf(drop, sizeof(drop), "leave out --ntasks-per-node=%ld", per_node);
    return err_set(e, -EINVAL,
                   "the Slurm step has %ld tasks on %ld node%s, each of which would start "
                   "--nproc_per_node %s workers; %s: srun --nodes=%ld --ntasks=%ld "
                   "--ntasks-per-node=1 dlaunch --nproc_per_node %s ... (--no_detect ignores "
                   "Slurm, --standalone runs a job on this node only)",
                   tasks, nnodes, nnodes == 1 ? "" : "s", workers, drop, nnodes, nnodes, workers);
}

/* A step of one node: each launcher in it is a job of its own, though several of them may be a
 * mistake. (Under a terminal srun keeps one task, whatever it was asked for.) */
static void slurm_one_node(char *const *envp, long job, long step)
{
    static const char *const rank_names[] = {"SLURM_PROCID", NULL};
    const char *which;
    long tasks = slurm_tasks(envp);
    if (tasks > 1 && !env_get(envp, "SLURM_PTY_PORT") && env_number(envp, rank_names, &which) <= 0)
        log_notice("Slurm step %ld.%ld has %ld tasks on this node, and each dlaunch is a separate "
                   "job; to start N workers by one dlaunch, use srun --ntasks=1 dlaunch "
                   "--nproc_per_node N ...",
                   job, step, tasks);
}

static int slurm_step(struct options *o, char *const *envp, long job, long step, struct err *e)
{
    static const char *const nnodes_names[] = {"SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES",
                                               "SLURM_NNODES", NULL};
    static const char *const restart_names[] = {"SLURM_RESTART_COUNT", NULL};
    const char *from_nnodes, *from_head = NULL, *from_restart;
    long nnodes = env_number(envp, nnodes_names, &from_nnodes);
    long restart = env_number(envp, restart_names, &from_restart);
    const char *id_of_node = env_get(envp, "SLURM_NODEID");
    char head[HOST_MAX];
    int lo = 0, hi = 0;
    parse_range(opt_text(o, OPT_nnodes), &lo, &hi, NULL);
    if (nnodes < 1)
        return 0;
    /* A job with more nodes than the step has, and a place where they meet, consists of several
     * steps (one srun for each node is usual): no fact about this step holds for the job. */
    if (hi > nnodes && where_given(o))
        return 0;
    /* Launchers of other steps, spare nodes for one, may come to a place of the user's. To that of
     * the step comes the same step of a requeued job, which must not meet what is left of itself.
     */
    bool place = *opt_text(o, OPT_rdzv_endpoint) ||
                 (opt_given(o, OPT_master_addr) && opt_given(o, OPT_master_port));
    const char *id = restart > 0 ? options_printf(o, "%ld.%ld.%ld", job, step, restart)
                                 : options_printf(o, "%ld.%ld", job, step);
    if (!place && set(o, OPT_rdzv_id, id, "SLURM_JOB_ID", e) < 0)
        return -EINVAL;
    if (nnodes == 1 && !opt_given(o, OPT_nnodes)) {
        slurm_one_node(envp, job, step);
        return 0;
    }
    bool nnodes_given = opt_given(o, OPT_nnodes);
    long spares = opt_number(o, OPT_spares); /* which are nodes of the step, too */
    if (set(o, OPT_nnodes, options_printf(o, "%ld", nnodes > spares ? nnodes - spares : nnodes),
            from_nnodes, e) < 0)
        return -EINVAL;
    bool rank = takes_rank(o, strtol(id_of_node, NULL, 10));
    bool taken = rank || !place || !nnodes_given;
    if (taken && slurm_check_tasks(o, envp, nnodes, e) < 0)
        return -EINVAL;
    if (slurm_head(o, envp, head, &from_head, e) < 0 ||
        (rank && set(o, OPT_node_rank, id_of_node, "SLURM_NODEID", e) < 0))
        return -EINVAL;
    if (takes_address(o) &&
        (set(o, OPT_master_addr, options_printf(o, "%s", head), from_head, e) < 0 ||
         set(o, OPT_master_port, options_printf(o, "%d", slurm_port(job, step)), "SLURM_JOB_ID",
             e) < 0))
        return -EINVAL;
    if (taken)
        say(o, options_printf(o, "Slurm step %ld.%ld", job, step), TO_IGNORE);
    return 1;
}

/* 1 when its values are used, 0 when there is no step. */
static int detect_slurm(struct options *o, char *const *envp, struct err *e)
{
    static const char *const job_names[] = {"SLURM_JOB_ID", "SLURM_JOBID", NULL};
    static const char *const step_names[] = {"SLURM_STEP_ID", "SLURM_STEPID", NULL};
    const char *which;
    long job = env_number(envp, job_names, &which), step = env_number(envp, step_names, &which);
    if (job < 0)
        return 0;
    if (step >= 0 && step < SLURM_STEP_SPECIAL && env_get(envp, "SLURM_NODEID"))
        return slurm_step(o, envp, job, step, e);
    return 0;
}

/* ----------------------------------------------------------------------------------- Flux, PALS */

/* The starters that run a launcher on each node, with the variables by which they are known. */
static const struct starter {
    const char *name, *command, *id;
    const char *node;         /* number of this launcher: one for each node */
    const char *local;        /* the launcher's number on this node */
    const char *nodes, *size; /* of the job; NULL: not said */
    const char *hosts;        /* names a file with a line for each slot; NULL: none */
} g_starters[] = {
    {"Flux", "flux run -N2 -n2", "FLUX_JOB_ID", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID",
     "FLUX_JOB_NNODES", "FLUX_JOB_SIZE", NULL},
    {"PALS", "mpiexec -n 2 --ppn 1", "PALS_APID", "PALS_NODEID", "PALS_LOCAL_RANKID", NULL, NULL,
     "PBS_NODEFILE"},
};

static long starter_number(char *const *envp, const char *name)
{
    const char *const names[] = {name, NULL}, *which;
    return name ? env_number(envp, names, &which) : -1;
}

static bool is_among(char *const *names, long n, const char *name)
{
    for (long i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

/* Returns the number of hosts in the file; the first one in head. */
static long read_hosts(const char *path, char head[HOST_MAX], struct err *e)
{
    char *line = NULL, **names = NULL;
    size_t cap = 0;
    long n = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return err_sys(e, errno, "PBS_NODEFILE: %s", path);
    while (getline(&line, &cap, f) > 0) {
        line[strcspn(line, " \t\r\n")] = '\0';
        if (!*line || is_among(names, n, line))
            continue;
        names = xrealloc(names, (size_t)(n + 1) * sizeof(*names));
        names[n++] = xstrdup(line);
    }
    snprintf(head, HOST_MAX, "%s", n ? names[0] : "");
    for (long i = 0; i < n; i++)
        free(names[i]);
    free(names);
    free(line);
    fclose(f);
    return n;
}

/* A port that all nodes derive from the job's id, as slurm_port() does; the id may be a word. */
static int port_of(const char *id)
{
    uint64_t h = 0;
    for (; *id; id++)
        h = hash_add(h, (unsigned char)*id);
    return 20000 + (int)(h % 10000);
}

static int detect_starter(struct options *o, char *const *envp, const struct starter *s,
                          struct err *e)
{
    const char *id = env_get(envp, s->id), *file = s->hosts ? env_get(envp, s->hosts) : NULL;
    long node = starter_number(envp, s->node), local = starter_number(envp, s->local);
    long nodes = starter_number(envp, s->nodes), size = starter_number(envp, s->size);
    char head[HOST_MAX] = "";
    if (file && (nodes = read_hosts(file, head, e)) < 0)
        return -EINVAL;
    if (nodes <= 1 && !opt_given(o, OPT_nnodes))
        return 0;
    if ((nodes > 0 && size > nodes) || local > 0) {
        bool says = size > nodes ? node == 0 : node == 0 && local == 1;
        return err_set(e, -EINVAL,
                       says ? "%s job %.40s has several dlaunch on a node, each of "
                              "which would start all workers of the node; start one "
                              "for each node: %s dlaunch ... (--no_detect ignores %s)"
                            : "",
                       s->name, id, s->command, s->name);
    }
    bool need_head = !where_given(o) && takes_address(o), rank = takes_rank(o, node);
    if (need_head && !*head)
        return err_set(e, -EINVAL,
                       "%s job %.40s, launcher %ld: where the nodes meet is in no variable; give "
                       "--master_addr, such as --master_addr $(flux hostlist -n 0 local)",
                       s->name, id, node);
    if (need_head && (set(o, OPT_rdzv_id, id, s->id, e) < 0 ||
                      set(o, OPT_master_addr, options_printf(o, "%s", head), s->hosts, e) < 0 ||
                      set(o, OPT_master_port, options_printf(o, "%d", port_of(id)), s->id, e) < 0))
        return -EINVAL;
    long spares = opt_number(o, OPT_spares);
    if (nodes > 1 &&
        set(o, OPT_nnodes, options_printf(o, "%ld", nodes > spares ? nodes - spares : nodes),
            s->nodes ? s->nodes : s->hosts, e) < 0)
        return -EINVAL;
    if (rank && set(o, OPT_node_rank, options_printf(o, "%ld", node), s->node, e) < 0)
        return -EINVAL;
    say(o, options_printf(o, "%s job %.40s", s->name, id), TO_IGNORE);
    return 1;
}

static int detect_starters(struct options *o, char *const *envp, struct err *e)
{
    for (size_t i = 0; i < sizeof(g_starters) / sizeof(g_starters[0]); i++) {
        const struct starter *s = &g_starters[i];
        if (env_get(envp, s->id) && starter_number(envp, s->node) >= 0)
            return detect_starter(o, envp, s, e);
    }
    return 0;
}

/* ----------------------------------------------------------------------------------- Kubernetes */

/* Whether text ends in "-<index>"; *stem receives the length of what is in front of it. */
static bool ends_in_index(const char *text, size_t len, long *index, size_t *stem)
{
    size_t n = len;
    char digits[12];
    while (n && isdigit((unsigned char)text[n - 1]))
        n--;
    if (n < 2 || n == len || text[n - 1] != '-' || len - n >= sizeof(digits))
        return false;
    memcpy(digits, text + n, len - n);
    digits[len - n] = '\0';
    *index = strtol(digits, NULL, 10);
    *stem = n - 1;
    return true;
}

/* The domain of this pod ("svc.ns.svc.cluster.local"): behind its host name, or in /etc/hosts,
 * where the kubelet writes "<address> <full name> <name>". */
static bool pod_domain(const struct detect_host *host, char *out, size_t cap)
{
    char text[16384], *save_line, *save_word;
    const char *dot = strchr(host->name, '.');
    if (dot)
        return snprintf(out, cap, "%s", dot + 1) < (int)cap;
    size_t n = strlen(host->name);
    if (fd_read_file(AT_FDCWD, host->hosts_file, text, sizeof(text)) < 0)
        return false;
    for (char *line = strtok_r(text, "\n", &save_line); line;
         line = strtok_r(NULL, "\n", &save_line)) {
        line[strcspn(line, "#")] = '\0';
        for (char *w = strtok_r(line, " \t", &save_word); w;
             w = strtok_r(NULL, " \t", &save_word)) {
            if (strncmp(w, host->name, n) == 0 && w[n] == '.' && w[n + 1])
                return snprintf(out, cap, "%s", w + n + 1) < (int)cap;
        }
    }
    return false;
}

/* A JobSet's pods are <jobset>-<replicated job>-<job>-<pod>, in the domain <jobset> unless told
 * otherwise. Returns the job's index in it, or -1 for another kind of job. */
static long jobset_job(const char *stem, size_t len, const char *domain, size_t *name_len)
{
    size_t label = strcspn(domain, "."), rest;
    long job;
    if (len <= label + 1 || strncmp(stem, domain, label) != 0 || stem[label] != '-' ||
        !ends_in_index(stem, len, &job, &rest) || rest <= label + 1)
        return -1;
    *name_len = label;
    return job;
}

static int detect_kubernetes(struct options *o, char *const *envp, const struct detect_host *host,
                             struct err *e)
{
    static const char *const index_names[] = {"JOB_COMPLETION_INDEX", NULL};
    const char *which;
    char domain[HOST_MAX] = "";
    size_t name_len = strcspn(host->name, "."), stem = 0, jobset = 0;
    long index = env_number(envp, index_names, &which), last = -1;
    if (index < 0)
        return 0;
    if (!opt_given(o, OPT_nnodes)) {
        log_notice(
            "indexed Kubernetes job, pod %ld: without --nnodes the job runs on this pod only",
            index);
        return 0;
    }
    bool rank = takes_rank(o, index), need_head = !where_given(o) && takes_address(o);
    if (!rank && !need_head)
        return 0;
    bool named = ends_in_index(host->name, name_len, &last, &stem) && last == index &&
                 pod_domain(host, domain, sizeof(domain));
    long job = named ? jobset_job(host->name, stem, domain, &jobset) : -1;
    /* Or a plain job, whose name begins as that of its service does. */
    if (job > 0 && need_head)
        return err_set(e, -EINVAL,
                       "%.*s looks like job %ld of JobSet %.*s, and this is pod %ld of it: for a "
                       "JobSet of several jobs give --master_addr and --node_rank "
                       "(job-global-index times pods per job, plus pod); for a plain Job give "
                       "--master_addr of pod 0 (--no_detect ignores Kubernetes)",
                       (int)stem, host->name, job, (int)jobset, host->name, index);
    if (job > 0)
        log_warn("%.*s looks like job %ld of JobSet %.*s: if that has several jobs, give each pod "
                 "its --node_rank",
                 (int)stem, host->name, job, (int)jobset, host->name);
    if (!named && need_head)
        return err_set(e, -EINVAL,
                       "indexed Kubernetes job, pod %ld (%.80s): cannot find the address of pod 0; "
                       "set the pods' subdomain to a headless service, or give --master_addr",
                       index, host->name);
    if (rank && set(o, OPT_node_rank, options_printf(o, "%ld", index), which, e) < 0)
        return -EINVAL;
    /* Pods of several kinds may come to a place of the user's, each with a name of its own. */
    if (need_head &&
        (set(o, OPT_master_addr, options_printf(o, "%.*s-0.%s", (int)stem, host->name, domain),
             "pod name", e) < 0 ||
         set(o, OPT_rdzv_id, options_printf(o, "%.*s", (int)stem, host->name), "pod name", e) < 0))
        return -EINVAL;
    say(o,
        options_printf(o, "%s %.*s", job == 0 ? "JobSet" : "indexed Kubernetes job",
                       (int)(job == 0 ? jobset
                             : named  ? stem
                                      : name_len),
                       host->name),
        TO_IGNORE);
    return 1;
}

/* Kubeflow's operators say everything in PET_*. */
static bool say_kubeflow(struct options *o)
{
    if (o->value[OPT_nnodes].from != FROM_PET || o->value[OPT_node_rank].from != FROM_PET)
        return false;
    say(o, "Kubeflow (PET_*)", "");
    return true;
}

/* A program may keep its own message there, which dlaunch hands on (TORCHELASTIC_ERROR_FILE). */
static int detect_pod_message(struct options *o, char *const *envp, const char *path, struct err *e)
{
    const char *error_file = env_get(envp, "TORCHELASTIC_ERROR_FILE");
    if (!path || access(path, W_OK) < 0 || (error_file && strcmp(error_file, path) == 0))
        return 0;
    return set(o, OPT_pod_message, path, "Kubernetes", e);
}

int detect(struct options *o, char *const *envp, const struct detect_host *host, struct err *e)
{
    if (opt_flag(o, OPT_no_detect) || !opt_workers(o))
        return 0;
    bool kubernetes = env_get(envp, "KUBERNETES_SERVICE_HOST") != NULL;
    if ((kubernetes || env_get(envp, "SLURM_JOB_ID")) &&
        set(o, OPT_shutdown_timeout, SCHEDULER_GRACE, kubernetes ? "Kubernetes" : "Slurm", e) < 0)
        return -EINVAL;
    if (kubernetes && detect_pod_message(o, envp, host->pod_message, e) < 0)
        return -EINVAL;
    if (one_node(o))
        return 0;
    if (kubernetes && say_kubeflow(o))
        return 0;
    int rc = kubernetes ? detect_kubernetes(o, envp, host, e) : 0;
    if (rc == 0)
        rc = detect_slurm(o, envp, e);
    if (rc == 0)
        rc = detect_starters(o, envp, e);
    return rc < 0 ? rc : 0;
}
