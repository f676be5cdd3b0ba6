/* What each call of store_async.h sends. */
#include "rendezvous/store/store_async.h"

#include <string.h>

#include "core/bytes.h"

static struct store_view view(const void *p, size_t len)
{
    return (struct store_view){p, len};
}

static struct store_view text(const char *s)
{
    return view(s, strlen(s));
}

/* A request for a list of keys. The caller frees *items. */
static struct store_request list(enum store_cmd cmd, const char *const *keys, size_t n,
                                 struct buf *items)
{
    for (size_t i = 0; i < n && items->len <= STORE_CALL_MAX; i++)
        store_items_put(items, keys[i], strlen(keys[i]));
    return (struct store_request){.cmd = cmd,
                                  .key = n ? text(keys[0]) : view(NULL, 0),
                                  .items = view(items->data, items->len),
                                  .count = n};
}

void store_async_set(struct store_async *c, const char *key, const void *val, size_t len,
                     struct store_done done)
{
    store_async_request(
        c, &(struct store_request){.cmd = STORE_SET, .key = text(key), .val = view(val, len)}, NULL,
        -1, done);
}

/* Waits (or asks) for one key, then does the second step with it. */
static void start_with_key(struct store_async *c, enum store_cmd before, enum store_cmd cmd,
                           const char *key, int timeout_ms, struct store_done done)
{
    struct buf items = BUF_INIT;
    struct store_request r = list(before, &key, 1, &items);
    struct store_request then = {.cmd = cmd, .key = text(key)};
    store_async_request(c, &r, &then, timeout_ms, done);
    buf_fini(&items);
}

void store_async_get(struct store_async *c, const char *key, int timeout_ms, struct store_done done)
{
    start_with_key(c, STORE_WAIT, STORE_GET, key, timeout_ms, done);
}

void store_async_try_get(struct store_async *c, const char *key, struct store_done done)
{
    start_with_key(c, STORE_CHECK, STORE_GET, key, -1, done);
}

void store_async_queue_pop(struct store_async *c, const char *key, int timeout_ms,
                           struct store_done done)
{
    start_with_key(c, STORE_WAIT, STORE_QUEUE_POP, key, timeout_ms, done);
}

void store_async_add(struct store_async *c, const char *key, int64_t delta, struct store_done done)
{
    store_async_request(
        c, &(struct store_request){.cmd = STORE_ADD, .key = text(key), .number = delta}, NULL, -1,
        done);
}

static void start_list(struct store_async *c, enum store_cmd cmd, const char *const *keys, size_t n,
                       int timeout_ms, struct store_done done)
{
    struct buf items = BUF_INIT;
    struct store_request r = list(cmd, keys, n, &items);
    store_async_request(c, &r, NULL, timeout_ms, done);
    buf_fini(&items);
}

void store_async_wait(struct store_async *c, const char *const *keys, size_t n, int timeout_ms,
                      struct store_done done)
{
    start_list(c, STORE_WAIT, keys, n, timeout_ms, done);
}

void store_async_check(struct store_async *c, const char *const *keys, size_t n,
                       struct store_done done)
{
    start_list(c, STORE_CHECK, keys, n, -1, done);
}

void store_async_compare_set(struct store_async *c, const char *key, const void *expected,
                             size_t expected_len, const void *desired, size_t desired_len,
                             struct store_done done)
{
    store_async_request(c,
                        &(struct store_request){.cmd = STORE_COMPARE_SET,
                                                .key = text(key),
                                                .expected = view(expected, expected_len),
                                                .val = view(desired, desired_len)},
                        NULL, -1, done);
}

void store_async_delete(struct store_async *c, const char *key, struct store_done done)
{
    store_async_request(c, &(struct store_request){.cmd = STORE_DELETE_KEY, .key = text(key)}, NULL,
                        -1, done);
}

void store_async_append(struct store_async *c, const char *key, const void *val, size_t len,
                        struct store_done done)
{
    store_async_request(
        c, &(struct store_request){.cmd = STORE_APPEND, .key = text(key), .val = view(val, len)},
        NULL, -1, done);
}

void store_async_num_keys(struct store_async *c, struct store_done done)
{
    store_async_request(c, &(struct store_request){.cmd = STORE_GETNUMKEYS}, NULL, -1, done);
}

void store_async_multi_get(struct store_async *c, const char *const *keys, size_t n, int timeout_ms,
                           struct store_done done)
{
    struct buf items = BUF_INIT;
    struct store_request r = list(STORE_WAIT, keys, n, &items), then = r;
    then.cmd = STORE_MULTI_GET;
    store_async_request(c, &r, &then, timeout_ms, done);
    buf_fini(&items);
}

void store_async_multi_set(struct store_async *c, const char *const *keys, const void *const *vals,
                           const size_t *lens, size_t n, struct store_done done)
{
    struct buf items = BUF_INIT;
    for (size_t i = 0; i < n && items.len <= STORE_CALL_MAX; i++) {
        store_items_put(&items, keys[i], strlen(keys[i]));
        store_items_put(&items, vals[i], lens[i]);
    }
    store_async_request(c,
                        &(struct store_request){.cmd = STORE_MULTI_SET,
                                                .items = view(items.data, items.len),
                                                .count = n},
                        NULL, -1, done);
    buf_fini(&items);
}

void store_async_queue_push(struct store_async *c, const char *key, const void *val, size_t len,
                            struct store_done done)
{
    store_async_request(
        c,
        &(struct store_request){.cmd = STORE_QUEUE_PUSH, .key = text(key), .val = view(val, len)},
        NULL, -1, done);
}

void store_async_queue_len(struct store_async *c, const char *key, struct store_done done)
{
    store_async_request(c, &(struct store_request){.cmd = STORE_QUEUE_LEN, .key = text(key)}, NULL,
                        -1, done);
}

void store_async_list_keys(struct store_async *c, struct store_done done)
{
    store_async_request(c, &(struct store_request){.cmd = STORE_LIST_KEYS}, NULL, -1, done);
}

void store_async_barrier(struct store_async *c, const char *key, int64_t world, int timeout_ms,
                         struct store_done done)
{
    store_async_request(
        c, &(struct store_request){.cmd = STORE_BARRIER, .key = text(key), .number = world}, NULL,
        timeout_ms, done);
}
