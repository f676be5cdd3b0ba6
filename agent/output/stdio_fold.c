#include "agent/output/stdio_fold.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

#define BUCKETS    4096       /* a power of two */
#define HELD_MAX   (4u << 20) /* bytes of all groups; then the oldest are shown */
#define UNIT_MAX   65536      /* bytes of a traceback */
#define MARGIN_MAX 64
#define FLOOD      1024 /* units of a worker that are shown alone within a window */
#define PLACES     (UINT64_C(1) << 32)
#define WAY_MAX    64 /* groups that are looked at to let a worker join one in front */

static const char BEGIN[] = "Traceback (most recent call last):";

struct fold_group {
    TAILQ_ENTRY(fold_group) link, age;
    TAILQ_ENTRY(fold_group) chain; /* in the order of the places */
    uint64_t seed, hash, since_ns, due_ns;
    uint64_t place;            /* rises along the groups */
    const void *writer;        /* of the first unit */
    struct stdio_label *label; /* likewise; one reference */
    int first_rank;            /* global rank of local rank 0 */
    struct rank_set workers;   /* local ranks */
    struct fold_text text;
};

struct fold_rank {
    struct fold_group *last; /* group that the worker has joined; NULL: none is held */
    uint64_t window_ns;
    unsigned alone;   /* units of the worker, shown in this window */
    uint64_t pass_ns; /* the worker is passed over until then */
};

struct fold {
    struct fold_out out;
    _Atomic int nshown; /* workers whose lines come */
    bool *hidden;       /* the other workers, for fold_expect() */
    struct fold_rank *ranks;
    int nranks;
    TAILQ_HEAD(fold_groups, fold_group)
    groups, ages; /* groups in the order in which they are shown; by due_ns */
    struct fold_groups chains[BUCKETS];
    TAILQ_HEAD(, fold_source) open;
    size_t held;
};

struct fold *fold_new(const struct fold_out *out, int nworkers)
{
    struct fold *f = xcalloc(1, sizeof(*f));
    f->out = *out;
    f->nshown = nworkers;
    f->hidden = xcalloc((size_t)nworkers, sizeof(*f->hidden));
    fold_reserve(f, nworkers);
    TAILQ_INIT(&f->groups);
    TAILQ_INIT(&f->ages);
    TAILQ_INIT(&f->open);
    for (size_t i = 0; i < BUCKETS; i++)
        TAILQ_INIT(&f->chains[i]);
    return f;
}

void fold_reserve(struct fold *f, int nworkers)
{
    if (nworkers <= f->nranks)
        return;
    int n = nworkers > 2 * f->nranks ? nworkers : 2 * f->nranks;
    f->ranks = xrealloc(f->ranks, (size_t)n * sizeof(*f->ranks));
    memset(f->ranks + f->nranks, 0, (size_t)(n - f->nranks) * sizeof(*f->ranks));
    f->nranks = n;
}

void fold_set_shown(struct fold *f, int nworkers)
{
    atomic_store(&f->nshown, nworkers);
}

static size_t group_bytes(const struct fold_group *g)
{
    return sizeof(*g) + fold_text_bytes(&g->text) + g->workers.nranges * sizeof(*g->workers.e);
}

static void group_free(struct fold *f, struct fold_group *g)
{
    TAILQ_REMOVE(&f->groups, g, link);
    TAILQ_REMOVE(&f->ages, g, age);
    TAILQ_REMOVE(&f->chains[g->hash % BUCKETS], g, chain);
    for (size_t i = 0; i < g->workers.nranges; i++) {
        for (int k = g->workers.e[i].first; k <= g->workers.e[i].last; k++)
            f->ranks[k].last = f->ranks[k].last == g ? NULL : f->ranks[k].last;
    }
    f->held -= group_bytes(g);
    stdio_label_unref(g->label);
    fold_text_fini(&g->text);
    rank_set_fini(&g->workers);
    free(g);
}

void fold_free(struct fold *f)
{
    if (!f)
        return;
    while (!TAILQ_EMPTY(&f->groups))
        group_free(f, TAILQ_FIRST(&f->groups));
    free(f->ranks);
    free(f->hidden);
    free(f);
}

void fold_expect(struct fold *f, int local_rank, bool comes)
{
    if (f->hidden[local_rank] == comes)
        atomic_fetch_add(&f->nshown, comes ? 1 : -1);
    f->hidden[local_rank] = !comes;
}

