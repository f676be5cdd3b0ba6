#include "collectives/shm/sync.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/base/task.h"
#include "collectives/shm/memory.h"
#include "core/clock.h"
#include "core/memory_fence.h"

enum {
    LOOK_NS = 1000 * 1000,        /* between checks of the peer and of the deadline */
    NAP_NS = 10 * LOOK_NS,        /* longest sleep of a thread, */
    TASK_NAP_NS = 1000 * LOOK_NS, /* and of a task: the progress thread looks for all of them */
    LONG_NS = 20 * LOOK_NS,       /* of waiting, before the peer's current operation is compared */
    /* About a microsecond of spinning before anything else: reading the clock takes a large part of
     * the duration of a small operation. */
    QUICK_LOOKS = 100,
    QUICK_YIELDS = 8,     /* limit where ranks share CPUs */
    SPREAD_EVERY = 4096,  /* waits between calls of wait_spread() where ranks share CPUs */
    LOOKS_PER_CLOCK = 16, /* while spinning: reading the clock costs as much as a few loads */
    /* Operations and chunks after which `progress` is published again. Together with those of one
     * operation and of the ranks that lag, the distance must stay below 2^31. */
    REFRESH = 1 << 24,
};

static int set_culprit(struct shm_op *op, int i, int status)
{
    op->call->failure->culprit = coll_rank_of(&op->call->ranks, i);
    return status;
}

/* --------------------------------------------------------------------------------------- waking */

/* Sleepers wait on one of these words. A sleeper increments `sleepers` before its last check; with
 * the fence here, either the sleeper sees the new value or this rank sees the sleeper. */
static void wake_sleepers(const struct shm_op *op)
{
    struct shm *s = op->s;
    memory_fence(memory_order_seq_cst);
    uint32_t sleepers = atomic_load_explicit(&s->head->sleepers, memory_order_relaxed);
    if (!sleepers)
        return;
    if (sleepers >= SHM_PARKED)
        shm_ring_parked(s);
    if (sleepers % SHM_PARKED == 0)
        return;
    wait_wake(&op->mine->seq);
    wait_wake(&s->progress[s->me].staged);
    wait_wake(&s->progress[s->me].reduced);
    wait_wake(&s->progress[s->me].done);
}

/* Between two chunks. A sleeper that is missed here is woken when this rank waits or ends. */
static void wake_seen_sleepers(const struct shm_op *op)
{
    if (atomic_load_explicit(&op->s->head->sleepers, memory_order_relaxed))
        wake_sleepers(op);
}

/* Called in a task: parks until the task is rung for, at most for the given time. */
static void park_on(struct shm_op *op, const _Atomic uint32_t *word, uint64_t want, uint64_t ns)
{
    struct shm *s = op->s;
    atomic_fetch_add(&s->head->sleepers, SHM_PARKED);
    atomic_store(&s->peers[s->me].coll_parked, task_slot());
    if (!shm_at_least(atomic_load(word), want) && !comm_is_stopped(op->call->comm))
        task_park(s->bells[s->me] || ns < LOOK_NS ? ns : LOOK_NS);
    atomic_store(&s->peers[s->me].coll_parked, 0);
    atomic_fetch_sub(&s->head->sleepers, SHM_PARKED);
}

static void sleep_on(struct shm_op *op, const _Atomic uint32_t *word, uint64_t want,
                     uint64_t now_ns, uint64_t idle_ns)
{
    const dlcoll_comm *c = op->call->comm;
    uint64_t deadline = op->call->deadline_ns, ns = NAP_NS;
    bool inside = task_inside();
    if (inside && idle_ns > ns) /* there may be thousands */
        ns = idle_ns < TASK_NAP_NS ? idle_ns : TASK_NAP_NS;
    if (deadline && deadline - now_ns < ns)
        ns = deadline - now_ns;
    if (inside) {
        park_on(op, word, want, ns);
        return;
    }
    _Atomic uint32_t *sleepers = &op->s->head->sleepers;
    atomic_fetch_add(sleepers, 1);
    uint32_t now = atomic_load(word);
    struct wait_word words[] = {
        {word, now}, {c->job_word, 0}, {&c->own_stop.word, 0}, {&c->shared_stop->word, 0}};
    if (!shm_at_least(now, want))
        wait_sleep(words, 4, ns);
    atomic_fetch_sub(sleepers, 1);
}

/* -------------------------------------------------------------------------------------- waiting */

/* Whether the process of rank i has exited without an abort notice, or has closed the communicator.
 * Data published before that counts: the caller checks the awaited word again. */
static bool has_ended(const struct shm_op *op, int i)
{
    const dlcoll_comm *c = op->call->comm;
    return atomic_load_explicit(&op->s->peers[i].left, memory_order_acquire) ||
           comm_has_exited(c, c->topo.local_ranks[i]);
}

