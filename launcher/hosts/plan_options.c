#include "launcher/hosts/plan_options.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/parse.h"
#include "launcher/options/programs.h"
#include "rendezvous/rules/rank_table.h"

/* A node that has answered joins at once; who is missing then does not come. */
#define LAST_CALL "last_call_timeout=1"

/* Compares the programs' ranks with the hosts' slots, where all hosts have a count. */
static int check_programs(struct options *o, const struct host_list *hosts, struct err *e)
{
    long workers = 0;
    if (o->programs && opt_flag(o, OPT_bcast))
        return err_set(e, -EINVAL, "%s copies one program, and the job has %d",
                       opt_where(o, OPT_bcast), o->programs->n);
    for (size_t i = 0; i < hosts->n; i++) {
        if (!hosts->host[i].nproc)
            return 0;
        workers += hosts->host[i].nproc;
    }
    bool all = !opt_given(o, OPT_nnodes) && opt_number(o, OPT_spares) == 0;
    return all ? programs_fit(o, workers, e) : 0;
}

int plan_options_check(struct options *o, const struct host_list *hosts, struct err *e)
{
    static const enum opt_id alone[] = {OPT_standalone, OPT_rdzv_only, OPT_witness, OPT_node_rank,
                                        OPT_print_binding};
    for (size_t i = 0; i < ARRAY_LEN(alone); i++) {
        const struct opt_value *v = &o->value[alone[i]];
        if (v->from == FROM_ARGV && !(opt_table[alone[i]].kind == KIND_FLAG && *v->text == '0'))
            return err_set(e, -EINVAL,
                           "%s is for a launcher on one node; it cannot be combined "
                           "with a list of hosts",
                           opt_where(o, alone[i]));
    }
    if (o->value[OPT_serve_addr].from == FROM_ARGV)
        return err_set(e, -EINVAL, "%s has no effect without --serve",
                       opt_where(o, OPT_serve_addr));
    if (opt_given(o, OPT_local_addr) && hosts->n > 1)
        return err_set(e, -EINVAL,
                       "%s: one address cannot be that of %zu hosts; --interface names "
                       "a network",
                       opt_where(o, OPT_local_addr), hosts->n);
    if (!o->command && !opt_flag(o, OPT_doctor))
        return err_set(e, -EINVAL, "no program is given");
    return check_programs(o, hosts, e);
}

int plan_options_nodes(struct options *o, size_t nhosts, int *min, int *max, int *spares,
                       struct err *e)
{
    long s = opt_number(o, OPT_spares);
    *min = *max = (int)nhosts;
    *spares = 0;
    if (opt_given(o, OPT_nnodes) && parse_range(opt_text(o, OPT_nnodes), min, max, e) < 0)
        return err_wrap(e, "%s", opt_where(o, OPT_nnodes));
    if (!opt_given(o, OPT_nnodes) && s >= (long)nhosts)
        return err_set(e, -EINVAL, "%s %ld: there are %zu hosts in all", opt_where(o, OPT_spares),
                       s, nhosts);
    if (!opt_given(o, OPT_nnodes))
        *min = *max = (int)(nhosts - (size_t)s);
    if ((size_t)*min + (size_t)s > nhosts)
        return err_set(e, -EINVAL, "%s %s: there %s only %zu host%s%s", opt_where(o, OPT_nnodes),
                       opt_text(o, OPT_nnodes), nhosts == 1 ? "is" : "are", nhosts,
                       nhosts == 1 ? "" : "s", s ? " for them and the spares" : "");
    if ((size_t)*max > nhosts)
        *max = (int)nhosts;
    *spares = (int)s;
    return 0;
}

/* Options that are the head's business, or are set for each host. */
static bool stays_here(enum opt_id id)
{
    static const enum opt_id here[] = {
        OPT_conf,      OPT_print_config, OPT_print_binding,  OPT_dry_run,   OPT_print_completion,
        OPT_help,      OPT_version,      OPT_print_options,  OPT_new_token, OPT_token_file,
        OPT_token_fd,  OPT_daemon,       OPT_pid_file,       OPT_log_file,  OPT_report,
        OPT_nnodes,    OPT_spares,       OPT_nproc_per_node, OPT_node_rank, OPT_rdzv_id,
        OPT_rdzv_conf, OPT_no_detect,    OPT_standalone,     OPT_events,    OPT_multi_prog,
        OPT_requeue};
    for (size_t i = 0; i < ARRAY_LEN(here); i++) {
        if (here[i] == id)
            return true;
    }
    return opt_table[id].group == GROUP_HOSTS;
}

