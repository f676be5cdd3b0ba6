/* dlaunchctl.c: asks running launchers for their state and their events, and passes requests to
 * them. dlaunchctl(1).
 *
 * It finds them by their control sockets (control_dir.h), so it sees the jobs of this user on this
 * host. Exit status: 0; 1 no such job, or it does not answer; 2 usage; 124 timeout. */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/parse.h"
#include "launcher/control/ctl_events.h"
#include "launcher/control/ctl_jobs.h"
#include "launcher/control/ctl_top.h"
#include "rendezvous/rules/event.h"

struct options {
    const char *which;    /* the job that is meant; NULL: not said */
    const char *argument; /* of the verb; NULL */
    const char *ranks;
    bool json, wait, follow, ready;
    double timeout; /* negative: none */
};

/* -------------------------------------------------------------------------------------- display */

/* "12 s", "3 min 12 s", "5 h 2 min", "2 d 3 h". Returns out. */
static const char *duration(double seconds, char out[32])
{
    unsigned long s = seconds > 0 ? (unsigned long)(seconds < 1e12 ? seconds : 1e12) : 0;
    if (s < 60)
        snprintf(out, 32, "%lu s", s);
    else if (s < 3600)
        snprintf(out, 32, "%lu min %lu s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, 32, "%lu h %lu min", s / 3600, s / 60 % 60);
    else
        snprintf(out, 32, "%lu d %lu h", s / 86400, s / 3600 % 24);
    return out;
}

static double seconds_of(const json_t *j, const char *key)
{
    return json_number_value(json_object_get(j, key));
}

/* A run id that is long (a random one, mostly) is cut in the list; -p shows it whole. */
static const char *short_id(const char *id, char out[24])
{
    if (strlen(id) <= 14)
        return id;
    snprintf(out, 24, "%.11s...", id);
    return out;
}

static void print_list(const struct jobs *jobs)
{
    printf("%-8s %-14s %-7s %-7s %-8s %-12s %-13s %s\n", "PID", "RUN ID", "NODE", "WORKERS",
           "RESTARTS", "STATE", "RUNNING FOR", "PROGRAM");
    for (size_t i = 0; i < jobs->n; i++) {
        const json_t *s = jobs->job[i].status;
        char pid[24] = "-", node[48], restarts[48], up[32], id[24];
        if (jobs->job[i].pid)
            snprintf(pid, sizeof(pid), "%ld", jobs->job[i].pid);
        if (number_of(s, "node") >= 0)
            snprintf(node, sizeof(node), "%ld of %ld", number_of(s, "node"), number_of(s, "nodes"));
        else
            strcpy(node, "-"); /* not in a round yet */
        snprintf(restarts, sizeof(restarts), "%ld of %ld", number_of(s, "restarts"),
                 number_of(s, "max_restarts"));
        printf("%-8s %-14s %-7s %-7zu %-8s %-12s %-13s %s\n", pid,
               short_id(text_of(s, "run_id"), id), node,
               json_array_size(json_object_get(s, "workers")), restarts, text_of(s, "state"),
               duration(seconds_of(s, "elapsed_s"), up), text_of(s, "program"));
    }
}

/* "2026-11-25 05:31:02" */
static const char *time_text(double seconds, char out[32])
{
    time_t t = (time_t)seconds;
    struct tm tm;
    if (!localtime_r(&t, &tm) || !strftime(out, 32, "%F %T", &tm))
        strcpy(out, "?");
    return out;
}

/* Describes how a job ended, for a column. */
static const char *outcome(const json_t *s, char out[32])
{
    long status = number_of(s, "exit_status");
    if (status == 0)
        return "SUCCEEDED";
    snprintf(out, 32, "FAILED (%ld)", status);
    return out;
}

static void print_ended(const struct jobs *jobs)
{
    printf("%-8s %-14s %-12s %-20s %-13s %s\n", "PID", "RUN ID", "RESULT", "ENDED", "RAN FOR",
           "PROGRAM");
    for (size_t i = 0; i < jobs->nended; i++) {
        const json_t *s = jobs->ended[i].status;
        char id[24], how[32], at[32], up[32];
        printf("%-8ld %-14s %-12s %-20s %-13s %s\n", number_of(s, "pid"),
               short_id(text_of(s, "run_id"), id), outcome(s, how),
               time_text(seconds_of(s, "ended"), at), duration(seconds_of(s, "elapsed_s"), up),
               text_of(s, "program"));
    }
}

/* Prints the worker's program, in a job of several programs, and ends the line. */
static void print_program(const json_t *w)
{
    char name[512] = "";
    const char *text = json_string_value(json_object_get(w, "program"));
    if (text)
        log_escape(name, sizeof(name), text, strlen(text), 0);
    printf("%s%s\n", text ? "  " : "", name);
}

static void print_worker(const json_t *w)
{
    char t[32];
    const json_t *code = json_object_get(w, "exit_code"), *signo = json_object_get(w, "signal");
    printf("  %-6ld %-6ld %-8ld %-9s ", number_of(w, "rank"), number_of(w, "local_rank"),
           number_of(w, "pid"), text_of(w, "state"));
    duration(seconds_of(w, "elapsed_s"), t);
    if (signo) {
        const char *abbrev = sigabbrev_np((int)json_integer_value(signo));
        printf("%-12s SIG%s", t, abbrev ? abbrev : "?");
    } else if (code) {
        printf("%-12s exit status %ld", t, (long)json_integer_value(code));
    } else {
        printf("%s", t);
    }
    print_program(w);
}

/* Why and when the job ends, as far as that is known. */
static void print_end(const json_t *s)
{
    char at[32];
    if (json_is_string(json_object_get(s, "stop")))
        printf("  stopping: %s\n", text_of(s, "stop"));
    if (json_is_number(json_object_get(s, "ends_at")))
        printf("  the job's time ends at %s\n", time_text(seconds_of(s, "ends_at"), at));
}

static void print_job(const struct job *j)
{
    const json_t *s = j->status, *workers = json_object_get(s, "workers"), *w;
    char up[32], at[32];
    size_t i;
    printf("%s: run id %s, process %ld on %s\n", text_of(s, "program"), text_of(s, "run_id"),
           job_shown_pid(j), text_of(s, "host"));
    if (j->ended)
        printf("  ended at %s with exit status %ld after %s, %ld of %ld restarts used%s%s\n",
               time_text(seconds_of(s, "ended"), at), number_of(s, "exit_status"),
               duration(seconds_of(s, "elapsed_s"), up), number_of(s, "restarts"),
               number_of(s, "max_restarts"), *text_of(s, "text") ? ": " : "", text_of(s, "text"));
    else
        printf("  %s (%s) for %s, rendezvous %s, %ld of %ld restarts used\n", text_of(s, "state"),
               text_of(s, "health"), duration(seconds_of(s, "elapsed_s"), up),
               text_of(s, "rendezvous"), number_of(s, "restarts"), number_of(s, "max_restarts"));
    if (!j->ended) {
        if (number_of(s, "node") >= 0)
            printf("  node %ld of %ld, %ld workers in the job; ", number_of(s, "node"),
                   number_of(s, "nodes"), number_of(s, "world_size"));
        else
            printf("  not all nodes have joined yet; ");
        printf("coordinator %s%s\n",
               json_is_true(json_object_get(s, "coordinator")) ? "here, at " : "at ",
               text_of(s, "endpoint"));
    }
    if (json_is_string(json_object_get(s, "lost_output")))
        printf("  output that could not be written: %s\n", text_of(s, "lost_output"));
    const json_t *hang = json_object_get(s, "hang");
    if (json_is_object(hang))
        printf("  %s: %s\n", text_of(hang, "state"), text_of(hang, "text"));
    if (json_is_string(json_object_get(s, "slow")))
        printf("  SLOW: %s\n", text_of(s, "slow"));
    if (!j->ended)
        print_end(s);
    if (json_array_size(workers) == 0 || number_of(s, "node") < 0)
        return;
    printf("\n  %-6s %-6s %-8s %-9s %s\n", "RANK", "LOCAL", "PID", "STATE", "SINCE START");
    json_array_foreach(workers, i, w) print_worker(w);
}

/* Prints the other nodes and their workers. */
static void print_other_nodes(const struct job *j, const json_t *state)
{
    const json_t *n, *w;
    size_t i, k;
    json_array_foreach(json_object_get(state, "nodes"), i, n)
    {
        long node = number_of(n, "node");
        if (node == number_of(j->status, "node"))
            continue;
        char host[512];
        const char *name = text_of(n, "host");
        log_escape(host, sizeof(host), name, strlen(name), 0);
        printf("\n  node %ld, %s: %s\n", node, host, text_of(n, "state"));
        json_array_foreach(json_object_get(state, "workers"), k, w)
        {
            const json_t *code = json_object_get(w, "exit_code"),
                         *signo = json_object_get(w, "signal");
            const char *abbrev = sigabbrev_np((int)json_integer_value(signo));
            if (number_of(w, "node") != node)
                continue;
            printf("  %-6ld %-6ld %-8ld %-9s", number_of(w, "rank"), number_of(w, "local_rank"),
                   number_of(w, "pid"), text_of(w, "state"));
            if (signo)
                printf(" SIG%s", abbrev ? abbrev : "?");
            else if (code)
                printf(" exit status %ld", (long)json_integer_value(code));
            print_program(w);
        }
    }
    if (!json_is_true(json_object_get(state, "complete")))
        printf("\n  (other nodes did not answer in time: not all nodes are listed)\n");
}

static int print_json(json_t *j)
{
    int rc = json_dumpf(j, stdout, JSON_INDENT(2));
    printf("\n");
    return rc;
}

/* ------------------------------------------------------------------------------------- commands */

static int do_list(struct jobs *jobs, bool json)
{
    jobs_find_ended(jobs);
    if (json) {
        json_t *list = json_array();
        for (size_t i = 0; i < jobs->n; i++)
            json_array_append(list, jobs->job[i].status);
        for (size_t i = 0; i < jobs->nended; i++) {
            json_object_del(jobs->ended[i].status, "events"); /* describe has them */
            json_array_append(list, jobs->ended[i].status);
        }
        print_json(list);
        json_decref(list);
    } else if (jobs->n) {
        print_list(jobs);
    } else if (jobs->nsilent == 0) {
        log_notice("you have no running job on this host");
    }
    if (!json && jobs->nended) {
        if (jobs->n)
            putchar('\n');
        fflush(stdout);
        print_ended(jobs);
    }
    return jobs->n == 0 && jobs->nsilent;
}

/* The launcher's own state, and that of the other nodes from the events. */
static void show_status(struct job *j, bool json)
{
    json_t *state = number_of(j->status, "nodes") > 1 ? ctl_job_state(j) : NULL;
    if (json) {
        if (state)
            json_object_set(j->status, "job", state);
        print_json(j->status);
    } else {
        print_job(j);
        if (state)
            print_other_nodes(j, state);
    }
    json_decref(state);
}

/* Whether the workers run: what a readiness probe asks. */
static int do_ready(const struct job *j)
{
    const char *state = text_of(j->status, "state");
    printf("%s\n", state);
    return strcmp(state, "RUNNING") == 0 ? 0 : 1;
}

static int do_status(struct jobs *jobs, struct job *j, const struct options *o)
{
    if (!j)
        return do_list(jobs, o->json);
    if (o->ready)
        return do_ready(j);
    show_status(j, o->json);
    return 0;
}

static int do_describe(struct jobs *jobs, struct job *j, const struct options *o)
{
    (void)jobs;
    if (!o->json) {
        show_status(j, false);
        printf("\n");
        return ctl_events(j, false, false);
    }
    json_t *state = ctl_job_state(j), *events = job_events(j);
    if (!state || !events)
        return 1;
    json_object_set_new(j->status, "job", state);
    json_object_set_new(j->status, "events", events);
    print_json(j->status);
    return 0;
}

static int do_events(struct jobs *jobs, struct job *j, const struct options *o)
{
    (void)jobs;
    return ctl_events(j, o->follow, o->json);
}

static int do_top(struct jobs *jobs, struct job *j, const struct options *o)
{
    (void)jobs;
    return ctl_top(j, o->json);
}

static int do_timeline(struct jobs *jobs, struct job *j, const struct options *o)
{
    (void)jobs, (void)o; /* the answer is JSON in any case */
    return ctl_timeline(j);
}

static int do_wait(struct jobs *jobs, struct job *j, const struct options *o)
{
    (void)jobs;
    return ctl_wait(j, o->argument, o->timeout, o->json);
}

static int do_logs(struct jobs *jobs, struct job *j, const struct options *o)
{
    (void)jobs;
    return ctl_logs(j, o->ranks, o->follow, o->json);
}

static bool listens(struct job *j)
{
    _cleanup_fd_ int fd = job_connect(j);
    return fd >= 0 || fd == -EAGAIN;
}

/* Waits until the process has ended, by its descriptor where the kernel has pidfds. A process that
 * is not visible here has ended when its socket is gone. */
static void wait_for_end(int pidfd, struct job *j)
{
    struct pollfd p = {pidfd, POLLIN, 0};
    if (pidfd >= 0) {
        while (poll(&p, 1, -1) < 0 && errno == EINTR)
            ;
        return;
    }
    while (j->pid ? kill((pid_t)j->pid, 0) == 0 : listens(j))
        poll(NULL, 0, 50);
}

/* Sends a request and prints what the launcher says. what: NULL, nothing is printed but an error.
 */
static int request(struct job *j, const char *command, const char *what, const struct options *o)
{
    json_t *answer = job_ask(j, command);
    const char *error = json_string_value(json_object_get(answer, "error"));
    if (!answer || error) {
        log_error("process %ld %s%s", job_shown_pid(j),
                  error ? "refuses: " : "does not answer: ", error ? error : strerror(errno));
        json_decref(answer);
        return 1;
    }
    bool all = !json_is_false(json_object_get(answer, "job"));
    if (o->json)
        print_json(answer);
    else if (what)
        printf("%s: %s process %ld%s\n", text_of(j->status, "program"), what, job_shown_pid(j),
               all ? "" : " (only its node: no coordinator is in reach)");
    fflush(stdout);
    json_decref(answer);
    return 0;
}

/* stop and kill. */
static int end_job(struct job *j, const char *command, const char *what, const struct options *o)
{
    /* Opened before the command is sent, because afterwards the pid may belong to another process.
     */
    _cleanup_fd_ int pidfd = j->pid ? (int)syscall(SYS_pidfd_open, (pid_t)j->pid, 0) : -1;
    if (request(j, command, o->json ? NULL : what, &(struct options){.json = false}) != 0)
        return 1;
    if (o->wait)
        wait_for_end(pidfd, j);
    if (o->json) {
        json_t *answer = json_pack("{s:I,s:b,s:b}", "pid", (json_int_t)job_shown_pid(j), "stopping",
                                   1, "ended", (int)o->wait);
        print_json(answer);
        json_decref(answer);
    } else if (o->wait) {
        printf("%s: process %ld has ended\n", text_of(j->status, "program"), job_shown_pid(j));
    }
    return 0;
}

static int do_stop(struct jobs *jobs, struct job *j, const struct options *o)
{
    (void)jobs;
    return end_job(j, "stop\n", "stopping", o);
}

static int do_kill(struct jobs *jobs, struct job *j, const struct options *o)
{
    (void)jobs;
    return end_job(j, "kill\n", "killing", o);
}

static int do_restart(struct jobs *jobs, struct job *j, const struct options *o)
{
    (void)jobs;
    return request(j, "restart\n", "restarting the workers of", o);
}

static int signal_number(const char *name)
{
    char *end;
    long n = strtol(name, &end, 10);
    if (end != name && !*end)
        return n > 0 && n < NSIG ? (int)n : 0;
    name += strncasecmp(name, "SIG", 3) == 0 ? 3 : 0;
    for (int s = 1; s < SIGRTMIN; s++) {
        const char *abbrev = sigabbrev_np(s);
        if (abbrev && strcasecmp(abbrev, name) == 0)
            return s;
    }
    return 0;
}

static int do_signal(struct jobs *jobs, struct job *j, const struct options *o)
{
    char command[300];
    (void)jobs;
    snprintf(command, sizeof(command), "signal %d %s\n", signal_number(o->argument),
             o->ranks ? o->ranks : "");
    return request(j, command, "signalling the workers of", o);
}

static int do_stacks(struct jobs *jobs, struct job *j, const struct options *o)
{
    char command[256];
    (void)jobs;
    snprintf(command, sizeof(command), "stacks %s\n", o->ranks ? o->ranks : "");
    json_t *answer = job_ask(j, command);
    const char *text = json_string_value(json_object_get(answer, "text"));
    const char *error = json_string_value(json_object_get(answer, "error"));
    if (!text) {
        log_error("process %ld %s%s", job_shown_pid(j),
                  error ? "refuses: " : "does not answer: ", error ? error : strerror(errno));
        json_decref(answer);
        return 1;
    }
    if (o->json) {
        json_object_del(answer, "text");
        print_json(answer);
    } else {
        fputs(*text ? text : "no worker runs\n", stdout);
    }
    json_decref(answer);
    return 0;
}

/* The classes of causes, and what follows from each. */
static int do_causes(bool json)
{
    json_t *list = json_array();
    if (!json)
        printf("%-17s %-8s %s\n", "CLASS", "ACTION", "CAUSE");
    for (enum cause c = CAUSE_NONE + 1; c < CAUSES; c++) {
        const struct cause_row *row = cause_row(c);
        const char *action = cause_action_name(row->action);
        if (!json)
            printf("%-17s %-8s %s\n", row->name, action, row->meaning);
        json_array_append_new(list,
                              json_pack("{s:s,s:s,s:b,s:s}", "cause", row->name, "action", action,
                                        "settable", (int)row->settable, "meaning", row->meaning));
    }
    if (json)
        print_json(list);
    json_decref(list);
    return 0;
}

static const char usage[] =
    "Usage: dlaunchctl [options] [command] [job]\n"
    "\n"
    "Show, follow and control your dlaunch jobs. Without a command, list the jobs of\n"
    "this host, and those that ended in the last 24 hours. A job is a process id (of its\n"
    "dlaunch or one of its workers), a run id, or the name of the program; to look at a\n"
    "job, four characters of its run id suffice. It can be omitted if only one is running.\n"
    "\n"
    "  status [job]         Show a job and its workers on all nodes; without a job, list.\n"
    "  describe [job]       The same, and all events.\n"
    "  events [-f] [job]    Print what has happened in the job; -f: and what happens.\n"
    "  top [job]            Show what nodes and ranks are doing, every second.\n"
    "  timeline [job]       Print the job as a trace for ui.perfetto.dev.\n"
    "  wait EVENT [job]     Return when the event has happened, such as ready or finish.\n"
    "  logs [-f] [job]      Print the log files of the ranks on this host.\n"
    "  stop [job]           Stop a job as SIGTERM does. A second stop, at least half a\n"
    "                       second later, kills its workers.\n"
    "  kill [job]           Kill the workers of all nodes, which ends the job.\n"
    "  restart [job]        Start the workers of all nodes again; not counted.\n"
    "  signal SIG [job]     Send a signal to the workers of all nodes.\n"
    "  stacks [job]         Print where the workers of all nodes are in their programs.\n"
    "  causes               List the classes of causes, for --on_cause of dlaunch.\n"
    "\n"
    "  -p, --job JOB        The job, as above.\n"
    "  -f, --follow         With events and logs: go on until the job ends.\n"
    "  --ranks LIST         With logs, signal and stacks: only these ranks: 0,8-15.\n"
    "  --timeout S          With wait: give up after S seconds, with exit status 124.\n"
    "  --ready              With status: succeed if the job's workers are running.\n"
    "  --wait               With stop and kill: return when the job has ended.\n"
    "  -o, --output FORMAT  text or json. --json is -o json.\n"
    "  --version            Print the version.\n"
    "  -h, --help           Print this text.\n"
    "\n"
    "Exit status: 0; 1 if the job does not exist, does not answer or is not ready, ends\n"
    "before the event, or standard output cannot be written; 2 for wrong arguments; 124\n"
    "after --timeout.\n";

/* The exit status, when what was printed has arrived. */
static int end_output(int rc)
{
    if ((fflush(stdout) == 0 && !ferror(stdout)) || rc != 0)
        return rc;
    log_error("standard output: %s", strerror(errno));
    return 1;
}

#define RANKS_MAX 220 /* characters of --ranks, which fit in a command */

#define FOLLOW  1u /* options that a command takes */
#define RANKS   2u
#define TIMEOUT 4u
#define WAIT    8u
#define ANY_JOB 16u /* without a job it is about all */
#define ENDED   32u /* works on a job that has ended, too */
#define WHOLE   64u /* changes a job: a whole name must be given */

static const struct command {
    const char *name;
    const char *argument; /* the argument in front of the job; NULL: none */
    unsigned takes;
    int (*run)(struct jobs *jobs, struct job *j, const struct options *o);
} commands[] = {
    {"status", NULL, ANY_JOB, do_status},
    {"describe", NULL, ENDED, do_describe},
    {"events", NULL, FOLLOW | ENDED, do_events},
    {"top", NULL, 0, do_top},
    {"timeline", NULL, ENDED, do_timeline},
    {"wait", "an event", TIMEOUT, do_wait},
    {"logs", NULL, FOLLOW | RANKS | ENDED, do_logs},
    {"stop", NULL, WAIT | WHOLE, do_stop},
    {"kill", NULL, WAIT | WHOLE, do_kill},
    {"restart", NULL, WHOLE, do_restart},
    {"signal", "a signal", RANKS | WHOLE, do_signal},
    {"stacks", NULL, RANKS, do_stacks},
    {"causes", NULL, 0, NULL},
};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    log_error("unknown command '%s'; see dlaunchctl --help", name);
    return NULL;
}

