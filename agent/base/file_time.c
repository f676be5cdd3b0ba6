#include "agent/base/file_time.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "core/mem.h"
#include "core/timed_call.h"

struct file_time {
    struct timed_calls *server;
    char *path;
};

struct question {
    char *path;
    bool exists;
    uint64_t wall_ns;
};

static void ask(void *arg)
{
    struct question *q = arg;
    struct stat st;
    q->exists = stat(q->path, &st) == 0;
    if (q->exists)
        q->wall_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
}

static void drop(void *arg)
{
    struct question *q = arg;
    free(q->path);
    free(q);
}

struct file_time *file_time_new(const char *path)
{
    struct file_time *f = xcalloc(1, sizeof(*f));
    f->path = xstrdup(path);
    f->server = timed_calls_new();
    return f;
}

bool file_time_get(struct file_time *f, uint64_t *wall_ns)
{
    struct question *q = xcalloc(1, sizeof(*q));
    q->path = xstrdup(f->path);
    if (!timed_call(f->server, ask, q, drop, FILE_TIME_MS))
        return false;
    bool exists = q->exists;
    if (exists)
        *wall_ns = q->wall_ns;
    drop(q);
    return exists;
}

void file_time_free(struct file_time *f)
{
    if (!f)
        return;
    timed_calls_free(f->server);
    free(f->path);
    free(f);
}
