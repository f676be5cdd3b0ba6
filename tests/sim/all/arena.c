#include "tests/sim/all/arena.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#define ARENA   ((char *)0x5d0000000000)
#define CLASSES 18 /* of sizes: 32 << class */
#define MAGIC   0x6b1f90d3u
#define LINE    64 /* bytes that are copied, or are zero, together */

struct arena_block {
    uint32_t magic, class;
    uint32_t seen, number; /* in which hash, as which block of it */
};

struct arena {
    size_t top;
    struct arena_block *unused[CLASSES];
};

volatile bool arena_on;

static struct arena *arena(void)
{
    return (struct arena *)ARENA;
}

void arena_open(void)
{
    if (mmap(ARENA, ARENA_BYTES, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != ARENA) {
        perror("no memory at the arena's address");
        exit(1);
    }
    arena()->top = (sizeof(struct arena) + LINE - 1) / LINE * LINE;
}

static bool is_inside(const void *p)
{
    return (const char *)p >= ARENA && (const char *)p < ARENA + ARENA_BYTES;
}

size_t arena_size(const struct arena_block *b)
{
    return ((size_t)32 << b->class) - sizeof(*b);
}

void *arena_data(struct arena_block *b)
{
    return b + 1;
}

struct arena_block *arena_block(uint64_t p)
{
    struct arena_block *b = (struct arena_block *)p - 1;
    return is_inside(b) && is_inside((void *)p) && p % 16 == 0 && b->magic == MAGIC ? b : NULL;
}

uint32_t arena_number(struct arena_block *b, uint32_t of, uint32_t *n)
{
    if (b->seen != of) {
        b->seen = of;
        b->number = (*n)++;
    }
    return b->number;
}

/* ---------------------------------------------------------------------------------------- malloc
 */

static void *take(size_t n)
{
    uint32_t class = 0;
    while (((size_t)32 << class) < n + sizeof(struct arena_block))
        class ++;
    assert(class < CLASSES);
    struct arena_block *b = arena()->unused[class];
    if (b) {
        memcpy(&arena()->unused[class], b + 1, sizeof(b));
    } else {
        b = (struct arena_block *)(ARENA + arena()->top);
        arena()->top += (size_t)32 << class;
        assert(arena()->top < ARENA_BYTES);
    }
    memset(b, 0, (size_t)32 << class);
    *b = (struct arena_block){.magic = MAGIC, .class = class};
    return b + 1;
}

static void give_back(void *p)
{
    struct arena_block *b = (struct arena_block *)p - 1;
    assert(b->magic == MAGIC);
    memset(b + 1, 0, arena_size(b));
    b->magic = b->seen = b->number = 0;
    memcpy(b + 1, &arena()->unused[b->class], sizeof(b));
    arena()->unused[b->class] = b;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);
ssize_t __wrap_getrandom(void *p, size_t n, unsigned flags);

void *__wrap_malloc(size_t n)
{
    return arena_on ? take(n) : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return arena_on ? take(n * size) : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    if (!arena_on)
        return __real_realloc(p, n);
    size_t old = p ? arena_size((struct arena_block *)p - 1) : 0;
    if (p && n <= old)
        return p;
    void *q = take(n);
    if (p) {
        memcpy(q, p, old);
        give_back(p);
    }
    return q;
}

void __wrap_free(void *p)
{
    if (is_inside(p))
        give_back(p);
    else
        __real_free(p);
}

char *__wrap_strndup(const char *s, size_t n)
{
    if (!arena_on)
        return __real_strndup(s, n);
    size_t len = strnlen(s, n);
    return memcpy(take(len + 1), s, len);
}

char *__wrap_strdup(const char *s)
{
    return arena_on ? __wrap_strndup(s, strlen(s)) : __real_strdup(s);
}

/* Maps are keyed at random, which nothing here may depend on. */
ssize_t __wrap_getrandom(void *p, size_t n, unsigned flags)
{
    (void)flags;
    memset(p, 1, n);
    return (ssize_t)n;
}

/* ---------------------------------------------------------------------------------------- copies
 */

static bool is_zero(const char *p)
{
    const uint64_t *w = (const uint64_t *)p;
    return !(w[0] | w[1] | w[2] | w[3] | w[4] | w[5] | w[6] | w[7]);
}

/* A number of lines, then which they are, then the lines themselves. */
void arena_save(struct arena_copy *c)
{
    static uint32_t at[ARENA_BYTES / LINE];
    uint32_t n = 0;
    for (size_t i = 0; i < arena()->top; i += LINE) {
        at[n] = (uint32_t)(i / LINE);
        n += !is_zero(ARENA + i);
    }
    bool on = arena_on;
    arena_on = false;
    c->n = n;
    c->bytes = malloc(n * (LINE + sizeof(*at)) + 1);
    arena_on = on;
    if (!c->bytes)
        abort();
    memcpy(c->bytes, at, n * sizeof(*at));
    for (uint32_t i = 0; i < n; i++)
        memcpy(c->bytes + n * sizeof(*at) + (size_t)i * LINE, ARENA + (size_t)at[i] * LINE, LINE);
}

void arena_restore(const struct arena_copy *c)
{
    const uint32_t *at = (const uint32_t *)c->bytes;
    memset(ARENA, 0, arena()->top);
    for (size_t i = 0; i < c->n; i++)
        memcpy(ARENA + (size_t)at[i] * LINE, c->bytes + c->n * sizeof(*at) + i * LINE, LINE);
}

void arena_drop(struct arena_copy *c)
{
    free(c->bytes);
    *c = (struct arena_copy){0};
}
