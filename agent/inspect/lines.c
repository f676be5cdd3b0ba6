#include "agent/inspect/lines.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/protocols.h"
#include "rendezvous/rules/rank_table.h"

#define NUMBER_MAX UINT64_C(0x7fffffff)

/* ------------------------------------------------------------------------------------- writing */

__attribute__((format(printf, 2, 3))) static void put(struct buf *b, const char *fmt, ...)
{
    char text[INSPECT_LINE_MAX];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    xbuf_reserve(b, (size_t)n);
    buf_put(b, text, (size_t)n);
}

/* The end of a line. A text of SAMPLE_TEXT_MAX bytes is twice as long at most. */
static void put_text(struct buf *b, const char *text)
{
    xbuf_reserve(b, 2 * strlen(text) + 1);
    for (const char *s = text; *s; s++) {
        if (*s == '\n' || *s == '\\')
            buf_u8(b, '\\');
        buf_u8(b, *s == '\n' ? 'n' : (uint8_t)*s);
    }
    buf_u8(b, '\n');
}

static void put_line(struct buf *b, const char *word, const char *text)
{
    if (!*text)
        return;
    put(b, "%s ", word);
    put_text(b, text);
}

void inspect_put_version(struct buf *b)
{
    put(b, INSPECT_NAME " %u\n", PROTOCOL_INSPECT);
}

void inspect_put_worker(struct buf *b, const struct inspect_worker *w)
{
    put(b, "look %d %d %d\n", w->rank, w->pid, w->recorded);
}

static void put_op(struct buf *b, const struct sample_op *op)
{
    put(b, "op %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %d %d ", op->number, op->group,
        op->seq, op->age_ms, op->open, op->reported);
    put_text(b, op->text);
}

void inspect_put_sample(struct buf *b, const struct sample *s)
{
    put(b, "sample %d %d\n", s->rank, s->pid);
    put_line(b, "program", s->program);
    put_line(b, "note", s->note);
    put(b, "numbers %" PRIu64 " %" PRIu64 " %" PRIu32 " %d\n", s->cpu_ms, s->io_bytes,
        s->stopped_us, s->more_threads);
    if (s->op.number || *s->op.text)
        put_op(b, &s->op);
    for (int i = 0; i < s->nthreads; i++) {
        const struct sample_thread *t = &s->threads[i];
        put(b, "thread %d %c %d ", t->tid, t->state ? t->state : '-', t->python);
        put_text(b, t->name);
        put_line(b, "wchan", t->wchan);
        put_line(b, "call", t->call);
        for (int k = 0; k < t->nframes; k++)
            put_line(b, "frame", t->frames[k]);
    }
    put(b, "done\n");
}

/* ------------------------------------------------------------------------------------- reading */

/* Takes the word at *at, and the blank behind it if there is one. */
static bool take_word(const char **at, const char *word)
{
    size_t len = strlen(word);
    if (strncmp(*at, word, len) != 0 || ((*at)[len] && (*at)[len] != ' '))
        return false;
    *at += len + ((*at)[len] == ' ');
    return true;
}

/* Takes a decimal number, and the blank behind it if there is one. */
static bool take_number(const char **at, uint64_t max, uint64_t *out)
{
    uint64_t n = 0;
    const char *s = *at;
    for (; *s >= '0' && *s <= '9'; s++) {
        uint64_t digit = (uint64_t)(*s - '0');
        if (digit > max || n > (max - digit) / 10)
            return false;
        n = 10 * n + digit;
    }
    if (s == *at || (*s && *s != ' '))
        return false;
    *at = s + (*s == ' ');
    *out = n;
    return true;
}

static bool take_int(const char **at, int max, int *out)
{
    uint64_t n;
    if (!take_number(at, (uint64_t)max, &n))
        return false;
    *out = (int)n;
    return true;
}

static bool take_flag(const char **at, bool *out)
{
    int n;
    if (!take_int(at, 1, &n))
        return false;
    *out = n;
    return true;
}

/* Takes the text to the end of the line. False: it does not fit, or has what put_text() does not
 * write. */
static bool take_text(const char *at, char *out, size_t cap)
{
    size_t n = 0;
    for (; *at; at++) {
        char c = *at;
        if (c == '\\') {
            c = *++at;
            if (c != 'n' && c != '\\')
                return false;
            c = c == 'n' ? '\n' : c;
        }
        if (n + 1 == cap)
            return false;
        out[n++] = c;
    }
    out[n] = '\0';
    return true;
}

bool inspect_get_worker(const char *line, struct inspect_worker *w)
{
    return take_word(&line, "look") && take_int(&line, WORLD_SIZE_MAX - 1, &w->rank) &&
           take_int(&line, (int)NUMBER_MAX, &w->pid) && take_flag(&line, &w->recorded) && !*line;
}

