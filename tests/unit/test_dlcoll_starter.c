/* Programs that something else than dlaunch has started together: the tasks of a Slurm step meet by
 * Slurm's variables; where other starters' variables show that there are other processes,
 * dlcoll_init() refuses instead of making a world of one. */
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "core/fd.h"
#include "core/slurm.h"
#include "rendezvous/store/store_client.h"
#include "rendezvous/store/store_thread.h"
#include "tests/lib/ranks.h"
#include "tests/lib/store.h"

enum { RANKS = 3, PORTS = 4, STEP = 0, JOBS_ALIKE = 10000 /* derive the same ports */ };

static const char *const g_variables[] = {"RANK",
                                          "WORLD_SIZE",
                                          "MASTER_ADDR",
                                          "MASTER_PORT",
                                          "LOCAL_RANK",
                                          "DLCOLL_INIT_METHOD",
                                          "DLAUNCH_SEGMENT_FD",
                                          "SLURM_JOB_ID",
                                          "SLURM_STEP_ID",
                                          "SLURM_PROCID",
                                          "SLURM_LOCALID",
                                          "SLURM_NTASKS",
                                          "SLURM_STEP_NUM_TASKS",
                                          "SLURM_STEP_NUM_NODES",
                                          "SLURM_STEP_NODELIST",
                                          "SLURM_PTY_PORT",
                                          "SLURM_RESTART_COUNT",
                                          "OMPI_COMM_WORLD_RANK",
                                          "OMPI_COMM_WORLD_SIZE",
                                          "MV2_COMM_WORLD_RANK",
                                          "FLUX_TASK_RANK",
                                          "FLUX_JOB_SIZE",
                                          "JSM_NAMESPACE_RANK",
                                          "PMI_RANK",
                                          "PMI_SIZE",
                                          "PALS_RANKID",
                                          "PMIX_RANK",
                                          "MPI_LOCALRANKID"};

static void clear(void)
{
    for (size_t i = 0; i < sizeof(g_variables) / sizeof(g_variables[0]); i++)
        unsetenv(g_variables[i]);
}

/* "A=1 B=2" */
static void set_all(const char *text)
{
    char *copy = strdup(text), *at = NULL;
    for (char *word = strtok_r(copy, " ", &at); word; word = strtok_r(NULL, " ", &at)) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        setenv(word, value, 1);
    }
    free(copy);
}

static int listen_at(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_ANY)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 16) < 0)
        close_fd(&fd);
    return fd;
}

/* A job whose ports are free now. */
static long find_job(void)
{
    for (long job = 1000 + (long)getpid() % 5000;; job++) {
        int fds[PORTS], free = 0;
        for (int i = 0; i < PORTS; i++)
            free += (fds[i] = listen_at(slurm_port(job, STEP) + i)) >= 0;
        for (int i = 0; i < PORTS; i++)
            close_fd(&fds[i]);
        if (free == PORTS)
            return job;
    }
}

/* The tasks of one step, as children. */
struct step {
    long job;
    const char *more; /* variables */
    bool pmi;         /* srun --mpi=pmi2 */
    pid_t pid[RANKS];
};

static void task(const struct step *s, int rank)
{
    clear();
    set_all(test_text("SLURM_JOB_ID=%ld SLURM_STEP_ID=%d SLURM_PROCID=%d SLURM_LOCALID=%d "
                      "SLURM_NTASKS=%d SLURM_STEP_NUM_TASKS=%d SLURM_CLUSTER_NAME=c %s",
                      s->job, STEP, rank, rank, RANKS, RANKS, s->more));
    if (s->pmi)
        set_all(test_text("PMI_RANK=%d PMI_SIZE=%d PMIX_RANK=%d", rank, RANKS, rank));
    int64_t mine = (int64_t)(rank + 1) * s->job, sum = 0;
    dlcoll_comm *c = comm_start();
    EXPECT(dlcoll_size(c) == RANKS && dlcoll_rank(c) == rank && dlcoll_local_rank(c) == rank);
    EXPECT(dlcoll_all_reduce(&mine, &sum, 1, DLCOLL_I64, DLCOLL_SUM, c, NULL, NULL) == 0, "%s",
           why(c));
    EXPECT(sum == s->job * RANKS * (RANKS + 1) / 2, "%ld", (long)sum);
    comm_end(c);
}

static void start(struct step *s)
{
    setenv("DLCOLL_TIMEOUT", test_text("%ds", (int)test_seconds(20)), 1);
    for (int r = 0; r < RANKS; r++) {
        s->pid[r] = fork();
        ck_assert_int_ge(s->pid[r], 0);
        if (s->pid[r] == 0) {
            task(s, r);
            _exit(0);
        }
    }
}

static void end(struct step *s)
{
    for (int r = 0; r < RANKS; r++) {
        int status;
        ck_assert_int_eq(waitpid(s->pid[r], &status, 0), s->pid[r]);
        ck_assert_msg(status == 0, "rank %d ended with wait status %#x", r, (unsigned)status);
    }
}

static const char g_one_node[] = "SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=no-such-name";

START_TEST(tasks_of_a_step_meet)
{
    static const char *const more[] = {
        g_one_node,
        "SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=localhost,n[1-3]",
        "SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=n[1-2] MASTER_ADDR=127.0.0.1",
    };
    struct step s = {.job = find_job(), .more = more[_i], .pmi = _i == 0};
    start(&s);
    end(&s);
}
END_TEST

