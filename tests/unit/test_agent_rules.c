/* The agent's decisions on a made-up clock: what it does, in order, for each thing that happens. */
#include "tests/lib/test.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/rules/agent_rules.h"
#include "core/bytes.h"
#include "core/mem.h"

#define S UINT64_C(1000000000)

/* The node of a test. Actions that are answered at once are, as `answer` says. */
struct node {
    struct agent_rules *r;
    uint64_t now;
    char did[1 << 17]; /* the actions since the last look at them, "BEGIN START:0 STARTED" */
    bool begins;       /* BEGIN succeeds at once */
    int sweep_left;    /* what sweeps leave */
    bool may_end;      /* ENDED is answered with yes */
    bool cannot_start[4], drains;
    const char *trouble; /* why it cannot, if that costs the node */
    bool freeing;
    char logged[512]; /* the last line */
    int leave_code, starts[4], attempt[4];
};

static struct node N;

static const char *const names[] = {
    [AGENT_PREPARED] = "PREPARED", [AGENT_BEGIN] = "BEGIN",   [AGENT_START] = "START",
    [AGENT_STARTED] = "STARTED",   [AGENT_FAILED] = "FAILED", [AGENT_END_OPERATIONS] = "ABORT",
    [AGENT_KILL] = "KILL",         [AGENT_SWEEP] = "SWEEP",   [AGENT_STUCK] = "STUCK",
    [AGENT_ABANDON] = "ABANDON",   [AGENT_ENDED] = "ENDED",   [AGENT_DONE] = "DONE",
    [AGENT_STOPPED] = "STOPPED",   [AGENT_LEAVE] = "LEAVE",   [AGENT_LOOK] = "LOOK",
    [AGENT_FINISH] = "FINISH",     [AGENT_HURRY] = "HURRY",   [AGENT_CLOSE] = "CLOSE",
    [AGENT_DIE] = "DIE",
};

static void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *fmt, ...)
{
    size_t len = strlen(N.did);
    va_list ap;
    va_start(ap, fmt);
    if (len)
        N.did[len++] = ' ';
    vsnprintf(N.did + len, sizeof(N.did) - len, fmt, ap);
    va_end(ap);
}

static void start(int i, int attempt)
{
    N.starts[i]++;
    N.attempt[i] = attempt;
    if (N.cannot_start[i])
        agent_rules_not_started(N.r, i, N.drains, N.trouble, N.now);
    else
        agent_rules_started(N.r, i, N.now);
}

static void carry_out(const struct agent_action *a)
{
    switch (a->act) {
    case AGENT_LOG:
        snprintf(N.logged, sizeof(N.logged), "%s", a->text);
        return;
    case AGENT_STATE:
    case AGENT_LEASE:
        return;
    case AGENT_SIGNAL_GROUPS:
    case AGENT_SIGNAL_PROGRAMS:
        if (a->signo != SIGCONT)
            note("%s%d", a->act == AGENT_SIGNAL_GROUPS ? "SIG" : "PROGRAM-SIG", a->signo);
        return;
    case AGENT_STOPPED:
        note(a->none_ran ? "STOPPED:none" : "STOPPED");
        return;
    default:
        break;
    }
    if (a->local_rank >= 0)
        note("%s:%d", names[a->act], a->local_rank);
    else
        note("%s", names[a->act]);
    if (a->act == AGENT_BEGIN && N.begins)
        agent_rules_begun(N.r, N.now);
    else if (a->act == AGENT_START)
        start(a->local_rank, a->attempt);
    else if (a->act == AGENT_SWEEP)
        agent_rules_swept(N.r, N.sweep_left, N.now);
    else if (a->act == AGENT_STUCK)
        agent_rules_stuck(N.r, N.freeing, N.now);
    else if (a->act == AGENT_ENDED)
        agent_rules_ended(N.r, N.may_end, N.now);
    else if (a->act == AGENT_LEAVE)
        N.leave_code = a->exit_code;
}

static void go(void)
{
    struct agent_action a;
    while (agent_rules_next(N.r, &a))
        carry_out(&a);
    agent_rules_check(N.r);
}

/* What the agent has done since the last call. */
static const char *did(void)
{
    static char out[sizeof(N.did)];
    go();
    memcpy(out, N.did, sizeof(out));
    N.did[0] = '\0';
    return out;
}

#define DID(text) ck_assert_str_eq(did(), text)

