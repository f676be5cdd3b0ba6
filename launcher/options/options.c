#include "launcher/options/options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/log.h"
#include "core/mem.h"
#include "core/parse.h"
#include "core/segment.h"
#include "launcher/options/mpi_words.h"
#include "rendezvous/rules/rank_table.h"

#define PET    OPT_F_PET
#define TR     OPT_F_TR
#define CLI    OPT_F_CLI
#define CLIENV OPT_F_CLIENV
#define BRIEF  OPT_F_BRIEF
const struct opt opt_table[OPT_COUNT] = {
#define OPT(name, letter, kind, flags, group, values, def, help) \
    {"--" #name, letter, KIND_##kind, flags, GROUP_##group, values, def, help},
#include "launcher/options/options.def"
#undef OPT
};
#undef PET
#undef TR
#undef CLI
#undef CLIENV
#undef BRIEF

const struct opt_group opt_groups[GROUP_COUNT] = {
    [GROUP_JOB] = {"job", NULL, "Nodes and workers"},
    [GROUP_HOSTS] = {"hosts", NULL, "Hosts"},
    [GROUP_RDZV] = {"rendezvous", "rdzv_", "Rendezvous"},
    [GROUP_SECURITY] = {"security", NULL, "Security"},
    [GROUP_PROGRAM] = {"program", NULL, "Program"},
    [GROUP_RESTART] = {"restart", "restart_", "Restarts"},
    [GROUP_STOP] = {"stop", NULL, "Stopping"},
    [GROUP_LOG] = {"log", "log_", "Output"},
    [GROUP_BIND] = {"bind", NULL, "Binding to CPUs"},
    [GROUP_CHECK] = {"check", NULL, "Checks"},
    [GROUP_DAEMON] = {"daemon", NULL, "Background"},
    [GROUP_INFO] = {NULL, NULL, "Configuration and information"},
};

/* --------------------------------------------------------------------------------------- memory */

struct options_mem {
    struct options_mem *next;
    max_align_t data[];
};

void *options_alloc(struct options *o, size_t size)
{
    struct options_mem *m = xcalloc(1, sizeof(*m) + size);
    m->next = o->mem;
    o->mem = m;
    return m->data;
}

char *options_printf(struct options *o, const char *fmt, ...)
{
    char text[256];
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    size_t size = (size_t)(n < 0 ? 0 : n) + 1;
    char *kept = options_alloc(o, size);
    if (size <= sizeof(text))
        memcpy(kept, text, size - 1);
    else
        vsnprintf(kept, size, fmt, again);
    va_end(again);
    return kept;
}

void options_keep(struct options *o, struct options *other)
{
    struct options_mem **end = &o->mem;
    while (*end)
        end = &(*end)->next;
    *end = other->mem;
    other->mem = NULL;
}

struct opt_note {
    struct opt_note *next;
    bool warning;
    const char *text;
};

static void keep_note(struct options *o, bool warning, const char *fmt, va_list ap)
{
    char text[ERR_MSG_MAX];
    struct opt_note *note = options_alloc(o, sizeof(*note)), **end = &o->notes;
    vsnprintf(text, sizeof(text), fmt, ap);
    *note = (struct opt_note){.warning = warning, .text = options_printf(o, "%s", text)};
    while (*end)
        end = &(*end)->next;
    *end = note;
}

void options_warn(struct options *o, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    keep_note(o, true, fmt, ap);
    va_end(ap);
}

void options_note(struct options *o, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    keep_note(o, false, fmt, ap);
    va_end(ap);
}

void options_log_notes(struct options *o)
{
    for (; o->notes; o->notes = o->notes->next) {
        if (o->notes->warning)
            log_warn("%s", o->notes->text);
        else
            log_notice("%s", o->notes->text);
    }
}

const char *options_env(const struct options *o, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = o->nenv; i-- > 0;) { /* the last one wins */
        if (strncmp(o->env[i], name, len) == 0 && o->env[i][len] == '=')
            return o->env[i] + len + 1;
    }
    for (char *const *env = o->envp; env && *env; env++) {
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=')
            return *env + len + 1;
    }
    return NULL;
}

static void set_default(struct options *o, enum opt_id id, const char *text)
{
    o->value[id] = (struct opt_value){text, "default", FROM_DEFAULT};
}

