#include "collectives/comm/algo_select.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/provider.h"
#include "core/fd.h"

enum { TEXT_MAX = 64 * 1024, WORDS_MAX = 8, KB = 1024, MANY = INT_MAX };

static const struct algo_rule g_builtin[] = {
#define ALL                           SIZE_MAX
#define RANKS(from, to)               from, to, 1, MANY
#define ONE_NODE(from, to)            from, to, 1, 1
#define NODES(from, to)               from, to, 2, MANY
#define TCP(kind, where, bytes, algo) {CALL_##kind, where, 0, bytes, "net", #algo},
#include "collectives/comm/selection.def"
#undef ALL
#undef RANKS
#undef ONE_NODE
#undef NODES
};

const struct algo_rule *algo_select_builtin(size_t *n)
{
    *n = sizeof(g_builtin) / sizeof(g_builtin[0]);
    return g_builtin;
}

/* -------------------------------------------------------------------------------------- parsing */

enum call_kind algo_select_plain_kind(int kind)
{
    switch (kind) {
    case CALL_FINALIZE:
        return CALL_BARRIER;
    case CALL_GATHER_V:
        return CALL_GATHER;
    case CALL_ALL_GATHER_V:
        return CALL_ALL_GATHER;
    case CALL_SCATTER_V:
        return CALL_SCATTER;
    case CALL_REDUCE_SCATTER_V:
        return CALL_REDUCE_SCATTER;
    case CALL_ALL_TO_ALL_V:
        return CALL_ALL_TO_ALL;
    default:
        return (enum call_kind)kind;
    }
}

static bool find_kind(const char *word, int *kind)
{
    *kind = CALL_NONE;
    if (strcmp(word, "*") == 0)
        return true;
    for (int k = CALL_NONE + 1; k < CALL_KINDS; k++) {
        if (strcmp(word, call_name(k)) == 0 && algo_select_plain_kind(k) == (enum call_kind)k) {
            *kind = k;
            return true;
        }
    }
    return false;
}

static bool number(const char **p, size_t *out)
{
    char *end;
    if (!isdigit((unsigned char)**p))
        return false;
    errno = 0;
    unsigned long long v = strtoull(*p, &end, 10);
    int shift = 0;
    switch (tolower((unsigned char)*end)) {
    case 'k':
        shift = 10;
        break;
    case 'm':
        shift = 20;
        break;
    case 'g':
        shift = 30;
        break;
    }
    if (errno || v > (SIZE_MAX >> shift))
        return false;
    *out = (size_t)v << shift;
    *p = end + (shift ? 1 : 0);
    return true;
}

/* Parses "4", "4-", "4-8" or "-8". */
static bool range(const char *p, size_t most, size_t *from, size_t *to)
{
    *from = 0;
    *to = most;
    if (*p != '-' && !number(&p, from))
        return false;
    if (!*p)
        return (*to = *from) <= most;
    if (*p++ != '-')
        return false;
    if (*p && !number(&p, to))
        return false;
    return !*p && *from <= *to && *to <= most;
}

static bool small_range(const char *p, int *from, int *to)
{
    size_t a, b;
    if (!range(p, INT_MAX, &a, &b))
        return false;
    *from = (int)a;
    *to = (int)b;
    return true;
}

static bool condition(struct algo_rule *r, const char *word)
{
    if (strncmp(word, "ranks=", 6) == 0)
        return small_range(word + 6, &r->ranks_from, &r->ranks_to);
    if (strncmp(word, "nodes=", 6) == 0)
        return small_range(word + 6, &r->nodes_from, &r->nodes_to);
    if (strncmp(word, "bytes=", 6) == 0)
        word += 6;
    return range(word, SIZE_MAX, &r->bytes_from, &r->bytes_to);
}

static bool result(struct algo_rule *r, const char *word)
{
    const char *slash = strchr(word, '/');
    size_t n = slash ? (size_t)(slash - word) : strlen(word);
    if (n == 0 || n >= ALGO_NAME_MAX || (slash && strlen(slash + 1) >= ALGO_NAME_MAX))
        return false;
    memcpy(r->provider, word, n);
    if (slash)
        snprintf(r->algo, sizeof(r->algo), "%s", slash + 1);
    return isalpha((unsigned char)word[0]) && (!slash || slash[1]);
}