/* -------------------------------------------------------------------------------------- showing */

/* A unit of the worker is shown that no other worker had. */
static void count_alone(struct fold_rank *r, uint64_t now_ns)
{
    if (now_ns - r->window_ns > FOLD_WINDOW_NS) {
        r->window_ns = now_ns;
        r->alone = 0;
    }
    if (++r->alone >= FLOOD)
        r->pass_ns = now_ns + FOLD_WINDOW_NS;
}

/* Shows the group that stands first. */
static void show_first(struct fold *f, uint64_t now_ns)
{
    struct fold_group *g = TAILQ_FIRST(&f->groups);
    const struct fold_shown shown = {.label = g->label,
                                     .writer = g->writer,
                                     .workers = &g->workers,
                                     .first_rank = g->first_rank,
                                     .text = &g->text,
                                     .since_ns = g->since_ns};
    if (g->workers.n == 1)
        count_alone(&f->ranks[g->label->local_rank], now_ns);
    f->out.show(f->out.arg, &shown, now_ns);
    group_free(f, g);
}

/* Shows the groups up to this one. */
static void show_until(struct fold *f, const struct fold_group *last, uint64_t now_ns)
{
    for (bool done = false; !done;) {
        done = TAILQ_FIRST(&f->groups) == last;
        show_first(f, now_ns);
    }
}

static void show_ready(struct fold *f, uint64_t now_ns)
{
    struct fold_group *g;
    int nshown = atomic_load(&f->nshown);
    while ((g = TAILQ_FIRST(&f->groups)) && (g->workers.n >= nshown || f->held > HELD_MAX))
        show_first(f, now_ns);
    while ((g = TAILQ_FIRST(&f->ages)) && g->due_ns <= now_ns)
        show_until(f, g, now_ns);
}

/* ---------------------------------------------------------------------------------------- units */

static struct fold_group *group_new(struct fold *f, const struct fold_unit *u, uint64_t seed,
                                    uint64_t hash)
{
    struct fold_group *g = xcalloc(1, sizeof(*g)), *older;
    g->seed = seed;
    g->hash = hash;
    g->since_ns = u->since_ns;
    g->due_ns = u->due_ns;
    g->writer = u->writer;
    g->label = stdio_label_ref(u->label);
    g->first_rank = u->label->rank - u->label->local_rank;
    fold_text_init(&g->text, u->text[0], u->len[0]);
    f->held += group_bytes(g);
    const struct fold_group *newest = TAILQ_LAST(&f->groups, fold_groups);
    g->place = (newest ? newest->place : 0) + PLACES;
    TAILQ_INSERT_TAIL(&f->groups, g, link);
    older = TAILQ_LAST(&f->ages, fold_groups);
    while (older && older->due_ns > g->due_ns)
        older = TAILQ_PREV(older, fold_groups, age);
    if (older)
        TAILQ_INSERT_AFTER(&f->ages, older, g, age);
    else
        TAILQ_INSERT_HEAD(&f->ages, g, age);
    TAILQ_INSERT_TAIL(&f->chains[hash % BUCKETS], g, chain);
    return g;
}

static void move_before(struct fold *f, struct fold_group *g, struct fold_group *at)
{
    struct fold_groups *chain = &f->chains[g->hash % BUCKETS];
    TAILQ_REMOVE(&f->groups, g, link);
    TAILQ_INSERT_BEFORE(at, g, link);
    struct fold_group *x = TAILQ_PREV(g, fold_groups, link);
    uint64_t low = x ? x->place : 0, place = 0;
    g->place = low + (at->place - low) / 2;
    if (g->place == low) { /* no number is left between the two */
        TAILQ_FOREACH(x, &f->groups, link)
        x->place = place += PLACES;
    }
    while ((x = TAILQ_PREV(g, fold_groups, chain)) && x->place > g->place) {
        TAILQ_REMOVE(chain, g, chain);
        TAILQ_INSERT_BEFORE(x, g, chain);
    }
}

/* Makes g a group that the workers may join, although one of them has joined `last` behind it: what
 * stands in between and is theirs alone moves in front of g. False: others share some of it. */
