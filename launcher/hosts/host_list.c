#include "launcher/hosts/host_list.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/hostlist.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "core/parse.h"
#include "launcher/options/text_file.h"
#include "rendezvous/rules/rank_table.h"

#define HOSTS_MAX 8192
#define USER_MAX  64

/* ------------------------------------------------------------------------------------ one entry */

/* One entry as it was read; `name` still has its ranges. */
struct entry {
    char name[4096], user[USER_MAX];
    bool literal; /* an address in brackets: no ranges */
    long slots, max_slots;
};

static const char *copy(struct options *o, const char *text, size_t n)
{
    char *kept = options_alloc(o, n + 1);
    memcpy(kept, text, n);
    return kept;
}

static int read_slots(const char *text, const char *what, long *out, struct err *e)
{
    if (parse_int(text, 1, NPROC_MAX, out, e) == 0)
        return 0;
    return err_wrap(e, "%s", what);
}

/* A host name, an address, or ranges; what ssh would take for an option is none of them. */
static int check_name(const struct entry *t, struct err *e)
{
    if (!t->name[0])
        return err_set(e, -EINVAL, "there is no host name; HOST, HOST:SLOTS or user@HOST");
    if (t->name[0] == '-' || t->user[0] == '-')
        return err_set(e, -EINVAL, "'%.60s': a name cannot begin with '-'",
                       t->user[0] == '-' ? t->user : t->name);
    for (const char *s = t->name; *s; s++) {
        bool name = isalnum((unsigned char)*s) || (unsigned char)*s >= 0x80 || strchr("-._%", *s);
        if (!name && !strchr(t->literal ? ":" : "[],/:", *s))
            return err_set(e, -EINVAL, "'%.60s' is not a host name ('%c')", t->name,
                           isprint((unsigned char)*s) ? *s : '?');
    }
    return 0;
}

/* "[user@]HOST[:SLOTS]" of n bytes. */
static int read_host(struct entry *t, const char *text, size_t n, struct err *e)
{
    struct netaddr a;
    const char *end = text + n, *at = memchr(text, '@', n), *s = at ? at + 1 : text;
    *t = (struct entry){.slots = 0};
    if (at && memchr(s, '@', (size_t)(end - s)))
        return err_set(e, -EINVAL, "'%.*s' has two '@'; user@HOST has one", (int)(n > 60 ? 60 : n),
                       text);
    if (at && (at == text || at - text >= USER_MAX))
        return err_set(e, -EINVAL, "'%.*s': the user name %s", (int)(n > 60 ? 60 : n), text,
                       at == text ? "is empty" : "is too long");
    if (at)
        memcpy(t->user, text, (size_t)(at - text));
    if ((size_t)(end - s) >= sizeof(t->name))
        return err_set(e, -EINVAL, "'%.40s...' is too long for a host", text);
    memcpy(t->name, s, (size_t)(end - s));
    char *name = t->name, *colon = strrchr(name, ':'), *close = NULL;
    if (name[0] == '[' && memchr(name, ':', strcspn(name, "]"))) { /* [IPv6]:SLOTS */
        close = strchr(name, ']');
        if (!close || (close[1] && close[1] != ':'))
            return err_set(e, -EINVAL, "'%.60s' is not [ADDRESS] or [ADDRESS]:SLOTS", name);
        colon = close[1] ? close + 1 : NULL;
    } else if (netaddr_parse_ip(&a, name, 0)) { /* an address without brackets has no slots */
        t->literal = true;
        colon = NULL;
    }
    if (colon && read_slots(colon + 1, "the slots behind ':'", &t->slots, e) < 0)
        return err_wrap(e, "'%.60s'", name);
    if (colon)
        *colon = '\0';
    if (close) {
        *close = '\0';
        memmove(name, name + 1, strlen(name));
        t->literal = true;
        if (!netaddr_parse_ip(&a, name, 0))
            return err_set(e, -EINVAL, "'%.60s' is not an IPv6 address", name);
    }
    if (strchr(name, ':') && !t->literal)
        return err_set(e, -EINVAL, "'%.60s' has two ':'; write an IPv6 address as [ADDRESS]:SLOTS",
                       name);
    return check_name(t, e);
}

