#include "collectives/base/task.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "collectives/base/fiber.h"
#include "core/bell.h"
#include "core/clock.h"
#include "core/fd.h"

#define MS UINT64_C(1000000)

enum {
    EVENTS = 64,
    EVENT_OTHER = -1, /* not a task: what task_watch() watches, or the eventfd */
};

static struct {
    struct bell own;
    _Atomic bool all;
    _Atomic bool polling; /* asleep in epoll: a write to `wake` ends that */
    int epoll, wake;      /* -1: no task has waited for a descriptor yet */

    pthread_mutex_t lock; /* of these */
    struct task **tasks;  /* by slot */
    uint32_t cap, next;
    struct fiber *spare; /* with those that run tasks, one for each task */

    /* The thread's. */
    struct task *running, *ready, **ready_tail;
    int nparked, npolls;
    uint64_t next_due;
    void (*call)(void *arg);
    void *call_arg;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER, .epoll = -1, .wake = -1};

static _Thread_local bool t_is_thread;

bool task_inside(void)
{
    return t_is_thread && g.running;
}

uint32_t task_slot(void)
{
    return atomic_load_explicit(&g.running->slot, memory_order_relaxed);
}

/* -------------------------------------------------------------------------------------- ringing */

static void wake_poll(void)
{
    uint64_t one = 1;
    if (atomic_load(&g.polling))
        (void)!write(g.wake, &one, sizeof(one));
}

void task_ring(uint32_t slot)
{
    if (!slot)
        return;
    bell_ring(&g.own, slot - 1);
    wake_poll();
}

void task_ring_all(void)
{
    atomic_store(&g.all, true);
    bell_ring(&g.own, 0);
    wake_poll();
}

struct bell *task_own_bell(void)
{
    return &g.own;
}

bool task_all_rung(void)
{
    return atomic_load(&g.all);
}

/* ---------------------------------------------------------------------------------------- slots */

static void give_fiber(struct fiber *f)
{
    f->next = g.spare;
    g.spare = f;
}

/* A slot is free: a task takes at most the one that task_add() has made for it. */
static struct fiber *take_fiber(void)
{
    struct fiber *f = g.spare;
    assert(f);
    g.spare = f->next;
    return f;
}

/* A free number for the task, and a fiber: to wait needs no memory. */
int task_add(struct task *t)
{
    uint32_t i = 0;
    struct fiber *f = fiber_new();
    if (!f)
        return -ENOMEM;
    pthread_mutex_lock(&g.lock);
    for (uint32_t k = 0; k < g.cap; k++) {
        i = (g.next + k) % g.cap;
        if (!g.tasks[i])
            break;
    }
    if (!g.cap || g.tasks[i]) {
        uint32_t cap = g.cap ? g.cap * 2 : 64;
        struct task **p = realloc(g.tasks, cap * sizeof(struct task *));
        if (!p) {
            pthread_mutex_unlock(&g.lock);
            fiber_free(f);
            return -ENOMEM;
        }
        memset(p + g.cap, 0, (cap - g.cap) * sizeof(struct task *));
        i = g.cap;
        g.tasks = p;
        g.cap = cap;
    }
    g.tasks[i] = t;
    g.next = i + 1;
    give_fiber(f);
    atomic_store(&t->slot, i + 1);
    pthread_mutex_unlock(&g.lock);
    return 0;
}

/* ---------------------------------------------------------------------------------------- ready */

static void make_ready(struct task *t)
{
    if (!t || t->ready || t == g.running)
        return;
    t->ready = true;
    t->next = NULL;
    *g.ready_tail = t;
    g.ready_tail = &t->next;
}

static void slot_ready(uint32_t slot)
{
    for (uint32_t i = slot; i < g.cap; i += BELL_SLOTS)
        make_ready(g.tasks[i]);
}

