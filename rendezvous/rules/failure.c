#include "rendezvous/rules/failure.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/mem.h"
#include "rendezvous/rules/rank_table.h"
#include "rendezvous/rules/text.h"

void failure_init(struct failure *f)
{
    memset(f, 0, sizeof(*f));
    f->rank = f->local_rank = f->caused_by = -1;
}

/* ---------------------------------------------------------------------------------------- codec */

#define FLAG_CORE_DUMPED 1u
#define FLAG_OOM         2u
#define FLAG_MISMATCH    4u
#define FLAG_OPERATION   8u /* the operation follows the role; earlier versions do not know it */
#define FLAG_SAYS_HOW    16u
#define FLAG_GPU         32u

void failure_encode(struct buf *b, const struct failure *f)
{
    buf_u8(b, (uint8_t)f->kind);
    buf_u8(b, (f->core_dumped ? FLAG_CORE_DUMPED : 0) | (f->oom ? FLAG_OOM : 0) |
                  (f->mismatch ? FLAG_MISMATCH : 0) | (f->operation[0] ? FLAG_OPERATION : 0) |
                  (f->says_how ? FLAG_SAYS_HOW : 0) | (f->gpu ? FLAG_GPU : 0));
    buf_u32(b, (uint32_t)f->rank);
    buf_u32(b, (uint32_t)f->local_rank);
    buf_u32(b, (uint32_t)f->node);
    buf_u32(b, (uint32_t)f->pid);
    buf_u32(b, (uint32_t)f->attempt);
    buf_u32(b, (uint32_t)f->exit_code);
    buf_u32(b, (uint32_t)f->signal);
    buf_u32(b, (uint32_t)f->caused_by);
    buf_u64(b, f->seen_ns);
    buf_u64(b, f->wall_ns);
    buf_str(b, f->host);
    buf_str(b, f->role);
    if (f->operation[0])
        buf_str(b, f->operation);
    buf_str(b, f->message);
    buf_str(b, f->log_path);
    buf_str(b, f->stderr_tail);
}

static int read_int(struct rd *r, int min, int max)
{
    int v = (int)rd_u32(r);
    if (v < min || v > max)
        r->bad = true;
    return v;
}

bool failure_decode(struct rd *r, struct failure *f)
{
    unsigned kind = rd_u8(r), flags = rd_u8(r);
    if (kind >= FAILURE_KINDS || (flags & ~(FLAG_CORE_DUMPED | FLAG_OOM | FLAG_MISMATCH |
                                            FLAG_OPERATION | FLAG_SAYS_HOW | FLAG_GPU)))
        r->bad = true;
    f->kind = (enum failure_kind)kind;
    f->core_dumped = flags & FLAG_CORE_DUMPED;
    f->oom = flags & FLAG_OOM;
    f->mismatch = flags & FLAG_MISMATCH;
    f->says_how = flags & FLAG_SAYS_HOW;
    f->gpu = flags & FLAG_GPU;
    f->rank = read_int(r, -1, WORLD_SIZE_MAX - 1);
    f->local_rank = read_int(r, -1, NPROC_MAX - 1);
    f->node = read_int(r, -1, NNODES_MAX - 1);
    f->pid = read_int(r, 0, INT32_MAX);
    f->attempt = read_int(r, 0, INT32_MAX);
    f->exit_code = read_int(r, 0, 255);
    f->signal = read_int(r, 0, 127);
    f->caused_by = read_int(r, -1, WORLD_SIZE_MAX - 1);
    f->seen_ns = rd_u64(r);
    f->wall_ns = rd_u64(r);
    rd_str(r, f->host, sizeof(f->host));
    rd_str(r, f->role, sizeof(f->role));
    f->operation[0] = '\0';
    if (flags & FLAG_OPERATION)
        rd_str(r, f->operation, sizeof(f->operation));
    rd_str(r, f->message, sizeof(f->message));
    rd_str(r, f->log_path, sizeof(f->log_path));
    rd_str(r, f->stderr_tail, sizeof(f->stderr_tail));
    return !r->bad;
}

/* ----------------------------------------------------------------------------------------- text */

int failure_exit_status(const struct failure *f)
{
    int status = 1;
    switch (f->kind) {
    case FAILURE_EXIT:
    case FAILURE_EXEC:
        status = f->exit_code;
        break;
    case FAILURE_SIGNAL:
        status = 128 + f->signal;
        break;
    case FAILURE_STOPPED:
        status = f->signal ? 128 + f->signal : f->exit_code;
        break;
    case FAILURE_NODE:
    case FAILURE_KINDS:
        break;
    }
    return status > 0 && status <= 255 ? status : 1; /* a failed job never ends with 0 */
}

