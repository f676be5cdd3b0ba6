/* config_file.c: reading an INI file through inih.
 *
 * inih as distributions build it cuts a line that is longer than its buffer (200 bytes) without a
 * word, takes an indented line for more of the value above it, and ends a value at " ;". So lines
 * are handed to it by a reader of our own, which counts them and refuses those that inih would
 * bend; what it gets, it reads the same whatever it was built with. Where inih's settings can be
 * changed at run time (Debian), lines may be long and " ;" is part of a value. */
#include "launcher/options/config_file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"
#include "core/parse.h"
#include "launcher/options/rdzv_conf.h"
#include "launcher/options/shell_split.h"

#define SECTION_MAX  48    /* inih keeps 49 bytes of a section's name */
#define SECTION_NONE "[?]" /* stands for one that does not exist */

/* Null where inih was built without them. */
extern bool ini_use_stack __attribute__((weak));
extern bool ini_allow_inline_comments __attribute__((weak));
extern int ini_max_line __attribute__((weak));
extern int ini_initial_alloc __attribute__((weak));

struct reader {
    struct options *o;
    const char *path;
    const char *next, *end; /* of the text */
    unsigned line;          /* the one handed out last */
    int errors;
    void (*on_error)(void *arg, const char *line);
    void *arg;
    unsigned set_at[OPT_COUNT]; /* line on which a key was set; 0: none */
    unsigned command_at;
};

__attribute__((format(printf, 2, 3))) static int complain(struct reader *r, const char *fmt, ...)
{
    char text[1024], *line;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap); /* every %s in the callers has its bound */
    va_end(ap);
    if (r->line)
        line = xasprintf("%s:%u: %s", r->path, r->line, text);
    else
        line = xasprintf("%s: %s", r->path, text);
    r->on_error(r->arg, line);
    free(line);
    if (++r->errors == CONFIG_ERRORS_MAX && r->next < r->end) {
        r->next = r->end;
        complain(r, "too many errors; the rest of the file was not checked");
    }
    return 1; /* to inih: go on */
}

/* ------------------------------------------------------------------------------------- sections */

#define SECTION_ANY (-1) /* every key may stand here */
#define SECTION_ENV (-2)
#define SECTION_BAD (-3)

static const struct {
    const char *name;
    int group;
} section_aliases[] = {
    {"dlaunch", SECTION_ANY}, {"env", SECTION_ENV},        {"environment", SECTION_ENV},
    {"rdzv", GROUP_RDZV},     {"restarts", GROUP_RESTART}, {"logs", GROUP_LOG},
    {"output", GROUP_LOG},    {"binding", GROUP_BIND},
};

static int find_section(const char *name)
{
    if (!*name || strcasecmp(name, "job") == 0)
        return SECTION_ANY;
    for (int g = 0; g < GROUP_COUNT; g++) {
        if (opt_groups[g].section && strcasecmp(name, opt_groups[g].section) == 0)
            return g;
    }
    for (size_t i = 0; i < ARRAY_LEN(section_aliases); i++) {
        if (strcasecmp(name, section_aliases[i].name) == 0)
            return section_aliases[i].group;
    }
    return SECTION_BAD;
}

static bool check_section(struct reader *r, const char *name)
{
    const char *names[GROUP_COUNT + 3], *near;
    char list[256] = "";
    size_t n = 0, used = 0;
    if (*name && find_section(name) != SECTION_BAD)
        return true;
    for (int g = 0; g < GROUP_COUNT; g++) {
        if (opt_groups[g].section)
            names[n++] = opt_groups[g].section;
    }
    names[n++] = "env";
    names[n] = NULL;
    for (size_t i = 0; i < n && used < sizeof(list); i++) {
        const char *sep = i + 1 < n ? ", " : " and ";
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? sep : "", names[i]);
    }
    near = parse_nearest(name, names);
    if (near)
        complain(r, "unknown section [%.60s] (did you mean [%s]?)", name, near);
    else
        complain(r, "unknown section [%.60s] (known sections: %s)", name, list);
    return false;
}

