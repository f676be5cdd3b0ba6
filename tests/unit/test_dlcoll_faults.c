/* libdlcoll when things go wrong: ranks that die, leave, come late or call something else,
 * strangers, and segments that are none. Whatever happens, every survivor gets an error that names
 * the cause. */
#include "tests/lib/test.h"

#include <fcntl.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "collectives/wire/wire.h"
#include "core/clock.h"
#include "core/fd.h"
#include "rendezvous/store/store_client.h"
#include "tests/lib/ranks.h"

static uint16_t g_store_port;

/* --------------------------------------------------------------------------------- bad segments */

START_TEST(a_wrong_segment_is_refused)
{
    struct ranks j;
    ranks_init(&j, 4, 2);
    struct segment_header *h = j.segment[0], good = *h;
    ranks_become(&j, 1);
#define REFUSED(change, text)             \
    do {                                  \
        change;                           \
        expect_init(DLCOLL_EINVAL, text); \
        memcpy(h, &good, sizeof(good));   \
    } while (0)
    REFUSED(h->magic++, "does not begin as a segment");
    REFUSED(h->version++, "this library reads version");
    REFUSED(h->total_bytes++, "bytes");
    REFUSED(h->off_nodes = h->total_bytes - 4, "damaged");
    REFUSED(h->off_nodes = UINT64_MAX - 3, "damaged");
    REFUSED(h->off_ports = 1, "damaged");
    REFUSED(h->off_local++, "damaged");
    REFUSED(h->off_local = h->total_bytes, "damaged");
    REFUSED(h->world_size = INT32_MAX, "damaged");
    REFUSED(h->world_size = -1, "damaged");
    REFUSED(h->world_size = 3, "damaged");
    REFUSED(h->nnodes = INT32_MAX, "damaged");
    REFUSED(h->nnodes = 0, "damaged");
    REFUSED(h->nlocal = 1, "damaged");
    REFUSED(h->group_rank = 2, "damaged");
    REFUSED(h->group_rank = 1, "damaged");
    REFUSED(h->base_rank = 2, "damaged");
    REFUSED(h->heap_bytes++, "damaged");
    REFUSED(setenv("RANK", "0", 1), "RANK is 0, but the launcher's table has rank 1");
    REFUSED(setenv("RANK", "7", 1), "RANK: 7");
    setenv("RANK", "1", 1);
    REFUSED(setenv("LOCAL_RANK", "2", 1), "LOCAL_RANK: 2");
    REFUSED(unsetenv("LOCAL_RANK"), "LOCAL_RANK is not set");
    setenv("LOCAL_RANK", "1", 1);
    REFUSED(setenv(SEGMENT_ENV_LISTEN, "0", 1), "not a listening socket");
    REFUSED(setenv(SEGMENT_ENV_LISTEN, "999", 1), "is not open");
    REFUSED(unsetenv(SEGMENT_ENV_LISTEN), "is not set");
    set_env_int(SEGMENT_ENV_LISTEN, j.listener[1]);
    REFUSED(setenv(SEGMENT_ENV_FD, "999", 1), "is not open");
    REFUSED(setenv(SEGMENT_ENV_FD, "-3", 1), "DLAUNCH_SEGMENT_FD: -3");
    REFUSED(set_env_int(SEGMENT_ENV_FD, j.listener[1]), "not a memory file");
    int unsealed = memfd_create("x", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(unsealed, 4096), 0);
    REFUSED(set_env_int(SEGMENT_ENV_FD, unsealed), "sealed against shrinking");
    int empty = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    fcntl(empty, F_ADD_SEALS, F_SEAL_SHRINK);
    REFUSED(set_env_int(SEGMENT_ENV_FD, empty), "too short");

    set_env_int(SEGMENT_ENV_FD, j.segment_fd[0]); /* and the good one is taken */
    dlcoll_comm *c, *second;
    ck_assert_int_eq(dlcoll_init(&c, NULL), 0);
    ck_assert_int_eq(ranks_line(&j, 1)->state, SEGMENT_LOCAL_READY);
    ck_assert_int_eq(ranks_line(&j, 1)->pid, getpid());
    ck_assert_int_eq(dlcoll_init(&second, NULL), DLCOLL_ESTATE);
    dlcoll_destroy(c);
    ck_assert_int_eq(ranks_line(&j, 1)->state, SEGMENT_LOCAL_DONE);
    setenv("DLCOLL_SHM", "0", 1); /* it waits for nobody to share memory with */
    ck_assert_int_eq(dlcoll_init(&second, NULL), 0);
    dlcoll_destroy(second);
}
END_TEST

/* ------------------------------------------------------------------------------ things go wrong */

