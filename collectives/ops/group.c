/* group.c: communicators of some of another's ranks. */
#include "collectives/ops/group.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/ops/coll.h"
#include "collectives/comm/comm.h"
#include "collectives/comm/failure.h"
#include "collectives/perform/choose.h"
#include "collectives/perform/perform.h"
#include "collectives/ops/comm_create.h"
#include "collectives/ops/comm_memory.h"
#include "collectives/base/error.h"
#include "collectives/nccl/nccl.h"
#include "core/hash.h"

/* A parent that has failed keeps the cause of that: then the thread has the reason. */
static int group_refuse(dlcoll_comm *c, int code, const char *why)
{
    return atomic_load(&c->failed) ? error_set_global(code, "%s", why)
                                   : comm_error(c, code, "%s", why);
}

static int take_opts(dlcoll_comm *c, const dlcoll_group_opts *given, dlcoll_group_opts *o)
{
    *o = (dlcoll_group_opts)DLCOLL_GROUP_OPTS_INIT;
    int code = comm_take_opts(o, sizeof(*o), given);
    if (code == DLCOLL_EINVAL)
        return group_refuse(c, code,
                            "opts has no valid size and version (use DLCOLL_GROUP_OPTS_INIT)");
    if (code < 0)
        return group_refuse(c, code,
                            "opts sets fields that this version of the library does not have");
    if (o->timeout_ms == 0)
        o->timeout_ms = c->timeout_ms;
    return 0;
}

/* The call on the parent fails as the group has failed. If a rank has died, or the group has failed
 * because the parent had, the parent fails, too, unless it is known to have failed before (shrink).
 * After other failures another group may be made. */
static int hand_up(dlcoll_comm *parent, const dlcoll_comm *group, enum call_kind kind)
{
    if (atomic_load(&parent->failed))
        return error_copy_global(&group->error);
    if (group->error.code == DLCOLL_EPEER || group->error.code == DLCOLL_EABORTED ||
        comm_is_stopped(parent))
        return comm_fail_as(parent, group, kind);
    pthread_mutex_lock(&parent->error_lock);
    parent->error = group->error;
    pthread_mutex_unlock(&parent->error_lock);
    return group->error.code;
}

int group_make(dlcoll_comm *parent, uint64_t id, int *ranks, int n, int me,
               const dlcoll_group_opts *o, enum call_kind kind, uint64_t *made, dlcoll_comm **out)
{
    struct err e = ERR_INIT;
    struct coll_failure failure;
    dlcoll_comm *g = NULL;
    assert(me >= 0 && me < n && ranks[me] == parent->rank);
    for (int i = 0; i < n; i++) {
        assert(ranks[i] >= 0 && ranks[i] < parent->size);
        ranks[i] = parent->world_ranks[ranks[i]];
    }
    int r = comm_new(&g, parent->job, id, ranks, n, me, o->name, o->timeout_ms,
                     kind == CALL_COMM_SHRINK ? !parent->rest_listens : parent->after_failure, &e);
    if (r < 0)
        return group_refuse(parent, error_code(r), e.msg);
    if (made)
        ++*made;
    g->maker = kind == CALL_COMM_SHRINK ? NULL : parent; /* the parent has failed */
    coll_failure_init(&failure);
    r = comm_share_memory(g, kind == CALL_COMM_SHRINK, comm_deadline(o->timeout_ms), &failure);
    if (r < 0) {
        /* the kind that the program has called */
        comm_fail(g, r,
                  &(struct coll_call){
                      .sig = {.kind = (uint8_t)kind, .settings = parent->job->conf.settings},
                      .failure = &failure});
        int code = hand_up(parent, g, kind);
        dlcoll_destroy(g);
        return code;
    }
    g->maker = NULL;
    *out = g;
    return 0;
}

/* ---------------------------------------------------------------------------------------- split */

struct place_in {
    int32_t color, key;
    int rank;
};

static int by_key(const void *a, const void *b)
{
    const struct place_in *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->rank - y->rank;
}

/* The arguments of a split, or of a group of listed ranks. */
struct group_task {
    dlcoll_comm **group;
    enum call_kind kind;
    int color, key; /* of a split */
    uint64_t id;    /* of a list */
    int n, me;      /* me -1: this rank is not in it */
    int64_t timeout_ms;
    bool has_name;
    char name[COMM_NAME_MAX];
    int ranks[];
};

