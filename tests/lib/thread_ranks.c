#include "tests/lib/thread_ranks.h"

#include <pthread.h>
#include <stdatomic.h>

#include "rendezvous/store/store_thread.h"
#include "tests/lib/test.h"

enum { MOST = 64 };

struct world {
    int n, port;
    uint32_t flags;
    char name[32];
    thread_rank_fn *fn;
    void *arg;
};

struct one {
    struct world *w;
    int rank;
};

const char *thread_error(const dlcoll_comm *c)
{
    static _Thread_local dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_last_error(c, &e);
    return e.text;
}

static void *run(void *arg)
{
    struct one *o = arg;
    char url[64];
    dlcoll_comm *comm = NULL;
    dlcoll_store *store = NULL;
    dlcoll_init_opts opts = DLCOLL_INIT_OPTS_INIT;
    snprintf(url, sizeof(url), "tcp://127.0.0.1:%d", o->w->port);
    THREAD_EXPECT(dlcoll_store_open(&store, url, 0, 10000) == 0, "%s", thread_error(NULL));
    opts.store = store;
    opts.rank = o->rank;
    opts.world_size = o->w->n;
    opts.name = o->w->name;
    opts.flags = o->w->flags;
    opts.timeout_ms = (int64_t)(test_seconds(30) * 1000);
    opts.init_timeout_ms = opts.timeout_ms;
    THREAD_EXPECT(dlcoll_init(&comm, &opts) == 0, "rank %d: %s", o->rank, thread_error(NULL));
    o->w->fn(comm, o->w->arg);
    int code = dlcoll_finalize(comm);
    THREAD_EXPECT(code == 0 || code == DLCOLL_ESTATE, "rank %d: %s", o->rank, thread_error(comm));
    dlcoll_destroy(comm);
    dlcoll_store_close(store);
    return NULL;
}

void thread_ranks_run(int n, thread_rank_fn *fn, void *arg)
{
    thread_ranks_run_with(n, fn, arg, 0);
}

void thread_ranks_run_with(int n, thread_rank_fn *fn, void *arg, uint32_t flags)
{
    static _Atomic int worlds;
    struct err e = ERR_INIT;
    struct store_thread *store;
    struct one ones[MOST];
    pthread_t threads[MOST];
    int r = store_thread_new(&store, &(struct store_thread_opts){.addr = "127.0.0.1"}, &e);
    ck_assert_msg(r == 0, "%s", e.msg);
    struct world w = {
        .n = n, .port = store_thread_port(store), .flags = flags, .fn = fn, .arg = arg};
    snprintf(w.name, sizeof(w.name), "test-%d", atomic_fetch_add(&worlds, 1));
    for (int i = 0; i < n; i++) {
        ones[i] = (struct one){&w, i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run, &ones[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    store_thread_free(store);
}

int thread_sum_of_ranks(dlcoll_comm *comm, int rank)
{
    int32_t x = rank;
    THREAD_OK(dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, comm, NULL, NULL));
    return x;
}

static void without_memory(void)
{
    setenv("DLCOLL_SHM", "0", 1);
}

static void with_memory(void)
{
    setenv("DLCOLL_SHM", "1", 1);
}

TCase *thread_ranks_case(Suite *s, bool shm)
{
    TCase *tc = test_case(s, shm ? "shared memory" : "tcp", 60);
    tcase_add_checked_fixture(tc, shm ? with_memory : without_memory, NULL);
    return tc;
}