static void reduce_for_ever(struct ranks *j, int rank)
{
    /* Standard error stays empty: the library says nothing by itself. */
    int quiet[2];
    char byte;
    EXPECT(pipe2(quiet, O_NONBLOCK | O_CLOEXEC) == 0);
    int saved = dup(STDERR_FILENO);
    dup2(quiet[1], STDERR_FILENO);
    dlcoll_comm *c = comm_start();
    size_t n = 4 << 20;
    float *x = calloc(n, 4);
    int r = 0;
    for (int k = 0; r == 0; k++) {
        if (k == 1)
            ranks_say_ready(j);
        r = dlcoll_all_reduce(x, x, n, DLCOLL_F32, DLCOLL_SUM, c, NULL, NULL);
    }
    ranks_keep_result(j, rank, c, r);
    uint64_t before = mono_ns();
    r = dlcoll_barrier(c, NULL, NULL);
    uint64_t took = mono_ns() - before;
    dup2(saved, STDERR_FILENO);
    EXPECT(r == DLCOLL_ESTATE, "%d", r);
    EXPECT(took < 1000000000);
    EXPECT(strcmp(why(c), j->shared->rank[rank].error.text) == 0, "%s", why(c));
    EXPECT(dlcoll_finalize(c) == DLCOLL_ESTATE);
    EXPECT(read(quiet[0], &byte, 1) < 0 && errno == EAGAIN);
    dlcoll_destroy(c);
    free(x);
}

static void check_survivors(struct ranks *j, int victim, uint64_t killed_ns, bool by_agent)
{
    double most = 0;
    for (int r = 0; r < j->n; r++) {
        dlcoll_error *e = &j->shared->rank[r].error;
        if (r == victim)
            continue;
        double ms = (double)(j->shared->rank[r].returned_ns - killed_ns) / 1e6;
        most = ms > most ? ms : most;
        ck_assert_msg(j->shared->rank[r].code == DLCOLL_EPEER, "rank %d: %d %s", r,
                      j->shared->rank[r].code, e->text);
        ck_assert_msg(e->rank == victim, "rank %d: %s", r, e->text);
        ck_assert_int_eq(e->pid, j->pid[victim]);
        ck_assert_str_eq(e->op, "all_reduce");
        ck_assert_uint_gt(e->seq, 1);
        ck_assert_int_gt((int)strlen(e->host), 0);
        ck_assert_int_eq(e->signal, by_agent ? SIGKILL : 0);
        ck_assert_ptr_nonnull(strstr(e->text, by_agent ? "was killed by SIGKILL" : "died or left"));
        ck_assert_int_eq(strncmp(e->text, "all_reduce #", 12), 0);
    }
    printf("%d ranks, %s: the last survivor knew after %.1f ms\n", j->n,
           by_agent ? "with an agent" : "without", most);
    /* 50 ms on a quiet machine; the machine may not be quiet. */
    ck_assert_double_lt(most, test_seconds(1) * 1000);
}

START_TEST(a_killed_rank_is_named_by_every_survivor)
{
    struct ranks j;
    int victim = _i % 4;
    ranks_init(&j, 4, _i < 4 ? 1 : 2);
    ranks_start(&j, reduce_for_ever);
    wait_until(ranks_are_ready, &j, 20, "all ranks are in their second operation");
    test_elapse(_i * 0.0017); /* another point of the operation each time */
    uint64_t killed_ns = mono_ns();
    kill(j.pid[victim], SIGKILL);
    ranks_reap(&j, victim);
    ranks_play_agent(&j, victim);
    ranks_wait(&j, 20, 1u << victim);
    check_survivors(&j, victim, killed_ns, true);
    for (int r = 0; r < 4; r++) {
        if (r == victim)
            continue;
        ck_assert_int_eq(ranks_line(&j, r)->state, SEGMENT_LOCAL_FAILED);
        ck_assert_int_eq(ranks_line(&j, r)->cause_rank, victim);
        ck_assert_uint_eq(ranks_line(&j, r)->seq, j.shared->rank[r].error.seq);
    }
    ranks_fini(&j);
}
END_TEST

static void reduce_for_ever_alone(struct ranks *j, int rank)
{
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_store_port);
    reduce_for_ever(j, rank);
}

START_TEST(a_killed_rank_is_named_without_an_agent)
{
    struct ranks j;
    int victim = _i % 4, n = _i < 4 ? 4 : 7;
    int fd = reserve_port(&g_store_port);
    ranks_init(&j, n, 0);
    ranks_start(&j, reduce_for_ever_alone);
    wait_until(ranks_are_ready, &j, 20, "all ranks are in their second operation");
    test_elapse(_i * 0.0017);
    uint64_t killed_ns = mono_ns();
    kill(j.pid[victim], SIGKILL);
    ranks_reap(&j, victim);
    ranks_wait(&j, 20, 1u << victim);
    check_survivors(&j, victim, killed_ns, false);
    ranks_fini(&j);
    close(fd);
}
END_TEST