void options_init(struct options *o, const char *argv0)
{
    memset(o, 0, sizeof(*o));
    const char *slash = argv0 ? strrchr(argv0, '/') : NULL;
    o->prog = slash ? slash + 1 : argv0 ? argv0 : "dlaunch";
    o->exit_status = 2;
    bool launch = strcmp(o->prog, "torch.distributed.launch") == 0;
    o->torchrun = launch || strcmp(o->prog, "torchrun") == 0;
    for (int i = 0; i < OPT_COUNT; i++)
        set_default(o, i,
                    opt_table[i].kind == KIND_FLAG && !opt_table[i].def ? "0" : opt_table[i].def);
    if (launch)
        set_default(o, OPT_use_env, "0");
    if (o->torchrun)
        set_default(o, OPT_stdin, "all");
    if (strcmp(o->prog, "dlaunchd") == 0)
        set_default(o, OPT_serve, "1");
}

void options_fini(struct options *o)
{
    while (o->mem) {
        struct options_mem *m = o->mem;
        o->mem = m->next;
        free(m);
    }
}

/* ---------------------------------------------------------------------------------------- names */

/* Whether the first n letters of `name` are those of `key`, '-' standing for '_'. */
static bool same_letters(const char *name, const char *key, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = name[i] == '-' ? '_' : name[i];
        if (c != key[i])
            return false;
    }
    return true;
}

enum opt_id opt_find(const char *name, size_t len)
{
    char lower[64];
    if (len >= sizeof(lower))
        return OPT_COUNT;
    for (size_t i = 0; i < len; i++)
        lower[i] = (char)tolower((unsigned char)name[i]);
    for (int i = 0; i < OPT_COUNT; i++) {
        const char *key = OPT_KEY(&opt_table[i]);
        if (strlen(key) == len && same_letters(lower, key, len))
            return i;
    }
    return OPT_COUNT;
}

/* Returns the name that is near `name` or begins with it, among the options that have all flags of
 * `with` and none of `without`, and `other` (NULL: none); or NULL. */
static const char *nearest(const char *name, unsigned with, unsigned without, const char *other)
{
    const char *names[OPT_COUNT + 2];
    char lower[64];
    size_t n = 0, len = strlen(name);
    for (int i = 0; i < OPT_COUNT; i++) {
        if ((opt_table[i].flags & with) == with && !(opt_table[i].flags & without))
            names[n++] = OPT_KEY(&opt_table[i]);
    }
    names[n] = other;
    names[n + 1] = NULL;
    const char *best = parse_nearest(name, names);
    if (best || len < 3 || len >= sizeof(lower))
        return best;
    for (size_t i = 0; i < len; i++)
        lower[i] = (char)tolower((unsigned char)name[i]);
    for (size_t i = 0; !best && i < n; i++) {
        if (strlen(names[i]) > len && same_letters(lower, names[i], len))
            best = names[i];
    }
    return best;
}

const char *opt_nearest(const char *name, const char *dashes, char out[64])
{
    const char *best = nearest(name, 0, 0, NULL);
    out[0] = '\0';
    if (best)
        snprintf(out, 64, " (did you mean %s%s?)", dashes, best);
    return out;
}

const char *opt_word(const char *words, int index, size_t *len)
{
    while (index-- > 0) {
        words = strchr(words, '|');
        if (!words)
            return NULL;
        words++;
    }
    *len = strcspn(words, "|");
    return words;
}

/* --------------------------------------------------------------------------------------- values */

static int find_word(const char *words, const char *text)
{
    size_t len;
    const char *w;
    for (int i = 0; (w = opt_word(words, i, &len)); i++) {
        if (strlen(text) == len && memcmp(w, text, len) == 0)
            return i;
    }
    return -1;
}

static int check_choice(const struct opt *opt, const char *text, struct err *e)
{
    if (find_word(opt->values, text) >= 0)
        return 0;
    char list[128] = "", copy[128];
    const char *candidates[8], *best = NULL;
    size_t n = 0, used = 0, len;
    const char *w;
    char *c = copy;
    for (; n < ARRAY_LEN(candidates) - 1 && (w = opt_word(opt->values, (int)n, &len)); n++) {
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%.*s", n ? ", " : "",
                                 (int)len, w);
        memcpy(c, w, len);
        c[len] = '\0';
        candidates[n] = c;
        c += len + 1;
    }
    candidates[n] = NULL;
    best = parse_nearest(text, candidates);
    return err_set(e, -EINVAL, "'%.100s' is not one of %s%s%s%s", text, list,
                   best ? " (did you mean " : "", best ? best : "", best ? "?)" : "");
}