static dlcoll_group_opts opts_of(const struct group_task *t)
{
    dlcoll_group_opts o = DLCOLL_GROUP_OPTS_INIT;
    o.timeout_ms = t->timeout_ms;
    o.name = t->has_name ? t->name : NULL;
    return o;
}

/* Makes the list for a group of n listed ranks; NULL: no memory. */
static struct group_task *group_task_new(enum call_kind kind, dlcoll_comm **group, int n,
                                         const dlcoll_group_opts *o, size_t *bytes)
{
    *bytes = sizeof(struct group_task) + (size_t)n * sizeof(int);
    struct group_task *t = calloc(1, *bytes);
    if (!t)
        return NULL;
    t->group = group;
    t->kind = kind;
    t->n = n;
    t->me = -1;
    t->timeout_ms = o->timeout_ms;
    t->has_name = o->name != NULL;
    snprintf(t->name, sizeof(t->name), "%s", o->name ? o->name : "");
    return t;
}

/* By handle, or at once; a list is no call of all ranks. A group of NCCL's is made in the call. */
static int group_perform(dlcoll_comm *c, struct coll_call *call, bool of_all, dlcoll_work **work)
{
    if (work && c->nccl)
        return comm_error(c, DLCOLL_ENOSUP,
                          "%s: not by handle once the communicator is used on device memory",
                          call_name(call->sig.kind));
    return of_all ? coll_perform(c, call, work) : perform_later(c, call, work);
}

/* Gathers the colours and keys of all ranks over the parent. */
static int ask_all(struct coll_call *c, const struct group_task *t, int32_t *all)
{
    int32_t own[2] = {t->color, t->key};
    struct coll_call step = *c;
    step.kind = CALL_ALL_GATHER;
    step.in_steps = false;
    step.task = NULL;
    step.send = own;
    step.recv = all;
    return provider_run_step(c, &step);
}

/* The group of those with this rank's colour; *out stays NULL without one. The public code. */
static int join(struct coll_call *c, const int32_t *all, dlcoll_comm **out)
{
    dlcoll_comm *parent = c->comm;
    const struct group_task *t = c->task_arg;
    dlcoll_group_opts o = opts_of(t);
    struct place_in *places = malloc((size_t)parent->size * sizeof(*places));
    int *ranks = malloc((size_t)parent->size * sizeof(*ranks)), n = 0, me = -1;
    if (!places || !ranks) {
        free(places);
        free(ranks);
        return comm_error(parent, DLCOLL_ENOMEM, "comm_split: no memory");
    }
    for (int r = 0; r < parent->size; r++) {
        if (all[2 * r] == t->color)
            places[n++] = (struct place_in){t->color, all[2 * r + 1], r};
    }
    qsort(places, (size_t)n, sizeof(*places), by_key);
    for (int i = 0; i < n; i++) {
        ranks[i] = places[i].rank;
        me = ranks[i] == parent->rank ? i : me;
    }
    free(places);
    uint64_t id = hash_add(hash_add(parent->id, c->seq), (uint64_t)(uint32_t)t->color | 1ull << 40);
    return group_make(parent, id, ranks, n, me, &o, CALL_COMM_SPLIT, NULL, out);
}

static int split_run(struct coll_call *c)
{
    const struct group_task *t = c->task_arg;
    dlcoll_comm *group = NULL;
    int32_t *all = malloc((size_t)c->comm->size * 2 * sizeof(*all));
    int r = all ? ask_all(c, t, all)
                : err_set(&c->failure->err, -ENOMEM, "no memory for the operation");
    if (r == 0) { /* then all come to NCCL's part, too, whose group cannot be made or not */
        int code = t->color == DLCOLL_NO_COLOR ? 0 : join(c, all, &group);
        int its = nccl_split(c->comm, group, t->color, t->key);
        c->settled = code < 0 ? code : its;
        if (c->settled)
            dlcoll_destroy(group);
        else
            *t->group = group;
    }
    free(all);
    return r;
}