/* ---------------------------------------------------------------------------------------- lines */

/* *len becomes that of "[name]" alone. */
static bool check_section_line(struct reader *r, const char *p, size_t *len)
{
    char name[SECTION_MAX + 2];
    const char *end = p + *len, *close = memchr(p, ']', *len);
    const char *after = close ? close + 1 : end;
    while (after < end && isspace((unsigned char)*after))
        after++;
    if (!close || (after < end && *after != ';' && *after != '#')) {
        complain(r, "a section header must be written as [name]");
        return false;
    }
    *len = (size_t)(close + 1 - p);
    snprintf(name, sizeof(name), "%.*s", (int)(close - p - 1), p + 1);
    return check_section(r, name) && strlen(name) <= SECTION_MAX;
}

static bool check_value_line(struct reader *r, const char *p, const char *end)
{
    const char *sep = p;
    while (sep < end && *sep != '=' && *sep != ':')
        sep++;
    if (sep == end || *sep == ':') {
        int n = (int)(end - p);
        complain(r, "'%.*s' is not key = value", n > 60 ? 60 : n, p);
        return false;
    }
    if (sep == p) {
        complain(r, "the key before '=' is missing");
        return false;
    }
    for (const char *c = sep + 1; !&ini_allow_inline_comments && c + 1 < end; c++) {
        if (isspace((unsigned char)c[0]) && c[1] == ';') {
            complain(r, "' ;' is not possible in a value, because this build of inih takes it for "
                        "a comment");
            return false;
        }
    }
    return true;
}

/* Returns what inih gets for a line of *len bytes: the line, another one, or NULL to skip it. */
static const char *vet(struct reader *r, const char *s, size_t *len, size_t room)
{
    const char *end = s + *len, *p = s;
    if (memchr(s, '\0', *len)) {
        complain(r, "the line has a NUL byte, so this is not a text file");
        return NULL;
    }
    if (r->line == 1 && *len >= 3 && memcmp(s, "\xef\xbb\xbf", 3) == 0)
        p += 3; /* a byte order mark */
    const char *margin = p;
    while (p < end && isspace((unsigned char)*p))
        p++;
    *len = (size_t)(end - p);
    if (p == end || *p == '#' || *p == ';')
        return NULL;
    if (p > margin) {
        complain(r, "the line must not be indented (it would continue the line above)");
        return NULL;
    }
    if (*p == '[') {
        if (check_section_line(r, p, len))
            return p;
        *len = strlen(SECTION_NONE);
        return SECTION_NONE; /* what follows does not belong to the section above */
    }
    if (*len + 2 > room) {
        complain(r, "the line is too long (%zu bytes; at most %zu)", *len, room - 2);
        return NULL;
    }
    return check_value_line(r, p, end) ? p : NULL;
}

/* inih's fgets(): the next line that is fit for it, with a newline. */
static char *read_line(char *out, int room, void *arg)
{
    struct reader *r = arg;
    while (r->next < r->end) {
        const char *s = r->next, *nl = memchr(s, '\n', (size_t)(r->end - s));
        size_t len = (size_t)((nl ? nl : r->end) - s);
        r->next = nl ? nl + 1 : r->end;
        r->line++;
        if (len && s[len - 1] == '\r')
            len--;
        s = vet(r, s, &len, (size_t)room);
        if (!s)
            continue;
        memcpy(out, s, len);
        out[len] = '\n';
        out[len + 1] = '\0';
        return out;
    }
    return NULL;
}

/* --------------------------------------------------------------------------------------- values */

/* Takes "..." or '...' off a value that has nothing but them around it. */
static char *unquote(struct options *o, const char *value)
{
    size_t n = strlen(value);
    char *copy = options_printf(o, "%s", value);
    if (n < 2 || (value[0] != '"' && value[0] != '\'') || value[n - 1] != value[0] ||
        memchr(value + 1, value[0], n - 2))
        return copy;
    copy[n - 1] = '\0';
    return copy + 1;
}

