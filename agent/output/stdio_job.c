#include "agent/output/stdio_job.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "agent/output/fold_console.h"
#include "agent/output/stdio_fold.h"
#include "core/mem.h"

/* A line waits for those of its own node, then for those of other nodes: this long in all, and so
 * much after it has come. */
#define SOURCE_NS (FOLD_WINDOW_NS / 2)
#define SINK_NS   (FOLD_WINDOW_NS + FOLD_WINDOW_NS / 10)
#define LATE_NS   (FOLD_WINDOW_NS / 4)

enum record { UNIT = 1, BYTES, END, BEGIN };

struct page {
    struct page *next;
    struct buf b;
};

struct pages {
    struct page *first, **end;
    size_t bytes;
};

/* Output of a rank that is no whole unit. */
struct sink_rank {
    struct stdio_stream *stream[2]; /* NULL: nothing has come */
    char writer;                    /* whose address stands for the rank on the consoles */
};

struct stdio_job {
    struct stdio_job_opts opts;
    struct console console; /* of the source */
    struct console_job put;
    struct fold *source, *sink; /* NULL: not folded */
    struct fold_console shown;
    struct sink_rank **ranks; /* NULL: nothing has come of a rank */
    int nranks;
    _Atomic size_t kept; /* bytes in pages that no sink has taken */

    pthread_mutex_t lock;
    struct pages out, in; /* lock */
    bool full;            /* lock; stdio_job_add() has said so */
};

static void pages_init(struct pages *l)
{
    *l = (struct pages){.end = &l->first};
}

/* The last page, if it is not large enough, or a new one. */
static struct buf *pages_open(struct pages *l)
{
    struct page *last = l->first ? container_of(l->end, struct page, next) : NULL;
    if (last && last->b.len < STDIO_JOB_PAGE)
        return &last->b;
    struct page *p = xcalloc(1, sizeof(*p));
    *l->end = p;
    l->end = &p->next;
    return &p->b;
}

static struct buf pages_next(struct pages *l)
{
    struct page *p = l->first;
    struct buf b = BUF_INIT;
    if (!p)
        return b;
    b = p->b;
    l->bytes -= b.len;
    l->first = p->next;
    if (!p->next)
        l->end = &l->first;
    free(p);
    return b;
}

static void pages_fini(struct pages *l)
{
    for (struct buf b; (b = pages_next(l)).len;)
        buf_fini(&b);
}

/* ----------------------------------------------------------------------------------- the source */

static void put_text(struct buf *b, const void *p, size_t n)
{
    buf_u32(b, (uint32_t)n);
    buf_put(b, p, n);
}

/* Sends a record. */
static void job_send(struct stdio_job *j, struct buf *record)
{
    xbuf_reserve(record, 0);
    pthread_mutex_lock(&j->lock);
    struct buf *page = pages_open(&j->out);
    xbuf_reserve(page, record->len);
    buf_put(page, record->data, record->len);
    j->out.bytes += record->len;
    pthread_mutex_unlock(&j->lock);
    atomic_fetch_add(&j->kept, record->len);
    buf_fini(record);
    j->opts.on_page(j->opts.arg);
}

static void put_unit(void *arg, const struct fold_shown *g, uint64_t now_ns)
{
    struct stdio_job *j = arg;
    const struct rank_set *w = g->workers;
    struct buf b = BUF_INIT, text = BUF_INIT;
    bool differ = g->text->nnumbers > 0, listed = g->text->nnumbers <= FOLD_NUMBERS_MAX;
    buf_u8(&b, UNIT);
    buf_u8(&b, g->label->is_err);
    put_text(&b, g->label->prefix, g->label->prefix_len);
    buf_u32(&b, (uint32_t)((now_ns - g->since_ns) / 1000));
    buf_u32(&b, (uint32_t)w->nranges);
    for (size_t i = 0; i < w->nranges; i++) {
        buf_u32(&b, (uint32_t)(g->first_rank + w->e[i].first));
        buf_u32(&b, (uint32_t)(g->first_rank + w->e[i].last));
    }
    fold_text_put(g->text, listed ? FOLD_LOW : FOLD_BOTH, &text);
    put_text(&b, text.data, text.len);
    text.len = 0;
    if (differ && listed)
        fold_text_put(g->text, FOLD_HIGH, &text);
    put_text(&b, text.data, text.len);
    buf_fini(&text);
    job_send(j, &b);
}

