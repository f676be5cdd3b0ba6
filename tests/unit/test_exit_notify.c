/* The agent hears that a worker begins to end, and of what, before it can be reaped. */
#include "tests/lib/test.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/exit_notify.h"
#include "collectives/bootstrap/exit_notify.h"
#include "core/fd.h"
#include "core/futex.h"
#include "core/mem.h"
#include "tests/lib/loop.h"

#define WORKERS 3

static uv_loop_t g_loop;
static struct uvx_scope g_scope;
static struct segment g_segment;
static struct exit_notify *g_notify;
static bool g_notified, g_closed;

static void on_exiting(void *arg)
{
    ck_assert_ptr_eq(arg, &g_loop);
    g_notified = true;
}

static void on_closed(void *arg)
{
    (void)arg;
    g_closed = true;
}

/* A child of each local rank, which reads from `talk` what it is to do. They are there before the
 * thread that watches them: sanitizers let a child of several threads do little. */
struct child {
    pid_t pid;
    int talk;
};
static struct child g_children[WORKERS];

static void live(int local_rank)
{
    struct segment_header *h = g_segment.header;
    uint64_t at = g_segment.off_local + (uint64_t)local_rank * sizeof(struct segment_local);
    exit_notify_begin(g_segment.fd, at, (struct segment_local *)((char *)h + at),
                      &h->exit_word_count, 1);
}

static void *live_shortly(void *arg)
{
    live(*(int *)arg);
    return NULL;
}

static void *pause_for_ever(void *arg)
{
    for (;;)
        pause();
    return arg;
}