static int check_nproc(const char *text, struct err *e)
{
    long n;
    static const char *const words[] = {"auto", "cpu", "gpu"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (strcmp(text, words[i]) == 0)
            return 0;
    }
    if (parse_int(text, LONG_MIN, LONG_MAX, &n, NULL) < 0)
        return err_set(e, -EINVAL, "'%.100s' is neither a number nor auto, cpu or gpu", text);
    return parse_int(text, 1, NPROC_MAX, &n, e);
}

int opt_check(enum opt_id id, const char *text, struct err *e)
{
    const struct opt *opt = &opt_table[id];
    long n;
    int lo, hi;
    double s;
    bool b;
    switch (opt->kind) {
    case KIND_TEXT:
        return 0;
    case KIND_FLAG: /* torchrun reads PET_<FLAG> as a whole number */
        return parse_int(text, LONG_MIN, LONG_MAX, &n, NULL) == 0 ? 0 : parse_bool(text, &b, e);
    case KIND_CHOICE:
        return check_choice(opt, text, e);
    case KIND_NUMBER:
        return parse_int(text, 0, INT_MAX, &n, e);
    case KIND_RANK:
        if (strcmp(text, "any") == 0)
            return 0;
        if (parse_int(text, LONG_MIN, LONG_MAX, &n, NULL) < 0)
            return err_set(e, -EINVAL, "'%.100s' is neither a whole number nor any", text);
        return parse_int(text, 0, NNODES_MAX - 1, &n, e);
    case KIND_PORT:
        return parse_int(text, 0, 65535, &n, e);
    case KIND_SECONDS:
        return parse_seconds(text, &s, e);
    case KIND_NODES:
        return parse_range(text, &lo, &hi, e);
    case KIND_NPROC:
        return check_nproc(text, e);
    }
    return 0;
}

static const char *flag_text(const char *text)
{
    long n;
    bool on;
    if (parse_bool(text, &on, NULL) == 0)
        return on ? "1" : "0";
    return parse_int(text, LONG_MIN, LONG_MAX, &n, NULL) == 0 && n != 0 ? "1" : "0";
}

/* Returns the exit status for a wrong value. What argparse accepts, torchrun refuses earlier (the
 * value of a flag's variable) or later, and exits with 1. */
static int exit_status(const struct options *o, enum opt_id id, const char *text,
                       enum opt_from from)
{
    long n;
    enum opt_kind kind = opt_table[id].kind;
    bool number =
        kind == KIND_NUMBER || kind == KIND_RANK || kind == KIND_PORT || kind == KIND_SECONDS;
    bool later = kind == KIND_NODES || kind == KIND_NPROC || kind == KIND_FLAG ||
                 from == FROM_DETECTED ||
                 (number && parse_int(text, LONG_MIN, LONG_MAX, &n, NULL) == 0);
    return o->torchrun && later ? 1 : 2;
}

static const char **append(struct options *o, const char **to, const char *text)
{
    size_t n = 0;
    while (to && to[n])
        n++;
    const char **list = options_alloc(o, (n + 2) * sizeof(*list));
    if (n)
        memcpy(list, to, n * sizeof(*list));
    list[n] = text;
    return list;
}

static int check(enum opt_id id, const char *text, struct err *e)
{
    if (id == OPT_export && !parse_is_export(text))
        return err_set(e, -EINVAL, PARSE_NO_VARIABLE, (int)strcspn(text, "="), text);
    return opt_check(id, text, e);
}

