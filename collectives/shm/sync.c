#include "collectives/shm/sync.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "collectives/api/comm.h"
#include "collectives/shm/memory.h"
#include "core/clock.h"

enum {
    LOOK_NS = 1000 * 1000,  /* between looks at what else may have happened */
    NAP_NS = 10 * LOOK_NS,  /* at most, at a time */
    LONG_NS = 20 * LOOK_NS, /* of waiting: what has he called who is awaited? */
    /* About a microsecond's, before anything else is done: reading the clock takes a good part of
     * the time that a small operation needs. */
    QUICK_LOOKS = 100,
    QUICK_YIELDS = 8,     /* the same, where ranks share CPUs */
    SPREAD_EVERY = 4096,  /* waits, there */
    LOOKS_PER_CLOCK = 16, /* while spinning: reading the clock takes as long as a few looks */
    /* Operations and rounds in which `progress` need not move: with those of one operation and of
     * the ranks that are behind, it must stay below 2^31. */
    REFRESH = 1 << 24,
};

static int set_culprit(struct shm_op *op, int i, int status)
{
    op->call->culprit = coll_rank_of(&op->call->ranks, i);
    return status;
}

/* ------------------------------------------------------------------------------------- waking */

/* Whoever sleeps does so on one of these; that he counts himself among the sleepers before he looks
 * for the last time, and the fence here, mean that one of both sees the other. */
static void wake_sleepers(const struct shm_op *op)
{
    struct shm *s = op->s;
    wait_fence();
    if (!atomic_load_explicit(&s->head->sleepers, memory_order_relaxed))
        return;
    wait_wake(&op->mine->seq);
    wait_wake(&s->progress[s->me].staged);
    wait_wake(&s->progress[s->me].reduced);
    wait_wake(&s->progress[s->me].done);
}

static void sleep_on(struct shm_op *op, const _Atomic uint32_t *word, uint64_t want,
                     uint64_t now_ns)
{
    const dlcoll_comm *c = op->call->comm;
    uint64_t deadline = op->call->deadline_ns, ns = NAP_NS;
    if (deadline && deadline - now_ns < ns)
        ns = deadline - now_ns;
    _Atomic uint32_t *sleepers = &op->s->head->sleepers;
    atomic_fetch_add(sleepers, 1);
    uint32_t now = atomic_load(word);
    struct wait_word words[] = {
        {word, now}, {c->job_word, 0}, {&c->own_stop.word, 0}, {&c->shared_stop->word, 0}};
    if (!shm_at_least(now, want))
        wait_sleep(words, 4, ns);
    atomic_fetch_sub(sleepers, 1);
}

/* ------------------------------------------------------------------------------------- waiting */

/* Its process has ended and no abort says so, or it has left in good order. What it has done before
 * counts: that it is missed is found out by looking again. */
static bool has_ended(const struct shm_op *op, int i)
{
    const dlcoll_comm *c = op->call->comm;
    return atomic_load_explicit(&op->s->peers[i].left, memory_order_acquire) ||
           comm_has_exited(c, c->topo.local_ranks[i]);
}

/* It may not even use this memory, and wait elsewhere. As above: what it has done before counts,
 * and by then it may have come again with others. */
static bool has_other_settings(struct shm_op *op, int i)
{
    const dlcoll_comm *c = op->call->comm;
    const struct segment_local *line =
        job_segment_local(&c->world->segment, c->world_ranks[coll_rank_of(&op->call->ranks, i)]);
    uint32_t theirs = line ? atomic_load_explicit(&line->settings, memory_order_acquire) : 0;
    if (!theirs || theirs == 1u + c->job->conf.settings)
        return false;
    op->call->theirs = (struct coll_theirs){.call.settings = (uint8_t)(theirs - 1)};
    return true;
}

/* Or not have come because it waits for me elsewhere, in another operation. What either has called
 * is in its line of the launcher's segment. */
