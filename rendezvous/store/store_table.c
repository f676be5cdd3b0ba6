#include "rendezvous/store/store_table.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

#define NAME_OVERHEAD 128 /* approximate size of a map slot and the allocators' overhead */
#define VALUE_CAP_MIN 24  /* so that a counter never needs more */

/* Everything with one name. An entry is in the table while any part of it exists. */
struct store_name {
    struct store_view text;   /* owned by the map */
    struct store_blob *value; /* NULL: the key does not exist */
    struct store_blob *queue, *queue_last;
    int64_t queue_len;
    struct list_node waits;   /* store_wait */
    struct list_node watches; /* store_watch.by_name */
};

struct store_watch {
    struct store_wait by_name;
    struct list_node by_peer;
};

/* --- Names -------------------------------------------------------------------------------------*/

static size_t name_cost(size_t len)
{
    return sizeof(struct store_name) + len + NAME_OVERHEAD;
}

static struct store_name *table_find(const struct store_table *t, struct store_view key)
{
    return map_get(&t->names, key.p, key.len);
}

static bool exists(const struct store_name *n)
{
    return n && (n->value || n->queue);
}

static bool room_for(const struct store_table *t, size_t bytes)
{
    return bytes <= STORE_BYTES_MAX && t->bytes <= STORE_BYTES_MAX - bytes;
}

static enum store_reason find_or_make(struct store_table *t, struct store_view key,
                                      struct store_name **out)
{
    if ((*out = table_find(t, key)))
        return STORE_OK;
    if (t->names.n >= STORE_NAMES_MAX)
        return STORE_ERR_FULL_KEYS;
    if (!room_for(t, name_cost(key.len)))
        return STORE_ERR_FULL_BYTES;
    struct store_name *n = malloc(sizeof(*n));
    void **slot = n ? map_put(&t->names, key.p, key.len) : NULL;
    if (!slot) {
        free(n);
        return STORE_ERR_MEMORY;
    }
    const struct map_entry *e = container_of(slot, struct map_entry, value);
    *n = (struct store_name){.text = {(const uint8_t *)e->key, e->len}};
    list_init(&n->waits);
    list_init(&n->watches);
    *slot = n;
    t->bytes += name_cost(key.len);
    *out = n;
    return STORE_OK;
}

static void drop_if_unused(struct store_table *t, struct store_name *n)
{
    if (exists(n) || !list_alone(&n->waits) || !list_alone(&n->watches))
        return;
    t->bytes -= name_cost(n->text.len);
    free(map_remove(&t->names, n->text.p, n->text.len));
}

/* --- Waiters -----------------------------------------------------------------------------------*/

static void release_waits(struct store_table *t, struct store_peer *p)
{
    if (p->waits != &p->one) {
        t->bytes -= p->waits_cap * sizeof(*p->waits);
        free(p->waits);
    }
    p->waits = NULL;
    p->waits_n = p->waits_cap = p->missing = 0;
}

void store_table_forget_wait(struct store_table *t, struct store_peer *p)
{
    for (size_t i = 0; i < p->waits_n; i++) {
        struct store_wait *w = &p->waits[i];
        if (list_alone(&w->link))
            continue;
        list_remove(&w->link);
        drop_if_unused(t, w->name);
    }
    release_waits(t, p);
}

static void make_ready(struct store_table *t, struct store_peer *p)
{
    if (list_alone(&p->ready))
        list_append(&t->ready, &p->ready);
}

/* The name of the wait now exists. */
static void arrived(struct store_table *t, struct store_wait *w)
{
    struct store_peer *p = w->peer;
    list_remove(&w->link);
    if (--p->missing)
        return;
    release_waits(t, p);
    store_out_u8(&p->out, STORE_STOP_WAITING);
    make_ready(t, p);
}

static void wake_all(struct store_table *t, struct store_name *n)
{
    while (!list_alone(&n->waits))
        arrived(t, container_of(n->waits.next, struct store_wait, link));
}

static void wake_one(struct store_table *t, struct store_name *n)
{
    if (!list_alone(&n->waits))
        arrived(t, container_of(n->waits.next, struct store_wait, link));
}

