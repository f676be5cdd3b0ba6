#include "rendezvous/discovery/search.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/discovery/backends.h"

#define STEPS 4 /* waiting: one for each who searches, publishes, renews or tells */

struct search {
    uv_loop_t *loop;
    struct rdzv_discovery *f; /* NULL: a thread has the discovery */
    struct work *work;        /* the step that is under way; NULL: none */
    struct search_step waiting[STEPS];
    int nwaiting;
    void (*on_withdrawn)(void *arg);
    void *on_withdrawn_arg;
};

/* A step on the pool. A step that does not return outlives struct search. */
struct work {
    uv_work_t work;
    struct search *search; /* NULL: stopped meanwhile */
    struct rdzv_discovery *f;
    struct search_step step;
};

struct search *search_new(uv_loop_t *loop, const struct rdzv_config *config)
{
    struct search *s = xcalloc(1, sizeof(*s));
    s->loop = loop;
    s->f = rdzv_discovery_new(config);
    return s;
}

struct rdzv_discovery *search_idle(struct search *s)
{
    return s->f;
}

static void on_work(uv_work_t *uv)
{
    struct work *w = container_of(uv, struct work, work);
    w->step.run(w->f);
}

static void start_next(struct search *s);

static void withdrawn(void *arg, struct rdzv_discovery *f)
{
    struct search *s = arg;
    (void)f;
    s->on_withdrawn(s->on_withdrawn_arg);
}

static void on_worked(uv_work_t *uv, int status)
{
    struct work *w = container_of(uv, struct work, work);
    struct search *s = w->search;
    const struct search_step step = w->step;
    struct rdzv_discovery *f = w->f;
    (void)status;
    free(w);
    if (!s) {
        rdzv_discovery_free(f);
        return;
    }
    s->work = NULL;
    s->f = f;
    bool last = step.done == withdrawn; /* which may free the search */
    if (step.done)
        step.done(step.arg, f);
    if (!last)
        start_next(s);
}

/* Steps that are done may have added others, or begun one. */
static void start_next(struct search *s)
{
    if (s->work || s->nwaiting == 0)
        return;
    struct work *w = xcalloc(1, sizeof(*w));
    w->search = s;
    w->step = s->waiting[0];
    memmove(s->waiting, s->waiting + 1, (size_t)--s->nwaiting * sizeof(s->waiting[0]));
    if (w->step.prepare)
        w->step.prepare(w->step.arg, s->f);
    w->f = s->f;
    s->f = NULL;
    s->work = w;
    uv_queue_work(s->loop, &w->work, on_work, on_worked); /* fails only without a callback */
}

void search_run(struct search *s, const struct search_step *step)
{
    assert(s->nwaiting < STEPS);
    s->waiting[s->nwaiting++] = *step;
    start_next(s);
}

void search_forget(struct search *s, const void *arg)
{
    int kept = 0;
    for (int i = 0; i < s->nwaiting; i++) {
        if (s->waiting[i].arg != arg)
            s->waiting[kept++] = s->waiting[i];
    }
    s->nwaiting = kept;
    if (s->work && s->work->step.arg == arg)
        s->work->step.done = NULL;
}

void search_stop(struct search *s, bool over)
{
    struct rdzv_discovery *f = s->work ? s->work->f : s->f;
    s->nwaiting = 0;
    atomic_store(&f->over, over);
    if (!s->work)
        return;
    atomic_store(&f->stop, true);
    uv_cancel((uv_req_t *)&s->work->work);
    s->work->search = NULL;
    s->work = NULL;
}

bool search_withdraw(struct search *s, void (*done)(void *arg), void *arg)
{
    if (!s->f || !s->f->ops->withdraw || !s->f->locked)
        return false;
    s->on_withdrawn = done;
    s->on_withdrawn_arg = arg;
    search_run(s, &(struct search_step){s, NULL, s->f->ops->withdraw, withdrawn});
    return true;
}

void search_free(struct search *s)
{
    rdzv_discovery_free(s->f);
    free(s);
}
