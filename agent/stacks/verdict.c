#include "agent/stacks/verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/report/report_words.h"
#include "agent/stacks/stack_tree.h"
#include "core/mem.h"

#define LOOP_CPU_MS 3 /* at least, between the samples, of who runs all the time */

/* The activity of one rank, as both samples show it. */
enum conduct {
    GONE,      /* the worker has ended well, or does not run */
    SILENT,    /* the rank's node does not answer */
    MOVES,     /* the rank went on between the samples, or is silent no longer than usual */
    WAITS,     /* in an operation, or in a function that looks like one */
    STOPPED,   /* by a signal, or a debugger */
    IN_KERNEL, /* state D at both times, in the same place */
    STANDS,    /* in none, and does not move */
    UNKNOWN,   /* so it seems; but it may wait in an operation that nobody tells of */
};

static const struct sample *find_sample(const struct samples *all, int rank)
{
    size_t lo = 0, hi = all->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (all->s[mid].rank < rank)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < all->n && all->s[lo].rank == rank ? &all->s[lo] : NULL;
}

/* Length of a frame without file and line. */
static size_t name_len(const char *frame)
{
    const char *end = strstr(frame, " (");
    return end ? (size_t)(end - frame) : strlen(frame);
}

/* Whether two threads are in the same functions, whatever the lines. */
static bool same_functions(const struct sample_thread *a, const struct sample_thread *b)
{
    if (a->nframes != b->nframes || (a->state == 'R') != (b->state == 'R') ||
        strcmp(a->call, b->call) != 0)
        return false;
    for (int i = 0; i < a->nframes; i++) {
        size_t n = name_len(a->frames[i]);
        if (n != name_len(b->frames[i]) || memcmp(a->frames[i], b->frames[i], n) != 0)
            return false;
    }
    return true;
}

/* Functions in which one rank waits for others, of libraries whose operations are not recorded. */
static bool is_collective(const char *frame)
{
    static const char *const words[] = {
        "all_reduce",   "allreduce",      "Allreduce", "all_gather", "allgather",
        "Allgather",    "reduce_scatter", "broadcast", "Bcast",      "barrier",
        "Barrier",      "all_to_all",     "alltoall",  "Alltoall",   "gloo::",
        "ProcessGroup", "MPI_",           "PMPI_",     "ncclGroup",  "_store_based"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (strstr(frame, words[i]))
            return true;
    }
    return false;
}

static const char *collective_of(const struct sample *s)
{
    for (int i = 0; s->nthreads && i < s->threads[0].nframes; i++) {
        if (is_collective(s->threads[0].frames[i]))
            return s->threads[0].frames[i];
    }
    return NULL;
}

/* False if one of the two is not known. */
static bool other_operation(const struct sample_op *a, const struct sample_op *b)
{
    if ((a->reported && !b->number) || (b->reported && !a->number))
        return false;
    return a->number != b->number || a->open != b->open;
}

static enum conduct conduct_of(const struct sample *a, const struct sample *b)
{
    if (b->silent) /* sampled once only: the rank's node is busy */
        return a && !a->silent ? MOVES : SILENT;
    if (!b->nthreads || !b->threads[0].state)
        return GONE;
    const struct sample_thread *t = &b->threads[0];
    if (t->state == 'T' || t->state == 't')
        return STOPPED;
    if (!a || !a->nthreads || a->pid != b->pid || other_operation(&a->op, &b->op))
        return MOVES;
    if (b->op.hidden && (!b->op.open || b->op.reported))
        return UNKNOWN;
    if (b->op.number && b->op.open)
        return WAITS;
    if (a->io_bytes != b->io_bytes)
        return MOVES;
    if (!b->op.number && collective_of(b) &&
        t->state == 'S') /* active: the rank has just entered */
        return b->active ? MOVES : WAITS;
    if (!b->op.number && collective_of(b) && t->state == 'R' && collective_of(a))
        return WAITS; /* the rank polls */
    if (!same_functions(&a->threads[0], t) || (b->active && t->state != 'R'))
        return MOVES;
    if (t->state == 'R' && b->cpu_ms < a->cpu_ms + LOOP_CPU_MS) /* the rank gets no CPU */
        return MOVES;
    if (t->state == 'D')
        return IN_KERNEL;
    return STANDS;
}

/* Describes the operation in which a rank waits: the text is equal for all ranks that wait
 * together. */
static const char *waits_in(const struct sample *s)
{
    const char *frame = s->op.open ? NULL : collective_of(s);
    return s->op.open ? s->op.text : frame ? frame : "";
}