/* Lets time pass, with the ticks that are due. */
static void pass(uint64_t ns)
{
    uint64_t end = N.now + ns, due;
    while ((due = agent_rules_deadline(N.r)) <= end) {
        N.now = due > N.now ? due : N.now;
        agent_rules_tick(N.r, N.now);
        go();
    }
    N.now = end;
}

static struct agent_rules_config config_of(int nproc)
{
    return (struct agent_rules_config){.nproc = nproc,
                                       .shutdown_ns = 30 * S,
                                       .timeout_s = 100,
                                       .warn_signal = SIGUSR1,
                                       .warn_name = "SIGUSR1",
                                       .warn_grace_ns = 5 * S,
                                       .host = "n0"};
}

static void begin(const struct agent_rules_config *c)
{
    agent_rules_free(N.r);
    N = (struct node){.now = 1000 * S, .begins = true, .may_end = true};
    N.r = agent_rules_new(c);
    agent_rules_joined(N.r);
    DID("");
}

/* A round of this many workers runs. */
static void run_round(void)
{
    ck_assert(agent_rules_prepare(N.r, N.now));
    agent_rules_ready(N.r);
    DID("PREPARED");
    ck_assert(agent_rules_run(N.r));
    did();
    ck_assert_int_eq(agent_rules_state(N.r), NODE_RUNNING);
}

static void begin_running(int nproc)
{
    const struct agent_rules_config c = config_of(nproc);
    begin(&c);
    run_round();
}

static void exit_with(int i, bool ok)
{
    ck_assert(agent_rules_exited(N.r, i, ok, N.now));
    go();
    ck_assert(agent_rules_drained(N.r, i, N.now));
    pass(0);
}

static void stop(enum stop_reason reason, bool restarting)
{
    struct rdzv_stop why = {.reason = reason, .restarting = restarting, .text = "why"};
    agent_rules_stop(N.r, &why, N.now);
}

static void request(void)
{
    agent_rules_request(N.r, STOP_SIGNAL, SIGTERM, "SIGTERM", false, N.now);
}

static void fini(void)
{
    agent_rules_free(N.r);
    N.r = NULL;
}

/* ------------------------------------------------------------------------------------- the round
 */

START_TEST(all_is_well)
{
    const struct agent_rules_config c = config_of(2);
    begin(&c);
    ck_assert(agent_rules_prepare(N.r, N.now));
    DID("");
    agent_rules_ready(N.r);
    agent_rules_ready(N.r); /* answered once */
    DID("PREPARED");
    ck_assert(agent_rules_run(N.r));
    DID("BEGIN START:0 START:1 STARTED");
    exit_with(0, true);
    DID("");
    exit_with(1, true);
    DID("SWEEP DONE");
    ck_assert_int_eq(agent_rules_state(N.r), NODE_EXIT_BARRIER);
    agent_rules_finish(N.r, 0, N.now);
    DID("FINISH");
    agent_rules_written(N.r, true);
    DID("CLOSE");
    ck_assert_int_eq(agent_rules_exit_status(N.r), 0);
}
END_TEST

START_TEST(a_worker_fails)
{
    begin_running(3);
    ck_assert(agent_rules_exited(N.r, 1, false, N.now));
    DID("ABORT:1 FAILED:1 SIG15");
    ck_assert(agent_rules_drained(N.r, 1, N.now));
    exit_with(0, false);
    DID(""); /* stopped, not failed */
    exit_with(2, true);
    DID("SWEEP ENDED STOPPED");
    ck_assert_int_eq(agent_rules_state(N.r), NODE_RENDEZVOUS);
    stop(STOP_FAILURE, true); /* needs no answer */
    DID("");
    run_round(); /* nothing of the last round is in it */
    ck_assert(!agent_rules_failed(N.r));
    ck_assert_int_eq(agent_rules_alive(N.r), 3);
}
END_TEST

START_TEST(a_worker_begins_to_fail)
{
    begin_running(2);
    agent_rules_failing(N.r, 0, N.now);
    agent_rules_failing(N.r, 0, N.now);
    DID("ABORT:0 FAILED:0 SIG15");
    exit_with(0, false); /* not reported again */
    DID("");
    exit_with(1, false);
    DID("SWEEP ENDED STOPPED");
}
END_TEST

