#include "launcher/hosts/reach.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/inspect/lines.h"
#include "agent/process/exec_why.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "launcher/hosts/allocation.h"
#include "launcher/options/shell_split.h"
#include "rendezvous/rules/rank_table.h"

extern char **environ;

#define ALIVE_S 5 /* ssh asks the host for a sign of life so often, and gives up after three */

static const char *quoted(struct options *o, const char *text)
{
    size_t cap = 4 * strlen(text) + 3;
    char *out = options_alloc(o, cap);
    shell_quote(text, out, cap);
    return out;
}

/* The script that the login shell of the host, whichever it is, hands to sh. */
static const char *command_line(struct options *o, const struct copies *copies)
{
    char self[PATH_MAX] = "dlaunch";
    const char *script;
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n > 0)
        self[n] = '\0';
    if (copies && copies->n)
        script = options_printf(
            o,
            "umask 077; d=`mktemp -d \"${TMPDIR:-/tmp}/dlaunch.XXXXXX\"` || exit; "
            "trap 'rm -rf \"$d\"' EXIT; "
            "head -c %zu > \"$d/dlaunch\" && head -c %zu > \"$d/" INSPECT_NAME "\" && "
            "[ `cat \"$d\"/* | wc -c` -eq %zu ] && chmod 700 \"$d\"/* && "
            "\"$d/dlaunch\" --version > /dev/null && " /* can be run */
            "DLAUNCH_COPIED=\"$d\" exec \"$d/dlaunch\" --from_head",
            copies->dlaunch, copies->inspect, copies->n);
    else if (opt_given(o, OPT_prefix))
        script =
            options_printf(o, "exec %s --from_head",
                           quoted(o, options_printf(o, "%s/bin/dlaunch", opt_text(o, OPT_prefix))));
    else
        script = options_printf(o, "d=%s; [ -x \"$d\" ] || d=dlaunch; exec \"$d\" --from_head",
                                quoted(o, self));
    return script;
}

static bool is_called(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    return strcmp(slash ? slash + 1 : path, name) == 0;
}

/* Which way, and the words of the command for it. */
static int find_way(struct reach *r, struct options *o, char ***agent, struct err *e)
{
    const char *how = opt_text(o, OPT_launch_agent);
    *r = (struct reach){.way = strcmp(how, "auto") == 0     ? REACH_BOTH
                               : strcmp(how, "daemon") == 0 ? REACH_DAEMON
                                                            : REACH_COMMAND};
    if (r->way == REACH_BOTH)
        how = "ssh";
    if (r->way == REACH_BOTH && opt_number(o, OPT_ssh_tree))
        r->way = REACH_COMMAND;
    if (shell_split(o, how, agent, e) < 0)
        return err_wrap(e, "%s", opt_where(o, OPT_launch_agent));
    static const enum opt_id of_ssh_only[] = {OPT_ssh_args, OPT_ssh_port, OPT_ssh_tree};
    for (size_t i = 0; i < ARRAY_LEN(of_ssh_only) && !is_called((*agent)[0], "ssh"); i++) {
        enum opt_id id = of_ssh_only[i];
        bool argument = id != OPT_ssh_tree && r->way != REACH_DAEMON;
        if (opt_given(o, id))
            return err_set(e, -EINVAL, "%s has no effect with --launch_agent %s%s",
                           opt_where(o, id), opt_text(o, OPT_launch_agent),
                           argument ? ": write the arguments there" : "");
    }
    if (opt_number(o, OPT_ssh_tree) > NNODES_MAX)
        return err_set(e, -EINVAL, "%s: %ld is out of range (0 to %d)", opt_where(o, OPT_ssh_tree),
                       opt_number(o, OPT_ssh_tree), NNODES_MAX);
    return 0;
}

static char **add_words(char **to, char **words)
{
    while (words && *words)
        *to++ = *words++;
    return to;
}

