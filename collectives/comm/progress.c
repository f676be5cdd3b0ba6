#include "collectives/comm/progress.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "collectives/base/wait.h"
#include "collectives/comm/job.h"
#include "core/bell.h"
#include "core/clock.h"
#include "core/thread.h"

#define MS                  UINT64_C(1000000)
#define YIELD_NS            (MS / 2) /* after something has moved: waking the thread takes 50 us */
#define TICK_NS             (10 * MS)
#define TICK_ON_ONE_NODE_NS (100 * MS)

/* A job that has had a task. */
struct progress_job {
    struct progress_job *next;
    struct job *job;
    bool stopped; /* the abort word has been seen */
    int ended;    /* processes of this node that were seen to have ended */
};

static struct {
    pthread_mutex_t life; /* of the thread */
    pthread_t thread;
    int users; /* jobs */
    _Atomic bool quit;

    pthread_mutex_t lock; /* of these */
    struct progress_job *jobs;
    struct wait_policy policy;

    /* The thread's. */
    uint64_t next_tick, moved_ns;
    bool in_poll;
} g = {.life = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER};

/* -------------------------------------------------------------------------------------- looking */

/* Whether anything has rung. Under the lock. */
static bool collect(void)
{
    bool rung = task_collect(task_own_bell());
    for (struct progress_job *j = g.jobs; j; j = j->next) {
        rung = task_collect(j->job->bell) || rung;
        if (!j->stopped && atomic_load(job_abort_word(j->job))) {
            j->stopped = true;
            task_ring_all();
        }
    }
    return task_collect_all() || rung;
}

/* Checks for connections and exited processes, which do not ring. Under the lock. */
static void tick(uint64_t now)
{
    struct err e = ERR_INIT;
    if (now < g.next_tick)
        return;
    uint64_t pause = TICK_ON_ONE_NODE_NS;
    for (struct progress_job *j = g.jobs; j; j = j->next) {
        /* The launcher reports deaths at once; ranks of other nodes connect. */
        const struct job_segment *s = &j->job->world.segment;
        if (!s->base || s->header.nnodes > 1)
            pause = TICK_NS;
        (void)acceptor_serve(&j->job->acceptor, &e);
        int ended = job_count_ended(j->job);
        if (ended != j->ended)
            task_ring_all();
        j->ended = ended;
    }
    g.next_tick = now + pause;
}

/* Descriptors that are ready. Whether tasks are, therefore. */
static bool take_events(int timeout_ms)
{
    bool others, any = task_take_events(timeout_ms, &others);
    if (others)
        g.next_tick = 0;
    return any;
}

/* ------------------------------------------------------------------------------------- sleeping */

/* Connections of the job end the sleep. */
static void listen_to(struct job *job)
{
    struct pollfd fds[ACCEPTOR_PENDING + 1];
    int ms = 0;
    size_t n = acceptor_poll(&job->acceptor, fds, &ms);
    for (size_t i = 0; i < n; i++)
        (void)task_watch(fds[i].fd, fds[i].events);
}

/* Every ring from now on wakes the thread. Under the lock. */
static void announce(bool in_poll)
{
    g.in_poll = in_poll;
    task_sleeps_in_poll(in_poll);
    atomic_store(&task_own_bell()->asleep, 1);
    for (struct progress_job *j = g.jobs; j; j = j->next) {
        struct segment_local *line = world_line(&j->job->world);
        if (j->job->bell)
            atomic_store(&j->job->bell->asleep, 1);
        if (in_poll)
            listen_to(j->job);
        if (in_poll && line)
            atomic_fetch_add(&line->polling, 1);
    }
}

static void awake(void)
{
    atomic_store(&task_own_bell()->asleep, 0);
    for (struct progress_job *j = g.jobs; j; j = j->next) {
        struct segment_local *line = world_line(&j->job->world);
        if (j->job->bell)
            atomic_store(&j->job->bell->asleep, 0);
        if (g.in_poll && line)
            atomic_fetch_sub(&line->polling, 1);
    }
    task_sleeps_in_poll(false);
}

/* Fills in the words that the thread sleeps on. Returns their number; 0: something has rung
 * already. Under the lock. */
static int find_words(struct wait_word *words, uint64_t *timeout_ns)
{
    struct bell *own = task_own_bell();
    int n = 0;
    words[n++] = (struct wait_word){&own->word, atomic_load(&own->word)};
    bool rung = bell_has_rung(own) || task_all_rung() || atomic_load(&g.quit);
    for (struct progress_job *j = g.jobs; j; j = j->next) {
        struct bell *b = j->job->bell;
        bool fits = n + 2 <= WAIT_WORDS_MAX;
        if (!fits && *timeout_ns > MS)
            *timeout_ns = MS;
        if (fits && b)
            words[n++] = (struct wait_word){&b->word, atomic_load(&b->word)};
        if (fits && !j->stopped && j->job->world.segment.base)
            words[n++] = (struct wait_word){job_abort_word(j->job), 0};
        rung =
            rung || (b && bell_has_rung(b)) || (!j->stopped && atomic_load(job_abort_word(j->job)));
    }
    return rung ? 0 : n;
}

