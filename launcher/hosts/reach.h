/* reach.h: how a host is reached: by its daemon (serve.h), or by the command that starts
 * dlaunch --from_head there: ssh, or --launch_agent's.
 *
 * Neither the plan nor the token is in it; both go by standard input (frame.h). */
#ifndef LAUNCHER_HOSTS_REACH_H
#define LAUNCHER_HOSTS_REACH_H

#include "launcher/hosts/copies.h"
#include "launcher/hosts/host_list.h"

enum reach_way {
    REACH_BOTH,    /* by the daemon where one answers, else by ssh */
    REACH_DAEMON,  /* by the daemon only, this host too */
    REACH_COMMAND, /* by a command only */
};

struct reach {
    enum reach_way way;
    const char *path; /* of the program in words[0]; NULL: REACH_DAEMON */
    char **words;     /* all arguments before the host's */
    bool srun;        /* the host and the command as srun takes them */
    const char *command;
};

/* copies: what goes in front of everything else on standard input, to be run there (--bcast); of no
 * bytes, or NULL: dlaunch is there. */
int reach_init(struct reach *r, struct options *o, const struct copies *copies, struct err *e);

/* Whether the host is this one, to be started without further ado. */
bool reach_is_here(const struct host *h);

/* NULL-terminated; lives as long as the options. */
char **reach_argv(const struct reach *r, struct options *o, const struct host *h);

#endif