bool task_collect(struct bell *b)
{
    if (!b || !bell_has_rung(b))
        return false;
    pthread_mutex_lock(&g.lock);
    uint64_t words = atomic_exchange(&b->words, 0);
    for (; words; words &= words - 1) {
        uint32_t word = (uint32_t)__builtin_ctzll(words);
        uint64_t bits = atomic_exchange(&b->slots[word], 0);
        for (; bits; bits &= bits - 1)
            slot_ready(word * 64 + (uint32_t)__builtin_ctzll(bits));
    }
    pthread_mutex_unlock(&g.lock);
    return true;
}

bool task_collect_all(void)
{
    if (!atomic_load(&g.all) || !atomic_exchange(&g.all, false))
        return false;
    pthread_mutex_lock(&g.lock);
    for (uint32_t i = 0; i < g.cap; i++)
        make_ready(g.tasks[i]);
    pthread_mutex_unlock(&g.lock);
    return true;
}

void task_expire(uint64_t now)
{
    if (now < g.next_due)
        return;
    g.next_due = UINT64_MAX;
    pthread_mutex_lock(&g.lock);
    for (uint32_t i = 0; i < g.cap; i++) {
        struct task *t = g.tasks[i];
        if (!t || !t->parked)
            continue;
        if (t->due_ns <= now)
            make_ready(t);
        else if (t->due_ns < g.next_due)
            g.next_due = t->due_ns;
    }
    pthread_mutex_unlock(&g.lock);
}

int task_parked(void)
{
    return g.nparked;
}

int task_polling(void)
{
    return g.npolls;
}

uint64_t task_due(void)
{
    return g.next_due;
}

/* -------------------------------------------------------------------------------------- running */

static void park(uint64_t timeout_ns)
{
    struct task *t = g.running;
    uint64_t now = timeout_ns == UINT64_MAX ? 0 : mono_ns(), coarse = MS;
    t->due_ns = UINT64_MAX;
    if (timeout_ns < UINT64_MAX - now) {
        /* Many tasks that nap as long wake together: an eighth late. */
        while (coarse * 16 <= timeout_ns)
            coarse *= 2;
        t->due_ns = now + timeout_ns;
        if (timeout_ns >= 8 * MS)
            t->due_ns = (t->due_ns + coarse - 1) / coarse * coarse;
    }
    if (t->due_ns < g.next_due)
        g.next_due = t->due_ns;
    t->parked = true;
    g.nparked++;
    g.npolls += t->polls;
    fiber_pause(t->fiber);
    g.nparked--;
    g.npolls -= t->polls;
    t->parked = t->polls = false;
}

void task_park(uint64_t timeout_ns)
{
    assert(task_inside());
    park(timeout_ns);
}

void task_yield(void)
{
    struct task *t = g.running;
    g.running = NULL;
    make_ready(t);
    g.running = t;
    fiber_pause(t->fiber);
}

void task_call(void (*fn)(void *arg), void *arg)
{
    g.call = fn;
    g.call_arg = arg;
    fiber_pause(g.running->fiber);
}

/* The task is its owner's again. */
static void drop(struct task *t)
{
    pthread_mutex_lock(&g.lock);
    g.tasks[atomic_load(&t->slot) - 1] = NULL;
    struct fiber *f = take_fiber();
    pthread_mutex_unlock(&g.lock);
    fiber_free(f);
    const _Atomic uint32_t *left = &t->left;
    atomic_store(&t->left, 1);
    futex_wake((const void *)left); /* an address: the memory may have been freed */
}

static void run_task(struct task *t)
{
    t->ready = false;
    g.running = t;
    if (t->fiber) {
        fiber_resume(t->fiber);
    } else {
        pthread_mutex_lock(&g.lock);
        t->fiber = take_fiber();
        pthread_mutex_unlock(&g.lock);
        fiber_start(t->fiber, t->run, t->arg);
    }
    while (g.call) {
        void (*call)(void *) = g.call;
        g.call = NULL;
        g.running = NULL; /* the program's code may use the library as any thread may */
        call(g.call_arg);
        g.running = t;
        fiber_resume(t->fiber);
    }
    g.running = NULL;
    if (!t->fiber->ended)
        return;
    pthread_mutex_lock(&g.lock);
    give_fiber(t->fiber);
    pthread_mutex_unlock(&g.lock);
    t->fiber = NULL;
    if (atomic_load(&t->leaves))
        drop(t);
}

