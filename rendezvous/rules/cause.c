#include "rendezvous/rules/cause.h"

#include <assert.h>
#include <signal.h>
#include <string.h>

static const struct cause_row rows[CAUSES] = {
    [CAUSE_NONE] = {"", ACTION_RESTART, false, ""},
    [CAUSE_EXIT] = {"exit", ACTION_RESTART, true, "a worker exited with a code other than 0"},
    [CAUSE_CRASH] = {"crash", ACTION_RESTART, true,
                     "a fault of the program killed a worker (SIGSEGV, SIGABRT, ...)"},
    [CAUSE_KILLED] = {"killed", ACTION_RESTART, true,
                      "a signal from outside of the job killed a worker"},
    [CAUSE_OOM] = {"oom", ACTION_RESTART, true, "the kernel killed a worker for want of memory"},
    [CAUSE_EXEC] = {"exec", ACTION_END, true, "the program could not be started"},
    [CAUSE_EARLY_EXIT] = {"early-exit", ACTION_RESTART, true,
                          "a worker exited with 0 while other workers needed it"},
    [CAUSE_MISMATCH] = {"mismatch", ACTION_RESTART, true,
                        "workers called different collective operations"},
    [CAUSE_NODE_LOST] = {"node-lost", ACTION_RESTART, true,
                         "a node's launcher died or stopped answering"},
    [CAUSE_MEMBERSHIP] = {"membership", ACTION_RESTART, false, "a node joined or left the job"},
    [CAUSE_SIGNAL] = {"signal", ACTION_END, false, "a signal told dlaunch to stop"},
    [CAUSE_TIMEOUT] = {"timeout", ACTION_END, false, "--timeout expired"},
    [CAUSE_REQUEST] = {"request", ACTION_END, false, "dlaunchctl stopped the job"},
    [CAUSE_COORDINATOR_LOST] = {"coordinator-lost", ACTION_END, false,
                                "no coordinator could be elected"},
    [CAUSE_RENDEZVOUS] = {"rendezvous", ACTION_END, false, "the nodes did not meet in time"},
    [CAUSE_INTERNAL] = {"internal", ACTION_END, false,
                        "dlaunch failed, or a resource of a node was exhausted"},
    [CAUSE_TIME_LIMIT] = {"time-limit", ACTION_END, false,
                          "the time that the scheduler gives the job ends"},
    [CAUSE_GPU] = {"gpu", ACTION_EVICT, true, "a GPU failed, or a link of it"},
};

static const char *const actions[ACTIONS] = {[ACTION_DEFAULT] = "default",
                                             [ACTION_RESTART] = "restart",
                                             [ACTION_END] = "end",
                                             [ACTION_EVICT] = "evict"};

const struct cause_row *cause_row(enum cause c)
{
    assert(c < CAUSES);
    return &rows[c];
}

const char *cause_name(enum cause c)
{
    return cause_row(c)->name;
}

enum cause cause_find(const char *name, size_t len)
{
    for (enum cause c = CAUSE_NONE + 1; c < CAUSES; c++) {
        if (strlen(rows[c].name) == len && memcmp(rows[c].name, name, len) == 0)
            return c;
    }
    return CAUSE_NONE;
}

const char *cause_action_name(enum cause_action a)
{
    assert(a < ACTIONS);
    return actions[a];
}

bool cause_action_find(const char *name, size_t len, enum cause_action *out)
{
    for (enum cause_action a = ACTION_DEFAULT + 1; a < ACTIONS; a++) {
        if (strlen(actions[a]) == len && memcmp(actions[a], name, len) == 0) {
            *out = a;
            return true;
        }
    }
    return false;
}

enum cause_action cause_action_of(const struct cause_actions *a, enum cause c)
{
    assert(c < CAUSES);
    return a->of[c] != ACTION_DEFAULT ? (enum cause_action)a->of[c] : rows[c].action;
}

/* Whether the kernel or the program itself sends this signal when the program is at fault. */
static bool is_fault(int signo)
{
    switch (signo) {
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGABRT:
    case SIGTRAP:
    case SIGSYS:
    case SIGPIPE:
    case SIGXCPU:
    case SIGXFSZ:
        return true;
    default:
        return false;
    }
}

enum cause cause_of_failure(const struct failure *f)
{
    if (f->gpu && f->kind != FAILURE_STOPPED)
        return CAUSE_GPU;
    switch (f->kind) {
    case FAILURE_EXIT:
        if (f->mismatch)
            return CAUSE_MISMATCH;
        return f->exit_code ? CAUSE_EXIT : CAUSE_EARLY_EXIT;
    case FAILURE_SIGNAL:
        if (f->mismatch && is_fault(f->signal)) /* abort() after the error */
            return CAUSE_MISMATCH;
        return f->oom ? CAUSE_OOM : is_fault(f->signal) ? CAUSE_CRASH : CAUSE_KILLED;
    case FAILURE_EXEC:
        return CAUSE_EXEC;
    case FAILURE_NODE:
        return CAUSE_NODE_LOST;
    case FAILURE_STOPPED:
    case FAILURE_KINDS:
        break;
    }
    return CAUSE_NONE;
}

enum cause cause_of_stop(enum stop_reason reason, const struct failure *first)
{
    static const enum cause causes[STOP_REASONS] = {
        [STOP_FAILURE] = CAUSE_EXIT,
        [STOP_NODE_LOST] = CAUSE_NODE_LOST,
        [STOP_MEMBERSHIP] = CAUSE_MEMBERSHIP,
        [STOP_SIGNAL] = CAUSE_SIGNAL,
        [STOP_TIMEOUT] = CAUSE_TIMEOUT,
        [STOP_REQUEST] = CAUSE_REQUEST,
        [STOP_COORDINATOR_LOST] = CAUSE_COORDINATOR_LOST,
        [STOP_RENDEZVOUS] = CAUSE_RENDEZVOUS,
        [STOP_INTERNAL] = CAUSE_INTERNAL,
        [STOP_TIME_LIMIT] = CAUSE_TIME_LIMIT,
    };
    enum cause c = first ? cause_of_failure(first) : CAUSE_NONE;
    return c != CAUSE_NONE ? c : causes[reason];
}