static int split(dlcoll_comm *c, int color, int key, dlcoll_comm **group,
                 const dlcoll_group_opts *o, dlcoll_work **work)
{
    size_t bytes;
    struct group_task *t = group_task_new(CALL_COMM_SPLIT, group, 0, o, &bytes);
    if (!t)
        return comm_error(c, DLCOLL_ENOMEM, "comm_split: no memory");
    t->color = color;
    t->key = key;
    struct coll_call call = {.sig = {.kind = CALL_COMM_SPLIT,
                                     .dtype = DLCOLL_I32,
                                     .settings = c->job->conf.settings,
                                     .count = 2},
                             .kind = CALL_COMM_SPLIT,
                             .comm = c,
                             .ranks = {.size = c->size, .me = c->rank},
                             .count = 2,
                             .dtype = dtype_get(DLCOLL_I32),
                             .elem = 4,
                             .in_steps = true,
                             .task = split_run,
                             .task_arg = t,
                             .task_bytes = bytes,
                             .deadline_ns = comm_deadline(o->timeout_ms)};
    int code = group_perform(c, &call, true, work);
    free(t);
    return code;
}

int dlcoll_comm_split_async(dlcoll_comm *comm, int color, int key, dlcoll_comm **group,
                            const dlcoll_group_opts *opts, dlcoll_work **work)
{
    dlcoll_group_opts o;
    if (work)
        *work = NULL;
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    if (!group || color < DLCOLL_NO_COLOR) {
        code = comm_error(comm, DLCOLL_EINVAL, "comm_split: %s",
                          group ? "the colour is negative" : "group is NULL");
        return comm_leave(comm, code);
    }
    *group = NULL;
    if ((code = take_opts(comm, opts, &o)) == 0)
        code = split(comm, color, key, group, &o, work);
    return comm_leave(comm, code);
}

int dlcoll_comm_split(dlcoll_comm *comm, int color, int key, dlcoll_comm **group,
                      const dlcoll_group_opts *opts)
{
    return dlcoll_comm_split_async(comm, color, key, group, opts, NULL);
}

/* ------------------------------------------------------------------------------------ new_group */

/* Returns the counter of groups that have been made of these ranks; NULL: no memory. */
static uint64_t *count_of(dlcoll_comm *c, uint64_t hash)
{
    for (struct group_count *k = c->group_counts; k; k = k->next) {
        if (k->hash == hash)
            return &k->made;
    }
    struct group_count *k = malloc(sizeof(*k));
    if (!k)
        return NULL;
    *k = (struct group_count){c->group_counts, hash, 0};
    c->group_counts = k;
    return &k->made;
}

static int check_list(dlcoll_comm *c, const int *ranks, int n, int *me)
{
    char *seen = calloc((size_t)c->size, 1);
    const char *bad = n < 0 ? "n is negative" : n && !ranks ? "the list is NULL" : NULL;
    *me = -1;
    if (!seen)
        return comm_error(c, DLCOLL_ENOMEM, "comm_new_group: no memory");
    for (int i = 0; i < n && !bad; i++) {
        if (ranks[i] < 0 || ranks[i] >= c->size)
            bad = "a rank of the list is out of range (0 to size-1)";
        else if (seen[ranks[i]]++)
            bad = "a rank is listed twice";
        else if (ranks[i] == c->rank)
            *me = i;
    }
    free(seen);
    return bad ? comm_error(c, DLCOLL_EINVAL, "comm_new_group: %s", bad) : 0;
}

/* A group of the ranks listed; only these wait for each other. */
static int list_run(struct coll_call *c)
{
    const struct group_task *t = c->task_arg;
    dlcoll_group_opts o = opts_of(t);
    int *copy = t->me < 0 ? NULL : malloc((size_t)t->n * sizeof(*copy));
    if (t->me < 0)
        return 0;
    if (!copy)
        return err_set(&c->failure->err, -ENOMEM, "no memory for the operation");
    memcpy(copy, t->ranks, (size_t)t->n * sizeof(*copy));
    c->settled = group_make(c->comm, t->id, copy, t->n, t->me, &o, t->kind, NULL, t->group);
    return 0;
}

