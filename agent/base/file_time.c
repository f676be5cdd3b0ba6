#include "agent/base/file_time.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "core/clock.h"
#include "core/mem.h"
#include "core/thread.h"

/* The owner and the thread share it; the last of them frees it. */
struct file_time {
    char *path;
    pthread_mutex_t lock; /* protects what follows */
    pthread_cond_t answered;
    int users;
    bool asked; /* the thread has not answered yet */
    bool exists;
    uint64_t wall_ns;
};

/* Called with the lock, which it releases. */
static void release(struct file_time *f)
{
    bool last = --f->users == 0;
    pthread_mutex_unlock(&f->lock);
    if (!last)
        return;
    pthread_cond_destroy(&f->answered);
    pthread_mutex_destroy(&f->lock);
    free(f->path);
    free(f);
}

static void *ask(void *arg)
{
    struct file_time *f = arg;
    struct stat st;
    bool exists = stat(f->path, &st) == 0;
    pthread_mutex_lock(&f->lock);
    f->asked = false;
    f->exists = exists;
    if (exists)
        f->wall_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    pthread_cond_signal(&f->answered);
    release(f);
    return NULL;
}

struct file_time *file_time_new(const char *path)
{
    struct file_time *f = xcalloc(1, sizeof(*f));
    pthread_condattr_t monotonic;
    f->path = xstrdup(path);
    f->users = 1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&f->answered, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return f;
}

bool file_time_get(struct file_time *f, uint64_t *wall_ns)
{
    uint64_t until = mono_ns() + FILE_TIME_MS * UINT64_C(1000000);
    const struct timespec ts = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    pthread_mutex_lock(&f->lock);
    if (f->asked || thread_start(NULL, 0, ask, f) != 0) {
        pthread_mutex_unlock(&f->lock);
        return false;
    }
    f->asked = true;
    f->users++;
    while (f->asked && mono_ns() < until)
        pthread_cond_timedwait(&f->answered, &f->lock, &ts);
    bool known = !f->asked && f->exists;
    if (known)
        *wall_ns = f->wall_ns;
    pthread_mutex_unlock(&f->lock);
    return known;
}

void file_time_free(struct file_time *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    release(f);
}