int options_set(struct options *o, enum opt_id id, const char *text, enum opt_from from,
                const char *source, struct err *e)
{
    if (from < o->value[id].from)
        return 0;
    /* argparse does not look at the choices of a default, which the variable is. */
    if (o->torchrun && from == FROM_PET && opt_table[id].kind == KIND_CHOICE &&
        find_word(opt_table[id].values, text) < 0)
        return 0;
    if (check(id, text, e) < 0) {
        o->exit_status = exit_status(o, id, text, from);
        return err_wrap(e, from == FROM_FILE ? "%s: %s" : "%s", source, OPT_KEY(&opt_table[id]));
    }
    if (opt_table[id].kind == KIND_FLAG)
        text = flag_text(text);
    if (id == OPT_export)
        o->exported = append(o, o->exported, text);
    o->value[id] = (struct opt_value){text, source, from};
    return 0;
}

bool opt_flag(const struct options *o, enum opt_id id)
{
    return o->value[id].text[0] == '1';
}

long opt_number(const struct options *o, enum opt_id id)
{
    return strtol(opt_text(o, id), NULL, 10);
}

double opt_seconds(const struct options *o, enum opt_id id)
{
    double s = 0;
    parse_seconds(opt_text(o, id), &s, NULL);
    return s;
}

bool opt_is(const struct options *o, enum opt_id id, const char *word)
{
    assert(opt_table[id].kind == KIND_CHOICE && find_word(opt_table[id].values, word) >= 0);
    return strcmp(opt_text(o, id), word) == 0;
}

const char *opt_where(struct options *o, enum opt_id id)
{
    const struct opt_value *v = &o->value[id];
    if (v->from == FROM_DEFAULT)
        return opt_table[id].name;
    if (v->from == FROM_FILE)
        return options_printf(o, "%s: %s", v->source, OPT_KEY(&opt_table[id]));
    return v->source;
}

/* ----------------------------------------------------------------------------------------- argv */

enum arg_class {
    ARG_PLAIN,     /* value, or the program */
    ARG_OPTION,    /* *m: the option, and the value that is joined to it */
    ARG_AMBIGUOUS, /* a prefix of several options */
    ARG_UNKNOWN,
    ARG_DASHES, /* "--" */
};

struct path_test {
    enum opt_id id;
    const char *value; /* behind '=', or behind a letter; NULL: none */
    bool letter;
};

/* -N and -.N are values and not options, as in argparse. */
static bool is_negative_number(const char *a)
{
    const char *p = a + 1;
    size_t whole = strspn(p, "0123456789");
    p += whole;
    if (*p != '.')
        return whole > 0 && !*p;
    size_t part = strspn(++p, "0123456789");
    return part > 0 && !p[part];
}

/* Under the name torchrun there are no options for hosts, and torchrun has no letter for nodes. */
static enum opt_id find_letter(const struct options *o, char c)
{
    for (int i = 0; c && i < OPT_COUNT; i++) {
        if (opt_table[i].letter == c &&
            !(o->torchrun && (opt_table[i].group == GROUP_HOSTS || i == OPT_nnodes)))
            return i;
    }
    return OPT_COUNT;
}

/* Finds the option that has this name, or the only one that begins with it. Under the name
 * torchrun, torchrun's own options come first, so that a prefix that is unambiguous there stays so.
 */
static enum arg_class find_long(const struct options *o, const char *name, size_t len,
                                enum opt_id *id)
{
    int hits = 0, tr_hits = 0;
    enum opt_id hit = OPT_COUNT, tr_hit = OPT_COUNT;
    for (int i = 0; i < OPT_COUNT; i++) {
        const char *key = OPT_KEY(&opt_table[i]);
        size_t n = strlen(key);
        if (len > n || !same_letters(name, key, len) ||
            (o->torchrun && opt_table[i].group == GROUP_HOSTS))
            continue;
        if (len == n) {
            *id = i;
            return ARG_OPTION;
        }
        hits++;
        hit = i;
        if (opt_table[i].flags & OPT_F_TR) {
            tr_hits++;
            tr_hit = i;
        }
    }
    if (o->torchrun && tr_hits == 1) {
        hits = 1;
        hit = tr_hit;
    }
    *id = hit;
    return hits == 1 ? ARG_OPTION : hits ? ARG_AMBIGUOUS : ARG_UNKNOWN;
}

