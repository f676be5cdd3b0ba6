/* The workers' environment and arguments. The golden lists are what torchrun (1.13) exports for the
 * same flags, plus NODE_RANK and DLAUNCH_*, and TORCH_NCCL_ASYNC_ERROR_HANDLING under its newer
 * name. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/worker_env.h"
#include "core/bytes.h"
#include "core/mem.h"

extern char **environ;

static struct rank_table_node nodes[2] = {
    {.host = "node-a", .nproc = 3, .base_rank = 0},
    {.host = "node-b", .nproc = 3, .base_rank = 3},
};
static struct rank_table table = {.restart_count = 1,
                                  .master_addr = "10.0.0.1",
                                  .master_port = 29733,
                                  .agent_store = true,
                                  .nnodes = 2,
                                  .world_size = 6,
                                  .nodes = nodes};
static struct job_spec job = {.nproc = 3,
                              .omp_num_threads = "1",
                              .signals_to_handle = "SIGTERM,SIGINT",
                              .rdzv = {.run_id = "myjob", .max_restarts = 2}};

static void set_roles(const char *a, const char *b)
{
    bool same = strcmp(a, b) == 0;
    strcpy(nodes[0].role, a);
    strcpy(nodes[1].role, b);
    nodes[0].role_base_rank = 0;
    nodes[1].role_base_rank = same ? nodes[0].nproc : 0;
    nodes[0].role_world_size = same ? table.world_size : nodes[0].nproc;
    nodes[1].role_world_size = same ? table.world_size : nodes[1].nproc;
}

static struct worker_env_input input(int node, int local_rank)
{
    return (struct worker_env_input){.job = &job,
                                     .table = &table,
                                     .group_rank = node,
                                     .local_rank = local_rank,
                                     .error_file = "/logs/error.json",
                                     .segment_fd = 5,
                                     .listen_fd = 6 + local_rank};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The environment, sorted, one a line. */
static char *env_text(const struct worker_env_input *in)
{
    char **env;
    struct err e = ERR_INIT;
    ck_assert_msg(worker_env_new(&env, in, &e) == 0, "%s", e.msg);
    size_t n = 0;
    while (env[n])
        n++;
    qsort(env, n, sizeof(*env), by_name);
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < n; i++) {
        buf_put(&b, env[i], strlen(env[i]));
        buf_put(&b, "\n", 1);
        size_t name = strcspn(env[i], "=") + 1;
        ck_assert_msg(i == 0 || strncmp(env[i], env[i - 1], name) != 0, "twice: %s", env[i]);
    }
    buf_put(&b, "", 1);
    worker_env_free(env);
    return test_keep((char *)b.data);
}

/* The value of one variable, or NULL. */
static const char *env_get(const struct worker_env_input *in, const char *name)
{
    char **env;
    const char *value = NULL;
    struct err e = ERR_INIT;
    ck_assert_msg(worker_env_new(&env, in, &e) == 0, "%s", e.msg);
    for (char **v = env; *v; v++) {
        if (strncmp(*v, name, strlen(name)) == 0 && (*v)[strlen(name)] == '=')
            value = test_text("%s", *v + strlen(name) + 1);
    }
    worker_env_free(env);
    return value;
}