static size_t words_in(char **words)
{
    size_t n = 0;
    while (words && words[n])
        n++;
    return n;
}

/* What stands in front of the host's name. args: the user's for ssh; NULL: none. */
static void make_words(struct reach *r, struct options *o, char **agent, char **args)
{
    char **w = r->words = options_alloc(o, (words_in(agent) + words_in(args) + 16) * sizeof(*w));
    w = add_words(w, agent);
    w = add_words(w, args); /* in front of ours: ssh takes the first of two values */
    const char *const of_ssh[] = {
        "-T",
        "-o",
        "BatchMode=yes",
        "-o",
        options_printf(o, "ConnectTimeout=%.0f", ceil(opt_seconds(o, OPT_start_timeout))),
        "-o",
        options_printf(o, "ServerAliveInterval=%d", ALIVE_S)};
    /* Without this option srun hands on whole lines only. */
    const char *const of_srun[] = {"--nodes=1", "--ntasks=1", "--ntasks-per-node=1",
                                   "--overlap", "--mpi=none", "--unbuffered",
                                   "--no-kill", "--quiet"}; /* no-kill: another node may be lost */
    for (size_t i = 0; is_called(agent[0], "ssh") && i < ARRAY_LEN(of_ssh); i++)
        *w++ = (char *)of_ssh[i];
    for (size_t i = 0; r->srun && i < ARRAY_LEN(of_srun); i++)
        *w++ = (char *)of_srun[i];
    if (opt_number(o, OPT_ssh_port)) {
        *w++ = (char *)"-p";
        *w++ = (char *)opt_text(o, OPT_ssh_port);
    }
}

int reach_init(struct reach *r, struct options *o, const struct copies *copies, struct err *e)
{
    char **agent, **args = NULL;
    int rc = find_way(r, o, &agent, e);
    if (rc < 0 || r->way == REACH_DAEMON)
        return rc;
    if (*opt_text(o, OPT_ssh_args) && shell_split(o, opt_text(o, OPT_ssh_args), &args, e) < 0)
        return err_wrap(e, "%s", opt_where(o, OPT_ssh_args));
    char *path = exec_find(agent[0], e);
    if (!path)
        return err_wrap(e, "%s", opt_where(o, OPT_launch_agent));
    r->path = options_printf(o, "%s", path);
    r->srun = is_called(agent[0], "srun");
    free(path);
    make_words(r, o, agent, args);
    r->command = command_line(o, copies);
    return 0;
}

bool reach_is_here(const struct host *h)
{
    char own[HOST_MAX] = "";
    struct netaddr a;
    if (h->user)
        return false;
    gethostname(own, sizeof(own) - 1);
    if (netaddr_parse_ip(&a, h->name, 0))
        return netaddr_is_local(&a);
    size_t n = strcspn(own, ".");
    return strcmp(h->name, "localhost") == 0 || strcmp(h->name, own) == 0 ||
           (strlen(h->name) == n && memcmp(h->name, own, n) == 0);
}

char **reach_argv(const struct reach *r, struct options *o, const struct host *h)
{
    size_t n = words_in(r->words);
    char **argv = options_alloc(o, (n + 6) * sizeof(*argv));
    memcpy(argv, r->words, n * sizeof(*argv));
    if (r->srun) {
        int group = allocation_het_group(environ, h->name);
        if (group >= 0)
            argv[n++] = options_printf(o, "--het-group=%d", group);
        argv[n++] = options_printf(o, "--nodelist=%s", h->name);
        argv[n++] = (char *)"/bin/sh";
        argv[n++] = (char *)"-c";
        argv[n++] = (char *)r->command;
    } else {
        argv[n++] =
            options_printf(o, "%s%s%s", h->user ? h->user : "", h->user ? "@" : "", h->name);
        argv[n++] = options_printf(o, "exec /bin/sh -c %s", quoted(o, r->command));
    }
    return argv;
}