static const char *const g_messages[] = {"send", "recv", "monitored_barrier"};
static int g_message;

/* Rank 1 is killed; what the others have begun, or begin then, needs it. */
static void need_rank_1(struct ranks *j, int rank)
{
    enum { LEN = 4 << 20 };
    uint8_t *x = calloc(1, LEN);
    int r = 0;
    if (j->nnodes == 0) {
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        set_env_int("MASTER_PORT", g_store_port);
    }
    dlcoll_comm *c = comm_start();
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    ranks_say_ready(j);
    if (rank == 1)
        ranks_await_go(j); /* it never comes */
    else if (g_message == 0)
        r = dlcoll_send(x, LEN, DLCOLL_U8, 1, c, NULL, NULL);
    else if (g_message == 1)
        r = dlcoll_recv(x, LEN, DLCOLL_U8, 1, c, NULL, NULL);
    else
        r = dlcoll_monitored_barrier(c, NULL, NULL, NULL);
    ranks_keep_result(j, rank, c, r);
    dlcoll_destroy(c);
    free(x);
}

START_TEST(the_operation_that_a_death_ends_is_named)
{
    struct ranks j;
    int fd = reserve_port(&g_store_port);
    char begin[40];
    g_message = _i / 3;
    snprintf(begin, sizeof(begin), "%s #", g_messages[g_message]);
    ranks_init(&j, 3, _i % 3);
    ranks_start(&j, need_rank_1);
    wait_until(ranks_are_ready, &j, 20, "all ranks are there");
    kill(j.pid[1], SIGKILL);
    ranks_reap(&j, 1);
    ranks_play_agent(&j, 1);
    ranks_wait(&j, 20, 1u << 1);
    for (int r = 0; r < 3; r += 2) {
        dlcoll_error *e = &j.shared->rank[r].error;
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_EPEER && e->rank == 1, "rank %d: %d %s", r,
                      j.shared->rank[r].code, e->text);
        ck_assert_str_eq(e->op, g_messages[g_message]);
        ck_assert_msg(strncmp(e->text, begin, strlen(begin)) == 0 && !strstr(e->text, "()"), "%s",
                      e->text);
    }
    ranks_fini(&j);
    close(fd);
}
END_TEST

/* The agent's word ends waits in which nothing moves, long before any socket would. */
static void wait_for_nobody(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    ranks_say_ready(j);
    if (rank == 0)
        ranks_await_go(j);
    int r = dlcoll_barrier(c, NULL, NULL);
    ranks_keep_result(j, rank, c, r);
    dlcoll_destroy(c);
}

static bool ranks_1_and_2_returned(void *arg)
{
    struct ranks *j = arg;
    return atomic_load(&j->shared->rank[1].returned_ns) &&
           atomic_load(&j->shared->rank[2].returned_ns);
}

START_TEST(the_abort_word_ends_a_wait)
{
    struct ranks j;
    ranks_init(&j, 3, 1);
    ranks_start(&j, wait_for_nobody);
    wait_until(ranks_are_ready, &j, 20, "all ranks are there");
    struct segment_abort *a = &j.segment[0]->abort;
    a->rank = _i ? 1 : -1;
    a->exit_code = _i ? 7 : 0;
    a->pid = 1234;
    strcpy(a->host, "node-x");
    strcpy(a->text, "the job was stopped\033[2J by SIGTERM");
    uint64_t set_ns = mono_ns();
    atomic_store_explicit(&a->word, 1, memory_order_release);
    wait_until(ranks_1_and_2_returned, &j, 20, "the waits of ranks 1 and 2 end without rank 0");
    atomic_store(&j.shared->go, 1);
    ranks_wait(&j, 20, 0);
    for (int r = 0; r < 3; r++) {
        dlcoll_error *e = &j.shared->rank[r].error;
        ck_assert_int_eq(j.shared->rank[r].code, _i ? DLCOLL_EPEER : DLCOLL_EABORTED);
        ck_assert_str_eq(e->text, _i ? "barrier #2: rank 1 (node-x, pid 1234) exited with status 7"
                                     : "barrier #2: the job was stopped\\x1b[2J by SIGTERM");
        ck_assert_int_eq(e->rank, _i ? 1 : -1);
        ck_assert_int_eq(e->exit_code, _i ? 7 : 0);
    }
    for (int r = 1; r < 3; r++)
        ck_assert_uint_lt(j.shared->rank[r].returned_ns - set_ns,
                          (uint64_t)(test_seconds(1) * 1e9));
    ranks_fini(&j);
}
END_TEST