START_TEST(a_worker_cannot_be_started)
{
    const struct agent_rules_config c = config_of(3);
    for (int drains = 0; drains < 2; drains++) {
        begin(&c);
        N.cannot_start[1] = true;
        N.drains = drains;
        agent_rules_prepare(N.r, N.now);
        agent_rules_ready(N.r);
        agent_rules_run(N.r);
        DID("PREPARED BEGIN START:0 START:1 ABORT:1 FAILED:1 SIG15");
        ck_assert_int_eq(N.starts[2], 0);
        ck_assert(agent_rules_drained(N.r, 1, N.now) == drains);
        exit_with(0, false);
        DID("SWEEP ENDED STOPPED");
    }
}
END_TEST

/* The trouble of a node that the others can do without: it leaves, and no failure is reported. */
START_TEST(a_node_cannot_start_a_worker)
{
    const struct agent_rules_config c = config_of(3);
    for (int drains = 0; drains < 2; drains++) {
        begin(&c);
        N.cannot_start[1] = true;
        N.drains = drains;
        N.trouble = "fork refused";
        agent_rules_prepare(N.r, N.now);
        agent_rules_ready(N.r);
        agent_rules_run(N.r);
        DID("PREPARED BEGIN START:0 START:1 LEAVE SIG15");
        ck_assert_str_eq(agent_rules_why(N.r), "n0: fork refused");
        ck_assert_int_eq(N.leave_code, 125);
        ck_assert_int_eq(N.starts[2], 0);
        ck_assert(agent_rules_drained(N.r, 1, N.now) == drains);
        exit_with(0, false);
        DID("SWEEP ENDED STOPPED");
    }
}
END_TEST

START_TEST(whom_a_worker_that_cannot_be_started_costs)
{
    const struct failure fork = {.kind = FAILURE_EXEC, .exit_code = 125};
    const struct failure program = {.kind = FAILURE_EXEC, .exit_code = 127};
    const struct failure exits = {.kind = FAILURE_EXIT, .exit_code = 125};
    ck_assert(agent_rules_costs_node(&fork, 3, 2));
    ck_assert(!agent_rules_costs_node(&fork, 2, 2));
    ck_assert(!agent_rules_costs_node(&fork, 1, 1));
    ck_assert(!agent_rules_costs_node(&program, 3, 2));
    ck_assert(!agent_rules_costs_node(&exits, 3, 2));
}
END_TEST

START_TEST(a_part_of_the_round_cannot_be_made)
{
    const struct agent_rules_config c = config_of(1);
    begin(&c);
    N.begins = false;
    agent_rules_prepare(N.r, N.now);
    agent_rules_ready(N.r);
    agent_rules_run(N.r);
    agent_rules_cannot(N.r, "no memory", N.now);
    DID("PREPARED BEGIN LEAVE");
    ck_assert_int_eq(N.leave_code, 125);
    ck_assert_str_eq(agent_rules_why(N.r), "n0: no memory");
    pass(0);
    DID("SWEEP ENDED STOPPED");
    ck_assert_int_eq(N.starts[0], 0);
    /* A warm interpreter that settles later starts nothing. */
    agent_rules_begun(N.r, N.now);
    DID("");
}
END_TEST

START_TEST(a_stop_while_the_round_waits_for_its_start)
{
    const struct agent_rules_config c = config_of(1);
    begin(&c);
    agent_rules_prepare(N.r, N.now);
    stop(STOP_NODE_LOST, true); /* prepared, not run */
    DID("STOPPED:none");
    agent_rules_ready(N.r);
    DID("");
    ck_assert(!agent_rules_run(N.r));
    N.begins = false;
    agent_rules_prepare(N.r, N.now);
    agent_rules_ready(N.r);
    ck_assert(agent_rules_run(N.r));
    DID("PREPARED BEGIN");
    stop(STOP_NODE_LOST, true);
    DID("ABORT");
    agent_rules_begun(N.r, N.now);
    pass(0);
    DID("SWEEP ENDED STOPPED");
    ck_assert_int_eq(N.starts[0], 0);
}
END_TEST

/* A node that has left answers a round that was prepared meanwhile, and runs none. */
START_TEST(a_round_after_the_leave)
{
    const struct agent_rules_config c = config_of(1);
    begin(&c);
    request();
    DID("LEAVE");
    ck_assert(!agent_rules_prepare(N.r, N.now));
    pass(0);
    DID("SWEEP ENDED STOPPED");
    ck_assert(!agent_rules_prepare(N.r, N.now));
    agent_rules_ready(N.r);
    ck_assert(!agent_rules_run(N.r));
    stop(STOP_SIGNAL, false);
    DID("STOPPED:none");
}
END_TEST

/* --------------------------------------------------------------------------- workers by themselves
 */

