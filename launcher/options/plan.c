#include "launcher/options/plan.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "agent/base/job_env.h"
#include "agent/device/placement.h"
#include "agent/worker_env.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "core/hostlist.h"
#include "launcher/options/shell_split.h"

#define LABEL      12 /* column of the values */
#define NODES_MAX  16 /* rows of the node table */
#define VALUE_WIDE 32 /* a longer value pushes its source to the right */

extern char **environ;

static int plan_finish(FILE *out)
{
    return fflush(out) != 0 || ferror(out) ? -(errno ? errno : EIO) : 0;
}

/* Prints text of other programs or users; control characters are made visible. */
static void put_escaped(FILE *out, const char *text)
{
    size_t len = strlen(text), cap = 4 * len + 5;
    char *shown = xmalloc(cap);
    log_escape(shown, cap, text, len, 0);
    fputs(shown, out);
    free(shown);
}

/* Quotes words for a shell. Returns malloc'ed text. */
static char *quoted_words(char *const *words)
{
    size_t len = 0;
    for (char *const *w = words; *w; w++)
        len += shell_quote(*w, NULL, 0) + 1;
    char *text = xcalloc(len + 1, 1), *p = text;
    for (char *const *w = words; *w; w++) {
        if (w != words)
            *p++ = ' ';
        p += shell_quote(*w, p, len + 1 - (size_t)(p - text));
    }
    return text;
}

/* --------------------------------------------------------------------------------- print_config */

static void config_line(FILE *out, const char *name, const char *value, const char *source)
{
    size_t cap = 4 * strlen(value) + 5;
    char *shown = xmalloc(cap);
    log_escape(shown, cap, value, strlen(value), 0);
    fprintf(out, "%-24s  %-*s  %s\n", name, VALUE_WIDE, *shown ? shown : "-", source);
    free(shown);
}

int plan_print_config(FILE *out, const struct options *o)
{
    for (int i = 0; i < OPT_COUNT; i++) {
        const struct opt *opt = &opt_table[i];
        const char *text = opt_text(o, i);
        if (opt->flags & OPT_F_CLI)
            continue;
        if (opt->kind == KIND_FLAG)
            text = opt_flag(o, i) ? "yes" : "no";
        config_line(out, OPT_KEY(opt), text, o->value[i].source);
    }
    char *command = o->command ? quoted_words(o->command) : NULL;
    config_line(out, "command", command ? command : "", o->command ? o->command_source : "default");
    free(command);
    for (size_t i = 0; i < o->nenv; i++) {
        const char *eq = strchr(o->env[i], '=');
        char *name = xasprintf("[env] %.*s", (int)(eq - o->env[i]), o->env[i]);
        config_line(out, name, eq + 1, o->env_source[i]);
        free(name);
    }
    return plan_finish(out);
}

/* ------------------------------------------------------------------------------------- the plan */

static void label(FILE *out, const char *name)
{
    fprintf(out, "%-*s", LABEL, name);
}

static const char *plan_seconds(double s, char out[32])
{
    if (s >= 60 && s == 60 * (double)(long)(s / 60))
        snprintf(out, 32, "%ld min", (long)(s / 60));
    else
        snprintf(out, 32, "%g s", s);
    return out;
}

static void print_rendezvous(FILE *out, const struct rdzv_config *c)
{
    static const char *const names[] = {
        [RDZV_STATIC] = "static", [RDZV_C10D] = "c10d", [RDZV_FILE] = "file", [RDZV_ETCD] = "etcd"};
    char at[HOST_MAX + 16], t[32];
    label(out, "Rendezvous");
    if (c->max_nodes == 1 && c->endpoint_port == 0 && c->backend == RDZV_C10D) {
        fputs("none needed: one node, on a free port of loopback\n", out);
        return;
    }
    fprintf(out, "%s at ", names[c->backend]);
    if (c->backend == RDZV_FILE)
        put_escaped(out, c->endpoint_path);
    else
        fputs(endpoint_format(at, sizeof(at), c->endpoint_host[0] ? c->endpoint_host : "*",
                              c->endpoint_port),
              out);
    for (int i = 0; i < c->nmore; i++)
        fprintf(out, ", %s", endpoint_format(at, sizeof(at), c->more[i].host, c->more[i].port));
    if (c->node_rank >= 0)
        fprintf(out, "; this is node %d", c->node_rank);
    fprintf(out, "; waits for %s", plan_seconds(c->join_timeout, t));
    if (c->min_nodes < c->max_nodes)
        fprintf(out, ", for more than %d nodes %s", c->min_nodes,
                plan_seconds(c->last_call_timeout, t));
    fputc('\n', out);
}