static bool make_way(struct fold *f, struct fold_group *g, const struct rank_set *workers,
                     struct fold_group *last)
{
    struct fold_group *x = last, *before = g;
    if (rank_set_meets(&g->workers, workers))
        return false;
    for (int n = 0; x != g; x = TAILQ_PREV(x, fold_groups, link)) {
        if (++n > WAY_MAX ||
            (rank_set_meets(&x->workers, workers) && !rank_set_within(&x->workers, workers)))
            return false;
    }
    for (struct fold_group *next = last; (x = next) != g;) {
        next = TAILQ_PREV(x, fold_groups, link);
        if (rank_set_meets(&x->workers, workers)) {
            move_before(f, x, before);
            before = x;
        }
    }
    return true;
}

static bool unit_alike(struct fold_group *g, const struct fold_unit *u)
{
    return fold_text_alike(&g->text, u->text[0], u->len[0], false) &&
           (u->len[1] == 0 || fold_text_alike(&g->text, u->text[1], u->len[1], false));
}

/* The last of the groups that one of the workers was the last to join; NULL: none is held. */
static struct fold_group *last_group(const struct fold *f, const struct rank_set *workers)
{
    struct fold_group *last = NULL;
    for (size_t i = 0; i < workers->nranges; i++) {
        for (int k = workers->e[i].first; k <= workers->e[i].last; k++) {
            struct fold_group *g = f->ranks[k].last;
            if (g && (!last || g->place > last->place))
                last = g;
        }
    }
    return last;
}

/* The group that the unit joins, or NULL: the first behind all that its workers have joined, or one
 * in front of that. */
static struct fold_group *find_group(struct fold *f, uint64_t hash, const struct fold_unit *u)
{
    struct fold_group *g = TAILQ_FIRST(&f->chains[hash % BUCKETS]), *front = NULL;
    struct fold_group *last = last_group(f, u->workers);
    if (last && last->hash == hash) /* the worker prints its last line again */
        g = front = last;
    for (; g; g = TAILQ_NEXT(g, chain)) {
        if (g->hash != hash)
            continue;
        if (last && g->place <= last->place)
            front = g;
        else if (unit_alike(g, u))
            return g;
    }
    return front && unit_alike(front, u) && make_way(f, front, u->workers, last) ? front : NULL;
}

/* The group right behind the one that a worker has joined last, if it has the very same text: the
 * one that find_group() would find, without a hash. NULL: it has not. */
static struct fold_group *same_group(const struct fold *f, const struct fold_unit *u, uint64_t seed)
{
    if (u->workers->n != 1 || u->len[1])
        return NULL;
    struct fold_group *last = f->ranks[u->workers->e[0].first].last;
    struct fold_group *g = last ? TAILQ_NEXT(last, link) : TAILQ_FIRST(&f->groups);
    bool same = g && g->seed == seed && g->text.len == u->len[0] &&
                memcmp(g->text.text, u->text[0], u->len[0]) == 0;
    return same ? g : NULL;
}

void fold_join(struct fold *f, const struct fold_unit *u, uint64_t now_ns)
{
    uint64_t seed = (uint64_t)(u->label->rank - u->label->local_rank) << 1 |
                    (f->out.by_stream && u->label->is_err);
    struct fold_group *g = same_group(f, u, seed);
    bool notes = false;
    if (!g) {
        uint64_t hash = fold_text_hash(u->text[0], u->len[0], seed);
        g = find_group(f, hash, u);
        notes = g != NULL;
        g = g ? g : group_new(f, u, seed, hash);
    }
    f->held -= group_bytes(g);
    if (notes)
        fold_text_alike(&g->text, u->text[0], u->len[0], true);
    if (u->len[1])
        fold_text_alike(&g->text, u->text[1], u->len[1], true);
    for (size_t i = 0; i < u->workers->nranges; i++) {
        rank_set_add(&g->workers, u->workers->e[i]);
        for (int k = u->workers->e[i].first; k <= u->workers->e[i].last; k++) {
            struct fold_rank *r = &f->ranks[k];
            if (!r->last || g->place > r->last->place)
                r->last = g;
        }
    }
    f->held += group_bytes(g);
    show_ready(f, now_ns);
}

static void put_unit(struct fold *f, const struct fold_source *s, const uint8_t *p, size_t len,
                     uint64_t now_ns)
{
    struct rank_range own = {s->label->local_rank, s->label->local_rank};
    const struct rank_set workers = {.e = &own, .nranges = 1, .n = 1};
    const struct fold_unit u = {.label = s->label,
                                .writer = s->writer,
                                .workers = &workers,
                                .text = {p},
                                .len = {len},
                                .since_ns = now_ns,
                                .due_ns = now_ns + f->out.window_ns};
    fold_join(f, &u, now_ns);
}