static void begin_alone(int nproc)
{
    struct agent_rules_config c = config_of(nproc);
    c.alone = true;
    begin(&c);
    run_round();
    memset(N.starts, 0, sizeof(N.starts));
}

START_TEST(a_worker_is_started_again)
{
    begin_alone(2);
    ck_assert(agent_rules_exited(N.r, 1, false, N.now));
    DID("FAILED:1");
    agent_rules_respawn(N.r, 1, 1, N.now); /* its output is not read yet */
    DID("");
    ck_assert(agent_rules_drained(N.r, 1, N.now));
    DID("START:1");
    ck_assert_int_eq(N.attempt[1], 1);
    exit_with(1, false);
    DID("FAILED:1");
    agent_rules_respawn(N.r, 1, 2, N.now);
    DID("START:1");
    exit_with(0, true);
    exit_with(1, true);
    DID("SWEEP DONE");
}
END_TEST

/* An order that comes late, or twice: the worker runs, or has succeeded. */
START_TEST(a_stale_order)
{
    begin_alone(2);
    agent_rules_respawn(N.r, 0, 1, N.now);
    exit_with(0, true);
    agent_rules_respawn(N.r, 0, 1, N.now);
    DID("");
    /* One that is still pending when the round stops does not reach the next one. */
    agent_rules_exited(N.r, 1, false, N.now);
    agent_rules_respawn(N.r, 1, 1, N.now);
    stop(STOP_MEMBERSHIP, true);
    agent_rules_drained(N.r, 1, N.now);
    pass(0);
    DID("FAILED:1 ABORT SWEEP ENDED STOPPED");
    run_round();
    memset(N.starts, 0, sizeof(N.starts));
    exit_with(1, true);
    exit_with(0, true);
    DID("SWEEP DONE");
    ck_assert_int_eq(N.starts[1], 0);
}
END_TEST

/* --------------------------------------------------------------------------------------- the stop
 */

START_TEST(requests_to_stop)
{
    begin_running(2);
    request();
    DID("LEAVE SIG15");
    ck_assert_int_eq(N.leave_code, 128 + SIGTERM);
    ck_assert_str_eq(N.logged,
                     "received SIGTERM: stopping 2 workers, SIGKILL after 30 s (repeat to "
                     "kill now)");
    N.now += S / 4;
    request(); /* the same one */
    DID("");
    N.now += S / 2;
    request();
    DID("KILL");
    exit_with(0, false);
    exit_with(1, false);
    DID("SWEEP STOPPED"); /* without waiting for what features want to ask */
    agent_rules_finish(N.r, 143, N.now);
    DID("FINISH HURRY");
    agent_rules_written(N.r, false);
    DID("CLOSE HURRY");
}
END_TEST

START_TEST(a_grace_ends)
{
    begin_running(2);
    request();
    did();
    exit_with(0, false);
    pass(29 * S);
    DID("");
    pass(2 * S);
    DID("KILL");
    ck_assert_str_eq(N.logged, "1 worker did not stop within 30 s: killing");
    exit_with(1, false);
    DID("SWEEP ENDED STOPPED");
}
END_TEST

/* Neither SIGTERM nor SIGKILL ends it: it hangs in execve() or in the kernel. */
START_TEST(a_worker_that_does_not_die)
{
    begin_running(2);
    exit_with(0, true);
    request();
    pass(31 * S);
    DID("LEAVE SIG15 KILL");
    ck_assert(agent_rules_tells_result(N.r));
    N.freeing = true; /* then it is given time */
    pass(60 * S);
    ck_assert(strstr(did(), "STUCK STUCK"));
    ck_assert_int_eq(agent_rules_state(N.r), NODE_STOPPING);
    N.freeing = false;
    pass(S);
    DID("STUCK ABANDON");
    ck_assert(!agent_rules_exited(N.r, 1, false, N.now));
    ck_assert(agent_rules_drained(N.r, 1, N.now));
    DID("ENDED STOPPED");
    ck_assert(!agent_rules_tells_result(N.r));
    agent_rules_finish(N.r, 143, N.now);
    did();
    ck_assert_int_eq(agent_rules_exit_status(N.r), 125);
}
END_TEST

START_TEST(an_exiting_worker_gets_ten_minutes)
{
    begin_running(1);
    N.freeing = true;
    agent_rules_kill(N.r, "kill", N.now);
    pass(599 * S);
    ck_assert(!strstr(did(), "ABANDON"));
    pass(2 * S);
    ck_assert(strstr(did(), "ABANDON"));
}
END_TEST