START_TEST(golden_two_nodes_of_three)
{
    static const char golden[] = "DLAUNCH_LISTEN_FD=%d\n"
                                 "DLAUNCH_SEGMENT_FD=5\n"
                                 "GROUP_RANK=%d\n"
                                 "GROUP_WORLD_SIZE=2\n"
                                 "HOME=/root\n"
                                 "LOCAL_RANK=%d\n"
                                 "LOCAL_WORLD_SIZE=3\n"
                                 "MASTER_ADDR=10.0.0.1\n"
                                 "MASTER_PORT=29733\n"
                                 "NODE_RANK=%d\n"
                                 "OMP_NUM_THREADS=1\n"
                                 "PET_NNODES=2\n"
                                 "RANK=%d\n"
                                 "ROLE_NAME=%s\n"
                                 "ROLE_RANK=%d\n"
                                 "ROLE_WORLD_SIZE=%d\n"
                                 "TORCHELASTIC_ERROR_FILE=/logs/error.json\n"
                                 "TORCHELASTIC_MAX_RESTARTS=2\n"
                                 "TORCHELASTIC_RESTART_COUNT=1\n"
                                 "TORCHELASTIC_RUN_ID=myjob\n"
                                 "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT\n"
                                 "TORCHELASTIC_USE_AGENT_STORE=True\n"
                                 "TORCH_NCCL_ASYNC_ERROR_HANDLING=1\n"
                                 "WORLD_SIZE=6\n";
    static const char *const roles[][2] = {{"default", "default"}, {"trainer", "evaluator"}};
    clearenv();
    setenv("HOME", "/root", 1);
    setenv("PET_NNODES", "2", 1);
    setenv("RANK", "99", 1); /* of a launcher around this one */
    setenv("DLAUNCH_SEGMENT_FD", "99", 1);
    for (int r = 0; r < 2; r++) {
        set_roles(roles[r][0], roles[r][1]);
        for (int node = 0; node < 2; node++) {
            struct worker_env_shared *shared = NULL;
            for (int i = 0; i < 3; i++) {
                struct worker_env_input in = input(node, i);
                int role_rank = r == 0 ? 3 * node + i : i;
                char *want = test_text(golden, 6 + i, node, i, node, 3 * node + i, roles[r][node],
                                       role_rank, r == 0 ? 6 : 3);
                char *alone = env_text(&in);
                in.shared = &shared;
                char *together = env_text(&in);
                ck_assert_str_eq(alone, want);
                ck_assert_str_eq(together, want);
            }
            worker_env_shared_free(shared);
        }
    }
}
END_TEST

START_TEST(unequal_nodes)
{
    nodes[1].nproc = 2;
    table.world_size = 5;
    set_roles("r0", "r1");
    struct worker_env_input in = input(1, 1);
    in.master_addr = "127.0.0.1";
    ck_assert_str_eq(env_get(&in, "RANK"), "4");
    ck_assert_str_eq(env_get(&in, "ROLE_RANK"), "1");
    ck_assert_str_eq(env_get(&in, "ROLE_WORLD_SIZE"), "2");
    ck_assert_str_eq(env_get(&in, "LOCAL_WORLD_SIZE"), "2");
    ck_assert_str_eq(env_get(&in, "WORLD_SIZE"), "5");
    ck_assert_str_eq(env_get(&in, "MASTER_ADDR"), "127.0.0.1");
}
END_TEST

START_TEST(missing_variables)
{
    clearenv();
    struct worker_env_input in = input(0, 0);
    in.error_file = "";
    in.segment_fd = in.listen_fd = -1;
    table.agent_store = false;
    job.omp_num_threads = NULL;
    setenv("DLAUNCH_SEGMENT_FD", "99", 1); /* of a dlaunch around this one */
    setenv("DLAUNCH_LISTEN_FD", "99", 1);
    ck_assert_str_eq(env_get(&in, "TORCHELASTIC_ERROR_FILE"), "");
    ck_assert_str_eq(env_get(&in, "TORCHELASTIC_USE_AGENT_STORE"), "False");
    ck_assert_ptr_null(env_get(&in, "DLAUNCH_SEGMENT_FD"));
    ck_assert_ptr_null(env_get(&in, "DLAUNCH_LISTEN_FD"));
    ck_assert_ptr_null(env_get(&in, "DLAUNCH_PROGRESS_FILE"));
    job.progress_file = "/tmp/p";
    ck_assert_str_eq(env_get(&in, "DLAUNCH_PROGRESS_FILE"), "/tmp/p");
    ck_assert_ptr_null(env_get(&in, "OMP_NUM_THREADS"));
    ck_assert_ptr_null(env_get(&in, "NCCL_ASYNC_ERROR_HANDLING"));
}
END_TEST