static bool has_comment(const char *value)
{
    for (const char *p = value; *p; p++) {
        if (isspace((unsigned char)*p) && (p[1] == '#' || p[1] == ';'))
            return true;
    }
    return *value == '#' || *value == ';';
}

/* The value without its quotes; NULL, with a complaint, when a comment seems to be part of it. */
static char *plain_value(struct reader *r, const char *key, const char *value)
{
    char *text = unquote(r->o, value);
    if (text[0] != value[0] || !has_comment(value))
        return text;
    complain(r,
             "%s: '%.60s' is ambiguous; a comment must be a line of its own, and a value with '#' "
             "or ';' needs double quotes",
             key, value);
    return NULL;
}

static int read_env(struct reader *r, const char *name, const char *value)
{
    struct options *o = r->o;
    size_t len = strlen(name);
    if (!parse_is_variable(name, len))
        return complain(r, PARSE_NO_VARIABLE, (int)strnlen(name, 60), name);
    for (size_t i = 0; i < o->nenv; i++) {
        if (strncmp(o->env[i], name, len) == 0 && o->env[i][len] == '=')
            return complain(r, "%s is given twice (first at %s)", name, o->env_source[i]);
    }
    const char *text = plain_value(r, name, value);
    if (!text)
        return 1;
    if ((o->nenv & (o->nenv + 1)) == 0) { /* 0, 1, 3, 7, ...: room for twice as many */
        size_t cap = 2 * o->nenv + 2;
        char **env = options_alloc(o, cap * sizeof(*env));
        const char **source = options_alloc(o, cap * sizeof(*source));
        if (o->nenv) {
            memcpy(env, o->env, o->nenv * sizeof(*env));
            memcpy(source, o->env_source, o->nenv * sizeof(*source));
        }
        o->env = env;
        o->env_source = source;
    }
    o->env[o->nenv] = options_printf(o, "%s=%s", name, text);
    o->env_source[o->nenv++] = options_printf(o, "%s:%u", r->path, r->line);
    return 1;
}

static int read_command(struct reader *r, const char *value)
{
    struct err e = ERR_INIT;
    char **words;
    if (r->command_at)
        return complain(r, "command is given twice (first in line %u)", r->command_at);
    r->command_at = r->line;
    if (shell_split(r->o, value, &words, &e) < 0)
        return complain(r, "command: %s", e.msg);
    if (r->o->command_from > FROM_FILE)
        return 1;
    r->o->command = words;
    r->o->command_from = FROM_FILE;
    r->o->command_source = options_printf(r->o, "%s:%u", r->path, r->line);
    return 1;
}

static int unknown_key(struct reader *r, const char *key)
{
    char near[64];
    if (rdzv_conf_find(key, strlen(key)) >= 0)
        return complain(r, "%s is a key of rdzv_conf; write rdzv_conf = %s=VALUE", key, key);
    opt_nearest(key, "", near);
    if (!*near && isupper((unsigned char)key[0]))
        return complain(r, "unknown key %.60s (variables belong in [env])", key);
    return complain(r, "unknown key %.60s%s", key, near);
}

/* The option that a key means in a section: what it is short for there ("endpoint" in
 * [rendezvous]), else the one of that name. */
static enum opt_id find_key(int section, const char *key)
{
    char full[64];
    if (section >= 0 && opt_groups[section].prefix) {
        int n = snprintf(full, sizeof(full), "%s%s", opt_groups[section].prefix, key);
        enum opt_id id = n < (int)sizeof(full) ? opt_find(full, (size_t)n) : OPT_COUNT;
        if (id != OPT_COUNT && opt_table[id].group == (enum opt_group_id)section)
            return id;
    }
    return opt_find(key, strlen(key));
}

