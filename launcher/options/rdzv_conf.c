#include "launcher/options/rdzv_conf.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "core/parse.h"

enum key_kind {
    KEY_TIME,     /* seconds, 0 or more */
    KEY_POSITIVE, /* seconds, more than 0 */
    KEY_COUNT,    /* 1 or more */
    KEY_IS_HOST,
    KEY_STORE_TYPE,
    KEY_STATIC_TIMEOUT, /* the static backend's name for join_timeout; c10d ignores the key */
    KEY_PROTOCOL,       /* of the backend etcd, as KEY_TEXT */
    KEY_TEXT,
    KEY_UNUSED, /* a time that dlaunch does not need, because it does not poll */
};

static const struct key {
    const char *name;
    enum key_kind kind;
    size_t offset; /* in struct rdzv_config */
} keys[] = {
    {"join_timeout", KEY_POSITIVE, offsetof(struct rdzv_config, join_timeout)},
    {"last_call_timeout", KEY_TIME, offsetof(struct rdzv_config, last_call_timeout)},
    {"close_timeout", KEY_TIME, offsetof(struct rdzv_config, close_timeout)},
    {"read_timeout", KEY_POSITIVE, offsetof(struct rdzv_config, read_timeout)},
    {"keep_alive_interval", KEY_POSITIVE, offsetof(struct rdzv_config, keep_alive_interval)},
    {"keep_alive_max_attempt", KEY_COUNT, offsetof(struct rdzv_config, keep_alive_max_attempt)},
    {"heartbeat_timeout", KEY_UNUSED, 0},
    {"is_host", KEY_IS_HOST, 0},
    {"store_type", KEY_STORE_TYPE, 0},
    {"timeout", KEY_STATIC_TIMEOUT, 0},
    {"protocol", KEY_PROTOCOL, 0},
    {"ca_cert", KEY_TEXT, offsetof(struct rdzv_config, etcd.ca)},
    {"ssl_cert", KEY_TEXT, offsetof(struct rdzv_config, etcd.cert)},
    {"ssl_cert_key", KEY_TEXT, offsetof(struct rdzv_config, etcd.key)},
    {"etcd_prefix", KEY_TEXT, offsetof(struct rdzv_config, etcd.prefix)},
    /* torchrun's names for --rdzv_backend etcd; those above are for etcd-v2. */
    {"cacert", KEY_TEXT, offsetof(struct rdzv_config, etcd.ca)},
    {"cert", KEY_TEXT, offsetof(struct rdzv_config, etcd.cert)},
    {"key", KEY_TEXT, offsetof(struct rdzv_config, etcd.key)},
};

int rdzv_conf_find(const char *key, size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (strlen(keys[i].name) == len && memcmp(keys[i].name, key, len) == 0)
            return (int)i;
    }
    return -1;
}

static int apply_time(const char *value, bool zero_ok, double *out, struct err *e)
{
    double s;
    int rc = parse_seconds(value, &s, e);
    if (rc == 0 && s == 0 && !zero_ok)
        rc = err_set(e, -EINVAL, "must be more than 0");
    if (rc == 0 && out)
        *out = s;
    return rc;
}

static bool is_of_etcd(const struct key *k)
{
    return k->kind == KEY_PROTOCOL || k->kind == KEY_TEXT;
}

static int apply_value(struct options *o, const struct key *k, const char *value, bool is_static,
                       struct rdzv_config *c, struct err *e)
{
    char *field = (char *)c + k->offset;
    bool yes;
    long n;
    int rc = 0;
    switch (k->kind) {
    case KEY_TIME:
    case KEY_POSITIVE:
        return apply_time(value, k->kind == KEY_TIME, (double *)(void *)field, e);
    case KEY_UNUSED:
        return apply_time(value, true, NULL, e);
    case KEY_STATIC_TIMEOUT:
        return is_static ? apply_time(value, false, &c->join_timeout, e) : 0;
    case KEY_COUNT:
        rc = parse_int(value, 1, INT_MAX, &n, e);
        if (rc == 0)
            *(int *)(void *)field = (int)n;
        return rc;
    case KEY_IS_HOST:
        rc = parse_bool(value, &yes, e);
        if (rc == 0)
            c->is_host = yes;
        return rc;
    case KEY_PROTOCOL:
        if (strcasecmp(value, "http") != 0 && strcasecmp(value, "https") != 0)
            return err_set(e, -EINVAL, "'%.60s' is neither http nor https", value);
        c->etcd.tls = strcasecmp(value, "https") == 0;
        return 0;
    case KEY_TEXT:
        *(const char **)(void *)field = options_printf(o, "%s", value);
        return 0;
    case KEY_STORE_TYPE:
        if (strcmp(value, "tcp") != 0 && strcmp(value, "file") != 0)
            return err_set(e, -EINVAL, "'%.60s' is neither tcp nor file", value);
        if (c->backend == RDZV_C10D && value[0] == 'f')
            c->backend = RDZV_FILE;
        return 0;
    }
    return rc;
}

/* torchrun ignores a key that its backend does not read. */
static void warn_unknown(struct options *o, const char *key, bool etcd)
{
    char list[512] = "";
    size_t used = 0;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (etcd || !is_of_etcd(&keys[i]))
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "",
                                     keys[i].name);
    }
    options_warn(o, "%s: unknown key %.60s has no effect%s (known keys: %s)",
                 opt_where(o, OPT_rdzv_conf), key,
                 strpbrk(key, "'\"") ? "; the quotes are part of it" : "", list);
}

/* Copies [from, to) without blanks around it. False when it does not fit. */
static bool copy_trimmed(char *out, size_t cap, const char *from, const char *to)
{
    while (from < to && isspace((unsigned char)*from))
        from++;
    while (to > from && isspace((unsigned char)to[-1]))
        to--;
    if ((size_t)(to - from) >= cap)
        return false;
    memcpy(out, from, (size_t)(to - from));
    out[to - from] = '\0';
    return true;
}

int rdzv_conf_apply(struct options *o, bool is_static, struct rdzv_config *c, struct err *e)
{
    const char *text = opt_text(o, OPT_rdzv_conf);
    if (!text[strspn(text, " \t")])
        return 0;
    for (;;) {
        char key[64], value[256];
        const char *end = text + strcspn(text, ","), *eq = memchr(text, '=', (size_t)(end - text));
        if (eq && !copy_trimmed(key, sizeof(key), text, eq))
            return err_set(e, -EINVAL, "'%.60s...' is longer than %zu bytes", text,
                           sizeof(key) - 1);
        if (eq && !copy_trimmed(value, sizeof(value), eq + 1, end))
            return err_set(e, -EINVAL, "%s: the value is longer than %zu bytes", key,
                           sizeof(value) - 1);
        if (!eq || !*key || !*value)
            return err_set(e, -EINVAL, "'%.*s' is not KEY=VALUE",
                           (int)(end - text > 60 ? 60 : end - text), text);
        int k = rdzv_conf_find(key, strlen(key));
        if (k < 0)
            warn_unknown(o, key, c->backend == RDZV_ETCD);
        else if (is_of_etcd(&keys[k]) && c->backend != RDZV_ETCD)
            options_warn(o, "%s: %s has no effect without --rdzv_backend etcd",
                         opt_where(o, OPT_rdzv_conf), key);
        else if (apply_value(o, &keys[k], value, is_static, c, e) < 0) {
            err_wrap(e, "%s", key);
            return -EINVAL;
        }
        if (!*end)
            return 0;
        text = end + 1;
    }
}