static void put_bytes(void *arg, const struct stdio_label *who, const void *data, size_t n)
{
    struct buf b = BUF_INIT;
    buf_u8(&b, BYTES);
    buf_u8(&b, who->is_err);
    put_text(&b, who->prefix, who->prefix_len);
    buf_u32(&b, (uint32_t)who->rank);
    put_text(&b, data, n);
    job_send(arg, &b);
}

void stdio_job_forget(struct stdio_job *j, int rank)
{
    struct buf b = BUF_INIT;
    buf_u8(&b, END);
    buf_u32(&b, (uint32_t)rank);
    job_send(j, &b);
}

struct console *stdio_job_console(struct stdio_job *j)
{
    return &j->console;
}

struct fold *stdio_job_fold(struct stdio_job *j)
{
    return j->source;
}

static size_t job_kept(void *arg)
{
    return atomic_load(&((struct stdio_job *)arg)->kept);
}

static struct buf next_page(struct stdio_job *j, struct pages *l)
{
    pthread_mutex_lock(&j->lock);
    struct buf b = pages_next(l);
    pthread_mutex_unlock(&j->lock);
    return b;
}

struct buf stdio_job_next_page(struct stdio_job *j)
{
    return next_page(j, &j->out);
}

bool stdio_job_taken(struct stdio_job *j, size_t n)
{
    return atomic_fetch_sub(&j->kept, n) > STDIO_CONSOLE_BACKLOG / 2;
}

/* ------------------------------------------------------------------------------------- the sink */

static struct sink_rank *sink_rank(struct stdio_job *j, int rank)
{
    if (rank >= j->nranks) {
        int n = rank + 1 > 2 * j->nranks ? rank + 1 : 2 * j->nranks;
        j->ranks = xrealloc(j->ranks, (size_t)n * sizeof(*j->ranks));
        memset(j->ranks + j->nranks, 0, (size_t)(n - j->nranks) * sizeof(*j->ranks));
        j->nranks = n;
        fold_reserve(j->sink, n);
    }
    if (!j->ranks[rank])
        j->ranks[rank] = xcalloc(1, sizeof(*j->ranks[rank]));
    return j->ranks[rank];
}

static void end_streams(struct stdio_job *j, struct sink_rank *r, uint64_t now_ns)
{
    for (int i = 0; i < 2; i++) {
        struct stdio_stream *s = r->stream[i];
        if (s) {
            stream_end(s, j->opts.buffers, now_ns);
            j->opts.on_stream(j->opts.arg, s);
            free(s);
        }
        r->stream[i] = NULL;
        console_forget(j->opts.route[i], &r->writer);
    }
}

static void end_all_streams(struct stdio_job *j, uint64_t now_ns)
{
    for (int i = 0; i < j->nranks; i++) {
        if (j->ranks[i])
            end_streams(j, j->ranks[i], now_ns);
    }
}

/* The prefix in a record, terminated; malloc'ed. */
static char *take_prefix(struct rd *r)
{
    size_t n = rd_u32(r);
    const uint8_t *p = rd_take(r, n);
    return xstrndup(p ? (const char *)p : "", p ? n : 0);
}

/* Whole lines. */
static const uint8_t *take_lines(struct rd *r, size_t *n)
{
    *n = rd_u32(r);
    const uint8_t *p = rd_take(r, *n);
    if (p && *n && p[*n - 1] != '\n')
        r->bad = true;
    return p;
}

static int take_rank(const struct stdio_job *j, struct rd *r)
{
    uint32_t rank = rd_u32(r);
    r->bad |= rank >= (uint32_t)j->opts.nranks;
    return r->bad ? 0 : (int)rank;
}

