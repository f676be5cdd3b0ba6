#include "agent/report/ledger_notes.h"

#include <stdlib.h>
#include <unistd.h>

#include "agent/base/file_time.h"
#include "agent/report/report_input.h"
#include "core/clock.h"
#include "core/mem.h"

#define LOOK_MS 25 /* between two looks at who is in an operation */

struct round {
    uint64_t began_ns;  /* day_ns(); 0: no round has begun */
    uint64_t looked_ns; /* 0: not yet */
    double waited_s;    /* node-seconds in which workers were in operations */
};

struct notes {
    struct node *n;
    uv_timer_t timer;             /* samples, if anybody waits for events */
    struct file_time *checkpoint; /* --checkpoint_mark; NULL: none */
    struct round round;
    struct ledger ledger; /* of the report */
};

static int notes_open(void **state, struct node *n, struct err *e)
{
    struct notes *t = xcalloc(1, sizeof(*t));
    (void)e;
    t->n = n;
    if (n->job->checkpoint_mark)
        t->checkpoint = file_time_new(n->job->checkpoint_mark);
    uv_timer_init(n->loop, &t->timer);
    uvx_own(n->scope, &t->timer);
    if (n->job->ledger) {
        n->log.wanted = true;
        ledger_keep(&n->log.job);
    }
    *state = t;
    return 0;
}

static int notes_begin(void *state, struct err *e)
{
    struct notes *t = state;
    (void)e;
    t->round = (struct round){.began_ns = day_ns()};
    return 0;
}

/* Counts the share of this node's workers that are in operations for the time since the last look.
 */
static void sample_waiting(struct notes *t)
{
    uint64_t now = mono_ns();
    int in = 0, alive = 0;
    for (int i = 0; i < t->n->job->nproc; i++) {
        bool lives = worker_is_alive(&t->n->workers[i]);
        alive += lives;
        in += lives && segment_in_operation(&t->n->segment, i);
    }
    if (t->round.looked_ns && alive)
        t->round.waited_s += (double)(now - t->round.looked_ns) / 1e9 * in / alive;
    t->round.looked_ns = now;
}

static void on_timer(uv_timer_t *timer)
{
    sample_waiting(container_of(timer, struct notes, timer));
}

static void notes_log_grown(void *state)
{
    struct notes *t = state;
    if ((t->n->log.wanted || t->n->log.send) && t->n->state == NODE_RUNNING &&
        !uv_is_active((uv_handle_t *)&t->timer))
        uv_timer_start(&t->timer, on_timer, 0, LOOK_MS);
}

/* Seconds since the checkpoint changed; negative: there is none, or it is of an earlier round. */
static double checkpoint_age(const struct notes *t)
{
    uint64_t age, at, wall = wall_ns();
    if (!t->checkpoint || !t->round.began_ns)
        return -1;
    age = day_ns() - t->round.began_ns;
    if (file_time_get(t->checkpoint, &at) && at <= wall && wall - at < age)
        age = wall - at;
    return (double)age / 1e9;
}

static void notes_state_changed(void *state, enum node_state from)
{
    struct notes *t = state;
    char text[96];
    if (from != NODE_RUNNING || !uv_is_active((uv_handle_t *)&t->timer))
        return;
    uv_timer_stop(&t->timer);
    sample_waiting(t);
    ledger_note(text, sizeof(text), t->round.waited_s, checkpoint_age(t));
    node_event(t->n, (struct event){.name = EVENT_NODE_LEDGER,
                                    .pid = (int)getpid(),
                                    .rank = -1,
                                    .caused_by = -1,
                                    .text = text});
}

static void notes_report(void *state, struct report_input *in)
{
    struct notes *t = state;
    if (!t->n->job->ledger)
        return;
    ledger_of_events(&t->ledger, &t->n->log.job, 0);
    in->ledger = &t->ledger;
}

static void notes_free(void *state)
{
    struct notes *t = state;
    ledger_forget(&t->n->log.job);
    file_time_free(t->checkpoint);
    free(t);
}

const struct feature ledger_feature = {
    .name = "ledger",
    .open = notes_open,
    .begin = notes_begin,
    .state_changed = notes_state_changed,
    .log_grown = notes_log_grown,
    .report = notes_report,
    .free = notes_free,
};
