/* world.h: all workers of the job: who this one is, and where the others are. Made once, by
 * dlcoll_init(); communicators are groups of its ranks.
 *
 * The facts come from the launcher's segment, or from what the ranks have published in a store. */
#ifndef COLLECTIVES_BOOTSTRAP_WORLD_H
#define COLLECTIVES_BOOTSTRAP_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "collectives/bootstrap/job_segment.h"
#include "collectives/base/wait.h"
#include "core/err.h"
#include "core/netaddr.h"

#define MEMBER_HOST_MAX 64

/* The record that a rank has published in the store. */
struct member {
    uint32_t version; /* of the protocol between ranks; another one: nothing else is known of it */
    char host[MEMBER_HOST_MAX]; /* the name of the rank's host, for people */
    char addr[ADDR_STRLEN];     /* IP address; a loopback one: it is on the master's host */
    uint16_t port;
    uint32_t pid;
    uint64_t host_id; /* equal for ranks that share a kernel and a network namespace */
    uint64_t pid_ns;  /* the PID namespace in which the rank's pid counts */
    uint32_t size;    /* of the world, as it has been told */
    struct wait_cpus cpus;
};

struct dlcoll_store;
struct starter;
struct store_thread;

struct world {
    int rank, size, local_rank;
    int neighbours;  /* ranks that share this host's CPUs, this one included */
    int usable_cpus; /* by them all together: the same number on each */
    uint64_t epoch;  /* with counter and instance: which round of which job this is */
    uint32_t counter, instance;
    uint64_t settings;      /* settings.h */
    _Atomic uint32_t *made; /* how many of its sort the process has made; NULL: it has a name */
    int listen_fd;          /* owned, non-blocking; -1 in a world of one */

    char store_host[HOST_MAX]; /* the store through which the ranks have met; "": none */
    int store_port;
    struct store_thread *store_server; /* owned; set when this process serves the store */

    struct job_segment segment;  /* with a launcher */
    struct member *members;      /* without: all ranks, owned */
    char master_ip[ADDR_STRLEN]; /* MASTER_ADDR as this host resolves it */
};

/* The options of dlcoll_init(). */
struct world_opts {
    uint64_t deadline_ns; /* on mono_ns(); 0: none */
    const char *method;   /* "env://", "tcp://...", "file://..."; NULL: the environment decides */
    const char *whence;   /* for people: who has given it */
    const struct starter *starter; /* NULL: none whose variables name the other ranks */
    int rank, size;                /* size 0: from the environment, or from the method */
    struct dlcoll_store *store;    /* NULL: none; borrowed */
    const char *name;              /* of the job, where several share a store; never NULL */
};

/* Finds the world by the way in which the process was started and by its options (dlcoll_init() in
 * dlcoll.h). On failure *w needs no world_fini(). Codes: -EINVAL, -ENOMEM, -ETIMEDOUT, -EBUSY (the
 * launcher's sockets are in use by another communicator), and what the network says. */
int world_init(struct world *w, const struct world_opts *o, struct err *e);
/* All that dlcoll_init() does for it has succeeded: the next one of its sort has another instance.
 */
void world_made(struct world *w);
void world_fini(struct world *w);

/* The address where `rank` listens. */
int world_addr(const struct world *w, int rank, struct netaddr *out, struct err *e);

/* Whether two ranks share a node: under a launcher, its own workers; without one, ranks with one
 * kernel and one network namespace. */
bool world_same_node(const struct world *w, int a, int b);

/* Describes a rank for people: its host's name and its pid there (0: unknown). */
void world_who(const struct world *w, int rank, char host[MEMBER_HOST_MAX], int *pid);

/* Whether that rank, on this node, has its pid here, too: containers that share the host's network
 * number their processes themselves. */
bool world_shares_pids(const struct world *w, int rank);

/* "rank 3 (node-b, pid 812)". Returns out. */
#define WORLD_NAME_MAX 128
const char *world_name(const struct world *w, int rank, char out[WORLD_NAME_MAX]);

/* This worker's line in the segment; NULL without a segment. */
static inline struct segment_local *world_line(const struct world *w)
{
    return job_segment_local(&w->segment, w->rank);
}

#endif
