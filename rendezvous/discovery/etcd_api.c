#include "rendezvous/discovery/etcd_api.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bytes.h"
#include "core/http.h"
#include "core/mem.h"

#define STEP_MS 2000

/* Codes of gRPC in the gateway's answers. */
enum { NOT_FOUND = 5, PERMISSION_DENIED = 7, UNAVAILABLE = 14, UNAUTHENTICATED = 16 };

struct etcd {
    struct etcd_config config;
    int first;   /* the server that answered last */
    char *token; /* of the user; NULL: none yet */
    int64_t revision;
};

struct etcd *etcd_new(const struct etcd_config *config)
{
    struct etcd *c = xcalloc(1, sizeof(*c));
    c->config = *config;
    return c;
}

static void drop_token(struct etcd *c)
{
    if (c->token)
        tls_wipe(c->token, strlen(c->token));
    free(c->token);
    c->token = NULL;
}

void etcd_free(struct etcd *c)
{
    if (!c)
        return;
    drop_token(c);
    free(c);
}

/* --------------------------------------------------------------------------------------- base64 */

static const char g_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static char *base64(const char *text)
{
    size_t n = strlen(text), i = 0;
    char *out = xmalloc((n + 2) / 3 * 4 + 1), *to = out;
    for (; i < n; i += 3) {
        size_t left = n - i;
        uint32_t v = (uint32_t)(uint8_t)text[i] << 16 |
                     (left > 1 ? (uint32_t)(uint8_t)text[i + 1] << 8 : 0) |
                     (left > 2 ? (uint32_t)(uint8_t)text[i + 2] : 0);
        *to++ = g_digits[v >> 18];
        *to++ = g_digits[v >> 12 & 63];
        *to++ = left > 1 ? g_digits[v >> 6 & 63] : '=';
        *to++ = left > 2 ? g_digits[v & 63] : '=';
    }
    *to = '\0';
    return out;
}

/* NULL: it is malformed. */
static char *from_base64(const char *text)
{
    size_t n = strcspn(text, "="), len = 0;
    char *out = xmalloc(n * 3 / 4 + 1);
    uint32_t v = 0;
    for (size_t i = 0; i < n; i++) {
        const char *digit = strchr(g_digits, text[i]);
        if (!digit) {
            free(out);
            return NULL;
        }
        v = v << 6 | (uint32_t)(digit - g_digits);
        if (i % 4 != 0)
            out[len++] = (char)(v >> (6 - 2 * (i % 4)));
    }
    out[len] = '\0';
    return out;
}

static json_t *key_of(const char *text)
{
    char *coded = base64(text);
    json_t *j = json_string(coded);
    free(coded);
    return j;
}

/* ------------------------------------------------------------------------------------- one call */

static int post(const struct etcd *c, const struct etcd_server *s, const char *path,
                const char *body, struct buf *answer, struct err *e)
{
    bool six = strchr(s->host, ':') != NULL;
    char *url = xasprintf("%s://%s%s%s:%d%s", c->config.tls ? "https" : "http", six ? "[" : "",
                          s->host, six ? "]" : "", s->port, path);
    const struct http_post p = {.url = url,
                                .files = c->config.files,
                                .authorization = c->token,
                                .body = body,
                                .step_ms = STEP_MS};
    int status = http_post(&p, answer, e);
    free(url);
    return status;
}

/* Interprets the answer of a server: 0 and *out, or a negative errno. */
static int check_answer(const struct etcd_server *s, int status, const struct buf *answer,
                        json_t **out, struct err *e)
{
    json_t *j = answer->len ? json_loadb((const char *)answer->data, answer->len, 0, NULL) : NULL;
    const json_t *error = json_object_get(j, "error");
    const char *text =
        json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
    int code = (int)json_integer_value(json_object_get(json_is_object(error) ? error : j, "code"));
    int rc = 0;
    if (status == 200 && json_is_object(j) && !error) {
        *out = j;
        return 0;
    }
    if (code == NOT_FOUND)
        rc = err_set(e, -ENOENT, "etcd at %.100s:%d: %.200s", s->host, s->port, text ? text : "");
    else if (code == UNAUTHENTICATED || code == PERMISSION_DENIED || status == 401 ||
             (text && strstr(text, "authentication failed")))
        rc = err_set(e, code == UNAUTHENTICATED ? -EKEYREJECTED : -EACCES,
                     "etcd at %.100s:%d refuses: %.200s (user and password: ETCDCTL_USER)", s->host,
                     s->port, text ? text : "not allowed");
    else if (status == 404)
        rc = err_set(e, -EOPNOTSUPP,
                     "%.100s:%d has no v3 API of etcd: version 3.4 or later is needed", s->host,
                     s->port);
    else if (text && (strstr(text, "user name is empty") || strstr(text, "invalid auth token")))
        rc = err_set(e, -EKEYREJECTED, "etcd at %.100s:%d needs a user: set ETCDCTL_USER", s->host,
                     s->port);
    else if (text)
        rc = err_set(e, -EIO, "etcd at %.100s:%d: %.200s", s->host, s->port, text);
    else
        rc = err_set(e, -EPROTO, "%.100s:%d is not etcd: it answers with status %d", s->host,
                     s->port, status);
    json_decref(j);
    return rc;
}

static bool is_final(int rc)
{
    return rc == -ENOENT || rc == -EACCES || rc == -EKEYREJECTED || rc == -EINVAL;
}