/* Parks the peer until `missing` names exist; add_wait() adds each. */
static enum store_reason park(struct store_table *t, struct store_peer *p, size_t missing)
{
    size_t bytes = missing * sizeof(*p->waits);
    store_table_forget_wait(t, p);
    p->missing = missing;
    if (missing == 1) {
        p->waits = &p->one;
        return STORE_OK;
    }
    if (!room_for(t, bytes))
        return STORE_ERR_FULL_BYTES;
    p->waits = malloc(bytes);
    if (!p->waits)
        return STORE_ERR_MEMORY;
    p->waits_cap = missing;
    t->bytes += bytes;
    return STORE_OK;
}

static void add_wait(struct store_peer *p, struct store_name *n)
{
    struct store_wait *w = &p->waits[p->waits_n++];
    w->name = n;
    w->peer = p;
    list_append(&n->waits, &w->link);
}

struct store_peer *store_table_next_ready(struct store_table *t)
{
    if (list_alone(&t->ready))
        return NULL;
    struct store_peer *p = container_of(t->ready.next, struct store_peer, ready);
    list_remove(&p->ready);
    return p;
}

/* --- Values ------------------------------------------------------------------------------------*/

/* Notifies the peers that watch the name. */
static void tell_watchers(struct store_table *t, struct store_name *n, uint8_t kind,
                          struct store_blob *before, struct store_blob *after)
{
    for (struct list_node *i = n->watches.next; i != &n->watches; i = i->next) {
        struct store_peer *p = container_of(i, struct store_wait, link)->peer;
        if (p->out.len > STORE_UNREAD_MAX) {
            p->violation = STORE_ERR_STALLED;
        } else {
            store_out_u8(&p->out, kind);
            store_out_bytes(&p->out, n->text.p, n->text.len);
            store_out_blob(&p->out, before);
            store_out_blob(&p->out, after);
        }
        make_ready(t, p);
    }
}

static bool fits(const struct store_blob *b, size_t len)
{
    return b && b->refs == 1 && len <= b->cap && b->cap <= 4 * len + 256;
}

/* Stores these bytes in the key: in place if the old value has no other user. */
static enum store_reason put_value(struct store_table *t, struct store_name *n, struct store_view v)
{
    if (fits(n->value, v.len) && list_alone(&n->watches)) {
        memcpy(n->value->data, v.p, v.len);
        n->value->len = v.len;
        return STORE_OK;
    }
    size_t cap = v.len < VALUE_CAP_MIN ? VALUE_CAP_MIN : v.len;
    if (!room_for(t, store_blob_cost(cap)))
        return STORE_ERR_FULL_BYTES;
    struct store_blob *b = store_blob_new(cap, &t->bytes), *before = n->value;
    if (!b)
        return STORE_ERR_MEMORY;
    if (v.len)
        memcpy(b->data, v.p, v.len);
    b->len = v.len;
    n->value = b;
    t->keys += !before;
    tell_watchers(t, n, before ? STORE_KEY_UPDATED : STORE_KEY_CREATED, before, b);
    store_blob_unref(before);
    return STORE_OK;
}

/* Stores one key and wakes the peers that wait for it. */
static enum store_reason set(struct store_table *t, struct store_view key, struct store_view val)
{
    struct store_name *n;
    enum store_reason why = find_or_make(t, key, &n);
    if (!why)
        why = put_value(t, n, val);
    if (!why)
        wake_all(t, n);
    else if (n)
        drop_if_unused(t, n);
    return why;
}

static enum store_reason append(struct store_table *t, struct store_view key, struct store_view val)
{
    struct store_name *n = table_find(t, key);
    struct store_blob *old = n ? n->value : NULL;
    if (!old)
        return set(t, key, val);
    if (val.len > STORE_VALUE_MAX - old->len)
        return STORE_ERR_VALUE_LENGTH;
    size_t len = old->len + val.len;
    if (old->refs > 1 || old->cap < len) {
        size_t cap = len + len / 2;
        if (!room_for(t, store_blob_cost(cap)))
            return STORE_ERR_FULL_BYTES;
        struct store_blob *b = store_blob_new(cap, &t->bytes);
        if (!b)
            return STORE_ERR_MEMORY;
        memcpy(b->data, old->data, old->len);
        b->len = old->len;
        store_blob_unref(old);
        n->value = b;
    }
    if (val.len)
        memcpy(n->value->data + n->value->len, val.p, val.len);
    n->value->len = len;
    wake_all(t, n); /* the waiters of a barrier wait for a key that exists */
    return STORE_OK;
}

