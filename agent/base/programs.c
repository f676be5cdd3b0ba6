#include "agent/base/programs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/base/template.h"
#include "core/bytes.h"
#include "core/mem.h"

static int by_first(const void *a, const void *b)
{
    const struct program_span *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

void programs_order(struct program_span *spans, int n)
{
    if (n == 0)
        return;
    qsort(spans, (size_t)n, sizeof(*spans), by_first);
    int before = 0, nprograms = 0;
    for (int i = 0; i < n; i++)
        nprograms = spans[i].program >= nprograms ? spans[i].program + 1 : nprograms;
    int *used = xcalloc((size_t)nprograms, sizeof(*used));
    for (int i = 0; i < n; i++) {
        int len = spans[i].last - spans[i].first + 1;
        spans[i].before = before;
        spans[i].offset = used[spans[i].program];
        before += len;
        used[spans[i].program] += len;
    }
    free(used);
}

int programs_check(const struct programs *p, int world_size, struct err *e)
{
    int next = 0;
    if (!p)
        return 0;
    for (int i = 0; i < p->nspans; i++) {
        const struct program_span *s = &p->spans[i];
        if (s->last >= world_size)
            return err_set(e, -EINVAL,
                           "a program is given for rank %d (%s), but the job has %d "
                           "worker%s",
                           s->first > world_size ? s->first : world_size, p->list[s->program].name,
                           world_size, world_size == 1 ? "" : "s");
        if (s->first > next && p->rest < 0)
            break;
        next = s->last + 1;
    }
    if (next < world_size && p->rest < 0)
        return err_set(e, -EINVAL, "rank %d of %d has no program", next, world_size);
    return 0;
}

/* The last span that begins at this rank or before it; NULL: none does. */
static const struct program_span *span_at(const struct programs *p, int rank)
{
    int lo = 0, hi = p->nspans;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (p->spans[mid].first <= rank)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo ? &p->spans[lo - 1] : NULL;
}

int programs_find(const struct programs *p, int rank, int *offset)
{
    const struct program_span *s = p ? span_at(p, rank) : NULL;
    bool inside = s && rank <= s->last;
    if (offset && inside)
        *offset = s->offset + rank - s->first;
    else if (offset)
        *offset = rank - (s ? s->before + s->last - s->first + 1 : 0);
    return inside ? s->program : p && p->rest >= 0 ? p->rest : 0;
}

const struct program *programs_of(const struct programs *p, int rank)
{
    return p ? &p->list[programs_find(p, rank, NULL)] : NULL;
}

const char *programs_name(const struct programs *p, int rank)
{
    return p && rank >= 0 ? programs_of(p, rank)->name : NULL;
}

/* A malloc'ed copy with the numbers filled in. */
static char *fill_in(const char *text, int rank, int offset)
{
    struct buf b = BUF_INIT;
    char number[16];
    xbuf_reserve(&b, strlen(text) * sizeof(number) + 1);
    for (const char *s = text; *s; s++) {
        int value = *s == '%' && s[1] == 't' ? rank : *s == '%' && s[1] == 'o' ? offset : -1;
        if (value >= 0)
            buf_put(&b, number, (size_t)snprintf(number, sizeof(number), "%d", value));
        else
            buf_put(&b, s, 1);
        s += *s == '%' && (value >= 0 || s[1] == '%');
    }
    buf_u8(&b, 0);
    return (char *)b.data;
}

char **programs_argv_new(const struct programs *p, int rank, int local_rank)
{
    int offset, index = programs_find(p, rank, &offset);
    const struct program *program = &p->list[index];
    char number[16];
    const struct template_var vars[] = {{"local_rank", number}};
    size_t n = 0, bytes = 0;
    snprintf(number, sizeof(number), "%d", local_rank);
    while (program->argv[n])
        n++;
    char **words = xcalloc(n, sizeof(*words));
    for (size_t i = 0; i < n; i++) {
        words[i] = i && strchr(program->argv[i], '$')
                       ? template_expand(program->argv[i], vars, ARRAY_LEN(vars), TEMPLATE_BRACED)
                       : xstrdup(program->argv[i]);
        if (program->numbered && strchr(words[i], '%')) {
            char *filled = fill_in(words[i], rank, offset);
            free(words[i]);
            words[i] = filled;
        }
        bytes += strlen(words[i]) + 1;
    }
    char **argv = xmalloc((n + 1) * sizeof(*argv) + bytes), *to = (char *)(argv + n + 1);
    for (size_t i = 0; i < n; i++) {
        argv[i] = to;
        to = stpcpy(to, words[i]) + 1;
        free(words[i]);
    }
    argv[n] = NULL;
    free(words);
    return argv;
}
