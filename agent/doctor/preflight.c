#include "agent/doctor/preflight.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/doctor/checks.h"
#include "agent/doctor/facts.h"
#include "core/log.h"
#include "core/mem.h"

struct preflight {
    struct node *n;
    struct facts_run *facts; /* of this round; NULL: not asked for yet */
    bool fit;                /* for this round */
};

static int preflight_open(void **state, struct node *n, struct err *e)
{
    (void)e;
    if (!n->job->doctor.preflight || !n->job->nproc)
        return 0;
    struct preflight *p = xcalloc(1, sizeof(*p));
    p->n = n;
    *state = p;
    return 0;
}

static void on_old_closed(void *arg)
{
    (void)arg;
}

static void preflight_prepare(void *state)
{
    struct preflight *p = state;
    facts_close(p->facts, on_old_closed, NULL);
    p->facts = NULL;
    p->fit = false;
}

/* Says what is wrong; the first problem with which workers could not run is the error. */
static int say_problems(struct node *n, const json_t *json, struct err *e)
{
    struct problems all = {0};
    struct node_facts facts;
    node_facts_get(&facts, json);
    checks_of_node(&facts, &all);
    node_facts_fini(&facts);
    for (size_t i = 0; i < all.n; i++) {
        const struct problem *one = &all.p[i];
        char *text = xasprintf("%s: %s; %s", one->check, one->text, one->remedy);
        node_event(n, (struct event){.name = EVENT_NODE_PROBLEM,
                                     .pid = (int)getpid(),
                                     .rank = -1,
                                     .caused_by = -1,
                                     .text = text});
        if (one->stops && !e->code)
            err_set(e, -EINVAL, "--preflight: %s", text);
        else
            log_warn("--preflight: %s", text);
        free(text);
    }
    problems_fini(&all);
    return e->code;
}

static void on_facts(void *arg, json_t *facts, const char *why)
{
    struct preflight *p = arg;
    struct err e = ERR_INIT;
    p->fit = true;
    if (!facts)
        log_warn("--preflight: the node could not be checked: %s", why);
    if (facts && say_problems(p->n, facts, &e) < 0)
        p->n->calls->give_up(p->n, &e);
    else
        p->n->calls->go_on(p->n);
}

static bool preflight_ready(void *state)
{
    struct preflight *p = state;
    if (!p->facts) {
        json_t *question = facts_question(p->n->job, true);
        p->facts = facts_start(p->n->loop, p->n->spawner, question, on_facts, p);
        json_decref(question);
    }
    return p->fit;
}

static bool preflight_helpers(void *state, struct pids *out)
{
    const struct preflight *p = state;
    if (facts_pid(p->facts))
        pids_add(out, facts_pid(p->facts));
    return true;
}

static void preflight_close(void *state, void (*on_closed)(void *arg), void *arg)
{
    struct preflight *p = state;
    facts_close(p->facts, on_closed, arg);
    p->facts = NULL;
}

const struct feature preflight_feature = {
    .name = "preflight",
    .open = preflight_open,
    .prepare = preflight_prepare,
    .ready = preflight_ready,
    .helpers = preflight_helpers,
    .close = preflight_close,
    .free = free,
};
