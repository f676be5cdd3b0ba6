/* exchange.c: exchange of byte strings of unknown length, and the barrier that names the missing
 * ranks. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/work.h"
#include "collectives/ops/coll.h"
#include "collectives/comm/comm.h"
#include "collectives/perform/choose.h"
#include "collectives/p2p/p2p.h"
#include "core/clock.h"

#define MOST_BYTES ((uint64_t)1 << 40)

/* ------------------------------------------------------------------------------- exchange_bytes */

struct exchange {
    const void *data;
    size_t len;
    dlcoll_bytes **all;
};

/* A step of the exchange, which all ranks compare as such. */
static struct coll_call exchange_step(const struct coll_call *whole, enum call_kind kind,
                                      enum dlcoll_dtype dtype)
{
    struct coll_call step = *whole;
    step.kind = kind;
    step.dtype = dtype_get(dtype);
    step.elem = step.dtype->size;
    step.sig.dtype = (uint8_t)dtype;
    step.in_steps = false;
    step.task = NULL;
    return step;
}

static int exchange_lengths(struct coll_call *c, uint64_t len, uint64_t *all)
{
    struct coll_call step = exchange_step(c, CALL_ALL_GATHER, DLCOLL_U64);
    step.send = &len;
    step.recv = all;
    step.count = 1;
    return provider_run_step(c, &step);
}

static int exchange_data(struct coll_call *c, const void *data, dlcoll_bytes *all, size_t *counts,
                         size_t total)
{
    struct coll_call step = exchange_step(c, CALL_ALL_GATHER_V, DLCOLL_U8);
    step.seq++;
    step.send = data;
    step.recv = all + c->comm->size;
    step.count = counts[c->comm->rank];
    step.sig.count = total;
    step.recv_parts.counts = counts;
    return total ? provider_run_step(c, &step) : 0;
}

static int exchange_with(struct coll_call *c, uint64_t *lens, size_t *counts)
{
    const struct exchange *x = c->task_arg;
    size_t size = (size_t)c->comm->size;
    uint64_t total = 0;
    /* A rank with a wrong argument takes part in the first step too, because the others wait for it
     * there. */
    int r = exchange_lengths(c, x->len, lens);
    for (size_t i = 0; i < size && r == 0; i++) {
        counts[i] = (size_t)lens[i];
        if (lens[i] > MOST_BYTES || (total += lens[i]) > MOST_BYTES) {
            c->settled =
                comm_error(c->comm, DLCOLL_EINVAL, "exchange_bytes: more than 1 TB in all");
            return 0;
        }
    }
    if (r < 0)
        return r;
    c->may_repeat = false; /* the others are on their way into the second step */
    dlcoll_bytes *out = malloc(size * sizeof(*out) + (size_t)total);
    if (!out)
        return err_set(&c->failure->err, -ENOMEM, "no memory for the operation");
    r = exchange_data(c, x->data, out, counts, (size_t)total);
    if (r < 0) {
        free(out);
        return r;
    }
    for (size_t i = 0, at = 0; i < size; at += counts[i++]) {
        out[i].data = counts[i] ? (uint8_t *)(out + size) + at : NULL;
        out[i].len = counts[i];
    }
    *x->all = out;
    return 0;
}

static int exchange_run(struct coll_call *c)
{
    size_t size = (size_t)c->comm->size;
    uint64_t *lens = malloc(size * sizeof(*lens));
    size_t *counts = malloc(size * sizeof(*counts));
    int r = lens && counts ? exchange_with(c, lens, counts)
                           : err_set(&c->failure->err, -ENOMEM, "no memory for the operation");
    free(lens);
    free(counts);
    return r;
}

static int exchange(dlcoll_comm *c, const struct exchange *x, uint64_t deadline_ns,
                    dlcoll_work **work)
{
    struct coll_call call = {.sig = {.kind = CALL_EXCHANGE_BYTES,
                                     .dtype = DLCOLL_U64,
                                     .settings = c->job->conf.settings,
                                     .count = 1},
                             .kind = CALL_EXCHANGE_BYTES,
                             .comm = c,
                             .ranks = {.size = c->size, .me = c->rank},
                             .count = x->len,
                             .elem = 1,
                             .in_steps = true,
                             .task = exchange_run,
                             .task_arg = x,
                             .task_bytes = sizeof(*x),
                             .more = 1,
                             .deadline_ns = deadline_ns};
    return coll_perform(c, &call, work);
}

