/* PMI as MPI programs speak it, word for word, with the server's other nodes in this process. */
#include "agent/mpi/pmi.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"
#include "tests/lib/loop.h"
#include "tests/lib/test.h"

#define NODES_MAX 3
#define RANKS_MAX 4

static struct node {
    struct pmi *pmi;
    int fds[RANKS_MAX];
    struct buf value; /* of its fence */
    int fences, aborts, aborted_rank, code;
    char how[200];
} nodes[NODES_MAX];

static struct rank_table table;
static uv_loop_t loop;
static struct uvx_scope scope;

static void on_fence(void *arg, const void *value, size_t len)
{
    struct node *n = arg;
    n->fences++;
    buf_fini(&n->value);
    buf_put(&n->value, value, len);
}

static void on_abort(void *arg, int local_rank, int exit_code, const char *how)
{
    struct node *n = arg;
    n->aborts++;
    n->aborted_rank = local_rank;
    n->code = exit_code;
    snprintf(n->how, sizeof(n->how), "%s", how);
}

/* nproc[i] ranks on node i. */
static void begin(int nnodes, const int *nproc)
{
    struct err e = ERR_INIT;
    loop_setup(&loop);
    uvx_scope_init(&scope, &loop);
    rank_table_init(&table);
    ck_assert_int_eq(rank_table_alloc(&table, nnodes), 0);
    table.gen.counter = 3;
    for (int i = 0; i < nnodes; i++) {
        table.nodes[i].nproc = nproc[i];
        strcpy(table.nodes[i].role, "default");
    }
    ck_assert_int_eq(rank_table_compute(&table, &e), 0);
    for (int i = 0; i < nnodes && i < NODES_MAX; i++) {
        struct node *n = &nodes[i];
        const struct mpi_events events = {.arg = n, .on_fence = on_fence, .on_abort = on_abort};
        memset(n, 0, sizeof(*n));
        n->pmi = pmi_new(&scope, "job 1", NULL, &events);
        pmi_begin(n->pmi, &table, i);
        for (int k = 0; k < nproc[i]; k++) {
            n->fds[k] = pmi_connect(n->pmi, k, &e);
            ck_assert_int_ge(n->fds[k], 0);
        }
    }
}

static void on_closed(void *closed)
{
    *(bool *)closed = true;
}

static void end(void)
{
    bool closed = false;
    for (int i = 0; i < NODES_MAX; i++) {
        for (int k = 0; k < RANKS_MAX; k++) {
            if (nodes[i].fds[k] > 0)
                close(nodes[i].fds[k]);
        }
        buf_fini(&nodes[i].value);
        pmi_free(nodes[i].pmi);
        nodes[i] = (struct node){0};
    }
    uvx_scope_close(&scope, on_closed, &closed);
    loop_run_until(&loop, &closed, 10, "the connections are closed");
    loop_teardown(&loop);
    rank_table_fini(&table);
}

static void say(struct node *n, int rank, const char *text)
{
    ck_assert_int_eq(write(n->fds[rank], text, strlen(text)), (ssize_t)strlen(text));
    loop_turns(&loop, 3);
}

/* The answers that a rank has received since the last call. */
static const char *heard(const struct node *n, int rank)
{
    static char text[8192];
    ssize_t len = recv(n->fds[rank], text, sizeof(text) - 1, MSG_DONTWAIT);
    text[len > 0 ? len : 0] = '\0';
    return text;
}

static void asks(struct node *n, int rank, const char *request, const char *want)
{
    say(n, rank, request);
    ck_assert_str_eq(heard(n, rank), want);
}

/* PMI-2: with the length in front. */
static const char *framed(const char *text)
{
    return test_text("%6zu%s", strlen(text), text);
}

static void asks_v2(struct node *n, int rank, const char *request, const char *want)
{
    say(n, rank, framed(request));
    ck_assert_str_eq(heard(n, rank), want ? framed(want) : "");
}

/* Every node is in the fence. */
static void gather(int nnodes)
{
    struct buf all = BUF_INIT;
    for (int i = 0; i < nnodes; i++) {
        ck_assert_int_eq(nodes[i].fences, 1);
        nodes[i].fences = 0;
        buf_u32(&all, (uint32_t)nodes[i].value.len);
        buf_put(&all, nodes[i].value.data, nodes[i].value.len);
    }
    for (int i = 0; i < nnodes; i++)
        pmi_gathered(nodes[i].pmi, rd_init(all.data, all.len), nnodes);
    buf_fini(&all);
}

