/* coll_worker: a worker that is in operations of libdlcoll, for tests of whole jobs.
 *
 *     coll_worker for-ever OP FILE   OP again and again, or once what can be called once only, and
 *                                    then without the rank that STAYS_OUT names. It is ready in its
 *                                    second call, or inside of that one
 *     coll_worker shrink FILE        all_reduce for ever; then those who are left go on, who wait
 *                                    for each other as long as DLCOLL_TIMEOUT says, or for 20 s
 *     coll_worker hang MS FILE       a barrier, a broadcast, and an all_reduce of MS milliseconds
 *                                    (0: no limit) in which rank 1 does not take part
 *     coll_worker sums N FILE        N times all_reduce; ends without destroying the communicator
 *     coll_worker receive FILE       a receive from rank 0
 *     coll_worker differ R FILE      an all_reduce of 1 element, in which rank R has 3; each rank
 *                                    ends when all have called it
 *     coll_worker unequal FILE       rank 0 receives 1 element, and rank 1 sends 3
 *     coll_worker leave R FILE       two times all_reduce, the second one without rank R, which
 *                                    exits with 0
 *     coll_worker agree FILE         all_reduce until a rank has got SIGTERM, which all learn so
 *
 * FILE is a struct coll_job. Nobody but those who hang minds SIGTERM: the launcher stops those who
 * have something to say yet. They end when all others but one have said it, or as many in all as
 * SURVIVORS says. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/coll_job.h"

enum { COUNT = 40000, WAIT_S = 20 };

static struct coll_job *g_job;
static struct coll_buffers g_buffers; /* the library's as long as the communicator lives */
static dlcoll_comm *g_comm;           /* where a leak checker sees one that was not destroyed */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what, const dlcoll_comm *c)
{
    dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_last_error(c, &e);
    fprintf(stderr, "coll_worker: %s: %s\n", what, e.text);
    exit(2);
}

static void say_ready(void *rank)
{
    atomic_store(&((struct coll_job_rank *)rank)->pid, getpid());
    atomic_fetch_add(&g_job->ready, 1);
}

static void keep_result(struct coll_job_rank *mine, const dlcoll_comm *c, int code)
{
    mine->returned_ns = now_ns();
    mine->code = code;
    mine->error = (dlcoll_error)DLCOLL_ERROR_INIT;
    dlcoll_last_error(c, &mine->error);
}

/* Waits until all ranks have their result, so that the exit of one rank cannot be the error that
 * another one sees. */
static void await_others(struct coll_job_rank *mine, int n)
{
    int told = 0;
    uint64_t until = now_ns() + WAIT_S * 1000000000ull;
    for (atomic_store(&mine->told, 1); told < n && now_ns() < until;) {
        told = 0;
        for (int i = 0; i < COLL_MOST_RANKS; i++)
            told += atomic_load(&g_job->rank[i].told);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void stay_out(struct coll_job_rank *mine)
{
    say_ready(mine);
    for (;;)
        pause();
}

static int for_ever(enum coll_op op, dlcoll_comm *c, struct coll_job_rank *mine)
{
    const char *out = getenv("STAYS_OUT");
    int r = 0;
    g_buffers = coll_buffers_new(COUNT, dlcoll_size(c));
    if (!g_buffers.x)
        fail("no memory", c);
    for (int k = 0; op < COLL_REPEATED && r == 0; k++) {
        if (k == 1)
            say_ready(mine);
        r = coll_op_call(op, c, &g_buffers, k);
    }
    if (op >= COLL_REPEATED) {
        if (dlcoll_barrier(c, NULL, NULL) < 0)
            fail("barrier", c);
        if (out && atoi(out) == dlcoll_rank(c))
            stay_out(mine);
        pthread_t watch = coll_when_inside(c, op, say_ready, mine);
        r = coll_op_call(op, c, &g_buffers, 0);
        pthread_join(watch, NULL);
    }
    keep_result(mine, c, r);
    return r;
}

static void go_on(dlcoll_comm *c, struct coll_job_rank *mine)
{
    dlcoll_comm *rest = NULL;
    int32_t x = dlcoll_rank(c);
    dlcoll_group_opts opts = DLCOLL_GROUP_OPTS_INIT;
    opts.timeout_ms = getenv("DLCOLL_TIMEOUT") ? 0 : WAIT_S * 1000;
    int code = for_ever(COLL_ALL_REDUCE, c, mine);
    if (code != DLCOLL_EPEER && code != DLCOLL_ETIMEDOUT)
        fail("all_reduce", c);
    if (dlcoll_comm_shrink(c, &rest, &opts) < 0)
        fail("comm_shrink", NULL);
    if (dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, rest, NULL, NULL) < 0)
        fail("all_reduce of the rest", rest);
    mine->sum = x;
    if (dlcoll_finalize(rest) < 0)
        fail("finalize", rest);
    dlcoll_destroy(rest);
}

static int hang(const char *ms, dlcoll_comm *c, struct coll_job_rank *mine)
{
    enum { COUNT_F32 = 70000 };
    static float x[COUNT_F32];
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    opts.timeout_ms = *ms == '0' ? -1 : atoi(ms);
    if (dlcoll_barrier(c, NULL, NULL) < 0)
        fail("barrier", c);
    if (dlcoll_broadcast(x, x, 1000, DLCOLL_F32, 0, c, NULL, NULL) < 0)
        fail("broadcast", c);
    if (dlcoll_rank(c) == 1)
        stay_out(mine);
    int r = dlcoll_all_reduce(x, x, COUNT_F32, DLCOLL_F32, DLCOLL_SUM, c, &opts, NULL);
    keep_result(mine, c, r);
    fprintf(stderr, "%s\n", mine->error.text);
    return 3;
}

static int sums(int n, dlcoll_comm *c)
{
    for (int32_t x = 1; n-- > 0; x = 1) {
        if (dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) < 0)
            fail("all_reduce", c);
    }
    return 0;
}