static void come_too_late(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    int64_t v = 1;
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 2) {
        ranks_say_ready(j);
        ranks_await_ready(j);
        ranks_keep_result(j, rank, c, 0);
    } else {
        opts.timeout_ms = rank == 0 ? 100 : 20000;
        int r = dlcoll_all_reduce(&v, &v, 1, DLCOLL_I64, DLCOLL_SUM, c, &opts, NULL);
        ranks_keep_result(j, rank, c, r);
        ranks_say_ready(j);
    }
    dlcoll_destroy(c);
}

START_TEST(a_timeout_names_the_awaited_rank)
{
    struct ranks j;
    ranks_init(&j, 3, 1);
    ranks_start(&j, come_too_late);
    ranks_wait(&j, 20, 0);
    for (int r = 0; r < 2; r++) {
        dlcoll_error *e = &j.shared->rank[r].error;
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_ETIMEDOUT, "rank %d: %s", r, e->text);
        ck_assert_msg(e->rank == (r == 0 ? e->rank : 1) || e->rank == 2, "%s", e->text);
        ck_assert_ptr_nonnull(strstr(e->text, "all_reduce #2: rank 0 timed out waiting for rank"));
    }
    /* Rank 0 failed on its own account, rank 1 because rank 0 gave up. */
    ck_assert_int_eq(ranks_line(&j, 0)->cause_rank, -1);
    ck_assert_int_eq(ranks_line(&j, 1)->cause_rank, 0);
    ck_assert_int_eq(ranks_line(&j, 2)->state, SEGMENT_LOCAL_DONE);
    ranks_fini(&j);
}
END_TEST

/* Rank 1 receives a message that never comes, rank 0 waits for it in a collective operation. */
static void receive_in_vain(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    dlcoll_record last = {.seq = 0};
    int64_t v = 1;
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    opts.timeout_ms = rank == 0 ? 100 : 20000;
    while (rank == 0 && (dlcoll_recent(c, 1, &last, 1) != 1 || strcmp(last.op, "recv") != 0))
        sched_yield();
    int r = rank == 0 ? dlcoll_all_reduce(&v, &v, 1, DLCOLL_I64, DLCOLL_SUM, c, &opts, NULL)
                      : dlcoll_recv(&v, 1, DLCOLL_I64, 0, c, &opts, NULL);
    ranks_keep_result(j, rank, c, r);
    ranks_say_ready(j);
    ranks_await_ready(j);
    dlcoll_destroy(c);
}

START_TEST(a_timeout_names_the_message_awaited_elsewhere)
{
    struct ranks j;
    ranks_init(&j, 2, 1);
    ranks_start(&j, receive_in_vain);
    ranks_wait(&j, 20, 0);
    const dlcoll_error *e = &j.shared->rank[0].error;
    ck_assert_int_eq(j.shared->rank[0].code, DLCOLL_ETIMEDOUT);
    ck_assert_msg(strstr(e->text, ", which is in recv #1"), "%s", e->text);
    ranks_fini(&j);
}
END_TEST

static int g_odd; /* the rank that does something else */

static void differ(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    float x[12] = {0};
    int r;
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 2)
        r = dlcoll_broadcast(x, x, 10, DLCOLL_F32, 1, c, NULL, NULL);
    else
        r = dlcoll_all_reduce(x, x, 12, DLCOLL_F32, DLCOLL_SUM, c, NULL, NULL);
    for (int k = 0; k < 10 && r == 0; k++) /* one that only sends may be through */
        r = dlcoll_barrier(c, NULL, NULL);
    ranks_keep_result(j, rank, c, r);
    dlcoll_destroy(c);
}

START_TEST(every_rank_reports_different_calls)
{
    struct ranks j;
    ranks_init(&j, _i, 1);
    ranks_start(&j, differ);
    ranks_wait(&j, 20, 0);
    for (int r = 0; r < _i; r++) {
        const char *text = j.shared->rank[r].error.text;
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_EMISMATCH, "rank %d: %s", r, text);
        ck_assert_msg(strstr(text, "rank 2") && strstr(text, "broadcast of 10 f32 from rank 1"),
                      "rank %d: %s", r, text);
    }
    ranks_fini(&j);
}
END_TEST

/* One waits in the memory of its node for those who wait for it at their sockets. */
static void differ_in_the_way(struct ranks *j, int rank)
{
    static const size_t counts[] = {2, 1, 1, 2};
    dlcoll_comm *c = comm_start();
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    float x[12] = {0}, y[6];
    opts.timeout_ms = (int64_t)(test_seconds(10) * 1000);
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    int r = rank == g_odd ? dlcoll_all_reduce(x, x, 12, DLCOLL_F32, DLCOLL_SUM, c, &opts, NULL)
                          : dlcoll_all_gather_v(x, y, counts, NULL, DLCOLL_F32, c, &opts, NULL);
    ranks_keep_result(j, rank, c, r);
    dlcoll_destroy(c);
}