#define INIT    "cmd=init pmi_version=1 pmi_subversion=1\n"
#define INIT_OK "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"

START_TEST(what_a_program_asks_at_its_start)
{
    begin(1, (int[]){2});
    struct node *n = &nodes[0];
    asks(n, 0, INIT, INIT_OK);
    asks(n, 0, "cmd=get_maxes\n", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n");
    asks(n, 0, "cmd=get_appnum\n", "cmd=appnum appnum=0\n");
    asks(n, 0, "cmd=get_my_kvsname\n", "cmd=my_kvsname kvsname=job_1_3\n");
    asks(n, 0, "cmd=get_universe_size\n", "cmd=universe_size size=2\n");
    asks(n, 0, "cmd=get kvsname=job_1_3 key=PMI_process_mapping\n",
         "cmd=get_result rc=0 msg=success value=(vector,(0,1,2))\n");
    asks(n, 0, "cmd=get kvsname=job_1_3 key=PMI_dead_processes\n",
         "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
    /* A value is what follows, up to the end of the line. */
    asks(n, 0, "cmd=put kvsname=job_1_3 key=a value=x y=z cmd=q\n",
         "cmd=put_result rc=0 msg=success\n");
    asks(n, 1, "cmd=get kvsname=job_1_3 key=a\n",
         "cmd=get_result rc=0 msg=success value=x y=z cmd=q\n");
    ck_assert_int_eq(n->aborts, 0);
    end();
}
END_TEST

START_TEST(puts_are_everywhere_after_a_fence)
{
    begin(3, (int[]){2, 1, 2});
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < table.nodes[i].nproc; k++) {
            asks(&nodes[i], k, INIT, INIT_OK);
            asks(&nodes[i], k, test_text("cmd=put kvsname=x key=r%d.%d value=v%d\n", i, k, i + k),
                 "cmd=put_result rc=0 msg=success\n");
            ck_assert_int_eq(nodes[i].fences, 0);
            asks(&nodes[i], k, "cmd=barrier_in\n", "");
        }
    }
    asks(&nodes[1], 0, "", "");
    gather(3);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < table.nodes[i].nproc; k++) {
            ck_assert_str_eq(heard(&nodes[i], k), "cmd=barrier_out rc=0\n");
            asks(&nodes[i], k, "cmd=get kvsname=x key=r2.1\n",
                 "cmd=get_result rc=0 msg=success value=v3\n");
            asks(&nodes[i], k, "cmd=barrier_in\n", "");
        }
        ck_assert_uint_eq(nodes[i].value.len, 0); /* nothing is sent twice */
    }
    gather(3);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < table.nodes[i].nproc; k++)
            ck_assert_str_eq(heard(&nodes[i], k), "cmd=barrier_out rc=0\n");
    }
    asks(&nodes[2], 1, "cmd=finalize\n", "cmd=finalize_ack\n");
    ck_assert_ptr_null(pmi_exit_fault(nodes[2].pmi, 1));
    end();
}
END_TEST

START_TEST(one_byte_at_a_time)
{
    static const char text[] = INIT "cmd=get_appnum\n";
    begin(1, (int[]){1});
    for (size_t i = 0; i < sizeof(text) - 1; i++)
        say(&nodes[0], 0, (char[]){text[i], '\0'});
    ck_assert_str_eq(heard(&nodes[0], 0), INIT_OK "cmd=appnum appnum=0\n");
    end();
}
END_TEST

START_TEST(mappings)
{
    static const struct {
        int nnodes;
        int nproc[6];
        const char *want;
    } cases[] = {
        {1, {4}, "(vector,(0,1,4))"},
        {2, {4, 4}, "(vector,(0,2,4))"},
        {4, {2, 2, 4, 4}, "(vector,(0,2,2),(2,2,4))"},
        {3, {1, 2, 1}, "(vector,(0,1,1),(1,1,2),(2,1,1))"},
    };
    char out[PMI_VALUE_MAX];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        begin(cases[i].nnodes, cases[i].nproc);
        pmi_mapping(&table, out);
        ck_assert_str_eq(out, cases[i].want);
        end();
    }
    /* A mapping that does not fit is not sent at all: MPICH then compares host names. */
    int many[1000];
    for (int i = 0; i < 1000; i++)
        many[i] = 1 + i % 2;
    begin(1000, many);
    pmi_mapping(&table, out);
    ck_assert_str_eq(out, "");
    end();
}
END_TEST

