#include "launcher/options/programs.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/parse.h"
#include "launcher/options/text_file.h"
#include "launcher/options/shell_split.h"
#include "rendezvous/rules/rank_table.h"

#define PROGRAMS_MAX 4096
#define SPANS_MAX    65536

/* ----------------------------------------------------------------------------------- collecting */

static struct opt_programs *programs_new(struct options *o)
{
    struct opt_programs *p = options_alloc(o, sizeof(*p));
    p->list = options_alloc(o, PROGRAMS_MAX * sizeof(*p->list));
    p->rest = -1;
    return p;
}

static void add_span(struct options *o, struct opt_programs *p, long first, long last)
{
    if ((p->nspans & (p->nspans - 1)) == 0) { /* full: 0, 1, 2, 4, 8, ... */
        struct program_span *more =
            options_alloc(o, (size_t)(p->nspans ? 2 * p->nspans : 1) * sizeof(*more));
        if (p->nspans)
            memcpy(more, p->spans, (size_t)p->nspans * sizeof(*more));
        p->spans = more;
    }
    p->spans[p->nspans++] =
        (struct program_span){.first = (int)first, .last = (int)last, .program = p->n};
}

static bool is_wanted(const char *variable, const char *name)
{
    size_t n = strlen(name);
    bool all = n && name[n - 1] == '*';
    return all ? strncmp(variable, name, n - 1) == 0
               : strncmp(variable, name, n) == 0 && variable[n] == '=';
}

char **programs_exports(struct options *o, const char *const *exported, char *const *environment)
{
    size_t n = 0, nenv = 0, nexported = 0;
    while (environment && environment[nenv])
        nenv++;
    while (exported && exported[nexported])
        nexported++;
    char **list = options_alloc(o, (nexported * (nenv + 1) + 1) * sizeof(*list));
    for (size_t i = 0; i < nexported; i++) {
        if (strchr(exported[i], '='))
            list[n++] = options_printf(o, "%s", exported[i]);
        for (size_t k = 0; k < nenv && !strchr(exported[i], '='); k++) {
            if (is_wanted(environment[k], exported[i]))
                list[n++] = environment[k];
        }
    }
    return list;
}

/* --np as the programs have it. */
static int set_np(struct options *o, long n, struct err *e)
{
    const char *source = opt_given(o, OPT_np) ? o->value[OPT_np].source : "--multi_prog";
    if (n > WORLD_SIZE_MAX)
        return err_set(e, -EINVAL, "%s: %ld workers are too many (at most %d)", source, n,
                       WORLD_SIZE_MAX);
    return options_set(o, OPT_np, options_printf(o, "%ld", n), FROM_ARGV, source, e);
}

/* ------------------------------------------------------------------------------------ with ':' */

static bool is_colon(const char *word)
{
    return strcmp(word, ":") == 0;
}

/* Whether the word asks for workers, so that the ':' in front of it is meant to part programs. */
static bool asks_for_workers(const char *word)
{
    return word && (strcmp(word, "-n") == 0 || strcmp(word, "-np") == 0 ||
                    strcmp(word, "--np") == 0 || strncmp(word, "--np=", 5) == 0);
}

/* Reads the words between two ':', which begin with the program's own options. */
static int read_part(struct options *o, struct options *part, int argc, char **argv, int number,
                     struct err *e)
{
    static const enum opt_id own[] = {OPT_np, OPT_export, OPT_wdir};
    options_init(part, o->prog);
    int rc = options_read_argv(part, argc, argv, e);
    if (rc == 0 && part->exported_all)
        rc = err_set(
            e, -EINVAL,
            "%s is for all programs: write it in front of the first one (-x VAR=VALUE is for "
            "one program)",
            part->exported_all[0]);
    for (int i = 0; i < OPT_COUNT && rc == 0; i++) {
        bool mine = false;
        for (size_t k = 0; k < ARRAY_LEN(own); k++)
            mine |= own[k] == (enum opt_id)i;
        if (opt_given(part, i) && !mine)
            rc = err_set(e, -EINVAL,
                         "%s is of the whole job: write it in front of the first program, and "
                         "behind ':' only -n, -x and --wdir",
                         opt_table[i].name);
    }
    if (rc == 0 && !part->command)
        rc = err_set(e, -EINVAL, "the program is missing behind ':' and its options");
    else if (rc == 0 && !opt_given(part, OPT_np))
        rc = err_set(e, -EINVAL, "%.100s: say how many workers run it, -n N behind ':'",
                     part->command[0]);
    else if (rc < 0 && part->command == NULL)
        err_wrap(e, "program %d, behind ':'", number + 1);
    return rc;
}

