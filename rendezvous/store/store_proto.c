#include "rendezvous/store/store_proto.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

#define PARTIAL_KEPT 4096 /* an empty buffer that is larger is freed */

static const struct command {
    const char *name;
    signed char opcode[STORE_DIALECTS];
    const char *request, *reply;
} commands[STORE_CMDS] = {
#define X(name, op, op_21, op_113, request, reply) {#name, {op, op_21, op_113}, request, reply},
    STORE_COMMANDS(X)
#undef X
};

static const char *const reasons[STORE_REASONS] = {"",
#define X(name, text) text,
                                                   STORE_REASONS_MAP(X)
#undef X
};

const char *store_cmd_name(enum store_cmd cmd)
{
    return commands[cmd].name;
}

int store_cmd_opcode(enum store_dialect d, enum store_cmd cmd)
{
    return commands[cmd].opcode[d];
}

const char *store_reason_text(enum store_reason r)
{
    return reasons[r];
}

static int find_command(enum store_dialect d, uint8_t opcode)
{
    for (int i = 0; i < STORE_CMDS; i++)
        if (commands[i].opcode[d] == (int)opcode)
            return i;
    return -1;
}

static uint32_t load_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return le32toh(v);
}

static uint64_t load_u64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return le64toh(v);
}

struct store_view store_items_next(struct store_view *items)
{
    if (items->len < 8)
        return (struct store_view){NULL, 0};
    uint64_t n = load_u64(items->p);
    struct store_view v = {items->p + 8, n < items->len - 8 ? n : items->len - 8};
    items->p += 8 + v.len;
    items->len -= 8 + v.len;
    return v;
}

/* --- Measuring ---------------------------------------------------------------------------------*/

static int too_much(struct store_scan *s, enum store_reason why, uint64_t asked)
{
    s->asked = asked;
    return -(int)why;
}

/* Scans the string at s->at: checks its length before its bytes have arrived. */
static int scan_string(struct store_scan *s, char kind, const uint8_t *p, size_t len)
{
    if (len - s->at < 8)
        return 0;
    uint64_t n = load_u64(p + s->at);
    if (kind == 'k' && n > STORE_KEY_MAX)
        return too_much(s, STORE_ERR_KEY_LENGTH, n);
    if (n > s->value_max)
        return too_much(s, STORE_ERR_VALUE_LENGTH, n);
    if (n + 8 > s->total_max - s->at)
        return too_much(s, s->too_long, s->at + 8 + n);
    if (len - s->at - 8 < n)
        return 0;
    s->at += 8 + n;
    return 1;
}

static int scan_items(struct store_scan *s, const uint8_t *p, size_t len)
{
    while (s->items) {
        int rc = scan_string(s, s->item, p, len);
        if (rc <= 0)
            return rc;
        char done = s->item;
        s->item = s->other;
        s->other = done;
        s->items--;
    }
    return 1;
}

/* Scans the count of a list; its strings follow, `item` and `other` in turn. */
static int scan_list(struct store_scan *s, uint64_t count, uint64_t max, char item, char other)
{
    if (count > max)
        return too_much(s, STORE_ERR_KEY_COUNT, count);
    s->items = item == other ? count : 2 * count;
    s->item = item;
    s->other = other;
    return 1;
}

static int scan_field(struct store_scan *s, const uint8_t *p, size_t len)
{
    char field = *s->fields;
    size_t fixed = field == 'b' ? 1 : field == 'u' ? 4 : strchr("iKPSq", field) ? 8 : 0;
    if (!fixed)
        return scan_string(s, field, p, len);
    if (len - s->at < fixed)
        return 0;
    const uint8_t *at = p + s->at;
    s->at += fixed;
    switch (field) {
    case 'K':
        return scan_list(s, load_u64(at), STORE_KEYS_MAX, 'k', 'k');
    case 'P':
        return scan_list(s, load_u64(at), STORE_KEYS_MAX, 'k', 'v');
    case 'S':
        return scan_list(s, load_u64(at), STORE_REPLY_MAX / 8, 'v', 'v');
    case 'q': /* an element follows the length of a queue that is not empty */
        return scan_list(s, (int64_t)load_u64(at) > 0, 1, 'v', 'v');
    default:
        return 1;
    }
}