/* ------------------------------------------------------------------------------------- the list */

static struct host *find(const struct host_list *l, const char *name, size_t n)
{
    for (size_t i = 0; i < l->n; i++) {
        if (strlen(l->host[i].name) == n && memcmp(l->host[i].name, name, n) == 0)
            return &l->host[i];
    }
    return NULL;
}

struct adding {
    struct host_list *l;
    const struct entry *t;
};

static bool add_host(void *arg, const char *name)
{
    struct adding *a = arg;
    struct host_list *l = a->l;
    struct host *h = find(l, name, strlen(name));
    int slots = (int)a->t->slots, max = (int)a->t->max_slots;
    if (h) { /* a line for each slot, or more slots */
        h->slots = (h->slots ? h->slots : 1) + (slots ? slots : 1);
        h->max_slots = max > h->max_slots ? max : h->max_slots;
        return h->slots <= NPROC_MAX;
    }
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 16;
        struct host *more = options_alloc(l->o, cap * sizeof(*more));
        if (l->n)
            memcpy(more, l->host, l->n * sizeof(*more));
        l->host = more;
        l->cap = cap;
    }
    l->host[l->n++] = (struct host){
        .name = copy(l->o, name, strlen(name)),
        .user = a->t->user[0] ? copy(l->o, a->t->user, strlen(a->t->user)) : NULL,
        .slots = slots,
        .max_slots = max,
    };
    return true;
}

static int add_entry(struct host_list *l, const struct entry *t, struct err *e)
{
    struct adding a = {.l = l, .t = t};
    size_t count = 1;
    if (t->max_slots && t->max_slots < t->slots)
        return err_set(e, -EINVAL, "max_slots=%ld is less than slots=%ld", t->max_slots, t->slots);
    if (t->literal)
        add_host(&a, t->name);
    else if (hostlist_walk(t->name, NULL, NULL, &count, e) < 0)
        return -EINVAL;
    if (l->n + count > HOSTS_MAX)
        return err_set(e, -EINVAL, "more than %d hosts", HOSTS_MAX);
    if (!t->literal)
        hostlist_walk(t->name, add_host, &a, &count, e);
    return 0;
}

/* The length of the entry at `s`: commas and blanks inside brackets do not end it. */
static size_t entry_len(const char *s)
{
    const char *p = s;
    for (bool inside = false; *p; p++) {
        if (*p == '[' || *p == ']')
            inside = *p == '[';
        else if (!inside && (*p == ',' || isspace((unsigned char)*p)))
            break;
    }
    return (size_t)(p - s);
}

int host_list_add(struct host_list *l, const char *text, struct err *e)
{
    struct entry t;
    for (const char *s = text + strspn(text, " \t\n"); *s;) {
        size_t n = entry_len(s);
        if (n == 0)
            return err_set(e, -EINVAL, "'%.60s' has an empty entry", text);
        if (read_host(&t, s, n, e) < 0 || add_entry(l, &t, e) < 0)
            return -EINVAL;
        s += n;
        s += strspn(s, " \t\n");
        if (*s == ',' && !*(s += 1 + strspn(s + 1, " \t\n")))
            return err_set(e, -EINVAL, "'%.60s' ends with a comma", text);
    }
    return l->n ? 0 : err_set(e, -EINVAL, "there is no host in it");
}

/* ---------------------------------------------------------------------------------------- lines */

static const char *skip_blanks(const char *s)
{
    return s + strspn(s, " \t\r");
}

