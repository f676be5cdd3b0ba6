/* Features of the agent by themselves, on a node that is made up. */
#include "tests/lib/test.h"

#include <string.h>

#include "agent/report/events.h"
#include "core/uvx.h"
#include "tests/lib/loop.h"

#define EVENTS 20000

static uv_loop_t loop;
static struct uvx_scope scope;
static struct job_spec job = {.host = "here", .name = "job", .rdzv = {.run_id = "j"}};
static struct node node;
static void *state;

static uint64_t no_output(struct node *n, int local_rank)
{
    (void)n, (void)local_rank;
    return 0;
}

static void on_change(void *arg)
{
    (void)arg;
    if (state)
        events_feature.log_grown(state);
}

static void on_closed(void *closed)
{
    *(bool *)closed = true;
}

static int lines_of(const char *path)
{
    char *text = read_file(path);
    int n = 0;
    for (const char *p = text; (p = strchr(p, '\n')); p++)
        n++;
    free(text);
    return n;
}

static bool has_lines(void *n)
{
    return lines_of(job.events_path) >= *(int *)n;
}

/* A log that comes as a whole is written in pieces, between which the loop does other things. */
START_TEST(a_long_log)
{
    static const struct node_calls calls = {.first_output = no_output};
    struct err e = ERR_INIT;
    struct node_id id = {{1}};
    struct rdzv_result result = {.text = "", .exit_code = 0};
    bool closed = false;
    job.events_path = tmppath("events");
    loop_setup(&loop);
    uvx_scope_init(&scope, &loop);
    node = (struct node){
        .calls = &calls, .job = &job, .loop = &loop, .scope = &scope, .state_name = "RUNNING"};
    event_log_init(&node.log, &id);
    node.log.on_change = on_change;
    event_log_lead(&node.log, true);
    ck_assert_msg(events_feature.open(&state, &node, &e) == 0, "%s", e.msg);
    for (int i = 0; i < EVENTS; i++)
        node_event(&node, (struct event){.name = EVENT_NODE_STATE, .rank = -1, .text = "RUNNING"});
    /* In the turn of the loop in which they came, and in each one after it, of which one call of
     * uv_run() may make two. A thread writes them. */
    int written = 0;
    for (int most = 1024; written <= EVENTS; most += 1024) {
        int want = written + 512 <= EVENTS ? written + 512 : EVENTS + 1;
        wait_until(has_lines, &want, 10, "lines are written");
        written = lines_of(job.events_path);
        ck_assert_int_le(written, most);
        uv_run(&loop, UV_RUN_ONCE);
    }
    ck_assert_int_eq(written, EVENTS + 1); /* and `submit` */
    events_feature.finish(state, &result);
    uvx_scope_close(&scope, on_closed, &closed);
    loop_run_until(&loop, &closed, 10, "the feature is closed");
    events_feature.free(state);
    event_log_fini(&node.log);
    loop_teardown(&loop);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("features");
    TCase *tc = test_case(s, "events", 30);
    tcase_add_test(tc, a_long_log);
    return s;
}

TEST_MAIN(suite)