int store_scan(struct store_scan *s, const uint8_t *p, size_t len)
{
    for (;;) {
        int rc = scan_items(s, p, len);
        if (rc <= 0)
            return rc;
        if (!*s->fields)
            return 1;
        rc = scan_field(s, p, len);
        if (rc <= 0)
            return rc;
        s->fields++;
    }
}

void store_scan_reply(struct store_scan *s, enum store_cmd cmd, size_t count)
{
    const char *fields = commands[cmd].reply;
    *s = (struct store_scan){.fields = fields,
                             .value_max = STORE_REPLY_MAX,
                             .total_max = STORE_REPLY_MAX,
                             .too_long = STORE_ERR_REPLY_LENGTH};
    if (*fields == 'V') { /* the request determines the count */
        s->fields = "";
        scan_list(s, count, UINT64_MAX, 'v', 'v');
    }
}

/* --- Decoding ----------------------------------------------------------------------------------*/

void store_decoder_init(struct store_decoder *d, bool legacy_113)
{
    *d = (struct store_decoder){.legacy_113 = legacy_113, .partial = BUF_INIT};
}

void store_decoder_fini(struct store_decoder *d)
{
    buf_fini(&d->partial);
    d->unread = (struct store_view){NULL, 0};
}

void store_decoder_feed(struct store_decoder *d, const void *chunk, size_t n)
{
    if (d->partial.len == 0) {
        d->unread = (struct store_view){chunk, n};
        return;
    }
    buf_put(&d->partial, chunk, n);
    d->unread = (struct store_view){d->partial.data, d->partial.len};
}

/* Keeps the rest in `partial` for the next chunk. */
static int keep_rest(struct store_decoder *d)
{
    struct store_view rest = d->unread;
    d->unread = (struct store_view){NULL, 0};
    if (d->partial.oom)
        return -STORE_ERR_MEMORY;
    if (d->partial.len) {
        if (rest.len < d->partial.len) /* an empty memmove() is not free */
            buf_consume(&d->partial, d->partial.len - rest.len);
    } else {
        buf_put(&d->partial, rest.p, rest.len);
        if (d->partial.oom)
            return -STORE_ERR_MEMORY;
    }
    if (d->partial.len == 0 && d->partial.cap > PARTIAL_KEPT)
        buf_fini(&d->partial);
    return 0;
}

/* Whether the connection begins with VALIDATE and its magic number. A legacy SET begins with 0 too,
 * but the magic number is not a valid length of a key. False: more bytes are needed to decide. */
static bool tell_dialect(struct store_decoder *d)
{
    static const uint8_t hello[5] = {0, 0xCE, 0xF7, 0x85, 0x3C};
    size_t n = d->unread.len < sizeof(hello) ? d->unread.len : sizeof(hello);
    if (memcmp(d->unread.p, hello, n) != 0)
        d->dialect = d->legacy_113 ? STORE_113 : STORE_21;
    else if (n == sizeof(hello))
        d->dialect = STORE_NEWEST;
    else
        return false;
    d->known = true;
    return true;
}