static enum arg_class classify(const struct options *o, const char *a, struct path_test *m)
{
    enum arg_class class = ARG_UNKNOWN;
    *m = (struct path_test){OPT_COUNT, NULL, false};
    if (a[0] != '-' || a[1] == '\0')
        return ARG_PLAIN;
    if (strcmp(a, "--") == 0)
        return ARG_DASHES;
    if (a[1] == '-') {
        size_t len = strcspn(a + 2, "=");
        class = find_long(o, a + 2, len, &m->id);
        m->value = a[2 + len] == '=' ? a + 2 + len + 1 : NULL;
    } else if ((m->id = find_letter(o, a[1])) != OPT_COUNT) {
        /* -env and the like are other programs' names, '-i key' is a value, and -n4 is ours. */
        bool word =
            opt_table[m->id].group == GROUP_HOSTS && (isalpha((unsigned char)a[2]) || a[2] == ' ');
        class = word ? ARG_UNKNOWN : ARG_OPTION;
        m->letter = true;
        m->value = a[2] == '=' ? a + 3 : a[2] ? a + 2 : NULL;
    }
    if (class == ARG_UNKNOWN && (is_negative_number(a) || strchr(a, ' ')))
        class = ARG_PLAIN;
    return class;
}

static int ambiguous(const char *a, struct err *e)
{
    char list[ERR_MSG_MAX] = "";
    size_t len = strcspn(a + 2, "="), used = 0;
    for (int i = 0; i < OPT_COUNT && used < sizeof(list); i++) {
        const char *name = opt_table[i].name;
        if (strlen(name + 2) >= len && same_letters(a + 2, name + 2, len))
            used +=
                (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", used ? ", " : "", name);
    }
    return err_set(e, -EINVAL, "%.*s is ambiguous: %s", (int)(len > 60 ? 60 : len + 2), a, list);
}

/* Hints for the option names of mpirun and srun. */
static const char *other_launchers_name(const char *a, size_t len)
{
    static const struct {
        const char *names, *ours;
    } words[] = {
        {"--ntasks --ntasks-per-node --nprocs",
         " (use --np for all workers, --nproc_per_node for those on a node)"},
        {"--nodes", " (use --nnodes for nodes and --nproc_per_node for the workers on a node)"},
    };
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        for (const char *w = words[i].names; *w; w += strspn(w, " ")) {
            size_t n = strcspn(w, " ");
            if (n == len && memcmp(w, a, n) == 0)
                return words[i].ours;
            w += n;
        }
    }
    return NULL;
}

static int unknown(const char *a, struct err *e)
{
    char name[64], near[64] = "";
    size_t len = strcspn(a, "=");
    const char *other = other_launchers_name(a, len);
    if (a[1] == '-' && len - 2 < sizeof(name)) {
        memcpy(name, a + 2, len - 2);
        name[len - 2] = '\0';
        opt_nearest(name, "--", near);
    }
    return err_set(e, -EINVAL, "unknown option %.*s%s", (int)(len > 100 ? 100 : len), a,
                   other ? other : near);
}

/* The option as it was typed: its letter, or - for _ in its name. The beginning of a name is given
 * whole, so that nobody has to guess which option it was taken for. */
static const char *typed(struct options *o, const struct path_test *m, const char *a)
{
    const struct opt *opt = &opt_table[m->id];
    size_t len = strcspn(a, "=");
    if (m->letter)
        return options_printf(o, "-%c", opt->letter);
    return len == strlen(opt->name) ? options_printf(o, "%.*s", (int)len, a) : opt->name;
}

/* Reads -m and the letters joined to it; the last letter may take the rest as its value. */
static int read_letters(struct options *o, struct path_test *m, const char *a, struct err *e)
{
    while (opt_table[m->id].kind == KIND_FLAG && m->value) {
        const char *rest = m->value;
        enum opt_id next = a[2] == '=' ? OPT_COUNT : find_letter(o, *rest);
        if (next != OPT_COUNT && opt_table[next].group == GROUP_HOSTS)
            next = OPT_COUNT; /* these are not joined to others */
        if (next == OPT_COUNT && other_launchers_name(a, strcspn(a, "=")))
            return unknown(a, e); /* -host */
        if (next == OPT_COUNT)
            return err_set(e, -EINVAL, "-%c takes no value: %.100s", opt_table[m->id].letter, a);
        o->value[m->id] = (struct opt_value){"1", typed(o, m, a), FROM_ARGV};
        m->id = next;
        m->value = rest[1] == '=' ? rest + 2 : rest[1] ? rest + 1 : NULL;
    }
    return 0;
}