static bool is_in_another(struct shm_op *op, int i)
{
    const dlcoll_comm *c = op->call->comm;
    const struct segment_local *line =
        job_segment_local(&c->world->segment, c->world_ranks[coll_rank_of(&op->call->ranks, i)]);
    struct op_signature mine, theirs;
    uint64_t seq = op->call->seq, own = seq;
    if (!line || !recorder_find(line, c->id, &seq, &theirs) ||
        !recorder_find(c->job->recorder.line, c->id, &own, &mine) || own != op->call->seq ||
        (seq == own && call_same(&mine, &theirs)))
        return false;
    theirs.settings = op->call->id.settings;
    op->call->theirs = (struct coll_theirs){.call = theirs, .seq = seq};
    return true;
}

/* What a rank does that has waited for long. */
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
        err_set(&op->call->err, -EPIPE, "%s", replaced ? SHM_REPLACED : "it takes part no more");
        return set_culprit(op, i, -EPIPE);
    }
    if (differs)
        return set_culprit(op, i, -EBADMSG);
    /* Others may go as they like, if they are not waited for by somebody. */
    if (comm_look(op->call->comm, &who) == -ECANCELED)
        return -ECANCELED;
    return deadline && now >= deadline ? set_culprit(op, i, -ETIMEDOUT) : 0;
}

/* Ranks that share CPUs see to it themselves that as many are on each: one that yields all the time
 * looks to the system as if it would be wrong to move it, and all may stay where they were woken,
 * on one. Soon, and then seldom: if the system wants it otherwise, it has its reasons. */
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
        wait_relax(); /* who is awaited may run on the same core */
    }
    wake_sleepers(op);
    if (!policy.spin_ns)
        spread(op);
    for (int k = 0; !policy.spin_ns && k < QUICK_YIELDS; k++) {
        if (shm_at_least(atomic_load_explicit(word, memory_order_acquire), want))
            return 0;
        sched_yield();
    }
    uint64_t began = mono_ns(), looked = began, idle = 0, deadline = op->call->deadline_ns;
    for (unsigned k = 1;; k++) {
        if (shm_at_least(atomic_load_explicit(word, memory_order_acquire), want))
            return 0;
        if (comm_is_stopped(c))
            return -ECANCELED;
        if (idle < policy.spin_ns)
            wait_relax();
        else if (idle < policy.yield_ns)
            sched_yield();
        else
            sleep_on(op, word, want, looked);
        if (idle < policy.spin_ns && k % LOOKS_PER_CLOCK)
            continue;
        uint64_t now = mono_ns();
        idle = now - began;
        if (now - looked >= LOOK_NS || (deadline && now >= deadline)) {
            looked = now;
            int r = check_peer(op, i, word, want, now, idle);
            if (r < 0)
                return r;
        }
    }
}

/* ------------------------------------------------------------------------------------- arrival */

/* All have come to operation seq, and whoever has is through with the rounds of those before it. */
static void set_all_entered(struct shm *s, uint64_t seq)
{
    if (s->all_entered < seq)
        s->all_entered = seq;
    if (s->read < s->bases[seq % SHM_ARRIVALS])
        s->read = s->bases[seq % SHM_ARRIVALS];
}

/* The latest operation, after `least`, to which rank i is seen to have come; or `least`. */
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

/* Until all have come to an earlier operation, not more than SHM_ARRIVALS before this one. */
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

/* Nobody reads the arrival any more that is to be written. */
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

/* This rank is through with all operations and rounds before this one. */
static void refresh(struct shm *s)
{
    shm_publish(&s->progress[s->me].staged, s->round);
    shm_publish(&s->progress[s->me].reduced, s->round);
    shm_publish(&s->progress[s->me].done, s->seq);
    s->refresh_at = s->seq + s->round + REFRESH;
}

int shm_begin(struct shm_op *op, struct shm *s, struct coll_call *call)
{
    if (s->seq + s->round >= s->refresh_at)
        refresh(s);
    *op = (struct shm_op){.s = s,
                          .call = call,
                          .seq = s->seq + 1,
                          .base = s->round,
                          .lag = 3,
                          .mine = shm_arrival(s, s->seq + 1, s->me)};
    int r = await_free_arrival(op);
    if (r < 0)
        return r;
    s->seq = op->seq;
    s->bases[op->seq % SHM_ARRIVALS] = op->base;
    return 0;
}