/* The first line of a text that may have several. */
static int first_line(const char *text)
{
    return (int)strcspn(text, "\n");
}

static void describe_end(char *out, size_t cap, const struct failure *f)
{
    const char *name = f->signal ? sigabbrev_np(f->signal) : NULL;
    char number[24];
    snprintf(number, sizeof(number), "signal %d", f->signal);
    switch (f->kind) {
    case FAILURE_EXIT:
        if (f->says_how) {
            text_set(out, cap, "%.*s", first_line(f->message), f->message);
            break;
        }
        text_set(out, cap, "exited with code %d%s%s%s", f->exit_code,
                 failure_is_early_exit(f) ? " while other workers needed it" : "",
                 f->mismatch ? ": its operation did not match: " : "",
                 f->mismatch ? f->operation : "");
        break;
    case FAILURE_SIGNAL:
        text_set(out, cap, "was killed by %s%s%s%s", name ? "SIG" : "", name ? name : number,
                 f->core_dumped ? " (core dumped)" : "", f->oom ? ", out of memory" : "");
        break;
    case FAILURE_EXEC:
        text_set(out, cap, "could not be started: %.*s", first_line(f->message), f->message);
        break;
    default:
        text_set(out, cap, "was stopped");
        break;
    }
}

const char *failure_describe(const struct failure *f, char *out, size_t cap)
{
    char end[FAILURE_TEXT_MAX];
    if (f->kind == FAILURE_NODE) {
        text_set(out, cap, "node %s (pid %d) was lost%s%.*s", f->host, f->pid,
                 f->message[0] ? ": " : "", first_line(f->message), f->message);
        return out;
    }
    describe_end(end, sizeof(end), f);
    text_set(out, cap, "worker %d (local rank %d) on %s %s", f->rank, f->local_rank, f->host, end);
    return out;
}

/* ----------------------------------------------------------------------------------- likeness */

/* A digest of the last line that is not blank. A number is what begins with a digit, with its sign,
 * and goes on to the next character that no number has: 17, -3.5e-7, 0x7f00, 12:30:01, 4GB. */
static uint64_t last_line(const char *text)
{
    size_t end = strlen(text), begin;
    while (end > 0 && isspace((unsigned char)text[end - 1]))
        end--;
    for (begin = end; begin > 0 && text[begin - 1] != '\n';)
        begin--;
    uint64_t digest = 0;
    for (size_t i = begin; i < end;) {
        size_t k = i + (text[i] == '-' || text[i] == '+');
        if (k < end && isdigit((unsigned char)text[k])) {
            for (i = k + 1; i < end && (isalnum((unsigned char)text[i]) ||
                                        (strchr(".,:-+", text[i]) && i + 1 < end &&
                                         isdigit((unsigned char)text[i + 1])));)
                i++;
            digest = hash_add(digest, '0');
        } else {
            digest = hash_add(digest, (unsigned char)text[i++]);
        }
    }
    return digest;
}

struct failure_likeness failure_likeness(const struct failure *f)
{
    return (struct failure_likeness){.kind = f->kind,
                                     .code = f->exit_code,
                                     .signal = f->signal,
                                     .oom = f->oom,
                                     .mismatch = f->mismatch,
                                     .line = last_line(f->stderr_tail)};
}

bool failure_likeness_equal(const struct failure_likeness *a, const struct failure_likeness *b)
{
    return a->kind == b->kind && a->code == b->code && a->signal == b->signal && a->oom == b->oom &&
           a->mismatch == b->mismatch && a->line == b->line;
}

/* ------------------------------------------------------------------------------ the first cause */

static bool fatal_signal(int signo)
{
    return signo == SIGSEGV || signo == SIGBUS || signo == SIGILL || signo == SIGFPE ||
           signo == SIGKILL;
}

/* Whether the failure is one that the death of a peer alone does not cause. A shell that runs the
 * program reports its child's signal as exit code 128+n. */
static bool is_hard(const struct failure *f)
{
    switch (f->kind) {
    case FAILURE_EXEC:
    case FAILURE_NODE:
        return true;
    case FAILURE_SIGNAL:
        return f->oom || fatal_signal(f->signal);
    case FAILURE_EXIT:
        return f->exit_code > 128 && fatal_signal(f->exit_code - 128);
    default:
        return false;
    }
}