START_TEST(inherited_values_count)
{
    struct worker_env_input in = input(0, 0);
    setenv("OMP_NUM_THREADS", "4", 1);
    setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 1);
    setenv("NCCL_ASYNC_ERROR_HANDLING", "2", 1);
    ck_assert_str_eq(env_get(&in, "OMP_NUM_THREADS"), "4");
    ck_assert_str_eq(env_get(&in, "TORCH_NCCL_ASYNC_ERROR_HANDLING"), "0");
    ck_assert_str_eq(env_get(&in, "NCCL_ASYNC_ERROR_HANDLING"), "2");
    job.env = (char *[]){"OMP_NUM_THREADS=8", "X=1", "X=a=b", "LOCAL_RANK=7", "EMPTY=", NULL};
    ck_assert_str_eq(env_get(&in, "OMP_NUM_THREADS"), "8");
    ck_assert_str_eq(env_get(&in, "X"), "a=b");
    ck_assert_str_eq(env_get(&in, "LOCAL_RANK"), "7");
    ck_assert_str_eq(env_get(&in, "EMPTY"), "");
}
END_TEST

START_TEST(wiring_of_an_outer_mpi_launcher)
{
    static const char *const gone[] = {"PMI_RANK",
                                       "PMI_FD",
                                       "PMIX_NAMESPACE",
                                       "PMIX_SERVER_URI21",
                                       "OMPI_COMM_WORLD_RANK",
                                       "OMPI_UNIVERSE_SIZE",
                                       "OMPI_MCA_ess",
                                       "OMPI_MCA_orte_hnp_uri",
                                       "OMPI_MCA_orte_ess_num_procs",
                                       "SLURM_PMIX_MAPPING_SERV",
                                       "HYDI_CONTROL_FD",
                                       "MPI_LOCALRANKID",
                                       "MPI_LOCALNRANKS"};
    static const char *const kept[] = {"OMPI_MCA_btl",  "PMIX_MCA_gds", "SLURM_PROCID",  "PMI",
                                       "I_MPI_FABRICS", "UCX_TLS",      "OMPI_MCA_essx", "PMODE"};
    struct worker_env_input in = input(0, 0);
    for (size_t i = 0; i < ARRAY_LEN(gone); i++)
        setenv(gone[i], "outer", 1);
    for (size_t i = 0; i < ARRAY_LEN(kept); i++)
        setenv(kept[i], "set", 1);
    for (size_t i = 0; i < ARRAY_LEN(gone); i++)
        ck_assert_msg(!env_get(&in, gone[i]), "%s came through", gone[i]);
    for (size_t i = 0; i < ARRAY_LEN(kept); i++)
        ck_assert_msg(env_get(&in, kept[i]), "%s is gone", kept[i]);
    job.env = (char *[]){"PMI_RANK=mine", NULL};
    ck_assert_str_eq(env_get(&in, "PMI_RANK"), "mine");
    job.env = NULL;
    job.torchrun = true;
    for (size_t i = 0; i < ARRAY_LEN(gone); i++)
        ck_assert_msg(env_get(&in, gone[i]), "%s is gone under the name torchrun", gone[i]);
}
END_TEST

START_TEST(virtual_local_rank)
{
    struct worker_env_input in = input(0, 2);
    struct err e = ERR_INIT;
    char **env;
    job.virtual_local_rank = true;
    unsetenv("CUDA_VISIBLE_DEVICES");
    ck_assert_str_eq(env_get(&in, "CUDA_VISIBLE_DEVICES"), "2");
    ck_assert_str_eq(env_get(&in, "LOCAL_RANK"), "0");
    ck_assert_str_eq(env_get(&in, "RANK"), "2");
    setenv("CUDA_VISIBLE_DEVICES", "7, 5 ,GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,0", 1);
    ck_assert_str_eq(env_get(&in, "CUDA_VISIBLE_DEVICES"),
                     "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6");
    in.local_rank = 1;
    ck_assert_str_eq(env_get(&in, "CUDA_VISIBLE_DEVICES"), "5");
    job.env = (char *[]){"CUDA_VISIBLE_DEVICES=3,2,1", NULL};
    ck_assert_str_eq(env_get(&in, "CUDA_VISIBLE_DEVICES"), "2");
    job.env = NULL;
    static const struct {
        const char *list, *error;
    } bad[] = {{"0,1", "CUDA_VISIBLE_DEVICES=0,1 names 2 GPUs, too few for 3 workers"},
               {"4", "CUDA_VISIBLE_DEVICES=4 names 1 GPU, too few for 3 workers"},
               {"", "CUDA_VISIBLE_DEVICES= names 0 GPUs, too few for 3 workers"},
               {"0,-1,2", "CUDA_VISIBLE_DEVICES=0,-1,2 names 1 GPU, too few for 3 workers"}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        setenv("CUDA_VISIBLE_DEVICES", bad[i].list, 1);
        ck_assert_int_eq(worker_env_new(&env, &in, &e), -EINVAL);
        ck_assert_str_eq(e.msg, test_text("--virtual_local_rank: %s", bad[i].error));
    }
    /* torchrun takes what stands between commas, be it nothing */
    job.torchrun = true;
    setenv("CUDA_VISIBLE_DEVICES", "4,,5", 1);
    ck_assert_str_eq(env_get(&in, "CUDA_VISIBLE_DEVICES"), "");
    in.local_rank = 0;
    ck_assert_str_eq(env_get(&in, "CUDA_VISIBLE_DEVICES"), "4");
}
END_TEST