/* "slots=N", "max_slots = M", "user=NAME" at *s; moves it behind. */
static int read_word(struct entry *t, const char **s, struct err *e)
{
    const char *key = *s;
    size_t klen = strcspn(key, " \t\r=#");
    const char *eq = skip_blanks(key + klen);
    char value[USER_MAX];
    bool slots = klen == 5 && memcmp(key, "slots", 5) == 0;
    bool max = klen == 9 && (memcmp(key, "max_slots", 9) == 0 || memcmp(key, "max-slots", 9) == 0);
    bool user = klen == 4 && memcmp(key, "user", 4) == 0;
    if (!slots && !max && !user)
        return err_set(e, -EINVAL, "'%.*s' is not one of slots=N, max_slots=N, user=NAME",
                       (int)(klen + strcspn(key + klen, " \t\r#") > 60
                                 ? 60
                                 : klen + strcspn(key + klen, " \t\r#")),
                       key);
    if (*eq != '=')
        return err_set(e, -EINVAL, "%.*s needs a value: %.*s=%s", (int)klen, key, (int)klen, key,
                       user ? "NAME" : "N");
    eq = skip_blanks(eq + 1);
    size_t vlen = strcspn(eq, " \t\r#");
    if (vlen == 0 || vlen >= sizeof(value))
        return err_set(e, -EINVAL, "%.*s needs a value: %.*s=%s", (int)klen, key, (int)klen, key,
                       user ? "NAME" : "N");
    memcpy(value, eq, vlen);
    value[vlen] = '\0';
    *s = eq + vlen;
    if (user) {
        snprintf(t->user, sizeof(t->user), "%s", value);
        return check_name(t, e);
    }
    return read_slots(value, slots ? "slots" : "max_slots", slots ? &t->slots : &t->max_slots, e);
}

static int read_line(struct host_list *l, const char *s, struct err *e)
{
    struct entry t;
    s = skip_blanks(s);
    if (!*s || *s == '#')
        return 0;
    size_t n = entry_len(s);
    const char *end = s + n;
    if (*end == ',')
        return err_set(e, -EINVAL, "one host on each line; lists parted by commas are for -H");
    if (read_host(&t, s, n, e) < 0)
        return -EINVAL;
    for (s = skip_blanks(end); *s && *s != '#'; s = skip_blanks(s)) {
        if (read_word(&t, &s, e) < 0)
            return -EINVAL;
    }
    return add_entry(l, &t, e);
}

int host_list_add_lines(struct host_list *l, const char *text, const char *name, struct err *e)
{
    size_t before = l->n;
    for (int number = 1; *text; number++) {
        size_t n = strcspn(text, "\n");
        char *line = xstrndup(text, n);
        int rc = strlen(line) < n ? err_set(e, -EINVAL, "there is a NUL byte in it")
                                  : read_line(l, line, e);
        free(line);
        if (rc < 0)
            return err_wrap(e, "%s:%d", name, number);
        text += n + (text[n] == '\n');
    }
    return l->n > before ? 0 : err_set(e, -EINVAL, "%s: there is no host in it", name);
}

/* -------------------------------------------------------------------------------------- filters */

/* A filter's part about one host. */
struct choice {
    bool named, all; /* all: without slots */
    bool slot[NPROC_MAX];
};

static int read_choice(struct choice *c, const struct host *h, const char *s, const char *end,
                       struct err *e)
{
    c->named = true;
    if (s == end) {
        c->all = true;
        return 0;
    }
    for (s++; s <= end; s++) { /* behind ':' or ',' */
        char number[16];
        long slot;
        size_t n = strcspn(s, ",@");
        if (s + n > end)
            n = (size_t)(end - s);
        snprintf(number, sizeof(number), "%.*s", (int)(n > 15 ? 15 : n), s);
        if (parse_int(number, 0, NPROC_MAX - 1, &slot, e) < 0)
            return err_wrap(e, "the slot of %s", h->name);
        if (h->slots && slot >= h->slots)
            return err_set(e, -EINVAL, "%s has no slot %ld: its slots are 0 to %d", h->name, slot,
                           h->slots - 1);
        c->slot[slot] = true;
        s += n;
    }
    return 0;
}

static int unknown_host(const struct host_list *l, const char *name, size_t n, struct err *e)
{
    char list[200] = "";
    size_t used = 0;
    for (size_t i = 0; i < l->n && used < sizeof(list) - 1; i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "",
                                 l->host[i].name);
    return err_set(e, -EINVAL, "'%.*s' is not one of the hosts (%s%s)", (int)(n > 60 ? 60 : n),
                   name, list, used >= sizeof(list) ? "..." : "");
}