/* Whether survivors fail like this after a peer has died: exit, abort, SIGPIPE. */
static bool is_soft(const struct failure *f)
{
    if (f->kind == FAILURE_SIGNAL)
        return !f->oom && (f->signal == SIGABRT || f->signal == SIGPIPE);
    return f->kind == FAILURE_EXIT && !is_hard(f);
}

/* The order of two records by time alone; deterministic whatever the order they came in. */
static int compare_time(const struct failure *a, const struct failure *b)
{
    if (a->seen_ns != b->seen_ns)
        return a->seen_ns < b->seen_ns ? -1 : 1;
    if (is_hard(a) != is_hard(b))
        return is_hard(a) ? -1 : 1;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return (a->node > b->node) - (a->node < b->node);
}

#define NONE SIZE_MAX

/* Finds, for each of n records, the record of the rank that it names as its cause. */
struct cause_graph {
    const struct failure *f;
    size_t n;
    size_t *by_rank; /* indexes of the records that have a rank, by rank */
    size_t nranks;
    size_t *cause;  /* index of the record that i was a consequence of, or NONE */
    bool *excluded; /* a known consequence, or stopped: cannot be the first */
};

static int compare_rank(const void *pa, const void *pb, void *arg)
{
    const struct failure *f = arg, *a = f + *(const size_t *)pa, *b = f + *(const size_t *)pb;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if ((a->kind == FAILURE_STOPPED) != (b->kind == FAILURE_STOPPED))
        return a->kind == FAILURE_STOPPED ? 1 : -1;
    return compare_time(a, b);
}

/* The record of a rank's death (the earliest that was not a stop), or NONE. */
static size_t find_rank(const struct cause_graph *b, int rank)
{
    size_t lo = 0, hi = b->nranks;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (b->f[b->by_rank[mid]].rank < rank)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < b->nranks && b->f[b->by_rank[lo]].rank == rank ? b->by_rank[lo] : NONE;
}

/* Excludes records whose cause failed by itself, and, when a node was lost, records that name a
 * rank without a record, which was on that node. */
static void follow_caused_by(struct cause_graph *b)
{
    bool node_lost = false;
    for (size_t i = 0; i < b->n; i++) {
        node_lost |= b->f[i].kind == FAILURE_NODE;
        if (b->f[i].rank >= 0)
            b->by_rank[b->nranks++] = i;
    }
    qsort_r(b->by_rank, b->nranks, sizeof(*b->by_rank), compare_rank, (void *)b->f);
    for (size_t i = 0; i < b->n; i++) {
        const struct failure *f = &b->f[i];
        b->cause[i] = NONE;
        b->excluded[i] = f->kind == FAILURE_STOPPED || failure_is_early_exit(f);
        if (b->excluded[i] || f->gpu || f->caused_by < 0 || f->caused_by == f->rank)
            continue;
        size_t cause = find_rank(b, f->caused_by);
        if (cause == NONE)
            b->excluded[i] = node_lost && f->kind != FAILURE_NODE;
        else if (b->f[cause].kind != FAILURE_STOPPED) /* a hung rank was blamed, then stopped */
            b->cause[i] = cause;
    }
    for (size_t i = 0; i < b->n; i++) { /* an early exit that other workers died of */
        if (b->cause[i] != NONE && failure_is_early_exit(&b->f[b->cause[i]]))
            b->excluded[b->cause[i]] = false;
    }
}

/* Records that name each other as cause (a ring) stay: the general order decides between them. All
 * other records that have a cause are excluded. Each record is visited once. */
static void drop_consequences(struct cause_graph *b)
{
    size_t *walk = xcalloc(b->n, sizeof(*walk)); /* the walk that passed here first; 0: none yet */
    for (size_t start = 0; start < b->n; start++) {
        size_t i = start;
        while (i != NONE && !walk[i]) {
            walk[i] = start + 1;
            b->excluded[i] |= b->cause[i] != NONE;
            i = b->cause[i];
        }
        if (i == NONE || walk[i] != start + 1)
            continue;
        for (size_t j = i; b->excluded[j];
             j = b->cause[j]) /* the walk has met a record again: a ring */
            b->excluded[j] = false;
    }
    free(walk);
}

