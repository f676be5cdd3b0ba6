#include "launcher/options/mpi_words.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/mem.h"
#include "core/parse.h"
#include "rendezvous/rules/rank_table.h"

/* Reads the values of an option of mpirun or mpiexec. */
typedef int read_fn(const struct mpi_words_to *to, const char *word, char **values, struct err *e);

/* A word that says how to place: one of a list, with what it means here. */
struct place {
    const char *word;
    const char *bind; /* of --bind; NULL: nothing is to be done */
};

/* The parts behind the first ':' of a value change what it means: "slot:PE=2". One of them has an
 * equivalent. */
static int read_modifiers(const struct mpi_words_to *to, const char *word, const char *value,
                          size_t len, struct err *e)
{
    if (!value[len] || strcasecmp(value + len, ":oversubscribe") == 0) {
        return value[len] ? to->set(to->arg, "--oversubscribe", "1", word, e) : 0;
    }
    return err_set(e, -EINVAL, "%s %.60s: '%.40s' is not possible here (oversubscribe is)", word,
                   value, value + len + 1);
}

/* Finds the value in the list, up to its modifiers. NULL: it is not there. */
static const struct place *find_place(const struct place *list, size_t n, const char *value,
                                      size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(list[i].word) == len && strncasecmp(list[i].word, value, len) == 0)
            return &list[i];
    }
    return NULL;
}

static int read_bind(const struct mpi_words_to *to, const char *word, char **values, struct err *e)
{
    static const struct place places[] = {{"none", "none"},
                                          {"core", "core"},
                                          {"numa", "numa"},
                                          {"socket", "socket"},
                                          {"package", "socket"}};
    size_t len = strcspn(values[0], ":");
    const struct place *p = find_place(places, ARRAY_LEN(places), values[0], len);
    bool overload = strcasecmp(values[0] + len, ":overload-allowed") == 0;
    if (!p)
        return err_set(e, -EINVAL,
                       "%s %.60s is not possible here: none, core, numa and socket are (--bind); "
                       "--numa_binding places workers next to their GPUs",
                       word, values[0]);
    if (!overload && read_modifiers(to, word, values[0], len, e) < 0)
        return -EINVAL;
    return to->set(to->arg, "--bind", p->bind, word, e);
}

/* "ppr:4:node" */
static int read_ppr(const struct mpi_words_to *to, const char *word, const char *value,
                    struct err *e)
{
    const char *number = value + 4, *unit = strchr(number, ':');
    size_t len = unit ? strcspn(unit + 1, ":") : 0;
    long n;
    char text[16] = "";
    if (unit && unit - number < (int)sizeof(text))
        memcpy(text, number, (size_t)(unit - number));
    if (len != 4 || strncasecmp(unit + 1, "node", 4) != 0 ||
        parse_int(text, 1, NPROC_MAX, &n, NULL) < 0)
        return err_set(e, -EINVAL,
                       "%s %.60s is not possible here: ppr:N:node is (N workers on each)", word,
                       value);
    if (read_modifiers(to, word, value, (size_t)(unit + 1 + len - value), e) < 0)
        return -EINVAL;
    return to->set(to->arg, "--ppn", text, word, e);
}

static int read_map(const struct mpi_words_to *to, const char *word, char **values, struct err *e)
{
    static const struct place places[] = {{"slot", NULL}, {"core", NULL}};
    size_t len = strcspn(values[0], ":");
    if (strncasecmp(values[0], "ppr:", 4) == 0)
        return read_ppr(to, word, values[0], e);
    if (!find_place(places, ARRAY_LEN(places), values[0], len))
        return err_set(e, -EINVAL,
                       "%s %.60s is not possible here: slot, core and ppr:N:node are, since ranks "
                       "fill one node after the other (--ppn N: N on each; --bind: their CPUs)",
                       word, values[0]);
    return read_modifiers(to, word, values[0], len, e);
}

static int read_rank(const struct mpi_words_to *to, const char *word, char **values, struct err *e)
{
    static const struct place places[] = {{"slot", NULL}, {"core", NULL}, {"fill", NULL}};
    size_t len = strcspn(values[0], ":");
    if (!find_place(places, ARRAY_LEN(places), values[0], len))
        return err_set(e, -EINVAL,
                       "%s %.60s is not possible here: slot is, since ranks fill one node after "
                       "the other",
                       word, values[0]);
    return read_modifiers(to, word, values[0], len, e);
}

static int read_report_bindings(const struct mpi_words_to *to, const char *word, char **values,
                                struct err *e)
{
    (void)to, (void)values;
    return err_set(e, -EINVAL,
                   "%s: --print_binding prints the CPUs of each worker of this node, and starts "
                   "nothing",
                   word);
}

static int read_none(const struct mpi_words_to *to, const char *word, char **values, struct err *e)
{
    (void)to, (void)values;
    return err_set(e, -EINVAL,
                   "%s is not possible here: workers have the environment of dlaunch on their host "
                   "(env -i in front of the program clears it)",
                   word);
}

static int read_all(const struct mpi_words_to *to, const char *word, char **values, struct err *e)
{
    (void)word, (void)values, (void)e;
    to->export(to->arg, "*");
    return 0;
}

static int check_name(const char *word, const char *name, struct err *e)
{
    return parse_is_variable(name, strlen(name))
               ? 0
               : err_set(e, -EINVAL, "%s: " PARSE_NO_VARIABLE, word, (int)strnlen(name, 60), name);
}

