#include "launcher/hosts/head_rules.h"

#include <assert.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fsm.h"
#include "core/mem.h"

#define S 1000000000ull

#define AGAIN_NS  (S / 2)  /* a signal this long after the first one is a further request */
#define LAST_NS   (10 * S) /* for the hosts, after a further request to stop */
#define UNREAD_NS (5 * S)  /* for a reader that takes nothing, in a stopped job */

enum { MEETING, RUNNING, ENDING };

static const struct fsm_state job_states[] = {
    [MEETING] = {"MEETING", FSM_BIT(RUNNING) | FSM_BIT(ENDING)},
    [RUNNING] = {"RUNNING", FSM_BIT(ENDING)},
    [ENDING] = {"ENDING", 0},
};

enum { COMING, READY, PLANNED, ENDED, GONE, HOST_STATES };

static const struct fsm_state host_states[] = {
    [COMING] = {"COMING", FSM_BIT(READY) | FSM_BIT(GONE)},
    [READY] = {"READY", FSM_BIT(PLANNED) | FSM_BIT(GONE)},
    [PLANNED] = {"PLANNED", FSM_BIT(ENDED) | FSM_BIT(GONE)},
    [ENDED] = {"ENDED", FSM_BIT(GONE)},
    [GONE] = {"GONE", 0},
};

struct host {
    struct fsm state;
    int rank; /* -1: it has no plan */
    struct frame_exit result;
    bool has_result, reported; /* there is a result; with a report */
};

struct head_rules {
    struct fsm job;
    int min, max, spares;
    struct host *hosts;
    size_t nhosts;
    int n[HOST_STATES]; /* hosts in each state */
    int nodes;

    bool began;        /* workers have begun to run, somewhere */
    size_t teller;     /* whose result is the best; HEAD_NO_HOST */
    int end_status;    /* the head's own status; -1: the head has not ended the job */
    uint64_t stop_ns;  /* the first signal that asks to stop; 0: none yet */
    uint64_t hurry_ns; /* a further one; 0: none yet */
    uint64_t limit_ns; /* 0: not known, or no limit */
    bool gave_up;      /* on the output's reader */

    struct head_action *actions;
    size_t nactions, taken;
};

struct head_rules *head_rules_new(size_t nhosts, int min, int max, int spares)
{
    struct head_rules *r = xcalloc(1, sizeof(*r));
    *r = (struct head_rules){.job = {"head", job_states, MEETING},
                             .min = min,
                             .max = max,
                             .spares = spares,
                             .hosts = xcalloc(nhosts, sizeof(*r->hosts)),
                             .nhosts = nhosts,
                             .n = {[COMING] = (int)nhosts},
                             .teller = HEAD_NO_HOST,
                             .end_status = -1};
    for (size_t i = 0; i < nhosts; i++)
        r->hosts[i] = (struct host){.state = {"host", host_states, COMING}, .rank = -1};
    return r;
}

void head_rules_free(struct head_rules *r)
{
    if (!r)
        return;
    free(r->hosts);
    free(r->actions);
    free(r);
}

/* -------------------------------------------------------------------------------------- actions */

static struct head_action *act(struct head_rules *r, enum head_act what, size_t host)
{
    r->actions = xrealloc(r->actions, (r->nactions + 1) * sizeof(*r->actions));
    struct head_action *a = &r->actions[r->nactions++];
    *a = (struct head_action){.act = what, .host = host};
    return a;
}

__attribute__((format(printf, 4, 5))) static void say(struct head_rules *r, enum log_level level,
                                                      size_t host, const char *fmt, ...)
{
    struct head_action *a = act(r, HEAD_ACT_LOG, host);
    va_list ap;
    a->level = level;
    va_start(ap, fmt);
    vsnprintf(a->text, sizeof(a->text), fmt, ap);
    va_end(ap);
}

bool head_rules_next(struct head_rules *r, struct head_action *a)
{
    if (r->taken == r->nactions) {
        r->taken = r->nactions = 0;
        return false;
    }
    *a = r->actions[r->taken++];
    return true;
}

/* ---------------------------------------------------------------------------------------- hosts */

static bool is_in(const struct head_rules *r, size_t host, int state)
{
    return r->hosts[host].state.state == state;
}

static void move_host(struct head_rules *r, size_t host, int to)
{
    struct fsm *f = &r->hosts[host].state;
    r->n[f->state]--;
    fsm_move(f, to);
    r->n[to]++;
}

static int hosts_left(const struct head_rules *r)
{
    return (int)r->nhosts - r->n[GONE];
}

/* The head ends the job with this status: hosts that have a plan are told to stop, others are
 * dropped. */
static void end_job(struct head_rules *r, int status)
{
    if (r->job.state == ENDING)
        return;
    r->end_status = status;
    fsm_move(&r->job, ENDING);
    for (size_t i = 0; i < r->nhosts; i++) {
        if (is_in(r, i, PLANNED))
            act(r, HEAD_ACT_SIGNAL, i)->signo = SIGTERM;
        else if (is_in(r, i, COMING) || is_in(r, i, READY))
            act(r, HEAD_ACT_DROP, i);
    }
}