static void take_unit(struct stdio_job *j, struct rd *r, uint64_t now_ns)
{
    struct rank_set workers = {0};
    bool is_err = rd_u8(r) != 0;
    char *prefix = take_prefix(r);
    uint64_t age = rd_u32(r) * UINT64_C(1000);
    struct fold_unit u = {.workers = &workers, .since_ns = age < now_ns ? now_ns - age : 0};
    for (uint32_t n = rd_u32(r); n > 0 && !r->bad; n--) {
        struct rank_range range = {.first = take_rank(j, r)};
        range.last = take_rank(j, r);
        r->bad |= range.last < range.first;
        if (!r->bad)
            rank_set_add(&workers, range);
    }
    for (int i = 0; i < 2; i++)
        u.text[i] = take_lines(r, &u.len[i]);
    if (!r->bad && workers.n && u.len[0]) {
        int first = workers.e[0].first;
        sink_rank(j, workers.e[workers.nranges - 1].last);
        u.writer = &sink_rank(j, first)->writer;
        u.label = stdio_label_new(first, first, prefix, NULL);
        u.label->is_err = is_err;
        u.due_ns =
            u.since_ns + SINK_NS > now_ns + LATE_NS ? u.since_ns + SINK_NS : now_ns + LATE_NS;
        fold_join(j->sink, &u, now_ns);
        stdio_label_unref(u.label);
    }
    rank_set_fini(&workers);
    free(prefix);
}

static struct stdio_stream *sink_stream(struct stdio_job *j, int rank, bool is_err,
                                        const char *prefix)
{
    struct sink_rank *r = sink_rank(j, rank);
    struct console *c = j->opts.route[is_err];
    if (r->stream[is_err])
        return r->stream[is_err];
    struct stdio_stream *s = r->stream[is_err] = xcalloc(1, sizeof(*s));
    s->fd = s->file.fd = -1;
    s->is_err = is_err;
    s->writer = &r->writer;
    s->console = console_takes(c) ? c : NULL;
    s->label = stdio_label_new(rank, rank, prefix, NULL);
    return s;
}

static void take_bytes(struct stdio_job *j, struct rd *r, uint64_t now_ns)
{
    bool is_err = rd_u8(r) != 0;
    char *prefix = take_prefix(r);
    int rank = take_rank(j, r);
    size_t n = rd_u32(r);
    const uint8_t *p = rd_take(r, n);
    if (!r->bad) {
        struct stdio_stream *s = sink_stream(j, rank, is_err, prefix);
        fold_settle_worker(j->sink, rank, now_ns);
        for (size_t part; n > 0; p += part, n -= part) {
            part = n < STREAM_CHUNK ? n : STREAM_CHUNK;
            memcpy(j->opts.buffers->room + STREAM_BEFORE, p, part);
            stream_feed(s, j->opts.buffers, part, now_ns);
        }
        j->opts.on_stream(j->opts.arg, s);
    }
    free(prefix);
}

/* False: malformed. */
static bool take_record(struct stdio_job *j, struct rd *r, uint64_t now_ns)
{
    uint8_t kind = rd_u8(r);
    if (kind == UNIT) {
        take_unit(j, r, now_ns);
    } else if (kind == BYTES) {
        take_bytes(j, r, now_ns);
    } else if (kind == END) {
        int rank = take_rank(j, r);
        if (!r->bad && rank < j->nranks && j->ranks[rank])
            end_streams(j, j->ranks[rank], now_ns);
    } else if (kind == BEGIN) {
        fold_show_all(j->sink, now_ns);
        end_all_streams(j, now_ns);
        fold_set_shown(j->sink, (int)rd_u32(r));
    } else {
        return false;
    }
    return !r->bad;
}

static void take_page(struct stdio_job *j, struct buf *page, uint64_t now_ns)
{
    struct rd r = rd_init(page->data, page->len);
    while (r.p < r.end && take_record(j, &r, now_ns))
        ;
    buf_fini(page);
}

static bool has_room(const struct stdio_job *j)
{
    return j->in.bytes < STDIO_CONSOLE_BACKLOG;
}