/* Asks the servers one after the other, beginning with the one that answered last. */
static int ask_servers(struct etcd *c, const char *path, const char *body, json_t **out,
                       struct err *e)
{
    int n = c->config.nservers, rc = -EINVAL;
    for (int i = 0; i < n; i++) {
        int k = (c->first + i) % n;
        struct buf answer = BUF_INIT;
        rc = post(c, &c->config.servers[k], path, body, &answer, e);
        if (rc >= 0)
            rc = check_answer(&c->config.servers[k], rc, &answer, out, e);
        else
            err_wrap(e, "etcd");
        if (answer.len)
            tls_wipe(answer.data, answer.len);
        buf_fini(&answer);
        if (rc == 0 || is_final(rc)) {
            c->first = k;
            return rc;
        }
    }
    return rc;
}

static int log_in(struct etcd *c, struct err *e)
{
    json_t *j = json_pack("{s:s, s:s}", "name", c->config.user, "password", c->config.password),
           *out = NULL;
    char *body = json_dumps(j, JSON_COMPACT);
    drop_token(c);
    int rc = ask_servers(c, "/v3/auth/authenticate", body, &out, e);
    const char *token = json_string_value(json_object_get(out, "token"));
    if (rc == 0 && token)
        c->token = xstrdup(token);
    json_decref(out);
    json_decref(j);
    tls_wipe(body, strlen(body));
    free(body);
    return rc == -EKEYREJECTED ? -EACCES : rc;
}

static int64_t get_number(const json_t *from, const char *name)
{
    const char *text = json_string_value(json_object_get(from, name));
    return text ? strtoll(text, NULL, 10) : 0;
}

/* Of an answer, or of the result in that of a stream. */
static void note_revision(struct etcd *c, const json_t *out)
{
    const json_t *header = json_object_get(out, "header");
    if (!header)
        header = json_object_get(json_object_get(out, "result"), "header");
    c->revision = get_number(header, "revision");
}

/* Sends a request, which is freed, as the user. */
static int call(struct etcd *c, const char *path, json_t *request, json_t **out, struct err *e)
{
    char *body = json_dumps(request, JSON_COMPACT);
    int rc = c->config.user && !c->token ? log_in(c, e) : 0;
    *out = NULL;
    if (rc == 0)
        rc = ask_servers(c, path, body, out, e);
    if (rc == -EKEYREJECTED && c->config.user) { /* tokens end, and with their server */
        rc = log_in(c, e);
        if (rc == 0)
            rc = ask_servers(c, path, body, out, e);
    }
    note_revision(c, *out);
    json_decref(request);
    free(body);
    return rc == -EKEYREJECTED ? -EACCES : rc;
}

int64_t etcd_revision(const struct etcd *c)
{
    return c->revision;
}

/* ---------------------------------------------------------------------------------------- calls */

/* The gateway writes numbers of 64 bits as strings. */
static json_t *number64(int64_t v)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRId64, v);
    return json_string(text);
}

int etcd_grant(struct etcd *c, int ttl_s, int64_t *lease, struct err *e)
{
    json_t *out;
    int rc = call(c, "/v3/lease/grant", json_pack("{s:i}", "TTL", ttl_s), &out, e);
    *lease = get_number(out, "ID");
    json_decref(out);
    return rc == 0 && *lease == 0 ? err_set(e, -EPROTO, "etcd has granted a lease without a name")
                                  : rc;
}

int etcd_keep_alive(struct etcd *c, int64_t lease, struct err *e)
{
    json_t *out;
    int rc = call(c, "/v3/lease/keepalive", json_pack("{s:o}", "ID", number64(lease)), &out, e);
    bool lives = get_number(json_object_get(out, "result"), "TTL") > 0;
    json_decref(out);
    return rc == -ENOENT ? 0 : rc < 0 ? rc : lives;
}

int etcd_revoke(struct etcd *c, int64_t lease, struct err *e)
{
    json_t *out;
    int rc = call(c, "/v3/lease/revoke", json_pack("{s:o}", "ID", number64(lease)), &out, e);
    json_decref(out);
    return rc == -ENOENT ? 0 : rc;
}

int etcd_get(struct etcd *c, const char *key, char **value, struct err *e)
{
    json_t *out;
    int rc = call(c, "/v3/kv/range", json_pack("{s:o}", "key", key_of(key)), &out, e);
    const json_t *kv = json_array_get(json_object_get(out, "kvs"), 0);
    const char *coded = json_string_value(json_object_get(kv, "value"));
    *value = NULL;
    if (rc == 0 && kv) { /* an empty value is left out */
        *value = from_base64(coded ? coded : "");
        rc = *value ? 0 : err_set(e, -EPROTO, "etcd has sent a malformed value");
    }
    json_decref(out);
    return rc;
}

int etcd_put_if(struct etcd *c, const char *key, const char *is, const struct etcd_put *puts, int n,
                struct err *e)
{
    json_t *out, *list = json_array();
    json_t *compare = is ? json_pack("{s:s, s:o, s:o}", "target", "VALUE", "key", key_of(key),
                                     "value", key_of(is))
                         : json_pack("{s:s, s:o, s:s}", "target", "CREATE", "key", key_of(key),
                                     "createRevision", "0");
    for (int i = 0; i < n; i++) {
        const struct etcd_put *p = &puts[i];
        json_array_append_new(
            list, p->value ? json_pack("{s:{s:o, s:o, s:o}}", "requestPut", "key", key_of(p->key),
                                       "value", key_of(p->value), "lease", number64(p->lease))
                           : json_pack("{s:{s:o}}", "requestDeleteRange", "key", key_of(p->key)));
    }
    json_t *request = json_pack("{s:[o], s:o}", "compare", compare, "success", list);
    int rc = call(c, "/v3/kv/txn", request, &out, e);
    bool done = json_is_true(json_object_get(out, "succeeded"));
    json_decref(out);
    return rc < 0 ? rc : done;
}
