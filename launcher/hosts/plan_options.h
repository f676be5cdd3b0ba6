/* plan_options.h: the command line of the launcher on each host, from the options that dlaunch -H
 * was given. */
#ifndef LAUNCHER_HOSTS_PLAN_OPTIONS_H
#define LAUNCHER_HOSTS_PLAN_OPTIONS_H

#include "launcher/hosts/host_list.h"

/* The job as far as it is known when its hosts have answered. */
struct job_of_hosts {
    int nodes, min_nodes, spares;
    const char *endpoint; /* "HOST:PORT" where the nodes meet; NULL: one node, or as given */
    const char *run_id;
};

/* Checks the options that several hosts cannot have. */
int plan_options_check(struct options *o, const struct host_list *hosts, struct err *e);

/* Computes the number of hosts of the job: at least *min, at most *max, and *spares more. */
int plan_options_nodes(struct options *o, size_t nhosts, int *min, int *max, int *spares,
                       struct err *e);

/* argv for a host with this rank; rank 0 hosts the rendezvous. *program_at: where the program is.
 * NULL-terminated; lives as long as the options. */
char **plan_options_argv(struct options *o, const struct job_of_hosts *j, const struct host *h,
                         int rank, int *program_at);

/* "NAME=value" for the workers: [env] of the file, --export, the GPUs that a filter has left. */
char **plan_options_env(struct options *o, char *const *environment, const struct host *h);

/* For a job without a list of hosts: applies --np, --ppn and --export for a launcher on each
 * node. */
int plan_options_without_hosts(struct options *o, struct err *e);

#endif
