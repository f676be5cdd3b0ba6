#include "agent/output/stdio_fold.h"

#include <assert.h>
#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/escape.h"
#include "core/mem.h"

#define BUCKETS    4096       /* a power of two */
#define HELD_MAX   (4u << 20) /* bytes of all groups; then the oldest are shown */
#define UNIT_MAX   65536      /* bytes of a traceback */
#define MARGIN_MAX 64
#define FLOOD      1024 /* units of a worker that are shown alone within a window */
#define PLACES     (UINT64_C(1) << 32)
#define WAY_MAX    64  /* groups that are looked at to let a worker join one in front */
#define RANGES_MAX 12  /* in a set of ranks */
#define NUMBER_MAX 40  /* bytes of a number that may differ from others */
#define DIFFER_MAX 256 /* numbers of two units that may */

static const char BEGIN[] = "Traceback (most recent call last):";

/* A number that is not the same in all units of the group. */
struct fold_number {
    uint32_t at, len; /* in the text of the first unit */
    double low, high;
    char text[2][NUMBER_MAX + 1]; /* as the units had them */
};

struct fold_group {
    TAILQ_ENTRY(fold_group) link, age;
    TAILQ_ENTRY(fold_group) chain; /* in the order of the places */
    uint64_t hash, due_ns;
    uint64_t place;            /* rises along the groups */
    const void *writer;        /* of the first unit */
    struct stdio_label *label; /* likewise; one reference */
    int first_rank;            /* global rank of local rank 0 */
    int n;                     /* units */
    struct fold_number *numbers;
    size_t nnumbers;
    size_t len;
    uint8_t *text;  /* the first unit */
    uint64_t set[]; /* local ranks */
};

struct fold_rank {
    struct fold_group *last; /* that it has joined; NULL: none is held */
    uint64_t window_ns;
    unsigned alone;   /* of its units, shown in this window */
    uint64_t pass_ns; /* it is passed over until then */
};

struct fold {
    struct console *console;
    int nworkers;
    _Atomic int nshown; /* workers whose lines come */
    bool *hidden;       /* the others, for fold_expect() */
    size_t words;       /* of a set */
    struct fold_rank *ranks;
    TAILQ_HEAD(fold_groups, fold_group) groups, ages; /* as they are shown; as they began */
    struct fold_groups chains[BUCKETS];
    TAILQ_HEAD(, fold_source) open;
    size_t held;
    struct buf page;
};

struct fold *fold_new(struct console *c, int nworkers)
{
    struct fold *f = xcalloc(1, sizeof(*f));
    f->console = c;
    f->nworkers = nworkers;
    f->nshown = nworkers;
    f->hidden = xcalloc((size_t)nworkers, sizeof(*f->hidden));
    f->words = ((size_t)nworkers + 63) / 64;
    f->ranks = xcalloc((size_t)nworkers, sizeof(*f->ranks));
    TAILQ_INIT(&f->groups);
    TAILQ_INIT(&f->ages);
    TAILQ_INIT(&f->open);
    for (size_t i = 0; i < BUCKETS; i++)
        TAILQ_INIT(&f->chains[i]);
    return f;
}

static size_t group_bytes(const struct fold *f, const struct fold_group *g)
{
    return sizeof(*g) + f->words * sizeof(*g->set) + g->len;
}

static void group_free(struct fold *f, struct fold_group *g)
{
    TAILQ_REMOVE(&f->groups, g, link);
    TAILQ_REMOVE(&f->ages, g, age);
    TAILQ_REMOVE(&f->chains[g->hash % BUCKETS], g, chain);
    for (int i = 0; i < f->nworkers; i++) {
        if (f->ranks[i].last == g)
            f->ranks[i].last = NULL;
    }
    f->held -= group_bytes(f, g);
    stdio_label_unref(g->label);
    free(g->numbers);
    free(g->text);
    free(g);
}