/* Two jobs on one host derive the same ports. */
START_TEST(two_jobs_stay_apart)
{
    struct step a = {.job = find_job(), .more = g_one_node}, b = a;
    b.job += JOBS_ALIKE;
    ck_assert_int_eq(slurm_port(a.job, STEP), slurm_port(b.job, STEP));
    start(&a);
    start(&b);
    end(&a);
    end(&b);
}
END_TEST

/* The first port is a stranger's: a store, or a listener that never answers. */
START_TEST(a_port_of_another_program_is_skipped)
{
    if (_i == 0 && test_skip_sanitized("a fork()'s child of several threads starts threads"))
        return;
    struct step s = {.job = find_job(), .more = g_one_node};
    struct err e = ERR_INIT;
    struct store_thread *store = NULL;
    struct store_thread_opts o = {.addr = "127.0.0.1", .port = slurm_port(s.job, STEP)};
    int64_t before = 0;
    int fd = _i ? listen_at(o.port) : -1;
    if (_i == 0) {
        ck_assert_msg(store_thread_new(&store, &o, &e) == 0, "%s", e.msg);
        fd = raw_open(o.port);
        before = raw_num_keys(fd);
    }
    start(&s);
    end(&s);
    if (_i == 0) {
        ck_assert_int_eq(raw_num_keys(fd), before);
        store_thread_free(store);
    }
    close_fd(&fd);
}
END_TEST

START_TEST(all_ports_are_in_use)
{
    long job = find_job();
    int fds[PORTS];
    for (int i = 0; i < PORTS; i++)
        fds[i] = listen_at(slurm_port(job, STEP) + i);
    clear();
    set_all(test_text("SLURM_JOB_ID=%ld SLURM_STEP_ID=%d SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 "
                      "SLURM_STEP_NUM_NODES=1",
                      job, STEP));
    expect_init(DLCOLL_ENET, "are in use (set MASTER_PORT)");
    for (int i = 0; i < PORTS; i++)
        close_fd(&fds[i]);
}
END_TEST

#define SLURM_TASK "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 "

static const struct {
    const char *variables, *text;
} g_refused[] = {
    {"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 PMIX_RANK=2",
     "Open MPI has started this process as rank 2 of 3"},
    {"PMI_RANK=0 PMI_SIZE=3", "mpiexec has started this process as rank 0 of 3 (PMI_RANK)"},
    {"FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 PMI_RANK=1 PMI_SIZE=2",
     "Flux has started this process as rank 1 of 2"},
    {"PALS_RANKID=4", "PALS has started this process as rank 4"},
    {"PMIX_RANK=0", "(RANK=0 WORLD_SIZE=1 to run alone)"},
    {"PMIX_RANK=0", "'dlaunch --nproc_per_node N'"},
    /* mpiexec in an allocation, whose helpers srun has started */
    {SLURM_TASK "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 PMI_RANK=3 PMI_SIZE=8",
     "mpiexec has started this process as rank 3 of 8"},
    {SLURM_TASK "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2", "SLURM_STEP_NODELIST"},
    {SLURM_TASK "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=n[1-",
     "SLURM_STEP_NODELIST: "},
    {SLURM_TASK "SLURM_STEP_NUM_TASKS=1",
     "SLURM_PROCID is 1, SLURM_STEP_NUM_TASKS 1: set RANK, WORLD_SIZE"},
};

START_TEST(other_starters_are_refused)
{
    clear();
    set_all(g_refused[_i].variables);
    expect_init(DLCOLL_EINVAL, g_refused[_i].text);
}
END_TEST

static const char *const g_alone[] = {
    "",
    "PMI_RANK=0 PMI_SIZE=1",
    "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0",
    /* a batch script, and a shell under a terminal */
    "SLURM_JOB_ID=7 SLURM_STEP_ID=4294967291 SLURM_PROCID=0 SLURM_NTASKS=8",
    "SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=8",
    "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=8 SLURM_PTY_PORT=1",
    "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
    "PMI_RANK=2 PMI_SIZE=3 RANK=0 WORLD_SIZE=1",
};

START_TEST(a_process_alone)
{
    clear();
    set_all(g_alone[_i]);
    dlcoll_comm *c = NULL;
    ck_assert_msg(dlcoll_init(&c, NULL) == 0, "%s: %s", g_alone[_i], why(NULL));
    ck_assert_int_eq(dlcoll_size(c), 1);
    dlcoll_destroy(c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_starter");
    TCase *tc = test_case(s, "slurm", 60);
    tcase_add_loop_test(tc, tasks_of_a_step_meet, 0, 3);
    tcase_add_test(tc, two_jobs_stay_apart);
    tcase_add_loop_test(tc, a_port_of_another_program_is_skipped, 0, 2);
    tcase_add_test(tc, all_ports_are_in_use);
    tc = test_case(s, "others", 20);
    tcase_add_loop_test(tc, other_starters_are_refused, 0,
                        sizeof(g_refused) / sizeof(g_refused[0]));
    tcase_add_loop_test(tc, a_process_alone, 0, sizeof(g_alone) / sizeof(g_alone[0]));
    return s;
}

TEST_MAIN(suite)