int dlcoll_exchange_bytes_async(const void *data, size_t len, dlcoll_bytes **all, dlcoll_comm *comm,
                                const dlcoll_opts *opts, dlcoll_work **work)
{
    dlcoll_opts o;
    if (all)
        *all = NULL;
    if (work)
        *work = NULL;
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    if (!all || (len && !data)) {
        code = comm_error(comm, DLCOLL_EINVAL, "exchange_bytes: %s is NULL", all ? "data" : "all");
        return comm_leave(comm, code);
    }
    if ((code = coll_take_opts(comm, CALL_EXCHANGE_BYTES, opts, &o)) == 0)
        code = exchange(comm, &(struct exchange){data, len, all},
                        coll_deadline(comm, &o, coll_now()), work);
    return comm_leave(comm, code);
}

int dlcoll_exchange_bytes(const void *data, size_t len, dlcoll_bytes **all, dlcoll_comm *comm,
                          const dlcoll_opts *opts)
{
    return dlcoll_exchange_bytes_async(data, len, all, comm, opts, NULL);
}

void dlcoll_bytes_free(dlcoll_bytes *all)
{
    free(all);
}

/* ---------------------------------------------------------------------------- monitored_barrier */

/* Every rank reports its arrival to rank 0, which answers with the missing ranks: a bit for each.
 */
static size_t verdict_bytes(const dlcoll_comm *c)
{
    return ((size_t)c->size + 7) / 8;
}

enum { SLACK_NS = 1000 * 1000 * 1000 }; /* rank 0 sends its verdict after its deadline */

/* Starts a small message of the barrier of that number, to or from rank `peer`, which may never
 * arrive. */
static dlcoll_work *post(dlcoll_comm *c, uint32_t number, bool is_send, int peer, void *data,
                         size_t len)
{
    struct dlcoll_work *w = work_new(c);
    struct p2p_op *op = w ? w->own_ops : NULL;
    if (w && w->cap_ops == 0) {
        op = malloc(sizeof(*op));
        w->own_ops = op;
        w->cap_ops = op ? 1 : 0;
    }
    if (!op) {
        work_put_back(w);
        return NULL;
    }
    *op = (struct p2p_op){.is_send = is_send,
                          .optional = true,
                          .peer = peer,
                          .tag = P2P_TAG_BARRIER + (int)(number & 0xffffff),
                          .dtype = DLCOLL_U8,
                          .count = len,
                          .len = len,
                          .buf = data};
    w->ops = op;
    if ((c->multiple && p2p_start_task(c) < 0) || p2p_start(c, w) < 0) {
        work_put_back(w);
        return NULL;
    }
    return w;
}

/* Returns the result; 1: the message has not come in time, and is cancelled. */
static int await(dlcoll_comm *c, dlcoll_work *w, uint64_t deadline)
{
    int code;
    if (!w)
        return DLCOLL_ENOMEM;
    p2p_wait(c, &w->done, deadline, false);
    if (!atomic_load(&w->done) && p2p_cancel(c, w, DLCOLL_ETIMEDOUT)) {
        code = 1;
    } else {
        p2p_wait(c, &w->done, 0, false); /* a part of the message has arrived */
        code = w->result;
    }
    dlcoll_work_free(w);
    return code;
}

/* "rank 3 (node-b, pid 812), rank 5 (node-b, pid 814) and 12 more": names that are whole. */
static void list_names(const dlcoll_comm *c, const int *missing, size_t n, char *out, size_t size)
{
    char name[WORLD_NAME_MAX], more[40];
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        int rest = i + 1 < n ? snprintf(more, sizeof(more), " and %zu more", n - i - 1) : 0;
        world_name(c->world, c->world_ranks[missing[i]], name);
        if (at + strlen(name) + 2 + (size_t)rest >= size) {
            snprintf(out + at, size - at, " and %zu more", n - i);
            return;
        }
        at += (size_t)snprintf(out + at, size - at, "%s%s", i ? ", " : "", name);
    }
}

static int exchange_report(dlcoll_comm *c, uint32_t number, const int *missing, size_t n,
                           uint64_t waited_ms)
{
    char list[400];
    unsigned long long ms = waited_ms;
    list_names(c, missing, n, list, sizeof(list));
    int code;
    if (missing[0] ==
        0) /* only rank 0 knows which ranks have arrived; it may have given up before this rank */
        code = comm_error(c, DLCOLL_ETIMEDOUT,
                          "monitored_barrier: after %llu ms %s, which collects the arrivals, had "
                          "not answered; other ranks may be missing too",
                          ms, list);
    else
        code = comm_error(c, DLCOLL_ETIMEDOUT,
                          "monitored_barrier: after %llu ms %zu of %d ranks had not arrived: %s",
                          ms, n, c->size, list);
    pthread_mutex_lock(&c->error_lock);
    if (!atomic_load(&c->failed)) {
        c->error.rank = c->world_ranks[missing[0]];
        c->error.seq = number;
        world_who(c->world, c->error.rank, c->error.host, &c->error.pid);
        snprintf(c->error.op, sizeof(c->error.op), "monitored_barrier");
    }
    pthread_mutex_unlock(&c->error_lock);
    return code;
}

