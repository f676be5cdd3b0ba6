/* reduce_user.c: reductions that the program makes: dlcoll_op_create_user(), _premul().
 *
 * A table of slots. An op's value names its slot and how often the slot had been taken before, so
 * that a freed one is noticed. Making and freeing take a lock; using does not: a slot is filled
 * before its value is published. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "collectives/base/error.h"
#include "collectives/base/task.h"
#include "collectives/reduce/reduce.h"

enum {
    SLOTS = 256,
    FIRST = 1 << 16, /* the first value: above the built-in reductions */
    TURNS = (DLCOLL_OP_MAX - FIRST) / SLOTS
};

struct user_op {
    atomic_int value; /* 0: free */
    int turn;
    dlcoll_reduce_fn *fn; /* NULL: premul */
    void *ctx;
    bool ordered, may_fail;
    int dtype;
    uint64_t scalar;
};

static struct user_op g_user_ops[SLOTS];
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;

static int publish(const char *call, dlcoll_op *op, const struct user_op *made)
{
    int code = DLCOLL_ENOMEM;
    pthread_mutex_lock(&g_lock);
    for (int i = 0; i < SLOTS && code < 0; i++) {
        struct user_op *u = &g_user_ops[i];
        if (atomic_load_explicit(&u->value, memory_order_relaxed))
            continue;
        int turn = (u->turn + 1) % TURNS, value = FIRST + turn * SLOTS + i;
        u->turn = turn;
        u->fn = made->fn;
        u->ctx = made->ctx;
        u->ordered = made->ordered;
        u->may_fail = made->may_fail;
        u->dtype = made->dtype;
        u->scalar = made->scalar;
        atomic_store_explicit(&u->value, value, memory_order_release);
        *op = (dlcoll_op)value;
        code = 0;
    }
    pthread_mutex_unlock(&g_lock);
    return code == 0 ? 0
                     : error_set_global(code, "%s: there are %d reductions already", call, SLOTS);
}

int dlcoll_op_create_user(dlcoll_op *op, dlcoll_reduce_fn *fn, void *ctx, unsigned flags)
{
    if (!op || !fn)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_op_create_user: op or fn is NULL");
    if (flags & ~(DLCOLL_OP_ORDERED | DLCOLL_OP_MAY_FAIL))
        return error_set_global(DLCOLL_EINVAL, "dlcoll_op_create_user: unknown flag");
    return publish("dlcoll_op_create_user", op,
                   &(struct user_op){.fn = fn,
                                     .ctx = ctx,
                                     .ordered = flags & DLCOLL_OP_ORDERED,
                                     .may_fail = flags & DLCOLL_OP_MAY_FAIL,
                                     .dtype = -1});
}

int dlcoll_op_create_premul(dlcoll_op *op, const void *scalar, dlcoll_dtype dtype)
{
    const struct dtype *type = dtype_get(dtype);
    if (!op || !scalar)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_op_create_premul: op or scalar is NULL");
    if (!type || (type->class != DTYPE_INTEGER && type->class != DTYPE_FLOAT))
        return error_set_global(DLCOLL_EINVAL,
                                "dlcoll_op_create_premul: dtype must be a type of numbers");
    struct user_op made = {.dtype = dtype};
    memcpy(&made.scalar, scalar, type->size);
    return publish("dlcoll_op_create_premul", op, &made);
}

static struct user_op *user_find(int op)
{
    struct user_op *u = op >= FIRST ? &g_user_ops[(op - FIRST) % SLOTS] : NULL;
    return u && atomic_load_explicit(&u->value, memory_order_acquire) == op ? u : NULL;
}

int dlcoll_op_free(dlcoll_op op)
{
    pthread_mutex_lock(&g_lock);
    struct user_op *u = user_find(op);
    if (u)
        atomic_store_explicit(&u->value, 0, memory_order_release);
    pthread_mutex_unlock(&g_lock);
    return u ? 0
             : error_set_global(DLCOLL_EINVAL,
                                "dlcoll_op_free: op is none that was made and not freed");
}

bool reduce_user_find(int op, struct reduce_info *r)
{
    const struct user_op *u = user_find(op);
    if (!u)
        return false;
    r->user = u->fn;
    r->ordered = u->ordered;
    r->code = !u->fn ? REDUCE_PREMUL : u->may_fail ? REDUCE_USER_MAY_FAIL : REDUCE_USER;
    r->has_pre = !u->fn;
    if (r->has_pre)
        r->scalar = u->scalar;
    else
        r->ctx = u->ctx;
    return !r->has_pre || u->dtype == r->dtype_value;
}

/* The failure of the user's function that this thread is in. */
static _Thread_local struct reduce_failure *t_failure;

int dlcoll_op_fail(const char *text)
{
    struct reduce_failure *f = t_failure;
    if (!f)
        return error_set_global(DLCOLL_ESTATE, "dlcoll_op_fail: not called in a reduction");
    if (!f->failed)
        snprintf(f->text, sizeof(f->text), "%s", text && *text ? text : "no reason was given");
    f->failed = true;
    return 0;
}

struct user_call {
    const struct reduce_info *r;
    void *acc;
    const void *in;
    size_t count;
};

static void call_user(void *arg)
{
    const struct user_call *c = arg;
    t_failure = c->r->failure;
    c->r->user(c->acc, c->in, c->count, (dlcoll_dtype)c->r->dtype_value, c->r->ctx);
    t_failure = NULL;
}

/* The user's function is called on aligned memory of ours: sources may have any address, and dst
 * may be one of them. Once it has failed, the operation goes on with any data, for the others wait
 * for that; execute_call() makes a failure of it. */
static inline void user_many(const struct reduce_info *r, void *dst, const void *const *src,
                             int nsrc, size_t count, uint8_t *acc, uint8_t *in, size_t room)
{
    size_t size = r->dtype->size, most = room / size, alignment = dtype_alignment(r->dtype);
    for (size_t at = 0; at < count; at += most) {
        size_t n = count - at < most ? count - at : most;
        memcpy(acc, (const uint8_t *)src[0] + at * size, n * size);
        for (int s = 1; s < nsrc; s++) {
            const uint8_t *from = (const uint8_t *)src[s] + at * size;
            if ((uintptr_t)from % alignment) {
                memcpy(in, from, n * size);
                from = in;
            }
            struct user_call call = {r, acc, from, n};
            if (r->failure && r->failure->failed)
                break;
            if (task_inside())
                task_call(call_user, &call);
            else
                call_user(&call);
        }
        memcpy((uint8_t *)dst + at * size, acc, n * size);
    }
}

static __attribute__((noinline)) void user_many_large(const struct reduce_info *r, void *dst,
                                                      const void *const *src, int nsrc,
                                                      size_t count)
{
    _Alignas(64) uint8_t acc[DLCOLL_ELEMENT_MAX], in[DLCOLL_ELEMENT_MAX];
    user_many(r, dst, src, nsrc, count, acc, in, DLCOLL_ELEMENT_MAX);
}

void reduce_user_many(const struct reduce_info *r, void *dst, const void *const *src, int nsrc,
                      size_t count)
{
    enum { PIECE_BYTES = 4096 };
    _Alignas(64) uint8_t acc[PIECE_BYTES], in[PIECE_BYTES];
    if (r->dtype->size > PIECE_BYTES)
        user_many_large(r, dst, src, nsrc, count);
    else
        user_many(r, dst, src, nsrc, count, acc, in, PIECE_BYTES);
}