/* Whether rank i has different settings, so that it may not use this memory at all and wait
 * elsewhere. The caller checks the awaited word again, as in has_ended(). */
static bool has_other_settings(struct shm_op *op, int i)
{
    const dlcoll_comm *c = op->call->comm;
    const struct segment_local *line =
        job_segment_local(&c->world->segment, c->world_ranks[coll_rank_of(&op->call->ranks, i)]);
    uint32_t theirs = line ? atomic_load_explicit(&line->settings, memory_order_acquire) : 0;
    if (!theirs || theirs == 1u + c->job->conf.settings)
        return false;
    op->call->failure->theirs = (struct coll_theirs){.sig.settings = (uint8_t)(theirs - 1)};
    return true;
}

/* Whether rank i waits for this rank in another operation. The calls of both are in their lines of
 * the launcher's segment. */
static bool is_in_another(struct shm_op *op, int i)
{
    const dlcoll_comm *c = op->call->comm;
    const struct segment_local *line =
        job_segment_local(&c->world->segment, c->world_ranks[coll_rank_of(&op->call->ranks, i)]);
    struct op_signature mine, theirs;
    uint64_t seq = op->call->seq, own = seq;
    if (!line || !recorder_find(line, c->id, &seq, &theirs) ||
        !recorder_find(c->job->recorder.line, c->id, &own, &mine) || own != op->call->seq ||
        (seq == own && sig_same(&mine, &theirs)))
        return false;
    theirs.settings = op->call->sig.settings;
    op->call->failure->theirs = (struct coll_theirs){.sig = theirs, .seq = seq};
    return true;
}

/* Run from time to time by a rank that waits long. */
static int check_peer(struct shm_op *op, int i, const _Atomic uint32_t *word, uint64_t want,
                      uint64_t now, uint64_t idle)
{
    uint64_t deadline = op->call->deadline_ns;
    int who;
    bool ended = has_ended(op, i), replaced = shm_is_replaced(op->call->comm, i);
    bool differs = has_other_settings(op, i) || (idle >= LONG_NS && is_in_another(op, i));
    if (shm_at_least(atomic_load_explicit(word, memory_order_acquire), want))
        return 0;
    if (ended || replaced) {
        err_set(&op->call->failure->err, -EPIPE, "%s",
                replaced ? SHM_REPLACED : "it no longer takes part");
        return set_culprit(op, i, -EPIPE);
    }
    if (differs)
        return set_culprit(op, i, -EBADMSG);
    /* Other ranks may leave while nobody waits for them. */
    if (comm_look(op->call->comm, &who) == -ECANCELED)
        return -ECANCELED;
    return deadline && now >= deadline ? set_culprit(op, i, -ETIMEDOUT) : 0;
}

/* Spreads ranks that share CPUs evenly over the CPUs. The scheduler does not move a process that
 * yields all the time, so that all ranks may stay on the CPU where they were woken. Done soon, then
 * seldom: the scheduler may have reasons for another placement. */
static void spread(const struct shm_op *op)
{
    uint32_t n = ++op->s->waits;
    if (n % SPREAD_EVERY == 0 || (n < SPREAD_EVERY && (n & (n - 1)) == 0))
        wait_spread(op->call->comm->world->local_rank, op->call->comm->world->usable_cpus);
}

int shm_await_slow(struct shm_op *op, int i, const _Atomic uint32_t *word, uint64_t want)
{
    const dlcoll_comm *c = op->call->comm;
    struct wait_policy policy = c->policy;
    for (int k = 0; policy.spin_ns && k < QUICK_LOOKS; k++) {
        if (shm_at_least(atomic_load_explicit(word, memory_order_acquire), want))
            return 0;
        wait_relax(); /* the awaited rank may run on the same core */
    }
    wake_sleepers(op);
    bool yields = !policy.spin_ns && !task_inside();
    if (yields)
        spread(op);
    for (int k = 0; yields && k < QUICK_YIELDS; k++) {
        if (shm_at_least(atomic_load_explicit(word, memory_order_acquire), want))
            return 0;
        sched_yield();
    }
    uint64_t began = mono_ns(), now = began, looked = began, idle = 0;
    uint64_t deadline = op->call->deadline_ns;
    for (unsigned k = 1;; k++) {
        if (shm_at_least(atomic_load_explicit(word, memory_order_acquire), want))
            return 0;
        if (comm_is_stopped(c))
            return -ECANCELED;
        switch (wait_next(&policy, idle, now)) {
        case WAIT_SPIN:
            wait_relax();
            if (k % LOOKS_PER_CLOCK)
                continue;
            break;
        case WAIT_YIELD:
            sched_yield();
            break;
        case WAIT_SLEEP:
            sleep_on(op, word, want, now, idle);
            break;
        }
        now = mono_ns();
        idle = now - began;
        if (now - looked >= LOOK_NS || (deadline && now >= deadline)) {
            looked = now;
            int r = check_peer(op, i, word, want, now, idle);
            if (r < 0)
                return r;
        }
    }
}