bool task_run_ready(void)
{
    struct task *t = g.ready, *next;
    bool any = t != NULL;
    g.ready = NULL;
    g.ready_tail = &g.ready;
    for (; t; t = next) {
        next = t->next;
        run_task(t);
    }
    return any;
}

/* ---------------------------------------------------------------------------------- descriptors */

static bool open_epoll(void)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = (uint64_t)EVENT_OTHER};
    if (g.epoll >= 0)
        return true;
    int wake = fd_above_std(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    int epoll = wake < 0 ? -1 : fd_above_std(epoll_create1(EPOLL_CLOEXEC));
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, wake, &ev) < 0) {
        close_fd(&epoll);
        close_fd(&wake);
        return false;
    }
    g.wake = wake;
    g.epoll = epoll;
    return true;
}

/* Watches the descriptor once: its event rings for the task and switches the watch off. */
static bool watch(int fd, short events, uint64_t slot)
{
    struct epoll_event ev = {.events = (uint32_t)events | EPOLLONESHOT, .data.u64 = slot};
    return epoll_ctl(g.epoll, EPOLL_CTL_MOD, fd, &ev) == 0 ||
           (errno == ENOENT && epoll_ctl(g.epoll, EPOLL_CTL_ADD, fd, &ev) == 0);
}

void task_poll(const struct pollfd *fds, size_t n, uint64_t timeout_ns)
{
    struct task *t = g.running;
    bool can = open_epoll();
    for (size_t i = 0; i < n && can; i++) {
        short events = 0;
        bool first = true;
        for (size_t k = 0; k < n; k++) { /* a descriptor may be there once for each direction */
            if (fds[k].fd == fds[i].fd) {
                events |= fds[k].events;
                first = first && k >= i;
            }
        }
        if (first && fds[i].fd >= 0)
            can = watch(fds[i].fd, events, task_slot() - 1);
    }
    if (!can && timeout_ns > MS)
        timeout_ns = MS;
    t->polls = can;
    park(timeout_ns);
}

bool task_watch(int fd, short events)
{
    return watch(fd, events, (uint64_t)EVENT_OTHER);
}

void task_sleeps_in_poll(bool does)
{
    atomic_store(&g.polling, does);
}

bool task_take_events(int timeout_ms, bool *others)
{
    struct epoll_event ev[EVENTS];
    int n = epoll_wait(g.epoll, ev, EVENTS, timeout_ms);
    uint64_t drained;
    bool any = false;
    *others = false;
    if (n <= 0)
        return false;
    pthread_mutex_lock(&g.lock);
    for (int i = 0; i < n; i++) {
        if (ev[i].data.u64 == (uint64_t)EVENT_OTHER) {
            (void)!read(g.wake, &drained, sizeof(drained));
            *others = true;
        } else if (ev[i].data.u64 < g.cap) {
            make_ready(g.tasks[ev[i].data.u64]);
            any = true;
        }
    }
    pthread_mutex_unlock(&g.lock);
    return any;
}

/* ------------------------------------------------------------------------------- beginning, end */

void task_thread_begin(void)
{
    t_is_thread = true;
    g.ready = NULL;
    g.ready_tail = &g.ready;
    g.nparked = g.npolls = 0;
    g.next_due = UINT64_MAX;
}

void task_thread_end(void)
{
    assert(!g.spare); /* every task has left */
    free(g.tasks);
    g.tasks = NULL;
    g.cap = 0;
    close_fd(&g.epoll);
    close_fd(&g.wake);
}

void task_forget(void)
{
    close_fd(&g.epoll);
    close_fd(&g.wake);
    memset(&g, 0, sizeof(g));
    pthread_mutex_init(&g.lock, NULL);
    g.epoll = g.wake = -1;
    t_is_thread = false;
}