/* 1 GB, which takes the kernel 100 ms to take back. */
static void hold_much(void)
{
    size_t n = (size_t)1 << 30;
    char *p = mmap(NULL, n, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        _exit(98);
    madvise(p, n, MADV_NOHUGEPAGE);
    memset(p, 1, n);
}

static void carry_out(int talk, int local_rank)
{
    char what;
    pthread_t thread;
    while (read(talk, &what, 1) == 1) {
        switch (what) {
        case 'l':
            live(local_rank);
            break;
        case 't':
            pthread_create(&thread, NULL, live_shortly, &local_rank);
            pthread_join(thread, NULL);
            break;
        case 'e': /* the first thread ends, another one does not */
            live(local_rank);
            pthread_create(&thread, NULL, pause_for_ever, NULL);
            pthread_exit(NULL);
        case 'm':
            hold_much();
            break;
        case 's':
            raise(SIGUSR1);
            break;
        case 'x':
            _exit(3);
        case '0':
            _exit(0);
        }
        if (write(talk, "", 1) != 1)
            break;
    }
    _exit(99);
}

static void begin_child(int local_rank)
{
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    struct child *c = &g_children[local_rank];
    c->talk = ends[0];
    c->pid = fork();
    if (c->pid == 0) {
        close(ends[0]);
        carry_out(ends[1], local_rank);
    }
    close(ends[1]);
}

static void tell(const struct child *c, char what)
{
    ck_assert_int_eq(write(c->talk, &what, 1), 1);
}

static void told_to(const struct child *c, char what)
{
    char byte;
    tell(c, what);
    ck_assert_int_eq(read(c->talk, &byte, 1), 1);
}

static const struct child *living(int local_rank)
{
    const struct child *c = &g_children[local_rank];
    told_to(c, 'l');
    return c;
}

static int reaped(const struct child *c)
{
    int status;
    ck_assert_int_eq(waitpid(c->pid, &status, 0), c->pid);
    return status;
}

static void setup(void)
{
    struct err e = ERR_INIT;
    struct rank_table_node node = {.host = "a", .nproc = WORKERS};
    struct rank_table table = {.nnodes = 1, .nodes = &node, .world_size = WORKERS};
    g_notified = g_closed = false;
    g_segment = (struct segment)SEGMENT_INIT;
    ck_assert_msg(segment_open(&g_segment, &table, 0, 2, &e) == 0, "%s", e.msg);
    for (int i = 0; i < WORKERS; i++)
        begin_child(i);
    uv_loop_init(&g_loop);
    uvx_scope_init(&g_scope, &g_loop);
    g_notify = exit_notify_new(&g_loop, &g_scope, on_exiting, &g_loop);
    exit_notify_watch(g_notify, &g_segment);
}

static void teardown(void)
{
    exit_notify_unwatch(g_notify);
    exit_notify_unwatch(g_notify); /* nothing */
    uvx_scope_close(&g_scope, on_closed, NULL);
    loop_run_until(&g_loop, &g_closed, 10, "the handle to be closed");
    exit_notify_free(g_notify);
    segment_close(&g_segment);
    uv_loop_close(&g_loop);
    for (int i = 0; i < WORKERS; i++) /* those that are left see the end of the socket */
        close(g_children[i].talk);
}

static void wait_for_notification(void)
{
    loop_run_until(&g_loop, &g_notified, 10, "the notification of an exit");
    g_notified = false;
}

START_TEST(a_killed_worker_is_reported_with_its_signal)
{
    const struct child *c = living(1);
    ck_assert(!exit_notify_has_begun(&g_segment, 1));
    ck_assert_int_eq(exit_notify_status(c->pid), -1);
    kill(c->pid, SIGKILL);
    wait_for_notification();
    ck_assert(!exit_notify_has_begun(&g_segment, 0) && exit_notify_has_begun(&g_segment, 1) &&
              !exit_notify_has_begun(&g_segment, 2));
    ck_assert_int_eq(exit_notify_status(c->pid), SIGKILL); /* as wait(2) encodes it */
    ck_assert_int_eq(reaped(c), SIGKILL);
    ck_assert_int_eq(exit_notify_status(c->pid), -1);
}
END_TEST

/* exit_notify_status() gives the status that wait(2) gives later. */
START_TEST(each_end_has_its_status)
{
    static const char how[WORKERS] = {'x', 's', '0'};
    for (int i = 0; i < WORKERS; i++) {
        const struct child *c = living(i);
        tell(c, how[i]);
        wait_for_notification();
        ck_assert(exit_notify_has_begun(&g_segment, i));
        int early = exit_notify_status(c->pid);
        ck_assert_int_eq(early, reaped(c));
    }
}
END_TEST

START_TEST(a_stopped_worker_is_alive)
{
    const struct child *c = living(0);
    int status;
    kill(c->pid, SIGSTOP);
    ck_assert_int_eq(waitpid(c->pid, &status, WUNTRACED), c->pid);
    ck_assert(WIFSTOPPED(status) && !exit_notify_has_begun(&g_segment, 0));
    ck_assert_int_eq(exit_notify_status(c->pid), -1);
    kill(c->pid, SIGKILL);
    wait_for_notification();
    reaped(c);
}
END_TEST

/* The thread that has come to dlcoll_init() ends, the process does not. */
START_TEST(the_end_of_a_thread_is_not_a_death)
{
    const struct child *c = &g_children[2];
    tell(c, 't');
    wait_for_notification();
    ck_assert(exit_notify_has_begun(&g_segment, 2));
    ck_assert_int_eq(exit_notify_status(living(2)->pid), -1);
}
END_TEST

START_TEST(a_stop_without_the_first_thread_is_not_a_death)
{
    const struct child *c = &g_children[1];
    siginfo_t si;
    tell(c, 'e');
    wait_for_notification();
    ck_assert(exit_notify_has_begun(&g_segment, 1));
    kill(c->pid, SIGSTOP);
    ck_assert_int_eq(waitid(P_PID, (id_t)c->pid, &si, WSTOPPED | WNOWAIT), 0);
    ck_assert_int_le(exit_notify_status(c->pid), 0);
    kill(c->pid, SIGKILL);
    ck_assert_int_eq(reaped(c), SIGKILL);
}
END_TEST

START_TEST(the_next_round_is_watched_like_the_first)
{
    for (int round = 0; round < 2; round++) {
        const struct child *c = living(0);
        ck_assert(!g_notified && !exit_notify_has_begun(&g_segment, 0));
        kill(c->pid, SIGKILL);
        wait_for_notification();
        reaped(c);
        teardown();
        setup();
    }
}
END_TEST

static bool can_be_reaped(const struct child *c)
{
    siginfo_t si = {.si_pid = 0};
    ck_assert_int_eq(waitid(P_PID, (id_t)c->pid, &si, WEXITED | WNOHANG | WNOWAIT), 0);
    return si.si_pid == c->pid;
}

START_TEST(one_that_gives_back_its_memory_runs)
{
    bool ran = false;
    for (int i = 0; i < WORKERS && !ran; i++) { /* this process may be late */
        const struct child *c = living(i);
        told_to(c, 'm');
        ck_assert(!exit_notify_runs(c->pid));
        kill(c->pid, SIGKILL);
        wait_for_notification();
        while (!ran && !can_be_reaped(c))
            ran = exit_notify_runs(c->pid);
        ck_assert_int_eq(reaped(c), SIGKILL);
        ck_assert(!exit_notify_runs(c->pid));
    }
    ck_assert(ran);
}
END_TEST

/* The worker may write what it likes there. */
START_TEST(word_outside_of_the_mutex_is_refused)
{
    struct segment_local *l =
        (struct segment_local *)((char *)g_segment.header + g_segment.off_local);
    static const uint32_t wrong[] = {0,
                                     2,
                                     SEGMENT_EXIT_MUTEX_BYTES - 2,
                                     SEGMENT_EXIT_MUTEX_BYTES + 1,
                                     UINT32_MAX,
                                     UINT32_MAX - 2};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        atomic_store(&l->exit_notify_word, wrong[i]);
        ck_assert_ptr_null(segment_exit_word(&g_segment, 0));
    }
    atomic_store(&l->exit_notify_word, 1 + SEGMENT_EXIT_MUTEX_BYTES - 4);
    ck_assert_ptr_eq(segment_exit_word(&g_segment, 0),
                     (void *)(l->exit_mutex + SEGMENT_EXIT_MUTEX_BYTES - 4));
}
END_TEST

static bool can_watch(void)
{
    uint32_t word = 0;
    struct futex_waiter w = {.value = 1, .address = (uintptr_t)&word, .flags = FUTEX_32BIT};
    return futex_wait_any(&w, 1, 0) == 0;
}

static Suite *suite(void)
{
    Suite *s = suite_create("exit_notify");
    TCase *tc = test_case(s, "exit_notify", 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, word_outside_of_the_mutex_is_refused);
    if (!can_watch()) {
        test_skip("this kernel does not let one sleep on several words (5.16 does)");
        return s;
    }
    tcase_add_test(tc, a_killed_worker_is_reported_with_its_signal);
    tcase_add_test(tc, each_end_has_its_status);
    tcase_add_test(tc, a_stopped_worker_is_alive);
    tcase_add_test(tc, the_end_of_a_thread_is_not_a_death);
    tcase_add_test(tc, a_stop_without_the_first_thread_is_not_a_death);
    tcase_add_test(tc, the_next_round_is_watched_like_the_first);
    tcase_add_test(tc, one_that_gives_back_its_memory_runs);
    return s;
}

TEST_MAIN(suite)
