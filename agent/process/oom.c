#include "agent/process/oom.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/process/cgroup.h"
#include "core/fd.h"
#include "core/mem.h"

#define EVENTS_MAX 16384 /* bytes; /proc/vmstat, the longest of them, has some 5,000 */

/* The number behind "oom_kill " at the start of a line. */
static bool read_kills(int fd, uint64_t *out)
{
    static const char key[] = "oom_kill ";
    char text[EVENTS_MAX];
    size_t len = 0;
    for (ssize_t n; len < sizeof(text) - 1; len += (size_t)n) {
        n = pread(fd, text + len, sizeof(text) - 1 - len, (off_t)len);
        if (n <= 0)
            break;
    }
    text[len] = '\0';
    for (char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, sizeof(key) - 1) == 0) {
            *out = strtoull(line + sizeof(key) - 1, NULL, 10);
            return true;
        }
    }
    return false;
}

static bool try_file(struct oom_watch *w, const char *dir, const char *file)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    w->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (w->fd >= 0 && !read_kills(w->fd, &w->kills))
        close_fd(&w->fd);
    return w->fd >= 0;
}

void oom_open(struct oom_watch *w, _Atomic uint64_t *reported)
{
    *w = (struct oom_watch){.fd = -1, .reported = reported};
    char dir[512];
    /* The memory controller is in one of the two trees only. The root cgroup has no counter of its
     * own; the counter of the host includes its kills. */
    if (cgroup_own(NULL, dir, sizeof(dir), NULL) && try_file(w, dir, "memory.events"))
        return;
    if (cgroup_own("memory", dir, sizeof(dir), NULL) && try_file(w, dir, "memory.oom_control"))
        return;
    w->of_host = try_file(w, "/proc", "vmstat");
}

bool oom_happened(struct oom_watch *w)
{
    uint64_t now;
    if (w->fd < 0 || !read_kills(w->fd, &now))
        return false;
    uint64_t reported = w->reported ? atomic_exchange(w->reported, now) : 0;
    bool rose = now > (reported > w->kills ? reported : w->kills);
    w->kills = now;
    return rose;
}

const char *oom_words(struct oom_watch *w)
{
    return !w->of_host && oom_happened(w) ? ", out of memory (cgroup oom_kill)" : "";
}

void oom_close(struct oom_watch *w)
{
    close_fd(&w->fd);
}

/* ------------------------------------------------------------------------------------- feature */

struct oom {
    struct node *n;
    struct oom_watch watch;
};

static int oom_feature_open(void **state, struct node *n, struct err *e)
{
    struct oom *o = xcalloc(1, sizeof(*o));
    (void)e;
    *o = (struct oom){.n = n, .watch.fd = -1};
    *state = o;
    return 0;
}

/* Earlier kills were not of the workers of this round. Looks after their start, so that they do not
 * wait for it. */
static void oom_state_changed(void *state, enum node_state from)
{
    struct oom *o = state;
    if (from != NODE_STARTING)
        return;
    if (o->watch.fd < 0)
        oom_open(&o->watch, o->n->oom_reported);
    else
        oom_happened(&o->watch);
}

static void oom_worker_failed(void *state, struct worker *w, bool by_dlaunch)
{
    struct oom *o = state;
    w->failure.oom = w->failure.signal == SIGKILL && !by_dlaunch && oom_happened(&o->watch);
}

static void oom_free(void *state)
{
    struct oom *o = state;
    oom_close(&o->watch);
    free(o);
}

struct oom_watch *oom_watch_of(void *state)
{
    struct oom *o = state;
    return o ? &o->watch : NULL;
}

const struct feature oom_feature = {
    .name = "OOM watch",
    .open = oom_feature_open,
    .state_changed = oom_state_changed,
    .worker_failed = oom_worker_failed,
    .free = oom_free,
};