/* Whether p has the rule's algorithm; its algorithms for the rule's kind are added to `known`. */
static bool has_algo(const struct coll_provider *p, const struct algo_rule *r, char *known,
                     size_t size)
{
    enum call_kind kind;
    const char *name;
    for (size_t i = 0; p->algo && (name = p->algo(i, &kind)); i++) {
        size_t at = strlen(known);
        if (r->kind != CALL_NONE && r->kind != (int)kind)
            continue;
        if (strcmp(r->provider, p->name) == 0 && strcmp(r->algo, name) == 0)
            return true;
        if (r->kind != CALL_NONE)
            snprintf(known + at, size - at, " %s/%s", p->name, name);
    }
    return false;
}

/* A rule whose algorithm does not exist is reported, because it could never apply. */
static int check_names(const struct coll_provider *const *providers, const struct algo_rule *r,
                       const char *word, const char *where, int line, struct err *e)
{
    const struct coll_provider *const *p = providers;
    char known[200] = "";
    while (*p && strcmp((*p)->name, r->provider))
        p++;
    if (!*p)
        return err_set(e, -EINVAL, "%s, rule %d: '%s' is not shm, hier, net or net/ALGORITHM",
                       where, line, word);
    if (!r->algo[0])
        return 0;
    for (p = providers; *p; p++) {
        if (has_algo(*p, r, known, sizeof(known)))
            return 0;
    }
    return err_set(e, -EINVAL, "%s, rule %d: there is no '%s' for %s%s%s", where, line, word,
                   r->kind == CALL_NONE ? "any operation" : call_name(r->kind),
                   known[0] ? ", but" : "", known);
}

/* The rules of one text. */
struct source {
    const struct coll_provider *const *providers;
    const char *where; /* the source's name in messages */
};

static int parse_rule(struct algo_select *t, char *words[], int n, const struct source *from,
                      int line, struct err *e)
{
    const char *where = from->where;
    struct algo_rule r = {.ranks_to = INT_MAX, .nodes_to = INT_MAX, .bytes_to = SIZE_MAX};
    if (n < 2)
        return err_set(
            e, -EINVAL,
            "%s, rule %d: '%s' alone is not a rule (OPERATION [RANGES] PROVIDER[/ALGORITHM])",
            where, line, words[0]);
    if (!find_kind(words[0], &r.kind))
        return err_set(e, -EINVAL, "%s, rule %d: '%s' is not an operation", where, line, words[0]);
    for (int i = 1; i < n - 1; i++) {
        if (!condition(&r, words[i]))
            return err_set(e, -EINVAL,
                           "%s, rule %d: '%s' is not a range (ranks=2-8, nodes=2-, bytes=4k-1m)",
                           where, line, words[i]);
    }
    if (!result(&r, words[n - 1]))
        return err_set(e, -EINVAL, "%s, rule %d: '%s' is not PROVIDER or PROVIDER/ALGORITHM", where,
                       line, words[n - 1]);
    int bad = check_names(from->providers, &r, words[n - 1], where, line, e);
    if (bad < 0)
        return bad;
    struct algo_rule *all = realloc(t->rules, (t->n + 1) * sizeof(*all));
    if (!all)
        return err_set(e, -ENOMEM, "no memory");
    t->rules = all;
    all[t->n++] = r;
    return 0;
}