/* Decodes the fields of a request that a scan has found complete and within its limits. */
static void fill_request(struct store_request *r, enum store_cmd cmd, const uint8_t *p,
                         const uint8_t *end)
{
    *r = (struct store_request){.cmd = cmd};
    p++;
    for (const char *f = commands[cmd].request; *f; f++) {
        struct store_view rest = {p, (size_t)(end - p)};
        switch (*f) {
        case 'u':
            r->word = load_u32(p);
            p += 4;
            break;
        case 'i':
            r->number = (int64_t)load_u64(p);
            p += 8;
            break;
        case 'K':
        case 'P':
            r->count = load_u64(p);
            r->items = (struct store_view){p + 8, rest.len - 8};
            p = end;
            break;
        default: {
            struct store_view v = store_items_next(&rest);
            *(*f == 'k' ? &r->key : *f == 'e' ? &r->expected : &r->val) = v;
            p = rest.p;
        }
        }
    }
}

int store_decoder_next(struct store_decoder *d, struct store_request *r)
{
    if (d->unread.len == 0)
        return keep_rest(d);
    if (!d->known && !tell_dialect(d))
        return keep_rest(d);
    if (!d->started) {
        int cmd = find_command(d->dialect, d->unread.p[0]);
        if (cmd < 0)
            return -STORE_ERR_OPCODE;
        d->cmd = (enum store_cmd)cmd;
        d->scan = (struct store_scan){.fields = commands[cmd].request,
                                      .at = 1,
                                      .value_max = STORE_VALUE_MAX,
                                      .total_max = STORE_CALL_MAX,
                                      .too_long = STORE_ERR_CALL_LENGTH};
        d->started = true;
    }
    int rc = store_scan(&d->scan, d->unread.p, d->unread.len);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return keep_rest(d);
    fill_request(r, d->cmd, d->unread.p, d->unread.p + d->scan.at);
    d->unread.p += d->scan.at;
    d->unread.len -= d->scan.at;
    d->started = false;
    return 1;
}

/* --- Encoding ----------------------------------------------------------------------------------*/

void store_items_put(struct buf *items, const void *p, size_t n)
{
    buf_u64(items, n);
    buf_put(items, p, n);
}

enum store_reason store_request_check(const struct store_request *r)
{
    if (r->key.len > STORE_KEY_MAX)
        return STORE_ERR_KEY_LENGTH;
    if (r->val.len > STORE_VALUE_MAX || r->expected.len > STORE_VALUE_MAX)
        return STORE_ERR_VALUE_LENGTH;
    if (r->count > STORE_KEYS_MAX)
        return STORE_ERR_KEY_COUNT;
    if (r->key.len + r->expected.len + r->val.len + r->items.len + 64 > STORE_CALL_MAX)
        return STORE_ERR_CALL_LENGTH;
    bool pairs = r->cmd == STORE_MULTI_SET;
    struct store_view items = r->items;
    for (size_t i = 0; i < r->count; i++) {
        if (store_items_next(&items).len > STORE_KEY_MAX)
            return STORE_ERR_KEY_LENGTH;
        if (pairs && store_items_next(&items).len > STORE_VALUE_MAX)
            return STORE_ERR_VALUE_LENGTH;
    }
    return STORE_OK;
}

struct store_view store_encode_head(struct buf *b, enum store_dialect d,
                                    const struct store_request *r)
{
    struct store_view tail = {NULL, 0};
    buf_u8(b, (uint8_t)commands[r->cmd].opcode[d]);
    for (const char *f = commands[r->cmd].request; *f; f++) {
        buf_put(b, tail.p, tail.len); /* the previous field was not the last */
        tail = (struct store_view){NULL, 0};
        switch (*f) {
        case 'u':
            buf_u32(b, r->word);
            break;
        case 'i':
            buf_u64(b, (uint64_t)r->number);
            break;
        case 'K':
        case 'P':
            buf_u64(b, r->count);
            tail = r->items;
            break;
        default:
            tail = *f == 'k' ? r->key : *f == 'e' ? r->expected : r->val;
            buf_u64(b, tail.len);
        }
    }
    return tail;
}

void store_encode(struct buf *b, enum store_dialect d, const struct store_request *r)
{
    struct store_view tail = store_encode_head(b, d, r);
    buf_put(b, tail.p, tail.len);
}
