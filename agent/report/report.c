#include "agent/report/report.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/report/report_words.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"

#define RULE_COLUMNS    78
#define INDENT          12 /* of the text after the labels */
#define COLUMNS_MIN     40
#define ERROR_LINES     6 /* of an error file's message */
#define STDERR_LINES    20
#define OPERATION_LINES 34
#define STACK_LINES     200

#define BOLD_RED "\033[1;31m"
#define BOLD     "\033[1m"
#define PLAIN    "\033[0m"

struct page {
    FILE *out;
    bool color;
    int columns;
    const struct report_input *in;
};

/* --------------------------------------------------------------------------------------- layout */

/* Returns how many bytes of p fill at most `columns` columns. Each character counts as one column.
 */
static size_t bytes_in(const char *p, size_t len, size_t columns)
{
    size_t i = 0;
    for (; i < len && columns; columns--) {
        for (i++; i < len && ((unsigned char)p[i] & 0xc0) == 0x80;)
            i++;
    }
    return i;
}

/* Prints a paragraph, broken between words. */
static void report_fill(struct page *pg, const char *text, size_t len, int first_column, int indent)
{
    size_t room = (size_t)(pg->columns - first_column);
    while (len) {
        size_t n = bytes_in(text, len, room), next = n;
        if (n < len) {
            const char *blank = memrchr(text, ' ', n + (text[n] == ' '));
            size_t margin = strspn(text, " "); /* of a line that was written so */
            if (!blank || blank < text + margin)
                blank = margin < len ? memchr(text + margin, ' ', len - margin) : NULL;
            n = blank ? (size_t)(blank - text) : len;
            next = n + (blank != NULL);
        }
        fprintf(pg->out, "%.*s\n", (int)n, text);
        text += next;
        len -= next;
        if (len)
            fprintf(pg->out, "%*s", indent, "");
        room = (size_t)(pg->columns - indent);
    }
}

static void label(struct page *pg, const char *name)
{
    fprintf(pg->out, "  %-*s", INDENT - 2, name);
}

/* Prints a labelled paragraph unless it is empty; frees the text. */
static void field(struct page *pg, const char *name, struct buf *text)
{
    if (text->len) {
        label(pg, name);
        report_fill(pg, (char *)text->data, text->len, INDENT, INDENT);
    }
    buf_fini(text);
}

/* Prints a sentence at the left edge; frees the text. */
static void sentence(struct page *pg, const char *color, struct buf *text)
{
    fputs(pg->color ? color : "", pg->out);
    report_fill(pg, text->len ? (char *)text->data : "", text->len, 0, 2);
    fputs(pg->color ? PLAIN : "", pg->out);
    buf_fini(text);
}

static void rule(struct page *pg)
{
    for (int i = 0; i < RULE_COLUMNS && i < pg->columns - 2; i++)
        putc('-', pg->out);
    putc('\n', pg->out);
}

/* Returns the start of the last lines of the text. */
static char *last_lines(char *text, size_t len, size_t max)
{
    char *from = text + len;
    for (size_t n = 0; from > text && n < max; n++) {
        char *nl = memrchr(text, '\n', (size_t)(from - text) - (n > 0));
        from = nl ? nl + 1 : text;
    }
    return from;
}

/* Prints a text as it was written, and only its last lines if there are too many. */
static void block(struct page *pg, const char *name, const char *text, size_t max_lines)
{
    size_t raw = strlen(text), cap = 4 * raw + 8;
    char *shown = xmalloc(cap);
    size_t len = log_escape(shown, cap, text, raw, 1);
    for (size_t i = 0; i < len; i++) {
        if (shown[i] == '\t') /* the width of a tab depends on its column */
            shown[i] = ' ';
    }
    while (len && shown[len - 1] == '\n')
        len--;
    char *from = last_lines(shown, len, max_lines), *end = shown + len;
    bool left_out = from > shown;
    if (len)
        label(pg, name);
    if (left_out) /* without the number, because the text may be the end of a longer one */
        fprintf(pg->out, "[earlier lines left out]\n");
    for (bool first = !left_out; from < end; first = false) {
        char *nl = memchr(from, '\n', (size_t)(end - from));
        size_t n = (size_t)((nl ? nl : end) - from);
        fprintf(pg->out, "%*s", first || !n ? 0 : INDENT, "");
        if (n)
            report_fill(pg, from, n, INDENT, INDENT);
        else
            putc('\n', pg->out);
        from += n + 1;
    }
    free(shown);
}

