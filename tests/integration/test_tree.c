/* A job of eight launchers that form a tree in which each has two children at most: launcher 7 is
 * below 3, which is below 1, which is below the coordinator. */
#include "tests/integration/job.h"

#include <stdlib.h>

enum { N = 8 };

static char *env[2]; /* where the control sockets are */

static void setup(void)
{
    env[0] = test_text("XDG_RUNTIME_DIR=%s", tmpdir());
}

static void start_all(struct cluster *c, const char *command)
{
    *c = (struct cluster){.n = N, .port = free_port()};
    for (int i = 0; i < N; i++)
        dlaunch_start(&c->node[i], env,
                      "--nnodes 4:8 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d --node_rank "
                      "%d --nproc_per_node 1 --tree_width 2 --verbose --rdzv_conf "
                      "is_host=%d,last_call_timeout=3,keep_alive_interval=1,"
                      "keep_alive_max_attempt=4 %s",
                      c->port, i, i == 0, command);
}

static char *ctl(const struct proc *p, const char *verb, const char *argument)
{
    struct proc ctl;
    proc_start(&ctl,
               ARGV(build_path("dlaunchctl"), "-p", test_text("%d", (int)p->pid), "-o", "json",
                    (char *)verb, (char *)argument),
               env, 0);
    expect_status(&ctl, 0, 30);
    char *text = test_text("%s", ctl.out);
    proc_fini(&ctl);
    return text;
}

/* The nodes that top shows. */
static int nodes_of_top(const struct proc *p, bool *complete)
{
    json_t *j = json_loads(ctl(p, "top", NULL), 0, NULL);
    int n = (int)json_array_size(json_object_get(j, "nodes"));
    *complete = json_is_true(json_object_get(j, "complete"));
    json_decref(j);
    return n;
}

struct goal {
    const struct proc *p;
    int nodes;
};

static bool top_shows(void *arg)
{
    const struct goal *g = arg;
    bool complete;
    return nodes_of_top(g->p, &complete) == g->nodes && complete;
}

static int ranks_with_stacks(const struct proc *p)
{
    int n = 0;
    size_t i;
    const json_t *rank;
    json_t *j = json_loads(ctl(p, "stacks", NULL), 0, NULL);
    json_array_foreach(json_object_get(j, "ranks"), i, rank) n += json_number(rank, "pid") > 0;
    json_decref(j);
    return n;
}

/* The node's user ends the job. */
static void end_all(struct cluster *c, int by)
{
    ctl(&c->node[by], "stop", NULL);
    for (int i = 0; i < N; i++)
        proc_wait(&c->node[i], 60);
    cluster_fini(c);
}

/* Asked on the coordinator, an inner node and a leaf, all nodes answer; a signal reaches each
 * worker once. */
START_TEST(all_nodes_answer)
{
    static const int asked[] = {0, 1, 7};
    struct cluster c;
    start_all(&c, "%W append %T/up trap USR1 %T/signals pause");
    wait_lines(tmppath("up"), N, 60);
    for (size_t i = 0; i < ARRAY_LEN(asked); i++) {
        wait_until(top_shows, &(struct goal){&c.node[asked[i]], N}, 60, "all nodes in top");
        ck_assert_int_eq(ranks_with_stacks(&c.node[asked[i]]), N);
        ctl(&c.node[asked[i]], "signal", "USR1");
        wait_lines(tmppath("signals"), N * ((int)i + 1), 60);
    }
    ck_assert_int_eq(count_lines(tmppath("signals")), N * (int)ARRAY_LEN(asked));
    for (int i = 0; i < N; i++)
        proc_poll(&c.node[i]);
    for (int i = 3; i < N; i++)
        expect_text(c.node[i].err, "this node is below the one at 127.0.0.1 port ");
    for (int i = 0; i < N; i++)
        expect_no_text(c.node[i].err, "the one above this node");
    end_all(&c, 7);
}
END_TEST

/* Kills a node. The next round has all others, which top shows on the first and the last of them.
 */
static void lose_node(int victim)
{
    struct cluster c;
    start_all(&c, "--max_restarts 1 %W append %T/up pause");
    wait_lines(tmppath("up"), N, 60);
    ck_assert_int_eq(kill(c.node[victim].pid, SIGKILL), 0);
    wait_lines(tmppath("up"), N + N - 1, 60);
    wait_until(top_shows, &(struct goal){&c.node[7], N - 1}, 60, "the nodes that are left in top");
    wait_until(top_shows, &(struct goal){&c.node[victim ? 0 : 1], N - 1}, 60,
               "the nodes that are left in top");
    end_all(&c, 7);
}

/* The next round has a tree without the node. */
START_TEST(an_inner_node_is_killed)
{
    lose_node(1);
}
END_TEST

/* The coordinator that is elected has a tree under it. */
START_TEST(the_coordinator_is_killed)
{
    lose_node(0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("tree_of_launchers");
    TCase *tc = test_case(s, "tree", 120);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, all_nodes_answer);
    tcase_add_test(tc, an_inner_node_is_killed);
    tcase_add_test(tc, the_coordinator_is_killed);
    return s;
}

TEST_MAIN(suite)
