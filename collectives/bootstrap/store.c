#include "collectives/bootstrap/store.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/base/error.h"
#include "core/clock.h"
#include "core/netaddr.h"
#include "core/parse.h"

enum { DEFAULT_PORT = 29500 };

int store_ms_until(uint64_t deadline_ns)
{
    if (!deadline_ns)
        return -1;
    uint64_t now = mono_ns();
    uint64_t ms = now < deadline_ns ? (deadline_ns - now) / 1000000 + 1 : 0;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

static int to_ms(int64_t timeout_ms)
{
    return timeout_ms < 0 ? -1 : timeout_ms > INT_MAX ? INT_MAX : (int)timeout_ms;
}

int store_open(struct dlcoll_store **out, const char *host, int port, bool host_it,
               int64_t timeout_ms, struct err *e)
{
    struct dlcoll_store *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(e, -ENOMEM, "no memory");
    s->timeout_ms = timeout_ms;
    int r = 0;
    if (host_it) {
        r = store_thread_new(&s->server, &(struct store_thread_opts){.port = port}, e);
        if (r == 0)
            port = store_thread_port(s->server);
    }
    snprintf(s->host, sizeof(s->host), "%s", host);
    s->port = port;
    if (r == 0)
        r = store_client_new(&s->client, host, port, to_ms(timeout_ms), e);
    if (r < 0) {
        dlcoll_store_close(s);
        return r;
    }
    *out = s;
    return 0;
}

static int store_report(const char *what, int r, const struct err *e)
{
    return r < 0 ? error_set_global(error_code(r), "%s: %s", what, e->msg) : r;
}

int dlcoll_store_open(dlcoll_store **store, const char *url, int host_it, int64_t timeout_ms)
{
    struct err e = ERR_INIT;
    char host[HOST_MAX];
    int port;
    if (!store)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_store_open: store is NULL");
    *store = NULL;
    if (!url || strncmp(url, "tcp://", 6) != 0)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_store_open: %.100s is not tcp://HOST:PORT",
                                url ? url : "NULL");
    int r = endpoint_parse(url + 6, DEFAULT_PORT, host, &port, &e);
    if (r == 0)
        r = store_open(store, host, port, host_it, timeout_ms ? timeout_ms : 10 * 60 * 1000, &e);
    return store_report("dlcoll_store_open", r, &e);
}

void dlcoll_store_close(dlcoll_store *s)
{
    if (!s)
        return;
    store_client_free(s->client);
    store_thread_free(s->server);
    free(s);
}

static bool is_valid(const dlcoll_store *s, const char *key, const char *what, int *code)
{
    *code = 0;
    if (!s || !key)
        *code = error_set_global(DLCOLL_EINVAL, "%s: %s is NULL", what, s ? "key" : "store");
    return *code == 0;
}

static int timeout_of(const dlcoll_store *s, int64_t timeout_ms)
{
    return to_ms(timeout_ms ? timeout_ms : s->timeout_ms);
}

int dlcoll_store_set(dlcoll_store *s, const char *key, const void *value, size_t len)
{
    struct err e = ERR_INIT;
    int code;
    if (!is_valid(s, key, "dlcoll_store_set", &code))
        return code;
    if (len && !value)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_store_set: value is NULL");
    return store_report("dlcoll_store_set", store_client_set(s->client, key, value, len, &e), &e);
}

int dlcoll_store_get(dlcoll_store *s, const char *key, void **value, size_t *len,
                     int64_t timeout_ms)
{
    struct err e = ERR_INIT;
    int code;
    if (!is_valid(s, key, "dlcoll_store_get", &code))
        return code;
    if (!value || !len)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_store_get: value or len is NULL");
    *value = NULL;
    return store_report("dlcoll_store_get",
                        store_client_get(s->client, key, value, len, timeout_of(s, timeout_ms), &e),
                        &e);
}

int dlcoll_store_add(dlcoll_store *s, const char *key, int64_t delta, int64_t *sum)
{
    struct err e = ERR_INIT;
    int64_t now;
    int code;
    if (!is_valid(s, key, "dlcoll_store_add", &code))
        return code;
    int r = store_client_add(s->client, key, delta, &now, &e);
    if (r == 0 && sum)
        *sum = now;
    return store_report("dlcoll_store_add", r, &e);
}

int dlcoll_store_wait(dlcoll_store *s, const char *const *keys, size_t n, int64_t timeout_ms)
{
    struct err e = ERR_INIT;
    int code = 0;
    for (size_t i = 0; i < n && keys; i++) {
        if (!is_valid(s, keys[i], "dlcoll_store_wait", &code))
            return code;
    }
    if (!s || (n && !keys))
        return error_set_global(DLCOLL_EINVAL, "dlcoll_store_wait: store or keys is NULL");
    if (n == 0)
        return 0;
    return store_report("dlcoll_store_wait",
                        store_client_wait(s->client, keys, n, timeout_of(s, timeout_ms), &e), &e);
}

int dlcoll_store_compare_set(dlcoll_store *s, const char *key, const void *expected,
                             size_t expected_len, const void *value, size_t len, void **now,
                             size_t *now_len)
{
    struct err e = ERR_INIT;
    void *there = NULL;
    size_t there_len = 0;
    int code;
    if (!is_valid(s, key, "dlcoll_store_compare_set", &code))
        return code;
    if ((expected_len && !expected) || (len && !value))
        return error_set_global(DLCOLL_EINVAL,
                                "dlcoll_store_compare_set: expected or value is NULL");
    int r = store_client_compare_set(s->client, key, expected, expected_len, value, len, &there,
                                     &there_len, &e);
    if (now_len)
        *now_len = r == 0 ? there_len : 0;
    if (now)
        *now = r == 0 ? there : NULL;
    else
        free(there);
    return store_report("dlcoll_store_compare_set", r, &e);
}

int dlcoll_store_delete(dlcoll_store *s, const char *key)
{
    struct err e = ERR_INIT;
    bool deleted = false;
    int code;
    if (!is_valid(s, key, "dlcoll_store_delete", &code))
        return code;
    int r = store_client_delete(s->client, key, &deleted, &e);
    return r < 0 ? store_report("dlcoll_store_delete", r, &e) : deleted;
}