int inspect_check_version(const char *line, struct err *e)
{
    const char *at = line;
    uint64_t number;
    if (!take_word(&at, INSPECT_NAME) || !take_number(&at, UINT32_MAX, &number) || *at)
        return err_set(e, -EPROTO, "\"%.60s\" is not the first line of " INSPECT_NAME, line);
    if (number != PROTOCOL_INSPECT)
        return err_set(e, -EPROTO, INSPECT_NAME " of another build: protocol %" PRIu64 ", not %u",
                       number, PROTOCOL_INSPECT);
    return 0;
}

static bool begin_sample(struct inspect_reader *r, const char *at)
{
    struct sample *s = &r->now;
    if (!take_int(&at, WORLD_SIZE_MAX - 1, &s->rank) || !take_int(&at, (int)NUMBER_MAX, &s->pid) ||
        *at || !r->asked(r->arg, s->rank, s->pid))
        return false;
    s->node = -1;
    r->open = true;
    return true;
}

static bool end_sample(struct inspect_reader *r, const char *at)
{
    if (*at)
        return false;
    *samples_add(r->all) = r->now;
    r->now = (struct sample){0};
    r->open = false;
    return true;
}

static bool get_numbers(struct sample *s, const char *at)
{
    uint64_t stopped;
    if (!take_number(&at, UINT64_MAX, &s->cpu_ms) || !take_number(&at, UINT64_MAX, &s->io_bytes) ||
        !take_number(&at, UINT32_MAX, &stopped) ||
        !take_int(&at, (int)NUMBER_MAX, &s->more_threads))
        return false;
    s->stopped_us = (uint32_t)stopped;
    return !*at;
}

static bool get_op(struct sample_op *op, const char *at)
{
    return take_number(&at, UINT64_MAX, &op->number) && take_number(&at, UINT64_MAX, &op->group) &&
           take_number(&at, UINT64_MAX, &op->seq) && take_number(&at, UINT64_MAX, &op->age_ms) &&
           take_flag(&at, &op->open) && take_flag(&at, &op->reported) &&
           take_text(at, op->text, sizeof(op->text));
}

static bool get_thread(struct sample *s, const char *at)
{
    int tid;
    if (s->nthreads == SAMPLE_THREADS_MAX || !take_int(&at, (int)NUMBER_MAX, &tid) || !at[0] ||
        at[1] != ' ')
        return false;
    struct sample_thread *t = sample_add_thread(s, tid);
    t->state = at[0] == '-' ? '\0' : at[0];
    at += 2;
    return take_flag(&at, &t->python) && take_text(at, t->name, sizeof(t->name));
}

static bool get_frame(struct sample_thread *t, const char *at)
{
    char text[SAMPLE_TEXT_MAX];
    if (t->nframes == SAMPLE_FRAMES_MAX || !take_text(at, text, sizeof(text)))
        return false;
    sample_add_frame(t, text);
    return true;
}

static bool get_of_thread(struct sample_thread *t, const char *at)
{
    if (take_word(&at, "frame"))
        return get_frame(t, at);
    if (take_word(&at, "wchan"))
        return take_text(at, t->wchan, sizeof(t->wchan));
    return take_word(&at, "call") && take_text(at, t->call, sizeof(t->call));
}

static bool get_of_sample(struct inspect_reader *r, const char *at)
{
    struct sample *s = &r->now;
    if (take_word(&at, "done"))
        return end_sample(r, at);
    if (take_word(&at, "thread"))
        return get_thread(s, at);
    if (take_word(&at, "program"))
        return take_text(at, s->program, sizeof(s->program));
    if (take_word(&at, "note"))
        return take_text(at, s->note, sizeof(s->note));
    if (take_word(&at, "numbers"))
        return get_numbers(s, at);
    if (take_word(&at, "op"))
        return get_op(&s->op, at);
    return s->nthreads > 0 && get_of_thread(&s->threads[s->nthreads - 1], at);
}

static int read_line(struct inspect_reader *r, struct err *e)
{
    const char *at = r->line;
    if (!r->greeted) {
        r->greeted = true;
        return inspect_check_version(r->line, e);
    }
    if (r->open ? get_of_sample(r, at) : take_word(&at, "sample") && begin_sample(r, at))
        return 0;
    return err_set(e, -EPROTO, "\"%.60s\" is no answer of " INSPECT_NAME, r->line);
}

int inspect_read(struct inspect_reader *r, const void *p, size_t n, struct err *e)
{
    const char *s = p;
    for (size_t i = 0; i < n; i++) {
        if (r->len + 1 == sizeof(r->line))
            return err_set(e, -EPROTO, INSPECT_NAME " wrote a line of more than %d bytes",
                           INSPECT_LINE_MAX);
        r->line[r->len++] = s[i] == '\n' ? '\0' : s[i];
        if (s[i] != '\n')
            continue;
        size_t len = r->len - 1;
        r->len = 0;
        if (strlen(r->line) != len)
            return err_set(e, -EPROTO, INSPECT_NAME " wrote a NUL");
        int rc = read_line(r, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void inspect_reader_fini(struct inspect_reader *r)
{
    sample_fini(&r->now);
    r->now = (struct sample){0};
    r->open = false;
}