/* -------------------------------------------------------------------------------- what is in it */

static bool is_cause(const struct failure *f)
{
    return f->kind != FAILURE_STOPPED;
}

static void who(struct buf *b, const struct failure *f)
{
    if (f->kind == FAILURE_NODE) {
        words_escaped(b, f->host);
        words_add(b, " (node %d)", f->node);
    } else {
        words_add(b, "rank %d on ", f->rank);
        words_escaped(b, f->host);
    }
}

static void print_worker(struct page *pg, const struct failure *f)
{
    struct buf b = BUF_INIT;
    words_add(&b, "local rank %d", f->local_rank);
    if (f->pid)
        words_add(&b, ", pid %d", f->pid);
    if (pg->in->nnodes > 1)
        words_add(&b, ", node %d of %d", f->node, pg->in->nnodes);
    if (*f->role && strcmp(f->role, "default") != 0) {
        words_add(&b, ", role ");
        words_escaped(&b, f->role);
    }
    const char *program = programs_name(pg->in->job->programs, f->rank);
    if (program) {
        words_add(&b, ", program ");
        words_escaped(&b, program);
    }
    field(pg, "worker", &b);
}

static void print_time(struct page *pg, const struct failure *f)
{
    struct buf b = BUF_INIT;
    struct tm tm;
    char text[32];
    time_t t = (time_t)(f->wall_ns / 1000000000u);
    int max = pg->in->job->rdzv.max_restarts;
    if (f->wall_ns && localtime_r(&t, &tm) && strftime(text, sizeof(text), "%F %T %z", &tm))
        words_add(&b, "%s", text);
    if (f->attempt > 0)
        words_add(&b, "%srestart %d of %d", b.len ? ", " : "", f->attempt, max);
    else if (max > 0)
        words_add(&b, "%sfirst attempt, before any restart", b.len ? ", " : "");
    field(pg, "time", &b);
}

static bool has_line(const char *text, const char *line, size_t len)
{
    for (const char *p = text; *p; p += *p == '\n') {
        size_t n = strcspn(p, "\n");
        if (n == len && memcmp(p, line, n) == 0)
            return true;
        p += n;
    }
    return len == 0;
}

/* Finds the line that names the error. In a Python traceback that is the line behind the last
 * frame, which is indented (the text of an exception may have more lines, and notes); else it is
 * the first line. NULL: all lines are indented, as in an exception group. */
static const char *headline(const char *text)
{
    static const char begin[] = "Traceback (most recent call last):\n";
    const char *line = text;
    for (const char *at = text; (at = strstr(at, begin)); line = at)
        at += sizeof(begin) - 1;
    int cut = 0; /* the beginning of a long line may be missing */
    if (line == text && sscanf(text, "[%*u lines left out]%n", &cut) == 0 && cut && text[cut])
        line = text + cut + 1;
    while (line && *line == ' ') {
        const char *nl = strchr(line, '\n');
        line = nl ? nl + 1 : NULL;
    }
    return line;
}

/* The error file's message without the lines that stderr shows as well; the line that names the
 * error always stays. */
static void print_error(struct page *pg, const struct failure *f)
{
    struct buf b = BUF_INIT;
    size_t len = strlen(f->message);
    const char *name = headline(f->message);
    if (f->kind == FAILURE_EXEC || f->kind == FAILURE_NODE || f->says_how)
        return;
    while (len && f->message[len - 1] == '\n')
        len--;
    for (const char *p = f->message, *end = p + len; p < end;) {
        size_t n = strcspn(p, "\n");
        bool last = p + n >= end;
        if (p == name || !has_line(f->stderr_tail, p, n))
            buf_put(&b, p, n + !last);
        p += n + 1;
    }
    buf_u8(&b, '\0');
    if (!b.oom)
        block(pg, "error", (char *)b.data, ERROR_LINES);
    buf_fini(&b);
}

/* Prints the path in one piece, so that it can be copied. */
static void print_log(struct page *pg, const struct failure *f)
{
    struct buf b = BUF_INIT;
    bool own_node = f->node == pg->in->group_rank;
    const char *path = *f->log_path ? f->log_path : own_node ? pg->in->log_dir : NULL;
    if (f->kind == FAILURE_NODE || !path || !*path)
        return;
    if (!own_node) {
        words_escaped(&b, f->host);
        words_add(&b, ":");
    }
    words_escaped(&b, path);
    label(pg, "log");
    fprintf(pg->out, "%.*s\n", (int)b.len, (char *)b.data);
    buf_fini(&b);
}

