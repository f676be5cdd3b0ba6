/* group.c: communicators of some of another's ranks. */
#include "collectives/api/group.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/api/coll.h"
#include "collectives/api/comm.h"
#include "collectives/api/comm_create.h"
#include "collectives/api/error.h"
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

/* The call on the parent fails as the group has failed. If a rank has died, the parent fails, too,
 * unless it had failed before (shrink). After other failures another group may be made. */
static int hand_up(dlcoll_comm *parent, const dlcoll_comm *group, enum call_kind kind)
{
    if (atomic_load(&parent->failed))
        return error_copy_global(&group->error);
    if (group->error.code == DLCOLL_EPEER || group->error.code == DLCOLL_EABORTED)
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
    struct coll_call failed = {.culprit = -1};
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
    r = comm_share_memory(g, comm_deadline(o->timeout_ms), &failed);
    if (r < 0) {
        /* what the program has called */
        failed.sig =
            (struct op_signature){.kind = (uint8_t)kind, .settings = parent->job->conf.settings};
        comm_fail(g, r, &failed);
        int code = hand_up(parent, g, kind);
        dlcoll_destroy(g);
        return code;
    }
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

/* Gathers the colours and keys of all ranks over the parent. */
static int ask_all(dlcoll_comm *c, int color, int key, const dlcoll_group_opts *o, int32_t *all)
{
    int32_t own[2] = {color, key};
    struct coll_call call = {.sig = {.kind = CALL_COMM_SPLIT,
                                     .dtype = DLCOLL_I32,
                                     .settings = c->job->conf.settings,
                                     .count = 2},
                             .kind = CALL_ALL_GATHER,
                             .comm = c,
                             .ranks = {.size = c->size, .me = c->rank},
                             .send = own,
                             .recv = all,
                             .count = 2,
                             .dtype = dtype_get(DLCOLL_I32),
                             .elem = 4,
                             .deadline_ns = comm_deadline(o->timeout_ms)};
    return coll_perform(c, &call, NULL);
}

static int split(dlcoll_comm *c, int color, int key, dlcoll_comm **group,
                 const dlcoll_group_opts *o)
{
    int32_t *all = malloc((size_t)c->size * 2 * sizeof(*all));
    struct place_in *places = malloc((size_t)c->size * sizeof(*places));
    int *ranks = malloc((size_t)c->size * sizeof(*ranks));
    int n = 0, me = -1;
    int code = all && places && ranks ? ask_all(c, color, key, o, all)
                                      : comm_error(c, DLCOLL_ENOMEM, "comm_split: no memory");
    bool asked =
        code == 0; /* then all come to NCCL's part, too, whose group cannot be made or not */
    for (int r = 0; r < c->size && code == 0; r++) {
        if (all[2 * r] == color)
            places[n++] = (struct place_in){color, all[2 * r + 1], r};
    }
    if (code == 0 && color != DLCOLL_NO_COLOR) {
        qsort(places, (size_t)n, sizeof(*places), by_key);
        for (int i = 0; i < n; i++) {
            ranks[i] = places[i].rank;
            me = ranks[i] == c->rank ? i : me;
        }
        uint64_t id = hash_add(hash_add(c->id, c->seq), (uint64_t)(uint32_t)color | 1ull << 40);
        code = group_make(c, id, ranks, n, me, o, CALL_COMM_SPLIT, NULL, group);
        ranks = NULL; /* the group's */
    }
    if (asked) {
        int its = nccl_split(c, *group, color, key);
        code = code < 0 ? code : its;
    }
    free(all);
    free(places);
    free(ranks);
    return code;
}

int dlcoll_comm_split(dlcoll_comm *comm, int color, int key, dlcoll_comm **group,
                      const dlcoll_group_opts *opts)
{
    dlcoll_group_opts o;
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
        code = split(comm, color, key, group, &o);
    if (code < 0) {
        dlcoll_destroy(*group);
        *group = NULL;
    }
    return comm_leave(comm, code);
}

/* ------------------------------------------------------------------------------------ new_group */

/* How often a group of these ranks has been made; NULL: no memory. */
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

static int new_group(dlcoll_comm *c, const int *ranks, int n, dlcoll_comm **group,
                     const dlcoll_group_opts *o)
{
    int me;
    int code = check_list(c, ranks, n, &me);
    if (code < 0 || me < 0)
        return code;
    uint64_t hash = hash_add(c->id, 0x6c697374);
    for (int i = 0; i < n; i++)
        hash = hash_add(hash, (uint64_t)c->world_ranks[ranks[i]]);
    uint64_t *made = count_of(c, hash);
    int *copy = malloc((size_t)n * sizeof(*copy));
    if (!made || !copy) {
        free(copy);
        return comm_error(c, DLCOLL_ENOMEM, "comm_new_group: no memory");
    }
    memcpy(copy, ranks, (size_t)n * sizeof(*copy));
    return group_make(c, hash_add(hash, *made + 1), copy, n, me, o, CALL_COMM_NEW_GROUP, made,
                      group);
}

int dlcoll_comm_new_group(dlcoll_comm *comm, const int *ranks, int n, dlcoll_comm **group,
                          const dlcoll_group_opts *opts)
{
    dlcoll_group_opts o;
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    if (!group)
        return comm_leave(comm, comm_error(comm, DLCOLL_EINVAL, "comm_new_group: group is NULL"));
    *group = NULL;
    if ((code = take_opts(comm, opts, &o)) == 0)
        code = new_group(comm, ranks, n, group, &o);
    return comm_leave(comm, code);
}

int group_take_opts(dlcoll_comm *c, const dlcoll_group_opts *given, dlcoll_group_opts *o)
{
    return take_opts(c, given, o);
}