/* The slots that are left of a host. False: none. */
static bool apply_choice(struct host_list *l, struct host *h, const struct choice *c, bool include)
{
    if (!c->named || c->all)
        return c->named == include;
    int slots = h->slots ? h->slots : NPROC_MAX, left = 0;
    char *ids = options_alloc(l->o, (size_t)slots * 5 + 1);
    size_t used = 0;
    for (int i = 0; i < slots; i++) {
        if (c->slot[i] == include)
            used += (size_t)sprintf(ids + used, "%s%d", left++ ? "," : "", i);
    }
    h->slots = left;
    h->ids = ids;
    return left > 0;
}

int host_list_filter(struct host_list *l, const char *text, bool include, struct err *e)
{
    struct choice *choices = xcalloc(l->n, sizeof(*choices));
    int rc = 0;
    for (const char *s = text; rc == 0;) {
        const char *end = s + strcspn(s, "@"), *colon = memchr(s, ':', (size_t)(end - s));
        const char *stop = colon ? colon : end;
        struct host *h = find(l, s, (size_t)(stop - s));
        if (stop == s)
            rc = err_set(e, -EINVAL, "'%.60s' has an entry without a host; HOST[:SLOT,...][@...]",
                         text);
        else if (!h)
            rc = unknown_host(l, s, (size_t)(stop - s), e);
        else if (!include && colon && !h->slots)
            rc = err_set(e, -EINVAL, "the slots of %s are not known: give them as %s:N or slots=N",
                         h->name, h->name);
        else
            rc = read_choice(&choices[h - l->host], h, stop, end, e);
        if (!*end)
            break;
        s = end + 1;
    }
    size_t left = 0;
    for (size_t i = 0; rc == 0 && i < l->n; i++) {
        if (apply_choice(l, &l->host[i], &choices[i], include))
            l->host[left++] = l->host[i];
    }
    free(choices);
    if (rc < 0)
        return rc;
    l->n = left;
    return left ? 0 : err_set(e, -EINVAL, "no host is left");
}

/* ------------------------------------------------------------------------------- sharing it out */

/* "a:4, b:2" for messages. */
static const char *describe(const struct host_list *l, char *out, size_t cap)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < l->n && used < cap - 1; i++)
        used += (size_t)snprintf(out + used, cap - used, "%s%s:%d", i ? ", " : "", l->host[i].name,
                                 l->host[i].slots ? l->host[i].slots : 1);
    if (used >= cap)
        strcpy(out + cap - 4, "...");
    return out;
}

static int check_limits(const struct host_list *l, struct err *e)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct host *h = &l->host[i];
        if (h->max_slots && h->nproc > h->max_slots)
            return err_set(e, -EINVAL, "%s can have %d workers (max_slots), not %d", h->name,
                           h->max_slots, h->nproc);
        if (h->nproc > NPROC_MAX)
            return err_set(e, -EINVAL, "%s would have %d workers; at most %d are possible", h->name,
                           h->nproc, NPROC_MAX);
    }
    return 0;
}

/* Host by host, each up to its slots. */
static int share_by_slots(struct host_list *l, long np, struct err *e)
{
    char hosts[200];
    long left = np, slots = 0;
    for (size_t i = 0; i < l->n; i++) {
        struct host *h = &l->host[i];
        int have = h->slots ? h->slots : 1;
        slots += have;
        h->nproc = left < have ? (int)left : have;
        left -= h->nproc;
    }
    for (size_t i = 0; i < l->n && left; i++) { /* more than the slots, where that is allowed */
        struct host *h = &l->host[i];
        int more = h->max_slots - h->nproc;
        more = more < 0 ? 0 : more > left ? (int)left : more;
        h->nproc += more;
        left -= more;
    }
    if (left && opt_flag(l->o, OPT_oversubscribe)) {
        for (size_t i = 0; i < l->n; i++)
            l->host[i].nproc += (int)(left / (long)l->n + ((long)i < left % (long)l->n));
        return 0;
    }
    if (left)
        return err_set(e, -EINVAL,
                       "%ld workers, but the hosts have %ld slots (%s); --oversubscribe, --ppn or "
                       "max_slots allows more",
                       np, slots, describe(l, hosts, sizeof(hosts)));
    return 0;
}