START_TEST(what_the_workers_have_left_behind)
{
    begin_running(1);
    N.sweep_left = 3;
    exit_with(0, true);
    pass(S / 100);
    ck_assert(strstr(did(), "SWEEP SWEEP SWEEP"));
    N.sweep_left = -1; /* no step is possible while an interpreter is forked */
    pass(S);
    did();
    N.sweep_left = 0;
    pass(S);
    DID("SWEEP DONE");
    /* It does not die. */
    begin_running(1);
    N.sweep_left = 1;
    exit_with(0, true);
    pass(11 * S);
    ck_assert(strstr(did(), "ABANDON DONE"));
}
END_TEST

START_TEST(a_request_when_the_end_is_decided)
{
    begin_running(2);
    agent_rules_exited(N.r, 0, false, N.now);
    stop(STOP_FAILURE, false); /* final */
    did();
    request();
    DID(""); /* the job's status stays that of the failure */
    ck_assert_str_eq(N.logged, "received SIGTERM: already stopping 1 worker (repeat to kill now)");
    N.now += S;
    request();
    DID("KILL");
    /* A restart is not the end. */
    begin_running(2);
    agent_rules_exited(N.r, 0, false, N.now);
    stop(STOP_FAILURE, true);
    did();
    request();
    DID("LEAVE");
}
END_TEST

/* A coordinator that was not told of the end prepares another round. */
START_TEST(a_request_when_the_end_does_not_come)
{
    for (int warned = 0; warned < 2; warned++) {
        begin_running(1);
        stop(STOP_NODE_LOST, false);
        if (warned)
            agent_rules_warn(N.r, "the time ends", N.now);
        else
            request();
        exit_with(0, false);
        DID("ABORT SIG15 SWEEP ENDED STOPPED");
        ck_assert(!agent_rules_prepare(N.r, N.now));
        pass(0);
        DID("LEAVE SWEEP ENDED STOPPED");
        ck_assert_int_eq(N.leave_code, warned ? 75 : 143);
    }
}
END_TEST

/* The process was stopped until the lease was over, and does not know it yet. */
START_TEST(no_start_when_the_lease_is_over)
{
    struct agent_rules_config c = config_of(1);
    c.alone = true;
    begin(&c);
    N.begins = false;
    agent_rules_prepare(N.r, N.now);
    agent_rules_ready(N.r);
    agent_rules_run(N.r);
    agent_rules_lease(N.r, N.now + S, N.now);
    N.now += 2 * S;
    agent_rules_begun(N.r, N.now);
    DID("PREPARED BEGIN");
    agent_rules_lease(N.r, N.now + S, N.now); /* it is not: the coordinator has answered */
    DID("START:0 STARTED");
    exit_with(0, false);
    N.now += 2 * S;
    agent_rules_respawn(N.r, 0, 1, N.now);
    DID("FAILED:0 SWEEP");
    agent_rules_lease(N.r, N.now + S, N.now);
    agent_rules_lease(N.r, N.now + 2 * S, N.now);
    DID("START:0");
}
END_TEST

START_TEST(the_time_is_over)
{
    struct agent_rules_config c = config_of(1);
    c.warned = true;
    begin(&c);
    run_round();
    agent_rules_warn(N.r, "the job's time ends in 60 s", N.now);
    agent_rules_warn(N.r, "the job's time ends in 59 s", N.now);
    DID("LEAVE PROGRAM-SIG10");
    ck_assert_int_eq(N.leave_code, 75);
    stop(STOP_TIME_LIMIT, false);
    DID("");
    pass(6 * S);
    DID("KILL");
    ck_assert_str_eq(N.logged, "1 worker did not stop within 5 s: killing");
    /* As another node says. */
    begin(&c);
    run_round();
    stop(STOP_TIME_LIMIT, false);
    DID("PROGRAM-SIG10");
    /* The scheduler's own signal. */
    begin_running(1);
    agent_rules_request(N.r, STOP_SIGNAL, SIGTERM, "SIGTERM", true, N.now);
    DID("LEAVE SIG15");
    ck_assert_int_eq(N.leave_code, 75);
}
END_TEST

