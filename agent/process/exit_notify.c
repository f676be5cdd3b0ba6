#include "agent/process/exit_notify.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fd.h"
#include "core/futex.h"
#include "core/mem.h"
#include "core/thread.h"

#define STACK_BYTES (64 * 1024)
#define WORKERS     (FUTEX_WAITERS_MAX - 1) /* further workers of a node are only reaped */

enum { PROC_EXITING = 4 }; /* PF_EXITING of the kernel's include/linux/sched.h */

struct exit_notify {
    uv_async_t woken;
    void (*on_exiting)(void *arg);
    void *arg;

    const struct segment *segment; /* NULL: the thread does not run */
    pthread_t thread;
    atomic_bool stop;
};

bool exit_notify_has_begun(const struct segment *s, int local_rank)
{
    const _Atomic uint32_t *word = segment_exit_word(s, local_rank);
    return word && (atomic_load(word) & FUTEX_OWNER_DIED);
}

/* ----------------------------------------------------------------------------------- the thread */

static struct futex_waiter waiter(const _Atomic uint32_t *word)
{
    return (struct futex_waiter){
        .value = atomic_load(word), .address = (uintptr_t)word, .flags = FUTEX_32BIT};
}

static void *exit_notify_thread(void *arg)
{
    struct exit_notify *d = arg;
    const struct segment *s = d->segment;
    bool reported[WORKERS] = {false};
    struct futex_waiter w[FUTEX_WAITERS_MAX];
    int n;
    do {
        n = 0;
        w[n++] = waiter(&s->header->exit_word_count);
        for (int i = 0; i < s->nlocal && i < WORKERS; i++) {
            const _Atomic uint32_t *word = reported[i] ? NULL : segment_exit_word(s, i);
            if (!word)
                continue;
            w[n] = waiter(word);
            reported[i] = w[n].value & FUTEX_OWNER_DIED;
            if (reported[i])
                uv_async_send(&d->woken);
            else
                n++;
        }
    } while (!atomic_load(&d->stop) && futex_wait_any(w, n, 0) == 0);
    return NULL;
}

/* ------------------------------------------------------------------------------------- the loop */

static void on_woken(uv_async_t *woken)
{
    struct exit_notify *d = container_of(woken, struct exit_notify, woken);
    d->on_exiting(d->arg);
}

struct exit_notify *exit_notify_new(uv_loop_t *loop, struct uvx_scope *scope,
                                    void (*on_exiting)(void *arg), void *arg)
{
    struct exit_notify *d = xcalloc(1, sizeof(*d));
    d->on_exiting = on_exiting;
    d->arg = arg;
    uv_async_init(loop, &d->woken, on_woken);
    uvx_own(scope, &d->woken);
    return d;
}

void exit_notify_watch(struct exit_notify *d, const struct segment *s)
{
    d->segment = s;
    atomic_store(&d->stop, false);
    if (thread_start(&d->thread, STACK_BYTES, exit_notify_thread, d) != 0)
        d->segment = NULL;
}

void exit_notify_unwatch(struct exit_notify *d)
{
    if (!d || !d->segment)
        return;
    _Atomic uint32_t *exit_word_count = &d->segment->header->exit_word_count;
    atomic_store(&d->stop, true);
    atomic_fetch_add(exit_word_count, 1);
    futex_wake(exit_word_count);
    pthread_join(d->thread, NULL);
    d->segment = NULL;
}

void exit_notify_free(struct exit_notify *d)
{
    free(d);
}

/* The status of a stop signal: the first thread has ended and the others are stopped; the process
 * does not exit. */
static bool is_a_stop(int status)
{
    return status == SIGSTOP || status == SIGTSTP || status == SIGTTIN || status == SIGTTOU;
}

/* Reads state and status of a process that is exiting; false: the process is not exiting. The 9th
 * number of the file is the flags, the last one the status: proc(5). */
static bool read_end(pid_t pid, char *state, int *status)
{
    char path[64], text[1024];
    unsigned flags;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (fd_read_file(AT_FDCWD, path, text, sizeof(text)) <= 0)
        return false;
    const char *p = strrchr(text, ')'); /* the name may contain anything */
    if (!p || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %u", state, &flags) != 2 ||
        !(flags & PROC_EXITING) || !(p = strrchr(p, ' ')))
        return false;
    *status = atoi(p + 1);
    return !is_a_stop(*status);
}

int exit_notify_status(pid_t pid)
{
    char state;
    int status;
    return read_end(pid, &state, &status) ? status : -1;
}

bool exit_notify_runs(pid_t pid)
{
    char state;
    int status;
    return read_end(pid, &state, &status) && state == 'R';
}
