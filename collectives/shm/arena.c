#include "collectives/shm/arena.h"

#include <assert.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

/* Ranges of pages, used and free, by address. Two free ranges are never neighbours. */
struct stretch {
    size_t at, len;
    bool used;
};

struct arena {
    uint8_t *base;
    struct stretch *list;
    size_t n, cap;
    pthread_mutex_t lock;
};

struct arena *arena_new(void *base, size_t bytes)
{
    struct arena *a = calloc(1, sizeof(*a));
    struct stretch *list = calloc(16, sizeof(*list));
    if (!a || !list) {
        free(a);
        free(list);
        return NULL;
    }
    *a = (struct arena){.base = base, .list = list, .n = 1, .cap = 16};
    list[0].len = bytes / PAGE * PAGE;
    pthread_mutex_init(&a->lock, NULL);
    return a;
}

void arena_free(struct arena *a)
{
    if (!a)
        return;
    pthread_mutex_destroy(&a->lock);
    free(a->list);
    free(a);
}

/* Reserves an entry of the list. */
static bool arena_reserve(struct arena *a)
{
    if (a->n < a->cap)
        return true;
    struct stretch *list = realloc(a->list, 2 * a->cap * sizeof(*list));
    if (!list)
        return false;
    a->list = list;
    a->cap *= 2;
    return true;
}

static void insert(struct arena *a, size_t i, struct stretch s)
{
    assert(i <= a->n && a->n < a->cap);
    for (size_t k = a->n++; k > i; k--)
        a->list[k] = a->list[k - 1];
    a->list[i] = s;
}

static void erase(struct arena *a, size_t i)
{
    assert(i > 0 && i < a->n && a->list[i - 1].at < a->list[i].at);
    a->n--;
    for (size_t k = i; k < a->n; k++)
        a->list[k] = a->list[k + 1];
}

static void *take_pages(struct arena *a, size_t len)
{
    if (!arena_reserve(a))
        return NULL;
    for (size_t i = 0; i < a->n; i++) {
        struct stretch *s = &a->list[i];
        if (s->used || s->len < len)
            continue;
        s->used = true;
        if (s->len > len) {
            insert(a, i + 1, (struct stretch){.at = s->at + len, .len = s->len - len});
            a->list[i].len = len;
        }
        return a->base + a->list[i].at;
    }
    return NULL;
}

void *arena_take(struct arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX - PAGE)
        return NULL;
    size_t len = bytes ? (bytes + PAGE - 1) / PAGE * PAGE : PAGE;
    pthread_mutex_lock(&a->lock);
    void *p = take_pages(a, len);
    pthread_mutex_unlock(&a->lock);
    return p;
}

static bool give_pages(struct arena *a, void *p)
{
    size_t i = 0;
    while (i < a->n && (!a->list[i].used || a->base + a->list[i].at != p))
        i++;
    if (i == a->n)
        return false;
    struct stretch *s = &a->list[i];
    /* The next owner of these pages must find them zeroed. */
    if (madvise(p, s->len, MADV_REMOVE) < 0)
        memset(p, 0, s->len);
    s->used = false;
    if (i + 1 < a->n && !a->list[i + 1].used) {
        s->len += a->list[i + 1].len;
        erase(a, i + 1);
    }
    if (i > 0 && !a->list[i - 1].used) {
        a->list[i - 1].len += a->list[i].len;
        erase(a, i);
    }
    return true;
}

bool arena_give(struct arena *a, void *p)
{
    pthread_mutex_lock(&a->lock);
    bool given = give_pages(a, p);
    pthread_mutex_unlock(&a->lock);
    return given;
}