void fold_free(struct fold *f)
{
    if (!f)
        return;
    while (!TAILQ_EMPTY(&f->groups))
        group_free(f, TAILQ_FIRST(&f->groups));
    buf_fini(&f->page);
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

/* -------------------------------------------------------------------------------------- numbers */

static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

/* The length of the number at p, which begins with a digit, or with a sign if `before`, the byte in
 * front of it, is not a part of a word; 0: there is none. */
static size_t number_at(const uint8_t *p, const uint8_t *end, uint8_t before)
{
    const uint8_t *q = p;
    if (*q == '-' && q + 1 < end && !isalnum(before) && before != '-')
        q++;
    if (!is_digit(*q))
        return 0;
    if (*q == '0' && end - q > 2 && (q[1] | 0x20) == 'x' && isxdigit(q[2])) {
        for (q += 2; q < end && isxdigit(*q);)
            q++;
        return (size_t)(q - p);
    }
    while (q < end && is_digit(*q))
        q++;
    while (end - q > 1 && *q == '.' && is_digit(q[1])) { /* more than once in an address */
        for (q++; q < end && is_digit(*q);)
            q++;
    }
    if (end - q > 2 && (*q | 0x20) == 'e' && (q[1] == '-' || q[1] == '+') && is_digit(q[2])) {
        for (q += 2; q < end && is_digit(*q);)
            q++;
    }
    return (size_t)(q - p);
}

/* Of the text with each number replaced by one and the same sign (FNV-1a). */
static uint64_t hash_of(const uint8_t *p, size_t len, uint64_t h)
{
    uint8_t before = '\n';
    for (const uint8_t *end = p + len; p < end;) {
        size_t n = is_digit(*p) || *p == '-' ? number_at(p, end, before) : 0;
        uint8_t c = n ? '0' : *p;
        h = (h ^ c) * UINT64_C(0x100000001b3);
        p += n ? n : 1;
        before = p[-1];
    }
    return h;
}

static double number_value(const uint8_t *p, size_t n, char text[NUMBER_MAX + 1])
{
    memcpy(text, p, n);
    text[n] = '\0';
    char *dot = strchr(text, '.');
    if (!dot || !strchr(dot + 1, '.'))
        return strtod(text, NULL);
    double v = 0; /* 10.0.0.9 is less than 10.0.0.11 */
    for (char *part = text; *part; part += strspn(part, "."))
        v = 1000 * v + (double)strtol(part, &part, 10);
    return v;
}

/* Which of two numbers is the greater: of those that a double does not tell apart the one with more
 * digits, or with the greater ones. */
static int compare_numbers(double a, const char *ta, double b, const char *tb)
{
    size_t na = strlen(ta), nb = strlen(tb);
    if (a != b)
        return a < b ? -1 : 1;
    return na != nb ? (na < nb ? -1 : 1) : strcmp(ta, tb);
}

/* *from: of the numbers of the group, the first that may be at `at`; they are noted in their order.
 */
static void note_number(struct fold_group *g, size_t *from, size_t at, size_t first_len,
                        const uint8_t *p, size_t n)
{
    struct fold_number *x = g->numbers;
    char text[NUMBER_MAX + 1];
    size_t i = *from;
    while (i < g->nnumbers && x[i].at < at)
        i++;
    *from = i;
    if (i == g->nnumbers || x[i].at != at) {
        x = g->numbers = xrealloc(x, (g->nnumbers + 1) * sizeof(*x));
        memmove(&x[i + 1], &x[i], (g->nnumbers++ - i) * sizeof(*x));
        x[i] = (struct fold_number){.at = (uint32_t)at, .len = (uint32_t)first_len};
        x[i].low = x[i].high = number_value(g->text + at, first_len, x[i].text[0]);
        memcpy(x[i].text[1], x[i].text[0], sizeof(text));
    }
    double v = number_value(p, n, text);
    bool high = compare_numbers(v, text, x[i].high, x[i].text[1]) > 0;
    if (high || compare_numbers(v, text, x[i].low, x[i].text[0]) < 0) {
        *(high ? &x[i].high : &x[i].low) = v;
        memcpy(x[i].text[high], text, sizeof(text));
    }
}

/* Whether the texts differ only in numbers; `note`: keeps those that differ with the group. */
static bool alike(struct fold_group *g, const uint8_t *q, size_t len, bool note)
{
    const uint8_t *p = g->text, *pend = p + g->len, *qend = q + len;
    size_t noted = 0, differ = 0;
    uint8_t before = '\n';
    if (len == g->len && memcmp(p, q, len) == 0 && !g->nnumbers)
        return true;
    while (p < pend && q < qend) {
        bool maybe = (is_digit(*p) || *p == '-') && (is_digit(*q) || *q == '-');
        size_t n = maybe ? number_at(p, pend, before) : 0, m = n ? number_at(q, qend, before) : 0;
        if (m == 0 && *p != *q)
            return false;
        if (m && (n != m || memcmp(p, q, n) != 0)) {
            if (n > NUMBER_MAX || m > NUMBER_MAX || ++differ > DIFFER_MAX)
                return false;
            if (note)
                note_number(g, &noted, (size_t)(p - g->text), n, q, m);
        }
        p += m ? n : 1;
        q += m ? m : 1;
        before = p[-1];
    }
    return p == pend && q == qend;
}

/* -------------------------------------------------------------------------------------- showing */

static bool has(const struct fold_group *g, int local)
{
    return g->set[local / 64] >> (local % 64) & 1;
}

/* Writes "[0-3,8]: ". */
static void put_set(const struct fold *f, const struct fold_group *g, struct buf *b)
{
    char text[32];
    int ranges = 0, left = g->n;
    buf_put(b, "[", 1);
    for (int i = 0, last; i < f->nworkers && left; i = last + 1) {
        last = i;
        if (!has(g, i))
            continue;
        while (last + 1 < f->nworkers && has(g, last + 1))
            last++;
        int n = last - i + 1, from = g->first_rank + i, len;
        if (ranges++ == RANGES_MAX) {
            len = snprintf(text, sizeof(text), " and %d more", left);
            buf_put(b, text, (size_t)len);
            break;
        }
        left -= n;
        len = snprintf(text, sizeof(text), n > 1 ? "%s%d-%d" : "%s%d", ranges > 1 ? "," : "", from,
                       from + n - 1);
        buf_put(b, text, (size_t)len);
    }
    buf_put(b, "]: ", 3);
}

/* Writes the text of the group, with ranges in place of numbers that differ. */
static void put_text(const struct fold_group *g, struct buf *b)
{
    size_t at = 0;
    for (size_t i = 0; i < g->nnumbers; i++) {
        const struct fold_number *x = &g->numbers[i];
        buf_put(b, g->text + at, x->at - at);
        buf_put(b, x->text[0], strlen(x->text[0]));
        if (strcmp(x->text[0], x->text[1]) != 0) {
            buf_put(b, "..", 2);
            buf_put(b, x->text[1], strlen(x->text[1]));
        }
        at = x->at + x->len;
    }
    buf_put(b, g->text + at, g->len - at);
}

/* Writes what a terminal may be given. */
static void put_visibly(struct buf *b, const uint8_t *p, size_t len)
{
    while (len) {
        size_t n = escape_span(p, len, ESCAPE_TERMINAL);
        buf_put(b, p, n);
        p += n;
        len -= n;
        if (len) {
            char shown[ESCAPE_SHOWN_LEN];
            escape_show(shown, *p);
            buf_put(b, shown, sizeof(shown));
            p++;
            len--;
        }
    }
}

static size_t count_lines(const uint8_t *p, size_t len)
{
    size_t n = 0;
    for (const uint8_t *end = p + len, *nl; (nl = memchr(p, '\n', (size_t)(end - p))); p = nl + 1)
        n++;
    return n;
}

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

/* Shows the oldest group. */
static void show_first(struct fold *f, uint64_t now_ns)
{
    struct fold_group *g = TAILQ_FIRST(&f->groups);
    struct buf prefix = BUF_INIT, text = BUF_INIT;
    if (g->n > 1) {
        put_set(f, g, &prefix);
    } else {
        buf_put(&prefix, g->label->prefix, g->label->prefix_len);
        count_alone(&f->ranks[g->label->local_rank], now_ns);
    }
    put_text(g, &text);
    size_t lines = count_lines(text.data, text.len), at = 0;
    bool cut = g->n > 1 && lines > FOLD_LINES;
    f->page.len = 0;
    for (uint8_t *p = text.data, *end = p + text.len, *stop; p < end; p = stop, at++) {
        uint8_t *nl = memchr(p, '\n', (size_t)(end - p)), *cr;
        stop = nl + 1; /* units are whole lines */
        if (cut && at >= FOLD_LINES / 2 && at < lines - (FOLD_LINES / 2 - 1)) {
            char left_out[48];
            int n = snprintf(left_out, sizeof(left_out), "[%zu lines left out]\n",
                             lines - (FOLD_LINES - 1));
            if (at == FOLD_LINES / 2) {
                buf_put(&f->page, prefix.data, prefix.len);
                buf_put(&f->page, left_out, (size_t)n);
            }
            continue;
        }
        do { /* a carriage return, unless it ends the line, is followed by the prefix again */
            cr = memchr(p, '\r', (size_t)(stop - p));
            uint8_t *to = cr && cr + 1 < nl ? cr + 1 : stop;
            buf_put(&f->page, prefix.data, prefix.len);
            if (f->console->tty)
                put_visibly(&f->page, p, (size_t)(to - p));
            else
                buf_put(&f->page, p, (size_t)(to - p));
            p = to;
        } while (p < stop);
    }
    if (f->page.len)
        console_put(f->console, g->n > 1 ? f : g->writer, g->label, f->page.data, f->page.len,
                    now_ns);
    if (f->page.cap > 65536)
        buf_fini(&f->page);
    buf_fini(&prefix);
    buf_fini(&text);
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
    while ((g = TAILQ_FIRST(&f->groups)) && (g->n >= nshown || f->held > HELD_MAX))
        show_first(f, now_ns);
    while ((g = TAILQ_FIRST(&f->ages)) && g->due_ns <= now_ns)
        show_until(f, g, now_ns);
}

/* ---------------------------------------------------------------------------------------- units */

static struct fold_group *group_new(struct fold *f, const struct fold_source *s, uint64_t hash,
                                    const uint8_t *p, size_t len, uint64_t now_ns)
{
    struct fold_group *g = xcalloc(1, sizeof(*g) + f->words * sizeof(*g->set));
    g->hash = hash;
    g->due_ns = now_ns + FOLD_WINDOW_NS;
    g->writer = s->writer;
    g->label = stdio_label_ref(s->label);
    g->first_rank = s->label->rank - s->label->local_rank;
    g->text = xmalloc(len);
    g->len = len;
    memcpy(g->text, p, len);
    f->held += group_bytes(f, g);
    const struct fold_group *newest = TAILQ_LAST(&f->groups, fold_groups);
    g->place = (newest ? newest->place : 0) + PLACES;
    TAILQ_INSERT_TAIL(&f->groups, g, link);
    TAILQ_INSERT_TAIL(&f->ages, g, age);
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

/* Makes g a group that the worker may join, although it has joined `last` behind it: what stands in
 * between and is the worker's alone moves in front of g. False: others share some of it. */
static bool make_way(struct fold *f, struct fold_group *g, int local, struct fold_group *last)
{
    struct fold_group *x = last, *before = g;
    for (int n = 0; x != g; x = TAILQ_PREV(x, fold_groups, link)) {
        if (++n > WAY_MAX || (has(x, local) && x->n > 1))
            return false;
    }
    if (has(g, local))
        return false;
    for (struct fold_group *next = last; (x = next) != g;) {
        next = TAILQ_PREV(x, fold_groups, link);
        if (has(x, local)) {
            move_before(f, x, before);
            before = x;
        }
    }
    return true;
}

/* The group that a unit of the worker joins, or NULL: the first behind the last one that it has
 * joined, or one in front of that. */
static struct fold_group *find_group(struct fold *f, uint64_t hash, int local, const uint8_t *p,
                                     size_t len)
{
    struct fold_group *g = TAILQ_FIRST(&f->chains[hash % BUCKETS]), *front = NULL;
    struct fold_group *last = f->ranks[local].last;
    if (last && last->hash == hash) /* the same line again */
        g = front = last;
    for (; g; g = TAILQ_NEXT(g, chain)) {
        if (g->hash != hash)
            continue;
        if (last && g->place <= last->place)
            front = g;
        else if (alike(g, p, len, false))
            return g;
    }
    return front && alike(front, p, len, false) && make_way(f, front, local, last) ? front : NULL;
}

/* Puts a unit into its group, or begins one. */
static void put_unit(struct fold *f, const struct fold_source *s, const uint8_t *p, size_t len,
                     uint64_t now_ns)
{
    int local = s->label->local_rank;
    struct fold_rank *r = &f->ranks[local];
    uint64_t hash = hash_of(p, len, (uint64_t)(s->label->rank - local));
    struct fold_group *g = find_group(f, hash, local, p, len);
    if (g)
        alike(g, p, len, true);
    else
        g = r->last = group_new(f, s, hash, p, len, now_ns);
    assert(!has(g, local));
    g->set[local / 64] |= UINT64_C(1) << (local % 64);
    g->n++;
    if (!r->last || g->place > r->last->place)
        r->last = g;
    show_ready(f, now_ns);
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

/* The frames of a traceback are indented; the first line that is not ends it. */
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
    struct fold_group *last = f->ranks[s->label->local_rank].last;
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
        uint64_t at = s->last_ns + FOLD_WINDOW_NS;
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
        if (s->last_ns + FOLD_WINDOW_NS <= now_ns)
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