struct args {
    char **list;
    size_t n, cap;
    struct options *o;
};

static void add(struct args *a, char *text)
{
    if (a->n + 1 >= a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 64;
        char **more = options_alloc(a->o, cap * sizeof(*more));
        if (a->n)
            memcpy(more, a->list, a->n * sizeof(*more));
        a->list = more;
        a->cap = cap;
    }
    a->list[a->n++] = text;
}

static void add_given(struct args *a, enum opt_id id)
{
    const struct opt_value *v = &a->o->value[id];
    if (v->from == FROM_DEFAULT || !v->text || stays_here(id))
        return;
    if (opt_table[id].kind != KIND_FLAG)
        add(a, options_printf(a->o, "%s=%s", opt_table[id].name, v->text));
    else if (v->text[0] == '1')
        add(a, options_printf(a->o, "%s", opt_table[id].name));
}

char **plan_options_argv(struct options *o, const struct job_of_hosts *j, const struct host *h,
                         int rank, int *program_at)
{
    struct args a = {.o = o};
    const char *conf = opt_text(o, OPT_rdzv_conf);
    bool several = j->nodes + j->spares > 1;
    add(&a, options_printf(o, "%s", o->prog));
    for (int i = 0; i < OPT_COUNT; i++) {
        bool meeting = i == OPT_master_addr || i == OPT_master_port;
        bool once = i == OPT_ledger || i == OPT_timeline; /* one launcher is enough */
        if (!(meeting && j->endpoint) && !(once && rank > 0))
            add_given(&a, i);
    }
    add(&a, (char *)"--no_detect");
    add(&a, j->min_nodes < j->nodes ? options_printf(o, "--nnodes=%d:%d", j->min_nodes, j->nodes)
                                    : options_printf(o, "--nnodes=%d", j->nodes));
    if (h->nproc)
        add(&a, options_printf(o, "--nproc_per_node=%d", h->nproc));
    else
        add(&a, options_printf(o, "--nproc_per_node=%s", opt_text(o, OPT_nproc_per_node)));
    if (j->spares)
        add(&a, options_printf(o, "--spares=%d", j->spares));
    if (several && rank < j->nodes)
        add(&a, options_printf(o, "--node_rank=%d", rank));
    add(&a, options_printf(o, "--rdzv_id=%s", j->run_id));
    if (j->endpoint) {
        if (!opt_given(o, OPT_rdzv_backend))
            add(&a, (char *)"--rdzv_backend=c10d");
        add(&a, options_printf(o, "--rdzv_endpoint=%s", j->endpoint));
        add(&a, options_printf(o, "--rdzv_conf=" LAST_CALL "%s%s,is_host=%d", *conf ? "," : "",
                               conf, rank == 0));
    } else if (*conf) {
        add(&a, options_printf(o, "--rdzv_conf=%s", conf));
    }
    if (!o->torchrun && strcmp(opt_text(o, OPT_fold), "auto") == 0 && isatty(STDOUT_FILENO))
        add(&a, (char *)"--fold=on"); /* the pipe to the head ends at its terminal */
    if (several && !o->torchrun && !opt_given(o, OPT_log_line_prefix_template))
        add(&a, (char *)"--log_line_prefix_template=[${hostname} ${role_name}${local_rank}]:");
    add(&a, (char *)"--");
    *program_at = (int)a.n;
    for (char **w = o->command; w && *w; w++)
        add(&a, *w);
    return a.list;
}

/* ---------------------------------------------------------------------------------- environment */