/* -------------------------------------------------------------------------------------- arrival */

/* All ranks have entered operation seq, and a rank that has entered an operation has finished the
 * chunks of those before it. */
static void set_all_entered(struct shm *s, uint64_t seq)
{
    debug_assert(seq <= s->seq && seq + SHM_ARRIVALS > s->seq);
    if (s->all_entered < seq)
        s->all_entered = seq;
    if (s->read < s->bases[seq % SHM_ARRIVALS])
        s->read = s->bases[seq % SHM_ARRIVALS];
}

/* The latest operation that rank i has visibly entered, if later than `least`; else `least`. */
static uint64_t last_entered(const struct shm *s, int i, uint64_t least)
{
    for (uint64_t seq = s->seq; seq > least; seq--) {
        uint32_t has = atomic_load_explicit(&shm_arrival(s, seq, i)->seq, memory_order_acquire);
        if (shm_at_least(has, seq))
            return seq;
    }
    return least;
}

static void update_all_entered(struct shm *s)
{
    uint64_t met = s->seq;
    for (int i = 0; i < s->n && met > s->all_entered; i++) {
        uint64_t seq = i == s->me ? met : last_entered(s, i, s->all_entered);
        met = seq < met ? seq : met;
    }
    set_all_entered(s, met);
}

/* Waits until all have entered an earlier operation, at most SHM_ARRIVALS before this one. */
static int await_all_entered(struct shm_op *op, uint64_t seq)
{
    struct shm *s = op->s;
    for (int i = 0; i < s->n; i++) {
        int r = i == s->me ? 0 : shm_await_word(op, i, &shm_arrival(s, seq, i)->seq, seq);
        if (r < 0)
            return r;
    }
    set_all_entered(s, seq);
    return 0;
}

/* Waits until nobody reads the previous content of this operation's arrival. */
static int await_free_arrival(struct shm_op *op)
{
    struct shm *s = op->s;
    if (s->all_entered + SHM_ARRIVALS > op->seq)
        return 0;
    update_all_entered(s);
    return s->all_entered + SHM_ARRIVALS > op->seq
               ? 0
               : await_all_entered(op, op->seq - SHM_ARRIVALS + 1);
}

/* Publishes that this rank has finished all operations and chunks before the next one. */
static void refresh(struct shm *s)
{
    shm_publish(&s->progress[s->me].staged, s->chunk);
    shm_publish(&s->progress[s->me].reduced, s->chunk);
    shm_publish(&s->progress[s->me].done, s->seq);
    s->refresh_at = s->seq + s->chunk + REFRESH;
}

int shm_begin(struct shm_op *op, struct shm *s, struct coll_call *call)
{
    if (s->seq + s->chunk >= s->refresh_at)
        refresh(s);
    *op = (struct shm_op){.s = s,
                          .call = call,
                          .seq = s->seq + 1,
                          .base = s->chunk,
                          .lag = 3,
                          .mine = shm_arrival(s, s->seq + 1, s->me)};
    int r = await_free_arrival(op);
    if (r < 0)
        return r;
    /* No rank reads the arrival of seq - SHM_ARRIVALS, or will read it: the arrival may be
     * overwritten. */
    debug_assert(s->all_entered < op->seq && op->seq - s->all_entered < SHM_ARRIVALS + 1);
    debug_assert(!shm_at_least(op->mine->seq, op->seq) && s->read <= s->chunk);
    s->seq = op->seq;
    s->bases[op->seq % SHM_ARRIVALS] = op->base;
    return 0;
}

/* Writes the whole line at once: other CPUs poll it, and a line that is taken away half written
 * must be fetched again. */
void shm_arrive(struct shm_op *op, unsigned flags)
{
    const struct coll_call *call = op->call;
    debug_assert(op->seq == op->s->seq && !shm_at_least(op->mine->seq, op->seq)); /* once */
    op->mine->sig = call->sig;
    op->mine->part = call->part;
    op->mine->call_seq = (uint32_t)call->seq;
    op->mine->flags = (uint8_t)flags;
    op->mine->history = op_history(call->history);
    shm_publish(&op->mine->seq, op->seq);
}

void shm_end(struct shm_op *op)
{
    wake_sleepers(op);
}

