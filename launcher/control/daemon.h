/* daemon.h: running in the background: detaching, the log file, the pid file, and telling systemd.
 */
#ifndef LAUNCHER_CONTROL_DAEMON_H
#define LAUNCHER_CONTROL_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "core/err.h"

/* ---- --daemon: the command that was started waits until its background process is ready.
 *
 * daemon_detach() forks. In the waiting command it returns 1, once the other one is ready (then
 * *exit_status is 0) or has ended (then its status); what it said with daemon_say() has been shown.
 * In the background process it returns 0: a session of its own, standard input /dev/null. */
struct daemon {
    int ready;    /* to the waiting command; -1: nobody waits */
    bool logged;  /* standard error is the log file */
    int terminal; /* the standard error of the foreground; -1: not kept */
};
#define DAEMON_INIT                 \
    {                               \
        .ready = -1, .terminal = -1 \
    }
int daemon_detach(struct daemon *d, int *exit_status, struct err *e);
/* A writer for log_set_writer(): to the command that waits, and to the log file. */
void daemon_say(void *d, const char *line, size_t len);
/* The waiting command returns 0 now. */
void daemon_ready(struct daemon *d);

/* Standard output and error append to the file from now on. */
int daemon_log_to(struct daemon *d, const char *path, struct err *e);
/* Warns about a log file that cannot be written: on the terminal or in the file that standard error
 * was, else in the system's log, whose socket is `syslog` (/dev/log). */
void daemon_warn(const struct daemon *d, const char *syslog, const char *text);

/* ---- --pid_file: locked for as long as the job runs. The lock goes with the process, so a file
 * that is left behind holds up nobody. */
struct pid_file {
    int fd; /* -1: none */
    char path[512];
};
/* Takes the lock. -EBUSY: another process has it, named in the text. */
int pid_file_open(struct pid_file *p, const char *path, struct err *e);
int pid_file_write(struct pid_file *p, struct err *e); /* our pid, after daemon_detach() */
void pid_file_close(struct pid_file *p);               /* removes it */

/* ---- systemd's readiness protocol, sd_notify(3). */
struct notify {
    int fd; /* -1: nobody listens */
};
/* Takes NOTIFY_SOCKET out of the environment, so that workers do not speak for the service. */
void notify_open(struct notify *n);
void notify_send(const struct notify *n, const char *state); /* "READY=1", "STATUS=..." */
void notify_close(struct notify *n);

#endif