const char *hang_place(const struct sample *s)
{
    int n = s->nthreads ? s->threads[0].nframes : 0;
    char *const *frames = n ? s->threads[0].frames : NULL;
    for (int i = 1, at = 0; i < n; i++) {
        if (strncmp(frames[i], "dlcoll_", 7) == 0 || is_collective(frames[i]))
            return frames[at];
        if (!strstr(frames[i], "(c10d_logger.py:")) /* PyTorch's wrapper of each operation */
            at = i;
    }
    for (int i = n - 1; i >= 0; i--) {
        if (!sample_is_libc(frames[i]))
            return frames[i];
    }
    return "";
}

struct court {
    const struct samples *all;
    enum conduct *conduct;
    bool by_place;              /* equal operations of different places of the program differ */
    int waiting;                /* ranks that wait in the operation in which most ranks wait */
    const struct sample *among; /* one of these ranks; NULL: no rank waits */
};

static bool waits_alike(const struct court *c, const struct sample *a, const struct sample *b)
{
    return a->op.open == b->op.open && a->op.group == b->op.group &&
           (!a->op.open || a->op.seq == b->op.seq) && strcmp(waits_in(a), waits_in(b)) == 0 &&
           (!c->by_place || strcmp(hang_place(a), hang_place(b)) == 0);
}

/* Most ranks that wait, wait in this; of equally many, in that which the last rank to begin one is
 * in. */
static void find_majority(struct court *c)
{
    c->waiting = 0;
    c->among = NULL;
    for (size_t i = 0; i < c->all->n; i++) {
        const struct sample *s = &c->all->s[i];
        int n = 0;
        if (c->conduct[i] != WAITS)
            continue;
        for (size_t k = 0; k < c->all->n; k++)
            n += c->conduct[k] == WAITS && waits_alike(c, s, &c->all->s[k]);
        if (n > c->waiting || (n == c->waiting && c->among && s->op.seq > c->among->op.seq)) {
            c->waiting = n;
            c->among = s;
        }
    }
}

static int count_conduct(const struct court *c, enum conduct what)
{
    int n = 0;
    for (size_t i = 0; i < c->all->n; i++)
        n += c->conduct[i] == what;
    return n;
}

static bool is_culprit(const struct court *c, size_t i, bool stopped, bool outside)
{
    enum conduct what = c->conduct[i];
    if (stopped)
        return what == STOPPED || what == SILENT || what == IN_KERNEL;
    if (outside)
        return what == STANDS || what == MOVES;
    return what == WAITS && c->among && !waits_alike(c, &c->all->s[i], c->among);
}

/* All others have left the operation that it is in: it waits for nobody. */
static bool is_behind(const struct court *c, size_t i)
{
    const struct sample *s = &c->all->s[i];
    return c->conduct[i] == WAITS && c->among && s->op.open && c->among->op.open &&
           s->op.group == c->among->op.group && s->op.seq < c->among->op.seq;
}

/* Whether a rank in an operation could run if it got a CPU: it, and who waits for it there, will go
 * on. */
static bool lacks_cpu(const struct court *c, bool behind)
{
    for (size_t i = 0; i < c->all->n; i++) {
        if (c->conduct[i] == WAITS && c->all->s[i].threads[0].state == 'R' &&
            (!behind || is_behind(c, i)))
            return true;
    }
    return false;
}

static void put_ranks_where(struct buf *b, const struct court *c, const struct verdict *v,
                            bool culprits)
{
    int *ranks = xcalloc(c->all->n, sizeof(*ranks)), n = 0;
    for (size_t i = 0; i < c->all->n; i++) {
        bool named = false;
        for (int k = 0; k < v->n; k++)
            named |= v->ranks[k] == c->all->s[i].rank;
        if (culprits ? named
                     : !named && c->conduct[i] == WAITS && c->among &&
                           waits_alike(c, &c->all->s[i], c->among))
            ranks[n++] = c->all->s[i].rank;
    }
    words_add(b, n == 1 ? "rank " : "ranks ");
    words_ranges(b, ranks, (size_t)n);
    free(ranks);
}

static void put_operation(struct buf *b, const struct sample *s)
{
    if (s->op.open)
        words_add(b, "%s #%llu", s->op.text, (unsigned long long)s->op.seq);
    else
        words_add(b, "%s", waits_in(s));
}

static void put_culprit(struct buf *b, const struct sample *s, enum conduct what)
{
    char leaf[SAMPLE_TEXT_MAX];
    if (s->silent) {
        words_add(b, ": its node does not answer");
        return;
    }
    if (what == WAITS) {
        words_add(b, " waits in ");
        put_operation(b, s);
        words_add(b, " instead");
    } else if (s->nthreads) { /* a rank that is there twice need not have any */
        stack_tree_leaf(&s->threads[0], leaf);
        leaf[strlen(leaf) - 1] = '\0'; /* without the brackets */
        words_add(b, " %s", leaf + 1);
    }
    if (*hang_place(s))
        words_add(b, ", at %s", hang_place(s));
}