static int set_for_mpi(void *arg, const char *option, const char *value, const char *word,
                       struct err *e)
{
    struct options *o = arg;
    return options_set(o, opt_find(option + 2, strlen(option + 2)), options_printf(o, "%s", value),
                       FROM_ARGV, options_printf(o, "%s", word), e);
}

static void export_for_mpi(void *arg, const char *text)
{
    struct options *o = arg;
    o->exported_all = append(o, o->exported_all, options_printf(o, "%s", text));
}

int options_read_argv(struct options *o, int argc, char **argv, struct err *e)
{
    const struct mpi_words_to mpi = {o, set_for_mpi, export_for_mpi};
    int i = 1;
    bool dashes = false;
    for (; i < argc && !dashes; i++) {
        struct path_test m, next;
        char *a = argv[i];
        int words = o->torchrun ? 0 : mpi_words_read(&mpi, argc - i, argv + i, e);
        if (words < 0)
            return words;
        if (words > 0) {
            i += words - 1;
            continue;
        }
        enum arg_class class = classify(o, a, &m);
        if (class == ARG_PLAIN)
            break;
        if (class == ARG_DASHES) {
            dashes = true;
            continue;
        }
        if (class == ARG_AMBIGUOUS)
            return ambiguous(a, e);
        if (class == ARG_UNKNOWN)
            return unknown(a, e);
        if (m.letter && read_letters(o, &m, a, e) < 0)
            return -EINVAL;
        o->brief_help = m.letter && m.id == OPT_help;
        const struct opt *opt = &opt_table[m.id];
        const char *name = typed(o, &m, a);
        if (opt->kind == KIND_FLAG) {
            if (m.value)
                return err_set(e, -EINVAL, "%s takes no value: %.100s", name, a);
            m.value = "1";
        } else if (!m.value) {
            if (i + 1 >= argc || classify(o, argv[i + 1], &next) != ARG_PLAIN)
                return err_set(e, -EINVAL, "%s needs a value (%s)", name, opt->values);
            m.value = argv[++i];
        }
        if (options_set(o, m.id, m.value, FROM_ARGV, name, e) < 0)
            return -EINVAL;
        if (opt_given(o, OPT_help) || opt_given(o, OPT_version))
            return 0;
    }
    if (i >= argc)
        return 0;
    /* argparse drops a "--" right behind the script, unless there was one before it. */
    if (o->torchrun && !dashes && i + 1 < argc && strcmp(argv[i + 1], "--") == 0) {
        argv[i + 1] = argv[i];
        i++;
    }
    o->command = argv + i;
    o->command_literal = dashes;
    o->command_source = "command line";
    o->command_from = FROM_ARGV;
    return 0;
}

/* ---------------------------------------------------------------------------------- environment */

