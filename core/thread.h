/* thread.h: starting a thread of our own. */
#ifndef CORE_THREAD_H
#define CORE_THREAD_H

#include <pthread.h>
#include <stddef.h>

/* Runs fn(arg) with every signal blocked: none is ever handled there, and a write to a pipe without
 * a reader is EPIPE and no more. out NULL: nobody waits for its end. stack_bytes 0: what is usual.
 * 0, or an errno value. */
int thread_start(pthread_t *out, size_t stack_bytes, void *(*fn)(void *), void *arg);

#endif
