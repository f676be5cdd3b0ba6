#include "agent/stacks/slow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/report/report_words.h"
#include "agent/inspect/kernel_side.h"
#include "agent/stacks/slow_gpu.h"
#include "core/clock.h"
#include "core/mem.h"
#include "core/uvx.h"

#define LOOK_MS   400 /* between two questions */
#define PLACE_MS  40  /* between two looks at what a rank does outside of operations */
#define PLACES_OF 64  /* of these looks count, roughly the last ones */

/* The place in which a worker was when it was not in an operation. */
struct places {
    unsigned n[KERNEL_SIDE_PLACES];
    char call[48]; /* the call in which it slept more often than in all others together, or "" */
    int lead;      /* how often that call was seen more than others */
    struct gpu_state gpu;
};

struct slow {
    struct slow_callbacks cb;
    struct uvx_scope scope;
    uv_timer_t look, place;
    int nproc;
    double limit;
    double others; /* as the coordinator's node says; 0: not known */
    struct slow_pace *pace;
    struct places *places;
    /* On the coordinator's node. */
    struct slow_job job;
    struct places *job_places; /* by rank */
    struct generation gen;     /* of the round that `job` is of */
    uint64_t asked;            /* the number of the last request */
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* --------------------------------------------------------------------------------- the own node */

static void add_place(struct places *p, enum kernel_side_place at, const char *call)
{
    unsigned all = 0;
    for (int i = 0; i < KERNEL_SIDE_PLACES; i++)
        all += p->n[i];
    for (int i = 0; i < KERNEL_SIDE_PLACES && all >= 2 * PLACES_OF; i++)
        p->n[i] /= 2;
    p->n[at]++;
    if (!*call)
        return;
    if (p->lead == 0)
        snprintf(p->call, sizeof(p->call), "%.47s", call);
    p->lead += strncmp(p->call, call, sizeof(p->call) - 1) == 0 ? 1 : -1;
}

/* Only ranks that are behind are looked at. */
static void on_place(uv_timer_t *t)
{
    struct slow *s = container_of(t, struct slow, place);
    for (int i = 0; i < s->nproc; i++) {
        struct slow_count c;
        char call[SAMPLE_TEXT_MAX];
        int pid;
        bool inside;
        if (s->others == 0 || s->pace[i].looks < 4 || s->pace[i].busy < s->others + s->limit / 2 ||
            !s->cb.get_count(s->cb.arg, i, &c, &pid, &inside) || inside)
            continue;
        enum kernel_side_place at = kernel_side_place(pid, call);
        if (at != KERNEL_SIDE_UNKNOWN)
            add_place(&s->places[i], at, call);
    }
}

static void put_gpu_state(struct buf *b, struct gpu_state g)
{
    buf_u8(b, g.known);
    buf_u8(b, g.reasons);
    buf_u8(b, g.celsius);
    buf_u8(b, g.pcie_generation);
    buf_u8(b, g.pcie_width);
    buf_u32(b, g.nvlink_errors);
}

static struct gpu_state get_gpu_state(struct rd *r)
{
    struct gpu_state g = {.known = rd_u8(r)};
    g.reasons = rd_u8(r);
    g.celsius = rd_u8(r);
    g.pcie_generation = rd_u8(r);
    g.pcie_width = rd_u8(r);
    g.nvlink_errors = rd_u32(r);
    return g;
}

static void put_worker(struct buf *b, struct slow *s, int i)
{
    struct slow_count c;
    int pid;
    bool inside, runs = s->cb.get_count(s->cb.arg, i, &c, &pid, &inside);
    buf_u8(b, runs);
    if (!runs)
        return;
    slow_pace_look(&s->pace[i], &c);
    buf_u64(b, c.at_ns);
    buf_u64(b, c.waited_ns);
    buf_u64(b, c.ops);
    for (int k = 0; k < KERNEL_SIDE_PLACES; k++)
        buf_u8(b, (uint8_t)(s->places[i].n[k] < 255 ? s->places[i].n[k] : 255));
    buf_str(b, s->places[i].call);
    put_gpu_state(b, s->cb.gpu(s->cb.arg, i));
}

void slow_on_request(struct slow *s, const struct rdzv_request *r)
{
    struct buf b = BUF_INIT;
    int group_rank;
    const struct rank_table *t = s->cb.table(s->cb.arg, &group_rank);
    if (!t)
        return;
    s->others = (double)r->pace.others / 1e6;
    buf_u32(&b, (uint32_t)group_rank);
    buf_u32(&b, (uint32_t)s->nproc);
    for (int i = 0; i < s->nproc; i++)
        put_worker(&b, s, i);
    const struct rdzv_answer a = request_answer(r, b.data, b.len);
    if (!b.oom && t->nnodes > 1)
        s->cb.answer(s->cb.arg, &a);
    else if (!b.oom)
        slow_on_answer(s, &a);
    buf_fini(&b);
}

bool slow_get_scores(const struct slow *s, int local_rank, struct slow_scores *out)
{
    struct slow_count c;
    int pid;
    bool inside;
    if (!s || !s->cb.get_count(s->cb.arg, local_rank, &c, &pid, &inside))
        return false;
    *out = (struct slow_scores){
        .relative = s->others > 0 ? slow_pace_relative(&s->pace[local_rank], s->others) : 0,
        .own = slow_pace_own(&s->pace[local_rank]),
        .waited_s = (double)c.waited_ns / 1e9};
    return true;
}

/* ------------------------------------------------------------------------------------ the
 * coordinator's node */

static bool get_worker(struct rd *r, struct slow_count *c, struct places *p)
{
    if (!rd_u8(r))
        return false;
    c->at_ns = rd_u64(r);
    c->waited_ns = rd_u64(r);
    c->ops = rd_u64(r);
    for (int k = 0; k < KERNEL_SIDE_PLACES; k++)
        p->n[k] = rd_u8(r);
    rd_str(r, p->call, sizeof(p->call));
    p->gpu = get_gpu_state(r);
    return !r->bad;
}

void slow_on_answer(struct slow *s, const struct rdzv_answer *a)
{
    int own;
    const struct rank_table *t = s->cb.table(s->cb.arg, &own);
    struct rd r = rd_init(a->data, a->len);
    uint32_t node = rd_u32(&r), n = rd_u32(&r);
    if (!t || a->id != s->asked || !generation_equal(t->gen, s->gen) ||
        node >= (uint32_t)t->nnodes || n != (uint32_t)t->nodes[node].nproc)
        return;
    for (uint32_t i = 0; i < n && !r.bad; i++) {
        int rank = t->nodes[node].base_rank + (int)i;
        struct slow_count c;
        struct places p;
        if (!get_worker(&r, &c, &p) || rank >= s->job.n)
            continue;
        slow_job_put(&s->job, rank, &c);
        s->job_places[rank] = p;
    }
}

/* "; 93 % of its own time on the CPU". */
static void put_place(struct buf *b, const struct places *p)
{
    unsigned all = 0;
    int most = 0;
    for (int i = 0; i < KERNEL_SIDE_PLACES; i++) {
        all += p->n[i];
        most = p->n[i] > p->n[most] ? i : most;
    }
    if (!all)
        return;
    words_add(b, "; of its own time %u %% ", (p->n[most] * 100 + all / 2) / all);
    if (most == KERNEL_SIDE_CPU)
        words_add(b, "is CPU");
    else
        words_add(b, most == KERNEL_SIDE_NETWORK ? "waits for the network" : "waits for data");
    if (most != KERNEL_SIDE_CPU && *p->call)
        words_add(b, " (%s)", p->call);
}

static const char *host_of(const struct rank_table *t, int rank)
{
    int i = rank_table_find(t, rank);
    return i >= 0 ? t->nodes[i].host : "?";
}

static void put_rank(struct buf *b, const struct slow *s, const struct rank_table *t, int rank)
{
    struct slow_finding f = slow_job_finding(&s->job, rank);
    words_add(b,
              "rank %d on %s is slow: the others wait %.0f ms of each second for it; it came "
              "last in %u of %u looks",
              rank, host_of(t, rank), f.behind * 1e3, f.last, f.looks);
    put_place(b, &s->job_places[rank]);
    struct gpu_state *all = xcalloc((size_t)s->job.n, sizeof(*all));
    for (int i = 0; i < s->job.n; i++)
        all[i] = s->job_places[i].gpu;
    slow_gpu_words(b, all, s->job.n, rank);
    free(all);
}

static void tell(struct slow *s, const struct rank_table *t)
{
    struct buf ranks = BUF_INIT, text = BUF_INIT;
    int n = 0;
    words_add(&ranks, "%s", "");
    words_add(&text, "%s", "");
    for (int i = 0; i < s->job.n; i++) {
        if (!s->job.ranks[i].slow)
            continue;
        words_add(&ranks, "%s%d", n ? "," : "", i);
        if (n < 2) {
            words_add(&text, "%s", n ? "; " : "");
            put_rank(&text, s, t, i);
        }
        n++;
    }
    if (n > 2)
        words_add(&text, "; and %d more", n - 2);
    s->cb.on_slow(s->cb.arg, (char *)ranks.data, (char *)text.data);
    buf_fini(&ranks);
    buf_fini(&text);
}

static void begin_round(struct slow *s, const struct rank_table *t)
{
    slow_job_fini(&s->job);
    free(s->job_places);
    slow_job_init(&s->job, t->world_size, s->limit);
    s->job_places = xcalloc((size_t)t->world_size + 1, sizeof(*s->job_places));
    s->gen = t->gen;
}

static void on_look(uv_timer_t *timer)
{
    struct slow *s = container_of(timer, struct slow, look);
    int own;
    const struct rank_table *t = s->cb.table(s->cb.arg, &own);
    if (!t || (t->nnodes > 1 && !s->cb.leads(s->cb.arg)))
        return;
    if (!generation_equal(t->gen, s->gen))
        begin_round(s, t);
    else if (slow_job_look(&s->job))
        tell(s, t);
    const struct rdzv_request r = {
        .kind = REQUEST_PACE, .id = ++s->asked, .pace.others = (uint32_t)(s->job.others * 1e6)};
    if (t->nnodes > 1)
        s->cb.request(s->cb.arg, &r);
    else
        slow_on_request(s, &r);
}

/* ------------------------------------------------------------------------------------- lifetime */

void slow_reset(struct slow *s, bool watch)
{
    memset(s->pace, 0, (size_t)s->nproc * sizeof(*s->pace));
    memset(s->places, 0, (size_t)s->nproc * sizeof(*s->places));
    s->gen = (struct generation){0};
    s->others = 0;
    if (watch) {
        uv_timer_start(&s->look, on_look, LOOK_MS, LOOK_MS);
        uv_timer_start(&s->place, on_place, LOOK_MS, PLACE_MS);
    } else {
        uv_timer_stop(&s->look);
        uv_timer_stop(&s->place);
    }
}

struct slow *slow_new(uv_loop_t *loop, int nproc, int percent, const struct slow_callbacks *cb)
{
    struct slow *s = xcalloc(1, sizeof(*s));
    s->cb = *cb;
    s->nproc = nproc;
    s->limit = percent / 100.0;
    s->pace = xcalloc((size_t)nproc + 1, sizeof(*s->pace));
    s->places = xcalloc((size_t)nproc + 1, sizeof(*s->places));
    uvx_scope_init(&s->scope, loop);
    uv_timer_init(loop, &s->look);
    uv_timer_init(loop, &s->place);
    uvx_own(&s->scope, &s->look);
    uvx_own(&s->scope, &s->place);
    return s;
}

static void on_slow_closed(void *arg)
{
    struct slow *s = arg;
    void (*on_closed)(void *arg) = s->on_closed;
    void *on_closed_arg = s->on_closed_arg;
    slow_job_fini(&s->job);
    free(s->job_places);
    free(s->pace);
    free(s->places);
    free(s);
    on_closed(on_closed_arg);
}

void slow_close(struct slow *s, void (*on_closed)(void *arg), void *arg)
{
    if (!s) {
        on_closed(arg);
        return;
    }
    s->on_closed = on_closed;
    s->on_closed_arg = arg;
    uvx_scope_close(&s->scope, on_slow_closed, s);
}
