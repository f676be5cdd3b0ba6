#include "agent/inspect/pickle.h"

#include <stdlib.h>
#include <string.h>

#include "core/bytes.h"
#include "core/mem.h"

#define DEPTH_MAX (1u << 20) /* of the stack */

/* A value or an item, in a list of blocks that are freed at the end: a pickle may hold itself. */
struct block {
    struct block *next;
    size_t used;
    union {
        struct pickle_value value;
        struct pickle_item item;
    } places[256];
};

struct pickle {
    struct rd in;
    struct block *blocks;
    size_t nplaces;
    const struct pickle_value **stack, **memo;
    size_t depth, stack_cap, nmemo, memo_cap;
    const struct pickle_value *root;
};

/* Entries of the stack that are no values. */
static const struct pickle_value mark_value, list_maker;

static void *place(struct pickle *p)
{
    struct block *b = p->blocks;
    p->nplaces++;
    if (!b || b->used == ARRAY_LEN(b->places)) {
        b = xcalloc(1, sizeof(*b));
        b->next = p->blocks;
        p->blocks = b;
    }
    return &b->places[b->used++];
}

static void push(struct pickle *p, const struct pickle_value *v)
{
    if (p->depth == p->stack_cap) {
        p->stack_cap = p->stack_cap ? 2 * p->stack_cap : 64;
        p->stack = xrealloc(p->stack, p->stack_cap * sizeof(*p->stack));
    }
    p->stack[p->depth++] = v;
}

static struct pickle_value *push_new(struct pickle *p, enum pickle_type type)
{
    struct pickle_value *v = place(p);
    v->type = type;
    push(p, v);
    return v;
}

static bool is_value(const struct pickle_value *v)
{
    return v != &mark_value && v != &list_maker;
}

/* NULL: there is none. */
static const struct pickle_value *pop(struct pickle *p)
{
    if (p->depth == 0 || !is_value(p->stack[p->depth - 1])) {
        p->in.bad = true;
        return NULL;
    }
    return p->stack[--p->depth];
}

/* The newest value of that type, which gets more items. */
static struct pickle_value *container(struct pickle *p, uint64_t type)
{
    const struct pickle_value *v = p->depth ? p->stack[p->depth - 1] : NULL;
    if (!v || !is_value(v) || v->type != type) {
        p->in.bad = true;
        return NULL;
    }
    return (struct pickle_value *)v;
}

static void add_item(struct pickle *p, struct pickle_value *to, const struct pickle_value *key,
                     const struct pickle_value *value)
{
    struct pickle_item *item = place(p);
    *item = (struct pickle_item){.key = key, .value = value};
    if (to->last)
        to->last->next = item;
    else
        to->first = item;
    to->last = item;
    to->n++;
}

/* Returns where the values behind the newest mark begin. */
static size_t behind_mark(struct pickle *p)
{
    size_t i = p->depth;
    while (i && is_value(p->stack[i - 1]))
        i--;
    if (i == 0 || p->stack[i - 1] != &mark_value) {
        p->in.bad = true;
        return p->depth;
    }
    return i;
}

/* The values from place `from` on become the items of a new list, in the place of the mark. */
static void make_list(struct pickle *p, size_t from, bool marked)
{
    struct pickle_value *v = place(p);
    if (p->in.bad)
        return;
    v->type = PICKLE_LIST;
    for (size_t i = from; i < p->depth; i++)
        add_item(p, v, NULL, p->stack[i]);
    p->depth = from - marked;
    push(p, v);
}

static void make_tuple(struct pickle *p, uint64_t n)
{
    for (size_t i = 1; i <= n; i++) {
        if (i > p->depth || !is_value(p->stack[p->depth - i])) {
            p->in.bad = true;
            return;
        }
    }
    make_list(p, p->depth - n, false);
}

/* Moves what is behind the mark into the list or dict in front of it. */
static void put_items(struct pickle *p, uint64_t type)
{
    size_t from = behind_mark(p), end = p->depth, step = type == PICKLE_DICT ? 2 : 1;
    if (p->in.bad || (end - from) % step) {
        p->in.bad = true;
        return;
    }
    p->depth = from - 1;
    struct pickle_value *to = container(p, type);
    for (size_t i = from; to && i < end; i += step)
        add_item(p, to, step == 2 ? p->stack[i] : NULL, p->stack[i + step - 1]);
}