static int receive(dlcoll_comm *c)
{
    int32_t x;
    if (dlcoll_recv(&x, 1, DLCOLL_I32, 0, c, NULL, NULL) < 0)
        fail("recv", c);
    return 0;
}

/* The launcher can name the odd one out if it sees the calls of a majority. */
static int differ(int rank, dlcoll_comm *c)
{
    int32_t x[3] = {0};
    int r = dlcoll_all_reduce(x, x, dlcoll_rank(c) == rank ? 3 : 1, DLCOLL_I32, DLCOLL_SUM, c, NULL,
                              NULL);
    await_others(&g_job->rank[dlcoll_rank(c)], dlcoll_size(c));
    return r < 0 ? (fail("all_reduce", c), 0) : 0;
}

static int unequal(dlcoll_comm *c)
{
    int32_t x[3] = {0};
    int r = dlcoll_rank(c) == 0 ? dlcoll_recv(x, 1, DLCOLL_I32, 1, c, NULL, NULL)
                                : dlcoll_send(x, 3, DLCOLL_I32, 0, c, NULL, NULL);
    return r < 0 ? (fail("p2p", c), 0) : sums(1, c);
}

static int leave(int rank, dlcoll_comm *c)
{
    sums(1, c);
    if (dlcoll_rank(c) == rank)
        _exit(0);
    return sums(1, c);
}

static volatile sig_atomic_t g_warned;

static void on_warning(int signo)
{
    g_warned = signo == SIGTERM;
}

static int agree(dlcoll_comm *c, struct coll_job_rank *mine)
{
    signal(SIGTERM, on_warning);
    for (int32_t x = 0, k = 0; x == 0; k++) {
        x = g_warned;
        mine->code = dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_MAX, c, NULL, NULL);
        if (mine->code < 0)
            fail("all_reduce", c);
        if (k == 0)
            say_ready(mine);
    }
    atomic_store(&mine->told, 1);
    return 0;
}

int main(int argc, char **argv)
{
    int status = 0, op = argc == 4 && !strcmp(argv[1], "for-ever") ? coll_op_of(argv[2]) : -1;
    bool hangs = argc == 4 && !strcmp(argv[1], "hang");
    bool shrinks = argc == 3 && !strcmp(argv[1], "shrink");
    bool adds = argc == 4 && !strcmp(argv[1], "sums");
    bool receives = argc == 3 && !strcmp(argv[1], "receive");
    bool differs = argc == 4 && !strcmp(argv[1], "differ");
    bool leaves = argc == 4 && !strcmp(argv[1], "leave");
    bool unequals = argc == 3 && !strcmp(argv[1], "unequal");
    bool agrees = argc == 3 && !strcmp(argv[1], "agree");
    if (op < 0 && !agrees && !differs && !leaves && !unequals && !hangs && !shrinks && !adds &&
        !receives) {
        fprintf(stderr, "usage: coll_worker for-ever OP FILE | shrink FILE | hang MS FILE | "
                        "sums N FILE | receive FILE | differ R FILE | unequal FILE | "
                        "leave R FILE | agree FILE\n");
        return 2;
    }
    signal(SIGTERM, hangs ? SIG_DFL : SIG_IGN);
    g_job = coll_job_open(argv[argc - 1]);
    if (!g_job || dlcoll_init(&g_comm, NULL) < 0)
        fail("dlcoll_init", NULL);
    dlcoll_comm *c = g_comm;
    if (differs || leaves)
        return differs ? differ(atoi(argv[2]), c) : leave(atoi(argv[2]), c);
    if (unequals)
        return unequal(c);
    if (adds || receives)
        return adds ? sums(atoi(argv[2]), c) : receive(c);
    struct coll_job_rank *mine = &g_job->rank[dlcoll_rank(c)];
    if (agrees)
        return agree(c, mine);
    const char *survivors = getenv("SURVIVORS");
    int n = survivors ? atoi(survivors) : dlcoll_size(c) - 1;
    if (hangs)
        status = hang(argv[2], c, mine);
    else if (shrinks)
        go_on(c, mine);
    else
        for_ever((enum coll_op)op, c, mine);
    await_others(mine, n);
    dlcoll_destroy(c);
    coll_buffers_free(&g_buffers);
    return status;
}