/* All hosts have come or are lost: those that the job has room for get a plan. */
static void maybe_begin(struct head_rules *r)
{
    int rank = 0, spared = hosts_left(r) - r->spares;
    if (r->job.state != MEETING || r->n[COMING] || !r->n[READY])
        return;
    r->nodes = spared < r->max ? spared : r->max;
    fsm_move(&r->job, RUNNING);
    for (size_t i = 0; i < r->nhosts; i++) {
        if (!is_in(r, i, READY))
            continue;
        if (rank < r->nodes + r->spares) {
            r->hosts[i].rank = rank++;
            move_host(r, i, PLANNED);
        } else { /* more hosts than --nnodes asks for */
            move_host(r, i, GONE);
            act(r, HEAD_ACT_DROP, i);
        }
    }
    act(r, HEAD_ACT_PLAN, HEAD_NO_HOST);
}

void head_rules_ready(struct head_rules *r, size_t host)
{
    if (!is_in(r, host, COMING))
        return;
    move_host(r, host, READY);
    if (r->job.state == ENDING)
        act(r, HEAD_ACT_DROP, host);
    maybe_begin(r);
}

void head_rules_absent(struct head_rules *r, size_t host, const char *why, int status)
{
    if (is_in(r, host, GONE))
        return;
    move_host(r, host, GONE);
    if (r->job.state == ENDING)
        return;
    bool enough = r->min < r->max && hosts_left(r) >= r->min + r->spares;
    if (enough) {
        say(r, LOG_LEVEL_WARN, host, "%s; the job goes on without it", why);
    } else {
        say(r, LOG_LEVEL_ERROR, host, "%s", why);
        end_job(r, status);
    }
    maybe_begin(r);
}

void head_rules_began(struct head_rules *r, size_t host)
{
    if (is_in(r, host, PLANNED))
        r->began = true;
}

/* Whether a coordinator has told how the job ended. */
static bool is_decided(const struct head_rules *r)
{
    return r->teller != HEAD_NO_HOST && r->hosts[r->teller].result.decided;
}

void head_rules_closed(struct head_rules *r, size_t host, const char *why)
{
    char text[480];
    if (is_in(r, host, ENDED) || (is_in(r, host, PLANNED) && is_decided(r))) {
        move_host(r, host, GONE);
        return;
    }
    if (!is_in(r, host, PLANNED)) {
        head_rules_absent(r, host, why, 1);
        return;
    }
    snprintf(text, sizeof(text), "the connection is lost: %s", why);
    if (!r->began) {
        head_rules_absent(r, host, text, 1);
        return;
    }
    /* A host is lost while the job runs: the launchers of the other hosts continue the job, or end
     * it. */
    move_host(r, host, GONE);
    if (r->job.state != ENDING)
        say(r, LOG_LEVEL_WARN, host, "%s", text);
}

/* -------------------------------------------------------------------------- how the job ended */

/* The better a result is, the more does it know of the job. */
static int weight(const struct host *h)
{
    if (!h->has_result)
        return 0;
    return h->result.decided ? 2 : h->reported || h->result.status == 0;
}

/* Of launchers' own results the first one told stays; of those that coordinators have told and that
 * are alike, that of the host which stands first in the list. Such ones may differ: two parts of a
 * job, neither of them a majority, end each for a reason of its own. */
static bool knows_more(const struct host *a, const struct host *b)
{
    int wa = weight(a), wb = weight(b);
    if (wa != wb || wa < 2)
        return wa > wb;
    if (a->result.epoch != b->result.epoch)
        return a->result.epoch > b->result.epoch;
    if (a->result.counter != b->result.counter)
        return a->result.counter > b->result.counter;
    return a < b;
}

void head_rules_ended(struct head_rules *r, size_t host, const struct frame_exit *f, bool reported)
{
    struct host *h = &r->hosts[host];
    if (!is_in(r, host, PLANNED))
        return;
    move_host(r, host, ENDED);
    h->result = *f;
    h->has_result = true;
    h->reported = reported;
    if (weight(h) && (r->teller == HEAD_NO_HOST || knows_more(h, &r->hosts[r->teller])))
        r->teller = host;
    if (r->began || f->status == 0 || r->job.state == ENDING || r->stop_ns || reported)
        return;
    /* The host's launcher has reported why. The others would wait for that host. */
    if (r->min == r->max || r->n[PLANNED] < r->min + r->spares)
        end_job(r, f->status);
}

size_t head_rules_teller(const struct head_rules *r)
{
    return r->teller;
}

int head_rules_status(const struct head_rules *r)
{
    if (r->end_status >= 0)
        return r->end_status;
    if (r->teller != HEAD_NO_HOST)
        return r->hosts[r->teller].result.status;
    for (size_t i = 0; i < r->nhosts; i++) {
        if (r->hosts[i].has_result)
            return r->hosts[i].result.status; /* not 0: that has weight */
    }
    return 1;
}

