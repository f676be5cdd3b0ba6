/* thread.h: starting a thread of our own. */
#ifndef CORE_THREAD_H
#define CORE_THREAD_H

#include <pthread.h>
#include <stddef.h>

/* Runs fn(arg) in a thread with every signal blocked: the thread handles none, and its write to a
 * pipe without a reader returns EPIPE and does nothing else. out NULL: nobody waits for the end of
 * the thread. stack_bytes 0: the usual size. 0, or an errno value. */
int thread_start(pthread_t *out, size_t stack_bytes, void *(*fn)(void *), void *arg);

#endif
