#include "agent/process/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"

#define REMOVE_WAIT_NS 1000000000u /* how long killed processes may take to leave the cgroup */

/* ------------------------------------------------------------------------------ finding our own */

static bool list_has(const char *list, const char *word)
{
    size_t len = strlen(word);
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',') {
        if (strncmp(p, word, len) == 0 && (p[len] == ',' || p[len] == '\0'))
            return true;
    }
    return false;
}

/* Our path within the hierarchy, from lines "id:controllers:path"; v2 is "0::path". */
static bool path_in_hierarchy(const char *controller, char *out, size_t cap)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return false;
    char *line = NULL;
    size_t line_cap = 0;
    bool found = false;
    while (!found && getline(&line, &line_cap, f) > 0) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *list++ = *path++ = '\0';
        bool ours = controller ? list_has(list, controller) : strcmp(line, "0") == 0 && !*list;
        /* "/.." is outside of our cgroup namespace. */
        found = ours && strncmp(path, "/..", 3) != 0 && strlen(path) < cap;
        if (found)
            strcpy(out, path);
    }
    free(line);
    fclose(f);
    return found;
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Joins when the result is a directory. */
static bool cgroup_join(char *out, size_t cap, const char *mount, const char *path)
{
    if (strcmp(path, "/") == 0)
        path = "";
    int n = snprintf(out, cap, "%s%s", mount, path);
    return n > 0 && (size_t)n < cap && is_directory(out);
}

/* Tries the usual mount points first: two system calls instead of the list of all mounts. */
static bool at_usual_place(const char *controller, const char *path, char *out, size_t cap,
                           size_t *mount_len)
{
    char places[2][64] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    unsigned magic = CGROUP2_SUPER_MAGIC;
    int n = 2;
    if (controller) {
        snprintf(places[0], sizeof(places[0]), "/sys/fs/cgroup/%s", controller);
        magic = CGROUP_SUPER_MAGIC;
        n = 1;
    }
    for (int i = 0; i < n; i++) {
        struct statfs fs;
        if (statfs(places[i], &fs) == 0 && (unsigned)fs.f_type == magic &&
            cgroup_join(out, cap, places[i], path)) {
            *mount_len = strlen(places[i]);
            return true;
        }
    }
    return false;
}

/* Wherever it is mounted, perhaps only a part of the tree (a container without a cgroup namespace):
 * "id parent dev root mount-point options [tags] - type source super-options". */
static bool at_any_mount(const char *controller, const char *path, char *out, size_t cap,
                         size_t *mount_len)
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (!f)
        return false;
    char *line = NULL;
    size_t line_cap = 0;
    bool found = false;
    while (!found && getline(&line, &line_cap, f) > 0) {
        char *root = NULL, *mount = NULL, *type = NULL, *super = NULL, *save = NULL;
        line[strcspn(line, "\n")] = '\0';
        int field = 0, dash = -1;
        for (char *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save), field++) {
            if (field == 3)
                root = w;
            else if (field == 4)
                mount = w;
            else if (dash < 0 && field > 5 && strcmp(w, "-") == 0)
                dash = field;
            else if (dash >= 0 && field == dash + 1)
                type = w;
            else if (dash >= 0 && field == dash + 3)
                super = w;
        }
        if (!super || strcmp(type, controller ? "cgroup" : "cgroup2") != 0 ||
            (controller && !list_has(super, controller)))
            continue;
        size_t skip = strcmp(root, "/") == 0 ? 0 : strlen(root);
        if (strncmp(path, root, skip) != 0 || (skip && path[skip] && path[skip] != '/'))
            continue;
        found = cgroup_join(out, cap, mount, path + skip);
        *mount_len = strlen(mount);
    }
    free(line);
    fclose(f);
    return found;
}

bool cgroup_own(const char *controller, char *out, size_t cap, size_t *mount_len)
{
    char path[512];
    size_t ignored;
    if (!mount_len)
        mount_len = &ignored;
    return path_in_hierarchy(controller, path, sizeof(path)) &&
           (at_usual_place(controller, path, out, cap, mount_len) ||
            at_any_mount(controller, path, out, cap, mount_len));
}

