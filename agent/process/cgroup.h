/* cgroup.h: one cgroup v2 for the workers of this node, where one can be made: cgroup.kill ends
 * them all at once, whatever they forked. Best effort: without one the sweep does the work alone.
 */
#ifndef AGENT_PROCESS_CGROUP_H
#define AGENT_PROCESS_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct cgroup {
    int fd;         /* of its directory, for spawn_request.cgroup_fd; -1: none */
    char path[256]; /* its directory; "" none */
    bool killed;    /* by cgroup_kill() */
};

/* Makes <our own cgroup>/dlaunch.<our pid> when that is allowed and has cgroup.kill, and removes
 * what others have left of theirs. Never an error. */
void cgroup_open(struct cgroup *c);
void cgroup_kill(struct cgroup *c);
/* Another one in its place if it has been killed, when everything in it is dead: what is born into
 * such a cgroup dies at once on some kernels (6.18). */
void cgroup_renew(struct cgroup *c);
/* The same, and its removal, by path: for a guardian, which has nothing else. Only a path that ends
 * in "/dlaunch.<agent>" is believed. For any other, "" included (that agent was killed before it
 * could tell), cgroup_remove() goes to where it would have made one, and takes that away if it is
 * empty. */
void cgroup_kill_at(const char *path, pid_t agent);
void cgroup_remove(const char *path, pid_t agent);
void cgroup_close(struct cgroup *c); /* removes it: everything in it is dead */

/* The directory of this process's own cgroup: in the v1 hierarchy of `controller` ("cpu",
 * "memory", ...), or in the v2 tree when NULL. *mount_len (may be NULL) is the length of its mount
 * point, the top for whoever walks upwards. False when there is none, or it cannot be seen here. */
bool cgroup_own(const char *controller, char *out, size_t cap, size_t *mount_len);

#endif