/* "rank 3 on n1 (pid 41) sleeps in nanosleep, at step (train.c:40); ranks 0-2 wait for it in ...".
 */
static void put_text(const struct court *c, struct verdict *v)
{
    struct buf b = BUF_INIT;
    words_add(&b, "%s", "");
    for (size_t i = 0; i < c->all->n && v->n; i++) {
        const struct sample *s = &c->all->s[i];
        if (s->rank != v->ranks[0])
            continue;
        if (v->n > 1) {
            put_ranks_where(&b, c, v, true);
            words_add(&b, "; the first of them, ");
        }
        words_add(&b, "rank %d on %s", s->rank, s->host);
        if (s->pid)
            words_add(&b, " (pid %d)", s->pid);
        put_culprit(&b, s, c->conduct[i]);
        break;
    }
    if (c->among) {
        words_add(&b, "%s", v->n ? "; " : "");
        put_ranks_where(&b, c, v, false);
        words_add(&b, c->waiting == 1 ? " waits in " : " wait in ");
        put_operation(&b, c->among);
        if (*hang_place(c->among) && c->among->op.open)
            words_add(&b, ", at %s", hang_place(c->among));
    }
    snprintf(v->text, sizeof(v->text), "%s", (char *)b.data);
    buf_fini(&b);
}

/* Whether a rank has used CPU time between the samples: all are in the same operation, which may be
 * a large one. */
static bool is_busy(const struct samples *first, const struct samples *second)
{
    enum { CPU_MS = 30 };
    for (size_t i = 0; i < second->n; i++) {
        const struct sample *a = find_sample(first, second->s[i].rank);
        if (a && second->s[i].cpu_ms >= a->cpu_ms + CPU_MS)
            return true;
    }
    return false;
}

static void name_culprits(const struct court *c, struct verdict *out, bool *moves, bool *stands)
{
    bool stopped =
        count_conduct(c, STOPPED) + count_conduct(c, SILENT) + count_conduct(c, IN_KERNEL) > 0;
    bool outside = count_conduct(c, STANDS) + count_conduct(c, MOVES) > 0;
    for (size_t i = 0; i < c->all->n; i++) {
        if (!is_culprit(c, i, stopped, outside))
            continue;
        bool goes_on = c->conduct[i] == MOVES || (is_behind(c, i) && lacks_cpu(c, true));
        *moves |= goes_on;
        *stands |= !goes_on;
        if (out->n < VERDICT_RANKS)
            out->ranks[out->n++] = c->all->s[i].rank;
    }
}

/* All ranks wait in the same operation, as far as their stacks tell: perhaps one of them has called
 * it from another place, for another group. */
static bool find_majority_by_place(struct court *c)
{
    if (!c->among || c->among->op.number)
        return false;
    c->by_place = true;
    find_majority(c);
    if (2 * c->waiting > count_conduct(c, WAITS))
        return true;
    c->by_place = false;
    find_majority(c);
    return false;
}

void hang_verdict(const struct samples *first, const struct samples *second, struct verdict *out)
{
    struct court c = {.all = second, .conduct = xcalloc(second->n + 1, sizeof(*c.conduct))};
    bool moves = false, stands = false;
    *out = (struct verdict){.state = HANG_NONE};
    for (size_t i = 0; i < second->n; i++)
        c.conduct[i] = conduct_of(find_sample(first, second->s[i].rank), &second->s[i]);
    find_majority(&c);
    name_culprits(&c, out, &moves, &stands);
    if (out->n == 0 && find_majority_by_place(&c))
        name_culprits(&c, out, &moves, &stands);
    if (out->n == 0)
        moves = is_busy(first, second) || lacks_cpu(&c, false);
    /* Without anybody who waits nobody is missed: the job may have nothing to do. */
    if (c.among || count_conduct(&c, STOPPED) + count_conduct(&c, SILENT) > 0) {
        out->state = moves && !stands ? HANG_SUSPECT : HANG_HUNG;
        out->silent = count_conduct(&c, SILENT) > 0;
        if (moves && stands) { /* the ranks that move will come */
            int n = 0;
            for (int i = 0; i < out->n; i++) {
                for (size_t k = 0; k < second->n; k++) {
                    if (second->s[k].rank == out->ranks[i] && c.conduct[k] != MOVES) {
                        out->ranks[n++] = out->ranks[i];
                        break;
                    }
                }
            }
            out->n = n;
        }
        put_text(&c, out);
    }
    free(c.conduct);
}