static void put_one(struct pickle *p, uint64_t type)
{
    const struct pickle_value *value = pop(p), *key = type == PICKLE_DICT ? pop(p) : NULL;
    struct pickle_value *to = p->in.bad ? NULL : container(p, type);
    if (to)
        add_item(p, to, key, value);
}

static void remember(struct pickle *p, uint64_t i)
{
    if (i > p->nmemo || p->depth == 0 || p->stack[p->depth - 1] == &mark_value) {
        p->in.bad = true;
        return;
    }
    if (i == p->memo_cap) {
        p->memo_cap = p->memo_cap ? 2 * p->memo_cap : 64;
        p->memo = xrealloc(p->memo, p->memo_cap * sizeof(*p->memo));
    }
    p->memo[i] = p->stack[p->depth - 1];
    p->nmemo += i == p->nmemo;
}

static void recall(struct pickle *p, uint64_t i)
{
    if (i < p->nmemo)
        push(p, p->memo[i]);
    else
        p->in.bad = true;
}

/* Little-endian, as all numbers but floats. */
static uint64_t number(struct pickle *p, size_t bytes)
{
    const uint8_t *at = rd_take(&p->in, bytes);
    uint64_t v = 0;
    for (size_t i = 0; at && i < bytes; i++)
        v |= (uint64_t)at[i] << 8 * i;
    return v;
}

static void push_string(struct pickle *p, uint64_t len)
{
    if (len > (size_t)(p->in.end - p->in.p)) {
        p->in.bad = true;
        return;
    }
    const char *text = (const char *)rd_take(&p->in, (size_t)len);
    struct pickle_value *v = push_new(p, PICKLE_STRING);
    v->text = text;
    v->len = (size_t)len;
}

static void push_long(struct pickle *p, uint64_t bytes)
{
    uint64_t v = number(p, bytes < 8 ? bytes : 8);
    if (bytes > 8)
        rd_take(&p->in, bytes - 8);
    if (bytes && bytes < 8 && v >> (8 * bytes - 1))
        v |= UINT64_MAX << 8 * bytes;
    push_new(p, PICKLE_INT)->number = (int64_t)v;
}

/* The bytes are in the order of a network. */
static void push_float(struct pickle *p, uint64_t bytes)
{
    uint64_t bits = __builtin_bswap64(bytes);
    double real;
    memcpy(&real, &bits, sizeof(real));
    push_new(p, PICKLE_FLOAT)->real = real;
}

/* A line of the input, without its end. */
static const char *line(struct pickle *p, size_t *len)
{
    const uint8_t *end = memchr(p->in.p, '\n', (size_t)(p->in.end - p->in.p));
    if (!end) {
        p->in.bad = true;
        return NULL;
    }
    *len = (size_t)(end - p->in.p);
    return (const char *)rd_take(&p->in, *len + 1);
}

/* "torch.jit._pickle" "build_intlist" and the like. */
static void push_global(struct pickle *p, uint64_t n)
{
    (void)n;
    size_t module_len, len;
    const char *module = line(p, &module_len), *name = module ? line(p, &len) : NULL;
    if (!name || module_len != 17 || memcmp(module, "torch.jit._pickle", 17) != 0 || len < 10 ||
        memcmp(name, "build_", 6) != 0 || memcmp(name + len - 4, "list", 4) != 0)
        p->in.bad = true;
    else
        push(p, &list_maker);
}

/* A constructor that takes a list has it as its only argument. */
static void reduce(struct pickle *p, uint64_t n)
{
    (void)n;
    const struct pickle_value *arguments = pop(p);
    if (!arguments || arguments->type != PICKLE_LIST || arguments->n != 1 || p->depth == 0 ||
        p->stack[p->depth - 1] != &list_maker) {
        p->in.bad = true;
        return;
    }
    p->stack[p->depth - 1] = arguments->first->value;
}

static void end(struct pickle *p, uint64_t n)
{
    (void)n;
    p->root = pop(p);
    if (p->depth)
        p->in.bad = true;
}

/* --------------------------------------------------------------------------------- the opcodes */

static void proto(struct pickle *p, uint64_t version)
{
    if (version < 2)
        p->in.bad = true;
}

static void skip(struct pickle *p, uint64_t n)
{
    (void)p, (void)n;
}

static void push_mark(struct pickle *p, uint64_t n)
{
    (void)n;
    push(p, &mark_value);
}

static void push_empty(struct pickle *p, uint64_t type)
{
    push_new(p, (enum pickle_type)type);
}

