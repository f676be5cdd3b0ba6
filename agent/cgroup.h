/* cgroup.h: one cgroup v2 for the workers of this node, where one can be made: cgroup.kill ends
 * them all at once, whatever they forked. Best effort: without one the sweep does the work alone.
 */
#ifndef AGENT_CGROUP_H
#define AGENT_CGROUP_H

#include <stddef.h>

struct cgroup {
    int fd;         /* of its directory, for spawn_request.cgroup_fd; -1: none */
    char path[256]; /* its directory; "" none */
};

/* Makes <our own cgroup>/dlaunch.<pid> when that is allowed and has cgroup.kill. Never an error. */
void cgroup_open(struct cgroup *c);
void cgroup_kill(const struct cgroup *c);
/* Kills by path and removes the directory: also for a guardian that only knows the path. */
void cgroup_remove(const char *path);
void cgroup_close(struct cgroup *c); /* removes it: everything in it is dead */

#endif