int host_list_share(struct host_list *l, long np, long ppn, struct err *e)
{
    bool slots = false;
    size_t n = l->n;
    for (size_t i = 0; i < l->n; i++)
        slots |= l->host[i].slots > 0;
    if (np && ppn && (np + ppn - 1) / ppn > (long)n)
        return err_set(e, -EINVAL,
                       "%ld workers, %ld on each host, need %ld hosts, and there %s %zu", np, ppn,
                       (np + ppn - 1) / ppn, n == 1 ? "is" : "are", n);
    if (np && !ppn && slots && share_by_slots(l, np, e) < 0)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        struct host *h = &l->host[i];
        long before = (long)i * ppn;
        if (np && ppn)
            h->nproc = (int)(np - before < ppn ? (np > before ? np - before : 0) : ppn);
        else if (ppn)
            h->nproc = (int)ppn;
        else if (np && !slots) /* evenly */
            h->nproc = (int)(np / (long)n + ((long)i < np % (long)n));
        else if (!np)
            h->nproc = h->slots;
    }
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (l->host[i].nproc || (!np && !ppn))
            l->host[used++] = l->host[i];
    }
    l->n = used;
    return check_limits(l, e);
}

/* ---------------------------------------------------------------------------------- the options */

static int add_file(struct host_list *l, const char *path, struct err *e)
{
    char *text = text_file_read(path, e);
    int rc = text ? host_list_add_lines(l, text, path, e) : e->code;
    free(text);
    return rc;
}

/* A command of the shell that prints a host on each line. */
static int add_script(struct host_list *l, const char *command, struct err *e)
{
    FILE *out = popen(command, "re");
    if (!out)
        return err_sys(e, errno, "%s", command);
    char *text = text_read(fileno(out), command, e);
    int status = pclose(out), rc = text ? 0 : e->code;
    if (rc == 0 && status != 0)
        rc = err_set(e, -EINVAL, "%.100s: %s %d", command,
                     WIFSIGNALED(status) ? "killed by signal" : "exit status",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    if (rc == 0)
        rc = host_list_add_lines(l, text, command, e);
    free(text);
    return rc;
}

static int filter(struct host_list *l, struct options *o, enum opt_id id, struct err *e)
{
    if (!opt_given(o, id) || host_list_filter(l, opt_text(o, id), id == OPT_include, e) == 0)
        return 0;
    return err_wrap(e, "%s", opt_where(o, id));
}

int host_list_read(struct host_list *l, struct options *o, struct err *e)
{
    static const struct {
        enum opt_id id;
        int (*add)(struct host_list *l, const char *text, struct err *e);
    } sources[] = {{OPT_host, host_list_add},
                   {OPT_hostfile, add_file},
                   {OPT_host_discovery_script, add_script}};
    enum opt_id from = OPT_COUNT;
    *l = (struct host_list){.o = o};
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        enum opt_id id = sources[i].id;
        if (!opt_given(o, id) || (from != OPT_COUNT && o->value[from].from > o->value[id].from))
            continue;
        if (from != OPT_COUNT && o->value[from].from == o->value[id].from)
            return err_set(e, -EINVAL, "%s cannot be combined with %s", opt_where(o, id),
                           opt_where(o, from));
        from = id;
    }
    if (from == OPT_COUNT)
        return 1;
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        if (sources[i].id == from && sources[i].add(l, opt_text(o, from), e) < 0)
            return err_wrap(e, "%s", opt_where(o, from));
    }
    if (opt_given(o, OPT_include) && opt_given(o, OPT_exclude))
        return err_set(e, -EINVAL, "%s cannot be combined with %s", opt_where(o, OPT_exclude),
                       opt_where(o, OPT_include));
    if (filter(l, o, OPT_include, e) < 0 || filter(l, o, OPT_exclude, e) < 0)
        return -EINVAL;
    long np = opt_given(o, OPT_np) ? opt_number(o, OPT_np) : 0;
    long ppn = opt_given(o, OPT_ppn) ? opt_number(o, OPT_ppn) : 0;
    if (host_list_share(l, np, ppn, e) < 0)
        return err_wrap(e, "%s", opt_where(o, np ? OPT_np : ppn ? OPT_ppn : from));
    return 0;
}
