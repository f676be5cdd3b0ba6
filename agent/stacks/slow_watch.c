#include "agent/stacks/slow_watch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

#define CERTAIN 8     /* standard errors */
#define ERROR   1e-4  /* of a share, at least: answers of nodes arrive some time apart */
#define OPS_MIN 2     /* of most ranks between two looks */
#define SMOOTH  0.125 /* the weight of the newest look in a pace */

void slow_job_init(struct slow_job *j, int n, double limit)
{
    *j = (struct slow_job){.n = n, .limit = limit};
    j->ranks = xcalloc((size_t)n + 1, sizeof(*j->ranks));
}

void slow_job_fini(struct slow_job *j)
{
    free(j->ranks);
    *j = (struct slow_job){0};
}

void slow_job_put(struct slow_job *j, int rank, const struct slow_count *c)
{
    if (rank < 0 || rank >= j->n)
        return;
    struct slow_rank *r = &j->ranks[rank];
    r->now = *c;
    if (r->last.at_ns && (c->at_ns < r->last.at_ns || c->ops < r->last.ops ||
                          c->waited_ns < r->last.waited_ns)) /* the worker has started again */
        r->last = *c;
    else if (!r->last.at_ns)
        r->last = *c;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double middle(const double *sorted, int n)
{
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* The median of the others: n - 1 values, without that of place `but`. */
static double middle_without(const double *sorted, int n, int but)
{
    int m = n - 1, hi = m / 2, lo = m % 2 ? hi : hi - 1;
    return (sorted[lo + (lo >= but)] + sorted[hi + (hi >= but)]) / 2;
}

static double median_abs(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    double m = middle(v, n);
    for (int i = 0; i < n; i++)
        v[i] = fabs(v[i] - m);
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return m;
}

/* Returns how far a rank is behind in its last n looks. *certain: this is above `floor` by more
 * than CERTAIN standard errors; *times: in how many of these looks the rank was behind. */
static double behind_lately(const struct slow_rank *r, int n, double floor, bool *certain,
                            int *times)
{
    double v[SLOW_LOOKS];
    *times = 0;
    for (int i = 0; i < n; i++) {
        v[i] = r->behind[(r->looks - 1 - (unsigned)i) % SLOW_LOOKS];
        *times += v[i] > 0;
    }
    double m = median_abs(v, n);
    double above = m - floor;
    /* The standard error of a median, with the spread as the median deviation says it, but for the
     * square root of n: a launcher that needs no library of mathematics starts sooner. */
    double error = 1.2533 * 1.4826 * middle(v, n);
    *certain = above > CERTAIN * ERROR && above * above * n > CERTAIN * CERTAIN * error * error;
    return m;
}

/* Few looks find a great delay soon, many a small one among noise. */
static bool is_slow(const struct slow_rank *r, double limit)
{
    /* Heads in so many throws: a fair coin does that once in 60,000 times or less often. */
    static const struct {
        unsigned looks;
        int times;
    } sets[] = {{SLOW_FIRST, 16}, {32, 28}, {SLOW_LOOKS, 50}};
    bool certain;
    int times;
    if (r->slow)
        return behind_lately(r, SLOW_FIRST, 0, &certain, &times) > limit / 2;
    if (r->looks == 0 || r->behind[(r->looks - 1) % SLOW_LOOKS] <= limit / 2)
        return false; /* a slow rank shows in another look soon */
    for (size_t i = 0; i < ARRAY_LEN(sets) && r->looks >= sets[i].looks; i++) {
        double behind = behind_lately(r, (int)sets[i].looks, limit / 2, &certain, &times);
        if (behind > limit && certain && times >= sets[i].times)
            return true;
    }
    return false;
}

static bool takes_part(const struct slow_rank *r)
{
    return r->now.at_ns > r->last.at_ns && r->now.ops > r->last.ops;
}

static double waiting(const struct slow_rank *r)
{
    double share =
        (double)(r->now.waited_ns - r->last.waited_ns) / (double)(r->now.at_ns - r->last.at_ns);
    return share > 1 ? 1 : share;
}

static int place_of(const double *sorted, int n, double v)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (sorted[mid] < v)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void note(struct slow_rank *r, double behind, bool last)
{
    uint64_t bit = UINT64_C(1) << r->looks % SLOW_LOOKS;
    r->behind[r->looks % SLOW_LOOKS] = (float)behind;
    r->was_last = last ? r->was_last | bit : r->was_last & ~bit;
    r->looks++;
    r->last = r->now;
}

/* Whether most of those that have been seen before have done enough since. */
static bool is_time(const struct slow_job *j, int *n)
{
    int seen = 0, ready = 0;
    *n = 0;
    for (int i = 0; i < j->n; i++) {
        const struct slow_rank *r = &j->ranks[i];
        seen += r->last.at_ns != 0;
        ready += r->now.ops >= r->last.ops + OPS_MIN && r->now.at_ns > r->last.at_ns;
        *n += takes_part(r);
    }
    return *n >= 2 && 2 * ready > seen;
}

bool slow_job_look(struct slow_job *j)
{
    int n, k = 0;
    bool changed = false;
    if (!is_time(j, &n))
        return false;
    double *sorted = xcalloc((size_t)n, sizeof(*sorted));
    for (int i = 0; i < j->n; i++) {
        if (takes_part(&j->ranks[i]))
            sorted[k++] = waiting(&j->ranks[i]);
    }
    qsort(sorted, (size_t)n, sizeof(*sorted), by_value);
    j->others = 1 - middle(sorted, n);
    for (int i = 0; i < j->n; i++) {
        struct slow_rank *r = &j->ranks[i];
        if (!takes_part(r)) {
            r->last = r->now;
            continue;
        }
        double share = waiting(r);
        note(r, middle_without(sorted, n, place_of(sorted, n, share)) - share, share == sorted[0]);
        bool slow = is_slow(r, j->limit);
        changed |= slow != r->slow;
        r->slow = slow;
    }
    free(sorted);
    return changed;
}

struct slow_finding slow_job_finding(const struct slow_job *j, int rank)
{
    const struct slow_rank *r = &j->ranks[rank];
    unsigned n = r->looks < SLOW_FIRST ? r->looks : SLOW_FIRST;
    struct slow_finding f = {.looks = n};
    bool certain;
    int times;
    for (unsigned i = 0; i < n; i++)
        f.last += r->was_last >> (r->looks - 1 - i) % SLOW_LOOKS & 1;
    if (n)
        f.behind = behind_lately(r, (int)n, 0, &certain, &times);
    return f;
}

/* ----------------------------------------------------------------------------------------- pace */

void slow_pace_look(struct slow_pace *p, const struct slow_count *c)
{
    struct slow_count was = p->last;
    if (c->at_ns < was.at_ns || c->ops < was.ops || c->waited_ns < was.waited_ns || !was.at_ns) {
        *p = (struct slow_pace){.last = *c};
        return;
    }
    if (c->ops < was.ops + OPS_MIN || c->at_ns == was.at_ns)
        return;
    double time = (double)(c->at_ns - was.at_ns) / 1e9;
    double waited = (double)(c->waited_ns - was.waited_ns) / 1e9;
    double busy = waited < time ? 1 - waited / time : 0;
    double per_op = busy * time / (double)(c->ops - was.ops);
    double weight = p->looks < 8 ? 1.0 / (p->looks + 1) : SMOOTH;
    p->busy += weight * (busy - p->busy);
    p->per_op += weight * (per_op - p->per_op);
    p->last = *c;
    if (++p->looks >= SLOW_FIRST && (p->best == 0 || p->per_op < p->best))
        p->best = p->per_op;
}

double slow_pace_relative(const struct slow_pace *p, double others)
{
    if (p->looks < SLOW_FIRST || p->busy <= 0)
        return 0;
    return others < p->busy ? others / p->busy : 1;
}

double slow_pace_own(const struct slow_pace *p)
{
    return p->per_op > 0 ? p->best / p->per_op : 0;
}
