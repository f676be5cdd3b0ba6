#include "core/timed_call.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "core/clock.h"
#include "core/mem.h"
#include "core/thread.h"

#define LEAST_MS 500 /* for a server that is slow, when somebody is in a hurry */

/* The owner and the thread of a call share the struct; the one that is done last frees the
 * struct. */
struct timed_calls {
    pthread_mutex_t lock; /* protects what follows, and `given_up` of the call */
    pthread_cond_t returned;
    int users;
    bool busy; /* a call has not returned */
};

struct call {
    struct timed_calls *p;
    void (*work)(void *arg);
    void *arg;
    void (*drop)(void *arg);
    bool given_up; /* the thread frees this, and disposes of arg */
};

/* Called with the lock held; releases the lock. */
static void release(struct timed_calls *p)
{
    bool last = --p->users == 0;
    pthread_mutex_unlock(&p->lock);
    if (!last)
        return;
    pthread_cond_destroy(&p->returned);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static void *make_call(void *arg)
{
    struct call *c = arg;
    struct timed_calls *p = c->p;
    c->work(c->arg);
    pthread_mutex_lock(&p->lock);
    bool given_up = c->given_up; /* else the caller frees the call */
    p->busy = false;
    pthread_cond_signal(&p->returned);
    release(p);
    if (given_up) { /* without the lock: drop() may release the last reference on `p` */
        c->drop(c->arg);
        free(c);
    }
    return NULL;
}

struct timed_calls *timed_calls_new(void)
{
    struct timed_calls *p = xcalloc(1, sizeof(*p));
    pthread_condattr_t monotonic;
    p->users = 1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->returned, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return p;
}

static struct {
    bool (*hurried)(void *arg);
    void *arg;
} g_asked;

void timed_call_ask(bool (*hurried)(void *arg), void *arg)
{
    g_asked.hurried = hurried;
    g_asked.arg = arg;
}

bool timed_call_is_hurried(uint64_t since_ns)
{
    return g_asked.hurried && mono_ns() - since_ns >= LEAST_MS * UINT64_C(1000000) &&
           g_asked.hurried(g_asked.arg);
}

/* Called with the lock. True: the call has returned. */
static bool await(struct timed_calls *p, int ms)
{
    uint64_t since = mono_ns(), until = since + (uint64_t)ms * 1000000u, now;
    while (p->busy && (now = mono_ns()) < until && !timed_call_is_hurried(since)) {
        uint64_t look = now + TIMED_CALL_LOOK_MS * UINT64_C(1000000);
        uint64_t at = g_asked.hurried && look < until ? look : until;
        const struct timespec ts = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
        pthread_cond_timedwait(&p->returned, &p->lock, &ts);
    }
    return !p->busy;
}

/* Whether a thread makes the call; else the call is dropped, or was made by this function
 * (*done). */
static bool begin(struct timed_calls *p, struct call *c, bool *done)
{
    pthread_mutex_lock(&p->lock);
    bool busy = p->busy;
    p->busy = true;
    p->users += !busy;
    pthread_mutex_unlock(&p->lock);
    *done = false;
    if (busy) {
        c->drop(c->arg);
        free(c);
        return false;
    }
    if (thread_start(NULL, 0, make_call, c) == 0)
        return true;
    make_call(c);
    *done = true;
    free(c);
    return false;
}

bool timed_call(struct timed_calls *p, void (*work)(void *arg), void *arg, void (*drop)(void *arg),
                int ms)
{
    bool done;
    struct call *c = xmalloc(sizeof(*c));
    struct timed_calls *own = p ? NULL : timed_calls_new();
    p = p ? p : own;
    *c = (struct call){.p = p, .work = work, .arg = arg, .drop = drop};
    if (begin(p, c, &done)) {
        pthread_mutex_lock(&p->lock);
        done = await(p, ms);
        c->given_up = !done;
        pthread_mutex_unlock(&p->lock);
        if (done)
            free(c);
    }
    timed_calls_free(own);
    return done;
}

void timed_calls_free(struct timed_calls *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    release(p);
}