/* The number at the beginning of a text, as strtoll(3) reads it: blanks, sign, digits. 0 for a
 * missing value. */
static bool to_number(const struct store_blob *b, int64_t *out)
{
    *out = 0;
    if (!b)
        return true;
    const char *p = (const char *)b->data, *end = p + b->len;
    while (p < end && (*p == ' ' || (*p >= '\t' && *p <= '\r')))
        p++;
    bool minus = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+'))
        p++;
    if (p == end || *p < '0' || *p > '9')
        return false;
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        int digit = *p - '0';
        if (__builtin_mul_overflow(*out, 10, out) ||
            __builtin_add_overflow(*out, minus ? -digit : digit, out))
            return false;
    }
    return true;
}

/* Decimal text, written from its end; snprintf() would be much of the cost of an ADD. */
static struct store_view to_text(int64_t v, char buf[24])
{
    char *p = buf + 24;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do
        *--p = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0)
        *--p = '-';
    return (struct store_view){(const uint8_t *)p, (size_t)(buf + 24 - p)};
}

static enum store_reason put_sum(struct store_table *t, struct store_view key, int64_t delta,
                                 struct store_name **n, int64_t *sum)
{
    int64_t now;
    enum store_reason why = find_or_make(t, key, n);
    if (why)
        return why;
    if (!to_number((*n)->value, &now))
        return STORE_ERR_NOT_A_NUMBER;
    char text[24];
    *sum = (int64_t)((uint64_t)now + (uint64_t)delta);
    why = put_value(t, *n, to_text(*sum, text));
    if (why)
        drop_if_unused(t, *n);
    return why;
}

/* --- Commands ----------------------------------------------------------------------------------*/

static enum store_reason add(struct store_table *t, struct store_peer *p,
                             const struct store_request *r)
{
    struct store_name *n;
    int64_t sum;
    enum store_reason why = put_sum(t, r->key, r->number, &n, &sum);
    if (why)
        return why;
    store_out_i64(&p->out, sum);
    wake_all(t, n);
    return STORE_OK;
}

static void get(const struct store_table *t, struct store_peer *p, struct store_view key)
{
    struct store_name *n = table_find(t, key);
    store_out_blob(&p->out, n ? n->value : NULL);
}

static enum store_reason compare_set(struct store_table *t, struct store_peer *p,
                                     const struct store_request *r)
{
    struct store_name *n = table_find(t, r->key);
    struct store_blob *now = n ? n->value : NULL;
    bool same = now ? now->len == r->expected.len &&
                          (now->len == 0 || memcmp(now->data, r->expected.p, now->len) == 0)
                    : r->expected.len == 0;
    if (same) {
        enum store_reason why = set(t, r->key, r->val);
        if (!why)
            get(t, p, r->key);
        return why;
    }
    if (now)
        store_out_blob(&p->out, now);
    else
        store_out_bytes(&p->out, r->expected.p, r->expected.len);
    return STORE_OK;
}

static enum store_reason multi_set(struct store_table *t, const struct store_request *r)
{
    struct store_view items = r->items;
    for (size_t i = 0; i < r->count; i++) {
        struct store_view key = store_items_next(&items), val = store_items_next(&items);
        enum store_reason why = set(t, key, val);
        if (why)
            return why;
    }
    return STORE_OK;
}

static enum store_reason multi_get(const struct store_table *t, struct store_peer *p,
                                   const struct store_request *r)
{
    struct store_view items = r->items;
    size_t before = p->out.len;
    for (size_t i = 0; i < r->count; i++) {
        get(t, p, store_items_next(&items));
        if (p->out.len - before > STORE_REPLY_MAX)
            return STORE_ERR_REPLY_LENGTH;
    }
    return STORE_OK;
}