static void close_unit(struct fold *f, struct fold_source *s, uint64_t now_ns)
{
    if (!s->open)
        return;
    TAILQ_REMOVE(&f->open, s, link);
    s->open = false;
    put_unit(f, s, s->unit.data, s->unit.len, now_ns);
    buf_fini(&s->unit);
}

static void grow_unit(struct fold_source *s, const uint8_t *line, size_t len, uint64_t now_ns)
{
    xbuf_reserve(&s->unit, len);
    buf_put(&s->unit, line, len);
    s->last_ns = now_ns;
}

/* Whether a traceback begins with this line; *margin: what stands in front of it. */
static bool begins(const uint8_t *line, size_t len, size_t *margin)
{
    while (len && (line[len - 1] == '\n' || line[len - 1] == '\r'))
        len--;
    size_t n = sizeof(BEGIN) - 1;
    *margin = len - n;
    return len >= n && *margin <= MARGIN_MAX && memcmp(line + *margin, BEGIN, n) == 0;
}

/* The frames of a traceback are indented; the first line that is not indented ends the
 * traceback. */
static bool is_frame(const struct fold_source *s, const uint8_t *line, size_t len)
{
    return len > s->margin && memcmp(line, s->unit.data, s->margin) == 0 &&
           line[s->margin] == ' ' && s->unit.len < UNIT_MAX;
}

static void put_line(struct fold *f, struct fold_source *s, const uint8_t *line, size_t len,
                     uint64_t now_ns)
{
    size_t margin;
    if (s->open && s->unit.len < UNIT_MAX) {
        bool last = !is_frame(s, line, len);
        grow_unit(s, line, len, now_ns);
        if (last)
            close_unit(f, s, now_ns);
        return;
    }
    close_unit(f, s, now_ns);
    if (begins(line, len, &margin)) {
        s->margin = margin;
        s->open = true;
        TAILQ_INSERT_TAIL(&f->open, s, link);
        grow_unit(s, line, len, now_ns);
    } else {
        put_unit(f, s, line, len, now_ns);
    }
}

size_t fold_put(struct fold *f, struct fold_source *s, const uint8_t *p, size_t len,
                uint64_t now_ns)
{
    struct fold_rank *r = &f->ranks[s->label->local_rank];
    const uint8_t *at = p, *end = p + len;
    while (at < end && r->pass_ns <= now_ns) {
        const uint8_t *nl = memchr(at, '\n', (size_t)(end - at));
        assert(nl);
        put_line(f, s, at, (size_t)(nl + 1 - at), now_ns);
        at = nl + 1;
    }
    if (at < end)
        fold_settle(f, s, now_ns);
    return (size_t)(at - p);
}

void fold_settle(struct fold *f, struct fold_source *s, uint64_t now_ns)
{
    close_unit(f, s, now_ns);
    fold_settle_worker(f, s->label->local_rank, now_ns);
}

void fold_settle_worker(struct fold *f, int local_rank, uint64_t now_ns)
{
    struct fold_group *last = f->ranks[local_rank].last;
    if (last)
        show_until(f, last, now_ns);
}

void fold_end(struct fold *f, struct fold_source *s, uint64_t now_ns)
{
    close_unit(f, s, now_ns);
}

/* ---------------------------------------------------------------------------------------- times */

uint64_t fold_due_ns(const struct fold *f)
{
    const struct fold_group *g = TAILQ_FIRST(&f->ages);
    uint64_t due = g ? g->due_ns : 0;
    const struct fold_source *s;
    TAILQ_FOREACH(s, &f->open, link)
    {
        uint64_t at = s->last_ns + f->out.window_ns;
        if (due == 0 || at < due)
            due = at;
    }
    return due;
}

void fold_show(struct fold *f, uint64_t now_ns)
{
    struct fold_source *s, *next;
    for (s = TAILQ_FIRST(&f->open); s; s = next) {
        next = TAILQ_NEXT(s, link);
        if (s->last_ns + f->out.window_ns <= now_ns)
            close_unit(f, s, now_ns);
    }
    show_ready(f, now_ns);
}

void fold_show_all(struct fold *f, uint64_t now_ns)
{
    while (!TAILQ_EMPTY(&f->open))
        close_unit(f, TAILQ_FIRST(&f->open), now_ns);
    while (!TAILQ_EMPTY(&f->groups))
        show_first(f, now_ns);
}