static int add_part(struct options *o, struct opt_programs *p, struct options *part, long *np,
                    char *const *environment, struct err *e)
{
    long n = opt_number(part, OPT_np);
    const struct opt_value *wdir = &part->value[OPT_wdir];
    if (n == 0 || n > WORLD_SIZE_MAX - *np)
        return err_set(e, -EINVAL, "%s: -n %ld is out of range (at least 1, at most %d in all)",
                       part->command[0], n, WORLD_SIZE_MAX);
    p->list[p->n] = (struct opt_program){
        .command = part->command,
        .env = programs_exports(o, part->exported, environment),
        .wdir = wdir->text,
    };
    add_span(o, p, *np, *np + n - 1);
    p->n++;
    *np += n;
    return 0;
}

/* Refuses a ':' that has no program on one of its sides. */
static int check_colons(char **words, struct err *e)
{
    if (is_colon(words[0]))
        return err_set(e, -EINVAL, "the program is missing in front of ':'");
    for (; *words; words++) {
        if (!is_colon(*words))
            continue;
        if (!words[1])
            return err_set(e, -EINVAL,
                           "the program is missing behind ':' (-- in front of the program makes "
                           "':' its own)");
        if (is_colon(words[1]))
            return err_set(e, -EINVAL, "the program is missing between ':' and ':'");
    }
    return 0;
}

static int split(struct options *o, char *const *environment, struct err *e)
{
    struct opt_programs *p = programs_new(o);
    char **words = o->command, *wdir = (char *)o->value[OPT_wdir].text;
    size_t n = 0, begin = 0;
    long np = 0;
    while (words[n])
        n++;
    char **copy = options_alloc(o, (n + 1) * sizeof(*copy));
    memcpy(copy, words, n * sizeof(*copy));
    for (size_t i = 0; i <= n; i++) {
        if (i < n && !is_colon(copy[i]))
            continue;
        copy[i] = NULL;
        if (p->n == PROGRAMS_MAX)
            return err_set(e, -EINVAL, "more than %d programs", PROGRAMS_MAX);
        if (begin == 0) {
            o->command = copy;
            if (add_part(o, p, o, &np, environment, e) < 0)
                return -EINVAL;
        } else {
            struct options part;
            /* The ':' is in the place of argv[0]. */
            int rc = read_part(o, &part, (int)(i - begin + 1), copy + begin - 1, p->n, e);
            if (rc == 0)
                rc = add_part(o, p, &part, &np, environment, e);
            if (rc == 0 && !p->list[p->n - 1].wdir && o->value[OPT_wdir].from != FROM_ARGV)
                p->list[p->n - 1].wdir = wdir;
            options_keep(o, &part);
            if (rc < 0)
                return rc;
        }
        begin = i + 1;
    }
    o->exported = NULL; /* these are the first program's */
    programs_order(p->spans, p->nspans);
    o->programs = p;
    return set_np(o, np, e);
}

/* ------------------------------------------------------------------------------------ the file */

struct file {
    struct options *o;
    struct opt_programs *p;
    const char *name;
    int line;                /* on which the present program begins */
    int lines[PROGRAMS_MAX]; /* of the programs */
    char **more;             /* arguments of the command line; NULL-terminated */
};