static size_t count_missing(const struct store_table *t, const struct store_request *r)
{
    struct store_view items = r->items;
    size_t missing = 0;
    for (size_t i = 0; i < r->count; i++)
        missing += !exists(table_find(t, store_items_next(&items)));
    return missing;
}

static enum store_reason table_wait_for(struct store_table *t, struct store_peer *p,
                                        const struct store_request *r)
{
    size_t missing = count_missing(t, r);
    if (missing == 0) {
        store_table_forget_wait(t, p);
        store_out_u8(&p->out, STORE_STOP_WAITING);
        return STORE_OK;
    }
    enum store_reason why = park(t, p, missing);
    struct store_view items = r->items;
    for (size_t i = 0; i < r->count && !why; i++) {
        struct store_view key = store_items_next(&items);
        struct store_name *n;
        why = find_or_make(t, key, &n);
        if (!why && !exists(n))
            add_wait(p, n);
    }
    return why;
}

static enum store_reason barrier(struct store_table *t, struct store_peer *p,
                                 const struct store_request *r)
{
    struct store_name *n;
    int64_t count;
    store_table_forget_wait(t, p);
    enum store_reason why = put_sum(t, r->key, 1, &n, &count);
    if (why)
        return why;
    if (count >= r->number) {
        store_out_u8(&p->out, STORE_STOP_WAITING);
        wake_all(t, n);
        return STORE_OK;
    }
    why = park(t, p, 1);
    if (!why)
        add_wait(p, n);
    return why;
}

static bool delete_key(struct store_table *t, struct store_view key)
{
    struct store_name *n = table_find(t, key);
    if (!n || !n->value)
        return false;
    struct store_blob *before = n->value;
    n->value = NULL;
    t->keys--;
    tell_watchers(t, n, STORE_KEY_DELETED, before, NULL);
    store_blob_unref(before);
    drop_if_unused(t, n);
    return true;
}

static enum store_reason queue_push(struct store_table *t, const struct store_request *r)
{
    struct store_name *n;
    enum store_reason why = find_or_make(t, r->key, &n);
    if (why)
        return why;
    struct store_blob *b = NULL;
    if (!room_for(t, store_blob_cost(r->val.len)))
        why = STORE_ERR_FULL_BYTES;
    else if (!(b = store_blob_new(r->val.len, &t->bytes)))
        why = STORE_ERR_MEMORY;
    if (why) {
        drop_if_unused(t, n);
        return why;
    }
    if (r->val.len)
        memcpy(b->data, r->val.p, r->val.len);
    b->len = r->val.len;
    *(n->queue ? &n->queue_last->next : &n->queue) = b;
    n->queue_last = b;
    n->queue_len++;
    wake_one(t, n);
    return STORE_OK;
}

static void queue_pop(struct store_table *t, struct store_peer *p, struct store_view key)
{
    struct store_name *n = table_find(t, key);
    if (!n || !n->queue) {
        store_out_i64(&p->out, 0);
        return;
    }
    struct store_blob *b = n->queue;
    store_out_i64(&p->out, n->queue_len--);
    n->queue = b->next;
    store_out_blob(&p->out, b);
    store_blob_unref(b);
    drop_if_unused(t, n);
}

static void queue_len(const struct store_table *t, struct store_peer *p, struct store_view key)
{
    struct store_name *n = table_find(t, key);
    store_out_i64(&p->out, n ? n->queue_len : 0);
}

/* A name costs more than its place in the list. */
_Static_assert(STORE_BYTES_MAX <= STORE_REPLY_MAX, "all keys must fit in one answer");

static void list_keys(const struct store_table *t, struct store_peer *p)
{
    size_t i = 0;
    struct map_entry *e;
    store_out_i64(&p->out, (int64_t)t->keys);
    while ((e = map_next(&t->names, &i)))
        if (((struct store_name *)e->value)->value)
            store_out_bytes(&p->out, e->key, e->len);
}