/* Rank 0: receives the arrivals, then sends the verdict to the ranks that have arrived. `bytes` has
 * one byte for each rank, then the verdict. */
static int exchange_watch(dlcoll_comm *c, uint32_t number, uint8_t *bytes, dlcoll_work **works,
                          int *missing, size_t *n, uint64_t deadline)
{
    uint8_t *verdict = bytes + c->size;
    int code = 0;
    *n = 0;
    for (int r = 1; r < c->size; r++)
        works[r] = post(c, number, false, r, &bytes[r], 1);
    for (int r = 1; r < c->size; r++) {
        int result = await(c, works[r], deadline);
        works[r] = NULL;
        bytes[r] = result == 0;
        if (result == 1) {
            verdict[r / 8] |= (uint8_t)(1u << r % 8);
            missing[(*n)++] = r;
        } else if (result < 0 && code == 0) {
            code = result;
        }
    }
    uint64_t end = mono_ns() + SLACK_NS;
    for (int r = 1; r < c->size && code == 0; r++) {
        if (bytes[r] && !(works[r] = post(c, number, true, r, verdict, verdict_bytes(c))))
            code = DLCOLL_ENOMEM;
    }
    for (int r = 1; r < c->size; r++) { /* the verdict must stay valid until all sends have ended */
        int result = works[r] ? await(c, works[r], end) : 0;
        code = result < 0 && code == 0 ? result : code;
    }
    return code;
}

static int come(dlcoll_comm *c, uint32_t number, uint8_t *bytes, int *missing, size_t *n,
                uint64_t deadline)
{
    uint8_t *verdict = bytes + c->size;
    uint64_t end = deadline ? deadline + SLACK_NS : 0;
    *n = 0;
    bytes[0] = 1;
    int code = await(c, post(c, number, true, 0, bytes, 1), end);
    if (code == 0)
        code = await(c, post(c, number, false, 0, verdict, verdict_bytes(c)), end);
    if (code == 1)
        missing[(*n)++] = 0;
    for (int r = 1; r < c->size && code == 0; r++) {
        if (verdict[r / 8] >> r % 8 & 1)
            missing[(*n)++] = r;
    }
    return code < 0 ? code : 0;
}

static int monitored(dlcoll_comm *c, int *out, size_t *n, size_t room, uint64_t deadline)
{
    size_t size = (size_t)c->size, absent = 0;
    uint64_t start = mono_ns();
    uint8_t *bytes = calloc(size + verdict_bytes(c), 1);
    dlcoll_work **works = calloc(size, sizeof(dlcoll_work *));
    int *missing = calloc(size, sizeof(*missing));
    int code = bytes && works && missing
                   ? 0
                   : comm_error(c, DLCOLL_ENOMEM, "monitored_barrier: no memory");
    uint32_t number = ++c->monitored;
    struct op_signature sig = {.kind = CALL_MONITORED_BARRIER};
    uint64_t record = recorder_begin(&c->job->recorder, c->id, c->name, number, &sig, 0, 0);
    comm_let_in(c);
    if (code == 0)
        code = c->rank == 0 ? exchange_watch(c, number, bytes, works, missing, &absent, deadline)
                            : come(c, number, bytes, missing, &absent, deadline);
    comm_keep_out(c);
    if (code == 0 && absent)
        code = exchange_report(c, number, missing, absent, (mono_ns() - start) / 1000000);
    recorder_end(&c->job->recorder, record, code);
    for (size_t i = 0; i < absent && i < room && out; i++)
        out[i] = missing[i];
    if (n)
        *n = absent < room || !out ? absent : room;
    free(bytes);
    free(works);
    free(missing);
    return code;
}

int dlcoll_monitored_barrier(dlcoll_comm *comm, int *missing, size_t *n, const dlcoll_opts *opts)
{
    dlcoll_opts o;
    size_t room = n ? *n : 0;
    if (n)
        *n = 0;
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    if (missing && !n)
        code = comm_error(comm, DLCOLL_EINVAL, "monitored_barrier: n is NULL");
    else if ((code = coll_take_opts(comm, CALL_MONITORED_BARRIER, opts, &o)) == 0)
        code = monitored(comm, missing, n, room, coll_deadline(comm, &o, coll_now()));
    return comm_leave(comm, code);
}