static int make_now(dlcoll_comm *c, const struct group_task *t, const dlcoll_group_opts *o,
                    uint64_t *made)
{
    int *copy = malloc((size_t)t->n * sizeof(*copy));
    if (!copy)
        return comm_error(c, DLCOLL_ENOMEM, "%s: no memory", call_name((int)t->kind));
    memcpy(copy, t->ranks, (size_t)t->n * sizeof(*copy));
    uint64_t number = ++*made, begun = 0;
    comm_let_in(c);
    int code = group_make(c, t->id, copy, t->n, t->me, o, t->kind, &begun, t->group);
    comm_keep_out(c);
    if (!begun && *made == number) /* no other rank could see it */
        --*made;
    return code;
}

/* ranks NULL: all n of them. */
static int make_listed(dlcoll_comm *c, enum call_kind kind, const int *ranks, int n, int me,
                       dlcoll_comm **group, const dlcoll_group_opts *o, dlcoll_work **work)
{
    size_t bytes;
    uint64_t hash = hash_add(c->id, kind == CALL_COMM_DUP ? 0x647570 : 0x6c697374), *made = NULL;
    if (me < 0 && !work)
        return 0;
    struct group_task *t = group_task_new(kind, group, n, o, &bytes);
    for (int i = 0; t && i < n; i++) {
        t->ranks[i] = ranks ? ranks[i] : i;
        hash = hash_add(hash, (uint64_t)c->world_ranks[t->ranks[i]]);
    }
    if (t && me >= 0)
        made = count_of(c, hash);
    if (!t || (me >= 0 && !made)) {
        free(t);
        return comm_error(c, DLCOLL_ENOMEM, "%s: no memory", call_name((int)kind));
    }
    t->me = me;
    t->id = made ? hash_add(hash, *made + 1) : 0;
    struct coll_call call = {.sig = {.kind = (uint8_t)kind, .settings = c->job->conf.settings},
                             .kind = kind,
                             .comm = c,
                             .ranks = {.size = c->size, .me = c->rank},
                             .elem = 1,
                             .in_steps = true,
                             .task = list_run,
                             .task_arg = t,
                             .task_bytes = bytes};
    int code = work ? group_perform(c, &call, false, work) : make_now(c, t, o, made);
    if (work && code == 0 && made)
        ++*made;
    free(t);
    return code;
}

static int new_group(dlcoll_comm *c, const int *ranks, int n, dlcoll_comm **group,
                     const dlcoll_group_opts *o, dlcoll_work **work)
{
    int me;
    int code = check_list(c, ranks, n, &me);
    return code < 0 ? code : make_listed(c, CALL_COMM_NEW_GROUP, ranks, n, me, group, o, work);
}

int dlcoll_comm_new_group_async(dlcoll_comm *comm, const int *ranks, int n, dlcoll_comm **group,
                                const dlcoll_group_opts *opts, dlcoll_work **work)
{
    dlcoll_group_opts o;
    if (work)
        *work = NULL;
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    if (!group)
        return comm_leave(comm, comm_error(comm, DLCOLL_EINVAL, "comm_new_group: group is NULL"));
    *group = NULL;
    if ((code = take_opts(comm, opts, &o)) == 0)
        code = new_group(comm, ranks, n, group, &o, work);
    return comm_leave(comm, code);
}

int dlcoll_comm_new_group(dlcoll_comm *comm, const int *ranks, int n, dlcoll_comm **group,
                          const dlcoll_group_opts *opts)
{
    return dlcoll_comm_new_group_async(comm, ranks, n, group, opts, NULL);
}

/* ------------------------------------------------------------------------------------------ dup */

int dlcoll_comm_dup(dlcoll_comm *comm, dlcoll_comm **group, const dlcoll_group_opts *opts,
                    dlcoll_work **work)
{
    dlcoll_group_opts o;
    if (work)
        *work = NULL;
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    if (!group)
        return comm_leave(comm, comm_error(comm, DLCOLL_EINVAL, "comm_dup: group is NULL"));
    *group = NULL;
    if ((code = take_opts(comm, opts, &o)) == 0)
        code = make_listed(comm, CALL_COMM_DUP, NULL, comm->size, comm->rank, group, &o, work);
    return comm_leave(comm, code);
}

int group_take_opts(dlcoll_comm *c, const dlcoll_group_opts *given, dlcoll_group_opts *o)
{
    return take_opts(c, given, o);
}