static void print_stderr(struct page *pg, const struct failure *f)
{
    if (f->kind == FAILURE_EXEC || f->kind == FAILURE_NODE)
        return;
    block(pg, "stderr", *f->stderr_tail ? f->stderr_tail : "(no output)", STDERR_LINES);
}

static void print_first(struct page *pg, const struct failure *f)
{
    struct buf b = BUF_INIT, cause = BUF_INIT, hint = BUF_INIT;
    words_add(&b, "First failure: ");
    who(&b, f);
    words_add(&b, " ");
    words_outcome(&b, f);
    sentence(pg, BOLD, &b);
    words_cause(&cause, f);
    field(pg, "cause", &cause);
    if (f->kind != FAILURE_NODE)
        print_worker(pg, f);
    print_time(pg, f);
    print_error(pg, f);
    print_stderr(pg, f);
    print_log(pg, f);
    words_hint(&hint, f, f->node == pg->in->group_rank);
    field(pg, "hint", &hint);
}

static int by_rank(const void *a, const void *b)
{
    const struct failure *x = *(const struct failure *const *)a;
    const struct failure *y = *(const struct failure *const *)b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* "rank 2 (node-a)", "ranks 2, 9 (node-a, node-b)", "ranks 1-40 (12 nodes)". */
static void put_ranks(struct buf *b, const struct failure **f, size_t n)
{
    int *ranks = xmalloc(n * sizeof(*ranks)), nhosts = 0;
    const char *hosts[3];
    for (size_t i = 0; i < n; i++) {
        bool seen = false;
        ranks[i] = f[i]->rank;
        for (size_t k = 0; k < i && !seen; k++)
            seen = strcmp(f[k]->host, f[i]->host) == 0;
        if (!seen && nhosts < (int)ARRAY_LEN(hosts))
            hosts[nhosts] = f[i]->host;
        nhosts += !seen;
    }
    words_add(b, n == 1 ? "rank " : "ranks ");
    words_ranges(b, ranks, n);
    words_add(b, " (");
    if (nhosts > (int)ARRAY_LEN(hosts)) {
        words_add(b, "%d nodes", nhosts);
    } else {
        for (int i = 0; i < nhosts; i++) {
            words_add(b, i ? ", " : "");
            words_escaped(b, hosts[i]);
        }
    }
    words_add(b, ")");
    free(ranks);
}

/* Moves the first failure of the list, and those like it, to `alike`. */
static size_t take_alike(const struct failure **list, size_t *n, const struct failure **alike)
{
    struct buf first = BUF_INIT, other = BUF_INIT;
    size_t taken = 0, left = 0;
    words_outcome_short(&first, list[0]);
    for (size_t i = 0; i < *n; i++) {
        other.len = 0;
        words_outcome_short(&other, list[i]);
        if (other.len == first.len && memcmp(other.data, first.data, first.len) == 0)
            alike[taken++] = list[i];
        else
            list[left++] = list[i];
    }
    *n = left;
    buf_fini(&first);
    buf_fini(&other);
    return taken;
}

static void print_lost(struct page *pg, const struct failure *f)
{
    struct buf b = BUF_INIT;
    who(&b, f);
    words_add(&b, ": ");
    words_cause(&b, f);
    field(pg, "lost", &b);
}

/* `omitted` more workers were stopped and are not in the list. */
static void print_stopped(struct page *pg, const struct failure **f, size_t n, size_t omitted)
{
    struct buf b = BUF_INIT;
    size_t killed = 0, all = n + omitted;
    if (n == 0)
        return;
    words_add(&b, "%zu worker%s, by dlaunch%s ", all, all == 1 ? "" : "s",
              omitted ? ", among them" : ":");
    put_ranks(&b, f, n);
    for (size_t i = 0; i < n; i++) {
        if (f[i]->signal == SIGKILL)
            f[killed++] = f[i];
    }
    if (killed == n) {
        words_add(&b, "; %skilled, because the stop signal did not end %s",
                  omitted  ? "these were "
                  : n == 1 ? ""
                           : "all ",
                  all == 1 ? "it" : "them");
    } else if (killed) {
        words_add(
            &b, "; killed, because the stop signal did not end %s: ", killed == 1 ? "it" : "them");
        put_ranks(&b, f, killed);
    }
    field(pg, "stopped", &b);
}

/* Prints all failures but the first one, by kind. */
static void print_others(struct page *pg, const char *title, const struct failure *f, size_t n,
                         size_t omitted)
{
    const struct failure **failed = xcalloc(3 * (n + 1), sizeof(*failed)),
                         **stopped = failed + n + 1, **alike = stopped + n + 1;
    size_t nfailed = 0, nstopped = 0;
    if (n || omitted)
        fprintf(pg->out, "\n%s:\n", title);
    for (size_t i = 0; i < n; i++) {
        if (f[i].kind == FAILURE_STOPPED)
            stopped[nstopped++] = &f[i];
        else if (f[i].kind != FAILURE_NODE)
            failed[nfailed++] = &f[i];
    }
    qsort(failed, nfailed, sizeof(*failed), by_rank);
    qsort(stopped, nstopped, sizeof(*stopped), by_rank);
    while (nfailed) {
        struct buf b = BUF_INIT;
        size_t n_alike = take_alike(failed, &nfailed, alike);
        put_ranks(&b, alike, n_alike);
        words_add(&b, ": ");
        words_outcome_short(&b, alike[0]);
        field(pg, failure_is_early_exit(alike[0]) ? "exited" : "failed", &b);
    }
    for (size_t i = 0; i < n; i++) {
        if (f[i].kind == FAILURE_NODE)
            print_lost(pg, &f[i]);
    }
    print_stopped(pg, stopped, nstopped, omitted);
    if (omitted && !nstopped) { /* stopped workers come last, so they are left out first */
        struct buf b = BUF_INIT;
        words_add(&b, "%zu more that are not listed", omitted);
        field(pg, "and", &b);
    }
    free(failed);
}

/* Prints every start of the workers if there was more than one. */
static void print_attempts(struct page *pg)
{
    const struct attempts *all = &pg->in->attempts;
    if (all->n + all->omitted < 2)
        return;
    fprintf(pg->out, "\nStarts of the workers:\n");
    for (size_t i = 0; i < all->n; i++) {
        const struct attempt *a = &all->e[i];
        struct buf b = BUF_INIT;
        struct tm tm;
        char text[32], name[24];
        time_t t = (time_t)(a->start_wall_ns / 1000000000u);
        if (localtime_r(&t, &tm) && strftime(text, sizeof(text), "%F %T %z", &tm))
            words_add(&b, "%s, for ", text);
        words_duration(&b, a->end_wall_ns >= a->start_wall_ns
                               ? (double)(a->end_wall_ns - a->start_wall_ns) / 1e9
                               : -1);
        if (*a->text) {
            words_add(&b, ": ");
            words_escaped(&b, a->text);
        }
        snprintf(name, sizeof(name), "%zu", all->omitted + i + 1);
        field(pg, name, &b);
    }
}

static void print_end(struct page *pg)
{
    struct buf b = BUF_INIT;
    const struct rdzv_result *r = pg->in->result;
    int max = pg->in->job->rdzv.max_restarts;
    words_add(&b, "The job ended with exit status %d after ", r->exit_code);
    words_duration(&b, pg->in->elapsed);
    if (max > 0)
        words_add(&b, "; %d of %d restart%s used", r->restarts, max, max == 1 ? "" : "s");
    words_add(&b, ".");
    sentence(pg, "", &b);
    if (r->final[0]) {
        words_add(&b, "No further restart: ");
        words_escaped(&b, r->final);
        words_add(&b, ".");
        sentence(pg, "", &b);
    }
    if (pg->in->nnodes > 1) {
        if (!pg->in->job->nproc)
            words_add(&b, "This launcher has no workers: ");
        else if (pg->in->group_rank < 0)
            words_add(&b,
                      "This node was not among the %d nodes of the last round: ", pg->in->nnodes);
        else
            words_add(&b, "This is node %d of %d, ", pg->in->group_rank, pg->in->nnodes);
        words_escaped(&b, pg->in->host);
        words_add(&b, ".");
        sentence(pg, "", &b);
    }
}

static void print_bold(struct page *pg, const char *what, const char *text)
{
    struct buf b = BUF_INIT;
    words_add(&b, "%s: ", what);
    words_escaped(&b, text);
    sentence(pg, BOLD, &b);
}

/* Prints which ranks had called what. */
static void print_calls(struct page *pg)
{
    const struct failure *f = pg->in->result->failures;
    size_t n = pg->in->result->n, nleft = 0;
    const struct failure **left = xcalloc(2 * n, sizeof(*left)), **alike = left + n;
    int odd = failure_odd_one(f, n);
    for (size_t i = 0; i < n; i++) {
        if (*f[i].operation)
            left[nleft++] = &f[i];
    }
    qsort(left, nleft, sizeof(*left), by_rank);
    for (bool first = true; nleft; first = false) {
        struct buf b = BUF_INIT;
        size_t kept = 0, taken = 0;
        const char *operation = left[0]->operation;
        for (size_t i = 0; i < nleft; i++) {
            if (strcmp(left[i]->operation, operation) == 0)
                alike[taken++] = left[i];
            else
                left[kept++] = left[i];
        }
        nleft = kept;
        put_ranks(&b, alike, taken);
        words_add(&b, ": ");
        words_escaped(&b, operation);
        if (odd >= 0 && alike[0] == &f[odd])
            words_add(&b, " (this rank is the odd one out)");
        field(pg, first ? "called" : "", &b);
    }
    free(left);
}

static void print_leftover(struct page *pg)
{
    print_bold(pg, "Processes that could not be killed", pg->in->leftover);
}

/* The classes of the ledger; the hundredths of a percent add up to 100. */
static void print_ledger(struct page *pg)
{
    const struct ledger *l = pg->in->ledger;
    struct buf b = BUF_INIT;
    int share[LEDGER_CLASSES], left = 10000, largest = 0;
    if (!l)
        return;
    for (int c = 0; c < LEDGER_CLASSES; c++) {
        share[c] = l->total_ns ? (int)((double)l->ns[c] * 1e4 / (double)l->total_ns + 0.5) : 0;
        left -= share[c];
        largest = l->ns[c] > l->ns[largest] ? c : largest;
    }
    share[largest] += left;
    words_add(&b, "Where the time went (%d node%s, ", l->nodes, l->nodes == 1 ? "" : "s");
    words_duration(&b, (double)l->total_ns / 1e9);
    words_add(&b, "%s):", l->nodes == 1 ? "" : " in all");
    putc('\n', pg->out);
    sentence(pg, BOLD, &b);
    for (int c = 0; c < LEDGER_CLASSES; c++) {
        if (l->ns[c])
            fprintf(pg->out, "  %-32s %12.3f s %7d.%02d %%\n", ledger_meaning(c),
                    (double)l->ns[c] / 1e9, share[c] / 100, share[c] % 100);
    }
}

void report_print(FILE *out, const struct report_input *in, int color, int columns)
{
    struct page pg = {.out = out, .color = color, .columns = columns, .in = in};
    if (columns < COLUMNS_MIN)
        pg.columns = columns ? COLUMNS_MIN : INT_MAX;
    const struct rdzv_result *r = in->result;
    struct buf b = BUF_INIT;
    if (r->exit_code == 0) {
        if (in->leftover) {
            putc('\n', out);
            print_leftover(&pg);
        }
        print_ledger(&pg);
        return;
    }
    putc('\n', out);
    bool stopped = report_was_stopped(r->reason);
    bool cause = r->n > 0 && is_cause(&r->failures[0]);
    rule(&pg);
    words_escaped(&b, in->job->name);
    words_add(&b, stopped && !cause ? " STOPPED" : " FAILED");
    if (!cause || r->reason != STOP_FAILURE) {
        words_add(&b, ": ");
        words_escaped(&b, r->text);
    }
    sentence(&pg, BOLD_RED, &b);
    if (cause) {
        putc('\n', out);
        print_first(&pg, &r->failures[0]);
        if (r->failures[0].mismatch || in->recorded)
            print_calls(&pg);
    }
    print_others(&pg, cause ? "Other workers" : "Workers", r->failures + cause, r->n - cause,
                 r->omitted);
    print_attempts(&pg);
    if (in->operations)
        block(&pg, "calls", in->operations, OPERATION_LINES);
    if (in->slow)
        block(&pg, "slow", in->slow, 1);
    if (in->stacks)
        block(&pg, "stacks", in->stacks, STACK_LINES);
    print_ledger(&pg);
    putc('\n', out);
    if (in->leftover)
        print_leftover(&pg);
    if (in->lost_output)
        print_bold(&pg, "Output that could not be written", in->lost_output);
    print_end(&pg);
    rule(&pg);
}

char *report_make_text(const struct report_input *in)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    if (!out)
        return NULL;
    int fd = in->job->report_fd;
    int columns = fd ? in->job->report_columns : fd_columns(STDERR_FILENO);
    report_print(out, in, columns > 0, columns);
    fclose(out);
    if (!fd)
        return text;
    fd_write_all(fd, text, len);
    free(text);
    return NULL;
}
