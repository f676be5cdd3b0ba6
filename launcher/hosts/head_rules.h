/* head_rules.h: what dlaunch -H decides: which hosts are in the job, when it begins, what a signal
 * and the loss of a host mean, and how the job ended. Pure: events go in, with the time where it
 * matters; actions come out of head_rules_next(). No I/O, no clock.
 *
 *     the job                                        a host
 *
 *     MEETING --all have come or are lost--+         COMING --its dlaunch waits for the plan--+
 *        |                                 v           |                                      v
 *        |                              RUNNING        |        PLANNED <--the job begins-- READY
 *        |                                 |           |           |                          |
 *   a signal; too few hosts            too few hosts   |   its launcher has ended             |
 *        |                                 |           |           v                          |
 *        +----------> ENDING <-------------+           |          ENDED                        |
 *                                                      +---> GONE <+------------ lost --------+
 *
 * While the job is RUNNING a signal is passed on, and the launchers end the job.
 *
 * How the job ended, the first of these that there is:
 *   the head has ended the job     ENDING: for a signal before it began, or for want of hosts
 *   a coordinator's result         which the launchers that were there to the end all tell; of two
 *                                  coordinators the one that was elected later knows more; of two
 *                                  that are alike the first host's in the list counts
 *   a launcher's own result        with a report, or success: it lost the coordinator; the first
 *                                  one told
 *   any launcher's failure         without a report: it refused its options
 * The order in which hosts tell what coordinators have decided does not matter: a host that was cut
 * off tells last, and late. */
#ifndef LAUNCHER_HOSTS_HEAD_RULES_H
#define LAUNCHER_HOSTS_HEAD_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/log.h"
#include "launcher/hosts/frame.h"

struct head_rules;

/* The job has at least `min` hosts and at most `max`, and `spares` beyond. */
struct head_rules *head_rules_new(size_t nhosts, int min, int max, int spares);
void head_rules_free(struct head_rules *r); /* NULL is allowed */

/* Events. */
void head_rules_ready(struct head_rules *r, size_t host); /* its dlaunch waits for the plan */
void head_rules_began(struct head_rules *r, size_t host); /* the host's workers have begun to run */
/* The launcher of the host has ended. reported: the launcher has told a report. */
void head_rules_ended(struct head_rules *r, size_t host, const struct frame_exit *f, bool reported);
/* The host cannot be in the job, for the reason `why`; so the job would end with this status. */
void head_rules_absent(struct head_rules *r, size_t host, const char *why, int status);
/* The connection has ended, and all that came has been passed in. */
void head_rules_closed(struct head_rules *r, size_t host, const char *why);
void head_rules_signal(struct head_rules *r, int signo, uint64_t now_ns);
/* The hosts stop the job at that time, by --timeout. */
void head_rules_limit(struct head_rules *r, uint64_t limit_ns);
void head_rules_tick(struct head_rules *r, bool output_is_taken, uint64_t now_ns);
uint64_t head_rules_deadline(const struct head_rules *r, bool output_is_taken); /* of a tick;
                                                                                   UINT64_MAX: none
                                                                                 */

enum head_act {
    HEAD_ACT_LOG,    /* level, text; host: what it is about, or HEAD_NO_HOST */
    HEAD_ACT_PLAN,   /* each host with a rank gets its plan */
    HEAD_ACT_DROP,   /* host: is not wanted; whatever was begun there ends */
    HEAD_ACT_SIGNAL, /* host, signo */
    HEAD_ACT_KILL,   /* host: the connection to the host ends now */
    HEAD_ACT_HURRY,  /* no reader of the output is waited for any more */
};
#define HEAD_NO_HOST SIZE_MAX

struct head_action {
    enum head_act act;
    size_t host;
    int signo;
    enum log_level level;
    char text[512];
};

/* The next thing to do; false: there is none. */
bool head_rules_next(struct head_rules *r, struct head_action *a);

int head_rules_nodes(const struct head_rules *r);             /* that begin, without spares */
int head_rules_rank(const struct head_rules *r, size_t host); /* of its node; -1: it has no plan */
bool head_rules_is_left(const struct head_rules *r, size_t host); /* not GONE */
bool head_rules_ends(const struct head_rules *r);                 /* the job is ENDING */
bool head_rules_was_stopped(const struct head_rules *r);          /* by a signal */

/* The exit status of the job, when no host is left. */
int head_rules_status(const struct head_rules *r);
/* The host whose result is the job's; HEAD_NO_HOST: there is none. */
size_t head_rules_teller(const struct head_rules *r);

/* Computes every count and every choice anew, and asserts that the kept ones are equal. */
void head_rules_check(const struct head_rules *r);

#endif
