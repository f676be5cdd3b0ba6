#include "launcher/options/sbatch.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/parse.h"
#include "launcher/options/shell_split.h"

static int check(struct options *o, struct err *e)
{
    static const enum opt_id elsewhere[] = {
        OPT_host,        OPT_hostfile,  OPT_host_discovery_script,
        OPT_standalone,  OPT_node_rank, OPT_rdzv_endpoint,
        OPT_master_addr, OPT_rdzv_only, OPT_witness,
        OPT_daemon,      OPT_no_detect};
    for (size_t i = 0; i < ARRAY_LEN(elsewhere); i++) {
        if (o->value[elsewhere[i]].from == FROM_ARGV)
            return err_set(e, -EINVAL,
                           "%s: Slurm chooses the hosts, and where they meet; leave out %s",
                           opt_where(o, OPT_print_sbatch), opt_where(o, elsewhere[i]));
    }
    if (!o->command || o->command_from != FROM_ARGV)
        return err_set(e, -EINVAL, "%s: no program is given", opt_where(o, OPT_print_sbatch));
    return 0;
}

static void print_quoted(FILE *out, const char *word)
{
    size_t cap = 4 * strlen(word) + 3;
    char *text = xmalloc(cap);
    shell_quote(word, text, cap);
    fprintf(out, " %s", text);
    free(text);
}

/* The name by which the nodes find this dlaunch. */
static void print_self(FILE *out, const char *argv0)
{
    char path[PATH_MAX];
    const char *self = strchr(argv0, '/') && realpath(argv0, path) ? path : argv0;
    print_quoted(out, self);
}

static bool is_print_sbatch(const char *word)
{
    static const char name[] = "--print_sbatch";
    size_t n = 0;
    while (word[n] && (word[n] == '-' ? '_' : word[n]) == (name[n] == '-' ? '_' : name[n]))
        n++;
    return !word[n] && n > strlen("--print_"); /* also a prefix of it */
}

/* Prints the job's name with only the letters that Slurm shows as they are. */
static void print_name(FILE *out, const char *program)
{
    const char *slash = strrchr(program, '/');
    fputs("#SBATCH --job-name=", out);
    for (const char *c = slash ? slash + 1 : program; *c; c++)
        fputc(strchr("%\\\"' \t\n", *c) ? '_' : *c, out);
    fputc('\n', out);
}

/* CPUs and GPUs of a node: as many as it has workers, or all. */
static void print_devices(FILE *out, struct options *o)
{
    bool gpus = opt_flag(o, OPT_virtual_local_rank) || opt_given(o, OPT_numa_binding);
    long n;
    if (parse_int(opt_text(o, OPT_nproc_per_node), 1, LONG_MAX, &n, NULL) < 0) {
        fprintf(out, "#SBATCH --exclusive\n");
        return;
    }
    fprintf(out, "#SBATCH --cpus-per-task=%ld\n", n);
    if (gpus)
        fprintf(out, "#SBATCH --gpus-per-node=%ld\n", n);
}

int sbatch_print(FILE *out, struct options *o, int argc, char *const *argv, struct err *e)
{
    int min = 1, max = 1, spares = (int)opt_number(o, OPT_spares);
    if (check(o, e) < 0 || parse_range(opt_text(o, OPT_nnodes), &min, &max, e) < 0)
        return -EINVAL;
    bool goes_on = spares > 0 || min < max;
    fprintf(out, "#!/bin/sh\n");
    print_name(out, o->command[0]);
    fprintf(out, min < max ? "#SBATCH --nodes=%d-%d\n" : "#SBATCH --nodes=%d\n", min + spares,
            max + spares);
    fprintf(out, "#SBATCH --ntasks-per-node=1\n");
    print_devices(out, o);
    if (goes_on)
        fprintf(out, "#SBATCH --no-kill\n");
    if (opt_flag(o, OPT_requeue))
        fprintf(out, "#SBATCH --requeue\n#SBATCH --open-mode=append\n");
    fprintf(out, "# The time limit is yours: sbatch --time=4:00:00, or a line here.\n");
    fprintf(out,
            "exec srun --ntasks-per-node=1 --cpus-per-task=\"${SLURM_CPUS_PER_TASK:-"
            "$SLURM_CPUS_ON_NODE}\"%s",
            goes_on ? " --no-kill --kill-on-bad-exit=0" : "");
    print_self(out, argv[0]);
    for (int i = 1; i < argc; i++) {
        if (argv + i >= o->command || !is_print_sbatch(argv[i]))
            print_quoted(out, argv[i]);
    }
    fputc('\n', out);
    return fflush(out) != 0 || ferror(out) ? err_sys(e, errno, "standard output") : 0;
}
