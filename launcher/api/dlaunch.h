/* dlaunch.h: jobs of dlaunch, started, watched and stopped by a program. Link with -ldlaunch.
 *
 *     const char *argv[] = {"./train", "--steps", "100", NULL};
 *     dlaunch_opts o = DLAUNCH_OPTS_INIT;
 *     dlaunch_job *job;
 *     char why[256];
 *     o.argv = argv;
 *     o.nproc_per_node = 4;
 *     if (dlaunch_job_start(&o, &job, why, sizeof(why)) < 0)
 *         errx(1, "%s", why);
 *     for (const dlaunch_event *e; (e = dlaunch_job_wait(job, -1)) && e->type != DLAUNCH_END;)
 *         if (e->type == DLAUNCH_OUT)
 *             fwrite(e->data, 1, e->len, stdout);
 *     ...
 *     dlaunch_job_free(job);
 *
 * The program dlaunch runs the job in processes of its own, which this library talks to through one
 * descriptor. The library has no threads and no signal handlers; it knows the jobs of its process,
 * so that a forked child closes its copies of the descriptors. When the calling process ends,
 * however it ends, the job ends: within half a second its processes are gone.
 *
 * Threads: one thread at a time may use a job; different jobs are independent of each other. */
#ifndef DLAUNCH_H
#define DLAUNCH_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef DLAUNCH_API
#define DLAUNCH_API __attribute__((visibility("default")))
#endif

/* The version of the library as a number that grows: 1.2.3 is DLAUNCH_VERSION_NUMBER(1, 2, 3). Any
 * thread, at any time. */
#define DLAUNCH_VERSION_NUMBER(major, minor, patch) ((major)*1000000 + (minor)*1000 + (patch))
DLAUNCH_API int dlaunch_version(void);

typedef struct dlaunch_job dlaunch_job;

/* What a job is. The caller owns everything in it; dlaunch_job_start() copies. */
typedef struct dlaunch_opts {
    size_t size; /* sizeof(dlaunch_opts), as DLAUNCH_OPTS_INIT sets it */

    const char *const *argv; /* the program and its arguments, then NULL */
    const char *const *env;  /* "NAME=value" that are set in addition to the caller's environment,
                                then NULL; NULL: none */
    const char *cwd;         /* the workers' folder; NULL: the caller's */
    const char *hosts;       /* "a:4,b:4" (--host); NULL: this host */
    const char *nnodes;      /* "2" or "1:4" (--nnodes); NULL: 1, or one for each host */
    int nproc_per_node;      /* workers on a node; 0: as dlaunch chooses */
    int max_restarts;        /* -1: as dlaunch chooses */
    const char *const *options; /* further options of dlaunch(1), each in one word with its value,
                                   "--log_dir=logs", then NULL; NULL: none */
    const char *dlaunch;        /* the program dlaunch; NULL: $DLAUNCH, or dlaunch on PATH */
    unsigned version;           /* DLAUNCH_OPTS_VERSION, as DLAUNCH_OPTS_INIT sets it; behind it the
                                   fields of later versions will be */
} dlaunch_opts;

#define DLAUNCH_OPTS_VERSION 2 /* 1 had no version */

#define DLAUNCH_OPTS_INIT                                                      \
    {                                                                          \
        sizeof(dlaunch_opts), NULL, NULL, NULL, NULL, NULL, 0, -1, NULL, NULL, \
            DLAUNCH_OPTS_VERSION                                               \
    }

enum dlaunch_event_type {
    DLAUNCH_OUT = 1, /* bytes of the workers' standard output: whole lines, unless a line is longer
                        than 64 KB or has waited 50 ms for its end */
    DLAUNCH_ERR,     /* bytes of the workers' standard error, in the same way */
    DLAUNCH_LOG,     /* a line of dlaunch itself */
    DLAUNCH_EVENT,   /* an event of the job, see EVENTS in dlaunch(1) */
    DLAUNCH_END      /* the job has ended; no event follows */
};

enum dlaunch_level { DLAUNCH_ERROR, DLAUNCH_WARNING, DLAUNCH_NOTICE, DLAUNCH_VERBOSE };

/* Owned by the job, valid until the next call for that job. */
typedef struct dlaunch_event {
    enum dlaunch_event_type type;
    const char *data; /* OUT, ERR: bytes; LOG: the line; EVENT: an object of JSON, in one line;
                         END: why the job failed, in one line, "" if it did not */
    size_t len;       /* of data, which a NUL follows */
    const char *name; /* EVENT: its name, such as "worker.start" */
    enum dlaunch_level level; /* LOG */
    int exit_status;          /* END: as that of the command dlaunch */
    const char *report;       /* END: what dlaunch prints of a failure; "" none */
    const char *report_json;  /* END: as --report writes it; "" none: the options were refused */
} dlaunch_event;

/* Starts a job. Options that dlaunch refuses end the job with exit status 2. Returns 0, or a
 * negative errno with a line of text in `why` (at most cap bytes with the NUL; NULL: not wanted):
 * -EINVAL for what is missing in opts, or what no job can have, and else why dlaunch cannot be
 * run. */
DLAUNCH_API int dlaunch_job_start(const dlaunch_opts *opts, dlaunch_job **job, char *why,
                                  size_t cap);

/* Readable, for poll(2), when dlaunch_job_next() may have an event. The job's own: it must not be
 * read or closed. After DLAUNCH_END it stays readable. */
DLAUNCH_API int dlaunch_job_fd(const dlaunch_job *job);

/* The next event; NULL: none has come, or DLAUNCH_END was the last. Does not wait. Workers that
 * print wait for a caller that does not take their output. */
DLAUNCH_API const dlaunch_event *dlaunch_job_next(dlaunch_job *job);

/* dlaunch_job_next() that waits for an event for at most timeout_ms (-1: for as long as it takes).
 * NULL: none has come in that time, or DLAUNCH_END was the last. */
DLAUNCH_API const dlaunch_event *dlaunch_job_wait(dlaunch_job *job, int timeout_ms);

/* Sends a signal to dlaunch, which passes it on to the workers: SIGTERM and SIGINT stop the job,
 * a second one at once. Returns 0, -EINVAL: not a signal for that, -ESRCH: the job has ended,
 * -EPERM: this is a forked child of the process that has started the job, in which the job has no
 * descriptor (dlaunch_job_fd() is -1), so that a child that lives on holds nothing open. */
DLAUNCH_API int dlaunch_job_signal(dlaunch_job *job, int signo);

/* Ends the job if it has not ended, and waits until its processes are gone. In a forked child of
 * the process that has started the job: only frees the copy. NULL is allowed. */
DLAUNCH_API void dlaunch_job_free(dlaunch_job *job);

#ifdef __cplusplus
}
#endif
#endif