/* A line with a text of the user's. */
static void print_text(FILE *out, const char *name, const char *text)
{
    label(out, name);
    put_escaped(out, text);
    fputc('\n', out);
}

static const char *std_name(uint8_t std)
{
    static const char *const names[] = {"", "stdout", "stderr", "both streams"};
    return names[std & STD_BOTH];
}

/* A line for each program, with its ranks in front. */
static void print_programs(FILE *out, const struct programs *p)
{
    for (int i = 0; i < p->n; i++) {
        const char *comma = "";
        char *command = quoted_words(p->list[i].argv);
        if (i)
            fprintf(out, "\n%*s", LABEL, "");
        for (int k = 0; k < p->nspans; k++) {
            const struct program_span *s = &p->spans[k];
            if (s->program != i)
                continue;
            fprintf(out, s->first == s->last ? "%s%d" : "%s%d-%d", comma, s->first, s->last);
            comma = ",";
        }
        fprintf(out, "%s  ", p->rest == i ? "other ranks" : "");
        put_escaped(out, command);
        free(command);
        if (p->list[i].cwd) {
            fputs("  in ", out);
            put_escaped(out, p->list[i].cwd);
        }
    }
}

static void print_size(FILE *out, const struct job_spec *job)
{
    const struct rdzv_config *c = &job->rdzv;
    label(out, "Job");
    if (c->min_nodes < c->max_nodes)
        fprintf(out, "%d to %d nodes", c->min_nodes, c->max_nodes);
    else
        fprintf(out, "%d node%s", c->max_nodes, c->max_nodes == 1 ? "" : "s");
    if (c->spares)
        fprintf(out, " and %d spare", c->spares);
    if (job->nproc)
        fprintf(out, ", %d worker%s on this one (", job->nproc, job->nproc == 1 ? "" : "s");
    else
        fprintf(out, ", none of them this one (");
    put_escaped(out, job->host);
    fputs("), run id ", out);
    put_escaped(out, c->run_id);
    fputc('\n', out);
}

static void print_command(FILE *out, const struct job_spec *job)
{
    label(out, "Command");
    if (job->programs) {
        print_programs(out, job->programs);
    } else if (job->path) {
        char *command = quoted_words(job->argv);
        put_escaped(out, command);
        free(command);
    } else {
        fputs(job->rdzv.is_host == 1 ? "none: the coordinator alone" : "none: a witness", out);
    }
    fputc('\n', out);
    if (job->cwd && !job->programs)
        print_text(out, "Folder", job->cwd);
    if (job->path && !job->programs && strcmp(job->path, job->argv[0]) != 0)
        print_text(out, "File", job->path);
}

static void print_ends(FILE *out, const struct job_spec *job)
{
    const struct rdzv_config *c = &job->rdzv;
    char t[32];
    label(out, "Restarts");
    if (c->max_restarts == 0)
        fputs("none\n", out);
    else
        fprintf(out, "%d, of %s\n", c->max_restarts,
                c->restart_policy == RESTART_GROUP ? "all workers" : "the worker that failed");
    label(out, "Stopping");
    for (const int *s = job->stop_signals; *s; s++)
        fprintf(out, "SIG%s%s", sigabbrev_np(*s), s[1] ? ", " : "; ");
    fprintf(out, "SIGKILL after %s", plan_seconds(job->shutdown_timeout, t));
    if (job->timeout > 0)
        fprintf(out, "; the whole job after %s", plan_seconds(job->timeout, t));
    fputc('\n', out);
}

static void print_job(FILE *out, const struct job_spec *job)
{
    const struct rdzv_config *c = &job->rdzv;
    print_size(out, job);
    print_rendezvous(out, c);
    label(out, "Store");
    fputs(c->relay         ? "served by dlaunch on 127.0.0.1 of each node (--master_store relay)\n"
          : c->agent_store ? "served by dlaunch at MASTER_ADDR:MASTER_PORT\n"
                           : "none: MASTER_PORT is free for the program\n",
          out);
    print_command(out, job);
    print_ends(out, job);
    if (job->log_dir)
        print_text(out, "Logs", job->log_dir);
    if (job->report_path)
        print_text(out, "Report", job->report_path);
    if (job->events_path)
        print_text(out, "Events", job->events_path);
}