START_TEST(different_calls_on_different_transports_are_reported)
{
    struct ranks j;
    g_odd = _i;
    ranks_init(&j, 4, 2);
    ranks_start(&j, differ_in_the_way);
    ranks_wait(&j, 30, 0);
    for (int r = 0; r < 4; r++) {
        const char *text = j.shared->rank[r].error.text;
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_EMISMATCH, "rank %d: %d %s", r,
                      j.shared->rank[r].code, text);
        ck_assert_msg(strstr(text, test_text("operation #2: rank %d (", g_odd)) == text &&
                          strstr(text, "all_reduce of 12 f32 (sum)") &&
                          strstr(text, "all_gather_v of f32") && strstr(text, "all others called"),
                      "rank %d: %s", r, text);
    }
    ranks_fini(&j);
}
END_TEST

static const char *const g_settings[][2] = {
    {"DLCOLL_ALGO", "all_reduce net/ring"}, {"DLCOLL_SOCKETS", "4"}, {"DLCOLL_NCCL_ROOTS", "2"}};
static const char *const *g_setting;

static void set_otherwise(struct ranks *j, int rank)
{
    double x = rank;
    if (rank == 1)
        setenv(g_setting[0], g_setting[1], 1);
    dlcoll_comm *c = comm_start();
    int r = dlcoll_all_reduce(&x, &x, 1, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL);
    ranks_keep_result(j, rank, c, r);
    ranks_say_ready(j);
    ranks_await_ready(j); /* so that nobody is told by the other's end */
    dlcoll_destroy(c);
}

/* One of two that share memory looks for the other there, which does not. */
START_TEST(a_rank_without_shared_memory_is_reported)
{
    static const char *const settings[][2] = {{"DLCOLL_SHM", "0"},
                                              {"DLCOLL_ALGO", "all_reduce net/ring"}};
    struct ranks j;
    g_setting = settings[_i];
    ranks_init(&j, 2, 1);
    ranks_start(&j, set_otherwise);
    ranks_wait(&j, 20, 0);
    for (int r = 0; r < 2; r++) {
        const dlcoll_error *e = &j.shared->rank[r].error;
        ck_assert_msg(e->code == DLCOLL_EMISMATCH, "rank %d: %s", r, e->text);
        ck_assert_msg(strstr(e->text, "has different settings from rank"), "rank %d: %s", r,
                      e->text);
    }
    ranks_fini(&j);
}
END_TEST

static void meet_otherwise(struct ranks *j, int rank)
{
    dlcoll_comm *c;
    if (rank == 1)
        setenv(g_setting[0], g_setting[1], 1);
    int r = j->shared->rank[rank].code = dlcoll_init(&c, NULL);
    EXPECT(r == DLCOLL_EMISMATCH || r == DLCOLL_ENET, "%d %s", r, why(NULL)); /* it has ended */
    if (r == DLCOLL_EMISMATCH)
        EXPECT(strstr(why(NULL), "has different settings from rank"), "%s", why(NULL));
}

START_TEST(different_settings_are_reported_without_a_launcher)
{
    struct ranks j;
    uint16_t port;
    int fd = reserve_port(&port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", port);
    g_setting = g_settings[_i];
    ranks_init(&j, 2, 0);
    ranks_start(&j, meet_otherwise);
    ranks_wait(&j, 20, 0);
    ck_assert(j.shared->rank[0].code == DLCOLL_EMISMATCH ||
              j.shared->rank[1].code == DLCOLL_EMISMATCH);
    ranks_fini(&j);
    close(fd);
}
END_TEST

static void group_otherwise(struct ranks *j, int rank)
{
    dlcoll_group_opts o = DLCOLL_GROUP_OPTS_INIT;
    dlcoll_comm *group;
    int both[] = {0, 1};
    if (rank == 1)
        setenv(g_setting[0], g_setting[1], 1);
    dlcoll_comm *c = comm_start();
    int r = dlcoll_comm_new_group(c, both, 2, &group, &o);
    EXPECT(r == DLCOLL_EMISMATCH, "%d %s", r, why(c));
    EXPECT(strstr(why(c), "has different settings from rank"), "%s", why(c));
    ranks_say_ready(j);
    ranks_await_ready(j);
    dlcoll_destroy(c);
}

START_TEST(different_settings_are_reported_by_a_group)
{
    g_setting = g_settings[_i];
    ranks_run(2, 1, group_otherwise);
}
END_TEST

/* By other algorithms two ranks may exchange messages of the same length, and get wrong sums. */
START_TEST(different_settings_are_reported)
{
    struct ranks j;
    g_setting = g_settings[_i / 2];
    setenv("DLCOLL_SHM", _i % 2 ? "1" : "0", 1);
    ranks_init(&j, 2, 1 + _i % 2);
    ranks_start(&j, set_otherwise);
    ranks_wait(&j, 20, 0);
    for (int r = 0; r < 2; r++) {
        const char *text = j.shared->rank[r].error.text;
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_EMISMATCH, "rank %d: %d %s", r,
                      j.shared->rank[r].code, text);
        ck_assert_msg(strstr(text, "has different settings from rank"), "rank %d: %s", r, text);
    }
    ranks_fini(&j);
}
END_TEST