__attribute__((format(printf, 3, 4))) static int wrong(const struct file *f, struct err *e,
                                                       const char *fmt, ...)
{
    char text[ERR_MSG_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(e, -EINVAL, "%s:%d: %s", f->name, f->line, text);
}

static int add_ranks(struct file *f, long first, long last, struct err *e)
{
    struct opt_programs *p = f->p;
    for (int i = 0; i < p->nspans; i++) {
        const struct program_span *s = &p->spans[i];
        if (first > s->last || last < s->first)
            continue;
        long rank = first > s->first ? first : s->first;
        return s->program == p->n ? wrong(f, e, "rank %ld is there twice", rank)
                                  : wrong(f, e, "rank %ld has a program already, on line %d", rank,
                                          f->lines[s->program]);
    }
    if (p->nspans == SPANS_MAX)
        return wrong(f, e, "more than %d ranges of ranks", SPANS_MAX);
    add_span(f->o, p, first, last);
    return 0;
}

/* "0,4-7" or "*", up to the blank. */
static int read_ranks(struct file *f, const char *s, size_t len, struct err *e)
{
    const char *text = s, *end = s + len;
    if (len == 1 && *s == '*') {
        if (f->p->rest >= 0)
            return wrong(f, e, "'*' is there already, on line %d", f->lines[f->p->rest]);
        f->p->rest = f->p->n;
        return 0;
    }
    for (;; s++) {
        char *to;
        bool good = isdigit((unsigned char)*s);
        long first = good ? strtol(s, &to, 10) : 0, last = first;
        if (good && *to == '-') {
            good = isdigit((unsigned char)to[1]);
            last = good ? strtol(to + 1, &to, 10) : 0;
        }
        if (!good || to > end || (to < end && *to != ','))
            return wrong(f, e, "'%.*s' is neither ranks such as 0,4-7 nor *",
                         (int)(len > 60 ? 60 : len), text);
        if (first > last || last >= WORLD_SIZE_MAX)
            return wrong(f, e,
                         first > last ? "ranks %ld-%ld: the first is greater than the last"
                                      : "ranks %ld-%ld: the greatest possible is %d",
                         first, last, WORLD_SIZE_MAX - 1);
        if (add_ranks(f, first, last, e) < 0)
            return -EINVAL;
        s = to;
        if (s == end)
            return 0;
    }
}

/* Every % that does not stand for a number is doubled: between single quotes all of them. */
static char *mark_numbers(struct options *o, const char *s)
{
    char *out = options_alloc(o, 2 * strlen(s) + 1), *to = out;
    char quote = 0;
    for (; *s; s++) {
        if (*s == '\\' && quote != '\'' && s[1]) {
            *to++ = *s++;
        } else if (quote ? *s == quote : (*s == '\'' || *s == '"')) {
            quote = quote ? 0 : *s;
        } else if (*s == '%' && (quote == '\'' || (s[1] != 't' && s[1] != 'o'))) {
            *to++ = '%';
        }
        *to++ = *s;
    }
    *to = '\0';
    return out;
}

static int read_program(struct file *f, const char *text, struct err *e)
{
    struct opt_programs *p = f->p;
    size_t ranks = strcspn(text, " \t"), n = 0, more = 0;
    char **words;
    if (p->n == PROGRAMS_MAX)
        return wrong(f, e, "more than %d programs", PROGRAMS_MAX);
    f->lines[p->n] = f->line;
    if (read_ranks(f, text, ranks, e) < 0)
        return -EINVAL;
    text += ranks + strspn(text + ranks, " \t");
    if (!*text)
        return wrong(f, e, "the program is missing behind the ranks");
    if (shell_split(f->o, mark_numbers(f->o, text), &words, e) < 0)
        return err_wrap(e, "%s:%d", f->name, f->line);
    while (words[n])
        n++;
    while (f->more && f->more[more])
        more++;
    char **command = options_alloc(f->o, (n + more + 1) * sizeof(*command));
    memcpy(command, words, n * sizeof(*command));
    for (size_t i = 0; i < more; i++)
        command[n + i] = mark_numbers(f->o, f->more[i]);
    p->list[p->n++] = (struct opt_program){.command = command,
                                           .env = options_alloc(f->o, sizeof(char *)),
                                           .wdir = f->o->value[OPT_wdir].text,
                                           .numbered = true};
    return 0;
}

/* Reads the lines; one that ends with a backslash goes on in the next. */
static int read_lines(struct file *f, char *text, struct err *e)
{
    int line = 0;
    for (char *next; text; text = next) {
        f->line = ++line;
        next = strchr(text, '\n');
        while (next && next > text && next[-1] == '\\') {
            next[-1] = *next = ' ';
            line++;
            next = strchr(next, '\n');
        }
        if (next)
            *next++ = '\0';
        size_t len = strlen(text);
        while (len && isspace((unsigned char)text[len - 1]))
            text[--len] = '\0';
        text += strspn(text, " \t");
        if (*text && *text != '#' && read_program(f, text, e) < 0)
            return -EINVAL;
    }
    return f->p->n ? 0 : err_set(e, -EINVAL, "%s: there is no program in it", f->name);
}

/* Returns the number of workers that the options give; 0: none given. */
static long workers_of(const struct options *o)
{
    long nodes, nproc;
    if (opt_given(o, OPT_np))
        return opt_number(o, OPT_np);
    if (opt_given(o, OPT_host) || opt_given(o, OPT_hostfile) ||
        opt_given(o, OPT_host_discovery_script) || opt_given(o, OPT_ppn) ||
        parse_int(opt_text(o, OPT_nnodes), 1, NNODES_MAX, &nodes, NULL) < 0 ||
        parse_int(opt_text(o, OPT_nproc_per_node), 1, NPROC_MAX, &nproc, NULL) < 0)
        return 0;
    return opt_given(o, OPT_nproc_per_node) && nodes == 1 ? nproc : 0;
}

/* Whether each of the workers has a program. */
static int check_file(struct file *f, long workers, struct err *e)
{
    const struct opt_programs *p = f->p;
    long next = 0;
    int i = 0;
    for (; i < p->nspans; i++) {
        const struct program_span *s = &p->spans[i];
        f->line = f->lines[s->program];
        if (workers && s->last >= workers)
            return wrong(f, e, "rank %ld, but the job has %ld worker%s (%s)",
                         s->first > workers ? s->first : workers, workers, workers == 1 ? "" : "s",
                         opt_where(f->o, opt_given(f->o, OPT_np) ? OPT_np : OPT_nproc_per_node));
        if (s->first > next && p->rest < 0)
            break;
        next = s->last + 1;
    }
    if (p->rest >= 0 || (i == p->nspans && next >= workers))
        return 0;
    return err_set(e, -EINVAL,
                   "%s: rank %ld has no program (a line with * has all ranks that are "
                   "left)",
                   f->name, next);
}

static int read_file(struct options *o, struct err *e)
{
    struct file f = {.o = o, .p = programs_new(o), .name = opt_text(o, OPT_multi_prog)};
    f.more = o->command_from == FROM_ARGV ? o->command : NULL;
    char *text = text_file_read(f.name, e);
    if (!text)
        return err_wrap(e, "%s", opt_where(o, OPT_multi_prog));
    int rc = read_lines(&f, text, e);
    free(text);
    if (rc < 0)
        return rc;
    programs_order(f.p->spans, f.p->nspans);
    long workers = workers_of(o);
    if (check_file(&f, workers, e) < 0)
        return -EINVAL;
    o->programs = f.p;
    o->command = f.p->list[0].command;
    o->command_source = f.name;
    if (workers || f.p->rest >= 0 || opt_given(o, OPT_nproc_per_node) || opt_given(o, OPT_nnodes) ||
        opt_given(o, OPT_ppn) || opt_given(o, OPT_host) || opt_given(o, OPT_hostfile) ||
        opt_given(o, OPT_host_discovery_script))
        return 0;
    return set_np(o, f.p->spans[f.p->nspans - 1].last + 1L, e);
}

int programs_read(struct options *o, char *const *environment, struct err *e)
{
    bool colon = false, asks = false;
    char **words =
        o->command_from == FROM_ARGV && !o->command_literal && !o->torchrun ? o->command : NULL;
    for (char **w = words; w && *w; w++) {
        colon |= is_colon(*w);
        asks |= is_colon(*w) && asks_for_workers(w[1]);
    }
    if (opt_given(o, OPT_multi_prog))
        return read_file(o, e);
    if (!colon || (!is_colon(words[0]) && !asks && o->value[OPT_np].from != FROM_ARGV))
        return 0;
    if (check_colons(words, e) < 0)
        return -EINVAL;
    if (o->value[OPT_np].from != FROM_ARGV)
        return err_set(e, -EINVAL, "%.100s: say how many workers run it, -n N in front of it",
                       words[0]);
    return split(o, environment, e);
}

int programs_fit(struct options *o, long workers, struct err *e)
{
    const struct opt_programs *p = o->programs;
    if (!p)
        return 0;
    struct programs all = {.list = options_alloc(o, (size_t)p->n * sizeof(*all.list)),
                           .n = p->n,
                           .spans = p->spans,
                           .nspans = p->nspans,
                           .rest = p->rest};
    for (int i = 0; i < p->n; i++)
        all.list[i].name = p->list[i].command[0];
    if (programs_check(&all, (int)workers, e) == 0)
        return 0;
    return err_wrap(e, "%s", opt_where(o, opt_given(o, OPT_multi_prog) ? OPT_multi_prog : OPT_np));
}

/* ------------------------------------------------------------------------------ for another host
 */

/*     programs, rest, spans, (first, last, program)..., for each program: its folder, numbered,
 *     how many variables, these, how many words, these */
struct list {
    struct options *o;
    char **words;
    size_t n, cap;
};

static void add_word(struct list *l, const char *word)
{
    if (l->n + 1 >= l->cap) {
        l->cap = l->cap ? 2 * l->cap : 64;
        char **more = options_alloc(l->o, l->cap * sizeof(*more));
        if (l->n)
            memcpy(more, l->words, l->n * sizeof(*more));
        l->words = more;
    }
    l->words[l->n++] = (char *)word;
}

static void add_int(struct list *l, int value)
{
    add_word(l, options_printf(l->o, "%d", value));
}

static void add_words(struct list *l, char *const *words)
{
    int n = 0;
    while (words[n])
        n++;
    add_int(l, n);
    for (int i = 0; i < n; i++)
        add_word(l, words[i]);
}

char **programs_put(struct options *o)
{
    const struct opt_programs *p = o->programs;
    struct list l = {.o = o};
    if (!p)
        return NULL;
    add_int(&l, p->n);
    add_int(&l, p->rest);
    add_int(&l, p->nspans);
    for (int i = 0; i < p->nspans; i++) {
        add_int(&l, p->spans[i].first);
        add_int(&l, p->spans[i].last);
        add_int(&l, p->spans[i].program);
    }
    for (int i = 0; i < p->n; i++) {
        add_word(&l, p->list[i].wdir ? p->list[i].wdir : "");
        add_int(&l, p->list[i].numbered);
        add_words(&l, p->list[i].env);
        add_words(&l, p->list[i].command);
    }
    return l.words;
}

struct taker {
    struct options *o;
    char *const *at; /* NULL: something was wrong */
};

static char *take_word(struct taker *t)
{
    if (!t->at || !*t->at) {
        t->at = NULL;
        return (char *)"";
    }
    return *t->at++;
}

static int take_int(struct taker *t, long min, long max)
{
    long value;
    if (parse_int(take_word(t), min, max, &value, NULL) == 0)
        return (int)value;
    t->at = NULL;
    return (int)min;
}

static char **take_words(struct taker *t)
{
    int n = take_int(t, 0, INT_MAX), there = 0;
    while (t->at && there < n && t->at[there])
        there++;
    char **words = options_alloc(t->o, ((size_t)there + 1) * sizeof(*words));
    for (int i = 0; i < there; i++)
        words[i] = options_printf(t->o, "%s", take_word(t));
    if (there < n)
        t->at = NULL;
    return words;
}

int programs_take(struct options *o, char *const *words, struct err *e)
{
    struct taker t = {o, words};
    if (!words || !*words)
        return 0;
    struct opt_programs *p = programs_new(o);
    int n = take_int(&t, 1, PROGRAMS_MAX), rest = take_int(&t, -1, n - 1),
        nspans = take_int(&t, 0, SPANS_MAX);
    for (int i = 0; i < nspans && t.at; i++) {
        int first = take_int(&t, 0, WORLD_SIZE_MAX - 1);
        int last = take_int(&t, first, WORLD_SIZE_MAX - 1);
        p->n = take_int(&t, 0, n - 1);
        add_span(o, p, first, last);
    }
    for (int i = 0; i < n && t.at; i++) {
        const char *wdir = options_printf(o, "%s", take_word(&t));
        p->list[i].wdir = *wdir ? wdir : NULL;
        p->list[i].numbered = take_int(&t, 0, 1);
        p->list[i].env = take_words(&t);
        p->list[i].command = take_words(&t);
        if (!p->list[i].command[0])
            t.at = NULL;
    }
    if (!t.at || *t.at)
        return err_set(e, -EPROTO, "malformed list of programs");
    p->n = n;
    p->rest = rest;
    programs_order(p->spans, p->nspans);
    o->programs = p;
    o->command = p->list[0].command;
    return 0;
}