struct node_row {
    FILE *out;
    const struct rank_table *table;
    int group_rank; /* of this node, -1 unknown */
    int i;
};

static bool print_node(void *arg, const char *name)
{
    struct node_row *row = arg;
    const struct rank_table_node *n = &row->table->nodes[row->i];
    fprintf(row->out, "  %-6d %d", row->i, n->base_rank);
    if (n->nproc > 1)
        fprintf(row->out, "-%d", n->base_rank + n->nproc - 1);
    if (*name) {
        fputs("  ", row->out);
        put_escaped(row->out, name);
    }
    fputs(row->i == row->group_rank ? "  (this node)\n" : "\n", row->out);
    return ++row->i < row->table->nnodes && row->i < NODES_MAX;
}

static void print_nodes(FILE *out, const struct job_spec *job, const struct rank_table *t,
                        const char *nodelist)
{
    struct node_row row = {out, t, job->rdzv.node_rank, 0};
    size_t count = 0;
    if (t->nnodes == 1)
        return;
    fprintf(out, "\nRanks, if every node has %d worker%s:\n  node   ranks\n", job->nproc,
            job->nproc == 1 ? "" : "s");
    if (!nodelist || hostlist_walk(nodelist, NULL, NULL, &count, NULL) < 0 ||
        count != (size_t)t->nnodes || hostlist_walk(nodelist, print_node, &row, &count, NULL) < 0) {
        while (print_node(&row, ""))
            ;
    }
    if (row.i < t->nnodes)
        fprintf(out, "  ... and %d more\n", t->nnodes - row.i);
    if (job->rdzv.node_rank < 0)
        fputs("Which of them this node is, the rendezvous decides; below, it is node 0.\n", out);
}

/* ---------------------------------------------------------------------------------- environment */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_in(char *const *env, const char *entry)
{
    for (; *env; env++) {
        if (strcmp(*env, entry) == 0)
            return true;
    }
    return false;
}

/* Prints one variable. A value that is chosen later is neither 0 nor empty. */
static void print_variable(FILE *out, const char *entry)
{
    if (strcmp(entry, "MASTER_PORT=0") == 0)
        entry = "MASTER_PORT=(a free port)";
    else if (strcmp(entry, "TORCHELASTIC_ERROR_FILE=") == 0)
        entry = "TORCHELASTIC_ERROR_FILE=(a new file for each)";
    put_escaped(out, entry);
}

static size_t count(char *const *list)
{
    size_t n = 0;
    while (list[n])
        n++;
    return n;
}

/* Prints the variables that are equal in all workers and that dlaunch itself does not have, then
 * those of each worker. */
static void print_environments(FILE *out, const struct job_spec *job, char ***envs, int base_rank)
{
    fputs("\nEnvironment of every worker here, besides what dlaunch itself has:\n", out);
    for (char **v = envs[0]; *v; v++) {
        bool same = !is_in(environ, *v);
        for (int i = 1; same && i < job->nproc; i++)
            same = is_in(envs[i], *v);
        if (!same)
            continue;
        fputs("  ", out);
        print_variable(out, *v);
        fputc('\n', out);
    }
    if (job->nproc == 1)
        return;
    fputs("\nEnvironment of each:\n", out);
    for (int i = 0; i < job->nproc; i++) {
        fprintf(out, "  %-5d", base_rank + i);
        for (char **v = envs[i]; *v; v++) {
            if (is_in(environ, *v) || is_in(envs[i ? 0 : 1], *v))
                continue;
            fputc(' ', out);
            print_variable(out, *v);
        }
        fputc('\n', out);
    }
}

static int print_environment(FILE *out, const struct job_spec *job, const struct rank_table *t,
                             int group_rank, struct err *e)
{
    char ***envs = xcalloc((size_t)job->nproc, sizeof(*envs));
    int rc = 0;
    for (int i = 0; i < job->nproc && rc == 0; i++) {
        struct worker_env_input in = {
            .job = job,
            .table = t,
            .group_rank = group_rank,
            .local_rank = i,
            .program = programs_of(job->programs, t->nodes[group_rank].base_rank + i),
            .error_file = "",
            .segment_fd = -1,
            .listen_fd = -1};
        rc = worker_env_new(&envs[i], &in, e);
        if (rc == 0)
            qsort(envs[i], count(envs[i]), sizeof(char *), by_name);
    }
    if (rc == 0)
        print_environments(out, job, envs, t->nodes[group_rank].base_rank);
    for (int i = 0; i < job->nproc; i++)
        worker_env_free(envs[i]);
    free(envs);
    return rc;
}