START_TEST(a_timeout)
{
    struct agent_rules_config c = config_of(1);
    c.timeout_at_ns = 1100 * S;
    begin(&c);
    run_round();
    pass(101 * S);
    DID("LOOK");
    agent_rules_looked(N.r, N.now);
    DID("LEAVE SIG15");
    ck_assert_int_eq(N.leave_code, 124);
    exit_with(0, false);
    DID("SWEEP ENDED STOPPED");
    /* Readers are waited for until then, and for some seconds behind it. */
    agent_rules_finish(N.r, 124, N.now);
    DID("FINISH");
    pass(4 * S);
    DID("");
    pass(2 * S);
    DID("HURRY");
    /* Nobody looks: the job ends all the same. */
    begin(&c);
    run_round();
    pass(120 * S);
    DID("LOOK LEAVE SIG15");
    /* A further request does not wait for the look. */
    begin(&c);
    run_round();
    agent_rules_request(N.r, STOP_SIGNAL, SIGQUIT, "SIGQUIT", false, N.now);
    DID("LOOK");
    N.now += S;
    request();
    DID("LEAVE SIG3 KILL");
    /* A worker fails meanwhile: the job ends, it does not start again. */
    begin(&c);
    run_round();
    pass(101 * S);
    agent_rules_failing(N.r, 0, N.now);
    DID("LOOK ABORT:0 FAILED:0 LEAVE SIG15");
    ck_assert_int_eq(N.leave_code, 124);
    /* In the rendezvous. */
    begin(&c);
    pass(101 * S);
    DID("LEAVE SWEEP ENDED STOPPED");
    /* A job that ends already ends as it does. */
    begin(&c);
    run_round();
    request();
    did();
    pass(101 * S);
    DID("KILL STUCK ABANDON");
}
END_TEST

START_TEST(features_that_do_not_answer)
{
    begin_running(1);
    N.may_end = false;
    request();
    exit_with(0, false);
    DID("LEAVE SIG15 SWEEP ENDED");
    agent_rules_ended(N.r, true, N.now);
    DID("STOPPED");
    begin_running(1);
    N.may_end = false;
    request();
    exit_with(0, false);
    did();
    pass(31 * S);
    DID("STOPPED");
    begin_running(1);
    N.may_end = false;
    request();
    exit_with(0, false);
    did();
    N.now += S;
    request();
    DID("KILL STOPPED");
}
END_TEST

START_TEST(a_fence_and_the_guardian)
{
    begin_running(1);
    stop(STOP_COORDINATOR_LOST, true);
    agent_rules_fence(N.r, N.now);
    DID("ABORT SIG15 KILL");
    begin_running(1);
    agent_rules_guardian_gone(N.r, N.now);
    DID("DIE");
    begin_running(1);
    exit_with(0, true);
    agent_rules_finish(N.r, 0, N.now);
    did();
    agent_rules_guardian_gone(N.r, N.now);
    DID("HURRY");
}
END_TEST

/* After an end that was told, and an election, the job goes on: it can be stopped as ever. */
START_TEST(an_end_that_does_not_come)
{
    begin_running(1);
    stop(STOP_COORDINATOR_LOST, false);
    exit_with(0, false);
    did();
    run_round();
    ck_assert_ptr_null(agent_rules_why(N.r));
    request();
    DID("LEAVE SIG15");
}
END_TEST

/* ------------------------------------------------------------------------------------------ storms
 */

enum { STORM_WORKERS = 3 };

/* Workers of a storm: what they do comes in any order. */
struct fake {
    bool alive, open; /* its process; its pipes */
    bool stubborn;    /* SIGTERM does not end it */
    bool immortal;    /* SIGKILL does not, either */
    bool failing;     /* its process has begun to end */
    bool succeeded;   /* in this round */
};

struct storm {
    struct fake w[STORM_WORKERS];
    uint64_t seed, random;
    bool finished, closed, left, looking, asking;
};

static struct storm T;

static unsigned dice(unsigned sides)
{
    T.random ^= T.random << 13;
    T.random ^= T.random >> 7;
    T.random ^= T.random << 17;
    return (unsigned)(T.random >> 33) % sides;
}

static void storm_start(const struct agent_action *a)
{
    struct fake *w = &T.w[a->local_rank];
    ck_assert_msg(!w->alive && !w->open && !w->succeeded && !T.left && !T.finished,
                  "seed %llu: worker %d starts: alive %d, open %d, succeeded %d, left %d",
                  (unsigned long long)T.seed, a->local_rank, w->alive, w->open, w->succeeded,
                  T.left);
    if (dice(8) == 0) {
        w->open = dice(2);
        agent_rules_not_started(N.r, a->local_rank, w->open, dice(2) ? "no process" : NULL, N.now);
        return;
    }
    *w = (struct fake){.alive = true, .open = true, .stubborn = !dice(4), .immortal = !dice(20)};
    agent_rules_started(N.r, a->local_rank, N.now);
}

