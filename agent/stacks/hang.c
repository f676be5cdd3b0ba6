#include "agent/stacks/hang.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/mem.h"
#include "core/uvx.h"

#define TICK_MS_MIN 10
#define TICK_MS_MAX 200
#define APART_MS    100 /* at least, between two samples */
#define AGAIN_MS    200 /* until the end of a verdict that follows one without a result */
#define AGAIN       2   /* so many follow */
#define OPS_KEPT    15  /* of a worker, in front of the last one */
#define ECHO_MS     250 /* at least, for the coordinator to send a suspicion to all */

/* The part of a worker's limit after which the first sample is taken. */
#define FIRST_SAMPLE(limit) ((limit) / 10 * 6)

/* Signs of life of one worker reset its watchdog. A worker without recorded operations has two: for
 * all its signs, and for what it sends alone, once it has sent often. For a worker that hangs gets
 * what the others send, and uses CPU time in an endless loop. */
enum { ALL_SIGNS, SENT, WATCHDOGS };

struct watchdog {
    struct hang_rank rank;
    bool stuck; /* was silent when the hang was declared */
};

struct hang {
    struct hang_callbacks cb;
    struct uvx_scope scope;
    uv_timer_t tick, second;
    uv_timer_t echo;  /* until the coordinator has sent this node's suspicion to all */
    uint64_t echo_ms; /* when that is over; the loop's time */
    bool last_call;   /* the time is over: answers that have arrived are still read */
    uint64_t after_ns;
    int nproc;
    struct watchdog (*workers)[WATCHDOGS];
    bool declared;
    uint64_t declared_ns;
    bool nobody_stuck; /* no worker of this node was silent for long since declared_ns */
    uint64_t next_ns;  /* the next suspicion not before this time */
    unsigned repeated; /* suspicions since the last sign of life */
    /* On the coordinator's node. */
    bool sampling, closing;
    bool void_verdict;                      /* the verdict's samples are of another round */
    uint64_t begun_ns, sampled_ns, took_ns; /* the first sample */
    uint64_t due_ns;                        /* when the silence reaches the limit */
    struct samples first;
    enum hang_state shown;
    bool shown_silent;
    bool blamed_nobody; /* the last verdict has named no rank */
    int again;          /* verdicts on this suspicion that had no result */
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* -------------------------------------------------------------------------------- the verdict */

static void copy_samples(struct samples *to, const struct samples *from)
{
    struct buf b = BUF_INIT;
    samples_encode(&b, from);
    struct rd r = rd_init(b.data, b.len);
    samples_decode(&r, to);
    for (size_t i = 0; i < to->n && i < from->n; i++)
        to->s[i].silent = from->s[i].silent;
    buf_fini(&b);
}

static void await_verdict(struct hang *h, unsigned left_ms);

static void on_second_sample(void *arg, const struct samples *all)
{
    struct hang *h = arg;
    struct verdict v;
    if (!all) /* the agent ends */
        return;
    h->sampling = false;
    if (h->void_verdict) {
        samples_fini(&h->first);
        return;
    }
    hang_verdict(&h->first, all, &v);
    samples_fini(&h->first);
    /* All ranks wait in one operation, and no rank is odd: the operation may be slow only. */
    bool nobody = v.state == HANG_HUNG && v.n == 0;
    if (nobody && !h->blamed_nobody)
        v.state = HANG_SUSPECT;
    h->blamed_nobody = nobody;
    if (v.state != HANG_HUNG && !nobody && h->again++ < AGAIN)
        await_verdict(h, AGAIN_MS); /* who was about to go on will have done so */
    bool completes = h->shown_silent && v.state == HANG_HUNG && !v.silent;
    if (v.state == HANG_NONE || (v.state <= h->shown && !completes))
        return;
    h->shown = v.state;
    h->shown_silent = v.silent;
    h->cb.on_verdict(h->cb.arg, &v, all);
}

static void on_second(uv_timer_t *t)
{
    struct hang *h = container_of(t, struct hang, second);
    gather(h->cb.gatherer(h->cb.arg), true, on_second_sample, h);
}

/* The second sample takes as long as the first one, and is there when the limit is reached. */
static void plan_second(struct hang *h)
{
    uint64_t now = mono_ns(), begin = h->due_ns - h->took_ns;
    uint64_t apart = h->sampled_ns + APART_MS * UINT64_C(1000000);
    begin = begin > apart ? begin : apart;
    uv_update_time(h->second.loop);
    uv_timer_start(&h->second, on_second, begin > now ? (begin - now) / 1000000 : 0, 0);
}

static void on_first_sample(void *arg, const struct samples *all)
{
    struct hang *h = arg;
    if (!all)
        return;
    if (h->void_verdict) {
        h->sampling = false;
        return;
    }
    copy_samples(&h->first, all);
    h->sampled_ns = mono_ns();
    h->took_ns = h->sampled_ns - h->begun_ns;
    plan_second(h);
}

/* `left_ms`: until the limit is reached, which for another worker may be sooner than for the one
 * because of which the first sample was taken. */
static void await_verdict(struct hang *h, unsigned left_ms)
{
    uint64_t now = mono_ns(), due = now + left_ms * UINT64_C(1000000);
    if (h->closing)
        return;
    if (h->sampling) {
        h->due_ns = due < h->due_ns ? due : h->due_ns;
        if (uv_is_active((uv_handle_t *)&h->second))
            plan_second(h);
        return;
    }
    h->sampling = true;
    h->void_verdict = false;
    h->begun_ns = now;
    h->due_ns = due;
    gather(h->cb.gatherer(h->cb.arg), true, on_first_sample, h);
}

/* -------------------------------------------------------------------------------- the suspicion */

static void on_no_echo(uv_timer_t *t);

static void await_echo(struct hang *h, uint64_t ms)
{
    uv_update_time(h->echo.loop);
    h->echo_ms = uv_now(h->echo.loop) + ms;
    uv_timer_start(&h->echo, on_no_echo, ms, 0);
}

/* Where timers are late, other processes are late, too. */
static void on_no_echo(uv_timer_t *t)
{
    struct hang *h = container_of(t, struct hang, echo);
    if (uv_now(t->loop) > h->echo_ms + GATHER_LATE_MS) {
        h->last_call = false;
        await_echo(h, ECHO_MS);
    } else if (!h->last_call) {
        h->last_call = true;
        await_echo(h, 1);
    } else {
        h->cb.on_no_coordinator(h->cb.arg);
    }
}

/* `limit`: of the worker that is silent, of which a part is left. */
static void suspect(struct hang *h, uint64_t limit, uint64_t silence, uint64_t now)
{
    uint64_t left = limit > silence ? limit - silence : 0;
    unsigned ms = (unsigned)(left / 1000000);
    const struct rdzv_request r = {.kind = REQUEST_SUSPECT, .suspect.left_ms = ms};
    h->next_ns = now + (limit << (h->repeated < 6 ? h->repeated : 6));
    h->repeated++;
    if (h->cb.leads(h->cb.arg)) {
        h->again = 0;
        await_verdict(h, ms);
        return;
    }
    h->cb.request(h->cb.arg, &r);
    h->last_call = false;
    await_echo(h, ms > ECHO_MS ? ms : ECHO_MS);
}

static void live(struct hang *h)
{
    h->repeated = 0;
    h->next_ns = 0;
    h->shown = HANG_NONE;
    h->shown_silent = h->blamed_nobody = false;
    uv_timer_stop(&h->echo);
    if (!h->declared)
        return;
    h->declared = false;
    h->cb.on_life(h->cb.arg);
}

/* Operations since the last look count one by one. */
static void look(struct hang *h, int i, const struct hang_signs *signs, uint64_t now)
{
    struct hang_rank *r = &h->workers[i][ALL_SIGNS].rank, *sent = &h->workers[i][SENT].rank;
    struct hang_signs op = r->last;
    uint64_t n = signs->ops > OPS_KEPT ? signs->ops - OPS_KEPT : 0;
    for (n = n > r->last.ops ? n : r->last.ops; r->last.ops && ++n < signs->ops;) {
        op.ops = n;
        if (h->cb.get_op(h->cb.arg, i, n, &op))
            hang_rank_look(r, &op, now);
    }
    hang_rank_look(r, signs, now);
    const struct hang_signs alone = {.traffic = signs->sent, .at_ns = signs->sent_ns};
    if (signs->ops)
        hang_rank_reset(sent);
    else
        hang_rank_look(sent, &alone, now);
}

/* The hang was over before the workers of this node had to wait for long. CPU time does not prove
 * that: a loop uses it. */
static bool has_passed_by(const struct hang *h, const struct watchdog *w, uint64_t limit,
                          uint64_t now)
{
    return h->declared && h->nobody_stuck && !w->rank.last.cpu_ms && now > h->declared_ns + limit;
}

static void check_watchdog(struct hang *h, struct watchdog *w, uint64_t alive, uint64_t now)
{
    uint64_t limit = hang_rank_limit(&w->rank, h->after_ns);
    uint64_t silence = hang_rank_silence(&w->rank, now);
    if (w->rank.alive_ns != alive && (w->stuck || has_passed_by(h, w, limit, now))) {
        w->stuck = false;
        live(h);
    }
    if (silence < FIRST_SAMPLE(limit) || now < h->next_ns)
        return;
    w->stuck = true;
    h->nobody_stuck = false;
    suspect(h, limit, silence, now);
}

static void on_tick(uv_timer_t *t)
{
    struct hang *h = container_of(t, struct hang, tick);
    uint64_t now = mono_ns();
    for (int i = 0; i < h->nproc; i++) {
        struct watchdog *all = &h->workers[i][ALL_SIGNS], *sent = &h->workers[i][SENT];
        struct hang_signs signs;
        if (!h->cb.get_signs(h->cb.arg, i, &signs)) {
            hang_rank_reset(&all->rank);
            hang_rank_reset(&sent->rank);
            continue;
        }
        uint64_t all_ns = all->rank.alive_ns, sent_ns = sent->rank.alive_ns;
        look(h, i, &signs, now);
        check_watchdog(h, all, all_ns, now);
        if (sent->rank.ngaps >= HANG_LEARNT)
            check_watchdog(h, sent, sent_ns, now);
    }
}

void hang_on_suspicion(struct hang *h, const struct rdzv_request *r)
{
    uv_timer_stop(&h->echo);
    if (!h->cb.leads(h->cb.arg))
        return;
    h->again = 0;
    await_verdict(h, r->suspect.left_ms < 3600000 ? r->suspect.left_ms : APART_MS);
}

bool hang_was_active(const struct hang *h, int local_rank)
{
    const struct hang_rank *r = &h->workers[local_rank][ALL_SIGNS].rank;
    return 2 * hang_rank_silence(r, mono_ns()) < hang_rank_limit(r, h->after_ns);
}

void hang_declared(struct hang *h)
{
    uint64_t now = mono_ns();
    h->declared = h->nobody_stuck = true;
    h->declared_ns = now;
    for (int i = 0; i < h->nproc * WATCHDOGS; i++) {
        struct watchdog *w = &h->workers[i / WATCHDOGS][i % WATCHDOGS];
        w->stuck = hang_rank_silence(&w->rank, now) >=
                   FIRST_SAMPLE(hang_rank_limit(&w->rank, h->after_ns));
        h->nobody_stuck = h->nobody_stuck && !w->stuck;
    }
}

void hang_reset(struct hang *h, bool watch)
{
    memset(h->workers, 0, (size_t)h->nproc * sizeof(*h->workers));
    h->declared = h->shown_silent = h->blamed_nobody = false;
    h->shown = HANG_NONE;
    h->next_ns = h->repeated = 0;
    uv_timer_stop(&h->echo);
    h->void_verdict = true;
    if (uv_is_active((uv_handle_t *)&h->second)) {
        uv_timer_stop(&h->second);
        samples_fini(&h->first);
        h->sampling = false;
    }
    uint64_t ms = h->after_ns / 20000000;
    ms = ms < TICK_MS_MIN ? TICK_MS_MIN : ms > TICK_MS_MAX ? TICK_MS_MAX : ms;
    if (watch)
        uv_timer_start(&h->tick, on_tick, ms, ms);
    else
        uv_timer_stop(&h->tick);
}

struct hang *hang_new(uv_loop_t *loop, int nproc, double after, const struct hang_callbacks *cb)
{
    struct hang *h = xcalloc(1, sizeof(*h));
    h->cb = *cb;
    h->nproc = nproc;
    h->after_ns = (uint64_t)(after * 1e9);
    h->workers = xcalloc((size_t)nproc, sizeof(*h->workers));
    uvx_scope_init(&h->scope, loop);
    uv_timer_init(loop, &h->tick);
    uv_timer_init(loop, &h->second);
    uvx_own(&h->scope, &h->tick);
    uv_timer_init(loop, &h->echo);
    uvx_own(&h->scope, &h->second);
    uvx_own(&h->scope, &h->echo);
    return h;
}

static void on_hang_closed(void *arg)
{
    struct hang *h = arg;
    void (*on_closed)(void *arg) = h->on_closed;
    void *on_closed_arg = h->on_closed_arg;
    samples_fini(&h->first);
    free(h->workers);
    free(h);
    on_closed(on_closed_arg);
}

void hang_close(struct hang *h, void (*on_closed)(void *arg), void *arg)
{
    if (!h) {
        on_closed(arg);
        return;
    }
    h->closing = true;
    h->on_closed = on_closed;
    h->on_closed_arg = arg;
    uvx_scope_close(&h->scope, on_hang_closed, h);
}