static void print_streams(FILE *out, const struct job_spec *job, int i)
{
    uint8_t tee = job->tee[i], file = job->redirects[i] & (uint8_t)~tee;
    if (!tee && !file) {
        fputs(job->show[i] ? "console" : "nowhere", out);
        return;
    }
    if (tee)
        fprintf(out, "%s to file%s", std_name(tee), job->show[i] ? " and console" : "");
    if (file)
        fprintf(out, "%s%s to file", tee ? ", " : "", std_name(file));
}

static int print_workers(FILE *out, const struct job_spec *job, int base_rank, struct err *e)
{
    struct placement *p = NULL;
    char cpus[256];
    int rc = placement_new(&p, job->bind, job->nproc, job_env_gpus(job), e);
    if (rc < 0)
        return rc;
    fputs("\nWorkers of this node:\n  rank  local rank  CPUs and output\n", out);
    for (int i = 0; i < job->nproc; i++) {
        fprintf(out, "  %-5d %-11d %s; ", base_rank + i, i,
                p ? placement_describe(p, i, cpus, sizeof(cpus)) : "any CPU");
        print_streams(out, job, i);
        fputc('\n', out);
    }
    placement_free(p);
    return 0;
}

int plan_print_binding(FILE *out, const struct job_spec *job, struct err *e)
{
    struct placement *p;
    char cpus[512], gpu[64], nic[256], nccl[1024];
    int rc = placement_plan(&p, job->bind, job->nproc, job_env_gpus(job), e);
    if (rc < 0)
        return rc;
    fprintf(out, "%-10s  %-18s  %-16s  %s\n", "local rank", "GPU", "network", "CPUs");
    for (int i = 0; i < job->nproc; i++)
        fprintf(out, "%-10d  %-18s  %-16s  %s\n", i, placement_gpu(p, i, gpu, sizeof(gpu)),
                placement_nic(p, i, nic, sizeof(nic)),
                placement_describe(p, i, cpus, sizeof(cpus)));
    if (*placement_nccl(p, nccl, sizeof(nccl)))
        fprintf(out, "NCCL chooses its network cards itself; to keep it to these: %s\n", nccl);
    placement_free(p);
    return plan_finish(out) < 0 ? err_sys(e, errno ? errno : EIO, "standard output") : 0;
}

/* Makes the rank table that results if every node has as many workers as this one. */
static int make_table(struct rank_table *t, const struct job_spec *job, struct err *e)
{
    const struct rdzv_config *c = &job->rdzv;
    int me = c->node_rank < 0 ? 0 : c->node_rank;
    rank_table_init(t);
    if (rank_table_alloc(t, c->max_nodes) < 0)
        return err_set(e, -ENOMEM, "no memory for %d nodes", c->max_nodes);
    for (int i = 0; i < t->nnodes; i++) {
        t->nodes[i].nproc = job->nproc;
        snprintf(t->nodes[i].role, sizeof(t->nodes[i].role), "%s", job->role);
    }
    snprintf(t->nodes[me].host, sizeof(t->nodes[me].host), "%s", job->host);
    snprintf(t->master_addr, sizeof(t->master_addr), "%s",
             c->endpoint_host ? c->endpoint_host : "(the first node)");
    t->master_port = c->agent_store ? c->endpoint_port : 0;
    t->agent_store = c->agent_store;
    return rank_table_compute(t, e);
}

int plan_print(FILE *out, const struct job_spec *job, const struct options *o, struct err *e)
{
    struct rank_table t;
    int me = job->rdzv.node_rank < 0 ? 0 : job->rdzv.node_rank;
    if (job->nproc == 0) {
        print_job(out, job);
        return plan_finish(out) < 0 ? err_sys(e, errno ? errno : EIO, "standard output") : 0;
    }
    int rc = make_table(&t, job, e);
    if (rc == 0) {
        print_job(out, job);
        print_nodes(out, job, &t, o->nodelist);
        rc = print_workers(out, job, t.nodes[me].base_rank, e);
    }
    if (rc == 0)
        rc = print_environment(out, job, &t, me, e);
    rank_table_fini(&t);
    if (rc == 0 && plan_finish(out) < 0)
        rc = err_sys(e, errno ? errno : EIO, "standard output");
    return rc;
}