int shm_differs(struct shm_op *op, int i)
{
    const struct shm_arrival *a = shm_arrival(op->s, op->seq, i);
    op->call->failure->theirs =
        (struct coll_theirs){.sig = a->sig,
                             .seq = a->call_seq,
                             .differed_before = a->call_seq == (uint32_t)op->call->seq &&
                                                a->history != op_history(op->call->history)};
    return set_culprit(op, i, -EBADMSG);
}

/* Finds the operation in which the calls of rank i began to differ: in the last few operations
 * nobody may have compared them, since for example two roots do not wait for anybody. Reports that
 * operation if its arrival still exists. */
static int differed_before(struct shm_op *op, int i)
{
    uint64_t first = op->seq > SHM_ARRIVALS ? op->seq - SHM_ARRIVALS + 1 : 1;
    for (uint64_t seq = first; seq < op->seq; seq++) {
        const struct shm_arrival *mine = shm_arrival(op->s, seq, op->s->me);
        struct shm_arrival *a = shm_arrival(op->s, seq, i), theirs;
        if (atomic_load_explicit(&a->seq, memory_order_acquire) != (uint32_t)seq)
            continue;
        memcpy(&theirs, a, sizeof(theirs));
        memory_fence(memory_order_acquire);
        if (atomic_load_explicit(&a->seq, memory_order_relaxed) != (uint32_t)seq ||
            sig_equal(&theirs.sig, &mine->sig))
            continue;
        op->call->failure->theirs = (struct coll_theirs){.sig = theirs.sig, .seq = theirs.call_seq};
        op->call->sig = mine->sig;
        op->call->seq -= (uint32_t)op->call->seq - mine->call_seq;
        return set_culprit(op, i, -EBADMSG);
    }
    return shm_differs(op, i);
}

/* Rank i has entered operation seq: checks that it made the same call, and the same calls
 * before. */
static int compare(struct shm_op *op, int i, const struct shm_arrival *a)
{
    const struct coll_call *mine = op->call;
    if (a->history != op_history(mine->history))
        return differed_before(op, i);
    if (sig_equal(&a->sig, &mine->sig) && a->part == mine->part &&
        a->call_seq == (uint32_t)mine->seq)
        return 0;
    return shm_differs(op, i);
}

int shm_await(struct shm_op *op, int i)
{
    const struct shm_arrival *a = shm_arrival(op->s, op->seq, i);
    int r = shm_await_word(op, i, &a->seq, op->seq);
    return r < 0 ? r : compare(op, i, a);
}

int shm_await_all(struct shm_op *op)
{
    struct shm *s = op->s;
    for (int i = 0; i < s->n; i++) {
        int r = i == s->me ? 0 : shm_await(op, i);
        if (r < 0)
            return r;
    }
    shm_note_all_entered(op);
    return 0;
}

/* ---------------------------------------------------------------------------------------- slots */

/* Waits until all have read the chunk that this rank staged in a slot. */
static int await_readers(struct shm_op *op, uint64_t chunk)
{
    struct shm *s = op->s;
    if (chunk < op->base) {
        /* A rank has read it when it has entered a later operation than that of the chunk. */
        uint64_t seq = op->seq;
        while (seq > s->all_entered + 1 && s->bases[(seq - 1) % SHM_ARRIVALS] > chunk)
            seq--;
        return seq == op->seq ? shm_await_all(op) : await_all_entered(op, seq);
    }
    for (int i = 0; i < s->n; i++) {
        int r = i == s->me ? 0 : shm_await_word(op, i, &s->progress[i].staged, chunk + op->lag);
        if (r < 0)
            return r;
    }
    s->read = chunk + 1;
    return 0;
}

bool shm_is_free(const struct shm_op *op, uint64_t chunk)
{
    struct shm *s = op->s;
    if (s->staged[chunk % SHM_SLOTS] >= s->read)
        update_all_entered(s);
    return s->staged[chunk % SHM_SLOTS] < s->read;
}

int shm_claim(struct shm_op *op, uint64_t chunk)
{
    struct shm *s = op->s;
    uint64_t *last = &s->staged[chunk % SHM_SLOTS];
    debug_assert(chunk >= op->base && *last < chunk);
    if (chunk > op->base)
        wake_seen_sleepers(op);
    int r = shm_is_free(op, chunk) ? 0 : await_readers(op, *last);
    debug_assert(r < 0 || *last < s->read); /* all have read what is overwritten */
    *last = chunk;
    return r;
}

int shm_await_staged(struct shm_op *op, int i, uint64_t chunk)
{
    const struct shm_arrival *a = shm_arrival(op->s, op->seq, i);
    debug_assert(chunk >= op->base);
    if (chunk == op->base && !(a->flags & SHM_LATE))
        return 0; /* the first chunk was staged before the arrival */
    wake_seen_sleepers(op);
    return shm_await_word(op, i, &op->s->progress[i].staged, chunk + 1);
}