static int read_variable(const struct mpi_words_to *to, const char *word, char **values,
                         struct err *e)
{
    if (check_name(word, values[0], e) < 0)
        return -EINVAL;
    char *text = xasprintf("%s=%s", values[0], values[1]);
    to->export(to->arg, text);
    free(text);
    return 0;
}

/* -env NAME VALUE: a variable of one program. */
static int read_own_variable(const struct mpi_words_to *to, const char *word, char **values,
                             struct err *e)
{
    if (check_name(word, values[0], e) < 0)
        return -EINVAL;
    char *text = xasprintf("%s=%s", values[0], values[1]);
    int rc = to->set(to->arg, "--export", text, word, e);
    free(text);
    return rc;
}

static int read_list(const struct mpi_words_to *to, const char *word, char **values, struct err *e)
{
    for (const char *s = values[0];; s++) {
        size_t len = strcspn(s, ",");
        char *name = xstrndup(s, len);
        bool ok = !strchr(name, '=') && parse_is_export(name);
        int rc =
            ok ? 0
               : err_set(e, -EINVAL, "%s: " PARSE_NO_VARIABLE, word, (int)strnlen(name, 60), name);
        if (ok)
            to->export(to->arg, name);
        free(name);
        s += len;
        if (rc < 0 || !*s)
            return rc;
    }
}

/* Open MPI's parameters are variables, too. */
static int read_mca(const struct mpi_words_to *to, const char *word, char **values, struct err *e)
{
    char *text = xasprintf("OMPI_MCA_%s=%s", values[0], values[1]);
    bool ok = parse_is_variable(text, strlen("OMPI_MCA_") + strlen(values[0])) && *values[0];
    if (ok)
        to->export(to->arg, text);
    free(text);
    return ok ? 0
              : err_set(e, -EINVAL, "%s: '%.60s' is not the name of a parameter", word, values[0]);
}

static const struct mpi_word {
    const char *name;   /* without its dashes; '_' for '-' */
    const char *option; /* the option of dlaunch; NULL: `read` */
    read_fn *read;
    int nvalues;
    const char *values; /* as messages call one */
} table[] = {
    {"np", "--np", NULL, 1, "N"},
    {"ppn", "--ppn", NULL, 1, "N"},
    {"npernode", "--ppn", NULL, 1, "N"},
    {"host", "--host", NULL, 1, "HOST[:N],..."},
    {"hosts", "--host", NULL, 1, "HOST[:N],..."},
    {"hostfile", "--hostfile", NULL, 1, "FILE"},
    {"machinefile", "--hostfile", NULL, 1, "FILE"},
    {"wdir", "--wdir", NULL, 1, "DIR"},
    {"wd", "--wdir", NULL, 1, "DIR"},
    {"oversubscribe", "--oversubscribe", NULL, 0, NULL},
    {"bind_to", NULL, read_bind, 1, "none, core, numa, socket"},
    {"map_by", NULL, read_map, 1, "slot, core, ppr:N:node"},
    {"rank_by", NULL, read_rank, 1, "slot"},
    {"report_bindings", NULL, read_report_bindings, 0, NULL},
    {"env", NULL, read_own_variable, 2, NULL},
    {"genv", NULL, read_variable, 2, NULL},
    {"genvlist", NULL, read_list, 1, "NAME,..."},
    {"envlist", NULL, read_list, 1, "NAME,..."},
    {"genvall", NULL, read_all, 0, NULL},
    {"envall", NULL, read_all, 0, NULL},
    {"genvnone", NULL, read_none, 0, NULL},
    {"envnone", NULL, read_none, 0, NULL},
    {"mca", NULL, read_mca, 2, NULL},
};

/* len: of the name in front of '='. */
static const struct mpi_word *find(const char *a, size_t len)
{
    size_t dashes = a[0] == '-' ? 1 + (a[1] == '-') : 0;
    for (size_t i = 0; dashes && i < ARRAY_LEN(table); i++) {
        const char *name = table[i].name;
        size_t k = 0;
        while (dashes + k < len && (a[dashes + k] == '-' ? '_' : a[dashes + k]) == name[k])
            k++;
        if (dashes + k == len && !name[k])
            return &table[i];
    }
    return NULL;
}

int mpi_words_read(const struct mpi_words_to *to, int n, char **words, struct err *e)
{
    size_t len = strcspn(words[0], "=");
    const struct mpi_word *w = find(words[0], len);
    char *joined = words[0] + len + 1, **values = words + 1;
    bool equals = words[0][len] == '=';
    int used = 1, rc;
    if (!w)
        return 0;
    char *name = xstrndup(words[0], len);
    if (equals)
        values = &joined;
    else
        used += w->nvalues;
    if (equals && w->nvalues != 1)
        rc = err_set(e, -EINVAL, "%s takes %s: %.100s", name,
                     w->nvalues ? "two values behind it" : "no value", words[0]);
    else if (used > n || (w->nvalues && !equals && values[0][0] == '-' && values[0][1]))
        rc = err_set(e, -EINVAL,
                     w->nvalues == 2 ? "%s needs a name and a value" : "%s needs a value (%s)",
                     name, w->values);
    else if (w->option)
        rc = to->set(to->arg, w->option, w->nvalues ? values[0] : "1", name, e);
    else
        rc = w->read(to, name, values, e);
    free(name);
    return rc < 0 ? rc : used;
}
