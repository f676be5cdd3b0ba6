#include "core/thread.h"

#include <signal.h>

int thread_start(pthread_t *out, size_t stack_bytes, void *(*fn)(void *), void *arg)
{
    pthread_t thread;
    pthread_attr_t attr;
    sigset_t all, before;
    int rc = pthread_attr_init(&attr);
    if (rc != 0)
        return rc;
    if (stack_bytes)
        pthread_attr_setstacksize(&attr, stack_bytes);
    if (!out)
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(out ? out : &thread, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}