static void storm_signal(int signo)
{
    for (int i = 0; i < STORM_WORKERS; i++) {
        if (signo == SIGKILL ? !T.w[i].immortal : !T.w[i].stubborn && signo != SIGCONT)
            T.w[i].stubborn = T.w[i].immortal = false;
    }
}

static bool storm_processes(void)
{
    bool any = false;
    for (int i = 0; i < STORM_WORKERS; i++)
        any |= T.w[i].alive;
    return any;
}

static void storm_act(const struct agent_action *a)
{
    switch (a->act) {
    case AGENT_BEGIN:
        for (int i = 0; i < STORM_WORKERS; i++)
            ck_assert(!T.w[i].alive && !T.w[i].open);
        memset(T.w, 0, sizeof(T.w));
        if (dice(10) == 0)
            agent_rules_cannot(N.r, "no disk", N.now);
        else if (dice(2))
            agent_rules_begun(N.r, N.now);
        break;
    case AGENT_START:
        storm_start(a);
        break;
    case AGENT_SIGNAL_GROUPS:
    case AGENT_SIGNAL_PROGRAMS:
        storm_signal(a->signo);
        break;
    case AGENT_KILL:
        storm_signal(SIGKILL);
        break;
    case AGENT_SWEEP:
        agent_rules_swept(N.r, (int)dice(4) - 1, N.now);
        break;
    case AGENT_STUCK:
        agent_rules_stuck(N.r, dice(2), N.now);
        break;
    case AGENT_ABANDON:
        for (int i = 0; i < STORM_WORKERS; i++)
            T.w[i].alive = false;
        T.left = true;
        break;
    case AGENT_LEAVE:
        T.left = true;
        break;
    case AGENT_LOOK:
        T.looking = true;
        break;
    case AGENT_ENDED:
        ck_assert(!storm_processes());
        T.asking = true;
        break;
    case AGENT_DONE:
    case AGENT_STOPPED:
        ck_assert(!storm_processes());
        break;
    case AGENT_CLOSE:
        T.closed = true;
        break;
    default:
        break;
    }
}

static void storm_go(void)
{
    struct agent_action a;
    while (agent_rules_next(N.r, &a))
        storm_act(&a);
    agent_rules_check(N.r);
}

static void storm_of_worker(int i)
{
    struct fake *w = &T.w[i];
    if (w->alive && !w->stubborn && !w->immortal && dice(3) == 0) {
        bool ok = !w->failing && dice(2);
        w->alive = false;
        w->succeeded = agent_rules_exited(N.r, i, ok, N.now) && ok;
    } else if (w->alive && dice(6) == 0) {
        w->failing = true;
        agent_rules_failing(N.r, i, N.now);
    } else if (!w->alive && w->open && dice(2)) {
        w->open = false;
        agent_rules_drained(N.r, i, N.now);
    }
}

static void storm_event(bool ending)
{
    static const enum stop_reason reasons[] = {STOP_FAILURE, STOP_NODE_LOST, STOP_MEMBERSHIP,
                                               STOP_TIME_LIMIT, STOP_COORDINATOR_LOST};
    switch (dice(ending ? 8 : 16)) {
    case 0:
    case 1:
    case 2:
    case 3:
        storm_of_worker((int)dice(STORM_WORKERS));
        break;
    case 4:
        agent_rules_begun(N.r, N.now);
        break;
    case 5:
        if (T.looking)
            agent_rules_looked(N.r, N.now);
        break;
    case 6:
        if (T.asking)
            agent_rules_ended(N.r, dice(2), N.now);
        break;
    case 7:
        if (dice(3) == 0)
            agent_rules_fence(N.r, N.now);
        break;
    case 8:
        if (!T.finished)
            agent_rules_prepare(N.r, N.now);
        break;
    case 9:
        agent_rules_ready(N.r);
        break;
    case 10:
        agent_rules_run(N.r);
        break;
    case 11:
        agent_rules_respawn(N.r, (int)dice(STORM_WORKERS), 1 + (int)dice(3), N.now);
        break;
    case 12:
        if (!dice(2) && !T.finished && agent_rules_state(N.r) != NODE_INIT)
            stop(reasons[dice(ARRAY_LEN(reasons))], dice(2));
        break;
    default:
        break;
    }
    storm_go();
}