static void progress_sleep(uint64_t now)
{
    struct wait_word words[WAIT_WORDS_MAX];
    uint64_t end = task_due() < g.next_tick ? task_due() : g.next_tick, ns = UINT64_MAX;
    bool in_poll = task_polling() > 0;
    if (task_parked())
        ns = end > now ? end - now : 0;
    if (in_poll && task_parked() > task_polling() && ns > MS)
        ns = MS;
    pthread_mutex_lock(&g.lock);
    announce(in_poll);
    int n = find_words(words, &ns);
    pthread_mutex_unlock(&g.lock);
    if (n && in_poll)
        take_events(ns > 1000 * MS ? 1000 : (int)((ns + MS - 1) / MS));
    else if (n && ns)
        wait_sleep(words, n, ns);
    pthread_mutex_lock(&g.lock);
    awake();
    pthread_mutex_unlock(&g.lock);
}

/* ----------------------------------------------------------------------------------- the thread */

static void *progress_main(void *arg)
{
    (void)arg;
    task_thread_begin();
    while (!atomic_load(&g.quit)) {
        pthread_mutex_lock(&g.lock);
        bool moved = collect();
        uint64_t now = mono_ns();
        if (task_parked())
            tick(now);
        struct wait_policy policy = g.policy;
        pthread_mutex_unlock(&g.lock);
        if (task_polling() && take_events(0))
            moved = true;
        if (moved)
            g.moved_ns = now;
        task_expire(now);
        if (task_run_ready() || task_all_rung())
            continue;
        uint64_t idle = now - g.moved_ns;
        enum wait_step step =
            task_parked() && idle < YIELD_NS ? wait_next(&policy, idle, now) : WAIT_SLEEP;
        if (step == WAIT_SLEEP)
            progress_sleep(now);
        else if (step == WAIT_YIELD)
            sched_yield();
        else
            wait_relax();
    }
    task_thread_end();
    return NULL;
}

/* The job ends; it has no tasks any more. In a fork()'s child the thread knows of no job. */
static void close_job(struct job *job)
{
    struct progress_job *found = NULL;
    pthread_mutex_lock(&g.life);
    pthread_mutex_lock(&g.lock);
    for (struct progress_job **at = &g.jobs; *at && !found; at = &(*at)->next) {
        if ((*at)->job == job) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&g.lock);
    if (found && --g.users == 0) {
        atomic_store(&g.quit, true);
        task_ring_all();
        pthread_join(g.thread, NULL);
    }
    pthread_mutex_unlock(&g.life);
    free(found);
}

static void in_child(void)
{
    task_forget();
    g.jobs = NULL;
    g.users = 0;
    pthread_mutex_init(&g.life, NULL);
    pthread_mutex_init(&g.lock, NULL);
}

static int start_thread(void)
{
    static bool watches_forks;
    if (!watches_forks && pthread_atfork(NULL, NULL, in_child) != 0)
        return -ENOMEM;
    watches_forks = true;
    g.next_tick = 0;
    atomic_store(&g.quit, false);
    return thread_start(&g.thread, 0, progress_main, NULL) ? -ENOMEM : 0;
}

/* The thread serves the job from now on. Under `life`. */
static int open_job(struct job *job)
{
    if (job->at_end)
        return 0;
    struct progress_job *j = calloc(1, sizeof(*j));
    int r = j ? 0 : -ENOMEM;
    if (r == 0 && g.users == 0)
        r = start_thread();
    if (r < 0) {
        free(j);
        return r;
    }
    g.users++;
    j->job = job;
    j->ended = job_count_ended(job);
    job->at_end = close_job;
    pthread_mutex_lock(&g.lock);
    j->next = g.jobs;
    g.jobs = j;
    g.policy = wait_policy_choose(job->world.neighbours, job->world.usable_cpus);
    pthread_mutex_unlock(&g.lock);
    return 0;
}

int progress_join(struct job *job, struct task *t)
{
    if (atomic_load_explicit(&t->slot, memory_order_relaxed))
        return 0;
    pthread_mutex_lock(&g.life);
    int r = open_job(job);
    pthread_mutex_unlock(&g.life);
    return r < 0 ? r : task_add(t);
}

void progress_leave(struct task *t)
{
    uint32_t slot = atomic_load(&t->slot);
    if (!slot)
        return;
    atomic_store(&t->leaves, true);
    task_ring(slot);
    while (!atomic_load(&t->left))
        wait_sleep(&(struct wait_word){&t->left, 0}, 1, UINT64_MAX);
    atomic_store(&t->slot, 0);
}
