/* cgroup.h: a cgroup v2 for the workers of this node, where one can be made: cgroup.kill kills them
 * and all that they forked at once. Without a cgroup the sweep alone does the work. */
#ifndef AGENT_PROCESS_CGROUP_H
#define AGENT_PROCESS_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct cgroup {
    int fd;         /* the cgroup's directory, for spawn_request.cgroup_fd; -1: none */
    char path[256]; /* path of the cgroup's directory; "": none */
    bool killed;    /* by cgroup_kill() */
};

/* Makes <own cgroup>/dlaunch.<own pid> if that is permitted and has cgroup.kill, and removes the
 * cgroups of dead agents. Never an error. */
void cgroup_open(struct cgroup *c);
void cgroup_kill(struct cgroup *c);
/* Replaces a killed cgroup, once every process in it is dead, by a new one: some kernels (6.18)
 * kill each process that is started in a killed cgroup. */
void cgroup_renew(struct cgroup *c);
/* Kill and remove the cgroup by its path, in the guardian. A path that does not end in
 * "/dlaunch.<agent>" is ignored. For such a path, and for "" (the agent was killed before it could
 * write the path), cgroup_remove() removes the cgroup that the agent would have made, if it is
 * empty. */
void cgroup_kill_at(const char *path, pid_t agent);
void cgroup_remove(const char *path, pid_t agent);
void cgroup_close(struct cgroup *c); /* removes the cgroup, in which every process must be dead */

/* The directory of this process's own cgroup: in the v1 hierarchy of `controller` ("cpu", "memory",
 * ...), or in the v2 tree if NULL. *mount_len (may be NULL) is the length of its mount point, where
 * a walk upwards ends. False: the process has no cgroup, or its cgroup is not visible here. */
bool cgroup_own(const char *controller, char *out, size_t cap, size_t *mount_len);

#endif