static enum store_reason table_watch(struct store_table *t, struct store_peer *p,
                                     struct store_view key)
{
    struct store_name *n;
    if (p->watches_n >= STORE_WATCHES_MAX)
        return STORE_ERR_WATCHES;
    enum store_reason why = find_or_make(t, key, &n);
    if (why)
        return why;
    struct store_watch *w = NULL;
    if (!room_for(t, sizeof(*w)))
        why = STORE_ERR_FULL_BYTES;
    else if (!(w = malloc(sizeof(*w))))
        why = STORE_ERR_MEMORY;
    if (why) {
        drop_if_unused(t, n);
        return why;
    }
    t->bytes += sizeof(*w);
    w->by_name.name = n;
    w->by_name.peer = p;
    list_append(&n->watches, &w->by_name.link);
    list_append(&p->watches, &w->by_peer);
    p->watches_n++;
    store_out_u8(&p->out, STORE_WATCHING);
    return STORE_OK;
}

static enum store_reason apply(struct store_table *t, struct store_peer *p,
                               const struct store_request *r)
{
    switch (r->cmd) {
    case STORE_SET:
        return set(t, r->key, r->val);
    case STORE_COMPARE_SET:
        return compare_set(t, p, r);
    case STORE_GET:
        get(t, p, r->key);
        return STORE_OK;
    case STORE_ADD:
        return add(t, p, r);
    case STORE_CHECK:
        store_out_u8(&p->out, count_missing(t, r) ? STORE_NOT_READY : STORE_READY);
        return STORE_OK;
    case STORE_WAIT:
        return table_wait_for(t, p, r);
    case STORE_GETNUMKEYS:
        store_out_i64(&p->out, (int64_t)t->keys);
        return STORE_OK;
    case STORE_DELETE_KEY:
        store_out_i64(&p->out, delete_key(t, r->key));
        return STORE_OK;
    case STORE_APPEND:
        return append(t, r->key, r->val);
    case STORE_MULTI_GET:
        return multi_get(t, p, r);
    case STORE_MULTI_SET:
        return multi_set(t, r);
    case STORE_CANCEL_WAIT:
        store_table_forget_wait(t, p);
        store_out_u8(&p->out, STORE_CANCELED);
        return STORE_OK;
    case STORE_QUEUE_PUSH:
        return queue_push(t, r);
    case STORE_QUEUE_POP:
        queue_pop(t, p, r->key);
        return STORE_OK;
    case STORE_QUEUE_LEN:
        queue_len(t, p, r->key);
        return STORE_OK;
    case STORE_LIST_KEYS:
        list_keys(t, p);
        return STORE_OK;
    case STORE_BARRIER:
        return barrier(t, p, r);
    case STORE_WATCH_KEY:
        return table_watch(t, p, r->key);
    case STORE_VALIDATE:
    case STORE_PING:
    case STORE_CMDS:
        break;
    }
    return STORE_ERR_OPCODE;
}

enum store_reason store_table_apply(struct store_table *t, struct store_peer *p,
                                    const struct store_request *r)
{
    enum store_reason why = apply(t, p, r);
    return why ? why : p->out.oom ? STORE_ERR_MEMORY : STORE_OK;
}

/* --- Lifetimes ---------------------------------------------------------------------------------*/

void store_table_init(struct store_table *t)
{
    *t = (struct store_table){.keys = 0};
    map_init(&t->names);
    list_init(&t->ready);
}

static void free_name(void *value)
{
    struct store_name *n = value;
    store_blob_unref(n->value);
    for (struct store_blob *b = n->queue, *next; b; b = next) {
        next = b->next;
        store_blob_unref(b);
    }
    free(n);
}

void store_table_fini(struct store_table *t)
{
    map_fini(&t->names, free_name);
    t->keys = t->bytes = 0;
}

void store_peer_init(struct store_peer *p)
{
    memset(p, 0, sizeof(*p));
    store_out_init(&p->out);
    list_init(&p->ready);
    list_init(&p->watches);
}

void store_peer_fini(struct store_table *t, struct store_peer *p)
{
    store_table_forget_wait(t, p);
    while (!list_alone(&p->watches)) {
        struct store_watch *w = container_of(p->watches.next, struct store_watch, by_peer);
        list_remove(&w->by_peer);
        list_remove(&w->by_name.link);
        t->bytes -= sizeof(*w);
        drop_if_unused(t, w->by_name.name);
        free(w);
    }
    p->watches_n = 0;
    list_remove(&p->ready);
    store_out_fini(&p->out);
}