static void push_bool(struct pickle *p, uint64_t value)
{
    push_new(p, PICKLE_BOOL)->number = (int64_t)value;
}

static void push_int(struct pickle *p, uint64_t value)
{
    push_new(p, PICKLE_INT)->number = (int64_t)value;
}

static void make_marked_tuple(struct pickle *p, uint64_t n)
{
    (void)n;
    make_list(p, behind_mark(p), true);
}

static void memoize(struct pickle *p, uint64_t n)
{
    (void)n;
    remember(p, p->nmemo);
}

/* Those of Python's pickletools. A function gets the number that follows in so many bytes, or n. */
static const struct opcode {
    void (*run)(struct pickle *p, uint64_t n);
    uint8_t bytes, n;
} opcodes[256] = {
    [0x80] = {proto, 1},
    [0x95] = {skip, 8}, /* FRAME */
    ['('] = {push_mark},
    ['.'] = {end},
    ['N'] = {push_empty, .n = PICKLE_NONE},
    [0x88] = {push_bool, .n = true}, /* NEWTRUE */
    [0x89] = {push_bool, .n = false},
    ['J'] = {push_long, .n = 4},
    ['K'] = {push_int, 1},
    ['M'] = {push_int, 2},
    [0x8a] = {push_long, 1}, /* LONG1 */
    ['G'] = {push_float, 8},
    ['X'] = {push_string, 4},
    [0x8c] = {push_string, 1}, /* SHORT_BINUNICODE */
    [0x8d] = {push_string, 8}, /* BINUNICODE8 */
    [']'] = {push_empty, .n = PICKLE_LIST},
    [')'] = {push_empty, .n = PICKLE_LIST},
    ['}'] = {push_empty, .n = PICKLE_DICT},
    ['a'] = {put_one, .n = PICKLE_LIST},
    ['e'] = {put_items, .n = PICKLE_LIST},
    ['s'] = {put_one, .n = PICKLE_DICT},
    ['u'] = {put_items, .n = PICKLE_DICT},
    ['t'] = {make_marked_tuple},
    [0x85] = {make_tuple, .n = 1}, /* TUPLE1 to TUPLE3 */
    [0x86] = {make_tuple, .n = 2},
    [0x87] = {make_tuple, .n = 3},
    ['q'] = {remember, 1},
    ['r'] = {remember, 4},
    [0x94] = {memoize},
    ['h'] = {recall, 1},
    ['j'] = {recall, 4},
    ['c'] = {push_global},
    ['R'] = {reduce},
};

static void execute(struct pickle *p, uint8_t code)
{
    const struct opcode *o = &opcodes[code];
    if (o->run)
        o->run(p, o->bytes ? number(p, o->bytes) : o->n);
    else
        p->in.bad = true;
}

struct pickle *pickle_read(const void *data, size_t len)
{
    struct pickle *p = xcalloc(1, sizeof(*p));
    p->in = rd_init(data, len);
    p->in.bad = len > PICKLE_BYTES_MAX;
    while (!p->in.bad && !p->root && p->nplaces < PICKLE_VALUES_MAX && p->depth < DEPTH_MAX)
        execute(p, rd_u8(&p->in));
    free(p->stack);
    free(p->memo);
    p->stack = p->memo = NULL;
    if (!p->in.bad && p->root)
        return p;
    pickle_free(p);
    return NULL;
}

const struct pickle_value *pickle_root(const struct pickle *p)
{
    return p->root;
}

void pickle_free(struct pickle *p)
{
    if (!p)
        return;
    for (struct block *b = p->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(p);
}

const struct pickle_value *pickle_get(const struct pickle_value *v, const char *key)
{
    size_t len = strlen(key);
    if (!v || v->type != PICKLE_DICT)
        return NULL;
    for (const struct pickle_item *i = v->first; i; i = i->next) {
        if (i->key->type == PICKLE_STRING && i->key->len == len &&
            memcmp(i->key->text, key, len) == 0)
            return i->value;
    }
    return NULL;
}

int64_t pickle_number(const struct pickle_value *v, int64_t without)
{
    return v && (v->type == PICKLE_INT || v->type == PICKLE_BOOL) ? v->number : without;
}

void pickle_text(const struct pickle_value *v, char *out, size_t cap)
{
    bool is = v && v->type == PICKLE_STRING;
    size_t len = is ? v->len < cap ? v->len : cap - 1 : 0;
    if (len)
        memcpy(out, v->text, len);
    out[len] = '\0';
}