/* By an agent's limits its node's segment has no room for what all share: on one node, or both. */
static void use_no_heap(struct ranks *j, int rank)
{
    double x = rank;
    dlcoll_comm *c = comm_start();
    ranks_keep_result(j, rank, c,
                      dlcoll_all_reduce(&x, &x, 1, DLCOLL_F64, DLCOLL_SUM, c, NULL, NULL));
    ranks_say_ready(j);
    ranks_await_ready(j);
    dlcoll_destroy(c);
}

START_TEST(nodes_without_room_for_shared_memory)
{
    struct ranks j;
    ranks_init(&j, 4, 2);
    for (int node = _i; node < 2; node++)
        j.segment[node]->heap_bytes = 4096;
    ranks_start(&j, use_no_heap);
    ranks_wait(&j, 20, 0);
    for (int r = 0; r < 4; r++) {
        const char *text = j.shared->rank[r].error.text;
        bool told =
            j.shared->rank[r].code == DLCOLL_EMISMATCH && strstr(text, "has different settings");
        ck_assert_msg(_i == 0 ? j.shared->rank[r].code == 0 : told, "rank %d: %d %s", r,
                      j.shared->rank[r].code, text);
    }
    ranks_fini(&j);
}
END_TEST

static void leave_early(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 1) {
        dlcoll_destroy(c);
        return;
    }
    int r = dlcoll_barrier(c, NULL, NULL);
    ranks_keep_result(j, rank, c, r);
    dlcoll_destroy(c);
}

START_TEST(a_rank_that_leaves_is_reported)
{
    struct ranks j;
    ranks_init(&j, 2, 1);
    ranks_start(&j, leave_early);
    ranks_wait(&j, 20, 0);
    ck_assert_int_eq(j.shared->rank[0].code, DLCOLL_EPEER);
    ck_assert_int_eq(j.shared->rank[0].error.rank, 1);
    ck_assert_ptr_nonnull(strstr(j.shared->rank[0].error.text, "has left the job"));
    ranks_fini(&j);
}
END_TEST

/* The system gives up connecting to a host that does not answer, long before the operation does. */
static bool g_out_of_reach; /* whoever is connected to next */

int connect(int fd, __CONST_SOCKADDR_ARG to, socklen_t len)
{
    if (!g_out_of_reach)
        return (int)syscall(SYS_connect, fd, to.__sockaddr__, len);
    g_out_of_reach = false;
    errno = ETIMEDOUT;
    return -1;
}

static void connect_in_vain(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    int32_t x = 1;
    g_out_of_reach = rank == 0;
    int r = dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
    ranks_keep_result(j, rank, c, r);
    dlcoll_destroy(c);
}

START_TEST(a_host_that_does_not_answer_is_named)
{
    struct ranks j;
    char text[64];
    ranks_init(&j, 2, 2);
    ranks_start(&j, connect_in_vain);
    ranks_wait(&j, 20, 0);
    snprintf(text, sizeof(text), "cannot connect to rank 1 at 127.0.0.1:%d: ", j.port[1]);
    for (int r = 0; r < 2; r++) {
        dlcoll_error *e = &j.shared->rank[r].error;
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_ENET && strstr(e->text, text),
                      "rank %d: %d %s", r, j.shared->rank[r].code, e->text);
    }
    ranks_fini(&j);
}
END_TEST

/* ------------------------------------------------------------------------------------ strangers */

static int connect_to(uint16_t port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        close_fd(&fd);
    return fd;
}

static void reduce_and_wait(struct ranks *j, int rank)
{
    (void)rank;
    dlcoll_comm *c = comm_start();
    ranks_say_ready(j);
    ranks_await_go(j); /* strangers have come first */
    for (int k = 0; k < 50; k++) {
        static float x[50000];
        EXPECT(dlcoll_all_reduce(x, x, k ? 50000 : 10, DLCOLL_F32, DLCOLL_SUM, c, NULL, NULL) == 0,
               "%s", why(c));
    }
    comm_end(c);
}