/* All at once: the others look at this line all the time, and one that is taken away half written
 * must be fetched again. */
void shm_arrive(struct shm_op *op, unsigned flags)
{
    const struct coll_call *call = op->call;
    op->mine->id = call->id;
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
    op->call->theirs =
        (struct coll_theirs){.call = a->id,
                             .seq = a->call_seq,
                             .differed_before = a->call_seq == (uint32_t)op->call->seq &&
                                                a->history != op_history(op->call->history)};
    return set_culprit(op, i, -EBADMSG);
}

/* What rank i has called otherwise was one of the last operations, in which nobody had to look what
 * the other one was in: two roots wait for nobody. That one is told of, if it can still be seen. */
static int differed_before(struct shm_op *op, int i)
{
    uint64_t first = op->seq > SHM_ARRIVALS ? op->seq - SHM_ARRIVALS + 1 : 1;
    for (uint64_t seq = first; seq < op->seq; seq++) {
        const struct shm_arrival *mine = shm_arrival(op->s, seq, op->s->me);
        struct shm_arrival *a = shm_arrival(op->s, seq, i), theirs;
        if (atomic_load_explicit(&a->seq, memory_order_acquire) != (uint32_t)seq)
            continue;
        memcpy(&theirs, a, sizeof(theirs));
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&a->seq, memory_order_relaxed) != (uint32_t)seq ||
            call_equal(&theirs.id, &mine->id))
            continue;
        op->call->theirs = (struct coll_theirs){.call = theirs.id, .seq = theirs.call_seq};
        op->call->id = mine->id;
        op->call->seq -= (uint32_t)op->call->seq - mine->call_seq;
        return set_culprit(op, i, -EBADMSG);
    }
    return shm_differs(op, i);
}

/* It has come: is it in the same operation, and was in all before it? */
static int compare(struct shm_op *op, int i, const struct shm_arrival *a)
{
    const struct coll_call *mine = op->call;
    if (a->history != op_history(mine->history))
        return differed_before(op, i);
    if (call_equal(&a->id, &mine->id) && a->part == mine->part &&
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

/* --------------------------------------------------------------------------------------- slots */

/* Until everybody has read the round that I have put into a slot. */
static int await_readers(struct shm_op *op, uint64_t round)
{
    struct shm *s = op->s;
    if (round < op->base) { /* all have, when they have come to the operation after that round's */
        uint64_t seq = op->seq;
        while (seq > s->all_entered + 1 && s->bases[(seq - 1) % SHM_ARRIVALS] > round)
            seq--;
        return seq == op->seq ? shm_await_all(op) : await_all_entered(op, seq);
    }
    for (int i = 0; i < s->n; i++) {
        int r = i == s->me ? 0 : shm_await_word(op, i, &s->progress[i].staged, round + op->lag);
        if (r < 0)
            return r;
    }
    s->read = round + 1;
    return 0;
}

bool shm_is_free(const struct shm_op *op, uint64_t round)
{
    struct shm *s = op->s;
    if (s->staged[round % SHM_SLOTS] >= s->read)
        update_all_entered(s);
    return s->staged[round % SHM_SLOTS] < s->read;
}

int shm_claim(struct shm_op *op, uint64_t round)
{
    struct shm *s = op->s;
    uint64_t *last = &s->staged[round % SHM_SLOTS];
    int r = shm_is_free(op, round) ? 0 : await_readers(op, *last);
    *last = round;
    return r;
}

int shm_await_staged(struct shm_op *op, int i, uint64_t round)
{
    const struct shm_arrival *a = shm_arrival(op->s, op->seq, i);
    if (round == op->base && !(a->flags & SHM_LATE))
        return 0; /* it came with its first round */
    return shm_await_word(op, i, &op->s->progress[i].staged, round + 1);
}