/* -------------------------------------------------------------------------- one for the workers */

#define NAME   "dlaunch." /* and the agent's pid */
#define DIGITS "0123456789"

static bool place_of(pid_t agent, char *out, size_t cap)
{
    char own[256];
    if (!cgroup_own(NULL, own, sizeof(own), NULL))
        return false;
    int n = snprintf(out, cap, "%s/" NAME "%d", own, (int)agent);
    return n > 0 && (size_t)n < cap;
}

/* Removes the cgroups of agents that were killed together with their guardians: they are empty, and
 * no process has them locked. */
static void remove_leftovers(void)
{
    char own[256];
    DIR *dir = cgroup_own(NULL, own, sizeof(own), NULL) ? opendir(own) : NULL;
    for (struct dirent *de; dir && (de = readdir(dir));) {
        const char *pid = de->d_name + strlen(NAME);
        if (strncmp(de->d_name, NAME, strlen(NAME)) != 0 || !*pid || pid[strspn(pid, DIGITS)])
            continue;
        _cleanup_fd_ int fd = openat(dirfd(dir), de->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(dirfd(dir), de->d_name, AT_REMOVEDIR);
    }
    if (dir)
        closedir(dir);
}

/* False: another starting launcher has taken the cgroup for that of a dead agent. */
static bool make_at(struct cgroup *c, const char *path)
{
    if (mkdir(path, 0755) < 0)
        return true;
    c->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->fd < 0)
        return errno != ENOENT;
    bool locked = flock(c->fd, LOCK_SH | LOCK_NB) == 0;
    if (locked && faccessat(c->fd, "cgroup.kill", W_OK, 0) == 0) {
        strcpy(c->path, path);
        return true;
    }
    close_fd(&c->fd);
    return rmdir(path) == 0 && locked;
}

void cgroup_open(struct cgroup *c)
{
    *c = (struct cgroup){.fd = -1};
    char path[sizeof(c->path)];
    remove_leftovers();
    if (!place_of(getpid(), path, sizeof(path)))
        return;
    for (int tries = 0; tries < 3 && !make_at(c, path); tries++)
        ;
}

static void kill_all(int dirfd)
{
    _cleanup_fd_ int fd = openat(dirfd, "cgroup.kill", O_WRONLY | O_CLOEXEC);
    if (fd >= 0)
        fd_write_all(fd, "1", 1); /* on an error the sweep kills the processes */
}

void cgroup_kill(struct cgroup *c)
{
    if (c->fd < 0)
        return;
    kill_all(c->fd);
    c->killed = true;
}

/* A killed process leaves the cgroup a moment later. */
static void remove_when_empty(const char *path)
{
    uint64_t end = mono_ns() + REMOVE_WAIT_NS;
    while (rmdir(path) < 0 && errno == EBUSY && mono_ns() < end)
        poll(NULL, 0, 1);
}

static bool is_place_of(pid_t agent, const char *path)
{
    char name[32];
    size_t want = (size_t)snprintf(name, sizeof(name), "/" NAME "%d", (int)agent);
    size_t len = strlen(path);
    return len > want && strcmp(path + len - want, name) == 0;
}

void cgroup_kill_at(const char *path, pid_t agent)
{
    if (!is_place_of(agent, path))
        return;
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        kill_all(fd);
}

void cgroup_remove(const char *path, pid_t agent)
{
    char place[256];
    if (is_place_of(agent, path))
        remove_when_empty(path);
    else if (place_of(agent, place, sizeof(place)))
        rmdir(place);
}

void cgroup_close(struct cgroup *c)
{
    if (c->fd < 0)
        return;
    if (rmdir(c->path) < 0 && errno == EBUSY) {
        kill_all(c->fd);
        remove_when_empty(c->path);
    }
    close_fd(&c->fd);
    c->path[0] = '\0';
}

void cgroup_renew(struct cgroup *c)
{
    if (!c->killed)
        return;
    cgroup_close(c);
    cgroup_open(c);
}