char **plan_options_env(struct options *o, char *const *environment, const struct host *h)
{
    struct args a = {.o = o};
    for (size_t i = 0; i < o->nenv; i++)
        add(&a, o->env[i]);
    if (h->ids)
        add(&a, options_printf(o, "CUDA_VISIBLE_DEVICES=%s", h->ids));
    const char *const *const lists[] = {o->exported_all, o->exported};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        for (char **x = programs_exports(o, lists[i], environment); *x; x++)
            add(&a, *x);
    }
    if (a.n == 0)
        return options_alloc(o, sizeof(char *));
    return a.list;
}

/* -------------------------------------------------------------------------------- without hosts */

/* "-n 8 -ppn 4" is two nodes of four workers; "-n 8" of --nnodes 2 is the same. */
static int set_counts(struct options *o, struct err *e)
{
    long np = opt_number(o, OPT_np), ppn = opt_given(o, OPT_ppn) ? opt_number(o, OPT_ppn) : 0;
    const char *where = opt_where(o, OPT_np);
    int nodes = 1, max = 1;
    if (o->programs && opt_given(o, OPT_nproc_per_node) && opt_given(o, OPT_nnodes))
        return 0; /* a launcher on each node, which may have more workers on one than on another */
    if (!opt_given(o, OPT_np))
        return options_set(o, OPT_nproc_per_node, opt_text(o, OPT_ppn), FROM_ARGV,
                           opt_where(o, OPT_ppn), e);
    if (opt_given(o, OPT_nnodes) && parse_range(opt_text(o, OPT_nnodes), &nodes, &max, e) < 0)
        return err_wrap(e, "%s", opt_where(o, OPT_nnodes));
    if (nodes != max)
        return err_set(e, -EINVAL,
                       "%s: the number of workers of --nnodes %s is not fixed; use "
                       "--nproc_per_node",
                       where, opt_text(o, OPT_nnodes));
    if (ppn && !opt_given(o, OPT_nnodes))
        nodes = (int)(np / ppn);
    if (np == 0 || nodes == 0 || np % nodes || (ppn && np != nodes * ppn))
        return err_set(e, -EINVAL, "%s %ld: not a whole number of nodes with %ld workers each%s",
                       where, np, ppn ? ppn : np / (nodes ? nodes : 1),
                       opt_given(o, OPT_nnodes) ? " (--nnodes)" : "");
    if (ppn && !opt_given(o, OPT_nnodes) &&
        options_set(o, OPT_nnodes, options_printf(o, "%d", nodes), FROM_ARGV, where, e) < 0)
        return -EINVAL;
    return options_set(o, OPT_nproc_per_node, options_printf(o, "%ld", np / nodes), FROM_ARGV,
                       where, e);
}

int plan_options_without_hosts(struct options *o, struct err *e)
{
    static const enum opt_id of_hosts[] = {
        OPT_include,  OPT_exclude,  OPT_bcast,    OPT_prefix,     OPT_launch_agent,
        OPT_ssh_args, OPT_ssh_port, OPT_ssh_tree, OPT_serve_addr, OPT_serve_port};
    for (size_t i = 0; i < ARRAY_LEN(of_hosts); i++) {
        if (o->value[of_hosts[i]].from == FROM_ARGV)
            return err_set(e, -EINVAL, "%s has no effect without --host or --hostfile",
                           opt_where(o, of_hosts[i]));
    }
    if ((opt_given(o, OPT_np) || opt_given(o, OPT_ppn)) && set_counts(o, e) < 0)
        return -EINVAL;
    if (!o->exported && !o->exported_all)
        return 0;
    /* A variable without a value in the command line has the value of this process's
     * environment. */
    char *const none[] = {NULL}, **lists[] = {programs_exports(o, o->exported_all, none),
                                              programs_exports(o, o->exported, none)};
    size_t n = o->nenv;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        for (char **x = lists[i]; *x; x++)
            n++;
    }
    char **env = options_alloc(o, (n + 1) * sizeof(*env));
    const char **source = options_alloc(o, (n + 1) * sizeof(*source));
    for (size_t i = 0; i < o->nenv; i++) {
        env[i] = o->env[i];
        source[i] = o->env_source[i];
    }
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        for (char **x = lists[i]; *x; x++) {
            source[o->nenv] = "--export";
            env[o->nenv++] = *x;
        }
    }
    o->env = env;
    o->env_source = source;
    return 0;
}
