/* ctl_jobs.h: the launchers that dlaunchctl finds on this host by their control sockets, and how it
 * asks them. */
#ifndef LAUNCHER_CONTROL_CTL_JOBS_H
#define LAUNCHER_CONTROL_CTL_JOBS_H

#include <dirent.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define JOBS_MAX 1024

struct job {
    long number; /* the launcher's pid in the name of its socket */
    long pid;    /* the pid as seen from here, another one for a container; 0: not seen */
    long agent;  /* the pid of its agent; 0: unknown */
    int dirfd;   /* of the folder that its socket is in; borrowed */
    char name[32];
    json_t *status;
    bool ended; /* `status` is what its launcher left, with the events */
};

#define DIRS_MAX 8

struct jobs {
    struct job job[JOBS_MAX];
    size_t n;
    struct job *ended; /* after jobs_find_ended(), the newest first */
    size_t nended;
    int nsilent; /* launchers that do not answer, such as one that was stopped with Ctrl-Z */
    bool named_is_silent;
    DIR *dir[DIRS_MAX]; /* the folders that were looked into */
};

/* Finds all launchers and asks for their status. which: what the user calls a job, or NULL. */
void jobs_find(struct jobs *jobs, const char *which);
/* Reads what the jobs have left that ended; once. jobs_pick() does it when no job runs that is
 * meant. */
void jobs_find_ended(struct jobs *jobs);
void jobs_fini(struct jobs *jobs);

/* The job that is meant: by the process id of its launcher, by its run id, by a process below its
 * launcher (of nested jobs the inner one), by the beginning of its run id, of four characters that
 * are not all digits, or by the name of its program. ended: if no job that runs has this name, the
 * newest one that has ended. whole: the beginning of a run id does not do. NULL after a message. */
struct job *jobs_pick(struct jobs *jobs, const char *which, bool ended, bool whole);

long job_shown_pid(const struct job *j);

/* Whether that errno of job_ask() says that nobody is there who could answer. */
bool job_is_gone(int errnum);
/* A launcher that was there at since_s, and is gone: whether its job has ended. A launcher that was
 * killed leaves no file about that. */
bool job_has_left_its_end(const struct job *j, double since_s);

/* A connection to the launcher; a negative errno. */
int job_connect(struct job *j);

/* Sends the command, a line; 0 or a negative errno. */
int job_send(int fd, const char *command);
/* Sends the command, a line, and reads the line of JSON that answers it. NULL with errno set. */
json_t *job_ask(struct job *j, const char *command);

/* The events that the launcher knows, an array, asked for in parts; NULL with errno set. */
json_t *job_events(struct job *j);
/* Adds those from number *at on, which goes on. -1 with errno set. */
int job_events_add(struct job *j, json_t *all, long *at);

/* Fields of an answer: "?" and 0 if they are not there. */
const char *text_of(const json_t *j, const char *key);
long number_of(const json_t *j, const char *key);

#endif