START_TEST(foreign_connections_disturb_no_rank)
{
    struct ranks j;
    enum { EACH = 30 };
    int fds[3 * EACH], n = 0;
    ranks_init(&j, 3, 1);
    struct hello hello = {.magic = HELLO_MAGIC,
                          .version = HELLO_VERSION,
                          .kind = HELLO_DATA,
                          .epoch = j.segment[0]->epoch,
                          .counter = 3,
                          .instance = 1};
    struct {
        struct hello hello;
        struct notice notice;
    } lie = {hello, {.code = DLCOLL_EPEER, .rank = 0}};
    ranks_start(&j, reduce_and_wait);
    wait_until(ranks_are_ready, &j, 20, "all ranks are there");
    for (int k = 0; k < 3 * EACH; k++) {
        int to = k % 3, fd = connect_to(j.port[to]);
        ck_assert_int_ge(fd, 0);
        struct hello h = hello;
        h.to = (uint32_t)to;
        h.from = (uint32_t)(to + 1) % 3;
        switch (k / 3 % 10) {
        case 0: /* says nothing */
            break;
        case 1:
            ck_assert_int_gt((int)write(fd, "GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", 36), 0);
            break;
        case 2: /* half of it */
            ck_assert_int_gt((int)write(fd, &h, 20), 0);
            break;
        case 3:
            close_fd(&fd);
            continue;
        case 4: /* another round */
            h.counter++;
            ck_assert_int_gt((int)write(fd, &h, sizeof(h)), 0);
            break;
        case 5: /* another job */
            h.epoch++;
            ck_assert_int_gt((int)write(fd, &h, sizeof(h)), 0);
            break;
        case 6: /* for another rank */
            h.to++;
            ck_assert_int_gt((int)write(fd, &h, sizeof(h)), 0);
            break;
        case 7: /* from no rank */
            h.from = 0xffffffff;
            ck_assert_int_gt((int)write(fd, &h, sizeof(h)), 0);
            break;
        case 8: /* a notice from another job */
            lie.hello.kind = HELLO_NOTICE;
            lie.hello.to = (uint32_t)to;
            lie.hello.epoch++;
            ck_assert_int_gt((int)write(fd, &lie, sizeof(lie)), 0);
            break;
        case 9: /* a notice cut short */
            lie.hello = h;
            lie.hello.kind = HELLO_NOTICE;
            ck_assert_int_gt((int)write(fd, &lie, sizeof(lie) - 1), 0);
            break;
        }
        fds[n++] = fd;
    }
    atomic_store(&j.shared->go, 1);
    ranks_wait(&j, 30, 0);
    while (n)
        close(fds[--n]);
    ranks_fini(&j);
}
END_TEST

/* --------------------------------------------------------------------------- another version */

enum { OTHER_VERSION = HELLO_VERSION + 1 };
static int g_other; /* the rank whose libdlcoll speaks another version, which the test plays */

/* The lower rank connects. Returns the answer to its hello, or sends one. */
static void speak_otherwise(struct ranks *j, int rank)
{
    struct hello h = {.magic = HELLO_MAGIC,
                      .version = OTHER_VERSION,
                      .kind = HELLO_DATA,
                      .epoch = j->segment[0]->epoch,
                      .counter = j->segment[0]->counter,
                      .instance = 1,
                      .from = (uint32_t)rank,
                      .to = (uint32_t)!rank};
    struct hello theirs = {0};
    if (rank == 1)
        fcntl(j->listener[1], F_SETFL, 0);
    int fd = rank == 0 ? connect_to(j->port[1]) : accept(j->listener[1], NULL, NULL);
    EXPECT(fd >= 0 && write(fd, &h, HELLO_COMMON) == HELLO_COMMON);
    EXPECT(recv(fd, &theirs, HELLO_COMMON, MSG_WAITALL) == HELLO_COMMON);
    EXPECT(theirs.version == HELLO_VERSION && theirs.from == h.to, "%u", theirs.version);
    ranks_say_ready(j);
    ranks_await_ready(j);
    close(fd);
}

static void meet_another_version(struct ranks *j, int rank)
{
    if (rank == g_other) {
        speak_otherwise(j, rank);
        return;
    }
    dlcoll_comm *c = comm_start();
    int32_t x = 1;
    int r = dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
    ranks_keep_result(j, rank, c, r);
    ranks_say_ready(j);
    ranks_await_ready(j);
    dlcoll_destroy(c);
}

START_TEST(another_version_is_told_to_both)
{
    struct ranks j;
    g_other = _i;
    ranks_init(&j, 2, 2);
    uint64_t start = mono_ns();
    ranks_start(&j, meet_another_version);
    ranks_wait(&j, 20, 0);
    const dlcoll_error *e = &j.shared->rank[!g_other].error;
    ck_assert_msg(e->code == DLCOLL_EMISMATCH && e->rank == g_other, "%d: %s", e->code, e->text);
    ck_assert_msg(strstr(e->text, test_text("speaks version %d of libdlcoll's protocol, rank %d "
                                            "version %d: all ranks need the same libdlcoll",
                                            OTHER_VERSION, !g_other, HELLO_VERSION)),
                  "%s", e->text);
    ck_assert_double_lt((double)(mono_ns() - start) / 1e9, test_seconds(10));
    ranks_fini(&j);
}
END_TEST