START_TEST(ends)
{
    begin(1, (int[]){3});
    struct node *n = &nodes[0];
    asks(n, 0, INIT, INIT_OK);
    asks(n, 0, "cmd=abort exitcode=7 message=it is over\n", "");
    ck_assert_int_eq(n->aborts, 1);
    ck_assert_int_eq(n->aborted_rank, 0);
    ck_assert_int_eq(n->code, 7);
    ck_assert_str_eq(n->how, "called MPI_Abort with code 7");
    ck_assert_str_eq(pmi_exit_fault(n->pmi, 0),
                     "exited with code 0 after MPI_Init, without MPI_Finalize");
    ck_assert_str_eq(pmi_exit_fault(n->pmi, 1),
                     "exited with code 0 without MPI_Init, which other ranks have called");
    asks(n, 2, INIT, "");
    ck_assert_str_eq(n->how, "called MPI_Init, and rank 1 had exited without it");
    end();

    begin(1, (int[]){2}); /* a program that only links an MPI */
    ck_assert_ptr_null(pmi_exit_fault(nodes[0].pmi, 0));
    ck_assert_ptr_null(pmi_exit_fault(nodes[0].pmi, 1));
    end();
}
END_TEST

START_TEST(refusals)
{
    begin(1, (int[]){2});
    struct node *n = &nodes[0];
    asks(n, 0, INIT, INIT_OK);
    asks(n, 0, "mcmd=spawn\nnprocs=1\nexecname=./a\ntotspawns=2\nspawnssofar=1\nargcnt=0\nendcmd\n",
         "");
    asks(n, 0, "mcmd=spawn\nnprocs=1\nexecname=./b\ntotspawns=2\nspawnssofar=2\nargcnt=0\nendcmd\n",
         "cmd=spawn_result rc=-1\n");
    asks(n, 0, "cmd=lookup_name service=s\n", "cmd=lookup_result rc=1 msg=service_not_found\n");
    asks(n, 0, "cmd=publish_name service=s port=p\n",
         "cmd=publish_result info=ok rc=0 msg=success\n");
    asks(n, 0, "cmd=publish_name service=s port=p\n",
         "cmd=publish_result info=error rc=1 msg=key_already_present\n");
    asks(n, 1, "cmd=lookup_name service=s\n",
         "cmd=lookup_result port=p info=ok rc=0 msg=success\n");
    asks(n, 0, "cmd=unpublish_name service=s\n", "cmd=unpublish_result info=ok rc=0 msg=success\n");
    asks(n, 0, test_text("cmd=put kvsname=x key=%065d value=v\n", 0),
         "cmd=put_result rc=-1 msg=key_or_value_too_long\n");
    asks(n, 0, test_text("cmd=put kvsname=x key=k value=%01025d\n", 0),
         "cmd=put_result rc=-1 msg=key_or_value_too_long\n");
    ck_assert_int_eq(n->aborts, 0);
    end();
}
END_TEST

