/* host_list.h: the hosts of a job that is started from one place, and how many workers each has.
 *
 * One reader for what people have: the command line's "a:4,b:4", and files and scripts with a host
 * on each line, as Open MPI and PRRTE ("host slots=N max_slots=M"), MPICH and horovod ("host:N",
 * "user=NAME"), DeepSpeed, and PBS (a line for each slot) write them:
 *
 *     [user@]HOST[:SLOTS] [slots=N] [max_slots=M] [user=NAME]      # comment
 *
 * HOST is a name, an address (an IPv6 one in brackets where :SLOTS follows), or one of Slurm's
 * ranges: n[1-9/2,12]. A host that comes several times has the sum of its slots. */
#ifndef LAUNCHER_HOSTS_HOST_LIST_H
#define LAUNCHER_HOSTS_HOST_LIST_H

#include "launcher/options/options.h"

struct host {
    const char *name; /* without brackets */
    const char *user; /* NULL: ssh chooses */
    int slots;        /* 0: not given */
    int max_slots;    /* 0: no limit was given */
    const char *ids;  /* "0,2": the slots that a filter has left; NULL: all */
    int nproc;        /* host_list_share(): workers; 0: as --nproc_per_node says */
};

struct host_list {
    struct host *host;
    size_t n, cap;
    struct options *o; /* the list's memory */
};

/* Adds the hosts of -H: entries parted by commas or blanks. */
int host_list_add(struct host_list *l, const char *text, struct err *e);
/* Adds a file's text, or a script's output, line by line; `name` is for messages. */
int host_list_add_lines(struct host_list *l, const char *text, const char *name, struct err *e);

/* DeepSpeed's filters: "HOST[:SLOT,...][@HOST...]". include: only these are left, in the list's
 * order; else these are taken out. */
int host_list_filter(struct host_list *l, const char *text, bool include, struct err *e);

/* Gives each host its workers: np in all, or 0; ppn on each host, or 0. Hosts that get none are
 * dropped. */
int host_list_share(struct host_list *l, long np, long ppn, struct err *e);

/* Reads the hosts that the options name, filters them and shares out the workers. 0: there are
 * hosts; 1: the options name none. */
int host_list_read(struct host_list *l, struct options *o, struct err *e);

#endif