static void storm_time(uint64_t ns)
{
    uint64_t end = N.now + ns, due;
    while ((due = agent_rules_deadline(N.r)) <= end) {
        N.now = due > N.now ? due : N.now;
        agent_rules_tick(N.r, N.now);
        storm_go();
    }
    N.now = end;
}

/* From now on the rendezvous finishes as soon as nothing of this node is alive. */
static void storm_end(void)
{
    if (agent_rules_state(N.r) == NODE_RENDEZVOUS || agent_rules_state(N.r) == NODE_EXIT_BARRIER) {
        T.finished = true;
        agent_rules_finish(N.r, 143, N.now);
        storm_go();
    }
}

static void one_storm(uint64_t seed)
{
    struct agent_rules_config c = config_of(STORM_WORKERS);
    N = (struct node){.now = 1000 * S};
    T = (struct storm){.seed = seed, .random = seed * 0x9e3779b97f4a7c15u + 1};
    c.alone = dice(2);
    c.warned = dice(2);
    c.timeout_at_ns = dice(2) ? N.now + dice(200) * S : 0;
    N.r = agent_rules_new(&c);
    agent_rules_joined(N.r);
    storm_go();
    for (unsigned n = dice(200); n > 0; n--) {
        storm_event(false);
        storm_time(dice(5) ? 0 : dice(4000) * (S / 1000));
    }
    /* A request to stop ends the job: after the grace, what is not killable is given up. */
    uint64_t begun = N.now;
    request();
    storm_go();
    if (!agent_rules_leaving(N.r)) { /* its end was decided before */
        stop(STOP_FAILURE, false);
        storm_go();
    }
    while (!T.finished && N.now - begun < 700 * S) {
        storm_event(true);
        storm_time(dice(3) ? 0 : dice(500) * (S / 1000));
        for (int i = 0; i < STORM_WORKERS; i++)
            storm_of_worker(i);
        storm_go();
        storm_end();
    }
    ck_assert_msg(T.finished, "seed %llu: %s after %llu s", (unsigned long long)seed,
                  agent_rules_state_name(N.r), (unsigned long long)((N.now - begun) / S));
    agent_rules_written(N.r, dice(2));
    storm_go();
    ck_assert(T.closed);
    agent_rules_free(N.r);
    N.r = NULL;
}

/* Everything in any order. STORMS and STORM_SEED choose how many, and the first. */
START_TEST(storms)
{
    const char *number = getenv("STORMS"), *first = getenv("STORM_SEED");
    uint64_t from = first ? strtoull(first, NULL, 10) : 1;
    uint64_t n = number ? strtoull(number, NULL, 10) : 20000;
    for (uint64_t seed = from; seed < from + n; seed++)
        one_storm(seed);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("agent_rules");
    TCase *tc = test_case(s, "rules", 20);
    tcase_add_checked_fixture(tc, NULL, fini);
    tcase_add_test(tc, all_is_well);
    tcase_add_test(tc, a_worker_fails);
    tcase_add_test(tc, a_worker_begins_to_fail);
    tcase_add_test(tc, a_worker_cannot_be_started);
    tcase_add_test(tc, a_node_cannot_start_a_worker);
    tcase_add_test(tc, whom_a_worker_that_cannot_be_started_costs);
    tcase_add_test(tc, a_part_of_the_round_cannot_be_made);
    tcase_add_test(tc, a_stop_while_the_round_waits_for_its_start);
    tcase_add_test(tc, a_round_after_the_leave);
    tcase_add_test(tc, a_worker_is_started_again);
    tcase_add_test(tc, a_stale_order);
    tcase_add_test(tc, requests_to_stop);
    tcase_add_test(tc, a_grace_ends);
    tcase_add_test(tc, a_worker_that_does_not_die);
    tcase_add_test(tc, an_exiting_worker_gets_ten_minutes);
    tcase_add_test(tc, what_the_workers_have_left_behind);
    tcase_add_test(tc, a_request_when_the_end_does_not_come);
    tcase_add_test(tc, no_start_when_the_lease_is_over);
    tcase_add_test(tc, a_request_when_the_end_is_decided);
    tcase_add_test(tc, the_time_is_over);
    tcase_add_test(tc, a_timeout);
    tcase_add_test(tc, features_that_do_not_answer);
    tcase_add_test(tc, a_fence_and_the_guardian);
    tcase_add_test(tc, an_end_that_does_not_come);
    tc = test_case(s, "storms", 120);
    tcase_add_test(tc, storms);
    return s;
}

TEST_MAIN(suite)