/* Appends the rules of a text. */
static int algo_select_parse(struct algo_select *t, const char *text, const struct source *from,
                             struct err *e)
{
    char *copy = strdup(text), *rules = NULL, *words_at = NULL;
    int r = copy ? 0 : err_set(e, -ENOMEM, "no memory"), number_of = 0;
    for (char *p = copy; p && *p; p++) { /* comments end with their line */
        if (*p == '#') {
            while (*p && *p != '\n')
                *p++ = ' ';
        }
        if (!*p)
            break;
    }
    for (char *rule = copy ? strtok_r(copy, ";\n", &rules) : NULL; rule && r == 0;
         rule = strtok_r(NULL, ";\n", &rules)) {
        char *words[WORDS_MAX];
        int n = 0;
        for (char *w = strtok_r(rule, " \t\r:", &words_at); w && r == 0;
             w = strtok_r(NULL, " \t\r:", &words_at)) {
            if (n == WORDS_MAX)
                r = err_set(e, -EINVAL, "%s, rule %d: too many words at '%s'", from->where,
                            number_of + 1, w);
            else
                words[n++] = w;
        }
        if (n && r == 0)
            r = parse_rule(t, words, n, from, ++number_of, e);
    }
    free(copy);
    return r;
}

static int parse_file(struct algo_select *t, const struct source *from, struct err *e)
{
    const char *path = from->where;
    char *text = malloc(TEXT_MAX);
    if (!text)
        return err_set(e, -ENOMEM, "no memory");
    ssize_t n = fd_read_file(AT_FDCWD, path, text, TEXT_MAX);
    int r = n < 0 ? err_set(e, -EINVAL, "DLCOLL_TUNE_FILE: %s: %s", path, strerror((int)-n))
                  : algo_select_parse(t, text, from, e);
    free(text);
    return r;
}

int algo_select_init(struct algo_select *t, const struct coll_provider *const *providers,
                     struct err *e)
{
    const char *env = getenv("DLCOLL_ALGO"), *file = getenv("DLCOLL_TUNE_FILE");
    memset(t, 0, sizeof(*t));
    int r =
        env && *env ? algo_select_parse(t, env, &(struct source){providers, "DLCOLL_ALGO"}, e) : 0;
    if (r == 0 && file && *file)
        r = parse_file(t, &(struct source){providers, file}, e);
    if (r < 0)
        algo_select_fini(t);
    return r;
}

void algo_select_fini(struct algo_select *t)
{
    free(t->rules);
    memset(t, 0, sizeof(*t));
}

/* ------------------------------------------------------------------------------------- choosing */

static bool holds(const struct algo_rule *r, const struct algo_key *k)
{
    return (r->kind == CALL_NONE || r->kind == k->kind) && k->ranks >= r->ranks_from &&
           k->ranks <= r->ranks_to && k->nodes >= r->nodes_from && k->nodes <= r->nodes_to &&
           k->bytes >= r->bytes_from && k->bytes <= r->bytes_to;
}

const struct algo_rule *algo_select_next(const struct algo_select *t, const struct algo_key *key,
                                         const char *provider, size_t *at)
{
    size_t nbuiltin = provider ? sizeof(g_builtin) / sizeof(g_builtin[0]) : 0;
    while (*at < t->n + nbuiltin) {
        size_t i = (*at)++;
        const struct algo_rule *r = i < t->n ? &t->rules[i] : &g_builtin[i - t->n];
        if ((!provider || strcmp(r->provider, provider) == 0) && holds(r, key))
            return r;
    }
    return NULL;
}

static int put_range(char *out, size_t size, const char *name, size_t from, size_t to, size_t most)
{
    if (from == 0 && to >= most)
        return 0;
    if (to >= most)
        return snprintf(out, size, " %s=%zu-", name, from);
    return snprintf(out, size, " %s=%zu-%zu", name, from, to);
}

void algo_select_format(const struct algo_rule *r, char *out, size_t size)
{
    char ranks[64] = "", nodes[64] = "", bytes[64] = "";
    put_range(ranks, sizeof(ranks), "ranks", (size_t)r->ranks_from, (size_t)r->ranks_to, INT_MAX);
    if (r->nodes_from > 1 || r->nodes_to < INT_MAX)
        put_range(nodes, sizeof(nodes), "nodes", (size_t)r->nodes_from, (size_t)r->nodes_to,
                  INT_MAX);
    put_range(bytes, sizeof(bytes), "bytes", r->bytes_from, r->bytes_to, SIZE_MAX);
    snprintf(out, size, "%s%s%s%s %s%s%s", r->kind ? call_name(r->kind) : "*", ranks, nodes, bytes,
             r->provider, r->algo[0] ? "/" : "", r->algo);
}