static int on_value(void *arg, const char *section_name, const char *key, const char *value)
{
    struct reader *r = arg;
    struct err e = ERR_INIT;
    int section = find_section(section_name);
    if (section == SECTION_BAD)
        return 1; /* said once, at its head */
    if (section == SECTION_ENV)
        return read_env(r, key, value);
    if (strcasecmp(key, "command") == 0) {
        if (section != SECTION_ANY && section != GROUP_PROGRAM)
            return complain(r, "command belongs in [job]");
        return read_command(r, value);
    }
    enum opt_id id = find_key(section, key);
    if (id == OPT_COUNT)
        return unknown_key(r, key);
    const struct opt *opt = &opt_table[id];
    if (opt->flags & (OPT_F_CLI | OPT_F_CLIENV))
        return complain(r, "%s is for the command line%s only", opt->name,
                        opt->flags & OPT_F_CLIENV ? " and the environment" : "");
    if (section != SECTION_ANY && (enum opt_group_id)section != opt->group)
        return complain(r, "%s belongs in [%s]%s", OPT_KEY(opt), opt_groups[opt->group].section,
                        opt->group == GROUP_JOB ? "" : " (or in [job])");
    if (r->set_at[id])
        return complain(r, "%s is given twice (first in line %u)", OPT_KEY(opt), r->set_at[id]);
    r->set_at[id] = r->line;
    const char *text = unquote(r->o, value);
    if (opt_check(id, text, &e) < 0)
        return complain(r, "%s: %s%s", OPT_KEY(opt), e.msg,
                        has_comment(value) ? " (a comment must be a line of its own)" : "");
    text = plain_value(r, OPT_KEY(opt), value);
    if (!text)
        return 1;
    options_set(r->o, id, text, FROM_FILE, options_printf(r->o, "%s:%u", r->path, r->line), NULL);
    return 1;
}

/* ----------------------------------------------------------------------------------------- file */

int config_text_read(struct options *o, const char *path, const char *text, size_t len,
                     void (*on_error)(void *arg, const char *line), void *arg)
{
    struct reader r = {
        .o = o, .path = path, .next = text, .end = text + len, .on_error = on_error, .arg = arg};
    if (&ini_max_line && &ini_use_stack && &ini_initial_alloc) {
        ini_use_stack = false;
        ini_max_line = ini_initial_alloc = CONFIG_LINE_MAX + 2;
    }
    if (&ini_allow_inline_comments)
        ini_allow_inline_comments = false;
    int rc = ini_parse_stream(read_line, &r, on_value, &r);
    if (rc != 0 && r.errors == 0) {
        r.line = rc > 0 ? (unsigned)rc : 0;
        complain(&r, "not a valid INI file");
    }
    return r.errors;
}

/* The whole file, malloc'ed. Pipes will do: --conf <(...). */
static int load(const char *path, char **text, size_t *len)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    struct stat st;
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        return -EISDIR;
    size_t cap = 4096;
    *text = xmalloc(cap);
    *len = 0;
    for (;;) {
        ssize_t n = read(fd, *text + *len, cap - *len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return 0;
        *len += (size_t)n;
        if (*len > CONFIG_FILE_MAX)
            return -EFBIG;
        if (*len == cap)
            *text = xrealloc(*text, cap *= 2);
    }
}

int config_file_read(struct options *o, const char *path,
                     void (*on_error)(void *arg, const char *line), void *arg)
{
    char *text = NULL;
    size_t len = 0;
    int rc = load(path, &text, &len);
    if (rc == 0) {
        rc = config_text_read(o, options_printf(o, "%s", path), text, len, on_error, arg);
    } else {
        char *line =
            xasprintf("%s: %s%s%s", opt_where(o, OPT_conf), path, *path ? ": " : "",
                      !*path         ? "the value is empty"
                      : rc == -EFBIG ? "larger than 1 MiB, so it is not a configuration file"
                                     : strerror(-rc));
        on_error(arg, line);
        free(line);
        rc = 1;
    }
    free(text);
    return rc;
}