/* ------------------------------------------------------------------------------ signals and time
 */

static bool asks_to_stop(int signo)
{
    return signo != SIGUSR1 && signo != SIGUSR2;
}

void head_rules_signal(struct head_rules *r, int signo, uint64_t now)
{
    bool stop = asks_to_stop(signo), first = stop && !r->stop_ns;
    bool further = stop && r->stop_ns && now - r->stop_ns > AGAIN_NS;
    if (first)
        r->stop_ns = now;
    if (further && !r->hurry_ns) {
        r->hurry_ns = now;
        act(r, HEAD_ACT_HURRY, HEAD_NO_HOST);
    }
    if (r->nodes) {
        for (size_t i = 0; i < r->nhosts; i++) {
            if (is_in(r, i, PLANNED))
                act(r, HEAD_ACT_SIGNAL, i)->signo = signo;
        }
        return;
    }
    if (first)
        say(r, LOG_LEVEL_NOTICE, HEAD_NO_HOST, "received SIG%s: the job had not begun",
            sigabbrev_np(signo));
    if (stop)
        end_job(r, 128 + signo);
    for (size_t i = 0; i < r->nhosts && further; i++) {
        if (!is_in(r, i, GONE))
            act(r, HEAD_ACT_KILL, i);
    }
}

void head_rules_limit(struct head_rules *r, uint64_t limit_ns)
{
    r->limit_ns = limit_ns;
}

/* The time until which a reader of the output may block the job's end; UINT64_MAX: no limit. */
static uint64_t unread_end(const struct head_rules *r)
{
    uint64_t since =
        r->stop_ns && (!r->limit_ns || r->stop_ns < r->limit_ns) ? r->stop_ns : r->limit_ns;
    return since && !r->gave_up ? since + UNREAD_NS : UINT64_MAX;
}

/* A host whose network is gone does not say that its launcher has ended: after a further request to
 * stop, which kills the workers, it is not waited for. */
static uint64_t silent_end(const struct head_rules *r)
{
    return r->hurry_ns && r->n[PLANNED] ? r->hurry_ns + LAST_NS : UINT64_MAX;
}

void head_rules_tick(struct head_rules *r, bool output_is_taken, uint64_t now)
{
    if (!output_is_taken && now >= unread_end(r)) {
        r->gave_up = true;
        act(r, HEAD_ACT_HURRY, HEAD_NO_HOST);
    }
    if (now < silent_end(r))
        return;
    for (size_t i = 0; i < r->nhosts; i++) {
        if (!is_in(r, i, PLANNED))
            continue;
        say(r, LOG_LEVEL_WARN, i,
            "has not told within %d s how its launcher ended; it was given up", (int)(LAST_NS / S));
        move_host(r, i, GONE);
        act(r, HEAD_ACT_KILL, i);
    }
}

uint64_t head_rules_deadline(const struct head_rules *r, bool output_is_taken)
{
    uint64_t unread = output_is_taken ? UINT64_MAX : unread_end(r), silent = silent_end(r);
    return unread < silent ? unread : silent;
}

/* ------------------------------------------------------------------------------------ questions */

int head_rules_nodes(const struct head_rules *r)
{
    return r->nodes;
}

int head_rules_rank(const struct head_rules *r, size_t host)
{
    return r->hosts[host].rank;
}

bool head_rules_is_left(const struct head_rules *r, size_t host)
{
    return !is_in(r, host, GONE);
}

bool head_rules_ends(const struct head_rules *r)
{
    return r->job.state == ENDING;
}

bool head_rules_was_stopped(const struct head_rules *r)
{
    return r->stop_ns != 0;
}

void head_rules_check(const struct head_rules *r)
{
    int n[HOST_STATES] = {0}, ranks = 0;
    bool known = r->teller != HEAD_NO_HOST;
    for (size_t i = 0; i < r->nhosts; i++) {
        const struct host *h = &r->hosts[i];
        n[h->state.state]++;
        ranks += h->rank >= 0;
        assert(h->rank < r->nodes + r->spares);
        assert(h->rank < 0 || (!is_in(r, i, COMING) && !is_in(r, i, READY)));
        assert(!is_in(r, i, PLANNED) || h->rank >= 0);
        assert(!is_in(r, i, ENDED) || h->has_result);
        assert(!h->has_result || h->rank >= 0);
        assert(!known || !knows_more(h, &r->hosts[r->teller]));
        assert(known || !weight(h));
    }
    assert(memcmp(n, r->n, sizeof(n)) == 0);
    assert((ranks > 0) == (r->nodes > 0));
    assert((r->end_status >= 0) == (r->job.state == ENDING));
    assert(r->job.state != MEETING || (!r->nodes && !r->began && !known));
    assert(r->job.state != RUNNING || (r->nodes && !n[COMING] && !n[READY]));
    assert(!r->hurry_ns || (r->stop_ns && r->hurry_ns > r->stop_ns));
    assert(r->taken <= r->nactions);
}