/* Variables that torchrun reads besides PET_*. */
static const struct {
    const char *name;
    enum opt_id id;
} env_aliases[] = {
    {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", OPT_shutdown_timeout},
    {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", OPT_log_line_prefix_template},
};

/* Finds the option by the upper-case name after the prefix. */
static enum opt_id find_upper(const char *name, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (islower((unsigned char)name[i]) || name[i] == '-')
            return OPT_COUNT;
    }
    return opt_find(name, len);
}

static enum opt_id env_option(const char *var, size_t len, enum opt_from *from)
{
    enum opt_id id = OPT_COUNT;
    if (strncmp(var, "DLAUNCH_", 8) == 0) {
        id = find_upper(var + 8, len - 8);
        *from = FROM_DLAUNCH;
        return id != OPT_COUNT && opt_table[id].flags & OPT_F_CLI ? OPT_COUNT : id;
    }
    if (strncmp(var, "PET_", 4) == 0) {
        id = find_upper(var + 4, len - 4);
        *from = FROM_PET;
        return id != OPT_COUNT && !(opt_table[id].flags & OPT_F_PET) ? OPT_COUNT : id;
    }
    *from = FROM_DETECTED; /* the user's own file has precedence over them */
    for (size_t i = 0; i < ARRAY_LEN(env_aliases); i++) {
        if (strncmp(var, env_aliases[i].name, len) == 0 && !env_aliases[i].name[len])
            return env_aliases[i].id;
    }
    return OPT_COUNT;
}

static bool is_pod(char *const *envp)
{
    while (*envp && strncmp(*envp, "KUBERNETES_SERVICE_HOST=", 24) != 0)
        envp++;
    return *envp != NULL;
}

/* A service named dlaunch-master gives every pod of its namespace
 * DLAUNCH_MASTER_PORT=tcp://10.96.0.12:29500. */
static bool is_service_address(enum opt_id id, const char *value)
{
    return id == OPT_master_port && strstr(value, "://");
}

static int read_env(struct options *o, char *const *envp, bool ours, struct err *e)
{
    bool pod = is_pod(envp);
    for (; *envp; envp++) {
        const char *var = *envp, *eq;
        enum opt_from from;
        if ((var[0] != 'D' && var[0] != 'P' && var[0] != 'T') || !(eq = strchr(var, '=')))
            continue;
        enum opt_id id = env_option(var, (size_t)(eq - var), &from);
        if (id == OPT_COUNT || (from == FROM_DLAUNCH) != ours || from < o->value[id].from)
            continue;
        if (pod && is_service_address(id, eq + 1))
            continue;
        const char *source = options_printf(o, "%.*s", (int)(eq - var), var);
        if (options_set(o, id, eq + 1, from, source, e) < 0)
            return -EINVAL;
    }
    return 0;
}

/* Reads the variables with precedence first: as in argparse, a value that is not used is not
 * checked. */
int options_read_env(struct options *o, char *const *envp, struct err *e)
{
    o->envp = envp;
    int rc = read_env(o, envp, true, e);
    return rc < 0 ? rc : read_env(o, envp, false, e);
}

/* Whether dlaunch reads this variable although no option has its name. */
static bool is_known(const char *var, size_t len)
{
    static const char *const known[] = {"DLAUNCH_TOKEN", "DLAUNCH_APPNUM", SEGMENT_ENV_FD,
                                        SEGMENT_ENV_LISTEN};
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strlen(known[i]) == len && memcmp(var, known[i], len) == 0)
            return true;
    }
    return false;
}

static const char *upper(const char *name, char out[64])
{
    size_t n = 0;
    for (; name[n] && n < 63; n++)
        out[n] = (char)toupper((unsigned char)name[n]);
    out[n] = '\0';
    return out;
}

/* Warns of a variable that begins as an option's variable does and is not one. A newer torchrun may
 * have more PET_* variables, and in a pod a service named dlaunch-x makes variables such as
 * DLAUNCH_X_PORT, so of those only the ones near to a known name are reported. */
static void warn_unknown(const char *var, size_t len, bool ours, bool pod)
{
    int prefix = ours ? 8 : 4;
    char *name = xasprintf("%.*s", (int)len - prefix, var + prefix), hint[128] = "", copy[64];
    enum opt_id id = find_upper(name, strlen(name));
    const char *near = pod && strncmp(name, "SERVICE_", 8) == 0 ? NULL /* of a service "dlaunch" */
                       : ours ? nearest(name, 0, OPT_F_CLI, "token")
                              : nearest(name, OPT_F_PET, 0, NULL);
    if (id != OPT_COUNT && opt_table[id].flags & OPT_F_CLI)
        snprintf(hint, sizeof(hint), ": %s is for the command line only", opt_table[id].name);
    else if (id != OPT_COUNT) /* not an option of torchrun */
        snprintf(hint, sizeof(hint), " (did you mean DLAUNCH_%s?)", name);
    else if (near)
        snprintf(hint, sizeof(hint), " (did you mean %.*s%s?)", prefix, var, upper(near, copy));
    if (*hint || (ours && !pod))
        log_warn("unknown variable %.*s has no effect%s", (int)len, var, hint);
    free(name);
}

void options_warn_env(char *const *envp)
{
    bool pod = is_pod(envp);
    for (; *envp; envp++) {
        enum opt_from from = FROM_DETECTED;
        size_t len = strcspn(*envp, "=");
        if (env_option(*envp, len, &from) == OPT_COUNT && from != FROM_DETECTED &&
            !is_known(*envp, len))
            warn_unknown(*envp, len, from == FROM_DLAUNCH, pod);
    }
}