static void cause_graph_init(struct cause_graph *b, const struct failure *f, size_t n)
{
    *b = (struct cause_graph){.f = f, .n = n};
    b->by_rank = xcalloc(n, sizeof(*b->by_rank));
    b->cause = xcalloc(n, sizeof(*b->cause));
    b->excluded = xcalloc(n, sizeof(*b->excluded));
    follow_caused_by(b);
    drop_consequences(b);
}

static void cause_graph_fini(struct cause_graph *b)
{
    free(b->by_rank);
    free(b->cause);
    free(b->excluded);
}

static size_t earliest(const struct cause_graph *b,
                       bool (*wanted)(const struct cause_graph *b, size_t i))
{
    size_t best = NONE;
    for (size_t i = 0; i < b->n; i++) {
        if (wanted(b, i) && (best == NONE || compare_time(&b->f[i], &b->f[best]) < 0))
            best = i;
    }
    return best;
}

static bool any(const struct cause_graph *b, size_t i)
{
    (void)b, (void)i;
    return true;
}

static bool in(const struct cause_graph *b, size_t i)
{
    return !b->excluded[i];
}

static bool in_and_hard(const struct cause_graph *b, size_t i)
{
    return !b->excluded[i] && is_hard(&b->f[i]);
}

static bool in_and_not_soft(const struct cause_graph *b, size_t i)
{
    return !b->excluded[i] && !is_soft(&b->f[i]);
}

static bool in_and_gpu(const struct cause_graph *b, size_t i)
{
    return !b->excluded[i] && b->f[i].gpu;
}

static size_t first_of(const struct cause_graph *b)
{
    size_t first = earliest(b, in_and_gpu);
    if (first != NONE)
        return first;
    first = earliest(b, in);
    if (first == NONE) /* all workers were stopped */
        return earliest(b, any);
    if (!is_soft(&b->f[first]))
        return first;
    size_t hard = earliest(b, in_and_hard);
    if (hard == NONE || b->f[hard].seen_ns - b->f[first].seen_ns > FAILURE_SKEW_NS)
        return first;
    /* The soft failure was a survivor's. A signal from outside may be between it and the hard one.
     */
    return earliest(b, in_and_not_soft);
}

int failure_odd_one(const struct failure *f, size_t n)
{
    const struct failure *a = NULL, *b = NULL; /* the first records of two operations */
    size_t na = 0, nb = 0;
    for (size_t i = 0; i < n; i++) {
        if (!f[i].operation[0])
            continue;
        if (!a || strcmp(f[i].operation, a->operation) == 0) {
            a = a ? a : &f[i];
            na++;
        } else if (!b || strcmp(f[i].operation, b->operation) == 0) {
            b = b ? b : &f[i];
            nb++;
        } else {
            return -1;
        }
    }
    if (na == 1 && nb > 1)
        return (int)(a - f);
    return nb == 1 && na > 1 ? (int)(b - f) : -1;
}

size_t failure_first(const struct failure *f, size_t n)
{
    struct cause_graph b;
    if (n == 1)
        return 0;
    cause_graph_init(&b, f, n);
    size_t first = first_of(&b);
    cause_graph_fini(&b);
    return first;
}

struct order {
    const struct cause_graph *b;
    size_t first;
};

/* Orders records so that the more informative one comes first. */
static int weight(const struct order *o, size_t i)
{
    const struct failure *f = &o->b->f[i];
    if (i == o->first)
        return 0;
    if (f->kind == FAILURE_STOPPED)
        return 5;
    if (failure_is_early_exit(f))
        return 4;
    if (is_hard(f))
        return 1;
    return o->b->excluded[i] ? 3 : 2;
}

static int compare_order(const void *pa, const void *pb, void *arg)
{
    const struct order *o = arg;
    size_t a = *(const size_t *)pa, b = *(const size_t *)pb;
    int wa = weight(o, a), wb = weight(o, b);
    if (wa != wb)
        return wa < wb ? -1 : 1;
    int c = compare_time(&o->b->f[a], &o->b->f[b]);
    return c ? c : (a > b) - (a < b);
}

void failure_order(const struct failure *f, size_t n, size_t *order)
{
    struct cause_graph b;
    if (n == 0)
        return;
    cause_graph_init(&b, f, n);
    struct order o = {&b, first_of(&b)};
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    qsort_r(order, n, sizeof(*order), compare_order, &o);
    cause_graph_fini(&b);
}
