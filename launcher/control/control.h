/* control.h: the control socket of a running launcher, for dlaunchctl(1).
 *
 * A client of the same user (or root) sends a line and gets a line of JSON. The line begins with
 * the number of the protocol, as in "1 stop"; "control" of a status is the launcher's. Where they
 * differ, the launcher answers nothing but status, and dlaunchctl asks for nothing else.
 *     status    {"control": ..., "pid": ..., "state": "RUNNING", "workers": [{...}, ...], ...}
 *     stop      {"stopping": true}
 *     kill, restart, signal N RANKS    {"job": whether all nodes were asked}
 *     stacks RANKS    {"tree": ..., "ranks": ..., "text": ...} of all nodes (stack_tree.h)
 *     events N  {"events": [...], "next": N, "more": false}: those that are known here
 *               (event_json.h) from number N on, some hundreds at once
 *     top MOST  what the nodes and their workers do and use (agent/report/top.h)
 *     operations    the last ones of the workers (operations.h)
 *     follow    the events, each on a line, also those to come until the job ends
 *     anything else    {"error": "..."}
 * At most CONTROL_CLIENTS_MAX at a time, each for at most CONTROL_CLIENT_SECONDS unless it follows
 * the events.
 * When the socket's file is removed, as with the folder of a session that ends, it is made anew in
 * the first folder that will do then. */
#ifndef LAUNCHER_CONTROL_CONTROL_H
#define LAUNCHER_CONTROL_CONTROL_H

#include <sys/types.h>
#include <uv.h>

#include "agent/agent.h"
#include "core/err.h"

#define CONTROL_CLIENTS_MAX    16
#define CONTROL_CLIENT_SECONDS 10
#define CONTROL_LINE_MAX       256 /* of a command */

struct control_opts {
    pid_t pid;                  /* of the process that the user started: the socket's name */
    const struct job_spec *job; /* borrowed */
    struct guardian_page *page; /* receives the socket's path, for a guardian that cleans up */
    /* Requests to the agent. Neither is called after control_close(). */
    void (*get_status)(void *arg, struct agent_status *out);
    const struct event_list *(*get_events)(void *arg);
    void (*stop)(void *arg, const char *why);
    struct json_t *(*get_operations)(void *arg);
    bool (*request)(void *arg, enum request_kind kind, int signo, const char *ranks);
    /* Call back once with the stacks, or what top shows, owned then, or NULL. */
    void (*get_stacks)(void *arg, const char *ranks,
                       void (*on_done)(void *arg, struct json_t *stacks), void *done_arg);
    void (*get_top)(void *arg, size_t most, void (*on_done)(void *arg, struct json_t *top),
                    void *done_arg);
    void *arg;
    unsigned client_ms; /* how long a client may stay; 0: CONTROL_CLIENT_SECONDS */
};

struct control;

int control_open(struct control **out, uv_loop_t *loop, const struct control_opts *opts,
                 struct err *e);

/* Sends new events to clients that follow them. NULL is allowed. */
void control_events_changed(struct control *c);

/* The job has ended: leaves a file beside the socket, "<pid>-<end>.ended", with its last status,
 * its newest events, and when and how it ended, for dlaunchctl. NULL is allowed. */
#define CONTROL_ENDED_BYTES   (256u << 10) /* of that file */
#define CONTROL_ENDED_WORKERS 256          /* listed in it; those that failed come first */
void control_keep(struct control *c, int exit_status, const char *text);

/* Removes the socket and closes every connection, then calls back. NULL: calls back at once. */
void control_close(struct control *c, void (*on_closed)(void *arg), void *arg);

#endif