/* The options that were given and that the command does not take. */
static bool fits(const struct command *c, const struct options *o)
{
    const char *wrong = o->follow && !(c->takes & FOLLOW)          ? "--follow"
                        : o->ranks && !(c->takes & RANKS)          ? "--ranks"
                        : o->timeout >= 0 && !(c->takes & TIMEOUT) ? "--timeout"
                        : o->wait && !(c->takes & WAIT)            ? "--wait"
                                                                   : NULL;
    enum event_name event;
    struct err e = ERR_INIT;
    if (o->ready && (c->run != do_status || o->json)) {
        log_error("--ready needs the command status, without --json");
        return false;
    }
    if (wrong)
        log_error("%s has no effect on the command %s", wrong, c->name);
    else if (c->argument && !o->argument)
        log_error("the command %s needs %s", c->name, c->argument);
    else if (c->run == do_wait && !event_find(o->argument, &event))
        log_error("'%s' is not an event; dlaunch(1) lists them", o->argument);
    else if (c->run == do_signal && !signal_number(o->argument))
        log_error("'%s' is not a signal (a name such as USR1, or a number)", o->argument);
    else if (o->ranks && parse_ranges(o->ranks, &e) < 0)
        log_error("--ranks: %s", e.msg);
    else if (o->ranks && strlen(o->ranks) > RANKS_MAX)
        log_error("--ranks: the list is longer than %d characters", RANKS_MAX);
    else
        return true;
    return false;
}