START_TEST(what_is_not_pmi_ends_the_job)
{
    static const struct {
        const char *text, *how;
    } cases[] = {
        {"cmd=fly\n", "sent a PMI request that dlaunch does not know: cmd=fly"},
        {"\n", "sent a PMI request that dlaunch does not know: "},
        {"hello\n", "sent a PMI request that dlaunch does not know: hello"},
        {"cmd=barrier_in\ncmd=barrier_in\n", "entered a PMI barrier twice"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        begin(1, (int[]){2});
        say(&nodes[0], 1, cases[i].text);
        ck_assert_int_eq(nodes[0].aborts, 1);
        ck_assert_int_eq(nodes[0].aborted_rank, 1);
        ck_assert_str_eq(nodes[0].how, cases[i].how);
        end();
    }
    begin(1, (int[]){1}); /* a line without an end */
    char *line = xcalloc(1, 9000);
    memset(line, 'a', 8999);
    say(&nodes[0], 0, line);
    ck_assert_int_eq(nodes[0].aborts, 1);
    ck_assert_ptr_nonnull(strstr(nodes[0].how, "sent what is not PMI: aaaa"));
    free(line);
    end();

    begin(2, (int[]){1, 1}); /* values of another node that cannot be read */
    struct buf all = BUF_INIT;
    asks(&nodes[0], 0, INIT, INIT_OK);
    asks(&nodes[0], 0, "cmd=barrier_in\n", "");
    buf_u32(&all, 3);
    buf_put(&all, "abc", 3);
    pmi_gathered(nodes[0].pmi, rd_init(all.data, all.len), 1);
    ck_assert_int_eq(nodes[0].aborts, 1);
    buf_fini(&all);
    end();
}
END_TEST

START_TEST(pmi_2)
{
    begin(1, (int[]){2});
    struct node *n = &nodes[0];
    for (int k = 0; k < 2; k++)
        asks(n, k, "cmd=init pmi_version=2 pmi_subversion=0\n",
             "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n");
    asks_v2(n, 1, "cmd=fullinit;pmijobid=x;pmirank=1;threaded=FALSE;",
            "cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=1;size=2;appnum=0;"
            "debugged=FALSE;pmiverbose=FALSE;");
    asks_v2(n, 0, "cmd=job-getid;", "cmd=job-getid-response;rc=0;jobid=job_1_3;");
    asks_v2(n, 0, "cmd=info-getjobattr;key=PMI_process_mapping;",
            "cmd=info-getjobattr-response;rc=0;flag=TRUE;found=TRUE;value=(vector,(0,1,2));");
    asks_v2(n, 0, "cmd=info-getjobattr;key=universeSize;thrid=77;",
            "cmd=info-getjobattr-response;rc=0;flag=TRUE;found=TRUE;value=2;thrid=77;");
    asks_v2(n, 0, "cmd=info-getnodeattr;key=seg;wait=FALSE;",
            "cmd=info-getnodeattr-response;rc=0;flag=FALSE;found=FALSE;");
    asks_v2(n, 0, "cmd=info-getnodeattr;key=seg;wait=TRUE;", NULL);
    asks_v2(n, 1, "cmd=info-putnodeattr;key=seg;value=/x;", "cmd=info-putnodeattr-response;rc=0;");
    ck_assert_str_eq(heard(n, 0),
                     framed("cmd=info-getnodeattr-response;rc=0;flag=TRUE;found=TRUE;value=/x;"));
    asks_v2(n, 0, "cmd=kvs-put;key=k;value=a;;b;", "cmd=kvs-put-response;rc=0;");
    asks_v2(n, 0, "cmd=kvs-fence;", NULL);
    asks_v2(n, 1, "cmd=kvs-fence;", NULL);
    gather(1);
    for (int k = 0; k < 2; k++)
        ck_assert_str_eq(heard(n, k), framed("cmd=kvs-fence-response;rc=0;"));
    asks_v2(n, 1, "cmd=kvs-get;jobid=job_1_3;srcid=-1;key=k;",
            "cmd=kvs-get-response;rc=0;flag=TRUE;found=TRUE;value=a;;b;");
    asks_v2(n, 1, "cmd=spawn;ncmds=1;preputcount=0;ppkey=;",
            "cmd=spawn-response;rc=1;errmsg=spawn is not supported;");
    asks_v2(n, 0, "cmd=finalize;", "cmd=finalize-response;rc=0;");
    ck_assert_ptr_null(pmi_exit_fault(n->pmi, 0));
    asks_v2(n, 1, "cmd=abort;isworld=TRUE;msg=no way;", NULL);
    ck_assert_str_eq(n->how, "called MPI_Abort: no way");
    end();
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("pmi");
    TCase *tc = test_case(s, "pmi", 20);
    tcase_add_test(tc, what_a_program_asks_at_its_start);
    tcase_add_test(tc, puts_are_everywhere_after_a_fence);
    tcase_add_test(tc, one_byte_at_a_time);
    tcase_add_test(tc, mappings);
    tcase_add_test(tc, ends);
    tcase_add_test(tc, refusals);
    tcase_add_test(tc, what_is_not_pmi_ends_the_job);
    tcase_add_test(tc, pmi_2);
    return s;
}

TEST_MAIN(suite)