static void check_argv(char *const *want)
{
    char **argv = worker_argv_new(&job, 12);
    size_t i = 0;
    for (; want[i]; i++) {
        ck_assert_msg(argv[i], "argument %zu is missing", i);
        ck_assert_str_eq(argv[i], want[i]);
    }
    ck_assert_ptr_null(argv[i]);
    worker_env_free(argv);
}

START_TEST(arguments)
{
    job.argv = (char *[]){
        "${local_rank}", "a${local_rank}b-${local_rank}", "$local_rank $$", "${rank}", "", NULL};
    check_argv((char *[]){"${local_rank}", "a12b-12", "$local_rank $$", "${rank}", "", NULL});
    job.torchrun = true;
    check_argv((char *[]){"${local_rank}", "a12b-12", "12 $", "${rank}", "", NULL});
    job.torchrun = false;
    job.argv = (char *[]){"python3", "-u", "x.py", "--lr=${local_rank}", NULL};
    job.launch_local_rank_arg = true;
    job.local_rank_arg_at = 3;
    check_argv((char *[]){"python3", "-u", "x.py", "--local-rank=12", "--lr=12", NULL});
    job.local_rank_arg_at = 4;
    check_argv((char *[]){"python3", "-u", "x.py", "--lr=12", "--local-rank=12", NULL});
    job.argv = (char *[]){"prog", NULL};
    job.launch_local_rank_arg = false;
    check_argv((char *[]){"prog", NULL});
}
END_TEST

START_TEST(mpi_programs)
{
    static char *const mpi[] = {"PMI_FD=9", "PMI_RANK=4", NULL};
    struct worker_env_input in = input(1, 1);
    set_roles("default", "default");
    setenv("PMI_FD", "3", 1); /* of a starter around dlaunch */
    setenv("PMI_PORT", "host:1", 1);
    ck_assert_ptr_null(strstr(env_text(&in), "PMI_"));
    in.own = mpi;
    const char *text = env_text(&in); /* which fails for a name that is there twice */
    ck_assert_ptr_nonnull(strstr(text, "PMI_FD=9\nPMI_RANK=4\n"));
    ck_assert_ptr_null(strstr(text, "PMI_PORT"));
    job.torchrun = true;
    text = env_text(&in);
    ck_assert_ptr_nonnull(strstr(text, "PMI_FD=9\nPMI_PORT=host:1\nPMI_RANK=4\n"));
    job.torchrun = false;
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("worker_env");
    TCase *tc = test_case(s, "worker_env", 10);
    tcase_add_test(tc, golden_two_nodes_of_three);
    tcase_add_test(tc, unequal_nodes);
    tcase_add_test(tc, missing_variables);
    tcase_add_test(tc, inherited_values_count);
    tcase_add_test(tc, wiring_of_an_outer_mpi_launcher);
    tcase_add_test(tc, virtual_local_rank);
    tcase_add_test(tc, arguments);
    tcase_add_test(tc, mpi_programs);
    return s;
}

TEST_MAIN(suite)