/* The byte of each call cannot tell these two apart. */
static void set_other_roots(struct ranks *j, int rank)
{
    set_env_int("DLCOLL_NCCL_ROOTS", rank ? 40 : 2);
    set_otherwise(j, rank);
}

START_TEST(settings_are_compared_when_ranks_connect)
{
    struct ranks j;
    setenv("DLCOLL_SHM", "0", 1);
    g_setting = (const char *const[]){"UNUSED", "1"};
    ranks_init(&j, 2, 2);
    ranks_start(&j, set_other_roots);
    ranks_wait(&j, 20, 0);
    for (int r = 0; r < 2; r++) {
        const dlcoll_error *e = &j.shared->rank[r].error;
        ck_assert_msg(e->code == DLCOLL_EMISMATCH &&
                          (strstr(e->text, ": DLCOLL_NCCL_ROOTS is 40 there and 2 here") ||
                           strstr(e->text, ": DLCOLL_NCCL_ROOTS is 2 there and 40 here")),
                      "rank %d: %d %s", r, e->code, e->text);
    }
    ranks_fini(&j);
}
END_TEST

/* Rank 1 of three stores a record of the version before records had one. */
static void store_otherwise(struct ranks *j, int rank)
{
    static const char prefix[] = "dlcoll//0/1/";
    struct err e = ERR_INIT;
    struct store_client *store;
    void *table;
    size_t len;
    if (rank != 1) {
        dlcoll_comm *c;
        j->shared->rank[rank].code = dlcoll_init(&c, NULL);
        snprintf(j->shared->rank[rank].error.text, sizeof(j->shared->rank[rank].error.text), "%s",
                 why(NULL));
        return;
    }
    EXPECT(store_client_new(&store, "127.0.0.1", g_store_port, 20000, &e) == 0, "%s", e.msg);
    EXPECT(store_client_set(store, test_text("%srank/1", prefix), "a record", 8, &e) == 0);
    EXPECT(store_client_get(store, test_text("%stable", prefix), &table, &len, 20000, &e) == 0);
    EXPECT(store_client_set(store, test_text("%sread/1", prefix), "", 0, &e) == 0);
    free(table);
    store_client_free(store);
}

START_TEST(another_version_is_told_before_ranks_connect)
{
    struct ranks j;
    int fd = reserve_port(&g_store_port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_store_port);
    ranks_init(&j, 3, 0);
    ranks_start(&j, store_otherwise);
    ranks_wait(&j, 20, 0);
    for (int r = 0; r < 3; r += 2)
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_EMISMATCH &&
                          strstr(j.shared->rank[r].error.text,
                                 "rank 1 speaks an older version of libdlcoll's protocol"),
                      "rank %d: %d %s", r, j.shared->rank[r].code, j.shared->rank[r].error.text);
    ranks_fini(&j);
    close(fd);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_faults");
    TCase *tc = test_case(s, "failures", 60);
    tcase_add_loop_test(tc, a_killed_rank_is_named_by_every_survivor, 0, 8);
    tcase_add_loop_test(tc, a_killed_rank_is_named_without_an_agent, 0, 8);
    tcase_add_loop_test(tc, the_operation_that_a_death_ends_is_named, 0, 9);
    tcase_add_loop_test(tc, the_abort_word_ends_a_wait, 0, 2);
    tcase_add_test(tc, a_timeout_names_the_awaited_rank);
    tcase_add_test(tc, a_timeout_names_the_message_awaited_elsewhere);
    tcase_add_loop_test(tc, every_rank_reports_different_calls, 3, 6);
    tcase_add_loop_test(tc, different_calls_on_different_transports_are_reported, 0, 4);
    tcase_add_loop_test(tc, different_settings_are_reported, 0, 6);
    tcase_add_loop_test(tc, different_settings_are_reported_without_a_launcher, 0, 3);
    tcase_add_loop_test(tc, different_settings_are_reported_by_a_group, 0, 3);
    tcase_add_loop_test(tc, a_rank_without_shared_memory_is_reported, 0, 2);
    tcase_add_loop_test(tc, nodes_without_room_for_shared_memory, 0, 2);
    tcase_add_loop_test(tc, another_version_is_told_to_both, 0, 2);
    tcase_add_test(tc, settings_are_compared_when_ranks_connect);
    tcase_add_test(tc, another_version_is_told_before_ranks_connect);
    tcase_add_test(tc, a_rank_that_leaves_is_reported);
    tcase_add_test(tc, a_host_that_does_not_answer_is_named);
    tcase_add_test(tc, a_wrong_segment_is_refused);
    tcase_add_test(tc, foreign_connections_disturb_no_rank);
    return s;
}

TEST_MAIN(suite)