bool stdio_job_add(struct stdio_job *j, const void *records, size_t n)
{
    struct page *p = xcalloc(1, sizeof(*p));
    xbuf_reserve(&p->b, n);
    buf_put(&p->b, records, n);
    pthread_mutex_lock(&j->lock);
    *j->in.end = p;
    j->in.end = &p->next;
    j->in.bytes += n;
    bool room = has_room(j);
    j->full |= !room;
    pthread_mutex_unlock(&j->lock);
    return room;
}

void stdio_job_begin(struct stdio_job *j, int nshown)
{
    struct buf b = BUF_INIT;
    buf_u8(&b, BEGIN);
    buf_u32(&b, (uint32_t)nshown);
    stdio_job_add(j, b.data, b.len);
    buf_fini(&b);
}

bool stdio_job_waits(struct stdio_job *j)
{
    pthread_mutex_lock(&j->lock);
    bool any = j->in.first != NULL;
    pthread_mutex_unlock(&j->lock);
    return any && !console_full(j->opts.route[0]) && !console_full(j->opts.route[1]);
}

bool stdio_job_take(struct stdio_job *j, uint64_t now_ns)
{
    bool room_again = false;
    while (stdio_job_waits(j)) {
        pthread_mutex_lock(&j->lock);
        struct buf page = pages_next(&j->in);
        if (j->full && has_room(j)) {
            j->full = false;
            room_again = true;
        }
        pthread_mutex_unlock(&j->lock);
        take_page(j, &page, now_ns);
    }
    return room_again;
}

/* ----------------------------------------------------------------------------------------- source
 * and sink */

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a && (a < b || !b) ? a : b;
}

uint64_t stdio_job_due_ns(const struct stdio_job *j)
{
    return earlier(fold_due_ns(j->sink), j->source ? fold_due_ns(j->source) : 0);
}

void stdio_job_show(struct stdio_job *j, uint64_t now_ns)
{
    if (j->source)
        fold_show(j->source, now_ns);
    fold_show(j->sink, now_ns);
}

void stdio_job_show_source(struct stdio_job *j, uint64_t now_ns)
{
    if (j->source)
        fold_show_all(j->source, now_ns);
}

void stdio_job_end(struct stdio_job *j, uint64_t now_ns)
{
    struct buf page;
    stdio_job_show_source(j, now_ns);
    while ((page = next_page(j, &j->in)).len)
        take_page(j, &page, now_ns);
    while ((page = next_page(j, &j->out)).len)
        take_page(j, &page, now_ns);
    fold_show_all(j->sink, now_ns);
    end_all_streams(j, now_ns);
}

struct stdio_job *stdio_job_new(const struct stdio_job_opts *opts)
{
    struct stdio_job *j = xcalloc(1, sizeof(*j));
    const struct fold_out source = {put_unit, j, SOURCE_NS, true};
    const struct fold_out sink = {fold_console_show, &j->shown, FOLD_WINDOW_NS, true};
    j->opts = *opts;
    j->put = (struct console_job){put_bytes, job_kept, j};
    j->console = (struct console){
        .fd = -1, .own_fd = -1, .kind = CONSOLE_JOB, .job = &j->put, .tail_byte = '\n'};
    if (opts->fold)
        j->source = fold_new(&source, opts->nworkers);
    j->shown.console[0] = opts->route[0];
    j->shown.console[1] = opts->route[1];
    j->sink = fold_new(&sink, 0);
    fold_set_shown(j->sink, INT_MAX);
    pthread_mutex_init(&j->lock, NULL);
    pages_init(&j->out);
    pages_init(&j->in);
    return j;
}

void stdio_job_free(struct stdio_job *j)
{
    if (!j)
        return;
    fold_free(j->source);
    fold_free(j->sink);
    buf_fini(&j->shown.page);
    pages_fini(&j->out);
    pages_fini(&j->in);
    for (int i = 0; i < j->nranks; i++)
        free(j->ranks[i]);
    free(j->ranks);
    pthread_mutex_destroy(&j->lock);
    free(j);
}