/* The words behind the options. Returns 0, or 2 after a message. */
static int take_words(char **words, const struct command **command, struct options *o)
{
    *command = &commands[0];
    if (*words && !(*command = find_command(*words++)))
        return 2;
    if ((*command)->argument && *words)
        o->argument = *words++;
    if (*words && !o->which && (*command)->run)
        o->which = *words++;
    if (*words) {
        log_error("unexpected argument '%s'", *words);
        return 2;
    }
    return fits(*command, o) ? 0 : 2;
}

static int run(const struct command *c, const struct options *o)
{
    static struct jobs jobs;
    jobs_find(&jobs, o->which);
    bool all = (c->takes & ANY_JOB) && !o->which && !o->ready;
    struct job *j = all ? NULL : jobs_pick(&jobs, o->which, c->takes & ENDED, c->takes & WHOLE);
    int rc = all || j ? c->run(&jobs, j, o) : 1;
    jobs_fini(&jobs);
    return rc;
}

static bool take_format(struct options *o, const char *text)
{
    o->json = strcmp(text, "json") == 0;
    bool known = o->json || strcmp(text, "text") == 0;
    if (!known)
        log_error("-o: '%s' is not text or json", text);
    return known;
}

/* Options; -1: go on; else the exit status. */
static int take_options(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {{"job", required_argument, NULL, 'p'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"output", required_argument, NULL, 'o'},
                                          {"follow", no_argument, NULL, 'f'},
                                          {"ready", no_argument, NULL, 'R'},
                                          {"ranks", required_argument, NULL, 'r'},
                                          {"timeout", required_argument, NULL, 't'},
                                          {"wait", no_argument, NULL, 'w'},
                                          {"version", no_argument, NULL, 'V'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    char *end;
    int c;
    while ((c = getopt_long(argc, argv, "p:o:fh", longs, NULL)) != -1) {
        switch (c) {
        case 'p':
            o->which = optarg;
            break;
        case 'j':
            o->json = true;
            break;
        case 'o':
            if (!take_format(o, optarg))
                return 2;
            break;
        case 'f':
            o->follow = true;
            break;
        case 'r':
            o->ranks = optarg;
            break;
        case 't':
            o->timeout = strtod(optarg, &end);
            if (end == optarg || *end || !(o->timeout >= 0 && o->timeout < 1e9)) {
                log_error("--timeout: '%s' is not a number of seconds", optarg);
                return 2;
            }
            break;
        case 'R':
            o->ready = true;
            break;
        case 'w':
            o->wait = true;
            break;
        case 'V':
            printf("dlaunchctl %s\n", DLAUNCH_VERSION);
            return end_output(0);
        case 'h':
            fputs(usage, stdout);
            return end_output(0);
        default:
            return 2; /* getopt has said why */
        }
    }
    return -1;
}

int main(int argc, char **argv)
{
    struct options o = {.timeout = -1};
    const struct command *command;
    fd_open_std();
    log_init(LOG_LEVEL_NOTICE, "dlaunchctl: ");
    int status = take_options(argc, argv, &o);
    if (status >= 0)
        return status;
    int rc = take_words(argv + optind, &command, &o);
    if (rc == 0)
        rc = command->run ? run(command, &o) : do_causes(o.json);
    return rc == 2 ? 2 : end_output(rc);
}
